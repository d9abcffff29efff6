/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * For the tests of the journal. A rig is a pool of which only the journal is there: its members are
 * opened by hand, its labels live in the test and count as durable when the power is on, and what
 * the journal asks of the rest of the pool (device.c, checkpoint.c) is defined here. The model
 * knows each record by its LSN; replay is compared with it after every crash.
 */
#ifndef TEST_POOL_JOURNAL_H
#define TEST_POOL_JOURNAL_H

#include "device/sim.h"
#include "pool/label.h"
#include "pool/journal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#define RING_OFFSET (BLOCK_SIZE + LABEL_AREA)
#define MODEL_MAX 65536u
#define EPOCH_RECORD UINT32_MAX
#define NO_CRASH UINT64_MAX

struct rig {
	struct sim_world *world;
	struct engine *engine;
	unsigned devices, parity;
	uint64_t ring;
	struct label label; /* the durable one */
	struct pool *pool;
	bool checkpoint_helps;
	unsigned checkpoints, wakes;
	uint64_t random;
	/* The model: what each record is made of, by LSN. */
	uint32_t content[MODEL_MAX];
	uint64_t given, acked, seen;
	unsigned lives;
	unsigned spare; /* devices that may still die, now and in all */
	bool may_kill;
	bool dead[POOL_DEVICES_MAX];
};

static struct rig *rig; /* the one that the functions below serve */

static inline uint64_t draw(uint64_t below)
{
	rig->random = rig->random * 6364136223846793005ull + 1442695040888963407ull;
	return (rig->random >> 33) % below;
}

static inline const char *device_name(unsigned i)
{
	static char name[16];

	snprintf(name, sizeof(name), "d%u", i);
	return name;
}

/* --- what the journal needs of the rest of the pool --------------------------------------------
 */

/* The labels on the devices are there for other owners to be seen; openings use rig->label. */
static inline int persist(void)
{
	uint8_t body[LABEL_BODY];
	uint64_t place = BLOCK_SIZE + rig->pool->label.epoch % LABEL_RING * LABEL_SIZE;

	if (sim_power_was_cut(rig->engine))
		return -ESHUTDOWN;
	rig->label = rig->pool->label;
	assert_int_equal(label_encode(&rig->label, body), 0);
	for (unsigned i = 0; i < rig->devices; i++) {
		if (member_usable(&rig->pool->devices[i]))
			sim_medium_write(rig->world, device_name(i), place, body, sizeof(body));
	}
	return 0;
}

void member_failed(struct pool *pool, struct member *member, int error)
{
	if (error != -ESHUTDOWN)
		atomic_store(&member->failing, true);
}

void pool_fail(struct pool *pool, int error, const char *why)
{
	int none = 0;

	if (atomic_compare_exchange_strong(&pool->failure, &none, error))
		journal_fail(pool, error);
}

int pool_drop_failing(struct pool *pool)
{
	bool any = false;
	unsigned left = 0;
	int rc = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (member_usable(member) && atomic_load(&member->failing)) {
			atomic_store(&member->state, DEVICE_DROPPED);
			pool->label.devices[i].state = DEVICE_DROPPED;
			any = true;
		}
		left += member_usable(member);
	}
	if (!any)
		return 0;
	if (left < pool->m + 1)
		rc = -EROFS;
	if (!rc)
		rc = persist();
	if (!rc)
		rc = journal_rearrange(pool);
	if (rc)
		pool_fail(pool, rc, "a device could not be dropped");
	return rc;
}

/* Everything durable is in an image now. */
int pool_checkpoint(struct pool *pool)
{
	int rc;

	if (!rig->checkpoint_helps)
		return 0;
	rig->checkpoints++;
	journal_durable_position(pool, &pool->label.replay);
	pool->label.spans[pool->label.span_count - 1].window = journal_window(pool);
	rc = persist();
	if (!rc)
		journal_trim(pool, pool->label.replay.position);
	return rc;
}

void pool_wake_maintenance(struct pool *pool)
{
	rig->wakes++;
}

/* --- the rig ------------------------------------------------------------------------------------
 */

