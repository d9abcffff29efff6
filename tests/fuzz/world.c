/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "fuzz.h"
#include "pool/internal.h"

#define LABELS (2 * LABEL_RING * LABEL_BODY) /* bytes of the labels of a device */

static struct fuzz_world world;
static char names[WORLD_DEVICES][4];

static void must(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "the world cannot be made: %s: %s\n", what, strerror(-rc));
	abort();
}

static void quiet(enum log_level level, const char *line)
{
}

/* --- making it -------------------------------------------------------------------------------- */

static void make_pool(void)
{
	struct sim_options options = {.seed = 1};
	struct pool_create_device devices[WORLD_DEVICES];
	struct pool_create_options create = {.name = "tank",
		.data = 2,
		.parity = 1,
		.cell = 4096,
		.devices = devices,
		.device_count = WORLD_DEVICES,
		.host = "alpha",
		.slot_rows = 4,
		.journal_size = 512 << 10};

	must(sim_world_create(&options, &world.sim), "world");
	for (unsigned i = 0; i < WORLD_DEVICES; i++) {
		snprintf(names[i], sizeof(names[i]), "d%u", i);
		world.paths[i] = names[i];
		devices[i] = (struct pool_create_device){names[i], names[i]};
		must(sim_add_device(world.sim, names[i], WORLD_DEVICE_SIZE), "device");
	}
	must(sim_engine_create(world.sim, &world.engine), "engine");
	must(pool_create(world.engine, &create, NULL), "pool_create");
}

static uint64_t make(struct volume *volume, uint64_t dir, const char *name, enum volume_type type)
{
	struct volume_new new = {.type = type, .target = "a/target"};
	struct volume_attributes made;
	uint64_t lsn;

	must(volume_make(volume, dir, name, &new, &made, &lsn), name);
	return made.ino;
}

static void make_file(
	struct volume *volume, uint64_t dir, const char *name, uint64_t offset, size_t length)
{
	uint8_t *bytes = malloc(length);
	struct iovec iov = {bytes, length};
	struct volume_file *file;

	for (size_t i = 0; bytes && i < length; i++)
		bytes[i] = (uint8_t)(1 + (i ^ i >> 8) % 200);
	must(volume_file_get(volume, make(volume, dir, name, VOLUME_FILE), &file), name);
	must(volume_write(file, offset, &iov, 1, length), name);
	must(volume_commit_wait(file), name);
	volume_file_put(file);
	free(bytes);
}

static void set_property(struct pool *pool)
{
	struct txn *txn;
	uint64_t lsn;

	must(txn_begin(pool, NULL, &txn), "property");
	must(property_set(txn, 0, "comment", "for fuzzing"), "property");
	must(property_set(txn, 0, "gone", "soon"), "property");
	must(property_delete(txn, 0, "gone"), "property");
	must(txn_commit(txn, &lsn), "property");
	must(pool_sync(pool, lsn), "property");
}

/* Deleted while it is open, and open at the crash. */
static void make_orphan(struct volume *volume, struct volume_file **file)
{
	struct volume_attributes found;
	uint64_t lsn;

	make_file(volume, VOLUME_ROOT, "orphan", 0, 9000);
	must(volume_lookup(volume, VOLUME_ROOT, "orphan", &found), "orphan");
	must(volume_file_get(volume, found.ino, file), "orphan");
	must(volume_file_open(*file), "orphan");
	must(volume_unlink(volume, VOLUME_ROOT, "orphan", VOLUME_UNLINK_ANY, &lsn), "orphan");
}

static void make_names(struct volume *volume)
{
	const struct volume_xattr tag = {"tag", "a value", 7};
	struct volume_attributes found;
	uint64_t dir = make(volume, VOLUME_ROOT, "dir", VOLUME_DIRECTORY), lsn;

	make(volume, dir, "link", VOLUME_SYMLINK);
	make(volume, dir, "pipe", VOLUME_FIFO);
	make_file(volume, dir, "inline", 0, 300);
	make_file(volume, dir, "small", 0, 5000);
	make_file(volume, VOLUME_ROOT, "hole", 60000, 3000);
	make_file(volume, VOLUME_ROOT, "large", 0, 50000);
	must(volume_lookup(volume, dir, "small", &found), "small");
	must(volume_link(volume, found.ino, VOLUME_ROOT, "second", NULL, &lsn), "second");
	must(volume_xattr_set(volume, found.ino, &tag, VOLUME_XATTR_CREATE, &lsn), "tag");
}

