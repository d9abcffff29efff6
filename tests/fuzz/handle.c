/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* File handles as clients send them. */
#include "fuzz.h"

#include <errno.h>

#include "volume/volume.h"

enum { GOOD, REFUSED };

struct fuzz_type fuzz_types[] = {{"a good handle", 0}, {"refused", 0}, {NULL, 0}};
const size_t fuzz_longest = 64;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct volume_handle handle;
	int rc = volume_handle_decode(data, size, &handle);

	assert(!rc || rc == -EBADMSG);
	assert(rc || (size == VOLUME_HANDLE_SIZE && handle.volume && handle.ino));
	fuzz_reach(rc ? REFUSED : GOOD);
	return 0;
}
