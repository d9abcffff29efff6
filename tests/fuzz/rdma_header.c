/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The header of RPC-over-RDMA that a peer sends: first how many bytes came inline behind it (two
 * bytes), then what came. */
#include "fuzz.h"

#include "rdma_header.h"

enum {
	MESSAGE,
	NO_MESSAGE,
	READ_CHUNKS,
	WRITE_CHUNKS,
	REPLY_CHUNK,
	VERSION,
	WRONG,
	DROPPED,
	POSITIONS
};

struct fuzz_type fuzz_types[] = {
	[MESSAGE] = {"a message inline", 0},
	[NO_MESSAGE] = {"a message in a chunk", 0},
	[READ_CHUNKS] = {"read chunks in a message", 0},
	[WRITE_CHUNKS] = {"write chunks", 0},
	[REPLY_CHUNK] = {"a reply chunk", 0},
	[VERSION] = {"another version", 0},
	[WRONG] = {"a wrong header", 0},
	[DROPPED] = {"nothing to answer", 0},
	[POSITIONS] = {"positions that contradict each other", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 4096;

/* Each byte of the stream is one that came, inline or by the read chunks, and none comes twice. */
static void check_pieces(const struct rdma_header *header, uint32_t inline_length)
{
	struct rdma_piece piece[RDMA_HEADER_PIECES];
	int count = rdma_header_pieces(header, inline_length, piece);
	uint32_t base = 0;

	if (count < 0) {
		fuzz_reach(POSITIONS);
		return;
	}
	assert(count <= RDMA_HEADER_PIECES);
	for (int i = 0; i < count; i++) {
		uint64_t end = (uint64_t)piece[i].at + piece[i].length;

		assert(piece[i].length &&
			end <= (piece[i].read ? header->read_bytes : inline_length));
		if (piece[i].read == header->nomsg && piece[i].at == base)
			base += piece[i].length;
	}
	assert(header->nomsg || base == inline_length);
}

/* What is answered fits its announced size, and says the same of its chunks. */
static void check_reply(struct rdma_header *header, bool nomsg)
{
	size_t size = rdma_header_reply_size(header, nomsg);
	uint8_t *reply = malloc(size);

	assert(reply && rdma_header_reply(header, nomsg, 32, reply) == size);
	free(reply);
}

static void check(struct rdma_header *header, uint32_t inline_length)
{
	fuzz_reach(header->nomsg ? NO_MESSAGE : MESSAGE);
	if (header->reads && !header->nomsg)
		fuzz_reach(READ_CHUNKS);
	if (header->writes)
		fuzz_reach(WRITE_CHUNKS);
	assert(header->reads <= RDMA_HEADER_SEGMENTS && header->segments <= RDMA_HEADER_SEGMENTS);
	check_pieces(header, inline_length);
	check_reply(header, false);
	if (!header->has_reply)
		return;
	fuzz_reach(REPLY_CHUNK);
	check_reply(header, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rdma_header header;
	uint8_t error[RDMA_HEADER_ERROR_SIZE], *frame;
	uint32_t inline_length;
	int rc;

	if (size < 2)
		return 0;
	inline_length = (data[0] | data[1] << 8) & ~3u;
	frame = fuzz_frame(data + 2, size - 2, size - 2);
	rc = rdma_header_parse(frame, size - 2, &header);
	free(frame);
	switch (rc) {
	case RDMA_HEADER_OK:
		assert(header.length <= size - 2);
		check(&header, inline_length);
		break;
	case RDMA_HEADER_DROP:
		fuzz_reach(DROPPED);
		break;
	default:
		assert(rdma_header_error(header.xid, 32, rc, error) <= sizeof(error));
		fuzz_reach(rc == RDMA_HEADER_VERSION ? VERSION : WRONG);
	}
	return 0;
}
