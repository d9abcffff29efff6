/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Operations on files of the share: on the volume, and on the model. */
#include "steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PUNCH_FROM 1000 /* from a small file's bytes to the middle of what lies behind a hole */
#define PUNCH_TO 41500
#define KEPT_FROM 30000 /* space is kept from here on, also around what lies behind a hole, */
#define KEPT_WRITE 52000 /* and from here on no other operation writes */
#define KEPT_TO 64000

const char *const names[MODEL_NAMES] = {"a", "b"};

/* *lsn: as `rc` was made, whatever was evaluated first. */
int durable(struct run *run, int rc, const uint64_t *lsn)
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

int do_create(struct run *run, int a, int b)
{
	return make(run, a, VOLUME_FILE);
}

int do_mkdir(struct run *run, int a, int b)
{
	return make(run, a, VOLUME_DIRECTORY);
}

/* The file of a name with a reference. */
int get_file(struct run *run, int a, struct volume_file **file)
{
	struct volume_attributes found;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[a], &found);

	if (!rc && found.type == VOLUME_DIRECTORY)
		rc = -EISDIR;
	return rc ? rc : volume_file_get(run->volume, found.ino, file);
}

void pattern(uint8_t *bytes, uint32_t length, unsigned salt)
{
	for (uint32_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(1 + (salt * 37 + i / 7 + i) % 255);
}

/* What is written is lent: the memory is gone when the loan is over. */
struct lent {
	struct loan loan;
	uint8_t *bytes;
};

static void lent_back(struct loan *loan)
{
	struct lent *lent = (struct lent *)loan;

	memset(lent->bytes, 0xdd, MODEL_BYTES);
	free(lent->bytes);
	free(lent);
}

static struct lent *lend(uint32_t length, unsigned salt)
{
	struct lent *lent = malloc(sizeof(*lent));

	if (!lent)
		return NULL;
	lent->bytes = aligned_alloc(BLOCK_SIZE, MODEL_BYTES);
	if (!lent->bytes) {
		free(lent);
		return NULL;
	}
	pattern(lent->bytes, length, salt);
	loan_begin(&lent->loan, lent_back);
	return lent;
}

static int write_at(struct run *run, int a, uint32_t offset, uint32_t length)
{
	struct volume_write_options options = {.kill = false};
	struct volume_file *file;
	struct lent *lent;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	lent = lend(length, run->salt);
	if (lent) {
		options.loan = &lent->loan;
		rc = volume_write_with(
			file, offset, &(struct iovec){lent->bytes, length}, 1, length, &options);
		loan_end(&lent->loan);
	}
	volume_file_put(file);
	return lent ? rc : -ENOMEM;
}

int model_write_at(struct model *m, int a, uint32_t offset, uint32_t length, unsigned salt)
{
	static uint8_t bytes[MODEL_BYTES];

	pattern(bytes, length, salt);
	return model_write(m, a, offset, bytes, length);
}

/* Offset and length of the kinds of writes: inline, inside a row behind a hole, across rows. */
#define WRITE(kind, offset, length)                                      \
	int do_write_##kind(struct run *run, int a, int b)               \
	{                                                                \
		return write_at(run, a, offset, length);                 \
	}                                                                \
	int m_write_##kind(struct model *m, int a, int b, unsigned salt) \
	{                                                                \
		return model_write_at(m, a, offset, length, salt);       \
	}
WRITE(small, 0, 1500)
WRITE(hole, 40000, 3000)
WRITE(rows, 6000, 20000)

int do_punch(struct run *run, int a, int b)
{
	struct volume_file *file;
	int rc = get_file(run, a, &file);

	if (rc)
		return rc;
	rc = volume_punch(file, PUNCH_FROM, PUNCH_TO - PUNCH_FROM);
	volume_file_put(file);
	return rc;
}

int do_allocate(struct run *run, int a, int b)
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
int do_write_kept(struct run *run, int a, int b)
{
	struct volume_attributes found;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[a], &found);

	if (rc || found.size != KEPT_TO)
		return 0;
	return write_at(run, a, KEPT_WRITE, KEPT_TO - KEPT_WRITE);
}

