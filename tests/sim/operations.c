/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "operations.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEVICE_SIZE (2u << 20)
#define CACHE_SIZE (80u << 10) /* of blocks: some nine of them */
#define WRITES_MAX 4 /* of a random sequence, holes, and space that is kept */
#define PUNCH_FROM 1000 /* from a small file's bytes to the middle of what lies behind a hole */
#define PUNCH_TO 41500
#define KEPT_FROM 30000 /* space is kept from here on, also around what lies behind a hole, */
#define KEPT_WRITE 52000 /* and from here on no other operation writes */
#define KEPT_TO 64000
#define CREATES_MAX 7
#define ATTRIBUTE_MAX 2000 /* bytes */
#define BULK_FILES 12
#define BULK_BYTES 2000
#define LAST_BULK "bulk12"
#define BULK_DELTAS 4 /* as many as so small a pool takes */
#define SEGMENTS_MAX 64
#define FILL_STEP 16384
#define FILL_STRIDE 61 /* of the hundreds of writes that fill a pool, each so manieth is a cut */

static const char *const names[MODEL_NAMES] = {"a", "b"};
struct sim_world *world;
struct sim_image *base;
const struct geometry geometry_small = {4, 2, 1}, geometry_double = {5, 2, 2};
struct geometry geometry;
const char *device_paths[DEVICES_MAX];
static char device_names[DEVICES_MAX][12];
static unsigned long deltas, full_images; /* written by "checkpoint" */

/* --- operations on the volume --- */

/* *lsn: as `rc` was made, whatever was evaluated first. */
static int durable(struct run *run, int rc, const uint64_t *lsn)
{
	return rc ? rc : pool_sync(run->pool, *lsn);
}

static int make(struct run *run, int a, enum volume_type type)
{
	struct volume_new new = {.type = type, .set = {.mask = VOLUME_SET_MODE, .mode = 0644}};
	struct volume_attributes made;
	uint64_t lsn = 0;

	return durable(
		run, volume_make(run->volume, VOLUME_ROOT, names[a], &new, &made, &lsn), &lsn);
}

static int do_create(struct run *run, int a, int b)
{
	return make(run, a, VOLUME_FILE);
}

static int do_mkdir(struct run *run, int a, int b)
{
	return make(run, a, VOLUME_DIRECTORY);
}

/* The file of a name with a reference. */
static int get_file(struct run *run, int a, struct volume_file **file)
{
	struct volume_attributes found;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[a], &found);

	if (!rc && found.type == VOLUME_DIRECTORY)
		rc = -EISDIR;
	return rc ? rc : volume_file_get(run->volume, found.ino, file);
}

static void pattern(uint8_t *bytes, uint32_t length, unsigned salt)
{
	for (uint32_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(1 + (salt * 37 + i / 7 + i) % 255);
}

static int write_at(struct run *run, int a, uint32_t offset, uint32_t length)
{
	static uint8_t bytes[MODEL_BYTES];
	struct iovec iov = {bytes, length};
	struct volume_file *file;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	pattern(bytes, length, run->salt);
	rc = volume_write(file, offset, &iov, 1, length);
	volume_file_put(file);
	return rc;
}

static int model_write_at(struct model *m, int a, uint32_t offset, uint32_t length, unsigned salt)
{
	static uint8_t bytes[MODEL_BYTES];

	pattern(bytes, length, salt);
	return model_write(m, a, offset, bytes, length);
}

/* Offset and length of the kinds of writes: inline, inside a row behind a hole, across rows. */
#define WRITE(kind, offset, length)                                                 \
	static int do_write_##kind(struct run *run, int a, int b)                   \
	{                                                                           \
		return write_at(run, a, offset, length);                            \
	}                                                                           \
	static int model_write_##kind(struct model *m, int a, int b, unsigned salt) \
	{                                                                           \
		return model_write_at(m, a, offset, length, salt);                  \
	}
WRITE(small, 0, 1500)
WRITE(hole, 40000, 3000)
WRITE(rows, 6000, 20000)

static int do_punch(struct run *run, int a, int b)
{
	struct volume_file *file;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	rc = volume_punch(file, PUNCH_FROM, PUNCH_TO - PUNCH_FROM);
	volume_file_put(file);
	return rc;
}

static int do_allocate(struct run *run, int a, int b)
{
	struct volume_file *file;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	rc = volume_allocate(file, KEPT_FROM, KEPT_TO - KEPT_FROM);
	volume_file_put(file);
	return rc;
}

/* The file ends where the range did: it was not cut since, and nothing is written there yet. */
static int do_write_kept(struct run *run, int a, int b)
{
	struct volume_attributes found;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[a], &found);

	if (rc || found.size != KEPT_TO)
		return 0;
	return write_at(run, a, KEPT_WRITE, KEPT_TO - KEPT_WRITE);
}

