/* SPDX-License-Identifier: LGPL-3.0-or-later. Bytes written for a create. links: volume */
/*
 * What the devices get for a create does not depend on how many files a volume has: its journal is
 * the same, and its checkpoints write five bytes at most for each that has changed.
 */
#include <inttypes.h>

#include "test_volume.h"

#define DEVICE_SIZE (96ull << 20)
#define JOURNAL_SIZE (4ull << 20)
#define ROWS 64u /* segments of 1 MiB */
#define METADATA_MOST (256u << 20)
#define PER_DIRECTORY 500u
#define TOGETHER 50u /* divides PER_DIRECTORY */
#define CHECKPOINTS 4u

static struct fixture fixture;
static struct pool *pool;
static struct volumes *volumes;
static struct volume *volume;
static uint64_t oldest, next; /* files: [oldest, next) are there */

static void make_pool(void)
{
	struct pool_create_device list[FIXTURE_DEVICES];
	struct sim_options options = {.seed = 1, .reorder = true};
	struct error error = {0};
	struct pool_create_options create = {.name = "tank",
		.data = 4,
		.parity = 2,
		.cell = 4096,
		.devices = list,
		.device_count = FIXTURE_DEVICES,
		.host = "alpha",
		.slot_rows = ROWS,
		.journal_size = JOURNAL_SIZE};

	assert_int_equal(sim_world_create(&options, &fixture.world), 0);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++) {
		snprintf(fixture.names[i], sizeof(fixture.names[i]), "d%u", i);
		fixture.paths[i] = fixture.names[i];
		list[i] = (struct pool_create_device){.path = fixture.names[i]};
		assert_int_equal(sim_add_device(fixture.world, fixture.names[i], DEVICE_SIZE), 0);
	}
	assert_int_equal(sim_engine_create(fixture.world, &fixture.engine), 0);
	assert_int_equal(pool_create(fixture.engine, &create, &error), 0);
}

static void start(void)
{
	struct volume_create_options create = {.name = "share", .kind = VOLUME_SHARE};
	struct pool_open_options options = {.paths = fixture.paths,
		.path_count = FIXTURE_DEVICES,
		.host = "alpha",
		.metadata_limit = METADATA_MOST};
	struct error error = {0};

	make_pool();
	if (pool_open(fixture.engine, &options, &pool, &error))
		fail_msg("%s: %s", error.object, error.message);
	assert_int_equal(volumes_create(pool, NULL, &volumes), 0);
	assert_int_equal(volume_create(volumes, &create, NULL, &error), 0);
	assert_int_equal(volume_open(volumes, "share", &volume, &error), 0);
}

static void end(void)
{
	struct error error = {0};

	assert_int_equal(volume_close(volume), 0);
	volumes_destroy(volumes);
	assert_int_equal(pool_close(pool, &error), 0);
	engine_destroy(fixture.engine);
	sim_world_destroy(fixture.world);
}

/* --- files ------------------------------------------------------------------------------------ */

static const char *numbered(char *name, char letter, uint64_t number)
{
	snprintf(name, 16, "%c%08u", letter, (unsigned)number);
	return name;
}

static uint64_t directory_of(uint64_t file)
{
	struct volume_attributes found;
	char name[16];

	numbered(name, 'd', file / PER_DIRECTORY);
	assert_int_equal(volume_lookup(volume, VOLUME_ROOT, name, &found), 0);
	return found.ino;
}

/* The directory of the next file, made when it is the first one in it. */
static uint64_t next_directory(void)
{
	char name[16];

	numbered(name, 'd', next / PER_DIRECTORY);
	return next % PER_DIRECTORY ? directory_of(next)
				    : must_make(volume, VOLUME_ROOT, name, VOLUME_DIRECTORY);
}

static void settle(void)
{
	assert_int_equal(pool_sync(pool, pool_lsn(pool)), 0);
	assert_int_equal(pool_maintain(pool), 0);
}

