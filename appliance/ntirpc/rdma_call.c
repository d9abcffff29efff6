/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * One call. It arrives in a posted receive; its header is parsed; it takes the large buffers that
 * it needs; what its read chunks name is fetched, all at once; then a worker runs it. The reply's
 * data goes to the write chunk, from where it is or else by way of a large buffer, the rest into
 * one message or, where it is too long for that, to the reply chunk: one chain of RDMA WRITEs and a
 * SEND. When that has completed and the request is gone, the receive is posted again.
 *
 * Failure: what cannot be understood is answered with ERR_VERS or ERR_CHUNK, and so is a call whose
 * reply has no room. What the device refuses ends the connection: all that is posted then completes
 * with an error, and each call gives back what it holds.
 *
 * Twice as many receives are posted as credits granted, and as calls that the server makes: a peer
 * may send its next call as soon as it has the reply, before the receive of the call before is
 * posted again.
 */
#include "config.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <rpc/rpc.h>
#include <rpc/svc_auth.h>

#include "rdma_service.h"
#include "svc_internal.h"

static uint64_t copied; /* bytes of data, in replies */
static struct xdr_ops call_ops; /* those of every stream, but for its end */
static pthread_once_t call_ops_once = PTHREAD_ONCE_INIT;

static struct rdma_call *call_of(XDR *xdrs)
{
	return opr_containerof(XIOQ(xdrs), struct rdma_call, recvq);
}

/* --- the end of a call ------------------------------------------------------------------------ */

static void drop_views(struct rdma_call *call)
{
	struct poolq_entry *have;

	while ((have = TAILQ_FIRST(&call->recvq.ioq_uv.uvqh.qh))) {
		TAILQ_REMOVE(&call->recvq.ioq_uv.uvqh.qh, have, q);
		mem_free(IOQ_(have), sizeof(struct xdr_ioq_uv));
	}
	call->recvq.ioq_uv.uvqh.qcount = 0;
}

static void drop(struct rdma_call *call)
{
	struct rdma_connection *connection = call->connection;

	if (atomic_dec_int32_t(&call->references))
		return;
	drop_views(call);
	if (call->sent)
		XDR_DESTROY(call->sent->xdrs);
	call->sent = NULL;
	rdma_memory_release(connection->device->memory, call);
	atomic_dec_uint32_t(&connection->under_way);
	rdma_call_post(call);
	SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
}

/* XDR_DESTROY: the request is done with its stream, which may be long after svc_request(). */
static void request_done(XDR *xdrs)
{
	drop(call_of(xdrs));
}

static void set_call_ops(void)
{
	call_ops = xdr_ioq_ops;
	call_ops.x_destroy = request_done;
}

/* --- posting ---------------------------------------------------------------------------------- */

/* Posts the receive. It holds no reference of the connection: siw does not complete what is posted
 * after its queue pair has failed (siw_post_receive() of rdma-core, siw_qp_modify() of Linux 6.12).
 * An error: it is not posted, and never again. */
int rdma_call_post(struct rdma_call *call)
{
	struct rdma_connection *connection = call->connection;
	struct ibv_sge sge = {(uintptr_t)call->received, RDMA_INLINE, connection->mr->lkey};
	struct ibv_recv_wr wr = {
		.wr_id = rdma_about(call, RDMA_RECEIVED), .sg_list = &sge, .num_sge = 1};
	struct ibv_recv_wr *bad;
	int rc = ENOTCONN;

	pthread_mutex_lock(&connection->lock);
	if (!connection->closing)
		rc = ibv_post_recv(connection->id->qp, &wr, &bad);
	pthread_mutex_unlock(&connection->lock);
	return rc;
}

/* Posts it, with a reference of the call until it has completed. */
static bool post(struct rdma_call *call, struct rdma_chain *chain, enum rdma_about what)
{
	atomic_inc_int32_t(&call->references);
	call->what = what;
	return rdma_chain_post(call->connection, chain, rdma_about(call, what));
}

static void send_error(struct rdma_call *call, int error)
{
	struct rdma_chain chain = {0};
	size_t size =
		rdma_header_error(call->header.xid, call->connection->credits, error, call->send);

	rdma_chain_add(&chain, IBV_WR_SEND, call->send, size, call->connection->mr->lkey, NULL);
	post(call, &chain, RDMA_SENT);
}

/* --- arrival ---------------------------------------------------------------------------------- */

