/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What env.c, env_store.c, env_room.c, env_registry.c, txn.c, image.c, image_read.c and table.c
 * share: LMDB stays behind this page. What stands under "for the rest of pool/" is meant for
 * checkpoint.c, pool.c and journal.c as well.
 */
#ifndef MILLRACE_POOL_ENV_H
#define MILLRACE_POOL_ENV_H

#include <lmdb.h>
#include <sys/types.h>

#include "pool/internal.h"

/* --- for the rest of pool/ ------------------------------------------------------------------ */

/* Each change of a record costs its key, its value and this. */
#define TXN_CHANGE_OVERHEAD 11u

/*
 * Between the two, transactions of this thread may use the room that the journal keeps for
 * checkpoints and drops; they nest. Needed by whoever makes room: a checkpoint that waited for
 * room would wait for itself.
 */
void txn_urgent_begin(void);
void txn_urgent_end(void);

/*
 * Replay applies one record's payload, each change to its environment if the LSN is later than that
 * environment's image, in two rounds over the same records: first the pool's own environment alone,
 * so that the segment table is the newest; then, the table in memory, the volumes, each from its
 * newest image, loaded as they are met. One round cannot do: the image that was the newest when a
 * record was written may be gone by now. Changes of volumes that do not exist any more are passed
 * over.
 */
int txn_replay_pool(struct pool *pool, uint64_t lsn, const void *payload, size_t length);
int txn_replay_volumes(struct pool *pool, uint64_t lsn, const void *payload, size_t length);
/* After each round: what was replayed is kept in open transactions of this thread until then. */
int txn_replay_end(struct pool *pool);

/* The loaded environments of volumes, each counted: env_put() for each, free() the array. */
int env_list(struct pool *pool, struct env ***envs, unsigned *count);
/* Calls back for each of them whose volume was not deleted; the first error. */
int env_each(
	struct pool *pool, int (*each)(struct pool *pool, struct env *env, void *data), void *data);
/*
 * Its volume is sealed: txn_begin() says -EROFS from now on. To be set before the final image is
 * written (which waits for a transaction that has begun), and cleared when that fails.
 */
void env_set_sealed(struct env *env);
void env_clear_sealed(struct env *env);
/* Its volume was deleted: there is nothing to checkpoint. */
bool env_is_gone(struct env *env);
/* Lets go of all volumes' environments, changed or not. None may have users. */
void env_forget_all(struct pool *pool);

/* --- stores (env_store.c) ---------------------------------------------------------------------
 */

/* A read transaction that is kept for the next view, with its cursor. */
struct view {
	MDB_txn *txn;
	MDB_cursor *cursor;
	struct txn *shown; /* what txn.c gives out for it; freed with it */
	struct view *next;
};

#define STORE_PAGE 4096u

/* Pages that the transaction that is open may need: env_room.c. */
struct store_room {
	uint64_t pages; /* in the file when it began */
	uint64_t leaves, branches; /* of these in the tree */
	uint64_t growth; /* by how many the tree was larger since, at most */
	uint64_t table; /* in the tree of LMDB's table of free pages */
	unsigned levels; /* of the tree, before the last change */
	uint64_t leaf_copies, branch_copies, values, roots; /* of its changes so far, at most */
};

/* An LMDB environment in an unlinked scratch file; emptied ones are used again. */
struct store {
	MDB_env *mdb;
	MDB_dbi dbi;
	size_t map_size;
	uint64_t file_system; /* st_dev of its directory */
	pid_t process; /* that opened it: LMDB does not survive a fork */
	int locks; /* the file of LMDB's locks and of its views, unlinked */
	uint64_t backed; /* pages that the file system has set aside; under the write lock */
	struct store_room room; /* under the write lock */
	pthread_mutex_t lock; /* the three below */
	struct view *idle;
	uint64_t locks_backed; /* bytes */
	unsigned slots; /* of views, begun or idle */
	size_t slot_size; /* bytes of one, not less */
	_Atomic unsigned views; /* begun and not ended */
	_Atomic uint64_t commits; /* what a view shows was written before it was counted here */
	struct store *next;
};

/* An empty store in the directory's file system; LMDB's error or errno. */
int store_get(const char *directory, size_t map_size, struct store **store);
/* It has no views and no transactions. Emptied and kept, or closed. */
void store_put(struct store *store);
/* LMDB's error or errno. */
int store_view_begin(struct store *store, struct view **view);
void store_view_end(struct store *store, struct view *view);
/* Ends a write transaction; LMDB's error. */
int store_commit(struct store *store, MDB_txn *txn);

