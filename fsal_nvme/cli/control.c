/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The server's end of the control socket. One thread accepts, and tells waiting clients every few
 * seconds that the process is alive; each connection has a thread of its own:
 *
 *   accept -> a line, within CONTROL_PATIENCE -> may the peer? -> parse -> run -> result -> close
 *
 * The line is read even from those that are refused: closing a socket with bytes unread would take
 * the answer from them. While there are CONTROL_CONNECTIONS, nobody is accepted.
 *
 * A connection belongs to its thread until that takes it off the list, under the control's lock;
 * control_stop() waits for the list to be empty.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "cli/socket.h"
#include "cli/verb.h"
#include "common/log.h"

#define ALIVE_SECONDS 5
#define SHORT_OF_ALL_US 100000u

struct connection {
	struct control *control;
	struct connection *next;
	int fd;
	pthread_mutex_t sending; /* one line at a time; `running` */
	bool running; /* a verb is: the client is told that the process is alive */
	bool counts; /* the verb, as one of CONTROL_VERBS */
	_Atomic bool gone; /* the client does not take what is sent */
};

struct control {
	struct control_options options;
	char *path;
	int listener, wake;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	struct connection *connections;
	unsigned count;
	unsigned verbs; /* of the connections: with a verb under way */
	_Atomic bool stopping;
};

struct socket_reporter {
	struct reporter reporter;
	struct connection *connection;
};

/* --- lines to the client ----------------------------------------------------------------- */

static void send_line(struct connection *c, json_t *line)
{
	char *text;
	size_t length;

	json_object_set_new(line, "schema", json_integer(1));
	text = json_dumps(line, JSON_COMPACT);
	json_decref(line);
	if (!text)
		return;
	length = strlen(text);
	text[length] = '\n';
	pthread_mutex_lock(&c->sending);
	if (!c->gone && socket_send(c->fd, text, length + 1))
		c->gone = true;
	pthread_mutex_unlock(&c->sending);
	free(text);
}

static void send_one(struct connection *c, const char *key, json_t *value)
{
	json_t *line = json_object();

	json_object_set_new(line, key, value);
	send_line(c, line);
}

static void set_running(struct connection *c, bool running)
{
	pthread_mutex_lock(&c->sending);
	c->running = running;
	pthread_mutex_unlock(&c->sending);
}

static void send_end(struct connection *c, json_t *result, const struct error *error)
{
	json_t *line = json_object();

	set_running(c, false);
	if (result)
		json_object_set(line, "result", result);
	if (error->code)
		json_object_set_new(line, "error", error_json(error));
	send_line(c, line);
}

