/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Opening a pool, in this order:
 *
 *   find      every device's header and labels; the newest label (label.c) is the pool's; its
 *             devices are the members
 *   count     more than m active members missing: these could be an old minority; refused
 *   owner     closed, known dead, or a process of this boot: no wait. Else the old owner's beat is
 *             watched for 10 s
 *   claim     a label of a later epoch than any that was found, on all members, in a place that no
 *             owner uses that may still write: an owner that sees it stops. It repeats the newest
 *             label and counts as that one does. Then the labels are read again: what the
 *             old owner wrote between "find" and the claim would be lost, so that the opening is
 *             refused, and the claim repeats what is found. From here on the opener beats. An owner
 *             that is not known to be dead may go on acknowledging for as long as its lease lasts,
 *             which is waited for
 *   replay    the root's image, then the journal from the root's place to its first gap
 *   take over the label again, now with the span that this epoch will write; missing members are
 *             dropped in it. Then labels are looked at: when none is of a later epoch, the next
 *             claim will find this one. Only then the journal is started
 *   recover   what dead epochs left reserved or open (recover.c); headers that are bad are mended
 *
 * A crash anywhere leaves a label of some epoch and everything it needs; the claim alone changes
 * nothing but the epoch. Who paused between its claim and its take-over and wakes up behind a later
 * claim writes nothing to the journal.
 *
 * A reader finds and counts, and loads the newest root alone (follow.c).
 */
#include "pool/opening.h"

#include "pool/env.h"
#include "pool/follow.h"
#include "pool/hedge.h"
#include "pool/journal.h"
#include "pool/row.h"

/* --- replay, take over ------------------------------------------------------------------------ */

static int replay_pool(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	return length && payload[0] == RECORD_CHANGES
		       ? txn_replay_pool(pool, lsn, payload + 1, length - 1)
		       : 0;
}

static int replay_volumes(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	return length && payload[0] == RECORD_CHANGES
		       ? txn_replay_volumes(pool, lsn, payload + 1, length - 1)
		       : 0;
}

/* The root's segments, so that its image can be read before there is a table. */
int root_segments_insert(struct pool *pool)
{
	for (unsigned i = 0; i < pool->label.root_segment_count; i++) {
		struct segment *segment;
		int rc = segment_insert(pool, &pool->label.root_segments[i], &segment);

		if (rc)
			return rc;
		segment_put(segment);
	}
	return 0;
}

void root_segments_remove(struct pool *pool)
{
	for (unsigned i = 0; i < pool->label.root_segment_count; i++) {
		struct segment *segment = segment_get(pool, pool->label.root_segments[i].id);

		if (segment) {
			segment_remove(pool, segment);
			segment_put(segment);
		}
	}
}

static int load_root(struct opening *o)
{
	struct pool *pool = o->pool;
	struct image root = {.count = pool->label.root.kind ? 1 : 0, .parts = {pool->label.root}};
	int rc = root_segments_insert(pool);

	if (!rc)
		rc = env_create(pool, 0, &root, &pool->env);
	root_segments_remove(pool);
	return rc ? error_set(o->error, rc, pool->label.name,
			    "its metadata image cannot be loaded: %s", strerror(-rc))
		  : 0;
}

/*
 * The pool's own environment in a first round, because it tells where the volumes' newest images
 * are; then, with the segment table in memory, the volumes.
 */
static int replay(struct opening *o, struct journal_position *end, uint64_t *window)
{
	struct pool *pool = o->pool;
	struct journal_position again;
	int rc = journal_replay(pool, &pool->label.replay, replay_pool, end, window);

	if (!rc)
		rc = txn_replay_end(pool);
	if (!rc)
		rc = recover_table(pool);
	if (!rc)
		rc = journal_replay(pool, &pool->label.replay, replay_volumes, &again, window);
	if (!rc)
		rc = txn_replay_end(pool);
	if (!rc && again.lsn != end->lsn)
		return error_set(o->error, -EBUSY, pool->label.name,
			"its journal grows while it is read: its owner %s is alive", o->best.owner);
	return rc ? error_set(o->error, rc, pool->label.name, "its journal cannot be replayed: %s",
			    strerror(-rc))
		  : 0;
}

static int load(struct opening *o, struct journal_position *end, uint64_t *window)
{
	int rc = load_root(o);

	if (!rc)
		rc = rest_find(o->pool);
	return rc ? rc : replay(o, end, window);
}

/* Members that are missing now are not believed when they come back. */
static void drop_missing(struct opening *o, uint64_t lsn)
{
	for (unsigned i = 0; i < o->pool->device_count; i++) {
		struct label_device *d = &o->pool->label.devices[i];

		if (d->state == DEVICE_ACTIVE && !o->present[i]) {
			d->state = DEVICE_DROPPED;
			d->dropped_lsn = lsn ? lsn : 1;
			log_warning("pool %s: device %u is missing and dropped",
				o->pool->label.name, i);
		}
	}
}

