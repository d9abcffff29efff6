/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include <arpa/inet.h>
#include <string.h>

#include "rdma_header.h"

#define VERSION 1
#define WORD 4
#define SEGMENT_SIZE 16
#define FIXED_SIZE 16 /* xid, version, credits, type */

enum type { TYPE_MSG = 0, TYPE_NOMSG = 1, TYPE_DONE = 3, TYPE_ERROR = 4 };

/* --- reading ------------------------------------------------------------------------------ */

/* What is left to read; once too little was left, all that follows is 0. */
struct cursor {
	const uint8_t *at;
	size_t left;
	bool short_of;
};

static uint32_t get32(struct cursor *cursor)
{
	uint32_t value;

	if (cursor->left < WORD) {
		cursor->short_of = true;
		cursor->left = 0;
		return 0;
	}
	memcpy(&value, cursor->at, WORD);
	cursor->at += WORD;
	cursor->left -= WORD;
	return ntohl(value);
}

static struct rdma_segment get_segment(struct cursor *cursor)
{
	struct rdma_segment segment;

	segment.handle = get32(cursor);
	segment.length = get32(cursor);
	segment.offset = (uint64_t)get32(cursor) << 32;
	segment.offset |= get32(cursor);
	return segment;
}

/* A list goes on, ends, or is none at all. */
static bool get_more(struct cursor *cursor, bool *bad)
{
	uint32_t more = get32(cursor);

	if (cursor->short_of || more > 1)
		*bad = true;
	return !*bad && more;
}

static uint32_t round_up(uint32_t length)
{
	return (length + WORD - 1) & ~(uint32_t)(WORD - 1);
}

static bool read_list(struct cursor *cursor, struct rdma_header *header)
{
	uint64_t at = 0;
	bool bad = false;

	while (get_more(cursor, &bad)) {
		struct rdma_read_segment *read = &header->read[header->reads];

		if (header->reads == RDMA_HEADER_SEGMENTS)
			return false;
		read->position = get32(cursor);
		read->segment = get_segment(cursor);
		if (cursor->short_of || read->position % WORD)
			return false;
		if (header->reads && read->position < read[-1].position)
			return false;
		if (header->reads && read->position > read[-1].position)
			at = (at + WORD - 1) & ~(uint64_t)(WORD - 1);
		read->at = (uint32_t)at;
		at += read->segment.length;
		if (at > INT32_MAX)
			return false;
		header->reads++;
	}
	header->read_bytes = round_up((uint32_t)at);
	return !bad;
}

static bool chunk(struct cursor *cursor, struct rdma_header *header, struct rdma_chunk *chunk)
{
	chunk->count = get32(cursor);
	chunk->first = header->segments;
	chunk->length = 0;
	if (cursor->short_of || !chunk->count ||
		chunk->count > RDMA_HEADER_SEGMENTS - header->segments)
		return false;
	for (unsigned i = 0; i < chunk->count; i++) {
		struct rdma_segment *segment = &header->segment[header->segments++];

		*segment = get_segment(cursor);
		chunk->length += segment->length;
	}
	return !cursor->short_of;
}

static bool write_list(struct cursor *cursor, struct rdma_header *header)
{
	bool bad = false;

	while (get_more(cursor, &bad))
		if (header->writes == RDMA_HEADER_CHUNKS ||
			!chunk(cursor, header, &header->write[header->writes++]))
			return false;
	return !bad;
}

static bool reply_chunk(struct cursor *cursor, struct rdma_header *header)
{
	bool bad = false;

	header->has_reply = get_more(cursor, &bad);
	return !bad && (!header->has_reply || chunk(cursor, header, &header->reply));
}

int rdma_header_parse(const void *data, size_t length, struct rdma_header *header)
{
	struct cursor cursor = {.at = data, .left = length};
	uint32_t version, type;

	memset(header, 0, sizeof(*header));
	header->xid = get32(&cursor);
	version = get32(&cursor);
	header->credits = get32(&cursor);
	type = get32(&cursor);
	if (cursor.short_of)
		return RDMA_HEADER_DROP;
	if (version != VERSION)
		return RDMA_HEADER_VERSION;
	header->error = type == TYPE_ERROR;
	if (type == TYPE_DONE || type == TYPE_ERROR)
		return RDMA_HEADER_DROP;
	if (type != TYPE_MSG && type != TYPE_NOMSG)
		return RDMA_HEADER_CHUNK;
	header->nomsg = type == TYPE_NOMSG;
	if (!read_list(&cursor, header) || !write_list(&cursor, header) ||
		!reply_chunk(&cursor, header))
		return RDMA_HEADER_CHUNK;
	/* A message is inline or at position 0, and nowhere else. */
	if (header->nomsg != (header->reads && header->read[0].position == 0))
		return RDMA_HEADER_CHUNK;
	header->length = (uint32_t)(length - cursor.left);
	return RDMA_HEADER_OK;
}

