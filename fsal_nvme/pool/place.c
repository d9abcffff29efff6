/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Placement: which devices and slots a new segment gets.
 *
 * Each chunk goes to a device of its own, the ones with the most free slots first, so that devices
 * fill evenly and a dead one is rebuilt from and to all others. At most m chunks go to one domain
 * when there are enough domains for that; else they are spread as evenly as can be. With fewer
 * devices than k + m the segment gets fewer data chunks, never fewer parity chunks; and while a
 * domain is away of a pool that can lose one, as many as the others take with no more than m each:
 * when it is back, another one may go. Slots that rest (rest.c) come last.
 */
#include "pool/internal.h"
#include "pool/read.h"

/* Chunks that these members take with at most m in one domain. */
static unsigned spread_width(const struct pool *pool, uint64_t members)
{
	unsigned here[POOL_DEVICES_MAX] = {0}, width = 0;

	for (; members; members &= members - 1)
		width += here[pool->domains[__builtin_ctzll(members)]]++ < pool->m;
	return width;
}

static bool can_spread(const struct pool *pool)
{
	return spread_width(pool, low_bits(pool->device_count)) >= pool->k + pool->m;
}

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

unsigned place_width(const struct pool *pool, uint64_t members)
{
	unsigned width = least((unsigned)__builtin_popcountll(members), pool->k + pool->m);
	unsigned spread = spread_width(pool, members);

	return can_spread(pool) && spread > pool->m ? least(width, spread) : width;
}

/* A loss, of m devices or a domain, takes m chunks at most from what they spread. */
unsigned place_width_left(const struct pool *pool, uint64_t members, unsigned left)
{
	unsigned width = least(left, pool->k + pool->m), spread = spread_width(pool, members);

	if (!can_spread(pool))
		return width;
	return least(width, spread > 2 * pool->m ? spread - pool->m : pool->m + 1);
}

struct candidate {
	unsigned device;
	uint32_t free;
};

static int by_free(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->free != y->free)
		return x->free < y->free ? 1 : -1;
	return x->device < y->device ? -1 : 1;
}

/* `resting`: slots that rest count as well. */
static unsigned candidates(struct pool *pool, struct candidate *list, bool resting)
{
	unsigned count = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];
		uint32_t free_slots = member->slot_count - member->slots_used;

		if (!resting)
			free_slots -= member->slots_resting;
		if (member_usable(member) && !atomic_load(&member->failing) && free_slots)
			list[count++] = (struct candidate){i, free_slots};
	}
	qsort(list, count, sizeof(*list), by_free);
	return count;
}

static uint64_t members_of(const struct candidate *list, unsigned count)
{
	uint64_t members = 0;

	for (unsigned i = 0; i < count; i++)
		members |= UINT64_C(1) << list[i].device;
	return members;
}

static bool same_domain(struct pool *pool, unsigned a, unsigned b)
{
	return !strcmp(pool->devices[a].label.domain, pool->devices[b].label.domain);
}

static unsigned count_domains(struct pool *pool, const struct candidate *list, unsigned count)
{
	unsigned domains = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned j = 0;

		while (j < i && !same_domain(pool, list[i].device, list[j].device))
			j++;
		domains += j == i;
	}
	return domains;
}

static unsigned in_domain(
	struct pool *pool, const struct segment_row *row, unsigned chosen, unsigned device)
{
	unsigned count = 0;

	for (unsigned i = 0; i < chosen; i++)
		count += same_domain(pool, row->chunks[i].device, device);
	return count;
}

/* The best candidate left: the fewest chunks in its domain if `spread`, then the most free. */
static int choose(struct pool *pool, struct candidate *list, unsigned count,
	const struct segment_row *row, unsigned chosen, unsigned cap, bool spread)
{
	unsigned fewest = ~0u;
	int best = -1;

	for (unsigned i = 0; i < count; i++) {
		unsigned here;

		if (!list[i].free)
			continue;
		here = in_domain(pool, row, chosen, list[i].device);
		if (here >= cap)
			continue;
		if (best < 0 || (spread && here < fewest)) {
			best = (int)i;
			fewest = here;
		}
	}
	return best;
}

static bool fill(struct pool *pool, struct segment_row *row, const struct candidate *from,
	unsigned count, unsigned width, unsigned cap, bool spread)
{
	struct candidate list[POOL_DEVICES_MAX];

	memcpy(list, from, count * sizeof(*list));
	for (unsigned chosen = 0; chosen < width; chosen++) {
		int best = choose(pool, list, count, row, chosen, cap, spread);

		if (best < 0)
			return false;
		row->chunks[chosen].device = (uint16_t)list[best].device;
		list[best].free = 0;
	}
	return true;
}

/* So that no device holds parity alone: the roles go round with the segment's id. */
static void rotate(struct segment_row *row, unsigned width)
{
	struct chunk_place places[POOL_WIDTH_MAX];
	unsigned shift = (unsigned)(row->id % width);

	memcpy(places, row->chunks, sizeof(places));
	for (unsigned i = 0; i < width; i++)
		row->chunks[i] = places[(i + shift) % width];
}

static uint32_t take_slot(struct member *member)
{
	uint32_t slot = 0;

	while (slot < member->slot_count && member->slot_map[slot] != SLOT_FREE)
		slot++;
	if (slot == member->slot_count) {
		slot = 0;
		while (member->slot_map[slot] != SLOT_RESTING)
			slot++;
		member->slots_resting--;
	}
	member->slot_map[slot] = SLOT_TAKEN;
	member->slots_used++;
	return slot;
}

