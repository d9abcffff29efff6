/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Devices that were dropped: taken back, or replaced, and made whole. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/fenced_by.h"
#include "cli/verb.h"

#define NUMBER_DIGITS 3 /* of a device */
#define HOST_MAX 63

/* --- earlier owners ---------------------------------------------------------------------- */

/* "HOST:BOOT" */
static int split_boot(
	const char *text, char host[HOST_MAX + 1], uint8_t boot[16], struct error *error)
{
	static const uint8_t unknown[16];
	const char *colon = strrchr(text, ':');
	size_t length = colon ? (size_t)(colon - text) : 0;

	if (!length || length > HOST_MAX || !uuid_parse(colon + 1, boot) ||
		!memcmp(boot, unknown, sizeof(unknown)))
		return error_set(error, -EINVAL, text,
			"it is not HOST:BOOT, as `millrace serve POOL --probe` tells them there");
	memcpy(host, text, length);
	host[length] = 0;
	return 0;
}

/* Hosts of one name: that one runs under a boot says nothing of the other. */
static int refuse_namesake(const json_t *list, size_t before, const char *host,
	const uint8_t boot[16], struct error *error)
{
	char other[HOST_MAX + 1];
	uint8_t others[16];

	for (size_t i = 0; i < before; i++) {
		int rc = split_boot(
			json_string_value(json_array_get(list, i)), other, others, error);

		if (rc)
			return rc;
		if (!strcmp(host, other) && memcmp(boot, others, sizeof(others)))
			return error_set(error, -EINVAL, host,
				"two boots of it are told: hosts of the same name cannot be told "
				"apart, and neither of them may be taken for dead");
	}
	return 0;
}

static int check_boot(const json_t *list, size_t i, struct error *error)
{
	char host[HOST_MAX + 1];
	uint8_t boot[16];
	int rc = split_boot(json_string_value(json_array_get(list, i)), host, boot, error);

	return rc ? rc : refuse_namesake(list, i, host, boot, error);
}

/* One that runs is not gone. Boots have been checked. */
static int check_gone(const json_t *boots, const char *host, struct error *error)
{
	char other[HOST_MAX + 1];
	uint8_t boot[16];
	int rc = 0;

	for (size_t i = 0; !rc && i < json_array_size(boots); i++) {
		rc = split_boot(json_string_value(json_array_get(boots, i)), other, boot, error);
		if (!rc && !strcmp(host, other))
			rc = error_set(error, -EINVAL, host,
				"it cannot be gone for good and have booted, too");
	}
	return rc;
}

/* All of them are checked before the first is used. */
static int let_go(struct verb_call *call, struct error *error)
{
	const json_t *list = json_object_get(call->args, "rebooted"), *each;
	const json_t *gone = json_object_get(call->args, "gone");
	char host[HOST_MAX + 1];
	uint8_t boot[16];
	int rc = 0;
	size_t i;

	for (i = 0; !rc && i < json_array_size(list); i++)
		rc = check_boot(list, i, error);
	for (i = 0; !rc && i < json_array_size(gone); i++)
		rc = check_gone(list, json_string_value(json_array_get(gone, i)), error);
	json_array_foreach(list, i, each)
	{
		if (!rc)
			rc = split_boot(json_string_value(each), host, boot, error);
		if (!rc)
			rc = pool_rebooted(call->pool, host, boot, error);
	}
	json_array_foreach(gone, i, each)
	{
		if (!rc)
			rc = pool_host_gone(call->pool, json_string_value(each), error);
	}
	return rc;
}

/* --- attach ------------------------------------------------------------------------------ */

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

/* --- attach --returned ------------------------------------------------------------------- */

/* Refused for now, which is no failure. */
static bool is_put_off(struct verb_call *call, int rc, const struct error *error)
{
	char text[700];

	if (rc != -EBUSY && rc != -ENODEV && rc != -ENOENT)
		return false;
	snprintf(text, sizeof(text), "%s: %s", error->object, error->message);
	call->reporter->note(call->reporter, text);
	return true;
}

static int take_error(struct verb_call *call, int rc, const struct error *error)
{
	if (!rc || is_put_off(call, rc, error))
		return 0;
	return error_set(call->error, rc, error->object, "%s", error->message);
}

static int attach_found(struct verb_call *call)
{
	const json_t *devices = json_object_get(call->args, "device"), *device;
	int first = 0;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		struct error error = {0};
		int rc = pool_attach_returned(call->pool, json_string_value(device), &error);

		rc = take_error(call, rc, &error);
		first = first ? first : rc;
	}
	return first;
}

static int make_found_whole(struct verb_call *call)
{
	struct pool_resilver_report report;
	struct error error = {0};
	int rc = pool_resilver_returned(call->pool, &report, resilver_progress, call, &error);

	if (rc)
		return take_error(call, rc, &error);
	if (!report.devices) {
		put_text(call->result, "message", "None has come back that can be taken now.");
		return 0;
	}
	put_report(call->result, &report);
	return judge(call, &report);
}

/* To a reader; `count` were away. */
static int read_found(struct verb_call *call, unsigned count)
{
	int rc = attach_found(call);
	unsigned left = pool_not_whole(call->pool);
	char text[80] = "None has come back that can be taken now.";

	if (left < count)
		snprintf(text, sizeof(text), "Taken back: %u of %u that were away.", count - left,
			count);
	put_text(call->result, "message", text);
	return rc;
}

/* Whose host has booted needs no device for that. Without devices: whether it is worth while to
 * look for some. */
static int attach_what_returned(struct verb_call *call)
{
	unsigned count = pool_not_whole(call->pool);
	bool reader = pool_is_reader(call->pool);
	struct error error = {0};
	int attached, rc = reader ? 0 : let_go(call, &error);

	put_integer(call->result, "not_whole", count);
	if (rc)
		return take_error(call, rc, &error);
	if (!count)
		put_text(call->result, "message",
			reader ? "No device is away." : "All devices are whole.");
	if (!count || !json_object_get(call->args, "device"))
		return 0;
	if (reader)
		return read_found(call, count);
	attached = attach_found(call);
	rc = make_found_whole(call);
	return attached ? attached : rc;
}

int verb_pool_attach(struct verb_call *call)
{
	int attached, rc;

	if (call_flag(call, "returned"))
		return attach_what_returned(call);
	rc = let_go(call, call->error);
	if (rc)
		return rc;
	attached = attach_all(call);
	rc = make_whole(call);
	return attached ? attached : rc;
}

/* --- replace ----------------------------------------------------------------------------- */

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

/* The old one would be wiped, or not found again by its label. */
static int refuse_to_replace(struct verb_call *call, unsigned id)
{
	struct pool_status *status = malloc(sizeof(*status));
	struct engine *engine = pool_engine(call->pool);
	int rc = status ? refuse_fencing(engine, call_text(call, "new"), "take another device",
				  call->error)
			: -ENOMEM;

	if (!rc)
		pool_status(call->pool, status);
	if (!rc && id < status->device_count)
		rc = refuse_fencing(engine, status->devices[id].path,
			"pull it first; they go on where most of the drives for it are left",
			call->error);
	free(status);
	return rc;
}

int verb_pool_replace(struct verb_call *call)
{
	unsigned id = 0;
	int rc = find_device(call, call_text(call, "device"), &id);

	if (!rc)
		rc = refuse_to_replace(call, id);
	if (!rc)
		rc = let_go(call, call->error);
	if (!rc)
		rc = pool_replace(call->pool, id, call_text(call, "new"), call_flag(call, "force"),
			call->error);
	return rc ? rc : make_whole(call);
}
