/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Transactions: one LMDB transaction on a volume's environment, one on the pool's, one record in
 * the journal over both.
 *
 * How one goes. txn_begin() reserves room in the journal (before any lock: waiting for room means
 * waiting for a checkpoint, which needs the locks), then takes the volume's write lock; the pool's
 * is taken when its environment is first asked for, also by a look, or at once when there is no
 * volume. Each change goes into the record and into LMDB. txn_commit() appends the record, tells
 * the environments its LSN, runs the hooks and only then commits LMDB, which lets the locks go:
 * transactions of an environment have their LSNs in the order in which they see each other.
 *
 * What can go wrong. Until the record is appended, everything: the transaction is abandoned and
 * nothing has happened. After it nothing may: an environment that cannot follow the journal is
 * wrong, and the pool stops. An environment that has reached its limit takes only transactions
 * that do not make it larger, which is seen at the end, so that deleting works: txn_commit() then
 * says -ENOSPC. The pool's own has no limit of its own here (checkpoint_measure() has), but scratch
 * space ends; urgent transactions, which make room, go on as long as there is any.
 *
 * A record's payload is a list of changes, one behind the other up to its end:
 *   u8 type (enum change_type), u32 volume (0: the pool), u16 key length, u32 value length, key,
 *   value
 */
#include "pool/env.h"

#include <assert.h>

#define RESERVE_BASE (256u * 1024) /* of a record, besides the bytes of an open row */
#define RESERVE_URGENT (8u << 10) /* an image's row, the segments of the one before it */
#define RECORD_FIRST 1024u
#define REPLAY_BATCH (8u << 20) /* bytes of changes replayed in one LMDB transaction */
#define REPLAY_CHANGE 512u /* what a change counts for at least: a few pages are touched */

struct side {
	struct env *env; /* NULL: no volume */
	MDB_txn *mdb; /* NULL: not begun */
	bool changed, full; /* full: it may not become larger */
	int64_t growth; /* bytes, counted when `full` */
};

struct txn {
	struct pool *pool;
	struct side volume, own; /* own: the pool's */
	struct env *viewed; /* of a view, with `view`; nothing else is valid then */
	struct view *view;
	uint8_t *record;
	size_t length, capacity, limit; /* limit: what was reserved */
	struct txn_hook *hooks, **hooks_end;
	int failed; /* the first error of a change: only abort may follow */
	bool made; /* the volume's environment is this transaction's, listed when it is committed */
};

static _Thread_local unsigned urgent;

void txn_urgent_begin(void)
{
	urgent++;
}

void txn_urgent_end(void)
{
	assert(urgent);
	urgent--;
}

static int fail(struct txn *txn, int error)
{
	if (!txn->failed)
		txn->failed = error;
	return error;
}

/* --- beginning ------------------------------------------------------------------------------- */

static int refusal(struct pool *pool, struct env *env)
{
	if (atomic_load(&pool->failure))
		return atomic_load(&pool->failure);
	if (pool->read_only)
		return -EROFS;
	if (env && atomic_load(&env->gone))
		return -ENOENT;
	return env && atomic_load(&env->sealed) ? -EROFS : 0;
}

static int side_begin(struct side *side, struct env *env)
{
	int rc = env_write_begin(env, &side->mdb);

	if (rc)
		return rc;
	side->env = env;
	side->full = (env->volume || !urgent) && env_is_full(env);
	return 0;
}

/* A record may have to hold the bytes of a row that is not full; an urgent one only the checksums
 * of a row. What is not used is kept from others until the end of the transaction. */
static size_t record_limit(struct pool *pool)
{
	size_t cells = (size_t)(pool->k + (urgent ? pool->m : 0)) * pool->header.cell;
	size_t limit = urgent ? RESERVE_URGENT + cells / BLOCK_SIZE * sizeof(uint32_t)
			      : RESERVE_BASE + cells;
	size_t most = journal_record_max(pool);

	return limit < most ? limit : most;
}

