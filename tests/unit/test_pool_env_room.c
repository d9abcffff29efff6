/* SPDX-License-Identifier: LGPL-3.0-or-later. A scratch file system that is full. links: pool */
/* It is an error of the transaction that needed room, whatever the volumes, and never a signal. */
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#undef BLOCK_SIZE /* of <linux/fs.h> */

#include "pool_fixture.h"

#include "common/log.h"
#include "pool/env.h"

#define VALUE 2000u
#define VALUES 1500u /* a volume */

static struct fixture f;
static char scratch[] = "/tmp/millrace-room.XXXXXX";

static void quiet(enum log_level level, const char *line)
{
}

/* --- a file system of its own ----------------------------------------------------------------- */

static int write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);

	if (file >= 0)
		close(file);
	return written ? 0 : -1;
}

/* Where root may not mount, it may in a user namespace. */
static int enter_namespace(void)
{
	char map[32];

	if (!unshare(CLONE_NEWNS))
		return 0;
	snprintf(map, sizeof(map), "0 %u 1", (unsigned)geteuid());
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return -1;
	return write_text("/proc/self/uid_map", map);
}

static int make_namespace(void **state)
{
	if (enter_namespace() || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
		print_error("this test needs a mount namespace of its own: %s\n", strerror(errno));
		return -1;
	}
	return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
	return rmdir(scratch);
}

static void mount_scratch(unsigned megabytes)
{
	char options[32];

	snprintf(options, sizeof(options), "size=%um", megabytes);
	if (mount("tmpfs", scratch, "tmpfs", 0, options))
		fail_msg("cannot mount a tmpfs on %s: %s", scratch, strerror(errno));
}

/* Emptied stores are kept, so that it is busy. */
static void unmount_scratch(void)
{
	assert_int_equal(umount2(scratch, MNT_DETACH), 0);
}

/* Takes all room that is left, and gives it back. */
static void ballast(bool there)
{
	char path[64];
	static const uint8_t block[4096];
	int file;

	snprintf(path, sizeof(path), "%s/ballast", scratch);
	if (!there) {
		assert_int_equal(unlink(path), 0);
		return;
	}
	file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	while (write(file, block, sizeof(block)) == sizeof(block))
		;
	close(file);
}

/* --- a pool on it ----------------------------------------------------------------------------- */

static int open_pool(struct pool **pool)
{
	struct pool_open_options options = {.paths = f.paths,
		.path_count = f.devices,
		.name = "tank",
		.host = "alpha",
		.scratch_dir = scratch,
		.metadata_limit = 64u << 20};
	struct error error = {0};

	return pool_open(f.engine, &options, pool, &error);
}

static void close_pool(struct pool *pool)
{
	struct error error = {0};

	if (pool_close(pool, &error))
		fail_msg("pool_close: %s", error.message);
}

static struct bytes number(uint8_t key[4], unsigned i)
{
	struct writer w = writer_on(key, 4);

	put_key_u32(&w, i);
	return (struct bytes){key, 4};
}

static int change(struct pool *pool, struct env *env, unsigned i, bool put)
{
	static const uint8_t value[VALUE] = {7};
	struct txn *txn;
	uint8_t key[4];
	uint64_t lsn;
	int rc = txn_begin(pool, env, &txn);

	if (rc)
		return rc;
	rc = put ? txn_put(txn, env, number(key, i), (struct bytes){value, VALUE})
		 : txn_delete(txn, env, number(key, i));
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	return rc ? rc : pool_sync(pool, lsn);
}

/* Puts values until an error; how many. */
static unsigned fill(struct pool *pool, struct env *env, int *rc)
{
	unsigned i = 0;

	*rc = 0;
	while (i < VALUES && !(*rc = change(pool, env, i, true)))
		i++;
	return i;
}

static unsigned count(struct env *env)
{
	struct bytes found, value;
	struct txn *view;
	uint8_t key[4];
	unsigned n = 0;
	uint32_t next = 0;

	assert_int_equal(view_begin(env, &view), 0);
	while (!txn_seek(view, env, number(key, next), &found, &value)) {
		struct reader r = reader_on(found.data, found.length);

		next = get_key_u32(&r) + 1;
		n++;
	}
	txn_abort(view);
	return n;
}

/* --- many volumes ----------------------------------------------------------------------------- */

static struct env *make_volume(struct pool *pool, unsigned i)
{
	char name[16];
	struct env *env;

