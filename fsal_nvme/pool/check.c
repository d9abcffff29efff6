/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * pool_check(): every block of every segment, whatever was read before and whatever caches say.
 *
 *   heads     both copies of each device's header and of its label
 *   headers   of each chunk of a closed segment, against the segment table
 *   pages     each copy of each checksum page
 *   blocks    band by band, a few at a time: against checksums, then what is bad is rebuilt in
 *             memory (it counts as lost where that proves nothing), then the parity is computed
 *             again and compared
 *
 *   remaps    each names bytes that are there, and all that is live where they say
 *
 * Blocks of missing devices are not bad. Data among them must come out of a rebuild, or is lost.
 * With parity nothing is: what it is made of is either right, or lost itself. Nor could it be
 * proven: where all parity chunks are missing, so are its checksums.
 *
 * Only blocks that are on their devices by now are looked at; the rest of an open segment is still
 * in memory. Headers, labels and pages count as blocks. Runs on the caller's thread, which does the
 * rebuilding; reading and checking go on beside it on the engine's.
 */
#include "pool/label.h"
#include "pool/read.h"
#include "pool/remap.h"
#include "pool/row.h"

#include <assert.h>
#include <inttypes.h>

#define BANDS 4u /* in flight; each SPAN_BLOCKS of each chunk */

struct check {
	struct pool *pool;
	bool repair;
	bool all; /* chunks of devices that are not whole as well */
	struct pool_check_report *report;
	bool (*progress)(void *data, uint64_t done, uint64_t total);
	void *data;
	uint64_t done, total; /* blocks of cells */
};

/* A band on its way. */
struct flight {
	struct band *band;
	struct event event;
};

/* What its checksums' place makes of it: a segment that is being closed is still open. */
static enum segment_state state_of(struct segment *segment)
{
	enum segment_state state;

	pthread_mutex_lock(&segment->lock);
	state = segment->sums ? SEGMENT_OPEN : (enum segment_state)segment->row.state;
	pthread_mutex_unlock(&segment->lock);
	return state;
}

/* --- headers and pages -------------------------------------------------------------------- */

/* One block of each of up to POOL_WIDTH_MAX chunks. */
struct looks {
	struct segment *segment;
	unsigned count;
	unsigned chunk[POOL_WIDTH_MAX];
	struct io ios[POOL_WIDTH_MAX];
	uint8_t *memory;
};

static int looks_create(struct check *check, struct segment *segment, struct looks **looks)
{
	*looks = calloc(1, sizeof(**looks));
	if (!*looks)
		return -ENOMEM;
	(*looks)->segment = segment;
	(*looks)->memory = buffer_alloc(check->pool->engine, POOL_WIDTH_MAX * BLOCK_SIZE);
	if ((*looks)->memory)
		return 0;
	free(*looks);
	return -ENOMEM;
}

static void looks_free(struct check *check, struct looks *looks)
{
	buffer_free(check->pool->engine, looks->memory, POOL_WIDTH_MAX * BLOCK_SIZE);
	free(looks);
}

static void *look_block(const struct looks *looks, unsigned i)
{
	return looks->memory + (size_t)i * BLOCK_SIZE;
}

static void look_at(struct check *check, struct looks *looks, unsigned chunk, uint64_t offset)
{
	unsigned i = looks->count;

	if (!chunk_usable(check->pool, looks->segment, chunk) &&
		!(check->all && member_usable(segment_member(check->pool, looks->segment, chunk))))
		return;
	looks->count++;
	looks->chunk[i] = chunk;
	io_prepare(&looks->ios[i], IO_READ,
		segment_member(check->pool, looks->segment, chunk)->device, offset,
		look_block(looks, i), BLOCK_SIZE);
}

static int looks_read(struct check *check, struct looks *looks)
{
	members_run(check->pool, looks->ios, looks->count);
	check->report->blocks += looks->count;
	for (unsigned i = 0; i < looks->count; i++) {
		if (looks->ios[i].result == -ESHUTDOWN)
			return -ESHUTDOWN;
	}
	return 0;
}

