/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the files of this directory share. Nothing outside it includes this header.
 *
 * Names and attributes are read from and written to the environment; nothing of them is kept in
 * memory but the header's row and those of a few directories (recent.c). What is in memory is
 * struct volume_file, and in it the pending writes: overlays.
 *
 *   environment  <  file->committing  <  file->active      (the upper one hides the lower)
 *
 * A write goes into `active`. A commit makes `active` the `committing` one, settles its extents and
 * moves them into the environment in one or more transactions; writes go on into a new `active`.
 * A reader looks at both and at a view of the environment under the file's lock, so it sees each
 * piece in at least one of them; the same bytes are in both for a moment.
 *
 * A transaction that cuts a file (truncate, last unlink) holds the file's lock from before it
 * changes rows until it has committed and the overlays are cut too. The committer reads an overlay
 * inside its transaction. So for each of them the other one happens wholly before or after.
 *
 * Order of locks, first to last. Views may be begun, and extents abandoned, under any of them.
 *   sync_lock      one volume_sync() at a time; held over I/O
 *   batch_lock     one batch of commits at a time; held over I/O
 *   volumes->lock  which volumes are open; held while one's environment is loaded
 *   a write transaction of the volume (txn_begin): no I/O but room in the journal's ring
 *   file->lock     overlays and state of one file; several only inside a write transaction
 *   table_lock     which files are in memory, their counts, the list of dirty ones
 *   moving_lock    held while a transaction commits that takes extents away, so that a reader
 *                  whose extent has gone can wait until volume->generation tells so
 *   volumes->lanes_lock, work_lock, compactor.lock, recent.lock    leaves
 * Only the first three are held while something waits for a device.
 */
#ifndef MILLRACE_VOLUME_INTERNAL_H
#define MILLRACE_VOLUME_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "volume/format.h"
#include "volume/volume.h"

/* Room that a step leaves in a transaction's record for what must follow it. */
#define ROOM_LOW 8192u
#define STEP_EXTENTS 256u /* extents taken away in one transaction of a long row of them */
#define APPEND_MAX (1u << 20) /* bytes of one stream_append() */
#define APPEND_EXTENTS 8u
#define APPEND_IOVECS 64u
#define HELD_MAX 4u

/* --- compact.c, compact_sealed.c -------------------------------------------------------------- */

/* Segments in the order of their ids. */
bool segments_have(const uint64_t *segments, unsigned count, uint64_t segment);
/* Behind the last extent of *ino: the first of the next inode that has any; *end: there is none. */
int extents_of_next(
	struct volume *volume, struct txn *view, uint64_t *ino, uint64_t *at, bool *end);
/* volume_compact() of a sealed volume. */
int compact_sealed(struct volume *volume, const uint64_t *segments, unsigned count,
	const struct compact_pace *pace);

/* --- compactor.c ------------------------------------------------------------------------------ */

#define COMPACT_RESTS 64u

/* Volumes of which nothing was won the last time. */
struct compact_memory {
	struct compaction_rest rests[COMPACT_RESTS];
	unsigned count, next;
	uint64_t usable; /* of the plan by then */
};

/* The thread that compacts. */
struct compactor {
	pthread_mutex_t lock; /* a leaf */
	pthread_cond_t changed;
	/* lock */
	pthread_t thread;
	bool running, stop, kicked;
	bool busy; /* it has a volume open */
	bool urgent; /* ... since space is short */
	unsigned holds; /* of those who want it to have none */
	uint64_t rate; /* bytes a second; 0: only when space is short */
	uint64_t due; /* no bytes are moved before; ns */
	struct compact_memory memory; /* the thread's */
};

void compactor_init(struct compactor *compactor);
void compactor_destroy(struct compactor *compactor); /* it is stopped */
/* Between the two it has no volume open. Waits while it lets go of one. */
void compactor_hold(struct compactor *compactor);
void compactor_release(struct compactor *compactor);
/* When space is short: wakes the thread, or does what it would do, in this volume alone. */
int compactor_relieve(struct volume *volume);
/* Empties segments of the volume until what is kept can be written, though closed streams have left
 * some half empty. -ENOSPC: nothing more is to be won; -EAGAIN: the thread has in hand what may
 * be. */
