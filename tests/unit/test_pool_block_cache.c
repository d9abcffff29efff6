/* SPDX-License-Identifier: LGPL-3.0-or-later. The block cache alone. links: pool */
/* What it keeps and what it lets go, how much memory it takes, and many threads at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "failing_malloc.h"
#include "pool/block_cache.h"

#define MIB (1u << 20)

struct fixture {
	struct pool *pool;
	struct block_cache *cache;
	uint32_t frames;
};

static void start(struct fixture *f, uint64_t size)
{
	f->pool = calloc(1, sizeof(*f->pool));
	assert_int_equal(block_cache_create(f->pool), 0);
	f->cache = f->pool->cache;
	assert_int_equal(pool_cache_resize(f->pool, size), 0);
	f->frames = atomic_load(&f->cache->capacity);
}

static void finish(struct fixture *f)
{
	block_cache_destroy(f->pool);
	free(f->pool);
}

static void fill_block(uint8_t *block, uint64_t segment, uint32_t number)
{
	uint64_t *words = (uint64_t *)(void *)block;

	for (unsigned i = 0; i < BLOCK_SIZE / 8; i++)
		words[i] = segment * 31 + number * UINT64_C(0x9e3779b97f4a7c15) + i;
}

/* Whether the block is there, as it must be. */
static bool has(struct fixture *f, uint64_t segment, uint32_t number)
{
	static _Thread_local uint64_t got[BLOCK_SIZE / 8], want[BLOCK_SIZE / 8];
	uint64_t from = (uint64_t)number * BLOCK_SIZE;

	if (!block_cache_get(f->cache, segment, from, from + BLOCK_SIZE, (uint8_t *)got))
		return false;
	fill_block((uint8_t *)want, segment, number);
	assert_memory_equal(got, want, BLOCK_SIZE);
	return true;
}

/* A read: a block that is not there is kept. */
static bool touch(struct fixture *f, uint64_t segment, uint32_t number, bool large)
{
	static _Thread_local uint8_t block[BLOCK_SIZE];
	struct block_run run = {
		.segment = segment, .first = number, .count = 1, .passing = large, .bytes = block};

	if (has(f, segment, number))
		return true;
	fill_block(block, segment, number);
	block_cache_keep(f->cache, &run);
	return false;
}

static uint32_t misses(struct fixture *f, uint64_t segment, uint32_t count, bool large)
{
	uint32_t missed = 0;

	for (uint32_t i = 0; i < count; i++)
		missed += !touch(f, segment, i, large);
	return missed;
}

static uint64_t used(struct fixture *f)
{
	struct pool_status status = {0};

	block_cache_status(f->cache, &status);
	return status.cache_used / FRAME_BYTES;
}

/* --- what stays ----------------------------------------------------------------------------- */

static void test_what_fits_is_there_at_the_second_reading(void **state)
{
	struct fixture f;

	for (int large = 0; large < 2; large++) {
		start(&f, 8 * MIB);
		assert_true(f.frames > 2000);
		assert_int_equal(misses(&f, 1, f.frames, large), f.frames);
		assert_int_equal(used(&f), f.frames);
		assert_int_equal(misses(&f, 1, f.frames, large), 0);
		finish(&f);
	}
}

/* After something else was in use for long, up to its last frame. */
static void test_what_fits_takes_the_place_of_what_is_read_no_more(void **state)
{
	struct fixture f;

	for (int large = 0; large < 2; large++) {
		start(&f, 8 * MIB);
		for (uint32_t set = 0; set < 6; set++) {
			unsigned rounds = 0;

			while (misses(&f, set, f.frames / 10 * (10 - set), large))
				assert_true(++rounds < 20);
			for (unsigned i = 0; i < 9; i++)
				assert_int_equal(
					misses(&f, set, f.frames / 10 * (10 - set), large), 0);
		}
		finish(&f);
	}
}

static void test_what_is_read_once_costs_nothing_its_place(void **state)
{
	struct fixture f;

	for (int large = 0; large < 2; large++) {
		start(&f, 8 * MIB);
		misses(&f, 1, f.frames * 8 / 10, false);
		misses(&f, 1, f.frames * 8 / 10, false);
		assert_int_equal(misses(&f, 2, 10 * f.frames, large), 10 * f.frames);
		assert_int_equal(misses(&f, 1, f.frames * 8 / 10, false), 0);
		finish(&f);
	}
}

