/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Rot in what stands at a device's ends, twice each: its header, and the label. */
#include "pool/label.h"
#include "pool_fixture.h"

#define DEVICE_SIZE (4u << 20)
#define VICTIM 2u
#define NAME "d2"

static char logged[4096];

static void keep_log(enum log_level level, const char *line)
{
	size_t used = strlen(logged);

	snprintf(logged + used, sizeof(logged) - used, "%s\n", line);
}

/* --- where they are, and what stood there ------------------------------------------------- */

enum { FIRST, LAST, LABEL_A, LABEL_B, HEADS };
static const char *const names[HEADS] = {
	"first block", "last block", "label in area A", "label in area B"};
static uint8_t stood[HEADS][LABEL_BODY];

static size_t length_of(unsigned head)
{
	return head < LABEL_A ? BLOCK_SIZE : LABEL_BODY;
}

/* As a pool of that epoch has them. */
static uint64_t offset_of(unsigned head, uint64_t epoch)
{
	uint64_t last = DEVICE_SIZE - BLOCK_SIZE;

	return head == FIRST     ? 0
	       : head == LAST    ? last
	       : head == LABEL_A ? label_place(LABEL_A_OFFSET, epoch)
				 : label_place(last - LABEL_AREA, epoch);
}

static const uint8_t *medium(struct fixture *f, unsigned head, uint64_t epoch)
{
	return sim_medium(f->world, NAME) + offset_of(head, epoch);
}

static bool as_it_stood(struct fixture *f, unsigned head, uint64_t epoch)
{
	return !memcmp(medium(f, head, epoch), stood[head], length_of(head));
}

/* Bits of heads. */
static void spoil(struct fixture *f, unsigned heads, uint64_t epoch)
{
	sim_settle(f->world);
	for (unsigned head = 0; head < HEADS; head++) {
		memcpy(stood[head], medium(f, head, epoch), length_of(head));
		if (heads >> head & 1)
			sim_rot(f->world, NAME, offset_of(head, epoch) + 40, 8, 7);
	}
}

/* A pool that was closed under the epoch given back. */
static uint64_t closed_pool(struct fixture *f)
{
	struct error error = {0};
	struct pool *pool;
	uint64_t epoch;

	log_set_sink(keep_log);
	logged[0] = 0;
	fixture_make(f, FIXTURE_DEVICES, 4, 2, DEVICE_SIZE, 3);
	pool = fixture_must_open(f);
	epoch = pool_epoch(pool);
	fixture_make_volume(pool, "models");
	assert_int_equal(pool_close(pool, &error), 0);
	return epoch;
}

static void must_have_volume(struct pool *pool)
{
	struct volume_row row;
	struct txn *view;

	assert_int_equal(view_begin(pool_env(pool), &view), 0);
	assert_int_equal(volume_row_find(view, "models", &row), 0);
	txn_abort(view);
}

static struct pool_device_status device_now(struct pool *pool)
{
	static struct pool_status status;

	pool_status(pool, &status);
	return status.devices[VICTIM];
}

static struct pool *open_to_look(struct fixture *f)
{
	struct pool_open_options options = {.paths = f->paths,
		.path_count = f->devices,
		.host = "alpha",
		.read_only = true,
		.metadata_limit = 16u << 20};
	struct error error = {0};
	struct pool *pool;

	if (pool_open(f->engine, &options, &pool, &error))
		fail_msg("%s: %s", error.object, error.message);
	return pool;
}

/* --- an opening --------------------------------------------------------------------------- */

static void test_an_opening_mends_what_is_bad(void **state)
{
	for (unsigned head = 0; head < HEADS; head++) {
		struct error error = {0};
		struct fixture f;
		uint64_t epoch = closed_pool(&f), blocks = length_of(head) / BLOCK_SIZE;
		struct pool *pool;

		spoil(&f, 1u << head, epoch);
		pool = fixture_must_open(&f);
		assert_int_equal(device_now(pool).state, DEVICE_ACTIVE);
		assert_int_equal(device_now(pool).checksum_errors, blocks);
		assert_int_equal(device_now(pool).repaired, blocks);
		assert_non_null(strstr(logged, names[head]));
		must_have_volume(pool);
		assert_int_equal(pool_close(pool, &error), 0);
		sim_settle(f.world);
		assert_true(as_it_stood(&f, FIRST, epoch) && as_it_stood(&f, LAST, epoch));
		pool = fixture_must_open(&f);
		assert_int_equal(device_now(pool).checksum_errors, 0);
		pool_abandon(pool);
		fixture_free(&f);
	}
}

