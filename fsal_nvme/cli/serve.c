/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * `serve`: find the pool, write the server's configuration, become the server (--foreground) or
 * start it and wait until its control socket answers, or let systemd do so (--enable); or, with
 * --disable, the reverse; serve_running.c has --stop, --probe and --end-grace. All of it is about
 * the pool's owner on this host or, with --reader, about its reader, which has places of its own
 * below the run directory.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/socket.h"
#include "common/cluster.h"

#define GIVE_UP_SECONDS 30 /* to end, for a server that did not come up: it drains for up to 20 */
#define IDLE_PART 0.1 /* of a processor: who has worked less has been waiting for something */

struct serving {
	struct command *command;
	char pool[POOL_NAME_MAX + 1];
	struct server_place place;
	char config[4096], log[4096], pid[4096];
	off_t log_start;
	pid_t child;
	double watched, worked; /* when the child was looked at, and its processor time, in s */
};

static bool has(const struct command *c, const char *name)
{
	return json_object_get(c->args, name) != NULL;
}

/* --- before ------------------------------------------------------------------------------ */

static int read_uuid(struct command *c)
{
	const char *text = json_string_value(json_object_get(c->args, "uuid"));

	c->by_uuid = text != NULL;
	if (!text || uuid_parse(text, c->uuid))
		return 0;
	return error_set(&c->error, -EINVAL, text, "it is not a UUID");
}

static int check_arguments(struct serving *s)
{
	struct command *c = s->command;
	const char *listen = json_string_value(json_object_get(c->args, "listen"));
	uint8_t address[16];
	int rc;

	c->reader = has(c, "reader");
	c->everywhere = c->reader || has(c, "fenced") || has(c, "uuid");
	rc = object_split(
		json_string_value(json_object_get(c->args, "pool")), s->pool, NULL, &c->error);
	if (!rc)
		rc = read_uuid(c);
	if (rc)
		return rc;
	if (has(c, "foreground") + has(c, "enable") + has(c, "stop") + has(c, "disable") +
			has(c, "probe") + has(c, "end-grace") >
		1)
		return error_set(&c->error, -EINVAL, "serve",
			"only one of --foreground, --enable, --disable, --stop, --probe and "
			"--end-grace can be done");
	if (has(c, "force") && !has(c, "stop"))
		return error_set(&c->error, -EINVAL, "serve",
			"--force is about --stop: it kills a server that does not stop");
	if (has(c, "idle") && (has(c, "foreground") || has(c, "enable") || has(c, "stop") ||
				      has(c, "disable") || has(c, "probe") || has(c, "end-grace")))
		return error_set(&c->error, -EINVAL, "serve",
			"--idle is about a start that is waited for here");
	if (has(c, "fenced") && c->reader)
		return error_set(&c->error, -EINVAL, "serve",
			"a reader takes the pool from nobody: --reader goes without --fenced");
	if (has(c, "fenced") && (has(c, "enable") || has(c, "stop") || has(c, "disable") ||
					has(c, "probe") || has(c, "end-grace")))
		return error_set(&c->error, -EINVAL, "serve",
			"--fenced tells of one start: a unit would tell of each");
	if (listen && inet_pton(AF_INET, listen, address) != 1 &&
		inet_pton(AF_INET6, listen, address) != 1)
		return error_set(&c->error, -EINVAL, listen, "it is not an IP address");
	return 0;
}

/* Whether that of its name which this host knew is another one; `set` gets its devices. */
static bool another_is_known(
	const struct command *c, const struct pool_summary *s, struct device_set *set)
{
	uint8_t uuid[16];

	return !cache_load(c, s->name, set, uuid) && memcmp(uuid, s->uuid, sizeof(uuid));
}

/* One that was let go, while that of its name which this host knew is not seen. */
static bool is_another(const struct command *c, const struct pool_summary *s)
{
	struct device_set set = {0};
	bool another = !c->by_uuid && another_is_known(c, s, &set);

	device_set_free(&set);
	return another;
}

/* What this host knew is there: it is not to be forgotten for one that a cluster serves. */
static bool another_is_there(struct command *c, const struct pool_summary *s)
{
	struct device_set set = {0};
	struct found_pool *list = NULL;
	unsigned count = 0;
	bool there = false;

	if (c->by_uuid && another_is_known(c, s, &set) && !pools_probe(c, &set, &list, &count))
		for (unsigned i = 0; i < count; i++)
			there |= !strcmp(list[i].summary.name, s->name) &&
				 memcmp(list[i].summary.uuid, s->uuid, 16);
	for (unsigned i = 0; i < count; i++)
		found_free(&list[i]);
	free(list);
	device_set_free(&set);
	return there;
}

/* A reader is in nobody's way, and whoever is told that the last owner is fenced takes the pool
 * from anybody. */
