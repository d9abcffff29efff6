/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Ingest: a tree of the host's, compared with what is in the volume; resumed; sealed; verified. */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "test_volume.h"

#define DEVICE_SIZE (16u << 20)
#define KIB 1024u

static struct volume_fixture fixture;
static char source[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	return remove(path);
}

static int start(void **state)
{
	strcpy(source, "/tmp/ingest-XXXXXX");
	assert_non_null(mkdtemp(source));
	volume_fixture_start(&fixture, DEVICE_SIZE, NULL);
	return 0;
}

static int end(void **state)
{
	must_be_sound(&fixture);
	volume_fixture_end(&fixture);
	return nftw(source, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- the source ------------------------------------------------------------------------------- */

static const char *at(const char *name)
{
	static char paths[2][256];
	static int turn;

	turn ^= 1;
	snprintf(paths[turn], sizeof(paths[turn]), "%s/%s", source, name);
	return paths[turn];
}

static void set_mtime(const char *name, time_t seconds)
{
	struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = seconds, .tv_nsec = 123456789}};

	assert_int_equal(utimensat(AT_FDCWD, at(name), times, AT_SYMLINK_NOFOLLOW), 0);
}

static void source_file(const char *name, off_t offset, size_t length, unsigned seed)
{
	int fd = open(at(name), O_RDWR | O_CREAT, 0604);
	uint8_t *bytes = malloc(length + 1);

	assert_true(fd >= 0);
	fill_bytes(bytes, length, seed);
	assert_int_equal(pwrite(fd, bytes, length, offset), (ssize_t)length);
	free(bytes);
	close(fd);
	set_mtime(name, 1000000 + seed);
}

static void source_tree(void)
{
	assert_int_equal(mkdir(at("dir"), 0710), 0);
	assert_int_equal(mkdir(at("dir/deep"), 0755), 0);
	source_file("empty", 0, 0, 1);
	source_file("tiny", 0, 700, 2);
	source_file("dir/small", 0, 20 * KIB, 3);
	source_file("dir/deep/large", 0, 3000 * KIB, 4);
	source_file("dir/holes", 8192 * KIB, 5000, 5);
	assert_int_equal(link(at("dir/small"), at("dir/deep/other")), 0);
	assert_int_equal(symlink("../nowhere", at("dir/link")), 0);
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	for (unsigned i = 0; i < 600; i++) {
		char name[32];

		snprintf(name, sizeof(name), "dir/n%u", i);
		source_file(name, 0, 10 + i, i);
	}
	set_mtime("dir/deep", 12345);
	set_mtime("dir", 23456);
}

/* --- the copy --------------------------------------------------------------------------------- */

static uint64_t walk(const char *path)
{
	struct volume_attributes found = {.ino = VOLUME_ROOT};
	char copy[256], *rest = copy, *part;

	snprintf(copy, sizeof(copy), "%s", path);
	while ((part = strsep(&rest, "/")))
		assert_int_equal(volume_lookup(fixture.volume, found.ino, part, &found), 0);
	return found.ino;
}

static void compare_attributes(const char *name)
{
	struct volume_attributes found;
	struct stat st;

	assert_int_equal(lstat(at(name), &st), 0);
	assert_int_equal(volume_getattr(fixture.volume, walk(name), &found), 0);
	assert_int_equal(found.mode, st.st_mode & 07777);
	assert_int_equal(found.uid, st.st_uid);
	assert_int_equal(found.mtime / 1000000000, st.st_mtim.tv_sec);
	assert_int_equal(found.mtime % 1000000000, st.st_mtim.tv_nsec);
	if (S_ISREG(st.st_mode)) {
		assert_int_equal(found.size, st.st_size);
		assert_int_equal(found.nlink, st.st_nlink);
	}
}

static void compare_bytes(const char *name)
{
	struct volume_file *file = must_get(fixture.volume, walk(name));
	int fd = open(at(name), O_RDONLY);
	uint8_t *theirs = malloc(64 * KIB), *ours = malloc(64 * KIB);
	uint64_t offset = 0;
	ssize_t n;

	while ((n = pread(fd, theirs, 64 * KIB, (off_t)offset)) > 0) {
		size_t bytes;
		bool eof;

		assert_int_equal(volume_read_wait(file, offset, ours, (size_t)n, &bytes, &eof), 0);
		assert_int_equal(bytes, n);
		assert_memory_equal(ours, theirs, bytes);
		offset += bytes;
	}
	free(theirs);
	free(ours);
	close(fd);
	volume_file_put(file);
}

