/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Emptying segments: all extents of their volume are looked through once for those that lie in any
 * of them; their bytes are read, appended elsewhere, and each extent that is still what it was is
 * replaced. An index from segments to extents would spare the look, and cost a row for each extent
 * of a volume in memory and another in the journal for each write; looks are few, since up to
 * COMPACTION_PLAN_MAX segments share one.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "common/log.h"

#define MOVES_MAX 64u /* in one transaction */
#define SCAN_ROWS 4096u /* looked at in one view */

/* A run of bytes on its way from one place to another. */
struct move {
	uint64_t ino, at;
	struct extent old, fresh[APPEND_EXTENTS];
	unsigned count;
};

struct compaction {
	struct volume *volume;
	const uint64_t *segments; /* in order */
	unsigned segment_count;
	const struct compact_pace *pace;
	uint64_t ino, at; /* looked through up to here */
	bool end;
	struct lane_user lane;
	void *buffer;
	unsigned count;
	struct move moves[MOVES_MAX];
};

/* --- finding ---------------------------------------------------------------------------------- */

static void found(struct compaction *c, uint64_t at, const struct extent *extent)
{
	struct move *move = &c->moves[c->count++];

	move->ino = c->ino;
	move->at = at;
	move->old = *extent;
	if (move->old.length > APPEND_MAX)
		move->old.length = APPEND_MAX;
	c->at = at + move->old.length;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

bool segments_have(const uint64_t *segments, unsigned count, uint64_t segment)
{
	return bsearch(&segment, segments, count, sizeof(segment), by_id);
}

int extents_of_next(struct volume *volume, struct txn *view, uint64_t *ino, uint64_t *at, bool *end)
{
	struct bytes found, row;
	struct key key;
	int r = txn_seek(view, volume->env, key_pair(&key, ROW_EXTENT, *ino + 1, 0), &found, &row);

	*end = r == -ENOENT || (!r && !key_is_pair(found, ROW_EXTENT, ino, at));
	return *end ? 0 : r;
}

/* Looks at the extent that holds or follows (c->ino, c->at), and moves on. */
static int look(struct compaction *c, struct txn *view)
{
	struct extent extent;
	uint64_t at;
	int r = extent_next(c->volume, view, c->ino, c->at, &at, &extent);

	if (!r && segments_have(c->segments, c->segment_count, extent.segment))
		found(c, at, &extent);
	else if (!r)
		c->at = at + extent.length;
	return r == -ENOENT ? extents_of_next(c->volume, view, &c->ino, &c->at, &c->end) : r;
}

static int scan(struct compaction *c)
{
	struct txn *view;
	int r = view_begin(c->volume->env, &view);

	if (r)
		return r;
	for (unsigned i = 0; !r && i < SCAN_ROWS && !c->end && c->count < MOVES_MAX; i++)
		r = look(c, view);
	txn_abort(view);
	return r;
}

/* --- moving ----------------------------------------------------------------------------------- */

/* Whether the inode has the bytes where they were when they were found. */
static bool is_unchanged(
	struct volume *volume, struct txn *txn, const struct inode *inode, const struct move *move)
{
	struct extent now;
	uint64_t at;
	int r = extent_next(volume, txn, inode->ino, move->at, &at, &now);

	return !r && at == move->at && now.segment == move->old.segment &&
	       now.offset == move->old.offset && now.length >= move->old.length &&
	       at + move->old.length <= inode->trim;
}

/* In a transaction, not a view: segments that it frees are gone before a transaction is seen. */
static bool is_lost(struct compaction *c, const struct move *move)
{
	struct inode inode;
	struct txn *txn;
	bool lost;

	if (txn_begin(c->volume->pool, c->volume->env, &txn))
		return false;
	lost = !inode_get(c->volume, txn, move->ino, &inode) &&
	       is_unchanged(c->volume, txn, &inode, move);
	txn_abort(txn);
	return lost;
}

/* What was deleted meanwhile is no loss, if its bytes went with it. */
static void leave(struct compaction *c, const struct move *move)
{
	if (!is_lost(c, move))
		return;
	pool_spare_segment(c->volume->pool, move->old.segment);
	log_error("volume %s: inode %llu: bytes at %llu stay in segment %llu: they cannot be read",
		c->volume->row.name, (unsigned long long)move->ino, (unsigned long long)move->at,
		(unsigned long long)move->old.segment);
}

static int copy(struct compaction *c, struct move *move)
{
	struct read_part part = {move->old, c->buffer};
	struct iovec iov = {c->buffer, (size_t)move->old.length};
	int r = c->pace ? c->pace->wait(c->pace->data, move->old.length) : 0;

	move->count = 0;
	if (!r)
		r = pool_read_wait(c->volume->pool, &part, 1);
	if (r == -EIO) {
		leave(c, move);
		return 0;
	}
	if (r)
		return r;
	move->count = APPEND_EXTENTS;
	r = lane_append(c->volume, &c->lane, NULL, &iov, 1, iov.iov_len,
		APPEND_RESERVED | (move->at ? 0 : APPEND_PACKED), move->fresh, &move->count);
	if (r)
		move->count = 0;
	return r;
}

/* 1: replaced; 0: it has changed, the copy is of no use. */
static int replace(struct change *change, const struct move *move)
{
	unsigned budget = STEP_EXTENTS;
	uint64_t at = move->at, done;
	struct inode inode;
	int r = inode_get(change->volume, change->txn, move->ino, &inode);

	if (r)
		return r == -ESTALE ? 0 : r;
	if (!move->count || !is_unchanged(change->volume, change->txn, &inode, move))
		return 0;
	r = extents_cut(change, &inode, at, at + move->old.length, &budget, &done);
	if (!r && done != at + move->old.length)
		r = -E2BIG;
	for (unsigned i = 0; !r && i < move->count; i++) {
		r = extent_insert(change, &inode, at, &move->fresh[i]);
		at += move->fresh[i].length;
	}
	if (!r)
		r = inode_put(change, &inode);
	return r ? r : 1;
}

static void forget(struct compaction *c, struct move *move)
{
	if (move->count)
		pool_abandon_extents(c->volume->pool, move->fresh, move->count);
	move->count = 0;
}

/* One transaction of moves [from, ...); returns where it stopped. */
static int replace_some(struct compaction *c, unsigned from, unsigned *to)
{
	bool replaced[MOVES_MAX] = {false};
	struct change change;
	unsigned i = from;
	int r = change_begin(c->volume, &change);

	if (r)
		return r;
	for (; r >= 0 && i < c->count && (i == from || change_has_room(&change)); i++) {
		r = replace(&change, &c->moves[i]);
		replaced[i] = r == 1;
	}
	r = change_finish(&change, r < 0 ? r : 0, NULL);
	if (r)
		return r;
	for (unsigned k = from; k < i; k++) {
		if (!replaced[k])
			forget(c, &c->moves[k]);
		c->moves[k].count = 0;
	}
	*to = i;
	return 0;
}

static int settle(struct compaction *c)
{
	int r = 0;

	for (unsigned i = 0; !r && i < c->count; i++) {
		if (c->moves[i].count)
			r = pool_settle(c->volume->pool, c->moves[i].fresh, c->moves[i].count);
	}
	return r;
}

static int move_found(struct compaction *c)
{
	unsigned done = 0;
	int r = 0;

	for (unsigned i = 0; i < c->count; i++)
		c->moves[i].count = 0;
	for (unsigned i = 0; !r && i < c->count; i++)
		r = copy(c, &c->moves[i]);
	if (!r)
		r = settle(c);
	while (!r && done < c->count)
		r = replace_some(c, done, &done);
	for (unsigned i = 0; i < c->count; i++)
		forget(c, &c->moves[i]);
	c->count = 0;
	return r;
}

int volume_compact(struct volume *volume, const uint64_t *segments, unsigned count,
	const struct compact_pace *pace)
{
	struct compaction *c;
	int r = 0;

	if (volume->row.sealed && !pool_is_read_only(volume->pool))
		return compact_sealed(volume, segments, count, pace);
	if (!volume_may_change(volume))
		return -EROFS;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->volume = volume;
	c->segments = segments;
	c->segment_count = count;
	c->pace = pace;
	c->buffer = buffer_alloc(volume->engine, APPEND_MAX);
	if (!c->buffer)
		r = -ENOMEM;
	while (!r && !c->end) {
		r = scan(c);
		if (!r)
			r = move_found(c);
	}
	lane_leave(volume, &c->lane);
	if (c->buffer)
		buffer_free(volume->engine, c->buffer, APPEND_MAX);
	free(c);
	return r;
}
