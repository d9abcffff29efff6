/* SPDX-License-Identifier: LGPL-3.0-or-later. The journal, over simulated devices. links: pool */
/*
 * A rig is a pool of which only the journal is there: its members are opened by hand, its labels
 * live in the test and count as durable when the power is on, and what the journal asks of the rest
 * of the pool (device.c, checkpoint.c) is defined here. The model knows each record by its LSN;
 * replay is compared with it after every crash.
 */
#include "device/sim.h"
#include "pool/internal.h"
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

static uint64_t draw(uint64_t below)
{
	rig->random = rig->random * 6364136223846793005ull + 1442695040888963407ull;
	return (rig->random >> 33) % below;
}

static const char *device_name(unsigned i)
{
	static char name[16];

	snprintf(name, sizeof(name), "d%u", i);
	return name;
}

/* --- what the journal needs of the rest of the pool --------------------------------------------
 */

/* The labels on the devices are there for other owners to be seen; openings use rig->label. */
static int persist(void)
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

static struct rig *rig_new(uint64_t seed, unsigned devices, unsigned parity, uint64_t ring)
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

static void pool_new(struct engine *engine)
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

static void member_open(unsigned i, const char *path)
{
	struct member *member = &rig->pool->devices[i];

	member->label = rig->label.devices[i];
	member->header.journal_offset = RING_OFFSET;
	if (member->label.state == DEVICE_DROPPED)
		atomic_store(&member->state, DEVICE_DROPPED);
	else if (device_open(rig->pool->engine, path, 0, &member->device, NULL))
		atomic_store(&member->state, DEVICE_MISSING);
}

static void let_go(void)
{
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
static void check_surroundings(void)
{
	for (unsigned i = 0; i < rig->devices; i++) {
		const uint8_t *medium = sim_medium(rig->world, device_name(i));

		for (uint64_t at = 0; at < BLOCK_SIZE; at++)
			assert_int_equal(medium[at], 0);
		for (uint64_t at = 0; at < 2 * rig->ring; at++)
			assert_int_equal(medium[RING_OFFSET + rig->ring + at], 0);
	}
}

static void rig_free(void)
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

static size_t content_length(uint32_t content)
{
	return content % 37 ? content % 300 : content % journal_record_max(rig->pool);
}

static void content_fill(uint8_t *bytes, uint32_t content, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(content * 31 + i * (content % 5 + 1) + (i >> 8));
}

static bool content_is(uint32_t content, const uint8_t *bytes, size_t length)
{
	uint8_t *expected = malloc(length + 1);
	bool same = length == content_length(content);

	assert_non_null(expected);
	content_fill(expected, content, length);
	same = same && !memcmp(expected, bytes, length);
	free(expected);
	return same;
}

static int check_record(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	assert_true(lsn > rig->seen && lsn < MODEL_MAX);
	while (++rig->seen < lsn)
		assert_int_equal(rig->content[rig->seen], EPOCH_RECORD);
	assert_int_equal(payload[0], RECORD_CHANGES);
	assert_true(content_is(rig->content[lsn], payload + 1, length - 1));
	return 0;
}

/* Appends what `content` says; the LSN, or 0 with *rc. */
static uint64_t append(uint32_t content, int *rc)
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

static int sync_all(void)
{
	int rc = pool_sync(rig->pool, rig->given);

	if (!rc)
		rig->acked = rig->given;
	return rc;
}

static int add(unsigned count)
{
	int rc = 0;

	for (unsigned i = 0; i < count && !rc; i++)
		append((uint32_t)draw(1u << 30), &rc);
	return rc ? rc : sync_all();
}

/* A mix of small and large records, synced now and then, with checkpoints. */
static int work(unsigned rounds)
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

static int record_epoch(const struct journal_position *start)
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

static void prune(struct label *label)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < label->span_count; i++) {
		if (!label->spans[i].dead || label->spans[i].end > label->replay.position)
			label->spans[kept++] = label->spans[i];
	}
	label->span_count = (uint8_t)kept;
}

static void take_over(struct journal_position *start, uint64_t window, bool owner_dead)
{
	struct label *label = &rig->pool->label;

	if (label->span_count) {
		struct journal_span *last = &label->spans[label->span_count - 1];

		last->end = start->position;
		last->window = window;
		if (!owner_dead)
			start->position = window;
	}
	for (unsigned i = 0; i < label->span_count && owner_dead; i++)
		label->spans[i].dead = true;
	start->position = journal_start_place(rig->pool, start->position);
	prune(label);
	rig->pool->epoch = ++label->epoch;
	start->epoch = label->epoch;
	assert_true(label->span_count < SPANS_MAX);
	label->spans[label->span_count++] = (struct journal_span){
		.epoch = label->epoch, .start = *start, .window = start->position + 2 * BLOCK_SIZE};
	for (unsigned i = 0; i < rig->devices; i++) {
		if (!member_usable(&rig->pool->devices[i]))
			label->devices[i].state = DEVICE_DROPPED;
	}
}

