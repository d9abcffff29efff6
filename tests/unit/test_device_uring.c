/* SPDX-License-Identifier: LGPL-3.0-or-later. io_uring on files and loop devices. links: device */
#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/log.h"

static char directory[64];

static const char *in(const char *where, const char *name)
{
	static char path[8][128];
	static unsigned turn;

	turn = (turn + 1) % 8;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", where, name);
	return path[turn];
}

static int create_file(const char *path, off_t size)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
	close(fd);
	return 0;
}

static struct engine *engine_of(unsigned depth, unsigned rings, size_t memory)
{
	struct engine_options options = {depth, rings, memory};
	struct engine *engine = NULL;
	struct error error = {0};
	int result = uring_engine_create(&options, &engine, &error);

	if (result)
		fail_msg("%s: %s", error.object, error.message);
	return engine;
}

static struct device *open_file(struct engine *engine, const char *path, off_t size)
{
	struct device *device = NULL;
	struct error error = {0};

	create_file(path, size);
	if (device_open(engine, path, 0, &device, &error))
		fail_msg("%s: %s", error.object, error.message);
	return device;
}

static int run(struct engine *engine, enum io_op op, unsigned flags, struct device *device,
	uint64_t offset, void *buffer, size_t length)
{
	struct io io;

	io_prepare(&io, op, device, offset, buffer, length);
	io.flags = flags;
	return io_run(engine, &io);
}

static void expect_write_and_read(struct engine *engine, struct device *device, size_t length)
{
	uint8_t *out = buffer_alloc(engine, length), *back = buffer_alloc(engine, length);

	engine_random(engine, out, length);
	memset(back, 0, length);
	assert_int_equal(run(engine, IO_WRITE, 0, device, 8192, out, length), 0);
	assert_int_equal(run(engine, IO_FLUSH, 0, device, 0, NULL, 0), 0);
	assert_int_equal(run(engine, IO_READ, 0, device, 8192, back, length), 0);
	assert_memory_equal(out, back, length);
	out[0] ^= 1;
	assert_int_equal(run(engine, IO_WRITE, IO_FUA, device, 8192, out, BLOCK_SIZE), 0);
	assert_int_equal(run(engine, IO_READ, 0, device, 8192, back, BLOCK_SIZE), 0);
	assert_memory_equal(out, back, BLOCK_SIZE);
	buffer_free(engine, out, length);
	buffer_free(engine, back, length);
}

/* --- requests ----------------------------------------------------------------------------- */

static void files_are_written_and_read(void **state)
{
	struct engine *engine = engine_of(0, 0, 0);
	struct device *device = open_file(engine, in(directory, "a"), 4 << 20);

	assert_true(device_info(device)->plain_file);
	assert_true(device_info(device)->volatile_cache);
	assert_int_equal(device_info(device)->size, 4 << 20);
	assert_false(engine_is_simulated(engine));
	expect_write_and_read(engine, device, BLOCK_SIZE);
	expect_write_and_read(engine, device, 1 << 20);
	device_close(device);
	engine_destroy(engine);
}

static void memory_from_the_heap_serves_too(void **state)
{
	struct engine *engine = engine_of(8, 1, BLOCK_SIZE);
	struct device *device = open_file(engine, in(directory, "a"), 4 << 20);

	expect_write_and_read(engine, device, 128 << 10);
	device_close(device);
	engine_destroy(engine);
}

