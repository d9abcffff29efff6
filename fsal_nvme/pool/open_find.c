/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Opening a pool: its devices are found and counted. open.c tells the whole. */
#include <stdio.h>

#include "pool/opening.h"

/* Of a device that is in use: with a drive that is well the kernel is done in less. */
#define BUSY_NS (UINT64_C(5) * 1000000000)
#define BUSY_LOOK_NS (UINT64_C(20) * 1000000)

/* --- find ------------------------------------------------------------------------------------- */

void opening_note(struct opening *o, const struct label *label)
{
	bool first = !o->best.device_count;

	if (first || label_is_newer(label, &o->best))
		o->best = *label;
	if (first || label_version_order(label_version(label), label_version(&o->last)) > 0)
		o->last = *label;
}

static int consider(void *data, const struct label *label)
{
	struct opening *o = data;
	const struct label *best = &o->best;

	if (o->options->name && strcmp(label->name, o->options->name))
		return 0;
	if (best->device_count && memcmp(best->pool, label->pool, 16)) {
		o->ambiguous = true;
		return 0;
	}
	opening_note(o, label);
	return 0;
}

static void note_unreadable(struct opening *o, const char *path, int rc)
{
	size_t used = strlen(o->unreadable);

	log_warning("%s: %s", path,
		rc == -ETIMEDOUT ? "it hangs, and is left out" : "its header cannot be read");
	snprintf(
		o->unreadable + used, sizeof(o->unreadable) - used, "%s%s", used ? ", " : "", path);
}

static int judge(struct opening *o, const struct device_look *look)
{
	int rc = look->result ? look->result : look->labels_result;

	if (rc == -ENOMEM || rc == -ESHUTDOWN)
		return error_set(o->error, rc, look->path, "%s", strerror(-rc));
	if (rc == -ETIMEDOUT || (look->opened && (rc == -ENOENT || rc == -EIO)))
		note_unreadable(o, look->path, rc);
	return 0;
}

int opening_find(struct opening *o)
{
	const char *name = o->options->name ? o->options->name : "";
	unsigned count = o->options->path_count;
	int rc = 0;

	for (unsigned i = 0; i < count; i++)
		o->looks[i] = (struct device_look){
			.path = o->options->paths[i], .each = consider, .data = o};
	devices_look(o->engine, o->looks, count);
	for (unsigned i = 0; !rc && i < count; i++)
		rc = judge(o, &o->looks[i]);
	if (rc)
		return rc;
	if (o->ambiguous)
		return error_set(o->error, -EEXIST, name,
			"the devices hold more than one pool of that name; name the devices of "
			"one");
	if (!o->best.device_count)
		return error_set(o->error, -ENOENT, name, "no device of this pool is found");
	return 0;
}

static const struct device_look *find_member(const struct opening *o, unsigned id)
{
	for (unsigned i = 0; i < o->options->path_count; i++) {
		const struct device_look *look = &o->looks[i];

		if (!look->result && !look->labels_result &&
			!memcmp(look->header.pool, o->best.pool, 16) && look->header.id == id &&
			!memcmp(look->header.uuid, o->best.devices[id].uuid, 16))
			return look;
	}
	return NULL;
}

/* From when the first device was in use. */
static bool is_late(struct opening *o)
{
	uint64_t now = engine_clock(o->engine);

	if (!o->busy_since)
		o->busy_since = now;
	return now - o->busy_since >= BUSY_NS;
}

/* -EBUSY: it stayed in use, which is no error yet. */
static int open_waiting(struct opening *o, const char *path, unsigned flags, struct device **device)
{
	struct error error;
	int rc;

	do {
		memset(&error, 0, sizeof(error));
		rc = device_open(o->engine, path, flags, device, &error);
		if (rc == -EBUSY)
			engine_sleep(o->engine, BUSY_LOOK_NS);
	} while (rc == -EBUSY && !is_late(o));
	return rc && rc != -EBUSY ? error_set(o->error, rc, error.object, "%s", error.message) : rc;
}

/* A server that was killed holds a device until what it wrote there is done (uring_device.c), for
 * which none but that one's own kernel can wait: such a one is as one that is missing. */
static int leave_out(struct opening *o, unsigned id, const char *path)
{
	o->busy |= (uint64_t)(o->best.devices[id].state == DEVICE_ACTIVE) << id;
	log_warning("pool %s: device %u (%s) is in use, or what an ended server wrote to it is "
		    "still on its way: it counts as missing",
		o->best.name, id, path);
	return 0;
}

