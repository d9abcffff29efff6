/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Names: make, lookup, readdir, link, unlink, rename, and what each refuses. */
#define DEVICE_SIZE (4u << 20)
#include "test_volume_share.h"

static int lookup(uint64_t dir, const char *name, uint64_t *ino)
{
	struct volume_attributes found = {0};
	int r = volume_lookup(fixture.volume, dir, name, &found);

	*ino = found.ino;
	return r;
}

static int rename_to(uint64_t from, const char *a, uint64_t to, const char *b)
{
	uint64_t lsn;

	return volume_rename(fixture.volume, from, a, to, b, &lsn);
}

static int unlink_as(const char *name, enum volume_unlink what)
{
	uint64_t lsn;

	return volume_unlink(fixture.volume, VOLUME_ROOT, name, what, &lsn);
}

static void makes_and_finds(void **state)
{
	struct volume *volume = fixture.volume;
	uint64_t dir = must_make(volume, VOLUME_ROOT, "dir", VOLUME_DIRECTORY), found;
	uint64_t file = must_make(volume, dir, "file", VOLUME_FILE);
	struct volume_attributes attributes;

	assert_int_equal(lookup(dir, "file", &found), 0);
	assert_int_equal(found, file);
	assert_int_equal(lookup(VOLUME_ROOT, "file", &found), -ENOENT);
	assert_int_equal(lookup(file, "x", &found), -ENOTDIR);
	assert_int_equal(lookup(12345, "x", &found), -ESTALE);
	assert_int_equal(volume_parent(volume, dir, &attributes), 0);
	assert_int_equal(attributes.ino, VOLUME_ROOT);
	assert_int_equal(attributes.nlink, 3);
	assert_int_equal(volume_getattr(volume, file, &attributes), 0);
	assert_int_equal(attributes.mode, 0640);
	assert_int_equal(attributes.nlink, 1);
	volume_fixture_reopen(&fixture);
	assert_int_equal(lookup(dir, "file", &found), 0);
	assert_int_equal(found, file);
}

static void a_new_file_is_open(void **state)
{
	struct volume *volume = fixture.volume;
	struct volume_new new = {.type = VOLUME_FILE, .set = {VOLUME_SET_MODE, .mode = 04711}};
	struct volume_attributes made, there;
	struct volume_file *file, *again;
	uint64_t lsn;

	assert_int_equal(volume_make_open(volume, VOLUME_ROOT, "f", &new, &made, &file, &lsn), 0);
	assert_non_null(file);
	assert_int_equal(volume_file_ino(file), made.ino);
	assert_int_equal(
		volume_make_open(volume, VOLUME_ROOT, "f", &new, &there, &again, &lsn), -EEXIST);
	assert_null(again);
	assert_int_equal(there.ino, made.ino);
	must_unlink(volume, VOLUME_ROOT, "f");
	assert_int_equal(write_seeded(file, 0, 5000, 1), 0);
	must_read_seeded(file, 0, 5000, 1);
	volume_file_close(file);
	volume_file_put(file);
	assert_int_equal(volume_file_get(volume, made.ino, &again), -ESTALE);
	new.type = VOLUME_DIRECTORY;
	assert_int_equal(volume_make_open(volume, VOLUME_ROOT, "d", &new, &made, &file, &lsn), 0);
	assert_null(file);
}

static bool same_as_told(void *data, const struct volume_entry *entry)
{
	const struct volume_attributes *row = &entry->attributes;
	struct volume_attributes told;

	assert_int_equal(volume_getattr(fixture.volume, row->ino, &told), 0);
	assert_int_equal(told.ino, row->ino);
	assert_int_equal(told.type, row->type);
	assert_int_equal(told.mode, row->mode);
	assert_int_equal(told.nlink, row->nlink);
	assert_int_equal(told.size, row->size);
	assert_int_equal(told.mtime, row->mtime);
	assert_int_equal(told.ctime, row->ctime);
	assert_int_equal(told.change, row->change);
	assert_int_equal(told.parent, row->parent);
	++*(unsigned *)data;
	return true;
}

