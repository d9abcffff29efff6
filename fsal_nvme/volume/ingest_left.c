/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What a resumed ingest finds in the volume that its source does not have (any more): an earlier
 * one brought it. It is told, not taken away. */
#include "volume/ingest.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUNCH 256u

struct left_dir {
	struct left_dir *next;
	uint64_t ino;
	char path[]; /* in the source */
};

/* Names of one directory: the source is not asked while the volume is looked at. */
struct left_bunch {
	unsigned count;
	uint64_t cookie;
	struct {
		char name[VOLUME_NAME_MAX + 1];
		uint64_t ino;
		bool is_directory;
	} names[BUNCH];
};

struct left {
	struct ingest *ingest;
	struct left_dir *dirs; /* to be looked at */
	struct left_bunch bunch;
};

static int push(struct left *left, const char *path, uint64_t ino)
{
	size_t size = strlen(path) + 1;
	struct left_dir *dir = malloc(sizeof(*dir) + size);

	if (!dir)
		return ingest_fail(left->ingest, -ENOMEM, path);
	memcpy(dir->path, path, size);
	dir->ino = ino;
	dir->next = left->dirs;
	left->dirs = dir;
	return 0;
}

static bool take(void *data, const struct volume_entry *entry)
{
	struct left_bunch *bunch = data;
	unsigned i = bunch->count;

	if (i == BUNCH)
		return false;
	snprintf(bunch->names[i].name, sizeof(bunch->names[i].name), "%s", entry->name);
	bunch->names[i].ino = entry->attributes.ino;
	bunch->names[i].is_directory = entry->attributes.type == VOLUME_DIRECTORY;
	bunch->cookie = entry->cookie;
	bunch->count++;
	return true;
}

static void tell(struct ingest *ingest, const char *path)
{
	const struct ingest_options *options = ingest->options;

	pthread_mutex_lock(&ingest->told_lock);
	ingest->progress->left++;
	if (options->left)
		options->left(options->data, path);
	pthread_mutex_unlock(&ingest->told_lock);
}

static int look_at(struct left *left, const char *dir, unsigned i)
{
	char path[PATH_MAX];
	struct stat st;

	/* Too long to be asked for: it was skipped, and told. */
	if (snprintf(path, sizeof(path), "%s/%s", dir, left->bunch.names[i].name) >=
		(int)sizeof(path))
		return 0;
	if (lstat(path, &st)) {
		if (errno == ENOENT || errno == ENOTDIR)
			tell(left->ingest, path);
		return 0;
	}
	if (!left->bunch.names[i].is_directory || !S_ISDIR(st.st_mode))
		return 0;
	return push(left, path, left->bunch.names[i].ino);
}

static int look_through(struct left *left, const struct left_dir *dir)
{
	struct ingest *ingest = left->ingest;
	bool eof = false;
	int r = 0;

	left->bunch.cookie = 0;
	while (!r && !eof) {
		left->bunch.count = 0;
		r = volume_readdir(
			ingest->volume, dir->ino, left->bunch.cookie, take, &left->bunch, &eof);
		if (r)
			return ingest_fail(ingest, r, dir->path);
		r = ingest_go_on(ingest);
		for (unsigned i = 0; !r && i < left->bunch.count; i++)
			r = look_at(left, dir->path, i);
	}
	return r;
}

int ingest_find_left(struct ingest *ingest)
{
	struct left *left = calloc(1, sizeof(*left));
	struct left_dir *dir;
	int r;

	if (!left)
		return ingest_fail(ingest, -ENOMEM, ingest->options->source);
	left->ingest = ingest;
	r = push(left, ingest->options->source, VOLUME_ROOT);
	while ((dir = left->dirs)) {
		left->dirs = dir->next;
		if (!r)
			r = look_through(left, dir);
		free(dir);
	}
	free(left);
	return r;
}
