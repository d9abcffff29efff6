/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Between verify.c, which reads all bytes, and verify_rows.c, which looks at all rows. */
#ifndef MILLRACE_VOLUME_VERIFY_H
#define MILLRACE_VOLUME_VERIFY_H

#include "volume/internal.h"

struct verify {
	struct volume *volume;
	const struct volume_verify_options *options;
	struct volume_verify_report *report;
	uint64_t total; /* bytes that the header counts */
};

/* Looks at all rows in one view; contradictions are counted and logged. */
int verify_rows(struct verify *verify);

#endif
