/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* See bench.h. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

/* --- what can fail ------------------------------------------------------------------------ */

void bench_must(int rc, const char *what)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(-rc));
	exit(1);
}

static void must_with_story(int rc, const char *what, const struct error *error)
{
	if (!rc)
		return;
	fprintf(stderr, "%s: %s: %s (%s)\n", what, error->object, error->message, strerror(-rc));
	exit(1);
}

void *bench_memory(size_t length)
{
	void *memory = aligned_alloc(BLOCK_SIZE, length);

	bench_must(memory ? 0 : -ENOMEM, "memory");
	memset(memory, 0x5a, length);
	return memory;
}

/* --- the pool ----------------------------------------------------------------------------- */

void bench_engine_start(struct bench_pool *bench)
{
	struct error error = {0};

	if (!bench->engine)
		must_with_story(
			uring_engine_create(NULL, &bench->engine, &error), "io_uring", &error);
}

static void engine_stop(struct bench_pool *bench)
{
	engine_destroy(bench->engine);
	bench->engine = NULL;
}

void bench_pool_create(struct bench_pool *bench)
{
	struct pool_create_device devices[POOL_DEVICES_MAX];
	struct pool_create_options options = {.name = BENCH_POOL,
		.data = bench->data,
		.parity = bench->parity,
		.devices = devices,
		.device_count = bench->path_count,
		.host = "bench",
		.force = true,
		.slot_rows = bench->slot_rows};
	struct error error = {0};

	for (unsigned i = 0; i < bench->path_count; i++)
		devices[i] = (struct pool_create_device){.path = bench->paths[i]};
	bench_engine_start(bench);
	must_with_story(pool_create(bench->engine, &options, &error), "pool_create", &error);
	engine_stop(bench);
}

void bench_pool_open(struct bench_pool *bench)
{
	struct pool_open_options options = {.paths = bench->paths,
		.path_count = bench->path_count,
		.host = "bench",
		.scratch_dir = bench->scratch_dir,
		.read_only = bench->read_only,
		.background = true};
	struct error error = {0};

	bench_engine_start(bench);
	must_with_story(
		pool_open(bench->engine, &options, &bench->pool, &error), "pool_open", &error);
}

void bench_pool_close(struct bench_pool *bench)
{
	struct error error = {0};

	must_with_story(pool_close(bench->pool, &error), "pool_close", &error);
	engine_stop(bench);
}

/* --- clocks ------------------------------------------------------------------------------- */

static uint64_t clock_now(clockid_t which)
{
	struct timespec now;

	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void bench_start(struct bench_clock *clock)
{
	clock->cpu = clock_now(CLOCK_PROCESS_CPUTIME_ID);
	clock->started = clock_now(CLOCK_MONOTONIC);
}

double bench_seconds(const struct bench_clock *clock)
{
	return (double)(clock_now(CLOCK_MONOTONIC) - clock->started) / 1e9;
}

double bench_cpu(const struct bench_clock *clock)
{
	return (double)(clock_now(CLOCK_PROCESS_CPUTIME_ID) - clock->cpu) / 1e9;
}

void bench_print(const struct bench_clock *clock, uint64_t bytes, uint64_t operations)
{
	double seconds = bench_seconds(clock), cpu = bench_cpu(clock);

	printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"bytes\": %llu, \"operations\": %llu}\n",
		seconds, cpu, (unsigned long long)bytes, (unsigned long long)operations);
}

/* --- memory ------------------------------------------------------------------------------- */

/* A line of /proc/self/status, "NAME: 123 kB". */
static uint64_t status_line(const char *name)
{
	FILE *file = fopen("/proc/self/status", "re");
	unsigned long long kib = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			sscanf(line + strlen(name), ": %llu", &kib);
	if (file)
		fclose(file);
	return kib << 10;
}

uint64_t bench_memory_now(void)
{
	return status_line("VmRSS");
}

uint64_t bench_memory_most(void)
{
	return status_line("VmHWM");
}

/* The environments' scratch files are unlinked: they are found among what is open. */
uint64_t bench_scratch(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t blocks = 0;
	struct dirent *entry;
	char target[4096];
	struct stat st;

	while (dir && (entry = readdir(dir))) {
		ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		if (length < 0)
			continue;
		target[length] = 0;
		if (strstr(target, "/millrace-env.") && !strstr(target, "-lock") &&
			!fstatat(dirfd(dir), entry->d_name, &st, 0))
			blocks += (uint64_t)st.st_blocks;
	}
	if (dir)
		closedir(dir);
	return blocks * 512;
}
