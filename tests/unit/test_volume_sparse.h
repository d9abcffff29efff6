/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A volume most of whose bytes are gone, for tests of its compaction. */
#ifndef TEST_VOLUME_SPARSE_H
#define TEST_VOLUME_SPARSE_H

#include "common/log.h"
#include "test_volume_share.h"

#define SEGMENT (256 * KIB) /* 16 rows of four cells of 4 KiB */
#define FILES 32u

static inline const char *name_of(unsigned i)
{
	static char name[16];

	snprintf(name, sizeof(name), "f%u", i);
	return name;
}

static inline int try_file(unsigned i, size_t length)
{
	struct volume_new new = {
		.type = VOLUME_FILE, .set = {.mask = VOLUME_SET_MODE, .mode = 0644}};
	struct volume_attributes made;
	struct volume_file *file;
	uint64_t lsn;
	int r = volume_make(fixture.volume, VOLUME_ROOT, name_of(i), &new, &made, &lsn);

	if (r)
		return r;
	file = must_get(fixture.volume, made.ino);
	r = write_seeded(file, 0, length, i);
	if (!r)
		r = volume_commit_wait(file);
	volume_file_put(file);
	return r;
}

static inline void must_find(unsigned i, size_t length)
{
	struct volume_attributes found;
	struct volume_file *file;

	assert_int_equal(volume_lookup(fixture.volume, VOLUME_ROOT, name_of(i), &found), 0);
	assert_int_equal(found.size, length);
	file = must_get(fixture.volume, found.ino);
	must_read_seeded(file, 0, length, i);
	volume_file_put(file);
}

static inline void maintain(void)
{
	assert_int_equal(volume_maintain(fixture.volume), 0);
	assert_int_equal(pool_maintain(fixture.pool), 0);
}

/* Of the files [0, FILES), in segments that they share, only each `step`-th stays. */
static inline void make_sparse(unsigned step)
{
	for (unsigned i = 0; i < FILES; i++) {
		assert_int_equal(try_file(i, 64 * KIB), 0);
		assert_int_equal(pool_maintain(fixture.pool), 0);
	}
	for (unsigned i = 0; i < FILES; i++)
		if (i % step)
			must_unlink(fixture.volume, VOLUME_ROOT, name_of(i));
	must_sync(&fixture);
	maintain();
}

static inline int plan_of(unsigned percent, struct compaction_plan *plan)
{
	struct compaction_request request = {.percent = percent};

	return pool_plan_compaction(fixture.pool, &request, plan);
}

static unsigned losses; /* told in the log */

static inline void count_losses(enum log_level level, const char *line)
{
	losses += strstr(line, "stay in segment") || strstr(line, "stays where it is");
}

static inline void fail_reads(int error)
{
	for (unsigned i = 0; i < 3; i++)
		sim_fail_device_reads(
			fixture.pool_fixture.world, fixture.pool_fixture.names[i], error);
}

/* Told, and not tried again. */
static inline void must_leave_what_is_lost(bool sealed)
{
	struct compaction_plan plan, next;

	make_sparse(4);
	if (sealed)
		assert_int_equal(volume_seal(fixture.volume, NULL), 0);
	maintain();
	volume_fixture_reopen(&fixture);
	assert_int_equal(plan_of(100, &plan), 0);
	losses = 0;
	log_set_sink(count_losses);
	fail_reads(-EIO);
	assert_int_equal(volume_compact(fixture.volume, plan.segments, plan.count, NULL), 0);
	fail_reads(0);
	log_set_sink(NULL);
	assert_true(losses >= plan.count);
	if (!plan_of(100, &next))
		for (unsigned i = 0; i < next.count; i++)
			for (unsigned n = 0; n < plan.count; n++)
				assert_int_not_equal(next.segments[i], plan.segments[n]);
	for (unsigned i = 0; i < FILES; i += 4)
		must_find(i, 64 * KIB);
}

#endif
