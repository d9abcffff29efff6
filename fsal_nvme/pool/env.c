/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Environments: LMDB as a view in memory, one for the pool and one for each volume in use.
 *
 * A store is an LMDB environment whose files are unlinked as soon as they are open: nothing of it
 * outlives the process, and no page of it is ever believed after a crash. Opening one costs more
 * than a hundred system calls' worth of time, emptying one a few microseconds, so small ones are
 * emptied and kept for the next environment (STOCK_MAX of them).
 *
 * The map is written in place (MDB_WRITEMAP), which halves the cost of a transaction. A file system
 * without room would then answer with SIGBUS, so it is asked for room every ROOM_STEP pages. The
 * map is larger than the limit by a quarter: at the limit an environment still takes transactions
 * that do not make it larger, and LMDB itself does not run out of pages while it commits one.
 *
 * What a checkpoint must know. An environment is dirty from before its record is appended
 * (env_change_begin) until an image has caught up with it; while dirty it names a place in the
 * journal at or before its first record after the image. Whoever computes where replay starts must
 * take journal_durable_position() (or the `from` of the pool environment's image) BEFORE asking the
 * environments: one that is clean when asked has all its later records behind that place.
 *
 * The registry. pool->volumes lists environments that are loading or loaded; the first to ask loads
 * and the others wait. One without users is freed when an image has all of it; until then it stays,
 * since only the journal has the rest.
 */
#include "pool/env.h"

#include <assert.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PAGE 4096u
#define LIMIT_DEFAULT (16ull << 30)
#define HEADROOM_MIN (64ull << 20)
#define READERS_MAX 4096u
#define STOCK_MAX 8u
#define STOCK_PAGES 256u /* what an emptied store may have grown to */
#define ROOM_STEP 4096u /* pages */
#define ROOM_MIN (64ull << 20) /* bytes that must be free in the scratch file system */

#ifdef __SANITIZE_THREAD__
/* LMDB reuses a page once no reader's slot names a transaction that old, an order which the
 * sanitizer cannot see; and a store's locks change places in the order when it is used again. */
const char *__tsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void)
{
	return "race:liblmdb.so\ndeadlock:liblmdb.so\n";
}
#endif

/* --- stores --------------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	struct store *first;
	unsigned count;
} stock = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void store_free(struct store *store)
{
	struct view *view;

	while ((view = store->idle)) {
		store->idle = view->next;
		mdb_cursor_close(view->cursor);
		mdb_txn_abort(view->txn);
		free(view);
	}
	mdb_env_close(store->mdb);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

static struct store *stock_take(size_t map_size, uint64_t file_system)
{
	struct store *store, **at;
	pid_t process = getpid();

	pthread_mutex_lock(&stock.lock);
	for (at = &stock.first; (store = *at); at = &store->next) {
		if (store->map_size == map_size && store->file_system == file_system &&
			store->process == process) {
			*at = store->next;
			stock.count--;
			break;
		}
	}
	pthread_mutex_unlock(&stock.lock);
	return store;
}

static bool stock_give(struct store *store)
{
	bool given = false;

	pthread_mutex_lock(&stock.lock);
	if (stock.count < STOCK_MAX) {
		store->next = stock.first;
		stock.first = store;
		stock.count++;
		given = true;
	}
	pthread_mutex_unlock(&stock.lock);
	return given;
}

static int store_open_files(struct store *store, const char *directory)
{
	char path[4096], lock_path[4096 + 8];
	uint64_t number;
	int rc, length;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return EIO;

	length = snprintf(path, sizeof(path), "%s/millrace-env.%016llx", directory,
		(unsigned long long)number);
	if (length < 0 || (size_t)length >= sizeof(path))
		return ENAMETOOLONG;
	snprintf(lock_path, sizeof(lock_path), "%s-lock", path);
	rc = mdb_env_open(store->mdb, path,
		MDB_NOSUBDIR | MDB_WRITEMAP | MDB_NOSYNC | MDB_NOMETASYNC | MDB_NOTLS |
			MDB_NORDAHEAD | MDB_NOMEMINIT,
		0600);
	unlink(path);
	unlink(lock_path);
	return rc;
}

static int store_setup(struct store *store, const char *directory)
{
	MDB_txn *txn;
	int rc = mdb_env_set_mapsize(store->mdb, store->map_size);

	if (!rc)
		rc = mdb_env_set_maxreaders(store->mdb, READERS_MAX);
	if (!rc)
		rc = store_open_files(store, directory);
	if (!rc)
		rc = mdb_txn_begin(store->mdb, NULL, MDB_RDONLY, &txn);
	if (rc)
		return rc;
	rc = mdb_dbi_open(txn, NULL, 0, &store->dbi);
	mdb_txn_abort(txn);
	return rc;
}

static int store_open(
	const char *directory, size_t map_size, uint64_t file_system, struct store **result)
{
	struct store *store = calloc(1, sizeof(*store));
	int rc;

	if (!store)
		return ENOMEM;
	store->map_size = map_size;
	store->file_system = file_system;
	store->process = getpid();
	rc = mdb_env_create(&store->mdb);
	if (rc) {
		free(store);
		return rc;
	}
	pthread_mutex_init(&store->lock, NULL);
	rc = store_setup(store, directory);
	if (rc) {
		store_free(store);
		return rc;
	}
	*result = store;
	return 0;
}

/* An empty store in the directory's file system; LMDB's error or errno. */
static int store_get(const char *directory, size_t map_size, struct store **store)
{
	struct stat status;

	if (stat(directory, &status))
		return errno;
	*store = stock_take(map_size, status.st_dev);
	if (*store)
		return 0;
	return store_open(directory, map_size, status.st_dev, store);
}

