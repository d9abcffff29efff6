/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What a pool can tell about itself. */
#include <stdio.h>

#include "pool/block_cache.h"
#include "pool/follow.h"
#include "pool/label.h"

static void device_status(struct pool *pool, unsigned i, struct pool_device_status *d)
{
	struct member *member = &pool->devices[i];

	d->id = i;
	snprintf(d->path, sizeof(d->path), "%s", member->path);
	snprintf(d->domain, sizeof(d->domain), "%s", member->label.domain);
	memcpy(d->uuid, member->label.uuid, 16);
	d->state = atomic_load(&member->state);
	d->suspect = member_usable(member) && atomic_load(&member->suspect_before);
	d->dropped_lsn = member->label.dropped_lsn;
	d->size = member->header.size;
	d->slots = member->slot_count;
	pthread_mutex_lock(&pool->slots_lock);
	d->slots_used = member->slots_used;
	pthread_mutex_unlock(&pool->slots_lock);
	d->read_errors = atomic_load(&member->read_errors);
	d->write_errors = atomic_load(&member->write_errors);
	d->checksum_errors = atomic_load(&member->checksum_errors);
	d->repaired = atomic_load(&member->repaired);
	d->late_reads = atomic_load(&member->late_reads);
}

static bool segment_degraded(struct pool *pool, const struct segment_row *row)
{
	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++)
		if (member_lacks(&pool->devices[row->chunks[i].device], row->id))
			return true;
	return false;
}

/* More than its parity makes up for are in one domain. */
static bool segment_uneven(struct pool *pool, const struct segment_row *row)
{
	unsigned width = (unsigned)row->data + row->parity;

	for (unsigned i = 0; i < width; i++) {
		unsigned here = 0;

		for (unsigned j = 0; j < width; j++)
			here += pool->domains[row->chunks[i].device] ==
				pool->domains[row->chunks[j].device];
		if (here > row->parity)
			return true;
	}
	return false;
}

/* Calls back with a copy of each segment's row. */
static void each_row(struct pool *pool,
	void (*each)(struct pool *pool, const struct segment_row *row, void *data), void *data)
{
	pthread_rwlock_rdlock(&pool->table_lock);
	for (unsigned i = 0; i < pool->table_size; i++) {
		for (struct segment *s = pool->table[i]; s; s = s->hash_next) {
			struct segment_row row;

			segment_look(s, &row);
			each(pool, &row, data);
		}
	}
	pthread_rwlock_unlock(&pool->table_lock);
}

static void count_segment(struct pool *pool, const struct segment_row *row, void *data)
{
	struct pool_status *status = data;

	if (row->state == SEGMENT_MOVED)
		return;
	status->segments++;
	status->segments_open += row->state == SEGMENT_OPEN;
	status->segments_uneven += row->state != SEGMENT_RESERVED && segment_uneven(pool, row);
	status->segments_degraded += row->state != SEGMENT_RESERVED && segment_degraded(pool, row);
	status->used += segment_capacity(pool, row->data);
	status->live += row->purpose == PURPOSE_DATA ? row->live : 0;
}

static void summarize(const struct label *label, struct pool_summary *summary)
{
	memcpy(summary->name, label->name, sizeof(summary->name));
	memcpy(summary->uuid, label->pool, 16);
	summary->epoch = label->epoch;
	summary->exported = label->state == LABEL_EXPORTED;
	summary->open = label->state == LABEL_OPEN;
	memcpy(summary->owner, label->owner, sizeof(summary->owner));
	summary->owner_pid = label->owner_pid;
	memcpy(summary->owner_boot, label->owner_boot, 16);
	summary->device_count = label->device_count;
}

uint64_t pool_copied(struct pool *pool)
{
	return atomic_load(&pool->copied) + block_cache_copied(pool->cache);
}

unsigned pool_other_owners(struct pool *pool)
{
	unsigned count;

	pthread_mutex_lock(&pool->label_lock);
	count = pool->label.other_count;
	pthread_mutex_unlock(&pool->label_lock);
	return count;
}