/* An image and a delta of it, for which it has to be larger than a row. */
static void make_parts(struct pool *pool, struct volume *volume)
{
	struct pool_status *status = malloc(sizeof(*status));
	char name[8];

	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "part%u", i);
		make_file(volume, VOLUME_ROOT, name, 0, 2000);
	}
	must(pool_checkpoint(pool), "checkpoint");
	make_file(volume, VOLUME_ROOT, "delta", 0, 200);
	must(pool_checkpoint(pool), "checkpoint");
	pool_status(pool, status);
	must(status->deltas == 1 ? 0 : -EINVAL, "delta");
	free(status);
}

static int first_segment(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	uint64_t *first = data;

	if (live)
		*first = segment;
	return 0;
}

/* A dataset whose bytes are not where its image says. */
static void make_moved(struct pool *pool, struct volumes *volumes)
{
	struct volume_create_options create = {.name = "set", .kind = VOLUME_DATASET};
	struct volume *volume;
	uint64_t segment = 0;

	must(volume_create(volumes, &create, NULL, NULL), "volume_create");
	must(volume_open(volumes, "set", &volume, NULL), "volume_open");
	make_file(volume, VOLUME_ROOT, "moved", 0, 9000);
	must(volume_seal(volume, NULL), "volume_seal");
	must(pool_each_segment(pool, volume_row(volume)->id, first_segment, &segment), "segments");
	must(volume_compact(volume, &segment, 1, NULL), "volume_compact");
	must(volume_close(volume), "volume_close");
}

static uint64_t area_offset(unsigned device, unsigned area)
{
	return area ? world.headers[device].label_b_offset : BLOCK_SIZE;
}

/* All labels of a device, without the beats that stand between them. */
static void copy_labels(unsigned device, uint8_t *labels, bool restore)
{
	for (unsigned i = 0; i < 2 * LABEL_RING; i++) {
		uint64_t at = area_offset(device, i / LABEL_RING) + i % LABEL_RING * LABEL_SIZE;
		uint8_t *copy = labels + (size_t)i * LABEL_BODY;

		if (restore)
			world_write(&world, device, at, copy, LABEL_BODY);
		else
			memcpy(copy, world_medium(&world, device, at), LABEL_BODY);
	}
}

static void read_headers(void)
{
	for (unsigned i = 0; i < WORLD_DEVICES; i++)
		must(device_header_decode(&world.headers[i], world_medium(&world, i, 0)), "header");
}

static void read_label(void)
{
	static struct label label;

	for (unsigned i = 0; i < LABEL_RING; i++) {
		const uint8_t *at = world_medium(&world, 0, BLOCK_SIZE + i * LABEL_SIZE);

		if (!label_decode(&label, at) && label.epoch >= world.label.epoch)
			world.label = label;
	}
}

/* The labels from before the checkpoint come back: images are there, and the whole journal counts.
 */
static void make_history(void)
{
	static uint8_t labels[WORLD_DEVICES][LABELS];
	struct volume_create_options create = {.name = "share", .kind = VOLUME_SHARE};
	struct volumes *volumes;
	struct volume *volume;
	struct volume_file *orphan;
	struct pool *pool;

	must(world_open(&world, WORLD_OWN, &pool), "pool_open");
	sim_settle(world.sim);
	read_headers();
	for (unsigned i = 0; i < WORLD_DEVICES; i++)
		copy_labels(i, labels[i], false);
	set_property(pool);
	must(volumes_create(pool, NULL, &volumes), "volumes_create");
	must(volume_create(volumes, &create, NULL, NULL), "volume_create");
	must(volume_open(volumes, "share", &volume, NULL), "volume_open");
	make_names(volume);
	make_parts(pool, volume);
	make_file(volume, VOLUME_ROOT, "late", 0, 7000);
	make_moved(pool, volumes);
	make_orphan(volume, &orphan);
	must(volume_sync(volume), "sync");
	beat_round(pool);
	sim_drain(world.sim);
	sim_cut_power(world.sim);
	volume_file_close(orphan);
	volume_file_put(orphan);
	volumes_abandon(volumes);
	world_abandon(&world, pool);
	sim_power_on(world.sim, SIM_KEEP_ALL);
	sim_settle(world.sim);
	for (unsigned i = 0; i < WORLD_DEVICES; i++)
		copy_labels(i, labels[i], true);
	read_label();
}

