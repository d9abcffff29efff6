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

#define DEVICES 4 /* of a 2+1 pool */
#define LENGTH_MAX 24

/* The world with all devices, and an image of it with an empty share in a closed pool. */
extern struct sim_world *world;
extern struct sim_image *base;
extern const char *device_paths[DEVICES];

/* One host's life with the pool. */
struct run {
	struct engine *engine;
	const char *host;
	bool force; /* take the pool from another host */
	struct pool *pool;
	struct volumes *volumes;
	struct volume *volume;
	struct volume_file *held[LENGTH_MAX]; /* files kept open after their unlink */
	unsigned held_count;
	unsigned salt; /* what the next write writes */
};

struct operation {
	const char *name;
	int (*run)(struct run *run, int a, int b);
	int (*model)(struct model *model, int a, int b, unsigned salt);
	int a, b;
	unsigned stride; /* the power is cut at each stride-th write or flush of it */
	unsigned long succeeded;
};
extern struct operation operations[];
extern const unsigned operation_count;

struct sequence {
	unsigned length;
	unsigned char op[LENGTH_MAX];
};

void base_make(uint64_t seed);
void base_free(void);
int run_open(struct run *run);
/* After the power went, or instead of a close. */
void run_crash(struct run *run);
/* NULL: as the model says; else what is wrong. */
const char *run_compare(struct run *run, const struct model *model);
/* Makes the model what is there, after run_compare() found that it may be. 0, or an errno. */
int run_adopt(struct run *run, struct model *model);
/* What must hold of any volume whatever was done to it; NULL when it does. */
const char *run_check(struct run *run);
/* A sequence of 4 to 13 operations that the model can follow; length 0 when the draw failed. */
void sequence_random(struct sequence *s, uint64_t *state);
void sequence_print(const struct sequence *s);
double seconds_now(void);
/* Prints operations that never succeeded; 1 when there are any. */
int operations_report(void);

#endif
