/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Blocks from the other chunks. A rebuild reads the same blocks of the chunks that are wanted and
 * of as many others as make k, data first, in waves: what turns out bad in one wave is made up for
 * by more chunks in the next, until there is enough or nobody is left. Each source block is proven
 * by its own checksum before it is used, and so is each result. Devices that have stalled are left
 * out, and what is late is not waited for; where that is not enough all begins anew, patiently. The
 * last wave goes to devices that were dropped, where they are there: they have what they had
 * before.
 */
#include "pool/read.h"

#include <assert.h>
#include <string.h>

#include "common/crc32c.h"

uint64_t blocks_bad(const uint8_t *bytes, const uint32_t *sums, unsigned count)
{
	uint64_t bad = 0;

	for (unsigned i = 0; i < count; i++) {
		if (crc32c(bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE) != sums[i])
			bad |= UINT64_C(1) << i;
	}
	return bad;
}

/* --- bands -------------------------------------------------------------------------------- */

struct band *band_create(struct pool *pool, struct segment *segment, uint64_t block, unsigned count)
{
	unsigned width = segment_width(segment);
	struct band *band = calloc(1, sizeof(*band) + width * sizeof(struct source));

	assert(count > 0 && count <= SPAN_BLOCKS);
	if (!band)
		return NULL;
	segment_ref(segment);
	band->pool = pool;
	band->segment = segment;
	band->block = block;
	band->count = count;
	atomic_init(&band->references, 1);
	for (unsigned i = 0; i < width; i++)
		band->sources[i].band = band;
	return band;
}

static void source_free(struct source *source)
{
	struct engine *engine = source->band->pool->engine;
	size_t length = (size_t)source->band->count * BLOCK_SIZE;

	buffer_free(engine, source->memory, length);
	buffer_free(engine, source->late_memory, length);
}

void band_free(struct band *band)
{
	unsigned width;

	if (!band || atomic_fetch_sub(&band->references, 1) != 1)
		return;
	width = segment_width(band->segment);
	for (unsigned i = 0; i < width; i++)
		source_free(&band->sources[i]);
	segment_put(band->segment);
	free(band);
}

static void band_put(struct band *band)
{
	if (atomic_fetch_sub(&band->pending, 1) == 1)
		band->done(band);
}

/* Bytes and checksums are both there, or are not to be had. */
static void source_judge(struct source *source)
{
	struct band *band = source->band;
	unsigned chunk = (unsigned)(source - band->sources);
	uint64_t bad;

	if (source->result || source->sums_result)
		return;
	bad = blocks_bad(source->memory, source->sums, band->count);
	source->good = low_bits(band->count) & ~bad;
	if (bad && chunk_usable(band->pool, band->segment, chunk))
		chunk_rotten(band->pool, band->segment, chunk, source->hedged.io.offset,
			(unsigned)__builtin_popcountll(bad));
}

static void source_arrived(struct source *source)
{
	if (atomic_fetch_sub(&source->waiting, 1) != 1)
		return;
	source_judge(source);
	band_put(source->band);
}

static void source_sums_done(struct sums_want *want, int result)
{
	struct source *source = (struct source *)((char *)want - offsetof(struct source, want));

	source->sums_result = result;
	source_arrived(source);
}

static void source_answered(struct hedged *hedged)
{
	struct source *source = (struct source *)hedged; /* its first member */
	struct band *band = source->band;
	unsigned chunk = (unsigned)(source - band->sources);

	source->result = hedged->io.result;
	if (source->result && chunk_usable(band->pool, band->segment, chunk))
		chunk_read_failed(band->pool, band->segment, chunk, hedged->io.offset, band->count,
			source->result);
	source_arrived(source);
}

/* The band and its memory stay until the answer is there. */
static bool source_late(struct hedged *hedged)
{
	struct source *source = (struct source *)hedged;

	atomic_fetch_add(&source->band->references, 1);
	source->late_memory = source->memory;
	source->memory = NULL;
	source->result = -ETIMEDOUT;
	source_arrived(source);
	return true;
}

static void source_gone(struct hedged *hedged)
{
	struct pool *pool = hedged->pool;

	band_free(((struct source *)hedged)->band);
	hedge_leave(pool);
}

