/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * NFSv4.1 (RFC 8881) over one TCP connection, as much of it as the lean client needs: a session,
 * compounds on its slots, as many at a time as there are slots. One thread; whatever fails ends the
 * program.
 *
 *   wire_connect()                  a client, a session
 *   call_begin(), call_...()        a compound on a slot; SEQUENCE is its first operation
 *   call_send()                     off with it; the slot is busy
 *   wire_receive()                  the reply that comes next, of any slot; that slot is free again
 *   reply_...()                     results, in the order of the operations
 *
 * A compound that is answered "later" (DELAY, GRACE) is sent again before wire_receive() tells of
 * it.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_SLOTS_MAX 64u
#define HANDLE_MAX 128u
#define CALL_MAX 1024u

struct wire;

struct handle {
	uint8_t bytes[HANDLE_MAX];
	uint32_t length;
};

struct stateid {
	uint8_t bytes[16];
};

struct slot {
	struct wire *wire;
	uint32_t index;
	uint32_t sequence;
	uint8_t call[CALL_MAX]; /* with the record's mark in front */
	uint32_t length;
	uint32_t operations;
	const void *payload; /* what follows the call: a WRITE's bytes, a multiple of 4 */
	uint32_t payload_length;
};

/* The bytes of a reply, taken from the front; valid until the next wire_receive(). */
struct reply {
	const uint8_t *at, *end;
};

struct wire *wire_connect(const char *address, uint16_t port, uint32_t slots);
void wire_close(struct wire *wire);
struct slot *wire_slot(struct wire *wire, uint32_t index);
/* SEQUENCE has been taken from the reply, and all operations succeeded. */
struct slot *wire_receive(struct wire *wire, struct reply *reply);
/* Sends the slot's call, and waits for its reply when no other is on its way. */
void wire_exchange(struct slot *slot, struct reply *reply);
/* The handle of a path from the server's root. */
void wire_find(struct wire *wire, const char *path, struct handle *handle);

void call_begin(struct slot *slot);
void call_send(struct slot *slot);
void call_putrootfh(struct slot *slot);
void call_putfh(struct slot *slot, const struct handle *handle);
void call_getfh(struct slot *slot);
void call_lookup(struct slot *slot, const char *name);
void call_access(struct slot *slot);
/* The attributes that a Linux client keeps of a file. */
void call_getattr(struct slot *slot);
void call_open_read(struct slot *slot, const char *name);
/* Unchecked creation with mode 0644, as of open(O_CREAT); TRUNCATE: O_TRUNC too. For writing. */
void call_open_create(struct slot *slot, const char *name, bool truncate);
void call_close(struct slot *slot, const struct stateid *stateid);
void call_read(struct slot *slot, const struct stateid *stateid, uint64_t offset, uint32_t length);
/* Unstable; must be the last of its compound. BYTES stay the caller's until the reply. */
void call_write(struct slot *slot, const struct stateid *stateid, uint64_t offset,
	const void *bytes, uint32_t length);
void call_commit(struct slot *slot);
void call_remove(struct slot *slot, const char *name);
/* A FIFO with mode 0644: what needs no open and no close. */
void call_create_fifo(struct slot *slot, const char *name);
/* Names with their handles and attributes. */
void call_readdir(struct slot *slot, uint64_t cookie, const uint8_t verifier[8]);

void reply_nothing(struct reply *reply, uint32_t operation); /* PUTFH, LOOKUP ... */
void reply_handle(struct reply *reply, struct handle *handle);
void reply_open(struct reply *reply, struct stateid *stateid);
uint32_t reply_read(struct reply *reply, bool *eof); /* bytes that came */
uint32_t reply_write(struct reply *reply); /* bytes taken */
struct entry {
	uint64_t cookie;
	const uint8_t *name;
	uint32_t length;
};
/* The number of entries; cookie and verifier are those to go on with. EACH may be NULL. */
unsigned reply_readdir(struct reply *reply, uint64_t *cookie, uint8_t verifier[8], bool *eof,
	void (*each)(const struct entry *entry));

enum operation {
	OP_ACCESS = 3,
	OP_CLOSE = 4,
	OP_COMMIT = 5,
	OP_CREATE = 6,
	OP_GETATTR = 9,
	OP_GETFH = 10,
	OP_LOOKUP = 15,
	OP_OPEN = 18,
	OP_PUTFH = 22,
	OP_PUTROOTFH = 24,
	OP_READ = 25,
	OP_READDIR = 26,
	OP_REMOVE = 28,
	OP_WRITE = 38,
	OP_EXCHANGE_ID = 42,
	OP_CREATE_SESSION = 43,
	OP_DESTROY_SESSION = 44,
	OP_SEQUENCE = 53,
	OP_DESTROY_CLIENTID = 57,
	OP_RECLAIM_COMPLETE = 58,
};

#endif
