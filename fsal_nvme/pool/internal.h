/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the files of pool/ share. Read in this order: format.h, this page, pool.c (opening and
 * closing), txn.c and env.c (environments), journal.c, segment.c (the segment table and slots),
 * stream.c (writing), read.c (reading), checkpoint.c, checkpoint_room.c, chore.c, maintain.c.
 *
 * Threads. Callers' threads run transactions, appends and reads; engine threads run completions,
 * which never wait; one maintenance thread runs pool_maintain(), one beats. In a simulated world
 * there is one thread and all waiting goes through event_wait().
 *
 * Locks, in the order in which they may be taken: a volume environment's write transaction, the
 * pool environment's write transaction (which also guards slots, segment states and rows),
 * pool->table_lock, stream->lock, segment->lock, journal->lock, pool->slots_lock; pool->chores_lock
 * may be taken under all of them, pool->label_lock under all but journal->lock and those behind it.
 * None of these is held over I/O. Before all of them come those that make one piece of work wait
 * for another, which are held over all that it does: pool->maintain_lock, pool->drop_lock, then
 * journal->arrange_lock or pool->label_turn; a reader has follow->turn alone.
 */
#ifndef MILLRACE_POOL_INTERNAL_H
#define MILLRACE_POOL_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "common/log.h"
#include "pool/format.h"
#include "pool/pool.h"

/* --- keys of the pool's environment ------------------------------------------------------------
 */
enum {
	KEY_SEGMENT = 'S', /* be64 id -> segment_row */
	KEY_SUMS =
		'R', /* be64 segment, be32 row -> (k+m) * blocks le32 checksums, chunk by chunk */
	KEY_TAIL =
		'T', /* be64 segment, be32 row, be32 offset in the row -> bytes of the open row */
	KEY_VOLUME = 'V', /* be32 id -> volume_row */
	KEY_NAME = 'N', /* name -> be32 id */
	KEY_PROPERTY = 'P', /* be32 volume, name -> text */
	KEY_IMAGE = 'X', /* be32 volume, be32 part -> image_row; 0 is the full image, 1 and up the
			    deltas since */
	KEY_CLIENT = 'O', /* two be64 hashes of its name -> client_row (client.c) */
	KEY_DONE = 'D', /* two be64 hashes of session and slot -> done_row (done.c) */
	KEY_COUNTER = 'C', /* name -> le64: "volume", "export" */
	KEY_KEPT = 'K', /* be32 volume -> le64 bytes that are kept for it; no row: none */
	KEY_REMAP = 'M', /* be64 moved segment, be64 offset -> length, segment, offset (remap.h) */
	KEY_PIN = 'Q', /* kept for pins: be32 image's volume, be64 segment -> le64 bytes */
};

/* --- devices ------------------------------------------------------------------------------------
 */

/* What is done by itself and came to nothing: a member that was taken back and lost again, a
 * resilver that made none whole (attach.c). Whose turn pool->resilvering is. */
struct attempt {
	bool made; /* and nobody has looked since at what came of it */
	uint64_t pause, until; /* ns, doubled each time; engine_clock() */
};
/* Whether it is to wait, and error says for how long. `made` is taken for in vain. */
bool attempt_waits(struct pool *pool, struct attempt *attempt, const char *object, const char *why,
	struct error *error);

/* One member of the pool; pool->devices[id], for all ids < pool->device_count. */
struct member {
	struct device *_Atomic device; /* NULL when it is missing; another once it is back */
	_Atomic int state; /* enum device_state; ACTIVE is the only one that is read or written */
	/* Active, but not whole (attach.c): it may lack what segments of smaller ids have there. 0:
	 * it is whole. */
	_Atomic uint64_t suspect_before;
	_Atomic bool failing; /* a write or flush failed: pool_drop_failing() drops it */
	struct device_header header;
	struct label_device label;
	char path[256];
	uint64_t slots_offset;
	/* Under pool->slots_lock. Used are those that nobody may have; resting ones are not. */
	uint32_t slot_count, slots_used, slots_resting;
	uint8_t *slot_map; /* one byte a slot, enum slot_use */
	_Atomic uint64_t written, flushed; /* writes done; writes done when the last flush began */
	_Atomic uint64_t looked; /* engine_clock() when the last look at the label of a later owner
				    began that showed none; 0: never */
	_Atomic uint64_t read_errors, write_errors, checksum_errors, repaired, late_reads;
	_Atomic unsigned stalled; /* answers that it owes and that are late (hedge.h) */
	_Atomic unsigned glances; /* reads of its labels that are under way (follow_label.c) */
	struct attempt returned;
};

