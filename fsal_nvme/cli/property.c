/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Properties: the table, and what their values may be. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/verb.h"
#include "common/size.h"

/* --- kinds of values --------------------------------------------------------------------- */

static int any_text(const char *value, char *normal, size_t size, struct error *error)
{
	for (const char *at = value; *at; at++)
		if ((unsigned char)*at < 0x20 || *at == 0x7f)
			return -EINVAL;
	return (size_t)snprintf(normal, size, "%s", value) < size ? 0 : -EINVAL;
}

/* "65536K" becomes "64M". */
static int size_kind(const char *value, char *normal, size_t size, struct error *error)
{
	char text[SIZE_TEXT_MAX];
	uint64_t bytes;

	if (size_parse(value, &bytes))
		return -EINVAL;
	size_text(bytes, text);
	return any_text(text, normal, size, error);
}

static int squash_kind(const char *value, char *normal, size_t size, struct error *error)
{
	static const char *const kinds[] = {"root", "none", "all"};

	for (unsigned i = 0; i < 3; i++)
		if (!strcmp(value, kinds[i]))
			return any_text(value, normal, size, error);
	return -EINVAL;
}

static int sec_kind(const char *value, char *normal, size_t size, struct error *error)
{
	return strcmp(value, "sys") ? -EINVAL : any_text(value, normal, size, error);
}

static bool mask_bits(uint8_t *bytes, unsigned length, unsigned bits)
{
	if (bits > 8 * length)
		return false;
	for (unsigned i = 0; i < length; i++) {
		unsigned keep = bits >= 8 * (i + 1) ? 8 : bits > 8 * i ? bits - 8 * i : 0;

		bytes[i] &= (uint8_t)(0xff00 >> keep);
	}
	return true;
}

/* "10.1.2.3/8" becomes "10.0.0.0/8", a whole address loses its bits. */
static bool network_normalise(char *text, char *normal, size_t size)
{
	char *slash = strchr(text, '/'), *end = NULL, shown[INET6_ADDRSTRLEN];
	int family = strchr(text, ':') ? AF_INET6 : AF_INET;
	unsigned length = family == AF_INET6 ? 16 : 4;
	unsigned long bits = 8 * length;
	uint8_t bytes[16];

	if (slash) {
		*slash = 0;
		bits = strtoul(slash + 1, &end, 10);
		if (slash[1] < '0' || slash[1] > '9' || *end)
			return false;
	}
	if (inet_pton(family, text, bytes) != 1 || bits > 128 ||
		!mask_bits(bytes, length, (unsigned)bits) ||
		!inet_ntop(family, bytes, shown, sizeof(shown)))
		return false;
	if (bits == 8 * length)
		snprintf(normal, size, "%s", shown);
	else
		snprintf(normal, size, "%s/%lu", shown, bits);
	return true;
}

static bool rule_parse(char *element, struct client_rule *rule)
{
	char *colon = strrchr(element, ':');

	if (!colon || (strcmp(colon, ":ro") && strcmp(colon, ":rw")))
		return false;
	rule->write = !strcmp(colon, ":rw");
	*colon = 0;
	if (!strcmp(element, "*")) {
		snprintf(rule->address, sizeof(rule->address), "*");
		return true;
	}
	return network_normalise(element, rule->address, sizeof(rule->address));
}

static int rule_add(struct client_rule *rules, unsigned *count, const struct client_rule *rule,
	struct error *error)
{
	for (unsigned i = 0; i < *count; i++) {
		if (strcmp(rules[i].address, rule->address))
			continue;
		if (rules[i].write == rule->write)
			return 0;
		return error_set(error, -EINVAL, "nfs.clients", "%s is given as ro and as rw",
			rule->address);
	}
	if (*count == CLIENT_RULES_MAX)
		return error_set(error, -EINVAL, "nfs.clients", "it has at most %u elements",
			CLIENT_RULES_MAX);
	rules[(*count)++] = *rule;
	return 0;
}

int client_rules_parse(const char *value, struct client_rule rules[CLIENT_RULES_MAX],
	unsigned *count, struct error *error)
{
	char copy[PROPERTY_VALUE_MAX + 1], element[PROPERTY_VALUE_MAX + 1], *rest = copy, *at;
	int rc = 0;

	*count = 0;
	if (!*value)
		return 0;
	if ((size_t)snprintf(copy, sizeof(copy), "%s", value) >= sizeof(copy))
		return error_set(error, -EINVAL, "nfs.clients", "it has at most %u characters",
			PROPERTY_VALUE_MAX);
	while (!rc && (at = strsep(&rest, ","))) {
		struct client_rule rule;

		snprintf(element, sizeof(element), "%s", at);
		if (!rule_parse(at, &rule))
			rc = error_set(error, -EINVAL, "nfs.clients",
				"'%.64s' is not ADDRESS, ADDRESS/BITS or *, followed by :ro or "
				":rw",
				element);
		else
			rc = rule_add(rules, count, &rule, error);
	}
	return rc;
}