static int set_quota(struct run *run, const char *text)
{
	uint32_t id = volume_row(run->volume)->id;
	struct txn *txn;
	uint64_t lsn = 0;
	int rc = txn_begin(run->pool, NULL, &txn);

	if (rc)
		return rc;
	rc = property_set(txn, id, VOLUME_QUOTA_PROPERTY, text);
	if (rc)
		txn_abort(txn);
	else
		rc = durable(run, txn_commit(txn, &lsn), &lsn);
	return rc ? rc : volumes_quota_changed(run->volumes, id);
}

/* Behind all that a file has. */
static int do_write_over_quota(struct run *run, int a, int b)
{
	struct volume_file *file;
	int rc = get_file(run, a, &file), back;

	if (rc)
		return rc;
	volume_file_put(file);
	rc = set_quota(run, "1");
	if (!rc)
		rc = write_at(run, a, 2 * MODEL_BYTES, 5000);
	rc = rc == -EDQUOT ? 0 : rc ? rc : -EINVAL;
	back = set_quota(run, "none");
	return rc ? rc : back;
}

static int do_fsync(struct run *run, int a, int b)
{
	struct volume_file *file;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	rc = volume_commit_wait(file);
	volume_file_put(file);
	return rc;
}

static int cut_to(struct run *run, int a, uint64_t size)
{
	struct volume_set set = {.mask = VOLUME_SET_SIZE, .size = size};
	struct volume_attributes found;
	uint64_t lsn = 0;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[a], &found);

	if (!rc)
		rc = volume_setattr(run->volume, found.ino, &set, NULL, &lsn);
	return durable(run, rc, &lsn);
}

static int do_shrink(struct run *run, int a, int b)
{
	return cut_to(run, a, 700);
}

static int do_grow(struct run *run, int a, int b)
{
	return cut_to(run, a, 50000);
}

/* The value of an attribute, of a length of its own. */
static size_t attribute_value(uint8_t *value, unsigned salt)
{
	size_t length = salt * 311 % ATTRIBUTE_MAX;

	pattern(value, (uint32_t)length, salt);
	return length;
}

static int do_set_attribute(struct run *run, int a, int b)
{
	static uint8_t value[ATTRIBUTE_MAX];
	struct volume_xattr xattr = {"key", value, attribute_value(value, run->salt)};
	struct volume_file *file;
	uint64_t lsn = 0;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	rc = volume_xattr_set(
		run->volume, volume_file_ino(file), &xattr, VOLUME_XATTR_EITHER, &lsn);
	volume_file_put(file);
	return durable(run, rc, &lsn);
}

static int do_remove_attribute(struct run *run, int a, int b)
{
	struct volume_file *file;
	uint64_t lsn = 0;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	rc = volume_xattr_remove(run->volume, volume_file_ino(file), "key", &lsn);
	volume_file_put(file);
	return durable(run, rc, &lsn);
}

static int do_unlink(struct run *run, int a, int b)
{
	uint64_t lsn = 0;

	return durable(run,
		volume_unlink(run->volume, VOLUME_ROOT, names[a], VOLUME_UNLINK_ANY, &lsn), &lsn);
}

/* Writes "fill", a file that the model does not know, until the pool has no room; 0 then. */
static int do_fill(struct run *run, int a, int b)
{
	struct volume_new new = {.type = VOLUME_FILE};
	static uint8_t bytes[FILL_STEP];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct volume_attributes made;
	struct volume_file *file;
	uint64_t offset = 0, lsn;
	int rc = volume_make(run->volume, VOLUME_ROOT, "fill", &new, &made, &lsn);

	if (!rc)
		rc = volume_file_get(run->volume, made.ino, &file);
	if (rc)
		return rc;
	for (; !rc; offset += sizeof(bytes)) {
		rc = volume_write(file, offset, &iov, 1, sizeof(bytes));
		if (!rc)
			rc = volume_commit_wait(file);
	}
	volume_file_put(file);
	return rc == -ENOSPC ? 0 : rc;
}

