/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What an opening does with the segments that earlier epochs left.
 *
 * An owner that may still write (paused, not known to be fenced or dead) may do so in any segment
 * that was there in its epoch: it fills its own, closes what the owners before it left open, mends
 * blocks of closed ones. So all of these keep their slots, whoever made them: its reserved ones
 * (others' it never writes to) are not given to anyone, those that nobody refers to any more are
 * not freed, open ones are "frozen":
 * their rows are read by the checksums that the journal recorded, their tails from the journal's
 * bytes, and nothing is written to them. That is why nothing has to be moved at a take-over: what
 * such an owner writes late goes to rows that no checksum names, or is the very bytes that are
 * there.
 *
 * The opening that knows all of these owners to be dead frees and closes; and so does a pool that
 * is open when it is told that one's host runs under another boot (pool_rebooted()), or is gone for
 * good (pool_host_gone()). That is a fact which stays true: whether a label still names the owner
 * when the power goes, and how much was freed or closed by then, it does no more. What the journal
 * leaves free for it is left until the next opening, which goes by the label. Closed segments of
 * images are freed at once all the same: a checkpoint needs the room, and all that such an owner
 * may do to them is to mend a block while it loads one, which their next user's checksums would
 * tell. Where devices were not whole it may have been at writing all of them (resilver.c): then
 * they are not.
 */
#include <stdio.h>

#include "pool/label.h"
#include "pool/remap.h"

void recover_note_owners(struct pool *pool)
{
	uint64_t living = 0;

	for (unsigned i = 0; i < pool->label.other_count; i++)
		if (pool->label.others[i].epoch > living)
			living = pool->label.others[i].epoch;
	atomic_store(&pool->living_epoch, living);
}

static bool owner_lives(struct pool *pool, uint64_t epoch)
{
	bool lives;

	pthread_mutex_lock(&pool->label_lock);
	lives = owners_have(&pool->label, epoch);
	pthread_mutex_unlock(&pool->label_lock);
	return lives;
}

bool written_late(struct pool *pool, const struct segment_row *row)
{
	if (row->purpose == PURPOSE_IMAGE && row->state == SEGMENT_CLOSED && !pool->resilvered_late)
		return false;
	if (row->state == SEGMENT_RESERVED)
		return owner_lives(pool, row->epoch);
	return row->epoch <= atomic_load(&pool->living_epoch);
}

/* --- the table ----------------------------------------------------------------------------------
 */

static const struct segment_row *root_row(const struct pool *pool, uint64_t id)
{
	for (unsigned i = 0; i < pool->label.root_segment_count; i++)
		if (pool->label.root_segments[i].id == id)
			return &pool->label.root_segments[i];
	return NULL;
}

/* Until its rows are read. */
static int give_no_runs(struct segment *segment)
{
	struct remap *none = remap_new(0);

	if (none)
		segment_set_remap(segment, none);
	return none ? 0 : -ENOMEM;
}

/* The root was written after the image was closed, and may be ahead of the journal. */
static int add_segment(struct pool *pool, struct txn *view, struct segment_row *row)
{
	const struct segment_row *root = root_row(pool, row->id);
	struct segment *segment;
	int rc;

	if (root)
		*row = *root;
	rc = place_take(pool, row);
	if (!rc)
		rc = segment_insert(pool, row, &segment);
	if (rc)
		return rc;
	if (row->state == SEGMENT_OPEN) {
		segment->frozen = true;
		rc = segment_load_open(pool, view, segment);
	}
	if (row->state == SEGMENT_MOVED)
		rc = give_no_runs(segment);
	segment_put(segment);
	return rc;
}

static int add_all(struct pool *pool, struct txn *view)
{
	struct segment_row row;
	uint64_t next = 0;
	int rc;

	while (!(rc = segment_row_next(pool, view, next, &row))) {
		next = row.id + 1;
		rc = add_segment(pool, view, &row);
		if (rc)
			break;
	}
	if (rc == -ENOENT)
		return 0;
	log_error("pool %s: a row of segments, the one of %llx or behind it, is wrong: %s",
		pool->label.name, (unsigned long long)(next ? next - 1 : 0), strerror(-rc));
	return rc;
}

int recover_table(struct pool *pool)
{
	struct txn *view;
	int rc = view_begin(pool->env, &view);

	if (rc)
		return rc;
	rc = add_all(pool, view);
	if (!rc)
		rc = remap_load(pool, view);
	txn_abort(view);
	return rc ? rc : recover_kept(pool);
}

/* --- images that are referred to
 * -------------------------------------------------------------------- */

static int name_segment(void *data, struct segment *segment)
{
	segment->named = true;
	return 0;
}

static int name_volume_image(struct pool *pool, struct bytes value)
{
	struct reader r = reader_on(value.data, value.length);
	struct image_row row;
	int rc = image_row_decode(&row, &r);

	return rc ? rc : image_each(pool, &row, name_segment, NULL);
}

static int name_images(struct pool *pool)
{
	uint8_t key[POOL_KEY_MAX + 1] = {KEY_IMAGE};
	size_t length = 1;
	struct bytes found, value;
	struct txn *view;
	int rc = view_begin(pool->env, &view);

	if (rc)
		return rc;
	rc = image_each(pool, &pool->label.root, name_segment, NULL);
	while (!rc) {
		rc = txn_seek(view, pool->env, (struct bytes){key, length}, &found, &value);
		if (rc || *(const uint8_t *)found.data != KEY_IMAGE)
			break;
		rc = name_volume_image(pool, value);
		memcpy(key, found.data, found.length);
		key[found.length] = 0; /* the smallest key behind it */
		length = found.length + 1;
	}
	txn_abort(view);
	return rc == -ENOENT ? 0 : rc;
}

/* --- segments of earlier epochs
 * ------------------------------------------------------------------------ */

/* A checkpoint, made for room in the journal, may have freed the old root's segments meanwhile. */
static int record_one(struct pool *pool, struct segment *s)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	if (!s->freed)
		rc = segment_record(txn, s);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	return txn_commit(txn, &lsn);
}

