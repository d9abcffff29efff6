/* SPDX-License-Identifier: LGPL-3.0-or-later. The erasure code. links: pool */
/* Every loss that it must bear, for every shape up to 8 + 4 and the widest ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pool/row.h"

#define LENGTH 576u /* not a power of two, as vector loops like it least */

struct chunks {
	unsigned k, m;
	uint8_t *at[POOL_WIDTH_MAX];
	uint8_t bytes[POOL_WIDTH_MAX][LENGTH];
};

static void fill(struct chunks *c, unsigned k, unsigned m)
{
	uint32_t state = k * 64 + m;

	c->k = k;
	c->m = m;
	for (unsigned i = 0; i < POOL_WIDTH_MAX; i++) {
		c->at[i] = c->bytes[i];
		for (unsigned j = 0; j < LENGTH; j++) {
			state = state * 1664525u + 1013904223u;
			c->bytes[i][j] = (uint8_t)(state >> 24);
		}
	}
}

/* Loses the chunks of `lost` (a bit each), and asks for all of them back from the first k left. */
static void check_loss(struct pool *pool, struct chunks *c, uint32_t lost)
{
	uint8_t have[POOL_WIDTH_MAX] = {0}, wanted[POOL_WIDTH_MAX] = {0};
	uint8_t rebuilt[POOL_WIDTH_MAX][LENGTH], *in[POOL_WIDTH_MAX], *out[POOL_WIDTH_MAX];
	unsigned haves = 0, wants = 0;

	for (unsigned i = 0; i < c->k + c->m; i++) {
		if (lost >> i & 1) {
			out[wants] = rebuilt[wants];
			wanted[wants++] = (uint8_t)i;
		} else if (haves < c->k) {
			in[haves] = c->at[i];
			have[haves++] = (uint8_t)i;
		}
	}
	memset(rebuilt, 0xee, sizeof(rebuilt));
	assert_int_equal(
		erasure_rebuild(pool, c->k, c->m, LENGTH, have, in, wanted, wants, out), 0);
	for (unsigned i = 0; i < wants; i++)
		assert_memory_equal(rebuilt[i], c->bytes[wanted[i]], LENGTH);
}

static void check_shape(struct pool *pool, unsigned k, unsigned m)
{
	struct chunks c;

	fill(&c, k, m);
	assert_int_equal(erasure_encode(pool, k, m, LENGTH, c.at, c.at + k), 0);
	for (uint32_t lost = 0; lost < UINT32_C(1) << (k + m); lost++)
		if ((unsigned)__builtin_popcount(lost) <= m)
			check_loss(pool, &c, lost);
}

static void every_loss_of_every_shape_is_rebuilt(void **state)
{
	struct pool *pool = *state;

	for (unsigned k = 1; k <= 8; k++)
		for (unsigned m = 1; m <= 4; m++)
			check_shape(pool, k, m);
}

static void the_widest_shapes_are_rebuilt(void **state)
{
	struct chunks c;

	fill(&c, 28, 4);
	assert_int_equal(erasure_encode(*state, 28, 4, LENGTH, c.at, c.at + 28), 0);
	check_loss(*state, &c, 0xf);
	check_loss(*state, &c, 0x80000101);
	check_loss(*state, &c, 0xf0000000);
	fill(&c, 1, 31);
	assert_int_equal(erasure_encode(*state, 1, 31, LENGTH, c.at, c.at + 1), 0);
	check_loss(*state, &c, 0x7fffffff);
}

/* Chunks that are there may be among the wanted ones. */
static void a_chunk_at_hand_may_be_asked_for(void **state)
{
	struct chunks c;
	uint8_t have[] = {1, 2, 4}, wanted[] = {1, 4, 0}, rebuilt[3][LENGTH];
	uint8_t *in[3], *out[] = {rebuilt[0], rebuilt[1], rebuilt[2]};

	fill(&c, 3, 2);
	assert_int_equal(erasure_encode(*state, 3, 2, LENGTH, c.at, c.at + 3), 0);
	for (unsigned i = 0; i < 3; i++)
		in[i] = c.at[have[i]];
	assert_int_equal(erasure_rebuild(*state, 3, 2, LENGTH, have, in, wanted, 3, out), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_memory_equal(rebuilt[i], c.bytes[wanted[i]], LENGTH);
}

/* What is on disk depends on these numbers: 1 / (i + j) in GF(2^8) with polynomial 0x11d. */
static void the_matrix_is_the_one_on_disk(void **state)
{
	uint8_t data[3][32] = {{1}, {0, 1}, {0, 0, 1}}, parity[2][32];
	uint8_t *in[] = {data[0], data[1], data[2]}, *out[] = {parity[0], parity[1]};

	assert_int_equal(erasure_encode(*state, 3, 2, 32, in, out), 0);
	/* rows 3 and 4: 1/3, 1/2, 1/1 and 1/4, 1/5, 1/6 */
	assert_int_equal(parity[0][0], 0xf4);
	assert_int_equal(parity[0][1], 0x8e);
	assert_int_equal(parity[0][2], 0x01);
	assert_int_equal(parity[1][0], 0x47);
	assert_int_equal(parity[1][1], 0xa7);
	assert_int_equal(parity[1][2], 0x7a);
}

static void impossible_questions_are_refused(void **state)
{
	uint8_t bytes[4][64] = {{0}}, twice[] = {0, 0}, outside[] = {0, 9}, good[] = {0, 1};
	uint8_t *in[] = {bytes[0], bytes[1]}, *out[] = {bytes[2], bytes[3]};

	assert_int_equal(erasure_encode(*state, 0, 1, 64, in, out), -EINVAL);
	assert_int_equal(erasure_encode(*state, 2, 0, 64, in, out), -EINVAL);
	assert_int_equal(erasure_encode(*state, 30, 3, 64, in, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, 2, 2, 64, twice, in, good, 1, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, 2, 2, 64, outside, in, good, 1, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, 2, 2, 64, good, in, outside, 2, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, 2, 2, 64, good, in, NULL, 0, out), 0);
}

#define THREADS 4

static void *first_use(void *argument)
{
	struct chunks c;

	for (unsigned k = 1; k <= 16; k++) {
		fill(&c, k, 2);
		if (erasure_encode(argument, k, 2, LENGTH, c.at, c.at + k))
			return "error";
	}
	return NULL;
}

static void threads_may_race_for_the_tables(void **state)
{
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, first_use, *state), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		void *error;

		pthread_join(threads[i], &error);
		assert_null(error);
	}
}

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct pool));
	return *state ? 0 : -1;
}

static int teardown(void **state)
{
	erasure_destroy(*state);
	free(*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			every_loss_of_every_shape_is_rebuilt, setup, teardown),
		cmocka_unit_test_setup_teardown(the_widest_shapes_are_rebuilt, setup, teardown),
		cmocka_unit_test_setup_teardown(a_chunk_at_hand_may_be_asked_for, setup, teardown),
		cmocka_unit_test_setup_teardown(the_matrix_is_the_one_on_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(impossible_questions_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(threads_may_race_for_the_tables, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
