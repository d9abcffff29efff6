/* SPDX-License-Identifier: LGPL-3.0-or-later. Sets of keys. links: pool */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pool/key_set.h"

static struct bytes text(const char *string)
{
	return (struct bytes){string, strlen(string)};
}

static void add(struct key_set *set, const char *key)
{
	assert_int_equal(key_set_add(set, text(key)), 0);
}

static void test_nothing(void **state)
{
	struct key_set *set = key_set_new();
	struct bytes *list = key_set_sorted(set);

	assert_int_equal(key_set_count(set), 0);
	assert_int_equal(key_set_bytes(set), 0);
	assert_non_null(list);
	free(list);
	key_set_free(set);
	key_set_free(NULL);
}

/* One that begins like another stands behind it, as in an environment. */
static void test_order(void **state)
{
	static const char *const keys[] = {"b", "abc", "ab", "\xff", "a", "abd", "ab", "a"};
	static const char *const sorted[] = {"a", "ab", "abc", "abd", "b", "\xff"};
	struct key_set *set = key_set_new();
	struct bytes *list;

	for (unsigned i = 0; i < 8; i++)
		add(set, keys[i]);
	assert_int_equal(key_set_count(set), 6);
	assert_int_equal(key_set_bytes(set), 11 + 6 * 2);
	list = key_set_sorted(set);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(list[i].length, strlen(sorted[i]));
		assert_memory_equal(list[i].data, sorted[i], list[i].length);
	}
	free(list);
	key_set_free(set);
}

/* Each once, whatever the order in which they come, and however often. */
static void test_many(void **state)
{
	const unsigned count = 200000;
	struct key_set *set = key_set_new();
	struct bytes *list;
	char key[16];

	for (unsigned i = 0; i < 2 * count; i++) {
		snprintf(key, sizeof(key), "k%08u", (unsigned)((uint64_t)i * 7919 % count));
		add(set, key);
	}
	assert_int_equal(key_set_count(set), count);
	assert_int_equal(key_set_bytes(set), count * (9 + 2));
	list = key_set_sorted(set);
	for (unsigned i = 0; i < count; i++) {
		snprintf(key, sizeof(key), "k%08u", i);
		assert_int_equal(list[i].length, 9);
		assert_memory_equal(list[i].data, key, 9);
	}
	free(list);
	key_set_free(set);
}

static void test_long_keys(void **state)
{
	struct key_set *set = key_set_new();
	uint8_t key[POOL_KEY_MAX] = {0};
	struct bytes *list;

	for (unsigned i = 0; i < 1000; i++) {
		key[POOL_KEY_MAX - 1] = (uint8_t)i;
		key[0] = (uint8_t)(i >> 8);
		assert_int_equal(key_set_add(set, (struct bytes){key, sizeof(key)}), 0);
	}
	assert_int_equal(key_set_count(set), 1000);
	list = key_set_sorted(set);
	for (unsigned i = 0; i < 1000; i++) {
		const uint8_t *found = list[i].data;

		assert_int_equal(list[i].length, POOL_KEY_MAX);
		assert_int_equal(found[0] << 8 | found[POOL_KEY_MAX - 1], i);
	}
	free(list);
	key_set_free(set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_long_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
