/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What was done for a request whose answer may be lost: its client asks once more, of the next
 * server.
 *
 *   KEY_DONE, be64, be64: xxh64 of session and slot, seeds 0 and 1 -> done_row
 *
 * The row comes with what was done, in one transaction. A client that sends another request in that
 * slot has the answer: of each slot the last row is enough. It goes with the session, or with the
 * next grace period.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "pool/done.h"
#include "pool/env.h"
#include "pool/row.h"

#define DONE_COST (TXN_CHANGE_OVERHEAD + ROW_KEY_MAX) /* of a row that goes, in a record */

static struct bytes done_key(
	uint8_t key[ROW_KEY_MAX], const uint8_t session[POOL_SESSION], uint32_t slot)
{
	uint8_t named[POOL_SESSION + 4];
	struct writer w = writer_on(named, sizeof(named));

	put_bytes(&w, session, POOL_SESSION);
	put_u32(&w, slot);
	w = writer_on(key, ROW_KEY_MAX);
	put_u8(&w, KEY_DONE);
	put_be64(&w, XXH64(named, sizeof(named), 0));
	put_be64(&w, XXH64(named, sizeof(named), 1));
	return (struct bytes){key, ROW_KEY_MAX};
}

void done_row_encode(const struct done_row *row, struct writer *w)
{
	put_u64(w, row->epoch);
	put_bytes(w, row->done.session, POOL_SESSION);
	put_u32(w, row->done.slot);
	put_u32(w, row->done.sequence);
	put_u64(w, row->done.digest);
}

int done_row_decode(struct done_row *row, struct reader *r)
{
	memset(row, 0, sizeof(*row));
	row->epoch = get_u64(r);
	if (r->end - r->at < POOL_SESSION)
		return -EBADMSG;
	memcpy(row->done.session, get_bytes(r, POOL_SESSION), POOL_SESSION);
	row->done.slot = get_u32(r);
	row->done.sequence = get_u32(r);
	row->done.digest = get_u64(r);
	return r->bad || r->at != r->end || !row->epoch ? -EBADMSG : 0;
}

int done_put(struct txn *txn, const struct pool_done *done)
{
	struct done_row row = {pool_epoch(txn_pool(txn)), *done};
	struct env *env = txn_pool(txn)->env;
	uint8_t key[ROW_KEY_MAX], value[DONE_ROW_SIZE];
	struct bytes at = done_key(key, done->session, done->slot), old;
	struct writer w = writer_on(value, sizeof(value));

	/* What makes room is not to fail for a row more. */
	if (txn_room(txn) < DONE_COST + DONE_ROW_SIZE ||
		(txn_is_full(txn, env) && txn_get(txn, env, at, &old)))
		return 0;
	done_row_encode(&row, &w);
	return txn_put(txn, env, at, (struct bytes){value, sizeof(value)});
}

static bool is_same(const struct pool_done *a, const struct pool_done *b)
{
	return !memcmp(a->session, b->session, POOL_SESSION) && a->slot == b->slot &&
	       a->sequence == b->sequence && a->digest == b->digest;
}

bool done_before(struct pool *pool, const struct pool_done *done)
{
	uint8_t key[ROW_KEY_MAX];
	struct done_row row;
	struct bytes value;
	struct reader r;
	struct txn *view;
	bool found = false;

	if (view_begin(pool->env, &view))
		return false;
	if (!txn_get(view, pool->env, done_key(key, done->session, done->slot), &value)) {
		r = reader_on(value.data, value.length);
		found = !done_row_decode(&row, &r) && row.epoch != pool->epoch &&
			is_same(&row.done, done);
	}
	txn_abort(view);
	return found;
}

/* --- rows that go ----------------------------------------------------------------------------- */

/* `act` works on `data`; -ENOENT: that is all. */
typedef int act_function(struct txn *txn, void *data);

static int act_once(struct pool *pool, act_function *act, void *data, uint64_t *lsn)
{
	struct txn *txn;
	int rc = txn_begin(pool, NULL, &txn), all;

	if (rc)
		return rc;
	all = act(txn, data);
	if (all && all != -ENOENT) {
		txn_abort(txn);
		return all;
	}
	rc = txn_commit(txn, lsn);
	return rc ? rc : all;
}

/* Again and again, each time in a transaction of its own; also in a full pool. */
static int act_on_all(struct pool *pool, act_function *act, void *data, size_t size, uint64_t *lsn)
{
	uint8_t before[64];
	int rc = 0;

	assert(size <= sizeof(before));
	while (!rc) {
		memcpy(before, data, size);
		rc = act_once(pool, act, data, lsn);
		if (rc != -ENOSPC)
			continue;
		memcpy(data, before, size);
		txn_urgent_begin();
		rc = act_once(pool, act, data, lsn);
		txn_urgent_end();
	}
	return rc == -ENOENT ? 0 : rc;
}

struct leaving {
	const uint8_t *session;
	uint32_t slot, slots;
};

static int delete_slots(struct txn *txn, void *data)
{
	struct leaving *leaving = data;
	struct env *env = txn_pool(txn)->env;
	uint8_t key[ROW_KEY_MAX];

	for (; leaving->slot < leaving->slots && txn_room(txn) >= DONE_COST; leaving->slot++) {
		struct bytes at = done_key(key, leaving->session, leaving->slot), value;
		int rc = txn_get(txn, env, at, &value);

		if (!rc)
			rc = txn_delete(txn, env, at);
		if (rc && rc != -ENOENT)
			return rc;
	}
	return leaving->slot < leaving->slots ? 0 : -ENOENT;
}

int done_delete(
	struct pool *pool, const uint8_t session[POOL_SESSION], unsigned slots, uint64_t *lsn)
{
	struct leaving leaving = {session, 0, slots};

	return act_on_all(pool, delete_slots, &leaving, sizeof(leaving), lsn);
}

/* The rows behind *at, which is what follows the last one. */
static int delete_earlier(struct txn *txn, void *data)
{
	uint64_t epoch = pool_epoch(txn_pool(txn));
	struct env *env = txn_pool(txn)->env;
	uint8_t *at = data;
	int rc = 0;

	while (!rc && txn_room(txn) >= DONE_COST) {
		struct bytes found, value;
		struct done_row row;
		struct reader r;

		rc = txn_seek(txn, env, (struct bytes){at, ROW_KEY_MAX + 1}, &found, &value);
		if (rc || *(const uint8_t *)found.data != KEY_DONE || found.length != ROW_KEY_MAX)
			return rc ? rc : -ENOENT;
		memcpy(at, found.data, ROW_KEY_MAX); /* and a zero: the least that is greater */
		r = reader_on(value.data, value.length);
		rc = done_row_decode(&row, &r);
		if (!rc && row.epoch != epoch)
			rc = txn_delete(txn, env, (struct bytes){at, ROW_KEY_MAX});
	}
	return rc;
}

int done_forget_earlier(struct pool *pool)
{
	uint8_t at[ROW_KEY_MAX + 1] = {KEY_DONE};
	uint64_t lsn;

	return act_on_all(pool, delete_earlier, at, sizeof(at), &lsn);
}
