/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * RPC-over-RDMA version 1, the server's side.
 *
 * Read rdma_header.h (what is on the wire), rdma_memory.c (registered memory), rdma_post.c (what is
 * sent), rdma_call.c (one call from its arrival to its reply), rdma_back.c (calls of the server),
 * rdma_service.c (connections), rdma_listen.c (where they are asked for), in this order.
 *
 * Threads: one takes the connection manager's events of a listener, one each device's completions;
 * neither waits for anything else. Workers of ntirpc's pool run the calls. What may block, or may
 * not be done with other credentials than those with which a device was opened (librdmacm), is left
 * to one more, the reaper; once any thread has changed its credentials, the device's alone posts.
 */
#ifndef RDMA_SERVICE_H
#define RDMA_SERVICE_H

#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rpc/svc.h>
#include <rpc/work_pool.h>
#include <rpc/xdr_ioq.h>

#include "rdma_header.h"
#include "rpc_dplx_internal.h"

#define RDMA_INLINE 4096 /* bytes of a message that is sent and received whole */
#define RDMA_INLINE_DEFAULT 1024 /* what a peer takes that does not say */
/* A call's data, or a reply's with what is around it. */
#define RDMA_LARGE ((1 << 20) + (1 << 16))
#define RDMA_BACK 16 /* calls of the server to one client that are under way */
#define RDMA_CHAIN (RDMA_HEADER_SEGMENTS + 1)

struct rdma_connection;
struct rdma_device;
struct rdma_posting;

/* RDMA_LARGE registered bytes. */
struct rdma_large {
	TAILQ_ENTRY(rdma_large) q;
	uint8_t *data;
	uint32_t lkey;
};

/* What of a call, or of a rdma_back, a completion is about: the low bits of its wr_id, of which the
 * rest is its address. 0 is one of a chain whose last will tell. */
enum rdma_about {
	RDMA_RECEIVED = 1,
	RDMA_READ = 2,
	RDMA_SENT = 3,
	RDMA_SENT_BACK = 4,
	RDMA_ABOUT = 7
};

/* A receive that is posted, and the call that comes of it. */
struct rdma_call {
	struct xdr_ioq recvq; /* the call as an XDR stream: views of `received` and `read` */
	struct work_pool_entry work;
	TAILQ_ENTRY(rdma_call) waiting; /* for large buffers; rdma_memory.c's */
	struct rdma_connection *connection;
	uint8_t *received, *send; /* RDMA_INLINE bytes each */
	uint32_t received_length;
	struct rdma_header header;
	struct rdma_large *read; /* what the read chunks bring */
	struct rdma_large *reply; /* what goes to the other chunks */
	struct xdr_ioq *sent; /* the reply, while its own memory is sent from */
	int32_t references; /* the request's, and the chain's: there is one at a time */
	unsigned posted; /* work requests of the chain that the device has */
	enum rdma_about what; /* the chain is about */
};

/* A call of the server to a client. */
struct rdma_back {
	STAILQ_ENTRY(rdma_back) list;
	struct rdma_connection *connection;
	uint8_t *data; /* RDMA_INLINE bytes */
	uint32_t length;
	unsigned posted; /* work requests that the device has */
};

/* Work requests that are posted together; the last tells of all. */
struct rdma_chain {
	unsigned count;
	struct ibv_send_wr wr[RDMA_CHAIN];
	struct ibv_sge sge[RDMA_CHAIN];
};

static inline uint64_t rdma_about(const void *of, enum rdma_about what)
{
	return (uintptr_t)of | what;
}

struct rdma_connection {
	struct rpc_dplx_rec sm_dr; /* the transport as all others see it; first */
	struct rdma_device *device;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr; /* of `buffers` */
	uint8_t *buffers;
	struct rdma_call *calls;
	unsigned count; /* of calls */
	unsigned credits; /* that the peer is granted */
	unsigned room, posted; /* for work requests to send; that are taken */
	uint32_t inline_reply; /* bytes that the peer takes in one message */
	pthread_mutex_t lock; /* over `closing` and posting */
	bool closing; /* nothing is posted any more, and nothing is received */
	bool counted; /* among the connections that are limited */
	bool heard; /* something has completed since its peer was last asked */
	bool called; /* a message has come since it was last looked at */
	bool listed; /* in the device's list */
	unsigned idle; /* looks, one each second, since there was a call */
	uint32_t under_way; /* calls that have come and have not ended */
	LIST_ENTRY(rdma_connection) list;
	STAILQ_ENTRY(rdma_connection) disconnect, destroy; /* the reaper's */
	STAILQ_ENTRY(rdma_connection) useless, ended; /* the device's thread's */
	struct rdma_back back[RDMA_BACK];
	STAILQ_HEAD(, rdma_back) back_unused; /* under the device's lock */
	/* The device's thread's: what waits until it is granted; what the peer grants; what it has
	 * not replied to. */
	STAILQ_HEAD(, rdma_back) back_waiting;
	unsigned back_credits, back_sent;
};

