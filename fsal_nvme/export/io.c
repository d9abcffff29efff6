/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Reading, writing, committing.
 *
 * A read goes into a buffer of the engine's that leaves with the reply, over RDMA too, and comes
 * back through iov_release. It ends inside the call, when the data
 * was in memory, or on an engine thread, where the request's context is not: there a simple one is
 * made, of the export that the request came through.
 *
 * A write is copied at once and answered; of one that lies aligned in memory, as over RDMA, whole
 * rows are written from there, and it is answered when they are. A stable one, and COMMIT, have
 * their reply held until the file is durable.
 */
#include "export/internal.h"

#include <errno.h>
#include <pthread.h>

/* --- read ---------------------------------------------------------------------------------- */

struct read_call {
	struct volume_read read;
	struct fsal_obj_handle *obj;
	fsal_async_cb done;
	struct fsal_io_arg *arg;
	void *caller;
	struct gsh_export *export; /* a reference */
	struct fsal_export *fsal_export;
	pthread_t thread; /* that made the call */
	void *buffer; /* ours; NULL: the request's */
	size_t size;
};

static void buffer_release(void *data)
{
	struct read_call *call = data;

	buffer_free(nvme.engine, call->buffer, call->size);
	gsh_free(call);
}

/* Logs from an engine thread show whose it is. */
static void name_thread(void)
{
	static __thread bool named;

	if (!named)
		SetNameFunction("nvme_io");
	named = true;
}

/* The call may be gone as soon as ganesha has been told: by buffer_release() in another thread. */
static void read_answer(struct read_call *call, fsal_status_t status)
{
	struct read_call was = *call;
	struct req_op_context context;

	if (!call->buffer)
		gsh_free(call);
	if (pthread_equal(was.thread, pthread_self())) {
		put_gsh_export(was.export);
		was.done(was.obj, status, was.arg, was.caller);
		return;
	}
	name_thread();
	init_op_context_simple(&context, was.export, was.fsal_export);
	was.done(was.obj, status, was.arg, was.caller);
	release_op_context();
}

static void read_done(struct volume_read *read)
{
	struct read_call *call = container_of(read, struct read_call, read);

	if (call->buffer)
		call->arg->iov[0].iov_base = call->buffer = read->memory;
	if (!read->result) {
		call->arg->io_amount = read->bytes;
		call->arg->end_of_file = read->eof;
	}
	read_answer(call, status_out(read->result));
}

static int read_buffer(struct read_call *call, struct fsal_io_arg *arg, size_t length)
{
	if (arg->iov[0].iov_base)
		return 0;
	call->size = (length + BLOCK_SIZE - 1) & ~(size_t)(BLOCK_SIZE - 1);
	call->buffer = buffer_alloc(nvme.engine, call->size);
	if (!call->buffer)
		return -ENOMEM;
	arg->iov[0].iov_base = call->buffer;
	arg->iov_release = buffer_release;
	arg->release_data = call;
	return 0;
}

static int read_start(struct fsal_obj_handle *obj, fsal_async_cb done, struct fsal_io_arg *arg,
	void *caller, size_t length)
{
	struct volume_file *file;
	struct read_call *call;
	int r = handle_file(handle_of(obj), &file);

	if (r)
		return r;
	call = gsh_calloc(1, sizeof(*call));
	r = read_buffer(call, arg, length);
	if (r) {
		gsh_free(call);
		return r;
	}
	call->obj = obj;
	call->done = done;
	call->arg = arg;
	call->caller = caller;
	call->export = op_ctx->ctx_export;
	call->fsal_export = op_ctx->fsal_export;
	call->thread = pthread_self();
	call->read.offset = arg->offset;
	call->read.iov = arg->iov;
	call->read.iov_count = (unsigned)arg->iov_count;
	call->read.length = length;
	call->read.memory = call->buffer;
	call->read.memory_size = call->size;
	call->read.done = read_done;
	get_gsh_export_ref(call->export);
	volume_read(file, &call->read);
	return 0;
}

static void read2(struct fsal_obj_handle *obj, bool bypass, fsal_async_cb done,
	struct fsal_io_arg *arg, void *caller)
{
	size_t length = iov_length(arg->iov, (unsigned)arg->iov_count);
	fsal_status_t status = status_out(0);

	arg->io_amount = 0;
	arg->end_of_file = false;
	if (arg->info) /* READ_PLUS: its asynchronous way is broken in ganesha */
		status = fsalstat(ERR_FSAL_NOTSUPP, 0);
	else if (!arg->state)
		status = share_check(handle_of(obj), FSAL_O_READ, bypass);
	if (!FSAL_IS_ERROR(status) && length) {
		status = status_out(read_start(obj, done, arg, caller, length));
		if (!FSAL_IS_ERROR(status))
			return;
	}
	done(obj, status, arg, caller);
}

/* --- write, commit ------------------------------------------------------------------------- */

static int write_file(struct handle *handle, const struct fsal_io_arg *arg, size_t length)
{
	struct volume_write_options options = {.kill = drops_privileges()};
	struct volume_file *file;
	int r = handle_file(handle, &file);

	if (r)
		return r;
	options.loan = hold_while_lent(arg, length);
	r = arg->fsal_stable ? hold_until_written(file, arg, length, &options)
			     : volume_write_with(file, arg->offset, arg->iov,
				       (unsigned)arg->iov_count, length, &options);
	if (options.loan)
		loan_end(options.loan);
	return r;
}

static void write2(struct fsal_obj_handle *obj, bool bypass, fsal_async_cb done,
	struct fsal_io_arg *arg, void *caller)
{
	size_t length = MIN(arg->io_request, iov_length(arg->iov, (unsigned)arg->iov_count));
	fsal_status_t status = status_out(0);

	arg->io_amount = 0;
	if (!arg->state)
		status = share_check(handle_of(obj), FSAL_O_WRITE, bypass);
	if (!FSAL_IS_ERROR(status))
		status = status_out(write_file(handle_of(obj), arg, length));
	if (!FSAL_IS_ERROR(status))
		arg->io_amount = length;
	done(obj, status, arg, caller);
}

static fsal_status_t commit2(struct fsal_obj_handle *obj, off_t offset, size_t length)
{
	struct volume_file *file;
	int r = handle_file(handle_of(obj), &file);

	if (!r)
		hold_until_committed(file);
	return status_out(r);
}

void io_ops(struct fsal_obj_ops *ops)
{
	ops->read2 = read2;
	ops->write2 = write2;
	ops->commit2 = commit2;
}
