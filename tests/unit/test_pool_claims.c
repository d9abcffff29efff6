/* SPDX-License-Identifier: LGPL-3.0-or-later. Claims, and owners that do not see them. links: pool
 */
/* alpha has the pool and pauses, beta takes it by force: whatever becomes of beta's claims, alpha
 * acknowledges nothing that beta does not have, and changes nothing that beta has written. */
#include "pool_hosts.h"

#include "device/engine.h"
#include "pool/label.h"

static struct host alpha, beta;

static void begin(uint64_t seed)
{
	make(seed);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	beta.force = true;
	host_must_open(&alpha);
	host_must_set(&alpha, "first", "alpha");
	sim_pause(alpha.engine, true);
}

static void end(void)
{
	host_free(&alpha);
	host_free(&beta);
	fixture_free(&f);
}

/* beta dies at its n-th write and opens again, under another epoch. */
static void beta_opens_at_the_second_try(uint64_t n)
{
	sim_cut_host_at(beta.engine, n);
	host_open(&beta);
	host_kill(&beta);
	host_must_open(&beta);
	host_must_set(&beta, "second", "beta");
}

static void beta_has_all_it_wrote(void)
{
	host_kill(&alpha);
	host_kill(&beta);
	host_must_open(&beta);
	host_must_have(&beta, "first", "alpha");
	host_must_have(&beta, "second", "beta");
}

/* The next claim goes to another place of the label areas. */
static void test_a_claim_that_reached_few_devices(void **state)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		begin(seed);
		beta_opens_at_the_second_try(2 + seed % 14);
		sim_pause(alpha.engine, false);
		assert_int_equal(host_set(&alpha, "late", "alpha"), -ESTALE);
		beta_has_all_it_wrote();
		end();
	}
}

/* Any of those that have the first claim may be the one that dies. */
static void test_a_claim_on_devices_that_die(void **state)
{
	for (unsigned i = 0; i < 12; i++) {
		begin(1 + i);
		beta_opens_at_the_second_try(2 + i / 6);
		sim_kill_device(f.world, f.names[i % 6]);
		sim_pause(alpha.engine, false);
		assert_int_not_equal(host_set(&alpha, "late", "alpha"), 0);
		beta_has_all_it_wrote();
		end();
	}
}

/* A claim may be missing on as many members as may be lost: fewer answers than all others prove
 * nothing. Here two did not take part, and one of the others cannot be read. */
static void test_too_few_answers(void **state)
{
	for (uint64_t n = 1; n < 12; n++) {
		begin(n);
		for (unsigned i = 0; i < 4; i++)
			f.paths[i] = f.names[i + 2];
		f.devices = 4;
		host_must_open(&beta);
		sim_pause(alpha.engine, false);
		sim_fail_nth(alpha.engine, n, -EIO);
		assert_int_not_equal(host_set(&alpha, "late", "alpha"), 0);
		host_must_set(&beta, "second", "beta");
		beta_has_all_it_wrote();
		end();
	}
}

/* Of m + 1 devices each has to answer. What cannot be read in one area of labels stands in the
 * other one too, and shows a claim as well. */
static void test_labels_that_cannot_be_read(void **state)
{
	make(1);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	beta.force = true;
	for (f.devices = 6; f.devices > 3; f.devices -= f.devices == 6 ? 2 : 1) {
		host_must_open(&alpha);
		host_kill(&alpha);
	}
	host_must_open(&alpha);
	for (unsigned i = 0; i < 3; i++)
		sim_fail_range(f.world, f.names[i], LABEL_A_OFFSET + i * LABEL_SIZE, 512);
	host_must_set(&alpha, "first", "alpha");
	sim_pause(alpha.engine, true);
	host_must_open(&beta);
	host_must_set(&beta, "second", "beta");
	sim_pause(alpha.engine, false);
	assert_int_equal(host_set(&alpha, "late", "alpha"), -ESTALE);
	beta_has_all_it_wrote();
	end();
}

static void alpha_has_just_looked(void *data)
{
	for (unsigned i = 0; i < alpha.pool->device_count; i++)
		atomic_store(&alpha.pool->devices[i].looked, engine_clock(alpha.engine));
	sim_watch_writes(beta.engine, NULL, NULL);
}

