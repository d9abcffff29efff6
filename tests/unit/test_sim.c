/* SPDX-License-Identifier: LGPL-3.0-or-later. The simulated world. links: device */
#include "device/sim.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define SIZE (256 * 1024u)
#define BLOCKS (SIZE / BLOCK_SIZE)

struct fixture {
	struct sim_world *world;
	struct engine *engine;
	struct device *device;
	uint8_t *buffer, *back; /* a block each */
};

static struct fixture start(uint64_t seed, bool reorder)
{
	struct fixture f = {0};

	assert_int_equal(sim_world_create(&(struct sim_options){seed, reorder}, &f.world), 0);
	assert_int_equal(sim_add_device(f.world, "a", SIZE), 0);
	assert_int_equal(sim_add_device(f.world, "b", SIZE), 0);
	assert_int_equal(sim_engine_create(f.world, &f.engine), 0);
	assert_int_equal(device_open(f.engine, "a", 0, &f.device, NULL), 0);
	f.buffer = buffer_alloc(f.engine, BLOCK_SIZE);
	f.back = buffer_alloc(f.engine, BLOCK_SIZE);
	return f;
}

static void finish(struct fixture *f)
{
	buffer_free(f->engine, f->buffer, BLOCK_SIZE);
	buffer_free(f->engine, f->back, BLOCK_SIZE);
	device_close(f->device);
	engine_destroy(f->engine);
	sim_world_destroy(f->world);
}

static int run(struct fixture *f, enum io_op op, unsigned flags, unsigned block, void *buffer)
{
	struct io io;

	io_prepare(&io, op, f->device, (uint64_t)block * BLOCK_SIZE, buffer, BLOCK_SIZE);
	io.flags = flags;
	return io_run(f->engine, &io);
}

static int put(struct fixture *f, unsigned block, int value, unsigned flags)
{
	memset(f->buffer, value, BLOCK_SIZE);
	return run(f, IO_WRITE, flags, block, f->buffer);
}

static int flush(struct fixture *f)
{
	return run(f, IO_FLUSH, 0, 0, NULL);
}

/* The value that fills a block as a read sees it; -1 when it is mixed. */
static int get(struct fixture *f, unsigned block)
{
	assert_int_equal(run(f, IO_READ, 0, block, f->back), 0);
	for (unsigned i = 1; i < BLOCK_SIZE; i++) {
		if (f->back[i] != f->back[0])
			return -1;
	}
	return f->back[0];
}

static int medium(struct fixture *f, unsigned block)
{
	return sim_medium(f->world, "a")[block * BLOCK_SIZE];
}

static void power_on(struct fixture *f, enum sim_policy policy)
{
	sim_power_on(f->world, policy);
	device_close(f->device);
	assert_int_equal(device_open(f->engine, "a", 0, &f->device, NULL), 0);
}

/* A request that only notes its end. */
struct noted {
	struct io io;
	unsigned order; /* 0: not done */
	uint8_t *buffer;
};
static unsigned ended;

static void note_done(struct io *io)
{
	((struct noted *)io->data)->order = ++ended;
}

static void note(struct fixture *f, struct noted *n, enum io_op op, unsigned block, int value)
{
	struct io *io = &n->io;

	n->buffer = op == IO_FLUSH ? NULL : buffer_alloc(f->engine, BLOCK_SIZE);
	if (n->buffer)
		memset(n->buffer, value, BLOCK_SIZE);
	n->order = 0;
	io_prepare(io, op, f->device, (uint64_t)block * BLOCK_SIZE, n->buffer, BLOCK_SIZE);
	io->done = note_done;
	io->data = n;
	io_submit(f->engine, &io, 1);
}

static void forget(struct fixture *f, struct noted *n)
{
	buffer_free(f->engine, n->buffer, BLOCK_SIZE);
}

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

/* --- power -------------------------------------------------------------------------------- */

static void unflushed_writes_can_vanish(void **state)
{
	struct fixture f = start(1, false);

	put(&f, 0, 'a', 0);
	flush(&f);
	put(&f, 0, 'b', 0);
	put(&f, 1, 'f', IO_FUA);
	sim_cut_power(f.world);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 1), 'f');
	finish(&f);
}

static void unflushed_writes_can_survive(void **state)
{
	struct fixture f = start(1, false);

	put(&f, 0, 'a', 0);
	put(&f, 0, 'b', 0);
	sim_cut_power(f.world);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 0), 'b');
	finish(&f);
}

