/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Where everything lies on devices of any size, with cells of any size: what is made can be opened.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/engine.h"
#include "pool/create.h"

#define CELL_LEAST 4096u
#define CELL_MOST (4u << 20)
#define SIZE_MOST (32ull << 40)

static const struct code {
	unsigned data, parity, devices;
} codes[] = {{1, 1, 2}, {4, 2, 6}, {8, 2, 12}, {30, 2, 32}, {16, 16, 32}, {8, 2, 64}};

/* --- geometry ----------------------------------------------------------------------------- */

/* True when the cells are what is wrong. */
static bool too_small_cells(const struct error *error)
{
	return strstr(error->message, "use a larger --cell");
}

static int plan(const struct code *code, uint32_t cell, uint64_t size, struct device_header *h,
	struct error *error)
{
	struct device_header headers[POOL_DEVICES_MAX];
	struct pool_create_device devices[POOL_DEVICES_MAX];
	struct pool_create_options options = {.name = "tank",
		.data = code->data,
		.parity = code->parity,
		.cell = cell,
		.devices = devices,
		.device_count = code->devices};
	uint64_t sizes[POOL_DEVICES_MAX];
	int rc;

	memset(error, 0, sizeof(*error));
	for (unsigned i = 0; i < code->devices; i++) {
		devices[i] = (struct pool_create_device){.path = "device"};
		sizes[i] = size + (uint64_t)i * BLOCK_SIZE;
	}
	rc = geometry_plan(&options, sizes, headers, error);
	assert_true(!rc || (rc == -EINVAL && error->message[0]));
	*h = headers[0];
	return rc;
}

static void check(const struct device_header *h, uint32_t cell, uint64_t size)
{
	uint64_t chunk = (uint64_t)h->slot_rows * h->cell;
	struct device_header again;
	uint8_t block[BLOCK_SIZE];

	assert_int_equal(device_header_encode(h, block), 0);
	assert_int_equal(device_header_decode(&again, block), 0);
	assert_int_equal(h->cell, cell);
	assert_int_equal(h->size, size);
	assert_true(chunk <= CHUNK_MOST && h->slot_rows >= 8);
	assert_true(h->journal_offset >= LABEL_A_OFFSET + LABEL_AREA);
	assert_int_equal(h->journal_offset >= FENCING_OFFSET + FENCING_SIZE, size >= 1ull << 30);
	assert_true(h->slot_count >= (h->slot_rows > 8 ? 1000u : 100u));
	/* Little is left over, and large devices have large slots. */
	assert_true(h->slots_offset + (h->slot_count + 1ull) * h->slot_size > h->label_b_offset);
	assert_true(size < 1ull << 40 || chunk >= 16u << 20);
}

/* Devices of some megabytes are too small, larger ones never, unless for small cells. */
static void check_sizes(const struct code *code, uint32_t cell)
{
	uint64_t size = 1u << 20, accepted = 0;
	struct device_header h;
	struct error error;

	for (; size <= SIZE_MOST; size += size / 7 / BLOCK_SIZE * BLOCK_SIZE) {
		int rc = plan(code, cell, size, &h, &error);

		if (!rc || too_small_cells(&error))
			accepted = accepted ? accepted : size;
		assert_true(!rc || !accepted || (cell < 128u << 10 && too_small_cells(&error)));
		assert_true(!rc || !too_small_cells(&error) || code->devices > 32 ||
			    size > 16ull << 40);
		if (!rc)
			check(&h, cell, size);
	}
	assert_true(accepted && accepted < (64ull << 20) + 1000ull * cell);
}

static void test_all_cells_on_all_sizes(void **state)
{
	for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		for (uint32_t cell = CELL_LEAST; cell <= CELL_MOST; cell *= 2)
			check_sizes(&codes[i], cell);
}

static void test_the_usual_geometry(void **state)
{
	struct device_header h;
	struct error error;

	assert_int_equal(plan(&codes[1], 0, 100ull << 30, &h, &error), 0);
	assert_int_equal(h.cell, 128u << 10);
	assert_int_equal(h.slot_rows, 512);
	assert_int_equal(plan(&codes[1], 4096, 16ull << 40, &h, &error), 0);
	assert_int_equal(h.slot_rows, 4096);
	assert_int_equal(plan(&codes[1], 4u << 20, 16ull << 40, &h, &error), 0);
	assert_int_equal(h.slot_rows, 256);
}

/* What would begin behind the device's end and end before it. */
static void test_places_that_wrap_around(void **state)
{
	struct device_header h, again;
	struct error error;
	uint8_t block[BLOCK_SIZE];

	assert_int_equal(plan(&codes[1], 0, 1ull << 30, &h, &error), 0);
	again = h;
	again.journal_offset = -again.journal_size;
	assert_int_equal(device_header_encode(&again, block), 0);
	assert_int_equal(device_header_decode(&again, block), -EBADMSG);
	again = h;
	again.label_b_offset = -(uint64_t)BLOCK_SIZE;
	assert_int_equal(device_header_encode(&again, block), 0);
	assert_int_equal(device_header_decode(&again, block), -EBADMSG);
}

