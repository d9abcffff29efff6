/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What a volume with two names in its root must look like: a plain in-memory model of the
 * operations that histories.c runs, and of what a crash may leave.
 *
 * A file has versions: the first is what was made stable last, each later one what an unstable
 * write made of it. After a crash every byte must be that of some version, and the size that of
 * some version. Names, links and the effect of acknowledged operations have one right answer.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_NAMES 2
#define MODEL_FILES 20
#define MODEL_BYTES 65536u
#define MODEL_VERSIONS 64

enum { NAME_NONE = -1, NAME_DIRECTORY = -2 };

struct version {
	uint32_t size;
	uint8_t bytes[MODEL_BYTES];
};

struct model_file {
	unsigned links;
	unsigned versions; /* in use; the last is what a reader sees now */
	struct version *version[MODEL_VERSIONS];
	unsigned attribute; /* what its extended attribute was made of; 0: it has none */
};

struct model {
	int name[MODEL_NAMES]; /* index of a file, or NAME_... */
	struct model_file file[MODEL_FILES];
	unsigned files;
	bool sealed;
	unsigned clients, fresh; /* a bit for each that may come back, and that came since the pool
				    was opened */
};

void model_init(struct model *model);
void model_free(struct model *model);
void model_copy(struct model *to, const struct model *from);

/* The operations; they return what the volume must return: 0 or a negative errno. */
int model_create(struct model *model, int name);
int model_mkdir(struct model *model, int name);
int model_write(struct model *model, int name, uint32_t offset, const uint8_t *bytes, uint32_t n);
int model_punch(struct model *model, int name, uint32_t from, uint32_t to);
/* Zeros where nothing was written, and as large as the range. */
int model_allocate(struct model *model, int name, uint32_t to);
/* A write that is refused, where others would be taken. */
int model_refuse(struct model *model, int name);
int model_commit(struct model *model, int name);
int model_truncate(struct model *model, int name, uint32_t size);
int model_unlink(struct model *model, int name);
int model_link(struct model *model, int from, int to);
int model_rename(struct model *model, int from, int to);
int model_set_attribute(struct model *model, int name, unsigned attribute);
int model_remove_attribute(struct model *model, int name);
int model_seal(struct model *model);
/* Of the server. */
int model_client(struct model *model, int client);
int model_forget_clients(struct model *model);
/* The pool is opened: all clients are earlier ones. */
void model_open(struct model *model);
/* All unstable writes become stable: a clean close. */
void model_settle(struct model *model);

/* What a crash left of a file, as found by reading it, is what it is from now on. */
void model_adopt(struct model_file *file, uint32_t size, const uint8_t *bytes);
/* Whether a file as found (size and bytes) is one that the model allows after a crash. */
bool model_allows(const struct model_file *file, uint32_t size, const uint8_t *bytes);

#endif
