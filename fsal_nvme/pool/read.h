/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the files of the read path share: read.c (reads), read_piece.c (of one device each),
 * read_cached.c (what the block cache has not), read_split.c (which blocks of which chunk an extent
 * is), read_repair.c (counting, logging and mending what is broken), pages.c (checksums), rebuild.c
 * (blocks from the other chunks) and check.c.
 *
 * Parity is computed byte by byte over cells of the same row, so block b of all chunks of a segment
 * belongs together, whatever the row. A "band" is a run of such blocks over all chunks, up to
 * SPAN_BLOCKS long, so that a set of its blocks is the bits of one number.
 *
 * All of it runs on engine threads and never waits, but for pool_read_wait() and pool_check(). A
 * callback is the last thing that is done with a request: the pool may be closed as soon as the
 * last read has called back. Repairs alone go on behind that; repairs_end() waits for them.
 */
#ifndef MILLRACE_POOL_READ_H
#define MILLRACE_POOL_READ_H

#include "pool/hedge.h"

#define SPAN_BLOCKS 64u
#define BATCH_IOS 32u

static inline uint64_t low_bits(unsigned count)
{
	return count >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1;
}

static inline unsigned segment_width(const struct segment *segment)
{
	return segment->layout.data + segment->layout.parity;
}

/* Requests on their way to one io_submit(). */
struct io_batch {
	struct engine *engine;
	unsigned count;
	struct io *ios[BATCH_IOS];
};

static inline void batch_submit(struct io_batch *batch)
{
	unsigned count = batch->count;

	batch->count = 0;
	io_submit(batch->engine, batch->ios, count);
}

static inline void batch_add(struct io_batch *batch, struct io *io)
{
	if (batch->count == BATCH_IOS)
		batch_submit(batch);
	batch->ios[batch->count++] = io;
}

/* --- read_split.c ------------------------------------------------------------------------- */

/* A run of bytes of one chunk, counted from the start of its first cell; it touches at most
 * SPAN_BLOCKS blocks, all of one checksum page. */
struct cut {
	unsigned chunk;
	uint64_t from, to;
};

/* Cuts a run of a segment's linear space, chunk by chunk; neighbouring rows in one cut. */
struct cutter {
	const struct layout *layout;
	uint64_t offset, end; /* linear */
	unsigned next_chunk;
	struct cut rest; /* of the current chunk */
};
void cutter_init(
	struct cutter *cutter, const struct layout *layout, uint64_t offset, uint64_t length);
bool cutter_next(struct cutter *cutter, struct cut *cut);
/* The place in the segment's linear space of byte `at` of a data chunk's cells. */
uint64_t chunk_to_linear(const struct layout *layout, unsigned chunk, uint64_t at);

/* --- read.c, read_piece.c, read_cached.c -------------------------------------------------- */

/* One of what a read waits for is there; the last one ends it. */
void read_put(struct pool_read *read);
/* It is going to end with -EIO. */
void read_fail(struct pool_read *read);
/* Of a read that has read->late and nothing under way: goes over to memory that nobody writes to.
 */
void read_renew_memory(struct pool_read *read);
/* Starts to read the bytes from..to of the segment, which are the part's, from devices. */
bool pieces_read(struct pool_read *read, const struct read_part *part, struct segment *segment,
	uint64_t from, uint64_t to, struct io_batch *batch);

/* Starts to read the bytes from..to of the part's segment, which are the part's, from rows in
 * memory and devices. */
void part_read(struct pool_read *read, const struct read_part *part, uint64_t from, uint64_t to,
	struct io_batch *batch);
/* The same bytes of a segment that has them; `part` may be one of a moved segment's. */
bool segment_read(struct pool_read *read, const struct read_part *part, struct segment *segment,
	uint64_t from, uint64_t to, struct io_batch *batch);
/* Takes what the block cache has, and starts to read the rest. */
void part_read_cached(struct pool_read *read, const struct read_part *part, struct io_batch *batch);

/* --- read_moved.c ------------------------------------------------------------------------- */

/* A part of what was asked for in a moved segment, as it is read: with the offset that it has in
 * the segment where it is, and the id of the one that it was asked for in. */
struct moved_part {
	struct read_part part;
	uint64_t offset; /* that was asked for */
};
/* Starts to read the bytes from..to of a moved segment. */
bool moved_read(struct pool_read *read, const struct read_part *part, struct segment *segment,
	uint64_t from, uint64_t to, struct io_batch *batch);
