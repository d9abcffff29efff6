/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The members of a pool: requests to all of them, flushing, and dropping one that failed.
 *
 * Dropping. A member whose write or flush failed is marked (member_failed) and not used for new
 * segments; nothing that it owes is acknowledged until pool_drop_failing() has
 *   1. written labels without it to all the others: from now on a set of devices that still counts
 *      it as active is an old one, and it is not believed when it comes back,
 *   2. taken it out of the active list in memory (no more reads or writes),
 *   3. ended the streams whose segment lies on it,
 *   4. moved the journal's copies to other members.
 * A crash before 1 is complete: the member is missing or stale at the next opening, and one of the
 * m that may be.
 *
 * Outages. More at once than may be lost (loss.c) may hold every copy of the journal's last
 * records. Labels that call them dropped would be believed when they are back, unhurt; without such
 * labels the pool opens with them, and not without. So the pool fails instead (-EIO), also when the
 * others are met only while the first ones are being dropped. It fails (-EROFS) when fewer than m +
 * 1 would be left.
 */
#include <stdio.h>

#include "pool/label.h"

struct fan_out {
	_Atomic unsigned pending;
	struct event all_done;
};

static void fan_out_done(struct io *io)
{
	struct fan_out *fan = io->data;

	if (atomic_fetch_sub(&fan->pending, 1) == 1)
		event_signal(&fan->all_done, 0);
}

void members_run(struct pool *pool, struct io *ios, unsigned count)
{
	struct fan_out fan;
	struct io *list[POOL_DEVICES_MAX];

	if (!count)
		return;
	event_init(&fan.all_done, pool->engine);
	atomic_init(&fan.pending, count);
	for (unsigned i = 0; i < count; i++) {
		ios[i].done = fan_out_done;
		ios[i].data = &fan;
		list[i] = &ios[i];
	}
	io_submit(pool->engine, list, count);
	event_wait(&fan.all_done);
}

uint64_t members_usable(const struct pool *pool)
{
	uint64_t usable = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		if (member_usable(&pool->devices[i]))
			usable |= UINT64_C(1) << i;
	return usable;
}

uint64_t members_failing(const struct pool *pool)
{
	uint64_t failing = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		if (member_usable(&pool->devices[i]) && atomic_load(&pool->devices[i].failing))
			failing |= UINT64_C(1) << i;
	return failing;
}

unsigned members_usable_count(const struct pool *pool)
{
	return (unsigned)__builtin_popcountll(members_usable(pool));
}

static const char *write_error(int error)
{
	return error == -EBADE ? "another host has reserved it, or has shut this one out"
			       : strerror(-error);
}

void member_failed(struct pool *pool, struct member *member, int error)
{
	if (error == -ESHUTDOWN) /* the world has ended, not the device */
		return;
	if (!atomic_exchange(&member->failing, true))
		log_error("pool %s: device %s: write failed: %s; it will be dropped",
			pool->label.name, member->path, write_error(error));
	atomic_fetch_add(&member->write_errors, 1);
	pool_wake_maintenance(pool);
}

static void mark_flushed(struct pool *pool, struct member *member, struct io *io, uint64_t written)
{
	uint64_t before = atomic_load(&member->flushed);

	if (io->result) {
		member_failed(pool, member, io->result);
		return;
	}
	while (before < written &&
		!atomic_compare_exchange_weak(&member->flushed, &before, written))
		;
}

int pool_flush(struct pool *pool, uint64_t members)
{
	struct io ios[POOL_DEVICES_MAX];
	struct member *flushed[POOL_DEVICES_MAX];
	uint64_t written[POOL_DEVICES_MAX];
	unsigned count = 0;
	int shutdown = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (!(members >> i & 1) || !member_usable(member))
			continue;
		written[count] = atomic_load(&member->written);
		if (written[count] == atomic_load(&member->flushed))
			continue;
		io_prepare(&ios[count], IO_FLUSH, member->device, 0, NULL, 0);
		flushed[count++] = member;
	}
	members_run(pool, ios, count);
	for (unsigned i = 0; i < count; i++) {
		if (ios[i].result == -ESHUTDOWN)
			shutdown = -ESHUTDOWN;
		mark_flushed(pool, flushed[i], &ios[i], written[i]);
	}
	return shutdown ? shutdown : pool_drop_failing(pool);
}

void pool_fail(struct pool *pool, int error, const char *why)
{
	int none = 0;

	if (!atomic_compare_exchange_strong(&pool->failure, &none, error))
		return;
	log_error(
		"pool %s: stops serving changes: %s: %s", pool->label.name, why, strerror(-error));
	if (pool->journal)
		journal_fail(pool, error);
	pool_wake_maintenance(pool);
}

