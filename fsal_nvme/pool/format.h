/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What stands on the devices, byte by byte: sizes, magics, and the structs that format.c encodes
 * and decodes. docs/on-disk-format.md tells why. All numbers are little-endian.
 *
 *   block 0            device header (written when the device joins the pool, never changed; a copy
 *                      that has rotted is written again)
 *   label area A       LABEL_RING places of LABEL_SIZE, place = epoch % LABEL_RING
 *   fencing area       of devices that are large enough: FENCING_SIZE bytes at FENCING_OFFSET that
 *                      the pool does not touch, for whoever fences the hosts that share it
 *   journal ring       journal_size bytes
 *   slots              slot_count of slot_size bytes
 *   label area B       as A; the two are never written at the same time
 *   last block         copy of the device header
 *
 * A chunk in its slot:
 *   block 0            chunk header
 *   pages              checksum pages: page p of chunk c stands at block 1 + c * pages + p; a data
 *                      chunk has only its own, a parity chunk those of all chunks of the segment
 *   cells              from block 1 + (k + m) * pages on, one a row
 */
#ifndef MILLRACE_POOL_FORMAT_H
#define MILLRACE_POOL_FORMAT_H

#include "common/codec.h"
#include "pool/pool.h"

#define FORMAT_VERSION 1u
#define LABEL_RING 8u
#define LABEL_SIZE 16384u /* three blocks of label, then one of beat */
#define LABEL_BODY (3 * BLOCK_SIZE)
#define LABEL_AREA (LABEL_RING * LABEL_SIZE)
#define LABEL_A_OFFSET BLOCK_SIZE /* bytes from the start of the device to area A */
#define FENCING_OFFSET (1ull << 20) /* bytes from the start of the device */
#define FENCING_SIZE (3ull << 20)
#define FENCING_DEVICE_LEAST (1ull << 30) /* smaller devices have no such area */
#define ROOT_SEGMENTS_MAX 64u /* narrow ones: see ROOT_ROOM */
#define SPANS_MAX 12u
#define OWNERS_MAX 6u /* each keeps its place of LABEL_RING, the last owner another */
#define PAGE_ENTRIES 1000u /* checksums in a page */
#define CHUNK_MOST (1u << 30) /* bytes of cells in a slot */

/* Where an epoch's labels stand in the area that begins at `area`. */
static inline uint64_t label_place(uint64_t area, uint64_t epoch)
{
	return area + epoch % LABEL_RING * LABEL_SIZE;
}

#define MAGIC_DEVICE 0x31564544524c494dull /* "MILRDEV1" */
#define MAGIC_LABEL 0x314c424c524c494dull /* "MILRLBL1" */
#define MAGIC_BEAT 0x31544542524c494dull /* "MILRBET1" */
#define MAGIC_BATCH 0x314e4a42524c494dull /* "MILRBJN1" */
#define MAGIC_CHUNK 0x314b4843524c494dull /* "MILRCHK1" */
#define MAGIC_PAGE 0x31454750524c494dull /* "MILRPGE1" */

/* Features that this version knows; a pool with an unknown "incompatible" one is refused, with an
 * unknown "read-only" one it is opened for reading alone. */
#define FEATURE_PQ 1ull /* there may be segments of MATRIX_PQ */
#define FEATURES_INCOMPATIBLE FEATURE_PQ
#define FEATURES_READ_ONLY 0ull

/* How parity is computed, in GF(2^8) with polynomial 0x11d (erasure.c). */
enum coding_matrix {
	MATRIX_CAUCHY = 1, /* ISA-L's gf_gen_cauchy1_matrix; for any parity */
	MATRIX_PQ = 2, /* parity i is the sum of 2^(i * j) * data j; for 1 and 2 parity chunks */
};
/* Whether there is such a code: as many chunks of data and of parity. */
bool code_valid(unsigned matrix, unsigned data, unsigned parity);

struct device_header {
	uint64_t incompatible, read_only, compatible; /* features */
	uint8_t pool[16], uuid[16];
	uint16_t id;
	uint8_t data, parity, matrix; /* enum coding_matrix; of new segments */
	uint32_t cell, slot_rows, slot_size, slot_count;
	uint64_t size; /* of the device when it joined */
	uint64_t journal_offset, journal_size, slots_offset, label_b_offset;
	uint64_t created;
};

struct chunk_place {
	uint16_t device;
	uint32_t slot;
};

