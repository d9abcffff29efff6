/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Devices that were dropped and are there again: taken back, and made whole. */
#include <errno.h>
#include <stdio.h>

#include "cli/verb.h"

static int attach_all(struct verb_call *call)
{
	const json_t *devices = json_object_get(call->args, "device"), *device;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		int rc = pool_attach(call->pool, json_string_value(device), call->error);

		if (rc)
			return rc;
	}
	return 0;
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
	if (r->waiting_segments)
		return error_set(call->error, -EBUSY, name,
			"%llu segments are left, to which an earlier owner may still write: "
			"`millrace pool status %s` says what to do about it; then say it again",
			(unsigned long long)r->waiting_segments, name);
	return error_set(call->error, -EIO, name,
		"a device failed again: `millrace pool status %s` says which", name);
}

int verb_pool_attach(struct verb_call *call)
{
	struct pool_resilver_report report;
	int rc = attach_all(call);

	if (rc)
		return rc;
	rc = pool_resilver(call->pool, &report, resilver_progress, call, call->error);
	put_report(call->result, &report);
	return rc ? rc : judge(call, &report);
}
