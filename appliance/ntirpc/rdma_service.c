/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Connections: asked for, taken or refused, and ended.
 *
 * A connection ends when its peer says so, when something that is posted fails, or when the server
 * wants it: SVC_DESTROY, once. The reaper then destroys its queue pair, and the device's thread
 * completes what that had: not every device does. The last reference, a call's or a request's, has
 * the reaper take it apart.
 */
#include "config.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <rpc/rpc.h>
#include <rpc/svc_auth.h>

#include "rdma_service.h"
#include "svc_internal.h"

#define MEMORY (256u << 20) /* bytes of large buffers for each device, unless told */
#define POSTED 16 /* work requests to send for each credit */
#define READS 16 /* RDMA READs under way on a connection, where both ends can */
#define POLL 64
#define LOOK_MS 500 /* a thread looks whether it is to end */
#define SILENT 15 /* seconds after which a peer is asked whether it is there */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work;
	LIST_HEAD(, rdma_device) devices;
	STAILQ_HEAD(, rdma_connection) disconnect, destroy;
	pthread_t thread;
	bool running, stopping;
	unsigned connections;
} reaper = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};

static struct rdma_connection *connection_of(SVCXPRT *xprt)
{
	return opr_containerof(REC_XPRT(xprt), struct rdma_connection, sm_dr);
}

/* --- RFC 8797: how much each end takes in one message ----------------------------------------- */

#define PRIVATE_MAGIC 0xf6ab0e18
#define KIB(code) (((uint32_t)(code) + 1) << 10)

static uint32_t inline_reply(const struct rdma_conn_param *param)
{
	struct rdma_private_data told;

	if (!param->private_data || param->private_data_len < sizeof(told))
		return RDMA_INLINE_DEFAULT;
	memcpy(&told, param->private_data, sizeof(told));
	if (ntohl(told.magic) != PRIVATE_MAGIC || told.version != 1)
		return RDMA_INLINE_DEFAULT;
	return KIB(told.receive) < RDMA_INLINE ? KIB(told.receive) : RDMA_INLINE;
}

/* --- devices ---------------------------------------------------------------------------------- */

static void completions(struct rdma_connection *connection)
{
	struct ibv_wc wc[POLL];
	int count;

	while ((count = ibv_poll_cq(connection->cq, POLL, wc)) > 0) {
		connection->heard = true;
		for (int i = 0; i < count; i++)
			if (wc[i].wr_id)
				rdma_completed(
					connection, wc[i].wr_id, wc[i].status, wc[i].byte_len);
			else if (wc[i].status != IBV_WC_SUCCESS)
				SVC_DESTROY(&connection->sm_dr.xprt);
	}
}

/* An RDMA WRITE of nothing, which needs no memory of the peer and is acknowledged by it, or fails.
 */
static bool still_there(struct rdma_connection *connection)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	bool failed = false;

	pthread_mutex_lock(&connection->lock);
	if (!connection->closing)
		failed = ibv_post_send(connection->id->qp, &wr, &bad);
	pthread_mutex_unlock(&connection->lock);
	return !failed;
}

/* A peer that has gone without a word is not noticed by one who only waits for it. */
static bool is_gone(struct rdma_connection *connection)
{
	bool gone = !connection->heard && !still_there(connection);

	connection->heard = false;
	return gone;
}

static bool is_same_host(
	const struct rdma_connection *connection, const struct rdma_connection *other)
{
	const struct sockaddr *a = rdma_get_peer_addr(connection->id);
	const struct sockaddr *b = rdma_get_peer_addr(other->id);

	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET6)
		return IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr,
			&((const struct sockaddr_in6 *)b)->sin6_addr);
	return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
	       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

/* Looks are counted, one each second, so that a server that stood still ends none for it. */
static void count_idle(struct rdma_connection *connection)
{
	if (connection->called || atomic_fetch_uint32_t(&connection->under_way))
		connection->idle = 0;
	else
		connection->idle++;
	connection->called = false;
}

static bool is_idle(const struct rdma_connection *connection)
{
	unsigned timeout = connection->device->idle_timeout;

	return timeout && connection->idle >= timeout;
}

/* A client renews its lease in time, unless it cannot: Linux (6.0 and later) registers no memory
 * for a connection any more whose peer had another hardware address for a moment, as a service has
 * that two nodes answer for, and from the first call that needs some it waits for ever
 * (rpcrdma_cm_event_handler(), at RDMA_CM_EVENT_UNREACHABLE, and rpcrdma_mrs_refresh()). Ended, the
 * connection is made anew. With `nconnect` it renews on its connections in turn: where one of them
 * is used the others are spared. */
