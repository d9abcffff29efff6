/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What makes devices a pool's (create.c): all of a new pool, or one in the place of another
 * (attach.c). */
#ifndef MILLRACE_POOL_CREATE_H
#define MILLRACE_POOL_CREATE_H

#include "pool/internal.h"

/* Where everything lies on devices of these sizes; no identities yet. -EINVAL: a device is too
 * small, or nothing that can be opened again comes of it. */
int geometry_plan(const struct pool_create_options *options, const uint64_t *sizes,
	struct device_header *headers, struct error *error);

/* The same for a device of `size` bytes that takes the place of one with so many slots, in the pool
 * of header `like`. -EFBIG: it is too small. */
int geometry_plan_like(const struct device_header *like, uint64_t size, uint32_t slots,
	struct device_header *header);
/* That it is of no pool, and holds nothing that libblkid knows. -EBUSY tells what it does hold. */
int device_check_unused(
	struct engine *engine, struct device *device, const char *path, struct error *error);
void uuid_make(struct engine *engine, uint8_t uuid[16]);

#endif
