/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Labels and beats on the devices: what stands there, and what an owner makes of another's. */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "device/engine.h"
#include "pool/label.h"
#include "pool_fixture.h"

#define DEVICE_SIZE (4u << 20)

/* --- a second writer of labels, while the first one's are on their way ------------------------ */

static struct {
	const struct engine_ops *real;
	struct pool *pool;
	pthread_t thread;
	sem_t written;
	bool armed;
} second;

static void *write_second(void *argument)
{
	assert_int_equal(label_write(second.pool), 0);
	sem_post(&second.written);
	return NULL;
}

/* The first request of the first writer waits here until the second has written its labels, if it
 * gets so far. The world has one thread at a time: the other one waits for this one. */
static void submit(struct engine *engine, struct io **ios, unsigned count)
{
	struct timespec until;

	if (second.armed) {
		second.armed = false;
		assert_int_equal(pthread_create(&second.thread, NULL, write_second, NULL), 0);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		sem_timedwait(&second.written, &until);
	}
	second.real->submit(engine, ios, count);
}

static int keep_greatest(void *data, const struct label *label)
{
	uint64_t *greatest = data;

	if (label->sequence > *greatest)
		*greatest = label->sequence;
	return 0;
}

static void a_label_never_lands_over_a_later_one(void **state)
{
	struct engine_ops slow;
	struct fixture f;

	fixture_make(&f, FIXTURE_DEVICES, 4, 2, DEVICE_SIZE, 1);
	second.pool = fixture_must_open(&f);
	sem_init(&second.written, 0, 0);
	second.real = f.engine->ops;
	slow = *second.real;
	slow.submit = submit;
	f.engine->ops = &slow;
	second.armed = true;
	assert_int_equal(label_write(second.pool), 0);
	pthread_join(second.thread, NULL);
	f.engine->ops = second.real;
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++) {
		struct member *member = &second.pool->devices[i];
		uint64_t greatest = 0;

		assert_int_equal(label_read_all(f.engine, member->device, &member->header,
					 keep_greatest, &greatest),
			0);
		assert_int_equal(greatest, second.pool->label.sequence);
	}
	pool_abandon(second.pool);
	sem_destroy(&second.written);
	fixture_free(&f);
}

/* --- which one is newer ----------------------------------------------------------------------- */

static struct label a_label(uint64_t epoch, uint64_t sequence)
{
	return (struct label){
		.epoch = epoch, .sequence = sequence, .state = LABEL_OPEN, .device_count = 1};
}

static struct label a_claim(uint64_t epoch, uint64_t sequence, const struct label *repeats)
{
	struct label label = a_label(epoch, sequence);

	label.repeats = label_version(repeats);
	return label;
}

static void a_claim_is_as_old_as_what_it_repeats(void **state)
{
	struct label first = a_label(0, 1),
		     labels[] = {first, a_claim(6, 1, &first), a_label(6, 2), a_label(6, 3),
			     a_claim(7, 1, &labels[3]), a_claim(9, 1, &labels[3]), a_label(7, 2)};

	for (unsigned i = 0; i < sizeof(labels) / sizeof(*labels); i++)
		for (unsigned j = 0; j < sizeof(labels) / sizeof(*labels); j++)
			assert_int_equal(label_is_newer(&labels[i], &labels[j]), i > j);
}

static void a_claim_repeats_an_earlier_epoch(void **state)
{
	struct label first = a_label(6, 3), claim = a_claim(7, 1, &first), found;
	uint8_t body[LABEL_BODY];

	assert_int_equal(label_encode(&claim, body), 0);
	assert_int_equal(label_decode(&found, body), 0);
	assert_int_equal(label_version_order(found.repeats, label_version(&first)), 0);
	claim.repeats.epoch = 7;
	assert_int_equal(label_encode(&claim, body), 0);
	assert_int_equal(label_decode(&found, body), -EBADMSG);
}

/* --- the beat --------------------------------------------------------------------------------- */

#define SECOND UINT64_C(1000000000)

/* The one that stands on a device; 0: none. */
static uint64_t beat_on(struct fixture *f, struct pool *pool, unsigned device)
{
	uint64_t place = label_place(LABEL_A_OFFSET, pool->epoch) + LABEL_BODY;
	struct beat beat;

	if (beat_decode(&beat, pool->label.pool, sim_medium(f->world, f->names[device]) + place) ||
		beat.epoch != pool->epoch)
		return 0;
	return beat.count;
}

static void a_slow_device_does_not_stop_the_beat(void **state)
{
	struct fixture f;
	struct pool *pool;

	fixture_make(&f, FIXTURE_DEVICES, 4, 2, DEVICE_SIZE, 2);
	pool = fixture_must_open(&f);
	sim_drain(f.world); /* looks of the opening */
	sim_delay(f.world, f.names[5], 25 * SECOND);
	for (unsigned round = 1; round <= 60; round++) {
		beat_round(pool);
		engine_sleep(f.engine, SECOND);
		for (unsigned i = 0; i < 5; i++)
			assert_int_equal(beat_on(&f, pool, i), round);
	}
	assert_in_range(beat_on(&f, pool, 5), 1, 10);
	pool_abandon(pool);
	fixture_free(&f);
}

static unsigned answers;

