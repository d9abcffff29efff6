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

#include <assert.h>

#define IMAGE_RECORDS 2u /* blocks of journal for an image, besides one for each segment */

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

static int count_segment(void *data, struct segment *segment)
{
	++*(uint64_t *)data;
	return 0;
}

static uint64_t count_part(struct pool *pool, const struct image_row *part)
{
	uint64_t count = 0;

	image_each(pool, part, count_segment, &count);
	return count;
}

static uint64_t count_deltas(struct pool *pool, const struct image *image)
{
	uint64_t count = 0;

	for (unsigned i = 1; i < image->count; i++)
		count += count_part(pool, &image->parts[i]);
	return count;
}

/* The largest image of all is known as long as none that may be it goes, or becomes smaller. */
static void note_recorded(
	struct pool *pool, const struct image *old, const struct image_row *part, bool seal)
{
	uint64_t before = image_length(old);
	uint64_t length = part->length + (part->kind == IMAGE_DELTA ? before : 0);

	if (part->kind == IMAGE_DELTA)
		pool->delta_segments += count_part(pool, part);
	else
		pool->delta_segments -= count_deltas(pool, old);
	if (seal)
		length = 0;
	if (length >= pool->largest_image)
		pool->largest_image = length;
	else if (before >= pool->largest_image)
		atomic_store(&pool->images_known, false);
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
		image_free(pool, &old);
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

/* The root's image, written, and from where it is to be replayed. */
static int write_root(struct pool *pool, struct root *root, struct journal_position *replay)
{
	int rc = image_write(pool, pool->env, 0, &root->image, replay);

	if (rc)
		return rc;
	rc = image_each(pool, &root->image, add_root_segment, root);
	assert(rc || !root->segments[root->count - 1].next);
	if (!rc)
		rc = each_env(pool, note_replay, replay);
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

/* --- how much they need ------------------------------------------------------------------------
 */

/* In segments of `size`. */
struct needs {
	uint64_t size;
	uint64_t copy; /* of the largest image, but for what it has grown: the old one goes then,
			  with its deltas */
	uint64_t growth; /* of all images, beyond the ones that they replace */
	uint64_t loaded; /* of all images that may have to be written in one checkpoint */
};

static uint64_t segments_of(uint64_t bytes, uint64_t size)
{
	return (bytes + size - 1) / size;
}

static uint64_t segments_of_image(const struct image *image, uint64_t size)
{
	uint64_t segments = 0;

	for (unsigned i = 0; i < image->count; i++)
		segments += segments_of(image->parts[i].length, size);
	return segments;
}

static void note_copy(struct needs *needs, uint64_t segments)
{
	if (segments > needs->copy)
		needs->copy = segments;
}

/* One that has no image yet gets one, however small. */
static int note_loaded(struct pool *pool, struct env *env, void *data)
{
	struct needs *needs = data;
	uint64_t bytes = env_bytes(env), now, then, growth;
	struct image image;

	if (atomic_load(&env->sealed))
		return 0;
	env_image(env, &image);
	now = segments_of_image(&image, needs->size);
	then = segments_of(bytes ? bytes : 1, needs->size);
	growth = then > now ? then - now : 0;
	note_copy(needs, then - growth);
	needs->loaded += then + IMAGE_RECORDS;
	needs->growth += growth;
	atomic_store(&env->growth, growth * needs->size);
	return 0;
}

/* Of all volumes that may be changed. */
static int find_images(struct pool *pool, struct txn *view)
{
	struct volume_row row = {.id = 0};
	uint64_t largest = 0, deltas = 0;
	int rc;

	while (!(rc = volume_row_next(view, row.id + 1, &row))) {
		struct image image;

		if (row.sealed || env_find_image(view, row.id, &image))
			continue;
		deltas += count_deltas(pool, &image);
		if (image_length(&image) > largest)
			largest = image_length(&image);
	}
	pool->largest_image = largest;
	pool->delta_segments = deltas;
	return rc == -ENOENT ? 0 : rc;
}

/* Under its write lock: whoever makes it unknown later is not in this view, and says so later. */
static int view_images(struct pool *pool, struct txn **view)
{
	MDB_txn *txn;
	int rc = env_write_begin(pool->env, &txn);

	if (rc)
		return rc;
	rc = view_begin(pool->env, view);
	if (!rc)
		atomic_store(&pool->images_known, true);
	env_write_abort(pool->env, txn);
	return rc;
}

/* Volumes that are not loaded may be, and be changed. */
static int note_unloaded(struct pool *pool, struct needs *needs)
{
	int rc = 0;

	if (!atomic_load(&pool->images_known)) {
		struct txn *view;

		rc = view_images(pool, &view);
		if (rc)
			return rc;
		rc = find_images(pool, view);
		txn_abort(view);
	}
	if (rc)
		atomic_store(&pool->images_known, false);
	else
		note_copy(needs, segments_of(pool->largest_image, needs->size));
	return rc;
}

/* Segments as they would be with as many devices fewer as the pool may lose: it has to be able to
 * make a checkpoint then, too. */
struct outlook {
	unsigned width;
	uint64_t size; /* bytes of one */
	uint64_t now, then; /* the slots of so many segments as they are make so many of these */
};

static bool look_ahead(struct pool *pool, struct outlook *outlook)
{
	unsigned usable = members_usable(pool), all = pool->k + pool->m;
	unsigned left = usable > 2 * pool->m ? usable - pool->m : pool->m + 1;
	unsigned width = usable < all ? usable : all, then = left < all ? left : all;

	if (usable <= pool->m)
		return false;
	*outlook = (struct outlook){
		.width = then,
		.size = (uint64_t)(then - pool->m) * pool->header.cell * pool->header.slot_rows,
		.now = (uint64_t)usable * then,
		.then = (uint64_t)left * width,
	};
	return true;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t root_limit(unsigned width)
{
	unsigned fit = ROOT_ROOM / SEGMENT_ROW_SIZE(width);

	return fit < ROOT_SEGMENTS_MAX ? fit : ROOT_SEGMENTS_MAX;
}

/*
 * A checkpoint writes one image at a time beside the one that it replaces, the pool's own last;
 * what they have grown since, and what has none yet, stays taken. Its own records are a few for
 * each image and no more than a block for each segment, and find room in what the journal keeps for
 * them: before images that are larger than that, metadata are full. The pool's own image has to fit
 * into the label as well: before it does not, so are data.
 */
void checkpoint_measure(struct pool *pool)
{
	uint64_t all = place_capacity(pool) + segment_stock(pool), left, own, need, room, own_room;
	struct needs needs = {0};
	struct outlook o;

	if (!look_ahead(pool, &o))
		return;
	needs.size = o.size;
	if (each_env(pool, note_loaded, &needs) || note_unloaded(pool, &needs))
		return;
	own = segments_of(env_bytes(pool->env), o.size);
	need = ((needs.growth + needs.copy + own) * o.now + o.then - 1) / o.then;
	left = all * o.then / o.now;
	room = minus(left, needs.growth + own);
	own_room = minus(left, needs.growth + needs.copy);
	if (needs.loaded + own + IMAGE_RECORDS > pool->header.journal_size / 8 / BLOCK_SIZE)
		room = 0;
	if (own > root_limit(o.width)) {
		room = 0;
		need = all;
	}
	atomic_store(&pool->image_segments, need);
	atomic_store(&pool->image_unit, o.size);
	atomic_store(&pool->image_room, room * o.size);
	atomic_store(&pool->own_room, own_room * o.size);
}

void checkpoint_expect(struct pool *pool)
{
	uint64_t room = atomic_load(&pool->image_room), unit = atomic_load(&pool->image_unit);

	while (!atomic_compare_exchange_weak(&pool->image_room, &room, minus(room, unit)))
		;
}

/*
 * Bytes that a delta of a volume may take; 0: its image has to be a full one. Deltas make loading
 * longer and take segments, each at least one, so that there are not many: of a volume, and in the
 * pool as many as data leaves alone at least. They are taken from what no full image may need:
 * whatever deltas there are, all that the next checkpoint has to write may be full, which frees
 * them. A delta of an image that is one row costs as much as the image.
 */
static uint64_t delta_room(struct pool *pool, struct env *env)
{
	uint64_t unit = atomic_load(&pool->image_unit), need = segment_reserve(pool);
	uint64_t left = place_capacity(pool) + segment_stock(pool), segments, bytes, full;
	struct image image;

	env_image(env, &image);
	if (!image.count || image.count == IMAGE_PARTS_MAX || !atomic_load(&pool->images_known))
		return 0;
	full = image.parts[0].length;
	if (full <= unit / pool->header.slot_rows)
		return 0;
	segments = minus(left / 2, need);
	if (segments > minus(pool->reserve_segments, pool->delta_segments))
		segments = minus(pool->reserve_segments, pool->delta_segments);
	bytes = minus(full / 4, image_length(&image) - full);
	return bytes < segments * unit ? bytes : segments * unit;
}

static int checkpoint_volume(struct pool *pool, struct env *env, bool seal)
{
	struct image_row part;
	struct journal_position from;
	int rc = image_write(pool, env, seal ? 0 : delta_room(pool, env), &part, &from);

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
	checkpoint_measure(pool); /* for deltas */
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
	rc = chores_do(pool, true);
	if (!rc)
		rc = checkpoint_volume(pool, env, true);
	if (rc)
		env_clear_sealed(env);
	txn_urgent_end();
	pthread_mutex_unlock(&pool->maintain_lock);
	env_put(env);
	return rc;
}
