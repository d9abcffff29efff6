/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * An error with its story, for what a person asked for: what happened, to which object, what to do.
 * Functions return the negative errno and fill a struct error where they take one; the command, the
 * control socket and the log print it, once.
 */
#ifndef MILLRACE_ERROR_H
#define MILLRACE_ERROR_H

struct error {
	int code; /* negative errno; 0: none */
	char object[160]; /* what it happened to: a path, a pool, a device */
	char message[480]; /* one sentence or two, no newline */
};

/*
 * Fills `error` (which may be NULL) and returns `code`, a negative errno. The first error is kept:
 * a later one does not replace it.
 */
int error_set(struct error *error, int code, const char *object, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void error_clear(struct error *error);

#endif
