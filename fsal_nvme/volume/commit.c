/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Commits: pending writes become rows of the environment.
 *
 * The happy path of a batch: take files from the queue; make each one's active overlay the
 * committing one; settle all their extents at once; move the overlays into the environment in as
 * few transactions as they fit into; call those who wait when the last of these is durable.
 *
 * What fails, and what then:
 *   settling gives -EIO      rows are lost. Each file is settled alone; those that fail lose all
 *                            that is pending, and the write verifier changes. Whoever was waiting
 *                            then is told, in this batch or, where it was asked for meanwhile, in
 *                            the next; and the first who asks after that
 *   a transaction fails      it is tried again file by file; a file that fails then keeps what is
 *                            pending, and who waits gets the error: a later commit tries again
 *   the inode is gone        nothing is left to commit
 */
#include "volume/internal.h"

#include <errno.h>

#include "common/log.h"

#define BATCH_MAX 64u

/* One file of a batch. */
struct slot {
	struct volume_file *file;
	struct volume_commit *commits;
	bool again; /* the active overlay has to wait for another round */
	bool touched; /* has rows in the transaction under way */
	bool complete; /* and all of them */
	bool done;
	bool moved; /* what is shown of the file may be something else now */
	int status;
	struct progress progress;
};

struct batch {
	struct volume *volume;
	unsigned count;
	bool solo; /* one file a transaction */
	struct slot slots[BATCH_MAX];
};

/* --- the queue ------------------------------------------------------------------------------- */

/* Takes over the caller's reference; false when it was queued already. */
static bool queue_push(struct volume_file *file)
{
	struct volume *volume = file->volume;
	bool pushed;

	pthread_mutex_lock(&volume->work_lock);
	pushed = !file->queued;
	if (pushed) {
		file->queued = true;
		file->queue_next = NULL;
		*volume->queue_end = file;
		volume->queue_end = &file->queue_next;
	}
	pthread_mutex_unlock(&volume->work_lock);
	return pushed;
}

void commit_queue(struct volume_file *file)
{
	file_ref(file);
	if (!queue_push(file))
		volume_file_put(file);
}

void commit_aged(struct volume *volume, uint64_t age)
{
	uint64_t now = engine_clock(volume->engine);

	if (now < age)
		return;
	pthread_mutex_lock(&volume->table_lock);
	for (struct volume_file *file = volume->dirty; file; file = file->dirty_next) {
		if (atomic_load(&file->since) <= now - age && queue_push(file))
			file->refs++;
	}
	pthread_mutex_unlock(&volume->table_lock);
}

static void batch_take(struct batch *batch)
{
	struct volume *volume = batch->volume;

	batch->count = 0;
	batch->solo = false;
	pthread_mutex_lock(&volume->work_lock);
	while (volume->queue && batch->count < BATCH_MAX) {
		struct volume_file *file = volume->queue;

		batch->slots[batch->count++] = (struct slot){
			.file = file,
			.commits = file->commits,
		};
		volume->queue = file->queue_next;
		file->queued = false;
		file->commits = NULL;
	}
	if (!volume->queue)
		volume->queue_end = &volume->queue;
	pthread_mutex_unlock(&volume->work_lock);
}

/* --- settling -------------------------------------------------------------------------------- */

static void slot_begin(struct slot *slot)
{
	struct volume_file *file = slot->file;

	pthread_mutex_lock(&file->lock);
	slot->again = file->committing && file->active;
	if (!file->committing) {
		file->committing = file->active;
		file->active = NULL;
		atomic_store(&file->since, 0);
	}
	slot->done = !file->committing;
	pthread_mutex_unlock(&file->lock);
}

