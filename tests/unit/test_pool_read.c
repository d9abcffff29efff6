/* SPDX-License-Identifier: LGPL-3.0-or-later. Reading, rebuilding, repairing, checking. links: pool
 */
/*
 * The segments here are written by the test itself, straight to the media and by what format.h
 * says, so that every pattern of loss can be made, and what reads them is not what wrote them.
 */
#include "device/sim.h"
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

/* --- memory that can run out -------------------------------------------------------------- */

static uint64_t fail_allocation; /* the n-th from now; 0: none */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
static long allocations;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static void *counted(void *memory)
{
	if (memory)
		__atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
	return memory;
}

static bool fails(void)
{
	return fail_allocation && --fail_allocation == 0;
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
	return fails() ? NULL : counted(__libc_malloc(size));
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
	return fails() ? NULL : counted(__libc_calloc(count, size));
}

__attribute__((visibility("default"))) void *realloc(void *memory, size_t size)
{
	if (fails())
		return NULL;
	return memory ? __libc_realloc(memory, size) : counted(__libc_malloc(size));
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t size)
{
	return fails() ? NULL : counted(__libc_memalign(alignment, size));
}

__attribute__((visibility("default"))) void free(void *memory)
{
	if (memory)
		__atomic_sub_fetch(&allocations, 1, __ATOMIC_RELAXED);
	__libc_free(memory);
}
#else
#define COUNTS_ALLOCATIONS 0
static long allocations;
#endif

/* --- a segment ---------------------------------------------------------------------------- */

static uint32_t chance = 1;

static uint32_t draw(uint32_t below)
{
	chance = chance * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)(chance >> 8) * below >> 24);
}

static void quiet(enum log_level level, const char *line)
{
	if (getenv("VERBOSE"))
		fprintf(stderr, "%d %s\n", level, line);
}

static const char *device_name(const struct fixture *f, unsigned chunk)
{
	return f->pool->devices[f->segment->row.chunks[chunk].device].path;
}

static struct member *member_of(const struct fixture *f, unsigned chunk)
{
	return segment_member(f->pool, f->segment, chunk);
}

static void put(
	struct fixture *f, unsigned chunk, uint64_t offset, const void *bytes, size_t length)
{
	if (f->world)
		sim_medium_write(f->world, device_name(f, chunk), offset, bytes, length);
	else
		assert_int_equal(pwrite(f->files[f->segment->row.chunks[chunk].device], bytes,
					 length, (off_t)offset),
			length);
}

static uint64_t block_at(const struct fixture *f, unsigned chunk, uint64_t block)
{
	return segment_block_offset(f->pool, f->segment, chunk, block);
}

static const uint8_t *on_medium(const struct fixture *f, unsigned chunk, uint64_t offset)
{
	return sim_medium(f->world, device_name(f, chunk)) + offset;
}

static unsigned width(const struct fixture *f)
{
	return f->layout.data + f->layout.parity;
}

static uint64_t chunk_bytes(const struct fixture *f)
{
	return (uint64_t)f->rows * f->layout.cell;
}

static uint64_t linear_bytes(const struct fixture *f)
{
	return chunk_bytes(f) * f->layout.data;
}

