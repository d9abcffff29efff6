/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The address that the server is to listen at. A cluster manager brings it while the pool is being
 * opened, which takes as long, or behind that; a client that comes as soon as the address does is
 * not refused.
 */
#include "export/internal.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nfs_core.h"

#include "common/inet.h"

#define LOOK_MS 5u

/* Whatever else is wrong the server's own bind() tells. */
bool address_is_missing(void)
{
	struct sockaddr_storage address = nfs_param.core_param.bind_addr;
	int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool missing;

	if (fd < 0)
		return false;
	if (address.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&address)->sin6_port = 0;
	else
		((struct sockaddr_in *)&address)->sin_port = 0;
	missing = bind(fd, (struct sockaddr *)&address, sizeof(address)) && errno == EADDRNOTAVAIL;
	close(fd);
	return missing;
}

/* Until the server takes signals they are pending. */
static bool is_told_to_end(void)
{
	sigset_t pending;

	return !sigpending(&pending) && sigismember(&pending, SIGTERM) == 1;
}

int address_await(unsigned seconds, struct error *error)
{
	char text[INET6_ADDRSTRLEN];

	inet_text(&nfs_param.core_param.bind_addr, text);
	for (uint64_t left = seconds * 1000ull / LOOK_MS; address_is_missing(); left--) {
		watch_end_if_over();
		if (is_told_to_end())
			return error_set(
				error, -EINTR, text, "told to end while no interface had it");
		if (!left)
			return error_set(error, -EADDRNOTAVAIL, text,
				"no interface of this host has it%s", seconds ? ", still" : "");
		usleep(LOOK_MS * 1000);
	}
	watch_end_if_over();
	return 0;
}
