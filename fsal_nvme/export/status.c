/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Errors of the layers below, for NFS. */
#include "export/internal.h"

#include <errno.h>
#include <pthread.h>

#define SECOND UINT64_C(1000000000)
#define DOUBT (5 * SECOND) /* several beats, and the watch */
#define READER_DOUBT (30 * SECOND) /* several looks at the drives */
#define READER_LACK (120 * SECOND) /* in which a cluster ends a reader whose probe fails */
#define QUIET (60 * SECOND) /* longer than a client waits before it asks again */

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

bool server_is_over(void)
{
	int failure = pool_failure(nvme.pool);

	return failure == -ESTALE || (failure && nvme.options.fenced);
}

/*
 * Another server may find the drives that this host has lost. A read fails at once then, and the
 * pool with its next beat: errors of the first nanoseconds, after a while without any, are not told
 * to clients.
 */
static bool is_doubtful(uint64_t nanoseconds)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t first, latest; /* errors, engine_clock(); lock */
	uint64_t now = engine_clock(nvme.engine), since;

	PTHREAD_MUTEX_lock(&lock);
	if (!latest || now - latest > QUIET)
		first = now;
	latest = now;
	since = now - first;
	PTHREAD_MUTEX_unlock(&lock);
	return since < nanoseconds;
}

/* A reader writes nothing that could tell it. */
static bool reader_lacks_drives(void)
{
	char silent[1];

	return is_doubtful(pool_answers(nvme.pool, READER_DOUBT, silent, sizeof(silent))
				   ? READER_DOUBT
				   : READER_LACK);
}

static bool is_of_lost_drives(void)
{
	return nvme.options.reader ? reader_lacks_drives()
				   : nvme.options.fenced && is_doubtful(DOUBT);
}

/* Whether the client is to ask again, which another server may answer, or a new one here. */
static bool is_for_another(int error)
{
	return error && (server_is_over() || (error == -EIO && is_of_lost_drives()));
}

fsal_status_t status_out(int error)
{
	if (is_for_another(error))
		return fsalstat(ERR_FSAL_DELAY, -error);
	for (unsigned i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
		if (statuses[i].error == error)
			return fsalstat(statuses[i].status, -error);
	}
	return fsalstat(ERR_FSAL_IO, -error);
}

/* Of what was to become durable. */
nfsstat4 status_nfs(int error)
{
	if (is_for_another(error))
		return NFS4ERR_DELAY;
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
