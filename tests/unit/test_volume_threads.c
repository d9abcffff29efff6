/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Many threads on one share of a pool on plain files: real completions, the volume's own thread. */
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "test_volume.h"
#include "device_files.h"

#define DEVICES 6
#define DEVICE_SIZE (96u << 20)
#define KIB 1024u
#define THREADS 4
#define ROUNDS 60

static char directory[64], paths[DEVICES][80];
static struct engine *engine;
static struct pool *pool;
static struct volumes *volumes;
static struct volume *volume;
static unsigned stream_limit; /* 0: the default */

static void make_pool(void)
{
	struct pool_create_device devices[DEVICES];
	struct pool_create_options create = {
		.name = "tank",
		.data = 4,
		.parity = 2,
		.cell = 16 * KIB,
		.devices = devices,
		.device_count = DEVICES,
		.host = "alpha",
		.slot_rows = 16,
		.journal_size = 8 << 20,
	};
	struct error error = {0};

	device_files_make(directory, DEVICES, DEVICE_SIZE, paths, devices);
	if (uring_engine_create(NULL, &engine, &error))
		fail_msg("%s: %s", error.object, error.message);
	if (pool_create(engine, &create, &error))
		fail_msg("%s: %s", error.object, error.message);
}

static void open_all(void)
{
	const char *list[DEVICES];
	struct pool_open_options options = {
		.paths = list,
		.path_count = DEVICES,
		.name = "tank",
		.host = "alpha",
		.scratch_dir = directory,
		.metadata_limit = 64u << 20,
		.stream_limit = stream_limit,
		.background = true,
	};
	struct error error = {0};

	for (unsigned i = 0; i < DEVICES; i++)
		list[i] = paths[i];
	if (pool_open(engine, &options, &pool, &error))
		fail_msg("%s: %s", error.object, error.message);
	assert_int_equal(volumes_create(pool, NULL, &volumes), 0);
}

static void close_all(void)
{
	struct error error = {0};

	assert_int_equal(volume_close(volume), 0);
	volumes_destroy(volumes);
	if (pool_close(pool, &error))
		fail_msg("%s: %s", error.object, error.message);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	return remove(path);
}

