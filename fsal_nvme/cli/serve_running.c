/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What `serve` does with a server that runs: --stop, --probe, --end-grace. Its process is who
 * listens at the control socket, or, while it starts or ends and there is none, who has locked its
 * file "pid".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/socket.h"
#include "common/boot.h"
#include "common/cluster.h"

#define STOP_SECONDS 120
#define KILL_SECONDS 20 /* until what was killed is gone */
#define TELLING_SECONDS 1 /* for a server to say what it has waited for in vain */

static double deadline_of(const struct command *c, unsigned otherwise)
{
	const json_t *wait = json_object_get(c->args, "wait");

	return seconds_now() + (wait ? (double)json_integer_value(wait) : otherwise);
}

/* --- the process ------------------------------------------------------------------------- */

/* -ENOENT: it has ended. */
static int open_process(pid_t pid)
{
	int process = pidfd_open(pid, 0);

	return process >= 0 ? process : errno == ESRCH ? -ENOENT : -errno;
}

static int open_listener(int socket)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length))
		return -errno;
	return open_process(peer.pid);
}

static int open_lock_holder(const struct command *c, const char *pool)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char path[4096];
	int fd, rc;

	snprintf(path, sizeof(path), "%.3900s/%s/pid", command_run_dir(c), pool);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOTDIR ? -ENOENT : -errno;
	rc = fcntl(fd, F_GETLK, &lock) ? -errno : 0;
	close(fd);
	if (!rc && lock.l_type == F_UNLCK)
		rc = -ENOENT;
	return rc ? rc : open_process(lock.l_pid);
}

/* A descriptor of it. -ENOENT: there is none, for sure; other errors: nobody knows. */
static int open_server(const struct command *c, const char *pool)
{
	int socket, process = -ENOENT;

	if (!client_connect(c, pool, &socket, NULL)) {
		process = open_listener(socket);
		close(socket);
	}
	return process == -ENOENT ? open_lock_holder(c, pool) : process;
}

/* Of what was told to end: 0, or not before the deadline, or before the user has had enough. */
static int wait_for_end(int process, double deadline)
{
	struct pollfd end = {.fd = process, .events = POLLIN};
	struct reporter *reporter = terminal_reporter();

	while (poll(&end, 1, 500) != 1) {
		if (reporter->stopped(reporter))
			return -EINTR;
		if (seconds_now() >= deadline)
			return -ETIMEDOUT;
	}
	return 0;
}

static int end_story(struct command *c, const char *pool, int rc)
{
	char hint[300];

	server_log_hint(c, pool, hint, sizeof(hint));
	if (rc == -EINTR)
		return error_set(&c->error, rc, pool,
			"interrupted; its server was told to stop, and has not ended yet: %s",
			hint);
	return error_set(&c->error, rc, pool, "its server has not ended in time%s: %s",
		json_object_get(c->args, "force") ? ", killed though it was"
						  : " (--force kills it)",
		hint);
}

/* --- stop -------------------------------------------------------------------------------- */

static int not_served(struct command *c, const char *pool)
{
	return error_set(&c->error, -ENOENT, pool, "it is not being served");
}

static int ask_to_stop(struct command *c, const char *pool, int *process)
{
	int fd, rc = client_connect(c, pool, &fd, &c->error);

	*process = -1;
	if (rc == -ENOENT)
		return not_served(c, pool);
	if (rc)
		return rc;
	*process = open_listener(fd);
	return client_call(c, fd, pool, c->verb, c->args, c->result, &c->error);
}

static int stop_politely(struct command *c, const char *pool)
{
	double deadline = deadline_of(c, STOP_SECONDS);
	int process, rc = ask_to_stop(c, pool, &process);

	terminal_part("stop the server of", pool);
	if (!rc && process >= 0) {
		rc = wait_for_end(process, deadline);
		if (rc)
			end_story(c, pool, rc);
	}
	if (process >= 0)
		close(process);
	return rc;
}

/* Without asking it: it may be past answering. */
static int stop_by_force(struct command *c, const char *pool, bool *killed)
{
	double deadline = deadline_of(c, STOP_SECONDS);
	int rc, process = open_server(c, pool);

	if (process == -ENOENT)
		return not_served(c, pool);
	if (process < 0)
		return error_set(&c->error, process, pool,
			"whether it is being served cannot be told: %s", strerror(-process));
	terminal_part("stop the server of", pool);
	(void)pidfd_send_signal(process, SIGTERM, NULL, 0);
	rc = wait_for_end(process, deadline);
	*killed = rc == -ETIMEDOUT;
	if (*killed) {
		(void)pidfd_send_signal(process, SIGKILL, NULL, 0);
		rc = wait_for_end(process, seconds_now() + KILL_SECONDS);
	}
	close(process);
	return rc ? end_story(c, pool, rc) : 0;
}

int server_stop(struct command *c, const char *pool)
{
	bool killed = false;
	int rc = json_object_get(c->args, "force") ? stop_by_force(c, pool, &killed)
						   : stop_politely(c, pool);

	if (rc)
		return rc;
	put_text(c->result, "message",
		killed                      ? "The server did not stop in time, and was killed."
		: systemd_has_unit(c, pool) ? "The server has stopped. At the next boot systemd "
					      "starts it again, unless it is told --disable."
		: host_is_member()
			? "The server has stopped. The cluster starts a service's again: "
			  "`pcs resource disable SERVICE-server` is to end one."
			: "The server has stopped.");
	return 0;
}

/* --- probe ------------------------------------------------------------------------------- */

