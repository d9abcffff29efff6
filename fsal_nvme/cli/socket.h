/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Both ends of the control socket, for this directory alone. */
#ifndef MILLRACE_CLI_SOCKET_H
#define MILLRACE_CLI_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"

/* Descriptors that close on exec; paths of any length. Negative errno. */
int socket_listen(const char *path);
/* Does not wait. -EAGAIN: too many wait there already. */
int socket_connect(const char *path);
/* The user at the other end may give orders: root, or whoever runs this process. */
bool socket_peer_allowed(int fd);

/* Lines as they come in. Zeros at first but for `fd` and `limit`; ended by line_reader_free(). */
struct line_reader {
	int fd;
	size_t limit; /* bytes of a line */
	char *bytes;
	size_t length, room;
	size_t taken; /* bytes of the line that was given last */
};
/*
 * The next line, without its newline, valid until the next call. Waits until the clock
 * (CLOCK_MONOTONIC, seconds) says `deadline`. -ETIMEDOUT, -EPIPE when the other end has gone,
 * -EMSGSIZE for a line over the limit.
 */
int line_read(struct line_reader *reader, double deadline, const char **line, size_t *length);
void line_reader_free(struct line_reader *reader);
double seconds_now(void);

/* All bytes, for as long as the socket's SO_SNDTIMEO allows. -EPIPE, -ETIMEDOUT. */
int socket_send(int fd, const char *bytes, size_t length);

#endif
