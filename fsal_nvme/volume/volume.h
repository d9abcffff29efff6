/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Volumes: names, inodes and file data over a pool's environments and streams.
 *
 * What it promises to the FSAL and the command above it:
 *  - A call that changes names or attributes is one transaction: all of it is visible when the call
 *    returns, and lasts when its LSN (the `lsn` out parameter; 0: nothing changed) is durable. The
 *    caller holds its reply back with pool_when_durable() or pool_sync().
 *  - volume_write() is visible at once to every reader of the process and lasts when a later
 *    volume_commit() of the file is done. What is lost before that (a crash, a row that could not
 * be written) changes volume_losses() or the pool's epoch: the two together make the write
 * verifier.
 *  - A read returns the bytes that were written, zeros in holes, or -EIO; never others.
 *  - Structure is as POSIX says: -ENOENT, -EEXIST, -ENOTDIR, -EISDIR, -ENOTEMPTY, -EMLINK,
 *    -ENAMETOOLONG (over 255 bytes), -EINVAL (a name that is empty, ".", "..", or has a slash; a
 *    directory moved into itself), -EFBIG. An inode number that is not there is -ESTALE. A sealed
 *    volume, or a pool that is read-only, gives -EROFS for every change.
 *  - Permissions are not checked here, and times of access are not kept by reads.
 *
 * Calls may come from any thread but the engine's, unless their comment says otherwise. They may
 * wait for memory of rows or for room in the journal's ring, never for durability. With a simulated
 * engine no thread is ever made: background work is done inside the call that causes it.
 */
#ifndef MILLRACE_VOLUME_H
#define MILLRACE_VOLUME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

#include "common/error.h"
#include "pool/pool.h"

#define VOLUME_NAME_MAX 255 /* bytes of a file's name */
#define VOLUME_TARGET_MAX 4095 /* bytes of a symbolic link */
#define VOLUME_LINK_MAX 65000
#define VOLUME_SIZE_MAX ((uint64_t)1 << 62) /* bytes of a file */
#define VOLUME_INLINE_MAX 2048 /* a file up to this size lives in the metadata */
#define VOLUME_ROOT 1u /* inode number of each volume's root directory */

struct volumes;
struct volume;
struct volume_file;

/* --- life ------------------------------------------------------------------------------------ */

/* All fields may be 0 for the default in brackets. */
struct volumes_options {
	unsigned pending_extents; /* of a file before it is committed by itself [1024] */
	uint64_t pending_age; /* ns from a file's first pending write until then [5 s] */
	size_t pending_memory; /* bytes of all pending extents of a volume until then [16 MiB] */
	uint64_t stream_bytes; /* of a file before it writes to a stream of its own [512 KiB] */
	unsigned spare_streams; /* kept open per volume for the next big file [4] */
	/* Attributes of a file may differ from what was shown last, though no call changed them:
	 * pending writes became rows, or were lost, or what a truncate left was given back. From
	 * any thread but the engine's, which must not wait for a volume in it [none]. */
	void (*moved)(struct volume *volume, uint64_t ino);
};

/* The volumes of one pool as this process has them open: each once, however often it is opened. */
int volumes_create(
	struct pool *pool, const struct volumes_options *options, struct volumes **volumes);
/* All volumes must be closed. NULL is allowed. Before pool_close(). */
void volumes_destroy(struct volumes *volumes);
/* Instead of closing each volume: forgets what is pending and all volumes, files and `volumes`
 * itself, when the last commit has told its end. Before pool_abandon(). No call may be under way.
 */
void volumes_abandon(struct volumes *volumes);

/* What was done to a volume since it was opened. Nothing here ever decreases. */
struct volume_counters {
	uint64_t elapsed; /* ns since then */
	uint64_t reads, read_bytes, writes, write_bytes; /* calls that succeeded */
	uint64_t commits; /* asked for: volume_commit(), and writes with one */
	uint64_t transactions; /* that changed names, attributes or where data lies */
};
/* Calls back for each volume that is open; the callback must not open or close any. */
void volumes_count(struct volumes *volumes,
	void (*each)(
		void *data, const struct volume_row *row, const struct volume_counters *counters),
	void *data);

