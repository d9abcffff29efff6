/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Ganesha's FSAL calls as calls of volumes: `FSAL { Name = NVME; }`. Translation only; what is true
 * of files is decided in volume/. Read main.c first (life of the module), then exports.c (what is
 * exported), export.c, handle.c, and the operations: attributes.c, xattr.c, name.c, file.c, io.c,
 * range.c.
 *
 * Ganesha's structs are embedded, and recovered from a pointer to them by the ..._of() functions.
 * `op_ctx`, the request that this thread works for, is read in the outermost functions only.
 *
 * What lives how long. A `served` volume lives as long as its export or any object of it; an object
 * as long as ganesha's cache keeps it; a file of the volume in memory as long as an object or an
 * open state refers to it. Requests under way hold their object and their export.
 *
 * What is durable when. An operation that changes names or attributes is done in memory and takes a
 * hold on the reply (hold.c), as do COMMIT and stable WRITE: no worker waits for the journal. One
 * on names that fails, or finds that there is nothing to do, takes one on all that was changed
 * before: who asks takes for done what it answers.
 */
#ifndef MILLRACE_EXPORT_INTERNAL_H
#define MILLRACE_EXPORT_INTERNAL_H

#include "config.h"

#include <netpacket/packet.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Ganesha has a struct pool of its own. */
#define pool ganesha_pool
#define pool_destroy ganesha_pool_destroy
#include "fsal.h"
#include "fsal_api.h"
#include "FSAL/fsal_commonlib.h"
#undef pool
#undef pool_destroy

#include "common/error.h"
#include "device/device.h"
#include "pool/pool.h"
#include "volume/volume.h"

/* --- main.c: the module -------------------------------------------------------------------- */

struct control;

/* The block NVME { } of the configuration; strings belong to ganesha. */
struct nvme_options {
	char *pool;
	char *devices; /* absolute paths, separated by colons; a colon before no '/' is of the path
			*/
	char *host; /* NULL: the host's name */
	char *run_dir; /* of the lock and the control socket */
	char *scratch_dir; /* NULL: the pool's default */
	bool force, fenced, reader; /* as in struct pool_open_options; fenced: another server
				       follows when this one ends */
	uint64_t row_memory, page_cache, metadata_limit, buffer_memory; /* bytes; 0: the default */
	uint32_t streams; /* 0: the default */
	uint32_t drain_seconds, listen_wait;
};

struct nvme_module {
	struct fsal_module fsal;
	struct fsal_obj_ops obj_ops;
	struct nvme_options options;
	int lock_fd; /* the host's lock on the pool */
	struct engine *engine;
	struct pool *pool;
	struct volumes *volumes;
	struct control *control;
	_Atomic bool serving; /* the port is open */
	uint64_t opening; /* tells this one apart from others of the pool, to clients */
};
/* The one that ganesha loaded. All of it is set before the first export and stays. */
extern struct nvme_module nvme;

/* What tells apart the states in which unstable writes may have been lost. */
void write_verifier(uint64_t losses, verifier4 verifier);

/* --- address.c: where it is served ---------------------------------------------------------- */

/* Whether the server's address (Bind_Addr) is none of this host's. */
bool address_is_missing(void);
/* Waits until it is one. -EADDRNOTAVAIL when it is not within `seconds`, -EINTR when the server is
 * told to end. Ends the process as watch_end_if_over(). */
int address_await(unsigned seconds, struct error *error);

/* --- announce.c: who has that address ------------------------------------------------------- */

/* Begins to tell the network each second, where the server is one of a cluster (`fenced`). A reader
 * tells once that it has begun. */
void announce_start(void);
/* Does not wait; from then on the pool is left alone. */
void announce_stop(void);
/* The server ends as the pool is another's, or soon will be, and the address with it: tells whoever
 * has it. Does not wait. */
void announce_lost(void);

/* --- neighbour.c: what hosts of an Ethernet tell each other ------------------------------------
 */

/* The interface that has `address`, whose port is 0; false where none does. May wait for whoever
 * changes one. */
bool neighbour_find(const struct sockaddr_storage *address, struct sockaddr_ll *hardware);
/* Tells all that `hardware` has it. A negative errno. */
int neighbour_announce(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address);
/* Tells all that this host comes back to the pool. A negative errno. */
int neighbour_tell(const struct sockaddr_ll *hardware, const uint8_t pool[16]);
/* A descriptor for neighbour_heard(), or a negative errno. */
int neighbour_listen(const struct sockaddr_ll *hardware);
/* Whether another host has come back to the pool since the last time, or a negative errno: it will
 * not be heard here any more. Does not wait. */
int neighbour_heard(int fd, const uint8_t pool[16]);

/* --- log.c: the log of the layers below goes into ganesha's -------------------------------- */

void log_start(void);

/* --- recovery.c: clients that may reclaim ------------------------------------------------------
 */

