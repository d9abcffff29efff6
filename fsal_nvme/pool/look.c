/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A look at what may be a pool's devices: their headers, then their labels, of all of them at once,
 * as there may be many of them, each of another host.
 */
#include "pool/label.h"

#define LOOKS_AT_ONCE POOL_DEVICES_MAX /* each with a descriptor, and memory for two areas */

static uint64_t end_of_answers(struct engine *engine)
{
	return engine_clock(engine) + DEVICE_ANSWER_NS;
}

static void begin(struct engine *engine, struct device_look *look)
{
	look->result = device_open(engine, look->path, DEVICE_READ_ONLY, &look->device, NULL);
	look->opened = !look->result;
	if (look->opened)
		look->asked = header_ask(engine, look->device, false);
}

static void take_first(struct engine *engine, struct device_look *look, uint64_t end)
{
	if (!look->opened)
		return;
	look->result = header_take(look->device, false, look->asked, end, &look->header);
	if (look->result == -EAGAIN)
		look->asked = header_ask(engine, look->device, true);
}

static void take_last(struct device_look *look, uint64_t end)
{
	if (look->result == -EAGAIN)
		look->result = header_take(look->device, true, look->asked, end, &look->header);
}

static void ask_for_labels(struct engine *engine, struct device_look *look)
{
	if (!look->opened)
		return;
	if (!look->result) {
		labels_ask(engine, look->device, &look->header, &look->labels);
	} else if (look->headless && (look->result == -ENOENT || look->result == -EIO)) {
		memset(&look->header, 0, sizeof(look->header));
		labels_ask(engine, look->device, NULL, &look->labels);
	}
}

static void take_labels(struct device_look *look, uint64_t end)
{
	look->labels_result = labels_take(&look->labels, end, look->each, look->data);
	device_close(look->device);
}

static void look_at_some(struct engine *engine, struct device_look *looks, unsigned count)
{
	uint64_t end;

	for (unsigned i = 0; i < count; i++)
		begin(engine, &looks[i]);
	end = end_of_answers(engine);
	for (unsigned i = 0; i < count; i++)
		take_first(engine, &looks[i], end);
	end = end_of_answers(engine);
	for (unsigned i = 0; i < count; i++)
		take_last(&looks[i], end);
	for (unsigned i = 0; i < count; i++)
		ask_for_labels(engine, &looks[i]);
	end = end_of_answers(engine);
	for (unsigned i = 0; i < count; i++)
		take_labels(&looks[i], end);
}

void devices_look(struct engine *engine, struct device_look *looks, unsigned count)
{
	for (unsigned i = 0; i < count; i += LOOKS_AT_ONCE)
		look_at_some(
			engine, &looks[i], count - i < LOOKS_AT_ONCE ? count - i : LOOKS_AT_ONCE);
}
