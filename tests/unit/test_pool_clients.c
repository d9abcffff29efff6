/* SPDX-License-Identifier: LGPL-3.0-or-later. Clients of the server. links: pool */
#include "pool_fixture.h"

#include "pool/journal.h"

#define DEVICE_SIZE (4u << 20)
#define FRESH (1ull << 63)
#define MANY 700 /* more than one record's worth of them go */

static struct fixture fixture;

static int setup(void **state)
{
	fixture_make(&fixture, FIXTURE_DEVICES, 4, 2, DEVICE_SIZE, 7);
	return 0;
}

static int teardown(void **state)
{
	fixture_free(&fixture);
	return 0;
}

static void put(struct pool *pool, const char *name)
{
	uint64_t lsn;

	assert_int_equal(client_put(pool, name, strlen(name), &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

/* How many there are; *epochs: a bit for each epoch of theirs, and the highest where one is fresh.
 */
static unsigned count(struct pool *pool, uint64_t *epochs)
{
	struct client_row row = {0};
	struct txn *view;
	unsigned found = 0;

	*epochs = 0;
	assert_int_equal(view_begin(pool_env(pool), &view), 0);
	while (!client_next(view, &row)) {
		*epochs |= 1ull << row.epoch | (row.fresh ? FRESH : 0);
		found++;
	}
	assert_int_equal(client_next(view, &row), -ENOENT);
	txn_abort(view);
	return found;
}

static bool is_there(struct pool *pool, const void *name, size_t length)
{
	struct client_row row = {0};
	struct txn *view;
	bool found = false;

	assert_int_equal(view_begin(pool_env(pool), &view), 0);
	while (!found && !client_next(view, &row))
		found = row.length == length && !memcmp(row.name, name, length);
	txn_abort(view);
	return found;
}

static int put_another(struct pool *pool)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	assert_int_equal(property_set(txn, 0, "test:one", "value"), 0);
	return txn_commit(txn, &lsn);
}

static void test_one_comes_and_goes(void **state)
{
	struct pool *pool = fixture_must_open(&fixture);
	uint64_t lsn, epochs;

	put(pool, "alpha");
	put(pool, "beta");
	put(pool, "alpha");
	assert_int_equal(count(pool, &epochs), 2);
	assert_int_equal(epochs, 1ull << pool_epoch(pool));
	assert_int_equal(client_delete(pool, "alpha", 5, &lsn), 0);
	assert_int_equal(client_delete(pool, "alpha", 5, &lsn), -ENOENT);
	assert_int_equal(client_delete(pool, "alph", 4, &lsn), -ENOENT);
	assert_false(is_there(pool, "alpha", 5));
	assert_true(is_there(pool, "beta", 4));
	assert_int_equal(pool_close(pool, NULL), 0);
}

/* Until it is put as one that has something; also of an earlier epoch. */
static void test_a_new_one_is_fresh(void **state)
{
	struct pool *pool = fixture_must_open(&fixture);
	uint64_t lsn, epochs;

	assert_int_equal(client_put_new(pool, "new", 3, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
	assert_int_equal(pool_close(pool, NULL), 0);
	pool = fixture_must_open(&fixture);
	assert_int_equal(client_put_new(pool, "new", 3, &lsn), 0);
	assert_int_equal(count(pool, &epochs), 1);
	assert_int_equal(epochs, 1ull << (pool_epoch(pool) - 1) | FRESH);
	put(pool, "new");
	assert_int_equal(client_put_new(pool, "new", 3, &lsn), 0);
	assert_int_equal(count(pool, &epochs), 1);
	assert_int_equal(epochs, 1ull << pool_epoch(pool));
	assert_int_equal(pool_close(pool, NULL), 0);
}

static void test_names_of_any_bytes(void **state)
{
	static uint8_t name[POOL_CLIENT_MAX + 1];
	struct pool *pool = fixture_must_open(&fixture);
	uint64_t lsn, epochs;

	assert_int_equal(client_put(pool, name, 0, &lsn), -EINVAL);
	assert_int_equal(client_put(pool, name, sizeof(name), &lsn), -EINVAL);
	for (size_t length = 1; length <= POOL_CLIENT_MAX; length *= 2)
		assert_int_equal(client_put(pool, name, length, &lsn), 0);
	for (size_t length = 1; length <= POOL_CLIENT_MAX; length *= 2)
		assert_true(is_there(pool, name, length));
	assert_int_equal(count(pool, &epochs), 11);
	assert_int_equal(pool_close(pool, NULL), 0);
}

/* Of an earlier epoch are those that have not come in this one; after a crash, too. */
static void test_earlier_ones_are_forgotten(void **state)
{
	struct pool *pool = fixture_must_open(&fixture);
	uint64_t first = pool_epoch(pool), epochs, lsn;
	char name[16];

	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "client %u", i);
		put(pool, name);
	}
	assert_int_equal(pool_checkpoint(pool), 0);
	put(pool, "last");
	fixture_crash(&fixture, pool, SIM_LOSE_ALL);

	pool = fixture_must_open(&fixture);
	assert_int_equal(count(pool, &epochs), MANY + 1);
	assert_int_equal(epochs, 1ull << first);
	put(pool, "client 3");
	assert_int_equal(client_put_new(pool, "client 4", 8, &lsn), 0);
	assert_int_equal(lsn, pool_lsn(pool));
	assert_int_equal(client_put_new(pool, "new", 3, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
	assert_int_equal(count(pool, &epochs), MANY + 2);
	assert_int_equal(epochs, 1ull << first | 1ull << pool_epoch(pool) | FRESH);
	assert_int_equal(clients_forget_earlier(pool), 0);
	assert_int_equal(clients_forget_earlier(pool), 0);
	fixture_crash(&fixture, pool, SIM_LOSE_ALL);

	pool = fixture_must_open(&fixture);
	assert_int_equal(count(pool, &epochs), 2);
	assert_true(is_there(pool, "client 3", 8) && is_there(pool, "new", 3));
	assert_int_equal(clients_forget_earlier(pool), 0);
	assert_int_equal(count(pool, &epochs), 0);
	assert_int_equal(pool_close(pool, NULL), 0);
}

/* Which others have reserved, and only what is urgent gets through. */
static void test_in_a_full_journal(void **state)
{
	struct pool *pool = fixture_must_open(&fixture);
	uint64_t lsn, epochs, held = 0;

	put(pool, "alpha");
	put(pool, "beta");
	fixture_crash(&fixture, pool, SIM_LOSE_ALL);
	pool = fixture_must_open(&fixture);
	for (size_t bytes = 1 << 16; bytes; bytes /= 2)
		while (!journal_reserve(pool, bytes, false))
			held += bytes;
	assert_true(held);
	assert_int_equal(put_another(pool), -ENOSPC);
	put(pool, "gamma");
	assert_int_equal(client_delete(pool, "alpha", 5, &lsn), 0);
	assert_int_equal(client_delete(pool, "alpha", 5, &lsn), -ENOENT);
	assert_int_equal(clients_forget_earlier(pool), 0);
	assert_int_equal(count(pool, &epochs), 1);
	assert_true(is_there(pool, "gamma", 5));
	fixture_crash(&fixture, pool, SIM_LOSE_ALL);

	pool = fixture_must_open(&fixture);
	assert_int_equal(count(pool, &epochs), 1);
	assert_int_equal(pool_close(pool, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_in_a_full_journal, setup, teardown),
		cmocka_unit_test_setup_teardown(test_one_comes_and_goes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_new_one_is_fresh, setup, teardown),
		cmocka_unit_test_setup_teardown(test_names_of_any_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_earlier_ones_are_forgotten, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
