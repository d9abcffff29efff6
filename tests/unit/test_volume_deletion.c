/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Files that are unlinked or replaced while they are open, large, or being written. */
#include "test_volume_share.h"

static struct volume_file *closed; /* by the next call, which is in the background's work */
static uint64_t remains; /* of the volume's bytes after that */

static void moved(struct volume *volume, uint64_t ino)
{
	if (!closed)
		return;
	volume_file_close(closed);
	remains = live();
	volume_file_put(closed);
	closed = NULL;
}

static int start_moving(void **state)
{
	const struct volumes_options options = {.moved = moved};

	return start_with(&options);
}

static void gives_space_back_at_the_last_close(void **state)
{
	struct volume_file *file = make_file("a");
	struct volume_attributes attributes;
	uint64_t ino = volume_file_ino(file);

	assert_int_equal(volume_file_open(file), 0);
	assert_int_equal(volume_file_open(file), 0);
	assert_int_equal(write_seeded(file, 0, 200 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	assert_int_equal(write_seeded(file, 200 * KIB, 10 * KIB, 2), 0);
	must_read_seeded(file, 0, 200 * KIB, 1);
	must_read_seeded(file, 200 * KIB, 10 * KIB, 2);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_getattr(fixture.volume, ino, &attributes), 0);
	assert_int_equal(attributes.nlink, 0);
	volume_file_close(file);
	assert_int_equal(live(), 210 * KIB);
	volume_file_close(file);
	assert_int_equal(live(), 0);
	assert_int_equal(volume_file_open(file), -ESTALE);
	assert_int_equal(write_seeded(file, 0, 10, 2), -ESTALE);
	assert_int_equal(volume_commit_wait(file), 0);
	volume_file_put(file);
	assert_int_equal(volume_getattr(fixture.volume, ino, &attributes), -ESTALE);
}

/* Who closes it does not do all of the work. */
static void gives_a_large_file_back_in_the_background(void **state)
{
	struct volume_file *file = make_file("a"), *other = make_file("b");

	assert_int_equal(volume_file_open(file), 0);
	scatter(file, 2500);
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	scatter(other, 2500);
	closed = file;
	assert_int_equal(set_size(fixture.volume, volume_file_ino(other), 4097), 0);
	assert_null(closed);
	assert_true(remains > 2000);
	assert_int_equal(volume_maintain(fixture.volume), 0);
	assert_int_equal(live(), 1);
	volume_file_put(other);
}

static void gives_orphans_back_after_a_crash(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);
	struct volume_attributes attributes;

	assert_int_equal(volume_file_open(file), 0);
	scatter(file, 700);
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	must_sync(&fixture);
	assert_int_equal(live(), 700);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	assert_int_equal(live(), 0);
	assert_int_equal(volume_getattr(fixture.volume, ino, &attributes), -ESTALE);
}

static void deletes_a_file_that_is_being_written(void **state)
{
	struct volume_file *file = make_file("a");

	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	assert_int_equal(write_seeded(file, 0, 10, 1), -ESTALE);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 0);
	volume_file_put(file);
}

static void replaces_a_file_that_is_open(void **state)
{
	struct volume_file *old = make_file("old"), *new = make_file("new");
	uint64_t lsn;

	assert_int_equal(volume_file_open(old), 0);
	assert_int_equal(write_seeded(old, 0, 10 * KIB, 1), 0);
	assert_int_equal(write_seeded(new, 0, 10 * KIB, 2), 0);
	assert_int_equal(
		volume_rename(fixture.volume, VOLUME_ROOT, "new", VOLUME_ROOT, "old", &lsn), 0);
	must_read_seeded(old, 0, 10 * KIB, 1);
	must_sync(&fixture);
	must_read_seeded(old, 0, 10 * KIB, 1);
	volume_file_close(old);
	assert_int_equal(live(), 10 * KIB);
	volume_file_put(old);
	volume_file_put(new);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(gives_space_back_at_the_last_close),
		cmocka_unit_test_setup_teardown(
			gives_a_large_file_back_in_the_background, start_moving, end),
		TEST(gives_orphans_back_after_a_crash),
		TEST(deletes_a_file_that_is_being_written),
		TEST(replaces_a_file_that_is_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
