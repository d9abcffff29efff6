/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A small pool on simulated devices (2+1 over four, a share with a few of everything and a dataset
 * that was moved) whose owner has crashed, for targets that spoil its media or its metadata and
 * look what opening makes of it. All of its history is in the journal, from the first batch on: its
 * labels know no image, although one was written. Made once; going back to it costs what was
 * changed.
 */
#ifndef MILLRACE_FUZZ_WORLD_H
#define MILLRACE_FUZZ_WORLD_H

#include "device/sim.h"
#include "pool/format.h"
#include "pool/pool.h"
#include "volume/volume.h"

#define WORLD_DEVICES 4
#define WORLD_DEVICE_SIZE (2u << 20)

struct fuzz_world {
	struct sim_world *sim;
	struct sim_image *base;
	struct engine *engine;
	const char *paths[WORLD_DEVICES];
	struct device_header headers[WORLD_DEVICES];
	struct label label;
};

/* As it was made, with a new engine. Never fails. */
struct fuzz_world *world_reset(void);
enum world_how {
	WORLD_READ_ONLY,
	WORLD_OWN, /* by the host that crashed */
	WORLD_FOREIGN, /* by another, which has to watch the beat */
};
/* 0 or what pool_open() said. */
int world_open(struct fuzz_world *world, enum world_how how, struct pool **pool);
/* pool_abandon(), and an end of all that is outstanding. */
void world_abandon(struct fuzz_world *world, struct pool *pool);

/* Bytes of a device as they are on its medium. */
const uint8_t *world_medium(struct fuzz_world *world, unsigned device, uint64_t offset);
/* Changes them on one device. */
void world_write(struct fuzz_world *world, unsigned device, uint64_t offset, const void *bytes,
	size_t length);

/* Uses everything of a pool that could be opened: all volumes, names, bytes; with `change` it also
 * deletes what it finds. Errors are right, crashes are not. */
void world_use(struct pool *pool, bool change);

#endif
