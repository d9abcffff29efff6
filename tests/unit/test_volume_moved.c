/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Compaction of sealed volumes: their bytes are moved under the names that the image has for them.
 */
#include "test_volume_sparse.h"

struct segments {
	uint64_t id[256];
	unsigned count, moved, places;
};

static int note(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	struct segments *segments = data;

	segments->moved += !length;
	segments->places += length && !live;
	if (length && segments->count < 256)
		segments->id[segments->count++] = segment;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static struct segments segments_now(void)
{
	struct segments s = {.count = 0};
	uint32_t id = volume_row(fixture.volume)->id;

	assert_int_equal(pool_each_segment(fixture.pool, id, note, &s), 0);
	qsort(s.id, s.count, sizeof(s.id[0]), by_id);
	return s;
}

/* Of four files each in a segment one stays, and the volume is sealed. */
static void make_sealed(void)
{
	make_sparse(4);
	assert_int_equal(volume_seal(fixture.volume, NULL), 0);
	maintain();
}

static void must_hold(void)
{
	struct pool_check_report report;

	for (unsigned i = 0; i < FILES; i += 4)
		must_find(i, 64 * KIB);
	must_be_sound(&fixture);
	assert_int_equal(pool_check(fixture.pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.wrong_live, 0);
	assert_int_equal(report.bad_blocks, 0);
	assert_int_equal(report.lost_blocks, 0);
}

static struct pool_use use_now(void)
{
	static struct pool_status status;

	pool_status(fixture.pool, &status);
	return status.use;
}

static void moves_what_is_sealed(void **state)
{
	struct pool_use before, after;
	struct segments segments;
	uint64_t won;

	make_sealed();
	before = use_now();
	assert_int_equal(volumes_compact(fixture.volumes, 100, UINT64_MAX, &won), 0);
	maintain();
	segments = segments_now();
	assert_in_range(segments.moved, 4, FILES / 4);
	assert_in_range(segments.places, 1, 3);
	assert_int_equal(segments.count, FILES / 4 - segments.moved + segments.places);
	assert_int_equal(pool_checkpoint(fixture.pool), 0); /* what it won is nobody's before */
	after = use_now();
	assert_int_equal(after.data, before.data);
	assert_true(after.free >= before.free + 3 * SEGMENT);
	assert_true(after.waiting + 3 * SEGMENT <= before.waiting);
	must_hold();
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	must_hold();
	volume_fixture_reopen(&fixture);
	must_hold();
	/* Nothing is to be won any more. */
	assert_int_equal(volumes_compact(fixture.volumes, 100, UINT64_MAX, &won), 0);
	assert_int_equal(won, 0);
}

/* What was moved is moved again: remaps name the last place alone. */
static void moves_what_was_moved(void **state)
{
	struct segments segments, again;

	make_sealed();
	for (unsigned i = 0; i < 3; i++) {
		segments = segments_now();
		assert_int_equal(
			volume_compact(fixture.volume, segments.id, segments.count, NULL), 0);
		maintain();
		again = segments_now();
		assert_int_equal(again.moved, FILES / 4);
		assert_int_equal(again.count, again.places);
		for (unsigned n = 0; n < again.count; n++)
			for (unsigned m = 0; m < segments.count; m++)
				assert_int_not_equal(again.id[n], segments.id[m]);
		must_hold();
		if (i % 2)
			volume_fixture_crash(&fixture, SIM_RANDOM);
		else
			volume_fixture_reopen(&fixture);
		must_hold();
	}
}

static void reads_moved_bytes_without_devices(void **state)
{
	struct segments segments;

	make_sealed();
	segments = segments_now();
	assert_int_equal(volume_compact(fixture.volume, segments.id, segments.count, NULL), 0);
	sim_kill_device(fixture.pool_fixture.world, "d1");
	sim_kill_device(fixture.pool_fixture.world, "d4");
	for (unsigned i = 0; i < FILES; i += 4)
		must_find(i, 64 * KIB);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	for (unsigned i = 0; i < FILES; i += 4)
		must_find(i, 64 * KIB);
	must_be_sound(&fixture);
	sim_revive_device(fixture.pool_fixture.world, "d1");
	sim_revive_device(fixture.pool_fixture.world, "d4");
}

/* The block cache knows moved bytes by their old name: nothing is read of them twice. */
static void caches_what_is_moved(void **state)
{
	struct segments segments;

	make_sealed();
	assert_int_equal(pool_cache_resize(fixture.pool, 4 << 20), 0);
	must_find(0, 64 * KIB);
	segments = segments_now();
	assert_int_equal(volume_compact(fixture.volume, segments.id, segments.count, NULL), 0);
	for (unsigned n = 0; n < 3; n++)
		for (unsigned i = 0; i < FILES; i += 4)
			must_find(i, 64 * KIB);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++)
		sim_kill_device(fixture.pool_fixture.world, fixture.pool_fixture.names[i]);
	for (unsigned i = 0; i < FILES; i += 4)
		must_find(i, 64 * KIB);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++)
		sim_revive_device(fixture.pool_fixture.world, fixture.pool_fixture.names[i]);
}

/* Another one does the same, from before the first bytes are read. */
static int compact_as_well(void *data, uint64_t length)
{
	struct segments *segments = data;
	unsigned count = segments->count;

	segments->count = 0;
	if (count)
		assert_int_equal(volume_compact(fixture.volume, segments->id, count, NULL), 0);
	return 0;
}

