/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * From appended bytes to bytes that a committed transaction names, and back.
 *
 * pool_settle() makes extents referable and txn_refer() refers to them. Between the two a row may
 * go on: an extent that was settled in an open row may find the row full, in writing, or written
 * and not flushed. So a row that was settled while open keeps its memory until it is flushed, and
 * txn_refer() asks, row by row:
 *   recorded already             nothing to do
 *   written and flushed          its checksums go into the transaction (KEY_SUMS), and those of all
 *                                rows before it: recorded rows are a prefix of the segment
 *   anything else                the bytes go into the transaction (KEY_TAIL), from memory
 * A row that gets its checksums loses its tail. What does not fit into the transaction is left to
 * the closing of the segment; a tail of a recorded row means nothing.
 *
 * Rows kept in memory are bounded: when a segment has KEPT_ROWS that are written and not flushed,
 * settling an open row flushes them too.
 *
 * What a transaction changes in memory (live bytes, recorded rows) is changed at once, under the
 * pool environment's write lock, so that it sees it itself; a hook takes it back if the
 * transaction is abandoned. `unreferred` falls when it commits.
 */
#include <assert.h>

#include "pool/row.h"

#define KEPT_ROWS 4u
#define SETTLE_BATCH 32u /* extents settled with one flush */
#define UNRECORDED_MAX (64u << 10) /* bytes of checksums left to txn_refer() by a settling */
#define RECORD_PIECE (32u << 10) /* ... and put by one transaction of a settling */
#define TAIL_KEYS_MAX 128u /* deleted along with a row's recording */

/* --- keys --------------------------------------------------------------------------------- */

static struct bytes row_key(
	uint8_t key[ROW_KEY_MAX], uint8_t kind, uint64_t segment, uint64_t rest, unsigned length)
{
	struct writer w = writer_on(key, ROW_KEY_MAX);

	put_u8(&w, kind);
	put_be64(&w, segment);
	put_be64(&w, rest);
	return (struct bytes){key, length};
}

struct bytes key_segment(uint8_t key[ROW_KEY_MAX], uint8_t kind, uint64_t segment)
{
	return row_key(key, kind, segment, 0, 9);
}

struct bytes key_sums(uint8_t key[ROW_KEY_MAX], uint64_t segment, uint32_t row)
{
	return row_key(key, KEY_SUMS, segment, (uint64_t)row << 32, 13);
}

struct bytes key_tail(uint8_t key[ROW_KEY_MAX], uint64_t segment, uint32_t row, uint32_t offset)
{
	return row_key(key, KEY_TAIL, segment, (uint64_t)row << 32 | offset, 17);
}

int keys_delete(struct txn *txn, struct bytes prefix, unsigned *budget)
{
	struct env *env = pool_env(txn_pool(txn));
	struct bytes found, value;

	for (; *budget; --*budget) {
		uint8_t key[POOL_KEY_MAX];
		int rc = txn_seek(txn, env, prefix, &found, &value);

		if (rc)
			return rc == -ENOENT ? 0 : rc;
		if (found.length < prefix.length || memcmp(found.data, prefix.data, prefix.length))
			return 0;
		memcpy(key, found.data, found.length);
		rc = txn_delete(txn, env, (struct bytes){key, found.length});
		if (rc)
			return rc;
	}
	return 0;
}

/* --- what a transaction does to a segment in memory --------------------------------------- */

struct change {
	struct txn_hook hook;
	struct segment *segment; /* with a reference */
	int64_t live;
	uint32_t recorded; /* rows_recorded before */
	unsigned count;
	struct extent extents[]; /* referred to: unreferred until it commits */
};

static void set_recorded(struct segment *segment, uint32_t rows)
{
	pthread_mutex_lock(&segment->lock);
	segment->rows_recorded = rows;
	segment->row.rows = rows;
	pthread_mutex_unlock(&segment->lock);
}

