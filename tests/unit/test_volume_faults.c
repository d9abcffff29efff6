/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Each call of the volume layer with its N-th allocation failing, N = 1, 2, ... until it needs no
 * more: an error, nothing half done, and the same call succeeds afterwards. The same with the N-th
 * request to a device, which nobody is to notice, and with power that goes there.
 */
#include <dlfcn.h>

#include "test_volume.h"

#define DEVICE_SIZE (6u << 20)
#define KIB 1024u

/* --- allocations that fail -------------------------------------------------------------------- */

static uint64_t fail_at; /* the n-th from now; 0: none */
static bool failed;

static bool fails(void)
{
	if (!fail_at || --fail_at)
		return false;
	failed = true;
	return true;
}

#define EXPORTED __attribute__((visibility("default")))
#define NEXT(name, type)                                                   \
	({                                                                 \
		static __typeof__(type) *next;                             \
		if (!next)                                                 \
			next = (__typeof__(type) *)dlsym(RTLD_NEXT, name); \
		next;                                                      \
	})

EXPORTED void *malloc(size_t size)
{
	return fails() ? NULL : NEXT("malloc", void *(size_t))(size);
}

EXPORTED void *calloc(size_t count, size_t size)
{
	return fails() ? NULL : NEXT("calloc", void *(size_t, size_t))(count, size);
}

EXPORTED void *realloc(void *memory, size_t size)
{
	return fails() ? NULL : NEXT("realloc", void *(void *, size_t))(memory, size);
}

EXPORTED void *aligned_alloc(size_t alignment, size_t size)
{
	return fails() ? NULL : NEXT("aligned_alloc", void *(size_t, size_t))(alignment, size);
}

/* --- the world before each call --------------------------------------------------------------- */

static struct volume_fixture fixture;
static struct sim_image *image;
static struct volume_file *held; /* "held", a deleted file that is open */
static uint64_t big, dir;

static uint64_t find(const char *name)
{
	struct volume_attributes found;

	assert_int_equal(volume_lookup(fixture.volume, VOLUME_ROOT, name, &found), 0);
	return found.ino;
}

static void make_with(const char *name, size_t length, unsigned seed)
{
	struct volume_file *file =
		must_get(fixture.volume, must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE));

	assert_int_equal(write_seeded(file, 0, length, seed), 0);
	volume_file_put(file);
}

static void prepare(void)
{
	struct volume_file *file;

	volume_fixture_start(&fixture, DEVICE_SIZE, NULL);
	make_with("keep", 70000, 1);
	make_with("small", 500, 2);
	make_with("big", 100 * KIB, 3);
	dir = must_make(fixture.volume, VOLUME_ROOT, "dir", VOLUME_DIRECTORY);
	must_make(fixture.volume, dir, "in", VOLUME_FILE);
	must_make(fixture.volume, VOLUME_ROOT, "link", VOLUME_SYMLINK);
	file = must_get(
		fixture.volume, must_make(fixture.volume, VOLUME_ROOT, "many", VOLUME_FILE));
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(write_seeded(file, 4096 + 10 * i, 1, i), 0);
	volume_file_put(file);
	big = find("big");
	volume_fixture_shut(&fixture);
	sim_settle(fixture.pool_fixture.world);
	assert_int_equal(sim_save(fixture.pool_fixture.world, &image), 0);
}

static void enter(void)
{
	assert_int_equal(sim_restore(fixture.pool_fixture.world, image), 0);
	volume_fixture_open(&fixture);
	must_make(fixture.volume, VOLUME_ROOT, "held", VOLUME_FILE);
	held = must_get(fixture.volume, find("held"));
	assert_int_equal(volume_file_open(held), 0);
	assert_int_equal(write_seeded(held, 0, 5000, 4), 0);
	must_unlink(fixture.volume, VOLUME_ROOT, "held");
	must_sync(&fixture);
}

/* Whatever volumes there are, each is whole; a creation that failed has left none behind. */
static void every_volume_must_open(void)
{
	struct volume *volume;
	struct volume_row row;
	struct txn *view;
	uint64_t wrong;

	for (uint32_t id = 1;; id = row.id + 1) {
		int r = view_begin(pool_env(fixture.pool), &view);

		assert_int_equal(r, 0);
		r = volume_row_next(view, id, &row);
		txn_abort(view);
		if (r == -ENOENT)
			return;
		assert_int_equal(r, 0);
		assert_int_equal(volume_open_id(fixture.volumes, row.id, &volume, NULL), 0);
		assert_int_equal(volume_check_live(volume, &wrong), 0);
		assert_int_equal(volume_close(volume), 0);
	}
}

static void check(void)
{
	struct volume_file *file = must_get(fixture.volume, find("keep"));

	must_read_seeded(file, 0, 70000, 1);
	volume_file_put(file);
	must_be_sound(&fixture);
	every_volume_must_open();
}

/* Ends the world; what was there is there after a crash. */
static void leave(void)
{
	if (held) {
		volume_file_close(held);
		volume_file_put(held);
	}
	held = NULL;
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	check();
	volume_fixture_shut(&fixture);
}