static void make_content(struct fixture *f)
{
	for (unsigned c = 0; c < width(f); c++) {
		f->cells[c] = calloc(1, chunk_bytes(f));
		assert_non_null(f->cells[c]);
		for (uint64_t i = 0; c < f->layout.data && i < chunk_bytes(f); i += 4) {
			uint32_t value = draw(1u << 24) * 2654435761u;

			memcpy(f->cells[c] + i, &value, 4);
		}
	}
	assert_int_equal(erasure_encode(f->pool, f->layout.data, f->layout.parity, chunk_bytes(f),
				 f->cells, f->cells + f->layout.data),
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

static uint32_t sum_of(const struct fixture *f, unsigned chunk, uint64_t block)
{
	return f->sums[block / f->layout.blocks * segment_row_sums(f->segment) +
		       chunk * f->layout.blocks + block % f->layout.blocks];
}

static void make_page(
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

static void put_page(
	struct fixture *f, unsigned chunk, unsigned of, uint32_t index, struct checksum_page *page)
{
	uint8_t block[BLOCK_SIZE];

	assert_int_equal(checksum_page_encode(page, block), 0);
	put(f, chunk, segment_page_offset(f->pool, f->segment, chunk, of, index), block,
		BLOCK_SIZE);
}

static void put_header(struct fixture *f, unsigned chunk)
{
	const struct segment_row *row = &f->segment->row;
	struct chunk_header header = {.segment = SEGMENT,
		.generation = 1,
		.index = (uint8_t)chunk,
		.data = row->data,
		.parity = row->parity,
		.matrix = 1,
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
static void put_all(struct fixture *f)
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

static void open_device(struct fixture *f, unsigned i, uint64_t size)
{
	struct member *member = &f->pool->devices[i];

	if (f->world) {
		snprintf(member->path, sizeof(member->path), "nvme%u", i);
		assert_int_equal(sim_add_device(f->world, member->path, size), 0);
	} else {
		snprintf(member->path, sizeof(member->path), "/tmp/pool-read-XXXXXX");
		f->files[i] = mkstemp(member->path);
		assert_true(f->files[i] >= 0);
		assert_int_equal(ftruncate(f->files[i], (off_t)size), 0);
	}
	assert_int_equal(device_open(f->engine, member->path, 0, &member->device, NULL), 0);
	if (!f->world)
		unlink(member->path);
	member->slots_offset = 16 * BLOCK_SIZE;
	member->slot_count = SLOTS;
	member->slot_map = calloc(SLOTS, 1);
	member->header.slot_size = layout_slot_size(&f->layout);
	atomic_init(&member->state, DEVICE_ACTIVE);
}

static void init_pool(struct fixture *f, size_t page_cache)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	uint64_t size = 16 * BLOCK_SIZE + (uint64_t)SLOTS * layout_slot_size(&f->layout);

	f->pool = pool;
	pool->engine = f->engine;
	memset(pool->header.pool, 0x5a, 16);
	memcpy(pool->label.pool, pool->header.pool, 16);
	strcpy(pool->label.name, "tank");
	pool->header.slot_rows = f->layout.rows;
	pool->k = f->layout.data;
	pool->m = f->layout.parity;
	pool->epoch = 7;
	pool->device_count = width(f);
	pool->table_size = 64;
	pool->table = calloc(64, sizeof(*pool->table));
	pthread_rwlock_init(&pool->table_lock, NULL);
	pthread_mutex_init(&pool->slots_lock, NULL);
	pthread_mutex_init(&pool->label_lock, NULL);
	pthread_mutex_init(&pool->drop_lock, NULL);
	pthread_mutex_init(&pool->wake_lock, NULL);
	pthread_mutex_init(&pool->row_lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	for (unsigned i = 0; i < width(f); i++)
		open_device(f, i, size);
	assert_int_equal(page_cache_create(pool, page_cache), 0);
}

/* An empty cache: what was read is forgotten. */
static void forget_pages(struct fixture *f)
{
	page_cache_forget(f->pool, SEGMENT);
}

struct shape {
	unsigned data, parity;
	uint32_t cell, slot_rows, rows;
	bool threads;
};

static void start(struct fixture *f, const struct shape *shape)
{
	struct segment_row row = {.id = SEGMENT,
		.epoch = 7,
		.volume = 3,
		.generation = 1,
		.state = SEGMENT_CLOSED,
		.data = (uint8_t)shape->data,
		.parity = (uint8_t)shape->parity,
		.matrix = 1,
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

static void finish(struct fixture *f)
{
	segment_put(f->segment);
	if (segment_get(f->pool, SEGMENT)) {
		segment_put(f->segment);
		segment_remove(f->pool, f->segment);
	}
	page_cache_destroy(f->pool);
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

static void expected(const struct fixture *f, uint64_t offset, uint64_t length, uint8_t *into)
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
static int read_at(struct fixture *f, uint64_t offset, uint64_t length, unsigned shift)
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

static int read_aligned(struct fixture *f, uint64_t offset, uint64_t length)
{
	return read_at(f, offset, length, BLOCK_SIZE / 2);
}

static int read_everything(struct fixture *f)
{
	return read_aligned(f, 0, linear_bytes(f));
}

static int read_block(struct fixture *f, unsigned chunk, uint64_t block)
{
	return read_aligned(f, chunk_to_linear(&f->layout, chunk, block * BLOCK_SIZE), BLOCK_SIZE);
}

static void drain(struct fixture *f)
{
	sim_drain(f->world);
	sim_settle(f->world);
}

static void rot(struct fixture *f, unsigned chunk, uint64_t offset, uint64_t length)
{
	sim_settle(f->world);
	sim_rot(f->world, device_name(f, chunk), offset, length, draw(1u << 20));
}

static void rot_block(struct fixture *f, unsigned chunk, uint64_t block)
{
	rot(f, chunk, block_at(f, chunk, block) + draw(BLOCK_SIZE - 8), 8);
}

static bool block_right(const struct fixture *f, unsigned chunk, uint64_t block)
{
	return memcmp(on_medium(f, chunk, block_at(f, chunk, block)),
		       f->cells[chunk] + block * BLOCK_SIZE, BLOCK_SIZE) == 0;
}

static uint64_t total(const struct fixture *f, size_t field)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < width(f); i++)
		sum += atomic_load(
			(_Atomic uint64_t *)(void *)((char *)&f->pool->devices[i] + field));
	return sum;
}
#define TOTAL(f, counter) total(f, offsetof(struct member, counter))

static uint64_t reads_done(struct fixture *f)
{
	struct engine_counters counters;

	engine_counters(f->engine, &counters);
	return counters.reads;
}

/* --- where an extent lies ----------------------------------------------------------------- */

/* Cuts cover each byte once, stay within a span and a page, and name the right place. */
static void check_cuts(const struct layout *layout, uint64_t offset, uint64_t length)
{
	uint8_t *seen = calloc(1, length + 1);
	struct cutter cutter;
	struct cut cut;

	cutter_init(&cutter, layout, offset, length);
	while (cutter_next(&cutter, &cut)) {
		uint64_t first = cut.from / BLOCK_SIZE, last = (cut.to - 1) / BLOCK_SIZE;

		assert_true(cut.from < cut.to && cut.chunk < layout->data);
		assert_true(last - first < SPAN_BLOCKS);
		assert_int_equal(first / PAGE_ENTRIES, last / PAGE_ENTRIES);
		for (uint64_t at = cut.from; at < cut.to; at++) {
			uint64_t linear = chunk_to_linear(layout, cut.chunk, at);
			uint64_t row = linear / layout->cell / layout->data;

			assert_int_equal(linear / layout->cell % layout->data, cut.chunk);
			assert_int_equal(row * layout->cell + linear % layout->cell, at);
			assert_true(linear >= offset && linear < offset + length);
			assert_int_equal(seen[linear - offset]++, 0);
		}
	}
	for (uint64_t i = 0; i < length; i++)
		assert_int_equal(seen[i], 1);
	free(seen);
}

static void test_cuts_cover_the_extent_once(void **state)
{
	static const struct layout layouts[] = {{.data = 4, .parity = 2, .cell = 8192},
		{.data = 1, .parity = 1, .cell = 4096}, {.data = 7, .parity = 2, .cell = 131072}};

	for (unsigned l = 0; l < 3; l++) {
		uint64_t row = (uint64_t)layouts[l].data * layouts[l].cell;

		check_cuts(&layouts[l], 0, row);
		check_cuts(&layouts[l], 999 * (uint64_t)BLOCK_SIZE * layouts[l].data, 3 * row);
		for (unsigned i = 0; i < 100; i++)
			check_cuts(&layouts[l], draw((uint32_t)(4 * row)),
				1 + draw((uint32_t)(3 * row)));
	}
}

static unsigned count_cuts(const struct layout *layout, uint64_t offset, uint64_t length)
{
	struct cutter cutter;
	struct cut cut;
	unsigned count = 0;

	cutter_init(&cutter, layout, offset, length);
	while (cutter_next(&cutter, &cut))
		count++;
	return count;
}

static void test_neighbouring_rows_are_one_cut(void **state)
{
	struct layout layout = {.data = 4, .parity = 2, .cell = 131072};

	assert_int_equal(count_cuts(&layout, 0, 1 << 20), 4);
	assert_int_equal(count_cuts(&layout, 4096, 1 << 20), 4);
	assert_int_equal(count_cuts(&layout, 4095, 1 << 20), 5);
	assert_int_equal(count_cuts(&layout, 131072 * 3, 4096), 1);
	assert_int_equal(count_cuts(&layout, 5, 0), 0);
}

/* --- healthy ------------------------------------------------------------------------------ */

static void test_any_extent_and_any_memory(void **state)
{
	struct fixture f;

	start(&f, &wide);
	assert_int_equal(read_everything(&f), 0);
	for (unsigned i = 0; i < 300; i++) {
		uint64_t offset = draw((uint32_t)linear_bytes(&f));
		uint64_t length = draw(i % 3 ? 20000 : 400000);

		if (length > linear_bytes(&f) - offset)
			length = linear_bytes(&f) - offset;
		if (i % 4 == 0)
			offset = offset / BLOCK_SIZE * BLOCK_SIZE;
		assert_int_equal(
			read_at(&f, offset, length, i % 2 ? BLOCK_SIZE / 2 : draw(BLOCK_SIZE)), 0);
		/* the destination in step with the offset: ragged ends, direct in between */
		assert_int_equal(read_at(&f, offset, length,
					 (unsigned)(offset + BLOCK_SIZE / 2) % BLOCK_SIZE),
			0);
	}
	assert_int_equal(TOTAL(&f, checksum_errors) + TOTAL(&f, read_errors), 0);
	finish(&f);
}

static void test_a_read_takes_few_requests(void **state)
{
	static const struct shape shape = {4, 2, 131072, 16, 16, false};
	struct fixture f;
	uint64_t before;

	start(&f, &shape);
	assert_int_equal(read_aligned(&f, 0, 1 << 20), 0);
	before = reads_done(&f);
	assert_int_equal(before, 8); /* and four pages */
	assert_int_equal(read_aligned(&f, 1 << 20, 1 << 20), 0);
	assert_int_equal(reads_done(&f) - before, 4);
	assert_int_equal(read_aligned(&f, 77 * BLOCK_SIZE, BLOCK_SIZE), 0);
	assert_int_equal(reads_done(&f) - before, 5);
	finish(&f);
}

static void test_a_small_read_allocates_once(void **state)
{
	struct read_part part = {{SEGMENT, 0, BLOCK_SIZE}, NULL};
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	start(&f, &small);
	part.into = buffer_alloc(f.engine, BLOCK_SIZE);
	assert_int_equal(pool_read_wait(f.pool, &part, 1), 0);
	fail_allocation = 1000;
	assert_int_equal(pool_read_wait(f.pool, &part, 1), 0);
	assert_int_equal(fail_allocation, 999);
	fail_allocation = 0;
	buffer_free(f.engine, part.into, BLOCK_SIZE);
	finish(&f);
}

static void test_many_parts(void **state)
{
	struct read_part parts[40];
	uint8_t *buffer, *want;
	struct fixture f;

	start(&f, &small);
	buffer = buffer_alloc(f.engine, 40 * 9000);
	want = malloc(9000);
	for (unsigned i = 0; i < 40; i++)
		parts[i] = (struct read_part){{SEGMENT, draw(500000), i ? draw(9000) : 0},
			i % 8 == 3 ? NULL : buffer + i * 9000};
	assert_int_equal(pool_read_wait(f.pool, parts, 40), 0);
	for (unsigned i = 0; i < 40; i++) {
		expected(&f, parts[i].extent.offset, parts[i].extent.length, want);
		if (parts[i].into)
			assert_memory_equal(parts[i].into, want, parts[i].extent.length);
	}
	buffer_free(f.engine, buffer, 40 * 9000);
	free(want);
	finish(&f);
}

static void test_what_is_not_there(void **state)
{
	struct read_part none = {{SEGMENT + 1, 0, 4096}, NULL};
	struct fixture f;

	start(&f, &small);
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	assert_int_equal(pool_read_wait(f.pool, NULL, 0), 0);
	assert_int_equal(read_aligned(&f, linear_bytes(&f) - 10, 10), 0);
	none.extent = (struct extent){SEGMENT, linear_bytes(&f) - 10, 11};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	none.extent = (struct extent){SEGMENT, UINT64_MAX - 5, 11};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	none.extent = (struct extent){SEGMENT, 5, UINT64_MAX - 4};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), -EIO);
	none.extent = (struct extent){SEGMENT, UINT64_MAX - 5, 0};
	assert_int_equal(pool_read_wait(f.pool, &none, 1), 0);
	finish(&f);
}

static void test_a_small_cache_gives_pages_up(void **state)
{
	struct fixture f;

	start(&f, &wide);
	page_cache_destroy(f.pool);
	assert_int_equal(page_cache_create(f.pool, 1), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(
			read_aligned(&f, draw((uint32_t)linear_bytes(&f) - 99999), 99999), 0);
	assert_int_equal(read_everything(&f), 0);
	finish(&f);
}

/* --- lost devices ------------------------------------------------------------------------- */

static bool data_chunk_in(const struct fixture *f, unsigned set)
{
	return set & ((1u << f->layout.data) - 1);
}

static void lose(struct fixture *f, unsigned set, bool dropped)
{
	for (unsigned c = 0; c < width(f); c++) {
		if (!(set >> c & 1))
			continue;
		if (dropped)
			atomic_store(&member_of(f, c)->state, DEVICE_DROPPED);
		else
			sim_kill_device(f->world, device_name(f, c));
	}
}

static void find_again(struct fixture *f)
{
	drain(f);
	for (unsigned c = 0; c < width(f); c++) {
		sim_revive_device(f->world, device_name(f, c));
		atomic_store(&member_of(f, c)->state, DEVICE_ACTIVE);
		atomic_store(&member_of(f, c)->failing, false);
	}
}

static void each_loss(const struct shape *shape, bool dropped)
{
	struct fixture f;

	start(&f, shape);
	for (unsigned set = 0; set < 1u << width(&f); set++) {
		unsigned lost = (unsigned)__builtin_popcount(set);
		bool survives = lost <= f.layout.parity || !data_chunk_in(&f, set);

		if (set % 2)
			forget_pages(&f);
		lose(&f, set, dropped);
		assert_int_equal(read_everything(&f), survives ? 0 : -EIO);
		find_again(&f);
	}
	assert_int_equal(TOTAL(&f, repaired), 0);
	finish(&f);
}

static void test_each_set_of_dead_devices(void **state)
{
	static const struct shape mirror = {1, 1, 4096, 80, 70, false};
	static const struct shape thrice = {2, 3, 4096, 30, 20, false};

	each_loss(&small, false);
	each_loss(&mirror, false);
	each_loss(&thrice, false);
}

static void test_each_set_of_dropped_devices(void **state)
{
	each_loss(&small, true);
}

static void test_long_reads_with_devices_lost(void **state)
{
	struct fixture f;

	start(&f, &wide);
	lose(&f, 1u << 1 | 1u << 5, false);
	assert_int_equal(read_everything(&f), 0);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(read_at(&f, draw((uint32_t)linear_bytes(&f) - 70000),
					 1 + draw(70000), draw(BLOCK_SIZE)),
			0);
	finish(&f);
}

/* --- rot ---------------------------------------------------------------------------------- */

static void test_each_set_of_rotten_blocks(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (unsigned set = 1; set < 1u << width(&f); set++) {
		unsigned bad = (unsigned)__builtin_popcount(set);
		uint64_t block = draw(f.rows * f.layout.blocks);
		uint64_t repaired = TOTAL(&f, repaired);

		if (set % 2)
			forget_pages(&f);
		for (unsigned c = 0; c < width(&f); c++)
			if (set >> c & 1)
				rot_block(&f, c, block);
		for (unsigned c = 0; c < f.layout.data; c++) {
			bool hit = set >> c & 1;

			assert_int_equal(
				read_block(&f, c, block), hit && bad > f.layout.parity ? -EIO : 0);
			drain(&f);
			assert_int_equal(block_right(&f, c, block), !hit || bad <= f.layout.parity);
		}
		if (bad <= f.layout.parity)
			assert_int_equal(TOTAL(&f, repaired) - repaired,
				__builtin_popcount(set & ((1u << f.layout.data) - 1)));
		else
			assert_int_equal(TOTAL(&f, repaired), repaired);
		put_all(&f);
	}
	finish(&f);
}

static void test_repaired_blocks_serve_the_next_loss(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (unsigned round = 0; round < 50; round++) {
		unsigned a = round % f.layout.data, b = (a + 1) % f.layout.data;
		uint64_t block = draw(f.rows * f.layout.blocks);

		rot_block(&f, a, block);
		rot_block(&f, b, block);
		assert_int_equal(read_everything(&f), 0);
		drain(&f);
		assert_true(block_right(&f, a, block) && block_right(&f, b, block));
	}
	assert_int_equal(TOTAL(&f, checksum_errors) >= 100, 1);
	assert_int_equal(TOTAL(&f, repaired), 100);
	finish(&f);
}

/* Each block of a long piece is bad somewhere else, so that each has other sources. */
static void test_a_different_chunk_is_bad_in_each_block(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (uint64_t b = 0; b < f.rows * f.layout.blocks; b++) {
		rot_block(&f, (unsigned)b % width(&f), b);
		rot_block(&f, (unsigned)(b + 1 + draw(width(&f) - 1)) % width(&f), b);
	}
	assert_int_equal(read_everything(&f), 0);
	drain(&f);
	for (uint64_t b = 0; b < f.rows * f.layout.blocks; b++)
		for (unsigned c = 0; c < f.layout.data; c++)
			assert_true(block_right(&f, c, b));
	finish(&f);
}

static void test_a_dead_device_and_rot(void **state)
{
	struct fixture f;

	start(&f, &small);
	lose(&f, 1u << 2, true);
	for (uint64_t b = 0; b < f.rows * f.layout.blocks; b += 3)
		rot_block(&f, (unsigned)b % 2 ? 0 : 5, b);
	assert_int_equal(read_everything(&f), 0);
	rot_block(&f, 1, 7);
	rot_block(&f, 4, 7);
	assert_int_equal(read_block(&f, 2, 7), -EIO);
	assert_int_equal(read_block(&f, 1, 7), -EIO);
	assert_int_equal(read_block(&f, 0, 7), 0);
	assert_int_equal(read_block(&f, 2, 6), 0);
	finish(&f);
}

static void test_a_lost_write_is_seen(void **state)
{
	uint8_t zeros[BLOCK_SIZE] = {0};
	struct fixture f;

	start(&f, &small);
	put(&f, 0, block_at(&f, 0, 3), zeros, BLOCK_SIZE);
	put(&f, 1, block_at(&f, 1, 3), f.cells[1] + 4 * BLOCK_SIZE, BLOCK_SIZE);
	assert_int_equal(read_everything(&f), 0);
	drain(&f);
	assert_true(block_right(&f, 0, 3) && block_right(&f, 1, 3));
	finish(&f);
}

static void test_read_errors_are_counted_and_mended(void **state)
{
	struct fixture f;

	start(&f, &small);
	sim_fail_device_reads(f.world, device_name(&f, 1), -EIO);
	assert_int_equal(read_block(&f, 1, 5), 0);
	drain(&f);
	/* its own page's copy could not be read either, and was rewritten */
	assert_int_equal(atomic_load(&member_of(&f, 1)->read_errors), 2);
	assert_int_equal(atomic_load(&member_of(&f, 1)->repaired), 2);
	assert_int_equal(atomic_load(&member_of(&f, 1)->written), 2);
	assert_int_equal(read_block(&f, 1, 5), 0);
	assert_int_equal(atomic_load(&member_of(&f, 1)->read_errors), 3);
	finish(&f);
}

static void test_a_repair_that_fails_marks_the_device(void **state)
{
	struct fixture f;

	start(&f, &small);
	rot_block(&f, 1, 5);
	sim_fail_device_writes(f.world, device_name(&f, 1), -EIO);
	assert_int_equal(read_block(&f, 1, 5), 0);
	drain(&f);
	assert_true(atomic_load(&member_of(&f, 1)->failing));
	assert_int_equal(atomic_load(&member_of(&f, 1)->repaired), 0);
	finish(&f);
}

static void test_nothing_is_written_by_who_may_not(void **state)
{
	struct fixture f;

	start(&f, &small);
	rot_block(&f, 1, 5);
	rot(&f, 1, segment_page_offset(f.pool, f.segment, 1, 1, 0), BLOCK_SIZE);
	f.pool->read_only = true;
	assert_int_equal(read_block(&f, 1, 5), 0);
	f.pool->read_only = false;
	atomic_store(&f.pool->failure, -ESTALE);
	forget_pages(&f);
	assert_int_equal(read_block(&f, 1, 5), 0);
	drain(&f);
	assert_false(block_right(&f, 1, 5));
	assert_int_equal(sim_writes_and_flushes(f.engine), 0);
	finish(&f);
}

/* Any one request may fail in any way: right bytes all the same. */
static void test_each_request_fails_once(void **state)
{
	struct fixture f;
	uint64_t n;

	start(&f, &small);
	for (n = 1;; n++) {
		forget_pages(&f);
		rot_block(&f, 0, 9);
		sim_fail_nth(f.engine, n, n % 2 ? -EIO : -ENODEV);
		assert_int_equal(read_everything(&f), 0);
		drain(&f);
		put_all(&f);
		find_again(&f);
		if (!sim_failed(f.engine))
			break;
	}
	assert_true(n > 12);
	finish(&f);
}

static void test_memory_runs_out(void **state)
{
	long before = allocations;
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	for (uint64_t n = 1;; n++) {
		uint8_t *into;
		struct read_part part;
		int result;
		bool more;

		start(&f, &small);
		into = buffer_alloc(f.engine, linear_bytes(&f) + BLOCK_SIZE);
		part = (struct read_part){{SEGMENT, 100, linear_bytes(&f) - 100}, into};
		lose(&f, 1u << 1, true);
		rot_block(&f, 0, 9);
		fail_allocation = n;
		result = pool_read_wait(f.pool, &part, 1);
		more = !fail_allocation;
		fail_allocation = 0;
		assert_true(result == 0 || (more && result == -EIO));
		if (!result)
			assert_memory_equal(into, f.cells[0] + 100, f.layout.cell - 100);
		buffer_free(f.engine, into, linear_bytes(&f) + BLOCK_SIZE);
		drain(&f);
		finish(&f);
		assert_int_equal(allocations, before);
		if (!more)
			break;
		assert_true(n < 200);
	}
}

/* --- pages -------------------------------------------------------------------------------- */

/* The place of the n-th copy of a chunk's page. */
static uint64_t copy_at(const struct fixture *f, unsigned of, unsigned copy, unsigned *chunk)
{
	*chunk = (unsigned)page_copy_chunk(f->segment, of, copy);
	return segment_page_offset(f->pool, f->segment, *chunk, of, 0);
}

static void test_each_set_of_rotten_page_copies(void **state)
{
	struct fixture f;

	start(&f, &small);
	for (unsigned of = 0; of < f.layout.data; of++) {
		for (unsigned set = 1; set < 8; set++) {
			uint8_t right[BLOCK_SIZE];
			unsigned chunk;

			memcpy(right, on_medium(&f, of, copy_at(&f, of, 0, &chunk)), BLOCK_SIZE);
			forget_pages(&f);
			for (unsigned copy = 0; copy < 3; copy++) {
				uint64_t at = copy_at(&f, of, copy, &chunk);

				if (set >> copy & 1)
					rot(&f, chunk, at + draw(BLOCK_SIZE), 1);
			}
			assert_int_equal(read_block(&f, of, 5), set == 7 ? -EIO : 0);
			drain(&f);
			/* those that were met on the way to a right one are mended */
			for (unsigned copy = 0; set != 7 && copy < 3; copy++) {
				uint64_t at = copy_at(&f, of, copy, &chunk);
				bool met = !(~set & ((1u << copy) - 1));

				if (met)
					assert_memory_equal(
						on_medium(&f, chunk, at), right, BLOCK_SIZE);
			}
			put_all(&f);
		}
	}
	finish(&f);
}

static void test_pages_of_others_are_not_believed(void **state)
{
	struct checksum_page page;
	struct fixture f;

	start(&f, &small);
	for (unsigned i = 0; i < 6; i++) {
		make_page(&f, 0, 0, &page);
		page.pool[3] ^= i == 0;
		page.segment += i == 1;
		page.generation += i == 2;
		page.chunk += i == 3;
		page.index += i == 4;
		page.count -= i == 5;
		memset(page.sums, 0, sizeof(page.sums));
		forget_pages(&f);
		put_page(&f, 0, 0, 0, &page);
		assert_int_equal(read_block(&f, 0, 5), 0);
		assert_int_equal(atomic_load(&member_of(&f, 0)->checksum_errors), i + 1);
		drain(&f);
		make_page(&f, 0, 0, &page);
		assert_memory_equal(
			on_medium(&f, 0, segment_page_offset(f.pool, f.segment, 0, 0, 0) + 512),
			on_medium(&f, 4, segment_page_offset(f.pool, f.segment, 4, 0, 0) + 512),
			1024);
	}
	finish(&f);
}

/* --- rows in memory, open segments -------------------------------------------------------- */

static void reopen(struct fixture *f)
{
	f->segment->row.state = SEGMENT_OPEN;
	assert_int_equal(segment_open_arrays(f->segment), 0);
	memcpy(f->segment->sums, f->sums,
		(size_t)f->layout.rows * segment_row_sums(f->segment) * sizeof(uint32_t));
	memset(f->segment->row_done, ROW_IS_DONE, f->rows);
}

static void keep_row(struct fixture *f, uint32_t index)
{
	struct row *row;

	assert_int_equal(row_create(f->pool, f->segment, index, &row), 0);
	for (unsigned c = 0; c < width(f); c++)
		memcpy(row->memory + (size_t)c * f->layout.cell,
			f->cells[c] + (size_t)index * f->layout.cell, f->layout.cell);
	row_install(row);
}

static void test_rows_in_memory_complete_at_once(void **state)
{
	struct fixture f;

	start(&f, &small);
	reopen(&f);
	for (uint32_t i = 0; i < f.rows; i++)
		keep_row(&f, i);
	memset(f.segment->row_done, 0, f.rows);
	f.segment->row_done[3] = ROW_IS_DONE;
	f.segment->row_done[4] = ROW_IS_LOST;
	lose(&f, 0x3f, false);
	assert_int_equal(read_everything(&f), 0);
	assert_int_equal(read_at(&f, 12345, 77777, 5), 0);
	assert_int_equal(reads_done(&f) + TOTAL(&f, read_errors), 0);
	finish(&f);
}

static void test_open_rows_by_their_sums(void **state)
{
	struct fixture f;

	start(&f, &small);
	reopen(&f);
	keep_row(&f, 2);
	keep_row(&f, 7);
	f.segment->row_done[7] = ROW_NOT_DONE;
	rot_block(&f, 1, 0);
	rot_block(&f, 2, 0);
	rot_block(&f, 0, 2 * f.layout.blocks); /* in a row that is in memory */
	assert_int_equal(read_everything(&f), 0);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(read_at(&f, draw((uint32_t)linear_bytes(&f) - 99999), draw(99999),
					 draw(BLOCK_SIZE)),
			0);
	drain(&f);
	assert_true(block_right(&f, 1, 0) && block_right(&f, 2, 0));
	assert_false(block_right(&f, 0, 2 * f.layout.blocks));
	f.segment->row_done[5] = ROW_IS_LOST;
	assert_int_equal(read_everything(&f), -EIO);
	f.segment->row_done[5] = ROW_NOT_DONE;
	assert_int_equal(read_everything(&f), -EIO);
	assert_int_equal(read_aligned(&f, 0, 5 * segment_row_bytes(f.segment)), 0);
	finish(&f);
}

static void test_a_reserved_segment_has_nothing(void **state)
{
	struct fixture f;

	start(&f, &small);
	f.segment->row.state = SEGMENT_RESERVED;
	assert_int_equal(read_aligned(&f, 0, 4096), -EIO);
	finish(&f);
}

/* The slots of a freed segment stay taken while a repair may still write to them. */
static void test_a_repair_holds_the_slots(void **state)
{
	struct fixture f;
	struct member *member;

	start(&f, &small);
	member = member_of(&f, 1);
	member->slot_map[f.segment->row.chunks[1].slot] = 1;
	rot_block(&f, 1, 5);
	assert_int_equal(read_block(&f, 1, 5), 0);
	assert_true(atomic_load(&f.segment->references) > 2);
	f.segment->freed = true;
	segment_ref(f.segment);
	segment_remove(f.pool, f.segment);
	segment_put(f.segment);
	assert_true(atomic_load(&f.segment->references) > 1);
	drain(&f);
	assert_int_equal(atomic_load(&f.segment->references), 1);
	assert_int_equal(atomic_load(&member->repaired), 1);
	f.segment->freed = false;
	finish(&f);
}

/* --- pool_check() ------------------------------------------------------------------------- */

static void run_check(struct fixture *f, bool repair, struct pool_check_report *report)
{
	struct error error = {0};

	assert_int_equal(pool_check(f->pool, repair, report, NULL, NULL, &error), 0);
	sim_settle(f->world);
}

/* Headers, copies of pages, blocks. */
static uint64_t blocks_in_all(const struct fixture *f)
{
	uint64_t blocks = (uint64_t)f->rows * f->layout.blocks;
	uint64_t pages = (blocks + PAGE_ENTRIES - 1) / PAGE_ENTRIES;

	return width(f) * (1 + blocks) + pages * (f->layout.data * (f->layout.parity + 1) +
							 f->layout.parity * f->layout.parity);
}

static uint64_t progress_done, progress_total;

static void note_progress(void *data, uint64_t done, uint64_t all)
{
	assert_true(done > progress_done && done <= all);
	progress_done = done;
	progress_total = all;
}

static void test_check_finds_nothing_wrong(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &wide);
	progress_done = progress_total = 0;
	assert_int_equal(pool_check(f.pool, true, &report, note_progress, NULL, NULL), 0);
	assert_int_equal(report.segments, 1);
	assert_int_equal(report.blocks, blocks_in_all(&f));
	assert_int_equal(report.bad_blocks + report.lost_blocks + report.repaired_blocks +
				 report.missing_chunks,
		0);
	assert_int_equal(progress_done, (uint64_t)f.rows * f.layout.blocks * width(&f));
	assert_int_equal(progress_done, progress_total);
	assert_int_equal(sim_writes_and_flushes(f.engine), 0);
	finish(&f);
}

static void spoil(struct fixture *f)
{
	rot(f, 0, segment_header_offset(f->pool, f->segment, 0), 4);
	rot(f, 5, segment_header_offset(f->pool, f->segment, 5) + 99, 4);
	rot(f, 1, segment_page_offset(f->pool, f->segment, 1, 1, 0) + 500, 4);
	rot(f, 4, segment_page_offset(f->pool, f->segment, 4, 1, 0) + 900, 4);
	rot(f, 4, segment_page_offset(f->pool, f->segment, 4, 5, 1) + 900, 4);
	for (unsigned i = 0; i < 300; i++)
		rot_block(f, i % 6, i * 3);
	rot_block(f, 3, 0);
}

static void test_check_repairs_all_that_can_be_proven(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &wide);
	spoil(&f);
	run_check(&f, false, &report);
	assert_int_equal(report.bad_blocks, 306);
	assert_int_equal(report.repaired_blocks, 0);
	assert_int_equal(report.lost_blocks, 0);
	drain(&f);
	assert_int_equal(sim_writes_and_flushes(f.engine), 0);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 306);
	assert_int_equal(report.repaired_blocks, 306);
	drain(&f);
	forget_pages(&f);
	run_check(&f, false, &report);
	assert_int_equal(report.bad_blocks, 0);
	assert_int_equal(report.blocks, blocks_in_all(&f));
	finish(&f);
}

static void test_check_counts_what_is_lost_and_missing(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &small);
	lose(&f, 1u << 1, true);
	run_check(&f, true, &report);
	assert_int_equal(report.missing_chunks, 1);
	assert_int_equal(report.bad_blocks + report.lost_blocks, 0);
	rot_block(&f, 2, 9);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 1);
	assert_int_equal(report.repaired_blocks, 1);
	rot_block(&f, 2, 9);
	rot_block(&f, 5, 9);
	rot_block(&f, 5, 11);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 3);
	assert_int_equal(report.lost_blocks, 3); /* the missing chunk's too */
	assert_int_equal(report.repaired_blocks, 1);
	finish(&f);
}

