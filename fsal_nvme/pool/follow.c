/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Readers: the pool as its newest root says, beside whoever owns it.
 *
 *   look    the labels of all members; the newest one counts, never one older than what is known
 *   load    where it names another root: that image into an environment of its own
 *   take    what differs goes into the pool's environment, in one transaction that nobody logs;
 *           then into the segment table, where one struct takes the place of another: who reads
 *           goes on with what it has
 *
 * The owner may write a later root meanwhile, and use the segments of the one that is being loaded
 * again. Then the image fails its checks, and all begins anew with the labels.
 *
 * What a reader knows is right for as long as the owner leaves alone what it names (place.c). After
 * that it is found to be wrong, by checksums that name the segment; who finds it waits for a look
 * and asks once more. Nothing is ever written, not even to mend.
 */
#include <stdio.h>

#include "pool/env.h"
#include "pool/follow.h"
#include "pool/label.h"
#include "pool/remap.h"

#define TRIES 4u

struct follow {
	pthread_mutex_t turn; /* one look at a time; no device is exchanged in it */
	pthread_mutex_t lock; /* a leaf; the two below */
	struct follow_wait *waits;
	uint64_t next; /* engine_clock() of the next look */
	_Atomic uint64_t looked; /* ... when the last one began that went well */
	_Atomic uint64_t count; /* roots that were loaded */
};

bool pool_is_reader(const struct pool *pool)
{
	return pool->options.reader;
}

uint64_t pool_follow_age(struct pool *pool)
{
	if (!pool->follow)
		return 0;
	return engine_clock(pool->engine) - atomic_load(&pool->follow->looked);
}

uint64_t pool_follow_count(const struct pool *pool)
{
	return pool->follow ? atomic_load(&pool->follow->count) : 0;
}

/* --- the newest label --------------------------------------------------------------------------
 */

struct search {
	const struct pool *pool;
	struct label best;
	bool any;
};

static int consider(void *data, const struct label *label)
{
	struct search *s = data;

	if (memcmp(label->pool, s->pool->label.pool, 16) ||
		label->device_count != s->pool->device_count)
		return 0;
	if (!s->any || label_is_newer(label, &s->best))
		s->best = *label;
	s->any = true;
	return 0;
}

static uint64_t active_by(const struct label *label)
{
	uint64_t active = 0;

	for (unsigned i = 0; i < label->device_count; i++)
		if (label->devices[i].state == DEVICE_ACTIVE)
			active |= UINT64_C(1) << i;
	return active;
}

/* -EIO: those that can be read may all have missed it, since a label is written to all but losses.
 */
static int find_label(struct pool *pool, struct search *s)
{
	uint64_t answers, active;
	int rc = follow_labels(pool, consider, s, &answers);

	if (rc || !s->any)
		return rc ? rc : -EIO;
	active = active_by(&s->best);
	return losses_allowed(pool, active, answers & active) ? -EIO : 0;
}

static bool same_root(const struct label *a, const struct label *b)
{
	return a->root.segment == b->root.segment && a->root.lsn == b->root.lsn &&
	       a->root.hash == b->root.hash;
}

/* --- environments: from what was loaded into what is shown -------------------------------------
 */

struct walk {
	struct env *env;
	struct txn *view;
	uint8_t last[POOL_KEY_MAX + 1];
	struct bytes key, value;
	bool ended;
};

/* To the first key, or the one behind this. */
static int walk_next(struct walk *w)
{
	size_t length = w->key.data ? w->key.length + 1 : 0;
	struct bytes from = {w->last, length ? length : 1};
	int rc;

	if (length) {
		memcpy(w->last, w->key.data, w->key.length);
		w->last[w->key.length] = 0; /* the least that is greater */
	}
	rc = txn_seek(w->view, w->env, from, &w->key, &w->value);
	w->ended = rc == -ENOENT;
	return w->ended ? 0 : rc;
}

static int key_order(const struct walk *a, const struct walk *b)
{
	size_t least = a->key.length < b->key.length ? a->key.length : b->key.length;
	int order;

	if (a->ended || b->ended)
		return a->ended - b->ended;
	order = memcmp(a->key.data, b->key.data, least);
	return order ? order : (a->key.length > b->key.length) - (a->key.length < b->key.length);
}

