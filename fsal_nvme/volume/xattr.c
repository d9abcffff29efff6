/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Extended attributes of files and directories: a row each, and in the inode's row their number and
 * size. They go with the inode, in the transaction that takes its row; so their names, which are
 * the keys to be deleted, have a limit that a record holds.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAME_COST VOLUME_XATTR_NAME_COST

static int check_name(const char *name, size_t *length)
{
	*length = strlen(name);
	if (*length > VOLUME_NAME_MAX)
		return -ENAMETOOLONG;
	return *length ? 0 : -EINVAL;
}

static bool may_have(const struct inode *inode)
{
	return inode->type == VOLUME_FILE || inode->type == VOLUME_DIRECTORY;
}

/* -ENODATA; *value is valid until the next change. */
static int find(
	struct volume *volume, struct txn *txn, uint64_t ino, const char *name, struct bytes *value)
{
	struct bytes row;
	struct key key;
	size_t length;
	int r = check_name(name, &length);

	if (!r)
		r = txn_get(
			txn, volume->env, key_name(&key, ROW_ATTRIBUTE, ino, name, length), &row);
	if (r)
		return r == -ENOENT ? -ENODATA : r;
	return attribute_decode(row, value) ? row_is_bad(volume, ROW_ATTRIBUTE, ino) : 0;
}

/* --- looking --------------------------------------------------------------------------------- */

int volume_xattr_get(struct volume *volume, uint64_t ino, const char *name, void *value,
	size_t size, size_t *length)
{
	struct bytes found;
	struct inode inode;
	struct txn *view;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = inode_get(volume, view, ino, &inode);
	if (!r)
		r = find(volume, view, ino, name, &found);
	if (!r) {
		*length = found.length;
		if (size < found.length)
			r = -ERANGE;
		else if (found.length)
			memcpy(value, found.data, found.length);
	}
	txn_abort(view);
	return r;
}

static int each_name(struct volume *volume, struct txn *view, uint64_t ino, uint64_t from,
	bool (*each)(void *data, const char *name, size_t length), void *data, bool *eof)
{
	struct bytes found, row, name;
	struct key key;
	struct bytes at = key_inode(&key, ROW_ATTRIBUTE, ino);
	uint64_t number = 0, owner;
	int r;

	while (!(r = txn_seek(view, volume->env, at, &found, &row)) &&
		key_is_name(found, ROW_ATTRIBUTE, &owner, &name) && owner == ino) {
		if (number++ >= from && !each(data, name.data, name.length)) {
			*eof = false;
			return 0;
		}
		at = key_behind(&key, found);
	}
	*eof = true;
	return r == -ENOENT ? 0 : r;
}

int volume_xattr_list(struct volume *volume, uint64_t ino, uint64_t from,
	bool (*each)(void *data, const char *name, size_t length), void *data, bool *eof)
{
	struct inode inode;
	struct txn *view;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = inode_get(volume, view, ino, &inode);
	if (!r)
		r = each_name(volume, view, ino, from, each, data, eof);
	txn_abort(view);
	return r;
}

/* --- limits ---------------------------------------------------------------------------------- */

static int check_sums(uint64_t count, uint64_t names, uint64_t values)
{
	if (names + count * NAME_COST > VOLUME_XATTR_NAMES_MAX ||
		names + values > VOLUME_XATTR_BYTES_MAX)
		return -ENOSPC;
	return 0;
}

int volume_xattrs_check(const struct volume_xattr *xattrs, unsigned count)
{
	uint64_t names = 0, values = 0;
	size_t length;

	for (unsigned i = 0; i < count; i++) {
		int r = check_name(xattrs[i].name, &length);

		if (r)
			return r;
		if (xattrs[i].length > VOLUME_XATTR_VALUE_MAX)
			return -E2BIG;
		names += length;
		values += xattrs[i].length;
	}
	return check_sums(count, names, values);
}

/* Counts a new value, and the name where that is new too; an old one had `old` bytes. */
static int count_in(struct change *change, struct inode *inode, const struct volume_xattr *xattr,
	bool is_new, size_t old)
{
	uint64_t names = inode->xattr_names, values = inode->xattr_values;
	int r;

	if (!is_new && (!inode->xattrs || values < old))
		return row_is_bad(change->volume, ROW_ATTRIBUTE, inode->ino);
	if (is_new)
		names += strlen(xattr->name);
	values += xattr->length - old;
	r = check_sums((uint64_t)inode->xattrs + is_new, names, values);
	if (r)
		return r;
	inode->xattrs += is_new;
	inode->xattr_names = (uint32_t)names;
	inode->xattr_values = (uint32_t)values;
	return 0;
}

/* --- changing -------------------------------------------------------------------------------- */

