/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What is done about blocks that are not what they should be: counting, logging, writing them back.
 * A repair has its own memory, reference and request, so that nobody waits for it.
 *
 * Lines about single blocks are logged for a device's 1st, 2nd, 4th, 8th ... event, so that a drive
 * that was pulled does not fill the log; lost bytes always are.
 */
#include "pool/read.h"

#include <assert.h>
#include <inttypes.h>

#define REPAIRS_MAX 64u /* in flight, each SPAN_BLOCKS at most */

bool chunk_usable(struct pool *pool, const struct segment *segment, unsigned chunk)
{
	struct member *member = segment_member(pool, segment, chunk);

	return member && !member_lacks(member, segment->id);
}

bool chunk_last_resort(struct pool *pool, const struct segment *segment, unsigned chunk)
{
	struct member *member = segment_member(pool, segment, chunk);

	return member && member->device && atomic_load(&member->state) != DEVICE_MISSING &&
	       member_lacks(member, segment->id);
}

/* --- counting and logging ----------------------------------------------------------------- */

/* Whether the count, which grew by `by`, passed a power of two. */
static bool worth_a_line(uint64_t before, uint64_t by)
{
	uint64_t after = before + by;

	return before == 0 || (63 - __builtin_clzll(before)) != (63 - __builtin_clzll(after));
}

void chunk_read_failed(struct pool *pool, const struct segment *segment, unsigned chunk,
	uint64_t offset, unsigned blocks, int error)
{
	struct member *member = segment_member(pool, segment, chunk);
	uint64_t before = atomic_fetch_add(&member->read_errors, blocks);

	if (worth_a_line(before, blocks))
		log_warning("%s: %u blocks at byte %" PRIu64 " (slot %u, segment %" PRIx64
			    ", chunk %u) cannot be read: %s; %" PRIu64 " so far",
			member->path, blocks, offset, segment->row.chunks[chunk].slot, segment->id,
			chunk, strerror(-error), before + blocks);
}

void chunk_rotten(struct pool *pool, const struct segment *segment, unsigned chunk, uint64_t offset,
	unsigned blocks)
{
	struct member *member = segment_member(pool, segment, chunk);
	uint64_t before = atomic_fetch_add(&member->checksum_errors, blocks);

	if (worth_a_line(before, blocks))
		log_warning("%s: %u blocks at or behind byte %" PRIu64 " (slot %u, segment %" PRIx64
			    ", chunk %u) are not what their checksums say; %" PRIu64 " so far",
			member->path, blocks, offset, segment->row.chunks[chunk].slot, segment->id,
			chunk, before + blocks);
}

void chunk_lost(struct pool *pool, const struct segment *segment, unsigned chunk, uint64_t block,
	const char *why)
{
	const struct member *member = segment_member(pool, segment, chunk);
	const struct chunk_place *place = &segment->row.chunks[chunk];

	log_error("device %u (%s), slot %u, segment %" PRIx64 ", chunk %u, block %" PRIu64
		  " is lost: %s",
		place->device, member && member->path[0] ? member->path : "missing", place->slot,
		segment->id, chunk, block, why);
}

/* --- how many ----------------------------------------------------------------------------- */

void repairs_begin(struct repairs *repairs, struct engine *engine)
{
	atomic_init(&repairs->count, 1);
	atomic_init(&repairs->ended, false);
	event_init(&repairs->idle, engine);
}

static bool repairs_enter(struct repairs *repairs)
{
	if (atomic_load(&repairs->ended))
		return false;
	if (atomic_fetch_add(&repairs->count, 1) <= REPAIRS_MAX)
		return true;
	atomic_fetch_sub(&repairs->count, 1);
	return false;
}

static void repairs_leave(struct repairs *repairs)
{
	if (atomic_fetch_sub(&repairs->count, 1) == 1)
		event_signal(&repairs->idle, 0);
}

void repairs_end(struct repairs *repairs)
{
	if (atomic_exchange(&repairs->ended, true))
		return;
	repairs_leave(repairs);
	event_wait(&repairs->idle);
	assert(atomic_load(&repairs->count) == 0 && "closed with a paused host's repairs");
}

/* --- writing back ------------------------------------------------------------------------- */

struct repair {
	struct io io;
	struct pool *pool;
	struct segment *segment;
	struct member *member;
	void *buffer;
	size_t length;
};

