/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The rows of a volume's environment.
 *
 * A key is one letter and big-endian numbers, so that rows of one inode lie together in order; a
 * value begins with the version of its row. Within a version a longer value is read as far as it
 * is known: fields are added at the end. A version or flag that is not known is refused.
 *
 *   key                    value after the version byte (little-endian)
 *   'H'                    header: features u32, next ino u64, next cookie u64, root u64,
 *                          inodes u64, bytes u64. An unknown feature bit: the volume is not opened.
 *                          Bit 0: there have been extents of segment 1
 *   'I' ino                inode: type u8, flags u8, mode, uid, gid, nlink u32, size, bytes, atime,
 *                          mtime, ctime, btime, change u64; then by flags: rdev, parent, trim u64;
 *                          of extended attributes the number, bytes of names, of values u32
 *   'E' dir name           entry by name: type u8, ino u64, cookie u64
 *   'C' dir cookie         entry by cookie: type u8, ino u64, length u8, name
 *   'X' ino offset         extent: segment, offset, length u64; extents of a file do not overlap.
 *                          Segment 1, of which there is none: zeros, whose space is kept; its
 *                          offset is that in the file
 *   'D' ino                inline data from offset 0 on: length u16, bytes. Never beside extents
 *   'L' ino                target of a symbolic link: length u16, bytes
 *   'O' ino                an inode without a name, to be given back when nobody has it open
 *   'T' ino                an inode whose row has `trim`
 *   'A' ino name           extended attribute of the name user.NAME: length u32, bytes
 *
 * Numbers of inodes and cookies only grow: neither is used twice in a volume. For a directory
 * `size` counts its entries, and `nlink` is 2 and one for each directory in it.
 *
 * Crash cases. Each change of names is one transaction: 'E', 'C', both inodes and the header agree
 * at every LSN. What takes more than one leaves a mark in the first:
 *  - A file without a name has 'O' from the transaction that took the name. Its extents go in
 *    pieces, and with the last of them its rows; at mount nothing is open, so all 'O' are given
 * back.
 *  - A file cut short has its new size at once. Extents that did not fit into that transaction lie
 *    at or behind `trim` of the inode row: they are not part of the file any more (a read sees a
 *    hole there, even when the size has grown again), and no new extent is written before they
 *    are gone. 'T' makes them found at mount.
 *  - Extended attributes of an inode go with its row, in one transaction: no more are taken than
 *    fit into its record.
 *  - A commit of many extents may be cut anywhere between its transactions: no more was promised of
 *    unstable writes. Size never ends before the last extent.
 */
#ifndef MILLRACE_VOLUME_FORMAT_H
#define MILLRACE_VOLUME_FORMAT_H

#include "volume/volume.h"

enum row_letter {
	ROW_HEADER = 'H',
	ROW_INODE = 'I',
	ROW_NAME = 'E',
	ROW_COOKIE = 'C',
	ROW_EXTENT = 'X',
	ROW_INLINE = 'D',
	ROW_TARGET = 'L',
	ROW_ORPHAN = 'O',
	ROW_TRIM = 'T',
	ROW_ATTRIBUTE = 'A',
};

#define ROW_VERSION 1
#define ROW_SMALL 160 /* bytes that hold any row but the three with names, data, targets */
#define ROW_LARGE (VOLUME_TARGET_MAX + 16) /* bytes that hold any row but attributes */
#define ROW_ATTRIBUTE_HEAD 5u /* bytes of such a row besides the value */
#define COOKIE_FIRST 3 /* smaller ones mean "." and ".." to NFS */
#define TRIM_NONE UINT64_MAX

struct key {
	uint8_t at[1 + 8 + VOLUME_NAME_MAX + 1]; /* the longest, and room to look behind it */
};

/* Each fills `key` and returns its bytes, valid as long as `key`. By name are entries and extended
 * attributes. */
struct bytes key_header(struct key *key);
struct bytes key_inode(struct key *key, enum row_letter letter, uint64_t ino);
struct bytes key_pair(struct key *key, enum row_letter letter, uint64_t ino, uint64_t number);
struct bytes key_name(
	struct key *key, enum row_letter letter, uint64_t ino, const char *name, size_t length);
/* The least key behind `found`, which is no longer than any of these. */
struct bytes key_behind(struct key *key, struct bytes found);
/* Whether a key has this letter, and one number after it (key_inode), two (key_pair), or one and a
 * name; the largest number is none, so that one more can always be looked for. Outputs are set only
 * where it has. */
bool key_is_inode(struct bytes key, enum row_letter letter, uint64_t *ino);
bool key_is_pair(struct bytes key, enum row_letter letter, uint64_t *ino, uint64_t *number);
bool key_is_name(struct bytes key, enum row_letter letter, uint64_t *ino, struct bytes *name);

#define FEATURE_KEPT 1u
struct header {
	uint32_t features;
	uint64_t next_ino, next_cookie, root;
	uint64_t inodes, bytes;
};

struct inode {
	uint64_t ino; /* from the key */
	enum volume_type type;
	bool extents; /* data is in extents; else inline, if there is any */
	uint32_t mode, uid, gid, nlink;
	uint64_t size, bytes; /* bytes: of extents, or of inline data */
	int64_t atime, mtime, ctime, btime;
	uint64_t change;
	uint64_t rdev, parent;
	uint64_t trim; /* extents from here on are garbage; TRIM_NONE */
	/* of extended attributes */
	uint32_t xattrs, xattr_names, xattr_values; /* number, bytes of names, of values */
};

struct entry {
	enum volume_type type;
	uint64_t ino, cookie; /* cookie: by name alone */
	char name[VOLUME_NAME_MAX + 1]; /* by cookie alone */
};

/* Encoders return the bytes used of a buffer of ROW_SMALL or, for the last three, ROW_LARGE. */
size_t header_encode(const struct header *header, uint8_t *row);
size_t inode_encode(const struct inode *inode, uint8_t *row);
size_t entry_encode_name(const struct entry *entry, uint8_t *row);
size_t extent_encode(const struct extent *extent, uint8_t *row);
size_t mark_encode(uint8_t *row); /* 'O' and 'T' */
size_t entry_encode_cookie(const struct entry *entry, uint8_t *row);
size_t blob_encode(const void *bytes, size_t length, uint8_t *row); /* 'D' and 'L' */
/* `row` has ROW_ATTRIBUTE_HEAD bytes more than the value. */
size_t attribute_encode(const void *value, size_t length, uint8_t *row);

/* Of bytes that are kept: ids of segments are greater. */
#define SEGMENT_KEPT 1u
static inline bool is_kept(const struct extent *extent)
{
	return extent->segment == SEGMENT_KEPT;
}

/* Bytes of an extent at most: the largest segment that a pool can have. */
#define EXTENT_MAX ((uint64_t)1 << 35)

/* Decoders take any bytes: 0, or -EBADMSG and nothing usable. */
int header_decode(struct bytes row, struct header *header);
int inode_decode(struct bytes row, uint64_t ino, struct inode *inode);
int entry_decode_name(struct bytes row, struct entry *entry);
int entry_decode_cookie(struct bytes row, struct entry *entry);
int extent_decode(struct bytes row, uint64_t at, struct extent *extent);
/* *blob points into `row`; at most `limit` bytes. */
int blob_decode(struct bytes row, size_t limit, struct bytes *blob);
/* *value points into `row`. */
int attribute_decode(struct bytes row, struct bytes *value);

#endif
