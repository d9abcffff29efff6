/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Requests that change names. What is done for one is recorded with it, so that the next server can
 * answer a client that has no answer of this one's (request_mark.h).
 */
#include "export/internal.h"

#include <errno.h>
#include <string.h>

#include "request_mark.h"

_Static_assert(POOL_SESSION == NFS4_SESSIONID_SIZE, "a session's name fits");

static struct pool_done done_of(const struct request_mark *mark)
{
	struct pool_done done = {
		.slot = mark->slot, .sequence = mark->sequence, .digest = mark->digest};

	memcpy(done.session, mark->session, POOL_SESSION);
	return done;
}

void request_begin(void)
{
	static _Thread_local struct pool_done done;
	struct request_mark mark;

	if (!request_mark_get(&mark))
		return;
	done = done_of(&mark);
	volume_request_begin(&done);
}

void request_end(void)
{
	volume_request_end();
}

bool request_was_done(const struct request_mark *mark)
{
	const struct pool_done done = done_of(mark);

	return done_before(nvme.pool, &done);
}

void request_session_gone(const sessionid4 session, uint32_t slots)
{
	uint64_t lsn;
	int r = done_delete(nvme.pool, (const uint8_t *)session, slots, &lsn);

	if (r && r != -EROFS && !pool_failure(nvme.pool))
		LogCrit(COMPONENT_CLIENTID, "pool %s: records of a session stay: %s",
			pool_name(nvme.pool), strerror(-r));
}
