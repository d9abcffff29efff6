/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The corpus of what comes from outside: handles, requests, properties, headers of RDMA. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb.h"
#include "seeds.h"

/* --- handles ---------------------------------------------------------------------------------- */

static void seed_handle(void)
{
	save("handle", "good", "\1abc\3\0\0\0\11\0\0\0\0\0\0\0", 16);
	save("handle", "refused", "\2abc\3\0\0\0\11\0\0\0\0\0\0\0", 16);
}

/* --- requests --------------------------------------------------------------------------------- */

static json_t *value_of(const struct parameter *p)
{
	json_t *one, *many;

	if (p->kind == VALUE_FLAG)
		return json_true();
	if (p->kind != VALUE_TEXT && p->kind != VALUE_PATH)
		return json_integer((json_int_t)p->least);
	one = json_string(!strcmp(p->name, "volume") ? "tank/models"
			  : p->kind == VALUE_PATH    ? "/data/set"
						     : "tank");
	if (!(p->flags & PARAMETER_MANY))
		return one;
	many = json_array();
	json_array_append_new(many, one);
	return many;
}

static void seed_verb(const struct verb *verb)
{
	json_t *args = json_object(), *words = json_array(), *root = json_object();
	char name[80], *line;

	json_array_append_new(words, json_string(verb->noun));
	if (verb->name)
		json_array_append_new(words, json_string(verb->name));
	for (const struct parameter *p = verb->parameters; p && p->name; p++)
		json_object_set_new(args, p->name, value_of(p));
	json_object_set_new(root, "schema", json_integer(1));
	json_object_set_new(root, "verb", words);
	json_object_set_new(root, "args", args);
	line = json_dumps(root, JSON_COMPACT);
	snprintf(name, sizeof(name), "%s-%s", verb->noun, verb->name ? verb->name : "alone");
	save("request", name, line, strlen(line));
	free(line);
	json_decref(root);
}

static void seed_request(void)
{
	for (const struct verb *verb = verb_table; verb->noun; verb++)
		seed_verb(verb);
	save("request", "refused", "{\"schema\":2}", 12);
}

static void seed_property(void)
{
	static const char clients[] =
		"\1nfs.clients=*:ro,10.1.2.3/8:rw,fe80::1:ro,fd00::/64:rw,192.168.0.7:ro";

	save("property", "comment", "\0comment=some text", 18);
	save("property", "clients", clients, sizeof(clients) - 1);
	save("property", "rate", "\0compact.rate=65536k", 20);
	save("property", "squash", "\2nfs.squash=all", 15);
	save("property", "sec", "\2nfs.sec=sys", 12);
	save("property", "cache", "\0cache.size=512MiB", 18);
	save("property", "hedge", "\0read.hedge=250ms", 17);
	save("property", "quota", "\1quota=10240M", 14);
	save("property", "own", "\0team:owner=ml", 14);
	save("property", "refused", "\0nfs.squash=all", 15);
}

/* --- headers of RPC over RDMA ----------------------------------------------------------------- */

/* Words of an RPC-over-RDMA header, `count` of them, with `inline_length` bytes behind it. */
static void save_header(
	const char *name, unsigned inline_length, const uint32_t *words, unsigned count)
{
	uint8_t bytes[2 + 64 * sizeof(*words)] = {inline_length & 255, inline_length >> 8};

	for (unsigned i = 0; i < count; i++)
		for (unsigned j = 0; j < 4; j++)
			bytes[2 + 4 * i + j] = words[i] >> (24 - 8 * j);
	save("rdma_header", name, bytes, 2 + 4 * count);
}

#define HEADER(name, inline_length, ...)                                  \
	save_header(name, inline_length, (const uint32_t[]){__VA_ARGS__}, \
		sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define SEGMENT(length) 7, length, 1, 0x1000

static void seed_rdma_header(void)
{
	HEADER("message", 40, 9, 1, 32, 0, 0, 0, 0);
	HEADER("read", 200, 9, 1, 32, 0, 1, 100, SEGMENT(131072), 1, 100, SEGMENT(8677), 1, 140,
		SEGMENT(30), 0, 0, 0);
	HEADER("nomsg", 0, 9, 1, 32, 1, 1, 0, SEGMENT(6000), 1, 400, SEGMENT(5), 0, 0, 0);
	HEADER("write", 80, 9, 1, 32, 0, 0, 1, 2, SEGMENT(65536), SEGMENT(65536), 1, 1, SEGMENT(9),
		0, 0);
	HEADER("reply", 80, 9, 1, 32, 0, 0, 0, 1, 2, SEGMENT(65536), SEGMENT(1000));
	HEADER("version", 80, 9, 2, 32, 0, 0, 0, 0);
	HEADER("many", 80, 9, 1, 32, 0, 0, 1, 0xffffffff, SEGMENT(1), 0, 0);
	HEADER("bool", 80, 9, 1, 32, 0, 2, 0, 0);
	HEADER("unaligned", 80, 9, 1, 32, 0, 1, 3, SEGMENT(9), 0, 0, 0);
	HEADER("backwards", 80, 9, 1, 32, 0, 1, 40, SEGMENT(9), 1, 36, SEGMENT(9), 0, 0, 0);
	HEADER("within", 80, 9, 1, 32, 0, 1, 40, SEGMENT(9), 1, 44, SEGMENT(9), 0, 0, 0);
	HEADER("behind", 80, 9, 1, 32, 0, 1, 84, SEGMENT(9), 0, 0, 0);
	HEADER("error", 0, 9, 1, 32, 4, 2);
	HEADER("short", 0, 9, 1, 32, 0, 0);
}

void seed_outside(void)
{
	seed_handle();
	seed_request();
	seed_property();
	seed_rdma_header();
}
