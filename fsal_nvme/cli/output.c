/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Results as text, by the views, and answers as JSON. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/command.h"
#include "cli/progress.h"

#define FIELDS_MAX 16

/* --- one value --------------------------------------------------------------------------- */

static void format_time(uint64_t ns, char *text, size_t size)
{
	time_t seconds = (time_t)(ns / 1000000000);
	struct tm when;

	if (!localtime_r(&seconds, &when) || !strftime(text, size, "%F %R", &when))
		snprintf(text, size, "?");
}

/* Two or three digits of it; 0: there was none. */
static void format_span(uint64_t ns, char *text, size_t size)
{
	static const char *const units[] = {"ns", "us", "ms", "s"};
	double value = (double)ns;
	unsigned i = 0;

	while (value >= 999.5 && i < 3) {
		value /= 1000;
		i++;
	}
	if (ns)
		snprintf(text, size, "%.*f%s", i && value < 9.95 ? 1 : 0, value, units[i]);
	else
		snprintf(text, size, "-");
}

/* As much of it as there is room for. */
static void format_list(const json_t *list, char *text, size_t size)
{
	const json_t *one;
	size_t i, used = 0;

	snprintf(text, size, "-");
	json_array_foreach(list, i, one)
	{
		if (used < size)
			used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
				json_string_value(one));
	}
}

/* A string is given back as it is, all others are put into `room`. */
static const char *format_value(const json_t *value, enum field_kind kind, char *room, size_t size)
{
	uint64_t number = (uint64_t)json_integer_value(value);

	if (json_is_string(value))
		return *json_string_value(value) ? json_string_value(value) : "-";
	if (!value)
		return "-";
	if (json_is_array(value))
		format_list(value, room, size);
	else if (kind == FIELD_BYTES)
		bytes_text(number, room, size);
	else if (kind == FIELD_TIME)
		format_time(number, room, size);
	else if (kind == FIELD_SPAN)
		format_span(number, room, size);
	else if (kind == FIELD_BOOL)
		snprintf(room, size, "%s", json_is_true(value) ? "yes" : "no");
	else
		snprintf(room, size, "%llu", (unsigned long long)number);
	return room;
}

static bool to_the_right(enum field_kind kind)
{
	return kind == FIELD_NUMBER || kind == FIELD_BYTES || kind == FIELD_SPAN;
}

/* --- a view ------------------------------------------------------------------------------ */

static void measure(const struct view *view, const json_t *rows, int *widths)
{
	char room[64];
	const json_t *row;
	size_t r;

	for (unsigned i = 0; view->fields[i].key; i++) {
		const struct field *f = &view->fields[i];

		widths[i] = (int)strlen(f->heading);
		json_array_foreach(rows, r, row)
		{
			const char *text = format_value(
				json_object_get(row, f->key), f->kind, room, sizeof(room));

			if ((int)strlen(text) > widths[i])
				widths[i] = (int)strlen(text);
		}
	}
}

static void print_cell(const struct view *view, unsigned i, int width, const char *text)
{
	bool last = !view->fields[i + 1].key;

	printf("%s", i ? "  " : "");
	if (to_the_right(view->fields[i].kind))
		printf("%*s", width, text);
	else
		printf("%-*s", last ? 0 : width, text);
}

static void print_table(const struct view *view, const json_t *rows)
{
	int widths[FIELDS_MAX];
	char room[64];
	const json_t *row;
	size_t r;

	measure(view, rows, widths);
	for (unsigned i = 0; view->fields[i].key; i++)
		print_cell(view, i, widths[i], view->fields[i].heading);
	printf("\n");
	json_array_foreach(rows, r, row)
	{
		for (unsigned i = 0; view->fields[i].key; i++)
			print_cell(view, i, widths[i],
				format_value(json_object_get(row, view->fields[i].key),
					view->fields[i].kind, room, sizeof(room)));
		printf("\n");
	}
}

static void print_lines(const struct view *view, const json_t *object)
{
	char room[64];

	for (const struct field *f = view->fields; f->key; f++) {
		const json_t *value = json_object_get(object, f->key);

		if (value)
			printf("%18s: %s\n", f->heading,
				format_value(value, f->kind, room, sizeof(room)));
	}
}

static void print_paragraphs(const struct view *view, const json_t *rows)
{
	const json_t *row;
	size_t r;

	json_array_foreach(rows, r, row)
	{
		if (r)
			printf("\n");
		print_lines(view, row);
	}
}

static const json_t *find_part(const json_t *result, const char *key)
{
	char first[32];
	const char *dot = strchr(key, '.');

	if (!dot)
		return json_object_get(result, key);
	snprintf(first, sizeof(first), "%.*s", (int)(dot - key), key);
	return json_object_get(json_object_get(result, first), dot + 1);
}

static void print_view(const struct view *view, const json_t *part, bool failed)
{
	if (json_is_array(part) && !json_array_size(part)) {
		if (view->empty && !failed)
			printf("%s\n", view->empty);
		return;
	}
	if (view->title)
		printf("%s\n", view->title);
	if (json_is_array(part) && view->paragraphs)
		print_paragraphs(view, part);
	else if (json_is_array(part))
		print_table(view, part);
	else
		print_lines(view, part);
}

/* --- the answer -------------------------------------------------------------------------- */

static bool view_is_of(const struct view *view, const struct verb *verb)
{
	return verb && !strcmp(view->noun, verb->noun) &&
	       (view->verb ? verb->name && !strcmp(view->verb, verb->name) : !verb->name);
}

static void print_text(const struct command *command)
{
	const char *message = json_string_value(json_object_get(command->result, "message"));
	bool interrupted = command->error.code == -EINTR; /* what it did so far is no report */

	for (const struct view *v = view_table; v->noun; v++) {
		const json_t *part = !interrupted && view_is_of(v, command->verb)
					     ? find_part(command->result, v->key)
					     : NULL;

		if (part)
			print_view(v, part, command->error.code);
	}
	if (message)
		printf("%s\n", message);
	fflush(stdout);
	if (!command->error.code)
		return;
	fprintf(stderr, "millrace: %s: %s\n", command->error.object, command->error.message);
	if (command->hint_help)
		fprintf(stderr, "Try: millrace%s%s%s%s --help\n", command->verb ? " " : "",
			command->verb ? command->verb->noun : "",
			command->verb && command->verb->name ? " " : "",
			command->verb && command->verb->name ? command->verb->name : "");
}

static void print_json(const struct command *command)
{
	json_t *answer = json_object();

	put_integer(answer, "schema", 1);
	json_object_update(answer, command->result);
	if (command->error.code)
		json_object_set_new(answer, "error", error_json(&command->error));
	json_dumpf(answer, stdout, JSON_INDENT(2));
	printf("\n");
	fflush(stdout);
	json_decref(answer);
}

void output_print(const struct command *command)
{
	if (command_json(command))
		print_json(command);
	else
		print_text(command);
}
