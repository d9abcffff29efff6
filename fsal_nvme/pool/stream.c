/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Streams: where appended bytes get their places.
 *
 * The states of a row:
 *   filling   a stream hands out places in it; bytes are being copied into it. It is "open" until
 *             its stream is through with it: full, too full for what comes next, or ended.
 *   writing   the last copier has zeroed what was not handed out, added parity and checksums, and
 *             submitted one write a chunk
 *   written   all writes are done, at most m of them failed. Its memory is let go of, unless
 *             it was settled while it was open: then not before its bytes are flushed.
 *   lost      more than m writes failed. The rows behind it are never recorded, the segment is
 *             never closed; what was referred to before stands in the journal.
 *
 * The happy path. stream_append() takes a place in the open row (under stream->lock), copies (under
 * no lock), and the last one out submits the row. pool_settle() waits until the rows of an extent
 * are written and flushes; txn_refer() records the rows' checksums together with what refers to the
 * bytes. Bytes in the open row are not waited for: txn_refer() puts them into the journal. When the
 * segment's last row is taken it is "filled", and maintenance closes it: headers and checksum pages
 * go to the chunks, the checksums leave the pool's environment.
 *
 * Lent memory (struct loan). Where an append finds no open row, and a whole row of what it has left
 * lies aligned in memory that is lent, the row is made of that: installed, handed out and left in
 * one go, so that nothing else is ever in it, and submitted when the append's other pieces are.
 *
 * What fails, and what then:
 *   a write fails         the member is marked; pool_settle() has it dropped before it returns. The
 *                         row has its other chunks. Dropping ends the streams on that member, so
 *                         that rows to come have all their chunks.
 *   no segment to be had  -ENOSPC; places that this append took already are given up again
 *   no memory             the same with -ENOMEM
 *   power is cut          rows that are not recorded were never referred to, and nobody asks for
 *                         them; the tail of what was is in the journal
 *
 * Why no lock is held over I/O: a completion takes segment->lock to mark its row, and what waits
 * for a completion may be what the holder of a lock waits for. So completions only count and wake;
 * segment_take(), the wait for row memory and the computing of parity happen without stream->lock.
 * What orders appends of one stream is the turn: a mutex taken before all other locks, held while
 * places are handed out, also over a wait. stream_end_segment(), which dropping a member calls,
 * does not take it, so an append looks again at what the stream fills after each wait.
 *
 * Places. Cells that have bytes come before those that have none. A packed append goes to the first
 * cell with room, a linear one behind the last byte of the last cell that has any; row->fill is
 * that place. Both may be mixed.
 */
#include <assert.h>

#include "pool/row.h"

#define PIECES_MAX 8u
#define TAKE_TRIES 64u

/* Every struct stream is one of these. */
struct appender {
	struct stream stream;
	pthread_mutex_t turn; /* of appends, while they take places */
	bool linear; /* turn: the last append was linear; the next goes right behind it */
	bool counted; /* in pool->stream_count */
};

/* A place taken, not copied to yet. */
struct piece {
	struct row *row;
	uint32_t position, length;
};

struct append {
	struct appender *to;
	const struct iovec *iov; /* the next byte to copy is at `skip` of the first */
	size_t skip;
	size_t left; /* bytes without a place */
	bool packed;
	unsigned flags;
	struct loan *loan; /* of the memory; NULL: it is copied */
	size_t copied;
	struct extent *extents;
	unsigned count, limit;
	struct piece pieces[PIECES_MAX];
	unsigned piece_count;
};

static inline uint32_t to_block(uint32_t bytes)
{
	return (bytes + BLOCK_SIZE - 1) & ~(BLOCK_SIZE - 1);
}

/* --- places in a row (stream->lock) ------------------------------------------------------- */

/* Bytes [from, to) are handed out; they begin where a cell's bytes end, but for a gap to zero. */
static void take_place(struct row *row, uint32_t from, uint32_t to)
{
	uint32_t cell = row->segment->layout.cell;

	for (uint32_t at = from; at < to; at = (at / cell + 1) * cell) {
		uint32_t i = at / cell, used = row->cell_fill[i];

		if (at > i * cell + used)
			memset(row->memory + (size_t)i * cell + used, 0, at - (i * cell + used));
		row->cell_fill[i] = to - i * cell < cell ? to - i * cell : cell;
	}
	if (row->fill < to)
		row->fill = to;
}

