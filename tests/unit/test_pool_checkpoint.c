/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Checkpoints: images of any size, and the room that is kept for them in the pool, in the journal
 * and in the label.
 */
#include "pool_values.h"

#include "device/engine.h"
#include "pool/journal.h"

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

/* --- images of many segments -------------------------------------------------------------- */

static void test_an_image_of_many_segments(void **state)
{
	struct fixture f;
	struct pool *pool;
	struct env *env;
	uint32_t volume;
	unsigned count, healthy;
	int rc;

	fixture_make_with(&f, 6, 4, 2, 96 << 20, 32 << 20, 1);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "v");
	env = get_env(pool, volume);
	count = fill_env(pool, env, 0, 3000, &rc);
	assert_int_equal(rc, 0);
	assert_int_equal(pool_checkpoint(pool), 0);
	healthy = image_segments(pool);
	assert_true(healthy > 64);
	env_put(env);
	pool = crash(&f, pool);
	assert_int_equal(image_segments(pool), healthy);
	env = get_env(pool, volume);
	check_env(env, 0, count);

	/* With segments of half the size. */
	sim_kill_device(f.world, "d0");
	sim_kill_device(f.world, "d1");
	assert_int_equal(pool_maintain(pool), 0);
	count = fill_env(pool, env, 0, count + 100, &rc); /* all has changed: a full one */
	assert_int_equal(rc, 0);
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_true(image_segments(pool) > 3 * healthy / 2);
	env_put(env);
	pool = crash(&f, pool);
	env = get_env(pool, volume);
	check_env(env, 0, count);
	env_put(env);

	delete_volume(pool, volume);
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_int_equal(image_segments(pool), pool->label.root_segment_count);
	close_pool(pool);
	fixture_free(&f);
}

static void put_note(struct pool *pool, unsigned number)
{
	char name[32], text[2048];
	struct txn *txn;
	uint64_t lsn;

	snprintf(name, sizeof(name), "test:%u", number);
	memset(text, 'a' + (int)(number % 26), sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(property_set(txn, 0, name, text), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
}

/* The pool's own image is as large as its label can say, before data are refused. */
static void test_a_root_of_many_segments(void **state)
{
	struct fixture f;
	struct pool *pool;
	struct stream *stream;
	struct env *env;
	unsigned notes = 0;
	uint32_t volume;

	fixture_make_with(&f, 6, 4, 2, 96 << 20, 16 << 20, 1);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "v");
	assert_int_equal(stream_open(pool, volume, &stream), 0);
	while (!put_data(pool, stream, 1 << 16)) {
		for (unsigned i = 0; i < 16; i++)
			put_note(pool, notes++);
		assert_int_equal(pool_maintain(pool), 0);
	}
	env = get_env(pool, volume);
	assert_int_equal(change(pool, env, 1, true), -ENOSPC);
	env_put(env);
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_true(pool->label.root_segment_count > 16);
	pool = crash(&f, pool);
	assert_int_equal(pool_checkpoint(pool), 0);
	close_pool(pool);
	pool = fixture_must_open(&f);
	assert_true(pool->label.root_segment_count > 16);
	assert_int_equal(image_segments(pool), pool->label.root_segment_count);
	close_pool(pool);
	fixture_free(&f);
}

/* Whatever else is in it. */
static void test_a_label_has_room_for_its_root(void **state)
{
	struct label *label = calloc(1, sizeof(*label)), *again = calloc(1, sizeof(*again));
	uint8_t *body = malloc(LABEL_BODY);

	label->state = LABEL_OPEN;
	label->device_count = POOL_DEVICES_MAX;
	label->span_count = SPANS_MAX;
	label->epoch = 1;
	label->other_count = OWNERS_MAX;
	label->root = (struct image_row){.kind = IMAGE_FULL, .lsn = 1, .length = 1, .segment = 1};
	for (unsigned width = 2; width <= POOL_WIDTH_MAX; width++) {
		unsigned fit = ROOT_ROOM / SEGMENT_ROW_SIZE(width);

		label->root_segment_count =
			(uint8_t)(fit < ROOT_SEGMENTS_MAX ? fit : ROOT_SEGMENTS_MAX);
		for (unsigned i = 0; i < label->root_segment_count; i++) {
			struct segment_row *row = &label->root_segments[i];

			*row = (struct segment_row){.id = i + 1,
				.generation = 1,
				.state = SEGMENT_CLOSED,
				.data = (uint8_t)(width - 1),
				.parity = 1,
				.matrix = 1,
				.purpose = PURPOSE_IMAGE,
				.cell = 4096,
				.rows = 1,
				.length = 4096,
				.live = 4096,
				.next = i + 2};
			for (unsigned j = 0; j < width; j++)
				row->chunks[j].device = (uint16_t)j;
		}
		assert_int_equal(label_encode(label, body), 0);
		assert_int_equal(label_decode(again, body), 0);
		assert_memory_equal(again->root_segments, label->root_segments,
			label->root_segment_count * sizeof(*label->root_segments));
	}
	free(label);
	free(again);
	free(body);
}

/* --- the room that is kept for them ------------------------------------------------------- */

/* A journal too small for the records of a large image. */
static void test_metadata_end_before_their_image(void **state)
{
	struct fixture f;
	struct pool *pool;
	struct env *env;
	uint32_t volume;
	unsigned count;
	int rc;

	fixture_make(&f, 6, 4, 2, 64 << 20, 1);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "v");
	env = get_env(pool, volume);
	count = fill_env(pool, env, 0, 8000, &rc);
	assert_int_equal(rc, -ENOSPC);
	assert_true(count > 50);
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_int_equal(change(pool, env, 0, false), 0);
	env_put(env);
	pool = crash(&f, pool);
	env = get_env(pool, volume);
	check_env(env, 1, count);
	for (unsigned i = 1; i < count / 2; i++)
		assert_int_equal(change(pool, env, i, false), 0);
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_int_equal(change(pool, env, 0, true), 0);
	env_put(env);
	close_pool(pool);
	fixture_free(&f);
}

