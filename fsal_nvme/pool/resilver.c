/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Making attached devices whole (attach.c): every chunk that a segment has on one of them is read
 * and checked, and what is not right there is rebuilt from the others, proven by its checksum, and
 * written.
 *
 * A chunk whose header is not the right one was not there when its segment was closed: all of it is
 * written anew, whatever its blocks look like, then the pages, and the header last, behind a flush.
 * So a crash in between leaves a chunk that is written anew by the next try.
 *
 * The checksums of parity chunks stand in parity chunks alone. Where a segment was closed without
 * any of these nobody has them: the parity is made of data that is proven, and its checksums of it.
 *
 * Open segments that were there before the device was attached get no new rows; maintenance closes
 * them, which writes headers and pages to it as well, and their rows are checked like others. Where
 * too many of their devices were not whole to close them, that is done once they are. Nothing is
 * whole while others that are away would be needed for it.
 */
#include "pool/label.h"
#include "pool/read.h"
#include "pool/row.h"

#include <assert.h>
#include <inttypes.h>

#include "common/crc32c.h"

struct resilver {
	struct pool *pool;
	struct pool_resilver_report *report;
	bool (*progress)(void *data, uint64_t done, uint64_t total);
	void *data;
	uint64_t done, total; /* blocks */
	uint64_t members; /* a bit each */
};

/* The chunks of a segment that are to be looked at, a bit each. */
static uint32_t chunks_of(const struct resilver *r, const struct segment *segment)
{
	uint32_t chunks = 0;

	for (unsigned i = 0; i < segment_width(segment); i++) {
		unsigned id = segment->row.chunks[i].device;
		const struct member *member = &r->pool->devices[id];

		if (r->members >> id & 1 && member_usable(member) &&
			member_lacks(member, segment->id))
			chunks |= UINT32_C(1) << i;
	}
	return chunks;
}

/* --- bands ------------------------------------------------------------------------------------ */

static void band_is_read(struct band *band)
{
	struct event *read = band->data;

	event_signal(read, 0);
}

static int band_error(const struct band *band, uint32_t chunks)
{
	for (; chunks; chunks &= chunks - 1) {
		const struct source *source = &band->sources[__builtin_ctz(chunks)];

		if (source->result == -ESHUTDOWN || source->result == -ENOMEM ||
			source->sums_result == -ENOMEM)
			return source->result ? source->result : -ENOMEM;
	}
	return 0;
}

static int read_chunks(struct band *band, uint32_t chunks)
{
	struct event read;

	event_init(&read, band->pool->engine);
	band->data = &read;
	band_read(band, chunks, band_is_read);
	event_wait(&read);
	assert(atomic_load(&read.state) == 1 && "pool_resilver() on a paused host");
	return band_error(band, chunks);
}

/* What is to be written to a chunk: all of it when it is to be made anew. */
static uint64_t wanted_of(const struct band *band, unsigned chunk, uint32_t anew)
{
	uint64_t all = low_bits(band->count);

	return anew >> chunk & 1 ? all : all & ~band->sources[chunk].good;
}

static int mend_chunk(struct resilver *r, struct band *band, unsigned chunk, uint64_t wanted)
{
	struct source *source = &band->sources[chunk];
	uint64_t there = source->good, proven;
	uint64_t lost;

	source->good &= ~wanted;
	if (band_rebuild(band, chunk, wanted, &proven))
		return -ENOMEM;
	r->report->written_blocks += repair_blocks_now(
		r->pool, band->segment, chunk, band->block, source->memory, proven);
	lost = wanted & ~proven & ~there;
	r->report->lost_blocks += (unsigned)__builtin_popcountll(lost);
	if (lost)
		chunk_lost(r->pool, band->segment, chunk,
			band->block + (unsigned)__builtin_ctzll(lost),
			"the others do not make it up");
	return 0;
}

/* The others, and devices that were dropped as well: what they have is proven like all. */
static int mend_band(struct resilver *r, struct band *band, uint32_t chunks, uint32_t anew)
{
	uint32_t all = (uint32_t)low_bits(segment_width(band->segment));
	int rc;

	rc = read_chunks(band, all & ~chunks);
	for (uint32_t left = chunks; !rc && left; left &= left - 1) {
		unsigned chunk = (unsigned)__builtin_ctz(left);
		uint64_t wanted = wanted_of(band, chunk, anew);

		rc = wanted ? mend_chunk(r, band, chunk, wanted) : 0;
	}
	return rc;
}

