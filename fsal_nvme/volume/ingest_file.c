/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Regular files of an ingest: read with their holes, and either staged with others, to be made
 * whole, or, when they are very large, made first and written then. Such a one gets its time of
 * modification last, so that a resumed ingest knows that it is not complete.
 */
#include "volume/ingest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Where bytes go: a staged file, or one in the volume. */
struct sink {
	struct ingest_batch *batch;
	struct volume_staged *staged;
	struct volume_file *file;
	uint64_t bytes;
};

/* Behind what is pending, where that is too much. */
static int write_patiently(struct volume_file *file, uint64_t offset, const struct iovec *iov)
{
	int r;

	while ((r = volume_write(file, offset, iov, 1, iov->iov_len)) == -EAGAIN) {
		r = volume_commit_wait(file);
		if (r)
			break;
	}
	return r;
}

static int put(struct sink *sink, uint64_t offset, size_t length)
{
	struct ingest *ingest = sink->batch->ingest;
	struct iovec iov = {sink->batch->buffer, length};
	int r;

	if (sink->staged)
		r = volume_stage(ingest->volume, sink->staged, offset, iov.iov_base, length);
	else
		r = write_patiently(sink->file, offset, &iov);
	sink->bytes += length;
	ingest_count(ingest, &ingest->progress->passed, length);
	return r;
}