static void a_flush_covers_only_what_was_done_before(void **state)
{
	struct fixture f = start(1, false);
	struct noted write, barrier;

	note(&f, &write, IO_WRITE, 0, 'w');
	note(&f, &barrier, IO_FLUSH, 0, 0);
	sim_drain(f.world);
	assert_int_equal(medium(&f, 0), 0);
	assert_int_equal(flush(&f), 0);
	assert_int_equal(medium(&f, 0), 'w');
	forget(&f, &write);
	finish(&f);
}

static void a_durable_write_is_not_undone_by_an_older_one(void **state)
{
	struct fixture f = start(1, false);
	struct io io;
	uint8_t *wide = buffer_alloc(f.engine, 3 * BLOCK_SIZE);

	memset(wide, 'o', 3 * BLOCK_SIZE);
	io_prepare(&io, IO_WRITE, f.device, 0, wide, 3 * BLOCK_SIZE);
	assert_int_equal(io_run(f.engine, &io), 0);
	put(&f, 1, 'n', IO_FUA);
	assert_int_equal(get(&f, 0), 'o');
	assert_int_equal(get(&f, 1), 'n');
	assert_int_equal(get(&f, 2), 'o');
	assert_int_equal(medium(&f, 0), 0);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 0), 'o');
	assert_int_equal(get(&f, 1), 'n');
	assert_int_equal(get(&f, 2), 'o');
	buffer_free(f.engine, wide, 3 * BLOCK_SIZE);
	finish(&f);
}

static void write_through_is_durable_when_done(void **state)
{
	struct fixture f = start(1, false);

	sim_set_volatile(f.world, "a", false);
	put(&f, 0, 'a', 0);
	power_on(&f, SIM_LOSE_ALL);
	assert_false(device_info(f.device)->volatile_cache);
	assert_int_equal(get(&f, 0), 'a');
	finish(&f);
}

static void the_cut_falls_on_the_nth_write_or_flush(void **state)
{
	for (unsigned n = 1; n <= 4; n++) {
		struct fixture f = start(n, false);
		int results[4];

		sim_cut_power_at(f.engine, n);
		results[0] = put(&f, 0, 'a', 0);
		results[1] = flush(&f);
		if (n > 2)
			get(&f, 0);
		results[2] = put(&f, 1, 'b', 0);
		results[3] = flush(&f);
		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(results[i], i + 1 < n ? 0 : -ESHUTDOWN);
		assert_true(sim_power_was_cut(f.engine));
		assert_int_equal(
			device_open(f.engine, "b", 0, &(struct device *){0}, NULL), -ESHUTDOWN);
		assert_int_equal(sim_writes_and_flushes(f.engine), n - 1);
		sim_power_on(f.world, SIM_LOSE_ALL);
		assert_false(sim_power_was_cut(f.engine));
		assert_false(device_present(f.device));
		assert_int_equal(flush(&f), -ESHUTDOWN);
		assert_int_equal(medium(&f, 0), n > 2 ? 'a' : 0);
		finish(&f);
	}
}

static void all_outcomes_of_a_cut_are_seen(void **state)
{
	enum { FATE_A, FATE_B, FATE_TORN };
	unsigned seen[3] = {0}, torn_by_sector = 0;
	struct fixture f = start(1, true);

	for (unsigned i = 0; i < 200; i++) {
		put(&f, 0, 'a', IO_FUA);
		put(&f, 0, 'b', 0);
		sim_cut_power(f.world);
		power_on(&f, SIM_RANDOM);
		switch (get(&f, 0)) {
		case 'a':
			seen[FATE_A]++;
			break;
		case 'b':
			seen[FATE_B]++;
			break;
		default:
			seen[FATE_TORN]++;
			for (unsigned at = 0; at < BLOCK_SIZE; at++)
				torn_by_sector += f.back[at] != f.back[at / 512 * 512];
		}
	}
	assert_true(seen[FATE_A] > 20 && seen[FATE_B] > 20 && seen[FATE_TORN] > 20);
	assert_int_equal(torn_by_sector, 0);
	finish(&f);
}

static void writes_in_flight_survive_in_any_order(void **state)
{
	unsigned first = 0, second = 0;

	for (uint64_t seed = 0; seed < 40; seed++) {
		struct fixture f = start(seed, true);
		struct noted n[2];

		note(&f, &n[0], IO_WRITE, 0, 'a');
		note(&f, &n[1], IO_WRITE, 0, 'b');
		sim_cut_power(f.world);
		sim_drain(f.world);
		assert_int_equal(n[0].io.result, -ESHUTDOWN);
		assert_int_equal(n[1].io.result, -ESHUTDOWN);
		power_on(&f, SIM_KEEP_ALL);
		first += get(&f, 0) == 'a';
		second += get(&f, 0) == 'b';
		forget(&f, &n[0]);
		forget(&f, &n[1]);
		finish(&f);
	}
	assert_true(first > 5 && second > 5);
	assert_int_equal(first + second, 40);
}