static void answered(struct look_wait *wait)
{
	assert_int_equal(wait->status, 0);
	answers++;
}

static void a_look_does_not_stop_the_beat(void **state)
{
	struct look_wait wait = {.done = answered};
	struct fixture f;
	struct pool *pool;

	fixture_make(&f, FIXTURE_DEVICES, 4, 2, DEVICE_SIZE, 2);
	pool = fixture_must_open(&f);
	sim_drain(f.world);
	for (unsigned round = 1; round <= 3; round++) {
		pool_look(pool, &wait);
		beat_round(pool); /* all devices are being looked at */
		engine_sleep(f.engine, SECOND);
		for (unsigned i = 0; i < FIXTURE_DEVICES; i++)
			assert_int_equal(beat_on(&f, pool, i), round);
		assert_int_equal(answers, round);
	}
	pool_abandon(pool);
	fixture_free(&f);
}

/* Opens as another host that is told to. */
static struct pool *take_over(struct fixture *f, struct engine *engine)
{
	struct pool_open_options options = {.paths = f->paths,
		.path_count = f->devices,
		.host = "beta",
		.boot_id = {2},
		.force = true,
		.metadata_limit = 16u << 20};
	struct error error = {0};
	struct pool *pool;

	if (pool_open(engine, &options, &pool, &error))
		fail_msg("pool_open: %s: %s", error.object, error.message);
	return pool;
}

static int change(struct pool *pool)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(pool, NULL, &txn);

	if (rc)
		return rc;
	assert_int_equal(property_set(txn, 0, "note", "x"), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	return pool_sync(pool, lsn);
}

/* An owner that stood still for so long that another one came acknowledges nothing, neither before
 * nor after it has seen it. */
static void an_owner_stops_when_there_is_a_later_one(void **state)
{
	for (unsigned looks = 0; looks < 2; looks++) {
		struct pool *first, *second_owner;
		struct engine *engine;
		struct fixture f;

		fixture_make(&f, FIXTURE_DEVICES, 4, 2, DEVICE_SIZE, 3);
		assert_int_equal(sim_engine_create(f.world, &engine), 0);
		first = fixture_must_open(&f);
		assert_int_equal(change(first), 0);
		second_owner = take_over(&f, engine);
		if (looks) {
			beat_round(first);
			engine_sleep(f.engine, SECOND);
			assert_int_equal(pool_failure(first), -ESTALE);
		}
		assert_int_equal(change(first), -ESTALE);
		assert_int_equal(pool_failure(first), -ESTALE);
		assert_int_equal(change(second_owner), 0);
		pool_abandon(second_owner);
		pool_abandon(first);
		engine_destroy(engine);
		fixture_free(&f);
	}
}

/* The segments that were just recorded stay reserved when nobody can tell whether they may be used:
 * their slots are not given to others, which the next opening would find taken twice. */
static void a_look_that_fails_gives_no_slots_away(void **state)
{
	for (uint64_t n = 1; n < 40; n++) {
		struct pool *pool;
		struct fixture f;

		fixture_make(&f, 2, 1, 1, DEVICE_SIZE, n);
		pool = fixture_must_open(&f);
		for (unsigned round = 0; round < 3; round++) {
			struct segment *segment = NULL;

			sim_fail_nth(f.engine, n, -EIO);
			if (!segment_take(pool, 1, PURPOSE_IMAGE, 0, &segment))
				segment_put(segment);
			segment_restock(pool);
			sim_fail_nth(f.engine, 0, 0);
		}
		fixture_crash(&f, pool, SIM_KEEP_ALL);
		pool = fixture_must_open(&f);
		pool_abandon(pool);
		fixture_free(&f);
	}
}

/* --- whose labels ----------------------------------------------------------------------------- */

static bool shows_another(uint64_t epoch, uint64_t pid, uint8_t boot)
{
	static uint8_t area[LABEL_AREA];
	struct label label = {.epoch = 9,
		.sequence = 1,
		.state = LABEL_OPEN,
		.device_count = 1,
		.owner_pid = 5,
		.owner_boot = {7},
		.name = "tank"};
	struct label_self self = {.pid = pid, .boot = {boot}};

	memset(area, 0, sizeof(area));
	assert_int_equal(label_encode(&label, area + label_place(0, label.epoch)), 0);
	return area_has_anothers(area, &self, epoch);
}

/* Of a later epoch, or of the same one and of another process. */
static void anothers_labels(void **state)
{
	assert_false(shows_another(9, 5, 7));
	assert_false(shows_another(10, 5, 7));
	assert_false(shows_another(10, 6, 8));
	assert_true(shows_another(8, 5, 7));
	assert_true(shows_another(9, 6, 7));
	assert_true(shows_another(9, 5, 8));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(anothers_labels),
		cmocka_unit_test(a_label_never_lands_over_a_later_one),
		cmocka_unit_test(a_claim_is_as_old_as_what_it_repeats),
		cmocka_unit_test(a_claim_repeats_an_earlier_epoch),
		cmocka_unit_test(a_slow_device_does_not_stop_the_beat),
		cmocka_unit_test(a_look_does_not_stop_the_beat),
		cmocka_unit_test(a_look_that_fails_gives_no_slots_away),
		cmocka_unit_test(an_owner_stops_when_there_is_a_later_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
