/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Ingest: a tree of the host's becomes a tree of the volume.
 *
 * Threads share a stack of work: directories to list, and bunches of names to make. A directory is
 * made before it is listed, everything else goes into the batch of the thread that meets it and is
 * made with the batch. When the stack is empty and all threads are idle, hard links are made, then
 * the times of directories are set, which making entries had changed, and all is made durable.
 */
#include "volume/ingest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAITING_MAX 64u /* bunches of names; whoever has more makes them itself */
#define SYNC_BYTES (4ull << 30)
#define SECOND 1000000000ull

/* --- telling ---------------------------------------------------------------------------------- */

int ingest_fail(struct ingest *ingest, int error, const char *path)
{
	pthread_mutex_lock(&ingest->lock);
	if (!ingest->result) {
		ingest->result = error;
		snprintf(ingest->failed, sizeof(ingest->failed), "%s", path);
	}
	pthread_cond_broadcast(&ingest->changed);
	pthread_mutex_unlock(&ingest->lock);
	return error;
}

void ingest_skip(struct ingest *ingest, const char *path, const char *why)
{
	const struct ingest_options *options = ingest->options;

	pthread_mutex_lock(&ingest->told_lock);
	ingest->progress->skipped++;
	if (options->skip)
		options->skip(options->data, path, why);
	pthread_mutex_unlock(&ingest->told_lock);
}

void ingest_count(struct ingest *ingest, uint64_t *counter, uint64_t by)
{
	const struct ingest_options *options = ingest->options;
	uint64_t now = engine_clock(ingest->volume->engine);

	pthread_mutex_lock(&ingest->told_lock);
	*counter += by;
	if (options->progress && now - ingest->told >= SECOND) {
		ingest->told = now;
		options->progress(options->data, ingest->progress);
	}
	pthread_mutex_unlock(&ingest->told_lock);
}

int ingest_go_on(struct ingest *ingest)
{
	const struct ingest_options *options = ingest->options;
	bool stop = false;
	int r;

	if (options->stop) {
		pthread_mutex_lock(&ingest->told_lock);
		stop = options->stop(options->data);
		pthread_mutex_unlock(&ingest->told_lock);
	}
	if (stop)
		return ingest_fail(ingest, -EINTR, options->source);
	pthread_mutex_lock(&ingest->lock);
	r = ingest->result;
	pthread_mutex_unlock(&ingest->lock);
	return r;
}

int ingest_written(struct ingest *ingest, uint64_t bytes)
{
	uint64_t limit = ingest->options->sync_bytes;
	bool mine;
	int r = 0;

	pthread_mutex_lock(&ingest->lock);
	ingest->unsynced += bytes;
	mine = !ingest->syncing && ingest->unsynced >= (limit ? limit : SYNC_BYTES);
	if (mine) {
		ingest->syncing = true;
		ingest->unsynced = 0;
	}
	pthread_mutex_unlock(&ingest->lock);
	if (!mine)
		return 0;
	r = pool_sync(ingest->volume->pool, atomic_load(&ingest->volume->lsn));
	pthread_mutex_lock(&ingest->lock);
	ingest->syncing = false;
	pthread_mutex_unlock(&ingest->lock);
	return r ? ingest_fail(ingest, r, ingest->options->source) : 0;
}

struct volume_set ingest_attributes(const struct stat *st)
{
	return (struct volume_set){
		.mask = VOLUME_SET_MODE | VOLUME_SET_UID | VOLUME_SET_GID | VOLUME_SET_ATIME |
			VOLUME_SET_MTIME,
		.mode = st->st_mode & 07777,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.atime = volume_time(st->st_atim),
		.mtime = volume_time(st->st_mtim),
	};
}

/* --- work ------------------------------------------------------------------------------------- */

static void push(struct ingest *ingest, struct ingest_work *work)
{
	pthread_mutex_lock(&ingest->lock);
	work->dir->refs++;
	work->next = ingest->work;
	ingest->work = work;
	ingest->waiting += work->count > 0;
	pthread_cond_signal(&ingest->changed);
	pthread_mutex_unlock(&ingest->lock);
}

/* The next piece, waited for while others may still bring some; NULL: all is done. */
static struct ingest_work *pop(struct ingest *ingest)
{
	struct ingest_work *work;

	pthread_mutex_lock(&ingest->lock);
	ingest->busy--;
	if (!ingest->busy)
		pthread_cond_broadcast(&ingest->changed);
	while (!ingest->work && ingest->busy && !ingest->result)
		pthread_cond_wait(&ingest->changed, &ingest->lock);
	work = ingest->result ? NULL : ingest->work;
	if (work) {
		ingest->work = work->next;
		ingest->waiting -= work->count > 0;
		ingest->busy++;
	}
	pthread_mutex_unlock(&ingest->lock);
	return work;
}

