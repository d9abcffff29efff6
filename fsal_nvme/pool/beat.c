/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The beat of an owner, and its looks at whether there is a later one. On each member by itself:
 *
 *   look   label area A is read, all of it: a later owner's labels may stand in any place, those
 *          of one that has the same epoch, as it had not seen our claim, in ours, and those of a
 *          claim that came no further on a few members only. Area B is read where A
 *          cannot be: a claim has ended when it is in both. A label of a later epoch stops the
 *          pool; otherwise member->looked becomes the time at which the look began
 *   beat   once a second, behind a look, this owner's next beat is written; an opener that sees it
 *          move leaves the pool alone
 *
 * A later owner's claim is on all members but those that may be lost (loss.c): more than these that
 * show none prove that there was none when their looks began. pool_look() waits for such answers.
 *
 * The beat waits for nothing. A member whose requests are still on their way has its turn behind
 * them, however long they take: a drive may need 30 s to tell that it has failed, and openers are
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
	uint8_t *memory; /* LABEL_AREA: the labels that are read, then the block of the beat */
	uint64_t began;
	uint64_t count; /* of the beat that follows the look; 0: none does */
	uint64_t due; /* beats->lock; of the beat that is to follow the next look, likewise */
	bool busy, again; /* beats->lock; again: to be looked at once more when it is over */
};

struct beats {
	struct label_self self; /* constant */
	struct pulse pulses[POOL_DEVICES_MAX];
	pthread_t thread;
	pthread_mutex_t lock; /* a leaf; guards what follows */
	pthread_cond_t wake;
	bool stopping, running;
	uint64_t count;
	unsigned busy; /* pulses */
	int error; /* of the last request that failed */
	struct look_wait *waits;
	struct event *idle; /* signalled when no pulse is busy */
};

/* --- who waits for looks ---------------------------------------------------------------------- */

static bool shows_none(const struct pool *pool, uint64_t since)
{
	uint64_t answers = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		const struct member *member = &pool->devices[i];

		if (member_usable(member) && atomic_load(&member->looked) >= since)
			answers |= UINT64_C(1) << i;
	}
	return !losses_allowed(pool, members_active(pool), answers);
}

bool pool_lease_holds(const struct pool *pool)
{
	uint64_t now = engine_clock(pool->engine);

	return shows_none(pool, now > LEASE_NS ? now - LEASE_NS : 1);
}

/* Under the lock: whether `wait` is over, and how. */
static bool is_answered(const struct pool *pool, const struct look_wait *wait, int *status)
{
	const struct beats *beats = pool->beats;

	*status = atomic_load(&pool->failure);
	if (*status || shows_none(pool, wait->since))
		return true;
	*status = beats->error ? beats->error : -EIO;
	return !beats->busy;
}

/* Calls those that have their answer; `over`: a pulse ends, which may be the beats' last one. */
static void answer(struct pool *pool, bool over)
{
	struct beats *beats = pool->beats;
	struct look_wait *done = NULL, *next;

	pthread_mutex_lock(&beats->lock);
	beats->busy -= over;
	for (struct look_wait **at = &beats->waits; *at;) {
		struct look_wait *wait = *at;

		if (!is_answered(pool, wait, &wait->status)) {
			at = &wait->next;
			continue;
		}
		*at = wait->next;
		wait->next = done;
		done = wait;
	}
	if (!beats->busy && beats->idle) {
		event_signal(beats->idle, 0);
		beats->idle = NULL;
	}
	pthread_mutex_unlock(&beats->lock);
	for (; done; done = next) {
		next = done->next;
		done->done(done);
	}
}

/* --- one member ------------------------------------------------------------------------------- */

static void label_looked_at(struct io *io);

static void prepare_area(struct pulse *p, uint64_t offset)
{
	io_prepare(&p->io, IO_READ, p->member->device, offset, p->memory, LABEL_AREA);
	p->io.done = label_looked_at;
	p->io.data = p;
}

/* Under the lock, or as long as it is busy. */
static void prepare_look(struct pulse *p)
{
	p->again = false;
	p->count = p->due;
	p->due = 0;
	p->began = engine_clock(p->pool->engine);
	prepare_area(p, LABEL_A_OFFSET);
}

/* Its last look at the beats, unless it is to look again. */
static void pulse_over(struct pulse *p, int error)
{
	struct pool *pool = p->pool;
	struct io *io = &p->io;
	bool again;

	pthread_mutex_lock(&pool->beats->lock);
	if (error)
		pool->beats->error = error;
	again = p->again && error != -ESHUTDOWN && !atomic_load(&pool->failure);
	if (again)
		prepare_look(p);
	p->busy = again;
	pthread_mutex_unlock(&pool->beats->lock);
	if (again)
		io_submit(pool->engine, &io, 1);
	else
		answer(pool, true);
}

