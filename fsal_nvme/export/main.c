/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The module: `libfsalnvme.so`, loaded by ganesha as its Server_FSAL.
 *
 * The happy path:
 *   start()     registers the module when ganesha loads it
 *   configure() reads the block NVME { }, takes the host's lock on the pool, opens it and its
 *               volumes, and gives the server its identity: nothing is served by anybody who does
 *               not own the pool
 *   ready()     exports what the pool holds, and waits for the address, if told so: the control
 *               socket answers meanwhile
 *   serving()   the port is open: the control socket, the compaction, the watch and what tells the
 *               network who has the address start; systemd is told
 *   shutdown()  all requests are answered: commits what is pending, closes the pool
 *
 * What fails, and what then:
 *   configure() or ready()       the reason is in the log, the server ends with status 2
 *   the pool is taken over       the server ends at once (watch.c)
 *   the pool cannot write        changes get an error, reads go on
 *   the same, with `fenced`      as when it is taken over
 *   requests do not end in time  the pool is left as after a crash, status 1
 */
#include "export/internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "FSAL/fsal_init.h"
#include "nfs_core.h"
#include "server_module.h"

#include "cli/control.h"
#include "common/boot.h"
#include "common/notify.h"

#define LOCK_SECONDS 10u
#define CONTROL_SECONDS 20u
#define START_STATUS 2 /* as ganesha's own, when it could not start */
#define MIB (1ull << 20)
#define IO_MAX MIB /* bytes of one READ or WRITE */

struct nvme_module nvme = {
	.fsal.fs_info =
		{
			.maxfilesize = VOLUME_SIZE_MAX,
			.maxlink = VOLUME_LINK_MAX,
			.maxnamelen = VOLUME_NAME_MAX,
			.maxpathlen = VOLUME_TARGET_MAX,
			.no_trunc = true,
			.chown_restricted = true,
			.case_preserving = true,
			.link_support = true,
			.symlink_support = true,
			.unique_handles = true,
			.cansettime = true,
			.homogenous = true,
			.xattr_support = true,
			.supported_attrs = NVME_ATTRIBUTES | ATTR4_XATTR,
			.maxread = IO_MAX,
			.maxwrite = IO_MAX,
			.readdir_plus = true,
			.allocate_own_read_buffer = true,
			.expire_time_parent = -1,
		},
	.lock_fd = -1,
};

static void log_problem(const char *what, const struct error *error)
{
	LogCrit(COMPONENT_FSAL, "%s: %s: %s", what, error->object, error->message);
}

/* --- identity ------------------------------------------------------------------------------ */

void write_verifier(uint64_t losses, verifier4 verifier)
{
	uint64_t value = nvme.opening << 24 | (losses & 0xffffff);

	memcpy(verifier, &value, sizeof(value));
}

/* The epoch counts openings of this pool; another pool's, served here before, must not look the
 * same to a client. Openings for reading alone do not count: they have the time instead. */
static void set_identity(void)
{
	verifier4 verifier;
	uint32_t salt;

	memcpy(&salt, pool_uuid(nvme.pool) + 4, sizeof(salt));
	nvme.opening = pool_epoch(nvme.pool);
	if (pool_is_read_only(nvme.pool))
		nvme.opening = engine_time(nvme.engine) >> 22; /* 4 ms; 40 bits until 2116 */
	write_verifier(0, verifier);
	server_set_identity(salt + (uint32_t)nvme.opening, verifier);
}

/* --- what the control socket tells --------------------------------------------------------- */

static int volume_added(void *data, const struct volume_row *row, struct error *error)
{
	return export_refresh(row, error);
}

/* Ganesha's threads that let go of an export start with the port. */
static int volume_removing(void *data, const struct volume_row *row, struct error *error)
{
	if (!atomic_load(&nvme.serving))
		return error_set(error, -EBUSY, row->name,
			"the server of its pool waits for its address: try again when it has it");
	return export_withdraw(row, error);
}

static int properties_changed(void *data, const struct volume_row *row, struct error *error)
{
	int r = row ? export_refresh(row, error) : pool_properties_apply(nvme.pool, error);

	return r || row ? r : compaction_start(nvme.pool, nvme.volumes, error);
}

static uint64_t copied(void *data)
{
	return rpc_rdma_copied();
}

static int probe(void *data, struct sockaddr_storage *address, struct error *error)
{
	in_port_t port = htons(nfs_param.core_param.port[P_NFS]);

	if (!atomic_load(&nvme.serving))
		return exports_probe(error);
	*address = nfs_param.core_param.bind_addr;
	if (address->ss_family == AF_INET6)
		((struct sockaddr_in6 *)address)->sin6_port = port;
	else
		((struct sockaddr_in *)address)->sin_port = port;
	return exports_probe(error);
}

static bool end_grace(void *data)
{
	return nfs_lift_grace();
}

