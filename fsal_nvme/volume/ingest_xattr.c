/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Extended attributes of an ingest: those of the source that are user.*, as they are read. */
#include "volume/ingest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define PREFIX "user."
#define PREFIX_LENGTH (sizeof(PREFIX) - 1)
#define LIST_MAX 65536u /* bytes of names, and of a value: Linux has no more */

static bool is_user(const char *name)
{
	return !strncmp(name, PREFIX, PREFIX_LENGTH);
}

static unsigned count_user(const char *names, size_t length)
{
	unsigned count = 0;

	for (const char *name = names; name < names + length; name += strlen(name) + 1)
		count += is_user(name);
	return count;
}

/* Name and value behind each other in one piece of memory. */
static int add(struct ingest_xattrs *xattrs, const char *name, const void *value, size_t length)
{
	size_t size = strlen(name) + 1;
	char *memory = malloc(size + length);

	if (!memory)
		return -ENOMEM;
	memcpy(memory, name, size);
	if (length)
		memcpy(memory + size, value, length);
	xattrs->list[xattrs->count++] = (struct volume_xattr){memory, memory + size, length};
	return 0;
}

/* One that is gone by now is none. */
static int read_value(
	int fd, const char *path, const char *name, void *buffer, struct ingest_xattrs *xattrs)
{
	ssize_t n = fd < 0 ? lgetxattr(path, name, buffer, LIST_MAX)
			   : fgetxattr(fd, name, buffer, LIST_MAX);

	if (n < 0)
		return errno == ENODATA ? 0 : -errno;
	return add(xattrs, name + PREFIX_LENGTH, buffer, (size_t)n);
}

/* `buffer` has the names, and behind them room for a value. */
static int read_values(
	int fd, const char *path, char *buffer, size_t length, struct ingest_xattrs *xattrs)
{
	unsigned count = count_user(buffer, length);
	int r = 0;

	if (!count)
		return 0;
	xattrs->list = calloc(count, sizeof(*xattrs->list));
	if (!xattrs->list)
		return -ENOMEM;
	for (const char *name = buffer; !r && name < buffer + length; name += strlen(name) + 1) {
		if (is_user(name))
			r = read_value(fd, path, name, buffer + LIST_MAX, xattrs);
	}
	return r ? r : volume_xattrs_check(xattrs->list, xattrs->count);
}

int ingest_xattrs_read(
	struct ingest_batch *batch, int fd, const char *path, struct ingest_xattrs *xattrs)
{
	char *buffer = (char *)batch->buffer;
	ssize_t length =
		fd < 0 ? llistxattr(path, buffer, LIST_MAX) : flistxattr(fd, buffer, LIST_MAX);
	int r = length < 0 ? -errno : 0;

	if (!r)
		r = read_values(fd, path, buffer, (size_t)length, xattrs);
	if (!r || r == -EOPNOTSUPP)
		return 0;
	if (r == -ENOMEM)
		return ingest_fail(batch->ingest, r, path);
	ingest_skip(batch->ingest, path, "its extended attributes cannot be kept");
	return INGEST_LEFT_OUT;
}

struct stale {
	const struct ingest_xattrs *wanted;
	uint64_t passed; /* names of the volume that are wanted */
	char name[VOLUME_NAME_MAX + 1]; /* the first one that is not */
};

static bool is_wanted(void *data, const char *name, size_t length)
{
	struct stale *stale = data;

	for (unsigned i = 0; i < stale->wanted->count; i++) {
		const char *wanted = stale->wanted->list[i].name;

		if (strlen(wanted) == length && !memcmp(wanted, name, length)) {
			stale->passed++;
			return true;
		}
	}
	snprintf(stale->name, sizeof(stale->name), "%.*s", (int)length, name);
	return false;
}

/* What the source does not have any more. */
static int remove_stale(struct volume *volume, uint64_t ino, const struct ingest_xattrs *wanted)
{
	struct stale stale = {.wanted = wanted};
	bool eof = false;
	uint64_t lsn;
	int r = 0;

	while (!r && !eof) {
		r = volume_xattr_list(volume, ino, stale.passed, is_wanted, &stale, &eof);
		if (!r && !eof)
			r = volume_xattr_remove(volume, ino, stale.name, &lsn);
	}
	return r;
}

static int set_changed(struct ingest_batch *batch, uint64_t ino, const struct volume_xattr *xattr)
{
	struct volume *volume = batch->ingest->volume;
	uint64_t lsn;
	size_t length;
	int r = volume_xattr_get(volume, ino, xattr->name, batch->buffer, CHUNK, &length);

	if (r && r != -ENODATA)
		return r;
	if (!r && length == xattr->length && !memcmp(batch->buffer, xattr->value, length))
		return 0;
	return volume_xattr_set(volume, ino, xattr, VOLUME_XATTR_EITHER, &lsn);
}

static int renew(struct ingest_batch *batch, uint64_t ino, const struct ingest_xattrs *xattrs)
{
	int r = remove_stale(batch->ingest->volume, ino, xattrs);

	for (unsigned i = 0; !r && i < xattrs->count; i++)
		r = set_changed(batch, ino, &xattrs->list[i]);
	return r;
}

int ingest_xattrs_copy(struct ingest_batch *batch, int fd, const char *path, uint64_t ino)
{
	struct ingest_xattrs xattrs = {0};
	int r = ingest_xattrs_read(batch, fd, path, &xattrs);

	if (!r)
		r = renew(batch, ino, &xattrs);
	ingest_xattrs_free(&xattrs);
	return r;
}

void ingest_xattrs_free(struct ingest_xattrs *xattrs)
{
	for (unsigned i = 0; i < xattrs->count; i++)
		free((void *)(uintptr_t)xattrs->list[i].name);
	free(xattrs->list);
	*xattrs = (struct ingest_xattrs){0};
}
