/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Inodes: their rows, and attributes as callers see them, which include pending writes. */
#include "volume/internal.h"

#include <errno.h>
#include <sys/stat.h>

#include "common/log.h"

int row_is_bad(struct volume *volume, enum row_letter letter, uint64_t ino)
{
	log_error("volume %s: row %c of inode %llu cannot be decoded", volume->row.name, letter,
		(unsigned long long)ino);
	return -EIO;
}

int inode_get(struct volume *volume, struct txn *txn, uint64_t ino, struct inode *inode)
{
	struct bytes row;
	struct key key;
	int r = txn_get(txn, volume->env, key_inode(&key, ROW_INODE, ino), &row);

	if (r)
		return r == -ENOENT ? -ESTALE : r;
	return inode_decode(row, ino, inode) ? row_is_bad(volume, ROW_INODE, ino) : 0;
}

int inode_put(struct change *change, const struct inode *inode)
{
	uint8_t row[ROW_SMALL];
	struct key key;

	touched_note(&change->touched, inode);
	return change_put(
		change, key_inode(&key, ROW_INODE, inode->ino), row, inode_encode(inode, row));
}

int inode_add(struct change *change, const struct inode *inode)
{
	uint8_t row[ROW_SMALL];
	struct key key;
	int r;

	touched_note(&change->touched, inode);
	r = change_add(
		change, key_inode(&key, ROW_INODE, inode->ino), row, inode_encode(inode, row));

	return r == -EEXIST ? row_is_bad(change->volume, ROW_HEADER, inode->ino) : r;
}

int inode_get_directory(struct volume *volume, struct txn *txn, uint64_t ino, struct inode *inode)
{
	int r = inode_get(volume, txn, ino, inode);

	if (r)
		return r;
	return inode->type == VOLUME_DIRECTORY ? 0 : -ENOTDIR;
}

int directory_get(struct change *change, uint64_t ino, struct inode *inode)
{
	if (!change->touched.count && recent_get(&change->volume->recent, ino, inode))
		return 0;
	return inode_get_directory(change->volume, change->txn, ino, inode);
}

int64_t volume_time(struct timespec time)
{
	const int64_t second = 1000000000, furthest = INT64_MAX / second - 1;

	if (time.tv_sec > furthest)
		return furthest * second;
	if (time.tv_sec < -furthest)
		return -furthest * second;
	return time.tv_sec * second + time.tv_nsec;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t whole_blocks(uint64_t bytes)
{
	return (bytes + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
}

void inode_show(const struct inode *inode, struct volume_attributes *attributes)
{
	*attributes = (struct volume_attributes){
		.ino = inode->ino,
		.type = inode->type,
		.mode = inode->mode,
		.uid = inode->uid,
		.gid = inode->gid,
		.nlink = inode->nlink,
		.rdev = inode->rdev,
		.size = inode->size,
		.used = whole_blocks(least(inode->bytes, least(inode->size, inode->trim))),
		.atime = inode->atime,
		.mtime = inode->mtime,
		.ctime = inode->ctime,
		.btime = inode->btime,
		.change = inode->change,
		.parent = inode->parent,
	};
}

static void show_pending(const struct overlay *overlay, struct volume_attributes *attributes)
{
	uint64_t size = overlay ? overlay_size(overlay) : 0;

	if (size > attributes->size)
		attributes->size = size;
	if (!overlay || !overlay->touched)
		return;
	attributes->mtime = overlay->time;
	if (overlay->time > attributes->ctime)
		attributes->ctime = overlay->time;
}

/* What pending holes take from what is committed. */
static uint64_t hidden_bytes(const struct overlay *overlay)
{
	return overlay ? overlay->hidden : 0;
}

/* Of its pieces that are not cut off. What they replace is not looked for. */
static uint64_t pending_bytes(const struct overlay *overlay)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; overlay && i < overlay->count; i++) {
		uint64_t at = overlay->at[i];

		if (at < overlay->limit && !is_hole(&overlay->extents[i]))
			bytes += least(overlay->extents[i].length, overlay->limit - at);
	}
	return bytes;
}

static uint64_t with_pending(uint64_t bytes, const struct overlay *overlay)
{
	return bytes - least(hidden_bytes(overlay), bytes) + pending_bytes(overlay);
}

static uint64_t bytes_without_active(const struct volume_file *file, const struct inode *inode)
{
	return with_pending(
		inode->extents ? least(inode->bytes, inode->trim) : 0, file->committing);
}

/* As a commit and a trim will leave it: nothing behind `trim`, and of a small file the newest
 * bytes alone. A file whose first pieces are pending has them instead of its inline bytes. */
static uint64_t file_bytes(const struct volume_file *file, const struct inode *inode)
{
	const struct overlay *small = file->active;

	if (!small || !small->bytes)
		small = file->committing;
	if (!file->extents)
		return small && small->bytes ? overlay_length(small) : inode->bytes;
	return with_pending(file->applying ? file->bytes_before : bytes_without_active(file, inode),
		file->active);
}

void file_note_applying(struct volume_file *file, const struct inode *before)
{
	file->bytes_before = bytes_without_active(file, before);
	file->applying = true;
}

void file_show(const struct volume_file *file, const struct inode *inode,
	struct volume_attributes *attributes)
{
	uint64_t bytes;

