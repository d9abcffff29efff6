/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Verbs that shares and datasets have in common, and properties, which pools have too. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb.h"

static const struct {
	enum volume_kind kind;
	unsigned scope;
	const char *noun, *plural;
} nouns[] = {
	{VOLUME_SHARE, PROPERTY_SHARE, "share", "shares"},
	{VOLUME_DATASET, PROPERTY_DATASET, "dataset", "datasets"},
	{VOLUME_SNAPSHOT, 0, "snapshot", "snapshots"},
};
#define NOUNS (sizeof(nouns) / sizeof(nouns[0]))

static unsigned noun_of(const struct verb_call *call)
{
	unsigned i = 0;

	while (i < NOUNS - 1 && strcmp(nouns[i].noun, call->verb->noun))
		i++;
	return i;
}

static const char *kind_noun(enum volume_kind kind)
{
	for (unsigned i = 0; i < NOUNS; i++)
		if (nouns[i].kind == kind)
			return nouns[i].noun;
	return "volume of an unknown kind";
}

int call_row(struct verb_call *call, struct volume_row *row)
{
	const char *text = call_text(call, "volume"), *noun = call->verb->noun;
	char pool[POOL_NAME_MAX + 1], name[POOL_VOLUME_NAME_MAX + 1];
	struct txn *view;
	int rc = object_split(text, pool, name, call->error);

	if (!rc)
		rc = view_begin(pool_env(call->pool), &view);
	if (rc)
		return rc;
	rc = volume_row_find(view, name, row);
	txn_abort(view);
	if (rc == -ENOENT)
		return error_set(call->error, rc, text,
			"there is no such %s; see `millrace %s list`", noun, noun);
	if (!rc && row->kind != nouns[noun_of(call)].kind)
		return error_set(call->error, -ENOENT, text, "it is a %s, not a %s",
			kind_noun(row->kind), noun);
	return rc;
}

int host_added(struct verb_call *call, const struct volume_row *row)
{
	const struct control_host *host = call->host;
	int rc = host && host->volume_added ? host->volume_added(host->data, row, call->error) : 0;

	return rc ? error_set(call->error, rc, row->name,
			    "it is there, but the server cannot export it: %s", strerror(-rc))
		  : 0;
}

int creation_error(struct verb_call *call, int rc, const char *why)
{
	if (rc != -ENOSPC)
		return error_set(call->error, rc, call_text(call, "volume"), "%s",
			*why ? why : strerror(-rc));
	return error_set(call->error, rc, call_text(call, "volume"),
		"it cannot be made: %s; `millrace pool status %s` shows what takes the space",
		strerror(-rc), pool_name(call->pool));
}

/* --- list -------------------------------------------------------------------------------- */

int volume_used(struct verb_call *call, struct txn *view, uint32_t volume, uint64_t *bytes)
{
	int rc = kept_get(view, volume, bytes);

	*bytes += pool_volume_live(call->pool, volume);
	return rc;
}

/* Of shares alone. */
static int put_quota(json_t *object, struct txn *view, const struct volume_row *row)
{
	uint64_t quota;
	int rc = volume_quota_get(view, row->id, &quota);

	if (!rc && row->kind == VOLUME_SHARE && quota != VOLUME_QUOTA_NONE)
		put_integer(object, "quota", quota);
	return rc;
}

static int list_row(
	struct verb_call *call, struct txn *view, const struct volume_row *row, json_t *list)
{
	char path[POOL_NAME_MAX + POOL_VOLUME_NAME_MAX + 2], value[PROPERTY_VALUE_MAX + 1];
	json_t *object = json_object();
	uint64_t used = 0;
	int rc = property_value(view, row->id, "nfs.clients", value, sizeof(value));

	if (!rc)
		rc = volume_used(call, view, row->id, &used);
	snprintf(path, sizeof(path), "%s/%s", pool_name(call->pool), row->name);
	put_text(object, "name", path);
	json_object_set_new(object, "uuid", json_uuid(row->uuid));
	put_integer(object, "used", used);
	if (!rc)
		rc = put_quota(object, view, row);
	put_integer(object, "created", row->created);
	put_bool(object, "sealed", row->sealed);
	put_text(object, "clients", rc ? "" : value);
	json_array_append_new(list, object);
	return rc;
}

int verb_volume_list(struct verb_call *call)
{
	unsigned noun = noun_of(call);
	json_t *list = json_array();
	struct volume_row row;
	struct txn *view;
	uint32_t id = 1;
	int rc = view_begin(pool_env(call->pool), &view);

	json_object_set_new(call->result, nouns[noun].plural, list);
	if (rc)
		return rc;
	while (!rc && !(rc = volume_row_next(view, id, &row))) {
		id = row.id + 1;
		if (row.kind == nouns[noun].kind && !row.destroying)
			rc = list_row(call, view, &row, list);
	}
	txn_abort(view);
	return rc == -ENOENT ? 0 : rc;
}

