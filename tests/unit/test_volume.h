/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A share on a small simulated pool (pool_fixture.h), for the tests of the volume layer. */
#ifndef TEST_VOLUME_H
#define TEST_VOLUME_H

#include <stdlib.h>

#include "pool_fixture.h"
#include "volume/volume.h"

struct volume_fixture {
	struct fixture pool_fixture;
	struct pool *pool;
	struct volumes *volumes;
	struct volume *volume;
	struct volumes_options options;
};

static inline void volume_fixture_make_with(
	struct fixture *f, uint64_t size, uint32_t slot_rows, uint64_t journal)
{
	struct sim_options options = {.seed = 1, .reorder = true};
	struct pool_create_device list[FIXTURE_DEVICES];
	struct error error = {0};
	struct pool_create_options create = {
		.name = "tank",
		.data = 4,
		.parity = 2,
		.cell = 4096,
		.devices = list,
		.device_count = FIXTURE_DEVICES,
		.host = "alpha",
		.slot_rows = slot_rows,
		.journal_size = journal,
	};

	memset(f, 0, sizeof(*f));
	f->devices = FIXTURE_DEVICES;
	f->data = 4;
	f->parity = 2;
	assert_int_equal(sim_world_create(&options, &f->world), 0);
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++) {
		snprintf(f->names[i], sizeof(f->names[i]), "d%u", i);
		f->paths[i] = f->names[i];
		list[i] = (struct pool_create_device){.path = f->names[i], .domain = f->names[i]};
		assert_int_equal(sim_add_device(f->world, f->names[i], size), 0);
	}
	assert_int_equal(sim_engine_create(f->world, &f->engine), 0);
	if (pool_create(f->engine, &create, &error))
		fail_msg("pool_create: %s: %s", error.object, error.message);
}

/* fixture_make() with more room: 16 rows a segment, 2 MiB of journal a device. */
static inline void volume_fixture_make(struct fixture *f, uint64_t size)
{
	volume_fixture_make_with(f, size, 16, 2 << 20);
}

static inline void volume_fixture_open(struct volume_fixture *f)
{
	struct error error = {0};

	f->pool = fixture_must_open(&f->pool_fixture);
	assert_int_equal(volumes_create(f->pool, &f->options, &f->volumes), 0);
	if (volume_open(f->volumes, "share", &f->volume, &error))
		fail_msg("volume_open: %s: %s", error.object, error.message);
}

/* In a pool that was just made. */
static inline void volume_fixture_begin(struct volume_fixture *f)
{
	struct volume_create_options create = {.name = "share", .kind = VOLUME_SHARE};
	struct error error = {0};

	f->pool = fixture_must_open(&f->pool_fixture);
	assert_int_equal(volumes_create(f->pool, &f->options, &f->volumes), 0);
	if (volume_create(f->volumes, &create, NULL, &error))
		fail_msg("volume_create: %s: %s", error.object, error.message);
	if (volume_open(f->volumes, "share", &f->volume, &error))
		fail_msg("volume_open: %s: %s", error.object, error.message);
}

static inline void volume_fixture_shut(struct volume_fixture *f)
{
	struct error error = {0};

	assert_int_equal(volume_close(f->volume), 0);
	volumes_destroy(f->volumes);
	if (pool_close(f->pool, &error))
		fail_msg("pool_close: %s: %s", error.object, error.message);
}

static inline void volume_fixture_start(
	struct volume_fixture *f, uint64_t device_size, const struct volumes_options *options)
{
	memset(f, 0, sizeof(*f));
	if (options)
		f->options = *options;
	volume_fixture_make(&f->pool_fixture, device_size);
	volume_fixture_begin(f);
}

/* Closed in order and opened again. */
static inline void volume_fixture_reopen(struct volume_fixture *f)
{
	volume_fixture_shut(f);
	volume_fixture_open(f);
}

