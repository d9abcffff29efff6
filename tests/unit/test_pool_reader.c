/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* links: volume */
/* Readers: a second host that shows what the newest root says, beside the pool's owner. */
#include "test_volume.h"

#include "common/log.h"
#include "pool/internal.h"

#define KIB 1024u
#define SECOND (UINT64_C(1000) * 1000 * 1000)
#define FILES 12u
#define LENGTH (96u * KIB)

static struct volume_fixture f;

static struct {
	struct engine *engine;
	struct pool *pool;
	struct volumes *volumes;
} reader;

static void quiet(enum log_level level, const char *line)
{
	if (getenv("VERBOSE"))
		fprintf(stderr, "%d %s\n", level, line);
}

static struct sim_world *world(void)
{
	return f.pool_fixture.world;
}

/* --- the owner ---------------------------------------------------------------------------------
 */

static void own(void)
{
	f.pool = fixture_must_open(&f.pool_fixture);
	assert_int_equal(volumes_create(f.pool, &f.options, &f.volumes), 0);
}

static void disown(void)
{
	struct error error = {0};

	volumes_destroy(f.volumes);
	assert_int_equal(pool_close(f.pool, &error), 0);
}

static void die(void)
{
	sim_cut_host(f.pool_fixture.engine);
	volumes_abandon(f.volumes);
	pool_abandon(f.pool);
	sim_drain(world());
	sim_drop_late(world());
	sim_reconnect(f.pool_fixture.engine);
}

static void file_name(unsigned i, char name[16])
{
	snprintf(name, 16, "f%02u", i);
}

/* A dataset of files whose bytes follow from `seed`, sealed. */
static void make_dataset(const char *name, unsigned seed)
{
	struct volume_create_options create = {.name = name, .kind = VOLUME_DATASET};
	struct error error = {0};
	struct volume *volume;

	assert_int_equal(volume_create(f.volumes, &create, NULL, &error), 0);
	assert_int_equal(volume_open(f.volumes, name, &volume, &error), 0);
	for (unsigned i = 0; i < FILES; i++) {
		struct volume_file *file;
		char text[16];

		file_name(i, text);
		file = must_get(volume, must_make(volume, VOLUME_ROOT, text, VOLUME_FILE));
		assert_int_equal(write_seeded(file, 0, LENGTH, seed + i), 0);
		assert_int_equal(volume_sync(volume), 0);
		volume_file_put(file);
	}
	assert_int_equal(volume_seal(volume, &error), 0);
	assert_int_equal(volume_close(volume), 0);
}

static void destroy_dataset(const char *name)
{
	struct error error = {0};

	if (volume_destroy(f.volumes, name, &error))
		fail_msg("%s: %s", error.object, error.message);
}

/* --- the reader --------------------------------------------------------------------------------
 */

static int try_reader(void)
{
	struct pool_open_options options = {.paths = f.pool_fixture.paths,
		.path_count = f.pool_fixture.devices,
		.name = "tank",
		.host = "beta",
		.boot_id = {9},
		.reader = true,
		.metadata_limit = 16u << 20};
	struct error error = {0};
	int r;

	if (!reader.engine)
		assert_int_equal(sim_engine_create(world(), &reader.engine), 0);
	r = pool_open(reader.engine, &options, &reader.pool, &error);
	if (!r)
		assert_int_equal(volumes_create(reader.pool, &f.options, &reader.volumes), 0);
	return r;
}

static void open_reader(void)
{
	assert_int_equal(try_reader(), 0);
}

/* It has written nothing. */
static void close_reader(void)
{
	struct engine_counters counters;
	struct error error = {0};

	volumes_destroy(reader.volumes);
	assert_int_equal(pool_close(reader.pool, &error), 0);
	engine_counters(reader.engine, &counters);
	assert_int_equal(counters.writes + counters.flushes, 0);
	assert_int_equal(sim_writes_and_flushes(reader.engine), 0);
	assert_true(counters.reads > 0);
	engine_destroy(reader.engine);
	memset(&reader, 0, sizeof(reader));
}

