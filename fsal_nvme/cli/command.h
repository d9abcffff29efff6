/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What the files of the command share; the server has none of it. */
#ifndef MILLRACE_COMMAND_H
#define MILLRACE_COMMAND_H

#include "cli/verb.h"

#define STATE_DIR "/var/lib/millrace"
#define RUN_DIR "/run/millrace"
#define EXIT_DEGRADED 5

struct command {
	const struct verb *verb;
	json_t *args; /* the verb's */
	json_t *common; /* of common_parameters */
	json_t *result;
	struct error error;
	struct engine *engine; /* made when first needed */
	double deadline; /* seconds_now() until which servers are waited for; 0: as long as they
			    show signs of life */
	bool hint_help; /* the error is one of usage: point at --help */
	bool degraded; /* of `status` */
	bool answered; /* all that there was to print is printed */
	bool everywhere; /* a pool that is not known here is looked for on all devices */
	bool reader; /* it is about the pool's reader on this host, not about its owner */
	bool by_uuid; /* the pool is that of its name which has `uuid`, whatever is known here */
	uint8_t uuid[16];
};

/* --- parse.c, help.c, complete.c --------------------------------------------------------- */

/* Options of every verb. Ends with a name of NULL. */
extern const struct parameter common_parameters[];
/* Fills verb, args and common; -EINVAL. *help is set when help was asked for; then verb may be
 * NULL, and *noun too. */
int command_parse(struct command *command, int argc, char **argv, bool *help, const char **noun);
/* Adds the value of a parameter, from its text, to an object of arguments. -EINVAL. */
int argument_put(json_t *args, const struct parameter *p, const char *text, struct error *error);
/* Prints what the last of `words`, those behind the command's name, may become. */
void completion_print(struct command *command, int count, char **words);
/* Of one verb, of a noun's verbs, or (both NULL) of all. */
void help_print(FILE *to, const struct verb *verb, const char *noun);

bool command_json(const struct command *command);
const char *command_state_dir(const struct command *command);
const char *command_run_dir(const struct command *command);
const char *command_host(const struct command *command); /* this host's name unless --host */
int command_engine(struct command *command, struct engine **engine);

/* --- devices.c: where the devices of a pool are ------------------------------------------ */

struct device_set {
	char **paths; /* each device once, whatever it is called */
	unsigned count;
};
void device_set_free(struct device_set *set);
int device_set_add(struct device_set *set, const char *path);
/* Plain files and block devices of --device-dir. -ENOENT and the like name the directory. */
int device_set_add_dirs(struct device_set *set, const struct command *command, struct error *error);
/* Whole block devices and partitions of this host. */
int device_set_scan(struct device_set *set);

struct found_pool {
	struct pool_summary summary; /* devices_found: the first of those in `set` */
	struct device_set set; /* the last ones have no header that can be read */
	uint64_t members; /* of summary.members those that are whole, a bit each */
};
/* All pools that the devices of `set` hold; free() the list after found_free() of each. */
int pools_probe(struct command *command, const struct device_set *set, struct found_pool **list,
	unsigned *count);
void found_free(struct found_pool *found);
/* By the cache, --device-dir, and where that is not all of it, or with `everywhere`, /dev. -ENOENT.
 */
int pool_find(
	struct command *command, const char *name, struct found_pool *found, struct error *error);

/* --- cache.c: what the state directory remembers, a hint only ---------------------------- */

/* Devices of a pool as last seen are added to `set`; uuid may be NULL. -ENOENT. */
int cache_load(
	const struct command *command, const char *name, struct device_set *set, uint8_t uuid[16]);
int cache_save(const struct command *command, const struct found_pool *found, struct error *error);
/* These, a JSON array, are devices of a pool that is in the cache. */
int cache_add(
	const struct command *command, const char *name, const json_t *paths, struct error *error);
void cache_remove(const struct command *command, const char *name);
/* Paths of its devices as last seen, whether they are there or not: a JSON array. */
json_t *cache_paths(const struct command *command, const char *name);
/* Whether the drive that has a path now is, by what it says of itself, the one that was seen there.
 */
bool cache_same_drive(const struct command *command, const char *name, const char *path);
/* Names of pools that are in the cache or served: a sorted JSON array of strings. */
json_t *cache_names(const struct command *command);
/* mkdir -p. */
int directory_make(const char *path, struct error *error);

/* --- idle.c, client.c: running a verb ---------------------------------------------------- */

/* On the served pool, or else on the idle one. */
int command_run_on_pool(struct command *command);
/* The same for a verb and arguments of the caller's choice; fills `result`. */
int pool_verb(struct command *command, const struct verb *verb, const json_t *args, json_t *result,
	struct error *error);
/* Over all known pools where "pool" is not given. */
int command_run_on_pools(struct command *command);
/* Options to open a found pool with; valid as long as `found` and `command`. */
void open_options_fill(const struct command *command, const struct found_pool *found,
	struct pool_open_options *options);
/* Where environments have their scratch files. */
const char *command_scratch_dir(const struct command *command);
/* The lock that a writer holds; waits for verbs, not for a server. */
int command_lock(struct command *command, const char *pool, int *lock, struct error *error);

/* A connection to the server of a pool. -ENOENT: it is not served. */
int client_connect(const struct command *command, const char *pool, int *fd, struct error *error);
/* One verb; the connection is closed. Until command->deadline, if there is one. -ETIMEDOUT. */
int client_call(const struct command *command, int fd, const char *pool, const struct verb *verb,
	const json_t *args, json_t *result, struct error *error);
