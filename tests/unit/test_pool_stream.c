/* SPDX-License-Identifier: LGPL-3.0-or-later. The write path. links: pool */
/*
 * Bytes are appended, settled, referred to, released; segments are closed; devices die and the
 * power goes. What must be there is kept in a list of files, each with the extents that its bytes
 * got; a file's bytes follow from its number.
 */
#include "device/sim.h"
#include "pool/row.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#define DEVICES 8u
#define DEVICES_MAX 32u
#define DEVICE_SIZE (24u << 20)
#define CELL 16384u
#define DATA 4u
#define PARITY 2u
#define ROW (DATA * CELL)
#define SLOT_ROWS 8u
#define FILES_MAX 4096u
#define EXTENTS_MAX 8u

struct file {
	unsigned number;
	uint32_t length;
	unsigned count;
	struct extent extents[EXTENTS_MAX];
	bool live; /* referred to in a durable transaction */
};

struct shape {
	unsigned devices, data, parity;
	uint32_t cell, slot_rows;
	uint64_t device_size;
};

struct fixture {
	struct shape shape;
	struct sim_world *world;
	struct engine *engine;
	struct pool *pool;
	size_t row_memory;
	unsigned stream_limit;
	bool background;
	char names[DEVICES_MAX][32];
	struct file files[FILES_MAX];
	unsigned file_count;
};

/* --- the world ---------------------------------------------------------------------------- */

static uint32_t chance;

static uint32_t draw(uint32_t below)
{
	chance = chance * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)(chance >> 8) * below >> 24);
}

static void quiet(enum log_level level, const char *line)
{
	if (getenv("VERBOSE"))
		fprintf(stderr, "%d %s\n", level, line);
}

static int open_pool(struct fixture *f)
{
	const char *paths[DEVICES_MAX];
	struct pool_open_options options = {.paths = paths,
		.path_count = f->shape.devices,
		.host = "one",
		.row_memory = f->row_memory,
		.stream_limit = f->stream_limit,
		.background = f->background};
	struct error error = {0};
	int rc;

	for (unsigned i = 0; i < f->shape.devices; i++)
		paths[i] = f->names[i];
	rc = pool_open(f->engine, &options, &f->pool, &error);
	if (rc && getenv("VERBOSE"))
		fprintf(stderr, "%s: %s\n", error.object, error.message);
	return rc;
}

static void make_pool(struct fixture *f)
{
	struct pool_create_device devices[DEVICES_MAX];
	struct pool_create_options options = {.name = "tank",
		.data = f->shape.data,
		.parity = f->shape.parity,
		.cell = f->shape.cell,
		.devices = devices,
		.device_count = f->shape.devices,
		.host = "one",
		.slot_rows = f->shape.slot_rows,
		.journal_size = 8u << 20};
	char domains[DEVICES_MAX][16];

	for (unsigned i = 0; i < f->shape.devices; i++) {
		snprintf(domains[i], sizeof(domains[i]), "h%u", i);
		devices[i] = (struct pool_create_device){f->names[i], domains[i]};
	}
	assert_int_equal(pool_create(f->engine, &options, NULL), 0);
}

static int start(void **state, const struct shape *shape)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct sim_options options = {.seed = 1, .reorder = true};

	if (!f)
		return -1;
	chance = 1;
	f->shape = *shape;
	*state = f;
	assert_int_equal(sim_world_create(&options, &f->world), 0);
	assert_int_equal(sim_engine_create(f->world, &f->engine), 0);
	for (unsigned i = 0; i < shape->devices; i++) {
		snprintf(f->names[i], sizeof(f->names[i]), "d%u", i);
		assert_int_equal(sim_add_device(f->world, f->names[i], shape->device_size), 0);
	}
	make_pool(f);
	assert_int_equal(open_pool(f), 0);
	return 0;
}

static const struct shape usual = {DEVICES, DATA, PARITY, CELL, SLOT_ROWS, DEVICE_SIZE};

