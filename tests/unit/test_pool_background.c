/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A pool with threads of its own. While the one for maintenance is not there: before it starts,
 * after it ended. While it is busy: the beat goes on. Plain files and real threads; whoever hangs
 * is ended by the alarm.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device_files.h"
#include "device/engine.h"
#include "pool/internal.h"

#define DEVICES 6
#define DEVICE_SIZE (64u << 20)
#define JOURNAL_SIZE (2u << 20)
#define VALUE 20000u
#define PATIENCE 120 /* seconds */

static char directory[64], paths[DEVICES][80];
static struct engine *engine;

/* --- an engine whose first device may stop to take writes of the journal ------------------- */

static const struct engine_ops *real;
static struct engine_ops wrapped;
static atomic_bool failing;

/* What lies behind the end of a device fails. */
static void submit(struct engine *e, struct io **ios, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		bool in_ring = ios[i]->offset >= BLOCK_SIZE + LABEL_AREA &&
			       ios[i]->offset < BLOCK_SIZE + LABEL_AREA + JOURNAL_SIZE;

		if (atomic_load(&failing) && ios[i]->op == IO_WRITE && in_ring &&
			!strcmp(ios[i]->device->info.path, paths[0]))
			ios[i]->offset = UINT64_C(1) << 62;
	}
	real->submit(e, ios, count);
}

static void make_engine(void)
{
	struct error error = {0};

	if (uring_engine_create(NULL, &engine, &error))
		fail_msg("%s: %s", error.object, error.message);
	real = engine->ops;
	wrapped = *real;
	wrapped.submit = submit;
	engine->ops = &wrapped;
}

/* --- a pool ------------------------------------------------------------------------------- */

static int setup(void **state)
{
	struct pool_create_device devices[DEVICES];
	struct pool_create_options create = {
		.name = "tank",
		.data = 4,
		.parity = 2,
		.cell = 16384,
		.devices = devices,
		.device_count = DEVICES,
		.host = "alpha",
		.slot_rows = 16,
		.journal_size = JOURNAL_SIZE,
	};
	struct error error = {0};

	snprintf(directory, sizeof(directory), "/tmp/background-XXXXXX");
	assert_non_null(mkdtemp(directory));
	device_files_make(directory, DEVICES, DEVICE_SIZE, paths, devices);
	atomic_store(&failing, false);
	make_engine();
	if (pool_create(engine, &create, &error))
		fail_msg("%s: %s", error.object, error.message);
	engine_destroy(engine);
	return 0;
}

static int teardown(void **state)
{
	alarm(0);
	for (unsigned i = 0; i < DEVICES; i++)
		unlink(paths[i]);
	return rmdir(directory);
}

static struct pool *open_pool(void)
{
	const char *list[DEVICES];
	struct pool_open_options options = {
		.paths = list,
		.path_count = DEVICES,
		.name = "tank",
		.host = "alpha",
		.scratch_dir = directory,
		.metadata_limit = 64u << 20,
		.background = true,
	};
	struct error error = {0};
	struct pool *pool;

	for (unsigned i = 0; i < DEVICES; i++)
		list[i] = paths[i];
	if (pool_open(engine, &options, &pool, &error))
		fail_msg("%s: %s", error.object, error.message);
	return pool;
}

static void close_pool(struct pool *pool)
{
	struct error error = {0};

	if (pool_close(pool, &error))
		fail_msg("%s: %s", error.object, error.message);
	engine_destroy(engine);
}

