/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* `serve --enable`: a unit of systemd per pool, which runs `serve --foreground`. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/command.h"

#define UNITS "/etc/systemd/system"

extern char **environ;

static int run(const char *verb, const char *unit)
{
	char *const argv[] = {"systemctl", (char *)(uintptr_t)verb, (char *)(uintptr_t)unit, NULL};
	pid_t child;
	int status, rc = posix_spawnp(&child, argv[0], NULL, NULL, argv, environ);

	if (rc)
		return -rc;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EIO;
}

/* systemd.service(5), "Command lines": quotes, and two characters that are written twice. */
static void print_word(FILE *file, const char *word)
{
	fputs(" \"", file);
	for (; *word; word++) {
		if (*word == '%' || *word == '$')
			fputc(*word, file);
		if (*word == '"' || *word == '\\')
			fputc('\\', file);
		fputc(*word, file);
	}
	fputc('"', file);
}

static void print_option(FILE *file, const char *name, const json_t *value)
{
	char text[32];

	if (!value)
		return;
	fprintf(file, " --%s", name);
	if (json_is_string(value)) {
		print_word(file, json_string_value(value));
		return;
	}
	snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
	print_word(file, text);
}

static void print_command(FILE *file, const struct command *c, const char *pool)
{
	static const char *const own[] = {"listen", "port", "lease"};
	static const char *const common[] = {"state-dir", "run-dir", "host"};
	char program[4096];
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

	program[length > 0 ? length : 0] = 0;
	fprintf(file, "ExecStart=");
	print_word(file, program);
	fprintf(file, " serve --foreground");
	for (unsigned i = 0; i < 3; i++)
		print_option(file, own[i], json_object_get(c->args, own[i]));
	for (unsigned i = 0; i < 3; i++)
		print_option(file, common[i], json_object_get(c->common, common[i]));
	print_word(file, pool);
	fputc('\n', file);
}

static int write_unit(struct command *c, const char *path, const char *pool)
{
	FILE *file = fopen(path, "we");
	int rc = 0;

	if (!file)
		return error_set(
			&c->error, -errno, path, "it cannot be written: %s", strerror(errno));
	fprintf(file,
		"# Written by `millrace serve %s --enable`.\n[Unit]\n"
		"Description=Millrace pool %s\nWants=network-online.target\n"
		"After=network-online.target\n\n[Service]\nType=exec\n",
		pool, pool);
	print_command(file, c, pool);
	fprintf(file, "Restart=on-failure\nRestartSec=5\nTimeoutStopSec=120\n"
		      "LimitNOFILE=1048576\nLimitMEMLOCK=infinity\n\n"
		      "[Install]\nWantedBy=multi-user.target\n");
	if (ferror(file))
		rc = -EIO;
	if (fclose(file))
		rc = -EIO;
	return rc ? error_set(&c->error, rc, path, "it cannot be written") : 0;
}

int systemd_enable(struct command *c, const char *pool)
{
	static const char *const verbs[] = {"daemon-reload", "enable", "restart"};
	char path[4096], unit[128];
	int rc;

	if (access("/run/systemd/system", F_OK))
		return error_set(&c->error, -EOPNOTSUPP, "systemd",
			"this host was not booted with it: serve without --enable, and start that "
			"by what this host has instead");
	snprintf(unit, sizeof(unit), "millrace-%s.service", pool);
	snprintf(path, sizeof(path), UNITS "/%s", unit);
	rc = write_unit(c, path, pool);
	for (unsigned i = 0; !rc && i < 3; i++) {
		rc = run(verbs[i], i ? unit : NULL);
		if (rc)
			error_set(&c->error, rc, unit,
				"`systemctl %s` failed: see `systemctl status %s`", verbs[i], unit);
	}
	return rc;
}