static uint32_t place_linear(struct row *row, size_t left, bool right_behind, uint32_t *position)
{
	uint32_t size = (uint32_t)segment_row_bytes(row->segment);
	uint32_t from = right_behind ? row->fill : to_block(row->fill);
	uint32_t length = left < size - from ? (uint32_t)left : size - from;

	if (length)
		take_place(row, from, from + length);
	*position = from;
	return length;
}

static uint32_t cell_room(const struct row *row, uint32_t i)
{
	return row->segment->layout.cell - to_block(row->cell_fill[i]);
}

/* The first cell that all of it fits into; -1: none. */
static int first_fit(const struct row *row, size_t length)
{
	for (unsigned i = 0; i < row->segment->layout.data; i++)
		if (cell_room(row, i) >= length)
			return (int)i;
	return -1;
}

/* The cell with the most room, when all together have more than a quarter of the row; else -1. */
static int roomiest(const struct row *row)
{
	uint64_t total = 0;
	unsigned best = 0;

	for (unsigned i = 0; i < row->segment->layout.data; i++) {
		total += cell_room(row, i);
		if (cell_room(row, i) > cell_room(row, best))
			best = i;
	}
	return total > segment_row_bytes(row->segment) / 4 ? (int)best : -1;
}

/* 0: the row is to be ended, and the next one to be asked. */
static uint32_t place_packed(struct row *row, size_t left, uint32_t *position)
{
	int cell = first_fit(row, left);
	uint32_t length = (uint32_t)left;

	if (cell < 0) {
		cell = roomiest(row);
		if (cell < 0)
			return 0;
		length = cell_room(row, (unsigned)cell);
	}
	*position = (uint32_t)cell * row->segment->layout.cell +
		    to_block(row->cell_fill[(unsigned)cell]);
	take_place(row, *position, *position + length);
	return length;
}

static bool row_full(const struct row *row)
{
	for (unsigned i = 0; i < row->segment->layout.data; i++)
		if (row->cell_fill[i] < row->segment->layout.cell)
			return false;
	return true;
}

/* --- ending rows and segments (stream->lock) ---------------------------------------------- */

/* The stream leaves its segment, which is to be closed once its rows are written. */
static void leave_segment(struct stream *stream)
{
	struct segment *segment = stream->segment;

	stream->segment = NULL;
	stream->next_row = 0;
	pthread_mutex_lock(&segment->lock);
	segment->filled = true;
	segment->stream = NULL;
	pthread_mutex_unlock(&segment->lock);
	segment_note_chore(segment);
	segment_put(segment);
}

/* No more places in the open row. The caller releases it, without stream->lock. */
static struct row *leave_row(struct stream *stream)
{
	struct row *row = stream->row;

	stream->row = NULL;
	pthread_mutex_lock(&row->segment->lock);
	open_row(row)->open = false;
	pthread_mutex_unlock(&row->segment->lock);
	row_count(row);
	if (stream->next_row == row->segment->layout.rows)
		leave_segment(stream);
	return row;
}

void stream_end_segment(struct stream *stream)
{
	struct row *row = NULL;

	pthread_mutex_lock(&stream->lock);
	if (stream->row)
		row = leave_row(stream);
	if (stream->segment)
		leave_segment(stream);
	pthread_mutex_unlock(&stream->lock);
	if (row)
		row_release(row);
}

void segment_end_row(struct pool *pool, struct segment *segment, uint32_t index)
{
	struct row *row = NULL;
	struct stream *stream;

	pthread_rwlock_rdlock(&pool->table_lock); /* a stream cannot go meanwhile */
	pthread_mutex_lock(&segment->lock);
	stream = segment->stream;
	pthread_mutex_unlock(&segment->lock);
	if (stream) {
		pthread_mutex_lock(&stream->lock);
		if (stream->row && stream->row->segment == segment && stream->row->index == index)
			row = leave_row(stream);
		pthread_mutex_unlock(&stream->lock);
	}
	pthread_rwlock_unlock(&pool->table_lock);
	if (row)
		row_release(row);
}

/* --- copying ------------------------------------------------------------------------------ */

static void move_on(struct append *a, size_t bytes)
{
	a->skip += bytes;
	if (a->skip == a->iov->iov_len) {
		a->iov++;
		a->skip = 0;
	}
}

static void copy_bytes(struct append *a, uint8_t *to, size_t length)
{
	a->copied += length;
	while (length) {
		size_t here = a->iov->iov_len - a->skip;

		if (here > length)
			here = length;
		if (here)
			memcpy(to, (const uint8_t *)a->iov->iov_base + a->skip, here);
		to += here;
		length -= here;
		move_on(a, here);
	}
}

