/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the journal's own files share: journal.c (appending, group commit), journal_wait.c
 * (waiting), journal_ring.c (where batches go and what is free), journal_read.c (following the
 * chain), journal_fence.c (later owners), journal_span.c (where an epoch begins),
 * journal_copy.c (which members hold it, copying, rearranging).
 *
 * A record in a batch is le32 length (of kind and payload), le64 LSN, u8 kind, payload. A
 * RECORD_WINDOW is the batch's own and not one of the log's: its LSN is 0. It says
 *   le64 window   the owner may write up to here once this batch is durable
 *   le64 next     where the batch after this one stands
 * and stands last in its batch. Without one the next batch stands right behind, or at the ring's
 * next start when it does not fit before the ring's end; a reader tries both, the chain decides.
 */
#ifndef MILLRACE_POOL_JOURNAL_H
#define MILLRACE_POOL_JOURNAL_H

#include "pool/internal.h"

#define RECORD_HEAD 13u /* length, LSN, kind */
#define WINDOW_RECORD (RECORD_HEAD + 16u)
#define BATCH_MOST (4u << 20)
#define BATCH_BUFFERS                                                               \
	4u /* one being written, one filling, one to grow into, one for urgent ones \
	    */
#define READ_PIECE (1u << 20)

static inline uint64_t journal_blocks(uint64_t bytes)
{
	return (bytes + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
}

/* The largest batch of a ring. */
static inline size_t journal_batch_max(uint64_t ring)
{
	uint64_t size = ring / 8 / BLOCK_SIZE * BLOCK_SIZE;

	return size < BATCH_MOST ? (size_t)size : BATCH_MOST;
}

/* A batch that is being filled, waits, or is being written; under journal->lock. The memory of the
 * one being written is left alone by everybody but its completion. */
struct batch {
	struct batch *next;
	uint8_t *memory; /* buffer_alloc() */
	size_t fill; /* bytes, header included */
	size_t padded, pad_end; /* zeros from the one to the other, since it was sealed last */
	uint32_t records;
	uint64_t first_lsn, last_lsn; /* last_lsn < first_lsn: none */
	struct durable_wait *waits, **waits_end; /* for its LSNs */
	bool extra; /* not one of the BATCH_BUFFERS: freed after use */
};

/* The members that get a copy of each batch. */
struct copies {
	unsigned count;
	struct member *member[POOL_WIDTH_MAX];
};

/* A part of the ring that an earlier owner, not known to be dead, may still write to. */
struct held_range {
	uint64_t from, to; /* ring offsets, from < to <= ring size */
};

/* Where a batch goes and what it announces. */
struct plan {
	uint64_t position, end;
	uint64_t next; /* of the batch after it */
	uint64_t window; /* in force once it is durable */
	bool announce; /* it needs a RECORD_WINDOW */
};

/* Looking whether a later owner has written labels; one at a time. */
struct fence {
	bool looking; /* under journal->lock; what follows belongs to the one who looks */
	bool unsure; /* the flying batch waits for it */
	uint64_t window; /* what was promised when it began to look */
	struct look_wait wait;
};

enum journal_state {
	JOURNAL_IDLE,
	JOURNAL_WRITING, /* `flying` has copies in flight */
	JOURNAL_UNSURE, /* it is on all its members, but perhaps too late: journal_fence.c looks */
	JOURNAL_PARKED, /* a copy of `flying` failed; journal_rearrange() writes it again */
};

struct journal {
	struct pool *pool;

	/* Set by journal_start(), constant then. */
	bool started;
	uint64_t ring; /* bytes */
	size_t batch_max;
	struct journal_span spans[SPANS_MAX]; /* up to the current one */
	unsigned span_count;
	struct held_range held_ranges[2 * OWNERS_MAX];
	unsigned held_range_count;
	uint64_t held; /* bytes of them */
	/* Of the last span, by journal_replay(): where its last batch begins, and whether all
	 * members said that none stands behind it. */
	uint64_t replayed_last;
	bool replayed_all;

	pthread_mutex_t arrange_lock; /* one journal_rearrange(); before `lock`, held over I/O */

	pthread_mutex_t lock; /* all of the following */
	pthread_cond_t room; /* the ring was trimmed, or the journal failed */
	int failure;
	uint64_t lsn, tail, reserved;
	uint64_t window; /* nothing is written at or behind it */
	uint64_t
		promised; /* the one that durable records name; journal_fence.c makes it `window` */
	struct journal_position durable; /* position: of the next batch */
	struct batch *free; /* preallocated ones without use */
	unsigned free_count;
	struct batch *queue, **queue_end; /* full, oldest first */
	struct batch *filling; /* or NULL */
	enum journal_state state;
	bool stopped; /* journal_rearrange(): nothing new is submitted */
	unsigned waiting; /* reserves that wait for the ring */
	unsigned refusals; /* checkpoints that could not be made */
	bool asked; /* maintenance was told that the ring is half full */
	unsigned completing; /* completions between `lock` and their last look at the journal */
	struct event *idle; /* signalled when nothing is being written, looked at or completed */

	/* Of the batch being written: set under `lock`, constant while it is JOURNAL_WRITING. */
	struct batch *flying;
	struct batch window_only; /* when a batch has to wait for a window; one block */
	struct plan plan;
	uint64_t flying_hash;
	size_t flying_length;
	struct copies copies;
	struct io ios[POOL_WIDTH_MAX];
	_Atomic unsigned pending;
	_Atomic int lost; /* the last error of a copy */

	struct fence fence;
};

/* --- journal.c ------------------------------------------------------------------------------ */

/* Stops submitting and waits until nothing is in flight; -EDEADLK in a world that stands still. */
int journal_hold(struct journal *j);
void journal_go_on(struct journal *j);
/* Held: writes the parked batch to the members in `copies` and waits for it; 0 or its error. */
int journal_write_again(struct journal *j);

/* Under the lock: decides what is sent now; true: the caller does journal_launch() unlocked. */
bool journal_pick(struct journal *j);
void journal_launch(struct journal *j);
/* Under the lock: the flying batch is durable, and the pool ours. Returns its waiters. */
struct durable_wait *journal_flying_is_durable(struct journal *j);
/* The end of a completion, unlocked: its last look at the journal. It began by completing++. */
void journal_completion_over(struct journal *j);

/* --- journal_fence.c -------------------------------------------------------------------------- */

/* Under the lock: whether to look now; true: the caller does journal_fence_look() unlocked. */
bool journal_fence_wanted(struct journal *j);
void journal_fence_look(struct journal *j);

/* --- journal_wait.c: under journal->lock, but journal_call() ------------------------------------
 */

#define JOURNAL_HELP                                                                \
	1 /* to a pool_sync(): a batch is parked, drop the failing members yourself \
	   */

/* Batches that are not durable, in order: flying, queued, filling. NULL at the end. */
struct batch *journal_first(const struct journal *j);
struct batch *journal_next(const struct journal *j, const struct batch *b);
/* The oldest that is not sent. */
struct batch *journal_oldest(const struct journal *j);
/* Takes out `wait`, or any that is a pool_sync() when `wait` is NULL; NULL: there is none. */
struct durable_wait *journal_take_wait(struct journal *j, const struct durable_wait *wait);
void journal_call(struct durable_wait *wait, int status);

/* --- journal_ring.c: under journal->lock or before the start ---------------------------------- */

/* Takes geometry, spans and the other owners' ranges from the pool's header and label. */
void journal_measure(struct journal *j);
/* The ranges of the label's other owners. */
void journal_hold_ranges(struct journal *j);
/*
 * Moves `position` to the first place from there on at which a new epoch may begin. -EBUSY when
 * other owners leave too little of the ring, -ENOSPC when it is full, from `tail`, up to that
 * place.
 */
int journal_find_start(const struct journal *j, uint64_t tail, uint64_t *position);
/* `position`, or the place behind it that a batch of `length` fits in before the ring's end. */
uint64_t journal_fit(const struct journal *j, uint64_t position, uint64_t length);
/* `position`, or the first place behind it at which any batch is clear of held ranges. */
uint64_t journal_clear(const struct journal *j, uint64_t position);
/* A batch of `fill` bytes without RECORD_WINDOW. False: the ring is full. */
bool journal_plan(const struct journal *j, size_t fill, struct plan *plan);
/* A batch of nothing but a window in which one of `fill` bytes fits. False: the ring is full. */
bool journal_plan_window(const struct journal *j, size_t fill, struct plan *plan);
/* What a record of `bytes` takes of the ring at most. */
uint64_t journal_cost(size_t bytes);
/* Whether that much fits, over what is queued and reserved. */
bool journal_has_room(const struct journal *j, uint64_t cost, bool urgent);

/* --- journal_read.c ------------------------------------------------------------------------- */

/*
 * A walk over batches. Each is looked for on all usable members and taken from the first whose copy
 * is the expected one: pool, epoch of the span, position, LSN and hash of the batch before.
 */
struct walk {
	struct pool *pool;
	uint64_t ring;
	const struct journal_span *spans;
	unsigned span_count, span;
	struct journal_position at; /* of the batch expected next */
	bool anchored; /* at.lsn and at.hash are known; otherwise the first batch sets them */
	uint64_t stop; /* ends here, and not before; UINT64_MAX: at the end of the last span */
	uint64_t behind; /* where the batch before ended */
	uint64_t window; /* of the span, as far as it is known; UINT64_MAX: not checked */
	bool silent; /* a member could not be read at the end */

	/* The batch of the last walk_next() that returned 1. */
	const uint8_t *batch;
	struct batch_header header;
	struct journal_position before; /* `at` before it */
	bool any; /* there was one in this span */

	/* What was read last, and from whom. */
	struct member *preferred, *member;
	uint8_t *piece;
	size_t piece_size, length;
	uint64_t position;
};

/* A record in a batch; `payload` begins with the kind. */
struct record {
	uint64_t lsn;
	const uint8_t *payload;
	size_t length;
};

/* From a place that is known, or (position alone) from a batch's boundary. walk_end() in any case.
 */
int walk_begin(struct walk *w, struct pool *pool, const struct journal_span *spans,
	unsigned span_count, const struct journal_position *from, bool anchored);
/* 1: a batch, until the next call; 0: the end; or an error. */
int walk_next(struct walk *w);
void walk_end(struct walk *w);
/* The next record of a batch; false at its end, or when the reader went bad. */
bool record_next(struct reader *r, struct record *record);

/* --- journal_copy.c ------------------------------------------------------------------------- */

/*
 * Chooses parity + 1 members that are usable and not failing, each from the domains that have the
 * fewest so far; among these those of `old` (may be NULL). -EIO: there are not so many.
 */
int journal_choose(struct pool *pool, const struct copies *old, struct copies *copies);
/* Sees to it that all of `copies` hold the batches from w->at up to w->stop. -EAGAIN: a member of
 * `copies` has failed. Waits. */
int journal_copy(struct walk *w, const struct copies *copies);
/* The same for positions from..to, batches' boundaries. */
int journal_copy_ring(struct journal *j, uint64_t from, uint64_t to, const struct copies *copies);

#endif
