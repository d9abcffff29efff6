/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Verbs of the command itself about pools: those that no server runs. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/fenced_by.h"
#include "cli/identity.h"
#include "common/cluster.h"

static const char *pool_argument(const struct command *c)
{
	return json_string_value(json_object_get(c->args, "pool"));
}

static void say(struct command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct command *c, const char *format, ...)
{
	char text[600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	put_text(c->result, "message", text);
}

static int refuse_each(struct command *c, struct engine *engine, const struct device_set *set)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < set->count; i++)
		rc = refuse_fencing(engine, set->paths[i],
			"`millrace cluster leave`, on each of them, comes first", &c->error);
	return rc;
}

static void free_list(struct found_pool *list, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		found_free(&list[i]);
	free(list);
}

/* An idle pool, found and locked: what export, import and destroy begin with. */
struct held_pool {
	char name[POOL_NAME_MAX + 1];
	struct found_pool found;
	int lock;
	struct engine *engine;
};

static int refuse_served(struct command *c, const char *name)
{
	if (!pool_is_served(c, name))
		return 0;
	return error_set(&c->error, -EBUSY, name,
		host_is_member() ? "it is being served: `millrace service remove` ends that, where "
				   "`millrace service list` has it, else `millrace serve %s --stop`"
				 : "it is being served: `millrace serve %s --stop` ends that",
		name);
}

static int hold(struct command *c, struct held_pool *held)
{
	int rc = object_split(pool_argument(c), held->name, NULL, &c->error);

	held->lock = -1;
	memset(&held->found, 0, sizeof(held->found));
	if (!rc)
		rc = refuse_served(c, held->name);
	if (!rc)
		rc = command_engine(c, &held->engine);
	if (!rc)
		rc = pool_find(c, held->name, &held->found, &c->error);
	if (!rc)
		rc = command_lock(c, held->name, &held->lock, &c->error);
	if (rc == -EAGAIN)
		rc = refuse_served(c, held->name);
	if (!rc)
		rc = refuse_besides_service(c, &held->found.summary, &c->error);
	return rc;
}

static void let_go(struct held_pool *held)
{
	if (held->lock >= 0)
		close(held->lock);
	found_free(&held->found);
}

/* --- create ------------------------------------------------------------------------------ */

struct creation {
	struct pool_create_options options;
	struct pool_create_device devices[POOL_DEVICES_MAX];
	struct device_set set;
	char *domains[POOL_DEVICES_MAX];
};

#define DOMAIN_MAX 31

static int check_domain(struct command *c, const char *domain)
{
	size_t length = strlen(domain);

	for (const char *at = domain; *at; at++)
		if ((unsigned char)*at <= ' ' || *at == 0x7f)
			length = 0;
	if (length && length <= DOMAIN_MAX)
		return 0;
	return error_set(&c->error, -EINVAL, domain,
		"the name of a domain has 1 to %u characters, without spaces", DOMAIN_MAX);
}

/* It is in the set already, or was not put there for what it is. */
static int refuse_device(struct command *c, const char *text, const char *path)
{
	struct stat st;
	bool fits = !stat(path, &st) && (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode));

	return error_set(&c->error, -EINVAL, text,
		fits ? "it is given twice, perhaps by another name of it"
		     : "it is neither a block device nor a plain file");
}

/* Another node's drive fails with that node. */
static int take_domain(struct command *c, struct creation *creation, unsigned i, const char *domain)
{
	char node[DOMAIN_MAX + 1];
	int rc = domain ? check_domain(c, domain) : 0;

	if (!rc && !domain && identity_node(creation->set.paths[i], node, sizeof(node)))
		domain = node;
	if (!rc && domain) {
		creation->domains[i] = strdup(domain);
		rc = creation->domains[i] ? 0 : -ENOMEM;
	}
	creation->devices[i].path = creation->set.paths[i];
	creation->devices[i].domain = creation->domains[i];
	return rc;
}

