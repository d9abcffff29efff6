/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Opening a pool, in this order:
 *
 *   find      every device's header and labels; the label with the greatest (epoch, sequence) is
 *             the pool's; its devices are the members
 *   count     more than m active members missing: these could be an old minority; refused
 *   owner     closed, known dead, or a process of this boot: no wait. Else the old owner's beat is
 *             watched for 10 s
 *   claim     a label of a later epoch on all members, in a place that no owner uses that may
 *             still write: an owner that sees it stops. Then the labels are read again: what the
 *             old owner wrote between "find" and the claim would be lost, so that the opening is
 *             refused, and the claim repeats what is found. From here on the opener beats. An owner
 *             that is not known to be dead may go on acknowledging for as long as its lease lasts,
 *             which is waited for
 *   replay    the root's image, then the journal from the root's place to its first gap
 *   take over the label again, now with the span that this epoch will write; missing members are
 *             dropped in it. Then labels are looked at: when none is of a later epoch, the next
 *             claim will find this one. Only then the journal is started
 *   recover   what dead epochs left reserved or open (recover.c); headers that are bad are mended
 *
 * A crash anywhere leaves a label of some epoch and everything it needs; the claim alone changes
 * nothing but the epoch. Who paused between its claim and its take-over and wakes up behind a later
 * claim writes nothing to the journal.
 */
#include <stdio.h>
#include <unistd.h>

#include "pool/env.h"
#include "pool/internal.h"
#include "pool/journal.h"
#include "pool/row.h"

#define BEAT_WATCH_NS (10ull * 1000 * 1000 * 1000)

struct found {
	struct device *device;
	struct device_header header;
	const char *path;
};

struct opening {
	struct engine *engine;
	const struct pool_open_options *options;
	struct error *error;
	struct pool *pool;
	struct found *found;
	unsigned found_count;
	char unreadable[sizeof(((struct pool *)0)->unreadable)]; /* paths that show no header */
	struct heads heads; /* as found */
	struct label best; /* of the pool chosen */
	bool ambiguous;
	bool rehearsal; /* ends when members are counted, and opens them for reading alone */
	bool owner_gone; /* the best label's owner can write no more */
	bool watched; /* it was waited for: it may be alive after all */
	bool present[POOL_DEVICES_MAX];
};

/* --- find ------------------------------------------------------------------------------------- */

static bool is_newer(const struct label *a, const struct label *b)
{
	return a->epoch > b->epoch || (a->epoch == b->epoch && a->sequence > b->sequence);
}

static int consider(void *data, const struct label *label)
{
	struct opening *o = data;
	struct label *best = &o->best;

	if (o->options->name && strcmp(label->name, o->options->name))
		return 0;
	if (best->device_count && memcmp(best->pool, label->pool, 16)) {
		o->ambiguous = true;
		return 0;
	}
	if (!best->device_count || is_newer(label, best))
		*best = *label;
	return 0;
}

static void note_unreadable(struct opening *o, const char *path)
{
	size_t used = strlen(o->unreadable);

	log_warning("%s: its header cannot be read", path);
	snprintf(
		o->unreadable + used, sizeof(o->unreadable) - used, "%s%s", used ? ", " : "", path);
}

static int look_at(struct opening *o, const char *path)
{
	struct found *f = &o->found[o->found_count];
	int rc;

	rc = device_open(o->engine, path, DEVICE_READ_ONLY, &f->device, NULL);
	if (rc)
		return rc == -ENOMEM || rc == -ESHUTDOWN ? rc : 0;
	rc = device_header_read(o->engine, f->device, &f->header);
	if (!rc)
		rc = label_read_all(o->engine, f->device, &f->header, consider, o);
	device_close(f->device);
	f->device = NULL;
	if (rc == -ENOENT || rc == -EIO)
		note_unreadable(o, path);
	if (rc)
		return rc == -ENOMEM || rc == -ESHUTDOWN ? rc : 0;
	f->path = path;
	o->found_count++;
	return 0;
}

