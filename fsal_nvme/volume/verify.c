/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Verifying a volume: the rows against each other (verify_rows.c), the bytes of all files against
 * their checksums, the live bytes of segments against the extents.
 */
#include "volume/verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PARTS 64u
#define PART_MAX (1u << 20) /* bytes */
#define ROUND_MAX (16u << 20)

/* --- bytes ------------------------------------------------------------------------------------ */

/* One read of many files' extents; part i belongs to ino[i], at at[i]. */
struct round {
	uint64_t next_ino, next_at; /* where to go on */
	bool end;
	uint64_t bad_ino; /* the last one that was reported */
	unsigned count;
	uint64_t bytes;
	uint64_t ino[PARTS], at[PARTS];
	struct read_part parts[PARTS];
};

/* Adds the next extent at or after the place where it stands. */
static int add_next(struct verify *verify, struct txn *view, struct round *round)
{
	struct bytes found, row;
	struct extent extent;
	struct key key;
	uint64_t at;
	int r = extent_next(verify->volume, view, round->next_ino, round->next_at, &at, &extent);

	if (!r && is_kept(&extent)) {
		round->next_at = at + extent.length;
		return 0;
	}
	if (!r) {
		if (extent.length > PART_MAX)
			extent.length = PART_MAX;
		round->ino[round->count] = round->next_ino;
		round->at[round->count] = at;
		round->parts[round->count++] = (struct read_part){extent, NULL};
		round->bytes += extent.length;
		round->next_at = at + extent.length;
		return 0;
	}
	if (r != -ENOENT && r != -EIO)
		return r;
	/* A broken extent was reported with the rows; the rest of that file cannot be found. */
	r = txn_seek(view, verify->volume->env, key_pair(&key, ROW_EXTENT, round->next_ino + 1, 0),
		&found, &row);
	round->end = r == -ENOENT ||
		     (!r && !key_is_pair(found, ROW_EXTENT, &round->next_ino, &round->next_at));
	return round->end ? 0 : r;
}

static int gather(struct verify *verify, struct round *round)
{
	struct txn *view;
	int r = view_begin(verify->volume->env, &view);

	if (r)
		return r;
	round->count = 0;
	round->bytes = 0;
	while (!r && !round->end && round->count < PARTS && round->bytes < ROUND_MAX)
		r = add_next(verify, view, round);
	txn_abort(view);
	return r;
}

/* Whether the file still has these bytes where they could not be read. */
static bool is_still_there(struct verify *verify, const struct round *round, unsigned i)
{
	const struct extent *old = &round->parts[i].extent;
	struct extent now;
	struct txn *view;
	uint64_t at;
	int r;

	if (view_begin(verify->volume->env, &view))
		return true;
	r = extent_next(verify->volume, view, round->ino[i], round->at[i], &at, &now);
	txn_abort(view);
	return !r && at == round->at[i] && now.segment == old->segment && now.offset == old->offset;
}

static void report_bad(struct verify *verify, struct round *round, uint64_t ino)
{
	const struct volume_verify_options *options = verify->options;
	char path[4096];

	if (ino == round->bad_ino)
		return;
	round->bad_ino = ino;
	verify->report->bad_files++;
	if (!options || !options->bad)
		return;
	if (volume_path(verify->volume, ino, path, sizeof(path)))
		strcpy(path, "(a file without a name)");
	options->bad(options->data, path, -EIO);
}

static int read_alone(struct verify *verify, struct round *round)
{
	for (unsigned i = 0; i < round->count; i++) {
		int r = pool_read_wait(verify->volume->pool, &round->parts[i], 1);

		if (r && r != -EIO)
			return r;
		if (r && is_still_there(verify, round, i))
			report_bad(verify, round, round->ino[i]);
	}
	return 0;
}

static int read_round(struct verify *verify, struct round *round)
{
	const struct volume_verify_options *options = verify->options;
	int r = round->count ? pool_read_wait(verify->volume->pool, round->parts, round->count) : 0;

	if (r == -EIO)
		r = read_alone(verify, round);
	if (r)
		return r;
	verify->report->bytes += round->bytes;
	if (!options || !options->progress ||
		options->progress(options->data, verify->report->bytes, verify->total))
		return 0;
	return -EINTR;
}

static int verify_bytes(struct verify *verify)
{
	struct round *round = calloc(1, sizeof(*round));
	int r = round ? 0 : -ENOMEM;

	while (!r && !round->end) {
		r = gather(verify, round);
		if (!r)
			r = read_round(verify, round);
	}
	free(round);
	return r;
}

