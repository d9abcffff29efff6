/* SPDX-License-Identifier: LGPL-3.0-or-later. Reading through the block cache. links: pool */
/* What is read from devices, and what is not; only what is proven is kept. */
#include "test_pool_read.h"
#include "failing_malloc.h"

#define MIB (1u << 20)

/* 16 MiB of data, an eighth of it in the cache where it is small. */
static const struct shape big = {4, 2, 131072, 32, 32, false};
#define PART (2 * MIB) /* of it */

struct one_read {
	struct pool_read read;
	struct read_part part;
	struct event event;
	bool done;
};

static void one_done(struct pool_read *read)
{
	struct one_read *one = read->data;

	one->done = true;
	event_signal(&one->event, read->result);
}

static void one_start(
	struct fixture *f, struct one_read *one, uint64_t offset, uint64_t length, uint8_t *into)
{
	*one = (struct one_read){.part = {{SEGMENT, offset, length}, into},
		.read = {.part_count = 1, .cached = true, .done = one_done, .data = one}};
	one->read.parts = &one->part;
	event_init(&one->event, f->engine);
	pool_read(f->pool, &one->read);
}

/* Reads and compares; into memory that is `shift` bytes off a block. */
static int read_cached(struct fixture *f, uint64_t offset, uint64_t length, unsigned shift)
{
	uint8_t *buffer =
		buffer_alloc(f->engine, length / BLOCK_SIZE * BLOCK_SIZE + 3 * BLOCK_SIZE);
	uint8_t *want = malloc(length + 1);
	struct one_read one;
	int result;

	memset(buffer, 0xee, length + shift + 1);
	one_start(f, &one, offset, length, buffer + shift);
	result = event_wait(&one.event);
	expected(f, offset, length, want);
	if (!result)
		assert_memory_equal(buffer + shift, want, length);
	assert_int_equal(buffer[shift + length], 0xee);
	free(want);
	buffer_free(f->engine, buffer, length / BLOCK_SIZE * BLOCK_SIZE + 3 * BLOCK_SIZE);
	return result;
}

static void read_all_of(struct fixture *f, uint64_t from, uint64_t to, uint64_t piece)
{
	for (uint64_t at = from; at < to; at += piece)
		assert_int_equal(read_cached(f, at, piece < to - at ? piece : to - at, 0), 0);
}

static void start_cached(struct fixture *f, const struct shape *shape, uint64_t size)
{
	start(f, shape);
	assert_int_equal(pool_cache_resize(f->pool, size), 0);
}

static uint64_t bytes_read(struct fixture *f)
{
	struct engine_counters counters;

	engine_counters(f->engine, &counters);
	return counters.read_bytes;
}

static struct pool_status status_of(struct fixture *f)
{
	struct pool_status status = {0};

	block_cache_status(f->pool->cache, &status);
	return status;
}

/* --- what is read from devices -------------------------------------------------------------- */

static void test_what_fits_is_read_once(void **state)
{
	static const uint64_t pieces[] = {BLOCK_SIZE, 10000, 65536, MIB};
	struct fixture f;

	for (unsigned i = 0; i < 4; i++) {
		uint64_t before;

		start_cached(&f, &big, 3 * MIB);
		read_all_of(&f, 0, PART, pieces[i]);
		before = reads_done(&f);
		assert_int_equal(status_of(&f).cache_misses + status_of(&f).cache_hits, PART);
		read_all_of(&f, 0, PART, pieces[i]);
		read_all_of(&f, 0, PART, 7777);
		assert_int_equal(reads_done(&f), before);
		finish(&f);
	}
}

