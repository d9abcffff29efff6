/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Pieces of reads, each of one device; read.c tells what becomes of them.
 */
#include "pool/block_cache.h"
#include "pool/read.h"

#define NO_CHECKSUMS "no copy of its checksums can be read"

/*
 * A read's own memory that a device may still write to: at its end the read goes on in `fresh`,
 * with what is right of the old one and the pieces that were rebuilt.
 */
struct late_memory {
	_Atomic unsigned references; /* the read, and each piece that stays for an answer */
	struct engine *engine;
	uint8_t *old, *fresh;
	size_t size;
	pthread_mutex_t lock;
	struct piece *rebuilt;
};

struct piece {
	struct piece *next; /* of the run's, or of those that one rebuild serves */
	struct hedged hedged;
	struct pool_read *read;
	struct late_memory *late; /* it stays for the answer; NULL: nothing of it is the caller's */
	bool given_up; /* it stays for the answer */
	bool stand_in; /* for one whose memory is still to be written to */
	const struct read_part *part;
	struct segment *segment; /* with a reference */
	struct sums_want want;
	struct cut cut;
	uint64_t block; /* first, of the chunk's cells */
	unsigned count; /* blocks */
	unsigned direct_first, direct_end; /* these go straight to the caller's memory ... */
	uint8_t *bounce; /* ... the others in here, in order */
	_Atomic unsigned waiting; /* for bytes, for checksums */
	int sums_result;
	uint64_t bad;
	uint32_t sums[SPAN_BLOCKS];
	struct iovec iov[]; /* one a cell, two for ragged ends */
};

/* --- a piece's memory --------------------------------------------------------------------- */

static size_t piece_bounce_size(const struct piece *piece)
{
	return (size_t)(piece->count - (piece->direct_end - piece->direct_first)) * BLOCK_SIZE;
}

/* Where the caller wants byte `at` of the chunk. */
static uint8_t *piece_target(const struct piece *piece, uint64_t at)
{
	uint64_t linear = chunk_to_linear(&piece->segment->layout, piece->cut.chunk, at);

	return (uint8_t *)piece->part->into + (linear - piece->part->extent.offset);
}

static bool piece_is_direct(const struct piece *piece, unsigned i)
{
	return i >= piece->direct_first && i < piece->direct_end;
}

/* Where block `i` of the piece is read to. */
static uint8_t *piece_block(const struct piece *piece, unsigned i)
{
	if (piece_is_direct(piece, i))
		return piece_target(piece, (piece->block + i) * BLOCK_SIZE);
	if (i >= piece->direct_end)
		i -= piece->direct_end - piece->direct_first;
	return piece->bounce + (size_t)i * BLOCK_SIZE;
}

static void piece_place(struct piece *piece)
{
	const struct cut *cut = &piece->cut;
	uint64_t phase = (uint64_t)(uintptr_t)piece->part->into - piece->part->extent.offset;

	piece->block = cut->from / BLOCK_SIZE;
	piece->count = (unsigned)((cut->to + BLOCK_SIZE - 1) / BLOCK_SIZE - piece->block);
	if (!piece->part->into || phase % BLOCK_SIZE || piece->stand_in)
		return;
	piece->direct_first = cut->from % BLOCK_SIZE != 0;
	piece->direct_end = piece->count - (cut->to % BLOCK_SIZE != 0);
	if (piece->direct_end < piece->direct_first)
		piece->direct_end = piece->direct_first;
}

/* The end of blocks from `i` on that surely lie behind each other in memory. */
static unsigned piece_run_end(const struct piece *piece, unsigned i)
{
	unsigned blocks = piece->segment->layout.cell / BLOCK_SIZE, end;

	if (i < piece->direct_first)
		return piece->direct_first;
	if (i >= piece->direct_end)
		return piece->count;
	end = i + blocks - (unsigned)((piece->block + i) % blocks);
	return end < piece->direct_end ? end : piece->direct_end;
}

/* The piece's blocks as few runs of memory. */
static unsigned piece_iovecs(struct piece *piece)
{
	unsigned n = 0;

	for (unsigned i = 0, end; i < piece->count; i = end) {
		uint8_t *at = piece_block(piece, i);
		struct iovec *last = n ? &piece->iov[n - 1] : NULL;
		size_t length;

		end = piece_run_end(piece, i);
		length = (size_t)(end - i) * BLOCK_SIZE;
		if (last && (uint8_t *)last->iov_base + last->iov_len == at)
			last->iov_len += length;
		else
			piece->iov[n++] = (struct iovec){.iov_base = at, .iov_len = length};
	}
	return n;
}

