/* SPDX-License-Identifier: LGPL-3.0-or-later. Checking all of it. links: pool */
/* pool_check(), alone and after many readers have met rot. */
#include <fcntl.h>

#include "test_pool_read.h"
#include "failing_malloc.h"

#define HEAD_BLOCKS (2 + 2 * LABEL_BODY / BLOCK_SIZE)

/* --- pool_check() ------------------------------------------------------------------------- */

static void run_check(struct fixture *f, bool repair, struct pool_check_report *report)
{
	struct error error = {0};

	assert_int_equal(pool_check(f->pool, repair, report, NULL, NULL, &error), 0);
	sim_settle(f->world);
}

/* Heads of devices; headers, copies of pages, blocks. */
static uint64_t blocks_in_all(const struct fixture *f)
{
	uint64_t blocks = (uint64_t)f->rows * f->layout.blocks;
	uint64_t pages = (blocks + PAGE_ENTRIES - 1) / PAGE_ENTRIES;

	return width(f) * (HEAD_BLOCKS + 1 + blocks) +
	       pages * (f->layout.data * (f->layout.parity + 1) +
			       f->layout.parity * f->layout.parity);
}

static uint64_t progress_done, progress_total;

static bool note_progress(void *data, uint64_t done, uint64_t all)
{
	assert_true(done > progress_done && done <= all);
	progress_done = done;
	progress_total = all;
	return true;
}

static bool stop_at_once(void *data, uint64_t done, uint64_t all)
{
	++*(unsigned *)data;
	return false;
}

static void test_check_stops_when_it_is_told(void **state)
{
	struct pool_check_report report;
	struct error error = {0};
	unsigned calls = 0;
	struct fixture f;

	start(&f, &wide);
	assert_int_equal(pool_check(f.pool, false, &report, stop_at_once, &calls, &error), -EINTR);
	assert_int_equal(calls, 1);
	assert_true(report.blocks < blocks_in_all(&f));
	assert_string_equal(error.message, "interrupted: not all of it was read");
	finish(&f);
}

static void test_check_finds_nothing_wrong(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &wide);
	progress_done = progress_total = 0;
	assert_int_equal(pool_check(f.pool, true, &report, note_progress, NULL, NULL), 0);
	assert_int_equal(report.segments, 1);
	assert_int_equal(report.blocks, blocks_in_all(&f));
	assert_int_equal(report.bad_blocks + report.lost_blocks + report.repaired_blocks +
				 report.missing_chunks,
		0);
	assert_int_equal(progress_done, (uint64_t)f.rows * f.layout.blocks * width(&f));
	assert_int_equal(progress_done, progress_total);
	assert_int_equal(sim_writes_and_flushes(f.engine), 0);
	finish(&f);
}

static void spoil(struct fixture *f)
{
	rot(f, 0, segment_header_offset(f->pool, f->segment, 0), 4);
	rot(f, 5, segment_header_offset(f->pool, f->segment, 5) + 99, 4);
	rot(f, 1, segment_page_offset(f->pool, f->segment, 1, 1, 0) + 500, 4);
	rot(f, 4, segment_page_offset(f->pool, f->segment, 4, 1, 0) + 900, 4);
	rot(f, 4, segment_page_offset(f->pool, f->segment, 4, 5, 1) + 900, 4);
	for (unsigned i = 0; i < 300; i++)
		rot_block(f, i % 6, i * 3);
	rot_block(f, 3, 0);
}

static void test_check_repairs_all_that_can_be_proven(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &wide);
	spoil(&f);
	run_check(&f, false, &report);
	assert_int_equal(report.bad_blocks, 306);
	assert_int_equal(report.repaired_blocks, 0);
	assert_int_equal(report.lost_blocks, 0);
	drain(&f);
	assert_int_equal(sim_writes_and_flushes(f.engine), 0);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 306);
	assert_int_equal(report.repaired_blocks, 306);
	drain(&f);
	forget_pages(&f);
	run_check(&f, false, &report);
	assert_int_equal(report.bad_blocks, 0);
	assert_int_equal(report.blocks, blocks_in_all(&f));
	finish(&f);
}