/* Look `i` found something else than it should have; `right` is what stands there, or NULL. */
static void look_bad(struct check *check, struct looks *looks, unsigned i, void *right)
{
	const struct io *io = &looks->ios[i];
	unsigned chunk = looks->chunk[i];

	check->report->bad_blocks++;
	if (io->result)
		chunk_read_failed(check->pool, looks->segment, chunk, io->offset, 1, io->result);
	else if (chunk_usable(check->pool, looks->segment, chunk))
		chunk_rotten(check->pool, looks->segment, chunk, io->offset, 1);
	if (!right)
		check->report->lost_blocks++;
	else if (check->repair &&
		 !repair_now(check->pool, looks->segment, chunk, io->offset, right, BLOCK_SIZE))
		check->report->repaired_blocks++;
}

void chunk_header_expect(struct pool *pool, const struct segment *segment, unsigned chunk,
	struct chunk_header *header)
{
	const struct segment_row *row = &segment->row;

	*header = (struct chunk_header){.segment = row->id,
		.generation = row->generation,
		.index = (uint8_t)chunk,
		.data = row->data,
		.parity = row->parity,
		.matrix = row->matrix,
		.cell = row->cell,
		.rows = row->rows,
		.length = row->length,
		.volume = row->volume};
	memcpy(header->pool, pool->header.pool, sizeof(header->pool));
}

bool chunk_header_right(const struct chunk_header *want, const struct chunk_header *got)
{
	return memcmp(want->pool, got->pool, sizeof(want->pool)) == 0 &&
	       want->segment == got->segment && want->generation == got->generation &&
	       want->index == got->index && want->data == got->data &&
	       want->parity == got->parity && want->matrix == got->matrix &&
	       want->cell == got->cell && want->rows == got->rows && want->length == got->length;
}

static int check_headers(struct check *check, struct looks *looks)
{
	struct segment *segment = looks->segment;
	struct chunk_header want, got;
	int result;

	looks->count = 0;
	for (unsigned i = 0; i < segment_width(segment); i++)
		look_at(check, looks, i, segment_header_offset(check->pool, segment, i));
	result = looks_read(check, looks);
	for (unsigned i = 0; !result && i < looks->count; i++) {
		chunk_header_expect(check->pool, segment, looks->chunk[i], &want);
		if (!looks->ios[i].result && !chunk_header_decode(&got, look_block(looks, i)) &&
			chunk_header_right(&want, &got))
			continue;
		look_bad(check, looks, i,
			chunk_header_encode(&want, look_block(looks, i)) ? NULL
									 : look_block(looks, i));
	}
	return result;
}

static bool page_right(struct check *check, const struct looks *looks, unsigned i, unsigned of,
	uint32_t index, struct checksum_page *page)
{
	return !looks->ios[i].result && !checksum_page_decode(page, look_block(looks, i)) &&
	       page_belongs(check->pool, looks->segment, of, index, page);
}

/* Compares all copies that could be read with the first right one, and mends the others. */
static void judge_page(struct check *check, struct looks *looks, unsigned of, uint32_t index,
	struct checksum_page *proven, struct checksum_page *page)
{
	uint32_t bad = 0;
	bool known = false;

	for (unsigned i = 0; i < looks->count; i++) {
		if (!page_right(check, looks, i, of, index, page))
			bad |= UINT32_C(1) << i;
		else if (!known)
			*proven = *page;
		else if (memcmp(proven->sums, page->sums, page->count * sizeof(uint32_t)))
			bad |= UINT32_C(1) << i;
		known = known || !(bad >> i & 1);
	}
	if (bad && !known)
		known = page_cache_peek(check->pool, looks->segment, of, index, proven);
	for (unsigned i = 0; bad >> i; i++) {
		if (bad >> i & 1)
			look_bad(check, looks, i,
				known && !checksum_page_encode(proven, look_block(looks, i))
					? look_block(looks, i)
					: NULL);
	}
}

