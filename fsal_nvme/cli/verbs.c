/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The verbs and their parameters, and checking arguments against them. */
#include "cli/verb.h"

#include <errno.h>
#include <string.h>

#define NEEDED_PLACE (PARAMETER_PLACE | PARAMETER_NEEDED)
#define MANY_PLACE (PARAMETER_PLACE | PARAMETER_MANY)

/* Rows that several verbs have. */
/* clang-format off */
#define POOL {"pool", VALUE_TEXT, NEEDED_PLACE, 0, 0, "POOL", "name of the pool"}
#define POOL_OR_ALL {"pool", VALUE_TEXT, PARAMETER_PLACE, 0, 0, "POOL", "only this pool"}
#define VOLUME(what) {"volume", VALUE_TEXT, NEEDED_PLACE, 0, 0, "POOL/NAME", "name of the " what}
#define ASSIGNMENTS                                                                     \
	{"property", VALUE_TEXT, MANY_PLACE | PARAMETER_NEEDED, 0, 0, "PROPERTY=VALUE", \
		"an empty VALUE is the default again"}
#define PROPERTIES {"property", VALUE_TEXT, MANY_PLACE, 0, 0, "PROPERTY", "only these; all without"}
#define YES {"yes", VALUE_FLAG, 0, 0, 0, NULL, "do not ask"}
#define FORCE(text) {"force", VALUE_FLAG, 0, 0, 0, NULL, text}
#define END {NULL, VALUE_TEXT, 0, 0, 0, NULL, NULL}
/* clang-format on */

#define OWN_ADDRESSES                                                                      \
	{                                                                                  \
		"address", VALUE_TEXT, PARAMETER_NEEDED | PARAMETER_MANY, 0, 0, "ADDRESS", \
			"where clients and other nodes reach this one; again for a second" \
			" network, between nodes"                                          \
	}
#define WATCHDOG                                                                                  \
	{                                                                                         \
		"watchdog", VALUE_PATH, 0, 0, 0, "DEVICE", "this node's watchdog (/dev/watchdog)" \
	}
#define REBOOTED                                                                         \
	{                                                                                \
		"rebooted", VALUE_TEXT, PARAMETER_MANY, 0, 0, "HOST:BOOT",               \
			"that host runs under this boot now, and writes no more what it" \
			" had under another"                                             \
	}
#define GONE                                                                  \
	{                                                                     \
		"gone", VALUE_TEXT, PARAMETER_MANY, 0, 0, "HOST",             \
			"that host is gone for good, and writes nothing more" \
	}
#define SERVICE                                                                          \
	{                                                                                \
		"name", VALUE_TEXT, NEEDED_PLACE, 0, 0, "SERVICE", "name of the service" \
	}

static const struct parameter pool_create_args[] = {
	{"pool", VALUE_TEXT, NEEDED_PLACE, 0, 0, "NAME", "name of the new pool"},
	{"device", VALUE_TEXT, MANY_PLACE | PARAMETER_NEEDED, 0, 0, "DEVICE[@DOMAIN]",
		"a block device or plain file, and what it fails together with (the host "
		"unless named)"},
	{"data", VALUE_NUMBER, PARAMETER_NEEDED, 1, POOL_WIDTH_MAX, "K",
		"data chunks of the erasure code"},
	{"parity", VALUE_NUMBER, PARAMETER_NEEDED, 1, POOL_WIDTH_MAX, "M",
		"parity chunks: so many devices may be lost at once"},
	{"cell", VALUE_SIZE, 0, 4096, 4u << 20, "SIZE", "unit of striping (128K)"},
	FORCE("take devices that hold a file system or another pool"), END};
static const struct parameter pool_import_args[] = {
	{"pool", VALUE_TEXT, PARAMETER_PLACE, 0, 0, "NAME",
		"the pool to take; without it, list what could be taken"},
	FORCE("take it from another host, which must be dead or fenced"),
	{"owner-dead", VALUE_FLAG, 0, 0, 0, NULL,
		"all hosts that had it are known to be dead or fenced: what they held is free"},
	END};
