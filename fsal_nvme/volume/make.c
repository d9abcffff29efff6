/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A new inode under a new name, in one transaction. */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

static int put_target(struct change *change, struct inode *inode, const char *target)
{
	size_t length = target ? strlen(target) : 0;
	uint8_t row[ROW_LARGE];
	struct key key;

	if (!length)
		return -EINVAL;
	if (length > VOLUME_TARGET_MAX)
		return -ENAMETOOLONG;
	inode->size = length;
	return change_put(change, key_inode(&key, ROW_TARGET, inode->ino), row,
		blob_encode(target, length, row));
}

static void inode_begin(struct change *change, struct inode *inode, const struct inode *parent,
	const struct volume_new *new)
{
	bool directory = new->type == VOLUME_DIRECTORY;

	*inode = (struct inode){
		.ino = change->header.next_ino++,
		.type = new->type,
		.nlink = directory ? 2 : 1,
		.parent = directory ? parent->ino : 0,
		.atime = change->now,
		.mtime = change->now,
		.ctime = change->now,
		.btime = change->now,
		.change = pool_change(change->volume->pool),
		.trim = TRIM_NONE,
	};
	if (new->type == VOLUME_CHARACTER || new->type == VOLUME_BLOCK)
		inode->rdev = new->rdev;
	if (new->set.mask & VOLUME_SET_SIZE)
		inode->size = new->set.size;
	inode_apply(inode, &new->set, change->now);
	change->header.inodes++;
	change->header_changed = true;
}

int entry_make(struct change *change, struct inode *parent, const char *name,
	const struct volume_new *new, struct inode *inode)
{
	int r;

	if (new->type < VOLUME_FILE || new->type > VOLUME_BLOCK)
		return -EINVAL;
	r = set_check(new->type, &new->set);
	if (r)
		return r;
	inode_begin(change, inode, parent, new);
	if (new->type == VOLUME_DIRECTORY)
		parent->nlink++;
	r = entry_add(change, parent, name, inode);
	if (!r && new->type == VOLUME_SYMLINK)
		r = put_target(change, inode, new->target);
	return r ? r : inode_put_touched(change, parent);
}

struct making {
	struct change change;
	struct inode parent, inode;
	struct volume_file *file; /* held; or NULL */
};

/* -EEXIST: inode.ino is what is there. */
static int find_there(struct making *making, const char *name)
{
	struct change *change = &making->change;
	struct entry entry;
	int r = entry_get(change->volume, change->txn, making->parent.ino, name, &entry);

	if (r)
		return r;
	making->inode.ino = entry.ino;
	return -EEXIST;
}

static int make(struct making *making, uint64_t dir, const char *name, const struct volume_new *new,
	bool open)
{
	struct change *change = &making->change;
	int r = directory_get(change, dir, &making->parent);

	if (r)
		return r;
	r = entry_make(change, &making->parent, name, new, &making->inode);
	if (r == -EEXIST)
		return find_there(making, name);
	if (!r)
		r = inode_add(change, &making->inode);
	if (!r && open && making->inode.type == VOLUME_FILE)
		r = change_hold(change, &making->inode, true, &making->file);
	return r;
}

/* The number of one that was not made will be given to another: who has got hold of it by a forged
 * handle finds nothing. */
static struct volume_file *file_made(struct volume_file *file, int status)
{
	if (file && status)
		file->gone = true;
	if (!file || file->gone)
		return NULL;
	file->opens++;
	file_ref(file);
	return file;
}

/* What had the name; it may be gone by now. */
static int show_there(struct volume *volume, uint64_t ino, struct volume_attributes *made)
{
	int r = volume_getattr(volume, ino, made);

	return !r ? -EEXIST : r == -ESTALE ? -EAGAIN : r;
}

int volume_make_open(struct volume *volume, uint64_t dir, const char *name,
	const struct volume_new *new, struct volume_attributes *made, struct volume_file **file,
	uint64_t *lsn)
{
	struct making making;
	int r = change_begin(volume, &making.change);

	if (file)
		*file = NULL;
	if (r)
		return r;
	making.file = NULL;
	r = make(&making, dir, name, new, file);
	r = change_end(&making.change, r, lsn);
	if (file)
		*file = file_made(making.file, r);
	change_release(&making.change);
	if (!r && made)
		inode_show(&making.inode, made);
	return r == -EEXIST && made ? show_there(volume, making.inode.ino, made) : r;
}

int volume_make(struct volume *volume, uint64_t dir, const char *name, const struct volume_new *new,
	struct volume_attributes *made, uint64_t *lsn)
{
	return volume_make_open(volume, dir, name, new, made, NULL, lsn);
}
