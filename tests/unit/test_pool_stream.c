/* SPDX-License-Identifier: LGPL-3.0-or-later. The write path: appended, referred. links: pool */
/* Where appended bytes get to, when they are durable, and what streams cost in memory. */
#include "test_pool_stream.h"

static uint32_t row_of(const struct file *file)
{
	return (uint32_t)(file->extents[0].offset / ROW);
}

/* --- places ------------------------------------------------------------------------------- */

static void linear_appends_go_on_right_behind(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	uint64_t at = 0, segment = 0;

	for (unsigned i = 0; at + 10000 < ROW * SLOT_ROWS; i++) {
		struct file *file = must_append(f, stream, 1 + draw(9999), false);

		if (!i)
			segment = file->extents[0].segment;
		assert_int_equal(file->count, 1);
		assert_int_equal(file->extents[0].segment, segment);
		assert_int_equal(file->extents[0].offset, at);
		at += file->length;
		assert_int_equal(read_back(f, file), 0);
	}
	stream_close(stream);
}

static void a_long_append_is_one_extent_a_segment(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *small = must_append(f, stream, 5000, false);
	struct file *file = must_append(f, stream, 2 * ROW * SLOT_ROWS, false);

	assert_int_equal(file->count, 3);
	assert_int_equal(file->extents[0].offset, 5000);
	assert_int_equal(file->extents[0].length, ROW * SLOT_ROWS - 5000);
	assert_int_equal(file->extents[1].length, ROW * SLOT_ROWS);
	assert_int_equal(file->extents[2].length, 5000);
	assert_int_equal(read_back(f, file), 0);
	assert_int_equal(read_back(f, small), 0);
	assert_int_equal(store(f, file), 0);
	assert_int_equal(read_back(f, file), 0);
	stream_close(stream);
}

static void packed_appends_stay_in_a_cell(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	uint64_t bytes = 0;
	unsigned whole = 0, count = 400;

	for (unsigned i = 0; i < count; i++) {
		struct file *file = must_append(f, stream, 1 + draw(CELL), true);

		for (unsigned e = 0; e < file->count; e++) {
			const struct extent *x = &file->extents[e];

			assert_int_equal(x->offset % BLOCK_SIZE, 0);
			assert_int_equal(x->offset / CELL, (x->offset + x->length - 1) / CELL);
		}
		assert_true(file->count <= 4);
		whole += file->count == 1;
		bytes += (file->length + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
	}
	/* Nearly all in one piece, and at most a quarter of the rows' space left behind. */
	assert_true(whole * 10 >= count * 8);
	assert_true(4 * bytes >= 3 * (uint64_t)ROW * (row_of(&f->files[count - 1])));
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(read_back(f, &f->files[i]), 0);
	stream_close(stream);
}

static void packed_and_linear_appends_mix(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);

	for (unsigned i = 0; i < 500; i++) {
		struct file *file =
			must_append(f, stream, 1 + draw(draw(8) ? CELL : 3 * ROW), draw(2));

		assert_int_equal(read_back(f, file), 0);
		if (!draw(5))
			assert_int_equal(store(f, file), 0);
	}
	/* No two of them overlap: each still has its own bytes. */
	for (unsigned i = 0; i < f->file_count; i++)
		assert_int_equal(read_back(f, &f->files[i]), 0);
	stream_close(stream);
	assert_int_equal(pool_maintain(f->pool), 0);
	for (unsigned i = 0; i < f->file_count; i++)
		assert_int_equal(read_back(f, &f->files[i]), 0);
}

/* --- lent memory -------------------------------------------------------------------------- */

