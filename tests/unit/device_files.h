/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Plain files as devices of a pool, for tests of the engine that the server has. */
#ifndef DEVICE_FILES_H
#define DEVICE_FILES_H

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "pool/pool.h"

/* Makes d0, d1, ... in `directory`, each a domain of its own; `paths` keeps their names. */
static inline void device_files_make(const char *directory, unsigned count, uint64_t size,
	char (*paths)[80], struct pool_create_device *devices)
{
	for (unsigned i = 0; i < count; i++) {
		int fd;

		snprintf(paths[i], sizeof(paths[i]), "%s/d%u", directory, i);
		fd = open(paths[i], O_RDWR | O_CREAT, 0600);
		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, (off_t)size), 0);
		close(fd);
		devices[i] = (struct pool_create_device){paths[i], paths[i]};
	}
}

#endif