/* --- room for stores (env_room.c) -------------------------------------------------------------
 *
 * Under the write lock, but for the first. LMDB's error or errno, ENOSPC above all.
 */

/* The file of the views has so many bytes; under store->lock, or before others have the store. */
int store_back_locks(struct store *store, uint64_t bytes);
/* A transaction that may change something has begun. */
int store_room_begin(struct store *store, MDB_txn *txn);
/* Before each change, and before all of a store is dropped: the file has what the transaction may
 * then need. */
int store_room_to_put(struct store *store, MDB_txn *txn, size_t key, size_t value);
int store_room_to_delete(struct store *store, MDB_txn *txn);
int store_room_to_empty(struct store *store);
/* Pages of the file, from its start, that suffice for what the transaction has changed so far, and
 * for so many splits, and for its commit. */
uint64_t store_room_needed(const struct store_room *room, uint64_t splits);
/* Whether the file system has no room for `ahead` pages more than there are, a margin left aside:
 * what is begun now is not to make the store larger. */
bool store_is_short(struct store *store, uint64_t ahead);

/* --- one environment (env.c) ------------------------------------------------------------------
 */

enum env_state { ENV_LOADING, ENV_READY, ENV_FAILED };

struct env {
	struct pool *pool;
	uint32_t volume;
	struct store *store;

	pthread_mutex_t lock; /* the five below */
	uint64_t applied, image_lsn;
	struct image image; /* its last one */
	bool changing; /* a commit is between its record and `applied` */
	struct journal_position replay; /* valid when applied != image_lsn or `changing` */

	_Atomic bool sealed, gone;
	_Atomic uint64_t growth; /* bytes beyond its last image, as they count in image_room */
	_Atomic uint64_t change; /* the pool's own: the last pool_change() of this epoch */
	_Atomic uintptr_t writer; /* thread that holds the write lock, or 0 */

	/* under the write lock */
	MDB_txn *replaying; /* changes since it was last flushed */
	size_t replayed; /* what they cost, towards REPLAY_BATCH */
	uint64_t limit; /* pages that may be in use */
	unsigned recount, recount_short; /* transactions until the free pages are counted again */
	bool full, is_short;
	struct key_set *changed; /* env_changed.c: since an LSN, at most so many bytes; or NULL */
	uint64_t changed_since, changed_most;

	/* env_registry.c: under pool->volumes_lock */
	struct env *next;
	bool listed;
	unsigned users;
	enum env_state state;
	int error; /* ENV_FAILED: why */
	pthread_cond_t loaded;
};

/* LMDB's result as ours; what should not happen is logged with `what`. */
int env_error(const struct env *env, int result, const char *what);
/* The write lock, and its end; waits for other threads' transactions, never for its own. */
int env_write_begin(struct env *env, MDB_txn **txn);
int env_write_commit(struct env *env, MDB_txn *txn);
void env_write_abort(struct env *env, MDB_txn *txn);
/* All changes of an environment are made by these; `flags` as mdb_put() has them. -ENOSPC also when
 * the scratch file system is full. Nothing is changed when they fail. */
int env_write_put(
	struct env *env, MDB_txn *txn, struct bytes key, struct bytes value, unsigned flags);
int env_write_delete(struct env *env, MDB_txn *txn, struct bytes key);
int env_write_empty(struct env *env, MDB_txn *txn);
int env_view_begin(struct env *env, struct view **view);
void env_view_end(struct env *env, struct view *view);
/* Under the write lock: whether only what does not make it larger may be committed, because there
 * is no room for its image or no memory for itself; because it has reached its limit of memory; or
 * because the scratch file system is full. */
bool env_is_full(struct env *env);
bool env_memory_full(struct env *env);
bool env_is_short(struct env *env);
/* Of the pages in use; about what its image takes, not less. */
uint64_t env_bytes(struct env *env);
void env_image(struct env *env, struct image *image); /* its last one */
/* Around journal_append() of a record that changes `env`, under its write lock. */
void env_change_begin(struct env *env);
void env_change_end(struct env *env, uint64_t lsn);
/* A replayed record is in `env`. */
void env_replayed(struct env *env, uint64_t lsn);
/* Commits what this thread has replayed. */
int env_replay_flush(struct env *env);
/* For the registry. A new one, loading and without a store; NULL when there is no memory. */
struct env *env_allocate(struct pool *pool, uint32_t volume);
/* Gives it its store, and what the image says (NULL: nothing). */
int env_fill(struct env *env, const struct image *image);
/* Not listed any more, or never was; changed or not. */
void env_free(struct env *env);

