/* SPDX-License-Identifier: LGPL-3.0-or-later. Changes for requests. links: volume */
/* What was done for a request whose answer may be lost is known when it was done, and only then. */
#include "test_volume.h"

#include "common/log.h"
#include "pool/internal.h"

#define DEVICE_SIZE (8u << 20)
#define SLOTS 700 /* more than one record's worth of them go */

static const struct pool_done request = {.session = "of a session", 3, 17, 0x1234567};

static void rename_for(struct volume_fixture *f, const struct pool_done *done)
{
	uint64_t lsn;

	volume_request_begin(done);
	(void)volume_rename(f->volume, VOLUME_ROOT, "old", VOLUME_ROOT, "new", &lsn);
	volume_request_end();
}

static bool is_there(struct volume_fixture *f, const char *name)
{
	struct volume_attributes found;

	return !volume_lookup(f->volume, VOLUME_ROOT, name, &found);
}

static void begin(struct volume_fixture *f)
{
	volume_fixture_start(f, DEVICE_SIZE, NULL);
	must_make(f->volume, VOLUME_ROOT, "old", VOLUME_DIRECTORY);
}

static void it_is_known_to_later_epochs(void **state)
{
	struct volume_fixture f;
	struct pool_done other;

	begin(&f);
	rename_for(&f, &request);
	must_sync(&f);
	assert_false(done_before(f.pool, &request));
	for (unsigned i = 0; i < 3; i++) {
		if (i == 1)
			assert_int_equal(pool_checkpoint(f.pool), 0);
		volume_fixture_crash(&f, SIM_LOSE_ALL);
		assert_true(is_there(&f, "new") && done_before(f.pool, &request));
	}
	other = request, other.sequence++;
	assert_false(done_before(f.pool, &other));
	other = request, other.slot++;
	assert_false(done_before(f.pool, &other));
	other = request, other.session[15]++;
	assert_false(done_before(f.pool, &other));
	other = request, other.digest++;
	assert_false(done_before(f.pool, &other));
	assert_int_equal(done_forget_earlier(f.pool), 0);
	assert_false(done_before(f.pool, &request));
	volume_fixture_reopen(&f);
	assert_false(done_before(f.pool, &request));
	volume_fixture_end(&f);
}

static void what_failed_is_not_done(void **state)
{
	struct volume_fixture f;

	begin(&f);
	must_unlink(f.volume, VOLUME_ROOT, "old");
	rename_for(&f, &request);
	must_make(f.volume, VOLUME_ROOT, "old", VOLUME_DIRECTORY);
	rename_for(&f, NULL);
	assert_true(is_there(&f, "new"));
	volume_fixture_reopen(&f);
	assert_false(done_before(f.pool, &request));
	volume_fixture_end(&f);
}

/* Where it would take the room that a removal makes. */
static void in_a_full_pool_it_goes_unrecorded(void **state)
{
	struct pool_done next = request;
	struct volume_fixture f;

	begin(&f);
	rename_for(&f, &request);
	must_make(f.volume, VOLUME_ROOT, "old", VOLUME_DIRECTORY);
	must_unlink(f.volume, VOLUME_ROOT, "new");
	atomic_store(&f.pool->own_room, 0);
	next.slot++;
	rename_for(&f, &next);
	assert_true(is_there(&f, "new"));
	volume_fixture_reopen(&f);
	assert_true(done_before(f.pool, &request));
	assert_false(done_before(f.pool, &next));
	volume_fixture_end(&f);
}

/* The client has the answer to the one before. */
static void a_slot_has_its_last_one(void **state)
{
	struct pool_done next = request;
	struct volume_fixture f;

	begin(&f);
	rename_for(&f, &request);
	must_make(f.volume, VOLUME_ROOT, "old", VOLUME_DIRECTORY);
	next.sequence++;
	rename_for(&f, &next);
	volume_fixture_reopen(&f);
	assert_false(done_before(f.pool, &request));
	assert_true(done_before(f.pool, &next));
	assert_int_equal(done_forget_earlier(f.pool), 0);
	volume_fixture_end(&f);
}

