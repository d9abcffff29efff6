/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The journal: one log of records per pool, written in batches to parity + 1 members.
 *
 * The happy path. journal_append() gives a record its LSN and puts it into the filling batch; when
 * no batch is in flight it sends that one at once, otherwise the completion of the one in flight
 * sends the next. So there is one batch in flight, records gather while it is, and a batch is
 * durable only after all before it. Its completion calls those who wait for its LSNs, after a look
 * at the labels if the last one was long ago.
 *
 *   filling -> (full: queue) -> flying: WRITING -> (UNSURE: journal_fence.c looks) -> durable
 *                                         |  ^
 *                             a copy fails v  | journal_rearrange() has chosen other members
 *                                         PARKED
 *
 * What can go wrong:
 *  - A copy fails: its member is marked, the batch is parked and nothing later is sent, until
 *    pool_drop_failing() has made the drop durable and journal_rearrange() has brought the ring to
 *    other members and writes the batch again, to all of them.
 *  - The power goes: replay finds whole batches up to some point; all durable ones are among them.
 *  - The ring is full: journal_reserve() waits for a checkpoint. An append never waits: it has its
 *    reservation, and the memory that was set aside; should that be used up it takes more, and if
 *    there is none the journal fails, because a record that others may build upon must not be lost.
 *  - The journal fails: everybody who waits, now or later, is told the error. Nothing becomes
 *    durable any more, even if a batch in flight happens to get through.
 *
 * Files: journal_wait.c (waiting), journal_ring.c (places), journal_fence.c (other owners),
 * journal_read.c (replay), journal_copy.c (members).
 */
#include "pool/journal.h"

#include <assert.h>

/* --- batches: memory and lists ---------------------------------------------------------------- */

static struct batch *batch_new(struct journal *j, bool extra)
{
	struct batch *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->extra = extra;
	b->memory = buffer_alloc(j->pool->engine, j->batch_max);
	if (b->memory)
		return b;
	free(b);
	return NULL;
}

static void batch_free(struct journal *j, struct batch *b)
{
	if (b && b != &j->window_only) {
		buffer_free(j->pool->engine, b->memory, j->batch_max);
		free(b);
	}
}

static void batch_reset(struct batch *b, uint64_t first_lsn)
{
	b->next = NULL;
	b->fill = BATCH_HEADER_SIZE;
	b->records = 0;
	b->first_lsn = first_lsn;
	b->last_lsn = first_lsn - 1;
	b->waits = NULL;
	b->waits_end = &b->waits;
}

static void batch_recycle(struct journal *j, struct batch *b)
{
	if (b == &j->window_only)
		return;
	if (b->extra) {
		batch_free(j, b);
		return;
	}
	b->next = j->free;
	j->free = b;
	j->free_count++;
}

static void batches_free(struct journal *j, struct batch *b)
{
	while (b) {
		struct batch *next = b->next;

		batch_free(j, b);
		b = next;
	}
}

/* The batch that takes a record of `bytes` in all; NULL: no memory. */
static struct batch *batch_for(struct journal *j, size_t bytes)
{
	struct batch *b = j->filling;

	if (b && b->fill + bytes + WINDOW_RECORD <= j->batch_max)
		return b;
	if (b) {
		*j->queue_end = b;
		j->queue_end = &b->next;
		j->filling = NULL;
	}
	b = j->free;
	if (b) {
		j->free = b->next;
		j->free_count--;
	} else {
		b = batch_new(j, true);
	}
	if (b)
		batch_reset(b, j->lsn);
	j->filling = b;
	return b;
}

static void put_record(struct batch *b, size_t room, uint64_t lsn, enum record_kind kind,
	const void *payload, size_t length)
{
	struct writer w = writer_on(b->memory + b->fill, room - b->fill);

	put_u32(&w, (uint32_t)length + 1);
	put_u64(&w, lsn);
	put_u8(&w, (uint8_t)kind);
	put_bytes(&w, payload, length);
	assert(!w.overflow);
	b->fill += RECORD_HEAD + length;
	b->records++;
}

/* --- sending ---------------------------------------------------------------------------------- */

static void take_oldest(struct journal *j, struct batch *b)
{
	if (b == j->filling) {
		j->filling = NULL;
		return;
	}
	j->queue = b->next;
	if (!j->queue)
		j->queue_end = &j->queue;
}

/*
 * A batch that would reach behind the window lets one go first that moves it, or, when that is on
 * its way, waits for journal_fence.c to pick again. On a full ring journal_trim() picks again.
 */
