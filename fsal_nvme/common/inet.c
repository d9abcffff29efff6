/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "common/inet.h"

#include <arpa/inet.h>
#include <string.h>

struct sockaddr_storage inet_unmapped(const struct sockaddr_storage *address)
{
	struct sockaddr_storage plain = *address;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
	struct sockaddr_in in4 = {.sin_family = AF_INET};

	if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
		in4.sin_port = in6->sin6_port;
		memcpy(&in4.sin_addr, &in6->sin6_addr.s6_addr[12], sizeof(in4.sin_addr));
		memcpy(&plain, &in4, sizeof(in4));
	}
	return plain;
}

void inet_text(const struct sockaddr_storage *address, char text[INET6_ADDRSTRLEN])
{
	struct sockaddr_storage plain = inet_unmapped(address);
	const void *in6 = &((const struct sockaddr_in6 *)&plain)->sin6_addr;
	const void *in4 = &((const struct sockaddr_in *)&plain)->sin_addr;

	text[0] = 0;
	inet_ntop(plain.ss_family, plain.ss_family == AF_INET6 ? in6 : in4, text, INET6_ADDRSTRLEN);
}
