/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The table of operations, and sequences of them. */
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WRITES_MAX 4 /* of a random sequence, holes, and space that is kept */
#define CREATES_MAX 7
#define FILL_STRIDE 61 /* of the hundreds of writes that fill a pool, each so manieth is a cut */

const struct operation operations[] = {
	{"create a", do_create, m_create, 0, 0, 1, 0},
	{"create b", do_create, m_create, 1, 0, 1, 0},
	{"mkdir b", do_mkdir, m_mkdir, 1, 0, 1, 0},
	{"write a small", do_write_small, m_write_small, 0, 0, 1, 0},
	{"write a behind a hole", do_write_hole, m_write_hole, 0, 0, 1, 0},
	{"write a across rows", do_write_rows, m_write_rows, 0, 0, 1, 0},
	{"write b across rows", do_write_rows, m_write_rows, 1, 0, 1, 0},
	{"punch a", do_punch, m_punch, 0, 0, 1, 0},
	{"allocate a", do_allocate, m_allocate, 0, 0, 1, 0},
	{"write a over its quota", do_write_over_quota, m_write_over_quota, 0, 0, 1, 0},
	{"fsync a", do_fsync, m_fsync, 0, 0, 1, 0},
	{"fsync b", do_fsync, m_fsync, 1, 0, 1, 0},
	{"shrink a", do_shrink, m_shrink, 0, 0, 1, 0},
	{"grow a", do_grow, m_grow, 0, 0, 1, 0},
	{"set an attribute of a", do_set_attribute, m_set_attribute, 0, 0, 1, 0},
	{"remove the attribute of a", do_remove_attribute, m_remove_attribute, 0, 0, 1, 0},
	{"unlink a", do_unlink, m_unlink, 0, 0, 1, 0},
	{"unlink a while open", do_unlink_open, m_unlink, 0, 0, 1, 0},
	{"fill the pool", do_fill, m_fill, 0, 0, FILL_STRIDE, MOMENT_FILLS},
	{"write a where space is kept, in the full pool", do_write_kept, m_write_kept, 0, 0, 1,
		MOMENT_FULL},
	{"unlink a in the full pool", do_unlink, m_unlink, 0, 0, 1, MOMENT_FULL},
	{"unlink what fills the pool", do_unlink_fill, m_fill, 0, 0, 1, MOMENT_FULL},
	{"link a b", do_link, m_link, 0, 1, 1, 0},
	{"rename a b", do_rename, m_rename, 0, 1, 1, 0},
	{"rename b a", do_rename, m_rename, 1, 0, 1, 0},
	{"seal", do_seal, m_seal, 0, 0, 1, 0},
	{"checkpoint", do_checkpoint, m_nothing, 0, 0, 1, 0},
	{"maintain", do_maintain, m_nothing, 0, 0, 1, 0},
	{"compact", do_compact, m_nothing, 0, 0, 1, 0},
	{"a dataset comes, is moved, goes", do_other, m_nothing, 0, 0, 1, 0},
	{"a client of the server comes", do_client, m_client, 1, 0, 1, 0},
	{"earlier clients are forgotten", do_forget_clients, m_forget_clients, 0, 0, 1, 0},
	{"close and open", do_reopen, m_reopen, 0, 0, 1, 0},
};
const unsigned operation_count = sizeof(operations) / sizeof(operations[0]);
static unsigned long succeeded[sizeof(operations) / sizeof(operations[0])];

void operation_done(const struct operation *operation, int rc)
{
	succeeded[operation - operations] += !rc;
}

unsigned operation_find(const char *name)
{
	for (unsigned i = 0; i < operation_count; i++)
		if (!strcmp(operations[i].name, name))
			return i;
	fprintf(stderr, "no operation is called %s\n", name);
	exit(2);
}

int operations_report(void)
{
	int never = 0;

	for (unsigned i = 0; i < operation_count; i++) {
		if (!succeeded[i]) {
			printf("operation never succeeded: %s\n", operations[i].name);
			never = 1;
		}
	}
	return never;
}

/* --- sequences --- */

bool sequence_fills(const struct sequence *s)
{
	for (unsigned i = 0; i < s->length; i++)
		if (operations[s->op[i]].moment == MOMENT_FILLS)
			return true;
	return false;
}

void sequence_print(const struct sequence *s)
{
	for (unsigned i = 0; i < s->length; i++)
		fprintf(stderr, "%s%s", i ? ", " : "", operations[s->op[i]].name);
}

static uint64_t next_random(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull; /* splitmix64 */
	uint64_t z = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9ull;

	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* A filled pool is emptied before anything else; as many sequences end at each step. False: the
 * sequence has ended. */
static bool draw_filling(struct sequence *s, unsigned op, uint64_t *state)
{
	uint64_t end = next_random(state) % 6;

	s->op[s->length++] = (unsigned char)op;
	for (op = 0; end && op < operation_count; op++) {
		if (operations[op].moment != MOMENT_FULL)
			continue;
		s->op[s->length++] = (unsigned char)op;
		end--;
	}
	return end > 0;
}

/* Creations are drawn more often, so that long histories have something to work on; unstable
 * writes to one file are bounded by what the model keeps. */
void sequence_random(struct sequence *s, uint64_t *state)
{
	unsigned writes = 0;

	s->length = 0;
	while (s->length < 4 + next_random(state) % 10) {
		unsigned op = next_random(state) % 4 ? next_random(state) % operation_count
						     : next_random(state) % 2;
		bool write = op >= 3 && op <= 8;

		if (write && ++writes > WRITES_MAX)
			continue;
		if (operations[op].moment == MOMENT_FULL)
			continue;
		if (operations[op].moment == MOMENT_FILLS) {
			if (next_random(state) % 3 == 0 && !sequence_fills(s) &&
				!draw_filling(s, op, state))
				return;
			continue;
		}
		if (op == 0 || op == 1)
			for (unsigned i = 0, made = 0; i < s->length; i++)
				if (s->op[i] <= 1 && ++made == CREATES_MAX)
					return;
		s->op[s->length++] = (unsigned char)op;
	}
}

double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