static inline struct rig *rig_new(uint64_t seed, unsigned devices, unsigned parity, uint64_t ring)
{
	struct sim_options options = {.seed = seed, .reorder = true};

	rig = calloc(1, sizeof(*rig));
	assert_non_null(rig);
	rig->devices = devices;
	rig->parity = parity;
	rig->ring = ring;
	rig->random = seed * 2 + 1;
	rig->checkpoint_helps = true;
	rig->spare = devices - parity - 1;
	rig->label.replay.lsn = 1;
	rig->label.state = LABEL_OPEN;
	rig->label.device_count = (uint16_t)devices;
	memset(rig->label.pool, 7, 16);
	for (unsigned i = 0; i < devices; i++)
		snprintf(rig->label.devices[i].domain, 32, "host%u", i % 3);
	assert_int_equal(sim_world_create(&options, &rig->world), 0);
	for (unsigned i = 0; i < devices; i++)
		assert_int_equal(
			sim_add_device(rig->world, device_name(i), RING_OFFSET + 3 * ring), 0);
	assert_int_equal(sim_engine_create(rig->world, &rig->engine), 0);
	return rig;
}

static inline void pool_new(struct engine *engine)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	assert_non_null(pool);
	rig->pool = pool;
	pool->engine = engine;
	pool->label = rig->label;
	pool->m = rig->parity;
	pool->header.parity = (uint8_t)rig->parity;
	pool->header.journal_size = rig->ring;
	pool->device_count = rig->devices;
	pthread_mutex_init(&pool->label_lock, NULL);
	pthread_mutex_init(&pool->maintain_lock, NULL);
	pthread_mutex_init(&pool->wake_lock, NULL);
}

static inline void member_open(unsigned i, const char *path)
{
	struct member *member = &rig->pool->devices[i];
	struct device *device = NULL;

	member->label = rig->label.devices[i];
	member->header.journal_offset = RING_OFFSET;
	if (member->label.state == DEVICE_DROPPED)
		atomic_store(&member->state, DEVICE_DROPPED);
	else if (device_open(rig->pool->engine, path, 0, &device, NULL))
		atomic_store(&member->state, DEVICE_MISSING);
	atomic_store(&member->device, device);
}

static inline void journal_open(void)
{
	assert_int_equal(journal_create(rig->pool), 0);
	assert_int_equal(beat_start(rig->pool), 0);
}

static inline void let_go(void)
{
	journal_stop(rig->pool);
	beat_stop(rig->pool);
	journal_destroy(rig->pool);
	for (unsigned i = 0; i < rig->devices; i++)
		device_close(rig->pool->devices[i].device);
	pthread_mutex_destroy(&rig->pool->label_lock);
	pthread_mutex_destroy(&rig->pool->maintain_lock);
	pthread_mutex_destroy(&rig->pool->wake_lock);
	free(rig->pool);
	rig->pool = NULL;
}

/* What lies around the ring is nobody's. */
static inline void check_surroundings(void)
{
	for (unsigned i = 0; i < rig->devices; i++) {
		const uint8_t *medium = sim_medium(rig->world, device_name(i));

		for (uint64_t at = 0; at < BLOCK_SIZE; at++)
			assert_int_equal(medium[at], 0);
		for (uint64_t at = 0; at < 2 * rig->ring; at++)
			assert_int_equal(medium[RING_OFFSET + rig->ring + at], 0);
	}
}

static inline void rig_free(void)
{
	if (rig->pool)
		let_go();
	sim_settle(rig->world);
	check_surroundings();
	engine_destroy(rig->engine);
	sim_world_destroy(rig->world);
	free(rig);
	rig = NULL;
}

/* --- records ------------------------------------------------------------------------------------
 */

static inline size_t content_length(uint32_t content)
{
	return content % 37 ? content % 300 : content % journal_record_max(rig->pool);
}

static inline void content_fill(uint8_t *bytes, uint32_t content, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(content * 31 + i * (content % 5 + 1) + (i >> 8));
}

static inline bool content_is(uint32_t content, const uint8_t *bytes, size_t length)
{
	uint8_t *expected = malloc(length + 1);
	bool same = length == content_length(content);

	assert_non_null(expected);
	content_fill(expected, content, length);
	same = same && !memcmp(expected, bytes, length);
	free(expected);
	return same;
}

static inline int check_record(
	struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	assert_true(lsn > rig->seen && lsn < MODEL_MAX);
	while (++rig->seen < lsn)
		assert_int_equal(rig->content[rig->seen], EPOCH_RECORD);
	assert_int_equal(payload[0], RECORD_CHANGES);
	assert_true(content_is(rig->content[lsn], payload + 1, length - 1));
	return 0;
}