/* What is remembered of directories that were changed is what a listing finds in their rows. */
static void directories_are_told_as_they_are(void **state)
{
	enum { DIRECTORIES = 40, STEPS = 2000 };
	struct volume *volume = fixture.volume;
	uint64_t dirs[DIRECTORIES], seed = 1, lsn;
	char name[16], other[16];

	for (unsigned i = 0; i < DIRECTORIES; i++) {
		snprintf(name, sizeof(name), "d%u", i);
		dirs[i] = must_make(volume, VOLUME_ROOT, name, VOLUME_DIRECTORY);
	}
	for (unsigned i = 0; i < STEPS; i++) {
		struct volume_set set = {.mask = VOLUME_SET_MODE, .mode = i & 0777};
		struct volume_new new = {.type = i % 5 ? VOLUME_FILE : VOLUME_DIRECTORY};
		struct volume_attributes gone;
		unsigned count = 0;
		uint64_t a, b;
		bool eof;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		a = dirs[(seed >> 33) % DIRECTORIES];
		b = dirs[(seed >> 43) % DIRECTORIES];
		snprintf(name, sizeof(name), "n%u", (unsigned)(seed >> 53) % 4);
		snprintf(other, sizeof(other), "n%u", (unsigned)(seed >> 57) % 4);
		if (i % 3 == 0) {
			(void)volume_make(volume, a, name, &new, NULL, &lsn);
		} else if (i % 3 == 1) {
			(void)rename_to(a, name, b, other);
		} else if (!lookup(a, name, &b)) {
			assert_int_equal(volume_setattr(volume, b, &set, NULL, &lsn), 0);
			must_unlink(volume, a, name);
			assert_int_equal(volume_getattr(volume, b, &gone), -ESTALE);
		}
		assert_int_equal(
			volume_readdir(volume, VOLUME_ROOT, 0, same_as_told, &count, &eof), 0);
		assert_int_equal(count, DIRECTORIES);
	}
}

static void refuses_bad_names(void **state)
{
	struct volume *volume = fixture.volume;
	struct volume_new new = {.type = VOLUME_FILE};
	char name[258];
	uint64_t lsn, ino;

	memset(name, 'n', sizeof(name));
	name[256] = '\0';
	assert_int_equal(volume_make(volume, VOLUME_ROOT, name, &new, NULL, &lsn), -ENAMETOOLONG);
	assert_int_equal(lookup(VOLUME_ROOT, name, &ino), -ENAMETOOLONG);
	name[255] = '\0';
	assert_int_equal(volume_make(volume, VOLUME_ROOT, name, &new, NULL, &lsn), 0);
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "a/b", &new, NULL, &lsn), -EINVAL);
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "", &new, NULL, &lsn), -EINVAL);
	assert_int_equal(volume_make(volume, VOLUME_ROOT, ".", &new, NULL, &lsn), -EINVAL);
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "..", &new, NULL, &lsn), -EINVAL);
	assert_int_equal(rename_to(VOLUME_ROOT, name, VOLUME_ROOT, "x/y"), -EINVAL);
	assert_int_equal(lookup(VOLUME_ROOT, name, &ino), 0);
}

static void tells_what_exists(void **state)
{
	struct volume *volume = fixture.volume;
	uint64_t ino = must_make(volume, VOLUME_ROOT, "a", VOLUME_FILE), lsn;
	struct volume_new new = {.type = VOLUME_DIRECTORY};
	struct volume_attributes made = {0};

	assert_int_equal(volume_make(volume, VOLUME_ROOT, "a", &new, &made, &lsn), -EEXIST);
	assert_int_equal(made.ino, ino);
	assert_int_equal(made.type, VOLUME_FILE);
}

