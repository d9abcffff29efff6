/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Reads. Each part is cut into pieces, and each piece (read_piece.c) is one read of one device:
 *
 *   rows still in memory          copied inside pool_read()
 *   a moved segment               in parts where its remaps say (read_moved.c)
 *   a piece                       bytes from the device and checksums, at the same time
 *   -> both there                 each block against its checksum
 *   -> a block is bad, or unreadable
 *                                 rebuilt from the other chunks and proven (rebuild.c), given to
 *                                 the caller, written back (read_repair.c)
 *   a piece without a device      rebuilt, together with the pieces that are the same blocks of
 *                                 other chunks: what is read for it serves them too; the same
 *                                 where the device has stalled (hedge.h)
 *   -> no answer in time          another piece, with a buffer of its own, takes its place and is
 *                                 rebuilt; it stays, with its memory, for the answer
 *   -> delivered                  what went through a bounce buffer is copied out
 *   -> not to be had              a line in the log, -EIO for the whole read
 *
 * What the block cache has of a part is copied inside pool_read() before all that, without a look
 * at the segment; the rest is what is read then, and kept there once it is proven.
 *
 * Bytes go straight to the caller's memory where that is aligned and the block whole. A row leaves
 * memory, and checksums leave it for the chunks, under segment->lock and only when what replaces
 * them is readable; so one look under that lock says where a row's bytes are, and the answer "on
 * its devices" stays true.
 */
#include "pool/block_cache.h"
#include "pool/read.h"
#include "pool/row.h"

#include <assert.h>
#include <inttypes.h>

/* From here on a read is one of those that follow each other through a large file. */
#define LARGE_READ (256u << 10)

void read_put(struct pool_read *read)
{
	if (atomic_fetch_sub(&read->pending, 1) != 1)
		return;
	read->result = atomic_load(&read->failed);
	if (read->late)
		read_renew_memory(read);
	moved_free(read);
	read->done(read);
}

void read_fail(struct pool_read *read)
{
	atomic_store(&read->failed, -EIO);
}

/* --- parts -------------------------------------------------------------------------------- */

/* A run of a segment's linear space that is all in one row's memory, or all on the devices. */
struct run {
	uint64_t from, to;
	struct row *row; /* with a reference, or NULL */
};

static bool rows_closed(const struct segment *segment)
{
	return !segment->sums && segment->row.state == SEGMENT_CLOSED;
}

/* Under segment->lock: the end of the rows from `index` on that are on the devices. */
static uint32_t rows_on_devices(const struct segment *segment, uint32_t index)
{
	if (rows_closed(segment))
		return segment->row.rows;
	if (!segment->sums)
		return index;
	while (index < segment->layout.rows && segment->row_done[index] == ROW_IS_DONE &&
		!segment->rows[index])
		index++;
	return index;
}

/* The run that starts at run->from; false: nothing is there. */
static bool run_find(struct segment *segment, uint64_t end, struct run *run)
{
	uint64_t row_bytes = segment_row_bytes(segment);
	uint32_t index = (uint32_t)(run->from / row_bytes), last = index + 1;

	run->row = NULL;
	pthread_mutex_lock(&segment->lock);
	if (!rows_closed(segment) && segment->rows)
		run->row = segment->rows[index];
	if (run->row)
		atomic_fetch_add(&run->row->references, 1);
	else
		last = rows_on_devices(segment, index);
	pthread_mutex_unlock(&segment->lock);
	run->to = last * row_bytes < end ? last * row_bytes : end;
	return last > index;
}

static void run_copy(const struct read_part *part, struct segment *segment, const struct run *run)
{
	uint64_t row_start = run->row->index * segment_row_bytes(segment);

	/* The data cells come first in a row's memory, so its linear space is as it stands. */
	if (part->into) {
		memcpy((uint8_t *)part->into + (run->from - part->extent.offset),
			run->row->memory + (run->from - row_start), run->to - run->from);
		pool_count_copied(segment->pool, run->to - run->from);
	}
	row_put(run->row);
}

static bool extent_fits(const struct segment *segment, const struct extent *extent)
{
	uint64_t size = segment->layout.rows * segment_row_bytes(segment);

	return extent->offset <= size && extent->length <= size - extent->offset;
}

