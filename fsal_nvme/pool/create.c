/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Making a pool: everything is checked before the first byte is written; then old labels are wiped,
 * new labels written, device headers last. A crash in between leaves devices that are no pool yet,
 * and can be used again without --force only when nothing of them was taken.
 */
#include <blkid/blkid.h>
#include <ctype.h>
#include <stdio.h>

#include "pool/create.h"
#include "pool/label.h"

#define CELL_DEFAULT (128u << 10)
#define CHUNK_WANTED (16u << 20) /* so that small cells do not make too many segments */
#define ROWS_LEAST 8u
#define ROWS_WANTED 512u
#define ENTRY_SIZE 15u /* of an image, besides a segment's row: lengths and key */
#define SLOTS_WANTED 1000u
#define SLOTS_LEAST 100u
#define JOURNAL_LEAST (16ull << 20)
#define JOURNAL_MOST (1ull << 30)

struct creation {
	struct engine *engine;
	const struct pool_create_options *options;
	struct error *error;
	struct device *devices[POOL_DEVICES_MAX];
	struct device_header headers[POOL_DEVICES_MAX];
	struct label label;
};

void uuid_make(struct engine *engine, uint8_t uuid[16])
{
	engine_random(engine, uuid, 16);
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* RFC 9562, version 4 */
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

static bool name_valid(const char *name)
{
	size_t length = strlen(name);

	if (!length || length > POOL_NAME_MAX || !isalpha((unsigned char)name[0]))
		return false;
	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
			return false;
	return true;
}

static int check_code(const struct pool_create_options *o, struct error *error)
{
	if (!o->data || !o->parity || o->data + o->parity > POOL_WIDTH_MAX)
		return error_set(error, -EINVAL, o->name,
			"%u data and %u parity devices are no code: both at least 1, at most %u "
			"together",
			o->data, o->parity, POOL_WIDTH_MAX);
	if (o->device_count < o->data + o->parity)
		return error_set(error, -EINVAL, o->name,
			"%u data + %u parity need at least %u devices, but %u are given", o->data,
			o->parity, o->data + o->parity, o->device_count);
	if (o->device_count > POOL_DEVICES_MAX)
		return error_set(
			error, -EINVAL, o->name, "a pool has at most %u devices", POOL_DEVICES_MAX);
	if (o->cell && (o->cell < BLOCK_SIZE || o->cell > (4u << 20) || (o->cell & (o->cell - 1))))
		return error_set(error, -EINVAL, o->name,
			"cell size %u is not a power of two from 4K to 4M", o->cell);
	return 0;
}

static int check_options(const struct pool_create_options *o, struct error *error)
{
	if (!o->name || !name_valid(o->name))
		return error_set(error, -EINVAL, o->name ? o->name : "",
			"a pool's name begins with a letter and has up to %u letters, digits, "
			"'.', '_' and '-'",
			POOL_NAME_MAX);
	for (unsigned i = 0; i < o->device_count; i++) {
		const char *domain = o->devices[i].domain;

		if (domain && (!*domain || strlen(domain) > 31))
			return error_set(error, -EINVAL, o->devices[i].path,
				"the name of a domain has 1 to 31 characters");
	}
	return check_code(o, error);
}

/* What libblkid finds on a device: a file system, RAID member, partition table. */
static int check_foreign(struct engine *engine, const char *path, struct error *error)
{
	const char *type = NULL;
	blkid_probe probe;
	int rc = 0;

	if (engine_is_simulated(engine))
		return 0;
	probe = blkid_new_probe_from_filename(path);
	if (!probe)
		return 0;
	blkid_probe_enable_superblocks(probe, 1);
	blkid_probe_enable_partitions(probe, 1);
	if (blkid_do_safeprobe(probe) == 0 &&
		(!blkid_probe_lookup_value(probe, "TYPE", &type, NULL) ||
			!blkid_probe_lookup_value(probe, "PTTYPE", &type, NULL)))
		rc = error_set(error, -EBUSY, path,
			"it holds %s data; use another device, or --force to destroy what is on it",
			type);
	blkid_free_probe(probe);
	return rc;
}

static int keep_name(void *data, const struct label *label)
{
	struct label *best = data;

	if (!best->device_count || label->epoch > best->epoch)
		*best = *label;
	return 0;
}

int device_check_unused(
	struct engine *engine, struct device *device, const char *path, struct error *error)
{
	struct device_header header;
	struct label *label;
	int rc = device_header_read(engine, device, &header);

	if (rc == -ENOENT || rc == -EBADMSG)
		return check_foreign(engine, path, error);
	if (rc && rc != -ENOTSUP)
		return error_set(error, rc, path, "it cannot be read: %s", strerror(-rc));
	label = calloc(1, sizeof(*label));
	if (!label)
		return -ENOMEM;
	if (!rc)
		label_read_all(engine, device, &header, keep_name, label);
	rc = error_set(error, -EBUSY, path,
		"it belongs to pool %s; destroy that pool first, or use --force to take it",
		label->device_count ? label->name : "of another version");
	free(label);
	return rc;
}

static int open_devices(struct creation *c)
{
	for (unsigned i = 0; i < c->options->device_count; i++) {
		const char *path = c->options->devices[i].path;
		int rc;

		for (unsigned j = 0; j < i; j++)
			if (!strcmp(path, c->options->devices[j].path))
				return error_set(
					c->error, -EINVAL, path, "the device is given twice");
		rc = device_open(c->engine, path, DEVICE_EXCLUSIVE, &c->devices[i], c->error);
		if (!rc && !c->options->force)
			rc = device_check_unused(c->engine, c->devices[i], path, c->error);
		if (rc)
			return rc;
	}
	return 0;
}

static uint64_t round_down(uint64_t value, uint64_t to)
{
	return value / to * to;
}

static uint64_t journal_size(const struct pool_create_options *o, uint64_t smallest)
{
	uint64_t size = smallest / 64;

	if (o->journal_size)
		return round_down(o->journal_size, BLOCK_SIZE);
	if (size < JOURNAL_LEAST)
		size = JOURNAL_LEAST;
	if (size > JOURNAL_MOST)
		size = JOURNAL_MOST;
	return round_down(size, 8 * BLOCK_SIZE);
}

/* Where the journal begins on a device of `size` bytes. */
static uint64_t journal_place(uint64_t size)
{
	return size < FENCING_DEVICE_LEAST ? BLOCK_SIZE + LABEL_AREA
					   : FENCING_OFFSET + FENCING_SIZE;
}

static uint64_t slots_space(uint64_t size, uint64_t journal)
{
	uint64_t other = journal_place(size) + journal + LABEL_AREA + BLOCK_SIZE;

	return size > other ? size - other : 0;
}

/* A chunk is as large as one may be, or has CHUNK_WANTED bytes and ROWS_WANTED rows. */
static bool large_enough(uint32_t rows, uint32_t cell)
{
	uint64_t bytes = (uint64_t)rows * cell;

	return 2 * bytes > CHUNK_MOST || (bytes >= CHUNK_WANTED && rows >= ROWS_WANTED);
}

/* As large as is wanted, but so that a device has 1,000 slots; small devices have fewer. */
static uint32_t choose_rows(const struct pool_create_options *o, uint32_t cell, uint64_t space)
{
	uint32_t rows = ROWS_LEAST;
	struct layout layout;

	if (o->slot_rows)
		return o->slot_rows;
	for (; !large_enough(rows, cell); rows *= 2) {
		layout_compute(&layout, o->data, o->parity, cell, 2 * rows);
		if (space / layout_slot_size(&layout) < SLOTS_WANTED)
			break;
	}
	return rows;
}

static uint64_t smallest(const uint64_t *sizes, unsigned count)
{
	uint64_t least = sizes[0];

	for (unsigned i = 1; i < count; i++)
		if (sizes[i] < least)
			least = sizes[i];
	return least;
}

static void place_parts(struct device_header *h, uint64_t size, uint64_t journal)
{
	struct layout layout;

	layout_compute(&layout, h->data, h->parity, h->cell, h->slot_rows);
	h->slot_size = layout_slot_size(&layout);
	h->size = size;
	h->journal_offset = journal_place(size);
	h->journal_size = journal;
	h->slots_offset = h->journal_offset + journal;
	h->label_b_offset = size - BLOCK_SIZE - LABEL_AREA;
	h->slot_count = (uint32_t)(slots_space(size, journal) / h->slot_size);
}

static int check_slots(const struct pool_create_options *o, const struct device_header *h,
	const char *path, struct error *error)
{
	uint8_t block[BLOCK_SIZE];
	struct device_header again;

	if (h->slot_count < (o->slot_rows ? 4 : SLOTS_LEAST))
		return error_set(error, -EINVAL, path,
			"the device is too small: %llu MiB hold %u slots of %u KiB, %u are needed; "
			"use a larger device or a smaller --cell",
			(unsigned long long)(h->size >> 20), h->slot_count, h->slot_size >> 10,
			SLOTS_LEAST);
	if (device_header_encode(h, block) || device_header_decode(&again, block))
		return error_set(error, -EINVAL, path,
			"%u slots of %u rows of %u KiB are no geometry that can be opened",
			h->slot_count, h->slot_rows, h->cell >> 10);
	return 0;
}

/*
 * The pool's own image has a row for each segment, and the label one for each segment of that
 * image. It has to fit when the pool is full and new segments have but one data chunk, twice over,
 * since other rows come and go.
 */
static int check_root(const struct pool_create_options *o, const struct device_header *headers,
	struct error *error)
{
	uint64_t chunk = (uint64_t)headers[0].slot_rows * headers[0].cell, slots = 0, bytes;
	unsigned width = o->data + o->parity, most = ROOT_ROOM / SEGMENT_ROW_SIZE(o->parity + 1);

	for (unsigned i = 0; i < o->device_count; i++)
		slots += headers[i].slot_count;
	bytes = slots / width * (ENTRY_SIZE + SEGMENT_ROW_SIZE(width));
	if (most > ROOT_SEGMENTS_MAX)
		most = ROOT_SEGMENTS_MAX;
	if (2 * bytes <= most * chunk)
		return 0;
	return error_set(error, -EINVAL, o->name,
		"cells of %u KiB make more segments of these devices than a pool can have; use a "
		"larger --cell",
		headers[0].cell >> 10);
}

int geometry_plan_like(const struct device_header *like, uint64_t size, uint32_t slots,
	struct device_header *header)
{
	*header = *like;
	place_parts(header, size, like->journal_size);
	if (header->slot_count < slots)
		return -EFBIG;
	header->slot_count = slots;
	return 0;
}

int geometry_plan(const struct pool_create_options *o, const uint64_t *sizes,
	struct device_header *headers, struct error *error)
{
	uint64_t least = smallest(sizes, o->device_count), journal = journal_size(o, least);
	uint32_t cell = o->cell ? o->cell : CELL_DEFAULT;
	uint32_t rows = choose_rows(o, cell, slots_space(least, journal));
	bool pq = o->parity <= 2;
	int rc = 0;

	for (unsigned i = 0; !rc && i < o->device_count; i++) {
		headers[i] = (struct device_header){
			.incompatible = pq ? FEATURE_PQ : 0,
			.id = (uint16_t)i,
			.data = (uint8_t)o->data,
			.parity = (uint8_t)o->parity,
			.matrix = pq ? MATRIX_PQ : MATRIX_CAUCHY,
			.cell = cell,
			.slot_rows = rows,
		};
		place_parts(&headers[i], sizes[i], journal);
		rc = check_slots(o, &headers[i], o->devices[i].path, error);
	}
	return rc ? rc : check_root(o, headers, error);
}

static int plan(struct creation *c)
{
	const struct pool_create_options *o = c->options;
	uint64_t sizes[POOL_DEVICES_MAX];
	int rc;

	for (unsigned i = 0; i < o->device_count; i++)
		sizes[i] = device_info(c->devices[i])->size;
	rc = geometry_plan(o, sizes, c->headers, c->error);
	if (rc)
		return rc;
	uuid_make(c->engine, c->label.pool);
	for (unsigned i = 0; i < o->device_count; i++) {
		memcpy(c->headers[i].pool, c->label.pool, 16);
		uuid_make(c->engine, c->headers[i].uuid);
		c->headers[i].created = engine_time(c->engine);
	}
	return 0;
}

static void label_fill(struct creation *c)
{
	const struct pool_create_options *o = c->options;
	struct label *label = &c->label;

	snprintf(label->name, sizeof(label->name), "%s", o->name);
	snprintf(label->owner, sizeof(label->owner), "%s", o->host);
	label->state = LABEL_ASSIGNED;
	label->sequence = 1;
	label->written = engine_time(c->engine);
	label->device_count = (uint16_t)o->device_count;
	label->replay.lsn = 1;
	for (unsigned i = 0; i < o->device_count; i++) {
		struct label_device *d = &label->devices[i];
		const char *domain = o->devices[i].domain;

		memcpy(d->uuid, c->headers[i].uuid, 16);
		d->state = DEVICE_ACTIVE;
		d->slot_count = c->headers[i].slot_count;
		snprintf(d->domain, sizeof(d->domain), "%.31s", domain ? domain : o->host);
	}
}

static int write_at(struct creation *c, unsigned i, uint64_t offset, void *bytes, size_t length)
{
	struct io io;
	int rc;

	io_prepare(&io, IO_WRITE, c->devices[i], offset, bytes, length);
	io.flags = IO_FUA;
	rc = io_run(c->engine, &io);
	return rc ? error_set(c->error, rc, c->options->devices[i].path, "it cannot be written: %s",
			    strerror(-rc))
		  : 0;
}

static int write_both(struct creation *c, unsigned i, uint64_t a, uint64_t b, void *bytes, size_t n)
{
	int rc = write_at(c, i, a, bytes, n);

	return rc ? rc : write_at(c, i, b, bytes, n);
}

static int write_pass(struct creation *c, uint8_t *area, int pass)
{
	for (unsigned i = 0; i < c->options->device_count; i++) {
		struct device_header *h = &c->headers[i];
		uint64_t end = h->size - BLOCK_SIZE;
		int rc;

		memset(area, 0, LABEL_AREA);
		if (pass == 0) {
			rc = write_both(c, i, 0, end, area, BLOCK_SIZE);
			if (!rc)
				rc = write_both(
					c, i, BLOCK_SIZE, h->label_b_offset, area, LABEL_AREA);
		} else if (pass == 1) {
			rc = label_encode(&c->label, area);
			if (!rc)
				rc = write_both(
					c, i, BLOCK_SIZE, h->label_b_offset, area, LABEL_BODY);
		} else {
			rc = device_header_encode(h, area);
			if (!rc)
				rc = write_both(c, i, 0, end, area, BLOCK_SIZE);
		}
		if (rc)
			return rc;
	}
	return 0;
}

static int write_all(struct creation *c)
{
	uint8_t *area = buffer_alloc(c->engine, LABEL_AREA);
	int rc = area ? 0 : -ENOMEM;

	for (int pass = 0; !rc && pass < 3; pass++)
		rc = write_pass(c, area, pass);
	buffer_free(c->engine, area, LABEL_AREA);
	return rc;
}

int pool_create(
	struct engine *engine, const struct pool_create_options *options, struct error *error)
{
	struct creation *c;
	int rc = check_options(options, error);

	if (rc)
		return rc;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->engine = engine;
	c->options = options;
	c->error = error;
	rc = open_devices(c);
	if (!rc)
		rc = plan(c);
	if (!rc) {
		label_fill(c);
		rc = write_all(c);
	}
	for (unsigned i = 0; i < options->device_count; i++)
		device_close(c->devices[i]);
	free(c);
	return rc;
}
