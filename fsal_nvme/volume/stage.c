/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Files made whole, many in one transaction. The bytes are appended first and belong to nobody; a
 * transaction makes name, inode and extents together, so a file is there with all of its bytes or
 * not at all.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COST_FILE 2048u /* bytes of a record that a file takes at most, without what follows */
#define COST_PIECE 256u

struct stage {
	struct overlay *overlay;
	struct lane_user lane;
};

static struct stage *stage_of(struct volume *volume, struct volume_staged *staged)
{
	struct stage *stage = staged->stage;

	if (stage)
		return stage;
	stage = calloc(1, sizeof(*stage));
	if (!stage)
		return NULL;
	stage->overlay = overlay_new(volume);
	if (!stage->overlay) {
		free(stage);
		return NULL;
	}
	staged->stage = stage;
	return stage;
}

static int stage_inline(struct volume *volume, struct overlay *overlay, size_t offset,
	const void *bytes, size_t length)
{
	int r = overlay_bytes(volume, overlay);

	if (r)
		return r;
	if (offset > overlay->length)
		memset(overlay->bytes + overlay->length, 0, offset - overlay->length);
	memcpy(overlay->bytes + offset, bytes, length);
	if (offset + length <= overlay->length)
		return 0;
	r = space_take(volume, offset + length - overlay->length, UINT64_MAX);
	overlay->charged += offset + length - overlay->length;
	overlay->length = offset + length;
	return r;
}

int volume_stage(struct volume *volume, struct volume_staged *staged, uint64_t offset,
	const void *bytes, size_t length)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, length};
	struct staging staging = {.iov = &iov,
		.iov_count = 1,
		.flags = !offset && length == staged->size ? APPEND_PACKED : 0,
		.limit = UINT64_MAX};
	struct stage *stage;

	if (staged->new.type != VOLUME_FILE || staged->size > VOLUME_SIZE_MAX ||
		offset > staged->size || length > staged->size - offset)
		return -EINVAL;
	if (!volume_may_change(volume))
		return -EROFS;
	stage = stage_of(volume, staged);
	if (!stage)
		return -ENOMEM;
	if (staged->size <= VOLUME_INLINE_MAX)
		return stage_inline(volume, stage->overlay, (size_t)offset, bytes, length);
	staging.lane = &stage->lane;
	staging.overlay = stage->overlay;
	return data_stage(volume, &staging, offset, length);
}

void volume_staged_free(struct volume *volume, struct volume_staged *staged)
{
	struct stage *stage = staged->stage;

	if (!stage)
		return;
	overlay_drop(volume, stage->overlay);
	lane_leave(volume, &stage->lane);
	free(stage);
	staged->stage = NULL;
}

/* --- settling --------------------------------------------------------------------------------- */

static const struct overlay *overlay_of(const struct volume_staged *staged)
{
	return staged->stage ? staged->stage->overlay : NULL;
}

static const struct overlay *staged_overlay(const void *staged, unsigned i)
{
	return overlay_of((const struct volume_staged *)staged + i);
}

static void settle(struct volume *volume, struct volume_staged *staged, unsigned count)
{
	if (!overlays_settle(volume, staged_overlay, staged, count))
		return;
	for (unsigned i = 0; i < count; i++) {
		const struct overlay *overlay = overlay_of(&staged[i]);
		int r = overlay ? pool_settle(volume->pool, overlay->extents, overlay->count) : 0;

		if (r)
			staged[i].status = r;
	}
}

/* --- creating --------------------------------------------------------------------------------- */

static size_t cost(const struct volume_staged *staged)
{
	const struct overlay *overlay = overlay_of(staged);
	size_t bytes = COST_FILE;

	if (overlay)
		bytes += overlay->count * COST_PIECE + overlay->length;
	if (staged->new.target)
		bytes += strlen(staged->new.target);
	for (unsigned i = 0; i < staged->xattr_count; i++)
		bytes += COST_PIECE + strlen(staged->xattrs[i].name) + staged->xattrs[i].length;
	return bytes;
}