static bool same_value(const struct walk *a, const struct walk *b)
{
	return a->value.length == b->value.length &&
	       !memcmp(a->value.data, b->value.data, a->value.length);
}

/* One step of both: what only `old` has goes, what `new` has comes. */
static int take_step(struct walk *new, struct walk *old, MDB_txn *txn)
{
	int order = key_order(new, old), rc = 0;

	if (order > 0)
		rc = env_write_delete(old->env, txn, old->key);
	else if (order < 0 || !same_value(new, old))
		rc = env_write_put(old->env, txn, new->key, new->value, 0);
	if (!rc && order <= 0)
		rc = walk_next(new);
	if (!rc && order >= 0)
		rc = walk_next(old);
	return rc;
}

static int take_all(struct walk *new, struct walk *old, MDB_txn *txn)
{
	int rc = walk_next(new);

	if (!rc)
		rc = walk_next(old);
	while (!rc && !(new->ended && old->ended))
		rc = take_step(new, old, txn);
	return rc;
}

static int take_environment(struct pool *pool, struct env *from)
{
	struct walk new = {.env = from}, old = {.env = pool->env};
	MDB_txn *txn;
	int rc = view_begin(from, &new.view);

	if (rc)
		return rc;
	rc = view_begin(pool->env, &old.view);
	if (!rc) {
		rc = env_write_begin(pool->env, &txn);
		if (!rc) {
			rc = take_all(&new, &old, txn);
			if (rc)
				env_write_abort(pool->env, txn);
			else
				rc = env_write_commit(pool->env, txn);
		}
		txn_abort(old.view);
	}
	txn_abort(new.view);
	return rc;
}

/* --- the segment table -------------------------------------------------------------------------
 */

/* Nobody reads what has nothing in it, and of images what is not closed. */
static bool is_shown(const struct segment_row *row)
{
	return row->state != SEGMENT_RESERVED &&
	       (row->purpose == PURPOSE_DATA || row->state != SEGMENT_OPEN);
}

/* Its bytes are where they were, all of them durable. */
static bool is_the_same(const struct segment *s, const struct segment_row *row)
{
	return s->row.state == SEGMENT_CLOSED && row->state == SEGMENT_CLOSED &&
	       s->row.data == row->data && s->row.parity == row->parity &&
	       s->row.rows == row->rows && s->row.generation == row->generation &&
	       !memcmp(s->row.chunks, row->chunks,
		       sizeof(row->chunks[0]) * (row->data + row->parity));
}

static int make_segment(struct pool *pool, struct txn *view, const struct segment_row *row,
	struct segment **segment)
{
	struct remap *remap = NULL;
	int rc = row->state == SEGMENT_MOVED ? remap_read(pool, view, row->id, &remap) : 0;

	if (rc)
		return rc;
	*segment = segment_prepare(pool, row, remap);
	if (!*segment) {
		free(remap);
		return -ENOMEM;
	}
	if (row->state != SEGMENT_OPEN)
		return 0;
	(*segment)->frozen = true;
	rc = segment_load_open(pool, view, *segment);
	if (rc) {
		segment_put(*segment);
		segment_put(*segment);
	}
	return rc;
}

static int show_segment(struct pool *pool, struct txn *view, const struct segment_row *row)
{
	struct segment *old = segment_get(pool, row->id), *fresh = NULL;
	int rc;

	if (old && is_the_same(old, row)) {
		pthread_mutex_lock(&old->lock);
		old->row.live = row->live;
		pthread_mutex_unlock(&old->lock);
		segment_put(old);
		return 0;
	}
	rc = make_segment(pool, view, row, &fresh);
	if (!rc) {
		rc = segment_exchange(pool, old, fresh);
		if (rc)
			segment_put(fresh);
		segment_put(fresh);
	}
	segment_put(old);
	return rc;
}

static int take_row(struct pool *pool, struct txn *view, const struct segment_row *row)
{
	int rc = row->state == SEGMENT_MOVED ? 0 : place_take(pool, row);

	return rc || !is_shown(row) ? rc : show_segment(pool, view, row);
}

