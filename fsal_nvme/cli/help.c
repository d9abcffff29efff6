/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Help, from the tables. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

#define INDENT 28
#define WIDTH 100

/* `text` in words, from column INDENT on. */
static void print_wrapped(FILE *to, const char *text)
{
	int column = INDENT;

	while (*text) {
		int length = (int)strcspn(text, " ");

		if (column > INDENT && column + 1 + length > WIDTH) {
			fprintf(to, "\n%*s", INDENT, "");
			column = INDENT;
		}
		column += fprintf(to, "%s%.*s", column > INDENT ? " " : "", length, text);
		text += length;
		text += strspn(text, " ");
	}
	fputc('\n', to);
}

static void print_row(FILE *to, const char *left, const char *right)
{
	int used = fprintf(to, "  %s", left);

	if (used >= INDENT) {
		fputc('\n', to);
		used = 0;
	}
	fprintf(to, "%*s", INDENT - used, "");
	print_wrapped(to, right);
}

static void print_parameter(FILE *to, const struct parameter *p)
{
	char left[80];

	if (p->flags & PARAMETER_PLACE)
		snprintf(left, sizeof(left), "%s", p->shown);
	else
		snprintf(left, sizeof(left), "--%s%s%s", p->name, p->shown ? " " : "",
			p->shown ? p->shown : "");
	print_row(to, left, p->help);
}

static void print_brief(FILE *to, const struct parameter *p)
{
	bool needed = p->flags & PARAMETER_NEEDED, place = p->flags & PARAMETER_PLACE;

	fprintf(to, " %s%s%s%s%s%s%s", needed ? "" : "[", place ? "" : "--",
		place ? p->shown : p->name, !place && p->shown ? " " : "",
		!place && p->shown ? p->shown : "", needed ? "" : "]",
		p->flags & PARAMETER_MANY ? "..." : "");
}

static void print_usage(FILE *to, const struct verb *verb)
{
	fprintf(to, "millrace %s%s%s", verb->noun, verb->name ? " " : "",
		verb->name ? verb->name : "");
	for (const struct parameter *p = verb->parameters; p->name; p++)
		if (!(p->flags & PARAMETER_PLACE))
			print_brief(to, p);
	for (const struct parameter *p = verb->parameters; p->name; p++)
		if (p->flags & PARAMETER_PLACE)
			print_brief(to, p);
	fputc('\n', to);
}

static void print_common(FILE *to)
{
	fprintf(to, "\nOptions of every verb:\n");
	for (const struct parameter *p = common_parameters; p->name; p++)
		print_parameter(to, p);
}

static void print_properties(FILE *to, const struct verb *verb)
{
	if (!verb->name || (strcmp(verb->name, "get") && strcmp(verb->name, "set")))
		return;
	fprintf(to, "\nProperties:\n");
	for (const struct property *p = property_table; p->name; p++)
		if (p->scopes & property_scope(verb->noun))
			print_row(to, p->name, p->rule);
	print_row(to, "NAME:NAME", "your own, any text");
}

static void print_verb(FILE *to, const struct verb *verb)
{
	fprintf(to, "Usage: ");
	print_usage(to, verb);
	fprintf(to, "\n%s%s", verb->noun, verb->name ? " " : "");
	fprintf(to, "%s: %s\n", verb->name ? verb->name : "", verb->help);
	if (verb->parameters->name)
		fputc('\n', to);
	for (const struct parameter *p = verb->parameters; p->name; p++)
		print_parameter(to, p);
	print_properties(to, verb);
	print_common(to);
}

void help_print(FILE *to, const struct verb *verb, const char *noun)
{
	if (verb) {
		print_verb(to, verb);
		return;
	}
	fprintf(to, "Usage: millrace %s VERB [OPTION]... [ARGUMENT]...\n\n", noun ? noun : "NOUN");
	for (const struct verb *v = verb_table; v->noun; v++) {
		char left[80];

		if (noun && strcmp(noun, v->noun))
			continue;
		snprintf(left, sizeof(left), "%s %s", v->noun, v->name ? v->name : "");
		print_row(to, left, v->help);
	}
	print_common(to);
	fprintf(to,
		"\n`millrace NOUN VERB --help` tells more about one of them, `millrace --version` "
		"which one this is.\n"
		"Exit: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused or busy, 5 "
		"degraded (status),\n      6 not permitted, 7 time-out.\n");
}
