/* SPDX-License-Identifier: LGPL-3.0-or-later. Images of environments. links: pool */
#include "test_pool_env.h"

/* --- images ------------------------------------------------------------------------------------
 */

static void record_part(uint32_t volume, uint32_t part, const struct image_row *row)
{
	uint8_t key[9], value[IMAGE_ROW_SIZE];
	struct writer w = writer_on(value, sizeof(value));
	struct txn *txn = begin(NULL);

	image_row_encode(row, &w);
	assert_true(w.at == value + sizeof(value) && !w.overflow);
	assert_int_equal(txn_put(txn, fake.pool->env, key_image(key, volume, part),
				 (struct bytes){value, sizeof(value)}),
		0);
	commit(txn);
}

static void record_image(uint32_t volume, const struct image_row *image)
{
	record_part(volume, 0, image);
}

static int load_new(uint32_t volume, const struct image_row *full, struct env **env)
{
	struct image image = {.count = 1, .parts = {*full}};

	return env_create(fake.pool, volume, &image, env);
}

static int check_segment(void *data, struct segment *segment)
{
	assert_int_equal(segment->row.state, SEGMENT_CLOSED);
	assert_true(segment->row.live > 0 && segment->row.live <= fake.segment_size);
	++*(unsigned *)data;
	return 0;
}

static unsigned segments_of(const struct image_row *image)
{
	unsigned count = 0;

	assert_int_equal(image_each(fake.pool, image, check_segment, &count), 0);
	return count;
}

static void write_image(struct env *env, struct image_row *image, struct journal_position *from)
{
	unsigned before = fake.closed;
	uint64_t abandoned = fake.abandoned;

	assert_int_equal(image_write(fake.pool, env, 0, image, from), 0);
	assert_int_equal(image->kind, IMAGE_FULL);
	assert_int_equal(image->lsn, env_applied(env));
	assert_true(fake.durable >= image->lsn);
	assert_true(from->lsn <= fake.lsn + 1);
	assert_true(fake.closed > before);
	assert_int_equal(fake.closed - before, segments_of(image));
	assert_int_equal(fake.abandoned - abandoned, image->length);
	assert_int_equal(fake.streams, 0);
}

static void test_image_round_trip(void **state)
{
	struct env *env = make_volume("a"), *loaded;
	struct journal_position from;
	struct image_row image;
	uint64_t before, lsn;
	unsigned count, loaded_count;

	fake.segment_size = 700000;
	fill(env, 300, 30, 900);
	before = digest(env, &count);
	assert_true(count > 3000);
	write_image(env, &image, &from);
	assert_true(segments_of(&image) > 1);
	record_image(1, &image);
	env_set_image(env, &image, &from);
	lsn = env_applied(env);
	env_put(env);
	assert_null(fake.pool->volumes);

	assert_int_equal(env_get(fake.pool, 1, &loaded), 0);
	assert_true(digest(loaded, &loaded_count) == before);
	assert_int_equal(loaded_count, count);
	assert_int_equal(env_applied(loaded), lsn);
	assert_false(env_replay_from(loaded, &from));
	put_one(loaded, "k", "v");
	expect(loaded, "k", "v");
	env_put(loaded);
}

static void test_image_and_the_journal_after_it(void **state)
{
	struct env *env = make_volume("a");
	struct journal_position from, own_from;
	struct image_row image, own;
	uint64_t volume_digest, own_digest, lsn;
	unsigned count;

	fill(env, 50, 10, 100);
	write_image(env, &image, &from);
	record_image(1, &image);
	fill(env, 50, 10, 100);
	write_image(fake.pool->env, &own, &own_from);
	fill(env, 20, 10, 100);
	put_one(env, "last", "x");
	lsn = fake.lsn;
	volume_digest = digest(env, &count);
	own_digest = digest(fake.pool->env, &count);
	env_put(env);
	fake_close(fake.pool);

	fake_open(2);
	env_destroy(fake.pool->env);
	assert_int_equal(load_new(0, &own, &fake.pool->env), 0);
	replay_all();
	check_replayed(volume_digest, own_digest, lsn);
}

/* An image that has everything is not loaded just because old records name its volume. */
static void test_replay_loads_only_what_it_must(void **state)
{
	struct env *env = make_volume("a");
	struct journal_position from;
	struct image_row image;

	put_one(env, "k", "v");
	write_image(env, &image, &from);
	record_image(1, &image);
	env_put(env);
	fake_close(fake.pool);
	fake_open(2);
	replay_all();
	assert_null(fake.pool->volumes);
	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	expect(env, "k", "v");
	env_put(env);
}