/* Appends what `content` says; the LSN, or 0 with *rc. */
static inline uint64_t append(uint32_t content, int *rc)
{
	size_t length = content_length(content);
	uint8_t *bytes = malloc(length + 1);
	uint64_t lsn = 0;

	assert_non_null(bytes);
	content_fill(bytes, content, length);
	*rc = journal_reserve(rig->pool, length, false);
	if (!*rc) {
		lsn = journal_append(rig->pool, RECORD_CHANGES, bytes, length);
		journal_unreserve(rig->pool, length);
		assert_int_equal(lsn, rig->given + 1);
		rig->given = lsn;
		rig->content[lsn] = content;
	}
	free(bytes);
	return lsn;
}

static inline int sync_all(void)
{
	int rc = pool_sync(rig->pool, rig->given);

	if (!rc)
		rig->acked = rig->given;
	return rc;
}

static inline int add(unsigned count)
{
	int rc = 0;

	for (unsigned i = 0; i < count && !rc; i++)
		append((uint32_t)draw(1u << 30), &rc);
	return rc ? rc : sync_all();
}

/* A mix of small and large records, synced now and then, with checkpoints. */
static inline int work(unsigned rounds)
{
	int rc = 0;

	for (unsigned i = 0; i < rounds && !rc; i++) {
		rc = add((unsigned)draw(5) + 1);
		if (!rc && !draw(8))
			rc = pool_checkpoint(rig->pool);
	}
	return rc;
}

/* --- opening ------------------------------------------------------------------------------------
 */

static inline int record_epoch(const struct journal_position *start)
{
	uint8_t payload[24];
	struct writer w = writer_on(payload, sizeof(payload));
	int rc = journal_reserve(rig->pool, sizeof(payload), true);

	if (rc)
		return rc;
	put_u64(&w, rig->pool->epoch);
	put_u64(&w, start->lsn - 1);
	put_u64(&w, start->hash);
	rig->given = journal_append(rig->pool, RECORD_EPOCH, payload, sizeof(payload));
	journal_unreserve(rig->pool, sizeof(payload));
	assert_int_equal(rig->given, start->lsn);
	rig->content[rig->given] = EPOCH_RECORD;
	return sync_all();
}

static inline int take_over(struct journal_position *start, uint64_t window, bool owner_dead)
{
	struct label *label = &rig->pool->label;
	int rc;

	if (owner_dead)
		owners_forget(label, NULL);
	else if (label->epoch)
		assert_int_equal(owners_add(label), 0);
	rig->pool->epoch = ++label->epoch;
	rc = journal_begin_span(rig->pool, start, window);
	if (rc)
		return rc;
	label->spans[label->span_count - 1].window = start->position + 2 * BLOCK_SIZE;
	for (unsigned i = 0; i < rig->devices; i++) {
		if (!member_usable(&rig->pool->devices[i]))
			label->devices[i].state = DEVICE_DROPPED;
	}
	return 0;
}

/* Only replay, checked. */
static inline int look(struct journal_position *end, uint64_t *window)
{
	int rc;

	rig->seen = rig->label.replay.lsn - 1;
	rc = journal_replay(rig->pool, &rig->label.replay, check_record, end, window);
	if (rc)
		return rc;
	assert_true(end->lsn > rig->acked);
	assert_true(end->lsn <= rig->given + 1);
	while (rig->seen + 1 < end->lsn)
		assert_int_equal(rig->content[++rig->seen], EPOCH_RECORD);
	return 0;
}

static inline void prepare(void)
{
	pool_new(rig->engine);
	for (unsigned i = 0; i < rig->devices; i++)
		member_open(i, device_name(i));
	journal_open();
	rig->pool->epoch = rig->label.epoch;
}

/* Up to the labels of the next epoch; *start is where it begins. */
static inline int claim(bool owner_dead, struct journal_position *start)
{
	uint64_t window;
	int rc;

	prepare();
	rc = look(start, &window);
	if (rc)
		return rc;
	rig->given = start->lsn - 1;
	rc = take_over(start, window, owner_dead);
	return rc ? rc : persist();
}

static inline int open_rig(bool owner_dead)
{
	struct journal_position start;
	int rc = claim(owner_dead, &start);

	if (!rc)
		rc = journal_start(rig->pool, &start, rig->label.replay.position,
			rig->label.spans[rig->label.span_count - 1].window);
	if (!rc)
		rc = record_epoch(&start);
	if (!rc)
		rig->may_kill = true;
	return rc;
}

static inline void open_well(bool owner_dead)
{
	assert_int_equal(open_rig(owner_dead), 0);
}

static inline void crash(enum sim_policy policy)
{
	sim_cut_power(rig->world);
	sim_drain(rig->world);
	let_go();
	sim_power_on(rig->world, policy);
}

#endif
