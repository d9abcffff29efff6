/* SPDX-License-Identifier: LGPL-3.0-or-later. Environments, transactions. links: pool */
#include "test_pool_env.h"

/* --- transactions ------------------------------------------------------------------------------
 */

static void test_commit_is_seen_and_abort_is_not(void **state)
{
	struct env *env = make_volume("a");
	struct txn *txn = begin(env), *view;
	struct bytes value;
	uint64_t before = fake.lsn;

	assert_int_equal(txn_put(txn, env, text("k"), text("v")), 0);
	assert_int_equal(txn_get(txn, env, text("k"), &value), 0);
	assert_true(equals(value, "v"));
	expect(env, "k", NULL);
	txn_abort(txn);
	expect(env, "k", NULL);
	assert_int_equal(fake.lsn, before);

	assert_int_equal(view_begin(env, &view), 0);
	assert_int_equal(put_one(env, "k", "v"), before + 1);
	assert_int_equal(txn_get(view, env, text("k"), &value), -ENOENT);
	txn_abort(view);
	expect(env, "k", "v");
	assert_int_equal(env_applied(env), before + 1);
	env_put(env);
}

static void test_nothing_changed(void **state)
{
	struct env *env = make_volume("a");
	struct txn *txn = begin(env);
	struct bytes value;
	uint64_t lsn = 7, before = fake.lsn;

	assert_int_equal(txn_get(txn, fake.pool->env, text("x"), &value), -ENOENT);
	assert_int_equal(txn_delete(txn, env, text("x")), -ENOENT);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(lsn, 0);
	assert_int_equal(fake.lsn, before);
	env_put(env);
}

static void test_one_record_over_two_environments(void **state)
{
	struct env *env = make_volume("a"), *own = pool_env(fake.pool);
	struct txn *txn = begin(env);
	uint64_t lsn;
	unsigned records = fake.record_count;

	assert_int_equal(txn_put(txn, env, text("k"), text("v")), 0);
	assert_int_equal(txn_put(txn, own, text("Sx"), text("w")), 0);
	lsn = commit(txn);
	assert_int_equal(fake.record_count, records + 1);
	assert_int_equal(env_applied(env), lsn);
	assert_int_equal(env_applied(own), lsn);
	expect(env, "k", "v");
	expect(own, "Sx", "w");
	put_one(env, "k", "x");
	assert_int_equal(env_applied(own), lsn);
	env_put(env);
}

struct noted {
	struct txn_hook hook;
	uint64_t *order, *lsn;
	unsigned number;
};

static void note(struct txn_hook *hook, uint64_t lsn)
{
	struct noted *noted = (struct noted *)hook;

	*noted->order = *noted->order * 10 + noted->number;
	*noted->lsn = lsn;
	free(noted);
}

static void add_note(struct txn *txn, unsigned number, uint64_t *order, uint64_t *lsn)
{
	struct noted *noted = calloc(1, sizeof(*noted));

	*noted = (struct noted){{.run = note}, order, lsn, number};
	txn_on_end(txn, &noted->hook);
}

static void test_hooks(void **state)
{
	struct txn *txn = begin(NULL);
	uint64_t order = 0, told = 99, lsn;

	for (unsigned i = 1; i <= 3; i++)
		add_note(txn, i, &order, &told);
	assert_int_equal(txn_put(txn, fake.pool->env, text("k"), text("v")), 0);
	lsn = commit(txn);
	assert_int_equal(order, 123);
	assert_int_equal(told, lsn);
	txn = begin(NULL);
	add_note(txn, 4, &order, &told);
	txn_abort(txn);
	assert_int_equal(order, 1234);
	assert_int_equal(told, 0);
}

static void test_refusals(void **state)
{
	struct env *env = make_volume("a");
	struct txn *txn;
	uint64_t lsn;

	fake.pool->read_only = true;
	assert_int_equal(txn_begin(fake.pool, env, &txn), -EROFS);
	fake.pool->read_only = false;
	env_set_sealed(env);
	assert_int_equal(txn_begin(fake.pool, env, &txn), -EROFS);
	assert_int_equal(txn_begin(fake.pool, NULL, &txn), 0);
	txn_abort(txn);
	env_clear_sealed(env);
	txn = begin(env);
	assert_int_equal(txn_put(txn, env, text("k"), text("v")), 0);
	atomic_store(&fake.pool->failure, -EIO);
	assert_int_equal(txn_commit(txn, &lsn), -EIO);
	assert_int_equal(txn_begin(fake.pool, env, &txn), -EIO);
	atomic_store(&fake.pool->failure, 0);
	expect(env, "k", NULL);
	env_put(env);
}

