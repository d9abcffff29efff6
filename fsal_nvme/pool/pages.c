/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Where checksums come from. An open segment has them in memory. A closed one has them in pages on
 * its chunks, and a bounded cache keeps pages in decoded form: shards by hash, each with a mutex
 * (never held over I/O), a hash table, and a ring of entries that a clock's hand goes around (a
 * page that was used since the hand came by stays).
 *
 * A page that is not there is fetched once however many ask: an entry without bytes holds the list
 * of those who wait. The chunk's own copy is read first, then those on the parity chunks, until one
 * is the page that it should be; broken copies met on the way are rewritten. Copies on devices that
 * have stalled, or do not answer in time, come after all others, and those on dropped ones last.
 */
#include "pool/read.h"

#include <assert.h>

#define SHARDS 16u

struct page_entry {
	uint64_t segment;
	uint32_t index;
	uint8_t chunk;
	bool ready; /* `page` is valid, and the entry is in the ring */
	bool used; /* since the hand came by */
	struct page_entry *next; /* in its bucket */
	struct sums_want *waiters;
	struct checksum_page page;
};

struct shard {
	pthread_mutex_t lock;
	struct page_entry **buckets; /* as many as the ring has places */
	struct page_entry **ring;
	unsigned capacity, used, hand;
};

struct page_cache {
	struct repairs repairs;
	struct shard shards[SHARDS];
};

enum resort { PROMPT, PATIENT, DROPPED, NOBODY };

struct fetch {
	struct hedged hedged; /* first */
	struct pool *pool;
	struct segment *segment; /* with a reference */
	struct page_entry *entry; /* not in the ring yet; nobody else frees it */
	void *buffer;
	unsigned copy; /* being read */
	enum resort resort; /* whose copies are read */
	uint32_t answered; /* copies that are not what they should be */
	uint32_t broken; /* copies to be rewritten */
	bool repair;
	struct checksum_page page;
};

/* --- the cache ---------------------------------------------------------------------------- */

static uint64_t page_hash(uint64_t segment, unsigned chunk, uint32_t index)
{
	uint64_t z = segment * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)index << 8 | chunk);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static struct shard *shard_of(struct page_cache *cache, uint64_t hash)
{
	return &cache->shards[hash % SHARDS];
}

static struct page_entry **bucket_of(struct shard *shard, uint64_t hash)
{
	return &shard->buckets[hash / SHARDS % shard->capacity];
}

static struct page_entry *entry_find(
	struct shard *shard, uint64_t hash, uint64_t segment, unsigned chunk, uint32_t index)
{
	struct page_entry *entry = *bucket_of(shard, hash);

	while (entry &&
		!(entry->segment == segment && entry->chunk == chunk && entry->index == index))
		entry = entry->next;
	return entry;
}

static void entry_unlink(struct shard *shard, struct page_entry *entry)
{
	struct page_entry **at =
		bucket_of(shard, page_hash(entry->segment, entry->chunk, entry->index));

	while (*at != entry)
		at = &(*at)->next;
	*at = entry->next;
}

/* The place in the ring for one more entry, emptied. */
static unsigned ring_place(struct shard *shard)
{
	unsigned place;

	if (shard->used < shard->capacity)
		return shard->used++;
	while (shard->ring[shard->hand]->used) {
		shard->ring[shard->hand]->used = false;
		shard->hand = (shard->hand + 1) % shard->capacity;
	}
	place = shard->hand;
	shard->hand = (shard->hand + 1) % shard->capacity;
	entry_unlink(shard, shard->ring[place]);
	free(shard->ring[place]);
	return place;
}

static int shard_init(struct shard *shard, unsigned capacity)
{
	pthread_mutex_init(&shard->lock, NULL);
	shard->capacity = capacity;
	shard->buckets = calloc(capacity, sizeof(struct page_entry *));
	shard->ring = calloc(capacity, sizeof(struct page_entry *));
	return shard->buckets && shard->ring ? 0 : -ENOMEM;
}

static void shard_free(struct shard *shard)
{
	for (unsigned i = 0; i < shard->used; i++)
		free(shard->ring[i]);
	free(shard->buckets);
	free(shard->ring);
	pthread_mutex_destroy(&shard->lock);
}

static void cache_free(struct page_cache *cache)
{
	for (unsigned i = 0; i < SHARDS; i++)
		shard_free(&cache->shards[i]);
	free(cache);
}