/* "PATH@DOMAIN"; a path that has an '@' itself and is there is taken as it is. */
static int take_device(struct command *c, struct creation *creation, const char *text)
{
	char *path = realpath(text, NULL), *copy = strdup(text),
	     *at = copy ? strrchr(copy, '@') : NULL;
	unsigned i = creation->set.count;
	const char *domain = NULL;
	int rc = copy ? 0 : -ENOMEM;

	if (!path && at && at != copy && at[1]) {
		*at = 0;
		domain = at + 1;
		path = realpath(copy, NULL);
	}
	if (!rc && !path)
		rc = error_set(&c->error, -errno, copy, "it cannot be used: %s", strerror(errno));
	if (!rc)
		rc = server_path_check(path, &c->error);
	if (!rc)
		rc = device_set_add(&creation->set, path);
	if (!rc && creation->set.count == i)
		rc = refuse_device(c, text, path);
	if (!rc)
		rc = take_domain(c, creation, i, domain);
	free(path);
	free(copy);
	return rc;
}

static int take_devices(struct command *c, struct creation *creation)
{
	const json_t *list = json_object_get(c->args, "device"), *device;
	size_t i;

	if (json_array_size(list) > POOL_DEVICES_MAX)
		return error_set(&c->error, -EINVAL, pool_argument(c),
			"a pool has at most %u devices", POOL_DEVICES_MAX);
	json_array_foreach(list, i, device)
	{
		int rc = take_device(c, creation, json_string_value(device));

		if (rc)
			return rc;
	}
	return 0;
}

static unsigned number_of(const struct command *c, const char *name)
{
	return (unsigned)json_integer_value(json_object_get(c->args, name));
}

/* Units millrace-NAME.service are an appliance's own, or NAME lies where servers have their files.
 */
static int check_name_meant(struct command *c, const char *name)
{
	static const char *const taken[] = {"cluster", "drives", "esp", "fencing", "join", "rdma",
		"reader", "setup", "trial", "tried", "update"};

	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++)
		if (!strcmp(name, taken[i]))
			return error_set(&c->error, -EINVAL, name,
				"a part of Millrace itself is called so; choose another name for "
				"the pool");
	return 0;
}

/* A second pool of the same name could be told from the first by its devices alone. */
static int check_name_free(struct command *c, const char *name)
{
	struct device_set set = {0};
	int rc = check_name_meant(c, name);

	if (rc)
		return rc;
	rc = cache_load(c, name, &set, NULL);

	device_set_free(&set);
	if (rc || json_object_get(c->args, "force"))
		return refuse_served(c, name);
	return error_set(&c->error, -EEXIST, name,
		"there is a pool of that name; choose another, or destroy that one first");
}

static int create_and_remember(struct command *c, struct creation *creation)
{
	struct found_pool *list;
	struct engine *engine;
	unsigned count;
	int rc = command_engine(c, &engine);

	if (!rc)
		rc = refuse_each(c, engine, &creation->set);
	terminal_part("create", creation->options.name);
	if (!rc)
		rc = pool_create(engine, &creation->options, &c->error);
	if (rc)
		return rc;
	say(c,
		"Pool %s is ready: `millrace share create %s/NAME` or `millrace dataset ingest "
		"%s/NAME DIR` fill it, `millrace serve %s` serves it.",
		creation->options.name, creation->options.name, creation->options.name,
		creation->options.name);
	rc = pools_probe(c, &creation->set, &list, &count);
	if (!rc && count == 1)
		rc = cache_save(c, &list[0], &c->error);
	free_list(list, count);
	return rc;
}

static int create_with(struct command *c, struct creation *creation)
{
	char name[POOL_NAME_MAX + 1];
	int rc = object_split(pool_argument(c), name, NULL, &c->error);

	if (!rc)
		rc = check_name_free(c, name);
	if (!rc)
		rc = take_devices(c, creation);
	if (rc)
		return rc;
	creation->options = (struct pool_create_options){
		.name = name,
		.data = number_of(c, "data"),
		.parity = number_of(c, "parity"),
		.cell = number_of(c, "cell"),
		.devices = creation->devices,
		.device_count = creation->set.count,
		.host = command_host(c),
		.force = json_object_get(c->args, "force") != NULL,
	};
	return create_and_remember(c, creation);
}

int command_pool_create(struct command *c)
{
	struct creation *creation = calloc(1, sizeof(*creation));
	int rc = creation ? create_with(c, creation) : -ENOMEM;

	if (!creation)
		return rc;
	for (unsigned i = 0; i < POOL_DEVICES_MAX; i++)
		free(creation->domains[i]);
	device_set_free(&creation->set);
	free(creation);
	return rc;
}

/* --- import ------------------------------------------------------------------------------ */

static const char *label_state(const struct pool_summary *s)
{
	return s->exported ? "exported" : s->open ? "open" : "assigned";
}