static void whole_rows_of_lent_memory_are_not_copied(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	uint64_t copied = pool_copied(f->pool);
	struct file *file;

	assert_int_equal(append_lent(f, stream, 3 * ROW, 0, &file), 0);
	assert_int_equal(pool_copied(f->pool), copied);
	assert_int_equal(loans, 1); /* nothing is written before somebody waits */
	assert_int_equal(read_back(f, file), 0);
	assert_int_equal(loans, 1);
	assert_int_equal(settle(f, file), 0);
	assert_int_equal(loans, 0);
	copied = pool_copied(f->pool);
	assert_int_equal(read_back(f, file), 0);
	assert_int_equal(refer(f, file), 0);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

static void what_makes_up_no_row_of_it_is_copied(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *before = must_append(f, stream, 2 * BLOCK_SIZE, false), *file, *odd;
	uint64_t copied = pool_copied(f->pool);

	/* The rest of the row; two rows that are not copied; what is left. */
	assert_int_equal(append_lent(f, stream, 3 * ROW, 0, &file), 0);
	assert_int_equal(pool_copied(f->pool) - copied, ROW);
	assert_int_equal(file->count, 1);
	assert_int_equal(file->extents[0].offset, 2 * BLOCK_SIZE);
	copied = pool_copied(f->pool);
	assert_int_equal(append_lent(f, stream, 100, 0, &odd), 0);
	assert_int_equal(pool_copied(f->pool) - copied, 100);
	assert_int_equal(loans, 1);
	/* All of it, behind bytes that leave its memory in no row's place. */
	copied = pool_copied(f->pool);
	assert_int_equal(append_lent(f, stream, ROW, 0, &odd), 0);
	assert_int_equal(pool_copied(f->pool) - copied, ROW);
	for (unsigned i = 0; i < f->file_count; i++)
		assert_int_equal(read_back(f, &f->files[i]), 0);
	assert_int_equal(store(f, before), 0);
	assert_int_equal(store(f, file), 0);
	assert_int_equal(loans, 0);
	read_all_live(f);
}

static void a_row_may_be_left_for_whole_ones(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *before = must_append(f, stream, 100, false), *file, *small;
	uint64_t copied = pool_copied(f->pool);

	assert_int_equal(append_lent(f, stream, 2 * ROW, APPEND_WHOLE, &file), 0);
	assert_int_equal(pool_copied(f->pool), copied);
	assert_int_equal(file->extents[0].offset, ROW);
	/* Not for less than a row, nor for memory that is somebody's own. */
	small = must_append(f, stream, 100, false);
	assert_int_equal(append_lent(f, stream, ROW - 1, APPEND_WHOLE, &file), 0);
	assert_int_equal(file->extents[0].offset, small->extents[0].offset + 100);
	for (unsigned i = 0; i < f->file_count; i++) {
		assert_int_equal(store(f, &f->files[i]), 0);
		assert_int_equal(read_back(f, &f->files[i]), 0);
	}
	assert_int_equal(read_back(f, before), 0);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

/* --- room --------------------------------------------------------------------------------- */

static void what_does_not_fit_is_refused_and_given_up(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, ROW / 2, false);
	struct segment *segment = segment_of(f, file);
	uint8_t *bytes = content(0, 3 * ROW * SLOT_ROWS);
	struct extent extents[2];
	unsigned count = 2;

	assert_int_equal(stream_append(stream, &(struct iovec){bytes, 3 * ROW * SLOT_ROWS}, 1,
				 3 * ROW * SLOT_ROWS, 0, extents, &count),
		-E2BIG);
	assert_int_equal(count, 0);
	assert_int_equal(atomic_load(&segment->unreferred), ROW / 2);
	count = 2;
	assert_int_equal(stream_append(stream, &(struct iovec){bytes, 5}, 1, 6, 0, extents, &count),
		-EINVAL);
	count = 2;
	assert_int_equal(
		stream_append(stream, &(struct iovec){bytes, 5}, 1, 0, 0, extents, &count), 0);
	assert_int_equal(count, 0);
	free(bytes);
	assert_int_equal(store(f, file), 0);
	assert_int_equal(read_back(f, file), 0);
	stream_close(stream);
}

static void streams_are_counted(void **state)
{
	struct fixture *f = *state;
	struct stream *streams[3], *more;

	abandon(f);
	f->stream_limit = 3;
	assert_int_equal(open_pool(f), 0);
	for (unsigned i = 0; i < 3; i++)
		streams[i] = open_stream(f);
	assert_int_equal(stream_open(f->pool, 7, &more), -EMFILE);
	assert_int_equal(stream_open_purpose(f->pool, 7, PURPOSE_DATA, &more), 0);
	stream_close(more);
	stream_close(streams[0]);
	streams[0] = open_stream(f);
	for (unsigned i = 0; i < 3; i++)
		stream_close(streams[i]);
}

/* --- settling and referring --------------------------------------------------------------- */

static void written_rows_survive_a_crash(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);

	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(store(f, must_append(f, stream, ROW, false)), 0);
	assert_null(segment_of(f, &f->files[0])->rows[0]);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
	assert_int_equal(pool_maintain(f->pool), 0);
	read_all_live(f);
}