static void work_free(struct ingest *ingest, struct ingest_work *work)
{
	struct ingest_dir *dir = work->dir;

	pthread_mutex_lock(&ingest->lock);
	if (--dir->refs == 0) {
		dir->next_done = ingest->done;
		ingest->done = dir;
	}
	pthread_mutex_unlock(&ingest->lock);
	free(work);
}

static struct ingest_work *work_new(struct ingest_dir *dir)
{
	struct ingest_work *work = malloc(sizeof(*work));

	if (!work)
		return NULL;
	work->dir = dir;
	work->count = 0;
	work->used = 0;
	return work;
}

int ingest_push_dir(struct ingest *ingest, const char *path, uint64_t ino, const struct stat *st)
{
	struct ingest_dir *dir = calloc(1, sizeof(*dir));
	struct ingest_work *work = dir ? work_new(dir) : NULL;

	if (work)
		dir->path = strdup(path);
	if (!work || !dir->path) {
		free(work);
		free(dir);
		return ingest_fail(ingest, -ENOMEM, path);
	}
	dir->ino = ino;
	dir->times = ingest_attributes(st);
	push(ingest, work);
	return 0;
}

static int make_names(struct ingest_batch *batch, const struct ingest_work *work)
{
	const char *name = work->text;
	int r = 0;

	for (unsigned i = 0; !r && i < work->count; i++) {
		r = ingest_go_on(batch->ingest);
		if (!r)
			r = ingest_name(batch, work->dir, name);
		name += strlen(name) + 1;
	}
	return r;
}

static bool is_busy_enough(struct ingest *ingest)
{
	bool enough;

	pthread_mutex_lock(&ingest->lock);
	enough = ingest->waiting >= WAITING_MAX;
	pthread_mutex_unlock(&ingest->lock);
	return enough;
}

/* Hands a full bunch to the others, or makes it here; a new one is begun. */
static int pass_on(struct ingest_batch *batch, struct ingest_work **names)
{
	struct ingest *ingest = batch->ingest;
	struct ingest_work *fresh;
	int r = 0;

	if (is_busy_enough(ingest)) {
		r = make_names(batch, *names);
		(*names)->count = 0;
		(*names)->used = 0;
		return r;
	}
	fresh = work_new((*names)->dir);
	if (!fresh)
		return ingest_fail(ingest, -ENOMEM, (*names)->dir->path);
	push(ingest, *names);
	*names = fresh;
	return 0;
}

static int add_name(struct ingest_batch *batch, struct ingest_work **names, const char *name)
{
	size_t size = strlen(name) + 1;
	int r = 0;

	if (!strcmp(name, ".") || !strcmp(name, ".."))
		return 0;
	if ((*names)->used + size > sizeof((*names)->text) || (*names)->count == BATCH_FILES)
		r = pass_on(batch, names);
	if (r)
		return r;
	memcpy((*names)->text + (*names)->used, name, size);
	(*names)->used += size;
	(*names)->count++;
	return 0;
}

static int list_names(struct ingest_batch *batch, DIR *stream, struct ingest_work **names)
{
	struct ingest *ingest = batch->ingest;
	struct dirent *entry;
	int r = 0;

	do {
		errno = 0;
		entry = readdir(stream);
		if (!entry && errno)
			ingest_skip(ingest, (*names)->dir->path, strerror(errno));
		if (entry)
			r = add_name(batch, names, entry->d_name);
	} while (!r && entry);
	return r ? r : make_names(batch, *names);
}

/* Those that cannot be kept are told, and the directory is listed without them. */
static int directory_xattrs(struct ingest_batch *batch, int fd, const struct ingest_dir *dir)
{
	int r = ingest_xattrs_copy(batch, fd, dir->path, dir->ino);

	return r < 0 ? ingest_fail(batch->ingest, r, dir->path) : 0;
}

static int list_directory(struct ingest_batch *batch, struct ingest_dir *dir)
{
	int fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	struct ingest_work *names;

	if (!stream) {
		ingest_skip(batch->ingest, dir->path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return 0;
	}
	r = directory_xattrs(batch, fd, dir);
	names = r ? NULL : work_new(dir);
	if (names)
		r = list_names(batch, stream, &names);
	else if (!r)
		r = ingest_fail(batch->ingest, -ENOMEM, dir->path);
	free(names);
	closedir(stream);
	return r;
}

static int do_work(struct ingest_batch *batch, struct ingest_work *work)
{
	int r = ingest_go_on(batch->ingest);

	if (r)
		return r;
	return work->count ? make_names(batch, work) : list_directory(batch, work->dir);
}

/* --- threads ---------------------------------------------------------------------------------- */

static void *worker(void *data)
{
	struct ingest *ingest = data;
	struct ingest_batch *batch = calloc(1, sizeof(*batch));
	struct ingest_work *work;
	int r = 0;

	if (batch)
		batch->buffer = malloc(CHUNK);
	if (!batch || !batch->buffer)
		ingest_fail(ingest, -ENOMEM, ingest->options->source);
	else
		batch->ingest = ingest;
	while ((work = pop(ingest))) {
		if (!r)
			r = do_work(batch, work);
		work_free(ingest, work);
	}
	if (batch && batch->ingest && !ingest_go_on(ingest))
		ingest_flush(batch);
	if (batch && batch->ingest)
		ingest_batch_end(batch);
	if (batch)
		free(batch->buffer);
	free(batch);
	return NULL;
}

static unsigned thread_count(const struct ingest *ingest)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned wanted = ingest->options->threads;

	if (engine_is_simulated(ingest->volume->engine))
		return 1;
	if (!wanted)
		wanted = processors > 0 ? (unsigned)processors : 1;
	return wanted < VOLUME_INGEST_THREADS ? wanted : VOLUME_INGEST_THREADS;
}