int compactor_make_kept_room(struct volume *volume);

/* --- recent.c --------------------------------------------------------------------------------- */

#define RECENT_MAX 16u
#define TOUCHED_MAX 3u

struct recent_directory {
	uint64_t lsn;
	struct inode inode; /* ino 0: none */
};
struct recent {
	pthread_mutex_t lock; /* a leaf */
	struct recent_directory places[RECENT_MAX];
};
/* Directories whose rows a transaction writes or, nlink being 0, deletes. */
struct touched {
	unsigned count; /* more than TOUCHED_MAX: any */
	struct inode inodes[TOUCHED_MAX];
};

void recent_init(struct recent *recent);
void recent_destroy(struct recent *recent);
/* As it is now; also within a transaction of the volume that has changed nothing yet. False: it is
 * not known. */
bool recent_get(struct recent *recent, uint64_t ino, struct inode *inode);
/* Before the transaction commits, under its locks. */
void recent_take_out(struct recent *recent, const struct touched *touched, uint64_t lsn);
/* Afterwards. */
void recent_tell(struct recent *recent, const struct touched *touched, uint64_t lsn);
/* Any inode may be told; those of directories are noted. */
void touched_note(struct touched *touched, const struct inode *inode);

/* --- volume.c, create.c ----------------------------------------------------------------------- */

struct volumes {
	struct pool *pool;
	struct volumes_options options; /* defaults filled in */
	pthread_mutex_t lock;
	struct volume *first;
	pthread_mutex_t lanes_lock;
	pthread_cond_t lanes_changed; /* one was closed, or is not busy any more */
	struct lane *lanes; /* lanes_lock */
	_Atomic uint64_t losses; /* of all volumes, also of those that were closed */
	struct compactor compactor;
};

enum relief { RELIEF_NONE, RELIEF_ASKED, RELIEF_VAIN };

struct volume {
	struct volumes *volumes;
	struct pool *pool;
	struct engine *engine;
	struct env *env;
	struct volume *next; /* volumes->lock; so is users */
	unsigned users;
	struct volume_row row;
	struct header header; /* its row: within write transactions of the volume */
	struct recent recent;
	_Atomic bool writable;
	_Atomic(const char *) turn; /* what has it: an ingest or the sealing; or NULL */
	_Atomic uint64_t lsn; /* the last that changed this volume */
	uint64_t syncs; /* sync_lock: calls of volume_sync() */
	_Atomic uint64_t generation; /* grows when extents that a reader may know went away */
	_Atomic size_t pending; /* bytes of memory in overlays */
	_Atomic bool orphans, trims; /* there may be marked inodes to work on */
	_Atomic bool squeeze; /* too much is pending */
	_Atomic int relief; /* enum relief: room for what is kept */
	_Atomic bool giving_back; /* what these ask for is being done */
	/* Bytes: what the header row counts, what overlays have, the most that both may be. */
	_Atomic uint64_t committed, uncommitted, quota;
	_Atomic uint64_t kept; /* bytes of both that are kept and not written yet */
	_Atomic int trouble; /* why the last file that a commit worked on stays pending, or 0 */

	pthread_mutex_t moving_lock;
	pthread_mutex_t table_lock;
	struct volume_file **buckets;
	unsigned bucket_count, file_count; /* bucket_count: a power of two */
	struct volume_file *dirty; /* doubly linked, newest first */
	_Atomic unsigned dirty_count;

	struct lane *shared; /* volumes->lanes_lock: the lane of small files, or NULL */

	pthread_mutex_t sync_lock;
	pthread_mutex_t batch_lock;
	pthread_mutex_t work_lock;
	pthread_cond_t work;
	struct volume_file *queue, **queue_end; /* files to commit */
	unsigned commits; /* struct volume_commit not done yet */
	bool running, busy; /* simulated: a batch, a round runs further down this stack */
	bool threaded, stop;
	pthread_t thread;

