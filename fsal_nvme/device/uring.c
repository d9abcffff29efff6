/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The io_uring engine: its rings, the machine's clocks and randomness. uring.h says how it works.
 */
#include "device/uring.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_DEPTH 256u
#define DEFAULT_RINGS 4u
#define DEFAULT_MEMORY ((size_t)64 << 20)

static struct uring_engine *uring(struct engine *engine)
{
	return (struct uring_engine *)engine;
}

/* Submits the requests of the first one's ring, in their order; returns the others. */
static struct io *submit_ring(struct io *chain)
{
	struct ring *ring = ((struct uring_device *)chain->device)->ring;
	struct io *mine = NULL, *others = NULL, **mine_last = &mine, **others_last = &others;

	for (struct io *io = chain; io; io = io->next) {
		struct io ***last = ((struct uring_device *)io->device)->ring == ring
					    ? &mine_last
					    : &others_last;

		**last = io;
		*last = &io->next;
	}
	*mine_last = NULL;
	*others_last = NULL;
	ring_submit(ring, mine);
	return others;
}

static void uring_submit(struct engine *engine, struct io **ios, unsigned count)
{
	struct io *chain = NULL;

	/* A request may be done, and its memory gone, as soon as its ring has it: all are looked at
	 * before the first is given away. */
	for (unsigned i = count; i-- > 0;) {
		ios[i]->next = chain;
		chain = ios[i];
	}
	while (chain)
		chain = submit_ring(chain);
}

static void add_counters(struct engine_counters *sum, struct ring *ring)
{
	pthread_mutex_lock(&ring->counters_lock);
	sum->reads += ring->counters.reads;
	sum->read_bytes += ring->counters.read_bytes;
	sum->writes += ring->counters.writes;
	sum->write_bytes += ring->counters.write_bytes;
	sum->flushes += ring->counters.flushes;
	sum->errors += ring->counters.errors;
	pthread_mutex_unlock(&ring->counters_lock);
}

static void uring_counters(struct engine *engine, struct engine_counters *counters)
{
	memset(counters, 0, sizeof(*counters));
	for (unsigned i = 0; i < uring(engine)->ring_count; i++)
		add_counters(counters, &uring(engine)->rings[i]);
}

static void *uring_alloc(struct engine *engine, size_t length)
{
	return arena_alloc(&uring(engine)->arena, length);
}

static void *uring_memory(struct engine *engine, size_t *length)
{
	*length = uring(engine)->arena.length;
	return uring(engine)->arena.memory;
}

static void uring_free(struct engine *engine, void *buffer, size_t length)
{
	arena_free(&uring(engine)->arena, buffer, length);
}

static uint64_t nanoseconds_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static uint64_t uring_clock(struct engine *engine)
{
	return nanoseconds_of(CLOCK_BOOTTIME); /* a host that was suspended has been away */
}

static uint64_t uring_time(struct engine *engine)
{
	return nanoseconds_of(CLOCK_REALTIME);
}

static void uring_random(struct engine *engine, void *buffer, size_t length)
{
	uint8_t *at = buffer;

	while (length > 0) {
		ssize_t got = getrandom(at, length, 0);

		assert(got > 0 || errno == EINTR);
		if (got <= 0)
			continue;
		at += got;
		length -= (size_t)got;
	}
}

static void uring_sleep(struct engine *engine, uint64_t nanoseconds)
{
	struct timespec left = {
		.tv_sec = (time_t)(nanoseconds / UINT64_C(1000000000)),
		.tv_nsec = (long)(nanoseconds % UINT64_C(1000000000)),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
		;
}

static void uring_destroy(struct engine *engine)
{
	struct uring_engine *e = uring(engine);

	assert(atomic_load(&e->open) == 0 && "a device is still open");
	for (unsigned i = 0; i < e->ring_count; i++)
		ring_destroy(&e->rings[i]);
	arena_destroy(&e->arena);
	free(e);
}

static const struct engine_ops uring_ops = {
	.destroy = uring_destroy,
	.submit = uring_submit,
	.open = uring_open,
	.close = uring_close,
	.present = uring_present,
	.counters = uring_counters,
	.alloc = uring_alloc,
	.memory = uring_memory,
	.free = uring_free,
	.clock = uring_clock,
	.time = uring_time,
	.random = uring_random,
	.sleep = uring_sleep,
};

static unsigned ring_count(const struct engine_options *options)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (options && options->rings)
		return options->rings;
	return processors > 0 && processors < DEFAULT_RINGS ? (unsigned)processors : DEFAULT_RINGS;
}

static int start(struct uring_engine *engine, const struct engine_options *options, unsigned rings,
	struct error *error)
{
	size_t memory = options && options->buffer_memory ? options->buffer_memory : DEFAULT_MEMORY;
	unsigned depth = options && options->queue_depth ? options->queue_depth : DEFAULT_DEPTH;
	int result = arena_init(&engine->arena, whole_blocks(memory));

	if (result)
		return error_set(
			error, result, "io_uring", "no memory for %zu bytes of buffers", memory);
	while (engine->ring_count < rings) {
		result = ring_init(&engine->rings[engine->ring_count], engine, depth, error);
		if (result)
			return result;
		engine->ring_count++;
	}
	return 0;
}

int uring_engine_create(
	const struct engine_options *options, struct engine **engine, struct error *error)
{
	unsigned rings = ring_count(options);
	struct uring_engine *e = calloc(1, sizeof(*e) + rings * sizeof(e->rings[0]));
	int result;

	*engine = NULL;
	if (!e)
		return error_set(error, -ENOMEM, "io_uring", "no memory");
	e->engine.ops = &uring_ops;
	result = start(e, options, rings, error);
	if (result) {
		uring_destroy(&e->engine);
		return result;
	}
	*engine = &e->engine;
	return 0;
}