static int client_list(const char *value, char *normal, size_t size, struct error *error)
{
	struct client_rule rules[CLIENT_RULES_MAX];
	unsigned count;
	size_t used = 0;
	int rc = client_rules_parse(value, rules, &count, error);

	normal[0] = 0;
	for (unsigned i = 0; !rc && i < count; i++) {
		used += (size_t)snprintf(normal + used, size - used, "%s%s:%s", i ? "," : "",
			rules[i].address, rules[i].write ? "rw" : "ro");
		if (used >= size)
			rc = error_set(error, -EINVAL, "nfs.clients",
				"it has at most %u characters", PROPERTY_VALUE_MAX);
	}
	return rc;
}

static int quota(const char *value, char *normal, size_t size, struct error *error)
{
	char text[SIZE_TEXT_MAX] = "none";
	uint64_t bytes;

	if (volume_quota_parse(value, &bytes) || !bytes)
		return -EINVAL;
	if (bytes != VOLUME_QUOTA_NONE)
		size_text(bytes, text);
	return any_text(text, normal, size, error);
}

/* --- cache.size -------------------------------------------------------------------------- */

#define CACHE_LEAST (1u << 20)
#define CACHE_AUTO UINT64_MAX

static int cache_size_parse(const char *value, uint64_t *bytes)
{
	int rc;

	*bytes = CACHE_AUTO;
	if (!strcmp(value, "auto"))
		return 0;
	rc = size_parse(value, bytes);
	return rc ? rc : *bytes && *bytes < CACHE_LEAST ? -EINVAL : 0;
}

static int cache_size(const char *value, char *normal, size_t size, struct error *error)
{
	char text[SIZE_TEXT_MAX] = "auto";
	uint64_t bytes;

	if (cache_size_parse(value, &bytes))
		return -EINVAL;
	if (bytes != CACHE_AUTO)
		size_text(bytes, text);
	return any_text(text, normal, size, error);
}

/* An eighth of the host's memory unless told, and at most half of it: the pool may have come from a
 * host that has more. */
static uint64_t cache_bytes(uint64_t wanted)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (wanted == CACHE_AUTO)
		return memory / 8;
	return wanted < memory / 2 ? wanted : memory / 2;
}

/* --- read.hedge -------------------------------------------------------------------------- */

#define MS UINT64_C(1000000) /* ns */

static int read_hedge_parse(const char *value, uint64_t *ns)
{
	char *end;
	unsigned long number;

	*ns = 0;
	if (!strcmp(value, "0"))
		return 0;
	if (*value < '1' || *value > '9')
		return -EINVAL;
	number = strtoul(value, &end, 10);
	if (number > 60000)
		return -EINVAL;
	*ns = !strcmp(end, "ms") ? number * MS : !strcmp(end, "s") ? number * 1000 * MS : 0;
	return *ns < 100 * MS || *ns > 60000 * MS ? -EINVAL : 0;
}

static int read_hedge(const char *value, char *normal, size_t size, struct error *error)
{
	uint64_t ns;

	return read_hedge_parse(value, &ns) ? -EINVAL : any_text(value, normal, size, error);
}

/* --- what a pool that is served does as they say ----------------------------------------- */

static int apply_cache_size(struct pool *pool, const char *value)
{
	uint64_t bytes;
	int rc = cache_size_parse(value, &bytes);

	return rc ? rc : pool_cache_resize(pool, cache_bytes(bytes));
}

int pool_properties_apply(struct pool *pool, struct error *error)
{
	char cache[PROPERTY_VALUE_MAX + 1], hedge[PROPERTY_VALUE_MAX + 1];
	struct txn *view;
	uint64_t ns;
	int rc = view_begin(pool_env(pool), &view);

	if (rc)
		return rc;
	rc = property_value(view, 0, "cache.size", cache, sizeof(cache));
	if (!rc)
		rc = property_value(view, 0, "read.hedge", hedge, sizeof(hedge));
	txn_abort(view);
	if (!rc)
		rc = read_hedge_parse(hedge, &ns);
	if (rc)
		return error_set(error, rc, pool_name(pool), "its properties cannot be read: %s",
			strerror(-rc));
	pool_set_read_hedge(pool, ns);
	rc = apply_cache_size(pool, cache);
	return rc ? error_set(error, rc, "cache.size",
			    "the block cache cannot be made so large: %s", strerror(-rc))
		  : 0;
}

