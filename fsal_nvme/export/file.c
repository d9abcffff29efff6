/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Opening and closing. A file is opened through its object, or by name in a directory, where it may
 * be created. An open with a state takes its share reservation and keeps the file alive without a
 * name until close2().
 *
 * Exclusive creation is recognised by its verifier, which stands in atime and mtime until the
 * client, told so by the server, sets both.
 */
#include "export/internal.h"

#include <errno.h>
#include <string.h>

#define CREATE_TRIES 8 /* against somebody who makes and removes the name all the time */

/* --- states -------------------------------------------------------------------------------- */

static struct open_state *open_of(struct state_t *state)
{
	return state ? container_of(state, struct open_state, state) : NULL;
}

static void state_close(struct open_state *open)
{
	if (!open->file)
		return;
	volume_file_close(open->file);
	volume_file_put(open->file);
	open->file = NULL;
}

static void state_free(struct state_t *state)
{
	state_close(open_of(state));
	gsh_free(open_of(state));
}

struct state_t *state_new(struct fsal_export *export, enum state_type type, struct state_t *related)
{
	struct open_state *open = gsh_calloc(1, sizeof(*open));

	return init_state(&open->state, state_free, type, related);
}

static int state_open(struct open_state *open, struct handle *handle)
{
	struct volume_file *file;
	int r;

	if (!open || open->file)
		return 0;
	r = volume_file_get(volume_of(handle), handle->ino, &file);
	if (r)
		return r;
	r = volume_file_open(file);
	if (r)
		volume_file_put(file);
	else
		open->file = file;
	return r;
}

/* --- opening an object --------------------------------------------------------------------- */

static fsal_status_t truncate_file(struct handle *handle)
{
	const struct volume_set set = {
		.mask = VOLUME_SET_SIZE | (drops_privileges() ? VOLUME_SET_KILL : 0)};
	fsal_status_t status = handle->obj.obj_ops->test_access(
		&handle->obj, FSAL_MODE_MASK_SET(FSAL_W_OK), NULL, NULL, false);
	uint64_t lsn = 0;
	int r;

	if (FSAL_IS_ERROR(status))
		return status;
	r = volume_setattr(volume_of(handle), handle->ino, &set, NULL, &lsn);
	if (!r)
		hold_until_durable(lsn);
	return status_out(r);
}

static fsal_status_t open_object(
	struct handle *handle, struct open_state *open, fsal_openflags_t flags)
{
	fsal_openflags_t before = open ? open->flags : FSAL_O_CLOSED;
	bool was_open = open && open->file;
	fsal_status_t status;

	if (flags & (FSAL_O_WRITE | FSAL_O_TRUNC) && volume_is_read_only(volume_of(handle)))
		return status_out(-EROFS);
	status = open ? share_move(handle, &open->flags, flags) : status_out(0);
	if (FSAL_IS_ERROR(status))
		return status;
	status = status_out(state_open(open, handle));
	if (!FSAL_IS_ERROR(status) && flags & FSAL_O_TRUNC)
		status = truncate_file(handle);
	if (FSAL_IS_ERROR(status) && open) {
		(void)share_move(handle, &open->flags, before);
		if (!was_open)
			state_close(open);
	}
	return status;
}

static bool is_exclusive(enum fsal_create_mode mode)
{
	return mode == FSAL_EXCLUSIVE || mode == FSAL_EXCLUSIVE_41;
}

static bool has_verifier(const struct served *served, const struct volume_attributes *found,
	fsal_verifier_t verifier)
{
	struct fsal_attrlist attributes = {0};

	attributes_out(served, found, &attributes);
	return check_verifier_attrlist(&attributes, verifier, false);
}

/* Whether what is there will do for an open that may create. */
static int check_existing(const struct served *served, const struct volume_attributes *found,
	enum fsal_create_mode mode, fsal_verifier_t verifier)
{
	if (mode == FSAL_GUARDED)
		return -EEXIST;
	return is_exclusive(mode) && !has_verifier(served, found, verifier) ? -EEXIST : 0;
}

static fsal_status_t open_by_object(struct handle *handle, struct open_state *open,
	fsal_openflags_t flags, enum fsal_create_mode mode, fsal_verifier_t verifier)
{
	struct volume_attributes found = {0};
	int r = is_exclusive(mode) ? volume_getattr(volume_of(handle), handle->ino, &found) : 0;

	if (!r)
		r = check_existing(handle->served, &found, mode, verifier);
	return r ? status_out(r) : open_object(handle, open, flags);
}

/* --- opening a name ------------------------------------------------------------------------ */

struct opening {
	struct handle *dir;
	const char *name;
	fsal_openflags_t flags;
	enum fsal_create_mode mode;
	struct fsal_attrlist *in;
	char *verifier;
	struct open_state *open; /* or NULL */
};

/* 0: made, and open, to be closed with its state, also where the open fails yet; -EEXIST: `found`
 * was there already. */
static int create(const struct opening *opening, const struct volume_attributes *parent,
	struct volume_attributes *found, uint64_t *lsn)
{
	struct open_state *open = opening->open;
	struct fsal_attrlist in = {0};
	struct volume_new new;
	int r;

	if (opening->in)
		in = *opening->in;
	if (is_exclusive(opening->mode))
		set_common_verifier(&in, opening->verifier, false);
	r = new_object(parent, VOLUME_FILE, &in, &new);
	if (r)
		return r;
	return volume_make_open(volume_of(opening->dir), opening->dir->ino, opening->name, &new,
		found, open && !open->file ? &open->file : NULL, lsn);
}

