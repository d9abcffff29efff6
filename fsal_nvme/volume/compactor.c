/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What is compacted, and when. The pool says which segments (pool_plan_compaction()); here is how
 * much of it is done, and how fast:
 *
 *   space is short     less than one part of SHORT_PART is free: as fast as it goes, until it is
 *                      not; the less is free, the fuller a segment may be that is still emptied
 *   there is waste     compaction could win more than WASTE_PERCENT of what segments take: at
 *                      `compact.rate` bytes a second, and while nobody else waits for memory
 *
 * A plan that does not win half of what it was to win was in vain, as small files may not fit
 * together any closer: its volume rests until there is more to be won of it.
 *
 * A server has a thread for all volumes of its pool. Where there is none, a verb's process or a
 * simulated world, a volume that is written to relieves itself when space is short. The thread has
 * one volume open at a time, beside those who use it; who wants to destroy one stops the thread
 * first, which lets go of it before the next bytes are moved.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define SECOND 1000000000ull
#define ROUND_PAUSE (5 * SECOND)
#define SHORT_PART 20u
#define WASTE_PERCENT 10u
#define WASTE_FULLEST 75u /* percent of a segment that is live, unless space is short */
#define GIVE_WAY (SECOND / 100)
#define GIVE_WAY_MOST 100u /* times in a row: whoever is always busy does not stop it for good */

/* --- how much there is to be done ------------------------------------------------------------- */

/* Of a segment that is worth being emptied less is live; 0: space is not short. */
static unsigned short_percent(struct pool *pool, uint64_t *wanted)
{
	uint64_t total, left;

	pool_space(pool, &total, &left);
	*wanted = left < total / SHORT_PART ? total / SHORT_PART - left : 0;
	if (!*wanted)
		return 0;
	return left >= total / (2 * SHORT_PART) ? 50 : left >= total / (8 * SHORT_PART) ? 75 : 100;
}

static bool is_wasteful(struct pool *pool)
{
	struct pool_status *status = malloc(sizeof(*status));
	uint64_t waste = 0;
	bool wasteful = false;

	if (status && !pool_waste(pool, 0, &waste)) {
		pool_status(pool, status);
		wasteful = waste > status->used / 100 * WASTE_PERCENT;
	}
	free(status);
	return wasteful;
}

/* --- one plan --------------------------------------------------------------------------------- */

static void rest(struct compact_memory *memory, uint32_t volume, uint64_t waste)
{
	struct compaction_rest *at = NULL;

	for (unsigned i = 0; i < memory->count; i++)
		if (memory->rests[i].volume == volume)
			at = &memory->rests[i];
	if (!at && memory->count < COMPACT_RESTS)
		at = &memory->rests[memory->count++];
	if (!at)
		at = &memory->rests[memory->next++ % COMPACT_RESTS];
	*at = (struct compaction_rest){volume, waste};
}

static int carry_out(struct volumes *volumes, const struct compaction_plan *plan,
	const struct compact_pace *pace)
{
	struct volume *volume;
	int r = volume_open_id(volumes, plan->volume, &volume, NULL), closed;

	if (r)
		return r;
	r = volume_compact(volume, plan->segments, plan->count, pace);
	closed = volume_let_go(volume);
	return r ? r : closed;
}

/* Of all volumes, or only one. 1: a plan was carried out; 2: it was in vain, and its volume rests;
 * 0: there is none, now. -ECANCELED: it is to stop; or the pool's failure. */
