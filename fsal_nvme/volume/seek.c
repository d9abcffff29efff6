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

/* --- the first run of data in a layer at or behind `at`; -ENOENT -------------------------------
 */

static int run_of_overlay(const struct overlay *o, uint64_t at, struct run *run)
{
	unsigned i;

	if (!o)
		return -ENOENT;
	*run = (struct run){at, overlay_length(o)};
	if (at < run->end)
		return 0;
	i = overlay_find(o, at);
	if (i == o->count || o->at[i] >= o->limit)
		return -ENOENT;
	*run = (struct run){o->at[i], o->at[i] + o->extents[i].length};
	run->end = run->end < o->limit ? run->end : o->limit;
	return at < run->end ? 0 : -ENOENT;
}

static int run_of_environment(const struct look *look, uint64_t at, struct run *run)
{
	const struct inode *inode = &look->inode;
	struct extent extent;
	int r;

	if (!inode->extents) {
		*run = (struct run){at, inode->bytes};
		return at < inode->bytes ? 0 : -ENOENT;
	}
	r = extent_next(look->file->volume, look->view, inode->ino, at, &run->start, &extent);
	if (r)
		return r;
	run->end = run->start + extent.length;
	run->end = run->end < inode->trim ? run->end : inode->trim;
	return run->start < run->end ? 0 : -ENOENT;
}

static uint64_t block_of(uint64_t at)
{
	return at / BLOCK_SIZE * BLOCK_SIZE;
}

/* The first of all layers, in whole blocks; `at` is the start of one. */
static int next_run(const struct look *look, uint64_t at, struct run *run)
{
	struct run runs[3];
	const int found[3] = {
		run_of_overlay(look->file->active, at, &runs[0]),
		run_of_overlay(look->file->committing, at, &runs[1]),
		run_of_environment(look, at, &runs[2]),
	};
	const struct run *first = NULL;

	if (found[2] && found[2] != -ENOENT)
		return found[2];
	for (unsigned i = 0; i < 3; i++) {
		if (!found[i] && (!first || runs[i].start < first->start))
			first = &runs[i];
	}
	if (!first || first->start >= look->size)
		return -ENOENT;
	run->start = first->start > at ? block_of(first->start) : at;
	run->end = block_of(first->end + BLOCK_SIZE - 1);
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
