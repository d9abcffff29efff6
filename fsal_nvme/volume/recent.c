/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Inodes of directories that were changed lately: who changes names asks for a directory's
 * attributes before and after, and reads its row.
 *
 * What stands here is as the environment has it. A transaction takes out the directories that it
 * changes before it commits, under its locks; and tells, when it has, what they are now. A place
 * keeps the LSN of the last one that took something out, so that one before it tells nothing.
 */
#include "volume/internal.h"

static struct recent_directory *place_of(struct recent *recent, uint64_t ino)
{
	return &recent->places[ino % RECENT_MAX];
}

void recent_init(struct recent *recent)
{
	pthread_mutex_init(&recent->lock, NULL);
}

void recent_destroy(struct recent *recent)
{
	pthread_mutex_destroy(&recent->lock);
}

bool recent_get(struct recent *recent, uint64_t ino, struct inode *inode)
{
	const struct recent_directory *place = place_of(recent, ino);
	bool found;

	pthread_mutex_lock(&recent->lock);
	found = ino && place->inode.ino == ino;
	if (found)
		*inode = place->inode;
	pthread_mutex_unlock(&recent->lock);
	return found;
}

void recent_take_out(struct recent *recent, const struct touched *touched, uint64_t lsn)
{
	unsigned count = touched->count;

	pthread_mutex_lock(&recent->lock);
	for (unsigned i = 0; i < (count > TOUCHED_MAX ? RECENT_MAX : count); i++) {
		struct recent_directory *place = count > TOUCHED_MAX
							 ? &recent->places[i]
							 : place_of(recent, touched->inodes[i].ino);

		place->inode.ino = 0;
		place->lsn = lsn;
	}
	pthread_mutex_unlock(&recent->lock);
}

void recent_tell(struct recent *recent, const struct touched *touched, uint64_t lsn)
{
	pthread_mutex_lock(&recent->lock);
	for (unsigned i = 0; touched->count <= TOUCHED_MAX && i < touched->count; i++) {
		const struct inode *inode = &touched->inodes[i];
		struct recent_directory *place = place_of(recent, inode->ino);

		if (inode->nlink && place->lsn <= lsn)
			*place = (struct recent_directory){lsn, *inode};
	}
	pthread_mutex_unlock(&recent->lock);
}

void touched_note(struct touched *touched, const struct inode *inode)
{
	unsigned i = 0;

	if (inode->type != VOLUME_DIRECTORY || touched->count > TOUCHED_MAX)
		return;
	while (i < touched->count && touched->inodes[i].ino != inode->ino)
		i++;
	if (i < TOUCHED_MAX)
		touched->inodes[i] = *inode;
	if (i == touched->count)
		touched->count++;
}
