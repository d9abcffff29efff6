/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Making a pool: everything is checked before the first byte is written; then old labels are wiped,
 * new labels written, device headers last. A crash in between leaves devices that are no pool yet,
 * and can be used again without --force only when nothing of them was taken.
 */
#include <blkid/blkid.h>
#include <ctype.h>
#include <stdio.h>

#include "pool/internal.h"

#define CELL_DEFAULT (128u << 10)
#define SLOT_ROWS_LEAST 8u
#define SLOT_ROWS_MOST 512u
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

static void uuid_make(struct engine *engine, uint8_t uuid[16])
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
static int check_foreign(struct creation *c, unsigned i)
{
	const char *path = c->options->devices[i].path, *type = NULL;
	blkid_probe probe;
	int rc = 0;

	if (engine_is_simulated(c->engine))
		return 0;
	probe = blkid_new_probe_from_filename(path);
	if (!probe)
		return 0;
	blkid_probe_enable_superblocks(probe, 1);
	blkid_probe_enable_partitions(probe, 1);
	if (blkid_do_safeprobe(probe) == 0 &&
		(!blkid_probe_lookup_value(probe, "TYPE", &type, NULL) ||
			!blkid_probe_lookup_value(probe, "PTTYPE", &type, NULL)))
		rc = error_set(c->error, -EBUSY, path,
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

static int check_member(struct creation *c, unsigned i)
{
	struct device_header header;
	struct label *label;
	const char *path = c->options->devices[i].path;
	int rc = device_header_read(c->engine, c->devices[i], &header);

	if (rc == -ENOENT || rc == -EBADMSG)
		return check_foreign(c, i);
	if (rc && rc != -ENOTSUP)
		return error_set(c->error, rc, path, "it cannot be read: %s", strerror(-rc));
	label = calloc(1, sizeof(*label));
	if (!label)
		return -ENOMEM;
	if (!rc)
		label_read_all(c->engine, c->devices[i], &header, keep_name, label);
	rc = error_set(c->error, -EBUSY, path,
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
			rc = check_member(c, i);
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

static uint64_t slots_space(uint64_t size, uint64_t journal)
{
	uint64_t other = 2 * BLOCK_SIZE + 2 * LABEL_AREA + journal;

	return size > other ? size - other : 0;
}

/* The largest slots of which the smallest device has 1,000; small devices have fewer. */
static uint32_t choose_rows(const struct pool_create_options *o, uint32_t cell, uint64_t space)
{
	uint32_t rows = SLOT_ROWS_MOST;
	struct layout layout;

	if (o->slot_rows)
		return o->slot_rows;
	for (;; rows /= 2) {
		layout_compute(&layout, o->data, o->parity, cell, rows);
		if (space / layout_slot_size(&layout) >= SLOTS_WANTED || rows <= SLOT_ROWS_LEAST)
			return rows;
	}
}

static uint64_t smallest_device(struct creation *c, unsigned *which)
{
	uint64_t smallest = UINT64_MAX;

	for (unsigned i = 0; i < c->options->device_count; i++) {
		uint64_t size = device_info(c->devices[i])->size;

		if (size < smallest) {
			smallest = size;
			*which = i;
		}
	}
	return smallest;
}

static void header_fill(
	struct creation *c, unsigned i, uint32_t cell, uint32_t rows, uint64_t journal)
{
	struct device_header *h = &c->headers[i];
	struct layout layout;

	layout_compute(&layout, c->options->data, c->options->parity, cell, rows);
	h->id = (uint16_t)i;
	h->data = (uint8_t)c->options->data;
	h->parity = (uint8_t)c->options->parity;
	h->matrix = 1;
	h->cell = cell;
	h->slot_rows = rows;
	h->slot_size = layout_slot_size(&layout);
	h->size = device_info(c->devices[i])->size;
	h->journal_offset = BLOCK_SIZE + LABEL_AREA;
	h->journal_size = journal;
	h->slots_offset = h->journal_offset + journal;
	h->label_b_offset = h->size - BLOCK_SIZE - LABEL_AREA;
	h->slot_count = (uint32_t)(slots_space(h->size, journal) / h->slot_size);
	h->created = engine_time(c->engine);
	memcpy(h->pool, c->label.pool, 16);
	uuid_make(c->engine, h->uuid);
}

static int plan(struct creation *c)
{
	const struct pool_create_options *o = c->options;
	uint32_t cell = o->cell ? o->cell : CELL_DEFAULT, rows;
	unsigned which = 0;
	uint64_t smallest = smallest_device(c, &which), journal = journal_size(o, smallest);

	rows = choose_rows(o, cell, slots_space(smallest, journal));
	uuid_make(c->engine, c->label.pool);
	for (unsigned i = 0; i < o->device_count; i++)
		header_fill(c, i, cell, rows, journal);
	if (c->headers[which].slot_count < (o->slot_rows ? 4 : SLOTS_LEAST))
		return error_set(c->error, -EINVAL, o->devices[which].path,
			"the device is too small: %llu MiB hold %u slots of %u KiB, %u are needed; "
			"use a larger device or a smaller --cell",
			(unsigned long long)(smallest >> 20), c->headers[which].slot_count,
			c->headers[which].slot_size >> 10, SLOTS_LEAST);
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
