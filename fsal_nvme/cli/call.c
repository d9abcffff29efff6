/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What verbs have in common: arguments, names, results, and the one way to run them. */
#include "cli/verb.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- arguments --------------------------------------------------------------------------- */

const char *call_text(const struct verb_call *call, const char *name)
{
	return json_string_value(json_object_get(call->args, name));
}

uint64_t call_number(const struct verb_call *call, const char *name, uint64_t otherwise)
{
	const json_t *value = json_object_get(call->args, name);

	return value ? (uint64_t)json_integer_value(value) : otherwise;
}

bool call_flag(const struct verb_call *call, const char *name)
{
	return json_is_true(json_object_get(call->args, name));
}

static bool name_good(const char *name, size_t length, size_t most)
{
	if (!length || length > most || name[0] == '.' || name[0] == '-')
		return false;
	for (size_t i = 0; i < length; i++) {
		char c = name[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			    strchr("._-", c)))
			return false;
	}
	return true;
}

static int name_copy(const char *text, size_t length, size_t most, char *name, const char *what,
	struct error *error)
{
	if (!name_good(text, length, most))
		return error_set(error, -EINVAL, text,
			"%s has 1 to %zu letters, digits, '.', '_' and '-', and begins with a "
			"letter, a digit or '_'",
			what, most);
	memcpy(name, text, length);
	name[length] = 0;
	return 0;
}

int object_split(const char *text, char pool[POOL_NAME_MAX + 1],
	char name[POOL_VOLUME_NAME_MAX + 1], struct error *error)
{
	const char *slash = strchr(text, '/');
	size_t length = slash ? (size_t)(slash - text) : strlen(text);
	int rc;

	if (name && !slash)
		return error_set(error, -EINVAL, text, "it must be named as POOL/NAME");
	if (!name && slash)
		return error_set(
			error, -EINVAL, text, "a pool's name has no slash; volumes are POOL/NAME");
	rc = name_copy(text, length, POOL_NAME_MAX, pool, "the name of a pool", error);
	if (rc || !name)
		return rc;
	return name_copy(slash + 1, strlen(slash + 1), POOL_VOLUME_NAME_MAX, name,
		"the name of a dataset or share", error);
}

int object_pool(const json_t *args, char pool[POOL_NAME_MAX + 1], struct error *error)
{
	const char *text = json_string_value(json_object_get(args, "pool"));
	char name[POOL_VOLUME_NAME_MAX + 1];

	pool[0] = 0;
	if (text)
		return object_split(text, pool, NULL, error);
	text = json_string_value(json_object_get(args, "volume"));
	return text ? object_split(text, pool, name, error) : 0;
}

/* --- progress ---------------------------------------------------------------------------- */

json_t *progress_json(const char *what, uint64_t done, uint64_t total)
{
	json_t *progress = json_object();

	put_text(progress, "what", what);
	put_integer(progress, "done", done);
	if (total)
		put_integer(progress, "total", total);
	return progress;
}

bool call_progress(struct verb_call *call, json_t *progress)
{
	call->reporter->progress(call->reporter, progress);
	json_decref(progress);
	return !call->reporter->stopped(call->reporter);
}

void call_part(struct verb_call *call, const char *verb, const char *object)
{
	char what[300];

	snprintf(what, sizeof(what), "%s %s", verb, object);
	call_progress(call, json_pack("{s:s}", "what", what));
}

/* --- results ----------------------------------------------------------------------------- */

json_t *json_text(const char *text)
{
	json_t *string = json_string(text ? text : "");
	char *copy;

	if (string)
		return string;
	copy = strdup(text);
	for (char *at = copy; at && *at; at++)
		if (*at & 0x80)
			*at = '?';
	string = json_string(copy ? copy : "");
	free(copy);
	return string;
}

json_t *json_uuid(const uint8_t uuid[16])
{
	char text[37];
	size_t used = 0;

	for (unsigned i = 0; i < 16; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used,
			i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
	return json_string(text);
}

bool uuid_parse(const char *text, uint8_t uuid[16])
{
	unsigned digits = 0;

	for (; *text && digits < 32; text++) {
		static const char hex[] = "0123456789abcdef";
		const char *digit = strchr(hex, *text);

		if (*text == '-')
			continue;
		if (!digit)
			return false;
		uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | (digit - hex));
		digits++;
	}
	return digits == 32 && !*text;
}

