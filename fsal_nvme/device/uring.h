/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The insides of the io_uring engine, shared by uring.c (the engine), uring_ring.c (a ring and its
 * thread), uring_device.c and uring_buffer.c.
 *
 * Each device belongs to one ring, and each ring to one thread, which alone submits to the kernel
 * and takes back what it finished. Whoever has requests appends them to the ring's list, and wakes
 * the thread, through an eventfd that the ring reads, if it is asleep. So a batch costs one system
 * call, nobody else is interrupted by what the kernel finishes, and a request that is submitted
 * from done() costs no wake at all. The kernel knows it too: a ring with one issuer and deferred
 * task work (io_uring_setup(2), Linux 6.1) takes no locks of its own.
 */
#ifndef MILLRACE_URING_H
#define MILLRACE_URING_H

#include <liburing.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sys/types.h>

#undef BLOCK_SIZE /* linux/fs.h has another one */
#include "device/engine.h"

#define PIECE_SIZE ((size_t)1 << 30) /* the kernel registers no more in one buffer */
#define ORDERS 19 /* blocks of 4 KiB << 0 to 4 KiB << 18, one piece */

/* One region of memory, split by the buddy method (Knuth, TAOCP 1, 2.5). */
struct arena {
	pthread_mutex_t lock;
	uint8_t *memory;
	size_t length; /* a multiple of BLOCK_SIZE; 0: none */
	uint8_t *order; /* of a free block, at its first page: 1 + order; 0 elsewhere */
	uint32_t *next, *previous; /* of a free block, by page */
	uint32_t free[ORDERS]; /* first free block; NO_PAGE: none */
};

/* To the ring's thread, as an operation of a request beside enum io_op. */
enum { RING_STOP = IO_FLUSH + 1 };

struct io_list {
	struct io *first, **last;
};

struct ring {
	struct uring_engine *engine;
	pthread_t thread;
	unsigned depth; /* requests in the kernel, at most */
	int wake_fd;
	bool buffers_registered;

	/* The thread's alone. */
	struct io_uring uring;
	struct io_list ready; /* not in the kernel; io->engine_data: bytes transferred so far */
	unsigned in_kernel; /* requests */
	uint64_t wakes; /* the kernel reads wake_fd to here */
	bool wake_armed, stop;

	pthread_mutex_t lock; /* of what follows */
	struct io_list submitted;
	bool asleep; /* the thread: who submits wakes it */

	pthread_mutex_t counters_lock;
	struct engine_counters counters;
};

struct uring_engine {
	struct engine engine;
	struct arena arena;
	atomic_uint opened; /* devices, ever: chooses the ring */
	atomic_uint open; /* devices, now */
	unsigned ring_count;
	struct ring rings[];
};

struct uring_device {
	struct device device;
	struct ring *ring;
	int fd;
	dev_t file_system; /* with `inode`: which file this is */
	ino_t inode;
};

/* Starts the thread. After a failure nothing is left. */
int ring_init(struct ring *ring, struct uring_engine *engine, unsigned depth, struct error *error);
void ring_destroy(struct ring *ring);
/* The requests of the batch that belong to this ring. */
void ring_submit(struct ring *ring, struct io *chain);

int uring_open(struct engine *engine, const char *path, unsigned flags, struct device **device,
	struct error *error);
void uring_close(struct device *device);
bool uring_present(struct device *device);

/* 0 or -ENOMEM. */
int arena_init(struct arena *arena, size_t length);
void arena_destroy(struct arena *arena);
/* From the arena while it has room, else from the heap; NULL: no memory. */
void *arena_alloc(struct arena *arena, size_t length);
void arena_free(struct arena *arena, void *buffer, size_t length);
/* The number of the registered piece that holds all of the buffer; -1: none. */
int arena_piece(const struct arena *arena, const void *buffer, size_t length);

#endif
