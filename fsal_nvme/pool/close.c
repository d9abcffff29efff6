/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The end of an open segment, and what an opening finds of one.
 *
 * Closing: all rows written (a frozen segment's tail first); then headers and checksum pages to all
 * live chunks, in pieces of bounded memory; flushed; then a transaction that says "closed" and
 * deletes the rows' checksums and tails from the pool's environment. Where these are too many for
 * one transaction more of them follow, so a crash in between leaves keys that mean nothing:
 * segment_drop_leftovers() deletes them. (The other way round, "closed" in the last one, a crash
 * would leave an open segment without checksums.)
 *
 * What cannot be closed: a segment of which more than m members are gone, or that lost a row. It
 * stays open, -EIO, as long as anything refers to it: what was made stable in its last rows is in
 * the journal, and closing would delete it. A segment that nobody refers to is freed, not closed
 * (chore.c); one that is let go of while it is being closed is freed afterwards.
 *
 * A frozen segment's rows behind the recorded ones: those with a tail are written again, the bytes
 * that were stable and zeroes; those without hold nothing that was ever referred to, and are
 * written as zeroes, so that every row of a closed segment has bytes and checksums that agree.
 * Its owner may have been at closing it, with what was appended to its last row and lost since: a
 * device that has those bytes, and pages that agree with them, may be away now and come back. So
 * headers and pages get another generation, and only that of the segment's row is believed.
 */
#include <assert.h>

#include "pool/env.h"
#include "pool/read.h"
#include "pool/row.h"

#define PIECE_BLOCKS 256u
#define PIECE_IOS 256u
#define CLOSED_ROOM (TXN_CHANGE_OVERHEAD + ROW_KEY_MAX + SEGMENT_ROW_MAX) /* of a record */

/* --- headers and pages -------------------------------------------------------------------- */

struct piece {
	struct pool *pool;
	struct segment *segment;
	uint8_t *memory; /* PIECE_BLOCKS */
	unsigned blocks, count; /* in use */
	struct io ios[PIECE_IOS];
	struct io *list[PIECE_IOS];
	struct member *members[PIECE_IOS];
	_Atomic unsigned pending;
	struct event done;
	bool abandoned; /* nobody waits any more (a simulated world that stood still) */
};

static void piece_free(struct piece *p)
{
	buffer_free(p->pool->engine, p->memory, PIECE_BLOCKS * BLOCK_SIZE);
	free(p);
}

static int piece_create(struct pool *pool, struct segment *segment, struct piece **piece)
{
	struct piece *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->pool = pool;
	p->segment = segment;
	p->memory = buffer_alloc(pool->engine, PIECE_BLOCKS * BLOCK_SIZE);
	if (!p->memory) {
		free(p);
		return -ENOMEM;
	}
	*piece = p;
	return 0;
}

static void piece_written(struct io *io)
{
	struct piece *p = io->data;

	if (atomic_fetch_sub(&p->pending, 1) != 1)
		return;
	if (p->abandoned)
		piece_free(p);
	else
		event_signal(&p->done, 0);
}

static int piece_results(struct piece *p)
{
	int rc = 0;

	for (unsigned i = 0; i < p->count; i++) {
		if (!p->ios[i].result) {
			atomic_fetch_add(&p->members[i]->written, 1);
			continue;
		}
		member_failed(p->pool, p->members[i], p->ios[i].result);
		if (p->ios[i].result == -ESHUTDOWN)
			rc = -ESHUTDOWN;
	}
	return rc;
}

/* Submits what is in the piece and waits; it is empty then. *piece is NULL when it is gone. */
static int piece_run(struct piece **piece)
{
	struct piece *p = *piece;
	int rc = 0;

	if (p->count) {
		event_init(&p->done, p->pool->engine);
		atomic_store(&p->pending, p->count);
		io_submit(p->pool->engine, p->list, p->count);
		rc = event_wait(&p->done);
		if (rc) {
			p->abandoned = true;
			*piece = NULL;
			return rc;
		}
		rc = piece_results(p);
	}
	p->count = 0;
	p->blocks = 0;
	return rc;
}

static void piece_add(
	struct piece *p, unsigned chunk, uint64_t offset, void *memory, unsigned blocks)
{
	struct member *member = segment_member(p->pool, p->segment, chunk);
	struct io *io = &p->ios[p->count];

	if (!member_usable(member))
		return;
	io_prepare(io, IO_WRITE, member->device, offset, memory, (size_t)blocks * BLOCK_SIZE);
	io->done = piece_written;
	io->data = p;
	p->members[p->count] = member;
	p->list[p->count++] = io;
}

/* Room for at least one block, written to as many chunks as there are. */
static int piece_make_room(struct piece **piece)
{
	bool full =
		(*piece)->blocks == PIECE_BLOCKS || (*piece)->count + POOL_WIDTH_MAX > PIECE_IOS;

	return full ? piece_run(piece) : 0;
}

static int encode_page(
	struct piece *p, unsigned of, uint32_t index, uint64_t blocks, struct checksum_page *page)
{
	const struct layout *layout = &p->segment->layout;
	uint64_t first = (uint64_t)index * PAGE_ENTRIES;

	page_expect(p->pool, p->segment, of, index, page);
	page->count = (uint32_t)(blocks - first < PAGE_ENTRIES ? blocks - first : PAGE_ENTRIES);
	for (uint32_t i = 0; i < page->count; i++) {
		uint64_t row = (first + i) / layout->blocks, block = (first + i) % layout->blocks;

		page->sums[i] = p->segment->sums[row * segment_row_sums(p->segment) +
						 of * layout->blocks + block];
	}
	return checksum_page_encode(page, p->memory + (size_t)p->blocks++ * BLOCK_SIZE);
}

/* The pages of chunk `of`: to itself and to the parity chunks. */
static int write_pages(struct piece **piece, unsigned of, uint32_t rows)
{
	struct segment *segment = (*piece)->segment;
	struct pool *pool = (*piece)->pool;
	uint64_t blocks = (uint64_t)rows * segment->layout.blocks;
	uint32_t pages = (uint32_t)((blocks + PAGE_ENTRIES - 1) / PAGE_ENTRIES);
	struct checksum_page *page = malloc(sizeof(*page));
	int rc = page ? 0 : -ENOMEM;

	for (uint32_t i = 0; !rc && i < pages;) {
		uint32_t first = i;
		uint8_t *start;

		rc = piece_make_room(piece);
		if (rc)
			break;
		start = (*piece)->memory + (size_t)(*piece)->blocks * BLOCK_SIZE;
		while (!rc && i < pages && (*piece)->blocks < PIECE_BLOCKS)
			rc = encode_page(*piece, of, i++, blocks, page);
		for (unsigned c = 0; !rc && c < segment_chunks(segment); c++)
			if (c == of || c >= segment->layout.data)
				piece_add(*piece, c,
					segment_page_offset(pool, segment, c, of, first), start,
					i - first);
	}
	free(page);
	return rc;
}

static int write_header(struct piece **piece, unsigned chunk, uint32_t rows)
{
	struct segment *segment = (*piece)->segment;
	struct chunk_header header = {
		.segment = segment->id,
		.generation = segment->row.generation,
		.index = (uint8_t)chunk,
		.data = segment->row.data,
		.parity = segment->row.parity,
		.matrix = segment->row.matrix,
		.cell = segment->layout.cell,
		.rows = rows,
		.length = rows * segment_row_bytes(segment),
		.volume = segment->row.volume,
	};
	uint8_t *block;
	int rc = piece_make_room(piece);

	if (rc)
		return rc;
	memcpy(header.pool, (*piece)->pool->header.pool, sizeof(header.pool));
	block = (*piece)->memory + (size_t)(*piece)->blocks++ * BLOCK_SIZE;
	rc = chunk_header_encode(&header, block);
	if (!rc)
		piece_add(*piece, chunk, segment_header_offset((*piece)->pool, segment, chunk),
			block, 1);
	return rc;
}

static int write_ends(struct pool *pool, struct segment *segment, uint32_t rows)
{
	struct piece *piece;
	int rc = piece_create(pool, segment, &piece);

	if (rc)
		return rc;
	for (unsigned i = 0; !rc && i < segment_chunks(segment); i++)
		rc = write_pages(&piece, i, rows);
	for (unsigned i = 0; !rc && i < segment_chunks(segment); i++)
		rc = write_header(&piece, i, rows);
	if (!rc)
		rc = piece_run(&piece);
	if (piece)
		piece_free(piece);
	return rc;
}

static bool readable(struct pool *pool, struct segment *segment)
{
	return segment_members_gone(pool, segment) <= segment->layout.parity;
}

/* Makes rows, headers and pages durable on all members that are left. */
static int flush_segment(struct pool *pool, struct segment *segment, uint32_t rows)
{
	int rc = pool_drop_failing(pool);

	if (!rc)
		rc = pool_flush(pool, segment_members(pool, segment));
	if (!rc && !readable(pool, segment))
		rc = -EIO;
	if (!rc)
		segment_rows_flushed(segment, rows);
	return rc;
}

/* --- the record that it is closed --------------------------------------------------------- */

struct closed_hook {
	struct txn_hook hook;
	struct segment *segment; /* with a reference */
};

static void set_closed(struct segment *segment, bool closed, uint32_t rows)
{
	pthread_mutex_lock(&segment->lock);
	segment->row.state = closed ? SEGMENT_CLOSED : SEGMENT_OPEN;
	segment->row.rows = rows;
	segment->row.length = closed ? rows * segment_row_bytes(segment) : 0;
	pthread_mutex_unlock(&segment->lock);
}

static void closed_end(struct txn_hook *hook, uint64_t lsn)
{
	struct closed_hook *c = (struct closed_hook *)hook;

	if (!lsn)
		set_closed(c->segment, false, c->segment->rows_recorded);
	segment_put(c->segment);
	free(c);
}

static int record_closed(struct txn *txn, struct segment *segment, uint32_t rows)
{
	struct closed_hook *c = malloc(sizeof(*c));

	if (!c)
		return -ENOMEM;
	*c = (struct closed_hook){.hook.run = closed_end, .segment = segment};
	atomic_fetch_add(&segment->references, 1);
	txn_on_end(txn, &c->hook);
	set_closed(segment, true, rows);
	return segment_record(txn, segment);
}

/* Deletes the segment's rows' keys, as many as fit into half of what the record still takes. */
static int forget_rows(struct txn *txn, uint64_t segment, bool *more)
{
	unsigned budget = (unsigned)(txn_room(txn) / 64);
	uint8_t key[ROW_KEY_MAX];
	int rc = keys_delete(txn, key_segment(key, KEY_SUMS, segment), &budget);

	if (!rc)
		rc = keys_delete(txn, key_segment(key, KEY_TAIL, segment), &budget);
	*more = !budget;
	return rc;
}

/* One transaction of a closing. The first says "closed", those that follow only delete keys. */
static int close_step(struct pool *pool, struct segment *segment, uint32_t rows, bool *more)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	rc = segment->freed ? -ENOENT : forget_rows(txn, segment->id, more);
	if (!rc && segment->row.state != SEGMENT_CLOSED)
		rc = record_closed(txn, segment, rows);
	if (!rc)
		return txn_commit(txn, &lsn);
	txn_abort(txn);
	return rc;
}

