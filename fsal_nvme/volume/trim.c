/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Files cut short and files deleted: what may take more than one transaction. format.h has the
 * marks that the first one leaves, and what is done with them after a crash.
 */
#include "volume/internal.h"

#include <errno.h>

#include "common/log.h"

static int mark_put(struct change *change, enum row_letter letter, uint64_t ino)
{
	uint8_t row[ROW_SMALL];
	struct key key;

	return change_put(change, key_inode(&key, letter, ino), row, mark_encode(row));
}

static int mark_delete(struct change *change, enum row_letter letter, uint64_t ino)
{
	struct key key;

	return change_delete(change, key_inode(&key, letter, ino));
}

/* --- cut short ------------------------------------------------------------------------------- */

int trim_step(struct change *change, struct inode *inode)
{
	unsigned budget = STEP_EXTENTS;
	uint64_t done;
	int r = extents_cut(change, inode, inode->trim, VOLUME_SIZE_MAX, &budget, &done);

	if (r)
		return r;
	if (done < VOLUME_SIZE_MAX) {
		atomic_store(&change->volume->trims, true);
		return mark_put(change, ROW_TRIM, inode->ino);
	}
	inode->trim = TRIM_NONE;
	r = mark_delete(change, ROW_TRIM, inode->ino);
	return r ? r : 1;
}

static int truncate_inline(struct change *change, struct inode *inode, uint64_t size)
{
	uint8_t bytes[VOLUME_INLINE_MAX];
	size_t length;
	int r = inline_get(change->volume, change->txn, inode->ino, bytes, &length);

	return r || length <= size ? r : inline_put(change, inode, bytes, (size_t)size);
}

int truncate_inode(struct change *change, struct inode *inode, uint64_t size)
{
	int r = 0;

	if (size < inode->size && !inode->extents)
		r = truncate_inline(change, inode, size);
	if (size < inode->size && inode->extents) {
		inode->trim = size < inode->trim ? size : inode->trim;
		r = trim_step(change, inode);
	}
	if (r < 0)
		return r;
	inode->size = size;
	if (!size && inode->trim == TRIM_NONE)
		inode->extents = false;
	return 0;
}

void truncate_file(struct volume_file *file, const struct inode *inode, uint64_t size)
{
	struct overlay *committing = file->committing;

	file->sequence++;
	if (file->active)
		overlay_truncate(file->volume, file->active, size);
	if (committing && committing->limit > size)
		committing->limit = size;
	if (!size && !inode->extents)
		file->extents = false;
}

/* One transaction of a file's trim; 1: done. */
static int trim_file_step(struct volume *volume, uint64_t ino)
{
	struct change change;
	struct inode inode;
	int r = change_begin(volume, &change), step = 1;

	if (r)
		return r;
	r = inode_get(volume, change.txn, ino, &inode);
	if (!r && inode.trim != TRIM_NONE) {
		step = trim_step(&change, &inode);
		r = step < 0 ? step : inode_put(&change, &inode);
	} else if (!r || r == -ESTALE) {
		r = mark_delete(&change, ROW_TRIM, ino);
	}
	r = change_finish(&change, r, NULL);
	if (!r && step)
		volume_moved(volume, ino);
	return r ? r : step;
}

/* The first marked inode from *ino on; -ENOENT. */
static int next_mark(struct volume *volume, enum row_letter letter, uint64_t *ino)
{
	struct bytes found, row;
	struct txn *view;
	struct key key;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = txn_seek(view, volume->env, key_inode(&key, letter, *ino), &found, &row);
	if (!r && !key_is_inode(found, letter, ino))
		r = -ENOENT;
	txn_abort(view);
	return r;
}

/* Has `step` work on each marked inode until it returns 1, or -EBUSY: not now. One that is broken
 * does not keep the others; what fails is to be done again. */
static int each_mark(struct volume *volume, enum row_letter letter,
	int (*step)(struct volume *volume, uint64_t ino), _Atomic bool *again)
{
	uint64_t ino = 0;
	int result = 0, r;

	while (!(r = next_mark(volume, letter, &ino))) {
		while (!(r = step(volume, ino)))
			commit_run(volume);
		if (r < 0 && r != -EBUSY)
			result = r;
		if (r < 0 && r != -EBUSY && r != -EIO)
			break;
		ino++;
	}
	if (r < 0 && r != -ENOENT)
		result = r;
	if (result)
		atomic_store(again, true);
	return result;
}

