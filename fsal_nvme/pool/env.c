/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Environments, one for the pool and one for each volume in use: what each is made of, its locks,
 * its size and its place in the journal.
 *
 * Its size. The map is larger than the limit by a quarter: at the limit an environment still takes
 * transactions that do not make it larger, and LMDB itself does not run out of pages while it
 * commits one. Likewise when the scratch file system has no more room for it to grow: env_room.c.
 *
 * What a checkpoint must know. An environment is dirty from before its record is appended
 * (env_change_begin) until an image has caught up with it; while dirty it names a place in the
 * journal at or before its first record after the image. Whoever computes where replay starts must
 * take journal_durable_position() (or the `from` of the pool environment's image) BEFORE asking the
 * environments: one that is clean when asked has all its later records behind that place.
 */
#include "pool/env.h"

#include <assert.h>

#define HEADROOM_MIN (64ull << 20)
/* Pages that are to be there, unused, before what makes an environment larger; of the pool's own,
 * which a volume cannot be deleted without. */
#define AHEAD 64u
#define AHEAD_OWN 256u

static const struct {
	int lmdb, error;
} expected_errors[] = {
	{MDB_NOTFOUND, -ENOENT},
	{MDB_KEYEXIST, -EEXIST},
	{MDB_MAP_FULL, -ENOSPC},
	{MDB_TXN_FULL, -E2BIG},
	{ENOSPC, -ENOSPC},
	{ENOMEM, -ENOMEM},
};

int env_error(const struct env *env, int result, const char *what)
{
	if (!result)
		return 0;
	for (unsigned i = 0; i < sizeof(expected_errors) / sizeof(expected_errors[0]); i++) {
		if (expected_errors[i].lmdb == result)
			return expected_errors[i].error;
	}
	log_error("environment of volume %u: %s: %s", env->volume, what, mdb_strerror(result));
	return -EIO;
}

struct env *env_allocate(struct pool *pool, uint32_t volume)
{
	struct env *env = calloc(1, sizeof(*env));
	uint64_t limit = pool->options.metadata_limit;

	if (!env)
		return NULL;
	env->pool = pool;
	env->volume = volume;
	env->limit = limit / STORE_PAGE;
	atomic_init(&env->sealed, false);
	atomic_init(&env->gone, false);
	atomic_init(&env->writer, 0);
	/* An epoch's values begin above those of the one before: see pool_change(). */
	atomic_init(&env->change, 0);
	pthread_mutex_init(&env->lock, NULL);
	pthread_cond_init(&env->loaded, NULL);
	return env;
}

static int env_attach_store(struct env *env)
{
	uint64_t headroom = env->limit * STORE_PAGE / 4;
	int rc;

	if (headroom < HEADROOM_MIN)
		headroom = HEADROOM_MIN;
	headroom = headroom / STORE_PAGE * STORE_PAGE;
	rc = store_get(env->pool->scratch_dir, env->limit * STORE_PAGE + headroom, &env->store);
	if (rc && rc != ENOMEM)
		log_error("environment of volume %u: cannot make a scratch file in %s: %s",
			env->volume, env->pool->scratch_dir, mdb_strerror(rc));
	return rc > 0 ? -rc : rc ? -EIO : 0;
}

void env_free(struct env *env)
{
	if (env->replaying)
		env_write_abort(env, env->replaying);
	env_changed_end(env);
	if (env->store)
		store_put(env->store);
	pthread_mutex_destroy(&env->lock);
	pthread_cond_destroy(&env->loaded);
	free(env);
}

int env_fill(struct env *env, const struct image *image)
{
	int rc = env_attach_store(env);

	return rc || !image || !image->count ? rc : image_load(env->pool, env, image);
}

int env_create(struct pool *pool, uint32_t volume, const struct image *image, struct env **env)
{
	struct env *made = env_allocate(pool, volume);
	int rc;

	if (!made)
		return -ENOMEM;
	rc = env_fill(made, image);
	if (rc) {
		env_free(made);
		return rc;
	}
	made->state = ENV_READY;
	*env = made;
	return 0;
}

struct env *pool_env(struct pool *pool)
{
	return pool->env;
}

uint32_t env_volume(const struct env *env)
{
	return env->volume;
}

/* --- its locks ---------------------------------------------------------------------------------
 */

static uintptr_t this_thread(void)
{
	return (uintptr_t)pthread_self();
}

int env_write_begin(struct env *env, MDB_txn **txn)
{
	int rc = env_replay_flush(env);

	if (rc)
		return rc;
	/* LMDB would wait for ever for a thread's own transaction. */
	assert(atomic_load(&env->writer) != this_thread());
	rc = env_error(
		env, mdb_txn_begin(env->store->mdb, NULL, 0, txn), "cannot begin a transaction");
	if (rc)
		return rc;
	atomic_store(&env->writer, this_thread());
	rc = env_error(env, store_room_begin(env->store, *txn), "cannot be measured");
	if (rc) {
		env_write_abort(env, *txn);
		*txn = NULL;
	}
	return rc;
}

int env_write_commit(struct env *env, MDB_txn *txn)
{
	atomic_store(&env->writer, 0);
	return env_error(env, store_commit(env->store, txn), "cannot commit");
}

void env_write_abort(struct env *env, MDB_txn *txn)
{
	atomic_store(&env->writer, 0);
	mdb_txn_abort(txn);
}

int env_write_put(
	struct env *env, MDB_txn *txn, struct bytes key, struct bytes value, unsigned flags)
{
	MDB_val k = val(key), v = val(value);
	int rc = store_room_to_put(env->store, txn, key.length, value.length);

	return env_error(env, rc ? rc : mdb_put(txn, env->store->dbi, &k, &v, flags), "cannot put");
}

int env_write_delete(struct env *env, MDB_txn *txn, struct bytes key)
{
	MDB_val k = val(key);
	int rc = store_room_to_delete(env->store, txn);

	return env_error(env, rc ? rc : mdb_del(txn, env->store->dbi, &k, NULL), "cannot delete");
}

int env_write_empty(struct env *env, MDB_txn *txn)
{
	int rc = store_room_to_empty(env->store);

	return env_error(env, rc ? rc : mdb_drop(txn, env->store->dbi, 0), "cannot be emptied");
}

int env_view_begin(struct env *env, struct view **view)
{
	int rc = env_replay_flush(env);

	if (rc)
		return rc;
	return env_error(env, store_view_begin(env->store, view), "cannot begin a view");
}

void env_view_end(struct env *env, struct view *view)
{
	store_view_end(env->store, view);
}

/* --- its size ----------------------------------------------------------------------------------
 */

/* Pages that LMDB's own table of free pages names: each value begins with how many it lists. */
static int count_free(struct env *env, uint64_t *pages)
{
	struct view *view;
	MDB_cursor *cursor;
	MDB_val key, value;
	size_t count;
	int rc = env_view_begin(env, &view);

	*pages = 0;
	if (rc)
		return rc;
	rc = mdb_cursor_open(view->txn, 0, &cursor);
	if (!rc) {
		while (!(rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT))) {
			memcpy(&count, value.mv_data, sizeof(count));
			*pages += count;
		}
		mdb_cursor_close(cursor);
	}
	env_view_end(env, view);
	return rc == MDB_NOTFOUND ? 0 : env_error(env, rc, "cannot count free pages");
}

