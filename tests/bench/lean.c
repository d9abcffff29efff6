/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A lean NFSv4.1 client: one thread, one connection, nothing cached, many compounds on their way.
 * What it asks for is what a Linux client would ask for; it costs so little itself that the
 * server's limits show where the CPU of a real client would be the limit, and it asks for exactly
 * the same each time, so that the server's instructions can be counted.
 *
 *   bench_lean ADDRESS PORT DEPTH VERB /EXPORT/DIRECTORY...
 *
 *   write DIR NAME MIB            a new file, 1 MiB at a time, and a COMMIT
 *   read DIR NAME BYTES N MIB     N reads of BYTES, one behind the other, of a file of MIB; from
 * its start again at its end random DIR NAME BYTES N MIB   the same anywhere in the file files DIR
 * COUNT N             N of the files f000000 ... of COUNT, at random: open, read all, close create
 * DIR N, remove DIR N    files n000000 ...: open and close; remove list DIR N all names with their
 * attributes, N times
 *
 * DEPTH compounds are on their way at a time. Each run prints one line of JSON.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "wire.h"

#define MIB (1u << 20)

static struct wire *wire;
static uint32_t depth;
static struct handle directory;

/* What is to be done, and how far that is. */
static struct {
	const char *name;
	struct handle file;
	struct stateid stateid;
	uint64_t size; /* of the file */
	uint32_t length; /* of a read */
	uint64_t first; /* name */
	uint64_t count, begun;
	uint64_t names; /* how many files there are */
	uint64_t bytes, operations;
	uint64_t chance;
	uint8_t *source;
} job;

/* One slot's part in it. */
struct task {
	struct slot *slot;
	unsigned stage; /* of what takes more than one compound */
	struct handle file;
	struct stateid stateid;
	uint64_t at;
};

/* Takes the reply of the task's last compound, if there was one, and makes the next; false: there
 * is nothing more to do on this slot. */
typedef bool (*work)(struct task *task, struct reply *reply);

static uint64_t number(const char *text)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 10);

	if (!*text || *end || value > UINT32_MAX) {
		fprintf(stderr, "%s: not a number\n", text);
		exit(2);
	}
	return value;
}

static void run(work step)
{
	struct task tasks[WIRE_SLOTS_MAX] = {0};
	struct reply reply;
	unsigned busy = 0;

	for (uint32_t i = 0; i < depth; i++) {
		tasks[i].slot = wire_slot(wire, i);
		if (!step(&tasks[i], NULL))
			continue;
		call_send(tasks[i].slot);
		busy++;
	}
	while (busy) {
		struct task *task = &tasks[wire_receive(wire, &reply)->index];

		if (step(task, &reply))
			call_send(task->slot);
		else
			busy--;
	}
}

/* --- before and after ------------------------------------------------------------------------- */

static void open_file(bool create)
{
	struct slot *slot = wire_slot(wire, 0);
	struct reply reply;

	call_begin(slot);
	call_putfh(slot, &directory);
	if (create)
		call_open_create(slot, job.name, true);
	else
		call_open_read(slot, job.name);
	call_getfh(slot);
	wire_exchange(slot, &reply);
	reply_nothing(&reply, OP_PUTFH);
	reply_open(&reply, &job.stateid);
	reply_handle(&reply, &job.file);
}

static void commit_file(void)
{
	struct slot *slot = wire_slot(wire, 0);
	struct reply reply;

	call_begin(slot);
	call_putfh(slot, &job.file);
	call_commit(slot);
	wire_exchange(slot, &reply);
}

static void close_file(void)
{
	struct slot *slot = wire_slot(wire, 0);
	struct reply reply;

	call_begin(slot);
	call_putfh(slot, &job.file);
	call_close(slot, &job.stateid);
	wire_exchange(slot, &reply);
}

/* xorshift64* (Vigna 2016). */
static uint64_t draw(void)
{
	job.chance ^= job.chance >> 12;
	job.chance ^= job.chance << 25;
	job.chance ^= job.chance >> 27;
	return job.chance * UINT64_C(2685821657736338717) >> 16;
}

