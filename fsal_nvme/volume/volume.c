/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The open volumes of a pool: opening, closing, sealing. */
#include "volume/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"

static const struct volumes_options defaults = {
	.pending_extents = 1024,
	.pending_age = 5000000000ull,
	.pending_memory = 16u << 20,
	.stream_bytes = 512u << 10,
	.spare_streams = 4,
};

static struct volumes_options fill_in(const struct volumes_options *options)
{
	struct volumes_options filled = options ? *options : defaults;

	if (!filled.pending_extents)
		filled.pending_extents = defaults.pending_extents;
	if (!filled.pending_age)
		filled.pending_age = defaults.pending_age;
	if (!filled.pending_memory)
		filled.pending_memory = defaults.pending_memory;
	if (!filled.stream_bytes)
		filled.stream_bytes = defaults.stream_bytes;
	if (!filled.spare_streams)
		filled.spare_streams = defaults.spare_streams;
	return filled;
}

void volume_moved(struct volume *volume, uint64_t ino)
{
	if (volume->volumes->options.moved)
		volume->volumes->options.moved(volume, ino);
}

int volumes_create(
	struct pool *pool, const struct volumes_options *options, struct volumes **volumes)
{
	struct volumes *all = calloc(1, sizeof(*all));
	int r;

	if (!all)
		return -ENOMEM;
	all->pool = pool;
	all->options = fill_in(options);
	pthread_mutex_init(&all->lock, NULL);
	pthread_mutex_init(&all->lanes_lock, NULL);
	pthread_cond_init(&all->lanes_changed, NULL);
	compactor_init(&all->compactor);
	*volumes = all;
	/* What cannot be deleted now stays marked; nothing depends on it. */
	r = volumes_resume(all);
	if (r)
		log_warning("pool %s: the rest of a destroyed volume stays: %s", pool_name(pool),
			strerror(-r));
	return 0;
}

void volumes_destroy(struct volumes *volumes)
{
	if (!volumes)
		return;
	volumes_compact_stop(volumes);
	assert(!volumes->first);
	compactor_destroy(&volumes->compactor);
	pthread_cond_destroy(&volumes->lanes_changed);
	pthread_mutex_destroy(&volumes->lanes_lock);
	pthread_mutex_destroy(&volumes->lock);
	free(volumes);
}

/* Those that were told of their ends may still be under way here. */
static void wait_for_commits(struct volume *volume)
{
	pthread_mutex_lock(&volume->work_lock);
	while (volume->commits && !engine_is_simulated(volume->engine))
		pthread_cond_wait(&volume->work, &volume->work_lock);
	pthread_mutex_unlock(&volume->work_lock);
}

void volumes_abandon(struct volumes *volumes)
{
	if (volumes)
		volumes_compact_stop(volumes);
	while (volumes && volumes->first) {
		struct volume *volume = volumes->first;

		volumes->first = volume->next;
		background_stop(volume);
		wait_for_commits(volume);
		lanes_forget(volume);
		files_free(volume);
		volume_end_life(volume);
	}
	volumes_destroy(volumes);
}

/* --- one volume in memory --------------------------------------------------------------------- */