static void vectors_are_gathered_and_scattered(void **state)
{
	struct engine *engine = engine_of(0, 1, 0);
	struct device *device = open_file(engine, in(directory, "a"), 1 << 20);
	uint8_t *buffer = buffer_alloc(engine, 3 * BLOCK_SIZE);
	struct iovec iov[2] = {{buffer, BLOCK_SIZE}, {buffer + BLOCK_SIZE, 2 * BLOCK_SIZE}};
	struct io io;

	memset(buffer, 'a', BLOCK_SIZE);
	memset(buffer + BLOCK_SIZE, 'b', 2 * BLOCK_SIZE);
	io_prepare(&io, IO_WRITE, device, 0, NULL, 0);
	io.iov = iov;
	io.iov_count = 2;
	assert_int_equal(io_run(engine, &io), 0);
	iov[0] = (struct iovec){buffer + BLOCK_SIZE, 2 * BLOCK_SIZE};
	iov[1] = (struct iovec){buffer, BLOCK_SIZE};
	io.op = IO_READ;
	assert_int_equal(io_run(engine, &io), 0);
	assert_int_equal(buffer[BLOCK_SIZE], 'a');
	assert_int_equal(buffer[2 * BLOCK_SIZE], 'b');
	assert_int_equal(buffer[0], 'b');
	buffer_free(engine, buffer, 3 * BLOCK_SIZE);
	device_close(device);
	engine_destroy(engine);
}

static void beyond_the_end_is_eio_and_does_not_grow(void **state)
{
	struct engine *engine = engine_of(0, 1, 0);
	const char *path = in(directory, "a");
	struct device *device = open_file(engine, path, 3 * BLOCK_SIZE + 100);
	void *buffer = buffer_alloc(engine, 2 * BLOCK_SIZE);
	struct engine_counters c;
	struct stat st;

	assert_int_equal(device_info(device)->size, 3 * BLOCK_SIZE);
	assert_int_equal(
		run(engine, IO_WRITE, 0, device, 2 * BLOCK_SIZE, buffer, 2 * BLOCK_SIZE), -EIO);
	assert_int_equal(run(engine, IO_READ, 0, device, 8 * BLOCK_SIZE, buffer, BLOCK_SIZE), -EIO);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 3 * BLOCK_SIZE + 100);
	engine_counters(engine, &c);
	assert_int_equal(c.errors, 2);
	buffer_free(engine, buffer, 2 * BLOCK_SIZE);
	device_close(device);
	engine_destroy(engine);
}

static void each_device_is_counted_by_itself(void **state)
{
	struct engine *engine = engine_of(0, 2, 0);
	struct device *a = open_file(engine, in(directory, "a"), 4 << 20);
	struct device *b = open_file(engine, in(directory, "b"), 4 << 20);
	void *buffer = buffer_alloc(engine, BLOCK_SIZE);
	struct device_counters c;

	expect_write_and_read(engine, a, 1 << 20);
	assert_int_equal(run(engine, IO_READ, 0, a, 8 << 20, buffer, BLOCK_SIZE), -EIO);
	assert_int_equal(run(engine, IO_READ, 0, b, 0, buffer, BLOCK_SIZE), 0);
	device_counters(a, &c);
	assert_int_equal(c.of[IO_READ].done, 2);
	assert_int_equal(c.of[IO_READ].bytes, (1 << 20) + BLOCK_SIZE);
	assert_int_equal(c.of[IO_WRITE].done, 2);
	assert_int_equal(c.of[IO_WRITE].bytes, (1 << 20) + BLOCK_SIZE);
	assert_int_equal(c.of[IO_FLUSH].done, 1);
	assert_int_equal(c.of[IO_FLUSH].bytes, 0);
	assert_int_equal(c.errors, 1);
	assert_int_equal(c.under_way, 0);
	for (unsigned op = 0; op < IO_OPS; op++)
		assert_in_range(c.of[op].ns, 1, 2 * c.elapsed);
	device_counters(b, &c);
	assert_int_equal(c.of[IO_READ].done, 1);
	assert_int_equal(c.of[IO_WRITE].done, 0);
	assert_int_equal(c.errors, 0);
	buffer_free(engine, buffer, BLOCK_SIZE);
	device_close(a);
	device_close(b);
	engine_destroy(engine);
}

