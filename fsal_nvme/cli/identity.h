/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What tells a drive from another one that has its name now. */
#ifndef MILLRACE_IDENTITY_H
#define MILLRACE_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>

#define IDENTITY_MAX 300

/* Of a block device what its drive says (its world wide name, or a serial number), with number of
 * the partition and size; of a plain file its inode. "" where nothing tells. */
void identity_of(const char *path, char text[IDENTITY_MAX]);
/* The same of a block device whose directory of sysfs this is. */
void identity_of_block(const char *directory, char text[IDENTITY_MAX]);

/* The node of the cluster whose own drive it is, which that one gives to all (ha/bin/drives): the
 * domain that it fails with. False: it is none of these. */
bool identity_node(const char *path, char *node, size_t size);
/* The same by a block device's directory of sysfs, of a partition too. */
bool identity_node_of_block(const char *directory, char *node, size_t size);

#endif
