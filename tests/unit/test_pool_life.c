/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A pool from creation to the loss of devices, each behaviour once. */
#include "pool_fixture.h"

#define DEVICE_SIZE (4u << 20)

static struct bytes text(const char *s)
{
	return (struct bytes){s, strlen(s)};
}

static void fill(uint8_t *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(seed * 131 + i * 7 + (i >> 8));
}

/* Appends, settles and refers; the extents come back. */
static int put_data(struct pool *pool, struct stream *stream, struct env *env, const void *bytes,
	size_t length, struct extent *extents, unsigned *count)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, length};
	struct txn *txn;
	uint64_t lsn;
	int rc;

	*count = 8;
	rc = stream_append(stream, &iov, 1, length, 0, extents, count);
	if (!rc)
		rc = pool_settle(pool, extents, *count);
	if (!rc)
		rc = txn_begin(pool, env, &txn);
	if (rc)
		return rc;
	rc = txn_refer(txn, extents, *count);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	return rc ? rc : pool_sync(pool, lsn);
}

static void must_read(
	struct pool *pool, const struct extent *extents, unsigned count, const uint8_t *expected)
{
	static uint8_t buffer[1 << 20];
	struct read_part parts[8];
	size_t at = 0;

	for (unsigned i = 0; i < count; i++) {
		parts[i] = (struct read_part){extents[i], buffer + at};
		at += extents[i].length;
	}
	memset(buffer, 0xee, at);
	assert_int_equal(pool_read_wait(pool, parts, count), 0);
	assert_memory_equal(buffer, expected, at);
}

static void test_open_and_close(void **state)
{
	struct fixture f;
	struct error error = {0};

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 1);
	for (int i = 0; i < 20; i++) {
		struct pool *pool = fixture_must_open(&f);

		assert_int_equal(pool_epoch(pool), i + 1);
		assert_int_equal(pool_close(pool, &error), 0);
	}
	fixture_free(&f);
}

static void put_text(struct pool *pool, struct env *env, const char *key, const char *value)
{
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, env, &txn), 0);
	assert_int_equal(txn_put(txn, env, text(key), text(value)), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

static void must_have(struct env *env, const char *key, const char *value)
{
	struct txn *view;
	struct bytes found;

	assert_int_equal(view_begin(env, &view), 0);
	assert_int_equal(txn_get(view, env, text(key), &found), 0);
	assert_int_equal(found.length, strlen(value));
	assert_memory_equal(found.data, value, found.length);
	txn_abort(view);
}

static void keys_survive(bool crash)
{
	struct fixture f;
	struct error error = {0};
	struct pool *pool;
	struct env *env;
	uint32_t volume;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 2);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "models");
	for (int i = 0; i < 40; i++) {
		char value[16];

		snprintf(value, sizeof(value), "v%d", i);
		assert_int_equal(env_get(pool, volume, &env), 0);
		put_text(pool, env, "key", value);
		if (i % 10 == 5)
			assert_int_equal(pool_checkpoint(pool), 0);
		env_put(env);
		if (crash)
			fixture_crash(&f, pool, SIM_LOSE_ALL);
		else if (pool_close(pool, &error))
			fail_msg("%s", error.message);
		pool = fixture_must_open(&f);
		assert_int_equal(env_get(pool, volume, &env), 0);
		must_have(env, "key", value);
		env_put(env);
	}
	assert_int_equal(pool_close(pool, &error), 0);
	fixture_free(&f);
}

static void test_keys_survive_closing(void **state)
{
	keys_survive(false);
}

static void test_keys_survive_crashes(void **state)
{
	keys_survive(true);
}

/* Sizes around a block, a row, a segment; after each a crash; everything is read each time. */
static void test_data_survives_crashes(void **state)
{
	static const size_t sizes[] = {1, 100, 4096, 5000, 16384, 16385, 65536, 70000, 200000};
	static uint8_t bytes[200000];
	struct extent extents[9][8];
	unsigned counts[9];
	struct fixture f;
	struct error error = {0};
	struct pool *pool;
	uint32_t volume;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 3);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "models");
	for (unsigned i = 0; i < 9; i++) {
		struct stream *stream;

		assert_int_equal(stream_open(pool, volume, &stream), 0);
		fill(bytes, sizes[i], i);
		assert_int_equal(
			put_data(pool, stream, NULL, bytes, sizes[i], extents[i], &counts[i]), 0);
		must_read(pool, extents[i], counts[i], bytes);
		fixture_crash(&f, pool, i % 2 ? SIM_LOSE_ALL : SIM_RANDOM);
		pool = fixture_must_open(&f);
		for (unsigned j = 0; j <= i; j++) {
			fill(bytes, sizes[j], j);
			must_read(pool, extents[j], counts[j], bytes);
		}
		assert_int_equal(pool_maintain(pool), 0);
		for (unsigned j = 0; j <= i; j++) {
			fill(bytes, sizes[j], j);
			must_read(pool, extents[j], counts[j], bytes);
		}
	}
	assert_int_equal(pool_close(pool, &error), 0);
	fixture_free(&f);
}