static ssize_t read_fully(int fd, uint8_t *buffer, size_t length, uint64_t offset)
{
	size_t done = 0;

	while (done < length) {
		ssize_t n = pread(fd, buffer + done, length - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

/* Data of the source in [from, to). */
static int copy_range(struct sink *sink, int fd, const char *path, uint64_t from, uint64_t to)
{
	struct ingest *ingest = sink->batch->ingest;

	while (from < to) {
		size_t length = to - from < CHUNK ? (size_t)(to - from) : CHUNK;
		ssize_t n = read_fully(fd, sink->batch->buffer, length, from);
		int r;

		if (n != (ssize_t)length) {
			ingest_skip(ingest, path,
				n < 0 ? strerror((int)-n) : "it became shorter while it was read");
			return INGEST_LEFT_OUT;
		}
		r = put(sink, from, length);
		if (!r)
			r = ingest_go_on(ingest);
		if (r)
			return ingest_fail(ingest, r, path);
		from += length;
	}
	return 0;
}

/* The next run of data at or behind *from; false: none before `size`. Without support for holes all
 * is data. */
static bool next_data(int fd, uint64_t size, uint64_t *from, uint64_t *to)
{
	off_t data = lseek(fd, (off_t)*from, SEEK_DATA), hole;

	if (data < 0 && errno == ENXIO)
		return false;
	if (data < 0)
		data = (off_t)*from;
	hole = lseek(fd, data, SEEK_HOLE);
	*from = (uint64_t)data;
	*to = hole < 0 || (uint64_t)hole > size ? size : (uint64_t)hole;
	return *from < size;
}

static int copy(struct sink *sink, int fd, const char *path, const struct stat *st)
{
	struct ingest *ingest = sink->batch->ingest;
	uint64_t size = (uint64_t)st->st_size, from = 0, to = 0;
	int r = 0;

	if ((uint64_t)st->st_blocks * 512 >= size)
		return copy_range(sink, fd, path, 0, size);
	for (; !r && from < size && next_data(fd, size, &from, &to); from = to)
		r = copy_range(sink, fd, path, from, to);
	if (!r)
		ingest_count(ingest, &ingest->progress->passed, size - sink->bytes);
	return r;
}

static int open_source(struct ingest *ingest, const char *path, const struct stat *st)
{
	int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, fd;
	struct stat now;

	fd = open(path, flags | O_NOATIME);
	if (fd < 0 && errno == EPERM)
		fd = open(path, flags);
	if (fd < 0) {
		ingest_skip(ingest, path, strerror(errno));
		return -1;
	}
	if (fstat(fd, &now) || now.st_ino != st->st_ino || now.st_dev != st->st_dev ||
		!S_ISREG(now.st_mode)) {
		ingest_skip(ingest, path, "it was replaced while it was read");
		close(fd);
		return -1;
	}
	return fd;
}

/* Whether the source is still what it was when it was looked at. */
static bool is_same(struct ingest *ingest, int fd, const char *path, const struct stat *st)
{
	struct stat now;

	if (!fstat(fd, &now) && now.st_size == st->st_size &&
		now.st_mtim.tv_sec == st->st_mtim.tv_sec &&
		now.st_mtim.tv_nsec == st->st_mtim.tv_nsec)
		return true;
	ingest_skip(ingest, path, "it changed while it was read");
	return false;
}

/* --- staged ----------------------------------------------------------------------------------- */

/* For the last one of the batch. */
static int stage_xattrs(struct ingest_batch *batch, int fd, const char *path)
{
	struct ingest_xattrs *xattrs = &batch->xattrs[batch->count - 1];
	struct volume_staged *staged = &batch->staged[batch->count - 1];
	int r = ingest_xattrs_read(batch, fd, path, xattrs);

	staged->xattrs = xattrs->list;
	staged->xattr_count = xattrs->count;
	return r;
}

static int stage_file(struct ingest_batch *batch, struct ingest_dir *dir, const char *path, int fd,
	const struct stat *st, struct ingest_link *link)
{
	struct volume_new new = {.type = VOLUME_FILE, .set = ingest_attributes(st)};
	struct sink sink = {.batch = batch};
	int r = ingest_place(batch, dir, path, (uint64_t)st->st_size, &new, link);

	if (r)
		return r;
	sink.staged = &batch->staged[batch->count - 1];
	r = stage_xattrs(batch, fd, path);
	if (!r)
		r = copy(&sink, fd, path, st);
	if (!r && !is_same(batch->ingest, fd, path, st))
		r = INGEST_LEFT_OUT;
	if (r) {
		ingest_unplace(batch);
		return r == INGEST_LEFT_OUT ? 0 : r;
	}
	batch->data[batch->count - 1] = sink.bytes;
	batch->bytes += sink.bytes;
	return batch->bytes >= BATCH_BYTES ? ingest_flush(batch) : 0;
}

/* --- made first, written then ----------------------------------------------------------------- */

static int write_file(struct sink *sink, const char *path, int fd, const struct stat *st)
{
	struct volume_set set = ingest_attributes(st);
	struct volume *volume = sink->batch->ingest->volume;
	uint64_t ino = volume_file_ino(sink->file), lsn;
	int r = ingest_xattrs_copy(sink->batch, fd, path, ino);

	if (!r)
		r = copy(sink, fd, path, st);
	if (!r && !is_same(sink->batch->ingest, fd, path, st))
		r = INGEST_LEFT_OUT;
	if (r)
		return r;
	r = volume_commit_wait(sink->file);
	set.mask |= VOLUME_SET_SIZE;
	set.size = (uint64_t)st->st_size;
	return r ? r : volume_setattr(volume, ino, &set, NULL, &lsn);
}

static int large_file(struct ingest_batch *batch, uint64_t dir, const char *path, int fd,
	const struct stat *st, struct ingest_link *link)
{
	struct volume_new new = {.type = VOLUME_FILE, .set = ingest_attributes(st)};
	struct ingest *ingest = batch->ingest;
	const char *name = ingest_last_part(path);
	struct sink sink = {.batch = batch};
	struct volume_attributes made;
	bool left_out;
	uint64_t lsn;
	int r;

	new.set.mtime = 0;
	r = volume_make(ingest->volume, dir, name, &new, &made, &lsn);
	if (r == -EEXIST) {
		ingest_skip(ingest, path, INGEST_WAS_DIRECTORY);
		return 0;
	}
	if (!r)
		r = volume_file_get(ingest->volume, made.ino, &sink.file);
	if (!r)
		r = write_file(&sink, path, fd, st);
	volume_file_put(sink.file);
	left_out = r == INGEST_LEFT_OUT;
	if (left_out)
		r = volume_unlink(ingest->volume, dir, name, VOLUME_UNLINK_FILE, &lsn);
	if (r)
		return ingest_fail(ingest, r, path);
	if (left_out)
		return 0;
	if (link)
		ingest_link_made(ingest, link, made.ino);
	ingest_count(ingest, &ingest->progress->files, 1);
	ingest_count(ingest, &ingest->progress->bytes, sink.bytes);
	return ingest_written(ingest, sink.bytes);
}

int ingest_file_again(
	struct ingest_batch *batch, uint64_t dir, const char *path, struct ingest_link *link)
{
	struct stat st;
	int fd, r;

	if (lstat(path, &st)) {
		ingest_skip(batch->ingest, path, strerror(errno));
		return 0;
	}
	fd = open_source(batch->ingest, path, &st);
	if (fd < 0)
		return 0;
	r = large_file(batch, dir, path, fd, &st, link);
	close(fd);
	return r;
}

int ingest_file(struct ingest_batch *batch, struct ingest_dir *dir, const char *path,
	const struct stat *st, struct ingest_link *link)
{
	int fd = open_source(batch->ingest, path, st), r;

	if (fd < 0)
		return 0;
	if ((uint64_t)st->st_size > WHOLE_MAX)
		r = large_file(batch, dir->ino, path, fd, st, link);
	else
		r = stage_file(batch, dir, path, fd, st, link);
	close(fd);
	return r;
}
