/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A share with one file for each test (test_volume_share.h): FILE_TEST(name) has it as `file`. */
#ifndef TEST_VOLUME_FILE_H
#define TEST_VOLUME_FILE_H

#include "test_volume_share.h"

static struct volume_file *file;
static uint64_t ino; /* of it */

static inline int start_file(void **state)
{
	start(state);
	ino = must_make(fixture.volume, VOLUME_ROOT, "file", VOLUME_FILE);
	must_sync(&fixture);
	file = must_get(fixture.volume, ino);
	return 0;
}

static inline int end_file(void **state)
{
	volume_file_put(file);
	return end(state);
}

static inline void crash(void)
{
	volume_file_put(file);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	file = must_get(fixture.volume, ino);
}

/* Space that the file uses. */
static inline uint64_t used(void)
{
	return attributes_of(ino).used;
}

static inline uint64_t seek(uint64_t offset, enum volume_seek what)
{
	uint64_t found = 0;

	assert_int_equal(volume_seek(file, offset, what, &found), 0);
	return found;
}

#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, start_file, end_file)

#endif
