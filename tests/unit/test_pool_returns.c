/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Devices that were missing, and are back. What they missed is not lost, whatever their labels say:
 * they may have claims, of epochs that nobody else knows of, whose openers died. */
#include "pool_hosts.h"

#define SECOND UINT64_C(1000000000)
#define ENOUGH 60 /* checkpoints after which nothing of an earlier root is left */

static struct host alpha, beta;

static void begin(void)
{
	make(1);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	beta.force = true;
	host_must_open(&alpha);
	host_must_set(&alpha, "first", "alpha");
	assert_int_equal(pool_checkpoint(alpha.pool), 0);
}

static void end(void)
{
	host_free(&alpha);
	host_free(&beta);
	fixture_free(&f);
}

static void host_close(struct host *h)
{
	assert_int_equal(pool_close(h->pool, &h->error), 0);
	h->pool = NULL;
}

static void work(struct host *h, unsigned checkpoints)
{
	char value[16];

	for (unsigned i = 1; i <= checkpoints; i++) {
		snprintf(value, sizeof(value), "%u", i);
		host_must_set(h, "count", value);
		assert_int_equal(pool_checkpoint(h->pool), 0);
	}
}

/* The opener dies when its claim is on these devices, and on no other. */
static void claim_reaches(struct host *h, unsigned first, unsigned count)
{
	for (unsigned i = 0; i < f.devices; i++)
		sim_delay(f.world, f.names[i], i - first < count ? 0 : SECOND);
	sim_cut_host_at(h->engine, count + 1);
	assert_int_not_equal(host_open(h), 0);
	host_kill(h);
	for (unsigned i = 0; i < f.devices; i++)
		sim_delay(f.world, f.names[i], 0);
}

static void kill_devices(unsigned first, unsigned count)
{
	for (unsigned i = first; i < first + count; i++)
		sim_kill_device(f.world, f.names[i]);
}

static void revive_devices(unsigned first, unsigned count)
{
	for (unsigned i = first; i < first + count; i++)
		sim_revive_device(f.world, f.names[i]);
}

/* --- claims that others do not know of -------------------------------------------------------- */

/* The owner without the device has the first claim's epoch; the other claims are of later ones. */
static void claims_and_an_owner_without_them(unsigned claims, bool closed, unsigned checkpoints)
{
	begin();
	if (closed)
		host_close(&alpha);
	host_kill(&alpha);
	for (unsigned i = 0; i < claims; i++)
		claim_reaches(&alpha, 0, 1);
	kill_devices(0, 1);
	host_must_open(&alpha);
	work(&alpha, checkpoints);
	host_must_set(&alpha, "second", "alpha");
	if (closed)
		host_close(&alpha);
	host_kill(&alpha);
	revive_devices(0, 1);
	host_must_open(&alpha);
	host_must_have(&alpha, "first", "alpha");
	host_must_have(&alpha, "second", "alpha");
	work(&alpha, 1);
	host_close(&alpha);
	host_must_open(&alpha);
	host_must_have(&alpha, "second", "alpha");
	end();
}

static void test_claims_on_one_device(void **state)
{
	for (unsigned claims = 1; claims <= 10; claims++) {
		for (unsigned closed = 0; closed < 2; closed++) {
			claims_and_an_owner_without_them(claims, closed, 0);
			claims_and_an_owner_without_them(claims, closed, 3);
			claims_and_an_owner_without_them(claims, closed, ENOUGH);
		}
	}
}

/* Two have the claims; of those that do not, as many are missing then: what is found is two of each
 * kind. */
static void test_claims_on_as_many_as_the_others(void **state)
{
	begin();
	host_kill(&alpha);
	for (unsigned i = 0; i < 3; i++)
		claim_reaches(&alpha, 0, 2);
	kill_devices(0, 2);
	host_must_open(&alpha);
	work(&alpha, ENOUGH);
	host_must_set(&alpha, "second", "alpha");
	host_kill(&alpha);
	revive_devices(0, 2);
	kill_devices(2, 2);
	host_must_open(&alpha);
	host_must_have(&alpha, "second", "alpha");
	revive_devices(2, 2);
	end();
}