static inline bool member_usable(const struct member *member)
{
	return atomic_load(&member->state) == DEVICE_ACTIVE;
}
/* What that segment has on it may not be there. */
static inline bool member_lacks(const struct member *member, uint64_t segment)
{
	return !member_usable(member) || segment < atomic_load(&member->suspect_before);
}

/*
 * To be called, from any thread, when a write or flush of a member failed: it is not used for new
 * segments from now on, and wakes maintenance. pool_drop_failing() makes it durable.
 */
void member_failed(struct pool *pool, struct member *member, int error);
/* Calls it for each member that is not there any more. */
void members_find_vanished(struct pool *pool);
/*
 * Writes labels without the failing members, ends their streams and moves the journal off them.
 * What they owed counts as written when this returns 0. Waits; any thread but an engine's; does
 * nothing when none is failing. -EIO: more than parity fail at once, -EROFS: fewer than parity + 1
 * would be left; no label says that they are lost, and the pool has failed. (device.c)
 */
int pool_drop_failing(struct pool *pool);
/*
 * Flushes every member that has unflushed writes (members: a bit set by id), several at once.
 * Waits. A member that fails is dropped. (device.c)
 */
int pool_flush(struct pool *pool, uint64_t members);
/* What may be lost at once (loss.c). Sets of members are bits. */
/* All that labels call active, missing ones as well. */
uint64_t members_active(const struct pool *pool);
/* Whether these of the active members may be lost at once: then what is left goes on without them.
 * What is written to all but losses has been seen by those that may not. */
bool losses_allowed(const struct pool *pool, uint64_t active, uint64_t lost);
/* The most that may be. */
unsigned losses_most(const struct pool *pool);
/* Labels say that it is active and not whole. (attach.c) */
static inline bool label_device_suspect(const struct label_device *d)
{
	return d->state == DEVICE_ACTIVE && d->dropped_lsn;
}
/* An opening of this epoch goes on with what is not whole. (attach.c) */
void members_suspect(struct pool *pool, uint64_t before);
/* -EBUSY while an earlier owner may wake up, and says whose death would help. (attach.c) */
int refuse_for_others(struct pool *pool, struct error *error);
/* A device that was dropped is away; its handle stays until the pool is closed. (attach.c) */
void retired_close(struct pool *pool);
/* All streams go on in new segments. (device.c) */
void members_end_streams(struct pool *pool);
/* The pool stops serving: all waiters are told `error`. Any thread. */
void pool_fail(struct pool *pool, int error, const char *why);

/* --- segments (segment.c)
 * -------------------------------------------------------------------------- */

/* A row of a segment that is in memory: being filled, being written, or kept as an open tail. */
struct row {
	struct segment *segment;
	uint32_t index;
	uint8_t *memory; /* k data cells, one behind the other: buffer_alloc(), or lent */
	uint8_t *parity; /* m cells */
	struct loan *loan; /* whose memory the data cells are; NULL: the row's own */
	uint32_t fill; /* stream->lock: bytes of the data cells handed out (linear streams) */
	uint32_t *cell_fill; /* k: bytes handed out in each cell; (data + parity) entries */
	_Atomic uint32_t copying; /* appends still copying into it, plus 1 while it is open */
	_Atomic int state; /* enum row_state */
	_Atomic unsigned pending; /* chunk writes not done */
	_Atomic unsigned lost; /* chunk writes that failed */
	_Atomic unsigned references; /* segment->rows holds one, reads copying from it one each */
	struct io *ios;
	struct row *next; /* waiters' lists */
};
enum row_state { ROW_FILLING, ROW_WRITING, ROW_WRITTEN, ROW_LOST };

struct segment {
	uint64_t id;
	struct segment_row
		row; /* table: under the pool environment's write transaction; `chunks`,
			`data`, `parity`, `cell`, `matrix` never change while it has users */
	struct layout layout;
	_Atomic unsigned references; /* the table holds one */
	_Atomic uint64_t unreferred; /* bytes appended, neither referred nor abandoned */
	pthread_mutex_t lock; /* rows[], sums, written counts */
	/* Of an open one, NULL when it is closed (segment_open_arrays()): */
	struct row **rows; /* layout.rows; NULL where the row is not in memory */
	uint32_t *sums; /* (k + m) * blocks a row, chunk by chunk */
	uint8_t *row_done; /* 1 when that row is on its devices */
	uint32_t rows_written; /* rows [0, rows_written) are written */
	uint32_t rows_flushed; /* ... and flushed */
	uint32_t rows_recorded; /* ... and their checksums in a committed transaction */
	bool filled; /* no more appends: to be closed by maintenance once all rows are written */
	bool stuck; /* lock: it cannot be closed, as bytes of it were lost */
	bool spared; /* lock: it cannot be emptied (compact.c) */
	struct remap *remap; /* of a moved one, NULL of others; constant while it is in the table */
	LIST_ENTRY(segment) moved; /* table_lock: in pool->moved, with `remap` alone */
	atomic_bool place; /* remaps name it, or will, and nothing else does */
	atomic_bool frozen; /* an earlier epoch's, open when it ended, and not closed since */
	bool named; /* of an image: found by an opening to be one that counts (recover.c) */
	struct stream *stream; /* that fills it, or NULL */
	bool freed; /* its slots go back to the maps with the last reference (reads, repairs) */
	bool rests; /* ... when readers have had time to see it; with freed_lsn */
	uint64_t freed_lsn;
	uint64_t since; /* slots_lock: engine_clock() when it was freed, or named by no root any
			   more */
	bool named_by_root; /* slots_lock */
	TAILQ_ENTRY(segment) rest; /* slots_lock: in pool->resting, when it has no references */
	struct pool *pool;
	struct segment *hash_next;
	bool listed; /* pool->chores_lock: in pool->chores, which then holds a reference */
	TAILQ_ENTRY(segment) chore;
};

