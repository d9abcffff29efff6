/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Reads. Under the file's lock a read looks for each byte in the active overlay, the committing
 * one, and a view of the environment, and fills in holes and inline bytes at once; what lies in
 * extents is read from the pool under no lock. Extents may go away then (a truncate, a compaction):
 * a read that fails is begun again when the volume has taken extents away since it began.
 *
 * In a pool that another process owns, what is known may be old. A read that fails there, or would
 * go by what has not been looked at for long, waits for a look at the newest root, once.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define PARTS_FIRST 8u
#define PARTS_MAX 4096u /* of one read; then it is short */
#define TRIES_MAX 32u
#define FOLLOW_OLD_NS \
	(UINT64_C(30) * 1000 * 1000 * 1000) /* what was seen so long ago is not trusted */

/* A read being mapped. Where it stands in the file it stands in the caller's memory. */
struct mapping {
	struct volume_read *read;
	struct txn *view;
	struct inode inode;
	const struct overlay *layers[2]; /* upper first; each may be NULL */
	uint64_t at; /* in the file */
	unsigned iov; /* where `at` goes: this iovec, at `skip` */
	size_t skip;
	unsigned count, room; /* of read->parts */
	bool full; /* no more parts are allowed */
};

/* --- the caller's memory --------------------------------------------------------------------- */

/* The next piece of memory, of at most `length` bytes; moves behind it. */
static void *next_memory(struct mapping *m, uint64_t length, size_t *given)
{
	const struct iovec *iov;
	char *memory;

	while (m->skip == m->read->iov[m->iov].iov_len) {
		m->iov++;
		m->skip = 0;
	}
	iov = &m->read->iov[m->iov];
	memory = (char *)iov->iov_base + m->skip;
	*given = iov->iov_len - m->skip;
	if (*given > length)
		*given = (size_t)length;
	m->skip += *given;
	m->at += *given;
	return memory;
}

/* Bytes, or zeros where `bytes` is NULL, up to `to`. */
static void fill(struct mapping *m, const uint8_t *bytes, uint64_t to)
{
	while (m->at < to) {
		size_t given;
		void *memory = next_memory(m, to - m->at, &given);

		if (!bytes) {
			memset(memory, 0, given);
			continue;
		}
		memcpy(memory, bytes, given);
		bytes += given;
	}
}

static int add_part(struct mapping *m, const struct extent *extent, void *into)
{
	if (m->count == m->room) {
		unsigned room = m->room ? 2 * m->room : PARTS_FIRST;
		struct read_part *parts = realloc(m->read->parts, room * sizeof(*parts));

		if (!parts)
			return -ENOMEM;
		m->read->parts = parts;
		m->room = room;
	}
	m->read->parts[m->count++] = (struct read_part){*extent, into};
	return 0;
}

/* `extent` begins at m->at. */
static int map_extent(struct mapping *m, struct extent extent)
{
	uint64_t to = m->at + extent.length;

	while (m->at < to) {
		size_t given;
		void *memory;
		int r;

		if (m->count == PARTS_MAX) {
			m->full = true;
			return 0;
		}
		memory = next_memory(m, to - m->at, &given);
		extent.length = given;
		r = add_part(m, &extent, memory);
		if (r)
			return r;
		extent.offset += given;
	}
	return 0;
}

/* --- the layers, each fills up to `to` and leaves its gaps to the one below ---------------------
 */

static int map_environment(struct mapping *m, uint64_t to)
{
	struct volume *volume = m->read->file->volume;

	while (m->at < to && !m->full) {
		struct extent extent;
		uint64_t found, end;
		int r = extent_next(volume, m->view, m->inode.ino, m->at, &found, &extent);

		if (r && r != -ENOENT)
			return r;
		if (r || found >= to || found >= m->inode.trim) {
			fill(m, NULL, to);
			return 0;
		}
		fill(m, NULL, found);
		end = found + extent.length;
		end = end < m->inode.trim ? end : m->inode.trim;
		end = end < to ? end : to;
		extent.length = end - found;
		if (is_kept(&extent))
			fill(m, NULL, end);
		else
			r = map_extent(m, extent);
		if (r)
			return r;
	}
	return 0;
}