static int member_open(struct opening *o, unsigned id)
{
	struct member *member = &o->pool->devices[id];
	const struct device_look *found = find_member(o, id);
	bool look = o->options->read_only || o->options->reader || o->rehearsal;
	unsigned flags = look ? DEVICE_READ_ONLY : DEVICE_EXCLUSIVE;
	struct device *device;
	int rc;

	member->label = o->best.devices[id];
	atomic_init(&member->state,
		member->label.state == DEVICE_DROPPED ? DEVICE_DROPPED : DEVICE_MISSING);
	if (!found)
		return 0;
	rc = open_waiting(o, found->path, flags, &device);
	if (rc == -EBUSY)
		return leave_out(o, id, found->path);
	if (rc)
		return rc;
	atomic_store(&member->device, device);
	member->header = found->header;
	member->slots_offset = found->header.slots_offset;
	snprintf(member->path, sizeof(member->path), "%s", found->path);
	o->pool->header = found->header;
	atomic_store(&member->state, member->label.state);
	o->present[id] = true;
	return 0;
}

static int in_use(const struct opening *o)
{
	return error_set(o->error, -EBUSY, o->best.name, "another process has it open");
}

int opening_members(struct opening *o)
{
	struct pool *pool = o->pool;
	unsigned here = 0;
	int rc = 0;

	pool->label = o->best;
	memcpy(pool->unreadable, o->unreadable, sizeof(pool->unreadable));
	pool->device_count = o->best.device_count;
	for (unsigned i = 0; !rc && i < pool->device_count; i++) {
		rc = member_open(o, i);
		here += o->present[i];
	}
	return !rc && o->busy && !here ? in_use(o) : rc;
}

/* --- count ------------------------------------------------------------------------------------ */

/* An opening for writing drops it: it is missing, or took no claim. */
static bool is_lost(const struct opening *o, unsigned i)
{
	return o->best.devices[i].state == DEVICE_ACTIVE &&
	       (!o->present[i] || atomic_load(&o->pool->devices[i].failing));
}

uint64_t opening_lost(const struct opening *o)
{
	uint64_t lost = 0;

	for (unsigned i = 0; i < o->pool->device_count; i++)
		if (is_lost(o, i))
			lost |= UINT64_C(1) << i;
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
	uint64_t lost = opening_lost(o);
	unsigned missing = (unsigned)__builtin_popcountll(lost), active = count_active(o);
	char names[300];

	if (active > missing && losses_allowed(o->pool, members_active(o->pool), lost))
		return 0;
	if (o->busy && losses_allowed(o->pool, members_active(o->pool), lost & ~o->busy))
		return in_use(o);
	name_lost(o, names, sizeof(names));
	return error_set(o->error, -EIO, o->pool->label.name,
		"%u of %u active devices are missing, at most %u may be%s; attach device%s",
		missing, active, o->pool->m,
		losses_most(o->pool) > o->pool->m ? ", or one domain" : "", names);
}

/* Who takes it over from a fenced owner does so to write; another node may be able to. */
static int become_read_only(struct opening *o, const char *why)
{
	struct pool *pool = o->pool;

	if (o->options->fenced)
		return error_set(o->error, -EROFS, pool->label.name,
			"%s, and whoever takes it over has to write; its datasets are read from a "
			"reader (`millrace serve %s --reader`, in a cluster that of each node)",
			why, pool->label.name);
	pool->read_only = true;
	return 0;
}

static int check_writable(struct opening *o)
{
	struct pool *pool = o->pool;
	unsigned usable = members_usable_count(pool);
	char why[100];

	if (pool->read_only)
		return 0;
	if (pool_is_of_a_later_version(pool))
		return become_read_only(o, "a later version made it, which alone may write to it");
	if (usable > pool->m)
		return 0;
	if (o->busy)
		return in_use(o);
	snprintf(why, sizeof(why), "%u of its devices are usable here, and %u are needed to write",
		usable, pool->m + 1);
	return become_read_only(o, why);
}

int opening_count(struct opening *o)
{
	struct pool *pool = o->pool;
	int rc;

	pool->k = pool->header.data;
	pool->m = pool->header.parity;
	label_domains(&pool->label, pool->domains);
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
	return check_writable(o);
}
