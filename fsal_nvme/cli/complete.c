/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What a shell completes a line with: `millrace --complete WORD...`, of which the last is not
 * finished. Prints what it may become, a line each, or one line ":ACTION" where that is for the
 * shell to know (an action of bash's compgen: file, directory, user, group).
 */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

struct completion {
	struct command *command; /* its verb and common options, as far as the words have them */
	const char *noun;
	const struct parameter *awaited; /* an option whose value comes next */
	unsigned places; /* words by their place so far */
	const char *word; /* the one to complete */
};

/* --- the words before -------------------------------------------------------------------- */

static const struct parameter *option_find(const struct completion *c, const char *name)
{
	const struct verb *verb = c->command->verb;
	const struct parameter *p = verb ? parameter_find(verb->parameters, name) : NULL;

	return p && !(p->flags & PARAMETER_PLACE) ? p : parameter_find(common_parameters, name);
}

static void take_value(struct completion *c, const char *word)
{
	struct error error = {0};

	if (parameter_find(common_parameters, c->awaited->name) == c->awaited)
		argument_put(c->command->common, c->awaited, word, &error);
	c->awaited = NULL;
}

/* "name" or "name=value". */
static void take_option(struct completion *c, const char *text)
{
	const char *equals = strchr(text, '=');
	const struct parameter *p;
	char name[64];

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
	p = option_find(c, name);
	c->awaited = p && p->kind != VALUE_FLAG ? p : NULL;
	if (equals && c->awaited)
		take_value(c, equals + 1);
}

static void take_word(struct completion *c, const char *word)
{
	if (c->awaited) {
		take_value(c, word);
	} else if (!strncmp(word, "--", 2)) {
		take_option(c, word + 2);
	} else if (!c->noun) {
		c->noun = word;
		c->command->verb = verb_find(word, NULL);
	} else if (!c->command->verb) {
		c->command->verb = verb_find(c->noun, word);
	} else {
		c->places++;
	}
}

/* --- what may stand there ---------------------------------------------------------------- */

/* What stands there in full is offered again, so that a space follows, but where `end` asks for
 * more. */
static void offer(const struct completion *c, const char *text, const char *end)
{
	char line[300];

	snprintf(line, sizeof(line), "%s%s", text, end);
	if (!strncmp(line, c->word, strlen(c->word)) && (!*end || strcmp(line, c->word)))
		puts(line);
}

static void offer_pools(struct completion *c, const char *end)
{
	json_t *names = cache_names(c->command), *name;
	size_t i;

	json_array_foreach(names, i, name)
	{
		offer(c, json_string_value(name), end);
	}
	json_decref(names);
}

static void pools(struct completion *c)
{
	offer_pools(c, "");
}

/* Of the noun, in the pool that the word names. */
static void volumes_of(struct completion *c, int length)
{
	json_t *args = json_pack("{s:s%}", "pool", c->word, (size_t)length);
	json_t *result = json_object(), *row;
	struct error error = {0};
	char plural[32];
	size_t i;

	snprintf(plural, sizeof(plural), "%ss", c->noun);
	pool_verb(c->command, verb_find(c->noun, "list"), args, result, &error);
	json_array_foreach(json_object_get(result, plural), i, row)
	{
		offer(c, json_string_value(json_object_get(row, "name")), "");
	}
	json_decref(result);
	json_decref(args);
}

static void volumes(struct completion *c)
{
	const char *slash = strchr(c->word, '/');

	if (slash)
		volumes_of(c, (int)(slash - c->word));
	else
		offer_pools(c, "/");
}

static void offer_properties(struct completion *c, const char *end)
{
	for (const struct property *p = property_table; p->name; p++)
		if (p->scopes & property_scope(c->noun))
			offer(c, p->name, end);
}

static void properties(struct completion *c)
{
	offer_properties(c, "");
}

static void assignments(struct completion *c)
{
	offer_properties(c, "=");
}

static void files(struct completion *c)
{
	puts(":file");
}

static void directories(struct completion *c)
{
	puts(":directory");
}

static void users(struct completion *c)
{
	puts(":user");
}

static void groups(struct completion *c)
{
	puts(":group");
}

/* By what help calls a value. */
static const struct {
	const char *shown;
	void (*offer)(struct completion *c);
} values[] = {
	{"POOL", pools},
	{"POOL/NAME", volumes},
	{"PROPERTY", properties},
	{"PROPERTY=VALUE", assignments},
	{"DEVICE[@DOMAIN]", files},
	{"DIR", directories},
	{"FILE", files},
	{"USER", users},
	{"GROUP", groups},
};

static void offer_value(struct completion *c, const struct parameter *p)
{
	for (unsigned i = 0; p->shown && i < sizeof(values) / sizeof(values[0]); i++)
		if (!strcmp(values[i].shown, p->shown))
			values[i].offer(c);
}

static void offer_place(struct completion *c)
{
	unsigned left = c->places;

	for (const struct parameter *p = c->command->verb->parameters; p->name; p++) {
		if (!(p->flags & PARAMETER_PLACE))
			continue;
		if (left && !(p->flags & PARAMETER_MANY)) {
			left--;
			continue;
		}
		offer_value(c, p);
		return;
	}
}

static void offer_options(const struct completion *c, const struct parameter *table)
{
	char option[80];

	for (const struct parameter *p = table; p && p->name; p++) {
		snprintf(option, sizeof(option), "--%s", p->name);
		if (!(p->flags & PARAMETER_PLACE))
			offer(c, option, "");
	}
}

static void offer_nouns(const struct completion *c)
{
	for (const struct verb *v = verb_table; v->noun; v++)
		if (v == verb_table || strcmp(v[-1].noun, v->noun))
			offer(c, v->noun, "");
}

static void offer_verbs(const struct completion *c)
{
	for (const struct verb *v = verb_table; v->noun; v++)
		if (!strcmp(v->noun, c->noun))
			offer(c, v->name, "");
}

void completion_print(struct command *command, int count, char **words)
{
	struct completion c = {.command = command, .word = count ? words[count - 1] : ""};

	command->common = json_object();
	for (int i = 0; i < count - 1; i++)
		take_word(&c, words[i]);
	if (c.awaited) {
		offer_value(&c, c.awaited);
	} else if (c.word[0] == '-') {
		offer_options(&c, command->verb ? command->verb->parameters : NULL);
		offer_options(&c, common_parameters);
	} else if (!c.noun) {
		offer_nouns(&c);
	} else if (!command->verb) {
		offer_verbs(&c);
	} else {
		offer_place(&c);
	}
}
