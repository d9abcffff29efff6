/* SPDX-License-Identifier: LGPL-3.0-or-later. The journal: batches, its ring. links: pool */
/* What is appended is replayed, a full ring makes room, and threads share batches. */
#include "test_pool_journal.h"

/* --- batches, and the room for them ----------------------------------------------------------- */

static void what_is_appended_is_replayed(void **state)
{
	rig_new(1, 3, 1, 256 * 1024);
	open_well(true);
	assert_int_equal(journal_lsn(rig->pool), 1);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(add(3), 0);
	assert_int_equal(journal_durable_lsn(rig->pool), 61);
	assert_true(journal_used(rig->pool) > 0);
	crash(SIM_LOSE_ALL);
	open_well(true);
	assert_int_equal(rig->given, 62);
	rig_free();
}

/* From a position on: behind the end of each batch. */
static void check_padding(uint64_t from)
{
	struct journal *j = rig->pool->journal;
	struct member *member = j->copies.member[0];
	_Alignas(BLOCK_SIZE) static uint8_t batches[8 * BLOCK_SIZE];
	uint64_t length = j->durable.position - from, at = 0, end;
	struct batch_header header;
	struct io io;

	assert_in_range(length, BLOCK_SIZE, sizeof(batches));
	io_prepare(&io, IO_READ, member->device, member->header.journal_offset + from, batches,
		length);
	assert_int_equal(io_run(rig->engine, &io), 0);
	while (at < length) {
		assert_int_equal(batch_peek(&header, batches + at), 0);
		end = at + journal_blocks(header.length);
		for (at += header.length; at < end; at++)
			assert_int_equal(batches[at], 0);
	}
}

static void behind_a_batch_are_zeros(void **state)
{
	static const size_t lengths[] = {3000, 100, 200, 5000, 300, 7000, 4200, 6000, 10};
	uint8_t bytes[8192];

	memset(bytes, 0xa5, sizeof(bytes));
	rig_new(1, 3, 1, 256 * 1024);
	open_well(true);
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint64_t position = rig->pool->journal->durable.position;

		assert_int_equal(journal_reserve(rig->pool, lengths[i], false), 0);
		rig->given = journal_append(rig->pool, RECORD_CHANGES, bytes, lengths[i]);
		journal_unreserve(rig->pool, lengths[i]);
		assert_int_equal(sync_all(), 0);
		check_padding(position);
	}
	rig_free();
}

struct noted {
	struct durable_wait wait;
	int status;
	unsigned order;
};
static unsigned calls;

static void note_durable(struct durable_wait *wait, int status)
{
	struct noted *noted = (struct noted *)wait;

	noted->status = status;
	noted->order = ++calls;
}

static void records_gather_while_a_batch_is_written(void **state)
{
	struct engine_counters before, after;
	struct noted noted[100];
	int rc;

	rig_new(2, 3, 1, 256 * 1024);
	open_well(true);
	engine_counters(rig->engine, &before);
	calls = 0;
	for (unsigned i = 0; i < 100; i++) {
		uint64_t lsn = append(1, &rc);

		noted[i] = (struct noted){.wait.done = note_durable, .status = 1};
		pool_when_durable(rig->pool, lsn, &noted[i].wait);
	}
	assert_int_equal(calls, 0);
	assert_int_equal(sync_all(), 0);
	engine_counters(rig->engine, &after);
	assert_int_equal(after.writes - before.writes, 4);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(noted[i].status, 0);
		assert_int_equal(noted[i].order, i + 1);
	}
	pool_when_durable(rig->pool, 1, &noted[0].wait);
	assert_int_equal(calls, 101);
	rig_free();
}

