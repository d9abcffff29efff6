/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The object layer alone: appends, and reads of what was appended, with nothing above the pool.
 *
 *   bench_object create K M ROWS DEVICE...        a new pool; ROWS cells a chunk
 *   bench_object write MAP MIB DEVICE...          appends of 1 MiB, durable at the end
 *   bench_object read MAP DEPTH DEVICE...         all of it, 1 MiB at a time
 *   bench_object random MAP DEPTH THREADS SECONDS DEVICE...    4 KiB at a time
 *   bench_object cached MAP DEPTH THREADS SECONDS MIB DEVICE...    the same, behind a block cache
 *                                                 of MIB through which all of it was read once
 *
 * MAP is a file of the host's that says where each MiB lies. read and random open the pool without
 * owning it, so that devices may be left out: what those held is then computed from the others.
 * Each run prints one line of JSON.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"

#define MIB (1u << 20)
#define EXTENTS 8u /* an append of 1 MiB has no more */
#define SOURCES 16u /* different buffers that are appended in turn */
#define BATCH 64u /* appends settled and made durable together */

/* Where one MiB lies. */
struct place {
	struct extent extents[EXTENTS];
	uint64_t count;
};

static struct bench_pool bench = {.scratch_dir = "/dev/shm"};

static unsigned number(const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (!*text || *end || value > UINT32_MAX) {
		fprintf(stderr, "%s: not a number\n", text);
		exit(2);
	}
	return (unsigned)value;
}

/* --- write -------------------------------------------------------------------------------- */

/* One thread appends, another settles and commits what was appended, as a volume does. */
struct writing {
	struct stream *stream;
	struct place *places;
	unsigned count;
	pthread_mutex_t lock;
	pthread_cond_t more;
	unsigned appended; /* lock */
};

static uint32_t make_volume(void)
{
	struct volume_row row;
	struct txn *txn;
	uint64_t lsn;

	bench_must(txn_begin(bench.pool, NULL, &txn), "txn_begin");
	bench_must(volume_row_create(txn, "data", VOLUME_DATASET, &row), "volume_row_create");
	bench_must(txn_commit(txn, &lsn), "txn_commit");
	return row.id;
}

static uint64_t commit_places(const struct place *places, unsigned count)
{
	struct txn *txn;
	uint64_t lsn;

	for (unsigned i = 0; i < count; i++)
		bench_must(pool_settle(bench.pool, places[i].extents, (unsigned)places[i].count),
			"pool_settle");
	bench_must(txn_begin(bench.pool, NULL, &txn), "txn_begin");
	for (unsigned i = 0; i < count; i++)
		bench_must(
			txn_refer(txn, places[i].extents, (unsigned)places[i].count), "txn_refer");
	bench_must(txn_commit(txn, &lsn), "txn_commit");
	return lsn;
}

/* How many are to be committed next, waiting for a whole batch. */
static unsigned wait_for_batch(struct writing *w, unsigned committed)
{
	unsigned upto = committed + BATCH < w->count ? committed + BATCH : w->count;

	pthread_mutex_lock(&w->lock);
	while (w->appended < upto)
		pthread_cond_wait(&w->more, &w->lock);
	pthread_mutex_unlock(&w->lock);
	return upto - committed;
}

static void *committer(void *argument)
{
	struct writing *w = argument;
	uint64_t lsn = 0;

	for (unsigned done = 0, now; done < w->count; done += now) {
		now = wait_for_batch(w, done);
		lsn = commit_places(w->places + done, now);
	}
	bench_must(pool_sync(bench.pool, lsn), "pool_sync");
	return NULL;
}

static void append_all(struct writing *w, uint8_t *source)
{
	for (unsigned i = 0; i < w->count; i++) {
		struct iovec iov = {source + (size_t)(i % SOURCES) * MIB, MIB};
		unsigned extents = EXTENTS;

		bench_must(
			stream_append(w->stream, &iov, 1, MIB, 0, w->places[i].extents, &extents),
			"stream_append");
		w->places[i].count = extents;
		pthread_mutex_lock(&w->lock);
		w->appended++;
		pthread_cond_signal(&w->more);
		pthread_mutex_unlock(&w->lock);
	}
}

static void save_map(const char *path, const struct place *places, unsigned count)
{
	FILE *file = fopen(path, "we");

	if (!file || fwrite(places, sizeof(*places), count, file) != count || fclose(file))
		bench_must(-errno, path);
}