static int do_band(struct resilver *r, struct segment *segment, uint64_t block, unsigned count,
	uint32_t chunks, uint32_t anew)
{
	struct band *band = band_create(r->pool, segment, block, count);
	uint64_t wanted = 0;
	int rc;

	if (!band)
		return -ENOMEM;
	band->last_resort = true;
	rc = read_chunks(band, chunks);
	for (uint32_t left = chunks; !rc && left; left &= left - 1)
		wanted |= wanted_of(band, (unsigned)__builtin_ctz(left), anew);
	if (!rc && wanted)
		rc = mend_band(r, band, chunks, anew);
	band_free(band);
	return rc;
}

/* --- parity whose checksums nobody has -------------------------------------------------------- */

/* A page of parity chunk `of`, which parity chunk `to` stores; its bytes where they are the same.
 */
struct making {
	struct segment *segment;
	unsigned of, to;
	struct checksum_page page;
};

static int make_band(
	struct resilver *r, struct making *m, uint64_t block, unsigned count, uint32_t *sums)
{
	struct band *band = band_create(r->pool, m->segment, block, count);
	uint8_t *bytes;
	int rc;

	if (!band)
		return -ENOMEM;
	band->last_resort = true;
	rc = read_chunks(band, (uint32_t)low_bits(m->segment->layout.data));
	if (!rc)
		rc = band_make_parity(band, m->of);
	bytes = band->sources[m->of].memory;
	for (unsigned i = 0; !rc && i < count; i++)
		sums[i] = crc32c(bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
	if (!rc && m->of == m->to)
		r->report->written_blocks += repair_blocks_now(
			r->pool, m->segment, m->of, block, bytes, low_bits(count));
	band_free(band);
	return rc;
}

static int write_page(struct resilver *r, struct making *m)
{
	void *block = buffer_alloc(r->pool->engine, BLOCK_SIZE);
	int rc = block ? checksum_page_encode(&m->page, block) : -ENOMEM;

	if (!rc)
		rc = repair_now(r->pool, m->segment, m->to,
			segment_page_offset(r->pool, m->segment, m->to, m->of, m->page.index),
			block, BLOCK_SIZE);
	buffer_free(r->pool->engine, block, BLOCK_SIZE);
	return rc == -ESHUTDOWN || rc == -ENOMEM ? rc : 0;
}

/* The blocks of one page, then the page. */
static int make_page(struct resilver *r, struct making *m)
{
	uint64_t first = (uint64_t)m->page.index * PAGE_ENTRIES, block = first;
	unsigned count;
	int rc = 0;

	while (!rc && (count = band_next(m->segment, &block)) && block < first + PAGE_ENTRIES) {
		rc = make_band(r, m, block, count, m->page.sums + (block - first));
		block += count;
	}
	m->page.count = (uint32_t)(block - first);
	if (rc == -EIO) {
		r->report->lost_blocks += m->page.count;
		return 0;
	}
	return rc ? rc : write_page(r, m);
}

/* Whether somebody has the checksums of a page. */
static int page_known(struct resilver *r, const struct making *m, bool *known)
{
	struct band *band =
		band_create(r->pool, m->segment, (uint64_t)m->page.index * PAGE_ENTRIES, 1);
	int rc = band ? 0 : -ENOMEM;

	if (!rc)
		rc = read_chunks(band, UINT32_C(1) << m->of);
	*known = !rc && !band->sources[m->of].sums_result;
	band_free(band);
	return rc;
}

static int make_parity(struct resilver *r, struct making *m)
{
	uint64_t blocks = (uint64_t)m->segment->row.rows * m->segment->layout.blocks;
	int rc = 0;

	for (uint32_t i = 0; !rc && i * (uint64_t)PAGE_ENTRIES < blocks; i++) {
		bool known;

		page_expect(r->pool, m->segment, m->of, i, &m->page);
		rc = page_known(r, m, &known);
		if (!rc && !known)
			rc = make_page(r, m);
	}
	return rc;
}

/* Of all parity chunks, also those of devices that are away: the first of these chunks that is of
 * parity has pages of them. */
static int make_unknown(struct resilver *r, struct segment *segment, uint32_t chunks)
{
	uint32_t parity = chunks & ~(uint32_t)low_bits(segment->layout.data);
	struct making *m = parity ? malloc(sizeof(*m)) : NULL;
	int rc = parity && !m ? -ENOMEM : 0;

	for (unsigned of = segment->layout.data; m && !rc && of < segment_width(segment); of++) {
		m->segment = segment;
		m->of = of;
		m->to = parity >> of & 1 ? of : (unsigned)__builtin_ctz(parity);
		rc = make_parity(r, m);
	}
	free(m);
	return rc;
}

/* --- all of a segment's ----------------------------------------------------------------------- */

static int told_to_stop(struct resilver *r)
{
	int failure = atomic_load(&r->pool->failure);

	if (failure)
		return failure;
	return r->progress && !r->progress(r->data, r->done, r->total) ? -EINTR : 0;
}

static int do_bands(struct resilver *r, struct segment *segment, uint32_t chunks, uint32_t anew)
{
	unsigned count, width = (unsigned)__builtin_popcount(chunks);
	uint64_t block = 0;
	int rc = 0;

	while (!rc && (count = band_next(segment, &block))) {
		rc = do_band(r, segment, block, count, chunks, anew);
		block += count;
		r->report->blocks += (uint64_t)count * width;
		r->done += (uint64_t)count * width;
		if (!rc)
			rc = told_to_stop(r);
	}
	return rc;
}

/* --- headers ---------------------------------------------------------------------------------- */

static int header_read(
	struct resilver *r, const struct segment *segment, unsigned chunk, void *block, bool *right)
{
	struct chunk_header want, got;
	struct io io;
	int rc;

