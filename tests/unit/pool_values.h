/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Pools with something in them: numbered values in volumes' environments, data without files. */
#ifndef POOL_VALUES_H
#define POOL_VALUES_H

#include <stdlib.h>

#include "pool_fixture.h"
#include "pool/env.h"
#include "pool/internal.h"

#define VALUE 1800u /* two to a page of an environment */

static inline struct env *get_env(struct pool *pool, uint32_t volume)
{
	struct env *env;

	assert_int_equal(env_get(pool, volume, &env), 0);
	return env;
}

static inline struct bytes number_key(char key[16], unsigned number)
{
	return (struct bytes){key, (size_t)snprintf(key, 16, "k%08u", number)};
}

static inline void number_value(uint8_t value[VALUE], unsigned number)
{
	for (unsigned i = 0; i < VALUE; i++)
		value[i] = (uint8_t)(number * 31 + i);
}

/* A value of a number; or no value any more. */
static inline int change(struct pool *pool, struct env *env, unsigned number, bool put)
{
	uint8_t value[VALUE];
	struct txn *txn;
	struct bytes k;
	char key[16];
	uint64_t lsn;
	int rc = txn_begin(pool, env, &txn);

	if (rc)
		return rc;
	k = number_key(key, number);
	number_value(value, number);
	rc = put ? txn_put(txn, env, k, (struct bytes){value, VALUE}) : txn_delete(txn, env, k);
	if (!rc)
		return txn_commit(txn, &lsn);
	txn_abort(txn);
	return rc;
}

/* Numbers from `from` on, maintained as a pool is; how many there are then. */
static inline unsigned fill_env(
	struct pool *pool, struct env *env, unsigned from, unsigned to, int *rc)
{
	unsigned i = from;

	for (*rc = 0; i < to; i++) {
		*rc = change(pool, env, i, true);
		if (*rc)
			break;
		if (i % 16 == 0)
			assert_int_equal(pool_maintain(pool), 0);
	}
	return i;
}

static inline void check_env(struct env *env, unsigned from, unsigned to)
{
	uint8_t expected[VALUE];
	struct bytes value;
	struct txn *view;
	char key[16];

	assert_int_equal(view_begin(env, &view), 0);
	for (unsigned i = from; i < to; i++) {
		number_value(expected, i);
		assert_int_equal(txn_get(view, env, number_key(key, i), &value), 0);
		assert_int_equal(value.length, VALUE);
		assert_memory_equal(value.data, expected, VALUE);
	}
	txn_abort(view);
}

static inline int put_data(struct pool *pool, struct stream *stream, size_t length)
{
	static uint8_t bytes[1 << 16];
	struct iovec iov = {bytes, length};
	struct extent extents[8];
	unsigned count = 8;
	struct txn *txn;
	uint64_t lsn;
	int rc = stream_append(stream, &iov, 1, length, 0, extents, &count);

	if (!rc)
		rc = pool_settle(pool, extents, count);
	if (!rc)
		rc = txn_begin(pool, NULL, &txn);
	if (rc)
		return rc;
	rc = txn_refer(txn, extents, count);
	if (!rc)
		return txn_commit(txn, &lsn);
	txn_abort(txn);
	return rc;
}

/* Data of a volume until there is no space. */
static inline void fill_pool(struct pool *pool, uint32_t volume)
{
	struct stream *stream;
	int rc;

	assert_int_equal(stream_open(pool, volume, &stream), 0);
	for (unsigned i = 0; !(rc = put_data(pool, stream, 1 << 16)); i++)
		if (i % 8 == 0)
			assert_int_equal(pool_maintain(pool), 0);
	assert_int_equal(rc, -ENOSPC);
	stream_close(stream);
	assert_int_equal(pool_maintain(pool), 0);
}

static inline unsigned image_segments(struct pool *pool)
{
	struct segment **list;
	unsigned count, images = 0;

	assert_int_equal(segment_list(pool, &list, &count), 0);
	for (unsigned i = 0; i < count; i++) {
		images += list[i]->row.purpose == PURPOSE_IMAGE;
		segment_put(list[i]);
	}
	free(list);
	return images;
}

static inline void close_pool(struct pool *pool)
{
	struct error error = {0};

	if (pool_close(pool, &error))
		fail_msg("%s: %s", error.object, error.message);
}

static inline struct pool *crash(struct fixture *f, struct pool *pool)
{
	fixture_crash(f, pool, SIM_KEEP_ALL);
	return fixture_must_open(f);
}

static inline void delete_volume(struct pool *pool, uint32_t volume)
{
	int rc;

	do {
		struct txn *txn;
		uint64_t lsn;

		assert_int_equal(txn_begin(pool, NULL, &txn), 0);
		rc = volume_row_delete(txn, volume);
		assert_true(!rc || rc == -EAGAIN);
		assert_int_equal(txn_commit(txn, &lsn), 0);
	} while (rc);
}

#endif
