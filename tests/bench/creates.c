/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What a create costs in bytes written, in a small volume and in a large one.
 *
 *   bench_creates DEPTH SIZES DEVICE...   a share of empty files, grown to each of SIZES
 * ("N,N,...")
 *
 * At each size files come and go: a create for each that is removed, the oldest first, so that the
 * volume stays as large as it is. DEPTH creates at a time wait to be durable, as replies do. From
 * one full image of the volume to the next, and for four checkpoints at least, the devices' bytes
 * are counted: the journal's while files are made, those of checkpoints all the time, so that what
 * removing costs there is counted against the creates as well. Growing is not measured, and makes
 * many files in a transaction.
 *
 * One line of JSON: a list of what was found, by size.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "volume/volume.h"

#define VOLUME "creates"
#define PER_DIRECTORY UINT64_C(10000)
#define GROWN_TOGETHER 256u /* files a transaction */
#define STEP_MOST UINT64_C(10000) /* files made, then as many removed */
#define ALONE 500u /* creates one at a time */
#define CHECKPOINTS 4u
#define DEPTH_MOST 256u
#define QUIET_US 300000

static struct bench_pool bench = {.scratch_dir = "/dev/shm"};
static struct volumes *volumes;
static struct volume *volume;
static uint64_t oldest, next; /* files: [oldest, next) are there */
static uint64_t first_directory, last_directory; /* inodes: where those two are */

/* --- the pool and its volume ------------------------------------------------------------------ */

static void must_with_story(int rc, const struct error *error)
{
	if (!rc)
		return;
	fprintf(stderr, "%s: %s\n", error->object, error->message);
	exit(1);
}

static void open_volume(bool make)
{
	struct volume_create_options create = {.name = VOLUME, .kind = VOLUME_SHARE};
	struct error error = {0};

	bench_pool_open(&bench);
	bench_must(volumes_create(bench.pool, NULL, &volumes), "volumes_create");
	if (make)
		must_with_story(volume_create(volumes, &create, NULL, &error), &error);
	must_with_story(volume_open(volumes, VOLUME, &volume, &error), &error);
}

static void close_volume(void)
{
	bench_must(volume_close(volume), "volume_close");
	volumes_destroy(volumes);
	bench_pool_close(&bench);
}

/* --- files ------------------------------------------------------------------------------------ */

static const char *directory_name(uint64_t file, char name[32])
{
	snprintf(name, 32, "d%07llu", (unsigned long long)(file / PER_DIRECTORY));
	return name;
}

static const char *file_name(uint64_t file, char name[32])
{
	snprintf(name, 32, "f%09llu", (unsigned long long)file);
	return name;
}

/* Where the next file goes. */
static void enter_directory(void)
{
	struct volume_new new = {.type = VOLUME_DIRECTORY};
	struct volume_attributes made;
	char name[32];
	uint64_t lsn;

	if (next % PER_DIRECTORY)
		return;
	directory_name(next, name);
	bench_must(volume_make(volume, VOLUME_ROOT, name, &new, &made, &lsn), name);
	last_directory = made.ino;
	if (next == oldest)
		first_directory = made.ino;
}

/* Where the oldest file was goes with the last one in it. */
static void leave_directory(void)
{
	struct volume_attributes found;
	char name[32];
	uint64_t lsn;

	if (oldest % PER_DIRECTORY)
		return;
	directory_name(oldest - 1, name);
	bench_must(volume_unlink(volume, VOLUME_ROOT, name, VOLUME_UNLINK_DIRECTORY, &lsn), name);
	directory_name(oldest, name);
	bench_must(volume_lookup(volume, VOLUME_ROOT, name, &found), name);
	first_directory = found.ino;
}

static void grow_some(unsigned count)
{
	static struct volume_staged staged[GROWN_TOGETHER];
	static char names[GROWN_TOGETHER][32];
	uint64_t lsn;

	for (unsigned i = 0; i < count; i++)
		staged[i] = (struct volume_staged){.dir = last_directory,
			.name = file_name(next + i, names[i]),
			.new.type = VOLUME_FILE};
	bench_must(volume_stage_commit(volume, staged, count, &lsn), "volume_stage_commit");
	for (unsigned i = 0; i < count; i++)
		bench_must(staged[i].status, names[i]);
	next += count;
}

static void grow(uint64_t files)
{
	while (next - oldest < files) {
		uint64_t count = GROWN_TOGETHER;

		enter_directory();
		if (count > PER_DIRECTORY - next % PER_DIRECTORY)
			count = PER_DIRECTORY - next % PER_DIRECTORY;
		if (count > files - (next - oldest))
			count = files - (next - oldest);
		grow_some((unsigned)count);
	}
	bench_must(pool_sync(bench.pool, pool_lsn(bench.pool)), "pool_sync");
}

