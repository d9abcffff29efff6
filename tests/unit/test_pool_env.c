/* SPDX-License-Identifier: LGPL-3.0-or-later. Environments, transactions, images. links: pool */
#include "pool_fake.h"

/* --- helpers --------------------------------------------------------------------------------- */

static struct txn *begin(struct env *env)
{
	struct txn *txn;

	assert_int_equal(txn_begin(fake.pool, env, &txn), 0);
	return txn;
}

static uint64_t commit(struct txn *txn)
{
	uint64_t lsn;

	assert_int_equal(txn_commit(txn, &lsn), 0);
	return lsn;
}

static uint64_t put_one(struct env *env, const char *key, const char *value)
{
	struct txn *txn = begin(env);

	assert_int_equal(txn_put(txn, env, text(key), text(value)), 0);
	return commit(txn);
}

static struct env *make_volume(const char *name)
{
	struct volume_row row;
	struct env *env;
	struct txn *txn = begin(NULL);

	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), 0);
	commit(txn);
	assert_int_equal(env_get(fake.pool, row.id, &env), 0);
	return env;
}

static bool equals(struct bytes bytes, const char *string)
{
	return bytes.length == strlen(string) && !memcmp(bytes.data, string, bytes.length);
}

static void expect(struct env *env, const char *key, const char *value)
{
	struct txn *view;
	struct bytes found;
	int rc;

	assert_int_equal(view_begin(env, &view), 0);
	rc = txn_get(view, env, text(key), &found);
	if (value)
		assert_true(!rc && equals(found, value));
	else
		assert_int_equal(rc, -ENOENT);
	txn_abort(view);
}

/* All of an environment, as a hash that does not depend on how it came about. */
static uint64_t digest(struct env *env, unsigned *count)
{
	uint8_t key[POOL_KEY_MAX + 1];
	size_t length = 0;
	struct bytes found, value;
	struct txn *view;
	uint64_t hash = 14695981039346656037ull;

	*count = 0;
	assert_int_equal(view_begin(env, &view), 0);
	while (length <= POOL_KEY_MAX &&
		!txn_seek(view, env, (struct bytes){key, length}, &found, &value)) {
		for (size_t i = 0; i < found.length; i++)
			hash = (hash ^ ((const uint8_t *)found.data)[i]) * 1099511628211ull;
		for (size_t i = 0; i < value.length; i++)
			hash = (hash ^ ((const uint8_t *)value.data)[i]) * 1099511628211ull;
		memcpy(key, found.data, found.length);
		key[found.length] = 0;
		length = found.length + 1;
		++*count;
	}
	txn_abort(view);
	return hash;
}

