/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A device that was dropped is there again, and becomes a member like the others:
 *
 *   wipe    its labels and its journal are overwritten. They are of the time before, and could be
 *           more than old: the claim of an opener that got no further, under an epoch that another
 *           one has had since, or a batch that nobody else has and that fits where another stands
 *   count   labels that call it active, with the LSN at which it was dropped, to all others: it is
 *           one of those of which parity may be missing, though not whole. Then to itself
 *   use     new segments, rows, labels; the journal's copies are chosen anew, as it may be of a
 *           domain that had none. Of segments that were there before it may lack anything: they
 *           get no new rows (stream.c), it counts as gone where one is closed, and is asked for
 *           their bytes when all others are not enough
 *
 * Streams go on in new segments then: those that were chosen without it are narrower, or have more
 * chunks in one domain than is good. pool_resilver() makes it whole. Neither is done while an
 * earlier owner may wake up: that may have been at it, and what it writes here it has not reserved.
 *
 * One that is put in the place of a lost one is made first: wiped, and given a header of that one's
 * number and a uuid of its own. Then the same, but that labels have its uuid from "count" on:
 * before that it is nobody's, and behind it the old one is.
 *
 * Crash cases. In the middle of "wipe" it is dropped, as it was, and its labels and journal were
 * nobody's. In the middle of "count" the newest label that is found calls it dropped or active, and
 * both are true: it has its header, and nothing that is acknowledged needs it yet. Behind that an
 * opening finds it active and suspect, and goes on so.
 *
 * Data is never in more danger than before: what of an old segment it lacks it lacked when it was
 * dropped, and m devices that are lost besides it were more than parity then as well.
 *
 * A reader has nothing of this to do: it opens what its label calls a member and it cannot use any
 * more, between two looks, and reads it from then on.
 */
#include <stdio.h>

#include "pool/create.h"
#include "pool/follow.h"
#include "pool/label.h"

#define WIPE_PIECE (1u << 20)
#define PAUSE_FIRST (UINT64_C(60) * 1000 * 1000 * 1000) /* ns */
#define PAUSE_MOST (60 * PAUSE_FIRST)

/* A device that went away, and whose requests may still come to their end. */
struct retired {
	struct device *device;
	struct retired *next;
};

void retired_close(struct pool *pool)
{
	while (pool->retired) {
		struct retired *r = pool->retired;

		pool->retired = r->next;
		device_close(r->device);
		free(r);
	}
}

void members_suspect(struct pool *pool, uint64_t before)
{
	for (unsigned i = 0; i < pool->device_count; i++)
		if (label_device_suspect(&pool->devices[i].label)) {
			atomic_store(&pool->devices[i].suspect_before, before);
			pool->resilvered_late = true;
		}
}

/* --- which ------------------------------------------------------------------------------------ */

static int whose(
	struct pool *pool, const char *path, struct device_header *header, struct error *error)
{
	struct device *device;
	int rc = device_open(pool->engine, path, DEVICE_READ_ONLY, &device, error);

	if (rc)
		return rc;
	rc = device_header_read(pool->engine, device, header);
	device_close(device);
	if (rc && rc != -ENOENT)
		return error_set(error, rc, path, "its header cannot be read: %s", strerror(-rc));
	if (rc || memcmp(header->pool, pool->label.pool, 16) || header->id >= pool->device_count ||
		memcmp(header->uuid, pool->label.devices[header->id].uuid, 16))
		return error_set(
			error, -ENODEV, path, "it is no device of pool %s", pool->label.name);
	return 0;
}

/* Nothing that was asked of it before may still be done to it, or make it count as late. */
static int check_idle(const struct member *member, const char *path, struct error *error)
{
	struct device_counters counters;

	device_counters(member->device, &counters);
	if (!counters.under_way)
		return 0;
	return error_set(error, -EBUSY, path,
		"%llu requests to it from before it was lost have no answer yet; try again "
		"when they have",
		(unsigned long long)counters.under_way);
}

/* It is the member's from now on, what that had before is closed with the pool. */
static int give_device(struct pool *pool, struct member *member, const char *path,
	struct device *device, const struct device_header *header)
{
	struct retired *r = malloc(sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->device = member->device;
	r->next = pool->retired;
	pool->retired = r;
	member->header = *header;
	member->slots_offset = header->slots_offset;
	snprintf(member->path, sizeof(member->path), "%s", path);
	atomic_store(&member->device, device);
	return 0;
}

static int open_again(struct pool *pool, struct member *member, const char *path,
	const struct device_header *header, struct error *error)
{
	unsigned flags = pool_is_reader(pool) ? DEVICE_READ_ONLY : DEVICE_EXCLUSIVE;
	struct device *device;
	int rc = device_open(pool->engine, path, flags, &device, error);

	if (rc)
		return rc;
	rc = give_device(pool, member, path, device, header);
	if (rc)
		device_close(device);
	return rc;
}

/* A handle that it has, on what is there, is as good as any. */
static int get_device(struct pool *pool, struct member *member, const char *path,
	const struct device_header *header, struct error *error)
{
	int rc = member->device ? check_idle(member, path, error) : 0;

	if (rc || (member->device && device_present(member->device) &&
			  !memcmp(member->header.uuid, header->uuid, sizeof(header->uuid))))
		return rc;
	return open_again(pool, member, path, header, error);
}

/* --- wipe ------------------------------------------------------------------------------------- */

static int wipe_range(
	struct pool *pool, struct device *device, void *zeros, uint64_t from, uint64_t length)
{
	int rc = atomic_load(&pool->failure);

