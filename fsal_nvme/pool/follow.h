/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Readers: how the pool follows its owner (follow.c). */
#ifndef MILLRACE_POOL_FOLLOW_H
#define MILLRACE_POOL_FOLLOW_H

#include "pool/internal.h"

#define FOLLOW_EVERY_NS (UINT64_C(10) * 1000 * 1000 * 1000) /* from one look to the next */

int follow_create(struct pool *pool);
void follow_destroy(struct pool *pool);
/* Loads the newest root while the pool is opened; pool->label is what was found. */
int follow_open(struct pool *pool);
/* Looks when it is time, or when somebody waits. By maintenance. */
int follow_round(struct pool *pool);
/* The labels of all members that answer in time, or of as many as are needed, through `each`; a bit
 * of `answers` for each of them. -ESHUTDOWN, -ENOMEM, -EIO: nobody was asked. */
int follow_labels(struct pool *pool, int (*each)(void *data, const struct label *label), void *data,
	uint64_t *answers);
/* There is no look from one to the other, which may be held over I/O: what a look goes by, members'
 * devices and headers, may change. */
void follow_pause(struct pool *pool);
void follow_go_on(struct pool *pool);
/* Of a reader's member, in a look or while there is none: whether it has the device that its label
 * names, for another one may have its number now; and what state it has by that. */
bool member_there(const struct member *member);
enum device_state member_seen(const struct member *member);

#endif
