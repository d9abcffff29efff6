/* SPDX-License-Identifier: LGPL-3.0-or-later. The write path: closing, freeing. links: pool */
/* Segments are closed, the power cut anywhere in it, and freed when nothing refers to them. */
#include "test_pool_stream.h"

/* Segments of many rows. */
static int setup_long(void **state)
{
	return start(state, &(struct shape){DEVICES, DATA, PARITY, CELL, 1024, 128u << 20});
}

/* Segments of many chunks. */
static int setup_wide(void **state)
{
	return start(state, &(struct shape){32, 16, 16, 4096, 16, 12u << 20});
}

/* --- space -------------------------------------------------------------------------------- */

static void releasing_the_last_byte_frees_a_closed_segment(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *a = must_append(f, stream, 5000, false),
		    *b = must_append(f, stream, ROW, false);

	assert_int_equal(store(f, a), 0);
	assert_int_equal(store(f, b), 0);
	stream_close(stream);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_int_equal(segment_of(f, a)->row.state, SEGMENT_CLOSED);
	assert_int_equal(segment_of(f, a)->row.rows, 2);
	assert_null(segment_of(f, a)->sums);
	read_all_live(f);
	assert_int_equal(release(f, a), 0);
	assert_int_equal(segment_of(f, a)->row.live, ROW);
	assert_int_equal(release(f, b), 0);
	assert_null(segment_of(f, a));
	crash(f, SIM_KEEP_ALL);
	assert_null(segment_of(f, a));
}

static void a_segment_that_nobody_refers_to_is_freed_when_it_is_closed(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *a = must_append(f, stream, 2 * ROW, false);
	struct file *b = must_append(f, stream, 5000, false);

	assert_int_equal(store(f, a), 0);
	assert_int_equal(release(f, a), 0);
	assert_non_null(segment_of(f, a));
	pool_abandon_extents(f->pool, b->extents, b->count);
	stream_close(stream);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_null(segment_of(f, a));
}

/* A close in many transactions, and a crash after each number of writes in it. */
static void a_close_may_be_cut_off_anywhere(void **state)
{
	struct fixture *f = *state;
	bool cut = true;

	for (uint64_t n = 1; cut; n += 1 + n / 8) {
		struct stream *stream = open_stream(f);
		unsigned first = f->file_count;

		for (unsigned i = 0; i < 12; i++)
			assert_int_equal(store(f, must_append(f, stream, draw(ROW) + 1, i % 2)), 0);
		stream_close(stream);
		sim_cut_power_at(f->engine, n);
		pool_maintain(f->pool);
		cut = sim_power_was_cut(f->engine);
		sim_cut_power_at(f->engine, 0);
		crash(f, SIM_RANDOM);
		read_all_live(f);
		assert_int_equal(pool_maintain(f->pool), 0);
		read_all_live(f);
		while (first < f->file_count)
			assert_int_equal(release(f, &f->files[first++]), 0);
	}
}

static unsigned count_keys(struct fixture *f, uint8_t kind, uint64_t segment)
{
	uint8_t key[POOL_KEY_MAX];
	struct bytes next = key_segment(key, kind, segment), found, value;
	struct txn *view;
	unsigned count = 0;

	assert_int_equal(view_begin(pool_env(f->pool), &view), 0);
	while (!txn_seek(view, pool_env(f->pool), next, &found, &value) && found.length > 9 &&
		!memcmp(found.data, key, 9)) {
		count++;
		memcpy(key, found.data, found.length);
		key[found.length] = 0; /* the smallest key behind it */
		next = (struct bytes){key, found.length + 1};
	}
	txn_abort(view);
	return count;
}

/* Thousands of tiny extents in one row, more keys than a transaction deletes. */
static struct file *many_tails(struct fixture *f, struct stream *stream)
{
	static struct extent extents[6000];
	struct file *file;
	struct txn *txn;
	uint64_t lsn = 0;

	for (unsigned i = 0; i < 6000; i++) {
		unsigned count = 1;

		assert_int_equal(stream_append(stream, &(struct iovec){"tailtail", 8}, 1, 8, 0,
					 &extents[i], &count),
			0);
	}
	assert_int_equal(pool_settle(f->pool, extents, 6000), 0);
	for (unsigned i = 0; i < 6000; i += 500) {
		assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
		for (unsigned j = i; j < i + 500; j++)
			assert_int_equal(txn_refer(txn, &extents[j], 1), 0);
		assert_int_equal(txn_commit(txn, &lsn), 0);
	}
	assert_int_equal(pool_sync(f->pool, lsn), 0);
	file = must_append(f, stream, ROW, false);
	assert_int_equal(store(f, file), 0);
	return file;
}

