/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A reader's exports. The pool follows roots by itself; the watch looks here each second whether it
 * has loaded another one, and makes the exports what that says: new datasets come, changed
 * properties count, those that were destroyed go. Objects that clients still have of them answer
 * until the cache lets go of them, as far as their bytes are there.
 */
#include "export/internal.h"

#include <errno.h>
#include <string.h>

#include "server_module.h"

#include "cli/control.h"

struct shown {
	struct shown *next;
	uint32_t volume;
	uint16_t export_id;
	bool found;
};

/* All of this is the thread's that looks. */
static struct shown *first;
static uint64_t seen; /* roots */

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

static void show(const struct volume_row *row)
{
	struct error error = {0};

	if (row->destroying || !row->sealed)
		return;
	note_shown(row);
	if (export_refresh(row, &error))
		LogCrit(COMPONENT_FSAL, "volume %s: %s", error.object, error.message);
	error_clear(&error);
}

/* Of one that is mounted below another the next round tries again. */
static void hide_gone(void)
{
	for (struct shown **at = &first; *at;) {
		struct shown *one = *at;

		if (one->found || server_export_remove(one->export_id) == -EBUSY) {
			one->found = false;
			at = &one->next;
			continue;
		}
		*at = one->next;
		gsh_free(one);
	}
}

/* Where not all could be seen none is taken away. */
static void show_all(void)
{
	struct volume_row row = {.id = 0};
	int r;

	while (!(r = exports_next(row.id + 1, &row)))
		show(&row);
	if (r == -ENOENT)
		hide_gone();
	else
		LogCrit(COMPONENT_FSAL, "pool %s: its datasets cannot be listed: %s",
			pool_name(nvme.pool), strerror(-r));
}

void follow_look(void)
{
	uint64_t now = pool_follow_count(nvme.pool);

	if (now != seen)
		show_all();
	seen = now;
}