static int setup(void **state)
{
	return start(state, &usual);
}

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

static void abandon(struct fixture *f)
{
	if (f->pool) {
		assert_int_equal(pool_drain_rows(f->pool), 0);
		pool_abandon(f->pool);
	}
	f->pool = NULL;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	abandon(f);
	engine_destroy(f->engine);
	sim_world_destroy(f->world);
	free(f);
	return 0;
}

/* The power goes, and the pool is opened again. */
static void crash(struct fixture *f, enum sim_policy policy)
{
	sim_cut_power(f->world);
	abandon(f);
	sim_power_on(f->world, policy);
	assert_int_equal(open_pool(f), 0);
}

/* --- files -------------------------------------------------------------------------------- */

static uint8_t *content(unsigned number, uint32_t length)
{
	uint8_t *bytes = malloc(length + 1);
	uint32_t word = number * 2654435761u + 12345;

	assert_non_null(bytes);
	for (uint32_t i = 0; i < length; i++) {
		if (i % 4 == 0)
			word = word * 1664525u + 1013904223u;
		bytes[i] = (uint8_t)(word >> (8 * (i % 4)));
	}
	return bytes;
}

static int append(struct fixture *f, struct stream *stream, uint32_t length, bool packed,
	struct file **result)
{
	struct file *file = &f->files[f->file_count];
	uint8_t *bytes;
	uint32_t split = length / 3;
	int rc;

	assert_true(f->file_count < FILES_MAX);
	*file = (struct file){.number = f->file_count, .length = length, .count = EXTENTS_MAX};
	bytes = content(file->number, length);
	rc = stream_append(stream,
		(struct iovec[]){{bytes, split}, {NULL, 0}, {bytes + split, length - split}}, 3,
		length, packed, file->extents, &file->count);
	free(bytes);
	if (rc)
		return rc;
	f->file_count++;
	*result = file;
	return 0;
}

static struct file *must_append(
	struct fixture *f, struct stream *stream, uint32_t length, bool packed)
{
	struct file *file;
	uint64_t sum = 0;

	assert_int_equal(append(f, stream, length, packed, &file), 0);
	for (unsigned i = 0; i < file->count; i++)
		sum += file->extents[i].length;
	assert_int_equal(sum, length);
	return file;
}

/* 0: its bytes are what they should be; else what reading says. */
static int read_back(struct fixture *f, const struct file *file)
{
	struct read_part parts[EXTENTS_MAX];
	uint8_t *expected = content(file->number, file->length), *bytes = malloc(file->length + 1);
	uint64_t at = 0;
	int rc;

	assert_non_null(bytes);
	memset(bytes, 0xaa, file->length);
	for (unsigned i = 0; i < file->count; i++) {
		parts[i] = (struct read_part){file->extents[i], bytes + at};
		at += file->extents[i].length;
	}
	rc = pool_read_wait(f->pool, parts, file->count);
	if (!rc)
		assert_memory_equal(bytes, expected, file->length);
	free(bytes);
	free(expected);
	return rc;
}

static void read_all_live(struct fixture *f)
{
	for (unsigned i = 0; i < f->file_count; i++)
		if (f->files[i].live)
			assert_int_equal(read_back(f, &f->files[i]), 0);
}

static int settle(struct fixture *f, const struct file *file)
{
	return pool_settle(f->pool, file->extents, file->count);
}

/* Refers to it in a transaction of its own, and waits until that is durable. */
static int refer(struct fixture *f, struct file *file)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(f->pool, NULL, &txn);

	if (rc)
		return rc;
	rc = txn_refer(txn, file->extents, file->count);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	if (!rc)
		rc = pool_sync(f->pool, lsn);
	file->live = !rc;
	return rc;
}

static int store(struct fixture *f, struct file *file)
{
	int rc = settle(f, file);

	return rc ? rc : refer(f, file);
}