static int check_page(struct check *check, struct looks *looks, unsigned of, uint32_t index,
	struct checksum_page pages[2])
{
	int chunk, result;

	looks->count = 0;
	for (unsigned copy = 0; (chunk = page_copy_chunk(looks->segment, of, copy)) >= 0; copy++)
		look_at(check, looks, (unsigned)chunk,
			segment_page_offset(
				check->pool, looks->segment, (unsigned)chunk, of, index));
	result = looks_read(check, looks);
	if (!result)
		judge_page(check, looks, of, index, &pages[0], &pages[1]);
	return result;
}

static int check_pages(struct check *check, struct looks *looks)
{
	const struct segment *segment = looks->segment;
	uint64_t blocks = (uint64_t)segment->row.rows * segment->layout.blocks;
	struct checksum_page *pages = calloc(2, sizeof(*pages));
	int result = pages ? 0 : -ENOMEM;

	for (uint32_t index = 0; !result && index * (uint64_t)PAGE_ENTRIES < blocks; index++) {
		for (unsigned of = 0; !result && of < segment_width(segment); of++)
			result = check_page(check, looks, of, index, pages);
	}
	free(pages);
	return result;
}

int pages_mend(struct pool *pool, struct segment *segment, struct pool_check_report *report)
{
	struct check check = {.pool = pool, .repair = true, .all = true, .report = report};
	struct looks *looks;
	int result = looks_create(&check, segment, &looks);

	if (result)
		return result;
	result = check_pages(&check, looks);
	looks_free(&check, looks);
	return result;
}

/* --- bands -------------------------------------------------------------------------------- */

/* Rebuilds the blocks of one chunk that are bad, or that are missing data. */
static int judge_chunk(struct check *check, struct band *band, unsigned chunk)
{
	struct source *source = &band->sources[chunk];
	uint64_t bad = low_bits(band->count) & ~source->good, proven;
	bool present = source->hedged.io.device, data = chunk < band->segment->layout.data;

	if (source->result == -ENOMEM || source->sums_result == -ENOMEM)
		return -ENOMEM;
	if (source->result == -ESHUTDOWN)
		return -ESHUTDOWN;
	check->report->blocks += present ? band->count : 0;
	check->report->missing_blocks += present ? 0 : band->count;
	check->report->bad_blocks += present ? (unsigned)__builtin_popcountll(bad) : 0;
	if (!bad || !(present || data))
		return 0;
	if (band_rebuild(band, chunk, bad, &proven))
		return -ENOMEM;
	if (bad & ~proven)
		chunk_lost(check->pool, band->segment, chunk,
			band->block + (unsigned)__builtin_ctzll(bad & ~proven),
			source->sums_result ? "no copy of its checksums can be read"
					    : "too few blocks of its row are right");
	check->report->lost_blocks += (unsigned)__builtin_popcountll(bad & ~proven);
	if (present && check->repair)
		check->report->repaired_blocks += repair_blocks_now(
			check->pool, band->segment, chunk, band->block, source->memory, proven);
	return 0;
}

/* The proven parity blocks that are not what the proven data make them. */
static uint64_t parity_wrong(
	const struct band *band, unsigned chunk, const uint8_t *computed, uint64_t bits)
{
	const struct source *source = &band->sources[chunk];
	uint64_t wrong = 0;

	for (bits &= source->good; bits; bits &= bits - 1) {
		unsigned i = (unsigned)__builtin_ctzll(bits);
		size_t offset = (size_t)i * BLOCK_SIZE;

		if (memcmp(computed + offset, source->memory + offset, BLOCK_SIZE))
			wrong |= UINT64_C(1) << i;
	}
	return wrong;
}

