/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Late writes: an owner is paused in the middle of an operation, another host takes the pool over,
 * at the second try when it dies in its first opening, and what the first had in flight reaches the
 * devices afterwards, a write at a time, at every step of what the second does. Nothing committed
 * may change, by either.
 *
 *   late [--random N] [--seconds N] [--seed N]
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "operations.h"

static uint64_t seed = 1;
static unsigned long takeovers, stumbles, released;

static void fail(
	const struct sequence *first, uint64_t cut, const struct sequence *second, const char *why)
{
	fprintf(stderr, "FAILED: %s\n  first owner: ", why);
	sequence_print(first);
	fprintf(stderr, "\n  paused at its write or flush %llu of the last; second owner: ",
		(unsigned long long)cut);
	sequence_print(second);
	fprintf(stderr, "\n  --seed %llu\n", (unsigned long long)seed);
	exit(1);
}

static uint64_t draw(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* A few writes of the old owner arrive. */
static void let_some_arrive(uint64_t *state, unsigned of_ten)
{
	unsigned count = sim_late_count(world);

	for (unsigned i = 0; i < count && sim_late_count(world); i++) {
		if (draw(state) % 10 >= of_ten)
			continue;
		sim_release_late(world, (unsigned)((*state >> 40) % sim_late_count(world)));
		released++;
	}
}

/* The first owner runs a sequence and stops in its last operation; the models of before and after.
 * False when the operation had fewer writes and flushes. */
static bool first_owner(struct run *run, const struct sequence *s, uint64_t cut,
	struct model *before, struct model *after)
{
	unsigned i;

	base_model(after);
	if (sim_engine_create(world, &run->engine) || run_open(run))
		abort();
	for (i = 0; i < s->length; i++) {
		const struct operation *op = &operations[s->op[i]];

		run->salt = i + 1;
		if (i + 1 == s->length) {
			model_copy(before, after);
			sim_hold_late(run->engine, true, true);
			sim_cut_host_at(run->engine, cut);
		}
		op->run(run, op->a, op->b);
		op->model(after, op->a, op->b, i + 1);
	}
	return sim_power_was_cut(run->engine);
}

/* What the second owner finds is what it goes on from. */
static const struct model *adopt(
	struct run *run, const struct model *before, const struct model *after, const char **wrong)
{
	*wrong = run_compare(run, after);
	if (!*wrong)
		return after;
	if (!run_compare(run, before)) {
		*wrong = NULL;
		return before;
	}
	return NULL;
}

static void must_match(struct run *run, const struct model *model, const struct sequence *first,
	uint64_t cut, const struct sequence *second)
{
	const char *wrong = run_compare(run, model);

	if (wrong)
		fail(first, cut, second, wrong);
}

/* Half of the second owners die in their opening, some between its claim and its take-over. What
 * they had in flight arrives before they are gone. */
static void stumble(struct run *run, uint64_t *state)
{
	unsigned late = sim_late_count(world);

	if (draw(state) % 2)
		return;
	sim_cut_host_at(run->engine, 1 + draw(state) % 40);
	if (run_open(run))
		stumbles++;
	sim_cut_host(run->engine);
	run_crash(run);
	sim_drain(world);
	while (sim_late_count(world) > late)
		sim_release_late(world, late);
	sim_reconnect(run->engine);
}

static void second_owner(struct run *run, const struct model *before, const struct model *after,
	const struct sequence *first, uint64_t cut, const struct sequence *second, uint64_t *state)
{
	const struct model *found;
	struct model model;
	const char *wrong;

	if (sim_engine_create(world, &run->engine))
		abort();
	stumble(run, state);
	if (run_open(run))
		fail(first, cut, second, "the second owner cannot open the pool");
	found = adopt(run, before, after, &wrong);
	if (!found)
		fail(first, cut, second, wrong);
	model_copy(&model, found);
	if (run_adopt(run, &model))
		fail(first, cut, second, "what is there cannot be read");
	let_some_arrive(state, 3);
	must_match(run, &model, first, cut, second);
	for (unsigned i = 0; i < second->length; i++) {
		const struct operation *op = &operations[second->op[i]];
		int got, want;

		run->salt = 100 + i;
		got = op->run(run, op->a, op->b);
		want = op->model(&model, op->a, op->b, 100 + i);
		if (got != want)
			fail(first, cut, second, op->name);
		operation_done(op, got);
		let_some_arrive(state, 2);
		must_match(run, &model, first, cut, second);
	}
	let_some_arrive(state, 10);
	wrong = run_check(run);
	if (wrong)
		fail(first, cut, second, wrong);
	/* And after a crash of the second, opened by a third life of it. */
	sim_cut_power(world);
	run_crash(run);
	sim_drain(world);
	sim_power_on(world, SIM_RANDOM);
	if (run_open(run))
		fail(first, cut, second, "it cannot be opened after the second owner's crash");
	must_match(run, &model, first, cut, second);
	wrong = run_check(run);
	if (wrong)
		fail(first, cut, second, wrong);
	model_free(&model);
}

static bool take_over(const struct sequence *first, uint64_t cut, const struct sequence *second)
{
	struct run a = {.host = "alpha"}, b = {.host = "beta", .force = true, .fenced = cut % 2};
	struct model before = {0}, after;
	uint64_t state = (seed + takeovers) * 6364136223846793005ull + cut;
	bool in_time;

	sim_restore(world, base);
	sim_seed(world, seed + cut);
	in_time = first_owner(&a, first, cut, &before, &after);
	run_crash(&a);
	if (in_time) {
		second_owner(&b, &before, &after, first, cut, second, &state);
		run_crash(&b);
		takeovers++;
	}
	sim_drain(world);
	sim_drop_late(world);
	engine_destroy(a.engine);
	engine_destroy(b.engine);
	model_free(&before);
	model_free(&after);
	return in_time;
}

static void quiet(enum log_level level, const char *line)
{
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"random", required_argument, NULL, 'r'},
		{"seconds", required_argument, NULL, 't'}, {"seed", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0}};
	unsigned long random = 100;
	double limit = 1e9, began = seconds_now();
	int option;
	uint64_t state;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'r')
			random = strtoul(optarg, NULL, 10);
		else if (option == 't')
			limit = atof(optarg);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 10);
		else
			return 2;
	}
	if (!getenv("HISTORIES_LOG"))
		log_set_sink(quiet);
	base_make(seed, &geometry_small);
	state = seed;
	for (unsigned long i = 0; i < random && seconds_now() - began < limit; i++) {
		struct sequence first, second;

		sequence_random(&first, &state);
		sequence_random(&second, &state);
		/* Behind a first one that filled the pool the second, who may free nothing of it,
		 * has no room for its writes. */
		if (!first.length || !second.length || sequence_fills(&first))
			continue;
		for (uint64_t cut = 1; take_over(&first, cut, &second); cut += 1 + cut / 4)
			;
	}
	base_free();
	printf("%lu take-overs, %lu behind one that failed, %lu late writes released in %.1f s; "
	       "--seed %llu\n",
		takeovers, stumbles, released, seconds_now() - began, (unsigned long long)seed);
	return takeovers && stumbles && released ? operations_report() : 1;
}
