/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Many small files: how fast they go in, what each costs in memory and on the devices, how long
 * the pool takes to open with them.
 *
 *   bench_million tree DIR FILES        a tree of small files, each its own, 1,000 a directory
 *   bench_million ingest DIR DEVICE...  as `dataset ingest` does, sealed at the end
 *   bench_million open DEVICE...        the pool and its volume, as a server does
 *
 * Sizes are from 256 bytes to 16 KiB, as many below 2 KiB as above. Each run prints one line of
 * JSON.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "volume/volume.h"

#define VOLUME "million"
#define PER_DIRECTORY 1000u
#define SIZE_LEAST 256.0
#define SIZE_MOST 16384.0

static struct bench_pool bench = {.scratch_dir = "/dev/shm"};

/* --- tree --------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *state >> 32;
}

static size_t draw_size(uint64_t *state)
{
	return (size_t)(SIZE_LEAST *
			pow(SIZE_MOST / SIZE_LEAST, (double)draw(state) / 4294967296.0));
}

static size_t make_file(const char *dir, unsigned number, const uint8_t *bytes, uint64_t *state)
{
	size_t length = draw_size(state), skip = draw(state) % (size_t)SIZE_MOST;
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/d%04u/f%07u.bin", dir, number / PER_DIRECTORY, number);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, bytes + skip, length) != (ssize_t)length)
		bench_must(errno ? -errno : -EIO, path);
	close(fd);
	return length;
}

static void run_tree(int argc, char **argv)
{
	unsigned files = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	uint8_t *bytes = bench_memory(2 * (size_t)SIZE_MOST);
	struct bench_clock clock;
	uint64_t state = 1, total = 0;
	char path[4096];

	for (size_t i = 0; i < 2 * (size_t)SIZE_MOST; i++)
		bytes[i] = (uint8_t)draw(&state);
	bench_start(&clock);
	for (unsigned i = 0; i < files; i++) {
		snprintf(path, sizeof(path), "%s/d%04u", argv[0], i / PER_DIRECTORY);
		if (i % PER_DIRECTORY == 0 && mkdir(path, 0755) && errno != EEXIST)
			bench_must(-errno, path);
		total += make_file(argv[0], i, bytes, &state);
	}
	bench_print(&clock, total, files);
	free(bytes);
}

/* --- what it costs ------------------------------------------------------------------------ */

/* Bytes of slots in use on all devices: data, parity, checksums, images. */
static uint64_t used_on_devices(void)
{
	struct pool_status *status = calloc(1, sizeof(*status));
	uint64_t used;

	bench_must(status ? 0 : -ENOMEM, "memory");
	pool_status(bench.pool, status);
	used = status->used / status->summary.data *
	       (status->summary.data + status->summary.parity);
	free(status);
	return used;
}

static void print_costs(const struct bench_clock *clock, uint64_t files, uint64_t bytes)
{
	printf("{\"seconds\": %.3f, \"cpu\": %.3f, \"files\": %llu, \"bytes\": %llu, "
	       "\"memory\": %llu, \"memory_most\": %llu, \"scratch\": %llu, \"used\": %llu}\n",
		bench_seconds(clock), bench_cpu(clock), (unsigned long long)files,
		(unsigned long long)bytes, (unsigned long long)bench_memory_now(),
		(unsigned long long)bench_memory_most(), (unsigned long long)bench_scratch(),
		(unsigned long long)used_on_devices());
}

/* --- ingest and open ---------------------------------------------------------------------- */

static void must_with_story(int rc, const struct error *error)
{
	if (!rc)
		return;
	fprintf(stderr, "%s: %s\n", error->object, error->message);
	exit(1);
}

static struct volumes *volumes;

/* A new volume in the pool on these devices. */
static struct volume *new_volume(int count, char **devices, enum volume_kind kind)
{
	struct volume_create_options create = {.name = VOLUME, .kind = kind};
	struct error error = {0};
	struct volume *volume;

	bench.paths = (const char *const *)devices;
	bench.path_count = (unsigned)count;
	bench_pool_open(&bench);
	bench_must(volumes_create(bench.pool, NULL, &volumes), "volumes_create");
	must_with_story(volume_create(volumes, &create, NULL, &error), &error);
	must_with_story(volume_open(volumes, VOLUME, &volume, &error), &error);
	return volume;
}

static void close_volume(struct volume *volume)
{
	bench_must(volume_close(volume), "volume_close");
	volumes_destroy(volumes);
	bench_pool_close(&bench);
}

static void run_ingest(int argc, char **argv)
{
	struct ingest_options options = {.source = argv[0]};
	struct ingest_progress progress = {0};
	struct bench_clock clock;
	struct volume *volume;
	struct error error = {0};

	volume = new_volume(argc - 1, argv + 1, VOLUME_DATASET);
	bench_start(&clock);
	must_with_story(volume_ingest(volume, &options, &progress, &error), &error);
	must_with_story(volume_seal(volume, &error), &error);
	print_costs(&clock, progress.files, progress.bytes);
	close_volume(volume);
}

static void run_open(int argc, char **argv)
{
	struct volume_attributes found;
	struct volume_space space;
	struct bench_clock clock;
	struct volume *volume;
	struct error error = {0};

	bench.paths = (const char *const *)argv;
	bench.path_count = (unsigned)argc;
	bench_engine_start(&bench);
	bench_start(&clock);
	bench_pool_open(&bench);
	bench_must(volumes_create(bench.pool, NULL, &volumes), "volumes_create");
	must_with_story(volume_open(volumes, VOLUME, &volume, &error), &error);
	bench_must(volume_lookup(volume, VOLUME_ROOT, "d0000", &found), "volume_lookup");
	bench_must(volume_statfs(volume, &space), "volume_statfs");
	print_costs(&clock, space.files, space.bytes);
	close_volume(volume);
}

int main(int argc, char **argv)
{
	const char *verb = argc > 2 ? argv[1] : "";

	if (!strcmp(verb, "tree"))
		run_tree(argc - 2, argv + 2);
	else if (!strcmp(verb, "ingest"))
		run_ingest(argc - 2, argv + 2);
	else if (!strcmp(verb, "open"))
		run_open(argc - 2, argv + 2);
	else
		fprintf(stderr, "usage: see the head of tests/bench/million.c\n");
	return *verb ? 0 : 2;
}
