/* SPDX-License-Identifier: LGPL-3.0-or-later. Images in parts: a full one and deltas. links: pool
 */
#include "test_pool_env.h"

#define MOST UINT64_MAX

/* --- written and recorded --------------------------------------------------------------------- */

static struct image recorded; /* the parts of volume 1 */

static struct txn *put_row(uint32_t part, const struct image_row *row)
{
	uint8_t key[9], value[IMAGE_ROW_SIZE];
	struct writer w = writer_on(value, sizeof(value));
	struct txn *txn = begin(NULL);

	image_row_encode(row, &w);
	assert_int_equal(txn_put(txn, fake.pool->env, key_image(key, 1, part),
				 (struct bytes){value, sizeof(value)}),
		0);
	return txn;
}

/* The next part, of that kind, becomes the newest of the image. */
static struct image_row write_part(struct env *env, uint64_t delta_most, enum image_kind kind)
{
	struct journal_position from;
	struct image_row part;

	assert_int_equal(image_write(fake.pool, env, delta_most, &part, &from), 0);
	assert_int_equal(part.kind, kind);
	assert_int_equal(part.lsn, env_applied(env));
	assert_true(fake.durable >= part.lsn);
	if (kind == IMAGE_FULL)
		recorded.count = 0;
	commit(put_row(recorded.count, &part));
	recorded.parts[recorded.count++] = part;
	env_set_image(env, &part, &from);
	return part;
}

static int setup(void **state)
{
	recorded.count = 0;
	return fake_begin(state);
}

static void delete_one(struct env *env, const char *key)
{
	struct txn *txn = begin(env);

	assert_int_equal(txn_delete(txn, env, text(key)), 0);
	commit(txn);
}

/* A volume with a thousand keys, and its full image. */
static struct env *make_full(void)
{
	struct env *env = make_volume("a");

	fill(env, 100, 20, 200);
	write_part(env, MOST, IMAGE_FULL);
	return env;
}

/* Loaded anew, it is what it was. */
static void check_loaded(struct env *env)
{
	unsigned count, loaded_count;
	uint64_t before = digest(env, &count);
	struct env *loaded;

	assert_int_equal(env_create(fake.pool, 1, &recorded, &loaded), 0);
	assert_true(digest(loaded, &loaded_count) == before);
	assert_int_equal(loaded_count, count);
	assert_int_equal(env_applied(loaded), image_lsn(&recorded));
	env_destroy(loaded);
}

/* --- what is in them ----------------------------------------------------------------------------
 */

static void test_round_trip(void **state)
{
	struct env *env = make_full(), *loaded;
	struct image_row full = recorded.parts[0], delta;
	struct image found;
	struct txn *view;

	put_one(env, "new", "1");
	put_one(env, "later deleted", "1");
	delta = write_part(env, MOST, IMAGE_DELTA);
	/* The head, two entries, the trailer. */
	assert_int_equal(delta.length, 40 + (6 + 3 + 1) + (6 + 13 + 1) + 10);
	check_loaded(env);

	put_one(env, "new", "22");
	put_one(env, "comes and goes", "1");
	delete_one(env, "comes and goes");
	delete_one(env, "later deleted");
	delta = write_part(env, MOST, IMAGE_DELTA);
	assert_int_equal(delta.length, 40 + (6 + 3 + 2) + (6 + 14) + (6 + 13) + 10);
	check_loaded(env);
	assert_int_equal(recorded.count, 3);

	assert_int_equal(view_begin(fake.pool->env, &view), 0);
	assert_int_equal(env_find_image(view, 1, &found), 0);
	txn_abort(view);
	assert_int_equal(found.count, 3);
	assert_int_equal(found.parts[0].segment, full.segment);
	assert_int_equal(found.parts[2].hash, delta.hash);
	env_put(env);
	assert_null(fake.pool->volumes);
	assert_int_equal(env_get(fake.pool, 1, &loaded), 0);
	expect(loaded, "new", "22");
	expect(loaded, "later deleted", NULL);
	expect(loaded, "comes and goes", NULL);
	env_put(loaded);
}

/* Random changes of all kinds, in many parts. */
static void test_many_parts(void **state)
{
	struct env *env = make_volume("a");

	fill(env, 300, 30, 300);
	write_part(env, MOST, IMAGE_FULL);
	for (unsigned i = 1; i < IMAGE_PARTS_MAX; i++) {
		fill(env, 2 + i, 10, 300);
		write_part(env, MOST, IMAGE_DELTA);
		check_loaded(env);
	}
	fill(env, 3, 10, 300);
	write_part(env, 0, IMAGE_FULL);
	assert_int_equal(recorded.count, 1);
	check_loaded(env);
	env_put(env);
}