extern struct nfs4_recovery_backend recovery_in_pool;

/* --- follow.c: a reader's exports are those of the newest root ----------------------------------
 */

/* Is about to be exported. */
void follow_note(const struct volume_row *row);
void follow_look(void);

/* --- watch.c: against serving what another host owns, and for what a reader has to follow ---- */

/* Ends the process when this is no server any more (server_is_over()). */
void watch_end_if_over(void);
void watch_start(void);
void watch_stop(void);

/* --- served.c: volumes in use -------------------------------------------------------------- */

struct served {
	struct volume *volume;
	uint32_t id; /* of the volume */
	_Atomic unsigned refs;
	struct served *next; /* all of them */
};

/* Opens the volume of this name, with one reference. -ESTALE: it has another export's id. */
int served_get(const char *name, uint16_t export_id, struct served **served, struct error *error);
void served_ref(struct served *served);
/* The last one has the volume closed, soon and elsewhere: that waits for pending writes, and this
 * is called from the engine's threads too, when a read was the last user of an export. */
void served_put(struct served *served);
/* volume_file_put(), except after served_freeze(). NULL is allowed. */
void served_put_file(struct volume_file *file);
/* Waits until the volume is closed. -EBUSY after `seconds`. */
int served_wait_gone(uint32_t volume, unsigned seconds);
/* Commits what is pending everywhere; the first error. */
int served_sync_all(void);
/*
 * From here on files and volumes are not let go of any more: ganesha's cache may drop objects
 * until the process ends, also while the pool is being closed below it.
 */
void served_freeze(void);

/* --- exports.c: EXPORT blocks from rows and properties ------------------------------------- */

/* All volumes that are to be exported. One that cannot be is logged and left out. */
int exports_add_all(void);
/* Looks the root of each up, as requests do. */
int exports_probe(struct error *error);
/* The first volume whose id is not less. -ENOENT: there is none. */
int exports_next(uint32_t id, struct volume_row *row);
/* For a new volume, a dataset that was sealed, changed properties; there may be an export already.
 * A dataset that is not sealed has none. */
int export_refresh(const struct volume_row *row, struct error *error);
/* Returns when nobody uses the volume any more. -EBUSY when that takes too long. */
int export_withdraw(const struct volume_row *row, struct error *error);

/* --- export.c ------------------------------------------------------------------------------ */

struct nvme_export {
	struct fsal_export export;
	struct served *served;
	bool (*supports)(struct fsal_export *, fsal_fsinfo_options_t); /* ganesha's default */
	struct nvme_export *next; /* of those that ganesha has use for */
};

static inline struct nvme_export *export_of(struct fsal_export *export)
{
	return container_of(export, struct nvme_export, export);
}

/* Ganesha's cache forgets the attributes of a file: volumes_options.moved. */
void export_moved(struct volume *volume, uint64_t ino);

fsal_status_t export_create(struct fsal_module *module, void *node, struct config_error_type *err,
	const struct fsal_up_vector *up);

/* --- handle.c: objects --------------------------------------------------------------------- */

struct handle {
	struct fsal_obj_handle obj;
	struct served *served;
	uint64_t ino;
	uint8_t wire[VOLUME_HANDLE_SIZE]; /* on the wire, and the key in ganesha's cache */
	struct volume_file *_Atomic file; /* NULL until it is needed */
};

static inline struct handle *handle_of(struct fsal_obj_handle *obj)
{
	return container_of(obj, struct handle, obj);
}

static inline struct volume *volume_of(const struct handle *handle)
{
	return handle->served->volume;
}

/* A fresh object; `out`, ganesha's attributes of it, may be NULL. */
struct handle *handle_new(struct fsal_export *export, struct served *served,
	const struct volume_attributes *attributes, struct fsal_attrlist *out);
void handle_release(struct fsal_obj_handle *obj);
/* The file in memory, as long as the handle lives. -ESTALE. */
int handle_file(struct handle *handle, struct volume_file **file);
void handle_ops(struct fsal_obj_ops *ops);

/* --- attributes.c -------------------------------------------------------------------------- */

#define NVME_ATTRIBUTES (ATTRS_POSIX | ATTR_CREATION)

object_file_type_t type_out(enum volume_type type);
fsal_fsid_t fsid_out(const struct served *served);
/* NULL is allowed. */
void attributes_out(const struct served *served, const struct volume_attributes *attributes,
	struct fsal_attrlist *out);
void attributes_in(const struct fsal_attrlist *in, struct volume_set *set);
/* Reads them; an error is kept in `out` where the caller asked for that. `out` may be NULL. */
fsal_status_t attributes_get(struct handle *handle, struct fsal_attrlist *out);
/* The same, and as they are here. */
int attributes_read(
	struct handle *handle, struct volume_attributes *attributes, struct fsal_attrlist *out);