static int put_row(struct change *change, uint64_t ino, const struct volume_xattr *xattr)
{
	uint8_t *row = malloc(ROW_ATTRIBUTE_HEAD + xattr->length);
	struct key key;
	int r;

	if (!row)
		return -ENOMEM;
	r = change_put(change, key_name(&key, ROW_ATTRIBUTE, ino, xattr->name, strlen(xattr->name)),
		row, attribute_encode(xattr->value, xattr->length, row));
	free(row);
	return r;
}

int xattr_put(struct change *change, struct inode *inode, const struct volume_xattr *xattr,
	enum volume_xattr_how how)
{
	struct bytes old = {0};
	int r = find(change->volume, change->txn, inode->ino, xattr->name, &old);
	bool is_new = r == -ENODATA;

	if (r && !is_new)
		return r;
	if (!is_new && how == VOLUME_XATTR_CREATE)
		return -EEXIST;
	if (is_new && how == VOLUME_XATTR_REPLACE)
		return -ENODATA;
	r = count_in(change, inode, xattr, is_new, old.length);
	return r ? r : put_row(change, inode->ino, xattr);
}

static int take(struct change *change, struct inode *inode, const char *name)
{
	size_t length = strlen(name);
	struct bytes old;
	struct key key;
	int r = find(change->volume, change->txn, inode->ino, name, &old);

	if (r)
		return r;
	if (!inode->xattrs || inode->xattr_names < length || inode->xattr_values < old.length)
		return row_is_bad(change->volume, ROW_ATTRIBUTE, inode->ino);
	inode->xattrs--;
	inode->xattr_names -= (uint32_t)length;
	inode->xattr_values -= (uint32_t)old.length;
	return change_delete(change, key_name(&key, ROW_ATTRIBUTE, inode->ino, name, length));
}

/* What lies there is believed as far as it goes: it is on its way out. */
static void uncount(struct inode *inode, size_t names, size_t values)
{
	inode->xattrs--;
	inode->xattr_names -= names < inode->xattr_names ? (uint32_t)names : inode->xattr_names;
	inode->xattr_values -=
		values < inode->xattr_values ? (uint32_t)values : inode->xattr_values;
}

int xattrs_delete(struct change *change, struct inode *inode)
{
	struct volume *volume = change->volume;
	struct bytes found, row, name;
	uint64_t owner;
	struct key key;
	int r = 0;

	while (inode->xattrs && !r) {
		size_t names, values;

		r = txn_seek(change->txn, volume->env, key_inode(&key, ROW_ATTRIBUTE, inode->ino),
			&found, &row);
		if (r == -ENOENT || (!r && (!key_is_name(found, ROW_ATTRIBUTE, &owner, &name) ||
						   owner != inode->ino))) {
			inode->xattrs = 0;
			return 1;
		}
		if (r)
			return r;
		if (!change_has_room(change))
			return 0;
		names = name.length;
		values = row.length;
		values -= values < ROW_ATTRIBUTE_HEAD ? values : ROW_ATTRIBUTE_HEAD;
		r = change_delete(change, found);
		uncount(inode, names, values);
	}
	return r ? r : 1;
}

/* What a call changes: `xattr` is set, or where it is NULL `name` is taken away. */
static int change_row(struct change *change, uint64_t ino, const char *name,
	const struct volume_xattr *xattr, enum volume_xattr_how how)
{
	size_t room = txn_room(change->txn);
	struct inode inode;
	int r = inode_get(change->volume, change->txn, ino, &inode);

	if (!r && !may_have(&inode))
		r = -EPERM;
	if (!r)
		r = xattr ? xattr_put(change, &inode, xattr, how) : take(change, &inode, name);
	/* The record that will take the inode away is no larger than this one may be. */
	if (!r && xattr && inode.xattr_names + inode.xattrs * NAME_COST + ROOM_LOW > room)
		r = -ENOSPC;
	if (r)
		return r;
	change_touch(change, &inode);
	return inode_put(change, &inode);
}

static int change_xattr(struct volume *volume, uint64_t ino, const char *name,
	const struct volume_xattr *xattr, enum volume_xattr_how how, uint64_t *lsn)
{
	struct change change;
	int r = change_begin(volume, &change);

	if (r)
		return r;
	r = change_row(&change, ino, name, xattr, how);
	return change_finish(&change, r, lsn);
}

int volume_xattr_set(struct volume *volume, uint64_t ino, const struct volume_xattr *xattr,
	enum volume_xattr_how how, uint64_t *lsn)
{
	if (xattr->length > VOLUME_XATTR_VALUE_MAX)
		return -E2BIG;
	return change_xattr(volume, ino, xattr->name, xattr, how, lsn);
}

int volume_xattr_remove(struct volume *volume, uint64_t ino, const char *name, uint64_t *lsn)
{
	return change_xattr(volume, ino, name, NULL, VOLUME_XATTR_EITHER, lsn);
}
