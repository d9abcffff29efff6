/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Runs a target without libFuzzer:
 *
 *   fuzz_NAME [--runs N] [--seed N] CORPUS...     a directory's files, or a file
 *
 * First the corpus as it is, which must reach every type of the target; then `runs` mutations of
 * it. An input that crashes or takes longer than a minute is left in ./fuzz_NAME.crash, to be given
 * as the only CORPUS.
 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 60 /* seconds */
#define MUTATIONS 6 /* of one input, at most */

struct input {
	uint8_t *bytes;
	size_t length;
};

static struct input *corpus;
static size_t corpus_count;
static struct input current;
static char crash_path[512];

/* --- crashes ---------------------------------------------------------------------------------- */

/* Of the sanitizers, where there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));
const char *__asan_default_options(void);

/* What no input may ask for. */
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
	return "max_allocation_size_mb=1024";
}

static void keep_input(void)
{
	int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd < 0)
		return;
	(void)!write(fd, current.bytes, current.length);
	close(fd);
}

static void on_signal(int number)
{
	static const char text[] = "the input is kept in ";

	(void)!write(2, text, sizeof(text) - 1);
	(void)!write(2, crash_path, strlen(crash_path));
	(void)!write(2, "\n", 1);
	keep_input();
	signal(number, SIG_DFL);
	raise(number == SIGALRM ? SIGABRT : number);
}

static void watch(const char *program)
{
	const char *name = strrchr(program, '/');

	snprintf(crash_path, sizeof(crash_path), "%s.crash", name ? name + 1 : program);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(keep_input);
	else
		signal(SIGSEGV, on_signal), signal(SIGBUS, on_signal), signal(SIGFPE, on_signal);
	signal(SIGABRT, on_signal);
	signal(SIGALRM, on_signal);
}

/* From memory of its very length, where a sanitizer sees its end. */
static void run(const uint8_t *bytes, size_t length)
{
	current.length = length;
	current.bytes = malloc(length ? length : 1);
	if (!current.bytes)
		abort();
	memcpy(current.bytes, bytes, length);
	alarm(PATIENCE);
	LLVMFuzzerTestOneInput(current.bytes, length);
	free(current.bytes);
}

/* --- the corpus ------------------------------------------------------------------------------- */

static void add_file(const char *path)
{
	struct stat st;
	struct input input;
	int fd = open(path, O_RDONLY);

	if (fd < 0 || fstat(fd, &st)) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(2);
	}
	input.length = (size_t)st.st_size;
	input.bytes = malloc(input.length + 1);
	corpus = realloc(corpus, (corpus_count + 1) * sizeof(*corpus));
	if (!input.bytes || !corpus || read(fd, input.bytes, input.length) != (ssize_t)input.length)
		abort();
	corpus[corpus_count++] = input;
	close(fd);
}

