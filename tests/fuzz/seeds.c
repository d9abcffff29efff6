/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Writes the corpus: valid encodings of everything, by the encoders themselves, and the refusals
 * that each decoder knows.
 *
 *   fuzz_seeds DIR      files DIR/TARGET/NAME, replaced where they are there
 */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "pool/client.h"
#include "pool/done.h"
#include "pool/env.h"
#include "pool/journal.h"
#include "pool/remap.h"
#include "seeds.h"
#include "volume/format.h"
#include "world.h"

static const char *directory;

void save(const char *target, const char *name, const void *bytes, size_t length)
{
	char path[1024];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", directory, target);
	mkdir(directory, 0777);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/%s/%s", directory, target, name);
	file = fopen(path, "w");
	if (!file || fwrite(bytes, 1, length, file) != length || fclose(file)) {
		perror(path);
		exit(1);
	}
}

/* Without the zeros at the end: the target puts them back. */
static void save_frame(const char *target, const char *name, uint8_t *frame, size_t length)
{
	memset(frame + length - 4, 0, 4); /* its CRC, which nobody asks for */
	while (length && !frame[length - 1])
		length--;
	save(target, name, frame, length);
}

/* Of a later version: bytes 8..11 of every frame. */
static void save_later(const char *target, uint8_t *frame, size_t length)
{
	frame[8] = 2;
	save_frame(target, "later", frame, length);
}

/* --- frames ----------------------------------------------------------------------------------- */

static void seed_device_header(struct fuzz_world *world)
{
	uint8_t block[BLOCK_SIZE];

	device_header_encode(&world->headers[1], block);
	save_frame("device_header", "good", block, sizeof(block));
	save_later("device_header", block, sizeof(block));
	save("device_header", "refused", "MILRDEV1", 8);
}

static void fill_segment(struct segment_row *row, unsigned i)
{
	*row = (struct segment_row){.id = 1ull << 32 | (i + 1),
		.epoch = 1,
		.volume = i,
		.generation = 1,
		.state = (uint8_t)(SEGMENT_RESERVED + i % 3),
		.data = 2,
		.parity = 1,
		.matrix = (uint8_t)(i % 2 ? MATRIX_PQ : MATRIX_CAUCHY),
		.purpose = (uint8_t)(i % 3),
		.cell = 4096,
		.rows = i % 3 == 2 ? 4 : 0,
		.length = i % 3 == 2 ? 30000 : 0,
		.live = i % 3 == 2 ? 20000 : 0,
		.next = i % 3 == 2 ? 1ull << 32 | 6 : 0,
		.chunks = {{0, i}, {1, i}, {2, i}}};
}

static void fill_root(struct label *label, unsigned kind)
{
	label->root = (struct image_row){.kind = (uint8_t)kind,
		.lsn = 70,
		.length = 7000,
		.hash = 0x1234567890abcdef,
		.segment = 1ull << 32 | 3};
	label->root_segment_count = 3;
	for (unsigned i = 0; i < 3; i++)
		fill_segment(&label->root_segments[i], i);
	label->replay = (struct journal_position){40960, 71, 99, 2};
	label->span_count = 2;
	label->spans[0] = (struct journal_span){
		.epoch = 1, .start = {0, 1, 0, 1}, .end = 32768, .window = 65536};
	label->spans[1] = (struct journal_span){
		.epoch = 2, .start = {65536, 60, 98, 2}, .end = 65536, .window = 131072};
	label->other_count = 2;
	label->others[0] =
		(struct label_owner){.epoch = 1, .host = "alpha", .from = 28672, .to = 65536};
	label->others[1] = (struct label_owner){.epoch = 2, .host = "beta"};
	label->epoch = 3;
}

