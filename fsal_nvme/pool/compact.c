/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Which segments are worth being emptied. Segments of one volume go together: what is live in them
 * is written to as few new ones as it needs, and what is won are whole segments or nothing, so the
 * segments of a volume are taken emptiest first, and as many as win the most for each byte that is
 * moved. A volume of one sparse segment has nothing to be won, however little is live in it.
 *
 * No more are taken at once than what the new ones find room for: the old ones are free only when
 * the last of their bytes has gone.
 */
#include "pool/remap.h"

/* `room`: bytes that its slots take as parts of segments that are new now. */
struct candidate {
	uint64_t segment, live, room;
	uint32_t volume;
};

/* Whom and what for; segments that are new now. */
struct gathering {
	struct pool *pool;
	uint32_t volume;
	unsigned percent;
	uint64_t usable, size;
	unsigned width;
};

/* One that is narrower, or wider, wins more or less than what it holds; slots on devices that are
 * away win nothing. */
static uint64_t room_of(const struct gathering *g, const struct segment_row *row)
{
	unsigned slots = 0;

	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++)
		slots += g->usable >> row->chunks[i].device & 1;
	return slots * g->size / g->width;
}

/* By volume, then the smallest part that is live. */
static int compare(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	double first, second;

	if (x->volume != y->volume)
		return x->volume < y->volume ? -1 : 1;
	first = (double)x->live * (double)y->room;
	second = (double)y->live * (double)x->room;
	if (first != second)
		return first < second ? -1 : 1;
	return x->segment < y->segment ? -1 : x->segment > y->segment;
}

static bool is_candidate(const struct gathering *g, struct segment *s, struct candidate *c)
{
	const struct segment_row *row = &s->row;
	bool good;

	pthread_mutex_lock(&s->lock);
	*c = (struct candidate){row->id, row->live, room_of(g, row), row->volume};
	good = row->purpose == PURPOSE_DATA && row->state == SEGMENT_CLOSED && row->live &&
	       !s->spared && !atomic_load(&s->unreferred) && !written_late(g->pool, row) &&
	       (!g->volume || g->volume == row->volume) &&
	       row->live * 100 < c->room * (uint64_t)g->percent;
	pthread_mutex_unlock(&s->lock);
	return good;
}

/* How many from list[0] on are of one volume. */
static unsigned same_volume(const struct candidate *list, unsigned count)
{
	unsigned n = 1;

	while (n < count && list[n].volume == list[0].volume)
		n++;
	return n;
}

/* All segments of one that is being destroyed will go. What is sealed takes remaps (remap.h). */
static bool may_move(struct pool *pool, struct txn *view, uint32_t volume)
{
	struct volume_row row;

	return !volume_row_get(view, volume, &row) && !row.destroying &&
	       (!row.sealed || !remap_is_crowded(pool));
}

static int leave_unmovable(struct pool *pool, struct candidate *list, unsigned *count)
{
	unsigned all = *count;
	struct txn *view;
	int rc = view_begin(pool_env(pool), &view);

	*count = 0;
	if (rc)
		return rc;
	for (unsigned i = 0, n; i < all; i += n) {
		n = same_volume(list + i, all - i);
		if (!may_move(pool, view, list[i].volume))
			continue;
		memmove(list + *count, list + i, n * sizeof(*list));
		*count += n;
	}
	txn_abort(view);
	return 0;
}

/* Nothing where no segment could be written. */
static int gather(struct gathering *g, struct candidate **list, unsigned *count)
{
	struct pool *pool = g->pool;

	g->usable = members_usable(pool);
	g->width = place_width_free(pool);
	*count = 0;
	*list = NULL;
	if (g->width <= pool->m)
		return 0;
	g->size = segment_capacity(pool, g->width - pool->m);
	pthread_rwlock_rdlock(&pool->table_lock);
	*list = calloc(pool->segment_count + 1, sizeof(**list));
	for (unsigned i = 0; *list && i < pool->table_size; i++)
		for (struct segment *s = pool->table[i]; s; s = s->hash_next)
			*count += is_candidate(g, s, &(*list)[*count]);
	pthread_rwlock_unlock(&pool->table_lock);
	if (!*list)
		return -ENOMEM;
	qsort(*list, *count, sizeof(**list), compare);
	return leave_unmovable(pool, *list, count);
}

