/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where in the ring the journal's batches go, how far the owner may write, and what is free.
 *
 * Positions count bytes since the pool was made; the ring offset is position % ring. In order:
 *
 *   tail ... durable.position ... queued, reserved ... window <= promised
 *
 * The window. An owner that was paused and wakes up writes below its window and no further
 * (journal_fence.c). The next owner, when it cannot know that owner dead, begins behind it, so each
 * opening after a crash may burn what lies between. The window is therefore kept near: an eighth of
 * the ring ahead, and less as the ring fills, a quarter of what is left, so that crashes in a row
 * during recovery cannot use the ring up. A batch moves the window when less than a third of that
 * is left; a batch that does not fit below it lets one go first that does nothing else.
 *
 * A lap later the same bytes of the ring come round again, and that owner may still wake up: its
 * part of the ring (held range; the labels list them) is not used until an opening knows it dead.
 * The batch before such a range announces where the next one stands.
 *
 * Room. Ordinary records leave an eighth of the ring to urgent ones (checkpoints, drops) and a
 * batch's length of safety; urgent ones may fill the ring. Each reservation counts as a batch of
 * its own, the most that its record can take.
 */
#include "pool/journal.h"

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t ring_end(const struct journal *j)
{
	return j->tail + j->ring;
}

/* --- held ranges ------------------------------------------------------------------------------ */

static void hold(struct journal *j, uint64_t from, uint64_t to)
{
	uint64_t start = from % j->ring, length = to - from;

	if (start + length > j->ring) {
		j->held_ranges[j->held_range_count++] =
			(struct held_range){0, start + length - j->ring};
		length = j->ring - start;
	}
	j->held_ranges[j->held_range_count++] = (struct held_range){start, start + length};
}

static int by_place(const void *a, const void *b)
{
	const struct held_range *x = a, *y = b;

	return (x->from > y->from) - (x->from < y->from);
}

/* Sorts the ranges and joins those that touch. Returns the bytes that they cover. */
static uint64_t join_ranges(struct journal *j)
{
	struct held_range *r = j->held_ranges;
	unsigned count = 0;
	uint64_t bytes = 0;

	qsort(r, j->held_range_count, sizeof(*r), by_place);
	for (unsigned i = 0; i < j->held_range_count; i++) {
		if (count && r[i].from <= r[count - 1].to)
			r[count - 1].to = later(r[count - 1].to, r[i].to);
		else
			r[count++] = r[i];
	}
	j->held_range_count = count;
	for (unsigned i = 0; i < count; i++)
		bytes += r[i].to - r[i].from;
	return bytes;
}

void journal_hold_ranges(struct journal *j)
{
	const struct label *label = &j->pool->label;

	j->held_range_count = 0;
	for (unsigned i = 0; i < label->other_count; i++) {
		uint64_t from = label->others[i].from, to = label->others[i].to;

		if (to > from)
			hold(j, from, to - from < j->ring ? to : from + j->ring);
	}
	j->held = join_ranges(j);
}

/* Behind the range when a batch that is to stand at `position`, or at the ring's start if it does
 * not fit before the end, could touch it. */
static uint64_t behind_range(
	const struct journal *j, const struct held_range *range, uint64_t position)
{
	uint64_t lap = position / j->ring * j->ring, lap_end = lap + j->ring;
	uint64_t reach = position + j->batch_max;

	if (reach > lap_end)
		reach = lap_end + j->batch_max;
	for (unsigned i = 0; i < 2; i++, lap += j->ring) {
		if (position < lap + range->to && lap + range->from < reach)
			return lap + range->to;
	}
	return position;
}

uint64_t journal_clear(const struct journal *j, uint64_t position)
{
	uint64_t limit = position + 2 * j->ring;

	for (unsigned i = 0; i < j->held_range_count && position < limit;) {
		uint64_t behind = behind_range(j, &j->held_ranges[i], position);

		i = behind == position ? i + 1 : 0;
		position = behind;
	}
	return position;
}

int journal_find_start(const struct journal *j, uint64_t tail, uint64_t *position)
{
	if (j->held + 3 * j->batch_max + j->ring / 8 > j->ring)
		return -EBUSY;
	*position = journal_clear(j, *position);
	return *position + 2 * BLOCK_SIZE > tail + j->ring ? -ENOSPC : 0;
}

/* --- batches ---------------------------------------------------------------------------------- */

uint64_t journal_fit(const struct journal *j, uint64_t position, uint64_t length)
{
	uint64_t lap_end = (position / j->ring + 1) * j->ring;

	return position + length > lap_end ? lap_end : position;
}