static void test_check_counts_what_is_lost_and_missing(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &small);
	lose(&f, 1u << 1, true);
	run_check(&f, true, &report);
	assert_int_equal(report.missing_chunks, 1);
	assert_int_equal(report.bad_blocks + report.lost_blocks, 0);
	rot_block(&f, 2, 9);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 1);
	assert_int_equal(report.repaired_blocks, 1);
	rot_block(&f, 2, 9);
	rot_block(&f, 5, 9);
	rot_block(&f, 5, 11);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 3);
	assert_int_equal(report.lost_blocks, 3); /* the missing chunk's too */
	assert_int_equal(report.repaired_blocks, 1);
	finish(&f);
}

/* Whatever two chunks are missing, data and parity: nothing is bad, and nothing is lost. */
static void test_check_without_devices(void **state)
{
	for (unsigned i = 0; i < 6; i++) {
		for (unsigned j = i; j < 6; j++) {
			uint32_t missing = 1u << i | 1u << j;
			struct pool_check_report report;
			struct fixture f;

			start(&f, &small);
			lose(&f, missing, true);
			run_check(&f, true, &report);
			assert_int_equal(report.bad_blocks + report.lost_blocks, 0);
			assert_int_equal(
				report.missing_chunks, (unsigned)__builtin_popcount(missing));
			assert_int_equal(report.missing_blocks,
				report.missing_chunks * f.rows * f.layout.blocks);
			finish(&f);
		}
	}
}

/* With one rotten block besides, it and the missing data of its row are lost; missing parity is
 * not, the data that it was made of are. */
static void test_check_without_devices_finds_rot(void **state)
{
	for (unsigned i = 0; i < 6; i++) {
		for (unsigned j = i + 1; j < 6; j++) {
			uint32_t missing = 1u << i | 1u << j;

			for (unsigned rotten = 0; rotten < 6; rotten++) {
				struct pool_check_report report;
				struct fixture f;

				if (missing >> rotten & 1)
					continue;
				start(&f, &small);
				lose(&f, missing, true);
				rot_block(&f, rotten, 9);
				run_check(&f, true, &report);
				assert_int_equal(report.bad_blocks, 1);
				assert_int_equal(report.repaired_blocks, 0);
				assert_int_equal(report.lost_blocks, 1u + (i < 4) + (j < 4));
				finish(&f);
			}
		}
	}
}

static void test_check_finds_parity_that_is_another_code(void **state)
{
	struct pool_check_report report;
	struct checksum_page page;
	struct fixture f;

	start(&f, &small);
	f.cells[4][8 * BLOCK_SIZE + 5] ^= 1;
	f.sums[2 * segment_row_sums(f.segment) + 4 * f.layout.blocks] =
		crc32c(f.cells[4] + 8 * BLOCK_SIZE, BLOCK_SIZE);
	put_all(&f);
	make_page(&f, 4, 0, &page);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 1);
	assert_int_equal(report.repaired_blocks, 0);
	finish(&f);
}

static void test_check_of_an_open_segment(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &small);
	reopen(&f);
	keep_row(&f, 9);
	f.segment->row_done[9] = ROW_NOT_DONE;
	f.segment->row_done[4] = ROW_IS_LOST;
	rot(&f, 0, segment_header_offset(f.pool, f.segment, 0), 4);
	rot_block(&f, 3, 5 * f.layout.blocks);
	rot_block(&f, 3, 4 * f.layout.blocks);
	run_check(&f, true, &report);
	assert_int_equal(report.blocks, (HEAD_BLOCKS + 8 * f.layout.blocks) * width(&f));
	assert_int_equal(report.bad_blocks, 1);
	assert_int_equal(report.repaired_blocks, 1);
	assert_true(block_right(&f, 3, 5 * f.layout.blocks));
	f.segment->row.state = SEGMENT_RESERVED;
	finish(&f);
}

static void test_check_refuses_to_repair_read_only(void **state)
{
	struct pool_check_report report;
	struct error error = {0};
	struct fixture f;

	start(&f, &small);
	f.pool->read_only = true;
	assert_int_equal(pool_check(f.pool, true, &report, NULL, NULL, &error), -EROFS);
	assert_int_equal(error.code, -EROFS);
	assert_int_equal(pool_check(f.pool, false, &report, NULL, NULL, &error), 0);
	finish(&f);
}