void moved_free(struct pool_read *read);

/* --- pages.c ------------------------------------------------------------------------------ */

/* Asks for the checksums of a run of blocks of one chunk, all in one page. Kept by the asker until
 * sums_get() returns something else than -EINPROGRESS, or until done(). */
struct sums_want {
	struct pool *pool;
	struct segment *segment; /* the asker holds a reference */
	uint64_t block;
	uint32_t *sums; /* `count` of them are filled in */
	unsigned chunk, count;
	bool repair; /* broken copies of the page may be rewritten */
	void (*done)(struct sums_want *want, int result); /* on an engine thread */
	struct sums_want *next; /* the cache's */
};
/* 0: they are there; -EINPROGRESS: done() will be called, or is being; -EIO, -ENOMEM. */
int sums_get(struct sums_want *want);

/* Page `index` of a chunk, but for its checksums and how many there are. */
void page_expect(struct pool *pool, const struct segment *segment, unsigned chunk, uint32_t index,
	struct checksum_page *page);
/* Whether a decoded page is the one of that place of a closed segment. */
bool page_belongs(struct pool *pool, const struct segment *segment, unsigned chunk, uint32_t index,
	const struct checksum_page *page);
/* A copy of what the cache has of a page; false: nothing. */
bool page_cache_peek(struct pool *pool, const struct segment *segment, unsigned chunk,
	uint32_t index, struct checksum_page *page);
/* The chunk that stores copy `copy` (0, 1, ...) of the pages of `of`, itself first; -1 behind the
 * last one. */
int page_copy_chunk(const struct segment *segment, unsigned of, unsigned copy);

/* --- read_repair.c ------------------------------------------------------------------------ */

/* Repairs in flight; in struct page_cache, which is what the read path keeps for a pool. */
struct repairs {
	_Atomic unsigned count; /* and one until repairs_end() */
	atomic_bool ended;
	struct event idle;
};
struct repairs *page_cache_repairs(struct pool *pool);
void repairs_begin(struct repairs *repairs, struct engine *engine);
/* There are no more from now on; waits for all of them. No reads are under way. May be repeated. */
void repairs_end(struct repairs *repairs);

bool chunk_usable(struct pool *pool, const struct segment *segment, unsigned chunk);
/* On a device that is there, but was dropped, or is not whole. What it has may be old, or slow to
 * come: it is asked when all others have not been enough, and believed where checksums prove it. */
bool chunk_last_resort(struct pool *pool, const struct segment *segment, unsigned chunk);
/* Counts, and logs now and then, what a chunk's device did to a run of its blocks. */
void chunk_read_failed(struct pool *pool, const struct segment *segment, unsigned chunk,
	uint64_t offset, unsigned blocks, int error);
void chunk_rotten(struct pool *pool, const struct segment *segment, unsigned chunk, uint64_t offset,
	unsigned blocks);
/* Logs that nobody can give these bytes back; `block` of the chunk's cells. */
void chunk_lost(struct pool *pool, const struct segment *segment, unsigned chunk, uint64_t block,
	const char *why);

/*
 * The rule of repairs: bytes are written back to where they belong only when a checksum has proven
 * them, on a usable device, by a pool that owns it and has not failed, and while a reference on the
 * segment is held; so slots of a freed segment may be given away only when its last reference is
 * gone. A repair that fails is a write that fails: the device is dropped.
 */
/* Copies `length` bytes and writes them to `offset` of the chunk's device some time soon; not at
 * all where the rule, memory, or the number of repairs in flight forbids. */
void repair_later(struct pool *pool, struct segment *segment, unsigned chunk, uint64_t offset,
	const void *bytes, size_t length);
/* The same for the blocks `bits` of a run that begins at `block` of the chunk's cells. */
void repair_blocks_later(struct pool *pool, struct segment *segment, unsigned chunk, uint64_t block,
	const uint8_t *bytes, uint64_t bits);
/* The same at once; `bytes` is aligned. Waits. */
int repair_now(struct pool *pool, struct segment *segment, unsigned chunk, uint64_t offset,
	void *bytes, size_t length);
/* The same for the blocks `bits` of a run; how many of them were written. */
unsigned repair_blocks_now(struct pool *pool, struct segment *segment, unsigned chunk,
	uint64_t block, uint8_t *bytes, uint64_t bits);

