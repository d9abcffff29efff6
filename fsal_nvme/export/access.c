/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Permission to change a directory, and to make what is put there. Ganesha checks what happens to a
 * file by its attributes, and leaves names to file systems that act as the caller: no other check
 * stands before ours. The caller is op_ctx->creds, as squashed.
 */
#include "export/internal.h"

#include <errno.h>
#include <sys/stat.h>

static fsal_status_t access_mode(struct handle *handle, fsal_accessflags_t wanted)
{
	return handle->obj.obj_ops->test_access(&handle->obj, wanted, NULL, NULL, false);
}

static bool is_owner(const struct volume_attributes *attributes)
{
	return attributes->uid == op_ctx->creds.caller_uid;
}

static bool is_superuser(void)
{
	struct fsal_export *export = op_ctx->fsal_export;

	return export->exp_ops.is_superuser(export, &op_ctx->creds);
}

static bool is_member(uint32_t gid)
{
	const struct user_cred *creds = &op_ctx->creds;
	bool is = creds->caller_gid == gid;

	for (unsigned i = 0; !is && i < creds->caller_glen; i++)
		is = creds->caller_garray[i] == gid;
	return is;
}

fsal_status_t access_directory(const struct volume_attributes *now)
{
	const uint32_t wanted = S_IWOTH | S_IXOTH;
	uint32_t mode = now->mode;

	if (is_superuser())
		return status_out(0);
	if (is_owner(now))
		mode >>= 6;
	else if (is_member(now->gid))
		mode >>= 3;
	return (mode & wanted) == wanted ? status_out(0) : fsalstat(ERR_FSAL_ACCESS, 0);
}

int access_new(const struct volume_attributes *parent, struct volume_new *new)
{
	bool inherits = parent->mode & S_ISGID && new->set.gid == parent->gid;

	if (is_superuser())
		return 0;
	if (new->type == VOLUME_CHARACTER || new->type == VOLUME_BLOCK)
		return -EPERM;
	if (new->set.uid != op_ctx->creds.caller_uid)
		return -EPERM;
	if (is_member(new->set.gid))
		return 0;
	if (new->type != VOLUME_DIRECTORY)
		new->set.mode &= ~(uint32_t)S_ISGID;
	return inherits ? 0 : -EPERM;
}

bool drops_privileges(void)
{
	return !is_superuser();
}

fsal_status_t access_remove(
	struct handle *dir, const struct volume_attributes *now, const char *name)
{
	struct volume_attributes victim;
	int r;

	if (!(now->mode & S_ISVTX) || is_superuser() || is_owner(now))
		return status_out(0);
	r = volume_lookup(volume_of(dir), dir->ino, name, &victim);
	if (r == -ENOENT)
		return status_out(0);
	return status_out(!r && !is_owner(&victim) ? -EPERM : r);
}

fsal_status_t access_xattr(struct handle *handle, bool change)
{
	fsal_status_t status = access_mode(
		handle, change ? FSAL_MODE_MASK_SET(FSAL_W_OK) : FSAL_MODE_MASK_SET(FSAL_R_OK));
	struct volume_attributes now;
	int r;

	if (FSAL_IS_ERROR(status) || !change || handle->obj.type != DIRECTORY)
		return status;
	r = volume_getattr(volume_of(handle), handle->ino, &now);
	if (!r && now.mode & S_ISVTX && !is_superuser() && !is_owner(&now))
		r = -EPERM;
	return status_out(r);
}