static const struct parameter one_pool[] = {POOL, END};
static const struct parameter pool_export_args[] = {
	POOL, FORCE("forget it on this host alone, whatever its devices are or hold"), END};
static const struct parameter some_pool[] = {POOL_OR_ALL, END};
static const struct parameter pool_iostat_args[] = {POOL_OR_ALL,
	{"interval", VALUE_NUMBER, PARAMETER_PLACE, 1, 86400, "INTERVAL",
		"seconds after which to tell again, of what went on meanwhile"},
	{"count", VALUE_NUMBER, PARAMETER_PLACE, 1, UINT32_MAX, "COUNT",
		"how often to tell (for ever)"},
	END};
static const struct parameter pool_get_args[] = {POOL, PROPERTIES, END};
static const struct parameter pool_set_args[] = {POOL, ASSIGNMENTS, END};
static const struct parameter pool_check_args[] = {
	POOL, {"repair", VALUE_FLAG, 0, 0, 0, NULL, "rewrite what is bad from the rest"}, END};
static const struct parameter pool_attach_args[] = {POOL,
	{"device", VALUE_PATH, MANY_PLACE, 0, 0, "DEVICE",
		"only these; all that are found, without"},
	{"returned", VALUE_FLAG, 0, 0, 0, NULL,
		"what is found, unless it comes and goes: for a cluster to say, again and again"},
	{"reader", VALUE_FLAG, 0, 0, 0, NULL,
		"with --returned: this host's reader reads again what is found"},
	REBOOTED, GONE, END};
static const struct parameter pool_replace_args[] = {POOL,
	{"device", VALUE_TEXT, NEEDED_PLACE, 0, 0, "DEVICE",
		"the one that is lost: its number, or the path that it had"},
	{"new", VALUE_PATH, NEEDED_PLACE, 0, 0, "NEW", "the one that takes its place"}, REBOOTED,
	GONE, FORCE("take a device that holds a file system or another pool"), END};
static const struct parameter pool_destroy_args[] = {POOL, YES, END};

static const struct parameter dataset_ingest_args[] = {VOLUME("dataset"),
	{"source", VALUE_PATH, NEEDED_PLACE, 0, 0, "DIR", "directory whose content it gets"},
	{"no-seal", VALUE_FLAG, 0, 0, 0, NULL, "leave it open for more; `dataset seal` ends it"},
	{"resume", VALUE_FLAG, 0, 0, 0, NULL, "go on with one that is not sealed yet"},
	{"threads", VALUE_NUMBER, 0, 1, VOLUME_INGEST_THREADS, "N",
		"readers (one per processor, at most 16)"},
	END};
static const struct parameter dataset[] = {VOLUME("dataset"), END};
static const struct parameter dataset_get_args[] = {VOLUME("dataset"), PROPERTIES, END};
static const struct parameter dataset_set_args[] = {VOLUME("dataset"), ASSIGNMENTS, END};
static const struct parameter dataset_destroy_args[] = {VOLUME("dataset"), YES, END};

static const struct parameter share_create_args[] = {VOLUME("new share"),
	{"owner", VALUE_USER, 0, 0, UINT32_MAX - 1, "USER", "owner of its root directory (0)"},
	{"group", VALUE_GROUP, 0, 0, UINT32_MAX - 1, "GROUP", "group of its root directory (0)"},
	{"mode", VALUE_MODE, 0, 0, 07777, "MODE", "mode of its root directory, octal (0755)"},
	{"quota", VALUE_SIZE, 0, 1, INT64_MAX, "SIZE", "bytes that its files may take (any)"}, END};
static const struct parameter share_get_args[] = {VOLUME("share"), PROPERTIES, END};
static const struct parameter share_set_args[] = {VOLUME("share"), ASSIGNMENTS, END};
static const struct parameter share_destroy_args[] = {VOLUME("share"), YES, END};

