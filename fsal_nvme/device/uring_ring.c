/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A ring: submitted -> taken over -> in the kernel -> (short or interrupted: taken over again) ->
 * done().
 *
 * A request that needs nothing from the device (a flush where no cache is, a range beyond the end)
 * takes the same way as a no-op, so that its done() too runs on the ring's thread.
 */
#include "device/uring.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"

#define BATCH 64u /* completions settled together */
#define WORKERS 16u /* kernel threads a ring, for what the kernel cannot do at once */

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

static void prepare_file_request(const struct ring *ring, struct io *io, struct io_uring_sqe *sqe)
{
	const struct uring_device *device = (const struct uring_device *)io->device;

	if (idle(io)) {
		io_uring_prep_nop(sqe);
		return;
	}
	if (io->op == IO_FLUSH)
		io_uring_prep_fsync(sqe, device->fd, IORING_FSYNC_DATASYNC);
	else
		prepare_transfer(ring, io, device->fd, sqe);
}

static bool is_stop(const struct io *io)
{
	return (int)io->op == RING_STOP;
}

static void prepare(const struct ring *ring, struct io *io, struct io_uring_sqe *sqe)
{
	if (is_stop(io))
		io_uring_prep_nop(sqe);
	else
		prepare_file_request(ring, io, sqe);
	io_uring_sqe_set_data(sqe, io);
}

/* --- submitting: any thread ------------------------------------------------------------------- */

static void list_init(struct io_list *list)
{
	list->first = NULL;
	list->last = &list->first;
}

static void list_add(struct io_list *list, struct io *io)
{
	io->next = NULL;
	*list->last = io;
	list->last = &io->next;
}

static struct io *list_take(struct io_list *list)
{
	struct io *io = list->first;

	list->first = io->next;
	if (!list->first)
		list->last = &list->first;
	return io;
}

/* Moves all of `from` to the end of `list`. */
static void list_join(struct io_list *list, struct io_list *from)
{
	if (!from->first)
		return;
	*list->last = from->first;
	list->last = from->last;
	list_init(from);
}

/* Called with the lock: once the ring's last request has had it, nobody writes any more. */
static void wake(struct ring *ring)
{
	const uint64_t one = 1;
	ssize_t written = write(ring->wake_fd, &one, sizeof(one));

	assert(written == sizeof(one));
	ring->asleep = false;
}

void ring_submit(struct ring *ring, struct io *chain)
{
	struct io *next;

	pthread_mutex_lock(&ring->lock);
	for (struct io *io = chain; io; io = next) {
		next = io->next;
		io->engine_data = 0;
		list_add(&ring->submitted, io);
	}
	if (ring->asleep)
		wake(ring);
	pthread_mutex_unlock(&ring->lock);
}

/* --- the thread: into the kernel -------------------------------------------------------------- */

/* What was submitted up to here is the thread's; who submits later wakes it. */
static void take_over(struct ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	list_join(&ring->ready, &ring->submitted);
	ring->asleep = true;
	pthread_mutex_unlock(&ring->lock);
}

static void stay_awake(struct ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	ring->asleep = false;
	pthread_mutex_unlock(&ring->lock);
}

/* The read of the eventfd that ends the thread's sleep. */
static void prepare_wake(struct ring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);

	assert(sqe);
	io_uring_prep_read(sqe, ring->wake_fd, &ring->wakes, sizeof(ring->wakes), 0);
	io_uring_sqe_set_data(sqe, NULL);
	ring->wake_armed = true;
}

/* Prepares what is ready, as the depth allows. */
static void move_up(struct ring *ring)
{
	if (!ring->wake_armed)
		prepare_wake(ring);
	for (; ring->ready.first && ring->in_kernel < ring->depth; ring->in_kernel++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);

		assert(sqe);
		prepare(ring, list_take(&ring->ready), sqe);
	}
}

/*
 * Hands over what is prepared, and sleeps until something has come back. The kernel refuses for the
 * moment when it has no memory; and it stops at an entry that it finds wrong, which then completes
 * with its error.
 */
