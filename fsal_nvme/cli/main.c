/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The `millrace` command: parse, run, print, exit code. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"

/* Verbs that the command has a way of its own for (without a name: all of the noun's); all others
 * act on an open pool. */
static const struct {
	const char *noun, *name;
	int (*run)(struct command *command);
} own_ways[] = {
	{"pool", "create", command_pool_create},
	{"pool", "import", command_pool_import},
	{"pool", "export", command_pool_export},
	{"pool", "list", command_pool_list},
	{"pool", "status", command_pool_status},
	{"pool", "iostat", command_pool_iostat},
	{"pool", "attach", command_pool_attach},
	{"pool", "replace", command_pool_replace},
	{"pool", "destroy", command_pool_destroy},
	{"dataset", "list", command_run_on_pools},
	{"share", "list", command_run_on_pools},
	{"serve", NULL, command_serve},
	{"status", NULL, command_status},
	{"node", "status", command_node_status},
	{"node", "update", command_node_update},
	{"node", "drain", command_service},
	{"node", "resume", command_service},
	{"cluster", NULL, command_cluster},
	{"service", NULL, command_service},
	{"client", NULL, command_client},
};

bool command_json(const struct command *command)
{
	return json_is_true(json_object_get(command->common, "json"));
}

static const char *common_text(const struct command *c, const char *name, const char *otherwise)
{
	const char *text = json_string_value(json_object_get(c->common, name));

	return text ? text : otherwise;
}

const char *command_state_dir(const struct command *command)
{
	return common_text(command, "state-dir", STATE_DIR);
}

const char *command_run_dir(const struct command *command)
{
	static char reader[4096];

	if (!command->reader)
		return common_text(command, "run-dir", RUN_DIR);
	snprintf(
		reader, sizeof(reader), "%.4000s/reader", common_text(command, "run-dir", RUN_DIR));
	return reader;
}

const char *command_host(const struct command *command)
{
	static char name[64];

	if (!name[0] && (gethostname(name, sizeof(name) - 1) || !name[0]))
		snprintf(name, sizeof(name), "localhost");
	return common_text(command, "host", name);
}

int command_engine(struct command *command, struct engine **engine)
{
	struct engine_options options = {0};
	int rc = 0;

	if (!command->engine)
		rc = uring_engine_create(&options, &command->engine, &command->error);
	*engine = command->engine;
	return rc;
}

static int check_host(struct command *c)
{
	const char *host = command_host(c);

	if (*host && strlen(host) <= 63)
		return 0;
	return error_set(&c->error, -EINVAL, "host", "the name of a host has 1 to 63 characters");
}

static int run(struct command *c)
{
	int rc = check_host(c);

	if (!rc)
		rc = terminal_confirm(c, &c->error);
	if (rc)
		return rc;
	for (unsigned i = 0; i < sizeof(own_ways) / sizeof(own_ways[0]); i++)
		if (!strcmp(own_ways[i].noun, c->verb->noun) &&
			(!own_ways[i].name || !strcmp(own_ways[i].name, c->verb->name)))
			return own_ways[i].run(c);
	return command_run_on_pool(c);
}

static void clean_up(struct command *c)
{
	json_decref(c->args);
	json_decref(c->common);
	json_decref(c->result);
}

static int finish(struct command *c, int rc)
{
	int exit_code;

	if (rc)
		error_set(&c->error, rc, c->verb ? c->verb->noun : "millrace", "%s", strerror(-rc));
	exit_code = error_exit(c->error.code, NULL);
	if (!exit_code && c->degraded)
		exit_code = EXIT_DEGRADED;
	if (c->engine)
		engine_destroy(c->engine);
	terminal_end(c->result);
	signal(SIGPIPE, SIG_DFL); /* nothing is open any more: who does not read on ends it */
	if (!c->answered)
		output_print(c);
	return exit_code;
}

/* Half an answer is none: a script would take it for all. */
static int check_written(int exit_code)
{
	if (!fflush(stdout) && !ferror(stdout))
		return exit_code;
	fprintf(stderr, "millrace: stdout: not all of the answer could be written\n");
	return exit_code ? exit_code : 1;
}

static int run_completion(struct command *c, int count, char **words)
{
	completion_print(c, count, words);
	if (c->engine)
		engine_destroy(c->engine);
	clean_up(c);
	return 0;
}

int main(int argc, char **argv)
{
	struct command command = {.result = json_object()};
	const char *noun;
	bool help;
	int rc;

	signal(SIGPIPE, SIG_IGN);
	if (argc > 1 && !strcmp(argv[1], "--complete"))
		return run_completion(&command, argc - 2, argv + 2);
	if (argc == 2 && !strcmp(argv[1], "--version")) {
		printf("millrace %s\n", MILLRACE_VERSION);
		clean_up(&command);
		return check_written(0);
	}
	rc = command_parse(&command, argc, argv, &help, &noun);
	if (!rc && help) {
		signal(SIGPIPE, SIG_DFL);
		help_print(stdout, command.verb, noun);
	} else {
		terminal_begin(command_json(&command));
		rc = finish(&command, rc ? rc : run(&command));
	}
	clean_up(&command);
	return check_written(rc);
}