static void a_file_cut_short_is_eio_and_not_present(void **state)
{
	struct engine *engine = engine_of(0, 1, 0);
	const char *path = in(directory, "short");
	struct device *device = open_file(engine, path, 8 * BLOCK_SIZE);
	uint8_t *buffer = buffer_alloc(engine, 4 * BLOCK_SIZE);
	struct iovec iov[2] = {{buffer, BLOCK_SIZE}, {buffer + BLOCK_SIZE, 3 * BLOCK_SIZE}};
	struct io io;

	assert_true(device_present(device));
	assert_int_equal(truncate(path, 2 * BLOCK_SIZE + 700), 0);
	assert_false(device_present(device));
	assert_int_equal(run(engine, IO_READ, 0, device, 0, buffer, 2 * BLOCK_SIZE), 0);
	assert_int_equal(run(engine, IO_READ, 0, device, 0, buffer, 4 * BLOCK_SIZE), -EIO);
	io_prepare(&io, IO_READ, device, 0, NULL, 0);
	io.iov = iov;
	io.iov_count = 2;
	assert_int_equal(io_run(engine, &io), -EIO);
	assert_int_equal(truncate(path, 2 * BLOCK_SIZE), 0);
	assert_int_equal(io_run(engine, &io), -EIO);
	buffer_free(engine, buffer, 4 * BLOCK_SIZE);
	device_close(device);
	engine_destroy(engine);
}

/* --- many at once --------------------------------------------------------------------------- */

#define THREADS 6
#define PER_THREAD 400
#define DEVICES 3
#define FILE_BLOCKS (THREADS * PER_THREAD)

struct batch {
	struct event event;
	atomic_uint left;
	atomic_int failed;
};

static void batch_done(struct io *io)
{
	struct batch *batch = io->data;

	if (io->result)
		atomic_store(&batch->failed, io->result);
	if (atomic_fetch_sub(&batch->left, 1) == 1)
		event_signal(&batch->event, atomic_load(&batch->failed));
}

struct worker {
	struct engine *engine;
	struct device **devices;
	unsigned number;
	unsigned wrong;
};

static uint64_t stamp(unsigned number, unsigned i)
{
	return UINT64_C(0x9e3779b97f4a7c15) * (number * PER_THREAD + i + 1);
}

static int run_batch(struct worker *w, struct io *ios, enum io_op op, uint8_t *buffers)
{
	struct batch batch = {.left = PER_THREAD};
	struct io *list[PER_THREAD];

	event_init(&batch.event, w->engine);
	for (unsigned i = 0; i < PER_THREAD; i++) {
		io_prepare(&ios[i], op, w->devices[i % DEVICES],
			(uint64_t)(w->number * PER_THREAD + i) * BLOCK_SIZE,
			buffers + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
		ios[i].done = batch_done;
		ios[i].data = &batch;
		list[i] = &ios[i];
	}
	for (unsigned i = 0; i < PER_THREAD; i += 100)
		io_submit(w->engine, list + i, 100);
	return event_wait(&batch.event);
}

static void *work(void *argument)
{
	struct worker *w = argument;
	size_t length = PER_THREAD * BLOCK_SIZE;
	uint8_t *buffers = buffer_alloc(w->engine, length);
	struct io *ios = calloc(PER_THREAD, sizeof(*ios));

	memset(buffers, 0, length);
	for (unsigned i = 0; i < PER_THREAD; i++)
		*(uint64_t *)(buffers + (size_t)i * BLOCK_SIZE) = stamp(w->number, i);
	w->wrong += run_batch(w, ios, IO_WRITE, buffers) != 0;
	memset(buffers, 0, length);
	w->wrong += run_batch(w, ios, IO_READ, buffers) != 0;
	for (unsigned i = 0; i < PER_THREAD; i++)
		w->wrong += *(uint64_t *)(buffers + (size_t)i * BLOCK_SIZE) != stamp(w->number, i);
	buffer_free(w->engine, buffers, length);
	free(ios);
	return NULL;
}

static void run_threads(unsigned depth, unsigned rings)
{
	static const char *const names[DEVICES] = {"t0", "t1", "t2"};
	struct engine *engine = engine_of(depth, rings, 8 << 20);
	struct device *devices[DEVICES];
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	struct engine_counters c;

	for (unsigned i = 0; i < DEVICES; i++)
		devices[i] = open_file(engine, in(directory, names[i]), FILE_BLOCKS * BLOCK_SIZE);
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){engine, devices, i, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].wrong, 0);
	}
	engine_counters(engine, &c);
	assert_int_equal(c.writes, THREADS * PER_THREAD);
	assert_int_equal(c.read_bytes, THREADS * PER_THREAD * BLOCK_SIZE);
	for (unsigned i = 0; i < DEVICES; i++)
		device_close(devices[i]);
	engine_destroy(engine);
}

