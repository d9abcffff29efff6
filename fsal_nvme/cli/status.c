/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* All pools at a glance: `status` and `pool list`. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

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
	char what[700];

	put_text(pool, "name", name);
	put_text(pool, "state", "unavailable");
	put_text(pool, "health", "unknown");
	json_object_set_new(pool, "error", error_json(error));
	snprintf(what, sizeof(what), "%s: %s", error->object, error->message);
	put_text(row, "what", what);
	put_text(row, "next", "mend that; `millrace pool import` looks at all devices anew");
	json_array_append_new(list, row);
	json_object_set_new(pool, "advice", list);
	return pool;
}

/* A pool that is another host's is not merely idle. */
static void name_owner(const struct command *c, json_t *pool)
{
	const char *owner = json_string_value(json_object_get(pool, "owner"));
	const char *state = json_string_value(json_object_get(pool, "state"));

	if (owner && *owner && state && strcmp(state, "served") && strcmp(owner, command_host(c)))
		put_text(pool, "state", "other host");
}

int command_pool_status(struct command *c)
{
	int rc = command_run_on_pool(c);

	name_owner(c, json_object_get(c->result, "pool"));
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
		count_devices(pool);
		name_owner(c, pool);
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