/* Whatever its image is to what is left in the pool: loading takes nothing of that. */
static void load_from_full(unsigned devices, unsigned data_chunks, uint64_t size, unsigned most)
{
	for (unsigned lost = 0; lost <= most; lost++) {
		struct fixture f;
		uint32_t share, dataset, data;
		struct env *env, *sealed;
		struct pool *pool;
		unsigned count, sealed_count;
		int rc;

		fixture_make_with(&f, devices, data_chunks, 2, size, 8 << 20, 1);
		pool = fixture_must_open(&f);
		share = fixture_make_volume(pool, "share");
		dataset = fixture_make_volume(pool, "dataset");
		data = fixture_make_volume(pool, "data");
		env = get_env(pool, share);
		sealed = get_env(pool, dataset);
		count = fill_env(pool, env, 0, 600, &rc);
		sealed_count = fill_env(pool, sealed, 0, 600, &rc);
		assert_true(count > 200 && sealed_count > 200);
		assert_int_equal(pool_seal(pool, dataset), 0);
		env_put(sealed);
		env_put(env);
		close_pool(pool);
		pool = fixture_must_open(&f);
		fill_pool(pool, data);
		close_pool(pool);
		for (unsigned i = 0; i < lost; i++)
			sim_kill_device(f.world, f.names[i]);

		pool = fixture_must_open(&f);
		sealed = get_env(pool, dataset);
		check_env(sealed, 0, sealed_count);
		env_put(sealed);
		env = get_env(pool, share);
		check_env(env, 0, count);
		assert_int_equal(change(pool, env, 0, false), 0);
		env_put(env);
		close_pool(
			pool); /* there is room for what was changed, with smaller segments too */
		fixture_free(&f);
	}
}

/* As long as it may be written. */
static void test_a_full_pool_loads_its_volumes(void **state)
{
	load_from_full(6, 4, 20 << 20, 2);
	load_from_full(4, 2, 28 << 20, 1);
}

/* Values of so many bytes, until no record of `limit` bytes fits into the journal. */
static void fill_journal(
	struct pool *pool, struct env *env, size_t bytes, size_t limit, bool is_urgent)
{
	static uint8_t value[1 << 18];
	struct journal *j = pool->journal;
	struct txn *txn;
	uint64_t lsn;

