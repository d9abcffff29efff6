/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What `serve` asks of the server: to stop, to end grace, or to prove that it does its work. It
 * does when
 *
 *   - what its clients look up first, the root of each export, can be looked up
 *   - all that was changed before the question is durable
 *   - no more devices than parity have been silent for two seconds before it, and since
 *   - a read of a block from devices is answered, be it with an error, which to start the server
 *     anew would not mend
 *
 * Slow is what proves it late, hung what does not within the time that the question allows.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "cli/socket.h"
#include "cli/verb.h"
#include "common/inet.h"

#define BEFORE_NS UINT64_C(2000000000)

static int stop(struct verb_call *call)
{
	if (!call->host || !call->host->stop)
		return error_set(call->error, -EOPNOTSUPP, pool_name(call->pool),
			"what has it open cannot be stopped this way");
	call->host->stop(call->host->data);
	return 0;
}

/* --- probe ------------------------------------------------------------------------------- */

struct proof {
	struct verb_call *call;
	double began, deadline; /* seconds_now() */
	uint64_t lsn; /* to be durable */
	char silent[1000]; /* paths */
};

static bool devices_answer(struct proof *p)
{
	uint64_t since = BEFORE_NS + (uint64_t)((seconds_now() - p->began) * 1e9);

	return pool_answers(p->call->pool, since, p->silent, sizeof(p->silent));
}

static int hung(struct proof *p, bool durable)
{
	const char *name = pool_name(p->call->pool);
	double seconds = p->deadline - p->began;

	if (durable)
		return error_set(p->call->error, -ETIMEDOUT, name,
			"too many of its devices have not answered for %.0f s: %s", seconds,
			p->silent);
	return error_set(p->call->error, -ETIMEDOUT, name,
		"what was changed %.0f s ago is not durable yet%s%s", seconds,
		*p->silent ? "; silent devices: " : "", p->silent);
}

static int wait_for_proof(struct proof *p)
{
	static const struct timespec pause = {.tv_nsec = 50000000};
	struct pool *pool = p->call->pool;

	for (;;) {
		bool answered = devices_answer(p), durable = pool_durable_lsn(pool) >= p->lsn;
		int rc = pool_failure(pool);

		if (rc)
			return error_set(p->call->error, rc, pool_name(pool),
				"it has stopped taking changes: %s", strerror(-rc));
		if (answered && durable)
			return 0;
		if (p->call->reporter->stopped(p->call->reporter))
			return -EINTR;
		if (seconds_now() >= p->deadline)
			return hung(p, durable);
		nanosleep(&pause, NULL);
	}
}

static void put_address(json_t *result, const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;
	char text[INET6_ADDRSTRLEN];

	inet_text(address, text);
	put_text(result, "address", text);
	put_integer(result, "port",
		ntohs(address->ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port));
}

static void put_proof(json_t *result, struct pool *pool)
{
	json_t *probe = json_object();

	put_integer(probe, "not_whole", pool_not_whole(pool));
	put_integer(probe, "may_write", pool_is_reader(pool) ? 0 : pool_other_owners(pool));
	json_object_set_new(result, "probe", probe);
}

static int probe(struct verb_call *call)
{
	struct proof proof = {
		.call = call,
		.began = seconds_now(),
		.lsn = pool_lsn(call->pool),
	};
	struct sockaddr_storage address = {0};
	int rc;

	if (!call->host || !call->host->probe)
		return error_set(call->error, -EOPNOTSUPP, pool_name(call->pool),
			"what has it open is no server");
	proof.deadline = proof.began + (double)call_number(call, "wait", PROBE_SECONDS);
	rc = call->host->probe(call->host->data, &address, call->error);
	if (!rc)
		rc = wait_for_proof(&proof);
	if (rc)
		return rc;
	if (!pool_is_reader(call->pool))
		(void)pool_read_sample(call->pool);
	if (address.ss_family != AF_UNSPEC)
		put_address(call->result, &address);
	put_proof(call->result, call->pool);
	return 0;
}

/* --- grace ------------------------------------------------------------------------------- */

static int end_grace(struct verb_call *call)
{
	bool was;

	if (!call->host || !call->host->end_grace)
		return error_set(call->error, -EOPNOTSUPP, pool_name(call->pool),
			"what has it open is no server");
	was = call->host->end_grace(call->host->data);
	json_object_set_new(call->result, "grace_ended", json_boolean(was));
	put_text(call->result, "message",
		was ? "Grace has ended: who has not reclaimed by now has lost opens and locks."
		    : "It was not in grace.");
	return 0;
}

int verb_serve(struct verb_call *call)
{
	if (call_flag(call, "end-grace"))
		return end_grace(call);
	if (call_flag(call, "stop"))
		return stop(call);
	if (call_flag(call, "probe"))
		return probe(call);
	return error_set(
		call->error, -EBUSY, pool_name(call->pool), ALREADY_SERVED, pool_name(call->pool));
}