/* When the opening ends behind that: they count again. */
static void keep_missing(struct opening *o)
{
	for (unsigned i = 0; i < o->pool->device_count; i++)
		if (!o->present[i])
			o->pool->label.devices[i] = o->best.devices[i];
	(void)label_write(o->pool);
}

/* Behind the look at whether another one has the pool: that is answered by those that the labels
 * before called active, less what may be lost. */
static void take_out_missing(struct opening *o)
{
	for (unsigned i = 0; i < o->pool->device_count; i++) {
		struct member *member = &o->pool->devices[i];

		if (o->best.devices[i].state != DEVICE_ACTIVE || o->present[i])
			continue;
		member->label = o->pool->label.devices[i];
		atomic_store(&member->state, DEVICE_DROPPED);
		atomic_store(&member->suspect_before, 0);
	}
}

static int record_epoch(struct pool *pool, const struct journal_position *start)
{
	uint8_t payload[24];
	struct writer w = writer_on(payload, sizeof(payload));
	int rc;

	put_u64(&w, pool->epoch);
	put_u64(&w, start->lsn - 1);
	put_u64(&w, start->hash);
	rc = journal_reserve(pool, sizeof(payload), true);
	if (rc)
		return rc;
	journal_append(pool, RECORD_EPOCH, payload, sizeof(payload));
	journal_unreserve(pool, sizeof(payload));
	return 0;
}

static int begin_span(struct opening *o, struct journal_position *start, uint64_t window)
{
	int rc = journal_begin_span(o->pool, start, window);

	if (rc && o->pool->label.other_count)
		return opening_refuse_for_others(o, rc);
	return rc ? error_set(o->error, rc, o->pool->label.name, "its journal is full") : 0;
}

static int tell_labels(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc;

	pool->label.repeats = (struct label_version){0};
	rc = label_write(pool);
	if (rc)
		return error_set(o->error, rc, pool->label.name, "its labels cannot be written: %s",
			strerror(-rc));
	rc = opening_check_losses(o);
	if (rc)
		return rc;
	rc = beat_still_ours(pool);
	if (rc)
		return error_set(o->error, rc, pool->label.name, "%s",
			rc == -ESTALE ? "another host has taken it over while it was opened"
				      : "the labels of too few devices can be read");
	return 0;
}

static int start_journal(struct opening *o, const struct journal_position *start)
{
	struct pool *pool = o->pool;
	const struct journal_span *span = &pool->label.spans[pool->label.span_count - 1];
	int rc;

	take_out_missing(o);
	recover_note_owners(pool);
	rc = journal_start(pool, start, pool->label.replay.position, span->window);
	return rc ? rc : record_epoch(pool, start);
}

/* Nothing is acknowledged before it ends well. */
static int take_over(struct opening *o, struct journal_position *start, uint64_t window)
{
	int rc = opening_check_losses(o);

	if (!rc)
		rc = begin_span(o, start, window);
	if (rc)
		return rc;
	drop_missing(o, start->lsn - 1);
	rc = tell_labels(o);
	if (!rc)
		rc = start_journal(o, start);
	if (rc && rc != -ESTALE)
		keep_missing(o);
	return rc;
}

static void set_limits(struct pool *pool)
{
	uint64_t capacity = place_capacity(pool);

	pool->stock_size = capacity / 64 < 2   ? 2
			   : capacity / 64 > 8 ? 8
					       : (unsigned)(capacity / 64);
	atomic_init(&pool->image_room, UINT64_MAX);
	atomic_init(&pool->own_room, UINT64_MAX);
	pool->reserve_segments = capacity / 32 < 4 ? 4 : (uint32_t)(capacity / 32);
	pool->stock = calloc(pool->stock_size, sizeof(*pool->stock));
}

static int finish(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc;

	/* May use the last of the journal: in a full pool, a checkpoint that makes room in it needs
	 * the slots that are freed here. */
	txn_urgent_begin();
	rc = recover_segments(pool);
	txn_urgent_end();
	if (!rc)
		rc = segment_drop_leftovers(pool);
	if (!rc)
		rc = segment_restock(pool);
	if (!rc)
		rc = heads_mend(pool, &o->heads, true);
	if (!rc)
		rc = pool_drop_failing(pool);
	checkpoint_measure(pool);
	if (!rc && o->options->background)
		rc = pool_start_maintenance(pool);
	return rc;
}

static int open_for_writing(struct opening *o)
{
	struct journal_position end;
	uint64_t window;
	int rc = opening_claim(o);

	if (!rc)
		members_suspect(o->pool, o->pool->epoch << 32);
	if (!rc)
		rc = load(o, &end, &window);
	if (!rc)
		rc = take_over(o, &end, window);
	if (!rc)
		rc = finish(o);
	return rc;
}

