/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Devices that were dropped: taken back, or replaced, and made whole. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb.h"

#define NUMBER_DIGITS 3 /* of a device */

/* The first error, with its story: what cannot be attached keeps nothing from the others. */
static int attach_all(struct verb_call *call)
{
	const json_t *devices = json_object_get(call->args, "device"), *device;
	int first = 0;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		int rc = pool_attach(call->pool, json_string_value(device), call->error);

		first = first ? first : rc;
	}
	return first;
}

static bool resilver_progress(void *data, uint64_t done, uint64_t total)
{
	struct verb_call *call = data;
	char what[POOL_NAME_MAX + 12];

	snprintf(what, sizeof(what), "resilver %s", pool_name(call->pool));
	return call_progress(call, progress_json(what, done * BLOCK_SIZE, total * BLOCK_SIZE));
}

static void put_report(json_t *result, const struct pool_resilver_report *r)
{
	json_t *report = json_object();

	put_integer(report, "devices", r->devices);
	put_integer(report, "segments", r->segments);
	put_integer(report, "blocks", r->blocks);
	put_integer(report, "written_blocks", r->written_blocks);
	put_integer(report, "lost_blocks", r->lost_blocks);
	put_integer(report, "waiting_segments", r->waiting_segments);
	put_bool(report, "whole", r->whole);
	json_object_set_new(result, "resilver", report);
}

static int judge(struct verb_call *call, const struct pool_resilver_report *r)
{
	const char *name = pool_name(call->pool);

	if (r->whole)
		return 0;
	if (r->lost_blocks)
		return error_set(call->error, -EIO, name,
			"%llu blocks cannot be rebuilt now: attach what else is away, and say it "
			"again; `millrace pool check %s` names files that cannot be read",
			(unsigned long long)r->lost_blocks, name);
	return error_set(call->error, -EIO, name,
		"a device failed again: `millrace pool status %s` says which", name);
}

static int make_whole(struct verb_call *call)
{
	struct pool_resilver_report report;
	int rc = pool_resilver(call->pool, &report, resilver_progress, call, call->error);

	if (report.devices || !call->error->code)
		put_report(call->result, &report);
	return rc ? rc : judge(call, &report);
}

int verb_pool_attach(struct verb_call *call)
{
	int attached = attach_all(call), rc = make_whole(call);

	return attached ? attached : rc;
}

/* -ENOENT: there is none of that path. */
static int find_path(struct verb_call *call, const char *path, unsigned *id)
{
	struct pool_status *status = malloc(sizeof(*status));
	bool found = false;

	if (!status)
		return -ENOMEM;
	pool_status(call->pool, status);
	for (unsigned i = 0; i < status->device_count; i++) {
		if (strcmp(status->devices[i].path, path))
			continue;
		*id = i;
		found = true;
	}
	free(status);
	return found ? 0 : -ENOENT;
}

/* By its number, or the path that `pool status` shows. */
static int find_device(struct verb_call *call, const char *name, unsigned *id)
{
	size_t length = strlen(name);
	int rc = 0;

	if (length && length <= NUMBER_DIGITS && strspn(name, "0123456789") == length)
		*id = (unsigned)strtoul(name, NULL, 10);
	else
		rc = find_path(call, name, id);
	if (rc != -ENOENT)
		return rc;
	return error_set(call->error, rc, name,
		"pool %s has no such device: name it by its number in `millrace pool status %s`",
		pool_name(call->pool), pool_name(call->pool));
}

int verb_pool_replace(struct verb_call *call)
{
	unsigned id = 0;
	int rc = find_device(call, call_text(call, "device"), &id);

	if (!rc)
		rc = pool_replace(call->pool, id, call_text(call, "new"), call_flag(call, "force"),
			call->error);
	return rc ? rc : make_whole(call);
}
