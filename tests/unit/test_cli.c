/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* links: control */
/* The pure parts of the command: requests, properties, names, exit codes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/identity.h"
#include "cli/verb.h"

/* --- requests ---------------------------------------------------------------------------- */

static void good_requests(void **state)
{
	static const char *const lines[] = {
		"{\"schema\":1,\"verb\":[\"share\",\"list\"],\"args\":{}}",
		"{\"schema\":1,\"verb\":[\"serve\"],\"args\":{\"pool\":\"p\",\"stop\":true}}",
		"{\"args\":{\"volume\":\"p/a\",\"mode\":511},\"verb\":[\"share\",\"create\"],"
		"\"schema\":1,\"more\":null}",
	};

	for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		struct control_request request;
		struct error error = {0};

		assert_int_equal(
			control_request_parse(lines[i], strlen(lines[i]), &request, &error), 0);
		assert_non_null(request.verb->run);
		control_request_free(&request);
	}
}

static void parse_bad(const char *line, size_t length)
{
	struct control_request request;
	struct error error = {0};
	int rc = control_request_parse(line, length, &request, &error);

	if (!rc) {
		control_request_free(&request);
		return;
	}
	assert_int_equal(rc, error.code);
	assert_true(error.message[0]);
}

/* Every beginning of a good one, and every byte of it replaced by some others. */
static void mangled_requests(void **state)
{
	static const char line[] = "{\"schema\":1,\"verb\":[\"share\",\"create\"],\"args\":{"
				   "\"volume\":\"p/a\",\"mode\":511,\"owner\":0}}";
	static const char others[] = {0, '"', '{', '}', '[', ']', ',', ':', '9', '-', '\\', '\xff'};
	char copy[sizeof(line)];

	for (size_t length = 0; length < sizeof(line) - 1; length++)
		parse_bad(line, length);
	for (size_t at = 0; at < sizeof(line) - 1; at++) {
		for (size_t i = 0; i < sizeof(others); i++) {
			memcpy(copy, line, sizeof(line));
			copy[at] = others[i];
			parse_bad(copy, sizeof(line) - 1);
		}
	}
}

static void long_requests(void **state)
{
	size_t length = CONTROL_REQUEST_MAX + 1;
	char *line = calloc(1, length);
	struct control_request request;

	assert_non_null(line);
	memset(line, '[', length);
	assert_int_equal(control_request_parse(line, length, &request, NULL), -EINVAL);
	assert_int_equal(control_request_parse(line, length - 1, &request, NULL), -EINVAL);
	free(line);
}

/* The table itself: what the parser and help rely on. */
static void verb_table_is_sound(void **state)
{
	for (const struct verb *v = verb_table; v->noun; v++) {
		bool many = false;

		assert_ptr_equal(verb_find(v->noun, v->name), v);
		assert_true(v->help && v->parameters);
		for (const struct parameter *p = v->parameters; p->name; p++) {
			assert_ptr_equal(parameter_find(v->parameters, p->name), p);
			assert_non_null(p->help);
			assert_true(p->kind == VALUE_FLAG || p->shown);
			assert_false((p->flags & PARAMETER_PLACE) && many);
			many |= (p->flags & PARAMETER_PLACE) && (p->flags & PARAMETER_MANY);
		}
		if (v->flags & VERB_DESTROYS)
			assert_non_null(parameter_find(v->parameters, "yes"));
	}
}

/* --- properties -------------------------------------------------------------------------- */

