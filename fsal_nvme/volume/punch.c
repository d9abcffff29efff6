/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Holes: writes without bytes. */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

#define COUNTED_EXTENTS 4096u /* below a hole */

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
	return file_write_inline(file, (size_t)from, &iov, iov.iov_len, UINT64_MAX);
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
	int r = file_activate(file);

	if (!r)
		r = overlay_reserve(file->volume, file->active, 1);
	if (!r)
		r = count_hidden(file, from, to, &hidden);
	if (r)
		return r;
	overlay_insert(file->volume, file->active, from, &hole);
	file->active->hidden += hidden;
	file_touch(file);
	return 0;
}

static int punch_locked(struct volume_file *file, uint64_t from, uint64_t to, bool kill)
{
	int r = file_writable(file, kill);

	if (r || from == to)
		return r;
	return file->extents ? punch_extents(file, from, to) : punch_inline(file, from, to);
}

static int punch_all(struct volume_file *file, uint64_t from, uint64_t to, bool kill)
{
	int r;

	do {
		pthread_mutex_lock(&file->lock);
		r = punch_locked(file, from, to, kill);
		pthread_mutex_unlock(&file->lock);
		if (r == -EPERM)
			r = file_take_privileges(file);
	} while (r == -EAGAIN);
	return file_note_pending(file, r);
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
