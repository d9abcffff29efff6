/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What commits do to others: to writes that come meanwhile, to what was shown, and when they fail.
 */
#include "test_volume_share.h"

static unsigned moves; /* calls of moved() */

static void moved(struct volume *volume, uint64_t ino)
{
	moves++;
}

static int start_moving(void **state)
{
	const struct volumes_options options = {.moved = moved};

	moves = 0;
	return start_with(&options);
}

/* --- what is shown ---------------------------------------------------------------------------- */

static uint64_t used(const struct volume_file *file)
{
	return attributes_of(volume_file_ino(file)).used;
}

/* Where more is shown than is left in the end, the end is told. */
static void tells_when_what_is_shown_has_moved(void **state)
{
	struct volume_file *file = make_file("a");
	uint64_t ino = volume_file_ino(file);

	assert_int_equal(set_size(fixture.volume, ino, 1000 * KIB), 0);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(moves, 1);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 2), 0);
	assert_int_equal(used(file), 200 * KIB);
	assert_int_equal(moves, 1);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(moves, 2);
	assert_int_equal(used(file), 100 * KIB);
	scatter(file, 700);
	moves = 0;
	assert_int_equal(set_size(fixture.volume, ino, 1), 0);
	assert_int_equal(moves, 1);
	assert_int_equal(used(file), 4 * KIB);
	volume_file_put(file);
}

/* --- what is pending -------------------------------------------------------------------------- */

static int start_cramped(void **state)
{
	const struct volumes_options options = {.pending_extents = 4, .pending_memory = KIB};

	return start_with(&options);
}

/* Writes one byte at a time until one is not taken; what that got. */
static struct volume_file *crowded;
static unsigned taken;
static int refusal;

static void crowd(struct volume_read *read)
{
	taken = 0;
	while (!(refusal = write_seeded(crowded, 4096 + 10 * taken, 1, taken)))
		taken++;
}

/* In the middle of a commit, as in ask_late(): nothing else can be committed meanwhile. */
static void takes_writes_without_waiting_for_commits(void **state)
{
	struct volume_file *other = make_file("other"), *file = make_file("a");
	static uint8_t buffer[4096];
	const struct iovec iov = {buffer, sizeof(buffer)};
	struct volume_read read = {
		.iov = &iov, .iov_count = 1, .length = sizeof(buffer), .done = crowd};

	crowded = file;
	assert_int_equal(write_seeded(other, 0, 256 * KIB, 1), 0);
	must_sync(&fixture);
	assert_int_equal(write_seeded(file, 200 * KIB, 100 * KIB, 2), 0);
	volume_read(other, &read);
	assert_int_equal(volume_commit_wait(file), 0);
	assert_int_equal(refusal, -EAGAIN);
	assert_true(taken > 4 * 4);
	for (unsigned i = 0; i < taken; i += 50)
		must_read_seeded(file, 4096 + 10 * i, 1, i);
	/* The commits that the writes asked for are done: there is room again. */
	assert_int_equal(write_seeded(file, 0, 10, 3), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	volume_file_put(other);
	volume_file_put(file);
}

/* --- a loss while others wait ----------------------------------------------------------------- */

/* A stable write and a commit that are asked for while an earlier commit is settled, which fails.
 */
static struct late {
	struct volume_file *file;
	struct volume_commit write, commit;
	uint64_t losses; /* when they were asked for */
	int written, told[2];
} late;

static void write_told(struct volume_commit *commit, int status)
{
	late.told[0] = status;
}

static void commit_told(struct volume_commit *commit, int status)
{
	late.told[1] = status;
}

/* Called in the middle of the settling: it waits for the devices, as this read does. */
static void ask_late(struct volume_read *read)
{
	const struct volume_write_options stable = {.commit = &late.write};
	static uint8_t bytes[5000];
	const struct iovec iov = {bytes, sizeof(bytes)};

	late.losses = volume_losses(fixture.volume);
	late.write.done = write_told;
	late.commit.done = commit_told;
	late.written = volume_write_with(late.file, 200 * KIB, &iov, 1, sizeof(bytes), &stable);
	volume_commit(late.file, &late.commit);
}

static void tells_of_a_loss_all_who_were_waiting(void **state)
{
	struct volume_file *other = make_file("other"), *file = make_file("a");
	static uint8_t buffer[4096];
	const struct iovec iov = {buffer, sizeof(buffer)};
	struct volume_read read = {
		.iov = &iov, .iov_count = 1, .length = sizeof(buffer), .done = ask_late};

	late = (struct late){.file = file, .written = 1, .told = {1, 1}};
	assert_int_equal(write_seeded(other, 0, 256 * KIB, 1), 0);
	must_sync(&fixture);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 2), 0);
	fail_writes(-EIO);
	volume_read(other, &read);
	assert_int_equal(volume_commit_wait(file), -EIO);
	assert_int_equal(late.losses, 0);
	assert_int_equal(volume_losses(fixture.volume), 1);
	assert_int_equal(late.written, 0);
	assert_int_equal(late.told[0], -EIO);
	assert_int_equal(late.told[1], -EIO);
	assert_true(late.write.again);
	assert_true(late.commit.again);
	assert_int_equal(moves, 2);
	assert_int_equal(size_of(fixture.volume, volume_file_ino(file)), 0);
	volume_file_put(other);
	volume_file_put(file);
	fail_writes(0);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
}

static int commit_once(struct volume_file *file, bool *again)
{
	late = (struct late){.told = {1, 1}, .commit.done = commit_told};
	volume_commit(file, &late.commit);
	*again = late.commit.again;
	return late.told[1];
}

/* Who lost writes may write them again; who loses them again is not asked to go on for ever. */
static void asks_for_lost_writes_once(void **state)
{
	struct volume_file *file = make_file("a");
	bool again;

	assert_int_equal(write_seeded(file, 0, 100 * KIB, 2), 0);
	fail_writes(-EIO);
	assert_int_equal(commit_once(file, &again), -EIO);
	assert_true(again);
	assert_int_equal(write_seeded(file, 0, 100 * KIB, 2), 0);
	assert_int_equal(commit_once(file, &again), -EIO);
	assert_false(again);
	fail_writes(0);
	volume_file_put(file);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
}

/* What was lost before anybody asked. */
static void tells_of_a_loss_the_first_who_asks_later(void **state)
{
	struct volume_file *file = make_file("a");

	assert_int_equal(write_seeded(file, 0, 100 * KIB, 2), 0);
	fail_writes(-EIO);
	engine_sleep(fixture.pool_fixture.engine, 6000000000ull);
	volume_maintain(fixture.volume);
	assert_int_equal(volume_losses(fixture.volume), 1);
	assert_int_equal(volume_commit_wait(file), -EIO);
	volume_file_put(file);
	fail_writes(0);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
}

#define MOVING(name) cmocka_unit_test_setup_teardown(name, start_moving, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		MOVING(tells_when_what_is_shown_has_moved),
		cmocka_unit_test_setup_teardown(
			takes_writes_without_waiting_for_commits, start_cramped, end),
		MOVING(tells_of_a_loss_all_who_were_waiting),
		TEST(asks_for_lost_writes_once),
		TEST(tells_of_a_loss_the_first_who_asks_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
