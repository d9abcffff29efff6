/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* One export: a volume at /POOL/VOLUME. */
#include "export/internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

/* --- objects by path and by handle --------------------------------------------------------- */

static fsal_status_t object(struct fsal_export *export, uint64_t ino, struct fsal_obj_handle **obj,
	struct fsal_attrlist *out)
{
	struct served *served = export_of(export)->served;
	struct volume_attributes attributes;
	int r = volume_getattr(served->volume, ino, &attributes);

	if (!r)
		*obj = &handle_new(export, served, &attributes, out)->obj;
	return status_out(r);
}

/* Ganesha asks for the root of the export alone. */
static fsal_status_t lookup_path(struct fsal_export *export, const char *path,
	struct fsal_obj_handle **obj, struct fsal_attrlist *out)
{
	if (strcmp(path, CTX_FULLPATH(op_ctx)))
		return status_out(-ENOENT);
	return object(export, VOLUME_ROOT, obj, out);
}

/* A handle of this volume, whatever export a client shows it to. */
static fsal_status_t decode(
	struct fsal_export *export, const struct gsh_buffdesc *bytes, struct volume_handle *handle)
{
	int r = volume_handle_decode(bytes->addr, bytes->len, handle);

	if (!r)
		r = volume_handle_check(export_of(export)->served->volume, handle);
	return status_out(r);
}

static fsal_status_t wire_to_host(
	struct fsal_export *export, fsal_digesttype_t type, struct gsh_buffdesc *bytes, int flags)
{
	struct volume_handle handle;

	return decode(export, bytes, &handle);
}

static fsal_status_t host_to_key(struct fsal_export *export, struct gsh_buffdesc *bytes)
{
	struct volume_handle handle;

	return decode(export, bytes, &handle);
}

static fsal_status_t create_handle(struct fsal_export *export, struct gsh_buffdesc *bytes,
	struct fsal_obj_handle **obj, struct fsal_attrlist *out)
{
	struct volume_handle handle;
	fsal_status_t status = decode(export, bytes, &handle);

	return FSAL_IS_ERROR(status) ? status : object(export, handle.ino, obj, out);
}

/* --- properties ---------------------------------------------------------------------------- */

/* Inodes cost metadata only: as many are free as there are free blocks. */
static fsal_status_t space(
	struct fsal_export *export, struct fsal_obj_handle *obj, fsal_dynamicfsinfo_t *info)
{
	struct volume_space now;
	int r = volume_statfs(export_of(export)->served->volume, &now);

	if (r)
		return status_out(r);
	info->total_bytes = now.total;
	info->free_bytes = now.free;
	info->avail_bytes = now.free;
	info->free_files = now.free / BLOCK_SIZE;
	info->avail_files = info->free_files;
	info->total_files = now.files + info->free_files;
	info->time_delta = (struct timespec){.tv_nsec = 1};
	return status_out(0);
}

/* Nothing in an immutable volume waits for anybody: it has no grace period. */
static bool supports(struct fsal_export *export, fsal_fsinfo_options_t option)
{
	struct nvme_export *self = export_of(export);

	if (option == fso_grace_method)
		return volume_row(self->served->volume)->sealed;
	return self->supports(export, option);
}

static void get_write_verifier(struct fsal_export *export, struct gsh_buffdesc *out)
{
	verifier4 verifier;

	write_verifier(volume_losses(export_of(export)->served->volume), verifier);
	memcpy(out->addr, verifier, MIN(out->len, sizeof(verifier)));
}

/* --- what ganesha's cache is to forget ----------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvme_export *first; /* lock; not those that are being taken away */

static void announce(struct nvme_export *self)
{
	PTHREAD_MUTEX_lock(&lock);
	self->next = first;
	first = self;
	PTHREAD_MUTEX_unlock(&lock);
}

static void withdraw(struct fsal_export *export)
{
	struct nvme_export **at = &first;

	PTHREAD_MUTEX_lock(&lock);
	while (*at && *at != export_of(export))
		at = &(*at)->next;
	if (*at)
		*at = (*at)->next;
	PTHREAD_MUTEX_unlock(&lock);
}

