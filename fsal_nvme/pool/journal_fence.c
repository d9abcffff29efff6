/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Later owners: what is done only after a look at the labels.
 *
 * Moving the window. A record that names a new window is not enough to write up to it: an owner
 * that was paused, and replaced meanwhile, wakes up, makes such a record durable where nobody will
 * read it, and would go on into the next owner's part of the ring. So the order is
 *
 *   1. the record with the new window is durable (promised),
 *   2. the labels on the journal's members are read, and none is of a later epoch,
 *   3. the window is used.
 *
 * The next owner writes its labels first and replays then. When 2 saw none of them, 1 was durable
 * before, and the next owner's replay has met the record and begins behind the new window. When it
 * did see them, we stop. A pause between any two of the steps changes nothing in that.
 *
 * The members with our copies are the ones to ask: an owner that could be overwritten writes its
 * copies to the same members, and labels to all that it has. One that cannot be read says nothing,
 * one answer is needed.
 *
 * Acknowledging. What an owner makes durable after its successor's replay has passed that place is
 * lost. While a look that showed no later owner on parity + 1 members (beat.c has one a second)
 * began less than LEASE_NS ago, this cannot be: the successor's claim came after that look, and it
 * waits for longer between its claim and its replay, unless it knows us to be dead. Otherwise, the
 * process having stood still or too many devices being slow to answer, a batch that is durable is
 * JOURNAL_UNSURE: nobody is told, and nothing goes on behind it, until a look that began after that
 * shows no later owner. Then the claim, if one comes, finds the batch.
 */
#include "pool/journal.h"

int journal_fence_create(struct journal *j)
{
	struct fence *f = &j->fence;

	f->bodies_size = (j->pool->header.parity + 1u) * LABEL_BODY;
	f->bodies = buffer_alloc(j->pool->engine, f->bodies_size);
	return f->bodies ? 0 : -ENOMEM;
}

void journal_fence_destroy(struct journal *j)
{
	if (j->fence.bodies)
		buffer_free(j->pool->engine, j->fence.bodies, j->fence.bodies_size);
}

bool journal_fence_holds(const struct journal *j)
{
	const struct pool *pool = j->pool;
	uint64_t now = engine_clock(pool->engine);
	unsigned fresh = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		const struct member *member = &pool->devices[i];
		uint64_t looked = atomic_load(&member->looked);

		fresh += member_usable(member) && looked && looked + LEASE_NS > now;
	}
	return fresh > pool->header.parity;
}

bool journal_fence_wanted(struct journal *j)
{
	struct fence *f = &j->fence;
	bool unsure = j->state == JOURNAL_UNSURE;

	if (f->looking || j->failure || (j->promised == j->window && !unsure))
		return false;
	f->looking = true;
	f->unsure = unsure;
	f->window = j->promised;
	f->members = j->copies;
	f->began = engine_clock(j->pool->engine);
	return true;
}

/* 0, -ESTALE when there is a later owner, or the error when no member answers. */
static int verdict(struct journal *j)
{
	struct fence *f = &j->fence;
	int rc = -EIO;

	for (unsigned i = 0; i < f->members.count; i++) {
		if (f->ios[i].result) {
			if (rc)
				rc = f->ios[i].result;
			continue;
		}
		if (label_is_later(f->bodies + i * LABEL_BODY, j->pool->label.pool, j->pool->epoch))
			return -ESTALE;
		atomic_store(&f->members.member[i]->looked, f->began);
		rc = 0;
	}
	return rc;
}

static void looked(struct journal *j)
{
	struct durable_wait *durable = NULL;
	int rc = verdict(j);
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
		pool_fail(j->pool, rc,
			rc == -ESTALE ? "another host has taken the pool over"
				      : "no label can be read");
	journal_completion_over(j);
}

static void look_done(struct io *io)
{
	struct journal *j = io->data;

	if (atomic_fetch_sub(&j->fence.pending, 1) == 1)
		looked(j);
}

/* Area A of the place that the next epoch's labels go to; any later epoch has written there too. */
void journal_fence_look(struct journal *j)
{
	struct fence *f = &j->fence;
	uint64_t offset = label_place(LABEL_A_OFFSET, j->pool->epoch + 1);
	struct io *list[POOL_WIDTH_MAX];
	unsigned count = f->members.count;

	atomic_store(&f->pending, count);
	for (unsigned i = 0; i < count; i++) {
		io_prepare(&f->ios[i], IO_READ, f->members.member[i]->device, offset,
			f->bodies + i * LABEL_BODY, LABEL_BODY);
		f->ios[i].done = look_done;
		f->ios[i].data = j;
		list[i] = &f->ios[i];
	}
	io_submit(j->pool->engine, list, count);
}