	for (uint64_t at = 0; !rc && at < length; at += WIPE_PIECE) {
		struct io io;

		io_prepare(&io, IO_WRITE, device, from + at, zeros,
			length - at < WIPE_PIECE ? length - at : WIPE_PIECE);
		rc = io_run(pool->engine, &io);
		if (!rc)
			rc = atomic_load(&pool->failure);
	}
	return rc;
}

static int wipe(struct pool *pool, struct device *device, const struct device_header *h)
{
	void *zeros = buffer_alloc(pool->engine, WIPE_PIECE);
	struct io io;
	int rc;

	if (!zeros)
		return -ENOMEM;
	memset(zeros, 0, WIPE_PIECE);
	rc = wipe_range(pool, device, zeros, LABEL_A_OFFSET, LABEL_AREA);
	if (!rc)
		rc = wipe_range(pool, device, zeros, h->label_b_offset, LABEL_AREA);
	if (!rc)
		rc = wipe_range(pool, device, zeros, h->journal_offset, h->journal_size);
	buffer_free(pool->engine, zeros, WIPE_PIECE);
	if (rc)
		return rc;
	io_prepare(&io, IO_FLUSH, device, 0, NULL, 0);
	return io_run(pool->engine, &io);
}

/* --- count, use ------------------------------------------------------------------------------- */

static void label_say(
	struct pool *pool, unsigned id, enum device_state state, const uint8_t uuid[16])
{
	struct label_device *d = &pool->label.devices[id];

	pthread_mutex_lock(&pool->label_lock);
	memcpy(d->uuid, uuid, sizeof(d->uuid));
	d->state = (uint8_t)state;
	if (!d->dropped_lsn)
		d->dropped_lsn = 1;
	pthread_mutex_unlock(&pool->label_lock);
}

/* The device of that uuid. The others show then that there is no later owner: one that comes finds
 * what was written. One that came before may have claimed fewer devices than there are with it, so
 * that it does not answer for others in that. */
static int count_in(struct pool *pool, struct member *member, const uint8_t uuid[16])
{
	unsigned id = (unsigned)(member - pool->devices);
	int rc;

	label_say(pool, id, DEVICE_ACTIVE, uuid);
	rc = label_write(pool);
	if (!rc)
		rc = beat_still_ours(pool);
	if (rc) {
		label_say(pool, id, DEVICE_DROPPED, member->label.uuid);
		label_write(pool);
	}
	return rc;
}

/* The next id that a segment gets, or one behind it. */
static uint64_t ids_end(struct pool *pool)
{
	uint64_t end = 0;

	pthread_rwlock_rdlock(&pool->table_lock);
	for (unsigned i = 0; i < pool->table_size; i++)
		for (struct segment *s = pool->table[i]; s; s = s->hash_next)
			if (s->id >= end)
				end = s->id + 1;
	pthread_rwlock_unlock(&pool->table_lock);
	return end;
}

/* Segments that are made between the two have nothing on it. */
static int use(struct pool *pool, struct member *member)
{
	pthread_mutex_lock(&pool->label_lock);
	member->label = pool->label.devices[member - pool->devices];
	pthread_mutex_unlock(&pool->label_lock);
	atomic_store(&member->failing, false);
	atomic_store(&member->looked, 0);
	atomic_store(&member->suspect_before, ids_end(pool));
	atomic_store(&member->state, DEVICE_ACTIVE);
	log_notice("pool %s: device %u (%s) is attached again", pool->label.name,
		(unsigned)(member - pool->devices), member->path);
	return label_write(pool);
}

/* The member has its device, and that has been wiped. Each flush takes drop_lock: it is held for no
 * longer than that. */
static int join(struct pool *pool, struct member *member, const char *path, struct error *error)
{
	int rc;

	pthread_mutex_lock(&pool->drop_lock);
	rc = count_in(pool, member, member->header.uuid);
	if (!rc)
		rc = use(pool, member);
	pthread_mutex_unlock(&pool->drop_lock);
	if (!rc)
		journal_spread(pool);
	pool->resilvered = (struct attempt){0}; /* it may be what the others lacked */
	return rc ? error_set(error, rc, path, "it cannot be attached: %s", strerror(-rc)) : 0;
}

static int attach(struct pool *pool, const char *path, const struct device_header *header,
	struct error *error)
{
	struct member *member = &pool->devices[header->id];
	int rc;

