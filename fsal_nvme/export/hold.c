/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Held replies: what was done in memory is answered when it is durable, without a thread that
 * waits. The hold is taken in the worker's thread, within the FSAL call; it is released by the
 * pool, from one of its threads or before the call returns.
 */
#include "export/internal.h"

#include "reply_hold.h"

struct hold {
	struct reply_hold *reply; /* NULL: nobody waits */
	struct durable_wait wait;
	struct volume_commit commit;
};

static void hold_end(struct hold *hold, int status)
{
	reply_hold_release(hold->reply, status_nfs(status));
	gsh_free(hold);
}

/*
 * Where the pool fails and another server may take it, this one ends within a second (watch.c), and
 * its clients' connections with it. What it could not make durable stands on drives all the same,
 * perhaps, and the next one has it done: a client that has no answer asks there with the number
 * that it asked with here, and is told. With any answer it would ask anew, for what is done
 * (done.c).
 */
static void durable(struct durable_wait *wait, int status)
{
	if (status && (nvme.options.fenced || server_is_over()))
		return;
	hold_end(container_of(wait, struct hold, wait), status ? -EIO : 0);
}

void hold_until_durable(uint64_t lsn)
{
	struct reply_hold *reply = lsn ? reply_hold_take() : NULL;
	struct hold *hold;

	if (!reply)
		return;
	hold = gsh_calloc(1, sizeof(*hold));
	hold->reply = reply;
	hold->wait.done = durable;
	pool_when_durable(nvme.pool, lsn, &hold->wait);
}

void hold_names_told(void)
{
	struct fsal_export *export = op_ctx->fsal_export;

	if (export && export->sub_export)
		export = export->sub_export;
	/* What cannot be made durable any more must not be told by a server that ends. */
	if (export && export->fsal == &nvme.fsal &&
		(server_is_over() || !volume_is_read_only(export_of(export)->served->volume)))
		hold_until_durable(pool_lsn(nvme.pool));
}

/*
 * Of writes that were lost a client has a copy until a COMMIT ends, well or not: told to come again
 * it finds the new verifier, and writes them once more. Where that fails as well it is an error
 * (status.c: unless another server may know better).
 */
static void committed(struct volume_commit *commit, int status)
{
	bool come_again = status == -EIO && commit->again;

	hold_end(container_of(commit, struct hold, commit), come_again ? -EAGAIN : status);
}

static struct hold *hold_for_commit(void)
{
	struct hold *hold = gsh_calloc(1, sizeof(*hold));

	hold->reply = reply_hold_take();
	hold->commit.done = committed;
	return hold;
}

void hold_until_committed(struct volume_file *file)
{
	volume_commit(file, &hold_for_commit()->commit);
}

int hold_until_written(struct volume_file *file, const struct fsal_io_arg *arg, size_t length,
	struct volume_write_options *options)
{
	struct hold *hold = hold_for_commit();
	int r;

	options->commit = &hold->commit;
	r = volume_write_with(
		file, arg->offset, arg->iov, (unsigned)arg->iov_count, length, options);
	if (r)
		hold_end(hold, 0);
	return r;
}

/* --- what this server alone can know -------------------------------------------------------- */

struct vouching {
	struct durable_wait durable;
	struct look_wait look;
	struct reply_hold *reply;
};

/* Where no other may take over unseen (not fenced) what cannot be looked at is answered all the
 * same. One that is over answers nothing. */
static void vouched(struct look_wait *look)
{
	struct vouching *vouching = container_of(look, struct vouching, look);

	if (server_is_over())
		return;
	reply_hold_release(
		vouching->reply, look->status && nvme.options.fenced ? NFS4ERR_DELAY : NFS4_OK);
	gsh_free(vouching);
}

/* Where the pool has failed there are no records (recovery.c). */
static void recorded(struct durable_wait *wait, int status)
{
	pool_look(nvme.pool, &container_of(wait, struct vouching, durable)->look);
}

void hold_until_vouched(void)
{
	struct reply_hold *reply = reply_hold_take();
	struct vouching *vouching;

	if (!reply)
		return;
	vouching = gsh_calloc(1, sizeof(*vouching));
	vouching->reply = reply;
	vouching->durable.done = recorded;
	vouching->look.done = vouched;
	pool_when_durable(nvme.pool, pool_is_read_only(nvme.pool) ? 0 : pool_lsn(nvme.pool),
		&vouching->durable);
}

/* --- memory of the request ----------------------------------------------------------------- */

#define LENT_LEAST (64u << 10) /* bytes of a write that may make up a row */

struct lending {
	struct loan loan;
	struct reply_hold *reply;
};

static void lending_over(struct loan *loan)
{
	struct lending *lending = container_of(loan, struct lending, loan);

	reply_hold_release(lending->reply, NFS4_OK);
	gsh_free(lending);
}

struct loan *hold_while_lent(const struct fsal_io_arg *arg, size_t length)
{
	struct reply_hold *reply;
	struct lending *lending;

	if (length < LENT_LEAST || (uintptr_t)arg->iov[0].iov_base % BLOCK_SIZE)
		return NULL;
	reply = reply_hold_take();
	if (!reply)
		return NULL;
	lending = gsh_malloc(sizeof(*lending));
	lending->reply = reply;
	loan_begin(&lending->loan, lending_over);
	return &lending->loan;
}

/* --- space --------------------------------------------------------------------------------- */

int hold_until_allocated(struct volume_file *file, uint64_t offset, uint64_t length,
	struct volume_write_options *options)
{
	struct hold *hold = hold_for_commit();
	int r;

	options->commit = &hold->commit;
	r = volume_allocate_with(file, offset, length, options);
	if (r)
		hold_end(hold, 0);
	return r;
}

int hold_until_punched(struct volume_file *file, uint64_t offset, uint64_t length,
	struct volume_write_options *options)
{
	struct hold *hold = hold_for_commit();
	int r;

	options->commit = &hold->commit;
	r = volume_punch_with(file, offset, length, options);
	if (r)
		hold_end(hold, 0);
	return r;
}
