/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Data of files: small and large, holes, truncate, and the space that is shown. */
#include "test_volume_share.h"

/* --- small and large -------------------------------------------------------------------------- */

static void keeps_a_small_file_in_the_metadata(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);

	assert_int_equal(write_seeded(file, 0, 1000, 1), 0);
	must_read_seeded(file, 0, 1000, 1);
	assert_int_equal(size_of(fixture.volume, ino), 1000);
	assert_int_equal(volume_commit_wait(file), 0);
	must_read_seeded(file, 0, 1000, 1);
	assert_int_equal(pool_volume_live(fixture.pool, volume_row(fixture.volume)->id), 0);
	assert_int_equal(live(), 1000);
	volume_file_put(file);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	file = must_get(fixture.volume, ino);
	must_read_seeded(file, 0, 1000, 1);
	volume_file_put(file);
}

static void moves_a_growing_file_to_extents(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);

	assert_int_equal(write_seeded(file, 0, 1500, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(write_seeded(file, 10000, 5000, 2), 0);
	must_read_seeded(file, 0, 1500, 1);
	must_read_zeros(file, 1500, 8500);
	must_read_seeded(file, 10000, 5000, 2);
	assert_int_equal(volume_commit_wait(file), 0);
	volume_file_put(file);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	file = must_get(fixture.volume, ino);
	must_read_seeded(file, 0, 1500, 1);
	must_read_zeros(file, 1500, 8500);
	must_read_seeded(file, 10000, 5000, 2);
	assert_int_equal(live(), 6500);
	volume_file_put(file);
}

static void forgets_what_was_not_committed(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);

	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 2), 0);
	must_read_seeded(file, 0, 100 * KIB, 2);
	volume_file_put(file);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	file = must_get(fixture.volume, ino);
	must_read_seeded(file, 0, 100 * KIB, 1);
	volume_file_put(file);
}

static void writes_a_large_file(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);
	size_t bytes;
	char last[10];
	bool eof;

	for (unsigned i = 0; i < 12; i++)
		assert_int_equal(write_seeded(file, i * 256 * KIB, 256 * KIB, i), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	for (unsigned i = 0; i < 12; i++)
		must_read_seeded(file, i * 256 * KIB, 256 * KIB, i);
	assert_int_equal(volume_read_wait(file, 3072 * KIB - 4, last, 10, &bytes, &eof), 0);
	assert_int_equal(bytes, 4);
	assert_true(eof);
	assert_int_equal(volume_read_wait(file, 3072 * KIB, last, 10, &bytes, &eof), 0);
	assert_int_equal(bytes, 0);
	assert_true(eof);
	volume_file_put(file);
	volume_fixture_reopen(&fixture);
	file = must_get(fixture.volume, ino);
	must_read_seeded(file, 11 * 256 * KIB, 256 * KIB, 11);
	volume_file_put(file);
}

static void reaches_the_far_end(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t far = VOLUME_SIZE_MAX - 100;
	char byte[9];
	size_t bytes;
	bool eof;

	assert_int_equal(write_seeded(file, far, 100, 1), 0);
	assert_int_equal(write_seeded(file, far, 101, 1), -EFBIG);
	assert_int_equal(write_seeded(file, UINT64_MAX - 5, 10, 1), -EFBIG);
	assert_int_equal(volume_commit_wait(file), 0);
	must_read_seeded(file, far, 100, 1);
	must_read_zeros(file, far / 2, 1000);
	assert_int_equal(size_of(fixture.volume, volume_file_ino(file)), VOLUME_SIZE_MAX);
	for (uint64_t at = VOLUME_SIZE_MAX; at; at *= 2) {
		assert_int_equal(volume_read_wait(file, at - 1, byte, 9, &bytes, &eof), 0);
		assert_int_equal(bytes, at == VOLUME_SIZE_MAX);
		assert_true(eof);
	}
	assert_int_equal(volume_read_wait(file, UINT64_MAX, byte, 9, &bytes, &eof), 0);
	assert_int_equal(bytes, 0);
	assert_true(eof);
	volume_file_put(file);
}

static void refuses_what_is_no_file(void **state)
{
	struct volume_file *dir = must_get(fixture.volume, VOLUME_ROOT);
	char byte = 0;
	size_t bytes;
	bool eof;

	assert_int_equal(write_seeded(dir, 0, 1, 1), -EISDIR);
	assert_int_equal(volume_read_wait(dir, 0, &byte, 1, &bytes, &eof), -EISDIR);
	volume_file_put(dir);
	assert_int_equal(volume_file_get(fixture.volume, 999, &dir), -ESTALE);
}

/* --- truncate --------------------------------------------------------------------------------- */

