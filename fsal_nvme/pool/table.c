/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The volume table and the properties: rows of the pool's environment.
 *
 *   'V' be32 id            u8 version, u8 kind, u8 flags, u16 export id, u64 created, 16 uuid,
 *                          u8 name length, name (empty while the volume is being destroyed)
 *   'N' name               be32 id
 *   'P' be32 volume, name  text
 *   'C' name               le64, the last number given out: "volume", "export"
 *
 * Deleting a volume can take more changes than a record holds. It then goes in steps: the first
 * takes its name and marks it, each frees segments until the record is full and says -EAGAIN, for
 * the caller to commit and to call again. What is freed in a committed step is gone from the
 * segment table, so that the next one goes on with what is left, after a crash too.
 */
#include "pool/env.h"

#include <assert.h>

#define ROW_VERSION 1u
#define ROW_SIZE_MAX (30u + POOL_VOLUME_NAME_MAX)
#define EXPORT_MAX 65535u
#define PROPERTY_NAME_MAX 63u
#define PROPERTY_VALUE_MAX 4095u
#define STEP_ROOM 4096u /* kept for the last changes of a step */

enum { FLAG_SEALED = 1 << 0, FLAG_DESTROYING = 1 << 1 };

/* --- names and keys -------------------------------------------------------------------------- */

static bool name_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '.' || c == '_' || c == '-';
}

static int name_check(const char *name, const char *more)
{
	size_t length = strlen(name);

	if (!length || name[0] == '.' || name[0] == '-')
		return -EINVAL;
	for (size_t i = 0; i < length; i++) {
		if (!name_character(name[i]) && !strchr(more, name[i]))
			return -EINVAL;
	}
	return length > POOL_VOLUME_NAME_MAX ? -ENAMETOOLONG : 0;
}

static struct bytes row_key(uint8_t key[5], uint32_t id)
{
	struct writer w = writer_on(key, 5);

	put_u8(&w, KEY_VOLUME);
	put_key_u32(&w, id);
	return (struct bytes){key, 5};
}

static struct bytes name_key(uint8_t key[1 + POOL_VOLUME_NAME_MAX], const char *name)
{
	struct writer w = writer_on(key, 1 + POOL_VOLUME_NAME_MAX);

	put_u8(&w, KEY_NAME);
	put_bytes(&w, name, strlen(name));
	assert(!w.overflow);
	return (struct bytes){key, (size_t)(w.at - key)};
}

static struct env *own(const struct txn *txn)
{
	return pool_env(txn_pool(txn));
}

/* --- rows ------------------------------------------------------------------------------------ */

static struct bytes row_encode(const struct volume_row *row, uint8_t value[ROW_SIZE_MAX])
{
	struct writer w = writer_on(value, ROW_SIZE_MAX);
	size_t length = strlen(row->name);

	put_u8(&w, ROW_VERSION);
	put_u8(&w, (uint8_t)row->kind);
	put_u8(&w, (row->sealed ? FLAG_SEALED : 0) | (row->destroying ? FLAG_DESTROYING : 0));
	put_u16(&w, row->export_id);
	put_u64(&w, row->created);
	put_bytes(&w, row->uuid, 16);
	put_u8(&w, (uint8_t)length);
	put_bytes(&w, row->name, length);
	assert(!w.overflow);
	return (struct bytes){value, (size_t)(w.at - value)};
}

static int row_decode(struct volume_row *row, uint32_t id, struct bytes value)
{
	struct reader r = reader_on(value.data, value.length);
	const uint8_t *uuid, *name;
	uint8_t version = get_u8(&r), kind = get_u8(&r), flags = get_u8(&r), length;

	memset(row, 0, sizeof(*row));
	row->id = id;
	row->kind = (enum volume_kind)kind;
	row->sealed = flags & FLAG_SEALED;
	row->destroying = flags & FLAG_DESTROYING;
	row->export_id = get_u16(&r);
	row->created = get_u64(&r);
	uuid = get_bytes(&r, 16);
	length = get_u8(&r);
	name = get_bytes(&r, length);
	if (!r.bad && version != ROW_VERSION)
		return -ENOTSUP;
	if (r.bad || r.at != r.end || length > POOL_VOLUME_NAME_MAX || kind < VOLUME_SHARE ||
		kind > VOLUME_SNAPSHOT || flags & ~(FLAG_SEALED | FLAG_DESTROYING))
		return -EBADMSG;
	memcpy(row->uuid, uuid, 16);
	memcpy(row->name, name, length);
	return strlen(row->name) == length ? 0 : -EBADMSG;
}

