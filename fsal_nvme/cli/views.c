/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Which fields of a result are shown as text, and how. JSON has all of them. */
#include "cli/command.h"

/* clang-format off */
#define END {NULL, NULL, FIELD_TEXT}
/* Of pools and of devices. */
#define IO_RATES \
	{"read_rate", "READ/s", FIELD_NUMBER}, \
	{"write_rate", "WRITE/s", FIELD_NUMBER}, \
	{"flush_rate", "FLUSH/s", FIELD_NUMBER}, \
	{"read_byte_rate", "READ B/s", FIELD_BYTES}, \
	{"write_byte_rate", "WRITE B/s", FIELD_BYTES}, \
	{"read_wait", "READ", FIELD_SPAN}, \
	{"write_wait", "WRITE", FIELD_SPAN}, \
	{"flush_wait", "FLUSH", FIELD_SPAN}, \
	{"queue", "QUEUE", FIELD_NUMBER}
/* clang-format on */

static const struct field pools[] = {
	{"name", "POOL", FIELD_TEXT},
	{"state", "STATE", FIELD_TEXT},
	{"health", "HEALTH", FIELD_TEXT},
	{"code", "CODE", FIELD_TEXT},
	{"devices", "DEVICES", FIELD_TEXT},
	{"size", "SIZE", FIELD_BYTES},
	{"used", "USED", FIELD_BYTES},
	{"free", "FREE", FIELD_BYTES},
	{"owner", "OWNER", FIELD_TEXT},
	END,
};
static const struct field importable[] = {
	{"name", "POOL", FIELD_TEXT},
	{"uuid", "UUID", FIELD_TEXT},
	{"code", "CODE", FIELD_TEXT},
	{"devices", "DEVICES", FIELD_TEXT},
	{"state", "STATE", FIELD_TEXT},
	{"owner", "OWNER", FIELD_TEXT},
	END,
};
static const struct field pool[] = {
	{"name", "pool", FIELD_TEXT},
	{"uuid", "uuid", FIELD_TEXT},
	{"state", "state", FIELD_TEXT},
	{"health", "health", FIELD_TEXT},
	{"owner", "owner", FIELD_TEXT},
	{"code", "code", FIELD_TEXT},
	{"domain_may_die", "a domain may die", FIELD_BOOL},
	{"read_only", "read-only", FIELD_BOOL},
	{"size", "size", FIELD_BYTES},
	{"used", "used", FIELD_BYTES},
	{"live", "live", FIELD_BYTES},
	{"kept", "kept for files", FIELD_BYTES},
	{"free", "free", FIELD_BYTES},
	{"segments", "segments", FIELD_NUMBER},
	{"segments_degraded", "degraded segments", FIELD_NUMBER},
	{"journal_size", "journal", FIELD_BYTES},
	{"journal_used", "journal in use", FIELD_BYTES},
	{"cache_size", "cache", FIELD_BYTES},
	{"cache_used", "cache in use", FIELD_BYTES},
	{"cache_hits", "read from cache", FIELD_BYTES},
	{"cache_misses", "read from devices", FIELD_BYTES},
	{"epoch", "epoch", FIELD_NUMBER},
	END,
};
static const struct field space[] = {
	{"data", "data of files", FIELD_BYTES},
	{"waiting", "to be compacted", FIELD_BYTES},
	{"parity", "parity", FIELD_BYTES},
	{"metadata", "metadata", FIELD_BYTES},
	{"reserved", "reserved", FIELD_BYTES},
	{"free", "free, with parity", FIELD_BYTES},
	{"unusable", "unusable", FIELD_BYTES},
	{"raw", "of all devices", FIELD_BYTES},
	END,
};
static const struct field devices[] = {
	{"id", "ID", FIELD_NUMBER},
	{"state", "STATE", FIELD_TEXT},
	{"whole", "WHOLE", FIELD_BOOL},
	{"size", "SIZE", FIELD_BYTES},
	{"slots_used", "USED", FIELD_NUMBER},
	{"slots", "SLOTS", FIELD_NUMBER},
	{"read_errors", "READ", FIELD_NUMBER},
	{"write_errors", "WRITE", FIELD_NUMBER},
	{"checksum_errors", "CKSUM", FIELD_NUMBER},
	{"repaired", "REPAIRED", FIELD_NUMBER},
	{"late_reads", "LATE", FIELD_NUMBER},
	{"domain", "DOMAIN", FIELD_TEXT},
	{"path", "PATH", FIELD_TEXT},
	END,
};
static const struct field pool_io[] = {
	{"name", "POOL", FIELD_TEXT},
	IO_RATES,
	END,
};
static const struct field device_io[] = {
	{"id", "ID", FIELD_NUMBER},
	IO_RATES,
	{"state", "STATE", FIELD_TEXT},
	{"path", "PATH", FIELD_TEXT},
	END,
};
static const struct field volume_io[] = {
	{"name", "VOLUME", FIELD_TEXT},
	{"read_rate", "READ/s", FIELD_NUMBER},
	{"write_rate", "WRITE/s", FIELD_NUMBER},
	{"commit_rate", "COMMIT/s", FIELD_NUMBER},
	{"transaction_rate", "CHANGE/s", FIELD_NUMBER},
	{"read_byte_rate", "READ B/s", FIELD_BYTES},
	{"write_byte_rate", "WRITE B/s", FIELD_BYTES},
	END,
};
static const struct field advice[] = {
	{"what", "what", FIELD_TEXT},
	{"next", "to do", FIELD_TEXT},
	END,
};
static const struct field all_advice[] = {
	{"pool", "pool", FIELD_TEXT},
	{"what", "what", FIELD_TEXT},
	{"next", "to do", FIELD_TEXT},
	END,
};
static const struct field check[] = {
	{"segments", "segments", FIELD_NUMBER},
	{"blocks", "blocks", FIELD_NUMBER},
	{"bad_blocks", "bad blocks", FIELD_NUMBER},
	{"repaired_blocks", "repaired blocks", FIELD_NUMBER},
	{"lost_blocks", "lost blocks", FIELD_NUMBER},
	{"missing_chunks", "missing chunks", FIELD_NUMBER},
	{"missing_blocks", "missing blocks", FIELD_NUMBER},
	{"wrong_live", "wrong counters", FIELD_NUMBER},
	{"files", "files", FIELD_NUMBER},
	{"bytes", "bytes of files", FIELD_BYTES},
	{"bad_files", "bad files", FIELD_NUMBER},
	{"bad_metadata", "bad metadata", FIELD_NUMBER},
	END,
};
static const struct field resilver[] = {
	{"devices", "devices", FIELD_NUMBER},
	{"segments", "segments", FIELD_NUMBER},
	{"blocks", "blocks", FIELD_NUMBER},
	{"written_blocks", "written blocks", FIELD_NUMBER},
	{"lost_blocks", "lost blocks", FIELD_NUMBER},
	{"waiting_segments", "waiting segments", FIELD_NUMBER},
	{"whole", "whole", FIELD_BOOL},
	END,
};
static const struct field proof[] = {
	{"not_whole", "not whole", FIELD_NUMBER},
	{"may_write", "may still write", FIELD_NUMBER},
	{"boot", "host and boot", FIELD_TEXT},
	END,
};
static const struct field properties[] = {
	{"property", "PROPERTY", FIELD_TEXT},
	{"value", "VALUE", FIELD_TEXT},
	{"source", "SOURCE", FIELD_TEXT},
	END,
};
static const struct field ingest[] = {
	{"name", "dataset", FIELD_TEXT},
	{"files", "files", FIELD_NUMBER},
	{"directories", "directories", FIELD_NUMBER},
	{"links", "hard links", FIELD_NUMBER},
	{"others", "others", FIELD_NUMBER},
	{"bytes", "bytes", FIELD_BYTES},
	{"present", "there already", FIELD_NUMBER},
	{"skipped", "skipped", FIELD_NUMBER},
	{"left", "gone there", FIELD_NUMBER},
	{"sealed", "sealed", FIELD_BOOL},
	END,
};
static const struct field datasets[] = {
	{"name", "DATASET", FIELD_TEXT},
	{"used", "USED", FIELD_BYTES},
	{"sealed", "SEALED", FIELD_BOOL},
	{"created", "CREATED", FIELD_TIME},
	{"clients", "CLIENTS", FIELD_TEXT},
	END,
};
static const struct field shares[] = {
	{"name", "SHARE", FIELD_TEXT},
	{"used", "USED", FIELD_BYTES},
	{"quota", "QUOTA", FIELD_BYTES},
	{"created", "CREATED", FIELD_TIME},
	{"clients", "CLIENTS", FIELD_TEXT},
	END,
};
static const struct field verify[] = {
	{"name", "dataset", FIELD_TEXT},
	{"files", "files", FIELD_NUMBER},
	{"directories", "directories", FIELD_NUMBER},
	{"others", "others", FIELD_NUMBER},
	{"bytes", "bytes", FIELD_BYTES},
	{"bad_files", "bad files", FIELD_NUMBER},
	{"bad_metadata", "bad metadata", FIELD_NUMBER},
	END,
};

