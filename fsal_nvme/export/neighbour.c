/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What hosts of an Ethernet tell each other: who has an address, by the announcement of RFC 5227 or
 * the unsolicited advertisement of RFC 4861, and who comes back to a pool, by a frame of our own,
 * whose protocol is the first of those that IEEE 802 leaves to local experiments. No firewall sees
 * it.
 */
#include "export/internal.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if_arp.h>
#include <netinet/icmp6.h>
#include <netinet/if_ether.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NEIGHBOUR_HOPS 255 /* with fewer it is not taken */
#define NOTICE_PROTOCOL 0x88b5
#define NOTICES 3 /* as nobody says that one has come */
#define NOTICES_READ 64 /* at a time, whoever sends more */

/* --- the interface ------------------------------------------------------------------------- */

static bool is_address(const struct sockaddr *one, const struct sockaddr_storage *other)
{
	if (!one || one->sa_family != other->ss_family)
		return false;
	if (one->sa_family == AF_INET6)
		return IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)one)->sin6_addr,
			&((const struct sockaddr_in6 *)other)->sin6_addr);
	return ((const struct sockaddr_in *)one)->sin_addr.s_addr ==
	       ((const struct sockaddr_in *)other)->sin_addr.s_addr;
}

/* Whether `link` is the Ethernet interface that `label` is of: eth0, of eth0 or eth0:1. */
static bool is_ethernet_of(const struct ifaddrs *link, const char *label)
{
	const struct sockaddr_ll *hardware = (const struct sockaddr_ll *)link->ifa_addr;
	size_t length = strcspn(label, ":");

	return hardware && hardware->sll_family == AF_PACKET &&
	       hardware->sll_hatype == ARPHRD_ETHER && hardware->sll_halen == ETH_ALEN &&
	       strlen(link->ifa_name) == length && !memcmp(link->ifa_name, label, length);
}

bool neighbour_find(const struct sockaddr_storage *address, struct sockaddr_ll *hardware)
{
	struct ifaddrs *list;
	bool found = false;

	if (getifaddrs(&list))
		return false;
	for (const struct ifaddrs *at = list; at && !found; at = at->ifa_next) {
		if (!is_address(at->ifa_addr, address))
			continue;
		for (const struct ifaddrs *link = list; link && !found; link = link->ifa_next) {
			found = is_ethernet_of(link, at->ifa_name);
			if (found)
				memcpy(hardware, link->ifa_addr, sizeof(*hardware));
		}
	}
	freeifaddrs(list);
	return found;
}

/* --- frames -------------------------------------------------------------------------------- */

static int send_to_all(
	const struct sockaddr_ll *hardware, uint16_t protocol, const void *packet, size_t length)
{
	struct sockaddr_ll all = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(protocol),
		.sll_ifindex = hardware->sll_ifindex,
		.sll_halen = ETH_ALEN,
	};
	int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* receives nothing */
	int r = 0;

	if (fd < 0)
		return -errno;
	memset(all.sll_addr, 0xff, ETH_ALEN);
	if (sendto(fd, packet, length, MSG_DONTWAIT, (struct sockaddr *)&all, sizeof(all)) < 0)
		r = -errno;
	close(fd);
	return r;
}

/* --- who has an address -------------------------------------------------------------------- */

/* A request for the address by who has it: who knows another's hardware for it takes this. */
static int announce_in4(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	const struct in_addr *in4 = &((const struct sockaddr_in *)address)->sin_addr;
	struct ether_arp arp = {
		.arp_hrd = htons(ARPHRD_ETHER),
		.arp_pro = htons(ETHERTYPE_IP),
		.arp_hln = ETH_ALEN,
		.arp_pln = sizeof(*in4),
		.arp_op = htons(ARPOP_REQUEST),
	};

	memcpy(arp.arp_sha, hardware->sll_addr, ETH_ALEN);
	memcpy(arp.arp_spa, in4, sizeof(*in4));
	memcpy(arp.arp_tpa, in4, sizeof(*in4));
	return send_to_all(hardware, ETHERTYPE_ARP, &arp, sizeof(arp));
}