/* Only replay, checked. */
static int look(struct journal_position *end, uint64_t *window)
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

static void prepare(void)
{
	pool_new(rig->engine);
	for (unsigned i = 0; i < rig->devices; i++)
		member_open(i, device_name(i));
	assert_int_equal(journal_create(rig->pool), 0);
	rig->pool->epoch = rig->label.epoch;
}

/* Up to the labels of the next epoch; *start is where it begins. */
static int claim(bool owner_dead, struct journal_position *start)
{
	uint64_t window;
	int rc;

	prepare();
	rc = look(start, &window);
	if (rc)
		return rc;
	rig->given = start->lsn - 1;
	take_over(start, window, owner_dead);
	return persist();
}

static int open_rig(bool owner_dead)
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

static void open_well(bool owner_dead)
{
	assert_int_equal(open_rig(owner_dead), 0);
}

/* Up to m devices die, once between two good openings. */
static void kill_some(void)
{
	unsigned count = (unsigned)draw(rig->parity + 1);

	if (!rig->may_kill || count > rig->spare)
		return;
	for (unsigned i = 0; i < count;) {
		unsigned victim = (unsigned)draw(rig->devices);

		if (rig->dead[victim] || rig->label.devices[victim].state == DEVICE_DROPPED)
			continue;
		sim_kill_device(rig->world, device_name(victim));
		rig->dead[victim] = true;
		i++;
	}
	rig->spare -= count;
	rig->may_kill = !count;
}

static void crash(enum sim_policy policy)
{
	sim_cut_power(rig->world);
	sim_drain(rig->world);
	let_go();
	sim_power_on(rig->world, policy);
}

/* --- tests --------------------------------------------------------------------------------------
 */

static void what_is_appended_is_replayed(void **state)
{
	rig_new(1, 3, 1, 256 * 1024);
	open_well(true);
	assert_int_equal(journal_lsn(rig->pool), 1);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(add(3), 0);
	assert_int_equal(journal_durable_lsn(rig->pool), 61);
	assert_true(journal_used(rig->pool) > 0);
	crash(SIM_LOSE_ALL);
	open_well(true);
	assert_int_equal(rig->given, 62);
	rig_free();
}

struct noted {
	struct durable_wait wait;
	int status;
	unsigned order;
};
static unsigned calls;

static void note_durable(struct durable_wait *wait, int status)
{
	struct noted *noted = (struct noted *)wait;

	noted->status = status;
	noted->order = ++calls;
}

static void records_gather_while_a_batch_is_written(void **state)
{
	struct engine_counters before, after;
	struct noted noted[100];
	int rc;

	rig_new(2, 3, 1, 256 * 1024);
	open_well(true);
	engine_counters(rig->engine, &before);
	calls = 0;
	for (unsigned i = 0; i < 100; i++) {
		uint64_t lsn = append(1, &rc);

		noted[i] = (struct noted){.wait.done = note_durable, .status = 1};
		pool_when_durable(rig->pool, lsn, &noted[i].wait);
	}
	assert_int_equal(calls, 0);
	assert_int_equal(sync_all(), 0);
	engine_counters(rig->engine, &after);
	assert_int_equal(after.writes - before.writes, 4);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(noted[i].status, 0);
		assert_int_equal(noted[i].order, i + 1);
	}
	pool_when_durable(rig->pool, 1, &noted[0].wait);
	assert_int_equal(calls, 101);
	rig_free();
}

static void failing_tells_everybody(void **state)
{
	struct noted noted[2] = {0};
	int rc;

	rig_new(3, 3, 1, 256 * 1024);
	open_well(true);
	calls = 0;
	for (unsigned i = 0; i < 2; i++) {
		noted[i].wait.done = note_durable;
		pool_when_durable(rig->pool, append(1, &rc), &noted[i].wait);
	}
	pool_fail(rig->pool, -EIO, "because");
	assert_int_equal(calls, 2);
	assert_int_equal(noted[0].status, -EIO);
	assert_int_equal(noted[1].status, -EIO);
	assert_int_equal(pool_sync(rig->pool, rig->given), -EIO);
	assert_int_equal(pool_sync(rig->pool, rig->acked), 0);
	assert_int_equal(journal_reserve(rig->pool, 1, false), -EIO);
	sim_drain(rig->world);
	assert_int_equal(journal_append(rig->pool, RECORD_CHANGES, "", 1), rig->given + 1);
	assert_int_equal(journal_durable_lsn(rig->pool), rig->acked);
	rig_free();
}