/*
 * Above all that earlier epochs gave out: they began at their epoch's base and their LSN, and both
 * only grow. The count runs ahead of the LSN by what became no record, unstable writes above all,
 * but not by 2^40: that is four months of 100,000 a second in one opening.
 */
uint64_t pool_change(struct pool *pool)
{
	_Atomic uint64_t *change = &pool->env->change;
	uint64_t none = 0;

	if (!atomic_load(change))
		atomic_compare_exchange_strong(
			change, &none, (pool->epoch << 40) + journal_lsn(pool));
	return atomic_fetch_add(change, 1) + 1;
}

uint64_t pool_lsn(struct pool *pool)
{
	return journal_lsn(pool);
}

static int begin_sides(struct txn *txn, struct env *env)
{
	int rc = env ? side_begin(&txn->volume, env) : side_begin(&txn->own, txn->pool->env);

	if (rc)
		return rc;
	/* Sealed or deleted while we waited for the lock. */
	return refusal(txn->pool, env);
}

static struct txn *txn_allocate(struct pool *pool)
{
	struct txn *txn = calloc(1, sizeof(*txn));

	if (!txn)
		return NULL;
	txn->pool = pool;
	txn->hooks_end = &txn->hooks;
	return txn;
}

int txn_begin(struct pool *pool, struct env *env, struct txn **result)
{
	struct txn *txn;
	int rc;

	if (env == pool->env)
		env = NULL;
	rc = refusal(pool, env);
	if (rc)
		return rc;
	txn = txn_allocate(pool);
	if (!txn)
		return -ENOMEM;
	txn->limit = record_limit(pool);
	rc = journal_reserve(pool, txn->limit, urgent > 0);
	if (rc) {
		free(txn);
		return rc;
	}
	rc = begin_sides(txn, env);
	if (rc)
		txn_abort(txn);
	else
		*result = txn;
	return rc;
}

/* Its lock comes after the pool's, against the order: nobody else can know it before the end. */
int txn_new_env(struct txn *txn, uint32_t volume, struct env **result)
{
	struct env *env;
	int rc = txn->failed;

	assert(!txn->volume.env);
	if (!rc)
		rc = env_make(txn->pool, volume, &env);
	if (rc)
		return fail(txn, rc);
	rc = side_begin(&txn->volume, env);
	if (rc) {
		env_put(env);
		return fail(txn, rc);
	}
	txn->made = true;
	*result = env;
	return 0;
}

int view_begin(struct env *env, struct txn **result)
{
	struct view *view;
	int rc = env_view_begin(env, &view);

	if (rc)
		return rc;
	if (!view->shown)
		view->shown = txn_allocate(env->pool);
	if (!view->shown) {
		env_view_end(env, view);
		return -ENOMEM;
	}
	view->shown->pool = env->pool;
	view->shown->viewed = env;
	view->shown->view = view;
	*result = view->shown;
	return 0;
}

struct pool *txn_pool(const struct txn *txn)
{
	return txn->pool;
}

size_t txn_room(const struct txn *txn)
{
	return txn->limit - txn->length;
}

bool txn_has_changes(const struct txn *txn)
{
	return txn->length > 0;
}

void txn_on_end(struct txn *txn, struct txn_hook *hook)
{
	hook->next = NULL;
	*txn->hooks_end = hook;
	txn->hooks_end = &hook->next;
}

/* --- looking -----------------------------------------------------------------------------------
 */

static struct side *side_of(struct txn *txn, struct env *env)
{
	if (env == txn->pool->env)
		return &txn->own;
	assert(env && env == txn->volume.env);
	return &txn->volume;
}

/* The side of `env`, begun. */
static int open_side(struct txn *txn, struct env *env, struct side **side)
{
	int rc;

	assert(!txn->view);
	if (txn->failed)
		return txn->failed;
	*side = side_of(txn, env);
	if ((*side)->mdb)
		return 0;
	rc = side_begin(*side, env);
	return rc ? fail(txn, rc) : 0;
}

