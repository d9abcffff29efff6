/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Verbs as a table: what the parser, the help, the control socket and the man page's test read, and
 * the functions that act on an open pool. The command and the server both run them from here.
 *
 * Arguments travel as one JSON object, keyed by parameter; arguments_check() holds it against the
 * table, whichever side it came from, so that a verb may rely on kinds and limits.
 */
#ifndef MILLRACE_VERB_H
#define MILLRACE_VERB_H

#include <jansson.h>

#include "cli/control.h"

enum value_kind {
	VALUE_TEXT, /* JSON: string */
	VALUE_PATH, /* string; made absolute by the command */
	VALUE_FLAG, /* true */
	VALUE_NUMBER, /* integer, as all below */
	VALUE_SIZE, /* with a suffix K, M, G or T of 1024 */
	VALUE_MODE, /* octal */
	VALUE_USER, /* a number, or a name that the command looks up */
	VALUE_GROUP,
};

enum {
	PARAMETER_PLACE = 1 << 0, /* by its place, not by --name */
	PARAMETER_NEEDED = 1 << 1,
	PARAMETER_MANY = 1 << 2, /* an array of strings; the last one by place */
};

struct parameter {
	const char *name;
	enum value_kind kind;
	unsigned flags;
	uint64_t least, most; /* of numbers */
	const char *shown; /* how help calls its value */
	const char *help;
};

struct verb_call;

enum {
	VERB_LOOKS = 1 << 0, /* an idle pool is opened read-only for it, without --repair */
	VERB_CHANGES = 1 << 1, /* one at a time on a served pool */
	VERB_DESTROYS = 1 << 2, /* asks, or wants --yes */
};

struct verb {
	const char *noun;
	const char *name; /* NULL: the noun alone is the verb */
	const char *help; /* one line */
	unsigned flags;
	const struct parameter *parameters; /* ends with a name of NULL */
	int (*run)(struct verb_call *call); /* on an open pool; NULL: the command's own */
};

/* Ends with a noun of NULL. */
extern const struct verb verb_table[];
/* `name` may be NULL. NULL: there is none. */
const struct verb *verb_find(const char *noun, const char *name);
const struct parameter *parameter_find(const struct parameter *parameters, const char *name);
/* -EINVAL names the parameter. */
int arguments_check(const struct verb *verb, json_t *args, struct error *error);

/* Where a verb reports to while it runs; from one thread at a time. */
struct reporter {
	void (*progress)(struct reporter *reporter, json_t *progress);
	void (*note)(struct reporter *reporter, const char *text);
	bool (*stopped)(struct reporter *reporter);
};

struct verb_call {
	const struct verb *verb;
	const json_t *args;
	struct pool *pool;
	struct volumes *volumes;
	const struct control_host *host; /* NULL: the pool is idle */
	struct reporter *reporter;
	json_t *result; /* an object that the verb fills */
	struct error *error;
};

/* 0 or a negative errno, with its story in call->error. */
int verb_run(struct verb_call *call);
/* Around what the server is told of, so that it hears one thing at a time: VERB_CHANGES does it
 * for a whole verb. */
void changes_begin(void);
void changes_end(void);

/* --- arguments --------------------------------------------------------------------------- */

const char *call_text(const struct verb_call *call, const char *name); /* NULL: not given */
uint64_t call_number(const struct verb_call *call, const char *name, uint64_t otherwise);
bool call_flag(const struct verb_call *call, const char *name);

/* POOL/NAME in its parts, both checked; `name` may be NULL for text that is a pool's name. */
int object_split(const char *text, char pool[POOL_NAME_MAX + 1],
	char name[POOL_VOLUME_NAME_MAX + 1], struct error *error);
/* The pool that arguments name by "pool" or "volume"; "" when by neither. */
int object_pool(const json_t *args, char pool[POOL_NAME_MAX + 1], struct error *error);

/* --- progress ---------------------------------------------------------------------------- */

/* {"what","done","total"}, in bytes; no "total" where it is 0: not known yet. */
json_t *progress_json(const char *what, uint64_t done, uint64_t total);
/* Tells it, and frees it. False: the job is to stop. */
bool call_progress(struct verb_call *call, json_t *progress);
/* That a part without a measure has begun: "VERB OBJECT". */
void call_part(struct verb_call *call, const char *verb, const char *object);

/* --- results ----------------------------------------------------------------------------- */

