/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Devices that hold what this host's cluster fences by. */
#ifndef MILLRACE_FENCED_BY_H
#define MILLRACE_FENCED_BY_H

#include "pool/pool.h"

/* 0, or -EBUSY: `path` is one, and is not to be destroyed: nodes would not start any more, as sbd
 * would have nothing to read. `advice` is what to do instead. Waits. */
int refuse_fencing(
	struct engine *engine, const char *path, const char *advice, struct error *error);

#endif
