/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The transport header of RPC-over-RDMA version 1 (RFC 8166, section 4): parsed once, into a
 * structure of fixed size that says nothing which the received bytes do not bear out.
 *
 * What a call consists of is told by rdma_header_pieces(): runs of the received message and of the
 * bytes that the read chunks bring, in the order of the XDR stream.
 */
#ifndef RDMA_HEADER_H
#define RDMA_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDMA_HEADER_SEGMENTS 64 /* of the read list, and of all other chunks together */
#define RDMA_HEADER_CHUNKS 8 /* of the write list */
#define RDMA_HEADER_PIECES (2 * RDMA_HEADER_SEGMENTS + 1)
#define RDMA_HEADER_ERROR_SIZE 28

/* What rdma_header_parse() may find wrong */
#define RDMA_HEADER_OK 0
#define RDMA_HEADER_VERSION 1 /* ERR_VERS is to be answered */
#define RDMA_HEADER_CHUNK 2 /* ERR_CHUNK is to be answered */
#define RDMA_HEADER_DROP 3 /* nothing is to be answered */

struct rdma_segment {
	uint32_t handle;
	uint32_t length;
	uint64_t offset;
};

struct rdma_read_segment {
	uint32_t position; /* in the XDR stream; the same for all segments of a chunk */
	uint32_t at; /* where its bytes belong among those of all read segments */
	struct rdma_segment segment;
};

/* A chunk that the reply may fill: segments of rdma_header.segment */
struct rdma_chunk {
	unsigned first, count;
	uint64_t length;
};

struct rdma_header {
	uint32_t xid;
	uint32_t credits; /* that the peer asks for */
	uint32_t length; /* bytes of the header, 0 of a wrong one; the inline part of the message
			    follows */
	bool error; /* it tells what was wrong with one of ours, and is dropped */
	bool nomsg; /* the message is in the read chunk at position 0 */
	bool has_reply; /* a reply chunk is given */
	unsigned reads, writes, segments;
	uint32_t read_bytes; /* of all read chunks, each rounded up to 4 */
	struct rdma_read_segment read[RDMA_HEADER_SEGMENTS];
	struct rdma_chunk write[RDMA_HEADER_CHUNKS];
	struct rdma_chunk reply;
	struct rdma_segment segment[RDMA_HEADER_SEGMENTS];
};

struct rdma_piece {
	bool read; /* of the read chunks' bytes, else of what follows the header */
	uint32_t at, length;
};

int rdma_header_parse(const void *data, size_t length, struct rdma_header *header);

/* The pieces of a call of which `inline_length` bytes came behind the header; their number, or
 * -1 where positions contradict each other. `piece` has room for RDMA_HEADER_PIECES. */
int rdma_header_pieces(
	const struct rdma_header *header, uint32_t inline_length, struct rdma_piece *piece);

/* Bytes that the header of the reply to a call takes, with all its write chunks and, where
 * `nomsg`, its reply chunk. */
size_t rdma_header_reply_size(const struct rdma_header *header, bool nomsg);

/* Writes that header; the lengths of the call's segments by now say how much was put there. */
size_t rdma_header_reply(
	const struct rdma_header *header, bool nomsg, uint32_t credits, void *data);

/* Writes the header of a call that has no chunks; `credits` are asked for. Its length. */
size_t rdma_header_call(uint32_t xid, uint32_t credits, void *data);

/* Writes the answer to a header that is wrong; RDMA_HEADER_ERROR_SIZE bytes at most. */
size_t rdma_header_error(uint32_t xid, uint32_t credits, int error, void *data);

#endif