/* 0: all files are as written; else the first error. Wrong bytes end the test. */
static int read_dataset(struct volume *volume, unsigned seed)
{
	uint8_t *expected = malloc(LENGTH), *found = malloc(LENGTH);
	int r = 0;

	for (unsigned i = 0; !r && i < FILES; i++) {
		struct volume_attributes attributes;
		struct volume_file *file;
		char text[16];
		size_t bytes;
		bool eof;

		file_name(i, text);
		assert_int_equal(volume_lookup(volume, VOLUME_ROOT, text, &attributes), 0);
		assert_int_equal(attributes.size, LENGTH);
		file = must_get(volume, attributes.ino);
		r = volume_read_wait(file, 0, found, LENGTH, &bytes, &eof);
		if (!r) {
			fill_bytes(expected, LENGTH, seed + i);
			assert_int_equal(bytes, LENGTH);
			assert_memory_equal(found, expected, LENGTH);
		}
		volume_file_put(file);
	}
	free(expected);
	free(found);
	return r;
}

static int read_by_name(const char *name, unsigned seed)
{
	struct error error = {0};
	struct volume *volume;
	int r = volume_open(reader.volumes, name, &volume, &error);

	if (r)
		return r;
	r = read_dataset(volume, seed);
	assert_int_equal(volume_close(volume), 0);
	return r;
}

static int start_tank(void **state)
{
	memset(&f, 0, sizeof(f));
	log_set_sink(quiet);
	volume_fixture_make(&f.pool_fixture, 32u << 20);
	own();
	return 0;
}

static int end_tank(void **state)
{
	if (reader.engine) /* the test has failed */
		exit(1);
	if (f.pool)
		disown();
	fixture_free(&f.pool_fixture);
	return 0;
}

/* --- tests -------------------------------------------------------------------------------------
 */

static void beside_an_owner_that_writes(void **state)
{
	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	assert_true(pool_is_reader(reader.pool));
	assert_int_equal(read_by_name("set", 1), 0);
	assert_int_equal(read_by_name("other", 1), -ENOENT);
	close_reader();
}

static void of_a_pool_that_nobody_has(void **state)
{
	make_dataset("set", 1);
	disown();
	open_reader();
	assert_int_equal(read_by_name("set", 1), 0);
	own(); /* a reader is in nobody's way */
	make_dataset("more", 40);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	assert_int_equal(pool_follow(reader.pool), 0);
	assert_int_equal(read_by_name("set", 1), 0);
	assert_int_equal(read_by_name("more", 40), 0);
	close_reader();
}

/* Devices that do not answer are not waited for, as long as others are enough: neither for labels
 * nor for what they name. */
static void beside_devices_that_hang(void **state)
{
	uint64_t began;

	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	pool_set_read_hedge(reader.pool, SECOND / 2);
	for (unsigned i = 0; i < f.pool_fixture.devices; i++) {
		char name[16];

		snprintf(name, sizeof(name), "more%u", i);
		make_dataset(name, 20 * i);
		assert_int_equal(pool_checkpoint(f.pool), 0);
		sim_delay(world(), f.pool_fixture.paths[i], 100 * SECOND);
		began = engine_clock(reader.engine);
		assert_int_equal(pool_follow(reader.pool), 0);
		assert_int_equal(read_by_name(name, 20 * i), 0);
		assert_int_equal(pool_follow(reader.pool), 0); /* it owes an answer */
		assert_true(engine_clock(reader.engine) - began < 50 * SECOND);
		sim_delay(world(), f.pool_fixture.paths[i], 0);
		sim_drain(world());
	}
	for (unsigned i = 0; i < f.pool_fixture.devices; i++)
		sim_delay(world(), f.pool_fixture.paths[i], 5 * SECOND);
	assert_int_equal(pool_follow(reader.pool), 0); /* slow, and needed */
	for (unsigned i = 0; i < f.pool_fixture.devices; i++)
		atomic_fetch_add(&reader.pool->devices[i].stalled, 1); /* by others' reads */
	assert_int_equal(pool_follow(reader.pool), 0);
	for (unsigned i = 0; i < f.pool_fixture.devices; i++)
		atomic_fetch_sub(&reader.pool->devices[i].stalled, 1);
	for (unsigned i = 0; i < f.pool_fixture.devices; i++)
		sim_delay(world(), f.pool_fixture.paths[i], 100 * SECOND);
	began = engine_clock(reader.engine);
	assert_int_equal(pool_follow(reader.pool), -EIO);
	assert_true(engine_clock(reader.engine) - began < 50 * SECOND);
	close_reader(); /* when all have answered */
	for (unsigned i = 0; i < f.pool_fixture.devices; i++)
		sim_delay(world(), f.pool_fixture.paths[i], 0);
}