int trim_all(struct volume *volume)
{
	if (!atomic_exchange(&volume->trims, false))
		return 0;
	return each_mark(volume, ROW_TRIM, trim_file_step, &volume->trims);
}

/* --- deleted --------------------------------------------------------------------------------- */

/* Takes the rows of an inode away, extents first; 1: all, 0: some, and the inode's row is to be
 * put. */
static int delete_rows(struct change *change, struct inode *inode)
{
	unsigned budget = STEP_EXTENTS;
	uint64_t ino = inode->ino, done = VOLUME_SIZE_MAX;
	struct key key;
	int r = inode->extents ? extents_cut(change, inode, 0, VOLUME_SIZE_MAX, &budget, &done) : 0;

	if (r || done < VOLUME_SIZE_MAX)
		return r;
	r = xattrs_delete(change, inode);
	if (r <= 0)
		return r;
	r = 0;
	if (inode->type == VOLUME_FILE && !inode->extents)
		r = inline_put(change, inode, NULL, 0);
	if (!r && inode->type == VOLUME_SYMLINK)
		r = change_delete(change, key_inode(&key, ROW_TARGET, ino));
	if (!r && inode->trim != TRIM_NONE)
		r = mark_delete(change, ROW_TRIM, ino);
	if (!r)
		r = change_delete(change, key_inode(&key, ROW_INODE, ino));
	if (r)
		return r;
	touched_note(&change->touched, inode);
	change->header.inodes--;
	change->header_changed = true;
	return 1;
}

int nameless_begin(struct change *change, struct inode *inode, struct nameless *nameless)
{
	bool is_file = inode->type == VOLUME_FILE;
	int r = change_hold(change, inode, is_file, &nameless->file);

	if (r)
		return r;
	if (!is_file || !nameless->file->opens) {
		r = delete_rows(change, inode);
		if (!r && !is_file) /* more attributes than were ever accepted */
			r = row_is_bad(change->volume, ROW_ATTRIBUTE, inode->ino);
		nameless->gone = r == 1;
		if (r)
			return r < 0 ? r : 0;
	}
	r = mark_put(change, ROW_ORPHAN, inode->ino);
	if (r)
		return r;
	change_touch(change, inode);
	return inode_put(change, inode);
}

void nameless_end(struct nameless *nameless)
{
	struct volume_file *file = nameless->file;

	if (!file)
		return;
	file->nameless = true;
	file->gone = nameless->gone;
	if (file->opens)
		return;
	file_forget(file);
	if (!file->gone)
		atomic_store(&file->volume->orphans, true);
}

/* -EBUSY: it is open. 1: its rows are gone; 0: some of them, put back. */
static int reclaim_rows(struct change *change, uint64_t ino, struct volume_file **file)
{
	struct inode inode;
	int r = inode_get(change->volume, change->txn, ino, &inode), done;

	if (r == -ESTALE || (!r && inode.nlink)) {
		r = mark_delete(change, ROW_ORPHAN, ino);
		return r ? r : 1;
	}
	if (!r)
		r = change_hold(change, &inode, true, file);
	if (!r && (*file)->opens)
		r = -EBUSY;
	if (r)
		return r;
	done = delete_rows(change, &inode);
	if (!done)
		r = inode_put(change, &inode);
	else if (done == 1)
		r = mark_delete(change, ROW_ORPHAN, ino);
	return r ? r : done;
}

/* One transaction; 1: the inode is gone. */
static int reclaim_step(struct volume *volume, uint64_t ino)
{
	struct volume_file *file = NULL;
	struct change change;
	int r = change_begin(volume, &change), done;

	if (r)
		return r;
	done = reclaim_rows(&change, ino, &file);
	r = change_end(&change, done < 0 ? done : 0, NULL);
	if (!r && file) {
		file->gone = done == 1;
		file->nameless = true;
		file_forget(file);
	}
	change_release(&change);
	return r ? r : done;
}

void reclaim(struct volume *volume, uint64_t ino)
{
	int r = reclaim_step(volume, ino);

	if (r == 1 || r == -EBUSY)
		return;
	/* What failed is tried again as well: the inode is marked. */
	atomic_store(&volume->orphans, true);
	background_kick(volume);
}

int reclaim_all(struct volume *volume)
{
	if (!atomic_exchange(&volume->orphans, false))
		return 0;
	return each_mark(volume, ROW_ORPHAN, reclaim_step, &volume->orphans);
}
