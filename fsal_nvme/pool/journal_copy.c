/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Which members hold the journal, and bringing what it holds to others.
 *
 * The members are chosen when the journal starts and stay until one of them is dropped. Whoever
 * chooses copies everything from the tail on to all of them before anything new is written there,
 * so that from then on the whole ring that counts is on each of them. What stands there already is
 * compared, not written again; each is flushed in any case, since bytes that a crashed owner wrote
 * may be read from a cache that they do not leave in time.
 *
 * Crash cases: before the copying is complete nothing has been acknowledged that the old members do
 * not hold, less those that failed; the copies are the same bytes in the same places.
 */
#include "pool/journal.h"

/* --- choosing --------------------------------------------------------------------------------- */

static bool is_fit(const struct member *member)
{
	return member_usable(member) && member->device && !atomic_load(&member->failing);
}

static bool holds(const struct copies *copies, const struct member *member)
{
	for (unsigned i = 0; i < copies->count; i++) {
		if (copies->member[i] == member)
			return true;
	}
	return false;
}

static unsigned in_domain(const struct copies *copies, const struct member *member)
{
	unsigned count = 0;

	for (unsigned i = 0; i < copies->count; i++)
		count += !strncmp(copies->member[i]->label.domain, member->label.domain,
			sizeof(member->label.domain));
	return count;
}

static bool is_better(const struct copies *old, const struct copies *copies,
	const struct member *member, const struct member *best)
{
	unsigned here = in_domain(copies, member), there = in_domain(copies, best);

	return here < there || (here == there && old && holds(old, member) && !holds(old, best));
}

static struct member *best_addition(
	struct pool *pool, const struct copies *old, const struct copies *copies)
{
	struct member *best = NULL;

	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (!is_fit(member) || holds(copies, member))
			continue;
		if (!best || is_better(old, copies, member, best))
			best = member;
	}
	return best;
}

int journal_choose(struct pool *pool, const struct copies *old, struct copies *copies)
{
	copies->count = 0;
	while (copies->count < pool->header.parity + 1u) {
		struct member *member = best_addition(pool, old, copies);

		if (!member)
			return -EIO;
		copies->member[copies->count++] = member;
	}
	return 0;
}

/* --- copying ---------------------------------------------------------------------------------- */

/* Batches on their way, gathered into pieces. */
struct copying {
	struct pool *pool;
	const struct copies *copies;
	uint8_t *out, *back;
	size_t size, length;
	uint64_t position;
};

static int member_run(struct copying *c, struct member *member, enum io_op op, void *buffer)
{
	uint64_t ring = c->pool->header.journal_size;
	struct io io;
	int rc;

	io_prepare(&io, op, member->device, member->header.journal_offset + c->position % ring,
		buffer, c->length);
	if (op == IO_FLUSH)
		io_prepare(&io, op, member->device, 0, NULL, 0);
	rc = io_run(c->pool->engine, &io);
	if (!rc || op == IO_READ || rc == -ESHUTDOWN)
		return rc;
	member_failed(c->pool, member, rc);
	return -EAGAIN;
}

static int copy_to(struct copying *c, struct member *member)
{
	int rc = member_run(c, member, IO_READ, c->back);

	if (rc == -ESHUTDOWN || (!rc && !memcmp(c->out, c->back, c->length)))
		return rc;
	return member_run(c, member, IO_WRITE, c->out);
}

static int copy_piece(struct copying *c)
{
	int rc = 0;

	for (unsigned i = 0; c->length && !rc && i < c->copies->count; i++)
		rc = copy_to(c, c->copies->member[i]);
	c->length = 0;
	return rc;
}

static int flush_all(struct copying *c)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < c->copies->count; i++)
		rc = member_run(c, c->copies->member[i], IO_FLUSH, NULL);
	return rc;
}

