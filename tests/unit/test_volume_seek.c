/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Data and holes, in what is pending and in what is committed. */
#include "test_volume.h"

#define DEVICE_SIZE (8u << 20)
#define KIB 1024u
#define NONE UINT64_MAX

static struct volume_fixture fixture;
static struct volume_file *file;

static int start(void **state)
{
	volume_fixture_start(&fixture, DEVICE_SIZE, NULL);
	file = must_get(fixture.volume, must_make(fixture.volume, VOLUME_ROOT, "a", VOLUME_FILE));
	return 0;
}

static int end(void **state)
{
	volume_file_put(file);
	must_be_sound(&fixture);
	volume_fixture_end(&fixture);
	return 0;
}

static uint64_t seek(uint64_t offset, enum volume_seek what)
{
	uint64_t found = 0;
	int r = volume_seek(file, offset, what, &found);

	if (r == -ENXIO)
		return NONE;
	assert_int_equal(r, 0);
	return found;
}

static uint64_t data(uint64_t offset)
{
	return seek(offset, VOLUME_SEEK_DATA);
}

static uint64_t hole(uint64_t offset)
{
	return seek(offset, VOLUME_SEEK_HOLE);
}

static void write_kib(unsigned from, unsigned kib)
{
	assert_int_equal(write_seeded(file, from * KIB, kib * KIB, from), 0);
}

static void commit(void)
{
	assert_int_equal(volume_commit_wait(file), 0);
}

/* With data in [16, 32) and [64, 80) KiB of 100. */
static void must_have_two_runs(void)
{
	assert_int_equal(data(0), 16 * KIB);
	assert_int_equal(data(20 * KIB + 1), 20 * KIB + 1);
	assert_int_equal(data(32 * KIB), 64 * KIB);
	assert_int_equal(data(80 * KIB), NONE);
	assert_int_equal(hole(0), 0);
	assert_int_equal(hole(16 * KIB), 32 * KIB);
	assert_int_equal(hole(32 * KIB - 1), 32 * KIB);
	assert_int_equal(hole(50 * KIB), 50 * KIB);
	assert_int_equal(hole(64 * KIB), 80 * KIB);
	assert_int_equal(hole(100 * KIB - 1), 100 * KIB - 1);
	assert_int_equal(data(100 * KIB), NONE);
	assert_int_equal(hole(100 * KIB), NONE);
}

static void sees_what_is_pending_and_what_is_committed(void **state)
{
	write_kib(16, 8);
	write_kib(64, 16);
	assert_int_equal(set_size(fixture.volume, volume_file_ino(file), 100 * KIB), 0);
	write_kib(24, 8);
	must_have_two_runs();
	commit();
	must_have_two_runs();
	write_kib(20, 8); /* over both, in part */
	must_have_two_runs();
}

static void an_empty_file_has_neither(void **state)
{
	assert_int_equal(data(0), NONE);
	assert_int_equal(hole(0), NONE);
	assert_int_equal(set_size(fixture.volume, volume_file_ino(file), 100), 0);
	assert_int_equal(data(0), NONE);
	assert_int_equal(hole(0), 0);
	assert_int_equal(hole(99), 99);
}

static void counts_in_blocks(void **state)
{
	assert_int_equal(write_seeded(file, 5000, 2000, 1), 0);
	assert_int_equal(data(0), 4096);
	assert_int_equal(data(6000), 6000);
	assert_int_equal(hole(4096), 7000);
	assert_int_equal(set_size(fixture.volume, volume_file_ino(file), 9000), 0);
	assert_int_equal(hole(4096), 8192);
	commit();
	assert_int_equal(hole(4096), 8192);
	assert_int_equal(data(8191), 8191);
	assert_int_equal(data(8192), NONE);
}

static void a_small_file_is_one_block(void **state)
{
	assert_int_equal(write_seeded(file, 500, 500, 1), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(data(0), 0);
		assert_int_equal(hole(0), 1000);
		assert_int_equal(data(999), 999);
		commit();
	}
	assert_int_equal(set_size(fixture.volume, volume_file_ino(file), 20 * KIB), 0);
	assert_int_equal(hole(0), 4096);
	assert_int_equal(data(4096), NONE);
	write_kib(12, 2);
	assert_int_equal(hole(0), 4096);
	assert_int_equal(data(4096), 12 * KIB);
	commit();
	assert_int_equal(hole(0), 4096);
	assert_int_equal(data(4096), 12 * KIB);
}

static void what_was_cut_is_a_hole(void **state)
{
	uint64_t ino = volume_file_ino(file);

	write_kib(0, 64);
	commit();
	write_kib(64, 64);
	assert_int_equal(set_size(fixture.volume, ino, 8 * KIB), 0);
	assert_int_equal(set_size(fixture.volume, ino, 128 * KIB), 0);
	assert_int_equal(hole(0), 8 * KIB);
	assert_int_equal(data(8 * KIB), NONE);
	write_kib(100, 4);
	assert_int_equal(data(8 * KIB), 100 * KIB);
	commit();
	assert_int_equal(data(8 * KIB), 100 * KIB);
}

/* More runs than are looked at in one go. */
static void goes_past_many_runs(void **state)
{
	uint8_t byte = 1;
	struct iovec iov = {&byte, 1};

	for (unsigned i = 1500; i; i--) {
		assert_int_equal(volume_write(file, i * 4096 - 7, &iov, 1, 1), 0);
		if (i % 300 == 0)
			commit();
	}
	assert_int_equal(set_size(fixture.volume, volume_file_ino(file), 2000 * 4096), 0);
	assert_int_equal(hole(0), 1500 * 4096);
	assert_int_equal(data(1500 * 4096), NONE);
}

static void is_for_files(void **state)
{
	struct volume_file *root = must_get(fixture.volume, VOLUME_ROOT);
	uint64_t found;

	assert_int_equal(volume_seek(root, 0, VOLUME_SEEK_DATA, &found), -EISDIR);
	volume_file_put(root);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sees_what_is_pending_and_what_is_committed),
		TEST(an_empty_file_has_neither),
		TEST(counts_in_blocks),
		TEST(a_small_file_is_one_block),
		TEST(what_was_cut_is_a_hole),
		TEST(goes_past_many_runs),
		TEST(is_for_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