struct rdma_device {
	LIST_ENTRY(rdma_device) list;
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	pthread_t thread;
	unsigned users;
	bool stopping;
	int wake; /* eventfd: there are postings */
	pthread_mutex_t lock; /* over `connections`, `postings`, `back`, `ended` */
	STAILQ_HEAD(, rdma_posting) postings; /* of workers that may not */
	STAILQ_HEAD(, rdma_back) back; /* made, with a reference of the connection */
	STAILQ_HEAD(, rdma_connection) ended; /* without a queue pair, with a reference */
	LIST_HEAD(, rdma_connection) connections;
	unsigned idle_timeout; /* seconds without a call that end a connection; 0: none do */
	time_t looked; /* when its connections were last looked at */
	uint32_t renewed; /* as often they have been ended so that they are made anew */
	time_t asked; /* when silent peers were last asked for */
	struct rdma_memory *memory;
};

/* RFC 8797: how much each end takes in one message. */
struct rdma_private_data {
	uint32_t magic;
	uint8_t version, flags, send, receive;
};

struct rdma_listener {
	struct rpc_dplx_rec sm_dr; /* first */
	struct rdma_event_channel *channel;
	struct rdma_cm_id *ids[2]; /* one for each kind of address */
	const struct rpc_rdma_attr *attr;
	pthread_t thread;
	bool lost; /* its device has gone */
};

/* rdma_memory.c: large buffers of one device, `limit` bytes of them at most */
struct rdma_memory *rdma_memory_create(struct ibv_pd *pd, size_t limit);
void rdma_memory_destroy(struct rdma_memory *memory);
/* Whether there is memory at all: then no call waits for ever. */
bool rdma_memory_ready(struct rdma_memory *memory);
/* Gives the call what its header asks for. False: not now; rdma_call_go() is called when it has. */
bool rdma_memory_take(struct rdma_memory *memory, struct rdma_call *call);
void rdma_memory_release(struct rdma_memory *memory, struct rdma_call *call);
uint8_t *rdma_map(size_t size);
/* The key of memory that was lent (rpc_rdma_lend()). False: it was not, or not all of it. */
bool rdma_memory_lent(struct rdma_memory *memory, const void *data, size_t length, uint32_t *lkey);

/* rdma_post.c */
void rdma_chain_add(struct rdma_chain *chain, enum ibv_wr_opcode opcode, const uint8_t *data,
	uint32_t length, uint32_t lkey, const struct rdma_segment *segment);
/* Posts it, now or by the device's thread. False: it has completed, with an error: there is no
 * room, and none of it was posted, or the device does not work. */
bool rdma_chain_post(struct rdma_connection *connection, struct rdma_chain *chain, uint64_t about);
void rdma_completed(struct rdma_connection *connection, uint64_t wr_id, enum ibv_wc_status status,
	uint32_t length);
/* Of a connection that has no queue pair any more: all chains that it had have completed. */
void rdma_complete_all(struct rdma_connection *connection);
/* Has the device's thread look for what workers left to it. */
void rdma_wake(struct rdma_device *device);
void rdma_post_waiting(struct rdma_device *device);

/* rdma_call.c */
void rdma_call_init(struct rdma_call *call, struct rdma_connection *connection, uint8_t *buffers);
int rdma_call_post(struct rdma_call *call);
void rdma_call_go(struct rdma_call *call);
void rdma_call_completed(struct rdma_call *call, enum rdma_about what, bool good, uint32_t length);
enum xprt_stat rdma_call_decode(struct svc_req *req);
enum xprt_stat rdma_call_reply(struct svc_req *req);

/* rdma_back.c */
void rdma_back_init(struct rdma_connection *connection, uint8_t *buffers);
void rdma_back_waiting(struct rdma_device *device);
void rdma_back_sent(struct rdma_back *back);
/* A message has come: if it answers a call, others may be sent. */
void rdma_back_received(struct rdma_connection *connection, const struct rdma_header *header,
	const uint8_t *message, uint32_t length);

/* rdma_service.c */
extern struct xp_ops rdma_listener_ops;
/* Takes a connection, or refuses it. The event that told of it has been acknowledged: an id is not
 * destroyed before that. */
void rdma_asked(
	struct rdma_listener *listener, struct rdma_cm_id *id, const struct rdma_conn_param *param);
int rdma_reaper_start(void);
/* The process ends. */
bool rdma_stopping(void);

/* rdma_listen.c: an event that made it readable goes with the object that it is about; to read
 * would wait then. False: it cannot be had. */
bool rdma_never_wait(int fd);

#endif
