/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Checkpoints: images of environments, then a root that names them, then the journal is trimmed.
 *
 * A volume's image is recorded in the pool's environment by a transaction, the pool environment's
 * own is named by the label: its segments are closed, the label is written. Only then the segments
 * of the image before it are freed. A crash between any two steps leaves segments that nothing
 * refers to; the next opening frees them, and maintenance those that a failure leaves. A label that
 * fails to be written may be on some devices: its root counts, beside the one before it, until a
 * label has been written to all (durable_root).
 */
#include "pool/env.h"
#include "pool/label.h"

#include <assert.h>

static int put_row(struct txn *txn, uint32_t volume, uint32_t part, const struct image_row *row)
{
	uint8_t key[9], value[IMAGE_ROW_SIZE];
	struct writer w = writer_on(value, sizeof(value));

	image_row_encode(row, &w);
	assert(!w.overflow);
	return txn_put(txn, pool_env(txn_pool(txn)), key_image(key, volume, part),
		(struct bytes){value, sizeof(value)});
}

/* In place of all parts that there were. */
static int put_full(struct txn *txn, uint32_t volume, const struct image_row *row, unsigned parts)
{
	uint8_t key[9];
	int rc = put_row(txn, volume, 0, row);

	for (unsigned i = 1; !rc && i < parts; i++)
		rc = txn_delete(txn, pool_env(txn_pool(txn)), key_image(key, volume, i));
	return rc;
}

static int put_seal(struct txn *txn, struct volume_row *row)
{
	row->sealed = true;
	return volume_row_put(txn, row);
}

/* A delta of an image that is not the newest any more is of no use: -ESTALE. */
static int put_part(struct txn *txn, struct env *env, const struct image_row *part,
	struct image *old, bool seal)
{
	uint32_t volume = env_volume(env);
	struct volume_row row;
	struct image known;
	int rc = volume_row_get(txn, volume, &row); /* it may be gone by now */

	env_image(env, &known);
	if (!rc && row.destroying)
		rc = -ENOENT;
	if (!rc)
		rc = env_find_image(txn, volume, old);
	if (rc)
		return rc;
	if (part->kind == IMAGE_FULL)
		rc = put_full(txn, volume, part, old->count);
	else
		rc = image_lsn(old) == image_lsn(&known) ? put_row(txn, volume, old->count, part)
							 : -ESTALE;
	return rc || !seal ? rc : put_seal(txn, &row);
}

/* The largest image of all is known as long as none that may be it goes, or becomes smaller. */
static void note_recorded(
	struct pool *pool, const struct image *old, const struct image_row *part, bool seal)
{
	uint64_t before = image_length(old);
	uint64_t length = part->length + (part->kind == IMAGE_DELTA ? before : 0);

	if (part->kind == IMAGE_DELTA)
		pool->delta_segments += image_part_segments(pool, part);
	else
		pool->delta_segments -= image_delta_segments(pool, old);
	if (seal)
		length = 0;
	if (length >= pool->largest_image)
		pool->largest_image = length;
	else if (before >= pool->largest_image)
		atomic_store(&pool->images_known, false);
}

/* What it had is there again for those after it, and no more of what was set aside for images. */
static void free_replaced(struct pool *pool, const struct image *old)
{
	uint64_t taken = atomic_load(&pool->image_taken), had = image_delta_segments(pool, old);

	if (old->count)
		had += image_part_segments(pool, &old->parts[0]);
	image_free(pool, old);
	atomic_store(&pool->image_taken, taken > had ? taken - had : 0);
}

/* Records a part that was written as the newest of the volume's image; a full one frees those
 * before. Durable on return. */
static int record_part(struct pool *pool, struct env *env, const struct image_row *part, bool seal)
{
	struct image old;
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (!rc) {
		rc = put_part(txn, env, part, &old, seal);
		if (rc)
			txn_abort(txn);
		else
			rc = txn_commit(txn, &lsn);
	}
	if (rc) {
		image_forget(pool, part);
		return rc;
	}
	note_recorded(pool, &old, part, seal);
	rc = pool_sync(pool, lsn);
	if (!rc && part->kind == IMAGE_FULL)
		free_replaced(pool, &old);
	return rc;
}

/* What a label says of the root. */
struct root {
	struct image_row image;
	struct segment_row segments[ROOT_SEGMENTS_MAX];
	unsigned count;
	size_t size; /* of the rows in the label */
};

static int add_root_segment(void *data, struct segment *segment)
{
	struct root *root = data;

	root->size += SEGMENT_ROW_SIZE(segment->layout.data + segment->layout.parity);
	if (root->count == ROOT_SEGMENTS_MAX || root->size > ROOT_ROOM)
		return -E2BIG;
	segment_look(segment, &root->segments[root->count++]);
	return 0;
}

