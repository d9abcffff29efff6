/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The beat of an owner, and its look at whether there is a later one: once a second, on each
 * member,
 *
 *   look   the place to which the next owner's labels go is read. A label of a later epoch there
 *          stops the pool; otherwise member->looked becomes the time at which the look began, and
 *          journal_fence.c acknowledges on the strength of that
 *   beat   this owner's next beat is written; an opener that sees it move leaves the pool alone
 *
 * The beat waits for nothing. A member whose requests are still on their way is left out of a
 * round, however long they take: a drive may need 30 s to tell that it has failed, and openers are
 * content with the beat on any member. From the claim to the label that marks the pool as closed it
 * has a thread of its own, since a checkpoint takes as long as it takes; where there are no threads
 * it is a part of pool_maintain().
 */
#include <time.h>

#include "pool/internal.h"

/* What goes on with one member. */
struct pulse {
	struct io io;
	struct pool *pool;
	struct member *member;
	uint8_t *memory; /* LABEL_BODY: the label that is read, then the block of the beat */
	uint64_t began, count;
	_Atomic bool busy;
};

struct beats {
	struct pulse pulses[POOL_DEVICES_MAX];
	uint8_t *memory; /* of all of them */
	_Atomic uint64_t count;
	_Atomic unsigned pending; /* pulses that are busy, and 1 until beat_stop() */
	struct event idle;
	pthread_t thread;
	pthread_mutex_t lock; /* stopping */
	pthread_cond_t wake;
	bool stopping, running;
};

/* --- one member ------------------------------------------------------------------------------- */

/* Its last look at the beats. */
static void pulse_over(struct pulse *p)
{
	struct beats *beats = p->pool->beats;

	atomic_store(&p->busy, false);
	if (atomic_fetch_sub(&beats->pending, 1) == 1)
		event_signal(&beats->idle, 0);
}

static void beat_written(struct io *io)
{
	struct pulse *p = io->data;

	if (io->result)
		member_failed(p->pool, p->member, io->result);
	pulse_over(p);
}

static void write_beat(struct pulse *p)
{
	struct beat beat = {.epoch = p->pool->epoch, .count = p->count};
	struct io *io = &p->io;

	beat_encode(&beat, p->pool->label.pool, p->memory);
	io_prepare(io, IO_WRITE, p->member->device,
		label_place(LABEL_A_OFFSET, p->pool->epoch) + LABEL_BODY, p->memory, BLOCK_SIZE);
	io->flags = IO_FUA;
	io->done = beat_written;
	io->data = p;
	io_submit(p->pool->engine, &io, 1);
}

/* A label that cannot be read says nothing, and its member may still show the beat. */
static void label_looked_at(struct io *io)
{
	struct pulse *p = io->data;
	struct pool *pool = p->pool;

	if (io->result == -ESHUTDOWN) {
		pulse_over(p);
	} else if (!io->result && label_is_later(p->memory, pool->label.pool, pool->epoch)) {
		pool_fail(pool, -ESTALE, "another host has taken the pool over");
		pulse_over(p);
	} else {
		if (!io->result)
			atomic_store(&p->member->looked, p->began);
		write_beat(p);
	}
}

/* False: it is busy. */
static bool pulse_begin(struct pulse *p, uint64_t count)
{
	if (atomic_exchange(&p->busy, true))
		return false;
	atomic_fetch_add(&p->pool->beats->pending, 1);
	p->began = engine_clock(p->pool->engine);
	p->count = count;
	io_prepare(&p->io, IO_READ, p->member->device,
		label_place(LABEL_A_OFFSET, p->pool->epoch + 1), p->memory, LABEL_BODY);
	p->io.done = label_looked_at;
	p->io.data = p;
	return true;
}

/* --- all of them ------------------------------------------------------------------------------ */

void beat_round(struct pool *pool)
{
	struct beats *beats = pool->beats;
	struct io *list[POOL_DEVICES_MAX];
	uint64_t number = atomic_fetch_add(&beats->count, 1) + 1;
	unsigned count = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		struct pulse *p = &beats->pulses[i];

		if (!member_usable(p->member) || atomic_load(&p->member->failing))
			continue;
		if (pulse_begin(p, number))
			list[count++] = &p->io;
	}
	io_submit(pool->engine, list, count);
}

/* False when it is to end. */
static bool wait_a_second(struct beats *beats)
{
	struct timespec until;
	bool go_on;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	pthread_mutex_lock(&beats->lock);
	while (!beats->stopping)
		if (pthread_cond_timedwait(&beats->wake, &beats->lock, &until))
			break;
	go_on = !beats->stopping;
	pthread_mutex_unlock(&beats->lock);
	return go_on;
}

static void *beat_thread(void *argument)
{
	struct pool *pool = argument;

	do {
		if (!atomic_load(&pool->failure))
			beat_round(pool);
	} while (wait_a_second(pool->beats));
	return NULL;
}

/* --- life ------------------------------------------------------------------------------------- */

static int begin(struct pool *pool)
{
	struct beats *beats = pool->beats;
	pthread_condattr_t attributes;

	beats->memory = buffer_alloc(pool->engine, (size_t)pool->device_count * LABEL_BODY);
	atomic_init(&beats->pending, 1);
	event_init(&beats->idle, pool->engine);
	pthread_mutex_init(&beats->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&beats->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	if (!beats->memory)
		return -ENOMEM;
	for (unsigned i = 0; i < pool->device_count; i++) {
		beats->pulses[i].pool = pool;
		beats->pulses[i].member = &pool->devices[i];
		beats->pulses[i].memory = beats->memory + (size_t)i * LABEL_BODY;
	}
	return 0;
}

int beat_start(struct pool *pool)
{
	struct beats *beats = calloc(1, sizeof(*beats));
	int rc;

	if (!beats)
		return -ENOMEM;
	pool->beats = beats;
	rc = begin(pool);
	if (rc || !pool->options.background)
		return rc;
	rc = -pthread_create(&beats->thread, NULL, beat_thread, pool);
	beats->running = !rc;
	return rc;
}

static void stop_thread(struct beats *beats)
{
	pthread_mutex_lock(&beats->lock);
	beats->stopping = true;
	pthread_cond_signal(&beats->wake);
	pthread_mutex_unlock(&beats->lock);
	pthread_join(beats->thread, NULL);
}

void beat_stop(struct pool *pool)
{
	struct beats *beats = pool->beats;

	if (!beats)
		return;
	if (beats->running)
		stop_thread(beats);
	if (atomic_fetch_sub(&beats->pending, 1) != 1 && event_wait(&beats->idle)) {
		log_error("pool %s: the beat's requests do not end; their memory is left to them",
			pool->label.name);
		return;
	}
	pthread_cond_destroy(&beats->wake);
	pthread_mutex_destroy(&beats->lock);
	if (beats->memory)
		buffer_free(pool->engine, beats->memory, (size_t)pool->device_count * LABEL_BODY);
	free(beats);
	pool->beats = NULL;
}
