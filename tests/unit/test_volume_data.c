/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Data of files: small and large, holes, truncate, commit, deletion; compared with a plain model.
 */
#include "test_volume.h"

#define DEVICE_SIZE (8u << 20)
#define KIB 1024u

static struct volume_fixture fixture;
static unsigned moves; /* calls of moved() */

static struct volume_file *closed; /* by the next call, which is in the background's work */
static uint64_t remains; /* of the volume's bytes after that */

static uint64_t live(void);

static void moved(struct volume *volume, uint64_t ino)
{
	moves++;
	if (!closed)
		return;
	volume_file_close(closed);
	remains = live();
	volume_file_put(closed);
	closed = NULL;
}

static int start(void **state)
{
	const struct volumes_options options = {.moved = moved};

	moves = 0;
	volume_fixture_start(&fixture, DEVICE_SIZE, &options);
	return 0;
}

static int end(void **state)
{
	must_be_sound(&fixture);
	volume_fixture_end(&fixture);
	return 0;
}

static struct volume_file *make_file(const char *name)
{
	return must_get(fixture.volume, must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE));
}

static uint64_t live(void)
{
	struct volume_space space;

	assert_int_equal(volume_statfs(fixture.volume, &space), 0);
	return space.bytes;
}

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

/* Extents of one byte in every other place: as many as there are writes. */
static void scatter(struct volume_file *file, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(write_seeded(file, 4096 + 10 * i, 1, i), 0);
	assert_int_equal(volume_commit_wait(file), 0);
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
	struct volume_attributes attributes;

	assert_int_equal(volume_getattr(fixture.volume, volume_file_ino(file), &attributes), 0);
	return attributes.used;
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
	struct volume_attributes attributes;

	assert_int_equal(volume_getattr(fixture.volume, ino, &attributes), 0);
	return attributes.change;
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

static void fail_writes(int error)
{
	struct fixture *f = &fixture.pool_fixture;

	for (unsigned i = 0; i <= f->parity; i++)
		sim_fail_device_writes(f->world, f->names[i], error);
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

/* --- what is pending -------------------------------------------------------------------------- */

static int start_cramped(void **state)
{
	const struct volumes_options options = {.pending_extents = 4, .pending_memory = KIB};

	volume_fixture_start(&fixture, DEVICE_SIZE, &options);
	return 0;
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

/* --- privileges ------------------------------------------------------------------------------- */

static uint32_t mode_of(uint64_t ino)
{
	struct volume_attributes attributes;

	assert_int_equal(volume_getattr(fixture.volume, ino, &attributes), 0);
	return attributes.mode;
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

/* --- a loss while others wait ------------------------------------------------------------------
 */

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

/* --- deletion --------------------------------------------------------------------------------- */

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

/* --- a model ---------------------------------------------------------------------------------- */

#define MODEL_FILES 3
#define MODEL_SIZE (192 * KIB)

struct model {
	struct volume_file *file;
	uint64_t ino, size;
	uint8_t bytes[MODEL_SIZE];
};
static struct model models[MODEL_FILES];
static uint64_t chance;

static unsigned draw(unsigned below)
{
	chance = chance * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(chance >> 33) % below;
}

static void model_write(struct model *m)
{
	unsigned small = draw(3);
	size_t length = 1 + draw(small ? 3000 : 40000);
	uint64_t offset = draw(4) ? draw(small ? 3000 : MODEL_SIZE) : m->size;
	struct iovec iov[2];
	size_t first;

	if (offset + length > MODEL_SIZE)
		offset = MODEL_SIZE - length;
	if (offset > m->size)
		memset(m->bytes + m->size, 0, offset - m->size);
	fill_bytes(m->bytes + offset, length, draw(1000));
	if (offset + length > m->size)
		m->size = offset + length;
	first = draw((unsigned)length + 1);
	iov[0] = (struct iovec){m->bytes + offset, first};
	iov[1] = (struct iovec){m->bytes + offset + first, length - first};
	assert_int_equal(volume_write(m->file, offset, iov, 2, length), 0);
}

static void model_truncate(struct model *m)
{
	uint64_t size = draw(3) ? draw(4000) : draw(MODEL_SIZE);

	if (!draw(4))
		size = 0;
	if (size > m->size)
		memset(m->bytes + m->size, 0, size - m->size);
	m->size = size;
	assert_int_equal(set_size(fixture.volume, m->ino, size), 0);
}

static void note_read(struct volume_read *read)
{
	event_signal(read->data, read->result);
}

static void model_read(struct model *m)
{
	uint64_t offset = draw(MODEL_SIZE + 100), left = offset < m->size ? m->size - offset : 0;
	size_t length = 1 + draw(MODEL_SIZE), first = draw((unsigned)length + 1);
	size_t expected = left < length ? (size_t)left : length;
	uint8_t *found = malloc(length);
	struct iovec iov[3] = {{found, first}, {NULL, 0}, {found + first, length - first}};
	struct event event;
	struct volume_read read = {
		.offset = offset,
		.iov = iov,
		.iov_count = 3,
		.length = length,
		.done = note_read,
		.data = &event,
	};

	event_init(&event, fixture.pool_fixture.engine);
	volume_read(m->file, &read);
	assert_int_equal(event_wait(&event), 0);
	assert_int_equal(read.bytes, expected);
	assert_int_equal(read.eof, offset + expected >= m->size);
	if (expected)
		assert_memory_equal(found, m->bytes + offset, expected);
	free(found);
}

static void model_check(struct model *m)
{
	uint8_t *found = malloc(MODEL_SIZE + 1);
	size_t bytes;
	bool eof;

	assert_int_equal(size_of(fixture.volume, m->ino), m->size);
	assert_int_equal(volume_read_wait(m->file, 0, found, MODEL_SIZE + 1, &bytes, &eof), 0);
	assert_int_equal(bytes, m->size);
	assert_true(eof);
	if (bytes)
		assert_memory_equal(found, m->bytes, bytes);
	free(found);
}

static void model_reopen(bool crash)
{
	must_sync(&fixture);
	for (unsigned i = 0; i < MODEL_FILES; i++)
		volume_file_put(models[i].file);
	if (crash)
		volume_fixture_crash(&fixture, SIM_RANDOM);
	else
		volume_fixture_reopen(&fixture);
	for (unsigned i = 0; i < MODEL_FILES; i++) {
		models[i].file = must_get(fixture.volume, models[i].ino);
		model_check(&models[i]);
	}
}

static void model_step(unsigned step)
{
	struct model *m = &models[draw(MODEL_FILES)];

	switch (draw(12)) {
	case 0:
		model_truncate(m);
		break;
	case 1:
	case 2:
	case 3:
		model_read(m);
		break;
	case 4:
	case 5:
		assert_int_equal(volume_commit_wait(m->file), 0);
		break;
	case 6:
		if (!draw(20))
			model_reopen(draw(2));
		break;
	default:
		model_write(m);
	}
	if (step % 16 == 0)
		assert_int_equal(pool_maintain(fixture.pool), 0);
	if (step % 16 == 0)
		assert_int_equal(volume_maintain(fixture.volume), 0);
}

static void agrees_with_a_model(void **state)
{
	for (unsigned seed = 1; seed <= 6; seed++) {
		chance = seed;
		for (unsigned i = 0; i < MODEL_FILES; i++) {
			char name[16];

			snprintf(name, sizeof(name), "f%u-%u", seed, i);
			models[i].file = make_file(name);
			models[i].ino = volume_file_ino(models[i].file);
			models[i].size = 0;
		}
		for (unsigned step = 1; step <= 500; step++)
			model_step(step);
		for (unsigned i = 0; i < MODEL_FILES; i++) {
			model_check(&models[i]);
			volume_file_put(models[i].file);
		}
		must_be_sound(&fixture);
	}
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

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
		TEST(tells_when_what_is_shown_has_moved),
		TEST(keeps_times_in_order),
		TEST(shows_no_change_attribute_again_after_a_crash),
		TEST(shows_no_change_attribute_again_after_a_loss),
		cmocka_unit_test_setup_teardown(
			takes_writes_without_waiting_for_commits, start_cramped, end),
		TEST(takes_privileges_with_a_write),
		TEST(takes_privileges_with_a_truncate),
		TEST(tells_of_a_loss_all_who_were_waiting),
		TEST(tells_of_a_loss_the_first_who_asks_later),
		TEST(asks_for_lost_writes_once),
		TEST(gives_space_back_at_the_last_close),
		TEST(gives_a_large_file_back_in_the_background),
		TEST(gives_orphans_back_after_a_crash),
		TEST(deletes_a_file_that_is_being_written),
		TEST(replaces_a_file_that_is_open),
		TEST(agrees_with_a_model),
		TEST(counts_what_it_is_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
