/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A row on its way to its devices: memory, checksums, parity, writes, and those who wait for it.
 * stream.c tells the whole story.
 *
 * A row that no place is handed out in any more counts against options.row_memory until its writes
 * are done. Whoever hands places out copies its bytes before it waits, so a counted row needs
 * nobody's memory to be written, and the wait for memory ends. Open rows are not counted: there is
 * one a stream at most.
 *
 * References on a row: segment->rows[] holds one, its writes hold one, reads hold one each.
 *
 * A row whose data lies in lent memory is whole from the start. It is written as others are, but
 * that it never keeps its memory longer than its writes and reads do, also where it is lost: who
 * lent the memory waits for it. Lost bytes that are asked for are EIO then.
 */
#include <assert.h>

#include "common/crc32c.h"
#include "pool/row.h"

/* --- memory ------------------------------------------------------------------------------- */

/* All of a row but its cells. */
static struct open_row *row_alloc(struct pool *pool, struct segment *segment, uint32_t index)
{
	unsigned chunks = segment_chunks(segment);
	size_t sums = segment_row_sums(segment) * sizeof(uint32_t);
	struct open_row *o =
		calloc(1, sizeof(*o) + chunks * (sizeof(struct io) + sizeof(uint32_t)) + sums);

	if (!o)
		return NULL;
	o->pool = pool;
	o->bytes = (size_t)chunks * segment->layout.cell;
	o->row.segment = segment;
	o->row.index = index;
	o->row.ios = (struct io *)(o + 1);
	o->row.cell_fill = (uint32_t *)(o->row.ios + chunks);
	o->sums = o->row.cell_fill + chunks;
	atomic_init(&o->row.references, 1);
	atomic_init(&o->row.state, ROW_FILLING);
	return o;
}

int row_create(struct pool *pool, struct segment *segment, uint32_t index, struct row **row)
{
	struct open_row *o = row_alloc(pool, segment, index);

	if (!o)
		return -ENOMEM;
	o->row.memory = buffer_alloc(pool->engine, o->bytes);
	if (!o->row.memory) {
		free(o);
		return -ENOMEM;
	}
	o->row.parity = o->row.memory + segment_row_bytes(segment);
	*row = &o->row;
	return 0;
}

static size_t parity_bytes(const struct open_row *o)
{
	return o->bytes - o->lent;
}

int row_create_lent(struct pool *pool, struct segment *segment, struct loan *loan, uint8_t *memory,
	struct row **row)
{
	struct open_row *o = row_alloc(pool, segment, 0);

	if (!o)
		return -ENOMEM;
	o->lent = segment_row_bytes(segment);
	o->row.parity = buffer_alloc(pool->engine, parity_bytes(o));
	if (!o->row.parity) {
		free(o);
		return -ENOMEM;
	}
	o->row.memory = memory;
	o->row.loan = loan;
	atomic_fetch_add(&loan->users, 1);
	*row = &o->row;
	return 0;
}

void row_install(struct row *row)
{
	struct segment *segment = row->segment;

	assert(row->index < segment->layout.rows && !segment->rows[row->index]);
	segment->rows[row->index] = row;
}

void row_put(struct row *row)
{
	struct open_row *o = open_row(row);

	if (!row || atomic_fetch_sub(&row->references, 1) != 1)
		return;
	if (row->loan) {
		buffer_free(o->pool->engine, row->parity, parity_bytes(o));
		loan_end(row->loan);
	} else {
		buffer_free(o->pool->engine, row->memory, o->bytes);
	}
	free(o);
}

void row_count(struct row *row)
{
	atomic_fetch_add(&open_row(row)->pool->row_bytes, open_row(row)->bytes);
}

static void wake_all(struct row_wait *wait)
{
	while (wait) {
		struct row_wait *next = wait->next;

		event_signal(&wait->event, 0);
		wait = next;
	}
}

/* The last thing that is done with a row, and the last look at the pool: see pool_drain_rows(). */
static void memory_give(struct pool *pool, size_t bytes)
{
	pthread_mutex_lock(&pool->row_lock);
	atomic_fetch_sub(&pool->row_bytes, bytes);
	wake_all(pool->row_waiters);
	pool->row_waiters = NULL;
	pthread_mutex_unlock(&pool->row_lock);
}