static bool is_mute(const struct rdma_connection *connection)
{
	const struct rdma_connection *other;

	if (!is_idle(connection))
		return false;
	LIST_FOREACH(other, &connection->device->connections, list)
	{
		if (!is_idle(other) && is_same_host(other, connection))
			return false;
	}
	return true;
}

/* False: it ends already. What is not closing has a reference yet. */
static bool take(struct rdma_connection *connection)
{
	bool taken;

	pthread_mutex_lock(&connection->lock);
	taken = !connection->closing;
	if (taken)
		SVC_REF(&connection->sm_dr.xprt, SVC_REF_FLAG_NONE);
	pthread_mutex_unlock(&connection->lock);
	return taken;
}

static uint32_t renewals;

void rpc_rdma_renew(void)
{
	(void)atomic_inc_uint32_t(&renewals);
}

/* Ends those that are of no use any more. */
static void look_at_connections(struct rdma_device *device)
{
	STAILQ_HEAD(, rdma_connection) useless = STAILQ_HEAD_INITIALIZER(useless);
	struct rdma_connection *connection;
	uint32_t renewed = atomic_fetch_uint32_t(&renewals);
	bool ask, renew = renewed != device->renewed;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec == device->looked)
		return;
	device->looked = now.tv_sec;
	device->renewed = renewed;
	ask = now.tv_sec - device->asked >= SILENT;
	if (ask)
		device->asked = now.tv_sec;
	pthread_mutex_lock(&device->lock);
	LIST_FOREACH(connection, &device->connections, list)
	{
		count_idle(connection);
	}
	LIST_FOREACH(connection, &device->connections, list)
	{
		bool gone = ask && is_gone(connection);

		if ((renew || gone || is_mute(connection)) && take(connection))
			STAILQ_INSERT_TAIL(&useless, connection, useless);
	}
	pthread_mutex_unlock(&device->lock);
	/* Without the lock: ganesha takes others then, which callers of clients hold. */
	while ((connection = STAILQ_FIRST(&useless))) {
		STAILQ_REMOVE_HEAD(&useless, useless);
		if (is_idle(connection))
			__warnx(TIRPC_DEBUG_FLAG_WARN,
				"RDMA: a connection ends: no call has come for %u s",
				connection->idle);
		SVC_DESTROY(&connection->sm_dr.xprt);
		SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
	}
}

/* What the reaper has taken the queue pairs from. */
static void finish_ended(struct rdma_device *device)
{
	STAILQ_HEAD(, rdma_connection) ended = STAILQ_HEAD_INITIALIZER(ended);
	struct rdma_connection *connection;

	pthread_mutex_lock(&device->lock);
	STAILQ_CONCAT(&ended, &device->ended);
	pthread_mutex_unlock(&device->lock);
	while ((connection = STAILQ_FIRST(&ended))) {
		STAILQ_REMOVE_HEAD(&ended, ended);
		completions(connection);
		rdma_complete_all(connection);
		SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
	}
}

/* A completion queue is not destroyed before its events are acknowledged, and by no thread but the
 * reaper: the connection is there until then. */
static void completion_event(struct rdma_device *device)
{
	struct rdma_connection *connection;
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(device->channel, &cq, &context))
		return;
	connection = context;
	SVC_REF(&connection->sm_dr.xprt, SVC_REF_FLAG_NONE);
	/* Asked for before looking: what comes in between is an event. */
	if (ibv_req_notify_cq(cq, 0))
		SVC_DESTROY(&connection->sm_dr.xprt);
	completions(connection);
	SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
	ibv_ack_cq_events(cq, 1);
}

/* The thread of a device. */
static void *device_thread(void *argument)
{
	struct rdma_device *device = argument;
	struct pollfd ready[] = {{.fd = device->channel->fd, .events = POLLIN},
		{.fd = device->wake, .events = POLLIN}};
	uint64_t times;

	while (!__atomic_load_n(&device->stopping, __ATOMIC_ACQUIRE)) {
		look_at_connections(device);
		if (poll(ready, 2, LOOK_MS) <= 0)
			continue;
		if (ready[1].revents && read(device->wake, &times, sizeof(times)) > 0) {
			rdma_post_waiting(device);
			rdma_back_waiting(device);
			finish_ended(device);
		}
		if (ready[0].revents)
			completion_event(device);
	}
	return NULL;
}

