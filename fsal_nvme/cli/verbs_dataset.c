/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Verbs of datasets: ingest, seal, verify. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/measure.h"
#include "cli/verb.h"

#define SKIPPED_NAMED 1000 /* in the result; all are told as notes */

/* --- sealing ----------------------------------------------------------------------------- */

static int seal(struct verb_call *call, struct volume *volume)
{
	struct volume_row row;
	bool was_sealed;
	int rc;

	call_part(call, "seal", call_text(call, "volume"));
	changes_begin();
	was_sealed = volume_row(volume)->sealed;
	rc = volume_seal(volume, call->error);
	row = *volume_row(volume);
	if (!rc && !was_sealed)
		rc = host_added(call, &row);
	changes_end();
	return rc;
}

int verb_dataset_seal(struct verb_call *call)
{
	struct volume *volume;
	struct volume_row row;
	int rc = call_row(call, &row);

	if (!rc)
		rc = volume_open_id(call->volumes, row.id, &volume, call->error);
	if (rc)
		return rc;
	rc = seal(call, volume);
	volume_close(volume);
	return rc;
}

/* --- ingest ------------------------------------------------------------------------------ */

struct ingest {
	struct verb_call *call;
	json_t *skipped; /* rows */
	json_t *left; /* paths */
	struct measure *source; /* its size */
};

static json_t *ingest_json(const struct ingest_progress *p)
{
	json_t *object = json_object();

	put_integer(object, "files", p->files);
	put_integer(object, "directories", p->directories);
	put_integer(object, "links", p->links);
	put_integer(object, "others", p->others);
	put_integer(object, "bytes", p->bytes);
	put_integer(object, "present", p->present);
	put_integer(object, "skipped", p->skipped);
	put_integer(object, "left", p->left);
	return object;
}

static void ingest_progress(void *data, const struct ingest_progress *p)
{
	struct ingest *ingest = data;
	uint64_t total = measure_bytes(ingest->source);
	char what[300];
	json_t *progress;

	snprintf(what, sizeof(what), "ingest %s", call_text(ingest->call, "volume"));
	progress = progress_json(what, p->passed, total && total < p->passed ? p->passed : total);
	put_integer(progress, "files", p->files + p->present);
	call_progress(ingest->call, progress);
}

static void ingest_skip(void *data, const char *path, const char *why)
{
	struct ingest *ingest = data;
	char text[4400];

	snprintf(text, sizeof(text), "skipped %s: %s", path, why);
	ingest->call->reporter->note(ingest->call->reporter, text);
	if (json_array_size(ingest->skipped) < SKIPPED_NAMED) {
		json_t *row = json_object();

		put_text(row, "path", path);
		put_text(row, "why", why);
		json_array_append_new(ingest->skipped, row);
	}
}

static void ingest_left(void *data, const char *path)
{
	struct ingest *ingest = data;
	char text[4400];

	snprintf(text, sizeof(text), "%s is in the dataset, but not there any more", path);
	ingest->call->reporter->note(ingest->call->reporter, text);
	if (json_array_size(ingest->left) < SKIPPED_NAMED)
		json_array_append_new(ingest->left, json_text(path));
}

static bool ingest_stop(void *data)
{
	struct ingest *ingest = data;

	return ingest->call->reporter->stopped(ingest->call->reporter);
}