/* --- saving and restoring ----------------------------------------------------------------- */

static void restored_worlds_are_the_same(void **state)
{
	struct fixture f = start(1, true);
	struct sim_image *image = NULL, *later = NULL;

	put(&f, 0, 'a', 0);
	assert_int_equal(sim_save(f.world, &image), 0);
	put(&f, 0, 'b', 0);
	put(&f, 5, 'b', IO_FUA);
	sim_kill_device(f.world, "b");
	assert_int_equal(sim_save(f.world, &later), 0);

	assert_int_equal(sim_restore(f.world, image), 0);
	assert_int_equal(put(&f, 1, 'x', 0), -ESHUTDOWN);
	device_close(f.device);
	assert_int_equal(device_open(f.engine, "a", 0, &f.device, NULL), 0);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 5), 0);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(get(&f, 0), 0);

	assert_int_equal(sim_restore(f.world, later), 0);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 0), 'b');
	assert_int_equal(get(&f, 5), 'b');
	assert_int_equal(device_open(f.engine, "b", 0, &(struct device *){0}, NULL), -ENODEV);

	assert_int_equal(sim_save(f.world, &image), 0);
	put(&f, 0, 'c', IO_FUA);
	assert_int_equal(sim_restore(f.world, image), 0);
	assert_int_equal(medium(&f, 0), 'b');
	sim_image_free(image);
	sim_image_free(later);
	finish(&f);
}

static void one_cut_has_many_outcomes(void **state)
{
	struct fixture f = start(1, true);
	struct sim_image *image = NULL;
	unsigned zero = 0, full = 0, mixed = 0;

	sim_cut_power_at(f.engine, 1);
	assert_int_equal(put(&f, 0, 'a', 0), -ESHUTDOWN);
	assert_int_equal(sim_save(f.world, &image), 0);
	for (uint64_t seed = 0; seed < 100; seed++) {
		int value;

		assert_int_equal(sim_restore(f.world, image), 0);
		assert_true(sim_power_was_cut(f.engine));
		sim_seed(f.world, seed);
		power_on(&f, SIM_RANDOM);
		value = get(&f, 0);
		zero += value == 0;
		full += value == 'a';
		mixed += value == -1;
	}
	assert_true(zero > 10 && full > 10 && mixed > 10);
	sim_image_free(image);
	finish(&f);
}

struct watched {
	struct fixture *f;
	struct sim_image *at[4];
	unsigned count;
};

static void keep_cut(void *data)
{
	struct watched *w = data;

	assert_int_equal(sim_save_cut(w->f->world, &w->at[w->count++]), 0);
}

/* Block 1 was done and not flushed, block 2 in flight, when the image was taken. */
static void an_image_of_a_cut_leaves_the_world_alone(void **state)
{
	struct fixture f = start(1, true);
	struct watched w = {.f = &f};

	put(&f, 0, 'a', IO_FUA);
	put(&f, 1, 'b', 0);
	sim_watch_writes(f.engine, keep_cut, &w);
	assert_int_equal(put(&f, 2, 'c', 0), 0);
	assert_int_equal(get(&f, 2), 'c');
	assert_int_equal(flush(&f), 0);
	assert_int_equal(w.count, 2);
	assert_int_equal(medium(&f, 2), 'c');

	assert_int_equal(sim_restore(f.world, w.at[0]), 0);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 1), 0);
	assert_int_equal(get(&f, 2), 0);
	assert_int_equal(sim_restore(f.world, w.at[0]), 0);
	power_on(&f, SIM_KEEP_ALL);
	assert_int_equal(get(&f, 1), 'b');
	assert_int_equal(get(&f, 2), 'c');
	put(&f, 3, 'd', 0);
	assert_int_equal(w.count, 2); /* nobody watches after a cut */
	sim_image_free(w.at[0]);
	sim_image_free(w.at[1]);
	finish(&f);
}

/* --- several hosts, late writes ----------------------------------------------------------- */

