/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Codecs of the rows; format.h describes them. */
#include "volume/format.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/codec.h"

enum {
	FLAG_RDEV = 1 << 0,
	FLAG_PARENT = 1 << 1,
	FLAG_TRIM = 1 << 2,
	FLAG_EXTENTS = 1 << 3,
	FLAG_XATTRS = 1 << 4,
	FLAGS_KNOWN = 31,
};

/* --- keys ------------------------------------------------------------------------------------ */

static struct bytes key_end(const struct key *key, const struct writer *w)
{
	assert(!w->overflow);
	return (struct bytes){key->at, (size_t)(w->at - key->at)};
}

struct bytes key_header(struct key *key)
{
	struct writer w = writer_on(key->at, sizeof(key->at));

	put_u8(&w, ROW_HEADER);
	return key_end(key, &w);
}

struct bytes key_inode(struct key *key, enum row_letter letter, uint64_t ino)
{
	struct writer w = writer_on(key->at, sizeof(key->at));

	put_u8(&w, (uint8_t)letter);
	put_be64(&w, ino);
	return key_end(key, &w);
}

struct bytes key_pair(struct key *key, enum row_letter letter, uint64_t ino, uint64_t number)
{
	struct writer w = writer_on(key->at, sizeof(key->at));

	put_u8(&w, (uint8_t)letter);
	put_be64(&w, ino);
	put_be64(&w, number);
	return key_end(key, &w);
}

struct bytes key_name(
	struct key *key, enum row_letter letter, uint64_t ino, const char *name, size_t length)
{
	struct writer w = writer_on(key->at, sizeof(key->at));

	put_u8(&w, (uint8_t)letter);
	put_be64(&w, ino);
	put_bytes(&w, name, length);
	return key_end(key, &w);
}

struct bytes key_behind(struct key *key, struct bytes found)
{
	assert(found.length < sizeof(key->at));
	memcpy(key->at, found.data, found.length);
	key->at[found.length] = 0;
	return (struct bytes){key->at, found.length + 1};
}

bool key_is_inode(struct bytes key, enum row_letter letter, uint64_t *ino)
{
	struct reader r = reader_on(key.data, key.length);

	uint64_t number;

	if (key.length != 9 || get_u8(&r) != letter)
		return false;
	number = get_be64(&r);
	if (number == UINT64_MAX)
		return false;
	*ino = number;
	return true;
}

bool key_is_pair(struct bytes key, enum row_letter letter, uint64_t *ino, uint64_t *number)
{
	struct reader r = reader_on(key.data, key.length);

	uint64_t first, second;

	if (key.length != 17 || get_u8(&r) != letter)
		return false;
	first = get_be64(&r);
	second = get_be64(&r);
	if (first == UINT64_MAX || second == UINT64_MAX)
		return false;
	*ino = first;
	*number = second;
	return true;
}

bool key_is_name(struct bytes key, enum row_letter letter, uint64_t *ino, struct bytes *name)
{
	struct reader r = reader_on(key.data, key.length);

	if (key.length < 10 || key.length > 9 + VOLUME_NAME_MAX || get_u8(&r) != letter)
		return false;
	*ino = get_be64(&r);
	*name = (struct bytes){r.at, (size_t)(r.end - r.at)};
	return true;
}

/* --- encoders -------------------------------------------------------------------------------- */

static struct writer row_begin(uint8_t *row, size_t room)
{
	struct writer w = writer_on(row, room);

	put_u8(&w, ROW_VERSION);
	return w;
}

static size_t row_end(const struct writer *w, const uint8_t *row)
{
	assert(!w->overflow);
	return (size_t)(w->at - row);
}

size_t header_encode(const struct header *header, uint8_t *row)
{
	struct writer w = row_begin(row, ROW_SMALL);

	put_u32(&w, header->features);
	put_u64(&w, header->next_ino);
	put_u64(&w, header->next_cookie);
	put_u64(&w, header->root);
	put_u64(&w, header->inodes);
	put_u64(&w, header->bytes);
	return row_end(&w, row);
}