/* All that is pending is lost. */
static void slot_lose(struct slot *slot)
{
	struct volume_file *file = slot->file;
	struct volume *volume = file->volume;
	struct inode inode;
	struct txn *view;

	log_error("volume %s: inode %llu: writes that were not committed are lost",
		volume->row.name, (unsigned long long)file->ino);
	pthread_mutex_lock(&file->lock);
	overlay_drop(volume, file->committing);
	file->committing = NULL;
	file_forget(file);
	file->losses++;
	file->failing++;
	file->untold = true;
	/* Who begins a commit from here on is answered with the new verifier. */
	atomic_fetch_add(&volume->volumes->losses, 1);
	if (!view_begin(volume->env, &view)) {
		if (!inode_get(volume, view, file->ino, &inode))
			file->extents = inode.extents;
		txn_abort(view);
	}
	pthread_mutex_unlock(&file->lock);
	slot->done = slot->moved = true;
}

/* The committing overlay, whose extents stay as they are until it is applied. */
static const struct overlay *slot_overlay(const void *slots, unsigned i)
{
	const struct slot *slot = (const struct slot *)slots + i;

	return slot->done ? NULL : slot->file->committing;
}

static void slot_settle(struct slot *slot)
{
	int r = overlays_settle(slot->file->volume, slot_overlay, slot, 1);

	if (r == -EIO)
		slot_lose(slot);
	else if (r)
		slot->status = r;
}

static void batch_settle(struct batch *batch)
{
	for (unsigned i = 0; i < batch->count; i++)
		slot_begin(&batch->slots[i]);
	if (!overlays_settle(batch->volume, slot_overlay, batch->slots, batch->count))
		return;
	for (unsigned i = 0; i < batch->count; i++)
		slot_settle(&batch->slots[i]);
}

/* --- applying -------------------------------------------------------------------------------- */

static bool slot_is_open(const struct slot *slot)
{
	return !slot->done && !slot->status;
}

/* Puts as much as fits into the transaction; 1: all. */
static int slot_apply(struct change *change, struct slot *slot)
{
	struct volume_file *file = slot->file;
	struct inode inode;
	int r = inode_get(change->volume, change->txn, file->ino, &inode);

	if (r)
		return r;
	pthread_mutex_lock(&file->lock);
	slot->progress = (struct progress){0};
	file_note_applying(file, &inode);
	r = overlay_apply(change, &inode, file->committing, &slot->progress);
	file->applying = r >= 0;
	pthread_mutex_unlock(&file->lock);
	if (r < 0)
		return r;
	slot->touched = true;
	slot->complete = r == 1;
	r = inode_put(change, &inode);
	return r ? r : slot->complete;
}

static void slot_drop(struct slot *slot)
{
	struct volume_file *file = slot->file;

	pthread_mutex_lock(&file->lock);
	overlay_drop(file->volume, file->committing);
	file->committing = NULL;
	pthread_mutex_unlock(&file->lock);
	slot->done = true;
}

static void slot_aborted(struct slot *slot)
{
	pthread_mutex_lock(&slot->file->lock);
	slot->file->applying = false;
	pthread_mutex_unlock(&slot->file->lock);
}

static void slot_committed(struct slot *slot, uint64_t lsn)
{
	struct volume_file *file = slot->file;

	pthread_mutex_lock(&file->lock);
	file->applying = false;
	overlay_advance(file->volume, file->committing, &slot->progress);
	file->failing = 0;
	if (lsn)
		file->lsn = lsn;
	if (slot->complete) {
		overlay_free(file->volume, file->committing);
		file->committing = NULL;
	}
	pthread_mutex_unlock(&file->lock);
	slot->done = slot->complete;
	slot->moved = true;
}

/* Fills one transaction with files; *last: the one that failed. */
static int fill_change(struct batch *batch, struct change *change, struct slot **last)
{
	int r = 1;

	for (unsigned i = 0; i < batch->count && r == 1; i++) {
		struct slot *slot = &batch->slots[i];

		if (!slot_is_open(slot))
			continue;
		if (*last && (batch->solo || !change_has_room(change)))
			break;
		*last = slot;
		r = slot_apply(change, slot);
		if (r == -ESTALE) {
			slot_drop(slot);
			r = 1;
		}
	}
	return r < 0 ? r : 0;
}

