/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* See wire.h. Here: the connection, the session, records and their slots. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "wire_code.h"

#define PROGRAM 100003u
#define MIB (1u << 20) /* the largest WRITE */
#define RECORD_MAX (2 * MIB)
#define LAST_FRAGMENT 0x80000000u
#define WAIT_NS 1000000 /* before a compound that was answered "later" is sent again */

struct wire {
	int socket;
	uint32_t slot_count;
	uint32_t clientid[2];
	uint8_t session[16];
	struct slot slots[WIRE_SLOTS_MAX];
	uint8_t *buffer; /* bytes received: [start, end) are not looked at yet */
	size_t start, end;
};

static void fail(const char *what, uint32_t number)
{
	fprintf(stderr, "%s: %u\n", what, number);
	exit(1);
}

/* --- codes ---------------------------------------------------------------------------------- */

void put_bytes(struct slot *slot, const void *bytes, uint32_t length)
{
	if (length > CALL_MAX - slot->length)
		fail("a call that is too long", length);
	memcpy(slot->call + slot->length, bytes, length);
	slot->length += length;
}

void put_u32(struct slot *slot, uint32_t value)
{
	uint32_t wire = htonl(value);

	put_bytes(slot, &wire, sizeof(wire));
}

void put_u64(struct slot *slot, uint64_t value)
{
	put_u32(slot, (uint32_t)(value >> 32));
	put_u32(slot, (uint32_t)value);
}

void put_opaque(struct slot *slot, const void *bytes, uint32_t length)
{
	put_u32(slot, length);
	put_bytes(slot, bytes, length);
	put_bytes(slot, "\0\0\0", -length & 3);
}

void put_operation(struct slot *slot, enum operation operation)
{
	put_u32(slot, operation);
	slot->operations++;
}

const uint8_t *get_bytes(struct reply *reply, uint32_t length)
{
	const uint8_t *bytes = reply->at;

	if (length > (size_t)(reply->end - reply->at))
		fail("a reply that is too short", length);
	reply->at += length;
	return bytes;
}

uint32_t get_u32(struct reply *reply)
{
	uint32_t value;

	memcpy(&value, get_bytes(reply, sizeof(value)), sizeof(value));
	return ntohl(value);
}

uint64_t get_u64(struct reply *reply)
{
	uint64_t high = get_u32(reply);

	return high << 32 | get_u32(reply);
}

const uint8_t *get_opaque(struct reply *reply, uint32_t *length)
{
	const uint8_t *bytes;

	*length = get_u32(reply);
	bytes = get_bytes(reply, *length);
	get_bytes(reply, -*length & 3);
	return bytes;
}

void get_operation(struct reply *reply, enum operation operation)
{
	uint32_t which = get_u32(reply), status = get_u32(reply);

	if (which != operation)
		fail("the result of another operation", which);
	if (status)
		fail("an operation's status", status);
}

/* --- calls ---------------------------------------------------------------------------------- */

/* Where numbers stand that are known last. */
enum {
	AT_XID = 4,
	AT_COUNT = 80,
	AT_SEQUENCE = 104,
};

static void set_u32(struct slot *slot, uint32_t at, uint32_t value)
{
	uint32_t wire = htonl(value);

	memcpy(slot->call + at, &wire, sizeof(wire));
}

/* The head of a compound without operations: RPC (RFC 5531) with AUTH_SYS as root. */
static void call_head(struct slot *slot)
{
	static const uint32_t head[] = {0, 0, 2, PROGRAM, 4, 1, /* xid, CALL, version ... */
		1, 28, 0, 5, 0, 0, /* AUTH_SYS, its length; stamp; "bench" below */
		0, 0, 0, /* uid, gid, no groups */
		0, 0, 0, 1, 0}; /* no verifier, no tag, minor version, operations */

	slot->length = slot->operations = slot->payload_length = 0;
	put_u32(slot, 0); /* the record's mark */
	for (size_t i = 0; i < sizeof(head) / sizeof(head[0]); i++)
		put_u32(slot, head[i]);
	memcpy(slot->call + 44, "bench", 5);
}

void call_begin(struct slot *slot)
{
	call_head(slot);
	put_operation(slot, OP_SEQUENCE);
	put_bytes(slot, slot->wire->session, 16);
	put_u32(slot, 0);
	put_u32(slot, slot->index);
	put_u32(slot, slot->wire->slot_count - 1);
	put_u32(slot, 0);
}

