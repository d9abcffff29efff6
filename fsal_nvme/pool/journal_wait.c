/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Waiting for an LSN to be durable. Each batch that is not durable keeps the list of those who wait
 * for its LSNs, so that a completion calls exactly those, and finding the batch takes a few steps.
 *
 * A parked batch goes on when its failing members are dropped. The maintenance thread does that,
 * unless it waits for the batch itself, or for whoever does, or is not there (a pool that is being
 * opened or closed, a simulated world). So everybody who waits in pool_sync() may: it looks before
 * it waits, and a batch that is parked later wakes one of them with JOURNAL_HELP.
 */
#include "pool/journal.h"

#include <assert.h>

/* --- who waits -------------------------------------------------------------------------------- */

struct batch *journal_oldest(const struct journal *j)
{
	return j->queue ? j->queue : j->filling;
}

struct sync {
	struct durable_wait wait; /* first */
	struct event event;
};

static void sync_done(struct durable_wait *wait, int status)
{
	event_signal(&((struct sync *)wait)->event, status);
}

void journal_call(struct durable_wait *wait, int status)
{
	while (wait) {
		struct durable_wait *next = wait->next;

		wait->done(wait, status);
		wait = next;
	}
}

/* Walks the batches whose LSNs are not durable: flying, queued, filling. */
struct batch *journal_first(const struct journal *j)
{
	return j->flying ? j->flying : journal_oldest(j);
}

struct batch *journal_next(const struct journal *j, const struct batch *b)
{
	if (b == j->flying)
		return journal_oldest(j);
	return b == j->filling ? NULL : b->next ? b->next : j->filling;
}

/* False when there is nothing to wait for: *status then says how it is. */
static bool add_wait(struct journal *j, struct durable_wait *wait, int *status)
{
	struct batch *b = journal_first(j);

	*status = wait->lsn < j->durable.lsn || !wait->lsn ? 0 : j->failure;
	if (wait->lsn < j->durable.lsn || !wait->lsn || j->failure)
		return false;
	while (b && b->last_lsn < wait->lsn)
		b = journal_next(j, b);
	assert(b);
	wait->next = NULL;
	*b->waits_end = wait;
	b->waits_end = &wait->next;
	return true;
}

/* Takes out `wait`, or any that is a pool_sync() when `wait` is NULL. */
struct durable_wait *journal_take_wait(struct journal *j, const struct durable_wait *wait)
{
	for (struct batch *b = journal_first(j); b; b = journal_next(j, b)) {
		for (struct durable_wait **at = &b->waits; *at; at = &(*at)->next) {
			struct durable_wait *found = *at;

			if (wait ? found != wait : found->done != sync_done)
				continue;
			*at = found->next;
			if (!*at)
				b->waits_end = at;
			return found;
		}
	}
	return NULL;
}

void pool_when_durable(struct pool *pool, uint64_t lsn, struct durable_wait *wait)
{
	struct journal *j = pool->journal;
	bool waits;
	int status;

	wait->lsn = lsn;
	pthread_mutex_lock(&j->lock);
	waits = add_wait(j, wait, &status);
	pthread_mutex_unlock(&j->lock);
	if (!waits)
		wait->done(wait, status);
}

/* --- waiting ---------------------------------------------------------------------------------- */

static bool any_failing(const struct pool *pool)
{
	for (unsigned i = 0; i < pool->device_count; i++) {
		const struct member *member = &pool->devices[i];

		if (member_usable(member) && atomic_load(&member->failing))
			return true;
	}
	return false;
}

static bool wants_help(const struct journal *j)
{
	return j->state == JOURNAL_PARKED && any_failing(j->pool);
}

static int sync_once(struct pool *pool, uint64_t lsn)
{
	struct journal *j = pool->journal;
	struct sync sync = {.wait = {.done = sync_done, .lsn = lsn}};
	bool waits;
	int rc;

	event_init(&sync.event, pool->engine);
	pthread_mutex_lock(&j->lock);
	waits = add_wait(j, &sync.wait, &rc);
	if (waits && wants_help(j)) {
		journal_take_wait(j, &sync.wait);
		waits = false;
		rc = JOURNAL_HELP;
	}
	pthread_mutex_unlock(&j->lock);
	if (!waits)
		return rc;
	rc = event_wait(&sync.event);
	if (rc == -EDEADLK) {
		pthread_mutex_lock(&j->lock);
		journal_take_wait(j, &sync.wait);
		pthread_mutex_unlock(&j->lock);
	}
	return rc;
}

int pool_sync(struct pool *pool, uint64_t lsn)
{
	int rc = sync_once(pool, lsn);

	while (rc == JOURNAL_HELP) {
		rc = pool_drop_failing(pool);
		if (!rc)
			rc = sync_once(pool, lsn);
	}
	return rc;
}