static void piece_free(struct piece *piece)
{
	buffer_free(piece->hedged.pool->engine, piece->bounce, piece_bounce_size(piece));
	segment_put(piece->segment);
	free(piece);
}

static size_t piece_runs(const struct segment *segment, const struct cut *cut)
{
	uint32_t cell = segment->layout.cell;

	return (size_t)((cut->to - 1) / cell - cut->from / cell) + 3;
}

static struct piece *piece_create(struct pool_read *read, const struct read_part *part,
	struct segment *segment, const struct cut *cut, bool stand_in)
{
	struct piece *piece =
		malloc(sizeof(*piece) + piece_runs(segment, cut) * sizeof(struct iovec));

	if (!piece)
		return NULL;
	memset(piece, 0, offsetof(struct piece, sums));
	segment_ref(segment);
	piece->hedged.pool = read->pool;
	piece->read = read;
	piece->part = part;
	piece->segment = segment;
	piece->cut = *cut;
	piece->stand_in = stand_in;
	piece_place(piece);
	if (piece_bounce_size(piece) == 0)
		return piece;
	piece->bounce = buffer_alloc(read->pool->engine, piece_bounce_size(piece));
	if (piece->bounce)
		return piece;
	piece_free(piece);
	return NULL;
}

/* --- a piece's end ------------------------------------------------------------------------ */

static void piece_end(struct piece *piece)
{
	struct pool_read *read = piece->read;

	piece_free(piece);
	read_put(read);
}

/* By how many blocks what was asked for in a moved segment lies behind where it is read: the cache
 * knows it by the name that images have for it. */
static uint64_t piece_shift(const struct piece *piece)
{
	const struct moved_part *moved = (const struct moved_part *)piece->part;

	if (piece->part->extent.segment == piece->segment->id)
		return 0;
	return moved->offset / BLOCK_SIZE - moved->part.extent.offset / BLOCK_SIZE;
}

/* The blocks from `i` on that are neighbours in linear space, too, and of one group of the cache.
 */
static struct block_run piece_block_run(const struct piece *piece, unsigned i)
{
	const struct layout *layout = &piece->segment->layout;
	uint64_t block = piece->block + i;
	uint64_t linear = chunk_to_linear(layout, piece->cut.chunk, block * BLOCK_SIZE);
	unsigned cell = layout->cell / BLOCK_SIZE;
	struct block_run run = {.segment = piece->part->extent.segment,
		.first = (uint32_t)(linear / BLOCK_SIZE + piece_shift(piece)),
		.count = piece_run_end(piece, i) - i,
		.bytes = piece_block(piece, i)};

	if (run.count > cell - block % cell)
		run.count = cell - (unsigned)(block % cell);
	if (run.count > GROUP_BLOCKS - run.first % GROUP_BLOCKS)
		run.count = GROUP_BLOCKS - run.first % GROUP_BLOCKS;
	return run;
}

/* All its blocks are right. The ends of a large read that are not whole blocks will be asked for
 * by its neighbours, too, so they do not pass as the others do. */
static void piece_keep(const struct piece *piece)
{
	struct block_run run;

	for (unsigned i = 0; i < piece->count; i += run.count) {
		run = piece_block_run(piece, i);
		run.passing = piece->read->large ? low_bits(run.count) : 0;
		if (i == 0 && piece->cut.from % BLOCK_SIZE)
			run.passing &= ~UINT64_C(1);
		if (i + run.count == piece->count && piece->cut.to % BLOCK_SIZE)
			run.passing &= low_bits(run.count - 1);
		block_cache_keep(piece->read->pool->cache, &run);
	}
}

/* Copies what the caller wants of block `i` out of the bounce buffer, `move` bytes behind where it
 * asked for it. */
static void piece_copy_out(const struct piece *piece, unsigned i, ptrdiff_t move)
{
	uint64_t start = (piece->block + i) * BLOCK_SIZE;
	uint64_t from = start > piece->cut.from ? start : piece->cut.from;
	uint64_t to = start + BLOCK_SIZE < piece->cut.to ? start + BLOCK_SIZE : piece->cut.to;

	memcpy(piece_target(piece, from) + move, piece_block(piece, i) + (from - start), to - from);
	pool_count_copied(piece->read->pool, to - from);
}