static int find_pool(struct opening *o)
{
	const char *name = o->options->name ? o->options->name : "";

	for (unsigned i = 0; i < o->options->path_count; i++) {
		int rc = look_at(o, o->options->paths[i]);

		if (rc)
			return error_set(o->error, rc, o->options->paths[i], "%s", strerror(-rc));
	}
	if (o->ambiguous)
		return error_set(o->error, -EEXIST, name,
			"the devices hold more than one pool of that name; name the devices of "
			"one");
	if (!o->best.device_count)
		return error_set(o->error, -ENOENT, name, "no device of this pool is found");
	return 0;
}

static struct found *find_member(struct opening *o, unsigned id)
{
	for (unsigned i = 0; i < o->found_count; i++) {
		struct found *f = &o->found[i];

		if (!memcmp(f->header.pool, o->best.pool, 16) && f->header.id == id &&
			!memcmp(f->header.uuid, o->best.devices[id].uuid, 16))
			return f;
	}
	return NULL;
}

static int member_open(struct opening *o, unsigned id)
{
	struct member *member = &o->pool->devices[id];
	struct found *f = find_member(o, id);
	bool look = o->options->read_only || o->rehearsal;
	unsigned flags = look ? DEVICE_READ_ONLY : DEVICE_EXCLUSIVE;
	int rc;

	member->label = o->best.devices[id];
	atomic_init(&member->state,
		member->label.state == DEVICE_DROPPED ? DEVICE_DROPPED : DEVICE_MISSING);
	if (!f)
		return 0;
	rc = device_open(o->engine, f->path, flags, &member->device, o->error);
	if (rc)
		return rc;
	member->header = f->header;
	member->slots_offset = f->header.slots_offset;
	snprintf(member->path, sizeof(member->path), "%s", f->path);
	o->pool->header = f->header;
	atomic_store(&member->state, member->label.state);
	o->present[id] = true;
	return 0;
}

static int open_members(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc = 0;

	pool->label = o->best;
	memcpy(pool->unreadable, o->unreadable, sizeof(pool->unreadable));
	pool->device_count = o->best.device_count;
	for (unsigned i = 0; !rc && i < pool->device_count; i++)
		rc = member_open(o, i);
	if (rc == -EBUSY || rc == -EWOULDBLOCK)
		return error_set(o->error, -EBUSY, pool->label.name, "another process has it open");
	return rc;
}

/* --- count ------------------------------------------------------------------------------------ */

/* An opening for writing drops it: it is missing, or took no claim. */
static bool is_lost(const struct opening *o, unsigned i)
{
	return o->best.devices[i].state == DEVICE_ACTIVE &&
	       (!o->present[i] || atomic_load(&o->pool->devices[i].failing));
}

static unsigned count_lost(const struct opening *o)
{
	unsigned lost = 0;

	for (unsigned i = 0; i < o->pool->device_count; i++)
		lost += is_lost(o, i);
	return lost;
}

static unsigned count_active(const struct opening *o)
{
	unsigned count = 0;

	for (unsigned i = 0; i < o->pool->device_count; i++)
		count += o->best.devices[i].state == DEVICE_ACTIVE;
	return count;
}

static void name_lost(const struct opening *o, char *text, size_t size)
{
	size_t used = 0;

	text[0] = 0;
	for (unsigned i = 0; i < o->pool->device_count && used + 48 < size; i++) {
		const struct label_device *d = &o->best.devices[i];

		if (!is_lost(o, i))
			continue;
		used += (size_t)snprintf(text + used, size - used, " %u (%02x%02x%02x%02x, %s)", i,
			d->uuid[0], d->uuid[1], d->uuid[2], d->uuid[3], d->domain);
	}
}

