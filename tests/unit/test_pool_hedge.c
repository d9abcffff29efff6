/* SPDX-License-Identifier: LGPL-3.0-or-later. Slow devices. links: pool */
/* Reads that a device does not answer in time: what is rebuilt meanwhile, and what becomes of the
 * answer. */
#include "test_pool_read.h"
#include "failing_malloc.h"

#define SECOND (UINT64_C(1000) * 1000 * 1000)
#define HEDGE (SECOND / 2)

static const struct shape hedged = {4, 2, 131072, 16, 16, false};

static void start_hedged(struct fixture *f, const struct shape *shape)
{
	start(f, shape);
	assert_int_equal(hedge_start(f->pool), 0);
	pool_set_read_hedge(f->pool, HEDGE);
}

static void finish_hedged(struct fixture *f)
{
	hedge_end(f->pool);
	finish(f);
}

static void slow(struct fixture *f, unsigned set, uint64_t delay)
{
	for (unsigned c = 0; c < width(f); c++)
		sim_delay(f->world, device_name(f, c), set >> c & 1 ? delay : 0);
}

static void signal_done(struct pool_read *read)
{
	event_signal(read->data, read->result);
}

/* A read whose memory may be exchanged. */
struct asked {
	struct read_part part;
	struct pool_read read;
	struct event event;
	void *given;
	uint64_t began;
};

