/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "model.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void model_init(struct model *model)
{
	memset(model, 0, sizeof(*model));
	for (int i = 0; i < MODEL_NAMES; i++)
		model->name[i] = NAME_NONE;
}

static void file_free(struct model_file *file)
{
	for (unsigned i = 0; i < file->versions; i++)
		free(file->version[i]);
	file->versions = 0;
}

void model_free(struct model *model)
{
	for (unsigned i = 0; i < model->files; i++)
		file_free(&model->file[i]);
	model->files = 0;
}

static struct version *version_new(const struct version *from)
{
	struct version *version = from ? malloc(sizeof(*version)) : calloc(1, sizeof(*version));

	if (!version)
		abort();
	if (from)
		memcpy(version, from, sizeof(*version));
	return version;
}

void model_copy(struct model *to, const struct model *from)
{
	*to = *from;
	for (unsigned i = 0; i < to->files; i++)
		for (unsigned v = 0; v < to->file[i].versions; v++)
			to->file[i].version[v] = version_new(from->file[i].version[v]);
}

static struct version *now(struct model_file *file)
{
	return file->version[file->versions - 1];
}

/* The file of a name, or NULL with the error that an operation on file data gets. */
static struct model_file *file_of(struct model *model, int name, int *error)
{
	int id = model->name[name];

	*error = id == NAME_NONE ? -ENOENT : id == NAME_DIRECTORY ? -EISDIR : 0;
	return *error ? NULL : &model->file[id];
}

static int may_make(const struct model *model, int name)
{
	if (model->sealed)
		return -EROFS;
	return model->name[name] == NAME_NONE ? 0 : -EEXIST;
}

int model_create(struct model *model, int name)
{
	int rc = may_make(model, name);
	struct model_file *file;

	if (rc)
		return rc;
	assert(model->files < MODEL_FILES);
	file = &model->file[model->files];
	file->links = 1;
	file->attribute = 0;
	file->versions = 1;
	file->version[0] = version_new(NULL);
	model->name[name] = (int)model->files++;
	return 0;
}

int model_mkdir(struct model *model, int name)
{
	int rc = may_make(model, name);

	if (!rc)
		model->name[name] = NAME_DIRECTORY;
	return rc;
}

/* A new version of a file, to be changed: what is unstable. NULL with the error. */
static struct version *version_add(struct model *model, int name, int *rc)
{
	struct model_file *file = file_of(model, name, rc);

	if (file && model->sealed)
		*rc = -EROFS;
	if (*rc)
		return NULL;
	assert(file->versions < MODEL_VERSIONS);
	file->version[file->versions] = version_new(now(file));
	return file->version[file->versions++];
}

int model_write(struct model *model, int name, uint32_t offset, const uint8_t *bytes, uint32_t n)
{
	int rc;
	struct version *version = version_add(model, name, &rc);

	if (!version)
		return rc;
	assert(offset + n <= MODEL_BYTES);
	memcpy(version->bytes + offset, bytes, n);
	if (offset + n > version->size)
		version->size = offset + n;
	return 0;
}

int model_punch(struct model *model, int name, uint32_t from, uint32_t to)
{
	int rc;
	struct version *version = version_add(model, name, &rc);

	if (version)
		memset(version->bytes + from, 0, to - from);
	return rc;
}

int model_allocate(struct model *model, int name, uint32_t to)
{
	int rc;
	struct version *version = version_add(model, name, &rc);

	if (version && version->size < to)
		version->size = to;
	return rc;
}

int model_refuse(struct model *model, int name)
{
	int rc;

	file_of(model, name, &rc);
	return rc ? rc : model->sealed ? -EROFS : 0;
}

static void file_settle(struct model_file *file)
{
	struct version *last = now(file);

	for (unsigned i = 0; i + 1 < file->versions; i++)
		free(file->version[i]);
	file->version[0] = last;
	file->versions = 1;
}

int model_commit(struct model *model, int name)
{
	int rc;
	struct model_file *file = file_of(model, name, &rc);

	if (file)
		file_settle(file);
	return rc;
}

