/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The payload of a record of changes: what transactions write and replay reads. */
#include "fuzz.h"

#include <errno.h>

#include "pool/env.h"

enum { GOOD, REFUSED, PUT, DELETE, OF_POOL, OF_VOLUME, STOPPED };

struct fuzz_type fuzz_types[] = {
	[GOOD] = {"a good record", 0},
	[REFUSED] = {"refused", 0},
	[PUT] = {"a put", 0},
	[DELETE] = {"a delete", 0},
	[OF_POOL] = {"a change of the pool", 0},
	[OF_VOLUME] = {"a change of a volume", 0},
	[STOPPED] = {"ended by the callback", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 64 << 10;

struct seen {
	const uint8_t *at, *end;
	unsigned left; /* changes until the callback says that it is enough */
};

static int each(void *data, const struct change *change)
{
	struct seen *seen = data;
	const uint8_t *key = change->key.data, *value = change->value.data;

	assert(change->key.length && change->key.length <= POOL_KEY_MAX);
	assert(key >= seen->at && value == key + change->key.length);
	assert(value + change->value.length <= seen->end);
	assert(change->type == CHANGE_PUT || !change->value.length);
	seen->at = value + change->value.length;
	fuzz_reach(change->type == CHANGE_PUT ? PUT : DELETE);
	fuzz_reach(change->volume ? OF_VOLUME : OF_POOL);
	return seen->left-- ? 0 : -ECANCELED;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen seen = {data, data + size, 40};
	int rc = changes_decode(data, size, each, &seen);

	assert(!rc || rc == -EBADMSG || rc == -ECANCELED);
	fuzz_reach(!rc ? GOOD : rc == -EBADMSG ? REFUSED : STOPPED);
	return 0;
}
