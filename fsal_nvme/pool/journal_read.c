/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Following the journal's chain of batches, and replaying it.
 *
 * The last span, whose owner did not come back to say where it ended, goes up to the first place at
 * which no readable member holds the batch that continues the chain. What lies there may be a batch
 * that was torn, one of an earlier lap, or a late write of an earlier epoch: position, epoch and
 * the hash of the batch before tell each of them from the right one. A member that cannot be read
 * says nothing: a durable batch is on parity + 1 members, so the end is believed only when at most
 * `parity` of the active ones are silent.
 *
 * The last batch found may never have been durable: the power was cut when one copy of it was
 * written. But from the moment when the next epoch continues the chain behind it, it is needed. So
 * journal_replay() writes it to parity + 1 members before it returns.
 */
#include "pool/journal.h"

/* --- reading ---------------------------------------------------------------------------------- */

static int read_ring(struct walk *w, struct member *member, uint64_t position, size_t length)
{
	struct io io;
	int rc;

	w->member = NULL;
	io_prepare(&io, IO_READ, member->device, member->header.journal_offset + position % w->ring,
		w->piece, length);
	rc = io_run(w->pool->engine, &io);
	if (rc)
		return rc;
	w->member = member;
	w->position = position;
	w->length = length;
	return 0;
}

/*
 * `length` bytes of one member's ring, *bytes valid until the next call. The preferred member, the
 * one that had the batch before, is read ahead in large pieces.
 */
static int read_at(struct walk *w, struct member *member, uint64_t position, size_t length,
	const uint8_t **bytes)
{
	uint64_t lap_end = (position / w->ring + 1) * w->ring;
	size_t piece = length;
	int rc;

	if (w->member != member || position < w->position ||
		position + length > w->position + w->length) {
		if (member == w->preferred)
			piece = w->piece_size < lap_end - position ? w->piece_size
								   : lap_end - position;
		rc = read_ring(w, member, position, piece > length ? piece : length);
		if (rc && piece > length && rc != -ESHUTDOWN)
			rc = read_ring(w, member, position, length);
		if (rc) {
			atomic_fetch_add(&member->read_errors, 1);
			return rc;
		}
	}
	*bytes = w->piece + (position - w->position);
	return 0;
}

/* --- one batch -------------------------------------------------------------------------------- */

bool record_next(struct reader *r, struct record *record)
{
	uint32_t length;

	if (r->at == r->end)
		return false;
	length = get_u32(r);
	record->lsn = get_u64(r);
	record->payload = get_bytes(r, length);
	record->length = length;
	if (!length)
		r->bad = true;
	return !r->bad;
}

static struct reader batch_records(const struct walk *w)
{
	return reader_on(w->batch + BATCH_HEADER_SIZE, w->header.length - BATCH_HEADER_SIZE);
}

static bool window_decode(const struct record *record, uint64_t *window, uint64_t *next)
{
	struct reader r = reader_on(record->payload + 1, record->length - 1);
	uint64_t end = *next;

	*window = get_u64(&r);
	*next = get_u64(&r);
	return !r.bad && record->lsn == 0 && !(*window % BLOCK_SIZE) && !(*next % BLOCK_SIZE) &&
	       *next >= end;
}

/* What a batch leads to, from its records; false when they are not well formed. */
static bool batch_follow(const struct walk *w, const struct batch_header *h, const uint8_t *batch,
	struct journal_position *after, uint64_t *window)
{
	struct reader r = reader_on(batch + BATCH_HEADER_SIZE, h->length - BATCH_HEADER_SIZE);
	struct record record;
	uint32_t count = 0;

	*after = (struct journal_position){.position = h->position + journal_blocks(h->length),
		.lsn = h->lsn,
		.hash = h->hash,
		.epoch = h->epoch};
	*window = w->window;
	while (record_next(&r, &record)) {
		count++;
		if (record.payload[0] == RECORD_WINDOW) {
			if (!window_decode(&record, window, &after->position) || r.at != r.end)
				return false;
		} else if (record.lsn != after->lsn++) {
			return false;
		}
	}
	return !r.bad && count == h->records;
}