enum segment_state {
	SEGMENT_RESERVED = 1, /* slots taken, nothing written that counts */
	SEGMENT_OPEN = 2, /* rows with checksums in the pool's environment */
	SEGMENT_CLOSED = 3, /* headers and pages on all live chunks */
	SEGMENT_MOVED = 4, /* no chunks: its bytes are where its remaps say (remap.h) */
};

/* A row of the segment table: where a segment lies and what is in it. */
struct segment_row {
	uint64_t id; /* epoch << 32 | counter */
	uint64_t epoch; /* whose owner may write to its slots */
	uint32_t volume; /* 0: not used yet, or an image */
	uint32_t generation; /* of headers and pages: 1, and one more with each try to close what a
				earlier owner had open */
	uint8_t state, data, parity, matrix;
	uint8_t purpose; /* enum segment_purpose */
	uint32_t cell;
	uint32_t rows; /* closed: rows written; open: rows whose checksums are recorded */
	uint64_t length; /* bytes appended, padding included; closed only */
	uint64_t live; /* of an image: its bytes there, from the start */
	uint64_t next; /* of an image: the segment where it goes on; 0: it ends here */
	struct chunk_place chunks[POOL_WIDTH_MAX]; /* data first, then parity */
};

enum segment_purpose { PURPOSE_DATA = 1, PURPOSE_IMAGE = 2 };

/* A place in the journal: the batch expected next at `position`. */
struct journal_position {
	uint64_t
		position; /* bytes since the pool was made; ring offset = position % journal_size */
	uint64_t lsn; /* of the first record there */
	uint64_t hash; /* of the batch before */
	uint64_t epoch;
};

/* A part of the journal that one epoch began, and that later ones continued which knew the owners
 * before them dead. */
struct journal_span {
	uint64_t epoch; /* the first; all batches carry it */
	struct journal_position start;
	uint64_t end; /* it is known to go on to here; the last span may go on behind */
	uint64_t window; /* nothing of it stands at or behind this position */
};

/* An earlier owner that may still write: it did not close the pool, and is not known to be fenced
 * or dead. What its epoch had reserved is left alone, and so is its part of the journal's ring. */
struct label_owner {
	uint64_t epoch;
	char host[64];
	uint8_t boot[16]; /* of that host, under which it had the pool; zeros: not known */
	uint64_t from, to; /* that part; to 0: not known before the journal is replayed */
};

/* A part of an image of an environment: its bytes lie in PURPOSE_IMAGE segments, each of which
 * names the next. */
enum image_kind { IMAGE_FULL = 1, IMAGE_DELTA = 2 };
struct image_row {
	uint8_t kind;
	uint64_t lsn, length, hash; /* xxh64 of all bytes */
	uint64_t segment; /* the first */
};

/* All of an environment's image: a full one, then deltas, each of what changed since the one
 * before. */
#define IMAGE_PARTS_MAX 17u
struct image {
	unsigned count; /* 0: there is none */
	struct image_row parts[IMAGE_PARTS_MAX];
};

static inline uint64_t image_lsn(const struct image *image)
{
	return image->count ? image->parts[image->count - 1].lsn : 0;
}

static inline uint64_t image_length(const struct image *image)
{
	uint64_t length = 0;

	for (unsigned i = 0; i < image->count; i++)
		length += image->parts[i].length;
	return length;
}

enum label_state { LABEL_EXPORTED = 1, LABEL_ASSIGNED = 2, LABEL_OPEN = 3 };

struct label_device {
	uint8_t uuid[16];
	uint8_t state; /* enum device_state as of this label: DEVICE_ACTIVE or DEVICE_DROPPED */
	char domain[32];
	uint64_t dropped_lsn;
	uint32_t slot_count;
};

/* Which label of all that there were. */
struct label_version {
	uint64_t epoch, sequence; /* the first sequence of an epoch is 1 */
};

struct label {
	uint8_t pool[16];
	char name[POOL_NAME_MAX + 1];
	uint64_t epoch, sequence;
	uint8_t state;
	char owner[64];
	uint8_t owner_boot[16];
	uint64_t owner_pid;
	uint64_t written; /* ns since 1970, for people */
	uint16_t device_count;
	struct label_device devices[POOL_DEVICES_MAX];
	/* the root: the pool environment's image, and where to replay from */
	struct image_row root; /* kind 0: none yet, the pool is new */
	uint8_t root_segment_count;
	struct segment_row root_segments[ROOT_SEGMENTS_MAX];
	struct journal_position replay;
	uint8_t span_count;
	struct journal_span spans[SPANS_MAX];
	uint8_t other_count; /* mostly of different hosts: its own opening knows an owner dead */
	struct label_owner others[OWNERS_MAX];
	/* A claim: the label, of an earlier epoch, of which it repeats what this opening did not
	 * decide. Sequence 0: it is no claim. See label_is_newer(). */
	struct label_version repeats;
};