static void test_check_finds_parity_that_is_another_code(void **state)
{
	struct pool_check_report report;
	struct checksum_page page;
	struct fixture f;

	start(&f, &small);
	f.cells[4][8 * BLOCK_SIZE + 5] ^= 1;
	f.sums[2 * segment_row_sums(f.segment) + 4 * f.layout.blocks] =
		crc32c(f.cells[4] + 8 * BLOCK_SIZE, BLOCK_SIZE);
	put_all(&f);
	make_page(&f, 4, 0, &page);
	run_check(&f, true, &report);
	assert_int_equal(report.bad_blocks, 1);
	assert_int_equal(report.repaired_blocks, 0);
	finish(&f);
}

static void test_check_of_an_open_segment(void **state)
{
	struct pool_check_report report;
	struct fixture f;

	start(&f, &small);
	reopen(&f);
	keep_row(&f, 9);
	f.segment->row_done[9] = ROW_NOT_DONE;
	f.segment->row_done[4] = ROW_IS_LOST;
	rot(&f, 0, segment_header_offset(f.pool, f.segment, 0), 4);
	rot_block(&f, 3, 5 * f.layout.blocks);
	rot_block(&f, 3, 4 * f.layout.blocks);
	run_check(&f, true, &report);
	assert_int_equal(report.blocks, 8 * f.layout.blocks * width(&f));
	assert_int_equal(report.bad_blocks, 1);
	assert_int_equal(report.repaired_blocks, 1);
	assert_true(block_right(&f, 3, 5 * f.layout.blocks));
	f.segment->row.state = SEGMENT_RESERVED;
	finish(&f);
}

