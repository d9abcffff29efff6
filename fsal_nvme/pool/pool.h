/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The pool: erasure-coded segments, transactions over environments, one journal.
 *
 * What it promises to the volumes above it:
 *  - An environment (struct env) is a sorted set of keys and values in memory. It equals its last
 *    image plus the journal after it. A transaction changes a volume's environment and the pool's
 *    own together; it is visible when txn_commit() returns and lasts when its LSN is durable.
 *  - Data is appended to streams and named by extents. An extent may be committed in a transaction
 *    (txn_refer) once pool_settle() has made its bytes referable. Nothing is ever overwritten.
 *  - A read returns the bytes that were appended or an error, never others.
 *  - Space is given back by txn_release(); a segment without live bytes is freed.
 *
 * Nothing here knows files, names or NFS; nothing above this header knows devices.
 * Functions return 0 or a negative errno. Order of locks: a volume's environment, the pool's
 * environment, stream, segment, journal.
 */
#ifndef MILLRACE_POOL_H
#define MILLRACE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/error.h"
#include "device/device.h"

#define POOL_NAME_MAX 63
#define POOL_DEVICES_MAX 64
#define POOL_WIDTH_MAX 32 /* data + parity */
#define POOL_KEY_MAX 500 /* bytes of a key in an environment */
#define POOL_VOLUME_NAME_MAX 63

struct pool;
struct env;
struct txn;
struct stream;

/* --- life ------------------------------------------------------------------------------------ */

struct pool_create_device {
	const char *path;
	const char *domain; /* NULL: the host */
};

struct pool_create_options {
	const char *name;
	unsigned data, parity;
	uint32_t cell; /* bytes, power of two from 4 KiB; 0: 128 KiB */
	const struct pool_create_device *devices;
	unsigned device_count;
	const char *host;
	bool force; /* take devices that hold a file system or another pool */
	/* Geometry for tests; 0: chosen from the smallest device. */
	uint32_t slot_rows; /* cells a chunk */
	uint64_t journal_size; /* bytes of ring a device */
};

/* Writes labels to all devices; the pool is left closed and assigned to `host`. */
int pool_create(
	struct engine *engine, const struct pool_create_options *options, struct error *error);

struct pool_open_options {
	const char *const *paths;
	unsigned path_count;
	const char *name; /* NULL: whatever pool the devices hold */
	const char *host;
	uint8_t boot_id[16]; /* of this host's kernel */
	const char *scratch_dir; /* for the environments' scratch files; a tmpfs is best */
	bool read_only; /* look, do not own: nothing is written */
	bool reader; /* the same beside an owner: see pool_follow() */
	bool import; /* an exported pool is taken too */
	bool force; /* open although another host owns it */
	bool fenced; /* so is the last owner, or it stands still: no sign of life is waited for;
			-EROFS where it could only be read */
	bool owner_dead; /* all earlier owners are known to be dead: none of them writes any more */
	size_t row_memory; /* bytes of rows being written; 0: 64 MiB */
	size_t page_cache; /* bytes of checksum pages; 0: 64 MiB */
	size_t metadata_limit; /* bytes an environment may take; 0: 16 GiB */
	unsigned stream_limit; /* streams of all volumes; 0: 32 */
	bool background; /* threads of the pool run pool_maintain() and the label's beat */
};

/* -EIO: too few of its devices are there. -EBUSY: another owner. -ENOENT: no device of it. */
int pool_open(struct engine *engine, const struct pool_open_options *options, struct pool **pool,
	struct error *error);
/* Whether pool_open() would find devices enough: what it says of them, by their labels alone. */
int pool_may_open(
	struct engine *engine, const struct pool_open_options *options, struct error *error);
/* Settles, checkpoints, marks the labels closed. The pool is gone whatever is returned. */
int pool_close(struct pool *pool, struct error *error);
/* Lets go of everything without writing: after a failure, a lost ownership, in tests. */
void pool_abandon(struct pool *pool);