/* Something larger than the cache does not displace itself: nearly as much of it as fits is found
 * each time. */
static void test_what_does_not_fit_is_there_in_part(void **state)
{
	struct fixture f;

	for (int large = 0; large < 2; large++) {
		uint32_t missed = 0, count;

		start(&f, 8 * MIB);
		count = f.frames * 5 / 4;
		for (unsigned i = 0; i < 8; i++)
			missed = misses(&f, 1, count, large);
		assert_in_range(missed, count - f.frames, count * 3 / 10);
		finish(&f);
	}
}

/* A block that passes in a full cache costs no frame; the second time it comes to stay. */
static void test_large_reads_pass_by(void **state)
{
	struct fixture f;

	start(&f, MIB);
	misses(&f, 1, f.frames, false);
	assert_false(touch(&f, 2, 5, true));
	assert_int_equal(f.cache->queues[FRAME_NEW].count, 0);
	assert_int_equal(misses(&f, 1, 5, false), 0);
	assert_false(touch(&f, 2, 5, true) || touch(&f, 2, 5, true) || touch(&f, 2, 5, true));
	assert_true(has(&f, 2, 5));
	assert_int_equal(f.cache->queues[FRAME_MAIN].count, f.frames);
	finish(&f);
}

/* Of a block that one other read shares, as those that are not whole are. */
static void test_two_uses_on_probation_are_wanted(void **state)
{
	struct fixture f;

	start(&f, 8 * MIB);
	misses(&f, 1, f.frames, false);
	touch(&f, 2, 7, false);
	assert_true(has(&f, 2, 7));
	touch(&f, 2, 8, false);
	assert_true(has(&f, 2, 8) && has(&f, 2, 8));
	misses(&f, 3, f.frames, false);
	assert_false(has(&f, 2, 7));
	assert_true(has(&f, 2, 8));
	finish(&f);
}

static void test_the_search_for_a_frame_ends(void **state)
{
	struct fixture f;

	start(&f, 8 * MIB);
	for (unsigned i = 0; i < 5; i++)
		misses(&f, 1, f.frames, false);
	for (uint32_t i = 0; i < f.frames; i++) {
		touch(&f, 2, i, false);
		assert_false(has(&f, 2, i));
	}
	assert_int_equal(misses(&f, 1, f.frames, false), 0);
	finish(&f);
}

/* Its blocks are asked for no more, and leave. */
static void test_a_freed_segment_gives_its_frames_up(void **state)
{
	struct fixture f;
	unsigned rounds = 0;

	start(&f, 8 * MIB);
	for (uint64_t segment = 1; segment < 9; segment++)
		misses(&f, segment, f.frames / 8, false);
	for (uint64_t segment = 1; segment < 9; segment++)
		misses(&f, segment, f.frames / 8, false);
	while (misses(&f, 9, f.frames, false))
		assert_true(++rounds < 10);
	for (uint64_t segment = 1; segment < 9; segment++)
		assert_false(has(&f, segment, 0));
	finish(&f);
}

static void test_what_is_copied_from_stays(void **state)
{
	struct fixture f;

	start(&f, MIB);
	misses(&f, 1, f.frames, false);
	atomic_fetch_add(&f.cache->frames[7].pins, 1);
	for (uint32_t left = f.frames; left > 1;) {
		uint32_t frame = frame_take_used(f.cache);

		assert_int_not_equal(frame, 7);
		if (frame != NO_FRAME) {
			frame_free(f.cache, frame);
			left--;
		}
	}
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(frame_take_used(f.cache), NO_FRAME);
	assert_true(has(&f, 1, 7));
	atomic_fetch_sub(&f.cache->frames[7].pins, 1);
	while (frame_take_used(f.cache) == NO_FRAME)
		;
	assert_false(has(&f, 1, 7));
	assert_int_equal(f.cache->queues[FRAME_MAIN].count, 0);
	finish(&f);
}

/* --- many blocks at once -------------------------------------------------------------------- */

