/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Where the bytes of a pool are: they add up, and come back. */
#include "test_volume_share.h"

#include "pool/internal.h"

#define FILES 24u

static struct pool_status status;

static int add_live(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	*(uint64_t *)data += live;
	return 0;
}

/* Counted here by other ways than the pool does. */
static const struct pool_use *must_add_up(void)
{
	const struct pool_use *use = &status.use;
	uint64_t size = fixture.pool->header.slot_size, slots = 0, used = 0, bytes = 0, raw = 0;
	uint64_t heads, cells = (uint64_t)fixture.pool->header.cell * 16, left;
	uint32_t volume = volume_row(fixture.volume)->id;

	pool_status(fixture.pool, &status);
	assert_int_equal(use->data + use->waiting + use->parity + use->metadata + use->reserved +
				 use->free + use->unusable,
		use->raw);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++) {
		raw += status.devices[i].state == DEVICE_ACTIVE ? DEVICE_SIZE : 0;
		slots += status.devices[i].slots;
		used += status.devices[i].slots_used;
	}
	assert_in_range(use->raw, raw, (uint64_t)FIXTURE_DEVICES * DEVICE_SIZE);
	assert_true(use->raw == raw || raw < (uint64_t)FIXTURE_DEVICES * DEVICE_SIZE);
	heads = use->raw - slots * size;
	/* What is not in slots that are taken is free, kept, or nobody's; the rest is. */
	left = use->free + use->unusable + segment_reserve(fixture.pool) * 6 * size;
	assert_true(left >= (slots - used) * size);
	assert_true(use->metadata + use->unusable >= heads);
	assert_int_equal(use->parity % (2 * cells), 0);
	assert_int_equal(pool_each_segment(fixture.pool, volume, add_live, &bytes), 0);
	assert_int_equal(use->data, bytes);
	return use;
}

/* Nothing that is pending, no stream that is open. */
static struct pool_use settled(void)
{
	volume_fixture_reopen(&fixture);
	assert_int_equal(pool_checkpoint(fixture.pool), 0);
	assert_int_equal(pool_maintain(fixture.pool), 0);
	return *must_add_up();
}

static void name_of(char name[8], unsigned i)
{
	snprintf(name, 8, "f%u", i);
}

static void write_files(void)
{
	char name[8];

	for (unsigned i = 0; i < FILES; i++) {
		struct volume_file *file;

		name_of(name, i);
		file = must_get(
			fixture.volume, must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE));
		assert_int_equal(write_seeded(file, 0, 100 * KIB, i), 0);
		must_add_up();
		assert_int_equal(volume_commit_wait(file), 0);
		volume_file_put(file);
		must_add_up();
		assert_int_equal(pool_maintain(fixture.pool), 0);
		must_add_up();
	}
}

static void unlink_files(unsigned from, unsigned step)
{
	char name[8];

	for (unsigned i = from; i < FILES; i += step) {
		name_of(name, i);
		must_unlink(fixture.volume, VOLUME_ROOT, name);
		must_add_up();
	}
	must_sync(&fixture);
	assert_int_equal(pool_maintain(fixture.pool), 0);
	must_add_up();
}

static void adds_up(void **state)
{
	struct pool_use before = settled(), full, half;

	assert_int_equal(before.data, 0);
	assert_int_equal(before.waiting, 0);
	assert_int_equal(before.parity, 0);
	write_files();
	full = settled();
	assert_int_equal(full.data, FILES * 100 * KIB);
	assert_true(full.free < before.free);
	assert_true(full.parity >= full.data / 2);
	unlink_files(1, 2);
	half = settled();
	assert_int_equal(half.data, full.data / 2);
	/* The bytes that went are free now, or wait in segments beside others. */
	assert_true(half.waiting + half.free > full.waiting + full.free);
	unlink_files(0, 2);
	half = settled();
	assert_memory_equal(&half, &before, sizeof(before));
}

/* Each file lies in segments that others, which go, lie in too. */
static void comes_back_by_compaction(void **state)
{
	struct pool_use before = settled(), sparse, after;
	uint64_t won;

	write_files();
	for (unsigned i = 1; i < 4; i++)
		unlink_files(i, 4);
	sparse = settled();
	assert_true(sparse.waiting > sparse.data);
	assert_int_equal(volume_make_room(fixture.volume, 90, UINT64_MAX, &won), 0);
	after = settled();
	assert_int_equal(after.data, sparse.data);
	assert_true(after.waiting < sparse.waiting);
	assert_true(after.free > sparse.free);
	unlink_files(0, 4);
	after = settled();
	assert_memory_equal(&after, &before, sizeof(before));
}

/* What is free on a device that is away is of no use; what is taken there counts as before. */
static void counts_devices_that_are_away(void **state)
{
	struct pool_use before, after;

	write_files();
	before = settled();
	sim_kill_device(fixture.pool_fixture.world, "d5");
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	after = *must_add_up();
	assert_int_equal(after.data, before.data);
	assert_true(after.unusable > before.unusable);
	assert_true(after.free < before.free);
	sim_revive_device(fixture.pool_fixture.world, "d5");
}

/* While there is free space data can be written, and free space is what they take of it. */
static void free_is_free(void **state)
{
	uint64_t total, left;
	char name[8];

	for (unsigned i = 0;; i++) {
		struct volume_file *file;
		int r;

		snprintf(name, sizeof(name), "g%u", i);
		file = must_get(
			fixture.volume, must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE));
		pool_space(fixture.pool, &total, &left);
		assert_int_equal(must_add_up()->free > 0, left > 0);
		r = write_seeded(file, 0, 64 * KIB, i);
		assert_true(!r || (r == -ENOSPC && !left));
		if (!r)
			assert_int_equal(volume_commit_wait(file), 0);
		volume_file_put(file);
		assert_int_equal(pool_maintain(fixture.pool), 0);
		if (r)
			break;
	}
	must_add_up();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(adds_up),
		TEST(comes_back_by_compaction),
		TEST(counts_devices_that_are_away),
		TEST(free_is_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
