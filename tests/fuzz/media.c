/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Damage to media that no checksum shows: the input is changes to the world's devices, each u8
 * device (255: the same on all), u8 kind of block (the order of `kinds`), u8 which of them, u16
 * offset in it, u8 length, bytes. Then the pool is opened, read and changed.
 */
#include "fuzz.h"

#include "world.h"

enum { OPENED, REFUSED, DEVICE, LABEL, BEAT, BATCH, CHUNK, PAGE, BYTES };

struct fuzz_type fuzz_types[] = {
	[OPENED] = {"a pool that could be opened", 0},
	[REFUSED] = {"refused", 0},
	[DEVICE] = {"a change of a device header", 0},
	[LABEL] = {"a change of a label", 0},
	[BEAT] = {"a change of a beat", 0},
	[BATCH] = {"a change of a batch", 0},
	[CHUNK] = {"a change of a chunk header", 0},
	[PAGE] = {"a change of a checksum page", 0},
	[BYTES] = {"a change of other bytes", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 512;

static const uint64_t kinds[] = {
	MAGIC_DEVICE, MAGIC_LABEL, MAGIC_BEAT, MAGIC_BATCH, MAGIC_CHUNK, MAGIC_PAGE};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static unsigned kind_of(const uint8_t *block)
{
	struct reader r = reader_on(block, 8);
	uint64_t magic = get_u64(&r);
	unsigned kind = 0;

	while (kind < KINDS && kinds[kind] != magic)
		kind++;
	return kind;
}

/* The `which`-th block of its kind on a device, from the start again behind the last; the first
 * block where there is none. */
static uint64_t find_block(struct fuzz_world *world, unsigned device, unsigned kind, unsigned which)
{
	uint64_t found[256];
	unsigned count = 0;

	for (uint64_t at = 0; at < WORLD_DEVICE_SIZE && count < 256; at += BLOCK_SIZE)
		if (kind_of(world_medium(world, device, at)) == kind)
			found[count++] = at;
	return count ? found[which % count] : 0;
}

static void damage(
	struct fuzz_world *world, unsigned device, uint64_t at, const uint8_t *bytes, size_t length)
{
	fuzz_reach(DEVICE + kind_of(world_medium(world, device, at / BLOCK_SIZE * BLOCK_SIZE)));
	world_write(world, device, at, bytes, length);
}

static void damage_all(struct fuzz_world *world, const uint8_t *data, size_t size)
{
	struct reader r = reader_on(data, size);

	while (!r.bad && r.at < r.end) {
		unsigned device = get_u8(&r), kind = get_u8(&r) % (KINDS + 1), which = get_u8(&r);
		uint64_t offset = get_u16(&r) % BLOCK_SIZE;
		size_t length = get_u8(&r);
		const uint8_t *bytes = get_bytes(&r, length);

		if (!bytes || offset + length > BLOCK_SIZE)
			continue;
		for (unsigned i = 0; i < WORLD_DEVICES; i++)
			if (device == 255 || device % WORLD_DEVICES == i)
				damage(world, i, find_block(world, i, kind, which) + offset, bytes,
					length);
	}
}

static void try_open(struct fuzz_world *world, enum world_how how)
{
	struct pool *pool;

	if (world_open(world, how, &pool)) {
		fuzz_reach(REFUSED);
		sim_drain(world->sim);
		return;
	}
	fuzz_reach(OPENED);
	world_use(pool, how != WORLD_READ_ONLY);
	world_abandon(world, pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_world *world = world_reset();
	struct pool_summary summary;

	format_waive_checksums = true;
	damage_all(world, data, size);
	for (unsigned i = 0; i < WORLD_DEVICES; i++)
		pool_probe(world->engine, world->paths[i], &summary);
	try_open(world, WORLD_READ_ONLY);
	try_open(world, WORLD_FOREIGN);
	try_open(world, WORLD_OWN);
	format_waive_checksums = false;
	return 0;
}
