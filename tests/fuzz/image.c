/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The decoder of images and their deltas. The input's first byte says in what pieces the rest is
 * fed (0: at once); what comes out must not depend on it.
 */
#include "fuzz.h"

#include <errno.h>

#include "pool/env.h"

enum { WHOLE, REFUSED, LATER, CUT, FULL, DELTA, ENTRY, DELETED, STOPPED };

struct fuzz_type fuzz_types[] = {
	[WHOLE] = {"a whole image", 0},
	[REFUSED] = {"refused", 0},
	[LATER] = {"of a later version", 0},
	[CUT] = {"not ended", 0},
	[FULL] = {"a full image's head", 0},
	[DELTA] = {"a delta's head", 0},
	[ENTRY] = {"an entry", 0},
	[DELETED] = {"a deleted key", 0},
	[STOPPED] = {"ended by the callback", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 64 << 10;

struct result {
	int rc, end;
	bool delta;
	uint64_t entries, sum;
};

static int head_done(void *data, const struct image_head *head)
{
	struct result *result = data;

	result->delta = head->kind == IMAGE_DELTA;
	fuzz_reach(result->delta ? DELTA : FULL);
	assert(result->delta || (head->kind == IMAGE_FULL && !head->before));
	assert(!head->part == !result->delta && head->before <= head->lsn);
	return head->volume == UINT32_MAX ? -ECANCELED : 0;
}

static int add(struct result *result, struct bytes bytes)
{
	const uint8_t *b = bytes.data;

	for (size_t i = 0; i < bytes.length; i++)
		result->sum = result->sum * 31 + b[i];
	return result->entries == 5000 ? -ECANCELED : 0;
}

static int entry(void *data, struct bytes key, struct bytes value)
{
	struct result *result = data;

	fuzz_reach(ENTRY);
	assert(key.length && key.length <= POOL_KEY_MAX);
	result->entries++;
	add(result, key);
	return add(result, value);
}

static int deleted(void *data, struct bytes key)
{
	struct result *result = data;

	fuzz_reach(DELETED);
	assert(result->delta && key.length && key.length <= POOL_KEY_MAX);
	result->entries++;
	result->sum++;
	return add(result, key);
}

static struct result decode(const uint8_t *data, size_t size, size_t piece)
{
	struct result result = {0};
	struct image_decoder decoder = {
		.head_done = head_done, .entry = entry, .deleted = deleted, .data = &result};

	while (size && !result.rc) {
		size_t part = piece && piece < size ? piece : size;

		result.rc = image_decode(&decoder, data, part);
		data += part;
		size -= part;
	}
	result.end = image_decode_end(&decoder);
	image_decoder_release(&decoder);
	return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct result result, other;

	if (!size)
		return 0;
	result = decode(data + 1, size - 1, data[0]);
	other = decode(data + 1, size - 1, 0);
	assert(result.rc == other.rc && result.sum == other.sum);
	assert(result.rc || result.end == other.end);
	assert(!result.rc || result.rc == -EBADMSG || result.rc == -ENOTSUP ||
		result.rc == -ECANCELED);
	if (result.rc)
		fuzz_reach(result.rc == -ENOTSUP   ? LATER
			   : result.rc == -EBADMSG ? REFUSED
						   : STOPPED);
	else
		fuzz_reach(result.end ? CUT : WHOLE);
	return 0;
}
