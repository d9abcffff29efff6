/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Overlays: sorted pieces of a file that wait to be committed. */
#include "volume/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (sizeof(uint64_t) + sizeof(struct extent))

struct overlay *overlay_new(struct volume *volume)
{
	struct overlay *overlay = calloc(1, sizeof(*overlay));

	if (!overlay)
		return NULL;
	overlay->limit = UINT64_MAX;
	atomic_fetch_add(&volume->pending, sizeof(*overlay));
	return overlay;
}

/* What a piece, or part of one, has taken. */
static void give_back(struct volume *volume, const struct extent *part)
{
	if (is_hole(part))
		return;
	space_give(volume, part->length);
	if (!is_kept(part))
		return;
	pool_promise_end(volume->pool, part->length);
	atomic_fetch_sub(&volume->kept, part->length);
}

void overlay_free(struct volume *volume, struct overlay *overlay)
{
	size_t size = sizeof(*overlay);

	if (!overlay)
		return;
	for (unsigned i = 0; i < overlay->count; i++)
		give_back(volume, &overlay->extents[i]);
	space_give(volume, overlay->charged);
	size += overlay->room * PIECE_BYTES + (overlay->bytes ? VOLUME_INLINE_MAX : 0);
	atomic_fetch_sub(&volume->pending, size);
	free(overlay->at);
	free(overlay->extents);
	free(overlay->bytes);
	free(overlay);
}

static void abandon(struct volume *volume, const struct extent *extents, unsigned count)
{
	for (unsigned i = 0, next; i < count; i = next) {
		next = i + 1;
		if (!has_bytes(&extents[i]))
			continue;
		while (next < count && has_bytes(&extents[next]))
			next++;
		atomic_fetch_add(&volume->generation, 1);
		pool_abandon_extents(volume->pool, &extents[i], next - i);
	}
}

void overlay_drop(struct volume *volume, struct overlay *overlay)
{
	if (!overlay)
		return;
	abandon(volume, overlay->extents, overlay->count);
	overlay_free(volume, overlay);
}

static int grow(struct overlay *overlay, unsigned room)
{
	uint64_t *at = realloc(overlay->at, room * sizeof(*at));
	struct extent *extents;

	if (!at)
		return -ENOMEM;
	overlay->at = at;
	extents = realloc(overlay->extents, room * sizeof(*extents));
	if (!extents)
		return -ENOMEM;
	overlay->extents = extents;
	return 0;
}

/* An insertion may split a piece in two and add one. */
int overlay_reserve(struct volume *volume, struct overlay *overlay, unsigned more)
{
	unsigned need = overlay->count + 2 * more, room = overlay->room ? overlay->room : 4;

	if (need <= overlay->room)
		return 0;
	while (room < need)
		room *= 2;
	if (grow(overlay, room))
		return -ENOMEM;
	atomic_fetch_add(&volume->pending, (room - overlay->room) * PIECE_BYTES);
	overlay->room = room;
	return 0;
}

int overlay_bytes(struct volume *volume, struct overlay *overlay)
{
	if (overlay->bytes)
		return 0;
	overlay->bytes = malloc(VOLUME_INLINE_MAX);
	if (!overlay->bytes)
		return -ENOMEM;
	atomic_fetch_add(&volume->pending, VOLUME_INLINE_MAX);
	overlay->length = 0;
	return 0;
}

size_t overlay_length(const struct overlay *overlay)
{
	if (!overlay->bytes)
		return 0;
	return overlay->length < overlay->limit ? overlay->length : (size_t)overlay->limit;
}

uint64_t overlay_size(const struct overlay *overlay)
{
	return overlay->size < overlay->limit ? overlay->size : overlay->limit;
}

static uint64_t piece_end(const struct overlay *overlay, unsigned i)
{
	return overlay->at[i] + overlay->extents[i].length;
}