static void the_ring_wraps_many_times(void **state)
{
	for (uint64_t seed = 0; seed < 4; seed++) {
		rig_new(seed, 4, 1, (64 + 36 * seed) * 1024);
		open_well(true);
		for (unsigned i = 0; i < 10; i++) {
			assert_int_equal(work(300), 0);
			crash(SIM_LOSE_ALL);
			open_well(true);
		}
		assert_true(rig->pool->label.replay.position > 10 * rig->ring);
		rig_free();
	}
}

static void a_full_ring_waits_for_a_checkpoint(void **state)
{
	uint64_t before;
	int rc = 0;

	rig_new(5, 3, 1, 128 * 1024);
	open_well(true);
	rig->checkpoint_helps = false;
	while (!rc)
		rc = add(1);
	assert_int_equal(rc, -ENOSPC);
	assert_true(journal_wants_checkpoint(rig->pool));
	assert_true(rig->wakes > 0);
	assert_true(journal_used(rig->pool) <= rig->ring - rig->ring / 8);
	/* What is urgent still fits, and lasts. */
	assert_int_equal(journal_reserve(rig->pool, 100, true), 0);
	rig->given = journal_append(rig->pool, RECORD_CHANGES, NULL, 0);
	rig->content[rig->given] = 300;
	journal_unreserve(rig->pool, 100);
	assert_int_equal(sync_all(), 0);
	before = rig->checkpoints;
	rig->checkpoint_helps = true;
	assert_int_equal(add(1), 0);
	assert_int_equal(rig->checkpoints, before + 1);
	assert_false(journal_wants_checkpoint(rig->pool));
	crash(SIM_LOSE_ALL);
	open_well(true);
	rig_free();
}

/* Whatever was reserved gets through, with the ring's end and an old owner's part in the way. */
static void what_is_reserved_gets_through(void **state)
{
	for (uint64_t seed = 0; seed < 30; seed++) {
		uint8_t *bytes;
		size_t sizes[4], most;

		rig_new(seed, 3, 1, 128 * 1024);
		open_well(true);
		assert_int_equal(work(5 + (unsigned)draw(20)), 0);
		crash(SIM_LOSE_ALL);
		open_well(seed % 4 == 0);
		most = journal_record_max(rig->pool);
		bytes = calloc(1, most);
		for (unsigned i = 0; i < 150; i++) {
			unsigned count = 0, wanted = 1 + (unsigned)draw(4);

			while (count < wanted) {
				sizes[count] = draw(3) ? draw(5000) : draw(most + 1);
				if (journal_reserve(rig->pool, sizes[count], i % 2))
					break;
				count++;
			}
			if (!count)
				assert_int_equal(pool_checkpoint(rig->pool), 0);
			for (unsigned r = 0; r < count; r++) {
				rig->given =
					journal_append(rig->pool, RECORD_CHANGES, bytes, sizes[r]);
				if (draw(2))
					assert_int_equal(sync_all(), 0);
			}
			while (count--)
				journal_unreserve(rig->pool, sizes[count]);
			assert_int_equal(sync_all(), 0);
		}
		free(bytes);
		rig_free();
	}
}

/* Records that nobody made room for wait; they do not overwrite what is needed. */
static void a_full_ring_is_not_overwritten(void **state)
{
	for (int end = 0; end < 2; end++) {
		rig_new(17, 3, 1, 128 * 1024);
		open_well(true);
		rig->checkpoint_helps = false;
		for (unsigned i = 0; i < 100; i++) {
			uint8_t bytes[37 * 60];

			content_fill(bytes, 37 * 60, sizeof(bytes));
			rig->given =
				journal_append(rig->pool, RECORD_CHANGES, bytes, sizeof(bytes));
			rig->content[rig->given] = 37 * 60;
			pool_sync(rig->pool, rig->given);
		}
		assert_int_equal(pool_sync(rig->pool, rig->given), -EDEADLK);
		rig->acked = journal_durable_lsn(rig->pool);
		assert_true(rig->acked > 20 && rig->acked < rig->given);
		assert_true(journal_used(rig->pool) <= rig->ring - 2 * BLOCK_SIZE);
		rig->checkpoint_helps = true;
		while (end && rig->acked < rig->given) {
			assert_int_equal(pool_checkpoint(rig->pool), 0);
			pool_sync(rig->pool, rig->given);
			rig->acked = journal_durable_lsn(rig->pool);
		}
		crash(SIM_LOSE_ALL);
		prepare();
		assert_int_equal(look(&(struct journal_position){0}, &(uint64_t){0}), 0);
		rig_free();
	}
}

