/* SPDX-License-Identifier: LGPL-3.0-or-later. Reading, rebuilding, repairing. links: pool */
/* Devices that are lost, blocks and pages that rot, requests and memory that fail. */
#include "test_pool_read.h"
#include "failing_malloc.h"

static int read_block(struct fixture *f, unsigned chunk, uint64_t block)
{
	return read_aligned(f, chunk_to_linear(&f->layout, chunk, block * BLOCK_SIZE), BLOCK_SIZE);
}

/* --- lost devices ------------------------------------------------------------------------- */

static bool data_chunk_in(const struct fixture *f, unsigned set)
{
	return set & ((1u << f->layout.data) - 1);
}

static void find_again(struct fixture *f)
{
	drain(f);
	for (unsigned c = 0; c < width(f); c++) {
		sim_revive_device(f->world, device_name(f, c));
		atomic_store(&member_of(f, c)->state, DEVICE_ACTIVE);
		atomic_store(&member_of(f, c)->failing, false);
	}
}

static void each_loss(const struct shape *shape, bool dropped)
{
	struct fixture f;

	start(&f, shape);
	for (unsigned set = 0; set < 1u << width(&f); set++) {
		unsigned lost = (unsigned)__builtin_popcount(set);
		bool survives = lost <= f.layout.parity || !data_chunk_in(&f, set);

		if (set % 2)
			forget_pages(&f);
		lose(&f, set, dropped);
		assert_int_equal(read_everything(&f), survives ? 0 : -EIO);
		find_again(&f);
	}
	assert_int_equal(TOTAL(&f, repaired), 0);
	finish(&f);
}

static void test_each_set_of_dead_devices(void **state)
{
	static const struct shape mirror = {1, 1, 4096, 80, 70, false};
	static const struct shape thrice = {2, 3, 4096, 30, 20, false};

	each_loss(&small, false);
	each_loss(&mirror, false);
	each_loss(&thrice, false);
}

static void test_each_set_of_dropped_devices(void **state)
{
	each_loss(&small, true);
}

/* They are asked when all others are not enough, and proven as any other. */
static void test_dropped_devices_that_are_there(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (unsigned set = 0; set < 1u << width(&f); set++) {
		forget_pages(&f);
		lose(&f, set, true);
		for (unsigned c = 0; c < width(&f); c++)
			sim_revive_device(f.world, device_name(&f, c));
		assert_int_equal(read_everything(&f), 0);
		find_again(&f);
	}
	lose(&f, 7, true);
	sim_revive_device(f.world, device_name(&f, 0));
	rot_block(&f, 0, 7);
	assert_int_equal(read_block(&f, 0, 7), -EIO);
	assert_int_equal(read_block(&f, 0, 6), 0);
	assert_int_equal(TOTAL(&f, repaired), 0);
	finish(&f);
}

static void test_long_reads_with_devices_lost(void **state)
{
	struct fixture f;

	start(&f, &wide);
	lose(&f, 1u << 1 | 1u << 5, false);
	assert_int_equal(read_everything(&f), 0);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(read_at(&f, draw((uint32_t)linear_bytes(&f) - 70000),
					 1 + draw(70000), draw(BLOCK_SIZE)),
			0);
	finish(&f);
}

/* --- rot ---------------------------------------------------------------------------------- */

/* What is missing of several chunks is computed from one reading of the others, which is also what
 * is delivered of these. */
static void test_a_long_read_reads_no_device_twice(void **state)
{
	static const struct shape shape = {4, 2, 131072, 16, 16, false};
	struct fixture f;
	uint64_t before;

	start(&f, &shape);
	for (unsigned lost = 1; lost < 16; lost++) {
		if (__builtin_popcount(lost) > 2)
			continue;
		lose(&f, lost, true);
		assert_int_equal(read_aligned(&f, 0, 1 << 20), 0); /* and the pages */
		before = reads_done(&f);
		assert_int_equal(read_aligned(&f, 1 << 20, 1 << 20), 0);
		assert_int_equal(reads_done(&f) - before, 4);
		find_again(&f);
	}
	finish(&f);
}

