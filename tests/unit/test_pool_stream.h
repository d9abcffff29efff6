/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * For the tests of the write path. What must be there is kept in a list of files, each with the
 * extents that its bytes got; a file's bytes follow from its number.
 */
#ifndef TEST_POOL_STREAM_H
#define TEST_POOL_STREAM_H

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

static inline uint32_t draw(uint32_t below)
{
	chance = chance * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)(chance >> 8) * below >> 24);
}

static inline void quiet(enum log_level level, const char *line)
{
	if (getenv("VERBOSE"))
		fprintf(stderr, "%d %s\n", level, line);
}

static inline int open_pool(struct fixture *f)
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

static inline void make_pool(struct fixture *f)
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

static inline int start(void **state, const struct shape *shape)
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

static inline int setup(void **state)
{
	return start(state, &usual);
}

static unsigned loans; /* that are not over */

static inline void abandon(struct fixture *f)
{
	if (f->pool) {
		assert_int_equal(pool_drain_rows(f->pool), 0);
		assert_int_equal(loans, 0);
		pool_abandon(f->pool);
	}
	f->pool = NULL;
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	abandon(f);
	engine_destroy(f->engine);
	sim_world_destroy(f->world);
	free(f);
	return 0;
}

/* The power goes, and the pool is opened again. */
static inline void crash(struct fixture *f, enum sim_policy policy)
{
	sim_cut_power(f->world);
	abandon(f);
	sim_power_on(f->world, policy);
	assert_int_equal(open_pool(f), 0);
}

/* --- files -------------------------------------------------------------------------------- */

static inline uint8_t *content(unsigned number, uint32_t length)
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

static inline int append(struct fixture *f, struct stream *stream, uint32_t length, bool packed,
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

/* Memory that is gone when the loan is over. */
struct lent_bytes {
	struct loan loan;
	uint8_t *bytes;
	uint32_t length;
};

static inline void lent_back(struct loan *loan)
{
	struct lent_bytes *lent = (struct lent_bytes *)loan;

	memset(lent->bytes, 0xdd, lent->length);
	free(lent->bytes);
	free(lent);
	loans--;
}

/* The same of aligned memory that is lent, all in one piece. */
static inline int append_lent(struct fixture *f, struct stream *stream, uint32_t length,
	unsigned flags, struct file **result)
{
	struct file *file = &f->files[f->file_count];
	struct lent_bytes *lent = malloc(sizeof(*lent));
	uint8_t *bytes = content(f->file_count, length);
	int rc;

	assert_non_null(lent);
	assert_true(f->file_count < FILES_MAX);
	*file = (struct file){.number = f->file_count, .length = length, .count = EXTENTS_MAX};
	lent->length = (length + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
	lent->bytes = aligned_alloc(BLOCK_SIZE, lent->length);
	assert_non_null(lent->bytes);
	memcpy(lent->bytes, bytes, length);
	free(bytes);
	loans++;
	loan_begin(&lent->loan, lent_back);
	rc = stream_append_lent(stream, &lent->loan, &(struct iovec){lent->bytes, length}, 1,
		length, flags, file->extents, &file->count);
	loan_end(&lent->loan);
	if (rc)
		return rc;
	f->file_count++;
	*result = file;
	return 0;
}

static inline struct file *must_append(
	struct fixture *f, struct stream *stream, uint32_t length, bool packed)
{
	struct file *file = NULL;
	uint64_t sum = 0;

	assert_int_equal(append(f, stream, length, packed, &file), 0);
	for (unsigned i = 0; i < file->count; i++)
		sum += file->extents[i].length;
	assert_int_equal(sum, length);
	return file;
}

/* 0: its bytes are what they should be; else what reading says. */
static inline int read_back(struct fixture *f, const struct file *file)
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

static inline void read_all_live(struct fixture *f)
{
	for (unsigned i = 0; i < f->file_count; i++)
		if (f->files[i].live)
			assert_int_equal(read_back(f, &f->files[i]), 0);
}

static inline int settle(struct fixture *f, const struct file *file)
{
	return pool_settle(f->pool, file->extents, file->count);
}

/* Refers to it in a transaction of its own, and waits until that is durable. */
static inline int refer(struct fixture *f, struct file *file)
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

static inline int store(struct fixture *f, struct file *file)
{
	int rc = settle(f, file);

	return rc ? rc : refer(f, file);
}

static inline int release(struct fixture *f, struct file *file)
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

static inline struct stream *open_stream(struct fixture *f)
{
	struct stream *stream;

	assert_int_equal(stream_open(f->pool, 7, &stream), 0);
	return stream;
}

static inline struct segment *segment_of(struct fixture *f, const struct file *file)
{
	struct segment *segment = segment_get(f->pool, file->extents[0].segment);

	segment_put(segment); /* the table keeps it */
	return segment;
}

static inline const char *device_of(struct fixture *f, const struct file *file, unsigned chunk)
{
	return f->names[segment_of(f, file)->row.chunks[chunk].device];
}

#endif