static int start(void **state)
{
	struct volume_create_options create = {.name = "share", .kind = VOLUME_SHARE};

	strcpy(directory, "/tmp/volume-XXXXXX");
	assert_non_null(mkdtemp(directory));
	make_pool();
	open_all();
	assert_int_equal(volume_create(volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(volumes, "share", &volume, NULL), 0);
	return 0;
}

static int end(void **state)
{
	struct volume_verify_report report;
	uint64_t wrong;

	assert_int_equal(volume_sync(volume), 0);
	assert_int_equal(volume_verify(volume, NULL, &report, NULL), 0);
	assert_int_equal(report.bad_files, 0);
	assert_int_equal(report.bad_metadata, 0);
	assert_int_equal(volume_check_live(volume, &wrong), 0);
	assert_int_equal(wrong, 0);
	close_all();
	engine_destroy(engine);
	return nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void run_threads(void *(*body)(void *data))
{
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, body, (void *)i), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

/* --- files of their own ----------------------------------------------------------------------- */

static void *write_own(void *data)
{
	unsigned me = (unsigned)(uintptr_t)data;
	char name[32], other[32];

	for (unsigned i = 0; i < ROUNDS; i++) {
		size_t length = 1 + (i * 7919 + me * 104729) % (300 * KIB);
		struct volume_file *file;
		uint64_t ino, lsn;

		snprintf(name, sizeof(name), "t%u-%u", me, i);
		ino = must_make(volume, VOLUME_ROOT, name, VOLUME_FILE);
		file = must_get(volume, ino);
		assert_int_equal(write_seeded(file, 0, length, i + me), 0);
		must_read_seeded(file, 0, length, i + me);
		if (i % 3)
			assert_int_equal(volume_commit_wait(file), 0);
		must_read_seeded(file, 0, length, i + me);
		volume_file_put(file);
		if (i % 4 == 1)
			must_unlink(volume, VOLUME_ROOT, name);
		snprintf(other, sizeof(other), "u%u", me);
		if (i % 4 == 2)
			assert_int_equal(
				volume_rename(volume, VOLUME_ROOT, name, VOLUME_ROOT, other, &lsn),
				0);
	}
	return NULL;
}

static void writes_many_files(void **state)
{
	run_threads(write_own);
}

/* --- what a file uses ------------------------------------------------------------------------- */

static atomic_bool is_durable;

static void note_durable(struct volume_commit *commit, int status)
{
	assert_int_equal(status, 0);
	atomic_store(&is_durable, true);
}

static void must_use(uint64_t ino, uint64_t bytes)
{
	struct volume_attributes found;

	assert_int_equal(volume_getattr(volume, ino, &found), 0);
	assert_int_equal(found.used, bytes);
}

/* Also in the moment in which its bytes are in the environment and still pending. */
static void shows_what_a_file_uses(void **state)
{
	const size_t length = 100 * KIB;

	for (unsigned i = 0; i < 10 * ROUNDS; i++) {
		struct volume_commit commit = {.done = note_durable};
		struct volume_file *file;
		char name[32];
		uint64_t ino;

		snprintf(name, sizeof(name), "f%u", i);
		ino = must_make(volume, VOLUME_ROOT, name, VOLUME_FILE);
		file = must_get(volume, ino);
		assert_int_equal(set_size(volume, ino, 1 << 30), 0); /* no file uses more */
		assert_int_equal(write_seeded(file, 0, length, i), 0);
		atomic_store(&is_durable, false);
		volume_commit(file, &commit);
		while (!atomic_load(&is_durable))
			must_use(ino, length);
		must_use(ino, length);
		volume_file_put(file);
		must_unlink(volume, VOLUME_ROOT, name);
	}
}

/* --- volumes that are forgotten --------------------------------------------------------------- */

static atomic_bool is_told, has_been_told;

static void take_time(struct volume_commit *commit, int status)
{
	atomic_store(&is_told, true);
	usleep(200000);
	atomic_store(&has_been_told, true);
}

/* As a server ends that has nothing under way any more: who is told of the last commit answers its
 * client there, and has to come back. */
static void forgets_nothing_that_is_being_told(void **state)
{
	uint64_t ino = must_make(volume, VOLUME_ROOT, "last", VOLUME_FILE);
	struct volume_commit commit = {.done = take_time};
	struct volume_file *file = must_get(volume, ino);

	assert_int_equal(write_seeded(file, 0, 100 * KIB, 1), 0);
	volume_commit(file, &commit);
	volume_file_put(file);
	while (!atomic_load(&is_told))
		usleep(100);
	volumes_abandon(volumes);
	assert_true(atomic_load(&has_been_told));
	assert_int_equal(volumes_create(pool, NULL, &volumes), 0);
	assert_int_equal(volume_open(volumes, "share", &volume, NULL), 0);
}

/* --- one file for all ------------------------------------------------------------------------- */

static uint64_t shared_ino;

static void *write_shared(void *data)
{
	unsigned me = (unsigned)(uintptr_t)data;
	struct volume_file *file = must_get(volume, shared_ino);

	for (unsigned i = 0; i < ROUNDS; i++) {
		/* Blocks of a thread lie between those of the others. */
		uint64_t offset = (uint64_t)(i * THREADS + me) * 10000;

		assert_int_equal(write_seeded(file, offset, 10000, me), 0);
		must_read_seeded(file, offset, 10000, me);
		if (i % 5 == me)
			assert_int_equal(volume_commit_wait(file), 0);
	}
	volume_file_put(file);
	return NULL;
}

static void shares_one_file(void **state)
{
	struct volume_file *file;

	shared_ino = must_make(volume, VOLUME_ROOT, "one", VOLUME_FILE);
	run_threads(write_shared);
	file = must_get(volume, shared_ino);
	assert_int_equal(volume_commit_wait(file), 0);
	for (unsigned i = 0; i < ROUNDS * THREADS; i++)
		must_read_seeded(file, i * 10000ull, 10000, i % THREADS);
	volume_file_put(file);
}

/* What the first thread does to the file that the others write. */
static void cut_shared(struct volume_file *file, unsigned i)
{
	const struct volume_xattr xattr = {"round", &i, sizeof(i)};
	uint64_t found, lsn;
	int r;

	if (i % 2)
		assert_int_equal(set_size(volume, shared_ino, (i * 331) % 50000), 0);
	else
		assert_int_equal(volume_punch(file, (i * 331) % 50000, 20000), 0);
	r = volume_seek(file, 0, i % 3 ? VOLUME_SEEK_DATA : VOLUME_SEEK_HOLE, &found);
	assert_true(!r || r == -ENXIO);
	assert_int_equal(
		volume_xattr_set(volume, shared_ino, &xattr, VOLUME_XATTR_EITHER, &lsn), 0);
}

/* Whatever happens at the same time, a read sees a write whole or not at all at each byte. */
static void *change_shared(void *data)
{
	unsigned me = (unsigned)(uintptr_t)data;
	struct volume_file *file = must_get(volume, shared_ino);
	uint8_t *bytes = malloc(64 * KIB);

	memset(bytes, 'a' + (int)me, 64 * KIB);
	for (unsigned i = 0; i < 4 * ROUNDS; i++) {
		struct iovec iov = {bytes, 1 + (i * 977) % (64 * KIB)};
		uint8_t found[4096];
		size_t got;
		bool eof;

		if (me == 0)
			cut_shared(file, i);
		else
			assert_int_equal(
				volume_write(file, (i * 613) % 70000, &iov, 1, iov.iov_len), 0);
		assert_int_equal(volume_read_wait(file, (i * 1009) % 60000, found, sizeof(found),
					 &got, &eof),
			0);
		for (size_t k = 0; k < got; k++)
			assert_true(!found[k] || (found[k] > 'a' && found[k] < 'a' + THREADS));
		if (i % 7 == me)
			assert_int_equal(volume_commit_wait(file), 0);
	}
	free(bytes);
	volume_file_put(file);
	return NULL;
}

static void truncates_and_punches_under_writers(void **state)
{
	shared_ino = must_make(volume, VOLUME_ROOT, "one", VOLUME_FILE);
	run_threads(change_shared);
}

/* --- names ------------------------------------------------------------------------------------ */

static bool count_entry(void *data, const struct volume_entry *entry)
{
	++*(unsigned *)data;
	return true;
}

static void *fight_over_names(void *data)
{
	unsigned me = (unsigned)(uintptr_t)data, seen = 0;
	struct volume_new new = {.type = VOLUME_FILE};
	char name[16], other[16];
	uint64_t lsn;
	bool eof;
	int r;

	for (unsigned i = 0; i < 10 * ROUNDS; i++) {
		struct volume_attributes made;
		struct volume_file *file;

		snprintf(name, sizeof(name), "n%u", (i * 31 + me) % 7);
		snprintf(other, sizeof(other), "n%u", (i * 17 + me) % 7);
		r = volume_make(volume, VOLUME_ROOT, name, &new, &made, &lsn);
		assert_true(!r || r == -EEXIST || r == -EAGAIN);
		if ((!r || r == -EEXIST) && !volume_file_get(volume, made.ino, &file)) {
			if (!volume_file_open(file)) {
				r = write_seeded(file, 0, 5000, i);
				assert_true(!r);
				volume_file_close(file);
			}
			volume_file_put(file);
		}
		r = volume_rename(volume, VOLUME_ROOT, name, VOLUME_ROOT, other, &lsn);
		assert_true(!r || r == -ENOENT);
		r = volume_unlink(volume, VOLUME_ROOT, other, VOLUME_UNLINK_ANY, &lsn);
		assert_true(!r || r == -ENOENT);
		assert_int_equal(
			volume_readdir(volume, VOLUME_ROOT, 0, count_entry, &seen, &eof), 0);
		assert_true(eof);
	}
	return NULL;
}

static void fights_over_names(void **state)
{
	run_threads(fight_over_names);
}

/* --- compaction under way --------------------------------------------------------------------- */

static _Atomic bool stop;

static int remember(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	uint64_t *list = data;

	if (list[0] < 63)
		list[++list[0]] = segment;
	return 0;
}

static void *compact(void *data)
{
	while (!atomic_load(&stop)) {
		uint64_t list[64] = {0};

		assert_int_equal(
			pool_each_segment(pool, volume_row(volume)->id, remember, list), 0);
		for (unsigned i = 1; i <= list[0]; i++)
			assert_int_equal(volume_compact(volume, &list[i], 1, NULL), 0);
	}
	return NULL;
}

/* The segments of a volume, in order; those without chunks are left out. */
static int remember_chunks(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	return length ? remember(data, segment, length, live) : 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void *compact_sealed(void *data)
{
	unsigned *rounds = data;

	for (; !atomic_load(&stop); ++*rounds) {
		uint64_t list[64] = {0};

		assert_int_equal(
			pool_each_segment(pool, volume_row(volume)->id, remember_chunks, list), 0);
		qsort(list + 1, list[0], sizeof(*list), by_id);
		assert_int_equal(volume_compact(volume, list + 1, (unsigned)list[0], NULL), 0);
	}
	return NULL;
}

static void must_find(const char *prefix, unsigned i, size_t length)
{
	struct volume_attributes found;
	struct volume_file *file;
	char name[16];

	snprintf(name, sizeof(name), "%s%u", prefix, i);
	assert_int_equal(volume_lookup(volume, VOLUME_ROOT, name, &found), 0);
	file = must_get(volume, found.ino);
	must_read_seeded(file, 0, length, i);
	volume_file_put(file);
}

/* While it goes on, too. */
static void must_be_right(void)
{
	struct pool_check_report report;

	assert_int_equal(pool_check(pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.wrong_live, 0);
	assert_int_equal(report.bad_blocks, 0);
}

/* No read fails: whoever finds a place gone finds the next one. */
static void reads_while_it_is_moved(void **state)
{
	struct volume_file *files[8];
	unsigned rounds = 0;
	pthread_t thread;
	char name[16];

	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		files[i] = must_get(volume, must_make(volume, VOLUME_ROOT, name, VOLUME_FILE));
		assert_int_equal(write_seeded(files[i], 0, 200 * KIB, i), 0);
	}
	for (unsigned i = 0; i < 8; i++)
		volume_file_put(files[i]);
	assert_int_equal(volume_seal(volume, NULL), 0);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, compact_sealed, &rounds), 0);
	for (unsigned i = 0; i < 400; i++) {
		must_find("c", i % 8, 200 * KIB);
		if (i % 20 == 0)
			must_be_right();
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	assert_true(rounds > 2);
	for (unsigned i = 0; i < 8; i++)
		must_find("c", i, 200 * KIB);
}

/* Of four files one stays, in segments that they share. */
static void make_waste(void)
{
	char name[16];

	for (unsigned i = 0; i < 40; i++) {
		struct volume_file *file;

		snprintf(name, sizeof(name), "w%u", i);
		file = must_get(volume, must_make(volume, VOLUME_ROOT, name, VOLUME_FILE));
		assert_int_equal(write_seeded(file, 0, 250 * KIB, i), 0);
		assert_int_equal(volume_commit_wait(file), 0);
		volume_file_put(file);
	}
	for (unsigned i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "w%u", i);
		if (i % 4)
			must_unlink(volume, VOLUME_ROOT, name);
	}
	assert_int_equal(volume_sync(volume), 0);
}

static uint64_t waste(void)
{
	uint64_t bytes;

	assert_int_equal(pool_waste(pool, 0, &bytes), 0);
	return bytes;
}

static void compacts_in_the_background(void **state)
{
	uint64_t before;

	make_waste();
	assert_int_equal(volumes_compact_start(volumes, 0), 0);
	for (unsigned i = 0; i < 6000 && waste() < 4u << 20;
		i++) /* until its segments are closed */
		usleep(10000);
	before = waste();
	assert_true(before >= 4u << 20);
	usleep(100000);
	assert_true(waste() >= before); /* space is not short */
	assert_int_equal(volumes_compact_start(volumes, 1ull << 40), 0);
	for (unsigned i = 0; i < 6000 && waste() > before / 2; i++)
		usleep(10000);
	assert_true(waste() <= before / 2);
	for (unsigned i = 0; i < 40; i += 4)
		must_find("w", i, 250 * KIB);
}

/* At a byte a second it would have the volume open for days. */
static void lets_go_of_what_is_destroyed(void **state)
{
	struct volume_create_options create = {.name = "share", .kind = VOLUME_SHARE};

	make_waste();
	assert_int_equal(volume_close(volume), 0);
	for (unsigned i = 0; i < 6000 && waste() < 4u << 20; i++)
		usleep(10000);
	assert_int_equal(volumes_compact_start(volumes, 1), 0);
	usleep(300000);
	assert_int_equal(volume_destroy(volumes, "share", NULL), 0);
	assert_int_equal(waste(), 0);
	assert_int_equal(volume_create(volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(volumes, "share", &volume, NULL), 0);
}

static void reads_while_it_is_compacted(void **state)
{
	struct volume_file *files[8];
	pthread_t thread;
	char name[16];

	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		files[i] = must_get(volume, must_make(volume, VOLUME_ROOT, name, VOLUME_FILE));
		assert_int_equal(write_seeded(files[i], 0, 200 * KIB, i), 0);
	}
	assert_int_equal(volume_sync(volume), 0);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, compact, NULL), 0);
	for (unsigned i = 0; i < 400; i++) {
		must_read_seeded(files[i % 8], 0, 200 * KIB, i % 8);
		if (i % 10 == 0)
			assert_int_equal(write_seeded(files[i % 8], 0, 200 * KIB, i % 8), 0);
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < 8; i++)
		volume_file_put(files[i]);
}

