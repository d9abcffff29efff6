/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* links: volume */
/* Space that is kept for bytes to come: who gets it, who gives it back, what is left after a crash.
 */
#include "test_volume_file.h"

static uint64_t kept(void)
{
	return pool_kept(fixture.pool);
}

static struct volume_space space(void)
{
	struct volume_space now;

	assert_int_equal(volume_statfs(fixture.volume, &now), 0);
	return now;
}

static void is_zeros_and_takes_space(void **state)
{
	uint64_t before = space().free;

	assert_int_equal(volume_allocate(file, 10 * KIB, 1000 * KIB), 0);
	assert_int_equal(size_of(fixture.volume, ino), 1010 * KIB);
	assert_int_equal(used(), 1000 * KIB);
	assert_int_equal(kept(), 1000 * KIB);
	must_read_zeros(file, 0, 1010 * KIB);
	assert_true(space().free + 1000 * KIB <= before);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(kept(), 1000 * KIB);
	crash();
	assert_int_equal(size_of(fixture.volume, ino), 1010 * KIB);
	assert_int_equal(used(), 1000 * KIB);
	assert_int_equal(kept(), 1000 * KIB);
	assert_int_equal(space().bytes, 1000 * KIB);
	must_read_zeros(file, 0, 1010 * KIB);
	assert_int_equal(seek(0, VOLUME_SEEK_HOLE), 0);
	assert_true(space().free + 1000 * KIB <= before);
}

static void is_lost_when_it_was_not_committed(void **state)
{
	assert_int_equal(volume_allocate(file, 0, 100 * KIB), 0);
	crash();
	assert_int_equal(size_of(fixture.volume, ino), 0);
	assert_int_equal(kept(), 0);
	assert_int_equal(volume_allocate(file, 0, 100 * KIB), 0);
	must_unlink(fixture.volume, VOLUME_ROOT, "file");
	assert_int_equal(kept(), 0);
	volume_file_put(file);
	ino = must_make(fixture.volume, VOLUME_ROOT, "file", VOLUME_FILE);
	file = must_get(fixture.volume, ino);
}

