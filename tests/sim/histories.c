/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Simulated histories: sequences of operations on a volume, the power cut at every device write and
 * flush of the last one, devices lost at the same moment; then the pool is opened again, the power
 * being cut in some of these openings too, and compared with a model (model.h). After some of them
 * what was lost comes back, is attached and resilvered, and others are lost in turn.
 *
 *   histories [--depth N] [--random N] [--seconds N] [--seed N] [--part I/N]
 *
 * On a 2+1 pool, all sequences of up to `depth` operations of the table are run (a cut in an
 * earlier operation is a cut in the last one of a shorter sequence), then those that fill the pool
 * and delete in it, behind a few beginnings, then some that move a sealed volume, then `random`
 * longer ones; no device or one dies with each cut. The same on a 2+2 pool, one operation shorter
 * and a quarter as many at random, where up to two die. Then, until `seconds` have passed since
 * the start, more at random on both in turn: a soak, which another seed makes another one. With
 * `part` the I-th of N parts of the sequences alone: N processes run them all. The run fails when
 * an operation of the table never succeeded, or no image was written in full, or none as a delta.
 * A failure prints the sequence, the cut, the devices that died and the seed.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "operations.h"

#define SOAK_SEQUENCES 200 /* at random, on one pool after the other */
/* Of a part, in a row: neighbours end with operations of like cost. */
#define RUN_LENGTH 5
#define TAKE_BACK 5 /* one state in so many: devices that were dead are taken back */

static uint64_t seed = 1;
static unsigned long states, cuts, sequences, taken_back;
static uint32_t dead; /* devices, a bit each */
static unsigned part = 1, parts = 1;
/* Images of the world at cuts within the last operation; made once, used by all sequences. */
static struct crashes {
	struct sim_image **images;
	unsigned count, room;
	uint64_t writes, stride, first;
} crashes;

/* --- one crash --- */

static void fail(const struct sequence *s, uint64_t cut, const char *why)
{
	fprintf(stderr, "FAILED: %s\n  after: ", why);
	sequence_print(s);
	fprintf(stderr,
		"\n  %u+%u, power cut at write or flush %llu of the last one, devices %#x dead; "
		"--seed %llu\n",
		geometry.data, geometry.parity, (unsigned long long)cut, dead,
		(unsigned long long)seed);
	exit(1);
}

/* Runs one operation on both. */
static void step(struct run *run, struct model *model, const struct sequence *s, unsigned i)
{
	const struct operation *op = &operations[s->op[i]];
	int got, want;

	run->salt = i + 1;
	got = op->run(run, op->a, op->b);
	want = op->model(model, op->a, op->b, i + 1);
	if (got != want) {
		char why[160];

		snprintf(why, sizeof(why), "%s gives %d (%s), not %d", op->name, got,
			strerror(-got), want);
		fail(s, 0, why);
	}
	operation_done(op, got);
}

/* After one crash in four, up to three openings in a row find the power cut, in the middle or right
 * after them. */
static void crash_while_opening(struct run *run, const struct sequence *s, uint64_t cut)
{
	for (unsigned long again = states % 4 ? 0 : 1 + states / 4 % 3; again; again--) {
		int rc;

		sim_cut_power_at(run->engine, 1 + (states / 4 * 7 + again * 11) % 48);
		rc = run_open(run);
		if (rc && !sim_power_was_cut(run->engine))
			fail(s, cut, strerror(-rc));
		sim_cut_power(world);
		run_crash(run);
		sim_drain(world);
		sim_power_on(world, SIM_RANDOM);
	}
}

/* The n-th set of devices that may die at once, the empty one first; 0 behind the last. */
static uint32_t nth_loss(unsigned long n)
{
	for (uint32_t set = 0; set < 1u << geometry.devices; set++)
		if ((unsigned)__builtin_popcount(set) <= geometry.parity && n-- == 0)
			return set;
	return 0;
}

static uint32_t next_loss(void)
{
	unsigned long losses = 1;

	while (nth_loss(losses))
		losses++;
	return nth_loss((states + states / losses) % losses);
}

static void each_dead(void (*act)(struct sim_world *world, const char *name))
{
	for (unsigned i = 0; i < geometry.devices; i++)
		if (dead >> i & 1)
			act(world, device_paths[i]);
}

/* Those that were dead are there again, and are made whole. */
static const char *take_back(struct run *run)
{
	struct pool_resilver_report report;
	struct error error = {0};

	each_dead(sim_revive_device);
	for (unsigned i = 0; i < geometry.devices; i++)
		if (dead >> i & 1 && pool_attach(run->pool, device_paths[i], &error))
			return "a device that is back cannot be attached";
	if (pool_resilver(run->pool, &report, NULL, NULL, &error))
		return "devices that are back cannot be resilvered";
	return report.whole ? NULL : "a device that is back is not whole";
}

