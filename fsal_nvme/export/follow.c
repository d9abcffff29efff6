/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A reader's exports. The pool follows roots by itself; the watch looks here each second whether it
 * has loaded another one, and makes the exports what that says: new datasets come, changed
 * properties count, those that were destroyed go. Objects that clients still have of them answer
 * until the cache lets go of them, as far as their bytes are there. What could not be done is tried
 * again.
 */
#include "export/internal.h"

#include <errno.h>
#include <string.h>

#include "server_module.h"

#include "cli/control.h"

#define AGAIN 10u /* looks */
#define AGAIN_MOST 640u

struct shown {
	struct shown *next;
	uint32_t volume;
	uint16_t export_id;
	bool found;
};

/* All of this is the thread's that looks; before that, the one's that starts the server. */
static struct shown *first;
static uint64_t seen; /* roots */
static unsigned delay; /* looks until what could not be done then is tried again; 0: all was done */
static unsigned waited; /* of those */

static struct shown *find(uint32_t volume)
{
	struct shown *at = first;

	while (at && at->volume != volume)
		at = at->next;
	return at;
}

void follow_note(const struct volume_row *row)
{
	struct shown *at = find(row->id);

	if (at)
		return;
	at = gsh_calloc(1, sizeof(*at));
	at->volume = row->id;
	at->export_id = row->export_id;
	at->next = first;
	first = at;
}

/* 0, or why not all rows were seen. */
static int find_all(void)
{
	struct volume_row row = {.id = 0};
	struct shown *at;
	int r;

	for (at = first; at; at = at->next)
		at->found = false;
	while (!(r = exports_next(row.id + 1, &row))) {
		at = find(row.id);
		if (at)
			at->found = !row.destroying;
	}
	return r == -ENOENT ? 0 : r;
}

/* False: one is mounted below another. */
static bool hide_gone(void)
{
	bool all = true;

	for (struct shown **at = &first; *at;) {
		struct shown *one = *at;
		bool stays = one->found || server_export_remove(one->export_id) == -EBUSY;

		all = all && (one->found || !stays);
		if (stays) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		gsh_free(one);
	}
	return all;
}

static bool show(const struct volume_row *row)
{
	struct error error = {0};
	int r = export_refresh(row, &error);

	if (r)
		LogCrit(COMPONENT_FSAL, "volume %s: %s", error.object, error.message);
	error_clear(&error);
	return !r;
}

static bool show_all(void)
{
	struct volume_row row = {.id = 0};
	bool all = true;
	int r;

	while (!(r = exports_next(row.id + 1, &row)))
		all = show(&row) && all;
	return r == -ENOENT && all;
}

/* What is gone makes room first: another dataset may have its name. Where not all could be seen
 * none is taken away. */
static bool follow(void)
{
	int r = find_all();
	bool hidden;

	if (r) {
		LogCrit(COMPONENT_FSAL, "pool %s: its datasets cannot be listed: %s",
			pool_name(nvme.pool), strerror(-r));
		return false;
	}
	hidden = hide_gone();
	return show_all() && hidden;
}

void follow_look(void)
{
	uint64_t now = pool_follow_count(nvme.pool);

	if (now == seen && (!delay || ++waited < delay))
		return;
	if (follow())
		delay = 0;
	else if (delay < AGAIN_MOST)
		delay = delay ? 2 * delay : AGAIN;
	waited = 0;
	seen = now;
}
