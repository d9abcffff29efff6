/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Checkpoints: images of environments, then a root that names them, then the journal is trimmed.
 *
 * A volume's image is recorded in the pool's environment by a transaction that also frees the image
 * before it. The pool environment's own image is named by the label: its segments are closed, the
 * label is written, and only then a transaction frees the old root's segments. A crash between any
 * two steps leaves segments that nothing refers to; the next opening frees them.
 */
#include "pool/env.h"
#include "pool/internal.h"

static struct bytes image_key(uint8_t key[9], uint32_t volume)
{
	struct writer w = writer_on(key, 9);

	put_u8(&w, KEY_IMAGE);
	for (int i = 3; i >= 0; i--)
		put_u8(&w, (uint8_t)(volume >> (8 * i)));
	put_u32(&w, 0); /* part 0 */
	return (struct bytes){key, 9};
}

static int free_segment(struct txn *txn, uint64_t id)
{
	struct segment *segment = segment_get(txn_pool(txn), id);
	int rc;

	if (!segment)
		return 0;
	rc = segment_free(txn, segment);
	segment_put(segment);
	return rc;
}

/* Extents of one segment stand side by side. */
static int free_image(struct txn *txn, const struct image_row *row)
{
	uint64_t last = 0;
	int rc = 0;

	for (uint32_t i = 0; !rc && i < row->extent_count; i++) {
		if (row->extents[i].segment != last)
			rc = free_segment(txn, row->extents[i].segment);
		last = row->extents[i].segment;
	}
	return rc;
}

static int free_old_image(struct txn *txn, struct bytes key, struct image_row *old)
{
	struct bytes value;
	struct reader r;
	int rc = txn_get(txn, pool_env(txn_pool(txn)), key, &value);

	if (rc)
		return rc == -ENOENT ? 0 : rc;
	r = reader_on(value.data, value.length);
	rc = image_row_decode(old, &r);
	return rc ? rc : free_image(txn, old);
}

static int put_image(struct txn *txn, uint32_t volume, const struct image_row *image, bool seal)
{
	struct image_row *old = malloc(sizeof(*old));
	uint8_t key[9], *value = malloc(2 * sizeof(*image));
	struct writer w = writer_on(value, 2 * sizeof(*image));
	struct volume_row row;
	int rc = old && value ? 0 : -ENOMEM;

	if (!rc)
		rc = volume_row_get(txn, volume, &row); /* it may be gone by now */
	if (!rc)
		rc = free_old_image(txn, image_key(key, volume), old);
	if (!rc) {
		image_row_encode(image, &w);
		rc = txn_put(txn, pool_env(txn_pool(txn)), (struct bytes){key, 9},
			(struct bytes){value, (size_t)(w.at - value)});
	}
	if (!rc && seal) {
		row.sealed = true;
		rc = volume_row_put(txn, &row);
	}
	free(old);
	free(value);
	return rc;
}

/* Records an image that was written, as the volume's newest. Durable on return. */
static int record_image(
	struct pool *pool, uint32_t volume, const struct image_row *image, bool seal)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (!rc) {
		rc = put_image(txn, volume, image, seal);
		if (rc)
			txn_abort(txn);
		else
			rc = txn_commit(txn, &lsn);
	}
	if (rc)
		pool_abandon_extents(pool, image->extents, image->extent_count);
	return rc ? rc : pool_sync(pool, lsn);
}

static int checkpoint_volume(struct pool *pool, struct env *env, bool seal)
{
	struct image_row *image = calloc(1, sizeof(*image));
	struct segment_row *segments = calloc(ROOT_SEGMENTS_MAX * 4, sizeof(*segments));
	unsigned count = ROOT_SEGMENTS_MAX * 4;
	struct journal_position from;
	int rc = image && segments ? 0 : -ENOMEM;

	if (!rc)
		rc = image_write(pool, env, image, &from, segments, &count);
	if (!rc)
		rc = record_image(pool, env_volume(env), image, seal);
	if (!rc)
		env_set_image(env, image->lsn, &from);
	free(image);
	free(segments);
	return rc;
}

static int free_old_root(struct pool *pool, const struct segment_row *old, unsigned count)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = count ? txn_begin(pool, NULL, &txn) : -ENOENT;

	if (rc)
		return rc == -ENOENT ? 0 : rc;
	for (unsigned i = 0; !rc && i < count; i++)
		rc = free_segment(txn, old[i].id);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	return txn_commit(txn, &lsn);
}