/* What labels say, without opening: for import and list. */
struct pool_summary {
	char name[POOL_NAME_MAX + 1];
	uint8_t uuid[16];
	uint64_t epoch;
	bool exported; /* assigned to nobody */
	bool open; /* the last owner did not close it */
	char owner[64]; /* host it is assigned to */
	uint64_t owner_pid;
	uint8_t owner_boot[16];
	unsigned data, parity, device_count, devices_found;
	uint8_t members[POOL_DEVICES_MAX][16]; /* uuids of its devices */
	uint8_t domains[POOL_DEVICES_MAX]; /* of each: the first of them that is in the same */
	uint64_t active; /* those that were not dropped, a bit each */
	/* Of the device that was probed: */
	uint64_t version[4]; /* the greatest of these, in turn, is of the pool's newest label */
	uint8_t device[16];
	char domain[32]; /* of it; empty: its labels do not tell */
	uint64_t fencing_offset,
		fencing_size; /* what it keeps for fencing, bytes; size 0: nothing */
};
/* One device's label. -ENOENT when it holds none; -EBADMSG when either its header (devices_found is
 * 0) or all of its labels are bad: of `summary` the uuid is right, and the rest of what the other
 * part tells. */
int pool_probe(struct engine *engine, const char *path, struct pool_summary *summary);
/* The same of `count` devices, all at once: those that hang are waited for together, which is known
 * afterwards: device_open() says -ETIMEDOUT. */
void pool_probe_each(struct engine *engine, const char *const *paths, unsigned count,
	struct pool_summary *summaries, int *results);
/* Whether these, a bit for each of summary->members, are so many that whoever has the pool has
 * written to one of them: nobody has it but whom the newest of them shows. */
bool pool_owner_is_shown(const struct pool_summary *summary, uint64_t members);
/* An idle pool: gives it to `host` (import), to nobody (export), or wipes its labels (destroy). */
int pool_assign(struct engine *engine, const struct pool_open_options *options, const char *host,
	struct error *error);
int pool_destroy(
	struct engine *engine, const struct pool_open_options *options, struct error *error);

/* One round of background work: a beat, segments closed, reserved, freed; checkpoints. Any thread
 * but one of the engine's; one at a time. With options.background a thread of the pool does it. */
int pool_maintain(struct pool *pool);
/* Writes images of all changed environments and a new root. */
int pool_checkpoint(struct pool *pool);

/*
 * A reader has the pool as its newest root says, whoever owns it, and follows later roots: with
 * options.background every 10 s, otherwise when this is called. What it shows of sealed volumes is
 * what they are; others may be older than the root. 0, -EIO: no newer root could be loaded, what
 * was there before stays. Waits; one at a time.
 */
int pool_follow(struct pool *pool);
bool pool_is_reader(const struct pool *pool);
/* Nanoseconds since the labels were last known to show no later root. */
uint64_t pool_follow_age(struct pool *pool);
/* Counts the roots that were loaded: whatever changed, it has changed. */
uint64_t pool_follow_count(const struct pool *pool);
/* Told when a look that began after this has ended, well or not. Embedded by the caller, and left
 * alone until `done`, which runs in the thread that follows and must not wait. */
struct follow_wait {
	void (*done)(struct follow_wait *wait);
	struct follow_wait *next;
};
void pool_follow_then(struct pool *pool, struct follow_wait *wait);
/* Somebody waits for a look: where there are no threads, pool_follow() is to be called. */
bool pool_follow_wanted(struct pool *pool);

uint64_t pool_epoch(const struct pool *pool);
const char *pool_name(const struct pool *pool);
const uint8_t *pool_uuid(const struct pool *pool);
struct engine *pool_engine(const struct pool *pool);
bool pool_is_read_only(const struct pool *pool); /* asked for, too few devices, or ... */
bool pool_is_of_a_later_version(const struct pool *pool); /* which alone may write to it */
int pool_failure(const struct pool *pool); /* 0, or why it has stopped serving */

/* --- status ---------------------------------------------------------------------------------- */

enum device_state { DEVICE_ACTIVE, DEVICE_MISSING, DEVICE_DROPPED };

struct pool_device_status {
	unsigned id;
	char path[256]; /* empty when missing */
	char domain[64];
	uint8_t uuid[16];
	enum device_state state;
	bool suspect; /* active, but not whole: to be resilvered */
	uint64_t dropped_lsn;
	uint64_t size, slots, slots_used;
	uint64_t read_errors, write_errors, checksum_errors, repaired; /* blocks, since opening */
	uint64_t late_reads; /* rebuilt, as it had not answered them, or others, in time */
};

