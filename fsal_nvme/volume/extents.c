/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Extents and inline data as they are in the environment, and how an overlay gets there. */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

static int extent_put(struct change *change, uint64_t ino, uint64_t at, const struct extent *extent)
{
	uint8_t row[ROW_SMALL];
	struct key key;

	return change_put(
		change, key_pair(&key, ROW_EXTENT, ino, at), row, extent_encode(extent, row));
}

static int extent_delete(struct change *change, uint64_t ino, uint64_t at)
{
	struct key key;

	return change_delete(change, key_pair(&key, ROW_EXTENT, ino, at));
}

/* The extent whose key is the first at or after `at`, or the last at or before it. */
static int extent_at(struct volume *volume, struct txn *txn, uint64_t ino, uint64_t at, bool back,
	uint64_t *found, struct extent *extent)
{
	struct bytes key_found, row;
	uint64_t number;
	struct key key;
	struct bytes sought = key_pair(&key, ROW_EXTENT, ino, at);
	int r = (back ? txn_seek_back : txn_seek)(txn, volume->env, sought, &key_found, &row);

	if (r)
		return r;
	if (!key_is_pair(key_found, ROW_EXTENT, &number, found) || number != ino)
		return -ENOENT;
	return extent_decode(row, *found, extent) ? row_is_bad(volume, ROW_EXTENT, ino) : 0;
}

/* The extent as its row has it, which holds byte `at` or is the first behind it. */
static int extent_row(struct volume *volume, struct txn *txn, uint64_t ino, uint64_t at,
	uint64_t *found, struct extent *extent)
{
	int r = extent_at(volume, txn, ino, at, true, found, extent);

	if (r != -ENOENT && (r || *found + extent->length > at))
		return r;
	return extent_at(volume, txn, ino, at, false, found, extent);
}

int extent_next(struct volume *volume, struct txn *txn, uint64_t ino, uint64_t at, uint64_t *found,
	struct extent *extent)
{
	int r = extent_row(volume, txn, ino, at, found, extent);

	if (!r && *found < at) {
		extent->offset += at - *found;
		extent->length -= at - *found;
		*found = at;
	}
	return r;
}

/* Takes [from, to) out of one extent; what remains before and behind is put back. */
static int cut_one(struct change *change, struct inode *inode, uint64_t at,
	const struct extent *extent, uint64_t from, uint64_t to)
{
	uint64_t end = at + extent->length, start = at > from ? at : from;
	uint64_t stop = end < to ? end : to;
	struct extent head = *extent, gone = *extent, tail = *extent;
	int r;

	head.length = start - at;
	gone.offset += start - at;
	gone.length = stop - start;
	tail.offset += stop - at;
	tail.length = end - stop;
	r = head.length ? extent_put(change, inode->ino, at, &head)
			: extent_delete(change, inode->ino, at);
	if (!r && tail.length)
		r = extent_put(change, inode->ino, stop, &tail);
	if (r)
		return r;
	inode->bytes -= gone.length;
	return change_release_extent(change, &gone);
}

int extents_cut(struct change *change, struct inode *inode, uint64_t from, uint64_t to,
	unsigned *budget, uint64_t *done)
{
	*done = from;
	while (*done < to) {
		struct extent extent;
		uint64_t at, end;
		int r = extent_row(change->volume, change->txn, inode->ino, *done, &at, &extent);

		if (r == -ENOENT || (!r && at >= to))
			break;
		if (r)
			return r;
		if (!*budget || !change_has_room(change))
			return 0;
		end = at + extent.length;
		r = cut_one(change, inode, at, &extent, *done, to);
		if (r)
			return r;
		--*budget;
		*done = end < to ? end : to;
	}
	*done = to;
	return 0;
}

int extent_insert(
	struct change *change, struct inode *inode, uint64_t at, const struct extent *extent)
{
	struct extent joined, before;
	uint64_t start;
	int r = at ? extent_at(
			     change->volume, change->txn, inode->ino, at - 1, true, &start, &before)
		   : -ENOENT;

	if (r && r != -ENOENT)
		return r;
	joined = *extent;
	if (!r && start + before.length == at && extents_join(&before, extent)) {
		joined.offset = before.offset;
		joined.length += before.length;
		at = start;
	}
	inode->bytes += extent->length;
	r = extent_put(change, inode->ino, at, &joined);
	return r ? r : change_refer(change, extent);
}