/* --- volumes ---------------------------------------------------------------------------------- */

/* A volume that is closed ends its streams, and maintenance begins to close their segments: when
 * the volume is deleted at once, a segment is freed in the middle of being closed. */
static void *make_and_destroy(void *data)
{
	struct volume_create_options create = {.kind = VOLUME_SHARE};
	char name[32];

	for (unsigned i = 0; i < ROUNDS; i++) {
		struct volume_file *file;
		struct volume *mine;

		snprintf(name, sizeof(name), "v%u-%u", (unsigned)(uintptr_t)data, i);
		create.name = name;
		assert_int_equal(volume_create(volumes, &create, NULL, NULL), 0);
		assert_int_equal(volume_open(volumes, name, &mine, NULL), 0);
		file = must_get(mine, must_make(mine, VOLUME_ROOT, "file", VOLUME_FILE));
		assert_int_equal(write_seeded(file, 0, 5000 + i * 3000, i), 0);
		assert_int_equal(volume_commit_wait(file), 0);
		volume_file_put(file);
		assert_int_equal(volume_close(mine), 0);
		assert_int_equal(volume_destroy(volumes, name, NULL), 0);
	}
	return NULL;
}

static void volumes_come_and_go(void **state)
{
	run_threads(make_and_destroy);
	close_all();
	open_all(); /* finds each slot taken once */
	assert_int_equal(volume_open(volumes, "share", &volume, NULL), 0);
}

