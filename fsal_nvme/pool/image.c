/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Images: an environment as a stream of sorted entries, to be loaded again without LMDB's help.
 *
 *   head     u64 magic, u16 version, u8 kind, u8 0, u32 volume, u32 part, u32 0, u64 LSN
 *   entries  u16 key length (1..POOL_KEY_MAX), u32 value length, key, value; keys ascend strictly
 *   trailer  u16 0 (no key is empty), u64 number of entries
 *
 * The image row, which stands elsewhere, has the length and the xxh64 of all of it, and names the
 * first segment. An image has segments of its own: each has as many bytes of it as its row says are
 * live, from its start on, and names the next. So an image may have any number of them, and a
 * segment is an image's as long as the row does that names its first. A full image is kind 1, part
 * 0. Deltas (kind 2, parts 1 and up) are left to a later version; this one refuses them, and images
 * with another version, with -ENOTSUP.
 *
 * What an image holds is exact: under the environment's write lock a view is begun and its LSN
 * noted, so that no transaction is half in it. The image is only handed out when that LSN is
 * durable: one that was ahead of the journal would, after a crash, hide the records that the next
 * epoch writes under the LSNs that were lost.
 */
#include "pool/env.h"

#include <assert.h>
#include <xxhash.h>

#define MAGIC_IMAGE 0x31474d49524c494dull /* "MILRIMG1" */
#define IMAGE_VERSION 1u
#define HEAD_SIZE 32u
#define ENTRY_HEAD 6u
#define TRAILER_SIZE 10u
#define WRITE_PIECE (512u * 1024)
#define READ_PIECE (1024u * 1024)
#define VALUE_MAX (64u << 20) /* more than a record can hold */
#define LOAD_BATCH (8u << 20) /* bytes of entries loaded in one LMDB transaction */
#define PIECE_EXTENTS 64u /* enough for segments of 16 KiB that end early */
#define EXTENTS_FIRST 64u
#define FREE_COST (9 + TXN_CHANGE_OVERHEAD) /* of a record, for a segment */

/* --- writing --------------------------------------------------------------------------------- */

struct image_writer {
	struct pool *pool;
	struct stream *stream;
	struct image_row *image;
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
	uint8_t head[HEAD_SIZE];
	struct writer out = writer_on(head, sizeof(head));

	put_u64(&out, MAGIC_IMAGE);
	put_u16(&out, IMAGE_VERSION);
	put_u8(&out, w->image->kind);
	put_u8(&out, 0);
	put_u32(&out, env->volume);
	put_u32(&out, 0);
	put_u32(&out, 0);
	put_u64(&out, w->image->lsn);
	return write_bytes(w, head, sizeof(head));
}

