/* SPDX-License-Identifier: LGPL-3.0-or-later. Records, replay, where it starts. links: pool */
#include "test_pool_env.h"

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
	replay_all();
	check_replayed(volume_digest, own_digest, lsn);
	/* Once more changes nothing: all of it is applied. */
	replay_all();
	check_replayed(volume_digest, own_digest, lsn);
	fake_close(fake.pool);

	fake_open(3);
	replay_all();
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
	replay_all();
	assert_null(fake.pool->volumes);
	assert_int_equal(env_get(fake.pool, 1, &env), -ENOENT);
	fake_close(fake.pool);
	fake_open(3);
	replay_all();
	assert_null(fake.pool->volumes);
}

static void test_replay_of_what_cannot_be(void **state)
{
	static const uint8_t delete[] = {CHANGE_DELETE, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 'k'};
	static const uint8_t put[] = {CHANGE_PUT, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 'k', 'v', 9};

	log_set_sink(quiet);
	assert_int_equal(txn_replay_pool(fake.pool, 9, delete, sizeof(delete)), -EBADMSG);
	assert_int_equal(txn_replay_pool(fake.pool, 10, put, sizeof(put)), -EBADMSG);
	assert_int_equal(txn_replay_end(fake.pool), 0);
	expect(fake.pool->env, "k", NULL); /* a record that is not whole is not begun */
	assert_int_equal(txn_replay_pool(fake.pool, 11, put, sizeof(put) - 1), 0);
	assert_int_equal(txn_replay_pool(fake.pool, 12, delete, sizeof(delete)), 0);
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
	env_set_image(env, &(struct image_row){.lsn = env_applied(env) - 1}, &image_from);
	assert_true(env_replay_from(env, &from));
	assert_int_equal(from.lsn, 1000);
	env_set_image(env, &(struct image_row){.lsn = env_applied(env)}, &image_from);
	assert_false(env_replay_from(env, &from));
	put_one(env, "k", "v");
	assert_true(env_replay_from(env, &from));
	assert_true(from.lsn <= fake.lsn);
	env_put(env);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_begin, fake_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_record_round_trip),
		TEST(test_record_cut_anywhere),
		TEST(test_record_with_flipped_bits),
		TEST(test_random_bytes_are_no_record),
		TEST(test_replay_makes_the_same),
		TEST(test_replay_passes_over_deleted_volumes),
		TEST(test_replay_of_what_cannot_be),
		TEST(test_where_replay_starts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