static int compact_next(struct volumes *volumes, struct compact_memory *memory, struct volume *only,
	unsigned percent, const struct compact_pace *pace)
{
	struct compaction_request request = {
		only ? only->row.id : 0, percent, memory->rests, memory->count};
	struct compaction_plan plan;
	uint64_t before, after;
	int r = pool_plan_compaction(volumes->pool, &request, &plan);

	if (plan.usable != memory->usable && memory->count) { /* it was counted otherwise then */
		memory->count = request.rest_count = 0;
		r = pool_plan_compaction(volumes->pool, &request, &plan);
	}
	memory->usable = plan.usable;
	if (r)
		return r == -ENOENT ? 0 : r;
	r = pool_waste(volumes->pool, plan.volume, &before);
	if (!r && only)
		r = volume_compact(only, plan.segments, plan.count, pace);
	else if (!r)
		r = carry_out(volumes, &plan, pace);
	if (r == -ECANCELED)
		return r;
	if (pool_failure(volumes->pool))
		return pool_failure(volumes->pool);
	if (r == -EMFILE) /* all streams are in use, for now */
		return 0;
	if (pool_waste(volumes->pool, plan.volume, &after))
		return -ENOMEM;
	if (!r && after + plan.gain / 2 <= before)
		return 1;
	rest(memory, plan.volume, after);
	return 2;
}

static uint64_t space_left(struct pool *pool)
{
	uint64_t total, left;

	pool_space(pool, &total, &left);
	return left;
}

/* Until `bytes` more are free, or nothing is to be won. */
static int make_room(struct volumes *volumes, struct volume *only, unsigned percent, uint64_t bytes,
	uint64_t *won)
{
	uint64_t before = space_left(volumes->pool), after = before;
	struct compact_memory memory = {.count = 0};
	int r = 1;

	while (r > 0 && (after < before || after - before < bytes)) {
		r = compact_next(volumes, &memory, only, percent, NULL);
		after = space_left(volumes->pool);
	}
	if (won)
		*won = after > before ? after - before : 0;
	return r < 0 ? r : 0;
}

int volume_make_room(struct volume *volume, unsigned percent, uint64_t bytes, uint64_t *won)
{
	return make_room(volume->volumes, volume, percent, bytes, won);
}

int volumes_compact(struct volumes *volumes, unsigned percent, uint64_t bytes, uint64_t *won)
{
	return make_room(volumes, NULL, percent, bytes, won);
}

/* Commits do not wait for the end: the thread that moves the bytes is the one that makes them. */
static int commit_between(void *data, uint64_t bytes)
{
	struct volume *volume = data;
	bool stop;

	commit_run(volume);
	pthread_mutex_lock(&volume->work_lock);
	stop = volume->stop;
	pthread_mutex_unlock(&volume->work_lock);
	return stop ? -ECANCELED : 0;
}

/* The thread for all volumes may have what there is to be won in hand. */
static bool is_at_work(struct compactor *c)
{
	bool busy;

	pthread_mutex_lock(&c->lock);
	busy = c->busy;
	pthread_mutex_unlock(&c->lock);
	return busy;
}

int compactor_make_kept_room(struct volume *volume)
{
	const struct compact_pace pace = {commit_between, volume};
	struct compact_memory memory = {.count = 0};
	bool others = false;
	int r = 1;

	while (r > 0 && !pool_has_room(volume->pool, APPEND_KEPT)) {
		others = is_at_work(&volume->volumes->compactor);
		r = compact_next(volume->volumes, &memory, volume, 100, &pace);
	}
	if (pool_has_room(volume->pool, APPEND_KEPT))
		return 0;
	return others ? -EAGAIN : r < 0 ? r : -ENOSPC;
}

int compactor_relieve(struct volume *volume)
{
	struct compactor *c = &volume->volumes->compactor;
	uint64_t wanted;
	unsigned percent;
	bool running;

	percent = short_percent(volume->pool, &wanted);
	if (!percent)
		return 0;
	pthread_mutex_lock(&c->lock);
	running = c->running;
	c->kicked = true;
	c->urgent = true;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return running ? 0 : volume_make_room(volume, percent, wanted, NULL);
}

/* --- the thread ------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* Under the lock. */
static bool is_wanted_away(const struct compactor *c)
{
	return c->stop || c->holds || (!c->urgent && !c->rate);
}

