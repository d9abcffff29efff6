/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What a volume is compared with, and what must hold of it. */
#include "steps.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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

static const char *compare_clients(struct run *run, const struct model *model)
{
	struct client_row row = {0};
	unsigned clients = 0;
	struct txn *view;
	int rc = view_begin(pool_env(run->pool), &view);

	if (rc)
		return "clients cannot be read";
	while (!rc) {
		rc = client_next(view, &row);
		if (!rc)
			clients |= 1u << (row.name[0] - '0');
	}
	txn_abort(view);
	if (rc != -ENOENT)
		return "clients cannot be read";
	return clients == model->clients ? NULL : "wrong clients";
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
	return compare_clients(run, model);
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

	model_open(model);
	for (int i = 0; !rc && i < MODEL_NAMES; i++)
		rc = adopt_name(run, model, i);
	return rc;
}

/* What must hold of any volume, whatever was done to it. */
const char *run_check(struct run *run)
{
	struct volume_verify_report report = {0};
	struct pool_check_report checked;
	uint64_t wrong = 0;

	if (volume_verify(run->volume, NULL, &report, NULL) || report.bad_files ||
		report.bad_metadata)
		return "verify finds errors";
	if (volume_check_live(run->volume, &wrong) || wrong)
		return "live bytes are wrong";
	if (pool_check(run->pool, false, &checked, NULL, NULL, NULL) || checked.wrong_live)
		return "remaps are wrong";
	return check_other(run);
}