static void init_locks(struct volume *volume)
{
	pthread_condattr_t monotonic;

	recent_init(&volume->recent);
	pthread_mutex_init(&volume->moving_lock, NULL);
	pthread_mutex_init(&volume->table_lock, NULL);
	pthread_mutex_init(&volume->sync_lock, NULL);
	pthread_mutex_init(&volume->batch_lock, NULL);
	pthread_mutex_init(&volume->work_lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&volume->work, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

void volume_end_life(struct volume *volume)
{
	files_free(volume);
	env_put(volume->env);
	pthread_cond_destroy(&volume->work);
	pthread_mutex_destroy(&volume->work_lock);
	pthread_mutex_destroy(&volume->batch_lock);
	pthread_mutex_destroy(&volume->sync_lock);
	pthread_mutex_destroy(&volume->table_lock);
	pthread_mutex_destroy(&volume->moving_lock);
	recent_destroy(&volume->recent);
	free(volume);
}

static int volume_begin_life(
	struct volumes *volumes, const struct volume_row *row, struct volume **out)
{
	struct volume *volume;
	struct env *env;
	int r = env_get(volumes->pool, row->id, &env);

	if (r)
		return r;
	volume = calloc(1, sizeof(*volume));
	if (!volume) {
		env_put(env);
		return -ENOMEM;
	}
	volume->volumes = volumes;
	volume->pool = volumes->pool;
	volume->engine = pool_engine(volumes->pool);
	volume->env = env;
	volume->users = 1;
	volume->row = *row;
	volume->writable = !row->sealed && !pool_is_read_only(volumes->pool);
	volume->orphans = volume->trims = volume->writable;
	volume->quota = VOLUME_QUOTA_NONE;
	volume->queue_end = &volume->queue;
	volume->opened = engine_clock(volume->engine);
	init_locks(volume);
	*out = volume;
	return 0;
}

/* What makes it a volume; nobody else has it yet. */
static int load_header(struct volume *volume)
{
	struct bytes row;
	struct txn *view;
	struct key key;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = txn_get(view, volume->env, key_header(&key), &row);
	if (r == -ENOENT || (!r && header_decode(row, &volume->header)))
		r = row_is_bad(volume, ROW_HEADER, 0);
	txn_abort(view);
	if (!r)
		atomic_store(&volume->committed, volume->header.bytes);
	return r;
}

static int load_kept(struct volume *volume)
{
	uint64_t bytes;
	struct txn *view;
	int r = view_begin(pool_env(volume->pool), &view);

	if (r)
		return r;
	r = kept_get(view, volume->row.id, &bytes);
	txn_abort(view);
	if (!r)
		atomic_store(&volume->kept, bytes);
	return r;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Under volumes->lock; links the volume in. */
static int open_row(struct volumes *volumes, const struct volume_row *row, struct volume **out)
{
	struct volume *volume;
	int r;

	for (volume = volumes->first; volume; volume = volume->next) {
		if (volume->row.id == row->id) {
			volume->users++;
			*out = volume;
			return 0;
		}
	}
	r = volume_begin_life(volumes, row, &volume);
	if (r)
		return r;
	r = load_header(volume);
	if (!r)
		r = space_load(volume);
	if (!r)
		r = load_kept(volume);
	if (r) {
		volume_end_life(volume);
		return r;
	}
	volume->next = volumes->first;
	volumes->first = volume;
	*out = volume;
	return 0;
}

static int find_row(struct volumes *volumes, const char *name, uint32_t id, struct volume_row *row)
{
	struct txn *view;
	int r = view_begin(pool_env(volumes->pool), &view);

	if (r)
		return r;
	r = name ? volume_row_find(view, name, row) : volume_row_get(view, id, row);
	txn_abort(view);
	return !r && row->destroying ? -ENOENT : r;
}

static int open_found(struct volumes *volumes, const char *name, uint32_t id,
	struct volume **volume, struct error *error)
{
	struct volume_row row;
	char number[24];
	int r;

	snprintf(number, sizeof(number), "volume %u", id);
	pthread_mutex_lock(&volumes->lock);
	r = find_row(volumes, name, id, &row);
	if (r == -ENOENT)
		error_set(error, r, name ? name : number, "there is no such dataset or share");
	if (!r && !row.sealed && pool_is_reader(volumes->pool))
		r = error_set(error, -EROFS, row.name,
			"a reader serves sealed datasets: ask the host that has the pool");
	if (!r) {
		r = open_row(volumes, &row, volume);
		if (r)
			error_set(error, r, row.name, "its metadata cannot be loaded: %s",
				strerror(-r));
	}
	pthread_mutex_unlock(&volumes->lock);
	if (r)
		return error_set(
			error, r, name ? name : number, "cannot be opened: %s", strerror(-r));
	background_kick(*volume);
	return 0;
}

int volume_open(
	struct volumes *volumes, const char *name, struct volume **volume, struct error *error)
{
	return open_found(volumes, name, 0, volume, error);
}

int volume_open_id(
	struct volumes *volumes, uint32_t id, struct volume **volume, struct error *error)
{
	return open_found(volumes, NULL, id, volume, error);
}

/* --- closing ---------------------------------------------------------------------------------- */

static bool volume_leave(struct volume *volume)
{
	struct volumes *volumes = volume->volumes;
	struct volume **place = &volumes->first;
	bool last;

	pthread_mutex_lock(&volumes->lock);
	last = --volume->users == 0;
	while (last && *place != volume)
		place = &(*place)->next;
	if (last)
		*place = volume->next;
	pthread_mutex_unlock(&volumes->lock);
	return last;
}

int volume_close(struct volume *volume)
{
	int r = 0;

	if (!volume)
		return 0;
	if (atomic_load(&volume->dirty_count))
		r = volume_sync(volume);
	if (!volume_leave(volume))
		return r;
	background_stop(volume);
	wait_for_commits(volume);
	lanes_close_all(volume);
	volume_end_life(volume);
	return r;
}

/* What others have pending is theirs to commit. */
int volume_let_go(struct volume *volume)
{
	struct volumes *volumes = volume->volumes;
	bool last;

	pthread_mutex_lock(&volumes->lock);
	last = volume->users == 1;
	if (!last)
		volume->users--;
	pthread_mutex_unlock(&volumes->lock);
	return last ? volume_close(volume) : 0;
}

/* --- sealing ---------------------------------------------------------------------------------- */

int volume_turn_begin(struct volume *volume, const char *what, struct error *error)
{
	const char *other = NULL;

	if (atomic_compare_exchange_strong(&volume->turn, &other, what))
		return 0;
	return error_set(error, -EBUSY, volume->row.name, "%s is under way", other);
}

void volume_turn_end(struct volume *volume)
{
	atomic_store(&volume->turn, NULL);
}

/* Waits until those who asked before `writable` was taken away are through. */
static int drain_changes(struct volume *volume)
{
	struct txn *txn;
	int r = txn_begin(volume->pool, volume->env, &txn);

	if (!r)
		txn_abort(txn);
	return r;
}

/* -EBUSY when an inode without a name is left. */
static int check_orphans(struct volume *volume)
{
	struct bytes found, row;
	struct txn *view;
	struct key key;
	uint64_t ino;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = txn_seek(view, volume->env, key_inode(&key, ROW_ORPHAN, 0), &found, &row);
	if (!r)
		r = key_is_inode(found, ROW_ORPHAN, &ino) ? -EBUSY : 0;
	txn_abort(view);
	return r == -ENOENT ? 0 : r;
}

/* Everything pending becomes rows, everything deleted is given back. */
static int settle_all(struct volume *volume)
{
	int r = volume_sync(volume);

	if (!r) {
		atomic_store(&volume->orphans, true);
		atomic_store(&volume->trims, true);
		r = reclaim_all(volume);
	}
	if (!r)
		r = trim_all(volume);
	return r ? r : check_orphans(volume);
}

/* No more changes; but a write that slipped in before is still to be committed. */
static int seal(struct volume *volume)
{
	int r = settle_all(volume);

	if (r)
		return r;
	atomic_store(&volume->writable, false);
	r = drain_changes(volume);
	if (!r)
		r = atomic_load(&volume->dirty_count) ? -EBUSY : check_orphans(volume);
	if (!r) {
		lanes_close_all(volume);
		r = pool_seal(volume->pool, volume->row.id);
	}
	atomic_store(&volume->writable, r != 0);
	return r;
}

/* It has its turn. */
static int seal_once(struct volume *volume, struct error *error)
{
	int r;

	if (volume->row.sealed)
		return 0;
	r = volume_may_change(volume) ? seal(volume) : -EROFS;
	if (r == -EBUSY)
		return error_set(error, r, volume->row.name,
			"cannot be sealed while files are being written or deleted files are open");
	if (r)
		return error_set(error, r, volume->row.name, "cannot be sealed: %s", strerror(-r));
	volume->row.sealed = true;
	return 0;
}

int volume_seal(struct volume *volume, struct error *error)
{
	int r = volume_turn_begin(volume, "its sealing", error);

	if (r)
		return r;
	r = seal_once(volume, error);
	volume_turn_end(volume);
	return r;
}

/* --- questions -------------------------------------------------------------------------------- */

struct pool *volume_pool(const struct volume *volume)
{
	return volume->pool;
}

const struct volume_row *volume_row(const struct volume *volume)
{
	return &volume->row;
}

bool volume_is_read_only(const struct volume *volume)
{
	return !volume_may_change(volume) || pool_is_read_only(volume->pool);
}

uint64_t volume_losses(const struct volume *volume)
{
	return atomic_load(&volume->volumes->losses);
}

/* Within a quota the volume looks as large as that. */
static void within_quota(struct volume_space *space, uint64_t quota)
{
	uint64_t left = quota > space->bytes ? quota - space->bytes : 0;

	space->quota = quota;
	if (space->total > quota)
		space->total = quota;
	if (space->free > left)
		space->free = left;
}

int volume_statfs(struct volume *volume, struct volume_space *space)
{
	struct header header;
	struct bytes row;
	struct txn *view;
	struct key key;
	int r = view_begin(volume->env, &view);

	if (r)
		return r;
	r = txn_get(view, volume->env, key_header(&key), &row);
	if (r == -ENOENT || (!r && header_decode(row, &header)))
		r = row_is_bad(volume, ROW_HEADER, 0);
	txn_abort(view);
	if (r)
		return r;
	pool_space(volume->pool, &space->total, &space->free);
	space->files = header.inodes;
	space->bytes = space_used(volume);
	within_quota(space, atomic_load(&volume->quota));
	return 0;
}

static struct volume_counters counters_of(const struct volume *volume)
{
	return (struct volume_counters){
		.elapsed = engine_clock(volume->engine) - volume->opened,
		.reads = atomic_load(&volume->done.reads),
		.read_bytes = atomic_load(&volume->done.read_bytes),
		.writes = atomic_load(&volume->done.writes),
		.write_bytes = atomic_load(&volume->done.write_bytes),
		.commits = atomic_load(&volume->done.commits),
		.transactions = atomic_load(&volume->done.transactions),
	};
}

void volumes_count(struct volumes *volumes,
	void (*each)(
		void *data, const struct volume_row *row, const struct volume_counters *counters),
	void *data)
{
	pthread_mutex_lock(&volumes->lock);
	for (const struct volume *volume = volumes->first; volume; volume = volume->next) {
		struct volume_counters counters = counters_of(volume);

		each(data, &volume->row, &counters);
	}
	pthread_mutex_unlock(&volumes->lock);
}