/* Then as many others as may die are dead, after another crash, and all is there. */
static const char *lose_others(struct run *run, const struct model *model)
{
	const char *wrong = take_back(run);

	if (wrong)
		return wrong;
	sim_cut_power(world);
	run_crash(run);
	sim_drain(world);
	sim_power_on(world, SIM_RANDOM);
	dead = next_loss() ^ dead;
	while ((unsigned)__builtin_popcount(dead) > geometry.parity)
		dead &= dead - 1;
	each_dead(sim_kill_device);
	taken_back++;
	return run_open(run) ? "it does not open without others" : run_compare(run, model);
}

/* Opens after the crash with as many devices dead as may be at the same moment, and compares. */
static void judge(struct run *run, const struct model *before, const struct model *after,
	const struct sequence *s, uint64_t cut)
{
	const struct model *found = after;
	const char *wrong;
	int rc;

	dead = next_loss();
	each_dead(sim_kill_device);
	crash_while_opening(run, s, cut);
	rc = run_open(run);
	if (rc)
		fail(s, cut, strerror(-rc));
	wrong = run_compare(run, after);
	if (wrong && before && !run_compare(run, before)) {
		wrong = NULL;
		found = before;
	}
	if (!wrong)
		wrong = run_check(run);
	if (!wrong && states % TAKE_BACK == 0)
		wrong = lose_others(run, found);
	if (!wrong && sequence_fills(s) && run_make_room(run))
		wrong = "a full pool cannot delete";
	if (wrong)
		fail(s, cut, wrong);
	run_crash(run);
	sim_drain(world);
	each_dead(sim_revive_device);
	dead = 0;
	states++;
}

static void power_on(struct run *run, uint64_t cut)
{
	sim_drain(world);
	sim_seed(world, seed + cut);
	sim_power_on(world, SIM_RANDOM);
	cuts++;
}

/* --- one sequence --- */

/* Before a write or flush of the last operation: what a cut leaves now. */
static void keep_crash(void *data)
{
	struct crashes *c = data;

	if (c->writes++ % c->stride != c->first)
		return;
	if (c->count == c->room) {
		c->images = realloc(c->images, ++c->room * sizeof(struct sim_image *));
		c->images[c->count] = NULL;
	}
	if (sim_save_cut(world, &c->images[c->count++]))
		exit(2);
}

static void run_last(struct run *run, struct model *model, const struct sequence *s)
{
	crashes.writes = crashes.count = 0;
	crashes.stride = operations[s->op[s->length - 1]].stride;
	crashes.first = sequences % crashes.stride;
	sim_watch_writes(run->engine, keep_crash, &crashes);
	step(run, model, s, s->length - 1);
	sim_cut_power(world);
}

/* The sequence once, up to a cut right after it; then the cuts within its last operation. */
static void run_sequence(const struct sequence *s)
{
	struct run run = {.host = "alpha"};
	struct model model, before;

	if (sequences++ / RUN_LENGTH % parts != part - 1)
		return;
	sim_restore(world, base);
	sim_seed(world, seed + sequences);
	if (sim_engine_create(world, &run.engine) || run_open(&run))
		fail(s, 0, "the base pool cannot be opened");
	base_model(&model);
	for (unsigned i = 0; i + 1 < s->length; i++)
		step(&run, &model, s, i);
	model_copy(&before, &model);
	run_last(&run, &model, s);
	run_crash(&run);
	power_on(&run, 0);
	judge(&run, NULL, &model, s, 0);
	for (unsigned i = 0; i < crashes.count; i++) {
		uint64_t cut = 1 + crashes.first + (uint64_t)i * crashes.stride;

		sim_restore(world, crashes.images[i]);
		power_on(&run, cut);
		judge(&run, &before, &model, s, cut);
	}
	engine_destroy(run.engine);
	model_free(&model);
	model_free(&before);
}

/* --- all of them --- */

static void all_sequences(struct sequence *s, unsigned depth)
{
	for (unsigned op = 0; op < operation_count; op++) {
		if (operations[op].moment != MOMENT_ANY)
			continue;
		s->op[s->length++] = (unsigned char)op;
		run_sequence(s);
		if (s->length < depth)
			all_sequences(s, depth);
		s->length--;
	}
}