/* What the bytes of all devices are used for. All parts but `raw` add up to `raw`. */
struct pool_use {
	uint64_t raw; /* of a missing device, what it has at least */
	uint64_t data; /* of files */
	uint64_t waiting; /* in segments of data that are not filled any more: bytes that no file
			     needs; compaction and deleting the others give them back */
	uint64_t parity; /* of segments of data */
	uint64_t metadata; /* images, journal, labels, headers and checksums */
	uint64_t reserved; /* in segments that are being filled, or are to be; kept for deleting */
	uint64_t free; /* with its parity and checksums */
	uint64_t unusable; /* free slots of devices that are away or alone, rounding */
};

struct pool_status {
	struct pool_summary summary;
	bool read_only, reader;
	uint64_t follow_age; /* ns, of a reader */
	int failure;
	uint64_t lsn, durable_lsn;
	struct pool_use use;
	uint64_t usable, used, live, reserve, kept; /* bytes of data, without parity */
	unsigned new_data; /* chunks of a new segment, without parity; 0: there would be none */
	uint64_t segments, segments_open, segments_degraded;
	uint64_t segments_uneven; /* that have more chunks in one domain than parity */
	uint64_t journal_size, journal_used;
	uint64_t images, deltas; /* written since opening; images: full ones */
	uint64_t image_bytes, delta_bytes; /* of both, and of deltas; without parity */
	uint64_t journal_bytes; /* of batches since the pool was made; each device that holds the
				   journal has written so many */
	bool domain_may_die; /* the placement lets one whole domain die, and has always done so */
	uint64_t cache_size, cache_used; /* bytes; used: with what describes them */
	uint64_t cache_hits, cache_misses; /* bytes of files read from it, and from devices */
	char other_owners[200]; /* hosts that may still write, "alpha, beta"; "": none */
	char unreadable[400]; /* paths that the pool was opened with and that show no header */
	unsigned device_count;
	struct pool_device_status devices[POOL_DEVICES_MAX];
};
void pool_status(struct pool *pool, struct pool_status *status);

/*
 * Whether no more devices than parity are silent: the owner reads all labels each second, and not
 * one read that began within the last `nanoseconds` has ended well. A reader's are all silent, or
 * none: it looks at them together, ten seconds apart, which are added; and so are those that are
 * not there. The paths of silent ones go to `silent`, ", " between them, as far as they fit. Asks
 * no device for it.
 */
bool pool_answers(struct pool *pool, uint64_t nanoseconds, char *silent, size_t size);

/* What the devices have done since the pool was opened; `list` takes POOL_DEVICES_MAX. How many
 * there are. */
struct pool_device_io {
	unsigned id;
	char path[256]; /* empty when missing */
	enum device_state state;
	struct device_counters counters; /* zeros when missing */
};
unsigned pool_device_io(struct pool *pool, struct pool_device_io *list);

struct pool_check_report {
	uint64_t segments, blocks, bad_blocks, repaired_blocks; /* of devices that are there */
	uint64_t lost_blocks; /* bad ones, and data of missing devices, that cannot be rebuilt */
	uint64_t missing_chunks, missing_blocks; /* of devices that are not there */
	uint64_t wrong_live; /* segments whose live bytes are not what the images say: set by
				volume/ */
};
/* Reads every block of every segment and compares with checksums and parity; `progress` may be
 * NULL, and ends it with -EINTR when it returns false. With `repair` bad blocks are rewritten. */
int pool_check(struct pool *pool, bool repair, struct pool_check_report *report,
	bool (*progress)(void *data, uint64_t done, uint64_t total), void *data,
	struct error *error);

/* --- devices that come back ------------------------------------------------------------------ */

/*
 * Takes a device that was dropped into use again; 0 also when it is in use already. It is written
 * from now on, and what it lacks of older segments is to be put there by pool_resilver(). Waits,
 * for its journal to be overwritten. -ENODEV: it is none of the pool's; -EBUSY; -EROFS.
 */