static void many_threads_share_an_engine(void **state)
{
	run_threads(0, 0);
}

static void more_requests_than_the_depth_wait(void **state)
{
	run_threads(2, 2);
	run_threads(1, 1);
}

/* Each done() submits the next request, until a count is used up. */
struct chain {
	struct event event;
	struct engine *engine;
	struct io io;
	unsigned left;
};

static void chain_done(struct io *io)
{
	struct chain *chain = io->data;
	struct io *again = io;

	if (io->result == 0 && --chain->left > 0)
		io_submit(chain->engine, &again, 1);
	else
		event_signal(&chain->event, io->result);
}

static void done_may_submit(void **state)
{
	struct chain chain = {.engine = engine_of(4, 1, 0), .left = 1000};
	struct device *device = open_file(chain.engine, in(directory, "a"), 1 << 20);
	void *buffer = buffer_alloc(chain.engine, BLOCK_SIZE);
	struct io *io = &chain.io;

	event_init(&chain.event, chain.engine);
	io_prepare(io, IO_READ, device, 0, buffer, BLOCK_SIZE);
	io->done = chain_done;
	io->data = &chain;
	io_submit(chain.engine, &io, 1);
	assert_int_equal(event_wait(&chain.event), 0);
	assert_int_equal(chain.left, 0);
	buffer_free(chain.engine, buffer, BLOCK_SIZE);
	device_close(device);
	engine_destroy(chain.engine);
}

/* Flushes of a file run on kernel threads of the submitter, and it ends at once. */
struct leaver {
	struct engine *engine;
	struct device *device;
	struct batch batch;
	struct io ios[64];
};

static void *submit_and_leave(void *argument)
{
	struct leaver *l = argument;

	for (unsigned i = 0; i < 64; i++) {
		struct io *io = &l->ios[i];

		io_prepare(io, IO_FLUSH, l->device, 0, NULL, 0);
		io->done = batch_done;
		io->data = &l->batch;
		io_submit(l->engine, &io, 1);
	}
	return NULL;
}

static void a_submitter_may_end_before_its_requests(void **state)
{
	struct leaver *l = calloc(1, sizeof(*l));
	pthread_t thread;

	l->engine = engine_of(0, 1, 0);
	l->device = open_file(l->engine, in(directory, "a"), 1 << 20);
	for (unsigned i = 0; i < 20; i++) {
		event_init(&l->batch.event, l->engine);
		atomic_store(&l->batch.left, 64);
		assert_int_equal(pthread_create(&thread, NULL, submit_and_leave, l), 0);
		pthread_join(thread, NULL);
		assert_int_equal(event_wait(&l->batch.event), 0);
	}
	device_close(l->device);
	engine_destroy(l->engine);
	free(l);
}

/* --- opening ------------------------------------------------------------------------------ */

static void expect_refusal(struct engine *engine, const char *path, int code, const char *word)
{
	struct device *device = NULL;
	struct error error = {0};

	assert_int_equal(device_open(engine, path, 0, &device, &error), code);
	assert_null(device);
	assert_string_equal(error.object, path);
	if (!strstr(error.message, word))
		fail_msg("'%s' does not say '%s'", error.message, word);
}

static void what_is_no_device_is_refused(void **state)
{
	struct engine *engine = engine_of(0, 1, 0);
	char longest[400];

	expect_refusal(engine, in(directory, "none"), -ENOENT, "no such");
	expect_refusal(engine, directory, -EISDIR, "directory");
	expect_refusal(engine, "/dev/null", -ENOTBLK, "neither");
	create_file(in(directory, "tiny"), 4095);
	expect_refusal(engine, in(directory, "tiny"), -EINVAL, "4095 bytes");
	memset(longest, 'x', sizeof(longest));
	longest[sizeof(longest) - 1] = 0;
	assert_int_equal(
		device_open(engine, longest, 0, &(struct device *){0}, NULL), -ENAMETOOLONG);
	assert_int_equal(access(in(directory, "none"), F_OK), -1);
	engine_destroy(engine);
}

