/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Remaps: where the bytes of segments are that were emptied though images name them.
 *
 * An image never changes, so what it names has to be found under the old name: a segment that is
 * "moved" has a row in the table, with what is live of it, and no chunks; rows of its own
 * (KEY_REMAP) say which runs of it are where now. They always name a segment of the same volume
 * that has chunks: when that one is emptied in turn, the rows that name it are written anew, so
 * that a look is one step. A place that rows name is named by nothing else. A moved segment goes
 * with its volume, and its places with it.
 *
 * In memory the runs are a sorted array, never changed while the segment is in the table: another
 * struct takes the place of this one, and who has a reference goes on with what it has.
 *
 * All of them are in memory, and in the pool's own image, which each checkpoint writes in full. So
 * they are bounded twice: a segment that would take too many is left where it is
 * (pool_remap_most()), and where all of them have grown too many none is moved any more
 * (remap_is_crowded()).
 */
#ifndef MILLRACE_POOL_REMAP_H
#define MILLRACE_POOL_REMAP_H

#include "pool/internal.h"

struct remap_run {
	uint64_t offset, length; /* in the moved segment */
	uint64_t segment, to; /* where its first byte is */
};

struct remap {
	unsigned count;
	struct remap_run runs[]; /* sorted, not overlapping */
};

/* One that will have up to `count` runs, and has none; NULL: no memory. */
struct remap *remap_new(unsigned count);

#define REMAP_ROW_SIZE 25u
void remap_run_encode(const struct remap_run *run, struct writer *w);
/* All but `offset`, which the key has. -EBADMSG. */
int remap_run_decode(struct remap_run *run, struct reader *r);

/* The first run that ends behind `offset`; NULL. */
const struct remap_run *remap_find(const struct remap *remap, uint64_t offset);
/* Moved segments of a volume (0: of all), each with a reference: *count of them; free() the array.
 */
int remap_list(struct pool *pool, uint32_t volume, struct segment ***segments, unsigned *count);
/* The remaps of the whole pool take what they may. Any thread. */
bool remap_is_crowded(struct pool *pool);

/* The runs of one moved segment, as its rows say. -EBADMSG, -ENOMEM. */
int remap_read(struct pool *pool, struct txn *view, uint64_t segment, struct remap **remap);
/* After replay: gives moved segments, which are in the table, their runs; those that have no rows,
 * an empty array: nothing of them can be read, and the check tells. -EBADMSG, with a line in the
 * log: rows that contradict each other. */
int remap_load(struct pool *pool, struct txn *view);
/* Adds to *wrong how many segments have runs that name nothing, or not what is live there. Nothing
 * changes meanwhile. */
int remap_check(struct pool *pool, uint64_t *wrong);

#endif
