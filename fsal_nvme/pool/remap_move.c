/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Moving a segment of a sealed volume: its bytes were appended elsewhere. They are made durable
 * there, and one transaction refers to them, writes the rows that say so, and takes the segment's
 * chunks away. Before it the segment is as it was, and what was written is nobody's; after it reads
 * go to the new place, and the slots go back when the last read of the old one ends.
 *
 * The segment may be a place that remaps name: then the rows that name it are written anew, and it
 * is freed.
 */
#include "pool/env.h"
#include "pool/remap.h"
#include "pool/row.h"

struct moving {
	struct txn *txn;
	struct segment *segment;
	uint64_t live; /* of it, as the caller counted it */
	const struct moved_run *runs;
	unsigned count;
	struct extent *extents; /* the new places, the last first */
};

/* --- rows and what they are in memory ----------------------------------------------------- */

/* One struct takes another's place in the table when the transaction commits. */
struct replace_hook {
	struct txn_hook hook;
	struct segment *old, *fresh;
};

static void replace_end(struct txn_hook *hook, uint64_t lsn)
{
	struct replace_hook *r = (struct replace_hook *)hook;

	if (lsn)
		segment_replace(r->old, r->fresh, lsn);
	else
		segment_put(r->fresh); /* the table's reference */
	segment_put(r->fresh);
	segment_put(r->old);
	free(r);
}

/* Takes `remap`. */
static int replace(struct txn *txn, struct segment *old, struct remap *remap)
{
	struct segment_row row = old->row;
	struct replace_hook *r = malloc(sizeof(*r));
	struct segment *fresh;

	row.state = SEGMENT_MOVED;
	row.data = row.parity = 0;
	row.rows = 0;
	row.length = 0;
	fresh = r ? segment_prepare(txn_pool(txn), &row, remap) : NULL;
	if (!fresh) {
		free(r);
		free(remap);
		return -ENOMEM;
	}
	segment_ref(old);
	*r = (struct replace_hook){.hook.run = replace_end, .old = old, .fresh = fresh};
	txn_on_end(txn, &r->hook);
	return segment_record(txn, fresh);
}

static int put_run(struct txn *txn, uint64_t segment, const struct remap_run *run)
{
	uint8_t key[ROW_KEY_MAX], value[REMAP_ROW_SIZE];
	struct writer k = writer_on(key, sizeof(key)), v = writer_on(value, sizeof(value));

	put_u8(&k, KEY_REMAP);
	put_be64(&k, segment);
	put_be64(&k, run->offset);
	remap_run_encode(run, &v);
	return txn_put(txn, pool_env(txn_pool(txn)), (struct bytes){key, sizeof(key)},
		(struct bytes){value, sizeof(value)});
}

static struct remap *remap_of(const struct moving *m)
{
	struct remap *remap = remap_new(m->count);

	for (unsigned i = 0; remap && i < m->count; i++) {
		const struct extent *to = &m->runs[i].to;

		remap->runs[remap->count++] =
			(struct remap_run){m->runs[i].offset, to->length, to->segment, to->offset};
	}
	return remap;
}

/* --- what images name --------------------------------------------------------------------- */

static int move_named(struct moving *m)
{
	struct remap *remap;
	int rc = 0;

	if (m->segment->row.live != m->live)
		return -EBADMSG;
	remap = remap_of(m);
	if (!remap)
		return -ENOMEM;
	for (unsigned i = 0; !rc && i < remap->count; i++)
		rc = put_run(m->txn, m->segment->id, &remap->runs[i]);
	if (!rc)
		return replace(m->txn, m->segment, remap);
	free(remap);
	return rc;
}

/* --- what remaps name --------------------------------------------------------------------- */

/* Runs of a moved segment, some of which are in the segment that is emptied. */
struct rewriting {
	struct moving *moving;
	const struct remap *moves; /* where the bytes of that one are now */
	uint64_t bytes; /* of it that runs have named so far */
	struct segment *moved;
	struct remap *fresh; /* its runs as they will be */
	unsigned room;
};

static int add_run(struct rewriting *w, const struct remap_run *run)
{
	if (w->fresh->count == w->room)
		return -EBADMSG; /* it overlaps another */
	w->fresh->runs[w->fresh->count++] = *run;
	return 0;
}

/* A run of the segment that is emptied, in as many as its bytes lie in now. */
static int rewrite_run(struct rewriting *w, struct remap_run run)
{
	int rc = 0;

	while (!rc && run.length) {
		const struct remap_run *move = remap_find(w->moves, run.to);
		struct remap_run part = run;
		uint64_t skip;

		if (!move || move->offset > run.to)
			return -EBADMSG; /* not all of it was moved */
		skip = run.to - move->offset;
		if (part.length > move->length - skip)
			part.length = move->length - skip;
		part.segment = move->segment;
		part.to = move->to + skip;
		rc = add_run(w, &part);
		if (!rc)
			rc = put_run(w->moving->txn, w->moved->id, &part);
		w->bytes += part.length;
		run.offset += part.length;
		run.to += part.length;
		run.length -= part.length;
	}
	return rc;
}

