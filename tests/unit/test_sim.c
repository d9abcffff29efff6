/* SPDX-License-Identifier: LGPL-3.0-or-later. The simulated world: requests, their order and their
 * cost. links: device */
#include "test_sim.h"

/* --- requests ----------------------------------------------------------------------------- */

static void reads_see_the_cache(void **state)
{
	struct fixture f = start(1, false);

	assert_int_equal(put(&f, 3, 'x', 0), 0);
	assert_int_equal(get(&f, 3), 'x');
	assert_int_equal(medium(&f, 3), 0);
	assert_int_equal(flush(&f), 0);
	assert_int_equal(medium(&f, 3), 'x');
	finish(&f);
}

static void vectors_are_gathered_and_scattered(void **state)
{
	struct fixture f = start(1, false);
	struct iovec iov[2] = {{f.buffer, BLOCK_SIZE}, {f.back, BLOCK_SIZE}};
	struct io io;

	memset(f.buffer, 'p', BLOCK_SIZE);
	memset(f.back, 'q', BLOCK_SIZE);
	io_prepare(&io, IO_WRITE, f.device, BLOCK_SIZE, NULL, 0);
	io.iov = iov;
	io.iov_count = 2;
	assert_int_equal(io_run(f.engine, &io), 0);
	io.op = IO_READ;
	iov[0].iov_base = f.back;
	iov[1].iov_base = f.buffer;
	assert_int_equal(io_run(f.engine, &io), 0);
	assert_int_equal(f.back[0], 'p');
	assert_int_equal(f.buffer[0], 'q');
	finish(&f);
}

static void beyond_the_end_is_eio(void **state)
{
	struct fixture f = start(1, false);

	assert_int_equal(put(&f, BLOCKS - 1, 1, 0), 0);
	assert_int_equal(put(&f, BLOCKS, 1, 0), -EIO);
	assert_int_equal(run(&f, IO_READ, 0, BLOCKS, f.back), -EIO);
	finish(&f);
}

static unsigned completion_order(uint64_t seed, bool reorder)
{
	struct fixture f = start(seed, reorder);
	struct noted n[4];
	unsigned order = 0;

	ended = 0;
	for (unsigned i = 0; i < 4; i++)
		note(&f, &n[i], IO_WRITE, i, 1);
	sim_drain(f.world);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(n[i].io.result, 0);
		order = order * 10 + n[i].order;
		forget(&f, &n[i]);
	}
	finish(&f);
	return order;
}

static void order_comes_from_the_seed(void **state)
{
	unsigned differ = 0;

	assert_int_equal(completion_order(7, false), 1234);
	for (uint64_t seed = 0; seed < 50; seed++) {
		assert_int_equal(completion_order(seed, true), completion_order(seed, true));
		differ += completion_order(seed, true) != 1234;
	}
	assert_true(differ > 40);
}

static void a_world_that_stands_still_is_a_deadlock(void **state)
{
	struct fixture f = start(1, false);
	struct event event;

	event_init(&event, f.engine);
	assert_int_equal(event_wait(&event), -EDEADLK);
	event_signal(&event, 5);
	assert_int_equal(event_wait(&event), 5);
	finish(&f);
}

static void ignore(struct io *io)
{
}

static void what_a_device_did_is_counted_with_its_time(void **state)
{
	struct fixture f = start(1, false);
	struct device_counters before, c;
	struct io io, *list[] = {&io};

	device_counters(f.device, &before);
	assert_int_equal(before.of[IO_WRITE].done, 0);
	sim_delay(f.world, "a", 1000000);
	assert_int_equal(put(&f, 0, 'x', 0), 0);
	device_counters(f.device, &c);
	assert_int_equal(c.of[IO_WRITE].done, 1);
	assert_int_equal(c.of[IO_WRITE].bytes, BLOCK_SIZE);
	assert_true(c.of[IO_WRITE].ns >= 1000000);
	assert_true(c.of[IO_WRITE].ns <= c.elapsed - before.elapsed);
	io_prepare(&io, IO_READ, f.device, 0, f.back, BLOCK_SIZE);
	io.done = ignore;
	io_submit(f.engine, list, 1);
	device_counters(f.device, &c);
	assert_int_equal(c.under_way, 1);
	assert_int_equal(c.of[IO_READ].done, 0);
	engine_sleep(f.engine, 2000000);
	device_counters(f.device, &c);
	assert_int_equal(c.under_way, 0);
	assert_int_equal(c.of[IO_READ].done, 1);
	finish(&f);
}

