/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A pool from creation to the loss of devices, each behaviour once. */
#include "pool/internal.h"
#include "pool_fixture.h"

#define DEVICE_SIZE (4u << 20)

static struct bytes text(const char *s)
{
	return (struct bytes){s, strlen(s)};
}

static void fill(uint8_t *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(seed * 131 + i * 7 + (i >> 8));
}

/* Appends, settles and refers; the extents come back. */
static int put_data(struct pool *pool, struct stream *stream, struct env *env, const void *bytes,
	size_t length, struct extent *extents, unsigned *count)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, length};
	struct txn *txn;
	uint64_t lsn;
	int rc;

	*count = 8;
	rc = stream_append(stream, &iov, 1, length, 0, extents, count);
	if (!rc)
		rc = pool_settle(pool, extents, *count);
	if (!rc)
		rc = txn_begin(pool, env, &txn);
	if (rc)
		return rc;
	rc = txn_refer(txn, extents, *count);
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	return rc ? rc : pool_sync(pool, lsn);
}

static void must_read(
	struct pool *pool, const struct extent *extents, unsigned count, const uint8_t *expected)
{
	static uint8_t buffer[1 << 20];
	struct read_part parts[8];
	size_t at = 0;

	for (unsigned i = 0; i < count; i++) {
		parts[i] = (struct read_part){extents[i], buffer + at};
		at += extents[i].length;
	}
	memset(buffer, 0xee, at);
	assert_int_equal(pool_read_wait(pool, parts, count), 0);
	assert_memory_equal(buffer, expected, at);
}

static void test_open_and_close(void **state)
{
	struct fixture f;
	struct error error = {0};

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 1);
	for (int i = 0; i < 20; i++) {
		struct pool *pool = fixture_must_open(&f);

		assert_int_equal(pool_epoch(pool), i + 1);
		assert_int_equal(pool_close(pool, &error), 0);
	}
	fixture_free(&f);
}

static void put_text(struct pool *pool, struct env *env, const char *key, const char *value)
{
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, env, &txn), 0);
	assert_int_equal(txn_put(txn, env, text(key), text(value)), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

static void must_have(struct env *env, const char *key, const char *value)
{
	struct txn *view;
	struct bytes found;

	assert_int_equal(view_begin(env, &view), 0);
	assert_int_equal(txn_get(view, env, text(key), &found), 0);
	assert_int_equal(found.length, strlen(value));
	assert_memory_equal(found.data, value, found.length);
	txn_abort(view);
}

static void keys_survive(bool crash)
{
	struct fixture f;
	struct error error = {0};
	struct pool *pool;
	struct env *env;
	uint32_t volume;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 2);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "models");
	for (int i = 0; i < 40; i++) {
		char value[16];

		snprintf(value, sizeof(value), "v%d", i);
		assert_int_equal(env_get(pool, volume, &env), 0);
		put_text(pool, env, "key", value);
		if (i % 10 == 5)
			assert_int_equal(pool_checkpoint(pool), 0);
		env_put(env);
		if (crash)
			fixture_crash(&f, pool, SIM_LOSE_ALL);
		else if (pool_close(pool, &error))
			fail_msg("%s", error.message);
		pool = fixture_must_open(&f);
		assert_int_equal(env_get(pool, volume, &env), 0);
		must_have(env, "key", value);
		env_put(env);
	}
	assert_int_equal(pool_close(pool, &error), 0);
	fixture_free(&f);
}

static void test_keys_survive_closing(void **state)
{
	keys_survive(false);
}

static void test_keys_survive_crashes(void **state)
{
	keys_survive(true);
}

/* Sizes around a block, a row, a segment; after each a crash; everything is read each time. */
static void test_data_survives_crashes(void **state)
{
	static const size_t sizes[] = {1, 100, 4096, 5000, 16384, 16385, 65536, 70000, 200000};
	static uint8_t bytes[200000];
	struct extent extents[9][8];
	unsigned counts[9];
	struct fixture f;
	struct error error = {0};
	struct pool *pool;
	uint32_t volume;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 3);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "models");
	for (unsigned i = 0; i < 9; i++) {
		struct stream *stream;

		assert_int_equal(stream_open(pool, volume, &stream), 0);
		fill(bytes, sizes[i], i);
		assert_int_equal(
			put_data(pool, stream, NULL, bytes, sizes[i], extents[i], &counts[i]), 0);
		must_read(pool, extents[i], counts[i], bytes);
		fixture_crash(&f, pool, i % 2 ? SIM_LOSE_ALL : SIM_RANDOM);
		pool = fixture_must_open(&f);
		for (unsigned j = 0; j <= i; j++) {
			fill(bytes, sizes[j], j);
			must_read(pool, extents[j], counts[j], bytes);
		}
		assert_int_equal(pool_maintain(pool), 0);
		for (unsigned j = 0; j <= i; j++) {
			fill(bytes, sizes[j], j);
			must_read(pool, extents[j], counts[j], bytes);
		}
	}
	assert_int_equal(pool_close(pool, &error), 0);
	fixture_free(&f);
}