static const struct parameter serve[] = {POOL,
	{"uuid", VALUE_TEXT, 0, 0, 0, "UUID", "of pools of that name it is this one"},
	{"foreground", VALUE_FLAG, 0, 0, 0, NULL, "become the server, which logs to stderr"},
	{"listen", VALUE_TEXT, 0, 0, 0, "ADDR", "address to serve on (all)"},
	{"listen-wait", VALUE_NUMBER, 0, 0, 3600, "SECONDS",
		"how long that address may take to come when the pool is open (0)"},
	{"port", VALUE_NUMBER, 0, 1, 65535, "N", "TCP port (2049)"},
	{"lease", VALUE_NUMBER, 0, 5, 180, "SECONDS",
		"lease of NFS clients (60); grace is one and a half of it"},
	{"rdma-connections", VALUE_NUMBER, 0, 1, 1024, "N",
		"connections over RDMA that it takes (256)"},
	{"rdma-memory", VALUE_SIZE, 0, 9 << 20, INT64_C(1) << 40, "SIZE",
		"memory that each RDMA device has for large data (256M)"},
	{"fenced", VALUE_FLAG, 0, 0, 0, NULL,
		"the host that had the pool last is fenced: take it from there"},
	{"reader", VALUE_FLAG, 0, 0, 0, NULL, "serve its datasets, whoever has the pool"},
	{"enable", VALUE_FLAG, 0, 0, 0, NULL, "let systemd serve it, now and after each boot"},
	{"disable", VALUE_FLAG, 0, 0, 0, NULL, "stop it, and let systemd serve it no more"},
	{"stop", VALUE_FLAG, 0, 0, 0, NULL, "stop the server of this pool"},
	FORCE("kill it when it has not stopped in time"),
	{"probe", VALUE_FLAG, 0, 0, 0, NULL, "whether the server of this pool answers"},
	{"end-grace", VALUE_FLAG, 0, 0, 0, NULL,
		"wait no more for clients that may reclaim what they had: they lose it"},
	{"wait", VALUE_NUMBER, 0, 1, 86400, "SECONDS",
		"how long starting (600), stopping (120) or an answer (30) may take"},
	{"idle", VALUE_NUMBER, 0, 1, 86400, "SECONDS",
		"wait no longer for a start that has hardly worked for so long"},
	END};
static const struct parameter nothing[] = {END};
static const struct parameter node_update_args[] = {
	{"file", VALUE_PATH, NEEDED_PLACE, 0, 0, "FILE", "the update"},
	FORCE("also the version that runs, or an older one, or while other nodes cannot take over"),
	{"later", VALUE_FLAG, 0, 0, 0, NULL, "do not boot now: the next boot tries it"}, END};
static const struct parameter one_node[] = {
	{"node", VALUE_TEXT, PARAMETER_PLACE, 0, 0, "NODE", "the node (this one)"}, END};

#define OWN_DRIVES                                                       \
	{                                                                \
		"drive", VALUE_PATH, PARAMETER_MANY, 0, 0, "DRIVE",      \
			"of this node's own, which all nodes are to see" \
	}
static const struct parameter cluster_create_args[] = {OWN_ADDRESSES, WATCHDOG, OWN_DRIVES,
	{"transport", VALUE_TEXT, 0, 0, 0, "TRANSPORT",
		"by which nodes see each other's drives: tcp or rdma (tcp)"},
	{"name", VALUE_TEXT, 0, 0, 0, "NAME", "name of the cluster (millrace)"},
	{"pool", VALUE_TEXT, 0, 0, 0, "POOL",
		"fence by what this pool's drives keep for it; all nodes see them"},
	{"fencing", VALUE_PATH, PARAMETER_MANY, 0, 0, "DEVICE",
		"fence by this block device, for that alone, which all nodes see; or by three"},
	{"watchdog-timeout", VALUE_NUMBER, 0, 5, 120, "SECONDS",
		"after which a node that cannot go on is reset (5); fencing takes twice that"},
	FORCE("also by drives that another cluster fenced by, or that hold something"), END};