/* Whether it is asked in this wave. */
static bool source_wanted(const struct band *band, unsigned chunk)
{
	if (!chunk_usable(band->pool, band->segment, chunk))
		return band->last_resort && chunk_last_resort(band->pool, band->segment, chunk);
	return !band->hedged || !member_stalled(segment_member(band->pool, band->segment, chunk));
}

/* Prepares the device's part; not 0: there is none. */
static int source_prepare(struct source *source, unsigned chunk)
{
	struct band *band = source->band;
	struct hedged *hedged = &source->hedged;
	size_t length = (size_t)band->count * BLOCK_SIZE;

	if (!source_wanted(band, chunk))
		return -ENODEV;
	source->memory = buffer_alloc(band->pool->engine, length);
	if (!source->memory)
		return -ENOMEM;
	hedged->pool = band->pool;
	hedged->member = segment_member(band->pool, band->segment, chunk);
	hedged->done = source_answered;
	hedged->late = band->hedged ? source_late : NULL;
	hedged->gone = source_gone;
	io_prepare(&hedged->io, IO_READ, hedged->member->device,
		segment_block_offset(band->pool, band->segment, chunk, band->block), source->memory,
		length);
	hedge_watch(hedged);
	return 0;
}

static void source_start(struct source *source, unsigned chunk, struct io_batch *batch)
{
	struct band *band = source->band;
	int result;

	source->asked = true;
	atomic_init(&source->waiting, 2);
	source->result = source_prepare(source, chunk);
	if (source->result)
		source_arrived(source);
	else
		batch_add(batch, &source->hedged.io);
	source->want = (struct sums_want){.pool = band->pool,
		.segment = band->segment,
		.block = band->block,
		.sums = source->sums,
		.chunk = chunk,
		.count = band->count,
		.repair = band->repair,
		.done = source_sums_done};
	result = sums_get(&source->want);
	if (result == -EINPROGRESS)
		return;
	source->sums_result = result;
	source_arrived(source);
}

void band_read(struct band *band, uint32_t chunks, void (*done)(struct band *band))
{
	struct io_batch batch = {.engine = band->pool->engine};

	band->done = done;
	atomic_init(&band->pending, 1 + (unsigned)__builtin_popcount(chunks));
	for (; chunks; chunks &= chunks - 1) {
		unsigned chunk = (unsigned)__builtin_ctz(chunks);

		source_start(&band->sources[chunk], chunk, &batch);
	}
	batch_submit(&batch);
	band_put(band);
}

/* The first k chunks but `chunk` whose block `at` is proven; 0 when there are not so many. */
static uint32_t block_sources(const struct band *band, unsigned chunk, unsigned at)
{
	unsigned width = segment_width(band->segment), found = 0;
	uint32_t set = 0;

	for (unsigned i = 0; i < width && found < band->segment->layout.data; i++) {
		if (i == chunk || !(band->sources[i].good >> at & 1))
			continue;
		set |= UINT32_C(1) << i;
		found++;
	}
	return found == band->segment->layout.data ? set : 0;
}

/* Blocks [at, at + count) of a chunk from the chunks of `set`. */
static int decode_run(
	struct band *band, unsigned chunk, uint32_t set, unsigned at, unsigned count, uint8_t *out)
{
	size_t offset = (size_t)at * BLOCK_SIZE;
	uint8_t have[POOL_WIDTH_MAX], wanted = (uint8_t)chunk;
	uint8_t *in[POOL_WIDTH_MAX], *result = out + offset;
	unsigned n = 0;

	for (; set; set &= set - 1) {
		have[n] = (uint8_t)__builtin_ctz(set);
		in[n] = band->sources[have[n]].memory + offset;
		n++;
	}
	return erasure_rebuild(band->pool, segment_code(band->segment), (size_t)count * BLOCK_SIZE,
		have, in, &wanted, 1, &result);
}