static unsigned inode_flags(const struct inode *inode)
{
	return (inode->rdev ? FLAG_RDEV : 0) | (inode->parent ? FLAG_PARENT : 0) |
	       (inode->trim != TRIM_NONE ? FLAG_TRIM : 0) | (inode->extents ? FLAG_EXTENTS : 0) |
	       (inode->xattrs ? FLAG_XATTRS : 0);
}

size_t inode_encode(const struct inode *inode, uint8_t *row)
{
	struct writer w = row_begin(row, ROW_SMALL);

	put_u8(&w, (uint8_t)inode->type);
	put_u8(&w, (uint8_t)inode_flags(inode));
	put_u32(&w, inode->mode);
	put_u32(&w, inode->uid);
	put_u32(&w, inode->gid);
	put_u32(&w, inode->nlink);
	put_u64(&w, inode->size);
	put_u64(&w, inode->bytes);
	put_u64(&w, (uint64_t)inode->atime);
	put_u64(&w, (uint64_t)inode->mtime);
	put_u64(&w, (uint64_t)inode->ctime);
	put_u64(&w, (uint64_t)inode->btime);
	put_u64(&w, inode->change);
	if (inode->rdev)
		put_u64(&w, inode->rdev);
	if (inode->parent)
		put_u64(&w, inode->parent);
	if (inode->trim != TRIM_NONE)
		put_u64(&w, inode->trim);
	if (inode->xattrs) {
		put_u32(&w, inode->xattrs);
		put_u32(&w, inode->xattr_names);
		put_u32(&w, inode->xattr_values);
	}
	return row_end(&w, row);
}

size_t entry_encode_name(const struct entry *entry, uint8_t *row)
{
	struct writer w = row_begin(row, ROW_SMALL);

	put_u8(&w, (uint8_t)entry->type);
	put_u64(&w, entry->ino);
	put_u64(&w, entry->cookie);
	return row_end(&w, row);
}

size_t extent_encode(const struct extent *extent, uint8_t *row)
{
	struct writer w = row_begin(row, ROW_SMALL);

	put_u64(&w, extent->segment);
	put_u64(&w, extent->offset);
	put_u64(&w, extent->length);
	return row_end(&w, row);
}

size_t mark_encode(uint8_t *row)
{
	struct writer w = row_begin(row, ROW_SMALL);

	return row_end(&w, row);
}

size_t entry_encode_cookie(const struct entry *entry, uint8_t *row)
{
	struct writer w = row_begin(row, ROW_LARGE);
	size_t length = strlen(entry->name);

	put_u8(&w, (uint8_t)entry->type);
	put_u64(&w, entry->ino);
	put_u8(&w, (uint8_t)length);
	put_bytes(&w, entry->name, length);
	return row_end(&w, row);
}

size_t blob_encode(const void *bytes, size_t length, uint8_t *row)
{
	struct writer w = row_begin(row, ROW_LARGE);

	put_u16(&w, (uint16_t)length);
	put_bytes(&w, bytes, length);
	return row_end(&w, row);
}

size_t attribute_encode(const void *value, size_t length, uint8_t *row)
{
	struct writer w = row_begin(row, ROW_ATTRIBUTE_HEAD + length);

	put_u32(&w, (uint32_t)length);
	put_bytes(&w, value, length);
	return row_end(&w, row);
}

/* --- decoders -------------------------------------------------------------------------------- */

static struct reader row_open(struct bytes row)
{
	struct reader r = reader_on(row.data, row.length);

	if (get_u8(&r) != ROW_VERSION)
		r.bad = true;
	return r;
}

static bool type_is_known(unsigned type)
{
	return type >= VOLUME_FILE && type <= VOLUME_BLOCK;
}

int header_decode(struct bytes row, struct header *header)
{
	struct reader r = row_open(row);

	header->features = get_u32(&r);
	header->next_ino = get_u64(&r);
	header->next_cookie = get_u64(&r);
	header->root = get_u64(&r);
	header->inodes = get_u64(&r);
	header->bytes = get_u64(&r);
	if (r.bad || header->features & ~FEATURE_KEPT || header->root != VOLUME_ROOT ||
		header->next_ino <= VOLUME_ROOT || header->next_cookie < COOKIE_FIRST)
		return -EBADMSG;
	return 0;
}