	snprintf(name, sizeof(name), "v%u", i);
	assert_int_equal(env_get(pool, fixture_make_volume(pool, name), &env), 0);
	return env;
}

static void test_small_volumes_fill_it(void **state)
{
	struct env *env;
	struct pool *pool;
	unsigned volumes = 0, puts, kept;
	uint32_t id;
	int rc = 0;

	mount_scratch(40);
	fixture_make_with(&f, 6, 4, 2, 80u << 20, 48u << 20, 3);
	assert_int_equal(open_pool(&pool), 0);
	for (;;) {
		env = make_volume(pool, volumes++);
		puts = fill(pool, env, &rc);
		if (rc)
			break;
		env_put(env);
	}
	assert_int_equal(rc, -ENOSPC);
	assert_true(volumes > 3 && puts > 250);
	/* What is deleted makes room for as much. */
	for (unsigned i = 0; i < puts - 10; i++)
		assert_int_equal(change(pool, env, i, false), 0);
	kept = count(env);
	for (unsigned i = 0; i < puts - 200; i++)
		assert_int_equal(change(pool, env, i, true), 0);
	assert_int_equal(count(env), kept + puts - 200);
	id = env_volume(env);
	env_put(env);
	close_pool(pool);
	assert_int_equal(open_pool(&pool), 0);
	assert_int_equal(env_get(pool, id, &env), 0);
	assert_int_equal(count(env), kept + puts - 200);
	env_put(env);
	close_pool(pool);
	fixture_free(&f);
	unmount_scratch();
}

/* Others have taken all of it: nothing can be begun that needs room, and what is there is read. */
static void test_nothing_is_left(void **state)
{
	struct env *full, *empty;
	struct pool *pool, *second;
	unsigned puts;
	int rc;

	mount_scratch(40);
	fixture_make_with(&f, 6, 4, 2, 80u << 20, 48u << 20, 4);
	assert_int_equal(open_pool(&pool), 0);
	full = make_volume(pool, 0);
	empty = make_volume(pool, 1);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(change(pool, full, i, true), 0);
	ballast(true);
	puts = fill(pool, empty, &rc);
	assert_int_equal(rc, -ENOSPC);
	assert_int_equal(count(full), 100);
	assert_int_equal(count(empty), puts);
	assert_int_not_equal(open_pool(&second), 0);
	ballast(false);
	assert_int_equal(fill(pool, empty, &rc), VALUES);
	env_put(full);
	env_put(empty);
	close_pool(pool);
	fixture_free(&f);
	unmount_scratch();
}

/* An image and the journal behind it are larger than the room that is left. */
static void test_loading_and_replaying(void **state)
{
	struct env *env;
	struct pool *pool;
	uint32_t id;
	int rc;

	mount_scratch(40);
	fixture_make_with(&f, 6, 4, 2, 80u << 20, 48u << 20, 5);
	assert_int_equal(open_pool(&pool), 0);
	env = make_volume(pool, 0);
	id = env_volume(env);
	assert_int_equal(fill(pool, env, &rc), VALUES);
	env_put(env);
	fixture_crash(&f, pool, SIM_LOSE_ALL);
	unmount_scratch();
	mount_scratch(4);
	assert_int_equal(open_pool(&pool), -ENOSPC);
	unmount_scratch();
	mount_scratch(40);
	assert_int_equal(open_pool(&pool), 0);
	close_pool(pool);
	unmount_scratch();
	mount_scratch(4);
	assert_int_equal(open_pool(&pool), 0);
	assert_int_equal(env_get(pool, id, &env), -ENOSPC);
	close_pool(pool);
	unmount_scratch();
	mount_scratch(40);
	assert_int_equal(open_pool(&pool), 0);
	assert_int_equal(env_get(pool, id, &env), 0);
	assert_int_equal(count(env), VALUES);
	env_put(env);
	close_pool(pool);
	fixture_free(&f);
	unmount_scratch();
}

static void test_views_need_room(void **state)
{
	static struct view *views[1000];
	struct store *store;
	unsigned n = 0;
	int rc = 0;

	mount_scratch(4);
	assert_int_equal(store_get(scratch, 1 << 20, &store), 0);
	ballast(true);
	while (n < 1000 && !(rc = store_view_begin(store, &views[n])))
		n++;
	assert_int_equal(rc, ENOSPC);
	assert_true(n > 10);
	assert_int_equal(store_get(scratch, 1 << 20, &(struct store *){NULL}), ENOSPC);
	ballast(false);
	while (n < 1000 && !(rc = store_view_begin(store, &views[n])))
		n++;
	assert_int_equal(n, 1000);
	while (n)
		store_view_end(store, views[--n]);
	store_put(store);
	unmount_scratch();
}

