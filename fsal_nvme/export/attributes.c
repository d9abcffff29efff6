/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Attributes, both ways. */
#include "export/internal.h"

#include <errno.h>
#include <string.h>

#define SECOND 1000000000ll

/* --- out ----------------------------------------------------------------------------------- */

object_file_type_t type_out(enum volume_type type)
{
	static const object_file_type_t types[] = {
		[VOLUME_FILE] = REGULAR_FILE,
		[VOLUME_DIRECTORY] = DIRECTORY,
		[VOLUME_SYMLINK] = SYMBOLIC_LINK,
		[VOLUME_FIFO] = FIFO_FILE,
		[VOLUME_SOCKET] = SOCKET_FILE,
		[VOLUME_CHARACTER] = CHARACTER_FILE,
		[VOLUME_BLOCK] = BLOCK_FILE,
	};

	return (size_t)type < sizeof(types) / sizeof(*types) ? types[type] : NO_FILE_TYPE;
}

static struct timespec time_out(int64_t ns)
{
	struct timespec out = {.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};

	if (out.tv_nsec < 0) {
		out.tv_sec--;
		out.tv_nsec += SECOND;
	}
	return out;
}

fsal_fsid_t fsid_out(const struct served *served)
{
	fsal_fsid_t fsid = {.minor = served->id};

	memcpy(&fsid.major, pool_uuid(nvme.pool), sizeof(fsid.major));
	return fsid;
}

void attributes_out(const struct served *served, const struct volume_attributes *attributes,
	struct fsal_attrlist *out)
{
	if (!out)
		return;
	out->valid_mask |= NVME_ATTRIBUTES;
	out->supported = NVME_ATTRIBUTES | ATTR4_XATTR;
	out->type = type_out(attributes->type);
	out->filesize = attributes->size;
	out->fsid = fsid_out(served);
	out->fileid = attributes->ino;
	out->mode = attributes->mode;
	out->numlinks = attributes->nlink;
	out->owner = attributes->uid;
	out->group = attributes->gid;
	out->rawdev.major = attributes->rdev >> 32;
	out->rawdev.minor = attributes->rdev & UINT32_MAX;
	out->atime = time_out(attributes->atime);
	out->mtime = time_out(attributes->mtime);
	out->ctime = time_out(attributes->ctime);
	out->creation = time_out(attributes->btime);
	out->spaceused = attributes->used;
	out->change = attributes->change;
}

int attributes_read(
	struct handle *handle, struct volume_attributes *attributes, struct fsal_attrlist *out)
{
	int r = volume_getattr(volume_of(handle), handle->ino, attributes);

	if (!r)
		attributes_out(handle->served, attributes, out);
	else if (out && out->request_mask & ATTR_RDATTR_ERR)
		out->valid_mask = ATTR_RDATTR_ERR;
	return r;
}

fsal_status_t attributes_get(struct handle *handle, struct fsal_attrlist *out)
{
	struct volume_attributes attributes;

	return status_out(out ? attributes_read(handle, &attributes, out) : 0);
}

static fsal_status_t getattrs(struct fsal_obj_handle *obj, struct fsal_attrlist *out)
{
	return attributes_get(handle_of(obj), out);
}

/* --- in ------------------------------------------------------------------------------------ */

void attributes_in(const struct fsal_attrlist *in, struct volume_set *set)
{
	static const struct {
		attrmask_t in;
		unsigned set;
	} bits[] = {
		{ATTR_MODE, VOLUME_SET_MODE},
		{ATTR_OWNER, VOLUME_SET_UID},
		{ATTR_GROUP, VOLUME_SET_GID},
		{ATTR_SIZE, VOLUME_SET_SIZE},
		{ATTR_ATIME, VOLUME_SET_ATIME},
		{ATTR_MTIME, VOLUME_SET_MTIME},
		{ATTR_ATIME_SERVER, VOLUME_SET_ATIME_NOW},
		{ATTR_MTIME_SERVER, VOLUME_SET_MTIME_NOW},
		{ATTR_CREATION, VOLUME_SET_BTIME},
	};

	*set = (struct volume_set){
		.mode = in->mode & 07777,
		.uid = (uint32_t)in->owner,
		.gid = (uint32_t)in->group,
		.size = in->filesize,
		.atime = volume_time(in->atime),
		.mtime = volume_time(in->mtime),
		.btime = volume_time(in->creation),
	};
	for (unsigned i = 0; i < sizeof(bits) / sizeof(*bits); i++) {
		if (in->valid_mask & bits[i].in)
			set->mask |= bits[i].set;
	}
}

static fsal_status_t setattr2(
	struct fsal_obj_handle *obj, bool bypass, struct state_t *state, struct fsal_attrlist *in)
{
	struct handle *handle = handle_of(obj);
	struct volume_set set;
	fsal_status_t status;
	uint64_t lsn = 0;
	int r;

	attributes_in(in, &set);
	if (set.mask & VOLUME_SET_SIZE && !state) {
		status = share_check(handle, FSAL_O_WRITE, bypass);
		if (FSAL_IS_ERROR(status))
			return status;
	}
	if (set.mask & VOLUME_SET_SIZE && drops_privileges())
		set.mask |= VOLUME_SET_KILL;
	r = volume_setattr(volume_of(handle), handle->ino, &set, NULL, &lsn);
	if (!r)
		hold_until_durable(lsn);
	return status_out(r);
}

void attribute_ops(struct fsal_obj_ops *ops)
{
	ops->getattrs = getattrs;
	ops->setattr2 = setattr2;
}