static int find(const struct opening *opening, struct volume_attributes *found)
{
	return volume_lookup(volume_of(opening->dir), opening->dir->ino, opening->name, found);
}

/* Who may not make the file may still open it. */
static fsal_status_t find_or_create(const struct opening *opening,
	const struct volume_attributes *parent, struct volume_attributes *found, bool *created,
	uint64_t *lsn)
{
	fsal_status_t status = status_out(0);
	int r = -EAGAIN;

	*created = false;
	if (opening->mode == FSAL_NO_CREATE)
		return status_out(find(opening, found));
	status = access_directory(parent);
	if (FSAL_IS_ERROR(status) || volume_is_read_only(volume_of(opening->dir))) {
		r = find(opening, found);
		if (r == -ENOENT)
			return FSAL_IS_ERROR(status) ? status : status_out(-EROFS);
		return status_out(r);
	}
	for (int i = 0; r == -EAGAIN && i < CREATE_TRIES; i++)
		r = create(opening, parent, found, lsn);
	*created = !r;
	return status_out(r == -EEXIST ? 0 : r);
}

/* The same of what has the name, which may be anything. */
static fsal_status_t take_existing(
	const struct opening *opening, const struct volume_attributes *found)
{
	int r = check_existing(opening->dir->served, found, opening->mode, opening->verifier);

	if (!r && found->type == VOLUME_DIRECTORY)
		r = -EISDIR;
	if (!r && found->type != VOLUME_FILE)
		return fsalstat(ERR_FSAL_SYMLINK, 0);
	return status_out(r);
}

/* `out` as it is after all that was done. */
static fsal_status_t open_found(const struct opening *opening,
	const struct volume_attributes *found, bool created, struct fsal_obj_handle **obj,
	struct fsal_attrlist *out)
{
	fsal_openflags_t flags = opening->flags;
	struct handle *handle;
	fsal_status_t status;

	if (created)
		flags &= ~FSAL_O_TRUNC;
	handle = handle_new(op_ctx->fsal_export, opening->dir->served, found, out);
	status = open_object(handle, opening->open, flags);
	if (!FSAL_IS_ERROR(status) && flags & FSAL_O_TRUNC)
		status = attributes_get(handle, out);
	if (FSAL_IS_ERROR(status))
		handle_release(&handle->obj);
	else
		*obj = &handle->obj;
	return status;
}

static fsal_status_t open_by_name(const struct opening *opening, struct fsal_obj_handle **obj,
	struct fsal_attrlist *out, bool *check, struct fsal_attrlist *pre,
	struct fsal_attrlist *post)
{
	struct volume_attributes parent, found;
	fsal_status_t status;
	bool created = false;
	uint64_t lsn = 0;

	status = status_out(directory_begin(opening->dir, &parent, pre));
	if (!FSAL_IS_ERROR(status))
		status = find_or_create(opening, &parent, &found, &created, &lsn);
	directory_end(opening->dir, post);
	if (!FSAL_IS_ERROR(status) && !created)
		status = take_existing(opening, &found);
	if (FSAL_IS_ERROR(status))
		return status;
	hold_until_durable(lsn);
	*check = !created;
	return open_found(opening, &found, created, obj, out);
}

/* --- the calls ----------------------------------------------------------------------------- */

static fsal_status_t open2(struct fsal_obj_handle *obj, struct state_t *state,
	fsal_openflags_t flags, enum fsal_create_mode mode, const char *name,
	struct fsal_attrlist *in, fsal_verifier_t verifier, struct fsal_obj_handle **made,
	struct fsal_attrlist *out, bool *caller_perm_check, struct fsal_attrlist *pre,
	struct fsal_attrlist *post)
{
	const struct opening opening = {
		handle_of(obj), name, flags, mode, in, verifier, open_of(state)};

	*caller_perm_check = true;
	if (name)
		return open_by_name(&opening, made, out, caller_perm_check, pre, post);
	return open_by_object(handle_of(obj), open_of(state), flags, mode, verifier);
}

static fsal_status_t reopen2(
	struct fsal_obj_handle *obj, struct state_t *state, fsal_openflags_t flags)
{
	return open_object(handle_of(obj), open_of(state), flags);
}

static fsal_openflags_t status2(struct fsal_obj_handle *obj, struct state_t *state)
{
	return open_of(state)->flags;
}

static bool check_verifier(struct fsal_obj_handle *obj, fsal_verifier_t verifier)
{
	struct handle *handle = handle_of(obj);
	struct volume_attributes found;

	return !volume_getattr(volume_of(handle), handle->ino, &found) &&
	       has_verifier(handle->served, &found, verifier);
}

/* Also of states of locks, which are never open. */
static fsal_status_t close2(struct fsal_obj_handle *obj, struct state_t *state)
{
	struct handle *handle = handle_of(obj);
	struct open_state *open = open_of(state);

	(void)share_move(handle, &open->flags, FSAL_O_CLOSED);
	state_close(open);
	return status_out(0);
}

/* There is nothing that is open without a state. */
static fsal_status_t close_(struct fsal_obj_handle *obj)
{
	return fsalstat(ERR_FSAL_NOT_OPENED, 0);
}

void file_ops(struct fsal_obj_ops *ops)
{
	ops->open2 = open2;
	ops->reopen2 = reopen2;
	ops->status2 = status2;
	ops->check_verifier = check_verifier;
	ops->close2 = close2;
	ops->close = close_;
}
