/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where the bytes of an extent lie. Linear space runs cell by cell through a row's data chunks,
 * then on to the next row; a chunk's cells of neighbouring rows are neighbours on its device. So
 * the bytes of any extent in one chunk are one run, and a long read is a few long reads of each
 * device.
 */
#include "pool/read.h"

/* Bytes of the chunk that stand before the linear place `at`. */
static uint64_t chunk_bytes_before(const struct layout *layout, unsigned chunk, uint64_t at)
{
	uint64_t row_bytes = (uint64_t)layout->data * layout->cell;
	uint64_t row = at / row_bytes, within = at % row_bytes;
	uint64_t cell_start = (uint64_t)chunk * layout->cell;

	if (within <= cell_start)
		return row * layout->cell;
	within -= cell_start;
	return row * layout->cell + (within < layout->cell ? within : layout->cell);
}

uint64_t chunk_to_linear(const struct layout *layout, unsigned chunk, uint64_t at)
{
	uint64_t row = at / layout->cell;

	return (row * layout->data + chunk) * layout->cell + at % layout->cell;
}

void cutter_init(
	struct cutter *cutter, const struct layout *layout, uint64_t offset, uint64_t length)
{
	*cutter = (struct cutter){.layout = layout, .offset = offset, .end = offset + length};
}

/* The most that may go into one cut that starts here. */
static uint64_t cut_limit(uint64_t from)
{
	uint64_t block = from / BLOCK_SIZE;
	uint64_t span_end = block + SPAN_BLOCKS;
	uint64_t page_end = (block / PAGE_ENTRIES + 1) * PAGE_ENTRIES;

	return (span_end < page_end ? span_end : page_end) * BLOCK_SIZE;
}

bool cutter_next(struct cutter *cutter, struct cut *cut)
{
	const struct layout *layout = cutter->layout;
	struct cut *rest = &cutter->rest;
	uint64_t limit;

	while (rest->from == rest->to) {
		if (cutter->next_chunk == layout->data)
			return false;
		rest->chunk = cutter->next_chunk++;
		rest->from = chunk_bytes_before(layout, rest->chunk, cutter->offset);
		rest->to = chunk_bytes_before(layout, rest->chunk, cutter->end);
	}
	limit = cut_limit(rest->from);
	*cut = *rest;
	if (cut->to > limit)
		cut->to = limit;
	rest->from = cut->to;
	return true;
}