/* Until the read ends: it is all in its buffer. */
static void piece_wait_for_memory(struct piece *piece)
{
	struct pool_read *read = piece->read;

	pthread_mutex_lock(&read->late->lock);
	piece->next = read->late->rebuilt;
	read->late->rebuilt = piece;
	pthread_mutex_unlock(&read->late->lock);
	read_put(read);
}

static void piece_deliver(struct piece *piece)
{
	bool bounced = piece->part->into && piece_bounce_size(piece) > 0;

	if (piece->read->looks && piece->part->into)
		piece_keep(piece);
	if (piece->stand_in) {
		piece_wait_for_memory(piece);
		return;
	}
	for (unsigned i = 0; bounced && i < piece->count; i++) {
		if (!piece_is_direct(piece, i))
			piece_copy_out(piece, i, 0);
	}
	piece_end(piece);
}

static void piece_lost(struct piece *piece, uint64_t bits, const char *why)
{
	chunk_lost(piece->read->pool, piece->segment, piece->cut.chunk,
		piece->block + (unsigned)__builtin_ctzll(bits), why);
	read_fail(piece->read);
	piece_end(piece);
}

/* --- rebuilding bad blocks ---------------------------------------------------------------- */

/* Takes what was rebuilt; what was not stays bad. */
static void piece_take(struct piece *piece, const struct rebuild *rebuild)
{
	const struct source *source = &rebuild->band->sources[piece->cut.chunk];
	unsigned first = (unsigned)(rebuild->band->block - piece->block);
	uint64_t good = rebuild->wanted[piece->cut.chunk] & source->good;

	piece->sums_result = source->sums_result;
	piece->bad &= ~(good << first);
	for (; good; good &= good - 1) {
		unsigned i = (unsigned)__builtin_ctzll(good);

		memcpy(piece_block(piece, first + i), source->memory + (size_t)i * BLOCK_SIZE,
			BLOCK_SIZE);
		pool_count_copied(piece->read->pool, BLOCK_SIZE);
	}
}

static const char *why_lost(const struct piece *piece)
{
	return piece->sums_result
		       ? NO_CHECKSUMS
		       : "too few of the other chunks' blocks are what their checksums say";
}

static void pieces_rebuilt(struct rebuild *rebuild)
{
	struct piece *pieces = rebuild->data, *next;

	for (struct piece *piece = pieces; piece; piece = piece->next)
		piece_take(piece, rebuild);
	rebuild_free(rebuild);
	for (struct piece *piece = pieces; piece; piece = next) {
		next = piece->next;
		if (piece->bad)
			piece_lost(piece, piece->bad, why_lost(piece));
		else
			piece_deliver(piece);
	}
}

/* The piece's bad blocks, whose checksums are there. */
static void piece_rebuild(struct piece *piece)
{
	unsigned first = (unsigned)__builtin_ctzll(piece->bad);
	unsigned last = 63 - (unsigned)__builtin_clzll(piece->bad);
	struct rebuild *rebuild = rebuild_create(
		piece->read->pool, piece->segment, piece->block + first, last - first + 1);

	if (!rebuild) {
		piece_lost(piece, piece->bad, "no memory to rebuild it");
		return;
	}
	piece->next = NULL;
	rebuild_want_again(rebuild, piece->cut.chunk, piece->bad >> first, piece->sums + first,
		piece->hedged.io.result);
	rebuild_start(rebuild, pieces_rebuilt, piece);
}

/* All of these pieces, the same blocks of different chunks. */
static void pieces_rebuild(struct piece *pieces)
{
	struct rebuild *rebuild =
		rebuild_create(pieces->read->pool, pieces->segment, pieces->block, pieces->count);
	struct piece *next;

	if (rebuild) {
		for (struct piece *piece = pieces; piece; piece = piece->next) {
			piece->bad = low_bits(piece->count);
			rebuild_want(rebuild, piece->cut.chunk);
		}
		rebuild_start(rebuild, pieces_rebuilt, pieces);
		return;
	}
	for (struct piece *piece = pieces; piece; piece = next) {
		next = piece->next;
		piece_lost(piece, 1, "no memory to rebuild it");
	}
}