struct volume_create_options {
	const char *name;
	enum volume_kind kind; /* VOLUME_SHARE or VOLUME_DATASET */
	uint32_t uid, gid, mode; /* of the root directory; mode 0: 0755 */
	uint64_t quota; /* bytes; 0: none */
};
/* Durable on return. `row` may be NULL. */
int volume_create(struct volumes *volumes, const struct volume_create_options *options,
	struct volume_row *row, struct error *error);
/* -EBUSY while it is open in this process. Durable on return. */
int volume_destroy(struct volumes *volumes, const char *name, struct error *error);
/* All volumes by id: volume_row_next() in a view of pool_env(). */

/* Opens a volume, counted: what is left of deletions before a crash goes on in the background. */
int volume_open(
	struct volumes *volumes, const char *name, struct volume **volume, struct error *error);
int volume_open_id(
	struct volumes *volumes, uint32_t id, struct volume **volume, struct error *error);
/* The last one commits what is pending and waits for it; files must have been put. The volume is
 * closed whatever is returned: the first error of that commit. NULL is allowed. */
int volume_close(struct volume *volume);
/* Commits all files, makes the volume immutable, writes its last image. -EBUSY while an ingest or
 * another sealing of it is under way, while files are being written, and when a deleted file is
 * still open. Durable on return. Sealed already: 0. */
int volume_seal(struct volume *volume, struct error *error);

struct pool *volume_pool(const struct volume *volume);
const struct volume_row *volume_row(const struct volume *volume); /* as of opening or sealing */
bool volume_is_read_only(const struct volume *volume);
/* How often unstable writes were lost, of this volume or another one of these `volumes`: part of
 * the verifier, which does not go back when a volume is closed and opened again. */
uint64_t volume_losses(const struct volume *volume);

struct volume_space {
	uint64_t total, free; /* bytes of the pool, as a user sees them, within the quota */
	uint64_t files; /* inodes of this volume: files, directories, others */
	/* Of extents and inline data of this volume, and of pending writes as if they took no place
	 * of earlier ones. */
	uint64_t bytes;
	uint64_t quota; /* VOLUME_QUOTA_NONE: there is none */
};
int volume_statfs(struct volume *volume, struct volume_space *space);

/*
 * The bytes that a volume may have, as struct volume_space counts them. What would be more is
 * refused with -EDQUOT before it is accepted; or with -EAGAIN, where pending writes and deletions
 * are yet to show whether there is room. What is written over takes none. One that is less than
 * what is there allows nothing more; deleting is always possible.
 *
 * A property of the volume, of the pool's environment: "none", or a size ("10G").
 */
#define VOLUME_QUOTA_PROPERTY "quota"
#define VOLUME_QUOTA_NONE UINT64_MAX
int volume_quota_parse(const char *text, uint64_t *quota);
int volume_quota_get(struct txn *view, uint32_t volume, uint64_t *quota);
/* The property was changed: it counts from now on where this process has the volume open. */
int volumes_quota_changed(struct volumes *volumes, uint32_t id);

/* --- handles --------------------------------------------------------------------------------- */

/* What names an inode for good, across restarts and nodes: wire handles are made of it. */
#define VOLUME_HANDLE_SIZE 16
struct volume_handle {
	uint32_t volume;
	uint32_t tag; /* 24 bits of the volume's uuid */
	uint64_t ino;
};
void volume_handle_make(
	const struct volume *volume, uint64_t ino, uint8_t bytes[VOLUME_HANDLE_SIZE]);
/* -EBADMSG when the bytes are no handle. Knows no volume: for wire_to_host and host_to_key. */
int volume_handle_decode(const void *bytes, size_t length, struct volume_handle *handle);
/* -ESTALE when it is a handle of another volume. Does not look whether the inode exists. */
int volume_handle_check(const struct volume *volume, const struct volume_handle *handle);

/* --- attributes ------------------------------------------------------------------------------ */

