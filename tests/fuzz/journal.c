/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A whole journal: the ring of the world's devices holds the input, and the pool is opened on it.
 *
 * The input is pieces: u8 flags, u32 length, bytes: each a batch, put where the one before ended.
 * What makes a batch the expected one at its place (pool, epoch, position, LSN, hash of the one
 * before) is filled in here unless a flag says no, so that what lies behind those tests is reached,
 * and so that the corpus is not bound to one pool.
 */
#include "fuzz.h"

#include "pool/env.h"
#include "pool/journal.h"
#include "world.h"

enum {
	RAW_IDENTITY = 1 << 0, /* pool, epoch, position as in the piece */
	RAW_CHAIN = 1 << 1, /* LSN, hash before */
	RAW_RECORDS = 1 << 2, /* their LSNs, and the ends of windows */
	RAW_COUNT = 1 << 3, /* length and number of records */
};

enum {
	OPENED,
	REFUSED,
	CHANGES,
	WINDOW,
	EPOCH,
	POOL_KEYS,
	VOLUME_KEYS = POOL_KEYS + 9,
	TYPES = VOLUME_KEYS + 9,
};

static const char pool_keys[] = "SRTVNPXCM", volume_keys[] = "HIECXDLOT";

struct fuzz_type fuzz_types[] = {
	[OPENED] = {"a pool that could be opened", 0},
	[REFUSED] = {"refused", 0},
	[CHANGES] = {"a record of changes", 0},
	[WINDOW] = {"a record of a window", 0},
	[EPOCH] = {"a record of an epoch", 0},
	[POOL_KEYS] = {"the pool's row S", 0},
	[POOL_KEYS + 1] = {"the pool's row R", 0},
	[POOL_KEYS + 2] = {"the pool's row T", 0},
	[POOL_KEYS + 3] = {"the pool's row V", 0},
	[POOL_KEYS + 4] = {"the pool's row N", 0},
	[POOL_KEYS + 5] = {"the pool's row P", 0},
	[POOL_KEYS + 6] = {"the pool's row X", 0},
	[POOL_KEYS + 7] = {"the pool's row C", 0},
	[POOL_KEYS + 8] = {"the pool's row M", 0},
	[VOLUME_KEYS] = {"a volume's row H", 0},
	[VOLUME_KEYS + 1] = {"a volume's row I", 0},
	[VOLUME_KEYS + 2] = {"a volume's row E", 0},
	[VOLUME_KEYS + 3] = {"a volume's row C", 0},
	[VOLUME_KEYS + 4] = {"a volume's row X", 0},
	[VOLUME_KEYS + 5] = {"a volume's row D", 0},
	[VOLUME_KEYS + 6] = {"a volume's row L", 0},
	[VOLUME_KEYS + 7] = {"a volume's row O", 0},
	[VOLUME_KEYS + 8] = {"a volume's row T", 0},
	[TYPES] = {NULL, 0},
};
const size_t fuzz_longest = 192 << 10;

static unsigned seen[TYPES]; /* by this input */

struct ring {
	struct fuzz_world *world;
	uint64_t position, lsn, hash;
};

/* --- a batch ---------------------------------------------------------------------------------- */

static int see_change(void *data, const struct change *change)
{
	const char *letters = change->volume ? volume_keys : pool_keys;
	const char *at = strchr(letters, *(const char *)change->key.data);

	if (at && *at)
		seen[(change->volume ? VOLUME_KEYS : POOL_KEYS) + (at - letters)] = 1;
	return 0;
}

static void see_record(const struct record *record)
{
	seen[CHANGES] |= record->payload[0] == RECORD_CHANGES;
	seen[WINDOW] |= record->payload[0] == RECORD_WINDOW;
	seen[EPOCH] |= record->payload[0] == RECORD_EPOCH;
	if (record->payload[0] == RECORD_CHANGES)
		changes_decode(record->payload + 1, record->length - 1, see_change, NULL);
}

static void patch(uint8_t *at, uint64_t value, unsigned bytes)
{
	struct writer w = writer_on(at, bytes);

	put_number(&w, value, bytes);
}

