/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The block cache: blocks of segments in memory, for reads of files. block_cache.c (looking and
 * keeping), block_cache_queue.c (what stays and what goes), block_cache_size.c (memory).
 *
 * A block is named by its segment and its number in the segment's linear space. It never changes
 * once it can be read, and ids of segments are not used twice: what is here is right for ever, and
 * nothing has to be taken out for its sake. Blocks of a segment that is freed are asked for no
 * more and leave as others do that are not used.
 *
 * Each block lies in a frame: a page of one region of memory, and a description of it. A frame is
 * free; being filled, and its filler's alone; or in a queue and in a bucket of the hash table. Who
 * copies from a frame holds a pin on it, so that no lock is held over a copy.
 *
 * Locks: `size_lock` (one resize at a time), then `queue_lock` (queues, free frames), then a
 * shard's (its buckets). Memory grows and shrinks at the end of regions that stay where they are.
 */
#ifndef MILLRACE_POOL_BLOCK_CACHE_H
#define MILLRACE_POOL_BLOCK_CACHE_H

#include "pool/internal.h"

#define GROUP_BLOCKS 64u /* neighbours in linear space that share a shard */
#define GROUP_BYTES ((uint64_t)GROUP_BLOCKS * BLOCK_SIZE)
#define CACHED_MAX ((uint64_t)UINT32_MAX * BLOCK_SIZE) /* of a segment's linear space */

/* --- for the read path -------------------------------------------------------------------- */

static inline uint64_t group_end(uint64_t at)
{
	return (at / GROUP_BYTES + 1) * GROUP_BYTES;
}

/* Whether there is anything to be asked or told. */
bool block_cache_is_on(struct block_cache *cache);
/* Bytes that were copied out of it. */
uint64_t block_cache_copied(struct block_cache *cache);
/* Copies what it has of the bytes from..to of a segment, which lie in one group, to `into`. A bit
 * for each block found, counted from that of `from`. Any thread; does not wait. */
uint64_t block_cache_get(
	struct block_cache *cache, uint64_t segment, uint64_t from, uint64_t to, uint8_t *into);
/* Bytes that had to be read from devices. */
void block_cache_missed(struct block_cache *cache, uint64_t bytes);

/* Blocks that their checksums have proven, neighbours in one group and in memory. */
struct block_run {
	uint64_t segment;
	uint32_t first; /* block of the linear space */
	unsigned count;
	uint64_t passing; /* bits: of a large read, kept only if it was read not long ago */
	const uint8_t *bytes;
};
/* Copies those that are worth it. Any thread; does not wait. */
void block_cache_keep(struct block_cache *cache, const struct block_run *run);

/* --- its parts ---------------------------------------------------------------------------- */

#define CACHE_SHARDS 64u
#define NO_FRAME UINT32_MAX
#define USES_MAX 3u
#define GHOST_WAYS 8u /* one cache line; ghost_check() counts on 2^3 */

enum frame_place { FRAME_FREE, FRAME_FILLING, FRAME_NEW, FRAME_MAIN };

struct frame {
	uint64_t segment; /* these two: its filler's, then constant while it is in a bucket */
	uint32_t block;
	uint32_t chain; /* the shard's lock: next in its bucket */
	uint32_t older, newer; /* queue_lock; of a free one, `older` is the next free one */
	_Atomic uint32_t pins; /* grows under the shard's lock alone */
	_Atomic uint8_t uses; /* up to USES_MAX, since it came or was passed over */
	uint8_t place; /* queue_lock: enum frame_place */
};

struct frame_queue {
	uint32_t oldest, newest, count;
};

struct cache_shard {
	_Alignas(64) pthread_mutex_t lock;
	uint32_t *buckets; /* each the first frame of its chain */
	uint32_t bucket_count;
	uint64_t hit_bytes;
};

/* Of blocks that were read lately and are not here: when, counted in ghosts, above part of the
 * hash, 32 bits each. What two threads do to one at the same time may be lost. */
struct ghost_set {
	_Alignas(64) _Atomic uint64_t ghosts[GHOST_WAYS];
};

struct block_cache {
	pthread_mutex_t size_lock;
	uint64_t size; /* as asked for; size_lock */
	uint32_t frames_reserved; /* addresses for so many; 0: none yet */
	uint32_t *buckets; /* of all shards; size_lock */

	pthread_mutex_t queue_lock;
	_Atomic uint32_t capacity; /* frames; changes under queue_lock */
	uint32_t high; /* frames from here on were never used */
	uint32_t free, free_count; /* a list of those below it */
	struct frame_queue queues[FRAME_MAIN + 1];
	_Atomic bool full; /* a hint: no frame is free */

	struct frame *frames;
	uint8_t *memory; /* a block for each frame */
	struct ghost_set *ghosts;
	_Atomic uint32_t ghost_sets;
	_Atomic uint32_t ghost_clock; /* ghosts so far */
	_Atomic uint64_t missed_bytes;
	struct cache_shard shards[CACHE_SHARDS];
};

/* Bytes that a frame takes: the block, its description, its bucket and its ghosts. */
#define FRAME_GHOSTS 2u
#define FRAME_BYTES \
	(BLOCK_SIZE + sizeof(struct frame) + sizeof(uint32_t) + FRAME_GHOSTS * sizeof(uint64_t))

/* A group's share of the hash; block_hash() is made of it. */
static inline uint64_t group_hash(uint64_t segment, uint32_t block)
{
	uint64_t z = segment * UINT64_C(0x9e3779b97f4a7c15) + block / GROUP_BLOCKS;

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static inline uint64_t block_hash(uint64_t group, uint32_t block)
{
	return group + block % GROUP_BLOCKS * UINT64_C(0x9e3779b97f4a7c15);
}

static inline struct cache_shard *shard_of_group(struct block_cache *cache, uint64_t group)
{
	return &cache->shards[group % CACHE_SHARDS];
}

static inline uint8_t *frame_memory(struct block_cache *cache, uint32_t frame)
{
	return cache->memory + (size_t)frame * BLOCK_SIZE;
}

/* 0 <= result < range, from the hash's upper half. */
static inline uint32_t hash_below(uint64_t hash, uint32_t range)
{
	return (uint32_t)((hash >> 32) * range >> 32);
}

/* Under the shard's lock; there are buckets. */
static inline uint32_t *bucket_of(struct cache_shard *shard, uint64_t hash)
{
	return &shard->buckets[hash_below(hash, shard->bucket_count)];
}

/* --- block_cache_queue.c ------------------------------------------------------------------ */

/* Whether the block was read not long ago. With `read` it was from now on. Any thread, no lock. */
bool ghost_check(struct block_cache *cache, uint64_t hash, bool read);

/* The rest under queue_lock. A frame that was never used, or is free; NO_FRAME: the cache is
 * full. */
uint32_t frame_take_free(struct block_cache *cache);
/* One whose block has to go. NO_FRAME: of the few that were looked at, none. */
uint32_t frame_take_used(struct block_cache *cache);
/* What was taken, and not pushed. */
void frame_free(struct block_cache *cache, uint32_t frame);
void frame_push(struct block_cache *cache, uint32_t frame, enum frame_place place);
/* Takes it out of its queue and bucket; false: it is being copied from. */
bool frame_evict(struct block_cache *cache, uint32_t frame);

#endif