/* beta's claim leaves out the place of an owner that may be alive. alpha, who knows that there is
 * none, takes an earlier epoch: one claim is enough. */
static void test_one_claim_of_a_later_epoch(void **state)
{
	begin();
	sim_pause(alpha.engine, true);
	for (uint64_t next = 0; next % LABEL_RING != alpha.pool->epoch;
		next = beta.pool->epoch + 1) {
		host_kill(&beta);
		host_must_open(&beta);
	}
	host_must_set(&beta, "second", "beta");
	host_kill(&beta);
	claim_reaches(&beta, 0, 1);
	host_kill(&alpha);
	sim_pause(alpha.engine, false);
	kill_devices(0, 1);
	alpha.owner_dead = alpha.force = true;
	host_must_open(&alpha);
	host_must_have(&alpha, "second", "beta");
	work(&alpha, ENOUGH);
	host_must_set(&alpha, "third", "alpha");
	host_kill(&alpha);
	revive_devices(0, 1);
	host_must_open(&alpha);
	host_must_have(&alpha, "third", "alpha");
	end();
}

/* It is beta's, and the pool was given back to nobody. */
static void test_a_claim_says_nothing_of_whose_the_pool_is(void **state)
{
	struct host gamma;

	begin();
	host_kill(&alpha);
	for (unsigned i = 0; i < 2; i++)
		claim_reaches(&beta, 0, 1);
	kill_devices(0, 1);
	assert_int_equal(host_assign(&alpha, NULL), 0);
	revive_devices(0, 1);
	gamma = host("gamma", 3);
	assert_int_equal(host_open(&gamma), -EBUSY);
	assert_non_null(strstr(gamma.error.message, "exported"));
	assert_int_equal(host_assign(&gamma, "gamma"), 0);
	host_must_open(&gamma);
	host_must_have(&gamma, "first", "alpha");
	host_free(&gamma);
	end();
}

/* What is shown of a pool that is not open comes from the devices one by one. */
static void test_a_claim_is_not_what_a_probe_believes(void **state)
{
	struct pool_summary old, new;

	begin();
	host_kill(&alpha);
	for (unsigned i = 0; i < 2; i++)
		claim_reaches(&alpha, 0, 1);
	kill_devices(0, 1);
	host_must_open(&alpha);
	host_close(&alpha);
	revive_devices(0, 1);
	assert_int_equal(pool_probe(f.engine, f.names[0], &old), 0);
	assert_int_equal(pool_probe(f.engine, f.names[1], &new), 0);
	assert_true(old.open);
	assert_true(old.epoch > new.epoch);
	assert_false(new.open);
	assert_true(old.version[0] < new.version[0]);
	end();
}

/* --- owners of such claims -------------------------------------------------------------------- */

static bool lists(const struct host *h, const char *name)
{
	const struct label *label = &h->pool->label;

	for (unsigned i = 0; i < label->other_count; i++)
		if (!strcmp(label->others[i].host, name))
			return true;
	return false;
}

/* beta may only have paused: its place among the labels stays its own. */
static void test_who_made_the_claim_may_be_alive(void **state)
{
	begin();
	host_kill(&alpha);
	for (unsigned i = 0; i < 2; i++)
		claim_reaches(&beta, 0, 1);
	kill_devices(0, 1);
	host_must_open(&alpha);
	work(&alpha, ENOUGH);
	host_close(&alpha);
	revive_devices(0, 1);
	host_must_open(&alpha);
	assert_true(lists(&alpha, "beta"));
	host_close(&alpha);
	host_must_open(&beta);
	assert_false(lists(&beta, "beta"));
	host_kill(&beta);
	alpha.force = alpha.owner_dead = true;
	host_must_open(&alpha);
	assert_int_equal(alpha.pool->label.other_count, 0);
	end();
}

/* --- at random -------------------------------------------------------------------------------- */

