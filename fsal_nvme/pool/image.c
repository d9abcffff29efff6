/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Images: an environment as streams of sorted entries, to be loaded again without LMDB's help. This
 * page writes them, image_read.c loads them, image_segments.c frees them.
 *
 * An image is a full one (kind 1, part 0) and deltas (kind 2, parts 1 and up), each with what
 * changed since the part before. Each part is a stream:
 *
 *   head     u64 magic, u16 version, u8 kind, u8 0, u32 volume, u32 part, u32 0, u64 LSN; of a
 *            delta, u64 LSN of the part before
 *   entries  u16 key length (1..POOL_KEY_MAX), u32 value length, key, value; keys ascend strictly.
 *            Of a delta, a value length of all ones and no value: the key is not there any more,
 *            if it was
 *   trailer  u16 0 (no key is empty), u64 number of entries
 *
 * The part's row, which stands elsewhere, has the length and the xxh64 of all of it, and names the
 * first segment. A part has segments of its own: each has as many bytes of it as its row says are
 * live, from its start on, and names the next. So a part may have any number of them, and a
 * segment is a part's as long as the row does that names its first.
 *
 * What an image holds is exact: under the environment's write lock a view is begun and its LSN
 * noted, so that no transaction is half in it. The image is only handed out when that LSN is
 * durable: one that was ahead of the journal would, after a crash, hide the records that the next
 * epoch writes under the LSNs that were lost.
 */
#include "pool/image.h"

#include <assert.h>
#include <xxhash.h>

#include "pool/env.h"
#include "pool/key_set.h"

#define WRITE_PIECE (512u * 1024)
#define PIECE_EXTENTS 64u /* enough for segments of 16 KiB that end early */
#define EXTENTS_FIRST 64u

/* --- writing --------------------------------------------------------------------------------- */

struct image_writer {
	struct pool *pool;
	struct stream *stream;
	struct image_row *image;
	unsigned part;
	uint64_t before; /* LSN of the part before */
	struct bytes *changed; /* of a delta: its keys, in order */
	uint64_t changed_count;
	XXH64_state_t *hash;
	uint8_t *piece;
	size_t filled;
	uint64_t entries;
	struct extent *extents; /* one a segment, from its start on */
	unsigned extent_count, extent_room;
};

static int add_extent(struct image_writer *w, const struct extent *extent)
{
	struct extent *last = w->extent_count ? &w->extents[w->extent_count - 1] : NULL;

	if (last && last->segment == extent->segment) {
		assert(last->length == extent->offset);
		last->length += extent->length;
		return 0;
	}
	if (w->extent_count == w->extent_room) {
		unsigned room = w->extent_room ? 2 * w->extent_room : EXTENTS_FIRST;
		struct extent *extents = realloc(w->extents, room * sizeof(*extents));

		if (!extents)
			return -ENOMEM;
		w->extents = extents;
		w->extent_room = room;
	}
	assert(!extent->offset);
	w->extents[w->extent_count++] = *extent;
	return 0;
}

static int write_piece(struct image_writer *w)
{
	struct extent extents[PIECE_EXTENTS];
	struct iovec iov = {w->piece, w->filled};
	unsigned count = PIECE_EXTENTS;
	int rc;

	if (!w->filled)
		return 0;
	XXH64_update(w->hash, w->piece, w->filled);
	rc = stream_append(w->stream, &iov, 1, w->filled, 0, extents, &count);
	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		rc = add_extent(w, &extents[i]);
		if (rc) {
			pool_abandon_extents(w->pool, extents + i, count - i);
			return rc;
		}
	}
	w->image->length += w->filled;
	atomic_fetch_add(&w->pool->image_bytes, w->filled);
	if (w->image->kind == IMAGE_DELTA)
		atomic_fetch_add(&w->pool->delta_bytes, w->filled);
	w->filled = 0;
	return 0;
}

static int write_bytes(struct image_writer *w, const void *bytes, size_t length)
{
	const uint8_t *at = bytes;

	while (length) {
		size_t part = WRITE_PIECE - w->filled;
		int rc;

		if (part > length)
			part = length;
		memcpy(w->piece + w->filled, at, part);
		w->filled += part;
		at += part;
		length -= part;
		rc = w->filled == WRITE_PIECE ? write_piece(w) : 0;
		if (rc)
			return rc;
	}
	return 0;
}

