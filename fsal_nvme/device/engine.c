/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The public calls: each checks what a caller may get wrong and goes to the engine's own. */
#include "device/engine.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

uint64_t io_length(const struct io *io)
{
	return io->op == IO_FLUSH ? 0 : iov_length(io->iov, io->iov_count);
}

bool io_in_range(const struct io *io)
{
	uint64_t size = io->device->info.size, length = io_length(io);

	return io->op == IO_FLUSH || (io->offset <= size && length <= size - io->offset);
}

/* By one thread at a time. */
static void grow(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
		memory_order_relaxed);
}

static void meter_add(struct device_meter *meter, const struct io *io, uint64_t clock)
{
	if (io->result) {
		grow(&meter->errors, 1);
		return;
	}
	grow(&meter->of[io->op].done, 1);
	grow(&meter->of[io->op].bytes, io_length(io));
	grow(&meter->of[io->op].ns, clock - io->submitted);
}

void counters_add(struct engine_counters *counters, const struct io *io, uint64_t clock)
{
	uint64_t length = io_length(io);

	meter_add(&io->device->meter, io, clock);
	if (io->result) {
		counters->errors++;
		return;
	}
	switch (io->op) {
	case IO_READ:
		counters->reads++;
		counters->read_bytes += length;
		break;
	case IO_WRITE:
		counters->writes++;
		counters->write_bytes += length;
		break;
	case IO_FLUSH:
		counters->flushes++;
		break;
	}
}

void io_prepare(struct io *io, enum io_op op, struct device *device, uint64_t offset, void *buffer,
	size_t length)
{
	memset(io, 0, sizeof(*io));
	io->op = op;
	io->device = device;
	io->offset = offset;
	io->one = (struct iovec){.iov_base = buffer, .iov_len = length};
	io->iov = &io->one;
	io->iov_count = op == IO_FLUSH ? 0 : 1;
}

static void check(const struct engine *engine, const struct io *io)
{
	assert(io->device && io->device->engine == engine && io->done);
	if (io->op == IO_FLUSH)
		return;
	assert(io->op == IO_READ || !(io->device->flags & DEVICE_READ_ONLY));
	assert(io->iov_count > 0 && io->iov_count <= IOV_MAX && io->offset % BLOCK_SIZE == 0);
	for (unsigned i = 0; i < io->iov_count; i++) {
		assert(io->iov[i].iov_len > 0 && io->iov[i].iov_len % BLOCK_SIZE == 0);
		assert((uintptr_t)io->iov[i].iov_base % BLOCK_SIZE == 0);
	}
}

void io_submit(struct engine *engine, struct io **ios, unsigned count)
{
	uint64_t clock = count ? engine_clock(engine) : 0;

	for (unsigned i = 0; i < count; i++) {
		check(engine, ios[i]);
		ios[i]->next = NULL;
		ios[i]->submitted = clock;
		atomic_fetch_add_explicit(
			&ios[i]->device->meter.submitted, 1, memory_order_relaxed);
	}
	if (count)
		engine->ops->submit(engine, ios, count);
}

static void run_done(struct io *io)
{
	event_signal(io->data, io->result);
}

int io_run(struct engine *engine, struct io *io)
{
	struct event event;
	void *data = io->data;
	void (*done)(struct io *) = io->done;
	int result;

	event_init(&event, engine);
	io->data = &event;
	io->done = run_done;
	io_submit(engine, &io, 1);
	result = event_wait(&event);
	/* The request would go on using this stack. */
	assert(atomic_load(&event.state) == 1 && "io_run() on a paused host");
	io->data = data;
	io->done = done;
	return result;
}

int device_open(struct engine *engine, const char *path, unsigned flags, struct device **device,
	struct error *error)
{
	int rc;

	*device = NULL;
	if (strlen(path) >= sizeof((*device)->info.path))
		return error_set(error, -ENAMETOOLONG, path,
			"the path of a device may have %zu bytes at most",
			sizeof((*device)->info.path) - 1);
	if (engine_owes(engine, path))
		return error_set(
			error, -ETIMEDOUT, path, "it hangs: it has not answered a read yet");
	rc = engine->ops->open(engine, path, flags, device, error);
	if (!rc)
		(*device)->meter.opened = engine_clock(engine);
	return rc;
}

void device_close(struct device *device)
{
	if (device && !device_leave(device))
		device->engine->ops->close(device);
}

const struct device_info *device_info(const struct device *device)
{
	return &device->info;
}

bool device_present(struct device *device)
{
	return device->engine->ops->present(device);
}

/* `submitted` last: it is never behind the others then. */
void device_counters(const struct device *device, struct device_counters *counters)
{
	const struct device_meter *meter = &device->meter;
	uint64_t ended;

	*counters = (struct device_counters){
		.elapsed = engine_clock(device->engine) - meter->opened,
		.errors = atomic_load(&meter->errors),
	};
	ended = counters->errors;
	for (unsigned op = 0; op < IO_OPS; op++) {
		counters->of[op].done = atomic_load(&meter->of[op].done);
		counters->of[op].bytes = atomic_load(&meter->of[op].bytes);
		counters->of[op].ns = atomic_load(&meter->of[op].ns);
		ended += counters->of[op].done;
	}
	counters->under_way = atomic_load(&meter->submitted) - ended;
}

void engine_destroy(struct engine *engine)
{
	/* One of which a device hangs goes with the process. */
	if (engine && !engine_owes(engine, NULL))
		engine->ops->destroy(engine);
}

void engine_counters(struct engine *engine, struct engine_counters *counters)
{
	engine->ops->counters(engine, counters);
}

void *buffer_alloc(struct engine *engine, size_t length)
{
	if (length == 0 || length > SIZE_MAX / 2)
		return NULL;
	return engine->ops->alloc(engine, whole_blocks(length));
}

void *engine_memory(struct engine *engine, size_t *length)
{
	*length = 0;
	return engine->ops->memory ? engine->ops->memory(engine, length) : NULL;
}

void buffer_free(struct engine *engine, void *buffer, size_t length)
{
	if (buffer)
		engine->ops->free(engine, buffer, whole_blocks(length));
}

uint64_t engine_clock(struct engine *engine)
{
	return engine->ops->clock(engine);
}

uint64_t engine_time(struct engine *engine)
{
	return engine->ops->time(engine);
}

void engine_random(struct engine *engine, void *buffer, size_t length)
{
	engine->ops->random(engine, buffer, length);
}

void engine_sleep(struct engine *engine, uint64_t nanoseconds)
{
	engine->ops->sleep(engine, nanoseconds);
}

void engine_poll(struct engine *engine)
{
	if (engine->ops->poll)
		engine->ops->poll(engine);
}

bool engine_is_simulated(struct engine *engine)
{
	return engine->ops->step != NULL;
}
