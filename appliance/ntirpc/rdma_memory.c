/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Large buffers: registered a slab at a time, up to a limit, and kept until the device's last
 * connection has gone. A call takes all that it needs at once, before it runs, and gives it back
 * when its reply has left: nobody who holds a buffer waits for another. Where there is none, the
 * call waits in a queue; no thread does.
 *
 * Memory that the server lends is registered with each device as a whole, for as long as there is
 * the device: what lies in it is sent from there.
 */
#include "config.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <rpc/rpc.h>

#include "rdma_service.h"

#define SLAB 8 /* buffers */

struct slab {
	SLIST_ENTRY(slab) list;
	struct ibv_mr *mr;
	uint8_t *data;
	struct rdma_large large[SLAB];
};

static struct {
	void *data;
	size_t length;
} lent;

struct rdma_memory {
	struct ibv_mr *lent; /* NULL: it is copied from */
	pthread_mutex_t lock;
	struct ibv_pd *pd;
	size_t slabs, most; /* registered, and how many there may be */
	SLIST_HEAD(, slab) slab;
	TAILQ_HEAD(, rdma_large) unused;
	unsigned free;
	TAILQ_HEAD(, rdma_call) waiting;
};

/* Memory of its own pages, so that nothing else is pinned. NULL where there is none. */
uint8_t *rdma_map(size_t size)
{
	void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return data == MAP_FAILED ? NULL : data;
}

void rpc_rdma_lend(void *data, size_t length)
{
	lent.data = data;
	lent.length = length;
}

bool rdma_memory_lent(struct rdma_memory *memory, const void *data, size_t length, uint32_t *lkey)
{
	uintptr_t from = (uintptr_t)lent.data, at = (uintptr_t)data;

	if (!memory->lent || at < from || at - from > lent.length ||
		length > lent.length - (at - from))
		return false;
	*lkey = memory->lent->lkey;
	return true;
}

struct rdma_memory *rdma_memory_create(struct ibv_pd *pd, size_t limit)
{
	struct rdma_memory *memory = mem_zalloc(sizeof(*memory));

	pthread_mutex_init(&memory->lock, NULL);
	memory->pd = pd;
	memory->most = limit / (SLAB * RDMA_LARGE);
	if (!memory->most)
		memory->most = 1;
	SLIST_INIT(&memory->slab);
	TAILQ_INIT(&memory->unused);
	TAILQ_INIT(&memory->waiting);
	if (lent.length)
		memory->lent = ibv_reg_mr(pd, lent.data, lent.length, 0);
	if (lent.length && !memory->lent)
		__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: data is copied: %zu bytes are not pinned: %s",
			lent.length, strerror(errno));
	return memory;
}

void rdma_memory_destroy(struct rdma_memory *memory)
{
	struct slab *slab;

	if (memory->lent && ibv_dereg_mr(memory->lent))
		__warnx(TIRPC_DEBUG_FLAG_ERROR, "RDMA: %zu bytes stay pinned: %s", lent.length,
			strerror(errno));
	while ((slab = SLIST_FIRST(&memory->slab))) {
		SLIST_REMOVE_HEAD(&memory->slab, list);
		if (ibv_dereg_mr(slab->mr))
			__warnx(TIRPC_DEBUG_FLAG_ERROR, "RDMA: %zu bytes stay pinned: %s",
				(size_t)SLAB * RDMA_LARGE, strerror(errno));
		else
			munmap(slab->data, (size_t)SLAB * RDMA_LARGE);
		mem_free(slab, sizeof(*slab));
	}
	pthread_mutex_destroy(&memory->lock);
	mem_free(memory, sizeof(*memory));
}

/* A slab more. False where the limit, or the kernel, has no more. */
static bool grow(struct rdma_memory *memory)
{
	struct slab *slab;

	if (memory->slabs == memory->most)
		return false;
	slab = mem_zalloc(sizeof(*slab));
	slab->data = rdma_map((size_t)SLAB * RDMA_LARGE);
	slab->mr = slab->data ? ibv_reg_mr(memory->pd, slab->data, (size_t)SLAB * RDMA_LARGE,
					IBV_ACCESS_LOCAL_WRITE)
			      : NULL;
	if (!slab->mr) {
		__warnx(TIRPC_DEBUG_FLAG_WARN, "RDMA: no more than %zu slabs of %d bytes: %s",
			memory->slabs, SLAB * RDMA_LARGE, strerror(errno));
		if (slab->data)
			munmap(slab->data, (size_t)SLAB * RDMA_LARGE);
		mem_free(slab, sizeof(*slab));
		return false;
	}
	for (unsigned i = 0; i < SLAB; i++) {
		slab->large[i].data = slab->data + (size_t)i * RDMA_LARGE;
		slab->large[i].lkey = slab->mr->lkey;
		TAILQ_INSERT_TAIL(&memory->unused, &slab->large[i], q);
	}
	memory->free += SLAB;
	SLIST_INSERT_HEAD(&memory->slab, slab, list);
	memory->slabs++;
	return true;
}

static struct rdma_large *pop(struct rdma_memory *memory)
{
	struct rdma_large *large = TAILQ_FIRST(&memory->unused);

	TAILQ_REMOVE(&memory->unused, large, q);
	memory->free--;
	return large;
}

static bool give(struct rdma_memory *memory, struct rdma_call *call)
{
	bool read = call->header.reads, reply = call->header.writes || call->header.has_reply;

	while (memory->free < (unsigned)read + reply)
		if (!grow(memory))
			return false;
	call->read = read ? pop(memory) : NULL;
	call->reply = reply ? pop(memory) : NULL;
	return true;
}

bool rdma_memory_ready(struct rdma_memory *memory)
{
	bool ready;

	pthread_mutex_lock(&memory->lock);
	ready = memory->slabs || grow(memory);
	pthread_mutex_unlock(&memory->lock);
	return ready;
}

bool rdma_memory_take(struct rdma_memory *memory, struct rdma_call *call)
{
	bool given;

	pthread_mutex_lock(&memory->lock);
	given = TAILQ_EMPTY(&memory->waiting) && give(memory, call);
	if (!given)
		TAILQ_INSERT_TAIL(&memory->waiting, call, waiting);
	pthread_mutex_unlock(&memory->lock);
	return given;
}

static void put(struct rdma_memory *memory, struct rdma_large **large)
{
	if (!*large)
		return;
	TAILQ_INSERT_HEAD(&memory->unused, *large, q);
	memory->free++;
	*large = NULL;
}

void rdma_memory_release(struct rdma_memory *memory, struct rdma_call *call)
{
	struct rdma_call *next;

	pthread_mutex_lock(&memory->lock);
	put(memory, &call->read);
	put(memory, &call->reply);
	while ((next = TAILQ_FIRST(&memory->waiting)) && give(memory, next)) {
		TAILQ_REMOVE(&memory->waiting, next, waiting);
		pthread_mutex_unlock(&memory->lock);
		rdma_call_go(next);
		pthread_mutex_lock(&memory->lock);
	}
	pthread_mutex_unlock(&memory->lock);
}