/* The next batch must be there. */
static bool is_known(const struct walk *w)
{
	return w->at.position < w->spans[w->span].end;
}

static bool is_expected(const struct walk *w, const struct batch_header *h, uint64_t position)
{
	uint64_t lap_end = (position / w->ring + 1) * w->ring;
	uint64_t end = position + journal_blocks(h->length);

	if (memcmp(h->pool, w->pool->label.pool, sizeof(h->pool)) || h->epoch != w->at.epoch ||
		h->position != position)
		return false;
	if (h->length > journal_batch_max(w->ring) || end > lap_end)
		return false;
	if (is_known(w) && end > w->spans[w->span].end)
		return false;
	return !w->anchored || (h->lsn == w->at.lsn && h->previous == w->at.hash);
}

static void walk_take(struct walk *w, struct member *member, const struct batch_header *h,
	const uint8_t *batch, const struct journal_position *after, uint64_t window)
{
	w->before = w->at;
	if (!w->anchored)
		w->before.lsn = h->lsn;
	w->before.position = h->position;
	w->before.hash = h->previous;
	w->header = *h;
	w->batch = batch;
	w->behind = h->position + journal_blocks(h->length);
	w->at = *after;
	if (w->window != UINT64_MAX && window > w->window)
		w->window = window;
	w->anchored = true;
	w->any = true;
	w->preferred = member;
}

/* 1: the member's copy is the one; 0: it is another or a bad one; or the error of reading it. */
static int try_copy(struct walk *w, struct member *member, uint64_t position)
{
	struct journal_position after;
	struct batch_header h;
	const uint8_t *bytes;
	uint64_t window;
	size_t length;
	int rc = read_at(w, member, position, BLOCK_SIZE, &bytes);

	if (rc)
		return rc;
	if (batch_peek(&h, bytes) || !is_expected(w, &h, position))
		return 0;
	length = journal_blocks(h.length);
	rc = read_at(w, member, position, length, &bytes);
	if (rc)
		return rc;
	if (batch_decode(&h, bytes, length) || !is_expected(w, &h, position) ||
		!batch_follow(w, &h, bytes, &after, &window))
		return 0;
	walk_take(w, member, &h, bytes, &after, window);
	return 1;
}

/* --- one place -------------------------------------------------------------------------------- */

/* Marks members that could not be read in `silent` (a bit each). */
static int find_at(struct walk *w, uint64_t position, uint64_t *silent)
{
	struct pool *pool = w->pool;
	struct member *first = w->preferred;
	int rc = first ? try_copy(w, first, position) : 0;

	if (rc < 0)
		*silent |= 1ull << (first - pool->devices);
	for (unsigned i = 0; i < pool->device_count && rc != 1 && rc != -ESHUTDOWN; i++) {
		struct member *member = &pool->devices[i];

		if (member == first || !member_usable(member))
			continue;
		rc = try_copy(w, member, position);
		if (rc < 0)
			*silent |= 1ull << i;
	}
	return rc == 1 || rc == -ESHUTDOWN ? rc : 0;
}

/*
 * One that was dropped, and is there, has what it had before. Should that be a batch which never
 * counted, and stands where this one did, what follows does not continue it, and the walk fails as
 * it would have without.
 */
static int find_on_dropped(struct walk *w, uint64_t position)
{
	struct pool *pool = w->pool;
	int rc = 0;

	for (unsigned i = 0; i < pool->device_count && rc != 1 && rc != -ESHUTDOWN; i++) {
		struct member *member = &pool->devices[i];

		if (!member_usable(member) && member->device)
			rc = try_copy(w, member, position);
	}
	if (rc == 1)
		w->preferred = NULL; /* the next is asked of the others first */
	return rc == 1 || rc == -ESHUTDOWN ? rc : 0;
}

