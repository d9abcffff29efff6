/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The compaction of a pool that is served, as its property `compact.rate` says. */
#include <string.h>

#include "cli/verb.h"
#include "common/size.h"

static int read_rate(struct pool *pool, uint64_t *rate)
{
	char text[PROPERTY_VALUE_MAX + 1];
	struct txn *view;
	int rc = view_begin(pool_env(pool), &view);

	if (rc)
		return rc;
	rc = property_value(view, 0, "compact.rate", text, sizeof(text));
	txn_abort(view);
	return rc ? rc : size_parse(text, rate);
}

int compaction_start(struct pool *pool, struct volumes *volumes, struct error *error)
{
	uint64_t rate = 0;
	int rc = read_rate(pool, &rate);

	if (!rc)
		rc = volumes_compact_start(volumes, rate);
	return rc ? error_set(error, rc, pool_name(pool), "it is not compacted: %s", strerror(-rc))
		  : 0;
}
