/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What the user sees while a verb runs, and is asked before it does. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/progress.h"
#include "cli/socket.h"
#include "common/log.h"

#define NOTES_MAX 1000

static volatile sig_atomic_t interrupted;

/* Under told.lock. */
static struct {
	bool shown; /* a line of progress stands on the terminal */
	struct progress_meter meter;
	json_t *part; /* what is under way without a measure, or NULL */
	pthread_t ticker; /* shows it again and again */
	bool ticking, end;
	pthread_cond_t ended;
} line = {.ended = PTHREAD_COND_INITIALIZER};

static struct {
	pthread_mutex_t lock;
	json_t *notes; /* NULL: to stderr */
} told = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_interrupt(int signal_number)
{
	interrupted = 1;
	signal(signal_number, SIG_DFL); /* the second one ends the process */
}

static void clear_line(void)
{
	if (line.shown)
		fprintf(stderr, "\r\033[K");
	line.shown = false;
}

/* A longer line would wrap, and not be cleared in full. */
static int columns(void)
{
	struct winsize size;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || !size.ws_col ? 80 : size.ws_col;
}

static void show(const json_t *progress)
{
	char text[500];

	if (!progress_line(&line.meter, seconds_now(), progress, text, sizeof(text)))
		return;
	clear_line();
	fprintf(stderr, "%.*s", columns() - 1, text);
	fflush(stderr);
	line.shown = true;
}

static void *tick(void *unused)
{
	pthread_mutex_lock(&told.lock);
	while (!line.end) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		pthread_cond_timedwait(&line.ended, &told.lock, &until);
		if (!line.end && line.part)
			show(line.part);
	}
	pthread_mutex_unlock(&told.lock);
	return NULL;
}

/* Under told.lock. NULL: there is none. */
static void keep_part(json_t *progress)
{
	bool is_part = progress && !json_object_get(progress, "done");

	json_decref(line.part);
	line.part = is_part ? json_incref(progress) : NULL;
	if (line.part && !line.ticking)
		line.ticking = !pthread_create(&line.ticker, NULL, tick, NULL);
}

static void report_progress(struct reporter *reporter, json_t *progress)
{
	if (!isatty(STDERR_FILENO))
		return;
	pthread_mutex_lock(&told.lock);
	keep_part(progress);
	show(progress);
	pthread_mutex_unlock(&told.lock);
}

/* Nothing is shown before the ticker does: most of them take no time. */
void terminal_part(const char *verb, const char *object)
{
	json_t *progress = json_object();
	char what[400], unused[500];

	snprintf(what, sizeof(what), "%s %s", verb, object);
	put_text(progress, "what", what);
	if (isatty(STDERR_FILENO)) {
		pthread_mutex_lock(&told.lock);
		keep_part(progress);
		progress_line(&line.meter, seconds_now(), progress, unused, sizeof(unused));
		pthread_mutex_unlock(&told.lock);
	}
	json_decref(progress);
}

static void stop_ticker(void)
{
	bool ticking;

	pthread_mutex_lock(&told.lock);
	keep_part(NULL);
	line.end = true;
	ticking = line.ticking;
	pthread_cond_signal(&line.ended);
	pthread_mutex_unlock(&told.lock);
	if (ticking)
		pthread_join(line.ticker, NULL);
}

/* A line of its own for the user, or for the answer in JSON; from any thread. */
static void tell(const char *text)
{
	pthread_mutex_lock(&told.lock);
	if (!told.notes) {
		clear_line();
		fprintf(stderr, "millrace: %s\n", text);
	} else if (json_array_size(told.notes) < NOTES_MAX) {
		json_array_append_new(told.notes, json_text(text));
	}
	pthread_mutex_unlock(&told.lock);
}

static void report_note(struct reporter *reporter, const char *text)
{
	tell(text);
}

static void log_sink(enum log_level level, const char *text)
{
	if (level <= LOG_WARNING || (level == LOG_NOTICE && isatty(STDERR_FILENO)))
		tell(text);
}

void terminal_begin(bool json)
{
	if (json)
		told.notes = json_array();
	log_set_sink(log_sink);
}

void terminal_end(json_t *result)
{
	stop_ticker();
	clear_line();
	log_set_sink(NULL);
	if (told.notes && json_array_size(told.notes))
		json_object_set(result, "notes", told.notes);
	json_decref(told.notes);
	told.notes = NULL;
}

static bool report_stopped(struct reporter *reporter)
{
	return interrupted;
}

struct reporter *terminal_reporter(void)
{
	static struct reporter reporter = {report_progress, report_note, report_stopped};
	static bool ready;

	if (!ready) {
		signal(SIGINT, on_interrupt);
		signal(SIGTERM, on_interrupt);
		ready = true;
	}
	return &reporter;
}

int terminal_confirm(const struct command *command, struct error *error)
{
	const struct verb *verb = command->verb;
	const char *text = json_string_value(json_object_get(command->args, "volume"));
	char answer[16] = "";

	if (!text)
		text = json_string_value(json_object_get(command->args, "pool"));
	if (!(verb->flags & VERB_DESTROYS) || json_object_get(command->args, "yes"))
		return 0;
	if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
		return error_set(error, -ECANCELED, text,
			"this destroys what it holds: say --yes to do it unasked");
	fprintf(stderr, "This destroys %s %s and all it holds. Go on? [y/N] ", verb->noun, text);
	if (fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
		return 0;
	return error_set(error, -ECANCELED, text, "nothing was done");
}
