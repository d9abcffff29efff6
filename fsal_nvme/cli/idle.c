/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Running a verb on a pool, wherever it is open: by its server when it has one; else the pool is
 * opened, acted upon and closed here. Writers of one host queue at RUN_DIR/POOL.lock; who waits
 * there looks again and again whether a server has come to life meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"
#include "common/boot.h"

#define LOCK_SECONDS 30
#define SCRATCH_LEAST (1ull << 30)
#define LOOK_AGAIN_MS 200
#define LOOK_AGAIN_SECONDS 3

/* --- opening ----------------------------------------------------------------------------- */

/* A container's /dev/shm may be too small for the metadata of a pool. */
const char *command_scratch_dir(const struct command *command)
{
	struct statvfs vfs;

	if (!statvfs("/dev/shm", &vfs) && (uint64_t)vfs.f_bavail * vfs.f_frsize >= SCRATCH_LEAST)
		return "/dev/shm";
	return command_state_dir(command);
}

void open_options_fill(const struct command *command, const struct found_pool *found,
	struct pool_open_options *options)
{
	memset(options, 0, sizeof(*options));
	options->paths = (const char *const *)found->set.paths;
	options->path_count = found->set.count;
	options->name = found->summary.name;
	options->host = command_host(command);
	options->scratch_dir = command_scratch_dir(command);
	options->background = true;
	boot_id_read(options->boot_id);
}

int command_lock(struct command *command, const char *pool, int *lock, struct error *error)
{
	int rc = directory_make(command_run_dir(command), error);

	for (unsigned i = 0; !rc; i++) {
		struct error busy = {0};

		rc = host_lock(command_run_dir(command), pool, 1, lock, &busy);
		if (rc != -EBUSY)
			return rc ? error_set(error, rc, busy.object, "%s", busy.message) : 0;
		if (pool_is_served(command, pool))
			return -EAGAIN;
		rc = i < LOCK_SECONDS ? 0 : error_set(error, rc, busy.object, "%s", busy.message);
	}
	return rc;
}

/* --- an idle pool ------------------------------------------------------------------------ */

static int act(struct pool *pool, const struct verb *verb, const json_t *args, json_t *result,
	struct error *error)
{
	struct verb_call call = {.verb = verb,
		.args = args,
		.pool = pool,
		.reporter = terminal_reporter(),
		.result = result,
		.error = error};
	int rc = volumes_create(pool, NULL, &call.volumes);

	if (rc)
		return error_set(error, rc, pool_name(pool), "%s", strerror(-rc));
	rc = verb_run(&call);
	if (pool_failure(pool))
		volumes_abandon(call.volumes);
	else
		volumes_destroy(call.volumes);
	return rc;
}

static int open_and_act(struct command *command, const struct found_pool *found, bool look,
	const struct verb *verb, const json_t *args, json_t *result, struct error *error)
{
	struct pool_open_options options;
	struct engine *engine;
	struct pool *pool;
	int rc = command_engine(command, &engine), closed;

	if (rc)
		return rc;
	open_options_fill(command, found, &options);
	options.read_only = look;
	terminal_part("open", found->summary.name);
	rc = pool_open(engine, &options, &pool, error);
	if (rc)
		return rc;
	rc = act(pool, verb, args, result, error);
	closed = pool_close(pool, rc ? NULL : error);
	return rc ? rc : closed;
}

/*
 * Lookers do not queue, as who has the pool open may have it for long. A journal that grew while it
 * was read is mostly of a server that starts, or of a change that is done soon. -EAGAIN: a server
 * has the pool by now.
 */
static int look(struct command *command, const struct found_pool *found, const struct verb *verb,
	const json_t *args, json_t *result, struct error *error)
{
	const struct timespec pause = {0, LOOK_AGAIN_MS * 1000000};
	int rc = open_and_act(command, found, true, verb, args, result, error);
	time_t until = time(NULL) + LOOK_AGAIN_SECONDS;

	while (rc == -EBUSY && time(NULL) < until) {
		nanosleep(&pause, NULL);
		error_clear(error);
		if (pool_is_served(command, found->summary.name))
			return -EAGAIN;
		rc = open_and_act(command, found, true, verb, args, result, error);
	}
	return rc;
}

static int change(struct command *command, const struct found_pool *found, const struct verb *verb,
	const json_t *args, json_t *result, struct error *error)
{
	int lock = -1, rc = command_lock(command, found->summary.name, &lock, error);

	if (!rc)
		rc = refuse_besides_service(command, &found->summary, error);
	if (!rc)
		rc = open_and_act(command, found, false, verb, args, result, error);
	if (!rc)
		cache_save(command, found, NULL);
	if (lock >= 0)
		close(lock);
	return rc;
}

static int run_idle(struct command *command, const char *name, const struct verb *verb,
	const json_t *args, json_t *result, struct error *error)
{
	bool looks = (verb->flags & VERB_LOOKS) && !json_object_get(args, "repair");
	struct found_pool found;
	int rc = pool_find(command, name, &found, error);

	if (rc)
		return rc;
	rc = (looks ? look : change)(command, &found, verb, args, result, error);
	found_free(&found);
	return rc;
}

/* --- either ------------------------------------------------------------------------------ */

/* What does not change a pool may be asked of its reader, where this host has no owner. */
static int connect_to_reader(struct command *c, const char *name, int *fd, struct error *error)
{
	bool before = c->reader;
	int rc;

	c->reader = true;
	rc = client_connect(c, name, fd, error);
	c->reader = before;
	return rc;
}

int pool_verb(struct command *command, const struct verb *verb, const json_t *args, json_t *result,
	struct error *error)
{
	char name[POOL_NAME_MAX + 1];
	int rc = object_pool(args, name, error), fd;

	if (rc)
		return rc;
	do {
		rc = client_connect(command, name, &fd, error);
		if (rc == -ENOENT && (verb->flags & VERB_LOOKS))
			rc = connect_to_reader(command, name, &fd, error);
		if (!rc)
			return client_call(command, fd, name, verb, args, result, error);
		if (rc == -ENOENT)
			rc = run_idle(command, name, verb, args, result, error);
	} while (rc == -EAGAIN && !error->code);
	return rc;
}

int command_run_on_pool(struct command *c)
{
	struct error error = {0};
	int rc = pool_verb(c, c->verb, c->args, c->result, &error);

	return rc ? error_set(&c->error, rc, error.object, "%s", error.message) : 0;
}

/* Arrays of the same key are joined, other members replaced. */
static void merge(json_t *into, json_t *from)
{
	const char *key;
	json_t *value;

	json_object_foreach(from, key, value)
	{
		json_t *list = json_object_get(into, key);

		if (json_is_array(list) && json_is_array(value))
			json_array_extend(list, value);
		else
			json_object_set(into, key, value);
	}
}

int command_run_on_pools(struct command *c)
{
	json_t *names, *name;
	size_t i;

	if (json_object_get(c->args, "pool"))
		return command_run_on_pool(c);
	names = cache_names(c);
	json_array_foreach(names, i, name)
	{
		json_t *args = json_pack("{s:O}", "pool", name), *result = json_object();
		struct error error = {0};

		if (pool_verb(c, c->verb, args, result, &error))
			error_set(&c->error, error.code, error.object, "%s", error.message);
		merge(c->result, result);
		json_decref(result);
		json_decref(args);
	}
	json_decref(names);
	return c->error.code;
}
