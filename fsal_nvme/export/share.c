/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Share reservations: what those who have a file open do with it, and forbid others to do. They are
 * counted by inode, not by object: an open by name may make a second object of a file that is in
 * ganesha's cache, and the two become one only when it has been done, with what it cuts cut.
 */
#include "export/internal.h"

#include <string.h>

#define BUCKETS 4096u

/* Of one file, while any counter is above 0. */
struct share {
	uint32_t volume;
	uint64_t ino;
	struct fsal_share counters;
	struct share *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct share *buckets[BUCKETS]; /* lock */

/* Where the file's is, or belongs. */
static struct share **place_of(const struct handle *handle)
{
	struct share **place = &buckets[(handle->ino + handle->served->id) % BUCKETS];

	while (*place && ((*place)->ino != handle->ino || (*place)->volume != handle->served->id))
		place = &(*place)->next;
	return place;
}

static struct share *share_new(const struct handle *handle)
{
	struct share *share = gsh_calloc(1, sizeof(*share));

	share->volume = handle->served->id;
	share->ino = handle->ino;
	return share;
}

static void free_idle(struct share **place)
{
	static const struct fsal_share idle;
	struct share *share = *place;

	if (memcmp(&share->counters, &idle, sizeof(idle)))
		return;
	*place = share->next;
	gsh_free(share);
}

fsal_status_t share_check(struct handle *handle, fsal_openflags_t flags, bool bypass)
{
	fsal_status_t status = status_out(0);
	struct share *share;

	PTHREAD_MUTEX_lock(&lock);
	share = *place_of(handle);
	if (share)
		status = check_share_conflict(&share->counters, flags, bypass);
	PTHREAD_MUTEX_unlock(&lock);
	return FSAL_IS_ERROR(status) ? fsalstat(ERR_FSAL_LOCKED, 0) : status;
}

fsal_status_t share_move(struct handle *handle, fsal_openflags_t *has, fsal_openflags_t wants)
{
	fsal_openflags_t uses = wants & FSAL_O_TRUNC ? wants | FSAL_O_WRITE : wants;
	struct share **place;
	fsal_status_t status;

	PTHREAD_MUTEX_lock(&lock);
	place = place_of(handle);
	if (!*place)
		*place = share_new(handle);
	update_share_counters(&(*place)->counters, *has, FSAL_O_CLOSED);
	status = check_share_conflict(&(*place)->counters, uses, false);
	if (!FSAL_IS_ERROR(status))
		*has = wants & ~FSAL_O_TRUNC;
	update_share_counters(&(*place)->counters, FSAL_O_CLOSED, *has);
	free_idle(place);
	PTHREAD_MUTEX_unlock(&lock);
	return status;
}
