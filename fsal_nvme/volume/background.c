/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What a volume does by itself. A volume that is written to has a thread, which commits what is
 * queued and makes a round once a second or when it is asked to. With a simulated engine, or when
 * no thread could be made, whoever causes the work does it.
 */
#include "volume/internal.h"

#include <errno.h>
#include <time.h>

#include "common/log.h"

static bool is_asked(struct volume *volume)
{
	return atomic_load(&volume->orphans) || atomic_load(&volume->trims) ||
	       atomic_load(&volume->squeeze) || atomic_load(&volume->relief) == RELIEF_ASKED;
}

/* -EAGAIN: it stays asked for. */
static int relieve_kept(struct volume *volume)
{
	int r;

	if (atomic_load(&volume->relief) != RELIEF_ASKED)
		return 0;
	r = compactor_make_kept_room(volume);
	if (r == -EAGAIN)
		return r;
	atomic_store(&volume->relief, r ? RELIEF_VAIN : RELIEF_NONE);
	return 0;
}

static int give_back(struct volume *volume)
{
	int r, r2, r3;

	atomic_store(&volume->giving_back, true);
	if (atomic_exchange(&volume->squeeze, false))
		commit_aged(volume, 0);
	commit_run(volume);
	r = reclaim_all(volume);
	r2 = trim_all(volume);
	r3 = relieve_kept(volume);
	atomic_store(&volume->giving_back, false);
	return r ? r : r2 ? r2 : r3;
}

int volume_maintain(struct volume *volume)
{
	int r, r2;

	if (!volume_may_change(volume))
		return 0;
	commit_aged(volume, volume->volumes->options.pending_age);
	r = give_back(volume);
	lanes_trim(volume);
	r2 = compactor_relieve(volume);
	return r ? r : r2;
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Waits for work, a second at most; false: to end. What is asked for waits too after a failure. */
static bool wait_for_work(struct volume *volume, bool failed)
{
	struct timespec until;
	bool stop;
	int r = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	pthread_mutex_lock(&volume->work_lock);
	while (!r && !volume->queue && !volume->stop && (failed || !is_asked(volume)))
		r = pthread_cond_timedwait(&volume->work, &volume->work_lock, &until);
	stop = volume->stop && !volume->queue;
	pthread_mutex_unlock(&volume->work_lock);
	return !stop;
}

static void *background(void *data)
{
	struct volume *volume = data;
	uint64_t last = engine_clock(volume->engine);
	bool failed = false;

	while (wait_for_work(volume, failed)) {
		uint64_t now = engine_clock(volume->engine);

		commit_run(volume);
		if (now - last < 1000000000ull && (failed || !is_asked(volume)))
			continue;
		/* What fails has marks, and is tried again a second later. */
		failed = volume_maintain(volume) != 0;
		last = now;
	}
	return NULL;
}

bool background_has_thread(struct volume *volume)
{
	bool threaded;

	if (engine_is_simulated(volume->engine))
		return false;
	pthread_mutex_lock(&volume->work_lock);
	if (!volume->threaded && !volume->stop)
		volume->threaded = !pthread_create(&volume->thread, NULL, background, volume);
	threaded = volume->threaded;
	pthread_mutex_unlock(&volume->work_lock);
	return threaded;
}

void background_stop(struct volume *volume)
{
	bool threaded;

	pthread_mutex_lock(&volume->work_lock);
	volume->stop = true;
	threaded = volume->threaded;
	volume->threaded = false;
	pthread_cond_broadcast(&volume->work);
	pthread_mutex_unlock(&volume->work_lock);
	if (threaded)
		pthread_join(volume->thread, NULL);
}

void background_kick(struct volume *volume)
{
	if (!is_asked(volume))
		return;
	if (background_has_thread(volume)) {
		commit_kick(volume);
		return;
	}
	if (volume->busy)
		return;
	volume->busy = true;
	give_back(volume);
	volume->busy = false;
}