static void device_free(struct rdma_device *device)
{
	if (device->memory)
		rdma_memory_destroy(device->memory);
	if (device->channel)
		ibv_destroy_comp_channel(device->channel);
	if (device->wake >= 0)
		close(device->wake);
	if (device->pd && ibv_dealloc_pd(device->pd))
		__warnx(TIRPC_DEBUG_FLAG_ERROR, "RDMA: a protection domain stays: %s",
			strerror(errno));
	pthread_mutex_destroy(&device->lock);
	mem_free(device, sizeof(*device));
}

static struct rdma_device *device_make(struct ibv_context *verbs, const struct rpc_rdma_attr *attr)
{
	struct rdma_device *device = mem_zalloc(sizeof(*device));

	pthread_mutex_init(&device->lock, NULL);
	LIST_INIT(&device->connections);
	STAILQ_INIT(&device->postings);
	STAILQ_INIT(&device->back);
	STAILQ_INIT(&device->ended);
	device->verbs = verbs;
	device->idle_timeout = attr->idle_timeout;
	device->renewed = atomic_fetch_uint32_t(&renewals);
	device->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	device->pd = ibv_alloc_pd(verbs);
	device->channel = device->pd ? ibv_create_comp_channel(verbs) : NULL;
	if (device->channel && rdma_never_wait(device->channel->fd) && device->wake >= 0) {
		device->memory =
			rdma_memory_create(device->pd, attr->memory ? attr->memory : MEMORY);
		if (!pthread_create(&device->thread, NULL, device_thread, device))
			return device;
	}
	device_free(device);
	return NULL;
}

/* The device of these verbs, for one user more; NULL: it does not work. */
static struct rdma_device *device_get(struct ibv_context *verbs, const struct rpc_rdma_attr *attr)
{
	struct rdma_device *device;

	pthread_mutex_lock(&reaper.lock);
	LIST_FOREACH(device, &reaper.devices, list)
	if (device->verbs == verbs)
		break;
	if (!device) {
		device = device_make(verbs, attr);
		if (device)
			LIST_INSERT_HEAD(&reaper.devices, device, list);
	}
	if (device)
		device->users++;
	pthread_mutex_unlock(&reaper.lock);
	return device;
}

static void device_put(struct rdma_device *device)
{
	bool last;

	pthread_mutex_lock(&reaper.lock);
	last = --device->users == 0;
	if (last)
		LIST_REMOVE(device, list);
	pthread_mutex_unlock(&reaper.lock);
	if (!last)
		return;
	__atomic_store_n(&device->stopping, true, __ATOMIC_RELEASE);
	pthread_join(device->thread, NULL);
	device_free(device);
}

/* --- the end of a connection ------------------------------------------------------------------ */

static size_t buffers_size(const struct rdma_connection *connection)
{
	return ((size_t)connection->count * 2 + RDMA_BACK) * RDMA_INLINE;
}

/* It has a reference, which it passes on to the device's thread where there is more to do. */
static void disconnect(struct rdma_connection *connection)
{
	struct rdma_device *device = connection->device;

	pthread_mutex_lock(&connection->lock);
	__atomic_store_n(&connection->closing, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&connection->lock);
	if (!connection->id->qp) {
		SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
		return;
	}
	rdma_disconnect(connection->id);
	rdma_destroy_qp(connection->id);
	pthread_mutex_lock(&device->lock);
	STAILQ_INSERT_TAIL(&device->ended, connection, ended);
	pthread_mutex_unlock(&device->lock);
	rdma_wake(device);
}

/* Takes apart what there is of it. */
static void destroy(struct rdma_connection *connection)
{
	if (connection->listed) {
		pthread_mutex_lock(&connection->device->lock);
		LIST_REMOVE(connection, list);
		pthread_mutex_unlock(&connection->device->lock);
	}
	if (connection->cq)
		ibv_destroy_cq(connection->cq);
	rdma_destroy_id(connection->id);
	if (connection->mr && ibv_dereg_mr(connection->mr))
		__warnx(TIRPC_DEBUG_FLAG_ERROR, "RDMA: %zu bytes stay pinned: %s",
			buffers_size(connection), strerror(errno));
	else if (connection->buffers)
		munmap(connection->buffers, buffers_size(connection));
	if (connection->calls)
		mem_free(connection->calls, connection->count * sizeof(*connection->calls));
	if (connection->device)
		device_put(connection->device);
	if (connection->sm_dr.xprt.xp_parent)
		SVC_RELEASE(connection->sm_dr.xprt.xp_parent, SVC_RELEASE_FLAG_NONE);
	pthread_mutex_destroy(&connection->lock);
	rpc_dplx_rec_destroy(&connection->sm_dr);
	pthread_mutex_lock(&reaper.lock);
	reaper.connections -= connection->counted;
	pthread_mutex_unlock(&reaper.lock);
	mem_free(connection, sizeof(*connection));
}

