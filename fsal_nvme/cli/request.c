/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A line of the control socket into a verb and its arguments: pure, bounded, believing nothing. */
#include <errno.h>
#include <string.h>

#include "cli/verb.h"

static int refuse(struct error *error, const char *message)
{
	return error_set(error, -EINVAL, "request", "%s", message);
}

static int find_verb(const json_t *words, const struct verb **verb, struct error *error)
{
	const char *noun = json_string_value(json_array_get(words, 0));
	const char *name = json_string_value(json_array_get(words, 1));
	size_t count = json_array_size(words);

	if (!noun || count > 2 || (count == 2 && !name))
		return refuse(error, "\"verb\" must be a noun and a verb, or a noun");
	*verb = verb_find(noun, name);
	if (!*verb)
		return refuse(error, "there is no such verb");
	if (!(*verb)->run)
		return error_set(error, -EBUSY, "request",
			"this is not done to a pool that is served: stop its server first");
	return 0;
}

static int read_request(json_t *root, struct control_request *request, struct error *error)
{
	json_t *args = json_object_get(root, "args");
	int rc;

	if (json_integer_value(json_object_get(root, "schema")) != 1)
		return refuse(error, "\"schema\" must be 1");
	rc = find_verb(json_object_get(root, "verb"), &request->verb, error);
	if (rc)
		return rc;
	if (!json_is_object(args))
		return refuse(error, "\"args\" must be an object");
	rc = arguments_check(request->verb, args, error);
	if (!rc)
		request->args = json_incref(args);
	return rc;
}

int control_request_parse(
	const char *line, size_t length, struct control_request *request, struct error *error)
{
	json_error_t where;
	json_t *root;
	int rc;

	memset(request, 0, sizeof(*request));
	if (length > CONTROL_REQUEST_MAX)
		return refuse(error, "it is too long");
	root = json_loadb(line, length, JSON_REJECT_DUPLICATES, &where);
	if (!root)
		return error_set(error, -EINVAL, "request", "it is no JSON: %s", where.text);
	rc = read_request(root, request, error);
	json_decref(root);
	return rc;
}

void control_request_free(struct control_request *request)
{
	json_decref(request->args);
	memset(request, 0, sizeof(*request));
}
