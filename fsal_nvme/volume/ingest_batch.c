/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What an ingest makes: each name of the source is looked at, put into a batch, and made with it.
 */
#include "volume/ingest.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

const char *ingest_last_part(const char *path)
{
	return strrchr(path, '/') + 1;
}

/* --- batches ---------------------------------------------------------------------------------- */

static void clear_place(struct ingest_batch *batch, unsigned i)
{
	volume_staged_free(batch->ingest->volume, &batch->staged[i]);
	free((void *)(uintptr_t)batch->staged[i].new.target);
	free(batch->path[i]);
	batch->path[i] = NULL;
	ingest_xattrs_free(&batch->xattrs[i]);
}

void ingest_unplace(struct ingest_batch *batch)
{
	clear_place(batch, --batch->count);
}

void ingest_batch_end(struct ingest_batch *batch)
{
	while (batch->count)
		ingest_unplace(batch);
	batch->bytes = 0;
}

int ingest_place(struct ingest_batch *batch, struct ingest_dir *dir, const char *path,
	uint64_t size, const struct volume_new *new, struct ingest_link *link)
{
	int r = batch->count == BATCH_FILES ? ingest_flush(batch) : 0;
	unsigned i = batch->count;

	if (r)
		return r;
	batch->path[i] = strdup(path);
	if (!batch->path[i])
		return ingest_fail(batch->ingest, -ENOMEM, path);
	batch->staged[i] = (struct volume_staged){
		.dir = dir->ino,
		.name = ingest_last_part(batch->path[i]),
		.new = *new,
		.size = size,
	};
	batch->link[i] = link;
	batch->data[i] = 0;
	batch->count++;
	return 0;
}

static void count_made(struct ingest_batch *batch, unsigned i)
{
	struct ingest *ingest = batch->ingest;
	bool is_file = batch->staged[i].new.type == VOLUME_FILE;

	ingest_count(ingest, is_file ? &ingest->progress->files : &ingest->progress->others, 1);
	ingest_count(ingest, &ingest->progress->bytes, batch->data[i]);
	if (batch->link[i])
		ingest_link_made(ingest, batch->link[i], batch->staged[i].ino);
}

/* What became of one of them; an error of the pool ends everything. */
static int judge(struct ingest_batch *batch, unsigned i)
{
	int status = batch->staged[i].status;

	if (!status) {
		count_made(batch, i);
		return 0;
	}
	if (status == -E2BIG && batch->staged[i].new.type == VOLUME_FILE) {
		volume_staged_free(batch->ingest->volume, &batch->staged[i]);
		return ingest_file_again(
			batch, batch->staged[i].dir, batch->path[i], batch->link[i]);
	}
	if (status != -EEXIST && status != -ENAMETOOLONG && status != -EINVAL)
		return ingest_fail(batch->ingest, status, batch->path[i]);
	ingest_skip(batch->ingest, batch->path[i],
		status == -EEXIST ? INGEST_WAS_DIRECTORY : "its name cannot be used");
	return 0;
}

int ingest_flush(struct ingest_batch *batch)
{
	struct ingest *ingest = batch->ingest;
	uint64_t lsn, bytes = batch->bytes;
	int r;

	if (!batch->count)
		return 0;
	r = volume_stage_commit(ingest->volume, batch->staged, batch->count, &lsn);
	if (r)
		ingest_fail(ingest, r, batch->path[0]);
	for (unsigned i = 0; !r && i < batch->count; i++)
		r = judge(batch, i);
	ingest_batch_end(batch);
	return r ? r : ingest_written(ingest, bytes);
}

/* --- one name --------------------------------------------------------------------------------- */

static enum volume_type type_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return VOLUME_FILE;
	case S_IFDIR:
		return VOLUME_DIRECTORY;
	case S_IFLNK:
		return VOLUME_SYMLINK;
	case S_IFIFO:
		return VOLUME_FIFO;
	case S_IFSOCK:
		return VOLUME_SOCKET;
	case S_IFCHR:
		return VOLUME_CHARACTER;
	default:
		return VOLUME_BLOCK;
	}
}

static char *read_target(struct ingest *ingest, const char *path)
{
	char target[VOLUME_TARGET_MAX + 1];
	ssize_t length = readlink(path, target, sizeof(target));

	if (length <= 0 || length == (ssize_t)sizeof(target)) {
		ingest_skip(
			ingest, path, length < 0 ? strerror(errno) : "its target cannot be kept");
		return NULL;
	}
	return strndup(target, (size_t)length);
}

static int other(struct ingest_batch *batch, struct ingest_dir *dir, const char *path,
	const struct stat *st, struct ingest_link *link)
{
	struct volume_new new = {
		.type = type_of(st->st_mode),
		.set = ingest_attributes(st),
		.rdev = (uint64_t)major(st->st_rdev) << 32 | minor(st->st_rdev),
	};
	char *target = NULL;
	int r;

	if (new.type == VOLUME_SYMLINK) {
		target = read_target(batch->ingest, path);
		if (!target)
			return 0;
	}
	new.target = target;
	r = ingest_place(batch, dir, path, 0, &new, link);
	if (r)
		free(target);
	return r;
}

