/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Slots that a sealed volume has left, and that readers may still look at.
 *
 *   named     what left the slot is durable, but the root on the devices is from before: a reader
 *             that looks finds the old place. Nobody gets the slot; a root is written for it
 *   resting   no root names it. Readers look every 10 s: after a minute none goes by what it was.
 *             Until then it is taken when nothing else is left
 *   free      as any other
 *
 * That a slot is never used while it is named keeps a reader that finds wrong bytes from finding
 * nothing right behind its next look; that it rests spares most of them the wrong bytes. So a full
 * pool gets room back with the next root, which is written at once when room is short.
 *
 * After a crash the journal may have records of what left slots that the root names. So an opening
 * marks what the root names ("found"), takes what is there after the replay, and the rest waits for
 * the first root of the new epoch. What rested is not remembered: that root, or an earlier one, has
 * told where everything is.
 *
 * Shares, images and the journal have nothing to do with it: readers do not look there, or, in
 * images, find by a hash that they are too late.
 */
#include "pool/env.h"

#define REST_NS (UINT64_C(60) * 1000 * 1000 * 1000)
#define ROOT_EVERY_NS (UINT64_C(10) * 1000 * 1000 * 1000)

/* Under slots_lock: changes those that are `from`. */
static void change_slots(
	struct pool *pool, const struct segment *s, enum slot_use from, enum slot_use to)
{
	for (unsigned i = 0; i < s->layout.data + s->layout.parity; i++) {
		struct member *member = &pool->devices[s->row.chunks[i].device];
		uint8_t *slot = &member->slot_map[s->row.chunks[i].slot];

		if (*slot != from)
			continue;
		*slot = (uint8_t)to;
		member->slots_used -= from == SLOT_NAMED;
		pool->slots_named -= from == SLOT_NAMED;
		pool->slots_named += to == SLOT_NAMED;
		member->slots_resting += to == SLOT_RESTING;
		member->slots_resting -= from == SLOT_RESTING;
	}
}

/* Under slots_lock. */
static void named_no_more(struct pool *pool, struct segment *s, uint64_t now)
{
	change_slots(pool, s, SLOT_NAMED, SLOT_RESTING);
	s->named_by_root = false;
	s->since = now;
}

void rest_begin(struct pool *pool, struct segment *s)
{
	uint64_t now = engine_clock(pool->engine);

	pthread_mutex_lock(&pool->slots_lock);
	change_slots(pool, s, SLOT_TAKEN, SLOT_NAMED);
	s->named_by_root = true;
	TAILQ_INSERT_TAIL(&pool->resting, s, rest);
	if (s->freed_lsn <= pool->rooted_lsn)
		named_no_more(pool, s, now);
	pthread_mutex_unlock(&pool->slots_lock);
}

/* Under slots_lock: those that an opening found. */
static void free_found(struct pool *pool)
{
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		for (uint32_t slot = 0; slot < member->slot_count; slot++) {
			if (member->slot_map[slot] != SLOT_FOUND)
				continue;
			member->slot_map[slot] = SLOT_FREE;
			member->slots_used--;
			pool->slots_named--;
		}
	}
}

void rest_rooted(struct pool *pool, uint64_t lsn)
{
	uint64_t now = engine_clock(pool->engine);
	struct segment *s;

	pthread_mutex_lock(&pool->slots_lock);
	if (pool->slots_named)
		free_found(pool);
	pool->rooted_lsn = lsn;
	TAILQ_FOREACH(s, &pool->resting, rest)
	{
		if (s->named_by_root && s->freed_lsn <= lsn)
			named_no_more(pool, s, now);
	}
	pool->rooted_at = now;
	pthread_mutex_unlock(&pool->slots_lock);
}

void rest_round(struct pool *pool)
{
	uint64_t now = engine_clock(pool->engine);
	struct segment *s, *next;

	pthread_mutex_lock(&pool->slots_lock);
	for (s = TAILQ_FIRST(&pool->resting); s; s = next) {
		next = TAILQ_NEXT(s, rest);
		if (s->named_by_root || now - s->since < REST_NS)
			continue;
		change_slots(pool, s, SLOT_RESTING, SLOT_FREE);
		TAILQ_REMOVE(&pool->resting, s, rest);
		segment_destroy(s);
	}
	pthread_mutex_unlock(&pool->slots_lock);
}

bool rest_wants_root(struct pool *pool)
{
	uint64_t now = engine_clock(pool->engine), rooted;
	bool named;

	pthread_mutex_lock(&pool->slots_lock);
	named = pool->slots_named;
	rooted = pool->rooted_at;
	pthread_mutex_unlock(&pool->slots_lock);
	if (now - rooted >= ROOT_EVERY_NS)
		return named || atomic_load(&pool->root_wanted);
	return named && segments_left(pool, PURPOSE_DATA, 0) <= (int64_t)pool->stock_size;
}

/* --- what an opening finds ---------------------------------------------------------------------
 */

static int mark_found(struct pool *pool, const struct segment_row *row)
{
	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++) {
		const struct chunk_place *place = &row->chunks[i];
		struct member *member = &pool->devices[place->device];

		if (place->device >= pool->device_count || place->slot >= member->slot_count ||
			member->slot_map[place->slot])
			return -EBADMSG;
		member->slot_map[place->slot] = SLOT_FOUND;
		member->slots_used++;
		pool->slots_named++;
	}
	return 0;
}

/* Of the volume that it was asked of last. */
struct sealed {
	uint32_t volume;
	bool sealed;
};

static bool is_sealed(struct txn *view, struct sealed *last, uint32_t volume)
{
	struct volume_row row;

	if (last->volume != volume)
		*last = (struct sealed){volume, !volume_row_get(view, volume, &row) && row.sealed};
	return last->sealed;
}

static int find_all(struct pool *pool, struct txn *view)
{
	struct sealed last = {0};
	struct segment_row row = {0};
	int rc;

	for (uint64_t next = 0; !(rc = segment_row_next(pool, view, next, &row));
		next = row.id + 1) {
		if (row.purpose != PURPOSE_DATA || row.state == SEGMENT_RESERVED ||
			!is_sealed(view, &last, row.volume))
			continue;
		rc = mark_found(pool, &row);
		if (rc)
			return rc;
	}
	return rc == -ENOENT ? 0 : rc;
}

int rest_find(struct pool *pool)
{
	struct txn *view;
	int rc;

	if (pool->read_only)
		return 0;
	rc = view_begin(pool->env, &view);
	if (rc)
		return rc;
	rc = find_all(pool, view);
	txn_abort(view);
	pool->rooted_lsn = pool->label.root.lsn;
	pool->rooted_at = engine_clock(pool->engine);
	return rc;
}

void rest_destroy(struct pool *pool)
{
	struct segment *s;

	while ((s = TAILQ_FIRST(&pool->resting))) {
		TAILQ_REMOVE(&pool->resting, s, rest);
		segment_destroy(s);
	}
}