/* The padding is zero on every member, whatever this one's copy has there. */
static void gather(struct copying *c, const struct walk *w)
{
	size_t whole = journal_blocks(w->header.length);

	if (!c->length)
		c->position = w->header.position;
	memcpy(c->out + c->length, w->batch, w->header.length);
	memset(c->out + c->length + w->header.length, 0, whole - w->header.length);
	c->length += whole;
}

/* Whether the next batch stands right behind, in the ring too, and fits. */
static bool goes_on(const struct copying *c, const struct walk *w)
{
	uint64_t position = w->header.position;

	return c->position + c->length == position && position % c->pool->header.journal_size &&
	       c->length + journal_blocks(w->header.length) <= c->size;
}

static int copy_batches(struct copying *c, struct walk *w)
{
	int rc;

	while ((rc = walk_next(w)) > 0) {
		if (!goes_on(c, w))
			rc = copy_piece(c);
		if (rc < 0)
			return rc;
		gather(c, w);
	}
	if (!rc)
		rc = copy_piece(c);
	return rc ? rc : flush_all(c);
}

int journal_copy(struct walk *w, const struct copies *copies)
{
	struct engine *engine = w->pool->engine;
	struct copying c = {.pool = w->pool, .copies = copies, .size = w->piece_size};
	int rc = -ENOMEM;

	c.out = buffer_alloc(engine, c.size);
	c.back = buffer_alloc(engine, c.size);
	if (c.out && c.back)
		rc = copy_batches(&c, w);
	if (c.out)
		buffer_free(engine, c.out, c.size);
	if (c.back)
		buffer_free(engine, c.back, c.size);
	return rc;
}

int journal_copy_ring(struct journal *j, uint64_t from, uint64_t to, const struct copies *copies)
{
	struct journal_position tail = {.position = from};
	struct walk w;
	int rc;

	if (from == to)
		return 0;
	rc = walk_begin(&w, j->pool, j->spans, j->span_count, &tail, false);
	w.stop = to;
	w.window = UINT64_MAX;
	if (!rc)
		rc = journal_copy(&w, copies);
	walk_end(&w);
	return rc;
}

/* --- rearranging ------------------------------------------------------------------------------ */

static bool same_members(const struct copies *a, const struct copies *b)
{
	return a->count == b->count &&
	       !memcmp(a->member, b->member, a->count * sizeof(a->member[0]));
}

/* Held: nothing is in flight, and nobody but us changes `copies`. */
static int rearrange_once(struct journal *j)
{
	struct copies copies;
	uint64_t tail, head;
	bool parked;
	int rc;

	pthread_mutex_lock(&j->lock);
	rc = j->failure;
	parked = j->state == JOURNAL_PARKED;
	tail = j->tail;
	head = j->durable.position;
	pthread_mutex_unlock(&j->lock);
	if (!rc)
		rc = journal_choose(j->pool, &j->copies, &copies);
	if (!rc && !same_members(&copies, &j->copies))
		rc = journal_copy_ring(j, tail, head, &copies);
	if (rc)
		return rc;
	j->copies = copies;
	return parked ? journal_write_again(j) : 0;
}

static int rearrange(struct journal *j)
{
	int rc;

	pthread_mutex_lock(&j->arrange_lock);
	rc = journal_hold(j);
	if (!rc) {
		do
			rc = rearrange_once(j);
		while (rc == -EAGAIN);
	}
	journal_go_on(j);
	pthread_mutex_unlock(&j->arrange_lock);
	return rc;
}

int journal_rearrange(struct pool *pool)
{
	struct journal *j = pool->journal;
	int rc = j && j->started ? rearrange(j) : 0;

	if (rc)
		pool_fail(pool, rc, "the journal cannot be moved off a failed device");
	return rc;
}

/* One that fails in it is dropped, with all that belongs to that. */
void journal_spread(struct pool *pool)
{
	struct journal *j = pool->journal;
	int rc = j && j->started ? rearrange(j) : 0;

	if (rc)
		log_warning("pool %s: the journal stays where it is: %s", pool->label.name,
			strerror(-rc));
}