static void seed_label(struct fuzz_world *world)
{
	static struct label label;
	uint8_t *body = malloc(LABEL_BODY);

	label = world->label;
	label_encode(&label, body);
	save_frame("label", "open", body, LABEL_BODY);
	fill_root(&label, IMAGE_FULL);
	label.state = LABEL_ASSIGNED;
	label.devices[1].state = DEVICE_MISSING;
	label.devices[2].state = DEVICE_DROPPED;
	label_encode(&label, body);
	save_frame("label", "assigned", body, LABEL_BODY);
	fill_root(&label, IMAGE_DELTA);
	label.state = LABEL_EXPORTED;
	label_encode(&label, body);
	save_frame("label", "exported", body, LABEL_BODY);
	label.state = LABEL_OPEN;
	label.repeats = (struct label_version){2, 7};
	label_encode(&label, body);
	save_frame("label", "claim", body, LABEL_BODY);
	save_later("label", body, LABEL_BODY);
	save("label", "refused", "MILRLBL1", 8);
	free(body);
}

static void seed_beat(void)
{
	static const uint8_t pool[16];
	struct beat beat = {7, 1234};
	uint8_t block[BLOCK_SIZE];

	beat_encode(&beat, pool, block);
	save_frame("beat", "good", block, sizeof(block));
	save_later("beat", block, sizeof(block));
	save("beat", "refused", "MILRBET2", 8);
}

static void seed_page(const char *name, uint32_t count)
{
	struct checksum_page *page = calloc(1, sizeof(*page));
	uint8_t block[BLOCK_SIZE];

	page->segment = 1ull << 32 | 5;
	page->generation = 1;
	page->chunk = 2;
	page->count = count;
	for (uint32_t i = 0; i < count; i++)
		page->sums[i] = i + 1;
	checksum_page_encode(page, block);
	save_frame("chunk", name, block, sizeof(block));
	free(page);
}

static void seed_chunk(void)
{
	struct chunk_header header = {.segment = 1ull << 32 | 5,
		.generation = 1,
		.index = 2,
		.data = 2,
		.parity = 1,
		.matrix = 1,
		.cell = 4096,
		.rows = 4,
		.length = 30000,
		.volume = 3};
	uint8_t block[BLOCK_SIZE];

	chunk_header_encode(&header, block);
	save_frame("chunk", "header", block, sizeof(block));
	save_later("chunk", block, sizeof(block));
	save("chunk", "refused", "MILRCHK0", 8);
	seed_page("page", 16);
	seed_page("page-empty", 0);
	seed_page("page-full", PAGE_ENTRIES);
}

/* --- records and batches ---------------------------------------------------------------------- */

static void put_change(struct writer *w, enum change_type type, uint32_t volume, struct bytes key,
	struct bytes value)
{
	put_u8(w, (uint8_t)type);
	put_u32(w, volume);
	put_u16(w, (uint16_t)key.length);
	put_u32(w, (uint32_t)value.length);
	put_bytes(w, key.data, key.length);
	put_bytes(w, value.data, value.length);
	assert(!w->overflow);
}

static struct bytes text(const char *string)
{
	return (struct bytes){string, strlen(string)};
}

static void save_segment_row(const char *name, const struct segment_row *row)
{
	uint8_t buffer[1 + SEGMENT_ROW_MAX] = {0};
	struct writer w = writer_on(buffer + 1, sizeof(buffer) - 1);

	segment_row_encode(row, &w);
	save("pool_rows", name, buffer, (size_t)(w.at - buffer));
}

static void seed_client_rows(void)
{
	static uint8_t buffer[2 + CLIENT_ROW_MAX] = {2, 7};

	save("pool_rows", "client-unnamed", buffer, 1 + 8);
	memset(buffer + 1 + 8, 'a', POOL_CLIENT_MAX + 1);
	save("pool_rows", "client", buffer, 1 + 8 + 16);
	buffer[8] = 0x80;
	save("pool_rows", "client-fresh", buffer, 1 + 8 + 16);
	buffer[8] = 0;
	save("pool_rows", "client-longest", buffer, 1 + CLIENT_ROW_MAX);
	save("pool_rows", "client-too-long", buffer, 2 + CLIENT_ROW_MAX);
}

