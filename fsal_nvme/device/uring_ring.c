/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A ring: waiting -> in the kernel -> (short or interrupted: waiting again) -> done().
 *
 * A request that needs nothing from the device (a flush where no cache is, a range beyond the end)
 * takes the same way as a no-op, so that its done() too runs on the ring's thread.
 *
 * The kernel ties a request to the thread that submitted it: when that thread ends, what had not
 * started comes back as -ECANCELED. It is submitted again, by the ring's thread; reads, whole-block
 * writes and flushes can all be repeated.
 */
#include "device/uring.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "common/log.h"

#define BATCH 64u /* completions settled under one hold of the lock */
#define WORKERS                                                                          \
	16u /* kernel threads a submitting thread, for what the kernel cannot do at once \
	     */

/* --- from a request to the kernel ----------------------------------------------------------- */

/* Whether there is nothing for the kernel to do. */
static bool idle(const struct io *io)
{
	if (io->op == IO_FLUSH)
		return !io->device->info.volatile_cache;
	return !io_in_range(io);
}

/* The rest of the buffer in which a transfer stopped after `done` bytes, or the first one. */
static struct iovec rest_of(const struct io *io)
{
	uint64_t skip = io->engine_data;
	const struct iovec *iov = io->iov;
	struct iovec rest;

	while (skip >= iov->iov_len)
		skip -= (iov++)->iov_len;
	rest.iov_base = (uint8_t *)iov->iov_base + skip;
	rest.iov_len = iov->iov_len - skip;
	if (rest.iov_len > PIECE_SIZE)
		rest.iov_len = PIECE_SIZE;
	return rest;
}

static void prepare_one(
	const struct ring *ring, const struct io *io, int fd, struct io_uring_sqe *sqe)
{
	struct iovec rest = rest_of(io);
	uint64_t offset = io->offset + io->engine_data;
	unsigned length = (unsigned)rest.iov_len;
	int piece = -1;

	if (ring->buffers_registered)
		piece = arena_piece(&ring->engine->arena, rest.iov_base, rest.iov_len);
	if (io->op == IO_READ && piece >= 0)
		io_uring_prep_read_fixed(sqe, fd, rest.iov_base, length, offset, piece);
	else if (io->op == IO_READ)
		io_uring_prep_read(sqe, fd, rest.iov_base, length, offset);
	else if (piece >= 0)
		io_uring_prep_write_fixed(sqe, fd, rest.iov_base, length, offset, piece);
	else
		io_uring_prep_write(sqe, fd, rest.iov_base, length, offset);
}

static void prepare_transfer(
	const struct ring *ring, const struct io *io, int fd, struct io_uring_sqe *sqe)
{
	if (io->iov_count == 1 || io->engine_data > 0)
		prepare_one(ring, io, fd, sqe);
	else if (io->op == IO_READ)
		io_uring_prep_readv(sqe, fd, io->iov, io->iov_count, io->offset);
	else
		io_uring_prep_writev(sqe, fd, io->iov, io->iov_count, io->offset);
	if ((io->flags & IO_FUA) && io->device->info.volatile_cache)
		sqe->rw_flags = RWF_DSYNC;
}

static void prepare(const struct ring *ring, struct io *io, struct io_uring_sqe *sqe)
{
	const struct uring_device *device = (const struct uring_device *)io->device;
	int fd = device->slot >= 0 ? device->slot : device->fd;

	if (idle(io)) {
		io_uring_prep_nop(sqe);
	} else {
		if (io->op == IO_FLUSH)
			io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
		else
			prepare_transfer(ring, io, fd, sqe);
		if (device->slot >= 0)
			sqe->flags |= IOSQE_FIXED_FILE;
	}
	io_uring_sqe_set_data(sqe, io);
}

/*
 * Hands over what is prepared. The kernel refuses for the moment when it has no memory; and it
 * stops at an entry that it finds wrong, which then completes with its error.
 */
static void enter(struct ring *ring)
{
	const struct timespec moment = {.tv_nsec = 100000};

	while (io_uring_sq_ready(&ring->uring) > 0) {
		int result = io_uring_submit(&ring->uring);

		if (result > 0 || result == -EINTR)
			continue;
		assert(result == 0 || result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
		nanosleep(&moment, NULL);
	}
}

static void append(struct ring *ring, struct io *io)
{
	io->next = NULL;
	*ring->waiting_last = io;
	ring->waiting_last = &io->next;
	atomic_fetch_add(&ring->waiting_count, 1);
}

static struct io *take_waiting(struct ring *ring)
{
	struct io *io = ring->waiting;

	ring->waiting = io->next;
	if (!ring->waiting)
		ring->waiting_last = &ring->waiting;
	atomic_fetch_sub(&ring->waiting_count, 1);
	return io;
}

/* Moves waiting requests into the kernel as the depth allows. Called with the lock. */
static void move_up(struct ring *ring)
{
	while (ring->waiting && atomic_load(&ring->in_kernel) < ring->depth) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);

		assert(sqe);
		prepare(ring, take_waiting(ring), sqe);
		atomic_fetch_add(&ring->in_kernel, 1);
	}
	enter(ring);
}

