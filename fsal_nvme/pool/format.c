/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Encoding and decoding of everything that stands on devices by itself. A decoder believes nothing:
 * magic, version, CRC, then every value against its bounds.
 */
#include "pool/format.h"

#include <assert.h>
#include <errno.h>
#include <xxhash.h>

#include "common/crc32c.h"

bool format_waive_checksums;

#define UUID_SIZE 16

static_assert(sizeof(((struct checksum_page *)0)->sums) + 96 <= BLOCK_SIZE, "a page is one block");
static_assert(LABEL_BODY + BLOCK_SIZE == LABEL_SIZE, "a label and its beat make one place");

/* --- frames: magic, version, ..., CRC32C in the last four bytes
 * ----------------------------------- */

#define FRAME_HEAD 12u /* magic, version */

static struct writer frame_begin(void *frame, size_t size, uint64_t magic)
{
	struct writer w = writer_on(frame, size - 4);

	memset(frame, 0, size);
	put_u64(&w, magic);
	put_u32(&w, FORMAT_VERSION);
	return w;
}

static int frame_end(struct writer *w, void *frame, size_t size)
{
	struct writer crc = writer_on((uint8_t *)frame + size - 4, 4);

	if (w->overflow)
		return -E2BIG;
	put_u32(&crc, crc32c(frame, size - 4));
	return 0;
}

static int frame_open(struct reader *r, const void *frame, size_t size, uint64_t magic)
{
	struct reader crc = reader_on((const uint8_t *)frame + size - 4, 4);

	*r = reader_on(frame, size - 4);
	if (get_u64(r) != magic)
		return -EBADMSG;
	if (crc32c(frame, size - 4) != get_u32(&crc) && !format_waive_checksums)
		return -EBADMSG;
	return get_u32(r) > FORMAT_VERSION ? -ENOTSUP : 0;
}

static void get_copy(struct reader *r, void *into, size_t length)
{
	const uint8_t *bytes = get_bytes(r, length);

	if (bytes)
		memcpy(into, bytes, length);
	else
		memset(into, 0, length);
}

/* Text fields are stored with their full width, the last byte always 0. */
static void get_text(struct reader *r, char *into, size_t size)
{
	get_copy(r, into, size);
	if (into[size - 1])
		r->bad = true;
	into[size - 1] = 0;
}

static bool power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

static bool width_valid(unsigned data, unsigned parity)
{
	return data >= 1 && parity >= 1 && data + parity <= POOL_WIDTH_MAX;
}

static bool matrix_valid(unsigned matrix, unsigned parity)
{
	return matrix == MATRIX_CAUCHY || (matrix == MATRIX_PQ && parity <= 2);
}

bool code_valid(unsigned matrix, unsigned data, unsigned parity)
{
	return width_valid(data, parity) && matrix_valid(matrix, parity);
}

static bool cell_valid(uint32_t cell)
{
	return cell >= BLOCK_SIZE && cell <= (4u << 20) && power_of_two(cell);
}

/* --- device header
 * --------------------------------------------------------------------------------- */

int device_header_encode(const struct device_header *h, void *block)
{
	struct writer w = frame_begin(block, BLOCK_SIZE, MAGIC_DEVICE);

	put_u64(&w, h->incompatible);
	put_u64(&w, h->read_only);
	put_u64(&w, h->compatible);
	put_bytes(&w, h->pool, UUID_SIZE);
	put_bytes(&w, h->uuid, UUID_SIZE);
	put_u16(&w, h->id);
	put_u8(&w, h->data);
	put_u8(&w, h->parity);
	put_u8(&w, h->matrix);
	put_u32(&w, h->cell);
	put_u32(&w, h->slot_rows);
	put_u32(&w, h->slot_size);
	put_u32(&w, h->slot_count);
	put_u64(&w, h->size);
	put_u64(&w, h->journal_offset);
	put_u64(&w, h->journal_size);
	put_u64(&w, h->slots_offset);
	put_u64(&w, h->label_b_offset);
	put_u64(&w, h->created);
	return frame_end(&w, block, BLOCK_SIZE);
}