/* All of them durable at the end, `depth` not yet at any time before. */
static void make_files(uint64_t count, unsigned depth)
{
	struct volume_new new = {
		.type = VOLUME_FILE, .set = {.mask = VOLUME_SET_MODE, .mode = 0644}};
	uint64_t lsns[DEPTH_MOST] = {0};
	struct volume_attributes made;
	char name[32];

	for (uint64_t i = 0; i < count; i++, next++) {
		enter_directory();
		bench_must(pool_sync(bench.pool, lsns[i % depth]), "pool_sync");
		bench_must(volume_make(volume, last_directory, file_name(next, name), &new, &made,
				   &lsns[i % depth]),
			name);
	}
	bench_must(pool_sync(bench.pool, pool_lsn(bench.pool)), "pool_sync");
}

static void remove_files(uint64_t count)
{
	char name[32];
	uint64_t lsn;

	while (count--) {
		bench_must(volume_unlink(volume, first_directory, file_name(oldest, name),
				   VOLUME_UNLINK_FILE, &lsn),
			name);
		oldest++;
		leave_directory();
	}
	bench_must(pool_sync(bench.pool, pool_lsn(bench.pool)), "pool_sync");
}

/* --- what is written -------------------------------------------------------------------------- */

/* Bytes on all devices; of images and deltas, those without parity. */
struct written {
	uint64_t all, journal, images, deltas;
	uint64_t image_count, delta_count; /* the pool's own are among the images */
};

static uint64_t written_by_devices(void)
{
	static struct pool_device_io io[POOL_DEVICES_MAX];
	unsigned count = pool_device_io(bench.pool, io);
	uint64_t bytes = 0;

	for (unsigned i = 0; i < count; i++)
		bytes += io[i].counters.of[IO_WRITE].bytes;
	return bytes;
}

static struct written written_now(void)
{
	static struct pool_status status;

	pool_status(bench.pool, &status);
	return (struct written){.all = written_by_devices(),
		.journal = status.journal_bytes * (status.summary.parity + 1),
		.images = status.image_bytes - status.delta_bytes,
		.deltas = status.delta_bytes,
		.image_count = status.images,
		.delta_count = status.deltas};
}

static struct written written_since(const struct written *before)
{
	struct written now = written_now();

	now.all -= before->all;
	now.journal -= before->journal;
	now.images -= before->images;
	now.deltas -= before->deltas;
	now.image_count -= before->image_count;
	now.delta_count -= before->delta_count;
	return now;
}

/* Each checkpoint writes the pool's own image, and a full one or a delta of the volume. */
static uint64_t checkpoints(const struct written *w)
{
	return (w->image_count + w->delta_count) / 2;
}

/* Of the volume. In a checkpoint that has not written the pool's own yet there is one more. */
static uint64_t full_images(const struct written *w)
{
	return (w->image_count + 1 - w->delta_count) / 2;
}

/* When no checkpoint is half done. */
static struct written written_when_quiet(void)
{
	struct written before, now = written_now();

	do {
		before = now;
		usleep(QUIET_US);
		now = written_now();
	} while (now.images != before.images || now.deltas != before.deltas);
	return now;
}

/* --- at one size ------------------------------------------------------------------------------ */

struct found {
	uint64_t files, made, journal, alone; /* alone: bytes of journal, of ALONE creates */
	struct written written;
	double making, opening, replaying; /* seconds */
	double making_cpu, opening_cpu, replaying_cpu;
	uint64_t replayed; /* bytes of journal */
	uint64_t memory, scratch;
};

static void come_and_go(struct found *found, uint64_t step, unsigned depth)
{
	struct written before = written_now();
	struct bench_clock clock;

	bench_start(&clock);
	make_files(step, depth);
	found->making += bench_seconds(&clock);
	found->making_cpu += bench_cpu(&clock);
	found->journal += written_since(&before).journal;
	found->made += step;
	remove_files(step);
}

/* Until the volume has just had a full image, and `least` checkpoints. */
static struct written come_and_go_until(struct found *found, unsigned depth, uint64_t least)
{
	uint64_t step = (next - oldest) / 2 < STEP_MOST ? (next - oldest) / 2 : STEP_MOST;
	struct written before = written_when_quiet(), written = {0};
	uint64_t full;

	do {
		full = full_images(&written);
		come_and_go(found, step, depth);
		written = written_since(&before);
	} while (full_images(&written) == full || checkpoints(&written) < least);
	written_when_quiet();
	return written_since(&before);
}

static void measure_alone(struct found *found)
{
	struct written before = written_now();

	make_files(ALONE, 1);
	found->alone = written_since(&before).journal;
	remove_files(ALONE);
}