bool journal_pick(struct journal *j)
{
	struct batch *b = journal_oldest(j);

	if (!b || j->state != JOURNAL_IDLE || j->stopped || j->failure)
		return false;
	if (!journal_plan(j, b->fill, &j->plan))
		return false;
	if (j->plan.end <= j->window) {
		take_oldest(j, b);
	} else {
		if (j->promised > j->window || !journal_plan_window(j, b->fill, &j->plan))
			return false;
		b = &j->window_only;
		batch_reset(b, j->durable.lsn);
	}
	assert(b->first_lsn == j->durable.lsn && j->plan.end <= j->window);
	j->flying = b;
	j->state = JOURNAL_WRITING;
	return true;
}

static void put_window(struct journal *j, struct batch *b, size_t room)
{
	uint8_t payload[16];
	struct writer w = writer_on(payload, sizeof(payload));

	put_u64(&w, j->plan.window);
	put_u64(&w, j->plan.next);
	put_record(b, room, 0, RECORD_WINDOW, payload, sizeof(payload));
}

/* Zeros behind its fill, up to `end`; some are there from the batch before in this memory. */
static void pad(struct batch *b, size_t end)
{
	size_t to = b->pad_end == end ? b->padded : end;

	if (b->fill < to)
		memset(b->memory + b->fill, 0, to - b->fill);
	b->padded = b->fill;
	b->pad_end = end;
}

static void seal(struct journal *j)
{
	struct batch *b = j->flying;
	struct batch_header header = {.epoch = j->durable.epoch,
		.position = j->plan.position,
		.lsn = b->first_lsn,
		.previous = j->durable.hash};

	if (j->plan.announce)
		put_window(j, b, b == &j->window_only ? BLOCK_SIZE : j->batch_max);
	j->flying_length = j->plan.end - j->plan.position;
	assert(j->flying_length == journal_blocks(b->fill));
	pad(b, j->flying_length);
	memcpy(header.pool, j->pool->label.pool, sizeof(header.pool));
	header.records = b->records;
	header.length = (uint32_t)b->fill;
	batch_seal(&header, b->memory);
	batch_peek(&header, b->memory);
	j->flying_hash = header.hash;
}

static void copy_done(struct io *io);

static void write_copies(struct journal *j)
{
	struct io *list[POOL_WIDTH_MAX];
	unsigned count = j->copies.count;

	atomic_store(&j->pending, count);
	atomic_store(&j->lost, 0);
	for (unsigned i = 0; i < count; i++) {
		struct member *member = j->copies.member[i];

		io_prepare(&j->ios[i], IO_WRITE, member->device,
			member->header.journal_offset + j->plan.position % j->ring,
			j->flying->memory, j->flying_length);
		j->ios[i].flags = IO_FUA;
		j->ios[i].done = copy_done;
		j->ios[i].data = j;
		list[i] = &j->ios[i];
	}
	io_submit(j->pool->engine, list, count);
}

void journal_launch(struct journal *j)
{
	seal(j);
	write_copies(j);
}

/* --- completions ------------------------------------------------------------------------------ */

static uint64_t used(const struct journal *j)
{
	return (j->state == JOURNAL_IDLE ? j->durable.position : j->plan.next) - j->tail;
}

struct durable_wait *journal_flying_is_durable(struct journal *j)
{
	struct batch *b = j->flying;
	struct durable_wait *waits = b->waits;

	j->flying = NULL;
	j->state = JOURNAL_IDLE;
	if (!j->failure) {
		j->durable.position = j->plan.next;
		j->durable.lsn = b->last_lsn + 1;
		j->durable.hash = j->flying_hash;
		j->promised = j->plan.window;
	}
	batch_recycle(j, b);
	return waits;
}

/* Under the lock: a copy failed. Returns a pool_sync() that has to see to it, if it has to. */
static struct durable_wait *park(struct journal *j, int error)
{
	j->state = JOURNAL_PARKED;
	if (error == -ESHUTDOWN && !j->failure)
		j->failure = error; /* no device is to blame; pool_fail() follows */
	return j->failure ? NULL : journal_take_wait(j, NULL);
}

static bool wants_maintenance(struct journal *j)
{
	bool now = !j->asked && used(j) >= j->ring / 2;

	j->asked |= now;
	return now;
}

static bool is_busy(const struct journal *j)
{
	return j->state == JOURNAL_WRITING || j->fence.looking || j->completing;
}

/* Destroying and rearranging wait for it. */
void journal_completion_over(struct journal *j)
{
	pthread_mutex_lock(&j->lock);
	j->completing--;
	if (j->idle && !is_busy(j)) {
		event_signal(j->idle, 0);
		j->idle = NULL;
	}
	pthread_mutex_unlock(&j->lock);
}

