/* links: pool */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Labels on the devices: which one stands there after several were written. */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "device/engine.h"
#include "pool/internal.h"
#include "pool_fixture.h"

#define DEVICE_SIZE (4u << 20)

/* --- a second writer of labels, while the first one's are on their way ------------------------ */

static struct {
	const struct engine_ops *real;
	struct pool *pool;
	pthread_t thread;
	sem_t written;
	bool armed;
} second;

static void *write_second(void *argument)
{
	assert_int_equal(label_write(second.pool), 0);
	sem_post(&second.written);
	return NULL;
}

/* The first request of the first writer waits here until the second has written its labels, if it
 * gets so far. The world has one thread at a time: the other one waits for this one. */
static void submit(struct engine *engine, struct io **ios, unsigned count)
{
	struct timespec until;

	if (second.armed) {
		second.armed = false;
		assert_int_equal(pthread_create(&second.thread, NULL, write_second, NULL), 0);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		sem_timedwait(&second.written, &until);
	}
	second.real->submit(engine, ios, count);
}

static int keep_greatest(void *data, const struct label *label)
{
	uint64_t *greatest = data;

	if (label->sequence > *greatest)
		*greatest = label->sequence;
	return 0;
}

static void a_label_never_lands_over_a_later_one(void **state)
{
	struct engine_ops slow;
	struct fixture f;

	fixture_make(&f, FIXTURE_DEVICES, 4, 2, DEVICE_SIZE, 1);
	second.pool = fixture_must_open(&f);
	sem_init(&second.written, 0, 0);
	second.real = f.engine->ops;
	slow = *second.real;
	slow.submit = submit;
	f.engine->ops = &slow;
	second.armed = true;
	assert_int_equal(label_write(second.pool), 0);
	pthread_join(second.thread, NULL);
	f.engine->ops = second.real;
	for (unsigned i = 0; i < FIXTURE_DEVICES; i++) {
		struct member *member = &second.pool->devices[i];
		uint64_t greatest = 0;

		assert_int_equal(label_read_all(f.engine, member->device, &member->header,
					 keep_greatest, &greatest),
			0);
		assert_int_equal(greatest, second.pool->label.sequence);
	}
	pool_abandon(second.pool);
	sem_destroy(&second.written);
	fixture_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_label_never_lands_over_a_later_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
