/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The erasure code: Reed-Solomon over GF(2^8) by ISA-L, with one of two coding matrices (enum
 * coding_matrix), of which any k rows can be inverted.
 *
 * MATRIX_PQ is RAID-6's P, the sum of the data, and Q, whose coefficients are powers of 2. ISA-L
 * has loops for these without multiplications: three times as fast as the general ones, nearly
 * twice with the checksums that follow, where there is AVX-512; those for AVX2 write past the
 * caches, and are slower then, so it is tried which to use. What is lost alone comes back as a sum.
 * For three and more parity chunks powers of 2 are no code (not all k rows can be inverted);
 * MATRIX_CAUCHY is, and was that of all pools before.
 *
 * Coding matrices and ISA-L's multiplication tables are made when first asked for and kept; whoever
 * loses the race to publish throws its own away, so no lock is taken to encode. pool->erasure is
 * made the same way: a zeroed struct pool is a valid start.
 */
#include <assert.h>
#include <stdatomic.h>
#include <time.h>

#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

#include "common/crc32c.h"
#include "pool/internal.h"
#include "pool/row.h"

#define TRIAL (64u << 10)
#define TRIALS 3

struct code {
	uint8_t *matrix; /* k + m rows of k coefficients; the first k are the identity */
	uint8_t *tables; /* 32 bytes a coefficient of the last m rows */
	bool pq; /* P and Q by the loops for them, which are faster here */
	uint8_t bytes[];
};

typedef _Atomic(struct code *) code_slot;

struct erasure {
	code_slot codes[MATRIX_PQ][POOL_WIDTH_MAX + 1][POOL_WIDTH_MAX + 1];
};

static inline bool aligned(void **chunks, unsigned count)
{
	uintptr_t bits = 0;

	for (unsigned i = 0; i < count; i++)
		bits |= (uintptr_t)chunks[i];
	return bits % 32 == 0;
}

/* ISA-L's loops of raid.h do nothing and say so where they cannot: fewer than two data chunks, a
 * length that is no multiple of 32. They may write parity past the caches: whoever hands it to
 * another thread does so by a lock or a system call, which orders it. */
static bool encode_pq(struct code_id id, size_t length, uint8_t **data, uint8_t **parity)
{
	void *all[POOL_WIDTH_MAX];
	int width = (int)(id.k + id.m);

	if (length % 32)
		return false;
	memcpy(all, data, id.k * sizeof(*data));
	memcpy(all + id.k, parity, id.m * sizeof(*parity));
	assert(aligned(all, id.k + id.m));
	return id.m == 2 ? !pq_gen(width, (int)length, all) : !xor_gen(width, (int)length, all);
}

static void encode_by_tables(
	struct code *code, struct code_id id, size_t length, uint8_t **data, uint8_t **parity)
{
	ec_encode_data((int)length, (int)id.k, (int)id.m, code->tables, data, parity);
}

/* --- which way is faster here --------------------------------------------------------------- */

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds of a row of chunks of TRIAL bytes at best, with the checksums of its parity: what
 * went past the caches has to come back for them. */
static uint64_t trial(struct code *code, struct code_id id, bool pq, uint8_t **chunks)
{
	uint64_t best = UINT64_MAX;

	for (unsigned i = 0; i < TRIALS; i++) {
		uint64_t began = now(), took;

		if (!pq || !encode_pq(id, TRIAL, chunks, chunks + id.k))
			encode_by_tables(code, id, TRIAL, chunks, chunks + id.k);
		for (unsigned j = 0; j < id.m; j++)
			crc32c(chunks[id.k + j], TRIAL);
		took = now() - began;
		best = took < best ? took : best;
	}
	return best;
}

/* Both give the same bytes, so it is tried, as Linux's RAID-6 does. */
static bool try_both(struct code *code, struct code_id id)
{
	size_t size = (size_t)(id.k + id.m) * TRIAL;
	uint8_t *memory = aligned_alloc(64, size), *chunks[POOL_WIDTH_MAX];
	bool faster = true;

	if (!memory)
		return faster;
	memset(memory, 1, size);
	for (unsigned i = 0; i < id.k + id.m; i++)
		chunks[i] = memory + (size_t)i * TRIAL;
	faster = trial(code, id, true, chunks) <= trial(code, id, false, chunks);
	free(memory);
	return faster;
}