int page_cache_create(struct pool *pool, size_t bytes)
{
	size_t capacity = bytes / SHARDS / sizeof(struct page_entry);
	struct page_cache *cache = calloc(1, sizeof(*cache));
	int result = 0;

	if (!cache)
		return -ENOMEM;
	if (capacity > UINT32_MAX)
		capacity = UINT32_MAX;
	for (unsigned i = 0; i < SHARDS; i++) {
		if (shard_init(&cache->shards[i], capacity ? (unsigned)capacity : 1))
			result = -ENOMEM;
	}
	if (result) {
		cache_free(cache);
		return result;
	}
	repairs_begin(&cache->repairs, pool->engine);
	pool->pages = cache;
	return 0;
}

void page_cache_destroy(struct pool *pool)
{
	if (!pool->pages)
		return;
	repairs_end(&pool->pages->repairs);
	cache_free(pool->pages);
	pool->pages = NULL;
}

void page_cache_end_repairs(struct pool *pool)
{
	repairs_end(&pool->pages->repairs);
}

struct repairs *page_cache_repairs(struct pool *pool)
{
	return &pool->pages->repairs;
}

static void shard_forget(struct shard *shard, uint64_t segment)
{
	pthread_mutex_lock(&shard->lock);
	for (unsigned i = 0; i < shard->used;) {
		struct page_entry *entry = shard->ring[i];

		if (entry->segment != segment) {
			i++;
			continue;
		}
		entry_unlink(shard, entry);
		free(entry);
		shard->ring[i] = shard->ring[--shard->used];
		shard->hand = 0;
	}
	pthread_mutex_unlock(&shard->lock);
}

void page_cache_forget(struct pool *pool, uint64_t segment)
{
	for (unsigned i = 0; pool->pages && i < SHARDS; i++)
		shard_forget(&pool->pages->shards[i], segment);
}

bool page_cache_peek(struct pool *pool, const struct segment *segment, unsigned chunk,
	uint32_t index, struct checksum_page *page)
{
	uint64_t hash = page_hash(segment->id, chunk, index);
	struct shard *shard = shard_of(pool->pages, hash);
	struct page_entry *entry;
	bool found;

	pthread_mutex_lock(&shard->lock);
	entry = entry_find(shard, hash, segment->id, chunk, index);
	found = entry && entry->ready;
	if (found)
		*page = entry->page;
	pthread_mutex_unlock(&shard->lock);
	return found;
}

/* --- fetching a page ---------------------------------------------------------------------- */

/* One of another generation is of an attempt to close the segment that came to nothing (close.c).
 */
bool page_belongs(struct pool *pool, const struct segment *segment, unsigned chunk, uint32_t index,
	const struct checksum_page *page)
{
	uint64_t blocks = (uint64_t)segment->row.rows * segment->layout.blocks;
	uint64_t first = (uint64_t)index * PAGE_ENTRIES;
	uint64_t needed = blocks > first ? blocks - first : 0;

	if (needed > PAGE_ENTRIES)
		needed = PAGE_ENTRIES;
	return memcmp(page->pool, pool->header.pool, sizeof(page->pool)) == 0 &&
	       page->segment == segment->id && page->chunk == chunk && page->index == index &&
	       page->generation == segment->row.generation && page->count >= needed;
}

void page_expect(struct pool *pool, const struct segment *segment, unsigned chunk, uint32_t index,
	struct checksum_page *page)
{
	memset(page, 0, sizeof(*page));
	memcpy(page->pool, pool->header.pool, sizeof(page->pool));
	page->segment = segment->id;
	page->generation = segment->row.generation;
	page->chunk = (uint8_t)chunk;
	page->index = index;
}

int page_copy_chunk(const struct segment *segment, unsigned of, unsigned copy)
{
	unsigned chunk;

	if (copy == 0)
		return (int)of;
	chunk = segment->layout.data + copy - 1;
	if (of >= segment->layout.data && chunk >= of)
		chunk++;
	return chunk < segment_width(segment) ? (int)chunk : -1;
}

static void copy_sums(struct sums_want *want, const struct checksum_page *page)
{
	memcpy(want->sums, page->sums + want->block % PAGE_ENTRIES, want->count * sizeof(uint32_t));
}

/* Takes the waiters; with `page` they have what they want, and the entry goes into the ring. */
static struct sums_want *entry_settle(
	struct page_cache *cache, struct page_entry *entry, const struct checksum_page *page)
{
	uint64_t hash = page_hash(entry->segment, entry->chunk, entry->index);
	struct shard *shard = shard_of(cache, hash);
	struct sums_want *waiters;

