/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The block cache's memory. Three regions (blocks, descriptions of frames, ghosts) have addresses
 * for all that the host could give, and memory up to the size alone, when it is first touched.
 * Frames stay where they are when the size changes: growing adds some behind them, shrinking takes
 * the last ones away, whatever they hold, and what is in the others stays.
 */
#include "pool/block_cache.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

/* What there is whatever the size: the struct, what is rounded up to pages and to shards. */
#define FIXED_BYTES (sizeof(struct block_cache) + 8 * BLOCK_SIZE)

/* --- regions ------------------------------------------------------------------------------ */

static size_t page_up(size_t length)
{
	return (length + BLOCK_SIZE - 1) & ~(size_t)(BLOCK_SIZE - 1);
}

static void *region_reserve(size_t length)
{
	void *region = mmap(NULL, page_up(length), PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return region == MAP_FAILED ? NULL : region;
}

static void region_release(void *region, size_t length)
{
	if (region)
		munmap(region, page_up(length));
}

static int region_grow(void *region, size_t length)
{
	return mprotect(region, page_up(length), PROT_READ | PROT_WRITE) ? -errno : 0;
}

/* What is behind `keep` is given back, and zero when it is touched again. */
static void region_shrink(void *region, size_t keep, size_t length)
{
	if (page_up(length) > page_up(keep))
		(void)madvise((uint8_t *)region + page_up(keep), page_up(length) - page_up(keep),
			MADV_DONTNEED);
}

static uint32_t ghost_sets_for(uint32_t frames)
{
	return (uint32_t)((uint64_t)frames * FRAME_GHOSTS / GHOST_WAYS);
}

static void release_all(struct block_cache *cache)
{
	uint32_t frames = cache->frames_reserved;

	region_release(cache->memory, (size_t)frames * BLOCK_SIZE);
	region_release(cache->frames, (size_t)frames * sizeof(struct frame));
	region_release(cache->ghosts, (size_t)ghost_sets_for(frames) * sizeof(struct ghost_set));
	cache->memory = NULL;
	cache->frames = NULL;
	cache->ghosts = NULL;
	cache->frames_reserved = 0;
}

/* Addresses, once, for a cache as large as the host's memory. */
static int reserve(struct block_cache *cache)
{
	uint64_t frames =
		(uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / FRAME_BYTES;

	if (cache->frames_reserved)
		return 0;
	cache->frames_reserved = frames < NO_FRAME ? (uint32_t)frames : NO_FRAME - 1;
	frames = cache->frames_reserved;
	cache->memory = region_reserve(frames * BLOCK_SIZE);
	cache->frames = region_reserve(frames * sizeof(struct frame));
	cache->ghosts = region_reserve(ghost_sets_for((uint32_t)frames) * sizeof(struct ghost_set));
	if (!cache->memory || !cache->frames || !cache->ghosts) {
		release_all(cache);
		return -ENOMEM;
	}
	/* Fewer translations to look up; a refusal costs nothing. */
	(void)madvise(cache->memory, frames * BLOCK_SIZE, MADV_HUGEPAGE);
	return 0;
}

static int commit(struct block_cache *cache, uint32_t frames)
{
	int rc = region_grow(cache->memory, (size_t)frames * BLOCK_SIZE);

	if (!rc)
		rc = region_grow(cache->frames, (size_t)frames * sizeof(struct frame));
	if (!rc)
		rc = region_grow(
			cache->ghosts, (size_t)ghost_sets_for(frames) * sizeof(struct ghost_set));
	return rc;
}

static void give_back(struct block_cache *cache, uint32_t frames, uint32_t before)
{
	region_shrink(cache->memory, (size_t)frames * BLOCK_SIZE, (size_t)before * BLOCK_SIZE);
	/* No huge page reaches across the end. */
	(void)mprotect(
		frame_memory(cache, frames), (size_t)(before - frames) * BLOCK_SIZE, PROT_NONE);
	region_shrink(cache->frames, (size_t)frames * sizeof(struct frame),
		(size_t)before * sizeof(struct frame));
	region_shrink(cache->ghosts, (size_t)ghost_sets_for(frames) * sizeof(struct ghost_set),
		(size_t)ghost_sets_for(before) * sizeof(struct ghost_set));
}

/* --- buckets ------------------------------------------------------------------------------ */

static uint32_t buckets_for(uint32_t frames)
{
	return frames ? (frames + CACHE_SHARDS - 1) / CACHE_SHARDS : 0;
}

static void move_chain(struct block_cache *cache, struct cache_shard *shard, uint32_t index)
{
	while (index != NO_FRAME) {
		struct frame *frame = &cache->frames[index];
		uint64_t group = group_hash(frame->segment, frame->block);
		uint32_t *bucket = bucket_of(shard, block_hash(group, frame->block));
		uint32_t next = frame->chain;

		frame->chain = *bucket;
		*bucket = index;
		index = next;
	}
}

/* Gives each shard its part of `fresh`, empty buckets, and moves what is in its old ones. */
static void rehash(struct block_cache *cache, uint32_t *fresh, uint32_t count)
{
	for (unsigned i = 0; i < CACHE_SHARDS; i++) {
		struct cache_shard *shard = &cache->shards[i];
		uint32_t *old, old_count;

		pthread_mutex_lock(&shard->lock);
		old = shard->buckets;
		old_count = shard->bucket_count;
		shard->buckets = fresh + (size_t)i * count;
		shard->bucket_count = count;
		for (uint32_t b = 0; b < old_count; b++)
			move_chain(cache, shard, old[b]);
		pthread_mutex_unlock(&shard->lock);
	}
	free(cache->buckets);
	cache->buckets = fresh;
}

static int buckets_create(uint32_t count, uint32_t **buckets)
{
	size_t size = (size_t)count * CACHE_SHARDS * sizeof(uint32_t);

	*buckets = NULL;
	if (!size)
		return 0;
	*buckets = malloc(size);
	if (!*buckets)
		return -ENOMEM;
	memset(*buckets, 0xff, size); /* NO_FRAME */
	return 0;
}

/* --- the size ----------------------------------------------------------------------------- */

/* From now on no frame behind `frames` is handed out. Returns how many were in use at most. */
static uint32_t set_capacity(struct block_cache *cache, uint32_t frames)
{
	uint32_t index, high;

	pthread_mutex_lock(&cache->queue_lock);
	atomic_store(&cache->capacity, frames);
	high = cache->high;
	if (cache->high > frames)
		cache->high = frames;
	index = cache->free;
	cache->free = NO_FRAME;
	cache->free_count = 0;
	while (index != NO_FRAME) {
		uint32_t next = cache->frames[index].older;

		frame_free(cache, index);
		index = next;
	}
	atomic_store(&cache->full, cache->high >= frames && cache->free == NO_FRAME);
	pthread_mutex_unlock(&cache->queue_lock);
	return high;
}

/* False: somebody is copying to it or from it. */
static bool frame_empty(struct block_cache *cache, uint32_t index)
{
	struct frame *frame = &cache->frames[index];
	bool empty = true;

	pthread_mutex_lock(&cache->queue_lock);
	if (frame->place == FRAME_FILLING)
		empty = false;
	else if (frame->place != FRAME_FREE)
		empty = frame_evict(cache, index);
	if (empty)
		frame->place = FRAME_FREE;
	pthread_mutex_unlock(&cache->queue_lock);
	return empty;
}

static void shrink(struct block_cache *cache, uint32_t frames, uint32_t *buckets)
{
	uint32_t before = atomic_load(&cache->capacity);
	uint32_t high = set_capacity(cache, frames);

	for (uint32_t i = frames; i < high; i++) {
		while (!frame_empty(cache, i))
			sched_yield();
	}
	rehash(cache, buckets, buckets_for(frames));
	atomic_store(&cache->ghost_sets, ghost_sets_for(frames));
	give_back(cache, frames, before);
}

static int grow(struct block_cache *cache, uint32_t frames, uint32_t *buckets)
{
	int rc = commit(cache, frames);

	if (rc)
		return rc;
	rehash(cache, buckets, buckets_for(frames));
	atomic_store(&cache->ghost_sets, ghost_sets_for(frames));
	set_capacity(cache, frames);
	return 0;
}

static int resize(struct block_cache *cache, uint32_t frames)
{
	uint32_t now = atomic_load(&cache->capacity), *buckets;
	int rc = frames ? reserve(cache) : 0;

	if (rc || frames == now)
		return rc;
	if (frames > cache->frames_reserved)
		return -ENOMEM;
	rc = buckets_create(buckets_for(frames), &buckets);
	if (rc)
		return rc;
	if (frames < now) {
		shrink(cache, frames, buckets);
		return 0;
	}
	rc = grow(cache, frames, buckets);
	if (rc)
		free(buckets);
	return rc;
}

int pool_cache_resize(struct pool *pool, uint64_t size)
{
	struct block_cache *cache = pool->cache;
	uint64_t frames = size > FIXED_BYTES ? (size - FIXED_BYTES) / FRAME_BYTES : 0;
	int rc;

	pthread_mutex_lock(&cache->size_lock);
	rc = resize(cache, frames < NO_FRAME ? (uint32_t)frames : NO_FRAME);
	if (!rc)
		cache->size = size;
	pthread_mutex_unlock(&cache->size_lock);
	return rc;
}

void block_cache_status(struct block_cache *cache, struct pool_status *status)
{
	pthread_mutex_lock(&cache->size_lock);
	status->cache_size = cache->size;
	pthread_mutex_unlock(&cache->size_lock);
	pthread_mutex_lock(&cache->queue_lock);
	status->cache_used = (cache->high - cache->free_count) * FRAME_BYTES;
	pthread_mutex_unlock(&cache->queue_lock);
	status->cache_misses = atomic_load(&cache->missed_bytes);
	for (unsigned i = 0; i < CACHE_SHARDS; i++) {
		pthread_mutex_lock(&cache->shards[i].lock);
		status->cache_hits += cache->shards[i].hit_bytes;
		pthread_mutex_unlock(&cache->shards[i].lock);
	}
}

uint64_t block_cache_copied(struct block_cache *cache)
{
	struct pool_status status = {0};

	block_cache_status(cache, &status);
	return status.cache_hits;
}

/* --- its life ----------------------------------------------------------------------------- */

int block_cache_create(struct pool *pool)
{
	size_t size = (sizeof(struct block_cache) + 63) & ~(size_t)63;
	struct block_cache *cache = aligned_alloc(64, size);

	if (!cache)
		return -ENOMEM;
	memset(cache, 0, size);
	pthread_mutex_init(&cache->size_lock, NULL);
	pthread_mutex_init(&cache->queue_lock, NULL);
	for (unsigned i = 0; i < CACHE_SHARDS; i++)
		pthread_mutex_init(&cache->shards[i].lock, NULL);
	cache->free = NO_FRAME;
	for (unsigned i = 0; i <= FRAME_MAIN; i++)
		cache->queues[i] = (struct frame_queue){NO_FRAME, NO_FRAME, 0};
	atomic_init(&cache->full, true);
	pool->cache = cache;
	return 0;
}

void block_cache_destroy(struct pool *pool)
{
	struct block_cache *cache = pool->cache;

	if (!cache)
		return;
	release_all(cache);
	free(cache->buckets);
	pthread_mutex_destroy(&cache->size_lock);
	pthread_mutex_destroy(&cache->queue_lock);
	for (unsigned i = 0; i < CACHE_SHARDS; i++)
		pthread_mutex_destroy(&cache->shards[i].lock);
	free(cache);
	pool->cache = NULL;
}
