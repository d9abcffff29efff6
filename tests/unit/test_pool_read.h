/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * For the tests of reading. The segments here are written by the test itself, straight to the media
 * and by what format.h says, so that every pattern of loss can be made, and what reads them is not
 * what wrote them.
 */
#ifndef TEST_POOL_READ_H
#define TEST_POOL_READ_H

#include "device/sim.h"
#include "pool/block_cache.h"
#include "pool/read.h"
#include "pool/row.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/crc32c.h"

#define SEGMENT UINT64_C(0x700000003)
#define SLOTS 4u
#define JOURNAL_BYTES (16u * BLOCK_SIZE)
#define HEAD_BYTES (BLOCK_SIZE + LABEL_AREA + JOURNAL_BYTES) /* before the slots */

struct fixture {
	struct sim_world *world;
	struct engine *engine;
	struct pool *pool;
	struct segment *segment;
	struct layout layout;
	uint32_t rows;
	uint8_t *cells[POOL_WIDTH_MAX]; /* what each chunk's cells must hold */
	uint32_t *sums; /* as in struct segment */
	int files[POOL_WIDTH_MAX]; /* with real threads: the devices */
};

/* As in a new pool. */
static inline uint8_t matrix_of(unsigned parity)
{
	return parity <= 2 ? MATRIX_PQ : MATRIX_CAUCHY;
}

/* --- a segment ---------------------------------------------------------------------------- */

static uint32_t chance = 1;

static inline uint32_t draw(uint32_t below)
{
	chance = chance * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)(chance >> 8) * below >> 24);
}

static inline void quiet(enum log_level level, const char *line)
{
	if (getenv("VERBOSE"))
		fprintf(stderr, "%d %s\n", level, line);
}

static inline const char *device_name(const struct fixture *f, unsigned chunk)
{
	return f->pool->devices[f->segment->row.chunks[chunk].device].path;
}

static inline struct member *member_of(const struct fixture *f, unsigned chunk)
{
	return segment_member(f->pool, f->segment, chunk);
}

static inline void put_on(
	struct fixture *f, unsigned device, uint64_t offset, const void *bytes, size_t length)
{
	if (f->world)
		sim_medium_write(f->world, f->pool->devices[device].path, offset, bytes, length);
	else
		assert_int_equal(pwrite(f->files[device], bytes, length, (off_t)offset), length);
}

static inline void put(
	struct fixture *f, unsigned chunk, uint64_t offset, const void *bytes, size_t length)
{
	put_on(f, f->segment->row.chunks[chunk].device, offset, bytes, length);
}

static inline uint64_t block_at(const struct fixture *f, unsigned chunk, uint64_t block)
{
	return segment_block_offset(f->pool, f->segment, chunk, block);
}

static inline const uint8_t *on_medium(const struct fixture *f, unsigned chunk, uint64_t offset)
{
	return sim_medium(f->world, device_name(f, chunk)) + offset;
}

static inline unsigned width(const struct fixture *f)
{
	return f->layout.data + f->layout.parity;
}

static inline uint64_t chunk_bytes(const struct fixture *f)
{
	return (uint64_t)f->rows * f->layout.cell;
}

static inline uint64_t linear_bytes(const struct fixture *f)
{
	return chunk_bytes(f) * f->layout.data;
}

static inline void make_content(struct fixture *f)
{
	for (unsigned c = 0; c < width(f); c++) {
		f->cells[c] = aligned_alloc(BLOCK_SIZE, chunk_bytes(f));
		assert_non_null(f->cells[c]);
		memset(f->cells[c], 0, chunk_bytes(f));
		for (uint64_t i = 0; c < f->layout.data && i < chunk_bytes(f); i += 4) {
			uint32_t value = draw(1u << 24) * 2654435761u;

			memcpy(f->cells[c] + i, &value, 4);
		}
	}
	assert_int_equal(erasure_encode(f->pool, segment_code(f->segment), chunk_bytes(f), f->cells,
				 f->cells + f->layout.data),
		0);
	f->sums = calloc((size_t)f->layout.rows * segment_row_sums(f->segment), sizeof(uint32_t));
	for (uint32_t row = 0; row < f->rows; row++) {
		uint32_t *sums = f->sums + (size_t)row * segment_row_sums(f->segment);

		for (unsigned c = 0; c < width(f); c++)
			for (uint32_t b = 0; b < f->layout.blocks; b++)
				*sums++ = crc32c(
					f->cells[c] + (size_t)row * f->layout.cell + b * BLOCK_SIZE,
					BLOCK_SIZE);
	}
}

static inline uint32_t sum_of(const struct fixture *f, unsigned chunk, uint64_t block)
{
	return f->sums[block / f->layout.blocks * segment_row_sums(f->segment) +
		       chunk * f->layout.blocks + block % f->layout.blocks];
}