/* --- keys that have changed (env_changed.c) -----------------------------------------------------
 *
 * Under the write lock, all of them.
 */

struct key_set;
/* An image of this LSN was loaded: they are noted from here on; and not any more. */
void env_changed_begin(struct env *env, uint64_t lsn);
void env_changed_end(struct env *env);
void env_changed_note(struct env *env, struct bytes key);
/* A view of `lsn` has begun, and noting begins anew: what was noted, for the caller to free; NULL
 * when that is not all that changed after `since`. */
struct key_set *env_changed_take(struct env *env, uint64_t since, uint64_t lsn);

/* --- environments in memory (env_registry.c) --------------------------------------------------
 */

/* The volume's environment, counted, if it is in memory; or NULL. */
struct env *env_find(struct pool *pool, uint32_t volume);
/* What the pool's environment knows of a volume: its newest image and whether it is sealed. -ENOENT
 * when there is no such volume. */
int env_describe(struct pool *pool, uint32_t volume, struct image *image, bool *sealed);
/* The rows of the volume's image; -EBADMSG when they are not all there. And a row's key. */
int env_find_image(struct txn *txn, uint32_t volume, struct image *image);
struct bytes key_image(uint8_t key[9], uint32_t volume, uint32_t part);
/* A new one without a row yet, loaded and counted, in no list; and into the list. */
int env_make(struct pool *pool, uint32_t volume, struct env **env);
void env_enlist(struct env *env);
/* The volume is deleted: forgets its environment and changes, at once or with the last user. */
void env_set_gone(struct pool *pool, uint32_t volume);

static inline MDB_val val(struct bytes bytes)
{
	return (MDB_val){bytes.length, (void *)(uintptr_t)bytes.data};
}

/* --- keys, transactions ---------------------------------------------------------------------- */

/* Big-endian, for keys. */
static inline void put_key_u32(struct writer *w, uint32_t value)
{
	uint8_t buffer[4];

	for (unsigned i = 0; i < 4; i++)
		buffer[i] = (uint8_t)(value >> (24 - 8 * i));
	put_bytes(w, buffer, 4);
}

static inline uint32_t get_key_u32(struct reader *r)
{
	const uint8_t *p = get_bytes(r, 4);
	uint32_t value = 0;

	for (unsigned i = 0; p && i < 4; i++)
		value = value << 8 | p[i];
	return value;
}

/* Whether the transaction has changed anything yet. (txn.c) */
bool txn_has_changes(const struct txn *txn);

/* --- codecs, pure: bytes in, calls out ---------------------------------------------------------
 */

enum change_type { CHANGE_PUT = 1, CHANGE_DELETE = 2 };

struct change {
	enum change_type type;
	uint32_t volume;
	struct bytes key, value; /* in the record */
};

/* Calls back for each change in a record; -EBADMSG when it is not one, before or after calls. */
int changes_decode(const void *payload, size_t length,
	int (*each)(void *data, const struct change *change), void *data);

/* The head of an image's part and its entries, fed in pieces of any size. */
struct image_head {
	uint32_t volume, part;
	uint8_t kind;
	uint64_t lsn, before; /* before: of a delta, the LSN of the part that it goes on from */
};

struct image_decoder {
	struct image_head head; /* valid once `headed` */
	bool headed, ended;
	uint64_t entries;
	uint8_t *carry; /* bytes not decoded yet */
	size_t carried, capacity;
	uint8_t last[POOL_KEY_MAX];
	size_t last_length;
	int (*head_done)(void *data, const struct image_head *head);
	int (*entry)(void *data, struct bytes key, struct bytes value);
	int (*deleted)(void *data, struct bytes key); /* deltas have such entries */
	void *data;
};

/* -EBADMSG for what is no image, -ENOTSUP for one of a later version, or what a callback said. */
int image_decode(struct image_decoder *decoder, const void *bytes, size_t length);
/* All pieces were fed: whether that was a whole image. */
int image_decode_end(struct image_decoder *decoder);
void image_decoder_release(struct image_decoder *decoder);

#endif
