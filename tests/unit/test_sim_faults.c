/* SPDX-License-Identifier: LGPL-3.0-or-later. The simulated world: several hosts, late writes,
 * faults. links: device */
#include "test_sim.h"

/* --- several hosts, late writes ----------------------------------------------------------- */

static void hosts_share_the_devices(void **state)
{
	struct fixture f = start(1, false), g = f;

	assert_int_equal(sim_engine_create(f.world, &g.engine), 0);
	assert_int_equal(device_open(g.engine, "a", DEVICE_EXCLUSIVE, &g.device, NULL), 0);
	put(&f, 0, 'f', 0);
	assert_int_equal(get(&g, 0), 'f');
	assert_int_equal(flush(&g), 0);
	assert_int_equal(medium(&f, 0), 'f');
	device_close(g.device);
	engine_destroy(g.engine);
	finish(&f);
}

static void a_dead_hosts_writes_arrive_late(void **state)
{
	struct fixture f = start(1, false), g = f;
	struct noted n[2];

	assert_int_equal(sim_engine_create(f.world, &g.engine), 0);
	assert_int_equal(device_open(g.engine, "a", 0, &g.device, NULL), 0);
	put(&f, 0, 'a', 0);
	note(&f, &n[0], IO_WRITE, 1, 'b');
	sim_cut_host(f.engine);
	note(&f, &n[1], IO_WRITE, 2, 'c');
	sim_drain(f.world);
	assert_int_equal(n[0].io.result, -ESHUTDOWN);
	assert_int_equal(n[1].io.result, -ESHUTDOWN);
	assert_int_equal(get(&g, 0), 'a');
	assert_int_equal(get(&g, 1), 0);
	assert_int_equal(sim_late_count(f.world), 2);
	assert_int_equal(sim_late(f.world, 0).offset, BLOCK_SIZE);
	assert_string_equal(sim_late(f.world, 1).device, "a");

	put(&g, 2, 'g', 0);
	assert_int_equal(sim_release_late(f.world, 1), 0);
	assert_int_equal(get(&g, 2), 'c');
	assert_int_equal(sim_release_late(f.world, 0), 0);
	assert_int_equal(medium(&g, 1), 'b');
	assert_int_equal(sim_late_count(f.world), 0);

	assert_true(sim_power_was_cut(f.engine));
	assert_false(sim_power_was_cut(g.engine));
	sim_reconnect(f.engine);
	assert_int_equal(put(&f, 0, 'x', 0), -ESHUTDOWN);
	device_close(g.device);
	engine_destroy(g.engine);
	forget(&f, &n[0]);
	forget(&f, &n[1]);
	finish(&f);
}

static void a_cut_can_leave_late_writes(void **state)
{
	struct fixture f = start(1, false);
	struct noted n;

	sim_hold_late(f.engine, true, true);
	put(&f, 0, 'a', 0);
	note(&f, &n, IO_WRITE, 1, 'b');
	sim_cut_power(f.world);
	sim_drain(f.world);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(sim_late_count(f.world), 2);
	put(&f, 0, 'n', IO_FUA);
	assert_int_equal(sim_release_late(f.world, 0), 0);
	assert_int_equal(get(&f, 0), 'a');
	sim_drop_late(f.world);
	assert_int_equal(sim_late_count(f.world), 0);

	sim_hold_late(f.engine, true, false);
	put(&f, 0, 'a', 0);
	sim_cut_power(f.world);
	assert_int_equal(sim_late_count(f.world), 0);
	forget(&f, &n);
	finish(&f);
}

