/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Whether the rows of a volume agree with each other: every entry has its inode and its other half,
 * every inode the entries, extents and bytes that it counts, the header the sums. All of it is seen
 * at one moment. The rows are taken as any bytes.
 */
#include "volume/verify.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"

struct rows {
	struct verify *verify;
	struct volume *volume;
	struct txn *view;
	uint64_t inodes, bytes;
	uint64_t links, entries; /* of anything but directories: as counted by inodes, as named */
	uint64_t directories, directory_entries;
	uint64_t names, cookies;
	uint64_t xattrs, xattr_rows; /* as counted by inodes, as found */
};

static void bad(struct rows *rows, uint64_t ino, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void bad(struct rows *rows, uint64_t ino, const char *format, ...)
{
	const struct volume_verify_options *options = rows->verify->options;
	char text[160];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	log_error(
		"volume %s: inode %llu: %s", rows->volume->row.name, (unsigned long long)ino, text);
	rows->verify->report->bad_metadata++;
	if (options && options->bad)
		options->bad(options->data, "", -EBADMSG);
}

/* The next row of a kind at or after *at; *at, which lies in `key`, is moved behind it. */
static int next_row(struct rows *rows, struct key *key, struct bytes *at, struct bytes *found,
	struct bytes *row)
{
	uint8_t letter = key->at[0];
	int r = txn_seek(rows->view, rows->volume->env, *at, found, row);

	if (r)
		return r;
	if (!found->length || *(const uint8_t *)found->data != letter)
		return -ENOENT;
	if (found->length >= sizeof(key->at))
		return -EBADMSG;
	*at = key_behind(key, *found);
	return 0;
}

static int each_row(struct rows *rows, enum row_letter letter,
	int (*look)(struct rows *rows, struct bytes key, struct bytes row))
{
	struct key key = {.at = {(uint8_t)letter}};
	struct bytes at = {key.at, 1}, found, row;
	int r;

	while (!(r = next_row(rows, &key, &at, &found, &row))) {
		r = look(rows, found, row);
		if (r)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

/* --- inodes ----------------------------------------------------------------------------------- */

static int look_at_extents(struct rows *rows, const struct inode *inode)
{
	uint64_t at = 0, bytes = 0, found;
	struct extent extent;
	int r;

	while (!(r = extent_next(rows->volume, rows->view, inode->ino, at, &found, &extent))) {
		struct extent whole;
		uint64_t start;

		/* The row that holds it must not begin before the last one ended. */
		if (found == at && at &&
			!extent_next(
				rows->volume, rows->view, inode->ino, at - 1, &start, &whole) &&
			start < at && start + whole.length > at) {
			bad(rows, inode->ino, "extents overlap at %llu", (unsigned long long)at);
		}
		bytes += extent.length;
		at = found + extent.length;
	}
	if (r != -ENOENT)
		bad(rows, inode->ino, "an extent behind %llu is broken", (unsigned long long)at);
	if (bytes != inode->bytes)
		bad(rows, inode->ino, "has %llu bytes of extents and counts %llu",
			(unsigned long long)bytes, (unsigned long long)inode->bytes);
	if (at > inode->size && inode->trim == TRIM_NONE && inode->nlink)
		bad(rows, inode->ino, "has extents behind its end");
	return r == -ENOENT || r == -EIO ? 0 : r;
}

static int look_at_inline(struct rows *rows, const struct inode *inode)
{
	uint8_t bytes[VOLUME_INLINE_MAX];
	struct extent extent;
	uint64_t found;
	size_t length;
	int r = inline_get(rows->volume, rows->view, inode->ino, bytes, &length);

	if (r)
		bad(rows, inode->ino, "its inline data is broken");
	else if (length != inode->bytes || length > inode->size)
		bad(rows, inode->ino, "counts %llu bytes of its %zu of inline data",
			(unsigned long long)inode->bytes, length);
	if (extent_next(rows->volume, rows->view, inode->ino, 0, &found, &extent) != -ENOENT)
		bad(rows, inode->ino, "has extents and says it has not");
	return 0;
}

static bool has_row(struct rows *rows, enum row_letter letter, uint64_t ino)
{
	struct bytes row;
	struct key key;

	return !txn_get(rows->view, rows->volume->env, key_inode(&key, letter, ino), &row);
}

static int look_at_file(struct rows *rows, const struct inode *inode)
{
	rows->verify->report->files++;
	if (!inode->nlink && !has_row(rows, ROW_ORPHAN, inode->ino))
		bad(rows, inode->ino, "has no name and is not marked");
	if (inode->trim != TRIM_NONE && !has_row(rows, ROW_TRIM, inode->ino))
		bad(rows, inode->ino, "is to be trimmed and not marked");
	return inode->extents ? look_at_extents(rows, inode) : look_at_inline(rows, inode);
}

static int look_at_directory(struct rows *rows, const struct inode *inode)
{
	struct inode parent;
	struct bytes found, row;
	uint64_t count = 0, dir, cookie = 0;
	struct key key;

	rows->verify->report->directories++;
	rows->directories++;
	while (!txn_seek(rows->view, rows->volume->env,
		       key_pair(&key, ROW_COOKIE, inode->ino, cookie), &found, &row) &&
		key_is_pair(found, ROW_COOKIE, &dir, &cookie) && dir == inode->ino) {
		count++;
		cookie++;
	}
	if (count != inode->size)
		bad(rows, inode->ino, "has %llu entries and counts %llu", (unsigned long long)count,
			(unsigned long long)inode->size);
	if (inode_get_directory(rows->volume, rows->view, inode->parent, &parent))
		bad(rows, inode->ino, "its parent is no directory");
	return 0;
}

static int look_at_other(struct rows *rows, const struct inode *inode)
{
	struct bytes row, target;
	struct key key;

	rows->verify->report->others++;
	if (inode->type != VOLUME_SYMLINK)
		return 0;
	if (txn_get(rows->view, rows->volume->env, key_inode(&key, ROW_TARGET, inode->ino), &row) ||
		blob_decode(row, VOLUME_TARGET_MAX, &target) || target.length != inode->size)
		bad(rows, inode->ino, "its target is broken");
	return 0;
}

/* *bytes: of name and value. */
static bool xattr_is_sound(struct bytes key, struct bytes row, uint64_t *ino, size_t *bytes)
{
	struct bytes name, value;

	if (!key_is_name(key, ROW_ATTRIBUTE, ino, &name) || attribute_decode(row, &value))
		return false;
	*bytes = name.length + value.length;
	return true;
}

static void look_at_xattrs(struct rows *rows, const struct inode *inode)
{
	uint64_t count = 0, bytes = 0, ino;
	struct bytes found, row;
	struct key key;
	struct bytes at = key_inode(&key, ROW_ATTRIBUTE, inode->ino);
	size_t more;

	rows->xattrs += inode->xattrs;
	while (!next_row(rows, &key, &at, &found, &row) &&
		xattr_is_sound(found, row, &ino, &more) && ino == inode->ino) {
		count++;
		bytes += more;
	}
	if (count != inode->xattrs || bytes != (uint64_t)inode->xattr_names + inode->xattr_values)
		bad(rows, inode->ino, "has %llu attributes of %llu bytes and counts %u of %llu",
			(unsigned long long)count, (unsigned long long)bytes, inode->xattrs,
			(unsigned long long)inode->xattr_names + inode->xattr_values);
}

static int look_at_inode(struct rows *rows, struct bytes key, struct bytes row)
{
	struct inode inode;
	uint64_t ino = 0;

	rows->inodes++;
	if (!key_is_inode(key, ROW_INODE, &ino) || inode_decode(row, ino, &inode)) {
		bad(rows, ino, "its row is broken");
		return 0;
	}
	rows->bytes += inode.bytes;
	if (inode.xattrs)
		look_at_xattrs(rows, &inode);
	if (inode.type == VOLUME_DIRECTORY)
		return look_at_directory(rows, &inode);
	rows->links += inode.nlink;
	return inode.type == VOLUME_FILE ? look_at_file(rows, &inode) : look_at_other(rows, &inode);
}

/* --- entries ---------------------------------------------------------------------------------- */

/* The entry by cookie of an entry by name. */
static bool has_other_half(
	struct rows *rows, uint64_t dir, const struct entry *entry, struct bytes name)
{
	struct entry other;
	struct bytes row;
	struct key key;

	return !txn_get(rows->view, rows->volume->env,
		       key_pair(&key, ROW_COOKIE, dir, entry->cookie), &row) &&
	       !entry_decode_cookie(row, &other) && other.ino == entry->ino &&
	       other.type == entry->type && strlen(other.name) == name.length &&
	       !memcmp(other.name, name.data, name.length);
}

static int look_at_name(struct rows *rows, struct bytes key, struct bytes row)
{
	struct entry entry;
	struct inode inode;
	struct bytes name;
	uint64_t dir = 0;

	rows->names++;
	if (!key_is_name(key, ROW_NAME, &dir, &name) || entry_decode_name(row, &entry)) {
		bad(rows, dir, "an entry is broken");
		return 0;
	}
	if (!has_other_half(rows, dir, &entry, name))
		bad(rows, dir, "the entry %.*s has no cookie", (int)name.length,
			(const char *)name.data);
	if (inode_get(rows->volume, rows->view, entry.ino, &inode) || inode.type != entry.type ||
		!inode.nlink)
		bad(rows, dir, "the entry %.*s names nothing", (int)name.length,
			(const char *)name.data);
	if (entry.type == VOLUME_DIRECTORY)
		rows->directory_entries++;
	else
		rows->entries++;
	return 0;
}

static int look_at_cookie(struct rows *rows, struct bytes key, struct bytes row)
{
	rows->cookies++;
	return 0;
}

/* --- what belongs to an inode ----------------------------------------------------------------- */

static int look_at_owned(struct rows *rows, struct bytes key, struct bytes row)
{
	uint64_t ino = 0;

	if (!key_is_inode(key, *(const uint8_t *)key.data, &ino) || !has_row(rows, ROW_INODE, ino))
		bad(rows, ino, "is gone and has left a row");
	return 0;
}

static int look_at_xattr(struct rows *rows, struct bytes key, struct bytes row)
{
	uint64_t ino = 0;
	size_t bytes;

	rows->xattr_rows++;
	if (!xattr_is_sound(key, row, &ino, &bytes))
		bad(rows, ino, "an attribute is broken");
	else if (!has_row(rows, ROW_INODE, ino))
		bad(rows, ino, "is gone and has left an attribute");
	return 0;
}

/* One row for each inode that has extents. */
static int look_at_extent_owners(struct rows *rows)
{
	struct bytes found, row;
	uint64_t ino = 0, at;
	struct key key;

	while (!txn_seek(rows->view, rows->volume->env, key_pair(&key, ROW_EXTENT, ino, 0), &found,
		       &row) &&
		key_is_pair(found, ROW_EXTENT, &ino, &at)) {
		if (!has_row(rows, ROW_INODE, ino))
			bad(rows, ino, "is gone and has left extents");
		ino++;
	}
	return 0;
}

static void look_at_sums(struct rows *rows)
{
	struct header header = {0};
	struct bytes row;
	struct key key;

	if (txn_get(rows->view, rows->volume->env, key_header(&key), &row) ||
		header_decode(row, &header))
		bad(rows, 0, "the header is broken");
	rows->verify->total = header.bytes;
	if (header.inodes != rows->inodes || header.bytes != rows->bytes)
		bad(rows, 0, "the header counts %llu inodes, %llu bytes; there are %llu, %llu",
			(unsigned long long)header.inodes, (unsigned long long)header.bytes,
			(unsigned long long)rows->inodes, (unsigned long long)rows->bytes);
	if (rows->links != rows->entries || rows->directory_entries + 1 != rows->directories)
		bad(rows, 0, "%llu links have %llu entries, %llu directories %llu",
			(unsigned long long)rows->links, (unsigned long long)rows->entries,
			(unsigned long long)rows->directories,
			(unsigned long long)rows->directory_entries);
	if (rows->xattrs != rows->xattr_rows)
		bad(rows, 0, "%llu attributes are counted and %llu are there",
			(unsigned long long)rows->xattrs, (unsigned long long)rows->xattr_rows);
	if (rows->names != rows->cookies)
		bad(rows, 0, "%llu names have %llu cookies", (unsigned long long)rows->names,
			(unsigned long long)rows->cookies);
}

int verify_rows(struct verify *verify)
{
	static const enum row_letter owned[] = {ROW_INLINE, ROW_TARGET, ROW_ORPHAN, ROW_TRIM};
	struct rows rows = {.verify = verify, .volume = verify->volume};
	int r = view_begin(verify->volume->env, &rows.view);

	if (r)
		return r;
	r = each_row(&rows, ROW_INODE, look_at_inode);
	if (!r)
		r = each_row(&rows, ROW_NAME, look_at_name);
	if (!r)
		r = each_row(&rows, ROW_COOKIE, look_at_cookie);
	for (unsigned i = 0; !r && i < sizeof(owned) / sizeof(owned[0]); i++)
		r = each_row(&rows, owned[i], look_at_owned);
	if (!r)
		r = each_row(&rows, ROW_ATTRIBUTE, look_at_xattr);
	if (!r)
		r = look_at_extent_owners(&rows);
	if (!r)
		look_at_sums(&rows);
	txn_abort(rows.view);
	return r;
}
