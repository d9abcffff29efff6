/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * `node status` and `node update`: the appliance's own program does it
 * (appliance/root/usr/lib/millrace/node), since it is partitions, a boot loader's file and units.
 * It answers in lines of a word and its value; "progress" and "error" are told, all others are the
 * answer. Its exit code is the command's.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/command.h"

#define HELPER "../lib/millrace/node" /* beside the directory of the command */

extern char **environ;

static int locate(char *path, size_t size, struct error *error)
{
	char here[3900];
	ssize_t length = readlink("/proc/self/exe", here, sizeof(here) - 1);

	here[length > 0 ? length : 0] = 0;
	snprintf(path, size, "%s/" HELPER, dirname(here));
	if (!access(path, X_OK))
		return 0;
	return error_set(error, -EOPNOTSUPP, "node",
		"this host was not booted from the image of the appliance, which alone has node "
		"verbs");
}

/* `words` ends with NULL. */
static int start(const char *const *words, pid_t *child, FILE **answer, struct error *error)
{
	posix_spawn_file_actions_t actions;
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	rc = posix_spawn(child, words[0], &actions, NULL, (char *const *)(uintptr_t)words, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	*answer = rc ? NULL : fdopen(ends[0], "r");
	if (*answer)
		return 0;
	close(ends[0]);
	return error_set(error, rc ? -rc : -ENOMEM, words[0], "it cannot be run: %s", strerror(rc));
}

static void tell_progress(const char *text)
{
	struct reporter *reporter = terminal_reporter();
	json_t *progress = json_object();

	put_text(progress, "what", text);
	reporter->progress(reporter, progress);
	json_decref(progress);
}

/* The reason goes to `reason`. */
static void take_answer(FILE *answer, json_t *result, char *reason, size_t size)
{
	char *line = NULL;
	size_t room = 0;

	while (getline(&line, &room, answer) > 0) {
		char *value = strchr(line, ' ');

		line[strcspn(line, "\n")] = 0;
		if (!value)
			continue;
		*value++ = 0;
		if (!strcmp(line, "progress"))
			tell_progress(value);
		else if (!strcmp(line, "error"))
			snprintf(reason, size, "%s", value);
		else
			json_object_set_new(result, line, json_text(value));
	}
	free(line);
}

static int errno_of(int status)
{
	static const int codes[] = {0, -EIO, -EINVAL, -ENOENT, -EBUSY};

	if (!WIFEXITED(status) || WEXITSTATUS(status) >= (int)(sizeof(codes) / sizeof(codes[0])))
		return -EIO;
	return codes[WEXITSTATUS(status)];
}

/* What is answered goes into `result`. */
static int run(struct command *c, const char *const *words, const char *object, json_t *result)
{
	char reason[400] = "it failed, and did not say why";
	FILE *answer;
	pid_t child;
	int status, rc = start(words, &child, &answer, &c->error);

	if (rc)
		return rc;
	take_answer(answer, result, reason, sizeof(reason));
	fclose(answer);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	rc = errno_of(status);
	return rc ? error_set(&c->error, rc, object, "%s", reason) : 0;
}

int command_node_status(struct command *command)
{
	char helper[4096];
	const char *const words[] = {helper, "status", NULL};
	json_t *node = json_object();
	int rc = locate(helper, sizeof(helper), &command->error);

	if (!rc)
		rc = run(command, words, "node", node);
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
	char helper[4096], text[300];
	const char *const words[] = {helper, "update", file,
		json_object_get(args, "force") ? "force" : "newer", later ? "later" : "now", NULL};
	json_t *update = json_object();
	int rc = locate(helper, sizeof(helper), &command->error);

	if (!rc)
		rc = run(command, words, file, update);
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
