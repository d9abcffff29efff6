/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Names: looking them up, reading directories, making, moving and taking them. */
#include "export/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* --- looking ------------------------------------------------------------------------------- */

static int look_up(struct handle *dir, const char *name, struct volume_attributes *found)
{
	if (!strcmp(name, "."))
		return volume_getattr(volume_of(dir), dir->ino, found);
	if (!strcmp(name, ".."))
		return volume_parent(volume_of(dir), dir->ino, found);
	return volume_lookup(volume_of(dir), dir->ino, name, found);
}

static fsal_status_t lookup(struct fsal_obj_handle *dir, const char *name,
	struct fsal_obj_handle **obj, struct fsal_attrlist *out)
{
	struct volume_attributes found;
	int r = look_up(handle_of(dir), name, &found);

	if (!r)
		*obj = &handle_new(op_ctx->fsal_export, handle_of(dir)->served, &found, out)->obj;
	return status_out(r);
}

static fsal_status_t readlink_(
	struct fsal_obj_handle *obj, struct gsh_buffdesc *target, bool refresh)
{
	struct handle *handle = handle_of(obj);
	char *buffer = gsh_malloc(VOLUME_TARGET_MAX + 1);
	size_t length = 0;
	int r = volume_readlink(volume_of(handle), handle->ino, buffer, VOLUME_TARGET_MAX, &length);

	if (r) {
		gsh_free(buffer);
		return status_out(r);
	}
	buffer[length] = 0;
	target->addr = buffer;
	target->len = length + 1;
	return status_out(0);
}

/* --- reading a directory ------------------------------------------------------------------- */

/*
 * Entries are copied out of the volume first: ganesha's callback takes locks of its cache and may
 * ask the FSAL for attributes, which has no place within one look at a directory.
 */
#define BATCH 128u

struct entry {
	uint64_t cookie;
	struct volume_attributes attributes;
	char name[VOLUME_NAME_MAX + 1];
};

struct batch {
	unsigned count;
	struct entry entries[BATCH];
};

static bool batch_add(void *data, const struct volume_entry *from)
{
	struct batch *batch = data;
	struct entry *entry = &batch->entries[batch->count];

	if (batch->count == BATCH)
		return false;
	entry->cookie = from->cookie;
	entry->attributes = from->attributes;
	(void)strlcpy(entry->name, from->name, sizeof(entry->name));
	batch->count++;
	return true;
}

/*
 * False when ganesha has enough. What it would also take, to read ahead, it is not given: it asks
 * again where its cache is stale, and would read all that is left each time.
 */
static bool batch_give(const struct batch *batch, struct handle *dir, attrmask_t mask,
	fsal_readdir_cb callback, void *dir_state)
{
	enum fsal_dir_result result = DIR_CONTINUE;

	for (unsigned i = 0; i < batch->count && result == DIR_CONTINUE; i++) {
		const struct entry *entry = &batch->entries[i];
		struct fsal_attrlist attributes;
		struct handle *handle;

		fsal_prepare_attrs(&attributes, mask);
		handle = handle_new(
			op_ctx->fsal_export, dir->served, &entry->attributes, &attributes);
		result = callback(entry->name, &handle->obj, &attributes, dir_state, entry->cookie);
		fsal_release_attrs(&attributes);
	}
	return result == DIR_CONTINUE;
}

static fsal_status_t readdir_(struct fsal_obj_handle *obj, fsal_cookie_t *whence, void *dir_state,
	fsal_readdir_cb callback, attrmask_t mask, bool *eof)
{
	struct handle *dir = handle_of(obj);
	uint64_t cookie = whence ? *whence : 0;
	struct batch *batch = gsh_malloc(sizeof(*batch));
	bool all = false, more = true;
	int r = 0;

	while (more && !all) {
		batch->count = 0;
		r = volume_readdir(volume_of(dir), dir->ino, cookie, batch_add, batch, &all);
		if (r)
			break;
		if (batch->count)
			cookie = batch->entries[batch->count - 1].cookie;
		more = batch_give(batch, dir, mask, callback, dir_state);
	}
	*eof = !r && all && more;
	gsh_free(batch);
	return status_out(r);
}

/* --- changing ------------------------------------------------------------------------------ */

int directory_begin(struct handle *dir, struct volume_attributes *now, struct fsal_attrlist *pre)
{
	PTHREAD_RWLOCK_wrlock(&dir->obj.obj_lock);
	return attributes_read(dir, now, pre);
}

void directory_end(struct handle *dir, struct fsal_attrlist *post)
{
	(void)attributes_get(dir, post);
	PTHREAD_RWLOCK_unlock(&dir->obj.obj_lock);
}

/* Ends an operation: the reply waits until it is durable. */
static fsal_status_t end(int r, uint64_t lsn)
{
	if (!r)
		hold_until_durable(lsn);
	return status_out(r);
}

