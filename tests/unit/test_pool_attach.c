/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Devices that were dropped and are taken back: while they are made whole, and with the power cut
 * at each step of it. That one is whole is proven by losing any others besides.
 */
#include <stdlib.h>

#include "device/engine.h"
#include "pool/internal.h"
#include "pool/journal.h"
#include "pool_files.h"

#define DEVICE_SIZE (3u << 20)
#define SECOND UINT64_C(1000000000)

static void crash(void)
{
	fixture_crash(&f, pool, SIM_RANDOM);
}

static void begin_with(unsigned parity, uint64_t seed)
{
	fixture_make(&f, 5 + parity, 4, parity, DEVICE_SIZE, seed);
	begin_files(8);
	assert_int_equal(pool_checkpoint(pool), 0);
	add_files(3);
}

static void begin(uint64_t seed)
{
	begin_with(2, seed);
}

/* Device 3 takes no writes, and is dropped; then it would again. */
static void drop_by_failing(void)
{
	sim_fail_device_writes(f.world, "d3", -EIO);
	add_files(4);
	sim_fail_device_writes(f.world, "d3", 0);
	assert_int_equal(atomic_load(&pool->devices[3].state), DEVICE_DROPPED);
}

/* The devices are missing when the pool is opened. */
static void drop_by_missing(unsigned first, unsigned count)
{
	crash();
	for (unsigned i = 0; i < count; i++)
		sim_kill_device(f.world, f.names[first + i]);
	open_pool();
	for (unsigned i = 0; i < count; i++)
		sim_revive_device(f.world, f.names[first + i]);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(atomic_load(&pool->devices[first + i].state), DEVICE_DROPPED);
	add_files(4);
}

static int attach_some(unsigned first, unsigned count)
{
	struct error error = {0};
	int rc = 0;

	for (unsigned i = 0; !rc && i < count; i++)
		rc = pool_attach(pool, f.names[first + i], &error);
	return rc;
}

static unsigned suspects(void)
{
	struct pool_status *status = malloc(sizeof(*status));
	unsigned count = 0;

	pool_status(pool, status);
	for (unsigned i = 0; i < status->device_count; i++)
		count += status->devices[i].suspect;
	free(status);
	return count;
}

/* Whichever as many as parity die, all is there. The pool has crashed, or is closed. */
static void must_survive_any_losses(void)
{
	for (unsigned i = 0; i < f.devices; i++) {
		for (unsigned j = f.parity > 1 ? i + 1 : i; j < f.devices; j++) {
			if (f.parity == 1 && j > i)
				break;
			sim_kill_device(f.world, f.names[i]);
			sim_kill_device(f.world, f.names[j]);
			open_to_look();
			must_have_all_files();
			pool_abandon(pool);
			sim_revive_device(f.world, f.names[i]);
			sim_revive_device(f.world, f.names[j]);
		}
	}
}

static void must_find_nothing_wrong(void)
{
	struct pool_check_report report;
	struct error error = {0};

	assert_int_equal(pool_check(pool, false, &report, NULL, NULL, &error), 0);
	assert_int_equal(report.bad_blocks, 0);
	assert_int_equal(report.missing_chunks, 0);
}

/* --- whole again ------------------------------------------------------------------------------ */

static void after_writes_that_failed(void **state)
{
	begin(1);
	drop_by_failing();
	assert_int_equal(attach_some(3, 1), 0);
	assert_int_equal(suspects(), 1);
	become_whole();
	assert_int_equal(suspects(), 0);
	must_find_nothing_wrong();
	add_files(4);
	crash();
	must_survive_any_losses();
	open_pool();
	assert_int_equal(suspects(), 0);
	end();
}

