/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Saving and restoring a world. */
#include "device/sim_world.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct disk_image {
	struct sim_disk *disk;
	struct sim_block **blocks;
	uint64_t count; /* of blocks */
	struct write_list cache;
	struct sim_disk_state state;
};

struct sim_image {
	struct sim_world *world;
	struct sim_chance now;
	bool power_off;
	struct write_list late;
	unsigned count;
	struct disk_image disks[];
};

void sim_image_free(struct sim_image *image)
{
	if (!image)
		return;
	for (unsigned i = 0; i < image->count; i++) {
		list_free(&image->disks[i].cache);
		blocks_free(image->disks[i].blocks, image->disks[i].count);
	}
	list_free(&image->late);
	free(image);
}

static struct sim_image *image_new(struct sim_world *world)
{
	struct sim_image *image;
	unsigned count = 0;

	for (struct sim_disk *disk = world->disks; disk; disk = disk->next)
		count++;
	image = calloc(1, sizeof(*image) + count * sizeof(image->disks[0]));
	if (!image)
		return NULL;
	image->world = world;
	for (struct sim_disk *disk = world->disks; disk; disk = disk->next) {
		struct disk_image *i = &image->disks[image->count++];

		i->disk = disk;
		i->count = disk->medium.count;
		i->blocks = blocks_new(i->count);
		if (!i->blocks) {
			sim_image_free(image);
			return NULL;
		}
	}
	return image;
}

static int save(struct sim_world *world, struct sim_image **image)
{
	struct sim_image *i = *image ? *image : image_new(world);
	int result;

	assert(!i || i->world == world);
	*image = i;
	if (!i)
		return -ENOMEM;
	i->now = world->now;
	i->power_off = world->power_off;
	result = list_copy(&i->late, &world->late);
	for (unsigned n = 0; n < i->count && !result; n++) {
		struct disk_image *to = &i->disks[n];
		struct sim_disk *from = to->disk;

		to->state = from->state;
		result = medium_save(&from->medium, to->blocks);
		if (!result)
			result = list_copy(&to->cache, &from->cache);
	}
	return result;
}

int sim_save(struct sim_world *world, struct sim_image **image)
{
	assert(world->outstanding == 0);
	return save(world, image);
}

int sim_save_cut(struct sim_world *world, struct sim_image **image)
{
	int result;

	assert(!world->power_off);
	sim_caches_take_in_flight(world);
	world->power_off = true;
	result = save(world, image);
	world->power_off = false;
	sim_caches_leave_in_flight(world);
	return result;
}

static void host_reset(struct sim_host *host)
{
	host->cut_off = false;
	host->paused = false;
	host->hold_late = false;
	host->orders = (struct sim_orders){0};
	host->generation = ++host->world->generations;
}

int sim_restore(struct sim_world *world, const struct sim_image *image)
{
	int result;

	assert(world->outstanding == 0 && image->world == world);
	world->power_off = image->power_off;
	world->now = image->now;
	for (struct sim_host *host = world->hosts; host; host = host->next)
		host_reset(host);
	result = list_copy(&world->late, &image->late);
	for (unsigned n = 0; n < image->count && !result; n++) {
		const struct disk_image *from = &image->disks[n];
		struct sim_disk *to = from->disk;

		medium_restore(&to->medium, from->blocks);
		to->state = from->state;
		result = list_copy(&to->cache, &from->cache);
	}
	return result;
}