static void shares_are_the_owners(void **state)
{
	struct volume_create_options create = {.name = "share", .kind = VOLUME_SHARE};
	struct error error = {0};
	struct volume *volume;
	struct txn *txn;

	assert_int_equal(volume_create(f.volumes, &create, NULL, &error), 0);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	assert_int_equal(volume_open(reader.volumes, "share", &volume, &error), -EROFS);
	assert_int_equal(txn_begin(reader.pool, NULL, &txn), -EROFS);
	assert_int_equal(pool_checkpoint(reader.pool), -EROFS);
	assert_int_equal(volume_create(reader.volumes, &create, NULL, &error), -EROFS);
	close_reader();
}

/* What is in use while the owner comes, goes, dies and is somebody else. */
static void while_the_owner_changes(void **state)
{
	struct error error = {0};
	struct volume *volume;

	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	assert_int_equal(volume_open(reader.volumes, "set", &volume, &error), 0);
	for (unsigned i = 0; i < 4; i++) {
		char name[16];

		assert_int_equal(read_dataset(volume, 1), 0);
		snprintf(name, sizeof(name), "set-%u", i);
		make_dataset(name, 100 + 20 * i);
		if (i % 2)
			die();
		else
			disown();
		assert_int_equal(read_dataset(volume, 1), 0);
		own();
		assert_int_equal(pool_checkpoint(f.pool), 0);
		assert_int_equal(pool_follow(reader.pool), 0);
		assert_int_equal(read_by_name(name, 100 + 20 * i), 0);
	}
	assert_int_equal(read_dataset(volume, 1), 0);
	assert_int_equal(volume_close(volume), 0);
	close_reader();
}

static void what_is_destroyed_is_gone(void **state)
{
	struct error error = {0};
	struct volume *volume;
	uint64_t before;
	int r;

	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	assert_int_equal(volume_open(reader.volumes, "set", &volume, &error), 0);
	assert_int_equal(read_dataset(volume, 1), 0);
	before = pool_follow_count(reader.pool);
	destroy_dataset("set");
	for (unsigned i = 0; i < 6; i++) {
		char name[16];

		snprintf(name, sizeof(name), "new-%u", i);
		make_dataset(name, 60 + i);
		assert_int_equal(pool_checkpoint(f.pool), 0);
		r = read_dataset(volume, 1);
		assert_true(r == 0 || r == -EIO);
	}
	assert_int_equal(pool_follow(reader.pool), 0);
	assert_true(pool_follow_count(reader.pool) > before);
	assert_int_equal(read_dataset(volume, 1), -EIO);
	assert_int_equal(read_by_name("set", 1), -ENOENT);
	for (unsigned i = 0; i < 6; i++) {
		char name[16];

		snprintf(name, sizeof(name), "new-%u", i);
		assert_int_equal(read_by_name(name, 60 + i), 0);
	}
	assert_int_equal(volume_close(volume), 0);
	close_reader();
}