static bool geometry_valid(const struct device_header *h)
{
	struct layout layout;

	if (!width_valid(h->data, h->parity) || !cell_valid(h->cell) || h->id >= POOL_DEVICES_MAX)
		return false;
	if (h->matrix == MATRIX_PQ && !(h->incompatible & FEATURE_PQ))
		return false;
	if (!matrix_valid(h->matrix, h->parity) || !h->slot_rows || h->slot_rows > (1u << 20) ||
		!h->slot_count)
		return false;
	if ((uint64_t)h->slot_rows * h->cell > CHUNK_MOST)
		return false;
	layout_compute(&layout, h->data, h->parity, h->cell, h->slot_rows);
	if (layout_slot_size(&layout) != h->slot_size)
		return false;
	if ((h->journal_offset | h->journal_size | h->slots_offset | h->label_b_offset | h->size) %
		BLOCK_SIZE)
		return false;
	if (h->size > (1ull << 60) || h->journal_offset > h->size || h->journal_size > h->size ||
		h->slots_offset > h->size || h->label_b_offset > h->size)
		return false;
	if (h->journal_offset < BLOCK_SIZE + LABEL_AREA || h->journal_size < 16 * BLOCK_SIZE ||
		h->journal_offset + h->journal_size > h->slots_offset)
		return false;
	if (h->slots_offset + (uint64_t)h->slot_count * h->slot_size > h->label_b_offset)
		return false;
	return h->label_b_offset + LABEL_AREA + BLOCK_SIZE <= h->size;
}

int device_header_decode(struct device_header *h, const void *block)
{
	struct reader r;
	int rc = frame_open(&r, block, BLOCK_SIZE, MAGIC_DEVICE);

	if (rc)
		return rc;
	memset(h, 0, sizeof(*h));
	h->incompatible = get_u64(&r);
	h->read_only = get_u64(&r);
	h->compatible = get_u64(&r);
	get_copy(&r, h->pool, UUID_SIZE);
	get_copy(&r, h->uuid, UUID_SIZE);
	h->id = get_u16(&r);
	h->data = get_u8(&r);
	h->parity = get_u8(&r);
	h->matrix = get_u8(&r);
	h->cell = get_u32(&r);
	h->slot_rows = get_u32(&r);
	h->slot_size = get_u32(&r);
	h->slot_count = get_u32(&r);
	h->size = get_u64(&r);
	h->journal_offset = get_u64(&r);
	h->journal_size = get_u64(&r);
	h->slots_offset = get_u64(&r);
	h->label_b_offset = get_u64(&r);
	h->created = get_u64(&r);
	if (h->incompatible & ~FEATURES_INCOMPATIBLE)
		return -ENOTSUP;
	return r.bad || !geometry_valid(h) ? -EBADMSG : 0;
}

/* --- rows that stand in the label and in the pool's environment
 * ------------------------------------- */

void segment_row_encode(const struct segment_row *row, struct writer *w)
{
	put_u8(w, 1); /* version of the row */
	put_u64(w, row->id);
	put_u64(w, row->epoch);
	put_u32(w, row->volume);
	put_u32(w, row->generation);
	put_u8(w, row->state);
	put_u8(w, row->data);
	put_u8(w, row->parity);
	put_u8(w, row->matrix);
	put_u8(w, row->purpose);
	put_u32(w, row->cell);
	put_u32(w, row->rows);
	put_u64(w, row->length);
	put_u64(w, row->live);
	if (row->purpose == PURPOSE_IMAGE)
		put_u64(w, row->next);
	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++) {
		put_u16(w, row->chunks[i].device);
		put_u32(w, row->chunks[i].slot);
	}
}

static bool segment_row_valid(const struct segment_row *row)
{
	uint64_t seen = 0;

	if (!row->id || !row->generation || !matrix_valid(row->matrix, row->parity) ||
		!cell_valid(row->cell))
		return false;
	if (row->state < SEGMENT_RESERVED || row->state > SEGMENT_MOVED)
		return false;
	if (row->state == SEGMENT_MOVED && row->purpose != PURPOSE_DATA)
		return false;
	if (row->purpose > PURPOSE_IMAGE || row->rows > (1u << 20))
		return false;
	if (row->length > (uint64_t)row->rows * row->cell * row->data &&
		row->state == SEGMENT_CLOSED)
		return false;
	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++) {
		unsigned device = row->chunks[i].device;

		if (device >= POOL_DEVICES_MAX || seen >> device & 1)
			return false;
		seen |= 1ull << device;
	}
	return true;
}

