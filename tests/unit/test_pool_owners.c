/* SPDX-License-Identifier: LGPL-3.0-or-later. A pool that changes hands. links: pool */
/* Nothing that the owner before or the one after acknowledged is lost, whoever of them pauses. */
#include "pool_hosts.h"

/* --- in the middle of an opening -------------------------------------------------------------- */

/* What another host does when an opening logs this; once. */
static struct {
	const char *line;
	void (*act)(struct host *h);
	struct host *host;
} meanwhile;

static void on_line(enum log_level level, const char *line)
{
	if (!meanwhile.line || !strstr(line, meanwhile.line))
		return;
	meanwhile.line = NULL;
	meanwhile.act(meanwhile.host);
}

static int open_and_meanwhile(
	struct host *h, const char *line, void (*act)(struct host *h), struct host *other)
{
	int rc;

	meanwhile.line = line;
	meanwhile.act = act;
	meanwhile.host = other;
	log_set_sink(on_line);
	rc = host_open(h);
	log_set_sink(quiet);
	assert_null(meanwhile.line);
	return rc;
}

/* Roots come and go, and the journal's ring goes round. */
static void work_and_pause(struct host *h)
{
	char value[16];

	for (int i = 0; i < 100; i++) {
		snprintf(value, sizeof(value), "%d", i);
		host_must_set(h, "count", value);
		assert_int_equal(pool_checkpoint(h->pool), 0);
	}
	sim_pause(h->engine, true);
}

static void test_what_the_owner_wrote_before_the_claim_counts(void **state)
{
	struct host alpha, beta;

	make(1);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	beta.force = true;
	host_must_open(&alpha);
	assert_int_equal(
		open_and_meanwhile(&beta, "waiting 10 s for a sign", work_and_pause, &alpha),
		-EBUSY);
	assert_non_null(strstr(beta.error.message, "alpha"));
	host_must_open(&beta);
	host_must_have(&beta, "count", "99");
	host_free(&alpha);
	host_free(&beta);
	fixture_free(&f);
}

/* Fencing ends a host some time: what it had on its way may still arrive, and it may still run. */
static void test_a_fenced_owner_is_not_waited_for_and_may_wake_up(void **state)
{
	struct host alpha, beta;
	uint64_t began;

	make(4);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	beta.force = beta.fenced = true;
	host_must_open(&alpha);
	work_and_pause(&alpha);
	began = engine_clock(beta.engine);
	host_must_open(&beta);
	assert_true(engine_clock(beta.engine) - began < UINT64_C(10000000000));
	host_must_have(&beta, "count", "99");
	host_must_set(&beta, "after", "acknowledged");
	sim_pause(alpha.engine, false);
	assert_true(host_set(&alpha, "count", "stolen"));
	assert_int_equal(pool_failure(alpha.pool), -ESTALE);
	host_must_set(&beta, "later", "acknowledged");
	host_kill(&beta);
	beta.fenced = false;
	host_must_open(&beta);
	host_must_have(&beta, "count", "99");
	host_must_have(&beta, "after", "acknowledged");
	host_must_have(&beta, "later", "acknowledged");
	host_free(&alpha);
	host_free(&beta);
	fixture_free(&f);
}

static void take_it(struct host *h)
{
	host_must_open(h);
	host_must_set(h, "during", "acknowledged");
}

static void test_an_opening_that_was_overtaken_writes_nothing(void **state)
{
	struct host alpha, beta, gamma;

	make(2);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	gamma = host("gamma", 3);
	beta.force = gamma.force = true;
	host_must_open(&alpha);
	host_kill(&alpha);
	sim_kill_device(f.world, "d5");
	assert_int_equal(
		open_and_meanwhile(&beta, "missing and dropped", take_it, &gamma), -ESTALE);
	host_must_set(&gamma, "after", "acknowledged");
	host_kill(&gamma);
	host_must_open(&gamma);
	host_must_have(&gamma, "during", "acknowledged");
	host_must_have(&gamma, "after", "acknowledged");
	host_free(&alpha);
	host_free(&beta);
	host_free(&gamma);
	fixture_free(&f);
}

