/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* links: control */
/* What `status` tells an admin: each thing that can be wrong, and what to type. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/verb.h"

static struct pool_status status;
static bool member;
static json_t *advice;

/* A sound 4+2 pool of eight devices, two in each of four domains. */
static int sound(void **state)
{
	memset(&status, 0, sizeof(status));
	member = false;
	strcpy(status.summary.name, "tank");
	status.summary.data = 4;
	status.summary.parity = 2;
	status.new_data = 4;
	status.device_count = 8;
	for (unsigned i = 0; i < 8; i++) {
		status.devices[i].id = i;
		snprintf(status.devices[i].path, 256, "/dev/nvme%un1", i);
		snprintf(status.devices[i].domain, 64, "host%u", i / 2);
	}
	status.usable = 1000ull << 20;
	status.reserve = 100ull << 20;
	status.used = 500ull << 20;
	status.segments = 10;
	status.domain_may_die = true;
	return 0;
}

static int forget(void **state)
{
	json_decref(advice);
	advice = NULL;
	return 0;
}

/* Row `i`, which must be there, has both texts. */
static void says(unsigned i, const char *what, const char *next)
{
	const json_t *row = json_array_get(advice, i);
	const char *is, *to_do;

	assert_non_null(row);
	is = json_string_value(json_object_get(row, "what"));
	to_do = json_string_value(json_object_get(row, "next"));
	if (!strstr(is, what) || !strstr(to_do, next))
		fail_msg("'%s', '%s' lacks '%s' or '%s'", is, to_do, what, next);
}

static void advise(unsigned rows)
{
	advice = pool_advice(&status, member);
	assert_int_equal(json_array_size(advice), rows);
}

static void nothing_is_wrong(void **state)
{
	advise(0);
}

static void a_missing_device(void **state)
{
	status.devices[3].state = DEVICE_MISSING;
	status.devices[3].path[0] = 0;
	status.segments_degraded = 7;
	advise(2);
	says(0, "1 of 8 devices are gone, 1 more may be lost; 7 of 10 segments lack chunks",
		"keep the others");
	says(1, "device 3 (domain host1) is missing", "`millrace pool import tank`");
}

static void one_that_a_reader_misses(void **state)
{
	status.reader = true;
	status.devices[3].state = DEVICE_MISSING;
	status.devices[3].path[0] = 0;
	advise(2);
	says(1, "device 3 (domain host1) is missing",
		"`millrace pool attach tank --reader --returned`");
}

static void a_dropped_device(void **state)
{
	status.devices[0].state = DEVICE_DROPPED;
	advise(2);
	says(0, "1 more may be lost; 0 of 10", "keep the others attached");
	forget(NULL);
	status.devices[1].state = DEVICE_DROPPED;
	advise(3);
	says(0, "one more would lose data", "`millrace pool attach tank`");
	says(1, "device 0 (/dev/nvme0n1, domain host0) missed writes",
		"`smartctl -a /dev/nvme0n1`; when it is well, `millrace pool attach tank`");
}

static void one_that_is_not_whole(void **state)
{
	status.devices[2].suspect = true;
	advise(1);
	says(0, "device 2 (/dev/nvme2n1, domain host1) was away and is not whole yet",
		"`millrace pool attach tank` puts there");
}

static void fewer_than_a_segment_wants(void **state)
{
	for (unsigned i = 0; i < 3; i++)
		status.devices[i].state = DEVICE_DROPPED;
	advise(4);
	says(0, "3 of 8 devices are gone, more than the 2 of parity",
		"`millrace pool attach tank` takes devices back");
	sound(NULL);
	forget(NULL);
	status.device_count = 6;
	status.new_data = 3;
	status.devices[0].state = DEVICE_DROPPED;
	advise(2);
	says(0, "new ones have fewer data chunks", "keep the others attached");
}

static void a_domain_of_more_than_parity(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		strcpy(status.devices[i].domain, "host0");
		status.devices[i].state = DEVICE_DROPPED;
	}
	advise(4);
	says(0, "3 of 8 devices are gone, one more would lose data", "`millrace pool attach tank`");
	forget(NULL);
	status.segments_uneven = 1;
	advise(4);
	says(0, "more than the 2 of parity: data may be lost", "`millrace pool attach tank`");
}