/* --- the calls -------------------------------------------------------------------------------- */

static int durable(int r, uint64_t lsn)
{
	return r ? r : pool_sync(fixture.pool, lsn);
}

static int make(const char *name, enum volume_type type)
{
	struct volume_new new = {.type = type, .target = "somewhere"};
	struct volume_attributes made;
	uint64_t lsn = 0;

	return durable(volume_make(fixture.volume, VOLUME_ROOT, name, &new, &made, &lsn), lsn);
}

static int make_file(void)
{
	return make("new", VOLUME_FILE);
}

static int make_directory(void)
{
	return make("newdir", VOLUME_DIRECTORY);
}

static int make_symlink(void)
{
	return make("newlink", VOLUME_SYMLINK);
}

static int make_link(void)
{
	uint64_t lsn = 0;

	return durable(volume_link(fixture.volume, big, dir, "second", NULL, &lsn), lsn);
}

static int remove_name(const char *name)
{
	uint64_t lsn = 0;

	return durable(
		volume_unlink(fixture.volume, VOLUME_ROOT, name, VOLUME_UNLINK_ANY, &lsn), lsn);
}

static int remove_big(void)
{
	return remove_name("big");
}

static int remove_many(void)
{
	return remove_name("many");
}

static int rename_over(void)
{
	uint64_t lsn = 0;

	return durable(
		volume_rename(fixture.volume, VOLUME_ROOT, "small", VOLUME_ROOT, "big", &lsn), lsn);
}

static int close_held(void)
{
	volume_file_close(held);
	volume_file_put(held);
	held = NULL;
	return 0;
}

static int truncate_many(void)
{
	struct volume_attributes found;
	int r = volume_lookup(fixture.volume, VOLUME_ROOT, "many", &found);

	return r ? r : set_size(fixture.volume, found.ino, 4100);
}

/* Writes and commits; after an error the file is as before or as written. */
static int write_to(const char *name, uint64_t offset, size_t length)
{
	struct volume_attributes found;
	struct volume_file *file;
	uint8_t *bytes;
	int r = volume_lookup(fixture.volume, VOLUME_ROOT, name, &found);

	if (!r)
		r = volume_file_get(fixture.volume, found.ino, &file);
	if (r)
		return r;
	bytes = malloc(length);
	r = bytes ? 0 : -ENOMEM;
	if (!r) {
		struct iovec iov = {bytes, length};

		fill_bytes(bytes, length, 9);
		r = volume_write(file, offset, &iov, 1, length);
	}
	free(bytes);
	if (!r)
		r = volume_commit_wait(file);
	fail_at = 0;
	if (!r && !sim_power_was_cut(fixture.pool_fixture.engine))
		must_read_seeded(file, offset, length, 9);
	volume_file_put(file);
	return r;
}

static int write_inline(void)
{
	return write_to("small", 100, 300);
}

static int write_past_inline(void)
{
	return write_to("small", 400, 30000);
}

static int write_over_big(void)
{
	return write_to("big", 50 * KIB, 100 * KIB);
}

static int write_over_many(void)
{
	return write_to("many", 4000, 4000);
}

static int read_big(void)
{
	struct volume_file *file;
	uint8_t buffer[4096];
	size_t bytes;
	bool eof;
	int r = volume_file_get(fixture.volume, big, &file);

	if (r)
		return r;
	r = volume_read_wait(file, 30000, buffer, sizeof(buffer), &bytes, &eof);
	volume_file_put(file);
	return r;
}

static bool take(void *data, const struct volume_entry *entry)
{
	return true;
}

static int list(void)
{
	bool eof;

	return volume_readdir(fixture.volume, VOLUME_ROOT, 0, take, NULL, &eof);
}

static int verify(void)
{
	struct volume_verify_report report;

	return volume_verify(fixture.volume, NULL, &report, NULL);
}

static int check_live(void)
{
	uint64_t wrong;

	return volume_check_live(fixture.volume, &wrong);
}

static int stage(void)
{
	struct volume_staged staged[2] = {
		{.dir = VOLUME_ROOT, .name = "s0", .new = {.type = VOLUME_FILE}, .size = 900},
		{.dir = VOLUME_ROOT, .name = "s1", .new = {.type = VOLUME_FILE}, .size = 30000},
	};
	static const uint8_t bytes[30000];
	uint64_t lsn = 0;
	int r = volume_stage(fixture.volume, &staged[0], 0, bytes, 900);

	if (!r)
		r = volume_stage(fixture.volume, &staged[1], 0, bytes, 30000);
	if (!r)
		r = volume_stage_commit(fixture.volume, staged, 2, &lsn);
	for (unsigned i = 0; i < 2; i++) {
		/* What a first try has made is there already. */
		if (!r && staged[i].status != -EEXIST)
			r = staged[i].status;
		volume_staged_free(fixture.volume, &staged[i]);
	}
	return durable(r, lsn);
}