static int compare_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	const char *name = path + strlen(source) + 1;

	if (!strcmp(path, source))
		return 0;
	compare_attributes(name);
	if (type == FTW_F && S_ISREG(st->st_mode))
		compare_bytes(name);
	return 0;
}

static void compare_all(void)
{
	assert_int_equal(nftw(source, compare_one, 16, FTW_PHYS), 0);
}

/* --- the tests -------------------------------------------------------------------------------- */

struct told {
	unsigned skipped, left;
	char path[256];
	unsigned stop_after, asked;
};

static void note_skip(void *data, const char *path, const char *why)
{
	struct told *told = data;

	told->skipped++;
	snprintf(told->path, sizeof(told->path), "%s", path);
}

/* Nobody but this thread is there to look after the pool. */
static bool stop(void *data)
{
	struct told *told = data;

	if (++told->asked % 4 == 0)
		assert_int_equal(pool_maintain(fixture.pool), 0);
	return told->stop_after && told->asked > told->stop_after;
}

static int ingest(struct told *told, bool resume, struct ingest_progress *progress)
{
	struct ingest_options options = {
		.source = source,
		.resume = resume,
		.skip = note_skip,
		.stop = stop,
		.data = told,
	};
	struct error error = {0};
	int r = volume_ingest(fixture.volume, &options, progress, &error);

	assert_int_equal(r, error.code);
	if (r && r != -EINTR)
		print_message("%s: %s\n", error.object, error.message);
	return r;
}

static void copies_a_tree(void **state)
{
	struct ingest_progress progress;
	struct volume_attributes found;
	struct told told = {0};
	struct volume_space space;
	char target[32];
	size_t length;

	source_tree();
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(told.skipped, 0);
	assert_int_equal(progress.files, 605);
	assert_int_equal(progress.directories, 2);
	assert_int_equal(progress.links, 1);
	assert_int_equal(progress.others, 2);
	compare_all();
	assert_int_equal(walk("dir/small"), walk("dir/deep/other"));
	assert_int_equal(volume_readlink(fixture.volume, walk("dir/link"), target, 32, &length), 0);
	assert_int_equal(length, 10);
	assert_memory_equal(target, "../nowhere", 10);
	assert_int_equal(volume_getattr(fixture.volume, walk("fifo"), &found), 0);
	assert_int_equal(found.type, VOLUME_FIFO);
	/* Holes stay holes. */
	assert_int_equal(volume_statfs(fixture.volume, &space), 0);
	assert_true(space.bytes < 4096 * KIB);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	compare_all();
}

/* What the source's file system can hold of these. */
static void keeps_times_far_away_in_order(void **state)
{
	static const time_t times[] = {-20000000000, -9000000000, 9000000000, 20000000000};
	struct ingest_progress progress;
	struct told told = {0};
	int64_t last = INT64_MIN;

	for (unsigned i = 0; i < 4; i++) {
		char name[] = {'a', (char)('0' + i), 0};
		struct volume_attributes found;
		struct stat st;

		source_file(name, 0, 10, i);
		set_mtime(name, times[i]);
		assert_int_equal(lstat(at(name), &st), 0);
		assert_int_equal(ingest(&told, false, &progress), 0);
		assert_int_equal(volume_lookup(fixture.volume, VOLUME_ROOT, name, &found), 0);
		assert_int_equal(found.mtime, volume_time(st.st_mtim));
		assert_true(found.mtime >= last);
		last = found.mtime;
		assert_int_equal(unlink(at(name)), 0);
	}
	assert_true(volume_time((struct timespec){.tv_sec = 20000000000}) > 9000000000000000000);
	assert_true(volume_time((struct timespec){.tv_sec = -20000000000}) < -9000000000000000000);
	assert_int_equal(volume_time((struct timespec){-1, 5}), -999999995);
}

static void goes_on_where_it_was_stopped(void **state)
{
	struct ingest_progress first, second;
	struct told told = {.stop_after = 400};

	source_tree();
	assert_int_equal(ingest(&told, false, &first), -EINTR);
	assert_true(first.files < 605);
	volume_fixture_reopen(&fixture);
	told = (struct told){0};
	assert_int_equal(ingest(&told, true, &second), 0);
	assert_int_equal(told.skipped, 0);
	assert_true(first.files + second.files >= 605);
	compare_all();
	source_file("tiny", 0, 800, 99);
	assert_int_equal(ingest(&told, true, &second), 0);
	assert_int_equal(second.files, 1);
	compare_all();
}

static void note_left(void *data, const char *path)
{
	struct told *told = data;

	assert_int_not_equal(access(path, F_OK), 0);
	told->left++;
}

