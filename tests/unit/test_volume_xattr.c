/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Extended attributes: set, read, listed, taken away, their limits, and that they go with a file.
 */
#include "test_volume.h"

#define DEVICE_SIZE (16u << 20)

static struct volume_fixture fixture;
static uint8_t bytes[VOLUME_XATTR_VALUE_MAX + 1];

static int start(void **state)
{
	volume_fixture_start(&fixture, DEVICE_SIZE, NULL);
	fill_bytes(bytes, sizeof(bytes), 1);
	return 0;
}

static int end(void **state)
{
	must_be_sound(&fixture);
	volume_fixture_end(&fixture);
	return 0;
}

static uint64_t make_file(const char *name)
{
	return must_make(fixture.volume, VOLUME_ROOT, name, VOLUME_FILE);
}

static int set_how(uint64_t ino, const char *name, size_t length, enum volume_xattr_how how)
{
	const struct volume_xattr xattr = {name, bytes, length};
	uint64_t lsn = 0;
	int r = volume_xattr_set(fixture.volume, ino, &xattr, how, &lsn);

	assert_int_equal(!r, lsn != 0);
	return r;
}

static int set(uint64_t ino, const char *name, size_t length)
{
	return set_how(ino, name, length, VOLUME_XATTR_EITHER);
}

static int take(uint64_t ino, const char *name)
{
	uint64_t lsn;

	return volume_xattr_remove(fixture.volume, ino, name, &lsn);
}

/* The length of what is there, which is as set() made it; or an error. */
static int64_t get(uint64_t ino, const char *name)
{
	static uint8_t found[VOLUME_XATTR_VALUE_MAX];
	size_t length = 0;
	int r = volume_xattr_get(fixture.volume, ino, name, found, sizeof(found), &length);

	if (r)
		return r;
	assert_memory_equal(found, bytes, length);
	return (int64_t)length;
}

struct names {
	char text[400];
	unsigned count, most;
};

static bool add_name(void *data, const char *name, size_t length)
{
	struct names *names = data;

	if (names->count == names->most)
		return false;
	if (names->count++ < 20)
		sprintf(names->text + strlen(names->text), "%.*s ", (int)length, name);
	return true;
}

/* Up to `most` names from number `from` on, each with a space behind it. */
static const char *list(uint64_t ino, uint64_t from, unsigned most, bool *eof)
{
	static struct names names;

	names = (struct names){.most = most};
	assert_int_equal(volume_xattr_list(fixture.volume, ino, from, add_name, &names, eof), 0);
	return names.text;
}

static void keeps_what_is_set(void **state)
{
	uint64_t ino = make_file("a"), other = make_file("b");
	size_t length;
	char small[4];
	bool eof;

	assert_int_equal(get(ino, "one"), -ENODATA);
	assert_int_equal(set(ino, "two", 100), 0);
	assert_int_equal(set(ino, "one", 0), 0);
	assert_int_equal(set(ino, "large", VOLUME_XATTR_VALUE_MAX), 0);
	assert_int_equal(set(ino, "two", 50), 0);
	assert_int_equal(set(VOLUME_ROOT, "dir", 5), 0);
	must_sync(&fixture);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	assert_int_equal(get(ino, "one"), 0);
	assert_int_equal(get(ino, "two"), 50);
	assert_int_equal(get(ino, "large"), VOLUME_XATTR_VALUE_MAX);
	assert_int_equal(get(VOLUME_ROOT, "dir"), 5);
	assert_int_equal(get(other, "one"), -ENODATA);
	assert_int_equal(
		volume_xattr_get(fixture.volume, ino, "two", small, sizeof(small), &length),
		-ERANGE);
	assert_int_equal(length, 50);
	assert_string_equal(list(ino, 0, 9, &eof), "large one two ");
	assert_true(eof);
	assert_string_equal(list(ino, 1, 1, &eof), "one ");
	assert_false(eof);
	assert_string_equal(list(ino, 3, 9, &eof), "");
	assert_true(eof);
	assert_string_equal(list(other, 0, 9, &eof), "");
}

