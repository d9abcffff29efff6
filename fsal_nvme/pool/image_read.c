/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Images decoded, fed in pieces of any size, and loaded. Their format: the head of image.c. */
#include "pool/image.h"

#include <assert.h>
#include <xxhash.h>

#include "pool/env.h"

#define READ_PIECE (1024u * 1024)
#define VALUE_MAX (64u << 20) /* more than a record can hold */
#define LOAD_BATCH (8u << 20) /* bytes of entries loaded in one LMDB transaction */

/* --- decoding ----------------------------------------------------------------------------------
 */

/* What a step of decoding says when it needs more bytes than there are. */
#define MORE 1

static bool head_valid(const struct image_head *head)
{
	if (head->kind == IMAGE_FULL)
		return !head->part;
	return head->kind == IMAGE_DELTA && head->part && head->before <= head->lsn;
}

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
	d->head.before = d->head.kind == IMAGE_DELTA ? get_u64(r) : 0;
	if (r->bad)
		return MORE;
	if (zero || reserved || !head_valid(&d->head))
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
	bool deleted;

	if (r->end - r->at < 2)
		return MORE;
	key.length = get_u16(r);
	if (!key.length)
		return decode_trailer(d, r);
	if (key.length > POOL_KEY_MAX)
		return -EBADMSG;
	value.length = get_u32(r);
	deleted = value.length == VALUE_DELETED && d->head.kind == IMAGE_DELTA;
	if (deleted)
		value.length = 0;
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
	return deleted ? d->deleted(d->data, key) : d->entry(d->data, key, value);
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
	const struct image_row *row; /* of the part that is being loaded */
	unsigned part;
	uint64_t before; /* LSN of the part before */
	uint64_t left; /* bytes of the part */
	MDB_txn *txn; /* NULL between batches */
	size_t batch; /* bytes in it */
	struct image_decoder decoder;
	XXH64_state_t *hash;
	uint8_t *piece;
};

static int load_head(void *data, const struct image_head *head)
{
	const struct image_loader *l = data;

	return head->volume == l->env->volume && head->part == l->part &&
			       head->kind == l->row->kind && head->lsn == l->row->lsn &&
			       head->before == l->before
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

static int load_begin(struct image_loader *l)
{
	return l->txn ? 0 : env_write_begin(l->env, &l->txn);
}

static int load_some(struct image_loader *l, size_t bytes)
{
	l->batch += ENTRY_HEAD + bytes;
	return l->batch < LOAD_BATCH ? 0 : load_commit(l);
}

static int load_entry(void *data, struct bytes key, struct bytes value)
{
	struct image_loader *l = data;
	int rc = load_begin(l);

	if (!rc)
		rc = env_write_put(l->env, l->txn, key, value, l->part ? 0 : MDB_APPEND);
	return rc ? rc : load_some(l, key.length + value.length);
}

/* What came and went between two parts is deleted and was never there. */
static int load_deleted(void *data, struct bytes key)
{
	struct image_loader *l = data;
	int rc = load_begin(l);

	if (!rc)
		rc = env_write_delete(l->env, l->txn, key);
	return rc && rc != -ENOENT ? rc : load_some(l, key.length);
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
	int rc = image_each(l->env->pool, l->row, load_segment, l);

	if (!rc && l->left)
		rc = -EBADMSG;
	if (!rc)
		rc = image_decode_end(&l->decoder);
	if (!rc && XXH64_digest(l->hash) != l->row->hash && !format_waive_checksums)
		rc = -EBADMSG;
	return rc ? rc : load_commit(l);
}

static int load_part(struct image_loader *l, const struct image_row *row)
{
	int rc;

	l->row = row;
	l->left = row->length;
	l->decoder = (struct image_decoder){
		.head_done = load_head, .entry = load_entry, .deleted = load_deleted, .data = l};
	XXH64_reset(l->hash, 0);
	rc = load_segments(l);
	image_decoder_release(&l->decoder);
	if (rc)
		log_error("volume %u: its image of LSN %llu cannot be loaded: %s", l->env->volume,
			(unsigned long long)row->lsn, strerror(-rc));
	l->before = row->lsn;
	return rc;
}

static int load_parts(struct image_loader *l, const struct image *image)
{
	struct engine *engine = l->env->pool->engine;
	int rc = -ENOMEM;

	l->piece = buffer_alloc(engine, READ_PIECE);
	l->hash = XXH64_createState();
	if (l->piece && l->hash)
		rc = 0;
	for (; !rc && l->part < image->count; l->part++)
		rc = load_part(l, &image->parts[l->part]);
	XXH64_freeState(l->hash);
	if (l->piece)
		buffer_free(engine, l->piece, READ_PIECE);
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

int image_load(struct pool *pool, struct env *env, const struct image *image)
{
	struct image_loader l = {.env = env};
	int rc = load_parts(&l, image);

	assert(env->pool == pool);
	if (rc) {
		load_undo(&l);
		return rc;
	}
	pthread_mutex_lock(&env->lock);
	env->image = *image;
	env->applied = env->image_lsn = image_lsn(image);
	pthread_mutex_unlock(&env->lock);
	env_changed_begin(env, image_lsn(image));
	return 0;
}