static json_t *summary_json(const struct found_pool *found)
{
	const struct pool_summary *s = &found->summary;
	json_t *object = json_object();
	char text[32];

	put_text(object, "name", s->name);
	json_object_set_new(object, "uuid", json_uuid(s->uuid));
	snprintf(text, sizeof(text), "%u+%u", s->data, s->parity);
	put_text(object, "code", text);
	snprintf(text, sizeof(text), "%u/%u", s->devices_found, s->device_count);
	put_text(object, "devices", text);
	put_integer(object, "devices_found", s->devices_found);
	put_integer(object, "device_count", s->device_count);
	put_text(object, "state", label_state(s));
	put_text(object, "owner", s->exported ? "" : s->owner);
	put_integer(object, "epoch", s->epoch);
	json_object_set_new(
		object, "owner_known", json_boolean(pool_owner_is_shown(s, found->members)));
	return object;
}

static int probe(struct command *c, bool dev, struct found_pool **list, unsigned *count)
{
	struct device_set set = {0};
	int rc = device_set_add_dirs(&set, c, &c->error);

	*list = NULL;
	*count = 0;
	if (!rc && dev)
		rc = device_set_scan(&set);
	if (!rc)
		rc = pools_probe(c, &set, list, count);
	device_set_free(&set);
	return rc;
}

static void note_unreadable(const struct found_pool *found)
{
	struct reporter *reporter = terminal_reporter();

	for (unsigned i = found->summary.devices_found; i < found->set.count; i++) {
		char text[600];

		snprintf(text, sizeof(text),
			"%s: its header cannot be read; its label is of pool %s",
			found->set.paths[i], found->summary.name);
		reporter->note(reporter, text);
	}
}

/* What fencing may use of the pool's devices. */
static json_t *fencing_json(struct command *c, const struct found_pool *found)
{
	json_t *areas = json_array(), *area;
	struct pool_summary summary;

	for (unsigned i = 0; i < found->summary.devices_found; i++) {
		if (pool_probe(c->engine, found->set.paths[i], &summary) || !summary.fencing_size)
			continue;
		area = json_object();
		json_object_set_new(area, "device", json_uuid(summary.device));
		put_text(area, "path", found->set.paths[i]);
		put_text(area, "domain", summary.domain);
		put_integer(area, "offset", summary.fencing_offset);
		put_integer(area, "size", summary.fencing_size);
		json_array_append_new(areas, area);
	}
	return areas;
}

static json_t *paths_json(const struct found_pool *found)
{
	json_t *paths = json_array();

	for (unsigned i = 0; i < found->set.count; i++)
		json_array_append_new(paths, json_text(found->set.paths[i]));
	return paths;
}

static int list_importable(struct command *c)
{
	json_t *pools = json_array(), *pool;
	struct found_pool *list;
	unsigned count;
	int rc = probe(c, true, &list, &count);

	json_object_set_new(c->result, "pools", pools);
	for (unsigned i = 0; i < count; i++) {
		pool = summary_json(&list[i]);
		json_object_set_new(pool, "paths", paths_json(&list[i]));
		json_object_set_new(pool, "fencing", fencing_json(c, &list[i]));
		json_array_append_new(pools, pool);
		note_unreadable(&list[i]);
	}
	free_list(list, count);
	return rc;
}

static void import_options_fill(
	const struct command *c, const struct found_pool *found, struct pool_open_options *options)
{
	open_options_fill(c, found, options);
	options->background = false;
	options->import = true;
	options->owner_dead = json_object_get(c->args, "owner-dead");
	options->force = options->owner_dead || json_object_get(c->args, "force");
}

static int assign_to_us(struct command *c, const struct found_pool *found)
{
	const struct pool_summary *s = &found->summary;
	struct pool_open_options options;
	struct engine *engine;
	bool ours = !s->exported && !strcmp(s->owner, command_host(c));
	int rc = command_engine(c, &engine), lock = -1;

	if (rc)
		return rc;
	import_options_fill(c, found, &options);
	rc = pool_may_open(engine, &options, &c->error);
	if (rc || (ours && !options.owner_dead))
		return rc;
	rc = command_lock(c, s->name, &lock, &c->error);
	if (rc == -EAGAIN)
		rc = refuse_served(c, s->name);
	if (!rc && !s->exported)
		rc = refuse_besides_service(c, s, &c->error);
	terminal_part("import", s->name);
	if (!rc)
		rc = pool_assign(engine, &options, command_host(c), &c->error);
	if (lock >= 0)
		close(lock);
	return rc;
}

