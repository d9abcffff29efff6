/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cluster.h"

bool host_is_member(void)
{
	return !access("/etc/millrace/cluster", F_OK);
}

/* Paths are kept as an admin has said them. */
static bool is_device(const char *line, const char *device)
{
	char *real = *line == '/' ? realpath(line, NULL) : NULL;
	bool is = !strcmp(real ? real : line, device);

	free(real);
	return is;
}

bool host_fences_by(const char *device)
{
	FILE *file = fopen("/etc/millrace/fencing", "re");
	bool found = false;
	char line[PATH_MAX];

	while (file && !found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		found = is_device(line, device);
	}
	if (file)
		fclose(file);
	return found;
}