static void test_looking_mends_nothing(void **state)
{
	for (unsigned head = 0; head < HEADS; head++) {
		struct pool_check_report report;
		struct error error = {0};
		struct fixture f;
		uint64_t epoch = closed_pool(&f), blocks = length_of(head) / BLOCK_SIZE;
		struct pool *pool;

		spoil(&f, 1u << head, epoch);
		pool = open_to_look(&f);
		assert_int_equal(device_now(pool).checksum_errors, blocks);
		logged[0] = 0;
		assert_int_equal(pool_check(pool, false, &report, NULL, NULL, &error), 0);
		assert_int_equal(report.bad_blocks, blocks);
		assert_int_equal(report.repaired_blocks + report.lost_blocks, 0);
		assert_non_null(strstr(logged, NAME ": its "));
		assert_non_null(strstr(logged, names[head]));
		pool_abandon(pool);
		assert_false(as_it_stood(&f, head, epoch));
		fixture_free(&f);
	}
}

static void test_an_unreadable_copy_is_mended(void **state)
{
	struct fixture f;
	uint64_t epoch = closed_pool(&f);
	struct heads heads;
	struct pool *pool;

	spoil(&f, 0, epoch);
	pool = fixture_must_open(&f);
	sim_fail_device_reads(f.world, NAME, -EIO);
	assert_int_equal(heads_look(pool, &heads), 0);
	sim_fail_device_reads(f.world, NAME, 0);
	assert_int_equal(device_now(pool).read_errors, heads.bad_blocks);
	assert_int_equal(heads_mend(pool, &heads, false), 0);
	assert_int_equal(heads.bad_blocks, heads.mended_blocks);
	assert_int_equal(heads_look(pool, &heads), 0);
	assert_int_equal(heads.bad_blocks, 0);
	pool_abandon(pool);
	fixture_free(&f);
}

/* --- a pool that is open ------------------------------------------------------------------ */

static void test_a_check_repairs_each_set_of_copies(void **state)
{
	for (unsigned heads = 1; heads < 1u << HEADS; heads++) {
		struct pool_check_report report;
		struct error error = {0};
		struct fixture f;
		uint64_t bad = 0;
		struct pool *pool;

		closed_pool(&f);
		pool = fixture_must_open(&f);
		spoil(&f, heads, pool_epoch(pool));
		for (unsigned head = 0; head < HEADS; head++)
			bad += (heads >> head & 1) * length_of(head) / BLOCK_SIZE;
		assert_int_equal(pool_check(pool, false, &report, NULL, NULL, &error), 0);
		assert_int_equal(report.bad_blocks, bad);
		assert_int_equal(pool_check(pool, true, &report, NULL, NULL, &error), 0);
		assert_int_equal(report.bad_blocks, bad);
		assert_int_equal(report.repaired_blocks, bad);
		assert_int_equal(device_now(pool).repaired, bad);
		assert_int_equal(pool_check(pool, false, &report, NULL, NULL, &error), 0);
		assert_int_equal(report.bad_blocks, 0);
		fixture_crash(&f, pool, SIM_LOSE_ALL);
		assert_true(as_it_stood(&f, FIRST, 0) && as_it_stood(&f, LAST, 0));
		pool = fixture_must_open(&f);
		assert_int_equal(device_now(pool).state, DEVICE_ACTIVE);
		must_have_volume(pool);
		pool_abandon(pool);
		fixture_free(&f);
	}
}

/* A label that was written before stands there: that write was lost. */
static void test_an_older_label_is_bad(void **state)
{
	struct pool_check_report report;
	struct error error = {0};
	struct fixture f;
	uint64_t epoch;
	struct pool *pool;

	closed_pool(&f);
	pool = fixture_must_open(&f);
	epoch = pool_epoch(pool);
	spoil(&f, 0, epoch);
	assert_int_equal(label_write(pool), 0);
	sim_settle(f.world);
	sim_medium_write(f.world, NAME, offset_of(LABEL_A, epoch), stood[LABEL_A], LABEL_BODY);
	assert_int_equal(pool_check(pool, false, &report, NULL, NULL, &error), 0);
	assert_int_equal(report.bad_blocks, LABEL_BODY / BLOCK_SIZE);
	pool_abandon(pool);
	fixture_free(&f);
}

/* --- what is not touched, what is not taken ------------------------------------------------- */