/* --- who is known to be dead ------------------------------------------------------------------ */

/* A process that dies in its opening leaves its label behind, and an owner before it that only
 * paused. False when the opening had fewer writes and flushes. */
static bool an_opening_dies(uint64_t at)
{
	struct host alpha, beta;
	bool died;

	make(at);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	beta.force = true;
	host_must_open(&alpha);
	host_must_set(&alpha, "first", "alpha");
	sim_pause(alpha.engine, true);
	sim_cut_host_at(beta.engine, at);
	died = host_open(&beta);
	host_kill(&beta);
	host_must_open(&beta);
	host_must_set(&beta, "second", "beta");
	sim_pause(alpha.engine, false);
	for (int i = 0; i < 3; i++)
		host_set(&alpha, "late", "alpha");
	host_kill(&alpha);
	host_must_have(&beta, "first", "alpha");
	host_kill(&beta);
	host_must_open(&beta);
	host_must_have(&beta, "second", "beta");
	host_must_have(&beta, "late", "");
	host_free(&alpha);
	host_free(&beta);
	fixture_free(&f);
	return died;
}

static void test_the_owner_before_a_claim_may_be_alive(void **state)
{
	uint64_t at = 1;

	while (an_opening_dies(at))
		at++;
	assert_true(at > 4 * FIXTURE_DEVICES);
}

/* What a host does between taking the pool by force and being killed. */
enum life { KILLED_AT_ONCE, WITH_A_CHECKPOINT, CLOSED_AND_OPENED };

static void live(struct host *h, enum life life)
{
	struct error error;

	if (life == WITH_A_CHECKPOINT)
		assert_int_equal(pool_checkpoint(h->pool), 0);
	if (life == CLOSED_AND_OPENED) {
		assert_int_equal(pool_close(h->pool, &error), 0);
		host_must_open(h);
	}
}

/* Hosts that take the pool from each other by force, again and again, and come back. */
static void take_turns(unsigned hosts, enum life life)
{
	static const char *const names[] = {"alpha", "beta", "gamma"};
	struct host h[3];
	char value[16] = "";

	make(hosts);
	for (unsigned i = 0; i < hosts; i++) {
		h[i] = host(names[i], (uint8_t)i);
		h[i].force = true;
	}
	for (unsigned i = 0; i < 150; i++) {
		struct host *now = &h[i % hosts];

		host_must_open(now);
		host_must_have(now, "turn", value);
		snprintf(value, sizeof(value), "%u", i);
		host_must_set(now, "turn", value);
		live(now, life);
		host_kill(now);
	}
	for (unsigned i = 0; i < hosts; i++)
		host_free(&h[i]);
	fixture_free(&f);
}

static void test_hosts_may_take_turns_by_force(void **state)
{
	for (enum life life = KILLED_AT_ONCE; life <= CLOSED_AND_OPENED; life++) {
		take_turns(2, life);
		take_turns(3, life);
	}
}

/* Hosts that never come back hold room until somebody says that they are dead. */
static void test_an_admin_vouches_for_hosts_that_stay_away(void **state)
{
	static const char *const names[] = {"host0", "host1", "host2", "host3", "host4", "host5",
		"host6", "host7", "host8", "host9"};
	struct host now;
	unsigned i;

	make(3);
	for (i = 0; i < 10; i++) {
		now = host(names[i], 1);
		now.force = true;
		if (host_open(&now))
			break;
		host_must_set(&now, "last", names[i]);
		assert_int_equal(pool_checkpoint(now.pool), 0);
		host_free(&now);
	}
	assert_in_range(i, 3, 9);
	assert_int_equal(now.error.code, -EBUSY);
	assert_non_null(strstr(now.error.message, "host0, host1"));
	assert_non_null(strstr(now.error.message, "millrace pool import --owner-dead tank"));
	now.owner_dead = true;
	host_must_open(&now);
	host_must_have(&now, "last", names[i - 1]);
	host_kill(&now);
	now.owner_dead = now.force = false;
	host_must_open(&now);
	host_free(&now);
	fixture_free(&f);
}

