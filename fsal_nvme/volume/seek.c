/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where a file has data and where it has holes, in whole blocks: a block with a byte of data is
 * data. Looked for under the file's lock, some runs at a time.
 */
#include "volume/internal.h"

#include <errno.h>

#define RUNS_MAX 1000u /* looked at without letting the lock go */

struct run {
	uint64_t start, end;
};

static uint64_t block_of(uint64_t at)
{
	return at / BLOCK_SIZE * BLOCK_SIZE;
}

/* The first data at or behind `at`, the start of a block, in whole blocks; -ENOENT. */
static int next_run(const struct look *look, uint64_t size, uint64_t at, struct run *run)
{
	struct stretch stretch = {.end = at};
	uint64_t start;
	int r;

	do {
		start = stretch.end;
		if (start >= size)
			return -ENOENT;
		r = look_stretch(look, start, &stretch);
		if (r)
			return r;
	} while (stretch.what != LIES_DATA);
	*run = (struct run){block_of(start), block_of(stretch.end + BLOCK_SIZE - 1)};
	return 0;
}

/* --- the look -------------------------------------------------------------------------------- */

static int seek_data(const struct look *look, uint64_t size, uint64_t *at)
{
	struct run run;
	int r = next_run(look, size, block_of(*at), &run);

	if (!r && run.start > *at)
		*at = run.start;
	return r == -ENOENT ? -ENXIO : r;
}

/* -EAGAIN: none so far, up to *at. */
static int seek_hole(const struct look *look, uint64_t size, uint64_t *at)
{
	for (unsigned i = 0; i < RUNS_MAX; i++) {
		struct run run;
		int r = next_run(look, size, block_of(*at), &run);

		if (r == -ENOENT || (!r && run.start > *at))
			return 0;
		if (r)
			return r;
		*at = run.end;
		if (*at >= size) {
			*at = size;
			return 0;
		}
	}
	return -EAGAIN;
}

/* Under the lock. */
static int seek_once(struct volume_file *file, enum volume_seek what, uint64_t *at)
{
	struct volume_attributes now;
	struct look look;
	int r = look_begin(file, &look);

	if (r)
		return r;
	file_show(file, &look.inode, &now);
	if (*at >= now.size)
		r = -ENXIO;
	else if (what == VOLUME_SEEK_DATA)
		r = seek_data(&look, now.size, at);
	else
		r = seek_hole(&look, now.size, at);
	look_end(&look);
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