static void the_open_row_survives_a_crash_in_the_journal(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);

	for (unsigned i = 0; i < 15; i++)
		assert_int_equal(store(f, must_append(f, stream, 1 + draw(1000), i % 3 == 0)), 0);
	assert_int_equal(segment_of(f, &f->files[0])->rows_written, 0);
	for (unsigned round = 0; round < 3; round++) {
		crash(f, SIM_LOSE_ALL);
		assert_int_equal(segment_of(f, &f->files[0])->row.state,
			round ? SEGMENT_CLOSED : SEGMENT_OPEN);
		assert_int_equal(settle(f, &f->files[0]), 0);
		read_all_live(f);
		assert_int_equal(pool_maintain(f->pool), 0);
		assert_int_equal(pool_sync(f->pool, journal_lsn(f->pool)), 0);
		assert_int_equal(segment_of(f, &f->files[0])->row.state, SEGMENT_CLOSED);
		read_all_live(f);
	}
}

/* Row 0 is full and was never asked to be stable, row 1 is in the journal. */
static void a_row_that_nobody_refers_to_is_zeroes_after_a_crash(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *never = must_append(f, stream, ROW, false);
	struct file *small = must_append(f, stream, 777, false);
	struct segment *segment;

	assert_int_equal(store(f, small), 0);
	assert_int_equal(segment_of(f, small)->rows_recorded, 0);
	crash(f, SIM_RANDOM);
	assert_int_equal(read_back(f, small), 0);
	assert_int_equal(read_back(f, never), -EIO);
	assert_int_equal(pool_maintain(f->pool), 0);
	segment = segment_of(f, small);
	assert_int_equal(segment->row.state, SEGMENT_CLOSED);
	assert_int_equal(segment->row.rows, 2);
	assert_int_equal(segment->row.length, 2 * ROW);
	assert_int_equal(segment->row.live, 777);
	assert_int_equal(read_back(f, small), 0);
}

/* Between settling and referring the row goes on, as far as it can. */
static void a_row_may_fill_between_settling_and_referring(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *early = must_append(f, stream, 3000, false), *late, *other;
	struct segment *segment = segment_of(f, early);

	assert_int_equal(settle(f, early), 0);
	late = must_append(f, stream, ROW, false);
	sim_drain(f->world);
	assert_int_equal(segment->rows_written, 1);
	assert_non_null(segment->rows[0]);
	assert_int_equal(refer(f, early), 0); /* from memory: written, and not flushed */
	assert_int_equal(segment->rows_recorded, 0);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);

	stream = open_stream(f);
	early = must_append(f, stream, 3000, false);
	segment = segment_of(f, early);
	assert_int_equal(settle(f, early), 0);
	late = must_append(f, stream, ROW, false);
	other = must_append(f, stream, 2 * ROW, false);
	sim_drain(f->world);
	assert_int_equal(settle(f, late), 0);
	assert_null(segment->rows[0]); /* flushed, so there is no need to keep it */
	assert_int_equal(refer(f, early), 0);
	assert_int_equal(segment->rows_recorded, 1);
	assert_int_equal(refer(f, late), 0);
	assert_int_equal(refer(f, other), -EAGAIN); /* was not settled */
	assert_int_equal(store(f, other), 0);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
	assert_int_equal(pool_maintain(f->pool), 0);
	read_all_live(f);
}

/* Small files settled while their rows are open keep them in memory, but not many of them. */
static void kept_rows_are_bounded(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);

	for (unsigned i = 0; i < 400; i++) {
		struct file *file = must_append(f, stream, CELL / 2, true);
		struct segment *segment = segment_of(f, file);
		unsigned kept = 0;

		assert_int_equal(store(f, file), 0);
		sim_drain(f->world);
		for (uint32_t row = 0; row < segment->layout.rows; row++)
			kept += segment->rows[row] != NULL;
		assert_in_range(kept, 0, 6);
		if (i % 97 == 0)
			assert_int_equal(pool_maintain(f->pool), 0);
	}
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

