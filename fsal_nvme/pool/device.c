/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The members of a pool: requests to all of them, flushing, and dropping one that failed.
 *
 * Dropping. A member whose write or flush failed is marked (member_failed) and not used for new
 * segments; nothing that it owes is acknowledged until pool_drop_failing() has
 *   1. taken it out of the active list in memory (no more reads or writes),
 *   2. written labels without it to all the others: from now on a set of devices that still counts
 *      it as active is an old one, and it is not believed when it comes back,
 *   3. ended the streams whose segment lies on it,
 *   4. moved the journal's copies to other members.
 * A crash before 2 is complete: the member is missing or stale at the next opening, and one of the
 * m that may be. With fewer than m + 1 left the pool becomes read-only instead; when more than m
 * fail at once it stops, and no label says so.
 */
#include <stdio.h>

#include "pool/internal.h"

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

unsigned members_usable(const struct pool *pool)
{
	unsigned count = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		count += member_usable(&pool->devices[i]);
	return count;
}

void member_failed(struct pool *pool, struct member *member, int error)
{
	if (error == -ESHUTDOWN) /* the world has ended, not the device */
		return;
	if (!atomic_exchange(&member->failing, true))
		log_error("pool %s: device %s: write failed: %s; it will be dropped",
			pool->label.name, member->path, strerror(-error));
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

static unsigned count_failing(struct pool *pool)
{
	unsigned count = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		count += member_usable(&pool->devices[i]) && atomic_load(&pool->devices[i].failing);
	return count;
}

/*
 * More than parity at once may hold every copy of the journal's last records. Labels that call them
 * dropped would be believed when they are back, unhurt, after an outage; without such labels the
 * pool opens with them, and not without.
 */
static int may_drop(struct pool *pool)
{
	members_find_vanished(pool);
	if (count_failing(pool) <= pool->m)
		return 0;
	pool_fail(pool, -EIO, "more devices than parity failed at once");
	return -EIO;
}

/* Step 1: out of the active list in memory, parity at most in one round. */
static void take_failing_out(struct pool *pool)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < pool->device_count && taken < pool->m; i++) {
		struct member *member = &pool->devices[i];

		if (!atomic_load(&member->failing) || !member_usable(member))
			continue;
		taken++;
		atomic_store(&member->state, DEVICE_DROPPED);
		pthread_mutex_lock(&pool->label_lock);
		pool->label.devices[i].state = DEVICE_DROPPED;
		pool->label.devices[i].dropped_lsn = pool->journal ? journal_lsn(pool) : 0;
		member->label = pool->label.devices[i];
		pthread_mutex_unlock(&pool->label_lock);
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

/* Step 3. The stream cannot go while table_lock is held. */
static void end_streams(struct pool *pool)
{
	pthread_rwlock_rdlock(&pool->table_lock);
	for (struct stream *s = pool->streams; s; s = s->next) {
		bool hit;

		pthread_mutex_lock(&s->lock);
		hit = s->segment && on_dropped(pool, s->segment);
		pthread_mutex_unlock(&s->lock);
		if (hit)
			stream_end_segment(s);
	}
	pthread_rwlock_unlock(&pool->table_lock);
}

int pool_drop_failing(struct pool *pool)
{
	int rc = 0;

	if (atomic_load(&pool->failure))
		return atomic_load(&pool->failure);
	pthread_mutex_lock(&pool->drop_lock);
	while (!rc && count_failing(pool)) {
		rc = may_drop(pool);
		if (rc)
			break;
		take_failing_out(pool);
		if (members_usable(pool) < pool->m + 1) {
			pool_fail(pool, -EROFS, "fewer than parity + 1 devices are left");
			rc = -EROFS;
			break;
		}
		rc = label_write(pool);
		if (rc)
			break;
		end_streams(pool);
		if (pool->journal)
			rc = journal_rearrange(pool);
	}
	pthread_mutex_unlock(&pool->drop_lock);
	if (rc && rc != -ESHUTDOWN)
		pool_fail(pool, rc, "a device could not be dropped");
	return rc;
}