static void a_deleted_or_replaced_file_is_not_present(void **state)
{
	struct engine *engine = engine_of(0, 1, 0);
	const char *path = in(directory, "gone");
	struct device *device = open_file(engine, path, 1 << 20);

	assert_true(device_present(device));
	assert_int_equal(rename(path, in(directory, "kept")), 0);
	assert_false(device_present(device));
	create_file(path, 1 << 20);
	assert_false(device_present(device));
	assert_int_equal(rename(in(directory, "kept"), path), 0);
	assert_true(device_present(device));
	device_close(device);
	engine_destroy(engine);
}

static void a_file_system_without_direct_io_serves(void **state)
{
	char where[] = "/dev/shm/millrace-test-XXXXXX";
	struct engine *engine;
	struct device *device;

	if (!mkdtemp(where))
		skip();
	engine = engine_of(0, 1, 0);
	device = open_file(engine, in(where, "a"), 4 << 20);
	expect_write_and_read(engine, device, 256 << 10);
	assert_true(device_info(device)->plain_file);
	device_close(device);
	engine_destroy(engine);
	unlink(in(where, "a"));
	rmdir(where);
}

static void more_devices_than_slots_serve(void **state)
{
	struct engine *engine = engine_of(0, 1, 0);
	struct device *devices[300];
	const char *path = in(directory, "a");

	create_file(path, 4 << 20);
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(device_open(engine, path, 0, &devices[i], NULL), 0);
	expect_write_and_read(engine, devices[299], BLOCK_SIZE);
	expect_write_and_read(engine, devices[0], BLOCK_SIZE);
	for (unsigned i = 0; i < 300; i++)
		device_close(devices[i]);
	engine_destroy(engine);
}

/* --- block devices ------------------------------------------------------------------------ */

/* The name of a new loop device over a file; false: there are none here. */
static bool attach_loop(const char *path, char *name, int length)
{
	char command[256];
	FILE *output;
	bool found;

	snprintf(command, sizeof(command), "losetup --find --show %s 2>/dev/null", path);
	output = popen(command, "r");
	found = output && fgets(name, length, output) != NULL;
	if (output)
		pclose(output);
	if (found)
		name[strcspn(name, "\n")] = 0;
	return found;
}

static bool set_write_cache(const char *name, const char *mode)
{
	char path[128];
	FILE *file;
	bool done;

	snprintf(path, sizeof(path), "/sys/block/%s/queue/write_cache", name + strlen("/dev/"));
	file = fopen(path, "w");
	if (!file)
		return false;
	done = fputs(mode, file) >= 0;
	return fclose(file) == 0 && done;
}

static void use_with_cache(struct engine *engine, const char *name)
{
	struct device *device, *other;
	struct error error = {0};

	assert_int_equal(device_open(engine, name, DEVICE_EXCLUSIVE, &device, &error), 0);
	assert_false(device_info(device)->plain_file);
	assert_int_equal(device_info(device)->size, 8 << 20);
	assert_true(device_info(device)->volatile_cache);
	assert_true(device_present(device));
	assert_int_equal(device_open(engine, name, DEVICE_EXCLUSIVE, &other, &error), -EBUSY);
	expect_write_and_read(engine, device, 1 << 20);
	device_close(device);
}

static void use_without_cache(struct engine *engine, const char *name)
{
	struct device *device;

	assert_int_equal(device_open(engine, name, 0, &device, NULL), 0);
	assert_false(device_info(device)->volatile_cache);
	expect_write_and_read(engine, device, 64 << 10);
	device_close(device);
}

