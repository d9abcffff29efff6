/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * An owner that is replaced while it attaches a device, or resilvers it, and whose writes arrive
 * late: neither it nor what it still has on its way harms its successor.
 */
#include <stdlib.h>

#include "pool_hosts.h"

#define HOLDS UINT64_C(30000000000) /* ns between two checkpoints: what rests is free again */

static void make_two(struct host *alpha, struct host *beta, uint64_t seed)
{
	make(seed);
	*alpha = host("alpha", 1);
	*beta = host("beta", 2);
	beta->force = true;
	host_must_open(alpha);
}

static void drop(struct host *h, const char *name)
{
	sim_fail_device_writes(f.world, name, -EIO);
	host_set(h, "x", "1");
	pool_checkpoint(h->pool);
	pool_maintain(h->pool);
	sim_fail_device_writes(f.world, name, 0);
}

static void end(struct host *alpha, struct host *beta)
{
	host_free(alpha);
	host_free(beta);
	fixture_free(&f);
}

/* A claim need not be on devices that the owner before has dropped: these do not prove that there
 * is none when it attaches one. */
static void who_was_replaced_attaches_nothing(void **state)
{
	for (uint64_t seed = 1; seed <= 50; seed++) {
		struct host alpha, beta;
		struct error error = {0};

		make_two(&alpha, &beta, seed);
		drop(&alpha, "d3");
		sim_kill_device(f.world, "d0");
		sim_kill_device(f.world, "d1");
		host_must_open(&beta);
		host_must_set(&beta, "after", "beta");
		sim_revive_device(f.world, "d0");
		sim_revive_device(f.world, "d1");
		assert_int_not_equal(pool_attach(alpha.pool, "d3", &error), 0);
		assert_int_not_equal(host_set(&alpha, "stolen", "alpha"), 0);
		host_must_set(&beta, "later", "beta");
		end(&alpha, &beta);
	}
}

/* Its wipe arrives when its successor has a journal there: none has, before it is known to be dead.
 */
static bool cut_while_attaching(uint64_t n)
{
	struct host alpha, beta;
	struct error error = {0};
	bool cut;

	make_two(&alpha, &beta, 5);
	drop(&alpha, "d0");
	sim_cut_host_at(alpha.engine, n);
	pool_attach(alpha.pool, "d0", &error);
	cut = sim_power_was_cut(alpha.engine);
	pool_abandon(alpha.pool);
	alpha.pool = NULL;
	host_must_open(&beta);
	error_clear(&error);
	if (!member_usable(&beta.pool->devices[0])) {
		assert_int_equal(pool_attach(beta.pool, "d0", &error), -EBUSY);
		assert_non_null(strstr(error.message, "--owner-dead"));
	}
	assert_int_equal(pool_close(beta.pool, NULL), 0);
	host_must_open(&beta);
	host_must_set(&beta, "after", "acknowledged");
	while (sim_late_count(f.world))
		sim_release_late(f.world, 0);
	host_kill(&beta);
	sim_kill_device(f.world, "d1");
	sim_kill_device(f.world, "d2");
	host_must_open(&beta);
	host_must_have(&beta, "after", "acknowledged");
	end(&alpha, &beta);
	return cut;
}

static void what_is_wiped_late_is_nobodys(void **state)
{
	for (uint64_t n = 1; n < 60 && cut_while_attaching(n); n++)
		;
}

static void change_and_checkpoint(struct host *h, unsigned times)
{
	for (unsigned i = 0; i < times; i++) {
		char value[16];

		snprintf(value, sizeof(value), "%u", i);
		host_must_set(h, "count", value);
		assert_int_equal(pool_checkpoint(h->pool), 0);
		pool_maintain(h->pool);
		engine_sleep(h->engine, HOLDS);
	}
}

/* All that stands in its slots is bad. */
static void spoil(struct host *h, unsigned device)
{
	static uint8_t junk[BLOCK_SIZE] = {1, 2, 3};
	const struct member *m = &h->pool->devices[device];

	for (uint64_t at = m->slots_offset; at + BLOCK_SIZE <= m->header.label_b_offset;
		at += BLOCK_SIZE)
		sim_medium_write(f.world, f.names[device], at, junk, sizeof(junk));
}

/* What it was mending arrives when its slots could be others': they are not. */
static bool cut_while_resilvering(uint64_t n)
{
	struct pool_resilver_report report;
	struct pool_check_report check;
	struct host alpha, beta;
	struct error error = {0};
	bool cut;

	make_two(&alpha, &beta, 5);
	drop(&alpha, "d0");
	assert_int_equal(pool_attach(alpha.pool, "d0", &error), 0);
	change_and_checkpoint(&alpha, 3);
	host_kill(&alpha);
	host_must_open(&alpha);
	spoil(&alpha, 0);
	sim_cut_host_at(alpha.engine, n);
	pool_resilver(alpha.pool, &report, NULL, NULL, &error);
	cut = sim_power_was_cut(alpha.engine);
	pool_abandon(alpha.pool);
	alpha.pool = NULL;
	host_must_open(&beta);
	change_and_checkpoint(&beta, 60);
	error_clear(&error);
	if (cut)
		assert_int_equal(pool_resilver(beta.pool, &report, NULL, NULL, &error), -EBUSY);
	while (sim_late_count(f.world))
		sim_release_late(f.world, 0);
	error_clear(&error);
	assert_int_equal(pool_check(beta.pool, false, &check, NULL, NULL, &error), 0);
	assert_int_equal(check.bad_blocks, 0);
	pool_abandon(beta.pool);
	beta.pool = NULL;
	beta.owner_dead = true;
	host_must_open(&beta);
	error_clear(&error);
	assert_int_equal(pool_resilver(beta.pool, &report, NULL, NULL, &error), 0);
	assert_true(report.whole);
	assert_int_equal(pool_check(beta.pool, false, &check, NULL, NULL, &error), 0);
	assert_int_equal(check.bad_blocks, 0);
	end(&alpha, &beta);
	return cut;
}

static void what_is_mended_late_is_in_its_place(void **state)
{
	for (uint64_t n = 1; n < 60 && cut_while_resilvering(n); n++)
		;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_was_replaced_attaches_nothing),
		cmocka_unit_test(what_is_wiped_late_is_nobodys),
		cmocka_unit_test(what_is_mended_late_is_in_its_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
