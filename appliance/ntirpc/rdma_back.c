/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The back channel (RFC 8167): what the server calls a client for, over the connection that the
 * client has made, as to tell it that a lock is free.
 *
 * A call is one message without chunks. Who makes it encodes it, and leaves it to the device's
 * thread: a connection whose posts fail ends, for which ganesha takes locks that it holds while it
 * calls. That thread sends as many as the peer grants, which is one until a reply has told; the
 * others wait in the order in which they were made.
 *
 * A reply comes as a call does. Whom it is for is found by its xid, and is told by ntirpc when none
 * comes (clnt_generic.c, svc_rqst.c).
 */
#include "config.h"
#include <arpa/inet.h>
#include <string.h>
#include <rpc/rpc.h>

#include "clnt_internal.h"
#include "rdma_service.h"
#include "rpc_com.h"

struct client {
	struct cx_data cx; /* a reference of the connection's */
	rpcprog_t program;
	rpcvers_t version;
};

static struct client *client_of(CLIENT *clnt)
{
	return opr_containerof(CX_DATA(clnt), struct client, cx);
}

/* --- messages --------------------------------------------------------------------------------- */

/* One to be filled; NULL: so many wait already that the peer does not seem to take any. */
static struct rdma_back *take(struct rdma_connection *connection)
{
	struct rdma_back *back;

	pthread_mutex_lock(&connection->device->lock);
	back = STAILQ_FIRST(&connection->back_unused);
	if (back)
		STAILQ_REMOVE_HEAD(&connection->back_unused, list);
	pthread_mutex_unlock(&connection->device->lock);
	return back;
}

static void put(struct rdma_back *back)
{
	struct rdma_connection *connection = back->connection;

	pthread_mutex_lock(&connection->device->lock);
	STAILQ_INSERT_HEAD(&connection->back_unused, back, list);
	pthread_mutex_unlock(&connection->device->lock);
}

/* Bytes of the message; 0 where it cannot be encoded, or is larger than the peer takes. */
static uint32_t encode(struct rdma_back *back, const struct client *client, struct clnt_req *cc)
{
	struct rpc_msg message = {.rm_xid = cc->cc_xid, .rm_direction = CALL};
	size_t header = rdma_header_call(cc->cc_xid, RDMA_BACK, back->data);
	uint32_t length = 0;
	XDR xdrs[1];

	message.rm_call.cb_rpcvers = RPC_MSG_VERSION;
	message.cb_prog = client->program;
	message.cb_vers = client->version;
	xdrmem_create(xdrs, (char *)back->data + header, back->connection->inline_reply - header,
		XDR_ENCODE);
	if (xdr_callhdr(xdrs, &message) && XDR_PUTUINT32(xdrs, cc->cc_proc) &&
		AUTH_MARSHALL(cc->cc_auth, xdrs) &&
		AUTH_WRAP(cc->cc_auth, xdrs, cc->cc_call.proc, cc->cc_call.where))
		length = header + XDR_GETPOS(xdrs);
	XDR_DESTROY(xdrs);
	return length;
}

/* --- the device's thread ---------------------------------------------------------------------- */

/* Sends what may be sent; each has a reference of the connection until it has completed. */
static void send_granted(struct rdma_connection *connection)
{
	struct rdma_back *back;

	while (connection->back_sent < connection->back_credits &&
		(back = STAILQ_FIRST(&connection->back_waiting))) {
		struct rdma_chain chain = {0};

		STAILQ_REMOVE_HEAD(&connection->back_waiting, list);
		connection->back_sent++;
		SVC_REF(&connection->sm_dr.xprt, SVC_REF_FLAG_NONE);
		rdma_chain_add(
			&chain, IBV_WR_SEND, back->data, back->length, connection->mr->lkey, NULL);
		rdma_chain_post(connection, &chain, rdma_about(back, RDMA_SENT_BACK));
	}
}

void rdma_back_sent(struct rdma_back *back)
{
	struct rdma_connection *connection = back->connection;

	put(back);
	SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
}

