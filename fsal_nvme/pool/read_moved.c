/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Reading what was asked for in a segment that is moved: in as many parts as its bytes lie in now.
 * A place may be emptied in the meantime; then the remaps say another by now, since they are
 * changed before it goes.
 */
#include <inttypes.h>

#include "pool/read.h"
#include "pool/remap.h"

#define TRIES 64u /* places that are emptied while one is looked up */

struct moved_parts {
	struct moved_parts *next;
	struct moved_part part;
};

void moved_free(struct pool_read *read)
{
	for (struct moved_parts *at = read->moved, *next; at; at = next) {
		next = at->next;
		free(at);
	}
	read->moved = NULL;
}

/* It lasts as long as the read. */
static struct moved_part *make_part(struct pool_read *read)
{
	struct moved_parts *one = malloc(sizeof(*one));

	if (!one)
		return NULL;
	one->next = read->moved;
	read->moved = one;
	return &one->part;
}

/* Where bytes from `at` on are, with a reference; *length: how many, at most. NULL: nowhere. */
static struct segment *find_place(
	struct pool *pool, struct segment *moved, uint64_t at, uint64_t *to, uint64_t *length)
{
	struct segment *now = moved, *place = NULL;

	segment_ref(now);
	for (unsigned tries = 0; !place && now && now->remap && tries < TRIES; tries++) {
		const struct remap_run *run = remap_find(now->remap, at);

		if (!run || run->offset > at)
			break;
		*to = run->to + (at - run->offset);
		*length = run->length - (at - run->offset);
		place = segment_get(pool, run->segment);
		if (!place) {
			segment_put(now);
			now = segment_get(pool, moved->id);
		}
	}
	segment_put(now);
	return place;
}

static void set_part(struct moved_part *moved, const struct read_part *part, uint64_t at,
	uint64_t to, uint64_t length)
{
	uint64_t skip = at - part->extent.offset;

	moved->offset = at;
	moved->part = (struct read_part){{part->extent.segment, to, length},
		part->into ? (uint8_t *)part->into + skip : NULL};
}

static bool nothing(const struct segment *segment, uint64_t at)
{
	log_error("segment %" PRIx64 " is moved, and no remap says where its bytes from %" PRIu64
		  " on are",
		segment->id, at);
	return false;
}

bool moved_read(struct pool_read *read, const struct read_part *part, struct segment *segment,
	uint64_t from, uint64_t to, struct io_batch *batch)
{
	bool good = true;

	for (uint64_t at = from, length, place_at; good && at < to; at += length) {
		struct segment *place = find_place(read->pool, segment, at, &place_at, &length);
		struct moved_part *moved = place ? make_part(read) : NULL;

		if (!place)
			return nothing(segment, at);
		if (length > to - at)
			length = to - at;
		if (moved)
			set_part(moved, part, at, place_at, length);
		good = moved &&
		       segment_read(read, &moved->part, place, place_at, place_at + length, batch);
		segment_put(place);
	}
	return good;
}
