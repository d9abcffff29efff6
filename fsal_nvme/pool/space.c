/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where the bytes of a pool's devices are, and how many more fit.
 *
 * The parts of struct pool_use add up to `raw`, whatever changes while they are counted: segments
 * say what they take, the rest of all slots is what can be given to new segments (less the
 * reserve), and what is left after that is unusable: on devices that are away, in slots that no
 * other devices have counterparts for, given back by a segment that is still being read, or behind
 * a device's last slot.
 */
#include "pool/internal.h"

static uint64_t chunk_bytes(const struct pool *pool)
{
	return (uint64_t)pool->header.cell * pool->header.slot_rows;
}

uint64_t segment_capacity(const struct pool *pool, unsigned data)
{
	return data * chunk_bytes(pool);
}

unsigned pool_new_data(struct pool *pool)
{
	unsigned width = place_width(pool, members_usable(pool));

	return width > pool->m ? width - pool->m : 0;
}

uint64_t pool_segment_bytes(struct pool *pool)
{
	return segment_capacity(pool, pool_new_data(pool));
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* --- segments --------------------------------------------------------------------------------- */

struct tally {
	struct pool_use use;
	uint64_t slots; /* bytes of all slots that segments have */
	uint64_t capacity; /* bytes that they take, without parity */
};

static void count_data(const struct pool *pool, const struct segment *s, struct pool_use *use)
{
	const struct segment_row *row = &s->row;
	unsigned width = row->data + row->parity;
	uint64_t rest = segment_capacity(pool, row->data), mine;

	mine = least(row->live, rest);
	rest -= mine;
	use->data += mine;
	use->parity += row->parity * chunk_bytes(pool);
	use->metadata += width * (pool->header.slot_size - chunk_bytes(pool));
	/* What was appended and is not committed yet will be data, or be abandoned. */
	mine = row->state == SEGMENT_OPEN && !s->filled && !s->frozen
		       ? rest
		       : least(atomic_load(&s->unreferred), rest);
	use->reserved += mine;
	use->waiting += rest - mine;
}

static void count_segment(const struct pool *pool, struct segment *s, struct tally *tally)
{
	uint64_t slots;

	pthread_mutex_lock(&s->lock);
	slots = (uint64_t)(s->row.data + s->row.parity) * pool->header.slot_size;
	tally->slots += slots;
	tally->capacity += segment_capacity(pool, s->row.data);
	if (s->row.state == SEGMENT_RESERVED)
		tally->use.reserved += slots;
	else if (s->row.purpose == PURPOSE_IMAGE)
		tally->use.metadata += slots;
	else
		count_data(pool, s, &tally->use);
	pthread_mutex_unlock(&s->lock);
}

static void count_segments(struct pool *pool, struct tally *tally)
{
	pthread_rwlock_rdlock(&pool->table_lock);
	for (unsigned i = 0; i < pool->table_size; i++)
		for (struct segment *s = pool->table[i]; s; s = s->hash_next)
			count_segment(pool, s, tally);
	pthread_rwlock_unlock(&pool->table_lock);
}

/* --- devices ---------------------------------------------------------------------------------- */

/* Labels, headers and journal: what stands before the slots, and what behind them. */
static uint64_t heads_bytes(const struct pool *pool)
{
	return pool->header.slots_offset + LABEL_AREA + BLOCK_SIZE;
}

static uint64_t slots_bytes(const struct pool *pool, const struct member *member)
{
	return (uint64_t)member->slot_count * pool->header.slot_size;
}

/* Of one that is missing, what it has at least. */
static uint64_t member_bytes(const struct pool *pool, const struct member *member)
{
	return member->header.size ? member->header.size
				   : heads_bytes(pool) + slots_bytes(pool, member);
}

void pool_use(struct pool *pool, struct pool_use *use)
{
	uint64_t width = pool_new_data(pool) + pool->m, raw = 0, slots = 0, left, mine, kept;
	struct place_left segments;
	struct tally tally = {0};

	count_segments(pool, &tally);
	segments = place_left(pool);
	for (unsigned i = 0; i < pool->device_count; i++) {
		raw += member_bytes(pool, &pool->devices[i]);
		slots += slots_bytes(pool, &pool->devices[i]);
	}
	*use = tally.use;
	use->raw = raw;
	use->metadata += pool->device_count * heads_bytes(pool);
	left = slots - least(tally.slots, slots);
	mine = (segments.segments - segments.unowned) * width * pool->header.slot_size;
	mine = least(mine, left);
	kept = segment_reserve(pool) + kept_segments(pool); /* those that are nobody's are of it */
	kept -= least(segments.unowned, kept);
	kept = least(kept * width * pool->header.slot_size, mine);
	use->reserved += kept;
	use->free = mine - kept;
	use->unusable = left - mine + raw - pool->device_count * heads_bytes(pool) - slots;
}

/* Room in segments that are being filled is not counted: it belongs to their volumes; nor is what
 * is kept for volumes. */
void pool_space(struct pool *pool, uint64_t *total, uint64_t *free_bytes)
{
	uint64_t size = pool_segment_bytes(pool), reserve = segment_reserve(pool) * size;
	uint64_t alone = reserve + kept_segments(pool) * size, usable, free;
	struct tally tally = {0};
	struct place_left left;

	count_segments(pool, &tally);
	left = place_left(pool);
	usable = tally.capacity + (left.segments - left.unowned) * size;
	free = left.segments * size;
	*total = usable > reserve ? usable - reserve : 0;
	*free_bytes = free > alone ? free - alone : 0;
}