static int decode_with(
	const struct device_header *h, unsigned parity, unsigned matrix, uint64_t features)
{
	struct device_header changed = *h, again;
	uint8_t block[BLOCK_SIZE];

	changed.parity = (uint8_t)parity;
	changed.matrix = (uint8_t)matrix;
	changed.incompatible = features;
	assert_int_equal(device_header_encode(&changed, block), 0);
	return device_header_decode(&again, block);
}

/* A version that does not know a matrix refuses the pool, and does not take its devices for blank
 * ones: that is what the feature is for. */
static void test_what_is_coded_in_an_unknown_way_is_refused(void **state)
{
	struct device_header h;
	struct error error;

	assert_int_equal(plan(&codes[4], 0, 100ull << 30, &h, &error), 0);
	assert_int_equal(h.matrix, MATRIX_CAUCHY);
	assert_int_equal(h.incompatible, 0);
	assert_int_equal(decode_with(&h, h.parity, MATRIX_PQ, FEATURE_PQ), -EBADMSG);
	assert_int_equal(plan(&codes[1], 0, 100ull << 30, &h, &error), 0);
	assert_int_equal(h.matrix, MATRIX_PQ);
	assert_int_equal(h.incompatible, FEATURE_PQ);
	assert_int_equal(decode_with(&h, 2, MATRIX_CAUCHY, 0), 0);
	assert_int_equal(decode_with(&h, 2, MATRIX_PQ, 0), -EBADMSG);
	assert_int_equal(decode_with(&h, 2, 0, FEATURE_PQ), -EBADMSG);
	assert_int_equal(decode_with(&h, 2, MATRIX_PQ + 1, FEATURE_PQ), -EBADMSG);
	assert_int_equal(decode_with(&h, 2, MATRIX_PQ, FEATURE_PQ | FEATURE_PQ << 1), -ENOTSUP);
}

/* --- on files with nothing in them -------------------------------------------------------- */

#define FILES 2

static char directory[64], paths[FILES][80];

static int make_files(void **state)
{
	snprintf(directory, sizeof(directory), "/tmp/create-XXXXXX");
	assert_non_null(mkdtemp(directory));
	for (unsigned i = 0; i < FILES; i++)
		snprintf(paths[i], sizeof(paths[i]), "%s/d%u", directory, i);
	return 0;
}

static int remove_files(void **state)
{
	for (unsigned i = 0; i < FILES; i++)
		unlink(paths[i]);
	return rmdir(directory);
}

/* False where the file system has no files of that size. */
static bool make_devices(uint64_t size)
{
	for (unsigned i = 0; i < FILES; i++) {
		int fd = open(paths[i], O_RDWR | O_CREAT, 0600);
		int rc;

		assert_true(fd >= 0);
		rc = ftruncate(fd, (off_t)size);
		close(fd);
		if (rc)
			return false;
	}
	return true;
}

static void create_open_close(uint32_t cell)
{
	struct pool_create_device devices[FILES] = {
		{.path = paths[0], .domain = "a"}, {.path = paths[1], .domain = "b"}};
	struct pool_create_options create = {.name = "tank",
		.data = 1,
		.parity = 1,
		.cell = cell,
		.devices = devices,
		.device_count = FILES,
		.host = "alpha",
		.force = true};
	const char *list[FILES] = {paths[0], paths[1]};
	struct pool_open_options options = {.paths = list,
		.path_count = FILES,
		.name = "tank",
		.host = "alpha",
		.scratch_dir = directory,
		.metadata_limit = 64u << 20};
	struct error error = {0};
	struct engine *engine;
	struct pool *pool;

	assert_int_equal(uring_engine_create(NULL, &engine, &error), 0);
	if (pool_create(engine, &create, &error))
		fail_msg("%s: %s", error.object, error.message);
	for (unsigned i = 0; i < 2; i++) {
		if (pool_open(engine, &options, &pool, &error))
			fail_msg("%s: %s", error.object, error.message);
		assert_int_equal(pool_close(pool, &error), 0);
	}
	engine_destroy(engine);
}

static void test_large_devices_with_large_cells(void **state)
{
	if (!make_devices(2400000000000))
		skip();
	create_open_close(4u << 20);
	create_open_close(4096);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_cells_on_all_sizes),
		cmocka_unit_test(test_the_usual_geometry),
		cmocka_unit_test(test_places_that_wrap_around),
		cmocka_unit_test(test_what_is_coded_in_an_unknown_way_is_refused),
		cmocka_unit_test_setup_teardown(
			test_large_devices_with_large_cells, make_files, remove_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