bool txn_is_full(struct txn *txn, struct env *env)
{
	struct side *side;

	return open_side(txn, env, &side) || side->full;
}

static int open_look(struct txn *txn, struct env *env, MDB_txn **mdb)
{
	struct side *side;
	int rc;

	if (txn->view) {
		assert(env == txn->viewed);
		*mdb = txn->view->txn;
		return 0;
	}
	rc = open_side(txn, env, &side);
	if (!rc)
		*mdb = side->mdb;
	return rc;
}

static struct bytes bytes_of(MDB_val v)
{
	return (struct bytes){v.mv_data, v.mv_size};
}

static bool key_valid(struct bytes key)
{
	return key.length && key.length <= POOL_KEY_MAX;
}

int txn_get(struct txn *txn, struct env *env, struct bytes key, struct bytes *value)
{
	MDB_val k = val(key), v;
	MDB_txn *mdb;
	int rc;

	if (!key_valid(key))
		return -EINVAL;
	rc = open_look(txn, env, &mdb);
	if (rc)
		return rc;
	rc = mdb_get(mdb, env->store->dbi, &k, &v);
	if (rc)
		return env_error(env, rc, "cannot read");
	*value = bytes_of(v);
	return 0;
}

static int seek_forward(MDB_cursor *cursor, MDB_val *key, MDB_val *value)
{
	/* LMDB knows no empty keys: it stands for the beginning. */
	return mdb_cursor_get(cursor, key, value, key->mv_size ? MDB_SET_RANGE : MDB_FIRST);
}

static int seek_backward(MDB_cursor *cursor, MDB_val *key, MDB_val *value)
{
	MDB_val wanted = *key;
	int rc;

	if (!key->mv_size)
		return MDB_NOTFOUND;
	rc = mdb_cursor_get(cursor, key, value, MDB_SET_RANGE);
	if (rc == MDB_NOTFOUND)
		return mdb_cursor_get(cursor, key, value, MDB_LAST);
	if (rc || (key->mv_size == wanted.mv_size &&
			  !memcmp(key->mv_data, wanted.mv_data, wanted.mv_size)))
		return rc;
	return mdb_cursor_get(cursor, key, value, MDB_PREV);
}

static int seek(struct txn *txn, struct env *env, struct bytes key, struct bytes *found,
	struct bytes *value, int (*move)(MDB_cursor *cursor, MDB_val *key, MDB_val *value))
{
	MDB_val k = val(key), v;
	MDB_cursor *cursor;
	MDB_txn *mdb;
	int rc;

	if (key.length > POOL_KEY_MAX)
		return -EINVAL;
	rc = open_look(txn, env, &mdb);
	if (rc)
		return rc;
	if (txn->view) {
		rc = move(txn->view->cursor, &k, &v);
	} else {
		rc = mdb_cursor_open(mdb, env->store->dbi, &cursor);
		if (rc)
			return env_error(env, rc, "cannot open a cursor");
		rc = move(cursor, &k, &v);
		mdb_cursor_close(cursor);
	}
	if (rc)
		return env_error(env, rc, "cannot seek");
	*found = bytes_of(k);
	*value = bytes_of(v);
	return 0;
}

int txn_seek(struct txn *txn, struct env *env, struct bytes key, struct bytes *found,
	struct bytes *value)
{
	return seek(txn, env, key, found, value, seek_forward);
}

int txn_seek_back(struct txn *txn, struct env *env, struct bytes key, struct bytes *found,
	struct bytes *value)
{
	return seek(txn, env, key, found, value, seek_backward);
}

/* --- changing ----------------------------------------------------------------------------------
 */

