/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* XDR (RFC 4506) for wire.c and wire_operations.c: into a slot's call, out of a reply. */
#ifndef WIRE_CODE_H
#define WIRE_CODE_H

#include "wire.h"

void put_bytes(struct slot *slot, const void *bytes, uint32_t length);
void put_u32(struct slot *slot, uint32_t value);
void put_u64(struct slot *slot, uint64_t value);
void put_opaque(struct slot *slot, const void *bytes, uint32_t length);
void put_operation(struct slot *slot, enum operation operation);

const uint8_t *get_bytes(struct reply *reply, uint32_t length);
uint32_t get_u32(struct reply *reply);
uint64_t get_u64(struct reply *reply);
const uint8_t *get_opaque(struct reply *reply, uint32_t *length);
/* The number and status that a result begins with. */
void get_operation(struct reply *reply, enum operation operation);

#endif