static void empty_slots(struct pool *pool)
{
	pthread_mutex_lock(&pool->slots_lock);
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		memset(member->slot_map, 0, member->slot_count);
		member->slots_used = 0;
	}
	pthread_mutex_unlock(&pool->slots_lock);
}

static int take_segments(struct pool *pool, struct txn *view)
{
	struct segment_row row;
	uint64_t next = 0;
	int rc;

	empty_slots(pool);
	while (!(rc = segment_row_next(pool, view, next, &row))) {
		rc = take_row(pool, view, &row);
		if (rc)
			return rc;
		next = row.id + 1;
	}
	return rc == -ENOENT ? 0 : rc;
}

static bool is_gone(struct pool *pool, struct txn *view, const struct segment *s)
{
	struct segment_row row;

	return segment_row_next(pool, view, s->id, &row) || row.id != s->id || !is_shown(&row);
}

static int drop_segments(struct pool *pool, struct txn *view)
{
	struct segment **list;
	unsigned count;
	int rc = segment_list(pool, &list, &count);

	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		if (is_gone(pool, view, list[i]))
			segment_exchange(pool, list[i], NULL);
		segment_put(list[i]);
	}
	free(list);
	return 0;
}

static int take_table(struct pool *pool)
{
	struct txn *view;
	int rc = view_begin(pool->env, &view);

	if (rc)
		return rc;
	rc = take_segments(pool, view);
	if (!rc)
		rc = drop_segments(pool, view);
	txn_abort(view);
	return rc;
}

/* --- a root ------------------------------------------------------------------------------------
 */

bool member_there(const struct member *member)
{
	return member->device && device_present(member->device) &&
	       !memcmp(member->header.uuid, member->label.uuid, sizeof(member->label.uuid));
}

enum device_state member_seen(const struct member *member)
{
	if (member->label.state == DEVICE_DROPPED)
		return DEVICE_DROPPED;
	return member_there(member) ? DEVICE_ACTIVE : DEVICE_MISSING;
}

static void see_members(struct pool *pool)
{
	for (unsigned i = 0; i < pool->device_count; i++)
		atomic_store(&pool->devices[i].state, member_seen(&pool->devices[i]));
}

static void take_label(struct pool *pool, const struct label *label)
{
	pthread_mutex_lock(&pool->label_lock);
	pool->label = *label;
	pthread_mutex_unlock(&pool->label_lock);
	pool->epoch = label->epoch;
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		member->label = label->devices[i];
		atomic_store(&member->suspect_before,
			label_device_suspect(&member->label) ? UINT64_MAX : 0);
	}
	see_members(pool);
}

/* As far as an earlier root knew of them. */
static void forget_root_segments(struct pool *pool)
{
	for (unsigned i = 0; i < pool->label.root_segment_count; i++) {
		struct segment *known = segment_get(pool, pool->label.root_segments[i].id);

		if (known)
			segment_exchange(pool, known, NULL);
		segment_put(known);
	}
}

/* What pool->label names. */
static int load_image(struct pool *pool, struct env **env)
{
	struct image root = {.count = pool->label.root.kind ? 1 : 0, .parts = {pool->label.root}};
	int rc;

	forget_root_segments(pool);
	rc = root_segments_insert(pool);
	if (!rc)
		rc = env_create(pool, 0, &root, env);
	root_segments_remove(pool);
	return rc;
}

static int load_root(struct pool *pool)
{
	struct env *fresh;
	int rc = load_image(pool, &fresh);

	if (rc)
		return rc;
	if (pool->env) {
		rc = take_environment(pool, fresh);
		env_destroy(fresh);
	} else {
		pool->env = fresh;
	}
	if (!rc)
		rc = take_table(pool);
	if (!rc)
		atomic_fetch_add(&pool->follow->count, 1);
	return rc;
}

/* What was loaded before stays when it fails. */
static int load_label(struct pool *pool, const struct label *label)
{
	struct label *before = malloc(sizeof(*before));
	int rc;

	if (!before)
		return -ENOMEM;
	*before = pool->label;
	take_label(pool, label);
	rc = load_root(pool);
	if (rc)
		take_label(pool, before);
	free(before);
	return rc;
}

