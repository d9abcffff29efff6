/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The segment table in memory, and the life of a segment:
 *
 *   reserved   slots taken and recorded, durable: only now may its owner write there
 *   open       a stream fills it; checksums of its rows stand in the pool's environment
 *   closed     headers and checksum pages stand on all its live chunks
 *   moved      what images name of it is elsewhere (remap.h); its slots go as a freed one's
 *   freed      its row is gone; its slots go back when the last read or repair lets go of it
 *
 * A stock of reserved segments is kept, so that an append seldom waits for the journal. When a
 * stream asks for one, data gets -ENOSPC while images and the compactor still find some: that is
 * the reserve that lets a full pool delete and checkpoint.
 */
#include <assert.h>
#include <limits.h>
#include <stdio.h>

#include "pool/remap.h"
#include "pool/row.h"

#define COMPACTION_SEGMENTS 2u /* that it always finds, beside the images */

/* --- addresses ------------------------------------------------------------------------------- */

struct member *segment_member(struct pool *pool, const struct segment *s, unsigned chunk)
{
	return &pool->devices[s->row.chunks[chunk].device];
}

static uint64_t slot_offset(struct pool *pool, const struct segment *s, unsigned chunk)
{
	struct member *member = segment_member(pool, s, chunk);

	return member->slots_offset +
	       (uint64_t)s->row.chunks[chunk].slot * member->header.slot_size;
}

uint64_t segment_header_offset(struct pool *pool, const struct segment *s, unsigned chunk)
{
	return slot_offset(pool, s, chunk);
}

uint64_t segment_page_offset(
	struct pool *pool, const struct segment *s, unsigned chunk, unsigned of, uint32_t page)
{
	return slot_offset(pool, s, chunk) +
	       (uint64_t)BLOCK_SIZE * (1 + (uint64_t)of * s->layout.pages + page);
}

uint64_t segment_block_offset(
	struct pool *pool, const struct segment *s, unsigned chunk, uint64_t block)
{
	return slot_offset(pool, s, chunk) + s->layout.cells_offset + block * BLOCK_SIZE;
}

/* --- the table ------------------------------------------------------------------------------- */

static struct segment **bucket(struct pool *pool, uint64_t id)
{
	return &pool->table[(id * 0x9e3779b97f4a7c15ull >> 32) % pool->table_size];
}

static struct segment *find(struct pool *pool, uint64_t id)
{
	struct segment *s = *bucket(pool, id);

	while (s && s->id != id)
		s = s->hash_next;
	return s;
}

struct segment *segment_get(struct pool *pool, uint64_t id)
{
	struct segment *s;

	pthread_rwlock_rdlock(&pool->table_lock);
	s = find(pool, id);
	if (s)
		atomic_fetch_add(&s->references, 1);
	pthread_rwlock_unlock(&pool->table_lock);
	return s;
}

void segment_destroy(struct segment *s)
{
	segment_drop_arrays(s);
	free(s->remap);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void segment_put(struct segment *s)
{
	if (!s || atomic_fetch_sub(&s->references, 1) != 1)
		return;
	if (s->freed && s->rests) {
		rest_begin(s->pool, s);
		return;
	}
	if (s->freed)
		place_release(s->pool, &s->row);
	segment_destroy(s);
}

static struct segment *segment_new(struct pool *pool, const struct segment_row *row)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->pool = pool;
	s->id = row->id;
	s->row = *row;
	layout_compute(&s->layout, row->data, row->parity, row->cell, pool->header.slot_rows);
	pthread_mutex_init(&s->lock, NULL);
	atomic_init(&s->references, 2);
	return s;
}

void segment_look(struct segment *s, struct segment_row *row)
{
	pthread_mutex_lock(&s->lock);
	*row = s->row;
	pthread_mutex_unlock(&s->lock);
}

/* With table_lock for writing. */
static int table_grow(struct pool *pool)
{
	unsigned old_size = pool->table_size, size = old_size ? 2 * old_size : 64;
	struct segment **old = pool->table, **table = calloc(size, sizeof(*table));

	if (!table)
		return -ENOMEM;
	pool->table = table;
	pool->table_size = size;
	for (unsigned i = 0; i < old_size; i++) {
		for (struct segment *s = old[i], *next; s; s = next) {
			next = s->hash_next;
			s->hash_next = *bucket(pool, s->id);
			*bucket(pool, s->id) = s;
		}
	}
	free(old);
	return 0;
}

