/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Space that is kept for bytes to come (ALLOCATE, RFC 7862). What of a range takes no space yet
 * becomes pieces of the active overlay that hold none, and extents of segment 1 when they are
 * committed. Until then the space is promised by the pool: before anything has changed, and for all
 * of the range. A write takes the place of such a piece or extent, as of any other.
 *
 * A small file keeps its space in the metadata: it gets the zeros, as far as a small file goes.
 */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

#define GAPS_MAX (1u << 20) /* of one range */

/* What there is to be kept. */
struct gaps {
	uint64_t bytes;
	uint64_t count; /* of pieces */
};

/* Calls back for each gap of [from, to) until one fails. Under the lock;
 * the callback may fill it in the active overlay. */
static int each_gap(struct volume_file *file, uint64_t from, uint64_t to,
	int (*each)(struct volume_file *file, uint64_t at, uint64_t length, struct gaps *gaps),
	struct gaps *gaps)
{
	struct look look;
	int r = look_begin(file, &look);

	if (r)
		return r;
	while (!r && from < to) {
		struct stretch stretch;
		uint64_t end;

		r = look_stretch(&look, from, &stretch);
		if (r)
			break;
		end = stretch.end < to ? stretch.end : to;
		if (stretch.what == LIES_HOLE)
			r = each(file, from, end - from, gaps);
		from = end;
	}
	look_end(&look);
	return r;
}

static int count_gap(struct volume_file *file, uint64_t at, uint64_t length, struct gaps *gaps)
{
	gaps->bytes += length;
	gaps->count += length / EXTENT_MAX + 1;
	return gaps->count > GAPS_MAX ? -ENOSPC : 0;
}

/* Room was made for as many as were counted. */
static int fill_gap(struct volume_file *file, uint64_t at, uint64_t length, struct gaps *gaps)
{
	gaps->bytes -= length;
	while (length) {
		uint64_t piece = length < EXTENT_MAX ? length : EXTENT_MAX;
		const struct extent extent = {SEGMENT_KEPT, at, piece};

		overlay_insert(file->volume, file->active, at, &extent);
		at += piece;
		length -= piece;
	}
	return 0;
}

/* --- small files -------------------------------------------------------------------------------
 */

static int allocate_inline(struct volume_file *file, size_t to)
{
	uint8_t bytes[VOLUME_INLINE_MAX];
	struct iovec iov = {bytes, 0};
	size_t length;
	int r = file_inline(file, bytes, &length);

	if (r || to <= length)
		return r;
	memset(bytes, 0, sizeof(bytes));
	iov.iov_len = to - length;
	return file_write_inline(
		file, length, &iov, iov.iov_len, atomic_load(&file->volume->quota));
}

/* --- larger ones -------------------------------------------------------------------------------
 */

static void give_up(struct volume *volume, uint64_t bytes)
{
	space_give(volume, bytes);
	pool_promise_end(volume->pool, bytes);
	atomic_fetch_sub(&volume->kept, bytes);
}

/* It is given up, or belongs to pieces. */
static int take(struct volume *volume, uint64_t bytes)
{
	int r = space_take(volume, bytes, atomic_load(&volume->quota));

	if (r)
		return r;
	r = pool_promise(volume->pool, bytes);
	if (r)
		space_give(volume, bytes);
	else
		atomic_fetch_add(&volume->kept, bytes);
	return r;
}

static int fill(struct volume_file *file, uint64_t from, uint64_t to, struct gaps *gaps)
{
	int r = file_activate(file);

	if (!r)
		r = overlay_reserve(file->volume, file->active, (unsigned)gaps->count);
	return r ? r : each_gap(file, from, to, fill_gap, gaps);
}

/* -EMEDIUMTYPE: its bytes must become pieces first. */
static int allocate_extents(struct volume_file *file, uint64_t from, uint64_t to, struct gaps *gaps)
{
	int r = each_gap(file, from, to, count_gap, gaps);

	if (r || !gaps->bytes)
		return r;
	r = take(file->volume, gaps->bytes);
	if (r)
		return r;
	r = file->extents ? fill(file, from, to, gaps) : -EMEDIUMTYPE;
	give_up(file->volume, gaps->bytes);
	if (!r)
		file_touch(file);
	return r;
}

static int allocate_locked(
	struct volume_file *file, uint64_t from, uint64_t to, bool kill, struct gaps *gaps)
{
	int r = file_writable(file, kill);

	*gaps = (struct gaps){0};
	if (r || from == to)
		return r;
	if (!file->extents && to <= VOLUME_INLINE_MAX)
		return allocate_inline(file, (size_t)to);
	return allocate_extents(file, from, to, gaps);
}

static int allocate_once(
	struct volume_file *file, uint64_t from, uint64_t to, bool kill, struct gaps *gaps)
{
	int r;

	do {
		pthread_mutex_lock(&file->lock);
		r = allocate_locked(file, from, to, kill, gaps);
		pthread_mutex_unlock(&file->lock);
		if (r == -EMEDIUMTYPE) {
			r = file_leave_inline(file, kill);
			r = r ? r : -EAGAIN;
		} else if (r == -EPERM) {
			r = file_take_privileges(file);
		}
	} while (r == -EAGAIN);
	return r;
}

/* --- the calls ----------------------------------------------------------------------------------
 */

static int allocate_all(struct volume_file *file, uint64_t from, uint64_t to, bool kill)
{
	struct gaps gaps;
	bool comes;
	int r = allocate_once(file, from, to, kill, &gaps);

	if (r == -EDQUOT) {
		comes = space_comes(file->volume, gaps.bytes);
		r = allocate_once(file, from, to, kill, &gaps);
		r = r == -EDQUOT && comes ? -EAGAIN : r;
	}
	return file_note_pending(file, r);
}

int volume_allocate_with(struct volume_file *file, uint64_t offset, uint64_t length,
	const struct volume_write_options *options)
{
	int r;

	if (file->type != VOLUME_FILE)
		return file->type == VOLUME_DIRECTORY ? -EISDIR : -EINVAL;
	if (offset > VOLUME_SIZE_MAX || length > VOLUME_SIZE_MAX - offset)
		return -EFBIG;
	if (options->commit)
		commit_begin(file, options->commit);
	r = allocate_all(file, offset, offset + length, options->kill);
	if (!r && options->commit)
		commit_submit(file, options->commit);
	return r;
}

int volume_allocate(struct volume_file *file, uint64_t offset, uint64_t length)
{
	const struct volume_write_options none = {.commit = NULL};

	return volume_allocate_with(file, offset, length, &none);
}
