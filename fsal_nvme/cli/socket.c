/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "cli/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* --- addresses --------------------------------------------------------------------------- */

/* A path too long for sun_path goes by its directory's descriptor, which is to be closed after. */
static int address_of(const char *path, struct sockaddr_un *address, int *dir)
{
	const char *slash = strrchr(path, '/');
	char parent[4096];

	*dir = -1;
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (strlen(path) < sizeof(address->sun_path)) {
		memcpy(address->sun_path, path, strlen(path));
		return 0;
	}
	if (!slash || (size_t)(slash - path) >= sizeof(parent))
		return -ENAMETOOLONG;
	memcpy(parent, path, (size_t)(slash - path));
	parent[slash - path] = 0;
	*dir = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*dir < 0)
		return -errno;
	if ((size_t)snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d%s",
		    *dir, slash) < sizeof(address->sun_path))
		return 0;
	close(*dir);
	*dir = -1;
	return -ENAMETOOLONG;
}

/* The mode that the socket gets is set before its name appears. */
int socket_listen(const char *path)
{
	struct sockaddr_un address;
	int dir, rc = address_of(path, &address, &dir);
	int fd = rc ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (!rc) {
		unlink(address.sun_path);
		if (fd < 0 || fchmod(fd, 0600) ||
			bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 128))
			rc = -errno;
	}
	if (dir >= 0)
		close(dir);
	if (rc && fd >= 0)
		close(fd);
	return rc ? rc : fd;
}

int socket_connect(const char *path)
{
	struct sockaddr_un address;
	int dir, rc = address_of(path, &address, &dir);
	int fd = rc ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (!rc && (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
			   fcntl(fd, F_SETFL, 0)))
		rc = -errno;
	if (dir >= 0)
		close(dir);
	if (rc && fd >= 0)
		close(fd);
	return rc ? rc : fd;
}

bool socket_peer_allowed(int fd)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) &&
	       (peer.uid == 0 || peer.uid == geteuid());
}

/* --- lines ------------------------------------------------------------------------------- */

double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int make_room(struct line_reader *r)
{
	size_t room = r->room ? 2 * r->room : 4096;
	char *bytes;

	if (r->length < r->room)
		return 0;
	if (r->length > r->limit)
		return -EMSGSIZE;
	bytes = realloc(r->bytes, room);
	if (!bytes)
		return -ENOMEM;
	r->bytes = bytes;
	r->room = room;
	return 0;
}

static int read_more(struct line_reader *r, double deadline)
{
	struct pollfd poll_fd = {.fd = r->fd, .events = POLLIN};
	double left = deadline - seconds_now();
	ssize_t got;
	int rc = make_room(r);

	if (rc)
		return rc;
	rc = left > 0 ? poll(&poll_fd, 1, (int)(left * 1000) + 1) : 0;
	if (rc <= 0)
		return rc == 0 ? -ETIMEDOUT : -errno;
	got = recv(r->fd, r->bytes + r->length, r->room - r->length, MSG_DONTWAIT);
	if (got < 0)
		return -errno;
	r->length += (size_t)got;
	return got ? 0 : -EPIPE;
}

int line_read(struct line_reader *r, double deadline, const char **line, size_t *length)
{
	size_t seen = 0;

	if (r->taken)
		memmove(r->bytes, r->bytes + r->taken, r->length - r->taken);
	r->length -= r->taken;
	r->taken = 0;
	for (;;) {
		char *end =
			r->length > seen ? memchr(r->bytes + seen, '\n', r->length - seen) : NULL;
		int rc;

		if (end && (size_t)(end - r->bytes) <= r->limit) {
			*line = r->bytes;
			*length = (size_t)(end - r->bytes);
			r->taken = *length + 1;
			return 0;
		}
		if (end || r->length > r->limit)
			return -EMSGSIZE;
		seen = r->length;
		rc = read_more(r, deadline);
		if (rc && rc != -EINTR && rc != -EAGAIN)
			return rc;
	}
}

void line_reader_free(struct line_reader *reader)
{
	free(reader->bytes);
	reader->bytes = NULL;
	reader->length = reader->room = reader->taken = 0;
}

int socket_send(int fd, const char *bytes, size_t length)
{
	while (length) {
		ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -EPIPE;
		bytes += sent;
		length -= (size_t)sent;
	}
	return 0;
}
