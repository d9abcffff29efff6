/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A reader's exports. The pool follows roots by itself; a thread here looks each second whether it
 * has loaded another one, and makes the exports what that says: new datasets come, changed
 * properties count, those that were destroyed go. Objects that clients still have of them answer
 * until the cache lets go of them, as far as their bytes are there.
 */
#include "export/internal.h"

#include <errno.h>
#include <time.h>

#include "server_module.h"

#include "cli/control.h"

struct shown {
	struct shown *next;
	uint32_t volume;
	uint16_t export_id;
	bool found;
};

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool running; /* lock */
static struct shown *first; /* the thread's */

static int next_row(uint32_t id, struct volume_row *row)
{
	struct txn *view;
	int r = view_begin(pool_env(nvme.pool), &view);

	if (!r) {
		r = volume_row_next(view, id, row);
		txn_abort(view);
	}
	return r;
}

static void note_shown(const struct volume_row *row)
{
	struct shown *at = first;

	while (at && at->volume != row->id)
		at = at->next;
	if (!at) {
		at = gsh_calloc(1, sizeof(*at));
		at->volume = row->id;
		at->export_id = row->export_id;
		at->next = first;
		first = at;
	}
	at->found = true;
}

static void show(const struct volume_row *row)
{
	struct error error = {0};

	if (row->destroying || !row->sealed)
		return;
	note_shown(row);
	if (export_refresh(row, &error))
		LogCrit(COMPONENT_FSAL, "volume %s: %s", error.object, error.message);
	error_clear(&error);
}

/* Of one that is mounted below another the next round tries again. */
static void hide_gone(void)
{
	for (struct shown **at = &first; *at;) {
		struct shown *one = *at;

		if (one->found || server_export_remove(one->export_id) == -EBUSY) {
			one->found = false;
			at = &one->next;
			continue;
		}
		*at = one->next;
		gsh_free(one);
	}
}

static void show_all(void)
{
	struct volume_row row = {.id = 0};

	while (!next_row(row.id + 1, &row))
		show(&row);
	hide_gone();
}

/* Under the lock. */
static void wait_second(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	pthread_cond_timedwait(&wake, &lock, &until);
}

static void *follow(void *data)
{
	uint64_t seen = 0, now;

	SetNameFunction("nvme_follow");
	PTHREAD_MUTEX_lock(&lock);
	while (running) {
		now = pool_follow_count(nvme.pool);
		PTHREAD_MUTEX_unlock(&lock);
		if (now != seen)
			show_all();
		seen = now;
		PTHREAD_MUTEX_lock(&lock);
		if (running)
			wait_second();
	}
	PTHREAD_MUTEX_unlock(&lock);
	return NULL;
}

void follow_start(void)
{
	running = true;
	if (pthread_create(&thread, NULL, follow, NULL)) {
		running = false;
		LogCrit(COMPONENT_FSAL, "new datasets will not be seen: no thread follows them");
	}
}

void follow_stop(void)
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
