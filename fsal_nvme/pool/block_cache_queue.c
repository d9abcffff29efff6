/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What stays in the block cache: S3-FIFO (Yang et al., SOSP 2023), with a way past it for large
 * reads.
 *
 *   new    a tenth of the frames: blocks on probation. One that was used twice while it was here
 *          goes on to main, others leave.
 *   main   all other frames, and what came while there was room. The oldest block stays, as the
 *          newest, as often as it was used since it came, up to three times; else it leaves.
 *   ghosts no blocks, but which ones left from new, or passed by in a large read, last: one that is
 *          read again comes to main at once.
 *
 * So what is read once costs no block of main its place, however much it is. A hit moves nothing.
 *
 * For a new block two of the oldest are looked at; where both stay, it is the new one that stays
 * out. That keeps the work small, and something that is larger than the cache and read again and
 * again from displacing itself: what is there is used once in each round, and loses less than that
 * to what comes by. For the same reason what leaves main leaves no ghost. When something else has
 * been in use for long, what follows it needs a few rounds to take its place.
 */
#include "pool/block_cache.h"

#define NEW_PART 10u /* of the frames: one in so many */
#define LOOKS_MAX 2u /* frames looked at for one that may go */
#define USES_WANTED 2u /* to go on to main: one may be the other half of the same block */

/* --- ghosts ------------------------------------------------------------------------------- */

static struct ghost_set *ghost_set_of(struct block_cache *cache, uint64_t hash)
{
	uint32_t sets = atomic_load_explicit(&cache->ghost_sets, memory_order_relaxed);

	return sets ? &cache->ghosts[hash_below(hash, sets)] : NULL;
}

static uint32_t ghost_tag(uint64_t hash)
{
	return (uint32_t)hash | 1;
}

/* How many others have come since. */
static uint32_t ghost_age(uint64_t ghost, uint32_t now)
{
	return now - (uint32_t)(ghost >> 32);
}

/* As many are remembered as there are frames, and some, for what does not fit in its set. */
static uint32_t ghost_age_max(struct block_cache *cache)
{
	uint32_t capacity = atomic_load_explicit(&cache->capacity, memory_order_relaxed);

	return capacity + capacity / 4;
}

/*
 * A new ghost takes the place of one that is too old, else any: with the oldest's, more blocks than
 * a set has places would displace each other for ever when they are read in turn.
 */
bool ghost_check(struct block_cache *cache, uint64_t hash, bool read)
{
	struct ghost_set *set = ghost_set_of(cache, hash);
	uint32_t now = atomic_load_explicit(&cache->ghost_clock, memory_order_relaxed);
	uint32_t age_max = ghost_age_max(cache), tag = ghost_tag(hash);
	unsigned place = now * UINT32_C(0x9e3779b9) >> 29;
	bool known = false;

	for (unsigned i = 0; set && !known && i < GHOST_WAYS; i++) {
		uint64_t ghost = atomic_load_explicit(&set->ghosts[i], memory_order_relaxed);
		bool old = !ghost || ghost_age(ghost, now) > age_max;

		known = !old && (uint32_t)ghost == tag;
		if (old || known)
			place = i;
	}
	if (!set || !read)
		return known;
	now = atomic_fetch_add_explicit(&cache->ghost_clock, 1, memory_order_relaxed);
	atomic_store_explicit(&set->ghosts[place], (uint64_t)now << 32 | tag, memory_order_relaxed);
	return known;
}

/* --- queues ------------------------------------------------------------------------------- */

static void queue_remove(struct block_cache *cache, uint32_t index)
{
	struct frame *frame = &cache->frames[index];
	struct frame_queue *queue = &cache->queues[frame->place];

	if (frame->older == NO_FRAME)
		queue->oldest = frame->newer;
	else
		cache->frames[frame->older].newer = frame->newer;
	if (frame->newer == NO_FRAME)
		queue->newest = frame->older;
	else
		cache->frames[frame->newer].older = frame->older;
	queue->count--;
	frame->place = FRAME_FILLING;
}

