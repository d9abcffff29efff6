/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* PROPERTY=VALUE as a user types it; the first byte chooses the scope. */
#include "fuzz.h"

#include <errno.h>
#include <stdio.h>

#include "cli/verb.h"

enum { PROPERTIES = 16, OWN = PROPERTIES, CLIENTS, REFUSED };

/* A row for each property of the table. */
struct fuzz_type fuzz_types[REFUSED + 2];
const size_t fuzz_longest = 2 * PROPERTY_VALUE_MAX;

static void fill_types(void)
{
	for (unsigned i = 0; i < PROPERTIES; i++)
		fuzz_types[i] = (struct fuzz_type){"(none)", 1};
	for (unsigned i = 0; property_table[i].name; i++) {
		assert(i < PROPERTIES);
		fuzz_types[i] = (struct fuzz_type){property_table[i].name, 0};
	}
	fuzz_types[OWN].name = "a user's own";
	fuzz_types[CLIENTS].name = "two client rules or more";
	fuzz_types[REFUSED].name = "refused";
}

static void reach_name(const char *name)
{
	unsigned i = 0;

	while (property_table[i].name && strcmp(property_table[i].name, name))
		i++;
	fuzz_reach(property_table[i].name ? i : OWN);
}

static void try_rules(const char *value)
{
	struct client_rule rules[CLIENT_RULES_MAX];
	unsigned count;

	if (client_rules_parse(value, rules, &count, NULL))
		return;
	assert(count <= CLIENT_RULES_MAX);
	if (count > 1)
		fuzz_reach(CLIENTS);
}

/* A value that was made normal stays as it is. */
static void check(const char *name, const char *value, unsigned scope)
{
	char text[PROPERTY_NAME_MAX + PROPERTY_VALUE_MAX + 2], again[PROPERTY_VALUE_MAX + 1];
	char same[PROPERTY_NAME_MAX + 1];

	assert(strlen(name) <= PROPERTY_NAME_MAX && strlen(value) <= PROPERTY_VALUE_MAX);
	snprintf(text, sizeof(text), "%s=%s", name, value);
	assert(!property_parse(text, scope, same, again, NULL));
	assert(!strcmp(value, again) && !strcmp(name, same));
	try_rules(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char name[PROPERTY_NAME_MAX + 1], value[PROPERTY_VALUE_MAX + 1], *text;
	struct error error = {0};
	unsigned scope;

	if (!fuzz_types[OWN].name)
		fill_types();
	if (!size)
		return 0;
	scope = 1u << data[0] % 3;
	text = fuzz_frame(data + 1, size - 1, size);
	if (property_parse(text, scope, name, value, &error)) {
		assert(error.code);
		fuzz_reach(REFUSED);
	} else {
		reach_name(name);
		check(name, value, scope);
	}
	free(text);
	return 0;
}