static const struct parameter cluster_join_args[] = {
	{"leader", VALUE_TEXT, NEEDED_PLACE, 0, 0, "ADDRESS", "of the node that gave the token"},
	OWN_ADDRESSES, WATCHDOG, OWN_DRIVES,
	{"token", VALUE_TEXT, PARAMETER_NEEDED, 0, 0, "TOKEN",
		"as `cluster create` and `cluster token` print it"},
	END};
static const struct parameter cluster_export_args[] = {
	{"drive", VALUE_PATH, NEEDED_PLACE | PARAMETER_MANY, 0, 0, "DRIVE",
		"of this node's own, which all nodes are to see"},
	END};
static const struct parameter cluster_leave_args[] = {
	{"yes", VALUE_FLAG, 0, 0, 0, NULL,
		"also as the last node, which ends the cluster, with drives of its own, or without "
		"a quorum"},
	END};
static const struct parameter cluster_remove_args[] = {
	{"node", VALUE_TEXT, NEEDED_PLACE | PARAMETER_MANY, 0, 0, "NODE", "that is gone for good"},
	{"yes", VALUE_FLAG, 0, 0, 0, NULL, "it can come back by `cluster join` alone"}, END};
static const struct parameter cluster_qnetd_args[] = {
	{"host", VALUE_TEXT, NEEDED_PLACE, 0, 0, "HOST",
		"the machine that runs corosync-qnetd; none: ask nobody any more"},
	{"ca", VALUE_PATH, 0, 0, 0, "FILE",
		"its certificate (qnetd-cacert.crt): make a key, and what it is to sign"},
	{"certificate", VALUE_PATH, 0, 0, 0, "FILE", "what it has signed (cluster-NAME.crt)"}, END};
static const struct parameter cluster_fencing_args[] = {
	{"device", VALUE_PATH, PARAMETER_PLACE | PARAMETER_MANY, 0, 0, "DEVICE",
		"block devices for that alone, which all nodes see (others of the pool)"},
	END};
static const struct parameter confirm_dead_args[] = {
	{"node", VALUE_TEXT, NEEDED_PLACE, 0, 0, "NODE", "the node that does not run"},
	{"yes", VALUE_FLAG, 0, 0, 0, NULL, "somebody has seen that it is off"}, END};

static const struct parameter service_create_args[] = {SERVICE,
	{"pool", VALUE_TEXT, PARAMETER_NEEDED, 0, 0, "POOL", "the pool that it serves"},
	{"address", VALUE_TEXT, PARAMETER_NEEDED, 0, 0, "ADDRESS/BITS",
		"where clients find it, on whichever node"},
	{"port", VALUE_NUMBER, 0, 1, 65535, "N", "TCP port (2049)"},
	{"lease", VALUE_NUMBER, 0, 10, 180, "SECONDS", "lease of NFS clients (20)"}, END};
static const struct parameter service_move_args[] = {
	SERVICE, {"node", VALUE_TEXT, PARAMETER_PLACE, 0, 0, "NODE", "where to (any other)"}, END};
static const struct parameter one_service[] = {SERVICE, END};
static const struct parameter service_remove_args[] = {
	SERVICE, {"yes", VALUE_FLAG, 0, 0, 0, NULL, "clients may lose it"}, END};

static const struct parameter mount_command_args[] = {VOLUME("share or dataset"),
	{"rank", VALUE_NUMBER, 0, 0, UINT32_MAX, "N",
		"number of the client, which spreads clients over nodes (any)"},
	{"proto", VALUE_TEXT, 0, 0, 0, "PROTO", "tcp or rdma (rdma where this node has it)"}, END};