bool row_memory_full(struct pool *pool, size_t bytes)
{
	size_t limit = pool->options.row_memory;
	uint64_t used = atomic_load(&pool->row_bytes);

	return used && (used > limit || bytes > limit - used);
}

bool pool_rows_short(struct pool *pool)
{
	return row_memory_full(pool, pool->options.row_memory / 2);
}

static void waiter_remove(struct pool *pool, struct row_wait *wait)
{
	struct row_wait **at = &pool->row_waiters;

	while (*at && *at != wait)
		at = &(*at)->next;
	if (*at)
		*at = wait->next;
}

int row_memory_wait(struct pool *pool, size_t bytes)
{
	struct row_wait wait;
	int rc = 0;

	pthread_mutex_lock(&pool->row_lock);
	while (!rc && row_memory_full(pool, bytes)) {
		event_init(&wait.event, pool->engine);
		wait.next = pool->row_waiters;
		pool->row_waiters = &wait;
		pthread_mutex_unlock(&pool->row_lock);
		rc = event_wait(&wait.event);
		pthread_mutex_lock(&pool->row_lock);
		if (rc)
			waiter_remove(pool, &wait);
	}
	pthread_mutex_unlock(&pool->row_lock);
	return rc;
}

int pool_drain_rows(struct pool *pool)
{
	return row_memory_wait(pool, SIZE_MAX);
}

/* --- written ------------------------------------------------------------------------------ */

/* Marks it in its segment; true when segment->rows[] has let go of it. */
static bool mark_done(struct open_row *o, bool lost, struct row_wait **waiters)
{
	struct segment *segment = o->row.segment;
	uint32_t index = o->row.index;
	bool dropped;

	pthread_mutex_lock(&segment->lock);
	atomic_store(&o->row.state, lost ? ROW_LOST : ROW_WRITTEN);
	segment->row_done[index] = lost ? ROW_IS_LOST : ROW_IS_DONE;
	while (segment->rows_written < segment->layout.rows &&
		segment->row_done[segment->rows_written] == ROW_IS_DONE)
		segment->rows_written++;
	*waiters = o->waiters;
	o->waiters = NULL;
	dropped = (!lost || o->row.loan) && !o->kept && segment->rows[index] == &o->row;
	if (dropped)
		segment->rows[index] = NULL;
	pthread_mutex_unlock(&segment->lock);
	return dropped;
}

static void row_complete(struct open_row *o)
{
	struct segment *segment = o->row.segment;
	struct pool *pool = o->pool;
	size_t bytes = o->bytes;
	unsigned failed = atomic_load(&o->row.lost);
	bool lost = failed > segment->layout.parity;
	struct row_wait *waiters;

	if (mark_done(o, lost, &waiters))
		row_put(&o->row);
	if (lost && failed <= POOL_WIDTH_MAX)
		log_error("pool %s: segment %llx: row %u is lost: %u of its writes failed",
			pool->label.name, (unsigned long long)segment->id, o->row.index, failed);
	row_put(&o->row);
	segment_put(segment);
	wake_all(waiters);
	memory_give(pool, bytes);
}

static void chunk_written(struct io *io)
{
	struct open_row *o = io->data;
	struct segment *segment = o->row.segment;
	struct member *member = segment_member(o->pool, segment, (unsigned)(io - o->row.ios));

	if (!io->result)
		atomic_fetch_add(&member->written, 1);
	else
		member_failed(o->pool, member, io->result);
	/* After a loss of power no device is to blame, and nothing is known of any chunk. */
	if (io->result)
		atomic_fetch_add(&o->row.lost, io->result == -ESHUTDOWN ? POOL_WIDTH_MAX + 1u : 1u);
	if (atomic_fetch_sub(&o->row.pending, 1) == 1)
		row_complete(o);
}

/* --- complete ----------------------------------------------------------------------------- */