/* --- one file --------------------------------------------------------------------------------- */

static bool write_step(struct task *task, struct reply *reply)
{
	if (reply) {
		reply_nothing(reply, OP_PUTFH);
		bench_must(reply_write(reply) == MIB ? 0 : -EIO, "a short write");
		job.bytes += MIB;
		job.operations++;
	}
	if (job.begun == job.count)
		return false;
	call_begin(task->slot);
	call_putfh(task->slot, &job.file);
	call_write(task->slot, &job.stateid, job.begun * MIB,
		job.source + job.begun % depth * BLOCK_SIZE, MIB);
	job.begun++;
	return true;
}

static bool read_one(struct task *task, struct reply *reply, uint64_t place)
{
	bool eof;

	if (reply) {
		reply_nothing(reply, OP_PUTFH);
		bench_must(reply_read(reply, &eof) == job.length ? 0 : -EIO, "a short read");
		job.bytes += job.length;
		job.operations++;
	}
	if (job.begun == job.count)
		return false;
	job.begun++;
	call_begin(task->slot);
	call_putfh(task->slot, &job.file);
	call_read(
		task->slot, &job.stateid, place % (job.size / job.length) * job.length, job.length);
	return true;
}

static bool read_step(struct task *task, struct reply *reply)
{
	return read_one(task, reply, job.begun);
}

static bool random_step(struct task *task, struct reply *reply)
{
	return read_one(task, reply, draw());
}

static void run_write(char **args, struct bench_clock *clock)
{
	job.name = args[0];
	job.count = number(args[1]);
	job.source = bench_memory(MIB + (size_t)depth * BLOCK_SIZE);
	for (uint64_t i = 0; i < (MIB + (uint64_t)depth * BLOCK_SIZE) / 8; i++)
		((uint64_t *)(void *)job.source)[i] = draw();
	bench_start(clock);
	open_file(true);
	run(write_step);
	commit_file();
	close_file();
}

static void run_reads(char **args, struct bench_clock *clock, work step)
{
	job.name = args[0];
	job.length = (uint32_t)number(args[1]);
	job.count = number(args[2]);
	job.size = number(args[3]) * MIB;
	open_file(false);
	bench_must(job.size >= job.length && job.length ? 0 : -EINVAL, "BYTES");
	bench_start(clock);
	run(step);
	close_file();
}

static void run_read(char **args, struct bench_clock *clock)
{
	run_reads(args, clock, read_step);
}

static void run_random(char **args, struct bench_clock *clock)
{
	run_reads(args, clock, random_step);
}

/* --- many files ------------------------------------------------------------------------------- */

enum stage { BEFORE, OPENING, READING, CLOSING };

static void name_of(char *name, size_t size, char letter, uint64_t i)
{
	snprintf(name, size, "%c%06u", letter, (unsigned)i);
}

/* A lap over all names in an order that looks like chance: the step has no divisor in common. */
static uint64_t shuffled(uint64_t i)
{
	uint64_t stride = job.names * 61 / 100 | 1;

	while (job.names % 3 == 0 && stride % 3 == 0)
		stride += 2;
	while (job.names % 5 == 0 && stride % 5 == 0)
		stride += 2;
	return i * stride % job.names;
}

static void call_open_file(struct task *task, char letter, uint64_t i, bool create)
{
	char name[16];

	name_of(name, sizeof(name), letter, i);
	call_begin(task->slot);
	call_putfh(task->slot, &directory);
	if (create)
		call_open_create(task->slot, name, false);
	else
		call_open_read(task->slot, name);
	call_getfh(task->slot);
	call_access(task->slot);
	call_getattr(task->slot);
	task->stage = OPENING;
}

static void take_opened(struct task *task, struct reply *reply)
{
	reply_nothing(reply, OP_PUTFH);
	reply_open(reply, &task->stateid);
	reply_handle(reply, &task->file);
}