	inode_show(inode, attributes);
	if (!file)
		return;
	show_pending(file->committing, attributes);
	show_pending(file->active, attributes);
	if (file->change > attributes->change)
		attributes->change = file->change;
	bytes = file_bytes(file, inode);
	attributes->used = whole_blocks(least(bytes, attributes->size));
}

int inode_load(struct volume *volume, uint64_t ino, struct inode *inode)
{
	struct txn *view;
	int r;

	if (recent_get(&volume->recent, ino, inode))
		return 0;
	r = view_begin(volume->env, &view);
	if (r)
		return r;
	r = inode_get(volume, view, ino, inode);
	txn_abort(view);
	return r;
}

int volume_getattr(struct volume *volume, uint64_t ino, struct volume_attributes *attributes)
{
	struct volume_file *file = file_find(volume, ino);
	struct inode inode;
	int r;

	if (file)
		pthread_mutex_lock(&file->lock);
	r = inode_load(volume, ino, &inode);
	if (!r)
		file_show(file, &inode, attributes);
	if (file)
		pthread_mutex_unlock(&file->lock);
	volume_file_put(file);
	return r;
}

bool mode_is_plain(uint32_t mode)
{
	const uint32_t group = S_ISGID | S_IXGRP;

	return !(mode & S_ISUID) && (mode & group) != group;
}

void inode_apply(struct inode *inode, const struct volume_set *set, int64_t now)
{
	unsigned mask = set->mask;

	if (mask & VOLUME_SET_MODE)
		inode->mode = set->mode & 07777;
	if (mask & VOLUME_SET_UID)
		inode->uid = set->uid;
	if (mask & VOLUME_SET_GID)
		inode->gid = set->gid;
	if (mask & (VOLUME_SET_ATIME | VOLUME_SET_ATIME_NOW))
		inode->atime = mask & VOLUME_SET_ATIME_NOW ? now : set->atime;
	if (mask & (VOLUME_SET_MTIME | VOLUME_SET_MTIME_NOW))
		inode->mtime = mask & VOLUME_SET_MTIME_NOW ? now : set->mtime;
	if (mask & VOLUME_SET_BTIME)
		inode->btime = set->btime;
}

/* The explicit time stands, not that of a write before it. */
static void forget_times(struct volume_file *file)
{
	if (file->active)
		file->active->touched = false;
	if (file->committing)
		file->committing->touched = false;
}

/* The attributes of an inode held by `change`, into its row. */
static int set_rows(struct change *change, struct inode *inode, const struct volume_set *set)
{
	bool kill = set->mask & VOLUME_SET_KILL && !mode_is_plain(inode->mode);
	int r = 0;

	if (set->mask == VOLUME_SET_KILL && !kill)
		return 0;
	if (kill)
		inode->mode &= ~(uint32_t)(inode->mode & S_IXGRP ? S_ISUID | S_ISGID : S_ISUID);
	if (set->mask & VOLUME_SET_SIZE) {
		r = truncate_inode(change, inode, set->size);
		inode->mtime = change->now;
	}
	if (r)
		return r;
	inode_apply(inode, set, change->now);
	change_touch(change, inode);
	return inode_put(change, inode);
}

int set_check(enum volume_type type, const struct volume_set *set)
{
	if (!(set->mask & VOLUME_SET_SIZE))
		return 0;
	if (type != VOLUME_FILE)
		return type == VOLUME_DIRECTORY ? -EISDIR : -EINVAL;
	return set->size > VOLUME_SIZE_MAX ? -EFBIG : 0;
}

/* After the commit, under the file's lock. */
static void set_file(
	struct volume_file *file, const struct inode *inode, const struct volume_set *set)
{
	if (set->mask & (VOLUME_SET_SIZE | VOLUME_SET_MTIME | VOLUME_SET_MTIME_NOW))
		forget_times(file);
	if (set->mask & VOLUME_SET_SIZE)
		truncate_file(file, inode, set->size);
	file->plain = mode_is_plain(inode->mode);
}

/* Whether the file must be in memory from before the change of its row on, so that nobody loads
 * what the row was and keeps it. */
static bool set_needs_file(const struct inode *inode, const struct volume_set *set)
{
	return inode->type == VOLUME_FILE &&
	       set->mask & (VOLUME_SET_SIZE | VOLUME_SET_MODE | VOLUME_SET_KILL);
}

int volume_setattr(struct volume *volume, uint64_t ino, const struct volume_set *set,
	struct volume_attributes *after, uint64_t *lsn)
{
	bool resize = set->mask & VOLUME_SET_SIZE;
	struct volume_file *file = NULL;
	struct change change;
	struct inode inode;
	int r = change_begin(volume, &change);

	if (r)
		return r;
	r = inode_get(volume, change.txn, ino, &inode);
	if (!r)
		r = set_check(inode.type, set);
	if (!r)
		r = change_hold(&change, &inode, set_needs_file(&inode, set), &file);
	if (!r && file && file->gone)
		r = -ESTALE;
	if (!r)
		r = set_rows(&change, &inode, set);
	r = change_end(&change, r, lsn);
	if (!r && file)
		set_file(file, &inode, set);
	if (!r && after)
		file_show(file, &inode, after);
	change_release(&change);
	if (resize)
		background_kick(volume);
	return r;
}
