/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Domains with more devices than parity: one of three may be lost whole, of two none, and nobody
 * who sees one alone takes himself for the rest.
 */
#include <stdlib.h>

#include "device/engine.h"
#include "pool/internal.h"
#include "pool_files.h"

#define DEVICE_SIZE (3u << 20)
#define SECOND UINT64_C(1000000000)
#define OF_DOMAIN 3

/* So many domains of three devices; 4+2, or 2+2 of two. */
static void begin(unsigned domains, uint64_t seed)
{
	static const char *const names[] = {
		"A", "A", "A", "B", "B", "B", "C", "C", "C", "D", "D", "D"};

	fixture_make_domains(&f, domains * OF_DOMAIN, domains > 2 ? 4 : 2, 2, DEVICE_SIZE,
		JOURNAL_SIZE, seed, names);
	begin_files(6);
}

static void each_of(unsigned domain, void (*act)(struct sim_world *world, const char *name))
{
	for (unsigned i = 0; i < OF_DOMAIN; i++)
		act(f.world, f.names[domain * OF_DOMAIN + i]);
}

static unsigned in_state(enum device_state state)
{
	unsigned count = 0;

	for (unsigned i = 0; i < f.devices; i++)
		count += atomic_load(&pool->devices[i].state) == (int)state;
	return count;
}

static void crash(void)
{
	fixture_crash(&f, pool, SIM_RANDOM);
}

static void take_back(unsigned domain)
{
	struct pool_resilver_report report;
	struct error error = {0};

	for (unsigned i = 0; i < OF_DOMAIN; i++)
		assert_int_equal(pool_attach(pool, f.names[domain * OF_DOMAIN + i], &error), 0);
	assert_int_equal(pool_resilver(pool, &report, NULL, NULL, &error), 0);
	assert_true(report.whole);
}

/* --- one of three ----------------------------------------------------------------------------- */

static bool may_die(void)
{
	struct pool_status *status = malloc(sizeof(*status));
	bool may;

	pool_status(pool, status);
	may = status->domain_may_die;
	free(status);
	return may;
}

/* Whose the pool is: whoever goes on does not write to them. */
static void dropped_ones_do_not_tell(unsigned domain)
{
	unsigned other = (domain + 1) % 3 * OF_DOMAIN;
	uint64_t dropped = UINT64_C(7) << (domain * OF_DOMAIN), others = UINT64_C(1) << other;
	struct pool_summary summary;

	assert_int_equal(pool_probe(f.engine, f.names[other], &summary), 0);
	assert_false(pool_owner_is_shown(&summary, dropped | others));
	assert_true(pool_owner_is_shown(&summary, UINT64_C(7) << other));
}

/* One after the other, each while the pool is in use, at a crash, and taken back. What was written
 * to two domains alone has two chunks in each, so that another one may go as soon as it is back. */
static void each_domain_in_turn(void **state)
{
	begin(3, 1);
	assert_true(may_die());
	for (unsigned domain = 0; domain < 3; domain++) {
		each_of(domain, sim_kill_device);
		add_files(3);
		assert_int_equal(in_state(DEVICE_DROPPED), OF_DOMAIN);
		assert_false(may_die());
		dropped_ones_do_not_tell(domain);
		crash();
		open_pool();
		must_have_all_files();
		each_of(domain, sim_revive_device);
		take_back(domain);
		assert_true(may_die());
		add_files(2);
		crash();
		each_of((domain + 1) % 3, sim_kill_device);
		open_to_look();
		must_have_all_files();
		pool_abandon(pool);
		each_of((domain + 1) % 3, sim_revive_device);
		open_pool();
		must_have_all_files();
	}
	end();
}

/* Segments that are not full are worth to be emptied into others like them, and not into narrower
 * ones, which take more slots for as much. */
static void nothing_is_won_by_narrower_segments(void **state)
{
	uint64_t waste[2];

	begin(3, 13);
	for (unsigned i = 0; i < 8; i++) {
		crash();
		open_pool();
		add_files(4);
	}
	crash();
	open_pool();
	assert_int_equal(pool_waste(pool, 0, &waste[0]), 0);
	each_of(1, sim_kill_device);
	add_file();
	assert_int_equal(pool_maintain(pool), 0);
	assert_int_equal(in_state(DEVICE_DROPPED), OF_DOMAIN);
	assert_int_equal(pool_waste(pool, 0, &waste[1]), 0);
	assert_true(waste[0] > 0);
	assert_int_equal(waste[1], 0);
	add_files(12);
	crash();
	each_of(1, sim_revive_device);
	open_pool();
	take_back(1);
	assert_int_equal(pool_waste(pool, 0, &waste[1]), 0);
	assert_true(waste[1] > waste[0]); /* and narrow ones into others */
	end();
}