static void less_unreferred(struct segment *segment, uint64_t bytes)
{
	uint64_t before = atomic_fetch_sub(&segment->unreferred, bytes);

	assert(before >= bytes);
	if (before == bytes)
		segment_note_chore(segment);
}

/* Changed by the holder of the pool environment's write lock, looked at by others. */
static void add_live(struct segment *segment, int64_t live)
{
	pthread_mutex_lock(&segment->lock);
	segment->row.live += (uint64_t)live;
	pthread_mutex_unlock(&segment->lock);
}

static void change_end(struct txn_hook *hook, uint64_t lsn)
{
	struct change *c = (struct change *)hook;
	struct segment *segment = c->segment;
	uint64_t referred = 0;

	for (unsigned i = 0; i < c->count; i++)
		referred += c->extents[i].length;
	if (lsn && referred)
		less_unreferred(segment, referred);
	if (!lsn) {
		add_live(segment, -c->live);
		if (c->recorded < segment->rows_recorded)
			set_recorded(segment, c->recorded);
	}
	if (c->live)
		segment_note_chore(segment);
	segment_put(segment);
	free(c);
}

static struct change *change_begin(
	struct txn *txn, struct segment *segment, const struct extent *extents, unsigned count)
{
	struct change *c = malloc(sizeof(*c) + count * sizeof(*extents));

	if (!c)
		return NULL;
	*c = (struct change){.hook.run = change_end,
		.segment = segment,
		.recorded = segment->rows_recorded,
		.count = count};
	if (count)
		memcpy(c->extents, extents, count * sizeof(*extents));
	atomic_fetch_add(&segment->references, 1);
	txn_on_end(txn, &c->hook);
	return c;
}

static int change_live(struct txn *txn, struct change *c, int64_t live)
{
	c->live = live;
	add_live(c->segment, live);
	return segment_record(txn, c->segment);
}

/* Extents from the first on that are of one segment, and their bytes. */
static unsigned same_segment(const struct extent *extents, unsigned count, uint64_t *bytes)
{
	unsigned n = 0;

	*bytes = 0;
	while (n < count && extents[n].segment == extents[0].segment)
		*bytes += extents[n++].length;
	return n;
}

/* --- referring ---------------------------------------------------------------------------- */

static int record_row(struct txn *txn, struct segment *segment, uint32_t row, uint8_t *value)
{
	uint32_t count = segment_row_sums(segment);
	struct writer w = writer_on(value, count * sizeof(uint32_t));
	uint8_t key[ROW_KEY_MAX];
	unsigned budget = TAIL_KEYS_MAX;
	int rc;

	pthread_mutex_lock(&segment->lock);
	for (uint32_t i = 0; i < count; i++)
		put_u32(&w, segment->sums[(size_t)row * count + i]);
	pthread_mutex_unlock(&segment->lock);
	rc = txn_put(txn, pool_env(txn_pool(txn)), key_sums(key, segment->id, row),
		(struct bytes){value, count * sizeof(uint32_t)});
	if (rc)
		return rc;
	key_tail(key, segment->id, row, 0);
	return keys_delete(txn, (struct bytes){key, 13}, &budget);
}

/* Under a change of the segment: the checksums of rows [rows_recorded, rows). */
static int record_rows(struct txn *txn, struct segment *segment, uint32_t rows)
{
	uint8_t *value = malloc(segment_row_sums(segment) * sizeof(uint32_t));
	int rc = value ? 0 : -ENOMEM;

	for (uint32_t i = segment->rows_recorded; !rc && i < rows; i++)
		rc = record_row(txn, segment, i, value);
	free(value);
	if (!rc)
		set_recorded(segment, rows);
	return rc;
}

/* The row with a reference, if it is in memory. */
static struct row *row_get(struct segment *segment, uint32_t index)
{
	struct row *row;

	pthread_mutex_lock(&segment->lock);
	row = segment->rows ? segment->rows[index] : NULL;
	if (row)
		atomic_fetch_add(&row->references, 1);
	pthread_mutex_unlock(&segment->lock);
	return row;
}