static void test_counters_are_bytes(void **state)
{
	struct fixture f;

	start_cached(&f, &big, 3 * MIB);
	assert_int_equal(status_of(&f).cache_size, 3 * MIB);
	assert_int_equal(read_cached(&f, 100, 50, 0), 0);
	assert_int_equal(status_of(&f).cache_misses, 50);
	assert_int_equal(status_of(&f).cache_hits, 0);
	assert_int_equal(status_of(&f).cache_used, FRAME_BYTES);
	assert_int_equal(read_cached(&f, 1, 9999, 0), 0);
	assert_int_equal(status_of(&f).cache_hits, 4095);
	assert_int_equal(status_of(&f).cache_misses, 50 + 9999 - 4095);
	finish(&f);
}

/* The cache is full of other blocks, and large reads pass by until they are known. */
static void test_a_large_file_comes_to_stay(void **state)
{
	struct fixture f;
	uint64_t before, rounds = 0;

	start_cached(&f, &big, 3 * MIB);
	read_all_of(&f, 8 * MIB, 16 * MIB, 65536);
	read_all_of(&f, 8 * MIB, 16 * MIB, 65536);
	do {
		before = reads_done(&f);
		/* not at a block's start, as an extent may lie */
		read_all_of(&f, 100, PART + 100, MIB);
		assert_true(++rounds < 8);
	} while (reads_done(&f) > before);
	finish(&f);
}

static void test_a_scan_leaves_what_is_in_use(void **state)
{
	struct fixture f;
	uint64_t before;

	for (unsigned i = 0; i < 2; i++) {
		uint64_t piece = i ? MIB : 65536;

		start_cached(&f, &big, MIB * 4 / 3);
		read_all_of(&f, 0, MIB, 65536);
		read_all_of(&f, 0, MIB, 65536);
		before = bytes_read(&f);
		read_all_of(&f, MIB, 15 * MIB, piece);
		assert_true(bytes_read(&f) - before >= 14 * MIB);
		before = reads_done(&f);
		read_all_of(&f, 0, MIB, 65536);
		assert_int_equal(reads_done(&f), before);
		finish(&f);
	}
}

/* Of a run only what is missing is read, unless that takes another request. */
static void test_what_is_missing_is_read(void **state)
{
	struct fixture f;
	uint64_t before, bytes;

	start_cached(&f, &big, 3 * MIB);
	assert_int_equal(read_cached(&f, 0, MIB, 0), 0);
	assert_int_equal(read_cached(&f, 2 * MIB, 4 * BLOCK_SIZE, 0), 0);
	before = reads_done(&f);
	bytes = bytes_read(&f);
	assert_int_equal(read_cached(&f, MIB - 65536, 131072, 0), 0);
	assert_int_equal(reads_done(&f) - before, 1);
	assert_int_equal(bytes_read(&f) - bytes, 65536);
	/* across four blocks that are there */
	assert_int_equal(read_cached(&f, 2 * MIB - 4096, 7 * BLOCK_SIZE, 0), 0);
	assert_int_equal(reads_done(&f) - before, 3);
	assert_int_equal(bytes_read(&f) - bytes, 65536 + 7 * BLOCK_SIZE);
	finish(&f);
}

static void test_hits_end_inside_the_call(void **state)
{
	uint8_t *into;
	struct one_read one;
	struct fixture f;

	start_cached(&f, &small, MIB);
	into = malloc(70000);
	assert_int_equal(read_cached(&f, 5000, 70000, 0), 0);
	lose(&f, 0x3f, false);
	one_start(&f, &one, 5000, 70000, into);
	assert_true(one.done);
	assert_int_equal(one.read.result, 0);
	free(into);
	finish(&f);
}

static void test_off_is_as_if_it_were_not_there(void **state)
{
	struct fixture f;
	uint64_t before;

	start_cached(&f, &small, MIB);
	read_all_of(&f, 0, 100000, 10000);
	assert_int_equal(pool_cache_resize(f.pool, 0), 0);
	before = bytes_read(&f);
	read_all_of(&f, 0, 98304, 16384);
	read_all_of(&f, 0, 98304, 16384);
	assert_int_equal(bytes_read(&f) - before, 2 * 98304);
	assert_int_equal(status_of(&f).cache_used + status_of(&f).cache_size, 0);
	finish(&f);
}

