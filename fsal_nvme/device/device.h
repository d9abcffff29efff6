/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The device layer: asynchronous block I/O, clock and randomness.
 *
 * What it promises to the pool above it:
 *  - One engine (struct engine) is the whole outside world: devices, time, randomness. Two exist:
 *    io_uring on block devices and plain files (uring.c), and a simulated one (sim.c, sim.h) in
 *    which all of it comes from a seed and the power can be cut at any request.
 *  - io_submit() never fails and never calls back from inside itself: each request's done() runs
 *    exactly once, later, on an engine thread (io_uring) or inside event_wait()/engine_poll()
 *    (simulated). done() must not block; it may submit more requests.
 *  - A write is durable after a flush of the same device that was submitted after the write's
 *    done(), or at its own done() when it carries IO_FUA. Nothing else is promised about order.
 *  - Offsets and lengths are multiples of BLOCK_SIZE, memory is aligned to it.
 *
 * Errors are negative errno values throughout. A short transfer is -EIO, a device that is gone is
 * -ENODEV, and everything after a simulated power cut is -ESHUTDOWN.
 */
#ifndef MILLRACE_DEVICE_H
#define MILLRACE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/error.h"

#define BLOCK_SIZE 4096u

struct engine;
struct device;

enum io_op { IO_READ, IO_WRITE, IO_FLUSH };
#define IO_OPS 3

enum {
	IO_FUA = 1 << 0, /* a write that is durable when it is done */
};

/*
 * One request. The caller owns it, its iovec array and its memory, and leaves all three alone from
 * io_submit() until done() is called; done() may free or reuse it.
 */
struct io {
	enum io_op op;
	unsigned flags;
	struct device *device;
	uint64_t offset; /* bytes */
	struct iovec *iov; /* IOV_MAX at most; unused for IO_FLUSH; `one` serves a single buffer */
	unsigned iov_count;
	struct iovec one;
	int result; /* valid in done(): 0 or a negative errno */
	void (*done)(struct io *io);
	void *data; /* the caller's */
	struct io *next; /* the engine's, while submitted */
	uint64_t engine_data; /* the engine's, while submitted */
	uint64_t submitted; /* engine_clock() of io_submit() */
};

static inline size_t iov_length(const struct iovec *iov, unsigned count)
{
	size_t length = 0;

	for (unsigned i = 0; i < count; i++)
		length += iov[i].iov_len;
	return length;
}

/* Fills a request with one buffer. */
void io_prepare(struct io *io, enum io_op op, struct device *device, uint64_t offset, void *buffer,
	size_t length);

/* Submits `count` requests, for any mix of devices, in one go. From any thread. */
void io_submit(struct engine *engine, struct io **ios, unsigned count);

/* One request, submitted and waited for. Not from done(). */
int io_run(struct engine *engine, struct io *io);

/*
 * A read that is waited for, but not for longer than it takes a path to tell that it is gone (an
 * NVMe-oF connection that is lost does within 10 s; a drive of this machine may take 30 s and more
 * to fail): then the device hangs until it answers. One that hangs may be closed all the same, and
 * is not opened again, by the same path in this engine, before it has answered. Not from done().
 */
#define DEVICE_ANSWER_NS (UINT64_C(15) * 1000 * 1000 * 1000)
struct asked;
/* Begins it, in memory of its own. NULL: there is none. */
struct asked *device_ask(
	struct engine *engine, struct device *device, uint64_t offset, size_t length);
/* Waits until `end`, of engine_clock(): the result, or -ETIMEDOUT. NULL: -ENOMEM. */
int asked_answer(struct asked *asked, uint64_t end);
/* What was read, after a result of 0; until asked_end(). */
const void *asked_memory(const struct asked *asked);
/* Before its device is closed. NULL is allowed. */
void asked_end(struct asked *asked);

/* --- devices ------------------------------------------------------------------------------ */

struct device_info {
	char path[256];
	uint64_t size; /* bytes, rounded down to BLOCK_SIZE */
	bool rotational;
	bool volatile_cache; /* flushes are needed; always true for plain files */
	bool plain_file;
};

enum { DEVICE_READ_ONLY = 1 << 0, DEVICE_EXCLUSIVE = 1 << 1 /* O_EXCL on block devices */ };

