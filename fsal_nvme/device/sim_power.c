/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Power: what a cut leaves undecided, what sim_power_on() decides about it, and late writes.
 *
 * At a cut the writes in flight join the caches, in an order drawn from the seed since nobody
 * promised one; from there on a write that was done and one that was not are treated alike. The
 * order of the list is kept when the survivors are stored: a cache does not bring back an older
 * version of a sector over a newer one that it holds, it can only lose the newer one.
 */
#include "device/sim_world.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- lists of writes ---------------------------------------------------------------------- */

struct sim_write *write_new(uint64_t length)
{
	struct sim_write *write = malloc(sizeof(*write) + length);

	if (!write)
		return NULL;
	memset(write, 0, sizeof(*write));
	write->references = 1;
	write->length = length;
	return write;
}

struct sim_write *write_from_io(const struct io *io)
{
	struct sim_write *write = write_new(io_length(io));
	uint64_t at = 0;

	if (!write)
		return NULL;
	write->host = sim_io_host(io)->id;
	write->disk = sim_io_disk(io);
	write->done_at = UINT64_MAX;
	write->offset = io->offset;
	for (unsigned i = 0; i < io->iov_count; i++) {
		memcpy(write->bytes + at, io->iov[i].iov_base, io->iov[i].iov_len);
		at += io->iov[i].iov_len;
	}
	return write;
}

void write_release(struct sim_write *write)
{
	if (write && --write->references == 0)
		free(write);
}

static int list_room(struct write_list *list, unsigned count)
{
	unsigned room = list->room ? list->room : 16;
	struct sim_write **at;

	while (room < count)
		room *= 2;
	if (room == list->room)
		return 0;
	at = realloc(list->at, room * sizeof(struct sim_write *));
	if (!at)
		return -ENOMEM;
	list->at = at;
	list->room = room;
	return 0;
}

int list_push(struct write_list *list, struct sim_write *write)
{
	if (!write || list_room(list, list->count + 1)) {
		write_release(write);
		return -ENOMEM;
	}
	list->at[list->count++] = write;
	return 0;
}

void list_drop(struct write_list *list, unsigned count)
{
	if (count == 0)
		return;
	for (unsigned i = 0; i < count; i++)
		write_release(list->at[i]);
	list->count -= count;
	memmove(list->at, list->at + count, list->count * sizeof(struct sim_write *));
}

void list_free(struct write_list *list)
{
	list_drop(list, list->count);
	free(list->at);
	*list = (struct write_list){0};
}

int list_copy(struct write_list *to, const struct write_list *from)
{
	list_drop(to, to->count);
	if (from->count == 0)
		return 0;
	if (list_room(to, from->count))
		return -ENOMEM;
	for (unsigned i = 0; i < from->count; i++) {
		to->at[i] = from->at[i];
		to->at[i]->references++;
	}
	to->count = from->count;
	return 0;
}

/* --- what becomes of a write -------------------------------------------------------------- */

enum sim_fate sim_draw_fate(struct sim_world *world)
{
	return (enum sim_fate)sim_draw(world, 3);
}

/* A prefix of the sectors, or any of them: some are stored, and some are not. */
static void tear(struct sim_world *world, const struct sim_write *write)
{
	uint64_t sectors = write->length / SECTOR_SIZE, stop = sim_draw(world, sectors);
	bool prefix = sim_draw(world, 2);

	for (uint64_t i = 0; i < sectors; i++) {
		uint64_t at = i * SECTOR_SIZE;

		if (prefix ? i < stop : sim_draw(world, 2))
			sim_store(write->disk, write->offset + at, write->bytes + at, SECTOR_SIZE);
	}
}

void sim_apply(struct sim_world *world, const struct sim_write *write, enum sim_fate fate)
{
	if (fate == FATE_SURVIVES)
		sim_store(write->disk, write->offset, write->bytes, write->length);
	else if (fate == FATE_TEARS)
		tear(world, write);
}

/*
 * One disk at random: mostly each write for itself, but a disk that kept all while its neighbour
 * lost all is likely enough to be seen too.
 */
static void decide_at_random(struct sim_world *world, const struct write_list *cache)
{
	uint64_t mood = sim_draw(world, 8);

	for (unsigned i = 0; i < cache->count; i++) {
		enum sim_fate fate = sim_draw_fate(world);

		if (mood == 0)
			fate = FATE_SURVIVES;
		else if (mood == 1)
			fate = FATE_VANISHES;
		sim_apply(world, cache->at[i], fate);
	}
}

static void decide(struct sim_world *world, struct sim_disk *disk, enum sim_policy policy)
{
	struct write_list *cache = &disk->cache;

	if (policy == SIM_RANDOM)
		decide_at_random(world, cache);
	for (unsigned i = 0; policy == SIM_KEEP_ALL && i < cache->count; i++)
		sim_apply(world, cache->at[i], FATE_SURVIVES);
	list_drop(cache, cache->count);
}

/* --- the cut ------------------------------------------------------------------------------ */

static bool in_flight(const struct io *io)
{
	return io->op == IO_WRITE && !sim_io_stale(io) && io_in_range(io) &&
	       !sim_io_disk(io)->state.dead;
}

/* The caches' new entries, from `kept` on, in an order drawn from the seed. */
static void shuffle(struct sim_world *world, struct write_list *list, unsigned kept)
{
	for (unsigned i = list->count; i > kept + 1; i--) {
		unsigned j = kept + (unsigned)sim_draw(world, i - kept);
		struct sim_write *swap = list->at[i - 1];

		list->at[i - 1] = list->at[j];
		list->at[j] = swap;
	}
}