/* The call as a stream of views. False where its chunks do not fit together. */
static bool view(struct rdma_call *call)
{
	struct rdma_piece piece[RDMA_HEADER_PIECES];
	const struct rdma_header *header = &call->header;
	uint32_t inline_length = header->nomsg ? 0 : call->received_length - header->length;
	int count = rdma_header_pieces(header, inline_length, piece);

	for (int i = 0; i < count; i++) {
		struct xdr_ioq_uv *uv = mem_zalloc(sizeof(*uv));
		uint8_t *data = piece[i].read ? call->read->data : call->received + header->length;

		uv->v.vio_base = uv->v.vio_head = data + piece[i].at;
		uv->v.vio_tail = uv->v.vio_wrap = uv->v.vio_head + piece[i].length;
		TAILQ_INSERT_TAIL(&call->recvq.ioq_uv.uvqh.qh, &uv->uvq, q);
		call->recvq.ioq_uv.uvqh.qcount++;
	}
	if (count <= 0)
		return false;
	xdr_ioq_reset(&call->recvq, 0);
	return true;
}

static void run(struct work_pool_entry *work)
{
	struct rdma_call *call = opr_containerof(work, struct rdma_call, work);

	(void)svc_request(&call->connection->sm_dr.xprt, call->recvq.xdrs);
}

static void submit(struct rdma_call *call)
{
	if (!view(call)) {
		send_error(call, RDMA_HEADER_CHUNK);
		drop(call);
		return;
	}
	call->work.fun = run;
	if (work_pool_submit(&svc_work_pool, &call->work))
		drop(call); /* the server stops */
}

/* The padding that a chunk leaves out, which is not to be what another call left there. */
static void clear_padding(struct rdma_call *call)
{
	const struct rdma_header *header = &call->header;

	for (unsigned i = 0; i < header->reads; i++) {
		uint32_t end = header->read[i].at + header->read[i].segment.length;

		memset(call->read->data + end, 0, -end & 3);
	}
}

/* It has what it needs. */
void rdma_call_go(struct rdma_call *call)
{
	const struct rdma_header *header = &call->header;
	struct rdma_chain chain = {0};

	if (!call->read) {
		submit(call);
		return;
	}
	clear_padding(call);
	for (unsigned i = 0; i < header->reads; i++)
		if (header->read[i].segment.length)
			rdma_chain_add(&chain, IBV_WR_RDMA_READ,
				call->read->data + header->read[i].at,
				header->read[i].segment.length, call->read->lkey,
				&header->read[i].segment);
	if (!chain.count)
		submit(call);
	else
		post(call, &chain, RDMA_READ);
}

static void received(struct rdma_call *call, uint32_t length)
{
	struct rdma_header *header = &call->header;
	int error = rdma_header_parse(call->received, length, header);

	call->received_length = length;
	call->references = 1;
	call->connection->called = true;
	atomic_inc_uint32_t(&call->connection->under_way);
	SVC_REF(&call->connection->sm_dr.xprt, SVC_REF_FLAG_NONE);
	if (!error || header->error)
		rdma_back_received(call->connection, header, call->received + header->length,
			length - header->length);
	if (!error && header->read_bytes > RDMA_LARGE)
		error = RDMA_HEADER_CHUNK;
	if (error) {
		if (error != RDMA_HEADER_DROP)
			send_error(call, error);
		drop(call);
	} else if (!header->reads && !header->writes && !header->has_reply) {
		submit(call);
	} else if (rdma_memory_take(call->connection->device->memory, call)) {
		rdma_call_go(call);
	}
}

void rdma_call_completed(struct rdma_call *call, enum rdma_about what, bool good, uint32_t length)
{
	if (what == RDMA_RECEIVED) {
		if (good && !__atomic_load_n(&call->connection->closing, __ATOMIC_ACQUIRE))
			received(call, length);
		return;
	}
	if (what == RDMA_READ) {
		if (good)
			submit(call);
		else
			drop(call);
	}
	drop(call);
}

enum xprt_stat rdma_call_decode(struct svc_req *req)
{
	XDR *xdrs = req->rq_xdrs;

	xdrs->x_op = XDR_DECODE;
	rpc_msg_init(&req->rq_msg);
	if (xdr_dplx_decode(xdrs, &req->rq_msg)) {
		if (req->rq_msg.rm_direction == CALL)
			return req->rq_xprt->xp_dispatch.process_cb(req);
		if (req->rq_msg.rm_direction == REPLY)
			return clnt_req_process_reply(req->rq_xprt, req);
	}
	__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: a connection ends: what came is no RPC message");
	SVC_DESTROY(req->rq_xprt);
	return XPRT_DIED;
}

