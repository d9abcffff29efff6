/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Remaps as they stand in the pool's environment and in memory (remap.h). What makes and changes
 * them is remap_move.c.
 */
#include <inttypes.h>

#include "pool/env.h"
#include "pool/remap.h"

#include "pool/row.h"

#define REMAP_ROW_VERSION 1u
#define RUN_COST (ROW_KEY_MAX + REMAP_ROW_SIZE + TXN_CHANGE_OVERHEAD) /* of a record */
#define RUNS_MOST 2048u

/* --- rows --------------------------------------------------------------------------------- */

void remap_run_encode(const struct remap_run *run, struct writer *w)
{
	put_u8(w, REMAP_ROW_VERSION);
	put_u64(w, run->length);
	put_u64(w, run->segment);
	put_u64(w, run->to);
}

int remap_run_decode(struct remap_run *run, struct reader *r)
{
	if (get_u8(r) != REMAP_ROW_VERSION)
		return -EBADMSG;
	run->length = get_u64(r);
	run->segment = get_u64(r);
	run->to = get_u64(r);
	return r->bad || !run->length || !run->segment || run->length > INT64_MAX ||
			       run->length % BLOCK_SIZE || run->to % BLOCK_SIZE ||
			       run->to > INT64_MAX
		       ? -EBADMSG
		       : 0;
}

struct remap *remap_new(unsigned count)
{
	struct remap *remap = malloc(sizeof(*remap) + count * sizeof(remap->runs[0]));

	if (remap)
		remap->count = 0;
	return remap;
}

/* --- looking ------------------------------------------------------------------------------ */

const struct remap_run *remap_find(const struct remap *remap, uint64_t offset)
{
	unsigned low = 0, high = remap->count;

	while (low < high) {
		unsigned middle = low + (high - low) / 2;
		const struct remap_run *run = &remap->runs[middle];

		if (run->offset + run->length > offset)
			high = middle;
		else
			low = middle + 1;
	}
	return low < remap->count ? &remap->runs[low] : NULL;
}

static unsigned count_moved(struct pool *pool, uint32_t volume)
{
	const struct segment *s;
	unsigned count = 0;

	for (s = LIST_FIRST(&pool->moved); s; s = LIST_NEXT(s, moved))
		count += !volume || s->row.volume == volume;
	return count;
}

int remap_list(struct pool *pool, uint32_t volume, struct segment ***segments, unsigned *count)
{
	struct segment *s;

	*count = 0;
	pthread_rwlock_rdlock(&pool->table_lock);
	*segments = calloc(count_moved(pool, volume) + 1, sizeof(**segments));
	for (s = LIST_FIRST(&pool->moved); s; s = LIST_NEXT(s, moved)) {
		if (!*segments || (volume && s->row.volume != volume))
			continue;
		segment_ref(s);
		(*segments)[(*count)++] = s;
	}
	pthread_rwlock_unlock(&pool->table_lock);
	return *segments ? 0 : -ENOMEM;
}

bool remap_is_crowded(struct pool *pool)
{
	return atomic_load(&pool->remap_runs) * RUN_COST > atomic_load(&pool->remap_room);
}

unsigned pool_remap_most(struct pool *pool)
{
	size_t most = journal_record_max(pool) / 2 / RUN_COST;

	return most < RUNS_MOST ? (unsigned)most : RUNS_MOST;
}

/* What is called back with for one moved segment. */
static int tell_ranges(const struct remap *remap, uint64_t segment,
	int (*each)(void *data, uint64_t offset, uint64_t length), void *data)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < remap->count; i++)
		if (remap->runs[i].segment == segment)
			rc = each(data, remap->runs[i].to, remap->runs[i].length);
	return rc;
}

int pool_each_remapped(struct pool *pool, uint64_t segment,
	int (*each)(void *data, uint64_t offset, uint64_t length), void *data)
{
	struct segment *place = segment_get(pool, segment), **list;
	bool named = place && atomic_load(&place->place);
	unsigned count;
	int rc = named ? remap_list(pool, place->row.volume, &list, &count) : 0;

	segment_put(place);
	if (rc || !named)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		rc = rc ? rc : tell_ranges(list[i]->remap, segment, each, data);
		segment_put(list[i]);
	}
	free(list);
	return rc;
}

/* --- after replay ------------------------------------------------------------------------- */

/* The runs of one segment, as they are read. */
struct loading {
	struct pool *pool;
	uint64_t segment; /* 0: none yet */
	unsigned count, room;
	struct remap_run *runs;
};