static const struct field node[] = {
	{"version", "version", FIELD_TEXT},
	{"slot", "slot", FIELD_TEXT},
	{"update_version", "last update", FIELD_TEXT},
	{"update_state", "is", FIELD_TEXT},
	{"update_reason", "since", FIELD_TEXT},
	END,
};

static const struct field cluster[] = {
	{"name", "cluster", FIELD_TEXT},
	{"quorum", "quorum", FIELD_BOOL},
	{"fencing", "fencing", FIELD_BOOL},
	{"fencing_lost", "drives for it that are lost", FIELD_NUMBER},
	{"maintenance", "maintenance", FIELD_BOOL},
	{"qnetd", "quorum device", FIELD_TEXT},
	{"qnetd_connected", "is connected", FIELD_BOOL},
	END,
};
static const struct field nodes[] = {
	{"name", "NODE", FIELD_TEXT},
	{"state", "STATE", FIELD_TEXT},
	{"failed", "FAILED", FIELD_TEXT},
	END,
};
static const struct field cluster_services[] = {
	{"name", "SERVICE", FIELD_TEXT},
	{"node", "NODE", FIELD_TEXT},
	{"not_whole", "NOT WHOLE", FIELD_NUMBER},
	END,
};
static const struct field cluster_drives[] = {
	{"device", "DRIVE", FIELD_TEXT},
	{"node", "OF", FIELD_TEXT},
	{"paths", "PATHS", FIELD_NUMBER},
	END,
};
static const struct field services[] = {
	{"name", "SERVICE", FIELD_TEXT},
	{"pool", "POOL", FIELD_TEXT},
	{"address", "ADDRESS", FIELD_TEXT},
	{"node", "NODE", FIELD_TEXT},
	END,
};