static int write_head(struct image_writer *w, const struct env *env)
{
	uint8_t head[DELTA_HEAD_SIZE];
	struct writer out = writer_on(head, sizeof(head));

	put_u64(&out, MAGIC_IMAGE);
	put_u16(&out, IMAGE_VERSION);
	put_u8(&out, w->image->kind);
	put_u8(&out, 0);
	put_u32(&out, env->volume);
	put_u32(&out, w->part);
	put_u32(&out, 0);
	put_u64(&out, w->image->lsn);
	if (w->image->kind == IMAGE_DELTA)
		put_u64(&out, w->before);
	return write_bytes(w, head, (size_t)(out.at - head));
}

static int write_key(struct image_writer *w, MDB_val key, uint32_t value_length)
{
	uint8_t head[ENTRY_HEAD];
	struct writer out = writer_on(head, sizeof(head));
	int rc;

	put_u16(&out, (uint16_t)key.mv_size);
	put_u32(&out, value_length);
	w->entries++;
	rc = write_bytes(w, head, sizeof(head));
	return rc ? rc : write_bytes(w, key.mv_data, key.mv_size);
}

static int write_entry(struct image_writer *w, MDB_val key, MDB_val value)
{
	int rc = write_key(w, key, (uint32_t)value.mv_size);

	return rc ? rc : write_bytes(w, value.mv_data, value.mv_size);
}

static int write_trailer(struct image_writer *w)
{
	uint8_t trailer[TRAILER_SIZE];
	struct writer out = writer_on(trailer, sizeof(trailer));
	int rc;

	put_u16(&out, 0);
	put_u64(&out, w->entries);
	rc = write_bytes(w, trailer, sizeof(trailer));
	return rc ? rc : write_piece(w);
}

static int write_all(struct image_writer *w, const struct env *env, struct view *view)
{
	MDB_val key, value;
	int rc = 0, moved = mdb_cursor_get(view->cursor, &key, &value, MDB_FIRST);

	while (!rc && !moved) {
		rc = write_entry(w, key, value);
		moved = mdb_cursor_get(view->cursor, &key, &value, MDB_NEXT);
	}
	if (!rc && moved != MDB_NOTFOUND)
		rc = env_error(env, moved, "cannot walk");
	return rc;
}

static int write_changed(struct image_writer *w, const struct env *env, struct view *view)
{
	int rc = 0;

	for (uint64_t i = 0; !rc && i < w->changed_count; i++) {
		MDB_val key = val(w->changed[i]), value;
		int found = mdb_cursor_get(view->cursor, &key, &value, MDB_SET);

		if (!found)
			rc = write_entry(w, key, value);
		else if (found == MDB_NOTFOUND)
			rc = write_key(w, key, VALUE_DELETED);
		else
			rc = env_error(env, found, "cannot read");
	}
	return rc;
}

static int write_entries(struct image_writer *w, const struct env *env, struct view *view)
{
	int rc = write_head(w, env);

	if (!rc)
		rc = w->changed ? write_changed(w, env, view) : write_all(w, env, view);
	return rc ? rc : write_trailer(w);
}

static int write_stream(struct image_writer *w, const struct env *env, struct view *view)
{
	int rc = -ENOMEM;

	w->piece = malloc(WRITE_PIECE);
	w->hash = XXH64_createState();
	if (w->piece && w->hash) {
		XXH64_reset(w->hash, 0);
		rc = stream_open_purpose(w->pool, 0, PURPOSE_IMAGE, &w->stream);
		if (!rc) {
			rc = write_entries(w, env, view);
			stream_close(w->stream);
		}
		w->image->hash = XXH64_digest(w->hash);
	}
	XXH64_freeState(w->hash);
	free(w->piece);
	return rc;
}

/* Each segment with a reference; it says what of the image it has, and where that goes on. */
static int link_segments(struct image_writer *w, struct segment **list)
{
	for (unsigned i = 0; i < w->extent_count; i++) {
		struct segment *segment = segment_get(w->pool, w->extents[i].segment);
		bool last = i + 1 == w->extent_count;

		if (!segment)
			return -EIO;
		list[i] = segment;
		pthread_mutex_lock(&segment->lock);
		segment->row.live = w->extents[i].length;
		segment->row.next = last ? 0 : w->extents[i + 1].segment;
		pthread_mutex_unlock(&segment->lock);
	}
	return 0;
}

