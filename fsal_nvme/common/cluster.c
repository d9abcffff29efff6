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

/* Lines of the file by which this host's cluster finds what it fences by: uuids, and paths. */
static bool any_line(bool (*is)(const char *line, const char *wanted), const char *wanted)
{
	FILE *file = host_is_member() ? fopen("/etc/millrace/fencing", "re") : NULL;
	bool found = false;
	char line[PATH_MAX];

	while (file && !found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		found = is(line, wanted);
	}
	if (file)
		fclose(file);
	return found;
}

static bool is_uuid(const char *line, const char *uuid)
{
	return !strcmp(line, uuid);
}

bool host_fences_by(const uint8_t uuid[16])
{
	char text[37];
	size_t used = 0;

	for (unsigned i = 0; i < 16; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used,
			i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
	return any_line(is_uuid, text);
}

/* /sys/devices/.../nvme0n1/nvme0n1p1 */
static bool is_partition_of(const char *part, const char *disk)
{
	char path[PATH_MAX], *real, *end = NULL;
	bool is;

	snprintf(path, sizeof(path), "/sys/class/block/%s", strrchr(part, '/') + 1);
	real = realpath(path, NULL);
	if (real)
		end = strrchr(real, '/');
	if (end)
		*end = 0;
	end = end ? strrchr(real, '/') : NULL;
	is = end && !strcmp(end, strrchr(disk, '/'));
	free(real);
	return is;
}

/* As an admin has said it. */
static bool is_on(const char *line, const char *device)
{
	char *real = *line == '/' ? realpath(line, NULL) : NULL;
	bool is = real && (!strcmp(real, device) || is_partition_of(real, device));

	free(real);
	return is;
}

bool host_fences_over(const char *path)
{
	char *real = realpath(path, NULL);
	bool found = real && any_line(is_on, real);

	free(real);
	return found;
}