static int note_segment(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	uint64_t *ids = data;

	if (length && ids[0] < 60)
		ids[++ids[0]] = segment;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* All segments of a dataset are emptied; the bytes lie elsewhere under their old names. */
static void move_dataset(const char *name)
{
	uint64_t ids[64] = {0};
	struct error error = {0};
	struct volume *volume;

	assert_int_equal(volume_open(f.volumes, name, &volume, &error), 0);
	assert_int_equal(pool_each_segment(f.pool, volume_row(volume)->id, note_segment, ids), 0);
	qsort(ids + 1, ids[0], sizeof(ids[0]), by_id);
	assert_int_equal(volume_compact(volume, ids + 1, (unsigned)ids[0], NULL), 0);
	assert_int_equal(volume_close(volume), 0);
}

/* Its old places are used for others; the reader finds the new ones. */
static void what_is_moved_is_found(void **state)
{
	struct error error = {0};
	struct volume *volume;

	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	assert_int_equal(volume_open(reader.volumes, "set", &volume, &error), 0);
	for (unsigned i = 0; i < 5; i++) {
		char name[16];

		move_dataset("set");
		assert_int_equal(pool_maintain(f.pool), 0);
		assert_int_equal(read_dataset(volume, 1), 0);
		snprintf(name, sizeof(name), "new-%u", i);
		make_dataset(name, 60 + i);
		if (i % 2) {
			die();
			own();
		}
		destroy_dataset(name);
		engine_sleep(f.pool_fixture.engine, 100 * SECOND);
		assert_int_equal(pool_maintain(f.pool), 0);
		assert_int_equal(read_dataset(volume, 1), 0);
	}
	assert_int_equal(volume_close(volume), 0);
	close_reader();
}

/* It looks by itself when it knows nothing new for long, and goes on with what it has when it
 * cannot. */
static void looks_before_it_reads(void **state)
{
	struct error error = {0};
	struct volume *volume;
	uint64_t before;

	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	assert_int_equal(volume_open(reader.volumes, "set", &volume, &error), 0);
	make_dataset("more", 30);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	before = pool_follow_count(reader.pool);
	assert_int_equal(read_dataset(volume, 1), 0);
	assert_int_equal(pool_follow_count(reader.pool), before);
	engine_sleep(reader.engine, 31 * SECOND);
	assert_int_equal(read_dataset(volume, 1), 0);
	assert_int_equal(pool_follow_count(reader.pool), before + 1);
	assert_true(pool_follow_age(reader.pool) < 30 * SECOND);
	assert_int_equal(pool_maintain(reader.pool), 0);
	assert_int_equal(volume_close(volume), 0);
	close_reader();
}

static bool answers(void)
{
	char silent[100];

	return pool_answers(reader.pool, 30 * SECOND, silent, sizeof(silent));
}

static void with_devices_lost(void **state)
{
	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	sim_kill_device(world(), f.pool_fixture.names[0]);
	sim_kill_device(world(), f.pool_fixture.names[3]);
	assert_int_equal(read_by_name("set", 1), 0);
	assert_int_equal(pool_follow(reader.pool), 0);
	assert_int_equal(read_by_name("set", 1), 0);
	assert_true(answers());
	sim_kill_device(world(), f.pool_fixture.names[1]);
	assert_int_equal(read_by_name("set", 1), -EIO);
	assert_false(answers());
	assert_int_equal(pool_follow(reader.pool), 0); /* more than parity still answer */
	assert_false(answers());
	for (unsigned i = 0; i < f.pool_fixture.devices; i++)
		sim_kill_device(world(), f.pool_fixture.names[i]);
	assert_int_not_equal(pool_follow(reader.pool), 0);
	assert_false(answers());
	for (unsigned i = 0; i < f.pool_fixture.devices; i++)
		sim_revive_device(world(), f.pool_fixture.names[i]);
	sim_kill_device(world(), f.pool_fixture.names[0]);
	assert_int_equal(pool_follow(reader.pool), 0);
	assert_true(answers());
	sim_revive_device(world(), f.pool_fixture.names[0]);
	assert_int_equal(read_by_name("set", 1), 0);
	close_reader();
}

/* Bad blocks are rebuilt for who asks, and left as they are. */
static void nothing_is_mended(void **state)
{
	make_dataset("set", 1);
	disown();
	f.pool = NULL;
	sim_settle(world());
	open_reader();
	sim_rot(world(), f.pool_fixture.names[2], 3u << 20, 8u << 20, 7);
	assert_int_equal(read_by_name("set", 1), 0);
	close_reader();
}

/* The owner goes on after each of a look's requests; what is found is a root, whole. */
static unsigned steps_left;

static void owner_goes_on(void *data)
{
	if (steps_left)
		steps_left--;
}

static void roots_that_come_while_it_looks(void **state)
{
	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	sim_watch_writes(f.pool_fixture.engine, owner_goes_on, NULL);
	for (unsigned i = 0; i < 30; i++) {
		make_dataset("new", 60 + i);
		assert_int_equal(pool_checkpoint(f.pool), 0);
		assert_int_equal(pool_follow(reader.pool), 0);
		assert_int_equal(read_by_name("new", 60 + i), 0);
		assert_int_equal(read_by_name("set", 1), 0);
		destroy_dataset("new");
		engine_sleep(f.pool_fixture.engine, 70 * SECOND);
		assert_int_equal(pool_maintain(f.pool), 0);
	}
	close_reader();
}

/* Each of the reader's requests fails once. */
static void each_request_fails(void **state)
{
	bool failed = true;

	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	for (uint64_t n = 1; failed; n++) {
		assert_int_equal(sim_engine_create(world(), &reader.engine), 0);
		sim_fail_nth(reader.engine, n, -EIO);
		open_reader();
		assert_int_equal(pool_follow(reader.pool), 0);
		assert_int_equal(read_by_name("set", 1), 0);
		failed = sim_failed(reader.engine);
		sim_fail_nth(reader.engine, 0, 0);
		close_reader();
	}
}

/* --- devices that come back --------------------------------------------------------------------
 */

static void kill_device(unsigned i)
{
	sim_kill_device(world(), f.pool_fixture.names[i]);
}

static void revive_device(unsigned i)
{
	sim_revive_device(world(), f.pool_fixture.names[i]);
}

static int take_back(const char *path)
{
	struct error error = {0};

	return pool_attach_returned(reader.pool, path, &error);
}

/* The owner's; what it holds is whole. */
static void resilver(void)
{
	struct pool_resilver_report report;
	struct error error = {0};

	assert_int_equal(pool_resilver(f.pool, &report, NULL, NULL, &error), 0);
	assert_true(report.whole && report.devices == 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
}

static void follow(void)
{
	assert_int_equal(pool_follow(reader.pool), 0);
}

static bool is_suspect(unsigned i)
{
	struct pool_status *status = malloc(sizeof(*status));
	bool suspect;

	pool_status(reader.pool, status);
	suspect = status->devices[i].suspect;
	free(status);
	return suspect;
}

/* Two are lost besides; what is on the device makes up for them. */
static void must_be_read_from(unsigned device)
{
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++) {
		for (unsigned j = i + 1; j < FIXTURE_DEVICES; j++) {
			if (i == device || j == device)
				continue;
			kill_device(i);
			kill_device(j);
			assert_int_equal(read_by_name("set", 1), 0);
			assert_int_equal(read_by_name("more", 40), 0);
			revive_device(i);
			revive_device(j);
		}
	}
}

/* The owner drops it; the reader begins without it, or not. */
static void lose_device(unsigned i, bool before)
{
	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	if (!before)
		open_reader();
	kill_device(i);
	make_dataset("more", 40);
	assert_int_equal(pool_maintain(f.pool), 0);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	if (before)
		open_reader();
	follow();
	assert_int_equal(pool_not_whole(f.pool), 1);
	assert_int_equal(pool_not_whole(reader.pool), 0); /* nobody may use it */
}

static void what_was_away_is_taken_back(void **state)
{
	struct error error = {0};

	lose_device(2, true);
	revive_device(2);
	assert_int_equal(pool_attach(f.pool, "d2", &error), 0);
	follow();
	assert_int_equal(pool_not_whole(reader.pool), 1);
	assert_int_equal(take_back("d2"), 0);
	assert_int_equal(pool_not_whole(reader.pool), 0);
	assert_true(is_suspect(2));
	resilver();
	kill_device(4);
	kill_device(5);
	follow();
	assert_int_equal(pool_not_whole(reader.pool), 2);
	revive_device(4);
	revive_device(5);
	follow();
	assert_false(is_suspect(2));
	must_be_read_from(2);
	close_reader();
}

/* It is not dropped: the reader alone was without it. */
static void what_only_the_reader_lost(void **state)
{
	make_dataset("set", 1);
	make_dataset("more", 40);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	kill_device(2);
	open_reader();
	revive_device(2);
	assert_int_equal(pool_not_whole(f.pool), 0);
	assert_int_equal(pool_not_whole(reader.pool), 1);
	kill_device(0);
	kill_device(1);
	assert_int_equal(read_by_name("set", 1), -EIO);
	revive_device(0);
	revive_device(1);
	for (uint64_t n = 1; pool_not_whole(reader.pool); n++) {
		sim_fail_nth(reader.engine, n, -EIO);
		take_back("d2");
		sim_fail_nth(reader.engine, 0, 0);
		assert_true(n < 10);
	}
	must_be_read_from(2);
	close_reader();
}

/* Its way to the devices: no handle of before is good any more, and no look ends well. */
static void all_are_pulled_and_put_back(void **state)
{
	make_dataset("set", 1);
	make_dataset("more", 40);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	sim_cut_host(reader.engine);
	sim_reconnect(reader.engine);
	assert_int_not_equal(pool_follow(reader.pool), 0);
	assert_int_equal(pool_not_whole(reader.pool), FIXTURE_DEVICES);
	assert_int_equal(pool_follow(reader.pool), -EIO);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++)
		assert_int_equal(take_back(f.pool_fixture.names[i]), 0);
	assert_int_equal(pool_not_whole(reader.pool), 0);
	follow();
	must_be_read_from(0);
	close_reader();
}

