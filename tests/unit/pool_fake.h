/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * For the tests of environments and of the volume table: what stands below them, in memory. A
 * journal that is a list of records, segments that are buffers; all of it outlives the pool, so
 * that a pool can be opened again on it.
 */
#ifndef MILLRACE_TEST_POOL_FAKE_H
#define MILLRACE_TEST_POOL_FAKE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "device/sim.h"
#include "pool/env.h"

#define FAKE_SEGMENT (24u * 1024) /* bytes */
#define FAKE_SEGMENTS 4096u

struct fake_record {
	uint64_t lsn;
	uint8_t *payload;
	size_t length;
};

static struct fake {
	struct sim_world *world;
	struct engine *engine;
	struct pool *pool;
	pthread_mutex_t lock;
	struct fake_record *records;
	unsigned record_count, record_size;
	uint64_t lsn, durable; /* durable: as journal_durable_position() says, batches of 4 */
	size_t reserved, record_max;
	bool was_urgent;
	struct segment *segments[FAKE_SEGMENTS];
	uint8_t *bytes[FAKE_SEGMENTS];
	unsigned segment_count, freed, closed, streams;
	uint32_t segment_size;
	uint64_t abandoned;
	int append_error; /* of the next stream_append()s */
	bool keep_none; /* records are counted and not kept */
} fake;

void checkpoint_expect(struct pool *pool)
{
}

/* --- journal --------------------------------------------------------------------------------- */

size_t journal_record_max(struct pool *pool)
{
	return fake.record_max;
}

