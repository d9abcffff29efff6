/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * To be preloaded to a server under valgrind, which does not know that io_uring_enter() may wait:
 * it lets no other thread run meanwhile. So nothing waits in there: the ring's descriptor is
 * polled. It is signalled for all that comes back only where work is not left to the ring's thread.
 * And a module that the server loads takes these functions only without RTLD_DEEPBIND.
 */
#include <dlfcn.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC void *dlopen(const char *path, int flags)
{
	void *(*open)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");

	return open(path, flags & ~RTLD_DEEPBIND);
}

PUBLIC int io_uring_queue_init_params(
	unsigned entries, struct io_uring *ring, struct io_uring_params *params)
{
	int (*init)(unsigned, struct io_uring *, struct io_uring_params *) =
		dlsym(RTLD_NEXT, "io_uring_queue_init_params");

	params->flags &= ~IORING_SETUP_DEFER_TASKRUN;
	return init(entries, ring, params);
}

PUBLIC int io_uring_submit_and_wait(struct io_uring *ring, unsigned wanted)
{
	int submitted = io_uring_submit(ring);

	while (submitted >= 0 && io_uring_cq_ready(ring) < wanted) {
		struct pollfd ready = {.fd = ring->ring_fd, .events = POLLIN};

		if (poll(&ready, 1, -1) < 0)
			return -errno;
	}
	return submitted;
}
