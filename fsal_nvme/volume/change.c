/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A transaction of a volume: what all changes of names, attributes and extents have in common. The
 * header row is written at its end; extents are referred to and released in bunches.
 */
#include "volume/internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"

bool volume_may_change(const struct volume *volume)
{
	return atomic_load(&volume->writable);
}

/* Under the transaction's locks. */
static void committing(struct txn_hook *hook, uint64_t lsn)
{
	struct change *change = (struct change *)hook;

	if (!lsn)
		return;
	change->volume->header = change->header;
	recent_take_out(&change->volume->recent, &change->touched, lsn);
}

int change_begin(struct volume *volume, struct change *change)
{
	int r;

	memset(change, 0, offsetof(struct change, refers));
	change->refer_count = change->release_count = change->held_count = 0;
	change->touched.count = 0;
	change->volume = volume;
	if (!volume_may_change(volume))
		return -EROFS;
	r = txn_begin(volume->pool, volume->env, &change->txn);
	if (r)
		return r;
	/* Asked again: sealing takes the right away and then waits for its own transaction. */
	if (!volume_may_change(volume)) {
		txn_abort(change->txn);
		return -EROFS;
	}
	change->now = (int64_t)engine_time(volume->engine);
	change->header = volume->header;
	change->bytes = change->header.bytes;
	change->hook.run = committing;
	txn_on_end(change->txn, &change->hook);
	return 0;
}

static int flush_refers(struct change *change)
{
	unsigned count = change->refer_count;

	change->refer_count = 0;
	return count ? txn_refer(change->txn, change->refers, count) : 0;
}

static int flush_releases(struct change *change)
{
	unsigned count = change->release_count;

	change->release_count = 0;
	return count ? txn_release(change->txn, change->releases, count) : 0;
}

static _Thread_local const struct pool_done *request;

void volume_request_begin(const struct pool_done *done)
{
	request = done;
}

void volume_request_end(void)
{
	request = NULL;
}

static int complete(struct change *change)
{
	uint8_t row[ROW_SMALL];
	struct key key;
	int r = flush_refers(change);

	if (!r)
		r = flush_releases(change);
	if (!r && change->kept)
		r = txn_keep(change->txn, change->volume->row.id, change->kept);
	if (!r && change->header_changed)
		r = change_put(change, key_header(&key), row, header_encode(&change->header, row));
	if (!r && request)
		r = done_put(change->txn, request);
	return r;
}

void volume_note_lsn(struct volume *volume, uint64_t lsn)
{
	uint64_t last = atomic_load(&volume->lsn);

	while (last < lsn && !atomic_compare_exchange_weak(&volume->lsn, &last, lsn))
		;
}

static int commit(struct change *change, uint64_t *lsn)
{
	struct volume *volume = change->volume;
	int r;

	if (!change->took)
		return txn_commit(change->txn, lsn);
	pthread_mutex_lock(&volume->moving_lock);
	r = txn_commit(change->txn, lsn);
	atomic_fetch_add(&volume->generation, 1);
	pthread_mutex_unlock(&volume->moving_lock);
	return r;
}

int change_end(struct change *change, int status, uint64_t *lsn)
{
	uint64_t number = 0;

	if (!status)
		status = complete(change);
	if (status) {
		txn_abort(change->txn);
		return status;
	}
	status = commit(change, &number);
	if (status)
		return status;
	volume_note_lsn(change->volume, number);
	recent_tell(&change->volume->recent, &change->touched, number);
	if (number)
		count_more(&change->volume->done.transactions, 1);
	atomic_fetch_add(&change->volume->committed, change->header.bytes - change->bytes);
	atomic_fetch_add(&change->volume->kept, (uint64_t)change->kept);
	for (unsigned i = 0; i < change->held_count; i++) {
		if (change->held_change[i] > change->held[i]->change)
			change->held[i]->change = change->held_change[i];
	}
	if (lsn)
		*lsn = number;
	return 0;
}