static void send_all(int socket, struct iovec *iov, int count)
{
	while (count) {
		ssize_t sent = writev(socket, iov, count);

		if (sent < 0 && errno == EINTR)
			continue;
		bench_must(sent < 0 ? -errno : 0, "send");
		for (; count && (size_t)sent >= iov->iov_len; iov++, count--)
			sent -= (ssize_t)iov->iov_len;
		if (count) {
			iov->iov_base = (uint8_t *)iov->iov_base + sent;
			iov->iov_len -= (size_t)sent;
		}
	}
}

static void call_transmit(struct slot *slot)
{
	struct iovec iov[] = {{slot->call, slot->length},
		{(void *)(uintptr_t)slot->payload, slot->payload_length}};

	set_u32(slot, 0, LAST_FRAGMENT | (slot->length - 4 + slot->payload_length));
	set_u32(slot, AT_XID, slot->index); /* one at a time on a slot */
	set_u32(slot, AT_COUNT, slot->operations);
	send_all(slot->wire->socket, iov, slot->payload_length ? 2 : 1);
}

void call_send(struct slot *slot)
{
	set_u32(slot, AT_SEQUENCE, ++slot->sequence);
	call_transmit(slot);
}

/* --- replies -------------------------------------------------------------------------------- */

static void receive_more(struct wire *wire)
{
	ssize_t got;

	if (wire->start) {
		memmove(wire->buffer, wire->buffer + wire->start, wire->end - wire->start);
		wire->end -= wire->start;
		wire->start = 0;
	}
	do
		got = recv(wire->socket, wire->buffer + wire->end, RECORD_MAX - wire->end, 0);
	while (got < 0 && errno == EINTR);
	bench_must(got > 0 ? 0 : got ? -errno : -ECONNRESET, "receive");
	wire->end += (size_t)got;
}

/* The next record; it stays until the one after it is asked for. */
static void receive_record(struct wire *wire, struct reply *reply)
{
	uint32_t mark, length;

	while (wire->end - wire->start < sizeof(mark))
		receive_more(wire);
	memcpy(&mark, wire->buffer + wire->start, sizeof(mark));
	length = ntohl(mark) & ~LAST_FRAGMENT;
	if (!(ntohl(mark) & LAST_FRAGMENT) || length > RECORD_MAX - sizeof(mark))
		fail("a record's mark", ntohl(mark));
	while (wire->end - wire->start < sizeof(mark) + length)
		receive_more(wire);
	reply->at = wire->buffer + wire->start + sizeof(mark);
	reply->end = reply->at + length;
	wire->start += sizeof(mark) + length;
}

/* Takes the head of a reply; returns the compound's status. */
static uint32_t reply_head(struct reply *reply, uint32_t *xid)
{
	uint32_t length, status;

	*xid = get_u32(reply);
	if (get_u32(reply) != 1 || get_u32(reply) != 0)
		fail("not an accepted reply to", *xid);
	get_u32(reply);
	get_opaque(reply, &length);
	if (get_u32(reply) != 0)
		fail("a call that the server could not take", *xid);
	status = get_u32(reply);
	get_opaque(reply, &length);
	get_u32(reply);
	return status;
}

static bool is_later(uint32_t status)
{
	return status == 10008 || status == 10013; /* DELAY, GRACE */
}

struct slot *wire_receive(struct wire *wire, struct reply *reply)
{
	for (;;) {
		struct slot *slot;
		uint32_t xid, status;

		receive_record(wire, reply);
		status = reply_head(reply, &xid);
		slot = wire_slot(wire, xid);
		if (!is_later(status)) {
			if (status)
				fail("a compound's status", status);
			get_operation(reply, OP_SEQUENCE);
			get_bytes(reply, 36);
			return slot;
		}
		nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
		call_send(slot);
	}
}

void wire_exchange(struct slot *slot, struct reply *reply)
{
	call_send(slot);
	if (wire_receive(slot->wire, reply) != slot)
		fail("a reply to another call than", slot->index);
}

struct slot *wire_slot(struct wire *wire, uint32_t index)
{
	if (index >= wire->slot_count)
		fail("no such slot", index);
	return &wire->slots[index];
}

