/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "common/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_manager(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = path ? strlen(path) : 0;
	int fd;

	if (!length || length >= sizeof(address.sun_path))
		return;
	memcpy(address.sun_path, path, length);
	if (path[0] == '@')
		address.sun_path[0] = 0; /* the abstract name space */
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	(void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
	close(fd);
}
