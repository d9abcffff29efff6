/* SPDX-License-Identifier: LGPL-3.0-or-later. The journal: the power, devices. links: pool */
/* The power goes at any write, copies rot or cannot be read, and devices fail and are replaced. */
#include "test_pool_journal.h"

/* --- the power, and copies that cannot be read ------------------------------------------------ */

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_durable_is_lost_at_any_cut),
		cmocka_unit_test(a_batch_that_was_never_durable_is_made_so),
		cmocka_unit_test(copies_that_rot_are_survived),
		cmocka_unit_test(devices_that_cannot_be_read_are_not_the_end),
		cmocka_unit_test(a_gap_in_an_ended_span_is_an_error),
		cmocka_unit_test(only_the_batch_that_continues_the_chain_counts),
		cmocka_unit_test(a_dropped_member_is_replaced),
		cmocka_unit_test(the_nth_request_may_fail_and_the_power_go),
		cmocka_unit_test(two_members_fail_at_once),
		cmocka_unit_test(too_few_members_stop_the_journal),
		cmocka_unit_test(no_domain_holds_all_copies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
