/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Ranges of a file that are no reads or writes (RFC 7862): holes, and space that is kept. */
#include "export/internal.h"

#include <errno.h>

/* --- finding holes ------------------------------------------------------------------------- */

/* Who has the file open may look; else as for a read. */
static fsal_status_t may_look(struct handle *handle, struct state_t *state)
{
	fsal_status_t status = status_out(0);

	if (!state)
		status = handle->obj.obj_ops->test_access(
			&handle->obj, FSAL_READ_ACCESS, NULL, NULL, true);
	if (!FSAL_IS_ERROR(status) && !state)
		status = share_check(handle, FSAL_O_READ, false);
	return status;
}

/* Without more data the answer is the end of the file. */
static int seek(struct handle *handle, enum volume_seek what, struct io_info *info)
{
	struct volume_attributes now;
	struct volume_file *file;
	uint64_t offset = info->io_content.hole.di_offset, found = 0;
	int r = handle_file(handle, &file);

	if (!r)
		r = volume_seek(file, offset, what, &found);
	if (r && r != -ENXIO)
		return r;
	if (volume_getattr(volume_of(handle), handle->ino, &now))
		return -ESTALE;
	if (r && offset >= now.size)
		return r;
	info->io_content.hole.di_offset = r ? now.size : found;
	info->io_eof = r || found >= now.size;
	return 0;
}

static fsal_status_t seek2(struct fsal_obj_handle *obj, struct state_t *state, struct io_info *info)
{
	struct handle *handle = handle_of(obj);
	fsal_status_t status = may_look(handle, state);

	if (FSAL_IS_ERROR(status))
		return status;
	switch (info->io_content.what) {
	case NFS4_CONTENT_DATA:
		return status_out(seek(handle, VOLUME_SEEK_DATA, info));
	case NFS4_CONTENT_HOLE:
		return status_out(seek(handle, VOLUME_SEEK_HOLE, info));
	default:
		return fsalstat(ERR_FSAL_UNION_NOTSUPP, 0);
	}
}

/* --- keeping space, and making holes ------------------------------------------------------- */

/* Either is a write, and the reply says that it is stable. */
static int change_range(struct handle *handle, uint64_t offset, uint64_t length, bool allocate)
{
	struct volume_write_options options = {.kill = drops_privileges()};
	struct volume_file *file;
	int r = handle_file(handle, &file);

	if (r)
		return r;
	return (allocate ? hold_until_allocated : hold_until_punched)(
		file, offset, length, &options);
}

static fsal_status_t fallocate_(struct fsal_obj_handle *obj, struct state_t *state, uint64_t offset,
	uint64_t length, bool allocate)
{
	struct handle *handle = handle_of(obj);
	fsal_status_t status = status_out(0);

	if (length > UINT64_MAX - offset)
		return status_out(-EINVAL);
	if (!state)
		status = share_check(handle, FSAL_O_WRITE, false);
	if (FSAL_IS_ERROR(status))
		return status;
	return status_out(change_range(handle, offset, length, allocate));
}

void range_ops(struct fsal_obj_ops *ops)
{
	ops->fallocate = fallocate_;
	ops->seek2 = seek2;
}