static int release(struct fixture *f, struct file *file)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(f->pool, NULL, &txn);

	file->live = false;
	if (rc)
		return rc;
	rc = txn_release(txn, file->extents, file->count);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	return rc ? rc : pool_sync(f->pool, lsn);
}

static struct stream *open_stream(struct fixture *f)
{
	struct stream *stream;

	assert_int_equal(stream_open(f->pool, 7, &stream), 0);
	return stream;
}

static struct segment *segment_of(struct fixture *f, const struct file *file)
{
	struct segment *segment = segment_get(f->pool, file->extents[0].segment);

	segment_put(segment); /* the table keeps it */
	return segment;
}

static const char *device_of(struct fixture *f, const struct file *file, unsigned chunk)
{
	return f->names[segment_of(f, file)->row.chunks[chunk].device];
}

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

/* --- devices that die --------------------------------------------------------------------- */

static void a_device_dies_and_the_stream_goes_on_elsewhere(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);

	for (unsigned victim = 0; victim < PARITY; victim++) {
		struct file *before = must_append(f, stream, ROW + 100, false), *after;

		sim_kill_device(f->world, device_of(f, before, victim));
		after = must_append(f, stream, 3 * ROW, false);
		assert_int_equal(store(f, before), 0);
		assert_int_equal(store(f, after), 0);
		assert_int_equal(segment_members_gone(f->pool, segment_of(f, after)), 1);
		read_all_live(f);
		/* The stream has left that segment. */
		after = must_append(f, stream, ROW, false);
		assert_int_equal(segment_members_gone(f->pool, segment_of(f, after)), 0);
		assert_int_equal(store(f, after), 0);
		read_all_live(f);
	}
	assert_int_equal(pool_maintain(f->pool), 0);
	read_all_live(f);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

static void more_losses_than_parity_are_an_error(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, ROW + 100, false), *later;
	struct segment *segment = segment_of(f, file);

	for (unsigned i = 0; i <= PARITY; i++)
		sim_fail_device_writes(f->world, device_of(f, file, i), -EIO);
	sim_drain(f->world);
	later = must_append(f, stream, 2 * ROW, false);
	assert_int_equal(settle(f, file), -EIO);
	assert_int_equal(settle(f, later), -EIO);
	pool_abandon_extents(f->pool, file->extents, file->count);
	pool_abandon_extents(f->pool, later->extents, later->count);
	assert_int_equal(atomic_load(&segment->unreferred), 0);
}

static void a_flush_that_fails_drops_its_device(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, ROW, false);

	sim_drain(f->world);
	sim_fail_device_writes(f->world, device_of(f, file, 0), -EIO);
	assert_int_equal(store(f, file), 0);
	assert_int_equal(segment_members_gone(f->pool, segment_of(f, file)), 1);
	assert_int_equal(read_back(f, file), 0);
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

/* --- all of it, and the power goes at any write ------------------------------------------- */

static void random_step(struct fixture *f, struct stream **streams)
{
	struct stream **stream = &streams[draw(3)];
	struct file *file;

	if (!draw(30)) {
		stream_close(*stream);
		*stream = NULL;
	}
	if (!*stream && stream_open(f->pool, 7, stream))
		return;
	if (append(f, *stream, 1 + draw(draw(4) ? 6000 : 3 * ROW), draw(2), &file))
		return;
	if (draw(3))
		store(f, file);
	else if (draw(2))
		pool_abandon_extents(f->pool, file->extents, file->count);
	if (!draw(12)) {
		struct file *old = &f->files[draw(f->file_count)];

		if (old->live)
			release(f, old);
	}
	if (!draw(20))
		pool_maintain(f->pool);
}

static void forget_files(struct fixture *f)
{
	for (unsigned i = 0; i < f->file_count; i++)
		if (f->files[i].live)
			assert_int_equal(release(f, &f->files[i]), 0);
	f->file_count = 0;
	assert_int_equal(pool_sync(f->pool, journal_lsn(f->pool)), 0);
}