/* --- labels ----------------------------------------------------------------------------------- */

static struct segment_row widest_segment(void)
{
	struct segment_row row = {.id = 1ull << 32,
		.state = SEGMENT_RESERVED,
		.generation = 1,
		.data = POOL_WIDTH_MAX - 1,
		.parity = 1,
		.matrix = 1,
		.cell = BLOCK_SIZE};

	for (uint16_t i = 0; i < POOL_WIDTH_MAX; i++)
		row.chunks[i].device = i;
	return row;
}

static void test_the_fullest_label_fits(void **state)
{
	static struct label label, again;
	static uint8_t body[LABEL_BODY];

	label.epoch = 100;
	label.state = LABEL_OPEN;
	label.device_count = POOL_DEVICES_MAX;
	label.root_segment_count = ROOT_ROOM / SEGMENT_ROW_SIZE(POOL_WIDTH_MAX);
	for (unsigned i = 0; i < label.root_segment_count; i++)
		label.root_segments[i] = widest_segment();
	label.span_count = SPANS_MAX;
	label.other_count = OWNERS_MAX;
	for (unsigned i = 0; i < OWNERS_MAX; i++)
		label.others[i].boot[15] = (uint8_t)(i + 1);
	label.repeats = (struct label_version){99, 1};
	assert_int_equal(label_encode(&label, body), 0);
	assert_int_equal(label_decode(&again, body), 0);
	assert_int_equal(again.other_count, OWNERS_MAX);
	for (unsigned i = 0; i < OWNERS_MAX; i++)
		assert_int_equal(again.others[i].boot[15], i + 1);
	assert_int_equal(again.repeats.epoch, 99);
	assert_int_equal(again.repeats.sequence, 1);
}

static void test_an_exported_pool_is_imported_once(void **state)
{
	struct host alpha, beta;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 1);
	alpha = host("alpha", 1);
	beta = host("beta", 2);
	assert_int_equal(host_assign(&alpha, NULL), 0);
	assert_int_equal(host_open(&alpha), -EBUSY);
	assert_int_equal(host_assign(&beta, "beta"), 0);
	/* It was exported when alpha looked. */
	assert_int_equal(host_assign(&alpha, "alpha"), -EBUSY);
	assert_non_null(strstr(alpha.error.message, "assigned to host beta"));
	host_must_open(&beta);
	host_free(&alpha);
	host_free(&beta);
	fixture_free(&f);
}

/* --- again and again -------------------------------------------------------------------------- */

/* Neither a life nor an opening that ends by a kill, wherever, uses anything up. */
static void test_kills_do_not_add_up(void **state)
{
	struct host alpha;
	unsigned died = 0;
	char value[16] = "";

	make(4);
	alpha = host("alpha", 1);
	for (unsigned i = 0; i < 200; i++) {
		sim_cut_host_at(alpha.engine, i % 4 ? 1 + i : 0);
		if (host_open(&alpha)) {
			died++;
		} else {
			sim_cut_host_at(alpha.engine, 0);
			host_must_have(&alpha, "life", value);
			snprintf(value, sizeof(value), "%u", i);
			host_must_set(&alpha, "life", value);
		}
		host_kill(&alpha);
	}
	assert_true(died > 20);
	host_free(&alpha);
	fixture_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_fenced_owner_is_not_waited_for_and_may_wake_up),
		cmocka_unit_test(test_the_fullest_label_fits),
		cmocka_unit_test(test_an_exported_pool_is_imported_once),
		cmocka_unit_test(test_kills_do_not_add_up),
		cmocka_unit_test(test_the_owner_before_a_claim_may_be_alive),
		cmocka_unit_test(test_hosts_may_take_turns_by_force),
		cmocka_unit_test(test_an_admin_vouches_for_hosts_that_stay_away),
		cmocka_unit_test(test_what_the_owner_wrote_before_the_claim_counts),
		cmocka_unit_test(test_an_opening_that_was_overtaken_writes_nothing),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