void frame_push(struct block_cache *cache, uint32_t index, enum frame_place place)
{
	struct frame *frame = &cache->frames[index];
	struct frame_queue *queue = &cache->queues[place];

	frame->place = (uint8_t)place;
	frame->newer = NO_FRAME;
	frame->older = queue->newest;
	if (queue->newest == NO_FRAME)
		queue->oldest = index;
	else
		cache->frames[queue->newest].newer = index;
	queue->newest = index;
	queue->count++;
}

static void requeue(struct block_cache *cache, uint32_t index, enum frame_place place)
{
	queue_remove(cache, index);
	frame_push(cache, index, place);
}

bool frame_evict(struct block_cache *cache, uint32_t index)
{
	struct frame *frame = &cache->frames[index];
	uint64_t group = group_hash(frame->segment, frame->block);
	uint64_t hash = block_hash(group, frame->block);
	struct cache_shard *shard = shard_of_group(cache, group);
	uint32_t *at;

	pthread_mutex_lock(&shard->lock);
	if (atomic_load_explicit(&frame->pins, memory_order_acquire)) {
		pthread_mutex_unlock(&shard->lock);
		return false;
	}
	at = bucket_of(shard, hash);
	while (*at != index)
		at = &cache->frames[*at].chain;
	*at = frame->chain;
	pthread_mutex_unlock(&shard->lock);
	if (frame->place == FRAME_NEW)
		(void)ghost_check(cache, hash, true);
	queue_remove(cache, index);
	return true;
}

/* --- frames ------------------------------------------------------------------------------- */

uint32_t frame_take_free(struct block_cache *cache)
{
	uint32_t index = NO_FRAME;

	if (cache->free != NO_FRAME) {
		index = cache->free;
		cache->free = cache->frames[index].older;
		cache->free_count--;
	} else if (cache->high < atomic_load(&cache->capacity)) {
		index = cache->high++;
	}
	if (index != NO_FRAME)
		cache->frames[index].place = FRAME_FILLING;
	atomic_store_explicit(&cache->full,
		cache->free == NO_FRAME && cache->high >= atomic_load(&cache->capacity),
		memory_order_relaxed);
	return index;
}

void frame_free(struct block_cache *cache, uint32_t index)
{
	cache->frames[index].place = FRAME_FREE;
	if (index >= atomic_load(&cache->capacity))
		return;
	cache->frames[index].older = cache->free;
	cache->free = index;
	cache->free_count++;
	atomic_store_explicit(&cache->full, false, memory_order_relaxed);
}

/* The oldest block of the queue that is too long; it has earned another round, or not. */
static bool stays(struct block_cache *cache, uint32_t index, enum frame_place place)
{
	_Atomic uint8_t *uses = &cache->frames[index].uses;
	uint8_t count = atomic_load_explicit(uses, memory_order_relaxed);

	if (count < (place == FRAME_NEW ? USES_WANTED : 1))
		return false;
	atomic_store_explicit(
		uses, place == FRAME_NEW ? 0 : (uint8_t)(count - 1), memory_order_relaxed);
	requeue(cache, index, FRAME_MAIN);
	return true;
}

uint32_t frame_take_used(struct block_cache *cache)
{
	for (unsigned i = 0; i < LOOKS_MAX; i++) {
		enum frame_place place = FRAME_MAIN;
		uint32_t index;

		if (cache->queues[FRAME_NEW].count > atomic_load(&cache->capacity) / NEW_PART ||
			!cache->queues[FRAME_MAIN].count)
			place = FRAME_NEW;
		index = cache->queues[place].oldest;
		if (index == NO_FRAME)
			return NO_FRAME;
		if (stays(cache, index, place))
			continue;
		if (frame_evict(cache, index))
			return index;
		requeue(cache, index, place);
	}
	return NO_FRAME;
}