static void test_image_of_nothing(void **state)
{
	struct env *env = make_volume("a"), *loaded;
	struct journal_position from;
	struct image_row image;
	unsigned count;

	write_image(env, &image, &from);
	assert_int_equal(load_new(1, &image, &loaded), 0);
	digest(loaded, &count);
	assert_int_equal(count, 0);
	env_destroy(loaded);
	env_put(env);
}

static void test_large_values_cross_pieces(void **state)
{
	struct env *env = make_volume("a"), *loaded;
	struct journal_position from;
	struct image_row image;
	unsigned count, loaded_count;
	uint64_t before;

	fake.segment_size = 1500000;
	fake.pool->k = 32; /* a record that holds a large value */
	fill(env, 40, 4, 180000);
	before = digest(env, &count);
	write_image(env, &image, &from);
	assert_int_equal(load_new(1, &image, &loaded), 0);
	assert_true(digest(loaded, &loaded_count) == before);
	assert_int_equal(loaded_count, count);
	env_destroy(loaded);
	env_put(env);
}

static void test_image_is_a_snapshot(void **state)
{
	struct env *env = make_volume("a");
	struct view *view;
	MDB_txn *lock;

	/* What image_write() does first: a look under the write lock outlives it. */
	put_one(env, "k", "old");
	assert_int_equal(env_write_begin(env, &lock), 0);
	assert_int_equal(env_view_begin(env, &view), 0);
	env_write_abort(env, lock);
	put_one(env, "k", "new");
	MDB_val key = {1, "k"}, value;
	assert_int_equal(mdb_get(view->txn, env->store->dbi, &key, &value), 0);
	assert_memory_equal(value.mv_data, "old", 3);
	env_view_end(env, view);
	expect(env, "k", "new");
	env_put(env);
}

static int load_copy(const struct image_row *image)
{
	struct env *loaded;
	int rc = load_new(1, image, &loaded);

	if (!rc)
		env_destroy(loaded);
	return rc;
}

static struct env *small_image(struct image_row *image)
{
	struct env *env = make_volume("a");
	struct journal_position from;

	put_one(env, "alpha", "1");
	put_one(env, "beta", "22");
	put_one(env, "gamma", "");
	write_image(env, image, &from);
	return env;
}

static void test_broken_images(void **state)
{
	struct image_row image, row;
	struct env *env = small_image(&image);
	uint8_t *bytes = fake.bytes[image.segment];

	log_set_sink(quiet);
	assert_int_equal(load_copy(&image), 0);
	for (size_t bit = 0; bit < image.length * 8; bit++) {
		int rc;

		bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		rc = load_copy(&image);
		assert_true(rc == -EBADMSG || rc == -ENOTSUP);
		format_waive_checksums = true;
		load_copy(&image);
		format_waive_checksums = false;
		bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	for (uint64_t length = 0; length < image.length; length++) {
		row = image;
		row.length = fake.segments[row.segment]->row.live = length;
		format_waive_checksums = true;
		assert_int_equal(load_copy(&row), -EBADMSG);
		format_waive_checksums = false;
	}
	fake.segments[image.segment]->row.live = image.length;
	row = image;
	row.length--;
	assert_int_equal(load_copy(&row), -EBADMSG);
	row = image;
	row.kind = IMAGE_DELTA;
	assert_int_equal(load_copy(&row), -EBADMSG);
	row = image;
	row.lsn++;
	assert_int_equal(load_copy(&row), -EBADMSG);
	row = image;
	row.segment = 4000;
	assert_int_equal(load_copy(&row), -EBADMSG);
	fake.segments[image.segment]->row.next = image.segment;
	assert_int_equal(load_copy(&image), -EBADMSG);
	fake.segments[image.segment]->row.next = 0;
	assert_int_equal(load_copy(&image), 0);
	log_set_sink(NULL);
	env_put(env);
}

static void test_broken_image_leaves_nothing(void **state)
{
	struct image whole = {.count = 1};
	struct image_row image;
	struct env *env = small_image(&image), *other;
	unsigned count;

	log_set_sink(quiet);
	record_image(1, &image);
	env_set_image(env, &image, &(struct journal_position){0});
	env_put(env);
	fake.bytes[image.segment][image.length - 1] ^= 1;
	assert_int_equal(env_get(fake.pool, 1, &env), -EBADMSG);
	assert_null(fake.pool->volumes);
	assert_int_equal(env_create(fake.pool, 1, NULL, &other), 0);
	whole.parts[0] = image;
	assert_int_equal(image_load(fake.pool, other, &whole), -EBADMSG);
	digest(other, &count);
	assert_int_equal(count, 0);
	env_destroy(other);
	fake.bytes[image.segment][image.length - 1] ^= 1;
	assert_int_equal(env_get(fake.pool, 1, &env), 0);
	expect(env, "beta", "22");
	env_put(env);
	log_set_sink(NULL);
}

static int count_entry(void *data, struct bytes key, struct bytes value)
{
	++*(unsigned *)data;
	return 0;
}

static void test_image_fed_byte_by_byte(void **state)
{
	struct image_row image;
	struct env *env = small_image(&image);
	unsigned count = 0;
	struct image_decoder decoder = {.entry = count_entry, .data = &count};

	for (size_t i = 0; i < image.length; i++) {
		assert_int_equal(image_decode_end(&decoder), -EBADMSG);
		assert_int_equal(image_decode(&decoder, fake.bytes[image.segment] + i, 1), 0);
	}
	assert_int_equal(image_decode_end(&decoder), 0);
	assert_int_equal(count, 3);
	assert_int_equal(decoder.head.volume, 1);
	assert_int_equal(image_decode(&decoder, "x", 1), -EBADMSG);
	image_decoder_release(&decoder);
	env_put(env);
}

static void test_image_that_cannot_be_written(void **state)
{
	struct image_row image;
	struct journal_position from;
	struct env *env = make_volume("a");
	unsigned closed;

	log_set_sink(quiet);
	fill(env, 100, 10, 500);
	fake.append_error = -ENOSPC;
	assert_int_equal(image_write(fake.pool, env, 0, &image, &from), -ENOSPC);
	assert_int_equal(image.kind, 0);
	assert_int_equal(fake.streams, 0);
	assert_int_equal(fake.closed, 0);
	fake.append_error = 0;
	write_image(env, &image, &from);
	closed = fake.closed;
	assert_int_equal(segments_of(&image), closed);
	log_set_sink(NULL);
	env_put(env);
}

static unsigned live_segments(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < FAKE_SEGMENTS; i++)
		count += fake.segments[i] && fake.segments[i]->row.live;
	return count;
}

