/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The segments of an image's parts: each part's row names the first, each segment the next. */
#include "pool/env.h"

#define FREE_COST (9 + TXN_CHANGE_OVERHEAD) /* of a record, for a segment */

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

static int count_segment(void *data, struct segment *segment)
{
	++*(uint64_t *)data;
	return 0;
}

uint64_t image_part_segments(struct pool *pool, const struct image_row *part)
{
	uint64_t count = 0;

	image_each(pool, part, count_segment, &count);
	return count;
}

uint64_t image_delta_segments(struct pool *pool, const struct image *image)
{
	uint64_t count = 0;

	for (unsigned i = 1; i < image->count; i++)
		count += image_part_segments(pool, &image->parts[i]);
	return count;
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

/* What is left to be freed of an image: its parts name where that begins. */
static bool is_left(const struct image *rest)
{
	bool left = false;

	for (unsigned i = 0; i < rest->count; i++)
		left |= rest->parts[i].segment != 0;
	return left;
}

static int free_some(struct pool *pool, struct image *rest)
{
	struct image then = *rest;
	struct freeing f;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &f.txn);

	if (rc)
		return rc;
	for (unsigned i = 0; !rc && i < then.count; i++) {
		f.rest = 0;
		rc = image_each(pool, &then.parts[i], free_segment, &f);
		then.parts[i].segment = f.rest;
	}
	if (rc && rc != -EAGAIN) {
		txn_abort(f.txn);
		return rc;
	}
	*rest = then;
	return txn_commit(f.txn, &lsn);
}

void image_free(struct pool *pool, const struct image *image)
{
	struct image rest = *image;

	while (is_left(&rest) && !free_some(pool, &rest))
		;
	for (unsigned i = 0; i < rest.count; i++)
		image_forget(pool, &rest.parts[i]);
}
