/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A share for each test: TEST(name) makes `fixture`, on devices of DEVICE_SIZE bytes (8 MiB unless
 * that is defined before), and behind the test the share has to be sound. */
#ifndef TEST_VOLUME_SHARE_H
#define TEST_VOLUME_SHARE_H

#include "test_volume.h"

#ifndef DEVICE_SIZE
#define DEVICE_SIZE (8u << 20)
#endif
#define KIB 1024u

static struct volume_fixture fixture;

static inline int start_with(const struct volumes_options *options)
{
	volume_fixture_start(&fixture, DEVICE_SIZE, options);
	return 0;
}

static inline int start(void **state)
{
	return start_with(NULL);
}

static inline int end(void **state)
{
	must_be_sound(&fixture);
	volume_fixture_end(&fixture);
	return 0;
}

static inline struct volume_file *make_file(const char *name)
{
	return must_get(fixture.volume, must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE));
}

static inline struct volume_attributes attributes_of(uint64_t ino)
{
	struct volume_attributes attributes;

	assert_int_equal(volume_getattr(fixture.volume, ino, &attributes), 0);
	return attributes;
}

/* Bytes of all files. */
static inline uint64_t live(void)
{
	struct volume_space space;

	assert_int_equal(volume_statfs(fixture.volume, &space), 0);
	return space.bytes;
}

/* Extents of one byte in every other place: as many as there are writes. */
static inline void scatter(struct volume_file *file, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(write_seeded(file, 4096 + 10 * i, 1, i), 0);
	assert_int_equal(volume_commit_wait(file), 0);
}

/* More devices than parity, from now on; 0: none. */
static inline void fail_writes(int error)
{
	struct fixture *f = &fixture.pool_fixture;

	for (unsigned i = 0; i <= f->parity; i++)
		sim_fail_device_writes(f->world, f->names[i], error);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

#endif