uint64_t env_bytes(struct env *env)
{
	MDB_stat stat;

	if (mdb_env_stat(env->store->mdb, &stat))
		return 0;
	return (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) *
	       (uint64_t)STORE_PAGE;
}

void env_image(struct env *env, struct image *image)
{
	pthread_mutex_lock(&env->lock);
	*image = env->image;
	pthread_mutex_unlock(&env->lock);
}

/* Counting takes time, so the more pages are free the rarer it is done: transactions until then. */
static unsigned next_count(uint64_t spare)
{
	return spare / 2048 < 1000 ? (unsigned)(spare / 2048) : 1000;
}

/* Files do not shrink: what counts beside the file system's room are the pages that are free. */
bool env_is_short(struct env *env)
{
	uint64_t ahead = env->volume ? AHEAD : AHEAD_OWN, unused;
	bool was = env->is_short;

	env->is_short = store_is_short(env->store, ahead);
	if (!env->is_short)
		return false;
	if (env->recount_short) {
		env->recount_short--;
		env->is_short = false;
		return false;
	}
	env->is_short = count_free(env, &unused) || unused < ahead;
	env->recount_short = env->is_short ? 0 : next_count(unused - ahead);
	if (env->is_short && !was)
		log_warning("volume %u: its metadata cannot grow: the file system of %s is full",
			env->volume, env->pool->scratch_dir);
	return env->is_short;
}