/* Writes with 6, 5, 4, 3 devices; after each the loss of two more where that is promised. */
static void test_width_shrinks(void **state)
{
	static uint8_t bytes[100000];
	struct extent extents[4][8];
	unsigned counts[4];
	struct fixture f;
	struct error error = {0};

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 4);
	for (unsigned lost = 0; lost < 4; lost++) {
		struct pool *pool = fixture_must_open(&f);
		struct stream *stream;
		char name[16];
		uint32_t volume;

		snprintf(name, sizeof(name), "v%u", lost);
		volume = fixture_make_volume(pool, name);
		assert_int_equal(stream_open(pool, volume, &stream), 0);
		fill(bytes, sizeof(bytes), lost);
		assert_int_equal(put_data(pool, stream, NULL, bytes, sizeof(bytes), extents[lost],
					 &counts[lost]),
			0);
		/* The next device goes while the pool is open and being written. */
		sim_kill_device(f.world, f.names[lost]);
		if (lost < 3) {
			unsigned count = 8;
			struct extent more[8];

			assert_int_equal(
				put_data(pool, stream, NULL, bytes, sizeof(bytes), more, &count),
				0);
			must_read(pool, more, count, bytes);
		}
		must_read(pool, extents[lost], counts[lost], bytes);
		if (lost < 3)
			assert_int_equal(pool_close(pool, &error), 0);
		else
			pool_abandon(pool);
	}
	fixture_free(&f);
}

static void test_an_old_minority_is_refused(void **state)
{
	struct fixture f;
	struct error error = {0};
	struct pool *pool;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 5);
	sim_kill_device(f.world, "d0");
	sim_kill_device(f.world, "d1");
	pool = fixture_must_open(&f);
	assert_int_equal(pool_close(pool, &error), 0);
	for (int i = 2; i < 6; i++)
		sim_kill_device(f.world, f.names[i]);
	sim_revive_device(f.world, "d0");
	sim_revive_device(f.world, "d1");
	assert_int_equal(fixture_open(&f, &pool, &error), -EIO);
	fixture_free(&f);
}

/* Opens as `host` of that boot after a crash of the last owner; how long that took on the world's
 * clock, or the error. */
static int64_t open_after_crash(
	struct fixture *f, struct pool **pool, const char *host, uint8_t boot, bool force)
{
	struct pool_open_options options = {.paths = f->paths,
		.path_count = f->devices,
		.host = host,
		.boot_id = {boot},
		.force = force,
		.metadata_limit = 16u << 20};
	struct error error = {0};
	uint64_t began;
	int rc;

	if (*pool)
		fixture_crash(f, *pool, SIM_RANDOM);
	began = engine_time(f->engine);
	rc = pool_open(f->engine, &options, pool, &error);
	return rc ? rc : (int64_t)(engine_time(f->engine) - began);
}

/* An owner that crashed is waited for unless it was a process of this very boot. */
static void test_the_wait_for_an_owner(void **state)
{
	const int64_t watch = 10000000000;
	struct pool *pool = NULL;
	struct error error = {0};
	struct fixture f;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 7);
	assert_in_range(open_after_crash(&f, &pool, "alpha", 1, false), 0, watch - 1);
	assert_in_range(open_after_crash(&f, &pool, "alpha", 1, false), 0, watch - 1);
	assert_in_range(open_after_crash(&f, &pool, "alpha", 2, false), watch, 2 * watch);
	assert_int_equal(open_after_crash(&f, &pool, "beta", 2, false), -EBUSY);
	assert_null(pool);
	assert_in_range(open_after_crash(&f, &pool, "beta", 2, true), watch, 2 * watch);
	assert_int_equal(pool_close(pool, &error), 0);
	pool = NULL;
	assert_in_range(open_after_crash(&f, &pool, "beta", 3, false), 0, watch - 1);
	assert_int_equal(pool_close(pool, &error), 0);
	fixture_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_and_close),
		cmocka_unit_test(test_keys_survive_closing),
		cmocka_unit_test(test_keys_survive_crashes),
		cmocka_unit_test(test_data_survives_crashes),
		cmocka_unit_test(test_width_shrinks),
		cmocka_unit_test(test_an_old_minority_is_refused),
		cmocka_unit_test(test_the_wait_for_an_owner),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
