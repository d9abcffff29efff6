/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The simulated world: devices, power, clock and chance, all from one seed and on one thread.
 *
 * A world holds named devices; each engine made on it is a host that sees all of them, and
 * device_open() takes the device's name for its path. Requests wait until somebody waits
 * (event_wait(), engine_poll(), engine_sleep() of any of its engines) and then complete one by one,
 * first come first served or in an order drawn from the seed. The same calls with the same seed
 * give the same bytes.
 *
 * Power. A write that is done without IO_FUA lies in its device's cache, which reads see, until a
 * flush that was submitted after the write's done() is done itself. When the power goes, the writes
 * in the caches and those in flight are at the mercy of sim_power_on(). From the cut on each
 * request of each host completes with -ESHUTDOWN, also after sim_power_on() on a handle that was
 * opened before: close it and open it again.
 *
 * Counts. Requests are counted when their turn comes to complete, n = 1 is the next one; n = 0
 * takes the order back. A write that fails leaves old bytes, new ones, or some 512-byte sectors of
 * each. A flush that fails does the same to each write that it should have stored.
 */
#ifndef MILLRACE_SIM_H
#define MILLRACE_SIM_H

#include "device/device.h"

struct sim_world;
struct sim_image;

struct sim_options {
	uint64_t seed;
	bool reorder; /* complete in an order drawn from the seed, not first come first served */
};

/* --- the world ---------------------------------------------------------------------------- */

/* 0 or -ENOMEM. */
int sim_world_create(const struct sim_options *options, struct sim_world **world);
/* All engines must be destroyed. NULL is allowed. */
void sim_world_destroy(struct sim_world *world);
/* A host. Ended by engine_destroy(). 0 or -ENOMEM. */
int sim_engine_create(struct sim_world *world, struct engine **engine);
/* A device of zeros; `size` in bytes, whole blocks. 0, -ENOMEM, or -EEXIST. */
int sim_add_device(struct sim_world *world, const char *name, uint64_t size);
/* Draws everything from now on from another seed: order, survivors and engine_random(). */
void sim_seed(struct sim_world *world, uint64_t seed);

/*
 * Saving and restoring: an image holds the bytes, caches and faults of all devices, the held late
 * writes, the clock and the state of chance. Both directions copy only blocks (of 4 KiB) that
 * were changed since, so going back to an image again and again costs that much. No request may be
 * outstanding. An image serves only its own world, which must have the same devices as when it was
 * saved.
 *
 * After sim_restore() hosts are neither cut off nor paused, orders by count are taken back, and
 * handles that were open are dead, as after a power cut. An image saved between a cut and
 * sim_power_on() is restored without power: sim_power_on() again, after sim_seed() or with another
 * policy, gives another outcome of the same cut.
 */
/* *image NULL: makes one, else overwrites it. 0 or -ENOMEM (do not restore it then). */
int sim_save(struct sim_world *world, struct sim_image **image);
/* 0 or -ENOMEM (then restore again). */
int sim_restore(struct sim_world *world, const struct sim_image *image);
/*
 * Saves the world as a power cut at this moment would leave it, while requests are outstanding and
 * go on. As sim_save().
 */
int sim_save_cut(struct sim_world *world, struct sim_image **image);
/* Until the next cut or sim_restore() `each` is called before each write or flush of the engine
 * completes. It may save, but not wait. */
void sim_watch_writes(struct engine *engine, void (*each)(void *data), void *data);
void sim_image_free(struct sim_image *image);

/* --- power -------------------------------------------------------------------------------- */

enum sim_policy {
	SIM_LOSE_ALL, /* each write that was not durable vanishes */
	SIM_KEEP_ALL, /* each survives, whole */
	SIM_RANDOM, /* each survives, vanishes, or tears into 512-byte sectors, from the seed */
};

/* Instead of completing the engine's n-th write or flush from now, the whole world loses power. */
void sim_cut_power_at(struct engine *engine, uint64_t n);
/* At once. */
void sim_cut_power(struct sim_world *world);
/* The engine is without power, or cut off (below). */
bool sim_power_was_cut(struct engine *engine);
/* Decides what survived and brings all hosts back; without a cut before, cuts first. */
void sim_power_on(struct sim_world *world, enum sim_policy policy);
/* The engine's writes and flushes that came to completion, whatever their result. */
uint64_t sim_writes_and_flushes(struct engine *engine);
/* All caches into the media, as if each device had been flushed. */
void sim_settle(struct sim_world *world);

