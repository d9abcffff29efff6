/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Looking for blocks, and keeping them.
 *
 * A look takes the lock of one shard, once for all blocks of a group, and pins what it finds; the
 * copy is made under no lock. Keeping has three steps: frames are taken, which may cost others
 * their place; blocks are copied into them; they are put where looks find them, unless somebody
 * else was quicker.
 */
#include "pool/block_cache.h"

static inline uint64_t bit(unsigned i)
{
	return UINT64_C(1) << i;
}

bool block_cache_is_on(struct block_cache *cache)
{
	return cache && atomic_load_explicit(&cache->capacity, memory_order_relaxed);
}

/* Under the shard's lock. */
static uint32_t find(struct block_cache *cache, struct cache_shard *shard, uint64_t group,
	uint64_t segment, uint32_t block)
{
	uint32_t index;

	if (!shard->bucket_count)
		return NO_FRAME;
	index = *bucket_of(shard, block_hash(group, block));
	while (index != NO_FRAME &&
		!(cache->frames[index].block == block && cache->frames[index].segment == segment))
		index = cache->frames[index].chain;
	return index;
}

static void use(struct frame *frame)
{
	uint8_t uses = atomic_load_explicit(&frame->uses, memory_order_relaxed);

	if (uses < USES_MAX)
		atomic_store_explicit(&frame->uses, uses + 1, memory_order_relaxed);
}

/* --- looking ------------------------------------------------------------------------------ */

struct look {
	struct block_cache *cache;
	uint64_t segment, from, to;
	uint32_t first;
	uint64_t found;
	uint32_t frames[GROUP_BLOCKS];
};

/* What of the block is asked for. */
static void clip(const struct look *look, unsigned i, uint64_t *from, uint64_t *to)
{
	*from = ((uint64_t)look->first + i) * BLOCK_SIZE;
	*to = *from + BLOCK_SIZE;
	if (*from < look->from)
		*from = look->from;
	if (*to > look->to)
		*to = look->to;
}

/* Of what was found, of so many blocks: the first and the last may be asked for in part. */
static uint64_t look_bytes(const struct look *look, unsigned count)
{
	uint64_t bytes = (uint64_t)__builtin_popcountll(look->found) * BLOCK_SIZE;

	if (look->found & 1)
		bytes -= look->from % BLOCK_SIZE;
	if (look->found & bit(count - 1))
		bytes -= (BLOCK_SIZE - look->to % BLOCK_SIZE) % BLOCK_SIZE;
	return bytes;
}

static void look_pin(struct look *look, unsigned count)
{
	struct block_cache *cache = look->cache;
	uint64_t group = group_hash(look->segment, look->first);
	struct cache_shard *shard = shard_of_group(cache, group);

	pthread_mutex_lock(&shard->lock);
	for (unsigned i = 0; i < count; i++) {
		uint32_t index = find(cache, shard, group, look->segment, look->first + i);

		if (index == NO_FRAME)
			continue;
		look->frames[i] = index;
		look->found |= bit(i);
		atomic_fetch_add_explicit(&cache->frames[index].pins, 1, memory_order_relaxed);
		use(&cache->frames[index]);
	}
	shard->hit_bytes += look_bytes(look, count);
	pthread_mutex_unlock(&shard->lock);
}

static void look_copy(const struct look *look, unsigned i, uint8_t *into)
{
	struct block_cache *cache = look->cache;
	uint32_t index = look->frames[i];
	uint64_t from, to;

	clip(look, i, &from, &to);
	memcpy(into + (from - look->from), frame_memory(cache, index) + from % BLOCK_SIZE,
		to - from);
	atomic_fetch_sub_explicit(&cache->frames[index].pins, 1, memory_order_release);
}

uint64_t block_cache_get(
	struct block_cache *cache, uint64_t segment, uint64_t from, uint64_t to, uint8_t *into)
{
	struct look look;

	look.cache = cache;
	look.segment = segment;
	look.from = from;
	look.to = to;
	look.first = (uint32_t)(from / BLOCK_SIZE);
	look.found = 0;
	look_pin(&look, (unsigned)((to - 1) / BLOCK_SIZE - look.first + 1));
	for (uint64_t left = look.found; left; left &= left - 1)
		look_copy(&look, (unsigned)__builtin_ctzll(left), into);
	return look.found;
}

void block_cache_missed(struct block_cache *cache, uint64_t bytes)
{
	atomic_fetch_add_explicit(&cache->missed_bytes, bytes, memory_order_relaxed);
}

