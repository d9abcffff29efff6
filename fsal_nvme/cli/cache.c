/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the state directory remembers: STATE_DIR/pools/NAME.json, the paths of a pool's devices as
 * last seen, and which drives these were. A hint: labels tell the truth, and `pool import` makes it
 * anew.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/identity.h"

#define CACHE_MAX (1u << 20) /* bytes */

static int cache_path(const struct command *command, const char *name, const char *suffix,
	char *path, size_t size)
{
	return (size_t)snprintf(path, size, "%s/pools/%s.json%s", command_state_dir(command), name,
		       suffix) < size
		       ? 0
		       : -ENAMETOOLONG;
}

static json_t *load_file(const char *path)
{
	struct stat st;
	json_t *root;

	if (stat(path, &st) || st.st_size > CACHE_MAX)
		return NULL;
	root = json_load_file(path, 0, NULL);
	if (json_is_object(root))
		return root;
	json_decref(root);
	return NULL;
}

static json_t *load(const struct command *command, const char *name)
{
	char path[4096];

	return cache_path(command, name, "", path, sizeof(path)) ? NULL : load_file(path);
}

static const char *member(const json_t *device, const char *key)
{
	return json_string_value(json_object_get(device, key));
}

int cache_load(
	const struct command *command, const char *name, struct device_set *set, uint8_t uuid[16])
{
	json_t *root = load(command, name);
	const json_t *devices, *device;
	const char *text = member(root, "uuid");
	uint8_t unused[16];
	size_t i;
	int rc = 0;

	if (!text || !uuid_parse(text, uuid ? uuid : unused)) {
		json_decref(root);
		return -ENOENT;
	}
	devices = json_object_get(root, "devices");
	json_array_foreach(devices, i, device)
	{
		const char *path = member(device, "path");

		if (!rc && path)
			rc = device_set_add(set, path);
	}
	json_decref(root);
	return rc;
}

json_t *cache_paths(const struct command *command, const char *name)
{
	json_t *root = load(command, name), *paths = json_array(), *device;
	size_t i;

	json_array_foreach(json_object_get(root, "devices"), i, device)
	{
		if (member(device, "path"))
			json_array_append(paths, json_object_get(device, "path"));
	}
	json_decref(root);
	return paths;
}

bool cache_same_drive(const struct command *command, const char *name, const char *path)
{
	json_t *root = load(command, name), *device;
	char now[IDENTITY_MAX];
	bool same = false;
	size_t i;

	identity_of(path, now);
	json_array_foreach(json_object_get(root, "devices"), i, device)
	{
		const char *place = member(device, "path"), *was = member(device, "identity");

		same |= place && was && !strcmp(place, path) && !strcmp(was, now);
	}
	json_decref(root);
	return same;
}

int directory_make(const char *path, struct error *error)
{
	char copy[4096];

	if ((size_t)snprintf(copy, sizeof(copy), "%s", path) >= sizeof(copy))
		return error_set(error, -ENAMETOOLONG, path, "the name is too long");
	for (char *at = copy + 1;; at++) {
		char was = *at;

		if (was && was != '/')
			continue;
		*at = 0;
		if (mkdir(copy, 0755) && errno != EEXIST)
			return error_set(error, -errno, copy, "the directory cannot be made: %s",
				strerror(errno));
		*at = was;
		if (!was)
			return 0;
	}
}

static bool has_path(const json_t *devices, const char *path)
{
	const json_t *device;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		const char *known = member(device, "path");

		if (known && !strcmp(known, path))
			return true;
	}
	return false;
}

static void add_device(json_t *devices, const char *path)
{
	json_t *device = json_object();
	char identity[IDENTITY_MAX];

	identity_of(path, identity);
	put_text(device, "path", path);
	put_text(device, "identity", identity);
	json_array_append_new(devices, device);
}

/* Those that are away: they may come back under the name that they had. */
static void keep_missing(json_t *devices, const json_t *before)
{
	json_t *device;
	size_t i;

	json_array_foreach(before, i, device)
	{
		const char *path = member(device, "path");

		if (json_array_size(devices) < POOL_DEVICES_MAX && path && access(path, F_OK) &&
			!has_path(devices, path))
			json_array_append(devices, device);
	}
}