static int rewrite_runs(struct rewriting *w)
{
	const struct remap *old = w->moved->remap;
	int rc = 0;

	for (unsigned i = 0; !rc && i < old->count; i++)
		rc = old->runs[i].segment == w->moving->segment->id ? rewrite_run(w, old->runs[i])
								    : add_run(w, &old->runs[i]);
	if (!rc && w->fresh->count > pool_remap_most(w->moved->pool))
		rc = -E2BIG;
	return rc;
}

static int rewrite(struct rewriting *w)
{
	int rc;

	w->room = w->moved->remap->count + w->moves->count;
	w->fresh = remap_new(w->room);
	if (!w->fresh)
		return -ENOMEM;
	rc = rewrite_runs(w);
	if (!rc)
		return replace(w->moving->txn, w->moved, w->fresh);
	free(w->fresh);
	return rc;
}

static bool names(const struct remap *remap, uint64_t segment)
{
	for (unsigned i = 0; i < remap->count; i++)
		if (remap->runs[i].segment == segment)
			return true;
	return false;
}

static int rewrite_all(struct rewriting *w)
{
	const struct segment *emptied = w->moving->segment;
	struct segment **list;
	unsigned count;
	int rc = remap_list(emptied->pool, emptied->row.volume, &list, &count);

	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		w->moved = list[i];
		if (!rc && names(list[i]->remap, emptied->id))
			rc = rewrite(w);
		segment_put(list[i]);
	}
	free(list);
	return !rc && w->bytes != emptied->row.live ? -EBADMSG : rc;
}

/* The others first: who finds the old place gone finds the new one then. */
static int move_place(struct moving *m)
{
	struct remap *moves = remap_of(m);
	struct rewriting w = {.moving = m, .moves = moves};
	int rc = !moves ? -ENOMEM : m->live ? -EBADMSG : rewrite_all(&w);

	free(moves);
	return rc ? rc : segment_free(m->txn, m->segment);
}

/* --- the transaction ---------------------------------------------------------------------- */

static void mark_places(struct pool *pool, const struct moving *m)
{
	for (unsigned i = 0; i < m->count; i++) {
		struct segment *place = segment_get(pool, m->runs[i].to.segment);

		if (place)
			atomic_store(&place->place, true);
		segment_put(place);
	}
}

static bool is_sealed(struct txn *txn, uint32_t volume)
{
	struct volume_row row;

	return !volume_row_get(txn, volume, &row) && row.sealed && !row.destroying;
}

static int move_segment(struct moving *m)
{
	const struct segment *s = m->segment;
	int rc;

	if (s->row.state != SEGMENT_CLOSED || written_late(s->pool, &s->row) ||
		!is_sealed(m->txn, s->row.volume))
		return -ENOENT;
	if (remap_is_crowded(s->pool))
		return -ENOSPC;
	rc = txn_refer(m->txn, m->extents, m->count);
	if (rc)
		return rc;
	return atomic_load(&s->place) ? move_place(m) : move_named(m);
}

static int move(struct pool *pool, uint64_t id, struct moving *m)
{
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &m->txn);

	if (rc)
		return rc;
	m->segment = segment_get(pool, id);
	rc = m->segment ? move_segment(m) : -ENOENT;
	segment_put(m->segment);
	if (!rc)
		return txn_commit(m->txn, &lsn);
	txn_abort(m->txn);
	return rc;
}

static bool is_block(uint64_t bytes)
{
	return bytes % BLOCK_SIZE == 0;
}

/* Whole blocks, in order. */
static bool are_valid(const struct moved_run *runs, unsigned count)
{
	uint64_t end = 0;

	for (unsigned i = 0; i < count; i++) {
		const struct extent *to = &runs[i].to;

		if (!is_block(runs[i].offset) || !is_block(to->offset) || !is_block(to->length) ||
			runs[i].offset < end)
			return false;
		end = runs[i].offset + to->length;
	}
	return count > 0;
}

int pool_remap(struct pool *pool, uint64_t segment, uint64_t live, const struct moved_run *runs,
	unsigned count)
{
	struct moving m = {.live = live, .runs = runs, .count = count};
	int rc;

	if (!are_valid(runs, count))
		return -EINVAL;
	if (count > pool_remap_most(pool))
		return -E2BIG;
	m.extents = calloc(count, sizeof(*m.extents));
	if (!m.extents)
		return -ENOMEM;
	/* The last first: what lies before it in its segment is flushed with it. */
	for (unsigned i = 0; i < count; i++)
		m.extents[i] = runs[count - 1 - i].to;
	mark_places(pool, &m);
	rc = pool_settle(pool, m.extents, count);
	if (!rc)
		rc = move(pool, segment, &m);
	free(m.extents);
	return rc;
}
