/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Buffers of hosts. With AddressSanitizer, which has each large one from the kernel and gives it
 * back, at more than most requests take, one waits in a line instead, for the next one of its
 * length or for the world's end. Nobody may touch it while it waits: the sanitizer watches that
 * too. Without it they are malloc()'s, so that tests in which memory runs out see all of them.
 */
#include "device/sim_world.h"

#include <sanitizer/asan_interface.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#define LARGE (128u << 10)
#else
#define LARGE SIZE_MAX
#endif
#define WAITING_MOST (64u << 20) /* bytes */

/* At the buffer's beginning. That is not marked: LeakSanitizer follows no link in what is. */
struct sim_buffer {
	struct sim_buffer *next;
	size_t length;
};

static struct sim_buffer *first_of(struct sim_buffers *buffers, size_t length)
{
	struct sim_buffer **at = &buffers->first, *buffer;

	while (*at && (*at)->length != length)
		at = &(*at)->next;
	buffer = *at;
	if (!buffer)
		return NULL;
	*at = buffer->next;
	if (!*at)
		buffers->end = at;
	buffers->bytes -= length;
	ASAN_UNPOISON_MEMORY_REGION(buffer, length);
	return buffer;
}

void *sim_buffer_take(struct sim_buffers *buffers, size_t length)
{
	void *buffer = length < LARGE ? NULL : first_of(buffers, length);

	return buffer ? buffer : aligned_alloc(BLOCK_SIZE, length);
}

void sim_buffer_give(struct sim_buffers *buffers, void *memory, size_t length)
{
	struct sim_buffer *buffer = memory;

	if (!memory || length < LARGE || buffers->bytes + length > WAITING_MOST) {
		free(memory);
		return;
	}
	*buffer = (struct sim_buffer){.length = length};
	ASAN_POISON_MEMORY_REGION(buffer + 1, length - sizeof(*buffer));
	*buffers->end = buffer;
	buffers->end = &buffer->next;
	buffers->bytes += length;
}

void sim_buffers_free(struct sim_buffers *buffers)
{
	struct sim_buffer *next;

	for (struct sim_buffer *buffer = buffers->first; buffer; buffer = next) {
		next = buffer->next;
		free(buffer);
	}
}