static void make_world(void)
{
	log_set_sink(quiet);
	make_pool();
	make_history();
	engine_destroy(world.engine);
	must(sim_save(world.sim, &world.base), "save");
	world.engine = NULL;
}

/* --- using it --------------------------------------------------------------------------------- */

static void free_world(void)
{
	if (world.engine)
		engine_destroy(world.engine);
	sim_image_free(world.base);
	sim_world_destroy(world.sim);
}

struct fuzz_world *world_reset(void)
{
	if (!world.sim) {
		make_world();
		atexit(free_world);
	}
	if (world.engine)
		engine_destroy(world.engine);
	must(sim_restore(world.sim, world.base), "restore");
	must(sim_engine_create(world.sim, &world.engine), "engine");
	return &world;
}

int world_open(struct fuzz_world *w, enum world_how how, struct pool **pool)
{
	struct pool_open_options options = {.paths = w->paths,
		.path_count = WORLD_DEVICES,
		.host = how == WORLD_FOREIGN ? "beta" : "alpha",
		.read_only = how == WORLD_READ_ONLY,
		.force = how == WORLD_FOREIGN,
		.row_memory = 1u << 20,
		.page_cache = 1u << 20,
		.metadata_limit = 8u << 20};
	struct error error = {0};

	return pool_open(w->engine, &options, pool, &error);
}

void world_abandon(struct fuzz_world *w, struct pool *pool)
{
	pool_abandon(pool);
	sim_drain(w->sim);
}

const uint8_t *world_medium(struct fuzz_world *w, unsigned device, uint64_t offset)
{
	return sim_medium(w->sim, names[device]) + offset;
}

void world_write(
	struct fuzz_world *w, unsigned device, uint64_t offset, const void *bytes, size_t length)
{
	sim_medium_write(w->sim, names[device], offset, bytes, length);
}

/* --- looking at everything -------------------------------------------------------------------- */

#define LOOKED_AT 200u /* names, bounded: what is read may go in circles */
#define BYTES_READ (256u << 10)

struct look {
	struct volume *volume;
	bool change;
	unsigned count;
	uint64_t dirs[8];
	unsigned dir_count;
	char names[16][VOLUME_NAME_MAX + 1];
	uint64_t inos[16];
	unsigned name_count;
};

static void read_file(struct volume *volume, uint64_t ino)
{
	static uint8_t bytes[BYTES_READ];
	struct volume_file *file;
	uint64_t at;
	size_t got;
	bool eof;

	if (volume_file_get(volume, ino, &file))
		return;
	volume_read_wait(file, 0, bytes, sizeof(bytes), &got, &eof);
	volume_seek(file, 0, VOLUME_SEEK_DATA, &at);
	volume_seek(file, 0, VOLUME_SEEK_HOLE, &at);
	volume_file_put(file);
}

static bool see_entry(void *data, const struct volume_entry *entry)
{
	struct look *look = data;

	assert(strlen(entry->name) && strlen(entry->name) <= VOLUME_NAME_MAX);
	if (look->name_count == 16 || look->count++ == LOOKED_AT)
		return false;
	strcpy(look->names[look->name_count], entry->name);
	look->inos[look->name_count++] = entry->attributes.ino;
	if (entry->attributes.type == VOLUME_DIRECTORY && look->dir_count < 8)
		look->dirs[look->dir_count++] = entry->attributes.ino;
	return true;
}

static bool see_xattr(void *data, const char *name, size_t length)
{
	assert(length && length <= VOLUME_NAME_MAX);
	return --*(unsigned *)data;
}

static void look_at_xattrs(struct volume *volume, uint64_t ino)
{
	unsigned left = LOOKED_AT;
	char value[300];
	size_t length;
	bool eof;

	volume_xattr_list(volume, ino, 0, see_xattr, &left, &eof);
	volume_xattr_get(volume, ino, "tag", value, sizeof(value), &length);
}