static void after_it_was_missing(void **state)
{
	begin(2);
	drop_by_missing(1, 2);
	assert_int_equal(attach_some(1, 2), 0);
	assert_int_equal(suspects(), 2);
	add_files(4);
	become_whole();
	must_find_nothing_wrong();
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

/* Before it is whole nothing is lost either that was there. */
static void as_long_as_it_is_not_whole(void **state)
{
	struct pool_resilver_report report;

	begin(3);
	drop_by_failing();
	assert_int_equal(attach_some(3, 1), 0);
	add_files(3);
	must_have_all_files();
	crash();
	for (unsigned i = 0; i < f.devices; i++) {
		sim_kill_device(f.world, f.names[i]);
		open_to_look();
		assert_int_equal(suspects(), i != 3);
		must_have_all_files();
		pool_abandon(pool);
		sim_revive_device(f.world, f.names[i]);
	}
	open_pool();
	assert_int_equal(suspects(), 1);
	assert_int_equal(resilver(&report), 0);
	assert_true(report.written_blocks > 0);
	assert_true(report.whole);
	assert_int_equal(resilver(&report), 0);
	assert_int_equal(report.devices, 0);
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

/* Slots that it had are others' now: what stands there is not taken for theirs. */
static void after_its_slots_were_used_again(void **state)
{
	struct pool_resilver_report report;

	begin(4);
	drop_by_missing(5, 1);
	for (unsigned round = 0; round < 4; round++) {
		add_files(3);
		assert_int_equal(pool_checkpoint(pool), 0);
	}
	assert_int_equal(attach_some(5, 1), 0);
	for (unsigned round = 0; round < 4; round++) {
		add_files(2);
		assert_int_equal(pool_checkpoint(pool), 0);
	}
	assert_int_equal(resilver(&report), 0);
	assert_true(report.whole);
	must_find_nothing_wrong();
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

/* One that fails again is dropped again, and is attached again. */
static void one_that_fails_again(void **state)
{
	struct pool_resilver_report report;

	begin(5);
	drop_by_failing();
	assert_int_equal(attach_some(3, 1), 0);
	sim_fail_device_writes(f.world, "d3", -EIO);
	assert_int_equal(resilver(&report), 0);
	assert_false(report.whole);
	assert_int_equal(atomic_load(&pool->devices[3].state), DEVICE_DROPPED);
	sim_fail_device_writes(f.world, "d3", 0);
	add_files(2);
	assert_int_equal(attach_some(3, 1), 0);
	become_whole();
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

/* It lacks what only others have that are away: it is not called whole before they are back. */
static void what_needs_others_waits_for_them(void **state)
{
	struct pool_resilver_report report;

	begin(6);
	drop_by_failing();
	drop_by_missing(0, 2);
	sim_kill_device(f.world, "d0");
	sim_kill_device(f.world, "d1");
	assert_int_equal(attach_some(3, 1), 0);
	assert_int_equal(resilver(&report), 0);
	assert_true(report.lost_blocks + report.waiting_segments > 0);
	assert_false(report.whole);
	assert_int_equal(suspects(), 1);
	sim_revive_device(f.world, "d0");
	sim_revive_device(f.world, "d1");
	assert_int_equal(attach_some(0, 2), 0);
	become_whole();
	must_have_all_files();
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

/* --- what it says of the time before ---------------------------------------------------------- */

/* An opener's claim that reached it alone, under epochs that others have had since. */
static void its_labels_are_not_believed(void **state)
{
	uint8_t *old = malloc(LABEL_AREA);
	struct label *label = malloc(sizeof(*label));

	begin(7);
	assert_int_equal(pool_checkpoint(pool), 0);
	drop_by_missing(2, 1);
	assert_int_equal(pool_checkpoint(pool), 0);
	sim_settle(f.world);
	memcpy(old, sim_medium(f.world, "d4") + LABEL_A_OFFSET, LABEL_AREA);
	assert_int_equal(label_decode(label, old + label_place(0, pool->epoch)), 0);
	label->epoch += 20;
	memset(old, 0, LABEL_AREA);
	assert_int_equal(label_encode(label, old + label_place(0, label->epoch)), 0);
	add_files(4);
	assert_int_equal(pool_checkpoint(pool), 0);
	sim_medium_write(f.world, "d2", LABEL_A_OFFSET, old, LABEL_AREA);
	assert_int_equal(attach_some(2, 1), 0);
	become_whole();
	for (unsigned i = 0; i < 3; i++) {
		add_files(1);
		engine_sleep(f.engine, SECOND);
	}
	assert_int_equal(pool_failure(pool), 0);
	crash();
	open_pool();
	must_have_all_files();
	free(label);
	free(old);
	end();
}

/* Another's next batch, at the same place, under the same epoch, behind the same one: it had
 * reached this device alone, and was never acknowledged. */
static void its_journal_is_not_believed(void **state)
{
	struct sim_image *image = NULL;
	uint64_t ring, size;
	uint8_t *journal;

	begin(12);
	crash();
	assert_int_equal(sim_save(f.world, &image), 0);
	open_pool();
	ring = pool->devices[0].header.journal_offset;
	size = pool->devices[0].header.journal_size;
	journal = malloc(size);
	add_files(2);
	crash();
	sim_settle(f.world);
	memcpy(journal, sim_medium(f.world, "d0") + ring, size);
	files -= 2;
	assert_int_equal(sim_restore(f.world, image), 0);
	sim_kill_device(f.world, "d0");
	open_pool();
	sim_revive_device(f.world, "d0");
	add_files(1);
	sim_medium_write(f.world, "d0", ring, journal, size);
	assert_int_equal(attach_some(0, 1), 0);
	assert_int_equal(add_file(), 0);
	crash();
	open_pool();
	must_have_all_files();
	become_whole();
	must_find_nothing_wrong();
	sim_image_free(image);
	free(journal);
	end();
}

/* --- which ------------------------------------------------------------------------------------ */

static void what_cannot_be_attached(void **state)
{
	struct error error = {0};

	begin(8);
	assert_int_equal(attach_some(2, 1), 0); /* it is in use: nothing to do */
	assert_int_equal(suspects(), 0);
	assert_int_equal(sim_add_device(f.world, "other", DEVICE_SIZE), 0);
	assert_int_equal(pool_attach(pool, "other", &error), -ENODEV);
	assert_int_equal(pool_attach(pool, "none", &error), -ENOENT);
	drop_by_failing();
	sim_kill_device(f.world, "d3");
	assert_true(pool_attach(pool, "d3", &error) < 0);
	sim_revive_device(f.world, "d3");
	sim_fail_device_writes(f.world, "d3", -EIO);
	assert_int_equal(pool_attach(pool, "d3", &error), -EIO);
	assert_int_equal(atomic_load(&pool->devices[3].state), DEVICE_DROPPED);
	sim_fail_device_writes(f.world, "d3", 0);
	end();
}

/* --- another in its place --------------------------------------------------------------------- */

static int replace(unsigned id, const char *path, bool force)
{
	struct error error = {0};

	return pool_replace(pool, id, path, force, &error);
}

/* From now on it is `name` that is looked for. */
static void add_spare(const char *name, uint64_t size)
{
	assert_int_equal(sim_add_device(f.world, name, size), 0);
}

/* All of what the lost one had is on it, whatever it held before. */
static void one_that_is_lost_is_replaced(void **state)
{
	struct pool_resilver_report report;

	begin(13);
	drop_by_failing();
	add_spare("spare", DEVICE_SIZE + (1u << 20));
	assert_int_equal(replace(3, "spare", false), 0);
	assert_int_equal(suspects(), 1);
	must_have_all_files();
	add_files(2);
	assert_int_equal(resilver(&report), 0);
	assert_true(report.whole && report.written_blocks >= report.blocks);
	assert_int_equal(atomic_load(&pool->devices[3].checksum_errors), 0);
	must_find_nothing_wrong();
	crash();
	f.paths[3] = "spare";
	strcpy(f.names[3], "spare");
	must_survive_any_losses();
	open_pool();
	assert_int_equal(suspects(), 0);
	end();
}

/* The old one is nobody's, should it come back, and the new one is not what it was before. */
static void the_old_one_is_not_taken_for_it(void **state)
{
	struct error error = {0};

	begin(14);
	sim_kill_device(f.world, "d3");
	add_files(4);
	add_spare("spare", DEVICE_SIZE);
	assert_int_equal(replace(3, "spare", false), 0);
	become_whole();
	sim_revive_device(f.world, "d3");
	assert_int_equal(pool_attach(pool, "d3", &error), -ENODEV);
	crash();
	f.paths[f.devices++] = "spare";
	open_pool();
	assert_string_equal(pool->devices[3].path, "spare");
	must_have_all_files();
	end();
}

static void what_does_not_replace(void **state)
{
	begin(15);
	add_spare("small", DEVICE_SIZE / 2);
	add_spare("spare", DEVICE_SIZE);
	assert_int_equal(replace(2, "spare", false), -EBUSY); /* it is in use */
	assert_int_equal(replace(7, "spare", false), -ENOENT);
	drop_by_failing();
	assert_int_equal(replace(3, "small", false), -EFBIG);
	assert_int_equal(replace(3, "none", false), -ENOENT);
	assert_int_equal(replace(3, "d3", false), -EBUSY); /* it holds this pool */
	assert_int_equal(atomic_load(&pool->devices[3].state), DEVICE_DROPPED);
	assert_int_equal(attach_some(3, 1), 0);
	become_whole();
	end();
}

/* --- the journal ------------------------------------------------------------------------------ */

static unsigned copies_in(const char *domain)
{
	const struct copies *copies = &pool->journal->copies;
	unsigned count = 0;

	for (unsigned i = 0; i < copies->count; i++)
		count += !strcmp(copies->member[i]->label.domain, domain);
	return count;
}

/* It is not in one domain alone for longer than it has to be. */
static void the_journal_goes_to_the_other_domain_again(void **state)
{
	static const char *const domains[] = {"one", "one", "one", "one", "two", "two"};

	fixture_make_domains(&f, 6, 2, 2, DEVICE_SIZE, JOURNAL_SIZE, 9, domains);
	begin_files(3);
	assert_int_equal(copies_in("one"), 2);
	drop_by_missing(4, 2);
	assert_int_equal(copies_in("one"), 3);
	assert_int_equal(attach_some(4, 2), 0);
	assert_int_equal(copies_in("one"), 2);
	become_whole();
	add_files(2);
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

/* --- the power is cut ------------------------------------------------------------------------- */

static void attach_and_resilver(unsigned first, unsigned count)
{
	struct pool_resilver_report report;

	if (!attach_some(first, count) && !add_file())
		resilver(&report);
}

/* At each write and flush, with another fate of what was not durable each time. */
static void cut_everywhere(unsigned first, unsigned count)
{
	struct sim_image *image = NULL;
	unsigned before = files, acknowledged;
	bool cut = true;

	assert_int_equal(pool_close(pool, NULL), 0);
	assert_int_equal(sim_save(f.world, &image), 0);
	for (uint64_t n = 1; cut; n++) {
		files = before;
		assert_int_equal(sim_restore(f.world, image), 0);
		sim_seed(f.world, n);
		open_pool();
		sim_cut_power_at(f.engine, n);
		attach_and_resilver(first, count);
		cut = sim_power_was_cut(f.engine);
		acknowledged = files;
		fixture_crash(&f, pool, n % 3 ? SIM_RANDOM : SIM_LOSE_ALL);
		open_pool();
		files = acknowledged;
		must_have_all_files();
		assert_int_equal(attach_some(first, count), 0);
		become_whole();
		must_find_nothing_wrong();
		if (n % 16 == 0) {
			crash();
			must_survive_any_losses();
			open_pool();
		}
		pool_abandon(pool);
	}
	sim_image_free(image);
}

static void with_power_cuts(void **state)
{
	begin(10);
	drop_by_failing();
	cut_everywhere(3, 1);
	fixture_free(&f);
}

static void two_with_power_cuts(void **state)
{
	begin(11);
	drop_by_missing(1, 2);
	cut_everywhere(1, 2);
	fixture_free(&f);
}

/* Whichever of the two labels name; what was begun is begun again. */
static void replaced_with_power_cuts(void **state)
{
	struct sim_image *image = NULL;
	unsigned before;
	bool cut = true;

	begin(16);
	drop_by_failing();
	add_spare("spare", DEVICE_SIZE);
	before = files;
	assert_int_equal(pool_close(pool, NULL), 0);
	assert_int_equal(sim_save(f.world, &image), 0);
	f.paths[f.devices] = "spare";
	for (uint64_t n = 1; cut; n++) {
		struct pool_resilver_report report;

		files = before;
		assert_int_equal(sim_restore(f.world, image), 0);
		sim_seed(f.world, n);
		f.devices = 7;
		open_pool();
		sim_cut_power_at(f.engine, n);
		if (!replace(3, "spare", true) && !add_file())
			resilver(&report);
		cut = sim_power_was_cut(f.engine);
		fixture_crash(&f, pool, n % 3 ? SIM_RANDOM : SIM_LOSE_ALL);
		f.devices = 8;
		open_pool();
		must_have_all_files();
		if (!member_usable(&pool->devices[3]))
			assert_int_equal(replace(3, "spare", true), 0);
		become_whole();
		assert_string_equal(pool->devices[3].path, "spare");
		must_find_nothing_wrong();
		pool_abandon(pool);
	}
	sim_image_free(image);
	fixture_free(&f);
}

/* --- what its segments were when the power went --------------------------------------------------
 */

/* Bytes that are never acknowledged, and fill what is open. */
static void append_in_vain(void)
{
	static uint8_t bytes[64000];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct extent x[16];
	unsigned count = 16;

	memset(bytes, 0xaa, sizeof(bytes));
	assert_int_equal(stream_append(stream, &iov, 1, sizeof(bytes), 0, x, &count), 0);
}

/* The power goes while a segment is closed, its last row full of bytes that nobody was told of. Its
 * next owner closes it without device `away`, of what was acknowledged: that has other rows and
 * pages, which agree with each other. */
static void take_back_after_another_closing(unsigned away)
{
	sim_kill_device(f.world, f.names[away]);
	open_pool();
	assert_int_equal(pool_maintain(pool), 0);
	assert_int_equal(pool_maintain(pool), 0);
	sim_revive_device(f.world, f.names[away]);
	assert_int_equal(attach_some(away, 1), 0);
	become_whole();
	must_have_all_files();
	must_find_nothing_wrong();
}

static void of_another_closing(unsigned parity, uint64_t seed)
{
	struct sim_image *image = NULL, *at_cut = NULL;
	unsigned before;
	bool cut = true;

	begin_with(parity, seed);
	add_files(1);
	crash();
	sim_settle(f.world);
	assert_int_equal(sim_save(f.world, &image), 0);
	before = files;
	for (uint64_t n = 1; cut; n++) {
		files = before;
		assert_int_equal(sim_restore(f.world, image), 0);
		open_pool();
		assert_int_equal(add_file(), 0);
		append_in_vain();
		sim_cut_power_at(f.engine, n);
		pool_maintain(pool);
		cut = sim_power_was_cut(f.engine);
		fixture_crash(&f, pool, SIM_KEEP_ALL);
		assert_int_equal(sim_save(f.world, &at_cut), 0);
		for (unsigned away = 0; away < f.devices; away++) {
			assert_int_equal(sim_restore(f.world, at_cut), 0);
			take_back_after_another_closing(away);
			crash();
			if ((n + away) % 8 == 0)
				must_survive_any_losses();
		}
	}
	sim_image_free(at_cut);
	sim_image_free(image);
	fixture_free(&f);
}

static void pages_of_another_closing(void **state)
{
	of_another_closing(2, 21);
}

static void pages_of_another_closing_with_one_parity(void **state)
{
	of_another_closing(1, 22);
}

static uint64_t open_segments(void)
{
	struct pool_status *status = malloc(sizeof(*status));
	uint64_t count;

	pool_status(pool, status);
	count = status->segments_open;
	free(status);
	return count;
}

/* More than parity were away, one after the other, and are not whole when the power goes. */
static void more_than_parity_in_turn(void **state)
{
	begin(31);
	for (unsigned i = 1; i <= 3; i++) {
		sim_fail_device_writes(f.world, f.names[i], -EIO);
		assert_int_equal(add_file(), 0);
		pool_maintain(pool);
		sim_fail_device_writes(f.world, f.names[i], 0);
		assert_int_equal(atomic_load(&pool->devices[i].state), DEVICE_DROPPED);
	}
	assert_int_equal(attach_some(1, 3), 0);
	assert_int_equal(add_file(), 0);
	assert_int_equal(add_file(), 0);
	crash();
	open_pool();
	must_have_all_files();
	assert_int_equal(pool_maintain(pool), 0);
	assert_true(open_segments() > 0);
	become_whole();
	assert_int_equal(pool_maintain(pool), 0);
	assert_int_equal(open_segments(), 0);
	must_find_nothing_wrong();
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

/* Segments were closed without either, which held all their parity. */
static void one_of_two_that_held_all_parity(void **state)
{
	begin(32);
	drop_by_missing(4, 1);
	crash();
	sim_kill_device(f.world, "d4");
	sim_kill_device(f.world, "d6");
	open_pool();
	sim_revive_device(f.world, "d4");
	add_files(2);
	assert_int_equal(attach_some(4, 1), 0);
	become_whole();
	sim_revive_device(f.world, "d6");
	assert_int_equal(attach_some(6, 1), 0);
	become_whole();
	must_find_nothing_wrong();
	crash();
	must_survive_any_losses();
	open_pool();
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_writes_that_failed),
		cmocka_unit_test(after_it_was_missing),
		cmocka_unit_test(as_long_as_it_is_not_whole),
		cmocka_unit_test(after_its_slots_were_used_again),
		cmocka_unit_test(one_that_fails_again),
		cmocka_unit_test(what_needs_others_waits_for_them),
		cmocka_unit_test(its_labels_are_not_believed),
		cmocka_unit_test(its_journal_is_not_believed),
		cmocka_unit_test(what_cannot_be_attached),
		cmocka_unit_test(one_that_is_lost_is_replaced),
		cmocka_unit_test(the_old_one_is_not_taken_for_it),
		cmocka_unit_test(what_does_not_replace),
		cmocka_unit_test(replaced_with_power_cuts),
		cmocka_unit_test(the_journal_goes_to_the_other_domain_again),
		cmocka_unit_test(with_power_cuts),
		cmocka_unit_test(two_with_power_cuts),
		cmocka_unit_test(pages_of_another_closing),
		cmocka_unit_test(pages_of_another_closing_with_one_parity),
		cmocka_unit_test(more_than_parity_in_turn),
		cmocka_unit_test(one_of_two_that_held_all_parity),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
