/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the two engines have in common, for this directory alone: the table of callbacks that an
 * engine fills in. engine.c is the one caller of each of them, and checks before it calls.
 */
#ifndef MILLRACE_ENGINE_H
#define MILLRACE_ENGINE_H

#include "device/device.h"

struct engine_ops {
	void (*destroy)(struct engine *engine);
	void (*submit)(struct engine *engine, struct io **ios, unsigned count); /* any thread */
	int (*open)(struct engine *engine, const char *path, unsigned flags, struct device **device,
		struct error *error);
	void (*close)(struct device *device);
	bool (*present)(struct device *device);
	void (*counters)(struct engine *engine, struct engine_counters *counters);
	void *(*alloc)(struct engine *engine, size_t length); /* length: whole blocks */
	void *(*memory)(struct engine *engine, size_t *length); /* NULL: no region */
	void (*free)(struct engine *engine, void *buffer, size_t length);
	uint64_t (*clock)(struct engine *engine);
	uint64_t (*time)(struct engine *engine);
	void (*random)(struct engine *engine, void *buffer, size_t length);
	void (*sleep)(struct engine *engine, uint64_t nanoseconds);
	/* The rest is for an engine without threads and NULL in one with them. */
	void (*poll)(struct engine *engine);
	bool (*step)(struct engine *engine); /* completes one request; false: none there */
	void (*tick)(struct engine *engine, struct ticker *ticker, bool on);
};

/* First member of the engine's own struct. */
struct engine {
	const struct engine_ops *ops;
	struct device *left; /* that were closed and hang (read.c) */
};

/* As struct device_counters; but for `submitted` by the one thread that completes its requests. */
struct device_meter {
	uint64_t opened; /* engine_clock() */
	_Atomic uint64_t submitted;
	struct {
		_Atomic uint64_t done, bytes, ns;
	} of[IO_OPS];
	_Atomic uint64_t errors;
};

/* First member of the engine's own struct for an open device. */
struct device {
	struct engine *engine;
	unsigned flags;
	struct device_info info;
	struct device_meter meter;
	unsigned owed; /* answers that nobody waits for any more; read.c's lock guards both */
	struct device *next; /* of those that were left */
};

/* --- read.c ------------------------------------------------------------------------------- */

/* Keeps the device until it has answered; false: it owes nothing, and can be closed. */
bool device_leave(struct device *device);
/* Closes those that have answered. True when there are others, of this path or, NULL, any. */
bool engine_owes(struct engine *engine, const char *path);

/* The bytes that a request moves; 0 for a flush. */
uint64_t io_length(const struct io *io);
/* Whether the request lies within its device. */
bool io_in_range(const struct io *io);
/* Adds one finished request, to these and to what its device has done; `clock` is its end. */
void counters_add(struct engine_counters *counters, const struct io *io, uint64_t clock);

static inline size_t whole_blocks(size_t length)
{
	return (length + BLOCK_SIZE - 1) & ~(size_t)(BLOCK_SIZE - 1);
}

#endif
