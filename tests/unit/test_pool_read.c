/* SPDX-License-Identifier: LGPL-3.0-or-later. Reading. links: pool */
/* Where an extent lies, closed segments and open ones, and what the pool itself wrote. */
#include "test_pool_read.h"
#include "failing_malloc.h"

/* --- where an extent lies ----------------------------------------------------------------- */

/* Cuts cover each byte once, stay within a span and a page, and name the right place. */
static void check_cuts(const struct layout *layout, uint64_t offset, uint64_t length)
{
	uint8_t *seen = calloc(1, length + 1);
	struct cutter cutter;
	struct cut cut;

	cutter_init(&cutter, layout, offset, length);
	while (cutter_next(&cutter, &cut)) {
		uint64_t first = cut.from / BLOCK_SIZE, last = (cut.to - 1) / BLOCK_SIZE;

		assert_true(cut.from < cut.to && cut.chunk < layout->data);
		assert_true(last - first < SPAN_BLOCKS);
		assert_int_equal(first / PAGE_ENTRIES, last / PAGE_ENTRIES);
		for (uint64_t at = cut.from; at < cut.to; at++) {
			uint64_t linear = chunk_to_linear(layout, cut.chunk, at);
			uint64_t row = linear / layout->cell / layout->data;

			assert_int_equal(linear / layout->cell % layout->data, cut.chunk);
			assert_int_equal(row * layout->cell + linear % layout->cell, at);
			assert_true(linear >= offset && linear < offset + length);
			assert_int_equal(seen[linear - offset]++, 0);
		}
	}
	for (uint64_t i = 0; i < length; i++)
		assert_int_equal(seen[i], 1);
	free(seen);
}

static void test_cuts_cover_the_extent_once(void **state)
{
	static const struct layout layouts[] = {{.data = 4, .parity = 2, .cell = 8192},
		{.data = 1, .parity = 1, .cell = 4096}, {.data = 7, .parity = 2, .cell = 131072}};

	for (unsigned l = 0; l < 3; l++) {
		uint64_t row = (uint64_t)layouts[l].data * layouts[l].cell;

		check_cuts(&layouts[l], 0, row);
		check_cuts(&layouts[l], 999 * (uint64_t)BLOCK_SIZE * layouts[l].data, 3 * row);
		for (unsigned i = 0; i < 100; i++)
			check_cuts(&layouts[l], draw((uint32_t)(4 * row)),
				1 + draw((uint32_t)(3 * row)));
	}
}

static unsigned count_cuts(const struct layout *layout, uint64_t offset, uint64_t length)
{
	struct cutter cutter;
	struct cut cut;
	unsigned count = 0;

	cutter_init(&cutter, layout, offset, length);
	while (cutter_next(&cutter, &cut))
		count++;
	return count;
}

static void test_neighbouring_rows_are_one_cut(void **state)
{
	struct layout layout = {.data = 4, .parity = 2, .cell = 131072};

	assert_int_equal(count_cuts(&layout, 0, 1 << 20), 4);
	assert_int_equal(count_cuts(&layout, 4096, 1 << 20), 4);
	assert_int_equal(count_cuts(&layout, 4095, 1 << 20), 5);
	assert_int_equal(count_cuts(&layout, 131072 * 3, 4096), 1);
	assert_int_equal(count_cuts(&layout, 5, 0), 0);
}

/* --- healthy ------------------------------------------------------------------------------ */

static void test_any_extent_and_any_memory(void **state)
{
	struct fixture f;

	start(&f, &wide);
	assert_int_equal(read_everything(&f), 0);
	for (unsigned i = 0; i < 300; i++) {
		uint64_t offset = draw((uint32_t)linear_bytes(&f));
		uint64_t length = draw(i % 3 ? 20000 : 400000);

		if (length > linear_bytes(&f) - offset)
			length = linear_bytes(&f) - offset;
		if (i % 4 == 0)
			offset = offset / BLOCK_SIZE * BLOCK_SIZE;
		assert_int_equal(
			read_at(&f, offset, length, i % 2 ? BLOCK_SIZE / 2 : draw(BLOCK_SIZE)), 0);
		/* the destination in step with the offset: ragged ends, direct in between */
		assert_int_equal(read_at(&f, offset, length,
					 (unsigned)(offset + BLOCK_SIZE / 2) % BLOCK_SIZE),
			0);
	}
	assert_int_equal(TOTAL(&f, checksum_errors) + TOTAL(&f, read_errors), 0);
	finish(&f);
}