static void checksum_chunk(struct open_row *o, unsigned chunk)
{
	const struct layout *layout = &o->row.segment->layout;
	const uint8_t *bytes = row_cell(&o->row, chunk);

	for (uint32_t i = 0; i < layout->blocks; i++)
		o->sums[chunk * layout->blocks + i] =
			crc32c(bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
}

/* Zeroes what was not handed out, adds parity and checksums. */
static int row_compute(struct open_row *o)
{
	const struct layout *layout = &o->row.segment->layout;
	uint8_t *cells[POOL_WIDTH_MAX];
	int rc;

	for (unsigned i = 0; i < layout->data + layout->parity; i++)
		cells[i] = row_cell(&o->row, i);
	for (unsigned i = 0; i < layout->data; i++)
		memset(cells[i] + o->row.cell_fill[i], 0, layout->cell - o->row.cell_fill[i]);
	rc = erasure_encode(
		o->pool, segment_code(o->row.segment), layout->cell, cells, cells + layout->data);
	for (unsigned i = 0; i < layout->data + layout->parity; i++)
		checksum_chunk(o, i);
	return rc;
}

static void publish_sums(struct open_row *o)
{
	struct segment *segment = o->row.segment;
	uint32_t count = segment_row_sums(segment);

	pthread_mutex_lock(&segment->lock);
	memcpy(segment->sums + (size_t)o->row.index * count, o->sums, count * sizeof(uint32_t));
	pthread_mutex_unlock(&segment->lock);
}

/* A write for each chunk on a member that is in use; the others are lost from the start. */
static unsigned prepare_writes(struct open_row *o, struct io **list)
{
	struct segment *segment = o->row.segment;
	const struct layout *layout = &segment->layout;
	unsigned count = 0;

	for (unsigned i = 0; i < segment_chunks(segment); i++) {
		struct member *member = segment_member(o->pool, segment, i);
		struct io *io = &o->row.ios[i];

		if (!member_usable(member)) {
			atomic_fetch_add(&o->row.lost, 1);
			continue;
		}
		io_prepare(io, IO_WRITE, member->device,
			segment_block_offset(
				o->pool, segment, i, (uint64_t)o->row.index * layout->blocks),
			row_cell(&o->row, i), layout->cell);
		io->done = chunk_written;
		io->data = o;
		list[count++] = io;
	}
	return count;
}

void row_submit(struct row *row)
{
	struct open_row *o = open_row(row);
	struct io *list[POOL_WIDTH_MAX];
	unsigned count = 0;

	atomic_fetch_add(&row->references, 1);
	atomic_fetch_add(&row->segment->references, 1);
	atomic_store(&row->state, ROW_WRITING);
	if (row_compute(o))
		atomic_fetch_add(&row->lost, POOL_WIDTH_MAX + 1);
	else
		count = prepare_writes(o, list);
	publish_sums(o);
	atomic_store(&row->pending, count);
	if (count)
		io_submit(o->pool->engine, list, count);
	else
		row_complete(o);
}

void row_release(struct row *row)
{
	if (atomic_fetch_sub(&row->copying, 1) == 1)
		row_submit(row);
}

/* --- the rows of a segment ---------------------------------------------------------------- */

int segment_open_arrays(struct segment *segment)
{
	uint32_t rows = segment->layout.rows;
	uint32_t *sums = calloc((size_t)rows * segment_row_sums(segment), sizeof(*sums));
	uint8_t *done = calloc(rows, 1);
	struct row **in_memory = calloc(rows, sizeof(struct row *));

	if (!sums || !done || !in_memory) {
		free(sums);
		free(done);
		free(in_memory);
		return -ENOMEM;
	}
	pthread_mutex_lock(&segment->lock);
	assert(!segment->sums && !segment->row_done && !segment->rows);
	segment->sums = sums;
	segment->row_done = done;
	segment->rows = in_memory;
	pthread_mutex_unlock(&segment->lock);
	return 0;
}

void segment_drop_arrays(struct segment *segment)
{
	struct row **rows;
	uint32_t *sums;
	uint8_t *done;

	pthread_mutex_lock(&segment->lock);
	rows = segment->rows;
	sums = segment->sums;
	done = segment->row_done;
	segment->rows = NULL;
	segment->sums = NULL;
	segment->row_done = NULL;
	pthread_mutex_unlock(&segment->lock);
	for (uint32_t i = 0; rows && i < segment->layout.rows; i++)
		row_put(rows[i]);
	free(rows);
	free(sums);
	free(done);
}

uint32_t segment_rows_used(struct segment *segment)
{
	uint32_t used;

	pthread_mutex_lock(&segment->lock);
	used = segment->rows_written;
	for (uint32_t i = used; segment->rows && i < segment->layout.rows; i++)
		if (segment->rows[i] || segment->row_done[i])
			used = i + 1;
	pthread_mutex_unlock(&segment->lock);
	return used;
}

/* Joins those who wait for the first row of [*from, rows) that is neither written nor lost; false
 * when there is none. */
static bool wait_for_next(
	struct segment *segment, uint32_t *from, uint32_t rows, bool *lost, struct row_wait *wait)
{
	struct open_row *o = NULL;

	pthread_mutex_lock(&segment->lock);
	if (!segment->sums) /* closed */
		*from = rows;
	for (; *from < rows; ++*from) {
		if (*from < segment->rows_written)
			continue;
		o = open_row(segment->rows[*from]);
		if (!segment->row_done[*from] && o)
			break;
		*lost |= segment->row_done[*from] != ROW_IS_DONE;
		o = NULL;
	}
	if (o) {
		wait->next = o->waiters;
		o->waiters = wait;
	}
	pthread_mutex_unlock(&segment->lock);
	return o;
}

/* After a wait that failed (a simulated world that stands still). */
static void leave_waiters(struct segment *segment, uint32_t index, struct row_wait *wait)
{
	pthread_mutex_lock(&segment->lock);
	for (struct row_wait **at = &open_row(segment->rows[index])->waiters; *at;
		at = &(*at)->next) {
		if (*at == wait) {
			*at = wait->next;
			break;
		}
	}
	pthread_mutex_unlock(&segment->lock);
}

int segment_wait_rows(struct pool *pool, struct segment *segment, uint32_t rows)
{
	struct row_wait wait;
	uint32_t from = 0;
	bool lost = false;
	int rc;

	for (;;) {
		event_init(&wait.event, pool->engine);
		if (!wait_for_next(segment, &from, rows, &lost, &wait))
			return lost ? -EIO : 0;
		rc = event_wait(&wait.event);
		if (rc) {
			leave_waiters(segment, from, &wait);
			return rc;
		}
	}
}

void segment_rows_flushed(struct segment *segment, uint32_t rows)
{
	struct row *kept = NULL;

	pthread_mutex_lock(&segment->lock);
	for (uint32_t i = segment->rows_flushed; segment->rows && i < rows; i++) {
		struct row *row = segment->rows[i];

		if (!row)
			continue;
		row->next = kept;
		kept = row;
		segment->rows[i] = NULL;
	}
	if (segment->rows_flushed < rows)
		segment->rows_flushed = rows;
	pthread_mutex_unlock(&segment->lock);
	while (kept) {
		struct row *row = kept;

		kept = row->next;
		row_put(row);
	}
}

unsigned segment_members_gone(struct pool *pool, struct segment *segment)
{
	unsigned gone = 0;

	for (unsigned i = 0; i < segment_chunks(segment); i++)
		gone += member_lacks(segment_member(pool, segment, i), segment->id);
	return gone;
}

uint64_t segment_members(struct pool *pool, struct segment *segment)
{
	uint64_t members = 0;

	for (unsigned i = 0; i < segment_chunks(segment); i++)
		if (member_usable(segment_member(pool, segment, i)))
			members |= UINT64_C(1) << segment->row.chunks[i].device;
	return members;
}

bool segment_on_failing(struct pool *pool, struct segment *segment)
{
	for (unsigned i = 0; i < segment_chunks(segment); i++)
		if (atomic_load(&segment_member(pool, segment, i)->failing) &&
			member_usable(segment_member(pool, segment, i)))
			return true;
	return false;
}
