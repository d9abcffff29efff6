/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The owner's sign of life. The pool's uuid is all zeros here. */
#include "fuzz.h"

#include <errno.h>

#include "pool/format.h"

enum { GOOD, REFUSED, LATER };

struct fuzz_type fuzz_types[] = {
	{"a good beat", 0}, {"refused", 0}, {"of a later version", 0}, {NULL, 0}};
const size_t fuzz_longest = BLOCK_SIZE;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t pool[16];
	void *block = fuzz_frame(data, size, BLOCK_SIZE);
	struct beat beat, again;
	int rc;

	format_waive_checksums = true;
	rc = beat_decode(&beat, pool, block);
	assert(!rc || rc == -EBADMSG || rc == -ENOTSUP);
	fuzz_reach(!rc ? GOOD : rc == -ENOTSUP ? LATER : REFUSED);
	if (!rc) {
		assert(!beat_encode(&beat, pool, block));
		assert(!beat_decode(&again, pool, block));
		assert(again.epoch == beat.epoch && again.count == beat.count);
	}
	free(block);
	return 0;
}
