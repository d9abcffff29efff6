/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Emptying segments of a sealed volume. Its extents cannot be replaced, since its image is final;
 * the pool is told where their bytes are now (pool_remap()). All extents are looked through once
 * for those in any of the segments; runs of blocks that they cover are written again, in order, to
 * a stream of their own, so that what lay together lies together. Segments that earlier moves have
 * filled are found by the remaps that name them.
 *
 * Segment by segment it is done or not; what a failure leaves appended is given up. A segment that
 * cannot be moved does not keep the others.
 */
#include "volume/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "common/log.h"

#define SCAN_ROWS 4096u /* looked at in one view */
#define RUNS_FIRST 256u
#define RUNS_MAX (1u << 20) /* in memory at a time */

/* Blocks of a segment that are needed; then where they are. */
struct run {
	uint64_t segment, offset, length;
	uint64_t live; /* bytes of it that extents name */
};

struct sealed {
	struct volume *volume;
	const uint64_t *segments; /* in order */
	unsigned segment_count;
	const struct compact_pace *pace;
	uint64_t ino, at; /* looked through up to here */
	bool end;
	struct stream *stream;
	void *buffer;
	struct run *runs;
	unsigned count, room;
	uint64_t segment; /* the one that is being moved */
	struct moved_run *moved;
	unsigned moved_count, moved_room;
};

/* --- runs ------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct run *x = a, *y = b;

	if (x->segment != y->segment)
		return x->segment < y->segment ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* In order, and joined where they touch. */
static void runs_join(struct sealed *s)
{
	unsigned n = 0;

	qsort(s->runs, s->count, sizeof(*s->runs), by_place);
	for (unsigned i = 0; i < s->count; i++) {
		struct run *last = n ? &s->runs[n - 1] : NULL, *run = &s->runs[i];

		if (!last || last->segment != run->segment ||
			last->offset + last->length < run->offset) {
			s->runs[n++] = *run;
			continue;
		}
		if (run->offset + run->length > last->offset + last->length)
			last->length = run->offset + run->length - last->offset;
		last->live += run->live;
	}
	s->count = n;
}

static int runs_grow(struct sealed *s)
{
	unsigned room = s->room ? 2 * s->room : RUNS_FIRST;
	struct run *runs;

	if (s->count)
		runs_join(s);
	if (s->count < s->room / 2)
		return 0;
	runs = room > RUNS_MAX ? NULL : realloc(s->runs, room * sizeof(*runs));
	if (!runs)
		return -ENOMEM;
	s->runs = runs;
	s->room = room;
	return 0;
}

