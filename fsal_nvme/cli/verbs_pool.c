/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Verbs about a whole pool that is open: status, check. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb.h"
#include "common/cluster.h"

#define QUOTA_LEFT_PART 10u /* less than one part of so many is left: that is said */

static const char *const device_states[] = {
	[DEVICE_ACTIVE] = "active", [DEVICE_MISSING] = "missing", [DEVICE_DROPPED] = "dropped"};

/* --- status ------------------------------------------------------------------------------ */

static json_t *device_json(const struct pool_device_status *d)
{
	json_t *row = json_object();

	put_integer(row, "id", d->id);
	put_text(row, "path", d->path);
	put_text(row, "domain", d->domain);
	json_object_set_new(row, "uuid", json_uuid(d->uuid));
	put_text(row, "state", device_states[d->state]);
	put_bool(row, "whole", d->state == DEVICE_ACTIVE && !d->suspect);
	put_integer(row, "size", d->size);
	put_integer(row, "slots", d->slots);
	put_integer(row, "slots_used", d->slots_used);
	put_integer(row, "read_errors", d->read_errors);
	put_integer(row, "write_errors", d->write_errors);
	put_integer(row, "checksum_errors", d->checksum_errors);
	put_integer(row, "repaired", d->repaired);
	put_integer(row, "late_reads", d->late_reads);
	return row;
}

static const char *health(const struct pool_status *s)
{
	if (s->failure && s->failure != -EROFS) /* that is one of too few devices: it reads */
		return "failed";
	return pool_devices_away(s) || pool_devices_suspect(s) || s->segments_degraded ? "degraded"
										       : "healthy";
}

static json_t *use_json(const struct pool_use *use)
{
	json_t *space = json_object();

	put_integer(space, "data", use->data);
	put_integer(space, "waiting", use->waiting);
	put_integer(space, "parity", use->parity);
	put_integer(space, "metadata", use->metadata);
	put_integer(space, "reserved", use->reserved);
	put_integer(space, "free", use->free);
	put_integer(space, "unusable", use->unusable);
	put_integer(space, "raw", use->raw);
	return space;
}

static void put_space(json_t *pool, const struct pool_status *s)
{
	uint64_t total = s->usable > s->reserve ? s->usable - s->reserve : 0;

	put_integer(pool, "size", total);
	put_integer(pool, "used", s->used);
	put_integer(pool, "live", s->live);
	put_integer(pool, "kept", s->kept);
	put_integer(pool, "free", total > s->used + s->kept ? total - s->used - s->kept : 0);
	put_integer(pool, "raw", s->use.raw);
	json_object_set_new(pool, "space", use_json(&s->use));
	put_integer(pool, "reserve", s->reserve);
	put_integer(pool, "segments", s->segments);
	put_integer(pool, "segments_open", s->segments_open);
	put_integer(pool, "segments_degraded", s->segments_degraded);
	put_integer(pool, "segments_uneven", s->segments_uneven);
	put_integer(pool, "journal_size", s->journal_size);
	put_integer(pool, "journal_used", s->journal_used);
	put_integer(pool, "cache_size", s->cache_size);
	put_integer(pool, "cache_used", s->cache_used);
	put_integer(pool, "cache_hits", s->cache_hits);
	put_integer(pool, "cache_misses", s->cache_misses);
}

json_t *pool_status_json(const struct pool_status *s, bool member)
{
	json_t *pool = json_object(), *devices = json_array();
	char code[24];

	snprintf(code, sizeof(code), "%u+%u", s->summary.data, s->summary.parity);
	put_text(pool, "name", s->summary.name);
	json_object_set_new(pool, "uuid", json_uuid(s->summary.uuid));
	put_text(pool, "health", health(s));
	put_text(pool, "owner", s->summary.owner);
	put_integer(pool, "epoch", s->summary.epoch);
	put_integer(pool, "data", s->summary.data);
	put_integer(pool, "parity", s->summary.parity);
	put_text(pool, "code", code);
	put_integer(pool, "devices_active", s->device_count - pool_devices_away(s));
	put_integer(pool, "device_count", s->device_count);
	put_space(pool, s);
	put_bool(pool, "domain_may_die", s->domain_may_die);
	put_text(pool, "other_owners", s->other_owners);
	for (unsigned i = 0; i < s->device_count; i++)
		json_array_append_new(devices, device_json(&s->devices[i]));
	json_object_set_new(pool, "devices", devices);
	json_object_set_new(pool, "advice", pool_advice(s, member));
	return pool;
}

