/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* For the tests of a pool that changes hands: hosts, each with an engine and the pool as it has it
 * open, on the devices of one fixture. */
#ifndef MILLRACE_TEST_POOL_HOSTS_H
#define MILLRACE_TEST_POOL_HOSTS_H

#include "pool_fixture.h"

#include "common/log.h"
#include "pool/internal.h"

#define DEVICE_SIZE (8ull << 20)

struct host {
	const char *name;
	uint8_t boot;
	bool force, fenced, owner_dead;
	struct engine *engine;
	struct pool *pool;
	struct error error;
};

static struct fixture f;

static inline struct host host(const char *name, uint8_t boot)
{
	struct host h = {.name = name, .boot = boot};

	assert_int_equal(sim_engine_create(f.world, &h.engine), 0);
	return h;
}

static inline int host_open(struct host *h)
{
	struct pool_open_options options = {.paths = f.paths,
		.path_count = f.devices,
		.name = "tank",
		.host = h->name,
		.boot_id = {h->boot},
		.force = h->force,
		.fenced = h->fenced,
		.owner_dead = h->owner_dead,
		.metadata_limit = 16u << 20};

	error_clear(&h->error);
	return pool_open(h->engine, &options, &h->pool, &h->error);
}

/* To `to`, or to nobody. */
static inline int host_assign(struct host *h, const char *to)
{
	struct pool_open_options options = {.paths = f.paths,
		.path_count = f.devices,
		.name = "tank",
		.host = h->name,
		.boot_id = {h->boot},
		.import = to != NULL,
		.metadata_limit = 16u << 20};

	error_clear(&h->error);
	return pool_assign(h->engine, &options, to, &h->error);
}

static inline void host_must_open(struct host *h)
{
	if (host_open(h))
		fail_msg("%s cannot open: %s", h->name, h->error.message);
}

/* The process is killed: what it had in flight never arrives. */
static inline void host_kill(struct host *h)
{
	sim_cut_host(h->engine);
	if (h->pool)
		pool_abandon(h->pool);
	h->pool = NULL;
	sim_drain(f.world);
	sim_drop_late(f.world);
	sim_reconnect(h->engine);
}

static inline void host_free(struct host *h)
{
	host_kill(h);
	engine_destroy(h->engine);
}

static inline int host_set(struct host *h, const char *name, const char *value)
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

static inline void host_must_set(struct host *h, const char *name, const char *value)
{
	assert_int_equal(host_set(h, name, value), 0);
}

static inline void host_must_have(struct host *h, const char *name, const char *value)
{
	char found[64] = "";
	struct txn *view;

	assert_int_equal(view_begin(pool_env(h->pool), &view), 0);
	property_get(view, 0, name, found, sizeof(found));
	txn_abort(view);
	assert_string_equal(found, value);
}

static inline void make(uint64_t seed)
{
	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, seed);
}

static inline void quiet(enum log_level level, const char *line)
{
}

#endif
