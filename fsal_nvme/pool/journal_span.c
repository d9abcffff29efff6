/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where an epoch begins its journal.
 *
 * Right behind the last batch that was found, when nobody else can write any more. As long as the
 * label lists an owner whose part of the ring is not known yet (the last one, or one that claimed
 * the pool and went no further), it begins behind the window that was found, and what lies between
 * the last batch, which may have copies in flight, and that window is held for all of those.
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

	for (unsigned i = 0; i < label->span_count; i++) {
		const struct journal_span *span = &label->spans[i];

		if (!span->end || span->end > label->replay.position)
			label->spans[kept++] = *span;
	}
	label->span_count = (uint8_t)kept;
}

static int add_span(struct pool *pool, const struct journal_position *start, uint64_t window)
{
	struct label *label = &pool->label;

	journal_prune_spans(label);
	if (label->span_count == SPANS_MAX)
		return -ENOSPC;
	label->spans[label->span_count++] =
		(struct journal_span){.epoch = start->epoch, .start = *start, .window = window};
	return 0;
}

int journal_begin_span(struct pool *pool, struct journal_position *start, uint64_t window)
{
	struct label *label = &pool->label;
	struct journal_span *last = label->span_count ? &label->spans[label->span_count - 1] : NULL;
	uint64_t step = pool->header.journal_size / 8 / BLOCK_SIZE * BLOCK_SIZE;
	int rc;

	if (last && !last->end) {
		last->end = start->position ? start->position : last->start.position;
		last->window = window;
	}
	if (hold_for_owners(label, pool->journal->replayed_last, window))
		start->position = window;
	start->epoch = pool->epoch;
	journal_measure(pool->journal);
	rc = journal_find_start(pool->journal, label->replay.position, &start->position);
	return rc ? rc : add_span(pool, start, start->position + step);
}
