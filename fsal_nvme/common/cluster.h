/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Whether somebody else starts and ends servers here. */
#ifndef MILLRACE_COMMON_CLUSTER_H
#define MILLRACE_COMMON_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

/* This host is a member of a cluster, whose pacemaker does (`millrace cluster create`, `join`). */
bool host_is_member(void);
/* That cluster fences by what the device of a pool with this UUID keeps for that. */
bool host_fences_by(const uint8_t uuid[16]);
/* ... by a block device of its own, which this is, or has as a partition. */
bool host_fences_over(const char *path);

#endif