static int record_grow(struct txn *txn, size_t needed)
{
	size_t capacity = txn->capacity ? txn->capacity : RECORD_FIRST;
	uint8_t *record;

	while (capacity < needed)
		capacity *= 2;
	if (capacity == txn->capacity)
		return 0;
	record = realloc(txn->record, capacity);
	if (!record)
		return -ENOMEM;
	txn->record = record;
	txn->capacity = capacity;
	return 0;
}

/* Adds the change and points it at the record's bytes: the caller's may lie in a page of LMDB's. */
static int record_add(struct txn *txn, struct change *change)
{
	size_t room = txn_room(txn), size;
	struct writer w;
	int rc;

	if (change->value.length > room)
		return -E2BIG;
	size = TXN_CHANGE_OVERHEAD + change->key.length + change->value.length;
	if (size > room)
		return -E2BIG;
	rc = record_grow(txn, txn->length + size);
	if (rc)
		return rc;
	w = writer_on(txn->record + txn->length, size);
	put_u8(&w, (uint8_t)change->type);
	put_u32(&w, change->volume);
	put_u16(&w, (uint16_t)change->key.length);
	put_u32(&w, (uint32_t)change->value.length);
	put_bytes(&w, change->key.data, change->key.length);
	put_bytes(&w, change->value.data, change->value.length);
	assert(!w.overflow);
	change->value.data = w.at - change->value.length;
	change->key.data = w.at - change->value.length - change->key.length;
	txn->length += size;
	return 0;
}

/* `flags` of a put, as mdb_put() has them. */
static int apply(struct env *env, MDB_txn *mdb, const struct change *change, unsigned flags)
{
	int rc;

	if (change->type == CHANGE_DELETE)
		rc = env_write_delete(env, mdb, change->key);
	else
		rc = env_write_put(env, mdb, change->key, change->value, flags);
	if (!rc)
		env_changed_note(env, change->key);
	return rc;
}

static int64_t growth_of(struct side *side, const struct change *change)
{
	MDB_val key = val(change->key), old;
	int64_t growth = 0;

	if (!mdb_get(side->mdb, side->env->store->dbi, &key, &old))
		growth -= (int64_t)(key.mv_size + old.mv_size);
	if (change->type == CHANGE_PUT)
		growth += (int64_t)(key.mv_size + change->value.length);
	return growth;
}

/* What changes nothing, since the key is not there, or is there already, may be followed by more.
 */
static int make_change(struct txn *txn, struct env *env, struct change *change, unsigned flags)
{
	int64_t growth;
	struct side *side;
	size_t before = txn->length;
	int rc = open_side(txn, env, &side);

	if (rc)
		return rc;
	if (!key_valid(change->key))
		return fail(txn, -EINVAL);
	rc = record_add(txn, change);
	if (rc)
		return fail(txn, rc);
	growth = side->full ? growth_of(side, change) : 0;
	rc = apply(env, side->mdb, change, flags);
	if (!rc) {
		side->changed = true;
		side->growth += growth;
		return 0;
	}
	txn->length = before;
	return rc == -ENOENT || rc == -EEXIST ? rc : fail(txn, rc);
}

int txn_put(struct txn *txn, struct env *env, struct bytes key, struct bytes value)
{
	struct change put = {CHANGE_PUT, env->volume, key, value};

	return make_change(txn, env, &put, 0);
}

int txn_add(struct txn *txn, struct env *env, struct bytes key, struct bytes value)
{
	struct change put = {CHANGE_PUT, env->volume, key, value};

	return make_change(txn, env, &put, MDB_NOOVERWRITE);
}

int txn_delete(struct txn *txn, struct env *env, struct bytes key)
{
	struct change delete = {CHANGE_DELETE, env->volume, key, {NULL, 0}};

	return make_change(txn, env, &delete, 0);
}

/* --- ending ------------------------------------------------------------------------------------
 */

static void run_hooks(struct txn *txn, uint64_t lsn)
{
	struct txn_hook *hook;

	while ((hook = txn->hooks)) {
		txn->hooks = hook->next;
		hook->run(hook, lsn);
	}
}