static json_t *describe(const struct command *command, const struct found_pool *found)
{
	json_t *root = json_object(), *devices = json_array();
	json_t *before = load(command, found->summary.name);

	put_integer(root, "schema", 1);
	put_text(root, "name", found->summary.name);
	json_object_set_new(root, "uuid", json_uuid(found->summary.uuid));
	for (unsigned i = 0; i < found->set.count; i++)
		add_device(devices, found->set.paths[i]);
	if (json_equal(json_object_get(before, "uuid"), json_object_get(root, "uuid")))
		keep_missing(devices, json_object_get(before, "devices"));
	json_object_set_new(root, "devices", devices);
	json_decref(before);
	return root;
}

/* Written beside and renamed, so that a reader sees the old or the new one. Takes `root`. */
static int store(const struct command *command, const char *name, json_t *root, struct error *error)
{
	char dir[4096], path[4096], fresh[4096];
	int rc = cache_path(command, name, "", path, sizeof(path));

	if (!rc)
		rc = cache_path(command, name, ".new", fresh, sizeof(fresh));
	if (rc)
		error_set(error, rc, command_state_dir(command), "the name is too long");
	snprintf(dir, sizeof(dir), "%.4000s/pools", command_state_dir(command));
	if (!rc)
		rc = directory_make(dir, error);
	if (!rc && (json_dump_file(root, fresh, JSON_INDENT(1)) || rename(fresh, path)))
		rc = error_set(error, errno ? -errno : -EIO, path, "it cannot be written: %s",
			strerror(errno));
	json_decref(root);
	return rc;
}

int cache_save(const struct command *command, const struct found_pool *found, struct error *error)
{
	return store(command, found->summary.name, describe(command, found), error);
}

int cache_add(
	const struct command *command, const char *name, const json_t *paths, struct error *error)
{
	json_t *root = load(command, name), *devices = json_object_get(root, "devices"), *path;
	size_t i;

	if (!json_is_array(devices)) {
		json_decref(root);
		return 0;
	}
	json_array_foreach((json_t *)paths, i, path)
	{
		if (!has_path(devices, json_string_value(path)))
			add_device(devices, json_string_value(path));
	}
	return store(command, name, root, error);
}

void cache_remove(const struct command *command, const char *name)
{
	char path[4096];

	if (!cache_path(command, name, "", path, sizeof(path)))
		unlink(path);
}

/* --- names ------------------------------------------------------------------------------- */

static void add_name(json_t *names, const struct command *command, const char *file,
	const char *suffix, bool is_socket)
{
	size_t length = strlen(file), tail = strlen(suffix);
	char name[POOL_NAME_MAX + 1], copy[POOL_NAME_MAX + 1];
	const json_t *other;
	size_t i;

	if (length <= tail || length - tail > POOL_NAME_MAX || strcmp(file + length - tail, suffix))
		return;
	memcpy(copy, file, length - tail);
	copy[length - tail] = 0;
	if (object_split(copy, name, NULL, NULL))
		return;
	json_array_foreach(names, i, other)
	{
		if (!strcmp(json_string_value(other), name))
			return;
	}
	if (!is_socket || socket_is_live(command, name))
		json_array_append_new(names, json_string(name));
}

static void add_names(json_t *names, const struct command *command, const char *dir,
	const char *suffix, bool sockets)
{
	struct dirent **entries;
	int count = scandir(dir, &entries, NULL, alphasort);

	for (int i = 0; i < count; i++) {
		add_name(names, command, entries[i]->d_name, suffix, sockets);
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
}

json_t *cache_names(const struct command *command)
{
	json_t *names = json_array();
	char dir[4096];

	snprintf(dir, sizeof(dir), "%.4000s/pools", command_state_dir(command));
	add_names(names, command, dir, ".json", false);
	add_names(names, command, command_run_dir(command), ".sock", true);
	return names;
}
