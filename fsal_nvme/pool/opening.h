/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What open.c, open_find.c and open_claim.c share: a pool that is being opened. All functions
 * return 0 or a negative errno, and tell the opener's `error`.
 */
#ifndef MILLRACE_POOL_OPENING_H
#define MILLRACE_POOL_OPENING_H

#include "pool/label.h"

struct opening {
	struct engine *engine;
	const struct pool_open_options *options;
	struct error *error;
	struct pool *pool;
	struct device_look *looks; /* at each path */
	char unreadable[sizeof(((struct pool *)0)->unreadable)]; /* paths that show no header */
	struct heads heads; /* as found */
	struct label best; /* of the pool chosen: the newest */
	struct label last; /* ... the one of the greatest epoch; mostly the same */
	bool ambiguous;
	bool rehearsal; /* ends when members are counted, and opens them for reading alone */
	bool owner_gone; /* the best label's owner can write no more */
	bool watched; /* it was waited for: it may be alive after all */
	bool present[POOL_DEVICES_MAX];
	uint64_t busy; /* active devices that are not, a bit each: they stayed in use */
	uint64_t busy_since; /* engine_clock(); 0: none was */
};

/* --- open_find.c ------------------------------------------------------------------------------ */

/* The pool among the paths: its labels are noted. */
int opening_find(struct opening *o);
/* Makes a label of the pool o->best, o->last, or both, if it is. */
void opening_note(struct opening *o, const struct label *label);
/* Its devices, as members of o->pool: exclusively, unless it is only read. Waits for some that are
 * in use, and leaves them out then. -EBUSY: another process has them all. */
int opening_members(struct opening *o);
/* Refuses an old minority; below m + 1 usable devices the pool is read-only, or refused where
 * another node may be able to write it. */
int opening_count(struct opening *o);
/* The members that an opening for writing is going to drop, a bit each: missing, or not able to
 * take a claim. */
uint64_t opening_lost(const struct opening *o);

/* --- open_claim.c ----------------------------------------------------------------------------- */

/* Ends well when the old owner is gone, or does nothing that this opening has to know of: then the
 * pool's labels are of a new epoch, and its beat goes. */
int opening_claim(struct opening *o);
/* Members that took no claim, or no take-over, are going to be dropped, as the missing ones are,
 * and are counted with them. -EIO: they are too many. */
int opening_check_losses(struct opening *o);
/* -EBUSY or -ENOSPC as given: the room of earlier owners is used up. Says whose death would help.
 */
int opening_refuse_for_others(struct opening *o, int rc);

#endif