static void test_another_devices_header_is_left_alone(void **state)
{
	struct pool_check_report report;
	struct device_header header;
	struct error error = {0};
	uint8_t block[BLOCK_SIZE];
	struct fixture f;
	uint64_t epoch = closed_pool(&f);
	struct pool *pool;

	spoil(&f, 0, epoch);
	assert_int_equal(device_header_decode(&header, stood[LAST]), 0);
	header.pool[0] ^= 1;
	assert_int_equal(device_header_encode(&header, block), 0);
	sim_medium_write(f.world, NAME, offset_of(LAST, 0), block, BLOCK_SIZE);
	pool = fixture_must_open(&f);
	assert_int_equal(pool_check(pool, true, &report, NULL, NULL, &error), 0);
	assert_int_equal(report.bad_blocks, 1);
	assert_int_equal(report.repaired_blocks, 0);
	assert_non_null(strstr(logged, "another device's"));
	assert_int_equal(pool_close(pool, &error), 0);
	sim_settle(f.world);
	assert_memory_equal(medium(&f, LAST, 0), block, BLOCK_SIZE);
	fixture_free(&f);
}

/* A drive whose last partition is a device of the pool shows that one's last block as its own. */
static void test_a_header_that_is_a_partitions(void **state)
{
	struct pool_summary summary;
	struct device_header header;
	uint8_t block[BLOCK_SIZE];
	struct fixture f;
	uint64_t epoch = closed_pool(&f);

	spoil(&f, 1u << FIRST, epoch);
	assert_int_equal(pool_probe(f.engine, NAME, &summary), 0);
	assert_int_equal(device_header_decode(&header, stood[LAST]), 0);
	header.size -= BLOCK_SIZE;
	header.label_b_offset -= BLOCK_SIZE;
	assert_int_equal(device_header_encode(&header, block), 0);
	sim_medium_write(f.world, NAME, offset_of(LAST, 0), block, BLOCK_SIZE);
	assert_int_equal(pool_probe(f.engine, NAME, &summary), -EBADMSG);
	assert_int_equal(summary.devices_found, 0);
	fixture_free(&f);
}

static void test_a_device_that_was_larger_is_named(void **state)
{
	struct pool_summary whole, summary;
	struct device_header header;
	uint8_t block[BLOCK_SIZE];
	struct fixture f;

	closed_pool(&f);
	assert_int_equal(pool_probe(f.engine, NAME, &whole), 0);
	assert_int_equal(device_header_decode(&header, stood[FIRST]), 0);
	header.size += BLOCK_SIZE;
	assert_int_equal(device_header_encode(&header, block), 0);
	sim_settle(f.world);
	sim_medium_write(f.world, NAME, offset_of(FIRST, 0), block, BLOCK_SIZE);
	assert_int_equal(pool_probe(f.engine, NAME, &summary), -EBADMSG);
	assert_int_equal(summary.devices_found, 1);
	assert_memory_equal(summary.uuid, whole.uuid, 16);
	fixture_free(&f);
}

static void test_a_device_without_a_header_is_named(void **state)
{
	static struct pool_status status;
	struct pool_summary whole, summary;
	struct fixture f;
	uint64_t epoch = closed_pool(&f);
	struct pool *pool;

	assert_int_equal(pool_probe(f.engine, NAME, &whole), 0);
	spoil(&f, 1u << FIRST | 1u << LAST, epoch);
	assert_int_equal(pool_probe(f.engine, NAME, &summary), -EBADMSG);
	assert_int_equal(summary.devices_found, 0);
	assert_memory_equal(summary.uuid, whole.uuid, 16);
	pool = open_to_look(&f);
	pool_status(pool, &status);
	assert_int_equal(status.devices[VICTIM].state, DEVICE_MISSING);
	assert_string_equal(status.unreadable, NAME);
	must_have_volume(pool);
	pool_abandon(pool);
	fixture_free(&f);
}

static void test_a_device_without_labels_is_used(void **state)
{
	static struct pool_status status;
	struct pool_summary whole, summary;
	struct fixture f;
	uint64_t epoch = closed_pool(&f);
	struct pool *pool;

	assert_int_equal(pool_probe(f.engine, NAME, &whole), 0);
	sim_settle(f.world);
	for (unsigned place = 0; place < LABEL_RING; place++) {
		sim_rot(f.world, NAME, offset_of(LABEL_A, place), LABEL_BODY, 3);
		sim_rot(f.world, NAME, offset_of(LABEL_B, place), LABEL_BODY, 4);
	}
	assert_int_equal(pool_probe(f.engine, NAME, &summary), -EBADMSG);
	assert_int_equal(summary.devices_found, 1);
	assert_memory_equal(summary.uuid, whole.uuid, 16);
	pool = fixture_must_open(&f);
	pool_status(pool, &status);
	assert_string_equal(status.unreadable, "");
	assert_int_equal(status.devices[VICTIM].state, DEVICE_ACTIVE);
	assert_int_equal(status.devices[VICTIM].repaired, 2 * LABEL_BODY / BLOCK_SIZE);
	assert_true(pool_epoch(pool) > epoch);
	pool_abandon(pool);
	assert_int_equal(pool_probe(f.engine, NAME, &summary), 0);
	fixture_free(&f);
}