static void set_property(struct pool *pool, const char *value)
{
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(property_set(txn, 0, "note", value), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

static uint32_t make_volume(struct pool *pool)
{
	struct volume_row row;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(volume_row_create(txn, "v", VOLUME_SHARE, &row), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
	return row.id;
}

static unsigned dropped(const struct pool *pool)
{
	unsigned count = 0;

	for (unsigned i = 0; i < DEVICES; i++)
		count += atomic_load(&pool->devices[i].state) == DEVICE_DROPPED;
	return count;
}

/* --- tests -------------------------------------------------------------------------------- */

static void test_a_device_fails_while_the_pool_is_closed(void **state)
{
	struct pool *pool;

	alarm(PATIENCE);
	make_engine();
	pool = open_pool();
	set_property(pool, "before");
	pool_stop_maintenance(pool);
	atomic_store(&failing, true);
	close_pool(pool);
	atomic_store(&failing, false);
	make_engine();
	pool = open_pool();
	assert_int_equal(dropped(pool), 1);
	close_pool(pool);
}

static void test_a_device_fails_while_the_pool_is_opened(void **state)
{
	struct pool *pool;

	alarm(PATIENCE);
	make_engine();
	atomic_store(&failing, true);
	pool = open_pool();
	assert_int_equal(dropped(pool), 1);
	set_property(pool, "after");
	close_pool(pool);
}

static struct env *env;
static _Atomic unsigned changes;

static int try_change(struct pool *pool, unsigned i)
{
	static char value[VALUE];
	char key[16];
	int length = snprintf(key, sizeof(key), "k%u", i % 50);
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, env, &txn);

	if (rc)
		return rc;
	assert_int_equal(txn_put(txn, env, (struct bytes){key, (size_t)length},
				 (struct bytes){value, sizeof(value)}),
		0);
	return txn_commit(txn, &lsn);
}

static void *change(void *argument)
{
	struct pool *pool = argument;

	for (unsigned i = 0;; i++) {
		if (try_change(pool, i) || pool_sync(pool, journal_lsn(pool)))
			abort();
		atomic_fetch_add(&changes, 1);
	}
	return NULL;
}

/* In a process of its own: changes until the journal takes no more, as nobody may checkpoint. */
static void fill_and_die(void)
{
	struct pool *pool;
	pthread_t thread;
	unsigned seen;

	make_engine();
	pool = open_pool();
	assert_int_equal(env_get(pool, make_volume(pool), &env), 0);
	pthread_mutex_lock(&pool->maintain_lock);
	assert_int_equal(pthread_create(&thread, NULL, change, pool), 0);
	do {
		seen = atomic_load(&changes);
		sleep(1);
	} while (!seen || atomic_load(&changes) != seen);
	_exit(0);
}

static void test_a_full_journal_is_opened(void **state)
{
	struct pool *pool;
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	alarm(PATIENCE);
	if (!child)
		fill_and_die();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	make_engine();
	pool = open_pool();
	set_property(pool, "after");
	close_pool(pool);
}

/* The maintenance thread's own record, which fills the stock up, is the first to meet the device.
 */
static void test_a_device_fails_while_maintenance_waits(void **state)
{
	struct extent extents[4];
	unsigned count = 4;
	struct iovec iov = {directory, 16};
	struct stream *stream;
	struct pool *pool;
	uint32_t volume;

	alarm(PATIENCE);
	make_engine();
	pool = open_pool();
	volume = make_volume(pool);
	assert_int_equal(stream_open(pool, volume, &stream), 0);
	atomic_store(&failing, true);
	assert_int_equal(stream_append(stream, &iov, 1, 16, 0, extents, &count), 0);
	while (!atomic_load(&pool->devices[0].failing))
		usleep(1000);
	set_property(pool, "behind");
	assert_int_equal(dropped(pool), 1);
	pool_abandon_extents(pool, extents, count);
	stream_close(stream);
	close_pool(pool);
}

/* The one who seals has the lock that a round of maintenance waits for. */
static void test_a_device_fails_while_a_volume_is_sealed(void **state)
{
	struct pool *pool;
	uint32_t volume;

	alarm(PATIENCE);
	make_engine();
	pool = open_pool();
	volume = make_volume(pool);
	atomic_store(&failing, true);
	assert_int_equal(pool_seal(pool, volume), 0);
	assert_int_equal(dropped(pool), 1);
	close_pool(pool);
}

/* No slot is free: the checkpoint that would make room in the ring is not to be had. */
static void test_who_waits_for_room_that_does_not_come_is_told(void **state)
{
	uint32_t hidden[DEVICES];
	struct pool *pool;
	int rc = 0;

	alarm(PATIENCE);
	make_engine();
	pool = open_pool();
	assert_int_equal(env_get(pool, make_volume(pool), &env), 0);
	for (unsigned i = 0; i < DEVICES; i++) {
		struct member *member = &pool->devices[i];

		pthread_mutex_lock(&pool->slots_lock);
		hidden[i] = member->slot_count - member->slots_used;
		member->slots_used += hidden[i];
		pthread_mutex_unlock(&pool->slots_lock);
	}
	for (unsigned i = 0; !rc; i++)
		rc = try_change(pool, i);
	assert_int_equal(rc, -ENOSPC);
	for (unsigned i = 0; i < DEVICES; i++) {
		pthread_mutex_lock(&pool->slots_lock);
		pool->devices[i].slots_used -= hidden[i];
		pthread_mutex_unlock(&pool->slots_lock);
	}
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_int_equal(try_change(pool, 0), 0);
	env_put(env);
	close_pool(pool);
}

/* The beat that stands on a device; 0: none. */
static uint64_t beat_on(struct pool *pool, unsigned device)
{
	uint64_t place = label_place(LABEL_A_OFFSET, pool->epoch) + LABEL_BODY;
	int fd = open(paths[device], O_RDONLY);
	uint8_t block[BLOCK_SIZE];
	struct beat beat;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, block, sizeof(block), (off_t)place), sizeof(block));
	close(fd);
	if (beat_decode(&beat, pool->label.pool, block) || beat.epoch != pool->epoch)
		return 0;
	return beat.count;
}

/* A round of maintenance, a checkpoint, sealing: all that holds the lock may take its time. */
static void test_the_beat_goes_on_beside_maintenance(void **state)
{
	struct pool *pool;
	uint64_t first;

	alarm(PATIENCE);
	make_engine();
	pool = open_pool();
	pthread_mutex_lock(&pool->maintain_lock);
	pool_wake_maintenance(pool);
	first = beat_on(pool, 1);
	while (beat_on(pool, 1) < first + 3)
		usleep(50000);
	pthread_mutex_unlock(&pool->maintain_lock);
	close_pool(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_a_device_fails_while_the_pool_is_closed, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_device_fails_while_the_pool_is_opened, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_device_fails_while_maintenance_waits, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_device_fails_while_a_volume_is_sealed, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_who_waits_for_room_that_does_not_come_is_told, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_full_journal_is_opened, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_the_beat_goes_on_beside_maintenance, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