static int row_store(struct txn *txn, const struct volume_row *row)
{
	uint8_t key[5], value[ROW_SIZE_MAX];

	return txn_put(txn, own(txn), row_key(key, row->id), row_encode(row, value));
}

int volume_row_get(struct txn *txn, uint32_t id, struct volume_row *row)
{
	uint8_t key[5];
	struct bytes value;
	int rc = txn_get(txn, own(txn), row_key(key, id), &value);

	return rc ? rc : row_decode(row, id, value);
}

static int name_find(struct txn *txn, const char *name, uint32_t *id)
{
	uint8_t key[1 + POOL_VOLUME_NAME_MAX];
	struct bytes value;
	struct reader r;
	int rc = txn_get(txn, own(txn), name_key(key, name), &value);

	if (rc)
		return rc;
	r = reader_on(value.data, value.length);
	*id = get_key_u32(&r);
	return r.bad || r.at != r.end ? -EBADMSG : 0;
}

static int name_store(struct txn *txn, const char *name, uint32_t id)
{
	uint8_t key[1 + POOL_VOLUME_NAME_MAX], value[4];
	struct writer w = writer_on(value, sizeof(value));

	put_key_u32(&w, id);
	return txn_put(txn, own(txn), name_key(key, name), (struct bytes){value, sizeof(value)});
}

static int name_forget(struct txn *txn, const char *name)
{
	uint8_t key[1 + POOL_VOLUME_NAME_MAX];

	return txn_delete(txn, own(txn), name_key(key, name));
}

int volume_row_find(struct txn *txn, const char *name, struct volume_row *row)
{
	uint32_t id;
	int rc = name_check(name, "");

	if (!rc)
		rc = name_find(txn, name, &id);
	return rc ? rc : volume_row_get(txn, id, row);
}

int volume_row_next(struct txn *txn, uint32_t id, struct volume_row *row)
{
	uint8_t key[5];
	struct bytes found, value;
	struct reader r;
	uint32_t next;
	int rc = txn_seek(txn, own(txn), row_key(key, id), &found, &value);

	if (rc)
		return rc;
	r = reader_on(found.data, found.length);
	if (get_u8(&r) != KEY_VOLUME)
		return -ENOENT;
	next = get_key_u32(&r);
	return r.bad || r.at != r.end ? -EBADMSG : row_decode(row, next, value);
}

/* --- creating and changing ---------------------------------------------------------------------
 */

static int counter_next(struct txn *txn, const char *name, uint64_t most, uint64_t *number)
{
	uint8_t key[16], le[8];
	struct writer k = writer_on(key, sizeof(key)), w = writer_on(le, sizeof(le));
	struct bytes key_bytes, value;
	int rc;

	put_u8(&k, KEY_COUNTER);
	put_bytes(&k, name, strlen(name));
	key_bytes = (struct bytes){key, (size_t)(k.at - key)};
	rc = txn_get(txn, own(txn), key_bytes, &value);
	*number = 0;
	if (!rc) {
		struct reader r = reader_on(value.data, value.length);

		*number = get_u64(&r);
		rc = r.bad ? -EBADMSG : 0;
	}
	if (rc && rc != -ENOENT)
		return rc;
	if (*number >= most)
		return -ENOSPC;
	put_u64(&w, ++*number);
	return txn_put(txn, own(txn), key_bytes, (struct bytes){le, sizeof(le)});
}

static void make_uuid(struct engine *engine, uint8_t uuid[16])
{
	engine_random(engine, uuid, 16);
	uuid[6] = (uuid[6] & 0x0f) | 0x40; /* RFC 9562, version 4 */
	uuid[8] = (uuid[8] & 0x3f) | 0x80;
}

static int name_free(struct txn *txn, const char *name)
{
	uint32_t id;
	int rc = name_check(name, "");

	if (rc)
		return rc;
	rc = name_find(txn, name, &id);
	if (!rc)
		return -EEXIST;
	return rc == -ENOENT ? 0 : rc;
}