/* A string of bytes that may not be UTF-8: what is not becomes '?'. */
json_t *json_text(const char *text);
json_t *json_uuid(const uint8_t uuid[16]);
/* Its text; false: it is none. */
bool uuid_parse(const char *text, uint8_t uuid[16]);
void put_text(json_t *object, const char *key, const char *text);
void put_integer(json_t *object, const char *key, uint64_t value);
void put_bool(json_t *object, const char *key, bool value);
/* {"code","errno","object","message"} */
json_t *error_json(const struct error *error);
/* The exit code of the command for an error, and its name for the user. */
int error_exit(int code, const char **name);

/* --- verbs_*.c --------------------------------------------------------------------------- */

int verb_pool_status(struct verb_call *call);
int verb_pool_iostat(struct verb_call *call);
int verb_pool_get(struct verb_call *call);
int verb_pool_set(struct verb_call *call);
int verb_pool_check(struct verb_call *call);
int verb_pool_attach(struct verb_call *call);
int verb_pool_replace(struct verb_call *call);
int verb_dataset_ingest(struct verb_call *call);
int verb_dataset_seal(struct verb_call *call);
int verb_dataset_verify(struct verb_call *call);
int verb_share_create(struct verb_call *call);
int verb_volume_list(struct verb_call *call);
int verb_volume_get(struct verb_call *call);
int verb_volume_set(struct verb_call *call);
int verb_volume_destroy(struct verb_call *call);
int verb_serve(struct verb_call *call);

#define PROBE_SECONDS 30 /* for an answer */
#define ALREADY_SERVED "it is served already: `millrace serve %s --stop` ends that" /* pool */

/* The row of "volume", which must be of the verb's noun. -ENOENT. */
int call_row(struct verb_call *call, struct volume_row *row);
/* Bytes that its files take, those that are kept for them as well; `view` is of the pool. */
int volume_used(struct verb_call *call, struct txn *view, uint32_t volume, uint64_t *bytes);
/* Why "volume" was not made: `why`, or what errors of that kind say; and what to do about it.
 * Returns `rc`. */
int creation_error(struct verb_call *call, int rc, const char *why);
/* Tells the server of a new volume; 0 on an idle pool. */
int host_added(struct verb_call *call, const struct volume_row *row);

/* The members of "pool" in the result of `pool status`. */
json_t *pool_status_json(const struct pool_status *status, bool member);

/* --- advice.c ---------------------------------------------------------------------------- */

/* What is wrong with a pool, and what to type next, on a member of the cluster that serves it, or
 * else: an array of {"what","next"}, worst first. */
json_t *pool_advice(const struct pool_status *status, bool member);
void advice_add(json_t *list, const char *what, const char *next);
/* Devices that are missing or dropped. */
unsigned pool_devices_away(const struct pool_status *status);
/* ... that are active and not whole. */
unsigned pool_devices_suspect(const struct pool_status *status);
/* --- property.c -------------------------------------------------------------------------- */

enum property_scope { PROPERTY_POOL = 1 << 0, PROPERTY_SHARE = 1 << 1, PROPERTY_DATASET = 1 << 2 };

struct property {
	const char *name;
	unsigned scopes;
	const char *otherwise; /* the default */
	const char *rule; /* what values are allowed, for messages and help */
	/* Writes the normal form; -EINVAL. `error` may get a closer story than the rule. */
	int (*normalise)(const char *value, char *normal, size_t size, struct error *error);
};
/* Ends with a name of NULL. */
extern const struct property property_table[];
unsigned property_scope(const char *noun); /* 0: what it names has none */
const struct property *property_find(const char *name, unsigned scope);
/* "NAME=VALUE" in its parts, checked and normalised; an empty value: back to the default. */
int property_parse(const char *text, unsigned scope, char name[PROPERTY_NAME_MAX + 1],
	char value[PROPERTY_VALUE_MAX + 1], struct error *error);
int property_check_name(const char *name, unsigned scope, struct error *error);

/* --- request.c: pure functions of what came over the socket ------------------------------ */

struct control_request {
	const struct verb *verb;
	json_t *args;
};
/* `line` need not be terminated. -EINVAL with a story; then nothing is to be freed. */
int control_request_parse(
	const char *line, size_t length, struct control_request *request, struct error *error);
void control_request_free(struct control_request *request);

#endif
