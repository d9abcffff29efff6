/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What a device holds, and images of it. A block that was not changed since an image was made of it
 * is shared with that image, and images share it among themselves: what is made or gone back to
 * again and again costs what was changed since.
 */
#include "device/sim_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE (8u << 20) /* bytes of a medium */

struct sim_block {
	uint64_t references;
	uint8_t bytes[BLOCK_SIZE];
};

static struct sim_block zeros = {.references = 1}; /* its own, so that it stays */

static void put(struct sim_block *block)
{
	if (block && --block->references == 0)
		free(block);
}

static void set(struct sim_block **at, struct sim_block *block)
{
	block->references++;
	put(*at);
	*at = block;
}

/* --- images ------------------------------------------------------------------------------- */

struct sim_block **blocks_new(uint64_t count)
{
	struct sim_block **blocks = malloc(count * sizeof(struct sim_block *));

	for (uint64_t b = 0; blocks && b < count; b++)
		blocks[b] = &zeros;
	if (blocks)
		zeros.references += count;
	return blocks;
}

void blocks_free(struct sim_block **blocks, uint64_t count)
{
	for (uint64_t b = 0; blocks && b < count; b++)
		put(blocks[b]);
	free(blocks);
}

/* Gives a changed block a copy that images can share. 0 or -ENOMEM. */
static int keep(struct sim_medium *medium, uint64_t b)
{
	struct sim_block *block = malloc(sizeof(*block));

	if (!block)
		return -ENOMEM;
	block->references = 1;
	memcpy(block->bytes, medium->bytes + b * BLOCK_SIZE, BLOCK_SIZE);
	medium->kept[b] = block;
	return 0;
}

int medium_save(struct sim_medium *medium, struct sim_block **image)
{
	for (uint64_t b = 0; b < medium->count; b++) {
		if (!medium->kept[b] && keep(medium, b))
			return -ENOMEM;
		if (image[b] != medium->kept[b])
			set(&image[b], medium->kept[b]);
	}
	return 0;
}

void medium_restore(struct sim_medium *medium, struct sim_block *const *image)
{
	for (uint64_t b = 0; b < medium->count; b++) {
		if (image[b] == medium->kept[b])
			continue;
		memcpy(medium->bytes + b * BLOCK_SIZE, image[b]->bytes, BLOCK_SIZE);
		set(&medium->kept[b], image[b]);
	}
}

/* --- a medium ----------------------------------------------------------------------------- */

/*
 * Much of a large one is never written: that takes no memory, nor does a sanitizer mark it as
 * usable byte by byte. A small one comes from malloc(), which has it at hand.
 */
static void *zeros_new(uint64_t size)
{
	void *bytes;

	if (size < LARGE)
		return calloc(1, size);
	bytes = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return bytes == MAP_FAILED ? NULL : bytes;
}

static void zeros_free(void *bytes, uint64_t size)
{
	if (size < LARGE)
		free(bytes);
	else if (bytes)
		munmap(bytes, size);
}

int medium_init(struct sim_medium *medium, uint64_t size)
{
	medium->count = size / BLOCK_SIZE;
	medium->bytes = zeros_new(size);
	medium->kept = blocks_new(medium->count);
	return medium->bytes && medium->kept ? 0 : -ENOMEM;
}

void medium_free(struct sim_medium *medium)
{
	zeros_free(medium->bytes, medium->count * BLOCK_SIZE);
	blocks_free(medium->kept, medium->count);
}

void medium_store(struct sim_medium *medium, uint64_t offset, const void *bytes, uint64_t length)
{
	if (length == 0)
		return;
	memcpy(medium->bytes + offset, bytes, length);
	for (uint64_t b = offset / BLOCK_SIZE; b <= (offset + length - 1) / BLOCK_SIZE; b++) {
		put(medium->kept[b]);
		medium->kept[b] = NULL;
	}
}