static void run_write(char **args)
{
	struct writing w = {.count = number(args[1])};
	uint8_t *source = bench_memory((size_t)SOURCES * MIB);
	struct bench_clock clock;
	pthread_t thread;

	pthread_mutex_init(&w.lock, NULL);
	pthread_cond_init(&w.more, NULL);
	w.places = calloc(w.count, sizeof(*w.places));
	bench_must(w.places ? 0 : -ENOMEM, "memory");
	bench_pool_open(&bench);
	engine_random(bench.engine, source, (size_t)SOURCES * MIB);
	bench_must(stream_open(bench.pool, make_volume(), &w.stream), "stream_open");
	bench_start(&clock);
	bench_must(-pthread_create(&thread, NULL, committer, &w), "a thread");
	append_all(&w, source);
	pthread_join(thread, NULL);
	bench_print(&clock, (uint64_t)w.count * MIB, w.count);
	stream_close(w.stream);
	bench_pool_close(&bench);
	save_map(args[0], w.places, w.count);
	free(w.places);
	free(source);
}

/* --- read --------------------------------------------------------------------------------- */

struct reader;

struct request {
	struct pool_read read;
	struct read_part parts[EXTENTS];
	uint8_t *into;
	struct reader *reader;
	_Atomic enum { STARTING, STARTED, DONE } state; /* STARTING: pool_read() runs */
};

/* Requests that follow each other, started by a thread; each that ends starts the next one, on the
 * thread on which it ended, as fio does and as a server that answers does not wait for another. */
struct reader {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned running; /* lock, as what next() changes: requests that may be followed by more */
	struct request *requests;
	unsigned depth;
	bool (*next)(struct reader *reader, struct request *request); /* false: no more */
	const struct place *places;
	unsigned place_count, at;
	uint64_t chance;
	double seconds;
	const struct bench_clock *clock;
	uint64_t operations;
};

/* False: that was the last. */
static bool request_next(struct request *request)
{
	struct reader *reader = request->reader;
	bool more;

	pthread_mutex_lock(&reader->lock);
	more = reader->next(reader, request);
	reader->operations += more;
	if (!more && --reader->running == 0)
		pthread_cond_signal(&reader->ended);
	pthread_mutex_unlock(&reader->lock);
	return more;
}

/* One that is done inside pool_read() is followed here, others by their done(). */
static void request_run(struct request *request)
{
	while (request_next(request)) {
		atomic_store(&request->state, STARTING);
		pool_read(bench.pool, &request->read);
		if (atomic_exchange(&request->state, STARTED) == STARTING)
			return;
	}
}

static void request_done(struct pool_read *read)
{
	struct request *request = read->data;

	bench_must(read->result, "pool_read");
	if (atomic_exchange(&request->state, DONE) == STARTED)
		request_run(request);
}

static bool next_whole(struct reader *reader, struct request *request)
{
	const struct place *place = &reader->places[reader->at];
	uint8_t *into = request->into;

	if (reader->at == reader->place_count)
		return false;
	reader->at++;
	for (unsigned i = 0; i < place->count; i++) {
		request->parts[i] = (struct read_part){place->extents[i], into};
		into += place->extents[i].length;
	}
	request->read.part_count = (unsigned)place->count;
	return true;
}

/* xorshift64* (Vigna 2016). */
static uint64_t draw(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(2685821657736338717);
}

static bool next_random(struct reader *reader, struct request *request)
{
	uint64_t draw_ = draw(&reader->chance) >> 16;
	const struct place *place = &reader->places[draw_ % reader->place_count];
	uint64_t offset = draw_ / reader->place_count % (MIB / BLOCK_SIZE) * BLOCK_SIZE;
	const struct extent *extent = place->extents;

	if (reader->operations % 64 == 0 && bench_seconds(reader->clock) >= reader->seconds)
		return false;
	while (offset >= extent->length)
		offset -= (extent++)->length;
	request->parts[0] = (struct read_part){
		{extent->segment, extent->offset + offset, BLOCK_SIZE}, request->into};
	request->read.part_count = 1;
	return true;
}

static void *reader_main(void *argument)
{
	struct reader *reader = argument;

	reader->running = reader->depth;
	for (unsigned i = 0; i < reader->depth; i++)
		request_run(&reader->requests[i]);
	pthread_mutex_lock(&reader->lock);
	while (reader->running)
		pthread_cond_wait(&reader->ended, &reader->lock);
	pthread_mutex_unlock(&reader->lock);
	return NULL;
}

