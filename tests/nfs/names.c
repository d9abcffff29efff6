/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Very many names of a directory, by the lean client of tests/bench (wire.h): Python would be what
 * a test of a million waits for.
 *
 *   nfs_names ADDRESS PORT make DIR PREFIX COUNT      FIFOs PREFIX0, PREFIX1, ...
 *   nfs_names ADDRESS PORT remove DIR PREFIX COUNT    the same
 *   nfs_names ADDRESS PORT list DIR...                "COOKIE NAME" a line, as they come
 *
 * DIR is a path from the server's root. Whatever fails ends it with a message and exit status 1.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "wire.h"

#define SLOTS 32u
#define TOGETHER 7u /* names a compound: with SEQUENCE the 16 operations of the session */

static struct wire *wire;
static struct handle directory;

static struct {
	enum operation operation;
	const char *prefix;
	uint64_t begun, count;
} job;

/* --- making and removing ---------------------------------------------------------------------- */

static unsigned begin(struct slot *slot)
{
	unsigned names = 0;

	call_begin(slot);
	for (; names < TOGETHER && job.begun < job.count; names++) {
		char name[64];

		snprintf(name, sizeof(name), "%s%llu", job.prefix, (unsigned long long)job.begun++);
		call_putfh(slot, &directory);
		if (job.operation == OP_CREATE)
			call_create_fifo(slot, name);
		else
			call_remove(slot, name);
	}
	if (names)
		call_send(slot);
	return names;
}

/* The compounds' status says that all of their operations succeeded. */
static void run(enum operation operation, char **args)
{
	struct reply reply;
	unsigned busy = 0;

	job.operation = operation;
	job.prefix = args[0];
	job.count = strtoull(args[1], NULL, 10);
	for (uint32_t i = 0; i < SLOTS; i++)
		busy += begin(wire_slot(wire, i)) != 0;
	while (busy)
		busy -= !begin(wire_receive(wire, &reply));
}

static void make(char **args)
{
	run(OP_CREATE, args);
}

static void remove_(char **args)
{
	run(OP_REMOVE, args);
}

/* --- listing ---------------------------------------------------------------------------------- */

static void print(const struct entry *entry)
{
	printf("%llu %.*s\n", (unsigned long long)entry->cookie, (int)entry->length,
		(const char *)entry->name);
}

static void list_directory(void)
{
	struct slot *slot = wire_slot(wire, 0);
	uint8_t verifier[8] = {0};
	uint64_t cookie = 0;
	bool eof = false;

	while (!eof) {
		struct reply reply;

		call_begin(slot);
		call_putfh(slot, &directory);
		call_readdir(slot, cookie, verifier);
		wire_exchange(slot, &reply);
		reply_nothing(&reply, OP_PUTFH);
		if (!reply_readdir(&reply, &cookie, verifier, &eof, print) && !eof)
			bench_must(-EIO, "a page without names");
	}
}

static void list(char **args)
{
	list_directory();
	for (; *args; args++) {
		wire_find(wire, *args, &directory);
		list_directory();
	}
}

/* --- the command ------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	int arguments; /* after the directory; -1: any number */
	void (*run)(char **args);
} verbs[] = {{"make", 2, make}, {"remove", 2, remove_}, {"list", -1, list}};

static bool is_called(unsigned verb, int argc, char **argv)
{
	int arguments = verbs[verb].arguments;

	return !strcmp(argv[3], verbs[verb].name) && (arguments < 0 || argc == 5 + arguments);
}

int main(int argc, char **argv)
{
	for (unsigned i = 0; argc > 4 && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (!is_called(i, argc, argv))
			continue;
		wire = wire_connect(argv[1], (uint16_t)strtoul(argv[2], NULL, 10), SLOTS);
		wire_find(wire, argv[4], &directory);
		verbs[i].run(argv + 5);
		wire_close(wire);
		return fflush(stdout) ? 1 : 0;
	}
	fprintf(stderr, "usage: see the head of tests/nfs/names.c\n");
	return 2;
}
