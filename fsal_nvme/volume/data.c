/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Writes, and holes. The bytes of a small file go into its overlay; those of a larger one are
 * appended to a stream under no lock, and then become pieces of the overlay under the file's lock.
 * When the file has changed its nature in between (a truncate, another writer) the append is
 * abandoned and done again.
 */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

/* --- iovecs ---------------------------------------------------------------------------------- */

/* Bytes [from, from + length) of `iov` as at most `room` iovecs; *count of them, which hold the
 * returned number of bytes. */
static size_t iov_slice(const struct iovec *iov, unsigned iov_count, size_t from, size_t length,
	struct iovec *slice, unsigned room, unsigned *count)
{
	size_t given = 0;

	*count = 0;
	for (unsigned i = 0; i < iov_count && given < length && *count < room; i++) {
		size_t take = iov[i].iov_len;

		if (from >= take) {
			from -= take;
			continue;
		}
		take -= from;
		take = take < length - given ? take : length - given;
		slice[(*count)++] = (struct iovec){(char *)iov[i].iov_base + from, take};
		given += take;
		from = 0;
	}
	return given;
}

static void iov_copy(uint8_t *to, const struct iovec *iov, size_t length)
{
	for (unsigned i = 0; length; i++) {
		size_t take = iov[i].iov_len < length ? iov[i].iov_len : length;

		memcpy(to, iov[i].iov_base, take);
		to += take;
		length -= take;
	}
}

/* --- appending ------------------------------------------------------------------------------- */

static int stage_some(struct volume *volume, const struct staging *s, uint64_t offset,
	const struct iovec *iov, unsigned iov_count, size_t length)
{
	struct extent extents[APPEND_EXTENTS];
	unsigned count = APPEND_EXTENTS;
	int r = overlay_reserve(volume, s->overlay, APPEND_EXTENTS);

	if (!r)
		r = lane_append(volume, s->lane, s->loan, iov, iov_count, length, s->flags, extents,
			&count);
	if (r)
		return r;
	for (unsigned i = 0; i < count; i++) {
		overlay_insert(volume, s->overlay, offset, &extents[i]);
		offset += extents[i].length;
	}
	return 0;
}

/* Where segments are tiny a piece may lie in more of them than one append tells: smaller pieces. */
static int stage_all(struct volume *volume, const struct staging *s, uint64_t offset, size_t length,
	size_t *staged)
{
	size_t most = APPEND_MAX;
	int r = 0;

	*staged = 0;
	while (!r && *staged < length) {
		struct iovec slice[APPEND_IOVECS];
		size_t left = length - *staged, given;
		unsigned count;

		given = iov_slice(s->iov, s->iov_count, s->skip + *staged,
			left < most ? left : most, slice, APPEND_IOVECS, &count);
		if (!given)
			return -EINVAL;
		r = stage_some(volume, s, offset + *staged, slice, count, given);
		if (r == -E2BIG && most > BLOCK_SIZE) {
			most /= 2;
			r = 0;
			continue;
		}
		if (!r)
			*staged += given;
	}
	return r;
}

/* After a failure the overlay has some of it. */
int data_stage(struct volume *volume, const struct staging *s, uint64_t offset, size_t length)
{
	size_t staged;
	int r = space_take(volume, length, s->limit);

	if (r)
		return r;
	r = stage_all(volume, s, offset, length, &staged);
	space_give(volume, length - staged); /* pieces that these replace gave theirs back */
	return r;
}

/* --- the state of a file, under its lock ------------------------------------------------------ */

int file_activate(struct volume_file *file)
{
	struct volume *volume = file->volume;

	if (file->active)
		return 0;
	file->active = overlay_new(volume);
	if (!file->active)
		return -ENOMEM;
	atomic_store(&file->since, engine_clock(volume->engine));
	return 0;
}

void file_touch(struct volume_file *file)
{
	file->active->touched = true;
	file->active->time = (int64_t)engine_time(file->volume->engine);
	file->active->change = file->change = pool_change(file->volume->pool);
}

