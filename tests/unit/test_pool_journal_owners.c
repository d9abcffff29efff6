/* SPDX-License-Identifier: LGPL-3.0-or-later. The journal: owners before it. links: pool */
/* What an old owner still writes does no harm, and one that wakes up stops. */
#include "test_pool_journal.h"

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
		assert_int_equal(rig->label.other_count, 1);
		from = rig->label.others[0].from % rig->ring;
		to = rig->label.others[0].to % rig->ring;
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

/* Between the first one's last look at the labels and what it does then, time passes, in which a
 * second owner may come. */
static void an_owner_that_was_away_looks_before_it_acknowledges(void **state)
{
	for (uint64_t seed = 0; seed < 10; seed++) {
		struct pool *old;
		struct engine *old_engine;
		uint8_t bytes[100] = {0};
		uint64_t acked;

		rig_new(seed, 4, 1, 256 * 1024);
		open_well(true);
		assert_int_equal(work(5), 0);
		engine_sleep(rig->engine, 3600 * UINT64_C(1000000000));
		assert_int_equal(work(5), 0);
		acked = rig->acked;
		old = rig->pool;
		old_engine = rig->engine;
		engine_sleep(old_engine, LEASE_NS);
		assert_int_equal(sim_engine_create(rig->world, &rig->engine), 0);
		open_well(false);
		assert_true(rig->acked > acked);
		assert_int_equal(
			pool_sync(old, journal_append(old, RECORD_CHANGES, bytes, 100)), -ESTALE);
		assert_int_equal(atomic_load(&old->failure), -ESTALE);
		assert_int_equal(work(5), 0);
		let_go();
		rig->pool = old;
		let_go();
		engine_destroy(old_engine);
		rig_free();
	}
}

/* A batch that was never durable stands on a device that cannot be read when the next owner goes on
 * without it. Later it can be read again, and is not what the log went on with. */
static void what_a_silent_device_has_is_not_believed_later(void **state)
{
	unsigned silent = 0;

	for (uint64_t seed = 0; seed < 60; seed++) {
		unsigned spans;

		rig_new(seed, 3, 1, 256 * 1024);
		open_well(true);
		assert_int_equal(work(1 + (unsigned)draw(5)), 0);
		sim_cut_power_at(rig->engine, 1 + draw(3));
		work(8);
		crash(SIM_RANDOM);
		spans = rig->label.span_count;
		sim_fail_device_reads(rig->world, "d0", -EIO);
		open_well(true);
		silent += rig->label.span_count > spans;
		sim_fail_device_reads(rig->world, "d0", 0);
		assert_int_equal(add(1 + (unsigned)draw(3)), 0);
		for (unsigned i = 0; i < 3; i++) {
			crash(SIM_LOSE_ALL);
			open_well(true);
			assert_int_equal(add(1), 0);
		}
		rig_free();
	}
	assert_true(silent > 20);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_writes_of_an_old_owner_do_no_harm),
		cmocka_unit_test(nothing_is_written_where_an_old_owner_may),
		cmocka_unit_test(an_owner_that_wakes_up_stops),
		cmocka_unit_test(an_owner_that_was_away_looks_before_it_acknowledges),
		cmocka_unit_test(what_a_silent_device_has_is_not_believed_later),
		cmocka_unit_test(too_many_owners_not_known_dead_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
