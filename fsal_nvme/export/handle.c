/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Objects. Ganesha's cache counts references, and keeps one object of each inode; a second one,
 * made at the same moment, is released: nothing that matters is kept in an object alone.
 */
#include "export/internal.h"

#include <errno.h>
#include <string.h>

struct handle *handle_new(struct fsal_export *export, struct served *served,
	const struct volume_attributes *attributes, struct fsal_attrlist *out)
{
	struct handle *handle = gsh_calloc(1, sizeof(*handle));

	served_ref(served);
	handle->served = served;
	handle->ino = attributes->ino;
	volume_handle_make(served->volume, handle->ino, handle->wire);
	fsal_obj_handle_init(&handle->obj, export, type_out(attributes->type), false);
	handle->obj.obj_ops = &nvme.obj_ops;
	handle->obj.fsid = fsid_out(served);
	handle->obj.fileid = handle->ino;
	attributes_out(served, attributes, out);
	return handle;
}

void handle_release(struct fsal_obj_handle *obj)
{
	struct handle *handle = handle_of(obj);

	fsal_obj_handle_fini(obj, false);
	served_put_file(handle->file);
	served_put(handle->served);
	gsh_free(handle);
}

int handle_file(struct handle *handle, struct volume_file **file)
{
	struct volume_file *mine = NULL, *theirs = NULL;
	int r;

	*file = atomic_load(&handle->file);
	if (*file)
		return 0;
	r = volume_file_get(volume_of(handle), handle->ino, &mine);
	if (r)
		return r;
	*file = mine;
	if (!atomic_compare_exchange_strong(&handle->file, &theirs, mine)) {
		volume_file_put(mine);
		*file = theirs;
	}
	return 0;
}

/* --- handles on the wire ------------------------------------------------------------------- */

static fsal_status_t to_wire(
	const struct fsal_obj_handle *obj, fsal_digesttype_t type, struct gsh_buffdesc *out)
{
	const struct handle *handle = container_of(obj, const struct handle, obj);

	if (out->len < sizeof(handle->wire))
		return fsalstat(ERR_FSAL_TOOSMALL, 0);
	memcpy(out->addr, handle->wire, sizeof(handle->wire));
	out->len = sizeof(handle->wire);
	return status_out(0);
}

static void to_key(struct fsal_obj_handle *obj, struct gsh_buffdesc *key)
{
	key->addr = handle_of(obj)->wire;
	key->len = sizeof(handle_of(obj)->wire);
}

void handle_ops(struct fsal_obj_ops *ops)
{
	ops->release = handle_release;
	ops->handle_to_wire = to_wire;
	ops->handle_to_key = to_key;
}