static bool inode_is_sound(const struct inode *inode)
{
	if (!type_is_known(inode->type) || inode->size > VOLUME_SIZE_MAX)
		return false;
	if ((inode->type == VOLUME_DIRECTORY) != (inode->parent != 0))
		return false;
	return inode->type == VOLUME_FILE || (!inode->extents && inode->trim == TRIM_NONE);
}

int inode_decode(struct bytes row, uint64_t ino, struct inode *inode)
{
	struct reader r = row_open(row);
	unsigned flags;

	inode->ino = ino;
	inode->type = get_u8(&r);
	flags = get_u8(&r);
	inode->mode = get_u32(&r);
	inode->uid = get_u32(&r);
	inode->gid = get_u32(&r);
	inode->nlink = get_u32(&r);
	inode->size = get_u64(&r);
	inode->bytes = get_u64(&r);
	inode->atime = (int64_t)get_u64(&r);
	inode->mtime = (int64_t)get_u64(&r);
	inode->ctime = (int64_t)get_u64(&r);
	inode->btime = (int64_t)get_u64(&r);
	inode->change = get_u64(&r);
	inode->rdev = flags & FLAG_RDEV ? get_u64(&r) : 0;
	inode->parent = flags & FLAG_PARENT ? get_u64(&r) : 0;
	inode->trim = flags & FLAG_TRIM ? get_u64(&r) : TRIM_NONE;
	inode->extents = flags & FLAG_EXTENTS;
	inode->xattrs = flags & FLAG_XATTRS ? get_u32(&r) : 0;
	inode->xattr_names = flags & FLAG_XATTRS ? get_u32(&r) : 0;
	inode->xattr_values = flags & FLAG_XATTRS ? get_u32(&r) : 0;
	return r.bad || flags & ~FLAGS_KNOWN || !inode_is_sound(inode) ? -EBADMSG : 0;
}

int entry_decode_name(struct bytes row, struct entry *entry)
{
	struct reader r = row_open(row);

	entry->type = get_u8(&r);
	entry->ino = get_u64(&r);
	entry->cookie = get_u64(&r);
	entry->name[0] = '\0';
	return r.bad || !type_is_known(entry->type) || entry->cookie < COOKIE_FIRST ? -EBADMSG : 0;
}

int entry_decode_cookie(struct bytes row, struct entry *entry)
{
	struct reader r = row_open(row);
	const uint8_t *name;
	size_t length;

	entry->type = get_u8(&r);
	entry->ino = get_u64(&r);
	entry->cookie = 0;
	length = get_u8(&r);
	name = get_bytes(&r, length);
	if (r.bad || !type_is_known(entry->type) || !length || memchr(name, 0, length))
		return -EBADMSG;
	memcpy(entry->name, name, length);
	entry->name[length] = '\0';
	return 0;
}

int extent_decode(struct bytes row, uint64_t at, struct extent *extent)
{
	struct reader r = row_open(row);

	extent->segment = get_u64(&r);
	extent->offset = get_u64(&r);
	extent->length = get_u64(&r);
	if (r.bad || !extent->length || extent->length > EXTENT_MAX || at > VOLUME_SIZE_MAX ||
		extent->length > VOLUME_SIZE_MAX - at ||
		extent->offset > UINT64_MAX - extent->length)
		return -EBADMSG;
	return is_kept(extent) && extent->offset != at ? -EBADMSG : 0;
}

int blob_decode(struct bytes row, size_t limit, struct bytes *blob)
{
	struct reader r = row_open(row);
	size_t length = get_u16(&r);

	blob->length = length;
	blob->data = get_bytes(&r, length);
	return r.bad || length > limit ? -EBADMSG : 0;
}

int attribute_decode(struct bytes row, struct bytes *value)
{
	struct reader r = row_open(row);
	size_t length = get_u32(&r);

	value->length = length;
	value->data = get_bytes(&r, length);
	return r.bad || length > VOLUME_XATTR_VALUE_MAX ? -EBADMSG : 0;
}
