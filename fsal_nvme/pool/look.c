/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A look at what may be a pool's devices: their headers, then their labels, of all of them at once,
 * as there may be many of them, each of another host.
 */
#include "pool/internal.h"

static void ask_for_header(struct engine *engine, struct device_look *look)
{
	look->result = device_open(engine, look->path, DEVICE_READ_ONLY, &look->device, NULL);
	look->opened = !look->result;
	if (look->opened)
		look->asked = device_ask(engine, look->device, 0, BLOCK_SIZE);
}

static void take_header(struct engine *engine, struct device_look *look, uint64_t end)
{
	if (!look->opened)
		return;
	look->result = device_header_take(engine, look->device, look->asked, end, &look->header);
	if (look->result)
		memset(&look->header, 0, sizeof(look->header));
	if (!look->result)
		labels_ask(engine, look->device, &look->header, &look->labels);
	else if (look->headless && (look->result == -ENOENT || look->result == -EIO))
		labels_ask(engine, look->device, NULL, &look->labels);
}

static void take_labels(struct device_look *look, uint64_t end)
{
	look->labels_result = labels_take(&look->labels, end, look->each, look->data);
	device_close(look->device);
}

void devices_look(struct engine *engine, struct device_look *looks, unsigned count)
{
	uint64_t end;

	for (unsigned i = 0; i < count; i++)
		ask_for_header(engine, &looks[i]);
	end = engine_clock(engine) + DEVICE_ANSWER_NS;
	for (unsigned i = 0; i < count; i++)
		take_header(engine, &looks[i], end);
	end = engine_clock(engine) + DEVICE_ANSWER_NS;
	for (unsigned i = 0; i < count; i++)
		take_labels(&looks[i], end);
}