static void test_each_set_of_rotten_blocks(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (unsigned set = 1; set < 1u << width(&f); set++) {
		unsigned bad = (unsigned)__builtin_popcount(set);
		uint64_t block = draw(f.rows * f.layout.blocks);
		uint64_t repaired = TOTAL(&f, repaired);

		if (set % 2)
			forget_pages(&f);
		for (unsigned c = 0; c < width(&f); c++)
			if (set >> c & 1)
				rot_block(&f, c, block);
		for (unsigned c = 0; c < f.layout.data; c++) {
			bool hit = set >> c & 1;

			assert_int_equal(
				read_block(&f, c, block), hit && bad > f.layout.parity ? -EIO : 0);
			drain(&f);
			assert_int_equal(block_right(&f, c, block), !hit || bad <= f.layout.parity);
		}
		if (bad <= f.layout.parity)
			assert_int_equal(TOTAL(&f, repaired) - repaired,
				__builtin_popcount(set & ((1u << f.layout.data) - 1)));
		else
			assert_int_equal(TOTAL(&f, repaired), repaired);
		put_all(&f);
	}
	finish(&f);
}

static void test_repaired_blocks_serve_the_next_loss(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (unsigned round = 0; round < 50; round++) {
		unsigned a = round % f.layout.data, b = (a + 1) % f.layout.data;
		uint64_t block = draw(f.rows * f.layout.blocks);

		rot_block(&f, a, block);
		rot_block(&f, b, block);
		assert_int_equal(read_everything(&f), 0);
		drain(&f);
		assert_true(block_right(&f, a, block) && block_right(&f, b, block));
	}
	assert_int_equal(TOTAL(&f, checksum_errors) >= 100, 1);
	assert_int_equal(TOTAL(&f, repaired), 100);
	finish(&f);
}

/* Each block of a long piece is bad somewhere else, so that each has other sources. */
static void test_a_different_chunk_is_bad_in_each_block(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (uint64_t b = 0; b < f.rows * f.layout.blocks; b++) {
		rot_block(&f, (unsigned)b % width(&f), b);
		rot_block(&f, (unsigned)(b + 1 + draw(width(&f) - 1)) % width(&f), b);
	}
	assert_int_equal(read_everything(&f), 0);
	drain(&f);
	for (uint64_t b = 0; b < f.rows * f.layout.blocks; b++)
		for (unsigned c = 0; c < f.layout.data; c++)
			assert_true(block_right(&f, c, b));
	finish(&f);
}

static void test_a_dead_device_and_rot(void **state)
{
	struct fixture f;

	start(&f, &small);
	lose(&f, 1u << 2, true);
	for (uint64_t b = 0; b < f.rows * f.layout.blocks; b += 3)
		rot_block(&f, (unsigned)b % 2 ? 0 : 5, b);
	assert_int_equal(read_everything(&f), 0);
	rot_block(&f, 1, 7);
	rot_block(&f, 4, 7);
	assert_int_equal(read_block(&f, 2, 7), -EIO);
	assert_int_equal(read_block(&f, 1, 7), -EIO);
	assert_int_equal(read_block(&f, 0, 7), 0);
	assert_int_equal(read_block(&f, 2, 6), 0);
	finish(&f);
}

static void test_a_lost_write_is_seen(void **state)
{
	uint8_t zeros[BLOCK_SIZE] = {0};
	struct fixture f;

	start(&f, &small);
	put(&f, 0, block_at(&f, 0, 3), zeros, BLOCK_SIZE);
	put(&f, 1, block_at(&f, 1, 3), f.cells[1] + 4 * BLOCK_SIZE, BLOCK_SIZE);
	assert_int_equal(read_everything(&f), 0);
	drain(&f);
	assert_true(block_right(&f, 0, 3) && block_right(&f, 1, 3));
	finish(&f);
}