static void batch_fail(struct batch *batch, int status)
{
	for (unsigned i = 0; i < batch->count; i++) {
		if (slot_is_open(&batch->slots[i]))
			batch->slots[i].status = status;
	}
}

/* One transaction; false when nothing is left to do. */
static bool batch_step(struct batch *batch)
{
	struct change change;
	struct slot *last = NULL;
	uint64_t lsn;
	int r;

	for (unsigned i = 0; i < batch->count; i++) {
		batch->slots[i].touched = false;
		last = slot_is_open(&batch->slots[i]) ? &batch->slots[i] : last;
	}
	if (!last)
		return false;
	last = NULL;
	r = change_begin(batch->volume, &change);
	if (r) {
		batch_fail(batch, r);
		return false;
	}
	r = fill_change(batch, &change, &last);
	r = change_finish(&change, r, &lsn);
	for (unsigned i = 0; i < batch->count; i++) {
		if (batch->slots[i].touched && !r)
			slot_committed(&batch->slots[i], lsn);
		else if (batch->slots[i].touched)
			slot_aborted(&batch->slots[i]);
	}
	if (r && batch->solo && last)
		last->status = r;
	batch->solo = batch->solo || r;
	return true;
}

/* --- telling --------------------------------------------------------------------------------- */

static void commit_done(struct volume_commit *commit, int status)
{
	struct volume_file *file = commit->file;
	struct volume *volume = file->volume;

	commit->done(commit, status);
	volume_file_put(file);
	pthread_mutex_lock(&volume->work_lock);
	volume->commits--;
	pthread_cond_broadcast(&volume->work);
	pthread_mutex_unlock(&volume->work_lock);
}

static void commit_durable(struct durable_wait *wait, int status)
{
	struct volume_commit *commit =
		(void *)((char *)wait - offsetof(struct volume_commit, wait));

	commit_done(commit, status);
}

static void commits_tell(struct volume *volume, struct volume_commit *commits)
{
	while (commits) {
		struct volume_commit *commit = commits;

		commits = commit->next;
		if (commit->status || commit->only_applied) {
			commit_done(commit, commit->status);
			continue;
		}
		commit->wait.done = commit_durable;
		pool_when_durable(volume->pool, commit->lsn, &commit->wait);
	}
}

/* Puts those who wait back into the queue. */
static void slot_again(struct slot *slot)
{
	struct volume_file *file = slot->file;
	struct volume_commit **end = &slot->commits;

	while (*end)
		end = &(*end)->next;
	pthread_mutex_lock(&file->volume->work_lock);
	*end = file->commits;
	file->commits = slot->commits;
	pthread_mutex_unlock(&file->volume->work_lock);
	commit_queue(file);
}

/* What each of those who wait is told; under the file's lock. */
static void slot_judge(struct slot *slot)
{
	struct volume_file *file = slot->file;
	bool untold = file->untold;

	for (struct volume_commit *commit = slot->commits; commit; commit = commit->next) {
		bool asked_after = commit->losses == file->losses;
		bool lost = untold || !asked_after;

		commit->status = lost ? -EIO : slot->status;
		commit->again = lost && file->failing <= 1;
		commit->lsn = file->lsn ? file->lsn : atomic_load(&file->volume->lsn);
		if (asked_after)
			file->untold = false;
	}
}

static void slot_end(struct slot *slot)
{
	struct volume_file *file = slot->file;
	struct volume *volume = file->volume;
	int status = slot->status;
	bool again = slot->again && !status;

	pthread_mutex_lock(&file->lock);
	if (status && !file->active && file->committing) {
		file->active = file->committing;
		file->committing = NULL;
		overlay_truncate(volume, file->active, file->active->limit);
		file->active->limit = UINT64_MAX;
		atomic_store(&file->since, engine_clock(volume->engine));
	}
	if (!again)
		slot_judge(slot);
	pthread_mutex_unlock(&file->lock);
	if (slot->moved || status)
		atomic_store(&volume->trouble, status);
	if (slot->moved)
		volume_moved(volume, file->ino);
	if (again)
		slot_again(slot);
	else
		commits_tell(volume, slot->commits);
	file_mark_clean(file);
	volume_file_put(file);
}

