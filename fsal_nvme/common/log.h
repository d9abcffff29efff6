/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The log of the layers below export/: one line an event, naming object, value and rule. The host
 * program installs a sink (ganesha's log, stderr); without one warnings and errors go to stderr.
 */
#ifndef MILLRACE_LOG_H
#define MILLRACE_LOG_H

enum log_level { LOG_ERROR, LOG_WARNING, LOG_NOTICE, LOG_TRACE };

void log_set_sink(void (*sink)(enum log_level level, const char *line));
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)
#define log_notice(...) log_line(LOG_NOTICE, __VA_ARGS__)

#endif
