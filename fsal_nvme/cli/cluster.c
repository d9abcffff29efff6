/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Verbs of a cluster: `cluster`, `service` and `client`, and draining a node. Programs of ha/bin do
 * them; they are given the verb, and each argument as NAME=VALUE, as often as it was given.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "common/cluster.h"

#define ARGUMENTS_MAX 40

struct words {
	const char *list[ARGUMENTS_MAX + 2];
	unsigned count;
};

static int add(struct words *words, const char *name, const json_t *value, struct error *error)
{
	char *text = NULL;
	int rc;

	if (words->count > ARGUMENTS_MAX)
		return error_set(error, -EINVAL, name, "it is given too often");
	if (json_is_integer(value))
		rc = asprintf(&text, "%s=%lld", name, (long long)json_integer_value(value));
	else
		rc = asprintf(&text, "%s=%s", name,
			json_is_string(value) ? json_string_value(value) : "1");
	if (rc < 0)
		return -ENOMEM;
	words->list[words->count++] = text;
	return 0;
}

static int add_all(struct words *words, json_t *args, struct error *error)
{
	const char *name;
	json_t *value, *one;
	size_t i;
	int rc = 0;

	json_object_foreach(args, name, value)
	{
		if (!json_is_array(value)) {
			rc = add(words, name, value, error);
		} else {
			json_array_foreach(value, i, one) rc =
				rc ? rc : add(words, name, one, error);
		}
		if (rc)
			break;
	}
	return rc;
}

/* What an error is about. */
static const char *object_of(const struct command *command)
{
	static const char *const names[] = {"name", "node", "leader", "host", "volume"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *text = json_string_value(json_object_get(command->args, names[i]));

		if (text)
			return text;
	}
	return command->verb->noun;
}

static int run(struct command *command, const char *helper)
{
	struct words words = {{command->verb->name}, 1};
	int rc = add_all(&words, command->args, &command->error);

	if (!rc)
		rc = helper_run(command, helper, words.list, object_of(command), command->result);
	for (unsigned i = 1; i < words.count; i++)
		free((char *)(uintptr_t)words.list[i]);
	return rc;
}

static const char *text_of(const struct command *command, const char *object, const char *member)
{
	return json_string_value(json_object_get(json_object_get(command->result, object), member));
}

static void say_token(struct command *command)
{
	char text[700];

	snprintf(text, sizeof(text),
		"Within an hour, one other node can join cluster %.60s:\n\n  %.500s",
		text_of(command, "cluster", "name"), text_of(command, "cluster", "command"));
	put_text(command->result, "message", text);
}

static void say_where(struct command *command)
{
	char text[300];

	snprintf(text, sizeof(text), "Service %.60s is served by %.70s.",
		text_of(command, "service", "name"), text_of(command, "service", "node"));
	put_text(command->result, "message", text);
}

static void say_joined(struct command *command)
{
	char text[200];

	snprintf(text, sizeof(text), "This node is in cluster %.60s.",
		text_of(command, "cluster", "name"));
	put_text(command->result, "message", text);
}

int command_cluster(struct command *command)
{
	int rc = run(command, "cluster");

	if (!rc && text_of(command, "cluster", "token"))
		say_token(command);
	else if (!rc && !strcmp(command->verb->name, "join"))
		say_joined(command);
	return rc;
}

int command_service(struct command *command)
{
	int rc = run(command, "service");

	if (!rc && text_of(command, "service", "node"))
		say_where(command);
	return rc;
}

int command_client(struct command *command)
{
	int rc = run(command, "client");

	if (!rc)
		put_text(command->result, "message", text_of(command, "mount", "command"));
	return rc;
}

/* What the cluster cannot tell is taken for an error: whoever asks is about to write. */
static int service_of_pool(
	struct command *c, const struct pool_summary *pool, char *service, struct error *error)
{
	char name[POOL_NAME_MAX + 8], uuid[64];
	json_t *text = json_uuid(pool->uuid), *result = json_object();
	const char *words[] = {"of", name, uuid, NULL}, *found;
	int rc;

	snprintf(name, sizeof(name), "pool=%s", pool->name);
	snprintf(uuid, sizeof(uuid), "uuid=%s", json_string_value(text));
	rc = helper_run(c, "service", words, pool->name, result);
	if (rc && error != &c->error) {
		error_set(error, rc, pool->name, "%s", c->error.message);
		error_clear(&c->error);
	}
	found = json_string_value(json_object_get(json_object_get(result, "service"), "name"));
	snprintf(service, SERVICE_NAME_MAX + 1, "%s", found ? found : "");
	json_decref(result);
	json_decref(text);
	return rc;
}

/* As ha/bin has it: both, or its making was cut off, and nothing serves. */
static bool cluster_is_made(void)
{
	return host_is_member() && !access("/etc/corosync/corosync.conf", F_OK);
}

int refuse_besides_service(struct command *c, const struct pool_summary *pool, struct error *error)
{
	char service[SERVICE_NAME_MAX + 1] = "";
	int rc = cluster_is_made() ? service_of_pool(c, pool, service, error) : 0;

	if (rc || !*service)
		return rc;
	return error_set(error, -EBUSY, pool->name,
		"service %s of this cluster is to serve it, and does not here, now: say this on "
		"the node that `millrace service list` shows (or, to change a pool that is not "
		"served, behind `pcs resource disable %s-server`)",
		service, service);
}