static int judge_parity(struct check *check, struct band *band)
{
	const struct layout *layout = &band->segment->layout;
	size_t length = (size_t)band->count * BLOCK_SIZE;
	uint8_t *computed = buffer_alloc(check->pool->engine, layout->parity * length);
	uint8_t *data[POOL_WIDTH_MAX], *parity[POOL_WIDTH_MAX];
	uint64_t whole = low_bits(band->count), wrong;
	int result = computed ? 0 : -ENOMEM;

	for (unsigned i = 0; i < layout->data; i++) {
		data[i] = band->sources[i].memory;
		whole &= band->sources[i].good;
	}
	for (unsigned i = 0; computed && i < layout->parity; i++)
		parity[i] = computed + i * length;
	if (!result && whole)
		result = erasure_encode(
			check->pool, segment_code(band->segment), length, data, parity);
	for (unsigned i = 0; !result && i < layout->parity; i++) {
		wrong = parity_wrong(band, layout->data + i, parity[i], whole);
		check->report->bad_blocks += (unsigned)__builtin_popcountll(wrong);
		if (wrong)
			log_error("segment %" PRIx64 ", chunk %u, block %" PRIu64
				  ": this parity has its checksum but is not that of the data",
				band->segment->id, layout->data + i,
				band->block + (unsigned)__builtin_ctzll(wrong));
	}
	buffer_free(check->pool->engine, computed, layout->parity * length);
	return result;
}

static void flight_done(struct band *band)
{
	struct flight *flight = band->data;

	event_signal(&flight->event, 0);
}

static int flight_start(struct check *check, struct flight *flight, struct segment *segment,
	uint64_t block, unsigned count)
{
	flight->band = band_create(check->pool, segment, block, count);
	if (!flight->band)
		return -ENOMEM;
	flight->band->data = flight;
	event_init(&flight->event, check->pool->engine);
	band_read(flight->band, (uint32_t)low_bits(segment_width(segment)), flight_done);
	return 0;
}

/* Waits for a band and judges it, unless something went wrong before. */
static int flight_end(struct check *check, struct flight *flight, int result)
{
	struct band *band = flight->band;
	unsigned width;

	if (!band)
		return result;
	width = segment_width(band->segment);
	event_wait(&flight->event);
	assert(atomic_load(&flight->event.state) == 1 && "pool_check() on a paused host");
	for (unsigned i = 0; !result && i < width; i++)
		result = judge_chunk(check, band, i);
	if (!result)
		result = judge_parity(check, band);
	check->done += (uint64_t)band->count * width;
	if (!result && check->progress && !check->progress(check->data, check->done, check->total))
		result = -EINTR;
	flight->band = NULL;
	band_free(band);
	return result;
}

/* --- segments ----------------------------------------------------------------------------- */

/* Under segment->lock: the end of the run of blocks from *block on that are on the devices; moves
 * *block over those that are not. */
static uint64_t run_end(const struct segment *segment, uint64_t *block)
{
	const struct layout *layout = &segment->layout;
	uint32_t row = (uint32_t)(*block / layout->blocks);

	if (!segment->sums)
		return segment->row.state == SEGMENT_CLOSED
			       ? (uint64_t)segment->row.rows * layout->blocks
			       : 0;
	if (row < layout->rows && segment->row_done[row] != ROW_IS_DONE) {
		while (row < layout->rows && segment->row_done[row] != ROW_IS_DONE)
			row++;
		*block = (uint64_t)row * layout->blocks;
	}
	while (row < layout->rows && segment->row_done[row] == ROW_IS_DONE)
		row++;
	return (uint64_t)row * layout->blocks;
}

unsigned band_next(struct segment *segment, uint64_t *block)
{
	uint64_t end, page_end;

	pthread_mutex_lock(&segment->lock);
	end = run_end(segment, block);
	pthread_mutex_unlock(&segment->lock);
	page_end = (*block / PAGE_ENTRIES + 1) * PAGE_ENTRIES;
	if (end > page_end)
		end = page_end;
	if (end <= *block)
		return 0;
	return end - *block < SPAN_BLOCKS ? (unsigned)(end - *block) : SPAN_BLOCKS;
}