/* Tried once in the life of the process. */
static bool pq_is_faster(struct code *code, struct code_id id)
{
	enum { UNKNOWN, FASTER, SLOWER };
	static atomic_uchar known[POOL_WIDTH_MAX + 1][2 + 1];
	atomic_uchar *place = &known[id.k][id.m];

	if (atomic_load(place) == UNKNOWN)
		atomic_store(place, try_both(code, id) ? FASTER : SLOWER);
	return atomic_load(place) == FASTER;
}

/* --- codes ---------------------------------------------------------------------------------- */

static struct code *code_create(struct code_id id)
{
	unsigned k = id.k, m = id.m;
	size_t matrix_size = (size_t)(k + m) * k;
	struct code *code = malloc(sizeof(*code) + matrix_size + (size_t)32 * k * m);

	if (!code)
		return NULL;
	code->matrix = code->bytes;
	code->tables = code->bytes + matrix_size;
	if (id.matrix == MATRIX_PQ)
		gf_gen_rs_matrix(code->matrix, (int)(k + m), (int)k);
	else
		gf_gen_cauchy1_matrix(code->matrix, (int)(k + m), (int)k);
	ec_init_tables((int)k, (int)m, code->matrix + (size_t)k * k, code->tables);
	code->pq = id.matrix == MATRIX_PQ && pq_is_faster(code, id);
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

static int code_get(struct pool *pool, struct code_id id, struct code **found)
{
	struct erasure *e;
	struct code *code, *none = NULL;
	code_slot *slot;

	if (!code_valid(id.matrix, id.k, id.m))
		return -EINVAL;
	e = erasure_get(pool);
	if (!e)
		return -ENOMEM;
	slot = &e->codes[id.matrix - 1][id.k][id.m];
	*found = atomic_load(slot);
	if (*found)
		return 0;
	code = code_create(id);
	if (!code)
		return -ENOMEM;
	*found = code;
	if (!atomic_compare_exchange_strong(slot, &none, code)) {
		free(code);
		*found = none;
	}
	return 0;
}

void erasure_destroy(struct pool *pool)
{
	code_slot *slots;

	if (!pool->erasure)
		return;
	slots = &pool->erasure->codes[0][0][0];
	for (size_t i = 0; i < sizeof(pool->erasure->codes) / sizeof(*slots); i++)
		free(atomic_load(&slots[i]));
	free(pool->erasure);
	pool->erasure = NULL;
}

int erasure_encode(
	struct pool *pool, struct code_id id, size_t length, uint8_t **data, uint8_t **parity)
{
	struct code *code;
	int rc = code_get(pool, id, &code);

	if (!rc && length && !(code->pq && encode_pq(id, length, data, parity)))
		encode_by_tables(code, id, length, data, parity);
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

/* What is wanted is the sum of all that is at hand: with P, any chunk but Q that is lost alone. */
static bool rebuild_sum(
	unsigned k, size_t length, const uint8_t *coefficients, uint8_t **in, uint8_t *out)
{
	void *all[POOL_WIDTH_MAX];

	for (unsigned i = 0; i < k; i++) {
		if (coefficients[i] != 1)
			return false;
		all[i] = in[i];
	}
	all[k] = out;
	assert(aligned(all, k + 1));
	return !xor_gen((int)k + 1, (int)length, all);
}

int erasure_rebuild(struct pool *pool, struct code_id id, size_t length, const uint8_t *have,
	uint8_t **in, const uint8_t *wanted, unsigned wanted_count, uint8_t **out)
{
	uint8_t matrix[POOL_WIDTH_MAX * POOL_WIDTH_MAX], *tables;
	unsigned k = id.k, width = id.k + id.m;
	struct code *code;
	int rc = code_get(pool, id, &code);

	if (!rc && (!indexes_valid(have, k, width) || !indexes_valid(wanted, wanted_count, width)))
		rc = -EINVAL;
	if (!rc)
		rc = rebuild_matrix(code, k, have, wanted, wanted_count, matrix);
	if (rc || !wanted_count || !length)
		return rc;
	if (wanted_count == 1 && rebuild_sum(k, length, matrix, in, out[0]))
		return 0;
	tables = malloc((size_t)32 * k * wanted_count);
	if (!tables)
		return -ENOMEM;
	ec_init_tables((int)k, (int)wanted_count, matrix, tables);
	ec_encode_data((int)length, (int)k, (int)wanted_count, tables, in, out);
	free(tables);
	return 0;
}