static void an_abandoned_transaction_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *whole = must_append(f, stream, 2 * ROW, false);
	struct file *tail = must_append(f, stream, 100, false);
	struct segment *segment = segment_of(f, whole);
	struct txn *txn;

	assert_int_equal(settle(f, whole), 0);
	assert_int_equal(settle(f, tail), 0);
	assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
	assert_int_equal(txn_refer(txn, whole->extents, whole->count), 0);
	assert_int_equal(txn_refer(txn, tail->extents, tail->count), 0);
	assert_int_equal(txn_release(txn, whole->extents, whole->count), 0);
	assert_int_equal(segment->row.live, 100);
	txn_abort(txn);
	assert_int_equal(segment->row.live, 0);
	assert_int_equal(segment->rows_recorded, 0);
	assert_int_equal(segment->row.rows, 0);
	assert_int_equal(atomic_load(&segment->unreferred), 2 * ROW + 100);
	assert_int_equal(refer(f, tail), 0);
	assert_int_equal(refer(f, whole), 0);
	assert_int_equal(segment->row.live, 2 * ROW + 100);
	assert_int_equal(segment->rows_recorded, 2);
	assert_int_equal(atomic_load(&segment->unreferred), 0);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

/* Two streams' open rows are more than one record takes: one row is ended and written instead. */
static void tails_fit_into_one_record(void **state)
{
	struct fixture *f = *state;
	struct stream *a = open_stream(f), *b = open_stream(f);
	struct file *x = must_append(f, a, ROW - 10, false),
		    *y = must_append(f, b, ROW - 10, false);
	struct extent both[] = {x->extents[0], y->extents[0]};
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(pool_settle(f->pool, both, 2), 0);
	assert_int_equal(segment_of(f, x)->rows_flushed, 0);
	assert_int_equal(segment_of(f, y)->rows_flushed, 1);
	assert_int_equal(txn_begin(f->pool, NULL, &txn), 0);
	assert_int_equal(txn_refer(txn, both, 2), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(f->pool, lsn), 0);
	x->live = y->live = true;
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

/* --- bounds ------------------------------------------------------------------------------- */

static void row_memory_is_bounded(void **state)
{
	struct fixture *f = *state;
	struct stream *streams[4];
	size_t row = (DATA + PARITY) * CELL;

	abandon(f);
	f->row_memory = 2 * row;
	assert_int_equal(open_pool(f), 0);
	for (unsigned i = 0; i < 4; i++)
		streams[i] = open_stream(f);
	for (unsigned i = 0; i < 60; i++) {
		must_append(f, streams[draw(4)], 1 + draw(3 * ROW), draw(2));
		/* What is being written, and the open row that each stream may add to it. */
		assert_in_range(atomic_load(&f->pool->row_bytes), 0, 3 * row);
	}
	for (unsigned i = 0; i < 4; i++)
		stream_close(streams[i]);
	assert_int_equal(pool_drain_rows(f->pool), 0);
	assert_int_equal(atomic_load(&f->pool->row_bytes), 0);
	for (unsigned i = 0; i < f->file_count; i++)
		assert_int_equal(read_back(f, &f->files[i]), 0);
}

/* While the world stands still nothing is waited for, and nothing is lost by having tried. */
static void a_paused_world_is_an_error_not_a_hang(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file, *none;

	abandon(f);
	f->row_memory = 1;
	assert_int_equal(open_pool(f), 0);
	stream = open_stream(f);
	file = must_append(f, stream, 2 * ROW, false);
	sim_pause(f->engine, true);
	assert_int_equal(append(f, stream, ROW, false, &none), -EDEADLK);
	assert_int_equal(settle(f, file), -EDEADLK);
	sim_pause(f->engine, false);
	assert_int_equal(store(f, file), 0);
	assert_int_equal(store(f, must_append(f, stream, ROW, false)), 0);
	read_all_live(f);
}

/* --- real threads ------------------------------------------------------------------------- */

#define THREADS 4u
#define THREAD_FILES 150u

struct writer_thread {
	pthread_t thread;
	struct fixture *f;
	struct stream *shared, *own;
	unsigned index;
	const char *failed;
	struct file files[THREAD_FILES];
};

static int same_bytes(struct pool *pool, const struct file *file)
{
	struct read_part parts[EXTENTS_MAX];
	uint8_t *expected = content(file->number, file->length), *bytes = malloc(file->length);
	uint64_t at = 0;
	int rc;

	for (unsigned i = 0; i < file->count; i++) {
		parts[i] = (struct read_part){file->extents[i], bytes + at};
		at += file->extents[i].length;
	}
	rc = pool_read_wait(pool, parts, file->count);
	if (!rc && memcmp(bytes, expected, file->length))
		rc = -EBADMSG;
	free(bytes);
	free(expected);
	return rc;
}

static int thread_refer(struct pool *pool, struct file *file)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = pool_settle(pool, file->extents, file->count);

	if (!rc)
		rc = txn_begin(pool, NULL, &txn);
	if (rc)
		return rc;
	rc = txn_refer(txn, file->extents, file->count);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	return rc ? rc : pool_sync(pool, lsn);
}