/* Nobody refers to a byte of it, or will. Final under the pool environment's write lock. */
static inline bool segment_unused(const struct segment *s)
{
	return !s->row.live && !atomic_load(&s->unreferred);
}

static inline void segment_ref(struct segment *segment)
{
	atomic_fetch_add(&segment->references, 1);
}
/* The segment with a reference, or NULL. */
struct segment *segment_get(struct pool *pool, uint64_t id);
void segment_put(struct segment *segment);
/* Of one without references. */
void segment_destroy(struct segment *segment);
/* A new in-memory segment from its table row, in the table with one reference for the table and
 * one for the caller. */
int segment_insert(struct pool *pool, const struct segment_row *row, struct segment **segment);
void segment_remove(struct pool *pool, struct segment *segment);
/* A moved one that is not in the table: a reference for that, and one for the caller. NULL: no
 * memory; else it has `remap`, and frees it. */
struct segment *segment_prepare(
	struct pool *pool, const struct segment_row *row, struct remap *remap);
/* Takes the place of another one of the same id, which is freed as segment_free() does it, by what
 * became record `lsn`. */
void segment_replace(struct segment *old, struct segment *fresh, uint64_t lsn);
/* Gives a moved one its runs, while the table is loaded. */
void segment_set_remap(struct segment *segment, struct remap *remap);
/* The row of the first segment whose id is not less. -ENOENT: there is none. */
int segment_row_next(struct pool *pool, struct txn *view, uint64_t id, struct segment_row *row);
/* Bytes of a row's checksums. */
static inline uint32_t segment_row_sums(const struct segment *s)
{
	return (s->layout.data + s->layout.parity) * s->layout.blocks;
}
static inline uint64_t segment_row_bytes(const struct segment *s)
{
	return (uint64_t)s->layout.data * s->layout.cell;
}
/* Bytes from the start of the device to block `block` of the cells of chunk `chunk`. */
uint64_t segment_block_offset(
	struct pool *pool, const struct segment *s, unsigned chunk, uint64_t block);
/* ... and to page `page` (of chunk `of`) as stored in chunk `chunk`; and to its header. */
uint64_t segment_page_offset(
	struct pool *pool, const struct segment *s, unsigned chunk, unsigned of, uint32_t page);
uint64_t segment_header_offset(struct pool *pool, const struct segment *s, unsigned chunk);
struct member *segment_member(struct pool *pool, const struct segment *s, unsigned chunk);

/*
 * Takes a reserved segment for `purpose` from the stock, or reserves one in a transaction of its
 * own and waits until that is durable. For data -ENOSPC when only the reserve is left. The caller
 * gets a reference; row.volume and purpose are set in memory and recorded by the first txn_refer()
 * or by closing it. Waits; not under a transaction.
 */
int segment_take(struct pool *pool, uint32_t volume, enum segment_purpose purpose, unsigned flags,
	struct segment **segment);
/* How many segments are left for appends of this kind (enum append_flags) beside what they leave
 * alone; less than none when that was touched. */
int64_t segments_left(struct pool *pool, enum segment_purpose purpose, unsigned flags);
/* Segments that data leaves alone: for the next checkpoint, and for the compactor. */
uint64_t segment_reserve(struct pool *pool);
/* Segments that the compactor may take now. */
uint64_t segment_compaction_room(struct pool *pool);
/* The pool environment's write lock guards a segment's state, rows, live bytes and `freed`, and
 * next_segment. A transaction that was begun without a volume holds it; others take it so. */
int txn_own_pool(struct txn *txn);
/* Within a transaction that owns the pool's environment: puts the row as it is in memory into the
 * table. The segment is not `freed`. */