static int close_segments(struct image_writer *w)
{
	struct segment **list = calloc(w->extent_count, sizeof(*list));
	int rc = list ? 0 : -ENOMEM;

	w->image->segment = w->extents[0].segment;
	if (!rc)
		rc = link_segments(w, list);
	if (!rc)
		rc = segments_close(w->pool, list, w->extent_count);
	for (unsigned i = 0; list && i < w->extent_count; i++)
		segment_put(list[i]);
	free(list);
	return rc;
}

/* --- a delta, or a full one --------------------------------------------------------------------
 */

/* Bytes of a delta of these keys, or more than `most`. */
static uint64_t delta_length(
	const struct bytes *keys, uint64_t count, struct view *view, uint64_t most)
{
	uint64_t length = DELTA_HEAD_SIZE + TRAILER_SIZE;

	for (uint64_t i = 0; i < count && length <= most; i++) {
		MDB_val key = val(keys[i]), value;

		length += ENTRY_HEAD + key.mv_size;
		if (!mdb_cursor_get(view->cursor, &key, &value, MDB_SET))
			length += value.mv_size;
	}
	return length;
}

/* A delta, if the changed keys are known and it does not become larger than `most`. */
static void choose_delta(
	struct image_writer *w, struct view *view, const struct key_set *changed, uint64_t most)
{
	w->image->kind = IMAGE_FULL;
	if (!changed || key_set_bytes(changed) > most)
		return;
	w->changed_count = key_set_count(changed);
	w->changed = key_set_sorted(changed);
	if (w->changed && delta_length(w->changed, w->changed_count, view, most) <= most) {
		w->image->kind = IMAGE_DELTA;
		return;
	}
	free(w->changed);
	w->changed = NULL;
}

struct snapshot {
	struct view *view;
	uint64_t lsn;
	struct journal_position from;
	struct key_set *changed; /* since the image before; NULL: not known */
};

static int take_snapshot(struct env *env, uint64_t before, struct snapshot *s)
{
	MDB_txn *txn;
	int rc = env_write_begin(env, &txn);

	if (rc)
		return rc;
	rc = env_view_begin(env, &s->view);
	s->lsn = env_applied(env);
	journal_durable_position(env->pool, &s->from);
	s->changed = rc ? NULL : env_changed_take(env, before, s->lsn);
	env_write_abort(env, txn);
	return rc;
}

static int write_snapshot(
	struct image_writer *w, struct env *env, const struct snapshot *s, uint64_t delta_most)
{
	int rc;

	choose_delta(w, s->view, s->changed, delta_most);
	if (w->image->kind == IMAGE_FULL)
		w->part = 0;
	rc = write_stream(w, env, s->view);
	free(w->changed);
	return rc;
}

int image_write(struct pool *pool, struct env *env, uint64_t delta_most, struct image_row *part,
	struct journal_position *from)
{
	struct image_writer w = {.pool = pool, .image = part};
	struct snapshot s;
	struct image image;
	int rc;

	memset(part, 0, sizeof(*part));
	env_image(env, &image);
	w.part = image.count;
	w.before = image_lsn(&image);
	rc = take_snapshot(env, w.before, &s);
	if (rc)
		return rc;
	part->lsn = s.lsn;
	*from = s.from;
	rc = write_snapshot(&w, env, &s, image.count ? delta_most : 0);
	env_view_end(env, s.view);
	key_set_free(s.changed);
	if (!rc)
		rc = close_segments(&w);
	if (!rc)
		rc = pool_sync(pool, part->lsn);
	if (!rc)
		atomic_fetch_add(part->kind == IMAGE_DELTA ? &pool->deltas : &pool->images, 1);
	if (rc) {
		log_error("the image of volume %u was not written: %s", env->volume, strerror(-rc));
		image_forget(pool, part);
		memset(part, 0, sizeof(*part));
	}
	pool_abandon_extents(pool, w.extents, w.extent_count); /* they are live, or nothing */
	free(w.extents);
	return rc;
}
