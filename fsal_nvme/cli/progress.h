/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Progress of long jobs as one line of text: how far, how quick, how long it still takes.
 *
 * A job reports {"what"} or {"what","done"}, in bytes, with "total" once that is known, and "files"
 * where it counts them (docs/json/progress.json). A new "what" is a new job.
 */
#ifndef MILLRACE_PROGRESS_H
#define MILLRACE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* Zeroed: nothing was reported yet. */
struct progress_meter {
	char what[300];
	double began, last; /* seconds: of the job, of its last line */
	double done; /* at the last line */
	double rate; /* bytes a second, of about the last PROGRESS_WINDOW */
};
#define PROGRESS_WINDOW 10.0 /* seconds */
#define PROGRESS_PAUSE 0.5 /* between lines */

/* True: `text` is the line to show now; false: it is too early for another one. */
bool progress_line(
	struct progress_meter *meter, double now, const json_t *progress, char *text, size_t size);

/* "1.5G", in powers of 1024; returns `text`. */
const char *bytes_text(uint64_t bytes, char *text, size_t size);

#endif
