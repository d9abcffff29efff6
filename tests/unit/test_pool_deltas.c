/* SPDX-License-Identifier: LGPL-3.0-or-later. Checkpoints that write deltas. links: pool */
#include "pool_values.h"

#include "common/log.h"

static void quiet(enum log_level level, const char *line)
{
}

static int setup(void **state)
{
	log_set_sink(quiet);
	return 0;
}

static int teardown(void **state)
{
	log_set_sink(NULL);
	return 0;
}

/* --- a pool with a volume that has an image --------------------------------------------------- */

#define KEYS 100u /* an image of three segments */

struct scene {
	struct fixture f;
	struct pool *pool;
	uint32_t volume;
	struct env *env;
};

static uint32_t add_volume(struct pool *pool, const char *name, unsigned keys, struct env **env)
{
	uint32_t volume = fixture_make_volume(pool, name);
	int rc;

	*env = get_env(pool, volume);
	fill_env(pool, *env, 0, keys, &rc);
	assert_int_equal(rc, 0);
	return volume;
}

static void scene_make(struct scene *s, uint64_t size)
{
	fixture_make_with(&s->f, 6, 4, 2, size, size / 4, 1);
	s->pool = fixture_must_open(&s->f);
	s->volume = add_volume(s->pool, "v", KEYS, &s->env);
	assert_int_equal(pool_checkpoint(s->pool), 0);
}

static void scene_free(struct scene *s)
{
	env_put(s->env);
	close_pool(s->pool);
	fixture_free(&s->f);
}

static void scene_crash(struct scene *s)
{
	env_put(s->env);
	s->pool = crash(&s->f, s->pool);
	s->env = get_env(s->pool, s->volume);
}

static unsigned parts(struct env *env)
{
	struct image image;

	env_image(env, &image);
	return image.count;
}

static uint64_t last_length(struct env *env)
{
	struct image image;

	env_image(env, &image);
	return image.parts[image.count - 1].length;
}

static unsigned segments_of_parts(struct pool *pool, struct env *env, unsigned from)
{
	uint64_t segment = (uint64_t)4 * pool->header.cell * pool->header.slot_rows;
	struct image image;
	unsigned count = 0;

	env_image(env, &image);
	for (unsigned i = from; i < image.count; i++)
		count += (unsigned)((image.parts[i].length + segment - 1) / segment);
	return count;
}

/* Nothing of an image is left but what is named. */
static void check_segments(const struct scene *s)
{
	assert_int_equal(image_segments(s->pool),
		s->pool->label.root_segment_count + segments_of_parts(s->pool, s->env, 0));
	assert_int_equal(s->pool->delta_segments, segments_of_parts(s->pool, s->env, 1));
}

static void change_and_checkpoint(const struct scene *s, unsigned from, unsigned count)
{
	for (unsigned i = from; i < from + count; i++)
		assert_int_equal(change(s->pool, s->env, i, true), 0);
	assert_int_equal(pool_checkpoint(s->pool), 0);
}

/* --- which are written --------------------------------------------------------------------------
 */

/* As many as there may be, each as large as the others; then a full one, which frees them. */
static void test_a_delta_each_time(void **state)
{
	struct scene s;

	scene_make(&s, 64 << 20);
	assert_int_equal(parts(s.env), 1);
	for (unsigned i = 1; i < IMAGE_PARTS_MAX; i++) {
		uint64_t before = atomic_load(&s.pool->image_bytes);

		change_and_checkpoint(&s, i, 1);
		assert_int_equal(parts(s.env), i + 1);
		assert_int_equal(last_length(s.env), 40 + 6 + 9 + VALUE + 10);
		assert_int_equal(atomic_load(&s.pool->image_bytes) - before,
			last_length(s.env) + s.pool->label.root.length);
		check_segments(&s);
		if (i % 4 == 0) {
			scene_crash(&s);
			check_env(s.env, 0, KEYS);
			assert_int_equal(parts(s.env), i + 1);
		}
	}
	change_and_checkpoint(&s, 0, 1);
	assert_int_equal(parts(s.env), 1);
	check_segments(&s);
	scene_crash(&s);
	check_env(s.env, 0, KEYS);
	scene_free(&s);
}

