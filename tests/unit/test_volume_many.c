/* SPDX-License-Identifier: LGPL-3.0-or-later. Many volumes in a full pool. links: volume */
/* Each volume's metadata need a segment at the next checkpoint: before there is none for them, no
 * more volumes are made, and all that are there can be changed, kept and destroyed. */
#include "test_volume.h"

#define DEVICE_SIZE (8ull << 20)

static struct volume_fixture fixture;

/* Until there is no room. */
static void fill_with_data(void)
{
	uint64_t ino = must_make(fixture.volume, VOLUME_ROOT, "big", VOLUME_FILE);
	struct volume_file *file = must_get(fixture.volume, ino);
	static uint8_t bytes[65536];
	struct iovec iov = {bytes, sizeof(bytes)};
	uint64_t at = 0;
	int r = 0;

	for (; !r; at += sizeof(bytes)) {
		r = volume_write(file, at, &iov, 1, sizeof(bytes));
		if (!r)
			r = volume_commit_wait(file);
		assert_int_equal(pool_maintain(fixture.pool), 0);
	}
	assert_int_equal(r, -ENOSPC);
	volume_file_put(file);
}

static int create(unsigned i)
{
	char name[16];
	struct volume_create_options options = {.name = name, .kind = VOLUME_SHARE};
	struct error error = {0};

	snprintf(name, sizeof(name), "v%u", i);
	return volume_create(fixture.volumes, &options, NULL, &error);
}

static int set_property(const char *name, const char *value)
{
	struct txn *txn;
	uint64_t lsn;
	int r = txn_begin(fixture.pool, NULL, &txn);

	if (r)
		return r;
	r = property_set(txn, 0, name, value);
	if (r) {
		txn_abort(txn);
		return r;
	}
	r = txn_commit(txn, &lsn);
	return r ? r : pool_sync(fixture.pool, lsn);
}

/* Until there is no room for them either. */
static void fill_with_properties(void)
{
	char name[16], value[900] = "";
	int r = 0;

	memset(value, 'v', sizeof(value) - 1);
	for (unsigned i = 0; !r && i < 100000; i++) {
		snprintf(name, sizeof(name), "p%u", i);
		r = set_property(name, value);
	}
	assert_int_equal(r, -ENOSPC);
}

static void destroy(unsigned i)
{
	char name[16];
	struct error error = {0};

	snprintf(name, sizeof(name), "v%u", i);
	if (volume_destroy(fixture.volumes, name, &error))
		fail_msg("%s: %s", error.object, error.message);
}

static void many_volumes(bool data, bool maintained)
{
	unsigned count = 0;
	int r = 0;

	volume_fixture_start(&fixture, DEVICE_SIZE, NULL);
	if (data)
		fill_with_data();
	while (!r && count < 10000) {
		r = create(count);
		count += !r;
		if (maintained)
			assert_int_equal(pool_maintain(fixture.pool), 0);
	}
	assert_int_equal(r, -ENOSPC);
	fill_with_properties();
	assert_int_equal(pool_checkpoint(fixture.pool), 0);
	volume_fixture_reopen(&fixture);
	volume_fixture_crash(&fixture, SIM_RANDOM);
	for (unsigned i = 0; i < count; i++)
		destroy(i);
	assert_int_equal(pool_checkpoint(fixture.pool), 0);
	assert_int_equal(pool_maintain(fixture.pool), 0);
	for (unsigned i = 0; i < count / 2; i++)
		assert_int_equal(create(i), 0);
	print_message("%u volumes\n", count);
	volume_fixture_end(&fixture);
}

static void fill_an_empty_pool(void **state)
{
	many_volumes(false, true);
}

static void fill_a_pool_at_once(void **state)
{
	many_volumes(false, false);
}

static void find_no_room_in_a_full_one(void **state)
{
	many_volumes(true, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fill_an_empty_pool),
		cmocka_unit_test(fill_a_pool_at_once),
		cmocka_unit_test(find_no_room_in_a_full_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
