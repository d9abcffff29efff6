/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The world: its devices, the pool and the share that all histories begin with, a host's life. */
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>

#define DEVICE_SIZE (2u << 20)
#define CACHE_SIZE (80u << 10) /* of blocks: some nine of them */
#define BULK_FILES 12
#define BULK_BYTES 2000
#define LAST_BULK "bulk12"
#define BULK_DELTAS 4 /* as many as so small a pool takes */

struct sim_world *world;
struct sim_image *base;
const struct geometry geometry_small = {4, 2, 1}, geometry_double = {5, 2, 2};
struct geometry geometry;
const char *device_paths[DEVICES_MAX];
static char device_names[DEVICES_MAX][12];

/* --- a host's life --- */

void let_go(struct run *run)
{
	for (unsigned i = 0; i < run->held_count; i++) {
		volume_file_close(run->held[i]);
		volume_file_put(run->held[i]);
	}
	run->held_count = 0;
}

int run_open(struct run *run)
{
	struct pool_open_options options = {.paths = device_paths,
		.path_count = geometry.devices,
		.name = "tank",
		.host = run->host,
		.force = run->force,
		.fenced = run->fenced,
		.boot_id = {run->boot},
		.row_memory = 1u << 20,
		.page_cache = 1u << 20,
		.metadata_limit = 8u << 20};
	struct error error = {0};
	int rc = pool_open(run->engine, &options, &run->pool, &error);

	if (rc)
		return rc;
	rc = pool_cache_resize(run->pool, CACHE_SIZE);
	if (!rc)
		rc = volumes_create(run->pool, NULL, &run->volumes);
	if (!rc)
		rc = volume_open(run->volumes, "share", &run->volume, &error);
	return rc;
}

int close_volume(struct run *run)
{
	int rc, closed;

	let_go(run);
	rc = volume_close(run->volume);
	run->volume = NULL;
	volumes_destroy(run->volumes);
	run->volumes = NULL;
	closed = pool_close(run->pool, NULL);
	run->pool = NULL;
	return rc ? rc : closed;
}

void run_crash(struct run *run)
{
	let_go(run);
	if (run->volumes)
		volumes_abandon(run->volumes);
	if (run->pool)
		pool_abandon(run->pool);
	run->volumes = NULL;
	run->volume = NULL;
	run->pool = NULL;
}

/* --- the beginning --- */

/* A file that the model does not know, of bytes that live in the metadata; 0, or an errno. */
static int make_bulk(struct run *run, unsigned number)
{
	struct volume_new new = {.type = VOLUME_FILE};
	static uint8_t bytes[BULK_BYTES];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct volume_attributes made;
	struct volume_file *file;
	char name[16];
	uint64_t lsn;
	int rc;

	snprintf(name, sizeof(name), "bulk%u", number);
	rc = volume_make(run->volume, VOLUME_ROOT, name, &new, &made, &lsn);
	if (!rc)
		rc = volume_file_get(run->volume, made.ino, &file);
	if (rc)
		return rc;
	rc = volume_write(file, 0, &iov, 1, sizeof(bytes));
	if (!rc)
		rc = volume_commit_wait(file);
	volume_file_put(file);
	return rc;
}

/*
 * The share has an image large enough for deltas to be worth while, and all of these that there may
 * be, or all but one: what the next checkpoint writes is a full one in one geometry, and a delta in
 * the other.
 */
static int make_parts(struct run *run)
{
	unsigned parts = geometry.parity == 1 ? BULK_DELTAS - 1 : BULK_DELTAS;
	uint64_t lsn;
	int rc = 0;

	for (unsigned i = 0; !rc && i < BULK_FILES; i++)
		rc = make_bulk(run, i);
	if (!rc)
		rc = pool_checkpoint(run->pool);
	for (unsigned i = 0; !rc && i < parts; i++) {
		rc = make_bulk(run, BULK_FILES);
		if (!rc)
			rc = volume_unlink(
				run->volume, VOLUME_ROOT, LAST_BULK, VOLUME_UNLINK_ANY, &lsn);
		if (!rc)
			rc = pool_checkpoint(run->pool);
	}
	return rc;
}

void base_make(uint64_t seed, const struct geometry *chosen)
{
	struct sim_options options = {.seed = seed, .reorder = true};
	struct pool_create_device devices[DEVICES_MAX];
	struct pool_create_options create = {.name = "tank",
		.data = chosen->data,
		.parity = chosen->parity,
		.cell = 4096,
		.devices = devices,
		.device_count = chosen->devices,
		.host = "alpha",
		.slot_rows = 4,
		.journal_size = 512 << 10};
	struct volume_create_options volume = {.name = "share", .kind = VOLUME_SHARE};
	struct run run = {.host = "alpha"};
	struct pool_open_options open = {.paths = device_paths,
		.path_count = chosen->devices,
		.host = "alpha",
		.metadata_limit = 8u << 20};
	struct error error = {0};

	geometry = *chosen;
	if (sim_world_create(&options, &world))
		abort();
	for (unsigned i = 0; i < geometry.devices; i++) {
		snprintf(device_names[i], sizeof(device_names[i]), "d%u", i);
		device_paths[i] = device_names[i];
		devices[i] = (struct pool_create_device){device_paths[i], device_paths[i]};
		if (sim_add_device(world, device_paths[i], DEVICE_SIZE))
			abort();
	}
	if (sim_engine_create(world, &run.engine) || pool_create(run.engine, &create, &error) ||
		pool_open(run.engine, &open, &run.pool, &error) ||
		volumes_create(run.pool, NULL, &run.volumes) ||
		volume_create(run.volumes, &volume, NULL, &error) ||
		volume_open(run.volumes, volume.name, &run.volume, &error)) {
		fprintf(stderr, "%s: %s\n", error.object, error.message);
		exit(1);
	}
	if (make_parts(&run) || put_client(&run, 0) || close_volume(&run))
		abort();
	sim_drain(world);
	engine_destroy(run.engine);
	if (sim_save(world, &base))
		abort();
}

void base_model(struct model *model)
{
	model_init(model);
	model_client(model, 0);
	model_open(model);
}

void base_free(void)
{
	sim_image_free(base);
	base = NULL;
	sim_world_destroy(world);
}