static void test_a_read_takes_few_requests(void **state)
{
	static const struct shape shape = {4, 2, 131072, 16, 16, false};
	struct fixture f;
	uint64_t before;

	start(&f, &shape);
	assert_int_equal(read_aligned(&f, 0, 1 << 20), 0);
	before = reads_done(&f);
	assert_int_equal(before, 8); /* and four pages */
	assert_int_equal(read_aligned(&f, 1 << 20, 1 << 20), 0);
	assert_int_equal(reads_done(&f) - before, 4);
	assert_int_equal(read_aligned(&f, 77 * BLOCK_SIZE, BLOCK_SIZE), 0);
	assert_int_equal(reads_done(&f) - before, 5);
	finish(&f);
}

static void test_a_small_read_allocates_once(void **state)
{
	struct read_part part = {{SEGMENT, 0, BLOCK_SIZE}, NULL};
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	start(&f, &small);
	part.into = buffer_alloc(f.engine, BLOCK_SIZE);
	assert_int_equal(pool_read_wait(f.pool, &part, 1), 0);
	fail_allocation = 1000;
	assert_int_equal(pool_read_wait(f.pool, &part, 1), 0);
	assert_int_equal(fail_allocation, 999);
	fail_allocation = 0;
	buffer_free(f.engine, part.into, BLOCK_SIZE);
	finish(&f);
}

static void test_many_parts(void **state)
{
	struct read_part parts[40];
	uint8_t *buffer, *want;
	struct fixture f;

	start(&f, &small);
	buffer = buffer_alloc(f.engine, 40 * 9000);
	want = malloc(9000);
	for (unsigned i = 0; i < 40; i++)
		parts[i] = (struct read_part){{SEGMENT, draw(500000), i ? draw(9000) : 0},
			i % 8 == 3 ? NULL : buffer + i * 9000};
	assert_int_equal(pool_read_wait(f.pool, parts, 40), 0);
	for (unsigned i = 0; i < 40; i++) {
		expected(&f, parts[i].extent.offset, parts[i].extent.length, want);
		if (parts[i].into)
			assert_memory_equal(parts[i].into, want, parts[i].extent.length);
	}
	buffer_free(f.engine, buffer, 40 * 9000);
	free(want);
	finish(&f);
}

static void test_what_is_not_there(void **state)
{
	struct read_part none = {{SEGMENT + 1, 0, 4096}, NULL};
	struct fixture f;

	start(&f, &small);
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	assert_int_equal(pool_read_wait(f.pool, NULL, 0), 0);
	assert_int_equal(read_aligned(&f, linear_bytes(&f) - 10, 10), 0);
	none.extent = (struct extent){SEGMENT, linear_bytes(&f) - 10, 11};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	none.extent = (struct extent){SEGMENT, UINT64_MAX - 5, 11};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	none.extent = (struct extent){SEGMENT, 5, UINT64_MAX - 4};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	none.extent = (struct extent){SEGMENT, UINT64_MAX - 5, 0};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), 0);
	finish(&f);
}

