/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The control socket: verbs of the command, run inside the process that has the pool open.
 *
 * What it promises to that process (the server):
 *  - control_start() listens on a socket that only root (and the user of the process) may use, and
 *    runs verbs in threads of its own, at most CONTROL_VERBS at once, of which `serve --probe` is
 *    none, for at most CONTROL_CONNECTIONS clients; others wait to be accepted.
 *  - A verb has the same effect there as on an idle pool; what it means for exports is told through
 *    struct control_host before it is answered.
 *  - Whatever a client sends, or fails to send or to read, costs at most one of those threads for
 *    CONTROL_PATIENCE seconds, and is answered with an error where that can be.
 *
 * The protocol: one request a connection, a line of JSON of at most CONTROL_REQUEST_MAX bytes,
 *     {"schema":1,"verb":["share","create"],"args":{"volume":"tank/models"}}
 * answered by lines, of which the last one has "result" or "error" or both, the others one of
 *     {"schema":1,"progress":{...}}   {"schema":1,"note":"..."}   {"schema":1,"alive":true}
 * A client that closes its end stops the verb where that can be stopped.
 *
 * Also here, because the server and the command must agree on it: what properties mean.
 */
#ifndef MILLRACE_CONTROL_H
#define MILLRACE_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "common/error.h"
#include "pool/pool.h"
#include "volume/volume.h"

#define CONTROL_CONNECTIONS 64
#define CONTROL_VERBS 16
#define CONTROL_PATIENCE 10 /* seconds */
#define CONTROL_REQUEST_MAX (64u << 10)

struct control;

/*
 * How the server hears of changes. Called from threads of the control socket, one at a time; any
 * may be NULL. 0 or a negative errno with its story in `error`.
 */
struct control_host {
	void *data; /* the server's own */
	/* There is a volume to be exported: a share was made, or a dataset has just been sealed
	 * (until then it is not exported). Durable already. An error is reported as such; the
	 * volume stays. */
	int (*volume_added)(void *data, const struct volume_row *row, struct error *error);
	/* A volume is about to be destroyed: its export must go and volume_close() be called. A
	 * dataset that was never sealed has none: 0. An error keeps the volume. When what follows
	 * fails, volume_added() comes, if it may be exported. */
	int (*volume_removing)(void *data, const struct volume_row *row, struct error *error);
	/* Properties were changed, durably: read them again. After an error the old values are
	 * put back. `row` is NULL for those of the pool. */
	int (*properties_changed)(void *data, const struct volume_row *row, struct error *error);
	/* Bytes of data that the server has copied on their way to and from the network. */
	uint64_t (*copied)(void *data);
	/* Whether requests are answered: looks the root of each export up, the way that requests
	 * do, and tells the address at which they come in: none (AF_UNSPEC) while it is waited for.
	 */
	int (*probe)(void *data, struct sockaddr_storage *address, struct error *error);
	/* Ends the time in which clients of an earlier server alone may take what they had, whoever
	 * has not come; whether there was one. */
	bool (*end_grace)(void *data);
	/* Asked to stop: returns at once, as a SIGTERM would. */
	void (*stop)(void *data);
};

struct control_options {
	struct pool *pool;
	struct volumes *volumes; /* the server's own, so that each volume is open once */
	/* RUN_DIR/POOL.sock; its directory must exist; what is there is replaced. */
	const char *path;
	const struct control_host *host; /* NULL: nobody needs to know. Until control_stop() */
};

int control_start(
	const struct control_options *options, struct control **control, struct error *error);
/*
 * Removes the socket, asks verbs to stop and waits for them. 0: all is freed. -ETIMEDOUT: after
 * `seconds` one is still under way: the pool must be neither closed nor abandoned, only _exit() is
 * left. NULL is allowed.
 */
int control_stop(struct control *control, unsigned seconds);

/* RUN_DIR/POOL.sock. -ENAMETOOLONG. */
int control_path(const char *run_dir, const char *pool, char *path, size_t size);

/*
 * Who may open a pool for writing on this host: a lock on RUN_DIR/POOL.lock, taken before
 * pool_open() and held, by its descriptor, until the pool is closed. Waits up to `seconds`. -EBUSY.
 */
int host_lock(
	const char *run_dir, const char *pool, unsigned seconds, int *fd, struct error *error);

/* --- properties -------------------------------------------------------------------------- */

#define PROPERTY_NAME_MAX 63
#define PROPERTY_VALUE_MAX 1000

/* The value in force: what was set, else the default. -ENOENT: there is no such property. */
int property_value(struct txn *txn, uint32_t volume, const char *name, char *value, size_t size);

/* Makes a pool what its own properties say, for whoever serves it: when it was opened, and when
 * they were changed. On an error, with its story, it stays as it was. */
int pool_properties_apply(struct pool *pool, struct error *error);
/* Compacts a pool that is served as `compact.rate` says, from when it is served and whenever
 * properties of the pool have changed, until volumes_destroy() or volumes_abandon(). */
int compaction_start(struct pool *pool, struct volumes *volumes, struct error *error);

/* One element of nfs.clients. */
struct client_rule {
	char address[64]; /* "*", an address, or a network as ADDRESS/BITS, without host bits */
	bool write;
};
#define CLIENT_RULES_MAX 64
/* Elements of a value of nfs.clients, at most CLIENT_RULES_MAX. -EINVAL names the bad one. */
int client_rules_parse(const char *value, struct client_rule rules[CLIENT_RULES_MAX],
	unsigned *count, struct error *error);

#endif
