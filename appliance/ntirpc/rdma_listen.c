/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Listening, on one address or on all, and the events of the connection manager.
 *
 * Without a device for its address there is no listener. One whose device goes away looks for
 * another; on all addresses the kernel has it listen on each device that comes.
 */
#include "config.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include <rpc/rpc.h>

#include "rdma_service.h"

#define LOOK_MS 500 /* the thread looks whether it is to end */
#define AGAIN_MS 5000 /* a listener looks for its device */
#define ALL_ADDRESSES "::"
#define HAS_IPV6 "/proc/net/if_inet6"

bool rdma_never_wait(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && !fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

/* Takes the next event, with the private data of its own: returns false where there is none. */
static bool next_event(struct rdma_listener *listener)
{
	struct rdma_cm_event *event;
	struct rdma_conn_param param;
	struct rdma_private_data told;
	struct rdma_cm_id *id;

	if (rdma_get_cm_event(listener->channel, &event))
		return false;
	id = event->id;
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		param = event->param.conn;
		if (param.private_data && param.private_data_len >= sizeof(told)) {
			memcpy(&told, param.private_data, sizeof(told));
			param.private_data = &told;
		} else {
			param.private_data = NULL;
		}
		rdma_ack_cm_event(event);
		rdma_asked(listener, id, &param);
		return true;
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		/* The reaper does not destroy the id before the event is acknowledged. */
		if (!id->context)
			listener->lost = true;
		else
			SVC_DESTROY(&((struct rdma_connection *)id->context)->sm_dr.xprt);
		break;
	default:
		break;
	}
	rdma_ack_cm_event(event);
	return true;
}

/* --- listening -------------------------------------------------------------------------------- */

/* All addresses can be listened on without any device, for those that come. */
static bool is_there_a_device(void)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);

	if (devices)
		ibv_free_device_list(devices);
	return count;
}

static void stop_listening(struct rdma_listener *listener)
{
	for (int i = 0; i < 2; i++) {
		if (listener->ids[i])
			rdma_destroy_id(listener->ids[i]);
		listener->ids[i] = NULL;
	}
}

/* One of IPv6 takes no IPv4: over iWARP, Linux refuses an IPv4 client of a listener of both, whose
 * address it looks for among those of IPv6 (rdma_translate_ip() of Linux 6.12). */
static int listen_on(struct rdma_listener *listener, struct rdma_cm_id **id, const char *node)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP},
			     *found;
	int one = 1, rc;

	if (rdma_getaddrinfo(node, listener->attr->port, &hints, &found))
		return errno;
	rc = rdma_create_id(listener->channel, id, NULL, RDMA_PS_TCP) ||
			     (found->ai_family == AF_INET6 &&
				     rdma_set_option(*id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY,
					     &one, sizeof(one))) ||
			     rdma_bind_addr(*id, found->ai_src_addr) ||
			     rdma_listen(*id, listener->attr->backlog)
		     ? errno
		     : 0;
	rdma_freeaddrinfo(found);
	return rc;
}

/* Where all addresses are asked for, those of IPv6 are if there are any. */
static int start_listening(struct rdma_listener *listener)
{
	bool all = !strcmp(listener->attr->node, ALL_ADDRESSES);
	int rc = is_there_a_device() ? 0 : ENODEV;

	if (!rc)
		rc = listen_on(listener, &listener->ids[0], all ? "0.0.0.0" : listener->attr->node);
	if (!rc && all && access(HAS_IPV6, F_OK) == 0)
		rc = listen_on(listener, &listener->ids[1], ALL_ADDRESSES);
	if (rc)
		stop_listening(listener);
	return rc;
}

/* After its device has gone: on the same address, once one is there again. */
static void listen_again(struct rdma_listener *listener)
{
	stop_listening(listener);
	if (start_listening(listener)) {
		poll(NULL, 0, AGAIN_MS);
		return;
	}
	listener->lost = false;
	__warnx(TIRPC_DEBUG_FLAG_EVENT, "RDMA is served again on %s, port %s", listener->attr->node,
		listener->attr->port);
}

static void *listener_thread(void *argument)
{
	struct rdma_listener *listener = argument;
	struct pollfd ready = {.fd = listener->channel->fd, .events = POLLIN};

	while (!rdma_stopping())
		if (listener->lost)
			listen_again(listener);
		else if (poll(&ready, 1, LOOK_MS) > 0)
			next_event(listener);
	return NULL;
}

static int listener_open(struct rdma_listener *listener)
{
	int rc;

	listener->channel = rdma_create_event_channel();
	if (!listener->channel || !rdma_never_wait(listener->channel->fd))
		return errno;
	rc = start_listening(listener);
	if (!rc)
		rc = rdma_reaper_start();
	return rc ? rc : pthread_create(&listener->thread, NULL, listener_thread, listener);
}

SVCXPRT *rpc_rdma_ncreatef(const struct rpc_rdma_attr *attr, const u_int sendsize,
	const u_int recvsize, const uint32_t flags)
{
	struct rdma_listener *listener = mem_zalloc(sizeof(*listener));
	int rc;

	rpc_dplx_rec_init(&listener->sm_dr);
	listener->attr = attr;
	listener->sm_dr.xprt.xp_type = XPRT_RDMA_RENDEZVOUS;
	listener->sm_dr.xprt.xp_ops = &rdma_listener_ops;
	listener->sm_dr.xprt.xp_fd = listener->sm_dr.xprt.xp_fd_send = RPC_ANYFD;
	rc = listener_open(listener);
	if (!rc)
		return &listener->sm_dr.xprt;
	stop_listening(listener);
	if (listener->channel)
		rdma_destroy_event_channel(listener->channel);
	rpc_dplx_rec_destroy(&listener->sm_dr);
	mem_free(listener, sizeof(*listener));
	errno = rc;
	return NULL;
}