/* --- the bound ---------------------------------------------------------------------------------
 */

static uint32_t chance(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

struct mix {
	unsigned keys, changes, deletes; /* percent */
	size_t value;
};

static void change_some(struct env *env, MDB_txn *txn, const struct mix *mix, uint32_t *seed)
{
	static const uint8_t value[40000];
	unsigned n = chance(seed) % mix->changes + 1;

	for (unsigned i = 0; i < n; i++) {
		uint8_t key[4];
		struct bytes k = number(key, chance(seed) % mix->keys);
		int rc;

		if (chance(seed) % 100 < mix->deletes)
			rc = env_write_delete(env, txn, k);
		else
			rc = env_write_put(env, txn, k,
				(struct bytes){value, chance(seed) % (mix->value + 1)}, 0);
		assert_true(!rc || rc == -ENOENT);
	}
}

/* A view that stays open from time to time, so that pages are not used again. */
static void check_mix(struct pool *pool, const struct mix *mix, uint32_t seed)
{
	struct view *view = NULL;
	struct env *env;

	assert_int_equal(env_create(pool, 9, NULL, &env), 0);
	for (unsigned i = 0; i < 300; i++) {
		MDB_envinfo info;
		MDB_txn *txn;

		if (!view && chance(&seed) % 8 == 0)
			assert_int_equal(env_view_begin(env, &view), 0);
		assert_int_equal(env_write_begin(env, &txn), 0);
		change_some(env, txn, mix, &seed);
		assert_int_equal(env_write_commit(env, txn), 0);
		mdb_env_info(env->store->mdb, &info);
		assert_true(info.me_last_pgno < store_room_needed(&env->store->room, 6));
		assert_true(info.me_last_pgno < env->store->backed);
		if (view && chance(&seed) % 8 == 0) {
			env_view_end(env, view);
			view = NULL;
		}
	}
	if (view)
		env_view_end(env, view);
	env_destroy(env);
}

static void test_no_transaction_takes_more(void **state)
{
	static const struct mix mixes[] = {
		{10, 3, 30, 3000},
		{20000, 5, 10, 300},
		{20000, 500, 30, 300},
		{3000, 500, 60, 1500},
		{300, 100, 50, 40000},
		{1000, 2000, 90, 2000},
		{100000, 300, 20, 20},
	};
	struct pool *pool;

	mount_scratch(512);
	fixture_make(&f, 6, 4, 2, 8u << 20, 6);
	assert_int_equal(open_pool(&pool), 0);
	for (unsigned i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++)
		for (uint32_t seed = 1; seed <= 3; seed++)
			check_mix(pool, &mixes[i], seed);
	close_pool(pool);
	fixture_free(&f);
	unmount_scratch();
}

/* Nor is it taken for much more than it may be: many changes to a large tree. */
static void test_the_bound_is_close(void **state)
{
	static const uint8_t value[300];
	struct pool *pool;
	struct env *env;
	uint32_t seed = 1;
	MDB_txn *txn;

	mount_scratch(512);
	fixture_make(&f, 6, 4, 2, 8u << 20, 7);
	assert_int_equal(open_pool(&pool), 0);
	assert_int_equal(env_create(pool, 9, NULL, &env), 0);
	for (unsigned round = 0; round < 2; round++) {
		uint8_t key[4];

		assert_int_equal(env_write_begin(env, &txn), 0);
		for (unsigned i = 0; i < (round ? 3000u : 100000u); i++)
			assert_int_equal(env_write_put(env, txn,
						 number(key, round ? chance(&seed) % 100000 : i),
						 (struct bytes){value, sizeof(value)}, 0),
				0);
		assert_int_equal(env_write_commit(env, txn), 0);
	}
	assert_in_range(env->store->room.leaves, 7000, 20000);
	assert_in_range(
		store_room_needed(&env->store->room, 0) - env->store->room.pages, 2000, 4000);
	env_destroy(env);
	close_pool(pool);
	fixture_free(&f);
	unmount_scratch();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_volumes_fill_it),
		cmocka_unit_test(test_nothing_is_left),
		cmocka_unit_test(test_loading_and_replaying),
		cmocka_unit_test(test_views_need_room),
		cmocka_unit_test(test_no_transaction_takes_more),
		cmocka_unit_test(test_the_bound_is_close),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, make_namespace, remove_scratch);
}