static void the_power_may_go_at_any_write(void **state)
{
	struct fixture *f = *state;
	unsigned rounds = getenv("ROUNDS") ? (unsigned)atoi(getenv("ROUNDS")) : 25;
	struct pool_check_report report;

	for (unsigned round = 0; round < rounds; round++) {
		struct stream *streams[3] = {NULL};

		chance = round + 1;
		sim_seed(f->world, round + 1);
		sim_cut_power_at(f->engine, 1 + draw(1500));
		for (unsigned i = 0; i < 200 && !sim_power_was_cut(f->engine); i++)
			random_step(f, streams);
		sim_cut_power_at(f->engine, 0);
		crash(f, (enum sim_policy)draw(3));
		read_all_live(f);
		assert_int_equal(pool_maintain(f->pool), 0);
		read_all_live(f);
		assert_int_equal(pool_check(f->pool, false, &report, NULL, NULL, NULL), 0);
		assert_int_equal(report.bad_blocks, 0);
		assert_int_equal(report.lost_blocks, 0);
		assert_int_equal(report.missing_chunks, 0);
		if (round % 4 == 3)
			forget_files(f);
	}
}

/* As above, and before that up to m devices die, or fail their writes, at any write. */
static void devices_and_the_power_may_go_at_any_write(void **state)
{
	struct fixture *f = *state;
	unsigned rounds = getenv("ROUNDS") ? (unsigned)atoi(getenv("ROUNDS")) : 25;
	struct sim_image *start = NULL;

	crash(f, SIM_KEEP_ALL);
	abandon(f);
	sim_settle(f->world);
	assert_int_equal(sim_save(f->world, &start), 0);
	for (unsigned round = 0; round < rounds; round++) {
		struct stream *streams[3] = {NULL};
		unsigned steps = 60 + draw(120), victims = draw(PARITY + 1), at[PARITY];

		assert_int_equal(sim_restore(f->world, start), 0);
		chance = round + 1000;
		sim_seed(f->world, round + 1000);
		f->file_count = 0;
		assert_int_equal(open_pool(f), 0);
		for (unsigned i = 0; i < PARITY; i++)
			at[i] = draw(steps);
		if (draw(2))
			sim_cut_power_at(f->engine, 1 + draw(1500));
		for (unsigned i = 0; i < steps && !sim_power_was_cut(f->engine); i++) {
			random_step(f, streams);
			for (unsigned v = 0; v < victims; v++) {
				if (at[v] == i && draw(2))
					sim_kill_device(f->world, f->names[v * 3]);
				else if (at[v] == i)
					sim_fail_device_writes(f->world, f->names[v * 3], -EIO);
			}
		}
		sim_cut_power_at(f->engine, 0);
		if (!sim_power_was_cut(f->engine))
			read_all_live(f);
		crash(f, (enum sim_policy)draw(3));
		read_all_live(f);
		assert_int_equal(pool_maintain(f->pool), 0);
		read_all_live(f);
		abandon(f);
	}
	sim_image_free(start);
}

/* --- memory that can run out -------------------------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static uint64_t fail_allocation; /* the n-th from now; 0: none */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static bool fails(void)
{
	return fail_allocation && --fail_allocation == 0;
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
	return fails() ? NULL : __libc_calloc(count, size);
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t size)
{
	return fails() ? NULL : __libc_memalign(alignment, size);
}

enum step { APPEND, STORE, CLOSE, STEPS };

struct shortage {
	enum step step;
	uint64_t n;
	bool reached;
};

static void shortage_begin(const struct shortage *s, enum step step)
{
	fail_allocation = s->step == step ? s->n : 0;
}

static void shortage_end(struct shortage *s, enum step step)
{
	if (s->step == step)
		s->reached = !fail_allocation;
	fail_allocation = 0;
}

