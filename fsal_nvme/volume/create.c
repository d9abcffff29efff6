/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Volumes come and go. A volume's row and name, and its header and root directory, are made in one
 * transaction: after a crash, or an error, it is there as a whole or not at all.
 */
#include "volume/internal.h"

#include <errno.h>
#include <string.h>

#include "common/size.h"

/* --- creating --------------------------------------------------------------------------------- */

static int put_root(struct pool *pool, struct txn *txn, struct env *env,
	const struct volume_create_options *options)
{
	int64_t now = (int64_t)engine_time(pool_engine(pool));
	struct header header = {
		.next_ino = VOLUME_ROOT + 1,
		.next_cookie = COOKIE_FIRST,
		.root = VOLUME_ROOT,
		.inodes = 1,
	};
	struct inode inode = {
		.ino = VOLUME_ROOT,
		.type = VOLUME_DIRECTORY,
		.mode = options->mode ? options->mode & 07777 : 0755,
		.uid = options->uid,
		.gid = options->gid,
		.nlink = 2,
		.atime = now,
		.mtime = now,
		.ctime = now,
		.btime = now,
		.change = pool_change(pool),
		.parent = VOLUME_ROOT,
		.trim = TRIM_NONE,
	};
	uint8_t row[ROW_SMALL];
	struct key key;
	int r = txn_put(
		txn, env, key_header(&key), (struct bytes){row, header_encode(&header, row)});

	if (r)
		return r;
	return txn_put(txn, env, key_inode(&key, ROW_INODE, VOLUME_ROOT),
		(struct bytes){row, inode_encode(&inode, row)});
}

/* *env is to be put when the transaction has ended, unless it is NULL. */
static int put_all(struct pool *pool, struct txn *txn, const struct volume_create_options *options,
	struct volume_row *row, struct env **env)
{
	char quota[SIZE_TEXT_MAX];
	int r = volume_row_create(txn, options->name, options->kind, row);

	size_text(options->quota, quota);
	if (!r && options->quota)
		r = property_set(txn, row->id, VOLUME_QUOTA_PROPERTY, quota);
	if (!r)
		r = txn_new_env(txn, row->id, env);
	return r ? r : put_root(pool, txn, *env, options);
}

static int create_once(struct pool *pool, const struct volume_create_options *options,
	struct volume_row *row, uint64_t *lsn)
{
	struct env *env = NULL;
	struct txn *txn;
	int r = txn_begin(pool, NULL, &txn);

	if (r)
		return r;
	r = put_all(pool, txn, options, row, &env);
	if (r)
		txn_abort(txn);
	else
		r = txn_commit(txn, lsn);
	if (env)
		env_put(env);
	return r;
}

/* What volumes have changed since their last images counts against the room for metadata: written,
 * it may be enough. */
static int create(struct pool *pool, const struct volume_create_options *options,
	struct volume_row *row, uint64_t *lsn)
{
	int r = create_once(pool, options, row, lsn);

	if (r == -ENOSPC && !pool_checkpoint(pool))
		r = create_once(pool, options, row, lsn);
	return r;
}

static int create_error(const struct volume_create_options *options, int r, struct error *error)
{
	if (r == -EEXIST)
		return error_set(error, r, options->name,
			"a dataset or share of this name is there already");
	if (r == -EINVAL || r == -ENAMETOOLONG)
		return error_set(error, r, options->name,
			"is not a name: 1 to %d letters, digits, '.', '_' and '-'",
			POOL_VOLUME_NAME_MAX);
	return error_set(error, r, options->name, "cannot be created: %s", strerror(-r));
}

int volume_create(struct volumes *volumes, const struct volume_create_options *options,
	struct volume_row *row, struct error *error)
{
	struct volume_row made;
	uint64_t lsn;
	int r = create(volumes->pool, options, &made, &lsn);

	if (!r)
		r = pool_sync(volumes->pool, lsn);
	if (!r && row)
		*row = made;
	return r ? create_error(options, r, error) : 0;
}

/* --- destroying ------------------------------------------------------------------------------- */

/* One step of a deletion, which may take many; -EAGAIN: go on. */
static int delete_step(struct pool *pool, uint32_t id, uint64_t *lsn)
{
	struct txn *txn;
	int r = txn_begin(pool, NULL, &txn), r2;

	if (r)
		return r;
	r = volume_row_delete(txn, id);
	if (r && r != -EAGAIN) {
		txn_abort(txn);
		return r;
	}
	r2 = txn_commit(txn, lsn);
	return r2 ? r2 : r;
}

static int delete_row(struct pool *pool, uint32_t id)
{
	uint64_t lsn = 0;
	int r;

	do {
		r = delete_step(pool, id, &lsn);
	} while (r == -EAGAIN);
	return r ? r : pool_sync(pool, lsn);
}

static bool is_open(struct volumes *volumes, uint32_t id)
{
	const struct volume *volume = volumes->first;

	while (volume && volume->row.id != id)
		volume = volume->next;
	return volume;
}

static int find_name(struct volumes *volumes, const char *name, struct volume_row *row)
{
	struct txn *view;
	int r = view_begin(pool_env(volumes->pool), &view);

	if (r)
		return r;
	r = volume_row_find(view, name, row);
	txn_abort(view);
	return r;
}

/* The lock keeps it from being opened meanwhile. */
static int destroy_locked(struct volumes *volumes, const char *name, struct error *error)
{
	struct volume_row row;
	int r = find_name(volumes, name, &row);

	if (r == -ENOENT)
		return error_set(error, r, name, "there is no such dataset or share");
	if (!r && is_open(volumes, row.id))
		return error_set(error, -EBUSY, name, "is in use");
	if (!r)
		r = delete_row(volumes->pool, row.id);
	return r ? error_set(error, r, name, "cannot be destroyed: %s", strerror(-r)) : 0;
}

int volume_destroy(struct volumes *volumes, const char *name, struct error *error)
{
	int r;

	compactor_hold(&volumes->compactor);
	pthread_mutex_lock(&volumes->lock);
	r = destroy_locked(volumes, name, error);
	pthread_mutex_unlock(&volumes->lock);
	compactor_release(&volumes->compactor);
	return r;
}

/* The first volume from *id on whose destruction a crash cut short; -ENOENT. */
static int next_destroying(struct pool *pool, uint32_t *id)
{
	struct volume_row row;
	struct txn *view;
	int r = view_begin(pool_env(pool), &view);

	if (r)
		return r;
	while (!(r = volume_row_next(view, *id, &row)) && !row.destroying)
		*id = row.id + 1;
	txn_abort(view);
	if (!r)
		*id = row.id;
	return r;
}

int volumes_resume(struct volumes *volumes)
{
	uint32_t id = 1;
	int r;

	if (pool_is_read_only(volumes->pool))
		return 0;
	while (!(r = next_destroying(volumes->pool, &id))) {
		r = delete_row(volumes->pool, id);
		if (r)
			return r;
		id++;
	}
	return r == -ENOENT ? 0 : r;
}