/* --- a host that dies or stands still, while the devices go on ------------------------------ */

/*
 * Instead of completing the engine's n-th write or flush from now this host is cut off from all
 * devices: its requests complete with -ESHUTDOWN, its writes in flight and those that it submits
 * while cut off become late writes. Ended by sim_reconnect() or sim_power_on(); old handles stay
 * dead.
 */
void sim_cut_host_at(struct engine *engine, uint64_t n);
void sim_cut_host(struct engine *engine); /* at once */
void sim_reconnect(struct engine *engine);

/*
 * A paused host's requests, the outstanding ones and those it submits, wait until it is resumed,
 * then complete as any other. Waiting for one of them gives -EDEADLK, and leaves it outstanding.
 */
void sim_pause(struct engine *engine, bool paused);

/*
 * From the next power cut on, keep a copy of the engine's writes in flight as late writes, and with
 * `unflushed` of those in the caches too. Until called with `hold` false.
 */
void sim_hold_late(struct engine *engine, bool hold, bool unflushed);

/* Late writes of all hosts, index from 0: those of an earlier cut first. */
unsigned sim_late_count(struct sim_world *world);
struct sim_late {
	const char *device;
	uint64_t offset, length;
};
struct sim_late sim_late(struct sim_world *world, unsigned index);
/*
 * Lets one arrive now, durable at once; it leaves the list and later ones move down. 0, -ENODEV
 * when the device is dead, -ENOMEM.
 */
int sim_release_late(struct sim_world *world, unsigned index);
void sim_drop_late(struct sim_world *world);

/* --- faults ------------------------------------------------------------------------------- */

/* A dead device: requests give -ENODEV, device_present() and device_open() say no. */
void sim_kill_device(struct sim_world *world, const char *name);
/* It comes back with what it had, cache included; open handles work again. */
void sim_revive_device(struct sim_world *world, const char *name);
/* The engine's n-th request of any kind from now fails with `error` (negative errno). */
void sim_fail_nth(struct engine *engine, uint64_t n, int error);
/* Whether that has happened since it was last ordered. */
bool sim_failed(struct engine *engine);
/* Each write and flush (reads go on), or each read, of the device fails with `error`; 0 ends it. */
void sim_fail_device_writes(struct sim_world *world, const char *name, int error);
void sim_fail_device_reads(struct sim_world *world, const char *name, int error);
/* Reads that touch these bytes fail with -EIO, and nothing else does; length 0 ends it. */
void sim_fail_range(struct sim_world *world, const char *name, uint64_t offset, uint64_t length);
/* The engine's n-th write from now is acknowledged and not stored, or stored at `offset`. */
void sim_lose_write(struct engine *engine, uint64_t n);
void sim_misdirect_write(struct engine *engine, uint64_t n, uint64_t offset);
/* Requests to the device take that long; 0 ends it. */
void sim_delay(struct sim_world *world, const char *name, uint64_t nanoseconds);
/* false: a device with a write-through cache, where a write that is done is durable. */
void sim_set_volatile(struct sim_world *world, const char *name, bool volatile_cache);
/*
 * Flips at least one bit in each 512-byte sector that the range touches, within the range, of the
 * durable bytes: what lies in the cache above them hides it (sim_settle() first).
 */
void sim_rot(
	struct sim_world *world, const char *name, uint64_t offset, uint64_t length, uint64_t seed);

/* The durable bytes of a device, without its cache (sim_settle() first to see all); to be read. */
const uint8_t *sim_medium(struct sim_world *world, const char *name);
uint64_t sim_device_size(struct sim_world *world, const char *name);
/* Changes them behind everybody's back. */
void sim_medium_write(struct sim_world *world, const char *name, uint64_t offset, const void *bytes,
	size_t length);

/* Requests outstanding in the world, and the completion of all but those of paused hosts. */
unsigned sim_outstanding(struct sim_world *world);
void sim_drain(struct sim_world *world);

#endif