void change_release(struct change *change)
{
	for (unsigned i = 0; i < change->held_count; i++) {
		pthread_mutex_unlock(&change->held[i]->lock);
		volume_file_put(change->held[i]);
	}
	change->held_count = 0;
}

int change_finish(struct change *change, int status, uint64_t *lsn)
{
	status = change_end(change, status, lsn);
	change_release(change);
	return status;
}

static struct volume_file *held(struct change *change, uint64_t ino)
{
	for (unsigned i = 0; i < change->held_count; i++) {
		if (change->held[i]->ino == ino)
			return change->held[i];
	}
	return NULL;
}

int change_hold(
	struct change *change, const struct inode *inode, bool make, struct volume_file **out)
{
	struct volume_file *file = held(change, inode->ino);
	int r;

	*out = file;
	if (file)
		return 0;
	file = file_find(change->volume, inode->ino);
	if (!file && !make)
		return 0;
	if (!file) {
		r = file_make(change->volume, inode, &file);
		if (r)
			return r;
	}
	assert(change->held_count < HELD_MAX);
	pthread_mutex_lock(&file->lock);
	change->held[change->held_count] = file;
	change->held_change[change->held_count++] = 0;
	*out = file;
	return 0;
}

void change_touch(struct change *change, struct inode *inode)
{
	struct volume_file *file = NULL;

	/* Only data is ever ahead of its row: what is shown of it stays as it is from here on. */
	if (inode->type == VOLUME_FILE)
		change_hold(change, inode, false, &file);
	inode->change = pool_change(change->volume->pool);
	inode->ctime = change->now;
	for (unsigned i = 0; i < change->held_count; i++) {
		if (change->held[i] == file)
			change->held_change[i] = inode->change;
	}
}

bool change_has_room(const struct change *change)
{
	return txn_room(change->txn) >= ROOM_LOW;
}

int change_put(struct change *change, struct bytes key, const void *row, size_t length)
{
	return txn_put(change->txn, change->volume->env, key, (struct bytes){row, length});
}

int change_add(struct change *change, struct bytes key, const void *row, size_t length)
{
	return txn_add(change->txn, change->volume->env, key, (struct bytes){row, length});
}

int change_delete(struct change *change, struct bytes key)
{
	int r = txn_delete(change->txn, change->volume->env, key);

	return r == -ENOENT ? 0 : r;
}

/* Adds to a bunch, joined with its last when it follows that. */
static void bunch(struct extent *bunched, unsigned *count, const struct extent *extent)
{
	struct extent *last = *count ? &bunched[*count - 1] : NULL;

	if (last && last->segment == extent->segment &&
		last->offset + last->length == extent->offset)
		last->length += extent->length;
	else
		bunched[(*count)++] = *extent;
}

/* Bytes that are kept, or not any more, are in no segment. */
static int keep(struct change *change, int64_t bytes)
{
	change->kept += bytes;
	change->header.bytes += (uint64_t)bytes;
	change->header.features |= FEATURE_KEPT;
	change->header_changed = true;
	return 0;
}

int change_refer(struct change *change, const struct extent *extent)
{
	if (is_kept(extent))
		return keep(change, (int64_t)extent->length);
	bunch(change->refers, &change->refer_count, extent);
	change->header.bytes += extent->length;
	change->header_changed = true;
	if (change->refer_count < sizeof(change->refers) / sizeof(change->refers[0]))
		return 0;
	return flush_refers(change);
}

int change_release_extent(struct change *change, const struct extent *extent)
{
	if (is_kept(extent))
		return keep(change, -(int64_t)extent->length);
	bunch(change->releases, &change->release_count, extent);
	change->header.bytes -= extent->length;
	change->header_changed = true;
	change->took = true;
	if (change->release_count < sizeof(change->releases) / sizeof(change->releases[0]))
		return 0;
	return flush_releases(change);
}