/* -EEXIST when there are several. */
static int choose_by_name(struct command *c, struct found_pool *list, unsigned count,
	const char *name, struct found_pool **chosen)
{
	*chosen = NULL;
	for (unsigned i = 0; i < count; i++) {
		if (strcmp(list[i].summary.name, name))
			continue;
		if (*chosen)
			return error_set(&c->error, -EEXIST, name,
				"there is more than one pool of that name; put the devices of one "
				"into a directory and use --device-dir");
		*chosen = &list[i];
	}
	return 0;
}

/* In --device-dir, and where that does not have all of the pool, in /dev too. */
static int find_importable(struct command *c, const char *name, struct found_pool **list,
	unsigned *count, struct found_pool **chosen)
{
	for (int dev = 0; dev < 2; dev++) {
		int rc = probe(c, dev, list, count);

		if (!rc)
			rc = choose_by_name(c, *list, *count, name, chosen);
		if (rc || dev)
			return rc;
		if (*chosen && (*chosen)->summary.devices_found >= (*chosen)->summary.device_count)
			return 0;
		free_list(*list, *count);
	}
	return 0;
}

static int import_chosen(struct command *c, const char *name, struct found_pool *chosen)
{
	int rc;

	if (!chosen && pool_is_known(c, name))
		return error_set(&c->error, -ENOENT, name,
			"no device of this host's, and of a --device-dir, holds it; it is known "
			"here, and `millrace pool status %s` looks where it was",
			name);
	if (!chosen)
		return error_set(&c->error, -ENOENT, name,
			"no device holds this pool; attach them, or name their directory by "
			"--device-dir");
	rc = assign_to_us(c, chosen);
	if (!rc)
		rc = cache_save(c, chosen, &c->error);
	if (!rc)
		say(c, "Pool %s is imported, %u of %u devices are there.", name,
			chosen->summary.devices_found, chosen->summary.device_count);
	return rc;
}

int command_pool_import(struct command *c)
{
	char name[POOL_NAME_MAX + 1];
	struct found_pool *list, *chosen;
	unsigned count;
	int rc;

	if (!pool_argument(c))
		return list_importable(c);
	rc = object_split(pool_argument(c), name, NULL, &c->error);
	if (!rc)
		rc = refuse_served(c, name);
	if (rc)
		return rc;
	rc = find_importable(c, name, &list, &count, &chosen);
	if (!rc)
		rc = import_chosen(c, name, chosen);
	free_list(list, count);
	return rc;
}

/* --- export, destroy --------------------------------------------------------------------- */

static int forget(struct command *c)
{
	char name[POOL_NAME_MAX + 1];
	int rc = object_split(pool_argument(c), name, NULL, &c->error);

	if (!rc)
		rc = refuse_served(c, name);
	if (rc)
		return rc;
	if (!pool_is_known(c, name))
		return error_set(&c->error, -ENOENT, name,
			"no such pool is known here: see `millrace pool list`");
	cache_remove(c, name);
	say(c,
		"Pool %s is forgotten on this host. Its devices were not touched: those that hold "
		"it "
		"still say whose it is, and `millrace pool import %s` finds them.",
		name, name);
	return 0;
}

/* Else systemd would try to serve it at each boot. */
static void note_unit(const struct command *c, const char *pool)
{
	struct reporter *reporter = terminal_reporter();
	char text[300];

	snprintf(text, sizeof(text),
		"systemd serves %s at boot: `millrace serve %s --disable` ends that", pool, pool);
	if (systemd_has_unit(c, pool))
		reporter->note(reporter, text);
}

static int export(struct command *c)
{
	struct pool_open_options options;
	struct held_pool held;
	int rc = hold(c, &held);

	if (!rc && held.found.summary.exported)
		rc = error_set(&c->error, -EBUSY, held.name, "it is exported already");
	if (!rc) {
		open_options_fill(c, &held.found, &options);
		options.background = false;
		terminal_part("export", held.name);
		rc = pool_assign(held.engine, &options, NULL, &c->error);
	}
	if (!rc) {
		cache_remove(c, held.name);
		note_unit(c, held.name);
		say(c, "Pool %s is exported: `millrace pool import %s` takes it, on any host%s.",
			held.name, held.name,
			host_is_member()
				? ", as does a service of this cluster that was made of it, "
				  "unless `millrace service remove` ends that"
				: "");
	}
	let_go(&held);
	return rc;
}

