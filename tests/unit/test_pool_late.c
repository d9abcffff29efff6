/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Segments that an owner wrote to which is neither their maker nor the last one: it was paused
 * while it closed what it found open, or mended what it found rotten, and its writes arrive after
 * the next owner has deleted the data and used what room there is.
 */
#include "pool_fixture.h"
#include "pool/internal.h"

#define DEVICE_SIZE (4u << 20)
#define FILE_BYTES 65536u
#define FILES 80u

struct file {
	struct extent extents[8];
	unsigned count;
};

static uint8_t bytes[FILE_BYTES], back[FILE_BYTES];
static struct fixture f;
static struct engine *other; /* beta's */
static uint32_t volume;

static bool all_dead; /* what the next opener knows of earlier owners */

static struct pool *open_as(struct engine *engine, const char *host, uint8_t boot, bool force)
{
	struct pool_open_options options = {.paths = f.paths,
		.path_count = f.devices,
		.name = "tank",
		.host = host,
		.boot_id = {boot},
		.force = force,
		.owner_dead = all_dead,
		.metadata_limit = 16u << 20};
	struct error error = {0};
	struct pool *pool = NULL;

	if (pool_open(engine, &options, &pool, &error))
		fail_msg("%s: %s", error.object, error.message);
	return pool;
}