/* Bytes [from, to) of the segment, all in that row, into the journal. */
static int put_tail(
	struct txn *txn, struct segment *segment, uint32_t index, uint64_t from, uint64_t to)
{
	uint32_t offset = (uint32_t)(from - index * segment_row_bytes(segment));
	struct row *row = row_get(segment, index);
	uint8_t key[ROW_KEY_MAX];
	int rc;

	if (!row)
		return -EAGAIN; /* it was not settled */
	rc = txn_put(txn, pool_env(txn_pool(txn)), key_tail(key, segment->id, index, offset),
		(struct bytes){row->memory + offset, to - from});
	row_put(row);
	return rc;
}

static uint32_t rows_flushed(struct segment *segment)
{
	uint32_t rows;

	pthread_mutex_lock(&segment->lock);
	rows = segment->rows_flushed;
	pthread_mutex_unlock(&segment->lock);
	return rows;
}

static int refer_rows(struct txn *txn, struct segment *segment, const struct extent *extent)
{
	uint64_t size = segment_row_bytes(segment), at = extent->offset;
	uint64_t end = at + extent->length;
	uint32_t last = (uint32_t)((end - 1) / size), durable = rows_flushed(segment);
	int rc = 0;

	if (durable > last + 1)
		durable = last + 1;
	if (durable > segment->rows_recorded)
		rc = record_rows(txn, segment, durable);
	while (!rc && at < end) {
		uint32_t index = (uint32_t)(at / size);
		uint64_t to = (index + 1) * size < end ? (index + 1) * size : end;

		if (index >= segment->rows_recorded)
			rc = put_tail(txn, segment, index, at, to);
		if (rc == -EAGAIN && index < rows_flushed(segment)) /* just now */
			rc = record_rows(txn, segment, index + 1);
		at = to;
	}
	return rc;
}

static bool extent_valid(const struct segment *segment, const struct extent *extent)
{
	uint64_t size = segment->layout.rows * segment_row_bytes(segment);

	return extent->length && extent->offset <= size && extent->length <= size - extent->offset;
}

static int refer_segment(struct txn *txn, struct segment *segment, const struct extent *extents,
	unsigned count, uint64_t bytes)
{
	struct change *c = change_begin(txn, segment, extents, count);
	int rc = c ? 0 : -ENOMEM;

	for (unsigned i = 0; !rc && i < count; i++) {
		if (!extent_valid(segment, &extents[i]))
			rc = -EINVAL;
		else if (segment->row.state != SEGMENT_CLOSED)
			rc = refer_rows(txn, segment, &extents[i]);
	}
	return rc ? rc : change_live(txn, c, (int64_t)bytes);
}

int txn_refer(struct txn *txn, const struct extent *extents, unsigned count)
{
	int rc = txn_own_pool(txn);

	for (unsigned i = 0, n; !rc && i < count; i += n) {
		struct segment *segment = segment_get(txn_pool(txn), extents[i].segment);
		uint64_t bytes;

		n = same_segment(extents + i, count - i, &bytes);
		if (!segment)
			return -EINVAL;
		rc = refer_segment(txn, segment, extents + i, n, bytes);
		segment_put(segment);
	}
	return rc;
}

/* --- releasing ---------------------------------------------------------------------------- */

static int release_segment(struct txn *txn, struct segment *segment, uint64_t bytes)
{
	struct change *c = change_begin(txn, segment, NULL, 0);
	int rc;

	if (!c)
		return -ENOMEM;
	if (segment->row.live < bytes) { /* the volume's extents, read from an image, are wrong */
		log_error("segment %llx: %llu bytes to be released, but only %llu are live",
			(unsigned long long)segment->id, (unsigned long long)bytes,
			(unsigned long long)segment->row.live);
		return -EIO;
	}
	rc = change_live(txn, c, -(int64_t)bytes);
	if (!rc && segment->row.state == SEGMENT_CLOSED && segment_unused(segment))
		rc = segment_free(txn, segment);
	return rc;
}

