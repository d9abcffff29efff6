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
#include <unistd.h>

enum { PENDING, SIGNALLED, SLEPT_ON };

static void futex(_Atomic int *word, int op, int value)
{
	syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
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
		futex(&event->state, FUTEX_WAKE, 1);
}

static int wait_simulated(struct event *event)
{
	while (atomic_load(&event->state) == PENDING) {
		if (!event->engine->ops->step(event->engine))
			return -EDEADLK;
	}
	return event->result;
}

int event_wait(struct event *event)
{
	int state = PENDING;

	if (engine_is_simulated(event->engine))
		return wait_simulated(event);
	if (atomic_compare_exchange_strong(&event->state, &state, SLEPT_ON))
		state = SLEPT_ON;
	while (state == SLEPT_ON) {
		futex(&event->state, FUTEX_WAIT, SLEPT_ON);
		state = atomic_load(&event->state);
	}
	return event->result;
}