static void copies_done(struct journal *j)
{
	struct durable_wait *durable = NULL, *helper = NULL;
	int lost = atomic_load(&j->lost), failure;
	bool more = false, look = false, wake = false;

	pthread_mutex_lock(&j->lock);
	j->completing++;
	if (lost)
		helper = park(j, lost);
	else if (pool_lease_holds(j->pool))
		durable = journal_flying_is_durable(j);
	else
		j->state = JOURNAL_UNSURE;
	if (!lost) {
		more = journal_pick(j);
		look = journal_fence_wanted(j);
		wake = wants_maintenance(j);
	}
	failure = j->failure;
	pthread_mutex_unlock(&j->lock);
	if (look)
		journal_fence_look(j);
	if (more)
		journal_launch(j);
	journal_call(durable, failure);
	if (helper)
		helper->done(helper, JOURNAL_HELP);
	if (lost == -ESHUTDOWN)
		pool_fail(j->pool, lost, "the devices are gone");
	if (wake)
		pool_wake_maintenance(j->pool);
	journal_completion_over(j);
}

static void copy_done(struct io *io)
{
	struct journal *j = io->data;

	if (io->result) {
		if (io->result == -ESHUTDOWN || !atomic_load(&j->lost))
			atomic_store(&j->lost, io->result);
		member_failed(j->pool, j->copies.member[io - j->ios], io->result);
	}
	if (atomic_fetch_sub(&j->pending, 1) == 1)
		copies_done(j);
}

/* --- holding, for journal_copy.c -------------------------------------------------------------- */

/* Under the lock, which it gives up meanwhile: waits until nothing is in flight. */
static int wait_idle(struct journal *j)
{
	struct event event;
	int rc = 0;

	event_init(&event, j->pool->engine);
	if (is_busy(j)) {
		j->idle = &event;
		pthread_mutex_unlock(&j->lock);
		rc = event_wait(&event);
		pthread_mutex_lock(&j->lock);
		j->idle = NULL;
	}
	return rc;
}

int journal_hold(struct journal *j)
{
	int rc;

	pthread_mutex_lock(&j->lock);
	j->stopped = true;
	rc = wait_idle(j);
	pthread_mutex_unlock(&j->lock);
	return rc;
}

void journal_go_on(struct journal *j)
{
	bool more;

	pthread_mutex_lock(&j->lock);
	j->stopped = false;
	more = journal_pick(j);
	pthread_mutex_unlock(&j->lock);
	if (more)
		journal_launch(j);
}

int journal_write_again(struct journal *j)
{
	struct event event;
	int rc;

	event_init(&event, j->pool->engine);
	pthread_mutex_lock(&j->lock);
	assert(j->state == JOURNAL_PARKED && j->stopped);
	rc = j->failure;
	if (!rc) {
		j->state = JOURNAL_WRITING;
		j->idle = &event;
	}
	pthread_mutex_unlock(&j->lock);
	if (rc)
		return rc;
	write_copies(j);
	rc = event_wait(&event);
	pthread_mutex_lock(&j->lock);
	j->idle = NULL;
	if (!rc && j->state != JOURNAL_IDLE)
		rc = j->failure ? j->failure : -EAGAIN;
	pthread_mutex_unlock(&j->lock);
	return rc;
}

/* --- room ------------------------------------------------------------------------------------- */

static bool nobody_maintains(const struct pool *pool)
{
	return engine_is_simulated(pool->engine) || !atomic_load(&pool->thread_running);
}

/* Without a maintenance thread: what is queued is written and a checkpoint made, once. */
static int make_room(struct pool *pool, bool *tried)
{
	int rc;

	if (*tried)
		return -ENOSPC;
	*tried = true;
	rc = pool_sync(pool, journal_lsn(pool));
	return rc ? rc : pool_checkpoint(pool);
}

/* The ring is full. 0: try again. -ENOSPC: a checkpoint that began meanwhile could not be made. */
static int wait_for_ring(struct journal *j, uint64_t cost, bool *tried)
{
	unsigned refusals;
	bool room;

	if (nobody_maintains(j->pool))
		return make_room(j->pool, tried);
	pthread_mutex_lock(&j->lock);
	j->waiting++;
	refusals = j->refusals;
	pthread_mutex_unlock(&j->lock);
	pool_wake_maintenance(j->pool);
	pthread_mutex_lock(&j->lock);
	while (!(room = j->failure || journal_has_room(j, cost, false)) &&
		j->refusals - refusals < 2)
		pthread_cond_wait(&j->room, &j->lock);
	j->waiting--;
	pthread_mutex_unlock(&j->lock);
	return room ? 0 : -ENOSPC;
}

