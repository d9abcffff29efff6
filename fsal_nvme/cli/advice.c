/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What is wrong with a pool, worst first, and what an admin should do and type. Pure. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/progress.h"
#include "cli/verb.h"

#define FULL_PERCENT 95

struct advice {
	const struct pool_status *status;
	const char *pool; /* its name */
	bool member; /* of a cluster, which starts and ends servers */
	unsigned away, missing; /* devices: missing or dropped; missing */
	json_t *list;
	char what[600]; /* of the row that follows */
};

static void what(struct advice *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void what(struct advice *a, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(a->what, sizeof(a->what), format, args);
	va_end(args);
}

static void next(struct advice *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void next(struct advice *a, const char *format, ...)
{
	char text[600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	advice_add(a->list, a->what, text);
}

void advice_add(json_t *list, const char *what_is_wrong, const char *what_to_do)
{
	json_t *row = json_object();

	put_text(row, "what", what_is_wrong);
	put_text(row, "next", what_to_do);
	json_array_append_new(list, row);
}

/* --- devices ----------------------------------------------------------------------------- */

/* How to look at a drive: in words where its path is not known. */
static const char *drive_check(const struct pool_device_status *d, char *text, size_t size)
{
	snprintf(text, size, "%s%s%s", d->path[0] ? "`smartctl -a " : "the drive", d->path,
		d->path[0] ? "`" : "");
	return text;
}

static void advise_errors(struct advice *a, const struct pool_device_status *d)
{
	char check[300];

	what(a,
		"device %u (%s, domain %s) had %llu read, %llu write and %llu checksum errors "
		"since the pool was opened; %llu blocks were rebuilt and repaired",
		d->id, d->path, d->domain, (unsigned long long)d->read_errors,
		(unsigned long long)d->write_errors, (unsigned long long)d->checksum_errors,
		(unsigned long long)d->repaired);
	next(a,
		"`millrace pool check %s --repair` finds and mends what else is bad; look at "
		"`dmesg` and %s, and replace the drive when errors go on",
		a->pool, drive_check(d, check, sizeof(check)));
}

static void advise_device(struct advice *a, const struct pool_device_status *d)
{
	char check[300];

	if (d->state == DEVICE_MISSING && a->status->unreadable[0]) {
		what(a, "device %u (domain %s) is missing; %s: its header cannot be read", d->id,
			d->domain, a->status->unreadable);
		next(a, "look at `dmesg`, cables and the drive before the pool is written to: "
			"without it, it lacks something");
	} else if (d->state == DEVICE_MISSING && a->status->reader) {
		what(a, "device %u (domain %s) is missing", d->id, d->domain);
		next(a,
			"when it is there again, `millrace pool attach %s --reader --returned` has "
			"this host's reader read it",
			a->pool);
	} else if (d->state == DEVICE_MISSING && a->member) {
		what(a, "device %u (domain %s) is missing", d->id, d->domain);
		next(a,
			"attach it: the cluster takes it back when it finds it, and `millrace pool "
			"attach %s` at once; `millrace pool replace %s %u NEW` puts another one in "
			"its place",
			a->pool, a->pool, d->id);
	} else if (d->state == DEVICE_MISSING) {
		what(a, "device %u (domain %s) is missing", d->id, d->domain);
		next(a,
			"attach it, and let `millrace pool import %s` look for it; once the pool "
			"was written to without it, it lacks something, and `millrace pool attach "
			"%s` takes it back; `millrace pool replace %s %u NEW` puts another one in "
			"its place",
			a->pool, a->pool, a->pool, d->id);
	} else if (d->state == DEVICE_DROPPED) {
		what(a, "device %u (%s, domain %s) missed writes and is not used any more", d->id,
			d->path[0] ? d->path : "path not known", d->domain);
		next(a,
			"look at `dmesg`, cables and %s; when it is well, `millrace pool attach "
			"%s` takes it back and makes it whole; else `millrace pool replace %s %u "
			"NEW` puts another one in its place",
			drive_check(d, check, sizeof(check)), a->pool, a->pool, d->id);
	} else if (d->suspect) {
		what(a, "device %u (%s, domain %s) was away and is not whole yet", d->id, d->path,
			d->domain);
		next(a, "`millrace pool attach %s` puts there what it lacks", a->pool);
	} else if (d->read_errors + d->write_errors + d->checksum_errors) {
		advise_errors(a, d);
	}
}

static void advise_devices(struct advice *a)
{
	for (unsigned i = 0; i < a->status->device_count; i++)
		advise_device(a, &a->status->devices[i]);
}

/* --- safety ------------------------------------------------------------------------------ */

static void name_missing(const struct pool_status *s, char *text, size_t size)
{
	size_t used = 0;

	text[0] = 0;
	for (unsigned i = 0; i < s->device_count && used + 80 < size; i++)
		if (s->devices[i].state == DEVICE_MISSING)
			used += (size_t)snprintf(text + used, size - used, " %u (domain %s)", i,
				s->devices[i].domain);
}

static void advise_writing(struct advice *a)
{
	const struct pool_status *s = a->status;
	char names[300];
	unsigned usable = s->device_count - a->away, parity = s->summary.parity;

	if (usable > parity)
		return;
	what(a, "the pool is read-only: %u devices are in use, and writing needs %u", usable,
		parity + 1);
	name_missing(a->status, names, sizeof(names));
	if (a->missing && a->member)
		next(a,
			"attach device%s: the cluster takes back what it finds; copy what it holds "
			"to another pool before one more fails",
			names);
	else if (a->missing)
		next(a,
			"attach device%s, then `millrace serve %s --stop` and `millrace serve %s`; "
			"copy what it holds to another pool before one more fails",
			names, a->pool, a->pool);
	else
		next(a, "copy what it holds to another pool before one more fails: devices that "
			"missed writes are not taken back");
}

static void next_of_losses(struct advice *a)
{
	bool more = a->away > a->status->summary.parity;

	if (more)
		next(a,
			"attach %s; `millrace pool attach %s` takes devices back, and what one "
			"still has is read where checksums prove it; `millrace pool check %s` "
			"names the files that cannot be read",
			a->missing ? "what is missing" : "all devices", a->pool, a->pool);
	else
		next(a,
			"keep the others attached%s; one that missed writes is written again once "
			"`millrace pool attach %s` has taken it back",
			a->missing ? ", and attach what is missing" : "", a->pool);
}

/* Segments have no more chunks there than parity makes up for, however many devices it has. */
static bool one_domain_is_away(const struct pool_status *s)
{
	const char *domain = NULL;

	for (unsigned i = 0; i < s->device_count; i++) {
		if (s->devices[i].state == DEVICE_ACTIVE)
			continue;
		if (domain && strcmp(domain, s->devices[i].domain))
			return false;
		domain = s->devices[i].domain;
	}
	return domain && !s->segments_uneven;
}

static void advise_losses(struct advice *a)
{
	const struct pool_status *s = a->status;
	unsigned parity = s->summary.parity;
	char risk[80];

	if (!a->away)
		return;
	if (a->away > parity && !one_domain_is_away(s))
		snprintf(
			risk, sizeof(risk), "more than the %u of parity: data may be lost", parity);
	else if (a->away >= parity)
		snprintf(risk, sizeof(risk), "one more would lose data");
	else
		snprintf(risk, sizeof(risk), "%u more may be lost", parity - a->away);
	what(a, "%u of %u devices are gone, %s; %llu of %llu segments lack chunks%s", a->away,
		s->device_count, risk, (unsigned long long)s->segments_degraded,
		(unsigned long long)s->segments,
		s->new_data && s->new_data < s->summary.data
			? ", and new ones have fewer data chunks, and hold less"
			: "");
	next_of_losses(a);
}

static bool first_of_its_domain(const struct pool_status *s, unsigned device)
{
	for (unsigned i = 0; i < device; i++)
		if (s->devices[i].state == DEVICE_ACTIVE &&
			!strcmp(s->devices[i].domain, s->devices[device].domain))
			return false;
	return s->devices[device].state == DEVICE_ACTIVE;
}

static unsigned domains_in_use(const struct pool_status *s)
{
	unsigned count = 0;

	for (unsigned i = 0; i < s->device_count; i++)
		count += first_of_its_domain(s, i);
	return count;
}

static bool domains_were_named(const struct pool_status *s)
{
	for (unsigned i = 1; i < s->device_count; i++)
		if (strcmp(s->devices[i].domain, s->devices[0].domain))
			return true;
	return false;
}

/* Written where there was room, or by a version that made them as wide whatever was away. */
static void advise_uneven(struct advice *a)
{
	what(a,
		"the loss of a whole domain would lose data: %llu segments were written while "
		"devices were away, or nearly full, and have more chunks in one domain than parity "
		"makes up for",
		(unsigned long long)a->status->segments_uneven);
	next(a, "copy files that were written then, and delete the old ones, if a domain must be "
		"able to fail");
}

/* A pool in one host is not expected to live without it. */
static void advise_domains(struct advice *a)
{
	const struct pool_status *s = a->status;
	unsigned width = s->summary.data + s->summary.parity;

	if (s->domain_may_die || !domains_were_named(s))
		return;
	if (domains_in_use(s) >= (width + s->summary.parity - 1) / s->summary.parity &&
		s->segments_uneven) {
		advise_uneven(a);
		return;
	}
	what(a,
		"the loss of a whole domain would lose data: %u domains are in use, and %u+%u "
		"needs %u",
		domains_in_use(s), s->summary.data, s->summary.parity,
		(width + s->summary.parity - 1) / s->summary.parity);
	next(a,
		"%swhere a domain (a host, an enclosure) must be able to fail, make a pool with "
		"more of them, or with more parity",
		a->away ? "attach what is missing; " : "");
}

/* --- space, owners ----------------------------------------------------------------------- */

static void advise_space(struct advice *a)
{
	const struct pool_status *s = a->status;
	uint64_t total = s->usable > s->reserve ? s->usable - s->reserve : 0;
	uint64_t taken = s->used + s->kept, left = total > taken ? total - taken : 0;
	char kept[64] = "", text[3][16];

	/* Where nothing can be written there is no free space to speak of. */
	if (s->device_count - a->away <= s->summary.parity ||
		(total && taken <= total / 100 * FULL_PERCENT))
		return;
	if (s->kept)
		snprintf(kept, sizeof(kept), "; %s are kept for files that may still use them",
			bytes_text(s->kept, text[2], sizeof(text[2])));
	if (left)
		what(a, "the pool is nearly full: %s of %s are free%s",
			bytes_text(left, text[0], sizeof(text[0])),
			bytes_text(total, text[1], sizeof(text[1])), kept);
	else
		what(a, "the pool is full: nothing new can be written, but files can be deleted%s",
			kept);
	next(a,
		"`millrace dataset list %s` and `millrace share list %s` show what takes the "
		"space: "
		"delete files, or destroy some of them",
		a->pool, a->pool);
}

static void advise_owners(struct advice *a)
{
	if (!a->status->other_owners[0])
		return;
	what(a,
		"%s had the pool open when it was taken over, and may still write: what is deleted "
		"of older data gives no space back",
		a->status->other_owners);
	if (a->member)
		next(a,
			"the cluster sees to it when those nodes have booted, or, where one never "
			"will, behind `millrace cluster remove`; where only a server died, "
			"`millrace service move` there and back; of a host that is no node any "
			"more, and off, say `millrace pool attach %s --returned --gone HOST`",
			a->pool);
	else
		next(a,
			"once they are known to be dead or fenced: `millrace serve %s --stop`, "
			"`millrace pool import --owner-dead %s`, `millrace serve %s`",
			a->pool, a->pool, a->pool);
}

static void advise_failure(struct advice *a)
{
	if (!a->status->failure)
		return;
	if (a->status->failure == -EROFS)
		what(a, "the pool takes no changes any more: too few of its devices do");
	else
		what(a, "the pool has stopped: %s", strerror(-a->status->failure));
	if (a->member)
		next(a, "see the log of its server for the cause, and mend that: the cluster "
			"starts it again");
	else
		next(a,
			"see the log of its server for the cause, mend that, then `millrace serve "
			"%s --stop` and `millrace serve %s`",
			a->pool, a->pool);
}

static unsigned devices_in(const struct pool_status *s, enum device_state state)
{
	unsigned count = 0;

	for (unsigned i = 0; i < s->device_count; i++)
		count += s->devices[i].state == state;
	return count;
}

unsigned pool_devices_away(const struct pool_status *s)
{
	return s->device_count - devices_in(s, DEVICE_ACTIVE);
}

unsigned pool_devices_suspect(const struct pool_status *s)
{
	unsigned count = 0;

	for (unsigned i = 0; i < s->device_count; i++)
		count += s->devices[i].suspect;
	return count;
}

json_t *pool_advice(const struct pool_status *status, bool member)
{
	struct advice a = {.status = status,
		.pool = status->summary.name,
		.member = member,
		.away = pool_devices_away(status),
		.missing = devices_in(status, DEVICE_MISSING),
		.list = json_array()};

	advise_failure(&a);
	advise_writing(&a);
	advise_losses(&a);
	advise_devices(&a);
	advise_domains(&a);
	advise_space(&a);
	advise_owners(&a);
	return a.list;
}
