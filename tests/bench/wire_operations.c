/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* See wire.h. Here: operations of NFSv4.1, what a Linux client would send. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "wire_code.h"

#define READDIR_BYTES (128u << 10)

/* --- attributes ------------------------------------------------------------------------------ */

/* type, change, size, fsid, fileid; mode, numlinks, owner, group, rawdev, used, times */
#define ATTRIBUTES_0 (1u << 1 | 1u << 3 | 1u << 4 | 1u << 8 | 1u << 20)
#define ATTRIBUTES_1                                                                        \
	(1u << 1 | 1u << 3 | 1u << 4 | 1u << 5 | 1u << 9 | 1u << 13 | 1u << 15 | 1u << 20 | \
		1u << 21)
#define ATTRIBUTE_SIZE (1u << 4)
#define ATTRIBUTE_RDATTR_ERROR (1u << 11)
#define ATTRIBUTE_HANDLE (1u << 19)
#define ATTRIBUTE_MODE_1 (1u << 1)

static void put_bitmap(struct slot *slot, uint32_t first, uint32_t second)
{
	put_u32(slot, 2);
	put_u32(slot, first);
	put_u32(slot, second);
}

/* A mode, and a size of 0. */
static void put_attributes(struct slot *slot, uint32_t mode, bool truncate)
{
	put_bitmap(slot, truncate ? ATTRIBUTE_SIZE : 0, ATTRIBUTE_MODE_1);
	put_u32(slot, truncate ? 12 : 4);
	if (truncate)
		put_u64(slot, 0);
	put_u32(slot, mode);
}

static void put_name(struct slot *slot, const char *name)
{
	put_opaque(slot, name, (uint32_t)strlen(name));
}

static void get_bitmap(struct reply *reply)
{
	get_bytes(reply, get_u32(reply) * 4);
}

/* --- calls ------------------------------------------------------------------------------------ */

void call_putrootfh(struct slot *slot)
{
	put_operation(slot, OP_PUTROOTFH);
}

void call_putfh(struct slot *slot, const struct handle *handle)
{
	put_operation(slot, OP_PUTFH);
	put_opaque(slot, handle->bytes, handle->length);
}

void call_getfh(struct slot *slot)
{
	put_operation(slot, OP_GETFH);
}

void call_lookup(struct slot *slot, const char *name)
{
	put_operation(slot, OP_LOOKUP);
	put_name(slot, name);
}

void call_access(struct slot *slot)
{
	put_operation(slot, OP_ACCESS);
	put_u32(slot, 0x2d); /* read, modify, extend, execute */
}

void call_getattr(struct slot *slot)
{
	put_operation(slot, OP_GETATTR);
	put_bitmap(slot, ATTRIBUTES_0, ATTRIBUTES_1);
}

/* The head of OPEN: one owner for all, who wants no delegation. */
static void put_open(struct slot *slot, uint32_t access)
{
	put_operation(slot, OP_OPEN);
	put_u32(slot, 0);
	put_u32(slot, access | 0x0400);
	put_u32(slot, 0);
	put_u64(slot, 0); /* the server knows the client by its session */
	put_opaque(slot, "bench", 5);
}

void call_open_read(struct slot *slot, const char *name)
{
	put_open(slot, 1);
	put_u32(slot, 0);
	put_u32(slot, 0); /* by name in this directory */
	put_name(slot, name);
}

void call_open_create(struct slot *slot, const char *name, bool truncate)
{
	put_open(slot, 2);
	put_u32(slot, 1);
	put_u32(slot, 0); /* unchecked */
	put_attributes(slot, 0644, truncate);
	put_u32(slot, 0);
	put_name(slot, name);
}

static void put_stateid(struct slot *slot, const struct stateid *stateid)
{
	put_bytes(slot, stateid->bytes, sizeof(stateid->bytes));
}

void call_close(struct slot *slot, const struct stateid *stateid)
{
	put_operation(slot, OP_CLOSE);
	put_u32(slot, 0);
	put_stateid(slot, stateid);
}

void call_read(struct slot *slot, const struct stateid *stateid, uint64_t offset, uint32_t length)
{
	put_operation(slot, OP_READ);
	put_stateid(slot, stateid);
	put_u64(slot, offset);
	put_u32(slot, length);
}

