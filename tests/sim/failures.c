/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Every allocation and every I/O can fail: a script runs again and again, the N-th allocation of
 * our libraries failing for N = 1, 2, ... until it runs to its end without; then all from the N-th
 * on; then the N-th request to a device.
 *
 *   failures [--mode once|all|io] [--stride N] [--first N] [--part N] [--verbose]
 *
 * The script comes in parts, each from opening the pool to closing it; a part starts on the devices
 * as the whole part before it left them. What must come of a failure is an error of those that the
 * header allows, or nothing at all. After it the pool is abandoned, or closed where that can be;
 * the next opening, without failures, finds what was acknowledged and metadata that agree. After
 * each run as much memory must be allocated as before it; to see who lost it, a sanitizer, which is
 * asked too, is given the part and the N that failed.
 *
 * Failing allocations are the linker's doing (--wrap): those of LMDB and ISA-L, which are shared
 * libraries, do not fail, nor those of what the simulated world is made of; neither are counted.
 * A sanitizer build takes a stride, and another first N would see others.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "device/sim_world.h"
#include "operations.h"

#define PATIENCE 60 /* seconds; a run takes milliseconds */

/* --- allocations ------------------------------------------------------------------------------ */

enum mode { ONCE, ALL, IO };
static const char *const mode_names[] = {"once", "all", "io"};

static enum mode mode;
static bool armed; /* what fails is counted */
static uint64_t failing; /* which one, from 1; 0: none */
static uint64_t allocations, hits; /* of this run */
static long live; /* not freed yet */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
void __wrap_free(void *memory);
void *__real_sim_buffer_take(struct sim_buffers *buffers, size_t length);
void __real_sim_buffer_give(struct sim_buffers *buffers, void *buffer, size_t length);
void *__wrap_sim_buffer_take(struct sim_buffers *buffers, size_t length);
void __wrap_sim_buffer_give(struct sim_buffers *buffers, void *buffer, size_t length);

static bool fails(void)
{
	if (!armed || mode == IO || !failing)
		return false;
	allocations++;
	if (allocations < failing || (mode == ONCE && allocations > failing))
		return false;
	hits++;
	errno = ENOMEM;
	return true;
}