static int check_bands(struct check *check, struct segment *segment)
{
	struct flight flights[BANDS] = {0};
	uint64_t block = 0;
	unsigned count, i;
	int result = 0;

	for (i = 0; !result; i++) {
		struct flight *flight = &flights[i % BANDS];

		result = flight_end(check, flight, 0);
		if (result)
			break;
		count = band_next(segment, &block);
		if (!count)
			break;
		result = flight_start(check, flight, segment, block, count);
		block += count;
	}
	for (unsigned n = 0; n < BANDS; n++)
		result = flight_end(check, &flights[(i + n) % BANDS], result);
	return result;
}

static int check_meta(struct check *check, struct segment *segment)
{
	struct looks *looks;
	int result = looks_create(check, segment, &looks);

	if (result)
		return result;
	result = check_headers(check, looks);
	if (!result)
		result = check_pages(check, looks);
	looks_free(check, looks);
	return result;
}

static int check_segment(struct check *check, struct segment *segment)
{
	enum segment_state state = state_of(segment);
	int result;

	if (state == SEGMENT_RESERVED || state == SEGMENT_MOVED)
		return 0;
	check->report->segments++;
	for (unsigned i = 0; i < segment_width(segment); i++)
		check->report->missing_chunks += !chunk_usable(check->pool, segment, i);
	result = state == SEGMENT_CLOSED ? check_meta(check, segment) : 0;
	return result ? result : check_bands(check, segment);
}

uint64_t segment_blocks(struct segment *segment)
{
	uint64_t rows = 0;

	pthread_mutex_lock(&segment->lock);
	if (!segment->sums)
		rows = segment->row.state == SEGMENT_CLOSED ? segment->row.rows : 0;
	for (uint32_t i = 0; segment->sums && i < segment->layout.rows; i++)
		rows += segment->row_done[i] == ROW_IS_DONE;
	pthread_mutex_unlock(&segment->lock);
	return rows * segment->layout.blocks * segment_width(segment);
}

static int check_all(struct check *check)
{
	struct segment **segments;
	unsigned count;
	int result = segment_list(check->pool, &segments, &count);

	if (result)
		return result;
	for (unsigned i = 0; i < count; i++)
		check->total += segment_blocks(segments[i]);
	for (unsigned i = 0; i < count; i++) {
		if (!result)
			result = check_segment(check, segments[i]);
		segment_put(segments[i]);
	}
	free(segments);
	return result;
}

static int check_heads(struct check *check)
{
	struct heads heads;
	int result = heads_look(check->pool, &heads);

	if (!result && check->repair)
		result = heads_mend(check->pool, &heads, false);
	check->report->blocks += heads.blocks;
	check->report->bad_blocks += heads.bad_blocks;
	check->report->repaired_blocks += heads.mended_blocks;
	return result;
}

int pool_check(struct pool *pool, bool repair, struct pool_check_report *report,
	bool (*progress)(void *data, uint64_t done, uint64_t total), void *data,
	struct error *error)
{
	struct check check = {.pool = pool,
		.repair = repair,
		.report = report,
		.progress = progress,
		.data = data};
	int result;

	memset(report, 0, sizeof(*report));
	if (repair && (pool->read_only || atomic_load(&pool->failure)))
		return error_set(error, -EROFS, pool_name(pool),
			"the pool is read-only, nothing can be repaired; check it without repair");
	result = check_heads(&check);
	if (!result)
		result = check_all(&check);
	if (!result)
		result = remap_check(pool, &report->wrong_live); /* as they are now */
	if (report->repaired_blocks && (!result || result == -EINTR)) {
		int flushed = pool_flush(pool, ~UINT64_C(0));

		result = flushed ? flushed : result;
	}
	if (result == -EINTR)
		return error_set(
			error, result, pool_name(pool), "interrupted: not all of it was read");
	if (result)
		return error_set(error, result, pool_name(pool),
			"the check could not be finished: %s", strerror(-result));
	return 0;
}