static void a_close_takes_as_many_transactions_as_it_needs(void **state)
{
	struct fixture *f = *state;
	bool cut = true;

	for (uint64_t n = 0; cut; n += 1 + n / 4) {
		struct stream *stream = open_stream(f);
		struct file *file = many_tails(f, stream);
		uint64_t segment = file->extents[0].segment;

		assert_int_equal(count_keys(f, KEY_SUMS, segment), 1);
		assert_in_range(count_keys(f, KEY_TAIL, segment), 5500, 6000);
		stream_close(stream);
		if (n)
			sim_cut_power_at(f->engine, n);
		pool_maintain(f->pool);
		cut = !n || sim_power_was_cut(f->engine);
		sim_cut_power_at(f->engine, 0);
		if (n)
			crash(f, SIM_RANDOM);
		assert_int_equal(read_back(f, file), 0);
		assert_int_equal(pool_maintain(f->pool), 0);
		assert_int_equal(segment_drop_leftovers(f->pool), 0);
		assert_int_equal(count_keys(f, KEY_SUMS, segment), 0);
		assert_int_equal(count_keys(f, KEY_TAIL, segment), 0);
		assert_int_equal(read_back(f, file), 0);
		assert_int_equal(segment_of(f, file)->row.live, ROW + 48000);
	}
}

/* A segment that nobody wants, with more keys than one transaction deletes. */
static void freeing_takes_as_many_transactions_as_it_needs(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = many_tails(f, stream);
	uint64_t segment = file->extents[0].segment;
	struct extent tails = {segment, 0, 48000};
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(release(f, file), 0);
	assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
	assert_int_equal(txn_release(txn, &tails, 1), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	stream_close(stream);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_null(segment_of(f, file));
	assert_int_equal(count_keys(f, KEY_SUMS, segment), 0);
	assert_int_equal(count_keys(f, KEY_TAIL, segment), 0);
}

/* More checksums than one transaction's record takes are recorded by settling. */
static void many_rows_may_be_referred_to_at_once(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, 1000 * ROW + 5, false);

	assert_int_equal(settle(f, file), 0);
	assert_int_equal(segment_of(f, file)->rows_recorded, 1000);
	crash(f, SIM_LOSE_ALL);
	assert_null(segment_of(f, file)); /* recorded, and referred to by nobody */
	stream = open_stream(f);
	file = must_append(f, stream, 1000 * ROW + 5, false);
	assert_int_equal(store(f, file), 0);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
	assert_int_equal(pool_maintain(f->pool), 0);
	read_all_live(f);
}

static void pages_of_many_chunks_are_written_in_pieces(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct pool_check_report report;

	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(store(f, must_append(f, stream, 16 * 4096, false)), 0);
	stream_close(stream);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_int_equal(segment_of(f, &f->files[0])->row.state, SEGMENT_CLOSED);
	for (unsigned i = 0; i < 16; i++)
		sim_kill_device(f->world, device_of(f, &f->files[0], 2 * i));
	read_all_live(f);
	for (unsigned i = 0; i < 16; i++)
		sim_revive_device(f->world, device_of(f, &f->files[0], 2 * i));
	assert_int_equal(pool_check(f->pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.bad_blocks, 0);
	assert_int_equal(report.lost_blocks, 0);
}

static void leftover_keys_are_dropped(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, 2 * ROW, false);
	uint8_t key[ROW_KEY_MAX];
	struct bytes value;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(store(f, file), 0);
	assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(txn_put(txn, pool_env(f->pool), key_sums(key, 12345, i),
					 (struct bytes){"x", 1}),
			0);
		assert_int_equal(txn_put(txn, pool_env(f->pool), key_tail(key, 12346, 0, i),
					 (struct bytes){"x", 1}),
			0);
	}
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(segment_drop_leftovers(f->pool), 0);
	assert_int_equal(view_begin(pool_env(f->pool), &txn), 0);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(
			txn_get(txn, pool_env(f->pool), key_sums(key, 12345, i), &value), -ENOENT);
		assert_int_equal(
			txn_get(txn, pool_env(f->pool), key_tail(key, 12346, 0, i), &value),
			-ENOENT);
	}
	assert_int_equal(
		txn_get(txn, pool_env(f->pool), key_sums(key, file->extents[0].segment, 1), &value),
		0);
	txn_abort(txn);
	stream_close(stream);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(releasing_the_last_byte_frees_a_closed_segment),
		TEST(a_segment_that_nobody_refers_to_is_freed_when_it_is_closed),
		TEST(a_close_may_be_cut_off_anywhere),
		TEST(a_close_takes_as_many_transactions_as_it_needs),
		TEST(freeing_takes_as_many_transactions_as_it_needs),
		cmocka_unit_test_setup_teardown(
			many_rows_may_be_referred_to_at_once, setup_long, teardown),
		cmocka_unit_test_setup_teardown(
			pages_of_many_chunks_are_written_in_pieces, setup_wide, teardown),
		TEST(leftover_keys_are_dropped),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
