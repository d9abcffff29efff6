/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* How much room the next checkpoint may need, what is kept for it, and what deltas may take. */
#include "pool/env.h"

#define IMAGE_RECORDS 2u /* blocks of journal for an image, besides one for each segment */
#define DELTA_PART 4u /* of the full image, what its deltas may be */

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
		deltas += image_delta_segments(pool, &image);
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
	unsigned usable = members_usable_count(pool), most = losses_most(pool);
	unsigned left = usable > most + pool->m ? usable - most : pool->m + 1;
	unsigned width = place_width(pool, members_usable(pool));
	unsigned then = place_width_left(pool, members_usable(pool), left);

	if (usable <= pool->m)
		return false;
	*outlook = (struct outlook){
		.width = then,
		.size = segment_capacity(pool, then - pool->m),
		.now = (uint64_t)usable * then,
		.then = (uint64_t)left * width,
	};
	return true;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t root_limit(unsigned width)
{
	unsigned fit = ROOT_ROOM / SEGMENT_ROW_SIZE(width);

	return fit < ROOT_SEGMENTS_MAX ? fit : ROOT_SEGMENTS_MAX;
}

/* The pool's own image has room for its tables twice (geometry_plan()), and is written once for
 * half a ring of records, at least: what remaps add to it is to be little beside either. */
static uint64_t remap_room(const struct pool *pool, const struct outlook *o)
{
	return least(root_limit(o->width) * o->size / 4, pool->header.journal_size / 8);
}

/*
 * A checkpoint writes one image at a time beside the one that it replaces, the pool's own last;
 * what they have grown since, and what has none yet, stays taken. Its own records are a few for
 * each image and no more than a block for each segment, and find room in what the journal keeps for
 * them: before images that are larger than that, metadata are full. The pool's own image has to fit
 * into the label as well: before it does not, so are data. Metadata leave alone what is kept for
 * volumes, but not what is kept to spare.
 */
void checkpoint_measure(struct pool *pool)
{
	uint64_t all = place_left(pool).segments, left, own, need, room, own_room;
	uint64_t others; /* what is kept for volumes left aside */
	struct needs needs = {0};
	struct outlook o;

	if (!look_ahead(pool, &o))
		return;
	needs.size = o.size;
	if (env_each(pool, note_loaded, &needs) || note_unloaded(pool, &needs))
		return;
	own = segments_of(env_bytes(pool->env), o.size);
	need = ((needs.growth + needs.copy + own) * o.now + o.then - 1) / o.then;
	left = all * o.then / o.now;
	others = minus(all, segments_of(pool_kept(pool), pool_segment_bytes(pool)));
	room = minus(others * o.then / o.now, needs.growth + own);
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
	atomic_store(&pool->remap_room, remap_room(pool, &o));
}

void checkpoint_expect(struct pool *pool)
{
	uint64_t room = atomic_load(&pool->image_room), unit = atomic_load(&pool->image_unit);

	while (!atomic_compare_exchange_weak(&pool->image_room, &room, minus(room, unit)))
		;
}

/*
 * Segments for a delta. They are taken from what no full image may need: whatever deltas there are,
 * all that the next checkpoint has to write may be full, which frees them. Each takes at least one,
 * so that all volumes' together are no more than data leaves alone at least; but a large image's
 * may be a quarter of its own.
 */
static uint64_t delta_segments(struct pool *pool, const struct image *image, uint64_t unit)
{
	uint64_t left = place_left(pool).segments;
	uint64_t full = segments_of(image->parts[0].length, unit);
	uint64_t deltas = segments_of_image(image, unit) - full;
	uint64_t share = minus(full / DELTA_PART, deltas);
	uint64_t common = minus(pool->reserve_segments, pool->delta_segments);

	return least(minus(left / 2, segment_reserve(pool) + kept_segments(pool)),
		share > common ? share : common);
}

/* A delta of an image of one row would cost as much as the image. */
uint64_t checkpoint_delta_room(struct pool *pool, struct env *env)
{
	uint64_t unit = atomic_load(&pool->image_unit), full;
	struct image image;

	env_image(env, &image);
	if (!unit || !image.count || image.count == IMAGE_PARTS_MAX ||
		!atomic_load(&pool->images_known))
		return 0;
	full = image.parts[0].length;
	if (full <= unit / pool->header.slot_rows)
		return 0;
	return least(minus(full / DELTA_PART, image_length(&image) - full),
		unit * delta_segments(pool, &image, unit));
}