void attribute_ops(struct fsal_obj_ops *ops);

/* --- access.c: what ganesha leaves to the FSAL --------------------------------------------- */

/* The caller may make, take or replace names in a directory whose attributes are `now`. */
fsal_status_t access_directory(const struct volume_attributes *now);
/* And may take this one away (the sticky bit). `dir` was checked. */
fsal_status_t access_remove(
	struct handle *dir, const struct volume_attributes *now, const char *name);
/* Whether the caller, when he changes a file's content, takes set-uid and set-gid from it. */
bool drops_privileges(void);
/* Whether the caller may make such an object in a directory `parent`. -EPERM. A set-gid bit for a
 * group that is not the caller's is taken from it. */
int access_new(const struct volume_attributes *parent, struct volume_new *new);

/* The caller may read extended attributes, or with `change` change them: in a sticky directory its
 * owner alone may. */
fsal_status_t access_xattr(struct handle *handle, bool change);

/* --- name.c, file.c, io.c, range.c, xattr.c ------------------------------------------------ */

void name_ops(struct fsal_obj_ops *ops);
void file_ops(struct fsal_obj_ops *ops);
void io_ops(struct fsal_obj_ops *ops);
void xattr_ops(struct fsal_obj_ops *ops);
void range_ops(struct fsal_obj_ops *ops);

/* A directory whose names change: one at a time, so that `pre` and `post`, its change attribute
 * before and after, belong to this change alone. Both may be NULL. `now`: its attributes before;
 * they are not there when this fails, which must be ended all the same. */
int directory_begin(struct handle *dir, struct volume_attributes *now, struct fsal_attrlist *pre);
void directory_end(struct handle *dir, struct fsal_attrlist *post);
/* What a new object is to be: as `attributes` says, else the caller's; a set-gid directory gives
 * its group. */
int new_object(const struct volume_attributes *parent, enum volume_type type,
	const struct fsal_attrlist *attributes, struct volume_new *new);

/* An open file, as ganesha's state says it. */
struct open_state {
	struct state_t state;
	fsal_openflags_t flags;
	struct volume_file *file; /* open; NULL: it is not */
};
struct state_t *state_new(
	struct fsal_export *export, enum state_type type, struct state_t *related);

/* --- share.c: share reservations ----------------------------------------------------------- */

/* Whether one forbids I/O without a state. */
fsal_status_t share_check(struct handle *handle, fsal_openflags_t flags, bool bypass);
/* From what an open state has to what it wants; its own is not in its way. Who cuts the file
 * (FSAL_O_TRUNC, which is not kept) writes to it, whatever else it is opened for. */
fsal_status_t share_move(struct handle *handle, fsal_openflags_t *has, fsal_openflags_t wants);

/* --- request.c: requests that change names ------------------------------------------------- */

/* Between the two, what this thread changes in a volume is done for the request that it runs. */
void request_begin(void);
void request_end(void);
/* Whether an earlier server has done what it asks for. */
bool request_was_done(const struct request_mark *mark);
/* Nobody asks again in this session. */
void request_session_gone(const sessionid4 session, uint32_t slots);

/* --- hold.c -------------------------------------------------------------------------------- */

/* The reply of this request leaves when `lsn` is durable; 0: at once. */
void hold_until_durable(uint64_t lsn);
/* An operation on names that changed nothing: the reply leaves when all that it may have seen is
 * durable. */
void hold_names_told(void);
/* The reply tells what is known to this server alone: it leaves when that is durable, as it may be
 * told a second time (a CREATE_SESSION that is sent again), and no other one is found that has the
 * pool by now; not at all where one has. */
void hold_until_vouched(void);
/* The reply leaves when all writes to the file that have returned are durable. */
void hold_until_committed(struct volume_file *file);
/* A write whose reply leaves when it is durable. An error: nothing was written, it leaves at once.
 */
int hold_until_written(struct volume_file *file, const struct fsal_io_arg *arg, size_t length,
	struct volume_write_options *options);
/* The memory of a write, for volume_write_options.loan: the reply, and with it what the request
 * takes, leaves when the loan is over; who writes ends it. NULL: it is not worth it. */
struct loan *hold_while_lent(const struct fsal_io_arg *arg, size_t length);
/* The same of space that is kept, and of a hole. */
int hold_until_allocated(struct volume_file *file, uint64_t offset, uint64_t length,
	struct volume_write_options *options);
int hold_until_punched(struct volume_file *file, uint64_t offset, uint64_t length,
	struct volume_write_options *options);

/* --- status.c ------------------------------------------------------------------------------ */

/* The pool has failed, and another server has taken it or may (--fenced): this one is to end. */
bool server_is_over(void);
/* Of a negative errno of the layers below, or 0. What another server may know better is
 * ERR_FSAL_DELAY. */
fsal_status_t status_out(int error);
nfsstat4 status_nfs(int error);

#endif