/* Together they are not larger than a quarter of the full one. */
static void test_a_quarter(void **state)
{
	struct scene s;

	scene_make(&s, 64 << 20);
	change_and_checkpoint(&s, 0, 12);
	assert_int_equal(parts(s.env), 2);
	change_and_checkpoint(&s, 12, 12);
	assert_int_equal(parts(s.env), 3);
	change_and_checkpoint(&s, 24, 1);
	assert_int_equal(parts(s.env), 1);
	change_and_checkpoint(&s, 0, 30);
	assert_int_equal(parts(s.env), 1);
	check_segments(&s);
	scene_free(&s);
}

/* A delta of an image of a row would cost as much. */
static void test_a_small_image(void **state)
{
	struct scene s;
	struct env *small;

	scene_make(&s, 64 << 20);
	add_volume(s.pool, "small", 4, &small);
	assert_int_equal(pool_checkpoint(s.pool), 0);
	assert_int_equal(change(s.pool, small, 1, false), 0);
	assert_int_equal(pool_checkpoint(s.pool), 0);
	assert_int_equal(parts(small), 1);
	env_put(small);
	scene_free(&s);
}

/* The records since the last part are replayed, and the next part has them. */
static void test_a_crash_before_a_delta(void **state)
{
	struct scene s;

	scene_make(&s, 64 << 20);
	change_and_checkpoint(&s, 0, 2);
	assert_int_equal(change(s.pool, s.env, 3, true), 0);
	assert_int_equal(change(s.pool, s.env, 4, false), 0);
	assert_int_equal(change(s.pool, s.env, KEYS, true), 0);
	assert_int_equal(pool_sync(s.pool, pool_lsn(s.pool)), 0);
	scene_crash(&s);
	assert_int_equal(parts(s.env), 2);
	assert_int_equal(pool_checkpoint(s.pool), 0);
	assert_int_equal(parts(s.env), 3);
	assert_int_equal(last_length(s.env), 40 + 2 * (6 + 9 + VALUE) + (6 + 9) + 10);
	scene_crash(&s);
	check_env(s.env, 0, 4);
	check_env(s.env, 5, KEYS + 1);
	assert_int_equal(change(s.pool, s.env, 4, false), -ENOENT);
	scene_free(&s);
}

/* A dataset has one part. */
static void test_a_volume_is_sealed(void **state)
{
	struct scene s;

	scene_make(&s, 64 << 20);
	change_and_checkpoint(&s, 0, 2);
	assert_int_equal(change(s.pool, s.env, KEYS, true), 0);
	assert_int_equal(pool_seal(s.pool, s.volume), 0);
	assert_int_equal(parts(s.env), 1);
	check_segments(&s);
	scene_crash(&s);
	assert_int_equal(parts(s.env), 1);
	check_env(s.env, 0, KEYS + 1);
	scene_free(&s);
}

/* Its deltas go with it, and are not counted any more. */
static void test_a_volume_is_destroyed(void **state)
{
	struct scene s;
	struct env *other;
	uint32_t volume;

	scene_make(&s, 64 << 20);
	volume = add_volume(s.pool, "w", KEYS, &other);
	assert_int_equal(pool_checkpoint(s.pool), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(change(s.pool, other, i, true), 0);
		change_and_checkpoint(&s, i, 1);
	}
	assert_int_equal(parts(other), 4);
	assert_int_equal(s.pool->delta_segments, 6);
	env_put(other);
	delete_volume(s.pool, volume);
	assert_int_equal(pool_maintain(s.pool), 0);
	assert_int_equal(s.pool->delta_segments, 3);
	check_segments(&s);
	scene_free(&s);
}

static void set_properties(struct pool *pool, uint32_t volume)
{
	struct txn *txn;
	uint64_t lsn;
	char name[8];

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "q%u", i);
		assert_int_equal(property_set(txn, volume, name, "1"), 0);
	}
	assert_int_equal(txn_commit(txn, &lsn), 0);
}

/* Leaves the transaction so much room. */
static void use_up_room(struct txn *txn, size_t leave)
{
	static const uint8_t bytes[3000];
	struct env *own = pool_env(txn_pool(txn));

	for (unsigned i = 0; txn_room(txn) > leave + 40; i++) {
		size_t length = txn_room(txn) - leave - TXN_CHANGE_OVERHEAD - 7;
		char key[16];

		snprintf(key, sizeof(key), "~%06u", i);
		assert_int_equal(txn_put(txn, own, (struct bytes){key, 7},
					 (struct bytes){bytes, length < 3000 ? length : 3000}),
			0);
	}
}