/* --- check.c ------------------------------------------------------------------------------ */

/* What the header of a chunk of a closed segment says. */
void chunk_header_expect(struct pool *pool, const struct segment *segment, unsigned chunk,
	struct chunk_header *header);
/* Whether one that was read does. */
bool chunk_header_right(const struct chunk_header *want, const struct chunk_header *got);
/* Mends the checksum pages of a closed segment; `report` counts what it finds. Waits. */
int pages_mend(struct pool *pool, struct segment *segment, struct pool_check_report *report);
/* The next blocks of a segment's chunks that are on their devices, at or behind *block: as many as
 * one band takes, or 0; *block moves over those that are not. */
unsigned band_next(struct segment *segment, uint64_t *block);
/* How many such blocks all its chunks have. */
uint64_t segment_blocks(struct segment *segment);

/* --- rebuild.c ---------------------------------------------------------------------------- */

struct band;
/* One chunk's part in a band. */
struct source {
	struct hedged hedged;
	struct sums_want want;
	struct band *band;
	uint8_t *memory; /* band->count blocks, or NULL */
	uint8_t *late_memory; /* the same, until the answer is there */
	_Atomic unsigned waiting; /* for bytes, for checksums */
	int result, sums_result;
	bool asked;
	uint64_t good; /* blocks in memory that their checksums have proven */
	uint32_t sums[SPAN_BLOCKS];
};
struct band {
	struct pool *pool;
	struct segment *segment; /* with a reference */
	uint64_t block; /* of the chunks' cells; all in one page */
	unsigned count;
	bool repair; /* of checksum pages on the way */
	bool last_resort; /* dropped devices are asked, too */
	bool hedged; /* devices that have stalled are not asked, and late ones not waited for */
	_Atomic unsigned references; /* one, and one for each answer that is late */
	_Atomic unsigned pending;
	void (*done)(struct band *band);
	void *data;
	struct source sources[]; /* data + parity */
};
/* NULL: no memory. */
struct band *band_create(
	struct pool *pool, struct segment *segment, uint64_t block, unsigned count);
void band_free(struct band *band);
/* Reads the blocks and checksums of these chunks (a bit each) and proves them, then calls done(),
 * on an engine thread, or before it returns. */
void band_read(struct band *band, uint32_t chunks, void (*done)(struct band *band));
/*
 * Rebuilds the blocks `bits` of a chunk from proven ones of others, in the chunk's own part of the
 * band (its other blocks are left alone); those that its checksums have `proven` are good from then
 * on. The chunk must have been read, be it in vain. 0 or -ENOMEM.
 */
int band_rebuild(struct band *band, unsigned chunk, uint64_t bits, uint64_t *proven);
/*
 * Makes all blocks of a parity chunk of which nobody has the checksums, in its own part of the
 * band. -EIO: not all blocks of data are proven; or -ENOMEM.
 */
int band_make_parity(struct band *band, unsigned chunk);
/* The blocks that are not what `sums` say. */
uint64_t blocks_bad(const uint8_t *bytes, const uint32_t *sums, unsigned count);

/* Blocks of some chunks, read, or from as many of the others as it takes. */
struct rebuild {
	struct band *band; /* after done(): band->sources[chunk].good says which are right */
	uint64_t wanted[POOL_WIDTH_MAX];
	uint32_t answered; /* chunks that were asked before, in vain */
	void (*done)(struct rebuild *rebuild); /* on an engine thread, or before it was started */
	void *data;
};
/* Of at most SPAN_BLOCKS blocks of one page. NULL: no memory. */
struct rebuild *rebuild_create(
	struct pool *pool, struct segment *segment, uint64_t block, unsigned count);
/* All blocks of the chunk: read if it can be. */
void rebuild_want(struct rebuild *rebuild, unsigned chunk);
/* Blocks that its device answered wrong, or with the error `result`; `sums` of the whole band. */
void rebuild_want_again(
	struct rebuild *rebuild, unsigned chunk, uint64_t bits, const uint32_t *sums, int result);
void rebuild_start(struct rebuild *rebuild, void (*done)(struct rebuild *rebuild), void *data);
/* done() must have been called, or rebuild_start() not. */
void rebuild_free(struct rebuild *rebuild);

#endif