enum volume_type {
	VOLUME_FILE = 1,
	VOLUME_DIRECTORY = 2,
	VOLUME_SYMLINK = 3,
	VOLUME_FIFO = 4,
	VOLUME_SOCKET = 5,
	VOLUME_CHARACTER = 6,
	VOLUME_BLOCK = 7,
};

struct volume_attributes {
	uint64_t ino;
	enum volume_type type;
	uint32_t mode; /* 07777 */
	uint32_t uid, gid;
	uint32_t nlink;
	uint64_t rdev; /* major << 32 | minor */
	uint64_t size;
	/* Bytes of space, whole blocks. Of pending writes as if they took no place of earlier ones,
	 * but never beyond the size: exact when they are committed. */
	uint64_t used;
	int64_t atime, mtime, ctime, btime; /* ns since 1970 */
	/* Greater after each change, and no other state of the inode ever had the same: what is
	 * lost with unstable writes is not given out again. */
	uint64_t change;
	uint64_t parent; /* of a directory; 0 for others */
};
int volume_getattr(struct volume *volume, uint64_t ino, struct volume_attributes *attributes);
/* As such an attribute has it: ns since 1970, or the furthest second (in the years 1677 and 2262)
 * that there is. */
int64_t volume_time(struct timespec time);

enum {
	VOLUME_SET_MODE = 1 << 0,
	VOLUME_SET_UID = 1 << 1,
	VOLUME_SET_GID = 1 << 2,
	VOLUME_SET_SIZE = 1 << 3, /* files only; both ways */
	VOLUME_SET_ATIME = 1 << 4,
	VOLUME_SET_MTIME = 1 << 5,
	VOLUME_SET_ATIME_NOW = 1 << 6, /* by the pool's clock */
	VOLUME_SET_MTIME_NOW = 1 << 7,
	VOLUME_SET_BTIME = 1 << 8,
	/* What who is not root does to a file's content takes from its mode: set-uid, and set-gid
	 * where the group may execute. Before VOLUME_SET_MODE. */
	VOLUME_SET_KILL = 1 << 12,
};
struct volume_set {
	unsigned mask; /* VOLUME_SET_... */
	uint32_t mode, uid, gid;
	uint64_t size;
	int64_t atime, mtime, btime;
};
/* One transaction for all of it; ctime follows. `after` may be NULL. */
int volume_setattr(struct volume *volume, uint64_t ino, const struct volume_set *set,
	struct volume_attributes *after, uint64_t *lsn);

/* --- extended attributes --------------------------------------------------------------------- */

/*
 * Of files and directories, in one space of names, which is Linux's without its "user.". Names have
 * 1 to VOLUME_NAME_MAX bytes. All attributes of an inode are read and written at any time, also of
 * a file that is open without a name, and go with it.
 */
#define VOLUME_XATTR_VALUE_MAX 65536u /* bytes of a value */
#define VOLUME_XATTR_NAME_COST 32u
/* Of one inode: bytes of names, and NAME_COST for each. All of them go in one transaction. */
#define VOLUME_XATTR_NAMES_MAX 65536u
#define VOLUME_XATTR_BYTES_MAX (1u << 20) /* of one inode: bytes of names and values */

struct volume_xattr {
	const char *name;
	const void *value; /* NULL is allowed where length is 0 */
	size_t length;
};
enum volume_xattr_how {
	VOLUME_XATTR_EITHER,
	VOLUME_XATTR_CREATE, /* -EEXIST */
	VOLUME_XATTR_REPLACE, /* -ENODATA */
};

/* *length: of the value, also with -ERANGE (`size` is less). -ENODATA: there is none. */
int volume_xattr_get(struct volume *volume, uint64_t ino, const char *name, void *value,
	size_t size, size_t *length);
/* -E2BIG: the value is too long; -ENOSPC: more than an inode may have; -EPERM: of an inode that can
 * have none. */
int volume_xattr_set(struct volume *volume, uint64_t ino, const struct volume_xattr *xattr,
	enum volume_xattr_how how, uint64_t *lsn);