/* Whatever the environment holds besides: the bytes are those of the change. */
static void test_bytes_are_those_of_the_change(void **state)
{
	static const unsigned sizes[] = {10000, 100000};
	uint64_t lengths[2];

	fake.segment_size = 1 << 20;
	for (unsigned i = 0; i < 2; i++) {
		struct env *env = make_volume(i ? "b" : "a");
		struct journal_position from;
		struct image_row part;
		struct txn *txn = NULL;

		for (unsigned n = 0; n < sizes[i]; n++) {
			char key[16];

			txn = txn ? txn : begin(env);
			snprintf(key, sizeof(key), "k%08u", n);
			assert_int_equal(txn_put(txn, env, text(key), text("a value")), 0);
			if (n % 1000 == 999) {
				commit(txn);
				txn = NULL;
			}
		}
		assert_int_equal(image_write(fake.pool, env, MOST, &part, &from), 0);
		assert_int_equal(part.kind, IMAGE_FULL);
		env_set_image(env, &part, &from);
		lengths[i] = atomic_load(&fake.pool->image_bytes);
		for (unsigned n = 0; n < 100; n++) {
			char key[16];

			snprintf(key, sizeof(key), "k%08u", n * 97);
			put_one(env, key, "another");
		}
		assert_int_equal(image_write(fake.pool, env, MOST, &part, &from), 0);
		lengths[i] = atomic_load(&fake.pool->image_bytes) - lengths[i];
		assert_int_equal(lengths[i], part.length);
		env_put(env);
	}
	assert_int_equal(lengths[0], 40 + 100 * (6 + 9 + 7) + 10);
	assert_int_equal(lengths[1], lengths[0]);
}

/* --- when a full one is written ------------------------------------------------------------------
 */

static void test_a_delta_that_is_too_large(void **state)
{
	struct env *env = make_full();
	uint64_t length;

	put_one(env, "k", "v");
	length = 40 + (6 + 1 + 1) + 10;
	write_part(env, length - 1, IMAGE_FULL);
	put_one(env, "k", "w");
	write_part(env, length, IMAGE_DELTA);
	put_one(env, "k", "x");
	write_part(env, 0, IMAGE_FULL);
	check_loaded(env);
	env_put(env);
}

static void put_long(struct env *env, unsigned count, const char *value)
{
	struct txn *txn = begin(env);

	for (unsigned i = 0; i < count; i++) {
		char key[128];

		snprintf(key, sizeof(key), "%0120u", i);
		assert_int_equal(txn_put(txn, env, text(key), text(value)), 0);
	}
	commit(txn);
}

/* Keys that would take more than a quarter of the environment are not kept. */
static void test_too_much_has_changed(void **state)
{
	struct env *env = make_volume("a");

	put_long(env, 1000, "one");
	write_part(env, MOST, IMAGE_FULL);
	put_long(env, 100, "two");
	write_part(env, MOST, IMAGE_DELTA);
	put_long(env, 1000, "three");
	assert_null(env->changed);
	write_part(env, MOST, IMAGE_FULL);
	put_long(env, 100, "four");
	write_part(env, MOST, IMAGE_DELTA);
	check_loaded(env);
	env_put(env);
}

/* What changed before an image that was not recorded is in the next one. */
static void test_an_image_is_lost(void **state)
{
	struct env *env = make_full();
	struct journal_position from;
	struct image_row part;

	log_set_sink(quiet);
	put_one(env, "a", "1");
	fake.append_error = -ENOSPC;
	assert_int_equal(image_write(fake.pool, env, MOST, &part, &from), -ENOSPC);
	fake.append_error = 0;
	put_one(env, "b", "1");
	write_part(env, MOST, IMAGE_FULL);
	check_loaded(env);
	put_one(env, "c", "1");
	assert_int_equal(image_write(fake.pool, env, MOST, &part, &from), 0);
	assert_int_equal(part.kind, IMAGE_DELTA);
	image_forget(fake.pool, &part);
	put_one(env, "d", "1");
	write_part(env, MOST, IMAGE_FULL);
	check_loaded(env);
	log_set_sink(NULL);
	env_put(env);
}

/* --- after a crash -------------------------------------------------------------------------------
 */

/* Replay adds what is behind the last part, and the next part has just that. */
static void test_replay_goes_on_from_the_last_part(void **state)
{
	struct env *env = make_full();
	struct image_row part;
	uint64_t before, lsn;
	unsigned count;

	put_one(env, "one", "1");
	write_part(env, MOST, IMAGE_DELTA);
	put_one(env, "two", "2");
	lsn = put_one(env, "one", "11");
	before = digest(env, &count);
	env_put(env);
	fake_close(fake.pool);

	fake_open(2);
	replay_all();
	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	assert_true(digest(env, &count) == before);
	assert_int_equal(env_applied(env), lsn);
	part = write_part(env, MOST, IMAGE_DELTA);
	assert_int_equal(part.length, 40 + (6 + 3 + 2) + (6 + 3 + 1) + 10);
	check_loaded(env);
	env_put(env);
}