static uint32_t chance(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

/* Random puts and deletes in many transactions; values up to `most` bytes. */
static void fill(struct env *env, unsigned transactions, unsigned each, size_t most)
{
	uint8_t *value = malloc(most + 1);
	uint32_t seed = transactions;

	memset(value, 'v', most + 1);
	for (unsigned i = 0; i < transactions; i++) {
		struct txn *txn = begin(env);

		for (unsigned j = 0; j < each; j++) {
			char key[16];
			int rc;

			snprintf(key, sizeof(key), "k%05u", chance(&seed) % 20000);
			if (chance(&seed) % 4)
				rc = txn_put(txn, env, text(key),
					(struct bytes){value, chance(&seed) % (most + 1)});
			else
				rc = txn_delete(txn, env, text(key));
			assert_true(!rc || rc == -ENOENT);
		}
		commit(txn);
	}
	free(value);
}

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
	uint64_t last = 0;
	struct txn *txn;

	for (unsigned i = 0; i < 20; i++) {
		txn = begin(i % 2 ? a : b);
		assert_true(txn_change(txn) > last);
		last = txn_change(txn);
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
	txn = begin(NULL);
	assert_true(txn_change(txn) > last);
	txn_abort(txn);
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

/* --- records -----------------------------------------------------------------------------------
 */

static int count_change(void *data, const struct change *change)
{
	unsigned *sum = data;

	/* All of it is read, for the sanitizer to see. */
	for (size_t i = 0; i < change->key.length; i++)
		*sum += ((const uint8_t *)change->key.data)[i];
	for (size_t i = 0; i < change->value.length; i++)
		*sum += ((const uint8_t *)change->value.data)[i];
	assert_true(change->key.length && change->key.length <= POOL_KEY_MAX);
	return 0;
}

static struct fake_record *make_record(void)
{
	struct env *env = make_volume("a");
	struct txn *txn;

	put_one(env, "old", "x");
	txn = begin(env);
	assert_int_equal(txn_put(txn, env, text("key"), text("value")), 0);
	assert_int_equal(txn_delete(txn, env, text("old")), 0);
	assert_int_equal(txn_put(txn, fake.pool->env, text("Sid"), text("")), 0);
	commit(txn);
	env_put(env);
	return &fake.records[fake.record_count - 1];
}

static int check_change(void *data, const struct change *change)
{
	unsigned *number = data;

	switch ((*number)++) {
	case 0:
		assert_true(change->type == CHANGE_PUT && change->volume == 1);
		assert_true(equals(change->key, "key") && equals(change->value, "value"));
		return 0;
	case 1:
		assert_true(change->type == CHANGE_DELETE && change->volume == 1);
		assert_true(equals(change->key, "old") && !change->value.length);
		return 0;
	default:
		assert_true(change->type == CHANGE_PUT && change->volume == 0);
		assert_true(equals(change->key, "Sid") && !change->value.length);
		return 0;
	}
}

static void test_record_round_trip(void **state)
{
	const struct fake_record *record = make_record();
	unsigned number = 0;

	assert_int_equal(changes_decode(record->payload, record->length, check_change, &number), 0);
	assert_int_equal(number, 3);
	assert_int_equal(record->length, 3 * TXN_CHANGE_OVERHEAD + 3 + 5 + 3 + 3);
}

/* Each in a buffer of just its size, for the sanitizer. */
static int decode_copy(const uint8_t *payload, size_t length)
{
	uint8_t *copy = malloc(length + 1);
	unsigned sum = 0;
	int rc;

	memcpy(copy + 1, payload, length);
	rc = changes_decode(copy + 1, length, count_change, &sum);
	free(copy);
	return rc;
}

static void test_record_cut_anywhere(void **state)
{
	const struct fake_record *record = make_record();
	size_t whole[] = {0, TXN_CHANGE_OVERHEAD + 8, 2 * TXN_CHANGE_OVERHEAD + 11};

	for (size_t i = 0; i < record->length; i++) {
		bool boundary = i == whole[0] || i == whole[1] || i == whole[2];

		assert_int_equal(decode_copy(record->payload, i), boundary ? 0 : -EBADMSG);
	}
}

static void test_record_with_flipped_bits(void **state)
{
	const struct fake_record *record = make_record();
	unsigned refused = 0;

	for (size_t bit = 0; bit < record->length * 8; bit++) {
		int rc;

		record->payload[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		rc = decode_copy(record->payload, record->length);
		assert_true(!rc || rc == -EBADMSG);
		refused += rc != 0;
		record->payload[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	assert_true(refused > 100);
}

static void test_random_bytes_are_no_record(void **state)
{
	uint8_t bytes[64];
	uint32_t seed = 5;

	for (unsigned i = 0; i < 20000; i++) {
		size_t length = 1 + chance(&seed) % sizeof(bytes);

		for (size_t j = 0; j < length; j++)
			bytes[j] = (uint8_t)(chance(&seed) % (j % 11 ? 4 : 256));
		decode_copy(bytes, length);
	}
}

/* --- replay ------------------------------------------------------------------------------------
 */

static void replay_all(
	int (*replay)(struct pool *pool, uint64_t lsn, const void *payload, size_t length))
{
	for (unsigned i = 0; i < fake.record_count; i++)
		assert_int_equal(replay(fake.pool, fake.records[i].lsn, fake.records[i].payload,
					 fake.records[i].length),
			0);
	assert_int_equal(txn_replay_end(fake.pool), 0);
}

static void check_replayed(uint64_t volume_digest, uint64_t own_digest, uint64_t lsn)
{
	struct journal_position from;
	struct env *env;
	unsigned count;

	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	assert_true(digest(env, &count) == volume_digest);
	assert_true(digest(fake.pool->env, &count) == own_digest);
	assert_int_equal(env_applied(env), lsn);
	assert_true(env_replay_from(env, &from));
	env_put(env);
}

static void test_replay_makes_the_same(void **state)
{
	struct env *env = make_volume("a");
	uint64_t volume_digest, own_digest, lsn;
	unsigned count;

	fill(env, 300, 20, 200);
	fill(fake.pool->env, 20, 20, 200);
	put_one(env, "last", "one");
	lsn = env_applied(env);
	volume_digest = digest(env, &count);
	own_digest = digest(fake.pool->env, &count);
	env_put(env);
	fake_close(fake.pool);

	fake_open(2);
	replay_all(txn_replay_pool);
	replay_all(txn_replay_volumes);
	check_replayed(volume_digest, own_digest, lsn);
	/* Once more changes nothing: all of it is applied. */
	replay_all(txn_replay);
	check_replayed(volume_digest, own_digest, lsn);
	fake_close(fake.pool);

	fake_open(3);
	replay_all(txn_replay);
	check_replayed(volume_digest, own_digest, lsn);
}

static void test_replay_passes_over_deleted_volumes(void **state)
{
	struct env *env = make_volume("a");
	struct txn *txn;

	put_one(env, "k", "v");
	env_put(env);
	txn = begin(NULL);
	assert_int_equal(volume_row_delete(txn, 1), 0);
	commit(txn);
	fake_close(fake.pool);
	fake_open(2);
	replay_all(txn_replay_pool);
	replay_all(txn_replay_volumes);
	assert_null(fake.pool->volumes);
	assert_int_equal(env_get(fake.pool, 1, &env), -ENOENT);
	fake_close(fake.pool);
	fake_open(3);
	replay_all(txn_replay);
	assert_null(fake.pool->volumes);
}

static void quiet(enum log_level level, const char *line)
{
}

static void test_replay_of_what_cannot_be(void **state)
{
	static const uint8_t delete[] = {CHANGE_DELETE, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 'k'};
	static const uint8_t put[] = {CHANGE_PUT, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 'k', 'v', 9};

	log_set_sink(quiet);
	assert_int_equal(txn_replay(fake.pool, 9, delete, sizeof(delete)), -EBADMSG);
	assert_int_equal(txn_replay(fake.pool, 10, put, sizeof(put)), -EBADMSG);
	assert_int_equal(txn_replay_end(fake.pool), 0);
	expect(fake.pool->env, "k", NULL); /* a record that is not whole is not begun */
	assert_int_equal(txn_replay(fake.pool, 11, put, sizeof(put) - 1), 0);
	assert_int_equal(txn_replay(fake.pool, 12, delete, sizeof(delete)), 0);
	expect(fake.pool->env, "k", NULL);
	log_set_sink(NULL);
}

/* --- the place in the journal --------------------------------------------------------------- */

static void test_where_replay_starts(void **state)
{
	struct env *env = make_volume("a");
	struct journal_position from, image_from = {.lsn = 1000, .position = 5};

	assert_false(env_replay_from(env, &from));
	while (fake.lsn % 4 != 2)
		put_one(fake.pool->env, "k", "v");
	put_one(env, "k", "v");
	assert_true(env_replay_from(env, &from));
	assert_true(from.lsn <= fake.lsn && from.lsn + 4 > fake.lsn);
	for (unsigned i = 0; i < 10; i++) {
		struct journal_position now;

		put_one(env, "k", "v");
		assert_true(env_replay_from(env, &now));
		assert_int_equal(now.lsn, from.lsn);
	}
	env_set_image(env, env_applied(env) - 1, &image_from);
	assert_true(env_replay_from(env, &from));
	assert_int_equal(from.lsn, 1000);
	env_set_image(env, env_applied(env), &image_from);
	assert_false(env_replay_from(env, &from));
	put_one(env, "k", "v");
	assert_true(env_replay_from(env, &from));
	assert_true(from.lsn <= fake.lsn);
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
	env_set_image(list[0], env_applied(list[0]), &from);
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

/* --- images ------------------------------------------------------------------------------------
 */

static void record_image(uint32_t volume, const struct image_row *image)
{
	uint8_t key[9], value[4096];
	struct writer w = writer_on(value, sizeof(value));
	struct txn *txn = begin(NULL);

	image_row_encode(image, &w);
	assert_false(w.overflow);
	assert_int_equal(
		txn_put(txn, fake.pool->env, fake_key(key, KEY_IMAGE, (uint64_t)volume << 32),
			(struct bytes){value, (size_t)(w.at - value)}),
		0);
	commit(txn);
}

static void write_image(struct env *env, struct image_row *image, struct journal_position *from)
{
	struct segment_row *segments = calloc(ROOT_SEGMENTS_MAX, sizeof(*segments));
	unsigned count = ROOT_SEGMENTS_MAX, before = fake.closed;

	assert_int_equal(image_write(fake.pool, env, image, from, segments, &count), 0);
	assert_int_equal(image->kind, IMAGE_FULL);
	assert_int_equal(image->lsn, env_applied(env));
	assert_true(fake.durable >= image->lsn);
	assert_true(from->lsn <= fake.lsn + 1);
	assert_true(count > 0);
	assert_int_equal(fake.closed - before, count);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(segments[i].state, SEGMENT_CLOSED);
	assert_int_equal(fake.streams, 0);
	free(segments);
}

static void test_image_round_trip(void **state)
{
	struct env *env = make_volume("a"), *loaded;
	struct journal_position from;
	struct image_row image;
	uint64_t before, lsn;
	unsigned count, loaded_count;

	fake.segment_size = 700000;
	fill(env, 300, 30, 900);
	before = digest(env, &count);
	assert_true(count > 3000);
	write_image(env, &image, &from);
	assert_true(image.extent_count > 1);
	record_image(1, &image);
	env_set_image(env, image.lsn, &from);
	lsn = env_applied(env);
	env_put(env);
	assert_null(fake.pool->volumes);

	assert_int_equal(env_get(fake.pool, 1, &loaded), 0);
	assert_true(digest(loaded, &loaded_count) == before);
	assert_int_equal(loaded_count, count);
	assert_int_equal(env_applied(loaded), lsn);
	assert_int_equal(env_image_lsn(loaded), lsn);
	assert_false(env_replay_from(loaded, &from));
	put_one(loaded, "k", "v");
	expect(loaded, "k", "v");
	env_put(loaded);
}

static void test_image_and_the_journal_after_it(void **state)
{
	struct env *env = make_volume("a");
	struct journal_position from, own_from;
	struct image_row image, own;
	uint64_t volume_digest, own_digest, lsn;
	unsigned count;

	fill(env, 50, 10, 100);
	write_image(env, &image, &from);
	record_image(1, &image);
	fill(env, 50, 10, 100);
	write_image(fake.pool->env, &own, &own_from);
	fill(env, 20, 10, 100);
	put_one(env, "last", "x");
	lsn = fake.lsn;
	volume_digest = digest(env, &count);
	own_digest = digest(fake.pool->env, &count);
	env_put(env);
	fake_close(fake.pool);

	fake_open(2);
	env_destroy(fake.pool->env);
	assert_int_equal(env_create(fake.pool, 0, &own, &fake.pool->env), 0);
	replay_all(txn_replay_pool);
	replay_all(txn_replay_volumes);
	check_replayed(volume_digest, own_digest, lsn);
}

/* An image that has everything is not loaded just because old records name its volume. */
static void test_replay_loads_only_what_it_must(void **state)
{
	struct env *env = make_volume("a");
	struct journal_position from;
	struct image_row image;

	put_one(env, "k", "v");
	write_image(env, &image, &from);
	record_image(1, &image);
	env_put(env);
	fake_close(fake.pool);
	fake_open(2);
	replay_all(txn_replay_pool);
	replay_all(txn_replay_volumes);
	assert_null(fake.pool->volumes);
	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	expect(env, "k", "v");
	env_put(env);
}

static void test_image_of_nothing(void **state)
{
	struct env *env = make_volume("a"), *loaded;
	struct journal_position from;
	struct image_row image;
	unsigned count;

	write_image(env, &image, &from);
	assert_int_equal(env_create(fake.pool, 1, &image, &loaded), 0);
	digest(loaded, &count);
	assert_int_equal(count, 0);
	env_destroy(loaded);
	env_put(env);
}

static void test_large_values_cross_pieces(void **state)
{
	struct env *env = make_volume("a"), *loaded;
	struct journal_position from;
	struct image_row image;
	unsigned count, loaded_count;
	uint64_t before;

	fake.segment_size = 1500000;
	fake.pool->k = 32; /* a record that holds a large value */
	fill(env, 40, 4, 180000);
	before = digest(env, &count);
	write_image(env, &image, &from);
	assert_int_equal(env_create(fake.pool, 1, &image, &loaded), 0);
	assert_true(digest(loaded, &loaded_count) == before);
	assert_int_equal(loaded_count, count);
	env_destroy(loaded);
	env_put(env);
}

static void test_image_is_a_snapshot(void **state)
{
	struct env *env = make_volume("a");
	struct view *view;
	MDB_txn *lock;

	/* What image_write() does first: a look under the write lock outlives it. */
	put_one(env, "k", "old");
	assert_int_equal(env_write_begin(env, &lock), 0);
	assert_int_equal(env_view_begin(env, &view), 0);
	env_write_abort(env, lock);
	put_one(env, "k", "new");
	MDB_val key = {1, "k"}, value;
	assert_int_equal(mdb_get(view->txn, env->store->dbi, &key, &value), 0);
	assert_memory_equal(value.mv_data, "old", 3);
	env_view_end(env, view);
	expect(env, "k", "new");
	env_put(env);
}

static int load_copy(const struct image_row *image)
{
	struct env *loaded;
	int rc = env_create(fake.pool, 1, image, &loaded);

	if (!rc)
		env_destroy(loaded);
	return rc;
}

static struct env *small_image(struct image_row *image)
{
	struct env *env = make_volume("a");
	struct journal_position from;

	put_one(env, "alpha", "1");
	put_one(env, "beta", "22");
	put_one(env, "gamma", "");
	write_image(env, image, &from);
	return env;
}

static void test_broken_images(void **state)
{
	struct image_row image, row;
	struct env *env = small_image(&image);
	uint8_t *bytes = fake.bytes[image.extents[0].segment];

	log_set_sink(quiet);
	assert_int_equal(load_copy(&image), 0);
	for (size_t bit = 0; bit < image.length * 8; bit++) {
		int rc;

		bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		rc = load_copy(&image);
		assert_true(rc == -EBADMSG || rc == -ENOTSUP);
		format_waive_checksums = true;
		load_copy(&image);
		format_waive_checksums = false;
		bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	for (uint64_t length = 0; length < image.length; length++) {
		row = image;
		row.length = row.extents[0].length = length;
		format_waive_checksums = true;
		assert_int_equal(load_copy(&row), -EBADMSG);
		format_waive_checksums = false;
	}
	row = image;
	row.length--;
	assert_int_equal(load_copy(&row), -EBADMSG);
	row = image;
	row.extent_count = UINT32_MAX;
	assert_int_equal(load_copy(&row), -EBADMSG);
	row = image;
	row.kind = IMAGE_DELTA;
	assert_int_equal(load_copy(&row), -ENOTSUP);
	row = image;
	row.lsn++;
	assert_int_equal(load_copy(&row), -EBADMSG);
	row = image;
	row.extents[0].segment = 4000;
	assert_int_equal(load_copy(&row), -EIO);
	assert_int_equal(load_copy(&image), 0);
	log_set_sink(NULL);
	env_put(env);
}

static void test_broken_image_leaves_nothing(void **state)
{
	struct image_row image;
	struct env *env = small_image(&image), *other;
	unsigned count;

	log_set_sink(quiet);
	record_image(1, &image);
	env_set_image(env, image.lsn, &(struct journal_position){0});
	env_put(env);
	fake.bytes[image.extents[0].segment][image.length - 1] ^= 1;
	assert_int_equal(env_get(fake.pool, 1, &env), -EBADMSG);
	assert_null(fake.pool->volumes);
	assert_int_equal(env_create(fake.pool, 1, NULL, &other), 0);
	assert_int_equal(image_load(fake.pool, other, &image), -EBADMSG);
	digest(other, &count);
	assert_int_equal(count, 0);
	env_destroy(other);
	fake.bytes[image.extents[0].segment][image.length - 1] ^= 1;
	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	expect(env, "beta", "22");
	env_put(env);
	log_set_sink(NULL);
}

static int count_entry(void *data, struct bytes key, struct bytes value)
{
	++*(unsigned *)data;
	return 0;
}

static void test_image_fed_byte_by_byte(void **state)
{
	struct image_row image;
	struct env *env = small_image(&image);
	unsigned count = 0;
	struct image_decoder decoder = {.entry = count_entry, .data = &count};

	for (size_t i = 0; i < image.length; i++) {
		assert_int_equal(image_decode_end(&decoder), -EBADMSG);
		assert_int_equal(
			image_decode(&decoder, fake.bytes[image.extents[0].segment] + i, 1), 0);
	}
	assert_int_equal(image_decode_end(&decoder), 0);
	assert_int_equal(count, 3);
	assert_int_equal(decoder.head.volume, 1);
	assert_int_equal(image_decode(&decoder, "x", 1), -EBADMSG);
	image_decoder_release(&decoder);
	env_put(env);
}

static void test_image_that_cannot_be_written(void **state)
{
	struct image_row image;
	struct journal_position from;
	struct env *env = make_volume("a");
	unsigned count = ROOT_SEGMENTS_MAX;
	uint64_t length;

	log_set_sink(quiet);
	fill(env, 100, 10, 500);
	fake.append_error = -ENOSPC;
	assert_int_equal(image_write(fake.pool, env, &image, &from, NULL, &count), -ENOSPC);
	assert_int_equal(fake.streams, 0);
	fake.append_error = 0;
	fake.segment_size = 400000;
	assert_int_equal(image_write(fake.pool, env, &image, &from, NULL, &count), 0);
	length = image.length;
	count = 1; /* segments than there is room for */
	fake.segment_size = (uint32_t)(length / 2);
	assert_int_equal(
		image_write(fake.pool, env, &image, &from, &(struct segment_row){0}, &count),
		-E2BIG);
	assert_int_equal(fake.abandoned, length);
	assert_int_equal(image.kind, 0);
	log_set_sink(NULL);
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
	change = txn_change(txn);
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
	replay_all(txn_replay_pool);
	replay_all(txn_replay_volumes);
	assert_int_equal(env_get(fake.pool, 1, &a), 0);
	assert_int_equal(env_get(fake.pool, 2, &b), 0);
	assert_true(digest(a, &count) == digests[0]);
	assert_true(digest(b, &count) == digests[1]);
	assert_true(digest(fake.pool->env, &count) == digests[2]);
	env_put(a);
	env_put(b);
}

/* Many ask for the same volume at once: it is loaded once. */
static void *get_and_put(void *data)
{
	for (unsigned i = 0; i < 200; i++) {
		struct env *env;

		assert_int_equal(env_get(fake.pool, 1, &env), 0);
		expect(env, "beta", "22");
		env_put(env);
	}
	return NULL;
}

static void test_threads_that_load(void **state)
{
	struct image_row image;
	struct env *env = small_image(&image);
	pthread_t threads[4];

	record_image(1, &image);
	env_set_image(env, image.lsn, &(struct journal_position){0});
	env_put(env);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, get_and_put, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_null(fake.pool->volumes);
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
		TEST(test_change_attributes_only_grow),
		TEST(test_urgent),
		TEST(test_full_environment_can_still_delete),
		TEST(test_record_round_trip),
		TEST(test_record_cut_anywhere),
		TEST(test_record_with_flipped_bits),
		TEST(test_random_bytes_are_no_record),
		TEST(test_replay_makes_the_same),
		TEST(test_replay_passes_over_deleted_volumes),
		TEST(test_replay_of_what_cannot_be),
		TEST(test_where_replay_starts),
		TEST(test_unused_clean_environments_go),
		TEST(test_image_round_trip),
		TEST(test_image_and_the_journal_after_it),
		TEST(test_replay_loads_only_what_it_must),
		TEST(test_image_of_nothing),
		TEST(test_large_values_cross_pieces),
		TEST(test_image_is_a_snapshot),
		TEST(test_broken_images),
		TEST(test_broken_image_leaves_nothing),
		TEST(test_image_fed_byte_by_byte),
		TEST(test_image_that_cannot_be_written),
		TEST(test_threads),
		TEST(test_threads_that_load),
		TEST(test_costs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