static int is_file(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

/* In the order of names, so that a seed means the same everywhere. */
static void add_corpus(const char *path)
{
	struct dirent **names;
	char file[1024];
	int count = scandir(path, &names, is_file, alphasort);

	if (count < 0) {
		add_file(path);
		return;
	}
	for (int i = 0; i < count; i++) {
		snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
		add_file(file);
		free(names[i]);
	}
	free(names);
}

static void free_corpus(void)
{
	for (size_t i = 0; i < corpus_count; i++)
		free(corpus[i].bytes);
	free(corpus);
}

/* --- mutations -------------------------------------------------------------------------------- */

static uint64_t chance;

static uint64_t draw(uint64_t below)
{
	uint64_t z = chance += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return below ? (z ^ z >> 31) % below : 0;
}

static uint64_t interesting(void)
{
	uint64_t number = draw(2) ? 1ull << draw(64) : draw(300);

	return number + draw(3) - 1;
}

static void flip_bit(struct input *in)
{
	if (in->length)
		in->bytes[draw(in->length)] ^= (uint8_t)(1u << draw(8));
}

static void set_byte(struct input *in)
{
	if (in->length)
		in->bytes[draw(in->length)] = (uint8_t)draw(256);
}

static void put_number(struct input *in)
{
	size_t width = 1u << draw(4), at;
	uint64_t value = interesting();
	bool big = draw(2);

	if (in->length < width)
		return;
	at = draw(in->length - width + 1);
	for (size_t i = 0; i < width; i++)
		in->bytes[at + (big ? width - 1 - i : i)] = (uint8_t)(value >> (8 * i));
}

static void truncate_input(struct input *in)
{
	in->length = draw(in->length + 1);
}

static void remove_bytes(struct input *in)
{
	size_t at = draw(in->length), most = in->length - at;
	size_t n = draw(1 + (most < 64 ? most : draw(2) ? 64 : most));

	memmove(in->bytes + at, in->bytes + at + n, in->length - at - n);
	in->length -= n;
}

/* Opens a gap of at most `n` bytes and returns its length. */
static size_t make_room(struct input *in, size_t at, size_t n)
{
	if (n > fuzz_longest - in->length)
		n = fuzz_longest - in->length;
	memmove(in->bytes + at + n, in->bytes + at, in->length - at);
	in->length += n;
	return n;
}

static void insert_bytes(struct input *in)
{
	size_t at = draw(in->length + 1), n = make_room(in, at, 1 + draw(16));
	bool same = draw(2);
	uint8_t byte = (uint8_t)draw(256);

	for (size_t i = 0; i < n; i++)
		in->bytes[at + i] = same ? byte : (uint8_t)draw(256);
}

static void insert_from(struct input *in, const uint8_t *from, size_t length)
{
	size_t start = draw(length), at = draw(in->length + 1);
	size_t n = make_room(in, at, 1 + draw(length - start));

	memcpy(in->bytes + at, from + start, n);
}

static void repeat_bytes(struct input *in)
{
	uint8_t *copy = malloc(in->length + 1);

	if (!copy)
		abort();
	memcpy(copy, in->bytes, in->length);
	if (in->length)
		insert_from(in, copy, in->length);
	free(copy);
}

static void splice_inputs(struct input *in)
{
	const struct input *other = &corpus[draw(corpus_count)];
	size_t start, at;

	if (!other->length)
		return;
	if (draw(2)) {
		insert_from(in, other->bytes, other->length);
		return;
	}
	at = draw(in->length + 1);
	start = at < other->length && draw(2) ? at : draw(other->length);
	in->length = at;
	at = make_room(in, at, other->length - start);
	memcpy(in->bytes + in->length - at, other->bytes + start, at);
}

static void overwrite(struct input *in)
{
	const struct input *other = &corpus[draw(corpus_count)];
	size_t at = draw(in->length), n = 1 + draw(16);

	if (at + n <= in->length && at + n <= other->length)
		memcpy(in->bytes + at, other->bytes + at, n);
}

static void mutate(struct input *in)
{
	static void (*const kinds[])(struct input *) = {flip_bit, flip_bit, set_byte, put_number,
		put_number, put_number, truncate_input, remove_bytes, insert_bytes, repeat_bytes,
		splice_inputs, overwrite};

	for (uint64_t n = 1 + draw(MUTATIONS); n; n--)
		kinds[draw(sizeof(kinds) / sizeof(kinds[0]))](in);
}

static void run_mutations(unsigned long runs)
{
	struct input in = {.bytes = malloc(fuzz_longest)};

	if (!in.bytes)
		abort();
	for (unsigned long i = 0; i < runs; i++) {
		const struct input *from = &corpus[draw(corpus_count)];

		in.length = from->length < fuzz_longest ? from->length : fuzz_longest;
		memcpy(in.bytes, from->bytes, in.length);
		mutate(&in);
		run(in.bytes, in.length);
	}
	free(in.bytes);
}

/* --- the whole -------------------------------------------------------------------------------- */

static int report_types(void)
{
	int never = 0;

	for (const struct fuzz_type *type = fuzz_types; type->name; type++) {
		if (!type->reached)
			printf("never reached: %s\n", type->name);
		never |= !type->reached;
	}
	return never;
}

static double processor_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"runs", required_argument, NULL, 'r'},
		{"seed", required_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
	unsigned long runs = 0, seed = 1;
	int option, never;
	double began;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'r')
			runs = strtoul(optarg, NULL, 10);
		else if (option == 's')
			seed = strtoul(optarg, NULL, 10);
		else
			return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	watch(argv[0]);
	for (int i = optind; i < argc; i++)
		add_corpus(argv[i]);
	for (size_t i = 0; i < corpus_count; i++)
		run(corpus[i].bytes, corpus[i].length);
	never = report_types();
	chance = seed;
	began = processor_seconds();
	if (corpus_count)
		run_mutations(runs);
	printf("%zu inputs, then %lu mutations, %.0f a second of processor time; --seed %lu\n",
		corpus_count, runs, (double)runs / (processor_seconds() - began), seed);
	free_corpus();
	return never || !corpus_count;
}