/* Whether a durable batch would have been seen although these members said nothing. */
static bool enough_spoke(const struct walk *w, uint64_t silent)
{
	const struct pool *pool = w->pool;
	uint64_t active = members_active(pool);

	for (unsigned i = 0; i < pool->device_count; i++)
		if (active >> i & 1 && !member_usable(&pool->devices[i]))
			silent |= UINT64_C(1) << i;
	return losses_allowed(pool, active, silent);
}

static int gap(struct walk *w, uint64_t silent)
{
	w->silent = silent != 0;
	if (!is_known(w) && w->stop == UINT64_MAX && enough_spoke(w, silent))
		return 0;
	log_error("pool %s: journal: no good copy of the batch with LSN %llu at position %llu of "
		  "epoch %llu, which must be there",
		w->pool->label.name, (unsigned long long)w->at.lsn,
		(unsigned long long)w->at.position, (unsigned long long)w->at.epoch);
	return -EIO;
}

static int find(struct walk *w)
{
	uint64_t next_lap = (w->at.position / w->ring + 1) * w->ring, silent = 0;
	uint64_t window = w->window;
	int rc = find_at(w, w->at.position, &silent);

	/* At the ring's start there is nothing that could have been skipped. */
	if (!rc && w->at.position % w->ring)
		rc = find_at(w, next_lap, &silent);
	if (!rc && is_known(w))
		rc = find_on_dropped(w, w->at.position);
	if (!rc && is_known(w) && w->at.position % w->ring)
		rc = find_on_dropped(w, next_lap);
	if (!rc)
		return gap(w, silent);
	if (rc == 1 && w->behind > window) {
		log_error("pool %s: journal: the batch at position %llu reaches behind the window "
			  "%llu that its owner had",
			w->pool->label.name, (unsigned long long)w->header.position,
			(unsigned long long)window);
		return -EIO;
	}
	return rc;
}

/* --- spans ------------------------------------------------------------------------------------ */

static void set_span(struct walk *w, unsigned span)
{
	const struct journal_span *s = &w->spans[span];

	w->span = span;
	if (w->window != UINT64_MAX)
		w->window = s->window;
	w->any = false;
}

/* From the end of a span into the next one, which must continue the chain. */
static int enter_span(struct walk *w, unsigned span)
{
	const struct journal_span *s = &w->spans[span];

	if ((w->anchored && (s->start.lsn != w->at.lsn || s->start.hash != w->at.hash)) ||
		s->start.position < w->behind) {
		log_error("pool %s: journal: epoch %llu does not begin at LSN %llu, where the one "
			  "before it ends",
			w->pool->label.name, (unsigned long long)s->epoch,
			(unsigned long long)w->at.lsn);
		return -EIO;
	}
	w->at = s->start;
	w->at.epoch = s->epoch;
	w->anchored = true;
	w->behind = w->at.position;
	set_span(w, span);
	return 0;
}

/* The span that `from` lies in, or the first one behind it; span_count when there is none. */
static unsigned span_of(const struct walk *w, bool anchored)
{
	unsigned i = 0;

	while (anchored && i < w->span_count && w->spans[i].epoch < w->at.epoch)
		i++;
	while (!anchored && i + 1 < w->span_count &&
		w->spans[i + 1].start.position <= w->at.position)
		i++;
	return i;
}