/* --- inline data ----------------------------------------------------------------------------- */

int inline_get(struct volume *volume, struct txn *txn, uint64_t ino, uint8_t *bytes, size_t *length)
{
	struct bytes row, blob;
	struct key key;
	int r = txn_get(txn, volume->env, key_inode(&key, ROW_INLINE, ino), &row);

	*length = 0;
	if (r)
		return r == -ENOENT ? 0 : r;
	if (blob_decode(row, VOLUME_INLINE_MAX, &blob))
		return row_is_bad(volume, ROW_INLINE, ino);
	memcpy(bytes, blob.data, blob.length);
	*length = blob.length;
	return 0;
}

int inline_put(struct change *change, struct inode *inode, const uint8_t *bytes, size_t length)
{
	uint8_t row[ROW_LARGE];
	struct key key;
	struct bytes at = key_inode(&key, ROW_INLINE, inode->ino);

	if (!length && !inode->bytes)
		return 0;
	change->header.bytes += length - inode->bytes;
	change->header_changed = true;
	inode->bytes = length;
	if (!length)
		return change_delete(change, at);
	return change_put(change, at, row, blob_encode(bytes, length, row));
}

/* --- overlays -------------------------------------------------------------------------------- */

/* From inline data to extents: the overlay has the bytes. */
static int leave_inline(struct change *change, struct inode *inode, const struct overlay *overlay)
{
	int r;

	if (inode->extents)
		return 0;
	if (inode->bytes && !overlay->whole)
		return row_is_bad(change->volume, ROW_INLINE, inode->ino);
	r = inline_put(change, inode, NULL, 0);
	inode->extents = !r;
	return r;
}

/* Moves one piece, or as much of it as fits; `progress` tells. */
static int apply_piece(struct change *change, struct inode *inode, const struct overlay *overlay,
	struct progress *progress)
{
	unsigned i = progress->applied, budget = STEP_EXTENTS;
	struct extent extent = overlay->extents[i];
	uint64_t from = overlay->at[i], to = from + extent.length, done;
	int r;

	if (progress->to > from) {
		extent.offset += progress->to - from;
		from = progress->to;
	}
	if (to > overlay->limit)
		to = overlay->limit;
	r = extents_cut(change, inode, from, to, &budget, &done);
	if (r)
		return r;
	extent.length = done - from;
	if (extent.length && !is_hole(&extent))
		r = extent_insert(change, inode, from, &extent);
	if (r)
		return r;
	if (done > inode->size && !is_hole(&extent))
		inode->size = done;
	progress->to = done == to ? 0 : done;
	progress->applied += done == to;
	return 0;
}

static int apply_pieces(struct change *change, struct inode *inode, const struct overlay *overlay,
	struct progress *progress)
{
	int r = 0;

	while (!r && progress->applied < overlay->count) {
		if (overlay->at[progress->applied] >= overlay->limit) {
			progress->applied = overlay->count;
			break;
		}
		if (!change_has_room(change))
			return 0;
		r = leave_inline(change, inode, overlay);
		if (!r)
			r = apply_piece(change, inode, overlay, progress);
		if (!r && progress->to)
			return 0;
	}
	return r ? r : 1;
}

static void apply_attributes(struct inode *inode, const struct overlay *overlay)
{
	if (overlay_size(overlay) > inode->size)
		inode->size = overlay_size(overlay);
	if (overlay->change > inode->change)
		inode->change = overlay->change;
	if (!overlay->touched)
		return;
	inode->mtime = overlay->time;
	if (overlay->time > inode->ctime)
		inode->ctime = overlay->time;
}

int overlay_apply(struct change *change, struct inode *inode, const struct overlay *overlay,
	struct progress *progress)
{
	int r;

	progress->limit = overlay->limit;
	if (inode->trim != TRIM_NONE) {
		r = trim_step(change, inode);
		if (r <= 0)
			return r;
	}
	/* Beside pieces they are not content any more. */
	if (overlay->bytes && !overlay->count && !inode->extents) {
		r = inline_put(change, inode, overlay->bytes, overlay_length(overlay));
		if (r)
			return r;
	}
	r = apply_pieces(change, inode, overlay, progress);
	if (r == 1)
		apply_attributes(inode, overlay);
	return r;
}
