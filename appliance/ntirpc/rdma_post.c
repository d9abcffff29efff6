/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What is sent: chains of work requests, and who may post them.
 *
 * A chain that cannot be posted has completed with an error: its connection ends. Room for it is
 * counted before, so that no part of it is posted that goes on with memory which others get by
 * then.
 */
#include "config.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <rpc/rpc.h>

#include "rdma_service.h"

/* A chain that its worker may not post. */
struct rdma_posting {
	STAILQ_ENTRY(rdma_posting) list;
	struct rdma_connection *connection;
	struct rdma_chain chain;
};

void rdma_chain_add(struct rdma_chain *chain, enum ibv_wr_opcode opcode, const uint8_t *data,
	uint32_t length, uint32_t lkey, const struct rdma_segment *segment)
{
	struct ibv_send_wr *wr = &chain->wr[chain->count];

	chain->sge[chain->count] = (struct ibv_sge){(uintptr_t)data, length, lkey};
	*wr = (struct ibv_send_wr){.opcode = opcode, .num_sge = 1};
	if (segment) {
		wr->wr.rdma.remote_addr = segment->offset;
		wr->wr.rdma.rkey = segment->handle;
	}
	chain->count++;
}

static void *of(uint64_t wr_id)
{
	return (void *)(uintptr_t)(wr_id & ~(uint64_t)RDMA_ABOUT);
}

static void finish(struct rdma_connection *connection, uint64_t wr_id, bool good, uint32_t length)
{
	enum rdma_about about = wr_id & RDMA_ABOUT;

	if (about == RDMA_SENT_BACK)
		rdma_back_sent(of(wr_id));
	else if (about)
		rdma_call_completed(of(wr_id), about, good, length);
}

/* The work requests of the chain, for which it has taken room; NULL: it is about no chain. */
static unsigned *posted_of(uint64_t wr_id)
{
	switch (wr_id & RDMA_ABOUT) {
	case RDMA_READ:
	case RDMA_SENT:
		return &((struct rdma_call *)of(wr_id))->posted;
	case RDMA_SENT_BACK:
		return &((struct rdma_back *)of(wr_id))->posted;
	default:
		return NULL;
	}
}

/* Whoever gets them completes the chain: siw may complete, too, what it refuses to post. */
static unsigned take_posted(unsigned *posted)
{
	return __atomic_exchange_n(posted, 0, __ATOMIC_ACQ_REL);
}

static bool take_room(struct rdma_connection *connection, unsigned count)
{
	return __atomic_add_fetch(&connection->posted, count, __ATOMIC_RELAXED) <= connection->room;
}

static void give_room(struct rdma_connection *connection, unsigned count)
{
	__atomic_sub_fetch(&connection->posted, count, __ATOMIC_RELAXED);
}

/* It has completed, with an error, and its connection ends. */
static bool give_up(
	struct rdma_connection *connection, const struct rdma_chain *chain, const char *why)
{
	if (!(connection->sm_dr.xprt.xp_flags & SVC_XPRT_FLAG_DESTROYING))
		__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: a connection ends: %s", why);
	SVC_DESTROY(&connection->sm_dr.xprt);
	give_room(connection, chain->count);
	finish(connection, chain->wr[chain->count - 1].wr_id, false, 0);
	return false;
}

static bool post_now(struct rdma_connection *connection, struct rdma_chain *chain)
{
	unsigned *posted = posted_of(chain->wr[chain->count - 1].wr_id);
	struct ibv_send_wr *bad = NULL;
	bool refused = true;
	int rc = ENOTCONN;

	for (unsigned i = 0; i < chain->count; i++) {
		chain->wr[i].sg_list = &chain->sge[i];
		chain->wr[i].next = i + 1 < chain->count ? &chain->wr[i + 1] : NULL;
	}
	pthread_mutex_lock(&connection->lock);
	if (!connection->closing) {
		__atomic_store_n(posted, chain->count, __ATOMIC_RELEASE);
		rc = ibv_post_send(connection->id->qp, chain->wr, &bad);
		refused = rc && take_posted(posted);
	}
	pthread_mutex_unlock(&connection->lock);
	return refused ? give_up(connection, chain, strerror(rc)) : !rc;
}

