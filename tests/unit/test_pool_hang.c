/* SPDX-License-Identifier: LGPL-3.0-or-later. Devices that hang. links: pool */
/* Devices that are there and do not answer: who looks at them for a pool goes on without them. */
#include "pool_fixture.h"

#include "common/log.h"

#define SECOND (UINT64_C(1000) * 1000 * 1000)
#define LONG (100 * SECOND)

static void quiet(enum log_level level, const char *line)
{
}

static void hang(struct fixture *f, unsigned set, uint64_t delay)
{
	for (unsigned i = 0; i < f->devices; i++)
		sim_delay(f->world, f->names[i], set >> i & 1 ? delay : 0);
}

static void answer(struct fixture *f)
{
	hang(f, 0, 0);
	sim_drain(f->world);
}

/* The device's first block. */
static int read_in_time(struct engine *engine, struct device *device, uint8_t *block)
{
	struct asked *asked = device_ask(engine, device, 0, BLOCK_SIZE);
	int rc = asked_answer(asked, engine_clock(engine) + DEVICE_ANSWER_NS);

	if (!rc)
		memcpy(block, asked_memory(asked), BLOCK_SIZE);
	asked_end(asked);
	return rc;
}

static void test_a_read_is_waited_for_so_long(void **state)
{
	struct fixture f;
	struct device *device;
	struct error error = {0};
	uint8_t wanted[BLOCK_SIZE], found[BLOCK_SIZE];
	uint64_t began;

	fixture_make(&f, 6, 4, 2, 8 << 20, 1);
	assert_int_equal(device_open(f.engine, "d0", DEVICE_READ_ONLY, &device, &error), 0);
	assert_int_equal(read_in_time(f.engine, device, wanted), 0);
	hang(&f, 1, DEVICE_ANSWER_NS - SECOND);
	assert_int_equal(read_in_time(f.engine, device, found), 0);
	assert_memory_equal(found, wanted, BLOCK_SIZE);
	hang(&f, 1, LONG);
	began = engine_clock(f.engine);
	assert_int_equal(read_in_time(f.engine, device, found), -ETIMEDOUT);
	assert_in_range(
		engine_clock(f.engine) - began, DEVICE_ANSWER_NS, DEVICE_ANSWER_NS + SECOND);
	device_close(device);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(device_open(f.engine, "d0", 0, &device, &error), -ETIMEDOUT);
	assert_int_equal(device_open(f.engine, "d1", DEVICE_READ_ONLY, &device, &error), 0);
	device_close(device);
	answer(&f);
	assert_int_equal(device_open(f.engine, "d0", DEVICE_READ_ONLY, &device, &error), 0);
	assert_int_equal(read_in_time(f.engine, device, found), 0);
	sim_kill_device(f.world, "d0");
	assert_int_equal(read_in_time(f.engine, device, found), -ENODEV);
	device_close(device);
	error_clear(&error);
	fixture_free(&f);
}

/* Up to parity of them: the pool is opened without, and they are taken back when they answer. */
static void test_each_set_is_left_out(void **state)
{
	for (unsigned set = 0; set < 1u << 6; set++) {
		unsigned count = (unsigned)__builtin_popcount(set);
		struct pool_summary summary;
		struct error error = {0};
		struct fixture f;
		struct pool *pool;
		uint64_t began;

		if (count > 3)
			continue;
		fixture_make(&f, 6, 4, 2, 8 << 20, set);
		hang(&f, set, LONG);
		began = engine_clock(f.engine);
		for (unsigned i = 0; set % 3 == 0 && i < 6; i++) /* in turn, before */
			assert_int_equal(pool_probe(f.engine, f.paths[i], &summary),
				set >> i & 1 ? -ETIMEDOUT : 0);
		assert_int_equal(fixture_open(&f, &pool, &error), count > 2 ? -EIO : 0);
		assert_true(engine_clock(f.engine) - began < LONG);
		answer(&f);
		if (count <= 2) {
			assert_int_equal(pool_not_whole(pool), count);
			for (unsigned i = 0; i < 6; i++)
				if (set >> i & 1)
					assert_int_equal(pool_attach(pool, f.paths[i], &error), 0);
			assert_int_equal(pool_close(pool, &error), 0);
		}
		pool = fixture_must_open(&f);
		assert_int_equal(pool_close(pool, &error), 0);
		error_clear(&error);
		fixture_free(&f);
	}
}

static uint64_t time_to_open(unsigned devices)
{
	struct error error = {0};
	struct fixture f;
	struct pool *pool;
	uint64_t began, took;

	fixture_make(&f, devices, 4, 2, 8 << 20, 1);
	hang(&f, UINT32_MAX, SECOND / 20);
	began = engine_clock(f.engine);
	pool = fixture_must_open(&f);
	took = engine_clock(f.engine) - began;
	assert_int_equal(pool_close(pool, &error), 0);
	error_clear(&error);
	fixture_free(&f);
	return took;
}

/* Each may be far away. */
static void test_devices_are_looked_at_at_once(void **state)
{
	uint64_t few = time_to_open(6), many = time_to_open(16);

	printf("[of 6 devices %llu ms, of 16 devices %llu ms]\n", (unsigned long long)few / 1000000,
		(unsigned long long)many / 1000000);
	assert_in_range(many, few / 2, few * 5 / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_read_is_waited_for_so_long),
		cmocka_unit_test(test_each_set_is_left_out),
		cmocka_unit_test(test_devices_are_looked_at_at_once),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