void members_find_vanished(struct pool *pool)
{
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (member_usable(member) && !device_present(member->device))
			member_failed(pool, member, -ENODEV);
	}
}

static unsigned how_many(uint64_t members)
{
	return (unsigned)__builtin_popcountll(members);
}

/* Whether these may be recorded as lost, `dropped` others having been before them. */
static int may_lose(struct pool *pool, uint64_t failing, uint64_t dropped)
{
	int rc = 0;

	if (!losses_allowed(pool, members_active(pool) | dropped, failing | dropped)) {
		rc = -EIO;
		pool_fail(pool, rc, "more devices than parity failed at once");
	} else if (members_usable_count(pool) - how_many(failing) < pool->m + 1) {
		rc = -EROFS;
		pool_fail(pool, rc, "fewer than parity + 1 devices are left");
	}
	return rc;
}

/* What the next labels say of the usable members: `lost` are dropped, the others active. */
static void mark_lost(struct pool *pool, uint64_t lost)
{
	uint64_t lsn = pool->journal ? journal_lsn(pool) : 0;

	pthread_mutex_lock(&pool->label_lock);
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct label_device *d = &pool->label.devices[i];
		bool dropped = lost >> i & 1;

		if (!member_usable(&pool->devices[i]))
			continue;
		d->state = dropped ? DEVICE_DROPPED : DEVICE_ACTIVE;
		d->dropped_lsn = dropped ? lsn : pool->devices[i].label.dropped_lsn;
	}
	pthread_mutex_unlock(&pool->label_lock);
}

/*
 * Step 1. The first labels are those that stand there already: a member that has not vanished, but
 * takes no writes, fails now if it has not before. Then without those that fail, until no other
 * one failed meanwhile. When they are too many, none of them is lost.
 */
static int record_lost(struct pool *pool, uint64_t dropped, uint64_t *lost)
{
	uint64_t failing = 0;
	int rc;

	do {
		int written;

		*lost = failing;
		mark_lost(pool, *lost);
		written = label_write(pool);
		if (written == -ESHUTDOWN)
			return written;
		members_find_vanished(pool);
		failing = members_failing(pool);
		rc = may_lose(pool, failing, dropped);
		if (!rc)
			rc = written;
	} while (!rc && failing != *lost);
	/* They still count as active in this: a later owner may have them, and not those that
	 * answer */
	if (!rc && *lost && pool->beats)
		rc = beat_still_ours(pool);
	if (rc && *lost) {
		mark_lost(pool, 0);
		label_write(pool);
	}
	return rc;
}

/* Step 2. */
static void take_out(struct pool *pool, uint64_t lost)
{
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (!(lost >> i & 1))
			continue;
		pthread_mutex_lock(&pool->label_lock);
		member->label = pool->label.devices[i];
		pthread_mutex_unlock(&pool->label_lock);
		atomic_store(&member->state, DEVICE_DROPPED);
		atomic_store(&member->suspect_before, 0);
		log_warning(
			"pool %s: device %u (%s) is dropped", pool->label.name, i, member->path);
	}
}

static bool on_dropped(struct pool *pool, const struct segment *segment)
{
	for (unsigned i = 0; i < segment->layout.data + segment->layout.parity; i++)
		if (!member_usable(&pool->devices[segment->row.chunks[i].device]))
			return true;
	return false;
}

/* The stream cannot go while table_lock is held. */
static void end_streams(
	struct pool *pool, bool (*which)(struct pool *pool, const struct segment *segment))
{
	pthread_rwlock_rdlock(&pool->table_lock);
	for (struct stream *s = pool->streams; s; s = s->next) {
		bool hit;

		pthread_mutex_lock(&s->lock);
		hit = s->segment && which(pool, s->segment);
		pthread_mutex_unlock(&s->lock);
		if (hit)
			stream_end_segment(s);
	}
	pthread_rwlock_unlock(&pool->table_lock);
}

static bool any(struct pool *pool, const struct segment *segment)
{
	return true;
}

void members_end_streams(struct pool *pool)
{
	end_streams(pool, any);
}

int pool_drop_failing(struct pool *pool)
{
	uint64_t dropped = 0, lost;
	int rc = atomic_load(&pool->failure);

	if (rc)
		return rc;
	pthread_mutex_lock(&pool->drop_lock);
	rc = atomic_load(&pool->failure);
	while (!rc && members_failing(pool)) {
		rc = record_lost(pool, dropped, &lost);
		if (rc)
			break;
		take_out(pool, lost);
		dropped |= lost;
		end_streams(pool, on_dropped); /* step 3 */
		if (pool->journal)
			rc = journal_rearrange(pool);
	}
	pthread_mutex_unlock(&pool->drop_lock);
	if (rc && rc != -ESHUTDOWN)
		pool_fail(pool, rc, "a device could not be dropped");
	return rc;
}
