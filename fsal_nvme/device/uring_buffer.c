/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The registered memory. A block of 2^n pages starts at a multiple of its size; freed, it joins
 * with its buddy (the other half of the next larger block) as long as that is free too. What is
 * kept about free blocks lies outside of them, so that a sanitizer may watch their bytes.
 */
#include "device/uring.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, length) ((void)(address), (void)(length))
#define ASAN_UNPOISON_MEMORY_REGION(address, length) ((void)(address), (void)(length))
#endif

#define NO_PAGE UINT32_MAX

static void push(struct arena *arena, uint32_t page, unsigned order)
{
	uint32_t next = arena->free[order];

	arena->order[page] = (uint8_t)(1 + order);
	arena->next[page] = next;
	arena->previous[page] = NO_PAGE;
	if (next != NO_PAGE)
		arena->previous[next] = page;
	arena->free[order] = page;
}

static void take(struct arena *arena, uint32_t page, unsigned order)
{
	uint32_t next = arena->next[page], previous = arena->previous[page];

	arena->order[page] = 0;
	if (previous == NO_PAGE)
		arena->free[order] = next;
	else
		arena->next[previous] = next;
	if (next != NO_PAGE)
		arena->previous[next] = previous;
}

/* The largest aligned blocks that the region is made of. */
static void fill(struct arena *arena)
{
	uint32_t pages = (uint32_t)(arena->length / BLOCK_SIZE);

	for (uint32_t page = 0; page < pages;) {
		unsigned order = ORDERS - 1;

		while ((page & ((1u << order) - 1)) || (1u << order) > pages - page)
			order--;
		push(arena, page, order);
		page += 1u << order;
	}
}

int arena_init(struct arena *arena, size_t length)
{
	size_t pages = length / BLOCK_SIZE;

	memset(arena, 0, sizeof(*arena));
	if (pages >= NO_PAGE)
		return -ENOMEM;
	pthread_mutex_init(&arena->lock, NULL);
	for (unsigned i = 0; i < ORDERS; i++)
		arena->free[i] = NO_PAGE;
	arena->memory =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena->memory == MAP_FAILED)
		arena->memory = NULL;
	else
		arena->length = length;
	arena->order = calloc(pages, sizeof(*arena->order));
	arena->next = calloc(pages, sizeof(*arena->next));
	arena->previous = calloc(pages, sizeof(*arena->previous));
	if (!arena->memory || !arena->order || !arena->next || !arena->previous) {
		arena_destroy(arena);
		return -ENOMEM;
	}
	/* Fewer pieces for the kernel to keep; a refusal costs nothing. */
	(void)madvise(arena->memory, length, MADV_HUGEPAGE);
	fill(arena);
	ASAN_POISON_MEMORY_REGION(arena->memory, length);
	return 0;
}

void arena_destroy(struct arena *arena)
{
	if (arena->memory) {
		ASAN_UNPOISON_MEMORY_REGION(arena->memory, arena->length);
		munmap(arena->memory, arena->length);
	}
	free(arena->order);
	free(arena->next);
	free(arena->previous);
	pthread_mutex_destroy(&arena->lock);
	memset(arena, 0, sizeof(*arena));
}

static unsigned order_of(size_t length)
{
	unsigned order = 0;

	while (((size_t)BLOCK_SIZE << order) < length)
		order++;
	return order;
}

/* Splits the smallest block that is large enough; NO_PAGE: there is none. */
static uint32_t take_block(struct arena *arena, unsigned order)
{
	unsigned from = order;
	uint32_t page;

	while (from < ORDERS && arena->free[from] == NO_PAGE)
		from++;
	if (from == ORDERS)
		return NO_PAGE;
	page = arena->free[from];
	take(arena, page, from);
	while (from-- > order)
		push(arena, page + (1u << from), from);
	return page;
}

void *arena_alloc(struct arena *arena, size_t length)
{
	unsigned order = length <= PIECE_SIZE ? order_of(length) : ORDERS;
	uint32_t page = NO_PAGE;
	uint8_t *memory;

	if (order < ORDERS) {
		pthread_mutex_lock(&arena->lock);
		page = take_block(arena, order);
		pthread_mutex_unlock(&arena->lock);
	}
	if (page == NO_PAGE)
		return aligned_alloc(BLOCK_SIZE, length);
	memory = arena->memory + (size_t)page * BLOCK_SIZE;
	ASAN_UNPOISON_MEMORY_REGION(memory, length);
	return memory;
}

static bool inside(const struct arena *arena, const void *buffer, size_t length)
{
	uintptr_t from = (uintptr_t)arena->memory, at = (uintptr_t)buffer;

	return at >= from && at - from < arena->length && length <= arena->length - (at - from);
}

static void put_block(struct arena *arena, uint32_t page, unsigned order)
{
	uint32_t pages = (uint32_t)(arena->length / BLOCK_SIZE);

	while (order < ORDERS - 1) {
		uint32_t buddy = page ^ (1u << order);

		if (buddy >= pages || arena->order[buddy] != 1 + order)
			break;
		take(arena, buddy, order);
		page &= ~(1u << order);
		order++;
	}
	push(arena, page, order);
}

void arena_free(struct arena *arena, void *buffer, size_t length)
{
	size_t offset;

	if (!inside(arena, buffer, length)) {
		free(buffer);
		return;
	}
	offset = (size_t)((uint8_t *)buffer - arena->memory);
	assert(offset % BLOCK_SIZE == 0);
	pthread_mutex_lock(&arena->lock);
	assert(arena->order[offset / BLOCK_SIZE] == 0 && "freed twice");
	ASAN_POISON_MEMORY_REGION(buffer, length);
	put_block(arena, (uint32_t)(offset / BLOCK_SIZE), order_of(length));
	pthread_mutex_unlock(&arena->lock);
}

int arena_piece(const struct arena *arena, const void *buffer, size_t length)
{
	size_t offset;

	if (!inside(arena, buffer, length))
		return -1;
	offset = (size_t)((const uint8_t *)buffer - arena->memory);
	if (offset / PIECE_SIZE != (offset + length - 1) / PIECE_SIZE)
		return -1;
	return (int)(offset / PIECE_SIZE);
}
