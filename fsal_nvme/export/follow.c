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

struct shown {
	struct shown *next;
	uint32_t volume;
	uint16_t export_id;
	bool found;
};

/* All of this is the thread's that looks. */
static struct shown *first;
static uint64_t seen; /* roots */
static unsigned again; /* looks until what could not be done then is tried again; 0: all was done */

static void note_shown(const struct volume_row *row)
{
	struct shown *at = first;

	while (at && at->volume != row->id)
		at = at->next;
	if (!at) {
		at = gsh_calloc(1, sizeof(*at));
		at->volume = row->id;
		at->export_id = row->export_id;
		at->next = first;
		first = at;
	}
	at->found = true;
}

static bool is_shown(const struct volume_row *row)
{
	return row->sealed && !row->destroying;
}

/* 0, or why not all rows were seen. */
static int note_all(void)
{
	struct volume_row row = {.id = 0};
	int r;

	while (!(r = exports_next(row.id + 1, &row)))
		if (is_shown(&row))
			note_shown(&row);
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
		one->found = false;
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
	int r = is_shown(row) ? export_refresh(row, &error) : 0;

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
	int r = note_all();
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

	if (now == seen && (!again || --again))
		return;
	again = follow() ? 0 : AGAIN;
	seen = now;
}
