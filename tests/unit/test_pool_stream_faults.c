/* SPDX-License-Identifier: LGPL-3.0-or-later. The write path: what fails. links: pool */
/* Devices die, the power goes and memory runs out while streams are written. */
#include "test_pool_stream.h"
#include "failing_malloc.h"

/* --- devices that die --------------------------------------------------------------------- */

static void a_device_dies_and_the_stream_goes_on_elsewhere(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);

	for (unsigned victim = 0; victim < PARITY; victim++) {
		struct file *before = must_append(f, stream, ROW + 100, false), *after;

		sim_kill_device(f->world, device_of(f, before, victim));
		after = must_append(f, stream, 3 * ROW, false);
		assert_int_equal(store(f, before), 0);
		assert_int_equal(store(f, after), 0);
		assert_int_equal(segment_members_gone(f->pool, segment_of(f, after)), 1);
		read_all_live(f);
		/* The stream has left that segment. */
		after = must_append(f, stream, ROW, false);
		assert_int_equal(segment_members_gone(f->pool, segment_of(f, after)), 0);
		assert_int_equal(store(f, after), 0);
		read_all_live(f);
	}
	assert_int_equal(pool_maintain(f->pool), 0);
	read_all_live(f);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

static void more_losses_than_parity_are_an_error(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, ROW + 100, false), *later;
	struct segment *segment = segment_of(f, file);

	for (unsigned i = 0; i <= PARITY; i++)
		sim_fail_device_writes(f->world, device_of(f, file, i), -EIO);
	sim_drain(f->world);
	later = must_append(f, stream, 2 * ROW, false);
	assert_int_equal(settle(f, file), -EIO);
	assert_int_equal(settle(f, later), -EIO);
	pool_abandon_extents(f->pool, file->extents, file->count);
	pool_abandon_extents(f->pool, later->extents, later->count);
	assert_int_equal(atomic_load(&segment->unreferred), 0);
}

static void a_loan_ends_also_where_rows_are_lost(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *first = must_append(f, stream, ROW, false), *file;

	for (unsigned i = 0; i <= PARITY; i++)
		sim_fail_device_writes(f->world, device_of(f, first, i), -EIO);
	assert_int_equal(append_lent(f, stream, 2 * ROW + 100, 0, &file), 0);
	assert_int_equal(loans, 1);
	assert_int_equal(settle(f, file), -EIO);
	assert_int_equal(loans, 0);
	assert_int_equal(read_back(f, file), -EIO);
	pool_abandon_extents(f->pool, first->extents, first->count);
	pool_abandon_extents(f->pool, file->extents, file->count);
}

static void a_flush_that_fails_drops_its_device(void **state)
{
	struct fixture *f = *state;
	struct stream *stream = open_stream(f);
	struct file *file = must_append(f, stream, ROW, false);

	sim_drain(f->world);
	sim_fail_device_writes(f->world, device_of(f, file, 0), -EIO);
	assert_int_equal(store(f, file), 0);
	assert_int_equal(segment_members_gone(f->pool, segment_of(f, file)), 1);
	assert_int_equal(read_back(f, file), 0);
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
}

/* --- all of it, and the power goes at any write ------------------------------------------- */

static void random_step(struct fixture *f, struct stream **streams)
{
	struct stream **stream = &streams[draw(3)];
	struct file *file;

	if (!draw(30)) {
		stream_close(*stream);
		*stream = NULL;
	}
	if (!*stream && stream_open(f->pool, 7, stream))
		return;
	if (draw(4) ? append(f, *stream, 1 + draw(draw(4) ? 6000 : 3 * ROW), draw(2), &file)
		    : append_lent(f, *stream, 1 + draw(4 * ROW), draw(2) ? APPEND_WHOLE : 0, &file))
		return;
	if (draw(3))
		store(f, file);
	else if (draw(2))
		pool_abandon_extents(f->pool, file->extents, file->count);
	if (!draw(12)) {
		struct file *old = &f->files[draw(f->file_count)];

		if (old->live)
			release(f, old);
	}
	if (!draw(20))
		pool_maintain(f->pool);
}

static void forget_files(struct fixture *f)
{
	for (unsigned i = 0; i < f->file_count; i++)
		if (f->files[i].live)
			assert_int_equal(release(f, &f->files[i]), 0);
	f->file_count = 0;
	assert_int_equal(pool_sync(f->pool, journal_lsn(f->pool)), 0);
}

static void the_power_may_go_at_any_write(void **state)
{
	struct fixture *f = *state;
	unsigned rounds = getenv("ROUNDS") ? (unsigned)atoi(getenv("ROUNDS")) : 25;
	struct pool_check_report report;

	for (unsigned round = 0; round < rounds; round++) {
		struct stream *streams[3] = {NULL};

		chance = round + 1;
		sim_seed(f->world, round + 1);
		sim_cut_power_at(f->engine, 1 + draw(1500));
		for (unsigned i = 0; i < 200 && !sim_power_was_cut(f->engine); i++)
			random_step(f, streams);
		sim_cut_power_at(f->engine, 0);
		crash(f, (enum sim_policy)draw(3));
		read_all_live(f);
		assert_int_equal(pool_maintain(f->pool), 0);
		read_all_live(f);
		assert_int_equal(pool_check(f->pool, false, &report, NULL, NULL, NULL), 0);
		assert_int_equal(report.bad_blocks, 0);
		assert_int_equal(report.lost_blocks, 0);
		assert_int_equal(report.missing_chunks, 0);
		if (round % 4 == 3)
			forget_files(f);
	}
}