static void side_abort(struct side *side)
{
	if (side->mdb)
		env_write_abort(side->env, side->mdb);
}

static void txn_free(struct txn *txn)
{
	free(txn->record);
	free(txn);
}

void txn_abort(struct txn *txn)
{
	if (!txn)
		return;
	if (txn->view) {
		env_view_end(txn->viewed, txn->view);
		return;
	}
	run_hooks(txn, 0);
	side_abort(&txn->own);
	side_abort(&txn->volume);
	journal_unreserve(txn->pool, txn->limit);
	txn_free(txn);
}

static int commit_refusal(const struct txn *txn)
{
	int rc = txn->failed ? txn->failed : atomic_load(&txn->pool->failure);

	if (rc)
		return rc;
	if (txn->own.full && txn->own.growth > 0)
		return -ENOSPC;
	return txn->volume.full && txn->volume.growth > 0 ? -ENOSPC : 0;
}

static uint64_t append_record(struct txn *txn)
{
	struct side *sides[] = {&txn->own, &txn->volume};
	uint64_t lsn;

	/* Before the record is there, so that no checkpoint takes it for saved. */
	if (txn->made)
		env_enlist(txn->volume.env);
	for (unsigned i = 0; i < 2; i++) {
		if (sides[i]->changed)
			env_change_begin(sides[i]->env);
	}
	lsn = journal_append(txn->pool, RECORD_CHANGES, txn->record, txn->length);
	journal_unreserve(txn->pool, txn->limit);
	for (unsigned i = 0; i < 2; i++) {
		if (sides[i]->changed)
			env_change_end(sides[i]->env, lsn);
	}
	return lsn;
}

static int side_commit(struct side *side)
{
	int rc;

	if (!side->changed) {
		side_abort(side);
		return 0;
	}
	rc = env_write_commit(side->env, side->mdb);
	if (rc)
		pool_fail(side->env->pool, rc, "an environment cannot follow the journal");
	return rc;
}

int txn_commit(struct txn *txn, uint64_t *lsn)
{
	int rc = commit_refusal(txn), rc_volume;

	*lsn = 0;
	assert(!txn->view);
	if (rc || !txn->length) {
		txn_abort(txn);
		return rc;
	}
	*lsn = append_record(txn);
	run_hooks(txn, *lsn);
	rc = side_commit(&txn->own);
	rc_volume = side_commit(&txn->volume);
	txn_free(txn);
	return rc ? rc : rc_volume;
}

/* --- records -----------------------------------------------------------------------------------
 */

static int decode_change(struct reader *r, struct change *change)
{
	uint16_t key_length;
	uint32_t value_length;
	uint8_t type = get_u8(r);

	change->volume = get_u32(r);
	key_length = get_u16(r);
	value_length = get_u32(r);
	change->key = (struct bytes){get_bytes(r, key_length), key_length};
	change->value = (struct bytes){get_bytes(r, value_length), value_length};
	if (r->bad || !key_valid(change->key))
		return -EBADMSG;
	if (type != CHANGE_PUT && (type != CHANGE_DELETE || value_length))
		return -EBADMSG;
	change->type = (enum change_type)type;
	return 0;
}

int changes_decode(const void *payload, size_t length,
	int (*each)(void *data, const struct change *change), void *data)
{
	struct reader r = reader_on(payload, length);
	struct change change;
	int rc = 0;

	while (!rc && r.at < r.end) {
		rc = decode_change(&r, &change);
		if (!rc)
			rc = each(data, &change);
	}
	return rc;
}

/* --- replay ------------------------------------------------------------------------------------
 */

struct replay {
	struct pool *pool;
	uint64_t lsn;
	bool volumes; /* this round is theirs */
	/* the environment of the changes before, counted; NULL: theirs are passed over */
	bool chosen;
	uint32_t volume;
	struct env *env;
};

static int no_change(void *data, const struct change *change)
{
	return 0;
}