int new_object(const struct volume_attributes *parent, enum volume_type type,
	const struct fsal_attrlist *attributes, struct volume_new *new)
{
	*new = (struct volume_new){.type = type};
	attributes_in(attributes, &new->set);
	if (type != VOLUME_FILE)
		new->set.mask &= ~(unsigned)VOLUME_SET_SIZE;
	if (!(new->set.mask &VOLUME_SET_UID))
		new->set.uid = op_ctx->creds.caller_uid;
	if (!(new->set.mask &VOLUME_SET_GID))
		new->set.gid = parent->mode &S_ISGID ? parent->gid : op_ctx->creds.caller_gid;
	if (!(new->set.mask &VOLUME_SET_MODE))
		new->set.mode = type == VOLUME_SYMLINK ? 0777 : 0600;
	if (type == VOLUME_DIRECTORY && parent->mode & S_ISGID)
		new->set.mode |= S_ISGID;
	new->set.mask |= VOLUME_SET_UID | VOLUME_SET_GID | VOLUME_SET_MODE;
	return access_new(parent, new);
}

struct making {
	struct fsal_obj_handle *dir;
	const char *name;
	enum volume_type type;
	const char *target;
	struct fsal_attrlist *in, *out, *pre, *post;
};

static fsal_status_t make_locked(const struct making *making, const struct volume_attributes *now,
	struct volume_attributes *made, uint64_t *lsn)
{
	struct handle *dir = handle_of(making->dir);
	struct volume_new new;
	fsal_status_t status = access_directory(now);
	int r;

	if (FSAL_IS_ERROR(status))
		return status;
	r = new_object(now, making->type, making->in, &new);
	new.target = making->target;
	if (making->in->valid_mask & ATTR_RAWDEV)
		new.rdev = making->in->rawdev.major << 32 | (making->in->rawdev.minor & UINT32_MAX);
	if (r)
		return status_out(r);
	request_begin();
	r = volume_make(volume_of(dir), dir->ino, making->name, &new, made, lsn);
	request_end();
	return status_out(r);
}

static fsal_status_t make(const struct making *making, struct fsal_obj_handle **obj)
{
	struct handle *dir = handle_of(making->dir);
	struct volume_attributes now, made;
	fsal_status_t status;
	uint64_t lsn = 0;

	status = status_out(directory_begin(dir, &now, making->pre));
	if (!FSAL_IS_ERROR(status))
		status = make_locked(making, &now, &made, &lsn);
	directory_end(dir, making->post);
	if (FSAL_IS_ERROR(status))
		return status;
	hold_until_durable(lsn);
	*obj = &handle_new(op_ctx->fsal_export, dir->served, &made, making->out)->obj;
	return status;
}

static fsal_status_t mkdir_(struct fsal_obj_handle *dir, const char *name, struct fsal_attrlist *in,
	struct fsal_obj_handle **obj, struct fsal_attrlist *out, struct fsal_attrlist *pre,
	struct fsal_attrlist *post)
{
	const struct making making = {dir, name, VOLUME_DIRECTORY, NULL, in, out, pre, post};

	return make(&making, obj);
}

static fsal_status_t symlink_(struct fsal_obj_handle *dir, const char *name, const char *target,
	struct fsal_attrlist *in, struct fsal_obj_handle **obj, struct fsal_attrlist *out,
	struct fsal_attrlist *pre, struct fsal_attrlist *post)
{
	const struct making making = {dir, name, VOLUME_SYMLINK, target, in, out, pre, post};

	return make(&making, obj);
}

static fsal_status_t mknode(struct fsal_obj_handle *dir, const char *name, object_file_type_t type,
	struct fsal_attrlist *in, struct fsal_obj_handle **obj, struct fsal_attrlist *out,
	struct fsal_attrlist *pre, struct fsal_attrlist *post)
{
	struct making making = {dir, name, 0, NULL, in, out, pre, post};

	for (making.type = VOLUME_FIFO; making.type <= VOLUME_BLOCK; making.type++) {
		if (type_out(making.type) == type)
			return make(&making, obj);
	}
	return fsalstat(ERR_FSAL_BADTYPE, 0);
}

static fsal_status_t link_(struct fsal_obj_handle *obj, struct fsal_obj_handle *to,
	const char *name, struct fsal_attrlist *pre, struct fsal_attrlist *post)
{
	struct handle *handle = handle_of(obj), *dir = handle_of(to);
	struct volume_attributes now;
	uint64_t lsn = 0;
	int r;

	if (handle->served->id != dir->served->id)
		return fsalstat(ERR_FSAL_XDEV, 0);
	r = directory_begin(dir, &now, pre);
	request_begin();
	if (!r)
		r = volume_link(volume_of(dir), handle->ino, dir->ino, name, NULL, &lsn);
	request_end();
	directory_end(dir, post);
	return end(r, lsn);
}

static fsal_status_t unlink_locked(struct handle *dir, const struct volume_attributes *now,
	struct fsal_obj_handle *obj, const char *name, uint64_t *lsn)
{
	enum volume_unlink what =
		obj->type == DIRECTORY ? VOLUME_UNLINK_DIRECTORY : VOLUME_UNLINK_FILE;
	fsal_status_t status = access_directory(now);
	int r;

