/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What a volume uses and what its quota allows.
 *
 * Used are the bytes that the header row counts, and those of overlays, pending or staged. Bytes
 * are taken before they are appended, which a quota may refuse; they belong to a piece of an
 * overlay then, and are given back when that goes: it was replaced, cut, lost, or a commit has
 * moved it into the environment, where the header counts it. In the moment between, it counts
 * twice.
 *
 * So what is pending counts as if it replaced nothing. Who would pass the quota by that is looked
 * at more closely: what lies where he writes is his to use again, so that a full share can be
 * written over; and while commits, or deletions in the background, may still make the room that he
 * lacks, he is asked to come again.
 */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "common/size.h"

int space_take(struct volume *volume, uint64_t bytes, uint64_t limit)
{
	uint64_t pending = atomic_fetch_add(&volume->uncommitted, bytes) + bytes;

	if (!bytes || pending + atomic_load(&volume->committed) <= limit)
		return 0;
	space_give(volume, bytes);
	return -EDQUOT;
}

void space_give(struct volume *volume, uint64_t bytes)
{
	atomic_fetch_sub(&volume->uncommitted, bytes);
}

uint64_t space_used(const struct volume *volume)
{
	return atomic_load(&volume->committed) + atomic_load(&volume->uncommitted);
}

/* Bytes of [from, to) that are there; under the file's lock. */
static int count_there(struct volume_file *file, uint64_t from, uint64_t to, uint64_t *bytes)
{
	struct look look;
	int r = look_begin(file, &look);

	*bytes = 0;
	if (r)
		return r;
	while (!r && from < to) {
		struct stretch stretch;

		r = look_stretch(&look, from, &stretch);
		if (r)
			break;
		if (stretch.end > to)
			stretch.end = to;
		*bytes += stretch.what == LIES_HOLE ? 0 : stretch.end - from;
		from = stretch.end;
	}
	look_end(&look);
	return r;
}

int space_there(struct volume_file *file, uint64_t from, uint64_t to, uint64_t *bytes)
{
	int r;

	pthread_mutex_lock(&file->lock);
	r = count_there(file, from, to, bytes);
	pthread_mutex_unlock(&file->lock);
	return r;
}

static int kept_run(const struct look *look, uint64_t from, uint64_t to, bool *kept, uint64_t *end)
{
	*end = from;
	while (*end < to) {
		struct stretch stretch;
		int r = look_stretch(look, *end, &stretch);

		if (r)
			return r;
		if (*end == from)
			*kept = stretch.what == LIES_KEPT;
		if (*kept != (stretch.what == LIES_KEPT))
			return 0;
		*end = stretch.end < to ? stretch.end : to;
	}
	return 0;
}

int space_kept(struct volume_file *file, uint64_t from, uint64_t to, bool *kept, uint64_t *end)
{
	struct look look;
	int r;

	*kept = false;
	*end = to;
	if (!atomic_load(&file->volume->kept))
		return 0;
	pthread_mutex_lock(&file->lock);
	r = look_begin(file, &look);
	if (!r) {
		r = kept_run(&look, from, to, kept, end);
		look_end(&look);
	}
	pthread_mutex_unlock(&file->lock);
	return r;
}

bool space_comes(struct volume *volume, uint64_t bytes)
{
	atomic_store(&volume->squeeze, true);
	background_kick(volume);
	return (!atomic_load(&volume->trouble) && atomic_load(&volume->uncommitted) &&
		       atomic_load(&volume->committed) + bytes <= atomic_load(&volume->quota)) ||
	       atomic_load(&volume->giving_back) || atomic_load(&volume->orphans) ||
	       atomic_load(&volume->trims);
}

int space_relieve(struct volume *volume)
{
	int vain = RELIEF_VAIN, none = RELIEF_NONE;

	if (atomic_compare_exchange_strong(&volume->relief, &vain, RELIEF_NONE))
		return -ENOSPC;
	atomic_compare_exchange_strong(&volume->relief, &none, RELIEF_ASKED);
	background_kick(volume);
	vain = RELIEF_VAIN;
	if (atomic_compare_exchange_strong(&volume->relief, &vain, RELIEF_NONE))
		return -ENOSPC;
	return atomic_load(&volume->relief) == RELIEF_NONE ? 0 : -EAGAIN;
}

/* --- the quota -------------------------------------------------------------------------------- */

int volume_quota_parse(const char *text, uint64_t *quota)
{
	if (strcmp(text, "none") != 0)
		return size_parse(text, quota);
	*quota = VOLUME_QUOTA_NONE;
	return 0;
}

int volume_quota_get(struct txn *view, uint32_t volume, uint64_t *quota)
{
	char text[SIZE_TEXT_MAX];
	int r = property_get(view, volume, VOLUME_QUOTA_PROPERTY, text, sizeof(text));

	*quota = VOLUME_QUOTA_NONE;
	if (r)
		return r == -ENOENT ? 0 : r;
	return volume_quota_parse(text, quota) ? -EBADMSG : 0;
}

int space_load(struct volume *volume)
{
	struct txn *view;
	uint64_t quota;
	int r = view_begin(pool_env(volume->pool), &view);

	if (r)
		return r;
	r = volume_quota_get(view, volume->row.id, &quota);
	txn_abort(view);
	if (r == -EBADMSG)
		log_error("volume %s: its quota cannot be understood", volume->row.name);
	if (!r)
		atomic_store(&volume->quota, quota);
	return r;
}

int volumes_quota_changed(struct volumes *volumes, uint32_t id)
{
	struct volume *volume;
	int r = 0;

	pthread_mutex_lock(&volumes->lock);
	for (volume = volumes->first; volume; volume = volume->next) {
		if (volume->row.id == id)
			r = space_load(volume);
	}
	pthread_mutex_unlock(&volumes->lock);
	return r;
}
