/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Later owners: what is done only after a look at the labels.
 *
 * Moving the window. A record that names a new window is not enough to write up to it: an owner
 * that was paused, and replaced meanwhile, wakes up, makes such a record durable where nobody will
 * read it, and would go on into the next owner's part of the ring. So the order is
 *
 *   1. the record with the new window is durable (promised),
 *   2. labels are read (pool_look()), and more members than may be lost show none of a later
 *      epoch,
 *   3. the window is used.
 *
 * The next owner writes its labels first and replays then. When 2 saw none of them, 1 was durable
 * before, and the next owner's replay has met the record and begins behind the new window. When it
 * did see them, we stop. A pause between any two of the steps changes nothing in that.
 *
 * Acknowledging. What an owner makes durable after its successor's replay has passed that place is
 * lost. While a look that showed no later owner on enough members (beat.c has one a second)
 * began less than LEASE_NS ago, this cannot be: the successor's claim came after that look, and it
 * waits for longer between its claim and its replay, unless it knows us to be dead. Otherwise, the
 * process having stood still or too many devices being slow to answer, a batch that is durable is
 * JOURNAL_UNSURE: nobody is told, and nothing goes on behind it, until a look that began after that
 * shows no later owner. Then the claim, if one comes, finds the batch.
 */
#include "pool/journal.h"

bool journal_fence_wanted(struct journal *j)
{
	struct fence *f = &j->fence;
	bool unsure = j->state == JOURNAL_UNSURE;

	if (f->looking || j->failure || (j->promised == j->window && !unsure))
		return false;
	f->looking = true;
	f->unsure = unsure;
	f->window = j->promised;
	return true;
}

static void looked(struct look_wait *wait)
{
	struct fence *fence = (struct fence *)((char *)wait - offsetof(struct fence, wait));
	struct journal *j = (struct journal *)((char *)fence - offsetof(struct journal, fence));
	struct durable_wait *durable = NULL;
	int rc = wait->status;
	bool more, again;

	pthread_mutex_lock(&j->lock);
	j->completing++;
	j->fence.looking = false;
	if (!rc)
		j->window = j->fence.window;
	else if (!j->failure)
		j->failure = rc;
	if (!rc && j->fence.unsure)
		durable = journal_flying_is_durable(j);
	more = journal_pick(j);
	again = journal_fence_wanted(j);
	pthread_mutex_unlock(&j->lock);
	if (more)
		journal_launch(j);
	if (again)
		journal_fence_look(j);
	journal_call(durable, 0);
	if (rc)
		pool_fail(j->pool, rc, "the labels of too few devices can be read");
	journal_completion_over(j);
}

void journal_fence_look(struct journal *j)
{
	j->fence.wait.done = looked;
	pool_look(j->pool, &j->fence.wait);
}