static void a_full_ring_opens_again_and_again(void **state)
{
	for (int dead = 0; dead < 2; dead++) {
		int rc = 0;

		rig_new(6, 3, 1, 512 * 1024);
		open_well(true);
		rig->checkpoint_helps = false;
		while (!rc)
			rc = add(1);
		for (unsigned i = 0; i < 5 && (dead || i < 1); i++) {
			crash(SIM_LOSE_ALL);
			open_well(dead);
		}
		rig->checkpoint_helps = true;
		assert_int_equal(pool_checkpoint(rig->pool), 0);
		assert_int_equal(work(50), 0);
		rig_free();
	}
}

static void records_have_a_greatest_size(void **state)
{
	uint8_t *bytes;
	size_t most;

	rig_new(7, 3, 1, 256 * 1024);
	open_well(true);
	most = journal_record_max(rig->pool);
	assert_true(most > 31 * 1024);
	assert_int_equal(journal_reserve(rig->pool, most + 1, true), -E2BIG);
	for (unsigned i = 0; i < 30; i++) {
		assert_int_equal(journal_reserve(rig->pool, most, false), 0);
		bytes = calloc(1, most);
		rig->given = journal_append(rig->pool, RECORD_CHANGES, bytes, most);
		free(bytes);
		journal_unreserve(rig->pool, most);
	}
	assert_int_equal(sync_all(), 0);
	rig_free();
}

static void reservations_are_kept(void **state)
{
	unsigned count = 0;

	rig_new(8, 3, 1, 128 * 1024);
	open_well(true);
	rig->checkpoint_helps = false;
	while (journal_reserve(rig->pool, 4000, false) == 0)
		count++;
	assert_true(count >= 5);
	for (unsigned i = 0; i < count; i++) {
		uint8_t bytes[4000] = {0};

		rig->given = journal_append(rig->pool, RECORD_CHANGES, bytes, sizeof(bytes));
		assert_int_equal(sync_all(), 0);
	}
	while (count--)
		journal_unreserve(rig->pool, 4000);
	rig_free();
}

/* Lives with a power cut at the n-th write or flush of one of them. False: it came to no cut. */
static bool lives(uint64_t seed, uint64_t cut_at, enum sim_policy policy, bool owner_dead)
{
	bool cut;

	rig_new(seed, 6, 2, 128 * 1024);
	open_well(true);
	sim_cut_power_at(rig->engine, cut_at);
	work(12);
	cut = sim_power_was_cut(rig->engine);
	crash(policy);
	kill_some();
	/* The opening after it is cut as well, at a place that the seed gives. */
	sim_cut_power_at(rig->engine, 1 + draw(40));
	if (!open_rig(owner_dead))
		work(8);
	crash(policy);
	kill_some();
	open_well(true);
	assert_int_equal(work(5), 0);
	crash(policy);
	kill_some();
	open_well(true);
	rig_free();
	return cut;
}

static void nothing_durable_is_lost_at_any_cut(void **state)
{
	const enum sim_policy policies[] = {SIM_LOSE_ALL, SIM_KEEP_ALL, SIM_RANDOM};

	for (unsigned p = 0; p < 3; p++) {
		for (uint64_t seed = 0; seed < 6; seed++) {
			uint64_t n = 1;

			while (lives(seed * 7 + p, n, policies[p], seed % 2))
				n++;
			assert_true(n > 30);
		}
	}
}

/* The batch that was on its way when the power went is kept by one device only; the next owner
 * goes on behind it; then that device dies. */
static void a_batch_that_was_never_durable_is_made_so(void **state)
{
	struct journal_position start;
	unsigned kept = 0;

	for (uint64_t seed = 0; seed < 60; seed++) {
		uint64_t before;

		rig_new(seed, 4, 1, 128 * 1024);
		open_well(true);
		assert_int_equal(work(3), 0);
		before = rig->acked;
		sim_cut_power_at(rig->engine, 1 + seed % 2);
		add(1);
		crash(SIM_RANDOM);
		/* Its labels are written, and no more. */
		assert_int_equal(claim(true, &start), 0);
		kept += rig->given > before;
		crash(SIM_LOSE_ALL);
		for (unsigned i = 0; i < 4; i++) {
			struct sim_image *image = NULL;
			struct rig saved = *rig;

			assert_int_equal(sim_save(rig->world, &image), 0);
			sim_kill_device(rig->world, device_name(i));
			open_well(true);
			let_go();
			*rig = saved;
			assert_int_equal(sim_restore(rig->world, image), 0);
			sim_image_free(image);
		}
		rig_free();
	}
	assert_true(kept > 5);
}

static void rot(unsigned device, uint64_t seed)
{
	sim_settle(rig->world);
	sim_rot(rig->world, device_name(device), RING_OFFSET, rig->ring, seed);
}

