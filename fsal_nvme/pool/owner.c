/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Owners of earlier epochs that may still write, as the label lists them.
 *
 * An owner enters the list when another one claims the pool and cannot know it dead. It leaves the
 * list with a claim of its own host, which then has the devices for itself: it has started again,
 * or the process that had them let go. Or with the word of an admin, or of a cluster that fences,
 * that all earlier owners are dead. The claim's label makes that durable.
 */
#include <stdio.h>

#include "pool/internal.h"

bool owners_have(const struct label *label, uint64_t epoch)
{
	for (unsigned i = 0; i < label->other_count; i++)
		if (label->others[i].epoch == epoch)
			return true;
	return false;
}

void owners_forget(struct label *label, const char *host)
{
	unsigned kept = 0;

	for (unsigned i = 0; host && i < label->other_count; i++)
		if (strcmp(label->others[i].host, host))
			label->others[kept++] = label->others[i];
	label->other_count = (uint8_t)kept;
}

int owners_add(struct label *label)
{
	struct label_owner *owner = &label->others[label->other_count];

	if (label->other_count == OWNERS_MAX)
		return -EBUSY;
	*owner = (struct label_owner){.epoch = label->epoch};
	memcpy(owner->host, label->owner, sizeof(owner->host));
	label->other_count++;
	return 0;
}

void owners_name(const struct label *label, char *text, size_t size)
{
	size_t used = 0;

	text[0] = 0;
	for (unsigned i = 0; i < label->other_count && used + sizeof(label->owner) + 2 < size; i++)
		used += (size_t)snprintf(
			text + used, size - used, "%s%s", i ? ", " : "", label->others[i].host);
}