static void *writer_main(void *argument)
{
	struct writer_thread *t = argument;
	uint32_t random = t->index * 77 + 5;

	for (unsigned i = 0; i < THREAD_FILES && !t->failed; i++) {
		struct file *file = &t->files[i];
		uint8_t *bytes;
		bool shared;

		random = random * 1664525u + 1013904223u;
		shared = random >> 28 & 3;
		*file = (struct file){.number = t->index * 1000 + i,
			.length = 1 + (random >> 8) % (shared ? CELL : 3 * ROW),
			.count = EXTENTS_MAX};
		bytes = content(file->number, file->length);
		if (stream_append(shared ? t->shared : t->own, &(struct iovec){bytes, file->length},
			    1, file->length, shared, file->extents, &file->count))
			t->failed = "append";
		free(bytes);
		if (!t->failed && same_bytes(t->f->pool, file))
			t->failed = "read before settling";
		if (!t->failed && i % 3 && thread_refer(t->f->pool, file))
			t->failed = "refer";
		if (!t->failed && i % 3 == 0)
			pool_abandon_extents(t->f->pool, file->extents, file->count);
		file->live = i % 3;
		if (!t->failed && file->live && same_bytes(t->f->pool, file))
			t->failed = "read after referring";
	}
	return NULL;
}

static void make_files(struct fixture *f, char *directory)
{
	assert_non_null(mkdtemp(directory));
	for (unsigned i = 0; i < DEVICES; i++) {
		FILE *file;

		snprintf(f->names[i], sizeof(f->names[i]), "%s/d%u", directory, i);
		file = fopen(f->names[i], "w");
		assert_non_null(file);
		assert_int_equal(ftruncate(fileno(file), DEVICE_SIZE), 0);
		fclose(file);
	}
}

static void threads_may_share_streams(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct writer_thread *threads = calloc(THREADS, sizeof(*threads));
	char directory[] = "/dev/shm/streamXXXXXX";
	struct stream *shared;

	f->shape = usual;
	f->row_memory = 3 * (DATA + PARITY) * CELL;
	f->background = true;
	make_files(f, directory);
	if (uring_engine_create(NULL, &f->engine, NULL))
		skip();
	make_pool(f);
	assert_int_equal(open_pool(f), 0);
	shared = open_stream(f);
	for (unsigned i = 0; i < THREADS; i++) {
		threads[i].f = f;
		threads[i].index = i;
		threads[i].shared = shared;
		threads[i].own = open_stream(f);
		assert_int_equal(
			pthread_create(&threads[i].thread, NULL, writer_main, &threads[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i].thread, NULL);
		if (threads[i].failed)
			fail_msg("thread %u: %s", i, threads[i].failed);
	}
	assert_int_equal(pool_close(f->pool, NULL), 0);
	assert_int_equal(open_pool(f), 0);
	for (unsigned i = 0; i < THREADS * THREAD_FILES; i++) {
		struct file *file = &threads[i / THREAD_FILES].files[i % THREAD_FILES];

		if (file->live)
			assert_int_equal(same_bytes(f->pool, file), 0);
	}
	abandon(f);
	engine_destroy(f->engine);
	for (unsigned i = 0; i < DEVICES; i++)
		unlink(f->names[i]);
	rmdir(directory);
	free(threads);
	free(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(linear_appends_go_on_right_behind),
		TEST(a_long_append_is_one_extent_a_segment),
		TEST(packed_appends_stay_in_a_cell),
		TEST(packed_and_linear_appends_mix),
		TEST(what_does_not_fit_is_refused_and_given_up),
		TEST(whole_rows_of_lent_memory_are_not_copied),
		TEST(what_makes_up_no_row_of_it_is_copied),
		TEST(a_row_may_be_left_for_whole_ones),
		TEST(streams_are_counted),
		TEST(written_rows_survive_a_crash),
		TEST(the_open_row_survives_a_crash_in_the_journal),
		TEST(a_row_that_nobody_refers_to_is_zeroes_after_a_crash),
		TEST(a_row_may_fill_between_settling_and_referring),
		TEST(kept_rows_are_bounded),
		TEST(an_abandoned_transaction_changes_nothing),
		TEST(tails_fit_into_one_record),
		TEST(row_memory_is_bounded),
		TEST(a_paused_world_is_an_error_not_a_hang),
		cmocka_unit_test(threads_may_share_streams),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