/* With table_lock for writing. */
static void moved_add(struct pool *pool, struct segment *s)
{
	LIST_INSERT_HEAD(&pool->moved, s, moved);
	atomic_fetch_add(&pool->remap_runs, s->remap->count);
}

/* With table_lock for writing: if it is one. */
static void moved_remove(struct pool *pool, struct segment *s)
{
	if (!s->remap)
		return;
	LIST_REMOVE(s, moved);
	atomic_fetch_sub(&pool->remap_runs, s->remap->count);
}

int segment_insert(struct pool *pool, const struct segment_row *row, struct segment **segment)
{
	struct segment *s = segment_new(pool, row);
	int rc = 0;

	if (!s)
		return -ENOMEM;
	pthread_rwlock_wrlock(&pool->table_lock);
	if (pool->segment_count >= pool->table_size)
		rc = table_grow(pool);
	if (!rc && find(pool, s->id))
		rc = -EEXIST;
	if (!rc) {
		s->hash_next = *bucket(pool, s->id);
		*bucket(pool, s->id) = s;
		pool->segment_count++;
	}
	pthread_rwlock_unlock(&pool->table_lock);
	if (rc)
		segment_destroy(s);
	else
		*segment = s;
	return rc;
}

void segment_remove(struct pool *pool, struct segment *segment)
{
	struct segment **at;

	pthread_rwlock_wrlock(&pool->table_lock);
	at = bucket(pool, segment->id);
	while (*at && *at != segment)
		at = &(*at)->hash_next;
	if (*at) {
		*at = segment->hash_next;
		pool->segment_count--;
		moved_remove(pool, segment);
	}
	pthread_rwlock_unlock(&pool->table_lock);
	page_cache_forget(pool, segment->id);
	segment_forget_chore(segment);
	segment_put(segment);
}

struct segment *segment_prepare(
	struct pool *pool, const struct segment_row *row, struct remap *remap)
{
	struct segment *s = segment_new(pool, row);

	if (s)
		s->remap = remap;
	return s;
}

void segment_set_remap(struct segment *segment, struct remap *remap)
{
	struct pool *pool = segment->pool;

	pthread_rwlock_wrlock(&pool->table_lock);
	moved_remove(pool, segment);
	free(segment->remap);
	segment->remap = remap;
	moved_add(pool, segment);
	pthread_rwlock_unlock(&pool->table_lock);
}

/* Remaps are of sealed volumes alone. */
void segment_replace(struct segment *old, struct segment *fresh, uint64_t lsn)
{
	struct pool *pool = old->pool;
	struct segment **at;

	pthread_rwlock_wrlock(&pool->table_lock);
	at = bucket(pool, old->id);
	while (*at != old)
		at = &(*at)->hash_next;
	fresh->hash_next = old->hash_next;
	*at = fresh;
	moved_remove(pool, old);
	moved_add(pool, fresh);
	pthread_rwlock_unlock(&pool->table_lock);
	old->freed_lsn = lsn;
	old->rests = old->freed = true;
	page_cache_forget(pool, old->id);
	segment_forget_chore(old);
	segment_put(old);
}

int segment_exchange(struct pool *pool, struct segment *old, struct segment *fresh)
{
	struct segment **at;
	int rc = 0;

	pthread_rwlock_wrlock(&pool->table_lock);
	if (fresh && pool->segment_count >= pool->table_size)
		rc = table_grow(pool);
	if (!rc && old) {
		at = bucket(pool, old->id);
		while (*at != old)
			at = &(*at)->hash_next;
		*at = old->hash_next;
		pool->segment_count--;
		moved_remove(pool, old);
	}
	if (!rc && fresh) {
		fresh->hash_next = *bucket(pool, fresh->id);
		*bucket(pool, fresh->id) = fresh;
		pool->segment_count++;
		if (fresh->remap)
			moved_add(pool, fresh);
	}
	pthread_rwlock_unlock(&pool->table_lock);
	if (rc || !old)
		return rc;
	page_cache_forget(pool, old->id);
	segment_put(old);
	return 0;
}

int segment_list(struct pool *pool, struct segment ***segments, unsigned *count)
{
	struct segment **list;
	unsigned n = 0;

	pthread_rwlock_rdlock(&pool->table_lock);
	list = calloc(pool->segment_count + 1, sizeof(*list));
	for (unsigned i = 0; list && i < pool->table_size; i++) {
		for (struct segment *s = pool->table[i]; s; s = s->hash_next) {
			atomic_fetch_add(&s->references, 1);
			list[n++] = s;
		}
	}
	pthread_rwlock_unlock(&pool->table_lock);
	*segments = list;
	*count = n;
	return list ? 0 : -ENOMEM;
}

