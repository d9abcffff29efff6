/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Explicit little-endian encoding for everything on disk and in the journal, and big-endian for
 * keys that must sort by number. A reader never runs past its end: it goes "bad" and yields zeros,
 * to be asked once at the end.
 */
#ifndef MILLRACE_CODEC_H
#define MILLRACE_CODEC_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct writer {
	uint8_t *at, *end;
	bool overflow;
};

struct reader {
	const uint8_t *at, *end;
	bool bad;
};

static inline struct writer writer_on(void *buffer, size_t length)
{
	return (struct writer){.at = buffer, .end = (uint8_t *)buffer + length};
}

static inline struct reader reader_on(const void *buffer, size_t length)
{
	return (struct reader){.at = buffer, .end = (const uint8_t *)buffer + length};
}

static inline void put_bytes(struct writer *w, const void *bytes, size_t length)
{
	if (w->overflow || length > (size_t)(w->end - w->at)) {
		w->overflow = true;
		return;
	}
	if (length)
		memcpy(w->at, bytes, length);
	w->at += length;
}

/* Copied whole: the compiler makes no single store, or load, of a loop over bytes. */
static inline void put_number(struct writer *w, uint64_t value, unsigned bytes)
{
	value = htole64(value);
	put_bytes(w, &value, bytes);
}

static inline void put_u8(struct writer *w, uint8_t v)
{
	put_number(w, v, 1);
}
static inline void put_u16(struct writer *w, uint16_t v)
{
	put_number(w, v, 2);
}
static inline void put_u32(struct writer *w, uint32_t v)
{
	put_number(w, v, 4);
}
static inline void put_u64(struct writer *w, uint64_t v)
{
	put_number(w, v, 8);
}

/* Big-endian, for keys. */
static inline void put_be64(struct writer *w, uint64_t value)
{
	value = htobe64(value);
	put_bytes(w, &value, sizeof(value));
}

/* The next `length` bytes in place, or NULL when there are not so many. */
static inline const uint8_t *get_bytes(struct reader *r, size_t length)
{
	const uint8_t *bytes = r->at;

	if (r->bad || length > (size_t)(r->end - r->at)) {
		r->bad = true;
		return NULL;
	}
	r->at += length;
	return bytes;
}

static inline uint64_t get_number(struct reader *r, unsigned bytes)
{
	const uint8_t *p = get_bytes(r, bytes);
	uint64_t value = 0;

	if (p)
		memcpy(&value, p, bytes);
	return le64toh(value);
}

static inline uint8_t get_u8(struct reader *r)
{
	return (uint8_t)get_number(r, 1);
}
static inline uint16_t get_u16(struct reader *r)
{
	return (uint16_t)get_number(r, 2);
}
static inline uint32_t get_u32(struct reader *r)
{
	return (uint32_t)get_number(r, 4);
}
static inline uint64_t get_u64(struct reader *r)
{
	return get_number(r, 8);
}

static inline uint64_t get_be64(struct reader *r)
{
	const uint8_t *p = get_bytes(r, 8);
	uint64_t value = 0;

	if (p)
		memcpy(&value, p, sizeof(value));
	return be64toh(value);
}

#endif