/* A share whose next writes may be refused. */
static int advise_quota(
	struct verb_call *call, struct txn *view, const struct volume_row *row, json_t *advice)
{
	char what[200], next[200];
	uint64_t used, quota;
	int rc = volume_used(call, view, row->id, &used);

	if (!rc)
		rc = volume_quota_get(view, row->id, &quota);
	if (rc || quota == VOLUME_QUOTA_NONE || used < quota - quota / QUOTA_LEFT_PART)
		return rc;
	snprintf(what, sizeof(what), "share %s has used %llu %% of its quota", row->name,
		(unsigned long long)((double)used * 100 / (double)quota));
	snprintf(next, sizeof(next), "delete files of it, or `millrace share set %s/%s quota=SIZE`",
		pool_name(call->pool), row->name);
	advice_add(advice, what, next);
	return 0;
}

static int advise_quotas(struct verb_call *call, json_t *advice)
{
	struct volume_row row;
	struct txn *view;
	uint32_t id = 1;
	int rc = view_begin(pool_env(call->pool), &view);

	if (rc)
		return rc;
	while (!rc && !(rc = volume_row_next(view, id, &row))) {
		id = row.id + 1;
		if (row.kind == VOLUME_SHARE && !row.destroying)
			rc = advise_quota(call, view, &row, advice);
	}
	txn_abort(view);
	return rc == -ENOENT ? 0 : rc;
}

int verb_pool_status(struct verb_call *call)
{
	struct pool_status *status = malloc(sizeof(*status));
	json_t *pool;

	if (!status)
		return -ENOMEM;
	pool_status(call->pool, status);
	pool = pool_status_json(status, call->host && host_is_member());
	put_text(pool, "state",
		status->reader             ? "reader"
		: call->host               ? "served"
		: status->summary.exported ? "exported"
		: status->summary.open     ? "not closed"
					   : "idle");
	put_bool(pool, "read_only",
		(call->host && status->read_only) || pool_is_of_a_later_version(call->pool) ||
			status->device_count - pool_devices_away(status) <= status->summary.parity);
	json_object_set_new(call->result, "pool", pool);
	free(status);
	return advise_quotas(call, json_object_get(pool, "advice"));
}

/* --- check ------------------------------------------------------------------------------- */

struct check {
	struct verb_call *call;
	struct pool_check_report report;
	struct volume_verify_report verified;
	const char *volume; /* NULL: segments are read */
	uint64_t before, part, after; /* bytes: of parts done, of this one, of those to come */
};

static bool check_progress(void *data, uint64_t done, uint64_t total)
{
	struct check *check = data;
	uint64_t unit = check->volume ? 1 : BLOCK_SIZE;
	char what[POOL_NAME_MAX + 8];

	snprintf(what, sizeof(what), "check %s", pool_name(check->call->pool));
	check->part = total * unit;
	return call_progress(check->call, progress_json(what, check->before + done * unit,
						  check->before + check->part + check->after));
}

/* `size` is what was expected of the part that begins. */
static void check_next(struct check *check, const char *volume, uint64_t size)
{
	check->volume = volume;
	check->before += check->part;
	check->part = 0;
	check->after -= size < check->after ? size : check->after;
}

static void check_bad(void *data, const char *path, int error)
{
	struct check *check = data;
	char text[4400];

	snprintf(text, sizeof(text), "%s/%s:%s%s: %s", pool_name(check->call->pool), check->volume,
		*path ? " " : " metadata", path, strerror(-error));
	check->call->reporter->note(check->call->reporter, text);
}

static int check_volume(struct check *check, const struct volume_row *row)
{
	struct volume_verify_options options = {
		.progress = check_progress, .bad = check_bad, .data = check};
	struct volume_verify_report report;
	struct verb_call *call = check->call;
	struct volume *volume;
	uint64_t wrong = 0;
	int rc = volume_open_id(call->volumes, row->id, &volume, call->error);

	if (rc)
		return rc;
	check_next(check, row->name, pool_volume_live(call->pool, row->id));
	memset(&report, 0, sizeof(report));
	rc = volume_verify(volume, &options, &report, call->error);
	if (!rc && !call->host)
		rc = volume_check_live(volume, &wrong);
	check->report.wrong_live += wrong;
	check->verified.files += report.files;
	check->verified.bytes += report.bytes;
	check->verified.bad_files += report.bad_files;
	check->verified.bad_metadata += report.bad_metadata;
	volume_close(volume);
	return rc;
}