static void *reaper_thread(void *unused)
{
	pthread_mutex_lock(&reaper.lock);
	for (;;) {
		struct rdma_connection *connection;
		/* First, as its client may be back: those that there are count. */
		bool ends = !STAILQ_EMPTY(&reaper.destroy);

		connection =
			ends ? STAILQ_FIRST(&reaper.destroy) : STAILQ_FIRST(&reaper.disconnect);
		if (!connection) {
			if (reaper.stopping)
				break;
			pthread_cond_wait(&reaper.work, &reaper.lock);
			continue;
		}
		if (ends)
			STAILQ_REMOVE_HEAD(&reaper.destroy, destroy);
		else
			STAILQ_REMOVE_HEAD(&reaper.disconnect, disconnect);
		pthread_mutex_unlock(&reaper.lock);
		if (ends)
			destroy(connection);
		else
			disconnect(connection);
		pthread_mutex_lock(&reaper.lock);
	}
	pthread_mutex_unlock(&reaper.lock);
	return NULL;
}

static void connection_unlink(SVCXPRT *xprt, u_int flags, const char *tag, const int line)
{
	struct rdma_connection *connection = connection_of(xprt);

	SVC_REF(xprt, SVC_REF_FLAG_NONE);
	pthread_mutex_lock(&reaper.lock);
	STAILQ_INSERT_TAIL(&reaper.disconnect, connection, disconnect);
	pthread_cond_signal(&reaper.work);
	pthread_mutex_unlock(&reaper.lock);
}

static void connection_destroy(SVCXPRT *xprt, u_int flags, const char *tag, const int line)
{
	struct rdma_connection *connection = connection_of(xprt);

	if (xprt->xp_ops->xp_free_user_data)
		xprt->xp_ops->xp_free_user_data(xprt);
	pthread_mutex_lock(&reaper.lock);
	STAILQ_INSERT_TAIL(&reaper.destroy, connection, destroy);
	pthread_cond_signal(&reaper.work);
	pthread_mutex_unlock(&reaper.lock);
}

/* --- what the rest of ntirpc sees of a connection and of a listener --------------------------- */

extern mutex_t ops_lock;

static enum xprt_stat stat(SVCXPRT *xprt)
{
	return xprt->xp_flags & SVC_XPRT_FLAG_DESTROYED ? XPRT_DESTROYED : XPRT_IDLE;
}

static bool control(SVCXPRT *xprt, const u_int what, void *in)
{
	bool known = true;

	mutex_lock(&ops_lock);
	switch (what) {
	case SVCGET_XP_FLAGS:
		*(u_int *)in = xprt->xp_flags;
		break;
	case SVCSET_XP_FLAGS:
		xprt->xp_flags = *(u_int *)in;
		break;
	case SVCGET_XP_UNREF_USER_DATA:
		*(svc_xprt_void_fun_t *)in = xprt->xp_ops->xp_unref_user_data;
		break;
	case SVCSET_XP_UNREF_USER_DATA:
		xprt->xp_ops->xp_unref_user_data = *(svc_xprt_void_fun_t)in;
		break;
	case SVCGET_XP_FREE_USER_DATA:
		*(svc_xprt_fun_t *)in = xprt->xp_ops->xp_free_user_data;
		break;
	case SVCSET_XP_FREE_USER_DATA:
		xprt->xp_ops->xp_free_user_data = *(svc_xprt_fun_t)in;
		break;
	default:
		known = false;
	}
	mutex_unlock(&ops_lock);
	return known;
}

static struct xp_ops connection_ops = {
	.xp_stat = stat,
	.xp_decode = rdma_call_decode,
	.xp_reply = rdma_call_reply,
	.xp_unlink = connection_unlink,
	.xp_destroy = connection_destroy,
	.xp_control = control,
};