/* --- the call ------------------------------------------------------------------------------- */

/* The stream that read chunks at other positions than 0 are put into. */
struct base {
	bool read;
	uint32_t used, length;
};

static bool take(struct base *base, uint32_t length, struct rdma_piece *piece, int *count)
{
	if (length > base->length - base->used)
		return false;
	if (length) {
		piece[*count] = (struct rdma_piece){base->read, base->used, length};
		(*count)++;
	}
	base->used += length;
	return true;
}

/* Segments from `i` on that belong to one chunk: the first that does not, and its bytes. */
static unsigned chunk_end(const struct rdma_header *header, unsigned i, uint32_t *bytes)
{
	uint32_t position = header->read[i].position;

	for (*bytes = 0; i < header->reads && header->read[i].position == position; i++)
		*bytes += header->read[i].segment.length;
	return i;
}

int rdma_header_pieces(
	const struct rdma_header *header, uint32_t inline_length, struct rdma_piece *piece)
{
	struct base base = {header->nomsg, 0, inline_length};
	uint32_t before = 0, bytes;
	unsigned i = 0;
	int count = 0;

	if (header->nomsg)
		i = chunk_end(header, 0, &base.length);
	while (i < header->reads) {
		const struct rdma_read_segment *first = &header->read[i];

		/* The position counts what the chunks before this one have taken out. */
		if (first->position < before + base.used ||
			!take(&base, first->position - before - base.used, piece, &count))
			return -1;
		i = chunk_end(header, i, &bytes);
		if (bytes)
			piece[count++] = (struct rdma_piece){true, first->at, round_up(bytes)};
		before += round_up(bytes);
	}
	return take(&base, base.length - base.used, piece, &count) ? count : -1;
}

/* --- the reply ------------------------------------------------------------------------------ */

static uint8_t *put32(uint8_t *at, uint32_t value)
{
	value = htonl(value);
	memcpy(at, &value, WORD);
	return at + WORD;
}

static uint8_t *put_chunk(
	uint8_t *at, const struct rdma_header *header, const struct rdma_chunk *chunk)
{
	at = put32(at, 1);
	at = put32(at, chunk->count);
	for (unsigned i = 0; i < chunk->count; i++) {
		const struct rdma_segment *segment = &header->segment[chunk->first + i];

		at = put32(at, segment->handle);
		at = put32(at, segment->length);
		at = put32(at, (uint32_t)(segment->offset >> 32));
		at = put32(at, (uint32_t)segment->offset);
	}
	return at;
}

size_t rdma_header_reply_size(const struct rdma_header *header, bool nomsg)
{
	size_t size = FIXED_SIZE + 3 * WORD;

	for (unsigned i = 0; i < header->writes; i++)
		size += 2 * WORD + header->write[i].count * SEGMENT_SIZE;
	if (nomsg)
		size += WORD + header->reply.count * SEGMENT_SIZE;
	return size;
}

size_t rdma_header_reply(const struct rdma_header *header, bool nomsg, uint32_t credits, void *data)
{
	uint8_t *at = put32(data, header->xid);

	at = put32(at, VERSION);
	at = put32(at, credits);
	at = put32(at, nomsg ? TYPE_NOMSG : TYPE_MSG);
	at = put32(at, 0);
	for (unsigned i = 0; i < header->writes; i++)
		at = put_chunk(at, header, &header->write[i]);
	at = put32(at, 0);
	at = nomsg ? put_chunk(at, header, &header->reply) : put32(at, 0);
	return (size_t)(at - (uint8_t *)data);
}

size_t rdma_header_call(uint32_t xid, uint32_t credits, void *data)
{
	uint8_t *at = put32(data, xid);

	at = put32(at, VERSION);
	at = put32(at, credits);
	at = put32(at, TYPE_MSG);
	for (int list = 0; list < 3; list++)
		at = put32(at, 0);
	return (size_t)(at - (uint8_t *)data);
}

size_t rdma_header_error(uint32_t xid, uint32_t credits, int error, void *data)
{
	uint8_t *at = put32(data, xid);

	at = put32(at, VERSION);
	at = put32(at, credits);
	at = put32(at, TYPE_ERROR);
	at = put32(at, error == RDMA_HEADER_VERSION ? 1 : 2);
	if (error == RDMA_HEADER_VERSION) {
		at = put32(at, VERSION);
		at = put32(at, VERSION);
	}
	return (size_t)(at - (uint8_t *)data);
}
