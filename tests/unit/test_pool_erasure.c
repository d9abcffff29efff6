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
	struct code_id id;
	uint8_t *at[POOL_WIDTH_MAX];
	_Alignas(32) uint8_t bytes[POOL_WIDTH_MAX][LENGTH];
};

static void fill(struct chunks *c, struct code_id id)
{
	uint32_t state = id.k * 64 + id.m;

	c->id = id;
	for (unsigned i = 0; i < POOL_WIDTH_MAX; i++) {
		c->at[i] = c->bytes[i];
		for (unsigned j = 0; j < LENGTH; j++) {
			state = state * 1664525u + 1013904223u;
			c->bytes[i][j] = (uint8_t)(state >> 24);
		}
	}
}

static void encode(struct pool *pool, struct chunks *c)
{
	assert_int_equal(erasure_encode(pool, c->id, LENGTH, c->at, c->at + c->id.k), 0);
}

/* Loses the chunks of `lost` (a bit each), and asks for all of them back, at once and one by one,
 * from the first k left. */
static void check_loss(struct pool *pool, struct chunks *c, uint32_t lost)
{
	uint8_t have[POOL_WIDTH_MAX] = {0}, wanted[POOL_WIDTH_MAX] = {0};
	_Alignas(32) uint8_t rebuilt[POOL_WIDTH_MAX][LENGTH];
	uint8_t *in[POOL_WIDTH_MAX], *out[POOL_WIDTH_MAX];
	unsigned haves = 0, wants = 0;

	for (unsigned i = 0; i < c->id.k + c->id.m; i++) {
		if (lost >> i & 1) {
			out[wants] = rebuilt[wants];
			wanted[wants++] = (uint8_t)i;
		} else if (haves < c->id.k) {
			in[haves] = c->at[i];
			have[haves++] = (uint8_t)i;
		}
	}
	memset(rebuilt, 0xee, sizeof(rebuilt));
	assert_int_equal(erasure_rebuild(pool, c->id, LENGTH, have, in, wanted, wants, out), 0);
	for (unsigned i = 0; i < wants; i++)
		assert_memory_equal(rebuilt[i], c->bytes[wanted[i]], LENGTH);
	for (unsigned i = 0; i < wants; i++) {
		memset(rebuilt[0], 0xee, LENGTH);
		assert_int_equal(
			erasure_rebuild(pool, c->id, LENGTH, have, in, wanted + i, 1, out), 0);
		assert_memory_equal(rebuilt[0], c->bytes[wanted[i]], LENGTH);
	}
}

static void check_shape(struct pool *pool, struct code_id id)
{
	struct chunks c;

	fill(&c, id);
	encode(pool, &c);
	for (uint32_t lost = 0; lost < UINT32_C(1) << (id.k + id.m); lost++)
		if ((unsigned)__builtin_popcount(lost) <= id.m)
			check_loss(pool, &c, lost);
}

static void every_loss_of_every_shape_is_rebuilt(void **state)
{
	for (unsigned k = 1; k <= 8; k++) {
		for (unsigned m = 1; m <= 4; m++)
			check_shape(*state, (struct code_id){k, m, MATRIX_CAUCHY});
		check_shape(*state, (struct code_id){k, 1, MATRIX_PQ});
		check_shape(*state, (struct code_id){k, 2, MATRIX_PQ});
	}
}

static void the_widest_shapes_are_rebuilt(void **state)
{
	struct chunks c;

	fill(&c, (struct code_id){28, 4, MATRIX_CAUCHY});
	encode(*state, &c);
	check_loss(*state, &c, 0xf);
	check_loss(*state, &c, 0x80000101);
	check_loss(*state, &c, 0xf0000000);
	fill(&c, (struct code_id){1, 31, MATRIX_CAUCHY});
	encode(*state, &c);
	check_loss(*state, &c, 0x7fffffff);
	fill(&c, (struct code_id){30, 2, MATRIX_PQ});
	encode(*state, &c);
	for (uint32_t one = 0; one < 32; one++)
		for (uint32_t other = 0; other < 32; other++)
			check_loss(*state, &c, UINT32_C(1) << one | UINT32_C(1) << other);
}