static void stop(void *data)
{
	kill(getpid(), SIGTERM);
}

static const struct control_host control_host = {
	.volume_added = volume_added,
	.volume_removing = volume_removing,
	.properties_changed = properties_changed,
	.copied = copied,
	.probe = probe,
	.end_grace = end_grace,
	.stop = stop,
};

static int start_control(struct error *error)
{
	char path[256];
	struct control_options options = {
		.pool = nvme.pool,
		.volumes = nvme.volumes,
		.path = path,
		.host = &control_host,
	};
	int r = control_path(nvme.options.run_dir, pool_name(nvme.pool), path, sizeof(path));

	if (r)
		return error_set(error, r, nvme.options.run_dir, "the path is too long");
	return control_start(&options, &nvme.control, error);
}

/* --- the server's calls -------------------------------------------------------------------- */

static void serving(void)
{
	struct error error = {0};

	atomic_store(&nvme.serving, true);
	if (!nvme.control && start_control(&error))
		log_problem("no control socket", &error);
	error_clear(&error);
	if (!pool_is_reader(nvme.pool) && compaction_start(nvme.pool, nvme.volumes, &error))
		log_problem("no compaction", &error);
	watch_start();
	announce_start();
	notify_manager("READY=1");
}

static int close_pool(void)
{
	struct error error = {0};
	int r;

	served_freeze();
	r = served_sync_all();
	if (r)
		LogCrit(COMPONENT_FSAL, "pool %s: unstable writes are lost: %s",
			pool_name(nvme.pool), strerror(-r));
	volumes_abandon(nvme.volumes);
	if (pool_close(nvme.pool, &error)) {
		log_problem("the pool was not closed", &error);
		return 1;
	}
	engine_destroy(nvme.engine);
	return r ? 1 : 0;
}

static int shutdown_(bool drained)
{
	bool quiet = !control_stop(nvme.control, CONTROL_SECONDS) && drained;

	announce_stop();
	watch_stop();
	if (quiet)
		return close_pool();
	LogCrit(COMPONENT_FSAL, "pool %s is left open: it is still in use", pool_name(nvme.pool));
	return 1;
}

/* As the server's own end: who finds the file where no process is takes it for one that failed. */
static void end_as_told(void)
{
	int status = shutdown_(true);

	(void)unlink(nfs_pidfile_path);
	_exit(status);
}

/* Clients get all of the grace period: while volumes were loaded, and the address was not there,
 * none could reclaim. */
static void begin_grace_again(void)
{
	nfs_grace_start_t just = {.event = EVENT_JUST_GRACE};

	if (nfs_in_grace())
		nfs_start_grace(&just);
}

/* Who started it may go on, and bring the address. When that does not come the pool is closed, for
 * somebody else to serve. */
static void wait_for_address(void)
{
	struct error error = {0};
	int r = nvme.options.listen_wait ? start_control(&error) : 0;

	if (!r)
		r = address_await(nvme.options.listen_wait, &error);
	if (!r)
		return;
	log_problem("not served", &error);
	if (r == -EINTR)
		end_as_told();
	(void)shutdown_(true);
	_exit(START_STATUS);
}

/* The port is opened next. */
static int ready(void)
{
	int r = exports_add_all();

	if (!r && address_is_missing())
		wait_for_address();
	if (!r)
		begin_grace_again();
	return r;
}

static struct server_module_ops server_ops = {
	.exports = ready,
	.serving = serving,
	.names_told = hold_names_told,
	.without_session = hold_until_vouched,
	.was_done = request_was_done,
	.session_gone = request_session_gone,
	.shutdown = shutdown_,
	.recovery = &recovery_in_pool,
};

/* --- opening ------------------------------------------------------------------------------- */

#define OPTION_TEXT(name_, default_) CONF_ITEM_STR(#name_, 1, 65536, default_, nvme_options, name_)
#define OPTION_SIZE(name_) CONF_ITEM_UI64(#name_, 0, UINT64_MAX, 0, nvme_options, name_)

static struct config_item option_items[] = {
	CONF_MAND_STR("pool", 1, POOL_NAME_MAX, NULL, nvme_options, pool),
	CONF_MAND_STR("devices", 1, 65536, NULL, nvme_options, devices),
	OPTION_TEXT(host, NULL),
	OPTION_TEXT(run_dir, "/run/millrace"),
	OPTION_TEXT(scratch_dir, NULL),
	CONF_ITEM_BOOL("force", false, nvme_options, force),
	CONF_ITEM_BOOL("fenced", false, nvme_options, fenced),
	CONF_ITEM_BOOL("reader", false, nvme_options, reader),
	OPTION_SIZE(row_memory),
	OPTION_SIZE(page_cache),
	OPTION_SIZE(metadata_limit),
	OPTION_SIZE(buffer_memory),
	CONF_ITEM_UI32("streams", 0, 1024, 0, nvme_options, streams),
	CONF_ITEM_UI32("drain_seconds", 0, 3600, 20, nvme_options, drain_seconds),
	CONF_ITEM_UI32("listen_wait", 0, 3600, 0, nvme_options, listen_wait),
	CONFIG_EOL,
};