bool pool_is_served(const struct command *command, const char *pool);
/* Whether anything here knows a pool of this name: the cache, or a server. */
bool pool_is_known(const struct command *command, const char *pool);
/* The same of a control socket that is there. One at which nobody listens, of a server that was
 * killed, is removed, unless somebody holds the pool's lock: a server may be about to listen. */
bool socket_is_live(const struct command *command, const char *pool);

/* --- terminal.c -------------------------------------------------------------------------- */

/* Shows progress on stderr when that is a terminal; stops at ^C. What has no measure is shown with
 * the time that it takes, again and again. */
struct reporter *terminal_reporter(void);
/* That "VERB OBJECT" has begun, which has no measure. */
void terminal_part(const char *verb, const char *object);
/* Notes and the log's warnings go to stderr, or, with --json, into "notes" of the result. */
void terminal_begin(bool json);
/* Nothing that writes to the log may run any more. */
void terminal_end(json_t *result);
/* Asks before a verb that destroys. -ECANCELED. */
int terminal_confirm(const struct command *command, struct error *error);

/* --- output.c, views.c ------------------------------------------------------------------- */

enum field_kind {
	FIELD_TEXT,
	FIELD_NUMBER,
	FIELD_BYTES,
	FIELD_BOOL,
	FIELD_TIME, /* ns since 1970 */
	FIELD_SPAN, /* ns */
};
struct field {
	const char *key, *heading;
	enum field_kind kind;
};
/* A part of a result as text: a table where `key` is an array, lines where it is an object. */
struct view {
	const char *noun, *verb; /* verb NULL: the noun is the verb */
	const char *key; /* "a.b": member b of object a */
	const char *title; /* a line above it; NULL: none */
	const char *empty; /* instead of an empty table; NULL: nothing */
	const struct field *fields; /* ends with a key of NULL */
	bool paragraphs; /* the rows of an array one below the other, with their fields */
};
/* Ends with a noun of NULL. */
extern const struct view view_table[];
/* The whole answer of the command, as JSON or text. */
void output_print(const struct command *command);

/* --- verbs of the command itself --------------------------------------------------------- */

int command_pool_create(struct command *command);
int command_pool_import(struct command *command);
int command_pool_export(struct command *command);
int command_pool_list(struct command *command);
int command_pool_destroy(struct command *command);
int command_pool_status(struct command *command);
int command_pool_attach(struct command *command);
int command_pool_replace(struct command *command);
int command_pool_iostat(struct command *command);
int command_serve(struct command *command);
int command_status(struct command *command);
/* node.c, cluster.c */
int command_node_status(struct command *command);
int command_node_update(struct command *command);
int command_cluster(struct command *command);
int command_service(struct command *command);
int command_client(struct command *command);

#define SERVICE_NAME_MAX 41
/*
 * -EBUSY where a service of this host's cluster is to serve the pool: its server may start at any
 * time, here or elsewhere, and nothing but that server writes to the pool. 0 in no cluster, and
 * where pacemaker was told to let the server be (disabled, or maintenance-mode). Another error
 * where the cluster does not run here, and cannot be asked. To be asked behind command_lock(), by
 * which no server starts here meanwhile. `error` may be that of `command`.
 */
int refuse_besides_service(
	struct command *command, const struct pool_summary *pool, struct error *error);

/* --- helper.c: what programs of the appliance and of a cluster do ------------------------ */

/* Runs `helper` with `words`, which end with NULL; what it answers become members of `result`. Its
 * reason to fail is about `object`. Waits, as long as it takes. */
int helper_run(struct command *command, const char *helper, const char *const *words,
	const char *object, json_t *result);

/* --- serve: the parts -------------------------------------------------------------------- */

struct server_place {
	char program[4096]; /* ganesha.nfsd */
	char modules[4096]; /* the directory of our FSAL */
};
/* Next to the command in a build tree, else where it is installed. -ENOENT. */
int server_locate(struct server_place *place, struct error *error);
/* Whether a device's path can stand in the server's configuration. -EINVAL. */
int server_path_check(const char *path, struct error *error);
/* Where the server of a pool logs. */
void server_log_path(const struct command *command, const char *pool, char path[4096]);
/* The same in words, "see ...", for an admin. */
void server_log_hint(const struct command *command, const char *pool, char *text, size_t size);
/* Why a start failed that has written the log from `from` on; "" where it does not say: then the
 * log is told as notes. */
void server_log_reason(const char *path, off_t from, char *reason, size_t size);
/* --stop: ends it; with --force by SIGKILL, if need be. -ENOENT: none runs. -ETIMEDOUT. */
int server_stop(struct command *command, const char *pool);
/* --probe: whether it does its work (verbs_serve.c), and answers an NFS call. -ENOENT, -ETIMEDOUT.
 */
int server_probe(struct command *command, const char *pool);
/* --end-grace. -ENOENT: none runs. -ETIMEDOUT. */
int server_end_grace(struct command *command, const char *pool);
/* Writes RUN_DIR/POOL/ganesha.conf and fills its path. */
int server_configure(struct command *command, const struct found_pool *found,
	const struct server_place *place, char *path, size_t size);
/* -EOPNOTSUPP: systemd does not run here. */
int systemd_check(struct command *command);
/* Writes, enables and starts a systemd unit, which waits for these devices at boot. */
int systemd_enable(struct command *command, const char *pool, const struct device_set *devices);
/* Stops it and takes it away. -ENOENT: there is none. */
int systemd_disable(struct command *command, const char *pool);
bool systemd_has_unit(const struct command *command, const char *pool);

#endif