void call_write(struct slot *slot, const struct stateid *stateid, uint64_t offset,
	const void *bytes, uint32_t length)
{
	put_operation(slot, OP_WRITE);
	put_stateid(slot, stateid);
	put_u64(slot, offset);
	put_u32(slot, 0); /* unstable */
	put_u32(slot, length);
	slot->payload = bytes;
	slot->payload_length = length;
}

void call_commit(struct slot *slot)
{
	put_operation(slot, OP_COMMIT);
	put_u64(slot, 0);
	put_u32(slot, 0);
}

void call_remove(struct slot *slot, const char *name)
{
	put_operation(slot, OP_REMOVE);
	put_name(slot, name);
}

void call_create_fifo(struct slot *slot, const char *name)
{
	put_operation(slot, OP_CREATE);
	put_u32(slot, 7);
	put_name(slot, name);
	put_attributes(slot, 0644, false);
}

void call_readdir(struct slot *slot, uint64_t cookie, const uint8_t verifier[8])
{
	put_operation(slot, OP_READDIR);
	put_u64(slot, cookie);
	put_bytes(slot, verifier, 8);
	put_u32(slot, READDIR_BYTES / 4);
	put_u32(slot, READDIR_BYTES);
	put_bitmap(slot, ATTRIBUTES_0 | ATTRIBUTE_RDATTR_ERROR | ATTRIBUTE_HANDLE, ATTRIBUTES_1);
}

/* --- results ---------------------------------------------------------------------------------- */

void reply_nothing(struct reply *reply, uint32_t operation)
{
	get_operation(reply, operation);
}

void reply_handle(struct reply *reply, struct handle *handle)
{
	const uint8_t *bytes;

	get_operation(reply, OP_GETFH);
	bytes = get_opaque(reply, &handle->length);
	if (handle->length > HANDLE_MAX) {
		fprintf(stderr, "a handle of %u bytes\n", handle->length);
		exit(1);
	}
	memcpy(handle->bytes, bytes, handle->length);
}

void reply_open(struct reply *reply, struct stateid *stateid)
{
	get_operation(reply, OP_OPEN);
	memcpy(stateid->bytes, get_bytes(reply, 16), 16);
	get_bytes(reply, 20 + 4); /* the directory before and after; flags */
	get_bitmap(reply);
	if (get_u32(reply) == 3 && get_u32(reply) - 1 < 2) /* no delegation, and why */
		get_u32(reply);
}

uint32_t reply_read(struct reply *reply, bool *eof)
{
	uint32_t length;

	get_operation(reply, OP_READ);
	*eof = get_u32(reply);
	get_opaque(reply, &length);
	return length;
}

uint32_t reply_write(struct reply *reply)
{
	get_operation(reply, OP_WRITE);
	return get_u32(reply);
}

unsigned reply_readdir(struct reply *reply, uint64_t *cookie, uint8_t verifier[8], bool *eof,
	void (*each)(const struct entry *entry))
{
	unsigned entries = 0;
	struct entry entry;
	uint32_t length;

	get_operation(reply, OP_READDIR);
	memcpy(verifier, get_bytes(reply, 8), 8);
	while (get_u32(reply)) {
		*cookie = entry.cookie = get_u64(reply);
		entry.name = get_opaque(reply, &entry.length);
		get_bitmap(reply);
		get_opaque(reply, &length);
		entries++;
		if (each)
			each(&entry);
	}
	*eof = get_u32(reply);
	return entries;
}

/* --- several ---------------------------------------------------------------------------------- */

void wire_find(struct wire *wire, const char *path, struct handle *handle)
{
	struct slot *slot = wire_slot(wire, 0);
	char copy[512], *rest = copy, *name;
	unsigned steps = 0;
	struct reply reply;

	bench_must(strlen(path) < sizeof(copy) ? 0 : -ENAMETOOLONG, path);
	strcpy(copy, path);
	call_begin(slot);
	call_putrootfh(slot);
	for (; (name = strsep(&rest, "/")); steps += *name != 0)
		if (*name)
			call_lookup(slot, name);
	call_getfh(slot);
	wire_exchange(slot, &reply);
	reply_nothing(&reply, OP_PUTROOTFH);
	while (steps--)
		reply_nothing(&reply, OP_LOOKUP);
	reply_handle(&reply, handle);
}