const struct verb verb_table[] = {
	{"pool", "create", "make a pool of devices", 0, pool_create_args, NULL},
	{"pool", "import", "take a pool that devices hold, or list them", 0, pool_import_args,
		NULL},
	{"pool", "export", "give a pool up, for another host to import", 0, pool_export_args, NULL},
	{"pool", "list", "pools that are known here", 0, nothing, NULL},
	{"pool", "status", "devices, space, health, and what to do next", VERB_LOOKS, one_pool,
		verb_pool_status},
	{"pool", "iostat", "what goes on: operations and bytes a second", VERB_LOOKS,
		pool_iostat_args, verb_pool_iostat},
	{"pool", "get", "properties of a pool", VERB_LOOKS, pool_get_args, verb_pool_get},
	{"pool", "set", "change properties of a pool", VERB_CHANGES, pool_set_args, verb_pool_set},
	{"pool", "check", "read and check everything", VERB_LOOKS, pool_check_args,
		verb_pool_check},
	{"pool", "attach", "take devices back that were dropped, and make them whole", 0,
		pool_attach_args, verb_pool_attach},
	{"pool", "replace", "put another device in the place of one that is lost", 0,
		pool_replace_args, verb_pool_replace},
	{"pool", "destroy", "destroy a pool and all it holds", VERB_DESTROYS, pool_destroy_args,
		NULL},
	{"dataset", "ingest", "copy a directory into a new dataset and seal it", 0,
		dataset_ingest_args, verb_dataset_ingest},
	{"dataset", "seal", "make a dataset immutable", 0, dataset, verb_dataset_seal},
	{"dataset", "list", "datasets", VERB_LOOKS, some_pool, verb_volume_list},
	{"dataset", "get", "properties of a dataset", VERB_LOOKS, dataset_get_args,
		verb_volume_get},
	{"dataset", "set", "change properties of a dataset", VERB_CHANGES, dataset_set_args,
		verb_volume_set},
	{"dataset", "verify", "read and check every byte of a dataset", VERB_LOOKS, dataset,
		verb_dataset_verify},
	{"dataset", "destroy", "destroy a dataset", VERB_CHANGES | VERB_DESTROYS,
		dataset_destroy_args, verb_volume_destroy},
	{"share", "create", "make a writable share", VERB_CHANGES, share_create_args,
		verb_share_create},
	{"share", "list", "shares", VERB_LOOKS, some_pool, verb_volume_list},
	{"share", "get", "properties of a share", VERB_LOOKS, share_get_args, verb_volume_get},
	{"share", "set", "change properties of a share", VERB_CHANGES, share_set_args,
		verb_volume_set},
	{"share", "destroy", "destroy a share and all it holds", VERB_CHANGES | VERB_DESTROYS,
		share_destroy_args, verb_volume_destroy},
	{"serve", NULL, "serve a pool as NFSv4.1", 0, serve, verb_serve},
	{"status", NULL, "all pools: health, and what to do next", 0, nothing, NULL},
	{"node", "status", "which version the appliance runs, and how its update went", 0, nothing,
		NULL},
	{"node", "update", "write another version of the appliance, and try it", 0,
		node_update_args, NULL},
	{"node", "drain", "move services away from a node, and keep them away", 0, one_node, NULL},
	{"node", "resume", "let a drained node serve again", 0, one_node, NULL},
	{"cluster", "create", "make a cluster of this node, for others to join", 0,
		cluster_create_args, NULL},
	{"cluster", "token", "let one more node join", 0, nothing, NULL},
	{"cluster", "join", "put this node into a cluster", 0, cluster_join_args, NULL},
	{"cluster", "export", "let all nodes see more of this node's own drives", 0,
		cluster_export_args, NULL},
	{"cluster", "status", "nodes, services, quorum, fencing", 0, nothing, NULL},
	{"cluster", "leave", "take this node out of its cluster", 0, cluster_leave_args, NULL},
	{"cluster", "remove", "take a node out that is gone for good", 0, cluster_remove_args,
		NULL},
	{"cluster", "confirm-dead", "say that a node does not run, where fencing cannot", 0,
		confirm_dead_args, NULL},
	{"cluster", "qnetd", "let a third machine decide between nodes that lose each other", 0,
		cluster_qnetd_args, NULL},
	{"cluster", "fencing", "have others take the place of drives for fencing that are lost", 0,
		cluster_fencing_args, NULL},
	{"service", "create", "serve a pool at an address, on whichever node is well", 0,
		service_create_args, NULL},
	{"service", "list", "services of the cluster", 0, nothing, NULL},
	{"service", "move", "let another node serve it", 0, service_move_args, NULL},
	{"service", "end-grace", "wait no more for clients that have not come back", 0, one_service,
		NULL},
	{"service", "remove", "serve it no more", 0, service_remove_args, NULL},
	{"client", "mount-command", "how a client of the cluster mounts a share or dataset", 0,
		mount_command_args, NULL},
	{NULL, NULL, NULL, 0, NULL, NULL},
};