/* --- what is wrong with them ---------------------------------------------------------------------
 */

static int load(const struct image *image)
{
	struct env *env;
	int rc = env_create(fake.pool, 1, image, &env);

	if (!rc)
		env_destroy(env);
	return rc;
}

static struct env *make_parts(void)
{
	struct env *env = make_volume("a");
	struct txn *txn = begin(env);

	for (unsigned i = 0; i < 200; i++) {
		char key[16];

		snprintf(key, sizeof(key), "k%03u", i);
		assert_int_equal(txn_put(txn, env, text(key), text("0123456789")), 0);
	}
	commit(txn);
	write_part(env, MOST, IMAGE_FULL);
	put_one(env, "new", "1");
	delete_one(env, "k001");
	write_part(env, MOST, IMAGE_DELTA);
	put_one(env, "new", "2");
	delete_one(env, "k002");
	write_part(env, MOST, IMAGE_DELTA);
	return env;
}

static void test_broken_deltas(void **state)
{
	struct env *env = make_parts();

	log_set_sink(quiet);
	for (unsigned part = 1; part < 3; part++) {
		const struct image_row *row = &recorded.parts[part];
		uint8_t *bytes = fake.bytes[row->segment];

		for (size_t bit = 0; bit < row->length * 8; bit++) {
			int rc;

			bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
			rc = load(&recorded);
			assert_true(rc == -EBADMSG || rc == -ENOTSUP);
			format_waive_checksums = true;
			load(&recorded);
			format_waive_checksums = false;
			bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		}
	}
	assert_int_equal(load(&recorded), 0);
	log_set_sink(NULL);
	env_put(env);
}

/* Each part says which one it goes on from. */
static void test_parts_in_disorder(void **state)
{
	struct env *env = make_parts();
	struct image wrong = {.count = 3};

	log_set_sink(quiet);
	format_waive_checksums = true;
	for (unsigned order = 0; order < 27; order++) {
		unsigned a = order / 9, b = order / 3 % 3, c = order % 3;

		wrong.parts[0] = recorded.parts[a];
		wrong.parts[1] = recorded.parts[b];
		wrong.parts[2] = recorded.parts[c];
		assert_int_equal(load(&wrong), !a && b == 1 && c == 2 ? 0 : -EBADMSG);
	}
	wrong = recorded;
	wrong.parts[1] = wrong.parts[2];
	wrong.count = 2;
	assert_int_equal(load(&wrong), -EBADMSG);
	format_waive_checksums = false;
	log_set_sink(NULL);
	env_put(env);
}

static int find(struct image *image)
{
	struct txn *view;
	int rc;

	assert_int_equal(view_begin(fake.pool->env, &view), 0);
	rc = env_find_image(view, 1, image);
	txn_abort(view);
	return rc;
}

static void delete_row(uint32_t part)
{
	struct txn *txn = begin(NULL);
	uint8_t key[9];

	assert_int_equal(txn_delete(txn, fake.pool->env, key_image(key, 1, part)), 0);
	commit(txn);
}

static void test_rows_that_are_missing(void **state)
{
	struct env *env = make_parts();
	struct image found;

	delete_row(1);
	assert_int_equal(find(&found), -EBADMSG);
	commit(put_row(1, &recorded.parts[0])); /* not a delta */
	assert_int_equal(find(&found), -EBADMSG);
	commit(put_row(1, &recorded.parts[1]));
	delete_row(0);
	assert_int_equal(find(&found), -EBADMSG);
	commit(put_row(0, &recorded.parts[1])); /* not a full one */
	assert_int_equal(find(&found), -EBADMSG);
	commit(put_row(0, &recorded.parts[0]));
	assert_int_equal(find(&found), 0);
	assert_int_equal(found.count, 3);
	for (uint32_t part = 3; part <= IMAGE_PARTS_MAX; part++)
		commit(put_row(part, &recorded.parts[2]));
	assert_int_equal(find(&found), -EBADMSG);
	env_put(env);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fake_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_round_trip),
		TEST(test_many_parts),
		TEST(test_bytes_are_those_of_the_change),
		TEST(test_a_delta_that_is_too_large),
		TEST(test_too_much_has_changed),
		TEST(test_an_image_is_lost),
		TEST(test_replay_goes_on_from_the_last_part),
		TEST(test_broken_deltas),
		TEST(test_parts_in_disorder),
		TEST(test_rows_that_are_missing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
