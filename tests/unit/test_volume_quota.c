/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* links: volume */
/* What a quota allows, what counts, and that the count is right after everything. */
#define DEVICE_SIZE (32u << 20)
#include "test_volume_file.h"

static void set_quota(const char *text)
{
	uint32_t id = volume_row(fixture.volume)->id;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(fixture.pool, NULL, &txn), 0);
	assert_int_equal(property_set(txn, id, VOLUME_QUOTA_PROPERTY, text), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(fixture.pool, lsn), 0);
	assert_int_equal(volumes_quota_changed(fixture.volumes, id), 0);
}

/* What is counted while the volume is open is what it counts when it is opened anew. */
static int end_counted(void **state)
{
	uint64_t before;

	must_sync(&fixture);
	before = live();
	must_be_sound(&fixture);
	crash();
	assert_int_equal(live(), before);
	volume_file_put(file);
	volume_fixture_end(&fixture);
	return 0;
}

static void refuses_what_would_be_more(void **state)
{
	set_quota("100K");
	assert_int_equal(write_seeded(file, 0, 60 * KIB, 1), 0);
	assert_int_equal(write_seeded(file, 60 * KIB, 41 * KIB, 2), -EDQUOT);
	assert_int_equal(live(), 60 * KIB);
	assert_int_equal(size_of(fixture.volume, ino), 60 * KIB);
	assert_int_equal(write_seeded(file, 60 * KIB, 40 * KIB, 2), 0);
	assert_int_equal(write_seeded(file, 100 * KIB, 1, 3), -EDQUOT);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(write_seeded(file, 100 * KIB, 1, 3), -EDQUOT);
	crash();
	assert_int_equal(write_seeded(file, 100 * KIB, 1, 3), -EDQUOT);
	must_read_seeded(file, 0, 60 * KIB, 1);
	must_read_seeded(file, 60 * KIB, 40 * KIB, 2);
}

static void counts_small_files(void **state)
{
	struct volume_file *small[5];

	set_quota("4K");
	for (unsigned i = 0; i < 5; i++) {
		char name[2] = {(char)('a' + i), 0};

		small[i] = must_get(
			fixture.volume, must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE));
		assert_int_equal(write_seeded(small[i], 0, 1000, i), i < 4 ? 0 : -EDQUOT);
	}
	assert_int_equal(live(), 4000);
	assert_int_equal(write_seeded(small[0], 500, 550, 7), 0);
	assert_int_equal(write_seeded(small[0], 1050, 47, 7), -EDQUOT);
	assert_int_equal(write_seeded(small[1], 0, 1000, 8), 0);
	must_sync(&fixture);
	assert_int_equal(live(), 4050);
	assert_int_equal(write_seeded(small[2], 100, 950, 7), -EDQUOT);
	assert_int_equal(write_seeded(small[2], 100, 900, 7), 0);
	must_read_seeded(small[0], 500, 550, 7);
	for (unsigned i = 0; i < 5; i++)
		volume_file_put(small[i]);
}

static void what_is_written_over_takes_none(void **state)
{
	set_quota("100K");
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(write_seeded(file, 10 * KIB + i, 50 * KIB, i), 0);
	assert_int_equal(write_seeded(file, 10 * KIB, 90 * KIB + 1, 2), -EDQUOT);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 100 * KIB);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 3), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	must_read_seeded(file, 0, 100 * KIB, 3);
	assert_int_equal(live(), 100 * KIB);
}

static void what_goes_can_be_used_again(void **state)
{
	set_quota("100K");
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(set_size(fixture.volume, ino, 50 * KIB), 0);
	assert_int_equal(live(), 50 * KIB);
	assert_int_equal(write_seeded(file, 200 * KIB, 50 * KIB, 2), 0);
	assert_int_equal(volume_punch(file, 0, 25 * KIB), 0);
	assert_int_equal(write_seeded(file, 300 * KIB, 25 * KIB, 3), 0);
	assert_int_equal(write_seeded(file, 400 * KIB, 1, 3), -EDQUOT);
	must_unlink(fixture.volume, VOLUME_ROOT, "file");
	assert_int_equal(live(), 0);
	volume_file_put(file);
	ino = must_make(fixture.volume, VOLUME_ROOT, "next", VOLUME_FILE);
	file = must_get(fixture.volume, ino);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 4), 0);
	must_sync(&fixture);
}