static void makes_a_file_with_its_size_or_not_at_all(void **state)
{
	struct volume *volume = fixture.volume;
	struct volume_new new = {
		.type = VOLUME_FILE, .set = {.mask = VOLUME_SET_SIZE, .size = 100000}};
	struct volume_attributes made;
	uint64_t found, lsn = 0;

	assert_int_equal(volume_make(volume, VOLUME_ROOT, "file", &new, &made, &lsn), 0);
	assert_int_equal(made.size, 100000);
	assert_int_equal(made.used, 0);
	assert_int_equal(size_of(volume, made.ino), 100000);
	new.set.size = VOLUME_SIZE_MAX + 1;
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "large", &new, &made, &lsn), -EFBIG);
	new.type = VOLUME_DIRECTORY;
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "large", &new, &made, &lsn), -EISDIR);
	assert_int_equal(lookup(VOLUME_ROOT, "large", &found), -ENOENT);
}

static void keeps_symbolic_links(void **state)
{
	struct volume *volume = fixture.volume;
	char target[VOLUME_TARGET_MAX + 2], buffer[VOLUME_TARGET_MAX];
	struct volume_new new = {.type = VOLUME_SYMLINK, .target = target};
	struct volume_attributes made;
	size_t length;
	uint64_t lsn;

	memset(target, 't', sizeof(target));
	target[VOLUME_TARGET_MAX + 1] = '\0';
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "l", &new, &made, &lsn), -ENAMETOOLONG);
	target[VOLUME_TARGET_MAX] = '\0';
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "l", &new, &made, &lsn), 0);
	assert_int_equal(made.size, VOLUME_TARGET_MAX);
	assert_int_equal(volume_readlink(volume, made.ino, buffer, 10, &length), -ERANGE);
	assert_int_equal(volume_readlink(volume, made.ino, buffer, sizeof(buffer), &length), 0);
	assert_int_equal(length, VOLUME_TARGET_MAX);
	assert_memory_equal(buffer, target, length);
	assert_int_equal(volume_readlink(volume, VOLUME_ROOT, buffer, 10, &length), -EINVAL);
	new.target = "";
	assert_int_equal(volume_make(volume, VOLUME_ROOT, "m", &new, &made, &lsn), -EINVAL);
	must_unlink(volume, VOLUME_ROOT, "l");
}

static void keeps_special_files(void **state)
{
	const uint64_t device = 4095ull << 32 | 1048575;
	struct volume_new new = {.set = {.mask = VOLUME_SET_MODE, .mode = 0600}, .rdev = device};
	struct volume_set cut = {.mask = VOLUME_SET_SIZE};
	struct volume_attributes found;
	struct volume_file *file;
	char name[2] = "0";
	uint64_t lsn;

	for (new.type = VOLUME_FIFO; new.type <= VOLUME_BLOCK; new.type++, name[0]++)
		assert_int_equal(
			volume_make(fixture.volume, VOLUME_ROOT, name, &new, NULL, &lsn), 0);
	must_sync(&fixture);
	volume_fixture_crash(&fixture, SIM_LOSE_ALL);
	name[0] = '0';
	for (new.type = VOLUME_FIFO; new.type <= VOLUME_BLOCK; new.type++, name[0]++) {
		assert_int_equal(volume_lookup(fixture.volume, VOLUME_ROOT, name, &found), 0);
		assert_int_equal(found.type, new.type);
		assert_int_equal(found.mode, 0600);
		assert_int_equal(found.rdev, new.type >= VOLUME_CHARACTER ? device : 0);
		assert_int_equal(
			volume_setattr(fixture.volume, found.ino, &cut, NULL, &lsn), -EINVAL);
		file = must_get(fixture.volume, found.ino);
		assert_int_equal(write_seeded(file, 0, 10, 1), -EINVAL);
		volume_file_put(file);
		must_unlink(fixture.volume, VOLUME_ROOT, name);
	}
}

