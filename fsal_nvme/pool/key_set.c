/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A set of keys in memory: hashed, each key stored once, sorted when it is asked for.
 *
 * It is in so many parts, by the keys' hash, that making one of them larger takes milliseconds in a
 * set of millions. Whoever adds a key holds an environment's write lock, and others wait.
 */
#include "pool/key_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "pool/format.h"

#define PARTS 64u
#define PART_BITS 6u
#define SLOTS_FIRST 16u
#define BYTES_FIRST 512u
#define LENGTH_SIZE sizeof(uint16_t)

/* Keys one behind the other, each behind its length; `slots` has where they begin, and 1 more. */
struct part {
	uint8_t *bytes;
	uint32_t *slots;
	uint32_t used, room, count, slot_count;
};

struct key_set {
	uint64_t count, bytes;
	struct part parts[PARTS];
};

struct key_set *key_set_new(void)
{
	return calloc(1, sizeof(struct key_set));
}

void key_set_free(struct key_set *set)
{
	for (unsigned i = 0; set && i < PARTS; i++) {
		free(set->parts[i].bytes);
		free(set->parts[i].slots);
	}
	free(set);
}

uint64_t key_set_count(const struct key_set *set)
{
	return set->count;
}

uint64_t key_set_bytes(const struct key_set *set)
{
	return set->bytes;
}

static struct bytes key_at(const struct part *part, uint32_t offset)
{
	uint16_t length;

	memcpy(&length, part->bytes + offset, LENGTH_SIZE);
	return (struct bytes){part->bytes + offset + LENGTH_SIZE, length};
}

static uint64_t hash_of(struct bytes key)
{
	return XXH64(key.data, key.length, 0);
}

static bool same(struct bytes a, struct bytes b)
{
	return a.length == b.length && !memcmp(a.data, b.data, a.length);
}

/* Where the key stands, or the empty slot where it would. */
static uint32_t *find(const struct part *part, struct bytes key, uint64_t hash)
{
	uint32_t mask = part->slot_count - 1, at = (uint32_t)hash & mask;

	while (part->slots[at] && !same(key_at(part, part->slots[at] - 1), key))
		at = (at + 1) & mask;
	return &part->slots[at];
}

static int grow_slots(struct part *part)
{
	uint32_t old_count = part->slot_count, *old = part->slots;
	uint32_t count = old_count ? 2 * old_count : SLOTS_FIRST;
	uint32_t *slots = calloc(count, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	part->slots = slots;
	part->slot_count = count;
	for (uint32_t i = 0; i < old_count; i++) {
		if (old[i]) {
			struct bytes key = key_at(part, old[i] - 1);

			*find(part, key, hash_of(key)) = old[i];
		}
	}
	free(old);
	return 0;
}

static int grow_bytes(struct part *part, size_t needed)
{
	uint64_t room = part->room ? 2 * (uint64_t)part->room : BYTES_FIRST;
	uint8_t *bytes;

	while (room < needed)
		room *= 2;
	if (room > UINT32_MAX)
		return -ENOMEM;
	bytes = realloc(part->bytes, room);
	if (!bytes)
		return -ENOMEM;
	part->bytes = bytes;
	part->room = (uint32_t)room;
	return 0;
}

/* A quarter of the slots stays empty. */
static int make_room(struct part *part, struct bytes key)
{
	size_t needed = part->used + LENGTH_SIZE + key.length;
	int rc = needed > part->room ? grow_bytes(part, needed) : 0;

	if (!rc && 4 * (uint64_t)part->count >= 3 * (uint64_t)part->slot_count)
		rc = grow_slots(part);
	return rc;
}

int key_set_add(struct key_set *set, struct bytes key)
{
	uint64_t hash = hash_of(key);
	struct part *part = &set->parts[hash >> (64 - PART_BITS)];
	uint16_t length = (uint16_t)key.length;
	int rc;

	if (part->count && *find(part, key, hash))
		return 0;
	rc = make_room(part, key);
	if (rc)
		return rc;
	*find(part, key, hash) = part->used + 1;
	memcpy(part->bytes + part->used, &length, LENGTH_SIZE);
	memcpy(part->bytes + part->used + LENGTH_SIZE, key.data, key.length);
	part->used += (uint32_t)(LENGTH_SIZE + key.length);
	part->count++;
	set->count++;
	set->bytes += LENGTH_SIZE + key.length;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct bytes *x = a, *y = b;
	size_t common = x->length < y->length ? x->length : y->length;
	int order = memcmp(x->data, y->data, common);

	return order ? order : (x->length > y->length) - (x->length < y->length);
}

struct bytes *key_set_sorted(const struct key_set *set)
{
	struct bytes *list = malloc((set->count ? set->count : 1) * sizeof(*list));
	size_t n = 0;

	if (!list)
		return NULL;
	for (unsigned i = 0; i < PARTS; i++) {
		const struct part *part = &set->parts[i];

		for (uint32_t at = 0; at < part->used; n++) {
			list[n] = key_at(part, at);
			at += (uint32_t)(LENGTH_SIZE + list[n].length);
		}
	}
	qsort(list, n, sizeof(*list), compare);
	return list;
}
