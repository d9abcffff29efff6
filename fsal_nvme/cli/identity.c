/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "cli/identity.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* The first line of an attribute, without spaces at its ends; false: there is none, or it is empty.
 */
static bool read_line(const char *directory, const char *leaf, char *line, int size)
{
	char path[512];
	size_t length, blank;
	FILE *file;

	snprintf(path, sizeof(path), "%.400s/%s", directory, leaf);
	file = fopen(path, "re");
	if (!file)
		return false;
	if (!fgets(line, size, file))
		line[0] = 0;
	fclose(file);
	length = strlen(line);
	while (length && isspace((unsigned char)line[length - 1]))
		line[--length] = 0;
	blank = strspn(line, " \t");
	memmove(line, line + blank, length - blank + 1);
	return line[0];
}

/* A partition's are its disk's, in the directory above. */
static void drive_name(const char *directory, char *name, int size)
{
	static const char *const leaves[] = {"wwid", "device/wwid", "serial", "device/serial",
		"../wwid", "../device/wwid", "../serial", "../device/serial"};

	for (unsigned i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++)
		if (read_line(directory, leaves[i], name, size))
			return;
	name[0] = 0;
}

void identity_of_block(const char *directory, char text[IDENTITY_MAX])
{
	char name[200], partition[24], sectors[24];

	drive_name(directory, name, sizeof(name));
	if (!read_line(directory, "partition", partition, sizeof(partition)))
		partition[0] = 0;
	if (!read_line(directory, "size", sectors, sizeof(sectors)))
		sectors[0] = 0;
	text[0] = 0;
	if (sectors[0])
		snprintf(text, IDENTITY_MAX, "%s%s%s%s%s sectors", name,
			partition[0] ? " part " : "", partition,
			name[0] || partition[0] ? ", " : "", sectors);
}

void identity_of(const char *path, char text[IDENTITY_MAX])
{
	char directory[64];
	struct stat st;

	text[0] = 0;
	if (stat(path, &st))
		return;
	if (S_ISREG(st.st_mode)) {
		snprintf(text, IDENTITY_MAX, "inode %llu", (unsigned long long)st.st_ino);
	} else if (S_ISBLK(st.st_mode)) {
		snprintf(directory, sizeof(directory), "/sys/dev/block/%u:%u", major(st.st_rdev),
			minor(st.st_rdev));
		identity_of_block(directory, text);
	}
}

static bool read_of_drive(const char *directory, const char *leaf, char *line, int size)
{
	char of_disk[64];

	snprintf(of_disk, sizeof(of_disk), "../%s", leaf);
	return read_line(directory, leaf, line, size) || read_line(directory, of_disk, line, size);
}

bool identity_node_of_block(const char *directory, char *node, size_t size)
{
	char model[64];

	return read_of_drive(directory, "device/model", model, sizeof(model)) &&
	       !strcmp(model, "Millrace") &&
	       read_of_drive(directory, "device/serial", node, (int)size);
}

bool identity_node(const char *path, char *node, size_t size)
{
	char directory[64];
	struct stat st;

	if (stat(path, &st) || !S_ISBLK(st.st_mode))
		return false;
	snprintf(directory, sizeof(directory), "/sys/dev/block/%u:%u", major(st.st_rdev),
		minor(st.st_rdev));
	return identity_node_of_block(directory, node, size);
}