int walk_begin(struct walk *w, struct pool *pool, const struct journal_span *spans,
	unsigned span_count, const struct journal_position *from, bool anchored)
{
	unsigned span;

	*w = (struct walk){.pool = pool,
		.ring = pool->header.journal_size,
		.spans = spans,
		.span_count = span_count,
		.at = *from,
		.anchored = anchored,
		.stop = UINT64_MAX,
		.behind = from->position,
		.piece_size = journal_batch_max(pool->header.journal_size)};
	if (w->piece_size < READ_PIECE && w->ring >= READ_PIECE)
		w->piece_size = READ_PIECE;
	w->piece = buffer_alloc(pool->engine, w->piece_size);
	if (!w->piece)
		return -ENOMEM;
	span = span_of(w, anchored);
	if (span == span_count && span_count) {
		log_error("pool %s: journal: the labels know nothing of epoch %llu, where replay "
			  "is to "
			  "start",
			pool->label.name, (unsigned long long)from->epoch);
		return -EIO;
	}
	if (!span_count)
		return 0;
	if ((anchored && spans[span].epoch != from->epoch) ||
		spans[span].start.position > from->position)
		return enter_span(w, span);
	w->at.epoch = spans[span].epoch;
	set_span(w, span);
	return 0;
}

void walk_end(struct walk *w)
{
	if (w->piece)
		buffer_free(w->pool->engine, w->piece, w->piece_size);
	w->piece = NULL;
}

int walk_next(struct walk *w)
{
	while (w->span_count && w->at.position < w->stop) {
		int rc;

		if (is_known(w) || w->span + 1 == w->span_count)
			return find(w);
		rc = enter_span(w, w->span + 1);
		if (rc)
			return rc;
	}
	return 0;
}

/* --- replay ----------------------------------------------------------------------------------- */

typedef int record_fn(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length);

/* The first record of an epoch names where its owner cut the log. The first of a span is one. */
static int check_epoch(const struct walk *w, const struct record *record)
{
	struct reader r = reader_on(record->payload + 1, record->length - 1);
	const struct journal_span *span = &w->spans[w->span];
	uint64_t epoch = get_u64(&r), lsn = get_u64(&r), hash = get_u64(&r);

	if (!r.bad && record->payload[0] == RECORD_EPOCH && epoch >= span->epoch &&
		lsn == record->lsn - 1 && hash == w->header.previous)
		return 0;
	log_error("pool %s: journal: record %llu does not begin an epoch behind the one before",
		w->pool->label.name, (unsigned long long)record->lsn);
	return -EIO;
}

static int replay_batch(struct walk *w, record_fn *apply)
{
	struct reader r = batch_records(w);
	struct record record;
	int rc = 0;

	while (!rc && record_next(&r, &record)) {
		uint8_t kind = record.payload[0];

		if (kind == RECORD_WINDOW)
			continue;
		if (kind == RECORD_EPOCH || record.lsn == w->spans[w->span].start.lsn)
			rc = check_epoch(w, &record);
		else
			rc = apply(w->pool, record.lsn, record.payload, record.length);
	}
	return rc;
}

/* The last batch of the last span, onto as many members as if it had been durable. */
static int secure_last(struct walk *w)
{
	struct journal_position from = w->before;
	struct copies copies;
	struct walk again;
	int rc;

	if (w->pool->read_only || !w->any || w->before.position < w->spans[w->span].end)
		return 0;
	do {
		/* With too few members the pool is not going to be written to. */
		if (journal_choose(w->pool, NULL, &copies))
			return 0;
		rc = walk_begin(&again, w->pool, w->spans, w->span_count, &from, true);
		again.window = UINT64_MAX;
		again.stop = w->behind;
		if (!rc)
			rc = journal_copy(&again, &copies);
		walk_end(&again);
	} while (rc == -EAGAIN);
	return rc;
}

int journal_replay(struct pool *pool, const struct journal_position *from, record_fn *record,
	struct journal_position *end, uint64_t *window)
{
	struct walk w;
	int rc = walk_begin(&w, pool, pool->label.spans, pool->label.span_count, from, true);

	while (!rc) {
		rc = walk_next(&w);
		if (rc <= 0)
			break;
		rc = replay_batch(&w, record);
	}
	if (!rc) {
		*end = w.at;
		*window = w.window > w.at.position ? w.window : w.at.position;
		pool->journal->replayed_last = w.any ? w.before.position : w.at.position;
		pool->journal->replayed_all = !w.silent;
		rc = secure_last(&w);
	}
	walk_end(&w);
	return rc;
}