static void truncates_both_ways(void **state)
{
	struct volume_file *file = make_file("a");
	struct volume *volume = fixture.volume;
	uint64_t ino = volume_file_ino(file);

	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(write_seeded(file, 100 * KIB, 100 * KIB, 2), 0);
	assert_int_equal(set_size(volume, ino, 50 * KIB + 7), 0);
	assert_int_equal(size_of(volume, ino), 50 * KIB + 7);
	assert_int_equal(set_size(volume, ino, 300 * KIB), 0);
	must_read_seeded(file, 0, 50 * KIB + 7, 1);
	must_read_zeros(file, 50 * KIB + 7, 250 * KIB - 7);
	assert_int_equal(volume_commit_wait(file), 0);
	must_read_zeros(file, 50 * KIB + 7, 250 * KIB - 7);
	assert_int_equal(live(), 50 * KIB + 7);
	assert_int_equal(set_size(volume, ino, 0), 0);
	assert_int_equal(live(), 0);
	/* From here on it is a small file again. */
	assert_int_equal(write_seeded(file, 100, 100, 3), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	must_read_zeros(file, 0, 100);
	must_read_seeded(file, 100, 100, 3);
	assert_int_equal(live(), 200);
	volume_file_put(file);
}

static void truncates_a_file_of_many_extents(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);

	scatter(file, 2500);
	must_read_seeded(file, 4096 + 10 * 2400, 1, 2400);
	assert_int_equal(set_size(fixture.volume, ino, 4100), 0);
	assert_int_equal(live(), 1);
	assert_int_equal(set_size(fixture.volume, ino, 100000), 0);
	must_read_zeros(file, 4097, 90000);
	volume_file_put(file);
}

static void goes_on_trimming_after_a_crash(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file), before;
	int r;

	scatter(file, 2500);
	before = live();
	/* The power goes somewhere within the transactions of the truncate. */
	sim_cut_power_at(fixture.pool_fixture.engine, 3);
	r = set_size(fixture.volume, ino, 4097);
	if (!r)
		volume_sync(fixture.volume);
	volume_file_put(file);
	volume_fixture_crash(&fixture, SIM_KEEP_ALL);
	assert_true(live() == before || live() == 1);
	file = must_get(fixture.volume, ino);
	must_read_seeded(file, 4096, 1, 0);
	volume_file_put(file);
}

/* --- space in use ----------------------------------------------------------------------------- */

static uint64_t used(const struct volume_file *file)
{
	return attributes_of(volume_file_ino(file)).used;
}

/* What was seen before may be kept: a file with bytes that seems to have none is archived so. */
static void shows_the_space_of_a_small_file_before_its_commit(void **state)
{
	struct volume_file *file = make_file("a");

	assert_int_equal(used(file), 0);
	assert_int_equal(write_seeded(file, 0, 100, 1), 0);
	assert_int_equal(used(file), 4 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(used(file), 4 * KIB);
	assert_int_equal(set_size(fixture.volume, volume_file_ino(file), 0), 0);
	assert_int_equal(used(file), 0);
	assert_int_equal(write_seeded(file, 1000, 100, 1), 0);
	assert_int_equal(used(file), 4 * KIB);
	/* From here on it is a larger one. */
	assert_int_equal(write_seeded(file, 4 * KIB, 4 * KIB, 1), 0);
	assert_int_equal(used(file), 8 * KIB);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(used(file), 8 * KIB);
	volume_file_put(file);
}

static void shows_no_space_behind_the_end(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);

	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(write_seeded(file, 100 * KIB, 100 * KIB, 2), 0);
	assert_int_equal(set_size(fixture.volume, ino, 1), 0);
	assert_int_equal(used(file), 4 * KIB);
	assert_int_equal(set_size(fixture.volume, ino, 1000 * KIB), 0);
	assert_int_equal(used(file), 4 * KIB);
	volume_file_put(file);
}

/* --- counters --------------------------------------------------------------------------------- */

static void take_counters(
	void *data, const struct volume_row *row, const struct volume_counters *counters)
{
	assert_string_equal(row->name, "share");
	*(struct volume_counters *)data = *counters;
}

static struct volume_counters count_now(void)
{
	struct volume_counters counters = {0};

	volumes_count(fixture.volumes, take_counters, &counters);
	return counters;
}

static void counts_what_it_is_asked_for(void **state)
{
	struct volume_counters before = count_now(), c;
	struct volume_file *file = make_file("a");
	uint8_t bytes[100];
	size_t read;
	bool eof;

	c = count_now();
	assert_int_equal(c.transactions, before.transactions + 1);
	assert_int_equal(c.reads + c.writes + c.commits, 0);
	assert_int_equal(write_seeded(file, 0, 60, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(volume_read_wait(file, 0, bytes, sizeof(bytes), &read, &eof), 0);
	assert_int_equal(volume_read_wait(file, 1000, bytes, sizeof(bytes), &read, &eof), 0);
	c = count_now();
	assert_int_equal(c.writes, 1);
	assert_int_equal(c.write_bytes, 60);
	assert_int_equal(c.commits, 1);
	assert_int_equal(c.reads, 2);
	assert_int_equal(c.read_bytes, 60);
	assert_true(c.transactions > before.transactions + 1);
	assert_true(c.elapsed >= before.elapsed);
	volume_file_put(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(keeps_a_small_file_in_the_metadata),
		TEST(moves_a_growing_file_to_extents),
		TEST(forgets_what_was_not_committed),
		TEST(writes_a_large_file),
		TEST(reaches_the_far_end),
		TEST(refuses_what_is_no_file),
		TEST(truncates_both_ways),
		TEST(truncates_a_file_of_many_extents),
		TEST(goes_on_trimming_after_a_crash),
		TEST(shows_the_space_of_a_small_file_before_its_commit),
		TEST(shows_no_space_behind_the_end),
		TEST(counts_what_it_is_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
