/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Extended attributes (RFC 8276): names without "user.". Who may read the object may read and list
 * them, who may write it may change them, as Linux has it.
 */
#include "export/internal.h"

#include <errno.h>
#include <string.h>

#define NAMES_MAX XDR_ARRAY_MAXLEN /* of one reply */
#define XDR_WORD 4u

static int name_in(const xattrkey4 *in, char name[VOLUME_NAME_MAX + 1])
{
	if (in->utf8string_len > VOLUME_NAME_MAX)
		return -ENAMETOOLONG;
	if (!in->utf8string_len || memchr(in->utf8string_val, 0, in->utf8string_len))
		return -EINVAL;
	memcpy(name, in->utf8string_val, in->utf8string_len);
	name[in->utf8string_len] = '\0';
	return 0;
}

/* --- reading ------------------------------------------------------------------------------- */

/* Without memory for the value it is asked how long that is. */
static fsal_status_t getxattrs(struct fsal_obj_handle *obj, xattrkey4 *key, xattrvalue4 *value)
{
	struct handle *handle = handle_of(obj);
	fsal_status_t status = access_xattr(handle, false);
	char name[VOLUME_NAME_MAX + 1];
	size_t length = 0;
	int r;

	if (FSAL_IS_ERROR(status))
		return status;
	r = name_in(key, name);
	if (!r)
		r = volume_xattr_get(volume_of(handle), handle->ino, name, value->utf8string_val,
			value->utf8string_val ? value->utf8string_len : 0, &length);
	if (r == -ERANGE && value->utf8string_val)
		return fsalstat(ERR_FSAL_XATTR2BIG, 0);
	if (!r || r == -ERANGE)
		value->utf8string_len = (u_int)length;
	return status_out(r == -ERANGE ? 0 : r);
}

/* Names on their way out: as many as there is room for. */
struct listing {
	xattrlist4 *names;
	count4 room; /* bytes of a reply */
	bool full;
};

static bool list_name(void *data, const char *name, size_t length)
{
	struct listing *listing = data;
	xattrlist4 *names = listing->names;
	count4 size = XDR_WORD + RNDUP((count4)length);

	listing->full = size > listing->room || names->xl4_count == NAMES_MAX;
	if (listing->full)
		return false;
	listing->room -= size;
	names->xl4_entries[names->xl4_count++] = (xattrkey4){
		.utf8string_len = (u_int)length,
		.utf8string_val = gsh_memdup(name, length),
	};
	return true;
}

static void names_free(xattrlist4 *names)
{
	for (u_int i = 0; i < names->xl4_count; i++)
		gsh_free(names->xl4_entries[i].utf8string_val);
	gsh_free(names->xl4_entries);
	*names = (xattrlist4){0};
}

/* The cookie is the number of names that the client has. `room` is of the names and their count. */
static fsal_status_t listxattrs(struct fsal_obj_handle *obj, count4 room, nfs_cookie4 *cookie,
	bool_t *eof, xattrlist4 *names)
{
	struct handle *handle = handle_of(obj);
	fsal_status_t status = access_xattr(handle, false);
	struct listing listing = {.names = names, .room = room > XDR_WORD ? room - XDR_WORD : 0};
	bool all = false;
	int r;

	if (FSAL_IS_ERROR(status))
		return status;
	*names = (xattrlist4){.xl4_entries = gsh_calloc(NAMES_MAX, sizeof(xattrkey4))};
	r = volume_xattr_list(volume_of(handle), handle->ino, *cookie, list_name, &listing, &all);
	if (r || (listing.full && !names->xl4_count)) {
		names_free(names);
		return r ? status_out(r) : fsalstat(ERR_FSAL_TOOSMALL, 0);
	}
	*cookie += names->xl4_count;
	*eof = all;
	return status_out(0);
}

/* --- changing ------------------------------------------------------------------------------ */

static fsal_status_t changed(int r, uint64_t lsn)
{
	if (!r)
		hold_until_durable(lsn);
	return r == -E2BIG ? fsalstat(ERR_FSAL_XATTR2BIG, 0) : status_out(r);
}

static fsal_status_t setxattrs(
	struct fsal_obj_handle *obj, setxattr_option4 option, xattrkey4 *key, xattrvalue4 *value)
{
	static const enum volume_xattr_how hows[] = {
		[SETXATTR4_EITHER] = VOLUME_XATTR_EITHER,
		[SETXATTR4_CREATE] = VOLUME_XATTR_CREATE,
		[SETXATTR4_REPLACE] = VOLUME_XATTR_REPLACE,
	};
	struct handle *handle = handle_of(obj);
	fsal_status_t status = access_xattr(handle, true);
	char name[VOLUME_NAME_MAX + 1];
	const struct volume_xattr xattr = {name, value->utf8string_val, value->utf8string_len};
	uint64_t lsn = 0;
	int r;

	if (FSAL_IS_ERROR(status))
		return status;
	if ((size_t)option >= sizeof(hows) / sizeof(*hows))
		return status_out(-EINVAL);
	r = name_in(key, name);
	if (!r)
		r = volume_xattr_set(volume_of(handle), handle->ino, &xattr, hows[option], &lsn);
	return changed(r, lsn);
}

static fsal_status_t removexattrs(struct fsal_obj_handle *obj, xattrkey4 *key)
{
	struct handle *handle = handle_of(obj);
	fsal_status_t status = access_xattr(handle, true);
	char name[VOLUME_NAME_MAX + 1];
	uint64_t lsn = 0;
	int r;

	if (FSAL_IS_ERROR(status))
		return status;
	r = name_in(key, name);
	if (!r)
		r = volume_xattr_remove(volume_of(handle), handle->ino, name, &lsn);
	return changed(r, lsn);
}

void xattr_ops(struct fsal_obj_ops *ops)
{
	ops->getxattrs = getxattrs;
	ops->listxattrs = listxattrs;
	ops->setxattrs = setxattrs;
	ops->removexattrs = removexattrs;
}
