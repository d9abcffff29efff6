/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The insides of the simulated world, shared by sim.c (hosts, the queue, what a request does),
 * sim_power.c (cuts and what survives them, late writes), sim_fault.c, sim_medium.c, sim_image.c
 * and sim_buffer.c. One thread.
 *
 * A disk is its durable bytes and a list of writes that are done but not durable, oldest first:
 * reads lay the list over the bytes, a flush moves the front of it into them. At a power cut the
 * writes in flight join the list, and sim_power_on() decides about each entry. Time orders all: the
 * clock moves forward with each completion before it is stamped, so that "done before the flush was
 * submitted" is a comparison.
 */
#ifndef MILLRACE_SIM_WORLD_H
#define MILLRACE_SIM_WORLD_H

#include "device/engine.h"
#include "device/sim.h"

#define SECTOR_SIZE 512u

/* A write's bytes; never changed, shared between lists and images. */
struct sim_write {
	unsigned references;
	unsigned host; /* its id */
	struct sim_disk *disk;
	uint64_t done_at; /* clock; UINT64_MAX: never done */
	uint64_t offset, length;
	uint8_t bytes[];
};

struct write_list {
	struct sim_write **at;
	unsigned count, room;
};

struct sim_disk_state {
	bool dead;
	uint64_t killed_at;
	int write_error, read_error;
	uint64_t bad_from, bad_to; /* what cannot be read */
	uint64_t delay; /* nanoseconds a request */
	bool volatile_cache;
};

struct sim_block;

struct sim_medium {
	uint64_t count; /* of blocks */
	uint8_t *bytes;
	struct sim_block **kept; /* what images have of each; NULL: changed since */
};

struct sim_disk {
	struct sim_disk *next;
	char name[64];
	uint64_t size;
	struct sim_medium medium;
	struct write_list cache;
	struct sim_disk_state state;
};

/* Counting down to an event; 0: not ordered. */
struct sim_orders {
	uint64_t cut_power, cut_host, fail, lose, misdirect;
	int fail_error;
	uint64_t misdirect_offset;
	bool failed;
	void (*watch)(void *data);
	void *watch_data;
};

struct sim_handle;

struct sim_host {
	struct engine engine;
	struct sim_host *next;
	struct sim_world *world;
	struct sim_handle *handles;
	unsigned id;
	bool cut_off, paused;
	bool hold_late, hold_unflushed;
	uint64_t generation; /* of handles; older ones are dead */
	uint64_t writes_and_flushes;
	struct sim_orders orders;
	struct engine_counters counters;
};

struct sim_handle {
	struct device device;
	struct sim_handle *next;
	struct sim_disk *disk;
	uint64_t generation;
};

/* The part of a world that is plain numbers and goes into an image as it is. */
struct sim_chance {
	uint64_t clock;
	uint64_t chance; /* state of what the world draws: order, survivors */
	uint64_t random; /* state of engine_random() */
};

/* Buffers that wait, the first of each length the longest. */
struct sim_buffers {
	struct sim_buffer *first, **end;
	uint64_t bytes;
};

struct sim_world {
	bool reorder;
	bool power_off;
	bool running; /* inside a done() */
	struct sim_chance now;
	uint64_t generations;
	unsigned hosts_made;
	struct sim_host *hosts;
	struct sim_disk *disks;
	struct io *first, **last; /* outstanding; io->engine_data is the time of submission */
	unsigned outstanding;
	struct ticker *tickers;
	struct write_list late;
	struct sim_buffers buffers;
};

/* --- sim.c -------------------------------------------------------------------------------- */
struct sim_disk *sim_find(struct sim_world *world, const char *name); /* NULL: none */
struct sim_disk *sim_disk(struct sim_world *world, const char *name); /* must be there */
struct sim_host *sim_host(struct engine *engine);
struct sim_host *sim_io_host(const struct io *io);
struct sim_disk *sim_io_disk(const struct io *io);
bool sim_io_stale(const struct io *io);
uint64_t sim_draw(struct sim_world *world, uint64_t below); /* 0 ... below - 1 */
/* Into the medium. */
void sim_store(struct sim_disk *disk, uint64_t offset, const void *bytes, uint64_t length);
/*
 * Takes a range out of the cache: what a durable write replaces must not come back. 0 or -ENOMEM
 * (nothing changed).
 */
int sim_trim_cache(struct sim_disk *disk, uint64_t offset, uint64_t length);

/* --- sim_medium.c ------------------------------------------------------------------------- */
/* Zeros; `size` in bytes, whole blocks. 0 or -ENOMEM; medium_free() it either way. */
int medium_init(struct sim_medium *medium, uint64_t size);
void medium_free(struct sim_medium *medium);
void medium_store(struct sim_medium *medium, uint64_t offset, const void *bytes, uint64_t length);
/* An image of a medium with so many blocks, of zeros; NULL: no memory. */
struct sim_block **blocks_new(uint64_t count);
void blocks_free(struct sim_block **blocks, uint64_t count); /* NULL is allowed */
/* 0 or -ENOMEM (the image is of no use then). */
int medium_save(struct sim_medium *medium, struct sim_block **image);
void medium_restore(struct sim_medium *medium, struct sim_block *const *image);

/* --- sim_buffer.c ------------------------------------------------------------------------- */
/* `length` in bytes, whole blocks. NULL: no memory. */
void *sim_buffer_take(struct sim_buffers *buffers, size_t length);
void sim_buffer_give(
	struct sim_buffers *buffers, void *buffer, size_t length); /* NULL is allowed */
void sim_buffers_free(struct sim_buffers *buffers);

/* --- sim_power.c -------------------------------------------------------------------------- */
/* The writes in flight join the caches, as at a cut, and leave them. */
void sim_caches_take_in_flight(struct sim_world *world);
void sim_caches_leave_in_flight(struct sim_world *world);
enum sim_fate { FATE_SURVIVES, FATE_VANISHES, FATE_TEARS };
enum sim_fate sim_draw_fate(struct sim_world *world);
void sim_apply(struct sim_world *world, const struct sim_write *write, enum sim_fate fate);
/* Keeps the write of a host that is cut off, if it is one. */
void sim_keep_late(struct sim_world *world, const struct io *io);

struct sim_write *write_new(uint64_t length); /* NULL: no memory */
struct sim_write *write_from_io(const struct io *io); /* NULL: no memory */
void write_release(struct sim_write *write);
/* Takes over the reference, also when it fails; a NULL write fails. 0 or -ENOMEM. */
int list_push(struct write_list *list, struct sim_write *write);
/* Takes out and releases the first `count`. */
void list_drop(struct write_list *list, unsigned count);
void list_free(struct write_list *list);
/* `to` becomes a list of the same writes. 0 or -ENOMEM. */
int list_copy(struct write_list *to, const struct write_list *from);

#endif
