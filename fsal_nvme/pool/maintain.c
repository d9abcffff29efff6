/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Background work: dropping members that failed or vanished, closing and freeing segments, the
 * stock of reserved ones, checkpoints. One round is pool_maintain(); a thread of the pool runs it
 * when woken and every second, or the caller does (tests, verbs on an idle pool).
 */
#include <time.h>

#include "pool/env.h"
#include "pool/follow.h"

#define PAUSE_FIRST (UINT64_C(1000) * 1000 * 1000)
#define PAUSE_MOST (64 * PAUSE_FIRST)

/* Urgent: behind it comes the checkpoint that makes room in the journal, and nobody else does. */
static int round_of_work(struct pool *pool)
{
	int rc;

	txn_urgent_begin();
	rc = chores_do(pool, true);
	if (!rc)
		rc = segment_restock(pool);
	txn_urgent_end();
	return rc;
}

int maintain_round(struct pool *pool)
{
	int rc;

	pthread_mutex_lock(&pool->maintain_lock);
	rc = round_of_work(pool);
	checkpoint_measure(pool);
	pthread_mutex_unlock(&pool->maintain_lock);
	return rc;
}

/* One that fails has used room in the journal, and will fail again while nothing was freed: the
 * pauses grow. */
static int try_checkpoint(struct pool *pool)
{
	uint64_t now = engine_clock(pool->engine), left = place_capacity(pool);
	int rc;

	if (now < pool->checkpoint_after && left <= pool->checkpoint_left)
		return -ENOSPC;
	rc = pool_checkpoint(pool);
	if (rc) {
		pool->checkpoint_pause =
			pool->checkpoint_pause ? 2 * pool->checkpoint_pause : PAUSE_FIRST;
		if (pool->checkpoint_pause > PAUSE_MOST)
			pool->checkpoint_pause = PAUSE_MOST;
		pool->checkpoint_after = now + pool->checkpoint_pause;
		pool->checkpoint_left = left;
	} else {
		pool->checkpoint_pause = pool->checkpoint_after = 0;
	}
	return rc;
}

int pool_maintain(struct pool *pool)
{
	int rc = atomic_load(&pool->failure), checkpoint = 0;

	if (pool->follow)
		return follow_round(pool);
	if (rc || pool->read_only)
		return rc;
	if (!pool->options.background)
		beat_round(pool);
	members_find_vanished(pool);
	rc = pool_drop_failing(pool); /* before the lock: who has it may wait for that */
	if (rc)
		return rc;
	rest_round(pool);
	rc = maintain_round(pool);
	/* All the more when the round lacked room in it. */
	if (journal_wants_checkpoint(pool) || rest_wants_root(pool))
		checkpoint = try_checkpoint(pool);
	if (checkpoint)
		journal_refuse(pool);
	return rc ? rc : checkpoint;
}

void pool_wake_maintenance(struct pool *pool)
{
	pthread_mutex_lock(&pool->wake_lock);
	pool->wanted = true;
	pthread_cond_signal(&pool->wake);
	pthread_mutex_unlock(&pool->wake_lock);
}

/* Waits until woken or for a second; false when it is to end. */
static bool wait_for_work(struct pool *pool)
{
	struct timespec until;
	bool go_on;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	pthread_mutex_lock(&pool->wake_lock);
	while (!pool->wanted && !pool->stopping)
		if (pthread_cond_timedwait(&pool->wake, &pool->wake_lock, &until))
			break;
	pool->wanted = false;
	go_on = !pool->stopping;
	pthread_mutex_unlock(&pool->wake_lock);
	return go_on;
}

static void *maintenance_thread(void *argument)
{
	struct pool *pool = argument;

	while (wait_for_work(pool))
		pool_maintain(pool);
	return NULL;
}

int pool_start_maintenance(struct pool *pool)
{
	int rc;

	/* Under the lock, which is the first that the thread takes: it finds itself running. */
	pthread_mutex_lock(&pool->wake_lock);
	rc = -pthread_create(&pool->maintain_thread, NULL, maintenance_thread, pool);
	atomic_store(&pool->thread_running, !rc);
	pthread_mutex_unlock(&pool->wake_lock);
	return rc;
}

void pool_stop_maintenance(struct pool *pool)
{
	if (!atomic_load(&pool->thread_running))
		return;
	pthread_mutex_lock(&pool->wake_lock);
	pool->stopping = true;
	pthread_cond_signal(&pool->wake);
	pthread_mutex_unlock(&pool->wake_lock);
	pthread_join(pool->maintain_thread, NULL);
	atomic_store(&pool->thread_running, false);
}