/* Those in flight stand behind those that are done. */
static unsigned count_done(const struct write_list *cache)
{
	unsigned done = cache->count;

	while (done && cache->at[done - 1]->done_at == UINT64_MAX)
		done--;
	return done;
}

/* A write that finds no memory has vanished. */
void sim_caches_take_in_flight(struct sim_world *world)
{
	for (struct io *io = world->first; io; io = io->next) {
		if (in_flight(io))
			list_push(&sim_io_disk(io)->cache, write_from_io(io));
	}
	for (struct sim_disk *disk = world->disks; disk && world->reorder; disk = disk->next)
		shuffle(world, &disk->cache, count_done(&disk->cache));
}

void sim_caches_leave_in_flight(struct sim_world *world)
{
	for (struct sim_disk *disk = world->disks; disk; disk = disk->next) {
		struct write_list *cache = &disk->cache;

		for (unsigned done = count_done(cache); cache->count > done;)
			write_release(cache->at[--cache->count]);
	}
}

static struct sim_host *find_host(struct sim_world *world, unsigned id)
{
	struct sim_host *host = world->hosts;

	while (host && host->id != id)
		host = host->next;
	return host;
}

static void hold_late_writes(struct sim_world *world)
{
	for (struct sim_disk *disk = world->disks; disk; disk = disk->next) {
		for (unsigned i = 0; i < disk->cache.count; i++) {
			struct sim_write *w = disk->cache.at[i];
			const struct sim_host *host = find_host(world, w->host);

			if (!host || !host->hold_late)
				continue;
			if (w->done_at != UINT64_MAX && !host->hold_unflushed)
				continue;
			w->references++;
			list_push(&world->late, w);
		}
	}
}

static void disconnect(struct sim_host *host)
{
	host->generation = ++host->world->generations;
	host->paused = false;
	host->orders.cut_power = host->orders.cut_host = 0;
	host->orders.watch = NULL;
}

void sim_cut_power(struct sim_world *world)
{
	if (world->power_off)
		return;
	sim_caches_take_in_flight(world);
	hold_late_writes(world);
	world->power_off = true;
	for (struct sim_host *host = world->hosts; host; host = host->next)
		disconnect(host);
}

void sim_cut_power_at(struct engine *engine, uint64_t n)
{
	sim_host(engine)->orders.cut_power = n;
}

void sim_watch_writes(struct engine *engine, void (*each)(void *data), void *data)
{
	sim_host(engine)->orders.watch = each;
	sim_host(engine)->orders.watch_data = data;
}

bool sim_power_was_cut(struct engine *engine)
{
	return sim_host(engine)->world->power_off || sim_host(engine)->cut_off;
}

void sim_power_on(struct sim_world *world, enum sim_policy policy)
{
	sim_cut_power(world);
	for (struct sim_disk *disk = world->disks; disk; disk = disk->next)
		decide(world, disk, policy);
	for (struct sim_host *host = world->hosts; host; host = host->next)
		host->cut_off = false;
	world->power_off = false;
}

uint64_t sim_writes_and_flushes(struct engine *engine)
{
	return sim_host(engine)->writes_and_flushes;
}

void sim_settle(struct sim_world *world)
{
	for (struct sim_disk *disk = world->disks; disk; disk = disk->next)
		decide(world, disk, SIM_KEEP_ALL);
}

/* --- one host ----------------------------------------------------------------------------- */

void sim_keep_late(struct sim_world *world, const struct io *io)
{
	if (io->op == IO_WRITE && io_in_range(io))
		list_push(&world->late, write_from_io(io));
}

void sim_cut_host(struct engine *engine)
{
	struct sim_host *host = sim_host(engine);

	if (host->cut_off)
		return;
	for (struct io *io = host->world->first; io; io = io->next) {
		if (sim_io_host(io) == host && in_flight(io))
			sim_keep_late(host->world, io);
	}
	host->cut_off = true;
	disconnect(host);
}

void sim_cut_host_at(struct engine *engine, uint64_t n)
{
	sim_host(engine)->orders.cut_host = n;
}

void sim_reconnect(struct engine *engine)
{
	sim_host(engine)->cut_off = false;
}

void sim_pause(struct engine *engine, bool paused)
{
	sim_host(engine)->paused = paused;
}

void sim_hold_late(struct engine *engine, bool hold, bool unflushed)
{
	sim_host(engine)->hold_late = hold;
	sim_host(engine)->hold_unflushed = unflushed;
}

unsigned sim_late_count(struct sim_world *world)
{
	return world->late.count;
}

struct sim_late sim_late(struct sim_world *world, unsigned index)
{
	const struct sim_write *w;

	assert(index < world->late.count);
	w = world->late.at[index];
	return (struct sim_late){w->disk->name, w->offset, w->length};
}

int sim_release_late(struct sim_world *world, unsigned index)
{
	struct write_list *late = &world->late;
	struct sim_write *write;
	int result;

	assert(index < late->count);
	write = late->at[index];
	late->count--;
	memmove(late->at + index, late->at + index + 1,
		(late->count - index) * sizeof(struct sim_write *));
	result = write->disk->state.dead
			 ? -ENODEV
			 : sim_trim_cache(write->disk, write->offset, write->length);
	if (!result)
		sim_apply(world, write, FATE_SURVIVES);
	write_release(write);
	return result;
}

void sim_drop_late(struct sim_world *world)
{
	list_drop(&world->late, world->late.count);
}
