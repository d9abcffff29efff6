/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the files of the write path share: stream.c (appends), row.c (a row's way to its devices),
 * refer.c (settling, referring, releasing), close.c (the end of an open segment), erasure.c.
 */
#ifndef MILLRACE_POOL_ROW_H
#define MILLRACE_POOL_ROW_H

#include "pool/internal.h"

/* One who waits for a row to be on its devices, or for row memory; on the waiter's stack. */
struct row_wait {
	struct event event; /* first: pool->row_waiter points here */
	struct row_wait *next;
};

/* Every struct row is one of these. */
struct open_row {
	struct row row;
	struct pool *pool;
	size_t bytes; /* of all cells */
	size_t lent; /* of them in lent memory */
	uint32_t *sums; /* of all chunks, until they are copied to segment->sums */
	/* under segment->lock: */
	bool open; /* a stream still hands out places in it */
	bool kept; /* settled while open: its memory stays until its bytes are flushed */
	struct row_wait *waiters;
};

static inline struct open_row *open_row(struct row *row)
{
	return (struct open_row *)row;
}

/* Values of segment->row_done[]. */
enum { ROW_NOT_DONE, ROW_IS_DONE, ROW_IS_LOST };

static inline unsigned segment_chunks(const struct segment *s)
{
	return s->layout.data + s->layout.parity;
}

/* --- row.c -------------------------------------------------------------------------------- */

/* A row with unfilled memory, referenced once (for segment->rows); not yet in segment->rows. */
int row_create(struct pool *pool, struct segment *segment, uint32_t index, struct row **row);
/* The same, with the whole row's data in memory that is lent. */
int row_create_lent(struct pool *pool, struct segment *segment, struct loan *loan, uint8_t *memory,
	struct row **row);
static inline uint8_t *row_cell(const struct row *row, unsigned chunk)
{
	const struct layout *layout = &row->segment->layout;

	return chunk < layout->data ? row->memory + (size_t)chunk * layout->cell
				    : row->parity + (size_t)(chunk - layout->data) * layout->cell;
}
/* Under segment->lock, not shared yet, or not at all: into segment->rows. */
void row_install(struct row *row);
/* Counts a row that no stream fills any more against the bound of row memory. */
void row_count(struct row *row);
/* One copier, or the stream, is through with the row; the last one computes and submits it. */
void row_release(struct row *row);
/* Checksums, parity, submission of a row that is complete. Does not wait. */
void row_submit(struct row *row);
/* Whether a new row of this many bytes must wait for others to be written, and the waiting. */
bool row_memory_full(struct pool *pool, size_t bytes);
int row_memory_wait(struct pool *pool, size_t bytes);
/* Waits until no write of a row is under way and no completion of one looks at the pool any more:
 * before the pool is freed. */
int pool_drain_rows(struct pool *pool);

/* The arrays of a segment that is open: rows, sums, row_done. */
int segment_open_arrays(struct segment *segment);
/* A closed one has none: millions of rows need no memory. Rows are let go of. */
void segment_drop_arrays(struct segment *segment);
/* How many rows a segment has in which places were handed out. */
uint32_t segment_rows_used(struct segment *segment);
/* Waits until rows [0, rows) have been written or lost; -EIO when one is lost. */
int segment_wait_rows(struct pool *pool, struct segment *segment, uint32_t rows);
/* Rows [0, rows) are flushed: those that were kept in memory until then are let go. */
void segment_rows_flushed(struct segment *segment, uint32_t rows);
/* The members of its chunks that are not used any more, and the others as a set of bits by id. */
unsigned segment_members_gone(struct pool *pool, struct segment *segment);
uint64_t segment_members(struct pool *pool, struct segment *segment);
bool segment_on_failing(struct pool *pool, struct segment *segment);

/* --- stream.c ----------------------------------------------------------------------------- */

/* Ends row `index` of a segment if a stream still fills it. Does not wait. */
void segment_end_row(struct pool *pool, struct segment *segment, uint32_t index);
/* Frees a stream without writing what it holds: the pool is let go of. */
void stream_abandon(struct stream *stream);

/* --- refer.c ------------------------------------------------------------------------------ */

#define ROW_KEY_MAX 17u
/* Keys of the pool's environment for a row: its checksums, and a run of its tail. */
struct bytes key_sums(uint8_t key[ROW_KEY_MAX], uint64_t segment, uint32_t row);
struct bytes key_tail(uint8_t key[ROW_KEY_MAX], uint64_t segment, uint32_t row, uint32_t offset);
struct bytes key_segment(uint8_t key[ROW_KEY_MAX], uint8_t kind, uint64_t segment);
/* Deletes keys that begin with `prefix`, *budget of them at most; *budget is what is left of it. */
int keys_delete(struct txn *txn, struct bytes prefix, unsigned *budget);

/* --- close.c ------------------------------------------------------------------------------ */

/* Deletes checksums and tails that a crash in the middle of a close left for segments that are
 * closed or gone. After opening for writing. Waits; not under a transaction. */
int segment_drop_leftovers(struct pool *pool);

/* --- erasure.c ---------------------------------------------------------------------------- */

void erasure_destroy(struct pool *pool);

#endif