static void test_a_small_cache_gives_pages_up(void **state)
{
	struct fixture f;

	start(&f, &wide);
	page_cache_destroy(f.pool);
	assert_int_equal(page_cache_create(f.pool, 1), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(
			read_aligned(&f, draw((uint32_t)linear_bytes(&f) - 99999), 99999), 0);
	assert_int_equal(read_everything(&f), 0);
	finish(&f);
}

/* --- rows in memory, open segments -------------------------------------------------------- */

static void test_rows_in_memory_complete_at_once(void **state)
{
	struct fixture f;

	start(&f, &small);
	reopen(&f);
	for (uint32_t i = 0; i < f.rows; i++)
		keep_row(&f, i);
	memset(f.segment->row_done, 0, f.rows);
	f.segment->row_done[3] = ROW_IS_DONE;
	f.segment->row_done[4] = ROW_IS_LOST;
	lose(&f, 0x3f, false);
	assert_int_equal(read_everything(&f), 0);
	assert_int_equal(read_at(&f, 12345, 77777, 5), 0);
	assert_int_equal(reads_done(&f) + TOTAL(&f, read_errors), 0);
	finish(&f);
}

static void test_open_rows_by_their_sums(void **state)
{
	struct fixture f;

	start(&f, &small);
	reopen(&f);
	keep_row(&f, 2);
	keep_row(&f, 7);
	f.segment->row_done[7] = ROW_NOT_DONE;
	rot_block(&f, 1, 0);
	rot_block(&f, 2, 0);
	rot_block(&f, 0, 2 * f.layout.blocks); /* in a row that is in memory */
	assert_int_equal(read_everything(&f), 0);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(read_at(&f, draw((uint32_t)linear_bytes(&f) - 99999), draw(99999),
					 draw(BLOCK_SIZE)),
			0);
	drain(&f);
	assert_true(block_right(&f, 1, 0) && block_right(&f, 2, 0));
	assert_false(block_right(&f, 0, 2 * f.layout.blocks));
	f.segment->row_done[5] = ROW_IS_LOST;
	assert_int_equal(read_everything(&f), -EIO);
	f.segment->row_done[5] = ROW_NOT_DONE;
	assert_int_equal(read_everything(&f), -EIO);
	assert_int_equal(read_aligned(&f, 0, 5 * segment_row_bytes(f.segment)), 0);
	finish(&f);
}

static void test_a_reserved_segment_has_nothing(void **state)
{
	struct fixture f;

	start(&f, &small);
	f.segment->row.state = SEGMENT_RESERVED;
	assert_int_equal(read_aligned(&f, 0, 4096), -EIO);
	finish(&f);
}

/* One block from devices each time, whatever the caches have; none where all is in memory, and an
 * error where it is lost. */
static void test_samples(void **state)
{
	struct fixture f;
	uint64_t before;

	start(&f, &small);
	assert_int_equal(pool_read_sample(f.pool), 0); /* and the page */
	for (unsigned i = 0; i < 3; i++) {
		before = reads_done(&f);
		assert_int_equal(pool_read_sample(f.pool), 0);
		assert_int_equal(reads_done(&f) - before, 1);
	}
	rot_block(&f, 0, 0);
	assert_int_equal(pool_read_sample(f.pool), 0);
	drain(&f);
	assert_true(block_right(&f, 0, 0));
	lose(&f, 0x3f, false);
	assert_int_equal(pool_read_sample(f.pool), -EIO);
	f.segment->row.state = SEGMENT_RESERVED;
	assert_int_equal(pool_read_sample(f.pool), -ENOENT);
	finish(&f);
}

static void test_samples_of_open_segments(void **state)
{
	struct fixture f;

	start(&f, &small);
	reopen(&f);
	assert_int_equal(pool_read_sample(f.pool), 0);
	assert_int_equal(reads_done(&f), 1); /* no page: its checksums are in memory */
	keep_row(&f, 0);
	assert_int_equal(pool_read_sample(f.pool), -ENOENT);
	finish(&f);
}

/* --- what the pool itself wrote ----------------------------------------------------------- */

#define NAMES 7u
static const char *const names[NAMES] = {"a", "b", "c", "d", "e", "f", "g"};

struct written {
	struct sim_world *world;
	struct engine *engine;
	struct pool *pool;
	uint8_t *bytes;
	size_t length;
	struct extent extents[64];
	unsigned count;
	unsigned closing; /* writes that completed while its label said "closed" */
};

static void open_written(struct written *w)
{
	struct pool_open_options options = {
		.paths = names, .path_count = NAMES, .host = "here", .page_cache = 1 << 20};
	struct error error = {0};

	if (pool_open(w->engine, &options, &w->pool, &error))
		fail_msg("%s: %s", error.object, error.message);
}

static void create_written(struct written *w)
{
	struct pool_create_device devices[NAMES];
	struct pool_create_options options = {.name = "tank",
		.data = 4,
		.parity = 2,
		.cell = 16384,
		.devices = devices,
		.device_count = NAMES,
		.host = "here",
		.slot_rows = 16,
		.journal_size = 4 << 20};
	struct error error = {0};

	memset(w, 0, sizeof(*w));
	log_set_sink(quiet);
	assert_int_equal(sim_world_create(&(struct sim_options){1, true}, &w->world), 0);
	assert_int_equal(sim_engine_create(w->world, &w->engine), 0);
	for (unsigned i = 0; i < NAMES; i++) {
		assert_int_equal(sim_add_device(w->world, names[i], 64 << 20), 0);
		devices[i] = (struct pool_create_device){.path = names[i]};
	}
	if (pool_create(w->engine, &options, &error))
		fail_msg("%s: %s", error.object, error.message);
	open_written(w);
}

static void append_written(struct written *w, size_t length)
{
	struct stream *stream;

	w->bytes = malloc(length);
	w->length = length;
	for (size_t i = 0; i < length; i++)
		w->bytes[i] = (uint8_t)draw(256);
	assert_int_equal(stream_open(w->pool, 1, &stream), 0);
	for (size_t at = 0; at < length;) {
		size_t n = length - at < 300001 ? length - at : 300001;
		struct iovec iov = {w->bytes + at, n};
		unsigned count = 8;

		assert_true(w->count + 8 <= 64);
		assert_int_equal(
			stream_append(stream, &iov, 1, n, 0, w->extents + w->count, &count), 0);
		w->count += count;
		at += n;
	}
	stream_close(stream);
}

static int read_written(struct written *w)
{
	uint8_t *back = malloc(w->length);
	struct read_part parts[64];
	size_t at = 0;
	int result;

	for (unsigned i = 0; i < w->count; i++) {
		parts[i] = (struct read_part){w->extents[i], back + at};
		at += w->extents[i].length;
	}
	assert_int_equal(at, w->length);
	result = pool_read_wait(w->pool, parts, w->count);
	if (!result)
		assert_memory_equal(back, w->bytes, w->length);
	free(back);
	return result;
}

static void commit_written(struct written *w)
{
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(pool_settle(w->pool, w->extents, w->count), 0);
	assert_int_equal(txn_begin(w->pool, NULL, &txn), 0);
	assert_int_equal(txn_refer(txn, w->extents, w->count), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(w->pool, lsn), 0);
}

static void check_written(struct written *w, uint64_t missing)
{
	struct pool_check_report report;

	assert_int_equal(pool_check(w->pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.bad_blocks + report.lost_blocks, 0);
	assert_true(report.segments >= 3 && report.blocks > w->length / BLOCK_SIZE);
	assert_int_equal(report.missing_chunks > 0, missing);
}

static void end_written(struct written *w)
{
	pool_abandon(w->pool);
	free(w->bytes);
	engine_destroy(w->engine);
	sim_world_destroy(w->world);
}

/* The same bytes from memory, by the sums of open segments, by pages, and after opening again. */
static void test_what_streams_wrote_reads_back_at_every_stage(void **state)
{
	struct written w;

	create_written(&w);
	append_written(&w, 3000000);
	assert_int_equal(read_written(&w), 0);
	commit_written(&w);
	assert_int_equal(read_written(&w), 0);
	check_written(&w, 0);
	assert_int_equal(pool_maintain(w.pool), 0);
	assert_int_equal(read_written(&w), 0);
	check_written(&w, 0);
	assert_int_equal(pool_close(w.pool, NULL), 0);
	open_written(&w);
	assert_int_equal(read_written(&w), 0);
	check_written(&w, 0);
	end_written(&w);
}

static void test_what_streams_wrote_survives_dead_devices(void **state)
{
	struct written w;

	create_written(&w);
	append_written(&w, 3000000);
	commit_written(&w);
	sim_kill_device(w.world, "b");
	assert_int_equal(read_written(&w), 0);
	assert_int_equal(pool_maintain(w.pool), 0);
	sim_kill_device(w.world, "f");
	assert_int_equal(read_written(&w), 0);
	assert_int_equal(pool_maintain(w.pool), 0);
	check_written(&w, 1);
	end_written(&w);
}

/* Called before a write completes: behind a label that says "closed" no repair comes. */
static void no_repair_comes(void *data)
{
	struct written *w = data;

	if (w->pool->label.state != LABEL_ASSIGNED)
		return;
	w->closing++;
	assert_int_equal(atomic_load(&page_cache_repairs(w->pool)->count), 0);
}

static void test_a_pool_is_closed_behind_its_repairs(void **state)
{
	struct segment *segment;
	struct written w;

	create_written(&w);
	append_written(&w, 3000000);
	commit_written(&w);
	assert_int_equal(pool_maintain(w.pool), 0);
	sim_settle(w.world);
	segment = segment_get(w.pool, w.extents[0].segment);
	sim_rot(w.world, names[segment->row.chunks[0].device],
		segment_block_offset(w.pool, segment, 0, 0), BLOCK_SIZE, 1);
	segment_put(segment);
	assert_int_equal(read_written(&w), 0);
	sim_watch_writes(w.engine, no_repair_comes, &w);
	assert_int_equal(pool_close(w.pool, NULL), 0);
	sim_watch_writes(w.engine, NULL, NULL);
	assert_true(w.closing > 0);
	open_written(&w);
	check_written(&w, 0);
	end_written(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cuts_cover_the_extent_once),
		cmocka_unit_test(test_neighbouring_rows_are_one_cut),
		cmocka_unit_test(test_any_extent_and_any_memory),
		cmocka_unit_test(test_a_read_takes_few_requests),
		cmocka_unit_test(test_a_small_read_allocates_once),
		cmocka_unit_test(test_many_parts),
		cmocka_unit_test(test_what_is_not_there),
		cmocka_unit_test(test_a_small_cache_gives_pages_up),
		cmocka_unit_test(test_rows_in_memory_complete_at_once),
		cmocka_unit_test(test_open_rows_by_their_sums),
		cmocka_unit_test(test_a_reserved_segment_has_nothing),
		cmocka_unit_test(test_samples),
		cmocka_unit_test(test_samples_of_open_segments),
		cmocka_unit_test(test_what_streams_wrote_reads_back_at_every_stage),
		cmocka_unit_test(test_what_streams_wrote_survives_dead_devices),
		cmocka_unit_test(test_a_pool_is_closed_behind_its_repairs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