static int put_file(struct pool *pool, struct stream *stream, size_t length, struct file *file)
{
	struct iovec iov = {bytes, length};
	struct txn *txn;
	uint64_t lsn;
	int rc;

	file->count = 8;
	rc = stream_append(stream, &iov, 1, length, 0, file->extents, &file->count);
	if (!rc)
		rc = pool_settle(pool, file->extents, file->count);
	if (!rc)
		rc = txn_begin(pool, NULL, &txn);
	if (rc)
		return rc;
	assert_int_equal(txn_refer(txn, file->extents, file->count), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	return pool_sync(pool, lsn);
}

static void delete_file(struct pool *pool, const struct file *file)
{
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(txn_begin(pool, NULL, &txn), 0);
	assert_int_equal(txn_release(txn, file->extents, file->count), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(pool, lsn), 0);
}

static bool reads_back(struct pool *pool, const struct file *file)
{
	struct read_part parts[8];
	size_t at = 0;

	for (unsigned i = 0; i < file->count; i++) {
		parts[i] = (struct read_part){file->extents[i], back + at};
		at += file->extents[i].length;
	}
	memset(back, 0xee, sizeof(back));
	return !pool_read_wait(pool, parts, file->count) && !memcmp(back, bytes, at);
}

/* alpha's first epoch leaves a segment open that has a file in it. */
static void leave_open(struct file *file)
{
	struct pool *pool = open_as(f.engine, "alpha", 1, false);
	struct stream *stream;

	volume = fixture_make_volume(pool, "v");
	assert_int_equal(stream_open(pool, volume, &stream), 0);
	assert_int_equal(put_file(pool, stream, 40000, file), 0);
	fixture_crash(&f, pool, SIM_KEEP_ALL);
}

/* beta takes over, deletes the file, fills the pool; then what alpha had in flight arrives. */
static void take_over(struct file *old, struct file *files, unsigned *count)
{
	struct pool *pool = open_as(other, "beta", 2, true);
	struct stream *stream;

	assert_int_equal(pool_maintain(pool), 0);
	assert_true(reads_back(pool, old));
	delete_file(pool, old);
	assert_int_equal(pool_maintain(pool), 0);
	assert_int_equal(stream_open(pool, volume, &stream), 0);
	while (*count < FILES && !put_file(pool, stream, FILE_BYTES, &files[*count]))
		++*count;
	stream_close(stream);
	assert_int_equal(pool_maintain(pool), 0);
	while (sim_late_count(f.world))
		assert_int_equal(sim_release_late(f.world, 0), 0);
	assert_int_equal(pool_close(pool, &(struct error){0}), 0);
}

static void check_files(const struct file *files, unsigned count)
{
	struct pool *pool = open_as(other, "beta", 2, false);
	struct pool_check_report report;

	assert_int_equal(pool_check(pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.bad_blocks + report.lost_blocks, 0);
	for (unsigned i = 0; i < count; i++)
		assert_true(reads_back(pool, &files[i]));
	assert_int_equal(pool_close(pool, &(struct error){0}), 0);
}

static void begin(void)
{
	fixture_make(&f, 6, 4, 2, DEVICE_SIZE, 1);
	assert_int_equal(sim_engine_create(f.world, &other), 0);
}

static void end(void)
{
	engine_destroy(other);
	fixture_free(&f);
}

/* The second owner is cut off at its n-th write or flush. False: it has closed the segment. */
static bool cut_while_closing(uint64_t n)
{
	struct file old, files[FILES];
	unsigned count = 0;
	struct pool *pool;
	bool cut;

	begin();
	leave_open(&old);
	pool = open_as(f.engine, "alpha", 1, false);
	sim_hold_late(f.engine, true, true);
	sim_cut_host_at(f.engine, n);
	cut = pool_checkpoint(pool) || sim_late_count(f.world);
	pool_abandon(pool);
	if (cut) {
		take_over(&old, files, &count);
		assert_true(count > 10);
		check_files(files, count);
	}
	end();
	return cut;
}

static void test_an_owner_is_paused_while_it_closes_what_another_left(void **state)
{
	uint64_t n = 1;

	while (cut_while_closing(n))
		n++;
	assert_true(n > 10);
}

/* alpha's second epoch closes the segment, finds a block of it rotten and mends it: late. */
static void test_an_owner_is_paused_while_it_mends_what_another_wrote(void **state)
{
	struct segment_row row;
	struct segment *segment;
	struct file old, files[FILES];
	unsigned count = 0;
	struct pool *pool;
	uint64_t block;

	begin();
	leave_open(&old);
	pool = open_as(f.engine, "alpha", 1, false);
	assert_int_equal(pool_checkpoint(pool), 0);
	sim_drain(f.world);
	segment = segment_get(pool, old.extents[0].segment);
	assert_non_null(segment);
	segment_look(segment, &row);
	assert_int_equal(row.state, SEGMENT_CLOSED);
	block = segment_block_offset(pool, segment, 0, 0);
	segment_put(segment);
	sim_medium_write(f.world, f.names[row.chunks[0].device], block, "rot", 3);
	sim_hold_late(f.engine, true, true);
	sim_cut_host_at(f.engine, 1);
	reads_back(pool, &old); /* or is cut off on the way, behind the mending */
	sim_drain(f.world);
	pool_abandon(pool);
	assert_true(sim_late_count(f.world) > 0);
	take_over(&old, files, &count);
	assert_true(count > 10);
	check_files(files, count);
	end();
}

static bool is_there(struct pool *pool, uint64_t id)
{
	struct segment *segment = segment_get(pool, id);

	segment_put(segment);
	return segment;
}

/* What an owner cannot give back because of another, it can once that is known to be dead. */
static void test_room_comes_back_when_the_owner_is_dead(void **state)
{
	struct file old;
	struct pool *pool;

	begin();
	leave_open(&old);
	pool = open_as(f.engine, "alpha", 1, false);
	sim_cut_host(f.engine);
	pool_abandon(pool);
	pool = open_as(other, "beta", 2, true);
	delete_file(pool, &old);
	assert_int_equal(pool_close(pool, &(struct error){0}), 0);
	for (unsigned i = 0; i < 2; i++) {
		all_dead = i == 1;
		pool = open_as(other, "beta", 2, false);
		assert_int_equal(pool_maintain(pool), 0);
		assert_int_equal(is_there(pool, old.extents[0].segment), !all_dead);
		assert_int_equal(pool_close(pool, &(struct error){0}), 0);
	}
	all_dead = false;
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_owner_is_paused_while_it_closes_what_another_left),
		cmocka_unit_test(test_an_owner_is_paused_while_it_mends_what_another_wrote),
		cmocka_unit_test(test_room_comes_back_when_the_owner_is_dead),
	};

	for (unsigned i = 0; i < FILE_BYTES; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 256);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