/* --- client and session --------------------------------------------------------------------- */

/* A compound of one operation, without SEQUENCE. */
static void exchange_bare(struct slot *slot, enum operation operation, struct reply *reply)
{
	uint32_t xid, status;

	call_transmit(slot);
	receive_record(slot->wire, reply);
	status = reply_head(reply, &xid);
	if (status)
		fail("a compound's status", status);
	get_operation(reply, operation);
}

static void exchange_id(struct wire *wire)
{
	struct slot *slot = &wire->slots[0];
	struct timespec now;
	struct reply reply;
	char name[32];

	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(name, sizeof(name), "bench %d", (int)getpid());
	call_head(slot);
	put_operation(slot, OP_EXCHANGE_ID);
	put_u64(slot, (uint64_t)now.tv_sec << 32 | (uint64_t)now.tv_nsec);
	put_opaque(slot, name, (uint32_t)strlen(name));
	put_u32(slot, 0);
	put_u32(slot, 0);
	put_u32(slot, 0);
	exchange_bare(slot, OP_EXCHANGE_ID, &reply);
	memcpy(wire->clientid, get_bytes(&reply, 8), 8);
}

static void put_channel(struct slot *slot)
{
	const uint32_t channel[] = {0, RECORD_MAX, RECORD_MAX, 8192, 16, slot->wire->slot_count, 0};

	for (size_t i = 0; i < sizeof(channel) / sizeof(channel[0]); i++)
		put_u32(slot, channel[i]);
}

static void create_session(struct wire *wire)
{
	struct slot *slot = &wire->slots[0];
	struct reply reply;
	uint32_t request, slots;

	call_head(slot);
	put_operation(slot, OP_CREATE_SESSION);
	put_bytes(slot, wire->clientid, 8);
	put_u32(slot, 1);
	put_u32(slot, 0);
	put_channel(slot);
	put_channel(slot);
	put_u32(slot, 0x40000000); /* no callbacks: program, one flavour, AUTH_NONE */
	put_u32(slot, 1);
	put_u32(slot, 0);
	exchange_bare(slot, OP_CREATE_SESSION, &reply);
	memcpy(wire->session, get_bytes(&reply, 16), 16);
	get_bytes(&reply, 8 + 4);
	request = get_u32(&reply);
	get_bytes(&reply, 12);
	slots = get_u32(&reply);
	if (request < CALL_MAX + MIB)
		fail("the server takes no more bytes at a time than", request);
	if (slots < wire->slot_count)
		fail("the server's sessions have no more slots than", slots);
	call_begin(slot);
	put_operation(slot, OP_RECLAIM_COMPLETE);
	put_u32(slot, 0);
	wire_exchange(slot, &reply);
}

struct wire *wire_connect(const char *address, uint16_t port, uint32_t slots)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct wire *wire = calloc(1, sizeof(*wire));
	int on = 1;

	bench_must(wire ? 0 : -ENOMEM, "memory");
	bench_must(slots && slots <= WIRE_SLOTS_MAX ? 0 : -EINVAL, "depth");
	bench_must(inet_pton(AF_INET, address, &to.sin_addr) == 1 ? 0 : -EINVAL, address);
	wire->buffer = bench_memory(RECORD_MAX);
	wire->slot_count = slots;
	for (uint32_t i = 0; i < slots; i++)
		wire->slots[i] = (struct slot){.wire = wire, .index = i};
	wire->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (wire->socket < 0 || connect(wire->socket, (struct sockaddr *)&to, sizeof(to)))
		bench_must(-errno, address);
	setsockopt(wire->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	exchange_id(wire);
	create_session(wire);
	return wire;
}

void wire_close(struct wire *wire)
{
	struct slot *slot = &wire->slots[0];
	struct reply reply;

	call_head(slot);
	put_operation(slot, OP_DESTROY_SESSION);
	put_bytes(slot, wire->session, 16);
	exchange_bare(slot, OP_DESTROY_SESSION, &reply);
	call_head(slot);
	put_operation(slot, OP_DESTROY_CLIENTID);
	put_bytes(slot, wire->clientid, 8);
	exchange_bare(slot, OP_DESTROY_CLIENTID, &reply);
	close(wire->socket);
	free(wire->buffer);
	free(wire);
}