/* What an earlier ingest made of the name, before it was a directory, makes room. */
static int make_directory(struct ingest *ingest, struct ingest_dir *dir, const char *name,
	const struct stat *st, struct volume_attributes *made)
{
	struct volume_new new = {.type = VOLUME_DIRECTORY, .set = ingest_attributes(st)};
	uint64_t lsn;
	int r = volume_make(ingest->volume, dir->ino, name, &new, made, &lsn);

	if (r != -EEXIST || made->type == VOLUME_DIRECTORY)
		return r;
	r = volume_unlink(ingest->volume, dir->ino, name, VOLUME_UNLINK_FILE, &lsn);
	return r ? r : volume_make(ingest->volume, dir->ino, name, &new, made, &lsn);
}

static int directory(
	struct ingest_batch *batch, struct ingest_dir *dir, const char *path, const struct stat *st)
{
	struct ingest *ingest = batch->ingest;
	struct volume_attributes made;
	int r = make_directory(ingest, dir, ingest_last_part(path), st, &made);

	if (r == -EINVAL || r == -ENAMETOOLONG) {
		ingest_skip(ingest, path, "its name cannot be used");
		return 0;
	}
	if (r && r != -EEXIST)
		return ingest_fail(ingest, r, path);
	ingest_count(ingest, r ? &ingest->progress->present : &ingest->progress->directories, 1);
	return ingest_push_dir(ingest, path, made.ino, st);
}

static bool is_same(const struct volume_attributes *there, const struct stat *st)
{
	struct volume_set wanted = ingest_attributes(st);

	return there->type == type_of(st->st_mode) && there->mtime == wanted.mtime &&
	       (there->type != VOLUME_FILE || there->size == (uint64_t)st->st_size);
}

/* Mode, owner and extended attributes may have changed without a trace in its time. */
static int bring_up_to_date(struct ingest_batch *batch, const char *path,
	const struct volume_attributes *there, const struct stat *st)
{
	struct volume_set set = ingest_attributes(st);
	uint64_t lsn;
	int r = 0;

	if (S_ISREG(st->st_mode))
		r = ingest_xattrs_copy(batch, -1, path, there->ino);
	if (r || (there->mode == set.mode && there->uid == set.uid && there->gid == set.gid))
		return r;
	return volume_setattr(batch->ingest->volume, there->ino, &set, NULL, &lsn);
}

/* With --resume: 1 when the file is there as it should be, or has been left out. One that is not is
 * taken away. */
static int present(struct ingest_batch *batch, struct ingest_dir *dir, const char *path,
	const struct stat *st, struct ingest_link *link)
{
	struct ingest *ingest = batch->ingest;
	const char *name = ingest_last_part(path);
	struct volume_attributes there;
	uint64_t lsn;
	int r;

	if (!ingest->options->resume)
		return 0;
	r = volume_lookup(ingest->volume, dir->ino, name, &there);
	if (r || there.type == VOLUME_DIRECTORY)
		return r == -ENOENT || !r ? 0 : r;
	if (!is_same(&there, st))
		return volume_unlink(ingest->volume, dir->ino, name, VOLUME_UNLINK_FILE, &lsn);
	r = bring_up_to_date(batch, path, &there, st);
	if (r)
		return r;
	if (link)
		ingest_link_made(ingest, link, there.ino);
	ingest_count(ingest, &ingest->progress->present, 1);
	if (S_ISREG(st->st_mode))
		ingest_count(ingest, &ingest->progress->passed, (uint64_t)st->st_size);
	return 1;
}

static int not_directory(
	struct ingest_batch *batch, struct ingest_dir *dir, const char *path, const struct stat *st)
{
	struct ingest *ingest = batch->ingest;
	struct ingest_link *link = NULL;
	bool first = true;
	int r = 0;

	if (st->st_nlink > 1)
		r = ingest_link_claim(ingest, st, &link, &first);
	if (!r && !first)
		r = ingest_alias_add(ingest, link, dir, path);
	else if (!r)
		r = present(batch, dir, path, st, link);
	if (r < 0)
		return ingest_fail(ingest, r, path);
	if (r || !first)
		return 0;
	return S_ISREG(st->st_mode) ? ingest_file(batch, dir, path, st, link)
				    : other(batch, dir, path, st, link);
}

int ingest_name(struct ingest_batch *batch, struct ingest_dir *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	if (snprintf(path, sizeof(path), "%s/%s", dir->path, name) >= (int)sizeof(path)) {
		ingest_skip(batch->ingest, dir->path, "a path in it is too long");
		return 0;
	}
	if (lstat(path, &st)) {
		ingest_skip(batch->ingest, path, strerror(errno));
		return 0;
	}
	return S_ISDIR(st.st_mode) ? directory(batch, dir, path, &st)
				   : not_directory(batch, dir, path, &st);
}