static void test_room(void **state)
{
	struct env *env = make_volume("a");
	struct txn *txn;
	uint8_t *value = calloc(1, 400000);
	uint64_t lsn;
	size_t room;

	txn = begin(env);
	room = txn_room(txn);
	assert_int_equal(room, 256 * 1024 + 4 * 16384);
	assert_int_equal(txn_put(txn, env, text("key"), (struct bytes){value, 1000}), 0);
	assert_int_equal(txn_room(txn), room - 1000 - 3 - TXN_CHANGE_OVERHEAD);
	room = txn_room(txn) - 3 - TXN_CHANGE_OVERHEAD;
	assert_int_equal(txn_put(txn, env, text("ke2"), (struct bytes){value, room}), 0);
	assert_int_equal(txn_room(txn), 0);
	assert_int_equal(txn_put(txn, env, text("k"), text("")), -E2BIG);
	assert_int_equal(txn_get(txn, env, text("key"), &(struct bytes){0}), -E2BIG);
	assert_int_equal(txn_commit(txn, &lsn), -E2BIG);
	expect(env, "key", NULL);
	fake.record_max = 100;
	txn = begin(env);
	assert_int_equal(txn_room(txn), 100);
	txn_abort(txn);
	free(value);
	env_put(env);
}

static void test_keys_that_are_refused(void **state)
{
	struct env *env = make_volume("a");
	static const uint8_t key[POOL_KEY_MAX + 1] = {1};
	struct bytes value;
	struct txn *txn = begin(env);
	uint64_t lsn;

	assert_int_equal(txn_get(txn, env, (struct bytes){key, 0}, &value), -EINVAL);
	assert_int_equal(txn_get(txn, env, (struct bytes){key, sizeof(key)}, &value), -EINVAL);
	assert_int_equal(txn_put(txn, env, (struct bytes){key, POOL_KEY_MAX}, text("")), 0);
	assert_int_equal(txn_get(txn, env, (struct bytes){key, POOL_KEY_MAX}, &value), 0);
	assert_int_equal(value.length, 0);
	assert_int_equal(txn_put(txn, env, (struct bytes){key, sizeof(key)}, text("")), -EINVAL);
	assert_int_equal(txn_commit(txn, &lsn), -EINVAL);
	env_put(env);
}

/* What a caller got from txn_seek() may be put again, although the page under it may change. */
static void test_putting_what_was_found(void **state)
{
	struct env *env = make_volume("a");
	struct bytes key, value;
	struct txn *txn;

	put_one(env, "a", "first");
	put_one(env, "b", "second");
	txn = begin(env);
	assert_int_equal(txn_seek(txn, env, text("b"), &key, &value), 0);
	assert_int_equal(txn_put(txn, env, text("a"), value), 0);
	assert_int_equal(txn_seek(txn, env, text("b"), &key, &value), 0);
	assert_int_equal(txn_delete(txn, env, key), 0);
	commit(txn);
	expect(env, "a", "second");
	expect(env, "b", NULL);
	env_put(env);
}

static void check_seeks(struct txn *txn, struct env *env)
{
	static const struct {
		const char *key, *at, *back; /* NULL: none */
	} cases[] = {
		{"", "b", NULL},
		{"a", "b", NULL},
		{"b", "b", "b"},
		{"ba", "bb", "b"},
		{"bb", "bb", "bb"},
		{"bba", "d", "bb"},
		{"c", "d", "bb"},
		{"d", "d", "d"},
		{"da", NULL, "d"},
		{"z", NULL, "d"},
	};
	struct bytes found, value;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int rc = txn_seek(txn, env, text(cases[i].key), &found, &value);

		assert_int_equal(rc, cases[i].at ? 0 : -ENOENT);
		assert_true(rc || (equals(found, cases[i].at) && equals(value, cases[i].at)));
		rc = txn_seek_back(txn, env, text(cases[i].key), &found, &value);
		assert_int_equal(rc, cases[i].back ? 0 : -ENOENT);
		assert_true(rc || (equals(found, cases[i].back) && equals(value, cases[i].back)));
	}
}