int pool_attach(struct pool *pool, const char *path, struct error *error);

/* The same of one that is found again, without anybody's word: -EBUSY also where it was lost again
 * after that. Then it is to wait, for a minute, and twice as long each time, up to an hour.
 * pool_attach() does not wait, and forgets that. A reader opens what the newest label that it has
 * seen calls a member, reads it from now on, and leaves none alone; nothing is written. */
int pool_attach_returned(struct pool *pool, const char *path, struct error *error);

/*
 * The same with another device in the place of number `id`, which was dropped, or is missing. With
 * `force` whatever it holds is lost. -EBUSY: that one is in use, or the new one holds something;
 * -EFBIG: it is too small; -ENOENT: there is no such number.
 */
int pool_replace(struct pool *pool, unsigned id, const char *path, bool force, struct error *error);

struct pool_resilver_report {
	uint64_t devices; /* that were not whole */
	uint64_t segments, blocks; /* of theirs, that were looked at */
	uint64_t written_blocks; /* that they lacked */
	uint64_t lost_blocks; /* that they lack, since the others do not make them up */
	uint64_t waiting_segments; /* open ones, of which too much is away */
	bool whole; /* all devices are: what they had is there */
};
/* Puts what attached devices lack there, from the others; what is right is left alone. `progress`
 * may be NULL, and ends it with -EINTR. May be repeated: it begins anew. Waits. -EBUSY: one is at
 * it. */
int pool_resilver(struct pool *pool, struct pool_resilver_report *report,
	bool (*progress)(void *data, uint64_t done, uint64_t total), void *data,
	struct error *error);

/* The same without anybody's word: -EBUSY also where one before could not make all whole, and no
 * device was attached since. Then it is to wait, as pool_attach_returned() does. */
int pool_resilver_returned(struct pool *pool, struct pool_resilver_report *report,
	bool (*progress)(void *data, uint64_t done, uint64_t total), void *data,
	struct error *error);

/* Devices that are not in use, or lack something; of a reader, those in use that it cannot read. */
unsigned pool_not_whole(struct pool *pool);

/* Earlier owners that may still write, for whose sake nothing that is deleted gives space back. */
unsigned pool_other_owners(struct pool *pool);

/*
 * `host` runs under `boot` now: earlier owners of it that may still write, of other boots, are
 * dead. Labels list them no more, and what was left to them is given back. 0 also where there are
 * none. Waits. -EBUSY, -EROFS.
 */
int pool_rebooted(struct pool *pool, const char *host, const uint8_t boot[16], struct error *error);

/* The same of all boots: `host` is gone for good, and whatever ran there writes no more. */
int pool_host_gone(struct pool *pool, const char *host, struct error *error);

/* --- transactions ---------------------------------------------------------------------------- */

struct bytes {
	const void *data;
	size_t length;
};

/* The environment of a volume, loaded when first asked for. Counted: env_put() for each. */
int env_get(struct pool *pool, uint32_t volume, struct env **env);
void env_put(struct env *env);
/* The pool's own, valid as long as the pool. Keys that begin with 'V', 'N' and 'P' are the volume
 * table, below; the others are the pool's. */
struct env *pool_env(struct pool *pool);

/*
 * A transaction that may change `env` (NULL: none but the pool's) and the pool's environment. It
 * belongs to the thread that began it. Waits while the journal's ring is full.
 * -EROFS when the pool is read-only, the pool's failure when it has stopped.
 */
int txn_begin(struct pool *pool, struct env *env, struct txn **txn);
/* A read-only look at one environment as it is now; ended by txn_abort(). Any number at once. */
int view_begin(struct env *env, struct txn **txn);

/* Within a transaction that was begun without one: the environment, empty, of a volume that this
 * transaction has made. Counted as by env_get(), to be put when the transaction has ended. */
int txn_new_env(struct txn *txn, uint32_t volume, struct env **env);

/* Values stay valid until the transaction's next change or end. -ENOENT. */
int txn_get(struct txn *txn, struct env *env, struct bytes key, struct bytes *value);
/* The first key at or after `key` (or the last at or before it), with its value. -ENOENT. */
int txn_seek(struct txn *txn, struct env *env, struct bytes key, struct bytes *found,
	struct bytes *value);