static int do_unlink_fill(struct run *run, int a, int b)
{
	uint64_t lsn = 0;

	return durable(run,
		volume_unlink(run->volume, VOLUME_ROOT, "fill", VOLUME_UNLINK_ANY, &lsn), &lsn);
}

int run_make_room(struct run *run)
{
	int rc = volume_row(run->volume)->sealed ? 0 : do_unlink_fill(run, 0, 0);

	return rc == -ENOENT ? 0 : rc;
}

/* The file is open over its unlink and stays so until the end of the run. */
static int do_unlink_open(struct run *run, int a, int b)
{
	struct volume_file *file = NULL;
	int rc = get_file(run, a, &file);

	if (!rc)
		rc = volume_file_open(file);
	if (!rc)
		run->held[run->held_count++] = file;
	else
		volume_file_put(file);
	return do_unlink(run, a, b);
}

static int do_link(struct run *run, int a, int b)
{
	struct volume_attributes found;
	uint64_t lsn = 0;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[a], &found);

	if (!rc)
		rc = volume_link(run->volume, found.ino, VOLUME_ROOT, names[b], NULL, &lsn);
	return durable(run, rc, &lsn);
}

static int do_rename(struct run *run, int a, int b)
{
	uint64_t lsn = 0;

	return durable(run,
		volume_rename(run->volume, VOLUME_ROOT, names[a], VOLUME_ROOT, names[b], &lsn),
		&lsn);
}

static void let_go(struct run *run)
{
	for (unsigned i = 0; i < run->held_count; i++) {
		volume_file_close(run->held[i]);
		volume_file_put(run->held[i]);
	}
	run->held_count = 0;
}

static int do_seal(struct run *run, int a, int b)
{
	let_go(run);
	return volume_seal(run->volume, NULL);
}

static int do_checkpoint(struct run *run, int a, int b)
{
	static struct pool_status before, after;
	int rc;

	pool_status(run->pool, &before);
	rc = pool_checkpoint(run->pool);
	pool_status(run->pool, &after);
	deltas += after.deltas - before.deltas;
	full_images += after.images - before.images > 1; /* not the pool's own alone */
	return rc;
}

static int do_maintain(struct run *run, int a, int b)
{
	int rc = volume_maintain(run->volume);

	return rc ? rc : pool_maintain(run->pool);
}

struct segments {
	uint64_t id[SEGMENTS_MAX];
	unsigned count;
};