/* Who comes second finds nothing to be moved, first of what extents name, then of places. */
static void is_moved_once(void **state)
{
	struct segments segments, theirs;
	const struct compact_pace pace = {compact_as_well, &theirs};

	make_sealed();
	losses = 0;
	for (unsigned i = 0; i < 2; i++) {
		segments = theirs = segments_now();
		log_set_sink(count_losses);
		assert_int_equal(
			volume_compact(fixture.volume, segments.id, segments.count, &pace), 0);
		log_set_sink(NULL);
		assert_int_equal(theirs.count, 0);
		assert_int_equal(losses, 0);
		maintain();
		assert_int_equal(segments_now().count, segments_now().places);
		must_hold();
	}
	volume_fixture_crash(&fixture, SIM_RANDOM);
	must_hold();
}

/* With its volume goes all that was moved, also when the power goes first. */
static void frees_what_was_moved(void **state)
{
	struct volume_create_options create = {.name = "share", .kind = VOLUME_SHARE};
	struct pool_use before, after;
	struct segments segments;

	volume_fixture_reopen(&fixture);
	before = use_now();
	make_sealed();
	segments = segments_now();
	assert_int_equal(volume_compact(fixture.volume, segments.id, segments.count, NULL), 0);
	maintain();
	volume_fixture_crash(&fixture, SIM_RANDOM);
	assert_int_equal(volume_close(fixture.volume), 0);
	assert_int_equal(volume_destroy(fixture.volumes, "share", NULL), 0);
	assert_int_equal(volume_create(fixture.volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(fixture.volumes, "share", &fixture.volume, NULL), 0);
	assert_int_equal(segments_now().moved, 0);
	volume_fixture_reopen(&fixture);
	assert_int_equal(pool_maintain(fixture.pool), 0);
	after = use_now();
	assert_int_equal(after.data, 0);
	assert_int_equal(after.waiting, 0);
	assert_int_equal(after.free, before.free);
}

static void leaves_what_is_lost(void **state)
{
	must_leave_what_is_lost(true);
}

/* --- pieces ----------------------------------------------------------------------------------- */

#define BLOCKS 2048u /* of a segment of 512 rows */

/* Each block with bytes of its own. */
static struct volume_file *make_blocks(const char *name)
{
	struct volume_file *file =
		must_get(fixture.volume, must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE));

	for (unsigned i = 0; i < BLOCKS; i++)
		assert_int_equal(write_seeded(file, i * BLOCK_SIZE, BLOCK_SIZE, i), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	return file;
}

/* Of so many blocks the second goes. */
static void punch_each(struct volume_file *file, unsigned step)
{
	for (unsigned i = 1; i < BLOCKS; i += step)
		assert_int_equal(volume_punch(file, i * BLOCK_SIZE, BLOCK_SIZE), 0);
	assert_int_equal(volume_commit_wait(file), 0);
}

static void must_have_blocks(struct volume_file *file, unsigned step)
{
	for (unsigned i = 0; i < BLOCKS; i++) {
		if (i % step == 1)
			must_read_zeros(file, i * BLOCK_SIZE, BLOCK_SIZE);
		else
			must_read_seeded(file, i * BLOCK_SIZE, BLOCK_SIZE, i);
	}
}

/* A pool of large segments, with room for few rows in a record. */
static void start_large(void)
{
	volume_fixture_end(&fixture);
	memset(&fixture, 0, sizeof(fixture));
	volume_fixture_make_with(&fixture.pool_fixture, 48u << 20, 512, 512 << 10);
	volume_fixture_begin(&fixture);
}

static void must_read_blocks(const char *name, unsigned step)
{
	struct volume_attributes found;
	struct volume_file *file;

	assert_int_equal(volume_lookup(fixture.volume, VOLUME_ROOT, name, &found), 0);
	file = must_get(fixture.volume, found.ino);
	must_have_blocks(file, step);
	volume_file_put(file);
}

static void make_small_file(const char *name, unsigned step)
{
	struct volume_file *file = make_blocks(name);

	punch_each(file, step);
	volume_file_put(file);
	maintain();
}

/* It is not even copied. */
static void leaves_what_is_in_too_many_pieces(void **state)
{
	struct segments segments;
	uint64_t before;

	start_large();
	assert_in_range(pool_remap_most(fixture.pool), BLOCKS / 8 + 1, BLOCKS / 2 - 1);
	make_small_file("many", 2);
	assert_int_equal(volume_seal(fixture.volume, NULL), 0);
	maintain();
	segments = segments_now();
	before = sim_writes_and_flushes(fixture.pool_fixture.engine);
	losses = 0;
	log_set_sink(count_losses);
	assert_int_equal(volume_compact(fixture.volume, segments.id, 1, NULL), 0);
	log_set_sink(NULL);
	assert_int_equal(losses, 1);
	assert_int_equal(sim_writes_and_flushes(fixture.pool_fixture.engine), before);
	must_read_blocks("many", 2);
}

static void reads_pieces_where_they_are(void **state)
{
	struct segments segments;

	start_large();
	make_small_file("few", 8);
	assert_int_equal(volume_seal(fixture.volume, NULL), 0);
	maintain();
	segments = segments_now();
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(
			volume_compact(fixture.volume, segments.id, segments.count, NULL), 0);
		maintain();
		segments = segments_now();
		assert_int_equal(segments.places, segments.count);
		must_read_blocks("few", 8);
		volume_fixture_crash(&fixture, SIM_RANDOM);
		must_read_blocks("few", 8);
	}
}

/* --- all of them ------------------------------------------------------------------------------ */

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(moves_what_is_sealed),
		TEST(moves_what_was_moved),
		TEST(reads_moved_bytes_without_devices),
		TEST(caches_what_is_moved),
		TEST(is_moved_once),
		TEST(frees_what_was_moved),
		TEST(leaves_what_is_lost),
		TEST(leaves_what_is_in_too_many_pieces),
		TEST(reads_pieces_where_they_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