/* Blocks `bits` of a chunk into its own memory; those that its checksums have proven. */
static uint64_t decode(struct band *band, unsigned chunk, uint64_t bits)
{
	struct source *source = &band->sources[chunk];
	uint64_t proven = 0;

	for (unsigned at = 0, end; at < band->count; at = end) {
		uint32_t set = bits >> at & 1 ? block_sources(band, chunk, at) : 0;

		end = at + 1;
		if (!set)
			continue;
		while (end < band->count && bits >> end & 1 &&
			block_sources(band, chunk, end) == set)
			end++;
		if (decode_run(band, chunk, set, at, end - at, source->memory))
			continue;
		proven |=
			(low_bits(end - at) & ~blocks_bad(source->memory + (size_t)at * BLOCK_SIZE,
						      source->sums + at, end - at))
			<< at;
	}
	return proven;
}

int band_rebuild(struct band *band, unsigned chunk, uint64_t bits, uint64_t *proven)
{
	struct source *source = &band->sources[chunk];

	*proven = 0;
	if (!source->memory)
		source->memory = buffer_alloc(band->pool->engine, (size_t)band->count * BLOCK_SIZE);
	if (!source->memory)
		return -ENOMEM;
	if (!source->sums_result)
		*proven = decode(band, chunk, bits);
	source->good |= *proven;
	return 0;
}

/* Blocks that are proven in all data chunks. */
static uint64_t whole_data(const struct band *band)
{
	uint64_t whole = low_bits(band->count);

	for (unsigned i = 0; i < band->segment->layout.data; i++)
		whole &= band->sources[i].good;
	return whole;
}

int band_make_parity(struct band *band, unsigned chunk)
{
	struct source *source = &band->sources[chunk];
	uint32_t data = (uint32_t)low_bits(band->segment->layout.data);

	if (whole_data(band) != low_bits(band->count))
		return -EIO;
	if (!source->memory)
		source->memory = buffer_alloc(band->pool->engine, (size_t)band->count * BLOCK_SIZE);
	if (!source->memory)
		return -ENOMEM;
	return decode_run(band, chunk, data, 0, band->count, source->memory);
}

/* --- rebuilding --------------------------------------------------------------------------- */

struct rebuild *rebuild_create(
	struct pool *pool, struct segment *segment, uint64_t block, unsigned count)
{
	struct rebuild *rebuild = calloc(1, sizeof(*rebuild));

	if (!rebuild)
		return NULL;
	rebuild->band = band_create(pool, segment, block, count);
	if (!rebuild->band) {
		free(rebuild);
		return NULL;
	}
	rebuild->band->data = rebuild;
	rebuild->band->repair = true;
	rebuild->band->hedged = true;
	return rebuild;
}

void rebuild_want(struct rebuild *rebuild, unsigned chunk)
{
	rebuild->wanted[chunk] = low_bits(rebuild->band->count);
}

void rebuild_want_again(
	struct rebuild *rebuild, unsigned chunk, uint64_t bits, const uint32_t *sums, int result)
{
	struct source *source = &rebuild->band->sources[chunk];

	rebuild->wanted[chunk] = bits;
	rebuild->answered |= UINT32_C(1) << chunk;
	source->asked = true;
	source->result = result;
	memcpy(source->sums, sums, rebuild->band->count * sizeof(*sums));
}

/* How many proven blocks the worst of the wanted places still lacks. */
static unsigned lacking(const struct rebuild *rebuild)
{
	const struct band *band = rebuild->band;
	unsigned width = segment_width(band->segment), data = band->segment->layout.data, most = 0;
	uint64_t bits = 0;

	for (unsigned i = 0; i < width; i++)
		bits |= rebuild->wanted[i] & ~band->sources[i].good;
	for (; bits; bits &= bits - 1) {
		unsigned at = (unsigned)__builtin_ctzll(bits), have = 0;

		for (unsigned i = 0; i < width; i++)
			have += band->sources[i].good >> at & 1;
		if (have < data && data - have > most)
			most = data - have;
	}
	return most;
}

/* `lack` chunks more that can be asked, data first. */
static uint32_t next_sources(const struct band *band, uint32_t set, unsigned lack)
{
	unsigned width = segment_width(band->segment);

	for (unsigned i = 0; i < width && lack > 0; i++) {
		if (set >> i & 1 || band->sources[i].asked || !source_wanted(band, i))
			continue;
		set |= UINT32_C(1) << i;
		lack--;
	}
	return set;
}