void rdma_back_waiting(struct rdma_device *device)
{
	STAILQ_HEAD(, rdma_back) made = STAILQ_HEAD_INITIALIZER(made);
	struct rdma_back *back;

	pthread_mutex_lock(&device->lock);
	STAILQ_CONCAT(&made, &device->back);
	pthread_mutex_unlock(&device->lock);
	while ((back = STAILQ_FIRST(&made))) {
		struct rdma_connection *connection = back->connection;

		STAILQ_REMOVE_HEAD(&made, list);
		STAILQ_INSERT_TAIL(&connection->back_waiting, back, list);
		send_granted(connection);
		SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
	}
}

static bool is_reply(const uint8_t *message, uint32_t length)
{
	uint32_t direction;

	if (length < 2 * sizeof(direction))
		return false;
	memcpy(&direction, message + sizeof(direction), sizeof(direction));
	return ntohl(direction) == REPLY;
}

void rdma_back_received(struct rdma_connection *connection, const struct rdma_header *header,
	const uint8_t *message, uint32_t length)
{
	if (!connection->back_sent || !(header->error || is_reply(message, length)))
		return;
	connection->back_sent--;
	connection->back_credits = header->credits < RDMA_BACK ? header->credits : RDMA_BACK;
	if (!connection->back_credits)
		connection->back_credits = 1;
	send_granted(connection);
}

/* --- what the rest of ntirpc sees ------------------------------------------------------------- */

static enum clnt_stat call(struct clnt_req *cc)
{
	struct client *client = client_of(cc->cc_clnt);
	struct rdma_connection *connection =
		opr_containerof(client->cx.cx_rec, struct rdma_connection, sm_dr);
	SVCXPRT *xprt = &connection->sm_dr.xprt;
	struct rdma_back *back;

	if (xprt->xp_flags & SVC_XPRT_FLAG_DESTROYING)
		return RPC_CANTSEND;
	back = take(connection);
	if (!back)
		return RPC_CANTSEND;
	back->length = encode(back, client, cc);
	if (!back->length) {
		put(back);
		return RPC_CANTENCODEARGS;
	}
	SVC_REF(xprt, SVC_REF_FLAG_NONE);
	pthread_mutex_lock(&connection->device->lock);
	STAILQ_INSERT_TAIL(&connection->device->back, back, list);
	pthread_mutex_unlock(&connection->device->lock);
	rdma_wake(connection->device);
	return RPC_SUCCESS;
}

static void abort_none(CLIENT *clnt)
{
}

static bool free_results(CLIENT *clnt, xdrproc_t proc, void *results)
{
	return xdr_free(proc, results);
}

static bool control_nothing(CLIENT *clnt, u_int request, void *info)
{
	return false;
}

static void destroy(CLIENT *clnt)
{
	struct client *client = client_of(clnt);

	SVC_RELEASE(&client->cx.cx_rec->xprt, SVC_RELEASE_FLAG_NONE);
	clnt_data_destroy(&client->cx);
	mem_free(client, sizeof(*client));
}

static struct clnt_ops client_ops = {
	.cl_call = call,
	.cl_abort = abort_none,
	.cl_freeres = free_results,
	.cl_destroy = destroy,
	.cl_control = control_nothing,
};

CLIENT *rpc_rdma_client(SVCXPRT *xprt, rpcprog_t program, rpcvers_t version)
{
	struct client *client = mem_zalloc(sizeof(*client));

	clnt_data_init(&client->cx);
	SVC_REF(xprt, SVC_REF_FLAG_NONE);
	client->cx.cx_rec = REC_XPRT(xprt);
	client->cx.cx_c.cl_ops = &client_ops;
	client->program = program;
	client->version = version;
	return &client->cx.cx_c;
}

void rdma_back_init(struct rdma_connection *connection, uint8_t *buffers)
{
	STAILQ_INIT(&connection->back_unused);
	STAILQ_INIT(&connection->back_waiting);
	connection->back_credits = 1;
	for (unsigned i = 0; i < RDMA_BACK; i++) {
		struct rdma_back *back = &connection->back[i];

		back->connection = connection;
		back->data = buffers + (size_t)i * RDMA_INLINE;
		STAILQ_INSERT_TAIL(&connection->back_unused, back, list);
	}
}