static void test_parts_of_blocks_and_of_runs(void **state)
{
	static uint8_t blocks[GROUP_BLOCKS][BLOCK_SIZE], got[GROUP_BYTES];
	struct block_run run = {.segment = 1, .first = 3 * GROUP_BLOCKS, .count = GROUP_BLOCKS};
	uint64_t start_at = 3 * GROUP_BYTES;
	struct fixture f;

	start(&f, 8 * MIB);
	run.bytes = blocks[0];
	for (unsigned i = 0; i < GROUP_BLOCKS; i++)
		fill_block(blocks[i], 1, run.first + i);
	block_cache_keep(f.cache, &run);
	block_cache_keep(f.cache, &run);
	assert_int_equal(used(&f), GROUP_BLOCKS);
	assert_int_equal(
		block_cache_get(f.cache, 1, start_at, start_at + GROUP_BYTES, got), UINT64_MAX);
	assert_memory_equal(got, blocks, GROUP_BYTES);
	memset(got, 0xee, sizeof(got));
	assert_int_equal(block_cache_get(f.cache, 1, start_at + 5000, start_at + 12289, got), 7);
	assert_memory_equal(got, (uint8_t *)blocks + 5000, 12289 - 5000);
	assert_int_equal(got[12289 - 5000], 0xee);
	assert_int_equal(block_cache_get(f.cache, 2, start_at, start_at + GROUP_BYTES, got), 0);
	assert_int_equal(block_cache_get(f.cache, 1, start_at - 2, start_at, got), 0);
	finish(&f);
}

/* --- memory --------------------------------------------------------------------------------- */

static uint64_t resident(void *region, size_t length)
{
	size_t pages = length / BLOCK_SIZE;
	unsigned char *in = malloc(pages);
	uint64_t count = 0;

	assert_int_equal(mincore(region, pages * BLOCK_SIZE, in), 0);
	for (size_t i = 0; i < pages; i++)
		count += in[i] & 1;
	free(in);
	return count * BLOCK_SIZE;
}

/* All that it has: its regions, as the kernel sees them, its buckets and itself. */
static uint64_t taken(struct fixture *f)
{
	struct block_cache *cache = f->cache;
	size_t frames = cache->frames_reserved, buckets = 0;

	for (unsigned i = 0; i < CACHE_SHARDS; i++)
		buckets += cache->shards[i].bucket_count * sizeof(uint32_t);
	return sizeof(*cache) + buckets + resident(cache->memory, frames * BLOCK_SIZE) +
	       resident(cache->frames, frames * sizeof(struct frame)) +
	       resident(cache->ghosts, frames * FRAME_GHOSTS * sizeof(uint64_t));
}

static void test_no_more_memory_than_its_size(void **state)
{
	static const uint64_t sizes[] = {100000, 1 << 20, 5000000, 16 << 20};
	struct fixture f;

	for (unsigned i = 0; i < 4; i++) {
		start(&f, sizes[i]);
		assert_true(taken(&f) <= sizes[i]);
		misses(&f, 1, 3 * f.frames, false);
		misses(&f, 2, 30000, true);
		assert_int_equal(used(&f), f.frames);
		assert_in_range(taken(&f), f.frames * BLOCK_SIZE, sizes[i]);
		assert_true(f.frames * (uint64_t)FRAME_BYTES > sizes[i] - sizes[i] / 2);
		finish(&f);
	}
}

static void test_shrinking_gives_memory_back(void **state)
{
	struct fixture f;
	uint32_t left = 0;

	start(&f, 16 * MIB);
	misses(&f, 1, f.frames, false);
	assert_int_equal(pool_cache_resize(f.pool, 4 * MIB), 0);
	assert_in_range(taken(&f), 3 * MIB, 4 * MIB);
	for (uint32_t i = 0; i < f.frames; i++)
		left += has(&f, 1, i);
	assert_int_equal(left, atomic_load(&f.cache->capacity));
	assert_int_equal(pool_cache_resize(f.pool, 8 * MIB), 0);
	for (uint32_t i = 0; i < f.frames; i++)
		left -= has(&f, 1, i);
	assert_int_equal(left, 0);
	f.frames = atomic_load(&f.cache->capacity);
	misses(&f, 2, f.frames, false);
	misses(&f, 2, f.frames, false);
	assert_int_equal(used(&f), f.frames);
	assert_in_range(taken(&f), 7 * MIB, 8 * MIB);
	finish(&f);
}