/* Never waits: who cannot take it now is told the next time. */
static void send_alive(struct connection *c)
{
	static const char line[] = "{\"schema\":1,\"alive\":true}\n";

	if (pthread_mutex_trylock(&c->sending))
		return;
	if (c->running && !c->gone)
		(void)!send(c->fd, line, sizeof(line) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	pthread_mutex_unlock(&c->sending);
}

/* --- a verb ------------------------------------------------------------------------------ */

static struct connection *connection_of(struct reporter *reporter)
{
	return ((struct socket_reporter *)reporter)->connection;
}

static void report_progress(struct reporter *reporter, json_t *progress)
{
	send_one(connection_of(reporter), "progress", json_incref(progress));
}

static void report_note(struct reporter *reporter, const char *text)
{
	send_one(connection_of(reporter), "note", json_text(text));
}

static bool client_left(struct connection *c)
{
	char byte;
	ssize_t got = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

static bool report_stopped(struct reporter *reporter)
{
	struct connection *c = connection_of(reporter);

	return c->gone || atomic_load(&c->control->stopping) || client_left(c);
}

static void run_verb(struct connection *c, const struct control_request *request)
{
	struct socket_reporter reporter = {
		.reporter = {report_progress, report_note, report_stopped}, .connection = c};
	struct error error = {0};
	struct verb_call call = {
		.verb = request->verb,
		.args = request->args,
		.pool = c->control->options.pool,
		.volumes = c->control->options.volumes,
		.host = c->control->options.host,
		.reporter = &reporter.reporter,
		.result = json_object(),
		.error = &error,
	};

	set_running(c, true);
	/* What only looks is asked again and again. */
	if (!(request->verb->flags & VERB_LOOKS) && !call_flag(&call, "probe") &&
		!call_flag(&call, "returned"))
		log_notice("control: %s%s%s", request->verb->noun, request->verb->name ? " " : "",
			request->verb->name ? request->verb->name : "");
	verb_run(&call);
	if (error.code)
		log_notice("control: %s: %s", error.object, error.message);
	send_end(c, call.result, &error);
	json_decref(call.result);
}

/* However many verbs are under way: who hears nothing takes the server for one that hangs. */
static bool is_probe(const struct control_request *request)
{
	return json_is_true(json_object_get(request->args, "probe"));
}

static int may_run(struct connection *c, const struct control_request *request, struct error *error)
{
	struct control *control = c->control;
	int rc = 0;

	if (!socket_peer_allowed(c->fd))
		return error_set(error, -EPERM, control->path, "only root may use it");
	pthread_mutex_lock(&control->lock);
	c->counts = !is_probe(request);
	if ((c->counts && control->verbs == CONTROL_VERBS) || atomic_load(&control->stopping))
		rc = error_set(error, -EBUSY, pool_name(control->options.pool),
			"too many verbs are under way, or its server is stopping: try again later");
	else
		control->verbs += c->counts;
	pthread_mutex_unlock(&control->lock);
	return rc;
}

static int read_request(struct connection *c, struct control_request *request, struct error *error)
{
	struct line_reader reader = {.fd = c->fd, .limit = CONTROL_REQUEST_MAX};
	const char *line;
	size_t length;
	int rc = line_read(&reader, seconds_now() + CONTROL_PATIENCE, &line, &length);

	if (rc == -EMSGSIZE)
		error_set(error, -EINVAL, "request", "it is longer than %u bytes",
			CONTROL_REQUEST_MAX);
	else if (rc)
		error_set(error, rc, "request", "it did not come: %s", strerror(-rc));
	else
		rc = control_request_parse(line, length, request, error);
	line_reader_free(&reader);
	return rc;
}

static void serve_connection(struct connection *c)
{
	struct timeval patience = {.tv_sec = CONTROL_PATIENCE};
	struct control_request request = {0};
	struct error error = {0};

	setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (read_request(c, &request, &error) || may_run(c, &request, &error)) {
		send_end(c, NULL, &error);
		control_request_free(&request);
		return;
	}
	run_verb(c, &request);
	control_request_free(&request);
	pthread_mutex_lock(&c->control->lock);
	c->control->verbs -= c->counts;
	pthread_mutex_unlock(&c->control->lock);
}

/* --- connections ------------------------------------------------------------------------- */

static void wake(struct control *control)
{
	const uint64_t one = 1;

	(void)!write(control->wake, &one, sizeof(one));
}

static void connection_end(struct connection *c)
{
	struct control *control = c->control;
	struct connection **at = &control->connections;

	pthread_mutex_lock(&control->lock);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	close(c->fd);
	pthread_mutex_destroy(&c->sending);
	free(c);
	control->count--;
	wake(control);
	pthread_cond_broadcast(&control->ended);
	pthread_mutex_unlock(&control->lock);
}

static void *connection_thread(void *argument)
{
	struct connection *c = argument;

	serve_connection(c);
	connection_end(c);
	return NULL;
}

static int connection_start(struct control *control, int fd)
{
	struct connection *c = calloc(1, sizeof(*c));
	pthread_attr_t detached;
	pthread_t thread;
	int rc;

	if (!c)
		return -ENOMEM;
	c->control = control;
	c->fd = fd;
	pthread_mutex_init(&c->sending, NULL);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	c->next = control->connections;
	control->connections = c;
	control->count++;
	rc = -pthread_create(&thread, &detached, connection_thread, c);
	pthread_attr_destroy(&detached);
	if (rc) {
		control->connections = c->next;
		control->count--;
		free(c);
	}
	return rc;
}

static void accept_one(struct control *control)
{
	int fd = accept4(control->listener, NULL, NULL, SOCK_CLOEXEC), rc;

	if (fd < 0) {
		/* The connection waits on where descriptors or memory are short. */
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			usleep(SHORT_OF_ALL_US);
		return;
	}
	pthread_mutex_lock(&control->lock);
	rc = connection_start(control, fd);
	pthread_mutex_unlock(&control->lock);
	if (rc)
		close(fd);
}

static bool full(struct control *control)
{
	bool is;

	pthread_mutex_lock(&control->lock);
	is = control->count == CONTROL_CONNECTIONS;
	pthread_mutex_unlock(&control->lock);
	return is;
}

static void tell_alive(struct control *control)
{
	pthread_mutex_lock(&control->lock);
	for (struct connection *c = control->connections; c; c = c->next)
		send_alive(c);
	pthread_mutex_unlock(&control->lock);
}

/* `wake` says that a connection has ended, or that all is to end. */
static void *control_thread(void *argument)
{
	struct control *control = argument;
	struct pollfd fds[] = {{.fd = control->listener}, {.fd = control->wake, .events = POLLIN}};
	double next = seconds_now() + ALIVE_SECONDS;

	while (!atomic_load(&control->stopping)) {
		double left = next - seconds_now();
		uint64_t count;

		fds[0].events = full(control) ? 0 : POLLIN;
		poll(fds, 2, left > 0 ? (int)(left * 1000) + 1 : 0);
		if (fds[1].revents & POLLIN)
			(void)!read(control->wake, &count, sizeof(count));
		if (fds[0].revents & POLLIN)
			accept_one(control);
		if (seconds_now() < next)
			continue;
		tell_alive(control);
		next = seconds_now() + ALIVE_SECONDS;
	}
	return NULL;
}

/* --- start and stop ---------------------------------------------------------------------- */

static void control_free(struct control *control)
{
	if (control->listener >= 0)
		close(control->listener);
	if (control->wake >= 0)
		close(control->wake);
	pthread_mutex_destroy(&control->lock);
	pthread_cond_destroy(&control->ended);
	free(control->path);
	free(control);
}

static int control_open(struct control *control)
{
	int rc;

	control->path = strdup(control->options.path);
	control->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!control->path || control->wake < 0)
		return -ENOMEM;
	control->listener = socket_listen(control->path);
	if (control->listener < 0)
		return control->listener;
	rc = -pthread_create(&control->thread, NULL, control_thread, control);
	if (rc)
		unlink(control->path);
	return rc;
}

int control_start(
	const struct control_options *options, struct control **result, struct error *error)
{
	struct control *control = calloc(1, sizeof(*control));
	pthread_condattr_t monotonic;
	int rc;

	*result = NULL;
	if (!control)
		return -ENOMEM;
	control->options = *options;
	control->listener = control->wake = -1;
	pthread_mutex_init(&control->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&control->ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	rc = control_open(control);
	if (rc) {
		control_free(control);
		return error_set(error, rc, options->path,
			"the control socket cannot be opened: %s", strerror(-rc));
	}
	*result = control;
	return 0;
}

/* Those that wait for a request see the end of it; verbs are asked by report_stopped(). */
static int wait_for_connections(struct control *control, unsigned seconds)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += seconds;
	pthread_mutex_lock(&control->lock);
	for (struct connection *c = control->connections; c; c = c->next)
		shutdown(c->fd, SHUT_RD);
	while (!rc && control->connections)
		rc = pthread_cond_timedwait(&control->ended, &control->lock, &until);
	rc = control->connections ? -ETIMEDOUT : 0;
	pthread_mutex_unlock(&control->lock);
	return rc;
}

int control_stop(struct control *control, unsigned seconds)
{
	int rc;

	if (!control)
		return 0;
	atomic_store(&control->stopping, true);
	wake(control);
	pthread_join(control->thread, NULL);
	unlink(control->path);
	rc = wait_for_connections(control, seconds);
	if (!rc)
		control_free(control);
	return rc;
}

/* --- places ------------------------------------------------------------------------------ */

int control_path(const char *run_dir, const char *pool, char *path, size_t size)
{
	return (size_t)snprintf(path, size, "%s/%s.sock", run_dir, pool) < size ? 0 : -ENAMETOOLONG;
}

int host_lock(
	const char *run_dir, const char *pool, unsigned seconds, int *lock, struct error *error)
{
	double deadline = seconds_now() + seconds;
	char path[4096];
	int fd;

	*lock = -1;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s.lock", run_dir, pool) >= sizeof(path))
		return error_set(error, -ENAMETOOLONG, run_dir, "its name is too long");
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return error_set(error, -errno, path, "the lock cannot be opened: %s; run as root",
			strerror(errno));
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EINTR && errno != EWOULDBLOCK) {
			int rc = -errno;

			close(fd);
			return error_set(error, rc, path, "%s", strerror(-rc));
		}
		if (seconds_now() >= deadline) {
			close(fd);
			return error_set(error, -EBUSY, pool,
				"another process of this host has it open; wait until that is "
				"done");
		}
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
	*lock = fd;
	return 0;
}
