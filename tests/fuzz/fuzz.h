/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Fuzzing: one target a file, NAME.c, each with libFuzzer's entry point, so that the same file runs
 * under two engines:
 *
 *   driver.c      in every build: the corpus, then a fixed number of mutations of it from a seed
 *   libFuzzer     cmake -DLIBFUZZER=ON with clang, for as long as one likes
 *
 * Checksums and hashes are waived (format_waive_checksums): what is tried is the code behind them.
 * A decoder may refuse anything; it may not crash, hang, leak, read outside of its input or accept
 * what its encoder cannot say again.
 *
 * Each target has a table of what its decoder knows (record types, states, answers) and counts what
 * its inputs reach. The corpus alone must reach every row: the driver fails otherwise, so that a
 * type that is added is not forgotten here.
 */
#ifndef MILLRACE_FUZZ_H
#define MILLRACE_FUZZ_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct fuzz_type {
	const char *name; /* NULL: the end */
	unsigned long reached;
};

/* Of the target. */
extern struct fuzz_type fuzz_types[];
extern const size_t fuzz_longest; /* bytes of an input */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_reach(unsigned type)
{
	fuzz_types[type].reached++;
}

/*
 * The input as a frame of `size` bytes, zeros behind it (an input ends with its last byte that is
 * not 0); on the heap, where a sanitizer sees its ends. free() it.
 */
static inline void *fuzz_frame(const uint8_t *data, size_t length, size_t size)
{
	uint8_t *frame = calloc(1, size);

	if (!frame)
		abort();
	if (length)
		memcpy(frame, data, length < size ? length : size);
	return frame;
}

#endif