void journal_refuse(struct pool *pool)
{
	struct journal *j = pool->journal;

	pthread_mutex_lock(&j->lock);
	j->refusals++;
	pthread_cond_broadcast(&j->room);
	pthread_mutex_unlock(&j->lock);
}

/* Under the lock: whether the record should wait until a batch is done, so that batches do not pile
 * up; *lsn: for which. Urgent ones may be what that batch waits for, and never do. */
static bool is_crowded(const struct journal *j, uint64_t cost, uint64_t *lsn)
{
	if (j->free_count >= 2 || !j->flying ||
		(j->filling && j->filling->fill + cost <= j->batch_max))
		return false;
	*lsn = j->flying == &j->window_only ? journal_oldest(j)->last_lsn : j->flying->last_lsn;
	return true;
}

int journal_reserve(struct pool *pool, size_t bytes, bool urgent)
{
	struct journal *j = pool->journal;
	uint64_t cost = journal_cost(bytes), lsn = 0;
	bool tried = false;

	if (bytes > journal_record_max(pool))
		return -E2BIG;
	for (;;) {
		bool fits, crowded;
		int rc;

		pthread_mutex_lock(&j->lock);
		rc = j->failure;
		fits = journal_has_room(j, cost, urgent);
		crowded = !urgent && is_crowded(j, cost, &lsn);
		if (!rc && fits && !crowded)
			j->reserved += cost;
		pthread_mutex_unlock(&j->lock);
		if (rc || (fits && !crowded))
			return rc;
		if (!fits && urgent)
			return -ENOSPC;
		rc = fits ? pool_sync(pool, lsn) : wait_for_ring(j, cost, &tried);
		if (rc)
			return rc;
	}
}

void journal_unreserve(struct pool *pool, size_t bytes)
{
	struct journal *j = pool->journal;

	pthread_mutex_lock(&j->lock);
	assert(j->reserved >= journal_cost(bytes));
	j->reserved -= journal_cost(bytes);
	pthread_cond_broadcast(&j->room);
	pthread_mutex_unlock(&j->lock);
}

uint64_t journal_append(
	struct pool *pool, enum record_kind kind, const void *payload, size_t length)
{
	struct journal *j = pool->journal;
	struct batch *b = NULL;
	bool more, broken;
	uint64_t lsn;

	assert(j->started && length <= journal_record_max(pool));
	pthread_mutex_lock(&j->lock);
	lsn = ++j->lsn;
	if (!j->failure)
		b = batch_for(j, RECORD_HEAD + length);
	broken = !b && !j->failure;
	if (broken)
		j->failure = -ENOMEM;
	if (b) {
		put_record(b, j->batch_max, lsn, kind, payload, length);
		b->last_lsn = lsn;
	}
	more = journal_pick(j);
	pthread_mutex_unlock(&j->lock);
	if (more)
		journal_launch(j);
	if (broken)
		pool_fail(pool, -ENOMEM, "no memory for a record of the journal");
	return lsn;
}

void journal_trim(struct pool *pool, uint64_t position)
{
	struct journal *j = pool->journal;
	bool more;

	pthread_mutex_lock(&j->lock);
	assert(position <= j->durable.position);
	if (position > j->tail)
		j->tail = position;
	j->asked = false;
	pthread_cond_broadcast(&j->room);
	more = journal_pick(j);
	pthread_mutex_unlock(&j->lock);
	if (more)
		journal_launch(j);
}

/* --- life ------------------------------------------------------------------------------------- */

int journal_create(struct pool *pool)
{
	struct journal *j = calloc(1, sizeof(*j));

	if (!j)
		return -ENOMEM;
	pthread_mutex_init(&j->arrange_lock, NULL);
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->room, NULL);
	j->pool = pool;
	j->queue_end = &j->queue;
	pool->journal = j;
	return 0;
}

void journal_measure(struct journal *j)
{
	const struct label *label = &j->pool->label;

	j->ring = j->pool->header.journal_size;
	j->batch_max = journal_batch_max(j->ring);
	j->span_count = label->span_count;
	memcpy(j->spans, label->spans, label->span_count * sizeof(j->spans[0]));
	journal_hold_ranges(j);
}

static int allocate(struct journal *j)
{
	batch_reset(&j->window_only, 0);
	j->window_only.memory = buffer_alloc(j->pool->engine, BLOCK_SIZE);
	while (j->window_only.memory && j->free_count < BATCH_BUFFERS) {
		struct batch *b = batch_new(j, false);

		if (!b)
			return -ENOMEM;
		batch_recycle(j, b);
	}
	return j->window_only.memory ? 0 : -ENOMEM;
}