static bool row_width_valid(const struct segment_row *row)
{
	if (row->state == SEGMENT_MOVED)
		return !row->data && !row->parity;
	return width_valid(row->data, row->parity);
}

int segment_row_decode(struct segment_row *row, struct reader *r)
{
	memset(row, 0, sizeof(*row));
	if (get_u8(r) != 1)
		return -EBADMSG;
	row->id = get_u64(r);
	row->epoch = get_u64(r);
	row->volume = get_u32(r);
	row->generation = get_u32(r);
	row->state = get_u8(r);
	row->data = get_u8(r);
	row->parity = get_u8(r);
	row->matrix = get_u8(r);
	row->purpose = get_u8(r);
	row->cell = get_u32(r);
	row->rows = get_u32(r);
	row->length = get_u64(r);
	row->live = get_u64(r);
	if (row->purpose == PURPOSE_IMAGE)
		row->next = get_u64(r);
	if (r->bad || !row_width_valid(row))
		return -EBADMSG;
	for (unsigned i = 0; i < (unsigned)row->data + row->parity; i++) {
		row->chunks[i].device = get_u16(r);
		row->chunks[i].slot = get_u32(r);
	}
	return r->bad || !segment_row_valid(row) ? -EBADMSG : 0;
}

static void position_encode(const struct journal_position *p, struct writer *w)
{
	put_u64(w, p->position);
	put_u64(w, p->lsn);
	put_u64(w, p->hash);
	put_u64(w, p->epoch);
}

static struct journal_position position_decode(struct reader *r)
{
	struct journal_position p;

	p.position = get_u64(r);
	p.lsn = get_u64(r);
	p.hash = get_u64(r);
	p.epoch = get_u64(r);
	if (p.position % BLOCK_SIZE)
		r->bad = true;
	return p;
}

void image_row_encode(const struct image_row *row, struct writer *w)
{
	put_u8(w, 1);
	put_u8(w, row->kind);
	put_u64(w, row->lsn);
	put_u64(w, row->length);
	put_u64(w, row->hash);
	put_u64(w, row->segment);
}

int image_row_decode(struct image_row *row, struct reader *r)
{
	memset(row, 0, sizeof(*row));
	if (get_u8(r) != 1)
		return -EBADMSG;
	row->kind = get_u8(r);
	row->lsn = get_u64(r);
	row->length = get_u64(r);
	row->hash = get_u64(r);
	row->segment = get_u64(r);
	return r->bad || row->kind > IMAGE_DELTA ? -EBADMSG : 0;
}

/* --- label
 * ------------------------------------------------------------------------------------------ */

static void label_devices_encode(const struct label *label, struct writer *w)
{
	put_u16(w, label->device_count);
	for (unsigned i = 0; i < label->device_count; i++) {
		const struct label_device *d = &label->devices[i];

		put_bytes(w, d->uuid, UUID_SIZE);
		put_u8(w, d->state);
		put_bytes(w, d->domain, sizeof(d->domain));
		put_u64(w, d->dropped_lsn);
		put_u32(w, d->slot_count);
	}
}

static void label_devices_decode(struct label *label, struct reader *r)
{
	label->device_count = get_u16(r);
	if (label->device_count > POOL_DEVICES_MAX || !label->device_count) {
		r->bad = true;
		return;
	}
	for (unsigned i = 0; i < label->device_count; i++) {
		struct label_device *d = &label->devices[i];

		get_copy(r, d->uuid, UUID_SIZE);
		d->state = get_u8(r);
		get_text(r, d->domain, sizeof(d->domain));
		d->dropped_lsn = get_u64(r);
		d->slot_count = get_u32(r);
		if (d->state > DEVICE_DROPPED)
			r->bad = true;
	}
}

static void label_root_encode(const struct label *label, struct writer *w)
{
	image_row_encode(&label->root, w);
	put_u8(w, label->root_segment_count);
	for (unsigned i = 0; i < label->root_segment_count; i++)
		segment_row_encode(&label->root_segments[i], w);
	position_encode(&label->replay, w);
	put_u8(w, label->span_count);
	for (unsigned i = 0; i < label->span_count; i++) {
		const struct journal_span *span = &label->spans[i];

		put_u64(w, span->epoch);
		position_encode(&span->start, w);
		put_u64(w, span->end);
		put_u64(w, span->window);
	}
}