/* Fills the places taken so far; the rows may be submitted by it. */
static void copy_pieces(struct append *a)
{
	for (unsigned i = 0; i < a->piece_count; i++) {
		struct piece *piece = &a->pieces[i];

		if (piece->row->loan)
			move_on(a, piece->length);
		else
			copy_bytes(a, piece->row->memory + piece->position, piece->length);
		row_release(piece->row);
	}
	a->piece_count = 0;
}

/* --- handing out (stream->lock) ----------------------------------------------------------- */

static int note_extent(struct append *a, uint64_t segment, uint64_t offset, uint32_t length)
{
	struct extent *last = a->count ? &a->extents[a->count - 1] : NULL;

	if (last && last->segment == segment && last->offset + last->length == offset) {
		last->length += length;
		return 0;
	}
	if (a->count == a->limit)
		return -E2BIG;
	a->extents[a->count++] = (struct extent){segment, offset, length};
	return 0;
}

/* Under stream->lock: a place in the open row is now this append's. */
static int note_piece(struct append *a, struct row *row, uint32_t position, uint32_t length)
{
	struct segment *segment = row->segment;
	int rc = note_extent(a, segment->id,
		(uint64_t)row->index * segment_row_bytes(segment) + position, length);

	if (rc) {
		memset(row->memory + position, 0, length);
		return rc;
	}
	atomic_fetch_add(&segment->unreferred, length);
	atomic_fetch_add(&row->copying, 1);
	a->pieces[a->piece_count++] = (struct piece){row, position, length};
	a->left -= length;
	return 0;
}

/* All of a row that was made of the append's own memory; who calls releases it. */
static struct row *hand_out(struct append *a, struct row *row)
{
	uint32_t bytes = (uint32_t)segment_row_bytes(row->segment);
	int rc;

	take_place(row, 0, bytes);
	rc = note_piece(a, row, 0, bytes);
	assert(!rc); /* there was room for an extent more */
	(void)rc;
	return leave_row(&a->to->stream);
}

/* --- taking segments and rows (the turn) -------------------------------------------------- */

/* Room for a segment's life in memory, before anything is promised in it. */
static int prepare_segment(struct pool *pool, struct segment *segment)
{
	int rc = erasure_encode(pool, segment_code(segment), 0, NULL, NULL);

	return rc ? rc : segment_open_arrays(segment);
}

/*
 * Makes it the stream's, unless it lies on a member that is not used any more: dropping marks the
 * member first and looks at the streams then, this the other way round, so one of the two sees it.
 */
static bool adopt_segment(struct stream *stream, struct segment *segment)
{
	bool good;

	pthread_mutex_lock(&stream->lock);
	pthread_mutex_lock(&segment->lock);
	segment->stream = stream;
	pthread_mutex_unlock(&segment->lock);
	stream->segment = segment;
	stream->next_row = 0;
	good = !segment_members_gone(stream->pool, segment);
	if (!good)
		leave_segment(stream);
	pthread_mutex_unlock(&stream->lock);
	return good;
}

static int take_segment(struct append *a)
{
	struct stream *stream = &a->to->stream;
	struct segment *segment;
	int rc;

	copy_pieces(a);
	for (unsigned i = 0; i < TAKE_TRIES; i++) {
		rc = segment_take(
			stream->pool, stream->volume, stream->purpose, a->flags, &segment);
		if (rc)
			return rc;
		rc = prepare_segment(stream->pool, segment);
		if (rc) {
			segment->filled = true; /* nobody else knows it yet */
			segment_note_chore(segment);
			segment_put(segment);
			return rc;
		}
		if (adopt_segment(stream, segment))
			return 0;
	}
	return -EIO;
}

static struct segment *current_segment(struct stream *stream)
{
	struct segment *segment;

	pthread_mutex_lock(&stream->lock);
	segment = stream->segment;
	if (segment)
		atomic_fetch_add(&segment->references, 1);
	pthread_mutex_unlock(&stream->lock);
	return segment;
}

/* True when the stream still fills that segment and the row is its open one now. One of lent memory
 * is the append's, whole, and left at once. */