static void copies_that_rot_are_survived(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		rig_new(seed, 5, 2, 128 * 1024);
		open_well(true);
		assert_int_equal(work(20), 0);
		crash(SIM_LOSE_ALL);
		rot((unsigned)seed % 5, seed);
		rot((unsigned)(seed + 1 + seed % 4) % 5, seed);
		open_well(true);
		/* The opening has put good copies everywhere. */
		crash(SIM_LOSE_ALL);
		rot((unsigned)(seed + 2) % 5, seed);
		rot((unsigned)(seed + 3) % 5, seed);
		open_well(true);
		rig_free();
	}
}

/* All that follows in the last span is indistinguishable from its end, unless devices are silent.
 */
static void devices_that_cannot_be_read_are_not_the_end(void **state)
{
	struct journal_position end;
	uint64_t window;

	rig_new(9, 4, 1, 128 * 1024);
	open_well(true);
	assert_int_equal(add(10), 0);
	crash(SIM_LOSE_ALL);
	sim_fail_device_reads(rig->world, "d0", -EIO);
	prepare();
	assert_int_equal(look(&end, &window), 0);
	let_go();
	sim_fail_device_reads(rig->world, "d1", -EIO);
	prepare();
	assert_int_equal(look(&end, &window), -EIO);
	let_go();
	for (unsigned i = 0; i < 4; i++)
		sim_fail_device_reads(rig->world, device_name(i), 0);
	open_well(true);
	rig_free();
}

static void a_gap_in_an_ended_span_is_an_error(void **state)
{
	struct journal_position end;
	uint64_t window;

	rig_new(10, 3, 1, 128 * 1024);
	open_well(true);
	rig->checkpoint_helps = false;
	assert_int_equal(add(5), 0);
	crash(SIM_LOSE_ALL);
	open_well(true);
	assert_int_equal(add(5), 0);
	crash(SIM_LOSE_ALL);
	prepare();
	assert_int_equal(look(&end, &window), 0);
	let_go();
	for (unsigned i = 0; i < 3; i++)
		sim_rot(rig->world, device_name(i), RING_OFFSET + BLOCK_SIZE, 64, i);
	prepare();
	assert_int_equal(look(&end, &window), -EIO);
	rig_free();
}

/* Whether a late write lies in what the journal needs now. */
static bool late_hits_live(void)
{
	const struct journal *j = rig->pool->journal;
	uint64_t tail = j->tail, used = j->durable.position - tail;

	for (unsigned i = 0; i < sim_late_count(rig->world); i++) {
		uint64_t at = sim_late(rig->world, i).offset - RING_OFFSET;

		if ((at + rig->ring - tail % rig->ring) % rig->ring < used)
			return true;
	}
	return false;
}

static void release_late(void)
{
	while (sim_late_count(rig->world))
		assert_int_equal(sim_release_late(rig->world, 0), 0);
}

/* What an owner had in flight arrives at the worst time, a lap or more later. */
static void late_writes_of_an_old_owner_do_no_harm(void **state)
{
	unsigned late = 0;

	for (uint64_t seed = 0; seed < 60; seed++) {
		uint64_t opened_at;

		rig_new(seed, 5, 1, 256 * 1024);
		open_well(true);
		assert_int_equal(work(5 + (unsigned)draw(20)), 0);
		sim_hold_late(rig->engine, true, true);
		sim_cut_power_at(rig->engine, 1 + draw(6));
		work(8);
		crash(SIM_RANDOM);
		sim_hold_late(rig->engine, false, false);
		open_well(false);
		opened_at = rig->pool->journal->durable.position;
		while (rig->pool->journal->durable.position < opened_at + 3 * rig->ring) {
			assert_int_equal(add(1 + (unsigned)draw(3)), 0);
			if (rig->pool->journal->durable.position > opened_at + rig->ring / 2 &&
				late_hits_live())
				break;
		}
		late += sim_late_count(rig->world);
		release_late();
		crash(SIM_LOSE_ALL);
		open_well(true);
		rig_free();
	}
	assert_true(late > 60);
}

/* Puts a batch that nobody wrote on one device, where the journal ends. */
static void forge(unsigned device, const struct batch_header *header)
{
	uint8_t block[BLOCK_SIZE] = {0};
	struct writer w = writer_on(block + BATCH_HEADER_SIZE, 100);
	struct batch_header h = *header;

	put_u32(&w, 2);
	put_u64(&w, h.lsn);
	put_u8(&w, RECORD_CHANGES);
	put_u8(&w, 'x');
	h.records = 1;
	h.length = BATCH_HEADER_SIZE + RECORD_HEAD + 1;
	batch_seal(&h, block);
	sim_medium_write(rig->world, device_name(device), RING_OFFSET + h.position % rig->ring,
		block, sizeof(block));
}