static void takes_them_away(void **state)
{
	uint64_t ino = make_file("a");
	bool eof;

	assert_int_equal(set(ino, "one", 10), 0);
	assert_int_equal(set(ino, "two", 20), 0);
	assert_int_equal(take(ino, "one"), 0);
	assert_int_equal(take(ino, "one"), -ENODATA);
	must_sync(&fixture);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	assert_string_equal(list(ino, 0, 9, &eof), "two ");
	assert_int_equal(take(ino, "two"), 0);
	assert_string_equal(list(ino, 0, 9, &eof), "");
}

static void creates_and_replaces_as_told(void **state)
{
	uint64_t ino = make_file("a");

	assert_int_equal(set_how(ino, "one", 10, VOLUME_XATTR_REPLACE), -ENODATA);
	assert_int_equal(set_how(ino, "one", 10, VOLUME_XATTR_CREATE), 0);
	assert_int_equal(set_how(ino, "one", 11, VOLUME_XATTR_CREATE), -EEXIST);
	assert_int_equal(get(ino, "one"), 10);
	assert_int_equal(set_how(ino, "one", 12, VOLUME_XATTR_REPLACE), 0);
	assert_int_equal(get(ino, "one"), 12);
}

/* As it does while something is waited for. */
static void let_time_pass(void)
{
	struct volume_file *file = must_get(fixture.volume, make_file("time"));

	assert_int_equal(write_seeded(file, 0, 10, 1), 0);
	assert_int_equal(volume_commit_wait(file), 0);
	volume_file_put(file);
}

static void changes_ctime_and_the_change_attribute_alone(void **state)
{
	uint64_t ino = make_file("a");
	struct volume_file *file = must_get(fixture.volume, ino);
	struct volume_attributes before, after;

	assert_int_equal(write_seeded(file, 0, 9000, 1), 0);
	assert_int_equal(volume_getattr(fixture.volume, ino, &before), 0);
	let_time_pass();
	assert_int_equal(set(ino, "one", 10), 0);
	assert_int_equal(volume_getattr(fixture.volume, ino, &after), 0);
	assert_true(after.change > before.change);
	assert_true(after.ctime > before.ctime);
	assert_int_equal(after.mtime, before.mtime);
	assert_int_equal(after.size, before.size);
	before = after;
	assert_int_equal(take(ino, "none"), -ENODATA);
	assert_int_equal(volume_getattr(fixture.volume, ino, &after), 0);
	assert_int_equal(after.change, before.change);
	assert_int_equal(take(ino, "one"), 0);
	assert_int_equal(volume_getattr(fixture.volume, ino, &after), 0);
	assert_true(after.change > before.change);
	assert_int_equal(volume_commit_wait(file), 0);
	must_read_seeded(file, 0, 9000, 1);
	volume_file_put(file);
}

static void has_limits(void **state)
{
	uint64_t ino = make_file("a"), fifo = must_make(fixture.volume, VOLUME_ROOT, "p", 4);
	char name[VOLUME_NAME_MAX + 2];
	unsigned count = 0;
	int r;

	memset(name, 'n', sizeof(name));
	name[VOLUME_NAME_MAX + 1] = '\0';
	assert_int_equal(set(ino, name, 1), -ENAMETOOLONG);
	assert_int_equal(set(ino, "", 1), -EINVAL);
	assert_int_equal(set(ino, "one", VOLUME_XATTR_VALUE_MAX + 1), -E2BIG);
	assert_int_equal(set(fifo, "one", 1), -EPERM);
	assert_int_equal(take(fifo, "one"), -EPERM);
	assert_int_equal(get(fifo, "one"), -ENODATA);
	assert_int_equal(set(99, "one", 1), -ESTALE);
	name[VOLUME_NAME_MAX] = '\0';
	while (!(r = set(ino, name, 1)))
		sprintf(name, "%0*u", VOLUME_NAME_MAX, count++);
	assert_int_equal(r, -ENOSPC);
	assert_int_equal(
		count, VOLUME_XATTR_NAMES_MAX / (VOLUME_NAME_MAX + VOLUME_XATTR_NAME_COST));
	assert_int_equal(set(ino, "s", 1), 0);
	sprintf(name, "%0*u", VOLUME_NAME_MAX, 0);
	assert_int_equal(set(ino, name, 300), 0);
	must_be_sound(&fixture);
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	assert_int_equal(get(ino, "s"), -ESTALE);
}

