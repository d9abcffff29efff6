/* SPDX-License-Identifier: LGPL-3.0-or-later. Volume table and properties. links: pool */
#include "pool_fake.h"

static struct txn *begin(void)
{
	struct txn *txn;

	assert_int_equal(txn_begin(fake.pool, NULL, &txn), 0);
	return txn;
}

static void commit(struct txn *txn)
{
	uint64_t lsn;

	assert_int_equal(txn_commit(txn, &lsn), 0);
}

static uint32_t create(const char *name)
{
	struct volume_row row;
	struct txn *txn = begin();

	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), 0);
	commit(txn);
	return row.id;
}

static void test_create_and_find(void **state)
{
	struct volume_row made, row;
	struct txn *txn = begin();

	assert_int_equal(volume_row_create(txn, "imagenet", VOLUME_DATASET, &made), 0);
	assert_int_equal(made.id, 1);
	assert_int_equal(made.export_id, 1);
	assert_int_equal(made.uuid[6] >> 4, 4);
	commit(txn);
	txn = begin();
	assert_int_equal(volume_row_find(txn, "imagenet", &row), 0);
	assert_memory_equal(&row, &made, sizeof(row));
	assert_int_equal(volume_row_get(txn, 1, &row), 0);
	assert_memory_equal(&row, &made, sizeof(row));
	assert_int_equal(volume_row_get(txn, 2, &row), -ENOENT);
	assert_int_equal(volume_row_find(txn, "imagene", &row), -ENOENT);
	txn_abort(txn);
}

static void test_bad_names(void **state)
{
	static const char *const bad[] = {"", ".x", "-x", "a/b", "a b", "caf\xc3\xa9", "a:b", ".."};
	char name[POOL_VOLUME_NAME_MAX + 2];
	struct volume_row row;
	struct txn *txn = begin();

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(volume_row_create(txn, bad[i], VOLUME_SHARE, &row), -EINVAL);
	memset(name, 'a', sizeof(name));
	name[POOL_VOLUME_NAME_MAX + 1] = '\0';
	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), -ENAMETOOLONG);
	name[POOL_VOLUME_NAME_MAX] = '\0';
	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), 0);
	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), -EEXIST);
	assert_int_equal(volume_row_create(txn, "k", (enum volume_kind)9, &row), -EINVAL);
	commit(txn);
	txn = begin();
	assert_int_equal(volume_row_find(txn, name, &row), 0);
	assert_string_equal(row.name, name);
	txn_abort(txn);
}

static void test_rename(void **state)
{
	uint32_t a = create("a"), b = create("b");
	struct volume_row row, found;
	struct txn *txn = begin();

	assert_int_equal(volume_row_get(txn, a, &row), 0);
	strcpy(row.name, "b");
	assert_int_equal(volume_row_put(txn, &row), -EEXIST);
	strcpy(row.name, "c");
	row.sealed = true;
	assert_int_equal(volume_row_put(txn, &row), 0);
	assert_int_equal(volume_row_find(txn, "a", &found), -ENOENT);
	assert_int_equal(volume_row_find(txn, "c", &found), 0);
	assert_int_equal(found.id, a);
	assert_true(found.sealed);
	row.id = 77;
	assert_int_equal(volume_row_put(txn, &row), -ENOENT);
	assert_int_equal(volume_row_get(txn, b, &row), 0);
	row.destroying = true;
	assert_int_equal(volume_row_put(txn, &row), 0);
	assert_int_equal(volume_row_find(txn, "b", &found), -ENOENT);
	assert_int_equal(volume_row_get(txn, b, &found), 0);
	assert_true(found.destroying && !found.name[0]);
	commit(txn);
	assert_int_not_equal(create("b"), b);
}

static void test_ids_are_never_used_again(void **state)
{
	uint32_t a = create("a"), b;
	struct txn *txn = begin();
	struct volume_row row;

	assert_int_equal(volume_row_delete(txn, a), 0);
	commit(txn);
	b = create("a");
	assert_int_equal(b, a + 1);
	txn = begin();
	assert_int_equal(volume_row_get(txn, b, &row), 0);
	assert_int_equal(row.export_id, 2);
	assert_int_equal(volume_row_get(txn, a, &row), -ENOENT);
	txn_abort(txn);
}

static void test_export_ids_end(void **state)
{
	static const uint8_t last[8] = {0xff, 0xff};
	struct volume_row row;
	struct txn *txn = begin();

	assert_int_equal(txn_put(txn, fake.pool->env, text("Cexport"), (struct bytes){last, 8}), 0);
	assert_int_equal(volume_row_create(txn, "a", VOLUME_SHARE, &row), -ENOSPC);
	txn_abort(txn);
}

static void test_walk(void **state)
{
	struct volume_row row;
	struct txn *txn;
	uint32_t seen = 0;

	assert_int_equal(view_begin(fake.pool->env, &txn), 0);
	assert_int_equal(volume_row_next(txn, 0, &row), -ENOENT);
	txn_abort(txn);
	create("x");
	create("a");
	create("m");
	assert_int_equal(view_begin(fake.pool->env, &txn), 0);
	while (!volume_row_next(txn, seen + 1, &row))
		assert_int_equal(row.id, ++seen);
	assert_int_equal(seen, 3);
	txn_abort(txn);
}

