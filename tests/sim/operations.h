/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The operations that simulated histories are made of, on a volume of a pool of simulated devices
 * and on the model, and how the two are compared.
 */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include "device/sim.h"
#include "model.h"
#include "volume/volume.h"

#define DEVICES_MAX 5
#define LENGTH_MAX 24

struct geometry {
	unsigned devices, data, parity;
};
extern const struct geometry geometry_small; /* 2+1 on 4 */
extern const struct geometry geometry_double; /* 2+2 on 5: two devices may die */

/* The world with all devices, and an image of it with an empty share in a closed pool. */
extern struct sim_world *world;
extern struct sim_image *base;
extern struct geometry geometry;
extern const char *device_paths[DEVICES_MAX];

/* One host's life with the pool. */
struct run {
	struct engine *engine;
	const char *host;
	bool force, fenced; /* take the pool from another host */
	uint8_t boot;
	struct pool *pool;
	struct volumes *volumes;
	struct volume *volume;
	struct volume_file *held[LENGTH_MAX]; /* files kept open after their unlink */
	unsigned held_count;
	unsigned salt; /* what the next write writes */
};

/* When an operation may come. */
enum moment {
	MOMENT_ANY = 0,
	MOMENT_FILLS, /* long: leaves a pool that has no room; those for a full one follow */
	MOMENT_FULL,
};

struct operation {
	const char *name;
	int (*run)(struct run *run, int a, int b);
	int (*model)(struct model *model, int a, int b, unsigned salt);
	int a, b;
	unsigned stride; /* the power is cut at each stride-th write or flush of it */
	enum moment moment;
};
extern const struct operation operations[];
extern const unsigned operation_count;
/* Notes what a run of one gave. */
void operation_done(const struct operation *operation, int rc);
/* Ends the process when there is none of that name. */
unsigned operation_find(const char *name);

struct sequence {
	unsigned length;
	unsigned char op[LENGTH_MAX];
};

void base_make(uint64_t seed, const struct geometry *chosen);
void base_free(void);
/* What the pool of the image is. */
void base_model(struct model *model);
int run_open(struct run *run);
/* After the power went, or instead of a close. */
void run_crash(struct run *run);
/* NULL: as the model says; else what is wrong. */
const char *run_compare(struct run *run, const struct model *model);
/* Makes the model what is there, after run_compare() found that it may be, and takes a quota away
 * that a crash has left. 0, or an errno. */
int run_adopt(struct run *run, struct model *model);
/* Whatever fills the pool can be deleted. 0, or an errno. */
int run_make_room(struct run *run);
/* All that the volume has is written somewhere else, durably. 0, or an errno. */
int run_compact(struct run *run);
/* What must hold of any volume whatever was done to it; NULL when it does. */
const char *run_check(struct run *run);
/* A sequence of 4 to 15 operations that the model can follow; length 0 when the draw failed. */
void sequence_random(struct sequence *s, uint64_t *state);
/* Whether it has an operation that fills the pool. */
bool sequence_fills(const struct sequence *s);
void sequence_print(const struct sequence *s);
double seconds_now(void);
/* Prints operations that never succeeded; 1 when there are any. */
int operations_report(void);
/* Says so when "checkpoint" has not written both deltas and full images; 1 then. */
int images_report(void);

#endif