static bool batch_run(struct batch *batch)
{
	batch_take(batch);
	if (!batch->count)
		return false;
	batch_settle(batch);
	while (batch_step(batch))
		;
	for (unsigned i = 0; i < batch->count; i++)
		slot_end(&batch->slots[i]);
	return true;
}

void commit_run(struct volume *volume)
{
	struct batch batch;
	bool simulated = engine_is_simulated(volume->engine);

	if (simulated && volume->running)
		return;
	batch.volume = volume;
	pthread_mutex_lock(&volume->batch_lock);
	volume->running = true;
	while (batch_run(&batch))
		;
	volume->running = false;
	pthread_mutex_unlock(&volume->batch_lock);
}

void commit_kick(struct volume *volume)
{
	if (!background_has_thread(volume)) {
		commit_run(volume);
		return;
	}
	pthread_mutex_lock(&volume->work_lock);
	pthread_cond_broadcast(&volume->work);
	pthread_mutex_unlock(&volume->work_lock);
}

/* --- the calls -------------------------------------------------------------------------------- */

void commit_begin(struct volume_file *file, struct volume_commit *commit)
{
	pthread_mutex_lock(&file->lock);
	commit->losses = file->losses;
	pthread_mutex_unlock(&file->lock);
	commit->file = file;
	commit->only_applied = false;
}

void commit_submit(struct volume_file *file, struct volume_commit *commit)
{
	struct volume *volume = file->volume;

	file_ref(file);
	count_more(&volume->done.commits, 1);
	pthread_mutex_lock(&volume->work_lock);
	commit->next = file->commits;
	file->commits = commit;
	volume->commits++;
	pthread_mutex_unlock(&volume->work_lock);
	commit_queue(file);
	commit_kick(volume);
}

void volume_commit(struct volume_file *file, struct volume_commit *commit)
{
	commit_begin(file, commit);
	commit_submit(file, commit);
}

static void wake(struct volume_commit *commit, int status)
{
	event_signal(commit->data, status);
}

/* pool_sync() does what it waits for, where no thread of the pool does it. */
int volume_commit_wait(struct volume_file *file)
{
	struct event event;
	struct volume_commit commit = {.done = wake, .data = &event};
	int r;

	event_init(&event, file->volume->engine);
	commit_begin(file, &commit);
	commit.only_applied = true;
	commit_submit(file, &commit);
	r = event_wait(&event);
	return r ? r : pool_sync(file->volume->pool, commit.lsn);
}

/* A dirty file that this sync has not seen yet, referred to. */
static struct volume_file *next_dirty(struct volume *volume, uint64_t stamp)
{
	struct volume_file *file;

	pthread_mutex_lock(&volume->table_lock);
	for (file = volume->dirty; file && file->stamp == stamp; file = file->dirty_next)
		;
	if (file) {
		file->stamp = stamp;
		file->refs++;
	}
	pthread_mutex_unlock(&volume->table_lock);
	return file;
}

int volume_sync(struct volume *volume)
{
	struct volume_file *file;
	uint64_t stamp;
	int result = 0, r;

	pthread_mutex_lock(&volume->sync_lock);
	stamp = ++volume->syncs;
	commit_aged(volume, 0);
	commit_kick(volume);
	while ((file = next_dirty(volume, stamp))) {
		r = volume_commit_wait(file);
		result = result ? result : r;
		volume_file_put(file);
	}
	pthread_mutex_unlock(&volume->sync_lock);
	r = pool_sync(volume->pool, atomic_load(&volume->lsn));
	return result ? result : r;
}
