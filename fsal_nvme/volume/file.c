/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Files in memory: found by inode number in a hash table, counted, freed when nobody refers to
 * them. A dirty file, one with pending writes, is referred to by the list of dirty files.
 */
#include "volume/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define BUCKETS_FIRST 64u

static struct volume_file **bucket(struct volume *volume, uint64_t ino)
{
	uint64_t hash = ino * 0x9e3779b97f4a7c15ull;

	return &volume->buckets[(hash >> 32) & (volume->bucket_count - 1)];
}

/* --- the table; all under table_lock --------------------------------------------------------- */

static struct volume_file *find(struct volume *volume, uint64_t ino)
{
	struct volume_file *file = volume->bucket_count ? *bucket(volume, ino) : NULL;

	while (file && file->ino != ino)
		file = file->next;
	return file;
}

/* Doubles the table. Without memory it stays as it is, unless there is none yet. */
static int widen(struct volume *volume)
{
	unsigned old_count = volume->bucket_count;
	struct volume_file **old = volume->buckets, **wide;

	wide = calloc(old_count ? 2 * old_count : BUCKETS_FIRST, sizeof(*wide));
	if (!wide)
		return old_count ? 0 : -ENOMEM;
	volume->buckets = wide;
	volume->bucket_count = old_count ? 2 * old_count : BUCKETS_FIRST;
	for (unsigned i = 0; i < old_count; i++) {
		for (struct volume_file *file = old[i], *next; file; file = next) {
			struct volume_file **place = bucket(volume, file->ino);

			next = file->next;
			file->next = *place;
			*place = file;
		}
	}
	free(old);
	return 0;
}

static int insert(struct volume *volume, struct volume_file *file)
{
	struct volume_file **place;

	if (volume->file_count >= volume->bucket_count && widen(volume))
		return -ENOMEM;
	place = bucket(volume, file->ino);
	file->next = *place;
	*place = file;
	volume->file_count++;
	return 0;
}

static void withdraw(struct volume *volume, struct volume_file *file)
{
	struct volume_file **place = bucket(volume, file->ino);

	while (*place != file)
		place = &(*place)->next;
	*place = file->next;
	volume->file_count--;
}

/* --- one file -------------------------------------------------------------------------------- */

static struct volume_file *file_new(struct volume *volume, const struct inode *inode)
{
	struct volume_file *file = calloc(1, sizeof(*file));

	if (!file)
		return NULL;
	file->volume = volume;
	file->ino = inode->ino;
	file->type = inode->type;
	file->extents = inode->extents;
	file->plain = mode_is_plain(inode->mode);
	file->change = inode->change;
	file->nameless = inode->nlink == 0;
	file->refs = 1;
	pthread_mutex_init(&file->lock, NULL);
	return file;
}

static void file_free(struct volume_file *file)
{
	assert(!file->active && !file->committing && !file->commits);
	lane_leave(file->volume, &file->lane);
	pthread_mutex_destroy(&file->lock);
	free(file);
}

struct volume_file *file_find(struct volume *volume, uint64_t ino)
{
	struct volume_file *file;

	pthread_mutex_lock(&volume->table_lock);
	file = find(volume, ino);
	if (file)
		file->refs++;
	pthread_mutex_unlock(&volume->table_lock);
	return file;
}

int file_make(struct volume *volume, const struct inode *inode, struct volume_file **out)
{
	struct volume_file *fresh = file_new(volume, inode), *file;
	int r = 0;

	if (!fresh)
		return -ENOMEM;
	pthread_mutex_lock(&volume->table_lock);
	file = find(volume, inode->ino);
	if (file)
		file->refs++;
	else
		r = insert(volume, fresh);
	pthread_mutex_unlock(&volume->table_lock);
	*out = file ? file : fresh;
	if (file || r)
		file_free(fresh);
	return r;
}

void file_ref(struct volume_file *file)
{
	pthread_mutex_lock(&file->volume->table_lock);
	file->refs++;
	pthread_mutex_unlock(&file->volume->table_lock);
}

void volume_file_put(struct volume_file *file)
{
	struct volume *volume = file ? file->volume : NULL;
	bool last;

	if (!file)
		return;
	pthread_mutex_lock(&volume->table_lock);
	assert(file->refs);
	last = --file->refs == 0;
	if (last)
		withdraw(volume, file);
	pthread_mutex_unlock(&volume->table_lock);
	if (last)
		file_free(file);
}

/*
 * The row is read under the table's lock: whoever changes data or the last name has the file in
 * memory first, so what is read here is still so when the file is in the table.
 */
