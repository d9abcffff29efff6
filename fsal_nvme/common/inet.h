/* SPDX-License-Identifier: LGPL-3.0-or-later */
#ifndef MILLRACE_COMMON_INET_H
#define MILLRACE_COMMON_INET_H

#include <netinet/in.h>
#include <sys/socket.h>

/* `address`, or the IPv4 address that is mapped into it, with its port. */
struct sockaddr_storage inet_unmapped(const struct sockaddr_storage *address);

/* An IPv4 or IPv6 address as text; an IPv4 address that is mapped into IPv6 as one of IPv4. */
void inet_text(const struct sockaddr_storage *address, char text[INET6_ADDRSTRLEN]);

#endif
