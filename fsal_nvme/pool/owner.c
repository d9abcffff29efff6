/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Owners of earlier epochs that may still write, as the label lists them.
 *
 * An owner enters the list when another one claims the pool and cannot know it dead. It leaves the
 * list with a claim of its own host, which then has the devices for itself: it has started again,
 * or the process that had them let go. Or with the word of an admin, or of a cluster that fences,
 * that all earlier owners are dead. The claim's label makes that durable. Or, while the pool is
 * open, as its host is known to run under another boot, or to be gone for good (recover.c).
 *
 * A claim that the pool does not go by (label.c) may have a later epoch than the label that it goes
 * by. Whoever made it has to be known dead, too, and is put in by the claim behind it.
 */
#include <stdio.h>

#include "pool/label.h"

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

/* Of an earlier boot, that is, or of any where `boot` is NULL. */
static bool died_with_boot(const struct label_owner *owner, const char *host, const uint8_t *boot)
{
	static const uint8_t unknown[sizeof(owner->boot)];

	return !strcmp(owner->host, host) &&
	       (!boot || (memcmp(owner->boot, boot, sizeof(owner->boot)) &&
				 memcmp(owner->boot, unknown, sizeof(owner->boot))));
}

bool owners_forget_boots(struct label *label, const char *host, const uint8_t *boot)
{
	unsigned kept = 0, before = label->other_count;

	for (unsigned i = 0; i < before; i++)
		if (!died_with_boot(&label->others[i], host, boot))
			label->others[kept++] = label->others[i];
	label->other_count = (uint8_t)kept;
	return kept < before;
}

static struct label_owner owner_of(const struct label *label)
{
	struct label_owner owner = {.epoch = label->epoch};

	memcpy(owner.host, label->owner, sizeof(owner.host));
	memcpy(owner.boot, label->owner_boot, sizeof(owner.boot));
	return owner;
}

static int add(struct label *label, const struct label_owner *owner)
{
	if (label->other_count == OWNERS_MAX)
		return -EBUSY;
	label->others[label->other_count++] = *owner;
	return 0;
}

int owners_add(struct label *label)
{
	struct label_owner owner = owner_of(label);

	return add(label, &owner);
}

/* Of those before it the label has the last word. */
static bool is_news(const struct label *label, const struct label_owner *owner, const char *host)
{
	return owner->epoch > label->epoch && strcmp(owner->host, host) &&
	       !owners_have(label, owner->epoch);
}

int owners_join(struct label *label, const struct label *claim, const char *host)
{
	struct label_owner claimant = owner_of(claim);
	int rc = is_news(label, &claimant, host) ? add(label, &claimant) : 0;

	for (unsigned i = 0; !rc && i < claim->other_count; i++)
		if (is_news(label, &claim->others[i], host))
			rc = add(label, &claim->others[i]);
	return rc;
}

void owners_name(const struct label *label, char *text, size_t size)
{
	size_t used = 0;

	text[0] = 0;
	for (unsigned i = 0; i < label->other_count && used + sizeof(label->owner) + 2 < size; i++)
		used += (size_t)snprintf(
			text + used, size - used, "%s%s", i ? ", " : "", label->others[i].host);
}
