/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Late writes: an owner is paused in the middle of an operation, another host takes the pool over,
 * at the second try when it dies in its first opening, and what the first had in flight reaches the
 * devices afterwards, a write at a time, at every step of what the second does. Nothing committed
 * may change, by either. A device may be missing when the second opens it; the first's host may
 * boot meanwhile, which ends what it had in flight, and what was lost is made whole then. The
 * second may be paused at that, too, and a third takes over.
 *
 *   late [--random N] [--seconds N] [--seed N]
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "operations.h"

static uint64_t seed = 1;
static unsigned long takeovers, stumbles, released, let_go_count, thirds, wholes;

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

/* What the owner before had in flight may have been a label, of a claim: a checkpoint writes it. */
static const char *make_whole(struct run *run)
{
	struct pool_resilver_report report;
	struct pool_check_report checked;
	struct error error = {0};

	for (unsigned i = 0; i < geometry.devices; i++)
		if (pool_attach(run->pool, device_paths[i], &error))
			return "a device cannot be attached";
	if (pool_resilver(run->pool, &report, NULL, NULL, &error))
		return "no resilver";
	if (!report.whole || report.lost_blocks)
		return "it is not whole";
	if (pool_check(run->pool, false, &checked, NULL, NULL, NULL))
		return "check fails";
	if (checked.bad_blocks && (pool_checkpoint(run->pool) ||
					  pool_check(run->pool, false, &checked, NULL, NULL, NULL)))
		return "check fails";
	if (checked.bad_blocks || checked.missing_chunks) {
		return "what is whole is wrong";
	}
	wholes++;
	return NULL;
}

/* Its host has booted: what is still on its way is gone with it. */
static void let_first_go(struct run *run, const struct sequence *first, uint64_t cut,
	const struct sequence *second, uint64_t *state)
{
	static const uint8_t boot[16] = {2};
	static struct pool_status status;
	struct error error = {0};

	let_some_arrive(state, 5);
	sim_drop_late(world);
	if (pool_rebooted(run->pool, "alpha", boot, &error))
		fail(first, cut, second, error.message);
	pool_status(run->pool, &status);
	if (status.other_owners[0])
		fail(first, cut, second, "the first owner is not let go");
	if (draw(state) % 2 && pool_maintain(run->pool))
		fail(first, cut, second, "maintenance fails");
	let_go_count++;
	if (draw(state) % 4) {
		const char *wrong = make_whole(run);

		if (wrong)
			fail(first, cut, second, wrong);
	}
}

static void must_check(
	struct run *run, const struct sequence *first, uint64_t cut, const struct sequence *second)
{
	const char *wrong = run_check(run);

	if (wrong)
		fail(first, cut, second, wrong);
}

/* All is there after a crash, too, opened by a later life of the same host. */
static void crash_and_open(struct run *run, struct model *model, const struct sequence *first,
	uint64_t cut, const struct sequence *second)
{
	must_check(run, first, cut, second);
	sim_cut_power(world);
	run_crash(run);
	sim_drain(world);
	sim_power_on(world, SIM_RANDOM);
	if (run_open(run))
		fail(first, cut, second, "it cannot be opened after a later owner's crash");
	must_match(run, model, first, cut, second);
	must_check(run, first, cut, second);
}

static const uint8_t later_boot[16] = {2};

/* While it lets the first go, or behind that; `after` is with what it may have done. */
static void pause_second(
	struct run *b, struct model *after, const struct sequence *second, uint64_t *state)
{
	const struct operation *op = &operations[second->op[draw(state) % second->length]];
	struct error error = {0};

	sim_hold_late(b->engine, true, true);
	sim_cut_host_at(b->engine, 1 + draw(state) % 120);
	pool_rebooted(b->pool, "alpha", later_boot, &error);
	if (draw(state) % 2)
		make_whole(b);
	if (draw(state) % 2)
		pool_maintain(b->pool);
	if (draw(state) % 2)
		pool_checkpoint(b->pool);
	b->salt = 300;
	op->run(b, op->a, op->b);
	op->model(after, op->a, op->b, 300);
	sim_cut_host(b->engine);
	run_crash(b);
}

/* `model` is what it finds. */
static void take_from_second(struct run *c, struct model *model, const struct model *after,
	const struct sequence *first, uint64_t cut, const struct sequence *second)
{
	const struct model *found;
	const char *wrong;

	if (sim_engine_create(world, &c->engine) || run_open(c))
		fail(first, cut, second, "the third owner cannot open the pool");
	found = adopt(c, model, after, &wrong);
	if (!found)
		fail(first, cut, second, wrong);
	if (found != model) {
		model_free(model);
		model_copy(model, found);
	}
	if (run_adopt(c, model))
		fail(first, cut, second, "what is there cannot be read by the third");
}