	pthread_mutex_lock(&shard->lock);
	waiters = entry->waiters;
	entry->waiters = NULL;
	for (struct sums_want *want = waiters; page && want; want = want->next)
		copy_sums(want, page);
	if (page) {
		entry->page = *page;
		entry->ready = true;
		shard->ring[ring_place(shard)] = entry;
	} else {
		entry_unlink(shard, entry);
		free(entry);
	}
	pthread_mutex_unlock(&shard->lock);
	return waiters;
}

static void fetch_repair(struct fetch *fetch)
{
	unsigned of = fetch->page.chunk;
	uint32_t index = fetch->page.index;

	if (!fetch->repair || !fetch->broken || checksum_page_encode(&fetch->page, fetch->buffer))
		return;
	for (unsigned copy = 0; fetch->broken >> copy; copy++) {
		int chunk = page_copy_chunk(fetch->segment, of, copy);

		if (fetch->broken >> copy & 1)
			repair_later(fetch->pool, fetch->segment, (unsigned)chunk,
				segment_page_offset(
					fetch->pool, fetch->segment, (unsigned)chunk, of, index),
				fetch->buffer, BLOCK_SIZE);
	}
}

static void fetch_free(struct fetch *fetch)
{
	buffer_free(fetch->pool->engine, fetch->buffer, BLOCK_SIZE);
	segment_put(fetch->segment);
	free(fetch);
}

static void fetch_end(struct fetch *fetch, int result)
{
	struct sums_want *waiters =
		entry_settle(fetch->pool->pages, fetch->entry, result ? NULL : &fetch->page);

	if (!result)
		fetch_repair(fetch);
	fetch_free(fetch);
	while (waiters) {
		struct sums_want *want = waiters;

		waiters = want->next;
		want->done(want, result);
	}
}

static void fetch_read(struct fetch *fetch);

static bool fetch_may_read(const struct fetch *fetch, unsigned chunk)
{
	struct pool *pool = fetch->pool;

	if (fetch->answered >> fetch->copy & 1)
		return false;
	if (fetch->resort == DROPPED)
		return chunk_last_resort(pool, fetch->segment, chunk);
	return chunk_usable(pool, fetch->segment, chunk) &&
	       (fetch->resort == PATIENT ||
		       !member_stalled(segment_member(pool, fetch->segment, chunk)));
}

/* The chunk of the next copy to read, from fetch->copy on; -1: there is none. */
static int fetch_next(struct fetch *fetch)
{
	for (; fetch->resort != NOBODY; fetch->resort++, fetch->copy = 0) {
		for (;; fetch->copy++) {
			int chunk =
				page_copy_chunk(fetch->segment, fetch->entry->chunk, fetch->copy);

			if (chunk < 0)
				break;
			if (fetch_may_read(fetch, (unsigned)chunk))
				return chunk;
		}
	}
	return -1;
}

static void note_broken(struct fetch *fetch, unsigned chunk, const struct io *io)
{
	if (io->result)
		chunk_read_failed(fetch->pool, fetch->segment, chunk, io->offset, 1, io->result);
	else
		chunk_rotten(fetch->pool, fetch->segment, chunk, io->offset, 1);
	if (!io->result || io->result == -EIO)
		fetch->broken |= UINT32_C(1) << fetch->copy;
}

static void fetch_answered(struct hedged *hedged)
{
	struct fetch *fetch = (struct fetch *)hedged;
	const struct page_entry *entry = fetch->entry;
	unsigned chunk = (unsigned)page_copy_chunk(fetch->segment, entry->chunk, fetch->copy);

	if (!hedged->io.result && !checksum_page_decode(&fetch->page, fetch->buffer) &&
		page_belongs(
			fetch->pool, fetch->segment, entry->chunk, entry->index, &fetch->page)) {
		fetch_end(fetch, 0);
		return;
	}
	if (fetch->resort != DROPPED)
		note_broken(fetch, chunk, &hedged->io);
	fetch->answered |= UINT32_C(1) << fetch->copy++;
	fetch_read(fetch);
}

static struct fetch *fetch_create(
	struct pool *pool, struct segment *segment, struct page_entry *entry, bool repair)
{
	struct fetch *fetch = calloc(1, sizeof(*fetch));

	if (!fetch)
		return NULL;
	fetch->buffer = buffer_alloc(pool->engine, BLOCK_SIZE);
	if (!fetch->buffer) {
		free(fetch);
		return NULL;
	}
	segment_ref(segment);
	fetch->pool = pool;
	fetch->segment = segment;
	fetch->entry = entry;
	fetch->repair = repair;
	return fetch;
}