static void version_cut(struct version *version, uint32_t size)
{
	if (size < version->size)
		memset(version->bytes + size, 0, version->size - size);
	version->size = size;
}

/* A new size is stable, and what was written before it below that size stays unstable. */
int model_truncate(struct model *model, int name, uint32_t size)
{
	int rc;
	struct model_file *file = file_of(model, name, &rc);

	if (rc != -ENOENT && model->sealed)
		return -EROFS;
	if (!file)
		return rc;
	for (unsigned i = 0; i < file->versions; i++)
		version_cut(file->version[i], size);
	return 0;
}

int model_set_attribute(struct model *model, int name, unsigned attribute)
{
	int rc;
	struct model_file *file = file_of(model, name, &rc);

	if (!file)
		return rc;
	if (model->sealed)
		return -EROFS;
	file->attribute = attribute;
	return 0;
}

int model_remove_attribute(struct model *model, int name)
{
	int rc;
	struct model_file *file = file_of(model, name, &rc);

	if (!file)
		return rc;
	if (model->sealed)
		return -EROFS;
	if (!file->attribute)
		return -ENODATA;
	file->attribute = 0;
	return 0;
}

int model_unlink(struct model *model, int name)
{
	if (model->sealed)
		return -EROFS;
	if (model->name[name] == NAME_NONE)
		return -ENOENT;
	if (model->name[name] >= 0)
		model->file[model->name[name]].links--;
	model->name[name] = NAME_NONE;
	return 0;
}

int model_link(struct model *model, int from, int to)
{
	int id = model->name[from];

	if (id == NAME_NONE)
		return -ENOENT;
	if (model->sealed)
		return -EROFS;
	if (id == NAME_DIRECTORY)
		return -EPERM;
	if (model->name[to] != NAME_NONE)
		return -EEXIST;
	model->file[id].links++;
	model->name[to] = id;
	return 0;
}

int model_rename(struct model *model, int from, int to)
{
	int a = model->name[from], b = model->name[to];

	if (model->sealed)
		return -EROFS;
	if (a == NAME_NONE)
		return -ENOENT;
	if (a >= 0 && a == b)
		return 0;
	if (a == NAME_DIRECTORY && b >= 0)
		return -ENOTDIR;
	if (a >= 0 && b == NAME_DIRECTORY)
		return -EISDIR;
	if (b >= 0)
		model->file[b].links--;
	model->name[to] = a;
	model->name[from] = NAME_NONE;
	return 0;
}

int model_client(struct model *model, int client)
{
	model->clients |= 1u << client;
	model->fresh |= 1u << client;
	return 0;
}

int model_forget_clients(struct model *model)
{
	model->clients &= model->fresh;
	return 0;
}

void model_open(struct model *model)
{
	model->fresh = 0;
}

void model_settle(struct model *model)
{
	for (unsigned i = 0; i < model->files; i++)
		file_settle(&model->file[i]);
}

int model_seal(struct model *model)
{
	model_settle(model);
	model->sealed = true;
	return 0;
}

void model_adopt(struct model_file *file, uint32_t size, const uint8_t *bytes)
{
	file_settle(file);
	file->version[0]->size = size;
	memset(file->version[0]->bytes, 0, MODEL_BYTES);
	memcpy(file->version[0]->bytes, bytes, size);
}

static bool byte_allowed(const struct model_file *file, uint32_t at, uint8_t byte)
{
	for (unsigned i = 0; i < file->versions; i++)
		if (file->version[i]->bytes[at] == byte)
			return true;
	return false;
}

bool model_allows(const struct model_file *file, uint32_t size, const uint8_t *bytes)
{
	bool right_size = false;

	for (unsigned i = 0; i < file->versions; i++)
		right_size |= file->version[i]->size == size;
	if (!right_size)
		return false;
	if (file->versions == 1)
		return !memcmp(file->version[0]->bytes, bytes, size);
	for (uint32_t at = 0; at < size; at++)
		if (!byte_allowed(file, at, bytes[at]))
			return false;
	return true;
}