int txn_seek_back(struct txn *txn, struct env *env, struct bytes key, struct bytes *found,
	struct bytes *value);
/* -ENOSPC when the environment's memory is used up, -E2BIG when the record is larger than the
 * journal takes (see txn_room()); after an error only txn_abort() may follow. */
int txn_put(struct txn *txn, struct env *env, struct bytes key, struct bytes value);
/* The same of a key that is not there. -EEXIST: it is, and nothing was changed. */
int txn_add(struct txn *txn, struct env *env, struct bytes key, struct bytes value);
int txn_delete(struct txn *txn, struct env *env, struct bytes key);
/* Whether the environment takes nothing in it that makes it larger. */
bool txn_is_full(struct txn *txn, struct env *env);
/* Bytes of changes that still fit into this transaction's record. */
size_t txn_room(const struct txn *txn);
/* LSN that this transaction will have is not known before; 0 in *lsn when it changed nothing. */
int txn_commit(struct txn *txn, uint64_t *lsn);
void txn_abort(struct txn *txn);
/* Runs when the transaction commits (after the LSN is known, before locks go) or is abandoned;
 * called with lsn 0 then. The caller's, until `run`. */
struct txn_hook {
	void (*run)(struct txn_hook *hook, uint64_t lsn);
	struct txn_hook *next;
};
void txn_on_end(struct txn *txn, struct txn_hook *hook);

/* A change attribute, used once: greater than all that were given out before, whether what they
 * were given to became durable or not. From (epoch, LSN). Any thread. */
uint64_t pool_change(struct pool *pool);

/* The last LSN that was given out: no change that can be seen has a later one. */
uint64_t pool_lsn(struct pool *pool);
uint64_t pool_durable_lsn(struct pool *pool); /* up to here all is durable */

/* Told when an LSN is durable: status 0, or the pool's failure. Embedded by the caller and left
 * alone until `done`, which runs on an engine thread or before pool_when_durable() returns. */
struct durable_wait {
	void (*done)(struct durable_wait *wait, int status);
	uint64_t lsn;
	struct durable_wait *next;
};
void pool_when_durable(struct pool *pool, uint64_t lsn, struct durable_wait *wait);
/* The same, waiting. */
int pool_sync(struct pool *pool, uint64_t lsn);

/* An answer to whether a later owner has the pool, by looks at more devices than may be lost that
 * begin from now on. Embedded by the caller and left alone until `done`, which runs on an engine
 * thread or before pool_look() returns. */
struct look_wait {
	void (*done)(struct look_wait *wait);
	int status; /* 0: none has; -ESTALE: the pool has failed; -EIO: too few devices can be read;
		       or another error */
	/* the pool's own */
	uint64_t since; /* engine_clock() */
	struct look_wait *next;
};
/* Does not wait. Where the pool is read only, 0. */
void pool_look(struct pool *pool, struct look_wait *wait);
/* Whether such looks, of which an owner begins one each second, have shown none within the last
 * 1.5 s. For a machine whose clock stood still (a paused virtual one) no time has passed. */
bool pool_lease_holds(const struct pool *pool);

/* --- the volume table ------------------------------------------------------------------------ */

enum volume_kind { VOLUME_SHARE = 1, VOLUME_DATASET = 2, VOLUME_SNAPSHOT = 3 };

struct volume_row {
	uint32_t id; /* never used again; 0 is the pool itself */
	enum volume_kind kind;
	bool sealed;
	bool destroying; /* being emptied; has no name any more */
	uint16_t export_id; /* of NFS; never used again */
	uint64_t created; /* ns since 1970 */
	uint8_t uuid[16];
	char name[POOL_VOLUME_NAME_MAX + 1];
};

/* In a transaction of the pool's environment. -EEXIST, -ENAMETOOLONG, -EINVAL for a bad name. */
int volume_row_create(
	struct txn *txn, const char *name, enum volume_kind kind, struct volume_row *row);
int volume_row_get(struct txn *txn, uint32_t id, struct volume_row *row);
int volume_row_find(struct txn *txn, const char *name, struct volume_row *row);
int volume_row_put(struct txn *txn, const struct volume_row *row);
/* The volume with the smallest id of at least `id`; -ENOENT. */
int volume_row_next(struct txn *txn, uint32_t id, struct volume_row *row);
/* Forgets the row, its name, properties, images and frees all segments of the volume. The
 * environment must have no users. */
