/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Which segments are emptied, and what that wins; a pool that is nearly full for long. */
#include "test_volume_sparse.h"

static void plans_nothing_for_one_segment(void **state)
{
	struct compaction_plan plan;
	uint64_t waste;

	assert_int_equal(plan_of(100, &plan), -ENOENT);
	assert_int_equal(try_file(0, 12 * KIB), 0);
	volume_fixture_reopen(&fixture);
	maintain();
	/* Next to nothing of it is live, and it is the only one. */
	assert_int_equal(plan_of(100, &plan), -ENOENT);
	assert_int_equal(pool_waste(fixture.pool, 0, &waste), 0);
	assert_int_equal(waste, 0);
}

static void plans_segments_that_are_won(void **state)
{
	struct compaction_rest rest = {.volume = volume_row(fixture.volume)->id};
	struct compaction_request request = {.percent = 100, .rests = &rest, .rest_count = 1};
	struct compaction_plan plan;

	make_sparse(4);
	assert_int_equal(plan_of(10, &plan), -ENOENT);
	assert_int_equal(plan_of(50, &plan), 0);
	assert_int_equal(plan.volume, volume_row(fixture.volume)->id);
	assert_in_range(plan.count, 4, 8);
	assert_int_equal(plan.live, plan.count * 64 * KIB);
	assert_int_equal(
		plan.gain, plan.count * SEGMENT - (plan.live + SEGMENT - 1) / SEGMENT * SEGMENT);
	for (unsigned i = 1; i < plan.count; i++)
		assert_true(plan.segments[i - 1] < plan.segments[i]);
	/* As much as is to be won was given up already; with more there is a plan again. */
	assert_int_equal(pool_waste(fixture.pool, 0, &rest.waste), 0);
	assert_true(rest.waste >= plan.gain);
	assert_int_equal(pool_plan_compaction(fixture.pool, &request, &plan), -ENOENT);
	rest.waste -= SEGMENT;
	assert_int_equal(pool_plan_compaction(fixture.pool, &request, &plan), 0);
	/* What cannot be emptied is left alone. */
	rest.waste = 0;
	for (unsigned spared = 0; !pool_plan_compaction(fixture.pool, &request, &plan);) {
		for (unsigned i = 0; i < plan.count; i++)
			pool_spare_segment(fixture.pool, plan.segments[i]);
		spared += plan.count;
		assert_in_range(spared, 2, 8);
	}
}

static void wins_what_was_planned(void **state)
{
	uint64_t before, after, won;

	make_sparse(4);
	assert_int_equal(pool_waste(fixture.pool, 0, &before), 0);
	assert_true(before >= 4 * SEGMENT);
	assert_int_equal(volumes_compact(fixture.volumes, 100, UINT64_MAX, &won), 0);
	assert_true(won >= 3 * SEGMENT); /* one is being filled with what was moved */
	assert_int_equal(pool_waste(fixture.pool, 0, &after), 0);
	assert_int_equal(after, 0);
	for (unsigned i = 0; i < FILES; i += 4)
		must_find(i, 64 * KIB);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	for (unsigned i = 0; i < FILES; i += 4)
		must_find(i, 64 * KIB);
}

/* --- bytes that cannot be read ---------------------------------------------------------------- */

/* Before the first bytes are read: all files go, and their segments. */
static int delete_all(void *data, uint64_t length)
{
	bool *done = data;

	if (*done)
		return 0;
	*done = true;
	for (unsigned i = 0; i < FILES; i += 4)
		must_unlink(fixture.volume, VOLUME_ROOT, name_of(i));
	must_sync(&fixture);
	maintain();
	return 0;
}

static void takes_what_is_deleted_for_no_loss(void **state)
{
	struct compaction_plan plan;
	bool done = false;
	const struct compact_pace pace = {delete_all, &done};

	make_sparse(4);
	assert_int_equal(plan_of(100, &plan), 0);
	losses = 0;
	log_set_sink(count_losses);
	assert_int_equal(volume_compact(fixture.volume, plan.segments, plan.count, &pace), 0);
	log_set_sink(NULL);
	assert_true(done);
	assert_int_equal(losses, 0);
	assert_int_equal(pool_volume_live(fixture.pool, volume_row(fixture.volume)->id), 0);
}

static void leaves_what_is_lost(void **state)
{
	must_leave_what_is_lost(false);
}

/* --- nearly full for long --------------------------------------------------------------------- */

#define SLOTS 4000u
#define TURNS 1500u

static size_t sizes[SLOTS];

static unsigned random_number(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(*state >> 33);
}

/* With free space there is room for any of these; without, deleting works. */
static bool create(unsigned i, size_t length)
{
	uint64_t total, left;
	int r;

	pool_space(fixture.pool, &total, &left);
	r = try_file(i, length);
	if (r)
		assert_int_equal(r, -ENOSPC);
	assert_true(!r || !left);
	sizes[i] = r ? 0 : length;
	if (!r)
		return true;
	must_unlink(fixture.volume, VOLUME_ROOT, name_of(i));
	return false;
}

static bool is_nearly_full(void)
{
	uint64_t total, left;

	pool_space(fixture.pool, &total, &left);
	return left < total / 20;
}

static void lives_nearly_full(void **state)
{
	unsigned made = 0, refused = 0, next = 0;
	uint64_t random = 1;

	while (next < SLOTS && !is_nearly_full()) {
		assert_true(create(next++, 4 * KIB + random_number(&random) % (56 * KIB)));
		maintain();
	}
	assert_in_range(next, 100, SLOTS / 2);
	for (unsigned turn = 0; turn < TURNS; turn++) {
		unsigned i = random_number(&random) % (2 * next); /* more than fit */

		if (sizes[i]) {
			must_find(i, sizes[i]);
			must_unlink(fixture.volume, VOLUME_ROOT, name_of(i));
			sizes[i] = 0;
		} else if (create(i, 4 * KIB + random_number(&random) % (56 * KIB))) {
			made++;
		} else {
			refused++;
		}
		maintain();
		if (turn % 100 == 99) {
			must_sync(&fixture);
			volume_fixture_crash(&fixture, SIM_RANDOM);
		}
	}
	print_message("%u files made, %u refused in a pool that is nearly full\n", made, refused);
	assert_true(made > TURNS / 4 && refused > 10);
	for (unsigned i = 0; i < 2 * next; i++)
		if (sizes[i])
			must_find(i, sizes[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(plans_nothing_for_one_segment),
		TEST(plans_segments_that_are_won),
		TEST(wins_what_was_planned),
		TEST(takes_what_is_deleted_for_no_loss),
		TEST(leaves_what_is_lost),
		TEST(lives_nearly_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
