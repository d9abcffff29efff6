/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* All pools at a glance: `status` and `pool list`. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "common/cluster.h"

/* "devices" as a count instead of the list, which `pool status` gives. */
static void count_devices(json_t *pool)
{
	char text[32];

	snprintf(text, sizeof(text), "%d/%d",
		(int)json_integer_value(json_object_get(pool, "devices_active")),
		(int)json_integer_value(json_object_get(pool, "device_count")));
	put_text(pool, "devices", text);
}

static json_t *unavailable(const char *name, const struct error *error)
{
	json_t *pool = json_object(), *row = json_object(), *list = json_array();
	char what[700], next[300];

	put_text(pool, "name", name);
	put_text(pool, "state", "unavailable");
	put_text(pool, "health", "unknown");
	json_object_set_new(pool, "error", error_json(error));
	snprintf(what, sizeof(what), "%s: %s", error->object, error->message);
	put_text(row, "what", what);
	snprintf(next, sizeof(next),
		"mend that; `millrace pool import` looks at all devices anew, and `millrace pool "
		"export --force %s` forgets a pool that is gone",
		name);
	put_text(row, "next", next);
	json_array_append_new(list, row);
	json_object_set_new(pool, "advice", list);
	return pool;
}

/* --- what only this end of the command knows ---------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

/* A writer of this host, that is no server, holds the pool's lock. */
static bool is_locked(const struct command *c, const char *name)
{
	struct error error = {0};
	int lock, rc = host_lock(command_run_dir(c), name, 0, &lock, &error);

	if (!rc)
		close(lock);
	return rc == -EBUSY;
}

/* Who has a pool that nobody serves here. */
static void refine_state(const struct command *c, json_t *pool)
{
	const char *state = text_of(pool, "state"), *owner = text_of(pool, "owner");

	if (!strcmp(state, "served") || !strcmp(state, "exported") || !strcmp(state, "reader"))
		return;
	if (*owner && strcmp(owner, command_host(c)))
		put_text(pool, "state", "other host");
	else if (!strcmp(state, "not closed") && is_locked(c, text_of(pool, "name")))
		put_text(pool, "state", "in use");
}

static void advise_state(json_t *pool)
{
	const char *state = text_of(pool, "state"), *name = text_of(pool, "name");
	char what[120] = "", next[400] = "";

	if (!strcmp(state, "exported")) {
		snprintf(what, sizeof(what), "it belongs to no host");
		snprintf(next, sizeof(next), "`millrace pool import %s` takes it", name);
	} else if (!strcmp(state, "other host") && host_is_member()) {
		snprintf(what, sizeof(what), "host %s had it last", text_of(pool, "owner"));
		snprintf(next, sizeof(next),
			"if `millrace service list` has it, use it on the node that serves it; "
			"else "
			"`millrace pool export %s` there and `millrace pool import %s` here",
			name, name);
	} else if (!strcmp(state, "other host")) {
		snprintf(what, sizeof(what), "it belongs to host %s", text_of(pool, "owner"));
		snprintf(next, sizeof(next),
			"use it there, or `millrace pool export %s` there and `millrace pool "
			"import %s` here; where that host is dead or fenced, `millrace pool import "
			"--force %s` here",
			name, name, name);
	} else if (!strcmp(state, "not closed")) {
		snprintf(what, sizeof(what), "the process that had it open has died");
		if (host_is_member())
			snprintf(next, sizeof(next),
				"if `millrace service list` has it, the cluster goes on from "
				"there; "
				"else `millrace serve %s` does",
				name);
		else
			snprintf(next, sizeof(next),
				"`millrace serve %s` goes on from there, and so does any verb that "
				"changes it; nothing that was acknowledged is lost",
				name);
	}
	if (*what)
		advice_add(json_object_get(pool, "advice"), what, next);
}

static bool is_a_path_of(const json_t *devices, const char *path)
{
	const json_t *device;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		if (!strcmp(text_of(device, "path"), path))
			return true;
	}
	return false;
}