/* alpha's lease began right before the first claim, and the claim's opener did not wait for its
 * end. */
static void test_a_second_attempt_waits_too(void **state)
{
	uint64_t before;

	begin(7);
	sim_watch_writes(beta.engine, alpha_has_just_looked, NULL);
	sim_cut_host_at(beta.engine, 13);
	assert_int_not_equal(host_open(&beta), 0);
	host_kill(&beta);
	before = engine_clock(beta.engine);
	host_must_open(&beta);
	assert_true(engine_clock(beta.engine) - before >= LEASE_NS);
	sim_pause(alpha.engine, false);
	assert_int_equal(host_set(&alpha, "late", "alpha"), -ESTALE);
	host_must_set(&beta, "second", "beta");
	beta_has_all_it_wrote();
	end();
}

/* alpha paused right before it writes its labels; a ring of epochs later they must not lie where
 * beta's are. */
static void test_labels_of_an_owner_that_wakes_up(void **state)
{
	char value[16];

	for (unsigned lives = 6; lives < 10; lives++) {
		begin(lives);
		for (unsigned i = 0; i < lives; i++) {
			host_must_open(&beta);
			assert_int_equal(pool_close(beta.pool, &beta.error), 0);
		}
		host_must_open(&beta);
		for (unsigned i = 0; i < 400; i++) {
			snprintf(value, sizeof(value), "%u", i);
			host_must_set(&beta, "count", value);
			if (i % 50 == 49)
				assert_int_equal(pool_checkpoint(beta.pool), 0);
		}
		host_must_set(&beta, "second", "beta");
		sim_pause(alpha.engine, false);
		label_write(alpha.pool);
		assert_int_equal(host_set(&alpha, "late", "alpha"), -ESTALE);
		beta_has_all_it_wrote();
		host_must_have(&beta, "count", value);
		end();
	}
}

/* --- who stands still between its look and its claim ------------------------------------------ */

static struct {
	const struct engine_ops *real;
	bool done;
} stand_still;

static void a_life_of_beta(void)
{
	host_must_open(&beta);
	for (unsigned i = 0; i < 60; i++) {
		char value[16];

		snprintf(value, sizeof(value), "%u", i);
		host_must_set(&beta, "second", value);
		assert_int_equal(pool_checkpoint(beta.pool), 0);
		pool_maintain(beta.pool);
	}
	host_must_set(&beta, "second", "beta");
	assert_int_equal(pool_close(beta.pool, NULL), 0);
	beta.pool = NULL;
}

static void submit(struct engine *engine, struct io **ios, unsigned count)
{
	const struct io *io = ios[0];

	if (!stand_still.done && io->op == IO_WRITE && io->offset >= LABEL_A_OFFSET &&
		io->offset < LABEL_A_OFFSET + LABEL_AREA) {
		stand_still.done = true;
		a_life_of_beta();
	}
	stand_still.real->submit(engine, ios, count);
}

/* beta opens the pool, works and closes it meanwhile, under the epoch that alpha claims then. */
static void test_a_claim_that_comes_much_later(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++) {
		struct engine_ops watched;

		make(seed);
		alpha = host("alpha", 1);
		beta = host("beta", 2);
		beta.force = true;
		host_must_open(&alpha);
		host_must_set(&alpha, "first", "alpha");
		assert_int_equal(pool_close(alpha.pool, NULL), 0);
		stand_still.real = alpha.engine->ops;
		stand_still.done = false;
		watched = *stand_still.real;
		watched.submit = submit;
		alpha.engine->ops = &watched;
		assert_int_equal(host_open(&alpha), -EBUSY);
		alpha.engine->ops = stand_still.real;
		assert_true(stand_still.done);
		alpha.pool = NULL;
		beta_has_all_it_wrote();
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_claim_that_comes_much_later),
		cmocka_unit_test(test_a_claim_that_reached_few_devices),
		cmocka_unit_test(test_a_claim_on_devices_that_die),
		cmocka_unit_test(test_too_few_answers),
		cmocka_unit_test(test_a_second_attempt_waits_too),
		cmocka_unit_test(test_labels_that_cannot_be_read),
		cmocka_unit_test(test_labels_of_an_owner_that_wakes_up),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