	if (member_usable(member))
		return 0;
	rc = get_device(pool, member, path, header, error);
	if (rc)
		return rc;
	rc = wipe(pool, member->device, &member->header);
	if (rc)
		return error_set(error, rc, path, "it takes no writes: %s", strerror(-rc));
	return join(pool, member, path, error);
}

/* --- another one in its place -------------------------------------------------------------------
 */

static int write_header(
	struct pool *pool, struct device *device, const struct device_header *header)
{
	const uint64_t places[] = {0, header->size - BLOCK_SIZE};
	void *block = buffer_alloc(pool->engine, BLOCK_SIZE);
	int rc = block ? device_header_encode(header, block) : -ENOMEM;

	for (unsigned i = 0; !rc && i < 2; i++) {
		struct io io;

		io_prepare(&io, IO_WRITE, device, places[i], block, BLOCK_SIZE);
		io.flags = IO_FUA;
		rc = io_run(pool->engine, &io);
	}
	buffer_free(pool->engine, block, BLOCK_SIZE);
	return rc;
}

/* A device with the member's number and a uuid of its own, which no label names yet. */
static int make_device(struct pool *pool, const struct member *member, struct device *device,
	const char *path, struct device_header *header, struct error *error)
{
	uint64_t size = device_info(device)->size;
	int rc = geometry_plan_like(&pool->header, size, member->slot_count, header);

	if (rc)
		return error_set(error, rc, path,
			"it is too small: %llu MiB do not hold the %u slots of the one that it is "
			"to replace",
			(unsigned long long)(size >> 20), member->slot_count);
	header->id = (uint16_t)(member - pool->devices);
	header->created = engine_time(pool->engine);
	uuid_make(pool->engine, header->uuid);
	rc = wipe(pool, device, header);
	if (!rc)
		rc = write_header(pool, device, header);
	return rc ? error_set(error, rc, path, "it takes no writes: %s", strerror(-rc)) : 0;
}

/* So that nobody takes the old one for a part of the pool, should it be there. */
static void disown(struct pool *pool, struct device *device, const struct device_header *header)
{
	void *zeros = buffer_alloc(pool->engine, WIPE_PIECE);

	if (zeros) {
		memset(zeros, 0, WIPE_PIECE);
		wipe_range(pool, device, zeros, 0, BLOCK_SIZE);
		wipe_range(pool, device, zeros, header->size - BLOCK_SIZE, BLOCK_SIZE);
	}
	buffer_free(pool->engine, zeros, WIPE_PIECE);
}

static int put_in_place(struct pool *pool, struct member *member, const char *path,
	struct device *device, struct error *error)
{
	struct device_header old_header = member->header, header;
	struct device *old = member->device;
	int rc = make_device(pool, member, device, path, &header, error);

	if (!rc)
		rc = give_device(pool, member, path, device, &header);
	if (rc) {
		device_close(device);
		return rc;
	}
	rc = join(pool, member, path, error);
	if (!rc && old && device_present(old))
		disown(pool, old, &old_header);
	return rc;
}

static int replace(
	struct pool *pool, unsigned id, const char *path, bool force, struct error *error)
{
	struct member *member = &pool->devices[id];
	struct device *device;
	int rc;