static void test_off(void **state)
{
	struct fixture f;

	start(&f, 0);
	assert_false(block_cache_is_on(f.cache));
	touch(&f, 1, 1, false);
	assert_false(has(&f, 1, 1));
	assert_int_equal(f.cache->frames_reserved, 0);
	assert_int_equal(pool_cache_resize(f.pool, MIB), 0);
	touch(&f, 1, 1, false);
	assert_true(has(&f, 1, 1));
	assert_int_equal(pool_cache_resize(f.pool, 1), 0);
	assert_false(block_cache_is_on(f.cache));
	assert_false(has(&f, 1, 1));
	touch(&f, 1, 1, false);
	assert_int_equal(used(&f), 0);
	assert_int_equal(taken(&f), sizeof(*f.cache));
	finish(&f);
}

static void test_no_memory_for_another_size(void **state)
{
	struct pool_status status = {0};
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	start(&f, MIB);
	misses(&f, 1, f.frames, false);
	for (unsigned i = 0; i < 2; i++) {
		fail_allocation = 1;
		assert_int_equal(pool_cache_resize(f.pool, i ? 8 * MIB : MIB / 2), -ENOMEM);
		fail_allocation = 0;
		assert_int_equal(misses(&f, 1, f.frames, false), 0);
	}
	assert_int_equal(pool_cache_resize(f.pool, UINT64_MAX), -ENOMEM);
	block_cache_status(f.cache, &status);
	assert_int_equal(status.cache_size, MIB);
	fail_allocation = 1;
	misses(&f, 2, 100, false);
	assert_int_equal(pool_cache_resize(f.pool, 0), 0);
	assert_int_equal(fail_allocation, 1);
	fail_allocation = 0;
	finish(&f);
}

/* --- threads -------------------------------------------------------------------------------- */

#define THREADS 3u

struct worker {
	struct fixture *f;
	pthread_t thread;
	uint32_t seed;
	atomic_bool *stop;
	uint64_t hits;
};

static void *work(void *data)
{
	struct worker *w = data;

	while (!atomic_load(w->stop)) {
		uint32_t number = (w->seed = w->seed * 1664525u + 1013904223u) >> 16;

		/* A few that are hot, and more than fit. */
		number = number & 1 ? number >> 1 & 63 : number >> 1 & 1023;
		w->hits += touch(w->f, 1 + (number & 3), number, number & 4);
	}
	return NULL;
}

/* Blocks are compared by touch(). */
static void test_many_threads_and_sizes(void **state)
{
	struct worker workers[THREADS];
	atomic_bool stop = false;
	struct fixture f;
	uint64_t hits = 0;

	start(&f, MIB);
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){.f = &f, .seed = i, .stop = &stop};
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < 200; i++) {
		assert_int_equal(pool_cache_resize(f.pool, i % 7 * (MIB / 4)), 0);
		usleep(1000);
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		hits += workers[i].hits;
	}
	assert_true(hits > 0);
	assert_int_equal(
		used(&f), f.cache->queues[FRAME_NEW].count + f.cache->queues[FRAME_MAIN].count);
	for (uint32_t i = 0; i < f.cache->high; i++)
		assert_int_equal(atomic_load(&f.cache->frames[i].pins), 0);
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_fits_is_there_at_the_second_reading),
		cmocka_unit_test(test_what_fits_takes_the_place_of_what_is_read_no_more),
		cmocka_unit_test(test_what_is_read_once_costs_nothing_its_place),
		cmocka_unit_test(test_what_does_not_fit_is_there_in_part),
		cmocka_unit_test(test_large_reads_pass_by),
		cmocka_unit_test(test_two_uses_on_probation_are_wanted),
		cmocka_unit_test(test_the_search_for_a_frame_ends),
		cmocka_unit_test(test_a_freed_segment_gives_its_frames_up),
		cmocka_unit_test(test_what_is_copied_from_stays),
		cmocka_unit_test(test_parts_of_blocks_and_of_runs),
		cmocka_unit_test(test_no_more_memory_than_its_size),
		cmocka_unit_test(test_shrinking_gives_memory_back),
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_no_memory_for_another_size),
		cmocka_unit_test(test_many_threads_and_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