int journal_reserve(struct pool *pool, size_t bytes, bool urgent)
{
	pthread_mutex_lock(&fake.lock);
	fake.reserved += bytes;
	fake.was_urgent = urgent;
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

void journal_unreserve(struct pool *pool, size_t bytes)
{
	pthread_mutex_lock(&fake.lock);
	assert_true(bytes <= fake.reserved);
	fake.reserved -= bytes;
	pthread_mutex_unlock(&fake.lock);
}

uint64_t journal_append(
	struct pool *pool, enum record_kind kind, const void *payload, size_t length)
{
	struct fake_record *record;
	uint64_t lsn;

	pthread_mutex_lock(&fake.lock);
	assert_true(length <= fake.reserved);
	if (fake.record_count == fake.record_size) {
		fake.record_size = fake.record_size ? 2 * fake.record_size : 64;
		fake.records = realloc(fake.records, fake.record_size * sizeof(*fake.records));
	}
	lsn = ++fake.lsn;
	if (!fake.keep_none) {
		record = &fake.records[fake.record_count++];
		*record = (struct fake_record){lsn, malloc(length), length};
		memcpy(record->payload, payload, length);
	}
	pthread_mutex_unlock(&fake.lock);
	return lsn;
}

uint64_t journal_lsn(struct pool *pool)
{
	uint64_t lsn;

	pthread_mutex_lock(&fake.lock);
	lsn = fake.lsn;
	pthread_mutex_unlock(&fake.lock);
	return lsn;
}

void journal_durable_position(struct pool *pool, struct journal_position *position)
{
	pthread_mutex_lock(&fake.lock);
	memset(position, 0, sizeof(*position));
	position->lsn = fake.lsn / 4 * 4 + 1;
	position->position = position->lsn * 4096;
	pthread_mutex_unlock(&fake.lock);
}

int pool_sync(struct pool *pool, uint64_t lsn)
{
	if (fake.durable < lsn)
		fake.durable = lsn;
	return 0;
}

void pool_wake_maintenance(struct pool *pool)
{
}

void segment_note_chore(struct segment *segment)
{
}

void pool_fail(struct pool *pool, int error, const char *why)
{
	atomic_store(&pool->failure, error);
}

/* --- segments ----------------------------------------------------------------------------------
 */

static struct segment *fake_segment(uint32_t volume, enum segment_purpose purpose)
{
	struct segment *segment = calloc(1, sizeof(*segment));
	unsigned id = ++fake.segment_count;

	assert_true(id < FAKE_SEGMENTS);
	segment->id = segment->row.id = id;
	segment->row.volume = volume;
	segment->row.purpose = (uint8_t)purpose;
	segment->row.state = SEGMENT_OPEN;
	fake.segments[id] = segment;
	fake.bytes[id] = calloc(1, fake.segment_size);
	return segment;
}

struct segment *segment_get(struct pool *pool, uint64_t id)
{
	struct segment *segment = id < FAKE_SEGMENTS ? fake.segments[id] : NULL;

	if (segment)
		atomic_fetch_add(&segment->references, 1);
	return segment;
}

void segment_put(struct segment *segment)
{
	assert_true(atomic_fetch_sub(&segment->references, 1) > 0);
}

/* No space is kept for anybody. */
uint64_t pool_kept(struct pool *pool)
{
	return 0;
}

int kept_forget(struct txn *txn, uint32_t volume)
{
	return 0;
}

int segments_close(struct pool *pool, struct segment **list, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		list[i]->row.state = SEGMENT_CLOSED;
	fake.closed += count;
	return 0;
}

struct fake_free {
	struct txn_hook hook;
	uint64_t id;
};

static void fake_freed(struct txn_hook *hook, uint64_t lsn)
{
	struct fake_free *f = (struct fake_free *)hook;

	if (lsn) {
		free(fake.segments[f->id]);
		fake.segments[f->id] = NULL;
		fake.freed++;
	}
	free(f);
}

static struct bytes fake_key(uint8_t key[9], uint8_t kind, uint64_t id)
{
	struct writer w = writer_on(key, 9);

	put_u8(&w, kind);
	put_be64(&w, id);
	return (struct bytes){key, 9};
}

int segment_free(struct txn *txn, struct segment *segment)
{
	struct env *env = pool_env(txn_pool(txn));
	struct fake_free *f = calloc(1, sizeof(*f));
	struct bytes found, value;
	uint8_t key[9], copy[POOL_KEY_MAX];
	int rc = 0;

	f->hook.run = fake_freed;
	f->id = segment->id;
	txn_on_end(txn, &f->hook);
	fake_key(key, KEY_SUMS, segment->id);
	while (!rc && !txn_seek(txn, env, (struct bytes){key, 9}, &found, &value) &&
		!memcmp(found.data, key, 9)) {
		memcpy(copy, found.data, found.length);
		rc = txn_delete(txn, env, (struct bytes){copy, found.length});
	}
	if (!rc)
		rc = txn_delete(txn, env, fake_key(key, KEY_SEGMENT, segment->id));
	return rc == -ENOENT ? 0 : rc;
}

void segment_look(struct segment *segment, struct segment_row *row)
{
	*row = segment->row;
}

/* No segment of these tests is frozen. */
int segment_forget_live(struct txn *txn, struct segment *segment)
{
	fail_msg("segment %llx is not frozen", (unsigned long long)segment->id);
	return -EINVAL;
}

int segment_list(struct pool *pool, struct segment ***segments, unsigned *count)
{
	struct segment **list = calloc(FAKE_SEGMENTS, sizeof(*list));
	unsigned n = 0;

	for (unsigned i = 0; i < FAKE_SEGMENTS; i++) {
		if (fake.segments[i])
			list[n++] = segment_get(pool, i);
	}
	*segments = list;
	*count = n;
	return 0;
}

/* --- streams and reads --------------------------------------------------------------------------
 */

struct stream;
static uint64_t fake_filling, fake_fill;

int stream_open_purpose(
	struct pool *pool, uint32_t volume, enum segment_purpose purpose, struct stream **stream)
{
	assert_int_equal(fake.streams++, 0);
	*stream = (struct stream *)&fake_filling;
	fake_filling = 0;
	return 0;
}

void stream_close(struct stream *stream)
{
	fake.streams--;
}

int stream_append(struct stream *stream, const struct iovec *iov, unsigned iov_count, size_t length,
	unsigned flags, struct extent *extents, unsigned *count)
{
	const uint8_t *at = iov->iov_base;
	unsigned n = 0;

	if (fake.append_error)
		return fake.append_error;
	assert_int_equal(iov_count, 1);
	while (length) {
		size_t part;

		if (!fake_filling || fake_fill == fake.segment_size) {
			fake_filling = fake_segment(0, PURPOSE_IMAGE)->id;
			fake_fill = 0;
		}
		part = fake.segment_size - fake_fill;
		if (part > length)
			part = length;
		memcpy(fake.bytes[fake_filling] + fake_fill, at, part);
		assert_true(n < *count);
		extents[n++] = (struct extent){fake_filling, fake_fill, part};
		fake_fill += part;
		at += part;
		length -= part;
	}
	*count = n;
	return 0;
}

void pool_abandon_extents(struct pool *pool, const struct extent *extents, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		fake.abandoned += extents[i].length;
}

int pool_read_wait(struct pool *pool, struct read_part *parts, unsigned part_count)
{
	for (unsigned i = 0; i < part_count; i++) {
		const struct extent *e = &parts[i].extent;

		if (e->segment >= FAKE_SEGMENTS || !fake.segments[e->segment] ||
			e->offset + e->length > fake.segment_size)
			return -EIO;
		memcpy(parts[i].into, fake.bytes[e->segment] + e->offset, e->length);
	}
	return 0;
}

/* --- a pool on it ------------------------------------------------------------------------------
 */

static size_t fake_metadata_limit = 1u << 30;

static struct pool *fake_open(uint64_t epoch)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	pool->engine = fake.engine;
	pool->scratch_dir = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
	pool->epoch = epoch;
	pool->k = 4;
	pool->m = 2;
	pool->header.cell = 16384;
	pool->options.metadata_limit = fake_metadata_limit;
	atomic_init(&pool->image_room, UINT64_MAX);
	atomic_init(&pool->own_room, UINT64_MAX);
	pthread_mutex_init(&pool->volumes_lock, NULL);
	pthread_rwlock_init(&pool->table_lock, NULL);
	pool->segment_count = FAKE_SEGMENTS;
	assert_int_equal(env_create(pool, 0, NULL, &pool->env), 0);
	fake.pool = pool;
	return pool;
}