static int check_enough(const struct opening *o)
{
	unsigned missing = count_lost(o), active = count_active(o);
	char names[300];

	if (active > missing && missing <= o->pool->m)
		return 0;
	name_lost(o, names, sizeof(names));
	return error_set(o->error, -EIO, o->pool->label.name,
		"%u of %u active devices are missing, at most %u may be; attach device%s", missing,
		active, o->pool->m, names);
}

static int count_members(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc;

	pool->k = pool->header.data;
	pool->m = pool->header.parity;
	rc = check_enough(o);
	if (rc)
		return rc;
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];

		member->slot_count = member->label.slot_count;
		member->slot_map = calloc(member->slot_count, 1);
		if (!member->slot_map)
			return -ENOMEM;
	}
	if (members_usable(pool) < pool->m + 1)
		pool->read_only = true;
	return 0;
}

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

	if (!memcmp(label->pool, o->best.pool, 16) && is_newer(label, &o->best) &&
		!is_our_claim(o, label))
		o->best = *label;
	return 0;
}

/* Reads all labels once more. -EBUSY, and o->best is the newest: there is a newer one, not ours. */
static int find_newer(struct opening *o)
{
	struct pool *pool = o->pool;
	uint64_t epoch = o->best.epoch, sequence = o->best.sequence;
	int rc = 0;

	for (unsigned i = 0; !rc && i < pool->device_count; i++)
		if (member_usable(&pool->devices[i]))
			rc = label_read_all(o->engine, pool->devices[i].device,
				&pool->devices[i].header, consider_again, o);
	if (rc || (o->best.epoch == epoch && o->best.sequence == sequence))
		return rc;
	return error_set(o->error, -EBUSY, o->best.name,
		"host %s has written its labels while it was opened: it is alive", o->best.owner);
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

/* Its owner let go of it, is known to be dead, or was a process of this very boot: then it holds
 * the devices no more, since they were opened exclusively. */
static bool owner_is_gone(const struct opening *o, bool ours)
{
	return o->best.state != LABEL_OPEN || o->options->owner_dead ||
	       (ours && !memcmp(o->best.owner_boot, o->options->boot_id, 16));
}

/* A host of our name from another boot: this host before it started again, or, as long as its beat
 * moves, a namesake. */
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
			"it is assigned to host %s; export it there, or use --force if that host "
			"is gone",
			best->owner);
	o->owner_gone = owner_is_gone(o, ours);
	if (o->owner_gone)
		return 0;
	rc = watch_beat(o);
	o->watched = true;
	o->owner_gone = !rc && ours;
	return rc;
}

/* --- claim, replay, take over --------------------------------------------------------------- */

/* Members that took no claim are going to be dropped, as the missing ones are, and are counted with
 * them. */
static int check_losses(struct opening *o)
{
	struct pool *pool = o->pool;
	unsigned lost = count_lost(o);

	if (lost <= pool->m)
		return 0;
	return error_set(o->error, -EIO, pool->label.name,
		"%u of its active devices are missing or take no writes, at most %u may be", lost,
		pool->m);
}

/* The room of earlier owners is used up: whose death would help, and how to say so. */
static int refuse_for_others(struct opening *o, int rc)
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

	owners_forget(label, o->options->owner_dead ? NULL : o->options->host);
	if (o->owner_gone || !owners_add(label))
		return 0;
	return refuse_for_others(o, -EBUSY);
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

static uint64_t next_epoch(const struct opening *o)
{
	uint64_t epoch = o->best.epoch + 1;

	while (place_is_kept(o, epoch))
		epoch++;
	return epoch;
}

