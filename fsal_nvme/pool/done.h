/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The row of a request that was done in the pool's environment, for done.c and its fuzz test. */
#ifndef MILLRACE_POOL_DONE_H
#define MILLRACE_POOL_DONE_H

#include "common/codec.h"
#include "pool/pool.h"

struct done_row {
	uint64_t epoch;
	struct pool_done done;
};

#define DONE_ROW_SIZE (8 + POOL_SESSION + 4 + 4 + 8)
void done_row_encode(const struct done_row *row, struct writer *w);
int done_row_decode(struct done_row *row, struct reader *r);

#endif