static void reader_init(struct reader *reader, size_t length, bool cached)
{
	pthread_mutex_init(&reader->lock, NULL);
	pthread_cond_init(&reader->ended, NULL);
	reader->requests = calloc(reader->depth, sizeof(*reader->requests));
	bench_must(reader->requests ? 0 : -ENOMEM, "memory");
	for (unsigned i = 0; i < reader->depth; i++) {
		struct request *request = &reader->requests[i];

		request->reader = reader;
		request->into = buffer_alloc(bench.engine, length);
		bench_must(request->into ? 0 : -ENOMEM, "memory");
		request->read.parts = request->parts;
		request->read.done = request_done;
		request->read.data = request;
		request->read.cached = cached;
	}
}

static struct place *load_map(const char *path, unsigned *count)
{
	FILE *file = fopen(path, "re");
	struct place *places;
	struct stat st;

	if (!file || fstat(fileno(file), &st))
		bench_must(-errno, path);
	*count = (unsigned)((size_t)st.st_size / sizeof(*places));
	places = calloc(*count, sizeof(*places));
	bench_must(places ? 0 : -ENOMEM, "memory");
	if (fread(places, sizeof(*places), *count, file) != *count)
		bench_must(-EIO, path);
	fclose(file);
	return places;
}

static void fill_cache(const struct place *places, unsigned count, unsigned mib)
{
	struct reader reader = {
		.depth = 1, .next = next_whole, .places = places, .place_count = count};

	bench_must(pool_cache_resize(bench.pool, (uint64_t)mib * MIB), "pool_cache_resize");
	reader_init(&reader, MIB, true);
	reader_main(&reader);
}

static void run_readers(const char *map, struct reader *readers, unsigned threads, size_t length,
	unsigned cache_mib)
{
	struct bench_clock clock;
	uint64_t operations = 0;
	unsigned count;
	struct place *places = load_map(map, &count);

	bench.read_only = true;
	bench_pool_open(&bench);
	if (cache_mib)
		fill_cache(places, count, cache_mib);
	for (unsigned i = 0; i < threads; i++) {
		readers[i].places = places;
		readers[i].place_count = count;
		readers[i].clock = &clock;
		readers[i].chance = i + 1;
		reader_init(&readers[i], length, cache_mib > 0);
	}
	bench_start(&clock);
	for (unsigned i = 0; i < threads; i++)
		bench_must(-pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]),
			"a thread");
	for (unsigned i = 0; i < threads; i++)
		pthread_join(readers[i].thread, NULL);
	for (unsigned i = 0; i < threads; i++)
		operations += readers[i].operations;
	bench_print(&clock, operations * length, operations);
	bench_pool_close(&bench);
}

static void run_read(char **args)
{
	struct reader reader = {.depth = number(args[1]), .next = next_whole};

	run_readers(args[0], &reader, 1, MIB, 0);
}

static void read_randomly(char **args, unsigned cache_mib)
{
	unsigned threads = number(args[2]);
	struct reader *readers = calloc(threads, sizeof(*readers));

	bench_must(readers && threads ? 0 : -EINVAL, "THREADS");
	for (unsigned i = 0; i < threads; i++) {
		readers[i].depth = number(args[1]) / threads;
		readers[i].next = next_random;
		readers[i].seconds = number(args[3]);
	}
	run_readers(args[0], readers, threads, BLOCK_SIZE, cache_mib);
	free(readers);
}

static void run_random(char **args)
{
	read_randomly(args, 0);
}

static void run_cached(char **args)
{
	read_randomly(args, number(args[4]));
}

/* --- the command -------------------------------------------------------------------------- */

static void run_create(char **args)
{
	bench.data = number(args[0]);
	bench.parity = number(args[1]);
	bench.slot_rows = number(args[2]);
	bench_pool_create(&bench);
}

static const struct {
	const char *name;
	int arguments; /* before the devices */
	void (*run)(char **args);
} verbs[] = {
	{"create", 3, run_create},
	{"write", 2, run_write},
	{"read", 2, run_read},
	{"random", 4, run_random},
	{"cached", 5, run_cached},
};

int main(int argc, char **argv)
{
	for (unsigned i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (argc < 3 + verbs[i].arguments || strcmp(argv[1], verbs[i].name))
			continue;
		bench.paths = (const char *const *)argv + 2 + verbs[i].arguments;
		bench.path_count = (unsigned)(argc - 2 - verbs[i].arguments);
		verbs[i].run(argv + 2);
		return 0;
	}
	fprintf(stderr, "usage: see the head of tests/bench/object.c\n");
	return 2;
}