#define NO_POOLS "No pools are known here: `millrace pool import` looks for some."

const struct view view_table[] = {
	{"pool", "list", "pools", NULL, NO_POOLS, pools, false},
	{"pool", "import", "pools", NULL, "No device holds a pool.", importable, false},
	{"pool", "status", "pool", NULL, NULL, pool, false},
	{"pool", "status", "pool.space", "", NULL, space, false},
	{"pool", "status", "pool.devices", "", NULL, devices, false},
	{"pool", "status", "pool.advice", "", "\nNothing is to be done.", advice, true},
	{"pool", "iostat", "pools", NULL, "No pool is being served here.", pool_io, false},
	{"pool", "iostat", "devices", "", NULL, device_io, false},
	{"pool", "iostat", "volumes", "", NULL, volume_io, false},
	{"pool", "get", "properties", NULL, "No properties.", properties, false},
	{"pool", "check", "check", NULL, NULL, check, false},
	{"pool", "attach", "resilver", NULL, NULL, resilver, false},
	{"pool", "replace", "resilver", NULL, NULL, resilver, false},
	{"dataset", "ingest", "ingest", NULL, NULL, ingest, false},
	{"dataset", "list", "datasets", NULL, "No datasets.", datasets, false},
	{"dataset", "get", "properties", NULL, "No properties.", properties, false},
	{"dataset", "verify", "verify", NULL, NULL, verify, false},
	{"share", "list", "shares", NULL, "No shares.", shares, false},
	{"share", "get", "properties", NULL, "No properties.", properties, false},
	{"serve", NULL, "probe", NULL, NULL, proof, false},
	{"status", NULL, "pools", NULL, NO_POOLS, pools, false},
	{"status", NULL, "advice", "", NULL, all_advice, true},
	{"node", "status", "node", NULL, NULL, node, false},
	{"cluster", "status", "cluster", NULL, NULL, cluster, false},
	{"cluster", "status", "nodes", "", NULL, nodes, false},
	{"cluster", "status", "services", "", NULL, cluster_services, false},
	{"cluster", "status", "drives", "", NULL, cluster_drives, false},
	{"cluster", "status", "advice", "", "\nNothing is to be done.", advice, true},
	{"service", "list", "services", NULL, "The cluster has no services.", services, false},
	{NULL, NULL, NULL, NULL, NULL, NULL, false},
};