/* -ENODATA, -EPERM. */
int volume_xattr_remove(struct volume *volume, uint64_t ino, const char *name, uint64_t *lsn);
/* Calls back with the names in their order, from number `from` on, until it returns false (that
 * name was not taken) or all were seen (*eof). They are seen at one moment; the callback must
 * change nothing. `name` is not terminated. */
int volume_xattr_list(struct volume *volume, uint64_t ino, uint64_t from,
	bool (*each)(void *data, const char *name, size_t length), void *data, bool *eof);
/* Whether an inode may have all of these: 0, or as volume_xattr_set(). */
int volume_xattrs_check(const struct volume_xattr *xattrs, unsigned count);

/* --- names ----------------------------------------------------------------------------------- */

/* `found` may be NULL, here and below. For ".." there is volume_parent(). */
int volume_lookup(
	struct volume *volume, uint64_t dir, const char *name, struct volume_attributes *found);
/* The root's parent is itself. */
int volume_parent(struct volume *volume, uint64_t dir, struct volume_attributes *found);

struct volume_new {
	enum volume_type type;
	/* Mode, uid, gid, times and, of a file, size where its mask says so; else 0 and now. */
	struct volume_set set;
	uint64_t rdev; /* devices */
	const char *target; /* symbolic links: 1 to VOLUME_TARGET_MAX bytes */
};
/* A file, directory, symbolic link or special file. -EEXIST fills `made` with what is there
 * (-EAGAIN when it went in the meantime). */
int volume_make(struct volume *volume, uint64_t dir, const char *name, const struct volume_new *new,
	struct volume_attributes *made, uint64_t *lsn);
/* The same; and a new file is open: *file has a reference, or is NULL. */
int volume_make_open(struct volume *volume, uint64_t dir, const char *name,
	const struct volume_new *new, struct volume_attributes *made, struct volume_file **file,
	uint64_t *lsn);
/* The target, not terminated; *length: its bytes, -ERANGE when `size` is less. -EINVAL: no link. */
int volume_readlink(struct volume *volume, uint64_t ino, char *buffer, size_t size, size_t *length);
/* Another name for anything but a directory (-EPERM). */
int volume_link(struct volume *volume, uint64_t ino, uint64_t dir, const char *name,
	struct volume_attributes *after, uint64_t *lsn);

/* Between the two, a change of this thread is done for the request, which is recorded with it
 * (done_put()); it stays the caller's. */
void volume_request_begin(const struct pool_done *request);
void volume_request_end(void);

enum volume_unlink { VOLUME_UNLINK_ANY, VOLUME_UNLINK_FILE, VOLUME_UNLINK_DIRECTORY };
/* A name less; directories must be empty. FILE on a directory is -EISDIR, DIRECTORY on another
 * -ENOTDIR. A file that is open lives on without a name until its last volume_file_close(). */
int volume_unlink(struct volume *volume, uint64_t dir, const char *name, enum volume_unlink what,
	uint64_t *lsn);
/* Replaces a file by anything but a directory, an empty directory by a directory. Two names of one
 * inode: 0, nothing changes. */
int volume_rename(struct volume *volume, uint64_t from_dir, const char *from_name, uint64_t to_dir,
	const char *to_name, uint64_t *lsn);

struct volume_entry {
	const char *name; /* until the callback returns */
	uint64_t cookie; /* at least 3, never used again in this volume, in order of creation */
	struct volume_attributes attributes;
};
/*
 * Calls back with the entries whose cookie is greater than `cookie` (0: from the start), in order
 * of cookies, until it returns false (that entry was not taken) or all were seen (*eof). It sees
 * one moment of the directory. The callback must change nothing and not wait long.
 */
int volume_readdir(struct volume *volume, uint64_t dir, uint64_t cookie,
	bool (*each)(void *data, const struct volume_entry *entry), void *data, bool *eof);
/* A path of an inode from the volume's root, for messages: searches all names. -ENOENT when it has
 * none any more. */
