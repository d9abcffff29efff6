/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The head of a device. */
#include "fuzz.h"

#include <errno.h>

#include "pool/format.h"

enum { GOOD, REFUSED, LATER };

struct fuzz_type fuzz_types[] = {
	{"a good header", 0}, {"refused", 0}, {"of a later version or feature", 0}, {NULL, 0}};
const size_t fuzz_longest = BLOCK_SIZE;

/* What pool/ computes from it stays on the device. */
static void check(const struct device_header *h)
{
	struct layout layout;
	struct device_header again;
	uint8_t *block = malloc(BLOCK_SIZE);

	layout_compute(&layout, h->data, h->parity, h->cell, h->slot_rows);
	assert(layout_slot_size(&layout) == h->slot_size);
	assert(h->slots_offset + (uint64_t)h->slot_count * h->slot_size <= h->label_b_offset);
	assert(h->label_b_offset + LABEL_AREA + BLOCK_SIZE <= h->size);
	assert(!device_header_encode(h, block));
	assert(!device_header_decode(&again, block));
	assert(!memcmp(&again, h, sizeof(again)));
	free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	void *block = fuzz_frame(data, size, BLOCK_SIZE);
	struct device_header header;
	int rc;

	format_waive_checksums = true;
	memset(&header, 0, sizeof(header));
	rc = device_header_decode(&header, block);
	assert(!rc || rc == -EBADMSG || rc == -ENOTSUP);
	fuzz_reach(!rc ? GOOD : rc == -ENOTSUP ? LATER : REFUSED);
	if (!rc)
		check(&header);
	free(block);
	return 0;
}
