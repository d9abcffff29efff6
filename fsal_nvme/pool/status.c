/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What a pool can tell about itself. */
#include <stdio.h>

#include "pool/internal.h"

static uint64_t segment_capacity(const struct pool *pool, unsigned data)
{
	return (uint64_t)data * pool->header.cell * pool->header.slot_rows;
}

static unsigned data_width(struct pool *pool)
{
	unsigned usable = members_usable(pool);

	if (usable <= pool->m)
		return 0;
	return usable - pool->m < pool->k ? usable - pool->m : pool->k;
}

static void device_status(struct pool *pool, unsigned i, struct pool_device_status *d)
{
	struct member *member = &pool->devices[i];

	d->id = i;
	snprintf(d->path, sizeof(d->path), "%s", member->path);
	snprintf(d->domain, sizeof(d->domain), "%s", member->label.domain);
	memcpy(d->uuid, member->label.uuid, 16);
	d->state = atomic_load(&member->state);
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
}

static bool segment_degraded(struct pool *pool, const struct segment *s)
{
	for (unsigned i = 0; i < s->layout.data + s->layout.parity; i++)
		if (!member_usable(&pool->devices[s->row.chunks[i].device]))
			return true;
	return false;
}

static void count_segments(struct pool *pool, struct pool_status *status)
{
	pthread_rwlock_rdlock(&pool->table_lock);
	for (unsigned i = 0; i < pool->table_size; i++) {
		for (struct segment *s = pool->table[i]; s; s = s->hash_next) {
			status->segments++;
			status->segments_open += s->row.state == SEGMENT_OPEN;
			status->segments_degraded +=
				s->row.state != SEGMENT_RESERVED && segment_degraded(pool, s);
			status->used += segment_capacity(pool, s->row.data);
			status->live += s->row.live;
		}
	}
	pthread_rwlock_unlock(&pool->table_lock);
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

void pool_status(struct pool *pool, struct pool_status *status)
{
	memset(status, 0, sizeof(*status));
	pthread_mutex_lock(&pool->label_lock);
	summarize(&pool->label, &status->summary);
	pthread_mutex_unlock(&pool->label_lock);
	status->summary.data = pool->k;
	status->summary.parity = pool->m;
	status->read_only = pool_is_read_only(pool);
	status->failure = atomic_load(&pool->failure);
	status->lsn = journal_lsn(pool);
	status->durable_lsn = journal_durable_lsn(pool);
	status->device_count = pool->device_count;
	for (unsigned i = 0; i < pool->device_count; i++) {
		device_status(pool, i, &status->devices[i]);
		status->raw += status->devices[i].size;
		status->summary.devices_found += status->devices[i].state == DEVICE_ACTIVE;
	}
	count_segments(pool, status);
	status->usable =
		status->used + place_capacity(pool) * segment_capacity(pool, data_width(pool));
	status->reserve = pool->reserve_segments * segment_capacity(pool, data_width(pool));
	status->journal_size = pool->header.journal_size;
	status->journal_used = journal_used(pool);
	status->domain_may_die = place_domain_may_die(pool);
}

/* Room in segments that are being filled is not counted: it belongs to their volumes. */
void pool_space(struct pool *pool, uint64_t *total, uint64_t *free_bytes)
{
	struct pool_status *status = malloc(sizeof(*status));
	uint64_t left;

	*total = *free_bytes = 0;
	if (!status)
		return;
	pool_status(pool, status);
	left = status->usable - status->used +
	       pool->stock_count * segment_capacity(pool, data_width(pool));
	*total = status->usable > status->reserve ? status->usable - status->reserve : 0;
	*free_bytes = left > status->reserve ? left - status->reserve : 0;
	free(status);
}

uint64_t pool_volume_live(struct pool *pool, uint32_t volume)
{
	uint64_t live = 0;

	pthread_rwlock_rdlock(&pool->table_lock);
	for (unsigned i = 0; i < pool->table_size; i++)
		for (struct segment *s = pool->table[i]; s; s = s->hash_next)
			if (s->row.volume == volume && s->row.purpose == PURPOSE_DATA)
				live += s->row.live;
	pthread_rwlock_unlock(&pool->table_lock);
	return live;
}

static bool in_list(uint64_t id, const uint64_t *list, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (list[i] == id)
			return true;
	return false;
}

uint64_t pool_sparse_segment(struct pool *pool, uint32_t volume, unsigned percent,
	const uint64_t *skip, unsigned skip_count)
{
	uint64_t best = 0, best_live = UINT64_MAX;

	pthread_rwlock_rdlock(&pool->table_lock);
	for (unsigned i = 0; i < pool->table_size; i++) {
		for (struct segment *s = pool->table[i]; s; s = s->hash_next) {
			const struct segment_row *row = &s->row;
			uint64_t limit = segment_capacity(pool, row->data) * percent / 100;

			if (row->volume != volume || row->purpose != PURPOSE_DATA ||
				row->state != SEGMENT_CLOSED || row->live >= limit ||
				row->live >= best_live || in_list(row->id, skip, skip_count))
				continue;
			best = row->id;
			best_live = row->live;
		}
	}
	pthread_rwlock_unlock(&pool->table_lock);
	return best;
}

int pool_each_segment(struct pool *pool, uint32_t volume,
	int (*each)(void *data, uint64_t segment, uint64_t length, uint64_t live), void *data)
{
	struct segment **list;
	unsigned count;
	int rc = segment_list(pool, &list, &count);

	for (unsigned i = 0; i < count; i++) {
		const struct segment_row *row = &list[i]->row;

		if (!rc && row->volume == volume && row->purpose == PURPOSE_DATA)
			rc = each(data, row->id, (uint64_t)row->rows * row->cell * row->data,
				row->live);
		segment_put(list[i]);
	}
	free(list);
	return rc;
}
