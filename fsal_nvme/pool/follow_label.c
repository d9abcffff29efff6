/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The newest label, as a reader looks for it: all members are asked at once, and one that does not
 * answer in time (hedge.h) is not waited for, nor asked again before it has. What is asked keeps
 * its memory until all answers are there.
 */
#include "pool/follow.h"
#include "pool/hedge.h"

struct glance;

struct area {
	struct hedged hedged; /* first */
	struct glance *glance;
	unsigned member;
	uint8_t *memory; /* LABEL_AREA */
	int result;
};

struct glance {
	struct engine *engine;
	struct event answered; /* by all that are not late */
	_Atomic unsigned pending, references;
	unsigned count;
	struct area areas[2 * POOL_DEVICES_MAX];
};

static void glance_put(struct glance *glance)
{
	if (atomic_fetch_sub(&glance->references, 1) != 1)
		return;
	for (unsigned i = 0; i < glance->count; i++)
		buffer_free(glance->engine, glance->areas[i].memory, LABEL_AREA);
	free(glance);
}

/* Waited for no more. */
static void area_over(struct area *area, int result)
{
	area->result = result;
	if (atomic_fetch_sub(&area->glance->pending, 1) == 1)
		event_signal(&area->glance->answered, 0);
}

static void area_answered(struct hedged *hedged)
{
	struct area *area = (struct area *)hedged;

	area_over(area, hedged->io.result);
	glance_put(area->glance);
}

static bool area_late(struct hedged *hedged)
{
	area_over((struct area *)hedged, -ETIMEDOUT);
	return true;
}

static void area_gone(struct hedged *hedged)
{
	struct pool *pool = hedged->pool;

	glance_put(((struct area *)hedged)->glance);
	hedge_leave(pool);
}

static int prepare(struct glance *glance, struct pool *pool, unsigned id, unsigned number)
{
	struct area *area = &glance->areas[glance->count];
	struct member *member = &pool->devices[id];

	area->memory = buffer_alloc(pool->engine, LABEL_AREA);
	if (!area->memory)
		return -ENOMEM;
	area->glance = glance;
	area->member = id;
	area->hedged.pool = pool;
	area->hedged.member = member;
	area->hedged.done = area_answered;
	area->hedged.late = area_late;
	area->hedged.gone = area_gone;
	io_prepare(&area->hedged.io, IO_READ, member->device,
		label_area_offset(&member->header, number), area->memory, LABEL_AREA);
	glance->count++;
	return 0;
}

static int prepare_all(struct glance *glance, struct pool *pool)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (!member_usable(member) || member_stalled(member))
			continue;
		rc = prepare(glance, pool, i, 0);
		if (!rc)
			rc = prepare(glance, pool, i, 1);
	}
	return rc;
}

static int ask(struct glance *glance)
{
	struct io *list[2 * POOL_DEVICES_MAX];
	unsigned count = glance->count;

	if (!count)
		return -EIO;
	atomic_init(&glance->pending, count);
	atomic_fetch_add(&glance->references, count);
	event_init(&glance->answered, glance->engine);
	for (unsigned i = 0; i < count; i++) {
		hedge_watch(&glance->areas[i].hedged);
		list[i] = &glance->areas[i].hedged.io;
	}
	io_submit(glance->engine, list, count);
	return event_wait(&glance->answered);
}

/* A label that is complete stands in both areas: one is enough. */
static int take(struct glance *glance, struct pool *pool,
	int (*each)(void *data, const struct label *label), void *data, uint64_t *answers)
{
	struct label *label = malloc(sizeof(*label));
	int rc = label ? 0 : -ENOMEM;

	for (unsigned i = 0; !rc && i < glance->count; i++) {
		struct area *area = &glance->areas[i];

		if (area->result == -ESHUTDOWN)
			rc = -ESHUTDOWN;
		if (area->result)
			continue;
		*answers |= UINT64_C(1) << area->member;
		rc = label_each(
			area->memory, &pool->devices[area->member].header, label, each, data);
	}
	free(label);
	return rc;
}

int follow_labels(struct pool *pool, int (*each)(void *data, const struct label *label), void *data,
	uint64_t *answers)
{
	struct glance *glance = calloc(1, sizeof(*glance));
	int rc;

	*answers = 0;
	if (!glance)
		return -ENOMEM;
	glance->engine = pool->engine;
	atomic_init(&glance->references, 1);
	rc = prepare_all(glance, pool);
	if (!rc)
		rc = ask(glance);
	if (!rc)
		rc = take(glance, pool, each, data, answers);
	glance_put(glance);
	return rc;
}