static int note_segment(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	struct segments *segments = data;

	if (live && segments->count < SEGMENTS_MAX)
		segments->id[segments->count++] = segment;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

int run_compact(struct run *run)
{
	struct segments segments = {.count = 0};
	int rc = pool_each_segment(run->pool, volume_row(run->volume)->id, note_segment, &segments);

	qsort(segments.id, segments.count, sizeof(segments.id[0]), by_id);
	if (!rc)
		rc = volume_compact(run->volume, segments.id, segments.count, NULL);
	return rc ? rc : pool_sync(run->pool, pool_lsn(run->pool));
}

static int do_compact(struct run *run, int a, int b)
{
	return run_compact(run);
}

int run_open(struct run *run)
{
	struct pool_open_options options = {.paths = device_paths,
		.path_count = geometry.devices,
		.name = "tank",
		.host = run->host,
		.force = run->force,
		.row_memory = 1u << 20,
		.page_cache = 1u << 20,
		.metadata_limit = 8u << 20};
	struct error error = {0};
	int rc = pool_open(run->engine, &options, &run->pool, &error);

	if (rc)
		return rc;
	rc = pool_cache_resize(run->pool, CACHE_SIZE);
	if (!rc)
		rc = volumes_create(run->pool, NULL, &run->volumes);
	if (!rc)
		rc = volume_open(run->volumes, "share", &run->volume, &error);
	return rc;
}

static int close_volume(struct run *run)
{
	int rc, closed;

	let_go(run);
	rc = volume_close(run->volume);
	run->volume = NULL;
	volumes_destroy(run->volumes);
	run->volumes = NULL;
	closed = pool_close(run->pool, NULL);
	run->pool = NULL;
	return rc ? rc : closed;
}

static int do_reopen(struct run *run, int a, int b)
{
	int rc = close_volume(run);

	return rc ? rc : run_open(run);
}

/* --- and on the model --- */

static int m_create(struct model *m, int a, int b, unsigned salt)
{
	return model_create(m, a);
}
static int m_mkdir(struct model *m, int a, int b, unsigned salt)
{
	return model_mkdir(m, a);
}
static int m_punch(struct model *m, int a, int b, unsigned salt)
{
	return model_punch(m, a, PUNCH_FROM, PUNCH_TO);
}
static int m_allocate(struct model *m, int a, int b, unsigned salt)
{
	return model_allocate(m, a, KEPT_TO);
}
static int m_write_kept(struct model *m, int a, int b, unsigned salt)
{
	const struct model_file *file = m->name[a] < 0 ? NULL : &m->file[m->name[a]];

	if (!file || file->version[file->versions - 1]->size != KEPT_TO)
		return 0;
	return model_write_at(m, a, KEPT_WRITE, KEPT_TO - KEPT_WRITE, salt);
}
static int m_write_over_quota(struct model *m, int a, int b, unsigned salt)
{
	return model_refuse(m, a);
}
static int m_fsync(struct model *m, int a, int b, unsigned salt)
{
	return model_commit(m, a);
}
static int m_shrink(struct model *m, int a, int b, unsigned salt)
{
	return model_truncate(m, a, 700);
}
static int m_grow(struct model *m, int a, int b, unsigned salt)
{
	return model_truncate(m, a, 50000);
}
static int m_unlink(struct model *m, int a, int b, unsigned salt)
{
	return model_unlink(m, a);
}
static int m_set_attribute(struct model *m, int a, int b, unsigned salt)
{
	return model_set_attribute(m, a, salt);
}
static int m_remove_attribute(struct model *m, int a, int b, unsigned salt)
{
	return model_remove_attribute(m, a);
}
static int m_link(struct model *m, int a, int b, unsigned salt)
{
	return model_link(m, a, b);
}
static int m_rename(struct model *m, int a, int b, unsigned salt)
{
	return model_rename(m, a, b);
}
static int m_seal(struct model *m, int a, int b, unsigned salt)
{
	return model_seal(m);
}
static int m_nothing(struct model *m, int a, int b, unsigned salt)
{
	return 0;
}
/* Of what fills the pool. */
static int m_fill(struct model *m, int a, int b, unsigned salt)
{
	return m->sealed ? -EROFS : 0;
}
static int m_compact(struct model *m, int a, int b, unsigned salt)
{
	return m->sealed ? -EROFS : 0;
}
static int m_reopen(struct model *m, int a, int b, unsigned salt)
{
	model_settle(m);
	return 0;
}

const struct operation operations[] = {
	{"create a", do_create, m_create, 0, 0, 1, 0},
	{"create b", do_create, m_create, 1, 0, 1, 0},
	{"mkdir b", do_mkdir, m_mkdir, 1, 0, 1, 0},
	{"write a small", do_write_small, model_write_small, 0, 0, 1, 0},
	{"write a behind a hole", do_write_hole, model_write_hole, 0, 0, 1, 0},
	{"write a across rows", do_write_rows, model_write_rows, 0, 0, 1, 0},
	{"write b across rows", do_write_rows, model_write_rows, 1, 0, 1, 0},
	{"punch a", do_punch, m_punch, 0, 0, 1, 0},
	{"allocate a", do_allocate, m_allocate, 0, 0, 1, 0},
	{"write a over its quota", do_write_over_quota, m_write_over_quota, 0, 0, 1, 0},
	{"fsync a", do_fsync, m_fsync, 0, 0, 1, 0},
	{"fsync b", do_fsync, m_fsync, 1, 0, 1, 0},
	{"shrink a", do_shrink, m_shrink, 0, 0, 1, 0},
	{"grow a", do_grow, m_grow, 0, 0, 1, 0},
	{"set an attribute of a", do_set_attribute, m_set_attribute, 0, 0, 1, 0},
	{"remove the attribute of a", do_remove_attribute, m_remove_attribute, 0, 0, 1, 0},
	{"unlink a", do_unlink, m_unlink, 0, 0, 1, 0},
	{"unlink a while open", do_unlink_open, m_unlink, 0, 0, 1, 0},
	{"fill the pool", do_fill, m_fill, 0, 0, FILL_STRIDE, MOMENT_FILLS},
	{"write a where space is kept, in the full pool", do_write_kept, m_write_kept, 0, 0, 1,
		MOMENT_FULL},
	{"unlink a in the full pool", do_unlink, m_unlink, 0, 0, 1, MOMENT_FULL},
	{"unlink what fills the pool", do_unlink_fill, m_fill, 0, 0, 1, MOMENT_FULL},
	{"link a b", do_link, m_link, 0, 1, 1, 0},
	{"rename a b", do_rename, m_rename, 0, 1, 1, 0},
	{"rename b a", do_rename, m_rename, 1, 0, 1, 0},
	{"seal", do_seal, m_seal, 0, 0, 1, 0},
	{"checkpoint", do_checkpoint, m_nothing, 0, 0, 1, 0},
	{"maintain", do_maintain, m_nothing, 0, 0, 1, 0},
	{"compact", do_compact, m_compact, 0, 0, 1, 0},
	{"close and open", do_reopen, m_reopen, 0, 0, 1, 0},
};
const unsigned operation_count = sizeof(operations) / sizeof(operations[0]);
static unsigned long succeeded[sizeof(operations) / sizeof(operations[0])];

void operation_done(const struct operation *operation, int rc)
{
	succeeded[operation - operations] += !rc;
}

unsigned operation_find(const char *name)
{
	for (unsigned i = 0; i < operation_count; i++)
		if (!strcmp(operations[i].name, name))
			return i;
	fprintf(stderr, "no operation is called %s\n", name);
	exit(2);
}

/* --- comparing --- */

static const char *compare_attribute(struct run *run, const struct model_file *file, uint64_t ino)
{
	static uint8_t want[ATTRIBUTE_MAX], got[ATTRIBUTE_MAX];
	size_t wanted = attribute_value(want, file->attribute), length = 0;
	int rc = volume_xattr_get(run->volume, ino, "key", got, sizeof(got), &length);

	if (rc && rc != -ENODATA)
		return "its attribute cannot be read";
	if (rc)
		return file->attribute ? "its attribute is gone" : NULL;
	if (!file->attribute || length != wanted || memcmp(got, want, length) != 0)
		return "wrong attribute";
	return NULL;
}

/* What is said to be holes reads as zeros. */
static const char *compare_holes(struct volume_file *file, const uint8_t *bytes, size_t length)
{
	uint64_t at = 0, end;

	while (at < length) {
		int rc = volume_seek(file, at, VOLUME_SEEK_HOLE, &at);

		end = length;
		if (!rc && at < length)
			rc = volume_seek(file, at, VOLUME_SEEK_DATA, &end);
		if (rc && rc != -ENXIO)
			return "its holes cannot be found";
		for (; at < end; at++)
			if (bytes[at])
				return "wrong hole";
	}
	return NULL;
}

static const char *compare_file(
	struct run *run, const struct model_file *file, const struct volume_attributes *found)
{
	static uint8_t bytes[MODEL_BYTES + 1];
	struct volume_file *handle;
	const char *wrong;
	size_t length = 0;
	bool eof;
	int rc;

	if (found->type != VOLUME_FILE)
		return "not a file";
	if (found->nlink != file->links)
		return "wrong number of links";
	if (found->size > MODEL_BYTES)
		return "too large";
	rc = volume_file_get(run->volume, found->ino, &handle);
	if (rc)
		return "cannot be got";
	rc = volume_read_wait(handle, 0, bytes, sizeof(bytes), &length, &eof);
	wrong = rc ? NULL : compare_holes(handle, bytes, length);
	volume_file_put(handle);
	if (rc || wrong)
		return rc ? "cannot be read" : wrong;
	if (length != found->size)
		return "size and bytes differ";
	if (!model_allows(file, (uint32_t)length, bytes))
		return "wrong bytes or size";
	return compare_attribute(run, file, found->ino);
}

static const char *compare_name(struct run *run, const struct model *model, int name)
{
	struct volume_attributes found;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[name], &found);
	int want = model->name[name];

	if (rc == -ENOENT)
		return want == NAME_NONE ? NULL : "gone";
	if (rc)
		return "lookup fails";
	if (want == NAME_NONE)
		return "there";
	if (want == NAME_DIRECTORY)
		return found.type == VOLUME_DIRECTORY ? NULL : "not a directory";
	return compare_file(run, &model->file[want], &found);
}