static void failing_tells_everybody(void **state)
{
	struct noted noted[2] = {0};
	int rc;

	rig_new(3, 3, 1, 256 * 1024);
	open_well(true);
	calls = 0;
	for (unsigned i = 0; i < 2; i++) {
		noted[i].wait.done = note_durable;
		pool_when_durable(rig->pool, append(1, &rc), &noted[i].wait);
	}
	pool_fail(rig->pool, -EIO, "because");
	assert_int_equal(calls, 2);
	assert_int_equal(noted[0].status, -EIO);
	assert_int_equal(noted[1].status, -EIO);
	assert_int_equal(pool_sync(rig->pool, rig->given), -EIO);
	assert_int_equal(pool_sync(rig->pool, rig->acked), 0);
	assert_int_equal(journal_reserve(rig->pool, 1, false), -EIO);
	sim_drain(rig->world);
	assert_int_equal(journal_append(rig->pool, RECORD_CHANGES, "", 1), rig->given + 1);
	assert_int_equal(journal_durable_lsn(rig->pool), rig->acked);
	rig_free();
}

static void the_ring_wraps_many_times(void **state)
{
	for (uint64_t seed = 0; seed < 4; seed++) {
		rig_new(seed, 4, 1, (64 + 36 * seed) * 1024);
		open_well(true);
		for (unsigned i = 0; i < 10; i++) {
			assert_int_equal(work(300), 0);
			crash(SIM_LOSE_ALL);
			open_well(true);
		}
		assert_true(rig->pool->label.replay.position > 10 * rig->ring);
		rig_free();
	}
}

static void a_full_ring_waits_for_a_checkpoint(void **state)
{
	uint64_t before;
	int rc = 0;

	rig_new(5, 3, 1, 128 * 1024);
	open_well(true);
	rig->checkpoint_helps = false;
	while (!rc)
		rc = add(1);
	assert_int_equal(rc, -ENOSPC);
	assert_true(journal_wants_checkpoint(rig->pool));
	assert_true(rig->wakes > 0);
	assert_true(journal_used(rig->pool) <= rig->ring - rig->ring / 8);
	/* What is urgent still fits, and lasts. */
	assert_int_equal(journal_reserve(rig->pool, 100, true), 0);
	rig->given = journal_append(rig->pool, RECORD_CHANGES, NULL, 0);
	rig->content[rig->given] = 300;
	journal_unreserve(rig->pool, 100);
	assert_int_equal(sync_all(), 0);
	before = rig->checkpoints;
	rig->checkpoint_helps = true;
	assert_int_equal(add(1), 0);
	assert_int_equal(rig->checkpoints, before + 1);
	assert_false(journal_wants_checkpoint(rig->pool));
	crash(SIM_LOSE_ALL);
	open_well(true);
	rig_free();
}

/* Whatever was reserved gets through, with the ring's end and an old owner's part in the way. */
static void what_is_reserved_gets_through(void **state)
{
	for (uint64_t seed = 0; seed < 30; seed++) {
		uint8_t *bytes;
		size_t sizes[4], most;

		rig_new(seed, 3, 1, 128 * 1024);
		open_well(true);
		assert_int_equal(work(5 + (unsigned)draw(20)), 0);
		crash(SIM_LOSE_ALL);
		open_well(seed % 4 == 0);
		most = journal_record_max(rig->pool);
		bytes = calloc(1, most);
		for (unsigned i = 0; i < 150; i++) {
			unsigned count = 0, wanted = 1 + (unsigned)draw(4);

			while (count < wanted) {
				sizes[count] = draw(3) ? draw(5000) : draw(most + 1);
				if (journal_reserve(rig->pool, sizes[count], i % 2))
					break;
				count++;
			}
			if (!count)
				assert_int_equal(pool_checkpoint(rig->pool), 0);
			for (unsigned r = 0; r < count; r++) {
				rig->given =
					journal_append(rig->pool, RECORD_CHANGES, bytes, sizes[r]);
				if (draw(2))
					assert_int_equal(sync_all(), 0);
			}
			while (count--)
				journal_unreserve(rig->pool, sizes[count]);
			assert_int_equal(sync_all(), 0);
		}
		free(bytes);
		rig_free();
	}
}