static void a_session_takes_its_slots_with_it(void **state)
{
	struct pool_done done = request, kept = request;
	struct volume_fixture f;
	uint64_t lsn;

	begin(&f);
	kept.session[0]++;
	rename_for(&f, &kept);
	for (done.slot = 0; done.slot < SLOTS; done.slot++) {
		must_make(f.volume, VOLUME_ROOT, "old", VOLUME_DIRECTORY);
		rename_for(&f, &done);
	}
	assert_int_equal(done_delete(f.pool, request.session, SLOTS / 2, &lsn), 0);
	assert_int_equal(pool_sync(f.pool, lsn), 0);
	volume_fixture_crash(&f, SIM_LOSE_ALL);
	for (done.slot = 0; done.slot < SLOTS; done.slot++)
		assert_int_equal(done_before(f.pool, &done), done.slot >= SLOTS / 2);
	assert_true(done_before(f.pool, &kept));
	rename_for(&f, NULL);
	done.slot = 0;
	must_make(f.volume, VOLUME_ROOT, "old", VOLUME_DIRECTORY);
	rename_for(&f, &done);
	assert_int_equal(done_forget_earlier(f.pool), 0);
	assert_int_equal(pool_sync(f.pool, pool_lsn(f.pool)), 0);
	volume_fixture_crash(&f, SIM_LOSE_ALL);
	assert_true(done_before(f.pool, &done));
	for (done.slot = 1; done.slot < SLOTS; done.slot++)
		assert_false(done_before(f.pool, &done));
	assert_false(done_before(f.pool, &kept));
	volume_fixture_end(&f);
}

static void quiet(enum log_level level, const char *line)
{
}

/* Its power goes at the n-th write or flush, 0: before any; false: it came to its end before. */
static bool crash_at(struct volume_fixture *f, struct sim_image *image, uint64_t n, unsigned *seen)
{
	bool cut, done;

	assert_int_equal(sim_restore(f->pool_fixture.world, image), 0);
	sim_seed(f->pool_fixture.world, n);
	volume_fixture_open(f);
	sim_cut_power_at(f->pool_fixture.engine, n);
	rename_for(f, &request);
	if (n) {
		(void)volume_sync(f->volume);
		(void)pool_checkpoint(f->pool);
	}
	cut = sim_power_was_cut(f->pool_fixture.engine);
	sim_cut_power_at(f->pool_fixture.engine, 0);
	volume_fixture_crash(f, n % 2 ? SIM_LOSE_ALL : SIM_RANDOM);
	done = done_before(f->pool, &request);
	assert_int_equal(is_there(f, "new"), done);
	assert_int_equal(is_there(f, "old"), !done);
	seen[done]++;
	(void)volume_close(f->volume);
	volumes_destroy(f->volumes);
	pool_abandon(f->pool);
	return cut;
}

static void it_is_known_when_it_was_done(void **state)
{
	struct sim_image *image = NULL;
	struct volume_fixture f;
	unsigned seen[2] = {0};
	uint64_t n = 0;

	begin(&f);
	volume_fixture_shut(&f);
	assert_int_equal(sim_save(f.pool_fixture.world, &image), 0);
	assert_false(crash_at(&f, image, n++, seen));
	assert_int_equal(seen[1], 0);
	while (crash_at(&f, image, n, seen))
		n++;
	print_message("%u power cuts before it was done, %u behind that\n", seen[0], seen[1]);
	assert_true(n > 20);
	sim_image_free(image);
	fixture_free(&f.pool_fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_known_to_later_epochs),
		cmocka_unit_test(what_failed_is_not_done),
		cmocka_unit_test(in_a_full_pool_it_goes_unrecorded),
		cmocka_unit_test(a_slot_has_its_last_one),
		cmocka_unit_test(a_session_takes_its_slots_with_it),
		cmocka_unit_test(it_is_known_when_it_was_done),
	};

	log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