static int row_number(struct txn *txn, struct volume_row *row)
{
	uint64_t id, export_id;
	int rc = counter_next(txn, "volume", UINT32_MAX, &id);

	if (!rc)
		rc = counter_next(txn, "export", EXPORT_MAX, &export_id);
	if (rc)
		return rc;
	row->id = (uint32_t)id;
	row->export_id = (uint16_t)export_id;
	return 0;
}

int volume_row_create(
	struct txn *txn, const char *name, enum volume_kind kind, struct volume_row *row)
{
	struct engine *engine = txn_pool(txn)->engine;
	int rc = name_free(txn, name);

	if (rc)
		return rc;
	if (kind < VOLUME_SHARE || kind > VOLUME_SNAPSHOT)
		return -EINVAL;
	memset(row, 0, sizeof(*row));
	row->kind = kind;
	row->created = engine_time(engine);
	make_uuid(engine, row->uuid);
	memcpy(row->name, name, strlen(name) + 1);
	rc = row_number(txn, row);
	if (!rc)
		rc = name_store(txn, name, row->id);
	return rc ? rc : row_store(txn, row);
}

/* The name of the row moves from `old` to `new`, either of which may be empty: none. */
static int rename_row(struct txn *txn, uint32_t id, const char *old, const char *new)
{
	int rc = 0;

	if (!strcmp(old, new))
		return 0;
	if (new[0])
		rc = name_free(txn, new);
	if (!rc && old[0])
		rc = name_forget(txn, old);
	return rc || !new[0] ? rc : name_store(txn, new, id);
}

int volume_row_put(struct txn *txn, const struct volume_row *row)
{
	struct volume_row old, new = *row;
	int rc = volume_row_get(txn, row->id, &old);

	if (rc)
		return rc;
	if (new.destroying)
		new.name[0] = '\0';
	else if (!new.name[0])
		return -EINVAL;
	rc = rename_row(txn, row->id, old.name, new.name);
	return rc ? rc : row_store(txn, &new);
}

/* --- deleting ----------------------------------------------------------------------------------
 */

/* A step that has not begun yet may try anything: more room there will never be. */
static bool room_for(const struct txn *txn, size_t bytes)
{
	return !txn_has_changes(txn) || txn_room(txn) >= bytes + STEP_ROOM;
}

/* What deleting all keys takes that begin with the prefix. */
static int delete_cost(struct txn *txn, uint8_t prefix, uint64_t id, size_t *cost)
{
	uint8_t key[POOL_KEY_MAX];
	struct writer w = writer_on(key, sizeof(key));
	struct bytes found, value;
	size_t length;
	int rc;

	put_u8(&w, prefix);
	put_be64(&w, id);
	length = (size_t)(w.at - key);
	while (!(rc = txn_seek(txn, own(txn), (struct bytes){key, length}, &found, &value))) {
		if (found.length < 9 || memcmp(found.data, key, 9))
			return 0;
		*cost += found.length + TXN_CHANGE_OVERHEAD;
		length = found.length;
		memcpy(key, found.data, length);
		if (length == sizeof(key))
			return -EBADMSG;
		key[length++] = 0; /* the least that is greater */
	}
	return rc == -ENOENT ? 0 : rc;
}

static int free_segment(struct txn *txn, struct segment *segment)
{
	size_t cost = 9 + SEGMENT_ROW_MAX + TXN_CHANGE_OVERHEAD; /* it may have to stay */
	int rc;

	rc = delete_cost(txn, KEY_SUMS, segment->id, &cost);
	if (!rc)
		rc = delete_cost(txn, KEY_TAIL, segment->id, &cost);
	if (!rc && segment->remap)
		rc = delete_cost(txn, KEY_REMAP, segment->id, &cost);
	if (!rc && !room_for(txn, cost))
		rc = -EAGAIN;
	return rc ? rc : segment_free(txn, segment);
}

/* Those that are moved before the places that they name: there are no remaps of nothing. */
static int free_segments(struct txn *txn, uint32_t volume, bool moved)
{
	struct segment **segments;
	unsigned count;
	int rc = segment_list(txn_pool(txn), &segments, &count);

	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		struct segment_row row;

		segment_look(segments[i], &row);
		if (!rc && row.volume == volume && row.purpose != PURPOSE_IMAGE &&
			moved == (row.state == SEGMENT_MOVED))
			rc = free_segment(txn, segments[i]);
		segment_put(segments[i]);
	}
	free(segments);
	return rc;
}