/* --- fewer and fewer devices ---------------------------------------------------------------- */

#define STAGES 4 /* with 6, 5, 4, 3 usable devices: that many were lost before each */
#define CLOSED_BYTES 100000u
#define OPEN_BYTES 30001u /* the last row is in the journal */

/* What a stage has written: into a segment that is closed by then, and into one that is not. */
struct stage {
	struct extent extents[2][8];
	unsigned counts[2];
};

struct shrinking {
	struct fixture f;
	struct stage stages[STAGES];
	unsigned stage; /* now; devices [0, stage) are lost for good */
	unsigned matrix; /* of what is written */
	struct sim_image *image; /* of a power cut behind this stage's last write */
};

static size_t piece_bytes(unsigned piece)
{
	return piece ? OPEN_BYTES : CLOSED_BYTES;
}

static void write_piece(struct shrinking *s, struct pool *pool, unsigned piece)
{
	struct stage *stage = &s->stages[s->stage];
	static uint8_t bytes[CLOSED_BYTES];
	struct segment *segment;
	struct stream *stream;
	char name[16];

	snprintf(name, sizeof(name), "v%u-%u", s->stage, piece);
	assert_int_equal(stream_open(pool, fixture_make_volume(pool, name), &stream), 0);
	fill(bytes, piece_bytes(piece), 2 * s->stage + piece);
	assert_int_equal(put_data(pool, stream, NULL, bytes, piece_bytes(piece),
				 stage->extents[piece], &stage->counts[piece]),
		0);
	segment = segment_get(pool, stage->extents[piece][0].segment);
	assert_int_equal(segment->layout.data, s->f.devices - s->stage - s->f.parity);
	assert_int_equal(segment->row.matrix, s->matrix);
	segment_put(segment);
	if (piece == 0)
		stream_close(stream);
}

/* Right, or, where that is not promised, a clear error. */
static void read_stage(struct shrinking *s, struct pool *pool, unsigned stage, bool promised)
{
	static uint8_t bytes[CLOSED_BYTES], want[CLOSED_BYTES];

	for (unsigned piece = 0; piece < 2; piece++) {
		struct stage *wrote = &s->stages[stage];
		struct read_part parts[8];
		size_t at = 0;
		int rc;

		for (unsigned i = 0; i < wrote->counts[piece]; i++) {
			parts[i] = (struct read_part){wrote->extents[piece][i], bytes + at};
			at += wrote->extents[piece][i].length;
		}
		fill(want, at, 2 * stage + piece);
		memset(bytes, 0xee, at);
		rc = pool_read_wait(pool, parts, wrote->counts[piece]);
		assert_true(rc == 0 || (rc == -EIO && !promised));
		if (!rc)
			assert_memory_equal(bytes, want, at);
	}
}

/* Each stage's segments lie on all devices that were usable then. */
static void read_stages(struct shrinking *s, struct pool *pool, unsigned lost)
{
	for (unsigned i = 0; i <= s->stage; i++)
		read_stage(s, pool, i, s->stage - i + lost <= s->f.parity);
}

static unsigned count_bits(uint32_t set)
{
	return (unsigned)__builtin_popcount(set);
}

static void kill_set(struct shrinking *s, uint32_t set)
{
	for (unsigned i = 0; i < s->f.devices; i++)
		if (set >> i & 1)
			sim_kill_device(s->f.world, s->f.names[i]);
}

static void back_to_the_cut(struct shrinking *s, uint32_t set)
{
	assert_int_equal(sim_restore(s->f.world, s->image), 0);
	sim_seed(s->f.world, 1000 * s->stage + set);
	sim_power_on(s->f.world, SIM_RANDOM);
}