static void test_read_errors_are_counted_and_mended(void **state)
{
	struct fixture f;

	start(&f, &small);
	sim_fail_device_reads(f.world, device_name(&f, 1), -EIO);
	assert_int_equal(read_block(&f, 1, 5), 0);
	drain(&f);
	/* its own page's copy could not be read either, and was rewritten */
	assert_int_equal(atomic_load(&member_of(&f, 1)->read_errors), 2);
	assert_int_equal(atomic_load(&member_of(&f, 1)->repaired), 2);
	assert_int_equal(atomic_load(&member_of(&f, 1)->written), 2);
	assert_int_equal(read_block(&f, 1, 5), 0);
	assert_int_equal(atomic_load(&member_of(&f, 1)->read_errors), 3);
	finish(&f);
}

static void test_a_repair_that_fails_marks_the_device(void **state)
{
	struct fixture f;

	start(&f, &small);
	rot_block(&f, 1, 5);
	sim_fail_device_writes(f.world, device_name(&f, 1), -EIO);
	assert_int_equal(read_block(&f, 1, 5), 0);
	drain(&f);
	assert_true(atomic_load(&member_of(&f, 1)->failing));
	assert_int_equal(atomic_load(&member_of(&f, 1)->repaired), 0);
	finish(&f);
}

static void test_nothing_is_written_by_who_may_not(void **state)
{
	struct fixture f;

	start(&f, &small);
	rot_block(&f, 1, 5);
	rot(&f, 1, segment_page_offset(f.pool, f.segment, 1, 1, 0), BLOCK_SIZE);
	f.pool->read_only = true;
	assert_int_equal(read_block(&f, 1, 5), 0);
	f.pool->read_only = false;
	atomic_store(&f.pool->failure, -ESTALE);
	forget_pages(&f);
	assert_int_equal(read_block(&f, 1, 5), 0);
	drain(&f);
	assert_false(block_right(&f, 1, 5));
	assert_int_equal(sim_writes_and_flushes(f.engine), 0);
	finish(&f);
}

/* Any one request may fail in any way: right bytes all the same. */
static void test_each_request_fails_once(void **state)
{
	struct fixture f;
	uint64_t n;

	start(&f, &small);
	for (n = 1;; n++) {
		forget_pages(&f);
		rot_block(&f, 0, 9);
		sim_fail_nth(f.engine, n, n % 2 ? -EIO : -ENODEV);
		assert_int_equal(read_everything(&f), 0);
		drain(&f);
		put_all(&f);
		find_again(&f);
		if (!sim_failed(f.engine))
			break;
	}
	assert_true(n > 12);
	finish(&f);
}

static void test_memory_runs_out(void **state)
{
	long before = allocations;
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	for (uint64_t n = 1;; n++) {
		uint8_t *into;
		struct read_part part;
		int result;
		bool more;

		start(&f, &small);
		into = buffer_alloc(f.engine, linear_bytes(&f) + BLOCK_SIZE);
		part = (struct read_part){{SEGMENT, 100, linear_bytes(&f) - 100}, into};
		lose(&f, 1u << 1, true);
		rot_block(&f, 0, 9);
		fail_allocation = n;
		result = pool_read_wait(f.pool, &part, 1);
		more = !fail_allocation;
		fail_allocation = 0;
		assert_true(result == 0 || (more && result == -EIO));
		if (!result)
			assert_memory_equal(into, f.cells[0] + 100, f.layout.cell - 100);
		buffer_free(f.engine, into, linear_bytes(&f) + BLOCK_SIZE);
		drain(&f);
		finish(&f);
		assert_int_equal(allocations, before);
		if (!more)
			break;
		assert_true(n < 200);
	}
}

/* --- pages -------------------------------------------------------------------------------- */

/* The place of the n-th copy of a chunk's page. */
static uint64_t copy_at(const struct fixture *f, unsigned of, unsigned copy, unsigned *chunk)
{
	*chunk = (unsigned)page_copy_chunk(f->segment, of, copy);
	return segment_page_offset(f->pool, f->segment, *chunk, of, 0);
}