static int make_loaded(struct volume *volume, uint64_t ino, struct volume_file **out)
{
	struct volume_file *fresh = NULL;
	struct inode inode;
	int r;

	pthread_mutex_lock(&volume->table_lock);
	*out = find(volume, ino);
	if (*out) {
		(*out)->refs++;
		pthread_mutex_unlock(&volume->table_lock);
		return 0;
	}
	r = inode_load(volume, ino, &inode);
	if (!r && !(fresh = file_new(volume, &inode)))
		r = -ENOMEM;
	if (!r)
		r = insert(volume, fresh);
	pthread_mutex_unlock(&volume->table_lock);
	*out = fresh;
	if (r && fresh)
		file_free(fresh);
	return r;
}

int volume_file_get(struct volume *volume, uint64_t ino, struct volume_file **file)
{
	bool gone;
	int r = make_loaded(volume, ino, file);

	if (r)
		return r;
	pthread_mutex_lock(&(*file)->lock);
	gone = (*file)->gone;
	pthread_mutex_unlock(&(*file)->lock);
	if (!gone)
		return 0;
	volume_file_put(*file);
	return -ESTALE;
}

uint64_t volume_file_ino(const struct volume_file *file)
{
	return file->ino;
}

struct volume *volume_file_volume(const struct volume_file *file)
{
	return file->volume;
}

/* Of a file, which is in memory while its last name is taken, `nameless` says it. */
static int look_for_name(struct volume_file *file)
{
	struct inode inode;
	int r;

	if (file->type == VOLUME_FILE)
		return file->nameless ? -ESTALE : 0;
	r = inode_load(file->volume, file->ino, &inode);
	return !r && !inode.nlink ? -ESTALE : r;
}

/* The lock keeps a deletion out between the look and the count. */
int volume_file_open(struct volume_file *file)
{
	int r = 0;

	pthread_mutex_lock(&file->lock);
	if (!file->opens)
		r = look_for_name(file);
	if (!r)
		file->opens++;
	pthread_mutex_unlock(&file->lock);
	return r;
}

void volume_file_close(struct volume_file *file)
{
	bool last, nameless;

	pthread_mutex_lock(&file->lock);
	assert(file->opens);
	last = --file->opens == 0;
	nameless = file->nameless && !file->gone;
	pthread_mutex_unlock(&file->lock);
	if (!last)
		return;
	lane_leave(file->volume, &file->lane);
	if (!nameless)
		return;
	reclaim(file->volume, file->ino);
	file_mark_clean(file);
}

/* --- dirty files ----------------------------------------------------------------------------- */

void file_mark_dirty(struct volume_file *file)
{
	struct volume *volume = file->volume;

	pthread_mutex_lock(&volume->table_lock);
	if (!file->dirty) {
		file->dirty = true;
		file->refs++;
		file->dirty_next = volume->dirty;
		file->dirty_back = &volume->dirty;
		if (volume->dirty)
			volume->dirty->dirty_back = &file->dirty_next;
		volume->dirty = file;
		atomic_fetch_add(&volume->dirty_count, 1);
	}
	pthread_mutex_unlock(&volume->table_lock);
}

void file_mark_clean(struct volume_file *file)
{
	struct volume *volume = file->volume;
	bool clean = false;

	pthread_mutex_lock(&file->lock);
	pthread_mutex_lock(&volume->table_lock);
	if (file->dirty && !file->active && !file->committing) {
		clean = true;
		file->dirty = false;
		*file->dirty_back = file->dirty_next;
		if (file->dirty_next)
			file->dirty_next->dirty_back = file->dirty_back;
		atomic_fetch_sub(&volume->dirty_count, 1);
	}
	pthread_mutex_unlock(&volume->table_lock);
	pthread_mutex_unlock(&file->lock);
	if (clean)
		volume_file_put(file);
}

void file_forget(struct volume_file *file)
{
	struct overlay *active = file->active;

	file->active = NULL;
	atomic_store(&file->since, 0);
	file->sequence++;
	file->change = pool_change(file->volume->pool);
	if (file->committing)
		file->committing->limit = 0;
	overlay_drop(file->volume, active);
}

/* Without a word to the pool, which is about to go. */
void files_free(struct volume *volume)
{
	for (unsigned i = 0; i < volume->bucket_count; i++) {
		while (volume->buckets[i]) {
			struct volume_file *file = volume->buckets[i];

			volume->buckets[i] = file->next;
			overlay_free(volume, file->active);
			overlay_free(volume, file->committing);
			file->active = file->committing = NULL;
			file->commits = NULL;
			file_free(file);
		}
	}
	free(volume->buckets);
	volume->buckets = NULL;
	volume->bucket_count = 0;
}
