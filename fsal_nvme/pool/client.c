/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Clients of the server, by names of their own: who may come back, after the server has ended, for
 * what it was granted.
 *
 *   KEY_CLIENT, be64, be64: xxh64 of the name, seeds 0 and 1 -> le64 epoch (highest bit: fresh),
 *   the name
 *
 * Two names of one key would replace each other, and one of the two clients begin anew.
 */
#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "pool/client.h"
#include "pool/env.h"
#include "pool/row.h"

#define FRESH (1ull << 63)
#define CLIENT_COST (TXN_CHANGE_OVERHEAD + ROW_KEY_MAX) /* of a row that goes, in a record */

static struct bytes client_key(uint8_t key[ROW_KEY_MAX], const void *name, size_t length)
{
	struct writer w = writer_on(key, ROW_KEY_MAX);

	put_u8(&w, KEY_CLIENT);
	put_be64(&w, XXH64(name, length, 0));
	put_be64(&w, XXH64(name, length, 1));
	return (struct bytes){key, ROW_KEY_MAX};
}

void client_row_encode(const struct client_row *row, struct writer *w)
{
	put_u64(w, row->epoch | (row->fresh ? FRESH : 0));
	put_bytes(w, row->name, row->length);
}

int client_row_decode(struct client_row *row, struct reader *r)
{
	uint64_t epoch = get_u64(r);

	row->epoch = epoch & ~FRESH;
	row->fresh = epoch & FRESH;
	row->length = r->bad ? 0 : (size_t)(r->end - r->at);
	if (!row->epoch || !row->length || row->length > POOL_CLIENT_MAX)
		return -EBADMSG;
	memcpy(row->name, get_bytes(r, row->length), row->length);
	return 0;
}

/* Each a transaction about the client of `row`. */
typedef int change_function(struct pool *pool, struct client_row *row, uint64_t *lsn);

static int put_row(struct pool *pool, struct client_row *row, uint64_t *lsn)
{
	uint8_t key[ROW_KEY_MAX], value[CLIENT_ROW_MAX];
	struct writer w = writer_on(value, sizeof(value));
	struct txn *txn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	client_row_encode(row, &w);
	rc = txn_put(txn, pool->env, client_key(key, row->name, row->length),
		(struct bytes){value, (size_t)(w.at - value)});
	if (!rc)
		return txn_commit(txn, lsn);
	txn_abort(txn);
	return rc;
}

static bool is_there(struct txn *txn, const struct client_row *row)
{
	uint8_t key[ROW_KEY_MAX];
	struct client_row found;
	struct bytes value;
	struct reader r;

	if (txn_get(txn, txn_pool(txn)->env, client_key(key, row->name, row->length), &value))
		return false;
	r = reader_on(value.data, value.length);
	return !client_row_decode(&found, &r) && found.length == row->length &&
	       !memcmp(found.name, row->name, row->length);
}

static int put_new_row(struct pool *pool, struct client_row *row, uint64_t *lsn)
{
	struct txn *view;
	bool known;
	int rc = view_begin(pool->env, &view);

	if (rc)
		return rc;
	known = is_there(view, row);
	txn_abort(view);
	if (!known)
		return put_row(pool, row, lsn);
	*lsn = pool_lsn(pool);
	return 0;
}

static int delete_in(struct txn *txn, const struct client_row *row)
{
	uint8_t key[ROW_KEY_MAX];

	return txn_delete(txn, txn_pool(txn)->env, client_key(key, row->name, row->length));
}

static int delete_row(struct pool *pool, struct client_row *row, uint64_t *lsn)
{
	struct txn *txn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	rc = delete_in(txn, row);
	if (!rc)
		return txn_commit(txn, lsn);
	txn_abort(txn);
	return rc;
}

/* Also in a full pool: who is to make room there has to come first, and who is gone may not come
 * back for what others have got. */
static int change(struct pool *pool, change_function *apply, struct client_row *row, uint64_t *lsn)
{
	int rc = apply(pool, row, lsn);

	if (rc != -ENOSPC)
		return rc;
	txn_urgent_begin();
	rc = apply(pool, row, lsn);
	txn_urgent_end();
	return rc;
}

static int put(struct pool *pool, bool fresh, const void *name, size_t length, uint64_t *lsn)
{
	struct client_row row = {.epoch = pool_epoch(pool), .fresh = fresh, .length = length};

	if (!length || length > POOL_CLIENT_MAX)
		return -EINVAL;
	memcpy(row.name, name, length);
	return change(pool, fresh ? put_new_row : put_row, &row, lsn);
}

int client_put_new(struct pool *pool, const void *name, size_t length, uint64_t *lsn)
{
	return put(pool, true, name, length, lsn);
}

int client_put(struct pool *pool, const void *name, size_t length, uint64_t *lsn)
{
	return put(pool, false, name, length, lsn);
}

int client_delete(struct pool *pool, const void *name, size_t length, uint64_t *lsn)
{
	struct client_row row = {.length = length};

	if (!length || length > POOL_CLIENT_MAX)
		return -ENOENT;
	memcpy(row.name, name, length);
	return change(pool, delete_row, &row, lsn);
}

int client_next(struct txn *txn, struct client_row *row)
{
	uint8_t key[ROW_KEY_MAX + 1] = {KEY_CLIENT};
	struct bytes at = {key, 1}, found, value;
	struct reader r;
	int rc;

	if (row->length) {
		client_key(key, row->name, row->length);
		at.length = sizeof(key); /* the least that is greater */
	}
	rc = txn_seek(txn, txn_pool(txn)->env, at, &found, &value);
	if (rc)
		return rc;
	if (*(const uint8_t *)found.data != KEY_CLIENT)
		return -ENOENT;
	r = reader_on(value.data, value.length);
	return client_row_decode(row, &r);
}

/* Rows of earlier epochs behind *at, as many as one record takes. -ENOENT: there are no more. */
static int forget_in(struct txn *txn, struct client_row *at)
{
	uint64_t epoch = pool_epoch(txn_pool(txn));
	int rc = 0;

	while (!rc && txn_room(txn) >= CLIENT_COST) {
		rc = client_next(txn, at);
		if (!rc && at->epoch != epoch)
			rc = delete_in(txn, at);
	}
	return rc;
}

/* Of one transaction; where it fails `at` is what it was. -ENOENT: all is done. */
static int forget_some(struct pool *pool, struct client_row *at, uint64_t *lsn)
{
	struct client_row last = *at;
	struct txn *txn;
	bool all;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	rc = forget_in(txn, &last);
	all = rc == -ENOENT;
	if (rc && !all) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, lsn);
	if (rc)
		return rc;
	*at = last;
	return all ? -ENOENT : 0;
}

int clients_forget_earlier(struct pool *pool)
{
	struct client_row at = {0};
	uint64_t lsn;
	int rc = 0;

	while (!rc)
		rc = change(pool, forget_some, &at, &lsn);
	return rc == -ENOENT ? pool_sync(pool, pool_lsn(pool)) : rc;
}