static void only_the_batch_that_continues_the_chain_counts(void **state)
{
	struct journal_position end, again;
	uint64_t window;

	rig_new(16, 3, 1, 128 * 1024);
	open_well(true);
	assert_int_equal(add(10), 0);
	crash(SIM_LOSE_ALL);
	prepare();
	assert_int_equal(look(&end, &window), 0);
	for (unsigned i = 0; i < 5; i++) {
		struct batch_header h = {.epoch = end.epoch,
			.position = end.position,
			.lsn = end.lsn,
			.previous = end.hash};

		memset(h.pool, 7, 16);
		h.previous += i == 0;
		h.lsn += i == 1;
		h.position += i == 2 ? rig->ring : 0;
		h.epoch += i == 3;
		h.pool[0] += i == 4;
		forge(i % 3, &h);
		assert_int_equal(look(&again, &window), 0);
		assert_memory_equal(&again, &end, sizeof(end));
	}
	rig_free();
}

/* An owner's last writes must not meet anything needed, wherever in the next lap it stands. */
static void nothing_is_written_where_an_old_owner_may(void **state)
{
	for (uint64_t seed = 0; seed < 10; seed++) {
		uint64_t from, to;

		rig_new(seed, 4, 1, 256 * 1024);
		open_well(true);
		assert_int_equal(work(10 + (unsigned)draw(10)), 0);
		crash(SIM_LOSE_ALL);
		open_well(false);
		from = rig->label.spans[rig->label.span_count - 2].end % rig->ring;
		to = rig->label.spans[rig->label.span_count - 2].window % rig->ring;
		for (unsigned i = 0; i < 300; i++) {
			uint64_t offset;

			assert_int_equal(work(1), 0);
			offset = rig->pool->journal->plan.position % rig->ring;
			if (from < to)
				assert_false(offset >= from && offset < to);
			else
				assert_false(offset >= from || offset < to);
		}
		assert_true(rig->label.replay.position > 2 * rig->ring);
		crash(SIM_LOSE_ALL);
		open_well(true);
		assert_int_equal(work(100), 0);
		crash(SIM_LOSE_ALL);
		open_well(true);
		rig_free();
	}
}

/*
 * An owner that stands still is taken for dead wrongly, and wakes up when the next one has been at
 * work: it may finish what it had in flight and use up its window, and then it must stop.
 */
static void an_owner_that_wakes_up_stops(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		struct pool *old;
		struct engine *old_engine;
		int rc = 0;

		rig_new(seed, 4, 1, 256 * 1024);
		open_well(true);
		assert_int_equal(work(10 + (unsigned)draw(10)), 0);
		assert_int_equal(pool_checkpoint(rig->pool), 0);
		for (unsigned i = 0; i < seed % 4; i++)
			append(1, &rc);
		sim_pause(rig->engine, true);
		old = rig->pool;
		old_engine = rig->engine;
		assert_int_equal(sim_engine_create(rig->world, &rig->engine), 0);
		open_well(false);
		assert_int_equal(work(1 + (unsigned)draw(60)), 0);
		sim_pause(old_engine, false);
		while (!rc) {
			uint8_t bytes[1500] = {0};

			rc = pool_sync(old, journal_append(old, RECORD_CHANGES, bytes, draw(1500)));
		}
		assert_int_equal(rc, -ESTALE);
		assert_int_equal(atomic_load(&old->failure), -ESTALE);
		crash(SIM_LOSE_ALL);
		open_well(false);
		assert_int_equal(work(10), 0);
		let_go();
		rig->pool = old;
		let_go();
		engine_destroy(old_engine);
		rig_free();
	}
}

static void too_many_owners_not_known_dead_are_refused(void **state)
{
	int rc = 0;
	unsigned opened = 0;

	rig_new(11, 4, 1, 128 * 1024);
	open_well(true);
	for (; opened < 10 && !rc; opened++) {
		assert_int_equal(pool_checkpoint(rig->pool), 0);
		assert_int_equal(add(3), 0);
		crash(SIM_LOSE_ALL);
		rc = open_rig(false);
	}
	assert_true(opened > 1);
	assert_int_equal(rc, -EBUSY);
	rig_free();
}

/* --- devices that fail ------------------------------------------------------------------------ */

static bool is_copy(unsigned device)
{
	const struct copies *copies = &rig->pool->journal->copies;

	for (unsigned i = 0; i < copies->count; i++) {
		if (copies->member[i] == &rig->pool->devices[device])
			return true;
	}
	return false;
}