static void too_few_to_write(void **state)
{
	for (unsigned i = 0; i < 6; i++)
		status.devices[i].state = DEVICE_MISSING;
	advise(8);
	says(0, "read-only: 2 devices are in use, and writing needs 3",
		"`millrace serve tank --stop`");
}

static void errors_and_repairs(void **state)
{
	status.devices[5].checksum_errors = 12;
	status.devices[5].repaired = 11;
	advise(1);
	says(0, "device 5 (/dev/nvme5n1, domain host2) had 0 read, 0 write and 12 checksum errors",
		"`millrace pool check tank --repair`");
	says(0, "11 blocks were rebuilt and repaired", "`smartctl -a /dev/nvme5n1`");
}

static void domains(void **state)
{
	status.domain_may_die = false;
	status.devices[6].state = status.devices[7].state = DEVICE_DROPPED;
	advise(4);
	says(3, "3 domains are in use, and 4+2 needs 3", "attach what is missing");
	sound(NULL);
	forget(NULL);
	status.domain_may_die = false;
	status.segments_uneven = 5;
	advise(1);
	says(0, "5 segments were written while devices were away",
		"copy files that were written then");
	sound(NULL);
	forget(NULL);
	status.domain_may_die = false;
	for (unsigned i = 0; i < 8; i++)
		strcpy(status.devices[i].domain, "here");
	advise(0);
}

static void space(void **state)
{
	status.used = 860ull << 20;
	advise(1);
	says(0, "nearly full: 40M of 900M are free", "`millrace dataset list tank`");
	forget(NULL);
	status.used = 900ull << 20;
	advise(1);
	says(0, "the pool is full", "delete files");
	forget(NULL);
	status.used = 400ull << 20;
	status.kept = 460ull << 20;
	advise(1);
	says(0, "nearly full: 40M of 900M are free; 460M are kept", "delete files");
	forget(NULL);
	status.kept = 500ull << 20;
	advise(1);
	says(0, "files can be deleted; 500M are kept", "delete files");
	forget(NULL);
	status.kept = 0;
	status.usable = status.reserve = 0;
	advise(1);
}

static void owners(void **state)
{
	strcpy(status.other_owners, "alpha, beta");
	advise(1);
	says(0, "alpha, beta had the pool open", "`millrace pool import --owner-dead tank`");
}

static void a_pool_that_has_stopped(void **state)
{
	status.failure = -EIO;
	strcpy(status.other_owners, "alpha");
	advise(2);
	says(0, "the pool has stopped: Input/output error", "`millrace serve tank`");
}

/* What is said there goes behind nobody's back. */
static void in_a_cluster(void **state)
{
	const json_t *row;
	size_t i;

	member = true;
	status.failure = -EIO;
	strcpy(status.other_owners, "alpha");
	for (i = 0; i < 6; i++)
		status.devices[i].state = DEVICE_MISSING;
	advice = pool_advice(&status, member);
	says(0, "the pool has stopped", "the cluster starts it again");
	says(1, "the pool is read-only", "the cluster takes back what it finds");
	says((unsigned)json_array_size(advice) - 1, "alpha had the pool open",
		"`millrace service move`");
	json_array_foreach(advice, i, row) assert_null(
		strstr(json_string_value(json_object_get(row, "next")), "`millrace serve "));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_is_wrong, sound, forget),
		cmocka_unit_test_setup_teardown(in_a_cluster, sound, forget),
		cmocka_unit_test_setup_teardown(a_missing_device, sound, forget),
		cmocka_unit_test_setup_teardown(one_that_a_reader_misses, sound, forget),
		cmocka_unit_test_setup_teardown(a_dropped_device, sound, forget),
		cmocka_unit_test_setup_teardown(one_that_is_not_whole, sound, forget),
		cmocka_unit_test_setup_teardown(fewer_than_a_segment_wants, sound, forget),
		cmocka_unit_test_setup_teardown(a_domain_of_more_than_parity, sound, forget),
		cmocka_unit_test_setup_teardown(too_few_to_write, sound, forget),
		cmocka_unit_test_setup_teardown(errors_and_repairs, sound, forget),
		cmocka_unit_test_setup_teardown(domains, sound, forget),
		cmocka_unit_test_setup_teardown(space, sound, forget),
		cmocka_unit_test_setup_teardown(owners, sound, forget),
		cmocka_unit_test_setup_teardown(a_pool_that_has_stopped, sound, forget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