/* --- the table --------------------------------------------------------------------------- */

#define ANY_TEXT "text of one line, up to 1000 bytes"

const struct property property_table[] = {
	{"cache.size", PROPERTY_POOL, "auto",
		"auto, 0, or from 1M on a number of bytes, with K, M, G or T for powers of 1024",
		cache_size},
	{"comment", PROPERTY_POOL | PROPERTY_SHARE | PROPERTY_DATASET, "", ANY_TEXT, any_text},
	{"compact.rate", PROPERTY_POOL, "64M",
		"a number of bytes a second, with K, M, G or T for powers of 1024; 0: only when "
		"space is short",
		size_kind},
	{"nfs.clients", PROPERTY_SHARE | PROPERTY_DATASET, "",
		"a comma list of ADDRESS, ADDRESS/BITS or *, each followed by :ro or :rw; empty: "
		"nobody",
		client_list},
	{"nfs.sec", PROPERTY_SHARE | PROPERTY_DATASET, "sys",
		"sys: Kerberos (krb5, krb5i, krb5p) is not served", sec_kind},
	{"nfs.squash", PROPERTY_SHARE | PROPERTY_DATASET, "root", "root, none or all", squash_kind},
	{"read.hedge", PROPERTY_POOL, "500ms",
		"0 (never), or from 100ms to 60s: a number with ms or s behind it", read_hedge},
	{VOLUME_QUOTA_PROPERTY, PROPERTY_SHARE, "none",
		"none, or a number of bytes, with K, M, G or T for powers of 1024", quota},
	{NULL, 0, NULL, NULL, NULL},
};
/* What a user may set for himself: names with a colon. */
static const struct property user_property = {"", ~0u, "", ANY_TEXT, any_text};

static bool user_name_good(const char *name)
{
	if (!strchr(name, ':'))
		return false;
	for (const char *at = name; *at; at++)
		if (!((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9') ||
			    strchr(":._-", *at)))
			return false;
	return true;
}

unsigned property_scope(const char *noun)
{
	return !strcmp(noun, "pool")      ? PROPERTY_POOL
	       : !strcmp(noun, "share")   ? PROPERTY_SHARE
	       : !strcmp(noun, "dataset") ? PROPERTY_DATASET
					  : 0;
}

const struct property *property_find(const char *name, unsigned scope)
{
	for (const struct property *p = property_table; p->name; p++)
		if (!strcmp(p->name, name) && (p->scopes & scope))
			return p;
	return user_name_good(name) ? &user_property : NULL;
}

int property_check_name(const char *name, unsigned scope, struct error *error)
{
	char names[200];
	size_t used = 0;

	if (strlen(name) > PROPERTY_NAME_MAX)
		return error_set(error, -EINVAL, name,
			"a property's name has at most %u characters", PROPERTY_NAME_MAX);
	if (property_find(name, scope))
		return 0;
	for (const struct property *p = property_table; p->name; p++)
		if (p->scopes & scope)
			used += (size_t)snprintf(
				names + used, sizeof(names) - used, "%s, ", p->name);
	return error_set(error, -EINVAL, name,
		"there is no such property: there are %sand your own, which have a colon in their "
		"name (a-z, 0-9, '.', '_', '-')",
		names);
}

int property_parse(const char *text, unsigned scope, char name[PROPERTY_NAME_MAX + 1],
	char value[PROPERTY_VALUE_MAX + 1], struct error *error)
{
	const char *equals = strchr(text, '=');
	const struct property *property;
	int rc;

	if (!equals)
		return error_set(error, -EINVAL, text, "it must be PROPERTY=VALUE");
	if (equals - text > PROPERTY_NAME_MAX)
		return error_set(error, -EINVAL, text,
			"a property's name has at most %u characters", PROPERTY_NAME_MAX);
	memcpy(name, text, (size_t)(equals - text));
	name[equals - text] = 0;
	rc = property_check_name(name, scope, error);
	if (rc)
		return rc;
	value[0] = 0;
	if (!equals[1])
		return 0;
	property = property_find(name, scope);
	rc = property->normalise(equals + 1, value, PROPERTY_VALUE_MAX + 1, error);
	return rc ? error_set(error, rc, name, "the value must be %s", property->rule) : 0;
}

int property_value(struct txn *txn, uint32_t volume, const char *name, char *value, size_t size)
{
	const struct property *p = property_find(name, ~0u);
	int rc = property_get(txn, volume, name, value, size);

	if (rc != -ENOENT || !p || p == &user_property)
		return rc;
	return (size_t)snprintf(value, size, "%s", p->otherwise) < size ? 0 : -ERANGE;
}