void put_text(json_t *object, const char *key, const char *text)
{
	json_object_set_new(object, key, json_text(text));
}

void put_integer(json_t *object, const char *key, uint64_t value)
{
	json_object_set_new(object, key, json_integer((json_int_t)value));
}

void put_bool(json_t *object, const char *key, bool value)
{
	json_object_set_new(object, key, json_boolean(value));
}

static const struct {
	int code;
	int exit;
} exits[] = {
	{-EINVAL, 2},
	{-ENAMETOOLONG, 2},
	{-E2BIG, 2},
	{-ENOTDIR, 2},
	{-EISDIR, 2},
	{-ENOTBLK, 2},
	{-ENOENT, 3},
	{-EBUSY, 4},
	{-EEXIST, 4},
	{-EROFS, 4},
	{-EAGAIN, 4},
	{-ECANCELED, 4},
	{-EPERM, 6},
	{-EACCES, 6},
	{-ETIMEDOUT, 7},
};
static const char *const exit_names[] = {
	"ok", "failed", "usage", "not-found", "refused", "degraded", "not-permitted", "time-out"};

int error_exit(int code, const char **name)
{
	int exit_code = code ? 1 : 0;

	for (unsigned i = 0; i < sizeof(exits) / sizeof(exits[0]); i++)
		if (exits[i].code == code)
			exit_code = exits[i].exit;
	if (name)
		*name = exit_names[exit_code];
	return exit_code;
}

json_t *error_json(const struct error *error)
{
	json_t *object = json_object();
	const char *name, *number = strerrorname_np(-error->code);

	error_exit(error->code, &name);
	put_text(object, "code", name);
	put_text(object, "errno", number ? number : "EIO");
	put_text(object, "object", error->object);
	put_text(object, "message", error->message);
	return object;
}

/* --- running ----------------------------------------------------------------------------- */

static int check_pool(struct verb_call *call)
{
	char name[POOL_NAME_MAX + 1];
	int rc = object_pool(call->args, name, call->error);

	if (!rc && name[0] && strcmp(name, pool_name(call->pool)))
		rc = error_set(call->error, -ENOENT, name, "what is open here is pool %s",
			pool_name(call->pool));
	return rc;
}

static pthread_mutex_t changes = PTHREAD_MUTEX_INITIALIZER;

void changes_begin(void)
{
	pthread_mutex_lock(&changes);
}

void changes_end(void)
{
	pthread_mutex_unlock(&changes);
}

/* Before it begins, so that it says why and not which of its steps failed. */
static int check_writable(struct verb_call *call)
{
	bool reader = pool_is_reader(call->pool);
	bool writes = !(call->verb->flags & VERB_LOOKS) && strcmp(call->verb->noun, "serve") &&
		      !(reader && call_flag(call, "returned"));

	if (!writes || !pool_is_read_only(call->pool) || pool_failure(call->pool))
		return 0;
	if (reader)
		return error_set(call->error, -EROFS, pool_name(call->pool),
			"its reader changes nothing: ask the host that has the pool");
	if (pool_is_of_a_later_version(call->pool))
		return error_set(call->error, -EROFS, pool_name(call->pool),
			"the pool is read-only: a later version made it, which alone may write to "
			"it");
	return error_set(call->error, -EROFS, pool_name(call->pool),
		"the pool is read-only: too few of its devices are in use; `millrace pool status "
		"%s` says which to attach",
		pool_name(call->pool));
}

int verb_run(struct verb_call *call)
{
	int rc = check_pool(call);

	if (!rc)
		rc = check_writable(call);
	if (rc)
		return rc;
	if (call->verb->flags & VERB_CHANGES)
		changes_begin();
	rc = call->verb->run(call);
	if (call->verb->flags & VERB_CHANGES)
		changes_end();
	if (rc && !pool_failure(call->pool))
		error_set(call->error, rc, pool_name(call->pool), "%s", strerror(-rc));
	else if (rc)
		error_set(call->error, rc, pool_name(call->pool),
			"the pool has stopped (%s): see the log, then open it again",
			strerror(-pool_failure(call->pool)));
	return rc;
}
