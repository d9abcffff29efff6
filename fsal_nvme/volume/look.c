/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What lies where in a file: looked for as a read looks, in both overlays and a view of the
 * environment, under the file's lock.
 */
#include "volume/internal.h"

#include <errno.h>

static void cut(struct stretch *stretch, uint64_t end)
{
	if (end < stretch->end)
		stretch->end = end;
}

static enum lies lies(const struct extent *extent)
{
	return is_hole(extent) ? LIES_HOLE : is_kept(extent) ? LIES_KEPT : LIES_DATA;
}

/* Whether the overlay has byte `at`: then the stretch is its. Else its end is cut to where the
 * overlay has something. */
static bool stretch_of_overlay(const struct overlay *o, uint64_t at, struct stretch *stretch)
{
	unsigned i;

	if (!o)
		return false;
	if (at < overlay_length(o)) {
		stretch->what = LIES_DATA;
		cut(stretch, overlay_length(o));
		return true;
	}
	i = overlay_find(o, at);
	if (i == o->count || o->at[i] >= o->limit || at >= o->limit)
		return false;
	if (o->at[i] > at) {
		cut(stretch, o->at[i]);
		return false;
	}
	stretch->what = lies(&o->extents[i]);
	cut(stretch, o->at[i] + o->extents[i].length);
	cut(stretch, o->limit);
	return true;
}

static int stretch_of_environment(const struct look *look, uint64_t at, struct stretch *stretch)
{
	const struct inode *inode = &look->inode;
	struct extent extent;
	uint64_t found;
	int r;

	if (!inode->extents) {
		if (at < inode->bytes) {
			stretch->what = LIES_DATA;
			cut(stretch, inode->bytes);
		}
		return 0;
	}
	r = extent_next(look->file->volume, look->view, inode->ino, at, &found, &extent);
	if (r || found >= inode->trim)
		return r == -ENOENT ? 0 : r;
	if (found > at) {
		cut(stretch, found);
		return 0;
	}
	stretch->what = lies(&extent);
	cut(stretch, found + extent.length);
	cut(stretch, inode->trim);
	return 0;
}

int look_stretch(const struct look *look, uint64_t at, struct stretch *stretch)
{
	*stretch = (struct stretch){.what = LIES_HOLE, .end = UINT64_MAX};
	if (stretch_of_overlay(look->file->active, at, stretch) ||
		stretch_of_overlay(look->file->committing, at, stretch))
		return 0;
	return stretch_of_environment(look, at, stretch);
}

int look_begin(struct volume_file *file, struct look *look)
{
	struct volume *volume = file->volume;
	int r;

	look->file = file;
	r = view_begin(volume->env, &look->view);
	if (r)
		return r;
	r = inode_get(volume, look->view, file->ino, &look->inode);
	if (r)
		txn_abort(look->view);
	return r;
}

void look_end(struct look *look)
{
	txn_abort(look->view);
}