	for (unsigned i = 0; journal_has_room(j, journal_cost(limit), is_urgent); i++) {
		char key[16];

		assert_int_equal(txn_begin(pool, env, &txn), 0);
		assert_int_equal(
			txn_put(txn, env, number_key(key, i % 20), (struct bytes){value, bytes}),
			0);
		assert_int_equal(txn_commit(txn, &lsn), 0);
		assert_int_equal(pool_sync(pool, lsn), 0);
	}
}

/* What a round cannot do because the journal is full does not keep it from being emptied. */
static void test_a_full_journal_is_checkpointed(void **state)
{
	const size_t limit = (256 << 10) + 4 * 4096; /* of an ordinary transaction */
	struct fixture f;
	struct pool *pool;
	struct stream *stream;
	struct env *env;
	uint32_t volume;

	fixture_make_with(&f, 6, 4, 2, 32 << 20, 8 << 20, 1);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "v");
	env = get_env(pool, volume);
	assert_int_equal(stream_open(pool, volume, &stream), 0);
	assert_int_equal(put_data(pool, stream, 60000), 0);
	stream_close(stream); /* a segment to be closed */
	fill_journal(pool, env, 200000, limit, false);
	txn_urgent_begin();
	fill_journal(pool, env, 5000, limit, true);
	txn_urgent_end();
	assert_true(journal_wants_checkpoint(pool));
	assert_int_equal(pool_maintain(pool), 0);
	assert_false(journal_wants_checkpoint(pool));
	assert_true(journal_has_room(pool->journal, journal_cost(limit), false));
	env_put(env);
	close_pool(pool);
	fixture_free(&f);
}

/* --- volumes that go meanwhile ------------------------------------------------------------ */

static const struct engine_ops *real;
static struct engine_ops wrapped;
static struct pool *doomed_pool;
static uint32_t doomed; /* deleted with the next write to a slot */

static void submit(struct engine *engine, struct io **ios, unsigned count)
{
	uint32_t volume = doomed;

	if (volume && ios[0]->op == IO_WRITE &&
		ios[0]->offset >= doomed_pool->header.slots_offset &&
		ios[0]->offset < doomed_pool->header.label_b_offset) {
		doomed = 0;
		delete_volume(doomed_pool, volume);
	}
	real->submit(engine, ios, count);
}

/* While its image is being written: nothing is left of it, and the others have theirs. */
static void test_a_volume_is_destroyed_during_its_checkpoint(void **state)
{
	struct fixture f;
	struct env *env, *other;
	uint32_t volume, kept;
	struct pool *pool;
	int rc;

	fixture_make(&f, 6, 4, 2, 16 << 20, 1);
	real = f.engine->ops;
	wrapped = *real;
	wrapped.submit = submit;
	f.engine->ops = &wrapped;
	pool = fixture_must_open(&f);
	kept = fixture_make_volume(pool, "kept");
	volume = fixture_make_volume(pool, "v");
	env = get_env(pool, volume);
	other = get_env(pool, kept);
	fill_env(pool, other, 0, 5, &rc);
	assert_int_equal(rc, 0);
	assert_int_equal(pool_checkpoint(pool), 0);
	fill_env(pool, env, 0, 50, &rc);
	assert_int_equal(rc, 0);
	env_put(env);
	doomed_pool = pool;
	doomed = volume;
	assert_int_equal(pool_checkpoint(pool), 0);
	assert_int_equal(doomed, 0);
	assert_int_equal(env_get(pool, volume, &env), -ENOENT);
	assert_int_equal(pool_maintain(pool), 0);
	assert_int_equal(image_segments(pool), pool->label.root_segment_count + 1);
	env_put(other);
	pool = crash(&f, pool);
	other = get_env(pool, kept);
	check_env(other, 0, 5);
	env_put(other);
	close_pool(pool);
	f.engine->ops = real;
	fixture_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_image_of_many_segments),
		cmocka_unit_test(test_a_root_of_many_segments),
		cmocka_unit_test(test_a_label_has_room_for_its_root),
		cmocka_unit_test(test_metadata_end_before_their_image),
		cmocka_unit_test(test_a_full_pool_loads_its_volumes),
		cmocka_unit_test(test_a_full_journal_is_checkpointed),
		cmocka_unit_test(test_a_volume_is_destroyed_during_its_checkpoint),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
