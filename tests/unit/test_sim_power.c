/* SPDX-License-Identifier: LGPL-3.0-or-later. The simulated world: power cuts, and images of them.
 * links: device */
#include "test_sim.h"

/* --- power -------------------------------------------------------------------------------- */

static void unflushed_writes_can_vanish(void **state)
{
	struct fixture f = start(1, false);

	put(&f, 0, 'a', 0);
	flush(&f);
	put(&f, 0, 'b', 0);
	put(&f, 1, 'f', IO_FUA);
	sim_cut_power(f.world);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 1), 'f');
	finish(&f);
}

static void unflushed_writes_can_survive(void **state)
{
	struct fixture f = start(1, false);

	put(&f, 0, 'a', 0);
	put(&f, 0, 'b', 0);
	sim_cut_power(f.world);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 0), 'b');
	finish(&f);
}

static void a_flush_covers_only_what_was_done_before(void **state)
{
	struct fixture f = start(1, false);
	struct noted write, barrier;

	note(&f, &write, IO_WRITE, 0, 'w');
	note(&f, &barrier, IO_FLUSH, 0, 0);
	sim_drain(f.world);
	assert_int_equal(medium(&f, 0), 0);
	assert_int_equal(flush(&f), 0);
	assert_int_equal(medium(&f, 0), 'w');
	forget(&f, &write);
	finish(&f);
}

static void a_durable_write_is_not_undone_by_an_older_one(void **state)
{
	struct fixture f = start(1, false);
	struct io io;
	uint8_t *wide = buffer_alloc(f.engine, 3 * BLOCK_SIZE);

	memset(wide, 'o', 3 * BLOCK_SIZE);
	io_prepare(&io, IO_WRITE, f.device, 0, wide, 3 * BLOCK_SIZE);
	assert_int_equal(io_run(f.engine, &io), 0);
	put(&f, 1, 'n', IO_FUA);
	assert_int_equal(get(&f, 0), 'o');
	assert_int_equal(get(&f, 1), 'n');
	assert_int_equal(get(&f, 2), 'o');
	assert_int_equal(medium(&f, 0), 0);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 0), 'o');
	assert_int_equal(get(&f, 1), 'n');
	assert_int_equal(get(&f, 2), 'o');
	buffer_free(f.engine, wide, 3 * BLOCK_SIZE);
	finish(&f);
}

static void write_through_is_durable_when_done(void **state)
{
	struct fixture f = start(1, false);

	sim_set_volatile(f.world, "a", false);
	put(&f, 0, 'a', 0);
	power_on(&f, SIM_LOSE_ALL);
	assert_false(device_info(f.device)->volatile_cache);
	assert_int_equal(get(&f, 0), 'a');
	finish(&f);
}

static void the_cut_falls_on_the_nth_write_or_flush(void **state)
{
	for (unsigned n = 1; n <= 4; n++) {
		struct fixture f = start(n, false);
		int results[4];

		sim_cut_power_at(f.engine, n);
		results[0] = put(&f, 0, 'a', 0);
		results[1] = flush(&f);
		if (n > 2)
			get(&f, 0);
		results[2] = put(&f, 1, 'b', 0);
		results[3] = flush(&f);
		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(results[i], i + 1 < n ? 0 : -ESHUTDOWN);
		assert_true(sim_power_was_cut(f.engine));
		assert_int_equal(
			device_open(f.engine, "b", 0, &(struct device *){0}, NULL), -ESHUTDOWN);
		assert_int_equal(sim_writes_and_flushes(f.engine), n - 1);
		sim_power_on(f.world, SIM_LOSE_ALL);
		assert_false(sim_power_was_cut(f.engine));
		assert_false(device_present(f.device));
		assert_int_equal(flush(&f), -ESHUTDOWN);
		assert_int_equal(medium(&f, 0), n > 2 ? 'a' : 0);
		finish(&f);
	}
}

static void all_outcomes_of_a_cut_are_seen(void **state)
{
	enum { FATE_A, FATE_B, FATE_TORN };
	unsigned seen[3] = {0}, torn_by_sector = 0;
	struct fixture f = start(1, true);

	for (unsigned i = 0; i < 200; i++) {
		put(&f, 0, 'a', IO_FUA);
		put(&f, 0, 'b', 0);
		sim_cut_power(f.world);
		power_on(&f, SIM_RANDOM);
		switch (get(&f, 0)) {
		case 'a':
			seen[FATE_A]++;
			break;
		case 'b':
			seen[FATE_B]++;
			break;
		default:
			seen[FATE_TORN]++;
			for (unsigned at = 0; at < BLOCK_SIZE; at++)
				torn_by_sector += f.back[at] != f.back[at / 512 * 512];
		}
	}
	assert_true(seen[FATE_A] > 20 && seen[FATE_B] > 20 && seen[FATE_TORN] > 20);
	assert_int_equal(torn_by_sector, 0);
	finish(&f);
}