int segment_record(struct txn *txn, struct segment *segment);
/* Likewise: nothing refers to it any more, but its slots stay taken. */
int segment_forget_live(struct txn *txn, struct segment *segment);
/* Frees a segment if it is unused still, in as many transactions as its keys need. It is filled,
 * closed, or an earlier epoch's. Waits. (close.c) */
int segment_give_up(struct pool *pool, struct segment *segment);
/* Whether it is a sealed volume's, so that readers may know its slots. Within a transaction that
 * owns the pool's environment. */
bool segment_is_shown(struct txn *txn, const struct segment *segment);
/* Likewise: gives its slots back and forgets it (when the transaction commits). Where an earlier
 * owner may still write, they stay taken until an opening knows that owner to be dead. */
int segment_free(struct txn *txn, struct segment *segment);
/* Those in stock are given up: there are better places now. Waits. */
int segment_discard_stock(struct pool *pool);
/* Fills the stock up to its size. Waits. From maintenance, and at opening. */
int segment_restock(struct pool *pool);
/* A copy of the row as it is now, for whoever does not hold the pool environment's write lock. */
void segment_look(struct segment *segment, struct segment_row *row);
/* All segments, each with a reference, for walking: *count of them; free() the array. */
int segment_list(struct pool *pool, struct segment ***segments, unsigned *count);

/* --- rows and streams (stream.c), closing (close.c)
 * ------------------------------------------------ */

struct stream {
	struct pool *pool;
	uint32_t volume;
	enum segment_purpose purpose;
	pthread_mutex_t lock; /* position and row */
	struct segment *segment; /* being filled; NULL: taken at the next append */
	struct row *row; /* being filled, or NULL */
	uint32_t next_row;
	struct stream *next; /* pool->streams, under table_lock */
};
int stream_open_purpose(
	struct pool *pool, uint32_t volume, enum segment_purpose purpose, struct stream **stream);
/* Ends the stream's segment at its last row (padding the open one): a device was dropped, or the
 * stream is closed. Does not wait. */
void stream_end_segment(struct stream *stream);
/*
 * Closes a segment that is `filled`: waits for its rows, writes headers and pages to the live
 * chunks, flushes, and records it as closed (dropping KEY_SUMS and KEY_TAIL). A frozen one whose
 * owner is dead: writes the tail row first. Waits. Not under a transaction. (close.c)
 */
int segment_close(struct pool *pool, struct segment *segment);
/* The same for many of an image, which are `filled` and have nothing in the pool's environment yet:
 * flushed together, in few records. */
int segments_close(struct pool *pool, struct segment **list, unsigned count);
/* After opening: rows_recorded, sums and tail row of an open segment from the pool's environment.
 */
int segment_load_open(struct pool *pool, struct txn *view, struct segment *segment);
/* Frees the row's memory when the last reference goes. */
void row_put(struct row *row);

/* --- erasure.c -----------------------------------------------------------------------------------
 */

/* A code: k data and m parity chunks, and how the parity is computed (enum coding_matrix). */
struct code_id {
	unsigned k, m, matrix;
};
static inline struct code_id segment_code(const struct segment *s)
{
	return (struct code_id){s->layout.data, s->layout.parity, s->row.matrix};
}
/*
 * Parity of `length` bytes: data[k] -> parity[m], all at multiples of 32 bytes (ISA-L's raid.h).
 * -EINVAL: there is no such code; -ENOMEM. Its tables are made by the first call, which may be one
 * for 0 bytes, and kept.
 */
int erasure_encode(
	struct pool *pool, struct code_id id, size_t length, uint8_t **data, uint8_t **parity);
/*
 * Rebuilds `wanted[wanted_count]` chunks (indexes 0..k+m) of `length` bytes into out[] from the k
 * chunks `have[k]` (indexes) with bytes in[]; all at multiples of 32 bytes.
 */
int erasure_rebuild(struct pool *pool, struct code_id id, size_t length, const uint8_t *have,
	uint8_t **in, const uint8_t *wanted, unsigned wanted_count, uint8_t **out);

/* --- read.c, pages.c, check.c
 * --------------------------------------------------------------------- */

/* Bounded cache of checksum pages of closed segments. */
struct page_cache;
int page_cache_create(struct pool *pool, size_t bytes);
void page_cache_destroy(struct pool *pool);
/* Nothing that was read is mended any more; waits for the repairs that are on their way. Nobody
 * reads. */
void page_cache_end_repairs(struct pool *pool);
void page_cache_forget(struct pool *pool, uint64_t segment);

/* --- block_cache.h ----------------------------------------------------------------------- */