/* Modes and types that changed since are as they are now; what is gone there is told. */
static void goes_on_with_what_has_changed(void **state)
{
	struct ingest_options options = {.source = source, .resume = true, .left = note_left};
	struct ingest_progress progress;
	struct told told = {0};

	source_tree();
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(chmod(at("dir/small"), 04700), 0);
	assert_int_equal(chmod(at("tiny"), 0444), 0);
	assert_int_equal(chmod(at("dir"), 0700), 0);
	assert_int_equal(unlink(at("empty")), 0);
	assert_int_equal(mkdir(at("empty"), 0750), 0);
	for (unsigned i = 0; i < 600; i += 2) {
		char name[32];

		snprintf(name, sizeof(name), "dir/n%u", i);
		assert_int_equal(unlink(at(name)), 0);
	}
	set_mtime("dir", 23456);
	options.data = &told;
	assert_int_equal(volume_ingest(fixture.volume, &options, &progress, NULL), 0);
	assert_int_equal(progress.files, 0);
	assert_int_equal(progress.directories, 1);
	assert_int_equal(progress.left, 300);
	assert_int_equal(told.left, 300);
	compare_all();
}

static void goes_on_with_hard_links(void **state)
{
	struct ingest_progress progress;
	struct volume_attributes found;
	struct told told = {0};

	source_file("a", 0, 100, 1);
	assert_int_equal(link(at("a"), at("b")), 0);
	assert_int_equal(link(at("a"), at("c")), 0);
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(ingest(&told, true, &progress), 0);
	assert_int_equal(progress.present, 3);
	/* One that was changed in place is new under all of its names. */
	source_file("a", 0, 200, 2);
	assert_int_equal(ingest(&told, true, &progress), 0);
	assert_int_equal(told.skipped, 0);
	assert_int_equal(progress.files, 1);
	assert_int_equal(progress.links, 2);
	compare_all();
	assert_int_equal(walk("a"), walk("b"));
	assert_int_equal(walk("a"), walk("c"));
	/* Names that were met in another order had the file made twice. */
	must_unlink(fixture.volume, VOLUME_ROOT, "b");
	must_make(fixture.volume, VOLUME_ROOT, "b", VOLUME_FILE);
	assert_int_equal(ingest(&told, true, &progress), 0);
	assert_int_equal(told.skipped, 0);
	compare_all();
	assert_int_equal(walk("a"), walk("b"));
	/* A directory is not taken away. */
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	must_unlink(fixture.volume, VOLUME_ROOT, "b");
	must_make(fixture.volume, VOLUME_ROOT, "a", VOLUME_DIRECTORY);
	must_make(fixture.volume, VOLUME_ROOT, "b", VOLUME_DIRECTORY);
	assert_int_equal(ingest(&told, true, &progress), 0);
	assert_true(told.skipped >= 2);
	assert_int_equal(volume_getattr(fixture.volume, walk("a"), &found), 0);
	assert_int_equal(found.type, VOLUME_DIRECTORY);
}

static void source_xattr(const char *name, const char *xattr, size_t length, unsigned seed)
{
	static uint8_t bytes[64 * KIB];

	fill_bytes(bytes, length, seed);
	if (lsetxattr(at(name), xattr, bytes, length, 0))
		fail_msg("%s: %s on %s: these tests need a file system with user.*",
			strerror(errno), xattr, at(name));
}

static void must_have_xattr(const char *name, const char *xattr, size_t length, unsigned seed)
{
	static uint8_t found[64 * KIB], expected[64 * KIB];
	size_t bytes = 0;

	fill_bytes(expected, length, seed);
	assert_int_equal(
		volume_xattr_get(fixture.volume, walk(name), xattr, found, sizeof(found), &bytes),
		0);
	assert_int_equal(bytes, length);
	assert_memory_equal(found, expected, length);
}

static void keeps_extended_attributes(void **state)
{
	struct ingest_progress progress;
	struct told told = {0};

	assert_int_equal(mkdir(at("dir"), 0755), 0);
	source_file("small", 0, 100, 1);
	source_file("large", 80u << 20, 1000, 2);
	source_file("none", 0, 100, 3);
	source_xattr("dir", "user.dir", 10, 1);
	source_xattr("small", "user.empty", 0, 2);
	source_xattr("small", "user.two", 2000, 3);
	source_xattr("small", "trusted.other", 10, 4);
	source_xattr("large", "user.large", 1000, 5);
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(told.skipped, 0);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	must_have_xattr("dir", "dir", 10, 1);
	must_have_xattr("small", "empty", 0, 2);
	must_have_xattr("small", "two", 2000, 3);
	must_have_xattr("large", "large", 1000, 5);
	assert_int_equal(
		volume_xattr_get(fixture.volume, walk("small"), "other", NULL, 0, &(size_t){0}),
		-ENODATA);
	compare_all();
	assert_int_equal(ingest(&told, true, &progress), 0);
	assert_int_equal(progress.present, 4);
	must_have_xattr("dir", "dir", 10, 1);
}

