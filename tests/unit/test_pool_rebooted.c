/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Devices that come back behind a failover: the owner before is let go, as its host runs under
 * another boot, while the pool is open; also with the power cut at each step. And devices that come
 * back again and again.
 */
#include <stdlib.h>

#include "device/engine.h"
#include "failing_malloc.h"
#include "pool/read.h"
#include "pool_files.h"

#define DEVICE_SIZE (3u << 20)
#define SECOND UINT64_C(1000000000)

static const uint8_t first_boot[16] = {1}, second_boot[16] = {2};

/* As a host, by force. */
static int take(struct engine *engine, const char *host, const uint8_t boot[16])
{
	struct pool_open_options options = {.paths = f.paths,
		.path_count = f.devices,
		.name = "tank",
		.host = host,
		.force = true,
		.metadata_limit = 16u << 20};
	struct error error = {0};
	int rc;

	memcpy(options.boot_id, boot, sizeof(options.boot_id));
	rc = pool_open(engine, &options, &pool, &error);
	if (rc)
		fail_msg("%s cannot open: %s", host, error.message);
	return rc ? rc : stream_open(pool, volume, &stream);
}

static struct engine *make_host(void)
{
	struct engine *engine;

	assert_int_equal(sim_engine_create(f.world, &engine), 0);
	return engine;
}

/* The host that has the pool dies. */
static void die(struct engine *engine)
{
	sim_cut_host(engine);
	pool_abandon(pool);
	sim_drain(f.world);
	sim_drop_late(f.world);
	engine_destroy(engine);
}

/* Device 3 is missing when the pool is opened, and is there again then. */
static void take_without_one(struct engine *engine, const char *host, const uint8_t boot[16])
{
	sim_kill_device(f.world, "d3");
	assert_int_equal(take(engine, host, boot), 0);
	sim_revive_device(f.world, "d3");
}

/* Alpha has had it under `boot`, with segments open, and beta has it. */
static void fail_over(uint64_t seed, const uint8_t boot[16])
{
	struct engine *alpha;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, seed);
	begin_files(2);
	assert_int_equal(pool_close(pool, NULL), 0);
	alpha = make_host();
	assert_int_equal(take(alpha, "alpha", boot), 0);
	add_files(6);
	die(alpha);
	take_without_one(f.engine, "beta", first_boot);
	add_files(4);
}

static int rebooted(const char *host, const uint8_t boot[16])
{
	struct error error = {0};

	return pool_rebooted(pool, host, boot, &error);
}

static int attach(void)
{
	struct error error = {0};

	return pool_attach(pool, "d3", &error);
}

static void all_become_whole(void)
{
	become_whole();
	assert_int_equal(pool_not_whole(pool), 0);
}

static unsigned frozen(void)
{
	struct segment **list;
	unsigned count, found = 0;

	assert_int_equal(segment_list(pool, &list, &count), 0);
	for (unsigned i = 0; i < count; i++) {
		found += atomic_load(&list[i]->frozen);
		segment_put(list[i]);
	}
	free(list);
	return found;
}

static void must_find_nothing_wrong(void)
{
	struct pool_check_report report;
	struct error error = {0};

	assert_int_equal(pool_check(pool, false, &report, NULL, NULL, &error), 0);
	assert_int_equal(report.bad_blocks, 0);
	assert_int_equal(report.missing_chunks, 0);
	must_have_all_files();
}

/* The pool has crashed. */
static void must_survive_any_two(void)
{
	for (unsigned i = 0; i < f.devices; i++) {
		for (unsigned j = i + 1; j < f.devices; j++) {
			sim_kill_device(f.world, f.names[i]);
			sim_kill_device(f.world, f.names[j]);
			open_to_look();
			must_have_all_files();
			pool_abandon(pool);
			sim_revive_device(f.world, f.names[i]);
			sim_revive_device(f.world, f.names[j]);
		}
	}
}

/* --- who is let go ---------------------------------------------------------------------------- */

static void an_owner_of_another_boot(void **state)
{
	struct pool_status *status = malloc(sizeof(*status));

	fail_over(1, first_boot);
	assert_true(frozen() > 0);
	assert_int_equal(attach(), -EBUSY);
	assert_int_equal(rebooted("alpha", second_boot), 0);
	pool_status(pool, status);
	assert_string_equal(status->other_owners, "");
	assert_int_equal(attach(), 0);
	all_become_whole();
	assert_int_equal(frozen(), 0);
	must_find_nothing_wrong();
	add_files(4);
	fixture_crash(&f, pool, SIM_RANDOM);
	must_survive_any_two();
	fixture_free(&f);
	free(status);
}