static bool adopt_row(struct append *a, struct row *row)
{
	struct stream *stream = &a->to->stream;
	struct segment *segment = row->segment;
	struct row *left = NULL;
	bool adopted;

	pthread_mutex_lock(&stream->lock);
	adopted = stream->segment == segment;
	if (adopted) {
		assert(!stream->row);
		row->index = stream->next_row++;
		atomic_store(&row->copying, 1);
		stream->row = row;
		pthread_mutex_lock(&segment->lock);
		open_row(row)->open = !row->loan;
		row_install(row);
		pthread_mutex_unlock(&segment->lock);
		if (row->loan)
			left = hand_out(a, row);
	}
	pthread_mutex_unlock(&stream->lock);
	if (left)
		row_release(left);
	return adopted;
}

/* The memory of the next row, if it may be written from there. */
static uint8_t *lent_memory(struct append *a, const struct segment *segment)
{
	uint64_t bytes = segment_row_bytes(segment);
	uint8_t *memory;

	if (!a->loan || a->packed || a->left < bytes || a->count == a->limit)
		return NULL;
	copy_pieces(a);
	while (a->skip == a->iov->iov_len)
		move_on(a, 0);
	memory = (uint8_t *)a->iov->iov_base + a->skip;
	return a->iov->iov_len - a->skip < bytes || (uintptr_t)memory % BLOCK_SIZE ? NULL : memory;
}

static int create_row(struct append *a, struct segment *segment, struct row **row)
{
	struct pool *pool = a->to->stream.pool;
	uint8_t *memory = lent_memory(a, segment);

	return memory ? row_create_lent(pool, segment, a->loan, memory, row)
		      : row_create(pool, segment, 0, row);
}

static int take_row_of(struct append *a, struct segment *segment)
{
	struct stream *stream = &a->to->stream;
	size_t bytes = (size_t)segment_chunks(segment) * segment->layout.cell;
	struct row *row;
	int rc = 0;

	if (row_memory_full(stream->pool, bytes)) {
		copy_pieces(a);
		rc = row_memory_wait(stream->pool, bytes);
	}
	if (!rc)
		rc = create_row(a, segment, &row);
	if (!rc && !adopt_row(a, row))
		row_put(row);
	return rc;
}

/* The stream has no open row: gets it one, or at least a segment. To be called again. */
static int take_row(struct append *a)
{
	struct segment *segment = current_segment(&a->to->stream);
	int rc;

	if (!segment)
		return take_segment(a);
	rc = take_row_of(a, segment);
	segment_put(segment);
	return rc;
}

/* --- appending ---------------------------------------------------------------------------- */

static uint32_t place(struct append *a, struct row *row, uint32_t *position)
{
	uint32_t length;

	if (a->packed)
		return place_packed(row, a->left, position);
	length = place_linear(row, a->left, a->to->linear, position);
	a->to->linear = true;
	return length;
}

/* Takes the next place; *again: there is no open row to take it in. */
static int take_piece(struct append *a, bool *again)
{
	struct stream *stream = &a->to->stream;
	struct row *row, *left = NULL;
	uint32_t position, length;
	int rc = 0;

	pthread_mutex_lock(&stream->lock);
	row = stream->row;
	*again = !row;
	if (row) {
		length = place(a, row, &position);
		if (length)
			rc = note_piece(a, row, position, length);
		if (!length || row_full(row))
			left = leave_row(stream);
	}
	pthread_mutex_unlock(&stream->lock);
	if (left)
		row_release(left);
	return rc;
}

/* Where what is appended would make up whole rows, but for what is in the open one. */
static void end_partial_row(struct append *a)
{
	struct stream *stream = &a->to->stream;
	struct segment *segment = current_segment(stream);
	struct row *left = NULL;

	if (segment && lent_memory(a, segment)) {
		pthread_mutex_lock(&stream->lock);
		if (stream->row)
			left = leave_row(stream);
		pthread_mutex_unlock(&stream->lock);
	}
	segment_put(segment);
	if (left)
		row_release(left);
}

static int take_places(struct append *a)
{
	bool packed = a->packed, again;
	int rc = 0;

	if (packed && a->left > a->to->stream.pool->header.cell)
		a->packed = false;
	if (packed)
		a->to->linear = false;
	if (a->flags & APPEND_WHOLE)
		end_partial_row(a);
	while (!rc && a->left) {
		if (a->piece_count == PIECES_MAX)
			copy_pieces(a);
		rc = take_piece(a, &again);
		if (!rc && again)
			rc = take_row(a);
	}
	if (packed)
		a->to->linear = false;
	return rc;
}

/* What was taken from what is kept for other data is not for these bytes, also where the segment
 * has room. */