/* NULL: as the model says; else what is wrong. */
const char *run_compare(struct run *run, const struct model *model)
{
	static char text[128];

	if (volume_row(run->volume)->sealed != model->sealed)
		return model->sealed ? "not sealed" : "sealed";
	for (int i = 0; i < MODEL_NAMES; i++) {
		const char *wrong = compare_name(run, model, i);

		if (wrong) {
			snprintf(text, sizeof(text), "name %s: %s", names[i], wrong);
			return text;
		}
	}
	return NULL;
}

static int adopt_name(struct run *run, struct model *model, int name)
{
	static uint8_t bytes[MODEL_BYTES];
	struct volume_file *file;
	size_t length = 0;
	bool eof;
	int rc;

	if (model->name[name] < 0)
		return 0;
	rc = get_file(run, name, &file);
	if (rc)
		return rc;
	rc = volume_read_wait(file, 0, bytes, sizeof(bytes), &length, &eof);
	volume_file_put(file);
	if (!rc)
		model_adopt(&model->file[model->name[name]], (uint32_t)length, bytes);
	return rc;
}

int run_adopt(struct run *run, struct model *model)
{
	int rc = set_quota(run, "none");

	for (int i = 0; !rc && i < MODEL_NAMES; i++)
		rc = adopt_name(run, model, i);
	return rc;
}