static void a_dropped_member_is_replaced(void **state)
{
	for (uint64_t seed = 0; seed < 10; seed++) {
		rig_new(seed, 4, 1, 128 * 1024);
		open_well(true);
		assert_int_equal(work(10), 0);
		assert_true(is_copy(0));
		sim_fail_device_writes(rig->world, "d0", -EIO);
		assert_int_equal(add(3), 0);
		assert_false(is_copy(0));
		assert_int_equal(rig->label.devices[0].state, DEVICE_DROPPED);
		assert_int_equal(work(3), 0);
		crash(SIM_LOSE_ALL);
		/* One more of those that hold it now. */
		sim_kill_device(rig->world, seed % 2 ? "d1" : "d2");
		open_well(true);
		rig_free();
	}
}

static void the_nth_request_may_fail_and_the_power_go(void **state)
{
	for (uint64_t seed = 0; seed < 4; seed++) {
		for (uint64_t n = 1; n < 80; n++) {
			rig_new(seed, 6, 1, 128 * 1024);
			open_well(true);
			assert_int_equal(work(3), 0);
			sim_fail_nth(rig->engine, n, -EIO);
			if (seed % 2)
				sim_cut_power_at(rig->engine, n + draw(30));
			if (!work(6) && draw(2))
				sim_fail_nth(rig->engine, 1 + draw(10), -ENODEV);
			work(6);
			sim_fail_nth(rig->engine, 0, 0);
			crash(SIM_RANDOM);
			kill_some();
			open_well(true);
			assert_int_equal(work(3), 0);
			rig_free();
		}
	}
}

static void two_members_fail_at_once(void **state)
{
	rig_new(12, 6, 2, 128 * 1024);
	open_well(true);
	assert_int_equal(work(10), 0);
	sim_fail_device_writes(rig->world, "d0", -EIO);
	sim_fail_device_writes(rig->world, "d1", -EIO);
	sim_fail_device_writes(rig->world, "d3", -EIO);
	assert_int_equal(work(10), 0);
	assert_false(is_copy(0) || is_copy(1) || is_copy(3));
	crash(SIM_LOSE_ALL);
	open_well(true);
	rig_free();
}

static void too_few_members_stop_the_journal(void **state)
{
	rig_new(13, 3, 1, 128 * 1024);
	open_well(true);
	assert_int_equal(add(3), 0);
	sim_fail_device_writes(rig->world, "d0", -EIO);
	sim_fail_device_writes(rig->world, "d1", -EIO);
	assert_int_not_equal(add(1), 0);
	assert_int_not_equal(atomic_load(&rig->pool->failure), 0);
	assert_int_not_equal(add(1), 0);
	sim_fail_device_writes(rig->world, "d0", 0);
	sim_fail_device_writes(rig->world, "d1", 0);
	crash(SIM_LOSE_ALL);
	open_well(true);
	rig_free();
}

static void no_domain_holds_all_copies(void **state)
{
	rig_new(14, 6, 2, 128 * 1024);
	for (unsigned i = 0; i < 6; i++)
		snprintf(rig->label.devices[i].domain, 32, "%s", i < 4 ? "left" : "right");
	open_well(true);
	assert_true(is_copy(4) || is_copy(5));
	sim_fail_device_writes(rig->world, is_copy(4) ? "d4" : "d5", -EIO);
	assert_int_equal(work(2), 0);
	assert_true(is_copy(4) || is_copy(5));
	assert_true(is_copy(0));
	rig_free();
}

/* --- threads ------------------------------------------------------------------------------------
 */

#define THREADS 4u
#define EACH 400u

static struct {
	pthread_mutex_t lock;
	bool over;
	uint32_t replayed[THREADS];
} threads = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *append_many(void *data)
{
	uint32_t id = (uint32_t)(uintptr_t)data;
	uint8_t bytes[2000];

	memset(bytes, (int)id, sizeof(bytes));
	for (uint32_t i = 1; i <= EACH; i++) {
		struct writer w = writer_on(bytes, sizeof(bytes));
		uint64_t lsn;

		put_u32(&w, id);
		put_u32(&w, i);
		assert_int_equal(journal_reserve(rig->pool, sizeof(bytes), false), 0);
		lsn = journal_append(rig->pool, RECORD_CHANGES, bytes, 8 + i % 1992);
		journal_unreserve(rig->pool, sizeof(bytes));
		if (i % 7 == 0 || i == EACH)
			assert_int_equal(pool_sync(rig->pool, lsn), 0);
	}
	return NULL;
}

/* In place of maintenance. */
static void *trim_often(void *data)
{
	bool over = false;

	while (!over) {
		struct journal_position at;

		usleep(500);
		pthread_mutex_lock(&threads.lock);
		over = threads.over;
		pthread_mutex_unlock(&threads.lock);
		if (over || !journal_wants_checkpoint(rig->pool))
			continue;
		journal_durable_position(rig->pool, &at);
		rig->pool->label.replay = at;
		journal_trim(rig->pool, at.position);
	}
	return NULL;
}

