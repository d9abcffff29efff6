/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* links: control */
/* The line that long jobs show, and the count of what an ingest is going to read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/measure.h"
#include "cli/progress.h"

#define MIB (1ll << 20)

static struct progress_meter meter;
static char text[300];

static bool tell(double now, json_t *progress)
{
	bool shown;

	assert_non_null(progress);
	shown = progress_line(&meter, now, progress, text, sizeof(text));
	json_decref(progress);
	return shown;
}

static bool tell_bytes(double now, long long done, long long total)
{
	return tell(now, json_pack("{s:s,s:I,s:I}", "what", "verify tank/a", "done",
				 (json_int_t)done, "total", (json_int_t)total));
}

static int clear(void **state)
{
	memset(&meter, 0, sizeof(meter));
	return 0;
}

static void rate_and_time_left(void **state)
{
	assert_true(tell_bytes(100, 0, 1000 * MIB));
	assert_string_equal(text, "verify tank/a: 0 of 1000M, 0/s, 0%");
	assert_true(tell_bytes(101, 10 * MIB, 1000 * MIB));
	assert_string_equal(text, "verify tank/a: 10M of 1000M, 10M/s, 1%, 1:39 left");
	assert_true(tell_bytes(105, 50 * MIB, 1000 * MIB));
	assert_string_equal(text, "verify tank/a: 50M of 1000M, 10M/s, 5%, 1:35 left");
	assert_true(tell_bytes(200, 1000 * MIB, 1000 * MIB));
	assert_string_equal(text, "verify tank/a: 1000M of 1000M, 10M/s, 100%");
}

static void not_more_than_two_lines_a_second(void **state)
{
	unsigned shown = 0;

	for (int i = 0; i < 100; i++)
		shown += tell_bytes(100 + i / 10.0, i * MIB, 1000 * MIB);
	assert_in_range(shown, 15, 21);
}

/* What was quick or slow long ago does not count. */
static void the_rate_is_that_of_now(void **state)
{
	double now = 100;
	long long done = 0;

	for (int i = 0; i < 60; i++)
		tell_bytes(now++, done += 100 * MIB, 100000 * MIB);
	assert_true(meter.rate > 99 * MIB && meter.rate < 101 * MIB);
	for (int i = 0; i < 60; i++)
		tell_bytes(now++, done += 10 * MIB, 100000 * MIB);
	assert_true(meter.rate > 9 * MIB && meter.rate < 11 * MIB);
}

static void hours_are_shown(void **state)
{
	tell_bytes(100, 0, 1 << 20);
	tell_bytes(101, 10, 72000 + 10);
	assert_non_null(strstr(text, ", 2:00:00 left"));
	tell_bytes(102, 10, INT64_MAX);
	assert_non_null(strstr(text, " left"));
}

static void a_total_that_is_not_known_yet(void **state)
{
	tell(100, json_pack("{s:s,s:i,s:i}", "what", "ingest tank/a", "done", 0, "files", 0));
	assert_string_equal(text, "ingest tank/a: 0 files, 0, 0/s");
	tell(101, json_pack("{s:s,s:i,s:i}", "what", "ingest tank/a", "done", 2048, "files", 7));
	assert_string_equal(text, "ingest tank/a: 7 files, 2.0K, 2.0K/s");
	tell(102, json_pack("{s:s,s:i,s:i,s:i}", "what", "ingest tank/a", "done", 4096, "files", 9,
			  "total", 8192));
	assert_string_equal(text, "ingest tank/a: 9 files, 4.0K of 8.0K, 2.0K/s, 50%, 0:02 left");
}

static void a_part_without_a_measure(void **state)
{
	assert_true(tell(100, json_pack("{s:s}", "what", "start the server of tank")));
	assert_true(tell(163, json_pack("{s:s}", "what", "start the server of tank")));
	assert_string_equal(text, "start the server of tank: 1:03");
}

static void another_job_begins_anew(void **state)
{
	tell_bytes(100, 900 * MIB, 1000 * MIB);
	assert_true(
		tell(100.1, json_pack("{s:s,s:i,s:i}", "what", "next", "done", 0, "total", 10)));
	assert_string_equal(text, "next: 0 of 10, 0/s, 0%");
}

/* The server may be older or newer, or broken. */
static void odd_progress(void **state)
{
	assert_false(tell(100, json_object()));
	assert_false(tell(100, json_pack("{s:i}", "what", 1)));
	assert_true(tell(100, json_pack("{s:s,s:s,s:s}", "what", "x", "done", "y", "total", "z")));
	assert_true(tell(101, json_pack("{s:s,s:i,s:i}", "what", "x", "done", -5, "total", -7)));
	assert_true(tell(102, json_pack("{s:s,s:i,s:i}", "what", "x", "done", 9, "total", 0)));
}

static void a_line_that_does_not_fit(void **state)
{
	char what[400], small[20];
	json_t *progress;

	memset(what, 'x', sizeof(what));
	what[sizeof(what) - 1] = 0;
	progress = json_pack("{s:s,s:i}", "what", what, "done", 1);
	assert_true(progress_line(&meter, 100, progress, small, sizeof(small)));
	assert_int_equal(strlen(small), sizeof(small) - 1);
	json_decref(progress);
}

/* --- measuring a tree -------------------------------------------------------------------- */

static uint64_t wait_for_bytes(const char *path)
{
	struct measure *measure = measure_start(path);
	uint64_t bytes = 0;

	assert_non_null(measure);
	for (int i = 0; !bytes && i < 3000; i++) {
		bytes = measure_bytes(measure);
		usleep(10000);
	}
	measure_stop(measure);
	return bytes;
}

static void make_file(const char *path, off_t size)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(ftruncate(fileno(file), size), 0);
	fclose(file);
}

static void a_tree_is_measured(void **state)
{
	char directory[] = "/tmp/millrace-measure-XXXXXX";

	assert_non_null(mkdtemp(directory));
	assert_int_equal(chdir(directory), 0);
	assert_int_equal(mkdir("sub", 0755), 0);
	make_file("a", 1000);
	make_file("sub/b", 5 * MIB + 1);
	assert_int_equal(link("a", "sub/another"), 0);
	assert_int_equal(symlink("sub/b", "link"), 0);
	assert_int_equal(symlink(directory, "itself"), 0);
	assert_int_equal(wait_for_bytes(directory), 1000 + 5 * MIB + 1);
	assert_int_equal(wait_for_bytes("itself"), 1000 + 5 * MIB + 1);
	measure_stop(measure_start("/none"));
	assert_int_equal(measure_bytes(NULL), 0);
	measure_stop(NULL);
	assert_int_equal(unlink("a") | unlink("sub/b") | unlink("sub/another") | unlink("link") |
				 unlink("itself") | rmdir("sub") | rmdir(directory),
		0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(rate_and_time_left, clear),
		cmocka_unit_test_setup(not_more_than_two_lines_a_second, clear),
		cmocka_unit_test_setup(the_rate_is_that_of_now, clear),
		cmocka_unit_test_setup(hours_are_shown, clear),
		cmocka_unit_test_setup(a_total_that_is_not_known_yet, clear),
		cmocka_unit_test_setup(a_part_without_a_measure, clear),
		cmocka_unit_test_setup(another_job_begins_anew, clear),
		cmocka_unit_test_setup(odd_progress, clear),
		cmocka_unit_test_setup(a_line_that_does_not_fit, clear),
		cmocka_unit_test(a_tree_is_measured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