static void must_lack_xattr(uint64_t ino, const char *xattr)
{
	assert_int_equal(
		volume_xattr_get(fixture.volume, ino, xattr, NULL, 0, &(size_t){0}), -ENODATA);
}

static uint64_t changes(const char *name)
{
	struct volume_attributes found;

	assert_int_equal(volume_getattr(fixture.volume, walk(name), &found), 0);
	return found.change;
}

static void goes_on_with_changed_extended_attributes(void **state)
{
	struct ingest_progress progress;
	struct told told = {0};
	uint64_t before;

	assert_int_equal(mkdir(at("dir"), 0755), 0);
	source_file("file", 0, 100, 1);
	source_file("same", 0, 100, 2);
	source_xattr("dir", "user.gone", 10, 1);
	source_xattr("file", "user.gone", 0, 2);
	source_xattr("file", "user.other", 20, 3);
	source_xattr("file", "user.same", 30, 4);
	source_xattr("same", "user.same", 30, 5);
	assert_int_equal(ingest(&told, false, &progress), 0);
	before = changes("same");
	assert_int_equal(lremovexattr(at("dir"), "user.gone"), 0);
	assert_int_equal(lremovexattr(at("file"), "user.gone"), 0);
	source_xattr("dir", "user.new", 10, 6);
	source_xattr("file", "user.new", 2000, 7);
	source_xattr("file", "user.other", 20, 8);
	assert_int_equal(ingest(&told, true, &progress), 0);
	assert_int_equal(progress.present, 3);
	assert_int_equal(told.skipped, 0);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	must_lack_xattr(walk("dir"), "gone");
	must_lack_xattr(walk("file"), "gone");
	must_have_xattr("dir", "new", 10, 6);
	must_have_xattr("file", "new", 2000, 7);
	must_have_xattr("file", "other", 20, 8);
	must_have_xattr("file", "same", 30, 4);
	must_have_xattr("same", "same", 30, 5);
	assert_int_equal(changes("same"), before);
	compare_all();
}

static void keeps_the_extended_attributes_of_the_source_itself(void **state)
{
	struct ingest_progress progress;
	struct told told = {0};
	uint8_t found[16];
	size_t length;

	source_xattr("", "user.origin", 10, 1);
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(volume_xattr_get(fixture.volume, VOLUME_ROOT, "origin", found,
				 sizeof(found), &length),
		0);
	assert_int_equal(length, 10);
	assert_int_equal(lremovexattr(at(""), "user.origin"), 0);
	assert_int_equal(ingest(&told, true, &progress), 0);
	must_lack_xattr(VOLUME_ROOT, "origin");
}

static void names_what_it_leaves_out(void **state)
{
	struct ingest_progress progress;
	struct told told = {0};

	source_file("a", 0, 100, 1);
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(told.skipped, 1);
	assert_int_equal(progress.skipped, 1);
	assert_string_equal(told.path, at("a"));
	strcat(source, "/none");
	assert_int_equal(ingest(&told, false, &progress), -ENOENT);
	*strrchr(source, '/') = '\0';
}

/* While it is read the source changes, and its copy goes away. */
static bool spoil(void *data)
{
	uint64_t lsn;
	int r = volume_unlink(fixture.volume, VOLUME_ROOT, "large", VOLUME_UNLINK_FILE, &lsn);

	if (!r)
		set_mtime("large", 7);
	return false;
}

static void a_copy_that_cannot_be_taken_back_ends_it(void **state)
{
	struct ingest_options options = {.source = source, .stop = spoil};
	struct ingest_progress progress;
	struct error error = {0};

	source_file("large", 80u << 20, 1000, 1); /* made first, written then */
	source_file("small", 0, 1000, 2);
	assert_int_equal(volume_ingest(fixture.volume, &options, &progress, &error), -ENOENT);
	assert_string_equal(error.object, at("large"));
}

