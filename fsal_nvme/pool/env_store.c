/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Stores: LMDB as a view in memory, and the read transactions on it.
 *
 * A store is an LMDB environment whose files are unlinked as soon as they are open: nothing of it
 * outlives the process, and no page of it is ever believed after a crash. Opening one costs more
 * than a hundred system calls' worth of time, emptying one a few microseconds, so small ones are
 * emptied and kept for the next environment (STOCK_MAX of them).
 *
 * The map is written in place (MDB_WRITEMAP), which halves the cost of a transaction. Whoever
 * writes sees to it that the file system has room first (env_room.c); so does who begins more views
 * than there were before, as each has a slot in the file of LMDB's locks, which is mapped too.
 */
#include "pool/env.h"

#include <assert.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define READERS_MAX 4096u
#define STOCK_MAX 8u
#define STOCK_PAGES 256u /* what an emptied store may have grown to */
#define LOCKS_HEAD 1024u /* bytes before the first view's slot, not less */

#ifdef __SANITIZE_THREAD__
/* LMDB reuses a page once no reader's slot names a transaction that old, an order which the
 * sanitizer cannot see; and a store's locks change places in the order when it is used again. */
const char *__tsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void)
{
	return "race:liblmdb.so\ndeadlock:liblmdb.so\n";
}
#endif

/* --- opened, emptied, kept ------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	struct store *first;
	unsigned count;
} stock = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void view_free(struct view *view)
{
	mdb_cursor_close(view->cursor);
	mdb_txn_abort(view->txn);
	free(view->shown);
	free(view);
}

static void store_free(struct store *store)
{
	struct view *view;

	while ((view = store->idle)) {
		store->idle = view->next;
		view_free(view);
	}
	mdb_env_close(store->mdb);
	if (store->locks >= 0)
		close(store->locks);
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

/* The file of the locks, before LMDB makes it larger and writes to its beginning. */
static int make_locks(struct store *store, const char *path)
{
	store->locks = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return store->locks < 0 ? errno : store_back_locks(store, LOCKS_HEAD);
}

static int measure_slots(struct store *store)
{
	struct stat status;

	if (fstat(store->locks, &status))
		return errno;
	store->slot_size = (size_t)status.st_size / READERS_MAX + 1;
	return 0;
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
	rc = make_locks(store, lock_path);
	if (!rc)
		rc = mdb_env_open(store->mdb, path,
			MDB_NOSUBDIR | MDB_WRITEMAP | MDB_NOSYNC | MDB_NOMETASYNC | MDB_NOTLS |
				MDB_NORDAHEAD | MDB_NOMEMINIT,
			0600);
	unlink(path);
	unlink(lock_path);
	return rc ? rc : measure_slots(store);
}

/* LMDB's own order, by bytes, then by length. Most keys begin with a letter and big-endian numbers,
 * of which eight bytes at a time take half the work. */
static int compare_keys(const MDB_val *a, const MDB_val *b)
{
	size_t common = a->mv_size < b->mv_size ? a->mv_size : b->mv_size, i;
	const uint8_t *x = a->mv_data, *y = b->mv_data;
	uint64_t u, v;

	for (i = 0; i + sizeof(u) <= common; i += sizeof(u)) {
		memcpy(&u, x + i, sizeof(u));
		memcpy(&v, y + i, sizeof(v));
		if (u != v)
			return be64toh(u) < be64toh(v) ? -1 : 1;
	}
	for (; i < common; i++) {
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	}
	return (a->mv_size > b->mv_size) - (a->mv_size < b->mv_size);
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
	if (!rc)
		rc = mdb_set_compare(txn, store->dbi, compare_keys);
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
	store->locks = -1;
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

int store_get(const char *directory, size_t map_size, struct store **store)
{
	struct stat status;

	if (stat(directory, &status))
		return errno;
	*store = stock_take(map_size, status.st_dev);
	if (*store)
		return 0;
	return store_open(directory, map_size, status.st_dev, store);
}

/*
 * LMDB publishes a transaction with a plain store, which orders nothing for those who read what it
 * wrote: the count does, as each view reads it after it has begun.
 */
int store_commit(struct store *store, MDB_txn *txn)
{
	atomic_fetch_add_explicit(&store->commits, 1, memory_order_release);
	return mdb_txn_commit(txn);
}

static bool store_empty(struct store *store)
{
	MDB_envinfo info;
	MDB_txn *txn;

	mdb_env_info(store->mdb, &info);
	if (info.me_last_pgno >= STOCK_PAGES || mdb_txn_begin(store->mdb, NULL, 0, &txn))
		return false;
	if (store_room_begin(store, txn) || store_room_to_empty(store) ||
		mdb_drop(txn, store->dbi, 0)) {
		mdb_txn_abort(txn);
		return false;
	}
	return !store_commit(store, txn);
}

void store_put(struct store *store)
{
	assert(!atomic_load(&store->views));
	if (store->process != getpid())
		return; /* a child's copy: not ours to close */
	if (!store_empty(store) || !stock_give(store))
		store_free(store);
}

/* --- views ------------------------------------------------------------------------------------ */

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

/* LMDB takes the first slot that is free, and those of idle views are not. */
static int slot_take(struct store *store)
{
	int rc;

	pthread_mutex_lock(&store->lock);
	rc = store_back_locks(store, LOCKS_HEAD + (store->slots + 1) * store->slot_size);
	if (!rc)
		store->slots++;
	pthread_mutex_unlock(&store->lock);
	return rc;
}

static void slot_give(struct store *store)
{
	pthread_mutex_lock(&store->lock);
	store->slots--;
	pthread_mutex_unlock(&store->lock);
}

static int view_open(struct store *store, struct view **result)
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

static int view_make(struct store *store, struct view **view)
{
	int rc = slot_take(store);

	if (rc)
		return rc;
	rc = view_open(store, view);
	if (rc)
		slot_give(store);
	return rc;
}

static int view_renew(struct store *store, struct view *view)
{
	int rc = mdb_txn_renew(view->txn);

	if (!rc)
		rc = mdb_cursor_renew(view->txn, view->cursor);
	if (rc) {
		view_free(view);
		slot_give(store);
	}
	return rc;
}

int store_view_begin(struct store *store, struct view **view)
{
	int rc;

	*view = idle_view(store);
	rc = *view ? view_renew(store, *view) : view_make(store, view);
	if (rc)
		return rc;
	atomic_fetch_add(&store->views, 1);
	(void)atomic_load_explicit(&store->commits, memory_order_acquire);
	return 0;
}

void store_view_end(struct store *store, struct view *view)
{
	mdb_txn_reset(view->txn);
	pthread_mutex_lock(&store->lock);
	view->next = store->idle;
	store->idle = view;
	pthread_mutex_unlock(&store->lock);
	atomic_fetch_sub(&store->views, 1);
}