static void call_close_file(struct task *task)
{
	call_begin(task->slot);
	call_putfh(task->slot, &task->file);
	call_close(task->slot, &task->stateid);
	task->stage = CLOSING;
}

static void call_read_file(struct task *task)
{
	call_begin(task->slot);
	call_putfh(task->slot, &task->file);
	call_read(task->slot, &task->stateid, task->at, MIB);
	task->stage = READING;
}

static bool begin_file(struct task *task, char letter, bool create)
{
	uint64_t i = job.begun;

	if (i == job.count)
		return false;
	job.begun++;
	task->at = 0;
	call_open_file(task, letter, create ? job.first + i : shuffled(i), create);
	return true;
}

static bool files_step(struct task *task, struct reply *reply)
{
	bool eof;

	switch (task->stage) {
	case OPENING:
		take_opened(task, reply);
		call_read_file(task);
		return true;
	case READING:
		reply_nothing(reply, OP_PUTFH);
		task->at += reply_read(reply, &eof);
		if (eof)
			call_close_file(task);
		else
			call_read_file(task);
		return true;
	case CLOSING:
		job.bytes += task->at;
		job.operations++;
		break;
	}
	return begin_file(task, 'f', false);
}

static bool create_step(struct task *task, struct reply *reply)
{
	if (task->stage == OPENING) {
		take_opened(task, reply);
		call_close_file(task);
		return true;
	}
	job.operations += task->stage == CLOSING;
	return begin_file(task, 'n', true);
}

static bool remove_step(struct task *task, struct reply *reply)
{
	char name[16];

	job.operations += reply != NULL;
	if (job.begun == job.count)
		return false;
	name_of(name, sizeof(name), 'n', job.first + job.begun++);
	call_begin(task->slot);
	call_putfh(task->slot, &directory);
	call_remove(task->slot, name);
	return true;
}

static void run_files(char **args, struct bench_clock *clock)
{
	job.names = number(args[0]);
	job.count = number(args[1]);
	bench_must(job.names ? 0 : -EINVAL, "COUNT");
	bench_start(clock);
	run(files_step);
}

static void run_create(char **args, struct bench_clock *clock)
{
	job.first = number(args[0]);
	job.count = number(args[1]);
	bench_start(clock);
	run(create_step);
}

static void run_remove(char **args, struct bench_clock *clock)
{
	job.first = number(args[0]);
	job.count = number(args[1]);
	bench_start(clock);
	run(remove_step);
}

/* One page behind the other, as names are listed. */
static void run_list(char **args, struct bench_clock *clock)
{
	struct slot *slot = wire_slot(wire, 0);
	uint64_t times = number(args[0]);

	bench_start(clock);
	while (times--) {
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
			job.operations += reply_readdir(&reply, &cookie, verifier, &eof, NULL);
		}
	}
}

/* --- the command ------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	int arguments; /* after the directory */
	void (*run)(char **args, struct bench_clock *clock);
} verbs[] = {
	{"write", 2, run_write},
	{"read", 4, run_read},
	{"random", 4, run_random},
	{"files", 2, run_files},
	{"create", 2, run_create},
	{"remove", 2, run_remove},
	{"list", 1, run_list},
};

int main(int argc, char **argv)
{
	struct bench_clock clock;

	for (unsigned i = 0; argc > 5 && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (strcmp(argv[4], verbs[i].name) || argc != 6 + verbs[i].arguments)
			continue;
		depth = (uint32_t)number(argv[3]);
		job.chance = 1;
		wire = wire_connect(argv[1], (uint16_t)number(argv[2]), depth);
		wire_find(wire, argv[5], &directory);
		verbs[i].run(argv + 6, &clock);
		bench_print(&clock, job.bytes, job.operations);
		wire_close(wire);
		return 0;
	}
	fprintf(stderr, "usage: see the head of tests/bench/lean.c\n");
	return 2;
}
