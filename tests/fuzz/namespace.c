/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Rows of a volume that contradict each other: the input is rows, put over those of the world's
 * share: u8 key length, key, u16 value length (65535: the row is deleted), value. Then all of the
 * volume is looked at and changed.
 */
#include "fuzz.h"

#include "world.h"

enum { LETTERS, DELETED = LETTERS + 10, UNUSABLE };

static const char letters[] = "HIECXDLOTA";

struct fuzz_type fuzz_types[] = {
	[LETTERS] = {"row H", 0},
	[LETTERS + 1] = {"row I", 0},
	[LETTERS + 2] = {"row E", 0},
	[LETTERS + 3] = {"row C", 0},
	[LETTERS + 4] = {"row X", 0},
	[LETTERS + 5] = {"row D", 0},
	[LETTERS + 6] = {"row L", 0},
	[LETTERS + 7] = {"row O", 0},
	[LETTERS + 8] = {"row T", 0},
	[LETTERS + 9] = {"row A", 0},
	[DELETED] = {"a row deleted", 0},
	[UNUSABLE] = {"no row", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 8 << 10;

static int put_row(struct txn *txn, struct env *env, struct reader *r)
{
	size_t key_length = get_u8(r);
	const uint8_t *key = get_bytes(r, key_length);
	size_t length = get_u16(r);
	const uint8_t *value = get_bytes(r, length == UINT16_MAX ? 0 : length);
	const char *letter;
	int rc;

	if (r->bad || !key_length) {
		fuzz_reach(UNUSABLE);
		return 0;
	}
	if (length == UINT16_MAX) {
		rc = txn_delete(txn, env, (struct bytes){key, key_length});
		fuzz_reach(rc ? UNUSABLE : DELETED);
		return rc == -2 ? 0 : rc;
	}
	letter = key[0] ? strchr(letters, key[0]) : NULL;
	fuzz_reach(letter ? LETTERS + (unsigned)(letter - letters) : UNUSABLE);
	return txn_put(txn, env, (struct bytes){key, key_length}, (struct bytes){value, length});
}

static void put_rows(struct pool *pool, const uint8_t *data, size_t size)
{
	struct reader r = reader_on(data, size);
	struct volume_row row;
	struct env *env;
	struct txn *txn;
	uint64_t lsn;
	int rc = view_begin(pool_env(pool), &txn);

	assert(!rc);
	rc = volume_row_find(txn, "share", &row);
	txn_abort(txn);
	assert(!rc && !env_get(pool, row.id, &env) && !txn_begin(pool, env, &txn));
	while (!rc && !r.bad && r.at < r.end)
		rc = put_row(txn, env, &r);
	if (rc)
		txn_abort(txn);
	else
		txn_commit(txn, &lsn);
	env_put(env);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_world *world = world_reset();
	struct pool *pool;

	if (world_open(world, WORLD_OWN, &pool))
		abort();
	put_rows(pool, data, size);
	world_use(pool, false);
	world_use(pool, true);
	world_abandon(world, pool);
	return 0;
}