static bool store_empty(struct store *store)
{
	MDB_envinfo info;
	MDB_txn *txn;

	mdb_env_info(store->mdb, &info);
	if (info.me_last_pgno >= STOCK_PAGES || mdb_txn_begin(store->mdb, NULL, 0, &txn))
		return false;
	if (mdb_drop(txn, store->dbi, 0)) {
		mdb_txn_abort(txn);
		return false;
	}
	return !mdb_txn_commit(txn);
}

static void store_put(struct store *store)
{
	assert(!atomic_load(&store->views));
	if (store->process != getpid())
		return; /* a child's copy: not ours to close */
	if (!store_empty(store) || !stock_give(store))
		store_free(store);
}

/* --- one environment ------------------------------------------------------------------------- */

static const struct {
	int lmdb, error;
} expected_errors[] = {
	{MDB_NOTFOUND, -ENOENT},
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

static struct env *env_allocate(struct pool *pool, uint32_t volume)
{
	struct env *env = calloc(1, sizeof(*env));
	uint64_t limit = pool->options.metadata_limit;

	if (!env)
		return NULL;
	env->pool = pool;
	env->volume = volume;
	env->limit = (limit ? limit : LIMIT_DEFAULT) / PAGE;
	atomic_init(&env->sealed, false);
	atomic_init(&env->gone, false);
	atomic_init(&env->writer, 0);
	/* An epoch's values begin above those of the one before: see txn_change(). */
	atomic_init(&env->change, 0);
	pthread_mutex_init(&env->lock, NULL);
	pthread_cond_init(&env->loaded, NULL);
	return env;
}

static int env_attach_store(struct env *env)
{
	uint64_t headroom = env->limit * PAGE / 4;
	int rc;

	if (headroom < HEADROOM_MIN)
		headroom = HEADROOM_MIN;
	headroom = headroom / PAGE * PAGE;
	rc = store_get(env->pool->scratch_dir, env->limit * PAGE + headroom, &env->store);
	if (rc && rc != ENOMEM)
		log_error("environment of volume %u: cannot make a scratch file in %s: %s",
			env->volume, env->pool->scratch_dir, mdb_strerror(rc));
	return rc > 0 ? -rc : rc ? -EIO : 0;
}

static void env_free(struct env *env)
{
	if (env->replaying)
		env_write_abort(env, env->replaying);
	if (env->store)
		store_put(env->store);
	pthread_mutex_destroy(&env->lock);
	pthread_cond_destroy(&env->loaded);
	free(env);
}

static int env_fill(struct env *env, const struct image_row *image)
{
	int rc = env_attach_store(env);

	if (rc)
		return rc;
	return image && image->kind ? image_load(env->pool, env, image) : 0;
}

int env_create(struct pool *pool, uint32_t volume, const struct image_row *image, struct env **env)
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
	if (!rc)
		atomic_store(&env->writer, this_thread());
	return rc;
}

int env_write_commit(struct env *env, MDB_txn *txn)
{
	atomic_store(&env->writer, 0);
	return env_error(env, mdb_txn_commit(txn), "cannot commit");
}

void env_write_abort(struct env *env, MDB_txn *txn)
{
	atomic_store(&env->writer, 0);
	mdb_txn_abort(txn);
}

static struct view *idle_view(struct store *store)
{
	struct view *view;

	pthread_mutex_lock(&store->lock);
	view = store->idle;
	if (view)
		store->idle = view->next;
	pthread_mutex_unlock(&store->lock);
	return view;
}

static int view_make(struct store *store, struct view **result)
{
	struct view *view = calloc(1, sizeof(*view));
	int rc;

	if (!view)
		return ENOMEM;
	rc = mdb_txn_begin(store->mdb, NULL, MDB_RDONLY, &view->txn);
	if (rc) {
		free(view);
		return rc;
	}
	rc = mdb_cursor_open(view->txn, store->dbi, &view->cursor);
	if (rc) {
		mdb_txn_abort(view->txn);
		free(view);
		return rc;
	}
	*result = view;
	return 0;
}

