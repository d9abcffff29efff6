/* SPDX-License-Identifier: LGPL-3.0-or-later. Segments to be closed or freed. links: pool */
/* A round of maintenance looks at those that something is to be done about, and misses none. */
#include "test_pool_stream.h"

#include "pool/internal.h"

#define OTHERS 50000u

/* Segments that a round looks at. */
static uint64_t round_looks_at(struct fixture *f)
{
	uint64_t before = f->pool->chores_seen;

	assert_int_equal(pool_maintain(f->pool), 0);
	return f->pool->chores_seen - before;
}

static void add_others(struct fixture *f)
{
	struct segment_row row = {.epoch = f->pool->epoch,
		.generation = 1,
		.state = SEGMENT_CLOSED,
		.data = DATA,
		.parity = PARITY,
		.matrix = 1,
		.cell = CELL,
		.live = 1,
		.rows = 1};

	for (unsigned i = 0; i < DATA + PARITY; i++)
		row.chunks[i].device = (uint16_t)i;
	for (unsigned i = 0; i < OTHERS; i++) {
		struct segment *segment;

		row.id = UINT64_C(1) << 52 | i;
		assert_int_equal(segment_insert(f->pool, &row, &segment), 0);
		segment_put(segment);
	}
}

static void a_commit_costs_the_same_with_many_segments(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file;
	uint64_t seen;

	add_others(f);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(store(f, must_append(f, stream, 5000, false)), 0);
		assert_int_equal(round_looks_at(f), 0);
	}
	assert_int_equal(pool_checkpoint(f->pool), 0);
	assert_in_range(round_looks_at(f), 0, 8); /* the image's */
	assert_int_equal(round_looks_at(f), 0);
	file = must_append(f, stream, 5000, false);
	assert_int_equal(store(f, file), 0);
	stream_close(stream);
	seen = round_looks_at(f);
	assert_in_range(seen, 1, 2);
	assert_int_equal(segment_of(f, file)->row.state, SEGMENT_CLOSED);
	assert_int_equal(round_looks_at(f), 0);
}

/* Live bytes and unreferred ones end in either order, before and after the closing. */
static void whatever_ends_last_frees(void **state)
{
	struct fixture *f = *state;

	for (unsigned order = 0; order < 8; order++) {
		struct stream *stream = open_stream(f);
		struct file *a = must_append(f, stream, 5000, false),
			    *b = must_append(f, stream, 6000, false);

		assert_int_equal(store(f, a), 0);
		if (order & 4)
			assert_int_equal(release(f, a), 0);
		if (order & 2)
			pool_abandon_extents(f->pool, b->extents, b->count);
		stream_close(stream);
		if (order & 1)
			assert_int_equal(pool_maintain(f->pool), 0);
		if (!(order & 2))
			pool_abandon_extents(f->pool, b->extents, b->count);
		if (!(order & 4) && segment_of(f, a))
			assert_int_equal(release(f, a), 0);
		assert_int_equal(pool_maintain(f->pool), 0);
		assert_null(segment_of(f, a));
		assert_int_equal(round_looks_at(f), 0);
	}
}

/* The transaction that released the last bytes is abandoned; what it told is not believed. */
static void a_release_that_is_abandoned_frees_nothing(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, 5000, false);
	struct txn *txn;

	assert_int_equal(store(f, file), 0);
	stream_close(stream);
	assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
	assert_int_equal(txn_release(txn, file->extents, file->count), 0);
	segment_note_chore(segment_of(f, file));
	txn_abort(txn);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_int_equal(segment_of(f, file)->row.state, SEGMENT_CLOSED);
	assert_int_equal(read_back(f, file), 0);
	assert_int_equal(round_looks_at(f), 0);
}

static void what_cannot_be_closed_is_not_tried_again(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, ROW + 5000, false);
	struct segment *segment;

	assert_int_equal(store(f, file), 0);
	segment = segment_of(f, file);
	pthread_mutex_lock(&segment->lock);
	segment->row_done[0] = ROW_IS_LOST;
	segment->rows_written = 0;
	pthread_mutex_unlock(&segment->lock);
	stream_close(stream);
	assert_int_equal(round_looks_at(f), 1);
	assert_int_equal(segment->row.state, SEGMENT_OPEN);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(round_looks_at(f), 0);
	assert_int_equal(release(f, file), 0);
	assert_int_equal(round_looks_at(f), 1);
	assert_null(segment_of(f, file));
}