/* A closed segment as any other. */
static void become_closed(struct segment *segment)
{
	segment_drop_arrays(segment);
	segment->frozen = false;
}

/* -ENOENT when it is gone, with its volume. */
static int close_records(struct pool *pool, struct segment *segment, uint32_t rows)
{
	bool more = true;
	int rc = 0;

	while (!rc && more) {
		rc = close_step(pool, segment, rows, &more);
		if (!rc)
			become_closed(segment);
	}
	return rc;
}

/* --- freed instead ------------------------------------------------------------------------ */

/* As long as its keys are more than fit, an open one is one without rows. */
static int give_up_step(struct txn *txn, struct segment *segment, bool *more)
{
	int rc = forget_rows(txn, segment->id, more);

	if (!rc && !*more)
		return segment_free(txn, segment);
	if (rc || segment->row.state != SEGMENT_OPEN)
		return rc;
	pthread_mutex_lock(&segment->lock);
	segment->row.rows = 0;
	pthread_mutex_unlock(&segment->lock);
	return segment_record(txn, segment);
}

/* Its slots are given away: no row of it may be about to be written there. */
static int wait_unwritten(struct pool *pool, struct segment *segment)
{
	int rc = segment->frozen ? 0 : segment_wait_rows(pool, segment, segment_rows_used(segment));

	return rc == -EIO ? 0 : rc;
}

