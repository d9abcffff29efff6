/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Holes that are punched into files, over what is pending and what is committed. */
#include "test_volume_file.h"

/* What write_seeded(file, 0, size, seed) wrote, with zeros in [from, to). */
static void must_have_hole(size_t size, unsigned seed, size_t from, size_t to)
{
	uint8_t *expected = malloc(size), *found = malloc(size);
	size_t bytes;
	bool eof;

	fill_bytes(expected, size, seed);
	memset(expected + from, 0, to - from);
	assert_int_equal(volume_read_wait(file, 0, found, size, &bytes, &eof), 0);
	assert_int_equal(bytes, size);
	assert_memory_equal(found, expected, size);
	free(expected);
	free(found);
	assert_int_equal(size_of(fixture.volume, ino), size);
}

static void cuts_what_is_committed(void **state)
{
	assert_int_equal(write_seeded(file, 0, 200 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_punch(file, 10000, 100000), 0);
	must_have_hole(200 * KIB, 1, 10000, 110000);
	assert_int_equal(live(), 200 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	must_have_hole(200 * KIB, 1, 10000, 110000);
	assert_int_equal(live(), 200 * KIB - 100000);
	crash();
	must_have_hole(200 * KIB, 1, 10000, 110000);
	assert_int_equal(seek(0, VOLUME_SEEK_HOLE), 12288);
	assert_int_equal(seek(12288, VOLUME_SEEK_DATA), 106496);
}

static void cuts_what_is_pending(void **state)
{
	assert_int_equal(write_seeded(file, 0, 200 * KIB, 1), 0);
	assert_int_equal(volume_punch(file, 50 * KIB, 10), 0);
	assert_int_equal(volume_punch(file, 50 * KIB + 10, 50 * KIB), 0);
	must_have_hole(200 * KIB, 1, 50 * KIB, 100 * KIB + 10);
	assert_int_equal(seek(0, VOLUME_SEEK_HOLE), 52 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 150 * KIB - 10);
	crash();
	must_have_hole(200 * KIB, 1, 50 * KIB, 100 * KIB + 10);
}

static void is_written_over(void **state)
{
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_punch(file, 0, UINT64_MAX), 0);
	must_read_zeros(file, 0, 100 * KIB);
	assert_int_equal(write_seeded(file, 20 * KIB, 5000, 2), 0);
	must_read_zeros(file, 0, 20 * KIB);
	must_read_seeded(file, 20 * KIB, 5000, 2);
	assert_int_equal(seek(0, VOLUME_SEEK_DATA), 20 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 5000);
	crash();
	must_read_seeded(file, 20 * KIB, 5000, 2);
	must_read_zeros(file, 20 * KIB + 5000, 70 * KIB);
	assert_int_equal(size_of(fixture.volume, ino), 100 * KIB);
}

static void is_lost_when_it_was_not_committed(void **state)
{
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_punch(file, 0, 50 * KIB), 0);
	must_read_zeros(file, 0, 50 * KIB);
	crash();
	must_have_hole(100 * KIB, 1, 0, 0);
}

static void a_small_file_has_zeros(void **state)
{
	assert_int_equal(volume_punch(file, 0, 100), 0);
	assert_int_equal(size_of(fixture.volume, ino), 0);
	assert_int_equal(write_seeded(file, 0, 1500, 1), 0);
	assert_int_equal(volume_punch(file, 500, 400), 0);
	must_have_hole(1500, 1, 500, 900);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_punch(file, 900, 10000), 0);
	must_have_hole(1500, 1, 500, 1500);
	assert_int_equal(volume_commit_wait(file), 0);
	crash();
	must_have_hole(1500, 1, 500, 1500);
	assert_int_equal(volume_punch(file, 1500, 10), 0);
	assert_int_equal(write_seeded(file, 0, 30 * KIB, 2), 0);
	assert_int_equal(volume_punch(file, 0, 2048), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	must_have_hole(30 * KIB, 2, 0, 2048);
}