static int map_inline(struct mapping *m, uint64_t to)
{
	uint8_t bytes[VOLUME_INLINE_MAX];
	size_t length = 0;
	int r = 0;

	if (m->at < VOLUME_INLINE_MAX && m->inode.bytes)
		r = inline_get(m->read->file->volume, m->view, m->inode.ino, bytes, &length);
	if (r)
		return r;
	if (m->at < length)
		fill(m, bytes + m->at, length < to ? length : to);
	fill(m, NULL, to);
	return 0;
}

static int map_layer(struct mapping *m, unsigned layer, uint64_t to);

static int map_pieces(struct mapping *m, unsigned layer, const struct overlay *o, uint64_t to)
{
	for (unsigned i = overlay_find(o, m->at); i < o->count && m->at < to && !m->full; i++) {
		uint64_t start = o->at[i], end = start + o->extents[i].length;
		struct extent extent = o->extents[i];
		int r;

		end = end < o->limit ? end : o->limit;
		end = end < to ? end : to;
		if (start >= end)
			break;
		r = m->at < start ? map_layer(m, layer + 1, start) : 0;
		if (r || m->full)
			return r;
		extent.offset += m->at - start;
		extent.length = end - m->at;
		if (!has_bytes(&extent))
			fill(m, NULL, end);
		else
			r = map_extent(m, extent);
		if (r)
			return r;
	}
	return m->at < to && !m->full ? map_layer(m, layer + 1, to) : 0;
}

/* At most three levels deep. */
static int map_layer(struct mapping *m, unsigned layer, uint64_t to)
{
	const struct overlay *o;

	if (layer == 2)
		return m->inode.extents ? map_environment(m, to) : map_inline(m, to);
	o = m->layers[layer];
	if (!o)
		return map_layer(m, layer + 1, to);
	if (m->at < overlay_length(o)) {
		uint64_t end = overlay_length(o) < to ? overlay_length(o) : to;

		fill(m, o->bytes + m->at, end);
	}
	return m->at < to ? map_pieces(m, layer, o, to) : 0;
}

/* --- a read ------------------------------------------------------------------------------------
 */

static uint64_t file_size(const struct mapping *m)
{
	uint64_t size = m->inode.size;

	for (unsigned i = 0; i < 2; i++) {
		uint64_t pending = m->layers[i] ? overlay_size(m->layers[i]) : 0;

		size = pending > size ? pending : size;
	}
	return size;
}

static int map(struct mapping *m)
{
	struct volume_read *read = m->read;
	uint64_t size = file_size(m), to = size > read->offset ? size : read->offset;
	int r;

	m->at = read->offset;
	if (to - read->offset > read->length)
		to = read->offset + read->length;
	r = m->at < to ? map_layer(m, 0, to) : 0;
	read->bytes = (size_t)(m->at - read->offset);
	read->eof = m->at >= size;
	return r;
}

static int map_file(struct mapping *m)
{
	struct volume_file *file = m->read->file;
	struct volume *volume = file->volume;
	int r;

	pthread_mutex_lock(&file->lock);
	r = view_begin(volume->env, &m->view);
	if (!r) {
		r = inode_get(volume, m->view, file->ino, &m->inode);
		m->layers[0] = file->active;
		m->layers[1] = file->committing;
		if (!r)
			r = map(m);
		txn_abort(m->view);
	}
	pthread_mutex_unlock(&file->lock);
	return r;
}

static void finish(struct volume_read *read, int result)
{
	free(read->parts);
	read->parts = NULL;
	read->result = result;
	if (result)
		read->bytes = 0;
	else
		count_more(&read->file->volume->done.reads, 1);
	count_more(&read->file->volume->done.read_bytes, read->bytes);
	read->done(read);
}

static void start(struct volume_read *read);