/* Chunks that are there may be among the wanted ones. */
static void a_chunk_at_hand_may_be_asked_for(void **state)
{
	struct chunks c;
	uint8_t have[] = {1, 2, 4}, wanted[] = {1, 4, 0};
	_Alignas(32) uint8_t rebuilt[3][LENGTH];
	uint8_t *in[3], *out[] = {rebuilt[0], rebuilt[1], rebuilt[2]};

	fill(&c, (struct code_id){3, 2, MATRIX_CAUCHY});
	encode(*state, &c);
	for (unsigned i = 0; i < 3; i++)
		in[i] = c.at[have[i]];
	assert_int_equal(erasure_rebuild(*state, c.id, LENGTH, have, in, wanted, 3, out), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_memory_equal(rebuilt[i], c.bytes[wanted[i]], LENGTH);
}

/* Whether byte i of parity p is coefficients[p][i], for data that is 1 there and 0 elsewhere. */
static void check_coefficients(
	struct pool *pool, struct code_id id, size_t length, const uint8_t (*coefficients)[4])
{
	_Alignas(32) uint8_t data[4][64] = {{1}, {0, 1}, {0, 0, 1}, {0, 0, 0, 1}}, parity[2][64];
	uint8_t *in[] = {data[0], data[1], data[2], data[3]}, *out[] = {parity[0], parity[1]};

	assert_int_equal(erasure_encode(pool, id, length, in, out), 0);
	for (unsigned p = 0; p < id.m; p++)
		assert_memory_equal(parity[p], coefficients[p], id.k);
}

/* What is on disk depends on these numbers, in GF(2^8) with polynomial 0x11d. */
static void the_matrices_are_those_on_disk(void **state)
{
	/* 1 / (i + j) for rows i of 3 and 4: 1/3, 1/2, 1/1 and 1/4, 1/5, 1/6 */
	static const uint8_t cauchy[][4] = {{0xf4, 0x8e, 0x01}, {0x47, 0xa7, 0x7a}};
	static const uint8_t pq[][4] = {{1, 1, 1, 1}, {1, 2, 4, 8}};

	check_coefficients(*state, (struct code_id){3, 2, MATRIX_CAUCHY}, 32, cauchy);
	/* by the loops for these, where they are faster, and by the general one: others refuse 48
	 */
	for (size_t length = 32; length < 64; length += 16) {
		check_coefficients(*state, (struct code_id){4, 2, MATRIX_PQ}, length, pq);
		check_coefficients(*state, (struct code_id){4, 1, MATRIX_PQ}, length, pq);
	}
}

static void impossible_questions_are_refused(void **state)
{
	const struct code_id none[] = {{0, 1, MATRIX_CAUCHY}, {2, 0, MATRIX_CAUCHY},
		{30, 3, MATRIX_CAUCHY}, {2, 3, MATRIX_PQ}, {2, 2, 0}, {2, 2, MATRIX_PQ + 1}};
	const struct code_id id = {2, 2, MATRIX_CAUCHY};
	_Alignas(32) uint8_t bytes[4][64] = {{0}};
	uint8_t twice[] = {0, 0}, outside[] = {0, 9}, good[] = {0, 1};
	uint8_t *in[] = {bytes[0], bytes[1]}, *out[] = {bytes[2], bytes[3]};

	for (unsigned i = 0; i < sizeof(none) / sizeof(*none); i++)
		assert_int_equal(erasure_encode(*state, none[i], 64, in, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, id, 64, twice, in, good, 1, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, id, 64, outside, in, good, 1, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, id, 64, good, in, outside, 2, out), -EINVAL);
	assert_int_equal(erasure_rebuild(*state, id, 64, good, in, NULL, 0, out), 0);
}

#define THREADS 4

static void *first_use(void *argument)
{
	struct chunks c;

	for (unsigned k = 1; k <= 16; k++) {
		fill(&c, (struct code_id){k, 2, k % 2 ? MATRIX_PQ : MATRIX_CAUCHY});
		if (erasure_encode(argument, c.id, LENGTH, c.at, c.at + k))
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
		cmocka_unit_test_setup_teardown(the_matrices_are_those_on_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(impossible_questions_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(threads_may_race_for_the_tables, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
