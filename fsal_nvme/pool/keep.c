/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Space that is kept for what volumes have promised to take: a file's bytes that were allocated and
 * not written yet.
 *
 * A row of the pool's environment has the bytes that are kept for a volume (KEY_KEPT), changed by
 * the transactions that change what they are kept for: after a crash both agree. What was accepted
 * and is not committed yet is promised, in memory. All other data leaves alone as many segments as
 * both may need, when it takes one and when it is appended to one that it has; appends into what is
 * kept find these. They come more often than bytes have to be counted: one segment in
 * SPARE_PART, one for each volume and SPARE_LEAST are for what closing a stream leaves empty and
 * for the metadata of what is written.
 */
#include "pool/env.h"

#define SPARE_PART 16u
#define SPARE_LEAST 3u

static struct bytes kept_key(uint8_t key[5], uint32_t volume)
{
	struct writer w = writer_on(key, 5);

	put_u8(&w, KEY_KEPT);
	put_key_u32(&w, volume);
	return (struct bytes){key, 5};
}

int kept_get(struct txn *txn, uint32_t volume, uint64_t *bytes)
{
	struct bytes value;
	uint8_t key[5];
	struct reader r;
	int rc = txn_get(txn, txn_pool(txn)->env, kept_key(key, volume), &value);

	*bytes = 0;
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	r = reader_on(value.data, value.length);
	*bytes = get_u64(&r);
	return r.bad || r.at != r.end || !*bytes ? -EBADMSG : 0;
}

static int kept_put(struct txn *txn, uint32_t volume, uint64_t bytes)
{
	struct env *env = txn_pool(txn)->env;
	uint8_t key[5], value[8];
	struct writer w = writer_on(value, sizeof(value));

	if (!bytes)
		return txn_delete(txn, env, kept_key(key, volume));
	put_u64(&w, bytes);
	return txn_put(txn, env, kept_key(key, volume), (struct bytes){value, sizeof(value)});
}

/* --- the sums --------------------------------------------------------------------------------- */

static void count(struct pool *pool, uint64_t bytes, unsigned volumes)
{
	atomic_fetch_add(&pool->kept, bytes);
	atomic_fetch_add(&pool->kept_volumes, volumes);
}

/* Whoever keeps space is to see what others take at the same time, and the other way round. */
uint64_t kept_segments(struct pool *pool)
{
	uint64_t bytes = atomic_load(&pool->kept) + atomic_load(&pool->promised);
	uint64_t size = pool_segment_bytes(pool);

	if (!bytes || !size)
		return 0;
	return (bytes - 1) / size + 1 + bytes / SPARE_PART / size + SPARE_LEAST +
	       atomic_load(&pool->kept_volumes);
}

uint64_t pool_kept(struct pool *pool)
{
	return atomic_load(&pool->kept) + atomic_load(&pool->promised);
}

bool pool_has_room(struct pool *pool, unsigned flags)
{
	return segments_left(pool, PURPOSE_DATA, flags) > 0;
}

/* A promise that cannot be made is not counted even for a moment, which others would notice. */
static bool may_fit(struct pool *pool, uint64_t bytes)
{
	uint64_t size = pool_segment_bytes(pool);
	int64_t left = segments_left(pool, PURPOSE_DATA, 0);

	return !bytes || (size && left >= 0 && bytes / size <= (uint64_t)left);
}

int pool_promise(struct pool *pool, uint64_t bytes)
{
	if (pool->read_only)
		return -EROFS;
	if (bytes > PROMISE_MAX || !may_fit(pool, bytes))
		return -ENOSPC;
	atomic_fetch_add(&pool->promised, bytes);
	if (!bytes || segments_left(pool, PURPOSE_DATA, 0) >= 0)
		return 0;
	pool_promise_end(pool, bytes);
	return -ENOSPC;
}

void pool_promise_end(struct pool *pool, uint64_t bytes)
{
	atomic_fetch_sub(&pool->promised, bytes);
}

/* --- within transactions ---------------------------------------------------------------------- */

struct kept_hook {
	struct txn_hook hook;
	struct pool *pool;
	uint64_t bytes;
	unsigned volumes;
};

/* What is let go counts from the start, and again when that is abandoned; what is kept from the end
 * on, since it is promised until then. */
static void kept_end(struct txn_hook *hook, uint64_t lsn)
{
	struct kept_hook *kept = (struct kept_hook *)hook;
	bool more = (int64_t)kept->bytes > 0;

	if (lsn && more)
		count(kept->pool, kept->bytes, kept->volumes);
	if (!lsn && !more)
		count(kept->pool, -kept->bytes, -kept->volumes);
	free(kept);
}

int txn_keep(struct txn *txn, uint32_t volume, int64_t change)
{
	struct kept_hook *hook;
	uint64_t before;
	int rc = txn_own_pool(txn);

	if (!rc)
		rc = kept_get(txn, volume, &before);
	if (rc || !change)
		return rc;
	if (change < 0 && before < (uint64_t)-change) { /* the volume's extents are wrong */
		log_error(
			"volume %u: %llu bytes of kept space to be let go, but only %llu are kept",
			volume, (unsigned long long)-change, (unsigned long long)before);
		return -EIO;
	}
	hook = malloc(sizeof(*hook));
	if (!hook)
		return -ENOMEM;
	*hook = (struct kept_hook){.hook.run = kept_end,
		.pool = txn_pool(txn),
		.bytes = (uint64_t)change,
		.volumes = (before + (uint64_t)change != 0) - (unsigned)(before != 0)};
	if (change < 0)
		count(hook->pool, hook->bytes, hook->volumes);
	txn_on_end(txn, &hook->hook);
	return kept_put(txn, volume, before + (uint64_t)change);
}

int kept_forget(struct txn *txn, uint32_t volume)
{
	uint64_t bytes;
	int rc = kept_get(txn, volume, &bytes);

	return rc ? rc : txn_keep(txn, volume, -(int64_t)bytes);
}

/* --- opening ---------------------------------------------------------------------------------- */

static int load_row(struct pool *pool, struct txn *view, struct bytes found, uint32_t *volume)
{
	struct reader r = reader_on(found.data, found.length);
	uint64_t bytes;
	int rc;

	get_u8(&r);
	*volume = get_key_u32(&r);
	if (r.bad || r.at != r.end || *volume == UINT32_MAX)
		return -EBADMSG;
	rc = kept_get(view, *volume, &bytes);
	if (!rc)
		count(pool, bytes, 1);
	return rc;
}

int recover_kept(struct pool *pool)
{
	struct bytes found, value;
	struct txn *view;
	uint8_t key[5];
	uint32_t volume = 0;
	int rc = view_begin(pool->env, &view);

	if (rc)
		return rc;
	while (!(rc = txn_seek(view, pool->env, kept_key(key, volume + 1), &found, &value)) &&
		*(const uint8_t *)found.data == KEY_KEPT) {
		rc = load_row(pool, view, found, &volume);
		if (rc)
			break;
	}
	txn_abort(view);
	if (rc && rc != -ENOENT)
		log_error("pool %s: what is kept for volumes cannot be read: %s", pool->label.name,
			strerror(-rc));
	return rc == -ENOENT ? 0 : rc;
}