static int count_segment(void *data, struct segment *segment)
{
	++*(size_t *)data;
	return 0;
}

static int free_image_segment(void *data, struct segment *segment)
{
	return segment_free(data, segment);
}

/* The first key that begins with the prefix, copied; -ENOENT. */
static int first_key(struct txn *txn, struct bytes prefix, uint8_t key[POOL_KEY_MAX],
	size_t *length, struct bytes *value)
{
	struct bytes found;
	int rc = txn_seek(txn, own(txn), prefix, &found, value);

	if (rc)
		return rc;
	if (found.length < prefix.length || memcmp(found.data, prefix.data, prefix.length))
		return -ENOENT;
	memcpy(key, found.data, found.length);
	*length = found.length;
	return 0;
}

static struct bytes volume_prefix(uint8_t key[5], uint8_t kind, uint32_t volume)
{
	struct writer w = writer_on(key, 5);

	put_u8(&w, kind);
	put_key_u32(&w, volume);
	return (struct bytes){key, 5};
}

/* All of its segments or none: its row goes with them. */
static int free_image(struct txn *txn, struct bytes value)
{
	struct reader r = reader_on(value.data, value.length);
	struct image_row image;
	size_t segments = 0;
	int rc = image_row_decode(&image, &r);

	if (!rc)
		rc = image_each(txn_pool(txn), &image, count_segment, &segments);
	if (!rc && !room_for(txn, segments * (9 + TXN_CHANGE_OVERHEAD)))
		rc = -EAGAIN;
	return rc ? rc : image_each(txn_pool(txn), &image, free_image_segment, txn);
}

/* Deletes all rows of a volume of one kind, and what an image row names with it. */
static int delete_rows(struct txn *txn, uint8_t kind, uint32_t volume)
{
	uint8_t prefix[5], key[POOL_KEY_MAX];
	struct bytes value;
	size_t length;
	int rc;

	while (!(rc = first_key(txn, volume_prefix(prefix, kind, volume), key, &length, &value))) {
		if (kind == KEY_IMAGE)
			rc = free_image(txn, value);
		if (!rc && !room_for(txn, length + TXN_CHANGE_OVERHEAD))
			rc = -EAGAIN;
		if (!rc)
			rc = txn_delete(txn, own(txn), (struct bytes){key, length});
		if (rc)
			return rc;
	}
	return rc == -ENOENT ? 0 : rc;
}

/* What it changes is for readers to see soon. */
struct want_hook {
	struct txn_hook hook;
	struct pool *pool;
};

static void want_end(struct txn_hook *hook, uint64_t lsn)
{
	struct want_hook *want = (struct want_hook *)hook;

	if (lsn)
		atomic_store(&want->pool->root_wanted, true);
	free(want);
}

static int root_want(struct txn *txn)
{
	struct want_hook *want = malloc(sizeof(*want));

	if (!want)
		return -ENOMEM;
	*want = (struct want_hook){{.run = want_end}, txn_pool(txn)};
	txn_on_end(txn, &want->hook);
	return 0;
}

struct gone_hook {
	struct txn_hook hook;
	struct pool *pool;
	uint32_t volume;
};

static void volume_gone(struct txn_hook *hook, uint64_t lsn)
{
	struct gone_hook *gone = (struct gone_hook *)hook;

	if (lsn) {
		env_set_gone(gone->pool, gone->volume);
		atomic_store(&gone->pool->images_known, false);
		atomic_store(&gone->pool->root_wanted, true);
	}
	free(gone);
}

static int note_gone(struct txn *txn, uint32_t id)
{
	struct gone_hook *gone = malloc(sizeof(*gone));

	if (!gone)
		return -ENOMEM;
	*gone = (struct gone_hook){{.run = volume_gone}, txn_pool(txn), id};
	txn_on_end(txn, &gone->hook);
	return 0;
}