static int write_entry(struct image_writer *w, MDB_val key, MDB_val value)
{
	uint8_t head[ENTRY_HEAD];
	struct writer out = writer_on(head, sizeof(head));
	int rc;

	put_u16(&out, (uint16_t)key.mv_size);
	put_u32(&out, (uint32_t)value.mv_size);
	w->entries++;
	rc = write_bytes(w, head, sizeof(head));
	if (!rc)
		rc = write_bytes(w, key.mv_data, key.mv_size);
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

static int write_entries(struct image_writer *w, const struct env *env, struct view *view)
{
	MDB_val key, value;
	int rc = write_head(w, env), moved = 0;

	while (!rc && !(moved = mdb_cursor_get(view->cursor, &key, &value, MDB_NEXT)))
		rc = write_entry(w, key, value);
	if (!rc && moved != MDB_NOTFOUND)
		rc = env_error(env, moved, "cannot walk");
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

static int take_snapshot(
	struct env *env, struct view **view, uint64_t *lsn, struct journal_position *from)
{
	MDB_txn *txn;
	int rc = env_write_begin(env, &txn);

	if (rc)
		return rc;
	rc = env_view_begin(env, view);
	*lsn = env_applied(env);
	journal_durable_position(env->pool, from);
	env_write_abort(env, txn);
	return rc;
}

int image_write(
	struct pool *pool, struct env *env, struct image_row *image, struct journal_position *from)
{
	struct image_writer w = {.pool = pool, .image = image};
	struct view *view;
	int rc;

	memset(image, 0, sizeof(*image));
	rc = take_snapshot(env, &view, &image->lsn, from);
	if (rc)
		return rc;
	image->kind = IMAGE_FULL;
	rc = write_stream(&w, env, view);
	env_view_end(env, view);
	if (!rc)
		rc = close_segments(&w);
	if (!rc)
		rc = pool_sync(pool, image->lsn);
	if (rc) {
		log_error("the image of volume %u was not written: %s", env->volume, strerror(-rc));
		image_forget(pool, image);
		memset(image, 0, sizeof(*image));
	}
	pool_abandon_extents(pool, w.extents, w.extent_count); /* they are live, or nothing */
	free(w.extents);
	return rc;
}

/* --- its segments ------------------------------------------------------------------------------
 */

static unsigned count_all(struct pool *pool)
{
	unsigned count;

	pthread_rwlock_rdlock(&pool->table_lock);
	count = pool->segment_count;
	pthread_rwlock_unlock(&pool->table_lock);
	return count;
}

int image_each(struct pool *pool, const struct image_row *image,
	int (*each)(void *data, struct segment *segment), void *data)
{
	unsigned most = count_all(pool); /* a row that is wrong may lead back */
	uint64_t id = image->segment;
	int rc = 0;

	for (unsigned i = 0; !rc && id && i < most; i++) {
		struct segment *segment = segment_get(pool, id);

		if (!segment)
			break;
		rc = each(data, segment);
		id = segment->row.next;
		segment_put(segment);
	}
	return rc;
}

static int forget_segment(void *data, struct segment *segment)
{
	pthread_mutex_lock(&segment->lock);
	segment->row.live = 0;
	pthread_mutex_unlock(&segment->lock);
	segment_note_chore(segment);
	return 0;
}

void image_forget(struct pool *pool, const struct image_row *image)
{
	image_each(pool, image, forget_segment, NULL);
}

struct freeing {
	struct txn *txn;
	uint64_t rest; /* the first that did not fit; 0: none */
};

static int free_segment(void *data, struct segment *segment)
{
	struct freeing *f = data;

	f->rest = 0;
	if (txn_room(f->txn) >= FREE_COST)
		return segment->freed ? 0 : segment_free(f->txn, segment);
	f->rest = segment->id;
	return -EAGAIN;
}

static int free_some(struct pool *pool, struct image_row *image)
{
	struct freeing f = {.rest = 0};
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &f.txn);

	if (rc)
		return rc;
	rc = image_each(pool, image, free_segment, &f);
	if (rc && rc != -EAGAIN) {
		txn_abort(f.txn);
		return rc;
	}
	image->segment = f.rest;
	return txn_commit(f.txn, &lsn);
}

void image_free(struct pool *pool, const struct image_row *image)
{
	struct image_row rest = *image;

	while (rest.segment && !free_some(pool, &rest))
		;
	image_forget(pool, &rest);
}

/* --- decoding ----------------------------------------------------------------------------------
 */

/* What a step of decoding says when it needs more bytes than there are. */
#define MORE 1

static int decode_head(struct image_decoder *d, struct reader *r)
{
	uint8_t zero;
	uint32_t reserved;

	if (r->end - r->at < (ptrdiff_t)HEAD_SIZE)
		return MORE;
	if (get_u64(r) != MAGIC_IMAGE)
		return -EBADMSG;
	if (get_u16(r) != IMAGE_VERSION)
		return -ENOTSUP;
	d->head.kind = get_u8(r);
	zero = get_u8(r);
	d->head.volume = get_u32(r);
	d->head.part = get_u32(r);
	reserved = get_u32(r);
	d->head.lsn = get_u64(r);
	if (d->head.kind != IMAGE_FULL)
		return d->head.kind == IMAGE_DELTA ? -ENOTSUP : -EBADMSG;
	if (zero || reserved)
		return -EBADMSG;
	d->headed = true;
	return d->head_done ? d->head_done(d->data, &d->head) : 0;
}

static int decode_trailer(struct image_decoder *d, struct reader *r)
{
	if (r->end - r->at < (ptrdiff_t)TRAILER_SIZE - 2)
		return MORE;
	if (get_u64(r) != d->entries)
		return -EBADMSG;
	d->ended = true;
	return 0;
}

static bool key_ascends(const struct image_decoder *d, struct bytes key)
{
	size_t common = key.length < d->last_length ? key.length : d->last_length;
	int order = memcmp(d->last, key.data, common);

	return order < 0 || (!order && d->last_length < key.length);
}

static int decode_entry(struct image_decoder *d, struct reader *r)
{
	struct bytes key, value;

	if (r->end - r->at < 2)
		return MORE;
	key.length = get_u16(r);
	if (!key.length)
		return decode_trailer(d, r);
	if (key.length > POOL_KEY_MAX)
		return -EBADMSG;
	value.length = get_u32(r);
	if (value.length > VALUE_MAX)
		return -EBADMSG;
	key.data = get_bytes(r, key.length);
	value.data = get_bytes(r, value.length);
	if (r->bad)
		return MORE;
	if (!key_ascends(d, key))
		return -EBADMSG;
	memcpy(d->last, key.data, key.length);
	d->last_length = key.length;
	d->entries++;
	return d->entry(d->data, key, value);
}

static int decode_some(struct image_decoder *d)
{
	struct reader r = reader_on(d->carry, d->carried);
	int rc = 0;

	while (!rc && r.at < r.end) {
		struct reader step = r;

		if (d->ended)
			return -EBADMSG;
		rc = d->headed ? decode_entry(d, &step) : decode_head(d, &step);
		if (!rc)
			r = step;
	}
	d->carried = (size_t)(r.end - r.at);
	memmove(d->carry, r.at, d->carried);
	return rc == MORE ? 0 : rc;
}

int image_decode(struct image_decoder *d, const void *bytes, size_t length)
{
	size_t needed = d->carried + length;
	uint8_t *carry;

	if (!length)
		return 0;
	if (needed > d->capacity) {
		carry = realloc(d->carry, needed);
		if (!carry)
			return -ENOMEM;
		d->carry = carry;
		d->capacity = needed;
	}
	memcpy(d->carry + d->carried, bytes, length);
	d->carried = needed;
	return decode_some(d);
}

int image_decode_end(struct image_decoder *d)
{
	return d->ended && !d->carried ? 0 : -EBADMSG;
}

void image_decoder_release(struct image_decoder *d)
{
	free(d->carry);
	d->carry = NULL;
	d->carried = d->capacity = 0;
}

/* --- loading -----------------------------------------------------------------------------------
 */

struct image_loader {
	struct env *env;
	const struct image_row *image;
	uint64_t left; /* bytes of it */
	MDB_txn *txn; /* NULL between batches */
	size_t batch; /* bytes in it */
	struct image_decoder decoder;
	XXH64_state_t *hash;
	uint8_t *piece;
};

static int load_head(void *data, const struct image_head *head)
{
	const struct image_loader *l = data;

	return head->volume == l->env->volume && !head->part && head->lsn == l->image->lsn
		       ? 0
		       : -EBADMSG;
}

static int load_commit(struct image_loader *l)
{
	MDB_txn *txn = l->txn;
	int rc;

	if (!txn)
		return 0;
	l->txn = NULL;
	l->batch = 0;
	rc = env_write_commit(l->env, txn);
	if (rc)
		return rc;
	rc = env_write_begin(l->env, &txn);
	if (rc)
		return rc;
	rc = env_memory_full(l->env) ? -ENOSPC : 0; /* its image is there already */
	env_write_abort(l->env, txn);
	return rc;
}

static int load_entry(void *data, struct bytes key, struct bytes value)
{
	struct image_loader *l = data;
	int rc = l->txn ? 0 : env_write_begin(l->env, &l->txn);

	if (rc)
		return rc;
	rc = env_write_put(l->env, l->txn, key, value, MDB_APPEND);
	if (rc)
		return rc;
	l->batch += ENTRY_HEAD + key.length + value.length;
	return l->batch < LOAD_BATCH ? 0 : load_commit(l);
}

static int load_segment(void *data, struct segment *segment)
{
	struct image_loader *l = data;
	struct segment_row row;
	struct extent left;
	int rc = 0;

	segment_look(segment, &row);
	left = (struct extent){row.id, 0, row.live};
	if (!left.length || left.length > l->left)
		return -EBADMSG;
	l->left -= left.length;
	while (!rc && left.length) {
		struct read_part part = {left, l->piece};

		if (part.extent.length > READ_PIECE)
			part.extent.length = READ_PIECE;
		rc = pool_read_wait(l->env->pool, &part, 1);
		if (rc)
			return rc;
		XXH64_update(l->hash, l->piece, part.extent.length);
		rc = image_decode(&l->decoder, l->piece, part.extent.length);
		left.offset += part.extent.length;
		left.length -= part.extent.length;
	}
	return rc;
}

static int load_segments(struct image_loader *l)
{
	int rc = image_each(l->env->pool, l->image, load_segment, l);

	if (!rc && l->left)
		rc = -EBADMSG;
	if (!rc)
		rc = image_decode_end(&l->decoder);
	if (!rc && XXH64_digest(l->hash) != l->image->hash && !format_waive_checksums)
		rc = -EBADMSG;
	return rc ? rc : load_commit(l);
}

static int load_stream(struct image_loader *l)
{
	struct engine *engine = l->env->pool->engine;
	int rc = -ENOMEM;

	l->piece = buffer_alloc(engine, READ_PIECE);
	l->hash = XXH64_createState();
	if (l->piece && l->hash) {
		XXH64_reset(l->hash, 0);
		rc = load_segments(l);
	}
	XXH64_freeState(l->hash);
	if (l->piece)
		buffer_free(engine, l->piece, READ_PIECE);
	image_decoder_release(&l->decoder);
	return rc;
}

/* After a failure: nothing of the image is left. */
static void load_undo(struct image_loader *l)
{
	MDB_txn *txn;

	if (l->txn)
		env_write_abort(l->env, l->txn);
	if (env_write_begin(l->env, &txn))
		return;
	if (env_write_empty(l->env, txn))
		env_write_abort(l->env, txn);
	else
		env_write_commit(l->env, txn);
}

int image_load(struct pool *pool, struct env *env, const struct image_row *image)
{
	struct image_loader l = {.env = env, .image = image, .left = image->length};
	int rc = image->kind == IMAGE_FULL ? 0 : -ENOTSUP;

	assert(env->pool == pool);
	l.decoder = (struct image_decoder){.head_done = load_head, .entry = load_entry, .data = &l};
	if (!rc)
		rc = load_stream(&l);
	if (rc) {
		log_error("volume %u: its image of LSN %llu cannot be loaded: %s", env->volume,
			(unsigned long long)image->lsn, strerror(-rc));
		load_undo(&l);
		return rc;
	}
	pthread_mutex_lock(&env->lock);
	env->applied = env->image_lsn = image->lsn;
	pthread_mutex_unlock(&env->lock);
	return 0;
}