static int open_for_reading(struct opening *o)
{
	struct journal_position end;
	uint64_t window;

	o->pool->epoch = o->best.epoch;
	members_suspect(o->pool, UINT64_MAX);
	return load(o, &end, &window);
}

static int open_beside_an_owner(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc = follow_open(pool);

	if (rc)
		return error_set(o->error, rc, pool->label.name,
			"its newest metadata image cannot be loaded: %s", strerror(-rc));
	return o->options->background ? pool_start_maintenance(pool) : 0;
}

/* --- the whole ----------------------------------------------------------------------------------
 */

static int pool_new(struct opening *o)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	pthread_condattr_t monotonic;

	if (!pool)
		return -ENOMEM;
	o->pool = pool;
	pool->engine = o->engine;
	pool->options = *o->options;
	pool->read_only = o->options->read_only || o->options->reader;
	pool->next_segment = 1;
	if (!pool->options.row_memory)
		pool->options.row_memory = 64u << 20;
	if (!pool->options.page_cache)
		pool->options.page_cache = 64u << 20;
	if (!pool->options.metadata_limit)
		pool->options.metadata_limit = 16ull << 30;
	if (!pool->options.stream_limit)
		pool->options.stream_limit = 32;
	pthread_mutex_init(&pool->label_lock, NULL);
	pthread_mutex_init(&pool->label_turn, NULL);
	pthread_mutex_init(&pool->volumes_lock, NULL);
	pthread_rwlock_init(&pool->table_lock, NULL);
	pthread_mutex_init(&pool->slots_lock, NULL);
	pthread_mutex_init(&pool->recording_lock, NULL);
	pthread_cond_init(&pool->recorded, NULL);
	pthread_mutex_init(&pool->drop_lock, NULL);
	pthread_mutex_init(&pool->row_lock, NULL);
	pthread_mutex_init(&pool->maintain_lock, NULL);
	pthread_mutex_init(&pool->wake_lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	chores_init(pool);
	TAILQ_INIT(&pool->resting);
	pool->scratch_dir = strdup(o->options->scratch_dir ? o->options->scratch_dir : "/dev/shm");
	return pool->scratch_dir ? 0 : -ENOMEM;
}

static int open_parts(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc;

	pool->table_size = 64;
	pool->table = calloc(pool->table_size, sizeof(*pool->table));
	if (!pool->table)
		return -ENOMEM;
	rc = page_cache_create(pool, pool->options.page_cache);
	if (!rc)
		rc = block_cache_create(pool);
	if (!rc)
		rc = hedge_start(pool);
	if (!rc)
		rc = journal_create(pool);
	if (!rc && pool->options.reader)
		rc = follow_create(pool);
	if (rc)
		return rc;
	set_limits(pool);
	return pool->stock ? 0 : -ENOMEM;
}

static int open_all(struct opening *o)
{
	int rc = opening_find(o);

	if (!rc)
		rc = pool_new(o);
	if (!rc)
		rc = opening_members(o);
	if (!rc)
		rc = opening_count(o);
	if (rc || o->rehearsal)
		return rc;
	rc = open_parts(o);
	if (!rc && o->options->reader)
		return open_beside_an_owner(o);
	if (!rc)
		rc = heads_look(o->pool, &o->heads);
	if (!rc)
		rc = o->pool->read_only ? open_for_reading(o) : open_for_writing(o);
	return rc;
}

static int open_or_rehearse(struct engine *engine, const struct pool_open_options *options,
	bool rehearsal, struct pool **pool, struct error *error)
{
	struct opening *o = calloc(1, sizeof(*o));
	int rc;

	*pool = NULL;
	if (!o)
		return -ENOMEM;
	o->engine = engine;
	o->options = options;
	o->rehearsal = rehearsal;
	o->error = error;
	o->looks = calloc(options->path_count + 1, sizeof(*o->looks));
	rc = o->looks ? open_all(o) : -ENOMEM;
	if (rc && o->pool)
		pool_abandon(o->pool);
	else if (!rc)
		*pool = o->pool;
	if (rc)
		error_set(error, rc, options->name ? options->name : "", "it cannot be opened: %s",
			strerror(-rc));
	free(o->looks);
	free(o);
	return rc;
}

int pool_open(struct engine *engine, const struct pool_open_options *options, struct pool **pool,
	struct error *error)
{
	return open_or_rehearse(engine, options, false, pool, error);
}

int pool_may_open(
	struct engine *engine, const struct pool_open_options *options, struct error *error)
{
	struct pool *pool;
	int rc = open_or_rehearse(engine, options, true, &pool, error);

	if (!rc)
		pool_abandon(pool);
	return rc;
}