/* Blocks of files: pool->cache, without memory until pool_cache_resize(). */
struct block_cache;
int block_cache_create(struct pool *pool);
/* Nobody reads. */
void block_cache_destroy(struct pool *pool);
void block_cache_status(struct block_cache *cache, struct pool_status *status);

/* --- environments (env.c), transactions (txn.c), images (image.c) --------------------------------
 */

struct env; /* env.c */

/* Makes the pool environment (volume 0), empty, or from an image (the root). */
int env_create(struct pool *pool, uint32_t volume, const struct image *image, struct env **env);
void env_destroy(struct env *env); /* no users */
uint32_t env_volume(const struct env *env);
uint64_t env_applied(const struct env *env); /* LSN of the last transaction in it */
/* Where replay must start for this env; false when its image is up to date. */
bool env_replay_from(const struct env *env, struct journal_position *position);
/* Its newest image is this full one, or has this delta as its last part. */
void env_set_image(
	struct env *env, const struct image_row *part, const struct journal_position *from);
struct pool *txn_pool(const struct txn *txn);
/* Recorded kinds other than changes of environments. */
enum record_kind { RECORD_CHANGES = 1, RECORD_WINDOW = 2, RECORD_EPOCH = 3 };

/*
 * Writes the next part of `env`'s image through a stream of PURPOSE_IMAGE and closes its segments:
 * a delta since the last part, if that is known and takes at most `delta_most` bytes, else a full
 * image. Fills `part`, and `from` with the place from which replay continues after it. The caller
 * records it. Waits. (image.c)
 */
int image_write(struct pool *pool, struct env *env, uint64_t delta_most, struct image_row *part,
	struct journal_position *from);
/* Loads an image into an empty environment, checking all of it. Waits. (image_read.c) */
int image_load(struct pool *pool, struct env *env, const struct image *image);
/* Calls back for each segment of a part, in order, until one is missing; the first error. */
int image_each(struct pool *pool, const struct image_row *part,
	int (*each)(void *data, struct segment *segment), void *data);
/* How many segments a part has, and all deltas of an image. */
uint64_t image_part_segments(struct pool *pool, const struct image_row *part);
uint64_t image_delta_segments(struct pool *pool, const struct image *image);
/* Nothing names it, or will: maintenance frees its segments. */
void image_forget(struct pool *pool, const struct image_row *part);
/* The same for a whole image, at once as far as that can be. Waits; not under a transaction. */
void image_free(struct pool *pool, const struct image *image);

/* --- space that is kept (keep.c) -----------------------------------------------------------------
 */

#define PROMISE_MAX ((uint64_t)1 << 56) /* bytes; no pool has as many */
/* Segments that data without a claim to them leaves alone. */
uint64_t kept_segments(struct pool *pool);
/* Within a transaction: the volume goes. */
int kept_forget(struct txn *txn, uint32_t volume);
/* After replay: the sums. */
int recover_kept(struct pool *pool);

/* --- checkpoint_room.c, space.c, status.c --------------------------------------------------- */

/* Measures what the next checkpoint needs: image_segments, image_room. With maintain_lock, or
 * before there are other threads. */
void checkpoint_measure(struct pool *pool);
/* A volume without an image was made or loaded: one more is expected before it is measured again.
 */
void checkpoint_expect(struct pool *pool);
/* Bytes that a delta of a volume may take; 0: its image has to be a full one. With maintain_lock.
 */
uint64_t checkpoint_delta_room(struct pool *pool, struct env *env);
/* Of file data that a new segment takes, with the devices that are in use now. (space.c) */
uint64_t pool_segment_bytes(struct pool *pool);
/* ... and that one with so many data chunks takes. */
uint64_t segment_capacity(const struct pool *pool, unsigned data);
/* The chunks of a new segment that are not parity; 0: there can be none. */
unsigned pool_new_data(struct pool *pool);
void pool_use(struct pool *pool, struct pool_use *use);

/* --- journal.c
 * ------------------------------------------------------------------------------------ */

struct journal;
int journal_create(struct pool *pool);
/* It fails, and nothing of it is on its way any more, but in a world that stands still (-EDEADLK).
 */
int journal_stop(struct pool *pool);
void journal_destroy(struct pool *pool);
/*
 * Reads batches from `from` on, over the spans of pool->label, and calls `record` for each record
 * in order of LSN; follows the chain of hashes from the best copy of each batch, stops at a gap in
 * the last span. *end: where the next batch would stand. A gap in an earlier span: -EIO. `window`:
 * the last span's window as extended by its RECORD_WINDOWs. Waits.
 */
int journal_replay(struct pool *pool, const struct journal_position *from,
	int (*record)(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length),
	struct journal_position *end, uint64_t *window);