int file_inline(struct volume_file *file, uint8_t *bytes, size_t *length)
{
	const struct overlay *overlay = file->active;
	struct txn *view;
	int r;

	if (!overlay || !overlay->bytes)
		overlay = file->committing;
	if (overlay && overlay->bytes) {
		*length = overlay_length(overlay);
		memcpy(bytes, overlay->bytes, *length);
		return 0;
	}
	r = view_begin(file->volume->env, &view);
	if (r)
		return r;
	r = inline_get(file->volume, view, file->ino, bytes, length);
	txn_abort(view);
	return r;
}

int file_writable(const struct volume_file *file, bool kill)
{
	if (!volume_may_change(file->volume))
		return -EROFS;
	if (file->gone || (file->nameless && !file->opens))
		return -ESTALE;
	return kill && !file->plain ? -EPERM : 0;
}

/* A write under way, with what the file looked like when it began. */
struct writing {
	struct volume_file *file;
	uint64_t offset;
	const struct iovec *iov;
	unsigned iov_count;
	size_t length;
	bool kill;
	struct loan *loan;
	bool extents;
	uint64_t sequence;
	uint8_t bytes[VOLUME_INLINE_MAX]; /* the inline data that must become a piece */
	size_t inlined;
	struct overlay *staged;
	bool kept; /* some of it goes into space that is kept */
	uint64_t there; /* bytes of space that lie where it writes, as far as was looked */
};

static uint64_t quota_of(const struct writing *w)
{
	return atomic_load(&w->file->volume->quota);
}

/* Of what is used in all when the write's bytes are pending. */
static uint64_t writing_limit(const struct writing *w)
{
	uint64_t quota = quota_of(w);

	if (w->there == w->length)
		return UINT64_MAX;
	return w->there < UINT64_MAX - quota ? quota + w->there : UINT64_MAX;
}

/* --- small files ----------------------------------------------------------------------------- */

/* The active overlay has the bytes. */
static int begin_inline(struct volume_file *file)
{
	uint8_t bytes[VOLUME_INLINE_MAX];
	struct overlay *overlay;
	size_t old;
	int r = file_activate(file);

	overlay = file->active;
	if (r || overlay->bytes)
		return r;
	r = file_inline(file, bytes, &old);
	if (!r)
		r = overlay_bytes(file->volume, overlay);
	if (r)
		return r;
	memcpy(overlay->bytes, bytes, old);
	overlay->length = old;
	return 0;
}

int file_write_inline(struct volume_file *file, size_t offset, const struct iovec *iov,
	size_t length, uint64_t limit)
{
	struct overlay *overlay;
	uint64_t more;
	int r = begin_inline(file);

	if (r)
		return r;
	overlay = file->active;
	more = offset + length > overlay->length ? offset + length - overlay->length : 0;
	r = space_take(file->volume, more, limit);
	if (r)
		return r;
	overlay->charged += more;
	if (offset > overlay->length)
		memset(overlay->bytes + overlay->length, 0, offset - overlay->length);
	iov_copy(overlay->bytes + offset, iov, length);
	if (offset + length > overlay->length)
		overlay->length = offset + length;
	if (offset + length > overlay->size)
		overlay->size = offset + length;
	file_touch(file);
	file->sequence++;
	return 0;
}

/* -EAGAIN: not a small file (any more). */
static int write_inline(const struct writing *w)
{
	struct volume_file *file = w->file;
	int r;

	if (w->offset + w->length > VOLUME_INLINE_MAX)
		return -EAGAIN;
	pthread_mutex_lock(&file->lock);
	r = file_writable(file, w->kill);
	if (!r)
		r = file->extents ? -EAGAIN
				  : file_write_inline(file, (size_t)w->offset, w->iov, w->length,
					    quota_of(w));
	pthread_mutex_unlock(&file->lock);
	return r;
}

/* --- larger ones ------------------------------------------------------------------------------ */

static int writing_look(struct writing *w)
{
	struct volume_file *file = w->file;
	int r;

	pthread_mutex_lock(&file->lock);
	r = file_writable(file, w->kill);
	w->extents = file->extents;
	w->sequence = file->sequence;
	w->inlined = 0;
	if (!r && !file->extents)
		r = file_inline(file, w->bytes, &w->inlined);
	pthread_mutex_unlock(&file->lock);
	return r;
}