static void what_has_taken_its_place(void **state)
{
	struct error error = {0};

	lose_device(3, false);
	assert_int_equal(sim_add_device(world(), "d6", 32u << 20), 0);
	assert_int_equal(sim_add_device(world(), "other", 32u << 20), 0);
	assert_int_equal(take_back("d6"), -ENODEV);
	assert_int_equal(pool_replace(f.pool, 3, "d6", false, &error), 0);
	assert_int_equal(take_back("d6"), -ENODEV); /* no label that it has seen says so */
	resilver();
	revive_device(3);
	follow();
	assert_int_equal(pool_not_whole(reader.pool), 1);
	assert_int_equal(take_back("d3"), -ENODEV);
	assert_int_equal(take_back("other"), -ENODEV);
	assert_int_equal(take_back("none"), -ENOENT);
	assert_int_equal(pool_not_whole(reader.pool), 1);
	assert_int_equal(take_back("d6"), 0);
	assert_int_equal(pool_not_whole(reader.pool), 0);
	must_be_read_from(3);
	close_reader();
}

static void what_is_in_use_stays(void **state)
{
	struct pool_device_io before[POOL_DEVICES_MAX], after[POOL_DEVICES_MAX];
	struct error error = {0};

	make_dataset("set", 1);
	assert_int_equal(pool_checkpoint(f.pool), 0);
	open_reader();
	assert_int_equal(read_by_name("set", 1), 0);
	pool_device_io(reader.pool, before);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++)
		assert_int_equal(take_back(f.pool_fixture.names[i]), 0);
	pool_device_io(reader.pool, after);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++)
		assert_int_equal(
			after[i].counters.of[IO_READ].done, before[i].counters.of[IO_READ].done);
	assert_int_equal(pool_attach(reader.pool, "d0", &error), 0);
	kill_device(0);
	follow();
	revive_device(0);
	assert_int_equal(pool_attach(reader.pool, "d0", &error), -EROFS);
	close_reader();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_tank, end_tank)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(beside_an_owner_that_writes),
		TEST(beside_devices_that_hang),
		TEST(of_a_pool_that_nobody_has),
		TEST(shares_are_the_owners),
		TEST(while_the_owner_changes),
		TEST(what_is_destroyed_is_gone),
		TEST(what_is_moved_is_found),
		TEST(looks_before_it_reads),
		TEST(with_devices_lost),
		TEST(nothing_is_mended),
		TEST(roots_that_come_while_it_looks),
		TEST(each_request_fails),
		TEST(what_was_away_is_taken_back),
		TEST(what_only_the_reader_lost),
		TEST(all_are_pulled_and_put_back),
		TEST(what_has_taken_its_place),
		TEST(what_is_in_use_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