/* As above, and before that up to m devices die, or fail their writes, at any write. */
static void devices_and_the_power_may_go_at_any_write(void **state)
{
	struct fixture *f = *state;
	unsigned rounds = getenv("ROUNDS") ? (unsigned)atoi(getenv("ROUNDS")) : 25;
	struct sim_image *start = NULL;

	crash(f, SIM_KEEP_ALL);
	abandon(f);
	sim_settle(f->world);
	assert_int_equal(sim_save(f->world, &start), 0);
	for (unsigned round = 0; round < rounds; round++) {
		struct stream *streams[3] = {NULL};
		unsigned steps = 60 + draw(120), victims = draw(PARITY + 1), at[PARITY];

		assert_int_equal(sim_restore(f->world, start), 0);
		chance = round + 1000;
		sim_seed(f->world, round + 1000);
		f->file_count = 0;
		assert_int_equal(open_pool(f), 0);
		for (unsigned i = 0; i < PARITY; i++)
			at[i] = draw(steps);
		if (draw(2))
			sim_cut_power_at(f->engine, 1 + draw(1500));
		for (unsigned i = 0; i < steps && !sim_power_was_cut(f->engine); i++) {
			random_step(f, streams);
			for (unsigned v = 0; v < victims; v++) {
				if (at[v] == i && draw(2))
					sim_kill_device(f->world, f->names[v * 3]);
				else if (at[v] == i)
					sim_fail_device_writes(f->world, f->names[v * 3], -EIO);
			}
		}
		sim_cut_power_at(f->engine, 0);
		if (!sim_power_was_cut(f->engine))
			read_all_live(f);
		crash(f, (enum sim_policy)draw(3));
		read_all_live(f);
		assert_int_equal(pool_maintain(f->pool), 0);
		read_all_live(f);
		abandon(f);
	}
	sim_image_free(start);
}

/* --- memory that can run out -------------------------------------------------------------- */

enum step { APPEND, STORE, CLOSE, STEPS };

struct shortage {
	enum step step;
	uint64_t n;
	bool reached;
};

static void shortage_begin(const struct shortage *s, enum step step)
{
	fail_allocation = s->step == step ? s->n : 0;
}

static void shortage_end(struct shortage *s, enum step step)
{
	if (s->step == step)
		s->reached = !fail_allocation;
	fail_allocation = 0;
}

static struct file *append_short_of_memory(
	struct fixture *f, struct stream *stream, struct shortage *s)
{
	uint8_t *bytes = content(0, 3 * ROW);
	struct file *file = &f->files[0];
	struct iovec iov = {bytes, 3 * ROW - 9};
	int rc;

	*file = (struct file){.length = 3 * ROW - 9, .count = EXTENTS_MAX};
	shortage_begin(s, APPEND);
	rc = stream_append(stream, &iov, 1, file->length, 0, file->extents, &file->count);
	shortage_end(s, APPEND);
	if (rc) {
		assert_int_equal(rc, -ENOMEM);
		assert_int_equal(file->count, 0);
		file->count = EXTENTS_MAX;
		rc = stream_append(stream, &iov, 1, file->length, 0, file->extents, &file->count);
		assert_int_equal(rc, 0);
	}
	free(bytes);
	f->file_count = 1;
	return file;
}

/* What failed can be done again, unless the pool has stopped. */
static bool go_on(struct fixture *f, int rc)
{
	return rc && !pool_failure(f->pool);
}

static void one_shortage(struct fixture *f, struct shortage *s)
{
	struct stream *stream = open_stream(f);
	struct file *file = append_short_of_memory(f, stream, s);
	struct segment *segment = segment_of(f, file);
	int rc;

	assert_int_equal(atomic_load(&segment->unreferred), file->length);
	shortage_begin(s, STORE);
	rc = store(f, file);
	shortage_end(s, STORE);
	if (go_on(f, rc)) {
		assert_int_equal(atomic_load(&segment->unreferred), file->length);
		assert_int_equal(segment->row.live, 0);
		assert_int_equal(store(f, file), 0);
	}
	stream_end_segment(stream);
	shortage_begin(s, CLOSE);
	rc = pool_failure(f->pool) ? 0 : segment_close(f->pool, segment);
	shortage_end(s, CLOSE);
	if (go_on(f, rc))
		assert_int_equal(segment_close(f->pool, segment), 0);
	if (!pool_failure(f->pool)) {
		assert_int_equal(segment->row.state, SEGMENT_CLOSED);
		assert_int_equal(segment->row.live, file->length);
		assert_int_equal(read_back(f, file), 0);
	}
	crash(f, SIM_LOSE_ALL);
	read_all_live(f);
	abandon(f);
}

static void memory_may_run_out(void **state)
{
	struct fixture *f = *state;
	struct sim_image *image = NULL;
	struct shortage s = {.n = 1};

	if (!COUNTS_ALLOCATIONS)
		skip();
	abandon(f);
	sim_settle(f->world);
	assert_int_equal(sim_save(f->world, &image), 0);
	while (s.step < STEPS) {
		assert_int_equal(sim_restore(f->world, image), 0);
		assert_int_equal(open_pool(f), 0);
		one_shortage(f, &s);
		if (!s.reached)
			assert_in_range(s.n, 2, 1000);
		s.step += !s.reached;
		s.n = s.reached ? s.n + 1 : 1;
	}
	sim_image_free(image);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_device_dies_and_the_stream_goes_on_elsewhere),
		TEST(more_losses_than_parity_are_an_error),
		TEST(a_loan_ends_also_where_rows_are_lost),
		TEST(a_flush_that_fails_drops_its_device),
		TEST(the_power_may_go_at_any_write),
		TEST(devices_and_the_power_may_go_at_any_write),
		TEST(memory_may_run_out),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