static int first_segment(void *data, uint64_t segment, uint64_t length, uint64_t live)
{
	uint64_t *first = data;

	if (!*first && live)
		*first = segment;
	return 0;
}

static int compact(void)
{
	uint64_t segment = 0;
	int r = pool_each_segment(
		fixture.pool, volume_row(fixture.volume)->id, first_segment, &segment);

	if (!r)
		r = volume_compact(fixture.volume, &segment, 1, NULL);
	return r ? r : volume_sync(fixture.volume);
}

static int open_again(void)
{
	struct volume_create_options create = {.name = "other", .kind = VOLUME_DATASET};
	struct volume *other;
	int r = volume_create(fixture.volumes, &create, NULL, NULL);

	if (r && r != -EEXIST)
		return r;
	r = volume_open(fixture.volumes, "other", &other, NULL);
	return r ? r : volume_close(other);
}

static int maintain(void)
{
	return volume_maintain(fixture.volume);
}

static const struct call {
	const char *name;
	int (*run)(void);
	int again; /* what a second try may say when the first one had worked after all */
} calls[] = {
	{"make a file", make_file, -EEXIST},
	{"make a directory", make_directory, -EEXIST},
	{"make a symbolic link", make_symlink, -EEXIST},
	{"link", make_link, -EEXIST},
	{"unlink", remove_big, -ENOENT},
	{"unlink a file of many extents", remove_many, -ENOENT},
	{"rename over a file", rename_over, -ENOENT},
	{"truncate", truncate_many, 0},
	{"last close", close_held, 0},
	{"write inline", write_inline, 0},
	{"write past inline", write_past_inline, 0},
	{"write over extents", write_over_big, 0},
	{"write over many extents", write_over_many, 0},
	{"read", read_big, 0},
	{"readdir", list, 0},
	{"verify", verify, 0},
	{"check live bytes", check_live, 0},
	{"stage", stage, 0},
	{"compact", compact, 0},
	{"create and open", open_again, 0},
	{"maintain", maintain, 0},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

/* --- the tests -------------------------------------------------------------------------------- */

static void must_work_now(const struct call *call, uint64_t n, int first)
{
	int r = call->run == close_held ? 0 : call->run();

	if (r && r != call->again)
		fail_msg("%s, n = %llu: %d, then %d", call->name, (unsigned long long)n, first, r);
}

/* Late ones are those of the same step, again and again; builds with sanitizers are slow. */
static uint64_t stride(uint64_t n)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return 1 + n / 16;
#else
	return 1 + n / 100;
#endif
}

static void survives_each_failed_allocation(void **state)
{
	uint64_t total = 0, n;

	for (unsigned i = 0; i < CALLS; i++) {
		failed = true;
		for (n = 1; failed; n += stride(n)) {
			int r;

			enter();
			failed = false;
			fail_at = n;
			r = calls[i].run();
			fail_at = 0;
			if (r && !failed)
				fail_msg("%s: %d", calls[i].name, r);
			if (r && !pool_failure(fixture.pool))
				must_work_now(&calls[i], n, r);
			if (!pool_failure(fixture.pool))
				check();
			leave();
		}
		print_message("%s: %llu allocations\n", calls[i].name, (unsigned long long)n);
		total += n;
	}
	print_message("%llu allocations in all\n", (unsigned long long)total);
}

static void hides_each_failed_request(void **state)
{
	struct engine *engine = fixture.pool_fixture.engine;
	unsigned long total = 0;
	bool reached = true;

	for (unsigned i = 0; i < CALLS; i++) {
		reached = true;
		for (uint64_t n = 1; reached; n++) {
			int r;

			enter();
			sim_fail_nth(engine, n, -EIO);
			r = calls[i].run();
			reached = sim_failed(engine);
			total += reached;
			sim_fail_nth(engine, 0, 0);
			if (r)
				fail_msg("%s, request %llu: %d", calls[i].name,
					(unsigned long long)n, r);
			check();
			leave();
		}
	}
	print_message("%lu requests failed\n", total);
}

static void is_whole_after_each_power_cut(void **state)
{
	struct engine *engine = fixture.pool_fixture.engine;
	unsigned long total = 0;

	for (unsigned i = 0; i < CALLS; i++) {
		bool cut = true;

		for (uint64_t n = 1; cut; n++) {
			enter();
			sim_cut_power_at(engine, n);
			calls[i].run();
			cut = sim_power_was_cut(engine);
			total += cut;
			sim_cut_power_at(engine, 0);
			leave();
		}
	}
	print_message("%lu power cuts\n", total);
}

static int group_start(void **state)
{
	prepare();
	return 0;
}

static int group_end(void **state)
{
	sim_image_free(image);
	fixture_free(&fixture.pool_fixture);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(survives_each_failed_allocation),
		cmocka_unit_test(hides_each_failed_request),
		cmocka_unit_test(is_whole_after_each_power_cut),
	};

	return cmocka_run_group_tests(tests, group_start, group_end);
}