/* All chunks on devices that were dropped, but for those whose answers are late. */
static uint32_t last_sources(const struct band *band)
{
	unsigned width = segment_width(band->segment);
	uint32_t set = 0;

	for (unsigned i = 0; i < width; i++) {
		const struct source *source = &band->sources[i];

		if (!source->memory && !source->late_memory &&
			chunk_last_resort(band->pool, band->segment, i))
			set |= UINT32_C(1) << i;
	}
	return set;
}

/* The wanted chunks, be it for their checksums alone, and as many others as make k. */
static uint32_t first_sources(const struct rebuild *rebuild)
{
	const struct band *band = rebuild->band;
	unsigned width = segment_width(band->segment), lack = band->segment->layout.data;
	uint32_t set = 0;

	for (unsigned i = 0; i < width; i++) {
		if (!rebuild->wanted[i] || band->sources[i].asked)
			continue;
		set |= UINT32_C(1) << i;
		lack -= lack > 0 && source_wanted(band, i);
	}
	return next_sources(band, set, lack);
}

/* A device that does not answer is not written to either; one that cannot read a block may well be
 * able to write it. */
static bool mendable(const struct source *source)
{
	return !source->result || source->result == -EIO;
}

static void rebuild_wave(struct band *band);

static void rebuild_chunk(struct rebuild *rebuild, unsigned chunk)
{
	struct band *band = rebuild->band;
	struct source *source = &band->sources[chunk];
	uint64_t bits = rebuild->wanted[chunk] & ~source->good, proven;

	if (!bits || band_rebuild(band, chunk, bits, &proven))
		return;
	if (proven && mendable(source))
		repair_blocks_later(
			band->pool, band->segment, chunk, band->block, source->memory, proven);
}

/* Whether a device that was left out, or not waited for, may yet help. */
static bool rebuild_was_hasty(const struct band *band)
{
	unsigned width = segment_width(band->segment);

	for (unsigned i = 0; band->hedged && i < width; i++) {
		const struct source *source = &band->sources[i];

		if (source->result == -ETIMEDOUT ||
			(source->result == -ENODEV && chunk_usable(band->pool, band->segment, i)))
			return true;
	}
	return false;
}

/* False: no memory. */
static bool rebuild_again(struct rebuild *rebuild)
{
	struct band *hasty = rebuild->band, *band;

	band = band_create(hasty->pool, hasty->segment, hasty->block, hasty->count);
	if (!band)
		return false;
	band->data = rebuild;
	band->repair = true;
	rebuild->band = band;
	for (uint32_t chunks = rebuild->answered; chunks; chunks &= chunks - 1) {
		unsigned chunk = (unsigned)__builtin_ctz(chunks);

		rebuild_want_again(rebuild, chunk, rebuild->wanted[chunk],
			hasty->sources[chunk].sums, hasty->sources[chunk].result);
	}
	band_free(hasty);
	band_read(band, first_sources(rebuild), rebuild_wave);
	return true;
}

static void rebuild_wave(struct band *band)
{
	struct rebuild *rebuild = band->data;
	unsigned width = segment_width(band->segment), lack = lacking(rebuild);
	uint32_t more = next_sources(band, 0, lack);

	if (!more && lack && rebuild_was_hasty(band) && rebuild_again(rebuild))
		return;
	if (!more && lack && !band->last_resort) {
		band->last_resort = true;
		more = last_sources(band);
	}
	if (more) {
		band_read(band, more, rebuild_wave);
		return;
	}
	for (unsigned i = 0; i < width; i++)
		rebuild_chunk(rebuild, i);
	rebuild->done(rebuild);
}

void rebuild_start(struct rebuild *rebuild, void (*done)(struct rebuild *rebuild), void *data)
{
	rebuild->done = done;
	rebuild->data = data;
	band_read(rebuild->band, first_sources(rebuild), rebuild_wave);
}

void rebuild_free(struct rebuild *rebuild)
{
	band_free(rebuild->band);
	free(rebuild);
}
