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

static void answered(struct io *io)
{
	struct asked *asked = (struct asked *)io;
	bool given_up;

	pthread_mutex_lock(&lock);
	given_up = asked->given_up;
	asked->answered = true;
	if (given_up)
		io->device->owed--;
	pthread_mutex_unlock(&lock);
	if (given_up)
		asked_free(asked);
	else
		event_signal(&asked->event, io->result);
}

/* False: the answer is there, or as good as. */
static bool give_up(struct asked *asked)
{
	bool given_up;

	pthread_mutex_lock(&lock);
	given_up = asked->given_up = !asked->answered;
	if (given_up)
		asked->io.device->owed++;
	pthread_mutex_unlock(&lock);
	return given_up;
}

static struct asked *ask(
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

/* Until `end`, of engine_clock(). Where it is not given up it is the caller's to free. */
static int answer_wait(struct asked *asked, uint64_t end, bool *given_up)
{
	uint64_t now = engine_clock(asked->engine);
	int rc = event_wait_for(&asked->event, end > now ? end - now : 0);

	*given_up = rc == -ETIMEDOUT && give_up(asked);
	return rc == -ETIMEDOUT && !*given_up ? event_wait(&asked->event) : rc;
}

int device_read(
	struct engine *engine, struct device *device, uint64_t offset, void *buffer, size_t length)
{
	struct asked *asked = ask(engine, device, offset, length);
	bool given_up;
	int rc;

	if (!asked)
		return -ENOMEM;
	rc = answer_wait(asked, engine_clock(engine) + DEVICE_ANSWER_NS, &given_up);
	if (given_up)
		return rc;
	if (!rc)
		memcpy(buffer, asked->memory, length);
	asked_free(asked);
	return rc;
}

void devices_ask(struct engine *engine, const char *const *paths, unsigned count)
{
	struct asked **asked = calloc(count + 1, sizeof(*asked));
	struct device **devices = calloc(count + 1, sizeof(*devices));
	uint64_t end = engine_clock(engine) + DEVICE_ANSWER_NS;
	bool given_up;

	for (unsigned i = 0; asked && devices && i < count; i++)
		if (!device_open(engine, paths[i], DEVICE_READ_ONLY, &devices[i], NULL))
			asked[i] = ask(engine, devices[i], 0, BLOCK_SIZE);
	for (unsigned i = 0; asked && devices && i < count; i++) {
		if (asked[i]) {
			(void)answer_wait(asked[i], end, &given_up);
			if (!given_up)
				asked_free(asked[i]);
		}
		device_close(devices[i]);
	}
	free(asked);
	free(devices);
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
