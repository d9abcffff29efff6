/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A server without NFS, for the tests of the command: it takes nfs-ganesha's options and
 * configuration, opens the pool that the NVME block names, runs the control socket, and says on
 * stdout what an FSAL would be told. As an FSAL does, it holds every exported volume open.
 *
 * Two ways to make it refuse: a pool or volume whose comment is "refuse" (properties), and a volume
 * named "stuck" (removing). One to keep it at it: the comment is "wait:PATH", as long as PATH is
 * there.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/control.h"
#include "common/boot.h"
#include "common/notify.h"

#define VOLUMES_MAX 1000

struct server {
	struct pool *pool;
	struct volumes *volumes;
	struct volume *open[VOLUMES_MAX];
};

static char *setting(const char *text, const char *name)
{
	char pattern[64], *at, *end;

	snprintf(pattern, sizeof(pattern), "\t%s = \"", name);
	at = strstr(text, pattern);
	end = at ? strchr(at + strlen(pattern), '"') : NULL;
	return end ? strndup(at + strlen(pattern), (size_t)(end - at) - strlen(pattern)) : NULL;
}

static void say(const char *what, const struct volume_row *row)
{
	printf("%s %s\n", what, row ? row->name : "(pool)");
	fflush(stdout);
}

static int added(void *data, const struct volume_row *row, struct error *error)
{
	struct server *server = data;

	say("added", row);
	if (row->id >= VOLUMES_MAX)
		return error_set(error, -ENOSPC, row->name, "too many volumes");
	return volume_open_id(server->volumes, row->id, &server->open[row->id], error);
}

static int removing(void *data, const struct volume_row *row, struct error *error)
{
	struct server *server = data;

	say("removing", row);
	if (!strcmp(row->name, "stuck"))
		return error_set(error, -EBUSY, row->name, "clients use it");
	volume_close(server->open[row->id]);
	server->open[row->id] = NULL;
	return 0;
}

static int changed(void *data, const struct volume_row *row, struct error *error)
{
	struct server *server = data;
	char comment[PROPERTY_VALUE_MAX + 1];
	struct txn *view;
	int rc = view_begin(pool_env(server->pool), &view);

	if (rc)
		return rc;
	rc = property_value(view, row ? row->id : 0, "comment", comment, sizeof(comment));
	txn_abort(view);
	printf("changed %s comment=%s\n", row ? row->name : "(pool)", comment);
	fflush(stdout);
	while (!rc && !strncmp(comment, "wait:", 5) && !access(comment + 5, F_OK))
		usleep(10000);
	if (!rc && !strcmp(comment, "refuse"))
		rc = error_set(error, -EIO, "server", "it refuses this comment");
	if (!rc && !row)
		rc = pool_properties_apply(server->pool, error);
	if (!rc && !row)
		rc = compaction_start(server->pool, server->volumes, error);
	return rc;
}

static void stop(void *data)
{
	kill(getpid(), SIGTERM);
}

static int fail(const char *what, const struct error *error)
{
	fprintf(stderr, "%s: %s: %s\n", what, error->object, error->message);
	return 2;
}

static int open_exports(struct server *server, struct error *error)
{
	bool reader = pool_is_reader(server->pool);
	struct volume_row row;
	struct txn *view;
	int rc = view_begin(pool_env(server->pool), &view);

	for (uint32_t id = 1; !rc && !volume_row_next(view, id, &row); id = row.id + 1)
		if (!row.destroying && (row.sealed || (row.kind == VOLUME_SHARE && !reader)))
			rc = added(server, &row, error);
	if (view)
		txn_abort(view);
	return rc;
}

static int serve(struct server *server, const char *run_dir, const char *name)
{
	struct control_host host = {.data = server,
		.volume_added = added,
		.volume_removing = removing,
		.properties_changed = changed,
		.stop = stop};
	struct control_options options = {
		.pool = server->pool, .volumes = server->volumes, .host = &host};
	struct error error = {0};
	struct control *control;
	char path[4096];
	sigset_t set;
	int number, rc = open_exports(server, &error);

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	options.path = path;
	if (!rc)
		rc = control_path(run_dir, name, path, sizeof(path));
	if (!rc)
		rc = control_start(&options, &control, &error);
	if (!rc && !pool_is_reader(server->pool))
		rc = compaction_start(server->pool, server->volumes, &error);
	if (rc)
		return fail("start", &error);
	printf("serving %s\n", name);
	fflush(stdout);
	notify_manager("READY=1");
	sigwait(&set, &number);
	rc = control_stop(control, 20);
	if (rc)
		_exit(3);
	for (unsigned i = 0; i < VOLUMES_MAX; i++)
		volume_close(server->open[i]);
	return 0;
}

static int run(const char *text)
{
	char *pool = setting(text, "pool"), *devices = setting(text, "devices"), *rest = devices;
	char *run_dir = setting(text, "run_dir"), *host = setting(text, "host");
	const char *paths[POOL_DEVICES_MAX];
	struct pool_open_options options = {
		.paths = paths, .name = pool, .host = host, .background = true};
	struct engine_options engine_options = {0};
	static struct server server;
	struct error error = {0};
	struct engine *engine;
	int lock, rc;

	if (!pool || !devices || !run_dir || !host)
		return error_set(&error, 2, "", "the configuration is not complete");
	for (char *path; (path = strsep(&rest, ":"));)
		paths[options.path_count++] = path;
	options.reader = strstr(text, "\treader = true;\n");
	boot_id_read(options.boot_id);
	rc = host_lock(run_dir, pool, 10, &lock, &error);
	if (!rc)
		rc = uring_engine_create(&engine_options, &engine, &error);
	if (!rc)
		rc = pool_open(engine, &options, &server.pool, &error);
	if (rc)
		return fail("open", &error);
	rc = pool_properties_apply(server.pool, &error);
	if (!rc)
		rc = volumes_create(server.pool, NULL, &server.volumes);
	if (!rc)
		rc = serve(&server, run_dir, pool);
	volumes_destroy(server.volumes);
	if (pool_close(server.pool, &error))
		return fail("close", &error);
	engine_destroy(engine);
	close(lock);
	free(pool);
	free(devices);
	free(run_dir);
	free(host);
	return rc;
}

/* Signals are blocked in all threads but where sigwait() takes them. */
int main(int argc, char **argv)
{
	static char text[65536];
	const char *path = NULL;
	sigset_t set;
	FILE *file;
	int option;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	while ((option = getopt(argc, argv, "Fxf:L:p:")) != -1)
		if (option == 'f')
			path = optarg;
	file = path ? fopen(path, "r") : NULL;
	if (!file || !fread(text, 1, sizeof(text) - 1, file))
		return 2;
	fclose(file);
	return run(text);
}