/* With fewer than parity + 1 devices it is read-only, and says so. */
static void check_writable(struct shrinking *s, struct pool *pool, unsigned lost)
{
	bool writable = s->f.devices - s->stage - lost > s->f.parity;
	struct txn *txn;
	int rc = txn_begin(pool, NULL, &txn);

	assert_int_equal(pool_is_read_only(pool), !writable);
	assert_int_equal(rc, writable ? 0 : -EROFS);
	if (!rc)
		txn_abort(txn);
}

static void lose_at_a_crash(struct shrinking *s, uint32_t set)
{
	struct pool *pool;

	back_to_the_cut(s, set);
	kill_set(s, set);
	pool = fixture_must_open(&s->f);
	check_writable(s, pool, count_bits(set));
	read_stages(s, pool, count_bits(set));
	pool_abandon(pool);
}

static void lose_while_open(struct shrinking *s, uint32_t set)
{
	struct pool *pool;

	back_to_the_cut(s, set);
	pool = fixture_must_open(&s->f);
	kill_set(s, set);
	read_stages(s, pool, count_bits(set));
	pool_abandon(pool);
}

static void lose_too_many(struct shrinking *s, uint32_t set)
{
	struct error error;
	struct pool *pool;

	back_to_the_cut(s, set);
	kill_set(s, set);
	assert_int_equal(fixture_open(&s->f, &pool, &error), -EIO);
	assert_non_null(strstr(error.message, "at most 2 may be"));
}

/* Every set of up to parity + 1 of the devices that are left, but not all of them. */
static void lose_each_set(struct shrinking *s)
{
	for (uint32_t set = 0; set < 1u << s->f.devices; set++) {
		if (set & ((1u << s->stage) - 1) || count_bits(set) > s->f.parity + 1 ||
			count_bits(set) == s->f.devices - s->stage)
			continue;
		if (count_bits(set) > s->f.parity) {
			lose_too_many(s, set);
			continue;
		}
		lose_at_a_crash(s, set);
		lose_while_open(s, set);
	}
}

static void run_stage(struct shrinking *s, bool checkpoints)
{
	struct pool *pool = fixture_must_open(&s->f);

	write_piece(s, pool, 0);
	assert_int_equal(pool_maintain(pool), 0);
	if (checkpoints)
		assert_int_equal(pool_checkpoint(pool), 0);
	write_piece(s, pool, 1);
	assert_int_equal(sim_save_cut(s->f.world, &s->image), 0);
	sim_cut_power(s->f.world);
	pool_abandon(pool);
	sim_drain(s->f.world);
	lose_each_set(s);
}

/* The next device goes while the pool is open and being written. */
static void lose_one_for_good(struct shrinking *s)
{
	static uint8_t bytes[CLOSED_BYTES];
	struct extent extents[8];
	struct error error = {0};
	struct stream *stream;
	struct pool *pool;
	unsigned count;
	char name[16];

	back_to_the_cut(s, 0);
	pool = fixture_must_open(&s->f);
	snprintf(name, sizeof(name), "more%u", s->stage);
	fill(bytes, sizeof(bytes), 99);
	assert_int_equal(stream_open(pool, fixture_make_volume(pool, name), &stream), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(
			put_data(pool, stream, NULL, bytes, sizeof(bytes), extents, &count), 0);
		must_read(pool, extents, count, bytes);
		sim_kill_device(s->f.world, s->f.names[s->stage]);
	}
	assert_int_equal(pool_close(pool, &error), 0);
}

static void no_log(enum log_level level, const char *line)
{
}

/* The headers say what those of pools said before there was MATRIX_PQ: new segments are to be as
 * that version made them, while what is in the pool already is read as it is. */
static void make_earlier(struct fixture *f)
{
	static const uint64_t places[] = {0, DEVICE_SIZE - BLOCK_SIZE};
	struct device_header header;
	uint8_t block[BLOCK_SIZE];

	for (unsigned i = 0; i < f->devices; i++) {
		for (unsigned place = 0; place < 2; place++) {
			assert_int_equal(device_header_decode(&header,
						 sim_medium(f->world, f->names[i]) + places[place]),
				0);
			assert_int_equal(header.matrix, MATRIX_PQ);
			header.matrix = MATRIX_CAUCHY;
			assert_int_equal(device_header_encode(&header, block), 0);
			sim_medium_write(f->world, f->names[i], places[place], block, BLOCK_SIZE);
		}
	}
}