int segment_give_up(struct pool *pool, struct segment *segment)
{
	bool more = true;
	int rc = wait_unwritten(pool, segment);

	while (!rc && more) {
		struct txn *txn;
		uint64_t lsn;

		rc = txn_begin(pool, NULL, &txn);
		if (rc)
			return rc;
		more = false;
		if (!segment->freed && segment_unused(segment))
			rc = give_up_step(txn, segment, &more);
		if (rc)
			txn_abort(txn);
		else
			rc = txn_commit(txn, &lsn);
	}
	return rc;
}

/* --- frozen segments ---------------------------------------------------------------------- */

/* Behind the recorded rows of a segment whose owner is dead. */
static int write_frozen_row(struct pool *pool, struct segment *segment, uint32_t index)
{
	size_t bytes = (size_t)segment_chunks(segment) * segment->layout.cell;
	struct row *row;
	bool done;
	int rc = 0;

	pthread_mutex_lock(&segment->lock);
	row = segment->rows[index];
	done = segment->row_done[index] || (row && atomic_load(&row->state) != ROW_FILLING);
	pthread_mutex_unlock(&segment->lock);
	if (!done)
		rc = row_memory_wait(pool, bytes);
	if (done || rc)
		return rc;
	if (!row) {
		rc = row_create(pool, segment, index, &row);
		if (rc)
			return rc;
		pthread_mutex_lock(&segment->lock);
		row_install(row);
		pthread_mutex_unlock(&segment->lock);
	}
	row_count(row);
	row_submit(row);
	return 0;
}