unsigned overlay_find(const struct overlay *overlay, uint64_t at)
{
	unsigned low = 0, high = overlay->count;

	if (high && piece_end(overlay, high - 1) <= at)
		return high;
	while (low < high) {
		unsigned middle = low + (high - low) / 2;

		if (piece_end(overlay, middle) <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Moves the pieces from `i` on by `by` places. */
static void shift(struct overlay *overlay, unsigned i, int by)
{
	unsigned to = (unsigned)((int)i + by), count = overlay->count - i;

	assert(to + count <= overlay->room);
	memmove(overlay->at + to, overlay->at + i, count * sizeof(*overlay->at));
	memmove(overlay->extents + to, overlay->extents + i, count * sizeof(*overlay->extents));
	overlay->count = to + count;
}

/* Piece i ends at `at`, and the rest of it is piece i + 1. */
static void split(struct overlay *overlay, unsigned i, uint64_t at)
{
	uint64_t head = at - overlay->at[i];

	shift(overlay, i, 1);
	overlay->at[i] = overlay->at[i + 1];
	overlay->extents[i] = overlay->extents[i + 1];
	overlay->extents[i].length = head;
	overlay->at[i + 1] = at;
	overlay->extents[i + 1].offset += head;
	overlay->extents[i + 1].length -= head;
}

/* Shortens piece i at its front. */
static void behead(struct overlay *overlay, unsigned i, uint64_t to)
{
	uint64_t head = to - overlay->at[i];

	overlay->at[i] = to;
	overlay->extents[i].offset += head;
	overlay->extents[i].length -= head;
}

/* What of piece i lies within [from, to). */
static struct extent within(const struct overlay *overlay, unsigned i, uint64_t from, uint64_t to)
{
	struct extent part = overlay->extents[i];
	uint64_t end = piece_end(overlay, i);

	if (from > overlay->at[i])
		part.offset += from - overlay->at[i];
	else
		from = overlay->at[i];
	part.length = (to < end ? to : end) - from;
	return part;
}

/* Bytes of a piece that nobody will ask for again. */
static void give_up(struct volume *volume, const struct extent *part)
{
	abandon(volume, part, 1);
	give_back(volume, part);
}

/* Takes [from, to) out; returns the index where a piece for it belongs. */
static unsigned cut(struct volume *volume, struct overlay *overlay, uint64_t from, uint64_t to)
{
	unsigned first = overlay_find(overlay, from), last;

	for (unsigned i = first; i < overlay->count && overlay->at[i] < to; i++) {
		struct extent part = within(overlay, i, from, to);

		give_up(volume, &part);
	}
	if (first < overlay->count && overlay->at[first] < from) {
		if (piece_end(overlay, first) > to) {
			split(overlay, first, to);
			overlay->extents[first].length = from - overlay->at[first];
			return first + 1;
		}
		overlay->extents[first].length = from - overlay->at[first];
		first++;
	}
	for (last = first; last < overlay->count && piece_end(overlay, last) <= to; last++)
		;
	if (last < overlay->count && overlay->at[last] < to)
		behead(overlay, last, to);
	if (last > first)
		shift(overlay, last, -(int)(last - first));
	return first;
}

static bool joins(
	const struct overlay *overlay, unsigned i, uint64_t at, const struct extent *extent)
{
	const struct extent *before = &overlay->extents[i];

	return piece_end(overlay, i) == at && extents_join(before, extent);
}

void overlay_insert(
	struct volume *volume, struct overlay *overlay, uint64_t at, const struct extent *extent)
{
	unsigned i = cut(volume, overlay, at, at + extent->length);

	if (!is_hole(extent) && at + extent->length > overlay->size)
		overlay->size = at + extent->length;
	if (i && joins(overlay, i - 1, at, extent)) {
		overlay->extents[i - 1].length += extent->length;
		return;
	}
	shift(overlay, i, 1);
	overlay->at[i] = at;
	overlay->extents[i] = *extent;
}

void overlay_merge(struct volume *volume, struct overlay *overlay, struct overlay *from)
{
	for (unsigned i = 0; i < from->count; i++)
		overlay_insert(volume, overlay, from->at[i], &from->extents[i]);
	from->count = 0;
}

void overlay_truncate(struct volume *volume, struct overlay *overlay, uint64_t size)
{
	if (overlay->bytes && overlay->length > size)
		overlay->length = (size_t)size;
	if (overlay->charged > overlay->length) {
		space_give(volume, overlay->charged - overlay->length);
		overlay->charged = overlay->length;
	}
	cut(volume, overlay, size, UINT64_MAX);
	if (overlay->size > size)
		overlay->size = size;
}

void overlay_advance(
	struct volume *volume, struct overlay *overlay, const struct progress *progress)
{
	for (unsigned i = 0; i < progress->applied; i++) {
		struct extent rest;

		give_back(volume, &overlay->extents[i]);
		if (piece_end(overlay, i) <= progress->limit)
			continue;
		rest = within(overlay, i, progress->limit, UINT64_MAX);
		abandon(volume, &rest, 1);
	}
	if (progress->applied)
		shift(overlay, progress->applied, -(int)progress->applied);
	if (overlay->count && progress->to > overlay->at[0]) {
		struct extent applied = within(overlay, 0, 0, progress->to);

		give_back(volume, &applied);
		behead(overlay, 0, progress->to);
	}
}

int overlays_settle(struct volume *volume,
	const struct overlay *(*at)(const void *list, unsigned i), const void *list, unsigned count)
{
	struct extent *all;
	unsigned pieces = 0, to = 0;
	int r;

	for (unsigned i = 0; i < count; i++)
		pieces += at(list, i) ? at(list, i)->count : 0;
	if (!pieces)
		return 0;
	all = malloc(pieces * sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++) {
		const struct overlay *overlay = at(list, i);

		for (unsigned k = 0; overlay && k < overlay->count; k++) {
			if (has_bytes(&overlay->extents[k]))
				all[to++] = overlay->extents[k];
		}
	}
	r = to ? pool_settle(volume->pool, all, to) : 0;
	free(all);
	return r;
}