static void block_devices_serve(void **state)
{
	const char *path = in(directory, "disk");
	char name[64], command[128];
	struct engine *engine;

	create_file(path, 8 << 20);
	if (!attach_loop(path, name, sizeof(name)))
		skip();
	engine = engine_of(0, 1, 0);
	/* The mode outlives the loop device that it was set on. */
	if (set_write_cache(name, "write back"))
		use_with_cache(engine, name);
	if (set_write_cache(name, "write through"))
		use_without_cache(engine, name);
	set_write_cache(name, "write back");
	engine_destroy(engine);
	snprintf(command, sizeof(command), "losetup --detach %s", name);
	assert_int_equal(system(command), 0);
}

/* --- what the machine may refuse ------------------------------------------------------------ */

/* Runs it in a process of its own, which it may spoil; 0 when it returned true. */
static int in_child(bool (*body)(void))
{
	pid_t child = fork();
	int status = -1;

	if (child == 0) {
		/* A failed assertion must not go on with the parent's tests. */
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		_exit(body() ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static bool engine_without_io_uring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
	struct engine *engine = NULL;
	struct error error = {0};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
		return false;
	return uring_engine_create(NULL, &engine, &error) == -EPERM && !engine &&
	       strstr(error.message, "io_uring_disabled");
}

static void a_refused_ring_is_explained(void **state)
{
	assert_int_equal(in_child(engine_without_io_uring), 0);
}

static unsigned notices;

static void count_notices(enum log_level level, const char *line)
{
	notices += level == LOG_NOTICE && strstr(line, "not registered") != NULL;
}

/* The rings themselves have room, the buffers have not. */
static bool engine_with_little_locked_memory(void)
{
	struct rlimit little = {4 << 20, 4 << 20};
	struct engine *engine;
	struct device *device;

	if (setrlimit(RLIMIT_MEMLOCK, &little) || (geteuid() == 0 && setuid(65534)))
		return false;
	log_set_sink(count_notices);
	engine = engine_of(0, 2, 0);
	device = open_file(engine, in(directory, "nobody"), 1 << 20);
	expect_write_and_read(engine, device, 64 << 10);
	device_close(device);
	engine_destroy(engine);
	return notices == 1;
}

static void without_locked_memory_buffers_go_unregistered(void **state)
{
	assert_int_equal(in_child(engine_with_little_locked_memory), 0);
}

/* --- memory ------------------------------------------------------------------------------- */

static void buffers_are_aligned_and_apart(void **state)
{
	struct engine *engine = engine_of(0, 1, (3 << 20) + 20480);
	void *buffers[200];
	size_t lengths[200];

	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 200; i++) {
			lengths[i] = (size_t)1 + (i * 7919 + round * 104729) % 200000;
			buffers[i] = buffer_alloc(engine, lengths[i]);
			assert_non_null(buffers[i]);
			assert_int_equal((uintptr_t)buffers[i] % BLOCK_SIZE, 0);
			memset(buffers[i], (int)i, lengths[i]);
		}
		for (unsigned i = 0; i < 200; i++) {
			const uint8_t *b = buffers[i * 77 % 200];

			assert_int_equal(b[0], (uint8_t)(i * 77 % 200));
			assert_int_equal(b[lengths[i * 77 % 200] - 1], (uint8_t)(i * 77 % 200));
			buffer_free(engine, buffers[i * 77 % 200], lengths[i * 77 % 200]);
		}
	}
	assert_null(buffer_alloc(engine, 0));
	engine_destroy(engine);
}

/* All of the region can be had again after it was used in small pieces. */
static void freed_buffers_join(void **state)
{
	struct engine *engine = engine_of(0, 1, 4 << 20);
	uint8_t *whole = buffer_alloc(engine, 4 << 20), *again, *pieces[1024];

	buffer_free(engine, whole, 4 << 20);
	for (unsigned i = 0; i < 1024; i++) {
		pieces[i] = buffer_alloc(engine, BLOCK_SIZE);
		assert_true(pieces[i] >= whole && pieces[i] < whole + (4 << 20));
	}
	for (unsigned i = 0; i < 1024; i++)
		buffer_free(engine, pieces[i * 5 % 1024], BLOCK_SIZE);
	again = buffer_alloc(engine, 4 << 20);
	assert_ptr_equal(again, whole);
	buffer_free(engine, again, 4 << 20);
	engine_destroy(engine);
}