	io_prepare(&io, IO_READ, segment_member(r->pool, segment, chunk)->device,
		segment_header_offset(r->pool, segment, chunk), block, BLOCK_SIZE);
	rc = io_run(r->pool->engine, &io);
	chunk_header_expect(r->pool, segment, chunk, &want);
	*right = !rc && !chunk_header_decode(&got, block) && chunk_header_right(&want, &got);
	return rc == -ESHUTDOWN ? rc : 0;
}

/* Those that were not written when the segment was closed. */
static int chunks_without_header(
	struct resilver *r, const struct segment *segment, uint32_t chunks, uint32_t *without)
{
	void *block = buffer_alloc(r->pool->engine, BLOCK_SIZE);
	int rc = block ? 0 : -ENOMEM;

	*without = 0;
	for (; !rc && chunks; chunks &= chunks - 1) {
		unsigned chunk = (unsigned)__builtin_ctz(chunks);
		bool right;

		rc = header_read(r, segment, chunk, block, &right);
		if (!rc && !right)
			*without |= UINT32_C(1) << chunk;
	}
	buffer_free(r->pool->engine, block, BLOCK_SIZE);
	return rc;
}

/* Where it is not written its device has failed, and is dropped. */
static int header_write(struct resilver *r, struct segment *segment, unsigned chunk, void *block)
{
	struct chunk_header header;
	int rc;

	chunk_header_expect(r->pool, segment, chunk, &header);
	rc = chunk_header_encode(&header, block);
	if (!rc)
		rc = repair_now(r->pool, segment, chunk,
			segment_header_offset(r->pool, segment, chunk), block, BLOCK_SIZE);
	return rc == -ESHUTDOWN ? rc : 0;
}

/* Behind all else of these chunks. */
static int write_headers(struct resilver *r, struct segment *segment, uint32_t chunks)
{
	void *block = buffer_alloc(r->pool->engine, BLOCK_SIZE);
	int rc = block ? pool_flush(r->pool, r->members) : -ENOMEM;

	for (; !rc && chunks; chunks &= chunks - 1)
		rc = header_write(r, segment, (unsigned)__builtin_ctz(chunks), block);
	buffer_free(r->pool->engine, block, BLOCK_SIZE);
	return rc;
}

/* --- segments --------------------------------------------------------------------------------- */

static int do_closed(struct resilver *r, struct segment *segment, uint32_t chunks)
{
	uint64_t lost = r->report->lost_blocks;
	struct pool_check_report pages = {0};
	uint32_t anew;
	int rc = chunks_without_header(r, segment, chunks, &anew);

	if (!rc)
		rc = make_unknown(r, segment, chunks);
	if (!rc)
		rc = do_bands(r, segment, chunks, anew);
	if (!rc)
		rc = pages_mend(r->pool, segment, &pages);
	r->report->lost_blocks += pages.lost_blocks;
	if (rc || !anew || r->report->lost_blocks > lost)
		return rc;
	return write_headers(r, segment, anew);
}

/* Its rows that were on their way when the device came back are there, or lost. */
static int do_open(struct resilver *r, struct segment *segment, uint32_t chunks)
{
	int rc = 0;

	if (!segment->frozen) /* of those, what is not there yet is written when it is closed */
		rc = segment_wait_rows(r->pool, segment, segment_rows_used(segment));
	return rc && rc != -EIO ? rc : do_bands(r, segment, chunks, chunks);
}

static enum segment_state state_of(struct segment *segment)
{
	struct segment_row row;

