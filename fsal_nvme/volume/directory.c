/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Directories as they are read: lookup, parent, readdir, the path of an inode. */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

int name_check(const char *name, size_t *length)
{
	*length = strlen(name);
	if (*length > VOLUME_NAME_MAX)
		return -ENAMETOOLONG;
	if (!*length || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
		return -EINVAL;
	return 0;
}

int entry_get(
	struct volume *volume, struct txn *txn, uint64_t dir, const char *name, struct entry *entry)
{
	struct bytes row;
	struct key key;
	size_t length;
	int r = name_check(name, &length);

	if (!r)
		r = txn_get(txn, volume->env, key_name(&key, ROW_NAME, dir, name, length), &row);
	if (r)
		return r;
	return entry_decode_name(row, entry) ? row_is_bad(volume, ROW_NAME, dir) : 0;
}

/* --- moments --------------------------------------------------------------------------------- */

/* One moment of a volume. */
struct moment {
	struct volume *volume;
	struct txn *view;
	uint64_t lsn; /* of the volume before the view was begun */
};

static int moment_begin(struct volume *volume, struct moment *moment)
{
	moment->volume = volume;
	moment->lsn = atomic_load(&volume->lsn);
	return view_begin(volume->env, &moment->view);
}

/*
 * Attributes of the moment of the view, unless there are, or were since then, pending writes: what
 * these had changed before the view was begun must be in the answer too.
 */
static int moment_attributes(
	const struct moment *moment, uint64_t ino, struct volume_attributes *attributes)
{
	struct volume *volume = moment->volume;
	struct inode inode;
	int r = -ESTALE;

	if (atomic_load(&volume->dirty_count) || atomic_load(&volume->lsn) != moment->lsn)
		r = volume_getattr(volume, ino, attributes);
	if (r != -ESTALE)
		return r;
	r = inode_get(volume, moment->view, ino, &inode);
	if (!r)
		inode_show(&inode, attributes);
	return r == -ESTALE ? row_is_bad(volume, ROW_INODE, ino) : r;
}

/* What has an entry is a directory. */
static int lookup(const struct moment *moment, uint64_t dir, const char *name,
	struct volume_attributes *found)
{
	struct inode inode;
	struct entry entry;
	int r = entry_get(moment->volume, moment->view, dir, name, &entry), none;

	if (!r)
		return moment_attributes(moment, entry.ino, found);
	if (recent_get(&moment->volume->recent, dir, &inode))
		return r;
	none = inode_get_directory(moment->volume, moment->view, dir, &inode);
	return none ? none : r;
}

int volume_lookup(
	struct volume *volume, uint64_t dir, const char *name, struct volume_attributes *found)
{
	struct volume_attributes unused;
	struct moment moment;
	int r = moment_begin(volume, &moment);

	if (r)
		return r;
	r = lookup(&moment, dir, name, found ? found : &unused);
	txn_abort(moment.view);
	return r;
}

int volume_parent(struct volume *volume, uint64_t dir, struct volume_attributes *found)
{
	struct volume_attributes unused;
	struct inode inode;
	struct txn *view;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = inode_get_directory(volume, view, dir, &inode);
	txn_abort(view);
	return r ? r : volume_getattr(volume, inode.parent, found ? found : &unused);
}

int volume_readlink(struct volume *volume, uint64_t ino, char *buffer, size_t size, size_t *length)
{
	struct bytes row, target;
	struct inode inode;
	struct txn *view;
	struct key key;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = inode_get(volume, view, ino, &inode);
	if (!r && inode.type != VOLUME_SYMLINK)
		r = -EINVAL;
	if (!r)
		r = txn_get(view, volume->env, key_inode(&key, ROW_TARGET, ino), &row);
	if (r == -ENOENT || (!r && blob_decode(row, VOLUME_TARGET_MAX, &target)))
		r = row_is_bad(volume, ROW_TARGET, ino);
	if (!r) {
		*length = target.length;
		if (target.length > size)
			r = -ERANGE;
		else
			memcpy(buffer, target.data, target.length);
	}
	txn_abort(view);
	return r;
}

/* --- readdir --------------------------------------------------------------------------------- */

struct listing {
	struct moment moment;
	uint64_t dir, cookie;
};

/* The next entry after listing->cookie; -ENOENT. */
static int next_entry(struct listing *listing, struct entry *entry)
{
	struct volume *volume = listing->moment.volume;
	struct bytes found, row;
	uint64_t dir, cookie;
	struct key key;
	int r;

	if (listing->cookie == UINT64_MAX)
		return -ENOENT;
	r = txn_seek(listing->moment.view, volume->env,
		key_pair(&key, ROW_COOKIE, listing->dir, listing->cookie + 1), &found, &row);
	if (r)
		return r;
	if (!key_is_pair(found, ROW_COOKIE, &dir, &cookie) || dir != listing->dir)
		return -ENOENT;
	if (entry_decode_cookie(row, entry))
		return row_is_bad(volume, ROW_COOKIE, dir);
	entry->cookie = cookie;
	return 0;
}

static int list(struct listing *listing, bool (*each)(void *data, const struct volume_entry *entry),
	void *data, bool *eof)
{
	struct volume_entry shown;
	struct entry entry;
	int r;

	while (!(r = next_entry(listing, &entry))) {
		shown.name = entry.name;
		shown.cookie = listing->cookie = entry.cookie;
		r = moment_attributes(&listing->moment, entry.ino, &shown.attributes);
		if (r)
			return r;
		if (!each(data, &shown))
			return 0;
	}
	*eof = r == -ENOENT;
	return *eof ? 0 : r;
}

int volume_readdir(struct volume *volume, uint64_t dir, uint64_t cookie,
	bool (*each)(void *data, const struct volume_entry *entry), void *data, bool *eof)
{
	struct listing listing = {.dir = dir, .cookie = cookie};
	struct inode inode;
	int r = moment_begin(volume, &listing.moment);

	*eof = false;
	if (r)
		return r;
	r = inode_get_directory(volume, listing.moment.view, dir, &inode);
	if (!r)
		r = list(&listing, each, data, eof);
	txn_abort(listing.moment.view);
	return r;
}

/* --- paths ----------------------------------------------------------------------------------- */

/* A name of `ino`: in *dir, or in any directory when that is 0. */
static int find_name(struct volume *volume, struct txn *view, uint64_t ino, uint64_t *dir,
	char name[VOLUME_NAME_MAX + 1])
{
	struct key key;
	struct bytes at = key_inode(&key, ROW_NAME, *dir), found, row, text;
	struct entry entry;
	uint64_t in;

	while (!txn_seek(view, volume->env, at, &found, &row) &&
		key_is_name(found, ROW_NAME, &in, &text)) {
		if (*dir && in != *dir)
			break;
		if (!entry_decode_name(row, &entry) && entry.ino == ino) {
			memcpy(name, text.data, text.length);
			name[text.length] = '\0';
			*dir = in;
			return 0;
		}
		at = key_behind(&key, found);
	}
	return -ENOENT;
}

/* Puts "/name" before what is at the end of the buffer. */
static int prepend(char *path, size_t *start, const char *name)
{
	size_t length = strlen(name);

	if (*start < length + 1)
		return -ENAMETOOLONG;
	*start -= length;
	memcpy(path + *start, name, length);
	path[--*start] = '/';
	return 0;
}

static int build_path(
	struct volume *volume, struct txn *view, uint64_t ino, char *path, size_t *start)
{
	char name[VOLUME_NAME_MAX + 1];
	struct inode inode;
	int r = 0;

	while (!r && ino != VOLUME_ROOT) {
		uint64_t dir;

		r = inode_get(volume, view, ino, &inode);
		dir = r ? 0 : inode.parent;
		if (!r)
			r = find_name(volume, view, ino, &dir, name);
		if (!r)
			r = prepend(path, start, name);
		ino = dir;
	}
	return r;
}

int volume_path(struct volume *volume, uint64_t ino, char *path, size_t size)
{
	size_t start = size - 1;
	struct txn *view;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	path[start] = '\0';
	r = build_path(volume, view, ino, path, &start);
	txn_abort(view);
	if (!r && start == size - 1)
		r = prepend(path, &start, "");
	if (r)
		return r == -ESTALE ? -ENOENT : r;
	memmove(path, path + start, size - start);
	return 0;
}