/* --- clock, and cost: printed, not asserted ------------------------------------------------- */

static void clocks_advance(void **state)
{
	struct engine *engine = engine_of(0, 1, 0);
	uint64_t clock = engine_clock(engine), now = engine_time(engine);

	engine_sleep(engine, 2000000);
	engine_poll(engine);
	assert_true(engine_clock(engine) - clock >= 2000000);
	assert_true(now > UINT64_C(1600000000) * UINT64_C(1000000000));
	engine_destroy(engine);
}

static void submitting_costs(void **state)
{
	enum { COUNT = 256, ROUNDS = 200 };
	struct engine *engine = engine_of(COUNT, 1, 0);
	struct device *device = open_file(engine, in(directory, "a"), COUNT * BLOCK_SIZE);
	uint8_t *buffers = buffer_alloc(engine, COUNT * BLOCK_SIZE);
	static struct io ios[COUNT];
	struct io *list[COUNT];
	uint64_t spent = 0, began = engine_clock(engine);

	for (unsigned round = 0; round < ROUNDS; round++) {
		struct batch batch = {.left = COUNT};
		uint64_t start;

		event_init(&batch.event, engine);
		for (unsigned i = 0; i < COUNT; i++) {
			/* Beyond the end: all of the way but the device. */
			io_prepare(&ios[i], IO_READ, device, (uint64_t)COUNT * BLOCK_SIZE,
				buffers + i * BLOCK_SIZE, BLOCK_SIZE);
			ios[i].done = batch_done;
			ios[i].data = &batch;
			list[i] = &ios[i];
		}
		start = engine_clock(engine);
		for (unsigned i = 0; i < COUNT; i += 32)
			io_submit(engine, list + i, 32);
		spent += engine_clock(engine) - start;
		assert_int_equal(event_wait(&batch.event), -EIO);
	}
	print_message("submit in batches of 32: %llu ns a request; to its done(): %llu ns\n",
		(unsigned long long)(spent / (COUNT * ROUNDS)),
		(unsigned long long)((engine_clock(engine) - began) / (COUNT * ROUNDS)));
	buffer_free(engine, buffers, COUNT * BLOCK_SIZE);
	device_close(device);
	engine_destroy(engine);
}

static int make_directory(void **state)
{
	/* Where direct I/O works: not /tmp, which may be a tmpfs. */
	strcpy(directory, "/var/tmp/millrace-test-XXXXXX");
	return mkdtemp(directory) && chmod(directory, 0777) == 0 ? 0 : -1;
}

static int remove_directory(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", directory);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_are_written_and_read),
		cmocka_unit_test(memory_from_the_heap_serves_too),
		cmocka_unit_test(vectors_are_gathered_and_scattered),
		cmocka_unit_test(beyond_the_end_is_eio_and_does_not_grow),
		cmocka_unit_test(each_device_is_counted_by_itself),
		cmocka_unit_test(a_file_cut_short_is_eio_and_not_present),
		cmocka_unit_test(many_threads_share_an_engine),
		cmocka_unit_test(more_requests_than_the_depth_wait),
		cmocka_unit_test(done_may_submit),
		cmocka_unit_test(a_submitter_may_end_before_its_requests),
		cmocka_unit_test(what_is_no_device_is_refused),
		cmocka_unit_test(a_deleted_or_replaced_file_is_not_present),
		cmocka_unit_test(a_file_system_without_direct_io_serves),
		cmocka_unit_test(more_devices_than_slots_serve),
		cmocka_unit_test(block_devices_serve),
		cmocka_unit_test(a_refused_ring_is_explained),
		cmocka_unit_test(without_locked_memory_buffers_go_unregistered),
		cmocka_unit_test(buffers_are_aligned_and_apart),
		cmocka_unit_test(freed_buffers_join),
		cmocka_unit_test(clocks_advance),
		cmocka_unit_test(submitting_costs),
	};

	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
