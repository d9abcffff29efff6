/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include <errno.h>

#include "cli/fenced_by.h"
#include "common/cluster.h"

/* A device of a pool is known by what its header says, though its labels may be bad. */
static bool fences_as_member(struct engine *engine, const char *path)
{
	struct pool_summary summary = {0};
	int rc = pool_probe(engine, path, &summary);

	return (!rc || rc == -EBADMSG) && host_fences_by(summary.device);
}

int refuse_fencing(struct engine *engine, const char *path, const char *advice, struct error *error)
{
	if (!host_is_member() || (!host_fences_over(path) && !fences_as_member(engine, path)))
		return 0;
	return error_set(
		error, -EBUSY, path, "nodes of this host's cluster are fenced over it: %s", advice);
}
