/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Clients that may reclaim what they had when the server ended: records in the pool, so that
 * whoever opens it next has them.
 *
 * A client is its co_ownerid, whatever the address and the transport that it comes by. Its record
 * comes with the reply that confirms it, and is gone before anybody gets what was taken from it.
 * It ends with the first grace period in which the client does not say that it has reclaimed all
 * (RFC 8881, 8.4.3): until then it stays of an earlier epoch. A new one is fresh until the client
 * has said so, or is given something: should the server end meanwhile there is nothing to reclaim,
 * though the client may have had something that was taken from it (the first edge condition).
 */
#include "export/internal.h"

#include <stdio.h>
#include <string.h>

#include "sal_functions.h"

/* What ganesha compares: the name in hexadecimal digits. */
static char *tag_of(const uint8_t *name, size_t length)
{
	char *tag = gsh_malloc(2 * length + 1);

	for (size_t i = 0; i < length; i++)
		snprintf(tag + 2 * i, 3, "%02x", name[i]);
	tag[2 * length] = 0;
	return tag;
}

static void read_records(
	nfs_grace_start_t *start, add_clid_entry_hook add, add_rfh_entry_hook add_revoked)
{
	struct client_row row = {0};
	struct txn *view = NULL;
	int r;

	if (pool_is_reader(nvme.pool))
		return; /* they are the owner's */
	r = view_begin(pool_env(nvme.pool), &view);
	while (!r) {
		r = client_next(view, &row);
		if (!r && !row.fresh) {
			char *tag = tag_of(row.name, row.length);

			add(tag);
			gsh_free(tag);
		}
	}
	if (r != -ENOENT)
		LogCrit(COMPONENT_CLIENTID, "pool %s: records of clients cannot be read: %s",
			pool_name(nvme.pool), strerror(-r));
	if (view)
		txn_abort(view);
}

/* A pool that cannot be written still serves readers, who have nothing to reclaim. */
static bool cannot_write(int error)
{
	return error == -EROFS || pool_failure(nvme.pool);
}

typedef int put_function(struct pool *pool, const void *name, size_t length, uint64_t *lsn);

/* The answer waits for it. */
static int put(nfs_client_id_t *client, put_function *put_row)
{
	const nfs_client_record_t *owner = client->cid_client_record;
	uint64_t lsn = 0;
	int r = put_row(nvme.pool, owner->cr_client_val, owner->cr_client_val_len, &lsn);

	if (r && !cannot_write(r)) {
		LogCrit(COMPONENT_CLIENTID,
			"pool %s: a client cannot be recorded, and is told so: %s",
			pool_name(nvme.pool), strerror(-r));
		return r;
	}
	__atomic_store_n(&client->cid_recorded, lsn, __ATOMIC_SEQ_CST);
	hold_until_durable(lsn);
	return 0;
}

/* That the client has reclaimed all may have been said by another slot, and wait there. */
static void await(nfs_client_id_t *client)
{
	uint64_t lsn = __atomic_load_n(&client->cid_recorded, __ATOMIC_SEQ_CST);

	if (lsn > pool_durable_lsn(nvme.pool))
		hold_until_durable(lsn);
}

static int record(nfs_client_id_t *client)
{
	const nfs_client_record_t *owner = client->cid_client_record;
	int r = put(client, client_put_new);

	if (r)
		return r;
	gsh_free(client->cid_recov_tag);
	client->cid_recov_tag =
		tag_of((const uint8_t *)owner->cr_client_val, owner->cr_client_val_len);
	return 0;
}

static int complete(nfs_client_id_t *client)
{
	return put(client, client_put);
}

/* Whoever has a record may reclaim at the next server: this one gives it to nobody any more, if
 * there may be a next one. */
static void stays(const char *what, int error)
{
	watch_end_if_over();
	if (!cannot_write(error))
		LogCrit(COMPONENT_CLIENTID, "pool %s: %s: %s", pool_name(nvme.pool), what,
			strerror(-error));
}

/* What the client had may be given to others when this returns, in an answer that waits. */
static void forget(nfs_client_id_t *client)
{
	const nfs_client_record_t *owner = client->cid_client_record;
	uint64_t lsn = 0;
	int r = client_delete(nvme.pool, owner->cr_client_val, owner->cr_client_val_len, &lsn);
	bool waits = !r && !glist_empty(&client->cid_openowners);

	if (waits)
		r = pool_sync(nvme.pool, lsn);
	if (!waits || r)
		hold_until_durable(lsn);
	if (r && r != -ENOENT)
		stays("a client's record stays", r);
}

static void end_grace(void)
{
	int r = clients_forget_earlier(nvme.pool);

	if (!r)
		r = done_forget_earlier(nvme.pool);
	if (r)
		stays("records of earlier clients stay", r);
}

static int init(void)
{
	return 0;
}

/* No delegation is given, and none is revoked. */
static void add_revoked(nfs_client_id_t *client, nfs_fh4 *handle)
{
}

struct nfs4_recovery_backend recovery_in_pool = {
	.recovery_init = init,
	.recovery_read_clids = read_records,
	.record_clid = record,
	.complete_clid = complete,
	.await_clid = await,
	.rm_clid = forget,
	.add_revoke_fh = add_revoked,
	.end_grace = end_grace,
};
