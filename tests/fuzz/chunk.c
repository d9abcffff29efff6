/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What stands in a chunk before its cells: the header and the checksum pages, told by magic. */
#include "fuzz.h"

#include <errno.h>

#include "pool/format.h"

enum { HEADER, PAGE, PAGE_EMPTY, PAGE_FULL, REFUSED, LATER };

struct fuzz_type fuzz_types[] = {
	[HEADER] = {"a good chunk header", 0},
	[PAGE] = {"a good checksum page", 0},
	[PAGE_EMPTY] = {"an empty checksum page", 0},
	[PAGE_FULL] = {"a full checksum page", 0},
	[REFUSED] = {"refused", 0},
	[LATER] = {"of a later version", 0},
	{NULL, 0},
};
const size_t fuzz_longest = BLOCK_SIZE;

static int try_header(void *block)
{
	struct chunk_header header, again;
	int rc = chunk_header_decode(&header, block);

	if (rc)
		return rc;
	fuzz_reach(HEADER);
	assert(header.index < header.data + header.parity);
	assert(!chunk_header_encode(&header, block));
	assert(!chunk_header_decode(&again, block) && !memcmp(&header, &again, sizeof(again)));
	return 0;
}

static int try_page(void *block)
{
	struct checksum_page *page = calloc(1, sizeof(*page)), *again = calloc(1, sizeof(*page));
	int rc = checksum_page_decode(page, block);

	if (!rc) {
		fuzz_reach(!page->count                  ? PAGE_EMPTY
			   : page->count == PAGE_ENTRIES ? PAGE_FULL
							 : PAGE);
		assert(page->count <= PAGE_ENTRIES);
		assert(!checksum_page_encode(page, block));
		assert(!checksum_page_decode(again, block));
		assert(!memcmp(page, again, sizeof(*page)));
	}
	free(page);
	free(again);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	void *block = fuzz_frame(data, size, BLOCK_SIZE);
	int rc, rc_page;

	format_waive_checksums = true;
	rc = try_header(block);
	rc_page = try_page(block);
	assert(!rc || rc == -EBADMSG || rc == -ENOTSUP);
	assert(!rc_page || rc_page == -EBADMSG || rc_page == -ENOTSUP);
	if (rc == -ENOTSUP || rc_page == -ENOTSUP)
		fuzz_reach(LATER);
	else if (rc && rc_page)
		fuzz_reach(REFUSED);
	free(block);
	return 0;
}