/* What emptying some of a volume's candidates takes and gives. */
struct sum {
	uint64_t live, room, fresh; /* fresh: new segments */
};

static void sum_add(struct sum *sum, const struct candidate *c, uint64_t size)
{
	sum->live += c->live;
	sum->room += c->room;
	sum->fresh = (sum->live + size - 1) / size;
}

static uint64_t sum_gain(const struct sum *sum, uint64_t size)
{
	uint64_t taken = sum->fresh * size;

	return sum->room > taken ? sum->room - taken : 0;
}

static uint64_t waste_of(const struct candidate *list, unsigned count, uint64_t size)
{
	struct sum sum = {0};
	uint64_t most = 0;

	for (unsigned i = 0; i < count; i++) {
		uint64_t gain;

		sum_add(&sum, &list[i], size);
		gain = sum_gain(&sum, size);
		most = gain > most ? gain : most;
	}
	return most;
}

int pool_waste(struct pool *pool, uint32_t volume, uint64_t *waste)
{
	struct gathering g = {.pool = pool, .volume = volume, .percent = 100};
	struct candidate *list;
	unsigned count;
	int rc = gather(&g, &list, &count);

	*waste = 0;
	for (unsigned i = 0, n; !rc && i < count; i += n) {
		n = same_volume(list + i, count - i);
		*waste += waste_of(list + i, n, g.size);
	}
	free(list);
	return rc;
}

/* --- the plan --------------------------------------------------------------------------------- */

static void take(struct compaction_plan *plan, const struct candidate *list, unsigned count)
{
	plan->volume = list[0].volume;
	plan->count = count;
	for (unsigned i = 0; i < count; i++)
		plan->segments[i] = list[i].segment;
}

/* The volume's candidates, if some of them are better than what is planned. */
static void consider(struct compaction_plan *plan, const struct candidate *list, unsigned count,
	uint64_t size, uint64_t room)
{
	struct sum sum = {0};

	for (unsigned i = 0; i < count && i < COMPACTION_PLAN_MAX; i++) {
		uint64_t gain;

		sum_add(&sum, &list[i], size);
		gain = sum_gain(&sum, size);
		if (sum.fresh > room)
			break;
		if ((double)gain * (double)plan->live <= (double)plan->gain * (double)sum.live &&
			(plan->count || !gain))
			continue;
		take(plan, list, i + 1);
		plan->live = sum.live;
		plan->gain = gain;
	}
}

static bool rests(const struct compaction_request *request, uint32_t volume, uint64_t waste)
{
	for (unsigned i = 0; i < request->rest_count; i++)
		if (request->rests[i].volume == volume && waste <= request->rests[i].waste)
			return true;
	return false;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

int pool_plan_compaction(
	struct pool *pool, const struct compaction_request *request, struct compaction_plan *plan)
{
	struct gathering g = {.pool = pool, .volume = request->volume, .percent = request->percent};
	uint64_t room = segment_compaction_room(pool);
	struct candidate *list;
	unsigned count;
	int rc = gather(&g, &list, &count);

	*plan = (struct compaction_plan){.usable = g.usable};
	for (unsigned i = 0, n; !rc && i < count; i += n) {
		n = same_volume(list + i, count - i);
		if (!rests(request, list[i].volume, waste_of(list + i, n, g.size)))
			consider(plan, list + i, n, g.size, room);
	}
	free(list);
	qsort(plan->segments, plan->count, sizeof(*plan->segments), by_id);
	return rc ? rc : plan->count ? 0 : -ENOENT;
}

bool pool_spare_segment(struct pool *pool, uint64_t id)
{
	struct segment *s = segment_get(pool, id);
	bool there = s && !s->remap;

	if (there) {
		pthread_mutex_lock(&s->lock);
		s->spared = true;
		pthread_mutex_unlock(&s->lock);
	}
	segment_put(s);
	return there;
}