/* As after a crash. */
static inline void volume_fixture_crash(struct volume_fixture *f, enum sim_policy policy)
{
	sim_cut_power(f->pool_fixture.world);
	sim_drain(f->pool_fixture.world);
	volumes_abandon(f->volumes);
	pool_abandon(f->pool);
	sim_power_on(f->pool_fixture.world, policy);
	volume_fixture_open(f);
}

static inline void volume_fixture_end(struct volume_fixture *f)
{
	volume_fixture_shut(f);
	fixture_free(&f->pool_fixture);
}

/* Everything that was changed is durable. */
static inline void must_sync(struct volume_fixture *f)
{
	assert_int_equal(volume_sync(f->volume), 0);
}

static inline uint64_t must_make(
	struct volume *volume, uint64_t dir, const char *name, enum volume_type type)
{
	struct volume_new new = {
		.type = type,
		.set = {.mask = VOLUME_SET_MODE, .mode = 0640},
		.target = type == VOLUME_SYMLINK ? "target" : NULL,
	};
	struct volume_attributes made;
	uint64_t lsn;

	assert_int_equal(volume_make(volume, dir, name, &new, &made, &lsn), 0);
	assert_int_not_equal(lsn, 0);
	return made.ino;
}

static inline struct volume_file *must_get(struct volume *volume, uint64_t ino)
{
	struct volume_file *file;

	assert_int_equal(volume_file_get(volume, ino, &file), 0);
	return file;
}

static inline void fill_bytes(uint8_t *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(seed * 131 + i * 7 + (i >> 8) + 1);
}

static inline int write_seeded(
	struct volume_file *file, uint64_t offset, size_t length, unsigned seed)
{
	uint8_t *bytes = malloc(length + 1);
	struct iovec iov = {bytes, length};
	int r;

	fill_bytes(bytes, length, seed);
	r = volume_write(file, offset, &iov, 1, length);
	free(bytes);
	return r;
}

/* The bytes that write_seeded() wrote. */
static inline void must_read_seeded(
	struct volume_file *file, uint64_t offset, size_t length, unsigned seed)
{
	uint8_t *expected = malloc(length + 1), *found = calloc(1, length + 1);
	size_t bytes;
	bool eof;

	fill_bytes(expected, length, seed);
	assert_int_equal(volume_read_wait(file, offset, found, length, &bytes, &eof), 0);
	assert_int_equal(bytes, length);
	assert_memory_equal(found, expected, length);
	free(expected);
	free(found);
}

static inline void must_read_zeros(struct volume_file *file, uint64_t offset, size_t length)
{
	uint8_t *found = malloc(length + 1);
	size_t bytes;
	bool eof;

	memset(found, 0xee, length);
	assert_int_equal(volume_read_wait(file, offset, found, length, &bytes, &eof), 0);
	assert_int_equal(bytes, length);
	for (size_t i = 0; i < length; i++)
		assert_int_equal(found[i], 0);
	free(found);
}

static inline uint64_t size_of(struct volume *volume, uint64_t ino)
{
	struct volume_attributes attributes;

	assert_int_equal(volume_getattr(volume, ino, &attributes), 0);
	return attributes.size;
}

static inline int set_size(struct volume *volume, uint64_t ino, uint64_t size)
{
	struct volume_set set = {.mask = VOLUME_SET_SIZE, .size = size};
	uint64_t lsn;

	return volume_setattr(volume, ino, &set, NULL, &lsn);
}

static inline void must_unlink(struct volume *volume, uint64_t dir, const char *name)
{
	uint64_t lsn;

	assert_int_equal(volume_unlink(volume, dir, name, VOLUME_UNLINK_ANY, &lsn), 0);
}

/* The volume agrees with itself and with the pool. */
static inline void must_be_sound(struct volume_fixture *f)
{
	struct volume_verify_report report;
	struct error error = {0};
	uint64_t wrong;

	assert_int_equal(volume_verify(f->volume, NULL, &report, &error), 0);
	assert_int_equal(report.bad_files, 0);
	assert_int_equal(report.bad_metadata, 0);
	assert_int_equal(volume_check_live(f->volume, &wrong), 0);
	assert_int_equal(wrong, 0);
}

#endif