static void test_check_refuses_to_repair_read_only(void **state)
{
	struct pool_check_report report;
	struct error error = {0};
	struct fixture f;

	start(&f, &small);
	f.pool->read_only = true;
	assert_int_equal(pool_check(f.pool, true, &report, NULL, NULL, &error), -EROFS);
	assert_int_equal(error.code, -EROFS);
	assert_int_equal(pool_check(f.pool, false, &report, NULL, NULL, &error), 0);
	finish(&f);
}

static void test_check_with_too_little_memory(void **state)
{
	long before = allocations;
	struct pool_check_report report;
	struct fixture f;

	if (!COUNTS_ALLOCATIONS)
		skip();
	for (uint64_t n = 1; n < 400; n++) {
		int result;
		bool more;

		start(&f, &small);
		rot_block(&f, 0, 9);
		fail_allocation = n;
		result = pool_check(f.pool, true, &report, NULL, NULL, NULL);
		more = !fail_allocation;
		fail_allocation = 0;
		assert_true(result == 0 || (more && result == -ENOMEM));
		drain(&f);
		finish(&f);
		assert_int_equal(allocations, before);
		if (!more)
			return;
	}
	fail();
}

/* --- real threads ------------------------------------------------------------------------- */

static _Atomic unsigned wrong_reads; /* cmocka's assertions are for the main thread alone */