static void client_lists(void **state)
{
	static const struct {
		const char *text, *normal; /* NULL: refused */
	} cases[] = {
		{"", ""},
		{"*:ro", "*:ro"},
		{"10.1.2.3:rw", "10.1.2.3:rw"},
		{"10.1.2.3/0:rw", "0.0.0.0/0:rw"},
		{"10.1.2.3/31:rw,*:ro", "10.1.2.2/31:rw,*:ro"},
		{"10.1.2.3/32:rw", "10.1.2.3:rw"},
		{"2001:DB8::1/33:ro", "2001:db8::/33:ro"},
		{"::/0:ro", "::/0:ro"},
		{"::1:ro", "::1:ro"},
		{"10.0.0.1/8:ro,10.0.0.2/8:ro", "10.0.0.0/8:ro"},
		{"10.0.0.1/8:ro,10.0.0.2/8:rw", NULL},
		{"*", NULL},
		{"*:", NULL},
		{":ro", NULL},
		{"*:ro,", NULL},
		{" *:ro", NULL},
		{"10.0.0.0/33:ro", NULL},
		{"::/129:ro", NULL},
		{"10.0.0.0/+8:ro", NULL},
		{"10.0.0.0/ 8:ro", NULL},
		{"10.0.0.0/8x:ro", NULL},
		{"10.0.0.0/99999999999999999999:ro", NULL},
		{"10.0.0:ro", NULL},
		{"10.0.0.256:ro", NULL},
		{"host.example:ro", NULL},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[200], name[PROPERTY_NAME_MAX + 1], value[PROPERTY_VALUE_MAX + 1];
		struct error error = {0};
		int rc;

		snprintf(text, sizeof(text), "nfs.clients=%s", cases[i].text);
		rc = property_parse(text, PROPERTY_SHARE, name, value, &error);
		assert_int_equal(rc, cases[i].normal ? 0 : -EINVAL);
		if (cases[i].normal)
			assert_string_equal(value, cases[i].normal);
		else
			assert_true(error.message[0]);
	}
}

static void too_many_clients(void **state)
{
	struct client_rule rules[CLIENT_RULES_MAX];
	char text[PROPERTY_VALUE_MAX * 2] = "";
	struct error error = {0};
	unsigned count;

	for (unsigned i = 0; i < CLIENT_RULES_MAX; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s10.0.0.%u:ro",
			i ? "," : "", i);
	assert_int_equal(client_rules_parse(text, rules, &count, &error), 0);
	assert_int_equal(count, CLIENT_RULES_MAX);
	assert_string_equal(rules[63].address, "10.0.0.63");
	strcat(text, ",10.0.0.64:ro");
	assert_int_equal(client_rules_parse(text, rules, &count, &error), -EINVAL);
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	assert_int_equal(client_rules_parse(text, rules, &count, &error), -EINVAL);
}

static void property_names(void **state)
{
	assert_int_equal(property_check_name("comment", PROPERTY_POOL, NULL), 0);
	assert_int_equal(property_check_name("nfs.squash", PROPERTY_POOL, NULL), -EINVAL);
	assert_int_equal(property_check_name("nfs.squash", PROPERTY_DATASET, NULL), 0);
	assert_int_equal(property_check_name("a:b", PROPERTY_POOL, NULL), 0);
	assert_int_equal(property_check_name("A:b", PROPERTY_POOL, NULL), -EINVAL);
	assert_int_equal(property_check_name("", PROPERTY_POOL, NULL), -EINVAL);
}

/* --- names and errors -------------------------------------------------------------------- */

static void object_names(void **state)
{
	char pool[POOL_NAME_MAX + 1], name[POOL_VOLUME_NAME_MAX + 1], text[300];

	assert_int_equal(object_split("tank/a", pool, name, NULL), 0);
	assert_string_equal(pool, "tank");
	assert_string_equal(name, "a");
	assert_int_equal(object_split("tank", pool, NULL, NULL), 0);
	assert_int_equal(object_split("tank", pool, name, NULL), -EINVAL);
	assert_int_equal(object_split("tank/a", pool, NULL, NULL), -EINVAL);
	assert_int_equal(object_split("tank/a/b", pool, name, NULL), -EINVAL);
	assert_int_equal(object_split("../a", pool, name, NULL), -EINVAL);
	for (size_t length = 62; length < 66; length++) {
		memset(text, 'x', length);
		text[length] = 0;
		assert_int_equal(object_split(text, pool, NULL, NULL), length <= 63 ? 0 : -EINVAL);
	}
}

