/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A small pool on the simulated device, for tests: six devices, 4+2, 4 KiB cells, unless told. */
#ifndef POOL_FIXTURE_H
#define POOL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim.h"
#include "pool/pool.h"

#define FIXTURE_DEVICES 6

struct fixture {
	struct sim_world *world;
	struct engine *engine;
	unsigned devices, data, parity;
	char names[16][12];
	const char *paths[16];
	unsigned stream_limit; /* 0: the default */
};

/* `domains` NULL: each device is one. */
static inline void fixture_make_domains(struct fixture *f, unsigned devices, unsigned data,
	unsigned parity, uint64_t size, uint64_t journal, uint64_t seed, const char *const *domains)
{
	struct sim_options options = {.seed = seed, .reorder = true};
	struct pool_create_device list[16];
	struct error error = {0};
	struct pool_create_options create = {.name = "tank",
		.data = data,
		.parity = parity,
		.cell = 4096,
		.devices = list,
		.device_count = devices,
		.host = "alpha",
		.slot_rows = 4,
		.journal_size = journal};

	memset(f, 0, sizeof(*f));
	f->devices = devices;
	f->data = data;
	f->parity = parity;
	assert_int_equal(sim_world_create(&options, &f->world), 0);
	for (unsigned i = 0; i < devices; i++) {
		snprintf(f->names[i], sizeof(f->names[i]), "d%u", i);
		f->paths[i] = f->names[i];
		list[i] = (struct pool_create_device){
			.path = f->names[i], .domain = domains ? domains[i] : f->names[i]};
		assert_int_equal(sim_add_device(f->world, f->names[i], size), 0);
	}
	assert_int_equal(sim_engine_create(f->world, &f->engine), 0);
	if (pool_create(f->engine, &create, &error))
		fail_msg("pool_create: %s: %s", error.object, error.message);
}

static inline void fixture_make_with(struct fixture *f, unsigned devices, unsigned data,
	unsigned parity, uint64_t size, uint64_t journal, uint64_t seed)
{
	fixture_make_domains(f, devices, data, parity, size, journal, seed, NULL);
}

static inline void fixture_make(struct fixture *f, unsigned devices, unsigned data, unsigned parity,
	uint64_t size, uint64_t seed)
{
	fixture_make_with(f, devices, data, parity, size, 512 << 10, seed);
}

static inline int fixture_open(struct fixture *f, struct pool **pool, struct error *error)
{
	struct pool_open_options options = {
		.paths = f->paths,
		.path_count = f->devices,
		.name = "tank",
		.host = "alpha",
		.metadata_limit = 16u << 20,
		.stream_limit = f->stream_limit,
	};

	memset(error, 0, sizeof(*error));
	return pool_open(f->engine, &options, pool, error);
}

static inline struct pool *fixture_must_open(struct fixture *f)
{
	struct error error;
	struct pool *pool;

	if (fixture_open(f, &pool, &error))
		fail_msg("pool_open: %s: %s", error.object, error.message);
	return pool;
}

/* As a crash and a reboot: everything outstanding ends, unflushed writes go as the policy says. */
static inline void fixture_crash(struct fixture *f, struct pool *pool, enum sim_policy policy)
{
	sim_cut_power(f->world);
	pool_abandon(pool);
	sim_drain(f->world);
	sim_power_on(f->world, policy);
}

/* An empty share, durable; its id. */
static inline uint32_t fixture_make_volume(struct pool *pool, const char *name)
{
	struct volume_row row;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
	return row.id;
}

static inline void fixture_free(struct fixture *f)
{
	engine_destroy(f->engine);
	sim_world_destroy(f->world);
}

#endif
