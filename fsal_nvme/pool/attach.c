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
 *           get no new rows (stream.c), and it counts as gone where one is closed
 *
 * Streams go on in new segments then: those that were chosen without it are narrower, or have more
 * chunks in one domain than is good. pool_resilver() makes it whole.
 *
 * Crash cases. In the middle of "wipe" it is dropped, as it was, and its labels and journal were
 * nobody's. In the middle of "count" the newest label that is found calls it dropped or active, and
 * both are true: it has its header, and nothing that is acknowledged needs it yet. Behind that an
 * opening finds it active and suspect, and goes on so.
 *
 * Data is never in more danger than before: what of an old segment it lacks it lacked when it was
 * dropped, and m devices that are lost besides it were more than parity then as well.
 */
#include <stdio.h>

#include "pool/internal.h"

#define WIPE_PIECE (1u << 20)

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
		if (label_device_suspect(&pool->devices[i].label))
			atomic_store(&pool->devices[i].suspect_before, before);
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

/* Nothing that was asked of it before may still be done to it. */
static int check_idle(const struct member *member, const char *path, struct error *error)
{
	struct device_counters counters;

	device_counters(member->device, &counters);
	if (!counters.under_way)
		return 0;
	return error_set(error, -EBUSY, path,
		"%llu requests to it from before it was dropped have no answer yet; try again "
		"when they have",
		(unsigned long long)counters.under_way);
}

static int open_again(struct pool *pool, struct member *member, const char *path,
	const struct device_header *header, struct error *error)
{
	struct retired *r = malloc(sizeof(*r));
	struct device *device;
	int rc = r ? device_open(pool->engine, path, DEVICE_EXCLUSIVE, &device, error) : -ENOMEM;

	if (rc) {
		free(r);
		return rc;
	}
	r->device = member->device;
	r->next = pool->retired;
	pool->retired = r;
	member->header = *header;
	member->slots_offset = header->slots_offset;
	snprintf(member->path, sizeof(member->path), "%s", path);
	atomic_store(&member->device, device);
	return 0;
}

/* A handle that it has, on what is there, is as good as any. */
static int get_device(struct pool *pool, struct member *member, const char *path,
	const struct device_header *header, struct error *error)
{
	int rc = member->device ? check_idle(member, path, error) : 0;

	if (rc || (member->device && device_present(member->device)))
		return rc;
	return open_again(pool, member, path, header, error);
}

/* --- wipe ------------------------------------------------------------------------------------- */

static int wipe_range(
	struct pool *pool, const struct member *member, void *zeros, uint64_t from, uint64_t length)
{
	int rc = 0;

	for (uint64_t at = 0; !rc && at < length; at += WIPE_PIECE) {
		struct io io;

		io_prepare(&io, IO_WRITE, member->device, from + at, zeros,
			length - at < WIPE_PIECE ? length - at : WIPE_PIECE);
		rc = io_run(pool->engine, &io);
	}
	return rc;
}

static int wipe(struct pool *pool, const struct member *member)
{
	const struct device_header *h = &member->header;
	void *zeros = buffer_alloc(pool->engine, WIPE_PIECE);
	struct io io;
	int rc;

	if (!zeros)
		return -ENOMEM;
	memset(zeros, 0, WIPE_PIECE);
	rc = wipe_range(pool, member, zeros, LABEL_A_OFFSET, LABEL_AREA);
	if (!rc)
		rc = wipe_range(pool, member, zeros, h->label_b_offset, LABEL_AREA);
	if (!rc)
		rc = wipe_range(pool, member, zeros, h->journal_offset, h->journal_size);
	buffer_free(pool->engine, zeros, WIPE_PIECE);
	if (rc)
		return rc;
	io_prepare(&io, IO_FLUSH, member->device, 0, NULL, 0);
	return io_run(pool->engine, &io);
}

/* --- count, use ------------------------------------------------------------------------------- */

static void label_say(struct pool *pool, struct member *member, enum device_state state)
{
	struct label_device *d = &pool->label.devices[member - pool->devices];

	pthread_mutex_lock(&pool->label_lock);
	d->state = (uint8_t)state;
	if (!d->dropped_lsn)
		d->dropped_lsn = 1;
	pthread_mutex_unlock(&pool->label_lock);
}

static int count_in(struct pool *pool, struct member *member)
{
	int rc;

	label_say(pool, member, DEVICE_ACTIVE);
	rc = label_write(pool);
	if (rc) {
		label_say(pool, member, DEVICE_DROPPED);
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
	atomic_store(&member->written, 0);
	atomic_store(&member->flushed, 0);
	atomic_store(&member->suspect_before, ids_end(pool));
	atomic_store(&member->state, DEVICE_ACTIVE);
	log_notice("pool %s: device %u (%s) is attached again", pool->label.name,
		(unsigned)(member - pool->devices), member->path);
	return label_write(pool);
}

/* With drop_lock. */
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
	rc = wipe(pool, member);
	if (rc)
		return error_set(error, rc, path, "it takes no writes: %s", strerror(-rc));
	rc = count_in(pool, member);
	if (!rc)
		rc = use(pool, member);
	if (!rc)
		rc = journal_rearrange(pool);
	return rc ? error_set(error, rc, path, "it cannot be attached: %s", strerror(-rc)) : 0;
}

int pool_attach(struct pool *pool, const char *path, struct error *error)
{
	struct device_header header;
	int rc = atomic_load(&pool->failure);

	if (!rc && pool->read_only)
		rc = -EROFS;
	if (rc)
		return error_set(error, rc, pool->label.name,
			"no device can be attached, since it cannot be written: %s", strerror(-rc));
	rc = whose(pool, path, &header, error);
	if (rc)
		return rc;
	if (atomic_exchange(&pool->resilvering, true))
		return error_set(error, -EBUSY, path,
			"other devices are being resilvered; attach it when they are whole");
	pthread_mutex_lock(&pool->drop_lock);
	rc = attach(pool, path, &header, error);
	pthread_mutex_unlock(&pool->drop_lock);
	if (!rc) {
		members_end_streams(pool);
		rc = segment_discard_stock(pool);
	}
	atomic_store(&pool->resilvering, false);
	return rc;
}
