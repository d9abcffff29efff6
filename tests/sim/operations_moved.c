/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What is compacted, and a dataset beside the share that is moved. */
#include "steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENTS_MAX 64
#define OTHER "moved"
#define OTHER_BYTES 30000
#define OTHER_HOLE 9000
#define OTHER_HOLE_BYTES 9000
#define OTHER_SALT 7

struct segments {
	uint64_t id[SEGMENTS_MAX];
	unsigned count;
};

static int note_segment(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	struct segments *segments = data;

	if (length && segments->count < SEGMENTS_MAX)
		segments->id[segments->count++] = segment;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

int compact_volume(struct run *run, struct volume *volume)
{
	struct segments segments = {.count = 0};
	int rc = pool_each_segment(run->pool, volume_row(volume)->id, note_segment, &segments);

	qsort(segments.id, segments.count, sizeof(segments.id[0]), by_id);
	if (!rc)
		rc = volume_compact(volume, segments.id, segments.count, NULL);
	return rc ? rc : pool_sync(run->pool, pool_lsn(run->pool));
}

int run_compact(struct run *run)
{
	return compact_volume(run, run->volume);
}

/* --- a dataset beside the share: made, sealed, moved twice, destroyed --- */

/* What it has; the middle was deleted, so that it is moved in pieces. */
static void other_bytes(uint8_t bytes[OTHER_BYTES])
{
	pattern(bytes, OTHER_BYTES, OTHER_SALT);
	memset(bytes + OTHER_HOLE, 0, OTHER_HOLE_BYTES);
}

static int write_other(struct volume *volume)
{
	static uint8_t bytes[OTHER_BYTES];
	struct volume_new new = {.type = VOLUME_FILE};
	struct iovec iov = {bytes, sizeof(bytes)};
	struct volume_attributes made;
	struct volume_file *file;
	uint64_t lsn;
	int rc = volume_make(volume, VOLUME_ROOT, "x", &new, &made, &lsn);

	if (!rc)
		rc = volume_file_get(volume, made.ino, &file);
	if (rc)
		return rc;
	pattern(bytes, sizeof(bytes), OTHER_SALT);
	rc = volume_write(file, 0, &iov, 1, sizeof(bytes));
	if (!rc)
		rc = volume_commit_wait(file);
	if (!rc)
		rc = volume_punch(file, OTHER_HOLE, OTHER_HOLE_BYTES);
	if (!rc)
		rc = volume_commit_wait(file);
	volume_file_put(file);
	return rc;
}

static int move_other(struct run *run)
{
	struct volume *volume;
	int rc = volume_open(run->volumes, OTHER, &volume, NULL), closed;

	if (rc)
		return rc;
	rc = write_other(volume);
	if (!rc)
		rc = volume_seal(volume, NULL);
	for (unsigned i = 0; !rc && i < 2; i++) {
		rc = compact_volume(run, volume);
		if (!rc)
			rc = pool_maintain(run->pool); /* what it has filled is closed */
	}
	closed = volume_close(volume);
	return rc ? rc : closed;
}

int do_other(struct run *run, int a, int b)
{
	struct volume_create_options options = {.name = OTHER, .kind = VOLUME_DATASET};
	int rc = volume_destroy(run->volumes, OTHER, NULL); /* of a run that was cut */

	if (rc && rc != -ENOENT)
		return rc;
	rc = volume_create(run->volumes, &options, NULL, NULL);
	if (!rc)
		rc = move_other(run);
	return rc ? rc : volume_destroy(run->volumes, OTHER, NULL);
}

/* Sealed or not, it is as it was made. */
const char *check_other(struct run *run)
{
	static uint8_t want[OTHER_BYTES], got[OTHER_BYTES];
	struct volume_verify_report report = {0};
	struct volume_attributes found;
	struct volume_file *file;
	struct volume *volume;
	uint64_t wrong = 0;
	size_t length = 0;
	bool eof, bad;
	int rc = volume_open(run->volumes, OTHER, &volume, NULL);

	if (rc)
		return rc == -ENOENT ? NULL : "the other dataset cannot be opened";
	bad = volume_verify(volume, NULL, &report, NULL) || report.bad_files ||
	      report.bad_metadata || volume_check_live(volume, &wrong) || wrong;
	if (volume_row(volume)->sealed) {
		other_bytes(want);
		rc = volume_lookup(volume, VOLUME_ROOT, "x", &found);
		if (!rc)
			rc = volume_file_get(volume, found.ino, &file);
		if (!rc) {
			rc = volume_read_wait(file, 0, got, sizeof(got), &length, &eof);
			volume_file_put(file);
		}
		bad |= rc || length != sizeof(got) || memcmp(want, got, sizeof(got));
	}
	volume_close(volume);
	return bad ? "the other dataset is wrong" : NULL;
}