static void label_others_encode(const struct label *label, struct writer *w)
{
	put_u8(w, label->other_count);
	for (unsigned i = 0; i < label->other_count; i++) {
		const struct label_owner *owner = &label->others[i];

		put_u64(w, owner->epoch);
		put_bytes(w, owner->host, sizeof(owner->host));
		put_u64(w, owner->from);
		put_u64(w, owner->to);
	}
}

static void label_others_decode(struct label *label, struct reader *r)
{
	label->other_count = get_u8(r);
	if (label->other_count > OWNERS_MAX)
		r->bad = true;
	for (unsigned i = 0; !r->bad && i < label->other_count; i++) {
		struct label_owner *owner = &label->others[i];

		owner->epoch = get_u64(r);
		get_text(r, owner->host, sizeof(owner->host));
		owner->from = get_u64(r);
		owner->to = get_u64(r);
		if (owner->epoch >= label->epoch || owner->from > owner->to)
			r->bad = true;
	}
}

/* At the end, where older labels have zeros. */
static void label_boots_encode(const struct label *label, struct writer *w)
{
	for (unsigned i = 0; i < label->other_count; i++)
		put_bytes(w, label->others[i].boot, sizeof(label->others[i].boot));
}

static void label_boots_decode(struct label *label, struct reader *r)
{
	for (unsigned i = 0; !r->bad && i < label->other_count; i++)
		get_copy(r, label->others[i].boot, sizeof(label->others[i].boot));
}

static void label_root_decode(struct label *label, struct reader *r)
{
	if (image_row_decode(&label->root, r))
		r->bad = true;
	label->root_segment_count = get_u8(r);
	if (label->root_segment_count > ROOT_SEGMENTS_MAX)
		r->bad = true;
	for (unsigned i = 0; !r->bad && i < label->root_segment_count; i++)
		if (segment_row_decode(&label->root_segments[i], r) ||
			label->root_segments[i].state == SEGMENT_MOVED)
			r->bad = true;
	label->replay = position_decode(r);
	label->span_count = get_u8(r);
	if (label->span_count > SPANS_MAX)
		r->bad = true;
	for (unsigned i = 0; !r->bad && i < label->span_count; i++) {
		struct journal_span *span = &label->spans[i];

		span->epoch = get_u64(r);
		span->start = position_decode(r);
		span->end = get_u64(r);
		span->window = get_u64(r);
		if (span->end < span->start.position || span->end > span->window)
			r->bad = true;
	}
}

int label_encode(const struct label *label, void *body)
{
	struct writer w = frame_begin(body, LABEL_BODY, MAGIC_LABEL);

	put_bytes(&w, label->pool, UUID_SIZE);
	put_bytes(&w, label->name, sizeof(label->name));
	put_u64(&w, label->epoch);
	put_u64(&w, label->sequence);
	put_u8(&w, label->state);
	put_bytes(&w, label->owner, sizeof(label->owner));
	put_bytes(&w, label->owner_boot, sizeof(label->owner_boot));
	put_u64(&w, label->owner_pid);
	put_u64(&w, label->written);
	label_devices_encode(label, &w);
	label_root_encode(label, &w);
	label_others_encode(label, &w);
	put_u64(&w, label->repeats.epoch);
	put_u64(&w, label->repeats.sequence);
	label_boots_encode(label, &w);
	return frame_end(&w, body, LABEL_BODY);
}

int label_decode(struct label *label, const void *body)
{
	struct reader r;
	int rc = frame_open(&r, body, LABEL_BODY, MAGIC_LABEL);

	if (rc)
		return rc;
	memset(label, 0, sizeof(*label));
	get_copy(&r, label->pool, UUID_SIZE);
	get_text(&r, label->name, sizeof(label->name));
	label->epoch = get_u64(&r);
	label->sequence = get_u64(&r);
	label->state = get_u8(&r);
	get_text(&r, label->owner, sizeof(label->owner));
	get_copy(&r, label->owner_boot, sizeof(label->owner_boot));
	label->owner_pid = get_u64(&r);
	label->written = get_u64(&r);
	label_devices_decode(label, &r);
	label_root_decode(label, &r);
	label_others_decode(label, &r);
	label->repeats.epoch = get_u64(&r);
	label->repeats.sequence = get_u64(&r);
	label_boots_decode(label, &r);
	if (label->repeats.sequence && label->repeats.epoch >= label->epoch)
		r.bad = true;
	if (label->state < LABEL_EXPORTED || label->state > LABEL_OPEN)
		r.bad = true;
	return r.bad ? -EBADMSG : 0;
}