/* What nothing names of an image is nobody's, and nobody goes on filling what was open. */
static void leave_behind(struct segment *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->row.purpose == PURPOSE_IMAGE)
		s->row.live = 0;
	if (s->row.state == SEGMENT_OPEN)
		s->filled = true;
	pthread_mutex_unlock(&s->lock);
	segment_note_chore(s);
}

static int settle_segment(struct pool *pool, struct segment *s)
{
	if (s->row.epoch == pool->epoch)
		return 0;
	if (s->named)
		return root_row(pool, s->id) ? record_one(pool, s) : 0;
	if (!written_late(pool, &s->row))
		leave_behind(s);
	return 0;
}

int recover_segments(struct pool *pool)
{
	struct segment **list = NULL;
	unsigned count = 0;
	int rc = name_images(pool);

	pool->durable_root = pool->label.root; /* the take-over has written it */
	if (!rc)
		rc = segment_list(pool, &list, &count);
	for (unsigned i = 0; i < count; i++) {
		rc = rc ? rc : settle_segment(pool, list[i]);
		segment_put(list[i]);
	}
	free(list);
	return rc ? rc : chores_do(pool, false);
}

/* --- an earlier owner is known to be dead, while the pool is open ------------------------------
 */

/* What the opening found to be named may have been given up since. */
static void let_go(struct pool *pool, struct segment *s)
{
	struct segment_row row;

	segment_look(s, &row);
	if (row.epoch == pool->epoch || s->named)
		segment_note_chore(s);
	else if (!written_late(pool, &row))
		leave_behind(s);
}

static void put_all(struct segment **list, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		segment_put(list[i]);
	free(list);
}

/* The label first, as in a claim. Where it cannot be written they stay. */
static int write_forgotten(struct pool *pool, const struct label_owner *others, uint8_t count)
{
	struct label *label = &pool->label;
	int rc = label_write(pool);

	if (!rc)
		return 0;
	pthread_mutex_lock(&pool->label_lock);
	memcpy(label->others, others, sizeof(label->others));
	label->other_count = count;
	pthread_mutex_unlock(&pool->label_lock);
	return rc;
}

static bool any_others(struct pool *pool)
{
	bool any;

	pthread_mutex_lock(&pool->label_lock);
	any = pool->label.other_count;
	pthread_mutex_unlock(&pool->label_lock);
	return any;
}

/* Behind the label nothing fails: nobody would come back to what was not let go. Segments that are
 * made meanwhile are of this epoch. */
static int forget_boots(struct pool *pool, const char *host, const uint8_t *boot)
{
	struct label *label = &pool->label;
	struct label_owner others[OWNERS_MAX];
	struct segment **list;
	unsigned segments;
	uint8_t count;
	bool any;
	int rc = any_others(pool) ? segment_list(pool, &list, &segments) : -ENOENT;

	if (rc)
		return rc == -ENOENT ? 0 : rc;
	pthread_mutex_lock(&pool->label_lock);
	memcpy(others, label->others, sizeof(others));
	count = label->other_count;
	any = owners_forget_boots(label, host, boot);
	pthread_mutex_unlock(&pool->label_lock);
	rc = any ? write_forgotten(pool, others, count) : 0;
	if (any && !rc) {
		log_notice("pool %s: host %s %s, and writes no more", label->name, host,
			boot ? "has booted since it had it" : "is gone for good");
		recover_note_owners(pool);
		for (unsigned i = 0; i < segments; i++)
			let_go(pool, list[i]);
	}
	put_all(list, segments);
	return rc;
}

static int let_host_go(
	struct pool *pool, const char *host, const uint8_t *boot, struct error *error)
{
	int rc = atomic_load(&pool->failure);

	if (!rc && pool->read_only)
		rc = -EROFS;
	if (!rc && atomic_exchange(&pool->resilvering, true))
		return error_set(
			error, -EBUSY, pool->label.name, "its devices are being resilvered");
	if (!rc) {
		rc = forget_boots(pool, host, boot);
		atomic_store(&pool->resilvering, false);
	}
	return rc ? error_set(error, rc, pool->label.name, "what host %s had cannot be let go: %s",
			    host, strerror(-rc))
		  : 0;
}

int pool_rebooted(struct pool *pool, const char *host, const uint8_t boot[16], struct error *error)
{
	return let_host_go(pool, host, boot, error);
}

int pool_host_gone(struct pool *pool, const char *host, struct error *error)
{
	return let_host_go(pool, host, NULL, error);
}