static void test_seeks(void **state)
{
	struct env *env = make_volume("a");
	struct bytes found, value;
	struct txn *txn;

	assert_int_equal(view_begin(env, &txn), 0);
	assert_int_equal(txn_seek(txn, env, text(""), &found, &value), -ENOENT);
	assert_int_equal(txn_seek(txn, env, text("a"), &found, &value), -ENOENT);
	assert_int_equal(txn_seek_back(txn, env, text("a"), &found, &value), -ENOENT);
	txn_abort(txn);
	put_one(env, "d", "d");
	put_one(env, "b", "b");
	put_one(env, "bb", "bb");
	assert_int_equal(view_begin(env, &txn), 0);
	check_seeks(txn, env);
	txn_abort(txn);
	txn = begin(env);
	check_seeks(txn, env);
	assert_int_equal(txn_delete(txn, env, text("bb")), 0);
	assert_int_equal(txn_seek_back(txn, env, text("c"), &found, &value), 0);
	assert_true(equals(found, "b"));
	txn_abort(txn);
	env_put(env);
}

/* Over page boundaries: each key is found from itself, from below and from above. */
/* By bytes, then by length: keys are compared eight bytes at a time. */
static void test_order(void **state)
{
	static const char bytes[] = {0, 1, 'a', '\x7f', '\x80', '\xff'};
	struct env *env = make_volume("a");
	struct bytes found, value, at = {"", 0};
	uint64_t chance = 1;
	struct txn *txn = begin(env);
	char key[24], before[25] = "";
	unsigned count = 0;

	for (unsigned i = 0; i < 2000; i++) {
		unsigned length = 1 + i % sizeof(key);

		for (unsigned j = 0; j < length; j++) {
			chance = chance * 6364136223846793005ull + 1442695040888963407ull;
			/* Most are alike up to their last bytes. */
			key[j] = j + 2 < length ? 'a' : bytes[(chance >> 33) % sizeof(bytes)];
		}
		assert_int_equal(txn_put(txn, env, (struct bytes){key, length}, text("v")), 0);
	}
	while (!txn_seek(txn, env, at, &found, &value)) {
		size_t common = found.length < at.length ? found.length : at.length;
		int order = memcmp(before, found.data, common);

		assert_true(order < 0 || (!order && at.length <= found.length));
		memcpy(before, found.data, found.length);
		before[found.length] = 0; /* the least key behind it */
		at = (struct bytes){before, found.length + 1};
		count++;
	}
	assert_true(count > 500);
	txn_abort(txn);
	env_put(env);
}

static void test_adding(void **state)
{
	struct env *env = make_volume("a");
	struct txn *txn = begin(env);
	size_t room;

	assert_int_equal(txn_add(txn, env, text("k"), text("v")), 0);
	room = txn_room(txn);
	assert_int_equal(txn_add(txn, env, text("k"), text("w")), -EEXIST);
	assert_int_equal(txn_room(txn), room);
	assert_int_equal(txn_add(txn, env, text("l"), text("x")), 0);
	commit(txn);
	expect(env, "k", "v");
	expect(env, "l", "x");
	env_put(env);
}

static void test_seeks_over_many_pages(void **state)
{
	struct env *env = make_volume("a");
	struct bytes found, value;
	struct txn *txn;
	char key[16], near[16];

	for (unsigned i = 0; i < 3000; i += 100) {
		txn = begin(env);
		for (unsigned j = i; j < i + 100; j++) {
			snprintf(key, sizeof(key), "%06u", j * 10);
			assert_int_equal(txn_put(txn, env, text(key), text(key)), 0);
		}
		commit(txn);
	}
	assert_int_equal(view_begin(env, &txn), 0);
	for (unsigned i = 0; i < 3000; i++) {
		snprintf(key, sizeof(key), "%06u", i * 10);
		snprintf(near, sizeof(near), "%06u", i * 10 + 5);
		assert_int_equal(txn_seek_back(txn, env, text(near), &found, &value), 0);
		assert_true(equals(found, key));
		if (i) {
			snprintf(near, sizeof(near), "%06u", i * 10 - 5);
			assert_int_equal(txn_seek(txn, env, text(near), &found, &value), 0);
			assert_true(equals(found, key));
		}
	}
	txn_abort(txn);
	env_put(env);
}