static void test_each_set_of_rotten_page_copies(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (unsigned of = 0; of < f.layout.data; of++) {
		for (unsigned set = 1; set < 8; set++) {
			uint8_t right[BLOCK_SIZE];
			unsigned chunk;

			memcpy(right, on_medium(&f, of, copy_at(&f, of, 0, &chunk)), BLOCK_SIZE);
			forget_pages(&f);
			for (unsigned copy = 0; copy < 3; copy++) {
				uint64_t at = copy_at(&f, of, copy, &chunk);

				if (set >> copy & 1)
					rot(&f, chunk, at + draw(BLOCK_SIZE), 1);
			}
			assert_int_equal(read_block(&f, of, 5), set == 7 ? -EIO : 0);
			drain(&f);
			/* those that were met on the way to a right one are mended */
			for (unsigned copy = 0; set != 7 && copy < 3; copy++) {
				uint64_t at = copy_at(&f, of, copy, &chunk);
				bool met = !(~set & ((1u << copy) - 1));

				if (met)
					assert_memory_equal(
						on_medium(&f, chunk, at), right, BLOCK_SIZE);
			}
			put_all(&f);
		}
	}
	finish(&f);
}

static void test_pages_of_others_are_not_believed(void **state)
{
	struct checksum_page page;
	struct fixture f;

	start(&f, &small);
	for (unsigned i = 0; i < 6; i++) {
		make_page(&f, 0, 0, &page);
		page.pool[3] ^= i == 0;
		page.segment += i == 1;
		page.generation += i == 2;
		page.chunk += i == 3;
		page.index += i == 4;
		page.count -= i == 5;
		memset(page.sums, 0, sizeof(page.sums));
		forget_pages(&f);
		put_page(&f, 0, 0, 0, &page);
		assert_int_equal(read_block(&f, 0, 5), 0);
		assert_int_equal(atomic_load(&member_of(&f, 0)->checksum_errors), i + 1);
		drain(&f);
		make_page(&f, 0, 0, &page);
		assert_memory_equal(
			on_medium(&f, 0, segment_page_offset(f.pool, f.segment, 0, 0, 0) + 512),
			on_medium(&f, 4, segment_page_offset(f.pool, f.segment, 4, 0, 0) + 512),
			1024);
	}
	finish(&f);
}

/* --- a segment that goes meanwhile -------------------------------------------------------- */

/* The slots of a freed segment stay taken while a repair may still write to them. */
static void test_a_repair_holds_the_slots(void **state)
{
	struct fixture f;
	struct member *member;

	start(&f, &small);
	member = member_of(&f, 1);
	member->slot_map[f.segment->row.chunks[1].slot] = 1;
	rot_block(&f, 1, 5);
	assert_int_equal(read_block(&f, 1, 5), 0);
	assert_true(atomic_load(&f.segment->references) > 2);
	f.segment->freed = true;
	segment_ref(f.segment);
	segment_remove(f.pool, f.segment);
	segment_put(f.segment);
	assert_true(atomic_load(&f.segment->references) > 1);
	drain(&f);
	assert_int_equal(atomic_load(&f.segment->references), 1);
	assert_int_equal(atomic_load(&member->repaired), 1);
	f.segment->freed = false;
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_set_of_dead_devices),
		cmocka_unit_test(test_each_set_of_dropped_devices),
		cmocka_unit_test(test_dropped_devices_that_are_there),
		cmocka_unit_test(test_long_reads_with_devices_lost),
		cmocka_unit_test(test_a_long_read_reads_no_device_twice),
		cmocka_unit_test(test_each_set_of_rotten_blocks),
		cmocka_unit_test(test_repaired_blocks_serve_the_next_loss),
		cmocka_unit_test(test_a_different_chunk_is_bad_in_each_block),
		cmocka_unit_test(test_a_dead_device_and_rot),
		cmocka_unit_test(test_a_lost_write_is_seen),
		cmocka_unit_test(test_read_errors_are_counted_and_mended),
		cmocka_unit_test(test_a_repair_that_fails_marks_the_device),
		cmocka_unit_test(test_nothing_is_written_by_who_may_not),
		cmocka_unit_test(test_each_request_fails_once),
		cmocka_unit_test(test_memory_runs_out),
		cmocka_unit_test(test_each_set_of_rotten_page_copies),
		cmocka_unit_test(test_pages_of_others_are_not_believed),
		cmocka_unit_test(test_a_repair_holds_the_slots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
