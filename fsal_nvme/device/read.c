/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Reads that are not waited for for ever: what is asked keeps memory of its own until the answer is
 * there, and its device open.
 */
#include "device/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct asked {
	struct io io; /* first */
	struct engine *engine;
	struct event event;
	void *memory;
	size_t length;
	bool given_up, answered; /* lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */

static void asked_free(struct asked *asked)
{
	buffer_free(asked->engine, asked->memory, asked->length);
	free(asked);
}

/* Who waits may free it as soon as the lock is free. */
static void answered(struct io *io)
{
	struct asked *asked = (struct asked *)io;
	bool given_up;

	pthread_mutex_lock(&lock);
	given_up = asked->given_up;
	asked->answered = true;
	if (given_up)
		io->device->owed--;
	else
		event_signal(&asked->event, io->result);
	pthread_mutex_unlock(&lock);
	if (given_up)
		asked_free(asked);
}

struct asked *device_ask(
	struct engine *engine, struct device *device, uint64_t offset, size_t length)
{
	struct asked *asked = calloc(1, sizeof(*asked));
	struct io *io;

	if (!asked)
		return NULL;
	io = &asked->io;
	asked->engine = engine;
	asked->length = length;
	asked->memory = buffer_alloc(engine, length);
	if (!asked->memory) {
		free(asked);
		return NULL;
	}
	event_init(&asked->event, engine);
	io_prepare(io, IO_READ, device, offset, asked->memory, length);
	io->done = answered;
	io_submit(engine, &io, 1);
	return asked;
}

int asked_answer(struct asked *asked, uint64_t end)
{
	uint64_t now;

	if (!asked)
		return -ENOMEM;
	now = engine_clock(asked->engine);
	return event_wait_for(&asked->event, end > now ? end - now : 0);
}

const void *asked_memory(const struct asked *asked)
{
	return asked->memory;
}

void asked_end(struct asked *asked)
{
	bool answered;

	if (!asked)
		return;
	pthread_mutex_lock(&lock);
	answered = asked->answered;
	asked->given_up = !answered;
	if (!answered)
		asked->io.device->owed++;
	pthread_mutex_unlock(&lock);
	if (answered)
		asked_free(asked);
}

bool device_leave(struct device *device)
{
	bool owes;

	pthread_mutex_lock(&lock);
	owes = device->owed > 0;
	if (owes) {
		device->next = device->engine->left;
		device->engine->left = device;
	}
	pthread_mutex_unlock(&lock);
	return owes;
}

/* Under the lock: takes one out that has answered. */
static struct device *take_answered(struct engine *engine)
{
	struct device **at = &engine->left, *device;

	while (*at && (*at)->owed)
		at = &(*at)->next;
	device = *at;
	if (device)
		*at = device->next;
	return device;
}

bool engine_owes(struct engine *engine, const char *path)
{
	struct device *done;
	bool owes = false;

	do {
		pthread_mutex_lock(&lock);
		done = take_answered(engine);
		pthread_mutex_unlock(&lock);
		if (done)
			engine->ops->close(done);
	} while (done);
	pthread_mutex_lock(&lock);
	for (struct device *at = engine->left; at; at = at->next)
		owes |= !path || !strcmp(at->info.path, path);
	pthread_mutex_unlock(&lock);
	return owes;
}
