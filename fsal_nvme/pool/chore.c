/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Segments that something is to be done about. chore_of() is the one place that says what:
 *
 *   free    nobody refers to it, or will: filled or closed, without live and without unreferred
 *           bytes; or reserved by an owner that is dead
 *   close   filled, and there is something in it
 *
 * pool->chores lists them, so that no round of maintenance looks at all the others. Whoever makes
 * one of the conditions come true asks afterwards, by segment_note_chore(), what they amount to.
 * That needs no lock over both: of two who change different ones at the same time, the one who asks
 * last sees both. A round takes a segment off the list first and looks at it then, so that what
 * changes from there on puts it back. The conditions, and where they come true:
 *
 *   filled                      leave_segment() and take_segment() in stream.c, recover.c
 *   live, unreferred at zero    change_end() and less_unreferred() in refer.c, image_forget()
 *   closed                      segment_close(): chores_do() asks
 *   no owner may write late     with an opening alone, which asks for all segments (recover.c)
 *
 * A chore that failed is kept, and tried again in the next round; it does not wake one. One that
 * cannot be done because too many of its rows were lost is `stuck`: that segment stays as it is, is
 * read by the checksums in the pool's environment, and may only be freed.
 *
 * Whether nobody refers to a segment is final under the pool environment's write lock alone: until
 * then the transaction that released its last bytes may be abandoned. segment_give_up() looks again
 * there.
 */
#include "pool/internal.h"

enum chore { NOTHING, CLOSE, FREE };

static enum chore chore_of_open(const struct segment *s)
{
	if (!s->filled)
		return NOTHING;
	if (segment_unused(s))
		return FREE;
	return s->stuck ? NOTHING : CLOSE;
}

static enum chore chore_of(struct pool *pool, struct segment *s)
{
	enum chore chore = NOTHING;

	pthread_mutex_lock(&s->lock);
	if (written_late(pool, &s->row))
		chore = NOTHING;
	else if (s->row.state == SEGMENT_OPEN)
		chore = chore_of_open(s);
	else if (s->row.state == SEGMENT_CLOSED)
		chore = segment_unused(s) ? FREE : NOTHING;
	else if (s->row.state == SEGMENT_RESERVED && s->row.epoch != pool->epoch)
		chore = FREE;
	pthread_mutex_unlock(&s->lock);
	return chore;
}

/* --- the list --------------------------------------------------------------------------------- */

void chores_init(struct pool *pool)
{
	pthread_mutex_init(&pool->chores_lock, NULL);
	TAILQ_INIT(&pool->chores);
}

void chores_destroy(struct pool *pool)
{
	for (struct segment *s; (s = TAILQ_FIRST(&pool->chores)); segment_forget_chore(s))
		;
	pthread_mutex_destroy(&pool->chores_lock);
}

/* Counted; false when it is there already. */
static bool list_add(struct pool *pool, struct segment *s)
{
	bool added;

	pthread_mutex_lock(&pool->chores_lock);
	added = !s->listed;
	if (added) {
		atomic_fetch_add(&s->references, 1);
		TAILQ_INSERT_TAIL(&pool->chores, s, chore);
		s->listed = true;
		pool->chore_count++;
	}
	pthread_mutex_unlock(&pool->chores_lock);
	return added;
}

/* With chores_lock. */
static void list_remove(struct pool *pool, struct segment *s)
{
	TAILQ_REMOVE(&pool->chores, s, chore);
	s->listed = false;
	pool->chore_count--;
}

/* The oldest, with the list's reference; NULL: none. */
static struct segment *list_take(struct pool *pool)
{
	struct segment *s;

	pthread_mutex_lock(&pool->chores_lock);
	s = TAILQ_FIRST(&pool->chores);
	if (s)
		list_remove(pool, s);
	pthread_mutex_unlock(&pool->chores_lock);
	return s;
}

void segment_forget_chore(struct segment *s)
{
	struct pool *pool = s->pool;
	bool listed;

	pthread_mutex_lock(&pool->chores_lock);
	listed = s->listed;
	if (listed)
		list_remove(pool, s);
	pthread_mutex_unlock(&pool->chores_lock);
	if (listed)
		segment_put(s);
}

void segment_note_chore(struct segment *s)
{
	if (chore_of(s->pool, s) != NOTHING && list_add(s->pool, s))
		pool_wake_maintenance(s->pool);
}

/* --- a round ---------------------------------------------------------------------------------- */

static int close_one(struct pool *pool, struct segment *s)
{
	int rc = segment_close(pool, s);

	if (rc == -EIO && !atomic_load(&pool->failure)) {
		pthread_mutex_lock(&s->lock);
		s->stuck = true;
		pthread_mutex_unlock(&s->lock);
		rc = 0;
	}
	if (!rc)
		segment_note_chore(s); /* nobody may refer to it by now */
	return rc;
}

static int do_chore(struct pool *pool, struct segment *s, bool closing)
{
	enum chore chore = chore_of(pool, s);
	int rc = 0;

	pool->chores_seen++;
	if (chore == CLOSE && !closing) {
		list_add(pool, s);
		return 0;
	}
	if (chore == CLOSE)
		rc = close_one(pool, s);
	else if (chore == FREE)
		rc = segment_give_up(pool, s);
	if (rc)
		list_add(pool, s);
	return rc;
}

static unsigned list_length(struct pool *pool)
{
	unsigned count;

	pthread_mutex_lock(&pool->chores_lock);
	count = pool->chore_count;
	pthread_mutex_unlock(&pool->chores_lock);
	return count;
}

int chores_do(struct pool *pool, bool closing)
{
	struct segment *s;
	int rc = 0;

	for (unsigned left = list_length(pool); !rc && left && (s = list_take(pool)); left--) {
		rc = do_chore(pool, s, closing);
		segment_put(s);
	}
	return rc;
}
