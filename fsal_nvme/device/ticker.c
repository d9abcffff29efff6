/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What is called again and again: from a thread of its own, or by a simulated world. */
#include <errno.h>
#include <time.h>

#include "device/engine.h"

/* Until `ticker` is to run again; false when it is to end. */
static bool wait_for_turn(struct ticker *ticker, struct timespec *turn)
{
	bool go_on;

	turn->tv_nsec += (long)(ticker->every % 1000000000);
	turn->tv_sec += (time_t)(ticker->every / 1000000000) + turn->tv_nsec / 1000000000;
	turn->tv_nsec %= 1000000000;
	pthread_mutex_lock(&ticker->lock);
	while (!ticker->stopping)
		if (pthread_cond_timedwait(&ticker->wake, &ticker->lock, turn))
			break;
	go_on = !ticker->stopping;
	pthread_mutex_unlock(&ticker->lock);
	return go_on;
}

static void *ticker_thread(void *argument)
{
	struct ticker *ticker = argument;
	struct timespec turn;

	clock_gettime(CLOCK_MONOTONIC, &turn);
	while (wait_for_turn(ticker, &turn)) {
		ticker->run(ticker);
		clock_gettime(
			CLOCK_MONOTONIC, &turn); /* turns that were missed are not made up for */
	}
	return NULL;
}

int ticker_start(struct engine *engine, struct ticker *ticker)
{
	pthread_condattr_t monotonic;
	int rc;

	ticker->engine = engine;
	ticker->stopping = false;
	if (engine_is_simulated(engine)) {
		engine->ops->tick(engine, ticker, true);
		return 0;
	}
	pthread_mutex_init(&ticker->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&ticker->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	rc = -pthread_create(&ticker->thread, NULL, ticker_thread, ticker);
	if (rc) {
		pthread_cond_destroy(&ticker->wake);
		pthread_mutex_destroy(&ticker->lock);
	}
	return rc;
}

void ticker_stop(struct ticker *ticker)
{
	if (engine_is_simulated(ticker->engine)) {
		ticker->engine->ops->tick(ticker->engine, ticker, false);
		return;
	}
	pthread_mutex_lock(&ticker->lock);
	ticker->stopping = true;
	pthread_cond_signal(&ticker->wake);
	pthread_mutex_unlock(&ticker->lock);
	pthread_join(ticker->thread, NULL);
	pthread_cond_destroy(&ticker->wake);
	pthread_mutex_destroy(&ticker->lock);
}