/* Opens a block device or plain file (never creates one). `error` names the path. */
int device_open(struct engine *engine, const char *path, unsigned flags, struct device **device,
	struct error *error);
/* All its requests must be done, but what was asked and is ended. NULL is allowed. */
void device_close(struct device *device);
const struct device_info *device_info(const struct device *device);
/*
 * Whether the device is still there: a block device that answers with its size, a plain file whose
 * path still names the file that was opened, at no less than its size. Blocks for a system call.
 */
bool device_present(struct device *device);

/* What a device has done since it was opened. Nothing here ever decreases but `under_way`. */
struct device_counters {
	uint64_t elapsed; /* ns since then */
	struct {
		uint64_t done; /* requests, without those that failed */
		uint64_t bytes;
		uint64_t ns; /* from io_submit() to their end, added up */
	} of[IO_OPS]; /* by enum io_op */
	uint64_t errors; /* requests that failed */
	uint64_t under_way; /* requests: submitted, and not done */
};
/* From any thread. */
void device_counters(const struct device *device, struct device_counters *counters);

/* --- engine -------------------------------------------------------------------------------- */

struct engine_options {
	unsigned queue_depth; /* requests in the kernel per ring; more wait in a list; 0: 256 */
	unsigned rings; /* each with a thread that calls done(); 0: min(4, processors) */
	size_t buffer_memory; /* bytes of registered memory for buffer_alloc(); 0: 64 MiB */
};

int uring_engine_create(
	const struct engine_options *options, struct engine **engine, struct error *error);
/* All devices must be closed. */
void engine_destroy(struct engine *engine);

/* Bytes and requests since creation; for statistics and tests. */
struct engine_counters {
	uint64_t reads, read_bytes, writes, write_bytes, flushes, errors;
};
void engine_counters(struct engine *engine, struct engine_counters *counters);

/*
 * Memory for I/O: aligned to BLOCK_SIZE, from the registered region while that has room and from
 * the heap beyond it; NULL when there is none. Not zeroed. From any thread.
 */
void *buffer_alloc(struct engine *engine, size_t length);
/* That region, which stays where it is; *length is 0 where there is none. */
void *engine_memory(struct engine *engine, size_t *length);
void buffer_free(struct engine *engine, void *buffer, size_t length);

uint64_t engine_clock(struct engine *engine); /* monotonic, nanoseconds */
uint64_t engine_time(struct engine *engine); /* since 1970, nanoseconds */
void engine_random(struct engine *engine, void *buffer, size_t length);
/* Simulated: advances the clock, running completions that fall due. */
void engine_sleep(struct engine *engine, uint64_t nanoseconds);
/* Runs completions that are due, if they need the caller's thread (simulated only). */
void engine_poll(struct engine *engine);
/* True where nothing happens unless the caller's thread makes it happen: no threads may be used. */
bool engine_is_simulated(struct engine *engine);

/*
 * What is called about every `every` nanoseconds: by a thread of its own, or in a simulated world
 * when it has nothing else to do before requests that are on their way fall due. run() must not
 * wait; it may submit requests.
 */
struct ticker {
	uint64_t every;
	void (*run)(struct ticker *ticker);
	/* the engine's */
	struct engine *engine;
	struct ticker *next;
	uint64_t due;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stopping;
};
/* 0 or -EAGAIN. */
int ticker_start(struct engine *engine, struct ticker *ticker);
/* run() has returned, and is not called again. Not from run(). */
void ticker_stop(struct ticker *ticker);

/*
 * Waiting: an event is signalled once by whoever finishes the work, and waited for by one thread.
 * Waiting is what runs a simulated world, so all blocking below export/ goes through it.
 */
struct event {
	struct engine *engine;
	_Atomic int state; /* 0 pending, 1 signalled, 2 pending and slept on */
	int result;
};
void event_init(struct event *event, struct engine *engine);
void event_signal(struct event *event, int result);
/* Returns the result that was signalled; in a simulated world that stands still: -EDEADLK. */
int event_wait(struct event *event);
/* The same, for so long at most: -ETIMEDOUT, and it may be signalled yet. */
int event_wait_for(struct event *event, uint64_t nanoseconds);

#endif
