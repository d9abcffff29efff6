/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "cli/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *bytes_text(uint64_t bytes, char *text, size_t size)
{
	static const char suffixes[] = "KMGTPE";
	double value = (double)bytes;
	int i = -1;

	while (value >= 1024 && suffixes[i + 1]) {
		value /= 1024;
		i++;
	}
	if (i < 0)
		snprintf(text, size, "%llu", (unsigned long long)bytes);
	else
		snprintf(text, size, "%.*f%c", value < 10 ? 1 : 0, value, suffixes[i]);
	return text;
}

/* --- the rate ---------------------------------------------------------------------------- */

/* The average of the first seconds, later one that forgets what is older than the window. */
static void measure(struct progress_meter *m, double now, double done)
{
	double passed = now - m->last, window = now - m->began;

	if (window > PROGRESS_WINDOW)
		window = passed > PROGRESS_WINDOW ? passed : PROGRESS_WINDOW;
	if (passed > 0)
		m->rate += ((done - m->done) / passed - m->rate) * passed / window;
	m->last = now;
	m->done = done;
}

static void begin(struct progress_meter *m, const char *what, double now, double done)
{
	memset(m, 0, sizeof(*m));
	snprintf(m->what, sizeof(m->what), "%s", what);
	m->began = m->last = now;
	m->done = done;
}

/* --- the line ---------------------------------------------------------------------------- */

struct line {
	char *text;
	size_t size, used;
};

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct line *line, const char *format, ...)
{
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(line->text + line->used, line->size - line->used, format, args);
	va_end(args);
	if (length > 0)
		line->used += (size_t)length;
	if (line->used >= line->size)
		line->used = line->size - 1;
}

static void add_time(struct line *line, double seconds)
{
	unsigned long s = seconds < 1e9 ? (unsigned long)(seconds + 0.5) : 1000000000;

	if (s >= 3600)
		add(line, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
	else
		add(line, "%lu:%02lu", s / 60, s % 60);
}

static void add_left(struct line *line, const struct progress_meter *m, double total)
{
	double done = m->done < total ? m->done : total;

	add(line, ", %.0f%%", total > 0 ? 100 * done / total : 100);
	if (m->rate < 1 || done >= total)
		return;
	add(line, ", ");
	add_time(line, (total - done) / m->rate);
	add(line, " left");
}

static void add_bytes(struct line *line, const struct progress_meter *m, const json_t *total)
{
	char text[16];

	add(line, " %s", bytes_text((uint64_t)m->done, text, sizeof(text)));
	if (total)
		add(line, " of %s",
			bytes_text((uint64_t)json_integer_value(total), text, sizeof(text)));
	add(line, ", %s/s", bytes_text((uint64_t)(m->rate > 0 ? m->rate : 0), text, sizeof(text)));
	if (total)
		add_left(line, m, (double)json_integer_value(total));
}

static void write_line(
	struct line *line, const struct progress_meter *m, double now, const json_t *progress)
{
	const json_t *files = json_object_get(progress, "files");

	add(line, "%s:", m->what);
	if (files)
		add(line, " %lld files,", (long long)json_integer_value(files));
	if (json_object_get(progress, "done"))
		add_bytes(line, m, json_object_get(progress, "total"));
	else
		add(line, " ");
	if (!json_object_get(progress, "done"))
		add_time(line, now - m->began);
}

bool progress_line(
	struct progress_meter *m, double now, const json_t *progress, char *text, size_t size)
{
	const char *what = json_string_value(json_object_get(progress, "what"));
	double done = (double)json_integer_value(json_object_get(progress, "done"));
	struct line line = {.text = text, .size = size};

	if (!what)
		return false;
	if (strncmp(what, m->what, sizeof(m->what) - 1))
		begin(m, what, now, done);
	else if (now - m->last < PROGRESS_PAUSE)
		return false;
	measure(m, now, done);
	write_line(&line, m, now, progress);
	return true;
}