/* Under the lock: until that time, or something has changed. */
static void wait_until(struct compactor *c, uint64_t at)
{
	struct timespec until = {(time_t)(at / SECOND), (long)(at % SECOND)};

	pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

/* When the next bytes may be moved, after these. What was not used of the rate is not saved up. */
static uint64_t next_due(const struct compactor *c, uint64_t bytes, uint64_t now)
{
	uint64_t from = c->due > now ? c->due : now;

	return from + (uint64_t)((double)bytes / (double)c->rate * (double)SECOND);
}

static int pace(void *data, uint64_t bytes)
{
	struct volumes *volumes = data;
	struct compactor *c = &volumes->compactor;
	int r;

	pthread_mutex_lock(&c->lock);
	while (!c->urgent && !is_wanted_away(c) && now_ns() < c->due)
		wait_until(c, c->due);
	for (unsigned i = 0; !c->urgent && !is_wanted_away(c) && i < GIVE_WAY_MOST &&
			     pool_rows_short(volumes->pool);
		i++)
		wait_until(c, now_ns() + GIVE_WAY);
	r = is_wanted_away(c) ? -ECANCELED : 0;
	if (!r && !c->urgent)
		c->due = next_due(c, bytes, now_ns());
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* Waits until it may have a volume; false when it is to end. */
static bool begin(struct compactor *c, bool urgent)
{
	bool go_on;

	pthread_mutex_lock(&c->lock);
	while (c->holds && !c->stop)
		pthread_cond_wait(&c->changed, &c->lock);
	go_on = !c->stop && (urgent || c->rate);
	c->urgent = urgent;
	c->busy = go_on;
	pthread_mutex_unlock(&c->lock);
	return go_on;
}

static void end(struct compactor *c)
{
	pthread_mutex_lock(&c->lock);
	c->busy = false;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

/* One plan at a time, and a look at what there is to be done before each. */
static int work(struct volumes *volumes)
{
	struct compactor *c = &volumes->compactor;
	const struct compact_pace paced = {pace, volumes};
	uint64_t wanted;
	unsigned percent = short_percent(volumes->pool, &wanted);
	bool urgent = percent != 0;
	int r;

	if (pool_is_read_only(volumes->pool) || (!urgent && !is_wasteful(volumes->pool)))
		return 0;
	if (!begin(c, urgent))
		return 0;
	r = compact_next(volumes, &c->memory, NULL, urgent ? percent : WASTE_FULLEST, &paced);
	end(c);
	return r;
}

/* After something was done there may be more of it; else a while later, or when it is asked to. */
static bool wait_for_work(struct compactor *c, bool more)
{
	uint64_t until = now_ns() + ROUND_PAUSE;
	bool go_on;

	pthread_mutex_lock(&c->lock);
	while (!more && !c->stop && !c->kicked && now_ns() < until)
		wait_until(c, until);
	c->kicked = false;
	go_on = !c->stop;
	pthread_mutex_unlock(&c->lock);
	return go_on;
}

static void *compactor(void *data)
{
	struct volumes *volumes = data;
	bool more = false;

	while (wait_for_work(&volumes->compactor, more))
		more = work(volumes) == 1;
	return NULL;
}

/* --- its life --------------------------------------------------------------------------------- */

void compactor_init(struct compactor *c)
{
	pthread_condattr_t monotonic;

	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&c->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

int volumes_compact_start(struct volumes *volumes, uint64_t rate)
{
	struct compactor *c = &volumes->compactor;
	int r = 0;

	pthread_mutex_lock(&c->lock);
	c->rate = rate;
	c->kicked = true;
	c->due = 0;
	if (!c->running)
		r = -pthread_create(&c->thread, NULL, compactor, volumes);
	c->running = !r;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return r;
}

void volumes_compact_stop(struct volumes *volumes)
{
	struct compactor *c = &volumes->compactor;
	bool running;

	pthread_mutex_lock(&c->lock);
	c->stop = true;
	running = c->running;
	c->running = false;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	if (running)
		pthread_join(c->thread, NULL);
	c->stop = false;
}

void compactor_destroy(struct compactor *c)
{
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
}

void compactor_hold(struct compactor *c)
{
	pthread_mutex_lock(&c->lock);
	c->holds++;
	pthread_cond_broadcast(&c->changed);
	while (c->busy)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

void compactor_release(struct compactor *c)
{
	pthread_mutex_lock(&c->lock);
	c->holds--;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}