int command_pool_export(struct command *c)
{
	return json_object_get(c->args, "force") ? forget(c) : export(c);
}

int command_pool_destroy(struct command *c)
{
	struct pool_open_options options;
	struct held_pool held;
	int rc = hold(c, &held);

	if (!rc)
		rc = refuse_each(c, held.engine, &held.found.set);
	if (!rc) {
		open_options_fill(c, &held.found, &options);
		options.background = false;
		terminal_part("destroy", held.name);
		rc = pool_destroy(held.engine, &options, &c->error);
	}
	if (!rc) {
		cache_remove(c, held.name);
		note_unit(c, held.name);
		say(c, "Pool %s is destroyed.", held.name);
	}
	let_go(&held);
	return rc;
}

/* --- attach, replace
 * ------------------------------------------------------------------------------ */

/* All of its devices that can be found, whatever they are called now. */
static int find_devices(struct command *c, const char *name)
{
	json_t *paths = json_array();
	struct found_pool found;
	int rc;

	c->everywhere = true;
	rc = pool_find(c, name, &found, &c->error);
	if (!rc) {
		for (unsigned i = 0; i < found.summary.devices_found; i++)
			json_array_append_new(paths, json_string(found.set.paths[i]));
		json_object_set(c->args, "device", paths);
		found_free(&found);
	}
	json_decref(paths);
	return rc;
}

/* Runs it. A device that is in use, and not found by the next verb, would be dropped by that: so
 * the cache has it from now on. Takes `paths`. */
static int run_and_remember(struct command *c, const char *name, json_t *paths)
{
	int rc = command_run_on_pool(c), saved = 0;

	if (json_object_get(c->result, "resilver"))
		saved = cache_add(c, name, paths, &c->error);
	json_decref(paths);
	return rc ? rc : saved;
}

/* Never on an idle pool: where its server has just ended, another node may be about to open it. */
static int ask_server(struct command *c, const char *name)
{
	int fd, rc = client_connect(c, name, &fd, &c->error);

	if (rc == -ENOENT)
		return error_set(&c->error, rc, name, "it is not being served here");
	return rc ? rc : client_call(c, fd, name, c->verb, c->args, c->result, &c->error);
}

static int check_returned(struct command *c)
{
	if (json_object_get(c->args, "device"))
		return error_set(&c->error, -EINVAL, "returned",
			"it is about all that is found, and goes without DEVICE");
	if (c->reader && (json_object_get(c->args, "rebooted") || json_object_get(c->args, "gone")))
		return error_set(&c->error, -EINVAL, "reader",
			"who may still write is nothing to a reader: it goes without --rebooted "
			"and --gone");
	return 0;
}

/* Devices are looked for where the server says that some are away, or not whole. */
static int attach_returned(struct command *c, const char *name)
{
	int rc = check_returned(c), saved = 0;

	if (rc)
		return rc;
	rc = ask_server(c, name);
	if (rc || !json_integer_value(json_object_get(c->result, "not_whole")))
		return rc;
	rc = find_devices(c, name);
	if (!rc)
		rc = ask_server(c, name);
	if (json_object_get(c->result, "resilver"))
		saved = cache_add(c, name, json_object_get(c->args, "device"), &c->error);
	return rc ? rc : saved;
}

int command_pool_attach(struct command *c)
{
	char name[POOL_NAME_MAX + 1];
	int rc = object_split(pool_argument(c), name, NULL, &c->error);

	c->reader = json_object_get(c->args, "reader");
	if (!rc && json_object_get(c->args, "returned"))
		return attach_returned(c, name);
	if (!rc && c->reader)
		rc = error_set(&c->error, -EINVAL, "reader",
			"a reader takes back what is found, and makes nothing whole: --reader goes "
			"with --returned");
	if (!rc && !json_object_get(c->args, "device"))
		rc = find_devices(c, name);
	return rc ? rc : run_and_remember(c, name, json_incref(json_object_get(c->args, "device")));
}

int command_pool_replace(struct command *c)
{
	const char *path = json_string_value(json_object_get(c->args, "new"));
	char name[POOL_NAME_MAX + 1];
	int rc = object_split(pool_argument(c), name, NULL, &c->error);

	if (!rc)
		rc = server_path_check(path, &c->error);
	return rc ? rc : run_and_remember(c, name, json_pack("[s]", path));
}