/*
 * Between replay and the label that takes over: the span of pool->epoch, and what other owners may
 * write to, into pool->label. `start` and `window` as replayed; moves `start` to where the epoch
 * begins. -EBUSY when other owners leave too little room, -ENOSPC when the ring or the label is
 * full.
 */
int journal_begin_span(struct pool *pool, struct journal_position *start, uint64_t window);
/* Forgets spans that no replay needs any more. */
void journal_prune_spans(struct label *label);
/* Begins to write at `start`; the ring is in use from `tail` on; nothing at or behind `window` may
 * be written before a RECORD_WINDOW that moves it is durable. */
int journal_start(
	struct pool *pool, const struct journal_position *start, uint64_t tail, uint64_t window);
/* Waits until a record of `bytes` fits into the ring; -ENOSPC in a simulated world after one
 * pool_checkpoint() did not help. `urgent` may use the room kept for checkpoints and drops: whoever
 * makes room is, and must not wait for it (txn_urgent_begin()). */
int journal_reserve(struct pool *pool, size_t bytes, bool urgent);
/* Gives back what journal_reserve() took, after the append or instead of it. */
void journal_unreserve(struct pool *pool, size_t bytes);
/* Appends a record (kind byte + payload); never waits, never fails for space after a reserve. */
uint64_t journal_append(
	struct pool *pool, enum record_kind kind, const void *payload, size_t length);
/* The place behind which nothing is durable yet (a batch's boundary at or before the next LSN). */
void journal_durable_position(struct pool *pool, struct journal_position *position);
uint64_t journal_lsn(struct pool *pool); /* the last one given out */
uint64_t journal_durable_lsn(struct pool *pool);
uint64_t journal_window(struct pool *pool);
uint64_t journal_used(struct pool *pool); /* bytes of ring behind the tail */
size_t journal_record_max(struct pool *pool); /* bytes of payload */
bool journal_wants_checkpoint(struct pool *pool); /* half full */
/* The checkpoint could not be made: those who wait for room in the ring get -ENOSPC. */
void journal_refuse(struct pool *pool);
/* A durable root does not need what stands before `position` any more. */
void journal_trim(struct pool *pool, uint64_t position);
/* Chooses new devices in place of dropped ones and copies what the ring holds to them. Waits. */
int journal_rearrange(struct pool *pool);
/* The same for better ones, where there are; where that fails those that hold it go on. Waits. */
void journal_spread(struct pool *pool);
/* Wakes all waiters with an error. */
void journal_fail(struct pool *pool, int error);

/* --- the beat (beat.c) -------------------------------------------------------------------- */

/*
 * An owner acknowledges what is durable while its looks for a later owner, one a second, are less
 * than LEASE_NS old, and otherwise looks again first. One that takes over from an owner not known
 * to be dead waits for LEASE_WAIT_NS between its claim and its replay, which so finds all that is
 * acknowledged by an owner that has not seen the claim. Clients wait as long behind a death; the
 * second between the two is for what an owner does from asking for the time to acknowledging.
 */
#define LEASE_NS (1500ull * 1000 * 1000)
#define LEASE_WAIT_NS (2500ull * 1000 * 1000)

struct beats;
/* From the claim on; with options.background a thread beats. */
int beat_start(struct pool *pool);
/* Waits for what is on its way. Nothing when it was not started. */
void beat_stop(struct pool *pool);
/* Looks for a later owner and writes the next beat, on all members, once they are done with what is
 * still going on there. Does not wait. A member that fails is marked failing; a later owner makes
 * the pool fail with -ESTALE. Where no thread beats. */
void beat_round(struct pool *pool);

/* pool_look(), waiting. */
int beat_still_ours(struct pool *pool);

/* --- members (device.c) ------------------------------------------------------------------- */

/* Requests to several members at once, waited for; results in ios[i].result. */
void members_run(struct pool *pool, struct io *ios, unsigned count);
/* A bit each: those that are written to, and those of them that are about to be dropped. */
uint64_t members_usable(const struct pool *pool);
uint64_t members_failing(const struct pool *pool);
unsigned members_usable_count(const struct pool *pool);

/* --- slots that readers may still look at (rest.c) -------------------------------------------- */

enum slot_use {
	SLOT_FREE,
	SLOT_TAKEN,
	SLOT_NAMED, /* left, but the root on the devices names it: nobody's */
	SLOT_RESTING, /* no root names it, a reader may: taken last */
	SLOT_FOUND, /* named by the root that an opening found */
};
/* The last reference to a freed segment of a sealed volume has gone; `segment` stays listed until
 * its slots are free. Any thread. */