static void bounds_the_bytes_of_an_inode(void **state)
{
	uint64_t ino = make_file("a");
	char name[8];
	unsigned count = 0;
	int r;

	do {
		sprintf(name, "%u", count++);
		r = set(ino, name, VOLUME_XATTR_VALUE_MAX);
		assert_int_equal(pool_maintain(fixture.pool), 0);
	} while (!r);
	assert_int_equal(r, -ENOSPC);
	assert_int_equal(count, VOLUME_XATTR_BYTES_MAX / VOLUME_XATTR_VALUE_MAX);
	assert_int_equal(set(ino, "0", 10), 0);
	assert_int_equal(set(ino, name, 1000), 0);
}

/* Verifying finds rows that are left, whatever they belonged to. */
static void go_with_what_has_them(void **state)
{
	uint64_t ino = make_file("a"), dir = must_make(fixture.volume, VOLUME_ROOT, "d", 2), lsn;
	struct volume_file *file = must_get(fixture.volume, ino);

	assert_int_equal(set(ino, "one", 3000), 0);
	assert_int_equal(set(dir, "one", 3000), 0);
	assert_int_equal(set(dir, "two", 3000), 0);
	must_unlink(fixture.volume, VOLUME_ROOT, "d");
	must_make(fixture.volume, VOLUME_ROOT, "b", VOLUME_FILE);
	assert_int_equal(volume_file_open(file), 0);
	assert_int_equal(
		volume_rename(fixture.volume, VOLUME_ROOT, "b", VOLUME_ROOT, "a", &lsn), 0);
	assert_int_equal(get(ino, "one"), 3000);
	assert_int_equal(set(ino, "two", 200), 0);
	must_be_sound(&fixture);
	must_sync(&fixture);
	volume_file_close(file);
	volume_file_put(file);
	must_be_sound(&fixture);
	assert_int_equal(get(ino, "two"), -ESTALE);
}

static void go_with_a_nameless_file_after_a_crash(void **state)
{
	uint64_t ino = make_file("a");
	struct volume_file *file = must_get(fixture.volume, ino);

	assert_int_equal(set(ino, "one", 3000), 0);
	assert_int_equal(volume_file_open(file), 0);
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	must_sync(&fixture);
	volume_file_close(file);
	volume_file_put(file);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	assert_int_equal(volume_maintain(fixture.volume), 0);
	assert_int_equal(get(ino, "one"), -ESTALE);
}

static void are_not_changed_in_a_sealed_volume(void **state)
{
	uint64_t ino = make_file("a");
	struct error error = {0};

	assert_int_equal(set(ino, "one", 10), 0);
	assert_int_equal(volume_seal(fixture.volume, &error), 0);
	assert_int_equal(set(ino, "one", 20), -EROFS);
	assert_int_equal(take(ino, "one"), -EROFS);
	volume_fixture_reopen(&fixture);
	assert_int_equal(get(ino, "one"), 10);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(keeps_what_is_set),
		TEST(takes_them_away),
		TEST(creates_and_replaces_as_told),
		TEST(changes_ctime_and_the_change_attribute_alone),
		TEST(has_limits),
		TEST(bounds_the_bytes_of_an_inode),
		TEST(go_with_what_has_them),
		TEST(go_with_a_nameless_file_after_a_crash),
		TEST(are_not_changed_in_a_sealed_volume),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