struct chunk_header {
	uint8_t pool[16];
	uint64_t segment;
	uint32_t generation;
	uint8_t index, data, parity, matrix;
	uint32_t cell, rows;
	uint64_t length; /* of the segment */
	uint32_t volume;
};

struct checksum_page {
	uint8_t pool[16];
	uint64_t segment;
	uint32_t generation;
	uint8_t chunk; /* whose checksums these are */
	uint32_t index; /* the first entry is block index * PAGE_ENTRIES of the chunk's cells */
	uint32_t count;
	uint32_t sums[PAGE_ENTRIES];
};

struct batch_header {
	uint8_t pool[16];
	uint64_t epoch, position, lsn,
		previous; /* of its span; previous: hash of the batch before */
	uint32_t records, length; /* bytes, header included, before padding to BLOCK_SIZE */
	uint64_t hash; /* xxh64 of what follows this field, seeded by xxh64 of what stands before */
};
#define BATCH_HEADER_SIZE 96u

struct beat {
	uint64_t epoch, count;
};

/* Encoders fill whole blocks (the buffer's size in the comment) with a CRC32C of all of it at the
 * end; they return -E2BIG when it does not fit. Decoders return -EBADMSG for a wrong magic, CRC or
 * value, -ENOTSUP for a version of the future. */
int device_header_encode(const struct device_header *header, void *block);
int device_header_decode(struct device_header *header, const void *block);
int label_encode(const struct label *label, void *body); /* LABEL_BODY */
/* Bytes of root_segments that fit into any label. */
#define ROOT_ROOM 6280u
int label_decode(struct label *label, const void *body);
/* Whose labels an owner takes for its own. */
struct label_self {
	uint8_t pool[16], boot[16];
	uint64_t pid;
};
/* Whether there is a label of the pool in a label area that is of a later epoch than `epoch`, or of
 * that one and of another process. */
bool area_has_anothers(const uint8_t *area, const struct label_self *self, uint64_t epoch);
int beat_encode(const struct beat *beat, const uint8_t pool[16], void *block);
int beat_decode(struct beat *beat, const uint8_t pool[16], const void *block);
int chunk_header_encode(const struct chunk_header *header, void *block);
int chunk_header_decode(struct chunk_header *header, const void *block);
int checksum_page_encode(const struct checksum_page *page, void *block);
int checksum_page_decode(struct checksum_page *page, const void *block);
/* The head of a batch whose bytes stand in `batch`, `available` of them; checks length and hash. */
void batch_seal(const struct batch_header *header, void *batch);
int batch_decode(struct batch_header *header, const void *batch, size_t available);
/* Only the header's own fields: to learn the length before the rest is read. */
int batch_peek(struct batch_header *header, const void *block);

/* Rows of the pool's environment. */
#define SEGMENT_ROW_SIZE(width) (65 + 6 * (width)) /* of an image; others have 8 bytes less */
#define SEGMENT_ROW_MAX SEGMENT_ROW_SIZE(POOL_WIDTH_MAX)
#define IMAGE_ROW_SIZE 34
void segment_row_encode(const struct segment_row *row, struct writer *w);
int segment_row_decode(struct segment_row *row, struct reader *r);
void image_row_encode(const struct image_row *row, struct writer *w);
int image_row_decode(struct image_row *row, struct reader *r);

/* Where things lie in a chunk of k data and m parity chunks. */
struct layout {
	unsigned data, parity;
	uint32_t cell, rows; /* the most rows a slot holds */
	uint32_t blocks; /* blocks a cell */
	uint32_t pages; /* checksum pages of one chunk */
	uint32_t cells_offset; /* bytes from the slot's start */
};
/* `slot_rows` rows of `cell` bytes; the same cells_offset rule for every k and m. */
void layout_compute(
	struct layout *layout, unsigned data, unsigned parity, uint32_t cell, uint32_t slot_rows);
uint32_t layout_slot_size(const struct layout *layout);

/* Fuzzing runs with this on: checksums and hashes are computed but not believed to be the judge. */
extern bool format_waive_checksums;

#endif
