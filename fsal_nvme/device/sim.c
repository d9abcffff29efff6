/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The simulated engine: hosts, the queue of outstanding requests, and what each does when its turn
 * comes. sim.h says how the world behaves, sim_world.h how it is kept.
 */
#include "device/sim_world.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define STARTS_AT (1767225600u * UINT64_C(1000000000)) /* 2026-01-01 */
#define STEP 5000u /* nanoseconds that a completion takes */

/* --- chance ------------------------------------------------------------------------------- */

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators). */
static uint64_t draw64(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint64_t sim_draw(struct sim_world *world, uint64_t below)
{
	return draw64(&world->now.chance) % below;
}

void sim_seed(struct sim_world *world, uint64_t seed)
{
	world->now.chance = draw64(&seed);
	world->now.random = draw64(&seed);
}

/* --- finding things ----------------------------------------------------------------------- */

struct sim_host *sim_host(struct engine *engine)
{
	assert(engine_is_simulated(engine));
	return (struct sim_host *)engine;
}

struct sim_host *sim_io_host(const struct io *io)
{
	return (struct sim_host *)io->device->engine;
}

struct sim_disk *sim_io_disk(const struct io *io)
{
	return ((struct sim_handle *)io->device)->disk;
}

static bool handle_stale(const struct device *device)
{
	return ((const struct sim_handle *)device)->generation !=
	       ((const struct sim_host *)device->engine)->generation;
}

bool sim_io_stale(const struct io *io)
{
	return handle_stale(io->device);
}

struct sim_disk *sim_find(struct sim_world *world, const char *name)
{
	struct sim_disk *disk = world->disks;

	while (disk && strcmp(disk->name, name) != 0)
		disk = disk->next;
	return disk;
}

struct sim_disk *sim_disk(struct sim_world *world, const char *name)
{
	struct sim_disk *disk = sim_find(world, name);

	assert(disk && "no such simulated device");
	return disk;
}

/* --- bytes -------------------------------------------------------------------------------- */

void sim_store(struct sim_disk *disk, uint64_t offset, const void *bytes, uint64_t length)
{
	assert(offset <= disk->size && length <= disk->size - offset);
	medium_store(&disk->medium, offset, bytes, length);
}

/* Where two ranges meet; false when they do not. */
static bool overlap(
	uint64_t a, uint64_t a_length, uint64_t b, uint64_t b_length, uint64_t *from, uint64_t *to)
{
	*from = a > b ? a : b;
	*to = a + a_length < b + b_length ? a + a_length : b + b_length;
	return *from < *to;
}

static void read_range(const struct sim_disk *disk, uint64_t offset, uint8_t *into, uint64_t length)
{
	uint64_t from, to;

	assert(offset <= disk->size && length <= disk->size - offset);
	memcpy(into, disk->medium.bytes + offset, length);
	for (unsigned i = 0; i < disk->cache.count; i++) {
		const struct sim_write *w = disk->cache.at[i];

		if (overlap(offset, length, w->offset, w->length, &from, &to))
			memcpy(into + (from - offset), w->bytes + (from - w->offset), to - from);
	}
}

static int do_read(struct io *io)
{
	uint64_t offset = io->offset;

	for (unsigned i = 0; i < io->iov_count; i++) {
		read_range(sim_io_disk(io), offset, io->iov[i].iov_base, io->iov[i].iov_len);
		offset += io->iov[i].iov_len;
	}
	return 0;
}

/* A piece of a cached write, from `from` to `to` on the device. */
static int push_piece(
	struct write_list *list, const struct sim_write *whole, uint64_t from, uint64_t to)
{
	struct sim_write *piece;

	if (from >= to)
		return 0;
	piece = write_new(to - from);
	if (piece) {
		piece->host = whole->host;
		piece->disk = whole->disk;
		piece->done_at = whole->done_at;
		piece->offset = from;
		memcpy(piece->bytes, whole->bytes + (from - whole->offset), to - from);
	}
	return list_push(list, piece);
}

static bool cache_touches(const struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	uint64_t from, to;

	for (unsigned i = 0; i < disk->cache.count; i++) {
		const struct sim_write *w = disk->cache.at[i];

		if (overlap(offset, length, w->offset, w->length, &from, &to))
			return true;
	}
	return false;
}

static int push_trimmed(
	struct write_list *list, struct sim_write *w, uint64_t offset, uint64_t length)
{
	uint64_t from, to;
	int result;

	if (!overlap(offset, length, w->offset, w->length, &from, &to)) {
		w->references++;
		return list_push(list, w);
	}
	result = push_piece(list, w, w->offset, from);
	return result ? result : push_piece(list, w, to, w->offset + w->length);
}

int sim_trim_cache(struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	struct write_list kept = {0};
	int result = 0;

	if (!cache_touches(disk, offset, length))
		return 0;
	for (unsigned i = 0; i < disk->cache.count && !result; i++)
		result = push_trimmed(&kept, disk->cache.at[i], offset, length);
	if (result) {
		list_free(&kept);
		return result;
	}
	list_free(&disk->cache);
	disk->cache = kept;
	return 0;
}

static int store_durably(const struct io *io, uint64_t offset)
{
	struct sim_disk *disk = sim_io_disk(io);
	int result = sim_trim_cache(disk, offset, io_length(io));

	if (result)
		return result;
	for (unsigned i = 0; i < io->iov_count; i++) {
		sim_store(disk, offset, io->iov[i].iov_base, io->iov[i].iov_len);
		offset += io->iov[i].iov_len;
	}
	return 0;
}

static int store_in_cache(struct sim_world *world, const struct io *io, uint64_t offset)
{
	struct sim_write *write = write_from_io(io);

	if (write) {
		write->offset = offset;
		write->done_at = world->now.clock;
	}
	return list_push(&sim_io_disk(io)->cache, write);
}

static bool falls_due(uint64_t *count)
{
	return *count && --*count == 0;
}

static int do_write(struct sim_world *world, struct io *io)
{
	struct sim_orders *orders = &sim_io_host(io)->orders;
	bool lost = falls_due(&orders->lose);
	uint64_t offset = falls_due(&orders->misdirect) ? orders->misdirect_offset : io->offset;

	if (lost)
		return 0;
	assert(offset <= sim_io_disk(io)->size && io_length(io) <= sim_io_disk(io)->size - offset);
	if ((io->flags & IO_FUA) || !sim_io_disk(io)->state.volatile_cache)
		return store_durably(io, offset);
	return store_in_cache(world, io, offset);
}

/* The cached writes that a flush covers: they stand at the front. */
static unsigned covered(const struct io *io)
{
	const struct write_list *cache = &sim_io_disk(io)->cache;
	unsigned count = 0;

	while (count < cache->count && cache->at[count]->done_at <= io->engine_data)
		count++;
	return count;
}

static void flush_covered(struct sim_world *world, const struct io *io, bool fails)
{
	struct write_list *cache = &sim_io_disk(io)->cache;
	unsigned count = covered(io);

	for (unsigned i = 0; i < count; i++)
		sim_apply(world, cache->at[i], fails ? sim_draw_fate(world) : FATE_SURVIVES);
	list_drop(cache, count);
}

/* --- a request's turn --------------------------------------------------------------------- */

static int fail(struct sim_world *world, struct io *io, int error)
{
	struct sim_write *write;

	if (io->op == IO_FLUSH)
		flush_covered(world, io, true);
	if (io->op == IO_WRITE && io_in_range(io)) {
		write = write_from_io(io);
		if (write)
			sim_apply(world, write, sim_draw_fate(world));
		write_release(write);
	}
	return error;
}

/* Counts a write or flush; true when the host or the world went down instead of it. */
static bool cut_instead(struct sim_host *host, const struct io *io)
{
	if (io->op == IO_READ)
		return false;
	if (host->orders.watch)
		host->orders.watch(host->orders.watch_data);
	if (falls_due(&host->orders.cut_power))
		sim_cut_power(host->world);
	else if (falls_due(&host->orders.cut_host))
		sim_cut_host(&host->engine);
	else
		host->writes_and_flushes++;
	return sim_io_stale(io);
}

static int device_fault(const struct io *io)
{
	const struct sim_disk_state *state = &sim_io_disk(io)->state;

	if (state->dead)
		return -ENODEV;
	if (!io_in_range(io))
		return -EIO;
	if (io->op != IO_READ)
		return state->write_error;
	if (io->offset < state->bad_to && io->offset + io_length(io) > state->bad_from)
		return -EIO;
	return state->read_error;
}

static int perform(struct sim_world *world, struct io *io)
{
	struct sim_host *host = sim_io_host(io);
	const struct sim_disk_state *state = &sim_io_disk(io)->state;
	int error;

	if (falls_due(&host->orders.fail)) {
		host->orders.failed = true;
		return fail(world, io, host->orders.fail_error);
	}
	error = device_fault(io);
	if (error && state->dead && io->engine_data > state->killed_at)
		return error;
	if (error)
		return fail(world, io, error);
	if (io->op == IO_READ)
		return do_read(io);
	if (io->op == IO_WRITE)
		return do_write(world, io);
	flush_covered(world, io, false);
	return 0;
}

static void unlink_io(struct sim_world *world, struct io **at)
{
	struct io *io = *at;

	*at = io->next;
	if (world->last == &io->next)
		world->last = at;
	io->next = NULL;
	world->outstanding--;
}

static void complete(struct sim_world *world, struct io **at)
{
	struct io *io = *at;
	struct sim_host *host = sim_io_host(io);

	assert(!world->running && "a done() must not wait");
	world->now.clock += STEP;
	/* A cut finds the request itself among those in flight. */
	if (sim_io_stale(io) || cut_instead(host, io))
		io->result = -ESHUTDOWN;
	else
		io->result = perform(world, io);
	unlink_io(world, at);
	counters_add(&host->counters, io, world->now.clock);
	world->running = true;
	io->done(io);
	world->running = false;
}

static uint64_t due_at(const struct io *io)
{
	if (sim_io_host(io)->paused && !sim_io_stale(io))
		return UINT64_MAX;
	if (sim_io_stale(io))
		return 0;
	return io->engine_data + sim_io_disk(io)->state.delay;
}

/* The next `skip`-th request that is due; NULL: there are not so many. */
static struct io **nth_due(struct sim_world *world, uint64_t skip)
{
	struct io **at;

	for (at = &world->first; *at; at = &(*at)->next) {
		if (due_at(*at) <= world->now.clock && skip-- == 0)
			return at;
	}
	return NULL;
}

static uint64_t count_due(struct sim_world *world, uint64_t *earliest)
{
	uint64_t count = 0;

	*earliest = UINT64_MAX;
	for (struct io *io = world->first; io; io = io->next) {
		uint64_t due = due_at(io);

		count += due <= world->now.clock;
		*earliest = due < *earliest ? due : *earliest;
	}
	return count;
}

/* The first ticker whose turn comes before `limit`; NULL: none. */
static struct ticker *next_ticker(struct sim_world *world, uint64_t limit)
{
	struct ticker *first = NULL;

	for (struct ticker *t = world->tickers; t; t = t->next)
		if (t->due < (first ? first->due : limit))
			first = t;
	return first;
}

static void run_ticker(struct sim_world *world, struct ticker *ticker)
{
	assert(!world->running && "a done() must not wait");
	if (ticker->due > world->now.clock)
		world->now.clock = ticker->due;
	ticker->due = world->now.clock + ticker->every;
	world->running = true;
	ticker->run(ticker);
	world->running = false;
}

/* Completes one request that falls due at `limit` at the latest, or lets a ticker run before the
 * next one does; false: there is none. */
static bool step_until(struct sim_world *world, uint64_t limit)
{
	struct io **at = world->reorder ? NULL : nth_due(world, 0);
	struct ticker *ticker;
	uint64_t earliest, count;

	if (at) {
		complete(world, at);
		return true;
	}
	count = count_due(world, &earliest);
	if (count == 0) {
		ticker = next_ticker(world, earliest < limit ? earliest : limit);
		if (ticker && earliest != UINT64_MAX) {
			run_ticker(world, ticker);
			return true;
		}
		if (earliest == UINT64_MAX || earliest > limit)
			return false;
		world->now.clock = earliest;
		count = count_due(world, &earliest);
	}
	complete(world, nth_due(world, world->reorder ? sim_draw(world, count) : 0));
	return true;
}

unsigned sim_outstanding(struct sim_world *world)
{
	return world->outstanding;
}

void sim_drain(struct sim_world *world)
{
	while (step_until(world, UINT64_MAX))
		;
}

/* --- the engine --------------------------------------------------------------------------- */

static void host_submit(struct engine *engine, struct io **ios, unsigned count)
{
	struct sim_world *world = sim_host(engine)->world;

	for (unsigned i = 0; i < count; i++) {
		ios[i]->engine_data = world->now.clock;
		*world->last = ios[i];
		world->last = &ios[i]->next;
		world->outstanding++;
		if (sim_host(engine)->cut_off)
			sim_keep_late(world, ios[i]);
	}
}

static bool host_step(struct engine *engine)
{
	return step_until(sim_host(engine)->world, UINT64_MAX);
}

static void host_poll(struct engine *engine)
{
	struct sim_world *world = sim_host(engine)->world;
	unsigned count = world->outstanding;

	while (count-- && step_until(world, world->now.clock))
		;
}

static void host_sleep(struct engine *engine, uint64_t nanoseconds)
{
	struct sim_world *world = sim_host(engine)->world;
	uint64_t until = world->now.clock + nanoseconds;

	while (world->now.clock < until && step_until(world, until))
		;
	if (world->now.clock < until)
		world->now.clock = until;
}

static uint64_t host_clock(struct engine *engine)
{
	return sim_host(engine)->world->now.clock;
}

static uint64_t host_time(struct engine *engine)
{
	return STARTS_AT + host_clock(engine);
}

static void host_random(struct engine *engine, void *buffer, size_t length)
{
	uint8_t *at = buffer;

	for (size_t i = 0; i < length; i++)
		at[i] = (uint8_t)draw64(&sim_host(engine)->world->now.random);
}

static void host_counters(struct engine *engine, struct engine_counters *counters)
{
	*counters = sim_host(engine)->counters;
}

static void *host_alloc(struct engine *engine, size_t length)
{
	return sim_buffer_take(&sim_host(engine)->world->buffers, length);
}

static void host_free(struct engine *engine, void *buffer, size_t length)
{
	sim_buffer_give(&sim_host(engine)->world->buffers, buffer, length);
}

static void host_destroy(struct engine *engine)
{
	struct sim_host *host = sim_host(engine), **at = &host->world->hosts;

	assert(!host->handles && "a device is still open");
	while (*at != host)
		at = &(*at)->next;
	*at = host->next;
	free(host);
}

/* --- its devices -------------------------------------------------------------------------- */

static bool opened_exclusively(const struct sim_host *host, const struct sim_disk *disk)
{
	for (const struct sim_handle *h = host->handles; h; h = h->next) {
		if (h->disk == disk && (h->device.flags & DEVICE_EXCLUSIVE) &&
			!handle_stale(&h->device))
			return true;
	}
	return false;
}

static int may_open(struct sim_host *host, const struct sim_disk *disk, const char *path,
	unsigned flags, struct error *error)
{
	if (host->world->power_off || host->cut_off)
		return error_set(error, -ESHUTDOWN, path, "the power is off");
	if (!disk)
		return error_set(error, -ENOENT, path, "there is no such simulated device");
	if (disk->state.dead)
		return error_set(error, -ENODEV, path, "the device does not answer");
	if ((flags & DEVICE_EXCLUSIVE) && opened_exclusively(host, disk))
		return error_set(error, -EBUSY, path, "the device is in use");
	return 0;
}

static int host_open(struct engine *engine, const char *path, unsigned flags,
	struct device **device, struct error *error)
{
	struct sim_host *host = sim_host(engine);
	struct sim_disk *disk = sim_find(host->world, path);
	int result = may_open(host, disk, path, flags, error);
	struct sim_handle *handle;

	if (result)
		return result;
	handle = calloc(1, sizeof(*handle));
	if (!handle)
		return error_set(error, -ENOMEM, path, "no memory");
	handle->device.engine = engine;
	handle->device.flags = flags;
	memcpy(handle->device.info.path, disk->name, sizeof(disk->name));
	handle->device.info.size = disk->size;
	handle->device.info.volatile_cache = disk->state.volatile_cache;
	handle->disk = disk;
	handle->generation = host->generation;
	handle->next = host->handles;
	host->handles = handle;
	*device = &handle->device;
	return 0;
}

static void host_close(struct device *device)
{
	struct sim_handle *handle = (struct sim_handle *)device;
	struct sim_handle **at = &sim_host(device->engine)->handles;

	while (*at != handle)
		at = &(*at)->next;
	*at = handle->next;
	free(handle);
}

static bool host_present(struct device *device)
{
	return !handle_stale(device) && !((struct sim_handle *)device)->disk->state.dead;
}

static void host_tick(struct engine *engine, struct ticker *ticker, bool on)
{
	struct sim_world *world = sim_host(engine)->world;
	struct ticker **at = &world->tickers;

	if (on) {
		ticker->due = world->now.clock + ticker->every;
		ticker->next = world->tickers;
		world->tickers = ticker;
		return;
	}
	while (*at != ticker)
		at = &(*at)->next;
	*at = ticker->next;
}

static const struct engine_ops sim_ops = {
	.destroy = host_destroy,
	.submit = host_submit,
	.open = host_open,
	.close = host_close,
	.present = host_present,
	.counters = host_counters,
	.alloc = host_alloc,
	.free = host_free,
	.clock = host_clock,
	.time = host_time,
	.random = host_random,
	.sleep = host_sleep,
	.poll = host_poll,
	.step = host_step,
	.tick = host_tick,
};

/* --- making a world ----------------------------------------------------------------------- */

/* What is opened on a world thousands of times has its memory back from malloc(), not from the
 * kernel. */
static void keep_memory(void)
{
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

int sim_world_create(const struct sim_options *options, struct sim_world **world)
{
	struct sim_world *w = calloc(1, sizeof(*w));

	keep_memory();
	*world = w;
	if (!w)
		return -ENOMEM;
	w->reorder = options->reorder;
	w->now.clock = UINT64_C(1000000000);
	w->last = &w->first;
	w->buffers.end = &w->buffers.first;
	sim_seed(w, options->seed);
	return 0;
}

static void disk_free(struct sim_disk *disk)
{
	list_free(&disk->cache);
	medium_free(&disk->medium);
	free(disk);
}

void sim_world_destroy(struct sim_world *world)
{
	struct sim_disk *next;

	if (!world)
		return;
	assert(!world->hosts && "an engine is still there");
	for (struct sim_disk *disk = world->disks; disk; disk = next) {
		next = disk->next;
		disk_free(disk);
	}
	list_free(&world->late);
	sim_buffers_free(&world->buffers);
	free(world);
}

int sim_engine_create(struct sim_world *world, struct engine **engine)
{
	struct sim_host *host = calloc(1, sizeof(*host));

	*engine = NULL;
	if (!host)
		return -ENOMEM;
	host->engine.ops = &sim_ops;
	host->world = world;
	host->id = ++world->hosts_made;
	host->generation = ++world->generations;
	host->next = world->hosts;
	world->hosts = host;
	*engine = &host->engine;
	return 0;
}

int sim_add_device(struct sim_world *world, const char *name, uint64_t size)
{
	struct sim_disk *disk, **at = &world->disks;

	assert(size > 0 && size % BLOCK_SIZE == 0 && strlen(name) < sizeof(disk->name));
	if (sim_find(world, name))
		return -EEXIST;
	disk = calloc(1, sizeof(*disk));
	if (!disk)
		return -ENOMEM;
	strcpy(disk->name, name);
	disk->size = size;
	disk->state.volatile_cache = true;
	if (medium_init(&disk->medium, size)) {
		disk_free(disk);
		return -ENOMEM;
	}
	while (*at)
		at = &(*at)->next;
	*at = disk;
	return 0;
}
