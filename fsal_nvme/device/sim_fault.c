/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Faults on order, and the ways around the engine that tests have. */
#include "device/sim_world.h"

#include <assert.h>

void sim_kill_device(struct sim_world *world, const char *name)
{
	struct sim_disk *disk = sim_disk(world, name);

	disk->state.dead = true;
	disk->state.killed_at = world->now.clock;
	/* What is submitted from here on bears a later time. */
	world->now.clock++;
}

void sim_revive_device(struct sim_world *world, const char *name)
{
	sim_disk(world, name)->state.dead = false;
}

void sim_fail_nth(struct engine *engine, uint64_t n, int error)
{
	struct sim_orders *orders = &sim_host(engine)->orders;

	orders->fail = n;
	orders->fail_error = error;
	orders->failed = false;
}

bool sim_failed(struct engine *engine)
{
	return sim_host(engine)->orders.failed;
}

void sim_fail_device_writes(struct sim_world *world, const char *name, int error)
{
	sim_disk(world, name)->state.write_error = error;
}

void sim_fail_device_reads(struct sim_world *world, const char *name, int error)
{
	sim_disk(world, name)->state.read_error = error;
}

void sim_fail_range(struct sim_world *world, const char *name, uint64_t offset, uint64_t length)
{
	struct sim_disk_state *state = &sim_disk(world, name)->state;

	state->bad_from = offset;
	state->bad_to = offset + length;
}

void sim_lose_write(struct engine *engine, uint64_t n)
{
	sim_host(engine)->orders.lose = n;
}

void sim_misdirect_write(struct engine *engine, uint64_t n, uint64_t offset)
{
	sim_host(engine)->orders.misdirect = n;
	sim_host(engine)->orders.misdirect_offset = offset;
}

void sim_delay(struct sim_world *world, const char *name, uint64_t nanoseconds)
{
	sim_disk(world, name)->state.delay = nanoseconds;
}

void sim_set_volatile(struct sim_world *world, const char *name, bool volatile_cache)
{
	sim_disk(world, name)->state.volatile_cache = volatile_cache;
}

void sim_rot(
	struct sim_world *world, const char *name, uint64_t offset, uint64_t length, uint64_t seed)
{
	struct sim_disk *disk = sim_disk(world, name);
	uint64_t end = offset + length, chance = world->now.chance;

	world->now.chance = seed;
	while (offset < end) {
		uint64_t sector_end = (offset / SECTOR_SIZE + 1) * SECTOR_SIZE;
		uint64_t stop = sector_end < end ? sector_end : end;
		uint64_t at = offset + sim_draw(world, stop - offset);
		uint8_t byte = disk->medium.bytes[at] ^ (uint8_t)(1 + sim_draw(world, 255));

		sim_store(disk, at, &byte, 1);
		offset = stop;
	}
	world->now.chance = chance;
}

const uint8_t *sim_medium(struct sim_world *world, const char *name)
{
	return sim_disk(world, name)->medium.bytes;
}

uint64_t sim_device_size(struct sim_world *world, const char *name)
{
	return sim_disk(world, name)->size;
}

void sim_medium_write(struct sim_world *world, const char *name, uint64_t offset, const void *bytes,
	size_t length)
{
	sim_store(sim_disk(world, name), offset, bytes, length);
}