int volume_path(struct volume *volume, uint64_t ino, char *path, size_t size);

/* --- files ----------------------------------------------------------------------------------- */

/* An inode in memory, counted, cheap: one per inode whoever asks. A reference does not keep a
 * deleted file alive, opening it does. -ESTALE. */
int volume_file_get(struct volume *volume, uint64_t ino, struct volume_file **file);
void volume_file_put(struct volume_file *file); /* NULL is allowed */
uint64_t volume_file_ino(const struct volume_file *file);
struct volume *volume_file_volume(const struct volume_file *file);
/* Counted. While open, the file outlives its last name. -ESTALE when it has gone. The caller keeps
 * its reference until it has closed. */
int volume_file_open(struct volume_file *file);
/* The last one gives back the space of a file without a name, that of a larger one in the
 * background. Pending writes stay pending. */
void volume_file_close(struct volume_file *file);

/*
 * Writes all `length` bytes or none (an error). They are copied before it returns; unstable until
 * committed. May wait for row memory, never for a commit. -ENOSPC, -EROFS, -EISDIR, -EINVAL (no
 * file), -EFBIG; -EAGAIN: more is pending than four times `pending_memory`, later.
 */
int volume_write(struct volume_file *file, uint64_t offset, const struct iovec *iov,
	unsigned iov_count, size_t length);

/* What a write may be besides; zeros: nothing of it. */
struct volume_write_options {
	bool kill; /* as VOLUME_SET_KILL: no byte is in a file that still has the privileges */
	/* It is to be durable: as volume_commit() of this, which covers the write even when that is
	 * lost before the call returns. An error of the write: done() does not run. */
	struct volume_commit *commit;
	struct loan
		*loan; /* of the memory: whole rows in it are not copied; NULL: it is not lent */
};
int volume_write_with(struct volume_file *file, uint64_t offset, const struct iovec *iov,
	unsigned iov_count, size_t length, const struct volume_write_options *options);

/*
 * Bytes from `offset` on are zeros from now on, and take no space once that is committed: as a
 * write, it is seen at once and unstable until then. The size stays. A commit that a crash cuts
 * short may have made some of a hole in a file of very many extents. -EROFS, -EISDIR, -EINVAL (no
 * file), -ESTALE.
 */
int volume_punch(struct volume_file *file, uint64_t offset, uint64_t length);
int volume_punch_with(struct volume_file *file, uint64_t offset, uint64_t length,
	const struct volume_write_options *options);

/*
 * Keeps space for bytes from `offset` on: writes there do not fail for want of it, or at the quota,
 * the first time that each byte is written. What was not written yet is zeros, and the file is made
 * as large as the range. As a write, it is seen at once and unstable until it is committed; then
 * the space is kept until the bytes are written, cut off or punched. All of it or nothing: -ENOSPC,
 * -EDQUOT. -EFBIG, -EROFS, -EISDIR, -EINVAL (no file), -ESTALE.
 */
int volume_allocate(struct volume_file *file, uint64_t offset, uint64_t length);
int volume_allocate_with(struct volume_file *file, uint64_t offset, uint64_t length,
	const struct volume_write_options *options);

/*
 * A read, owned by the caller with its iovecs and memory until done(), which runs once, on an
 * engine thread or before volume_read() returns. May be called from an engine thread. result: 0,
 * -EIO, -ENOMEM, -ESTALE, -EISDIR, -EINVAL; then `bytes` were read from `offset` on: fewer than
 * asked for at the end of the file, where `eof` is true, and in a file of very many small extents,
 * where it is not.
 */
