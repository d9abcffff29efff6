/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Opening a pool: is its owner gone, and the claim of the next one. open.c tells the whole. */
#include <stdio.h>
#include <unistd.h>

#include "common/cluster.h"
#include "pool/journal.h"
#include "pool/opening.h"

#define BEAT_WATCH_NS (10ull * 1000 * 1000 * 1000)

/* --- owner ------------------------------------------------------------------------------------ */

static bool is_our_claim(const struct opening *o, const struct label *label)
{
	const struct label *claim = &o->pool->label;

	return label->epoch == claim->epoch && label->owner_pid == claim->owner_pid &&
	       !memcmp(label->owner_boot, claim->owner_boot, sizeof(label->owner_boot)) &&
	       !strcmp(label->owner, claim->owner);
}

static int consider_again(void *data, const struct label *label)
{
	struct opening *o = data;

	if (!memcmp(label->pool, o->best.pool, 16) && !is_our_claim(o, label))
		opening_note(o, label);
	return 0;
}

static int read_again(struct opening *o)
{
	struct labels_asked asked[POOL_DEVICES_MAX] = {{NULL}};
	struct pool *pool = o->pool;
	uint64_t end = engine_clock(o->engine) + DEVICE_ANSWER_NS;
	int rc = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		if (member_usable(&pool->devices[i]))
			labels_ask(o->engine, pool->devices[i].device, &pool->devices[i].header,
				&asked[i]);
	for (unsigned i = 0; i < pool->device_count; i++) {
		int got = labels_take(&asked[i], end, consider_again, o);

		rc = rc ? rc : got;
	}
	return rc;
}

/* Reads all labels once more. -EBUSY, and o->best and o->last are up to date: there is a newer one,
 * or a later claim, not ours. */
static int find_newer(struct opening *o)
{
	struct label_version best = label_version(&o->best), last = label_version(&o->last);
	const struct label *writer;
	int rc = read_again(o);

	if (rc == -ETIMEDOUT)
		return error_set(o->error, rc, o->best.name,
			"one of its devices hangs since it is being opened: try again");
	writer = label_version_order(label_version(&o->last), last) ? &o->last : &o->best;
	if (rc || (writer == &o->best && !label_version_order(label_version(writer), best)))
		return rc;
	return error_set(o->error, -EBUSY, o->best.name,
		"host %s has written its labels while it was opened: it is alive", writer->owner);
}

static int watch_beat(struct opening *o)
{
	struct pool *pool = o->pool;
	uint64_t first = label_beat_read(pool, o->best.epoch);

	log_notice("pool %s: waiting 10 s for a sign of life of its owner %s", pool->label.name,
		o->best.owner);
	engine_sleep(o->engine, BEAT_WATCH_NS);
	if (label_beat_read(pool, o->best.epoch) == first)
		return find_newer(o); /* others may have come and gone */
	return error_set(o->error, -EBUSY, pool->label.name,
		"host %s (process %llu) has it open and is alive; stop it there first",
		o->best.owner, (unsigned long long)o->best.owner_pid);
}

/* Its owner let go of it, is known to be dead, or was a process of this very boot: then neither it
 * nor what it wrote is at the devices any more, since they were opened exclusively. */
static bool owner_is_gone(const struct opening *o, bool ours)
{
	return o->best.state != LABEL_OPEN || o->options->owner_dead ||
	       (ours && !memcmp(o->best.owner_boot, o->options->boot_id, 16));
}

/* A host of our name from another boot: this host before it started again, or, as long as its beat
 * moves, a namesake. One that was fenced gets what it has reserved left to it, too: its last writes
 * may still be on their way. */
static int check_owner(struct opening *o)
{
	const struct label *best = &o->best;
	bool ours = !strcmp(best->owner, o->options->host);
	int rc;

	if (best->state == LABEL_EXPORTED && !o->options->import && !o->options->force)
		return error_set(o->error, -EBUSY, best->name,
			"it is exported; `millrace pool import %s` assigns it to this host",
			best->name);
	if (best->state != LABEL_EXPORTED && !ours && !o->options->force)
		return error_set(o->error, -EBUSY, best->name,
			host_is_member()
				? "node %s had it last; `millrace service list` says which node "
				  "serves it: use it there"
				: "it is assigned to host %s; export it there, or use --force if "
				  "that host is gone",
			best->owner);
	o->owner_gone = owner_is_gone(o, ours);
	if (o->owner_gone)
		return 0;
	rc = o->options->fenced ? 0 : watch_beat(o);
	o->watched = true;
	o->owner_gone = !rc && ours;
	return rc;
}