static int check_start(const struct journal *j, const struct journal_position *start, uint64_t tail,
	uint64_t window)
{
	if ((start->position | tail | window) % BLOCK_SIZE || tail > start->position ||
		window < start->position + BLOCK_SIZE || !start->lsn || !j->span_count ||
		j->spans[j->span_count - 1].epoch != start->epoch)
		return -EINVAL;
	return 0;
}

int journal_start(
	struct pool *pool, const struct journal_position *start, uint64_t tail, uint64_t window)
{
	struct journal *j = pool->journal;
	int rc;

	journal_measure(j);
	rc = check_start(j, start, tail, window);
	if (!rc)
		rc = allocate(j);
	if (rc)
		return rc;
	do {
		rc = journal_choose(pool, NULL, &j->copies);
		if (!rc)
			rc = journal_copy_ring(j, tail, start->position, &j->copies);
	} while (rc == -EAGAIN);
	if (rc)
		return rc;
	pthread_mutex_lock(&j->lock);
	j->durable = *start;
	j->lsn = start->lsn - 1;
	j->tail = tail;
	j->window = window;
	j->promised = window;
	j->started = true;
	pthread_mutex_unlock(&j->lock);
	return 0;
}

void journal_fail(struct pool *pool, int error)
{
	struct journal *j = pool->journal;
	struct durable_wait *waits = NULL, **end = &waits;

	pthread_mutex_lock(&j->lock);
	if (!j->failure)
		j->failure = error;
	error = j->failure;
	for (struct batch *b = journal_first(j); b; b = journal_next(j, b)) {
		if (b->waits) {
			*end = b->waits;
			end = b->waits_end;
		}
		b->waits = NULL;
		b->waits_end = &b->waits;
	}
	*end = NULL;
	pthread_cond_broadcast(&j->room);
	pthread_mutex_unlock(&j->lock);
	journal_call(waits, error);
}

int journal_stop(struct pool *pool)
{
	journal_fail(pool, -ESHUTDOWN);
	return journal_hold(pool->journal);
}

void journal_destroy(struct pool *pool)
{
	struct journal *j = pool->journal;
	int rc;

	if (!j)
		return;
	rc = journal_stop(pool);
	pool->journal = NULL;
	if (rc) {
		log_error("pool %s: the journal's writes do not end; their memory is left to them",
			pool->label.name);
		return;
	}
	batch_free(j, j->flying);
	batches_free(j, j->queue);
	batches_free(j, j->filling);
	batches_free(j, j->free);
	if (j->window_only.memory)
		buffer_free(pool->engine, j->window_only.memory, BLOCK_SIZE);
	pthread_cond_destroy(&j->room);
	pthread_mutex_destroy(&j->lock);
	pthread_mutex_destroy(&j->arrange_lock);
	free(j);
}

/* --- questions -------------------------------------------------------------------------------- */

void journal_durable_position(struct pool *pool, struct journal_position *position)
{
	pthread_mutex_lock(&pool->journal->lock);
	*position = pool->journal->durable;
	pthread_mutex_unlock(&pool->journal->lock);
}

static uint64_t ask(struct pool *pool, uint64_t (*question)(const struct journal *j))
{
	uint64_t answer;

	pthread_mutex_lock(&pool->journal->lock);
	answer = question(pool->journal);
	pthread_mutex_unlock(&pool->journal->lock);
	return answer;
}

static uint64_t last_lsn(const struct journal *j)
{
	return j->lsn;
}

static uint64_t durable_lsn(const struct journal *j)
{
	return j->started ? j->durable.lsn - 1 : 0;
}

static uint64_t window_now(const struct journal *j)
{
	return j->promised;
}

static uint64_t is_half_full(const struct journal *j)
{
	return j->started && (j->waiting || used(j) >= j->ring / 2);
}

uint64_t journal_lsn(struct pool *pool)
{
	return ask(pool, last_lsn);
}

uint64_t journal_durable_lsn(struct pool *pool)
{
	return ask(pool, durable_lsn);
}

uint64_t journal_window(struct pool *pool)
{
	return ask(pool, window_now);
}

uint64_t journal_used(struct pool *pool)
{
	return ask(pool, used);
}

bool journal_wants_checkpoint(struct pool *pool)
{
	return ask(pool, is_half_full);
}

size_t journal_record_max(struct pool *pool)
{
	return journal_batch_max(pool->header.journal_size) - BATCH_HEADER_SIZE - RECORD_HEAD -
	       WINDOW_RECORD;
}