/* With writes of the first two arriving late. False: what is kept for them leaves it no room. */
static bool work_as_third(struct run *c, struct model *model, const struct sequence *first,
	uint64_t cut, const struct sequence *second, uint64_t *state)
{
	for (unsigned i = 0; i < second->length; i++) {
		const struct operation *op = &operations[second->op[i]];
		int got, want;

		let_some_arrive(state, 3);
		c->salt = 400 + i;
		got = op->run(c, op->a, op->b);
		want = op->model(model, op->a, op->b, 400 + i);
		if (got == -ENOSPC && got != want)
			return false;
		if (got != want)
			fail(first, cut, second, op->name);
		must_match(c, model, first, cut, second);
	}
	return true;
}

static void let_both_go(struct run *c, struct model *model, const struct sequence *first,
	uint64_t cut, const struct sequence *second, uint64_t *state)
{
	struct error error = {0};
	const char *wrong;

	let_some_arrive(state, 5);
	sim_drop_late(world);
	if (pool_rebooted(c->pool, "beta", later_boot, &error) ||
		pool_rebooted(c->pool, "alpha", later_boot, &error))
		fail(first, cut, second, error.message);
	if (draw(state) % 2 && pool_maintain(c->pool))
		fail(first, cut, second, "maintenance fails for the third");
	wrong = make_whole(c);
	if (wrong)
		fail(first, cut, second, wrong);
	must_match(c, model, first, cut, second);
	if (pool_checkpoint(c->pool))
		fail(first, cut, second, "no checkpoint by the third");
	for (unsigned i = 0; i < second->length; i++) {
		const struct operation *op = &operations[second->op[i]];

		c->salt = 500 + i;
		if (op->run(c, op->a, op->b) != op->model(model, op->a, op->b, 500 + i))
			fail(first, cut, second, op->name);
	}
	must_match(c, model, first, cut, second);
}

/* The second is paused while it lets the first go, or behind that, and a third takes over. */
static void third_owner(struct run *b, struct model *model, const struct sequence *first,
	uint64_t cut, const struct sequence *second, uint64_t *state)
{
	struct run c = {.host = "gamma", .force = true, .fenced = cut % 2, .boot = 1};
	struct model after;

	let_some_arrive(state, 5);
	sim_drop_late(world);
	model_copy(&after, model);
	pause_second(b, &after, second, state);
	take_from_second(&c, model, &after, first, cut, second);
	if (work_as_third(&c, model, first, cut, second, state)) {
		let_both_go(&c, model, first, cut, second, state);
		crash_and_open(&c, model, first, cut, second);
		thirds++;
	}
	run_crash(&c);
	sim_drain(world);
	engine_destroy(c.engine);
	model_free(&after);
}

static void second_owner(struct run *run, const struct model *before, const struct model *after,
	const struct sequence *first, uint64_t cut, const struct sequence *second, uint64_t *state)
{
	const struct model *found;
	struct model model;
	const char *wrong;
	unsigned when = (unsigned)(draw(state) % (2 * second->length + 1));
	bool lose = draw(state) % 2;
	const char *lost = device_paths[draw(state) % geometry.devices];
	bool third = draw(state) % 3 == 0 && !sequence_fills(second) && second->length < 8;

	if (sim_engine_create(world, &run->engine))
		abort();
	stumble(run, state);
	if (lose)
		sim_kill_device(world, lost);
	if (run_open(run))
		fail(first, cut, second, "the second owner cannot open the pool");
	if (lose)
		sim_revive_device(world, lost);
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

		if (i == when)
			let_first_go(run, first, cut, second, state);
		run->salt = 100 + i;
		got = op->run(run, op->a, op->b);
		want = op->model(&model, op->a, op->b, 100 + i);
		if (got != want)
			fail(first, cut, second, op->name);
		operation_done(op, got);
		let_some_arrive(state, 2);
		must_match(run, &model, first, cut, second);
	}
	if (third) {
		third_owner(run, &model, first, cut, second, state);
	} else {
		let_some_arrive(state, 10);
		crash_and_open(run, &model, first, cut, second);
	}
	model_free(&model);
}

static bool take_over(const struct sequence *first, uint64_t cut, const struct sequence *second)
{
	struct run a = {.host = "alpha", .boot = 1},
		   b = {.host = "beta", .force = true, .fenced = cut % 2, .boot = 1};
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
	printf("%lu take-overs, %lu behind one that failed, %lu of a third owner, %lu owners let "
	       "go, "
	       "%lu times made whole, %lu late writes released in %.1f s; --seed %llu\n",
		takeovers, stumbles, thirds, let_go_count, wholes, released, seconds_now() - began,
		(unsigned long long)seed);
	return takeovers && stumbles && released && thirds && wholes ? operations_report() : 1;
}