static void fake_close(struct pool *pool)
{
	assert_int_equal(fake.reserved, 0);
	env_forget_all(pool);
	env_destroy(pool->env);
	pthread_mutex_destroy(&pool->volumes_lock);
	pthread_rwlock_destroy(&pool->table_lock);
	free(pool);
}

static int fake_begin(void **state)
{
	memset(&fake, 0, sizeof(fake));
	pthread_mutex_init(&fake.lock, NULL);
	fake.record_max = 1u << 20;
	fake.segment_size = FAKE_SEGMENT;
	assert_int_equal(sim_world_create(&(struct sim_options){1, false}, &fake.world), 0);
	assert_int_equal(sim_engine_create(fake.world, &fake.engine), 0);
	fake_metadata_limit = 1u << 30;
	*state = fake_open(1);
	return 0;
}

static void fake_forget_records(void)
{
	for (unsigned i = 0; i < fake.record_count; i++)
		free(fake.records[i].payload);
	fake.record_count = 0;
}

static int fake_end(void **state)
{
	fake_close(fake.pool);
	fake_forget_records();
	free(fake.records);
	for (unsigned i = 0; i < FAKE_SEGMENTS; i++) {
		if (fake.segments[i])
			assert_int_equal(fake.segments[i]->references, 0);
		free(fake.segments[i]);
		free(fake.bytes[i]);
	}
	engine_destroy(fake.engine);
	sim_world_destroy(fake.world);
	pthread_mutex_destroy(&fake.lock);
	return 0;
}

static inline struct bytes text(const char *string)
{
	return (struct bytes){string, strlen(string)};
}

static inline double fake_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#endif