static void look_at_inode(struct look *look, uint64_t ino)
{
	struct volume_attributes attributes;
	uint8_t handle[VOLUME_HANDLE_SIZE];
	char text[VOLUME_TARGET_MAX + 1];
	size_t length;

	volume_getattr(look->volume, ino, &attributes);
	volume_readlink(look->volume, ino, text, sizeof(text), &length);
	volume_path(look->volume, ino, text, 300);
	volume_handle_make(look->volume, ino, handle);
	look_at_xattrs(look->volume, ino);
	read_file(look->volume, ino);
}

static void change_xattrs(struct volume *volume, uint64_t ino)
{
	const struct volume_xattr other = {"other", "another value", 13};
	uint64_t lsn;

	volume_xattr_set(volume, ino, &other, VOLUME_XATTR_EITHER, &lsn);
	volume_xattr_remove(volume, ino, "tag", &lsn);
}

static void change_file(struct volume *volume, uint64_t ino)
{
	static uint8_t bytes[9000];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct volume_set set = {.mask = VOLUME_SET_SIZE, .size = 1000};
	struct volume_file *file;
	uint64_t lsn;

	if (volume_file_get(volume, ino, &file))
		return;
	if (!volume_write(file, 5000, &iov, 1, sizeof(bytes)))
		volume_commit_wait(file);
	if (!volume_punch(file, 3000, 6000))
		volume_commit_wait(file);
	volume_setattr(volume, ino, &set, NULL, &lsn);
	change_xattrs(volume, ino);
	volume_file_put(file);
}

static void look_at_directory(struct look *look, uint64_t dir)
{
	struct volume_attributes found;
	uint64_t lsn;
	bool eof;

	look->name_count = 0;
	volume_readdir(look->volume, dir, 0, see_entry, look, &eof);
	for (unsigned i = 0; i < look->name_count; i++) {
		volume_lookup(look->volume, dir, look->names[i], &found);
		look_at_inode(look, look->inos[i]);
		if (!look->change)
			continue;
		change_file(look->volume, look->inos[i]);
		volume_rename(look->volume, dir, look->names[i], VOLUME_ROOT, "moved", &lsn);
		volume_unlink(look->volume, dir, look->names[i], VOLUME_UNLINK_ANY, &lsn);
	}
	volume_parent(look->volume, dir, &found);
}

static void look_at_volume(struct volumes *volumes, uint32_t id, bool change)
{
	struct look look = {.change = change, .dirs = {VOLUME_ROOT}, .dir_count = 1};
	struct volume_verify_options options = {0};
	struct volume_verify_report report;
	struct volume_space space;
	uint64_t wrong;

	if (volume_open_id(volumes, id, &look.volume, NULL))
		return;
	volume_statfs(look.volume, &space);
	volume_verify(look.volume, &options, &report, NULL);
	volume_check_live(look.volume, &wrong);
	for (unsigned i = 0; i < look.dir_count; i++)
		look_at_directory(&look, look.dirs[i]);
	if (change) {
		volume_maintain(look.volume);
		volume_sync(look.volume);
	}
	volume_close(look.volume);
}

static uint32_t next_volume(struct pool *pool, uint32_t id)
{
	struct volume_row row;
	struct txn *view;
	int rc = view_begin(pool_env(pool), &view);

	if (rc)
		return 0;
	rc = volume_row_next(view, id, &row);
	txn_abort(view);
	return rc ? 0 : row.id;
}

void world_use(struct pool *pool, bool change)
{
	struct pool_check_report report;
	struct pool_status status;
	struct volumes *volumes;
	unsigned left = 4;

	pool_status(pool, &status);
	must(volumes_create(pool, NULL, &volumes), "volumes_create");
	for (uint32_t id = 0; left-- && (id = next_volume(pool, id + 1));)
		look_at_volume(volumes, id, change);
	if (change)
		volume_destroy(volumes, "share", NULL);
	pool_check(pool, false, &report, NULL, NULL, NULL);
	if (change) {
		pool_maintain(pool);
		pool_checkpoint(pool);
	}
	volumes_abandon(volumes);
}