/* --- recording and freeing ---------------------------------------------------------------------
 */

int txn_own_pool(struct txn *txn)
{
	uint8_t key = KEY_SEGMENT;
	struct bytes value;
	int rc = txn_get(txn, pool_env(txn_pool(txn)), (struct bytes){&key, 1}, &value);

	return rc == -ENOENT ? 0 : rc;
}

int segment_record(struct txn *txn, struct segment *segment)
{
	uint8_t key[ROW_KEY_MAX], value[SEGMENT_ROW_MAX];
	struct writer w = writer_on(value, sizeof(value));

	assert(!segment->freed);
	segment_row_encode(&segment->row, &w);
	return txn_put(txn, pool_env(txn_pool(txn)), key_segment(key, KEY_SEGMENT, segment->id),
		(struct bytes){value, (size_t)(w.at - value)});
}

int segment_row_next(struct pool *pool, struct txn *view, uint64_t id, struct segment_row *row)
{
	uint8_t key[9] = {KEY_SEGMENT};
	struct writer w = writer_on(key + 1, 8);
	struct bytes found, value;
	struct reader k, r;
	int rc;

	put_be64(&w, id);
	rc = txn_seek(view, pool->env, (struct bytes){key, sizeof(key)}, &found, &value);
	if (rc)
		return rc;
	k = reader_on(found.data, found.length);
	if (get_u8(&k) != KEY_SEGMENT || found.length != sizeof(key))
		return -ENOENT;
	r = reader_on(value.data, value.length);
	rc = segment_row_decode(row, &r);
	return rc || row->id == get_be64(&k) ? rc : -EBADMSG;
}

struct free_hook {
	struct txn_hook hook;
	struct pool *pool;
	struct segment *segment;
	bool rests;
};

static void free_committed(struct txn_hook *hook, uint64_t lsn)
{
	struct free_hook *f = (struct free_hook *)hook;

	if (lsn) {
		f->segment->freed_lsn = lsn;
		f->segment->rests = f->rests;
		f->segment->freed = true;
		segment_remove(f->pool, f->segment);
	}
	free(f);
}

bool segment_is_shown(struct txn *txn, const struct segment *segment)
{
	struct volume_row volume;

	return segment->row.purpose == PURPOSE_DATA && segment->row.data &&
	       segment->row.state != SEGMENT_RESERVED &&
	       !volume_row_get(txn, segment->row.volume, &volume) && volume.sealed;
}

int segment_free(struct txn *txn, struct segment *segment)
{
	struct pool *pool = txn_pool(txn);
	struct free_hook *hook;
	unsigned all = UINT_MAX;
	uint8_t key[ROW_KEY_MAX];
	int rc;

	assert(!segment->freed);
	if (segment->row.state != SEGMENT_MOVED && written_late(pool, &segment->row))
		return segment_forget_live(txn, segment);
	hook = malloc(sizeof(*hook));
	if (!hook)
		return -ENOMEM;
	*hook = (struct free_hook){.hook.run = free_committed,
		.pool = pool,
		.segment = segment,
		.rests = segment_is_shown(txn, segment)};
	txn_on_end(txn, &hook->hook);
	rc = keys_delete(txn, key_segment(key, KEY_SUMS, segment->id), &all);
	if (!rc)
		rc = keys_delete(txn, key_segment(key, KEY_TAIL, segment->id), &all);
	if (!rc && segment->remap)
		rc = keys_delete(txn, key_segment(key, KEY_REMAP, segment->id), &all);
	if (!rc)
		rc = txn_delete(txn, pool_env(pool), key_segment(key, KEY_SEGMENT, segment->id));
	return rc;
}

/* --- reserving -----------------------------------------------------------------------------------
 */

static void forget_reserved(struct pool *pool, struct segment **list, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		list[i]->freed = true;
		place_owned(pool, false);
		segment_remove(pool, list[i]);
		segment_put(list[i]);
	}
}