int txn_release(struct txn *txn, const struct extent *extents, unsigned count)
{
	int rc = txn_own_pool(txn);

	for (unsigned i = 0, n; !rc && i < count; i += n) {
		struct segment *segment = segment_get(txn_pool(txn), extents[i].segment);
		uint64_t bytes;

		n = same_segment(extents + i, count - i, &bytes);
		if (!segment)
			return -EINVAL;
		if (bytes)
			rc = release_segment(txn, segment, bytes);
		segment_put(segment);
	}
	return rc;
}

int segment_forget_live(struct txn *txn, struct segment *segment)
{
	struct change *c;

	if (!segment->row.live)
		return 0;
	c = change_begin(txn, segment, NULL, 0);
	return c ? change_live(txn, c, -(int64_t)segment->row.live) : -ENOMEM;
}

void pool_abandon_extents(struct pool *pool, const struct extent *extents, unsigned count)
{
	for (unsigned i = 0, n; i < count; i += n) {
		struct segment *segment = segment_get(pool, extents[i].segment);
		uint64_t bytes;

		n = same_segment(extents + i, count - i, &bytes);
		if (segment && bytes)
			less_unreferred(segment, bytes);
		segment_put(segment);
	}
}

/* --- settling ----------------------------------------------------------------------------- */

/* An extent being settled: rows [0, rows) of its segment are to be flushed; 0: nothing to do. */
struct settling {
	struct segment *segment; /* with a reference */
	uint32_t rows;
	uint32_t end; /* the row behind the extent's last */
};

/* Under segment->lock: what must be flushed for an extent that ends in row `last`; *open: that row
 * is open, and now kept. */
static uint32_t rows_needed(struct segment *segment, uint32_t first, uint32_t last, bool *open)
{
	struct row *row = segment->rows[last];
	uint32_t rows = last + 1;

	*open = row && open_row(row)->open;
	if (*open) {
		open_row(row)->kept = true;
		rows = first < last ? last : 0;
	}
	if (segment->rows_written >= segment->rows_flushed + KEPT_ROWS &&
		rows < segment->rows_written)
		rows = segment->rows_written;
	return rows > segment->rows_flushed ? rows : 0;
}

/* Open rows whose bytes will be put into the journal have to fit into one record. */
static bool fits_record(struct pool *pool, uint64_t open_bytes)
{
	uint64_t row = (uint64_t)pool->k * pool->header.cell;

	return open_bytes <= row && open_bytes <= journal_record_max(pool) / 2;
}

static int settling_begin(
	struct pool *pool, const struct extent *extent, struct settling *s, uint64_t *open_bytes)
{
	uint64_t size, end = extent->offset + extent->length;
	uint32_t first, last;
	bool open;

	*s = (struct settling){NULL};
	s->segment = segment_get(pool, extent->segment);
	if (!s->segment || !extent_valid(s->segment, extent))
		return s->segment && !extent->length ? 0 : -EINVAL;
	size = segment_row_bytes(s->segment);
	first = (uint32_t)(extent->offset / size);
	last = (uint32_t)((end - 1) / size);
	s->end = last + 1;
	for (;;) {
		uint64_t from = extent->offset > last * size ? extent->offset : last * size;

		open = false;
		s->rows = 0;
		pthread_mutex_lock(&s->segment->lock);
		if (s->segment->sums && !s->segment->frozen)
			s->rows = rows_needed(s->segment, first, last, &open);
		pthread_mutex_unlock(&s->segment->lock);
		if (!open || fits_record(pool, *open_bytes + (end - from))) {
			*open_bytes += open ? end - from : 0;
			return 0;
		}
		segment_end_row(pool, s->segment, last);
	}
}

