/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "common/inet.h"

#include <arpa/inet.h>

void inet_text(const struct sockaddr_storage *address, char text[INET6_ADDRSTRLEN])
{
	const struct in6_addr *in6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
	const void *in4 = &((const struct sockaddr_in *)address)->sin_addr;

	text[0] = 0;
	if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(in6))
		inet_ntop(AF_INET, &in6->s6_addr[12], text, INET6_ADDRSTRLEN);
	else
		inet_ntop(address->ss_family, address->ss_family == AF_INET6 ? in6 : in4, text,
			INET6_ADDRSTRLEN);
}
