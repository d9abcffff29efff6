/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>

static void stderr_sink(enum log_level level, const char *line)
{
	if (level <= LOG_WARNING)
		fprintf(stderr, "millrace: %s\n", line);
}

static void (*current_sink)(enum log_level level, const char *line) = stderr_sink;

void log_set_sink(void (*sink)(enum log_level level, const char *line))
{
	current_sink = sink ? sink : stderr_sink;
}

void log_line(enum log_level level, const char *format, ...)
{
	char line[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	current_sink(level, line);
}
