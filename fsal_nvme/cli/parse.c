/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* argv into a verb and its arguments, by the tables. */
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "common/size.h"

#define OPTIONS_MAX 32

const struct parameter common_parameters[] = {
	{"json", VALUE_FLAG, 0, 0, 0, NULL, "answer in JSON"},
	{"device-dir", VALUE_PATH, PARAMETER_MANY, 0, 0, "DIR",
		"look for devices among the files of DIR, too; may be repeated"},
	{"host", VALUE_TEXT, 0, 0, 0, "NAME", "act as this host (the name of this one)"},
	{"state-dir", VALUE_PATH, 0, 0, 0, "DIR", "where devices are remembered (" STATE_DIR ")"},
	{"run-dir", VALUE_PATH, 0, 0, 0, "DIR", "where control sockets are (" RUN_DIR ")"},
	{"help", VALUE_FLAG, 0, 0, 0, NULL, "show this"},
	{NULL, VALUE_TEXT, 0, 0, 0, NULL, NULL},
};

/* --- values ------------------------------------------------------------------------------ */

static int parse_unsigned(const char *text, int base, uint64_t *number, const char **rest)
{
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return -EINVAL;
	errno = 0;
	*number = strtoull(text, &end, base);
	*rest = end;
	return errno ? -errno : 0;
}

static int parse_plain(const char *text, int base, uint64_t *number)
{
	const char *rest;
	int rc = parse_unsigned(text, base, number, &rest);

	return rc ? rc : *rest ? -EINVAL : 0;
}

static int parse_user(const char *text, uint64_t *number)
{
	const struct passwd *user;

	if (!parse_plain(text, 10, number))
		return 0;
	user = getpwnam(text);
	if (user)
		*number = user->pw_uid;
	return user ? 0 : -ENOENT;
}

static int parse_group(const char *text, uint64_t *number)
{
	const struct group *group;

	if (!parse_plain(text, 10, number))
		return 0;
	group = getgrnam(text);
	if (group)
		*number = group->gr_gid;
	return group ? 0 : -ENOENT;
}

static int parse_number(enum value_kind kind, const char *text, uint64_t *number)
{
	switch (kind) {
	case VALUE_SIZE:
		return size_parse(text, number);
	case VALUE_MODE:
		return parse_plain(text, 8, number);
	case VALUE_USER:
		return parse_user(text, number);
	case VALUE_GROUP:
		return parse_group(text, number);
	default:
		return parse_plain(text, 10, number);
	}
}

static const char *const number_rules[] = {
	[VALUE_NUMBER] = "it must be a whole number",
	[VALUE_SIZE] = "it must be a number of bytes, with K, M, G or T for powers of 1024",
	[VALUE_MODE] = "it must be an octal mode, such as 0755",
	[VALUE_USER] = "there is no such user; a number will do",
	[VALUE_GROUP] = "there is no such group; a number will do",
};

static json_t *absolute_path(const char *text)
{
	char *here, *joined = NULL;
	json_t *value = NULL;

	if (text[0] == '/')
		return json_string(text);
	here = text[0] ? getcwd(NULL, 0) : NULL;
	if (here && asprintf(&joined, "%s/%s", here, text) >= 0)
		value = json_string(joined);
	free(here);
	free(joined);
	return value;
}

/* As the user writes it: an option, or what stands in its place. */
static const char *name_of(const struct parameter *p, char *name, size_t size)
{
	snprintf(name, size, "%s%s", p->flags & PARAMETER_PLACE ? "" : "--",
		p->flags & PARAMETER_PLACE ? p->shown : p->name);
	return name;
}

static int parse_value(
	const struct parameter *p, const char *text, json_t **value, struct error *error)
{
	char name[64];
	uint64_t number;

	*value = NULL;
	if (p->kind == VALUE_FLAG)
		*value = json_true();
	else if (p->kind == VALUE_TEXT)
		*value = *text ? json_string(text) : NULL;
	else if (p->kind == VALUE_PATH)
		*value = absolute_path(text);
	else if (parse_number(p->kind, text, &number) || number > INT64_MAX)
		return error_set(error, -EINVAL, name_of(p, name, sizeof(name)), "'%.64s': %s",
			text, number_rules[p->kind]);
	else
		*value = json_integer((json_int_t)number);
	return *value ? 0
		      : error_set(error, -EINVAL, p->name,
				"%s must be text in UTF-8, and not empty", p->shown);
}

int argument_put(json_t *args, const struct parameter *p, const char *text, struct error *error)
{
	json_t *value, *list;
	int rc = parse_value(p, text, &value, error);

	if (rc)
		return rc;
	if (!(p->flags & PARAMETER_MANY))
		return json_object_set_new(args, p->name, value);
	list = json_object_get(args, p->name);
	if (!list) {
		list = json_array();
		json_object_set_new(args, p->name, list);
	}
	return json_array_append_new(list, value);
}

/* --- options ----------------------------------------------------------------------------- */