static void enter(struct ring *ring)
{
	const struct timespec moment = {.tv_nsec = 100000};

	do {
		int result = io_uring_submit_and_wait(&ring->uring, 1);

		if (result >= 0 || result == -EINTR)
			continue;
		assert(result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
		nanosleep(&moment, NULL);
	} while (io_uring_sq_ready(&ring->uring) > 0);
}

/* --- the thread: from the kernel to done() ---------------------------------------------------- */

static bool try_again(int result)
{
	return result == -EINTR || result == -EAGAIN;
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
	if (is_stop(io))
		return true;
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

static void count_finished(struct ring *ring, const struct io *io)
{
	uint64_t clock = io ? engine_clock(&ring->engine->engine) : 0;

	pthread_mutex_lock(&ring->counters_lock);
	for (; io; io = io->next) {
		if (!is_stop(io))
			counters_add(&ring->counters, io, clock);
	}
	pthread_mutex_unlock(&ring->counters_lock);
}

/* Settles what has come back; the finished requests as a list. */
static struct io *collect(struct ring *ring)
{
	struct io_uring_cqe *cqes[BATCH];
	struct io_list finished;
	unsigned count = io_uring_peek_batch_cqe(&ring->uring, cqes, BATCH);

	list_init(&finished);
	for (unsigned i = 0; i < count; i++) {
		struct io *io = io_uring_cqe_get_data(cqes[i]);

		if (!io) {
			ring->wake_armed = false;
			continue;
		}
		ring->in_kernel--;
		list_add(settle(io, cqes[i]->res) ? &finished : &ring->ready, io);
	}
	io_uring_cq_advance(&ring->uring, count);
	count_finished(ring, finished.first);
	return finished.first;
}

static void finish(struct ring *ring, struct io *io)
{
	struct io *next;

	for (; io; io = next) {
		next = io->next;
		if (is_stop(io))
			ring->stop = true;
		io->done(io);
	}
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
			"the kernel has no io_uring (Linux 6.1 or later is needed), or a seccomp "
			"profile hides it");
	case -EINVAL:
		return error_set(error, result, "io_uring",
			"the kernel is too old: Linux 6.1 or later is needed");
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
	(void)io_uring_register_iowq_max_workers(&ring->uring, workers);
}

/* The kernel takes a ring's requests only from the thread that made it. */
static int setup(struct ring *ring, struct error *error)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER |
			 IORING_SETUP_DEFER_TASKRUN,
	};
	/* One entry is for the wake. */
	int result = io_uring_queue_init_params(ring->depth + 1, &ring->uring, &params);

	if (result)
		return setup_error(result, error);
	if (ring->depth >= params.sq_entries)
		ring->depth = params.sq_entries - 1;
	register_all(ring);
	return 0;
}

struct starting {
	struct ring *ring;
	struct error *error;
	struct event event;
};

static void *ring_main(void *argument)
{
	struct starting *starting = argument;
	struct ring *ring = starting->ring;
	int result = setup(ring, starting->error);

	event_signal(&starting->event, result);
	if (result)
		return NULL;
	while (!ring->stop) {
		take_over(ring);
		move_up(ring);
		enter(ring);
		stay_awake(ring);
		while (io_uring_cq_ready(&ring->uring))
			finish(ring, collect(ring));
	}
	io_uring_queue_exit(&ring->uring);
	return NULL;
}

/* The host program's signals are not for this thread. */
static int start_thread(struct ring *ring, struct error *error)
{
	struct starting starting = {.ring = ring, .error = error};
	sigset_t all, before;
	int result;

	event_init(&starting.event, &ring->engine->engine);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = -pthread_create(&ring->thread, NULL, ring_main, &starting);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (result)
		return error_set(error, result, "io_uring", "a thread cannot be started: %s",
			strerror(-result));
	pthread_setname_np(ring->thread, "millrace-io");
	result = event_wait(&starting.event);
	if (result)
		pthread_join(ring->thread, NULL);
	return result;
}

int ring_init(struct ring *ring, struct uring_engine *engine, unsigned depth, struct error *error)
{
	int result;

	ring->engine = engine;
	ring->depth = depth;
	list_init(&ring->submitted);
	list_init(&ring->ready);
	ring->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (ring->wake_fd < 0)
		return error_set(error, -errno, "io_uring", "no event descriptor: %m");
	pthread_mutex_init(&ring->lock, NULL);
	pthread_mutex_init(&ring->counters_lock, NULL);
	result = start_thread(ring, error);
	if (result) {
		pthread_mutex_destroy(&ring->lock);
		pthread_mutex_destroy(&ring->counters_lock);
		close(ring->wake_fd);
	}
	return result;
}

static void stopped(struct io *io)
{
}

void ring_destroy(struct ring *ring)
{
	struct io io = {.op = (enum io_op)RING_STOP, .done = stopped};

	ring_submit(ring, &io);
	pthread_join(ring->thread, NULL);
	assert(!ring->ready.first && !ring->in_kernel);
	pthread_mutex_destroy(&ring->lock);
	pthread_mutex_destroy(&ring->counters_lock);
	close(ring->wake_fd);
}
