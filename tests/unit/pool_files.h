/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Files of a pool of fixture `f`, each with bytes of its own, made durable one by one. */
#ifndef POOL_FILES_H
#define POOL_FILES_H

#include "pool_fixture.h"

#define FILES 64
#define FILE_SIZE 40000u
#define JOURNAL_SIZE (512u << 10)

static struct fixture f;
static struct pool *pool;
static struct stream *stream;
static uint32_t volume;
static struct extent extents[FILES][8];
static unsigned extent_count[FILES], files;
static uint8_t back[FILE_SIZE];

static inline uint8_t byte_of(unsigned file, size_t at)
{
	return (uint8_t)(file * 31 + at * 7 + at / 256);
}

static inline int add_file(void)
{
	static uint8_t bytes[FILE_SIZE];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct extent *x = extents[files];
	unsigned *count = &extent_count[files];
	struct txn *txn;
	uint64_t lsn;
	int rc;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = byte_of(files, i);
	*count = 8;
	rc = stream_append(stream, &iov, 1, sizeof(bytes), 0, x, count);
	if (!rc)
		rc = pool_settle(pool, x, *count);
	if (!rc)
		rc = txn_begin(pool, NULL, &txn);
	if (rc)
		return rc;
	rc = txn_refer(txn, x, *count);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	if (!rc)
		rc = pool_sync(pool, lsn);
	files += !rc;
	return rc;
}

static inline void add_files(unsigned count)
{
	while (count--) {
		assert_int_equal(add_file(), 0);
		assert_int_equal(pool_maintain(pool), 0);
	}
}

static inline void must_have_file(unsigned file)
{
	struct read_part parts[8];
	size_t at = 0;

	for (unsigned p = 0; p < extent_count[file]; p++) {
		parts[p] = (struct read_part){extents[file][p], back + at};
		at += extents[file][p].length;
	}
	memset(back, 0, sizeof(back));
	assert_int_equal(pool_read_wait(pool, parts, extent_count[file]), 0);
	for (size_t i = 0; i < sizeof(back); i++)
		assert_int_equal(back[i], byte_of(file, i));
}

static inline void must_have_all_files(void)
{
	for (unsigned i = 0; i < files; i++)
		must_have_file(i);
}

static inline void open_pool(void)
{
	pool = fixture_must_open(&f);
	assert_int_equal(stream_open(pool, volume, &stream), 0);
}

/* The pool of the fixture, opened, with a few files. */
static inline void begin_files(unsigned count)
{
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "v");
	assert_int_equal(stream_open(pool, volume, &stream), 0);
	files = 0;
	add_files(count);
}

static inline void end(void)
{
	pool_abandon(pool);
	fixture_free(&f);
}

/* For reading alone: drops nothing. */
static inline void open_to_look(void)
{
	struct pool_open_options options = {.paths = f.paths,
		.path_count = f.devices,
		.name = "tank",
		.host = "alpha",
		.metadata_limit = 16u << 20,
		.read_only = true};
	struct error error;

	if (pool_open(f.engine, &options, &pool, &error))
		fail_msg("pool_open: %s: %s", error.object, error.message);
}

static inline int resilver(struct pool_resilver_report *report)
{
	struct error error = {0};

	return pool_resilver(pool, report, NULL, NULL, &error);
}

/* Those that are there. */
static inline void become_whole(void)
{
	struct pool_resilver_report report;

	assert_int_equal(resilver(&report), 0);
	assert_int_equal(report.lost_blocks, 0);
	assert_int_equal(report.waiting_segments, 0);
	assert_true(report.whole);
}

#endif
