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

#define COUNTED_EXTENTS 4096u /* below a hole */

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

static int stage_some(struct volume *volume, struct lane_user *lane, struct overlay *overlay,
	uint64_t offset, const struct iovec *iov, unsigned iov_count, size_t length, bool packed)
{
	struct extent extents[APPEND_EXTENTS];
	unsigned count = APPEND_EXTENTS;
	int r = overlay_reserve(volume, overlay, APPEND_EXTENTS);

	if (!r)
		r = lane_append(volume, lane, iov, iov_count, length, packed ? APPEND_PACKED : 0,
			extents, &count);
	if (r)
		return r;
	for (unsigned i = 0; i < count; i++) {
		overlay_insert(volume, overlay, offset, &extents[i]);
		offset += extents[i].length;
	}
	return 0;
}

/* Where segments are tiny a piece may lie in more of them than one append tells: smaller pieces. */
int data_stage(struct volume *volume, struct lane_user *lane, struct overlay *overlay,
	uint64_t offset, const struct iovec *iov, unsigned iov_count, size_t length, bool packed)
{
	size_t done = 0, most = APPEND_MAX;
	int r = 0;

	while (!r && done < length) {
		struct iovec slice[APPEND_IOVECS];
		size_t left = length - done, given;
		unsigned count;

		given = iov_slice(iov, iov_count, done, left < most ? left : most, slice,
			APPEND_IOVECS, &count);
		if (!given)
			return -EINVAL;
		r = stage_some(volume, lane, overlay, offset + done, slice, count, given, packed);
		if (r == -E2BIG && most > BLOCK_SIZE) {
			most /= 2;
			r = 0;
			continue;
		}
		done += given;
	}
	return r;
}

/* --- the state of a file, under its lock ------------------------------------------------------ */

/* The active overlay, made when there is none. */
static int activate(struct volume_file *file)
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

static void touch(struct volume_file *file)
{
	file->active->touched = true;
	file->active->time = (int64_t)engine_time(file->volume->engine);
	file->active->change = file->change = pool_change(file->volume->pool);
}

/* The newest inline bytes. */
static int file_inline(struct volume_file *file, uint8_t *bytes, size_t *length)
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

/* -EPERM: its privileges must go first. */
static int writable(const struct volume_file *file, bool kill)
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
	bool extents;
	uint64_t sequence;
	uint8_t bytes[VOLUME_INLINE_MAX]; /* the inline data that must become a piece */
	size_t inlined;
	struct overlay *staged;
};

/* --- small files ----------------------------------------------------------------------------- */

static int write_inline_locked(
	struct volume_file *file, size_t offset, const struct iovec *iov, size_t length)
{
	struct overlay *overlay;
	size_t old;
	int r = activate(file);

	if (r)
		return r;
	overlay = file->active;
	if (!overlay->bytes) {
		uint8_t bytes[VOLUME_INLINE_MAX];

		r = file_inline(file, bytes, &old);
		if (!r)
			r = overlay_bytes(file->volume, overlay);
		if (r)
			return r;
		memcpy(overlay->bytes, bytes, old);
		overlay->length = old;
	}
	if (offset > overlay->length)
		memset(overlay->bytes + overlay->length, 0, offset - overlay->length);
	iov_copy(overlay->bytes + offset, iov, length);
	if (offset + length > overlay->length)
		overlay->length = offset + length;
	if (offset + length > overlay->size)
		overlay->size = offset + length;
	touch(file);
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
	r = writable(file, w->kill);
	if (!r)
		r = file->extents ? -EAGAIN
				  : write_inline_locked(file, (size_t)w->offset, w->iov, w->length);
	pthread_mutex_unlock(&file->lock);
	return r;
}

/* --- larger ones ------------------------------------------------------------------------------ */

