/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Programs of the appliance that do what a verb is about, since it is partitions, units, a
 * boot loader's file in `node` (appliance/root/usr/lib/millrace), a cluster's configuration in
 * `cluster`, `service` and `client` (ha/bin).
 * They answer in lines of a word and its value. "progress" and "error" are told; "json" has an
 * object whose members are the answer, and all other words are members of it. The exit code is the
 * command's.
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

#define HELPERS "../lib/millrace" /* beside the directory of the command */
#define WORDS_MAX 64

extern char **environ;

static int locate(const char *helper, char *path, size_t size, struct error *error)
{
	char here[3900];
	ssize_t length = readlink("/proc/self/exe", here, sizeof(here) - 1);

	here[length > 0 ? length : 0] = 0;
	snprintf(path, size, "%s/" HELPERS "/%s", dirname(here), helper);
	if (!access(path, X_OK))
		return 0;
	return error_set(error, -EOPNOTSUPP, helper,
		"%s is not there: the image of the appliance has it, and cluster, service and "
		"client come "
		"with the package too",
		path);
}

/* `words` ends with NULL. */
static int start(const char *const *words, pid_t *child, FILE **answer, struct error *error)
{
	posix_spawn_file_actions_t actions;
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC))
		return error_set(error, -errno, words[0], "it cannot be run: %s", strerror(errno));
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

static void take_members(const char *text, json_t *result)
{
	json_t *members = json_loads(text, 0, NULL);

	json_object_update(result, members);
	json_decref(members);
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
		else if (!strcmp(line, "json"))
			take_members(value, result);
		else
			json_object_set_new(result, line, json_text(value));
	}
	free(line);
}

static int errno_of(int status)
{
	static const int codes[] = {0, -EIO, -EINVAL, -ENOENT, -EBUSY, -EIO, -EACCES, -ETIMEDOUT};

	if (!WIFEXITED(status) || WEXITSTATUS(status) >= (int)(sizeof(codes) / sizeof(codes[0])))
		return -EIO;
	return codes[WEXITSTATUS(status)];
}

static int run(struct command *c, const char *const *words, const char *object, json_t *result)
{
	char reason[600] = "it failed, and did not say why";
	FILE *answer;
	pid_t child;
	int status, rc = start(words, &child, &answer, &c->error);

	if (rc)
		return rc;
	take_answer(answer, result, reason, sizeof(reason));
	fclose(answer);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return error_set(&c->error, -errno, object, "%s", strerror(errno));
	rc = errno_of(status);
	return rc ? error_set(&c->error, rc, object, "%s", reason) : 0;
}

int helper_run(struct command *command, const char *helper, const char *const *words,
	const char *object, json_t *result)
{
	const char *all[WORDS_MAX + 2];
	char path[4096];
	unsigned count = 1;
	int rc = locate(helper, path, sizeof(path), &command->error);

	if (rc)
		return rc;
	all[0] = path;
	for (; *words && count < WORDS_MAX; words++)
		all[count++] = *words;
	all[count] = NULL;
	return run(command, all, object, result);
}
