/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Operations on the volume and the pool as a whole: on them, and on the model. */
#include "steps.h"

#include <errno.h>
#include <stdio.h>

#define FILL_STEP 16384

static unsigned long deltas, full_images; /* written by "checkpoint" */

/* Writes "fill", a file that the model does not know, until the pool has no room; 0 then. */
int do_fill(struct run *run, int a, int b)
{
	struct volume_new new = {.type = VOLUME_FILE};
	static uint8_t bytes[FILL_STEP];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct volume_attributes made;
	struct volume_file *file;
	uint64_t offset = 0, lsn;
	int rc = volume_make(run->volume, VOLUME_ROOT, "fill", &new, &made, &lsn);

	if (!rc)
		rc = volume_file_get(run->volume, made.ino, &file);
	if (rc)
		return rc;
	for (; !rc; offset += sizeof(bytes)) {
		rc = volume_write(file, offset, &iov, 1, sizeof(bytes));
		if (!rc)
			rc = volume_commit_wait(file);
	}
	volume_file_put(file);
	return rc == -ENOSPC ? 0 : rc;
}

int do_unlink_fill(struct run *run, int a, int b)
{
	uint64_t lsn = 0;

	return durable(run,
		volume_unlink(run->volume, VOLUME_ROOT, "fill", VOLUME_UNLINK_ANY, &lsn), &lsn);
}

int run_make_room(struct run *run)
{
	int rc = volume_row(run->volume)->sealed ? 0 : do_unlink_fill(run, 0, 0);

	return rc == -ENOENT ? 0 : rc;
}

int do_seal(struct run *run, int a, int b)
{
	let_go(run);
	return volume_seal(run->volume, NULL);
}

int do_checkpoint(struct run *run, int a, int b)
{
	static struct pool_status before, after;
	int rc;

	pool_status(run->pool, &before);
	rc = pool_checkpoint(run->pool);
	pool_status(run->pool, &after);
	deltas += after.deltas - before.deltas;
	full_images += after.images - before.images > 1; /* not the pool's own alone */
	return rc;
}

int do_maintain(struct run *run, int a, int b)
{
	int rc = volume_maintain(run->volume);

	return rc ? rc : pool_maintain(run->pool);
}

int do_compact(struct run *run, int a, int b)
{
	return run_compact(run);
}

int put_client(struct run *run, int client)
{
	char name = (char)('0' + client);
	uint64_t lsn;
	int rc = client_put(run->pool, &name, 1, &lsn);

	return rc ? rc : pool_sync(run->pool, lsn);
}

int do_client(struct run *run, int a, int b)
{
	return put_client(run, a);
}

int do_forget_clients(struct run *run, int a, int b)
{
	return clients_forget_earlier(run->pool);
}

int do_reopen(struct run *run, int a, int b)
{
	int rc = close_volume(run);

	return rc ? rc : run_open(run);
}

/* --- and on the model --- */

int m_seal(struct model *m, int a, int b, unsigned salt)
{
	return model_seal(m);
}
int m_nothing(struct model *m, int a, int b, unsigned salt)
{
	return 0;
}
/* Of what fills the pool. */
int m_fill(struct model *m, int a, int b, unsigned salt)
{
	return m->sealed ? -EROFS : 0;
}
int m_client(struct model *m, int a, int b, unsigned salt)
{
	return model_client(m, a);
}
int m_forget_clients(struct model *m, int a, int b, unsigned salt)
{
	return model_forget_clients(m);
}
int m_reopen(struct model *m, int a, int b, unsigned salt)
{
	model_settle(m);
	model_open(m);
	return 0;
}

int images_report(void)
{
	if (deltas && full_images)
		return 0;
	printf("no %s was written\n", deltas ? "full image of a volume" : "delta");
	return 1;
}
