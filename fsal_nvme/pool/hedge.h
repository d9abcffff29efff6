/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Reads that a device does not answer in time.
 *
 * A hedged request waits in a list until its answer is there. A tick, one for the whole pool, looks
 * at the lists' heads: what has waited for longer than the pool's hedge is given up by who asked,
 * and rebuilt from the other devices. Its memory belongs to the device until the answer comes,
 * which is thrown away then. While a device owes such an answer it has stalled: others do not ask
 * it first.
 */
#ifndef MILLRACE_HEDGE_H
#define MILLRACE_HEDGE_H

#include "pool/internal.h"

struct hedged {
	struct io io; /* done and data are this file's */
	struct pool *pool;
	struct member *member;
	/* The answer, in io.result; on an engine thread. */
	void (*done)(struct hedged *hedged);
	/* It is late. True: nobody waits any more, and gone() is called instead of done(); false:
	 * it goes on waiting. From the tick, which does one after the other; does not wait. NULL:
	 * it is waited for, however long that takes. */
	bool (*late)(struct hedged *hedged);
	/* The answer to what was given up is there: its memory can go, and then hedge_leave(). */
	void (*gone)(struct hedged *hedged);
	/* hedge.c's own */
	TAILQ_ENTRY(hedged) entry;
	uint64_t since; /* ticks */
	int state;
	bool given_up;
	_Atomic unsigned parts; /* of its end: late() has returned, the answer is there */
};

int hedge_start(struct pool *pool);
/* Waits for all answers that are late. Nobody reads. Nothing when it was not started. */
void hedge_end(struct pool *pool);
/* Makes it an asked one, before io_submit(): io_prepare() was called. */
void hedge_watch(struct hedged *hedged);
/* What was given up is gone; the last thing that is done with it. */
void hedge_leave(struct pool *pool);

/* Whether the member owes an answer that is late. */
static inline bool member_stalled(const struct member *member)
{
	return atomic_load_explicit(&member->stalled, memory_order_relaxed) > 0;
}

#endif