static void writes_in_flight_survive_in_any_order(void **state)
{
	unsigned first = 0, second = 0;

	for (uint64_t seed = 0; seed < 40; seed++) {
		struct fixture f = start(seed, true);
		struct noted n[2];

		note(&f, &n[0], IO_WRITE, 0, 'a');
		note(&f, &n[1], IO_WRITE, 0, 'b');
		sim_cut_power(f.world);
		sim_drain(f.world);
		assert_int_equal(n[0].io.result, -ESHUTDOWN);
		assert_int_equal(n[1].io.result, -ESHUTDOWN);
		power_on(&f, SIM_KEEP_ALL);
		first += get(&f, 0) == 'a';
		second += get(&f, 0) == 'b';
		forget(&f, &n[0]);
		forget(&f, &n[1]);
		finish(&f);
	}
	assert_true(first > 5 && second > 5);
	assert_int_equal(first + second, 40);
}

/* --- saving and restoring ----------------------------------------------------------------- */

static void restored_worlds_are_the_same(void **state)
{
	struct fixture f = start(1, true);
	struct sim_image *image = NULL, *later = NULL;

	put(&f, 0, 'a', 0);
	assert_int_equal(sim_save(f.world, &image), 0);
	put(&f, 0, 'b', 0);
	put(&f, 5, 'b', IO_FUA);
	sim_kill_device(f.world, "b");
	assert_int_equal(sim_save(f.world, &later), 0);

	assert_int_equal(sim_restore(f.world, image), 0);
	assert_int_equal(put(&f, 1, 'x', 0), -ESHUTDOWN);
	device_close(f.device);
	assert_int_equal(device_open(f.engine, "a", 0, &f.device, NULL), 0);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 5), 0);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(get(&f, 0), 0);

	assert_int_equal(sim_restore(f.world, later), 0);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 0), 'b');
	assert_int_equal(get(&f, 5), 'b');
	assert_int_equal(device_open(f.engine, "b", 0, &(struct device *){0}, NULL), -ENODEV);

	assert_int_equal(sim_save(f.world, &image), 0);
	put(&f, 0, 'c', IO_FUA);
	assert_int_equal(sim_restore(f.world, image), 0);
	assert_int_equal(medium(&f, 0), 'b');
	sim_image_free(image);
	sim_image_free(later);
	finish(&f);
}

static void one_cut_has_many_outcomes(void **state)
{
	struct fixture f = start(1, true);
	struct sim_image *image = NULL;
	unsigned zero = 0, full = 0, mixed = 0;

	sim_cut_power_at(f.engine, 1);
	assert_int_equal(put(&f, 0, 'a', 0), -ESHUTDOWN);
	assert_int_equal(sim_save(f.world, &image), 0);
	for (uint64_t seed = 0; seed < 100; seed++) {
		int value;

		assert_int_equal(sim_restore(f.world, image), 0);
		assert_true(sim_power_was_cut(f.engine));
		sim_seed(f.world, seed);
		power_on(&f, SIM_RANDOM);
		value = get(&f, 0);
		zero += value == 0;
		full += value == 'a';
		mixed += value == -1;
	}
	assert_true(zero > 10 && full > 10 && mixed > 10);
	sim_image_free(image);
	finish(&f);
}

struct watched {
	struct fixture *f;
	struct sim_image *at[4];
	unsigned count;
};

static void keep_cut(void *data)
{
	struct watched *w = data;

	assert_int_equal(sim_save_cut(w->f->world, &w->at[w->count++]), 0);
}

/* Block 1 was done and not flushed, block 2 in flight, when the image was taken. */
static void an_image_of_a_cut_leaves_the_world_alone(void **state)
{
	struct fixture f = start(1, true);
	struct watched w = {.f = &f};

	put(&f, 0, 'a', IO_FUA);
	put(&f, 1, 'b', 0);
	sim_watch_writes(f.engine, keep_cut, &w);
	assert_int_equal(put(&f, 2, 'c', 0), 0);
	assert_int_equal(get(&f, 2), 'c');
	assert_int_equal(flush(&f), 0);
	assert_int_equal(w.count, 2);
	assert_int_equal(medium(&f, 2), 'c');

	assert_int_equal(sim_restore(f.world, w.at[0]), 0);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 1), 0);
	assert_int_equal(get(&f, 2), 0);
	assert_int_equal(sim_restore(f.world, w.at[0]), 0);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 1), 'b');
	assert_int_equal(get(&f, 2), 'c');
	put(&f, 3, 'd', 0);
	assert_int_equal(w.count, 2); /* nobody watches after a cut */
	sim_image_free(w.at[0]);
	sim_image_free(w.at[1]);
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unflushed_writes_can_vanish),
		cmocka_unit_test(unflushed_writes_can_survive),
		cmocka_unit_test(a_flush_covers_only_what_was_done_before),
		cmocka_unit_test(a_durable_write_is_not_undone_by_an_older_one),
		cmocka_unit_test(write_through_is_durable_when_done),
		cmocka_unit_test(the_cut_falls_on_the_nth_write_or_flush),
		cmocka_unit_test(all_outcomes_of_a_cut_are_seen),
		cmocka_unit_test(writes_in_flight_survive_in_any_order),
		cmocka_unit_test(restored_worlds_are_the_same),
		cmocka_unit_test(one_cut_has_many_outcomes),
		cmocka_unit_test(an_image_of_a_cut_leaves_the_world_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