/* What must hold of any volume, whatever was done to it. */
const char *run_check(struct run *run)
{
	struct volume_verify_report report = {0};
	uint64_t wrong = 0;

	if (volume_verify(run->volume, NULL, &report, NULL) || report.bad_files ||
		report.bad_metadata)
		return "verify finds errors";
	if (volume_check_live(run->volume, &wrong) || wrong)
		return "live bytes are wrong";
	return NULL;
}

void run_crash(struct run *run)
{
	for (unsigned i = 0; i < run->held_count; i++) {
		volume_file_close(run->held[i]);
		volume_file_put(run->held[i]);
	}
	run->held_count = 0;
	if (run->volumes)
		volumes_abandon(run->volumes);
	if (run->pool)
		pool_abandon(run->pool);
	run->volumes = NULL;
	run->volume = NULL;
	run->pool = NULL;
}

/* --- sequences --- */

bool sequence_fills(const struct sequence *s)
{
	for (unsigned i = 0; i < s->length; i++)
		if (operations[s->op[i]].moment == MOMENT_FILLS)
			return true;
	return false;
}

void sequence_print(const struct sequence *s)
{
	for (unsigned i = 0; i < s->length; i++)
		fprintf(stderr, "%s%s", i ? ", " : "", operations[s->op[i]].name);
}