/* --- get --------------------------------------------------------------------------------- */

struct getting {
	struct verb_call *call;
	struct txn *view;
	uint32_t volume;
	unsigned scope;
	json_t *list;
};

static void add_property(json_t *list, const char *name, const char *value, const char *source)
{
	json_t *object = json_object();

	put_text(object, "property", name);
	put_text(object, "value", value);
	put_text(object, "source", source);
	json_array_append_new(list, object);
}

/* What is asked for by name; without names everything is. */
static bool wanted(const struct getting *g, const char *name)
{
	const json_t *names = json_object_get(g->call->args, "property"), *one;
	size_t i;

	if (!names)
		return true;
	json_array_foreach(names, i, one)
	{
		if (!strcmp(json_string_value(one), name))
			return true;
	}
	return false;
}

static int get_known(struct getting *g)
{
	char value[PROPERTY_VALUE_MAX + 1];

	for (const struct property *p = property_table; p->name; p++) {
		int rc;

		if (!(p->scopes & g->scope) || !wanted(g, p->name))
			continue;
		rc = property_get(g->view, g->volume, p->name, value, sizeof(value));
		if (rc && rc != -ENOENT)
			return rc;
		add_property(g->list, p->name, rc ? p->otherwise : value, rc ? "default" : "set");
	}
	return 0;
}

static int get_own(struct getting *g)
{
	char name[PROPERTY_NAME_MAX + 1] = "", value[PROPERTY_VALUE_MAX + 1];
	int rc;

	while (!(rc = property_next(g->view, g->volume, name, sizeof(name), value, sizeof(value))))
		if (strchr(name, ':') && wanted(g, name))
			add_property(g->list, name, value, "set");
	return rc == -ENOENT ? 0 : rc;
}