/* What the best label says, under a later epoch. */
static int write_claim(struct opening *o, uint64_t sequence)
{
	struct pool *pool = o->pool;
	struct label *label = &pool->label;
	int rc;

	*label = o->best;
	rc = settle_owners(o);
	if (rc)
		return rc;
	label->epoch = next_epoch(o);
	label->sequence = sequence;
	label->state = LABEL_OPEN;
	label->owner_pid = (uint64_t)getpid();
	memcpy(label->owner_boot, o->options->boot_id, 16);
	memset(label->owner, 0, sizeof(label->owner));
	snprintf(label->owner, sizeof(label->owner), "%s", o->options->host);
	pool->epoch = label->epoch;
	return label_write(pool);
}

/* From the claim on an owner that is alive gets no further than what it had reserved, whatever it
 * writes to its labels. Before, it may have moved the root, and used what the old one named. */
static int look_again(struct opening *o)
{
	uint64_t epoch = o->best.epoch;
	int rc = find_newer(o), again = 0;

	if (rc == -EBUSY && o->best.epoch == epoch)
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

static int claim(struct opening *o)
{
	int rc = write_claim(o, 0);

	if (!rc)
		rc = check_losses(o);
	if (!rc)
		rc = beat_start(o->pool);
	if (!rc)
		rc = look_again(o);
	if (!rc && must_wait(o))
		engine_sleep(o->engine, LEASE_WAIT_NS);
	return rc;
}

static int replay_pool(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	return length && payload[0] == RECORD_CHANGES
		       ? txn_replay_pool(pool, lsn, payload + 1, length - 1)
		       : 0;
}

static int replay_volumes(struct pool *pool, uint64_t lsn, const uint8_t *payload, size_t length)
{
	return length && payload[0] == RECORD_CHANGES
		       ? txn_replay_volumes(pool, lsn, payload + 1, length - 1)
		       : 0;
}

/* The root's segments, so that its image can be read before there is a table. */
static int insert_root_segments(struct pool *pool)
{
	for (unsigned i = 0; i < pool->label.root_segment_count; i++) {
		struct segment *segment;
		int rc = segment_insert(pool, &pool->label.root_segments[i], &segment);

		if (rc)
			return rc;
		segment_put(segment);
	}
	return 0;
}

static void remove_root_segments(struct pool *pool)
{
	for (unsigned i = 0; i < pool->label.root_segment_count; i++) {
		struct segment *segment = segment_get(pool, pool->label.root_segments[i].id);

		if (segment) {
			segment_remove(pool, segment);
			segment_put(segment);
		}
	}
}

static int load_root(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc = insert_root_segments(pool);

	if (!rc)
		rc = env_create(
			pool, 0, pool->label.root.kind ? &pool->label.root : NULL, &pool->env);
	remove_root_segments(pool);
	return rc ? error_set(o->error, rc, pool->label.name,
			    "its metadata image cannot be loaded: %s", strerror(-rc))
		  : 0;
}

/*
 * The pool's own environment in a first round, because it tells where the volumes' newest images
 * are; then, with the segment table in memory, the volumes.
 */
static int replay(struct opening *o, struct journal_position *end, uint64_t *window)
{
	struct pool *pool = o->pool;
	struct journal_position again;
	int rc = journal_replay(pool, &pool->label.replay, replay_pool, end, window);

	if (!rc)
		rc = txn_replay_end(pool);
	if (!rc)
		rc = recover_table(pool);
	if (!rc)
		rc = journal_replay(pool, &pool->label.replay, replay_volumes, &again, window);
	if (!rc)
		rc = txn_replay_end(pool);
	if (!rc && again.lsn != end->lsn)
		return error_set(o->error, -EBUSY, pool->label.name,
			"its journal grows while it is read: its owner %s is alive", o->best.owner);
	return rc ? error_set(o->error, rc, pool->label.name, "its journal cannot be replayed: %s",
			    strerror(-rc))
		  : 0;
}

static int load(struct opening *o, struct journal_position *end, uint64_t *window)
{
	int rc = load_root(o);

	return rc ? rc : replay(o, end, window);
}

/* Members that are missing now are not believed when they come back. */
static void drop_missing(struct opening *o, uint64_t lsn)
{
	for (unsigned i = 0; i < o->pool->device_count; i++) {
		struct label_device *d = &o->pool->label.devices[i];

		if (d->state == DEVICE_ACTIVE && !o->present[i]) {
			d->state = DEVICE_DROPPED;
			d->dropped_lsn = lsn;
			o->pool->devices[i].label = *d;
			atomic_store(&o->pool->devices[i].state, DEVICE_DROPPED);
			log_warning("pool %s: device %u is missing and dropped",
				o->pool->label.name, i);
		}
	}
}

static int record_epoch(struct pool *pool, const struct journal_position *start)
{
	uint8_t payload[24];
	struct writer w = writer_on(payload, sizeof(payload));
	int rc;

	put_u64(&w, pool->epoch);
	put_u64(&w, start->lsn - 1);
	put_u64(&w, start->hash);
	rc = journal_reserve(pool, sizeof(payload), true);
	if (rc)
		return rc;
	journal_append(pool, RECORD_EPOCH, payload, sizeof(payload));
	journal_unreserve(pool, sizeof(payload));
	return 0;
}

static int begin_span(struct opening *o, struct journal_position *start, uint64_t window)
{
	int rc = journal_begin_span(o->pool, start, window);

	if (rc && o->pool->label.other_count)
		return refuse_for_others(o, rc);
	return rc ? error_set(o->error, rc, o->pool->label.name, "its journal is full") : 0;
}

static int take_over(struct opening *o, struct journal_position *start, uint64_t window)
{
	struct pool *pool = o->pool;
	struct journal_span *span;
	int rc = begin_span(o, start, window);

	if (rc)
		return rc;
	drop_missing(o, start->lsn - 1);
	rc = label_write(pool);
	if (rc)
		return error_set(o->error, rc, pool->label.name, "its labels cannot be written: %s",
			strerror(-rc));
	rc = beat_still_ours(pool);
	if (rc)
		return error_set(o->error, rc, pool->label.name, "%s",
			rc == -ESTALE ? "another host has taken it over while it was opened"
				      : "the labels of too few devices can be read");
	recover_note_owners(pool);
	span = &pool->label.spans[pool->label.span_count - 1];
	rc = journal_start(pool, start, pool->label.replay.position, span->window);
	return rc ? rc : record_epoch(pool, start);
}

static void set_limits(struct pool *pool)
{
	uint64_t capacity = place_capacity(pool);

	pool->stock_size = capacity / 64 < 2   ? 2
			   : capacity / 64 > 8 ? 8
					       : (unsigned)(capacity / 64);
	atomic_init(&pool->image_room, UINT64_MAX);
	atomic_init(&pool->own_room, UINT64_MAX);
	pool->reserve_segments = capacity / 32 < 4 ? 4 : (uint32_t)(capacity / 32);
	pool->stock = calloc(pool->stock_size, sizeof(*pool->stock));
}

static int finish(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc;

	/* May use the last of the journal: in a full pool, a checkpoint that makes room in it needs
	 * the slots that are freed here. */
	txn_urgent_begin();
	rc = recover_segments(pool);
	txn_urgent_end();
	if (!rc)
		rc = segment_drop_leftovers(pool);
	if (!rc)
		rc = segment_restock(pool);
	if (!rc)
		rc = heads_mend(pool, &o->heads, true);
	if (!rc)
		rc = pool_drop_failing(pool);
	checkpoint_measure(pool);
	if (!rc && o->options->background)
		rc = pool_start_maintenance(pool);
	return rc;
}

static int open_for_writing(struct opening *o)
{
	struct journal_position end;
	uint64_t window;
	int rc = check_owner(o);

	if (!rc)
		rc = claim(o);
	if (!rc)
		rc = load(o, &end, &window);
	if (!rc)
		rc = take_over(o, &end, window);
	if (!rc)
		rc = finish(o);
	return rc;
}

static int open_for_reading(struct opening *o)
{
	struct journal_position end;
	uint64_t window;

	o->pool->epoch = o->best.epoch;
	return load(o, &end, &window);
}

/* --- the whole ----------------------------------------------------------------------------------
 */

static int pool_new(struct opening *o)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	pthread_condattr_t monotonic;

	if (!pool)
		return -ENOMEM;
	o->pool = pool;
	pool->engine = o->engine;
	pool->options = *o->options;
	pool->read_only = o->options->read_only;
	pool->next_segment = 1;
	if (!pool->options.row_memory)
		pool->options.row_memory = 64u << 20;
	if (!pool->options.page_cache)
		pool->options.page_cache = 64u << 20;
	if (!pool->options.metadata_limit)
		pool->options.metadata_limit = 16ull << 30;
	if (!pool->options.stream_limit)
		pool->options.stream_limit = 32;
	pthread_mutex_init(&pool->label_lock, NULL);
	pthread_mutex_init(&pool->label_turn, NULL);
	pthread_mutex_init(&pool->volumes_lock, NULL);
	pthread_rwlock_init(&pool->table_lock, NULL);
	pthread_mutex_init(&pool->slots_lock, NULL);
	pthread_mutex_init(&pool->drop_lock, NULL);
	pthread_mutex_init(&pool->row_lock, NULL);
	pthread_mutex_init(&pool->maintain_lock, NULL);
	pthread_mutex_init(&pool->wake_lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	chores_init(pool);
	pool->scratch_dir = strdup(o->options->scratch_dir ? o->options->scratch_dir : "/dev/shm");
	return pool->scratch_dir ? 0 : -ENOMEM;
}

static int open_parts(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc;

	pool->table_size = 64;
	pool->table = calloc(pool->table_size, sizeof(*pool->table));
	if (!pool->table)
		return -ENOMEM;
	rc = page_cache_create(pool, pool->options.page_cache);
	if (!rc)
		rc = journal_create(pool);
	if (rc)
		return rc;
	set_limits(pool);
	return pool->stock ? 0 : -ENOMEM;
}

static int open_all(struct opening *o)
{
	int rc = find_pool(o);

	if (!rc)
		rc = pool_new(o);
	if (!rc)
		rc = open_members(o);
	if (!rc)
		rc = count_members(o);
	if (rc || o->rehearsal)
		return rc;
	rc = open_parts(o);
	if (!rc)
		rc = heads_look(o->pool, &o->heads);
	if (!rc)
		rc = o->pool->read_only ? open_for_reading(o) : open_for_writing(o);
	return rc;
}

static int open_or_rehearse(struct engine *engine, const struct pool_open_options *options,
	bool rehearsal, struct pool **pool, struct error *error)
{
	struct opening *o = calloc(1, sizeof(*o));
	int rc;

	*pool = NULL;
	if (!o)
		return -ENOMEM;
	o->engine = engine;
	o->options = options;
	o->rehearsal = rehearsal;
	o->error = error;
	o->found = calloc(options->path_count + 1, sizeof(*o->found));
	rc = o->found ? open_all(o) : -ENOMEM;
	if (rc && o->pool)
		pool_abandon(o->pool);
	else if (!rc)
		*pool = o->pool;
	if (rc)
		error_set(error, rc, options->name ? options->name : "", "it cannot be opened: %s",
			strerror(-rc));
	free(o->found);
	free(o);
	return rc;
}

int pool_open(struct engine *engine, const struct pool_open_options *options, struct pool **pool,
	struct error *error)
{
	return open_or_rehearse(engine, options, false, pool, error);
}

int pool_may_open(
	struct engine *engine, const struct pool_open_options *options, struct error *error)
{
	struct pool *pool;
	int rc = open_or_rehearse(engine, options, true, &pool, error);

	if (!rc)
		pool_abandon(pool);
	return rc;
}