static inline void make_page(
	const struct fixture *f, unsigned chunk, uint32_t index, struct checksum_page *page)
{
	uint64_t blocks = (uint64_t)f->rows * f->layout.blocks;

	memset(page, 0, sizeof(*page));
	memcpy(page->pool, f->pool->header.pool, 16);
	page->segment = SEGMENT;
	page->generation = 1;
	page->chunk = (uint8_t)chunk;
	page->index = index;
	for (uint64_t b = (uint64_t)index * PAGE_ENTRIES; b < blocks && page->count < PAGE_ENTRIES;
		b++)
		page->sums[page->count++] = sum_of(f, chunk, b);
}

static inline void put_page(
	struct fixture *f, unsigned chunk, unsigned of, uint32_t index, struct checksum_page *page)
{
	uint8_t block[BLOCK_SIZE];

	assert_int_equal(checksum_page_encode(page, block), 0);
	put(f, chunk, segment_page_offset(f->pool, f->segment, chunk, of, index), block,
		BLOCK_SIZE);
}

static inline void put_header(struct fixture *f, unsigned chunk)
{
	const struct segment_row *row = &f->segment->row;
	struct chunk_header header = {.segment = SEGMENT,
		.generation = 1,
		.index = (uint8_t)chunk,
		.data = row->data,
		.parity = row->parity,
		.matrix = row->matrix,
		.cell = row->cell,
		.rows = row->rows,
		.length = row->length,
		.volume = row->volume};
	uint8_t block[BLOCK_SIZE];

	memcpy(header.pool, f->pool->header.pool, 16);
	assert_int_equal(chunk_header_encode(&header, block), 0);
	put(f, chunk, segment_header_offset(f->pool, f->segment, chunk), block, BLOCK_SIZE);
}

/* All that stands on the media for the segment, as new. */
static inline void put_all(struct fixture *f)
{
	uint64_t blocks = (uint64_t)f->rows * f->layout.blocks;
	struct checksum_page page;

	for (unsigned c = 0; c < width(f); c++) {
		put(f, c, block_at(f, c, 0), f->cells[c], chunk_bytes(f));
		put_header(f, c);
		for (uint32_t p = 0; p * (uint64_t)PAGE_ENTRIES < blocks; p++) {
			make_page(f, c, p, &page);
			for (unsigned copy = 0; page_copy_chunk(f->segment, c, copy) >= 0; copy++)
				put_page(f, (unsigned)page_copy_chunk(f->segment, c, copy), c, p,
					&page);
		}
	}
}

static inline void open_device(struct fixture *f, unsigned i, uint64_t size)
{
	struct member *member = &f->pool->devices[i];
	struct device *device;

	if (f->world) {
		snprintf(member->path, sizeof(member->path), "nvme%u", i);
		assert_int_equal(sim_add_device(f->world, member->path, size), 0);
	} else {
		snprintf(member->path, sizeof(member->path), "/tmp/pool-read-XXXXXX");
		f->files[i] = mkstemp(member->path);
		assert_true(f->files[i] >= 0);
		assert_int_equal(ftruncate(f->files[i], (off_t)size), 0);
	}
	assert_int_equal(device_open(f->engine, member->path, 0, &device, NULL), 0);
	atomic_store(&member->device, device);
	if (!f->world)
		unlink(member->path);
	member->slots_offset = HEAD_BYTES;
	member->slot_count = SLOTS;
	member->slot_map = calloc(SLOTS, 1);
	member->header = (struct device_header){.incompatible = FEATURE_PQ,
		.id = (uint16_t)i,
		.data = (uint8_t)f->layout.data,
		.parity = (uint8_t)f->layout.parity,
		.matrix = matrix_of(f->layout.parity),
		.cell = f->layout.cell,
		.slot_rows = f->layout.rows,
		.slot_size = layout_slot_size(&f->layout),
		.slot_count = SLOTS,
		.size = size,
		.journal_offset = BLOCK_SIZE + LABEL_AREA,
		.journal_size = JOURNAL_BYTES,
		.slots_offset = HEAD_BYTES,
		.label_b_offset = size - BLOCK_SIZE - LABEL_AREA};
	memcpy(member->header.pool, f->pool->header.pool, 16);
	atomic_init(&member->state, DEVICE_ACTIVE);
}