static void seed_done_rows(void)
{
	const struct done_row row = {7, {.session = "a session", 2, 9, 5}};
	uint8_t buffer[2 + DONE_ROW_SIZE] = {4};
	struct writer w = writer_on(buffer + 1, DONE_ROW_SIZE);

	done_row_encode(&row, &w);
	save("pool_rows", "done", buffer, 1 + DONE_ROW_SIZE);
	save("pool_rows", "done-too-long", buffer, 2 + DONE_ROW_SIZE);
	save("pool_rows", "done-too-short", buffer, DONE_ROW_SIZE);
}

static void seed_pool_rows(void)
{
	const struct remap_run run = {.length = 5 * BLOCK_SIZE, .segment = 9, .to = 7 * BLOCK_SIZE};
	uint8_t buffer[1 + REMAP_ROW_SIZE] = {1};
	struct writer w = writer_on(buffer + 1, sizeof(buffer) - 1);
	struct segment_row row;

	fill_segment(&row, 2);
	save_segment_row("image", &row);
	row.purpose = PURPOSE_DATA;
	save_segment_row("segment", &row);
	row.state = SEGMENT_MOVED;
	save_segment_row("refused", &row);
	row.data = row.parity = 0;
	save_segment_row("moved", &row);
	remap_run_encode(&run, &w);
	save("pool_rows", "remap", buffer, sizeof(buffer));
	seed_client_rows();
	seed_done_rows();
}

static void seed_changes(void)
{
	uint8_t buffer[4096];
	struct writer w = writer_on(buffer, sizeof(buffer));

	put_change(&w, CHANGE_PUT, 0, text("Cvolume"), (struct bytes){"\3\0\0\0\0\0\0\0", 8});
	put_change(&w, CHANGE_PUT, 3, text("Einode"), text("a value"));
	put_change(&w, CHANGE_DELETE, 3, text("Xextent"), text(""));
	save("changes", "good", buffer, (size_t)(w.at - buffer));
	save("changes", "cut", buffer, (size_t)(w.at - buffer) - 3);
	for (unsigned i = 0; i < 60; i++)
		put_change(&w, CHANGE_PUT, i, (struct bytes){"key", 1 + i % 3}, text("v"));
	save("changes", "many", buffer, (size_t)(w.at - buffer));
}

static void put_record(
	struct writer *w, uint64_t lsn, uint8_t kind, const void *payload, size_t length)
{
	put_u32(w, (uint32_t)length + 1);
	put_u64(w, lsn);
	put_u8(w, kind);
	put_bytes(w, payload, length);
	assert(!w->overflow);
}

static size_t seal(uint8_t *batch, const struct writer *w, uint32_t records)
{
	struct batch_header header = {
		.epoch = 1, .lsn = 1, .records = records, .length = (uint32_t)(w->at - batch)};

	batch_seal(&header, batch);
	return header.length;
}

