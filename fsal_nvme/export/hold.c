/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Held replies: what was done in memory is answered when it is durable, without a thread that
 * waits. The hold is taken in the worker's thread, within the FSAL call; it is released by the
 * pool, from one of its threads or before the call returns.
 */
#include "export/internal.h"

#include "reply_hold.h"

struct hold {
	struct reply_hold *reply; /* NULL: nobody waits */
	struct durable_wait wait;
	struct volume_commit commit;
};

static void hold_end(struct hold *hold, int status)
{
	reply_hold_release(hold->reply, status_nfs(status));
	gsh_free(hold);
}

static void durable(struct durable_wait *wait, int status)
{
	hold_end(container_of(wait, struct hold, wait), status ? -EIO : 0);
}

void hold_until_durable(uint64_t lsn)
{
	struct reply_hold *reply = lsn ? reply_hold_take() : NULL;
	struct hold *hold;

	if (!reply)
		return;
	hold = gsh_calloc(1, sizeof(*hold));
	hold->reply = reply;
	hold->wait.done = durable;
	pool_when_durable(nvme.pool, lsn, &hold->wait);
}

static void committed(struct volume_commit *commit, int status)
{
	hold_end(container_of(commit, struct hold, commit), status);
}

void hold_until_committed(struct volume_file *file)
{
	struct hold *hold = gsh_calloc(1, sizeof(*hold));

	hold->reply = reply_hold_take();
	hold->commit.done = committed;
	volume_commit(file, &hold->commit);
}