static void only_gaps_are_filled(void **state)
{
	assert_int_equal(write_seeded(file, 0, 30 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(write_seeded(file, 60 * KIB, 30 * KIB, 2), 0);
	assert_int_equal(volume_punch(file, 70 * KIB, 10 * KIB), 0);
	assert_int_equal(volume_allocate(file, 10 * KIB, 90 * KIB), 0);
	assert_int_equal(kept(), 50 * KIB);
	assert_int_equal(used(), 100 * KIB);
	assert_int_equal(volume_allocate(file, 0, 100 * KIB), 0);
	assert_int_equal(kept(), 50 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	crash();
	assert_int_equal(kept(), 50 * KIB);
	assert_int_equal(used(), 100 * KIB);
	must_read_seeded(file, 0, 30 * KIB, 1);
	must_read_zeros(file, 30 * KIB, 30 * KIB);
	must_read_seeded(file, 60 * KIB, 10 * KIB, 2);
	must_read_zeros(file, 70 * KIB, 10 * KIB);
	must_read_zeros(file, 90 * KIB, 10 * KIB);
	assert_int_equal(seek(0, VOLUME_SEEK_HOLE), 32 * KIB);
	assert_int_equal(seek(32 * KIB, VOLUME_SEEK_DATA), 60 * KIB);
}

static void writes_take_it(void **state)
{
	assert_int_equal(volume_allocate(file, 0, 200 * KIB), 0);
	assert_int_equal(write_seeded(file, 50 * KIB, 20 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(kept(), 180 * KIB);
	assert_int_equal(used(), 200 * KIB);
	assert_int_equal(write_seeded(file, 60 * KIB, 20 * KIB, 2), 0);
	assert_int_equal(write_seeded(file, 190 * KIB, 20 * KIB, 3), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(kept(), 160 * KIB);
	assert_int_equal(used(), 212 * KIB);
	crash();
	assert_int_equal(kept(), 160 * KIB);
	must_read_zeros(file, 0, 50 * KIB);
	must_read_seeded(file, 50 * KIB, 10 * KIB, 1);
	must_read_seeded(file, 60 * KIB, 20 * KIB, 2);
	must_read_zeros(file, 80 * KIB, 110 * KIB);
	must_read_seeded(file, 190 * KIB, 20 * KIB, 3);
}

static void punching_cutting_and_deleting_give_it_back(void **state)
{
	assert_int_equal(volume_allocate(file, 0, 400 * KIB), 0);
	assert_int_equal(volume_punch(file, 0, 100 * KIB), 0);
	assert_int_equal(kept(), 300 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(kept(), 300 * KIB);
	assert_int_equal(volume_punch(file, 350 * KIB, 100 * KIB), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(kept(), 250 * KIB);
	assert_int_equal(set_size(fixture.volume, ino, 152 * KIB), 0);
	assert_int_equal(kept(), 52 * KIB);
	assert_int_equal(set_size(fixture.volume, ino, 400 * KIB), 0);
	assert_int_equal(kept(), 52 * KIB);
	must_sync(&fixture);
	crash();
	assert_int_equal(kept(), 52 * KIB);
	assert_int_equal(used(), 52 * KIB);
	must_unlink(fixture.volume, VOLUME_ROOT, "file");
	assert_int_equal(kept(), 0);
	volume_file_put(file);
	ino = must_make(fixture.volume, VOLUME_ROOT, "file", VOLUME_FILE);
	file = must_get(fixture.volume, ino);
	must_sync(&fixture);
	crash();
	assert_int_equal(kept(), 0);
}

static void a_small_file_gets_zeros(void **state)
{
	assert_int_equal(write_seeded(file, 0, 100, 1), 0);
	assert_int_equal(volume_allocate(file, 50, 1000), 0);
	assert_int_equal(size_of(fixture.volume, ino), 1050);
	assert_int_equal(kept(), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	crash();
	must_read_seeded(file, 0, 100, 1);
	must_read_zeros(file, 100, 950);
	assert_int_equal(volume_allocate(file, 0, 20 * KIB), 0);
	assert_int_equal(kept(), 20 * KIB - 1050);
	assert_int_equal(volume_commit_wait(file), 0);
	crash();
	assert_int_equal(kept(), 20 * KIB - 1050);
	must_read_seeded(file, 0, 100, 1);
	must_read_zeros(file, 100, 20 * KIB - 100);
}

/* Writes to a file of its own until the pool has no room. */
static void fill_pool(void)
{
	uint64_t other = must_make(fixture.volume, VOLUME_ROOT, "other", VOLUME_FILE);
	struct volume_file *filler = must_get(fixture.volume, other);
	uint64_t at = 0;
	int r = 0;

	while (!r) {
		r = write_seeded(filler, at, 16 * KIB, 9);
		if (!r)
			r = volume_commit_wait(filler);
		at += 16 * KIB;
	}
	assert_int_equal(r, -ENOSPC);
	volume_file_put(filler);
}

static void a_full_pool_has_room_for_it(void **state)
{
	assert_int_equal(volume_allocate(file, 0, 2000 * KIB), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	fill_pool();
	assert_int_equal(volume_allocate(file, 0, 2100 * KIB), -ENOSPC);
	assert_int_equal(size_of(fixture.volume, ino), 2000 * KIB);
	for (unsigned i = 0; i < 500; i++) {
		assert_int_equal(write_seeded(file, i * 4096, 4096, i), 0);
		if (i % 7 == 0)
			assert_int_equal(volume_commit_wait(file), 0);
	}
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(kept(), 0);
	for (unsigned i = 0; i < 500; i++)
		must_read_seeded(file, i * 4096, 4096, i);
}

/* In pieces all over it, with crashes, each of which leaves streams behind half full. */
static void a_full_pool_has_room_for_it_after_crashes(void **state)
{
	assert_int_equal(volume_allocate(file, 0, 1000 * KIB), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	fill_pool();
	for (unsigned i = 0; i < 250; i++) {
		assert_int_equal(write_seeded(file, i * 97 % 250 * 4096, 4096, i), 0);
		assert_int_equal(volume_commit_wait(file), 0);
		if (i % 30 == 29) {
			crash();
			assert_int_equal(pool_maintain(fixture.pool), 0);
		}
	}
	assert_int_equal(kept(), 0);
	crash();
	for (unsigned i = 0; i < 250; i++)
		must_read_seeded(file, i * 97 % 250 * 4096, 4096, i);
}

static void more_than_there_is_changes_nothing(void **state)
{
	uint64_t free_bytes = space().free, all = 1ull << 40;

	assert_int_equal(write_seeded(file, 0, 10 * KIB, 1), 0);
	assert_int_equal(volume_allocate(file, 0, all), -ENOSPC);
	assert_int_equal(volume_allocate(file, 0, VOLUME_SIZE_MAX), -ENOSPC);
	assert_int_equal(volume_allocate(file, 1, VOLUME_SIZE_MAX), -EFBIG);
	assert_int_equal(volume_allocate(file, UINT64_MAX, UINT64_MAX), -EFBIG);
	assert_int_equal(kept(), 0);
	assert_int_equal(size_of(fixture.volume, ino), 10 * KIB);
	assert_int_equal(volume_allocate(file, 0, 0), 0);
	assert_int_equal(volume_allocate(file, 0, free_bytes / 2), 0);
	assert_int_equal(volume_allocate(file, free_bytes / 2, free_bytes), -ENOSPC);
	assert_int_equal(size_of(fixture.volume, ino), free_bytes / 2);
}

static void goes_with_its_volume(void **state)
{
	struct volume_create_options create = {.name = "second", .kind = VOLUME_SHARE};
	struct volume_file *other;
	struct volume *second;

	assert_int_equal(volume_create(fixture.volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(fixture.volumes, "second", &second, NULL), 0);
	other = must_get(second, must_make(second, VOLUME_ROOT, "file", VOLUME_FILE));
	assert_int_equal(volume_allocate(other, 0, 300 * KIB), 0);
	assert_int_equal(volume_allocate(file, 0, 200 * KIB), 0);
	volume_file_put(other);
	assert_int_equal(volume_close(second), 0);
	must_sync(&fixture);
	assert_int_equal(kept(), 500 * KIB);
	crash();
	assert_int_equal(kept(), 500 * KIB);
	assert_int_equal(volume_destroy(fixture.volumes, "second", NULL), 0);
	assert_int_equal(kept(), 200 * KIB);
	crash();
	assert_int_equal(kept(), 200 * KIB);
}

static void counts_for_the_quota(void **state)
{
	uint32_t id = volume_row(fixture.volume)->id;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(fixture.pool, NULL, &txn), 0);
	assert_int_equal(property_set(txn, id, VOLUME_QUOTA_PROPERTY, "100K"), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(volumes_quota_changed(fixture.volumes, id), 0);
	assert_int_equal(volume_allocate(file, 0, 101 * KIB), -EDQUOT);
	assert_int_equal(size_of(fixture.volume, ino), 0);
	assert_int_equal(volume_allocate(file, 0, 80 * KIB), 0);
	assert_int_equal(write_seeded(file, 200 * KIB, 21 * KIB, 1), -EDQUOT);
	assert_int_equal(write_seeded(file, 200 * KIB, 20 * KIB, 1), 0);
	assert_int_equal(write_seeded(file, 0, 81 * KIB, 2), -EDQUOT);
	assert_int_equal(write_seeded(file, 0, 80 * KIB, 2), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(space().bytes, 100 * KIB);
	assert_int_equal(space().free, 0);
	assert_int_equal(kept(), 0);
}

static void is_refused_where_nothing_is_written(void **state)
{
	struct volume_file *root = must_get(fixture.volume, VOLUME_ROOT);

	assert_int_equal(volume_allocate(root, 0, 10), -EISDIR);
	volume_file_put(root);
	assert_int_equal(volume_allocate(file, 0, 10 * KIB), 0);
	assert_int_equal(volume_seal(fixture.volume, NULL), 0);
	assert_int_equal(volume_allocate(file, 0, 20 * KIB), -EROFS);
	must_read_zeros(file, 0, 10 * KIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILE_TEST(is_zeros_and_takes_space),
		FILE_TEST(is_lost_when_it_was_not_committed),
		FILE_TEST(only_gaps_are_filled),
		FILE_TEST(writes_take_it),
		FILE_TEST(punching_cutting_and_deleting_give_it_back),
		FILE_TEST(a_small_file_gets_zeros),
		FILE_TEST(a_full_pool_has_room_for_it),
		FILE_TEST(a_full_pool_has_room_for_it_after_crashes),
		FILE_TEST(more_than_there_is_changes_nothing),
		FILE_TEST(goes_with_its_volume),
		FILE_TEST(counts_for_the_quota),
		FILE_TEST(is_refused_where_nothing_is_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
