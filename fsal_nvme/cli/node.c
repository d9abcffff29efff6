/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* `node status` and `node update`: appliance/root/usr/lib/millrace/node does it. */
#include "cli/command.h"

#include <stdio.h>

int command_node_status(struct command *command)
{
	const char *const words[] = {"status", NULL};
	json_t *node = json_object();
	int rc = helper_run(command, "node", words, "node", node);

	if (!rc)
		json_object_set(command->result, "node", node);
	json_decref(node);
	return rc;
}

int command_node_update(struct command *command)
{
	const json_t *args = command->args;
	const char *file = json_string_value(json_object_get(args, "file"));
	bool later = json_object_get(args, "later");
	const char *const words[] = {"update", file,
		json_object_get(args, "force") ? "force" : "newer", later ? "later" : "now", NULL};
	json_t *update = json_object();
	char text[300];
	int rc = helper_run(command, "node", words, file, update);

	if (!rc) {
		json_object_set(command->result, "update", update);
		snprintf(text, sizeof(text),
			"Version %.100s is written. %s tries it: it stays if all comes up, and "
			"else this version comes back.",
			json_string_value(json_object_get(update, "version")),
			later ? "The next boot" : "This node boots now, and");
		put_text(command->result, "message", text);
	}
	json_decref(update);
	return rc;
}
