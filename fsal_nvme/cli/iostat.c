/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * `pool iostat`, the end that shows: totals of served pools, asked for again and again, and what
 * became more between two of them, by the second. The first answer is of all the time since the
 * pools were opened, as zpool's.
 */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/socket.h"

#define SECOND 1e9

/* What is counted, and how it is called by the second. */
static const struct {
	const char *total, *rate;
} counted[] = {
	{"reads", "read_rate"},
	{"read_bytes", "read_byte_rate"},
	{"writes", "write_rate"},
	{"write_bytes", "write_byte_rate"},
	{"flushes", "flush_rate"},
	{"commits", "commit_rate"},
	{"transactions", "transaction_rate"},
	{"errors", "error_rate"},
	{"copied_bytes", "copied_byte_rate"},
};

/* Time that was waited for all, by the one. */
static const struct {
	const char *time, *count, *wait;
} waited[] = {
	{"read_time", "reads", "read_wait"},
	{"write_time", "writes", "write_wait"},
	{"flush_time", "flushes", "flush_wait"},
};

static double number(const json_t *row, const char *key)
{
	return (double)json_integer_value(json_object_get(row, key));
}

/* --- one row ----------------------------------------------------------------------------- */

/* What it was when it was looked at last; NULL: it was not there, or has begun anew. */
static const json_t *find_before(const json_t *list, const json_t *now, const char *key)
{
	const json_t *pool = json_object_get(now, "pool"), *row;
	size_t i;

	json_array_foreach(list, i, row)
	{
		const json_t *other = json_object_get(row, "pool");

		if (json_equal(json_object_get(row, key), json_object_get(now, key)) &&
			(!pool || json_equal(pool, other)))
			return number(row, "elapsed") <= number(now, "elapsed") ? row : NULL;
	}
	return NULL;
}

static void put_rates(json_t *row, const json_t *now, const json_t *before, double elapsed)
{
	for (unsigned i = 0; i < sizeof(counted) / sizeof(counted[0]); i++) {
		const char *key = counted[i].total;
		double more = number(now, key) - number(before, key);

		if (!json_object_get(now, key))
			continue;
		put_integer(row, key, (uint64_t)more);
		put_integer(row, counted[i].rate,
			elapsed > 0 ? (uint64_t)(more * SECOND / elapsed + 0.5) : 0);
	}
}

static void put_waits(json_t *row, const json_t *now, const json_t *before)
{
	for (unsigned i = 0; i < sizeof(waited) / sizeof(waited[0]); i++) {
		double time = number(now, waited[i].time) - number(before, waited[i].time);
		double count = number(now, waited[i].count) - number(before, waited[i].count);

		if (json_object_get(now, waited[i].time))
			put_integer(row, waited[i].wait,
				count > 0 ? (uint64_t)(time / count + 0.5) : 0);
	}
}

static json_t *difference(const json_t *now, const json_t *before)
{
	static const char *const same[] = {"pool", "name", "id", "path", "state", "queue"};
	double elapsed = number(now, "elapsed") - number(before, "elapsed");
	json_t *row = json_object();

	for (unsigned i = 0; i < sizeof(same) / sizeof(same[0]); i++)
		if (json_object_get(now, same[i]))
			json_object_set(row, same[i], json_object_get(now, same[i]));
	json_object_set_new(row, "seconds", json_real(elapsed / SECOND));
	put_rates(row, now, before, elapsed);
	put_waits(row, now, before);
	return row;
}

/* --- one answer -------------------------------------------------------------------------- */

static void show(struct command *c, const json_t *now, const json_t *before)
{
	static const struct {
		const char *list, *key;
	} lists[] = {{"pools", "name"}, {"devices", "id"}, {"volumes", "name"}};

	for (unsigned i = 0; i < 3; i++) {
		const json_t *old = json_object_get(before, lists[i].list), *row;
		json_t *rows = json_array();
		size_t at;

		json_array_foreach(json_object_get(now, lists[i].list), at, row)
		{
			json_array_append_new(
				rows, difference(row, find_before(old, row, lists[i].key)));
		}
		json_object_set_new(c->result, lists[i].list, rows);
	}
}

