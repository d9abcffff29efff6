/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include <errno.h>
#include <stdlib.h>

#include "cli/fenced_by.h"
#include "cli/verb.h"
#include "common/cluster.h"

/* A device of a pool is known by what its header says, though its labels may be bad. */
static bool fences_as_member(struct engine *engine, const char *path)
{
	struct pool_summary summary = {0};
	int rc = pool_probe(engine, path, &summary);
	json_t *uuid = json_uuid(summary.device);
	bool found = (!rc || rc == -EBADMSG) && host_fences_by(json_string_value(uuid));

	json_decref(uuid);
	return found;
}

int refuse_fencing(struct engine *engine, const char *path, struct error *error)
{
	char *real = realpath(path, NULL);
	bool found = (real && host_fences_by(real)) || fences_as_member(engine, path);

	free(real);
	if (!found)
		return 0;
	return error_set(error, -EBUSY, path,
		"nodes of this host's cluster are fenced over it: `millrace cluster leave`, on "
		"each of them, comes first");
}
