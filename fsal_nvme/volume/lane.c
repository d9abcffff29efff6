/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Lanes: the streams of a volume. Small files share one; a file that has grown beyond some size
 * gets one of its own while it is being written. When it is done its lane is spare, and the next
 * big file goes on where the last one ended: closing a stream pads a row and leaves the rest of a
 * segment empty, so it is done only to lanes that have been idle for long.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stdlib.h>

#define SECOND 1000000000ull
#define IDLE_STEAL SECOND /* a lane that another file may take over */
#define IDLE_LEAVE (5 * SECOND) /* its file has stopped writing */
#define IDLE_CLOSE (60 * SECOND)

struct lane {
	struct lane *next;
	struct stream *stream;
	struct lane_user *owner; /* NULL: spare */
	unsigned busy; /* appends under way */
	uint64_t used; /* clock */
};

/* All below, up to lane_append(), under lanes_lock. */

static int lane_open(struct volume *volume, struct lane **out)
{
	struct lane *lane = calloc(1, sizeof(*lane));
	int r;

	*out = NULL;
	if (!lane)
		return -ENOMEM;
	r = stream_open(volume->pool, volume->row.id, &lane->stream);
	if (r) {
		free(lane);
		return r;
	}
	*out = lane;
	return 0;
}

static void own(struct lane *lane, struct lane_user *user)
{
	if (lane->owner)
		lane->owner->lane = NULL;
	lane->owner = user;
	if (user)
		user->lane = lane;
}

/* A spare lane, or the one that has been idle longest of those idle for `idle`. */
static struct lane *lane_take(struct volume *volume, bool spare, uint64_t idle)
{
	uint64_t now = engine_clock(volume->engine);
	struct lane *best = NULL;

	for (struct lane *lane = volume->lanes; lane; lane = lane->next) {
		if (lane->busy || (spare && lane->owner) || now - lane->used < idle)
			continue;
		if (!best || lane->used < best->used)
			best = lane;
	}
	return best;
}

/* One for the user alone; NULL when there is none to be had. */
static struct lane *lane_of_its_own(struct volume *volume, struct lane_user *user)
{
	struct lane *lane = lane_take(volume, true, 0);
	int r = 0;

	if (!lane) {
		r = lane_open(volume, &lane);
		if (lane) {
			lane->next = volume->lanes;
			volume->lanes = lane;
		}
	}
	if (r == -EMFILE)
		lane = lane_take(volume, false, IDLE_STEAL);
	if (lane)
		own(lane, user);
	return lane;
}

static int lane_choose(
	struct volume *volume, struct lane_user *user, size_t length, struct lane **out)
{
	uint64_t threshold = volume->volumes->options.stream_bytes;
	struct lane *lane = user->lane;
	int r = 0;

	if (!lane && user->written + length >= threshold)
		lane = lane_of_its_own(volume, user);
	if (!lane && !volume->shared)
		r = lane_open(volume, &volume->shared);
	if (!lane)
		lane = volume->shared;
	/* Better in company than not at all. */
	if (!lane && r == -EMFILE)
		lane = volume->lanes;
	*out = lane;
	return lane ? 0 : r;
}

static int choose(struct volume *volume, struct lane_user *user, size_t length, struct lane **out)
{
	int r;

	pthread_mutex_lock(&volume->lanes_lock);
	r = lane_choose(volume, user, length, out);
	if (!r)
		(*out)->busy++;
	pthread_mutex_unlock(&volume->lanes_lock);
	return r;
}

/* Has other volumes close what they do not need. */
static void make_lanes(struct volume *volume)
{
	struct volumes *volumes = volume->volumes;

	pthread_mutex_lock(&volumes->lock);
	for (struct volume *other = volumes->first; other; other = other->next)
		lanes_trim(other, other != volume);
	pthread_mutex_unlock(&volumes->lock);
}

int lane_append(struct volume *volume, struct lane_user *user, const struct iovec *iov,
	unsigned iov_count, size_t length, unsigned flags, struct extent *extents, unsigned *count)
{
	struct lane *lane;
	int r = choose(volume, user, length, &lane);

	if (r == -EMFILE) {
		make_lanes(volume);
		r = choose(volume, user, length, &lane);
	}
	if (r)
		return r;
	if (lane != volume->shared)
		flags &= ~(unsigned)APPEND_PACKED;
	r = stream_append(lane->stream, iov, iov_count, length, flags, extents, count);
	pthread_mutex_lock(&volume->lanes_lock);
	lane->busy--;
	lane->used = engine_clock(volume->engine);
	if (!r)
		user->written += length;
	pthread_mutex_unlock(&volume->lanes_lock);
	return r;
}

void lane_leave(struct volume *volume, struct lane_user *user)
{
	pthread_mutex_lock(&volume->lanes_lock);
	if (user->lane)
		own(user->lane, NULL);
	user->lane = NULL;
	user->written = 0;
	pthread_mutex_unlock(&volume->lanes_lock);
}

static bool may_close(const struct lane *lane, uint64_t now, unsigned spare, unsigned limit)
{
	if (lane->busy || lane->owner)
		return false;
	return spare > limit || now - lane->used >= IDLE_CLOSE;
}

/* Takes lanes that are not needed out of the list. */
static struct lane *lanes_unneeded(struct volume *volume, unsigned limit)
{
	uint64_t now = engine_clock(volume->engine);
	struct lane *unneeded = NULL, **place;
	unsigned spare = 0;

	for (struct lane *lane = volume->lanes; lane; lane = lane->next) {
		if (lane->owner && !lane->busy && now - lane->used >= IDLE_LEAVE)
			own(lane, NULL);
		spare += !lane->owner;
	}
	for (place = &volume->lanes; *place;) {
		struct lane *lane = *place;

		if (!may_close(lane, now, spare, limit)) {
			place = &lane->next;
			continue;
		}
		*place = lane->next;
		lane->next = unneeded;
		unneeded = lane;
		spare--;
	}
	return unneeded;
}

static void lanes_close(struct lane *lanes)
{
	while (lanes) {
		struct lane *next = lanes->next;

		stream_close(lanes->stream);
		free(lanes);
		lanes = next;
	}
}

void lanes_trim(struct volume *volume, bool all)
{
	unsigned limit = all ? 0 : volume->volumes->options.spare_streams;
	struct lane *unneeded;

	pthread_mutex_lock(&volume->lanes_lock);
	unneeded = lanes_unneeded(volume, limit);
	pthread_mutex_unlock(&volume->lanes_lock);
	lanes_close(unneeded);
}

static struct lane *lanes_take_all(struct volume *volume)
{
	struct lane *lanes;

	pthread_mutex_lock(&volume->lanes_lock);
	lanes = volume->lanes;
	for (struct lane *lane = lanes; lane; lane = lane->next)
		own(lane, NULL);
	if (volume->shared) {
		volume->shared->next = lanes;
		lanes = volume->shared;
	}
	volume->shared = NULL;
	volume->lanes = NULL;
	pthread_mutex_unlock(&volume->lanes_lock);
	return lanes;
}

void lanes_close_all(struct volume *volume)
{
	lanes_close(lanes_take_all(volume));
}

/* The pool, which is about to go, has its streams in a list of its own. */
void lanes_forget(struct volume *volume)
{
	struct lane *lanes = lanes_take_all(volume), *next;

	for (; lanes; lanes = next) {
		next = lanes->next;
		free(lanes);
	}
}