/* The first step of a deletion ends anywhere: what is left of the image is nobody's any more, and
 * what the journal has for the volume neither. Returns whether there are more steps. */
static bool delete_in_steps(struct scene *s, size_t leave)
{
	struct txn *txn;
	uint64_t lsn;
	int rc;

	scene_make(s, 64 << 20);
	change_and_checkpoint(s, 1, 1);
	set_properties(s->pool, s->volume);
	assert_int_equal(change(s->pool, s->env, 2, false), 0);
	assert_int_equal(parts(s->env), 2);
	env_put(s->env);
	assert_int_equal(txn_begin(s->pool, NULL, &txn), 0);
	use_up_room(txn, leave);
	rc = volume_row_delete(txn, s->volume);
	assert_true(!rc || rc == -EAGAIN);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(s->pool, lsn), 0);
	return rc;
}

static void test_a_deletion_is_cut_short(void **state)
{
	unsigned cut = 0;

	for (size_t leave = 5200; leave > 4096; leave -= 16) {
		bool checkpointed = leave % 32 == 0;
		struct scene s;

		if (delete_in_steps(&s, leave)) {
			cut++;
			if (checkpointed)
				assert_int_equal(pool_checkpoint(s.pool), 0);
			s.pool = crash(&s.f, s.pool);
			assert_int_equal(env_get(s.pool, s.volume, &s.env), -ENOENT);
			delete_volume(s.pool, s.volume);
		}
		assert_int_equal(pool_maintain(s.pool), 0);
		assert_int_equal(image_segments(s.pool), s.pool->label.root_segment_count);
		close_pool(s.pool);
		fixture_free(&s.f);
	}
	assert_true(cut >= 20);
}

/* --- room ---------------------------------------------------------------------------------------
 */

/* All volumes together have so many; who comes later has a full one. */
static void test_deltas_of_many_volumes(void **state)
{
	struct env *envs[40];
	struct scene s;
	unsigned deltas = 0;

	scene_make(&s, 64 << 20);
	for (unsigned i = 0; i < 40; i++) {
		char name[16];

		snprintf(name, sizeof(name), "w%u", i);
		add_volume(s.pool, name, 40, &envs[i]);
	}
	assert_int_equal(pool_checkpoint(s.pool), 0);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(change(s.pool, envs[i], 1, true), 0);
	assert_int_equal(pool_checkpoint(s.pool), 0);
	for (unsigned i = 0; i < 40; i++) {
		deltas += parts(envs[i]) - 1;
		env_put(envs[i]);
	}
	assert_in_range(s.pool->reserve_segments, 10, 39);
	assert_int_equal(deltas, s.pool->reserve_segments);
	assert_int_equal(s.pool->delta_segments, deltas);
	scene_free(&s);
}

/* A quarter of its segments may be deltas', where there are no others. */
static void test_deltas_of_a_large_volume(void **state)
{
	struct scene s;

	scene_make(&s, 64 << 20);
	s.pool->reserve_segments = 0;
	change_and_checkpoint(&s, 0, 1);
	assert_int_equal(parts(s.env), 2);
	change_and_checkpoint(&s, 1, 1);
	assert_int_equal(parts(s.env), 1);
	check_segments(&s);
	scene_free(&s);
}

/* With deltas there the pool is filled; then they go, and what is there can be deleted. */
static void test_a_full_pool(void **state)
{
	struct scene s;
	uint32_t data;

	scene_make(&s, 24 << 20);
	data = fixture_make_volume(s.pool, "data");
	for (unsigned i = 0; i < 3; i++)
		change_and_checkpoint(&s, i, 1);
	assert_int_equal(parts(s.env), 4);
	fill_pool(s.pool, data);
	scene_crash(&s);
	assert_int_equal(parts(s.env), 4);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(change(s.pool, s.env, i, false), 0);
	assert_int_equal(pool_checkpoint(s.pool), 0);
	assert_int_equal(parts(s.env), 1);
	check_segments(&s);
	delete_volume(s.pool, data);
	assert_int_equal(pool_checkpoint(s.pool), 0);
	change_and_checkpoint(&s, 20, 1);
	assert_int_equal(parts(s.env), 2);
	scene_crash(&s);
	check_env(s.env, 10, KEYS);
	scene_free(&s);
}