static int count_record(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	struct reader r = reader_on(payload + 1, length - 1);
	uint32_t id = get_u32(&r), i = get_u32(&r);

	assert_true(!r.bad && id < THREADS && length == 9 + i % 1992);
	assert_true(!threads.replayed[id] || i == threads.replayed[id] + 1);
	threads.replayed[id] = i;
	return 0;
}

static void pool_of_files(struct engine *engine, char paths[3][64])
{
	pool_new(engine);
	rig->pool->options.background = true;
	for (unsigned i = 0; i < 3; i++)
		member_open(i, paths[i]);
	assert_int_equal(journal_create(rig->pool), 0);
}

static void run_threads(void)
{
	pthread_t appenders[THREADS], trimmer;

	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&appenders[i], NULL, append_many, (void *)(uintptr_t)i), 0);
	assert_int_equal(pthread_create(&trimmer, NULL, trim_often, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(appenders[i], NULL);
	pthread_mutex_lock(&threads.lock);
	threads.over = true;
	pthread_mutex_unlock(&threads.lock);
	pthread_join(trimmer, NULL);
}

static void make_files(char paths[3][64])
{
	for (unsigned i = 0; i < 3; i++) {
		int fd;

		snprintf(paths[i], 64, "/tmp/journal-%u-XXXXXX", i);
		fd = mkstemp(paths[i]);
		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, RING_OFFSET + 1024 * 1024), 0);
		close(fd);
	}
}

static void threads_share_batches(void **state)
{
	struct journal_position start = {.lsn = 1, .epoch = 1}, end;
	char paths[3][64];
	struct engine *engine;
	uint64_t window;

	if (uring_engine_create(NULL, &engine, NULL))
		skip();
	rig_new(15, 3, 1, 1024 * 1024);
	make_files(paths);
	pool_of_files(engine, paths);
	rig->pool->epoch = 1;
	rig->pool->label.span_count = 1;
	rig->pool->label.spans[0] = (struct journal_span){.epoch = 1, .window = BLOCK_SIZE};
	rig->pool->label.spans[0].start = start;
	assert_int_equal(journal_start(rig->pool, &start, 0, BLOCK_SIZE), 0);
	assert_int_equal(record_epoch(&start), 0);
	run_threads();
	rig->pool->label.spans[0].window = journal_window(rig->pool);
	rig->label = rig->pool->label;
	let_go();
	pool_of_files(engine, paths);
	assert_int_equal(
		journal_replay(rig->pool, &rig->label.replay, count_record, &end, &window), 0);
	assert_int_equal(end.lsn, THREADS * EACH + 2);
	let_go();
	for (unsigned i = 0; i < 3; i++)
		unlink(paths[i]);
	engine_destroy(engine);
	rig_free();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_appended_is_replayed),
		cmocka_unit_test(records_gather_while_a_batch_is_written),
		cmocka_unit_test(failing_tells_everybody),
		cmocka_unit_test(the_ring_wraps_many_times),
		cmocka_unit_test(a_full_ring_waits_for_a_checkpoint),
		cmocka_unit_test(what_is_reserved_gets_through),
		cmocka_unit_test(a_full_ring_is_not_overwritten),
		cmocka_unit_test(a_full_ring_opens_again_and_again),
		cmocka_unit_test(records_have_a_greatest_size),
		cmocka_unit_test(reservations_are_kept),
		cmocka_unit_test(nothing_durable_is_lost_at_any_cut),
		cmocka_unit_test(a_batch_that_was_never_durable_is_made_so),
		cmocka_unit_test(copies_that_rot_are_survived),
		cmocka_unit_test(devices_that_cannot_be_read_are_not_the_end),
		cmocka_unit_test(a_gap_in_an_ended_span_is_an_error),
		cmocka_unit_test(only_the_batch_that_continues_the_chain_counts),
		cmocka_unit_test(late_writes_of_an_old_owner_do_no_harm),
		cmocka_unit_test(nothing_is_written_where_an_old_owner_may),
		cmocka_unit_test(an_owner_that_wakes_up_stops),
		cmocka_unit_test(too_many_owners_not_known_dead_are_refused),
		cmocka_unit_test(a_dropped_member_is_replaced),
		cmocka_unit_test(the_nth_request_may_fail_and_the_power_go),
		cmocka_unit_test(two_members_fail_at_once),
		cmocka_unit_test(too_few_members_stop_the_journal),
		cmocka_unit_test(no_domain_holds_all_copies),
		cmocka_unit_test(threads_share_batches),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