static void seed_batch(void)
{
	uint8_t batch[BLOCK_SIZE] = {0};
	struct writer w = writer_on(batch, sizeof(batch));
	size_t length;

	put_bytes(&w, batch, BATCH_HEADER_SIZE);
	put_record(&w, 1, RECORD_EPOCH, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
	put_record(&w, 2, RECORD_CHANGES, "\1\0\0\0\0\2\0\1\0\0\0CxY", 14);
	put_record(&w, 3, 9, "of a later version", 18);
	put_record(&w, 0, RECORD_WINDOW, "\0\0\1\0\0\0\0\0\0\20\0\0\0\0\0\0", 16);
	length = seal(batch, &w, 4);
	save("batch", "good", batch, length);
	put_u32(&w, 500);
	save("batch", "bad-record", batch, seal(batch, &w, 4));
	w.at = batch + BLOCK_SIZE;
	seal(batch, &w, 4);
	batch[66] = 1; /* 64 KiB more */
	save("batch", "cut", batch, length);
	batch[8] = 2;
	save("batch", "later", batch, length);
	save("batch", "refused", "MILRBJN", 7);
}

/* --- images ----------------------------------------------------------------------------------- */

static struct writer image_head(
	uint8_t *buffer, size_t size, uint8_t piece, uint8_t kind, uint32_t volume)
{
	struct writer w = writer_on(buffer, size);

	put_u8(&w, piece);
	put_u64(&w, 0x31474d49524c494dull);
	put_u16(&w, 1);
	put_u8(&w, kind);
	put_u8(&w, 0);
	put_u32(&w, volume);
	put_u32(&w, kind == IMAGE_DELTA ? 2 : 0);
	put_u32(&w, 0);
	put_u64(&w, 77);
	if (kind == IMAGE_DELTA)
		put_u64(&w, 70);
	return w;
}

/* Every third key is not there any more. */
static void seed_delta(void)
{
	uint8_t buffer[2048];
	struct writer w = image_head(buffer, sizeof(buffer), 5, IMAGE_DELTA, 3);

	for (unsigned i = 0; i < 20; i++) {
		put_u16(&w, 2);
		put_u32(&w, i % 3 ? i : UINT32_MAX);
		put_bytes(&w, "k", 1);
		put_u8(&w, (uint8_t)i);
		put_bytes(&w, buffer, i % 3 ? i : 0);
	}
	put_u16(&w, 0);
	put_u64(&w, 20);
	save("image", "delta", buffer, (size_t)(w.at - buffer));
	buffer[9]++; /* the version */
	save("image", "later", buffer, (size_t)(w.at - buffer));
}

static void seed_image(void)
{
	uint8_t buffer[2048];
	struct writer w = image_head(buffer, sizeof(buffer), 7, IMAGE_FULL, 3);

	for (unsigned i = 0; i < 20; i++) {
		put_u16(&w, 3);
		put_u32(&w, i);
		put_bytes(&w, "k", 1);
		put_u8(&w, (uint8_t)i);
		put_u8(&w, 9);
		put_bytes(&w, buffer, i);
	}
	save("image", "cut", buffer, (size_t)(w.at - buffer));
	put_u16(&w, 0);
	put_u64(&w, 20);
	save("image", "whole", buffer, (size_t)(w.at - buffer));
	put_u8(&w, 1);
	save("image", "refused", buffer, (size_t)(w.at - buffer));
	w = image_head(buffer, sizeof(buffer), 0, IMAGE_FULL, UINT32_MAX);
	save("image", "stopped", buffer, (size_t)(w.at - buffer));
	w = image_head(buffer, sizeof(buffer), 1, IMAGE_FULL, 3);
	put_u16(&w, 0);
	put_u64(&w, 0);
	save("image", "empty", buffer, (size_t)(w.at - buffer));
	seed_delta();
}

/* --- rows of volumes -------------------------------------------------------------------------- */

static const struct inode file = {.ino = 9,
	.type = VOLUME_FILE,
	.extents = true,
	.mode = 0644,
	.uid = 1000,
	.gid = 100,
	.nlink = 1,
	.size = 5000,
	.bytes = 5000,
	.atime = 1,
	.mtime = 2,
	.ctime = 3,
	.btime = 4,
	.change = 5,
	.trim = 100000};

static void save_row(const char *name, uint8_t letter, uint8_t *row, size_t length)
{
	uint8_t *bytes = malloc(length + 1);

	bytes[0] = letter;
	memcpy(bytes + 1, row, length);
	save("volume_rows", name, bytes, length + 1);
	free(bytes);
}

static void save_key(const char *name, struct bytes key)
{
	uint8_t bytes[400];

	bytes[0] = 'K';
	memcpy(bytes + 1, key.data, key.length);
	save("volume_rows", name, bytes, key.length + 1);
}

static void seed_volume_rows(void)
{
	struct header header = {
		.next_ino = 20, .next_cookie = 30, .root = VOLUME_ROOT, .inodes = 5};
	struct inode dir = {.type = VOLUME_DIRECTORY, .nlink = 2, .parent = 1, .trim = TRIM_NONE};
	struct inode tagged = {.type = VOLUME_FILE,
		.nlink = 1,
		.trim = TRIM_NONE,
		.xattrs = 1,
		.xattr_names = 3,
		.xattr_values = 7};
	struct inode node = {.type = VOLUME_BLOCK, .nlink = 1, .rdev = 5, .trim = TRIM_NONE};
	struct entry entry = {.type = VOLUME_FILE, .ino = 9, .cookie = 12, .name = "model"};
	struct extent extent = {1ull << 32 | 5, 4096, 5000}, kept = {SEGMENT_KEPT, 4096, 5000};
	uint8_t row[ROW_LARGE];
	struct key key;

	save_row("header", ROW_HEADER, row, header_encode(&header, row));
	header.features = FEATURE_KEPT;
	save_row("header-kept", ROW_HEADER, row, header_encode(&header, row));
	save_row("inode-file", ROW_INODE, row, inode_encode(&file, row));
	save_row("inode-directory", ROW_INODE, row, inode_encode(&dir, row));
	save_row("inode-attributes", ROW_INODE, row, inode_encode(&tagged, row));
	save_row("inode-node", ROW_INODE, row, inode_encode(&node, row));
	save_row("name", ROW_NAME, row, entry_encode_name(&entry, row));
	save_row("cookie", ROW_COOKIE, row, entry_encode_cookie(&entry, row));
	save_row("extent", ROW_EXTENT, row, extent_encode(&extent, row));
	save_row("extent-kept", ROW_EXTENT, row, extent_encode(&kept, row));
	save_row("inline", ROW_INLINE, row, blob_encode("some bytes", 10, row));
	save_row("target", ROW_TARGET, row, blob_encode("../a/target", 11, row));
	save_row("attribute", ROW_ATTRIBUTE, row, attribute_encode("a value", 7, row));
	save_row("refused", ROW_INODE, row, mark_encode(row));
	save_key("key-inode", key_inode(&key, ROW_ORPHAN, 9));
	save_key("key-pair", key_pair(&key, ROW_EXTENT, 9, 8192));
	save_key("key-name", key_name(&key, ROW_NAME, 1, "model", 5));
}

static void put_row(struct writer *w, struct bytes key, const void *value, size_t length)
{
	put_u8(w, (uint8_t)key.length);
	put_bytes(w, key.data, key.length);
	put_u16(w, (uint16_t)length);
	put_bytes(w, value, length == UINT16_MAX ? 0 : length);
	assert(!w->overflow);
}

static void save_rows(const char *name, const uint8_t *buffer, const struct writer *w)
{
	save("namespace", name, buffer, (size_t)(w->at - buffer));
}

/* A file with a trim to be done and an orphan, neither with a name. */
static void put_loose_files(struct writer *w)
{
	struct extent extent = {1ull << 32 | 1, 0, 5000};
	struct inode inode = file;
	uint8_t row[ROW_SMALL];
	struct key key;

	for (inode.ino = 70; inode.ino < 72; inode.ino++) {
		put_row(w, key_inode(&key, ROW_INODE, inode.ino), row, inode_encode(&inode, row));
		put_row(w, key_pair(&key, ROW_EXTENT, inode.ino, 0), row,
			extent_encode(&extent, row));
		put_row(w, key_pair(&key, ROW_EXTENT, inode.ino, 102400), row,
			extent_encode(&extent, row));
		put_row(w, key_inode(&key, inode.ino == 70 ? ROW_TRIM : ROW_ORPHAN, inode.ino), row,
			mark_encode(row));
	}
}

/* Rows as they are, one of each letter in a file of its own, from the world's share. */
static void seed_one_row(struct txn *view, struct env *env, char letter)
{
	struct bytes key = {&letter, 1}, found, value;
	uint8_t buffer[8192];
	char name[8];
	struct writer w = writer_on(buffer, sizeof(buffer));

	if (txn_seek(view, env, key, &found, &value) || *(const char *)found.data != letter)
		return;
	put_row(&w, found, value.data, value.length);
	snprintf(name, sizeof(name), "row-%c", letter);
	save_rows(name, buffer, &w);
}

static void seed_namespace(struct fuzz_world *world)
{
	struct volume_row row;
	struct pool *pool;
	struct env *env;
	struct txn *view;
	uint8_t buffer[4096];
	struct writer w = writer_on(buffer, sizeof(buffer));
	struct key key;

	if (world_open(world, WORLD_OWN, &pool) || view_begin(pool_env(pool), &view) ||
		volume_row_find(view, "share", &row))
		abort();
	txn_abort(view);
	if (env_get(pool, row.id, &env) || view_begin(env, &view))
		abort();
	for (const char *letter = "HIECXDLOA"; *letter; letter++)
		seed_one_row(view, env, *letter);
	txn_abort(view);
	env_put(env);
	world_abandon(world, pool);
	put_loose_files(&w);
	save_rows("loose", buffer, &w);
	w = writer_on(buffer, sizeof(buffer));
	put_row(&w, key_inode(&key, ROW_INODE, VOLUME_ROOT), NULL, UINT16_MAX);
	save_rows("no-root", buffer, &w);
	save("namespace", "unusable", "\0\0", 2);
}

/* --- the world's journal and media ------------------------------------------------------------ */

static void put_piece(struct writer *w, const void *bytes, size_t length)
{
	put_u8(w, 0);
	put_u32(w, (uint32_t)length);
	put_bytes(w, bytes, length);
	assert(!w->overflow);
}

/* A batch of one record that puts a row of each letter that the world's history has not. */
static void put_rare(struct writer *w)
{
	uint8_t batch[1024] = {0}, payload[256], row[ROW_SMALL];
	struct writer b = writer_on(batch, sizeof(batch)), p = writer_on(payload, sizeof(payload));
	struct inode inode = file;
	struct key key;

	inode.ino = 70;
	put_change(&p, CHANGE_PUT, 1, key_inode(&key, ROW_INODE, 70),
		(struct bytes){row, inode_encode(&inode, row)});
	put_change(&p, CHANGE_PUT, 1, key_inode(&key, ROW_TRIM, 70),
		(struct bytes){row, mark_encode(row)});
	put_bytes(&b, batch, BATCH_HEADER_SIZE);
	put_record(&b, 0, RECORD_CHANGES, payload, (size_t)(p.at - payload));
	put_piece(w, batch, seal(batch, &b, 1));
}

/* A first record that does not begin the epoch. */
static void put_wrong_epoch(struct writer *w)
{
	uint8_t batch[256] = {0};
	struct writer b = writer_on(batch, sizeof(batch));

	put_bytes(&b, batch, BATCH_HEADER_SIZE);
	put_record(&b, 0, RECORD_EPOCH, batch, 24);
	put_piece(w, batch, seal(batch, &b, 1));
}

static const uint8_t *next_batch(
	struct fuzz_world *world, uint64_t *at, struct batch_header *header)
{
	uint64_t from = world->headers[0].journal_offset;

	for (; *at < world->headers[0].journal_size; *at += BLOCK_SIZE) {
		for (unsigned i = 0; i < WORLD_DEVICES; i++) {
			const uint8_t *batch = world_medium(world, i, from + *at);

			if (!batch_peek(header, batch) && header->position == *at)
				return batch;
		}
	}
	return NULL;
}

/* The whole history, and its first half. */
static void seed_journal(struct fuzz_world *world)
{
	size_t size = 192 << 10, count = 0, half = 0;
	uint8_t *buffer = malloc(size);
	struct writer w = writer_on(buffer, size);
	struct batch_header header;
	const uint8_t *batch;
	uint64_t at = 0;

	while ((batch = next_batch(world, &at, &header))) {
		put_piece(&w, batch, header.length);
		at += journal_blocks(header.length);
		if (++count == 8)
			half = (size_t)(w.at - buffer);
	}
	put_rare(&w);
	save("journal", "history", buffer, (size_t)(w.at - buffer));
	save("journal", "half", buffer, half);
	save("journal", "empty", buffer, 0);
	w = writer_on(buffer, size);
	put_wrong_epoch(&w);
	save("journal", "refused", buffer, (size_t)(w.at - buffer));
	free(buffer);
}

/* The first block of that magic, on the first device that has one. */
static const uint8_t *find_magic(struct fuzz_world *world, uint64_t magic, unsigned *device)
{
	for (*device = 0; *device < WORLD_DEVICES; ++*device) {
		for (uint64_t at = 0; at < WORLD_DEVICE_SIZE; at += BLOCK_SIZE) {
			const uint8_t *block = world_medium(world, *device, at);
			struct reader r = reader_on(block, 8);

			if (get_u64(&r) == magic)
				return block;
		}
	}
	fprintf(stderr, "the world has no block of magic %llx\n", (unsigned long long)magic);
	exit(1);
}

/* 48 bytes of a block, as they are: a mutation of the input is damage. */
static void save_damage(const char *kind, unsigned number, unsigned device, unsigned which,
	const uint8_t *block, unsigned offset)
{
	uint8_t buffer[64];
	struct writer w = writer_on(buffer, sizeof(buffer));
	char name[32];

	put_u8(&w, (uint8_t)device);
	put_u8(&w, (uint8_t)number);
	put_u8(&w, (uint8_t)which);
	put_u16(&w, (uint16_t)offset);
	put_u8(&w, 48);
	put_bytes(&w, block + offset, 48);
	snprintf(name, sizeof(name), "%s-%u", kind, offset);
	save("media", name, buffer, (size_t)(w.at - buffer));
}

static void seed_media(struct fuzz_world *world)
{
	static const struct {
		const char *name;
		uint64_t magic;
		unsigned end; /* of what is in use */
		bool on_all; /* where the devices have the same */
	} kinds[] = {{"device", MAGIC_DEVICE, 104, false}, {"label", MAGIC_LABEL, 800, true},
		{"beat", MAGIC_BEAT, 44, true}, {"batch", MAGIC_BATCH, 200, true},
		{"chunk", MAGIC_CHUNK, 64, false}, {"page", MAGIC_PAGE, 100, false}};
	unsigned device;

	for (unsigned i = 0; i < 6; i++) {
		const uint8_t *block = find_magic(world, kinds[i].magic, &device);

		for (unsigned offset = 8; offset < kinds[i].end; offset += 48)
			save_damage(
				kinds[i].name, i, kinds[i].on_all ? 255 : device, 0, block, offset);
	}
	save_damage("geometry", 0, 255, 0, world_medium(world, 0, 0), 70);
	save_damage("cell", 6, 3, 77, world_medium(world, 3, 0), 200);
	save("media", "refused", "\377\0\0\14\0\1\1", 7);
}

int main(int argc, char **argv)
{
	struct fuzz_world *world;

	if (argc != 2)
		return 2;
	directory = argv[1];
	world = world_reset();
	seed_device_header(world);
	seed_label(world);
	seed_beat();
	seed_chunk();
	seed_pool_rows();
	seed_changes();
	seed_batch();
	seed_image();
	seed_volume_rows();
	seed_outside();
	seed_journal(world);
	seed_media(world);
	seed_namespace(world);
	return 0;
}