static void links_and_unlinks(void **state)
{
	struct volume *volume = fixture.volume;
	uint64_t ino = must_make(volume, VOLUME_ROOT, "a", VOLUME_FILE), found, lsn;
	uint64_t dir = must_make(volume, VOLUME_ROOT, "d", VOLUME_DIRECTORY);
	struct volume_attributes after;

	assert_int_equal(volume_link(volume, ino, dir, "b", &after, &lsn), 0);
	assert_int_equal(after.nlink, 2);
	assert_int_equal(volume_link(volume, ino, dir, "b", &after, &lsn), -EEXIST);
	assert_int_equal(volume_link(volume, dir, dir, "c", &after, &lsn), -EPERM);
	assert_int_equal(volume_link(volume, 4711, dir, "c", &after, &lsn), -ESTALE);
	assert_int_equal(unlink_as("d", VOLUME_UNLINK_FILE), -EISDIR);
	assert_int_equal(unlink_as("d", VOLUME_UNLINK_DIRECTORY), -ENOTEMPTY);
	assert_int_equal(unlink_as("a", VOLUME_UNLINK_DIRECTORY), -ENOTDIR);
	assert_int_equal(unlink_as("x", VOLUME_UNLINK_ANY), -ENOENT);
	assert_int_equal(unlink_as("a", VOLUME_UNLINK_FILE), 0);
	assert_int_equal(lookup(dir, "b", &found), 0);
	assert_int_equal(found, ino);
	must_unlink(volume, dir, "b");
	assert_int_equal(volume_getattr(volume, ino, &after), -ESTALE);
	assert_int_equal(unlink_as("d", VOLUME_UNLINK_DIRECTORY), 0);
	assert_int_equal(volume_getattr(volume, dir, &after), -ESTALE);
	assert_int_equal(volume_getattr(volume, VOLUME_ROOT, &after), 0);
	assert_int_equal(after.nlink, 2);
	assert_int_equal(after.size, 0);
}

static void renames_over_names(void **state)
{
	struct volume *volume = fixture.volume;
	uint64_t a = must_make(volume, VOLUME_ROOT, "a", VOLUME_FILE), found;
	uint64_t b = must_make(volume, VOLUME_ROOT, "b", VOLUME_FILE);
	uint64_t d = must_make(volume, VOLUME_ROOT, "d", VOLUME_DIRECTORY);
	uint64_t e = must_make(volume, VOLUME_ROOT, "e", VOLUME_DIRECTORY);
	uint64_t f = must_make(volume, d, "f", VOLUME_DIRECTORY);
	struct volume_attributes attributes;

	assert_int_equal(rename_to(VOLUME_ROOT, "a", VOLUME_ROOT, "b"), 0);
	assert_int_equal(lookup(VOLUME_ROOT, "b", &found), 0);
	assert_int_equal(found, a);
	assert_int_equal(volume_getattr(volume, b, &attributes), -ESTALE);
	assert_int_equal(rename_to(VOLUME_ROOT, "b", VOLUME_ROOT, "d"), -EISDIR);
	assert_int_equal(rename_to(VOLUME_ROOT, "d", VOLUME_ROOT, "b"), -ENOTDIR);
	assert_int_equal(rename_to(VOLUME_ROOT, "e", VOLUME_ROOT, "d"), -ENOTEMPTY);
	assert_int_equal(rename_to(VOLUME_ROOT, "d", d, "x"), -EINVAL);
	assert_int_equal(rename_to(VOLUME_ROOT, "d", f, "x"), -EINVAL);
	assert_int_equal(rename_to(d, "f", e, "g"), 0);
	assert_int_equal(volume_parent(volume, f, &attributes), 0);
	assert_int_equal(attributes.ino, e);
	assert_int_equal(attributes.nlink, 3);
	assert_int_equal(rename_to(VOLUME_ROOT, "e", VOLUME_ROOT, "d"), 0);
	assert_int_equal(volume_getattr(volume, d, &attributes), -ESTALE);
	assert_int_equal(rename_to(VOLUME_ROOT, "b", f, "moved"), 0);
	assert_int_equal(rename_to(VOLUME_ROOT, "nope", f, "moved"), -ENOENT);
	volume_fixture_reopen(&fixture);
	assert_int_equal(lookup(f, "moved", &found), 0);
	assert_int_equal(found, a);
}