/* Records that nobody made room for wait; they do not overwrite what is needed. */
static void a_full_ring_is_not_overwritten(void **state)
{
	for (int end = 0; end < 2; end++) {
		rig_new(17, 3, 1, 128 * 1024);
		open_well(true);
		rig->checkpoint_helps = false;
		for (unsigned i = 0; i < 100; i++) {
			uint8_t bytes[37 * 60];

			content_fill(bytes, 37 * 60, sizeof(bytes));
			rig->given =
				journal_append(rig->pool, RECORD_CHANGES, bytes, sizeof(bytes));
			rig->content[rig->given] = 37 * 60;
			pool_sync(rig->pool, rig->given);
		}
		assert_int_equal(pool_sync(rig->pool, rig->given), -EDEADLK);
		rig->acked = journal_durable_lsn(rig->pool);
		assert_true(rig->acked > 20 && rig->acked < rig->given);
		assert_true(journal_used(rig->pool) <= rig->ring - 2 * BLOCK_SIZE);
		rig->checkpoint_helps = true;
		while (end && rig->acked < rig->given) {
			assert_int_equal(pool_checkpoint(rig->pool), 0);
			pool_sync(rig->pool, rig->given);
			rig->acked = journal_durable_lsn(rig->pool);
		}
		crash(SIM_LOSE_ALL);
		prepare();
		assert_int_equal(look(&(struct journal_position){0}, &(uint64_t){0}), 0);
		rig_free();
	}
}

static void a_full_ring_opens_again_and_again(void **state)
{
	for (int dead = 0; dead < 2; dead++) {
		int rc = 0;

		rig_new(6, 3, 1, 512 * 1024);
		open_well(true);
		rig->checkpoint_helps = false;
		while (!rc)
			rc = add(1);
		for (unsigned i = 0; i < 5 && (dead || i < 1); i++) {
			crash(SIM_LOSE_ALL);
			open_well(dead);
		}
		rig->checkpoint_helps = true;
		assert_int_equal(pool_checkpoint(rig->pool), 0);
		assert_int_equal(work(50), 0);
		rig_free();
	}
}

static void records_have_a_greatest_size(void **state)
{
	uint8_t *bytes;
	size_t most;

	rig_new(7, 3, 1, 256 * 1024);
	open_well(true);
	most = journal_record_max(rig->pool);
	assert_true(most > 31 * 1024);
	assert_int_equal(journal_reserve(rig->pool, most + 1, true), -E2BIG);
	for (unsigned i = 0; i < 30; i++) {
		assert_int_equal(journal_reserve(rig->pool, most, false), 0);
		bytes = calloc(1, most);
		rig->given = journal_append(rig->pool, RECORD_CHANGES, bytes, most);
		free(bytes);
		journal_unreserve(rig->pool, most);
	}
	assert_int_equal(sync_all(), 0);
	rig_free();
}

static void reservations_are_kept(void **state)
{
	unsigned count = 0;

	rig_new(8, 3, 1, 128 * 1024);
	open_well(true);
	rig->checkpoint_helps = false;
	while (journal_reserve(rig->pool, 4000, false) == 0)
		count++;
	assert_true(count >= 5);
	for (unsigned i = 0; i < count; i++) {
		uint8_t bytes[4000] = {0};

		rig->given = journal_append(rig->pool, RECORD_CHANGES, bytes, sizeof(bytes));
		assert_int_equal(sync_all(), 0);
	}
	while (count--)
		journal_unreserve(rig->pool, 4000);
	rig_free();
}

/* --- threads ------------------------------------------------------------------------------------
 */

#define THREADS 4u
#define EACH 400u

static struct {
	pthread_mutex_t lock;
	bool over;
	uint32_t replayed[THREADS];
} threads = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *append_many(void *data)
{
	uint32_t id = (uint32_t)(uintptr_t)data;
	uint8_t bytes[2000];

	memset(bytes, (int)id, sizeof(bytes));
	for (uint32_t i = 1; i <= EACH; i++) {
		struct writer w = writer_on(bytes, sizeof(bytes));
		uint64_t lsn;

		put_u32(&w, id);
		put_u32(&w, i);
		assert_int_equal(journal_reserve(rig->pool, sizeof(bytes), false), 0);
		lsn = journal_append(rig->pool, RECORD_CHANGES, bytes, 8 + i % 1992);
		journal_unreserve(rig->pool, sizeof(bytes));
		if (i % 7 == 0 || i == EACH)
			assert_int_equal(pool_sync(rig->pool, lsn), 0);
	}
	return NULL;
}