static void listener_unlink(SVCXPRT *xprt, u_int flags, const char *tag, const int line)
{
}

struct xp_ops rdma_listener_ops = {
	.xp_stat = stat,
	.xp_unlink = listener_unlink, /* it stays until the process ends */
	.xp_destroy = listener_unlink,
	.xp_control = control,
};

/* --- the beginning of a connection ------------------------------------------------------------ */

static void set_address(struct rpc_address *address, const struct sockaddr *from)
{
	__rpc_address_setup(address);
	memcpy(address->nb.buf, from,
		from->sa_family == AF_INET ? sizeof(struct sockaddr_in)
					   : sizeof(struct sockaddr_in6));
}

static struct rdma_connection *connection_make(
	struct rdma_listener *listener, struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	struct rdma_connection *connection = mem_zalloc(sizeof(*connection));
	SVCXPRT *xprt = &connection->sm_dr.xprt;

	rpc_dplx_rec_init(&connection->sm_dr);
	pthread_mutex_init(&connection->lock, NULL);
	connection->id = id;
	connection->credits = listener->attr->credits;
	connection->count = 2 * (connection->credits + RDMA_BACK);
	connection->inline_reply = inline_reply(param);
	id->context = connection;
	xprt->xp_type = XPRT_RDMA;
	xprt->xp_ops = &connection_ops;
	xprt->xp_flags = SVC_XPRT_FLAG_INITIAL | SVC_XPRT_FLAG_INITIALIZED;
	xprt->xp_fd = xprt->xp_fd_send = RPC_ANYFD;
	xprt->xp_rdma = true;
	set_address(&xprt->xp_local, rdma_get_local_addr(id));
	set_address(&xprt->xp_remote, rdma_get_peer_addr(id));
	SVC_REF(&listener->sm_dr.xprt, SVC_REF_FLAG_NONE);
	xprt->xp_parent = &listener->sm_dr.xprt;
	return connection;
}

static int make_queues(struct rdma_connection *connection, const struct ibv_device_attr *device)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
	unsigned send = connection->credits * POSTED + RDMA_BACK;

	if (send > (unsigned)device->max_qp_wr)
		send = device->max_qp_wr;
	connection->room = send - 1; /* one for still_there() */
	connection->cq = ibv_create_cq(connection->device->verbs, connection->count + send,
		connection, connection->device->channel, 0);
	if (!connection->cq || ibv_req_notify_cq(connection->cq, 0))
		return errno;
	attr.send_cq = attr.recv_cq = connection->cq;
	attr.cap = (struct ibv_qp_cap){.max_send_wr = send,
		.max_recv_wr = connection->count,
		.max_send_sge = 1,
		.max_recv_sge = 1};
	return rdma_create_qp(connection->id, connection->device->pd, &attr) ? errno : 0;
}

static int make_calls(struct rdma_connection *connection)
{
	connection->buffers = rdma_map(buffers_size(connection));
	if (!connection->buffers)
		return ENOMEM;
	connection->mr = ibv_reg_mr(connection->device->pd, connection->buffers,
		buffers_size(connection), IBV_ACCESS_LOCAL_WRITE);
	if (!connection->mr)
		return errno;
	connection->calls = mem_calloc(connection->count, sizeof(*connection->calls));
	for (unsigned i = 0; i < connection->count; i++)
		rdma_call_init(&connection->calls[i], connection,
			connection->buffers + (size_t)i * 2 * RDMA_INLINE);
	rdma_back_init(
		connection, connection->buffers + (size_t)connection->count * 2 * RDMA_INLINE);
	return 0;
}

static int post_all(struct rdma_connection *connection)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < connection->count; i++)
		rc = rdma_call_post(&connection->calls[i]);
	return rc;
}

static uint8_t least(int a, int b, int c)
{
	int least = a < b ? a : b;

	return least < c ? least : c;
}

static int answer(struct rdma_connection *connection, const struct ibv_device_attr *device,
	const struct rdma_conn_param *asked)
{
	struct rdma_private_data told = {
		htonl(PRIVATE_MAGIC), 1, 0, (RDMA_INLINE >> 10) - 1, (RDMA_INLINE >> 10) - 1};
	struct rdma_conn_param param = {
		.private_data = &told,
		.private_data_len = sizeof(told),
		.responder_resources =
			least(asked->responder_resources, device->max_qp_rd_atom, READS),
		.initiator_depth =
			least(asked->initiator_depth, device->max_qp_init_rd_atom, READS),
		.rnr_retry_count = 7,
	};

	return rdma_accept(connection->id, &param) ? errno : 0;
}