static void renames_one_inode_to_itself(void **state)
{
	uint64_t ino = must_make(fixture.volume, VOLUME_ROOT, "a", VOLUME_FILE), found, lsn = 9;

	assert_int_equal(volume_link(fixture.volume, ino, VOLUME_ROOT, "b", NULL, &lsn), 0);
	assert_int_equal(
		volume_rename(fixture.volume, VOLUME_ROOT, "a", VOLUME_ROOT, "b", &lsn), 0);
	assert_int_equal(lsn, 0);
	assert_int_equal(lookup(VOLUME_ROOT, "a", &found), 0);
}

/* --- readdir ---------------------------------------------------------------------------------- */

struct seen {
	unsigned count, stop_after;
	uint64_t last;
	char names[64][16];
};

static bool see(void *data, const struct volume_entry *entry)
{
	struct seen *seen = data;

	if (seen->count == seen->stop_after)
		return false;
	assert_true(entry->cookie > seen->last && entry->cookie >= 3);
	seen->last = entry->cookie;
	snprintf(seen->names[seen->count++ % 64], 16, "%s", entry->name);
	return true;
}

static void lists_in_steps_while_names_change(void **state)
{
	struct volume *volume = fixture.volume;
	struct seen seen = {.stop_after = 10};
	char name[16];
	bool eof;

	for (int i = 0; i < 30; i++) {
		snprintf(name, sizeof(name), "n%02d", i);
		must_make(volume, VOLUME_ROOT, name, VOLUME_FILE);
	}
	assert_int_equal(volume_readdir(volume, VOLUME_ROOT, 0, see, &seen, &eof), 0);
	assert_false(eof);
	assert_int_equal(seen.count, 10);
	/* What was listed and the place where it stopped may go; what stays is seen once. */
	must_unlink(volume, VOLUME_ROOT, "n09");
	must_unlink(volume, VOLUME_ROOT, "n10");
	must_make(volume, VOLUME_ROOT, "late", VOLUME_FILE);
	seen.stop_after = 1000;
	assert_int_equal(volume_readdir(volume, VOLUME_ROOT, seen.last, see, &seen, &eof), 0);
	assert_true(eof);
	assert_int_equal(seen.count, 30);
	assert_string_equal(seen.names[10], "n11");
	assert_string_equal(seen.names[29], "late");
	assert_int_equal(volume_readdir(volume, VOLUME_ROOT, seen.last, see, &seen, &eof), 0);
	assert_true(eof);
	assert_int_equal(seen.count, 30);
}

static void tells_paths(void **state)
{
	struct volume *volume = fixture.volume;
	uint64_t a = must_make(volume, VOLUME_ROOT, "alpha", VOLUME_DIRECTORY);
	uint64_t b = must_make(volume, a, "beta", VOLUME_DIRECTORY);
	uint64_t c = must_make(volume, b, "gamma", VOLUME_FILE);
	char path[64];

	assert_int_equal(volume_path(volume, c, path, sizeof(path)), 0);
	assert_string_equal(path, "/alpha/beta/gamma");
	assert_int_equal(volume_path(volume, VOLUME_ROOT, path, sizeof(path)), 0);
	assert_string_equal(path, "/");
	assert_int_equal(volume_path(volume, c, path, 8), -ENAMETOOLONG);
	assert_int_equal(volume_path(volume, 999, path, sizeof(path)), -ENOENT);
}

/* --- attributes and handles ------------------------------------------------------------------- */