void ring_submit(struct ring *ring, struct io *chain)
{
	struct io *next;

	pthread_mutex_lock(&ring->lock);
	for (struct io *io = chain; io; io = next) {
		next = io->next;
		io->engine_data = 0;
		append(ring, io);
	}
	move_up(ring);
	pthread_mutex_unlock(&ring->lock);
}

/* --- from the kernel to done() ---------------------------------------------------------------- */

static bool try_again(int result)
{
	return result == -EINTR || result == -EAGAIN || result == -ECANCELED;
}

static int error_of(const struct io *io, int result)
{
	if (result == -ENXIO)
		return -ENODEV;
	/* Direct I/O cannot go on in the middle of a sector: a file became shorter. */
	if (result == -EINVAL && io->engine_data > 0)
		return -EIO;
	return result;
}

/* Sets io->result; false: the request has to go on. */
static bool settle(struct io *io, int result)
{
	io->result = 0;
	if (idle(io)) {
		io->result = io->op == IO_FLUSH ? 0 : -EIO;
		return true;
	}
	if (try_again(result))
		return false;
	if (result < 0)
		io->result = error_of(io, result);
	if (result < 0 || io->op == IO_FLUSH)
		return true;
	if (result == 0) {
		io->result = -EIO;
		return true;
	}
	io->engine_data += (unsigned)result;
	return io->engine_data >= io_length(io);
}

struct io_list {
	struct io *first, **last;
};

static void list_add(struct io_list *list, struct io *io)
{
	io->next = NULL;
	*list->last = io;
	list->last = &io->next;
}

static void count_finished(struct ring *ring, const struct io *io)
{
	pthread_mutex_lock(&ring->counters_lock);
	for (; io; io = io->next)
		counters_add(&ring->counters, io, io_length(io));
	pthread_mutex_unlock(&ring->counters_lock);
}

/* Submits `again`, and what has waited for room. */
static void refill(struct ring *ring, struct io *again)
{
	struct io *next;

	if (!again && !atomic_load(&ring->waiting_count))
		return;
	pthread_mutex_lock(&ring->lock);
	for (; again; again = next) {
		next = again->next;
		append(ring, again);
	}
	move_up(ring);
	pthread_mutex_unlock(&ring->lock);
}

/*
 * Settles what has come back; the finished requests as a list. The completion side of the ring is
 * its thread's alone: it does not wait for those who submit. A request that finds the kernel's
 * depth used up is counted as waiting before it looks (ring_submit), and this looks at that count
 * after it made room, so one of the two sees the other. The kernel handed the requests over; to the
 * language it is `in_kernel`, raised once a request was written and looked at before it is read.
 */
static struct io *collect(struct ring *ring, bool *stop)
{
	struct io_uring_cqe *cqes[BATCH];
	struct io_list finished = {NULL, &finished.first}, again = {NULL, &again.first};
	unsigned count = io_uring_peek_batch_cqe(&ring->uring, cqes, BATCH), left = 0;

	(void)atomic_load(&ring->in_kernel);
	for (unsigned i = 0; i < count; i++) {
		struct io *io = io_uring_cqe_get_data(cqes[i]);

		if (io)
			list_add(settle(io, cqes[i]->res) ? &finished : &again, io);
		else
			*stop = true;
		left += io != NULL;
	}
	io_uring_cq_advance(&ring->uring, count);
	atomic_fetch_sub(&ring->in_kernel, left);
	refill(ring, again.first);
	count_finished(ring, finished.first);
	return finished.first;
}

static void *ring_main(void *argument)
{
	struct ring *ring = argument;
	struct io_uring_cqe *cqe;
	bool stop = false;

	while (!stop) {
		int result = io_uring_wait_cqe(&ring->uring, &cqe);
		struct io *next;

		assert(result == 0 || result == -EINTR || result == -EAGAIN);
		for (struct io *io = collect(ring, &stop); io; io = next) {
			next = io->next;
			io->done(io);
		}
	}
	return NULL;
}

/* --- life --------------------------------------------------------------------------------- */

static int setup_error(int result, struct error *error)
{
	switch (result) {
	case -EPERM:
		return error_set(error, result, "io_uring",
			"the kernel does not allow io_uring to this process: set "
			"kernel.io_uring_disabled "
			"to 0, or allow it in the container's seccomp profile");
	case -ENOSYS:
		return error_set(error, result, "io_uring",
			"the kernel has no io_uring (Linux 5.19 or later is needed), or a seccomp "
			"profile hides it");
	case -ENOMEM:
		return error_set(error, result, "io_uring",
			"no memory for a ring: raise the limit of locked memory (ulimit -l)");
	default:
		return error_set(error, result, "io_uring", "a ring cannot be set up: %s",
			strerror(-result));
	}
}