	uint64_t opened; /* engine_clock() */
	struct {
		_Atomic uint64_t reads, read_bytes, writes, write_bytes, commits, transactions;
	} done; /* as struct volume_counters */
};

static inline void count_more(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* volume_close(), without a commit where others have it open. */
int volume_let_go(struct volume *volume);
/* Frees the memory, lets the environment go; no I/O. */
void volume_end_life(struct volume *volume);
/* Goes on with deletions of volumes that a crash cut short. */
int volumes_resume(struct volumes *volumes);
bool volume_may_change(const struct volume *volume);
/* See struct volumes_options. No lock but batch_lock and sync_lock is held. */
void volume_moved(struct volume *volume, uint64_t ino);
/* An ingest and the sealing have a volume to themselves: what is sealed in the middle of an ingest
 * lacks the rest of it for good. -EBUSY when another one is under way. `what` stays valid. */
int volume_turn_begin(struct volume *volume, const char *what, struct error *error);
void volume_turn_end(struct volume *volume);

/* --- overlay.c ------------------------------------------------------------------------------- */

/*
 * Writes that are not in the environment yet: either the whole content of a small file, or pieces:
 * piece i holds the file's bytes from at[i] on, in extents[i]; sorted, not overlapping. A piece may
 * be a hole that was punched: it hides what is below, and takes it away when it is applied; or
 * space that is kept, as an extent of the environment may be.
 */
struct overlay {
	uint64_t *at;
	struct extent *extents;
	unsigned count, room;
	uint8_t *bytes; /* VOLUME_INLINE_MAX of memory; NULL: none */
	size_t length; /* of `bytes` */
	uint64_t charged; /* of `length`: by how much it was more than what it hides */
	bool whole; /* the pieces hold all that was inline below them */
	bool touched; /* `time` is the file's mtime */
	int64_t time;
	uint64_t size; /* end of the furthest write */
	uint64_t limit; /* what lies from here on was cut off */
	uint64_t change; /* as last shown */
	uint64_t hidden; /* bytes of the environment's extents below holes, as they were punched */
};

/* How far an overlay has been moved into the environment by a transaction under way. */
struct progress {
	unsigned applied; /* pieces */
	uint64_t to; /* the next one has been moved up to here; 0: not begun */
	uint64_t limit; /* as it was then */
};

/* Of a piece: segment 0, and at `offset` its place in the file. */
static inline bool is_hole(const struct extent *extent)
{
	return !extent->segment;
}

/* Neither a hole nor space that is kept. */
static inline bool has_bytes(const struct extent *extent)
{
	return !is_hole(extent) && !is_kept(extent);
}

/* Whether one goes on where the other ends, and both may be one row. */
static inline bool extents_join(const struct extent *before, const struct extent *after)
{
	return before->segment == after->segment &&
	       before->offset + before->length == after->offset &&
	       (!is_kept(after) || before->length + after->length <= EXTENT_MAX);
}

struct overlay *overlay_new(struct volume *volume);
/* Abandons its extents, frees it. NULL is allowed. */
void overlay_drop(struct volume *volume, struct overlay *overlay);
/* Frees it: its extents belong to the environment, or to another overlay. */
void overlay_free(struct volume *volume, struct overlay *overlay);
/* Makes room for `more` calls of overlay_insert(). */
int overlay_reserve(struct volume *volume, struct overlay *overlay, unsigned more);
/* Room was made. What it hides is abandoned. A hole does not make the file larger. */
void overlay_insert(
	struct volume *volume, struct overlay *overlay, uint64_t at, const struct extent *extent);
/* All pieces of `from`, for which room was made; `from` is empty then. */
void overlay_merge(struct volume *volume, struct overlay *overlay, struct overlay *from);
/* Bytes from `size` on are no more. */
void overlay_truncate(struct volume *volume, struct overlay *overlay, uint64_t size);
/* The transaction has committed: takes what it moved out. Under the file's lock. */
void overlay_advance(
	struct volume *volume, struct overlay *overlay, const struct progress *progress);
/* Index of the first piece that ends after `at`. */
unsigned overlay_find(const struct overlay *overlay, uint64_t at);
int overlay_bytes(struct volume *volume, struct overlay *overlay);
/* Inline bytes that are not cut off. */
size_t overlay_length(const struct overlay *overlay);
uint64_t overlay_size(const struct overlay *overlay);
/* pool_settle() of the extents of at(list, 0) to at(list, count - 1), any of which may be NULL. */
int overlays_settle(struct volume *volume,
	const struct overlay *(*at)(const void *list, unsigned i), const void *list,
	unsigned count);

/* --- lane.c: streams ------------------------------------------------------------------------- */

/* Part of whatever has bytes to append: a file, a staged one, a compaction. Zeros to begin with. */
struct lane_user {
	/* volumes->lanes_lock */
	struct lane *lane; /* of its own */
	uint64_t written; /* bytes */
	uint64_t ended; /* how many there were when it might leave a row unfilled */
};

/* Appends up to APPEND_MAX bytes. Where streams are short, it may wait for others' appends. `loan`
 * may be NULL. */
int lane_append(struct volume *volume, struct lane_user *user, struct loan *loan,
	const struct iovec *iov, unsigned iov_count, size_t length, unsigned flags,
	struct extent *extents, unsigned *count);
/* It appends no more, for now. */
void lane_leave(struct volume *volume, struct lane_user *user);
/* Closes spare lanes beyond the allowed number or idle for long. */
void lanes_trim(struct volume *volume);
/* Waits for the appends that are under way; new ones must not come, for want of callers or since
 * `writable` was taken away before. */
void lanes_close_all(struct volume *volume);
/* The same without a word to the pool. */
void lanes_forget(struct volume *volume);

/* --- file.c ---------------------------------------------------------------------------------- */

struct volume_file {
	struct volume *volume;
	uint64_t ino;
	enum volume_type type;
	/* table_lock */
	struct volume_file *next;
	unsigned refs;
	bool dirty;
	uint64_t stamp; /* of the last volume_sync() that saw it */
	_Atomic uint64_t since; /* clock of the first write in `active`; 0: none */
	struct volume_file *dirty_next, **dirty_back;

	pthread_mutex_t lock;
	/* lock */
	unsigned opens;
	bool nameless; /* no name is left */
	bool gone; /* nothing is left */
	bool extents; /* data is in extents, of the environment or of an overlay */
	bool plain; /* of a file: its mode has nothing for VOLUME_SET_KILL */
	uint64_t sequence; /* grows when what a writer may have looked at changes */
	uint64_t change; /* the last that was shown or committed */
	uint64_t lsn; /* of the last commit; 0: not known */
	uint64_t losses; /* how often writes were lost */
	bool untold; /* nobody who asked after the last time was told */
	unsigned failing; /* losses since something was committed */
	struct overlay *active, *committing;
	bool applying; /* a transaction under way has bytes of `committing`, and may have ended */
	uint64_t bytes_before; /* that the file takes without `active`, before that transaction */

	struct lane_user lane;
	/* work_lock */
	bool queued;
	struct volume_file *queue_next;
	struct volume_commit *commits;
};

/* Another reference, or NULL when the inode is not in memory. */
struct volume_file *file_find(struct volume *volume, uint64_t ino);
void file_ref(struct volume_file *file);
/* In memory with the state in `inode`; counted. */
int file_make(struct volume *volume, const struct inode *inode, struct volume_file **file);
/* After a change of overlays, no lock held: into or out of the list of dirty files. */
void file_mark_dirty(struct volume_file *file);
void file_mark_clean(struct volume_file *file);
/* Under its lock: both overlays go, abandoned (the committing one by the committer). */
void file_forget(struct volume_file *file);
void files_free(struct volume *volume);

/* --- change.c: a transaction ----------------------------------------------------------------- */

struct change {
	struct txn_hook hook;
	struct volume *volume;
	struct txn *txn;
	int64_t now;
	struct header header; /* as it will be, if this is committed */
	uint64_t bytes; /* that the header counted when it began */
	int64_t kept; /* bytes, more or fewer */
	bool header_changed;
	bool took; /* extents went away */
	struct extent refers[32], releases[32];
	unsigned refer_count, release_count;
	struct volume_file *held[HELD_MAX]; /* locked and counted until the end */
	uint64_t held_change[HELD_MAX];
	unsigned held_count;
	struct touched touched;
};

/* -EROFS when the volume may not change. */
int change_begin(struct volume *volume, struct change *change);
void volume_note_lsn(struct volume *volume, uint64_t lsn);
/* Ends it: with a negative status aborts and returns that, else commits. lsn may be NULL. Held
 * files stay locked until change_release(). */
int change_end(struct change *change, int status, uint64_t *lsn);
void change_release(struct change *change);
/* Both, for changes that have nothing to do in between. */
int change_finish(struct change *change, int status, uint64_t *lsn);
/* Locks the file of an inode, if it is in memory (or in any case, with `make`), until the end. */
int change_hold(
	struct change *change, const struct inode *inode, bool make, struct volume_file **file);
/* Gives the inode its new change attribute and ctime. */
void change_touch(struct change *change, struct inode *inode);
bool change_has_room(const struct change *change);
int change_put(struct change *change, struct bytes key, const void *row, size_t length);
int change_add(
	struct change *change, struct bytes key, const void *row, size_t length); /* -EEXIST */
int change_delete(struct change *change, struct bytes key); /* absent: 0 */
int change_refer(struct change *change, const struct extent *extent);
int change_release_extent(struct change *change, const struct extent *extent);

/* --- inode.c --------------------------------------------------------------------------------- */

/* -ESTALE when there is none, -EIO (logged) when it cannot be decoded. */
int inode_get(struct volume *volume, struct txn *txn, uint64_t ino, struct inode *inode);
/* As it is now, in a view of its own. */
int inode_load(struct volume *volume, uint64_t ino, struct inode *inode);
int inode_put(struct change *change, const struct inode *inode);
/* One that was given a new number, which must be free: rows are not trusted, and an old inode not
 * lost. */
int inode_add(struct change *change, const struct inode *inode);
/* -ENOTDIR */
int inode_get_directory(struct volume *volume, struct txn *txn, uint64_t ino, struct inode *inode);
/* The same of a directory whose names a transaction changes, often without a look at its row. */
int directory_get(struct change *change, uint64_t ino, struct inode *inode);
void inode_show(const struct inode *inode, struct volume_attributes *attributes);
/* The same with what is pending; the file is locked, or NULL. */
void file_show(const struct volume_file *file, const struct inode *inode,
	struct volume_attributes *attributes);
/* A transaction moves some of `committing`, under the file's lock; `before` is the row that it
 * found. Until `applying` is unset the row may be that or the new one, whose bytes are pending too.
 */
void file_note_applying(struct volume_file *file, const struct inode *before);
/* Whether an inode of this type may have the size that `set` asks for, if it does. */
int set_check(enum volume_type type, const struct volume_set *set);
/* Mode, owner and times as `set` says, of a new or an old inode; `now` where it says so. */
void inode_apply(struct inode *inode, const struct volume_set *set, int64_t now);
bool mode_is_plain(uint32_t mode);
int row_is_bad(struct volume *volume, enum row_letter letter, uint64_t ino); /* logs, -EIO */

/* --- names.c, make.c, directory.c ------------------------------------------------------------ */

int name_check(const char *name, size_t *length);
/* -ENOENT */
int entry_get(struct volume *volume, struct txn *txn, uint64_t dir, const char *name,
	struct entry *entry);
/* -EEXIST. The directory is put by the caller, when all of its changes are made. */
int entry_add(
	struct change *change, struct inode *dir, const char *name, const struct inode *inode);
/* change_touch(), inode_put() */
int inode_put_touched(struct change *change, struct inode *inode);
/* A new inode under a new name; `parent` is written too. Fills *inode, which is to be added. What
 * fails, also with -EEXIST, has begun to change rows. */
int entry_make(struct change *change, struct inode *parent, const char *name,
	const struct volume_new *new, struct inode *inode);

/* --- xattr.c --------------------------------------------------------------------------------- */

/* Sets one and counts it; the inode is not put. */
int xattr_put(struct change *change, struct inode *inode, const struct volume_xattr *xattr,
	enum volume_xattr_how how);
/* Takes as many as the record has room for; 1: none is left. The inode is not put. */
int xattrs_delete(struct change *change, struct inode *inode);

/* --- extents.c: extents and inline data in the environment ----------------------------------- */

/* The extent that holds byte `at`, or the first behind it; cut so that it begins at `at` or later.
 * -ENOENT. */
int extent_next(struct volume *volume, struct txn *txn, uint64_t ino, uint64_t at, uint64_t *found,
	struct extent *extent);
/* Takes [from, to) away, at most *budget extents and as far as the record has room; *done: where it
 * stopped, `to` when all is gone. */
int extents_cut(struct change *change, struct inode *inode, uint64_t from, uint64_t to,
	unsigned *budget, uint64_t *done);
/* Nothing may be there; referred to in the same transaction. Joined with the extent before it where
 * that fits. */
int extent_insert(
	struct change *change, struct inode *inode, uint64_t at, const struct extent *extent);
/* Inline bytes, copied; *length 0 when there are none. */
int inline_get(
	struct volume *volume, struct txn *txn, uint64_t ino, uint8_t *bytes, size_t *length);
int inline_put(struct change *change, struct inode *inode, const uint8_t *bytes, size_t length);
/* Moves as much of an overlay into the environment as fits, from where `progress` stands on, and
 * moves that; 1: all of it. The inode is not put. */
int overlay_apply(struct change *change, struct inode *inode, const struct overlay *overlay,
	struct progress *progress);

/* --- trim.c: files cut short and files deleted ----------------------------------------------- */

/* Within a transaction that holds the file: the inode gets a smaller or larger size. After it has
 * committed: the overlays follow. */
int truncate_inode(struct change *change, struct inode *inode, uint64_t size);
void truncate_file(struct volume_file *file, const struct inode *inode, uint64_t size);
/* Takes some of the extents behind `trim` away; 1: none is left. */
int trim_step(struct change *change, struct inode *inode);
/* An inode has lost its last name: what is small goes at once, the rest is marked. Holds its file,
 * which is to be given to nameless_end() when the transaction has committed. */
struct nameless {
	struct volume_file *file;
	bool gone;
};
int nameless_begin(struct change *change, struct inode *inode, struct nameless *nameless);
void nameless_end(struct nameless *nameless);
/* Gives back a nameless inode that nobody has open: what fits into a transaction at once, the rest
 * in the background. */
void reclaim(struct volume *volume, uint64_t ino);
/* All that is marked. A round of the background's work. */
int reclaim_all(struct volume *volume);
int trim_all(struct volume *volume);

/* --- look.c ---------------------------------------------------------------------------------- */

/* A look at one file, under its lock; of a sealed or crashing volume as well. -ESTALE. */
struct look {
	struct volume_file *file;
	struct txn *view;
	struct inode inode;
};
/* What lies from some byte on, up to `end`; two that follow each other may be of one kind. */
struct stretch {
	enum lies { LIES_HOLE, LIES_KEPT, LIES_DATA } what;
	uint64_t end;
};
int look_begin(struct volume_file *file, struct look *look);
int look_stretch(const struct look *look, uint64_t at, struct stretch *stretch);
void look_end(struct look *look);

/* --- space.c --------------------------------------------------------------------------------- */

/* More bytes, which belong to the caller or to a piece of an overlay. -EDQUOT: all would be more
 * than `limit`; UINT64_MAX: whatever there is. */
int space_take(struct volume *volume, uint64_t bytes, uint64_t limit);
void space_give(struct volume *volume, uint64_t bytes);
uint64_t space_used(const struct volume *volume);
/* How much of [from, to) takes space as it is. Locks the file. */
int space_there(struct volume_file *file, uint64_t from, uint64_t to, uint64_t *bytes);
/* Whether byte `from` lies in space that is kept, and up to where, `to` at most, the next ones do
 * as well, or do not either. Locks the file. */
int space_kept(struct volume_file *file, uint64_t from, uint64_t to, bool *kept, uint64_t *end);
/* Has commits done, and deletions. True: these may yet make room for so many bytes more. */
bool space_comes(struct volume *volume, uint64_t bytes);
/* There is no segment for what goes into kept space: has room made. 0: try it again; -EAGAIN: it
 * takes a while; -ENOSPC: there is none to be made. */
int space_relieve(struct volume *volume);
/* Reads the quota, when the volume is opened and when it has changed. */
int space_load(struct volume *volume);

/* --- data.c ---------------------------------------------------------------------------------- */

/* Appends the bytes and adds them as pieces to an overlay that nobody else sees. -EDQUOT: more than
 * `limit` would be used. */
struct staging {
	struct lane_user *lane;
	struct overlay *overlay;
	const struct iovec *iov;
	unsigned iov_count;
	size_t skip; /* of what they hold */
	unsigned flags; /* enum append_flags */
	uint64_t limit;
	struct loan *loan; /* of what they hold; NULL */
};
int data_stage(
	struct volume *volume, const struct staging *staging, uint64_t offset, size_t length);

/* What all that changes the data of a file has in common, under its lock: whether it may be changed
 * (-EPERM: its privileges must go first), its active overlay, which is made when there is none, its
 * newest inline bytes, its times. */
int file_writable(const struct volume_file *file, bool kill);
int file_activate(struct volume_file *file);
int file_inline(struct volume_file *file, uint8_t *bytes, size_t *length);
void file_touch(struct volume_file *file);
/* Bytes of a file that stays small. -EDQUOT: more than `limit` would be used. */
int file_write_inline(struct volume_file *file, size_t offset, const struct iovec *iov,
	size_t length, uint64_t limit);
/* Without the lock: the bytes of a small file become a piece, as those of larger ones are. */
int file_leave_inline(struct volume_file *file, bool kill);
/* Without the lock. In a transaction of its own, before the change: none lasts without it. -EAGAIN:
 * they are gone. */
int file_take_privileges(struct volume_file *file);
/* After a change, with what came of it: the file is committed in time. Returns `r`. */
int file_note_pending(struct volume_file *file, int r);
/* --- commit.c -------------------------------------------------------------------------------- */

/* The two halves of volume_commit(): what is lost after the first one is this commit's to tell. */
void commit_begin(struct volume_file *file, struct volume_commit *commit);
void commit_submit(struct volume_file *file, struct volume_commit *commit);
/* Puts the file into the queue, without anybody waiting for it. */
void commit_queue(struct volume_file *file);
/* Has the queue worked on: by the thread, or here. */
void commit_kick(struct volume *volume);
/* Works on the queue until it is empty. */
void commit_run(struct volume *volume);
/* Queues files whose pending writes are older than `age`. */
void commit_aged(struct volume *volume, uint64_t age);

/* --- background.c ---------------------------------------------------------------------------- */

/* Has what `orphans`, `trims` and `squeeze` ask for done: by the thread, or here. */
void background_kick(struct volume *volume);
/* The thread's end; what is queued is done before. */
void background_stop(struct volume *volume);
/* Starts the thread when there is none yet; false: there will be none, do it yourself. */
bool background_has_thread(struct volume *volume);

#endif