/* Headers and labels. */
static inline void put_heads(struct fixture *f)
{
	uint8_t block[BLOCK_SIZE], body[LABEL_BODY];

	assert_int_equal(label_encode(&f->pool->label, body), 0);
	for (unsigned i = 0; i < width(f); i++) {
		const struct device_header *header = &f->pool->devices[i].header;

		assert_int_equal(device_header_encode(header, block), 0);
		put_on(f, i, 0, block, BLOCK_SIZE);
		put_on(f, i, header->size - BLOCK_SIZE, block, BLOCK_SIZE);
		put_on(f, i, label_place(LABEL_A_OFFSET, f->pool->epoch), body, LABEL_BODY);
		put_on(f, i, label_place(header->label_b_offset, f->pool->epoch), body, LABEL_BODY);
	}
}

static inline void init_pool(struct fixture *f, size_t page_cache)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	uint64_t size = HEAD_BYTES + (uint64_t)SLOTS * layout_slot_size(&f->layout) + LABEL_AREA +
			BLOCK_SIZE;

	f->pool = pool;
	pool->engine = f->engine;
	memset(pool->header.pool, 0x5a, 16);
	memcpy(pool->label.pool, pool->header.pool, 16);
	strcpy(pool->label.name, "tank");
	pool->header.slot_rows = f->layout.rows;
	pool->k = f->layout.data;
	pool->m = f->layout.parity;
	pool->epoch = pool->label.epoch = 7;
	pool->label.state = LABEL_OPEN;
	pool->device_count = pool->label.device_count = (uint16_t)width(f);
	pool->table_size = 64;
	pool->table = calloc(64, sizeof(*pool->table));
	pthread_rwlock_init(&pool->table_lock, NULL);
	pthread_mutex_init(&pool->slots_lock, NULL);
	pthread_mutex_init(&pool->label_lock, NULL);
	pthread_mutex_init(&pool->label_turn, NULL);
	pthread_mutex_init(&pool->drop_lock, NULL);
	pthread_mutex_init(&pool->wake_lock, NULL);
	pthread_mutex_init(&pool->row_lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	for (unsigned i = 0; i < width(f); i++)
		open_device(f, i, size);
	put_heads(f);
	assert_int_equal(page_cache_create(pool, page_cache), 0);
	assert_int_equal(block_cache_create(pool), 0);
}

/* An empty cache: what was read is forgotten. */
static inline void forget_pages(struct fixture *f)
{
	page_cache_forget(f->pool, SEGMENT);
}

struct shape {
	unsigned data, parity;
	uint32_t cell, slot_rows, rows;
	bool threads;
};

static inline void start(struct fixture *f, const struct shape *shape)
{
	struct segment_row row = {.id = SEGMENT,
		.epoch = 7,
		.volume = 3,
		.generation = 1,
		.state = SEGMENT_CLOSED,
		.data = (uint8_t)shape->data,
		.parity = (uint8_t)shape->parity,
		.matrix = matrix_of(shape->parity),
		.purpose = PURPOSE_DATA,
		.cell = shape->cell,
		.rows = shape->rows,
		.length = (uint64_t)shape->rows * shape->cell * shape->data};

	memset(f, 0, sizeof(*f));
	log_set_sink(quiet);
	if (shape->threads) {
		assert_int_equal(
			uring_engine_create(&(struct engine_options){.rings = 3}, &f->engine, NULL),
			0);
	} else {
		assert_int_equal(sim_world_create(&(struct sim_options){1, true}, &f->world), 0);
		assert_int_equal(sim_engine_create(f->world, &f->engine), 0);
	}
	layout_compute(&f->layout, shape->data, shape->parity, shape->cell, shape->slot_rows);
	f->rows = shape->rows;
	init_pool(f, 1 << 20);
	for (unsigned c = 0; c < width(f); c++)
		row.chunks[c] = (struct chunk_place){
			.device = (uint16_t)((c + 2) % width(f)), .slot = c % SLOTS};
	assert_int_equal(segment_insert(f->pool, &row, &f->segment), 0);
	make_content(f);
	put_all(f);
}

static inline void finish(struct fixture *f)
{
	segment_put(f->segment);
	if (segment_get(f->pool, SEGMENT)) {
		segment_put(f->segment);
		segment_remove(f->pool, f->segment);
	}
	page_cache_destroy(f->pool);
	block_cache_destroy(f->pool);
	erasure_destroy(f->pool);
	for (unsigned i = 0; i < width(f); i++) {
		device_close(f->pool->devices[i].device);
		free(f->pool->devices[i].slot_map);
		free(f->cells[i]);
		if (!f->world)
			close(f->files[i]);
	}
	free(f->sums);
	free(f->pool->table);
	free(f->pool);
	engine_destroy(f->engine);
	sim_world_destroy(f->world);
}

/* 6 devices, two pages a chunk, several cells a piece. */
static const struct shape wide = {4, 2, 8192, 520, 510, false};
static const struct shape small = {4, 2, 16384, 16, 10, false};

/* --- reading and comparing ---------------------------------------------------------------- */