/* From here on it has no environment, in memory or at the next opening. */
static int mark_row(struct txn *txn, struct volume_row *row)
{
	int rc = note_gone(txn, row->id);

	row->destroying = true;
	return rc ? rc : volume_row_put(txn, row);
}

static int forget_row(struct txn *txn, uint32_t id)
{
	uint8_t key[5];
	int rc = note_gone(txn, id);

	return rc ? rc : txn_delete(txn, own(txn), row_key(key, id));
}

int volume_row_delete(struct txn *txn, uint32_t id)
{
	struct volume_row row;
	int rc = volume_row_get(txn, id, &row);

	if (rc)
		return rc;
	if (!row.destroying) {
		if (!room_for(txn, 0))
			return -EAGAIN;
		rc = mark_row(txn, &row);
	}
	if (!rc)
		rc = kept_forget(txn, id);
	if (!rc)
		rc = free_segments(txn, id, true);
	if (!rc)
		rc = free_segments(txn, id, false);
	if (!rc)
		rc = delete_rows(txn, KEY_IMAGE, id);
	if (!rc)
		rc = delete_rows(txn, KEY_PROPERTY, id);
	return rc ? rc : forget_row(txn, id);
}

/* --- properties --------------------------------------------------------------------------------
 */

static int property_key(
	uint8_t key[5 + PROPERTY_NAME_MAX], uint32_t volume, const char *name, struct bytes *bytes)
{
	int rc = name_check(name, ":");
	size_t length = strlen(name);

	if (rc)
		return rc;
	volume_prefix(key, KEY_PROPERTY, volume);
	memcpy(key + 5, name, length);
	*bytes = (struct bytes){key, 5 + length};
	return 0;
}

static int copy_text(char *text, size_t size, const void *bytes, size_t length)
{
	if (length >= size)
		return -ERANGE;
	memcpy(text, bytes, length);
	text[length] = '\0';
	return 0;
}

int property_get(struct txn *txn, uint32_t volume, const char *name, char *value, size_t size)
{
	uint8_t key[5 + PROPERTY_NAME_MAX];
	struct bytes key_bytes, found;
	int rc = property_key(key, volume, name, &key_bytes);

	if (!rc)
		rc = txn_get(txn, own(txn), key_bytes, &found);
	return rc ? rc : copy_text(value, size, found.data, found.length);
}

int property_set(struct txn *txn, uint32_t volume, const char *name, const char *value)
{
	uint8_t key[5 + PROPERTY_NAME_MAX];
	struct volume_row row;
	struct bytes key_bytes;
	int rc = property_key(key, volume, name, &key_bytes);

	if (!rc && strlen(value) > PROPERTY_VALUE_MAX)
		rc = -ERANGE;
	if (!rc && volume)
		rc = volume_row_get(txn, volume, &row);
	if (!rc)
		rc = root_want(txn);
	if (rc)
		return rc;
	return txn_put(txn, own(txn), key_bytes, (struct bytes){value, strlen(value)});
}

int property_delete(struct txn *txn, uint32_t volume, const char *name)
{
	uint8_t key[5 + PROPERTY_NAME_MAX];
	struct bytes key_bytes;
	int rc = property_key(key, volume, name, &key_bytes);

	if (!rc)
		rc = root_want(txn);
	return rc ? rc : txn_delete(txn, own(txn), key_bytes);
}

int property_next(struct txn *txn, uint32_t volume, char *name, size_t name_size, char *value,
	size_t value_size)
{
	uint8_t key[5 + PROPERTY_NAME_MAX + 1];
	struct writer w = writer_on(key + 5, PROPERTY_NAME_MAX + 1);
	struct bytes found, text;
	int rc;

	volume_prefix(key, KEY_PROPERTY, volume);
	put_bytes(&w, name, strlen(name));
	if (name[0])
		put_u8(&w, 0); /* the least that is greater */
	if (w.overflow)
		return -ENAMETOOLONG;
	rc = txn_seek(txn, own(txn), (struct bytes){key, (size_t)(w.at - key)}, &found, &text);
	if (rc)
		return rc;
	if (found.length < 5 || memcmp(found.data, key, 5))
		return -ENOENT;
	rc = copy_text(name, name_size, (const uint8_t *)found.data + 5, found.length - 5);
	return rc ? rc : copy_text(value, value_size, text.data, text.length);
}