/* -ENOENT, without a word: it is not served. */
static int ask(struct command *c, const char *pool, json_t *totals, struct error *error)
{
	json_t *args = json_pack("{s:s}", "pool", pool), *result = json_object(), *list;
	const char *key;
	int fd, rc = client_connect(c, pool, &fd, error);

	if (!rc)
		rc = client_call(c, fd, pool, c->verb, args, result, error);
	json_object_foreach(result, key, list)
	{
		json_array_extend(json_object_get(totals, key), list);
	}
	json_decref(result);
	json_decref(args);
	return rc;
}

static int ask_one(struct command *c, const char *pool, json_t *totals)
{
	struct error error = {0};
	int rc = ask(c, pool, totals, &error);

	if (rc == -ENOENT && !error.code && !pool_is_known(c, pool))
		return error_set(&c->error, rc, pool,
			"no such pool is known here: see `millrace pool list`");
	if (rc == -ENOENT && !error.code)
		return error_set(&c->error, rc, pool,
			"it is not being served, and only its server counts what goes on: "
			"`millrace serve %s` starts one",
			pool);
	return rc ? error_set(&c->error, rc, error.object, "%s", error.message) : 0;
}

static int ask_all(struct command *c, json_t *totals)
{
	json_t *names = cache_names(c), *name;
	size_t i;

	json_array_foreach(names, i, name)
	{
		struct error error = {0};
		int rc = ask(c, json_string_value(name), totals, &error);

		if (rc && (rc != -ENOENT || error.code))
			error_set(&c->error, rc, error.object, "%s", error.message);
	}
	json_decref(names);
	return c->error.code;
}

/* --- again and again --------------------------------------------------------------------- */

struct watch {
	char pool[POOL_NAME_MAX + 1]; /* "": all */
	uint64_t interval; /* seconds; 0: once */
	uint64_t count; /* 0: for ever */
};

/* False: the user has had enough. */
static bool wait_until(double when)
{
	struct reporter *reporter = terminal_reporter();
	double left;

	while (!reporter->stopped(reporter) && (left = when - seconds_now()) > 0) {
		struct timespec pause = {.tv_sec = (time_t)left};

		pause.tv_nsec = (long)((left - (double)pause.tv_sec) * SECOND);
		nanosleep(&pause, NULL);
	}
	return !reporter->stopped(reporter);
}

/* An answer that others follow. */
static void print_now(struct command *c)
{
	output_print(c);
	if (!command_json(c))
		printf("\n");
	fflush(stdout);
	json_object_clear(c->result);
}

/* The last answer is left to be printed with the command's end, if it is known to be the last. */
static int watch(struct command *c, const struct watch *w)
{
	json_t *before = NULL, *totals = NULL;
	double next = seconds_now();
	uint64_t told = 0;
	bool more = true;
	int rc = 0;

	signal(SIGPIPE, SIG_DFL); /* no pool is open here: it ends with its reader */
	while (!rc && more) {
		json_decref(before);
		before = totals;
		totals = json_pack("{s:[],s:[],s:[]}", "pools", "devices", "volumes");
		rc = w->pool[0] ? ask_one(c, w->pool, totals) : ask_all(c, totals);
		show(c, totals, before); /* of those that answered */
		more = !rc && w->interval && ++told != w->count;
		if (!more)
			break;
		print_now(c);
		next += (double)w->interval;
		more = !ferror(stdout) && wait_until(next);
		c->answered = !more;
	}
	json_decref(before);
	json_decref(totals);
	return rc;
}

/* "iostat 5" and "iostat 5 3": of all pools, as the user of zpool has it. */
static bool is_number(const struct command *c, const char *text, uint64_t *value)
{
	for (const char *at = text; *at; at++)
		if (!isdigit((unsigned char)*at))
			return false;
	*value = strtoull(text, NULL, 10);
	return *value && *value <= 86400 && !pool_is_known(c, text);
}

static uint64_t argument(const struct command *c, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(c->args, name));
}

int command_pool_iostat(struct command *c)
{
	const char *pool = json_string_value(json_object_get(c->args, "pool"));
	struct watch w = {.interval = argument(c, "interval"), .count = argument(c, "count")};
	uint64_t number;
	int rc;

	if (pool && !w.count && is_number(c, pool, &number)) {
		w.count = w.interval;
		w.interval = number;
	} else if (pool) {
		rc = object_split(pool, w.pool, NULL, &c->error);
		if (rc)
			return rc;
	}
	return watch(c, &w);
}
