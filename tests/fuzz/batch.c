/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A batch of the journal and the heads of its records; changes.c and journal.c look further. */
#include "fuzz.h"

#include <errno.h>

#include "pool/journal.h"

enum { GOOD, REFUSED, LATER, CUT, CHANGES, WINDOW, EPOCH, OTHER, BAD_RECORD };

struct fuzz_type fuzz_types[] = {
	[GOOD] = {"a good batch", 0},
	[REFUSED] = {"refused", 0},
	[LATER] = {"of a later version", 0},
	[CUT] = {"longer than what is there", 0},
	[CHANGES] = {"a record of changes", 0},
	[WINDOW] = {"a record of a window", 0},
	[EPOCH] = {"a record of an epoch", 0},
	[OTHER] = {"a record of another kind", 0},
	[BAD_RECORD] = {"a record that is cut", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 4 * BLOCK_SIZE;

static void walk(const uint8_t *batch, size_t length)
{
	struct reader r = reader_on(batch + BATCH_HEADER_SIZE, length - BATCH_HEADER_SIZE);
	struct record record;

	while (record_next(&r, &record)) {
		uint8_t kind = record.payload[0];
		volatile uint8_t last = record.payload[record.length - 1];

		(void)last;
		fuzz_reach(kind == RECORD_CHANGES  ? CHANGES
			   : kind == RECORD_WINDOW ? WINDOW
			   : kind == RECORD_EPOCH  ? EPOCH
						   : OTHER);
	}
	if (r.bad)
		fuzz_reach(BAD_RECORD);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t available = size < BLOCK_SIZE ? BLOCK_SIZE : size;
	void *batch = fuzz_frame(data, size, available);
	struct batch_header peeked, header;
	int rc;

	format_waive_checksums = true;
	rc = batch_peek(&peeked, batch);
	assert(!rc || rc == -EBADMSG || rc == -ENOTSUP);
	fuzz_reach(!rc ? GOOD : rc == -ENOTSUP ? LATER : REFUSED);
	if (!rc && batch_decode(&header, batch, available)) {
		assert(peeked.length > available);
		fuzz_reach(CUT);
	} else if (!rc) {
		assert(header.length >= BATCH_HEADER_SIZE && header.length <= available);
		walk(batch, header.length);
	}
	free(batch);
	return 0;
}
