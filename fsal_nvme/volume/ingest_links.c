/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Hard links: the first name of a file that is met makes it, the others are made at the end. */
#include "volume/ingest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS_FIRST 64u

static struct ingest_link **bucket(struct ingest *ingest, uint64_t device, uint64_t number)
{
	uint64_t hash = (number ^ device << 32) * 0x9e3779b97f4a7c15ull;

	return &ingest->links[(hash >> 32) & (ingest->link_buckets - 1)];
}

static int widen(struct ingest *ingest)
{
	unsigned count = ingest->link_buckets;
	struct ingest_link **old = ingest->links, **wide;

	wide = calloc(count ? 2 * count : BUCKETS_FIRST, sizeof(*wide));
	if (!wide)
		return -ENOMEM;
	ingest->links = wide;
	ingest->link_buckets = count ? 2 * count : BUCKETS_FIRST;
	for (unsigned i = 0; i < count; i++) {
		for (struct ingest_link *link = old[i], *next; link; link = next) {
			struct ingest_link **place = bucket(ingest, link->device, link->number);

			next = link->next;
			link->next = *place;
			*place = link;
		}
	}
	free(old);
	return 0;
}

static struct ingest_link *find(struct ingest *ingest, const struct stat *st)
{
	struct ingest_link *link = ingest->links ? *bucket(ingest, st->st_dev, st->st_ino) : NULL;

	while (link && (link->device != st->st_dev || link->number != st->st_ino))
		link = link->next;
	return link;
}

static int add(struct ingest *ingest, const struct stat *st, struct ingest_link **out)
{
	struct ingest_link *link, **place;

	if (ingest->link_count >= ingest->link_buckets && widen(ingest))
		return -ENOMEM;
	link = calloc(1, sizeof(*link));
	if (!link)
		return -ENOMEM;
	link->device = st->st_dev;
	link->number = st->st_ino;
	place = bucket(ingest, link->device, link->number);
	link->next = *place;
	*place = link;
	ingest->link_count++;
	*out = link;
	return 0;
}

int ingest_link_claim(
	struct ingest *ingest, const struct stat *st, struct ingest_link **link, bool *first)
{
	int r = 0;

	pthread_mutex_lock(&ingest->lock);
	*link = find(ingest, st);
	*first = !*link;
	if (*first)
		r = add(ingest, st, link);
	pthread_mutex_unlock(&ingest->lock);
	return r;
}

void ingest_link_made(struct ingest *ingest, struct ingest_link *link, uint64_t ino)
{
	pthread_mutex_lock(&ingest->lock);
	link->ino = ino;
	pthread_mutex_unlock(&ingest->lock);
}

int ingest_alias_add(
	struct ingest *ingest, struct ingest_link *link, struct ingest_dir *dir, const char *path)
{
	struct ingest_alias *alias = calloc(1, sizeof(*alias));

	if (alias)
		alias->path = strdup(path);
	if (!alias || !alias->path) {
		free(alias);
		return -ENOMEM;
	}
	alias->link = link;
	alias->dir = dir->ino;
	pthread_mutex_lock(&ingest->lock);
	alias->next = ingest->aliases;
	ingest->aliases = alias;
	pthread_mutex_unlock(&ingest->lock);
	return 0;
}

/* -EEXIST: something else has the name. */
static int link_name(struct ingest *ingest, const struct ingest_alias *alias)
{
	const char *name = ingest_last_part(alias->path);
	uint64_t lsn;
	int r = volume_link(ingest->volume, alias->link->ino, alias->dir, name, NULL, &lsn);

	if (!r)
		ingest_count(ingest, &ingest->progress->links, 1);
	return r;
}

/* With --resume: what an earlier ingest gave the name to, before the file changed or by another of
 * its names, makes room. */
static int link_again(struct ingest *ingest, const struct ingest_alias *alias)
{
	const char *name = ingest_last_part(alias->path);
	struct volume_attributes there;
	uint64_t lsn;
	int r = volume_lookup(ingest->volume, alias->dir, name, &there);

	if (r)
		return r;
	if (there.ino == alias->link->ino) {
		ingest_count(ingest, &ingest->progress->present, 1);
		return 0;
	}
	r = volume_unlink(ingest->volume, alias->dir, name, VOLUME_UNLINK_FILE, &lsn);
	if (r)
		return r == -EISDIR ? -EEXIST : r;
	return link_name(ingest, alias);
}

static int make_alias(struct ingest *ingest, const struct ingest_alias *alias)
{
	int r = link_name(ingest, alias);

	return r == -EEXIST && ingest->options->resume ? link_again(ingest, alias) : r;
}

static int alias(struct ingest *ingest, const struct ingest_alias *alias)
{
	int r;

	if (!alias->link->ino) {
		ingest_skip(ingest, alias->path, "a hard link to a file that was left out");
		return 0;
	}
	r = make_alias(ingest, alias);
	if (r == -EEXIST || r == -EMLINK)
		ingest_skip(ingest, alias->path,
			r == -EEXIST ? INGEST_WAS_DIRECTORY : "too many hard links");
	else if (r)
		return ingest_fail(ingest, r, alias->path);
	return 0;
}

int ingest_aliases(struct ingest *ingest)
{
	int r = 0;

	for (struct ingest_alias *at = ingest->aliases; !r && at; at = at->next) {
		r = ingest_go_on(ingest);
		if (!r)
			r = alias(ingest, at);
	}
	return r;
}

void ingest_links_free(struct ingest *ingest)
{
	while (ingest->aliases) {
		struct ingest_alias *gone = ingest->aliases;

		ingest->aliases = gone->next;
		free(gone->path);
		free(gone);
	}
	for (unsigned i = 0; i < ingest->link_buckets; i++) {
		while (ingest->links[i]) {
			struct ingest_link *link = ingest->links[i];

			ingest->links[i] = link->next;
			free(link);
		}
	}
	free(ingest->links);
}