static void hosts_share_the_devices(void **state)
{
	struct fixture f = start(1, false), g = f;

	assert_int_equal(sim_engine_create(f.world, &g.engine), 0);
	assert_int_equal(device_open(g.engine, "a", DEVICE_EXCLUSIVE, &g.device, NULL), 0);
	put(&f, 0, 'f', 0);
	assert_int_equal(get(&g, 0), 'f');
	assert_int_equal(flush(&g), 0);
	assert_int_equal(medium(&f, 0), 'f');
	device_close(g.device);
	engine_destroy(g.engine);
	finish(&f);
}

static void a_dead_hosts_writes_arrive_late(void **state)
{
	struct fixture f = start(1, false), g = f;
	struct noted n[2];

	assert_int_equal(sim_engine_create(f.world, &g.engine), 0);
	assert_int_equal(device_open(g.engine, "a", 0, &g.device, NULL), 0);
	put(&f, 0, 'a', 0);
	note(&f, &n[0], IO_WRITE, 1, 'b');
	sim_cut_host(f.engine);
	note(&f, &n[1], IO_WRITE, 2, 'c');
	sim_drain(f.world);
	assert_int_equal(n[0].io.result, -ESHUTDOWN);
	assert_int_equal(n[1].io.result, -ESHUTDOWN);
	assert_int_equal(get(&g, 0), 'a');
	assert_int_equal(get(&g, 1), 0);
	assert_int_equal(sim_late_count(f.world), 2);
	assert_int_equal(sim_late(f.world, 0).offset, BLOCK_SIZE);
	assert_string_equal(sim_late(f.world, 1).device, "a");

	put(&g, 2, 'g', 0);
	assert_int_equal(sim_release_late(f.world, 1), 0);
	assert_int_equal(get(&g, 2), 'c');
	assert_int_equal(sim_release_late(f.world, 0), 0);
	assert_int_equal(medium(&g, 1), 'b');
	assert_int_equal(sim_late_count(f.world), 0);

	assert_true(sim_power_was_cut(f.engine));
	assert_false(sim_power_was_cut(g.engine));
	sim_reconnect(f.engine);
	assert_int_equal(put(&f, 0, 'x', 0), -ESHUTDOWN);
	device_close(g.device);
	engine_destroy(g.engine);
	forget(&f, &n[0]);
	forget(&f, &n[1]);
	finish(&f);
}

static void a_cut_can_leave_late_writes(void **state)
{
	struct fixture f = start(1, false);
	struct noted n;

	sim_hold_late(f.engine, true, true);
	put(&f, 0, 'a', 0);
	note(&f, &n, IO_WRITE, 1, 'b');
	sim_cut_power(f.world);
	sim_drain(f.world);
	power_on(&f, SIM_LOSE_ALL);
	assert_int_equal(sim_late_count(f.world), 2);
	put(&f, 0, 'n', IO_FUA);
	assert_int_equal(sim_release_late(f.world, 0), 0);
	assert_int_equal(get(&f, 0), 'a');
	sim_drop_late(f.world);
	assert_int_equal(sim_late_count(f.world), 0);

	sim_hold_late(f.engine, true, false);
	put(&f, 0, 'a', 0);
	sim_cut_power(f.world);
	assert_int_equal(sim_late_count(f.world), 0);
	forget(&f, &n);
	finish(&f);
}

static void a_paused_host_goes_on_later(void **state)
{
	struct fixture f = start(1, false);
	struct noted n[2];

	note(&f, &n[0], IO_WRITE, 0, 'a');
	sim_pause(f.engine, true);
	note(&f, &n[1], IO_WRITE, 1, 'b');
	sim_drain(f.world);
	assert_int_equal(n[0].order, 0);
	assert_int_equal(sim_outstanding(f.world), 2);
	sim_pause(f.engine, false);
	sim_drain(f.world);
	assert_int_equal(n[1].io.result, 0);
	assert_int_equal(get(&f, 0), 'a');
	forget(&f, &n[0]);
	forget(&f, &n[1]);
	finish(&f);
}

/* --- faults ------------------------------------------------------------------------------- */

static void dead_devices_answer_enodev(void **state)
{
	struct fixture f = start(1, false);

	put(&f, 0, 'a', IO_FUA);
	sim_kill_device(f.world, "a");
	assert_false(device_present(f.device));
	assert_int_equal(put(&f, 0, 'b', 0), -ENODEV);
	assert_int_equal(run(&f, IO_READ, 0, 0, f.back), -ENODEV);
	assert_int_equal(flush(&f), -ENODEV);
	assert_int_equal(device_open(f.engine, "a", 0, &(struct device *){0}, NULL), -ENODEV);
	sim_revive_device(f.world, "a");
	assert_true(device_present(f.device));
	assert_int_equal(get(&f, 0), 'a');
	finish(&f);
}