/* The procedure NULL of NFSv4: RFC 5531, 8 to 11; credential and verifier are AUTH_NONE. */
static const unsigned char null_call[] = {0x80, 0, 0, 40, /* the last fragment, 40 bytes */
	'm', 'i', 'l', 'l', /* xid */
	0, 0, 0, 0, /* CALL */
	0, 0, 0, 2, /* version of RPC */
	0, 1, 0x86, 0xa3, /* NFS, 100003 */
	0, 0, 0, 4, 0, 0, 0, 0, /* version 4, NULL */
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
static const unsigned char null_reply[] = {0x80, 0, 0, 24, 'm', 'i', 'l', 'l', 0, 0, 0,
	1, /* REPLY */
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}; /* accepted, AUTH_NONE, success */

static int wait_ready(int fd, short events, double deadline)
{
	struct pollfd ready = {.fd = fd, .events = events};
	double left = deadline - seconds_now();
	int rc = left > 0 ? poll(&ready, 1, (int)(left * 1000) + 1) : 0;

	return rc > 0 ? 0 : rc < 0 && errno == EINTR ? -EINTR : -ETIMEDOUT;
}

static int connect_to(const struct sockaddr_storage *address, double deadline, int *fd)
{
	int failure = 0, rc;
	socklen_t length = sizeof(failure);

	*fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd < 0)
		return -errno;
	if (!connect(*fd, (const struct sockaddr *)address, sizeof(*address)))
		return 0;
	if (errno != EINPROGRESS)
		return -errno;
	rc = wait_ready(*fd, POLLOUT, deadline);
	if (!rc && getsockopt(*fd, SOL_SOCKET, SO_ERROR, &failure, &length))
		rc = -errno;
	return rc ? rc : -failure;
}

static int read_reply(int fd, double deadline)
{
	unsigned char reply[sizeof(null_reply)];
	size_t length = 0;

	while (length < sizeof(reply)) {
		int rc = wait_ready(fd, POLLIN, deadline);
		ssize_t got = rc ? 0 : recv(fd, reply + length, sizeof(reply) - length, 0);

		if (rc)
			return rc;
		if (got <= 0)
			return got ? -errno : -ECONNRESET;
		length += (size_t)got;
	}
	return memcmp(reply, null_reply, sizeof(reply)) ? -EPROTO : 0;
}

static int call_null(const struct sockaddr_storage *address, double deadline)
{
	int fd, rc = connect_to(address, deadline, &fd);

	if (!rc)
		rc = socket_send(fd, (const char *)null_call, sizeof(null_call));
	if (!rc)
		rc = read_reply(fd, deadline);
	if (fd >= 0)
		close(fd);
	return rc;
}

static void take_address(const json_t *result, struct sockaddr_storage *address)
{
	const char *text = json_string_value(json_object_get(result, "address"));
	struct sockaddr_in6 *v6 = (void *)address;
	struct sockaddr_in *v4 = (void *)address;
	in_port_t port = htons((in_port_t)json_integer_value(json_object_get(result, "port")));

	memset(address, 0, sizeof(*address));
	if (text && inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = port;
	} else if (text && inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = port;
	}
}

/* There is a process, and nobody to ask: it starts, or ends. */
static int no_socket(struct command *c, const char *pool)
{
	int process = open_lock_holder(c, pool);

	if (process == -ENOENT)
		return not_served(c, pool);
	if (process >= 0)
		close(process);
	return error_set(&c->error, -EBUSY, pool, "its server is starting, or stopping");
}

/* Hands the verb to the server. */
static int ask(struct command *c, const char *pool)
{
	int fd, rc;

	c->deadline = deadline_of(c, PROBE_SECONDS) + TELLING_SECONDS;
	rc = client_connect(c, pool, &fd, &c->error);
	if (rc)
		return rc == -ENOENT ? no_socket(c, pool) : rc;
	return client_call(c, fd, pool, c->verb, c->args, c->result, &c->error);
}

int server_end_grace(struct command *c, const char *pool)
{
	return ask(c, pool);
}

/* As `pool attach --rebooted` takes it. */
static void put_boot(const struct command *c)
{
	uint8_t boot[16];
	char text[120];
	json_t *uuid;

	boot_id_read(boot);
	uuid = json_uuid(boot);
	snprintf(text, sizeof(text), "%s:%s", command_host(c), json_string_value(uuid));
	put_text(json_object_get(c->result, "probe"), "boot", text);
	json_decref(uuid);
}

static int probe_address(struct command *c, const char *pool)
{
	struct sockaddr_storage address;
	int rc;

	take_address(c->result, &address);
	rc = call_null(&address, c->deadline);
	if (rc)
		return error_set(&c->error, rc == -ECONNREFUSED ? -EIO : rc, pool,
			"its server does not answer NFS at %s port %lld: %s",
			json_string_value(json_object_get(c->result, "address")),
			(long long)json_integer_value(json_object_get(c->result, "port")),
			strerror(-rc));
	put_text(c->result, "message", "The server answers.");
	return 0;
}

int server_probe(struct command *c, const char *pool)
{
	double began = seconds_now();
	int rc = ask(c, pool);

	if (rc)
		return rc;
	put_boot(c);
	if (json_object_get(c->result, "address"))
		rc = probe_address(c, pool);
	else
		put_text(c->result, "message", "The server waits for its address.");
	if (!rc)
		put_integer(c->result, "milliseconds", (uint64_t)((seconds_now() - began) * 1000));
	return rc;
}
