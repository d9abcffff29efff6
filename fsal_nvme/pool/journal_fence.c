/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Moving the window, against a later owner.
 *
 * A record that names a new window is not enough to write up to it: an owner that was paused, and
 * replaced meanwhile, wakes up, makes such a record durable where nobody will read it, and would go
 * on into the next owner's part of the ring. So the order is
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
 */
#include "pool/journal.h"

int journal_fence_create(struct journal *j)
{
	struct fence *f = &j->fence;

	f->bodies_size = (j->pool->header.parity + 1u) * LABEL_BODY;
	f->bodies = buffer_alloc(j->pool->engine, f->bodies_size);
	f->label = malloc(sizeof(*f->label));
	return f->bodies && f->label ? 0 : -ENOMEM;
}

void journal_fence_destroy(struct journal *j)
{
	if (j->fence.bodies)
		buffer_free(j->pool->engine, j->fence.bodies, j->fence.bodies_size);
	free(j->fence.label);
}

bool journal_fence_wanted(struct journal *j)
{
	struct fence *f = &j->fence;

	if (f->looking || j->failure || j->promised == j->window)
		return false;
	f->looking = true;
	f->window = j->promised;
	f->members = j->copies;
	return true;
}

static bool is_later(struct journal *j, const uint8_t *body)
{
	struct label *label = j->fence.label;

	return !label_decode(label, body) && label->epoch > j->pool->epoch &&
	       !memcmp(label->pool, j->pool->label.pool, sizeof(label->pool));
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
		if (is_later(j, f->bodies + i * LABEL_BODY))
			return -ESTALE;
		rc = 0;
	}
	return rc;
}

static void looked(struct journal *j)
{
	int rc = verdict(j);
	bool more, again;

	pthread_mutex_lock(&j->lock);
	j->completing++;
	j->fence.looking = false;
	if (!rc)
		j->window = j->fence.window;
	else if (!j->failure)
		j->failure = rc;
	more = journal_pick(j);
	again = journal_fence_wanted(j);
	pthread_mutex_unlock(&j->lock);
	if (more)
		journal_launch(j);
	if (again)
		journal_fence_look(j);
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
	uint64_t offset = BLOCK_SIZE + (j->pool->epoch + 1) % LABEL_RING * LABEL_SIZE;
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
