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
 * One that has heard both nodes keeps its connection, and waits for ever with a call that needs
 * more memory than it had registered (is_mute(), appliance/ntirpc/rdma_service.c). So a server that
 * ends as the pool is another's, or as drives refuse it, tells whoever has the pool, as does a
 * reader that begins, of a node that has booted; and as long as an earlier owner is not known to be
 * dead the server that hears it ends its connections over RDMA: clients make them anew.
 *
 * It has a thread of its own, as to ask for the host's interfaces may wait for whoever changes one.
 * On links other than Ethernet's nothing is told.
 */
#include "export/internal.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nfs_core.h"

#include "common/inet.h"

#define RDMA_DEVICES "/sys/class/infiniband"
#define RDMA_WAIT_MS 500 /* at most: none of the devices may have the address */
#define RDMA_LOOK_MS 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool running; /* lock */
static bool asked; /* lock; another host is back, for which no connections were renewed yet */
static uint8_t uuid[16]; /* the pool's, which may be closed while this looks */
static struct sockaddr_ll here; /* lock; where the address was last. Its family is 0: nowhere yet */

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

/* Whether another host has come back to the pool since the last time. The interface may be another
 * one, or have been made anew. */
static bool has_heard(const struct sockaddr_ll *hardware)
{
	static int fd = -1, interface;
	int r;

	if (fd >= 0 && interface != hardware->sll_ifindex) {
		close(fd);
		fd = -1;
	}
	if (fd < 0)
		fd = neighbour_listen(hardware);
	if (fd < 0)
		return false;
	interface = hardware->sll_ifindex;
	r = neighbour_heard(fd, uuid);
	if (r < 0) {
		close(fd);
		fd = -1;
	}
	return r > 0;
}

/* Under the lock. Clients have been told where to. At most once in a lease, whoever says what how
 * often; what is heard meanwhile is not forgotten. */
static void renew_connections(void)
{
	static time_t renewed;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	asked = asked && pool_other_owners(nvme.pool);
	if (!asked || (renewed && now.tv_sec - renewed < nfs_param.nfsv4_param.lease_lifetime))
		return;
	asked = false;
	renewed = now.tv_sec;
	LogEvent(COMPONENT_FSAL, "another host is back, which may have answered for this one: "
				 "clients over RDMA are to connect anew");
	rpc_rdma_renew();
}

static void announce(void)
{
	struct sockaddr_storage address = inet_unmapped(&nfs_param.core_param.bind_addr);
	struct sockaddr_ll hardware;
	bool found = neighbour_find(&address, &hardware);
	bool heard = found && has_heard(&hardware);

	PTHREAD_MUTEX_lock(&lock);
	asked = asked || heard;
	if (found)
		here = hardware;
	if (running && !pool_failure(nvme.pool) && pool_lease_holds(nvme.pool)) {
		log_result(&address, found ? neighbour_announce(&hardware, &address) : -ENODEV);
		renew_connections();
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

static void tell_of_reader(void)
{
	struct sockaddr_storage address = inet_unmapped(&nfs_param.core_param.bind_addr);
	struct sockaddr_ll hardware;

	if (neighbour_find(&address, &hardware))
		(void)neighbour_tell(&hardware, uuid);
}

void announce_start(void)
{
	pthread_t thread;

	memcpy(uuid, pool_uuid(nvme.pool), sizeof(uuid));
	if (pool_is_reader(nvme.pool))
		tell_of_reader();
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

void announce_lost(void)
{
	PTHREAD_MUTEX_lock(&lock);
	if (here.sll_family)
		(void)neighbour_tell(&here, uuid);
	PTHREAD_MUTEX_unlock(&lock);
}