/* --- crashes ------------------------------------------------------------------------------ */

/* The opening that mends header copy `head` loses power at its n-th write or flush; false: it came
 * to its end before. */
static bool crash_at(struct fixture *f, struct sim_image *image, unsigned head, uint64_t n)
{
	struct error error;
	struct pool *pool;
	bool cut;

	assert_int_equal(sim_restore(f->world, image), 0);
	sim_seed(f->world, n);
	sim_cut_power_at(f->engine, n);
	if (fixture_open(f, &pool, &error))
		pool = NULL;
	cut = sim_power_was_cut(f->engine);
	assert_true(pool || cut);
	sim_cut_power(f->world);
	if (pool)
		pool_abandon(pool);
	sim_drain(f->world);
	sim_power_on(f->world, SIM_RANDOM);
	assert_true(as_it_stood(f, head == FIRST ? LAST : FIRST, 0));
	pool = fixture_must_open(f);
	assert_int_equal(device_now(pool).state, DEVICE_ACTIVE);
	must_have_volume(pool);
	pool_abandon(pool);
	sim_settle(f->world);
	assert_true(as_it_stood(f, FIRST, 0) && as_it_stood(f, LAST, 0));
	return cut;
}

static void test_a_crash_while_a_header_is_mended(void **state)
{
	for (unsigned head = FIRST; head <= LAST; head++) {
		struct sim_image *image = NULL;
		struct fixture f;
		uint64_t n = 1;

		spoil(&f, 1u << head, closed_pool(&f));
		assert_int_equal(sim_save(f.world, &image), 0);
		while (crash_at(&f, image, head, n))
			n++;
		assert_true(n > 20);
		sim_image_free(image);
		fixture_free(&f);
	}
}

/* The device that takes no write is dropped, as for any other. */
static void test_a_header_that_cannot_be_mended(void **state)
{
	struct fixture f;
	struct heads heads;
	struct pool *pool;

	closed_pool(&f);
	pool = fixture_must_open(&f);
	spoil(&f, 1u << FIRST, pool_epoch(pool));
	assert_int_equal(heads_look(pool, &heads), 0);
	sim_fail_device_writes(f.world, NAME, -EIO);
	assert_int_equal(heads_mend(pool, &heads, false), 0);
	assert_int_equal(heads.mended_blocks, 0);
	assert_int_equal(pool_drop_failing(pool), 0);
	assert_int_equal(device_now(pool).state, DEVICE_DROPPED);
	pool_abandon(pool);
	fixture_free(&f);
}

/* A feature of a later version, which may read what it does not know how to write. */
static void test_what_a_later_version_writes_is_only_read(void **state)
{
	struct pool_open_options options = {.name = "tank", .host = "alpha", .fenced = true};
	struct device_header header;
	struct error error = {0};
	uint8_t block[BLOCK_SIZE];
	struct fixture f;
	struct pool *pool;

	closed_pool(&f);
	sim_settle(f.world);
	assert_int_equal(device_header_decode(&header, sim_medium(f.world, NAME)), 0);
	header.read_only = UINT64_C(1) << 9;
	assert_int_equal(device_header_encode(&header, block), 0);
	sim_medium_write(f.world, NAME, offset_of(FIRST, 0), block, BLOCK_SIZE);
	sim_medium_write(f.world, NAME, offset_of(LAST, 0), block, BLOCK_SIZE);
	options.paths = f.paths;
	options.path_count = f.devices;
	assert_int_equal(pool_open(f.engine, &options, &pool, &error), -EROFS);
	assert_non_null(strstr(error.message, "a later version"));
	pool = fixture_must_open(&f);
	assert_true(pool_is_read_only(pool));
	must_have_volume(pool);
	assert_int_equal(pool_close(pool, &error), 0);
	fixture_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_opening_mends_what_is_bad),
		cmocka_unit_test(test_looking_mends_nothing),
		cmocka_unit_test(test_an_unreadable_copy_is_mended),
		cmocka_unit_test(test_a_check_repairs_each_set_of_copies),
		cmocka_unit_test(test_an_older_label_is_bad),
		cmocka_unit_test(test_another_devices_header_is_left_alone),
		cmocka_unit_test(test_a_header_that_is_a_partitions),
		cmocka_unit_test(test_a_device_that_was_larger_is_named),
		cmocka_unit_test(test_a_device_without_a_header_is_named),
		cmocka_unit_test(test_a_device_without_labels_is_used),
		cmocka_unit_test(test_a_crash_while_a_header_is_mended),
		cmocka_unit_test(test_a_header_that_cannot_be_mended),
		cmocka_unit_test(test_what_a_later_version_writes_is_only_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
