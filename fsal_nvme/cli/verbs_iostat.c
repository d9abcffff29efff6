/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * `pool iostat`, the end that counts: totals since the pool and its volumes were opened. Rates are
 * made of two of them, by the command.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/verb.h"

static const char *const states[] = {
	[DEVICE_ACTIVE] = "active", [DEVICE_MISSING] = "missing", [DEVICE_DROPPED] = "dropped"};

static void put_device(json_t *row, const struct device_counters *c)
{
	put_integer(row, "elapsed", c->elapsed);
	put_integer(row, "reads", c->of[IO_READ].done);
	put_integer(row, "read_bytes", c->of[IO_READ].bytes);
	put_integer(row, "read_time", c->of[IO_READ].ns);
	put_integer(row, "writes", c->of[IO_WRITE].done);
	put_integer(row, "write_bytes", c->of[IO_WRITE].bytes);
	put_integer(row, "write_time", c->of[IO_WRITE].ns);
	put_integer(row, "flushes", c->of[IO_FLUSH].done);
	put_integer(row, "flush_time", c->of[IO_FLUSH].ns);
	put_integer(row, "errors", c->errors);
	put_integer(row, "queue", c->under_way);
}

/* `elapsed` is that of the device that was opened first. */
static void add(struct device_counters *sum, const struct device_counters *c)
{
	sum->elapsed = c->elapsed > sum->elapsed ? c->elapsed : sum->elapsed;
	sum->errors += c->errors;
	sum->under_way += c->under_way;
	for (unsigned op = 0; op < IO_OPS; op++) {
		sum->of[op].done += c->of[op].done;
		sum->of[op].bytes += c->of[op].bytes;
		sum->of[op].ns += c->of[op].ns;
	}
}

/* Bytes of data, between devices and network. */
static uint64_t copied(const struct verb_call *call)
{
	const struct control_host *host = call->host;

	return pool_copied(call->pool) + (host && host->copied ? host->copied(host->data) : 0);
}

static void put_devices(struct verb_call *call, const struct pool_device_io *list, unsigned count)
{
	json_t *devices = json_array(), *pools = json_array(), *pool = json_object();
	struct device_counters sum = {0};

	for (unsigned i = 0; i < count; i++) {
		json_t *row = json_object();

		put_text(row, "pool", pool_name(call->pool));
		put_integer(row, "id", list[i].id);
		put_text(row, "path", list[i].path);
		put_text(row, "state", states[list[i].state]);
		put_device(row, &list[i].counters);
		add(&sum, &list[i].counters);
		json_array_append_new(devices, row);
	}
	put_text(pool, "name", pool_name(call->pool));
	put_device(pool, &sum);
	put_integer(pool, "copied_bytes", copied(call));
	json_array_append_new(pools, pool);
	json_object_set_new(call->result, "pools", pools);
	json_object_set_new(call->result, "devices", devices);
}

static void put_volume(void *data, const struct volume_row *volume, const struct volume_counters *c)
{
	struct verb_call *call = data;
	char name[POOL_NAME_MAX + POOL_VOLUME_NAME_MAX + 2];
	json_t *row = json_object();

	snprintf(name, sizeof(name), "%s/%s", pool_name(call->pool), volume->name);
	put_text(row, "name", name);
	put_integer(row, "elapsed", c->elapsed);
	put_integer(row, "reads", c->reads);
	put_integer(row, "read_bytes", c->read_bytes);
	put_integer(row, "writes", c->writes);
	put_integer(row, "write_bytes", c->write_bytes);
	put_integer(row, "commits", c->commits);
	put_integer(row, "transactions", c->transactions);
	json_array_append_new(json_object_get(call->result, "volumes"), row);
}

int verb_pool_iostat(struct verb_call *call)
{
	struct pool_device_io *list = calloc(POOL_DEVICES_MAX, sizeof(*list));

	if (!list)
		return -ENOMEM;
	put_devices(call, list, pool_device_io(call->pool, list));
	free(list);
	json_object_set_new(call->result, "volumes", json_array());
	volumes_count(call->volumes, put_volume, call);
	return 0;
}