static int write_frozen_rows(struct pool *pool, struct segment *segment)
{
	uint32_t rows = segment_rows_used(segment);
	int rc = 0;

	for (uint32_t i = segment->rows_recorded; !rc && i < rows; i++)
		rc = write_frozen_row(pool, segment, i);
	return rc;
}

/* What its owner had of headers and pages is of rows that may be others now: they are told apart.
 */
static int write_frozen(struct pool *pool, struct segment *segment)
{
	pthread_mutex_lock(&segment->lock);
	segment->row.generation++;
	pthread_mutex_unlock(&segment->lock);
	return write_frozen_rows(pool, segment);
}

/* --- closing ------------------------------------------------------------------------------ */

/* Rows, headers and pages are written. */
static int write_all(struct pool *pool, struct segment *segment, uint32_t rows)
{
	int rc = readable(pool, segment) ? segment_wait_rows(pool, segment, rows) : -EIO;

	return rc ? rc : write_ends(pool, segment, rows);
}

/* ... and flushed. */
static int complete(struct pool *pool, struct segment *segment, uint32_t rows)
{
	int rc = write_all(pool, segment, rows);

	return rc ? rc : flush_segment(pool, segment, rows);
}

static int may_close(struct segment *segment)
{
	int rc;

	pthread_mutex_lock(&segment->lock);
	rc = segment->row.state == SEGMENT_CLOSED ? -EALREADY : segment->filled ? 0 : -EBUSY;
	pthread_mutex_unlock(&segment->lock);
	return rc;
}

int segment_close(struct pool *pool, struct segment *segment)
{
	uint32_t rows;
	int rc = may_close(segment);

	if (rc)
		return rc == -EALREADY ? 0 : rc;
	if (segment->frozen)
		rc = readable(pool, segment) ? write_frozen(pool, segment) : -EIO;
	rows = segment_rows_used(segment);
	if (!rc)
		rc = complete(pool, segment, rows);
	if (!rc)
		rc = close_records(pool, segment, rows);
	return rc == -ENOENT ? 0 : rc;
}

/* One transaction of a closing of many: from list[*done] on, those that fit into it. */
static int record_many(struct pool *pool, struct segment **list, unsigned count, unsigned *done)
{
	unsigned next = *done;
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	for (; !rc && next < count && txn_room(txn) >= CLOSED_ROOM; next++)
		rc = record_closed(txn, list[next], segment_rows_used(list[next]));
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	for (; !rc && *done < next; ++*done)
		become_closed(list[*done]);
	return rc;
}

int segments_close(struct pool *pool, struct segment **list, unsigned count)
{
	unsigned done = 0;
	int rc = 0;

	for (unsigned i = 0; !rc && i < count; i++)
		rc = write_all(pool, list[i], segment_rows_used(list[i]));
	for (unsigned i = 0; !rc && i < count; i++)
		rc = flush_segment(pool, list[i], segment_rows_used(list[i]));
	while (!rc && done < count)
		rc = record_many(pool, list, count, &done);
	return rc;
}

/* --- after opening ------------------------------------------------------------------------ */

static int load_sums(struct txn *view, struct segment *segment, uint32_t row)
{
	uint32_t count = segment_row_sums(segment);
	uint8_t key[ROW_KEY_MAX];
	struct bytes value;
	struct reader r;
	int rc = txn_get(view, pool_env(segment->pool), key_sums(key, segment->id, row), &value);

	if (rc)
		return rc == -ENOENT ? -EBADMSG : rc;
	if (value.length != count * sizeof(uint32_t))
		return -EBADMSG;
	r = reader_on(value.data, value.length);
	for (uint32_t i = 0; i < count; i++)
		segment->sums[(size_t)row * count + i] = get_u32(&r);
	segment->row_done[row] = ROW_IS_DONE;
	return 0;
}