int volume_row_delete(struct txn *txn, uint32_t id);
/* The final image: no transaction may change its environment any more. Durable on return. */
int pool_seal(struct pool *pool, uint32_t volume);

/* Properties of a volume (0: of the pool): short names, text values. -ENOENT. */
int property_get(struct txn *txn, uint32_t volume, const char *name, char *value, size_t size);
int property_set(struct txn *txn, uint32_t volume, const char *name, const char *value);
int property_delete(struct txn *txn, uint32_t volume, const char *name);
/* The next property after `name` ("" for the first). */
int property_next(struct txn *txn, uint32_t volume, char *name, size_t name_size, char *value,
	size_t value_size);

/* --- clients of the server ------------------------------------------------------------------- */

#define POOL_CLIENT_MAX 1024 /* bytes of a name */

/* Who may come back, when the server has ended, for what it was granted. */
struct client_row {
	uint64_t epoch; /* in which it was put last */
	bool fresh; /* it was put as a new one: nothing was granted to it since */
	size_t length;
	uint8_t name[POOL_CLIENT_MAX]; /* the client's own choice */
};

/* Each a transaction; it lasts when *lsn is durable. Also in a full pool. -EINVAL: no bytes, or too
 * many. */
int client_put(struct pool *pool, const void *name, size_t length, uint64_t *lsn);
/* The same of one to which nothing is granted before it is put: it is fresh. One that is there
 * stays what it is, of an earlier epoch perhaps. */
int client_put_new(struct pool *pool, const void *name, size_t length, uint64_t *lsn);
/* The same. -ENOENT. */
int client_delete(struct pool *pool, const void *name, size_t length, uint64_t *lsn);
/* In a transaction, or a view of the pool's environment: the one after `row`, in no order of
 * theirs; `length` 0 for the first. -ENOENT: there are no more. */
int client_next(struct txn *txn, struct client_row *row);
/* Those that were not put in this epoch may not come back any more; durable on return. Waits. Also
 * in a full pool. */
int clients_forget_earlier(struct pool *pool);

/* --- requests that were done ----------------------------------------------------------------- */

#define POOL_SESSION 16 /* bytes */

/* A request of a client, by where it came in; its answer may be lost. */
struct pool_done {
	uint8_t session[POOL_SESSION]; /* of no other server, nor of an earlier opening */
	uint32_t slot, sequence;
	uint64_t digest; /* of what it asks for */
};

/* In the transaction that does it: the last one of its slot. Not in a full pool. */
int done_put(struct txn *txn, const struct pool_done *done);
/* Whether it was the last one of its slot, and done in an earlier epoch. */
bool done_before(struct pool *pool, const struct pool_done *done);
/* Nobody asks again for what the session has had done in so many slots; lasts when *lsn is durable.
 * Also in a full pool. */
int done_delete(
	struct pool *pool, const uint8_t session[POOL_SESSION], unsigned slots, uint64_t *lsn);
/* Nobody asks again for what was done in earlier epochs. Also in a full pool. */
int done_forget_earlier(struct pool *pool);

/* --- data ------------------------------------------------------------------------------------ */

/* A run of bytes in a segment; `offset` is in the segment's own linear space. */
struct extent {
	uint64_t segment;
	uint64_t offset;
	uint64_t length;
};

/* Opens a stream of segments for a volume. -EMFILE when stream_limit are open. */
int stream_open(struct pool *pool, uint32_t volume, struct stream **stream);
/* Pads and submits its open row, leaves its segment to be closed. Does not wait. */
void stream_close(struct stream *stream);

enum append_flags {
	APPEND_PACKED =
		1, /* up to a cell's worth into one cell where that fits: whole small files */
	APPEND_RESERVED = 2, /* for the compactor: also from what a full pool keeps for it */
	APPEND_KEPT = 4, /* into what txn_keep() or pool_promise() keeps */
	APPEND_WHOLE = 8, /* of lent memory: ends an open row rather than to go on in the middle */
};

