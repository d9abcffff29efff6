/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The newest label, as a reader looks for it: all members are asked at once, and one that does not
 * answer in time (hedge.h) is not waited for where the others are enough. One that has stalled is
 * asked only where it is needed, and not again before it has answered. What is asked keeps its
 * memory until the answer is there.
 */
#include <assert.h>

#include "pool/follow.h"
#include "pool/hedge.h"
#include "pool/label.h"

#define PAUSE (UINT64_C(50) * 1000 * 1000) /* ns, while late ones are waited for */

struct glance;

struct area {
	struct hedged hedged; /* first */
	struct glance *glance;
	unsigned member;
	uint8_t *memory; /* LABEL_AREA */
	_Atomic int result; /* -ETIMEDOUT: late */
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
	atomic_store(&area->result, result);
	if (atomic_fetch_sub(&area->glance->pending, 1) == 1)
		event_signal(&area->glance->answered, 0);
}

/* Who waits may end the pool as soon as that is over. */
static void area_answered(struct hedged *hedged)
{
	struct area *area = (struct area *)hedged;

	atomic_fetch_sub(&hedged->member->glances, 1);
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
	struct area *area = (struct area *)hedged;
	struct pool *pool = hedged->pool;

	atomic_fetch_sub(&hedged->member->glances, 1);
	atomic_store(&area->result, hedged->io.result);
	glance_put(area->glance);
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

static int prepare_member(struct glance *glance, struct pool *pool, unsigned id)
{
	int rc = prepare(glance, pool, id, 0);

	return rc ? rc : prepare(glance, pool, id, 1);
}

/* Those that have stalled, or the others; the bit of each in `asked`. */
static int prepare_some(struct glance *glance, struct pool *pool, bool stalled, uint64_t *asked)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		if (!member_usable(member) || member_stalled(member) != stalled ||
			atomic_load(&member->glances) || *asked >> i & 1)
			continue;
		rc = prepare_member(glance, pool, i);
		*asked |= UINT64_C(1) << i;
	}
	return rc;
}

static int prepare_all(struct glance *glance, struct pool *pool)
{
	uint64_t asked = 0;
	int rc = prepare_some(glance, pool, false, &asked);

	if (!rc && losses_allowed(pool, members_active(pool), asked))
		rc = prepare_some(glance, pool, true, &asked);
	return rc;
}

static int ask(struct glance *glance)
{
	struct io *list[2 * POOL_DEVICES_MAX];
	unsigned count = glance->count;
	int rc;

	if (!count)
		return -EIO;
	atomic_init(&glance->pending, count);
	atomic_fetch_add(&glance->references, count);
	event_init(&glance->answered, glance->engine);
	for (unsigned i = 0; i < count; i++) {
		atomic_fetch_add(&glance->areas[i].hedged.member->glances, 1);
		hedge_watch(&glance->areas[i].hedged);
		list[i] = &glance->areas[i].hedged.io;
	}
	io_submit(glance->engine, list, count);
	rc = event_wait(&glance->answered);
	assert(atomic_load(&glance->answered.state) == 1 && "a look on a paused host");
	return rc;
}

/* Whether a later answer might make up for what those that are there lack. */
static bool needs_late(struct glance *glance, const struct pool *pool)
{
	uint64_t answers = 0;
	bool late = false;

	for (unsigned i = 0; i < glance->count; i++) {
		int result = atomic_load(&glance->areas[i].result);

		late |= result == -ETIMEDOUT;
		if (!result)
			answers |= UINT64_C(1) << glance->areas[i].member;
	}
	return late && losses_allowed(pool, members_active(pool), answers);
}

static void wait_for_late(struct glance *glance, struct pool *pool)
{
	uint64_t end = engine_clock(pool->engine) + DEVICE_ANSWER_NS;

	while (needs_late(glance, pool) && engine_clock(pool->engine) < end)
		engine_sleep(pool->engine, PAUSE);
}

/* A label that is complete stands in both areas: one is enough. */
static int take(struct glance *glance, struct pool *pool,
	int (*each)(void *data, const struct label *label), void *data, uint64_t *answers)
{
	struct label *label = malloc(sizeof(*label));
	int rc = label ? 0 : -ENOMEM;

	for (unsigned i = 0; !rc && i < glance->count; i++) {
		struct area *area = &glance->areas[i];
		int result = atomic_load(&area->result);

		if (result == -ESHUTDOWN)
			rc = -ESHUTDOWN;
		if (result)
			continue;
		*answers |= UINT64_C(1) << area->member;
		rc = label_each(
			area->memory, &pool->devices[area->member].header, label, each, data);
	}
	free(label);
	return rc;
}

/* What has answered needs its memory no more; the rest may take long. */
static void glance_end(struct glance *glance)
{
	for (unsigned i = 0; i < glance->count; i++) {
		struct area *area = &glance->areas[i];

		if (atomic_load(&area->result) == -ETIMEDOUT)
			continue;
		buffer_free(glance->engine, area->memory, LABEL_AREA);
		area->memory = NULL;
	}
	glance_put(glance);
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
		wait_for_late(glance, pool);
	if (!rc)
		rc = take(glance, pool, each, data, answers);
	glance_end(glance);
	return rc;
}
