/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What is sent: chains of work requests, and who may post them.
 *
 * A chain that cannot be posted has completed with an error: its connection ends. Room for it is
 * counted before, so that no part of it is posted that goes on with memory which others get by
 * then.
 */
#include "config.h"
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

static bool post_now(struct rdma_connection *connection, struct rdma_chain *chain)
{
	struct ibv_send_wr *bad = NULL;
	int rc;

	for (unsigned i = 0; i < chain->count; i++) {
		chain->wr[i].sg_list = &chain->sge[i];
		chain->wr[i].next = i + 1 < chain->count ? &chain->wr[i + 1] : NULL;
	}
	rc = ibv_post_send(connection->id->qp, chain->wr, &bad);
	if (!rc)
		return true;
	__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: a connection ends: nothing can be posted: %s",
		strerror(rc));
	SVC_DESTROY(&connection->sm_dr.xprt);
	rdma_completed(connection, chain->wr[chain->count - 1].wr_id, IBV_WC_WR_FLUSH_ERR, 0);
	return false;
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

/* What a completion is about, and the work requests that it makes room for. */
static unsigned room_of(uint64_t about)
{
	const void *of = (const void *)(uintptr_t)(about & ~(uint64_t)RDMA_ABOUT);

	switch (about & RDMA_ABOUT) {
	case RDMA_READ:
	case RDMA_SENT:
		return ((const struct rdma_call *)of)->posted;
	case RDMA_SENT_BACK:
		return 1;
	default:
		return 0;
	}
}

static bool take_room(struct rdma_connection *connection, const struct rdma_chain *chain)
{
	if (__atomic_add_fetch(&connection->posted, chain->count, __ATOMIC_RELAXED) <=
		connection->room)
		return true;
	__warnx(TIRPC_DEBUG_FLAG_WARN,
		"RDMA: a connection ends: its calls have more segments than there is room for");
	return false;
}

bool rdma_chain_post(struct rdma_connection *connection, struct rdma_chain *chain, uint64_t about)
{
	struct ibv_send_wr *last = &chain->wr[chain->count - 1];

	if (!take_room(connection, chain)) {
		SVC_DESTROY(&connection->sm_dr.xprt);
		rdma_completed(connection, about, IBV_WC_WR_FLUSH_ERR, 0);
		return false;
	}
	if (all_are_signalled(connection->device))
		for (unsigned i = 0; i < chain->count; i++)
			chain->wr[i].send_flags = IBV_SEND_SIGNALED;
	last->wr_id = about;
	last->send_flags = IBV_SEND_SIGNALED;
	if (may_post(connection->device))
		return post_now(connection, chain);
	post_later(connection, chain);
	return true;
}

void rdma_completed(struct rdma_connection *connection, uint64_t wr_id, enum ibv_wc_status status,
	uint32_t length)
{
	void *of = (void *)(uintptr_t)(wr_id & ~(uint64_t)RDMA_ABOUT);
	enum rdma_about about = wr_id & RDMA_ABOUT;

	__atomic_sub_fetch(&connection->posted, room_of(wr_id), __ATOMIC_RELAXED);
	if (status != IBV_WC_SUCCESS &&
		!(connection->sm_dr.xprt.xp_flags & SVC_XPRT_FLAG_DESTROYING)) {
		if (status != IBV_WC_WR_FLUSH_ERR)
			__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: a connection ends: %s",
				ibv_wc_status_str(status));
		SVC_DESTROY(&connection->sm_dr.xprt);
	}
	if (about == RDMA_SENT_BACK)
		rdma_back_sent(of);
	else if (about)
		rdma_call_completed(of, about, status == IBV_WC_SUCCESS, length);
}