static void width_shrinks(bool checkpoints, unsigned matrix)
{
	struct shrinking s = {.matrix = matrix};

	log_set_sink(no_log);
	fixture_make(&s.f, 6, 4, 2, DEVICE_SIZE, 4);
	sim_settle(s.f.world);
	if (matrix == MATRIX_CAUCHY)
		make_earlier(&s.f);
	for (s.stage = 0; s.stage < STAGES; s.stage++) {
		run_stage(&s, checkpoints);
		if (s.stage + 1 < STAGES)
			lose_one_for_good(&s);
	}
	log_set_sink(NULL);
	sim_image_free(s.image);
	fixture_free(&s.f);
}

/* Writes with 6, 5, 4, 3 devices; behind each stage every loss of two more, which what was written
 * then survives, and what was written before as far as two is all that its segments have lost. */
static void test_width_shrinks(void **state)
{
	width_shrinks(false, MATRIX_PQ);
}

static void test_width_shrinks_with_checkpoints(void **state)
{
	width_shrinks(true, MATRIX_PQ);
}

static void test_width_shrinks_in_an_earlier_versions_pool(void **state)
{
	width_shrinks(false, MATRIX_CAUCHY);
}

static void test_an_old_minority_is_refused(void **state)
{
	struct fixture f;
	struct error error = {0};
	struct pool *pool;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 5);
	sim_kill_device(f.world, "d0");
	sim_kill_device(f.world, "d1");
	pool = fixture_must_open(&f);
	assert_int_equal(pool_close(pool, &error), 0);
	for (int i = 2; i < 6; i++)
		sim_kill_device(f.world, f.names[i]);
	sim_revive_device(f.world, "d0");
	sim_revive_device(f.world, "d1");
	assert_int_equal(fixture_open(&f, &pool, &error), -EIO);
	fixture_free(&f);
}

/* Opens as `host` of that boot after a crash of the last owner; how long that took on the world's
 * clock, or the error. */
static int64_t open_after_crash(
	struct fixture *f, struct pool **pool, const char *host, uint8_t boot, bool force)
{
	struct pool_open_options options = {.paths = f->paths,
		.path_count = f->devices,
		.host = host,
		.boot_id = {boot},
		.force = force,
		.metadata_limit = 16u << 20};
	struct error error = {0};
	uint64_t began;
	int rc;

	if (*pool)
		fixture_crash(f, *pool, SIM_RANDOM);
	began = engine_time(f->engine);
	rc = pool_open(f->engine, &options, pool, &error);
	return rc ? rc : (int64_t)(engine_time(f->engine) - began);
}

/* An owner that crashed is waited for unless it was a process of this very boot. */
static void test_the_wait_for_an_owner(void **state)
{
	const int64_t watch = 10000000000;
	struct pool *pool = NULL;
	struct error error = {0};
	struct fixture f;

	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 7);
	assert_in_range(open_after_crash(&f, &pool, "alpha", 1, false), 0, watch - 1);
	assert_in_range(open_after_crash(&f, &pool, "alpha", 1, false), 0, watch - 1);
	assert_in_range(open_after_crash(&f, &pool, "alpha", 2, false), watch, 2 * watch);
	assert_int_equal(open_after_crash(&f, &pool, "beta", 2, false), -EBUSY);
	assert_null(pool);
	assert_in_range(open_after_crash(&f, &pool, "beta", 2, true), watch, 2 * watch);
	assert_int_equal(pool_close(pool, &error), 0);
	pool = NULL;
	assert_in_range(open_after_crash(&f, &pool, "beta", 3, false), 0, watch - 1);
	assert_int_equal(pool_close(pool, &error), 0);
	fixture_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_and_close),
		cmocka_unit_test(test_keys_survive_closing),
		cmocka_unit_test(test_keys_survive_crashes),
		cmocka_unit_test(test_data_survives_crashes),
		cmocka_unit_test(test_width_shrinks),
		cmocka_unit_test(test_width_shrinks_with_checkpoints),
		cmocka_unit_test(test_width_shrinks_in_an_earlier_versions_pool),
		cmocka_unit_test(test_an_old_minority_is_refused),
		cmocka_unit_test(test_the_wait_for_an_owner),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