static void sleep_runs_what_falls_due(void **state)
{
	struct fixture f = start(1, true);
	uint64_t before = engine_clock(f.engine), time = engine_time(f.engine);
	struct noted n;

	sim_delay(f.world, "a", 1000000);
	note(&f, &n, IO_READ, 0, 0);
	engine_poll(f.engine);
	engine_sleep(f.engine, 500000);
	assert_int_equal(n.order, 0);
	assert_int_equal(engine_clock(f.engine), before + 500000);
	engine_sleep(f.engine, 500000);
	assert_int_not_equal(n.order, 0);
	assert_int_equal(engine_time(f.engine) - time, engine_clock(f.engine) - before);
	sim_delay(f.world, "a", 0);
	forget(&f, &n);
	note(&f, &n, IO_READ, 0, 0);
	n.order = 0;
	engine_poll(f.engine);
	assert_int_not_equal(n.order, 0);
	forget(&f, &n);
	finish(&f);
}

static void randomness_repeats_with_the_seed(void **state)
{
	struct fixture f = start(9, false), g = start(9, true);
	uint8_t a[32], b[32];

	engine_random(f.engine, a, sizeof(a));
	engine_random(g.engine, b, sizeof(b));
	assert_memory_equal(a, b, sizeof(a));
	engine_random(f.engine, a, sizeof(a));
	assert_memory_not_equal(a, b, sizeof(a));
	finish(&f);
	finish(&g);
}

static void counters_count(void **state)
{
	struct fixture f = start(1, false);
	struct engine_counters c;

	put(&f, 0, 1, 0);
	get(&f, 0);
	flush(&f);
	put(&f, BLOCKS, 1, 0);
	engine_counters(f.engine, &c);
	assert_int_equal(c.writes, 1);
	assert_int_equal(c.read_bytes, BLOCK_SIZE);
	assert_int_equal(c.flushes, 1);
	assert_int_equal(c.errors, 1);
	assert_int_equal(sim_writes_and_flushes(f.engine), 3);
	finish(&f);
}

static void exclusive_is_once_per_host(void **state)
{
	struct fixture f = start(1, false);
	struct device *one, *two = NULL;
	struct error error = {0};

	assert_int_equal(device_open(f.engine, "b", DEVICE_EXCLUSIVE, &one, NULL), 0);
	assert_int_equal(device_open(f.engine, "b", DEVICE_EXCLUSIVE, &two, &error), -EBUSY);
	assert_string_equal(error.object, "b");
	assert_null(two);
	device_close(one);
	assert_int_equal(device_open(f.engine, "b", DEVICE_EXCLUSIVE, &two, NULL), 0);
	device_close(two);
	assert_int_equal(device_open(f.engine, "none", 0, &two, NULL), -ENOENT);
	finish(&f);
}

/* --- cost: printed, not asserted ---------------------------------------------------------- */

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void restoring_is_cheap(void **state)
{
	struct sim_world *world;
	struct sim_image *image = NULL;
	uint8_t block[BLOCK_SIZE] = {1};
	char name[] = "0";
	double began;

	assert_int_equal(sim_world_create(&(struct sim_options){1, true}, &world), 0);
	for (name[0] = '0'; name[0] < '6'; name[0]++)
		assert_int_equal(sim_add_device(world, name, 2 << 20), 0);
	began = seconds();
	assert_int_equal(sim_save(world, &image), 0);
	print_message("first save of 6 x 2 MiB: %.0f us\n", (seconds() - began) * 1e6);
	began = seconds();
	for (unsigned i = 0; i < 1000; i++) {
		for (name[0] = '0'; name[0] < '6'; name[0]++) {
			for (unsigned b = 0; b < 8; b++)
				sim_medium_write(world, name, b * 65536, block, sizeof(block));
		}
		assert_int_equal(sim_restore(world, image), 0);
	}
	print_message("48 blocks changed and restored: %.1f us\n", (seconds() - began) * 1e3);
	sim_image_free(image);
	sim_world_destroy(world);
}

static void requests_are_cheap(void **state)
{
	enum { COUNT = 20000 };
	struct fixture f = start(1, true);
	double began = seconds();

	for (unsigned i = 0; i < COUNT; i++) {
		put(&f, i % BLOCKS, 'a', 0);
		if (i % 16 == 0)
			flush(&f);
	}
	print_message("a 4 KiB write and its share of a flush: %.0f ns\n",
		(seconds() - began) / COUNT * 1e9);
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_see_the_cache),
		cmocka_unit_test(vectors_are_gathered_and_scattered),
		cmocka_unit_test(beyond_the_end_is_eio),
		cmocka_unit_test(order_comes_from_the_seed),
		cmocka_unit_test(a_world_that_stands_still_is_a_deadlock),
		cmocka_unit_test(what_a_device_did_is_counted_with_its_time),
		cmocka_unit_test(sleep_runs_what_falls_due),
		cmocka_unit_test(randomness_repeats_with_the_seed),
		cmocka_unit_test(counters_count),
		cmocka_unit_test(exclusive_is_once_per_host),
		cmocka_unit_test(restoring_is_cheap),
		cmocka_unit_test(requests_are_cheap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