static int check_owner(struct command *c, const struct pool_summary *s)
{
	if (c->reader || (has(c, "fenced") && !(s->exported && is_another(c, s))))
		return 0;
	if (s->exported)
		return error_set(&c->error, -EBUSY, s->name,
			"it is exported: `millrace pool import %s` takes it", s->name);
	if (!strcmp(s->owner, command_host(c)))
		return 0;
	if (host_is_member())
		return error_set(&c->error, -EBUSY, s->name,
			"node %s had it last: in a cluster `millrace service create` has it "
			"served, and `millrace service move` elsewhere",
			s->owner);
	return error_set(&c->error, -EBUSY, s->name,
		"it is assigned to host %s: export it there, or, if that host is dead or fenced, "
		"`millrace pool import %s --force`",
		s->owner, s->name);
}

/* Refused here, where the reason can be told, and not by a server that ends. */
static int check_devices(struct command *c, const struct found_pool *found)
{
	struct pool_open_options options;
	struct engine *engine;
	int rc = command_engine(c, &engine);

	if (rc)
		return rc;
	open_options_fill(c, found, &options);
	options.reader = c->reader;
	return pool_may_open(engine, &options, &c->error);
}

/* `found` is to be freed by found_free(), whatever comes back. */
static int configure(struct serving *s, struct found_pool *found)
{
	struct command *c = s->command;
	int rc = pool_find(c, s->pool, found, &c->error), lock = -1;

	if (rc)
		return rc;
	rc = check_owner(c, &found->summary);
	if (!rc)
		rc = command_lock(c, s->pool, &lock, &c->error);
	if (!rc)
		rc = check_devices(c, found);
	if (!rc)
		rc = server_configure(c, found, &s->place, s->config, sizeof(s->config));
	if (!rc && !another_is_there(c, &found->summary))
		cache_save(c, found, NULL);
	if (lock >= 0)
		close(lock);
	return rc == -EAGAIN ? error_set(&c->error, -EBUSY, s->pool, ALREADY_SERVED, s->pool) : rc;
}

static int prepare_paths(struct serving *s)
{
	struct command *c = s->command;
	char dir[4096];
	int rc;

	snprintf(dir, sizeof(dir), "%.3900s/log", command_state_dir(c));
	rc = directory_make(dir, &c->error);
	server_log_path(c, s->pool, s->log);
	snprintf(s->pid, sizeof(s->pid), "%.3900s/%s/pid", command_run_dir(c), s->pool);
	return rc;
}

/* --- the server's process ---------------------------------------------------------------- */

static void become_server(const struct serving *s, bool foreground)
{
	const char *log = foreground ? "STDERR" : s->log;
	char *const argv[] = {(char *)(uintptr_t)s->place.program, "-F", "-x", "-f",
		(char *)(uintptr_t)s->config, "-L", (char *)(uintptr_t)log, "-p",
		(char *)(uintptr_t)s->pid, NULL};

	signal(SIGPIPE, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	execv(s->place.program, argv);
}

static void drop_engine(struct command *c)
{
	if (c->engine)
		engine_destroy(c->engine);
	c->engine = NULL;
}

static int start_child(struct serving *s)
{
	struct stat st;

	s->log_start = stat(s->log, &st) ? 0 : st.st_size;
	s->child = fork();
	if (s->child < 0)
		return error_set(&s->command->error, -errno, s->pool,
			"the server cannot be started: %s", strerror(errno));
	if (!s->child) {
		int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0640);
		int null = open("/dev/null", O_RDONLY);

		setsid();
		if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 ||
			dup2(log, 2) < 0)
			_exit(126);
		become_server(s, false);
		_exit(127);
	}
	return 0;
}

static int child_ended(struct serving *s, int status)
{
	char reason[300], how[40];

	server_log_reason(s->log, s->log_start, reason, sizeof(reason));
	if (WIFSIGNALED(status))
		snprintf(how, sizeof(how), "signal %d", WTERMSIG(status));
	else
		snprintf(how, sizeof(how), "exit %d", WEXITSTATUS(status));
	return error_set(&s->command->error, -EIO, s->pool,
		"the server could not start (%s)%s%s; its log is %s", how, reason[0] ? ": " : "",
		reason, s->log);
}

static int give_up(struct serving *s, int code)
{
	char reason[300];
	pid_t ended = 0;

	kill(s->child, SIGTERM);
	for (int i = 0; !ended && i < GIVE_UP_SECONDS * 10; i++) {
		usleep(100000);
		ended = waitpid(s->child, NULL, WNOHANG);
	}
	if (!ended) {
		kill(s->child, SIGKILL);
		waitpid(s->child, NULL, 0);
	}
	server_log_reason(s->log, s->log_start, reason, sizeof(reason));
	return error_set(&s->command->error, code, s->pool, "%s%s%s; its log is %s",
		code == -EINTR
			? "interrupted, and the server was stopped"
			: "the server did not come up in time and was stopped (see --wait, --idle)",
		reason[0] ? ": " : "", reason, s->log);
}

static double start_deadline(const struct command *c)
{
	const json_t *wait = json_object_get(c->args, "wait");

	return seconds_now() + (wait ? (double)json_integer_value(wait) : 600);
}