static void test_change_attributes_only_grow(void **state)
{
	struct env *a = make_volume("a"), *b = make_volume("b");
	uint64_t last = 0, change;
	struct txn *txn;

	for (unsigned i = 0; i < 20; i++) {
		txn = begin(i % 2 ? a : b);
		change = pool_change(fake.pool);
		assert_true(change > last);
		last = change;
		if (i % 3)
			txn_abort(txn);
		else
			assert_int_equal(txn_put(txn, i % 2 ? a : b, text("k"), text("v")), 0);
		if (i % 3 == 0)
			commit(txn);
	}
	env_put(a);
	env_put(b);
	fake_close(fake.pool);
	fake.lsn -= 3; /* the crash loses records */
	fake_open(2);
	assert_true(pool_change(fake.pool) > last);
}

static void test_urgent(void **state)
{
	txn_abort(begin(NULL));
	assert_false(fake.was_urgent);
	txn_urgent_begin();
	txn_urgent_begin();
	txn_urgent_end();
	txn_abort(begin(NULL));
	assert_true(fake.was_urgent);
	txn_urgent_end();
	txn_abort(begin(NULL));
	assert_false(fake.was_urgent);
}

static int put_many(struct env *env, unsigned from, unsigned count)
{
	static const uint8_t value[1000];
	struct txn *txn = begin(env);
	uint64_t lsn;
	int rc = 0;

	for (unsigned i = from; !rc && i < from + count; i++) {
		char key[16];

		snprintf(key, sizeof(key), "%08u", i);
		rc = txn_put(txn, env, text(key), (struct bytes){value, sizeof(value)});
	}
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	return txn_commit(txn, &lsn);
}

static int delete_many(struct env *env, unsigned from, unsigned count)
{
	struct txn *txn = begin(env);
	uint64_t lsn;

	for (unsigned i = from; i < from + count; i++) {
		char key[16];

		snprintf(key, sizeof(key), "%08u", i);
		assert_int_equal(txn_delete(txn, env, text(key)), 0);
	}
	return txn_commit(txn, &lsn);
}

static void test_full_environment_can_still_delete(void **state)
{
	struct env *env;
	unsigned filled = 0, again = 0;

	fake_close(fake.pool);
	fake_metadata_limit = 4u << 20;
	fake_open(1);
	env = make_volume("a");
	while (!put_many(env, filled, 50))
		filled += 50;
	assert_true(filled > 2500 && filled < 4500);
	assert_int_equal(put_many(env, filled, 1), -ENOSPC);
	/* As large as before is allowed, and so is the pool's own environment. */
	assert_int_equal(put_many(env, 0, 10), 0);
	put_one(fake.pool->env, "k", "v");
	while (again < filled - 50) {
		assert_int_equal(delete_many(env, again, 50), 0);
		again += 50;
	}
	for (unsigned i = 0; i < again; i += 50)
		assert_int_equal(put_many(env, i, 50), 0);
	env_put(env);
}

/* --- the registry ------------------------------------------------------------------------------
 */

static void test_unused_clean_environments_go(void **state)
{
	struct env *env = make_volume("a"), *again, **list;
	struct journal_position from = {0};
	unsigned count;

	assert_int_equal(env_get(fake.pool, 1, &again), 0);
	assert_ptr_equal(env, again);
	env_put(again);
	assert_non_null(fake.pool->volumes);
	env_put(env);
	assert_null(fake.pool->volumes);

	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	put_one(env, "k", "v");
	env_put(env);
	assert_int_equal(env_list(fake.pool, &list, &count), 0);
	assert_int_equal(count, 1);
	env_set_image(list[0], &(struct image_row){.lsn = env_applied(list[0])}, &from);
	env_put(list[0]);
	free(list);
	assert_null(fake.pool->volumes);
	assert_int_equal(env_list(fake.pool, &list, &count), 0);
	assert_int_equal(count, 0);
	free(list);
	assert_int_equal(env_get(fake.pool, 2, &env), -ENOENT);
	assert_int_equal(env_get(fake.pool, 0, &env), 0);
	assert_ptr_equal(env, pool_env(fake.pool));
	env_put(env);
}

/* --- threads -----------------------------------------------------------------------------------
 */

struct worker {
	pthread_t thread;
	struct env *env;
	unsigned number;
};