static void must_be_refused(void)
{
	struct pool_resilver_report report;

	assert_int_equal(attach(), -EBUSY);
	assert_int_equal(resilver(&report), -EBUSY);
	assert_true(frozen() > 0);
}

static void not_of_the_same_boot_or_another_host(void **state)
{
	fail_over(2, first_boot);
	assert_int_equal(rebooted("alpha", first_boot), 0);
	must_be_refused();
	assert_int_equal(rebooted("beta", second_boot), 0);
	must_be_refused();
	must_have_all_files();
	end();
}

static void not_of_a_boot_that_no_label_tells(void **state)
{
	static const uint8_t unknown[16];

	fail_over(3, unknown);
	assert_int_equal(rebooted("alpha", second_boot), 0);
	must_be_refused();
	end();
}

static int gone(const char *host)
{
	struct error error = {0};

	return pool_host_gone(pool, host, &error);
}

/* Whatever boot it ran under. */
static void a_host_that_is_gone(void **state)
{
	static const uint8_t unknown[16];
	const uint8_t *boots[] = {first_boot, unknown};

	for (unsigned i = 0; i < 2; i++) {
		fail_over(12 + i, boots[i]);
		assert_int_equal(gone("alph"), 0);
		assert_int_equal(gone("beta"), 0);
		must_be_refused();
		assert_int_equal(gone("alpha"), 0);
		assert_int_equal(pool->label.other_count, 0);
		assert_int_equal(attach(), 0);
		all_become_whole();
		assert_int_equal(frozen(), 0);
		must_find_nothing_wrong();
		end();
	}
}

/* What it found stays refused for the one that is left, whoever was first. */
static void one_of_two(void **state)
{
	static const char *const names[] = {"alpha", "beta", "alpha"};

	for (unsigned first = 0; first < 2; first++) {
		const char *gone = "alpha", *left = "beta";
		struct error error = {0};

		fixture_make_with(&f, 6, 4, 2, 4 * DEVICE_SIZE, 2u << 20, 4 + first);
		begin_files(2);
		assert_int_equal(pool_close(pool, NULL), 0);
		for (unsigned i = first; i < first + 2; i++) {
			struct engine *engine = make_host();

			assert_int_equal(take(engine, names[i], first_boot), 0);
			add_files(3);
			die(engine);
		}
		take_without_one(f.engine, "gamma", first_boot);
		add_files(2);
		assert_int_equal(pool->label.other_count, 2);
		assert_int_equal(rebooted(gone, second_boot), 0);
		assert_int_equal(pool->label.other_count, 1);
		assert_int_equal(atomic_load(&pool->living_epoch), pool->label.others[0].epoch);
		assert_int_equal(pool_attach(pool, "d3", &error), -EBUSY);
		assert_non_null(strstr(error.message, left));
		assert_null(strstr(error.message, gone));
		add_files(2);
		must_have_all_files();
		assert_int_equal(rebooted(left, second_boot), 0);
		assert_int_equal(attach(), 0);
		all_become_whole();
		assert_int_equal(frozen(), 0);
		must_find_nothing_wrong();
		end();
	}
}

/* Where the label cannot be written. */
static void nobody(void **state)
{
	fail_over(6, first_boot);
	for (unsigned i = 0; i < 5; i++)
		sim_fail_device_writes(f.world, f.names[i], -EIO);
	assert_int_equal(rebooted("alpha", second_boot), -EIO);
	assert_int_equal(pool->label.other_count, 1);
	assert_true(atomic_load(&pool->living_epoch) > 0);
	end();
}

/* Nothing is kept for it that no later try would free. */
static void all_or_nobody_where_memory_runs_out(void **state)
{
	bool failed = true;

	if (!COUNTS_ALLOCATIONS)
		skip();
	for (uint64_t n = 1; failed; n++) {
		fail_over(11, first_boot);
		fail_allocation = n;
		rebooted("alpha", second_boot);
		failed = !fail_allocation;
		fail_allocation = 0;
		assert_int_equal(rebooted("alpha", second_boot), 0);
		assert_int_equal(pool->label.other_count, 0);
		assert_int_equal(pool_maintain(pool), 0);
		assert_int_equal(frozen(), 0);
		must_have_all_files();
		end();
	}
}

/* --- the power is cut ------------------------------------------------------------------------- */

