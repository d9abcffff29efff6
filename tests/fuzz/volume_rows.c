/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The rows of a volume. The first byte chooses the decoder, by the letter of the row's key. */
#include "fuzz.h"

#include <errno.h>

#include "volume/format.h"

enum { HEADER, INODE, NAME, COOKIE, EXTENT, INLINE, TARGET, ATTRIBUTE, KEY, REFUSED = KEY + 3 };

struct fuzz_type fuzz_types[] = {
	[HEADER] = {"header", 0},
	[INODE] = {"inode", 0},
	[NAME] = {"entry by name", 0},
	[COOKIE] = {"entry by cookie", 0},
	[EXTENT] = {"extent", 0},
	[INLINE] = {"inline data", 0},
	[TARGET] = {"target", 0},
	[ATTRIBUTE] = {"extended attribute", 0},
	[KEY] = {"key of an inode", 0},
	[KEY + 1] = {"key of an inode and a number", 0},
	[KEY + 2] = {"key of a name", 0},
	[REFUSED] = {"refused", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 8 << 10;

/* What a decoder gave is encoded; decoded and encoded again it must be the same bytes. */
static void same(const uint8_t *a, size_t a_length, const uint8_t *b, size_t b_length)
{
	assert(a_length == b_length && !memcmp(a, b, a_length));
}

static int try_header(struct bytes row)
{
	uint8_t one[ROW_SMALL], two[ROW_SMALL];
	struct header header;
	size_t length;

	if (header_decode(row, &header))
		return -EBADMSG;
	length = header_encode(&header, one);
	assert(!header_decode((struct bytes){one, length}, &header));
	same(one, length, two, header_encode(&header, two));
	return 0;
}

static int try_inode(struct bytes row)
{
	uint8_t one[ROW_SMALL], two[ROW_SMALL];
	struct inode inode;
	size_t length;

	if (inode_decode(row, 7, &inode))
		return -EBADMSG;
	length = inode_encode(&inode, one);
	assert(!inode_decode((struct bytes){one, length}, 7, &inode));
	same(one, length, two, inode_encode(&inode, two));
	return 0;
}

static int try_name(struct bytes row)
{
	uint8_t one[ROW_SMALL], two[ROW_SMALL];
	struct entry entry;
	size_t length;

	if (entry_decode_name(row, &entry))
		return -EBADMSG;
	length = entry_encode_name(&entry, one);
	assert(!entry_decode_name((struct bytes){one, length}, &entry));
	same(one, length, two, entry_encode_name(&entry, two));
	return 0;
}

static int try_cookie(struct bytes row)
{
	uint8_t one[ROW_LARGE], two[ROW_LARGE];
	struct entry entry;
	size_t length;

	if (entry_decode_cookie(row, &entry))
		return -EBADMSG;
	length = entry_encode_cookie(&entry, one);
	assert(!entry_decode_cookie((struct bytes){one, length}, &entry));
	same(one, length, two, entry_encode_cookie(&entry, two));
	return 0;
}

static int try_extent(struct bytes row)
{
	uint8_t one[ROW_SMALL], two[ROW_SMALL];
	struct extent extent;
	size_t length;

	if (extent_decode(row, 4096, &extent))
		return -EBADMSG;
	assert(extent.length && extent.offset + extent.length > extent.offset);
	length = extent_encode(&extent, one);
	assert(!extent_decode((struct bytes){one, length}, 4096, &extent));
	same(one, length, two, extent_encode(&extent, two));
	return 0;
}

static int try_blob(struct bytes row, size_t limit)
{
	uint8_t one[ROW_LARGE];
	struct bytes blob, again;

	if (blob_decode(row, limit, &blob))
		return -EBADMSG;
	assert(blob.length <= limit);
	assert(!blob_decode(
		(struct bytes){one, blob_encode(blob.data, blob.length, one)}, limit, &again));
	same(blob.data, blob.length, again.data, again.length);
	return 0;
}

static int try_inline(struct bytes row)
{
	return try_blob(row, VOLUME_INLINE_MAX);
}

static int try_target(struct bytes row)
{
	return try_blob(row, VOLUME_TARGET_MAX);
}

static int try_attribute(struct bytes row)
{
	struct bytes value, again;
	uint8_t *one;

	if (attribute_decode(row, &value))
		return -EBADMSG;
	assert(value.length <= VOLUME_XATTR_VALUE_MAX);
	one = malloc(ROW_ATTRIBUTE_HEAD + value.length);
	assert(one && !attribute_decode(
			      (struct bytes){one, attribute_encode(value.data, value.length, one)},
			      &again));
	same(value.data, value.length, again.data, again.length);
	free(one);
	return 0;
}

static bool is_name(struct bytes bytes, enum row_letter letter, uint64_t *ino, struct bytes *name)
{
	return (letter == ROW_NAME || letter == ROW_ATTRIBUTE) &&
	       key_is_name(bytes, letter, ino, name);
}

/* A row's own letter is the first byte of its key. */
static int try_key(struct bytes bytes)
{
	struct key key;
	struct bytes again = {0}, name;
	uint64_t a, b;
	enum row_letter letter = bytes.length ? *(const uint8_t *)bytes.data : 0;

	if (key_is_inode(bytes, letter, &a)) {
		fuzz_reach(KEY);
		again = key_inode(&key, letter, a);
	} else if (is_name(bytes, letter, &a, &name)) {
		fuzz_reach(KEY + 2);
		again = key_name(&key, letter, a, name.data, name.length);
	} else if (key_is_pair(bytes, letter, &a, &b)) {
		fuzz_reach(KEY + 1);
		again = key_pair(&key, letter, a, b);
	} else {
		return -EBADMSG;
	}
	same(bytes.data, bytes.length, again.data, again.length);
	return 0;
}

static int try_row(uint8_t letter, struct bytes row, unsigned *type)
{
	static const struct {
		uint8_t letter;
		int (*run)(struct bytes row);
	} decoders[] = {[HEADER] = {ROW_HEADER, try_header},
		[INODE] = {ROW_INODE, try_inode},
		[NAME] = {ROW_NAME, try_name},
		[COOKIE] = {ROW_COOKIE, try_cookie},
		[EXTENT] = {ROW_EXTENT, try_extent},
		[INLINE] = {ROW_INLINE, try_inline},
		[TARGET] = {ROW_TARGET, try_target},
		[ATTRIBUTE] = {ROW_ATTRIBUTE, try_attribute}};

	for (*type = 0; *type < KEY; ++*type)
		if (decoders[*type].letter == letter)
			return decoders[*type].run(row);
	return try_key(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned type;
	int rc;

	if (!size)
		return 0;
	rc = try_row(data[0], (struct bytes){data + 1, size - 1}, &type);
	assert(!rc || rc == -EBADMSG);
	if (rc)
		fuzz_reach(REFUSED);
	else if (type < KEY)
		fuzz_reach(type);
	return 0;
}
