/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Errors of the layers below, for NFS. */
#include "export/internal.h"

#include <errno.h>

static const struct {
	int error;
	fsal_errors_t status;
} statuses[] = {
	{0, ERR_FSAL_NO_ERROR},
	{-EACCES, ERR_FSAL_ACCESS},
	{-EAGAIN, ERR_FSAL_DELAY},
	{-EBADMSG, ERR_FSAL_BADHANDLE},
	{-EBUSY, ERR_FSAL_DELAY},
	{-EDQUOT, ERR_FSAL_DQUOT},
	{-EEXIST, ERR_FSAL_EXIST},
	{-EFBIG, ERR_FSAL_FBIG},
	{-EINVAL, ERR_FSAL_INVAL},
	{-EISDIR, ERR_FSAL_ISDIR},
	{-EMLINK, ERR_FSAL_MLINK},
	{-ENAMETOOLONG, ERR_FSAL_NAMETOOLONG},
	{-ENODATA, ERR_FSAL_NOXATTR},
	{-ENOENT, ERR_FSAL_NOENT},
	{-ENOMEM, ERR_FSAL_DELAY}, /* the client tries again */
	{-ENOSPC, ERR_FSAL_NOSPC},
	{-ENOTDIR, ERR_FSAL_NOTDIR},
	{-ENOTEMPTY, ERR_FSAL_NOTEMPTY},
	{-ENXIO, ERR_FSAL_NXIO},
	{-EOPNOTSUPP, ERR_FSAL_NOTSUPP},
	{-EPERM, ERR_FSAL_PERM},
	{-EROFS, ERR_FSAL_ROFS},
	{-ESTALE, ERR_FSAL_STALE},
};

fsal_status_t status_out(int error)
{
	/* Not a file that has gone, but the pool. */
	if (error == -ESTALE && pool_failure(nvme.pool) == -ESTALE)
		return fsalstat(ERR_FSAL_IO, ESTALE);
	for (unsigned i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
		if (statuses[i].error == error)
			return fsalstat(statuses[i].status, -error);
	}
	return fsalstat(ERR_FSAL_IO, -error);
}

/* Of what was to become durable. */
nfsstat4 status_nfs(int error)
{
	switch (error) {
	case 0:
		return NFS4_OK;
	case -ENOSPC:
		return NFS4ERR_NOSPC;
	case -ENOMEM:
	case -EAGAIN:
		return NFS4ERR_DELAY;
	default:
		return NFS4ERR_IO;
	}
}
