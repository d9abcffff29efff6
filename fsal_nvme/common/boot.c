/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include <stdio.h>
#include <string.h>

#include "common/boot.h"

/* "01234567-89ab-..." */
void boot_id_read(uint8_t id[16])
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	unsigned byte, count = 0;

	memset(id, 0, 16);
	if (!file)
		return;
	while (count < 16 && fscanf(file, "%2x", &byte) == 1) {
		id[count++] = (uint8_t)byte;
		if (fscanf(file, "%*1[-]") == EOF)
			break;
	}
	fclose(file);
}
