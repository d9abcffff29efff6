/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Labels, with the rows of segments, images and spans in them. */
#include "fuzz.h"

#include <errno.h>

#include "pool/format.h"

enum {
	GOOD,
	REFUSED,
	LATER,
	EXPORTED,
	ASSIGNED,
	OPEN,
	DEVICE_IS_ACTIVE,
	DEVICE_IS_MISSING,
	DEVICE_IS_DROPPED,
	NO_ROOT,
	FULL_ROOT,
	DELTA_ROOT,
	SEGMENT_IS_RESERVED,
	SEGMENT_IS_OPEN,
	SEGMENT_IS_CLOSED,
	SPAN_ENDED,
	SPAN_LAST,
	OWNER_PLACED,
	OWNER_NOT_PLACED,
	CLAIM,
};

struct fuzz_type fuzz_types[] = {
	[GOOD] = {"a good label", 0},
	[REFUSED] = {"refused", 0},
	[LATER] = {"of a later version", 0},
	[EXPORTED] = {"exported", 0},
	[ASSIGNED] = {"assigned", 0},
	[OPEN] = {"open", 0},
	[DEVICE_IS_ACTIVE] = {"an active device", 0},
	[DEVICE_IS_MISSING] = {"a missing device", 0},
	[DEVICE_IS_DROPPED] = {"a dropped device", 0},
	[NO_ROOT] = {"no root", 0},
	[FULL_ROOT] = {"a full image as root", 0},
	[DELTA_ROOT] = {"a delta as root", 0},
	[SEGMENT_IS_RESERVED] = {"a reserved segment", 0},
	[SEGMENT_IS_OPEN] = {"an open segment", 0},
	[SEGMENT_IS_CLOSED] = {"a closed segment", 0},
	[SPAN_ENDED] = {"a span that another follows", 0},
	[SPAN_LAST] = {"the last span", 0},
	[OWNER_PLACED] = {"an earlier owner whose place is known", 0},
	[OWNER_NOT_PLACED] = {"an earlier owner whose place is not known", 0},
	[CLAIM] = {"a claim", 0},
	{NULL, 0},
};
const size_t fuzz_longest = LABEL_BODY;

static void count(const struct label *label)
{
	fuzz_reach(EXPORTED + label->state - LABEL_EXPORTED);
	fuzz_reach(NO_ROOT + label->root.kind);
	for (unsigned i = 0; i < label->device_count; i++)
		fuzz_reach(DEVICE_IS_ACTIVE + label->devices[i].state);
	for (unsigned i = 0; i < label->root_segment_count; i++)
		fuzz_reach(SEGMENT_IS_RESERVED + label->root_segments[i].state - SEGMENT_RESERVED);
	for (unsigned i = 0; i < label->span_count; i++)
		fuzz_reach(i + 1 < label->span_count ? SPAN_ENDED : SPAN_LAST);
	for (unsigned i = 0; i < label->other_count; i++)
		fuzz_reach(label->others[i].to ? OWNER_PLACED : OWNER_NOT_PLACED);
	if (label->repeats.sequence)
		fuzz_reach(CLAIM);
}

/* What was read can be written, and read again as the same. */
static void check(const struct label *label)
{
	struct label *again = calloc(1, sizeof(*again));
	uint8_t *body = malloc(LABEL_BODY), *second = malloc(LABEL_BODY);

	assert(strlen(label->name) <= POOL_NAME_MAX && label->device_count <= POOL_DEVICES_MAX);
	assert(!label_encode(label, body));
	assert(!label_decode(again, body));
	assert(!label_encode(again, second) && !memcmp(body, second, LABEL_BODY));
	free(again);
	free(body);
	free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	void *body = fuzz_frame(data, size, LABEL_BODY);
	struct label *label = calloc(1, sizeof(*label));
	int rc;

	format_waive_checksums = true;
	rc = label_decode(label, body);
	assert(!rc || rc == -EBADMSG || rc == -ENOTSUP);
	fuzz_reach(!rc ? GOOD : rc == -ENOTSUP ? LATER : REFUSED);
	if (!rc) {
		count(label);
		check(label);
	}
	free(label);
	free(body);
	return 0;
}