static int check_source(const char *source, struct error *error)
{
	struct stat st;

	if (stat(source, &st))
		return error_set(error, -errno, source, "it cannot be read: %s", strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return error_set(error, -ENOTDIR, source, "it is not a directory");
	return 0;
}

/* A new dataset, or with --resume one that is there and not sealed. */
static int make_target(struct verb_call *call, struct volume **volume)
{
	char pool[POOL_NAME_MAX + 1], name[POOL_VOLUME_NAME_MAX + 1];
	struct volume_create_options options = {.name = name, .kind = VOLUME_DATASET};
	const char *text = call_text(call, "volume");
	struct error why = {0};
	struct volume_row row;
	int rc = object_split(text, pool, name, call->error);

	if (rc)
		return rc;
	rc = volume_create(call->volumes, &options, &row, &why);
	if (rc == -EEXIST && call_flag(call, "resume")) {
		rc = call_row(call, &row);
		if (!rc && row.sealed)
			rc = error_set(
				call->error, -EROFS, text, "it is sealed: nothing can be added");
	} else if (rc == -EEXIST) {
		return error_set(call->error, rc, text,
			"there is a dataset or share of that name; --resume goes on with a "
			"dataset that is not sealed");
	} else if (rc) {
		return creation_error(call, rc, why.message);
	}
	return rc ? rc : volume_open_id(call->volumes, row.id, volume, call->error);
}

/* The dataset to fill, held for that from the moment on when others can see it: whoever seals it
 * waits for the changes' turn. */
static int ingest_target(struct verb_call *call, struct volume **volume)
{
	struct error why = {0};
	int rc;

	changes_begin();
	rc = make_target(call, volume);
	if (!rc) {
		rc = volume_ingest_hold(*volume, &why);
		if (rc) {
			volume_close(*volume);
			error_set(call->error, rc, call_text(call, "volume"), "%s", why.message);
		}
	}
	changes_end();
	return rc;
}

static int ingest_story(struct verb_call *call, int rc, const char *why)
{
	const char *text = call_text(call, "volume");

	if (rc == -EINTR)
		return error_set(call->error, rc, text,
			"interrupted; --resume goes on, `millrace dataset destroy` gives the space "
			"back");
	if (rc == -ENOSPC)
		return error_set(call->error, rc, text,
			"the pool is full; make room and go on with --resume, or destroy this "
			"dataset");
	return rc ? error_set(call->error, rc, text, "it is not complete: %.300s; --resume goes on",
			    why)
		  : 0;
}

/* Nothing is skipped but for an error, and nothing is left but for a change: what is not as its
 * source is not published unasked. */
static int check_complete(struct verb_call *call, const struct ingest_progress *progress)
{
	const char *text = call_text(call, "volume");
	char skipped[80] = "";

	if (!progress->skipped && !progress->left)
		return 0;
	if (!progress->left)
		return error_set(call->error, -EIO, text,
			"it is not complete: it lacks what was skipped (%llu); --resume tries "
			"again, `millrace dataset seal` seals it as it is",
			(unsigned long long)progress->skipped);
	if (progress->skipped)
		snprintf(skipped, sizeof(skipped), " and lacks what was skipped (%llu)",
			(unsigned long long)progress->skipped);
	return error_set(call->error, -EIO, text,
		"it is not what its directory is: it has names that are gone there (%llu)%s; "
		"`millrace dataset destroy` and a new ingest make it so, `millrace dataset seal` "
		"seals it as it is",
		(unsigned long long)progress->left, skipped);
}

static int ingest_into(struct verb_call *call, struct volume *volume)
{
	struct ingest ingest = {.call = call,
		.skipped = json_array(),
		.left = json_array(),
		.source = measure_start(call_text(call, "source"))};
	struct ingest_options options = {
		.source = call_text(call, "source"),
		.threads = (unsigned)call_number(call, "threads", 0),
		.resume = call_flag(call, "resume"),
		.held = true,
		.progress = ingest_progress,
		.skip = ingest_skip,
		.left = ingest_left,
		.stop = ingest_stop,
		.data = &ingest,
	};
	struct ingest_progress progress;
	struct error why = {0};
	json_t *object;
	int rc;

	memset(&progress, 0, sizeof(progress));
	rc = volume_ingest(volume, &options, &progress, &why);
	measure_stop(ingest.source);
	object = ingest_json(&progress);
	put_text(object, "name", call_text(call, "volume"));
	json_object_set_new(object, "skipped_names", ingest.skipped);
	json_object_set_new(object, "left_names", ingest.left);
	json_object_set_new(call->result, "ingest", object);
	rc = ingest_story(call, rc, why.message);
	if (!rc)
		rc = check_complete(call, &progress);
	if (!rc && !call_flag(call, "no-seal"))
		rc = seal(call, volume);
	put_bool(object, "sealed", volume_row(volume)->sealed);
	return rc;
}

int verb_dataset_ingest(struct verb_call *call)
{
	struct volume *volume;
	int rc = check_source(call_text(call, "source"), call->error), closed;

	if (!rc)
		rc = ingest_target(call, &volume);
	if (rc)
		return rc;
	rc = ingest_into(call, volume);
	closed = volume_close(volume);
	return rc ? rc : ingest_story(call, closed, strerror(-closed));
}

/* --- verify ------------------------------------------------------------------------------ */

static bool verify_progress(void *data, uint64_t bytes, uint64_t total)
{
	struct verb_call *call = data;
	char what[300];

	snprintf(what, sizeof(what), "verify %s", call_text(call, "volume"));
	return call_progress(call, progress_json(what, bytes, total));
}

static void verify_bad(void *data, const char *path, int error)
{
	struct verb_call *call = data;
	char text[4400];

	snprintf(text, sizeof(text), "%s: %s", *path ? path : "metadata", strerror(-error));
	call->reporter->note(call->reporter, text);
}

static void put_verified(struct verb_call *call, const struct volume_verify_report *r)
{
	json_t *object = json_object();

	put_text(object, "name", call_text(call, "volume"));
	put_integer(object, "files", r->files);
	put_integer(object, "directories", r->directories);
	put_integer(object, "others", r->others);
	put_integer(object, "bytes", r->bytes);
	put_integer(object, "bad_files", r->bad_files);
	put_integer(object, "bad_metadata", r->bad_metadata);
	json_object_set_new(call->result, "verify", object);
}

int verb_dataset_verify(struct verb_call *call)
{
	struct volume_verify_options options = {
		.progress = verify_progress, .bad = verify_bad, .data = call};
	struct volume_verify_report report;
	struct volume *volume;
	struct volume_row row;
	int rc = call_row(call, &row);

	if (!rc)
		rc = volume_open_id(call->volumes, row.id, &volume, call->error);
	if (rc)
		return rc;
	memset(&report, 0, sizeof(report));
	rc = volume_verify(volume, &options, &report, call->error);
	put_verified(call, &report);
	volume_close(volume);
	if (!rc && report.bad_files + report.bad_metadata)
		rc = error_set(call->error, -EIO, call_text(call, "volume"),
			"%llu files cannot be read and %llu metadata rows are wrong; destroy it "
			"and ingest it again",
			(unsigned long long)report.bad_files,
			(unsigned long long)report.bad_metadata);
	return rc;
}