/* At each write and flush of what goes on, and what was acknowledged is there without it. */
static void a_domain_and_the_power(void **state)
{
	struct sim_image *image = NULL;
	unsigned before;
	bool cut = true;

	begin(3, 2);
	before = files;
	crash();
	assert_int_equal(sim_save(f.world, &image), 0);
	for (uint64_t n = 1; cut; n++) {
		files = before;
		assert_int_equal(sim_restore(f.world, image), 0);
		sim_seed(f.world, n);
		open_pool();
		sim_cut_power_at(f.engine, n);
		if (!add_file() && !add_file())
			pool_checkpoint(pool);
		cut = sim_power_was_cut(f.engine);
		crash();
		each_of(n % 3, sim_kill_device);
		open_pool();
		must_have_all_files();
		pool_abandon(pool);
		each_of(n % 3, sim_revive_device);
	}
	sim_image_free(image);
	fixture_free(&f);
}

static void one_more_is_too_much(void **state)
{
	struct error error;

	begin(3, 3);
	crash();
	each_of(1, sim_kill_device);
	sim_kill_device(f.world, "d8");
	assert_int_equal(fixture_open(&f, &pool, &error), -EIO);
	assert_non_null(strstr(error.message, "at most 2 may be, or one domain"));
	sim_revive_device(f.world, "d8");
	sim_revive_device(f.world, "d3");
	open_pool();
	must_have_all_files();
	assert_int_equal(in_state(DEVICE_DROPPED), 2);
	each_of(1, sim_revive_device);
	end();
}

static void more_that_fail_in_several_domains_stop_it(void **state)
{
	begin(3, 4);
	sim_kill_device(f.world, "d0");
	sim_kill_device(f.world, "d1");
	sim_kill_device(f.world, "d4");
	add_file();
	assert_int_equal(pool_maintain(pool), -EIO);
	assert_int_equal(in_state(DEVICE_DROPPED), 0);
	crash();
	sim_revive_device(f.world, "d0");
	sim_revive_device(f.world, "d1");
	sim_revive_device(f.world, "d4");
	open_pool();
	must_have_all_files();
	end();
}

/* --- nobody is two ---------------------------------------------------------------------------- */

/* Each could take the other for lost. */
static void neither_of_two(void **state)
{
	struct error error;

	begin(2, 5);
	each_of(1, sim_kill_device);
	add_file();
	assert_int_equal(pool_maintain(pool), -EIO);
	crash();
	assert_int_equal(fixture_open(&f, &pool, &error), -EIO);
	each_of(1, sim_revive_device);
	open_pool();
	must_have_all_files();
	assert_int_equal(in_state(DEVICE_ACTIVE), 6);
	end();
}

/* What a successor has written to the others its own domain does not show. */
static void who_sees_one_domain_alone_acknowledges_nothing(void **state)
{
	begin(3, 6);
	for (unsigned i = OF_DOMAIN; i < f.devices; i++)
		sim_fail_device_reads(f.world, f.names[i], -EIO);
	for (unsigned i = 0; i < 10; i++) {
		pool_maintain(pool);
		engine_sleep(f.engine, SECOND);
	}
	assert_int_not_equal(add_file(), 0);
	end();
}

static void who_sees_two_goes_on(void **state)
{
	begin(3, 7);
	for (unsigned i = 2 * OF_DOMAIN; i < f.devices; i++)
		sim_fail_device_reads(f.world, f.names[i], -EIO);
	for (unsigned i = 0; i < 10; i++) {
		pool_maintain(pool);
		engine_sleep(f.engine, SECOND);
	}
	assert_int_equal(add_file(), 0);
	end();
}

/* --- domains that differ in size -----------------------------------------------------------------
 */

static void each(unsigned first, unsigned count, void (*act)(struct sim_world *, const char *))
{
	for (unsigned i = 0; i < count; i++)
		act(f.world, f.names[first + i]);
}

static uint64_t writes_left;

static void fail_two(void *data)
{
	if (!writes_left || --writes_left)
		return;
	sim_fail_device_writes(f.world, "d3", -EIO);
	sim_fail_device_writes(f.world, "d4", -EIO);
}

/* A's devices are missing at an opening, B's take no writes from its n-th on. What C alone has been
 * told of is not behind what A and B know when they are back, without C. */