/* More pieces than fit into one transaction. */
static void copies_a_file_of_many_holes(void **state)
{
	struct ingest_progress progress;
	struct told told = {0};

	for (unsigned i = 0; i < 5000; i++)
		source_file("holes", (off_t)i * 8 * KIB, 4 * KIB, i);
	source_file("other", 0, 5000, 1);
	assert_int_equal(ingest(&told, false, &progress), 0);
	assert_int_equal(told.skipped, 0);
	assert_int_equal(progress.files, 2);
	assert_int_equal(progress.bytes, 5000 * 4 * KIB + 5000);
	compare_all();
	assert_int_equal(ingest(&told, true, &progress), 0);
	assert_int_equal(progress.present, 2);
}

static void seals_and_verifies(void **state)
{
	struct volume_new new = {.type = VOLUME_FILE};
	struct volume_verify_report report;
	struct ingest_progress progress;
	struct error error = {0};
	struct told told = {0};
	struct volume_file *file;
	uint64_t lsn;

	source_tree();
	assert_int_equal(ingest(&told, false, &progress), 0);
	if (volume_seal(fixture.volume, &error))
		fail_msg("%s", error.message);
	assert_true(volume_is_read_only(fixture.volume));
	assert_int_equal(volume_make(fixture.volume, VOLUME_ROOT, "x", &new, NULL, &lsn), -EROFS);
	assert_int_equal(volume_unlink(fixture.volume, VOLUME_ROOT, "tiny", 0, &lsn), -EROFS);
	file = must_get(fixture.volume, walk("tiny"));
	assert_int_equal(write_seeded(file, 0, 10, 1), -EROFS);
	assert_int_equal(volume_commit_wait(file), 0);
	volume_file_put(file);
	assert_int_equal(ingest(&told, true, &progress), -EROFS);
	volume_fixture_reopen(&fixture);
	compare_all();
	assert_int_equal(volume_make(fixture.volume, VOLUME_ROOT, "x", &new, NULL, &lsn), -EROFS);
	assert_int_equal(volume_verify(fixture.volume, NULL, &report, &error), 0);
	assert_int_equal(report.files, 605);
	assert_int_equal(report.directories, 3);
	assert_int_equal(report.bad_files, 0);
	assert_true(report.bytes > 3000 * KIB);
}

/* What is tried in the middle of an ingest. */
static bool meddle(void *data)
{
	struct ingest_options options = {.source = source, .resume = true};
	struct ingest_progress progress;
	struct error error = {0};

	++*(unsigned *)data;
	assert_int_equal(volume_seal(fixture.volume, &error), -EBUSY);
	assert_non_null(strstr(error.message, "ingest"));
	error_clear(&error);
	assert_int_equal(volume_ingest(fixture.volume, &options, &progress, &error), -EBUSY);
	assert_non_null(strstr(error.message, "ingest"));
	return false;
}

static void is_alone_with_the_volume(void **state)
{
	unsigned asked = 0;
	struct ingest_options options = {.source = source, .stop = meddle, .data = &asked};
	struct ingest_progress progress;
	struct error error = {0};

	source_file("a", 0, 100, 1);
	source_file("b", 0, 20 * KIB, 2);
	assert_int_equal(volume_ingest(fixture.volume, &options, &progress, &error), 0);
	assert_true(asked > 0);
	assert_int_equal(progress.files, 2);
	assert_int_equal(volume_seal(fixture.volume, &error), 0);
	compare_all();
}

static void has_the_volume_before_it_begins(void **state)
{
	struct ingest_options options = {.source = source, .held = true};
	struct ingest_progress progress;
	struct error error = {0};

	source_file("a", 0, 100, 1);
	assert_int_equal(volume_ingest_hold(fixture.volume, &error), 0);
	assert_int_equal(volume_seal(fixture.volume, &error), -EBUSY);
	assert_non_null(strstr(error.message, "ingest"));
	error_clear(&error);
	assert_int_equal(volume_ingest_hold(fixture.volume, &error), -EBUSY);
	error_clear(&error);
	assert_int_equal(volume_ingest(fixture.volume, &options, &progress, &error), 0);
	assert_int_equal(progress.files, 1);
	assert_int_equal(volume_seal(fixture.volume, &error), 0);
	compare_all();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(copies_a_tree),
		TEST(keeps_times_far_away_in_order),
		TEST(goes_on_where_it_was_stopped),
		TEST(goes_on_with_what_has_changed),
		TEST(goes_on_with_hard_links),
		TEST(keeps_extended_attributes),
		TEST(goes_on_with_changed_extended_attributes),
		TEST(keeps_the_extended_attributes_of_the_source_itself),
		TEST(names_what_it_leaves_out),
		TEST(a_copy_that_cannot_be_taken_back_ends_it),
		TEST(copies_a_file_of_many_holes),
		TEST(is_alone_with_the_volume),
		TEST(has_the_volume_before_it_begins),
		TEST(seals_and_verifies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