struct option_list {
	struct option options[OPTIONS_MAX + 1];
	const struct parameter *parameters[OPTIONS_MAX];
	unsigned count;
};

static void list_add(struct option_list *list, const struct parameter *table)
{
	for (const struct parameter *p = table; p && p->name; p++) {
		if ((p->flags & PARAMETER_PLACE) || list->count == OPTIONS_MAX)
			continue;
		list->options[list->count] = (struct option){.name = p->name,
			.has_arg = p->kind == VALUE_FLAG ? no_argument : required_argument};
		list->parameters[list->count++] = p;
	}
}

static bool is_common(const struct parameter *p)
{
	return p >= common_parameters &&
	       p < common_parameters + sizeof(common_parameters) / sizeof(common_parameters[0]);
}

/* An option that takes one value is not given two: the user would not know which one counts. */
static int check_once(const json_t *args, const struct parameter *p, struct error *error)
{
	char name[64];

	if (p->kind == VALUE_FLAG || (p->flags & PARAMETER_MANY) || !json_object_get(args, p->name))
		return 0;
	return error_set(
		error, -EINVAL, name_of(p, name, sizeof(name)), "it is given more than once");
}

static int put_option(
	json_t *args, const struct parameter *p, const char *text, struct error *error)
{
	int rc = check_once(args, p, error);

	return rc ? rc : argument_put(args, p, text, error);
}

/* All options; those that belong to no option are moved behind `optind`, or end it (leading). */
static int read_options(struct command *c, int argc, char **argv, bool leading)
{
	struct option_list list = {.count = 0};
	int found, index, rc = 0;

	list_add(&list, common_parameters);
	list_add(&list, c->verb ? c->verb->parameters : NULL);
	opterr = 0;
	optind = 0;
	while (!rc && (found = getopt_long(
			       argc, argv, leading ? "+:h" : ":h", list.options, &index)) != -1) {
		if (found == 'h')
			json_object_set_new(c->common, "help", json_true());
		else if (found == ':')
			rc = error_set(
				&c->error, -EINVAL, argv[optind - 1], "this option needs a value");
		else if (found == '?')
			rc = error_set(&c->error, -EINVAL, argv[optind - 1],
				"there is no such option here");
		else
			rc = put_option(is_common(list.parameters[index]) ? c->common : c->args,
				list.parameters[index], optarg, &c->error);
	}
	return rc;
}

static int read_places(struct command *c, int argc, char **argv)
{
	const struct parameter *p = c->verb->parameters;
	int rc = 0;

	for (int i = optind; !rc && i < argc; i++) {
		while (p->name && !(p->flags & PARAMETER_PLACE))
			p++;
		if (!p->name)
			return error_set(
				&c->error, -EINVAL, argv[i], "this is one argument too many");
		rc = argument_put(c->args, p, argv[i], &c->error);
		if (!(p->flags & PARAMETER_MANY))
			p++;
	}
	return rc;
}

/* --- noun and verb ----------------------------------------------------------------------- */

static bool noun_exists(const char *noun)
{
	for (const struct verb *v = verb_table; v->noun; v++)
		if (!strcmp(v->noun, noun))
			return true;
	return false;
}

static bool noun_is_verb(const char *noun)
{
	return verb_find(noun, NULL) != NULL;
}

static int read_noun(struct command *c, int *argc, char ***argv, const char **noun)
{
	const char *name;

	*noun = NULL;
	if (*argc < 1)
		return error_set(&c->error, -EINVAL, "millrace", "it needs a noun and a verb");
	if (!noun_exists((*argv)[0]))
		return error_set(&c->error, -EINVAL, (*argv)[0], "there is no such command");
	*noun = (*argv)[0];
	if (noun_is_verb(*noun)) {
		c->verb = verb_find(*noun, NULL);
		return 0;
	}
	++*argv;
	--*argc;
	name = *argc ? (*argv)[0] : "";
	c->verb = verb_find(*noun, name);
	if (c->verb)
		return 0;
	if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
		json_object_set_new(c->common, "help", json_true());
		return 0;
	}
	return error_set(&c->error, -EINVAL, *noun,
		*name && *name != '-' ? "there is no verb '%s' of it" : "a verb must follow", name);
}

int command_parse(struct command *c, int argc, char **argv, bool *help, const char **noun)
{
	int rc;

	*noun = NULL;
	*help = false;
	c->args = json_object();
	c->common = json_object();
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--json"))
			json_object_set_new(c->common, "json", json_true());
	c->hint_help = true;
	rc = read_options(c, argc, argv, true);
	*help = json_object_get(c->common, "help") != NULL;
	if (rc || *help)
		return rc;
	argc -= optind;
	argv += optind;
	rc = read_noun(c, &argc, &argv, noun);
	if (!rc)
		rc = read_options(c, argc, argv, false);
	*help = json_object_get(c->common, "help") != NULL;
	if (rc || *help)
		return rc;
	rc = read_places(c, argc, argv);
	if (!rc)
		rc = arguments_check(c->verb, c->args, &c->error);
	c->hint_help = rc != 0;
	return rc;
}
