/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Environments over pool_fake.h: changed, compared and replayed, for the tests of them. */
#ifndef TEST_POOL_ENV_H
#define TEST_POOL_ENV_H

#include "pool_fake.h"

static inline void quiet(enum log_level level, const char *line)
{
}

/* --- changed and compared -------------------------------------------------------------------- */

static inline struct txn *begin(struct env *env)
{
	struct txn *txn;

	assert_int_equal(txn_begin(fake.pool, env, &txn), 0);
	return txn;
}

static inline uint64_t commit(struct txn *txn)
{
	uint64_t lsn;

	assert_int_equal(txn_commit(txn, &lsn), 0);
	return lsn;
}

static inline uint64_t put_one(struct env *env, const char *key, const char *value)
{
	struct txn *txn = begin(env);

	assert_int_equal(txn_put(txn, env, text(key), text(value)), 0);
	return commit(txn);
}

static inline struct env *make_volume(const char *name)
{
	struct volume_row row;
	struct env *env;
	struct txn *txn = begin(NULL);

	assert_int_equal(volume_row_create(txn, name, VOLUME_SHARE, &row), 0);
	commit(txn);
	assert_int_equal(env_get(fake.pool, row.id, &env), 0);
	return env;
}

static inline bool equals(struct bytes bytes, const char *string)
{
	return bytes.length == strlen(string) && !memcmp(bytes.data, string, bytes.length);
}

static inline void expect(struct env *env, const char *key, const char *value)
{
	struct txn *view;
	struct bytes found;
	int rc;

	assert_int_equal(view_begin(env, &view), 0);
	rc = txn_get(view, env, text(key), &found);
	if (value)
		assert_true(!rc && equals(found, value));
	else
		assert_int_equal(rc, -ENOENT);
	txn_abort(view);
}

/* All of an environment, as a hash that does not depend on how it came about. */
static inline uint64_t digest(struct env *env, unsigned *count)
{
	uint8_t key[POOL_KEY_MAX + 1];
	size_t length = 0;
	struct bytes found, value;
	struct txn *view;
	uint64_t hash = 14695981039346656037ull;

	*count = 0;
	assert_int_equal(view_begin(env, &view), 0);
	while (length <= POOL_KEY_MAX &&
		!txn_seek(view, env, (struct bytes){key, length}, &found, &value)) {
		for (size_t i = 0; i < found.length; i++)
			hash = (hash ^ ((const uint8_t *)found.data)[i]) * 1099511628211ull;
		for (size_t i = 0; i < value.length; i++)
			hash = (hash ^ ((const uint8_t *)value.data)[i]) * 1099511628211ull;
		memcpy(key, found.data, found.length);
		key[found.length] = 0;
		length = found.length + 1;
		++*count;
	}
	txn_abort(view);
	return hash;
}

static inline uint32_t chance(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

/* Random puts and deletes in many transactions; values up to `most` bytes. */
static inline void fill(struct env *env, unsigned transactions, unsigned each, size_t most)
{
	uint8_t *value = malloc(most + 1);
	uint32_t seed = transactions;

	memset(value, 'v', most + 1);
	for (unsigned i = 0; i < transactions; i++) {
		struct txn *txn = begin(env);

		for (unsigned j = 0; j < each; j++) {
			char key[16];
			int rc;

			snprintf(key, sizeof(key), "k%05u", chance(&seed) % 20000);
			if (chance(&seed) % 4)
				rc = txn_put(txn, env, text(key),
					(struct bytes){value, chance(&seed) % (most + 1)});
			else
				rc = txn_delete(txn, env, text(key));
			assert_true(!rc || rc == -ENOENT);
		}
		commit(txn);
	}
	free(value);
}

/* --- replay ------------------------------------------------------------------------------------
 */

static inline void replay_round(
	int (*replay)(struct pool *pool, uint64_t lsn, const void *payload, size_t length))
{
	for (unsigned i = 0; i < fake.record_count; i++)
		assert_int_equal(replay(fake.pool, fake.records[i].lsn, fake.records[i].payload,
					 fake.records[i].length),
			0);
	assert_int_equal(txn_replay_end(fake.pool), 0);
}

static inline void replay_all(void)
{
	replay_round(txn_replay_pool);
	replay_round(txn_replay_volumes);
}

static inline void check_replayed(uint64_t volume_digest, uint64_t own_digest, uint64_t lsn)
{
	struct journal_position from;
	struct env *env;
	unsigned count;

	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	assert_true(digest(env, &count) == volume_digest);
	assert_true(digest(fake.pool->env, &count) == own_digest);
	assert_int_equal(env_applied(env), lsn);
	assert_true(env_replay_from(env, &from));
	env_put(env);
}

#endif