/* The volume's environment if the record is later than its newest image; it is loaded for that. */
static int replay_find(struct replay *replay, struct env **result)
{
	struct pool *pool = replay->pool;
	struct env *env = replay->volume ? env_find(pool, replay->volume) : pool->env;
	struct image image;
	bool sealed;
	int rc = 0;

	*result = NULL;
	if (!env) {
		rc = env_describe(pool, replay->volume, &image, &sealed);
		if (!rc && replay->lsn > image_lsn(&image))
			rc = env_get(pool, replay->volume, &env);
		if (rc || !env)
			return rc == -ENOENT ? 0 : rc;
	}
	if (replay->lsn > env_applied(env))
		*result = env;
	else
		env_put(env);
	return 0;
}

static void replay_leave(struct replay *replay)
{
	if (replay->env) {
		env_replayed(replay->env, replay->lsn);
		env_put(replay->env);
	}
	replay->env = NULL;
	replay->chosen = false;
}

static int replay_choose(struct replay *replay, uint32_t volume)
{
	if (replay->chosen && replay->volume == volume)
		return 0;
	replay_leave(replay);
	replay->volume = volume;
	replay->chosen = true;
	return replay_find(replay, &replay->env);
}

static int replay_apply(struct env *env, const struct change *change)
{
	int rc;

	if (!env->replaying) {
		rc = env_write_begin(env, &env->replaying);
		if (rc)
			return rc;
	}
	rc = apply(env, env->replaying, change, 0);
	if (rc == -ENOENT) {
		log_error("journal: a record deletes what volume %u does not have", env->volume);
		return -EBADMSG;
	}
	env->replayed += REPLAY_CHANGE + change->key.length + change->value.length;
	return rc;
}

/* A volume that is deleted further on in the journal is not to be kept for a checkpoint. */
static void replay_gone(struct pool *pool, const struct change *change)
{
	struct reader r = reader_on(change->key.data, change->key.length);

	if (change->type == CHANGE_DELETE && get_u8(&r) == KEY_VOLUME && r.end - r.at == 4)
		env_set_gone(pool, get_key_u32(&r));
}

static int replay_change(void *data, const struct change *change)
{
	struct replay *replay = data;
	int rc;

	if (replay->volumes != (change->volume != 0))
		return 0;
	rc = replay_choose(replay, change->volume);
	if (rc || !replay->env)
		return rc;
	rc = replay_apply(replay->env, change);
	if (!rc && !replay->volumes)
		replay_gone(replay->pool, change);
	if (!rc && replay->env->replayed >= REPLAY_BATCH)
		rc = env_replay_flush(replay->env);
	return rc;
}

static int replay_record(
	struct pool *pool, uint64_t lsn, const void *payload, size_t length, bool volumes)
{
	struct replay replay = {.pool = pool, .lsn = lsn, .volumes = volumes};
	int rc = changes_decode(payload, length, no_change, NULL);

	if (!rc)
		rc = changes_decode(payload, length, replay_change, &replay);
	replay_leave(&replay);
	if (rc)
		log_error("journal: the record of LSN %llu cannot be replayed: %s",
			(unsigned long long)lsn, strerror(-rc));
	return rc;
}

int txn_replay_pool(struct pool *pool, uint64_t lsn, const void *payload, size_t length)
{
	return replay_record(pool, lsn, payload, length, false);
}

int txn_replay_volumes(struct pool *pool, uint64_t lsn, const void *payload, size_t length)
{
	return replay_record(pool, lsn, payload, length, true);
}

int txn_replay_end(struct pool *pool)
{
	struct env **envs;
	unsigned count;
	int rc = env_list(pool, &envs, &count);

	if (rc)
		return rc;
	rc = env_replay_flush(pool->env);
	for (unsigned i = 0; i < count; i++) {
		int flushed = env_replay_flush(envs[i]);

		rc = rc ? rc : flushed;
		env_put(envs[i]);
	}
	free(envs);
	return rc;
}
