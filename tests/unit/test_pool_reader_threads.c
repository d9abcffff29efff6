/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A reader of a pool on plain files takes devices back while many threads read. */
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test_volume.h"

#include "common/log.h"
#include "device_files.h"

#define DEVICES 6
#define DEVICE_SIZE (24u << 20)
#define KIB 1024u
#define THREADS 4
#define ROUNDS 24
#define FILES 8u
#define LENGTH (200u * KIB)

static char directory[64], paths[DEVICES][80];
static const char *list[DEVICES];
static struct engine *engine;
static struct pool *pool;
static struct volumes *volumes;
static struct volume *volume;
static uint64_t inos[FILES];

/* --- devices --------------------------------------------------------------------------------- */

static void make_pool(void)
{
	struct pool_create_device devices[DEVICES];
	struct pool_create_options create = {
		.name = "tank",
		.data = 4,
		.parity = 2,
		.cell = 4 * KIB,
		.devices = devices,
		.device_count = DEVICES,
		.host = "alpha",
		.slot_rows = 16,
		.journal_size = 2 << 20,
	};
	struct error error = {0};

	device_files_make(directory, DEVICES, DEVICE_SIZE, paths, devices);
	for (unsigned i = 0; i < DEVICES; i++)
		list[i] = paths[i];
	if (pool_create(engine, &create, &error))
		fail_msg("%s: %s", error.object, error.message);
}

/* As another file, as a drive that is plugged in again is another device. The first one, which has
 * been open, is worth nothing any more. */
static void exchange(unsigned i, bool back)
{
	static uint8_t bytes[DEVICE_SIZE];
	char away[100];
	int fd;

	snprintf(away, sizeof(away), "%s.away", paths[i]);
	if (!back) {
		assert_int_equal(rename(paths[i], away), 0);
		return;
	}
	fd = open(away, O_RDWR);
	assert_int_equal(pread(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(ftruncate(fd, 0), 0);
	close(fd);
	assert_int_equal(unlink(away), 0);
	fd = open(paths[i], O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	close(fd);
}

/* --- the pool -------------------------------------------------------------------------------- */

static void open_pool(bool reader)
{
	struct pool_open_options options = {
		.paths = list,
		.path_count = DEVICES,
		.name = "tank",
		.host = "alpha",
		.scratch_dir = directory,
		.metadata_limit = 64u << 20,
		.reader = reader,
		.background = true,
	};
	struct error error = {0};

	if (pool_open(engine, &options, &pool, &error))
		fail_msg("%s: %s", error.object, error.message);
	assert_int_equal(volumes_create(pool, NULL, &volumes), 0);
}

static void close_pool(void)
{
	struct error error = {0};

	assert_int_equal(volume_close(volume), 0);
	volumes_destroy(volumes);
	if (pool_close(pool, &error))
		fail_msg("%s: %s", error.object, error.message);
}

static void make_dataset(void)
{
	struct volume_create_options create = {.name = "set", .kind = VOLUME_DATASET};

	assert_int_equal(volume_create(volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(volumes, "set", &volume, NULL), 0);
	for (unsigned i = 0; i < FILES; i++) {
		struct volume_file *file;
		char name[16];

		snprintf(name, sizeof(name), "f%u", i);
		inos[i] = must_make(volume, VOLUME_ROOT, name, VOLUME_FILE);
		file = must_get(volume, inos[i]);
		assert_int_equal(write_seeded(file, 0, LENGTH, i), 0);
		volume_file_put(file);
	}
	assert_int_equal(volume_seal(volume, NULL), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	return remove(path);
}

/* Reads of devices that were pulled fail. */
static void quiet(enum log_level level, const char *line)
{
}

static int start(void **state)
{
	struct error error = {0};

	log_set_sink(quiet);
	strcpy(directory, "/tmp/reader-XXXXXX");
	assert_non_null(mkdtemp(directory));
	if (uring_engine_create(NULL, &engine, &error))
		fail_msg("%s: %s", error.object, error.message);
	make_pool();
	open_pool(false);
	make_dataset();
	close_pool();
	open_pool(true);
	assert_int_equal(volume_open(volumes, "set", &volume, NULL), 0);
	return 0;
}

static int end(void **state)
{
	close_pool();
	engine_destroy(engine);
	return nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- reads ----------------------------------------------------------------------------------- */

static atomic_bool stop;
static atomic_uint reads;

static void *read_all(void *data)
{
	for (unsigned i = (unsigned)(uintptr_t)data; !atomic_load(&stop); i = (i + 1) % FILES) {
		struct volume_file *file = must_get(volume, inos[i]);

		must_read_seeded(file, 0, LENGTH, i);
		volume_file_put(file);
		atomic_fetch_add(&reads, 1);
	}
	return NULL;
}

static void wait_for_reads(void)
{
	unsigned before = atomic_load(&reads);

	while (atomic_load(&reads) - before < FILES)
		sched_yield();
}

/* Reads that began before may still be under way. */
static void take_back(unsigned i)
{
	struct error error = {0};
	int rc;

	while ((rc = pool_attach_returned(pool, paths[i], &error)) == -EBUSY)
		sched_yield();
	if (rc)
		fail_msg("%s: %s", error.object, error.message);
}

/* Two at a time: after the first rounds nothing is left of the devices that were opened first. */
static void while_threads_read(void **state)
{
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_all, (void *)i), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned one = i % DEVICES, other = (i + 1) % DEVICES;

		exchange(one, false);
		exchange(other, false);
		exchange(one, true);
		exchange(other, true);
		wait_for_reads();
		assert_int_equal(pool_follow(pool), 0);
		assert_int_equal(pool_not_whole(pool), 2);
		wait_for_reads();
		take_back(one);
		assert_int_equal(pool_not_whole(pool), 1);
		take_back(other);
		assert_int_equal(pool_not_whole(pool), 0);
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(while_threads_read, start, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
