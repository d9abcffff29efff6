/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Times, change attributes and privileges of files, as their data change. */
#include "test_volume_share.h"

/* --- times ------------------------------------------------------------------------------------ */

static void keeps_times_in_order(void **state)
{
	struct volume_file *file = make_file("a");
	struct volume_set set = {.mask = VOLUME_SET_MTIME, .mtime = 77};
	struct volume *volume = fixture.volume;
	uint64_t ino = volume_file_ino(file), lsn;
	struct volume_attributes made, written, after;

	assert_int_equal(volume_getattr(volume, ino, &made), 0);
	engine_sleep(fixture.pool_fixture.engine, 1000000);
	assert_int_equal(write_seeded(file, 0, 10, 1), 0);
	assert_int_equal(volume_getattr(volume, ino, &written), 0);
	assert_true(written.mtime > made.mtime);
	assert_true(written.change > made.change);
	assert_int_equal(volume_setattr(volume, ino, &set, &after, &lsn), 0);
	assert_int_equal(after.mtime, 77);
	assert_true(after.change > written.change);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_getattr(volume, ino, &written), 0);
	assert_int_equal(written.mtime, 77);
	assert_int_equal(written.change, after.change);
	assert_int_equal(write_seeded(file, 0, 10, 2), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_getattr(volume, ino, &written), 0);
	assert_true(written.mtime > 77);
	assert_true(written.change > after.change);
	volume_file_put(file);
}

static uint64_t change_of(uint64_t ino)
{
	return attributes_of(ino).change;
}

/* A client keeps what it has read under a change attribute, over a crash of the server too. */
static void shows_no_change_attribute_again_after_a_crash(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file), last;

	must_sync(&fixture);
	last = change_of(ino);
	for (unsigned i = 0; i < 20; i++) {
		if (i % 5 == 4) {
			volume_file_put(file);
			volume_fixture_crash(&fixture, SIM_LOSE_ALL);
			file = must_get(fixture.volume, ino);
		}
		assert_int_equal(write_seeded(file, 0, i < 10 ? 100 : 8 * KIB, i), 0);
		assert_true(change_of(ino) > last);
		last = change_of(ino);
	}
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(change_of(ino), last);
	volume_file_put(file);
}

/* Nor when writes are lost while it runs. */
static void shows_no_change_attribute_again_after_a_loss(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file), lost;

	assert_int_equal(write_seeded(file, 0, 8 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(write_seeded(file, 0, 100 * KIB, 2), 0);
	lost = change_of(ino);
	fail_writes(-EIO);
	assert_int_equal(volume_commit_wait(file), -EIO);
	must_read_seeded(file, 0, 8 * KIB, 1);
	assert_true(change_of(ino) > lost);
	volume_file_put(file);
	fail_writes(0);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	file = must_get(fixture.volume, ino);
	assert_int_equal(write_seeded(file, 0, 8 * KIB, 3), 0);
	assert_true(change_of(ino) > lost);
	volume_file_put(file);
}

/* --- privileges ------------------------------------------------------------------------------- */

static uint32_t mode_of(uint64_t ino)
{
	return attributes_of(ino).mode;
}

static void must_set_mode(uint64_t ino, uint32_t mode)
{
	const struct volume_set set = {.mask = VOLUME_SET_MODE, .mode = mode};

	assert_int_equal(volume_setattr(fixture.volume, ino, &set, NULL, NULL), 0);
}

static void must_write_killing(struct volume_file *file, uint64_t offset, size_t length)
{
	const struct volume_write_options options = {.kill = true};
	static uint8_t bytes[100 * KIB];
	const struct iovec iov = {bytes, length};

	assert_int_equal(volume_write_with(file, offset, &iov, 1, length, &options), 0);
}

/* Whenever the mode was set, and whether the file was in memory then or not. */
static void takes_privileges_with_a_write(void **state)
{
	uint64_t ino = must_make(fixture.volume, VOLUME_ROOT, "a", VOLUME_FILE), before;
	struct volume_file *file;

	must_set_mode(ino, 06777);
	file = must_get(fixture.volume, ino);
	assert_int_equal(write_seeded(file, 0, 10, 1), 0);
	assert_int_equal(mode_of(ino), 06777);
	must_write_killing(file, 0, 0);
	assert_int_equal(mode_of(ino), 06777);
	must_write_killing(file, 0, 10);
	assert_int_equal(mode_of(ino), 0777);
	must_set_mode(ino, 04711);
	must_write_killing(file, 0, 100 * KIB);
	assert_int_equal(mode_of(ino), 0711);
	must_set_mode(ino, 02767);
	must_write_killing(file, 0, 10);
	assert_int_equal(mode_of(ino), 02767);
	assert_int_equal(volume_commit_wait(file), 0);
	/* Nothing is changed where there is nothing to take. */
	before = change_of(ino);
	assert_int_equal(volume_setattr(fixture.volume, ino,
				 &(struct volume_set){.mask = VOLUME_SET_KILL}, NULL, NULL),
		0);
	assert_int_equal(change_of(ino), before);
	volume_file_put(file);
}

static void takes_privileges_with_a_truncate(void **state)
{
	const struct volume_set cut = {.mask = VOLUME_SET_SIZE | VOLUME_SET_KILL};
	const struct volume_set both = {
		.mask = VOLUME_SET_SIZE | VOLUME_SET_KILL | VOLUME_SET_MODE, .mode = 04755};
	uint64_t ino = must_make(fixture.volume, VOLUME_ROOT, "a", VOLUME_FILE);

	must_set_mode(ino, 06777);
	assert_int_equal(volume_setattr(fixture.volume, ino, &cut, NULL, NULL), 0);
	assert_int_equal(mode_of(ino), 0777);
	assert_int_equal(volume_setattr(fixture.volume, ino, &both, NULL, NULL), 0);
	assert_int_equal(mode_of(ino), 04755);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(keeps_times_in_order),
		TEST(shows_no_change_attribute_again_after_a_crash),
		TEST(shows_no_change_attribute_again_after_a_loss),
		TEST(takes_privileges_with_a_write),
		TEST(takes_privileges_with_a_truncate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