static void test_broken_row(void **state)
{
	static const uint8_t key[5] = {'V', 0, 0, 0, 9};
	uint8_t value[64] = {1, 1};
	struct volume_row row;
	struct txn *txn = begin();

	for (size_t length = 0; length < 30; length++) {
		assert_int_equal(txn_put(txn, fake.pool->env, (struct bytes){key, 5},
					 (struct bytes){value, length}),
			0);
		assert_int_equal(volume_row_get(txn, 9, &row), -EBADMSG);
	}
	value[0] = 2;
	assert_int_equal(
		txn_put(txn, fake.pool->env, (struct bytes){key, 5}, (struct bytes){value, 30}), 0);
	assert_int_equal(volume_row_get(txn, 9, &row), -ENOTSUP);
	value[0] = 1;
	value[29] = 60; /* a name longer than the row */
	assert_int_equal(
		txn_put(txn, fake.pool->env, (struct bytes){key, 5}, (struct bytes){value, 35}), 0);
	assert_int_equal(volume_row_get(txn, 9, &row), -EBADMSG);
	txn_abort(txn);
}

static void test_properties(void **state)
{
	char value[32], name[64] = "", big[5000];
	uint32_t a = create("a");
	struct txn *txn = begin();

	assert_int_equal(property_get(txn, a, "quota", value, sizeof(value)), -ENOENT);
	assert_int_equal(property_set(txn, a, "quota", "10G"), 0);
	assert_int_equal(property_set(txn, a, "nfs:access", "rw=*"), 0);
	assert_int_equal(property_set(txn, a, "empty", ""), 0);
	assert_int_equal(property_set(txn, 0, "quota", "none"), 0);
	assert_int_equal(property_set(txn, a + 1, "quota", "10G"), -ENOENT);
	assert_int_equal(property_set(txn, a, "a/b", "10G"), -EINVAL);
	memset(big, 'x', sizeof(big));
	big[sizeof(big) - 1] = '\0';
	assert_int_equal(property_set(txn, a, "big", big), -ERANGE);
	assert_int_equal(property_get(txn, a, "quota", value, sizeof(value)), 0);
	assert_string_equal(value, "10G");
	assert_int_equal(property_get(txn, a, "quota", value, 3), -ERANGE);
	assert_int_equal(property_get(txn, 0, "quota", value, sizeof(value)), 0);
	assert_string_equal(value, "none");

	assert_int_equal(property_next(txn, a, name, sizeof(name), value, sizeof(value)), 0);
	assert_string_equal(name, "empty");
	assert_string_equal(value, "");
	assert_int_equal(property_next(txn, a, name, sizeof(name), value, sizeof(value)), 0);
	assert_string_equal(name, "nfs:access");
	assert_int_equal(property_next(txn, a, name, sizeof(name), value, sizeof(value)), 0);
	assert_string_equal(name, "quota");
	assert_int_equal(property_next(txn, a, name, sizeof(name), value, sizeof(value)), -ENOENT);

	assert_int_equal(property_delete(txn, a, "quota"), 0);
	assert_int_equal(property_delete(txn, a, "quota"), -ENOENT);
	assert_int_equal(property_get(txn, a, "quota", value, sizeof(value)), -ENOENT);
	commit(txn);
}

static unsigned pool_rows(uint8_t kind)
{
	uint8_t key[POOL_KEY_MAX] = {kind};
	size_t length = 1;
	struct bytes found, value;
	struct txn *txn;
	unsigned count = 0;

	assert_int_equal(view_begin(fake.pool->env, &txn), 0);
	while (!txn_seek(txn, fake.pool->env, (struct bytes){key, length}, &found, &value) &&
		*(const uint8_t *)found.data == kind) {
		memcpy(key, found.data, found.length);
		key[found.length] = 0;
		length = found.length + 1;
		count++;
	}
	txn_abort(txn);
	return count;
}

static void put_sums(struct txn *txn, uint64_t id, unsigned rows)
{
	uint8_t key[13];

	for (unsigned row = 0; row < rows; row++) {
		struct writer w = writer_on(key, sizeof(key));

		put_u8(&w, KEY_SUMS);
		put_be64(&w, id);
		put_key_u32(&w, row);
		assert_int_equal(txn_put(txn, fake.pool->env, (struct bytes){key, 13},
					 (struct bytes){"sums", 4}),
			0);
	}
}

static void add_segments(uint32_t volume, unsigned count, unsigned rows)
{
	for (unsigned i = 0; i < count; i++) {
		struct txn *txn = begin();
		struct segment *segment = fake_segment(volume, PURPOSE_DATA);
		uint8_t key[9];

		assert_int_equal(
			txn_put(txn, fake.pool->env, fake_key(key, KEY_SEGMENT, segment->id),
				(struct bytes){"row", 3}),
			0);
		put_sums(txn, segment->id, rows);
		commit(txn);
	}
}