/* In place of maintenance. */
static void *trim_often(void *data)
{
	bool over = false;

	while (!over) {
		struct journal_position at;

		usleep(500);
		pthread_mutex_lock(&threads.lock);
		over = threads.over;
		pthread_mutex_unlock(&threads.lock);
		if (over || !journal_wants_checkpoint(rig->pool))
			continue;
		journal_durable_position(rig->pool, &at);
		rig->pool->label.replay = at;
		journal_trim(rig->pool, at.position);
	}
	return NULL;
}

static int count_record(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	struct reader r = reader_on(payload + 1, length - 1);
	uint32_t id = get_u32(&r), i = get_u32(&r);

	assert_true(!r.bad && id < THREADS && length == 9 + i % 1992);
	assert_true(!threads.replayed[id] || i == threads.replayed[id] + 1);
	threads.replayed[id] = i;
	return 0;
}

static void pool_of_files(struct engine *engine, char paths[3][64])
{
	pool_new(engine);
	atomic_store(&rig->pool->thread_running, true); /* trim_often() is one */
	for (unsigned i = 0; i < 3; i++)
		member_open(i, paths[i]);
	journal_open();
}

static void run_threads(void)
{
	pthread_t appenders[THREADS], trimmer;

	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&appenders[i], NULL, append_many, (void *)(uintptr_t)i), 0);
	assert_int_equal(pthread_create(&trimmer, NULL, trim_often, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(appenders[i], NULL);
	pthread_mutex_lock(&threads.lock);
	threads.over = true;
	pthread_mutex_unlock(&threads.lock);
	pthread_join(trimmer, NULL);
}

static void make_files(char paths[3][64])
{
	for (unsigned i = 0; i < 3; i++) {
		int fd;

		snprintf(paths[i], 64, "/tmp/journal-%u-XXXXXX", i);
		fd = mkstemp(paths[i]);
		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, RING_OFFSET + 1024 * 1024), 0);
		close(fd);
	}
}

static void threads_share_batches(void **state)
{
	struct journal_position start = {.lsn = 1, .epoch = 1}, end;
	char paths[3][64];
	struct engine *engine;
	uint64_t window;

	if (uring_engine_create(NULL, &engine, NULL))
		skip();
	rig_new(15, 3, 1, 1024 * 1024);
	make_files(paths);
	pool_of_files(engine, paths);
	rig->pool->epoch = 1;
	rig->pool->label.span_count = 1;
	rig->pool->label.spans[0] = (struct journal_span){.epoch = 1, .window = BLOCK_SIZE};
	rig->pool->label.spans[0].start = start;
	assert_int_equal(journal_start(rig->pool, &start, 0, BLOCK_SIZE), 0);
	assert_int_equal(record_epoch(&start), 0);
	run_threads();
	rig->pool->label.spans[0].window = journal_window(rig->pool);
	rig->label = rig->pool->label;
	let_go();
	pool_of_files(engine, paths);
	assert_int_equal(
		journal_replay(rig->pool, &rig->label.replay, count_record, &end, &window), 0);
	assert_int_equal(end.lsn, THREADS * EACH + 2);
	let_go();
	for (unsigned i = 0; i < 3; i++)
		unlink(paths[i]);
	engine_destroy(engine);
	rig_free();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_appended_is_replayed),
		cmocka_unit_test(behind_a_batch_are_zeros),
		cmocka_unit_test(records_gather_while_a_batch_is_written),
		cmocka_unit_test(failing_tells_everybody),
		cmocka_unit_test(the_ring_wraps_many_times),
		cmocka_unit_test(a_full_ring_waits_for_a_checkpoint),
		cmocka_unit_test(what_is_reserved_gets_through),
		cmocka_unit_test(a_full_ring_is_not_overwritten),
		cmocka_unit_test(a_full_ring_opens_again_and_again),
		cmocka_unit_test(records_have_a_greatest_size),
		cmocka_unit_test(reservations_are_kept),
		cmocka_unit_test(threads_share_batches),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