/* --- the reply -------------------------------------------------------------------------------- */

/* A reply that is being placed: `used` bytes of the large buffer are taken, and what the chunks'
 * segments get is in the chain. */
struct placing {
	struct rdma_call *call;
	struct rdma_chain chain;
	uint32_t used;
	unsigned writes; /* write chunks that are filled */
	bool direct; /* some of it is sent from the stream's memory */
};

static struct xdr_ioq_uv *next_of(struct xdr_ioq_uv *uv)
{
	struct poolq_entry *next = TAILQ_NEXT(&uv->uvq, q);

	return next ? IOQ_(next) : NULL;
}

/* The buffers from `uv` on that the server gave together, without a copy: their end and bytes. */
static struct xdr_ioq_uv *given_end(struct xdr_ioq_uv *uv, uint32_t *bytes)
{
	struct xdr_uio *refer = uv->u.uio_refer;

	for (*bytes = 0; uv && uv->u.uio_flags == UIO_FLAG_REFER && uv->u.uio_refer == refer;
		uv = next_of(uv))
		*bytes += ioquv_length(uv);
	return uv;
}

/* The length of the opaque that `bytes` given buffers after `before` are; 0 where they are none, as
 * the entries of a READDIR, which stay in the message (RFC 8267, 5.4). */
static uint32_t opaque_length(struct xdr_ioq_uv *before, uint32_t bytes)
{
	uint32_t length;

	if (!before || ioquv_length(before) < sizeof(length))
		return 0;
	memcpy(&length, (uint8_t *)before->v.vio_tail - sizeof(length), sizeof(length));
	length = ntohl(length);
	return length <= bytes && bytes - length < 4 ? length : 0;
}

/* Sends `length` bytes to the chunk. */
static void fill_chunk(struct placing *placing, const struct rdma_chunk *chunk, const uint8_t *data,
	uint32_t lkey, uint32_t length)
{
	struct rdma_call *call = placing->call;

	for (unsigned i = 0; i < chunk->count; i++) {
		struct rdma_segment *segment = &call->header.segment[chunk->first + i];

		if (segment->length > length)
			segment->length = length;
		if (segment->length)
			rdma_chain_add(&placing->chain, IBV_WR_RDMA_WRITE, data, segment->length,
				lkey, segment);
		data += segment->length;
		length -= segment->length;
	}
}

static void copy_to(uint8_t *to, struct xdr_ioq_uv *from, struct xdr_ioq_uv *end, uint32_t length)
{
	for (; from != end; from = next_of(from)) {
		uint32_t part = ioquv_length(from);

		if (part > length)
			part = length;
		memcpy(to, from->v.vio_head, part);
		to += part;
		length -= part;
	}
}

/* The same by way of the large buffer. False where that has no room. */
static bool copy_to_chunk(struct placing *placing, const struct rdma_chunk *chunk,
	struct xdr_ioq_uv *from, struct xdr_ioq_uv *end, uint32_t length)
{
	struct rdma_large *large = placing->call->reply;
	uint8_t *data = large->data + placing->used;

	if (length > RDMA_LARGE - placing->used)
		return false;
	copy_to(data, from, end, length);
	fill_chunk(placing, chunk, data, large->lkey, length);
	placing->used += length;
	return true;
}

/* The bytes from `uv` on, which are a READ's, to the chunk. False where it has no room. */
static bool place_opaque(struct placing *placing, const struct rdma_chunk *chunk,
	struct xdr_ioq_uv *uv, struct xdr_ioq_uv *end, uint32_t length)
{
	uint32_t lkey;

	if (length > chunk->length)
		return false;
	if (ioquv_length(uv) >= length &&
		rdma_memory_lent(
			placing->call->connection->device->memory, uv->v.vio_head, length, &lkey)) {
		fill_chunk(placing, chunk, uv->v.vio_head, lkey, length);
		placing->direct = true;
		return true;
	}
	__atomic_fetch_add(&copied, length, __ATOMIC_RELAXED);
	return copy_to_chunk(placing, chunk, uv, end, length);
}