	if (!FSAL_IS_ERROR(status))
		status = access_remove(dir, now, name);
	if (FSAL_IS_ERROR(status))
		return status;
	request_begin();
	r = volume_unlink(volume_of(dir), dir->ino, name, what, lsn);
	request_end();
	return status_out(r);
}

static fsal_status_t unlink_(struct fsal_obj_handle *from, struct fsal_obj_handle *obj,
	const char *name, struct fsal_attrlist *pre, struct fsal_attrlist *post)
{
	struct handle *dir = handle_of(from);
	struct volume_attributes now;
	fsal_status_t status;
	uint64_t lsn = 0;

	status = status_out(directory_begin(dir, &now, pre));
	if (!FSAL_IS_ERROR(status))
		status = unlink_locked(dir, &now, obj, name, &lsn);
	directory_end(dir, post);
	if (!FSAL_IS_ERROR(status))
		hold_until_durable(lsn);
	return status;
}

/* --- rename -------------------------------------------------------------------------------- */

struct renaming {
	struct handle *obj, *from, *to;
	const char *old, *new;
	struct volume_attributes from_now, to_now;
};

/* A directory that moves has its ".." changed. */
static fsal_status_t rename_access(const struct renaming *renaming)
{
	fsal_status_t status = access_directory(&renaming->from_now);

	if (!FSAL_IS_ERROR(status))
		status = access_remove(renaming->from, &renaming->from_now, renaming->old);
	if (!FSAL_IS_ERROR(status) && renaming->to != renaming->from)
		status = access_directory(&renaming->to_now);
	if (!FSAL_IS_ERROR(status))
		status = access_remove(renaming->to, &renaming->to_now, renaming->new);
	if (!FSAL_IS_ERROR(status) && renaming->to != renaming->from &&
		renaming->obj->obj.type == DIRECTORY)
		status = renaming->obj->obj.obj_ops->test_access(
			&renaming->obj->obj, FSAL_MODE_MASK_SET(FSAL_W_OK), NULL, NULL, false);
	return status;
}

static fsal_status_t rename_locked(const struct renaming *renaming, uint64_t *lsn)
{
	fsal_status_t status = rename_access(renaming);
	int r;

	if (FSAL_IS_ERROR(status))
		return status;
	request_begin();
	r = volume_rename(volume_of(renaming->from), renaming->from->ino, renaming->old,
		renaming->to->ino, renaming->new, lsn);
	request_end();
	return status_out(r);
}

/* Two directories are locked in the order of their numbers, one is locked once. */
static int rename_begin(
	struct renaming *renaming, struct fsal_attrlist *from_pre, struct fsal_attrlist *to_pre)
{
	struct handle *from = renaming->from, *to = renaming->to;
	bool from_first = from->ino <= to->ino;
	int r = 0, other;

	if (from_first)
		r = directory_begin(from, &renaming->from_now, from_pre);
	if (to == from)
		other = attributes_read(to, &renaming->to_now, to_pre);
	else
		other = directory_begin(to, &renaming->to_now, to_pre);
	if (!from_first)
		r = directory_begin(from, &renaming->from_now, from_pre);
	return r ? r : other;
}

static fsal_status_t rename_in_turn(struct renaming *renaming, struct fsal_attrlist *from_pre,
	struct fsal_attrlist *from_post, struct fsal_attrlist *to_pre,
	struct fsal_attrlist *to_post, uint64_t *lsn)
{
	struct handle *from = renaming->from, *to = renaming->to;
	fsal_status_t status = status_out(rename_begin(renaming, from_pre, to_pre));

	if (!FSAL_IS_ERROR(status))
		status = rename_locked(renaming, lsn);
	if (to == from)
		(void)attributes_get(to, to_post);
	else
		directory_end(to, to_post);
	directory_end(from, from_post);
	return status;
}

static fsal_status_t rename_(struct fsal_obj_handle *obj, struct fsal_obj_handle *from,
	const char *old, struct fsal_obj_handle *to, const char *new,
	struct fsal_attrlist *from_pre, struct fsal_attrlist *from_post,
	struct fsal_attrlist *to_pre, struct fsal_attrlist *to_post)
{
	struct renaming renaming = {
		handle_of(obj), handle_of(from), handle_of(to), old, new, {0}, {0}};
	fsal_status_t status;
	uint64_t lsn = 0;

	if (renaming.from->served->id != renaming.to->served->id)
		return fsalstat(ERR_FSAL_XDEV, 0);
	status = rename_in_turn(&renaming, from_pre, from_post, to_pre, to_post, &lsn);
	if (!FSAL_IS_ERROR(status))
		hold_until_durable(lsn);
	return status;
}

void name_ops(struct fsal_obj_ops *ops)
{
	ops->lookup = lookup;
	ops->readdir = readdir_;
	ops->readlink = readlink_;
	ops->mkdir = mkdir_;
	ops->mknode = mknode;
	ops->symlink = symlink_;
	ops->link = link_;
	ops->unlink = unlink_;
	ops->rename = rename_;
}