/* --- keeping ------------------------------------------------------------------------------ */

struct keeping {
	struct block_cache *cache;
	const struct block_run *run;
	uint64_t group;
	uint64_t wanted; /* bits of the run's blocks: to be kept ... */
	uint64_t known; /* ... and read before, not long ago */
	uint64_t taken; /* to main, by frames[] */
	uint32_t frames[GROUP_BLOCKS];
};

static void leave_out_present(struct keeping *k)
{
	struct cache_shard *shard = shard_of_group(k->cache, k->group);

	pthread_mutex_lock(&shard->lock);
	for (unsigned i = 0; i < k->run->count; i++)
		if (find(k->cache, shard, k->group, k->run->segment, k->run->first + i) == NO_FRAME)
			k->wanted |= bit(i);
	pthread_mutex_unlock(&shard->lock);
}

/* Of a full cache. What passes for the first time leaves a ghost alone. */
static void leave_out_passing(struct keeping *k)
{
	for (uint64_t left = k->wanted; left; left &= left - 1) {
		unsigned i = (unsigned)__builtin_ctzll(left);
		uint64_t hash = block_hash(k->group, k->run->first + i);
		bool passes = k->run->passing & bit(i);

		if (ghost_check(k->cache, hash, passes))
			k->known |= bit(i);
		else if (passes)
			k->wanted &= ~bit(i);
	}
}

/* Under queue_lock. */
static void take_frame(struct keeping *k, unsigned i)
{
	bool known = k->known & bit(i);
	uint32_t index = frame_take_free(k->cache);

	if (index != NO_FRAME) {
		k->taken |= bit(i);
	} else if (known || !(k->run->passing & bit(i))) {
		index = frame_take_used(k->cache);
		k->taken |= known ? bit(i) : 0;
	}
	k->frames[i] = index;
	if (index == NO_FRAME)
		k->wanted &= ~bit(i);
}

static void take_frames(struct keeping *k)
{
	pthread_mutex_lock(&k->cache->queue_lock);
	for (uint64_t left = k->wanted; left; left &= left - 1)
		take_frame(k, (unsigned)__builtin_ctzll(left));
	pthread_mutex_unlock(&k->cache->queue_lock);
}

static void fill_frames(const struct keeping *k)
{
	for (uint64_t left = k->wanted; left; left &= left - 1) {
		unsigned i = (unsigned)__builtin_ctzll(left);
		struct frame *frame = &k->cache->frames[k->frames[i]];

		memcpy(frame_memory(k->cache, k->frames[i]), k->run->bytes + (size_t)i * BLOCK_SIZE,
			BLOCK_SIZE);
		frame->segment = k->run->segment;
		frame->block = k->run->first + i;
		atomic_store_explicit(&frame->uses, 0, memory_order_relaxed);
	}
}

/* Under queue_lock and the shard's. */
static void publish(struct keeping *k, struct cache_shard *shard, unsigned i)
{
	uint32_t index = k->frames[i], block = k->run->first + i, *bucket;

	if (index >= atomic_load(&k->cache->capacity) ||
		find(k->cache, shard, k->group, k->run->segment, block) != NO_FRAME) {
		frame_free(k->cache, index);
		return;
	}
	bucket = bucket_of(shard, block_hash(k->group, block));
	k->cache->frames[index].chain = *bucket;
	*bucket = index;
	frame_push(k->cache, index, k->taken & bit(i) ? FRAME_MAIN : FRAME_NEW);
}

static void publish_all(struct keeping *k)
{
	struct cache_shard *shard = shard_of_group(k->cache, k->group);

	pthread_mutex_lock(&k->cache->queue_lock);
	pthread_mutex_lock(&shard->lock);
	for (uint64_t left = k->wanted; left; left &= left - 1)
		publish(k, shard, (unsigned)__builtin_ctzll(left));
	pthread_mutex_unlock(&shard->lock);
	pthread_mutex_unlock(&k->cache->queue_lock);
}

void block_cache_keep(struct block_cache *cache, const struct block_run *run)
{
	struct keeping k;

	if (!block_cache_is_on(cache))
		return;
	k.cache = cache;
	k.run = run;
	k.group = group_hash(run->segment, run->first);
	k.wanted = k.known = k.taken = 0;
	leave_out_present(&k);
	if (atomic_load_explicit(&cache->full, memory_order_relaxed))
		leave_out_passing(&k);
	if (!k.wanted)
		return;
	take_frames(&k);
	fill_frames(&k);
	publish_all(&k);
}
