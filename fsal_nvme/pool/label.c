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

#include "pool/label.h"

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

uint64_t label_active(const struct label *label)
{
	uint64_t active = 0;

	for (unsigned i = 0; i < label->device_count; i++)
		if (label->devices[i].state == DEVICE_ACTIVE)
			active |= UINT64_C(1) << i;
	return active;
}

void label_domains(const struct label *label, uint8_t domains[POOL_DEVICES_MAX])
{
	for (unsigned i = 0; i < label->device_count; i++) {
		unsigned first = 0;

		while (first < i && strcmp(label->devices[first].domain, label->devices[i].domain))
			first++;
		domains[i] = (uint8_t)first;
	}
}

uint64_t label_beat_read(struct pool *pool, uint64_t epoch)
{
	struct asked *asked[POOL_DEVICES_MAX] = {NULL};
	uint64_t end = engine_clock(pool->engine) + DEVICE_ANSWER_NS, greatest = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		if (member_usable(&pool->devices[i]))
			asked[i] = device_ask(pool->engine, pool->devices[i].device,
				label_place(LABEL_A_OFFSET, epoch) + LABEL_BODY, BLOCK_SIZE);
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct beat beat;

		if (!asked_answer(asked[i], end) &&
			!beat_decode(&beat, pool->label.pool, asked_memory(asked[i])) &&
			beat.epoch == epoch && beat.count > greatest)
			greatest = beat.count;
		asked_end(asked[i]);
	}
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

void labels_ask(struct engine *engine, struct device *device, const struct device_header *header,
	struct labels_asked *asked)
{
	asked->header = header;
	asked->count = header ? 2 : 1;
	for (unsigned i = 0; i < asked->count; i++)
		asked->areas[i] =
			device_ask(engine, device, label_area_offset(header, i), LABEL_AREA);
}

int labels_take(struct labels_asked *asked, uint64_t end,
	int (*each)(void *data, const struct label *label), void *data)
{
	struct label *label = malloc(sizeof(*label));
	int rc = label ? 0 : -ENOMEM;

	for (unsigned i = 0; i < asked->count; i++) {
		struct asked *area = asked->areas[i];
		int got = asked_answer(area, end);

		if (!rc && !got)
			rc = label_each(asked_memory(area), asked->header, label, each, data);
		else if (!rc && (!area || got == -ETIMEDOUT))
			rc = got; /* an area that merely cannot be read has none */
		asked_end(area);
	}
	free(label);
	return rc;
}

int label_read_all(struct engine *engine, struct device *device, const struct device_header *header,
	int (*each)(void *data, const struct label *label), void *data)
{
	struct labels_asked asked;

	labels_ask(engine, device, header, &asked);
	return labels_take(&asked, engine_clock(engine) + DEVICE_ANSWER_NS, each, data);
}

struct asked *header_ask(struct engine *engine, struct device *device, bool last)
{
	uint64_t offset = last ? device_info(device)->size - BLOCK_SIZE : 0;

	return device_ask(engine, device, offset, BLOCK_SIZE);
}

static int check_size(struct device *device, bool last, const struct device_header *header)
{
	uint64_t size = device_info(device)->size;

	/* A header of a part of the device that ends where it ends, a partition's, is not its. */
	if (last && header->size != size)
		return -ENOENT;
	return header->size > size ? -EBADMSG : 0; /* it was larger when it joined */
}

int header_take(struct device *device, bool last, struct asked *asked, uint64_t end,
	struct device_header *header)
{
	int rc = asked_answer(asked, end);

	if (!rc)
		rc = device_header_decode(header, asked_memory(asked));
	asked_end(asked);
	if (!rc)
		return check_size(device, last, header);
	if (last)
		return rc == -EBADMSG ? -ENOENT : rc;
	return rc == -EBADMSG || rc == -EIO ? -EAGAIN : rc;
}

int device_header_read(struct engine *engine, struct device *device, struct device_header *header)
{
	int rc = -EAGAIN;

	for (unsigned last = 0; rc == -EAGAIN; last++) {
		uint64_t end = engine_clock(engine) + DEVICE_ANSWER_NS;

		rc = header_take(device, last, header_ask(engine, device, last), end, header);
	}
	return rc;
}