void rest_begin(struct pool *pool, struct segment *segment);
/* Slots that have rested long enough, or that the root does not name any more, become what they are
 * then. */
void rest_round(struct pool *pool);
/* All devices have a root of this LSN. */
void rest_rooted(struct pool *pool, uint64_t lsn);
/* Whether a root is to be written for the sake of slots. */
bool rest_wants_root(struct pool *pool);
/* While a pool is opened, between its root and the replay: what sealed volumes have there. */
int rest_find(struct pool *pool);
void rest_destroy(struct pool *pool);

/* --- placement (place.c) ------------------------------------------------------------------ */

/* How many chunks a segment has that is new when these members are usable; parity or fewer, and
 * there is none. */
unsigned place_width(const struct pool *pool, uint64_t members);
/* The fewest that it may be once a loss that is allowed has left so many of these. */
unsigned place_width_left(const struct pool *pool, uint64_t members, unsigned left);
/* ... and with those that have a free slot. */
unsigned place_width_free(struct pool *pool);
/* Chooses devices and slots for a new segment and takes them: fills data, parity, chunks.
 * -ENOSPC: no parity + 1 devices with a free slot. The segment is nobody's, until place_owned(). */
int place_segment(struct pool *pool, struct segment_row *row);
/* Gives the slots of a row back, or takes them while the table is loaded (-EBADMSG: taken). */
void place_release(struct pool *pool, const struct segment_row *row);
int place_take(struct pool *pool, const struct segment_row *row);
/* How many more segments fit. */
uint64_t place_capacity(struct pool *pool);
/* A segment is somebody's from now on, or is being given up; or it is nobody's again. */
void place_owned(struct pool *pool, bool image);
void place_unowned(struct pool *pool);
/* What can be had at this moment: more segments that fit, and those that are nobody's, whether they
 * are in the stock, still being recorded, or on their way to who asked for them. */
struct place_left {
	uint64_t segments; /* in all */
	uint64_t unowned; /* of them */
	uint64_t image_taken; /* by the checkpoint under way: not among them */
};
struct place_left place_left(struct pool *pool);
/* True when any one domain may die without loss. */
bool place_domain_may_die(struct pool *pool);

/* --- readers (follow.h) ---------------------------------------------------------------------- */

/* One takes the place of another one of the same id, whose slots are another's to give; either may
 * be NULL. `fresh` is segment_prepare()'s. */
int segment_exchange(struct pool *pool, struct segment *old, struct segment *fresh);
/* For a root's image: its segments, in the table until they are removed. */
int root_segments_insert(struct pool *pool);
void root_segments_remove(struct pool *pool);

/* --- after a crash (recover.c), in the background (maintain.c) ------------------------------- */

/* After replay: fills the segment table from the pool's environment and takes the slots. */
int recover_table(struct pool *pool);
/* Once the label has this epoch's span, and when owners have left it: up to which epoch owners may
 * still write. */
void recover_note_owners(struct pool *pool);
/* After the journal has started: frees what dead owners left, keeps what living ones may write. */
int recover_segments(struct pool *pool);
/* Whether an earlier owner may still write to the segment. */
bool written_late(struct pool *pool, const struct segment_row *row);
int pool_start_maintenance(struct pool *pool);
void pool_stop_maintenance(struct pool *pool);

/* --- segments that are to be closed or freed (chore.c) --------------------------------------- */

void chores_init(struct pool *pool);
void chores_destroy(struct pool *pool);
/* To be called when something has changed that may make it one of them, and after it. Any thread,
 * under any lock but the segment's and those behind it; does not wait. */
void segment_note_chore(struct segment *segment);
/* It is freed. */
void segment_forget_chore(struct segment *segment);
/* Does what is listed, in order; `closing`: not only what frees. What fails stays listed, and what
 * is behind it. Waits; with maintain_lock, or before there are other threads. */
int chores_do(struct pool *pool, bool closing);
/* The same, and the stock filled. Any thread; waits. */
int maintain_round(struct pool *pool);

/* --- the pool
 * --------------------------------------------------------------------------------------- */

struct pool {
	struct engine *engine;
	struct pool_open_options options; /* paths are not valid after opening */
	char *scratch_dir;
	struct device_header header; /* geometry; of any device */
	struct label label; /* what the next label_write() writes; under label_lock */
	pthread_mutex_t label_lock;
	pthread_mutex_t label_turn; /* one label_write() at a time */
	unsigned k, m; /* as created */
	uint64_t epoch;
	uint32_t next_segment; /* counter of this epoch's segment ids; pool transaction */
	_Atomic int failure;
	bool read_only;

	struct member devices[POOL_DEVICES_MAX];
	unsigned device_count;
	uint8_t domains[POOL_DEVICES_MAX]; /* of members: label_domains() */
	char unreadable[400]; /* as in struct pool_status */

