/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Lanes: the streams of all volumes of a pool. Small files of a volume share one; a file that has
 * grown beyond some size gets one of its own while it is being written. When it is done its lane is
 * spare, and the next big file goes on where the last one ended: closing a stream pads a row and
 * leaves the rest of a segment empty, so it is done only to spare lanes that have been idle for
 * long, and where streams are short.
 *
 * The pool has a limited number of streams. At the limit a big file has to do with its volume's
 * shared lane; a volume that has no lane at all gets the stream of the lane, whichever volume's,
 * that has been idle longest, and waits when there is an append under way on each.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stdlib.h>

#define SECOND 1000000000ull
#define WHOLE_EVERY (16u << 20) /* bytes of a file for which a row may be left unfilled */
#define IDLE_STEAL SECOND /* a lane that another file of the volume may take over */
#define IDLE_LEAVE (5 * SECOND) /* its file has stopped writing */
#define IDLE_CLOSE (60 * SECOND)

struct lane {
	struct lane *next; /* volumes->lanes */
	struct volume *volume;
	struct stream *stream;
	struct lane_user *owner; /* NULL: spare, or the shared one */
	unsigned busy; /* appends under way */
	uint64_t used; /* clock */
};

/* All below, up to choose(), under lanes_lock. */

static bool is_shared(const struct lane *lane)
{
	return lane == lane->volume->shared;
}

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
	lane->volume = volume;
	lane->next = volume->volumes->lanes;
	volume->volumes->lanes = lane;
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

/* Takes it out of the list. */
static void lane_remove(struct lane *lane)
{
	struct lane **place = &lane->volume->volumes->lanes;

	while (*place != lane)
		place = &(*place)->next;
	*place = lane->next;
	own(lane, NULL);
	if (is_shared(lane))
		lane->volume->shared = NULL;
}

/* One that is not busy. Closing a stream waits for nothing. */
static void lane_close(struct lane *lane)
{
	lane_remove(lane);
	stream_close(lane->stream);
	pthread_cond_broadcast(&lane->volume->volumes->lanes_changed);
	free(lane);
}

/* Any lane of the volume; NULL. */
static struct lane *lane_of(const struct volume *volume)
{
	struct lane *lane = volume->volumes->lanes;

	while (lane && lane->volume != volume)
		lane = lane->next;
	return lane;
}

/* --- choosing --------------------------------------------------------------------------------- */

/* Whichever of the two has been idle longer, and for `idle`. */
static struct lane *idler(struct lane *best, struct lane *lane, uint64_t now, uint64_t idle)
{
	if (lane->busy || now - lane->used < idle)
		return best;
	return best && best->used <= lane->used ? best : lane;
}

/* Of the lanes of big files and, with `spare`, only of those that are spare: the one that has been
 * idle longest of those idle for `idle`. */
static struct lane *lane_take(struct volume *volume, bool spare, uint64_t idle)
{
	uint64_t now = engine_clock(volume->engine);
	struct lane *best = NULL;

	for (struct lane *lane = volume->volumes->lanes; lane; lane = lane->next) {
		if (lane->volume == volume && !is_shared(lane) && !(spare && lane->owner))
			best = idler(best, lane, now, idle);
	}
	return best;
}

/* The same of all lanes of all volumes. */
static struct lane *lane_oldest(struct volumes *volumes, uint64_t idle)
{
	uint64_t now = engine_clock(pool_engine(volumes->pool));
	struct lane *best = NULL;

	for (struct lane *lane = volumes->lanes; lane; lane = lane->next)
		best = idler(best, lane, now, idle);
	return best;
}

/* One for the user alone; NULL: it has to do with the shared one. -EMFILE: another one is idle for
 * so long that it is to be closed first. */
static int lane_alone(struct volume *volume, struct lane_user *user, struct lane **out)
{
	struct lane *lane = lane_take(volume, true, 0);
	int r = lane ? 0 : lane_open(volume, &lane);

	if (r == -EMFILE) {
		lane = lane_take(volume, false, IDLE_STEAL);
		if (!lane && lane_oldest(volume->volumes, IDLE_CLOSE))
			return r;
	}
	if (lane)
		own(lane, user);
	*out = lane;
	return 0;
}

static int lane_in_company(struct volume *volume, struct lane **out)
{
	int r = volume->shared ? 0 : lane_open(volume, &volume->shared);

	*out = r == -EMFILE ? lane_of(volume) : volume->shared;
	return *out ? 0 : r;
}

/* -EMFILE: one must be closed first. -EROFS: the volume is sealed, or about to be. */
static int lane_choose(
	struct volume *volume, struct lane_user *user, size_t length, struct lane **out)
{
	uint64_t threshold = volume->volumes->options.stream_bytes;
	int r = 0;

