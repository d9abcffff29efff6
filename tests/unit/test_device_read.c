/* SPDX-License-Identifier: LGPL-3.0-or-later. Waiting for so long. links: device */
/* Events and reads that are waited for for so long, with real threads; those that hang are
 * test_pool_hang.c's. */
#include "device/device.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct engine *start(void)
{
	struct engine_options options = {8, 1, 1 << 20};
	struct engine *engine = NULL;
	struct error error = {0};

	if (uring_engine_create(&options, &engine, &error))
		fail_msg("%s: %s", error.object, error.message);
	return engine;
}

static void *signal_later(void *event)
{
	usleep(50000);
	event_signal(event, 7);
	return NULL;
}

static void events_are_waited_for_so_long(void **state)
{
	struct engine *engine = start();
	struct event event;
	pthread_t thread;
	uint64_t began = engine_clock(engine);

	event_init(&event, engine);
	assert_int_equal(event_wait_for(&event, 30000000), -ETIMEDOUT);
	assert_true(engine_clock(engine) - began >= 30000000);
	assert_int_equal(pthread_create(&thread, NULL, signal_later, &event), 0);
	assert_int_equal(event_wait_for(&event, UINT64_C(60) * 1000000000), 7);
	pthread_join(thread, NULL);
	assert_int_equal(event_wait_for(&event, 0), 7);
	engine_destroy(engine);
}

#define PATTERN 0x5a

/* Of eight blocks; the second and the third are not zeros. `path` ends with XXXXXX. */
static void make_file(char *path)
{
	uint8_t *bytes = malloc(2 * BLOCK_SIZE);
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 8 * BLOCK_SIZE), 0);
	memset(bytes, PATTERN, 2 * BLOCK_SIZE);
	assert_int_equal(pwrite(fd, bytes, 2 * BLOCK_SIZE, BLOCK_SIZE), 2 * BLOCK_SIZE);
	close(fd);
	free(bytes);
}

static void a_read_in_time_is_a_read(void **state)
{
	struct engine *engine = start();
	uint8_t *wanted = malloc(2 * BLOCK_SIZE);
	char path[] = "/tmp/millrace-read.XXXXXX";
	struct error error = {0};
	struct device *device;
	struct asked *asked;

	make_file(path);
	memset(wanted, PATTERN, 2 * BLOCK_SIZE);
	assert_int_equal(device_open(engine, path, DEVICE_READ_ONLY, &device, &error), 0);
	unlink(path);
	asked = device_ask(engine, device, BLOCK_SIZE, 2 * BLOCK_SIZE);
	assert_int_equal(asked_answer(asked, engine_clock(engine) + DEVICE_ANSWER_NS), 0);
	assert_memory_equal(asked_memory(asked), wanted, 2 * BLOCK_SIZE);
	asked_end(asked);
	free(wanted);
	device_close(device);
	engine_destroy(engine);
}

/* Some are answered as they are given up. */
static void many_are_given_up(void **state)
{
	struct engine *engine = start();
	char path[] = "/tmp/millrace-read.XXXXXX";
	struct error error = {0};
	unsigned answered = 0;

	make_file(path);
	for (unsigned i = 0; i < 1000; i++) {
		struct device *device;
		struct asked *asked[2];

		while (device_open(engine, path, DEVICE_READ_ONLY, &device, &error))
			assert_int_equal(error.code, -ETIMEDOUT); /* it has not answered yet */
		for (unsigned j = 0; j < 2; j++)
			asked[j] = device_ask(engine, device, BLOCK_SIZE, BLOCK_SIZE);
		usleep(i % 10 * 5);
		for (unsigned j = 0; j < 2; j++) {
			int rc = asked_answer(asked[j], 0);

			assert_true(!rc || rc == -ETIMEDOUT);
			if (!rc)
				assert_int_equal(*(const uint8_t *)asked_memory(asked[j]), PATTERN);
			answered += !rc;
			asked_end(asked[j]);
		}
		device_close(device);
	}
	printf("[%u of 2000 were answered]\n", answered);
	unlink(path);
	error_clear(&error);
	engine_destroy(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_are_waited_for_so_long),
		cmocka_unit_test(a_read_in_time_is_a_read),
		cmocka_unit_test(many_are_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