struct volume_read {
	uint64_t offset;
	const struct iovec *iov;
	unsigned iov_count;
	size_t length; /* at most the sum of the iovecs */
	/* Memory of buffer_alloc() that the one iovec is, or NULL. As in struct pool_read: at
	 * done() other memory may stand here, and the bytes are in that. */
	void *memory;
	size_t memory_size;
	void (*done)(struct volume_read *read);
	void *data; /* the caller's */
	int result;
	size_t bytes;
	bool eof;
	/* the layer's own */
	struct volume_file *file;
	struct read_part *parts;
	struct iovec renewed;
	unsigned tries;
	bool followed;
	uint64_t generation;
	struct follow_wait follow;
	struct pool_read pool;
};
void volume_read(struct volume_file *file, struct volume_read *read);
/* The same, waiting; -errno, or 0 with *bytes and *eof. */
int volume_read_wait(struct volume_file *file, uint64_t offset, void *buffer, size_t length,
	size_t *bytes, bool *eof);

/*
 * The first byte at or behind `offset` that lies in data, or in a hole, in whole blocks of 4 KiB;
 * behind the end of the file is a hole. Pending writes count. -ENXIO: `offset` is at or behind the
 * end, or there is no data; *found stays as it is. -EISDIR, -EINVAL (no file), -ESTALE.
 */
enum volume_seek { VOLUME_SEEK_DATA, VOLUME_SEEK_HOLE };
int volume_seek(struct volume_file *file, uint64_t offset, enum volume_seek what, uint64_t *found);

/*
 * Makes all writes to the file that have returned durable; group-committed with others. Owned by
 * the caller until done(), which runs once, on a thread of the volume or of the engine, or before
 * volume_commit() returns. status: 0; -EIO when writes to the file were lost since it was called,
 * or before and nobody who asked since was told (and volume_losses() has changed): with `again`,
 * who has the bytes should write and commit them once more; -ENOSPC, -ENOMEM: nothing is lost,
 * commit again.
 */
struct volume_commit {
	void (*done)(struct volume_commit *commit, int status);
	void *data; /* the caller's */
	bool again; /* set with status: writes were lost, and not those before as well */
	/* the layer's own */
	struct volume_file *file;
	struct volume_commit *next;
	uint64_t losses; /* of the file, when it was begun */
	int status;
	bool only_applied; /* done() need not wait until it is durable: `lsn` tells when */
	uint64_t lsn;
	struct durable_wait wait;
};
void volume_commit(struct volume_file *file, struct volume_commit *commit);
/* The same, waiting. */
int volume_commit_wait(struct volume_file *file);
/* All files of the volume with pending writes, and everything before; waiting. */
int volume_sync(struct volume *volume);

/* --- many small files at once ---------------------------------------------------------------- */

/*
 * A file made whole: staged bytes, then created with others in as few transactions as they fit
 * into. Start with zeros and fill in the first part; end with volume_staged_free().
 */
struct volume_staged {
	uint64_t dir;
	const char *name;
	struct volume_new new;
	uint64_t size; /* of files; what was not staged is a hole */
	const struct volume_xattr *xattrs; /* of files; checked; until volume_stage_commit() */
	unsigned xattr_count;
	int status; /* of this one, from volume_stage_commit() */
	uint64_t ino; /* of the new one */
	/* the layer's own */
	struct stage *stage;
};
/* Bytes of the file, `size` being set; best all in one call. Waits for row memory. */
int volume_stage(struct volume *volume, struct volume_staged *staged, uint64_t offset,
	const void *bytes, size_t length);
/*
 * Creates `count` of them; each has its status then: 0, -EEXIST, -EIO (bytes were lost), -E2BIG
 * (too many extents or attributes for one transaction: make and write it as any other file), and so
 * on. Returns
 * an error when the volume cannot be changed; those with a status of -ECANCELED were not tried.
 */
int volume_stage_commit(
	struct volume *volume, struct volume_staged *staged, unsigned count, uint64_t *lsn);
/* Forgets what was staged and not created. */
void volume_staged_free(struct volume *volume, struct volume_staged *staged);

/* --- ingest ---------------------------------------------------------------------------------- */

struct ingest_progress {
	uint64_t files, directories, links, others; /* made; links: hard links */
	uint64_t bytes; /* of files made, holes not counted */
	uint64_t passed; /* of the source's files, holes too: copied so far, or there already */
	uint64_t present; /* skipped by `resume`: there already */
	uint64_t skipped; /* named by skip() */
	uint64_t left; /* named by left() */
};