	if (!volume_may_change(volume))
		return -EROFS;
	*out = user->lane;
	if (!*out && user->written + length >= threshold)
		r = lane_alone(volume, user, out);
	return *out || r ? r : lane_in_company(volume, out);
}

/* Closes the lane that has been idle longest, or waits until something has become of one. */
static void make_room(struct volumes *volumes)
{
	struct lane *oldest = lane_oldest(volumes, 0);

	if (oldest)
		lane_close(oldest);
	else
		pthread_cond_wait(&volumes->lanes_changed, &volumes->lanes_lock);
}

/* On a lane of its own a file is linear; a large one may leave a row now and then, so that the next
 * ones need not be copied. */
static unsigned flags_alone(struct lane_user *user, unsigned flags)
{
	flags &= ~(unsigned)APPEND_PACKED;
	if (user->written - user->ended < WHOLE_EVERY)
		return flags;
	user->ended = user->written;
	return flags | APPEND_WHOLE;
}

static int choose(struct volume *volume, struct lane_user *user, size_t length, struct lane **lane,
	unsigned *flags)
{
	struct volumes *volumes = volume->volumes;
	int r;

	pthread_mutex_lock(&volumes->lanes_lock);
	while ((r = lane_choose(volume, user, length, lane)) == -EMFILE)
		make_room(volumes);
	if (!r) {
		(*lane)->busy++;
		if (!is_shared(*lane))
			*flags = flags_alone(user, *flags);
	}
	pthread_mutex_unlock(&volumes->lanes_lock);
	return r;
}

int lane_append(struct volume *volume, struct lane_user *user, struct loan *loan,
	const struct iovec *iov, unsigned iov_count, size_t length, unsigned flags,
	struct extent *extents, unsigned *count)
{
	struct volumes *volumes = volume->volumes;
	struct lane *lane;
	int r = choose(volume, user, length, &lane, &flags);

	if (r)
		return r;
	r = stream_append_lent(lane->stream, loan, iov, iov_count, length, flags, extents, count);
	pthread_mutex_lock(&volumes->lanes_lock);
	lane->used = engine_clock(volume->engine);
	if (!--lane->busy)
		pthread_cond_broadcast(&volumes->lanes_changed);
	if (!r)
		user->written += length;
	pthread_mutex_unlock(&volumes->lanes_lock);
	return r;
}

void lane_leave(struct volume *volume, struct lane_user *user)
{
	struct volumes *volumes = volume->volumes;

	pthread_mutex_lock(&volumes->lanes_lock);
	if (user->lane)
		own(user->lane, NULL);
	user->lane = NULL;
	user->written = user->ended = 0;
	pthread_mutex_unlock(&volumes->lanes_lock);
}

/* --- closing ---------------------------------------------------------------------------------- */

/* Lanes whose file has stopped writing become spare; returns how many are. */
static unsigned count_spare(struct volume *volume, uint64_t now)
{
	unsigned spare = 0;

	for (struct lane *lane = volume->volumes->lanes; lane; lane = lane->next) {
		if (lane->volume != volume || is_shared(lane))
			continue;
		if (lane->owner && !lane->busy && now - lane->used >= IDLE_LEAVE)
			own(lane, NULL);
		spare += !lane->owner;
	}
	return spare;
}

void lanes_trim(struct volume *volume)
{
	unsigned limit = volume->volumes->options.spare_streams, spare;
	uint64_t now = engine_clock(volume->engine);
	struct volumes *volumes = volume->volumes;
	struct lane *lane;

	pthread_mutex_lock(&volumes->lanes_lock);
	spare = count_spare(volume, now);
	while ((lane = lane_take(volume, true, spare > limit ? 0 : IDLE_CLOSE))) {
		lane_close(lane);
		spare--;
	}
	pthread_mutex_unlock(&volumes->lanes_lock);
}

void lanes_close_all(struct volume *volume)
{
	struct volumes *volumes = volume->volumes;
	struct lane *lane;

	pthread_mutex_lock(&volumes->lanes_lock);
	while ((lane = lane_of(volume))) {
		if (lane->busy)
			pthread_cond_wait(&volumes->lanes_changed, &volumes->lanes_lock);
		else
			lane_close(lane);
	}
	pthread_mutex_unlock(&volumes->lanes_lock);
}

/* The pool, which is about to go, has its streams in a list of its own. */
void lanes_forget(struct volume *volume)
{
	struct volumes *volumes = volume->volumes;
	struct lane *lane;

	pthread_mutex_lock(&volumes->lanes_lock);
	while ((lane = lane_of(volume))) {
		lane_remove(lane);
		free(lane);
	}
	pthread_mutex_unlock(&volumes->lanes_lock);
}