static uint64_t next_random(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull; /* splitmix64 */
	uint64_t z = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9ull;

	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* A filled pool is emptied before anything else; as many sequences end at each step. False: the
 * sequence has ended. */
static bool draw_filling(struct sequence *s, unsigned op, uint64_t *state)
{
	uint64_t end = next_random(state) % 6;

	s->op[s->length++] = (unsigned char)op;
	for (op = 0; end && op < operation_count; op++) {
		if (operations[op].moment != MOMENT_FULL)
			continue;
		s->op[s->length++] = (unsigned char)op;
		end--;
	}
	return end > 0;
}

/* Creations are drawn more often, so that long histories have something to work on; unstable
 * writes to one file are bounded by what the model keeps. */
void sequence_random(struct sequence *s, uint64_t *state)
{
	unsigned writes = 0;

	s->length = 0;
	while (s->length < 4 + next_random(state) % 10) {
		unsigned op = next_random(state) % 4 ? next_random(state) % operation_count
						     : next_random(state) % 2;
		bool write = op >= 3 && op <= 8;

		if (write && ++writes > WRITES_MAX)
			continue;
		if (operations[op].moment == MOMENT_FULL)
			continue;
		if (operations[op].moment == MOMENT_FILLS) {
			if (next_random(state) % 3 == 0 && !sequence_fills(s) &&
				!draw_filling(s, op, state))
				return;
			continue;
		}
		if (op == 0 || op == 1)
			for (unsigned i = 0, made = 0; i < s->length; i++)
				if (s->op[i] <= 1 && ++made == CREATES_MAX)
					return;
		s->op[s->length++] = (unsigned char)op;
	}
}

double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int operations_report(void)
{
	int never = 0;

	for (unsigned i = 0; i < operation_count; i++) {
		if (!succeeded[i]) {
			printf("operation never succeeded: %s\n", operations[i].name);
			never = 1;
		}
	}
	return never;
}

int images_report(void)
{
	if (deltas && full_images)
		return 0;
	printf("no %s was written\n", deltas ? "full image of a volume" : "delta");
	return 1;
}

/* --- the world --- */

/* A file that the model does not know, of bytes that live in the metadata; 0, or an errno. */
static int make_bulk(struct run *run, unsigned number)
{
	struct volume_new new = {.type = VOLUME_FILE};
	static uint8_t bytes[BULK_BYTES];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct volume_attributes made;
	struct volume_file *file;
	char name[16];
	uint64_t lsn;
	int rc;

	snprintf(name, sizeof(name), "bulk%u", number);
	rc = volume_make(run->volume, VOLUME_ROOT, name, &new, &made, &lsn);
	if (!rc)
		rc = volume_file_get(run->volume, made.ino, &file);
	if (rc)
		return rc;
	rc = volume_write(file, 0, &iov, 1, sizeof(bytes));
	if (!rc)
		rc = volume_commit_wait(file);
	volume_file_put(file);
	return rc;
}

/*
 * The share has an image large enough for deltas to be worth while, and all of these that there may
 * be, or all but one: what the next checkpoint writes is a full one in one geometry, and a delta in
 * the other.
 */
static int make_parts(struct run *run)
{
	unsigned parts = geometry.parity == 1 ? BULK_DELTAS - 1 : BULK_DELTAS;
	uint64_t lsn;
	int rc = 0;

	for (unsigned i = 0; !rc && i < BULK_FILES; i++)
		rc = make_bulk(run, i);
	if (!rc)
		rc = pool_checkpoint(run->pool);
	for (unsigned i = 0; !rc && i < parts; i++) {
		rc = make_bulk(run, BULK_FILES);
		if (!rc)
			rc = volume_unlink(
				run->volume, VOLUME_ROOT, LAST_BULK, VOLUME_UNLINK_ANY, &lsn);
		if (!rc)
			rc = pool_checkpoint(run->pool);
	}
	return rc;
}

void base_make(uint64_t seed, const struct geometry *chosen)
{
	struct sim_options options = {.seed = seed, .reorder = true};
	struct pool_create_device devices[DEVICES_MAX];
	struct pool_create_options create = {.name = "tank",
		.data = chosen->data,
		.parity = chosen->parity,
		.cell = 4096,
		.devices = devices,
		.device_count = chosen->devices,
		.host = "alpha",
		.slot_rows = 4,
		.journal_size = 512 << 10};
	struct volume_create_options volume = {.name = "share", .kind = VOLUME_SHARE};
	struct run run = {.host = "alpha"};
	struct pool_open_options open = {.paths = device_paths,
		.path_count = chosen->devices,
		.host = "alpha",
		.metadata_limit = 8u << 20};
	struct error error = {0};

	geometry = *chosen;
	if (sim_world_create(&options, &world))
		abort();
	for (unsigned i = 0; i < geometry.devices; i++) {
		snprintf(device_names[i], sizeof(device_names[i]), "d%u", i);
		device_paths[i] = device_names[i];
		devices[i] = (struct pool_create_device){device_paths[i], device_paths[i]};
		if (sim_add_device(world, device_paths[i], DEVICE_SIZE))
			abort();
	}
	if (sim_engine_create(world, &run.engine) || pool_create(run.engine, &create, &error) ||
		pool_open(run.engine, &open, &run.pool, &error) ||
		volumes_create(run.pool, NULL, &run.volumes) ||
		volume_create(run.volumes, &volume, NULL, &error) ||
		volume_open(run.volumes, volume.name, &run.volume, &error)) {
		fprintf(stderr, "%s: %s\n", error.object, error.message);
		exit(1);
	}
	if (make_parts(&run) || close_volume(&run))
		abort();
	sim_drain(world);
	engine_destroy(run.engine);
	if (sim_save(world, &base))
		abort();
}

void base_free(void)
{
	sim_image_free(base);
	base = NULL;
	sim_world_destroy(world);
}