/* In one transaction. */
static void grow(void)
{
	struct volume_staged staged[TOGETHER] = {0};
	uint64_t directory = next_directory(), lsn;
	char names[TOGETHER][16];

	for (unsigned i = 0; i < TOGETHER; i++) {
		staged[i].dir = directory;
		staged[i].name = numbered(names[i], 'f', next++);
		staged[i].new.type = VOLUME_FILE;
	}
	assert_int_equal(volume_stage_commit(volume, staged, TOGETHER, &lsn), 0);
	for (unsigned i = 0; i < TOGETHER; i++)
		assert_int_equal(staged[i].status, 0);
	settle();
}

/* One transaction each. */
static void make_some(void)
{
	uint64_t directory = next_directory();
	char name[16];

	for (unsigned i = 0; i < TOGETHER; i++)
		must_make(volume, directory, numbered(name, 'f', next++), VOLUME_FILE);
	assert_int_equal(pool_sync(pool, pool_lsn(pool)), 0);
}

static void remove_some(void)
{
	uint64_t directory = directory_of(oldest);
	char name[16];

	for (unsigned i = 0; i < TOGETHER; i++)
		must_unlink(volume, directory, numbered(name, 'f', oldest++));
	if (oldest % PER_DIRECTORY == 0)
		must_unlink(volume, VOLUME_ROOT, numbered(name, 'd', oldest / PER_DIRECTORY - 1));
	assert_int_equal(pool_sync(pool, pool_lsn(pool)), 0);
}

/* --- bytes ------------------------------------------------------------------------------------ */

struct bytes_of {
	uint64_t creates, journal; /* of them */
	uint64_t checkpoints, fulls, images; /* images: bytes, deltas too */
	uint64_t deltas, covered; /* bytes, and the creates of which they tell */
};

static struct pool_status *status(void)
{
	static struct pool_status now;

	pool_status(pool, &now);
	return &now;
}

/* Files come and go; `since` are those made since the last checkpoint. */
static void come_and_go(struct bytes_of *of, uint64_t *since)
{
	struct pool_status before = *status();

	make_some();
	of->journal += status()->journal_bytes - before.journal_bytes;
	of->creates += TOGETHER;
	*since += TOGETHER;
	remove_some();
	assert_int_equal(pool_maintain(pool), 0);
	of->images += status()->image_bytes - before.image_bytes;
	if (status()->images == before.images)
		return;
	of->checkpoints++;
	of->fulls += status()->deltas == before.deltas;
	of->deltas += status()->delta_bytes - before.delta_bytes;
	of->covered += status()->deltas == before.deltas ? 0 : *since;
	*since = 0;
}

/* From one full image of the volume to another, over several checkpoints. */
static struct bytes_of measure(uint64_t files)
{
	struct bytes_of warm = {0}, of = {0};
	uint64_t since = 0, fulls;

	while (next - oldest < files)
		grow();
	while (!warm.fulls)
		come_and_go(&warm, &since);
	do {
		fulls = of.fulls;
		come_and_go(&of, &since);
	} while (of.fulls == fulls || of.checkpoints < CHECKPOINTS);
	print_message("%" PRIu64 " files: %" PRIu64 " of journal, %" PRIu64 " of images a create; "
		      "%" PRIu64 " checkpoints, %" PRIu64 " full images\n",
		files, of.journal / of.creates, of.images / of.creates, of.checkpoints, of.fulls);
	return of;
}

static void test_a_create_writes_the_same(void **state)
{
	static const uint64_t sizes[] = {1000, 10000, 100000};
	struct bytes_of of[3];
	uint64_t changed;

	start();
	for (unsigned i = 0; i < 3; i++)
		of[i] = measure(sizes[i]);
	assert_true(of[2].covered);
	changed = of[2].deltas / of[2].covered; /* of a create, and what was removed for it */
	print_message("%" PRIu64 " bytes of entries change with a create\n", changed);
	for (unsigned i = 0; i < 3; i++) {
		/* Full batches and what moves the window come at different times. */
		assert_in_range(100 * of[i].journal / of[i].creates,
			99 * of[0].journal / of[0].creates, 101 * of[0].journal / of[0].creates);
		assert_in_range(of[i].images / of[i].creates, 1, 5 * changed);
	}
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_create_writes_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