/* Each beginning, then the pool is filled, then a file is deleted, then what filled it. */
static void full_sequences(void)
{
	static const char *const beginnings[][4] = {{"create a"},
		{"create a", "write a small", "fsync a"}, {"create a", "write a across rows"},
		{"create a", "write a across rows", "fsync a"},
		{"create a", "write a across rows", "fsync a", "link a b"},
		{"create a", "write a behind a hole", "fsync a", "checkpoint"},
		{"create a", "write a across rows", "close and open"}, {"create a", "allocate a"},
		{"create a", "allocate a", "fsync a"},
		{"create a", "write a behind a hole", "allocate a", "close and open"},
		{"create a", "set an attribute of a", "remove the attribute of a"}};
	static const char *const full[] = {"fill the pool",
		"write a where space is kept, in the full pool", "unlink a in the full pool",
		"unlink what fills the pool"};

	for (unsigned i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++) {
		struct sequence s = {0};

		for (unsigned n = 0; n < 4 && beginnings[i][n]; n++)
			s.op[s.length++] = (unsigned char)operation_find(beginnings[i][n]);
		for (unsigned n = 0; n < sizeof(full) / sizeof(full[0]); n++) {
			s.op[s.length++] = (unsigned char)operation_find(full[n]);
			run_sequence(&s);
		}
	}
}

/* Each beginning, then the volume is sealed, and all that it has is moved and moved again. */
static void sealed_sequences(void)
{
	static const char *const beginnings[][4] = {{"create a", "write a across rows", "fsync a"},
		{"create a", "write a behind a hole", "fsync a", "punch a"},
		{"create b", "write b across rows", "create a", "write a across rows"}};
	static const char *const moves[] = {"seal", "compact", "maintain", "compact",
		"close and open", "compact", "checkpoint"};

	for (unsigned i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++) {
		struct sequence s = {0};

		for (unsigned n = 0; n < 4 && beginnings[i][n]; n++)
			s.op[s.length++] = (unsigned char)operation_find(beginnings[i][n]);
		for (unsigned n = 0; n < sizeof(moves) / sizeof(moves[0]); n++) {
			s.op[s.length++] = (unsigned char)operation_find(moves[n]);
			run_sequence(&s);
		}
	}
}

static void crashes_free(void)
{
	for (unsigned i = 0; i < crashes.room; i++)
		sim_image_free(crashes.images[i]);
	free(crashes.images);
	crashes = (struct crashes){0};
}

static void run_on(const struct geometry *chosen, unsigned depth, bool full, unsigned long random,
	uint64_t *state)
{
	struct sequence s = {0};

	base_make(seed, chosen);
	if (depth)
		all_sequences(&s, depth);
	if (full) {
		full_sequences();
		sealed_sequences();
	}
	for (unsigned long i = 0; i < random; i++) {
		sequence_random(&s, state);
		if (s.length)
			run_sequence(&s);
	}
	crashes_free();
	base_free();
}

static void run_all(unsigned depth, unsigned long random, double deadline)
{
	uint64_t state = seed;

	run_on(&geometry_small, depth, depth > 0, random, &state);
	run_on(&geometry_double, depth ? depth - 1 : 0, depth > 0, random / 4, &state);
	for (unsigned turn = 0; seconds_now() < deadline; turn++)
		run_on(turn % 2 ? &geometry_double : &geometry_small, 0, false, SOAK_SEQUENCES,
			&state);
}

static void quiet(enum log_level level, const char *line)
{
}

static int report(double began)
{
	double took = seconds_now() - began;

	printf("%lu sequences, of them part %u of %u, %lu cuts, %lu crash states, devices taken "
	       "back in %lu, in %.1f s: %.0f a second; --seed %llu\n",
		sequences, part, parts, cuts, states, taken_back, took, (double)states / took,
		(unsigned long long)seed);
	return operations_report() | images_report();
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"depth", required_argument, NULL, 'd'},
		{"random", required_argument, NULL, 'r'}, {"seconds", required_argument, NULL, 't'},
		{"seed", required_argument, NULL, 's'}, {"part", required_argument, NULL, 'p'},
		{NULL, 0, NULL, 0}};
	unsigned depth = 2;
	unsigned long random = 100;
	double least = 0, began = seconds_now();
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'd')
			depth = (unsigned)atoi(optarg);
		else if (option == 'r')
			random = strtoul(optarg, NULL, 10);
		else if (option == 't')
			least = atof(optarg);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 10);
		else if (option == 'p' && sscanf(optarg, "%u/%u", &part, &parts) == 2 && part &&
			 part <= parts)
			continue;
		else
			return 2;
	}
	if (!getenv("HISTORIES_LOG"))
		log_set_sink(quiet);
	run_all(depth, random, began + least);
	return report(began);
}