static void a_paused_host_goes_on_later(void **state)
{
	struct fixture f = start(1, false);
	struct noted n[2];

	note(&f, &n[0], IO_WRITE, 0, 'a');
	sim_pause(f.engine, true);
	note(&f, &n[1], IO_WRITE, 1, 'b');
	sim_drain(f.world);
	assert_int_equal(n[0].order, 0);
	assert_int_equal(sim_outstanding(f.world), 2);
	sim_pause(f.engine, false);
	sim_drain(f.world);
	assert_int_equal(n[1].io.result, 0);
	assert_int_equal(get(&f, 0), 'a');
	forget(&f, &n[0]);
	forget(&f, &n[1]);
	finish(&f);
}

/* --- faults ------------------------------------------------------------------------------- */

static void dead_devices_answer_enodev(void **state)
{
	struct fixture f = start(1, false);

	put(&f, 0, 'a', IO_FUA);
	sim_kill_device(f.world, "a");
	assert_false(device_present(f.device));
	assert_int_equal(put(&f, 0, 'b', 0), -ENODEV);
	assert_int_equal(run(&f, IO_READ, 0, 0, f.back), -ENODEV);
	assert_int_equal(flush(&f), -ENODEV);
	assert_int_equal(device_open(f.engine, "a", 0, &(struct device *){0}, NULL), -ENODEV);
	sim_revive_device(f.world, "a");
	assert_true(device_present(f.device));
	assert_int_equal(get(&f, 0), 'a');
	finish(&f);
}

static void the_nth_request_fails(void **state)
{
	struct fixture f = start(1, false);

	sim_fail_nth(f.engine, 2, -EIO);
	assert_int_equal(put(&f, 0, 'a', 0), 0);
	assert_false(sim_failed(f.engine));
	assert_int_equal(run(&f, IO_READ, 0, 0, f.back), -EIO);
	assert_true(sim_failed(f.engine));
	assert_int_equal(get(&f, 0), 'a');

	sim_fail_device_writes(f.world, "a", -ENOSPC);
	assert_int_equal(put(&f, 0, 'a', 0), -ENOSPC);
	assert_int_equal(flush(&f), -ENOSPC);
	assert_int_equal(run(&f, IO_READ, 0, 1, f.back), 0);
	sim_fail_device_writes(f.world, "a", 0);
	sim_fail_device_reads(f.world, "a", -EIO);
	assert_int_equal(put(&f, 0, 'a', 0), 0);
	assert_int_equal(run(&f, IO_READ, 0, 1, f.back), -EIO);
	finish(&f);
}

static void writes_get_lost_and_misdirected(void **state)
{
	struct fixture f = start(1, false);

	sim_lose_write(f.engine, 2);
	put(&f, 0, 'a', 0);
	put(&f, 1, 'b', 0);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 1), 0);
	sim_misdirect_write(f.engine, 1, 7 * BLOCK_SIZE);
	put(&f, 2, 'c', IO_FUA);
	assert_int_equal(get(&f, 2), 0);
	assert_int_equal(get(&f, 7), 'c');
	finish(&f);
}

static void rot_changes_each_sector_of_its_range(void **state)
{
	struct fixture f = start(1, false);
	const uint8_t *bytes = sim_medium(f.world, "a");

	sim_rot(f.world, "a", 1000, 2000, 4);
	for (unsigned sector = 0; sector < 8; sector++) {
		unsigned changed = 0;

		for (unsigned i = 0; i < 512; i++)
			changed += bytes[sector * 512 + i] != 0;
		assert_int_equal(changed, sector >= 1 && sector <= 5);
	}
	sim_medium_write(f.world, "a", 10, "hello", 5);
	assert_memory_equal(bytes + 10, "hello", 5);
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hosts_share_the_devices),
		cmocka_unit_test(a_dead_hosts_writes_arrive_late),
		cmocka_unit_test(a_cut_can_leave_late_writes),
		cmocka_unit_test(a_paused_host_goes_on_later),
		cmocka_unit_test(dead_devices_answer_enodev),
		cmocka_unit_test(the_nth_request_fails),
		cmocka_unit_test(writes_get_lost_and_misdirected),
		cmocka_unit_test(rot_changes_each_sector_of_its_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