/* A file that is written in one go is packed. */
static bool is_whole_file(const struct writing *w)
{
	return !w->extents && !w->offset && w->length >= w->inlined && w->length <= APPEND_MAX;
}

/* What goes into space that is kept takes that, and the rest does not. */
static int writing_append_new(struct writing *w)
{
	struct staging s = {.lane = &w->file->lane,
		.overlay = w->staged,
		.iov = w->iov,
		.iov_count = w->iov_count,
		.loan = w->loan};
	uint64_t at = w->offset, end;
	int r = 0;

	while (!r && s.skip < w->length) {
		bool kept;

		r = space_kept(w->file, at, w->offset + w->length, &kept, &end);
		w->kept = kept; /* of the run that fails, if one does */
		s.flags = kept ? APPEND_KEPT : is_whole_file(w) ? APPEND_PACKED : 0;
		s.limit = kept ? UINT64_MAX : writing_limit(w);
		if (!r)
			r = data_stage(w->file->volume, &s, at, end - at);
		s.skip += end - at;
		at = end;
	}
	return r;
}

static int writing_append(struct writing *w)
{
	struct iovec old = {w->bytes, w->inlined};
	struct volume *volume = w->file->volume;
	bool covered = w->offset == 0 && w->length >= w->inlined;
	int r = 0;

	w->staged = overlay_new(volume);
	if (!w->staged)
		return -ENOMEM;
	if (w->inlined && !covered) {
		const struct staging s = {.lane = &w->file->lane,
			.overlay = w->staged,
			.iov = &old,
			.iov_count = 1,
			.limit = UINT64_MAX};

		r = data_stage(volume, &s, 0, w->inlined);
	}
	return r ? r : writing_append_new(w);
}

static int writing_merge_locked(struct writing *w)
{
	struct volume_file *file = w->file;
	int r = file_writable(file, w->kill);

	if (r)
		return r;
	if (file->extents != w->extents || (!w->extents && file->sequence != w->sequence))
		return -EAGAIN;
	r = file_activate(file);
	if (!r)
		r = overlay_reserve(file->volume, file->active, w->staged->count);
	if (r)
		return r;
	overlay_merge(file->volume, file->active, w->staged);
	if (!w->extents) {
		file->extents = true;
		file->active->whole = true;
		space_give(file->volume, file->active->charged);
		file->active->length = file->active->charged = 0;
		file->sequence++;
	}
	file_touch(file);
	return 0;
}

static int write_extents_once(struct writing *w)
{
	struct volume_file *file = w->file;
	int r = writing_look(w);

	w->staged = NULL;
	if (!r)
		r = writing_append(w);
	if (!r) {
		pthread_mutex_lock(&file->lock);
		r = writing_merge_locked(w);
		pthread_mutex_unlock(&file->lock);
	}
	overlay_drop(file->volume, w->staged);
	return r;
}

int file_leave_inline(struct volume_file *file, bool kill)
{
	struct writing w = {.file = file, .kill = kill};
	int r;

	do {
		r = write_extents_once(&w);
		if (r == -EPERM)
			r = file_take_privileges(file);
	} while (r == -EAGAIN);
	return file_note_pending(file, r);
}

/* --- the calls ---------------------------------------------------------------------------------
 */

/* More is pending in the volume than `times` what its options allow; if so, it gets committed. */
static bool is_crowded(struct volume *volume, unsigned times)
{
	size_t most = volume->volumes->options.pending_memory;

	if (atomic_load(&volume->pending) / times <= most)
		return false;
	atomic_store(&volume->squeeze, true);
	background_kick(volume);
	return atomic_load(&volume->pending) / times > most;
}

/*
 * No writer waits for a commit, nor is told how one went that is not his. What is pending is
 * bounded all the same: one that comes when the committer is far behind is not taken, and asked to
 * come again; where commits fail, for want of space, he is told that.
 */
