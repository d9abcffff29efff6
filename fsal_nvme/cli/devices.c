/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Finding the devices of a pool: by the cache, in directories, in /dev. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"

/* --- sets -------------------------------------------------------------------------------- */

void device_set_free(struct device_set *set)
{
	for (unsigned i = 0; i < set->count; i++)
		free(set->paths[i]);
	free(set->paths);
	memset(set, 0, sizeof(*set));
}

static bool same_device(const char *path, const struct stat *st)
{
	struct stat other;

	if (stat(path, &other))
		return false;
	if (S_ISBLK(st->st_mode))
		return S_ISBLK(other.st_mode) && other.st_rdev == st->st_rdev;
	return other.st_dev == st->st_dev && other.st_ino == st->st_ino;
}

/* What is neither plain file nor block device, or there already, is left out. */
int device_set_add(struct device_set *set, const char *path)
{
	struct stat st;
	char **paths, *copy;

	if (stat(path, &st) || !(S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)))
		return 0;
	for (unsigned i = 0; i < set->count; i++)
		if (same_device(set->paths[i], &st))
			return 0;
	paths = realloc(set->paths, (set->count + 1) * sizeof(*paths));
	if (!paths)
		return -ENOMEM;
	set->paths = paths;
	copy = strdup(path);
	if (!copy)
		return -ENOMEM;
	set->paths[set->count++] = copy;
	return 0;
}

static int add_dir(struct device_set *set, const char *path, struct error *error)
{
	struct dirent **entries;
	int count = scandir(path, &entries, NULL, alphasort), rc = 0;

	if (count < 0)
		return error_set(
			error, -errno, path, "the directory cannot be read: %s", strerror(errno));
	for (int i = 0; i < count; i++) {
		char *joined = NULL;

		if (!rc && asprintf(&joined, "%s/%s", path, entries[i]->d_name) < 0)
			rc = -ENOMEM;
		if (!rc)
			rc = device_set_add(set, joined);
		free(joined);
		free(entries[i]);
	}
	free(entries);
	return rc;
}

int device_set_add_dirs(struct device_set *set, const struct command *command, struct error *error)
{
	const json_t *dirs = json_object_get(command->common, "device-dir"), *dir;
	size_t i;

	json_array_foreach(dirs, i, dir)
	{
		int rc = add_dir(set, json_string_value(dir), error);

		if (rc)
			return rc;
	}
	return 0;
}

/* --- /dev -------------------------------------------------------------------------------- */

static bool sysfs_exists(const char *name, const char *leaf)
{
	char path[512];

	snprintf(path, sizeof(path), "/sys/class/block/%s/%s", name, leaf);
	return !access(path, F_OK);
}