/* A thread that a worker starts has the worker's credentials: none but the device's is sure. */
static bool other_credentials;

void rpc_rdma_credentials_change(void)
{
	__atomic_store_n(&other_credentials, true, __ATOMIC_RELAXED);
}

static bool may_post(const struct rdma_device *device)
{
	return !__atomic_load_n(&other_credentials, __ATOMIC_RELAXED) ||
	       pthread_equal(pthread_self(), device->thread);
}

void rdma_wake(struct rdma_device *device)
{
	const uint64_t one = 1;

	(void)!write(device->wake, &one, sizeof(one));
}

static void post_later(struct rdma_connection *connection, const struct rdma_chain *chain)
{
	struct rdma_device *device = connection->device;
	struct rdma_posting *posting = mem_alloc(sizeof(*posting));

	posting->connection = connection;
	posting->chain = *chain;
	pthread_mutex_lock(&device->lock);
	STAILQ_INSERT_TAIL(&device->postings, posting, list);
	pthread_mutex_unlock(&device->lock);
	rdma_wake(device);
}

void rdma_post_waiting(struct rdma_device *device)
{
	STAILQ_HEAD(, rdma_posting) postings = STAILQ_HEAD_INITIALIZER(postings);
	struct rdma_posting *posting;

	pthread_mutex_lock(&device->lock);
	STAILQ_CONCAT(&postings, &device->postings);
	pthread_mutex_unlock(&device->lock);
	while ((posting = STAILQ_FIRST(&postings))) {
		STAILQ_REMOVE_HEAD(&postings, list);
		post_now(posting->connection, &posting->chain);
		mem_free(posting, sizeof(*posting));
	}
}

/* Over iWARP a completion says that TCP has the data. Linux's siw lets TCP have its pages, and not
 * a copy, where nobody is told of the completion: TCP may then send what they hold later
 * (siw_qp_prepare_tx(), Linux 6.12). Completions that are about nothing are passed over. */
static bool all_are_signalled(const struct rdma_device *device)
{
	return device->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

bool rdma_chain_post(struct rdma_connection *connection, struct rdma_chain *chain, uint64_t about)
{
	struct ibv_send_wr *last = &chain->wr[chain->count - 1];

	if (all_are_signalled(connection->device))
		for (unsigned i = 0; i < chain->count; i++)
			chain->wr[i].send_flags = IBV_SEND_SIGNALED;
	last->wr_id = about;
	last->send_flags = IBV_SEND_SIGNALED;
	if (!take_room(connection, chain->count))
		return give_up(
			connection, chain, "its calls have more segments than there is room for");
	if (may_post(connection->device))
		return post_now(connection, chain);
	post_later(connection, chain);
	return true;
}

void rdma_completed(struct rdma_connection *connection, uint64_t wr_id, enum ibv_wc_status status,
	uint32_t length)
{
	unsigned *posted = posted_of(wr_id), count;

	if (posted) {
		count = take_posted(posted);
		if (!count)
			return;
		give_room(connection, count);
	}
	if (status != IBV_WC_SUCCESS &&
		!(connection->sm_dr.xprt.xp_flags & SVC_XPRT_FLAG_DESTROYING)) {
		if (status != IBV_WC_WR_FLUSH_ERR)
			__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: a connection ends: %s",
				ibv_wc_status_str(status));
		SVC_DESTROY(&connection->sm_dr.xprt);
	}
	finish(connection, wr_id, status == IBV_WC_SUCCESS, length);
}

void rdma_complete_all(struct rdma_connection *connection)
{
	for (unsigned i = 0; connection->calls && i < connection->count; i++) {
		struct rdma_call *call = &connection->calls[i];

		if (call->posted)
			rdma_completed(
				connection, rdma_about(call, call->what), IBV_WC_WR_FLUSH_ERR, 0);
	}
	for (unsigned i = 0; i < RDMA_BACK; i++)
		if (connection->back[i].posted)
			rdma_completed(connection, rdma_about(&connection->back[i], RDMA_SENT_BACK),
				IBV_WC_WR_FLUSH_ERR, 0);
}