/* The place that a run of the moved segment names, with a reference; NULL: it is none. */
static struct segment *place_of(const struct segment *moved, const struct remap_run *run)
{
	struct segment *s = segment_get(moved->pool, run->segment);
	struct segment_row row = {.id = 0};
	uint64_t size;

	if (!s)
		return NULL;
	segment_look(s, &row);
	size = segment_capacity(moved->pool, row.data);
	/* What is reserved is of no volume yet, and what is moved has no room. */
	if (row.purpose == PURPOSE_DATA && row.volume == moved->row.volume && run->to <= size &&
		run->length <= size - run->to)
		return s;
	segment_put(s);
	return NULL;
}

static bool take_places(const struct segment *moved, const struct loading *l)
{
	for (unsigned i = 0; i < l->count; i++) {
		struct segment *place = place_of(moved, &l->runs[i]);

		if (!place)
			return false;
		atomic_store(&place->place, true);
		segment_put(place);
	}
	return true;
}

/* What was read, as an array of its own. */
static int loading_copy(const struct loading *l, struct remap **remap)
{
	*remap = remap_new(l->count);
	if (!*remap)
		return -ENOMEM;
	(*remap)->count = l->count;
	if (l->count)
		memcpy((*remap)->runs, l->runs, l->count * sizeof(*l->runs));
	return 0;
}

/* What was read of a segment becomes its own. */
static int loading_end(struct loading *l)
{
	struct segment *s = segment_get(l->pool, l->segment);
	bool good = s && s->row.state == SEGMENT_MOVED && take_places(s, l);
	struct remap *remap;
	int rc = good ? loading_copy(l, &remap) : -EBADMSG;

	if (!rc)
		segment_set_remap(s, remap);
	segment_put(s);
	l->count = 0;
	return rc;
}

static int loading_add(struct loading *l, const struct remap_run *run)
{
	const struct remap_run *last = l->count ? &l->runs[l->count - 1] : NULL;

	if (run->offset > INT64_MAX || run->offset % BLOCK_SIZE ||
		(last && last->offset + last->length > run->offset))
		return -EBADMSG;
	if (l->count == l->room) {
		unsigned room = l->room ? 2 * l->room : 64;
		struct remap_run *runs = realloc(l->runs, room * sizeof(*runs));

		if (!runs)
			return -ENOMEM;
		l->runs = runs;
		l->room = room;
	}
	l->runs[l->count++] = *run;
	return 0;
}

static int load_row(struct loading *l, struct bytes key, struct bytes value)
{
	struct reader k = reader_on((const uint8_t *)key.data + 1, 16);
	struct reader v = reader_on(value.data, value.length);
	uint64_t segment = get_be64(&k);
	struct remap_run run;
	int rc;

	run.offset = get_be64(&k);
	rc = segment ? remap_run_decode(&run, &v) : -EBADMSG;
	if (!rc && segment != l->segment) {
		rc = l->segment ? loading_end(l) : 0;
		l->segment = segment;
	}
	return rc ? rc : loading_add(l, &run);
}

static int read_runs(struct loading *l, struct txn *view)
{
	uint8_t key[ROW_KEY_MAX + 1] = {KEY_REMAP};
	struct writer w = writer_on(key + 1, 8);
	struct bytes found, value;
	size_t length = 9;
	int rc = 0;

	put_be64(&w, l->segment);
	while (!rc && !txn_seek(view, l->pool->env, (struct bytes){key, length}, &found, &value) &&
		found.length == ROW_KEY_MAX && !memcmp(found.data, key, 9)) {
		rc = load_row(l, found, value);
		memcpy(key, found.data, found.length);
		key[ROW_KEY_MAX] = 0;
		length = sizeof(key);
	}
	return rc;
}

int remap_read(struct pool *pool, struct txn *view, uint64_t segment, struct remap **remap)
{
	struct loading l = {.pool = pool, .segment = segment};
	int rc = read_runs(&l, view);

	if (!rc)
		rc = loading_copy(&l, remap);
	free(l.runs);
	return rc;
}

static int load_rows(struct loading *l, struct txn *view)
{
	uint8_t key[ROW_KEY_MAX + 1] = {KEY_REMAP};
	struct bytes found, value;
	size_t length = 1;
	int rc;

	while (!(rc = txn_seek(view, l->pool->env, (struct bytes){key, length}, &found, &value)) &&
		*(const uint8_t *)found.data == KEY_REMAP) {
		rc = found.length == ROW_KEY_MAX ? load_row(l, found, value) : -EBADMSG;
		if (rc)
			return rc;
		memcpy(key, found.data, found.length);
		key[ROW_KEY_MAX] = 0; /* the least that is greater */
		length = sizeof(key);
	}
	if (rc && rc != -ENOENT)
		return rc;
	return l->segment ? loading_end(l) : 0;
}