/*
 * Appends bytes; they are copied before it returns. Fills extents[0..*count), *count of them at
 * most on entry (8 is always enough for up to 1 MiB; -E2BIG else), which cover the bytes in order.
 * Not packed, bytes go on right behind the last append, also in the middle of a block. Waits for
 * row memory when that is used up. -ENOSPC before anything is taken.
 */
int stream_append(struct stream *stream, const struct iovec *iov, unsigned iov_count, size_t length,
	unsigned flags, struct extent *extents, unsigned *count);

/*
 * Memory that is lent to appends: a whole row that lies in it, in one piece and aligned to
 * BLOCK_SIZE, is written from there. Until done(), which is called once, from any thread and with
 * any locks held, nobody may change the memory. The lender ends its own part when it has made all
 * the appends.
 */
struct loan {
	_Atomic unsigned users; /* rows, and the lender */
	void (*done)(struct loan *loan); /* the memory is the lender's again */
};
void loan_begin(struct loan *loan, void (*done)(struct loan *loan));
void loan_end(struct loan *loan);
/* stream_append() of lent memory, which is copied as far as it makes up no whole rows. */
int stream_append_lent(struct stream *stream, struct loan *loan, const struct iovec *iov,
	unsigned iov_count, size_t length, unsigned flags, struct extent *extents, unsigned *count);
/* Bytes of data that appends and reads have copied in memory since the pool was opened. */
uint64_t pool_copied(struct pool *pool);
/* Bytes that were appended and will never be referred to. */
void pool_abandon_extents(struct pool *pool, const struct extent *extents, unsigned count);

/*
 * Waits until the rows of these extents are written and flushed, except for the streams' open
 * rows, whose bytes txn_refer() puts into the journal. -EIO when a row is lost. Any thread but an
 * engine's.
 */
int pool_settle(struct pool *pool, const struct extent *extents, unsigned count);
/* Within a transaction: these bytes, appended and settled, are now live. */
int txn_refer(struct txn *txn, const struct extent *extents, unsigned count);
/* Within a transaction: these bytes, live until now, are not needed any more. */
int txn_release(struct txn *txn, const struct extent *extents, unsigned count);

/*
 * The block cache, of verified blocks: how many bytes it may take, with all that describes them; 0:
 * none, as after opening. Any thread, also while reads go on; waits for copies. -ENOMEM: it has the
 * size that it had.
 */
int pool_cache_resize(struct pool *pool, uint64_t bytes);

/*
 * Space that is kept for what a volume will write, which no other data takes: first promised,
 * -ENOSPC when there is not so much beside what is kept already; then, within a transaction, kept
 * for good (`change` bytes more, while the promise lasts, or fewer), as long as the volume is
 * there. The promise is ended by whoever made it, in one piece or several.
 */
int pool_promise(struct pool *pool, uint64_t bytes);
void pool_promise_end(struct pool *pool, uint64_t bytes);
int txn_keep(struct txn *txn, uint32_t volume, int64_t change);
/* In a transaction, or a view of the pool's environment: what is kept for a volume. */
int kept_get(struct txn *txn, uint32_t volume, uint64_t *bytes);
/* Whether an append with these flags would find a segment. */
bool pool_has_room(struct pool *pool, unsigned flags);
/* Bytes that are kept or promised, for all volumes. */
uint64_t pool_kept(struct pool *pool);

/*
 * A read of up to many extents into the caller's memory; all of it belongs to the caller until
 * done(). Straight into `into` where that is aligned and the blocks are whole; otherwise through
 * buffers of the pool. result: 0, -EIO.
 */