/* Where the volume's objects are in the cache, with a reference to ganesha's export; NULL: it has
 * none. */
static const struct fsal_up_vector *up_vector(const struct volume *volume)
{
	const struct fsal_up_vector *up = NULL;

	PTHREAD_MUTEX_lock(&lock);
	for (struct nvme_export *at = first; at && !up; at = at->next) {
		if (at->served->volume == volume && at->export.up_ops->up_ready)
			up = at->export.up_ops;
	}
	if (up)
		get_gsh_export_ref(up->up_gsh_export);
	PTHREAD_MUTEX_unlock(&lock);
	return up;
}

/* In a thread of the volume's, or in one that waits for it: the cache takes no lock for it that is
 * held over calls of ours. */
void export_moved(struct volume *volume, uint64_t ino)
{
	const struct fsal_up_vector *up = up_vector(volume);
	uint8_t wire[VOLUME_HANDLE_SIZE];
	struct gsh_buffdesc key = {wire, sizeof(wire)};
	struct req_op_context context;

	if (!up)
		return;
	volume_handle_make(volume, ino, wire);
	init_op_context_simple(&context, up->up_gsh_export, up->up_fsal_export);
	(void)up->invalidate(up, &key, FSAL_UP_INVALIDATE_ATTRS);
	release_op_context();
}

/* --- life ---------------------------------------------------------------------------------- */

static void release(struct fsal_export *export)
{
	struct nvme_export *self = export_of(export);

	withdraw(export);
	fsal_detach_export(export->fsal, &export->exports);
	free_export_ops(export);
	served_put(self->served);
	gsh_free(self);
}

static void export_ops(struct nvme_export *self)
{
	struct export_ops *ops = &self->export.exp_ops;

	self->supports = ops->fs_supports;
	ops->release = release;
	ops->prepare_unexport = withdraw;
	ops->lookup_path = lookup_path;
	ops->wire_to_host = wire_to_host;
	ops->host_to_key = host_to_key;
	ops->create_handle = create_handle;
	ops->get_fs_dynamic_info = space;
	ops->fs_supports = supports;
	ops->get_write_verifier = get_write_verifier;
	ops->alloc_state = state_new;
}

/* "/POOL/VOLUME" -> "VOLUME" */
static const char *volume_name(const char *path)
{
	size_t length = strlen(pool_name(nvme.pool));

	if (path[0] != '/' || strncmp(path + 1, pool_name(nvme.pool), length) ||
		path[1 + length] != '/')
		return NULL;
	return path + 1 + length + 1;
}

static int open_volume(const char *path, struct served **served)
{
	const char *name = volume_name(path);
	struct error error = {0};
	int r = name ? served_get(name, op_ctx->ctx_export->export_id, served, &error) : -ENOENT;

	if (r)
		LogCrit(COMPONENT_FSAL, "export %s: %s", path,
			error.code ? error.message : "no such volume of the pool");
	return r;
}

/* The block FSAL { } of an export has a name, nothing else. */
static struct config_item block_items[] = {CONF_ITEM_NOOP("name"), CONFIG_EOL};
static struct config_block block = {
	.blk_desc.name = "FSAL",
	.blk_desc.type = CONFIG_BLOCK,
	.blk_desc.u.blk.init = noop_conf_init,
	.blk_desc.u.blk.params = block_items,
	.blk_desc.u.blk.commit = noop_conf_commit,
};

fsal_status_t export_create(struct fsal_module *module, void *node, struct config_error_type *err,
	const struct fsal_up_vector *up)
{
	struct nvme_export *self;
	struct served *served;
	int r = open_volume(CTX_FULLPATH(op_ctx), &served);

	if (r)
		return status_out(r);
	self = gsh_calloc(1, sizeof(*self));
	self->served = served;
	fsal_export_init(&self->export);
	export_ops(self);
	if (load_config_from_node(node, &block, self, true, err) ||
		fsal_attach_export(module, &self->export.exports)) {
		free_export_ops(&self->export);
		served_put(served);
		gsh_free(self);
		return status_out(-EINVAL);
	}
	self->export.fsal = module;
	self->export.up_ops = up;
	op_ctx->fsal_export = &self->export;
	announce(self);
	return status_out(0);
}