/* This thread works too; with fewer threads than wanted it takes longer. */
static void work_all(struct ingest *ingest)
{
	unsigned count = thread_count(ingest), made = 0;
	pthread_t threads[VOLUME_INGEST_THREADS];

	ingest->busy = count;
	for (unsigned i = 1; i < count; i++) {
		if (!pthread_create(&threads[made], NULL, worker, ingest)) {
			made++;
			continue;
		}
		pthread_mutex_lock(&ingest->lock);
		ingest->busy--;
		pthread_mutex_unlock(&ingest->lock);
	}
	worker(ingest);
	for (unsigned i = 0; i < made; i++)
		pthread_join(threads[i], NULL);
}

/* --- the call --------------------------------------------------------------------------------- */

static int set_times(struct ingest *ingest)
{
	int r = 0;

	for (struct ingest_dir *dir = ingest->done; !r && dir; dir = dir->next_done) {
		uint64_t lsn;

		r = volume_setattr(ingest->volume, dir->ino, &dir->times, NULL, &lsn);
		if (r)
			ingest_fail(ingest, r, dir->path);
	}
	return r;
}

static int begin(struct ingest *ingest)
{
	const char *source = ingest->options->source;
	struct stat st;

	if (!volume_may_change(ingest->volume))
		return ingest_fail(ingest, -EROFS, ingest->volume->row.name);
	if (stat(source, &st))
		return ingest_fail(ingest, -errno, source);
	if (!S_ISDIR(st.st_mode))
		return ingest_fail(ingest, -ENOTDIR, source);
	return ingest_push_dir(ingest, source, VOLUME_ROOT, &st);
}

static void clean_up(struct ingest *ingest)
{
	while (ingest->work) {
		struct ingest_work *work = ingest->work;

		ingest->work = work->next;
		work_free(ingest, work);
	}
	while (ingest->done) {
		struct ingest_dir *dir = ingest->done;

		ingest->done = dir->next_done;
		free(dir->path);
		free(dir);
	}
	ingest_links_free(ingest);
	pthread_cond_destroy(&ingest->changed);
	pthread_mutex_destroy(&ingest->told_lock);
	pthread_mutex_destroy(&ingest->lock);
}

static void finish(struct ingest *ingest)
{
	int r = ingest->result;

	if (!r)
		r = ingest_aliases(ingest);
	if (!r && ingest->options->resume)
		r = ingest_find_left(ingest);
	if (!r)
		r = set_times(ingest);
	if (!r) {
		r = volume_sync(ingest->volume);
		if (r)
			ingest_fail(ingest, r, ingest->volume->row.name);
	}
	if (ingest->options->progress)
		ingest->options->progress(ingest->options->data, ingest->progress);
}

static int ingest_all(struct volume *volume, const struct ingest_options *options,
	struct ingest_progress *progress, struct error *error)
{
	struct ingest ingest = {.volume = volume, .options = options, .progress = progress};
	int r;

	pthread_mutex_init(&ingest.lock, NULL);
	pthread_mutex_init(&ingest.told_lock, NULL);
	pthread_cond_init(&ingest.changed, NULL);
	ingest.told = engine_clock(volume->engine);
	if (!begin(&ingest))
		work_all(&ingest);
	finish(&ingest);
	r = ingest.result;
	if (r)
		error_set(error, r, ingest.failed, "%s",
			r == -EINTR ? "ingest was stopped; --resume goes on with it"
				    : strerror(-r));
	clean_up(&ingest);
	return r;
}

int volume_ingest_hold(struct volume *volume, struct error *error)
{
	return volume_turn_begin(volume, "an ingest into it", error);
}

int volume_ingest(struct volume *volume, const struct ingest_options *options,
	struct ingest_progress *progress, struct error *error)
{
	int r = options->held ? 0 : volume_ingest_hold(volume, error);

	memset(progress, 0, sizeof(*progress));
	if (r)
		return r;
	r = ingest_all(volume, options, progress, error);
	volume_turn_end(volume);
	return r;
}