static bool extents_went(struct volume_read *read)
{
	struct volume *volume = read->file->volume;

	pthread_mutex_lock(&volume->moving_lock);
	pthread_mutex_unlock(&volume->moving_lock);
	return atomic_load(&volume->generation) != read->generation;
}

static void looked(struct follow_wait *wait)
{
	start((struct volume_read *)((char *)wait - offsetof(struct volume_read, follow)));
}

static void start_behind_a_look(struct volume_read *read)
{
	read->followed = true;
	read->follow.done = looked;
	pool_follow_then(read->file->volume->pool, &read->follow);
}

/* A device that is late may still write to the memory that was given. */
static void take_memory(struct volume_read *read, void *memory)
{
	if (memory == read->memory)
		return;
	read->memory = memory;
	read->renewed = (struct iovec){memory, read->iov->iov_len};
	read->iov = &read->renewed;
}

static void parts_read(struct pool_read *pool_read)
{
	struct volume_read *read = pool_read->data;
	struct volume_file *file = read->file;

	take_memory(read, pool_read->memory);
	if (pool_read->result == -EIO && extents_went(read) && ++read->tries < TRIES_MAX) {
		free(read->parts);
		read->parts = NULL;
		start(read);
		return;
	}
	if (pool_read->result == -EIO && !read->followed && pool_is_reader(file->volume->pool)) {
		free(read->parts);
		read->parts = NULL;
		start_behind_a_look(read);
		return;
	}
	if (pool_read->result)
		log_error("volume %s: inode %llu: %zu bytes at %llu cannot be read: %s",
			file->volume->row.name, (unsigned long long)file->ino, read->bytes,
			(unsigned long long)read->offset, strerror(-pool_read->result));
	finish(read, pool_read->result);
}

static void start(struct volume_read *read)
{
	struct volume *volume = read->file->volume;
	struct mapping m = {.read = read};
	int r;

	read->generation = atomic_load(&volume->generation);
	r = map_file(&m);
	if (r || !m.count) {
		finish(read, r);
		return;
	}
	read->pool = (struct pool_read){
		.parts = read->parts,
		.part_count = m.count,
		.memory = read->memory,
		.memory_size = read->memory_size,
		.cached = true,
		.done = parts_read,
		.data = read,
	};
	pool_read(volume->pool, &read->pool);
}

static int read_check(const struct volume_file *file, const struct volume_read *read)
{
	size_t memory = iov_length(read->iov, read->iov_count);

	if (file->type != VOLUME_FILE)
		return file->type == VOLUME_DIRECTORY ? -EISDIR : -EINVAL;
	if (read->memory && (read->iov_count != 1 || read->iov->iov_base != read->memory))
		return -EINVAL;
	return memory < read->length ? -EINVAL : 0;
}

void volume_read(struct volume_file *file, struct volume_read *read)
{
	int r = read_check(file, read);

	read->file = file;
	read->parts = NULL;
	read->tries = 0;
	read->followed = false;
	read->bytes = 0;
	read->eof = false;
	if (r)
		finish(read, r);
	else if (pool_follow_age(file->volume->pool) > FOLLOW_OLD_NS)
		start_behind_a_look(read);
	else
		start(read);
}

static void wake(struct volume_read *read)
{
	event_signal(read->data, read->result);
}

int volume_read_wait(struct volume_file *file, uint64_t offset, void *buffer, size_t length,
	size_t *bytes, bool *eof)
{
	struct iovec iov = {buffer, length};
	struct event event;
	struct volume_read read = {
		.offset = offset,
		.iov = &iov,
		.iov_count = 1,
		.length = length,
		.done = wake,
		.data = &event,
	};
	int r;

	event_init(&event, file->volume->engine);
	volume_read(file, &read);
	r = event_wait(&event);
	while (r == -EDEADLK && pool_follow_wanted(file->volume->pool)) {
		pool_follow(file->volume->pool); /* a simulated world has no thread for it */
		r = event_wait(&event);
	}
	*bytes = read.bytes;
	*eof = read.eof;
	return r;
}