static int next_row(struct verb_call *call, uint32_t id, struct volume_row *row)
{
	struct txn *view;
	int rc = view_begin(pool_env(call->pool), &view);

	if (rc)
		return rc;
	rc = volume_row_next(view, id, row);
	txn_abort(view);
	return rc;
}

static int check_volumes(struct check *check)
{
	struct volume_row row;
	uint32_t id = 1;
	int rc = 0;

	while (!rc && !(rc = next_row(check->call, id, &row))) {
		id = row.id + 1;
		if (!row.destroying)
			rc = check_volume(check, &row);
	}
	return rc == -ENOENT ? 0 : rc;
}

static void put_report(json_t *result, const struct check *check)
{
	json_t *report = json_object();

	put_integer(report, "segments", check->report.segments);
	put_integer(report, "blocks", check->report.blocks);
	put_integer(report, "bad_blocks", check->report.bad_blocks);
	put_integer(report, "repaired_blocks", check->report.repaired_blocks);
	put_integer(report, "lost_blocks", check->report.lost_blocks);
	put_integer(report, "missing_chunks", check->report.missing_chunks);
	put_integer(report, "missing_blocks", check->report.missing_blocks);
	put_integer(report, "wrong_live", check->report.wrong_live);
	put_integer(report, "files", check->verified.files);
	put_integer(report, "bytes", check->verified.bytes);
	put_integer(report, "bad_files", check->verified.bad_files);
	put_integer(report, "bad_metadata", check->verified.bad_metadata);
	json_object_set_new(result, "check", report);
}

static void note_missing(struct verb_call *call, const struct pool_check_report *r)
{
	char text[160];

	snprintf(text, sizeof(text),
		"%s: %llu blocks are on devices that are missing; all of them can be rebuilt, or "
		"are not needed",
		pool_name(call->pool), (unsigned long long)r->missing_blocks);
	if (r->missing_blocks && !r->lost_blocks)
		call->reporter->note(call->reporter, text);
}

static int judge(struct verb_call *call, const struct check *check)
{
	const struct pool_check_report *r = &check->report;
	const char *name = pool_name(call->pool);

	if (check->verified.bad_files)
		return error_set(call->error, -EIO, name,
			"%llu files cannot be read any more; restore them from elsewhere",
			(unsigned long long)check->verified.bad_files);
	if (r->lost_blocks)
		return error_set(call->error, -EIO, name,
			"%llu blocks cannot be rebuilt, but every file can be read: %s",
			(unsigned long long)r->lost_blocks,
			call_flag(call, "repair")
				? "the files beside them have less parity; keep a copy elsewhere"
				: "run it with --repair, then again");
	if (r->wrong_live || check->verified.bad_metadata)
		return error_set(call->error, -EIO, name,
			"its metadata contradict each other in %llu places; please report this, "
			"and copy what it holds to another pool",
			(unsigned long long)(r->wrong_live + check->verified.bad_metadata));
	if (r->bad_blocks > r->repaired_blocks)
		return error_set(call->error, -EIO, name,
			"%llu blocks are bad, all of them can be rebuilt: run it with --repair",
			(unsigned long long)(r->bad_blocks - r->repaired_blocks));
	return 0;
}

/* About what the volumes' files will take to read. */
static uint64_t live_bytes(struct pool *pool)
{
	struct pool_status *status = malloc(sizeof(*status));
	uint64_t live = 0;

	if (status) {
		pool_status(pool, status);
		live = status->live;
	}
	free(status);
	return live;
}

int verb_pool_check(struct verb_call *call)
{
	struct check check = {.call = call, .after = live_bytes(call->pool)};
	int rc = pool_check(call->pool, call_flag(call, "repair"), &check.report, check_progress,
		&check, call->error);

	if (!rc)
		rc = check_volumes(&check);
	put_report(call->result, &check);
	if (rc)
		return rc;
	note_missing(call, &check.report);
	return judge(call, &check);
}
