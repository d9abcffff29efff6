/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Rows of the pool's environment: u8 which, then the value of a segment's row, of a remap's, of a
 * client's or of a request's that was done. */
#include "fuzz.h"

#include <errno.h>

#include "pool/client.h"
#include "pool/done.h"
#include "pool/remap.h"

enum { SEGMENT, MOVED, IMAGE, REMAP, CLIENT, DONE, REFUSED };

struct fuzz_type fuzz_types[] = {
	[SEGMENT] = {"a segment of data", 0},
	[MOVED] = {"a moved one", 0},
	[IMAGE] = {"one of an image", 0},
	[REMAP] = {"a remap", 0},
	[CLIENT] = {"a client", 0},
	[DONE] = {"a request that was done", 0},
	[REFUSED] = {"refused", 0},
	{NULL, 0},
};
const size_t fuzz_longest = 2 + CLIENT_ROW_MAX;

static int try_segment(struct reader r)
{
	uint8_t value[SEGMENT_ROW_MAX];
	struct writer w = writer_on(value, sizeof(value));
	struct segment_row row, again;
	int rc = segment_row_decode(&row, &r);

	if (rc)
		return rc;
	fuzz_reach(row.state == SEGMENT_MOVED     ? MOVED
		   : row.purpose == PURPOSE_IMAGE ? IMAGE
						  : SEGMENT);
	assert(row.state == SEGMENT_MOVED ? !row.data && !row.parity : row.data && row.parity);
	segment_row_encode(&row, &w);
	assert(!w.overflow);
	r = reader_on(value, (size_t)(w.at - value));
	assert(!segment_row_decode(&again, &r) && !memcmp(&row, &again, sizeof(row)));
	return 0;
}

static int try_remap(struct reader r)
{
	struct remap_run run = {0}, again = {0};
	uint8_t value[REMAP_ROW_SIZE];
	struct writer w = writer_on(value, sizeof(value));
	int rc = remap_run_decode(&run, &r);

	if (rc)
		return rc;
	fuzz_reach(REMAP);
	assert(run.length && run.to <= INT64_MAX && run.length <= INT64_MAX);
	remap_run_encode(&run, &w);
	assert(!w.overflow && w.at == value + sizeof(value));
	r = reader_on(value, sizeof(value));
	assert(!remap_run_decode(&again, &r) && !memcmp(&run, &again, sizeof(run)));
	return 0;
}

static int try_client(struct reader r)
{
	struct client_row row = {0}, again = {0};
	uint8_t value[CLIENT_ROW_MAX];
	struct writer w = writer_on(value, sizeof(value));
	int rc = client_row_decode(&row, &r);

	if (rc)
		return rc;
	fuzz_reach(CLIENT);
	assert(row.epoch && row.length && row.length <= POOL_CLIENT_MAX);
	client_row_encode(&row, &w);
	assert(!w.overflow);
	r = reader_on(value, (size_t)(w.at - value));
	assert(!client_row_decode(&again, &r) && !memcmp(&row, &again, sizeof(row)));
	return 0;
}

static int try_done(struct reader r)
{
	struct done_row row = {0}, again = {0};
	uint8_t value[DONE_ROW_SIZE];
	struct writer w = writer_on(value, sizeof(value));
	int rc = done_row_decode(&row, &r);

	if (rc)
		return rc;
	fuzz_reach(DONE);
	assert(row.epoch);
	done_row_encode(&row, &w);
	assert(!w.overflow && w.at == value + sizeof(value));
	r = reader_on(value, sizeof(value));
	assert(!done_row_decode(&again, &r) && !memcmp(&row, &again, sizeof(row)));
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct reader r = reader_on(data, size);
	uint8_t which = get_u8(&r);
	int rc = which & 4   ? try_done(r)
		 : which & 2 ? try_client(r)
		 : which & 1 ? try_remap(r)
			     : try_segment(r);

	assert(!rc || rc == -EBADMSG);
	if (rc)
		fuzz_reach(REFUSED);
	return 0;
}