static struct config_block option_block = {
	.blk_desc.name = "NVME",
	.blk_desc.type = CONFIG_BLOCK,
	.blk_desc.flags = CONFIG_UNIQUE,
	.blk_desc.u.blk.init = noop_conf_init,
	.blk_desc.u.blk.params = option_items,
	.blk_desc.u.blk.commit = noop_conf_commit,
};

/* Cuts `text` at colons that a '/' follows: others are part of a path, as in /dev/disk/by-path. */
static unsigned split_paths(char *text, const char *paths[POOL_DEVICES_MAX])
{
	unsigned count = 0;

	for (char *at = text; at && count < POOL_DEVICES_MAX;) {
		char *end = strstr(at, ":/");

		paths[count++] = at;
		if (end)
			*end++ = 0;
		at = end;
	}
	return count;
}

static int open_pool(struct error *error)
{
	const struct nvme_options *o = &nvme.options;
	const char *paths[POOL_DEVICES_MAX];
	char host[256] = "", *devices = gsh_strdup(o->devices);
	struct pool_open_options options = {
		.paths = paths,
		.path_count = split_paths(devices, paths),
		.name = o->pool,
		.host = o->host ? o->host : host,
		.scratch_dir = o->scratch_dir,
		.force = o->force,
		.fenced = o->fenced,
		.reader = o->reader,
		.row_memory = o->row_memory,
		.page_cache = o->page_cache,
		.metadata_limit = o->metadata_limit,
		.stream_limit = o->streams,
		.background = true,
	};
	int r;

	(void)gethostname(host, sizeof(host) - 1);
	boot_id_read(options.boot_id);
	r = pool_open(nvme.engine, &options, &nvme.pool, error);
	gsh_free(devices);
	return r;
}

/* A server without a cache is slower, and no worse. */
static void apply_properties(void)
{
	struct error error = {0};

	if (pool_properties_apply(nvme.pool, &error))
		LogWarn(COMPONENT_FSAL, "%s: %s", error.object, error.message);
}

static int open_storage(struct error *error)
{
	const struct engine_options options = {.buffer_memory = nvme.options.buffer_memory};
	const struct volumes_options volumes = {.moved = export_moved};
	const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	size_t length;
	void *memory;
	int r = host_lock(
		nvme.options.run_dir, nvme.options.pool, LOCK_SECONDS, &nvme.lock_fd, error);

	if (r)
		return r;
	(void)setrlimit(RLIMIT_MEMLOCK, &all); /* for registered buffers, where it is counted */
	r = uring_engine_create(&options, &nvme.engine, error);
	if (!r) {
		memory = engine_memory(nvme.engine, &length);
		rpc_rdma_lend(memory, length);
		r = open_pool(error);
	}
	if (!r)
		r = volumes_create(nvme.pool, &volumes, &nvme.volumes);
	return r;
}

static fsal_status_t configure(
	struct fsal_module *module, config_file_t config, struct config_error_type *err)
{
	struct error error = {0};
	int r;

	(void)load_config_from_parse(config, &option_block, &nvme.options, true, err);
	if (!config_error_is_harmless(err))
		return fsalstat(ERR_FSAL_INVAL, 0);
	log_start();
	r = open_storage(&error);
	if (r) {
		error_set(&error, r, nvme.options.pool, "%s", strerror(-r));
		log_problem("the pool was not opened", &error);
		return fsalstat(ERR_FSAL_IO, -r);
	}
	apply_properties();
	set_identity();
	server_ops.drain_seconds = nvme.options.drain_seconds;
	server_module_register(&server_ops);
	return status_out(0);
}

/* --- loading ------------------------------------------------------------------------------- */

MODULE_INIT static void start(void)
{
	if (register_fsal(
		    &nvme.fsal, "NVME", FSAL_MAJOR_VERSION, FSAL_MINOR_VERSION, FSAL_ID_NO_PNFS)) {
		LogCrit(COMPONENT_FSAL, "the FSAL NVME could not be registered");
		return;
	}
	nvme.fsal.m_ops.init_config = configure;
	nvme.fsal.m_ops.create_export = export_create;
	fsal_default_obj_ops_init(&nvme.obj_ops);
	handle_ops(&nvme.obj_ops);
	attribute_ops(&nvme.obj_ops);
	name_ops(&nvme.obj_ops);
	file_ops(&nvme.obj_ops);
	io_ops(&nvme.obj_ops);
	xattr_ops(&nvme.obj_ops);
	range_ops(&nvme.obj_ops);
}