static inline void expected(
	const struct fixture *f, uint64_t offset, uint64_t length, uint8_t *into)
{
	uint64_t row_bytes = (uint64_t)f->layout.data * f->layout.cell;

	for (uint64_t i = 0; i < length;) {
		uint64_t at = offset + i, row = at / row_bytes, within = at % row_bytes;
		uint64_t n = f->layout.cell - within % f->layout.cell;

		n = n < length - i ? n : length - i;
		memcpy(into + i,
			f->cells[within / f->layout.cell] + row * f->layout.cell +
				within % f->layout.cell,
			n);
		i += n;
	}
}

/* Reads to memory that is `shift` bytes off a block, with guards around it. */
static inline int read_at(struct fixture *f, uint64_t offset, uint64_t length, unsigned shift)
{
	size_t room = ((size_t)length + 3 * BLOCK_SIZE) / BLOCK_SIZE * BLOCK_SIZE;
	uint8_t *buffer = buffer_alloc(f->engine, room), *want = malloc(length + 1);
	uint8_t *into = buffer + BLOCK_SIZE / 2 + shift;
	struct read_part part;
	int result;

	if (shift == BLOCK_SIZE / 2)
		into = buffer + BLOCK_SIZE;
	memset(buffer, 0xee, room);
	part = (struct read_part){{SEGMENT, offset, length}, into};
	result = pool_read_wait(f->pool, &part, 1);
	expected(f, offset, length, want);
	if (!result)
		assert_memory_equal(into, want, length);
	for (uint8_t *p = buffer; p < into; p++)
		assert_int_equal(*p, 0xee);
	for (uint8_t *p = into + length; p < buffer + room; p++)
		assert_int_equal(*p, 0xee);
	free(want);
	buffer_free(f->engine, buffer, room);
	return result;
}

static inline int read_aligned(struct fixture *f, uint64_t offset, uint64_t length)
{
	return read_at(f, offset, length, BLOCK_SIZE / 2);
}

static inline int read_everything(struct fixture *f)
{
	return read_aligned(f, 0, linear_bytes(f));
}

static inline void drain(struct fixture *f)
{
	sim_drain(f->world);
	sim_settle(f->world);
}

static inline void rot(struct fixture *f, unsigned chunk, uint64_t offset, uint64_t length)
{
	sim_settle(f->world);
	sim_rot(f->world, device_name(f, chunk), offset, length, draw(1u << 20));
}

static inline void rot_block(struct fixture *f, unsigned chunk, uint64_t block)
{
	rot(f, chunk, block_at(f, chunk, block) + draw(BLOCK_SIZE - 8), 8);
}

static inline bool block_right(const struct fixture *f, unsigned chunk, uint64_t block)
{
	return memcmp(on_medium(f, chunk, block_at(f, chunk, block)),
		       f->cells[chunk] + block * BLOCK_SIZE, BLOCK_SIZE) == 0;
}

static inline uint64_t total(const struct fixture *f, size_t field)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < width(f); i++)
		sum += atomic_load(
			(_Atomic uint64_t *)(void *)((char *)&f->pool->devices[i] + field));
	return sum;
}
#define TOTAL(f, counter) total(f, offsetof(struct member, counter))

/* --- lost devices ------------------------------------------------------------------------- */

/* Dead; and dropped for it, or not yet. */
static inline void lose(struct fixture *f, unsigned set, bool dropped)
{
	for (unsigned c = 0; c < width(f); c++) {
		if (!(set >> c & 1))
			continue;
		if (dropped)
			atomic_store(&member_of(f, c)->state, DEVICE_DROPPED);
		sim_kill_device(f->world, device_name(f, c));
	}
}

/* --- rows in memory, open segments -------------------------------------------------------- */

static inline void reopen(struct fixture *f)
{
	f->segment->row.state = SEGMENT_OPEN;
	assert_int_equal(segment_open_arrays(f->segment), 0);
	memcpy(f->segment->sums, f->sums,
		(size_t)f->layout.rows * segment_row_sums(f->segment) * sizeof(uint32_t));
	memset(f->segment->row_done, ROW_IS_DONE, f->rows);
}

static inline void keep_row(struct fixture *f, uint32_t index)
{
	struct row *row;

	assert_int_equal(row_create(f->pool, f->segment, index, &row), 0);
	for (unsigned c = 0; c < width(f); c++)
		memcpy(row->memory + (size_t)c * f->layout.cell,
			f->cells[c] + (size_t)index * f->layout.cell, f->layout.cell);
	row_install(row);
}

static inline uint64_t reads_done(struct fixture *f)
{
	struct engine_counters counters;

	engine_counters(f->engine, &counters);
	return counters.reads;
}

#endif