static void beat_written(struct io *io)
{
	struct pulse *p = io->data;

	if (io->result)
		member_failed(p->pool, p->member, io->result);
	pulse_over(p, io->result);
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

static bool shows_another(const struct pulse *p)
{
	return area_has_anothers(p->memory, &p->pool->beats->self, p->pool->epoch);
}

/* Labels that cannot be read say nothing, and the member may still show the beat. */
static void label_looked_at(struct io *io)
{
	struct pulse *p = io->data;
	int rc = io->result;

	if (rc && rc != -ESHUTDOWN && io->offset == LABEL_A_OFFSET) {
		prepare_area(p, p->member->header.label_b_offset);
		io_submit(p->pool->engine, &io, 1);
		return;
	}
	if (!rc && shows_another(p)) {
		rc = -ESTALE;
		pool_fail(p->pool, rc, "another host has taken the pool over");
	}
	if (!rc) {
		atomic_store(&p->member->looked, p->began);
		answer(p->pool, false);
	}
	if (p->count && rc != -ESHUTDOWN && rc != -ESTALE)
		write_beat(p);
	else
		pulse_over(p, rc);
}

/* --- all of them ------------------------------------------------------------------------------ */

/* Under the lock; the requests in `list` are to be submitted behind it. A member that is busy is
 * looked at once more then, and shows this beat. */
static unsigned begin_looks(struct pool *pool, uint64_t count, struct io **list)
{
	struct beats *beats = pool->beats;
	unsigned begun = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		struct pulse *p = &beats->pulses[i];

		if (!member_usable(p->member) || atomic_load(&p->member->failing))
			continue;
		if (count)
			p->due = count;
		if (p->busy) {
			p->again = true;
			continue;
		}
		p->busy = true;
		prepare_look(p);
		list[begun++] = &p->io;
	}
	beats->busy += begun;
	return begun;
}

void beat_round(struct pool *pool)
{
	struct beats *beats = pool->beats;
	struct io *list[POOL_DEVICES_MAX];
	unsigned count;

	pthread_mutex_lock(&beats->lock);
	count = begin_looks(pool, ++beats->count, list);
	pthread_mutex_unlock(&beats->lock);
	io_submit(pool->engine, list, count);
}

void pool_look(struct pool *pool, struct look_wait *wait)
{
	struct beats *beats = pool->beats;
	struct io *list[POOL_DEVICES_MAX];
	unsigned count;
	bool nobody;

	if (!beats) {
		wait->status = pool->read_only ? 0 : -ESHUTDOWN;
		wait->done(wait);
		return;
	}
	pthread_mutex_lock(&beats->lock);
	wait->since = engine_clock(pool->engine);
	wait->next = beats->waits;
	beats->waits = wait;
	count = begin_looks(pool, 0, list);
	nobody = !beats->busy;
	pthread_mutex_unlock(&beats->lock);
	io_submit(pool->engine, list, count);
	if (nobody)
		answer(pool, false);
}

struct still_ours {
	struct look_wait wait; /* first */
	struct event event;
};

static void still_ours_done(struct look_wait *wait)
{
	event_signal(&((struct still_ours *)wait)->event, wait->status);
}

static void forget_wait(struct beats *beats, struct look_wait *wait)
{
	pthread_mutex_lock(&beats->lock);
	for (struct look_wait **at = &beats->waits; *at; at = &(*at)->next) {
		if (*at == wait) {
			*at = wait->next;
			break;
		}
	}
	pthread_mutex_unlock(&beats->lock);
}

int beat_still_ours(struct pool *pool)
{
	struct still_ours ours = {.wait.done = still_ours_done};
	int rc;

	event_init(&ours.event, pool->engine);
	pool_look(pool, &ours.wait);
	rc = event_wait(&ours.event);
	if (rc == -EDEADLK)
		forget_wait(pool->beats, &ours.wait);
	return rc;
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

	pthread_mutex_init(&beats->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&beats->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct pulse *p = &beats->pulses[i];

		p->pool = pool;
		p->member = &pool->devices[i];
		p->memory = buffer_alloc(pool->engine, LABEL_AREA);
		if (!p->memory)
			return -ENOMEM;
	}
	return 0;
}

int beat_start(struct pool *pool)
{
	struct beats *beats = calloc(1, sizeof(*beats));
	int rc;

	if (!beats)
		return -ENOMEM;
	memcpy(beats->self.pool, pool->label.pool, sizeof(beats->self.pool));
	memcpy(beats->self.boot, pool->label.owner_boot, sizeof(beats->self.boot));
	beats->self.pid = pool->label.owner_pid;
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

/* Until nothing is on its way. */
static int wait_idle(struct pool *pool)
{
	struct beats *beats = pool->beats;
	struct event idle;
	bool busy;
	int rc;

	event_init(&idle, pool->engine);
	pthread_mutex_lock(&beats->lock);
	for (unsigned i = 0; i < pool->device_count; i++)
		beats->pulses[i].again = false; /* a slow device is waited for once */
	busy = beats->busy;
	if (busy)
		beats->idle = &idle;
	pthread_mutex_unlock(&beats->lock);
	rc = busy ? event_wait(&idle) : 0;
	/* Whoever signalled has let go of the lock then; and nobody signals an event that is gone.
	 */
	pthread_mutex_lock(&beats->lock);
	beats->idle = NULL;
	pthread_mutex_unlock(&beats->lock);
	return rc;
}

void beat_stop(struct pool *pool)
{
	struct beats *beats = pool->beats;

	if (!beats)
		return;
	if (beats->running)
		stop_thread(beats);
	if (wait_idle(pool)) {
		log_error("pool %s: the beat's requests do not end; their memory is left to them",
			pool->label.name);
		return;
	}
	pthread_cond_destroy(&beats->wake);
	pthread_mutex_destroy(&beats->lock);
	for (unsigned i = 0; i < pool->device_count; i++)
		buffer_free(pool->engine, beats->pulses[i].memory, LABEL_AREA);
	free(beats);
	pool->beats = NULL;
}