static int register_buffers(struct ring *ring)
{
	const struct arena *arena = &ring->engine->arena;
	size_t pieces = (arena->length + PIECE_SIZE - 1) / PIECE_SIZE;
	struct iovec iov[64];

	if (pieces > sizeof(iov) / sizeof(iov[0]))
		return -E2BIG;
	for (size_t i = 0; i < pieces; i++) {
		size_t left = arena->length - i * PIECE_SIZE;

		iov[i].iov_base = arena->memory + i * PIECE_SIZE;
		iov[i].iov_len = left < PIECE_SIZE ? left : PIECE_SIZE;
	}
	return io_uring_register_buffers(&ring->uring, iov, (unsigned)pieces);
}

/* What makes requests cheaper; without it they work all the same. */
static void register_all(struct ring *ring)
{
	unsigned workers[2] = {WORKERS, WORKERS};
	bool first = ring == ring->engine->rings;
	int result = register_buffers(ring);

	ring->buffers_registered = result == 0;
	if (result && first)
		log_notice("io_uring: buffers are not registered (%s; see ulimit -l): each "
			   "request maps its own",
			strerror(-result));
	result = io_uring_register_files_sparse(&ring->uring, FILE_SLOTS);
	ring->files_registered = result == 0;
	if (result && first)
		log_notice("io_uring: files are not registered: %s", strerror(-result));
	(void)io_uring_register_iowq_max_workers(&ring->uring, workers);
}

/* The host program's signals are not for this thread. */
static int start_thread(struct ring *ring)
{
	sigset_t all, before;
	int result;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = -pthread_create(&ring->thread, NULL, ring_main, ring);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!result)
		pthread_setname_np(ring->thread, "millrace-io");
	return result;
}

int ring_init(struct ring *ring, struct uring_engine *engine, unsigned depth, struct error *error)
{
	struct io_uring_params params = {.flags = IORING_SETUP_CLAMP};
	int result = io_uring_queue_init_params(depth, &ring->uring, &params);

	if (result)
		return setup_error(result, error);
	ring->engine = engine;
	ring->depth = depth < params.sq_entries ? depth : params.sq_entries;
	ring->waiting_last = &ring->waiting;
	pthread_mutex_init(&ring->lock, NULL);
	pthread_mutex_init(&ring->counters_lock, NULL);
	register_all(ring);
	result = start_thread(ring);
	if (result) {
		pthread_mutex_destroy(&ring->lock);
		pthread_mutex_destroy(&ring->counters_lock);
		io_uring_queue_exit(&ring->uring);
		return error_set(error, result, "io_uring", "a thread cannot be started: %s",
			strerror(-result));
	}
	return 0;
}

/* A completion without a request wakes the thread. */
static void stop_thread(struct ring *ring)
{
	struct io_uring_sqe *sqe;

	pthread_mutex_lock(&ring->lock);
	assert(!ring->waiting && !atomic_load(&ring->in_kernel));
	sqe = io_uring_get_sqe(&ring->uring);
	assert(sqe);
	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data(sqe, NULL);
	enter(ring);
	pthread_mutex_unlock(&ring->lock);
	pthread_join(ring->thread, NULL);
}

void ring_destroy(struct ring *ring)
{
	stop_thread(ring);
	pthread_mutex_destroy(&ring->lock);
	pthread_mutex_destroy(&ring->counters_lock);
	io_uring_queue_exit(&ring->uring);
}

/* --- registered files --------------------------------------------------------------------- */

static int free_slot(const struct ring *ring)
{
	for (int slot = 0; slot < FILE_SLOTS; slot++) {
		if (!ring->slot_used[slot])
			return slot;
	}
	return -1;
}

int ring_add_file(struct ring *ring, int fd)
{
	int slot = -1;

	if (!ring->files_registered)
		return -1;
	pthread_mutex_lock(&ring->lock);
	slot = free_slot(ring);
	if (slot >= 0 && io_uring_register_files_update(&ring->uring, (unsigned)slot, &fd, 1) != 1)
		slot = -1;
	if (slot >= 0)
		ring->slot_used[slot] = true;
	pthread_mutex_unlock(&ring->lock);
	return slot;
}

void ring_remove_file(struct ring *ring, int slot)
{
	int none = -1;

	if (slot < 0)
		return;
	pthread_mutex_lock(&ring->lock);
	(void)io_uring_register_files_update(&ring->uring, (unsigned)slot, &none, 1);
	ring->slot_used[slot] = false;
	pthread_mutex_unlock(&ring->lock);
}