/* What checks, loads or moves asks devices, and keeps nothing. */
static void test_who_does_not_ask_for_it_is_not_served_by_it(void **state)
{
	struct read_part part = {{SEGMENT, 0, 65536}, NULL};
	struct fixture f;
	uint64_t before;

	start_cached(&f, &small, MIB);
	assert_int_equal(read_aligned(&f, 0, 65536), 0);
	assert_int_equal(status_of(&f).cache_used, 0);
	assert_int_equal(read_cached(&f, 0, 65536, 0), 0);
	before = bytes_read(&f);
	assert_int_equal(read_aligned(&f, 0, 65536), 0);
	assert_int_equal(pool_read_wait(f.pool, &part, 1), 0);
	assert_int_equal(bytes_read(&f) - before, 2 * 65536);
	finish(&f);
}

static void test_a_hit_allocates_nothing(void **state)
{
	struct one_read one;
	uint8_t *into;
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	start_cached(&f, &small, MIB);
	into = malloc(65536);
	assert_int_equal(read_cached(&f, 0, 65536, 0), 0);
	fail_allocation = 1;
	one_start(&f, &one, 0, 65536, into);
	assert_int_equal(fail_allocation, 1);
	fail_allocation = 0;
	assert_true(one.done && !one.read.result);
	free(into);
	finish(&f);
}

/* --- what is kept --------------------------------------------------------------------------- */

static void test_mended_blocks_are_kept_as_they_should_be(void **state)
{
	struct fixture f;
	uint64_t before;

	start_cached(&f, &small, MIB);
	rot_block(&f, 0, 1);
	rot_block(&f, 1, 2);
	lose(&f, 1u << 2, true);
	assert_int_equal(read_cached(&f, 0, 200000, 0), 0);
	assert_true(TOTAL(&f, checksum_errors) >= 2);
	drain(&f);
	before = reads_done(&f);
	assert_int_equal(read_cached(&f, 0, 200000, 1), 0);
	assert_int_equal(reads_done(&f), before);
	finish(&f);
}

/* Three of six are bad: what can be read is, by itself; the others never are. */
static void test_lost_blocks_are_not_kept(void **state)
{
	struct fixture f;

	start_cached(&f, &small, MIB);
	for (unsigned c = 0; c < 3; c++)
		rot_block(&f, c, 1);
	assert_int_equal(read_cached(&f, 0, 65536, 0), -EIO);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(read_cached(&f, i * BLOCK_SIZE, BLOCK_SIZE, 0),
			i % 4 == 1 && i < 12 ? -EIO : 0);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(read_cached(&f, i * BLOCK_SIZE, BLOCK_SIZE, 0),
			i % 4 == 1 && i < 12 ? -EIO : 0);
	finish(&f);
}

static void test_rows_in_memory_stay_out(void **state)
{
	struct fixture f;

	start_cached(&f, &small, MIB);
	reopen(&f);
	keep_row(&f, 2);
	assert_int_equal(read_cached(&f, 2 * segment_row_bytes(f.segment), 65536, 0), 0);
	assert_int_equal(status_of(&f).cache_used, 0);
	assert_int_equal(read_cached(&f, 0, 65536, 0), 0);
	assert_int_equal(status_of(&f).cache_used, 16 * FRAME_BYTES);
	finish(&f);
}

static void test_what_is_not_there_is_not_found(void **state)
{
	static uint8_t into[BLOCK_SIZE];
	struct one_read one;
	struct fixture f;

	start_cached(&f, &small, MIB);
	assert_int_equal(read_cached(&f, linear_bytes(&f) - 10, 10, 0), 0);
	one_start(&f, &one, linear_bytes(&f) - 10, 11, into);
	assert_int_equal(event_wait(&one.event), -EIO);
	one_start(&f, &one, UINT64_MAX - 5, 11, into);
	assert_int_equal(event_wait(&one.event), -EIO);
	/* where the number of the block would be that of the last one */
	one_start(&f, &one, linear_bytes(&f) - 10 + (UINT64_C(1) << 44), 10, into);
	assert_int_equal(event_wait(&one.event), -EIO);
	finish(&f);
}

