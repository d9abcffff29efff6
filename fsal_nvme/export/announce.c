/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Who has the service's address. A node that was fenced, has not been reset and goes on has it
 * still, and answers (ARP, NDP) what clients have asked it while it stood still: they would talk to
 * it until it is reset, for longer than the server that has the pool by then keeps their locks. So
 * each second a server of a cluster, which was started `fenced`, tells the network that the address
 * is its own, by an announcement of RFC 5227 or an unsolicited advertisement of RFC 4861, as long
 * as it knows that no other owner has the pool.
 *
 * A Linux client over RDMA, which waits for a server that is gone, connects as soon as it hears
 * this, and where it is refused, 3 s later (rpcrdma_cm_event_handler(), call_connect_status()). So
 * nothing is told before connections over RDMA are taken.
 *
 * It has a thread of its own, as to ask for the host's interfaces may wait for whoever changes one.
 * On links other than Ethernet's nothing is told.
 */
#include "export/internal.h"

#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if_arp.h>
#include <netinet/icmp6.h>
#include <netinet/if_ether.h>
#include <netpacket/packet.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "nfs_core.h"

#include "common/inet.h"

#define NEIGHBOUR_HOPS 255 /* with fewer it is not taken */
#define RDMA_DEVICES "/sys/class/infiniband"
#define RDMA_WAIT_MS 500 /* at most: none of the devices may have the address */
#define RDMA_LOOK_MS 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool running; /* lock */

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

/* The Ethernet interface that has `address`; false where there is none. */
static bool find_interface(const struct sockaddr_storage *address, struct sockaddr_ll *hardware)
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

/* --- the announcement ---------------------------------------------------------------------- */

/* A request for the address by who has it: who knows another's hardware for it takes this. */
static int announce_in4(const struct sockaddr_ll *hardware, const struct sockaddr_storage *address)
{
	const struct in_addr *in4 = &((const struct sockaddr_in *)address)->sin_addr;
	struct sockaddr_ll all = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETHERTYPE_ARP),
		.sll_ifindex = hardware->sll_ifindex,
		.sll_halen = ETH_ALEN,
	};
	struct ether_arp arp = {
		.arp_hrd = htons(ARPHRD_ETHER),
		.arp_pro = htons(ETHERTYPE_IP),
		.arp_hln = ETH_ALEN,
		.arp_pln = sizeof(*in4),
		.arp_op = htons(ARPOP_REQUEST),
	};
	int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* receives nothing */
	int r = 0;

	if (fd < 0)
		return -errno;
	memset(all.sll_addr, 0xff, ETH_ALEN);
	memcpy(arp.arp_sha, hardware->sll_addr, ETH_ALEN);
	memcpy(arp.arp_spa, in4, sizeof(*in4));
	memcpy(arp.arp_tpa, in4, sizeof(*in4));
	if (sendto(fd, &arp, sizeof(arp), MSG_DONTWAIT, (struct sockaddr *)&all, sizeof(all)) < 0)
		r = -errno;
	close(fd);
	return r;
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

/* --- each second --------------------------------------------------------------------------- */

/* Under the lock. What has come of it, each time that this is something else. */
static void log_result(const struct sockaddr_storage *address, int result)
{
	static int last = 1;
	char text[INET6_ADDRSTRLEN];

	if (result == last)
		return;
	last = result;
	inet_text(address, text);
	if (result)
		LogWarn(COMPONENT_FSAL, "the network is not told who has %s: %s", text,
			result == -ENODEV ? "no Ethernet interface has it" : strerror(-result));
	else
		LogEvent(COMPONENT_FSAL, "the network is told each second who has %s", text);
}

static void announce(void)
{
	struct sockaddr_storage address = inet_unmapped(&nfs_param.core_param.bind_addr);
	struct sockaddr_ll hardware;
	bool found = find_interface(&address, &hardware);
	int r = -ENODEV;

	PTHREAD_MUTEX_lock(&lock);
	if (running && !pool_failure(nvme.pool) && pool_lease_holds(nvme.pool)) {
		if (found)
			r = address.ss_family == AF_INET6 ? announce_in6(&hardware, &address)
							  : announce_in4(&hardware, &address);
		log_result(&address, r);
	}
	PTHREAD_MUTEX_unlock(&lock);
}

static bool wait_second(void)
{
	struct timespec until;
	bool go_on;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	PTHREAD_MUTEX_lock(&lock);
	while (running && !pthread_cond_clockwait(&wake, &lock, CLOCK_MONOTONIC, &until))
		;
	go_on = running;
	PTHREAD_MUTEX_unlock(&lock);
	return go_on;
}

static bool has_rdma_device(void)
{
	const struct dirent *entry;
	DIR *devices = opendir(RDMA_DEVICES);
	bool found = false;

	while (devices && !found && (entry = readdir(devices)))
		found = entry->d_name[0] != '.';
	if (devices)
		closedir(devices);
	return found;
}

static void wait_for_rdma(void)
{
	const struct timespec look = {.tv_nsec = RDMA_LOOK_MS * 1000000};

	if (!has_rdma_device())
		return;
	for (int i = 0; i < RDMA_WAIT_MS / RDMA_LOOK_MS && !nfs_rdma_is_served(); i++)
		nanosleep(&look, NULL);
}

static void *announcing(void *data)
{
	SetNameFunction("nvme_announce");
	wait_for_rdma();
	do
		announce();
	while (wait_second());
	return NULL;
}

void announce_start(void)
{
	pthread_t thread;

	if (!nvme.options.fenced)
		return;
	running = true;
	if (pthread_create(&thread, NULL, announcing, NULL))
		LogFatal(COMPONENT_FSAL, "no thread to tell the network who has the address");
	pthread_detach(thread);
}

void announce_stop(void)
{
	PTHREAD_MUTEX_lock(&lock);
	running = false;
	pthread_cond_signal(&wake);
	PTHREAD_MUTEX_unlock(&lock);
}
