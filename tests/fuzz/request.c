/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A line that came over the control socket. */
#include "fuzz.h"

#include <errno.h>
#include <stdio.h>

#include "cli/verb.h"

enum { VERBS = 64, REFUSED = VERBS, EXCLUSIVE };

/* A row for each verb that a served pool runs, from the table of verbs. */
struct fuzz_type fuzz_types[VERBS + 3];
const size_t fuzz_longest = CONTROL_REQUEST_MAX + 64;

static void fill_types(void)
{
	unsigned count = 0;

	for (const struct verb *verb = verb_table; verb->noun; verb++, count++) {
		static char names[VERBS][40];

		assert(count < VERBS);
		snprintf(names[count], sizeof(names[count]), "%s %s", verb->noun,
			verb->name ? verb->name : "");
		fuzz_types[count].name = names[count];
		if (!verb->run)
			fuzz_types[count].reached = 1; /* the command's own */
	}
	for (; count < VERBS; count++)
		fuzz_types[count] = (struct fuzz_type){"(none)", 1};
	fuzz_types[REFUSED].name = "refused";
	fuzz_types[EXCLUSIVE].name = "not on a served pool";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct control_request request;
	struct error error = {0};
	int rc;

	if (!fuzz_types[0].name)
		fill_types();
	rc = control_request_parse((const char *)data, size, &request, &error);
	assert(rc <= 0 && (!rc || error.code));
	if (!rc) {
		fuzz_reach((unsigned)(request.verb - verb_table));
		control_request_free(&request);
	} else {
		fuzz_reach(rc == -EBUSY ? EXCLUSIVE : REFUSED);
	}
	return 0;
}