static void *counted(void *memory)
{
	live += memory != NULL;
	return memory;
}

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
	return fails() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *old, size_t size)
{
	if (fails())
		return NULL;
	return old ? __real_realloc(old, size) : counted(__real_malloc(size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return fails() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

char *__wrap_strdup(const char *text)
{
	return fails() ? NULL : counted(__real_strdup(text));
}

char *__wrap_strndup(const char *text, size_t size)
{
	return fails() ? NULL : counted(__real_strndup(text, size));
}

void __wrap_free(void *memory)
{
	live -= memory != NULL;
	__real_free(memory);
}

void *__wrap_sim_buffer_take(struct sim_buffers *buffers, size_t length)
{
	return fails() ? NULL : counted(__real_sim_buffer_take(buffers, length));
}

void __wrap_sim_buffer_give(struct sim_buffers *buffers, void *buffer, size_t length)
{
	live -= buffer != NULL;
	__real_sim_buffer_give(buffers, buffer, length);
}

/* --- steps ------------------------------------------------------------------------------------ */

struct
try {
	struct run run;
	struct model before, model;
	uint64_t n;
	unsigned part, step;
	const char *wrong;
};

struct step {
	const char *name; /* of an operation, where `run` is NULL */
	int (*run)(struct try *t);
};

static int open_pool(struct try *t)
{
	return run_open(&t->run);
}

/* What can be read is right. */
static int read_all(struct try *t)
{
	const char *wrong = run_compare(&t->run, &t->model);

	if (!wrong)
		return 0;
	if (!strstr(wrong, "cannot be") && !strstr(wrong, "fails"))
		t->wrong = wrong;
	return -EIO;
}

static int verify(struct try *t)
{
	struct volume_verify_report report = {0};
	uint64_t wrong = 0;
	int rc = volume_verify(t->run.volume, NULL, &report, NULL);

	if (!rc)
		rc = volume_check_live(t->run.volume, &wrong);
	if (!rc && wrong)
		t->wrong = "live bytes are wrong";
	if (!rc && report.bad_metadata)
		t->wrong = "metadata is called bad";
	return rc ? rc : report.bad_files ? -EIO : 0;
}

static int check(struct try *t)
{
	struct pool_check_report report = {0};
	int rc = pool_check(t->run.pool, true, &report, NULL, NULL, NULL);

	if (!rc && report.lost_blocks)
		rc = -EIO;
	return rc;
}

static int unlink_staged(struct try *t, const char *name)
{
	uint64_t lsn = 0;
	int rc = volume_unlink(t->run.volume, VOLUME_ROOT, name, VOLUME_UNLINK_FILE, &lsn);

	return rc ? rc : pool_sync(t->run.pool, lsn);
}

static int stage(struct try *t)
{
	static uint8_t bytes[7000];
	struct volume_staged files[2] = {
		{.dir = VOLUME_ROOT, .name = "s1", .new.type = VOLUME_FILE, .size = 900},
		{.dir = VOLUME_ROOT, .name = "s2", .new.type = VOLUME_FILE, .size = 7000}};
	uint64_t lsn = 0;
	int rc = 0;

	for (unsigned i = 0; !rc && i < 2; i++)
		rc = volume_stage(t->run.volume, &files[i], 0, bytes, files[i].size);
	if (!rc)
		rc = volume_stage_commit(t->run.volume, files, 2, &lsn);
	for (unsigned i = 0; i < 2; i++) {
		rc = rc ? rc : files[i].status;
		volume_staged_free(t->run.volume, &files[i]);
	}
	rc = rc ? rc : unlink_staged(t, "s1");
	return rc ? rc : unlink_staged(t, "s2");
}

static int compact(struct try *t)
{
	int rc = run_compact(&t->run);

	return rc ? rc : volumes_compact(t->run.volumes, 101, 1u << 20, NULL);
}

static bool see_entry(void *data, const struct volume_entry *entry)
{
	++*(unsigned *)data;
	return true;
}

static int look_around(struct try *t)
{
	struct volume_attributes found;
	struct volume_space space;
	struct pool_status status;
	unsigned entries = 0;
	bool eof;
	int rc = volume_readdir(t->run.volume, VOLUME_ROOT, 0, see_entry, &entries, &eof);

	pool_status(t->run.pool, &status);
	rc = rc ? rc : volume_parent(t->run.volume, VOLUME_ROOT, &found);
	return rc ? rc : volume_statfs(t->run.volume, &space);
}

/* From now on a device is dead: reads are rebuilt, the next write drops it. With an I/O that fails
 * besides there would be one device too few, and the parts that follow need all. */
static int kill_device(struct try *t)
{
	if (mode == IO || !t->n)
		return 0;
	sim_kill_device(world, device_paths[1]);
	return 0;
}

static int other_volume(struct try *t)
{
	struct volume_create_options options = {.name = "other", .kind = VOLUME_DATASET};
	struct volume *volume;
	int rc = volume_create(t->run.volumes, &options, NULL, NULL);

	rc = rc ? rc : volume_open(t->run.volumes, "other", &volume, NULL);
	if (rc)
		return rc;
	rc = volume_seal(volume, NULL);
	volume_close(volume);
	return rc ? rc : volume_destroy(t->run.volumes, "other", NULL);
}

/* --- ingest: a tree of the host's, into a dataset of its own --- */

static char source[] = "/tmp/failures-XXXXXX";

static void source_make(void)
{
	static const struct {
		const char *name;
		off_t offset;
		size_t length;
	} files[] = {{"empty", 0, 0}, {"tiny", 0, 700}, {"dir/small", 0, 6000},
		{"dir/deep/rows", 0, 30000}, {"dir/hole", 40000, 900}};
	static char bytes[30000];

	memset(bytes, 0xa7, sizeof(bytes));
	if (!mkdtemp(source) || chdir(source) || mkdir("dir", 0755) || mkdir("dir/deep", 0700) ||
		symlink("nowhere", "link"))
		abort();
	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		int fd = open(files[i].name, O_WRONLY | O_CREAT, 0644);

		if (fd < 0 || pwrite(fd, bytes, files[i].length, files[i].offset) !=
				      (ssize_t)files[i].length)
			abort();
		close(fd);
	}
	if (link("tiny", "dir/tiny"))
		abort();
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	return remove(path);
}

static void source_remove(void)
{
	if (chdir("/") || nftw(source, remove_one, 16, FTW_DEPTH | FTW_PHYS))
		perror(source);
}

/* What a failure left out of the dataset is made good by another ingest; 0: all is there. */
static int ingest_into(struct try *t, struct volume *volume)
{
	struct ingest_options options = {.source = source, .resume = true};
	struct volume_verify_report report = {0};
	struct ingest_progress progress;
	int rc = volume_ingest(volume, &options, &progress, NULL);

	if (!rc && progress.skipped)
		t->wrong = "ingest leaves something out";
	if (!rc)
		rc = volume_verify(volume, NULL, &report, NULL);
	if (!rc && (report.bad_metadata || report.files != 5))
		t->wrong = "ingest makes something else";
	return rc ? rc : report.bad_files ? -EIO : 0;
}

static int ingest(struct try *t)
{
	struct volume_create_options options = {.name = "set", .kind = VOLUME_DATASET};
	struct volume *volume;
	int rc = volume_create(t->run.volumes, &options, NULL, NULL);

	rc = rc ? rc : volume_open(t->run.volumes, "set", &volume, NULL);
	if (rc)
		return rc;
	rc = ingest_into(t, volume);
	rc = rc ? rc : ingest_into(t, volume);
	rc = rc ? rc : volume_seal(volume, NULL);
	volume_close(volume);
	return rc ? rc : volume_destroy(t->run.volumes, "set", NULL);
}

/* The dataset that a failing ingest left is completed, unless it is sealed, and destroyed. */
static const char *finish_ingest(struct try *t)
{
	struct volume *volume;
	int rc = volume_open(t->run.volumes, "set", &volume, NULL);

	if (rc)
		return rc == -ENOENT ? NULL : "the dataset cannot be opened";
	if (!volume_row(volume)->sealed)
		rc = ingest_into(t, volume);
	volume_close(volume);
	if (rc || t->wrong)
		return t->wrong ? t->wrong : "the ingest cannot be resumed";
	return volume_destroy(t->run.volumes, "set", NULL) ? "it cannot be destroyed" : NULL;
}

/* Over the pool that is there; ends with a new one like the base's. */
static int new_pool(struct try *t)
{
	struct volume_create_options volume = {.name = "share", .kind = VOLUME_SHARE};
	struct pool_create_device devices[DEVICES_MAX];
	struct pool_create_options create = {.name = "tank",
		.data = geometry.data,
		.parity = geometry.parity,
		.cell = 4096,
		.devices = devices,
		.device_count = geometry.devices,
		.host = "alpha",
		.force = true,
		.slot_rows = 4,
		.journal_size = 512 << 10};
	struct pool_open_options open = {
		.paths = device_paths, .path_count = geometry.devices, .host = "alpha"};
	int rc;

	for (unsigned i = 0; i < geometry.devices; i++)
		devices[i] = (struct pool_create_device){device_paths[i], device_paths[i]};
	rc = pool_create(t->run.engine, &create, NULL);
	rc = rc ? rc : pool_open(t->run.engine, &open, &t->run.pool, NULL);
	rc = rc ? rc : volumes_create(t->run.pool, NULL, &t->run.volumes);
	rc = rc ? rc : volume_create(t->run.volumes, &volume, NULL, NULL);
	return rc ? rc : volume_open(t->run.volumes, "share", &t->run.volume, NULL);
}

/* --- the script ------------------------------------------------------------------------------- */

#define STEPS_MAX 16
/* clang-format off */
#define OP(name) {name, NULL}
#define OPEN {"open", open_pool}
#define READ {"read", read_all}
/* clang-format on */
#define CLOSE OP("close and open")

static const struct step parts[][STEPS_MAX] = {
	{{"create pool", new_pool}, CLOSE},
	{OPEN, OP("a client of the server comes"), OP("create a"), OP("write a small"), READ,
		OP("fsync a"), OP("shrink a"), OP("grow a"), OP("set an attribute of a"),
		OP("punch a"), READ, CLOSE},
	{OPEN, OP("write a behind a hole"), OP("write a across rows"), READ, OP("fsync a"), READ,
		OP("set an attribute of a"), OP("link a b"), OP("maintain"), OP("checkpoint"),
		OP("earlier clients are forgotten"), {"look around", look_around}, CLOSE},
	{OPEN, {"stage", stage}, {"other volume", other_volume}, {"verify", verify},
		{"check", check}, CLOSE},
	{OPEN, {"ingest", ingest}, CLOSE, {"check", check}},
	{OPEN, OP("unlink a"), OP("create a"), OP("write a across rows"), OP("fsync a"),
		OP("punch a"), READ, OP("fsync a"), OP("rename a b"), {"compact", compact}, READ,
		OP("maintain"), CLOSE},
	{OPEN, OP("create a"), OP("write a across rows"), OP("fsync a"),
		OP("set an attribute of a"), OP("remove the attribute of a"),
		OP("set an attribute of a"), OP("unlink a while open"), OP("maintain"), CLOSE,
		{"verify", verify}},
	{OPEN, OP("write b across rows"), OP("fsync b"), {"a device dies", kill_device}, READ,
		OP("write b across rows"), OP("fsync b"), OP("maintain"), READ, CLOSE, READ,
		{"check", check}},
	{OPEN, OP("seal"), READ, CLOSE, READ},
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

static const struct operation *find_operation(const char *name)
{
	return &operations[operation_find(name)];
}

/* --- one run ---------------------------------------------------------------------------------- */

static unsigned long runs, swallowed;
static bool verbose;

static const char *step_name(const struct try *t)
{
	return parts[t->part][t->step].name ? parts[t->part][t->step].name : "the end";
}

static void fail(const struct try *t, const char *why)
{
	fprintf(stderr, "FAILED: %s\n  part %u, step \"%s\", --mode %s --part %u --first %llu\n",
		why, t->part, step_name(t), mode_names[mode], t->part, (unsigned long long)t->n);
	exit(1);
}

static bool was_hit(struct try *t)
{
	return mode == IO ? sim_failed(t->run.engine) : hits > 0;
}

/* Errors that a failing allocation or I/O may become; others would blame the caller. */
static bool is_allowed(int rc)
{
	return rc == -ENOMEM || rc == -EIO;
}

/* 0 or the error that ended the script. */
static int take_step(struct try *t)
{
	const struct step *step = &parts[t->part][t->step];
	const struct operation *op = step->run ? NULL : find_operation(step->name);
	int got, want = 0;

	model_free(&t->before);
	model_copy(&t->before, &t->model);
	t->run.salt = 10 * t->part + t->step;
	armed = true;
	got = op ? op->run(&t->run, op->a, op->b) : step->run(t);
	armed = false;
	if (op)
		want = op->model(&t->model, op->a, op->b, t->run.salt);
	if (t->wrong)
		fail(t, t->wrong);
	if (got == want)
		return 0;
	if (!was_hit(t) || !is_allowed(got)) {
		char why[160];

		snprintf(why, sizeof(why), "it gives %d (%s)", got, strerror(-got));
		fail(t, why);
	}
	return got;
}

/* Without failures: the state before the step that failed, or after it. */
static void judge(struct try *t)
{
	const char *wrong;
	int rc;

	for (unsigned i = 0; i < geometry.devices; i++)
		sim_revive_device(world, device_paths[i]);
	if (sim_engine_create(world, &t->run.engine))
		abort();
	rc = t->part ? run_open(&t->run) : new_pool(t);
	if (rc)
		fail(t, strerror(-rc));
	wrong = run_compare(&t->run, &t->model);
	if (wrong && !run_compare(&t->run, &t->before))
		wrong = NULL;
	if (!wrong)
		wrong = run_check(&t->run);
	if (!wrong)
		wrong = finish_ingest(t);
	if (!wrong && check(t))
		wrong = "check finds lost blocks";
	if (wrong)
		fail(t, wrong);
	run_crash(&t->run);
	sim_drain(world);
	engine_destroy(t->run.engine);
}

/* Every other time the pool is closed, or at least told to, and every third the power goes. */
static void let_go(struct try *t)
{
	const struct operation *close = find_operation("close and open");

	if (t->n % 2 && t->run.volume)
		close->run(&t->run, 0, 0);
	armed = mode == ALL && hits;
	run_crash(&t->run);
	armed = false;
	sim_drain(world);
	engine_destroy(t->run.engine);
	if (t->n % 3 == 0) {
		sim_cut_power(world);
		sim_power_on(world, SIM_LOSE_ALL);
	}
}

int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static void look_for_leaks(const struct try *t, long before)
{
	char text[64];

	snprintf(text, sizeof(text), "%ld allocations are not freed", live - before);
	if (live != before)
		fail(t, text);
	if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check())
		fail(t, "memory is lost");
}

/* False: the part ran to its end and nothing was left to fail. */
static bool run_once(const struct sim_image *image, const struct model *model, struct try *t)
{
	int rc = 0;
	bool hit;

	alarm(PATIENCE);
	sim_restore(world, image);
	if (sim_engine_create(world, &t->run.engine))
		abort();
	model_copy(&t->model, model);
	allocations = hits = 0;
	failing = t->n;
	if (mode == IO)
		sim_fail_nth(t->run.engine, t->n, -EIO);
	for (t->step = 0; !rc && parts[t->part][t->step].name; t->step++)
		rc = take_step(t);
	t->step -= rc ? 1 : 0;
	hit = was_hit(t);
	sim_fail_nth(t->run.engine, 0, 0);
	swallowed += hit && !rc;
	if (verbose)
		fprintf(stderr, "part %u n %llu: %s: %s\n", t->part, (unsigned long long)t->n,
			step_name(t), strerror(-rc));
	let_go(t);
	runs++;
	if (hit)
		judge(t);
	model_free(&t->before);
	return hit;
}

/* --- all of them ------------------------------------------------------------------------------ */

/* The part without failures: the devices and the model for the next one. */
static void whole_part(unsigned part, struct sim_image **image, struct model *model)
{
	struct try t = {.run.host = "alpha", .part = part, .n = 0};
	enum mode kept = mode;

	mode = ONCE; /* n = 0: never */
	if (run_once(*image, model, &t))
		abort();
	mode = kept;
	for (unsigned i = 0; i < geometry.devices; i++)
		sim_revive_device(world, device_paths[i]);
	if (sim_save(world, image))
		abort();
	model_free(model);
	*model = t.model;
}

/* The first run, without failures, makes what environments keep for those that follow. */
static void run_part(unsigned part, struct sim_image *image, const struct model *model,
	uint64_t first, uint64_t stride)
{
	for (uint64_t n = 0;; n += n ? stride : first) {
		struct try t = {.run.host = "alpha", .part = part, .n = n};
		long before = live;
		bool hit = run_once(image, model, &t);

		model_free(&t.model);
		if (n)
			look_for_leaks(&t, before);
		if (n && !hit) {
			printf("part %u, %s: up to %llu\n", part, mode_names[mode],
				(unsigned long long)n);
			return;
		}
	}
}

static void quiet(enum log_level level, const char *line)
{
}

static bool read_mode(const char *text, unsigned *from, unsigned *to)
{
	for (unsigned i = ONCE; i <= IO; i++) {
		if (!strcmp(text, mode_names[i])) {
			*from = *to = i;
			return true;
		}
	}
	return false;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"mode", required_argument, NULL, 'm'},
		{"stride", required_argument, NULL, 's'}, {"first", required_argument, NULL, 'f'},
		{"part", required_argument, NULL, 'p'}, {"verbose", no_argument, NULL, 'v'},
		{NULL, 0, NULL, 0}};
	uint64_t stride = 1, first = 1;
	unsigned from = ONCE, to = IO, only = PARTS;
	struct sim_image *image = NULL;
	struct model model;
	double began = seconds_now();
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 's')
			stride = strtoull(optarg, NULL, 10);
		else if (option == 'f')
			first = strtoull(optarg, NULL, 10);
		else if (option == 'p')
			only = (unsigned)atoi(optarg);
		else if (option == 'v')
			verbose = true;
		else if (option != 'm' || !read_mode(optarg, &from, &to))
			return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!verbose)
		log_set_sink(quiet);
	base_make(1, &geometry_small);
	source_make();
	model_init(&model);
	sim_restore(world, base);
	if (sim_save(world, &image))
		abort();
	for (unsigned part = 0; part < PARTS; part++) {
		for (mode = from; mode <= to && (only == PARTS || only == part); mode++)
			run_part(part, image, &model, first, stride);
		whole_part(part, &image, &model);
	}
	model_free(&model);
	sim_image_free(image);
	base_free();
	source_remove();
	printf("%lu runs, %lu of them bore the failure, in %.1f s\n", runs, swallowed,
		seconds_now() - began);
	return 0;
}
