/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The command's end of the control socket. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/socket.h"

#define ANSWER_MAX (64u << 20) /* bytes of a line */
#define SILENCE_SECONDS 60 /* the server says every 5 s that it is alive */

int client_connect(const struct command *command, const char *pool, int *fd, struct error *error)
{
	char path[4096];
	int rc = control_path(command_run_dir(command), pool, path, sizeof(path));

	*fd = -1;
	if (rc)
		return error_set(error, rc, command_run_dir(command), "the name is too long");
	*fd = socket_connect(path);
	if (*fd >= 0)
		return 0;
	if (*fd == -ENOENT || *fd == -ECONNREFUSED || *fd == -ENOTDIR)
		return -ENOENT;
	if (*fd == -EAGAIN)
		return error_set(error, -ETIMEDOUT, pool,
			"its server takes no connections: too many wait for it already");
	return error_set(error, *fd, path, "the server cannot be reached: %s%s", strerror(-*fd),
		*fd == -EACCES ? "; run as root" : "");
}

bool pool_is_served(const struct command *command, const char *pool)
{
	int fd, rc = client_connect(command, pool, &fd, NULL);

	if (!rc)
		close(fd);
	return rc != -ENOENT;
}

bool pool_is_known(const struct command *command, const char *pool)
{
	json_t *names = cache_names(command), *one;
	bool known = false;
	size_t i;

	json_array_foreach(names, i, one)
	{
		known |= !strcmp(json_string_value(one), pool);
	}
	json_decref(names);
	return known;
}

bool socket_is_live(const struct command *command, const char *pool)
{
	char path[4096];
	int lock;

	if (pool_is_served(command, pool))
		return true;
	if (host_lock(command_run_dir(command), pool, 0, &lock, NULL))
		return false;
	if (!pool_is_served(command, pool) &&
		!control_path(command_run_dir(command), pool, path, sizeof(path)))
		unlink(path);
	close(lock);
	return false;
}

static int send_request(int fd, const struct verb *verb, const json_t *args)
{
	json_t *line = json_object(), *words = json_array();
	char *text;
	int rc;

	json_array_append_new(words, json_string(verb->noun));
	if (verb->name)
		json_array_append_new(words, json_string(verb->name));
	put_integer(line, "schema", 1);
	json_object_set_new(line, "verb", words);
	json_object_set(line, "args", (json_t *)(uintptr_t)args);
	text = json_dumps(line, JSON_COMPACT);
	json_decref(line);
	if (!text)
		return -ENOMEM;
	rc = strlen(text) < CONTROL_REQUEST_MAX ? socket_send(fd, text, strlen(text)) : -E2BIG;
	if (!rc)
		rc = socket_send(fd, "\n", 1);
	free(text);
	return rc;
}

/* The code of an error that came as JSON: by its errno's name. */
static int code_of(const char *name)
{
	for (int code = 1; name && code < 134; code++) {
		const char *other = strerrorname_np(code);

		if (other && !strcmp(other, name))
			return -code;
	}
	return -EIO;
}

static int take_error(const json_t *object, struct error *error)
{
	const char *about = json_string_value(json_object_get(object, "object"));
	const char *message = json_string_value(json_object_get(object, "message"));
	int code = code_of(json_string_value(json_object_get(object, "errno")));

	return error_set(error, code, about ? about : "", "%s", message ? message : "it failed");
}

/* True when it was the last one. */
static bool take_line(
	const json_t *line, struct reporter *reporter, json_t *result, struct error *error)
{
	json_t *progress = json_object_get(line, "progress");
	const char *note = json_string_value(json_object_get(line, "note"));
	const json_t *failure = json_object_get(line, "error");
	json_t *answer = json_object_get(line, "result");

	if (progress)
		reporter->progress(reporter, progress);
	if (note)
		reporter->note(reporter, note);
	if (answer)
		json_object_update(result, answer);
	if (failure)
		take_error(failure, error);
	return answer || failure;
}

/* Looks twice a second whether the user wants to stop. */
static int next_line(const struct command *command, struct line_reader *reader,
	struct reporter *reporter, const char **line, size_t *length)
{
	double deadline = seconds_now() + SILENCE_SECONDS;

	if (command->deadline && command->deadline < deadline)
		deadline = command->deadline;
	for (;;) {
		int rc;

		if (reporter->stopped(reporter))
			return -EINTR;
		rc = line_read(reader, seconds_now() + 0.5, line, length);
		if (rc != -ETIMEDOUT)
			return rc;
		if (seconds_now() >= deadline)
			return -ETIMEDOUT;
	}
}

static int client_story(
	const struct command *command, const char *pool, int rc, struct error *error)
{
	char hint[300];

	server_log_hint(command, pool, hint, sizeof(hint));
	if (rc == -ETIMEDOUT && command->deadline)
		return error_set(error, rc, pool, "its server has not answered in time: %s", hint);
	if (rc == -ETIMEDOUT)
		return error_set(error, rc, pool,
			"its server has given no sign of life for %u s: %s", SILENCE_SECONDS, hint);
	if (rc == -EPIPE || rc == -ECONNRESET)
		return error_set(error, -EIO, pool,
			"its server ended the connection: %s, and whether this was done", hint);
	if (rc == -EINTR)
		return error_set(error, rc, pool, "interrupted; the server was told to stop it");
	return error_set(error, rc, pool, "its server's answer cannot be used: %s", strerror(-rc));
}

static int read_answer(const struct command *command, int fd, const char *pool, json_t *result,
	struct error *error)
{
	struct reporter *reporter = terminal_reporter();
	struct line_reader reader = {.fd = fd, .limit = ANSWER_MAX};
	bool last = false;
	int rc = 0;

	while (!rc && !last) {
		const char *text;
		size_t length;
		json_t *line;

		rc = next_line(command, &reader, reporter, &text, &length);
		if (rc)
			break;
		line = json_loadb(text, length, 0, NULL);
		if (line)
			last = take_line(line, reporter, result, error);
		else
			rc = -EBADMSG;
		json_decref(line);
	}
	line_reader_free(&reader);
	return rc ? client_story(command, pool, rc, error) : error->code;
}

int client_call(const struct command *command, int fd, const char *pool, const struct verb *verb,
	const json_t *args, json_t *result, struct error *error)
{
	int rc = send_request(fd, verb, args);

	if (rc == -E2BIG)
		error_set(error, rc, pool, "the arguments are too long for a served pool");
	else
		rc = read_answer(command, fd, pool, result, error);
	close(fd);
	return rc;
}
