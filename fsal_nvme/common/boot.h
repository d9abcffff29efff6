/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Which boot of which kernel this is. */
#ifndef MILLRACE_COMMON_BOOT_H
#define MILLRACE_COMMON_BOOT_H

#include <stdint.h>

/* The kernel's boot_id (random(4)), never that of another boot or machine; zeros where /proc does
 * not tell. */
void boot_id_read(uint8_t id[16]);

#endif