static int check(struct change *change, const struct volume_staged *staged, struct inode *parent)
{
	struct entry entry;
	int r = directory_get(change, staged->dir, parent);

	if (!r)
		r = entry_get(change->volume, change->txn, staged->dir, staged->name, &entry);
	if (r == -ENOENT)
		return staged->size > VOLUME_SIZE_MAX ? -EFBIG : 0;
	return r ? r : -EEXIST;
}

/* All rows of one file. */
static int create(struct change *change, struct volume_staged *staged, struct inode *parent)
{
	const struct overlay *overlay = overlay_of(staged);
	struct progress progress = {0};
	struct inode inode;
	int r = entry_make(change, parent, staged->name, &staged->new, &inode);

	if (r)
		return r;
	staged->ino = inode.ino;
	r = overlay ? overlay_apply(change, &inode, overlay, &progress) : 1;
	if (r != 1)
		return r ? r : -E2BIG;
	if (inode.type == VOLUME_FILE)
		inode.size = staged->size;
	r = 0;
	for (unsigned i = 0; !r && i < staged->xattr_count; i++)
		r = xattr_put(change, &inode, &staged->xattrs[i], VOLUME_XATTR_CREATE);
	return r ? r : inode_add(change, &inode);
}

/* A file that has its rows is the environment's. */
static void created(struct volume *volume, struct volume_staged *staged)
{
	staged->status = 0;
	if (!staged->stage)
		return;
	overlay_free(volume, staged->stage->overlay);
	staged->stage->overlay = NULL;
	volume_staged_free(volume, staged);
}

/* One transaction from *from on, of at most `most` files; *to: where it stopped. */
static int create_some(struct change *change, struct volume_staged *staged, unsigned count,
	unsigned from, unsigned most, unsigned *to)
{
	unsigned i;

	for (i = from; i < count && i - from < most; i++) {
		struct inode parent;
		int r;

		if (staged[i].status != -ECANCELED)
			continue;
		if (i > from && txn_room(change->txn) < cost(&staged[i]) + ROOM_LOW)
			break;
		r = check(change, &staged[i], &parent);
		if (r) {
			staged[i].status = r;
			continue;
		}
		r = create(change, &staged[i], &parent);
		if (r) {
			*to = i + 1;
			return r;
		}
		staged[i].status = -EINPROGRESS;
	}
	*to = i;
	return 0;
}

static void settle_status(
	struct volume *volume, struct volume_staged *staged, unsigned from, unsigned to, bool done)
{
	for (unsigned i = from; i < to; i++) {
		if (staged[i].status != -EINPROGRESS)
			continue;
		staged[i].status = -ECANCELED;
		if (done)
			created(volume, &staged[i]);
	}
}

/* A transaction that fails is tried again file by file; then the failure is the file's. */
static int create_step(struct volume *volume, struct volume_staged *staged, unsigned count,
	unsigned *from, unsigned *most, uint64_t *lsn)
{
	struct change change;
	unsigned to = *from;
	uint64_t number;
	int r = change_begin(volume, &change);

	if (r)
		return r;
	r = create_some(&change, staged, count, *from, *most, &to);
	r = change_finish(&change, r, &number);
	settle_status(volume, staged, *from, to, !r);
	if (r && *most > 1) {
		*most = 1;
		return 0;
	}
	if (r)
		staged[*from].status = r;
	else if (number)
		*lsn = number;
	*from = r ? *from + 1 : to;
	return 0;
}

int volume_stage_commit(
	struct volume *volume, struct volume_staged *staged, unsigned count, uint64_t *lsn)
{
	unsigned from = 0, most = count;
	uint64_t last = 0;
	int r = 0;

	for (unsigned i = 0; i < count; i++)
		staged[i].status = -ECANCELED;
	settle(volume, staged, count);
	while (!r && from < count)
		r = create_step(volume, staged, count, &from, &most, &last);
	*lsn = last;
	return r;
}
