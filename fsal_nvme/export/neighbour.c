/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What hosts of an Ethernet tell and ask each other about who has an address: the announcement and
 * the probe of RFC 5227 for one of IPv4, the unsolicited advertisement of RFC 4861 and the
 * solicitation of RFC 4862 for one of IPv6.
 */
#include "export/internal.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if_arp.h>
#include <netinet/icmp6.h>
#include <netinet/if_ether.h>
#include <netinet/ip6.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NEIGHBOUR_HOPS 255 /* with fewer it is not taken */

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

/* --- IPv4 ---------------------------------------------------------------------------------- */

static const struct in_addr *in4_of(const struct sockaddr_storage *address)
{
	return &((const struct sockaddr_in *)address)->sin_addr;
}

/* Its own header is the network layer's. */
static int send_frame(const struct sockaddr_ll *hardware, uint16_t protocol,
	const uint8_t to[ETH_ALEN], const void *packet, size_t length)
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
	memcpy(all.sll_addr, to, ETH_ALEN);
	if (sendto(fd, packet, length, MSG_DONTWAIT, (struct sockaddr *)&all, sizeof(all)) < 0)
		r = -errno;
	close(fd);
	return r;
}

/* A request for the address. By who has it: who knows another's hardware for it takes this. By who
 * has none, which nobody's knowledge changes by: a probe. */
static int ask_in4(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address,
	const struct in_addr *sender)
{
	static const uint8_t all[ETH_ALEN] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
	struct ether_arp arp = {
		.arp_hrd = htons(ARPHRD_ETHER),
		.arp_pro = htons(ETHERTYPE_IP),
		.arp_hln = ETH_ALEN,
		.arp_pln = sizeof(*sender),
		.arp_op = htons(ARPOP_REQUEST),
	};

	memcpy(arp.arp_sha, hardware->sll_addr, ETH_ALEN);
	memcpy(arp.arp_spa, sender, sizeof(*sender));
	memcpy(arp.arp_tpa, in4_of(address), sizeof(struct in_addr));
	return send_frame(hardware, ETHERTYPE_ARP, all, &arp, sizeof(arp));
}

/* Receives probes for the address alone. */
static int listen_in4(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(struct ether_arp, arp_op)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARPOP_REQUEST, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct ether_arp, arp_spa)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct ether_arp, arp_tpa)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(in4_of(address)->s_addr), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, sizeof(struct ether_arp)),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	const struct sock_fprog filter = {.len = sizeof(code) / sizeof(*code), .filter = code};
	struct sockaddr_ll here = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETHERTYPE_ARP),
		.sll_ifindex = hardware->sll_ifindex,
	};
	/* Nothing comes before it is bound. */
	int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r;

	if (fd < 0)
		return -errno;
	if (!setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) &&
		!bind(fd, (struct sockaddr *)&here, sizeof(here)))
		return fd;
	r = -errno;
	close(fd);
	return r;
}

/* --- IPv6 ---------------------------------------------------------------------------------- */

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

static uint16_t checksum(const void *data, size_t length, uint32_t sum)
{
	const uint8_t *byte = data;

	for (size_t i = 0; i + 1 < length; i += 2)
		sum += (uint32_t)byte[i] << 8 | byte[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)(sum + (sum >> 16));
}

/* As of a host that has none yet, and would take the address if nobody else had it. */
static int probe_in6(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	const uint8_t *in6 = ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr;
	const uint8_t to[ETH_ALEN] = {0x33, 0x33, 0xff, in6[13], in6[14], in6[15]};
	struct {
		struct ip6_hdr ip;
		struct nd_neighbor_solicit body;
	} asked = {
		.ip.ip6_flow = htonl(6u << 28),
		.ip.ip6_plen = htons(sizeof(asked.body)),
		.ip.ip6_nxt = IPPROTO_ICMPV6,
		.ip.ip6_hlim = NEIGHBOUR_HOPS,
		.ip.ip6_dst = {{{0xff, 0x02, [11] = 1, 0xff, in6[13], in6[14], in6[15]}}},
		.body.nd_ns_type = ND_NEIGHBOR_SOLICIT,
	};
	uint16_t sum;

	memcpy(&asked.body.nd_ns_target, in6, sizeof(asked.body.nd_ns_target));
	sum = checksum(&asked.ip.ip6_dst, sizeof(asked.ip.ip6_dst) + sizeof(asked.body),
		IPPROTO_ICMPV6 + sizeof(asked.body)); /* its source is all 0 */
	asked.body.nd_ns_cksum = htons((uint16_t)~sum);
	return send_frame(hardware, ETHERTYPE_IPV6, to, &asked, sizeof(asked));
}

static int listen_in6(const struct sockaddr_ll *hardware)
{
	const struct sockaddr_in6 here = {
		.sin6_family = AF_INET6,
		.sin6_scope_id = (uint32_t)hardware->sll_ifindex,
	};
	struct icmp6_filter asked;
	int fd = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_ICMPV6);
	int r;

	if (fd < 0)
		return -errno;
	ICMP6_FILTER_SETBLOCKALL(&asked);
	ICMP6_FILTER_SETPASS(ND_NEIGHBOR_SOLICIT, &asked);
	if (!setsockopt(fd, IPPROTO_ICMPV6, ICMP6_FILTER, &asked, sizeof(asked)) &&
		!bind(fd, (const struct sockaddr *)&here, sizeof(here)))
		return fd;
	r = -errno;
	close(fd);
	return r;
}

static bool is_probe_in6(const struct sockaddr_storage *from,
	const struct nd_neighbor_solicit *body, const struct sockaddr_storage *address)
{
	return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)from)->sin6_addr) &&
	       IN6_ARE_ADDR_EQUAL(
		       &body->nd_ns_target, &((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* --- either -------------------------------------------------------------------------------- */

int neighbour_announce(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 ? announce_in6(hardware, address)
					      : ask_in4(hardware, address, in4_of(address));
}

int neighbour_probe(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	const struct in_addr none = {INADDR_ANY};

	return address->ss_family == AF_INET6 ? probe_in6(hardware, address)
					      : ask_in4(hardware, address, &none);
}

int neighbour_listen(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 ? listen_in6(hardware)
					      : listen_in4(hardware, address);
}

bool neighbour_probed(int fd, const struct sockaddr_storage *address)
{
	union {
		struct ether_arp arp;
		struct nd_neighbor_solicit solicit;
	} packet;
	struct sockaddr_storage from = {0};
	socklen_t size = sizeof(from);
	bool probed = false;
	ssize_t n;

	while ((n = recvfrom(fd, &packet, sizeof(packet), 0, (struct sockaddr *)&from, &size)) >=
		0) {
		if (address->ss_family == AF_INET)
			probed = true;
		else if (n >= (ssize_t)sizeof(packet.solicit))
			probed = probed || is_probe_in6(&from, &packet.solicit, address);
		size = sizeof(from);
	}
	return probed;
}
