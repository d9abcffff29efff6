/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The size of a directory tree, counted by a thread beside the job that reads it, so that the job
 * can tell how long it will take. A guess: what cannot be looked at is left out.
 */
#ifndef MILLRACE_MEASURE_H
#define MILLRACE_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

struct measure;

/* NULL where it cannot be started; the others take that. */
struct measure *measure_start(const char *path);
/* Bytes of all regular files, one with several names once; 0 until all were counted. */
uint64_t measure_bytes(struct measure *measure);
/* Stops it, wherever it is, and frees it. */
void measure_stop(struct measure *measure);

#endif