/* At once, since it takes long; the terminal goes on showing it. */
static void tell_starting(const struct serving *s, struct reporter *reporter)
{
	char what[POOL_NAME_MAX + 32];
	json_t *progress;

	snprintf(what, sizeof(what), "start the server of %s", s->pool);
	progress = json_pack("{s:s}", "what", what);
	reporter->progress(reporter, progress);
	json_decref(progress);
}

static double processor_seconds(pid_t process)
{
	struct timespec used = {0};
	clockid_t clock;

	if (!clock_getcpuclockid(process, &clock))
		clock_gettime(clock, &used);
	return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* Whether it has hardly worked for the last --idle seconds: loading a pool of many files takes
 * long, and is work; waiting for drives is none. */
static bool is_idle(struct serving *s)
{
	const json_t *idle = json_object_get(s->command->args, "idle");
	double now = seconds_now(), seconds = (double)json_integer_value(idle), before = s->worked;

	if (!idle || now < s->watched + seconds)
		return false;
	s->watched = now;
	s->worked = processor_seconds(s->child);
	return s->worked - before < seconds * IDLE_PART;
}

static int wait_for_server(struct serving *s)
{
	double deadline = start_deadline(s->command);
	struct reporter *reporter = terminal_reporter();

	tell_starting(s, reporter);
	s->watched = seconds_now();
	for (;;) {
		int status;

		if (pool_is_served(s->command, s->pool))
			return 0;
		if (waitpid(s->child, &status, WNOHANG) == s->child)
			return child_ended(s, status);
		if (reporter->stopped(reporter))
			return give_up(s, -EINTR);
		if (seconds_now() >= deadline || is_idle(s))
			return give_up(s, -ETIMEDOUT);
		usleep(100000);
	}
}

static int start(struct serving *s, bool foreground)
{
	struct found_pool found = {0};
	int rc = server_locate(&s->place, &s->command->error);

	if (!rc)
		rc = configure(s, &found);
	found_free(&found);
	if (!rc)
		rc = prepare_paths(s);
	if (rc)
		return rc;
	drop_engine(s->command);
	if (foreground) {
		become_server(s, true);
		return error_set(&s->command->error, -errno, s->place.program,
			"it cannot be run: %s", strerror(errno));
	}
	rc = start_child(s);
	if (!rc)
		rc = wait_for_server(s);
	if (!rc) {
		put_integer(s->command->result, "pid", (uint64_t)s->child);
		put_text(s->command->result, "log_file", s->log);
	}
	return rc;
}

/* --- enable ------------------------------------------------------------------------------ */

static int enable(struct serving *s)
{
	struct reporter *reporter = terminal_reporter();
	double deadline = start_deadline(s->command);
	struct found_pool found = {0};
	int rc = systemd_check(s->command);

	if (!rc)
		rc = server_locate(&s->place, &s->command->error);
	if (!rc)
		rc = configure(s, &found);
	if (!rc) {
		drop_engine(s->command);
		tell_starting(s, reporter);
		rc = systemd_enable(s->command, s->pool, &found.set);
	}
	found_free(&found);
	while (!rc && !pool_is_served(s->command, s->pool)) {
		if (reporter->stopped(reporter) || seconds_now() >= deadline)
			rc = error_set(&s->command->error, -ETIMEDOUT, s->pool,
				"it is enabled, but does not serve yet: see `systemctl status "
				"millrace-%s`",
				s->pool);
		usleep(200000);
	}
	return rc;
}

static int disable(struct serving *s)
{
	int rc = systemd_check(s->command);

	terminal_part("stop the server of", s->pool);
	if (!rc)
		rc = systemd_disable(s->command, s->pool);
	if (!rc)
		put_text(s->command->result, "message",
			"The server has stopped, and systemd will not start it again.");
	return rc;
}

static int serve(struct serving *s)
{
	struct command *c = s->command;
	char text[256];
	int rc;

	if (has(c, "stop"))
		return server_stop(c, s->pool);
	if (has(c, "probe"))
		return server_probe(c, s->pool);
	if (has(c, "end-grace"))
		return server_end_grace(c, s->pool);
	if (has(c, "disable"))
		return disable(s);
	if (pool_is_served(c, s->pool))
		return error_set(&c->error, -EBUSY, s->pool, ALREADY_SERVED, s->pool);
	rc = has(c, "enable") ? enable(s) : start(s, has(c, "foreground"));
	snprintf(text, sizeof(text), "Pool %s is served%s: its %s are exported as /%s/NAME.",
		s->pool, has(c, "listen-wait") ? ", as soon as this host has the address" : "",
		c->reader ? "datasets" : "volumes", s->pool);
	if (!rc)
		put_text(c->result, "message", text);
	return rc;
}

int command_serve(struct command *command)
{
	struct serving *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->command = command;
	rc = check_arguments(s);
	if (!rc)
		rc = serve(s);
	free(s);
	return rc;
}