static void get_fixed(struct getting *g, const char *name, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void get_fixed(struct getting *g, const char *name, const char *format, ...)
{
	char value[PROPERTY_VALUE_MAX + 1];
	va_list args;

	if (!wanted(g, name))
		return;
	va_start(args, format);
	vsnprintf(value, sizeof(value), format, args);
	va_end(args);
	add_property(g->list, name, value, "fixed");
}

/* Names that were asked for and not found: fixed ones are in the list by now. */
static int check_names(const struct getting *g)
{
	const json_t *names = json_object_get(g->call->args, "property"), *one, *row;
	size_t i, j;

	json_array_foreach(names, i, one)
	{
		const char *name = json_string_value(one);
		bool found = false;
		int rc;

		json_array_foreach(g->list, j, row)
		{
			found |= !strcmp(name, json_string_value(json_object_get(row, "property")));
		}
		rc = found ? 0 : property_check_name(name, g->scope, g->call->error);
		if (!rc && !found)
			rc = error_set(g->call->error, -ENOENT, name, "this property is not set");
		if (rc)
			return rc;
	}
	return 0;
}

static int get_all(struct getting *g)
{
	int rc = view_begin(pool_env(g->call->pool), &g->view);

	if (rc)
		return rc;
	rc = get_known(g);
	if (!rc)
		rc = get_own(g);
	txn_abort(g->view);
	return rc ? rc : check_names(g);
}

static void get_space(struct getting *g, uint32_t id)
{
	struct volume_space space;
	struct volume *volume;

	if (!wanted(g, "files") && !wanted(g, "bytes"))
		return;
	if (volume_open_id(g->call->volumes, id, &volume, NULL))
		return;
	if (!volume_statfs(volume, &space)) {
		get_fixed(g, "files", "%llu", (unsigned long long)space.files);
		get_fixed(g, "bytes", "%llu", (unsigned long long)space.bytes);
	}
	volume_close(volume);
}

int verb_volume_get(struct verb_call *call)
{
	struct getting g = {
		.call = call, .scope = nouns[noun_of(call)].scope, .list = json_array()};
	struct volume_row row;
	json_t *uuid;
	int rc = call_row(call, &row);

	json_object_set_new(call->result, "properties", g.list);
	if (rc)
		return rc;
	g.volume = row.id;
	uuid = json_uuid(row.uuid);
	put_text(call->result, "name", call_text(call, "volume"));
	get_fixed(&g, "kind", "%s", kind_noun(row.kind));
	get_fixed(&g, "sealed", "%s", row.sealed ? "yes" : "no");
	get_fixed(&g, "uuid", "%s", json_string_value(uuid));
	get_fixed(&g, "nfs.path", "/%s/%s", pool_name(call->pool), row.name);
	get_fixed(&g, "nfs.export", "%u", row.export_id);
	json_decref(uuid);
	get_space(&g, row.id);
	return get_all(&g);
}

int verb_pool_get(struct verb_call *call)
{
	struct getting g = {.call = call, .scope = PROPERTY_POOL, .list = json_array()};

	json_object_set_new(call->result, "properties", g.list);
	put_text(call->result, "name", pool_name(call->pool));
	return get_all(&g);
}

/* --- set --------------------------------------------------------------------------------- */

struct assignment {
	char name[PROPERTY_NAME_MAX + 1];
	char value[PROPERTY_VALUE_MAX + 1];
	char old[PROPERTY_VALUE_MAX + 1];
};

static int parse_all(
	struct verb_call *call, unsigned scope, struct assignment **list, unsigned *count)
{
	const json_t *texts = json_object_get(call->args, "property");
	int rc = 0;

	*count = (unsigned)json_array_size(texts);
	*list = calloc(*count, sizeof(**list));
	if (!*list)
		return -ENOMEM;
	for (unsigned i = 0; !rc && i < *count; i++) {
		struct assignment *a = &(*list)[i];

		rc = property_parse(json_string_value(json_array_get(texts, i)), scope, a->name,
			a->value, call->error);
	}
	return rc;
}

static int put_one(struct txn *txn, uint32_t volume, struct assignment *a, bool back)
{
	const char *value = back ? a->old : a->value;
	int rc;

	if (!back) {
		rc = property_get(txn, volume, a->name, a->old, sizeof(a->old));
		if (rc == -ENOENT)
			a->old[0] = 0;
		else if (rc)
			return rc;
	}
	if (*value)
		return property_set(txn, volume, a->name, value);
	rc = property_delete(txn, volume, a->name);
	return rc == -ENOENT ? 0 : rc;
}

static int put_all(
	struct verb_call *call, uint32_t volume, struct assignment *list, unsigned count, bool back)
{
	struct txn *txn;
	uint64_t lsn;
	int rc = txn_begin(call->pool, NULL, &txn);

	if (rc)
		return rc;
	for (unsigned i = 0; !rc && i < count; i++) {
		unsigned at = back ? count - 1 - i : i;

		rc = put_one(txn, volume, &list[at], back);
	}
	if (rc) {
		txn_abort(txn);
		return rc;
	}
	rc = txn_commit(txn, &lsn);
	return rc ? rc : pool_sync(call->pool, lsn);
}

/* What this process and its server know of them. */
static int properties_changed(
	struct verb_call *call, const struct volume_row *row, struct error *error)
{
	const struct control_host *host = call->host;
	int rc = row ? volumes_quota_changed(call->volumes, row->id) : 0;

	if (!rc && host && host->properties_changed)
		rc = host->properties_changed(host->data, row, error);
	return rc;
}

/* The server must agree, else the old values come back. */
static int tell_host(struct verb_call *call, const struct volume_row *row, struct assignment *list,
	unsigned count)
{
	int rc = properties_changed(call, row, call->error);

	if (rc) {
		put_all(call, row ? row->id : 0, list, count, true);
		properties_changed(call, row, NULL);
	}
	return rc;
}

static int set_all(struct verb_call *call, const struct volume_row *row, unsigned scope)
{
	struct assignment *list = NULL;
	unsigned count;
	int rc = parse_all(call, scope, &list, &count);

	if (!rc)
		rc = put_all(call, row ? row->id : 0, list, count, false);
	if (!rc)
		rc = tell_host(call, row, list, count);
	free(list);
	return rc;
}

int verb_pool_set(struct verb_call *call)
{
	return set_all(call, NULL, PROPERTY_POOL);
}

int verb_volume_set(struct verb_call *call)
{
	struct volume_row row;
	int rc = call_row(call, &row);

	return rc ? rc : set_all(call, &row, nouns[noun_of(call)].scope);
}

/* --- create, destroy --------------------------------------------------------------------- */

int verb_share_create(struct verb_call *call)
{
	char pool[POOL_NAME_MAX + 1], name[POOL_VOLUME_NAME_MAX + 1];
	struct volume_create_options options = {
		.name = name,
		.kind = VOLUME_SHARE,
		.uid = (uint32_t)call_number(call, "owner", 0),
		.gid = (uint32_t)call_number(call, "group", 0),
		.mode = (uint32_t)call_number(call, "mode", 0755),
		.quota = call_number(call, "quota", 0),
	};
	struct error why = {0};
	struct volume_row row;
	int rc = object_split(call_text(call, "volume"), pool, name, call->error);

	if (rc)
		return rc;
	rc = volume_create(call->volumes, &options, &row, &why);
	if (rc)
		return creation_error(call, rc, why.message);
	put_text(call->result, "name", call_text(call, "volume"));
	return host_added(call, &row);
}

int verb_volume_destroy(struct verb_call *call)
{
	const struct control_host *host = call->host;
	struct volume_row row;
	int rc = call_row(call, &row);

	call_part(call, "destroy", call_text(call, "volume"));
	if (!rc && host && host->volume_removing)
		rc = host->volume_removing(host->data, &row, call->error);
	if (rc)
		return rc;
	rc = volume_destroy(call->volumes, row.name, call->error);
	if (rc && host && host->volume_added && (row.sealed || row.kind == VOLUME_SHARE))
		host->volume_added(host->data, &row, NULL);
	return rc;
}