static struct file *append_short_of_memory(
	struct fixture *f, struct stream *stream, struct shortage *s)
{
	uint8_t *bytes = content(0, 3 * ROW);
	struct file *file = &f->files[0];
	struct iovec iov = {bytes, 3 * ROW - 9};
	int rc;

	*file = (struct file){.length = 3 * ROW - 9, .count = EXTENTS_MAX};
	shortage_begin(s, APPEND);
	rc = stream_append(stream, &iov, 1, file->length, 0, file->extents, &file->count);
	shortage_end(s, APPEND);
	if (rc) {
		assert_int_equal(rc, -ENOMEM);
		assert_int_equal(file->count, 0);
		file->count = EXTENTS_MAX;
		rc = stream_append(stream, &iov, 1, file->length, 0, file->extents, &file->count);
		assert_int_equal(rc, 0);
	}
	free(bytes);
	f->file_count = 1;
	return file;
}

/* What failed can be done again, unless the pool has stopped. */
static bool go_on(struct fixture *f, int rc)
{
	return rc && !pool_failure(f->pool);
}

static void one_shortage(struct fixture *f, struct shortage *s)
{
	struct stream *stream = open_stream(f);
	struct file *file = append_short_of_memory(f, stream, s);
	struct segment *segment = segment_of(f, file);
	int rc;

	assert_int_equal(atomic_load(&segment->unreferred), file->length);
	shortage_begin(s, STORE);
	rc = store(f, file);
	shortage_end(s, STORE);
	if (go_on(f, rc)) {
		assert_int_equal(atomic_load(&segment->unreferred), file->length);
		assert_int_equal(segment->row.live, 0);
		assert_int_equal(store(f, file), 0);
	}
	stream_end_segment(stream);
	shortage_begin(s, CLOSE);
	rc = pool_failure(f->pool) ? 0 : segment_close(f->pool, segment);
	shortage_end(s, CLOSE);
	if (go_on(f, rc))
		assert_int_equal(segment_close(f->pool, segment), 0);
	if (!pool_failure(f->pool)) {
		assert_int_equal(segment->row.state, SEGMENT_CLOSED);
		assert_int_equal(segment->row.live, file->length);
		assert_int_equal(read_back(f, file), 0);
	}
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
	abandon(f);
}

static void memory_may_run_out(void **state)
{
	struct fixture *f = *state;
	struct sim_image *image = NULL;
	struct shortage s = {.n = 1};

	abandon(f);
	sim_settle(f->world);
	assert_int_equal(sim_save(f->world, &image), 0);
	while (s.step < STEPS) {
		assert_int_equal(sim_restore(f->world, image), 0);
		assert_int_equal(open_pool(f), 0);
		one_shortage(f, &s);
		if (!s.reached)
			assert_in_range(s.n, 2, 1000);
		s.step += !s.reached;
		s.n = s.reached ? s.n + 1 : 1;
	}
	sim_image_free(image);
}
#else
static void memory_may_run_out(void **state)
{
	skip(); /* sanitizers have their own malloc() */
}
#endif

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
		TEST(streams_are_counted),
		TEST(written_rows_survive_a_crash),
		TEST(the_open_row_survives_a_crash_in_the_journal),
		TEST(a_row_that_nobody_refers_to_is_zeroes_after_a_crash),
		TEST(a_row_may_fill_between_settling_and_referring),
		TEST(kept_rows_are_bounded),
		TEST(an_abandoned_transaction_changes_nothing),
		TEST(tails_fit_into_one_record),
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
		TEST(a_device_dies_and_the_stream_goes_on_elsewhere),
		TEST(more_losses_than_parity_are_an_error),
		TEST(a_flush_that_fails_drops_its_device),
		TEST(row_memory_is_bounded),
		TEST(a_paused_world_is_an_error_not_a_hang),
		TEST(the_power_may_go_at_any_write),
		TEST(devices_and_the_power_may_go_at_any_write),
		TEST(memory_may_run_out),
		cmocka_unit_test(threads_may_share_streams),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