/* Another error is kept for the next round, with all that is behind it. */
static void what_failed_is_tried_again(void **state)
{
	struct fixture *f = *state;
	struct file *files[3];

	for (unsigned i = 0; i < 3; i++) {
		struct stream *stream = open_stream(f);

		files[i] = must_append(f, stream, 5000, false);
		assert_int_equal(store(f, files[i]), 0);
		stream_close(stream);
	}
	f->pool->read_only = true;
	assert_int_equal(chores_do(f->pool, true), -EROFS);
	assert_int_equal(chores_do(f->pool, true), -EROFS);
	f->pool->read_only = false;
	assert_int_equal(round_looks_at(f), 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(segment_of(f, files[i])->row.state, SEGMENT_CLOSED);
}

/* What an earlier epoch left open is closed by the first round. */
static void an_opening_asks_for_all(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *kept = must_append(f, stream, 5000, false), *dropped;

	assert_int_equal(store(f, kept), 0);
	stream_close(stream);
	stream = open_stream(f);
	dropped = must_append(f, stream, 5000, false);
	assert_int_equal(store(f, dropped), 0);
	assert_int_equal(release(f, dropped), 0);
	crash(f, SIM_KEEP_ALL);
	assert_null(segment_of(f, dropped));
	assert_int_equal(segment_of(f, kept)->row.state, SEGMENT_OPEN);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_int_equal(segment_of(f, kept)->row.state, SEGMENT_CLOSED);
	read_all_live(f);
}

/* --- images ------------------------------------------------------------------------------- */

static struct volume_row make_volume(struct fixture *f, const char *name, unsigned keys)
{
	static const uint8_t value[4000];
	struct volume_row row;
	struct env *env;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(env_get(f->pool, row.id, &env), 0);
	for (unsigned i = 0; i < keys; i++) {
		assert_int_equal(txn_begin(f->pool, env, &txn), 0);
		assert_int_equal(txn_put(txn, env, (struct bytes){&i, sizeof(i)},
					 (struct bytes){value, sizeof(value)}),
			0);
		assert_int_equal(txn_commit(txn, &lsn), 0);
	}
	env_put(env);
	return row;
}

/* The volumes are looked at when one of them may have been the largest, not each time. */
static void the_largest_image_is_known(void **state)
{
	struct fixture *f = *state;
	struct volume_row large, small;
	uint64_t length;
	struct txn *txn;
	uint64_t lsn;

	small = make_volume(f, "small", 10);
	assert_int_equal(pool_checkpoint(f->pool), 0);
	length = f->pool->largest_image;
	assert_in_range(length, 40000, 50000);
	large = make_volume(f, "large", 100);
	assert_int_equal(pool_checkpoint(f->pool), 0);
	assert_true(f->pool->images_known);
	assert_in_range(f->pool->largest_image, 400000, 500000);
	assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
	assert_int_equal(volume_row_delete(txn, large.id), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_false(f->pool->images_known);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_true(f->pool->images_known);
	assert_int_equal(f->pool->largest_image, length);
	assert_int_equal(pool_seal(f->pool, small.id), 0);
	assert_int_equal(pool_maintain(f->pool), 0);
	assert_int_equal(f->pool->largest_image, 0);
}

/* --- what is left ----------------------------------------------------------------------------- */

struct watch {
	struct pool *pool;
	int64_t left, for_images;
	unsigned writes;
};

static void must_be_left(void *data)
{
	struct watch *w = data;

	assert_int_equal(segments_left(w->pool, PURPOSE_DATA, APPEND_KEPT), w->left);
	assert_int_equal(segments_left(w->pool, PURPOSE_DATA, APPEND_RESERVED), w->for_images);
	w->writes++;
}

/* Also while segments are recorded that go into the stock: whoever needs one of the last would
 * find that there are none, and whoever compacts that he may not. */
static void the_stock_takes_nothing(void **state)
{
	struct fixture *f = *state;
	struct watch w = {.pool = f->pool};

	assert_int_equal(segment_restock(f->pool), 0);
	for (unsigned i = 0; i < 3; i++) {
		struct stream *stream = open_stream(f);

		assert_int_equal(store(f, must_append(f, stream, 5000, false)), 0);
		stream_close(stream);
	}
	assert_true(f->pool->stock_count < f->pool->stock_size);
	w.left = segments_left(f->pool, PURPOSE_DATA, APPEND_KEPT);
	w.for_images = segments_left(f->pool, PURPOSE_DATA, APPEND_RESERVED);
	sim_watch_writes(f->engine, must_be_left, &w);
	assert_int_equal(segment_restock(f->pool), 0);
	sim_watch_writes(f->engine, NULL, NULL);
	must_be_left(&w);
	assert_true(w.writes > 1);
	assert_int_equal(f->pool->unowned, f->pool->stock_size);
	assert_int_equal(f->pool->stock_count, f->pool->stock_size);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_commit_costs_the_same_with_many_segments),
		TEST(whatever_ends_last_frees),
		TEST(a_release_that_is_abandoned_frees_nothing),
		TEST(what_cannot_be_closed_is_not_tried_again),
		TEST(what_failed_is_tried_again),
		TEST(an_opening_asks_for_all),
		TEST(the_largest_image_is_known),
		TEST(the_stock_takes_nothing),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