static int reserve_one(struct txn *txn, struct segment **segment)
{
	struct pool *pool = txn_pool(txn);
	struct segment_row row = {
		.epoch = pool->epoch,
		.generation = 1,
		.state = SEGMENT_RESERVED,
		.matrix = pool->header.matrix,
		.cell = pool->header.cell,
		.id = pool->epoch << 32 | pool->next_segment,
	};
	int rc = place_segment(pool, &row);

	if (rc)
		return rc;
	rc = segment_insert(pool, &row, segment);
	if (rc) {
		place_owned(pool, false);
		place_release(pool, &row);
		return rc;
	}
	pool->next_segment++;
	rc = segment_record(txn, *segment);
	if (rc)
		forget_reserved(pool, segment, 1);
	return rc;
}

/* Until the next opening. */
static void leave_reserved(struct pool *pool, struct segment *s)
{
	place_owned(pool, false);
	segment_put(s);
}

/*
 * They are recorded. An owner that was paused meanwhile has reserved nothing: its journal window
 * may be one that its successor left behind. Where that cannot be told they stay reserved until the
 * next opening.
 */
static int make_sure(struct pool *pool, struct segment **list, unsigned count, uint64_t lsn)
{
	int rc = pool_sync(pool, lsn);

	if (!rc)
		rc = beat_still_ours(pool);
	for (unsigned i = 0; rc && i < count; i++)
		leave_reserved(pool, list[i]);
	return rc;
}

static void recording_begin(struct pool *pool)
{
	pthread_mutex_lock(&pool->recording_lock);
	pool->recording++;
	pthread_mutex_unlock(&pool->recording_lock);
}

static void recording_end(struct pool *pool)
{
	pthread_mutex_lock(&pool->recording_lock);
	pool->recording--;
	pthread_cond_broadcast(&pool->recorded);
	pthread_mutex_unlock(&pool->recording_lock);
}

/* Until none is on its way: those wait for the journal alone. */
static void recording_await(struct pool *pool)
{
	pthread_mutex_lock(&pool->recording_lock);
	while (pool->recording)
		pthread_cond_wait(&pool->recorded, &pool->recording_lock);
	pthread_mutex_unlock(&pool->recording_lock);
}

/* Reserves up to `wanted` segments, durable; list[i] with a reference each. When all has its place,
 * recording_end(). */
static int reserve(struct pool *pool, struct segment **list, unsigned wanted, unsigned *count)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	*count = 0;
	if (rc)
		return rc;
	recording_begin(pool);
	while (!rc && *count < wanted) {
		rc = reserve_one(txn, &list[*count]);
		if (!rc)
			++*count;
	}
	if (rc == -ENOSPC && *count)
		rc = 0;
	if (rc)
		txn_abort(txn);
	else
		rc = txn_commit(txn, &lsn);
	if (rc)
		forget_reserved(pool, list, *count);
	else
		rc = make_sure(pool, list, *count, lsn);
	if (!rc)
		return 0;
	*count = 0;
	recording_end(pool);
	return rc;
}

static bool all_usable(struct pool *pool, const struct segment *s)
{
	for (unsigned i = 0; i < s->layout.data + s->layout.parity; i++) {
		struct member *member = segment_member(pool, s, i);

		if (member_lacks(member, s->id) || atomic_load(&member->failing))
			return false;
	}
	return true;
}

static struct segment *stock_pop(struct pool *pool)
{
	struct segment *s = NULL;

	pthread_rwlock_wrlock(&pool->table_lock);
	if (pool->stock_count)
		s = pool->stock[--pool->stock_count];
	pthread_rwlock_unlock(&pool->table_lock);
	return s;
}

static bool stock_push(struct pool *pool, struct segment *s)
{
	bool pushed = false;

	pthread_rwlock_wrlock(&pool->table_lock);
	if (pool->stock_count < pool->stock_size) {
		pool->stock[pool->stock_count++] = s;
		pushed = true;
	}
	pthread_rwlock_unlock(&pool->table_lock);
	return pushed;
}

static int free_reserved(struct pool *pool, struct segment *s)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	rc = segment_free(txn, s);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	return txn_commit(txn, &lsn);
}

/* One that is nobody's is freed, or in the stock again. */
static int discard(struct pool *pool, struct segment *s)
{
	int rc;

	place_owned(pool, false);
	rc = free_reserved(pool, s);
	if (s->freed) {
		segment_put(s);
		return rc;
	}
	place_unowned(pool);
	if (!stock_push(pool, s))
		leave_reserved(pool, s);
	return rc;
}