/* Nothing is written to what an owner that may wake up has open. */
static bool repair_allowed(
	struct pool *pool, const struct segment *segment, const struct member *member)
{
	bool open_there = segment->frozen && written_late(pool, &segment->row);

	return !pool->read_only && !open_there && !atomic_load(&pool->failure) && member &&
	       member_usable(member) && !atomic_load(&member->failing);
}

static void repair_account(
	struct pool *pool, struct member *member, size_t length, uint64_t offset, int result)
{
	uint64_t before;

	if (result) {
		member_failed(pool, member, result);
		return;
	}
	atomic_fetch_add(&member->written, 1);
	before = atomic_fetch_add(&member->repaired, length / BLOCK_SIZE);
	if (worth_a_line(before, length / BLOCK_SIZE))
		log_notice("%s: %zu blocks at byte %" PRIu64 " rewritten; %" PRIu64 " so far",
			member->path, length / BLOCK_SIZE, offset, before + length / BLOCK_SIZE);
}

static void repair_done(struct io *io)
{
	struct repair *repair = io->data;
	struct pool *pool = repair->pool;

	repair_account(pool, repair->member, repair->length, io->offset, io->result);
	segment_put(repair->segment);
	buffer_free(pool->engine, repair->buffer, repair->length);
	free(repair);
	repairs_leave(page_cache_repairs(pool));
}

static struct repair *repair_create(struct pool *pool, const void *bytes, size_t length)
{
	struct repair *repair = calloc(1, sizeof(*repair));

	if (!repair)
		return NULL;
	repair->buffer = buffer_alloc(pool->engine, length);
	if (!repair->buffer) {
		free(repair);
		return NULL;
	}
	repair->pool = pool;
	repair->length = length;
	memcpy(repair->buffer, bytes, length);
	return repair;
}

void repair_later(struct pool *pool, struct segment *segment, unsigned chunk, uint64_t offset,
	const void *bytes, size_t length)
{
	struct member *member = segment_member(pool, segment, chunk);
	struct repair *repair;
	struct io *io;

	if (!repair_allowed(pool, segment, member) || !repairs_enter(page_cache_repairs(pool)))
		return;
	repair = repair_create(pool, bytes, length);
	if (!repair) {
		repairs_leave(page_cache_repairs(pool));
		return;
	}
	segment_ref(segment);
	repair->segment = segment;
	repair->member = member;
	io = &repair->io;
	io_prepare(io, IO_WRITE, member->device, offset, repair->buffer, length);
	io->done = repair_done;
	io->data = repair;
	io_submit(pool->engine, &io, 1);
}

/* Takes the first run out of `bits`. */
static unsigned take_run(uint64_t *bits, unsigned *first)
{
	uint64_t from_first;
	unsigned count;

	*first = (unsigned)__builtin_ctzll(*bits);
	from_first = ~(*bits >> *first);
	count = from_first ? (unsigned)__builtin_ctzll(from_first) : 64;
	*bits &= ~(low_bits(count) << *first);
	return count;
}

void repair_blocks_later(struct pool *pool, struct segment *segment, unsigned chunk, uint64_t block,
	const uint8_t *bytes, uint64_t bits)
{
	while (bits) {
		unsigned first, count = take_run(&bits, &first);

		repair_later(pool, segment, chunk,
			segment_block_offset(pool, segment, chunk, block + first),
			bytes + (size_t)first * BLOCK_SIZE, (size_t)count * BLOCK_SIZE);
	}
}

int repair_now(struct pool *pool, struct segment *segment, unsigned chunk, uint64_t offset,
	void *bytes, size_t length)
{
	struct member *member = segment_member(pool, segment, chunk);
	struct io io;
	int result;

	if (!repair_allowed(pool, segment, member))
		return -EROFS;
	io_prepare(&io, IO_WRITE, member->device, offset, bytes, length);
	result = io_run(pool->engine, &io);
	repair_account(pool, member, length, offset, result);
	return result;
}

unsigned repair_blocks_now(struct pool *pool, struct segment *segment, unsigned chunk,
	uint64_t block, uint8_t *bytes, uint64_t bits)
{
	unsigned repaired = 0;

	while (bits) {
		unsigned first, count = take_run(&bits, &first);

		if (!repair_now(pool, segment, chunk,
			    segment_block_offset(pool, segment, chunk, block + first),
			    bytes + (size_t)first * BLOCK_SIZE, (size_t)count * BLOCK_SIZE))
			repaired += count;
	}
	return repaired;
}