int set_quota(struct run *run, const char *text)
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
int do_write_over_quota(struct run *run, int a, int b)
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

int do_fsync(struct run *run, int a, int b)
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

int do_shrink(struct run *run, int a, int b)
{
	return cut_to(run, a, 700);
}

int do_grow(struct run *run, int a, int b)
{
	return cut_to(run, a, 50000);
}

/* The value of an attribute, of a length of its own. */
size_t attribute_value(uint8_t *value, unsigned salt)
{
	size_t length = salt * 311 % ATTRIBUTE_MAX;

	pattern(value, (uint32_t)length, salt);
	return length;
}

int do_set_attribute(struct run *run, int a, int b)
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

int do_remove_attribute(struct run *run, int a, int b)
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

int do_unlink(struct run *run, int a, int b)
{
	uint64_t lsn = 0;

	return durable(run,
		volume_unlink(run->volume, VOLUME_ROOT, names[a], VOLUME_UNLINK_ANY, &lsn), &lsn);
}

/* The file is open over its unlink and stays so until the end of the run. */
int do_unlink_open(struct run *run, int a, int b)
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

int do_link(struct run *run, int a, int b)
{
	struct volume_attributes found;
	uint64_t lsn = 0;
	int rc = volume_lookup(run->volume, VOLUME_ROOT, names[a], &found);

	if (!rc)
		rc = volume_link(run->volume, found.ino, VOLUME_ROOT, names[b], NULL, &lsn);
	return durable(run, rc, &lsn);
}

int do_rename(struct run *run, int a, int b)
{
	uint64_t lsn = 0;

	return durable(run,
		volume_rename(run->volume, VOLUME_ROOT, names[a], VOLUME_ROOT, names[b], &lsn),
		&lsn);
}

/* --- and on the model --- */

int m_create(struct model *m, int a, int b, unsigned salt)
{
	return model_create(m, a);
}
int m_mkdir(struct model *m, int a, int b, unsigned salt)
{
	return model_mkdir(m, a);
}
int m_punch(struct model *m, int a, int b, unsigned salt)
{
	return model_punch(m, a, PUNCH_FROM, PUNCH_TO);
}
int m_allocate(struct model *m, int a, int b, unsigned salt)
{
	return model_allocate(m, a, KEPT_TO);
}
int m_write_kept(struct model *m, int a, int b, unsigned salt)
{
	const struct model_file *file = m->name[a] < 0 ? NULL : &m->file[m->name[a]];

	if (!file || file->version[file->versions - 1]->size != KEPT_TO)
		return 0;
	return model_write_at(m, a, KEPT_WRITE, KEPT_TO - KEPT_WRITE, salt);
}
int m_write_over_quota(struct model *m, int a, int b, unsigned salt)
{
	return model_refuse(m, a);
}
int m_fsync(struct model *m, int a, int b, unsigned salt)
{
	return model_commit(m, a);
}
int m_shrink(struct model *m, int a, int b, unsigned salt)
{
	return model_truncate(m, a, 700);
}
int m_grow(struct model *m, int a, int b, unsigned salt)
{
	return model_truncate(m, a, 50000);
}
int m_unlink(struct model *m, int a, int b, unsigned salt)
{
	return model_unlink(m, a);
}
int m_set_attribute(struct model *m, int a, int b, unsigned salt)
{
	return model_set_attribute(m, a, salt);
}
int m_remove_attribute(struct model *m, int a, int b, unsigned salt)
{
	return model_remove_attribute(m, a);
}
int m_link(struct model *m, int a, int b, unsigned salt)
{
	return model_link(m, a, b);
}
int m_rename(struct model *m, int a, int b, unsigned salt)
{
	return model_rename(m, a, b);
}
