/* SPDX-License-Identifier: LGPL-3.0-or-later. Memory runs out in a pool. links: pool */
/* not with a sanitizer */
/* The N-th allocation of some work fails, for all N: nothing of what it began is left behind. */
#include "pool_fixture.h"

#include "common/log.h"
#include "failing_malloc.h"
#include "pool/internal.h"

static const char *last; /* value that was set */

static void quiet(enum log_level level, const char *line)
{
}

/* Whether the n-th allocation was reached. */
static bool without(struct pool *pool, uint64_t n, int (*work)(struct pool *pool))
{
	bool reached;

	fail_allocation = n;
	work(pool);
	reached = !fail_allocation;
	fail_allocation = 0;
	return reached;
}

static unsigned count_segments(struct pool *pool, enum segment_state state, bool of_images)
{
	struct segment **list;
	unsigned all, count = 0;

	assert_int_equal(segment_list(pool, &list, &all), 0);
	for (unsigned i = 0; i < all; i++) {
		count += list[i]->row.state == state &&
			 (list[i]->row.purpose == PURPOSE_IMAGE) == of_images;
		segment_put(list[i]);
	}
	free(list);
	return count;
}

/* --- checkpoints -------------------------------------------------------------------------- */

static void set_property(struct pool *pool, const char *value)
{
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(property_set(txn, 0, "key", value), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

static void must_have(struct pool *pool, const char *value)
{
	char found[16] = "";
	struct txn *view;

	assert_int_equal(view_begin(pool_env(pool), &view), 0);
	assert_int_equal(property_get(view, 0, "key", found, sizeof(found)), 0);
	txn_abort(view);
	assert_string_equal(found, value);
}

/* The n-th allocation fails in each of `times` checkpoints. */
static bool fail_checkpoints(struct pool *pool, uint64_t n, unsigned times)
{
	bool reached = true;

	for (unsigned i = 0; i < times; i++) {
		last = i % 2 ? "odd" : "even";
		set_property(pool, last);
		reached = without(pool, n, pool_checkpoint);
		if (pool_failure(pool))
			return reached; /* the memory of a device's writes */
	}
	return reached;
}

/* Then one is made, or there is a crash. */
static bool check_checkpoints(uint64_t n, unsigned times, bool cut)
{
	struct fixture f;
	struct pool *pool;
	unsigned images;
	bool reached;

	fixture_make(&f, 6, 4, 2, 16 << 20, 1);
	pool = fixture_must_open(&f);
	assert_int_equal(pool_checkpoint(pool), 0);
	images = count_segments(pool, SEGMENT_CLOSED, true);
	reached = fail_checkpoints(pool, n, times);
	if (cut || pool_failure(pool)) {
		fixture_crash(&f, pool, SIM_LOSE_ALL);
		pool = fixture_must_open(&f);
		must_have(pool, last);
	}
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_int_equal(pool_maintain(pool), 0);
	assert_int_equal(count_segments(pool, SEGMENT_OPEN, true), 0);
	assert_int_equal(count_segments(pool, SEGMENT_CLOSED, true), images);
	pool_abandon(pool);
	fixture_free(&f);
	return reached;
}

static void test_a_checkpoint(void **state)
{
	for (unsigned times = 1; times <= 3; times++) {
		uint64_t n = 1;

		while (check_checkpoints(n, times, false) && check_checkpoints(n, times, true))
			n++;
		assert_in_range(n, 20, 1000);
	}
}

/* --- reserved segments --------------------------------------------------------------------- */

static int append(struct pool *pool)
{
	static uint8_t bytes[4096];
	struct extent extents[4];
	unsigned count = 4;
	struct stream *stream;
	int rc = stream_open(pool, 1, &stream);

	if (rc)
		return rc;
	rc = stream_append(stream, &(struct iovec){bytes, sizeof(bytes)}, 1, sizeof(bytes), 0,
		extents, &count);
	if (!rc)
		pool_abandon_extents(pool, extents, count);
	stream_close(stream);
	return rc;
}

/* Those of the stock that lie on a member that fails are given up by whoever takes one. */
static void test_the_stock(void **state)
{
	struct fixture f;
	bool reached = true;

	for (uint64_t n = 1; reached; n++) {
		struct pool *pool;

		fixture_make(&f, 8, 4, 2, 16 << 20, 1);
		pool = fixture_must_open(&f);
		assert_int_equal(segment_restock(pool), 0);
		atomic_store(&pool->devices[n % 8].failing, true);
		reached = without(pool, n, append);
		atomic_store(&pool->devices[n % 8].failing, false);
		if (!pool_failure(pool)) {
			assert_int_equal(pool_maintain(pool), 0);
			assert_int_equal(
				count_segments(pool, SEGMENT_RESERVED, false), pool->stock_count);
			assert_int_equal(pool->unowned, pool->stock_count);
		}
		pool_abandon(pool);
		fixture_free(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_checkpoint),
		cmocka_unit_test(test_the_stock),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