/* What most places hold is told by its epoch alone. A label of a version to come is one, too. */
static bool is_anothers(const uint8_t *body, const struct label_self *self, uint64_t epoch)
{
	struct reader r = reader_on(body + FRAME_HEAD, LABEL_BODY - FRAME_HEAD);
	const uint8_t *uuid = get_bytes(&r, UUID_SIZE);
	struct label label;
	int rc;

	get_bytes(&r, sizeof(label.name));
	if (get_u64(&r) < epoch || memcmp(uuid, self->pool, UUID_SIZE))
		return false;
	rc = label_decode(&label, body);
	if (!rc)
		return label.epoch > epoch || label.owner_pid != self->pid ||
		       memcmp(label.owner_boot, self->boot, sizeof(self->boot));
	return rc == -ENOTSUP;
}

bool area_has_anothers(const uint8_t *area, const struct label_self *self, uint64_t epoch)
{
	for (unsigned place = 0; place < LABEL_RING; place++)
		if (is_anothers(area + (size_t)place * LABEL_SIZE, self, epoch))
			return true;
	return false;
}

int beat_encode(const struct beat *beat, const uint8_t pool[16], void *block)
{
	struct writer w = frame_begin(block, BLOCK_SIZE, MAGIC_BEAT);

	put_bytes(&w, pool, UUID_SIZE);
	put_u64(&w, beat->epoch);
	put_u64(&w, beat->count);
	return frame_end(&w, block, BLOCK_SIZE);
}

int beat_decode(struct beat *beat, const uint8_t pool[16], const void *block)
{
	struct reader r;
	uint8_t uuid[UUID_SIZE];
	int rc = frame_open(&r, block, BLOCK_SIZE, MAGIC_BEAT);

	if (rc)
		return rc;
	get_copy(&r, uuid, UUID_SIZE);
	beat->epoch = get_u64(&r);
	beat->count = get_u64(&r);
	return r.bad || memcmp(uuid, pool, UUID_SIZE) ? -EBADMSG : 0;
}

/* --- chunks
 * ----------------------------------------------------------------------------------------- */

int chunk_header_encode(const struct chunk_header *h, void *block)
{
	struct writer w = frame_begin(block, BLOCK_SIZE, MAGIC_CHUNK);

	put_bytes(&w, h->pool, UUID_SIZE);
	put_u64(&w, h->segment);
	put_u32(&w, h->generation);
	put_u8(&w, h->index);
	put_u8(&w, h->data);
	put_u8(&w, h->parity);
	put_u8(&w, h->matrix);
	put_u32(&w, h->cell);
	put_u32(&w, h->rows);
	put_u64(&w, h->length);
	put_u32(&w, h->volume);
	return frame_end(&w, block, BLOCK_SIZE);
}

int chunk_header_decode(struct chunk_header *h, const void *block)
{
	struct reader r;
	int rc = frame_open(&r, block, BLOCK_SIZE, MAGIC_CHUNK);

	if (rc)
		return rc;
	memset(h, 0, sizeof(*h));
	get_copy(&r, h->pool, UUID_SIZE);
	h->segment = get_u64(&r);
	h->generation = get_u32(&r);
	h->index = get_u8(&r);
	h->data = get_u8(&r);
	h->parity = get_u8(&r);
	h->matrix = get_u8(&r);
	h->cell = get_u32(&r);
	h->rows = get_u32(&r);
	h->length = get_u64(&r);
	h->volume = get_u32(&r);
	if (r.bad || !width_valid(h->data, h->parity) || !cell_valid(h->cell))
		return -EBADMSG;
	return h->index >= h->data + h->parity ? -EBADMSG : 0;
}