static void publish_root(
	struct pool *pool, const struct root *root, const struct journal_position *replay)
{
	pthread_mutex_lock(&pool->label_lock);
	pool->label.root = root->image;
	pool->label.root_segment_count = (uint8_t)root->count;
	memcpy(pool->label.root_segments, root->segments, root->count * sizeof(*root->segments));
	pool->label.replay = *replay;
	/* Records that moved the window may stand before `replay` now. */
	pool->label.spans[pool->label.span_count - 1].window = journal_window(pool);
	journal_prune_spans(&pool->label);
	pthread_mutex_unlock(&pool->label_lock);
}

static void earlier(struct journal_position *replay, const struct env *env)
{
	struct journal_position from;

	if (env_replay_from(env, &from) && from.lsn < replay->lsn)
		*replay = from;
}

static int note_replay(struct pool *pool, struct env *env, void *data)
{
	earlier(data, env);
	return 0;
}

/* The root's image, written, and from where it is to be replayed. */
static int write_root(struct pool *pool, struct root *root, struct journal_position *replay)
{
	int rc;

	atomic_store(&pool->root_wanted, false);
	rc = image_write(pool, pool->env, 0, &root->image, replay);
	if (rc) {
		atomic_store(&pool->root_wanted, true);
		return rc;
	}
	rc = image_each(pool, &root->image, add_root_segment, root);
	assert(rc || !root->segments[root->count - 1].next);
	if (!rc)
		rc = env_each(pool, note_replay, replay);
	if (rc)
		image_forget(pool, &root->image);
	return rc;
}

/*
 * The root that pool->label names gets its labels. Until all are written the devices may show it,
 * or the one before it, and whoever opens the pool then goes by what it finds: so the images of
 * both stay, and so does the journal behind the older one.
 */
static int write_label(struct pool *pool)
{
	struct image old = {.count = 1, .parts = {pool->durable_root}};
	int rc = label_write(pool);

	if (rc)
		return rc;
	pool->durable_root = pool->label.root;
	rest_rooted(pool, pool->label.root.lsn);
	env_set_image(pool->env, &pool->label.root, &pool->label.replay);
	journal_trim(pool, pool->label.replay.position);
	image_free(pool, &old);
	return 0;
}

static int checkpoint_root(struct pool *pool)
{
	struct root *root = calloc(1, sizeof(*root));
	struct journal_position replay;
	int rc = root ? 0 : -ENOMEM;

	/* Two roots at a time: what a checkpoint that failed has left is brought to its end first.
	 */
	if (!rc && pool->label.root.segment != pool->durable_root.segment)
		rc = write_label(pool);
	if (!rc)
		rc = write_root(pool, root, &replay);
	if (!rc) {
		publish_root(pool, root, &replay);
		rc = write_label(pool);
	}
	free(root);
	return rc;
}

/* --- a checkpoint ---------------------------------------------------------------------------- */

static int checkpoint_volume(struct pool *pool, struct env *env, bool seal)
{
	struct image_row part;
	struct journal_position from;
	int rc = image_write(pool, env, seal ? 0 : checkpoint_delta_room(pool, env), &part, &from);

	if (!rc)
		rc = record_part(pool, env, &part, seal);
	if (!rc)
		env_set_image(env, &part, &from);
	return rc;
}

static int checkpoint_changed(struct pool *pool, struct env *env, void *data)
{
	struct journal_position from;
	int rc = env_replay_from(env, &from) ? checkpoint_volume(pool, env, false) : 0;

	return env_is_gone(env) ? 0 : rc; /* its volume was deleted meanwhile */
}

/* With maintain_lock. */
static int checkpoint_locked(struct pool *pool)
{
	int rc = chores_do(pool, true);

	if (!rc)
		rc = env_each(pool, checkpoint_changed, NULL);
	return rc ? rc : checkpoint_root(pool);
}

int pool_checkpoint(struct pool *pool)
{
	int rc;

	if (pool->read_only)
		return -EROFS;
	pthread_mutex_lock(&pool->maintain_lock);
	txn_urgent_begin();
	checkpoint_measure(pool); /* for deltas */
	rc = checkpoint_locked(pool);
	checkpoint_measure(pool);
	atomic_store(&pool->image_taken, 0);
	txn_urgent_end();
	pthread_mutex_unlock(&pool->maintain_lock);
	return rc;
}

int pool_seal(struct pool *pool, uint32_t volume)
{
	struct env *env;
	int rc = env_get(pool, volume, &env);

	if (rc)
		return rc;
	pthread_mutex_lock(&pool->maintain_lock);
	txn_urgent_begin();
	env_set_sealed(env); /* nothing comes between the image and the row that says so */
	rc = chores_do(pool, true);
	if (!rc)
		rc = checkpoint_volume(pool, env, true);
	if (rc)
		env_clear_sealed(env);
	atomic_store(&pool->root_wanted, true);
	atomic_store(&pool->image_taken, 0);
	txn_urgent_end();
	pthread_mutex_unlock(&pool->maintain_lock);
	env_put(env);
	return rc;
}
