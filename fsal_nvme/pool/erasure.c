/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The erasure code: Reed-Solomon over GF(2^8) with the Cauchy matrix of ISA-L's
 * gf_gen_cauchy1_matrix (matrix 1 on disk), of which any k rows can be inverted.
 *
 * Coding matrices and ISA-L's multiplication tables depend on (k, m) alone. They are made when
 * first asked for and kept; whoever loses the race to publish throws its own away, so no lock is
 * taken to encode. pool->erasure is made the same way: a zeroed struct pool is a valid start.
 */
#include <isa-l/erasure_code.h>

#include "pool/internal.h"
#include "pool/row.h"

struct code {
	uint8_t *matrix; /* k + m rows of k coefficients; the first k are the identity */
	uint8_t *tables; /* 32 bytes a coefficient of the last m rows */
	uint8_t bytes[];
};

struct erasure {
	_Atomic(struct code *) codes[POOL_WIDTH_MAX + 1][POOL_WIDTH_MAX + 1];
};

static struct code *code_create(unsigned k, unsigned m)
{
	size_t matrix_size = (size_t)(k + m) * k;
	struct code *code = malloc(sizeof(*code) + matrix_size + (size_t)32 * k * m);

	if (!code)
		return NULL;
	code->matrix = code->bytes;
	code->tables = code->bytes + matrix_size;
	gf_gen_cauchy1_matrix(code->matrix, (int)(k + m), (int)k);
	ec_init_tables((int)k, (int)m, code->matrix + (size_t)k * k, code->tables);
	return code;
}

static struct erasure *erasure_get(struct pool *pool)
{
	struct erasure *e = __atomic_load_n(&pool->erasure, __ATOMIC_ACQUIRE), *none = NULL;

	if (e)
		return e;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	if (__atomic_compare_exchange_n(
		    &pool->erasure, &none, e, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return e;
	free(e);
	return none;
}

static int code_get(struct pool *pool, unsigned k, unsigned m, struct code **found)
{
	struct erasure *e;
	struct code *code, *none = NULL;

	if (!k || !m || k + m > POOL_WIDTH_MAX)
		return -EINVAL;
	e = erasure_get(pool);
	if (!e)
		return -ENOMEM;
	*found = atomic_load(&e->codes[k][m]);
	if (*found)
		return 0;
	code = code_create(k, m);
	if (!code)
		return -ENOMEM;
	*found = code;
	if (!atomic_compare_exchange_strong(&e->codes[k][m], &none, code)) {
		free(code);
		*found = none;
	}
	return 0;
}

void erasure_destroy(struct pool *pool)
{
	if (!pool->erasure)
		return;
	for (unsigned k = 0; k <= POOL_WIDTH_MAX; k++)
		for (unsigned m = 0; m <= POOL_WIDTH_MAX; m++)
			free(atomic_load(&pool->erasure->codes[k][m]));
	free(pool->erasure);
	pool->erasure = NULL;
}

int erasure_encode(
	struct pool *pool, unsigned k, unsigned m, size_t length, uint8_t **data, uint8_t **parity)
{
	struct code *code;
	int rc = code_get(pool, k, m, &code);

	if (!rc && length)
		ec_encode_data((int)length, (int)k, (int)m, code->tables, data, parity);
	return rc;
}

/* out[k] = row[k] x matrix[k][k] */
static void row_times_matrix(uint8_t *out, const uint8_t *row, const uint8_t *matrix, unsigned k)
{
	for (unsigned column = 0; column < k; column++) {
		out[column] = 0;
		for (unsigned i = 0; i < k; i++)
			out[column] ^= gf_mul(row[i], matrix[i * k + column]);
	}
}

/*
 * The rows of `have` map data to what is at hand, so their inverse maps back, and a row of the
 * coding matrix times that inverse maps what is at hand to any chunk, data or parity.
 */
static int rebuild_matrix(const struct code *code, unsigned k, const uint8_t *have,
	const uint8_t *wanted, unsigned wanted_count, uint8_t *out)
{
	uint8_t rows[POOL_WIDTH_MAX * POOL_WIDTH_MAX], inverse[POOL_WIDTH_MAX * POOL_WIDTH_MAX];

	for (unsigned i = 0; i < k; i++)
		memcpy(rows + i * k, code->matrix + have[i] * k, k);
	if (gf_invert_matrix(rows, inverse, (int)k))
		return -EINVAL;
	for (unsigned i = 0; i < wanted_count; i++)
		row_times_matrix(out + i * k, code->matrix + wanted[i] * k, inverse, k);
	return 0;
}

static bool indexes_valid(const uint8_t *indexes, unsigned count, unsigned width)
{
	for (unsigned i = 0; i < count; i++)
		if (indexes[i] >= width)
			return false;
	return count <= width;
}

int erasure_rebuild(struct pool *pool, unsigned k, unsigned m, size_t length, const uint8_t *have,
	uint8_t **in, const uint8_t *wanted, unsigned wanted_count, uint8_t **out)
{
	uint8_t matrix[POOL_WIDTH_MAX * POOL_WIDTH_MAX], *tables;
	struct code *code;
	int rc = code_get(pool, k, m, &code);

	if (!rc && (!indexes_valid(have, k, k + m) || !indexes_valid(wanted, wanted_count, k + m)))
		rc = -EINVAL;
	if (!rc)
		rc = rebuild_matrix(code, k, have, wanted, wanted_count, matrix);
	if (rc || !wanted_count || !length)
		return rc;
	tables = malloc((size_t)32 * k * wanted_count);
	if (!tables)
		return -ENOMEM;
	ec_init_tables((int)k, (int)wanted_count, matrix, tables);
	ec_encode_data((int)length, (int)k, (int)wanted_count, tables, in, out);
	free(tables);
	return 0;
}
