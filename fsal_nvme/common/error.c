/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *error, int code, const char *object, const char *format, ...)
{
	va_list args;

	if (!error || error->code)
		return code;
	error->code = code;
	snprintf(error->object, sizeof(error->object), "%s", object ? object : "");
	va_start(args, format);
	vsnprintf(error->message, sizeof(error->message), format, args);
	va_end(args);
	return code;
}

void error_clear(struct error *error)
{
	memset(error, 0, sizeof(*error));
}