static void ask(
	struct fixture *f, struct asked *a, uint64_t offset, uint64_t length, unsigned shift)
{
	size_t room = (size_t)(length + 2 * BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;

	memset(a, 0, sizeof(*a));
	a->given = buffer_alloc(f->engine, room);
	memset(a->given, 0xee, room);
	a->part = (struct read_part){{SEGMENT, offset, length}, (uint8_t *)a->given + shift};
	a->read = (struct pool_read){.parts = &a->part,
		.part_count = 1,
		.memory = a->given,
		.memory_size = room,
		.done = signal_done,
		.data = &a->event};
	a->began = engine_clock(f->engine);
	event_init(&a->event, f->engine);
	pool_read(f->pool, &a->read);
}

/* The time that it took. */
static uint64_t take(struct fixture *f, struct asked *a)
{
	assert_int_equal(event_wait(&a->event), 0);
	return engine_clock(f->engine) - a->began;
}

static void compare(struct fixture *f, struct asked *a)
{
	uint64_t length = a->part.extent.length;
	uint8_t *want = malloc(length);
	size_t shift = (size_t)((uint8_t *)a->part.into - (uint8_t *)a->given);

	expected(f, a->part.extent.offset, length, want);
	assert_memory_equal((uint8_t *)a->read.memory + shift, want, length);
	free(want);
}

static void end(struct fixture *f, struct asked *a)
{
	compare(f, a);
	buffer_free(f->engine, a->read.memory, a->read.memory_size);
}

/* --- one read --------------------------------------------------------------------------------- */

/* Up to parity of them are not waited for; all others are, and their answers taken. */
static void test_each_set_of_slow_devices(void **state)
{
	struct fixture f;
	struct asked a;

	start_hedged(&f, &hedged);
	for (unsigned set = 0; set < 1u << width(&f); set++) {
		bool enough = (unsigned)__builtin_popcount(set) <= f.layout.parity;
		uint64_t before = TOTAL(&f, late_reads), took;

		forget_pages(&f);
		slow(&f, set, 30 * SECOND);
		ask(&f, &a, 0, 1 << 20, 0);
		took = take(&f, &a);
		assert_int_equal(took < 20 * SECOND, enough || !(set & 15));
		assert_int_equal(a.read.memory != a.given, (set & 15) != 0);
		compare(&f, &a);
		assert_int_equal(TOTAL(&f, late_reads) - before, __builtin_popcount(set & 15));
		drain(&f);
		end(&f, &a);
	}
	assert_int_equal(TOTAL(&f, read_errors) + TOTAL(&f, checksum_errors), 0);
	assert_int_equal(TOTAL(&f, repaired), 0);
	finish_hedged(&f);
}

/* Any place in the memory, ragged ends, blocks of a caller who wants no other memory. */
static void test_any_extent(void **state)
{
	struct fixture f;
	struct asked a;

	start_hedged(&f, &wide);
	for (unsigned i = 0; i < 200; i++) {
		uint64_t offset = draw((uint32_t)linear_bytes(&f) - 400000);
		unsigned shift = i % 2 ? (unsigned)(offset % BLOCK_SIZE) : draw(BLOCK_SIZE);

		slow(&f, 1u << draw(width(&f)) | 1u << draw(width(&f)), SECOND * (1 + draw(20)));
		ask(&f, &a, offset, 1 + draw(i % 3 ? 20000 : 400000), shift);
		take(&f, &a);
		end(&f, &a);
		assert_int_equal(read_at(&f, offset, 1 + draw(20000), draw(BLOCK_SIZE)), 0);
		if (i % 4 == 0)
			drain(&f);
	}
	finish_hedged(&f);
}

/* The late answer is wrong: it is thrown away, and touches nothing that was given out. */
static void test_a_late_answer_that_is_wrong(void **state)
{
	struct fixture f;
	struct asked a;

	start_hedged(&f, &hedged);
	ask(&f, &a, 0, 1 << 20, 0); /* the pages */
	take(&f, &a);
	end(&f, &a);
	slow(&f, 1u << 2, 30 * SECOND);
	rot_block(&f, 2, 3);
	ask(&f, &a, 0, 1 << 20, 0);
	take(&f, &a);
	assert_int_equal(sim_outstanding(f.world), 1);
	compare(&f, &a);
	drain(&f);
	end(&f, &a);
	assert_int_equal(TOTAL(&f, checksum_errors), 0);
	finish_hedged(&f);
}

/* --- while an answer is late ------------------------------------------------------------------ */

static void test_a_stalled_device_is_not_asked(void **state)
{
	struct fixture f;
	struct asked a;
	uint64_t before;

	start_hedged(&f, &hedged);
	ask(&f, &a, 0, 1 << 20, 0);
	take(&f, &a);
	end(&f, &a);
	slow(&f, 1, 30 * SECOND);
	ask(&f, &a, 0, 131072, 0);
	assert_true(take(&f, &a) >= HEDGE);
	end(&f, &a);
	before = reads_done(&f);
	for (unsigned i = 0; i < 10; i++) {
		ask(&f, &a, 0, 1 << 20, 0);
		assert_true(take(&f, &a) < HEDGE);
		end(&f, &a);
	}
	assert_int_equal(reads_done(&f) - before, 40);
	assert_int_equal(atomic_load(&member_of(&f, 0)->late_reads), 11);
	drain(&f);
	slow(&f, 0, 0);
	before = TOTAL(&f, late_reads);
	ask(&f, &a, 0, 1 << 20, 0);
	take(&f, &a);
	end(&f, &a);
	assert_int_equal(TOTAL(&f, late_reads), before);
	finish_hedged(&f);
}

static void test_a_sample_is_not_waited_for(void **state)
{
	struct fixture f;
	uint64_t began;

	start_hedged(&f, &hedged);
	slow(&f, 1, 30 * SECOND);
	began = engine_clock(f.engine);
	assert_int_equal(pool_read_sample(f.pool), 0);
	assert_true(engine_clock(f.engine) - began < 20 * SECOND);
	drain(&f);
	finish_hedged(&f);
}

static void test_never_when_it_is_off(void **state)
{
	struct fixture f;
	struct asked a;

	start_hedged(&f, &hedged);
	pool_set_read_hedge(f.pool, 0);
	slow(&f, 1, 30 * SECOND);
	ask(&f, &a, 0, 1 << 20, 0);
	assert_true(take(&f, &a) >= 30 * SECOND);
	assert_ptr_equal(a.read.memory, a.given);
	end(&f, &a);
	assert_int_equal(TOTAL(&f, late_reads), 0);
	finish_hedged(&f);
}

/* A caller whose memory the pool may not keep waits for its device. */
static void test_memory_that_may_not_be_kept(void **state)
{
	struct fixture f;

	start_hedged(&f, &hedged);
	assert_int_equal(read_aligned(&f, 0, 1 << 20), 0); /* and the pages */
	slow(&f, 1, 30 * SECOND);
	assert_int_equal(read_aligned(&f, 0, 1 << 20), 0);
	assert_int_equal(TOTAL(&f, late_reads), 0);
	assert_int_equal(sim_outstanding(f.world), 0);
	finish_hedged(&f);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* The pool waits for the answers, of reads, of rebuilt ones and of checksums. */
static void test_closing_before_the_answers(void **state)
{
	for (unsigned set = 1; set < 1u << 6; set++) {
		struct fixture f;
		struct asked a[4];

		if (__builtin_popcount(set) > 2)
			continue;
		start_hedged(&f, &hedged);
		slow(&f, set, 100 * SECOND);
		for (unsigned i = 0; i < 4; i++)
			ask(&f, &a[i], i * 200000, 300000, 0);
		for (unsigned i = 0; i < 4; i++) {
			take(&f, &a[i]);
			end(&f, &a[i]);
		}
		assert_int_equal(sim_outstanding(f.world) > 0, (set & 15) != 0);
		finish_hedged(&f);
	}
}

static void test_devices_that_die_while_they_are_late(void **state)
{
	struct fixture f;
	struct asked a;

	start_hedged(&f, &hedged);
	slow(&f, 3, 30 * SECOND);
	ask(&f, &a, 0, 1 << 20, 0);
	take(&f, &a);
	lose(&f, 3, true);
	drain(&f);
	end(&f, &a);
	ask(&f, &a, 0, 1 << 20, 0);
	take(&f, &a);
	end(&f, &a);
	finish_hedged(&f);
}

/* Each allocation fails once; a read that cannot be hedged waits. */
static void test_memory_runs_out(void **state)
{
#if COUNTS_ALLOCATIONS
	bool failed = true;

	for (uint64_t n = 1; failed; n++) {
		struct fixture f;
		struct asked a;
		long before;
		int result;

		start_hedged(&f, &hedged);
		before = allocations;
		slow(&f, 3, 2 * SECOND);
		ask(&f, &a, 0, 1 << 20, 0);
		fail_allocation = n;
		result = event_wait(&a.event);
		failed = !fail_allocation;
		fail_allocation = 0;
		if (!result)
			compare(&f, &a);
		drain(&f);
		buffer_free(f.engine, a.read.memory, a.read.memory_size);
		forget_pages(&f);
		assert_int_equal(allocations, before);
		finish_hedged(&f);
	}
#else
	skip();
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_set_of_slow_devices),
		cmocka_unit_test(test_any_extent),
		cmocka_unit_test(test_a_late_answer_that_is_wrong),
		cmocka_unit_test(test_a_stalled_device_is_not_asked),
		cmocka_unit_test(test_a_sample_is_not_waited_for),
		cmocka_unit_test(test_never_when_it_is_off),
		cmocka_unit_test(test_memory_that_may_not_be_kept),
		cmocka_unit_test(test_closing_before_the_answers),
		cmocka_unit_test(test_devices_that_die_while_they_are_late),
		cmocka_unit_test(test_memory_runs_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