static void plan_at(const struct journal *j, uint64_t position, size_t bytes, struct plan *plan)
{
	uint64_t length = journal_blocks(bytes);

	plan->position = journal_fit(j, position, length);
	plan->end = plan->position + length;
	plan->next = journal_clear(j, plan->end);
}

/* How far ahead of `next` the window should be; two blocks at least, for a batch that moves it. */
static uint64_t ahead(const struct journal *j, uint64_t next)
{
	uint64_t limit = ring_end(j) - j->batch_max;
	uint64_t left = limit > next ? (limit - next) / 4 : 0;

	left = (left < j->ring / 8 ? left : j->ring / 8) / BLOCK_SIZE * BLOCK_SIZE;
	return later(left, 2 * BLOCK_SIZE);
}

static uint64_t window_after(const struct journal *j, uint64_t next)
{
	uint64_t window = next + ahead(j, next);

	if (window > ring_end(j))
		window = ring_end(j);
	return later(window, j->promised);
}

/* Room for a batch that does nothing but move the window must be left below it. */
static bool leaves_a_way_on(const struct journal *j, const struct plan *plan)
{
	return plan->next + 2 * BLOCK_SIZE <= ring_end(j);
}

bool journal_plan(const struct journal *j, size_t fill, struct plan *plan)
{
	plan_at(j, j->durable.position, fill, plan);
	plan->announce =
		plan->next != plan->end || j->promised < plan->next + ahead(j, plan->next) / 3;
	if (plan->announce)
		plan_at(j, j->durable.position, fill + WINDOW_RECORD, plan);
	plan->window = plan->announce ? window_after(j, plan->next) : j->promised;
	return leaves_a_way_on(j, plan);
}

bool journal_plan_window(const struct journal *j, size_t fill, struct plan *plan)
{
	struct plan then;

	plan_at(j, j->durable.position, BATCH_HEADER_SIZE + WINDOW_RECORD, plan);
	plan_at(j, plan->next, fill + WINDOW_RECORD, &then);
	plan->announce = true;
	plan->window = later(window_after(j, plan->next), then.end);
	return leaves_a_way_on(j, plan) && plan->window <= ring_end(j);
}

/* --- room ------------------------------------------------------------------------------------- */

uint64_t journal_cost(size_t bytes)
{
	return journal_blocks(BATCH_HEADER_SIZE + RECORD_HEAD + bytes + WINDOW_RECORD);
}

/*
 * The most that batches between two positions leave unused: at the ring's end less than a batch's
 * length, at a held range that and the range.
 */
static uint64_t wasted(const struct journal *j, uint64_t from, uint64_t to)
{
	uint64_t reach = to + j->batch_max, lap = from / j->ring;
	uint64_t waste = (reach / j->ring - lap) * j->batch_max;

	for (unsigned i = 0; i < j->held_range_count; i++) {
		const struct held_range *range = &j->held_ranges[i];

		for (uint64_t at = lap * j->ring; at + range->from < reach; at += j->ring) {
			if (at + range->to > from)
				waste += at + range->to - later(at + range->from, from) +
					 j->batch_max;
		}
	}
	return waste;
}

static uint64_t queued(const struct journal *j)
{
	uint64_t bytes = 0;

	for (const struct batch *b = j->queue; b; b = b->next)
		bytes += journal_blocks(b->fill + WINDOW_RECORD);
	return bytes + (j->filling ? journal_blocks(j->filling->fill + WINDOW_RECORD) : 0);
}

/* A quarter more is for batches that move the window. What is wasted grows with what is needed, and
 * the other way round, until either fits or the ring is full. */
bool journal_has_room(const struct journal *j, uint64_t cost, bool urgent)
{
	uint64_t head = j->state == JOURNAL_IDLE ? j->durable.position : j->plan.next;
	uint64_t before = queued(j) + j->reserved, need = before + cost;
	uint64_t at, next;

	if (head == j->tail && !before)
		return true; /* it will never be emptier */
	/* Right behind a checkpoint, one record at a time may have it all. */
	if (head - j->tail <= j->ring / 8 && !before)
		urgent = true;
	need += need / 4 + 2 * BLOCK_SIZE + (urgent ? 0 : j->batch_max + j->ring / 8);
	for (at = head + need; at <= ring_end(j); at = next) {
		next = head + need + wasted(j, head, at);
		if (next == at)
			return true;
	}
	return false;
}