#define MANY 12
#define VALUE 16

/* The devices that are slow in one life, or missing in another: up to parity. */
struct few {
	unsigned count, device[2];
};

static unsigned chance(unsigned below)
{
	uint32_t drawn;

	engine_random(f.engine, &drawn, sizeof(drawn));
	return drawn % below;
}

static struct few draw_few(void)
{
	return (struct few){1 + chance(2), {chance(MANY), chance(MANY)}};
}

static void each_of(const struct few *few, void (*do_it)(struct sim_world *, const char *))
{
	for (unsigned i = 0; i < few->count; i++)
		do_it(f.world, f.names[few->device[i]]);
}

/* Others get what is written to them later. */
static void hurry(const struct few *few)
{
	for (unsigned i = 0; i < f.devices; i++)
		sim_delay(f.world, f.names[i], few ? SECOND : 0);
	for (unsigned i = 0; few && i < few->count; i++)
		sim_delay(f.world, f.names[few->device[i]], 0);
}

/* Dies in its opening, or soon behind it. */
static void live_shortly(struct host *h, const struct few *first)
{
	hurry(chance(4) ? first : NULL);
	sim_cut_host_at(h->engine, 2 + chance(chance(3) ? 2 : 40));
	host_open(h);
	hurry(NULL);
	host_kill(h);
}

static unsigned count_active(const struct host *h)
{
	unsigned count = 0;

	for (unsigned i = 0; i < f.devices; i++)
		count += h->pool->label.devices[i].state == DEVICE_ACTIVE;
	return count;
}

/* A ring that is full of what earlier owners may still write has room behind a checkpoint. */
static void set_turn(struct host *h, const char *value)
{
	int rc = host_set(h, "turn", value);

	if (rc == -ENOSPC) {
		assert_int_equal(pool_checkpoint(h->pool), 0);
		rc = host_set(h, "turn", value);
	}
	assert_int_equal(rc, 0);
}

/* How many devices are active in the end. */
static unsigned live(struct host *h, char *value, unsigned turn)
{
	unsigned active;

	host_must_have(h, "turn", value);
	snprintf(value, VALUE, "%u", turn);
	set_turn(h, value);
	work(h, chance(2) ? chance(ENOUGH) : 0);
	active = count_active(h);
	if (chance(2))
		host_close(h);
	return active;
}

/* All owners are dead when the next one opens. More than are missing now may have been missing
 * since what is read was written; with all devices it opens. */
static void lives_with_devices_missing(uint64_t seed)
{
	unsigned active = MANY;
	char value[VALUE] = "";
	struct few few = {0};

	fixture_make(&f, MANY, 4, 2, DEVICE_SIZE, seed);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	alpha.force = beta.force = true;
	for (unsigned turn = 0; active > 6; turn++) {
		struct host *h = chance(2) ? &alpha : &beta;
		bool miss = chance(2);

		h->owner_dead = chance(4);
		if (!chance(4))
			few = draw_few();
		if (chance(2)) {
			live_shortly(h, &few);
			continue;
		}
		if (miss)
			each_of(&few, sim_kill_device);
		if (!host_open(h))
			active = live(h, value, turn);
		else if (!miss)
			fail_msg("%s cannot open: %s", h->name, h->error.message);
		host_kill(h);
		each_of(&few, sim_revive_device);
	}
	end();
}

static void test_lives_with_devices_missing(void **state)
{
	for (uint64_t seed = 1; seed <= 40; seed++)
		lives_with_devices_missing(seed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_claims_on_one_device),
		cmocka_unit_test(test_claims_on_as_many_as_the_others),
		cmocka_unit_test(test_one_claim_of_a_later_epoch),
		cmocka_unit_test(test_a_claim_says_nothing_of_whose_the_pool_is),
		cmocka_unit_test(test_a_claim_is_not_what_a_probe_believes),
		cmocka_unit_test(test_who_made_the_claim_may_be_alive),
		cmocka_unit_test(test_lives_with_devices_missing),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