static int look(struct pool *pool, struct search *s)
{
	bool loaded = pool->env;
	int rc;

	s->pool = pool;
	s->any = loaded;
	if (loaded)
		s->best = pool->label;
	rc = find_label(pool, s);
	if (rc) {
		see_members(pool);
		return rc;
	}
	if (!loaded || !same_root(&s->best, &pool->label))
		return load_label(pool, &s->best);
	take_label(pool, &s->best);
	return 0;
}

/* --- looks -------------------------------------------------------------------------------------
 */

static struct follow_wait *take_waits(struct follow *follow)
{
	struct follow_wait *waits;

	pthread_mutex_lock(&follow->lock);
	waits = follow->waits;
	follow->waits = NULL;
	pthread_mutex_unlock(&follow->lock);
	return waits;
}

static int look_in_turn(struct pool *pool)
{
	struct follow *follow = pool->follow;
	struct search *search = malloc(sizeof(*search));
	uint64_t began = 0;
	int rc = search ? -EIO : -ENOMEM;

	for (unsigned tries = 0; search && rc && rc != -ESHUTDOWN && tries < TRIES; tries++) {
		began = engine_clock(pool->engine);
		rc = look(pool, search);
	}
	free(search);
	if (!rc)
		atomic_store(&follow->looked, began);
	pthread_mutex_lock(&follow->lock);
	follow->next = engine_clock(pool->engine) + FOLLOW_EVERY_NS;
	pthread_mutex_unlock(&follow->lock);
	return rc;
}

int pool_follow(struct pool *pool)
{
	struct follow *follow = pool->follow;
	struct follow_wait *waits, *next;
	int rc;

	pthread_mutex_lock(&follow->turn);
	waits = take_waits(follow);
	rc = look_in_turn(pool);
	pthread_mutex_unlock(&follow->turn);
	if (rc)
		log_warning("pool %s: its newest root cannot be read, and %llu s old data are "
			    "shown: %s",
			pool->label.name, (unsigned long long)(pool_follow_age(pool) / 1000000000),
			strerror(-rc));
	for (; waits; waits = next) {
		next = waits->next;
		waits->done(waits);
	}
	return rc;
}

void pool_follow_then(struct pool *pool, struct follow_wait *wait)
{
	struct follow *follow = pool->follow;

	pthread_mutex_lock(&follow->lock);
	wait->next = follow->waits;
	follow->waits = wait;
	pthread_mutex_unlock(&follow->lock);
	pool_wake_maintenance(pool);
}

bool pool_follow_wanted(struct pool *pool)
{
	bool wanted;

	if (!pool->follow)
		return false;
	pthread_mutex_lock(&pool->follow->lock);
	wanted = pool->follow->waits;
	pthread_mutex_unlock(&pool->follow->lock);
	return wanted;
}

int follow_round(struct pool *pool)
{
	struct follow *follow = pool->follow;
	bool now;

	pthread_mutex_lock(&follow->lock);
	now = follow->waits || engine_clock(pool->engine) >= follow->next;
	pthread_mutex_unlock(&follow->lock);
	return now ? pool_follow(pool) : 0;
}

/* --- devices that come back --------------------------------------------------------------------
 */

void follow_pause(struct pool *pool)
{
	pthread_mutex_lock(&pool->follow->turn);
}

void follow_go_on(struct pool *pool)
{
	pthread_mutex_unlock(&pool->follow->turn);
}

/* --- life --------------------------------------------------------------------------------------
 */

int follow_create(struct pool *pool)
{
	struct follow *follow = calloc(1, sizeof(*follow));

	if (!follow)
		return -ENOMEM;
	pthread_mutex_init(&follow->turn, NULL);
	pthread_mutex_init(&follow->lock, NULL);
	pool->follow = follow;
	return 0;
}

void follow_destroy(struct pool *pool)
{
	struct follow *follow = pool->follow;

	if (!follow)
		return;
	pthread_mutex_destroy(&follow->turn);
	pthread_mutex_destroy(&follow->lock);
	free(follow);
	pool->follow = NULL;
}

int follow_open(struct pool *pool)
{
	return look_in_turn(pool);
}