static int view_renew(struct view *view)
{
	int rc = mdb_txn_renew(view->txn);

	if (!rc)
		rc = mdb_cursor_renew(view->txn, view->cursor);
	if (rc) {
		mdb_cursor_close(view->cursor);
		mdb_txn_abort(view->txn);
		free(view);
	}
	return rc;
}

int env_view_begin(struct env *env, struct view **view)
{
	int rc = env_replay_flush(env);

	if (rc)
		return rc;
	*view = idle_view(env->store);
	rc = *view ? view_renew(*view) : view_make(env->store, view);
	if (!rc)
		atomic_fetch_add(&env->store->views, 1);
	return env_error(env, rc, "cannot begin a view");
}

void env_view_end(struct env *env, struct view *view)
{
	struct store *store = env->store;

	mdb_txn_reset(view->txn);
	pthread_mutex_lock(&store->lock);
	view->next = store->idle;
	store->idle = view;
	pthread_mutex_unlock(&store->lock);
	atomic_fetch_sub(&store->views, 1);
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

static bool file_system_full(struct env *env, uint64_t used)
{
	struct statvfs status;
	int fd;

	if (used < env->asked + ROOM_STEP)
		return false;
	if (mdb_env_get_fd(env->store->mdb, &fd) || fstatvfs(fd, &status))
		return false;
	if ((uint64_t)status.f_bavail * status.f_frsize < ROOM_MIN)
		return true;
	env->asked = used;
	return false;
}

uint64_t env_bytes(struct env *env)
{
	MDB_stat stat;

	if (mdb_env_stat(env->store->mdb, &stat))
		return 0;
	return (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) *
	       (uint64_t)PAGE;
}

bool env_is_full(struct env *env)
{
	MDB_envinfo info;
	uint64_t used, unused;

	mdb_env_info(env->store->mdb, &info);
	used = info.me_last_pgno + 1;
	if (file_system_full(env, used) || env_bytes(env) > atomic_load(&env->pool->image_room))
		return true;
	if (used <= env->limit)
		return false;
	/* The file has been larger than the limit, and files do not shrink: what counts is how much
	 * of it is in use. Counting takes time, so the more is free the rarer it is done. */
	if (env->recount) {
		env->recount--;
		return env->full;
	}
	if (count_free(env, &unused))
		return true;
	env->full = used - unused > env->limit;
	env->recount = env->full ? 0 : (env->limit - (used - unused)) / 2048;
	if (env->recount > 1000)
		env->recount = 1000;
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

uint64_t env_image_lsn(const struct env *env)
{
	uint64_t lsn;

	pthread_mutex_lock(&writable(env)->lock);
	lsn = env->image_lsn;
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

void env_set_image(struct env *env, uint64_t lsn, const struct journal_position *from)
{
	pthread_mutex_lock(&env->lock);
	assert(lsn <= env->applied);
	env->image_lsn = lsn;
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

/* --- the registry ------------------------------------------------------------------------------
 */

/* Under volumes_lock, all of these. */
static struct env *registry_find(struct pool *pool, uint32_t volume)
{
	struct env *env = pool->volumes;

	while (env && env->volume != volume)
		env = env->next;
	return env;
}

static void registry_add(struct pool *pool, struct env *env)
{
	env->next = pool->volumes;
	pool->volumes = env;
	env->listed = true;
}

static void registry_remove(struct pool *pool, struct env *env)
{
	struct env **at = &pool->volumes;

	if (!env->listed)
		return;
	while (*at != env)
		at = &(*at)->next;
	*at = env->next;
	env->listed = false;
}

static bool is_needed(struct env *env)
{
	struct journal_position position;

	return env->users || (env->listed && env_replay_from(env, &position));
}

void env_destroy(struct env *env)
{
	struct pool *pool;

	if (!env)
		return;
	pool = env->pool;
	pthread_mutex_lock(&pool->volumes_lock);
	assert(!env->users);
	registry_remove(pool, env);
	pthread_mutex_unlock(&pool->volumes_lock);
	env_free(env);
}

void env_put(struct env *env)
{
	struct pool *pool = env->pool;
	bool needed;

	if (!env->volume)
		return;
	pthread_mutex_lock(&pool->volumes_lock);
	assert(env->users);
	env->users--;
	needed = is_needed(env);
	if (!needed)
		registry_remove(pool, env);
	pthread_mutex_unlock(&pool->volumes_lock);
	if (!needed)
		env_free(env);
}

void env_set_gone(struct pool *pool, uint32_t volume)
{
	struct env *env;

	pthread_mutex_lock(&pool->volumes_lock);
	env = registry_find(pool, volume);
	if (env) {
		atomic_store(&env->gone, true);
		registry_remove(pool, env);
		if (env->users)
			env = NULL; /* the last env_put() frees it */
	}
	pthread_mutex_unlock(&pool->volumes_lock);
	if (env)
		env_free(env);
}

struct env *env_find(struct pool *pool, uint32_t volume)
{
	struct env *env;

	pthread_mutex_lock(&pool->volumes_lock);
	env = registry_find(pool, volume);
	if (env)
		env->users++;
	pthread_mutex_unlock(&pool->volumes_lock);
	return env;
}

static struct bytes image_key(uint8_t key[9], uint32_t volume, uint32_t part)
{
	struct writer w = writer_on(key, 9);

	put_u8(&w, KEY_IMAGE);
	put_be64(&w, (uint64_t)volume << 32 | part);
	return (struct bytes){key, 9};
}

static int find_image(struct txn *view, uint32_t volume, struct image_row *image)
{
	struct env *env = pool_env(txn_pool(view));
	uint8_t key[9];
	struct bytes value;
	struct reader r;
	int rc;

	rc = txn_get(view, env, image_key(key, volume, 1), &value);
	if (rc != -ENOENT)
		return rc ? rc : -ENOTSUP; /* parts are deltas, which a later version may write */
	rc = txn_get(view, env, image_key(key, volume, 0), &value);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	r = reader_on(value.data, value.length);
	return image_row_decode(image, &r);
}

int env_describe(struct pool *pool, uint32_t volume, struct image_row *image, bool *sealed)
{
	struct volume_row row;
	struct txn *view;
	int rc = view_begin(pool->env, &view);

	if (rc)
		return rc;
	memset(image, 0, sizeof(*image));
	rc = volume_row_get(view, volume, &row);
	if (!rc)
		rc = find_image(view, volume, image);
	if (!rc)
		*sealed = row.sealed;
	txn_abort(view);
	return rc;
}

/* Without locks: the environment is listed as loading, and nobody else touches it. */
static int registry_load(struct env *env)
{
	struct image_row image;
	bool sealed = false;
	int rc = env_describe(env->pool, env->volume, &image, &sealed);

	if (rc)
		return rc;
	atomic_store(&env->sealed, sealed);
	return env_fill(env, &image);
}

static void registry_loaded(struct env *env, int rc)
{
	struct pool *pool = env->pool;

	pthread_mutex_lock(&pool->volumes_lock);
	env->state = rc ? ENV_FAILED : ENV_READY;
	env->error = rc;
	if (rc)
		registry_remove(pool, env);
	pthread_cond_broadcast(&env->loaded);
	pthread_mutex_unlock(&pool->volumes_lock);
}

/* The listed environment or a new one to be loaded; NULL when there is no memory. */
static struct env *registry_enter(struct pool *pool, uint32_t volume, bool *fresh)
{
	struct env *env;

	pthread_mutex_lock(&pool->volumes_lock);
	env = registry_find(pool, volume);
	*fresh = !env;
	if (!env) {
		env = env_allocate(pool, volume);
		if (env)
			registry_add(pool, env);
	}
	if (env)
		env->users++;
	while (env && !*fresh && env->state == ENV_LOADING)
		pthread_cond_wait(&env->loaded, &pool->volumes_lock);
	pthread_mutex_unlock(&pool->volumes_lock);
	return env;
}

int env_get(struct pool *pool, uint32_t volume, struct env **result)
{
	struct env *env;
	bool fresh;
	int rc;

	if (!volume) {
		*result = pool->env;
		return 0;
	}
	env = registry_enter(pool, volume, &fresh);
	if (!env)
		return -ENOMEM;
	if (fresh)
		registry_loaded(env, registry_load(env));
	rc = env->error;
	if (rc)
		env_put(env);
	else
		*result = env;
	return rc;
}

int env_list(struct pool *pool, struct env ***envs, unsigned *count)
{
	struct env *env, **list;
	unsigned n = 0;

	pthread_mutex_lock(&pool->volumes_lock);
	for (env = pool->volumes; env; env = env->next)
		n++;
	list = malloc((n ? n : 1) * sizeof(struct env *));
	n = 0;
	for (env = pool->volumes; list && env; env = env->next) {
		if (env->state != ENV_READY)
			continue;
		env->users++;
		list[n++] = env;
	}
	pthread_mutex_unlock(&pool->volumes_lock);
	if (!list)
		return -ENOMEM;
	*envs = list;
	*count = n;
	return 0;
}

void env_forget_all(struct pool *pool)
{
	while (pool->volumes)
		env_destroy(pool->volumes);
}