#define VOLUME_INGEST_THREADS 16 /* at most */

struct ingest_options {
	const char *source; /* a directory; what it holds becomes what the volume's root holds */
	unsigned threads; /* 0: one per processor; none with a simulated engine */
	/* What is there with the same type, size and mtime keeps its bytes, and gets the mode,
	 * owner and extended attributes that it has now; what differs is made anew. */
	bool resume;
	bool held; /* volume_ingest_hold() was called; the hold ends with the call */
	uint64_t sync_bytes; /* made durable at least this often; 0: 4 GiB */
	/* Any may be NULL; called from one thread at a time. */
	void (*progress)(
		void *data, const struct ingest_progress *progress); /* about once a second */
	void (*skip)(void *data, const char *path, const char *why); /* left out, and why */
	void (*left)(void *data, const char *path); /* of `resume`: the source has it no more */
	bool (*stop)(void *data); /* true: give up with -EINTR */
	void *data;
};
/*
 * Copies a directory tree: files, directories, symbolic links, FIFOs, sockets and devices, with
 * modes, owners, times, hard links, holes and extended attributes (user.*). All of it is durable on
 * return. What cannot be read or changes meanwhile, and what finds its name taken, is skipped and
 * named; an error of the pool ends it. -EBUSY while another ingest or the sealing of the volume is
 * under way.
 */
int volume_ingest(struct volume *volume, const struct ingest_options *options,
	struct ingest_progress *progress, struct error *error);
/* Keeps a volume for an ingest that is to follow, from here on: nobody else seals it. -EBUSY as
 * above. */
int volume_ingest_hold(struct volume *volume, struct error *error);

/* --- care ------------------------------------------------------------------------------------ */

struct volume_verify_report {
	uint64_t files, directories, others, bytes; /* bytes: read and checked */
	uint64_t bad_files; /* with bytes that could not be read */
	uint64_t bad_metadata; /* rows that contradict each other or cannot be decoded */
};
/*
 * Reads every byte of every committed file, and checks that names, links, extents and counters
 * agree. 0 when all could be looked at, whatever was found. Callbacks may be NULL.
 */
struct volume_verify_options {
	bool (*progress)(void *data, uint64_t bytes, uint64_t total); /* false: -EINTR */
	void (*bad)(void *data, const char *path, int error); /* a file, or "" for metadata */
	void *data;
};
int volume_verify(struct volume *volume, const struct volume_verify_options *options,
	struct volume_verify_report *report, struct error *error);
/* Live bytes per segment as the extents have them, against the pool's: *wrong segments differ. */
int volume_check_live(struct volume *volume, uint64_t *wrong);

/* Who says how fast: called before bytes are moved, may wait; an error ends the compaction. */
struct compact_pace {
	int (*wait)(void *data, uint64_t bytes);
	void *data;
};
/* Moves the live bytes of segments of this volume, in order of their ids, to others, so that they
 * become free. `pace` may be NULL. */
int volume_compact(struct volume *volume, const uint64_t *segments, unsigned count,
	const struct compact_pace *pace);
/* Empties segments of the volume of which less than `percent` is live until `bytes` were won or
 * nothing more is to be won; *won may be NULL. */
int volume_make_room(struct volume *volume, unsigned percent, uint64_t bytes, uint64_t *won);
/* The same of all volumes of the pool. */
int volumes_compact(struct volumes *volumes, unsigned percent, uint64_t bytes, uint64_t *won);
/* Starts a thread that compacts what is worth it, at so many bytes a second; 0: only when space is
 * short. Of one that is there it changes the rate. Not with a simulated engine. */
int volumes_compact_start(struct volumes *volumes, uint64_t rate);
/* Ends it; volumes_destroy() and volumes_abandon() do, too. */
void volumes_compact_stop(struct volumes *volumes);
/* One round of what a thread of the volume does by itself: old pending writes are committed,
 * deleted files given back, idle streams closed, sparse segments compacted when space is short. */
int volume_maintain(struct volume *volume);

#endif
