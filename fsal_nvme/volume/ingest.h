/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Between the parts of an ingest: ingest.c walks the tree and has the threads, ingest_batch.c makes
 * entries, ingest_file.c reads files, ingest_xattr.c extended attributes, ingest_links.c keeps hard
 * links, ingest_left.c finds what the source has no more.
 */
#ifndef MILLRACE_VOLUME_INGEST_H
#define MILLRACE_VOLUME_INGEST_H

#include <sys/stat.h>

#include "volume/internal.h"

#define BATCH_FILES 256u /* made in one go */
#define BATCH_BYTES (16u << 20)
#define WHOLE_MAX (64u << 20) /* larger files are made first and written then */
#define CHUNK (1u << 20) /* read at once */

/* Why a resumed ingest skips what was a directory: it takes no directory away. */
#define INGEST_WAS_DIRECTORY "a directory of an earlier ingest has its name, and stays"

/* The source has changed or cannot be read or kept: it is left out. */
#define INGEST_LEFT_OUT 1

/* A directory that exists in the volume. */
struct ingest_dir {
	char *path; /* in the source */
	uint64_t ino;
	unsigned refs; /* ingest->lock */
	struct volume_set times; /* set when all is in it */
	struct ingest_dir *next_done;
};

/* Work for a thread: a directory to list, or some of its names to make. */
struct ingest_work {
	struct ingest_work *next;
	struct ingest_dir *dir;
	unsigned count; /* of names; 0: list the directory */
	size_t used; /* bytes of text */
	char text[16384]; /* names, each with its zero */
};

/* A file with more than one name, by device and inode number in the source. */
struct ingest_link {
	struct ingest_link *next;
	uint64_t device, number;
	uint64_t ino; /* 0: not made yet */
};

/* Another name, to be made at the end. */
struct ingest_alias {
	struct ingest_alias *next;
	struct ingest_link *link;
	uint64_t dir;
	char *path; /* in the source; the name is its last part */
};

struct ingest {
	struct volume *volume;
	const struct ingest_options *options;
	struct ingest_progress *progress; /* told_lock */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* lock */
	struct ingest_work *work; /* a stack, so that few directories are open at once */
	unsigned waiting; /* pieces of work in it that are names */
	unsigned busy; /* threads that work */
	int result; /* the first error: everybody stops */
	char failed[160]; /* what it happened to */
	struct ingest_dir *done; /* directories whose times are to be set */
	struct ingest_link **links;
	unsigned link_buckets, link_count;
	struct ingest_alias *aliases;
	uint64_t unsynced; /* bytes */
	bool syncing;
	pthread_mutex_t told_lock;
	uint64_t told; /* clock of the last progress() */
};

/* Extended attributes of the source. Zeros to begin with. */
struct ingest_xattrs {
	struct volume_xattr *list; /* each with memory of its own, from its name on */
	unsigned count;
};

/* One thread's files on their way. */
struct ingest_batch {
	struct ingest *ingest;
	unsigned count;
	uint64_t bytes;
	uint8_t *buffer; /* CHUNK */
	struct volume_staged staged[BATCH_FILES];
	char *path[BATCH_FILES]; /* in the source; the name is its last part */
	struct ingest_link *link[BATCH_FILES]; /* to be told the inode; or NULL */
	uint64_t data[BATCH_FILES]; /* bytes staged */
	struct ingest_xattrs xattrs[BATCH_FILES];
};

/* --- ingest.c --------------------------------------------------------------------------------- */

/* Notes an error that ends everything, the first alone; returns it. */
int ingest_fail(struct ingest *ingest, int error, const char *path);
void ingest_skip(struct ingest *ingest, const char *path, const char *why);
void ingest_count(struct ingest *ingest, uint64_t *counter, uint64_t by);
/* -EINTR when the caller wants to stop, or the error that has ended everything. */
int ingest_go_on(struct ingest *ingest);
/* Bytes were written; now and then everything is made durable. */
int ingest_written(struct ingest *ingest, uint64_t bytes);
struct volume_set ingest_attributes(const struct stat *st);
int ingest_push_dir(struct ingest *ingest, const char *path, uint64_t ino, const struct stat *st);

/* --- ingest_batch.c --------------------------------------------------------------------------- */

/* One name of a directory, whatever it is. */
int ingest_name(struct ingest_batch *batch, struct ingest_dir *dir, const char *name);
int ingest_flush(struct ingest_batch *batch);
/* Forgets what was not made. */
void ingest_batch_end(struct ingest_batch *batch);
/* An empty place at the end of the batch for this name, flushed before if it was full. */
int ingest_place(struct ingest_batch *batch, struct ingest_dir *dir, const char *path,
	uint64_t size, const struct volume_new *new, struct ingest_link *link);
void ingest_unplace(struct ingest_batch *batch); /* takes the last one back */
const char *ingest_last_part(const char *path);

/* --- ingest_file.c ---------------------------------------------------------------------------- */

int ingest_file(struct ingest_batch *batch, struct ingest_dir *dir, const char *path,
	const struct stat *st, struct ingest_link *link);
/* One that was in too many pieces to be made whole. */
int ingest_file_again(
	struct ingest_batch *batch, uint64_t dir, const char *path, struct ingest_link *link);

/* --- ingest_left.c ---------------------------------------------------------------------------- */

/* Tells of the names in the volume that the source does not have. */
int ingest_find_left(struct ingest *ingest);

/* --- ingest_xattr.c --------------------------------------------------------------------------- */

/* The attributes user.* of what is open as `fd`, or of `path` where that is -1. A negative errno,
 * or INGEST_LEFT_OUT when they cannot be kept: `path` is skipped then. */
int ingest_xattrs_read(
	struct ingest_batch *batch, int fd, const char *path, struct ingest_xattrs *xattrs);
/* Reads them, and makes those of an inode that is there the same; otherwise as above. */
int ingest_xattrs_copy(struct ingest_batch *batch, int fd, const char *path, uint64_t ino);
void ingest_xattrs_free(struct ingest_xattrs *xattrs);

/* --- ingest_links.c --------------------------------------------------------------------------- */

/* The link of a file with several names; *first: this is the first of them that was seen. */
int ingest_link_claim(
	struct ingest *ingest, const struct stat *st, struct ingest_link **link, bool *first);
void ingest_link_made(struct ingest *ingest, struct ingest_link *link, uint64_t ino);
int ingest_alias_add(
	struct ingest *ingest, struct ingest_link *link, struct ingest_dir *dir, const char *path);
/* Makes all other names. */
int ingest_aliases(struct ingest *ingest);
void ingest_links_free(struct ingest *ingest);

#endif