int volume_verify(struct volume *volume, const struct volume_verify_options *options,
	struct volume_verify_report *report, struct error *error)
{
	struct verify verify = {.volume = volume, .options = options, .report = report};
	int r;

	memset(report, 0, sizeof(*report));
	r = verify_rows(&verify);
	if (!r)
		r = verify_bytes(&verify);
	if (r == -EINTR)
		return error_set(error, r, volume->row.name, "interrupted: not all of it was read");
	if (r)
		return error_set(
			error, r, volume->row.name, "cannot be verified: %s", strerror(-r));
	return 0;
}

/* --- live bytes ------------------------------------------------------------------------------- */

struct tally {
	uint64_t segment, live;
};

/* A hash table of segments, open addressing; 0 is no segment. */
struct tallies {
	struct tally *slots;
	uint64_t room, count; /* room: a power of two */
	uint64_t wrong, seen;
	uint64_t kept; /* bytes in no segment */
};

static struct tally *tally_of(struct tallies *t, uint64_t segment)
{
	uint64_t i = segment * 0x9e3779b97f4a7c15ull >> 20;

	while (t->slots[i & (t->room - 1)].segment &&
		t->slots[i & (t->room - 1)].segment != segment)
		i++;
	return &t->slots[i & (t->room - 1)];
}

static int tallies_grow(struct tallies *t)
{
	struct tallies wide = {
		.room = t->room ? 2 * t->room : 64, .count = t->count, .kept = t->kept};

	wide.slots = calloc(wide.room, sizeof(*wide.slots));
	if (!wide.slots)
		return -ENOMEM;
	for (uint64_t i = 0; i < t->room; i++) {
		if (t->slots[i].segment)
			*tally_of(&wide, t->slots[i].segment) = t->slots[i];
	}
	free(t->slots);
	*t = wide;
	return 0;
}

static int tally(struct tallies *t, const struct extent *extent)
{
	struct tally *at;

	if (2 * t->count >= t->room && tallies_grow(t))
		return -ENOMEM;
	at = tally_of(t, extent->segment);
	t->count += !at->segment;
	at->segment = extent->segment;
	at->live += extent->length;
	return 0;
}

static int compare(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	struct tallies *t = data;
	const struct tally *at = t->room ? tally_of(t, segment) : NULL;
	uint64_t counted = at ? at->live : 0;

	t->seen += counted != 0;
	t->wrong += counted != live;
	return 0;
}

static int tally_all(struct volume *volume, struct txn *txn, struct tallies *t)
{
	struct bytes found, row;
	struct extent extent;
	uint64_t ino = 0, at = 0;
	struct key key;
	int r;

	while (!(r = txn_seek(
			 txn, volume->env, key_pair(&key, ROW_EXTENT, ino, at), &found, &row)) &&
		key_is_pair(found, ROW_EXTENT, &ino, &at)) {
		if (extent_decode(row, at, &extent) || !extent.segment)
			return row_is_bad(volume, ROW_EXTENT, ino);
		if (is_kept(&extent))
			t->kept += extent.length;
		else
			r = tally(t, &extent);
		if (r)
			return r;
		at++;
	}
	return r == -ENOENT ? 0 : r;
}

/* What is kept for the volume against its extents. */
static int check_kept(struct volume *volume, struct tallies *t)
{
	struct txn *view;
	uint64_t bytes;
	int r = view_begin(pool_env(volume->pool), &view);

	if (r)
		return r;
	r = kept_get(view, volume->row.id, &bytes);
	txn_abort(view);
	t->wrong += bytes != t->kept;
	return r;
}

/* In a transaction, where there may be one: nothing changes meanwhile. */
int volume_check_live(struct volume *volume, uint64_t *wrong)
{
	struct tallies t = {0};
	struct txn *txn;
	int r = volume_may_change(volume) ? txn_begin(volume->pool, volume->env, &txn) : -EROFS;

	if (r == -EROFS)
		r = view_begin(volume->env, &txn);
	if (r)
		return r;
	r = tally_all(volume, txn, &t);
	if (!r)
		r = pool_each_segment(volume->pool, volume->row.id, compare, &t);
	if (!r)
		r = check_kept(volume, &t);
	txn_abort(txn);
	/* Extents in segments that the pool does not know of are wrong too. */
	*wrong = t.wrong + (t.count - t.seen);
	free(t.slots);
	return r;
}
