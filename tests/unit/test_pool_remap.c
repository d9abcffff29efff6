/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Segments that are moved under the names that images have for them: the pool's part of it. */
#include "pool/remap.h"
#include "pool/row.h"
#include "pool_fixture.h"

#define DEVICE_SIZE (4u << 20)
#define BYTES (8u * BLOCK_SIZE)

static struct fixture f;
static struct pool *pool;
static uint32_t volume;
static uint8_t bytes[BYTES];

static void seal(uint32_t id, bool sealed)
{
	struct volume_row row;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(volume_row_get(txn, id, &row), 0);
	row.sealed = sealed;
	assert_int_equal(volume_row_put(txn, &row), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

static void start_with(uint64_t journal)
{
	fixture_make_with(&f, 6, 4, 2, DEVICE_SIZE, journal, 1);
	pool = fixture_must_open(&f);
	volume = fixture_make_volume(pool, "set");
	seal(volume, true);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + (i >> 8) + 1);
}

static int start(void **state)
{
	start_with(512 << 10);
	return 0;
}

static int end(void **state)
{
	struct error error = {0};

	if (pool && pool_close(pool, &error))
		fail_msg("pool_close: %s: %s", error.object, error.message);
	pool = NULL;
	fixture_free(&f);
	return 0;
}

/* Appended to a stream of its own, whose segment is left to be closed. */
static struct extent append(const uint8_t *data, size_t length)
{
	struct iovec iov = {(void *)(uintptr_t)data, length};
	struct stream *stream;
	struct extent extent;
	unsigned count = 1;

	assert_int_equal(stream_open(pool, volume, &stream), 0);
	assert_int_equal(stream_append(stream, &iov, 1, length, 0, &extent, &count), 0);
	assert_int_equal(count, 1);
	stream_close(stream);
	assert_int_equal(pool_settle(pool, &extent, 1), 0);
	return extent;
}

/* Bytes that an image may name, in a closed segment. */
static struct extent make_named(void)
{
	struct extent extent = append(bytes, sizeof(bytes));
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(txn_refer(txn, &extent, 1), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
	assert_int_equal(pool_maintain(pool), 0);
	return extent;
}

/* Its first and its last blocks in that order, elsewhere. */
static int move(const struct extent *named, uint64_t live, struct extent *fresh)
{
	struct moved_run runs[2];
	int rc;

	*fresh = append(bytes, sizeof(bytes));
	runs[0] =
		(struct moved_run){named->offset, {fresh->segment, fresh->offset, 3 * BLOCK_SIZE}};
	runs[1] = (struct moved_run){named->offset + 3 * BLOCK_SIZE,
		{fresh->segment, fresh->offset + 3 * BLOCK_SIZE, BYTES - 3 * BLOCK_SIZE}};
	rc = pool_remap(pool, named->segment, live, runs, 2);
	if (rc)
		pool_abandon_extents(pool, fresh, 1);
	assert_int_equal(pool_maintain(pool), 0);
	return rc;
}

static void must_read(const struct extent *extent, uint64_t from, uint64_t length)
{
	static uint8_t found[BYTES];
	struct read_part part = {{extent->segment, extent->offset + from, length}, found};

	memset(found, 0xee, sizeof(found));
	assert_int_equal(pool_read_wait(pool, &part, 1), 0);
	assert_memory_equal(found, bytes + from, length);
}

static bool is_there(uint64_t segment)
{
	struct segment *s = segment_get(pool, segment);

	segment_put(s);
	return s != NULL;
}

static unsigned rows_of(uint8_t kind)
{
	uint8_t key[POOL_KEY_MAX] = {kind};
	struct bytes found, value;
	struct txn *view;
	size_t length = 1;
	unsigned count = 0;

	assert_int_equal(view_begin(pool_env(pool), &view), 0);
	while (!txn_seek(view, pool_env(pool), (struct bytes){key, length}, &found, &value) &&
		*(const uint8_t *)found.data == kind) {
		count++;
		memcpy(key, found.data, found.length);
		key[found.length] = 0;
		length = found.length + 1;
	}
	txn_abort(view);
	return count;
}

static void must_be_sound(void)
{
	struct pool_check_report report;

	assert_int_equal(pool_check(pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.wrong_live, 0);
	assert_int_equal(report.bad_blocks, 0);
	assert_int_equal(atomic_load(&pool->remap_runs), rows_of(KEY_REMAP));
}

static void reopen(void)
{
	fixture_crash(&f, pool, SIM_RANDOM);
	pool = fixture_must_open(&f);
}

static void reads_across_runs(void **state)
{
	struct extent named = make_named(), fresh;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	assert_int_equal(rows_of(KEY_REMAP), 2);
	for (unsigned n = 0; n < 2; n++) {
		must_read(&named, 0, BYTES);
		must_read(&named, 2 * BLOCK_SIZE + 100, 5000);
		must_read(&named, BYTES - 1, 1);
		must_be_sound();
		reopen();
	}
}

static void resolves_in_one_step(void **state)
{
	struct extent named = make_named(), first, second;

	assert_int_equal(move(&named, BYTES, &first), 0);
	assert_int_equal(move(&first, 0, &second), 0);
	assert_false(is_there(first.segment));
	assert_int_equal(rows_of(KEY_REMAP), 2);
	must_read(&named, 0, BYTES);
	must_be_sound();
	reopen();
	must_read(&named, 0, BYTES);
	must_be_sound();
}

/* --- what goes with a volume ------------------------------------------------------------------ */

#define MOVED 6u

/* As much of it as a record takes that is nearly full already. */
static int destroy_some(bool little)
{
	struct volume_row row;
	struct txn *txn;
	uint64_t lsn;
	int rc;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(volume_row_get(txn, volume, &row), 0);
	while (little && txn_room(txn) > 4700)
		assert_int_equal(volume_row_put(txn, &row), 0);
	rc = volume_row_delete(txn, volume);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
	return rc;
}

static unsigned moved_now(const struct extent *named)
{
	unsigned count = 0;

	for (unsigned i = 0; i < MOVED; i++)
		count += is_there(named[i].segment);
	return count;
}

/* Remaps go before what they name, in steps; none of what is left in between is wrong. */
static void goes_with_its_volume(void **state)
{
	struct extent named[MOVED], fresh[MOVED];
	unsigned left;

	for (unsigned i = 0; i < MOVED; i++) {
		named[i] = make_named();
		assert_int_equal(move(&named[i], BYTES, &fresh[i]), 0);
	}
	assert_int_equal(destroy_some(true), -EAGAIN);
	left = moved_now(named);
	assert_in_range(left, 1, MOVED - 1);
	assert_int_equal(rows_of(KEY_REMAP), 2 * left);
	assert_int_equal(moved_now(fresh), MOVED);
	must_be_sound();
	reopen();
	must_be_sound();
	assert_int_equal(destroy_some(false), 0);
	assert_int_equal(moved_now(named) + moved_now(fresh), 0);
	assert_int_equal(rows_of(KEY_REMAP), 0);
	must_be_sound();
}

/* --- bounds ----------------------------------------------------------------------------------- */

static void refuses_too_many_runs(void **state)
{
	struct extent named = make_named(), fresh = append(bytes, sizeof(bytes));
	unsigned most = pool_remap_most(pool);
	struct moved_run *runs = calloc(most + 1, sizeof(*runs));

	assert_non_null(runs);
	for (unsigned i = 0; i <= most; i++)
		runs[i] = (struct moved_run){(uint64_t)i * BLOCK_SIZE,
			{fresh.segment, fresh.offset + i % 8 * BLOCK_SIZE, BLOCK_SIZE}};
	assert_int_equal(pool_remap(pool, named.segment, BYTES, runs, most + 1), -E2BIG);
	free(runs);
	pool_abandon_extents(pool, &fresh, 1);
	must_read(&named, 0, BYTES);
}

/* Where all remaps take what they may, sealed volumes stay as they are, and are not planned for. */
static void stops_when_remaps_take_their_share(void **state)
{
	struct compaction_request request = {.percent = 100};
	struct extent named[3], fresh;
	struct compaction_plan plan;
	uint64_t room, waste;

	for (unsigned i = 0; i < 3; i++)
		named[i] = make_named();
	assert_int_equal(move(&named[0], BYTES, &fresh), 0);
	assert_int_equal(pool_plan_compaction(pool, &request, &plan), 0);
	room = atomic_exchange(&pool->remap_room, 100); /* it has two runs */
	assert_int_equal(pool_plan_compaction(pool, &request, &plan), -ENOENT);
	assert_int_equal(pool_waste(pool, 0, &waste), 0);
	assert_int_equal(waste, 0);
	fresh = append(bytes, sizeof(bytes));
	assert_int_equal(pool_remap(pool, named[1].segment, BYTES,
				 &(struct moved_run){named[1].offset, fresh}, 1),
		-ENOSPC);
	atomic_store(&pool->remap_room, room);
	assert_int_equal(pool_remap(pool, named[1].segment, BYTES,
				 &(struct moved_run){named[1].offset, fresh}, 1),
		0);
	must_read(&named[1], 0, BYTES);
	must_be_sound();
}

/* Of segments with many runs elsewhere, only the few rows are written that name what is emptied:
 * all of them would not fit into one record. */
static void rewrites_what_names_it_alone(void **state)
{
	struct extent named[8], far, near, next;
	struct moved_run run[8];

	end(NULL);
	start_with(128 << 10);
	near = append(bytes, sizeof(bytes));
	for (unsigned i = 0; i < 8; i++) {
		named[i] = make_named();
		far = append(bytes, sizeof(bytes));
		for (unsigned n = 0; n < 8; n++)
			run[n] = (struct moved_run){named[i].offset + n * BLOCK_SIZE,
				{far.segment, far.offset + n * BLOCK_SIZE, BLOCK_SIZE}};
		run[i].to = (struct extent){near.segment, near.offset + i * BLOCK_SIZE, BLOCK_SIZE};
		pool_abandon_extents(
			pool, &(struct extent){far.segment, far.offset, BLOCK_SIZE}, 1);
		assert_int_equal(pool_remap(pool, named[i].segment, BYTES, run, 8), 0);
	}
	assert_int_equal(pool_maintain(pool), 0);
	next = append(bytes, sizeof(bytes));
	for (unsigned n = 0; n < 8; n++)
		run[n] = (struct moved_run){near.offset + n * BLOCK_SIZE,
			{next.segment, next.offset + n * BLOCK_SIZE, BLOCK_SIZE}};
	assert_int_equal(pool_remap(pool, near.segment, 0, run, 8), 0);
	assert_false(is_there(near.segment));
	for (unsigned n = 0; n < 2; n++) {
		for (unsigned i = 0; i < 8; i++)
			must_read(&named[i], 0, BYTES);
		must_be_sound();
		reopen();
	}
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refuses_what_is_not_all_of_it(void **state)
{
	struct extent named = make_named(), fresh, other;
	struct moved_run run;

	assert_int_equal(move(&named, BYTES - 1, &fresh), -EBADMSG);
	assert_int_equal(move(&named, 0, &fresh), -EBADMSG);
	other = named;
	other.segment = 12345;
	assert_int_equal(move(&other, BYTES, &fresh), -ENOENT);
	fresh = append(bytes, sizeof(bytes));
	run = (struct moved_run){named.offset, {fresh.segment, fresh.offset, 100}};
	assert_int_equal(pool_remap(pool, named.segment, BYTES, &run, 1), -EINVAL);
	assert_int_equal(pool_remap(pool, named.segment, BYTES, &run, 0), -EINVAL);
	pool_abandon_extents(pool, &fresh, 1);
	must_read(&named, 0, BYTES);
	assert_int_equal(move(&named, BYTES, &fresh), 0);
	assert_int_equal(move(&named, BYTES, &other), -ENOENT); /* it is moved */
	must_read(&named, 0, BYTES);
	must_be_sound();
}

/* Runs that are not in order, and of a place not all, or as if extents named it. */
static void refuses_what_remaps_could_not_name(void **state)
{
	struct extent named = make_named(), place, fresh;
	struct moved_run runs[2];

	assert_int_equal(move(&named, BYTES, &place), 0);
	fresh = append(bytes, sizeof(bytes));
	runs[0] = (struct moved_run){place.offset + 3 * BLOCK_SIZE,
		{fresh.segment, fresh.offset + 3 * BLOCK_SIZE, BYTES - 3 * BLOCK_SIZE}};
	runs[1] = (struct moved_run){place.offset, {fresh.segment, fresh.offset, 3 * BLOCK_SIZE}};
	assert_int_equal(pool_remap(pool, place.segment, 0, runs, 2), -EINVAL);
	assert_int_equal(pool_remap(pool, place.segment, 0, runs, 1), -EBADMSG);
	assert_int_equal(
		pool_remap(pool, place.segment, BYTES, &(struct moved_run){place.offset, fresh}, 1),
		-EBADMSG);
	must_read(&named, 0, BYTES);
	must_be_sound();
	assert_int_equal(
		pool_remap(pool, place.segment, 0, &(struct moved_run){place.offset, fresh}, 1), 0);
	must_read(&named, 0, BYTES);
	must_be_sound();
}

/* Bytes of it that no remap names may be somebody's. */
static void refuses_what_is_named_otherwise(void **state)
{
	struct extent named = make_named(), place, fresh, part;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(move(&named, BYTES, &place), 0);
	part = (struct extent){place.segment, place.offset, BLOCK_SIZE};
	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(txn_release(txn, &part, 1), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	fresh = append(bytes, sizeof(bytes));
	assert_int_equal(
		pool_remap(pool, place.segment, 0, &(struct moved_run){place.offset, fresh}, 1),
		-EBADMSG);
	pool_abandon_extents(pool, &fresh, 1);
	assert_true(is_there(place.segment));
	must_read(&named, 0, BYTES);
}

/* Its extents can be replaced, and would go on naming what is moved by another name. */
static void refuses_what_is_not_sealed(void **state)
{
	struct extent named = make_named(), fresh;

	seal(volume, false);
	assert_int_equal(move(&named, BYTES, &fresh), -ENOENT);
	seal(volume, true);
	assert_int_equal(move(&named, BYTES, &fresh), 0);
}

/* --- rows that contradict each other ---------------------------------------------------------- */

static void put_run(uint64_t segment, const struct remap_run *run)
{
	uint8_t key[ROW_KEY_MAX], value[REMAP_ROW_SIZE];
	struct writer k = writer_on(key, sizeof(key)), v = writer_on(value, sizeof(value));
	struct txn *txn;
	uint64_t lsn;

	put_u8(&k, KEY_REMAP);
	put_be64(&k, segment);
	put_be64(&k, run->offset);
	remap_run_encode(run, &v);
	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(txn_put(txn, pool_env(pool), (struct bytes){key, sizeof(key)},
				 (struct bytes){value, sizeof(value)}),
		0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

static void must_be_refused(uint64_t segment, struct remap_run run)
{
	struct error error = {0};

	put_run(segment, &run);
	fixture_crash(&f, pool, SIM_LOSE_ALL);
	pool = NULL;
	assert_int_equal(fixture_open(&f, &pool, &error), -EBADMSG);
	assert_null(pool);
}

static void refuses_remaps_of_nothing(void **state)
{
	must_be_refused(12345, (struct remap_run){0, BLOCK_SIZE, 12345, 0});
}

static void refuses_remaps_to_nothing(void **state)
{
	struct extent named = make_named(), fresh;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	must_be_refused(named.segment, (struct remap_run){64 * BLOCK_SIZE, BLOCK_SIZE, 999, 0});
}

/* It would go with that volume. */
static void refuses_remaps_to_other_volumes(void **state)
{
	struct extent named = make_named(), fresh, other;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	volume = fixture_make_volume(pool, "other");
	other = make_named();
	must_be_refused(named.segment,
		(struct remap_run){64 * BLOCK_SIZE, BLOCK_SIZE, other.segment, other.offset});
}

static void refuses_remaps_to_what_is_moved(void **state)
{
	struct extent named = make_named(), other = make_named(), fresh;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	assert_int_equal(move(&other, BYTES, &fresh), 0);
	must_be_refused(named.segment,
		(struct remap_run){64 * BLOCK_SIZE, BLOCK_SIZE, other.segment, other.offset});
}

/* Nobody has written there, and whoever made it would free it. */
static void refuses_remaps_to_what_is_reserved(void **state)
{
	struct extent named = make_named(), fresh;
	uint64_t reserved;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	assert_int_equal(segment_restock(pool), 0);
	reserved = pool->stock[0]->id;
	must_be_refused(
		named.segment, (struct remap_run){64 * BLOCK_SIZE, BLOCK_SIZE, reserved, 0});
}

static void refuses_remaps_behind_the_end(void **state)
{
	struct extent named = make_named(), fresh;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	must_be_refused(named.segment,
		(struct remap_run){64 * BLOCK_SIZE, BLOCK_SIZE, fresh.segment, 16 * BLOCK_SIZE});
}

static void refuses_remaps_that_overlap(void **state)
{
	struct extent named = make_named(), fresh;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	must_be_refused(named.segment, (struct remap_run){named.offset + BLOCK_SIZE, BLOCK_SIZE,
					       fresh.segment, fresh.offset});
}

static void refuses_remaps_of_what_has_chunks(void **state)
{
	struct extent named = make_named(), other = make_named();

	must_be_refused(named.segment,
		(struct remap_run){named.offset, BLOCK_SIZE, other.segment, other.offset});
}

/* It opens, as no other file is worse for it; the check tells. */
static void finds_bytes_that_are_nowhere(void **state)
{
	struct extent named = make_named(), fresh;
	struct read_part part = {named, NULL};
	uint8_t key[ROW_KEY_MAX];
	struct pool_check_report report;
	unsigned all = ~0u;
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(move(&named, BYTES, &fresh), 0);
	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(keys_delete(txn, key_segment(key, KEY_REMAP, named.segment), &all), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
	fixture_crash(&f, pool, SIM_LOSE_ALL);
	pool = fixture_must_open(&f);
	assert_int_equal(pool_read_wait(pool, &part, 1), -EIO);
	assert_int_equal(pool_check(pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.wrong_live, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(reads_across_runs),
		TEST(resolves_in_one_step),
		TEST(goes_with_its_volume),
		TEST(refuses_too_many_runs),
		TEST(stops_when_remaps_take_their_share),
		TEST(rewrites_what_names_it_alone),
		TEST(refuses_what_is_not_all_of_it),
		TEST(refuses_what_remaps_could_not_name),
		TEST(refuses_what_is_named_otherwise),
		TEST(refuses_what_is_not_sealed),
		TEST(refuses_remaps_of_nothing),
		TEST(refuses_remaps_to_nothing),
		TEST(refuses_remaps_to_other_volumes),
		TEST(refuses_remaps_to_what_is_moved),
		TEST(refuses_remaps_to_what_is_reserved),
		TEST(refuses_remaps_behind_the_end),
		TEST(refuses_remaps_that_overlap),
		TEST(refuses_remaps_of_what_has_chunks),
		TEST(finds_bytes_that_are_nowhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