/* Where devices were seen that are not found now. */
static void advise_places(const struct command *c, json_t *pool)
{
	json_t *paths = cache_paths(c, text_of(pool, "name")), *path;
	char what[1000] = "", next[100];
	size_t i, used = 0;

	json_array_foreach(paths, i, path)
	{
		if (used < sizeof(what) &&
			!is_a_path_of(json_object_get(pool, "devices"), json_string_value(path)))
			used += (size_t)snprintf(what + used, sizeof(what) - used, "%s%s",
				used ? ", " : "the missing devices were last seen as ",
				json_string_value(path));
	}
	snprintf(next, sizeof(next), "`millrace pool %s %s` looks for them everywhere",
		host_is_member() ? "attach" : "import", text_of(pool, "name"));
	if (used)
		advice_add(json_object_get(pool, "advice"), what, next);
	json_decref(paths);
}

static bool has_missing(const json_t *pool)
{
	const json_t *device;
	size_t i;

	json_array_foreach(json_object_get(pool, "devices"), i, device)
	{
		if (!strcmp(text_of(device, "state"), "missing"))
			return true;
	}
	return false;
}

/* Where the cause of a failure is told; a server in the foreground has logged elsewhere. */
static void advise_log(const struct command *c, json_t *pool)
{
	const char *name = text_of(pool, "name");
	char path[4096], hint[4200];

	server_log_path(c, name, path);
	if (strcmp(text_of(pool, "health"), "failed") ||
		(!systemd_has_unit(c, name) && access(path, R_OK)))
		return;
	server_log_hint(c, name, hint, sizeof(hint));
	advice_add(json_object_get(pool, "advice"), "its server has logged why", hint);
}

static void refine(const struct command *c, json_t *pool)
{
	refine_state(c, pool);
	advise_log(c, pool);
	if (has_missing(pool))
		advise_places(c, pool);
	advise_state(pool);
}

int command_pool_status(struct command *c)
{
	json_t *pool;
	int rc = command_run_on_pool(c);

	pool = json_object_get(c->result, "pool");
	if (pool)
		refine(c, pool);
	return rc;
}

static json_t *look_at(struct command *c, const char *name)
{
	json_t *args = json_pack("{s:s}", "pool", name), *result = json_object(), *pool;
	struct error error = {0};

	if (pool_verb(c, verb_find("pool", "status"), args, result, &error)) {
		pool = unavailable(name, &error);
	} else {
		pool = json_incref(json_object_get(result, "pool"));
		refine(c, pool);
		count_devices(pool);
	}
	json_decref(result);
	json_decref(args);
	return pool;
}

/* Each pool's advice moves into one list for all. */
static void gather_advice(json_t *all, json_t *pool)
{
	json_t *list = json_object_get(pool, "advice"), *row;
	size_t i;

	json_array_foreach(list, i, row)
	{
		json_object_set(row, "pool", json_object_get(pool, "name"));
		json_array_append(all, row);
	}
	json_object_del(pool, "advice");
}

int command_status(struct command *c)
{
	json_t *names = cache_names(c), *name, *pools = json_array(), *advice = json_array();
	size_t i;

	json_array_foreach(names, i, name)
	{
		json_t *pool = look_at(c, json_string_value(name));
		const char *health = json_string_value(json_object_get(pool, "health"));

		c->degraded |= !health || strcmp(health, "healthy");
		gather_advice(advice, pool);
		json_array_append_new(pools, pool);
	}
	json_decref(names);
	put_bool(c->result, "degraded", c->degraded);
	json_object_set_new(c->result, "pools", pools);
	json_object_set_new(c->result, "advice", advice);
	return 0;
}

int command_pool_list(struct command *c)
{
	int rc = command_status(c);

	json_object_del(c->result, "advice");
	json_object_del(c->result, "degraded");
	c->degraded = false;
	return rc;
}