static bool is_kept_from(const struct stream *stream, unsigned flags)
{
	return stream->purpose == PURPOSE_DATA && !(flags & (APPEND_RESERVED | APPEND_KEPT)) &&
	       pool_kept(stream->pool) && segments_left(stream->pool, PURPOSE_DATA, flags) < 0;
}

static int may_append(const struct stream *stream, unsigned flags)
{
	int failure = atomic_load(&stream->pool->failure);

	if (failure)
		return failure;
	if (stream->pool->read_only)
		return -EROFS;
	return is_kept_from(stream, flags) ? -ENOSPC : 0;
}

int stream_append_lent(struct stream *stream, struct loan *loan, const struct iovec *iov,
	unsigned iov_count, size_t length, unsigned flags, struct extent *extents, unsigned *count)
{
	struct append a = {.to = (struct appender *)stream,
		.iov = iov,
		.left = length,
		.packed = flags & APPEND_PACKED,
		.flags = flags,
		.loan = loan,
		.extents = extents,
		.limit = *count};
	int rc = may_append(stream, flags);

	if (!rc && iov_length(iov, iov_count) < length)
		rc = -EINVAL;
	if (!rc) {
		pthread_mutex_lock(&a.to->turn);
		rc = take_places(&a);
		pthread_mutex_unlock(&a.to->turn);
		copy_pieces(&a);
		if (stream->purpose == PURPOSE_DATA)
			pool_count_copied(stream->pool, a.copied);
	}
	if (rc)
		pool_abandon_extents(stream->pool, extents, a.count);
	*count = rc ? 0 : a.count;
	return rc;
}

int stream_append(struct stream *stream, const struct iovec *iov, unsigned iov_count, size_t length,
	unsigned flags, struct extent *extents, unsigned *count)
{
	return stream_append_lent(stream, NULL, iov, iov_count, length, flags, extents, count);
}

void loan_begin(struct loan *loan, void (*done)(struct loan *loan))
{
	atomic_init(&loan->users, 1);
	loan->done = done;
}

void loan_end(struct loan *loan)
{
	if (atomic_fetch_sub(&loan->users, 1) == 1)
		loan->done(loan);
}

/* --- opening and closing ------------------------------------------------------------------ */

int stream_open_purpose(
	struct pool *pool, uint32_t volume, enum segment_purpose purpose, struct stream **stream)
{
	struct appender *to;

	if (pool->read_only)
		return -EROFS;
	to = calloc(1, sizeof(*to));
	if (!to)
		return -ENOMEM;
	to->stream.pool = pool;
	to->stream.volume = volume;
	to->stream.purpose = purpose;
	pthread_mutex_init(&to->stream.lock, NULL);
	pthread_mutex_init(&to->turn, NULL);
	pthread_rwlock_wrlock(&pool->table_lock);
	to->stream.next = pool->streams;
	pool->streams = &to->stream;
	pthread_rwlock_unlock(&pool->table_lock);
	*stream = &to->stream;
	return 0;
}

/* Counts one more stream, or one less. */
static int count_stream(struct pool *pool, int change)
{
	unsigned limit = pool->options.stream_limit;
	int rc = 0;

	pthread_rwlock_wrlock(&pool->table_lock);
	if (change > 0 && pool->stream_count >= limit)
		rc = -EMFILE;
	else
		pool->stream_count += (unsigned)change;
	pthread_rwlock_unlock(&pool->table_lock);
	return rc;
}

int stream_open(struct pool *pool, uint32_t volume, struct stream **stream)
{
	int rc = count_stream(pool, 1);

	if (rc)
		return rc;
	rc = stream_open_purpose(pool, volume, PURPOSE_DATA, stream);
	if (rc)
		count_stream(pool, -1);
	else
		((struct appender *)*stream)->counted = true;
	return rc;
}

/* Off the list, and freed; it has no segment any more. */
static void stream_free(struct stream *stream)
{
	struct appender *to = (struct appender *)stream;
	struct pool *pool = stream->pool;
	struct stream **at = &pool->streams;

	pthread_rwlock_wrlock(&pool->table_lock);
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	pthread_rwlock_unlock(&pool->table_lock);
	if (to->counted)
		count_stream(pool, -1);
	pthread_mutex_destroy(&to->turn);
	pthread_mutex_destroy(&stream->lock);
	free(to);
}

void stream_close(struct stream *stream)
{
	if (!stream)
		return;
	stream_end_segment(stream);
	stream_free(stream);
}

void stream_abandon(struct stream *stream)
{
	segment_put(stream->segment);
	stream_free(stream);
}