void pool_status(struct pool *pool, struct pool_status *status)
{
	struct journal_position durable;

	memset(status, 0, sizeof(*status));
	pthread_mutex_lock(&pool->label_lock);
	summarize(&pool->label, &status->summary);
	owners_name(&pool->label, status->other_owners, sizeof(status->other_owners));
	pthread_mutex_unlock(&pool->label_lock);
	status->summary.data = pool->k;
	status->summary.parity = pool->m;
	status->read_only = pool_is_read_only(pool);
	status->reader = pool_is_reader(pool);
	status->follow_age = pool_follow_age(pool);
	status->failure = atomic_load(&pool->failure);
	status->lsn = journal_lsn(pool);
	status->durable_lsn = journal_durable_lsn(pool);
	snprintf(status->unreadable, sizeof(status->unreadable), "%s", pool->unreadable);
	status->device_count = pool->device_count;
	for (unsigned i = 0; i < pool->device_count; i++) {
		device_status(pool, i, &status->devices[i]);
		status->summary.devices_found += status->devices[i].state == DEVICE_ACTIVE;
	}
	each_row(pool, count_segment, status);
	pool_use(pool, &status->use);
	status->new_data = pool_new_data(pool);
	status->usable = status->used + place_capacity(pool) * pool_segment_bytes(pool);
	status->reserve = segment_reserve(pool) * pool_segment_bytes(pool);
	status->kept = kept_segments(pool) * pool_segment_bytes(pool);
	status->journal_size = pool->header.journal_size;
	status->journal_used = journal_used(pool);
	journal_durable_position(pool, &durable);
	status->images = atomic_load(&pool->images);
	status->deltas = atomic_load(&pool->deltas);
	status->image_bytes = atomic_load(&pool->image_bytes);
	status->delta_bytes = atomic_load(&pool->delta_bytes);
	status->journal_bytes = durable.position;
	status->domain_may_die = place_domain_may_die(pool) && !status->segments_uneven;
	block_cache_status(pool->cache, status);
}

unsigned pool_device_io(struct pool *pool, struct pool_device_io *list)
{
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		memset(&list[i], 0, sizeof(list[i]));
		list[i].id = i;
		snprintf(list[i].path, sizeof(list[i].path), "%s", member->path);
		list[i].state = atomic_load(&member->state);
		if (member->device)
			device_counters(member->device, &list[i].counters);
	}
	return pool->device_count;
}

uint64_t pool_durable_lsn(struct pool *pool)
{
	return journal_durable_lsn(pool);
}

static bool is_silent(struct pool *pool, const struct member *member, uint64_t nanoseconds)
{
	uint64_t looked = atomic_load(&member->looked);

	if (pool_is_reader(pool))
		return pool_follow_age(pool) > nanoseconds + FOLLOW_EVERY_NS;
	/* Without beats it is read-only, and nobody looks. */
	return pool->beats && (!looked || engine_clock(pool->engine) - looked > nanoseconds);
}

/* An owner drops those that it has lost, or stops. */
static bool is_away(struct pool *pool, const struct member *member)
{
	struct device *device = member->device;

	return pool_is_reader(pool) && atomic_load(&member->state) != DEVICE_DROPPED &&
	       !(device && device_present(device));
}

bool pool_answers(struct pool *pool, uint64_t nanoseconds, char *silent, size_t size)
{
	uint64_t all = 0;
	size_t length = 0;

	*silent = 0;
	for (unsigned i = 0; i < pool->device_count; i++) {
		const struct member *member = &pool->devices[i];

		if (!is_away(pool, member) &&
			!(member_usable(member) && is_silent(pool, member, nanoseconds)))
			continue;
		if (length < size)
			length += (size_t)snprintf(silent + length, size - length, "%s%s",
				all ? ", " : "", member->path);
		all |= UINT64_C(1) << i;
	}
	return losses_allowed(pool, members_active(pool), all);
}

struct volume_sum {
	uint32_t volume;
	uint64_t live;
};

static void add_volume(struct pool *pool, const struct segment_row *row, void *data)
{
	struct volume_sum *sum = data;

	if (row->volume == sum->volume && row->purpose == PURPOSE_DATA &&
		row->state != SEGMENT_MOVED)
		sum->live += row->live;
}

uint64_t pool_volume_live(struct pool *pool, uint32_t volume)
{
	struct volume_sum sum = {.volume = volume};

	each_row(pool, add_volume, &sum);
	return sum.live;
}

int pool_each_segment(struct pool *pool, uint32_t volume,
	int (*each)(void *data, uint64_t segment, uint64_t length, uint64_t live), void *data)
{
	struct segment **list;
	unsigned count;
	int rc = segment_list(pool, &list, &count);

	for (unsigned i = 0; i < count; i++) {
		struct segment_row row;

		segment_look(list[i], &row);
		if (!rc && row.volume == volume && row.purpose == PURPOSE_DATA)
			rc = each(data, row.id, (uint64_t)row.rows * row.cell * row.data,
				atomic_load(&list[i]->place) ? 0 : row.live);
		segment_put(list[i]);
	}
	free(list);
	return rc;
}
