/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where a file has data and where it has holes, in whole blocks: a block with a byte of data is
 * data. Looked for as a read looks, in both overlays and a view of the environment, under the
 * file's lock, some runs at a time.
 */
#include "volume/internal.h"

#include <errno.h>

#define RUNS_MAX 1000u /* looked at without letting the lock go */

/* One look at a file. */
struct look {
	struct volume_file *file;
	struct txn *view;
	struct inode inode;
	uint64_t size;
};

struct run {
	uint64_t start, end;
};

/* What lies from some byte on: data, or none, up to `end`. */
struct stretch {
	bool data;
	uint64_t end;
};

static void stretch_cut(struct stretch *stretch, uint64_t end)
{
	if (end < stretch->end)
		stretch->end = end;
}

/* Whether the overlay has byte `at`: then the stretch is its. Else its end is cut to where the
 * overlay has something. */
static bool stretch_of_overlay(const struct overlay *o, uint64_t at, struct stretch *stretch)
{
	unsigned i;

	if (!o)
		return false;
	if (at < overlay_length(o)) {
		stretch->data = true;
		stretch_cut(stretch, overlay_length(o));
		return true;
	}
	i = overlay_find(o, at);
	if (i == o->count || o->at[i] >= o->limit || at >= o->limit)
		return false;
	if (o->at[i] > at) {
		stretch_cut(stretch, o->at[i]);
		return false;
	}
	stretch->data = !is_hole(&o->extents[i]);
	stretch_cut(stretch, o->at[i] + o->extents[i].length);
	stretch_cut(stretch, o->limit);
	return true;
}

static int stretch_of_environment(const struct look *look, uint64_t at, struct stretch *stretch)
{
	const struct inode *inode = &look->inode;
	struct extent extent;
	uint64_t found;
	int r;

	stretch->data = !inode->extents && at < inode->bytes;
	if (!inode->extents) {
		stretch_cut(stretch, stretch->data ? inode->bytes : UINT64_MAX);
		return 0;
	}
	r = extent_next(look->file->volume, look->view, inode->ino, at, &found, &extent);
	if (r || found >= inode->trim)
		return r == -ENOENT ? 0 : r;
	stretch->data = found == at;
	stretch_cut(stretch, stretch->data ? found + extent.length : found);
	if (stretch->data)
		stretch_cut(stretch, inode->trim);
	return 0;
}

static int stretch_at(const struct look *look, uint64_t at, struct stretch *stretch)
{
	*stretch = (struct stretch){.end = UINT64_MAX};
	if (stretch_of_overlay(look->file->active, at, stretch) ||
		stretch_of_overlay(look->file->committing, at, stretch))
		return 0;
	return stretch_of_environment(look, at, stretch);
}

static uint64_t block_of(uint64_t at)
{
	return at / BLOCK_SIZE * BLOCK_SIZE;
}

/* The first data at or behind `at`, the start of a block, in whole blocks; -ENOENT. */
static int next_run(const struct look *look, uint64_t at, struct run *run)
{
	struct stretch stretch = {.end = at};
	uint64_t start;
	int r;

	do {
		start = stretch.end;
		if (start >= look->size)
			return -ENOENT;
		r = stretch_at(look, start, &stretch);
		if (r)
			return r;
	} while (!stretch.data);
	*run = (struct run){block_of(start), block_of(stretch.end + BLOCK_SIZE - 1)};
	return 0;
}

/* --- the look -------------------------------------------------------------------------------- */

static int seek_data(const struct look *look, uint64_t *at)
{
	struct run run;
	int r = next_run(look, block_of(*at), &run);

	if (!r && run.start > *at)
		*at = run.start;
	return r == -ENOENT ? -ENXIO : r;
}

/* -EAGAIN: none so far, up to *at. */
static int seek_hole(const struct look *look, uint64_t *at)
{
	for (unsigned i = 0; i < RUNS_MAX; i++) {
		struct run run;
		int r = next_run(look, block_of(*at), &run);

		if (r == -ENOENT || (!r && run.start > *at))
			return 0;
		if (r)
			return r;
		*at = run.end;
		if (*at >= look->size) {
			*at = look->size;
			return 0;
		}
	}
	return -EAGAIN;
}

/* Under the lock. */
static int seek_once(struct volume_file *file, enum volume_seek what, uint64_t *at)
{
	struct look look = {.file = file};
	struct volume_attributes now;
	int r = view_begin(file->volume->env, &look.view);

	if (r)
		return r;
	r = inode_get(file->volume, look.view, file->ino, &look.inode);
	if (!r) {
		file_show(file, &look.inode, &now);
		look.size = now.size;
		if (*at >= look.size)
			r = -ENXIO;
		else
			r = what == VOLUME_SEEK_DATA ? seek_data(&look, at) : seek_hole(&look, at);
	}
	txn_abort(look.view);
	return r;
}

int volume_seek(struct volume_file *file, uint64_t offset, enum volume_seek what, uint64_t *found)
{
	uint64_t at = offset;
	int r;

	if (file->type != VOLUME_FILE)
		return file->type == VOLUME_DIRECTORY ? -EISDIR : -EINVAL;
	do {
		pthread_mutex_lock(&file->lock);
		r = seek_once(file, what, &at);
		pthread_mutex_unlock(&file->lock);
	} while (r == -EAGAIN);
	/* It was cut while its holes were looked for. */
	if (r == -ENXIO && what == VOLUME_SEEK_HOLE && at > offset)
		r = 0;
	if (!r)
		*found = at;
	return r;
}