static void growing_a_file_takes_none(void **state)
{
	set_quota("10K");
	assert_int_equal(set_size(fixture.volume, ino, 1 << 30), 0);
	assert_int_equal(live(), 0);
	assert_int_equal(write_seeded(file, 1 << 20, 10 * KIB, 1), 0);
	assert_int_equal(write_seeded(file, 2 << 20, 1, 1), -EDQUOT);
}

static void counts_when_it_is_changed(void **state)
{
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	set_quota("50K");
	assert_int_equal(write_seeded(file, 100 * KIB, 1, 1), -EDQUOT);
	assert_int_equal(write_seeded(file, 0, 10 * KIB, 2), 0);
	must_read_seeded(file, 0, 10 * KIB, 2);
	assert_int_equal(set_size(fixture.volume, ino, 30 * KIB), 0);
	assert_int_equal(write_seeded(file, 100 * KIB, 20 * KIB, 1), 0);
	set_quota("none");
	assert_int_equal(write_seeded(file, 200 * KIB, 100 * KIB, 1), 0);
	set_quota("1");
	crash();
	assert_int_equal(write_seeded(file, 500 * KIB, 1, 1), -EDQUOT);
}

static void is_the_size_of_the_volume(void **state)
{
	struct volume_space all, space;

	assert_int_equal(volume_statfs(fixture.volume, &all), 0);
	assert_true(all.quota == VOLUME_QUOTA_NONE);
	set_quota("100K");
	assert_int_equal(write_seeded(file, 0, 30 * KIB, 1), 0);
	assert_int_equal(volume_statfs(fixture.volume, &space), 0);
	assert_int_equal(space.quota, 100 * KIB);
	assert_int_equal(space.total, 100 * KIB);
	assert_int_equal(space.free, 70 * KIB);
	set_quota("20K");
	assert_int_equal(volume_statfs(fixture.volume, &space), 0);
	assert_int_equal(space.total, 20 * KIB);
	assert_int_equal(space.free, 0);
	set_quota("1T");
	assert_int_equal(volume_statfs(fixture.volume, &space), 0);
	assert_int_equal(space.total, all.total);
	assert_true(space.free > 0 && space.free <= all.total);
}

/* Bytes of small files, of larger ones, cut, punched, written over, lost: nothing is left over. */
static void the_count_stays_right(void **state)
{
	set_quota("1M");
	assert_int_equal(write_seeded(file, 0, 1500, 1), 0);
	assert_int_equal(live(), 1500);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 1500);
	assert_int_equal(write_seeded(file, 0, 1800, 2), 0);
	assert_int_equal(set_size(fixture.volume, ino, 700), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 700);
	assert_int_equal(write_seeded(file, 3000, 5000, 3), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 5700);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 4), 0);
	assert_int_equal(volume_punch(file, 5 * KIB, 20 * KIB), 0);
	assert_int_equal(write_seeded(file, 10 * KIB, 10 * KIB, 5), 0);
	assert_int_equal(set_size(fixture.volume, ino, 60 * KIB), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 50 * KIB);
	assert_int_equal(write_seeded(file, 0, 20 * KIB, 6), 0);
	must_unlink(fixture.volume, VOLUME_ROOT, "file");
	assert_int_equal(live(), 0);
	volume_file_put(file);
	ino = must_make(fixture.volume, VOLUME_ROOT, "next", VOLUME_FILE);
	file = must_get(fixture.volume, ino);
	must_sync(&fixture);
}

static void is_made_with_the_share(void **state)
{
	struct volume_create_options create = {
		.name = "other", .kind = VOLUME_SHARE, .quota = 3 << 20};
	struct volume_space space;
	struct volume *other;

	assert_int_equal(volume_create(fixture.volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(fixture.volumes, "other", &other, NULL), 0);
	assert_int_equal(volume_statfs(other, &space), 0);
	assert_int_equal(space.quota, 3 << 20);
	assert_int_equal(volume_close(other), 0);
}

#define COUNTED(name) cmocka_unit_test_setup_teardown(name, start_file, end_counted)

int main(void)
{
	const struct CMUnitTest tests[] = {
		COUNTED(refuses_what_would_be_more),
		COUNTED(counts_small_files),
		COUNTED(what_is_written_over_takes_none),
		COUNTED(what_goes_can_be_used_again),
		COUNTED(growing_a_file_takes_none),
		COUNTED(counts_when_it_is_changed),
		COUNTED(is_the_size_of_the_volume),
		COUNTED(the_count_stays_right),
		COUNTED(is_made_with_the_share),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