static int admit(struct volume *volume)
{
	int trouble;

	if (!is_crowded(volume, 4))
		return 0;
	trouble = atomic_load(&volume->trouble);
	return trouble ? trouble : -EAGAIN;
}

/* Where much is pending it gets committed. */
static void keep_bounds(struct volume_file *file)
{
	unsigned count;

	pthread_mutex_lock(&file->lock);
	count = file->active ? file->active->count : 0;
	pthread_mutex_unlock(&file->lock);
	if (count >= file->volume->volumes->options.pending_extents) {
		commit_queue(file);
		commit_kick(file->volume);
	}
	(void)is_crowded(file->volume, 1);
}

/* A change that failed may have left an overlay, empty. */
int file_note_pending(struct volume_file *file, int r)
{
	file_mark_dirty(file);
	if (r)
		file_mark_clean(file);
	else
		keep_bounds(file);
	return r;
}

static int write_check(const struct volume_file *file, uint64_t offset, const struct iovec *iov,
	unsigned iov_count, size_t length)
{
	if (file->type != VOLUME_FILE)
		return file->type == VOLUME_DIRECTORY ? -EISDIR : -EINVAL;
	if (offset > VOLUME_SIZE_MAX || length > VOLUME_SIZE_MAX - offset)
		return -EFBIG;
	return iov_length(iov, iov_count) < length ? -EINVAL : 0;
}

int file_take_privileges(struct volume_file *file)
{
	const struct volume_set set = {.mask = VOLUME_SET_KILL};
	int r = volume_setattr(file->volume, file->ino, &set, NULL, NULL);

	return r ? r : -EAGAIN;
}

static int write_once(struct writing *w)
{
	int r;

	do {
		r = write_inline(w);
		if (r == -EAGAIN)
			r = write_extents_once(w);
		if (r == -EPERM)
			r = file_take_privileges(w->file);
	} while (r == -EAGAIN);
	return r;
}

/* Space is kept for some of it. */
static int write_without_room(struct writing *w)
{
	int r = space_relieve(w->file->volume);

	return r ? r : write_once(w);
}

/* The quota does not allow it, unless some of it takes the place of what is there. */
static int write_at_quota(struct writing *w)
{
	struct volume_file *file = w->file;
	uint64_t end = w->offset + w->length;
	bool comes = false;
	int r = space_there(file, w->offset, end, &w->there);

	if (!r)
		r = write_once(w);
	if (r != -EDQUOT)
		return r;
	comes = space_comes(file->volume, w->length - w->there);
	r = space_there(file, w->offset, end, &w->there);
	if (!r)
		r = write_once(w);
	return r == -EDQUOT && comes ? -EAGAIN : r;
}

static int write_all(struct writing *w)
{
	struct volume_file *file = w->file;
	int r = write_check(file, w->offset, w->iov, w->iov_count, w->length);

	if (r || !w->length)
		return r;
	r = admit(file->volume);
	if (r)
		return r;
	r = write_once(w);
	if (r == -EDQUOT)
		r = write_at_quota(w);
	if (r == -ENOSPC && w->kept)
		r = write_without_room(w);
	return file_note_pending(file, r);
}

int volume_write_with(struct volume_file *file, uint64_t offset, const struct iovec *iov,
	unsigned iov_count, size_t length, const struct volume_write_options *options)
{
	struct writing w = {
		.file = file,
		.offset = offset,
		.iov = iov,
		.iov_count = iov_count,
		.length = length,
		.kill = options->kill,
		.loan = options->loan,
	};
	int r;

	if (options->commit)
		commit_begin(file, options->commit);
	r = write_all(&w);
	if (r)
		return r;
	count_more(&file->volume->done.writes, 1);
	count_more(&file->volume->done.write_bytes, length);
	if (options->commit)
		commit_submit(file, options->commit);
	return 0;
}

int volume_write(struct volume_file *file, uint64_t offset, const struct iovec *iov,
	unsigned iov_count, size_t length)
{
	const struct volume_write_options none = {.commit = NULL};

	return volume_write_with(file, offset, iov, iov_count, length, &none);
}