static void test_check_with_too_little_memory(void **state)
{
	long before = allocations;
	struct pool_check_report report;
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	for (uint64_t n = 1; n < 400; n++) {
		int result;
		bool more;

		start(&f, &small);
		rot_block(&f, 0, 9);
		fail_allocation = n;
		result = pool_check(f.pool, true, &report, NULL, NULL, NULL);
		more = !fail_allocation;
		fail_allocation = 0;
		assert_true(result == 0 || (more && result == -ENOMEM));
		drain(&f);
		finish(&f);
		assert_int_equal(allocations, before);
		if (!more)
			return;
	}
	fail();
}

/* --- real threads ------------------------------------------------------------------------- */

static _Atomic unsigned wrong_reads; /* cmocka's assertions are for the main thread alone */

static void *reader(void *argument)
{
	struct fixture *f = argument;
	uint8_t *into = buffer_alloc(f->engine, 1 << 20), *want = malloc(1 << 20);
	uint64_t seed = (uint64_t)(uintptr_t)&into;

	for (unsigned i = 0; i < 300; i++) {
		uint64_t length, offset;
		struct read_part part;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		length = 1 + (seed >> 40) % (i % 4 ? 60000 : 1000000);
		offset = (seed >> 20) % (linear_bytes(f) - length);
		part = (struct read_part){{SEGMENT, offset, length}, into};
		expected(f, offset, length, want);
		if (pool_read_wait(f->pool, &part, 1) || memcmp(into, want, length))
			wrong_reads++;
		if (i % 50 == 0)
			forget_pages(f);
	}
	buffer_free(f->engine, into, 1 << 20);
	free(want);
	return NULL;
}

static void test_many_readers_and_rot(void **state)
{
	static const struct shape shape = {4, 2, 8192, 520, 510, true};
	struct pool_check_report report;
	pthread_t threads[4];
	uint8_t *junk;
	struct fixture f;

	if (uring_engine_create(NULL, &f.engine, NULL) == -EPERM)
		skip(); /* the kernel does not let this process use io_uring */
	engine_destroy(f.engine);
	start(&f, &shape);
	/* Whole blocks, past the page cache as the pool's own: beside direct writes, others may
	 * make them fail. */
	for (unsigned i = 0; i < width(&f); i++)
		assert_int_equal(fcntl(f.files[i], F_SETFL, O_RDWR | O_DIRECT), 0);
	junk = buffer_alloc(f.engine, BLOCK_SIZE);
	memset(junk, 0xa5, BLOCK_SIZE);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, reader, &f), 0);
	for (unsigned i = 0; i < 400; i++) {
		/* two chunks only, as rot may come faster than repairs */
		unsigned chunk = i % 2 ? 0 : 3;

		put(&f, chunk, block_at(&f, chunk, draw(1020)), junk, BLOCK_SIZE);
		usleep(500);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	buffer_free(f.engine, junk, BLOCK_SIZE);
	assert_int_equal(wrong_reads, 0);
	/* What nobody read since is still rotten. */
	assert_int_equal(pool_check(f.pool, true, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.lost_blocks, 0);
	atomic_store(&member_of(&f, 2)->state, DEVICE_DROPPED);
	atomic_store(&member_of(&f, 3)->state, DEVICE_DROPPED);
	assert_int_equal(pool_check(f.pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.missing_chunks, 2);
	atomic_store(&member_of(&f, 2)->state, DEVICE_ACTIVE);
	atomic_store(&member_of(&f, 3)->state, DEVICE_ACTIVE);
	assert_int_equal(pool_check(f.pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.bad_blocks, 0);
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_check_finds_nothing_wrong),
		cmocka_unit_test(test_check_stops_when_it_is_told),
		cmocka_unit_test(test_check_repairs_all_that_can_be_proven),
		cmocka_unit_test(test_check_counts_what_is_lost_and_missing),
		cmocka_unit_test(test_check_without_devices),
		cmocka_unit_test(test_check_without_devices_finds_rot),
		cmocka_unit_test(test_check_finds_parity_that_is_another_code),
		cmocka_unit_test(test_check_of_an_open_segment),
		cmocka_unit_test(test_check_refuses_to_repair_read_only),
		cmocka_unit_test(test_check_with_too_little_memory),
		cmocka_unit_test(test_many_readers_and_rot),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
