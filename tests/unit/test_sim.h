/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A simulated world of two devices; what is done with the first is done in blocks of one value. */
#ifndef TEST_SIM_H
#define TEST_SIM_H

#include "device/sim.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define SIZE (256 * 1024u)
#define BLOCKS (SIZE / BLOCK_SIZE)

struct fixture {
	struct sim_world *world;
	struct engine *engine;
	struct device *device;
	uint8_t *buffer, *back; /* a block each */
};

static inline struct fixture start(uint64_t seed, bool reorder)
{
	struct fixture f = {0};

	assert_int_equal(sim_world_create(&(struct sim_options){seed, reorder}, &f.world), 0);
	assert_int_equal(sim_add_device(f.world, "a", SIZE), 0);
	assert_int_equal(sim_add_device(f.world, "b", SIZE), 0);
	assert_int_equal(sim_engine_create(f.world, &f.engine), 0);
	assert_int_equal(device_open(f.engine, "a", 0, &f.device, NULL), 0);
	f.buffer = buffer_alloc(f.engine, BLOCK_SIZE);
	f.back = buffer_alloc(f.engine, BLOCK_SIZE);
	return f;
}

static inline void finish(struct fixture *f)
{
	buffer_free(f->engine, f->buffer, BLOCK_SIZE);
	buffer_free(f->engine, f->back, BLOCK_SIZE);
	device_close(f->device);
	engine_destroy(f->engine);
	sim_world_destroy(f->world);
}

static inline int run(
	struct fixture *f, enum io_op op, unsigned flags, unsigned block, void *buffer)
{
	struct io io;

	io_prepare(&io, op, f->device, (uint64_t)block * BLOCK_SIZE, buffer, BLOCK_SIZE);
	io.flags = flags;
	return io_run(f->engine, &io);
}

static inline int put(struct fixture *f, unsigned block, int value, unsigned flags)
{
	memset(f->buffer, value, BLOCK_SIZE);
	return run(f, IO_WRITE, flags, block, f->buffer);
}

static inline int flush(struct fixture *f)
{
	return run(f, IO_FLUSH, 0, 0, NULL);
}

/* The value that fills a block as a read sees it; -1 when it is mixed. */
static inline int get(struct fixture *f, unsigned block)
{
	assert_int_equal(run(f, IO_READ, 0, block, f->back), 0);
	for (unsigned i = 1; i < BLOCK_SIZE; i++) {
		if (f->back[i] != f->back[0])
			return -1;
	}
	return f->back[0];
}

static inline int medium(struct fixture *f, unsigned block)
{
	return sim_medium(f->world, "a")[block * BLOCK_SIZE];
}

static inline void power_on(struct fixture *f, enum sim_policy policy)
{
	sim_power_on(f->world, policy);
	device_close(f->device);
	assert_int_equal(device_open(f->engine, "a", 0, &f->device, NULL), 0);
}

/* A request that only notes its end. */
struct noted {
	struct io io;
	unsigned order; /* 0: not done */
	uint8_t *buffer;
};
static unsigned ended;

static inline void note_done(struct io *io)
{
	((struct noted *)io->data)->order = ++ended;
}

static inline void note(
	struct fixture *f, struct noted *n, enum io_op op, unsigned block, int value)
{
	struct io *io = &n->io;

	n->buffer = op == IO_FLUSH ? NULL : buffer_alloc(f->engine, BLOCK_SIZE);
	if (n->buffer)
		memset(n->buffer, value, BLOCK_SIZE);
	n->order = 0;
	io_prepare(io, op, f->device, (uint64_t)block * BLOCK_SIZE, n->buffer, BLOCK_SIZE);
	io->done = note_done;
	io->data = n;
	io_submit(f->engine, &io, 1);
}

static inline void forget(struct fixture *f, struct noted *n)
{
	buffer_free(f->engine, n->buffer, BLOCK_SIZE);
}

#endif
