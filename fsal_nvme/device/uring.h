/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The insides of the io_uring engine, shared by uring.c (the engine), uring_ring.c (a ring and its
 * thread), uring_device.c and uring_buffer.c.
 *
 * Each device belongs to one ring. Whoever submits takes the ring's lock once for a batch, appends
 * to its list of waiting requests, and moves as many as the depth allows into the kernel; the
 * ring's thread sleeps in the kernel, settles what has come back and calls done(), all without the
 * lock, which it takes only to move up what waits. `in_kernel` is what hands a request from the
 * submitter to the thread: the ring's memory, shared with the kernel, is no part of C's memory
 * model.
 */
#ifndef MILLRACE_URING_H
#define MILLRACE_URING_H

#include <liburing.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sys/types.h>

#undef BLOCK_SIZE /* linux/fs.h has another one */
#include "device/engine.h"

#define FILE_SLOTS 256 /* registered files a ring; devices beyond it go by their descriptors */
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

struct ring {
	struct uring_engine *engine;
	struct io_uring uring;
	pthread_t thread;
	unsigned depth;
	atomic_uint in_kernel; /* requests: up under `lock`, down by the ring's thread */
	pthread_mutex_t lock; /* the submission side of `uring`, the list, the slots */
	struct io *waiting, **waiting_last; /* io->engine_data: bytes transferred so far */
	atomic_uint waiting_count;
	pthread_mutex_t counters_lock;
	struct engine_counters counters;
	bool buffers_registered, files_registered; /* set before the thread starts */
	bool slot_used[FILE_SLOTS];
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
	int claim; /* holds a block device exclusively; -1: none */
	int slot; /* among the ring's registered files; -1: none */
	dev_t file_system; /* with `inode`: which file this is */
	ino_t inode;
};

/* Starts the thread. After a failure nothing is left. */
int ring_init(struct ring *ring, struct uring_engine *engine, unsigned depth, struct error *error);
void ring_destroy(struct ring *ring);
/* The requests of the batch that belong to this ring. */
void ring_submit(struct ring *ring, struct io *chain);
/* A slot for the file, or -1. */
int ring_add_file(struct ring *ring, int fd);
void ring_remove_file(struct ring *ring, int slot);

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
