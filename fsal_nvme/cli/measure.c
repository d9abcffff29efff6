/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "cli/measure.h"

#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DESCRIPTORS 16 /* directories that are open at once */

struct measure {
	char *path;
	double bytes; /* each name of a file adds its share */
	atomic_bool stopped;
	_Atomic uint64_t result;
	pthread_t thread;
};

static _Thread_local struct measure *current; /* nftw() passes nothing on */

static int count(const char *path, const struct stat *st, int kind, struct FTW *place)
{
	if (kind == FTW_F && S_ISREG(st->st_mode) && st->st_nlink)
		current->bytes += (double)st->st_size / (double)st->st_nlink;
	return atomic_load(&current->stopped);
}

static void *run(void *data)
{
	current = data;
	if (!nftw(current->path, count, DESCRIPTORS, FTW_PHYS))
		atomic_store(&current->result, (uint64_t)(current->bytes + 0.5));
	return NULL;
}

/* So that a symbolic link to a directory is followed, as the job does. */
static char *with_dot(const char *path)
{
	char *joined;

	return asprintf(&joined, "%s/.", path) < 0 ? NULL : joined;
}

struct measure *measure_start(const char *path)
{
	struct measure *measure = calloc(1, sizeof(*measure));

	if (measure)
		measure->path = with_dot(path);
	if (measure && measure->path && !pthread_create(&measure->thread, NULL, run, measure))
		return measure;
	if (measure)
		free(measure->path);
	free(measure);
	return NULL;
}

uint64_t measure_bytes(struct measure *measure)
{
	return measure ? atomic_load(&measure->result) : 0;
}

void measure_stop(struct measure *measure)
{
	if (!measure)
		return;
	atomic_store(&measure->stopped, true);
	pthread_join(measure->thread, NULL);
	free(measure->path);
	free(measure);
}