static int writing_look(struct writing *w)
{
	struct volume_file *file = w->file;
	int r;

	pthread_mutex_lock(&file->lock);
	r = writable(file, w->kill);
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

static int writing_append(struct writing *w)
{
	struct iovec old = {w->bytes, w->inlined};
	struct volume *volume = w->file->volume;
	bool covered = w->offset == 0 && w->length >= w->inlined;
	int r = 0;

	w->staged = overlay_new(volume);
	if (!w->staged)
		return -ENOMEM;
	if (w->inlined && !covered)
		r = data_stage(volume, &w->file->lane, w->staged, 0, &old, 1, w->inlined, false);
	if (!r)
		r = data_stage(volume, &w->file->lane, w->staged, w->offset, w->iov, w->iov_count,
			w->length, is_whole_file(w));
	return r;
}

static int writing_merge_locked(struct writing *w)
{
	struct volume_file *file = w->file;
	int r = writable(file, w->kill);

	if (r)
		return r;
	if (file->extents != w->extents || (!w->extents && file->sequence != w->sequence))
		return -EAGAIN;
	r = activate(file);
	if (!r)
		r = overlay_reserve(file->volume, file->active, w->staged->count);
	if (r)
		return r;
	overlay_merge(file->volume, file->active, w->staged);
	if (!w->extents) {
		file->extents = true;
		file->active->whole = true;
		file->active->length = 0;
		file->sequence++;
	}
	touch(file);
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

/* --- holes ------------------------------------------------------------------------------------ */

/* Zeros, as far as there are bytes. */
static int punch_inline(struct volume_file *file, uint64_t from, uint64_t to)
{
	uint8_t bytes[VOLUME_INLINE_MAX] = {0};
	struct iovec iov = {bytes, 0};
	size_t length;
	int r = file_inline(file, bytes, &length);

	if (r || from >= length)
		return r;
	memset(bytes, 0, sizeof(bytes));
	iov.iov_len = (size_t)(to < length ? to : length) - (size_t)from;
	return write_inline_locked(file, (size_t)from, &iov, iov.iov_len);
}

/* Bytes of an overlay's holes in [from, to). */
static uint64_t holes_within(const struct overlay *o, uint64_t from, uint64_t to)
{
	uint64_t bytes = 0;

	for (unsigned i = overlay_find(o, from); i < o->count && o->at[i] < to; i++) {
		uint64_t start = o->at[i], stop = start + o->extents[i].length;

		start = start > from ? start : from;
		stop = stop < to ? stop : to;
		bytes += is_hole(&o->extents[i]) ? stop - start : 0;
	}
	return bytes;
}

/* Bytes that a new hole hides of what is committed, and no other one did; of very many extents not
 * all are looked at. */
static int count_hidden(struct volume_file *file, uint64_t from, uint64_t to, uint64_t *bytes)
{
	struct extent extent;
	struct txn *view;
	uint64_t at = from, end;
	int r = view_begin(file->volume->env, &view);

	if (r)
		return r;
	*bytes = 0;
	for (unsigned i = 0; i < COUNTED_EXTENTS; i++) {
		r = extent_next(file->volume, view, file->ino, at, &at, &extent);
		if (r || at >= to)
			break;
		end = at + extent.length < to ? at + extent.length : to;
		*bytes += end - at - holes_within(file->active, at, end);
		at = end;
	}
	txn_abort(view);
	return r == -ENOENT ? 0 : r;
}

static int punch_extents(struct volume_file *file, uint64_t from, uint64_t to)
{
	const struct extent hole = {.offset = from, .length = to - from};
	uint64_t hidden = 0;
	int r = activate(file);

	if (!r)
		r = overlay_reserve(file->volume, file->active, 1);
	if (!r)
		r = count_hidden(file, from, to, &hidden);
	if (r)
		return r;
	overlay_insert(file->volume, file->active, from, &hole);
	file->active->hidden += hidden;
	touch(file);
	return 0;
}

static int punch_locked(struct volume_file *file, uint64_t from, uint64_t to, bool kill)
{
	int r = writable(file, kill);

	if (r || from == to)
		return r;
	return file->extents ? punch_extents(file, from, to) : punch_inline(file, from, to);
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
static int note_pending(struct volume_file *file, int r)
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

/* In a transaction of its own, before the write: none lasts without it. -EAGAIN: they are gone. */
static int take_privileges(struct volume_file *file)
{
	const struct volume_set set = {.mask = VOLUME_SET_KILL};
	int r = volume_setattr(file->volume, file->ino, &set, NULL, NULL);

	return r ? r : -EAGAIN;
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
	do {
		r = write_inline(w);
		if (r == -EAGAIN)
			r = write_extents_once(w);
		if (r == -EPERM)
			r = take_privileges(file);
	} while (r == -EAGAIN);
	return note_pending(file, r);
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

static int punch_all(struct volume_file *file, uint64_t from, uint64_t to, bool kill)
{
	int r;

	do {
		pthread_mutex_lock(&file->lock);
		r = punch_locked(file, from, to, kill);
		pthread_mutex_unlock(&file->lock);
		if (r == -EPERM)
			r = take_privileges(file);
	} while (r == -EAGAIN);
	return note_pending(file, r);
}

int volume_punch_with(struct volume_file *file, uint64_t offset, uint64_t length,
	const struct volume_write_options *options)
{
	uint64_t most = offset < VOLUME_SIZE_MAX ? VOLUME_SIZE_MAX - offset : 0;
	int r;

	if (file->type != VOLUME_FILE)
		return file->type == VOLUME_DIRECTORY ? -EISDIR : -EINVAL;
	if (options->commit)
		commit_begin(file, options->commit);
	r = punch_all(file, offset, offset + (length < most ? length : most), options->kill);
	if (!r && options->commit)
		commit_submit(file, options->commit);
	return r;
}

int volume_punch(struct volume_file *file, uint64_t offset, uint64_t length)
{
	const struct volume_write_options none = {.commit = NULL};

	return volume_punch_with(file, offset, length, &none);
}
