/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Changes of names: link, unlink, rename; make.c has make. Each is one transaction over the rows of
 * the entries, the inodes they name, the directories and the header.
 */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

/* --- entries --------------------------------------------------------------------------------- */

int entry_add(struct change *change, struct inode *dir, const char *name, const struct inode *inode)
{
	struct entry entry = {inode->type, inode->ino, change->header.next_cookie++, ""};
	uint8_t row[ROW_LARGE];
	struct key key;
	size_t length;
	int r = name_check(name, &length);

	if (r)
		return r;
	change->header_changed = true;
	dir->size++;
	dir->mtime = change->now;
	memcpy(entry.name, name, length + 1);
	r = change_add(change, key_name(&key, ROW_NAME, dir->ino, name, length), row,
		entry_encode_name(&entry, row));
	if (r)
		return r;
	return change_put(change, key_pair(&key, ROW_COOKIE, dir->ino, entry.cookie), row,
		entry_encode_cookie(&entry, row));
}

static int entry_remove(
	struct change *change, struct inode *dir, const char *name, const struct entry *entry)
{
	struct key key;
	int r = change_delete(change, key_name(&key, ROW_NAME, dir->ino, name, strlen(name)));

	if (r)
		return r;
	dir->size -= dir->size > 0;
	dir->mtime = change->now;
	return change_delete(change, key_pair(&key, ROW_COOKIE, dir->ino, entry->cookie));
}

int inode_put_touched(struct change *change, struct inode *inode)
{
	change_touch(change, inode);
	return inode_put(change, inode);
}

static bool directory_is_empty(struct change *change, uint64_t dir)
{
	struct bytes found, row;
	uint64_t number;
	struct key key;
	int r = txn_seek(
		change->txn, change->volume->env, key_pair(&key, ROW_COOKIE, dir, 0), &found, &row);

	return r == -ENOENT ||
	       (!r && !(key_is_pair(found, ROW_COOKIE, &number, &(uint64_t){0}) && number == dir));
}

/* --- link ------------------------------------------------------------------------------------ */

static int link_rows(struct change *change, struct inode *inode, uint64_t dir, const char *name)
{
	struct volume *volume = change->volume;
	struct inode parent;
	struct entry entry;
	int r = directory_get(change, dir, &parent);

	if (r)
		return r;
	r = entry_get(volume, change->txn, dir, name, &entry);
	if (r != -ENOENT)
		return r ? r : -EEXIST;
	if (inode->nlink >= VOLUME_LINK_MAX)
		return -EMLINK;
	inode->nlink++;
	r = entry_add(change, &parent, name, inode);
	if (!r)
		r = inode_put_touched(change, &parent);
	return r ? r : inode_put_touched(change, inode);
}

int volume_link(struct volume *volume, uint64_t ino, uint64_t dir, const char *name,
	struct volume_attributes *after, uint64_t *lsn)
{
	struct volume_file *file = NULL;
	struct change change;
	struct inode inode;
	int r = change_begin(volume, &change);

	if (r)
		return r;
	r = inode_get(volume, change.txn, ino, &inode);
	if (!r && inode.type == VOLUME_DIRECTORY)
		r = -EPERM;
	if (!r && !inode.nlink)
		r = -ESTALE;
	if (!r)
		r = change_hold(&change, &inode, false, &file);
	if (!r)
		r = link_rows(&change, &inode, dir, name);
	r = change_end(&change, r, lsn);
	if (!r && after)
		file_show(file, &inode, after);
	change_release(&change);
	return r;
}

/* --- unlink ---------------------------------------------------------------------------------- */

/* An inode loses a name. */
static int drop_name(struct change *change, struct inode *inode, struct nameless *nameless)
{
	if (inode->type == VOLUME_DIRECTORY || inode->nlink <= 1)
		inode->nlink = 0;
	else
		inode->nlink--;
	if (!inode->nlink)
		return nameless_begin(change, inode, nameless);
	return inode_put_touched(change, inode);
}

static int unlink_check(struct change *change, const struct inode *inode, enum volume_unlink what)
{
	if (inode->type != VOLUME_DIRECTORY)
		return what == VOLUME_UNLINK_DIRECTORY ? -ENOTDIR : 0;
	if (what == VOLUME_UNLINK_FILE)
		return -EISDIR;
	return directory_is_empty(change, inode->ino) ? 0 : -ENOTEMPTY;
}

static int unlink_rows(struct change *change, uint64_t dir, const char *name,
	enum volume_unlink what, struct nameless *nameless)
{
	struct volume *volume = change->volume;
	struct inode parent, inode;
	struct entry entry;
	int r = directory_get(change, dir, &parent);

	if (!r)
		r = entry_get(volume, change->txn, dir, name, &entry);
	if (r)
		return r;
	r = inode_get(volume, change->txn, entry.ino, &inode);
	if (r)
		return r == -ESTALE ? row_is_bad(volume, ROW_INODE, entry.ino) : r;
	r = unlink_check(change, &inode, what);
	if (!r)
		r = entry_remove(change, &parent, name, &entry);
	if (r)
		return r;
	parent.nlink -= inode.type == VOLUME_DIRECTORY;
	r = inode_put_touched(change, &parent);
	return r ? r : drop_name(change, &inode, nameless);
}