struct read_part {
	struct extent extent; /* any bytes, not only as appended */
	void *into; /* NULL: check only */
};
struct pool_read {
	struct read_part *parts;
	unsigned part_count;
	/* Where all `into` point: memory of buffer_alloc(), `memory_size` bytes, or NULL. With it
	 * no device is waited for longer than pool_set_read_hedge() says: other memory may stand
	 * here at done(), with the bytes at the same places, and the pool keeps what was given
	 * until the late answer is there. Without it that holds for reads that go through buffers.
	 */
	void *memory;
	size_t memory_size;
	bool cached; /* may be answered by the block cache, and kept there */
	int result;
	void (*done)(
		struct pool_read *read); /* on an engine thread, or before pool_read() returns */
	void *data;
	/* the pool's own */
	_Atomic unsigned pending;
	_Atomic int failed;
	bool looks, large;
	struct late_memory *late;
	struct moved_parts *moved;
	struct pool *pool;
};
void pool_read(struct pool *pool, struct pool_read *read);
/* The same, waiting, and from devices: for what reads once, or checks. */
int pool_read_wait(struct pool *pool, struct read_part *parts, unsigned part_count);
/* The same of some block that devices have, of another segment each time: to see whether reads are
 * answered. -ENOENT: they have none. Any thread but the engine's; not of a reader, to whom a
 * segment may be gone that he knows. */
int pool_read_sample(struct pool *pool);
/* A read that a device has not answered for so long is rebuilt from the others; 0, as after
 * opening: never. Any thread. */
void pool_set_read_hedge(struct pool *pool, uint64_t nanoseconds);

/* Whether appends wait for memory of rows, or may soon: what is not urgent gives way then. */
bool pool_rows_short(struct pool *pool);

/*
 * For a compactor: segments of one volume that are to be emptied together, so that whole segments
 * are won. A volume that rests is passed over until more is to be won of it than was said.
 */
#define COMPACTION_PLAN_MAX 64u
struct compaction_rest {
	uint32_t volume;
	uint64_t waste; /* bytes */
};
struct compaction_request {
	uint32_t volume; /* 0: any */
	unsigned percent; /* only segments of which less is live */
	const struct compaction_rest *rests;
	unsigned rest_count;
};
struct compaction_plan {
	uint32_t volume;
	uint64_t live, gain; /* bytes to be moved, bytes won by that, at least */
	uint64_t usable; /* devices, a bit each, by which they were counted */
	unsigned count;
	uint64_t segments[COMPACTION_PLAN_MAX]; /* in order */
};
/* -ENOENT: nothing is to be won. */
int pool_plan_compaction(
	struct pool *pool, const struct compaction_request *request, struct compaction_plan *plan);
/* Bytes of data that emptying segments of a volume (0: of all, each by itself) could win. */
int pool_waste(struct pool *pool, uint32_t volume, uint64_t *waste);
/* Bytes of a segment of a sealed volume, from `offset` on, were appended again, at `to`: whole
 * blocks on both sides, to a stream of its volume that nothing else is appended to. */
struct moved_run {
	uint64_t offset;
	struct extent to;
};
/* Runs that a segment may be moved in, at most. */
unsigned pool_remap_most(struct pool *pool);
/*
 * Settles the runs, which are in order, and takes the segment's bytes for moved, all that is live
 * of it, in one transaction: who reads it reads them at their new place from now on. `live`: how
 * many of them extents of the volume name; of a place that earlier moves made, 0. -E2BIG: too many
 * runs; -EBADMSG: not all of it was moved; -ENOSPC: remaps take all that they may; -ENOENT: it is
 * none that could be moved, or not any more. After an error nothing has changed. Waits.
 */
int pool_remap(struct pool *pool, uint64_t segment, uint64_t live, const struct moved_run *runs,
	unsigned count);
/* Calls back with what moved segments have in this one. */
int pool_each_remapped(struct pool *pool, uint64_t segment,
	int (*each)(void *data, uint64_t offset, uint64_t length), void *data);
/* A segment that cannot be emptied is not planned for again before the next opening. False: it is
 * gone, or was moved. */
bool pool_spare_segment(struct pool *pool, uint64_t segment);

/* Free and all data space of the pool in bytes as a user sees it (k'/(k'+m) of what is not kept in
 * reserve). */
void pool_space(struct pool *pool, uint64_t *total, uint64_t *free_bytes);
/* Live bytes of one volume. */
uint64_t pool_volume_live(struct pool *pool, uint32_t volume);
/* For checks: calls back with each segment of a volume; `length` is 0 of one that is moved, `live`
 * what extents of the volume name. */
int pool_each_segment(struct pool *pool, uint32_t volume,
	int (*each)(void *data, uint64_t segment, uint64_t length, uint64_t live), void *data);

#endif