	if (member_usable(member))
		return error_set(error, -EBUSY, member->path,
			"it is in use; one that failed or is missing can be replaced");
	rc = member->device ? check_idle(member, member->path, error) : 0;
	if (!rc)
		rc = device_open(pool->engine, path, DEVICE_EXCLUSIVE, &device, error);
	if (rc)
		return rc;
	if (!force)
		rc = device_check_unused(pool->engine, device, path, error);
	member->returned = (struct attempt){0};
	if (!rc)
		return put_in_place(pool, member, path, device, error);
	device_close(device);
	return rc;
}

/* --- either
 * --------------------------------------------------------------------------------------- */

/* One that may wake up in the middle of this would write where nobody expects it. */
int refuse_for_others(struct pool *pool, struct error *error)
{
	char names[200];
	int rc = 0;

	pthread_mutex_lock(&pool->label_lock);
	if (pool->label.other_count) {
		owners_name(&pool->label, names, sizeof(names));
		rc = error_set(error, -EBUSY, pool->label.name,
			"%s had it open, and may still write: once dead or fenced for sure, stop "
			"what serves it and `millrace pool import --owner-dead %s`; or have that "
			"host open it once, or tell by --rebooted that it has booted since, by "
			"--gone that it never will",
			names, pool->label.name);
	}
	pthread_mutex_unlock(&pool->label_lock);
	return rc;
}

static int begin(struct pool *pool, const char *path, struct error *error)
{
	int rc = atomic_load(&pool->failure);

	if (!rc && pool->read_only)
		rc = -EROFS;
	if (rc)
		return error_set(error, rc, pool->label.name,
			"no device can be attached, since it cannot be written: %s", strerror(-rc));
	if (atomic_exchange(&pool->resilvering, true))
		return error_set(error, -EBUSY, path,
			"other devices are being resilvered; attach it when they are whole");
	rc = refuse_for_others(pool, error);
	if (rc)
		atomic_store(&pool->resilvering, false);
	return rc;
}

/* What is written from now on has the best places that there are. */
static int end(struct pool *pool, int rc)
{
	if (!rc) {
		members_end_streams(pool);
		rc = segment_discard_stock(pool);
	}
	atomic_store(&pool->resilvering, false);
	return rc;
}

/* That an admin looks at it forgives it. */
static int attach_told(struct pool *pool, const char *path, const struct device_header *header,
	struct error *error)
{
	pool->devices[header->id].returned = (struct attempt){0};
	return attach(pool, path, header, error);
}

/* So that one that comes and goes does not bring a resilver after the other, nor one that cannot
 * be made whole. */
bool attempt_waits(struct pool *pool, struct attempt *a, const char *object, const char *why,
	struct error *error)
{
	uint64_t now = engine_clock(pool->engine);

	if (a->made) {
		a->made = false;
		a->pause = a->pause ? 2 * a->pause : PAUSE_FIRST;
		if (a->pause > PAUSE_MOST)
			a->pause = PAUSE_MOST;
		a->until = now + a->pause;
	}
	if (now >= a->until)
		return false;
	error_set(error, -EBUSY, object,
		"%s: it is left alone for %llu min; `millrace pool attach %s` takes it at once",
		why, (unsigned long long)(a->pause / PAUSE_FIRST), pool->label.name);
	return true;
}

/* One that is there and fails is lost again, too; one that is busy is not. */
static int attach_returned(struct pool *pool, const char *path, const struct device_header *header,
	struct error *error)
{
	struct attempt *a = &pool->devices[header->id].returned;
	int rc;

	if (attempt_waits(pool, a, path, "it came back before, and was lost again", error))
		return -EBUSY;
	rc = attach(pool, path, header, error);
	a->made = rc != -EBUSY;
	return rc;
}

static int attach_path(struct pool *pool, const char *path,
	int (*how)(struct pool *pool, const char *path, const struct device_header *header,
		struct error *error),
	struct error *error)
{
	struct device_header header;
	int rc = whose(pool, path, &header, error);

	if (rc || member_usable(&pool->devices[header.id]))
		return rc;
	rc = begin(pool, path, error);
	return rc ? rc : end(pool, how(pool, path, &header, error));
}

/* Between two looks. What it may lack is in the label, which has been taken. */
static int read_again(struct pool *pool, const char *path, struct error *error)
{
	struct device_header header;
	struct member *member;
	int rc = whose(pool, path, &header, error);

	if (rc)
		return rc;
	member = &pool->devices[header.id];
	if (!member_there(member)) {
		rc = get_device(pool, member, path, &header, error);
		if (!rc)
			log_notice("pool %s: device %u (%s) is there again", pool->label.name,
				header.id, path);
	}
	if (!rc)
		atomic_store(&member->state, member_seen(member));
	return rc;
}

static int attach_to_reader(struct pool *pool, const char *path, struct error *error)
{
	int rc;

	follow_pause(pool);
	rc = read_again(pool, path, error);
	follow_go_on(pool);
	return rc;
}

int pool_attach(struct pool *pool, const char *path, struct error *error)
{
	return attach_path(pool, path, attach_told, error);
}

int pool_attach_returned(struct pool *pool, const char *path, struct error *error)
{
	return pool_is_reader(pool) ? attach_to_reader(pool, path, error)
				    : attach_path(pool, path, attach_returned, error);
}

static bool not_whole(const struct pool *pool, const struct member *member)
{
	if (pool_is_reader(pool))
		return atomic_load(&member->state) == DEVICE_MISSING;
	return !member_usable(member) || atomic_load(&member->suspect_before);
}

unsigned pool_not_whole(struct pool *pool)
{
	unsigned count = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		count += not_whole(pool, &pool->devices[i]);
	return count;
}

int pool_replace(struct pool *pool, unsigned id, const char *path, bool force, struct error *error)
{
	int rc = id < pool->device_count ? begin(pool, path, error)
					 : error_set(error, -ENOENT, pool->label.name,
						   "it has no device %u: they are 0 to %u", id,
						   pool->device_count - 1u);

	return rc ? rc : end(pool, replace(pool, id, path, force, error));
}
