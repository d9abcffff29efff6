/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The server's log: where it is, and what it says of a start that went wrong. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"

#define LOG_TAIL 16000 /* bytes */

void server_log_path(const struct command *command, const char *pool, char path[4096])
{
	snprintf(path, 4096, "%.3900s/log/%s%s.log", command_state_dir(command), pool,
		command->reader ? "@reader" : "");
}

void server_log_hint(const struct command *command, const char *pool, char *text, size_t size)
{
	char path[4096];

	server_log_path(command, pool, path);
	if (systemd_has_unit(command, pool))
		snprintf(text, size, "see `journalctl -u millrace-%s%s`",
			command->reader ? "reader@" : "", pool);
	else
		snprintf(text, size, "see its log, %s", path);
}

/* "DATE : epoch ... :COMPONENT :LEVEL :text": the text, if it is of this level. */
static const char *log_text(const char *line, const char *level)
{
	char mark[16];
	const char *at;

	snprintf(mark, sizeof(mark), " :%s :", level);
	at = strstr(line, mark);
	return at ? at + strlen(mark) : NULL;
}

/* The first line of the log that says what went wrong, and a warning right before it, which often
 * says why; those behind it follow from it. */
static bool find_reason(char *text, char *reason, size_t size)
{
	const char *warning = NULL, *found = NULL;
	char *line;

	while (!found && (line = strsep(&text, "\n"))) {
		found = log_text(line, "CRIT");
		if (!found)
			found = log_text(line, "FATAL");
		if (!found)
			warning = log_text(line, "WARN");
	}
	if (found)
		snprintf(reason, size, "%.100s%s%.190s", warning ? warning : "",
			warning ? ": " : "", found);
	return found != NULL;
}

/* What was written last, from `from` on. */
static void read_log(const char *path, off_t from, char text[LOG_TAIL + 1])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
	ssize_t got = 0;

	if (end - from > LOG_TAIL)
		from = end - LOG_TAIL;
	if (fd >= 0) {
		got = pread(fd, text, LOG_TAIL, from);
		close(fd);
	}
	text[got > 0 ? got : 0] = 0;
}

void server_log_reason(const char *path, off_t from, char *reason, size_t size)
{
	struct reporter *reporter = terminal_reporter();
	char text[LOG_TAIL + 1], copy[LOG_TAIL + 1], *rest = text, *line;

	read_log(path, from, text);
	memcpy(copy, text, sizeof(copy));
	reason[0] = 0;
	if (find_reason(copy, reason, size))
		return;
	while ((line = strsep(&rest, "\n"))) {
		if (*line)
			reporter->note(reporter, line);
	}
}
