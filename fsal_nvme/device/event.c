/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Waiting, for both engines. With threads the state is a futex: a waiter marks it as slept on, and
 * only then does the one who signals make a system call. The signaller's last look at the event is
 * the exchange that publishes the result: the waiter may return and the event be gone before
 * FUTEX_WAKE, which takes only the address and never touches what is there.
 */
#include "device/engine.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SIMULATED_STEP (UINT64_C(100) * 1000)

enum { PENDING, SIGNALLED, SLEPT_ON };

/* `limit`: of CLOCK_MONOTONIC; NULL: none. */
static void futex(_Atomic int *word, int op, int value, const struct timespec *limit)
{
	syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, limit, NULL,
		FUTEX_BITSET_MATCH_ANY);
}

void event_init(struct event *event, struct engine *engine)
{
	event->engine = engine;
	event->result = 0;
	atomic_init(&event->state, PENDING);
}

void event_signal(struct event *event, int result)
{
	int before;

	event->result = result;
	before = atomic_exchange(&event->state, SIGNALLED);
	assert(before != SIGNALLED);
	if (before == SLEPT_ON)
		futex(&event->state, FUTEX_WAKE, 1, NULL);
}

static int wait_simulated(struct event *event)
{
	while (atomic_load(&event->state) == PENDING) {
		if (!event->engine->ops->step(event->engine))
			return -EDEADLK;
	}
	return event->result;
}

static int wait_simulated_for(struct event *event, uint64_t nanoseconds)
{
	uint64_t end = engine_clock(event->engine) + nanoseconds;

	while (atomic_load(&event->state) == PENDING && engine_clock(event->engine) < end)
		engine_sleep(event->engine, SIMULATED_STEP);
	return atomic_load(&event->state) == PENDING ? -ETIMEDOUT : event->result;
}

static bool is_over(const struct timespec *limit)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > limit->tv_sec ||
	       (now.tv_sec == limit->tv_sec && now.tv_nsec >= limit->tv_nsec);
}

static int sleep_on(struct event *event, const struct timespec *limit)
{
	int state = PENDING;

	if (atomic_compare_exchange_strong(&event->state, &state, SLEPT_ON))
		state = SLEPT_ON;
	while (state == SLEPT_ON) {
		if (limit && is_over(limit))
			return -ETIMEDOUT;
		futex(&event->state, FUTEX_WAIT_BITSET, SLEPT_ON, limit);
		state = atomic_load(&event->state);
	}
	return event->result;
}

int event_wait(struct event *event)
{
	return engine_is_simulated(event->engine) ? wait_simulated(event) : sleep_on(event, NULL);
}

int event_wait_for(struct event *event, uint64_t nanoseconds)
{
	struct timespec limit;

	if (engine_is_simulated(event->engine))
		return wait_simulated_for(event, nanoseconds);
	clock_gettime(CLOCK_MONOTONIC, &limit);
	limit.tv_nsec += (long)(nanoseconds % 1000000000);
	limit.tv_sec += (time_t)(nanoseconds / 1000000000) + limit.tv_nsec / 1000000000;
	limit.tv_nsec %= 1000000000;
	return sleep_on(event, &limit);
}