/* --- claim ------------------------------------------------------------------------------------ */

int opening_check_losses(struct opening *o)
{
	struct pool *pool = o->pool;
	uint64_t lost = opening_lost(o);

	if (losses_allowed(pool, members_active(pool), lost))
		return 0;
	return error_set(o->error, -EIO, pool->label.name,
		"%u of its active devices are missing or take no writes, at most %u may be",
		(unsigned)__builtin_popcountll(lost), pool->m);
}

/* The room of earlier owners is used up: whose death would help, and how to say so. */
int opening_refuse_for_others(struct opening *o, int rc)
{
	const struct label *label = &o->pool->label;
	char names[200];

	owners_name(label, names, sizeof(names));
	return error_set(o->error, rc, label->name,
		"what earlier owners may still write leaves no room for another one; once %s %s "
		"dead or fenced, `millrace pool import --owner-dead %s`",
		names, label->other_count > 1 ? "are all" : "is", label->name);
}

static int settle_owners(struct opening *o)
{
	struct label *label = &o->pool->label;
	bool dead = o->options->owner_dead;
	int rc = 0;

	owners_forget(label, dead ? NULL : o->options->host);
	if (!dead && o->last.epoch > o->best.epoch)
		rc = owners_join(label, &o->last, o->options->host);
	if (!rc && !o->owner_gone)
		rc = owners_add(label);
	return rc ? opening_refuse_for_others(o, rc) : 0;
}

/* An owner that may still write may overwrite what stands in the place of its labels. */
static bool place_is_kept(const struct opening *o, uint64_t epoch)
{
	const struct label *label = &o->pool->label;
	bool kept = epoch % LABEL_RING == o->best.epoch % LABEL_RING;

	for (unsigned i = 0; i < label->other_count; i++)
		kept |= epoch % LABEL_RING == label->others[i].epoch % LABEL_RING;
	return kept;
}

/* Behind all claims, those that the pool does not go by, too. */
static uint64_t next_epoch(const struct opening *o)
{
	uint64_t epoch = o->last.epoch + 1;

	while (place_is_kept(o, epoch))
		epoch++;
	return epoch;
}

/*
 * What the best label says, under a later epoch. Who stands still between its look and its claim
 * may wake up when others have had that epoch: it is their labels then that the claim overwrites,
 * in area A. Those in area B it finds; and whoever begins to open the pool after that finds the
 * claim, and takes another epoch.
 */
static int write_claim(struct opening *o, uint64_t sequence)
{
	struct pool *pool = o->pool;
	struct label *label = &pool->label;
	int rc;

	*label = o->best;
	rc = settle_owners(o);
	if (rc)
		return rc;
	label->repeats = label_content(&o->best);
	label->epoch = next_epoch(o);
	label->sequence = sequence;
	label->state = LABEL_OPEN;
	label->owner_pid = (uint64_t)getpid();
	memcpy(label->owner_boot, o->options->boot_id, 16);
	memset(label->owner, 0, sizeof(label->owner));
	snprintf(label->owner, sizeof(label->owner), "%s", o->options->host);
	pool->epoch = label->epoch;
	return label_write_claim(pool, find_newer, o);
}

/* From the claim on an owner that is alive gets no further than what it had reserved, whatever it
 * writes to its labels. Before, it may have moved the root, and used what the old one named. */
static int look_again(struct opening *o)
{
	uint64_t best = o->best.epoch, last = o->last.epoch;
	int rc = find_newer(o), again = 0;

	if (rc == -EBUSY && o->best.epoch == best && o->last.epoch == last)
		again = write_claim(o, o->pool->label.sequence);
	return again ? again : rc;
}

/* The beat was watched, or an earlier claim was ended before it had waited: its owner's part of the
 * journal is not known yet. */
static bool must_wait(const struct opening *o)
{
	const struct label *label = &o->pool->label;
	bool wait = o->watched;

	for (unsigned i = 0; i < label->other_count; i++)
		wait |= !label->others[i].to;
	return wait;
}

int opening_claim(struct opening *o)
{
	int rc = check_owner(o);

	if (!rc)
		rc = write_claim(o, 0);

	if (!rc)
		rc = opening_check_losses(o);
	if (!rc)
		rc = beat_start(o->pool);
	if (!rc)
		rc = look_again(o);
	if (!rc && must_wait(o))
		engine_sleep(o->engine, LEASE_WAIT_NS);
	return rc;
}