static bool let_go_and_attach(void)
{
	struct pool_resilver_report report;

	return !rebooted("alpha", second_boot) && !attach() && !resilver(&report) && report.whole;
}

/* Whatever the label says of alpha then, it is let go, and the device is made whole. True when it
 * lists alpha. */
static bool must_go_on(void)
{
	bool listed;

	assert_int_equal(take(f.engine, "beta", second_boot), 0);
	listed = pool->label.other_count;
	must_have_all_files();
	add_files(1);
	assert_true(let_go_and_attach());
	assert_int_equal(frozen(), 0);
	must_find_nothing_wrong();
	fixture_crash(&f, pool, SIM_RANDOM);
	must_survive_any_two();
	return listed;
}

static void cut_everywhere(const struct sim_image *image, enum sim_policy policy)
{
	unsigned before = files, listed = 0, n = 1;
	bool cut = true;

	for (; cut; n++) {
		files = before;
		assert_int_equal(sim_restore(f.world, image), 0);
		sim_seed(f.world, n);
		assert_int_equal(take(f.engine, "beta", second_boot), 0);
		sim_cut_power_at(f.engine, n);
		let_go_and_attach();
		cut = sim_power_was_cut(f.engine);
		fixture_crash(&f, pool, policy);
		listed += must_go_on();
	}
	assert_true(policy == SIM_RANDOM || listed > 0);
	assert_true(listed < n - 1);
	files = before;
}

static void with_power_cuts(void **state)
{
	struct sim_image *image = NULL;

	fail_over(7, first_boot);
	fixture_crash(&f, pool, SIM_KEEP_ALL);
	assert_int_equal(sim_save(f.world, &image), 0);
	cut_everywhere(image, SIM_RANDOM);
	cut_everywhere(image, SIM_LOSE_ALL);
	sim_image_free(image);
	fixture_free(&f);
}

/* Beta is replaced while it lets alpha go, or makes the device whole, and its writes arrive late.
 */
static bool cut_and_replaced(const struct sim_image *image, unsigned n)
{
	struct engine *gamma;
	bool cut;

	assert_int_equal(sim_restore(f.world, image), 0);
	sim_seed(f.world, n);
	assert_int_equal(take(f.engine, "beta", second_boot), 0);
	sim_cut_host_at(f.engine, n);
	let_go_and_attach();
	cut = sim_power_was_cut(f.engine);
	pool_abandon(pool);
	gamma = make_host();
	assert_int_equal(take(gamma, "gamma", first_boot), 0);
	add_files(1);
	while (sim_late_count(f.world))
		sim_release_late(f.world, 0);
	must_have_all_files();
	add_files(1);
	assert_int_equal(rebooted("beta", first_boot), 0);
	assert_true(let_go_and_attach());
	must_find_nothing_wrong();
	fixture_crash(&f, pool, SIM_RANDOM);
	engine_destroy(gamma);
	must_survive_any_two();
	return cut;
}

static void by_one_who_is_replaced(void **state)
{
	struct sim_image *image = NULL;
	unsigned before, n = 1;

	fail_over(10, first_boot);
	fixture_crash(&f, pool, SIM_KEEP_ALL);
	assert_int_equal(sim_save(f.world, &image), 0);
	before = files;
	while (cut_and_replaced(image, n++))
		files = before;
	sim_image_free(image);
	fixture_free(&f);
}

/* --- again and again -------------------------------------------------------------------------- */

static void lose_it(void)
{
	sim_fail_device_writes(f.world, "d3", -EIO);
	add_files(1);
	sim_fail_device_writes(f.world, "d3", 0);
	assert_int_equal(pool_not_whole(pool), 1);
}

static int come_back(void)
{
	struct error error = {0};

	return pool_attach_returned(pool, "d3", &error);
}

static void one_that_comes_and_goes_waits_longer_each_time(void **state)
{
	static const unsigned minutes[] = {1, 2, 4, 8, 16, 32, 60, 60};

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 8);
	begin_files(2);
	lose_it();
	assert_int_equal(come_back(), 0);
	for (unsigned i = 0; i < sizeof(minutes) / sizeof(minutes[0]); i++) {
		lose_it();
		assert_int_equal(come_back(), -EBUSY);
		engine_sleep(f.engine, (minutes[i] * 60 - 1) * SECOND);
		assert_int_equal(come_back(), -EBUSY);
		engine_sleep(f.engine, SECOND);
		assert_int_equal(come_back(), 0);
	}
	lose_it();
	assert_int_equal(come_back(), -EBUSY);
	assert_int_equal(attach(), 0); /* by somebody who has looked at it */
	lose_it();
	assert_int_equal(come_back(), 0);
	all_become_whole();
	must_find_nothing_wrong();
	end();
}