int checksum_page_encode(const struct checksum_page *page, void *block)
{
	struct writer w = frame_begin(block, BLOCK_SIZE, MAGIC_PAGE);

	put_bytes(&w, page->pool, UUID_SIZE);
	put_u64(&w, page->segment);
	put_u32(&w, page->generation);
	put_u8(&w, page->chunk);
	put_u32(&w, page->index);
	put_u32(&w, page->count);
	for (uint32_t i = 0; i < page->count; i++)
		put_u32(&w, page->sums[i]);
	return frame_end(&w, block, BLOCK_SIZE);
}

int checksum_page_decode(struct checksum_page *page, const void *block)
{
	struct reader r;
	int rc = frame_open(&r, block, BLOCK_SIZE, MAGIC_PAGE);

	if (rc)
		return rc;
	get_copy(&r, page->pool, UUID_SIZE);
	page->segment = get_u64(&r);
	page->generation = get_u32(&r);
	page->chunk = get_u8(&r);
	page->index = get_u32(&r);
	page->count = get_u32(&r);
	if (page->count > PAGE_ENTRIES)
		return -EBADMSG;
	for (uint32_t i = 0; i < page->count; i++)
		page->sums[i] = get_u32(&r);
	return r.bad ? -EBADMSG : 0;
}

/* --- journal batches
 * -------------------------------------------------------------------------------- */

#define BATCH_HASH_OFFSET 68u /* of the field `hash` */

static uint64_t batch_hash(const uint8_t *batch, size_t length)
{
	uint64_t head = XXH64(batch, BATCH_HASH_OFFSET, 0);

	return XXH64(batch + BATCH_HASH_OFFSET + 8, length - BATCH_HASH_OFFSET - 8, head);
}

static void put_hash(uint8_t *batch, uint64_t hash)
{
	struct writer w = writer_on(batch + BATCH_HASH_OFFSET, 8);

	put_u64(&w, hash);
}

void batch_seal(const struct batch_header *h, void *batch)
{
	struct writer w = writer_on(batch, BATCH_HEADER_SIZE);

	memset(batch, 0, BATCH_HEADER_SIZE);
	put_u64(&w, MAGIC_BATCH);
	put_u32(&w, FORMAT_VERSION);
	put_bytes(&w, h->pool, UUID_SIZE);
	put_u64(&w, h->epoch);
	put_u64(&w, h->position);
	put_u64(&w, h->lsn);
	put_u64(&w, h->previous);
	put_u32(&w, h->records);
	put_u32(&w, h->length);
	put_hash(batch, batch_hash(batch, h->length));
}

int batch_peek(struct batch_header *h, const void *block)
{
	struct reader r = reader_on(block, BATCH_HEADER_SIZE);

	if (get_u64(&r) != MAGIC_BATCH)
		return -EBADMSG;
	if (get_u32(&r) > FORMAT_VERSION)
		return -ENOTSUP;
	get_copy(&r, h->pool, UUID_SIZE);
	h->epoch = get_u64(&r);
	h->position = get_u64(&r);
	h->lsn = get_u64(&r);
	h->previous = get_u64(&r);
	h->records = get_u32(&r);
	h->length = get_u32(&r);
	h->hash = get_u64(&r);
	return r.bad || h->length < BATCH_HEADER_SIZE ? -EBADMSG : 0;
}

int batch_decode(struct batch_header *h, const void *batch, size_t available)
{
	int rc = batch_peek(h, batch);

	if (rc)
		return rc;
	if (h->length > available)
		return -EBADMSG;
	return batch_hash(batch, h->length) != h->hash && !format_waive_checksums ? -EBADMSG : 0;
}

/* --- layout
 * ----------------------------------------------------------------------------------------- */

void layout_compute(
	struct layout *layout, unsigned data, unsigned parity, uint32_t cell, uint32_t slot_rows)
{
	uint64_t blocks = (uint64_t)slot_rows * (cell / BLOCK_SIZE);

	layout->data = data;
	layout->parity = parity;
	layout->cell = cell;
	layout->rows = slot_rows;
	layout->blocks = cell / BLOCK_SIZE;
	layout->pages = (uint32_t)((blocks + PAGE_ENTRIES - 1) / PAGE_ENTRIES);
	layout->cells_offset = BLOCK_SIZE * (1 + (data + parity) * layout->pages);
}

uint32_t layout_slot_size(const struct layout *layout)
{
	return layout->cells_offset + layout->rows * layout->cell;
}
