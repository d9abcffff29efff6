/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * `serve --enable`: a unit of systemd per pool, which runs `serve --foreground`. The server tells
 * systemd when clients can reach it (export/main.c); `serve --stop` ends it until the next boot,
 * since exit 0 is no failure.
 */
#include <ctype.h>
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

/* `option` may be NULL, and `unit` too. */
static int run(const char *verb, const char *option, const char *unit)
{
	const char *words[6] = {"systemctl", "--quiet", verb};
	unsigned count = 3;
	pid_t child;
	int status, rc;

	if (option)
		words[count++] = option;
	if (unit)
		words[count++] = unit;
	rc = posix_spawnp(&child, words[0], NULL, NULL, (char *const *)(uintptr_t)words, environ);
	if (rc)
		return -rc;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EIO;
}

/* --- the unit ---------------------------------------------------------------------------- */

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
	static const char *const own[] = {"uuid", "listen", "listen-wait", "port", "lease",
		"rdma-connections", "rdma-memory"};
	static const char *const common[] = {"state-dir", "run-dir", "host"};
	char program[4096];
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

	program[length > 0 ? length : 0] = 0;
	fprintf(file, "ExecStart=");
	print_word(file, program);
	fprintf(file, " serve --foreground%s", c->reader ? " --reader" : "");
	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		print_option(file, own[i], json_object_get(c->args, own[i]));
	for (unsigned i = 0; i < sizeof(common) / sizeof(common[0]); i++)
		print_option(file, common[i], json_object_get(c->common, common[i]));
	print_word(file, pool);
	fputc('\n', file);
}

/* systemd.unit(5), "String escaping for inclusion in unit names": a path without its first slash.
 */
static void print_device_unit(FILE *file, const char *path)
{
	for (const char *at = path + 1; *at; at++) {
		bool plain = isalnum((unsigned char)*at) || *at == ':' || *at == '_' ||
			     (*at == '.' && at > path + 1);

		if (*at == '/')
			fputc('-', file);
		else if (plain)
			fputc(*at, file);
		else
			fprintf(file, "\\x%02x", (unsigned char)*at);
	}
	fputs(".device", file);
}

static void print_mount_of(FILE *file, const char *path)
{
	fprintf(file, "RequiresMountsFor=\"");
	for (; *path; path++) {
		if (*path == '%')
			fputc('%', file);
		fputc(*path, file);
	}
	fprintf(file, "\"\n");
}

/*
 * A pool that is opened without one of its devices writes to it no more. So at boot all are waited
 * for, as long as systemd waits for a device; then it is served without those that are not there.
 */
static void print_devices(FILE *file, const struct device_set *devices)
{
	for (unsigned i = 0; i < devices->count; i++) {
		const char *path = devices->paths[i];

		if (strncmp(path, "/dev/", 5)) {
			print_mount_of(file, path);
			continue;
		}
		for (unsigned after = 0; after < 2; after++) {
			fprintf(file, after ? "After=" : "Wants=");
			print_device_unit(file, path);
			fputc('\n', file);
		}
	}
}

static void print_unit(
	FILE *file, const struct command *c, const char *pool, const struct device_set *devices)
{
	const json_t *wait = json_object_get(c->args, "wait");

	fprintf(file,
		"# Written by `millrace serve %s%s --enable`; --disable takes it away.\n[Unit]\n"
		"Description=Millrace pool %s%s\nDocumentation=man:millrace(8)\n"
		"Wants=network-online.target\nAfter=network-online.target\n",
		pool, c->reader ? " --reader" : "", pool, c->reader ? ", reader" : "");
	print_mount_of(file, command_state_dir(c));
	print_devices(file, devices);
	/* Devices may come late, or be put back: it is tried for ever. */
	fprintf(file, "StartLimitIntervalSec=0\n\n[Service]\nType=notify\n");
	print_command(file, c, pool);
	fprintf(file,
		"Restart=on-failure\nRestartSec=5\nTimeoutStartSec=%lld\n"
		"TimeoutStopSec=120\nLimitNOFILE=1048576\nLimitMEMLOCK=infinity\n\n"
		"[Install]\nWantedBy=multi-user.target\n",
		wait ? (long long)json_integer_value(wait) : 600);
}

static int write_unit(
	struct command *c, const char *path, const char *pool, const struct device_set *devices)
{
	FILE *file = fopen(path, "we");
	int rc = 0;

	if (!file)
		return error_set(
			&c->error, -errno, path, "it cannot be written: %s", strerror(errno));
	print_unit(file, c, pool, devices);
	if (ferror(file))
		rc = -EIO;
	if (fclose(file))
		rc = -EIO;
	return rc ? error_set(&c->error, rc, path, "it cannot be written") : 0;
}

/* --- systemctl --------------------------------------------------------------------------- */

struct step {
	const char *verb, *option;
	bool unit; /* it is about the unit */
};

static void name_unit(const struct command *c, const char *pool, char unit[128], char path[4096])
{
	snprintf(unit, 128, "millrace-%s%s.service", c->reader ? "reader@" : "", pool);
	snprintf(path, 4096, UNITS "/%s", unit);
}

static int run_steps(struct command *c, const char *unit, const struct step *steps, unsigned count)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < count; i++) {
		rc = run(steps[i].verb, steps[i].option, steps[i].unit ? unit : NULL);
		if (rc)
			error_set(&c->error, rc, unit,
				"`systemctl %s` failed: see `systemctl status %s` and `journalctl "
				"-u %s`",
				steps[i].verb, unit, unit);
	}
	return rc;
}

int systemd_check(struct command *c)
{
	if (!access("/run/systemd/system", F_OK))
		return 0;
	return error_set(&c->error, -EOPNOTSUPP, "systemd",
		"this host was not booted with it: let what this host has instead run `millrace "
		"serve POOL --foreground`");
}

bool systemd_has_unit(const struct command *c, const char *pool)
{
	char unit[128], path[4096];

	name_unit(c, pool, unit, path);
	return !access(path, F_OK);
}

int systemd_enable(struct command *c, const char *pool, const struct device_set *devices)
{
	static const struct step steps[] = {
		{"daemon-reload", NULL, false}, {"enable", NULL, true}, {"restart", NULL, true}};
	char unit[128], path[4096];
	int rc;

	name_unit(c, pool, unit, path);
	rc = write_unit(c, path, pool, devices);
	return rc ? rc : run_steps(c, unit, steps, 3);
}

int systemd_disable(struct command *c, const char *pool)
{
	static const struct step before = {"disable", "--now", true};
	static const struct step after = {"daemon-reload", NULL, false};
	char unit[128], path[4096];
	int rc;

	name_unit(c, pool, unit, path);
	if (access(path, F_OK))
		return error_set(&c->error, -ENOENT, pool,
			"systemd does not serve it: there is no %s", path);
	rc = run_steps(c, unit, &before, 1);
	if (!rc && unlink(path))
		rc = error_set(
			&c->error, -errno, path, "it cannot be removed: %s", strerror(errno));
	return rc ? rc : run_steps(c, unit, &after, 1);
}