static void work(struct worker *worker, unsigned i)
{
	struct env *env = worker->env, *own = pool_env(fake.pool);
	struct txn *txn, *view;
	struct bytes value;
	char key[24];
	uint64_t lsn, change, seen;

	assert_int_equal(txn_begin(fake.pool, env, &txn), 0);
	change = pool_change(fake.pool);
	if (!txn_get(txn, env, text("change"), &value)) {
		memcpy(&seen, value.data, sizeof(seen));
		assert_true(change > seen);
	}
	snprintf(key, sizeof(key), "w%u.%u", worker->number, i);
	assert_int_equal(
		txn_put(txn, env, text("change"), (struct bytes){&change, sizeof(change)}), 0);
	assert_int_equal(txn_put(txn, env, text(key), text("v")), 0);
	if (i % 2)
		assert_int_equal(txn_put(txn, own, text(key), text("v")), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_true(env_applied(env) >= lsn);
	assert_int_equal(view_begin(env, &view), 0);
	assert_int_equal(txn_get(view, env, text(key), &value), 0);
	txn_abort(view);
}

static void *run_worker(void *data)
{
	struct worker *worker = data;

	for (unsigned i = 0; i < 500; i++)
		work(worker, i);
	return NULL;
}

static void test_threads(void **state)
{
	struct env *a = make_volume("a"), *b = make_volume("b");
	struct worker workers[6];
	uint64_t digests[3];
	unsigned count;

	for (unsigned i = 0; i < 6; i++) {
		workers[i] = (struct worker){.env = i % 2 ? a : b, .number = i};
		assert_int_equal(
			pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]), 0);
	}
	for (unsigned i = 0; i < 6; i++)
		pthread_join(workers[i].thread, NULL);
	digests[0] = digest(a, &count);
	assert_int_equal(count, 1501);
	digests[1] = digest(b, &count);
	digests[2] = digest(fake.pool->env, &count);
	env_put(a);
	env_put(b);
	fake_close(fake.pool);
	fake_open(2);
	replay_all();
	assert_int_equal(env_get(fake.pool, 1, &a), 0);
	assert_int_equal(env_get(fake.pool, 2, &b), 0);
	assert_true(digest(a, &count) == digests[0]);
	assert_true(digest(b, &count) == digests[1]);
	assert_true(digest(fake.pool->env, &count) == digests[2]);
	env_put(a);
	env_put(b);
}

/* --- what it costs (printed, not judged) --------------------------------------------------------
 */

static void print_cost(const char *what, double since, unsigned count)
{
	print_message("             %s: %.2f us\n", what, (fake_seconds() - since) / count * 1e6);
}

static void test_costs(void **state)
{
	struct env *env = make_volume("a");
	struct txn *txn;
	struct bytes value;
	double since = fake_seconds();

	fake.keep_none = true;
	for (unsigned i = 0; i < 1000; i++) {
		struct env *other;

		assert_int_equal(env_create(fake.pool, 9, NULL, &other), 0);
		env_destroy(other);
	}
	print_cost("an environment made and let go", since, 1000);
	since = fake_seconds();
	for (unsigned i = 0; i < 20000; i++)
		put_one(env, "key", "value");
	print_cost("a transaction of one put", since, 20000);
	since = fake_seconds();
	for (unsigned i = 0; i < 20000; i++) {
		txn = begin(env);
		assert_int_equal(txn_put(txn, env, text("key"), text("v")), 0);
		assert_int_equal(txn_put(txn, env, text("yek"), text("v")), 0);
		assert_int_equal(txn_put(txn, fake.pool->env, text("Sx"), text("v")), 0);
		commit(txn);
	}
	print_cost("one of three puts in two environments", since, 20000);
	since = fake_seconds();
	for (unsigned i = 0; i < 100000; i++) {
		assert_int_equal(view_begin(env, &txn), 0);
		assert_int_equal(txn_get(txn, env, text("key"), &value), 0);
		txn_abort(txn);
	}
	print_cost("a view with one get", since, 100000);
	env_put(env);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_begin, fake_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_commit_is_seen_and_abort_is_not),
		TEST(test_nothing_changed),
		TEST(test_one_record_over_two_environments),
		TEST(test_hooks),
		TEST(test_refusals),
		TEST(test_room),
		TEST(test_keys_that_are_refused),
		TEST(test_putting_what_was_found),
		TEST(test_seeks),
		TEST(test_seeks_over_many_pages),
		TEST(test_order),
		TEST(test_adding),
		TEST(test_change_attributes_only_grow),
		TEST(test_urgent),
		TEST(test_full_environment_can_still_delete),
		TEST(test_unused_clean_environments_go),
		TEST(test_threads),
		TEST(test_costs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