static void test_any_extent_any_memory_any_size(void **state)
{
	struct fixture f;

	start_cached(&f, &wide, MIB);
	for (unsigned i = 0; i < 1500; i++) {
		uint64_t offset = draw(i % 2 ? 300000 : (uint32_t)linear_bytes(&f));
		uint64_t length = 1 + draw(i % 5 ? 20000 : 400000);

		if (length > linear_bytes(&f) - offset)
			length = linear_bytes(&f) - offset;
		if (i % 3 == 0)
			offset = offset / BLOCK_SIZE * BLOCK_SIZE;
		assert_int_equal(read_cached(&f, offset, length, i % 4 ? 0 : draw(BLOCK_SIZE)), 0);
		if (i % 100 == 99)
			assert_int_equal(pool_cache_resize(f.pool, draw(3 * MIB)), 0);
		assert_true(status_of(&f).cache_used <= status_of(&f).cache_size);
	}
	assert_true(status_of(&f).cache_hits > MIB);
	assert_int_equal(TOTAL(&f, checksum_errors) + TOTAL(&f, read_errors), 0);
	finish(&f);
}

/* --- threads -------------------------------------------------------------------------------- */

#define READERS 3u

struct read_thread {
	struct fixture *f;
	pthread_t thread;
	unsigned number;
};

static void *thread_main(void *data)
{
	struct read_thread *r = data;
	uint32_t seed = r->number;

	for (unsigned i = 0; i < 400; i++) {
		uint64_t offset = (seed = seed * 1664525u + 1013904223u) >> 8;

		offset %= i % 4 ? 200000 : linear_bytes(r->f) - 300000;
		assert_int_equal(
			read_cached(r->f, offset, 1 + (seed >> 4) % (i % 8 ? 30000 : 300000),
				seed & 1 ? 0 : 512),
			0);
	}
	return NULL;
}

static void test_threads_read_while_the_size_changes(void **state)
{
	static const struct shape shape = {4, 2, 8192, 520, 510, true};
	struct read_thread readers[READERS];
	struct fixture f;

	start_cached(&f, &shape, MIB);
	for (unsigned i = 0; i < READERS; i++) {
		readers[i] = (struct read_thread){.f = &f, .number = i};
		assert_int_equal(
			pthread_create(&readers[i].thread, NULL, thread_main, &readers[i]), 0);
	}
	for (unsigned i = 0; i < 50; i++) {
		assert_int_equal(pool_cache_resize(f.pool, i % 5 * (MIB / 3)), 0);
		usleep(2000);
	}
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(readers[i].thread, NULL);
	assert_int_equal(TOTAL(&f, checksum_errors) + TOTAL(&f, read_errors), 0);
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_fits_is_read_once),
		cmocka_unit_test(test_counters_are_bytes),
		cmocka_unit_test(test_a_large_file_comes_to_stay),
		cmocka_unit_test(test_a_scan_leaves_what_is_in_use),
		cmocka_unit_test(test_what_is_missing_is_read),
		cmocka_unit_test(test_hits_end_inside_the_call),
		cmocka_unit_test(test_off_is_as_if_it_were_not_there),
		cmocka_unit_test(test_who_does_not_ask_for_it_is_not_served_by_it),
		cmocka_unit_test(test_a_hit_allocates_nothing),
		cmocka_unit_test(test_mended_blocks_are_kept_as_they_should_be),
		cmocka_unit_test(test_lost_blocks_are_not_kept),
		cmocka_unit_test(test_rows_in_memory_stay_out),
		cmocka_unit_test(test_what_is_not_there_is_not_found),
		cmocka_unit_test(test_any_extent_any_memory_any_size),
		cmocka_unit_test(test_threads_read_while_the_size_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