/* Gives the records their LSNs; returns how many have one, *count: all. */
static uint64_t patch_records(
	struct ring *ring, uint8_t *batch, size_t length, unsigned flags, uint32_t *count)
{
	struct reader r = reader_on(batch + BATCH_HEADER_SIZE, length - BATCH_HEADER_SIZE);
	struct record record;
	uint64_t lsns = 0;

	for (; record_next(&r, &record); ++*count) {
		uint8_t *payload = batch + (record.payload - batch);
		bool window = payload[0] == RECORD_WINDOW;

		see_record(&record);
		lsns += !window;
		if (flags & RAW_RECORDS)
			continue;
		patch(payload - 8, window ? 0 : ring->lsn + lsns - 1, 8);
		if (window && record.length >= 17)
			patch(payload + 9, ring->position + journal_blocks(length), 8);
	}
	return lsns;
}

static void patch_identity(struct ring *ring, uint8_t *batch)
{
	memcpy(batch + 12, ring->world->label.pool, 16);
	patch(batch + 28, ring->world->label.spans[0].epoch, 8);
	patch(batch + 36, ring->position, 8);
}

static void put_batch(struct ring *ring, unsigned flags, const uint8_t *bytes, size_t length)
{
	uint64_t room = ring->world->headers[0].journal_size - ring->position;
	size_t blocks = journal_blocks(length);
	uint8_t *batch;
	uint64_t lsns;
	uint32_t count = 0;
	struct reader hash;

	if (length < BATCH_HEADER_SIZE || blocks > room)
		return;
	batch = fuzz_frame(bytes, length, blocks);
	if (!(flags & RAW_IDENTITY))
		patch_identity(ring, batch);
	lsns = patch_records(ring, batch, length, flags, &count);
	if (!(flags & RAW_COUNT)) {
		patch(batch + 60, count, 4);
		patch(batch + 64, length, 4);
	}
	if (!(flags & RAW_CHAIN)) {
		patch(batch + 44, ring->lsn, 8);
		patch(batch + 52, ring->hash, 8);
	}
	hash = reader_on(batch + 68, 8);
	ring->hash = get_u64(&hash);
	ring->lsn += lsns;
	for (unsigned i = 0; i < WORLD_DEVICES; i++)
		world_write(ring->world, i, ring->world->headers[i].journal_offset + ring->position,
			batch, blocks);
	ring->position += blocks;
	free(batch);
}

/* Nothing of the world's own journal is left. */
static void wipe(struct fuzz_world *world)
{
	uint64_t size = world->headers[0].journal_size;
	uint8_t *zeros = calloc(1, size);

	for (unsigned i = 0; i < WORLD_DEVICES; i++)
		world_write(world, i, world->headers[i].journal_offset, zeros, size);
	free(zeros);
}

static void put_pieces(struct fuzz_world *world, const uint8_t *data, size_t size)
{
	struct ring ring = {world, 0, 1, 0};
	struct reader r = reader_on(data, size);

	memset(seen, 0, sizeof(seen));
	ring.lsn = world->label.spans[0].start.lsn;
	ring.hash = world->label.spans[0].start.hash;
	while (!r.bad && r.at < r.end) {
		unsigned flags = get_u8(&r);
		size_t length = get_u32(&r);
		const uint8_t *bytes = get_bytes(&r, length);

		if (bytes)
			put_batch(&ring, flags, bytes, length);
	}
}

/* --- opening ---------------------------------------------------------------------------------- */

static void count_seen(void)
{
	for (unsigned i = CHANGES; i < TYPES; i++)
		if (seen[i])
			fuzz_reach(i);
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
	count_seen();
	world_use(pool, how != WORLD_READ_ONLY);
	world_abandon(world, pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_world *world = world_reset();

	format_waive_checksums = true;
	wipe(world);
	put_pieces(world, data, size);
	try_open(world, WORLD_READ_ONLY);
	try_open(world, WORLD_OWN);
	format_waive_checksums = false;
	return 0;
}
