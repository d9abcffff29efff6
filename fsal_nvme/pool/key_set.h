/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A set of keys of an environment, of up to POOL_KEY_MAX bytes each. Not for several threads. */
#ifndef MILLRACE_POOL_KEY_SET_H
#define MILLRACE_POOL_KEY_SET_H

#include <stdint.h>

#include "pool/pool.h"

struct key_set;

/* An empty one; NULL when there is no memory. */
struct key_set *key_set_new(void);
void key_set_free(struct key_set *set); /* NULL: nothing */
/* Copies the key, if it is not there. -ENOMEM: nothing has changed. */
int key_set_add(struct key_set *set, struct bytes key);
uint64_t key_set_count(const struct key_set *set);
/* About what the set takes in memory: the keys' bytes, and 2 for each. */
uint64_t key_set_bytes(const struct key_set *set);
/* Its keys in order: free() the array; they are valid until the set is changed. NULL when there is
 * no memory. */
struct bytes *key_set_sorted(const struct key_set *set);

#endif