static void exit_codes(void **state)
{
	const char *name;

	assert_int_equal(error_exit(0, &name), 0);
	assert_int_equal(error_exit(-EIO, &name), 1);
	assert_string_equal(name, "failed");
	assert_int_equal(error_exit(-EINVAL, &name), 2);
	assert_int_equal(error_exit(-ENOENT, &name), 3);
	assert_int_equal(error_exit(-EBUSY, &name), 4);
	assert_int_equal(error_exit(-EACCES, &name), 6);
	assert_int_equal(error_exit(-ETIMEDOUT, &name), 7);
	assert_string_equal(name, "time-out");
}

/* --- drives ------------------------------------------------------------------------------ */

struct attribute {
	const char *leaf, *line;
};

static void put_line(const char *path, const char *line)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(line, file);
	fclose(file);
}

/* A directory as sysfs has it, asked, and taken away again. */
static void drive_is(const struct attribute *attributes, unsigned count, const char *expected)
{
	char disk[] = "/tmp/sysfs-XXXXXX", directory[40], path[80], text[IDENTITY_MAX];

	assert_non_null(mkdtemp(disk));
	snprintf(directory, sizeof(directory), "%s/part", disk);
	assert_int_equal(mkdir(directory, 0700), 0);
	for (unsigned i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, attributes[i].leaf);
		put_line(path, attributes[i].line);
	}
	identity_of_block(directory, text);
	assert_string_equal(text, expected);
	for (unsigned i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, attributes[i].leaf);
		assert_int_equal(unlink(path), 0);
	}
	assert_int_equal(rmdir(directory) | rmdir(disk), 0);
}

static void drives_are_told_apart(void **state)
{
	static const struct attribute disk[] = {
		{"size", "2048\n"}, {"wwid", "eui.0025\n"}, {"serial", "S1\n"}};
	static const struct attribute serial[] = {{"size", "2048\n"}, {"serial", "  S1  \n"}};
	static const struct attribute part[] = {
		{"size", "1024\n"}, {"partition", "2\n"}, {"../wwid", "eui.0025\n"}};
	static const struct attribute empty[] = {{"size", "8\n"}, {"serial", "\n"}};

	drive_is(disk, 3, "eui.0025, 2048 sectors");
	drive_is(serial, 2, "S1, 2048 sectors");
	drive_is(part, 3, "eui.0025 part 2, 1024 sectors");
	drive_is(empty, 2, "8 sectors");
	drive_is(disk, 0, "");
}

/* The node that a drive of this model is of, or "", of the drive and of a partition. */
static void node_is(const char *model, const char *expected)
{
	char disk[] = "/tmp/sysfs-XXXXXX", part[40], device[40], models[60], serial[60], node[64];

	assert_non_null(mkdtemp(disk));
	snprintf(part, sizeof(part), "%s/part", disk);
	snprintf(device, sizeof(device), "%s/device", disk);
	snprintf(models, sizeof(models), "%s/model", device);
	snprintf(serial, sizeof(serial), "%s/serial", device);
	assert_int_equal(mkdir(part, 0700) | mkdir(device, 0700), 0);
	put_line(models, model);
	put_line(serial, "n2                  \n");
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(identity_node_of_block(i ? part : disk, node, sizeof(node)),
			expected[0] > 0);
		if (expected[0])
			assert_string_equal(node, expected);
	}
	assert_int_equal(unlink(models) | unlink(serial), 0);
	assert_int_equal(rmdir(part) | rmdir(device) | rmdir(disk), 0);
}

static void a_drive_is_of_its_node(void **state)
{
	node_is("Millrace                                \n", "n2");
	node_is("Another                                 \n", "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_requests),
		cmocka_unit_test(mangled_requests),
		cmocka_unit_test(long_requests),
		cmocka_unit_test(verb_table_is_sound),
		cmocka_unit_test(client_lists),
		cmocka_unit_test(too_many_clients),
		cmocka_unit_test(property_names),
		cmocka_unit_test(object_names),
		cmocka_unit_test(exit_codes),
		cmocka_unit_test(drives_are_told_apart),
		cmocka_unit_test(a_drive_is_of_its_node),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