static int settle_members(struct pool *pool, struct settling *s, unsigned count)
{
	uint64_t members = 0;
	bool failing = false;
	int rc = 0;

	for (unsigned i = 0; i < count; i++)
		failing |= s[i].rows && segment_on_failing(pool, s[i].segment);
	if (failing)
		rc = pool_drop_failing(pool);
	for (unsigned i = 0; i < count; i++)
		members |= s[i].rows ? segment_members(pool, s[i].segment) : 0;
	if (!rc && members)
		rc = pool_flush(pool, members);
	for (unsigned i = 0; !rc && i < count; i++)
		if (s[i].rows &&
			segment_members_gone(pool, s[i].segment) > s[i].segment->layout.parity)
			rc = -EIO;
	return rc;
}

/* Under the pool environment's lock: as many of the checksums of flushed rows before `rows` as one
 * transaction is to take. */
static int record_piece(struct txn *txn, struct segment *segment, uint32_t rows)
{
	size_t room = txn_room(txn) / 2 < RECORD_PIECE ? txn_room(txn) / 2 : RECORD_PIECE;
	uint32_t piece = (uint32_t)(room / (segment_row_sums(segment) * sizeof(uint32_t))) + 1;
	uint32_t durable = rows_flushed(segment);
	struct change *c;
	int rc;

	if (rows > durable)
		rows = durable;
	if (rows > segment->rows_recorded + piece)
		rows = segment->rows_recorded + piece;
	if (segment->freed)
		return -EINVAL; /* and so are its extents: the volume was deleted */
	if (segment->row.state == SEGMENT_CLOSED || rows <= segment->rows_recorded)
		return 0;
	c = change_begin(txn, segment, NULL, 0);
	rc = c ? record_rows(txn, segment, rows) : -ENOMEM;
	return rc ? rc : change_live(txn, c, 0);
}

static int record_some(struct pool *pool, struct segment *segment, uint32_t rows)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	rc = record_piece(txn, segment, rows);
	if (!rc)
		return txn_commit(txn, &lsn);
	txn_abort(txn);
	return rc;
}

/* Bytes of checksums that a transaction would have to record before it refers to these rows. */
static uint64_t unrecorded(struct segment *segment, uint32_t rows)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&segment->lock);
	if (rows > segment->rows_flushed)
		rows = segment->rows_flushed;
	if (segment->sums && rows > segment->rows_recorded)
		bytes = (uint64_t)(rows - segment->rows_recorded) * segment_row_sums(segment) *
			sizeof(uint32_t);
	pthread_mutex_unlock(&segment->lock);
	return bytes;
}

/* So that all that was settled can be referred to in one transaction. */
static int settle_records(struct pool *pool, struct settling *s, uint64_t *left)
{
	uint64_t bytes = unrecorded(s->segment, s->end);
	int rc = 0;

	if (*left + bytes <= UNRECORDED_MAX) {
		*left += bytes;
		return 0;
	}
	while (!rc && unrecorded(s->segment, s->end))
		rc = record_some(pool, s->segment, s->end);
	return rc;
}

static int settle_batch(struct pool *pool, struct settling *s, unsigned count, uint64_t *left)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < count; i++)
		if (s[i].rows)
			rc = segment_wait_rows(pool, s[i].segment, s[i].rows);
	if (!rc)
		rc = settle_members(pool, s, count);
	for (unsigned i = 0; !rc && i < count; i++) {
		if (s[i].rows)
			segment_rows_flushed(s[i].segment, s[i].rows);
		rc = settle_records(pool, &s[i], left);
	}
	return rc;
}

int pool_settle(struct pool *pool, const struct extent *extents, unsigned count)
{
	struct settling s[SETTLE_BATCH];
	uint64_t open_bytes = 0, left = 0;
	int rc = atomic_load(&pool->failure);

	for (unsigned i = 0; !rc && i < count;) {
		unsigned n = 0;

		while (!rc && n < SETTLE_BATCH && i < count)
			rc = settling_begin(pool, &extents[i++], &s[n++], &open_bytes);
		if (!rc)
			rc = settle_batch(pool, s, n, &left);
		while (n)
			segment_put(s[--n].segment);
	}
	return rc;
}