/* It is there, and takes no writes. */
static void one_that_fails_at_once_waits_too(void **state)
{
	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 9);
	begin_files(2);
	lose_it();
	sim_fail_device_writes(f.world, "d3", -EIO);
	assert_int_equal(come_back(), -EIO);
	sim_fail_device_writes(f.world, "d3", 0);
	assert_int_equal(come_back(), -EBUSY);
	engine_sleep(f.engine, 60 * SECOND);
	assert_int_equal(come_back(), 0);
	all_become_whole();
	end();
}

/* A closed segment of data, and which of its chunks device 3 has. */
static struct segment *one_on_d3(unsigned *chunk)
{
	struct segment **list, *found = NULL;
	unsigned count;

	assert_int_equal(segment_list(pool, &list, &count), 0);
	for (unsigned i = 0; i < count; i++) {
		struct segment *s = list[i];

		for (unsigned c = 0; !found && s->row.state == SEGMENT_CLOSED &&
				     s->row.purpose == PURPOSE_DATA && c < segment_width(s);
			c++) {
			if (s->row.chunks[c].device != 3)
				continue;
			found = s;
			*chunk = c;
		}
		if (found != s)
			segment_put(s);
	}
	free(list);
	assert_non_null(found);
	return found;
}

/* A block of it and those that it could be rebuilt from rot, but as many as that takes less one. */
static void lose_a_block(void)
{
	unsigned chunk = 0;
	struct segment *s = one_on_d3(&chunk);

	sim_settle(f.world);
	for (unsigned i = 0; i < 3; i++) {
		unsigned c = (chunk + i) % segment_width(s);

		sim_rot(f.world, f.names[s->row.chunks[c].device],
			segment_block_offset(pool, s, c, 0), BLOCK_SIZE, 1 + i);
	}
	segment_put(s);
}

static int resilver_again(struct pool_resilver_report *report)
{
	struct error error = {0};

	return pool_resilver_returned(pool, report, NULL, NULL, &error);
}

static void what_cannot_be_made_whole_is_not_read_all_the_time(void **state)
{
	static const unsigned minutes[] = {1, 2, 4};
	struct pool_resilver_report report;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 12);
	begin_files(6);
	lose_it();
	lose_a_block();
	assert_int_equal(come_back(), 0);
	for (unsigned i = 0; i < sizeof(minutes) / sizeof(minutes[0]); i++) {
		assert_int_equal(resilver_again(&report), 0);
		assert_true(report.blocks > 0 && report.lost_blocks > 0 && !report.whole);
		assert_int_equal(resilver_again(&report), -EBUSY);
		engine_sleep(f.engine, (minutes[i] * 60 - 1) * SECOND);
		assert_int_equal(resilver_again(&report), -EBUSY);
		engine_sleep(f.engine, SECOND);
	}
	assert_int_equal(resilver_again(&report), 0);
	assert_int_equal(resilver_again(&report), -EBUSY);
	assert_int_equal(resilver(&report), 0); /* by an admin */
	assert_int_equal(resilver_again(&report), 0);
	assert_int_equal(resilver_again(&report), -EBUSY);
	sim_fail_device_writes(f.world, "d5", -EIO);
	add_files(1);
	sim_fail_device_writes(f.world, "d5", 0);
	assert_int_equal(pool_attach_returned(pool, "d5", NULL), 0);
	assert_int_equal(resilver_again(&report), 0); /* that one may have had it */
	assert_int_equal(report.devices, 2);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_owner_of_another_boot),
		cmocka_unit_test(not_of_the_same_boot_or_another_host),
		cmocka_unit_test(not_of_a_boot_that_no_label_tells),
		cmocka_unit_test(a_host_that_is_gone),
		cmocka_unit_test(one_of_two),
		cmocka_unit_test(nobody),
		cmocka_unit_test(all_or_nobody_where_memory_runs_out),
		cmocka_unit_test(with_power_cuts),
		cmocka_unit_test(by_one_who_is_replaced),
		cmocka_unit_test(one_that_comes_and_goes_waits_longer_each_time),
		cmocka_unit_test(one_that_fails_at_once_waits_too),
		cmocka_unit_test(what_cannot_be_made_whole_is_not_read_all_the_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