/* Each has its own volume, and there are fewer streams than volumes. */
static void *write_to_my_volume(void *data)
{
	struct volume_create_options create = {.kind = VOLUME_SHARE};
	unsigned me = (unsigned)(uintptr_t)data;
	struct volume_file *file;
	struct volume *mine;
	char name[32];

	snprintf(name, sizeof(name), "v%u", me);
	create.name = name;
	assert_int_equal(volume_create(volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(volumes, name, &mine, NULL), 0);
	file = must_get(mine, must_make(mine, VOLUME_ROOT, "file", VOLUME_FILE));
	for (unsigned i = 0; i < ROUNDS; i++)
		assert_int_equal(write_seeded(file, i * 5000, 5000, me + i), 0);
	for (unsigned i = 0; i < ROUNDS; i++)
		must_read_seeded(file, i * 5000, 5000, me + i);
	volume_file_put(file);
	assert_int_equal(volume_close(mine), 0);
	return NULL;
}

static void shares_few_streams(void **state)
{
	close_all();
	stream_limit = 2;
	open_all();
	stream_limit = 0;
	assert_int_equal(volume_open(volumes, "share", &volume, NULL), 0);
	run_threads(write_to_my_volume);
}

/* --- sealing -------------------------------------------------------------------------------- */

static _Atomic unsigned staged_files;

static void *stage_until_it_is_sealed(void *data)
{
	uint8_t *bytes = malloc(200 * KIB);
	int r = 0;

	fill_bytes(bytes, 200 * KIB, 1);
	while (!r) {
		struct volume_staged staged = {
			.dir = VOLUME_ROOT, .name = "x", .new = {.type = VOLUME_FILE}};

		staged.size = 200 * KIB;
		r = volume_stage(volume, &staged, 0, bytes, 200 * KIB);
		volume_staged_free(volume, &staged);
		atomic_fetch_add(&staged_files, 1);
	}
	assert_int_equal(r, -EROFS);
	free(bytes);
	return NULL;
}

static void *seal_in_the_middle(void *data)
{
	struct error error = {0};

	if (data)
		return stage_until_it_is_sealed(NULL);
	while (atomic_load(&staged_files) < 20)
		sched_yield();
	if (volume_seal(volume, &error))
		fail_msg("%s: %s", error.object, error.message);
	return NULL;
}

/* Its streams are closed while others append to them. */
static void seals_while_bytes_are_appended(void **state)
{
	for (unsigned i = 0; i < 5; i++) {
		struct volume_create_options create = {.kind = VOLUME_DATASET};
		char name[16];

		snprintf(name, sizeof(name), "d%u", i);
		create.name = name;
		assert_int_equal(volume_close(volume), 0);
		assert_int_equal(volume_create(volumes, &create, NULL, NULL), 0);
		assert_int_equal(volume_open(volumes, name, &volume, NULL), 0);
		atomic_store(&staged_files, 0);
		run_threads(seal_in_the_middle);
		assert_true(volume_is_read_only(volume));
	}
}

/* --- ingest ----------------------------------------------------------------------------------- */

static void ingests_with_threads(void **state)
{
	struct ingest_options options = {.source = directory, .threads = 4};
	struct ingest_progress progress;
	char path[128], name[32];
	struct error error = {0};

	snprintf(path, sizeof(path), "%s/src", directory);
	assert_int_equal(mkdir(path, 0755), 0);
	options.source = path;
	for (unsigned i = 0; i < 2000; i++) {
		char file[160];
		FILE *f;

		if (i % 100 == 0) {
			snprintf(file, sizeof(file), "%s/d%u", path, i / 100);
			assert_int_equal(mkdir(file, 0755), 0);
		}
		snprintf(file, sizeof(file), "%s/d%u/f%u", path, i / 100, i);
		f = fopen(file, "w");
		assert_non_null(f);
		for (unsigned k = 0; k < i * 3; k++)
			fputs("text ", f);
		fclose(f);
	}
	if (volume_ingest(volume, &options, &progress, &error))
		fail_msg("%s: %s", error.object, error.message);
	assert_int_equal(progress.files, 2000);
	assert_int_equal(progress.directories, 20);
	assert_int_equal(progress.bytes, 15ull * 2000 * 1999 / 2);
	close_all();
	open_all();
	assert_int_equal(volume_open(volumes, "share", &volume, NULL), 0);
	for (unsigned i = 0; i < 2000; i += 97) {
		struct volume_attributes dir, file;

		snprintf(name, sizeof(name), "d%u", i / 100);
		assert_int_equal(volume_lookup(volume, VOLUME_ROOT, name, &dir), 0);
		snprintf(name, sizeof(name), "f%u", i);
		assert_int_equal(volume_lookup(volume, dir.ino, name, &file), 0);
		assert_int_equal(file.size, i * 15);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(writes_many_files),
		TEST(shows_what_a_file_uses),
		TEST(forgets_nothing_that_is_being_told),
		TEST(shares_one_file),
		TEST(truncates_and_punches_under_writers),
		TEST(fights_over_names),
		TEST(reads_while_it_is_compacted),
		TEST(reads_while_it_is_moved),
		TEST(compacts_in_the_background),
		TEST(lets_go_of_what_is_destroyed),
		TEST(volumes_come_and_go),
		TEST(shares_few_streams),
		TEST(seals_while_bytes_are_appended),
		TEST(ingests_with_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
