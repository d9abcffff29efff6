/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Simulated histories: sequences of operations on a volume, the power cut at every device write and
 * flush of the last one, devices lost at the same moment; then the pool is opened again, the power
 * being cut in some of these openings too, and compared with a model (model.h).
 *
 *   histories [--depth N] [--random N] [--seconds N] [--seed N]
 *
 * All sequences of up to `depth` operations of the table are run (a cut in an earlier operation is
 * a cut in the last one of a shorter sequence; one that fills the pool comes first only), then
 * `random` longer ones. The run fails when an operation of the table never succeeded. A failure
 * prints the sequence, the cut and the seed.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "operations.h"

static uint64_t seed = 1;
static unsigned long states, cuts, sequences;
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
	fprintf(stderr, "\n  power cut at write or flush %llu of the last one; --seed %llu\n",
		(unsigned long long)cut, (unsigned long long)seed);
	exit(1);
}

/* Runs one operation on both. */
static void step(struct run *run, struct model *model, const struct sequence *s, unsigned i)
{
	struct operation *op = &operations[s->op[i]];
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
	op->succeeded += !got;
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

/* Opens after the crash with one device dead at the same moment, and compares. */
static void judge(struct run *run, const struct model *before, const struct model *after,
	const struct sequence *s, uint64_t cut)
{
	const char *wrong;
	unsigned dead = (unsigned)(states % (DEVICES + 1));
	int rc;

	if (dead < DEVICES)
		sim_kill_device(world, device_paths[dead]);
	crash_while_opening(run, s, cut);
	rc = run_open(run);
	if (rc)
		fail(s, cut, strerror(-rc));
	wrong = run_compare(run, after);
	if (wrong && before && !run_compare(run, before))
		wrong = NULL;
	if (!wrong)
		wrong = run_check(run);
	if (wrong)
		fail(s, cut, wrong);
	run_crash(run);
	sim_drain(world);
	if (dead < DEVICES)
		sim_revive_device(world, device_paths[dead]);
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

	sequences++;
	sim_restore(world, base);
	sim_seed(world, seed + sequences);
	if (sim_engine_create(world, &run.engine) || run_open(&run))
		fail(s, 0, "the base pool cannot be opened");
	model_init(&model);
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

static double deadline;

static void all_sequences(struct sequence *s, unsigned depth)
{
	for (unsigned op = 0; op < operation_count && seconds_now() < deadline; op++) {
		if (operations[op].stride > 1 && s->length)
			continue; /* long: it begins a sequence, or comes in random ones */
		s->op[s->length++] = (unsigned char)op;
		run_sequence(s);
		if (s->length < depth)
			all_sequences(s, depth);
		s->length--;
	}
}

static void quiet(enum log_level level, const char *line)
{
}

static int report(double began)
{
	double took = seconds_now() - began;

	printf("%lu sequences, %lu cuts, %lu crash states in %.1f s: %.0f a second; --seed %llu\n",
		sequences, cuts, states, took, (double)states / took, (unsigned long long)seed);
	return operations_report();
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"depth", required_argument, NULL, 'd'},
		{"random", required_argument, NULL, 'r'}, {"seconds", required_argument, NULL, 't'},
		{"seed", required_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
	unsigned depth = 2;
	unsigned long random = 100;
	double limit = 1e9, began = seconds_now();
	struct sequence s = {0};
	uint64_t state;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'd')
			depth = (unsigned)atoi(optarg);
		else if (option == 'r')
			random = strtoul(optarg, NULL, 10);
		else if (option == 't')
			limit = atof(optarg);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 10);
		else
			return 2;
	}
	deadline = began + limit;
	if (!getenv("HISTORIES_LOG"))
		log_set_sink(quiet);
	base_make(seed);
	if (depth)
		all_sequences(&s, depth);
	state = seed;
	for (unsigned long i = 0; i < random && seconds_now() < deadline; i++) {
		sequence_random(&s, &state);
		if (s.length)
			run_sequence(&s);
	}
	for (unsigned i = 0; i < crashes.room; i++)
		sim_image_free(crashes.images[i]);
	free(crashes.images);
	base_free();
	return report(began);
}