/* Where a segment can be as wide, and its domains as many, without slots that rest. */
static unsigned choose_candidates(struct pool *pool, struct candidate *list, unsigned width)
{
	struct candidate rested[POOL_DEVICES_MAX];
	unsigned all = candidates(pool, list, true);
	unsigned count = candidates(pool, rested, false);
	unsigned spread = spread_width(pool, members_of(list, all));

	if (count < least(width, all) ||
		count_domains(pool, rested, count) < count_domains(pool, list, all) ||
		spread_width(pool, members_of(rested, count)) < least(width, spread))
		return all;
	memcpy(list, rested, count * sizeof(*list));
	return count;
}

static int place_locked(struct pool *pool, struct segment_row *row)
{
	struct candidate list[POOL_DEVICES_MAX];
	unsigned width = place_width(pool, members_usable(pool) & ~members_failing(pool)), needed;
	unsigned count = choose_candidates(pool, list, width);

	if (count < pool->m + 1)
		return -ENOSPC;
	if (width > count)
		width = count;
	needed = (width + pool->m - 1) / pool->m;
	if (count_domains(pool, list, count) < needed ||
		!fill(pool, row, list, count, width, pool->m, false))
		fill(pool, row, list, count, width, ~0u, true);
	row->data = (uint8_t)(width - pool->m);
	row->parity = (uint8_t)pool->m;
	rotate(row, width);
	for (unsigned i = 0; i < width; i++)
		row->chunks[i].slot = take_slot(&pool->devices[row->chunks[i].device]);
	return 0;
}

unsigned place_width_free(struct pool *pool)
{
	struct candidate list[POOL_DEVICES_MAX];
	unsigned count;

	pthread_mutex_lock(&pool->slots_lock);
	count = candidates(pool, list, true);
	pthread_mutex_unlock(&pool->slots_lock);
	return least(place_width(pool, members_usable(pool)), count);
}

int place_segment(struct pool *pool, struct segment_row *row)
{
	int rc;

	pthread_mutex_lock(&pool->slots_lock);
	rc = place_locked(pool, row);
	if (!rc)
		pool->unowned++;
	pthread_mutex_unlock(&pool->slots_lock);
	return rc;
}

void place_owned(struct pool *pool, bool image)
{
	pthread_mutex_lock(&pool->slots_lock);
	pool->unowned--;
	if (image)
		atomic_fetch_add(&pool->image_taken, 1);
	pthread_mutex_unlock(&pool->slots_lock);
}

void place_unowned(struct pool *pool)
{
	pthread_mutex_lock(&pool->slots_lock);
	pool->unowned++;
	pthread_mutex_unlock(&pool->slots_lock);
}

void place_release(struct pool *pool, const struct segment_row *row)
{
	pthread_mutex_lock(&pool->slots_lock);
	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++) {
		struct member *member = &pool->devices[row->chunks[i].device];

		member->slot_map[row->chunks[i].slot] = SLOT_FREE;
		member->slots_used--;
	}
	pthread_mutex_unlock(&pool->slots_lock);
}

int place_take(struct pool *pool, const struct segment_row *row)
{
	int rc = 0;

	pthread_mutex_lock(&pool->slots_lock);
	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++) {
		struct member *member = &pool->devices[row->chunks[i].device];
		uint32_t slot = row->chunks[i].slot;

		if (row->chunks[i].device >= pool->device_count || slot >= member->slot_count ||
			(member->slot_map[slot] != SLOT_FREE &&
				member->slot_map[slot] != SLOT_FOUND)) {
			rc = -EBADMSG;
			break;
		}
		if (member->slot_map[slot] == SLOT_FREE)
			member->slots_used++;
		else
			pool->slots_named--;
		member->slot_map[slot] = SLOT_TAKEN;
	}
	pthread_mutex_unlock(&pool->slots_lock);
	return rc;
}

/* The greatest n for which n segments, one slot a device each, find width * n slots. */
static uint64_t capacity(const struct pool *pool, const struct candidate *list, unsigned count)
{
	unsigned width = place_width(pool, members_usable(pool));
	uint64_t low = 0, high = 0;

	if (count < pool->m + 1)
		return 0;
	if (width > count)
		width = count;
	for (unsigned i = 0; i < count; i++)
		high += list[i].free;
	high /= width;
	while (low < high) {
		uint64_t middle = (low + high + 1) / 2, slots = 0;

		for (unsigned i = 0; i < count; i++)
			slots += list[i].free < middle ? list[i].free : middle;
		if (slots >= width * middle)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

struct place_left place_left(struct pool *pool)
{
	struct candidate list[POOL_DEVICES_MAX];
	struct place_left left;
	unsigned count;

	pthread_mutex_lock(&pool->slots_lock);
	count = candidates(pool, list, true);
	left.unowned = pool->unowned;
	left.image_taken = atomic_load(&pool->image_taken);
	pthread_mutex_unlock(&pool->slots_lock);
	left.segments = capacity(pool, list, count) + left.unowned;
	return left;
}

uint64_t place_capacity(struct pool *pool)
{
	struct place_left left = place_left(pool);

	return left.segments - left.unowned;
}

bool place_domain_may_die(struct pool *pool)
{
	struct candidate list[POOL_DEVICES_MAX];
	unsigned count = 0, width = pool->k + pool->m;

	for (unsigned i = 0; i < pool->device_count; i++)
		if (member_usable(&pool->devices[i]))
			list[count++] = (struct candidate){i, 1};
	if (width > count)
		width = count;
	return count > pool->m &&
	       count_domains(pool, list, count) >= (width + pool->m - 1) / pool->m;
}