	segment_look(segment, &row);
	return row.state;
}

static int do_segment(struct resilver *r, struct segment *segment)
{
	enum segment_state state = state_of(segment);
	uint32_t chunks = chunks_of(r, segment);
	uint64_t lost = r->report->lost_blocks;
	int rc;

	if (!chunks || segment->freed || state == SEGMENT_RESERVED || state == SEGMENT_MOVED)
		return 0;
	r->report->segments++;
	if (state == SEGMENT_CLOSED)
		return do_closed(r, segment, chunks);
	rc = do_open(r, segment, chunks);
	r->report->waiting_segments += r->report->lost_blocks > lost;
	return rc;
}

static uint64_t blocks_of(const struct resilver *r, struct segment *segment)
{
	return segment_blocks(segment) / segment_width(segment) *
	       (unsigned)__builtin_popcount(chunks_of(r, segment));
}

/* By their ids: whoever has a reference keeps the slots of those that are freed meanwhile. */
static int list_ids(struct resilver *r, uint64_t **ids, unsigned *count)
{
	struct segment **list;
	int rc = segment_list(r->pool, &list, count);

	if (rc)
		return rc;
	*ids = calloc(*count + 1, sizeof(**ids));
	for (unsigned i = 0; i < *count; i++) {
		if (*ids)
			(*ids)[i] = list[i]->id;
		if (list[i]->row.data)
			r->total += blocks_of(r, list[i]);
		segment_put(list[i]);
	}
	free(list);
	return *ids ? 0 : -ENOMEM;
}

static int do_all(struct resilver *r)
{
	uint64_t *ids = NULL;
	unsigned count;
	int rc = list_ids(r, &ids, &count);

	for (unsigned i = 0; !rc && i < count; i++) {
		struct segment *segment = segment_get(r->pool, ids[i]);

		if (!segment)
			continue;
		rc = do_segment(r, segment);
		segment_put(segment);
	}
	free(ids);
	return rc;
}

/* --- whole ------------------------------------------------------------------------------------ */

static uint64_t suspects(struct pool *pool)
{
	uint64_t members = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		if (member_usable(&pool->devices[i]) &&
			atomic_load(&pool->devices[i].suspect_before))
			members |= UINT64_C(1) << i;
	return members;
}

/* What was open when the device came back is closed, as far as that can be. */
static int close_old(struct pool *pool)
{
	int rc = maintain_round(pool);

	return rc == -ENOSPC ? 0 : rc;
}

/* All that was written to it is durable. */
static void label_whole(struct pool *pool, unsigned id)
{
	pthread_mutex_lock(&pool->label_lock);
	pool->label.devices[id].dropped_lsn = 0;
	pool->devices[id].label.dropped_lsn = 0;
	pthread_mutex_unlock(&pool->label_lock);
	atomic_store(&pool->devices[id].suspect_before, 0);
	log_notice("pool %s: device %u (%s) is whole again", pool->label.name, id,
		pool->devices[id].path);
}

/* But those that were dropped meanwhile: none is attached while this goes on. */
static int become_whole(struct resilver *r)
{
	struct pool *pool = r->pool;
	int rc = pool_flush(pool, r->members);
	uint64_t left;

	if (rc)
		return rc;
	pthread_mutex_lock(&pool->drop_lock);
	left = suspects(pool) & r->members;
	for (unsigned i = 0; i < pool->device_count; i++)
		if (left >> i & 1)
			label_whole(pool, i);
	rc = label_write(pool);
	pthread_mutex_unlock(&pool->drop_lock);
	r->report->whole = !rc && left == r->members;
	return rc;
}

/* What could not be closed, as too much of it was away, can be now. */
static int let_close(struct pool *pool)
{
	struct segment **list;
	unsigned count;
	int rc = segment_list(pool, &list, &count);

	for (unsigned i = 0; !rc && i < count; i++) {
		pthread_mutex_lock(&list[i]->lock);
		list[i]->stuck = false;
		pthread_mutex_unlock(&list[i]->lock);
		segment_note_chore(list[i]);
		segment_put(list[i]);
	}
	if (!rc)
		free(list);
	return rc;
}

static int resilver(struct resilver *r)
{
	int rc = close_old(r->pool);

	if (!rc)
		rc = do_all(r);
	if (rc || r->report->lost_blocks || r->report->waiting_segments)
		return rc;
	rc = become_whole(r);
	if (!rc)
		rc = let_close(r->pool);
	/* The root's image lies where there was room without them. One that does not fit is no
	 * failure. */
	if (!rc)
		pool_checkpoint(r->pool);
	return rc;
}

static int run(struct resilver *r)
{
	int rc = atomic_load(&r->pool->failure);

	if (rc || r->pool->read_only)
		return rc ? rc : -EROFS;
	r->members = suspects(r->pool);
	r->report->devices = (unsigned)__builtin_popcountll(r->members);
	r->report->whole = !r->members;
	return r->members ? resilver(r) : 0;
}

static int run_told(struct resilver *r, struct error *error)
{
	r->pool->resilvered = (struct attempt){0};
	return run(r);
}

/* One that was ended is no attempt: it goes on when it may. */
static int run_again(struct resilver *r, struct error *error)
{
	struct pool *pool = r->pool;
	struct attempt *a = &pool->resilvered;
	int rc;

	if (!suspects(pool))
		return run(r);
	if (attempt_waits(pool, a, pool->label.name, "not all of it could be made whole", error))
		return -EBUSY;
	rc = run(r);
	a->made = rc != -EINTR && !r->report->whole;
	return rc;
}

static int resilver_as(struct resilver *r, int (*how)(struct resilver *r, struct error *error),
	struct error *error)
{
	struct pool *pool = r->pool;
	int rc;

	memset(r->report, 0, sizeof(*r->report));
	if (atomic_exchange(&pool->resilvering, true))
		return error_set(error, -EBUSY, pool->label.name,
			"its devices are being resilvered already");
	rc = refuse_for_others(pool, error);
	if (!rc)
		rc = how(r, error);
	atomic_store(&pool->resilvering, false);
	if (rc == -EINTR)
		return error_set(error, rc, pool->label.name,
			"interrupted: its devices are not whole yet; say it again");
	return rc ? error_set(error, rc, pool->label.name,
			    "its devices could not be resilvered: %s", strerror(-rc))
		  : 0;
}

int pool_resilver(struct pool *pool, struct pool_resilver_report *report,
	bool (*progress)(void *data, uint64_t done, uint64_t total), void *data,
	struct error *error)
{
	struct resilver r = {.pool = pool, .report = report, .progress = progress, .data = data};

	return resilver_as(&r, run_told, error);
}

int pool_resilver_returned(struct pool *pool, struct pool_resilver_report *report,
	bool (*progress)(void *data, uint64_t done, uint64_t total), void *data,
	struct error *error)
{
	struct resilver r = {.pool = pool, .report = report, .progress = progress, .data = data};

	return resilver_as(&r, run_again, error);
}