/* --- devices that go, blocks that rot ----------------------------------------------------------
 */

/* Between the parts, so that each lies on fewer. */
static void test_devices_die_between_parts(void **state)
{
	struct scene s;

	scene_make(&s, 64 << 20);
	change_and_checkpoint(&s, 0, 1);
	sim_kill_device(s.f.world, "d0");
	assert_int_equal(pool_maintain(s.pool), 0);
	change_and_checkpoint(&s, 1, 1);
	sim_kill_device(s.f.world, "d1");
	assert_int_equal(pool_maintain(s.pool), 0);
	change_and_checkpoint(&s, 2, 1);
	assert_int_equal(parts(s.env), 4);
	scene_crash(&s);
	check_env(s.env, 0, KEYS);
	assert_int_equal(parts(s.env), 4);
	change_and_checkpoint(&s, 0, 50);
	assert_int_equal(parts(s.env), 1);
	check_env(s.env, 0, KEYS);
	scene_free(&s);
}

/* Of each part, on each of its chunks: pool_check() reads them all. */
static void test_parts_are_checked(void **state)
{
	struct pool_check_report report;
	struct segment *segment;
	struct image image;
	struct error error;
	struct scene s;

	scene_make(&s, 64 << 20);
	for (unsigned i = 0; i < 3; i++)
		change_and_checkpoint(&s, i, 1);
	env_image(s.env, &image);
	assert_int_equal(image.count, 4);
	sim_settle(s.f.world);
	for (unsigned i = 0; i < image.count; i++) {
		segment = segment_get(s.pool, image.parts[i].segment);
		assert_non_null(segment);
		sim_rot(s.f.world, s.f.names[segment->row.chunks[i].device],
			segment_block_offset(s.pool, segment, i, 0), BLOCK_SIZE, i);
		segment_put(segment);
	}
	memset(&report, 0, sizeof(report));
	assert_int_equal(pool_check(s.pool, true, &report, NULL, NULL, &error), 0);
	assert_int_equal(report.bad_blocks, 4);
	assert_int_equal(report.repaired_blocks, 4);
	assert_int_equal(report.lost_blocks, 0);
	memset(&report, 0, sizeof(report));
	assert_int_equal(pool_check(s.pool, false, &report, NULL, NULL, &error), 0);
	assert_int_equal(report.bad_blocks, 0);
	scene_free(&s);
}

/* A part that cannot be read is missed: what the others have is not taken for the volume. */
static void test_a_part_is_lost(void **state)
{
	struct scene s;
	struct image image;
	struct segment *segment;

	scene_make(&s, 64 << 20);
	change_and_checkpoint(&s, 0, 1);
	change_and_checkpoint(&s, 1, 1);
	env_image(s.env, &image);
	env_put(s.env);
	close_pool(s.pool);
	s.pool = fixture_must_open(&s.f);
	segment = segment_get(s.pool, image.parts[1].segment);
	assert_non_null(segment);
	sim_settle(s.f.world);
	for (unsigned i = 0; i < 3; i++)
		sim_rot(s.f.world, s.f.names[segment->row.chunks[i].device],
			segment_block_offset(s.pool, segment, i, 0), BLOCK_SIZE, i);
	segment_put(segment);
	assert_int_equal(env_get(s.pool, s.volume, &s.env), -EIO);
	close_pool(s.pool);
	fixture_free(&s.f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_delta_each_time),
		cmocka_unit_test(test_a_quarter),
		cmocka_unit_test(test_a_small_image),
		cmocka_unit_test(test_a_crash_before_a_delta),
		cmocka_unit_test(test_a_volume_is_sealed),
		cmocka_unit_test(test_a_volume_is_destroyed),
		cmocka_unit_test(test_a_deletion_is_cut_short),
		cmocka_unit_test(test_deltas_of_many_volumes),
		cmocka_unit_test(test_deltas_of_a_large_volume),
		cmocka_unit_test(test_a_full_pool),
		cmocka_unit_test(test_devices_die_between_parts),
		cmocka_unit_test(test_parts_are_checked),
		cmocka_unit_test(test_a_part_is_lost),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
