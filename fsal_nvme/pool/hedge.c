/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "pool/hedge.h"

#include <assert.h>

#define TICK_NS (UINT64_C(100) * 1000 * 1000)
#define LISTS 8u

enum { WAITING, ANSWERED, LATE };

TAILQ_HEAD(hedged_list, hedged);

struct hedge {
	struct ticker ticker; /* first */
	struct pool *pool;
	_Atomic uint64_t limit; /* ns; 0: never */
	_Atomic uint64_t ticks;
	_Atomic unsigned count; /* given up and not gone, and one until hedge_end() */
	struct event idle;
	struct {
		pthread_mutex_t lock; /* a leaf */
		struct hedged_list waiting; /* in the order in which they were asked */
	} lists[LISTS];
};

static unsigned list_of(const struct hedged *hedged)
{
	return (unsigned)((uintptr_t)hedged >> 8) % LISTS;
}

void hedge_leave(struct pool *pool)
{
	struct hedge *hedge = pool->hedge;

	if (atomic_fetch_sub(&hedge->count, 1) == 1)
		event_signal(&hedge->idle, 0);
}

/* Both parts of its end are there. */
static void end_late(struct hedged *hedged)
{
	if (hedged->given_up)
		hedged->gone(hedged);
	else
		hedged->done(hedged);
}

/* True when it was in time. */
static bool take_answer(struct hedge *hedge, struct hedged *hedged)
{
	unsigned list = list_of(hedged);
	bool in_time;

	pthread_mutex_lock(&hedge->lists[list].lock);
	in_time = hedged->state == WAITING;
	if (in_time) {
		TAILQ_REMOVE(&hedge->lists[list].waiting, hedged, entry);
		hedged->state = ANSWERED;
	}
	pthread_mutex_unlock(&hedge->lists[list].lock);
	return in_time;
}

static void plain_answered(struct io *io)
{
	struct hedged *hedged = io->data;

	hedged->done(hedged);
}

static void answered(struct io *io)
{
	struct hedged *hedged = io->data;

	if (take_answer(hedged->pool->hedge, hedged)) {
		hedged->done(hedged);
		return;
	}
	atomic_fetch_sub(&hedged->member->stalled, 1);
	if (atomic_fetch_sub(&hedged->parts, 1) == 1)
		end_late(hedged);
}

void hedge_watch(struct hedged *hedged)
{
	struct hedge *hedge = hedged->pool->hedge;
	unsigned list = list_of(hedged);

	hedged->io.data = hedged;
	hedged->io.done = plain_answered;
	if (!hedged->late || !hedge || !atomic_load_explicit(&hedge->limit, memory_order_relaxed))
		return;
	hedged->io.done = answered;
	hedged->state = WAITING;
	hedged->given_up = false;
	hedged->since = atomic_load_explicit(&hedge->ticks, memory_order_relaxed);
	pthread_mutex_lock(&hedge->lists[list].lock);
	TAILQ_INSERT_TAIL(&hedge->lists[list].waiting, hedged, entry);
	pthread_mutex_unlock(&hedge->lists[list].lock);
}

/* Moves what is late into `late`. */
static void take_late(struct hedge *hedge, unsigned list, uint64_t before, struct hedged_list *late)
{
	struct hedged *hedged;

	pthread_mutex_lock(&hedge->lists[list].lock);
	while ((hedged = TAILQ_FIRST(&hedge->lists[list].waiting)) && hedged->since < before) {
		TAILQ_REMOVE(&hedge->lists[list].waiting, hedged, entry);
		hedged->state = LATE;
		atomic_init(&hedged->parts, 2);
		atomic_fetch_add(&hedged->member->stalled, 1);
		TAILQ_INSERT_TAIL(late, hedged, entry);
	}
	pthread_mutex_unlock(&hedge->lists[list].lock);
}

static void give_up(struct hedge *hedge, struct hedged *hedged)
{
	atomic_fetch_add(&hedge->count, 1);
	hedged->given_up = hedged->late(hedged);
	if (!hedged->given_up)
		hedge_leave(hedge->pool);
	if (atomic_fetch_sub(&hedged->parts, 1) == 1)
		end_late(hedged);
}

/* A request was asked after the tick that it has noted and before the next one. */
static void tick(struct ticker *ticker)
{
	struct hedge *hedge = (struct hedge *)ticker;
	uint64_t now = atomic_fetch_add(&hedge->ticks, 1) + 1;
	uint64_t limit = atomic_load(&hedge->limit), ticks = (limit + TICK_NS - 1) / TICK_NS;
	struct hedged_list late = TAILQ_HEAD_INITIALIZER(late);
	struct hedged *hedged;

	if (!limit || now <= ticks)
		return;
	for (unsigned i = 0; i < LISTS; i++)
		take_late(hedge, i, now - ticks, &late);
	while ((hedged = TAILQ_FIRST(&late))) {
		TAILQ_REMOVE(&late, hedged, entry);
		give_up(hedge, hedged);
	}
}

void pool_set_read_hedge(struct pool *pool, uint64_t nanoseconds)
{
	if (pool->hedge)
		atomic_store(&pool->hedge->limit, nanoseconds);
}

int hedge_start(struct pool *pool)
{
	struct hedge *hedge = calloc(1, sizeof(*hedge));
	int rc;

	if (!hedge)
		return -ENOMEM;
	hedge->pool = pool;
	hedge->ticker.every = TICK_NS;
	hedge->ticker.run = tick;
	atomic_init(&hedge->count, 1);
	event_init(&hedge->idle, pool->engine);
	for (unsigned i = 0; i < LISTS; i++) {
		pthread_mutex_init(&hedge->lists[i].lock, NULL);
		TAILQ_INIT(&hedge->lists[i].waiting);
	}
	rc = ticker_start(pool->engine, &hedge->ticker);
	if (rc)
		free(hedge);
	else
		pool->hedge = hedge;
	return rc;
}

void hedge_end(struct pool *pool)
{
	struct hedge *hedge = pool->hedge;

	if (!hedge)
		return;
	ticker_stop(&hedge->ticker);
	hedge_leave(pool);
	event_wait(&hedge->idle);
	assert(atomic_load(&hedge->count) == 0 && "closed with a paused host's reads");
	for (unsigned i = 0; i < LISTS; i++)
		pthread_mutex_destroy(&hedge->lists[i].lock);
	free(hedge);
	pool->hedge = NULL;
}