/* --- bytes and checksums ------------------------------------------------------------------ */

/* The blocks that did not come, or came wrong. */
static uint64_t piece_bad(struct piece *piece)
{
	struct pool *pool = piece->read->pool;
	const struct iovec *run = piece->iov;
	const struct io *io = &piece->hedged.io;
	uint64_t bad = 0;

	if (io->result) {
		chunk_read_failed(pool, piece->segment, piece->cut.chunk, io->offset, piece->count,
			io->result);
		return low_bits(piece->count);
	}
	for (unsigned i = 0, blocks; i < piece->count; i += blocks, run++) {
		blocks = (unsigned)(run->iov_len / BLOCK_SIZE);
		bad |= blocks_bad(run->iov_base, &piece->sums[i], blocks) << i;
	}
	if (bad)
		chunk_rotten(pool, piece->segment, piece->cut.chunk,
			io->offset + (uint64_t)__builtin_ctzll(bad) * BLOCK_SIZE,
			(unsigned)__builtin_popcountll(bad));
	return bad;
}

static void late_memory_put(struct late_memory *late)
{
	if (!late || atomic_fetch_sub(&late->references, 1) != 1)
		return;
	buffer_free(late->engine, late->old, late->size);
	pthread_mutex_destroy(&late->lock);
	free(late);
}

/* What it stayed for is there. */
static void piece_gone(struct piece *piece)
{
	struct pool *pool = piece->hedged.pool;

	late_memory_put(piece->late);
	piece_free(piece);
	hedge_leave(pool);
}

static void piece_arrived(struct piece *piece)
{
	if (atomic_fetch_sub(&piece->waiting, 1) != 1)
		return;
	if (piece->given_up) {
		piece_gone(piece);
		return;
	}
	if (piece->sums_result) {
		piece_lost(piece, 1, NO_CHECKSUMS);
		return;
	}
	piece->bad = piece_bad(piece);
	if (piece->bad)
		piece_rebuild(piece);
	else
		piece_deliver(piece);
}

static struct piece *hedged_piece(struct hedged *hedged)
{
	return (struct piece *)((char *)hedged - offsetof(struct piece, hedged));
}

static void piece_answered(struct hedged *hedged)
{
	piece_arrived(hedged_piece(hedged));
}

static void piece_sums_done(struct sums_want *want, int result)
{
	struct piece *piece = (struct piece *)((char *)want - offsetof(struct piece, want));

	piece->sums_result = result;
	piece_arrived(piece);
}

/* --- pieces that are late ----------------------------------------------------------------- */

static struct late_memory *late_memory_create(const struct pool_read *read)
{
	struct late_memory *late = calloc(1, sizeof(*late));

	if (!late)
		return NULL;
	late->fresh = buffer_alloc(read->pool->engine, read->memory_size);
	if (!late->fresh) {
		free(late);
		return NULL;
	}
	late->engine = read->pool->engine;
	late->size = read->memory_size;
	atomic_init(&late->references, 1);
	pthread_mutex_init(&late->lock, NULL);
	return late;
}

/* All others of its pieces have ended. */
void read_renew_memory(struct pool_read *read)
{
	struct late_memory *late = read->late;
	ptrdiff_t move = late->fresh - (uint8_t *)read->memory;
	struct piece *next;

	late->old = read->memory;
	memcpy(late->fresh, late->old, late->size);
	pool_count_copied(read->pool, late->size);
	for (struct piece *piece = late->rebuilt; piece; piece = next) {
		next = piece->next;
		for (unsigned i = 0; i < piece->count; i++)
			piece_copy_out(piece, i, move);
		piece_free(piece);
	}
	read->memory = late->fresh;
	late_memory_put(late);
}

static bool piece_is_callers(const struct piece *piece)
{
	return piece->direct_end > piece->direct_first;
}

/* The piece that takes its place in the read. From the pool's tick alone. */
static struct piece *piece_replace(struct piece *piece)
{
	struct pool_read *read = piece->read;
	bool callers = piece_is_callers(piece);

	if (callers && !read->late)
		read->late = late_memory_create(read);
	if (callers && !read->late)
		return NULL;
	return piece_create(read, piece->part, piece->segment, &piece->cut, callers);
}

static void note_late(struct piece *piece)
{
	struct member *member =
		segment_member(piece->hedged.pool, piece->segment, piece->cut.chunk);

	atomic_fetch_add(&member->late_reads, 1);
}