/* The bytes from..to of the segment, which lie in the part. */
bool segment_read(struct pool_read *read, const struct read_part *part, struct segment *segment,
	uint64_t from, uint64_t end, struct io_batch *batch)
{
	struct run run = {.to = from};

	if (!extent_fits(segment, &part->extent))
		goto nothing;
	while (run.to < end) {
		run.from = run.to;
		if (!run_find(segment, end, &run))
			goto nothing;
		if (run.row)
			run_copy(part, segment, &run);
		else if (!pieces_read(read, part, segment, run.from, run.to, batch))
			return false;
	}
	return true;
nothing:
	log_error("segment %" PRIx64 ": bytes %" PRIu64 " to %" PRIu64
		  " were asked for, and not all of them were written",
		segment->id, part->extent.offset, part->extent.offset + part->extent.length);
	return false;
}

void part_read(struct pool_read *read, const struct read_part *part, uint64_t from, uint64_t to,
	struct io_batch *batch)
{
	struct segment *segment = segment_get(read->pool, part->extent.segment);

	if (!segment) {
		log_error("segment %" PRIx64 ": there is none; %" PRIu64
			  " bytes of it cannot be read",
			part->extent.segment, to - from);
		read_fail(read);
		return;
	}
	if (!(segment->remap ? moved_read : segment_read)(read, part, segment, from, to, batch))
		read_fail(read);
	segment_put(segment);
}

static void part_start(struct pool_read *read, const struct read_part *part, struct io_batch *batch)
{
	const struct extent *extent = &part->extent;

	if (extent->length == 0)
		return;
	if (read->looks && part->into && extent->offset <= CACHED_MAX &&
		extent->length <= CACHED_MAX - extent->offset)
		part_read_cached(read, part, batch);
	else
		part_read(read, part, extent->offset, extent->offset + extent->length, batch);
}

static bool is_large(const struct pool_read *read)
{
	uint64_t length = 0;

	for (unsigned i = 0; i < read->part_count; i++)
		length += read->parts[i].extent.length;
	return length >= LARGE_READ;
}

static void read_init(struct pool *pool, struct pool_read *read)
{
	read->pool = pool;
	read->moved = NULL;
	read->late = NULL;
	atomic_init(&read->pending, 1);
	atomic_init(&read->failed, 0);
	read->looks = read->cached && block_cache_is_on(pool->cache);
	read->large = read->looks && is_large(read);
}

void pool_read(struct pool *pool, struct pool_read *read)
{
	struct io_batch batch = {.engine = pool->engine};

	read_init(pool, read);
	for (unsigned i = 0; i < read->part_count; i++)
		part_start(read, &read->parts[i], &batch);
	batch_submit(&batch);
	read_put(read);
}

static void wait_done(struct pool_read *read)
{
	event_signal(read->data, read->result);
}

/* The read would go on using the caller's stack. */
static int wait_for_read(struct event *event)
{
	int result = event_wait(event);

	assert(atomic_load(&event->state) == 1 && "a read is waited for on a paused host");
	return result;
}

int pool_read_wait(struct pool *pool, struct read_part *parts, unsigned part_count)
{
	struct event event;
	struct pool_read read = {
		.parts = parts, .part_count = part_count, .done = wait_done, .data = &event};

	event_init(&event, pool->engine);
	pool_read(pool, &read);
	return wait_for_read(&event);
}

/* --- samples ------------------------------------------------------------------------------ */

static bool is_sample(struct segment *segment)
{
	bool is;

	pthread_mutex_lock(&segment->lock);
	is = !segment->remap && rows_on_devices(segment, 0) > 0;
	pthread_mutex_unlock(&segment->lock);
	return is;
}

/* The next in the table, behind that of the last time; with a reference, or NULL. */
static struct segment *find_sample(struct pool *pool)
{
	struct segment *found = NULL;

	pthread_rwlock_rdlock(&pool->table_lock);
	for (unsigned i = 0; !found && i < pool->table_size; i++) {
		found = pool->table[atomic_fetch_add(&pool->sampled, 1) % pool->table_size];
		while (found && !is_sample(found))
			found = found->hash_next;
	}
	if (found)
		atomic_fetch_add(&found->references, 1);
	pthread_rwlock_unlock(&pool->table_lock);
	return found;
}

int pool_read_sample(struct pool *pool)
{
	struct io_batch batch = {.engine = pool->engine};
	struct segment *segment = find_sample(pool);
	struct read_part part = {.extent = {.length = BLOCK_SIZE}};
	struct event event;
	struct pool_read read = {
		.parts = &part, .part_count = 1, .done = wait_done, .data = &event};
	int result;

	if (!segment)
		return -ENOENT;
	part.extent.segment = segment->id;
	event_init(&event, pool->engine);
	read_init(pool, &read);
	if (!segment_read(&read, &part, segment, 0, BLOCK_SIZE, &batch))
		read_fail(&read);
	batch_submit(&batch);
	read_put(&read);
	result = wait_for_read(&event);
	segment_put(segment);
	return result;
}
