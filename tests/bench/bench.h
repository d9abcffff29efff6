/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the measuring programs share: a pool on real devices, clocks, one line of JSON as the
 * result. Whatever fails ends the program with a message: a figure is right or not there.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/pool.h"

#define BENCH_POOL "bench"

struct bench_pool {
	const char *const *paths;
	unsigned path_count;
	unsigned data, parity; /* for bench_pool_create() */
	uint32_t slot_rows; /* the same; 0: as the pool chooses */
	const char *scratch_dir;
	bool read_only;
	struct engine *engine;
	struct pool *pool;
};

/* Whatever is on the devices is lost. */
void bench_pool_create(struct bench_pool *bench);
/* Starts the engine too, unless that was done; its memory takes a while whatever the pool holds. */
void bench_pool_open(struct bench_pool *bench);
void bench_engine_start(struct bench_pool *bench);
void bench_pool_close(struct bench_pool *bench);

/* Ends the program unless rc is 0 (or more). */
void bench_must(int rc, const char *what);
void *bench_memory(size_t length); /* aligned, touched */

struct bench_clock {
	uint64_t started; /* ns */
	uint64_t cpu; /* ns of the whole process, its kernel threads for io_uring included */
};
void bench_start(struct bench_clock *clock);
/* {"seconds":, "cpu":, "bytes":, "operations":} and a newline. */
void bench_print(const struct bench_clock *clock, uint64_t bytes, uint64_t operations);

double bench_seconds(const struct bench_clock *clock);
double bench_cpu(const struct bench_clock *clock);
/* Bytes of memory of this process: now, and the most it had. */
uint64_t bench_memory_now(void);
uint64_t bench_memory_most(void);
/* Bytes of the environments' scratch files that this process has open. */
uint64_t bench_scratch(void);

#endif