bool env_is_full(struct env *env)
{
	uint64_t room = env->volume ? atomic_load(&env->pool->image_room)
				    : atomic_load(&env->pool->own_room);
	uint64_t counted = atomic_load(&env->growth), bytes = env_bytes(env);

	return (bytes > counted ? bytes - counted : 0) >= room ||
	       (env->volume && env_memory_full(env)) || env_is_short(env);
}

bool env_memory_full(struct env *env)
{
	MDB_envinfo info;
	uint64_t used, unused;

	mdb_env_info(env->store->mdb, &info);
	used = info.me_last_pgno + 1;
	if (used <= env->limit)
		return false;
	/* The file has been larger than the limit: what counts is how much of it is in use. */
	if (env->recount) {
		env->recount--;
		return env->full;
	}
	if (count_free(env, &unused))
		return true;
	env->full = used - unused > env->limit;
	env->recount = env->full ? 0 : next_count(env->limit - (used - unused));
	return env->full;
}

/* --- its place in the journal -------------------------------------------------------------------
 */

static struct env *writable(const struct env *env)
{
	return (struct env *)(uintptr_t)env;
}

static bool is_clean(const struct env *env)
{
	return env->applied == env->image_lsn && !env->changing;
}

uint64_t env_applied(const struct env *env)
{
	uint64_t lsn;

	pthread_mutex_lock(&writable(env)->lock);
	lsn = env->applied;
	pthread_mutex_unlock(&writable(env)->lock);
	return lsn;
}

bool env_replay_from(const struct env *env, struct journal_position *position)
{
	bool dirty;

	pthread_mutex_lock(&writable(env)->lock);
	dirty = !is_clean(env) && !atomic_load(&env->gone);
	if (dirty)
		*position = env->replay;
	pthread_mutex_unlock(&writable(env)->lock);
	return dirty;
}

void env_set_image(
	struct env *env, const struct image_row *part, const struct journal_position *from)
{
	pthread_mutex_lock(&env->lock);
	assert(part->lsn <= env->applied);
	if (part->kind != IMAGE_DELTA)
		env->image.count = 0;
	assert(env->image.count < IMAGE_PARTS_MAX);
	env->image.parts[env->image.count++] = *part;
	env->image_lsn = part->lsn;
	env->replay = *from;
	pthread_mutex_unlock(&env->lock);
}

void env_change_begin(struct env *env)
{
	pthread_mutex_lock(&env->lock);
	if (is_clean(env))
		journal_durable_position(env->pool, &env->replay);
	env->changing = true;
	pthread_mutex_unlock(&env->lock);
}

void env_change_end(struct env *env, uint64_t lsn)
{
	pthread_mutex_lock(&env->lock);
	env->changing = false;
	env->applied = lsn;
	pthread_mutex_unlock(&env->lock);
}

void env_replayed(struct env *env, uint64_t lsn)
{
	pthread_mutex_lock(&env->lock);
	if (is_clean(env))
		env->replay = env->pool->label.replay;
	env->applied = lsn;
	pthread_mutex_unlock(&env->lock);
}

int env_replay_flush(struct env *env)
{
	MDB_txn *txn;

	if (atomic_load(&env->writer) != this_thread() || !env->replaying)
		return 0;
	txn = env->replaying;
	env->replaying = NULL;
	env->replayed = 0;
	return env_write_commit(env, txn);
}

void env_set_sealed(struct env *env)
{
	atomic_store(&env->sealed, true);
}

void env_clear_sealed(struct env *env)
{
	atomic_store(&env->sealed, false);
}

bool env_is_gone(struct env *env)
{
	return atomic_load(&env->gone);
}