static void the_nth_request_fails(void **state)
{
	struct fixture f = start(1, false);

	sim_fail_nth(f.engine, 2, -EIO);
	assert_int_equal(put(&f, 0, 'a', 0), 0);
	assert_false(sim_failed(f.engine));
	assert_int_equal(run(&f, IO_READ, 0, 0, f.back), -EIO);
	assert_true(sim_failed(f.engine));
	assert_int_equal(get(&f, 0), 'a');

	sim_fail_device_writes(f.world, "a", -ENOSPC);
	assert_int_equal(put(&f, 0, 'a', 0), -ENOSPC);
	assert_int_equal(flush(&f), -ENOSPC);
	assert_int_equal(run(&f, IO_READ, 0, 1, f.back), 0);
	sim_fail_device_writes(f.world, "a", 0);
	sim_fail_device_reads(f.world, "a", -EIO);
	assert_int_equal(put(&f, 0, 'a', 0), 0);
	assert_int_equal(run(&f, IO_READ, 0, 1, f.back), -EIO);
	finish(&f);
}

static void writes_get_lost_and_misdirected(void **state)
{
	struct fixture f = start(1, false);

	sim_lose_write(f.engine, 2);
	put(&f, 0, 'a', 0);
	put(&f, 1, 'b', 0);
	assert_int_equal(get(&f, 0), 'a');
	assert_int_equal(get(&f, 1), 0);
	sim_misdirect_write(f.engine, 1, 7 * BLOCK_SIZE);
	put(&f, 2, 'c', IO_FUA);
	assert_int_equal(get(&f, 2), 0);
	assert_int_equal(get(&f, 7), 'c');
	finish(&f);
}

static void rot_changes_each_sector_of_its_range(void **state)
{
	struct fixture f = start(1, false);
	const uint8_t *bytes = sim_medium(f.world, "a");

	sim_rot(f.world, "a", 1000, 2000, 4);
	for (unsigned sector = 0; sector < 8; sector++) {
		unsigned changed = 0;

		for (unsigned i = 0; i < 512; i++)
			changed += bytes[sector * 512 + i] != 0;
		assert_int_equal(changed, sector >= 1 && sector <= 5);
	}
	sim_medium_write(f.world, "a", 10, "hello", 5);
	assert_memory_equal(bytes + 10, "hello", 5);
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
		cmocka_unit_test(what_a_device_did_is_counted_with_its_time),
		cmocka_unit_test(reads_see_the_cache),
		cmocka_unit_test(vectors_are_gathered_and_scattered),
		cmocka_unit_test(beyond_the_end_is_eio),
		cmocka_unit_test(order_comes_from_the_seed),
		cmocka_unit_test(a_world_that_stands_still_is_a_deadlock),
		cmocka_unit_test(sleep_runs_what_falls_due),
		cmocka_unit_test(randomness_repeats_with_the_seed),
		cmocka_unit_test(counters_count),
		cmocka_unit_test(exclusive_is_once_per_host),
		cmocka_unit_test(unflushed_writes_can_vanish),
		cmocka_unit_test(unflushed_writes_can_survive),
		cmocka_unit_test(a_flush_covers_only_what_was_done_before),
		cmocka_unit_test(a_durable_write_is_not_undone_by_an_older_one),
		cmocka_unit_test(write_through_is_durable_when_done),
		cmocka_unit_test(the_cut_falls_on_the_nth_write_or_flush),
		cmocka_unit_test(all_outcomes_of_a_cut_are_seen),
		cmocka_unit_test(writes_in_flight_survive_in_any_order),
		cmocka_unit_test(restored_worlds_are_the_same),
		cmocka_unit_test(one_cut_has_many_outcomes),
		cmocka_unit_test(an_image_of_a_cut_leaves_the_world_alone),
		cmocka_unit_test(hosts_share_the_devices),
		cmocka_unit_test(a_dead_hosts_writes_arrive_late),
		cmocka_unit_test(a_cut_can_leave_late_writes),
		cmocka_unit_test(a_paused_host_goes_on_later),
		cmocka_unit_test(dead_devices_answer_enodev),
		cmocka_unit_test(the_nth_request_fails),
		cmocka_unit_test(writes_get_lost_and_misdirected),
		cmocka_unit_test(rot_changes_each_sector_of_its_range),
		cmocka_unit_test(restoring_is_cheap),
		cmocka_unit_test(requests_are_cheap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
