/* SPDX-License-Identifier: LGPL-3.0-or-later. A pool that changes hands. links: pool */
/* Nothing that the owner before or the one after acknowledged is lost, whoever of them pauses. */
#include "pool_fixture.h"

#include "common/log.h"

#define DEVICE_SIZE (32ull << 20)

/* --- hosts ------------------------------------------------------------------------------------ */

struct host {
	const char *name;
	uint8_t boot;
	bool force, owner_dead;
	struct engine *engine;
	struct pool *pool;
	struct error error;
};

static struct fixture f;

static struct host host(const char *name, uint8_t boot)
{
	struct host h = {.name = name, .boot = boot};

	assert_int_equal(sim_engine_create(f.world, &h.engine), 0);
	return h;
}

static int host_open(struct host *h)
{
	struct pool_open_options options = {.paths = f.paths,
		.path_count = f.devices,
		.name = "tank",
		.host = h->name,
		.boot_id = {h->boot},
		.force = h->force,
		.owner_dead = h->owner_dead,
		.metadata_limit = 16u << 20};

	error_clear(&h->error);
	return pool_open(h->engine, &options, &h->pool, &h->error);
}

static void host_must_open(struct host *h)
{
	if (host_open(h))
		fail_msg("%s cannot open: %s", h->name, h->error.message);
}

/* The process is killed: what it had in flight never arrives. */
static void host_kill(struct host *h)
{
	sim_cut_host(h->engine);
	if (h->pool)
		pool_abandon(h->pool);
	h->pool = NULL;
	sim_drain(f.world);
	sim_drop_late(f.world);
	sim_reconnect(h->engine);
}

static void host_free(struct host *h)
{
	host_kill(h);
	engine_destroy(h->engine);
}

static int host_set(struct host *h, const char *name, const char *value)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(h->pool, NULL, &txn);

	if (rc)
		return rc;
	rc = property_set(txn, 0, name, value);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	return rc ? rc : pool_sync(h->pool, lsn);
}

static void host_must_set(struct host *h, const char *name, const char *value)
{
	assert_int_equal(host_set(h, name, value), 0);
}

static void host_must_have(struct host *h, const char *name, const char *value)
{
	char found[64] = "";
	struct txn *view;

	assert_int_equal(view_begin(pool_env(h->pool), &view), 0);
	property_get(view, 0, name, found, sizeof(found));
	txn_abort(view);
	assert_string_equal(found, value);
}

static void make(uint64_t seed)
{
	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, seed);
}

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
	log_set_sink(NULL);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_the_owner_wrote_before_the_claim_counts),
		cmocka_unit_test(test_an_opening_that_was_overtaken_writes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