int remap_load(struct pool *pool, struct txn *view)
{
	struct loading l = {.pool = pool};
	int rc = load_rows(&l, view);

	free(l.runs);
	if (rc)
		log_error("pool %s: the remaps of segment %" PRIx64 " are wrong: %s",
			pool->label.name, l.segment, strerror(-rc));
	return rc;
}

/* --- checking ----------------------------------------------------------------------------- */

/* What is live of a place, and how much of it runs name. */
struct tally {
	uint64_t segment, live, named;
	uint32_t volume;
};

struct tallies {
	unsigned count;
	struct tally list[]; /* in order of their segments */
};

static int by_segment(const void *a, const void *b)
{
	const struct tally *x = a, *y = b;

	return x->segment < y->segment ? -1 : x->segment > y->segment;
}

static struct tallies *places_now(struct pool *pool)
{
	struct tallies *tallies;
	struct segment **list;
	unsigned count;

	if (segment_list(pool, &list, &count))
		return NULL;
	tallies = calloc(1, sizeof(*tallies) + count * sizeof(tallies->list[0]));
	for (unsigned i = 0; i < count; i++) {
		if (tallies && atomic_load(&list[i]->place))
			tallies->list[tallies->count++] = (struct tally){
				list[i]->id, list[i]->row.live, 0, list[i]->row.volume};
		segment_put(list[i]);
	}
	free(list);
	if (tallies)
		qsort(tallies->list, tallies->count, sizeof(tallies->list[0]), by_segment);
	return tallies;
}

/* Whether all of it that is live can be found. Its blocks are read where they are now. */
static bool check_moved(const struct segment *moved, struct tallies *places)
{
	uint64_t bytes = 0, end = 0;

	for (unsigned i = 0; i < moved->remap->count; i++) {
		const struct remap_run *run = &moved->remap->runs[i];
		struct segment *place = place_of(moved, run);
		struct tally key = {run->segment, 0, 0, 0}, *tally;

		segment_put(place);
		tally = bsearch(&key, places->list, places->count, sizeof(key), by_segment);
		if (!place || !tally || run->offset < end)
			return false;
		tally->named += run->length;
		end = run->offset + run->length;
		bytes += run->length;
	}
	return bytes >= moved->row.live;
}

static int check_all_moved(struct pool *pool, struct tallies *places, uint64_t *wrong)
{
	struct segment **list;
	unsigned count;
	int rc = remap_list(pool, 0, &list, &count);

	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		if (!check_moved(list[i], places)) {
			log_error("segment %" PRIx64 ": its remaps do not say where it is",
				list[i]->id);
			++*wrong;
		}
		segment_put(list[i]);
	}
	free(list);
	return 0;
}

/* Moved segments of a volume that is being destroyed go before their places. */
static bool is_going(struct txn *txn, uint32_t volume)
{
	struct volume_row row;

	return volume_row_get(txn, volume, &row) || row.destroying;
}

static void check_places(struct txn *txn, const struct tallies *places, uint64_t *wrong)
{
	for (unsigned i = 0; i < places->count; i++) {
		const struct tally *place = &places->list[i];

		if (place->live == place->named || is_going(txn, place->volume))
			continue;
		log_error("segment %" PRIx64 ": %" PRIu64
			  " bytes are live, and remaps name %" PRIu64,
			place->segment, place->live, place->named);
		++*wrong;
	}
}

static bool is_any_moved(struct pool *pool)
{
	bool any;

	pthread_rwlock_rdlock(&pool->table_lock);
	any = !LIST_EMPTY(&pool->moved);
	pthread_rwlock_unlock(&pool->table_lock);
	return any;
}

/* In a transaction, where there may be one. */
int remap_check(struct pool *pool, uint64_t *wrong)
{
	struct tallies *places;
	struct txn *txn;
	int rc;

	if (!is_any_moved(pool))
		return 0;
	rc = txn_begin(pool, NULL, &txn);
	if (rc && (pool->read_only || atomic_load(&pool->failure)))
		rc = view_begin(pool_env(pool), &txn); /* nothing changes any more */
	if (rc)
		return rc;
	places = places_now(pool);
	rc = places ? check_all_moved(pool, places, wrong) : -ENOMEM;
	if (!rc)
		check_places(txn, places, wrong);
	free(places);
	txn_abort(txn);
	return rc;
}