static void *reader(void *argument)
{
	struct fixture *f = argument;
	uint8_t *into = buffer_alloc(f->engine, 1 << 20), *want = malloc(1 << 20);
	uint64_t seed = (uint64_t)(uintptr_t)&into;

	for (unsigned i = 0; i < 300; i++) {
		uint64_t length, offset;
		struct read_part part;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		length = 1 + (seed >> 40) % (i % 4 ? 60000 : 1000000);
		offset = (seed >> 20) % (linear_bytes(f) - length);
		part = (struct read_part){{SEGMENT, offset, length}, into};
		expected(f, offset, length, want);
		if (pool_read_wait(f->pool, &part, 1) || memcmp(into, want, length))
			wrong_reads++;
		if (i % 50 == 0)
			forget_pages(f);
	}
	buffer_free(f->engine, into, 1 << 20);
	free(want);
	return NULL;
}

static void test_many_readers_and_rot(void **state)
{
	static const struct shape shape = {4, 2, 8192, 520, 510, true};
	struct pool_check_report report;
	pthread_t threads[4];
	uint8_t junk[64];
	struct fixture f;

	if (uring_engine_create(NULL, &f.engine, NULL) == -EPERM)
		skip(); /* the kernel does not let this process use io_uring */
	engine_destroy(f.engine);
	start(&f, &shape);
	memset(junk, 0xa5, sizeof(junk));
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, reader, &f), 0);
	for (unsigned i = 0; i < 400; i++) {
		/* two chunks only, as rot may come faster than repairs */
		unsigned chunk = i % 2 ? 0 : 3;

		put(&f, chunk, block_at(&f, chunk, draw(1020)) + draw(4000), junk, sizeof(junk));
		usleep(500);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(wrong_reads, 0);
	/* What nobody read since is still rotten. */
	assert_int_equal(pool_check(f.pool, true, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.lost_blocks, 0);
	atomic_store(&member_of(&f, 2)->state, DEVICE_DROPPED);
	atomic_store(&member_of(&f, 3)->state, DEVICE_DROPPED);
	assert_int_equal(pool_check(f.pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.missing_chunks, 2);
	atomic_store(&member_of(&f, 2)->state, DEVICE_ACTIVE);
	atomic_store(&member_of(&f, 3)->state, DEVICE_ACTIVE);
	assert_int_equal(pool_check(f.pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.bad_blocks, 0);
	finish(&f);
}

/* --- what the pool itself wrote ----------------------------------------------------------- */

#define NAMES 7u
static const char *const names[NAMES] = {"a", "b", "c", "d", "e", "f", "g"};

struct written {
	struct sim_world *world;
	struct engine *engine;
	struct pool *pool;
	uint8_t *bytes;
	size_t length;
	struct extent extents[64];
	unsigned count;
};

static void open_written(struct written *w)
{
	struct pool_open_options options = {
		.paths = names, .path_count = NAMES, .host = "here", .page_cache = 1 << 20};
	struct error error = {0};

	if (pool_open(w->engine, &options, &w->pool, &error))
		fail_msg("%s: %s", error.object, error.message);
}

static void create_written(struct written *w)
{
	struct pool_create_device devices[NAMES];
	struct pool_create_options options = {.name = "tank",
		.data = 4,
		.parity = 2,
		.cell = 16384,
		.devices = devices,
		.device_count = NAMES,
		.host = "here",
		.slot_rows = 16,
		.journal_size = 4 << 20};
	struct error error = {0};

	memset(w, 0, sizeof(*w));
	log_set_sink(quiet);
	assert_int_equal(sim_world_create(&(struct sim_options){1, true}, &w->world), 0);
	assert_int_equal(sim_engine_create(w->world, &w->engine), 0);
	for (unsigned i = 0; i < NAMES; i++) {
		assert_int_equal(sim_add_device(w->world, names[i], 64 << 20), 0);
		devices[i] = (struct pool_create_device){.path = names[i]};
	}
	if (pool_create(w->engine, &options, &error))
		fail_msg("%s: %s", error.object, error.message);
	open_written(w);
}

static void append_written(struct written *w, size_t length)
{
	struct stream *stream;

	w->bytes = malloc(length);
	w->length = length;
	for (size_t i = 0; i < length; i++)
		w->bytes[i] = (uint8_t)draw(256);
	assert_int_equal(stream_open(w->pool, 1, &stream), 0);
	for (size_t at = 0; at < length;) {
		size_t n = length - at < 300001 ? length - at : 300001;
		struct iovec iov = {w->bytes + at, n};
		unsigned count = 8;

		assert_true(w->count + 8 <= 64);
		assert_int_equal(
			stream_append(stream, &iov, 1, n, 0, w->extents + w->count, &count), 0);
		w->count += count;
		at += n;
	}
	stream_close(stream);
}

static int read_written(struct written *w)
{
	uint8_t *back = malloc(w->length);
	struct read_part parts[64];
	size_t at = 0;
	int result;

	for (unsigned i = 0; i < w->count; i++) {
		parts[i] = (struct read_part){w->extents[i], back + at};
		at += w->extents[i].length;
	}
	assert_int_equal(at, w->length);
	result = pool_read_wait(w->pool, parts, w->count);
	if (!result)
		assert_memory_equal(back, w->bytes, w->length);
	free(back);
	return result;
}

static void commit_written(struct written *w)
{
	struct txn *txn;
	uint64_t lsn;

	assert_int_equal(pool_settle(w->pool, w->extents, w->count), 0);
	assert_int_equal(txn_begin(w->pool, NULL, &txn), 0);
	assert_int_equal(txn_refer(txn, w->extents, w->count), 0);
	assert_int_equal(txn_commit(txn, &lsn), 0);
	assert_int_equal(pool_sync(w->pool, lsn), 0);
}

static void check_written(struct written *w, uint64_t missing)
{
	struct pool_check_report report;

	assert_int_equal(pool_check(w->pool, false, &report, NULL, NULL, NULL), 0);
	assert_int_equal(report.bad_blocks + report.lost_blocks, 0);
	assert_true(report.segments >= 3 && report.blocks > w->length / BLOCK_SIZE);
	assert_int_equal(report.missing_chunks > 0, missing);
}

static void end_written(struct written *w)
{
	pool_abandon(w->pool);
	free(w->bytes);
	engine_destroy(w->engine);
	sim_world_destroy(w->world);
}

/* The same bytes from memory, by the sums of open segments, by pages, and after opening again. */
static void test_what_streams_wrote_reads_back_at_every_stage(void **state)
{
	struct written w;

	create_written(&w);
	append_written(&w, 3000000);
	assert_int_equal(read_written(&w), 0);
	commit_written(&w);
	assert_int_equal(read_written(&w), 0);
	check_written(&w, 0);
	assert_int_equal(pool_maintain(w.pool), 0);
	assert_int_equal(read_written(&w), 0);
	check_written(&w, 0);
	assert_int_equal(pool_close(w.pool, NULL), 0);
	open_written(&w);
	assert_int_equal(read_written(&w), 0);
	check_written(&w, 0);
	end_written(&w);
}

static void test_what_streams_wrote_survives_dead_devices(void **state)
{
	struct written w;

	create_written(&w);
	append_written(&w, 3000000);
	commit_written(&w);
	sim_kill_device(w.world, "b");
	assert_int_equal(read_written(&w), 0);
	assert_int_equal(pool_maintain(w.pool), 0);
	sim_kill_device(w.world, "f");
	assert_int_equal(read_written(&w), 0);
	assert_int_equal(pool_maintain(w.pool), 0);
	check_written(&w, 1);
	end_written(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cuts_cover_the_extent_once),
		cmocka_unit_test(test_neighbouring_rows_are_one_cut),
		cmocka_unit_test(test_any_extent_and_any_memory),
		cmocka_unit_test(test_a_read_takes_few_requests),
		cmocka_unit_test(test_a_small_read_allocates_once),
		cmocka_unit_test(test_many_parts),
		cmocka_unit_test(test_what_is_not_there),
		cmocka_unit_test(test_a_small_cache_gives_pages_up),
		cmocka_unit_test(test_each_set_of_dead_devices),
		cmocka_unit_test(test_each_set_of_dropped_devices),
		cmocka_unit_test(test_long_reads_with_devices_lost),
		cmocka_unit_test(test_each_set_of_rotten_blocks),
		cmocka_unit_test(test_repaired_blocks_serve_the_next_loss),
		cmocka_unit_test(test_a_different_chunk_is_bad_in_each_block),
		cmocka_unit_test(test_a_dead_device_and_rot),
		cmocka_unit_test(test_a_lost_write_is_seen),
		cmocka_unit_test(test_read_errors_are_counted_and_mended),
		cmocka_unit_test(test_a_repair_that_fails_marks_the_device),
		cmocka_unit_test(test_nothing_is_written_by_who_may_not),
		cmocka_unit_test(test_each_request_fails_once),
		cmocka_unit_test(test_memory_runs_out),
		cmocka_unit_test(test_each_set_of_rotten_page_copies),
		cmocka_unit_test(test_pages_of_others_are_not_believed),
		cmocka_unit_test(test_rows_in_memory_complete_at_once),
		cmocka_unit_test(test_open_rows_by_their_sums),
		cmocka_unit_test(test_a_reserved_segment_has_nothing),
		cmocka_unit_test(test_a_repair_holds_the_slots),
		cmocka_unit_test(test_check_finds_nothing_wrong),
		cmocka_unit_test(test_check_repairs_all_that_can_be_proven),
		cmocka_unit_test(test_check_counts_what_is_lost_and_missing),
		cmocka_unit_test(test_check_finds_parity_that_is_another_code),
		cmocka_unit_test(test_check_of_an_open_segment),
		cmocka_unit_test(test_check_refuses_to_repair_read_only),
		cmocka_unit_test(test_check_with_too_little_memory),
		cmocka_unit_test(test_many_readers_and_rot),
		cmocka_unit_test(test_what_streams_wrote_reads_back_at_every_stage),
		cmocka_unit_test(test_what_streams_wrote_survives_dead_devices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