	struct env *env; /* the pool's own */
	struct env *volumes; /* env_registry.c: environments in memory, by volume */
	pthread_mutex_t volumes_lock;

	struct journal *journal;
	struct page_cache *pages;
	struct block_cache *cache;
	struct hedge *hedge;
	struct follow *follow; /* of a reader */
	struct erasure *erasure;

	pthread_rwlock_t table_lock;
	struct segment **table; /* hash by id */
	unsigned table_size, segment_count;
	_Atomic unsigned sampled; /* buckets, by pool_read_sample() */
	LIST_HEAD(, segment) moved; /* under table_lock */
	_Atomic uint64_t remap_runs; /* of all of these */
	_Atomic uint64_t copied; /* bytes of data, but for those out of the block cache */
	struct stream *streams;
	unsigned stream_count; /* of volumes, open */
	/* The last one before this whose owner may still write; 0: none. It only becomes less. */
	_Atomic uint64_t living_epoch;
	struct segment **stock; /* reserved and durable; under table_lock */
	unsigned stock_count, stock_size;
	pthread_mutex_t recording_lock; /* a leaf */
	pthread_cond_t recorded;
	unsigned recording; /* reservations that are on their way; under recording_lock */
	uint64_t unowned; /* segments that are reserved and nobody's; under slots_lock */
	uint32_t reserve_segments; /* at least so many are kept for images and compaction */
	_Atomic uint64_t image_segments; /* as the next checkpoint may need at a time */
	_Atomic uint64_t image_room; /* bytes that a volume's image may take */
	_Atomic uint64_t own_room; /* bytes that the pool's own may take */
	_Atomic uint64_t remap_room; /* ... and remaps may take of it before none is added */
	_Atomic uint64_t image_unit; /* bytes of a segment, as these two are counted in */
	/* pool_maintain(), after a checkpoint that failed: when the next one, how long after, and
	 * with how many free segments it was not possible */
	uint64_t checkpoint_after, checkpoint_pause, checkpoint_left;
	_Atomic uint64_t kept, promised; /* bytes, for volumes; as their rows say, or soon will */
	_Atomic unsigned kept_volumes;
	_Atomic uint64_t image_taken; /* segments, by the checkpoint under way; counted up under
				       * slots_lock */
	struct image_row durable_root; /* as all devices have it; label.root may be a later one;
					  maintain_lock */
	uint64_t largest_image; /* bytes, of those of volumes that may be changed; maintain_lock */
	uint64_t delta_segments; /* of all volumes' images; maintain_lock */
	atomic_bool images_known; /* that is them; made false under the pool environment's write
				     lock, true under both */
	/* written since opening; images: full ones, image_bytes: of both */
	_Atomic uint64_t images, deltas, image_bytes, delta_bytes;

	pthread_mutex_t chores_lock;
	TAILQ_HEAD(, segment) chores; /* to be closed or freed; chores_lock */
	unsigned chore_count; /* ... so many */
	uint64_t chores_seen; /* segments that rounds have looked at; maintain_lock */

	pthread_mutex_t slots_lock; /* slot maps and counts of all members; taken last */
	TAILQ_HEAD(, segment) resting; /* slots_lock */
	unsigned slots_named; /* slots_lock: of all members; that wait for a root */
	uint64_t rooted_at; /* slots_lock: engine_clock() */
	atomic_bool root_wanted; /* readers are to see what has changed */
	uint64_t rooted_lsn; /* slots_lock: of the root that all devices have */
	pthread_mutex_t drop_lock; /* what changes members' states, one at a time */
	/* ... or a device is being attached, or label.others changed: one at a time */
	atomic_bool resilvering;
	struct retired *retired; /* whose turn that is */
	struct attempt resilvered; /* so is this */
	bool resilvered_late; /* an earlier owner may be at it; constant since the opening */

	_Atomic uint64_t row_bytes; /* memory of rows in use */
	pthread_mutex_t row_lock;
	struct row_wait *row_waiters; /* appends that wait for row memory (row.c) */

	/* maintenance */
	pthread_mutex_t maintain_lock; /* one round, or checkpoint, at a time */
	pthread_t maintain_thread;
	pthread_mutex_t wake_lock;
	pthread_cond_t wake;
	bool wanted, stopping;
	atomic_bool thread_running;
	struct beats *beats;
};

static inline void pool_count_copied(struct pool *pool, uint64_t bytes)
{
	atomic_fetch_add_explicit(&pool->copied, bytes, memory_order_relaxed);
}

/* Asks the maintenance thread for a round soon. Any thread. */
void pool_wake_maintenance(struct pool *pool);

#endif