/* Takes the data that write chunks are for out of the stream. False where it has no room. */
static bool place_data(struct placing *placing, struct xdr_ioq *reply)
{
	const struct rdma_header *header = &placing->call->header;
	struct xdr_ioq_uv *before = NULL, *uv = IOQ_(TAILQ_FIRST(&reply->ioq_uv.uvqh.qh)), *end;
	uint32_t bytes, length;

	while (uv && placing->writes < header->writes) {
		if (uv->u.uio_flags != UIO_FLAG_REFER) {
			before = uv;
			uv = next_of(uv);
			continue;
		}
		end = given_end(uv, &bytes);
		length = opaque_length(before, bytes);
		if (length) {
			const struct rdma_chunk *chunk = &header->write[placing->writes++];

			if (!place_opaque(placing, chunk, uv, end, length))
				return false;
			for (; uv != end; uv = next_of(uv))
				uv->v.vio_tail = uv->v.vio_head;
		}
		before = NULL;
		uv = end;
	}
	for (unsigned i = placing->writes; i < header->writes; i++)
		fill_chunk(placing, &header->write[i], NULL, 0, 0);
	return true;
}

static uint32_t stream_length(struct xdr_ioq *reply)
{
	struct poolq_entry *have;
	uint32_t length = 0;

	TAILQ_FOREACH(have, &reply->ioq_uv.uvqh.qh, q)
	length += ioquv_length(IOQ_(have));
	return length;
}

/* Places what is left of the stream: behind the header, else in the reply chunk. Returns the bytes
 * of the message, 0 where it has no room. */
static uint32_t place_rest(struct placing *placing, struct xdr_ioq *reply)
{
	struct rdma_call *call = placing->call;
	struct rdma_connection *connection = call->connection;
	struct xdr_ioq_uv *first = IOQ_(TAILQ_FIRST(&reply->ioq_uv.uvqh.qh));
	uint32_t length = stream_length(reply);
	size_t header = rdma_header_reply_size(&call->header, false);

	if (header + length <= connection->inline_reply) {
		rdma_header_reply(&call->header, false, connection->credits, call->send);
		copy_to(call->send + header, first, NULL, length);
		return header + length;
	}
	if (!call->header.has_reply || length > call->header.reply.length ||
		rdma_header_reply_size(&call->header, true) > connection->inline_reply ||
		!copy_to_chunk(placing, &call->header.reply, first, NULL, length))
		return 0;
	return rdma_header_reply(&call->header, true, connection->credits, call->send);
}

/* False: the connection has ended. */
static bool send_reply(struct rdma_call *call, struct xdr_ioq *reply)
{
	struct placing placing = {.call = call};
	uint32_t length = 0;

	if (place_data(&placing, reply))
		length = place_rest(&placing, reply);
	if (!length) {
		send_error(call, RDMA_HEADER_CHUNK);
		return true;
	}
	rdma_chain_add(
		&placing.chain, IBV_WR_SEND, call->send, length, call->connection->mr->lkey, NULL);
	if (placing.direct)
		call->sent = reply;
	return post(call, &placing.chain, RDMA_SENT);
}

static bool encode(struct svc_req *req, struct xdr_ioq *reply)
{
	if (!xdr_reply_encode(reply->xdrs, &req->rq_msg))
		return false;
	xdr_tail_update(reply->xdrs);
	if (req->rq_msg.rm_reply.rp_stat == MSG_ACCEPTED &&
		req->rq_msg.rm_reply.rp_acpt.ar_stat == SUCCESS && req->rq_auth &&
		!SVCAUTH_WRAP(req, reply->xdrs))
		return false;
	xdr_tail_update(reply->xdrs);
	return true;
}

enum xprt_stat rdma_call_reply(struct svc_req *req)
{
	struct rdma_call *call = call_of(req->rq_xdrs);
	struct xdr_ioq *reply = xdr_ioq_create(RPC_MAXDATA_DEFAULT,
		__svc_params->ioq.send_max + RPC_MAXDATA_DEFAULT, UIO_FLAG_FREE);
	bool sent = false;

	if (!encode(req, reply)) {
		__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: a connection ends: a reply is not encoded");
		SVC_DESTROY(req->rq_xprt);
	} else {
		sent = send_reply(call, reply);
	}
	if (call->sent != reply)
		XDR_DESTROY(reply->xdrs);
	return sent ? XPRT_IDLE : XPRT_DIED;
}

uint64_t rpc_rdma_copied(void)
{
	return __atomic_load_n(&copied, __ATOMIC_RELAXED);
}

void rdma_call_init(struct rdma_call *call, struct rdma_connection *connection, uint8_t *buffers)
{
	pthread_once(&call_ops_once, set_call_ops);
	xdr_ioq_setup(&call->recvq);
	call->recvq.xdrs[0].x_ops = &call_ops;
	call->connection = connection;
	call->received = buffers;
	call->send = buffers + RDMA_INLINE;
}