static void add_image(uint32_t volume)
{
	struct image_row image = {.kind = IMAGE_FULL, .length = 3 * FAKE_SEGMENT};
	uint8_t key[9], value[IMAGE_ROW_SIZE];
	struct writer w = writer_on(value, sizeof(value));
	struct txn *txn;

	for (unsigned i = 0; i < 3; i++) {
		struct segment *segment = fake_segment(0, PURPOSE_IMAGE);

		segment->row.live = FAKE_SEGMENT;
		segment->row.next = image.segment;
		image.segment = segment->id;
	}
	image_row_encode(&image, &w);
	txn = begin();
	assert_int_equal(txn_put(txn, fake.pool->env, key_image(key, volume, 0),
				 (struct bytes){value, sizeof(value)}),
		0);
	commit(txn);
}

static unsigned delete_volume(uint32_t volume)
{
	unsigned steps = 0;
	int rc;

	do {
		struct txn *txn = begin();

		rc = volume_row_delete(txn, volume);
		assert_true(!rc || rc == -EAGAIN);
		commit(txn);
		steps++;
	} while (rc);
	return steps;
}

static void test_delete_in_one_step(void **state)
{
	uint32_t a = create("a"), b = create("b");
	struct txn *txn = begin();

	assert_int_equal(property_set(txn, a, "quota", "1"), 0);
	assert_int_equal(property_set(txn, b, "quota", "1"), 0);
	commit(txn);
	add_segments(a, 10, 3);
	add_segments(b, 2, 0);
	add_image(a);
	assert_int_equal(delete_volume(a), 1);
	assert_int_equal(fake.freed, 13);
	assert_int_equal(pool_rows(KEY_SEGMENT), 2);
	assert_int_equal(pool_rows(KEY_SUMS), 0);
	assert_int_equal(pool_rows(KEY_IMAGE), 0);
	assert_int_equal(pool_rows(KEY_PROPERTY), 1);
	assert_int_equal(pool_rows(KEY_NAME), 1);
	assert_int_equal(pool_rows(KEY_VOLUME), 1);
	txn = begin();
	assert_int_equal(volume_row_delete(txn, a), -ENOENT);
	txn_abort(txn);
}

static void test_delete_in_steps(void **state)
{
	uint32_t a = create("a");
	struct volume_row row;
	struct txn *txn;
	unsigned steps;

	add_segments(a, 50, 40);
	add_segments(a, 200, 0);
	add_image(a);
	txn = begin();
	for (unsigned i = 0; i < 300; i++) {
		char name[16];

		snprintf(name, sizeof(name), "p%u", i);
		assert_int_equal(property_set(txn, a, name, "x"), 0);
	}
	commit(txn);
	fake.record_max = 5000;
	txn = begin();
	assert_int_equal(volume_row_delete(txn, a), -EAGAIN);
	commit(txn);
	txn = begin();
	assert_int_equal(volume_row_get(txn, a, &row), 0);
	assert_true(row.destroying);
	assert_int_equal(volume_row_find(txn, "a", &row), -ENOENT);
	txn_abort(txn);
	steps = delete_volume(a);
	assert_true(steps > 10 && steps < 300);
	assert_int_equal(fake.freed, 253);
	for (const char *kind = "SRXPNV"; *kind; kind++)
		assert_int_equal(pool_rows((uint8_t)*kind), 0);
}

static void test_abandoned_delete_changes_nothing(void **state)
{
	uint32_t a = create("a");
	struct txn *txn;
	struct volume_row row;

	add_segments(a, 5, 2);
	txn = begin();
	assert_int_equal(volume_row_delete(txn, a), 0);
	txn_abort(txn);
	assert_int_equal(fake.freed, 0);
	assert_int_equal(pool_rows(KEY_SUMS), 10);
	txn = begin();
	assert_int_equal(volume_row_find(txn, "a", &row), 0);
	txn_abort(txn);
}

static void test_delete_forgets_the_environment(void **state)
{
	uint32_t a = create("a");
	struct env *env;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(env_get(fake.pool, a, &env), 0);
	assert_int_equal(txn_begin(fake.pool, env, &txn), 0);
	assert_int_equal(txn_put(txn, env, text("k"), text("v")), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	env_put(env);
	assert_non_null(fake.pool->volumes);
	assert_int_equal(delete_volume(a), 1);
	assert_null(fake.pool->volumes);
	assert_int_equal(env_get(fake.pool, a, &env), -ENOENT);

	a = create("a");
	assert_int_equal(env_get(fake.pool, a, &env), 0);
	assert_int_equal(delete_volume(a), 1);
	assert_true(env_is_gone(env));
	assert_int_equal(txn_begin(fake.pool, env, &txn), -ENOENT);
	env_put(env);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_create_and_find, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_bad_names, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_rename, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(
			test_ids_are_never_used_again, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_export_ids_end, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_walk, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_broken_row, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_properties, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_delete_in_one_step, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(test_delete_in_steps, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(
			test_abandoned_delete_changes_nothing, fake_begin, fake_end),
		cmocka_unit_test_setup_teardown(
			test_delete_forgets_the_environment, fake_begin, fake_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