static bool sysfs_empty(const char *name)
{
	char path[512], text[32] = "0";
	int fd;

	snprintf(path, sizeof(path), "/sys/class/block/%s/size", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	if (read(fd, text, sizeof(text) - 1) < 1)
		text[0] = '0';
	close(fd);
	return atoll(text) == 0;
}

/* Loop devices without a file, memory disks, and drives without a medium hold no pool. */
static bool worth_a_look(const char *name)
{
	if (name[0] == '.' || !strncmp(name, "ram", 3) || !strncmp(name, "zram", 4) ||
		!strncmp(name, "fd", 2) || !strncmp(name, "sr", 2))
		return false;
	if (!strncmp(name, "loop", 4) && !strchr(name + 4, 'p') &&
		!sysfs_exists(name, "loop/backing_file"))
		return false;
	return !sysfs_empty(name);
}

int device_set_scan(struct device_set *set)
{
	struct dirent **entries;
	int count = scandir("/sys/class/block", &entries, NULL, alphasort), rc = 0;

	for (int i = 0; i < count; i++) {
		char path[512];

		snprintf(path, sizeof(path), "/dev/%s", entries[i]->d_name);
		for (char *at = path; *at; at++)
			if (*at == '!')
				*at = '/';
		if (!rc && worth_a_look(entries[i]->d_name))
			rc = device_set_add(set, path);
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
	return rc;
}

/* --- pools ------------------------------------------------------------------------------- */

void found_free(struct found_pool *found)
{
	device_set_free(&found->set);
}

static struct found_pool *pool_of(
	struct found_pool **list, unsigned *count, const struct pool_summary *summary)
{
	struct found_pool *grown;

	for (unsigned i = 0; i < *count; i++)
		if (!memcmp((*list)[i].summary.uuid, summary->uuid, 16))
			return &(*list)[i];
	grown = realloc(*list, (*count + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	*list = grown;
	memset(&grown[*count], 0, sizeof(*grown));
	return &grown[(*count)++];
}

/* A device that was missing may show a claim that the pool does not go by. */
static bool is_newer(const struct pool_summary *a, const struct pool_summary *b)
{
	for (unsigned i = 0; i < 4; i++)
		if (a->version[i] != b->version[i])
			return a->version[i] > b->version[i];
	return true;
}

/* One that was replaced by another may be there again: it is none of the pool's. */
static bool is_member(
	const struct found_pool *found, const struct pool_summary *summary, unsigned *id)
{
	for (*id = 0; *id < found->summary.device_count; ++*id)
		if (!memcmp(found->summary.members[*id], summary->device, 16))
			return true;
	return false;
}

static int keep(struct found_pool *found, const struct pool_summary *summary, const char *path)
{
	unsigned id;
	int rc;

	if (!is_member(found, summary, &id))
		return 0;
	rc = device_set_add(&found->set, path);
	found->members |= UINT64_C(1) << id;
	found->summary.devices_found = found->set.count;
	return rc;
}

/* A device that is broken in part belongs to a pool that others have shown; without a header it can
 * only be told of, behind the others. */
static int keep_broken(struct found_pool *list, unsigned count, const struct pool_summary *summary,
	const char *path)
{
	for (unsigned i = 0; i < count; i++) {
		if (memcmp(list[i].summary.uuid, summary->uuid, 16))
			continue;
		list[i].summary.devices_found += summary->devices_found;
		return device_set_add(&list[i].set, path);
	}
	return 0;
}

/* What each path shows. */
struct shown {
	const struct device_set *set;
	struct pool_summary *summaries;
	int *results; /* pool_probe_each()'s */
};

static int take_newest(const struct shown *shown, struct found_pool **list, unsigned *count)
{
	for (unsigned i = 0; i < shown->set->count; i++) {
		struct found_pool *found;

		if (shown->results[i] == -ENOMEM)
			return -ENOMEM;
		if (shown->results[i])
			continue;
		found = pool_of(list, count, &shown->summaries[i]);
		if (!found)
			return -ENOMEM;
		if (is_newer(&shown->summaries[i], &found->summary))
			found->summary = shown->summaries[i];
	}
	return 0;
}

/* The newest label of each pool says which devices are its. */
static int take_whole(const struct shown *shown, struct found_pool **list, unsigned *count)
{
	int rc = take_newest(shown, list, count);

	for (unsigned i = 0; !rc && i < shown->set->count; i++)
		if (!shown->results[i])
			rc = keep(pool_of(list, count, &shown->summaries[i]), &shown->summaries[i],
				shown->set->paths[i]);
	return rc;
}

/* Those that have a header, or those that have a label alone. */
static int take_broken(
	const struct shown *shown, bool header, struct found_pool *list, unsigned count)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < shown->set->count; i++)
		if (shown->results[i] == -EBADMSG &&
			header == (shown->summaries[i].devices_found > 0))
			rc = keep_broken(list, count, &shown->summaries[i], shown->set->paths[i]);
	return rc;
}

static int take_shown(const struct shown *shown, struct found_pool **list, unsigned *count)
{
	int rc = take_whole(shown, list, count);

	if (!rc)
		rc = take_broken(shown, true, *list, *count);
	return rc ? rc : take_broken(shown, false, *list, *count);
}

int pools_probe(struct command *command, const struct device_set *set, struct found_pool **list,
	unsigned *count)
{
	struct shown shown = {set, calloc(set->count + 1, sizeof(*shown.summaries)),
		calloc(set->count + 1, sizeof(*shown.results))};
	struct engine *engine;
	int rc = shown.summaries && shown.results ? command_engine(command, &engine) : -ENOMEM;

	*list = NULL;
	*count = 0;
	if (!rc) {
		pool_probe_each(engine, (const char *const *)set->paths, set->count,
			shown.summaries, shown.results);
		rc = take_shown(&shown, list, count);
	}
	free(shown.summaries);
	free(shown.results);
	return rc;
}

/* Of the pools of that name the one that the cache knows, else the only one. */
static int choose(struct found_pool *list, unsigned count, const char *name, const uint8_t *uuid,
	struct found_pool **chosen, struct error *error)
{
	*chosen = NULL;
	for (unsigned i = 0; i < count; i++) {
		if (strcmp(list[i].summary.name, name))
			continue;
		if (uuid && !memcmp(list[i].summary.uuid, uuid, 16)) {
			*chosen = &list[i];
			return 0;
		}
		if (*chosen && !uuid)
			return error_set(error, -EEXIST, name,
				"there is more than one pool of that name; put the devices of one "
				"into a directory and use --device-dir");
		if (!uuid)
			*chosen = &list[i];
	}
	return 0;
}

static int probe_for(struct command *command, const struct device_set *set, const char *name,
	const uint8_t *uuid, struct found_pool *found, struct error *error)
{
	struct found_pool *list, *chosen = NULL;
	unsigned count;
	int rc = pools_probe(command, set, &list, &count);

	found_free(found);
	if (!rc)
		rc = choose(list, count, name, uuid, &chosen, error);
	for (unsigned i = 0; i < count; i++) {
		if (&list[i] == chosen)
			*found = list[i];
		else
			found_free(&list[i]);
	}
	free(list);
	return rc;
}

static bool complete(const struct found_pool *found)
{
	return found->set.count && found->summary.devices_found >= found->summary.device_count;
}

/* The paths of the pool's devices as they were, where nothing tells any more whose they are, or
 * they hang, which may have an end before the server asks. Names of the kernel's move: another
 * drive that has one of them now is none of the pool's. */
static int add_unreadable(struct command *command, const char *name, const struct device_set *known,
	unsigned count, struct found_pool *found)
{
	struct pool_summary summary;
	struct engine *engine;
	int rc = command_engine(command, &engine);

	for (unsigned i = 0; !rc && i < count; i++) {
		int got = pool_probe(engine, known->paths[i], &summary);

		if ((got == -ENOENT || got == -EIO || got == -ETIMEDOUT) &&
			cache_same_drive(command, name, known->paths[i]))
			rc = device_set_add(&found->set, known->paths[i]);
	}
	return rc;
}

/* Whether one hangs: each was asked before. */
static bool any_hangs(struct command *command, const struct device_set *set)
{
	struct engine *engine;
	bool hangs = false;

	if (command_engine(command, &engine))
		return false;
	for (unsigned i = 0; !hangs && i < set->count; i++) {
		struct device *device;

		hangs = device_open(engine, set->paths[i], DEVICE_READ_ONLY, &device, NULL) ==
			-ETIMEDOUT;
		device_close(device);
	}
	return hangs;
}

static int why_none(struct command *command, const struct device_set *set)
{
	if (any_hangs(command, set))
		return -ETIMEDOUT;
	for (unsigned i = 0; i < set->count; i++)
		if (access(set->paths[i], R_OK) && errno == EACCES)
			return -EACCES;
	return -ENOENT;
}

/* What is known here, where that is about the pool which is looked for. */
static bool load_wanted(
	struct command *command, const char *name, struct device_set *set, uint8_t uuid[16])
{
	bool known = !cache_load(command, name, set, uuid);

	if (!known || !command->by_uuid || !memcmp(uuid, command->uuid, 16))
		return known;
	device_set_free(set);
	return false;
}

/* About a pool of which none is found, for why_none()'s reason. */
static const char *what_to_do(const struct command *command, int why, bool cached)
{
	if (why == -ETIMEDOUT)
		return "devices that may be its hang: they are there, and do not answer; see "
		       "`dmesg`";
	if (why == -EACCES)
		return "its devices cannot be read: run as root";
	if (command->by_uuid)
		return "there is no pool of that name and UUID here: `millrace pool import` looks "
		       "for pools on all devices; where the pool of a service was made anew, "
		       "`millrace service remove` and `create` have it serve that one";
	if (cached)
		return "none of its devices is there: attach them, or, if they are gone or hold "
		       "something else, `millrace pool export --force` with its name forgets it "
		       "here";
	return "there is no such pool here: `millrace pool import` looks for pools on all devices";
}

/*
 * A device that merely has another name since the last time must not be taken for a missing one: it
 * would be dropped. So everything is looked at when the known paths do not show all devices.
 */
int pool_find(
	struct command *command, const char *name, struct found_pool *found, struct error *error)
{
	struct device_set set = {0};
	uint8_t cache_uuid[16];
	bool cached = load_wanted(command, name, &set, cache_uuid);
	const uint8_t *uuid = command->by_uuid ? command->uuid : cached ? cache_uuid : NULL;
	unsigned known = set.count;
	int rc = device_set_add_dirs(&set, command, error);

	memset(found, 0, sizeof(*found));
	if (!rc && set.count)
		rc = probe_for(command, &set, name, uuid, found, error);
	if (!rc && (cached || command->everywhere) && !complete(found)) {
		rc = device_set_scan(&set);
		if (!rc)
			rc = probe_for(command, &set, name, uuid, found, error);
		/* Another node may have made the pool anew. */
		if (!rc && cached && command->everywhere && !command->by_uuid && !found->set.count)
			rc = probe_for(command, &set, name, NULL, found, error);
		if (!rc && found->set.count && !complete(found))
			rc = add_unreadable(command, name, &set, known, found);
	}
	if (!rc && !found->set.count) {
		rc = why_none(command, &set);
		error_set(error, rc, name, "%s", what_to_do(command, rc, cached));
	}
	device_set_free(&set);
	if (rc)
		found_free(found);
	return rc;
}