/* A row of zeroes, to take the bytes of a tail; reads are served from it. */
static int tail_row(struct segment *segment, uint32_t index, struct row **row)
{
	const struct layout *layout = &segment->layout;
	int rc;

	*row = segment->rows[index];
	if (*row)
		return 0;
	rc = row_create(segment->pool, segment, index, row);
	if (rc)
		return rc;
	memset((*row)->memory, 0, segment_row_bytes(segment));
	for (unsigned i = 0; i < layout->data; i++)
		(*row)->cell_fill[i] = layout->cell;
	(*row)->fill = (uint32_t)segment_row_bytes(segment);
	row_install(*row);
	return 0;
}

static int load_tail(struct segment *segment, uint32_t index, uint32_t offset, struct bytes value)
{
	uint64_t size = segment_row_bytes(segment);
	struct row *row;
	int rc;

	if (index >= segment->layout.rows || offset > size || value.length > size - offset)
		return -EBADMSG;
	rc = tail_row(segment, index, &row);
	if (!rc)
		memcpy(row->memory + offset, value.data, value.length);
	return rc;
}

static int load_tails(struct txn *view, struct segment *segment)
{
	uint64_t place = (uint64_t)segment->row.rows << 32; /* row, offset */
	struct bytes found, value;

	for (;;) {
		uint8_t key[ROW_KEY_MAX];
		struct bytes from =
			key_tail(key, segment->id, (uint32_t)(place >> 32), (uint32_t)place);
		struct reader r;
		int rc = txn_seek(view, pool_env(segment->pool), from, &found, &value);

		if (rc || found.length < 9 || memcmp(found.data, key, 9))
			return rc == -ENOENT ? 0 : rc;
		if (found.length != ROW_KEY_MAX)
			return -EBADMSG;
		r = reader_on((const uint8_t *)found.data + 9, 8);
		place = get_be64(&r);
		rc = load_tail(segment, (uint32_t)(place >> 32), (uint32_t)place, value);
		if (rc)
			return rc;
		place++;
	}
}

int segment_load_open(struct pool *pool, struct txn *view, struct segment *segment)
{
	uint32_t rows = segment->row.rows;
	int rc = rows > segment->layout.rows ? -EBADMSG : segment_open_arrays(segment);

	for (uint32_t i = 0; !rc && i < rows; i++)
		rc = load_sums(view, segment, i);
	if (!rc)
		rc = load_tails(view, segment);
	segment->rows_written = segment->rows_flushed = segment->rows_recorded = rows;
	return rc;
}

/* --- leftovers ---------------------------------------------------------------------------- */

/* The first segment from *id on that has keys of that kind; -ENOENT. */
static int next_with_keys(struct pool *pool, uint8_t kind, uint64_t *id)
{
	struct bytes found, value;
	uint8_t key[ROW_KEY_MAX];
	struct txn *view;
	struct reader r;
	int rc = view_begin(pool_env(pool), &view);

	if (rc)
		return rc;
	rc = txn_seek(view, pool_env(pool), key_segment(key, kind, *id), &found, &value);
	if (!rc && (found.length < 9 || *(const uint8_t *)found.data != kind))
		rc = -ENOENT;
	if (!rc) {
		r = reader_on((const uint8_t *)found.data + 1, 8);
		*id = get_be64(&r);
	}
	txn_abort(view);
	return rc;
}

static int drop_keys(struct pool *pool, uint64_t id)
{
	bool more = true;
	int rc = 0;

	while (!rc && more) {
		struct txn *txn;
		uint64_t lsn;

		rc = txn_begin(pool, NULL, &txn);
		if (rc)
			return rc;
		rc = forget_rows(txn, id, &more);
		if (rc)
			txn_abort(txn);
		else
			rc = txn_commit(txn, &lsn);
	}
	return rc;
}

static int drop_leftovers(struct pool *pool, uint8_t kind)
{
	uint64_t id = 0;
	int rc;

	while (!(rc = next_with_keys(pool, kind, &id))) {
		struct segment *segment = segment_get(pool, id);
		bool open = segment && segment->row.state != SEGMENT_CLOSED;

		segment_put(segment);
		if (!open)
			rc = drop_keys(pool, id);
		if (rc)
			return rc;
		id++;
	}
	return rc == -ENOENT ? 0 : rc;
}

int segment_drop_leftovers(struct pool *pool)
{
	int rc = drop_leftovers(pool, KEY_SUMS);

	return rc ? rc : drop_leftovers(pool, KEY_TAIL);
}
