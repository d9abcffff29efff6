/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Labels: who owns the pool, which devices count, where the root is.
 *
 * A device has two label areas; each is a ring of places, chosen by epoch, so that an owner of an
 * earlier epoch that wakes up writes to other places. Within an epoch a label is written to area A
 * of all members and flushed, then to area B: a power cut tears one of them at most, and the other
 * still holds this label or the one before.
 *
 * Of the labels on all devices the newest one is the pool's (label_is_newer()). A claim is as old
 * as the label that it repeats, not as its epoch says: an opening may die when its claim is on a
 * few devices. With those missing the next opening cannot know of that epoch, takes the same or an
 * earlier one, and moves the root; when they are back, their claim still names the old one. A label
 * that is no claim, though, is written when its epoch's claim is on all members but those that may
 * be lost at once (loss.c). No opening goes without meeting it on some device, and takes a later
 * epoch: so among these the greatest (epoch, sequence) was written last.
 */
#include <stdio.h>

#include "pool/internal.h"

uint64_t label_area_offset(const struct device_header *header, unsigned area)
{
	return area ? header->label_b_offset : LABEL_A_OFFSET;
}

/* Writes an encoded label to one area of all usable members, durable. Returns how many took it, or
 * -ESHUTDOWN. */
static int write_area(struct pool *pool, unsigned area, void *body)
{
	struct io ios[POOL_DEVICES_MAX];
	struct member *members[POOL_DEVICES_MAX];
	unsigned count = 0;
	int good = 0;

	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (!member_usable(member) || atomic_load(&member->failing))
			continue;
		io_prepare(&ios[count], IO_WRITE, member->device,
			label_place(label_area_offset(&member->header, area), pool->epoch), body,
			LABEL_BODY);
		ios[count].flags = IO_FUA;
		members[count++] = member;
	}
	members_run(pool, ios, count);
	for (unsigned i = 0; i < count; i++) {
		if (ios[i].result == -ESHUTDOWN)
			return -ESHUTDOWN;
		if (ios[i].result)
			member_failed(pool, members[i], ios[i].result);
		good += !ios[i].result;
	}
	return good;
}

/* With label_turn. `look`, if any, comes between the areas. */
static int write_next(
	struct pool *pool, void *body, int (*look)(struct opening *opening), struct opening *o)
{
	int rc;

	pthread_mutex_lock(&pool->label_lock);
	pool->label.sequence++;
	pool->label.written = engine_time(pool->engine);
	rc = label_encode(&pool->label, body);
	pthread_mutex_unlock(&pool->label_lock);
	for (unsigned area = 0; !rc && area < 2; area++) {
		int good = write_area(pool, area, body);

		if (good < 0)
			rc = good;
		else if ((unsigned)good < pool->m + 1)
			rc = -EIO;
		else if (!area && look)
			rc = look(o);
	}
	return rc;
}

/* All of an epoch's labels go to the same places: the next is encoded when the one before stands on
 * all members, and a later one never lies under an earlier one. */
int label_write_claim(
	struct pool *pool, int (*look)(struct opening *opening), struct opening *opening)
{
	void *body = buffer_alloc(pool->engine, LABEL_BODY);
	int rc;

	if (!body)
		return -ENOMEM;
	pthread_mutex_lock(&pool->label_turn);
	rc = write_next(pool, body, look, opening);
	pthread_mutex_unlock(&pool->label_turn);
	buffer_free(pool->engine, body, LABEL_BODY);
	return rc;
}

int label_write(struct pool *pool)
{
	return label_write_claim(pool, NULL, NULL);
}

struct label_version label_version(const struct label *label)
{
	return (struct label_version){label->epoch, label->sequence};
}

struct label_version label_content(const struct label *label)
{
	return label->repeats.sequence ? label->repeats : label_version(label);
}

int label_version_order(struct label_version a, struct label_version b)
{
	if (a.epoch != b.epoch)
		return a.epoch > b.epoch ? 1 : -1;
	return (a.sequence > b.sequence) - (a.sequence < b.sequence);
}

bool label_is_newer(const struct label *a, const struct label *b)
{
	int order = label_version_order(label_content(a), label_content(b));

	return (order ? order : label_version_order(label_version(a), label_version(b))) > 0;
}

uint64_t label_beat_read(struct pool *pool, uint64_t epoch)
{
	void *block = buffer_alloc(pool->engine, BLOCK_SIZE);
	uint64_t greatest = 0;

	for (unsigned i = 0; block && i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];
		struct beat beat;

		if (!member_usable(member))
			continue;
		if (device_read(pool->engine, member->device,
			    label_place(LABEL_A_OFFSET, epoch) + LABEL_BODY, block, BLOCK_SIZE))
			continue;
		if (!beat_decode(&beat, pool->label.pool, block) && beat.epoch == epoch &&
			beat.count > greatest)
			greatest = beat.count;
	}
	buffer_free(pool->engine, block, BLOCK_SIZE);
	return greatest;
}

int label_each(const uint8_t *area, const struct device_header *header, struct label *label,
	int (*each)(void *data, const struct label *label), void *data)
{
	for (unsigned place = 0; place < LABEL_RING; place++) {
		int rc;

		if (label_decode(label, area + (size_t)place * LABEL_SIZE) ||
			(header && memcmp(label->pool, header->pool, 16)))
			continue;
		rc = each(data, label);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_areas(struct engine *engine, struct device *device,
	const struct device_header *header, unsigned areas,
	int (*each)(void *data, const struct label *label), void *data)
{
	uint8_t *area = buffer_alloc(engine, LABEL_AREA);
	struct label *label = malloc(sizeof(*label));
	int rc = area && label ? 0 : -ENOMEM;

	for (unsigned i = 0; !rc && i < areas; i++) {
		int got =
			device_read(engine, device, label_area_offset(header, i), area, LABEL_AREA);

		if (!got)
			rc = label_each(area, header, label, each, data);
		else if (got == -ETIMEDOUT)
			rc = got;
	}
	free(label);
	buffer_free(engine, area, LABEL_AREA);
	return rc;
}

int label_read_all(struct engine *engine, struct device *device, const struct device_header *header,
	int (*each)(void *data, const struct label *label), void *data)
{
	return read_areas(engine, device, header, 2, each, data);
}

int label_read_headless(struct engine *engine, struct device *device,
	int (*each)(void *data, const struct label *label), void *data)
{
	return read_areas(engine, device, NULL, 1, each, data);
}

/* A header of a part of the device that ends where it ends, a partition's, is not the device's. */
static int read_last(
	struct engine *engine, struct device *device, struct device_header *header, void *block)
{
	uint64_t size = device_info(device)->size;
	int rc = device_read(engine, device, size - BLOCK_SIZE, block, BLOCK_SIZE);

	if (!rc)
		rc = device_header_decode(header, block);
	if (!rc && header->size != size)
		rc = -EBADMSG;
	return rc == -EBADMSG ? -ENOENT : rc;
}

int device_header_read(struct engine *engine, struct device *device, struct device_header *header)
{
	uint64_t size = device_info(device)->size;
	void *block = buffer_alloc(engine, BLOCK_SIZE);
	int rc;

	if (!block)
		return -ENOMEM;
	rc = device_read(engine, device, 0, block, BLOCK_SIZE);
	if (!rc)
		rc = device_header_decode(header, block);
	if (rc == -EBADMSG || rc == -EIO)
		rc = read_last(engine, device, header, block);
	if (!rc && header->size > size)
		rc = -EBADMSG; /* it was larger when it joined */
	buffer_free(engine, block, BLOCK_SIZE);
	return rc;
}