static bool piece_late(struct hedged *hedged)
{
	struct piece *piece = hedged_piece(hedged), *stand_in = piece_replace(piece);

	if (!stand_in)
		return false;
	if (stand_in->stand_in) {
		piece->late = stand_in->read->late;
		atomic_fetch_add(&piece->late->references, 1);
	}
	piece->given_up = true;
	stand_in->next = NULL;
	note_late(stand_in);
	pieces_rebuild(stand_in);
	return true;
}

/* Its answer is there; its checksums may not be. */
static void piece_late_answer(struct hedged *hedged)
{
	piece_arrived(hedged_piece(hedged));
}

/* --- pieces, started ---------------------------------------------------------------------- */

static void piece_hedge(struct piece *piece)
{
	struct hedged *hedged = &piece->hedged;
	bool may_go = !piece_is_callers(piece) || piece->read->memory;

	hedged->done = piece_answered;
	hedged->late = may_go ? piece_late : NULL;
	hedged->gone = piece_late_answer;
	hedge_watch(hedged);
}

static void piece_start(struct piece *piece, struct io_batch *batch)
{
	struct pool *pool = piece->read->pool;
	struct io *io = &piece->hedged.io;
	int result;

	atomic_init(&piece->waiting, 2);
	piece->hedged.member = segment_member(pool, piece->segment, piece->cut.chunk);
	io_prepare(io, IO_READ, piece->hedged.member->device,
		segment_block_offset(pool, piece->segment, piece->cut.chunk, piece->block), NULL,
		0);
	io->iov = piece->iov;
	io->iov_count = piece_iovecs(piece);
	piece_hedge(piece);
	batch_add(batch, io);
	piece->want = (struct sums_want){.pool = pool,
		.segment = piece->segment,
		.block = piece->block,
		.sums = piece->sums,
		.chunk = piece->cut.chunk,
		.count = piece->count,
		.repair = true,
		.done = piece_sums_done};
	result = sums_get(&piece->want);
	if (result == -EINPROGRESS)
		return;
	piece->sums_result = result;
	piece_arrived(piece);
}

/* Takes those that are the same blocks as the first one out of the list. */
static struct piece *pieces_alike(struct piece **list)
{
	struct piece *first = *list, **end = &first->next;

	*list = first->next;
	for (struct piece **at = list; *at;) {
		struct piece *piece = *at;

		if (piece->block != first->block || piece->count != first->count) {
			at = &piece->next;
			continue;
		}
		*at = piece->next;
		*end = piece;
		end = &piece->next;
	}
	*end = NULL;
	return first;
}

/* Or with one that has stalled. */
static bool any_without_device(struct piece *piece)
{
	bool any = false;

	for (; piece; piece = piece->next) {
		struct member *member =
			segment_member(piece->read->pool, piece->segment, piece->cut.chunk);

		if (!chunk_usable(piece->read->pool, piece->segment, piece->cut.chunk)) {
			any = true;
		} else if (member_stalled(member)) {
			note_late(piece);
			any = true;
		}
	}
	return any;
}

/* Starts the pieces of a run. */
static void pieces_start(struct piece *list, struct io_batch *batch)
{
	while (list) {
		struct piece *alike = pieces_alike(&list), *next;

		if (any_without_device(alike)) {
			pieces_rebuild(alike);
			continue;
		}
		for (struct piece *piece = alike; piece; piece = next) {
			next = piece->next;
			piece_start(piece, batch);
		}
	}
}

bool pieces_read(struct pool_read *read, const struct read_part *part, struct segment *segment,
	uint64_t from, uint64_t to, struct io_batch *batch)
{
	struct piece *pieces = NULL, **end = &pieces;
	struct cutter cutter;
	struct cut cut;
	bool all = true;

	cutter_init(&cutter, &segment->layout, from, to - from);
	while (all && cutter_next(&cutter, &cut)) {
		struct piece *piece = piece_create(read, part, segment, &cut, false);

		if (piece) {
			atomic_fetch_add(&read->pending, 1);
			*end = piece;
			end = &piece->next;
		} else {
			chunk_lost(read->pool, segment, cut.chunk, cut.from / BLOCK_SIZE,
				"no memory to read it");
			all = false;
		}
	}
	pieces_start(pieces, batch);
	return all;
}