static int put_segment(void *data, struct segment *segment)
{
	uint8_t key[9];

	return txn_put(data, fake.pool->env, fake_key(key, KEY_SEGMENT, segment->id), text("row"));
}

/* At once; or left to maintenance, without live bytes. */
static void test_image_is_freed(void **state)
{
	struct image_row image;
	struct journal_position from;
	struct env *env = make_volume("a");
	struct txn *txn;
	unsigned before;

	fake.segment_size = 80000;
	fill(env, 300, 30, 900);
	write_image(env, &image, &from);
	before = live_segments();
	assert_true(before > 10);
	txn = begin(NULL);
	assert_int_equal(image_each(fake.pool, &image, put_segment, txn), 0);
	commit(txn);
	image_free(fake.pool, &(struct image){.count = 1, .parts = {image}});
	assert_int_equal(fake.freed, before);
	assert_int_equal(live_segments(), 0);
	write_image(env, &image, &from);
	image_forget(fake.pool, &image);
	assert_int_equal(fake.freed, before);
	assert_int_equal(live_segments(), 0);
	env_put(env);
}

/* --- threads -----------------------------------------------------------------------------------
 */

/* Many ask for the same volume at once: it is loaded once. */
static void *get_and_put(void *data)
{
	for (unsigned i = 0; i < 200; i++) {
		struct env *env;

		assert_int_equal(env_get(fake.pool, 1, &env), 0);
		expect(env, "beta", "22");
		env_put(env);
	}
	return NULL;
}

static void test_threads_that_load(void **state)
{
	struct image_row image;
	struct env *env = small_image(&image);
	pthread_t threads[4];

	record_image(1, &image);
	env_set_image(env, &image, &(struct journal_position){0});
	env_put(env);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, get_and_put, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_null(fake.pool->volumes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_begin, fake_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_image_round_trip),
		TEST(test_image_and_the_journal_after_it),
		TEST(test_replay_loads_only_what_it_must),
		TEST(test_image_of_nothing),
		TEST(test_large_values_cross_pieces),
		TEST(test_image_is_a_snapshot),
		TEST(test_broken_images),
		TEST(test_broken_image_leaves_nothing),
		TEST(test_image_fed_byte_by_byte),
		TEST(test_image_that_cannot_be_written),
		TEST(test_image_is_freed),
		TEST(test_threads_that_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
