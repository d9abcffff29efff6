/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Volumes that are exported, and those whose last objects are still in ganesha's cache. */
#include "export/internal.h"

#include <errno.h>
#include <time.h>

#include "fridgethr.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gone = PTHREAD_COND_INITIALIZER;
static struct served *first; /* lock */

/* Readers put files and volumes; the writer forbids it for good. */
static pthread_rwlock_t freeze_lock = PTHREAD_RWLOCK_INITIALIZER;
static bool frozen; /* freeze_lock */

/* A reader that follows may find another dataset under the name by now. */
static int open_exported(
	const char *name, uint16_t export_id, struct volume **volume, struct error *error)
{
	int r = volume_open(nvme.volumes, name, volume, error);

	if (r || volume_row(*volume)->export_id == export_id)
		return r;
	(void)volume_close(*volume);
	return error_set(error, -ESTALE, name, "it is not the volume that is exported");
}

int served_get(const char *name, uint16_t export_id, struct served **served, struct error *error)
{
	struct served *new = gsh_calloc(1, sizeof(*new));
	int r = open_exported(name, export_id, &new->volume, error);

	if (r) {
		gsh_free(new);
		return r;
	}
	new->id = volume_row(new->volume)->id;
	atomic_init(&new->refs, 1);
	PTHREAD_MUTEX_lock(&lock);
	new->next = first;
	first = new;
	PTHREAD_MUTEX_unlock(&lock);
	*served = new;
	return 0;
}

void served_ref(struct served *served)
{
	atomic_fetch_add(&served->refs, 1);
}

static void served_close(struct served *served)
{
	char name[POOL_VOLUME_NAME_MAX + 1];
	struct served **at;
	int r;

	(void)snprintf(name, sizeof(name), "%s", volume_row(served->volume)->name);
	r = volume_close(served->volume);
	if (r)
		LogCrit(COMPONENT_FSAL, "volume %s: closed with unwritten data: %s", name,
			strerror(-r));
	PTHREAD_MUTEX_lock(&lock);
	for (at = &first; *at != served; at = &(*at)->next)
		;
	*at = served->next;
	pthread_cond_broadcast(&gone);
	PTHREAD_MUTEX_unlock(&lock);
	gsh_free(served);
}

/* In a thread of ganesha's. */
static void close_work(struct fridgethr_context *context)
{
	PTHREAD_RWLOCK_rdlock(&freeze_lock);
	if (!frozen)
		served_close(context->arg);
	PTHREAD_RWLOCK_unlock(&freeze_lock);
}

void served_put(struct served *served)
{
	if (atomic_fetch_sub(&served->refs, 1) == 1 &&
		fridgethr_submit(general_fridge, close_work, served))
		LogCrit(COMPONENT_FSAL, "volume %s stays open: no thread closes it",
			volume_row(served->volume)->name);
}

void served_put_file(struct volume_file *file)
{
	PTHREAD_RWLOCK_rdlock(&freeze_lock);
	if (!frozen)
		volume_file_put(file);
	PTHREAD_RWLOCK_unlock(&freeze_lock);
}

/* Under the lock. */
static bool is_served(uint32_t volume)
{
	struct served *served = first;

	while (served && served->id != volume)
		served = served->next;
	return served;
}

int served_wait_gone(uint32_t volume, unsigned seconds)
{
	struct timespec until;
	int r = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += seconds;
	PTHREAD_MUTEX_lock(&lock);
	while (!r && is_served(volume))
		r = pthread_cond_timedwait(&gone, &lock, &until);
	PTHREAD_MUTEX_unlock(&lock);
	return r ? -EBUSY : 0;
}

int served_sync_all(void)
{
	int result = 0, r;

	PTHREAD_MUTEX_lock(&lock);
	for (struct served *served = first; served; served = served->next) {
		r = volume_sync(served->volume);
		result = result ? result : r;
	}
	PTHREAD_MUTEX_unlock(&lock);
	return result;
}

void served_freeze(void)
{
	PTHREAD_RWLOCK_wrlock(&freeze_lock);
	frozen = true;
	PTHREAD_RWLOCK_unlock(&freeze_lock);
}
