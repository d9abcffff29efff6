/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A part of a read, as the block cache has it: what is there is copied at once, what is missing is
 * read, in few runs. Between two of them a few blocks that are there are read once more rather than
 * in two requests.
 */
#include "pool/block_cache.h"
#include "pool/read.h"

#define AGAIN_MAX (8 * BLOCK_SIZE)

/* A run that is missing, to be read when it is known where it ends. */
struct missing {
	uint64_t from, to; /* the same: none */
};

static void missing_read(struct pool_read *read, const struct read_part *part,
	const struct missing *run, struct io_batch *batch)
{
	if (run->from == run->to)
		return;
	block_cache_missed(read->pool->cache, run->to - run->from);
	part_read(read, part, run->from, run->to, batch);
}

static void missing_add(struct pool_read *read, const struct read_part *part, struct missing *run,
	uint64_t from, uint64_t to, struct io_batch *batch)
{
	if (run->from < run->to && from - run->to <= AGAIN_MAX) {
		run->to = to;
		return;
	}
	missing_read(read, part, run, batch);
	*run = (struct missing){from, to};
}

/* What is not `found` of from..to, which are of one group. */
static void missing_add_blocks(struct pool_read *read, const struct read_part *part,
	struct missing *run, uint64_t from, uint64_t to, uint64_t found, struct io_batch *batch)
{
	for (uint64_t at = from, next; at < to; at = next, found >>= 1) {
		next = (at / BLOCK_SIZE + 1) * BLOCK_SIZE;
		if (next > to)
			next = to;
		if (!(found & 1))
			missing_add(read, part, run, at, next, batch);
	}
}

void part_read_cached(struct pool_read *read, const struct read_part *part, struct io_batch *batch)
{
	const struct extent *extent = &part->extent;
	uint64_t end = extent->offset + extent->length;
	struct missing run = {0};

	for (uint64_t at = extent->offset, next; at < end; at = next) {
		uint64_t found;

		next = group_end(at) < end ? group_end(at) : end;
		found = block_cache_get(read->pool->cache, extent->segment, at, next,
			(uint8_t *)part->into + (at - extent->offset));
		if (found)
			missing_add_blocks(read, part, &run, at, next, found, batch);
		else
			missing_add(read, part, &run, at, next, batch);
	}
	missing_read(read, part, &run, batch);
}