/* It was not heard of yet, and is not asked before SILENT seconds have passed: it connects. */
static void list(struct rdma_connection *connection)
{
	connection->heard = connection->listed = true;
	pthread_mutex_lock(&connection->device->lock);
	LIST_INSERT_HEAD(&connection->device->connections, connection, list);
	pthread_mutex_unlock(&connection->device->lock);
}

static int connection_open(struct rdma_connection *connection, const struct rdma_conn_param *asked)
{
	SVCXPRT *xprt = &connection->sm_dr.xprt, *parent = xprt->xp_parent;
	const struct rdma_listener *listener =
		opr_containerof(REC_XPRT(parent), struct rdma_listener, sm_dr);
	struct ibv_device_attr device;
	int rc;

	connection->device = device_get(connection->id->verbs, listener->attr);
	if (!connection->device)
		return ENODEV;
	if (!rdma_memory_ready(connection->device->memory))
		return ENOMEM;
	rc = ibv_query_device(connection->device->verbs, &device);
	if (!rc)
		rc = make_queues(connection, &device);
	if (!rc)
		rc = make_calls(connection);
	if (!rc)
		rc = post_all(connection);
	if (!rc && parent->xp_dispatch.rendezvous_cb(xprt) != XPRT_IDLE)
		rc = EPERM;
	if (!rc)
		rc = answer(connection, &device, asked);
	if (!rc)
		list(connection);
	return rc;
}

/* One connection more, where the limit allows. */
static bool count(void)
{
	bool counted;

	pthread_mutex_lock(&reaper.lock);
	counted = reaper.connections < __svc_params->max_rdma_connections;
	reaper.connections += counted;
	pthread_mutex_unlock(&reaper.lock);
	return counted;
}

static void refuse(struct rdma_cm_id *id, const char *why)
{
	char peer[INET6_ADDRSTRLEN] = "?";
	const struct sockaddr *sa = rdma_get_peer_addr(id);

	inet_ntop(sa->sa_family,
		sa->sa_family == AF_INET ? (void *)&((struct sockaddr_in *)sa)->sin_addr
					 : (void *)&((struct sockaddr_in6 *)sa)->sin6_addr,
		peer, sizeof(peer));
	__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: a connection of %s is refused: %s", peer, why);
	rdma_reject(id, NULL, 0);
}

void rdma_asked(
	struct rdma_listener *listener, struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	struct rdma_connection *connection;
	int rc;

	if (!listener->sm_dr.xprt.xp_dispatch.rendezvous_cb) {
		refuse(id, "the server starts");
		rdma_destroy_id(id);
		return;
	}
	if (!count()) {
		refuse(id, "there are as many as `serve --rdma-connections` says");
		rdma_destroy_id(id);
		return;
	}
	connection = connection_make(listener, id, param);
	connection->counted = true;
	SVC_REF(&connection->sm_dr.xprt, SVC_REF_FLAG_NONE);
	rc = connection_open(connection, param);
	if (rc) {
		refuse(id, strerror(rc));
		SVC_DESTROY(&connection->sm_dr.xprt);
	}
	SVC_RELEASE(&connection->sm_dr.xprt, SVC_RELEASE_FLAG_NONE);
}

int rdma_reaper_start(void)
{
	int rc = 0;

	pthread_mutex_lock(&reaper.lock);
	if (!reaper.running)
		rc = pthread_create(&reaper.thread, NULL, reaper_thread, NULL);
	reaper.running |= !rc;
	pthread_mutex_unlock(&reaper.lock);
	return rc;
}

bool rdma_stopping(void)
{
	return __atomic_load_n(&reaper.stopping, __ATOMIC_ACQUIRE);
}

void rpc_rdma_internals_init(void)
{
	LIST_INIT(&reaper.devices);
	STAILQ_INIT(&reaper.disconnect);
	STAILQ_INIT(&reaper.destroy);
}

/* No connection is taken any more, and none is taken apart. */
void rpc_rdma_internals_fini(void)
{
	pthread_mutex_lock(&reaper.lock);
	__atomic_store_n(&reaper.stopping, true, __ATOMIC_RELEASE);
	pthread_cond_signal(&reaper.work);
	pthread_mutex_unlock(&reaper.lock);
	if (reaper.running)
		pthread_join(reaper.thread, NULL);
}