static void does_not_make_a_file_larger(void **state)
{
	assert_int_equal(write_seeded(file, 0, 10 * KIB, 1), 0);
	assert_int_equal(volume_punch(file, 8 * KIB, 100 * KIB), 0);
	assert_int_equal(volume_punch(file, 50 * KIB, 100 * KIB), 0);
	assert_int_equal(volume_punch(file, VOLUME_SIZE_MAX, 1), 0);
	assert_int_equal(volume_punch(file, UINT64_MAX, UINT64_MAX), 0);
	must_have_hole(10 * KIB, 1, 8 * KIB, 10 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	must_have_hole(10 * KIB, 1, 8 * KIB, 10 * KIB);
	assert_int_equal(set_size(fixture.volume, ino, 200 * KIB), 0);
	must_read_zeros(file, 8 * KIB, 192 * KIB);
}

static void is_cut_with_the_file(void **state)
{
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_punch(file, 20 * KIB, 60 * KIB), 0);
	assert_int_equal(set_size(fixture.volume, ino, 40 * KIB), 0);
	assert_int_equal(write_seeded(file, 60 * KIB, 8 * KIB, 3), 0);
	must_read_seeded(file, 60 * KIB, 8 * KIB, 3);
	must_read_zeros(file, 20 * KIB, 40 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	crash();
	must_read_seeded(file, 60 * KIB, 8 * KIB, 3);
	must_read_zeros(file, 20 * KIB, 40 * KIB);
	assert_int_equal(live(), 28 * KIB);
}

/* More extents than one transaction takes away. */
static void takes_many_extents(void **state)
{
	uint8_t bytes[10] = {1};
	struct iovec iov = {bytes, sizeof(bytes)};

	for (unsigned i = 0; i < 1000; i++) {
		assert_int_equal(volume_write(file, i * 4096, &iov, 1, sizeof(bytes)), 0);
		if (i % 100 == 99)
			assert_int_equal(volume_commit_wait(file), 0);
	}
	assert_int_equal(live(), 10000);
	assert_int_equal(volume_punch(file, 5, 900 * 4096), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(live(), 5 + 5 + 99 * 10);
	must_read_zeros(file, 5, 900 * 4096);
}

static void changes_times(void **state)
{
	struct volume_attributes before, after;

	assert_int_equal(write_seeded(file, 0, 10 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_getattr(fixture.volume, ino, &before), 0);
	assert_int_equal(volume_punch(file, 0, 10), 0);
	assert_int_equal(volume_getattr(fixture.volume, ino, &after), 0);
	assert_true(after.change > before.change);
	assert_true(after.mtime > before.mtime);
	assert_true(after.ctime > before.ctime);
}

static void shows_the_space_before_it_is_free(void **state)
{
	assert_int_equal(write_seeded(file, 0, 200 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_punch(file, 20 * KIB, 40 * KIB), 0);
	assert_int_equal(used(), 160 * KIB);
	assert_int_equal(volume_punch(file, 40 * KIB, 40 * KIB), 0);
	assert_int_equal(used(), 140 * KIB);
	assert_int_equal(volume_punch(file, 0, 100 * KIB), 0);
	assert_int_equal(used(), 100 * KIB);
	assert_int_equal(write_seeded(file, 0, 8 * KIB, 1), 0);
	assert_int_equal(used(), 108 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(used(), 108 * KIB);
	assert_int_equal(volume_punch(file, 0, UINT64_MAX), 0);
	assert_int_equal(used(), 0);
}

static void is_refused_where_nothing_is_written(void **state)
{
	struct volume_file *root = must_get(fixture.volume, VOLUME_ROOT);
	struct error error = {0};

	assert_int_equal(volume_punch(root, 0, 10), -EISDIR);
	volume_file_put(root);
	assert_int_equal(volume_seal(fixture.volume, &error), 0);
	assert_int_equal(volume_punch(file, 0, 10), -EROFS);
	assert_int_equal(volume_punch(file, 0, 0), -EROFS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILE_TEST(cuts_what_is_committed),
		FILE_TEST(cuts_what_is_pending),
		FILE_TEST(is_written_over),
		FILE_TEST(is_lost_when_it_was_not_committed),
		FILE_TEST(a_small_file_has_zeros),
		FILE_TEST(does_not_make_a_file_larger),
		FILE_TEST(is_cut_with_the_file),
		FILE_TEST(takes_many_extents),
		FILE_TEST(changes_times),
		FILE_TEST(shows_the_space_before_it_is_free),
		FILE_TEST(is_refused_where_nothing_is_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