static void sets_attributes(void **state)
{
	struct volume *volume = fixture.volume;
	uint64_t ino = must_make(volume, VOLUME_ROOT, "a", VOLUME_FILE), lsn;
	struct volume_set set = {
		.mask = VOLUME_SET_MODE | VOLUME_SET_UID | VOLUME_SET_GID | VOLUME_SET_ATIME |
			VOLUME_SET_MTIME | VOLUME_SET_BTIME,
		.mode = 04755,
		.uid = 7,
		.gid = 8,
		.atime = 1000,
		.mtime = -2000,
		.btime = 3000,
	};
	struct volume_attributes before, after;

	assert_int_equal(volume_getattr(volume, ino, &before), 0);
	assert_int_equal(volume_setattr(volume, ino, &set, &after, &lsn), 0);
	assert_true(after.change > before.change);
	volume_fixture_reopen(&fixture);
	assert_int_equal(volume_getattr(fixture.volume, ino, &after), 0);
	assert_int_equal(after.mode, 04755);
	assert_int_equal(after.uid, 7);
	assert_int_equal(after.gid, 8);
	assert_int_equal(after.atime, 1000);
	assert_int_equal(after.mtime, -2000);
	assert_int_equal(after.btime, 3000);
	set = (struct volume_set){.mask = VOLUME_SET_SIZE, .size = 5};
	assert_int_equal(volume_setattr(fixture.volume, VOLUME_ROOT, &set, NULL, &lsn), -EISDIR);
	set.size = VOLUME_SIZE_MAX + 1;
	assert_int_equal(volume_setattr(fixture.volume, ino, &set, NULL, &lsn), -EFBIG);
}

static void checks_handles(void **state)
{
	struct volume_create_options create = {.name = "other", .kind = VOLUME_SHARE};
	uint8_t bytes[VOLUME_HANDLE_SIZE];
	struct volume_handle handle;
	struct volume *other;

	assert_int_equal(volume_create(fixture.volumes, &create, NULL, NULL), 0);
	assert_int_equal(volume_open(fixture.volumes, "other", &other, NULL), 0);
	volume_handle_make(fixture.volume, 42, bytes);
	assert_int_equal(volume_handle_decode(bytes, sizeof(bytes), &handle), 0);
	assert_int_equal(handle.ino, 42);
	assert_int_equal(volume_handle_check(fixture.volume, &handle), 0);
	assert_int_equal(volume_handle_check(other, &handle), -ESTALE);
	handle.tag ^= 1;
	assert_int_equal(volume_handle_check(fixture.volume, &handle), -ESTALE);
	assert_int_equal(volume_handle_decode(bytes, sizeof(bytes) - 1, &handle), -EBADMSG);
	bytes[0] = 9;
	assert_int_equal(volume_handle_decode(bytes, sizeof(bytes), &handle), -EBADMSG);
	assert_int_equal(volume_close(other), 0);
}

static void counts_inodes(void **state)
{
	struct volume_space before, space;

	assert_int_equal(volume_statfs(fixture.volume, &before), 0);
	must_make(fixture.volume, VOLUME_ROOT, "a", VOLUME_FILE);
	must_make(fixture.volume, VOLUME_ROOT, "d", VOLUME_DIRECTORY);
	must_unlink(fixture.volume, VOLUME_ROOT, "a");
	assert_int_equal(volume_statfs(fixture.volume, &space), 0);
	assert_int_equal(space.files, before.files + 1);
	assert_int_equal(space.bytes, 0);
	assert_true(space.total >= space.free && space.free);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(makes_and_finds),
		TEST(a_new_file_is_open),
		TEST(directories_are_told_as_they_are),
		TEST(refuses_bad_names),
		TEST(tells_what_exists),
		TEST(makes_a_file_with_its_size_or_not_at_all),
		TEST(keeps_symbolic_links),
		TEST(keeps_special_files),
		TEST(links_and_unlinks),
		TEST(renames_over_names),
		TEST(renames_one_inode_to_itself),
		TEST(lists_in_steps_while_names_change),
		TEST(tells_paths),
		TEST(sets_attributes),
		TEST(checks_handles),
		TEST(counts_inodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