static void two_domains_are_not_lost_by_one_opening(void **state)
{
	static const char *const domains[] = {"A", "A", "A", "B", "B", "C", "C", "C"};
	struct sim_image *image = NULL;
	struct error error;
	unsigned before, opened = 0;

	fixture_make_domains(&f, 8, 2, 2, DEVICE_SIZE, JOURNAL_SIZE, 10, domains);
	begin_files(6);
	before = files;
	fixture_crash(&f, pool, SIM_KEEP_ALL);
	assert_int_equal(sim_save(f.world, &image), 0);
	for (uint64_t n = 1; n < 80; n++) {
		files = before;
		assert_int_equal(sim_restore(f.world, image), 0);
		each(0, 3, sim_kill_device);
		writes_left = n;
		sim_watch_writes(f.engine, fail_two, NULL);
		if (!fixture_open(&f, &pool, &error)) {
			opened++;
			if (!stream_open(pool, volume, &stream) && !add_file())
				add_file();
			fixture_crash(&f, pool, SIM_KEEP_ALL);
		}
		writes_left = 0;
		sim_fail_device_writes(f.world, "d3", 0);
		sim_fail_device_writes(f.world, "d4", 0);
		each(5, 3, sim_kill_device);
		each(0, 3, sim_revive_device);
		if (!fixture_open(&f, &pool, &error)) {
			must_have_all_files();
			fixture_crash(&f, pool, SIM_KEEP_ALL);
		}
		each(5, 3, sim_revive_device);
	}
	assert_true(opened > 20);
	sim_image_free(image);
	fixture_free(&f);
}

/* As many as parity, which missed everything, are not the pool because the rest is one domain. */
static void few_that_are_left_are_not_believed(void **state)
{
	static const char *const domains[] = {"A", "B", "C", "C", "C", "C", "C", "C"};
	struct error error;

	fixture_make_domains(&f, 8, 2, 2, DEVICE_SIZE, JOURNAL_SIZE, 11, domains);
	begin_files(6);
	each(0, 2, sim_kill_device);
	add_files(3);
	fixture_crash(&f, pool, SIM_KEEP_ALL);
	each(0, 2, sim_revive_device);
	each(2, 6, sim_kill_device);
	assert_int_equal(fixture_open(&f, &pool, &error), -EIO);
	each(2, 6, sim_revive_device);
	open_pool();
	must_have_all_files();
	end();
}

/* --- the rule --------------------------------------------------------------------------------- */

static uint64_t from(unsigned first, unsigned count)
{
	return ((UINT64_C(1) << count) - 1) << first;
}

/* Of any two parts of the active devices at most one can go on without the other. */
static void two_parts_never_go_on_both(void **state)
{
	for (unsigned domains = 2; domains <= 4; domains++) {
		uint64_t all = from(0, domains * OF_DOMAIN);
		struct pool_summary summary;

		begin(domains, 8);
		assert_int_equal(pool_probe(f.engine, f.names[0], &summary), 0);
		for (uint64_t part = 1; part < all; part++) {
			bool one = losses_allowed(pool, all, all & ~part) &&
				   __builtin_popcountll(part) > (int)pool->m;
			bool other = losses_allowed(pool, all, part) &&
				     __builtin_popcountll(all & ~part) > (int)pool->m;

			assert_false(one && other);
			/* What went on without a part has not written to any of it. */
			assert_int_equal(pool_owner_is_shown(&summary, part),
				!losses_allowed(pool, all, part));
		}
		assert_int_equal(losses_allowed(pool, all, from(0, 3)), domains > 2);
		assert_int_equal(losses_most(pool), domains > 2 ? 3 : 2);
		assert_true(losses_allowed(pool, all, from(2, 2)));
		assert_false(losses_allowed(pool, all, from(1, 3)));
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_domain_in_turn),
		cmocka_unit_test(nothing_is_won_by_narrower_segments),
		cmocka_unit_test(a_domain_and_the_power),
		cmocka_unit_test(one_more_is_too_much),
		cmocka_unit_test(more_that_fail_in_several_domains_stop_it),
		cmocka_unit_test(neither_of_two),
		cmocka_unit_test(who_sees_one_domain_alone_acknowledges_nothing),
		cmocka_unit_test(who_sees_two_goes_on),
		cmocka_unit_test(two_domains_are_not_lost_by_one_opening),
		cmocka_unit_test(few_that_are_left_are_not_believed),
		cmocka_unit_test(two_parts_never_go_on_both),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