int volume_unlink(struct volume *volume, uint64_t dir, const char *name, enum volume_unlink what,
	uint64_t *lsn)
{
	struct nameless nameless = {0};
	struct change change;
	int r = change_begin(volume, &change);

	if (r)
		return r;
	r = unlink_rows(&change, dir, name, what, &nameless);
	r = change_end(&change, r, lsn);
	if (!r)
		nameless_end(&nameless);
	change_release(&change);
	background_kick(volume);
	return r;
}

/* --- rename ---------------------------------------------------------------------------------- */

struct rename {
	struct change change;
	const char *from_name, *to_name;
	struct inode from, other, *to; /* directories; `to` is &from or &other */
	struct inode moved, replaced;
	struct entry source, target;
	bool replaces;
	struct nameless nameless;
};

static int rename_find(struct rename *rename, uint64_t from_dir, uint64_t to_dir)
{
	struct volume *volume = rename->change.volume;
	struct txn *txn = rename->change.txn;
	int r = directory_get(&rename->change, from_dir, &rename->from);

	rename->to = from_dir == to_dir ? &rename->from : &rename->other;
	if (!r && from_dir != to_dir)
		r = directory_get(&rename->change, to_dir, &rename->other);
	if (!r)
		r = entry_get(volume, txn, from_dir, rename->from_name, &rename->source);
	if (!r)
		r = inode_get(volume, txn, rename->source.ino, &rename->moved);
	if (r)
		return r;
	r = entry_get(volume, txn, to_dir, rename->to_name, &rename->target);
	rename->replaces = !r;
	if (r)
		return r == -ENOENT ? 0 : r;
	return inode_get(volume, txn, rename->target.ino, &rename->replaced);
}

/* -EINVAL when `to` is the moved directory or lies below it. */
static int rename_check_loop(struct rename *rename)
{
	struct change *change = &rename->change;
	struct inode at = *rename->to;

	for (uint64_t steps = 0; steps <= change->header.inodes; steps++) {
		int r;

		if (at.ino == rename->moved.ino)
			return -EINVAL;
		if (at.ino == VOLUME_ROOT)
			return 0;
		r = inode_get_directory(change->volume, change->txn, at.parent, &at);
		if (r)
			return r;
	}
	return row_is_bad(change->volume, ROW_INODE, at.ino);
}

static int rename_check(struct rename *rename)
{
	bool directory = rename->moved.type == VOLUME_DIRECTORY;
	int r = directory ? rename_check_loop(rename) : 0;

	if (r || !rename->replaces)
		return r;
	if (directory && rename->replaced.type != VOLUME_DIRECTORY)
		return -ENOTDIR;
	if (!directory && rename->replaced.type == VOLUME_DIRECTORY)
		return -EISDIR;
	if (directory && !directory_is_empty(&rename->change, rename->replaced.ino))
		return -ENOTEMPTY;
	return 0;
}

static int rename_replace(struct rename *rename)
{
	int r;

	if (!rename->replaces)
		return 0;
	r = entry_remove(&rename->change, rename->to, rename->to_name, &rename->target);
	if (r)
		return r;
	rename->to->nlink -= rename->replaced.type == VOLUME_DIRECTORY;
	return drop_name(&rename->change, &rename->replaced, &rename->nameless);
}

static int rename_move(struct rename *rename)
{
	struct change *change = &rename->change;
	int r = entry_remove(change, &rename->from, rename->from_name, &rename->source);

	if (!r)
		r = entry_add(change, rename->to, rename->to_name, &rename->moved);
	if (r)
		return r;
	if (rename->moved.type == VOLUME_DIRECTORY) {
		rename->from.nlink--;
		rename->to->nlink++;
		rename->moved.parent = rename->to->ino;
	}
	r = inode_put_touched(change, &rename->from);
	if (!r && rename->to != &rename->from)
		r = inode_put_touched(change, rename->to);
	return r ? r : inode_put_touched(change, &rename->moved);
}

static int rename_rows(struct rename *rename, uint64_t from_dir, uint64_t to_dir)
{
	int r = rename_find(rename, from_dir, to_dir);

	if (r || (rename->replaces && rename->target.ino == rename->source.ino))
		return r;
	r = rename_check(rename);
	if (!r)
		r = rename_replace(rename);
	return r ? r : rename_move(rename);
}

int volume_rename(struct volume *volume, uint64_t from_dir, const char *from_name, uint64_t to_dir,
	const char *to_name, uint64_t *lsn)
{
	struct rename rename = {.from_name = from_name, .to_name = to_name};
	int r = change_begin(volume, &rename.change);

	if (r)
		return r;
	r = rename_rows(&rename, from_dir, to_dir);
	r = change_end(&rename.change, r, lsn);
	if (!r)
		nameless_end(&rename.nameless);
	change_release(&rename.change);
	background_kick(volume);
	return r;
}