/* One of the stock that lies on usable members only; the others are given up. */
static int stock_take(struct pool *pool, struct segment **segment)
{
	struct segment *s;

	while ((s = stock_pop(pool))) {
		int rc;

		if (all_usable(pool, s)) {
			*segment = s;
			return 0;
		}
		rc = discard(pool, s);
		if (rc)
			return rc;
	}
	return -ENOENT;
}

static unsigned stock_left(struct pool *pool)
{
	unsigned count;

	pthread_rwlock_rdlock(&pool->table_lock);
	count = pool->stock_count;
	pthread_rwlock_unlock(&pool->table_lock);
	return count;
}

int segment_discard_stock(struct pool *pool)
{
	struct segment *s;
	int rc = 0;

	for (unsigned left = stock_left(pool); !rc && left && (s = stock_pop(pool)); left--)
		rc = discard(pool, s);
	return rc;
}

uint64_t segment_reserve(struct pool *pool)
{
	uint64_t images = atomic_load(&pool->image_segments) + COMPACTION_SEGMENTS;

	return images > pool->reserve_segments ? images : pool->reserve_segments;
}

/* Data leaves alone the reserve and what is kept for other data, the compactor what the images
 * need, the images nothing. */
int64_t segments_left(struct pool *pool, enum segment_purpose purpose, unsigned flags)
{
	struct place_left left = place_left(pool);
	uint64_t kept = flags & APPEND_RESERVED ? atomic_load(&pool->image_segments)
						: segment_reserve(pool);

	if (purpose != PURPOSE_DATA)
		return INT64_MAX;
	/* What a checkpoint has taken is of what the images need. */
	if (flags & (APPEND_RESERVED | APPEND_KEPT))
		left.segments += left.image_taken;
	else
		kept += kept_segments(pool);
	return (int64_t)left.segments - (int64_t)kept;
}

uint64_t segment_compaction_room(struct pool *pool)
{
	int64_t left = segments_left(pool, PURPOSE_DATA, APPEND_RESERVED);

	return left > 0 ? (uint64_t)left : 0;
}

/* Of several who took one at the same time some may have taken what is not theirs. */
static int give_back(struct pool *pool, struct segment *segment)
{
	int rc = 0;

	place_unowned(pool);
	if (!stock_push(pool, segment))
		rc = discard(pool, segment);
	return rc ? rc : -ENOSPC;
}

static int reserve_single(struct pool *pool, struct segment **segment)
{
	unsigned count;
	int rc = reserve(pool, segment, 1, &count);

	if (!rc)
		recording_end(pool);
	return rc;
}

static int get_unowned(struct pool *pool, bool many, struct segment **segment)
{
	int rc = stock_take(pool, segment);

	/* One record for a stock of them. */
	if (rc == -ENOENT && many) {
		rc = segment_restock(pool);
		rc = rc ? rc : stock_take(pool, segment);
	}
	if (rc == -ENOENT)
		rc = reserve_single(pool, segment);
	if (rc != -ENOSPC)
		return rc;
	recording_await(pool); /* the last ones may be on their way into the stock */
	rc = stock_take(pool, segment);
	return rc == -ENOENT ? -ENOSPC : rc;
}

int segment_take(struct pool *pool, uint32_t volume, enum segment_purpose purpose, unsigned flags,
	struct segment **segment)
{
	int rc;

	if (segments_left(pool, purpose, flags) <= 0)
		return -ENOSPC;
	rc = get_unowned(pool, purpose == PURPOSE_IMAGE, segment);
	if (rc)
		return rc;
	place_owned(pool, purpose == PURPOSE_IMAGE);
	if (segments_left(pool, purpose, flags) < 0)
		return give_back(pool, *segment);
	pthread_mutex_lock(&(*segment)->lock);
	(*segment)->row.volume = volume;
	(*segment)->row.purpose = (uint8_t)purpose;
	(*segment)->row.state = SEGMENT_OPEN;
	pthread_mutex_unlock(&(*segment)->lock);
	pool_wake_maintenance(pool);
	return 0;
}

int segment_restock(struct pool *pool)
{
	struct segment *list[16];
	unsigned wanted = pool->stock_size - stock_left(pool), count;
	int rc;

	if (wanted > 16)
		wanted = 16;
	if (!wanted || pool->read_only)
		return 0;
	rc = reserve(pool, list, wanted, &count);
	for (unsigned i = 0; i < count; i++)
		if (!stock_push(pool, list[i]))
			leave_reserved(pool, list[i]);
	if (!rc)
		recording_end(pool);
	return rc == -ENOSPC ? 0 : rc;
}
