/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The watch, a thread that looks each second. A server whose pool another host has taken over knows
 * no truth any more, and one whose pool has failed here may be followed by one that finds its
 * drives: it ends without touching anything; its clients find the next one at the service's
 * address. A reader follows what has changed.
 */
#include "export/internal.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#define OVER_STATUS 3

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool running; /* lock */

static void wait_second(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	pthread_cond_clockwait(&wake, &lock, CLOCK_MONOTONIC, &until);
}

void watch_end_if_over(void)
{
	if (!server_is_over())
		return;
	LogCrit(COMPONENT_FSAL, "pool %s %s: ending", pool_name(nvme.pool),
		pool_failure(nvme.pool) == -ESTALE ? "belongs to another host now"
						   : "has failed, and another server may take it");
	announce_lost();
	_exit(OVER_STATUS);
}

static void look(void)
{
	watch_end_if_over();
	if (pool_is_reader(nvme.pool))
		follow_look();
}

static void *watch(void *data)
{
	SetNameFunction("nvme_watch");
	PTHREAD_MUTEX_lock(&lock);
	while (running) {
		PTHREAD_MUTEX_unlock(&lock);
		look();
		PTHREAD_MUTEX_lock(&lock);
		if (running)
			wait_second();
	}
	PTHREAD_MUTEX_unlock(&lock);
	return NULL;
}

void watch_start(void)
{
	running = true;
	if (pthread_create(&thread, NULL, watch, NULL))
		LogFatal(COMPONENT_FSAL,
			"no thread to watch who owns the pool, nor what a reader has to follow");
}

void watch_stop(void)
{
	bool was;

	PTHREAD_MUTEX_lock(&lock);
	was = running;
	running = false;
	pthread_cond_signal(&wake);
	PTHREAD_MUTEX_unlock(&lock);
	if (was)
		pthread_join(thread, NULL);
}