static void open_again(struct found *found)
{
	struct volume_space space;
	struct bench_clock clock;

	close_volume();
	bench_engine_start(&bench);
	bench_start(&clock);
	open_volume(false);
	bench_must(volume_statfs(volume, &space), "volume_statfs");
	found->opening = bench_seconds(&clock);
	found->opening_cpu = bench_cpu(&clock);
	found->memory = bench_memory_now();
	found->scratch = bench_scratch();
}

static uint64_t journal_used(void)
{
	static struct pool_status status;

	pool_status(bench.pool, &status);
	return status.journal_used;
}

/* Creates, until a checkpoint has made the journal short, and then until it is nearly as long as it
 * was before that. */
static void fill_journal(void)
{
	uint64_t most = 0, used;

	for (; (used = journal_used()) >= most; most = used)
		make_files(ALONE, DEPTH_MOST);
	while (journal_used() < most - most / 10)
		make_files(ALONE, DEPTH_MOST);
}

/* A process that leaves the pool as a crash does. */
static void crash(uint64_t *replayed)
{
	uint64_t left[2] = {0}; /* the next file, bytes of journal */
	int ends[2], status;
	pid_t child;

	bench_must(pipe(ends), "pipe");
	child = fork();
	bench_must(child, "fork");
	if (!child) {
		open_volume(false);
		fill_journal();
		left[0] = next;
		left[1] = journal_used();
		_exit(write(ends[1], left, sizeof(left)) != sizeof(left));
	}
	close(ends[1]);
	if (read(ends[0], left, sizeof(left)) != sizeof(left) ||
		waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "the process that was to crash has failed\n");
		exit(1);
	}
	close(ends[0]);
	next = left[0];
	*replayed = left[1];
}

/* Which directory it ended in. */
static void find_last_directory(void)
{
	struct volume_attributes found;
	char name[32];

	directory_name(next - 1, name);
	bench_must(volume_lookup(volume, VOLUME_ROOT, name, &found), name);
	last_directory = found.ino;
}

static void open_after_crash(struct found *found)
{
	struct bench_clock clock;

	close_volume();
	crash(&found->replayed);
	bench_engine_start(&bench);
	bench_start(&clock);
	open_volume(false);
	found->replaying = bench_seconds(&clock);
	found->replaying_cpu = bench_cpu(&clock);
	find_last_directory();
}

static void print_size(const struct found *f, const struct written *w)
{
	double code = (double)(bench.data + bench.parity) / bench.data, made = (double)f->made;
	double images = (double)w->images * code / made, deltas = (double)w->deltas * code / made;
	double checkpoint = (double)(w->all - w->journal) / made;

	printf("{\"files\": %llu, \"creates\": %llu, \"seconds\": %.3f, \"cpu\": %.3f, "
	       "\"checkpoints\": %llu, \"full_images\": %llu, \"journal\": %.1f, "
	       "\"images\": %.1f, \"deltas\": %.1f, \"rest\": %.1f, \"alone\": %.1f, "
	       "\"opening\": %.3f, \"opening_cpu\": %.3f, \"memory\": %llu, "
	       "\"scratch\": %llu, \"replayed\": %llu, \"replaying\": %.3f, "
	       "\"replaying_cpu\": %.3f}",
		(unsigned long long)f->files, (unsigned long long)f->made, f->making, f->making_cpu,
		(unsigned long long)checkpoints(w), (unsigned long long)full_images(w),
		(double)f->journal / made, images, deltas, checkpoint - images - deltas,
		(double)f->alone / ALONE, f->opening, f->opening_cpu, (unsigned long long)f->memory,
		(unsigned long long)f->scratch, (unsigned long long)f->replayed, f->replaying,
		f->replaying_cpu);
}

static void measure(uint64_t files, unsigned depth)
{
	struct found warm = {0}, found = {.files = files};

	grow(files);
	come_and_go_until(&warm, depth, 1);
	found.written = come_and_go_until(&found, depth, CHECKPOINTS);
	measure_alone(&found);
	open_again(&found);
	open_after_crash(&found);
	print_size(&found, &found.written);
}

int main(int argc, char **argv)
{
	struct pool_status *status = calloc(1, sizeof(*status));
	unsigned depth = argc > 3 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	char *sizes = argv[2], *size;

	if (!status || !depth || depth > DEPTH_MOST) {
		fprintf(stderr, "usage: see the head of tests/bench/creates.c\n");
		return 2;
	}
	bench.paths = (const char *const *)argv + 3;
	bench.path_count = (unsigned)argc - 3;
	open_volume(true);
	pool_status(bench.pool, status);
	bench.data = status->summary.data;
	bench.parity = status->summary.parity;
	free(status);
	for (const char *comma = "["; (size = strsep(&sizes, ",")); comma = ", ") {
		printf("%s", comma);
		measure(strtoull(size, NULL, 10), depth);
		fflush(stdout);
	}
	printf("]\n");
	close_volume();
	return 0;
}