/* Its checksum is the kernel's. The address is bound to, which fails as long as the kernel does not
 * take it for its own: another may have it. */
static int open_in6(const struct sockaddr_storage *address, unsigned interface)
{
	struct sockaddr_in6 source = *(const struct sockaddr_in6 *)address;
	struct icmp6_filter nothing;
	int hops = NEIGHBOUR_HOPS, off = 0;
	int fd = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMPV6);
	int r;

	if (fd < 0)
		return -errno;
	source.sin6_port = 0;
	source.sin6_scope_id = interface;
	ICMP6_FILTER_SETBLOCKALL(&nothing);
	if (!setsockopt(fd, IPPROTO_ICMPV6, ICMP6_FILTER, &nothing, sizeof(nothing)) &&
		!setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof(hops)) &&
		!setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, &off, sizeof(off)) &&
		!bind(fd, (struct sockaddr *)&source, sizeof(source)))
		return fd;
	r = -errno;
	close(fd);
	return r;
}

static int announce_in6(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	struct sockaddr_in6 all = {
		.sin6_family = AF_INET6,
		.sin6_addr = {{{0xff, 0x02, [15] = 1}}},
		.sin6_scope_id = (uint32_t)hardware->sll_ifindex,
	};
	struct {
		struct nd_neighbor_advert header;
		struct nd_opt_hdr option;
		uint8_t hardware[ETH_ALEN];
	} told = {
		.header.nd_na_type = ND_NEIGHBOR_ADVERT,
		.header.nd_na_flags_reserved = ND_NA_FLAG_OVERRIDE,
		.header.nd_na_target = ((const struct sockaddr_in6 *)address)->sin6_addr,
		.option.nd_opt_type = ND_OPT_TARGET_LINKADDR,
		.option.nd_opt_len = 1, /* times 8 bytes */
	};
	int fd = open_in6(address, all.sin6_scope_id);
	int r = 0;

	_Static_assert(sizeof(told) == 32, "it has no holes");
	if (fd < 0)
		return fd;
	memcpy(told.hardware, hardware->sll_addr, ETH_ALEN);
	if (sendto(fd, &told, sizeof(told), MSG_DONTWAIT, (struct sockaddr *)&all, sizeof(all)) < 0)
		r = -errno;
	close(fd);
	return r;
}

int neighbour_announce(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 ? announce_in6(hardware, address)
					      : announce_in4(hardware, address);
}

/* --- who comes back to a pool -------------------------------------------------------------- */

struct notice {
	char magic[8];
	uint8_t pool[16];
};

static struct notice notice_of(const uint8_t pool[16])
{
	struct notice notice = {.magic = {'m', 'i', 'l', 'l', 'r', 'a', 'c', 'e'}};

	memcpy(notice.pool, pool, sizeof(notice.pool));
	return notice;
}

int neighbour_tell(const struct sockaddr_ll *hardware, const uint8_t pool[16])
{
	const struct notice notice = notice_of(pool);
	int r = 0;

	for (int i = 0; i < NOTICES && !r; i++)
		r = send_to_all(hardware, NOTICE_PROTOCOL, &notice, sizeof(notice));
	return r;
}

int neighbour_listen(const struct sockaddr_ll *hardware)
{
	const struct sockaddr_ll here = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(NOTICE_PROTOCOL),
		.sll_ifindex = hardware->sll_ifindex,
	};
	/* Nothing comes before it is bound. */
	int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r;

	if (fd < 0 || !bind(fd, (const struct sockaddr *)&here, sizeof(here)))
		return fd < 0 ? -errno : fd;
	r = -errno;
	close(fd);
	return r;
}

int neighbour_heard(int fd, const uint8_t pool[16])
{
	const struct notice notice = notice_of(pool);
	struct notice heard;
	bool any = false;
	ssize_t n = 0;

	for (int i = 0; i < NOTICES_READ && (n = recv(fd, &heard, sizeof(heard), 0)) >= 0; i++)
		any = any || (n == sizeof(heard) && !memcmp(&heard, &notice, sizeof(heard)));
	return n < 0 && errno != EAGAIN && errno != EINTR ? -errno : any;
}