const struct verb *verb_find(const char *noun, const char *name)
{
	for (const struct verb *v = verb_table; v->noun; v++)
		if (!strcmp(v->noun, noun) && (v->name ? name && !strcmp(v->name, name) : !name))
			return v;
	return NULL;
}

const struct parameter *parameter_find(const struct parameter *parameters, const char *name)
{
	for (const struct parameter *p = parameters; p->name; p++)
		if (!strcmp(p->name, name))
			return p;
	return NULL;
}

static int check_many(const struct parameter *p, const json_t *value, struct error *error)
{
	const json_t *element;
	size_t i;

	if (!json_is_array(value) || !json_array_size(value))
		return error_set(error, -EINVAL, p->name, "it must be a list of strings");
	json_array_foreach(value, i, element)
	{
		if (!json_is_string(element))
			return error_set(error, -EINVAL, p->name, "it must be a list of strings");
	}
	return 0;
}

static int check_number(const struct parameter *p, const json_t *value, struct error *error)
{
	json_int_t number = json_integer_value(value);

	if (!json_is_integer(value))
		return error_set(error, -EINVAL, p->name, "it must be a whole number");
	if (number >= 0 && (uint64_t)number >= p->least && (uint64_t)number <= p->most)
		return 0;
	if (p->kind == VALUE_MODE)
		return error_set(error, -EINVAL, p->name, "%llo (octal) is not from %llo to %llo",
			(unsigned long long)number, (unsigned long long)p->least,
			(unsigned long long)p->most);
	return error_set(error, -EINVAL, p->name, "%lld is not from %llu to %llu",
		(long long)number, (unsigned long long)p->least, (unsigned long long)p->most);
}

static int check_value(const struct parameter *p, const json_t *value, struct error *error)
{
	if (p->flags & PARAMETER_MANY)
		return check_many(p, value, error);
	switch (p->kind) {
	case VALUE_FLAG:
		return json_is_true(value) ? 0
					   : error_set(error, -EINVAL, p->name, "it must be true");
	case VALUE_TEXT:
		return json_is_string(value)
			       ? 0
			       : error_set(error, -EINVAL, p->name, "it must be a string");
	case VALUE_PATH:
		return json_is_string(value) && json_string_value(value)[0] == '/'
			       ? 0
			       : error_set(error, -EINVAL, p->name, "it must be an absolute path");
	default:
		return check_number(p, value, error);
	}
}

int arguments_check(const struct verb *verb, json_t *args, struct error *error)
{
	const char *key;
	json_t *value;

	json_object_foreach(args, key, value)
	{
		const struct parameter *p = parameter_find(verb->parameters, key);
		int rc;

		if (!p)
			return error_set(error, -EINVAL, key, "there is no such argument");
		rc = check_value(p, value, error);
		if (rc)
			return rc;
	}
	for (const struct parameter *p = verb->parameters; p->name; p++)
		if ((p->flags & PARAMETER_NEEDED) && !json_object_get(args, p->name))
			return error_set(error, -EINVAL,
				p->flags & PARAMETER_PLACE ? p->shown : p->name,
				"it is missing, and needed");
	return 0;
}
