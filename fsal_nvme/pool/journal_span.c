/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where an epoch begins its journal.
 *
 * As long as the label lists an owner whose part of the ring is not known yet (the last one, or one
 * that claimed the pool and went no further), a new span begins behind the window that was found.
 * What lies between the last batch, which may have copies in flight, and that window is held for
 * all of those.
 *
 * When nobody else can write any more, the epoch goes on in the last span, right behind the last
 * batch, so that openings, whether they fail or succeed, do not add up. The batches stay those of
 * one epoch: two that continue the same one could not be told apart. So it must be certain that
 * there is no other: with a member that could not be read at the end, which may have one that was
 * never durable, a new span begins, and the label says where the one before it ended.
 */
#include "pool/journal.h"

/* Those that were added since the last span began. */
static bool hold_for_owners(struct label *label, uint64_t from, uint64_t to)
{
	bool any = false;

	for (unsigned i = 0; i < label->other_count; i++) {
		struct label_owner *owner = &label->others[i];

		if (owner->to)
			continue;
		owner->from = from;
		owner->to = to;
		any = true;
	}
	return any;
}

void journal_prune_spans(struct label *label)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < label->span_count; i++)
		if (i + 1 == label->span_count || label->spans[i].end > label->replay.position)
			label->spans[kept++] = label->spans[i];
	label->span_count = (uint8_t)kept;
}

static int add_span(struct label *label, const struct journal_position *start, uint64_t window)
{
	journal_prune_spans(label);
	if (label->span_count == SPANS_MAX)
		return -ENOSPC;
	label->spans[label->span_count++] = (struct journal_span){
		.epoch = start->epoch, .start = *start, .end = start->position, .window = window};
	return 0;
}

int journal_begin_span(struct pool *pool, struct journal_position *start, uint64_t window)
{
	struct label *label = &pool->label;
	struct journal *j = pool->journal;
	struct journal_span *last = label->span_count ? &label->spans[label->span_count - 1] : NULL;
	uint64_t step = pool->header.journal_size / 8 / BLOCK_SIZE * BLOCK_SIZE;
	bool contested = hold_for_owners(label, j->replayed_last, window);
	uint64_t end = start->position;
	int rc;

	if (contested)
		start->position = window;
	journal_measure(j);
	rc = journal_find_start(j, label->replay.position, &start->position);
	if (rc)
		return rc;
	if (last)
		last->end = end;
	if (last && !contested && start->position == end && j->replayed_all) {
		start->epoch = last->epoch;
		last->window = end + step;
		return 0;
	}
	if (last)
		last->window = window;
	start->epoch = pool->epoch;
	return add_span(label, start, start->position + step);
}