static int publish_root(struct pool *pool, const struct image_row *image,
	const struct journal_position *replay, const struct segment_row *segments, unsigned count)
{
	pthread_mutex_lock(&pool->label_lock);
	pool->label.root = *image;
	pool->label.root_segment_count = (uint8_t)count;
	memcpy(pool->label.root_segments, segments, count * sizeof(*segments));
	pool->label.replay = *replay;
	/* Records that moved the window may stand before `replay` now. */
	pool->label.spans[pool->label.span_count - 1].window = journal_window(pool);
	journal_prune_spans(&pool->label);
	pthread_mutex_unlock(&pool->label_lock);
	return label_write(pool);
}

static void earlier(struct journal_position *replay, const struct env *env)
{
	struct journal_position from;

	if (env_replay_from(env, &from) && from.lsn < replay->lsn)
		*replay = from;
}

/* Calls back for each loaded volume environment; returns the first error. */
static int each_env(
	struct pool *pool, int (*each)(struct pool *pool, struct env *env, void *data), void *data)
{
	struct env **envs;
	unsigned count;
	int rc = env_list(pool, &envs, &count);

	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		if (!rc && !env_is_gone(envs[i]))
			rc = each(pool, envs[i], data);
		env_put(envs[i]);
	}
	free(envs);
	return rc;
}

static int note_replay(struct pool *pool, struct env *env, void *data)
{
	earlier(data, env);
	return 0;
}

static int checkpoint_root(struct pool *pool)
{
	struct image_row *image = calloc(1, sizeof(*image));
	struct segment_row *segments = calloc(ROOT_SEGMENTS_MAX, sizeof(*segments));
	struct segment_row *old = calloc(ROOT_SEGMENTS_MAX, sizeof(*old));
	unsigned count = ROOT_SEGMENTS_MAX, old_count = pool->label.root_segment_count;
	struct journal_position from, replay;
	int rc = image && segments && old ? 0 : -ENOMEM;

	if (!rc) {
		memcpy(old, pool->label.root_segments, old_count * sizeof(*old));
		rc = image_write(pool, pool->env, image, &from, segments, &count);
	}
	if (!rc) {
		replay = from;
		rc = each_env(pool, note_replay, &replay);
	}
	if (!rc) {
		rc = publish_root(pool, image, &replay, segments, count);
	}
	if (!rc) {
		env_set_image(pool->env, image->lsn, &from);
		journal_trim(pool, replay.position);
		rc = free_old_root(pool, old, old_count);
	}
	free(image);
	free(segments);
	free(old);
	return rc;
}

static int note_size(struct pool *pool, struct env *env, void *data)
{
	uint64_t *most = data, bytes = env_bytes(env);

	if (bytes > *most)
		*most = bytes;
	return 0;
}

/* A checkpoint writes one image at a time beside the one that it replaces, the pool's own last. */
void checkpoint_measure(struct pool *pool)
{
	uint64_t size = pool_segment_bytes(pool), most = 0, own, left;

	if (!size || each_env(pool, note_size, &most))
		return;
	own = (env_bytes(pool->env) + size - 1) / size;
	left = place_capacity(pool) + segment_stock(pool);
	atomic_store(&pool->image_segments, (most + size - 1) / size + own);
	atomic_store(&pool->image_room, left > own ? (left - own) * size : 0);
}

static int checkpoint_changed(struct pool *pool, struct env *env, void *data)
{
	struct journal_position from;

	return env_replay_from(env, &from) ? checkpoint_volume(pool, env, false) : 0;
}

/* With maintain_lock. */
static int checkpoint_locked(struct pool *pool)
{
	int rc = maintain_close_segments(pool);

	if (!rc)
		rc = each_env(pool, checkpoint_changed, NULL);
	return rc ? rc : checkpoint_root(pool);
}

int pool_checkpoint(struct pool *pool)
{
	int rc;

	if (pool->read_only)
		return -EROFS;
	pthread_mutex_lock(&pool->maintain_lock);
	txn_urgent_begin();
	rc = checkpoint_locked(pool);
	checkpoint_measure(pool);
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
	rc = maintain_close_segments(pool);
	if (!rc)
		rc = checkpoint_volume(pool, env, true);
	if (rc)
		env_clear_sealed(env);
	txn_urgent_end();
	pthread_mutex_unlock(&pool->maintain_lock);
	env_put(env);
	return rc;
}