static int run_add(struct sealed *s, uint64_t segment, uint64_t offset, uint64_t length, bool named)
{
	uint64_t from = offset / BLOCK_SIZE * BLOCK_SIZE;
	uint64_t to = (offset + length + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
	int r = s->count == s->room ? runs_grow(s) : 0;

	if (!r)
		s->runs[s->count++] = (struct run){segment, from, to - from, named ? length : 0};
	return r;
}

/* --- finding ---------------------------------------------------------------------------------- */

static int look(struct sealed *s, struct txn *view)
{
	struct extent extent;
	uint64_t at;
	int r = extent_next(s->volume, view, s->ino, s->at, &at, &extent);

	if (!r) {
		s->at = at + extent.length;
		return segments_have(s->segments, s->segment_count, extent.segment)
			       ? run_add(s, extent.segment, extent.offset, extent.length, true)
			       : 0;
	}
	return r == -ENOENT ? extents_of_next(s->volume, view, &s->ino, &s->at, &s->end) : r;
}

static int scan(struct sealed *s)
{
	struct txn *view;
	int r = view_begin(s->volume->env, &view);

	if (r)
		return r;
	for (unsigned i = 0; !r && i < SCAN_ROWS && !s->end; i++)
		r = look(s, view);
	txn_abort(view);
	return r;
}

static int add_remapped(void *data, uint64_t offset, uint64_t length)
{
	struct sealed *s = data;

	return run_add(s, s->segment, offset, length, false);
}

static int find(struct sealed *s)
{
	int r = 0;

	while (!r && !s->end)
		r = scan(s);
	for (unsigned i = 0; !r && i < s->segment_count; i++) {
		s->segment = s->segments[i];
		r = pool_each_remapped(s->volume->pool, s->segment, add_remapped, s);
	}
	if (!r && s->count)
		runs_join(s);
	return r;
}

/* --- moving ----------------------------------------------------------------------------------- */

static void give_up(struct sealed *s)
{
	for (unsigned i = 0; i < s->moved_count; i++)
		pool_abandon_extents(s->volume->pool, &s->moved[i].to, 1);
	s->moved_count = 0;
}

static int note_moved(struct sealed *s, uint64_t offset, const struct extent *to)
{
	struct moved_run *last = s->moved_count ? &s->moved[s->moved_count - 1] : NULL;

	if (last && last->offset + last->to.length == offset && last->to.segment == to->segment &&
		last->to.offset + last->to.length == to->offset) {
		last->to.length += to->length;
		return 0;
	}
	if (s->moved_count == s->moved_room) {
		unsigned room = s->moved_room ? 2 * s->moved_room : RUNS_FIRST;
		struct moved_run *moved = realloc(s->moved, room * sizeof(*moved));

		if (!moved)
			return -ENOMEM;
		s->moved = moved;
		s->moved_room = room;
	}
	s->moved[s->moved_count++] = (struct moved_run){offset, *to};
	return 0;
}

static int append(struct sealed *s, uint64_t offset, size_t length)
{
	struct iovec iov = {s->buffer, length};
	struct extent fresh[APPEND_EXTENTS];
	unsigned count = APPEND_EXTENTS, noted = 0;
	int r = stream_append(s->stream, &iov, 1, length, APPEND_RESERVED, fresh, &count);

	if (r)
		return r;
	for (; !r && noted < count; noted += !r) {
		r = note_moved(s, offset, &fresh[noted]);
		offset += fresh[noted].length;
	}
	if (r)
		pool_abandon_extents(s->volume->pool, fresh + noted, count - noted);
	return r;
}

/* It stays where it is, which does not keep the others; or somebody else has emptied it. */
static int leave(struct sealed *s, uint64_t segment, const char *why)
{
	if (pool_spare_segment(s->volume->pool, segment))
		log_error("volume %s: segment %llx stays where it is: %s", s->volume->row.name,
			(unsigned long long)segment, why);
	return -ENOENT;
}

static int copy(struct sealed *s, const struct run *run)
{
	uint64_t done = 0;
	int r = 0;

	while (!r && done < run->length) {
		uint64_t length = run->length - done;
		struct read_part part;

		length = length < APPEND_MAX ? length : APPEND_MAX;
		part = (struct read_part){{run->segment, run->offset + done, length}, s->buffer};
		r = s->pace ? s->pace->wait(s->pace->data, length) : 0;
		if (!r)
			r = pool_read_wait(s->volume->pool, &part, 1);
		if (r == -EIO)
			return leave(s, run->segment, "not all of it can be read");
		if (!r)
			r = append(s, run->offset + done, (size_t)length);
		done += length;
	}
	return r;
}

/* What is refused is refused because of the segment itself. */
static int remap(struct sealed *s, uint64_t segment, uint64_t live)
{
	int r = pool_remap(s->volume->pool, segment, live, s->moved, s->moved_count);

	if (!r)
		s->moved_count = 0;
	if (r == -E2BIG)
		return leave(s, segment, "it is in too many pieces");
	if (r == -EBADMSG)
		return leave(s, segment, "more of it is live than is named");
	return r;
}

/* Those of one segment. -ENOENT: it is left. */
static int move_runs(struct sealed *s, const struct run *runs, unsigned count)
{
	uint64_t live = 0;
	int r = 0;

	if (count > pool_remap_most(s->volume->pool))
		return leave(s, runs[0].segment, "it is in too many pieces");
	for (unsigned i = 0; !r && i < count; i++) {
		live += runs[i].live;
		r = copy(s, &runs[i]);
	}
	if (!r)
		r = remap(s, runs[0].segment, live);
	give_up(s);
	return r;
}

static int move_all(struct sealed *s)
{
	int r = 0;

	for (unsigned i = 0, n; !r && i < s->count; i += n) {
		for (n = 1; i + n < s->count && s->runs[i + n].segment == s->runs[i].segment; n++)
			;
		r = move_runs(s, s->runs + i, n);
		if (r == -ENOENT)
			r = 0;
	}
	return r;
}

static int with_stream(struct sealed *s)
{
	int r = stream_open(s->volume->pool, s->volume->row.id, &s->stream);

	if (r)
		return r;
	r = move_all(s);
	stream_close(s->stream);
	return r;
}

int compact_sealed(struct volume *volume, const uint64_t *segments, unsigned count,
	const struct compact_pace *pace)
{
	struct sealed s = {.volume = volume,
		.segments = segments,
		.segment_count = count,
		.pace = pace,
		.buffer = buffer_alloc(volume->engine, APPEND_MAX)};
	int r = s.buffer ? find(&s) : -ENOMEM;

	if (!r && s.count)
		r = with_stream(&s);
	free(s.runs);
	free(s.moved);
	if (s.buffer)
		buffer_free(volume->engine, s.buffer, APPEND_MAX);
	return r;
}