/* Another one goes on with the next copy; this one stays for the answer. */
static bool fetch_late(struct hedged *hedged)
{
	struct fetch *fetch = (struct fetch *)hedged, *next;

	next = fetch_create(fetch->pool, fetch->segment, fetch->entry, fetch->repair);
	if (!next)
		return false;
	next->copy = fetch->copy + 1;
	next->answered = fetch->answered;
	next->broken = fetch->broken;
	fetch_read(next);
	return true;
}

static void fetch_gone(struct hedged *hedged)
{
	struct pool *pool = hedged->pool;

	fetch_free((struct fetch *)hedged);
	hedge_leave(pool);
}

static void fetch_read(struct fetch *fetch)
{
	const struct page_entry *entry = fetch->entry;
	struct hedged *hedged = &fetch->hedged;
	struct io *io = &hedged->io;
	int chunk = fetch_next(fetch);

	if (chunk < 0) {
		fetch_end(fetch, -EIO);
		return;
	}
	hedged->pool = fetch->pool;
	hedged->member = segment_member(fetch->pool, fetch->segment, (unsigned)chunk);
	hedged->done = fetch_answered;
	hedged->late = fetch->resort == PROMPT ? fetch_late : NULL;
	hedged->gone = fetch_gone;
	io_prepare(io, IO_READ, hedged->member->device,
		segment_page_offset(
			fetch->pool, fetch->segment, (unsigned)chunk, entry->chunk, entry->index),
		fetch->buffer, BLOCK_SIZE);
	hedge_watch(hedged);
	io_submit(fetch->pool->engine, &io, 1);
}

/* An entry whose page is to be fetched, with its first waiter. */
static int entry_create(struct shard *shard, uint64_t hash, struct sums_want *want, uint32_t index,
	struct fetch **fetch)
{
	struct page_entry **bucket = bucket_of(shard, hash), *entry = malloc(sizeof(*entry));

	if (!entry)
		return -ENOMEM;
	*entry = (struct page_entry){.segment = want->segment->id,
		.index = index,
		.chunk = (uint8_t)want->chunk,
		.next = *bucket,
		.waiters = want};
	*fetch = fetch_create(want->pool, want->segment, entry, want->repair);
	if (!*fetch) {
		free(entry);
		return -ENOMEM;
	}
	want->next = NULL;
	*bucket = entry;
	return -EINPROGRESS;
}

static int page_sums(struct sums_want *want)
{
	uint32_t index = (uint32_t)(want->block / PAGE_ENTRIES);
	uint64_t hash = page_hash(want->segment->id, want->chunk, index);
	struct shard *shard = shard_of(want->pool->pages, hash);
	struct fetch *fetch = NULL;
	struct page_entry *entry;
	int result = -EINPROGRESS;

	pthread_mutex_lock(&shard->lock);
	entry = entry_find(shard, hash, want->segment->id, want->chunk, index);
	if (entry && entry->ready) {
		entry->used = true;
		copy_sums(want, &entry->page);
		result = 0;
	} else if (entry) {
		want->next = entry->waiters;
		entry->waiters = want;
	} else {
		result = entry_create(shard, hash, want, index, &fetch);
	}
	pthread_mutex_unlock(&shard->lock);
	if (fetch)
		fetch_read(fetch);
	return result;
}

/* --- the question ------------------------------------------------------------------------- */

/* From an open segment's memory; -ENOENT: it has none, it is closed. */
static int open_sums(struct sums_want *want)
{
	struct segment *segment = want->segment;
	const struct layout *layout = &segment->layout;
	int result = -ENOENT;

	pthread_mutex_lock(&segment->lock);
	for (unsigned i = 0; segment->sums && i < want->count; i++) {
		uint64_t block = want->block + i;

		want->sums[i] =
			segment->sums[block / layout->blocks * segment_row_sums(segment) +
				      want->chunk * layout->blocks + block % layout->blocks];
	}
	if (segment->sums)
		result = 0;
	else if (segment->row.state != SEGMENT_CLOSED)
		result = -EIO;
	pthread_mutex_unlock(&segment->lock);
	return result;
}

int sums_get(struct sums_want *want)
{
	int result = open_sums(want);

	assert(want->block / PAGE_ENTRIES == (want->block + want->count - 1) / PAGE_ENTRIES);
	return result == -ENOENT ? page_sums(want) : result;
}
