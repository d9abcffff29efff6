/* links: volume */
/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Writes, reads, cuts, commits and crashes at random, compared with a plain model. */
#include "test_volume_share.h"

#define MODEL_FILES 3
#define MODEL_SIZE (192 * KIB)

struct model {
	struct volume_file *file;
	uint64_t ino, size;
	uint8_t bytes[MODEL_SIZE];
};
static struct model models[MODEL_FILES];
static uint64_t chance;

static unsigned draw(unsigned below)
{
	chance = chance * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(chance >> 33) % below;
}

static void model_write(struct model *m)
{
	unsigned small = draw(3);
	size_t length = 1 + draw(small ? 3000 : 40000);
	uint64_t offset = draw(4) ? draw(small ? 3000 : MODEL_SIZE) : m->size;
	struct iovec iov[2];
	size_t first;

	if (offset + length > MODEL_SIZE)
		offset = MODEL_SIZE - length;
	if (offset > m->size)
		memset(m->bytes + m->size, 0, offset - m->size);
	fill_bytes(m->bytes + offset, length, draw(1000));
	if (offset + length > m->size)
		m->size = offset + length;
	first = draw((unsigned)length + 1);
	iov[0] = (struct iovec){m->bytes + offset, first};
	iov[1] = (struct iovec){m->bytes + offset + first, length - first};
	assert_int_equal(volume_write(m->file, offset, iov, 2, length), 0);
}

static void model_truncate(struct model *m)
{
	uint64_t size = draw(3) ? draw(4000) : draw(MODEL_SIZE);

	if (!draw(4))
		size = 0;
	if (size > m->size)
		memset(m->bytes + m->size, 0, size - m->size);
	m->size = size;
	assert_int_equal(set_size(fixture.volume, m->ino, size), 0);
}

static void note_read(struct volume_read *read)
{
	event_signal(read->data, read->result);
}

static void model_read(struct model *m)
{
	uint64_t offset = draw(MODEL_SIZE + 100), left = offset < m->size ? m->size - offset : 0;
	size_t length = 1 + draw(MODEL_SIZE), first = draw((unsigned)length + 1);
	size_t expected = left < length ? (size_t)left : length;
	uint8_t *found = malloc(length);
	struct iovec iov[3] = {{found, first}, {NULL, 0}, {found + first, length - first}};
	struct event event;
	struct volume_read read = {
		.offset = offset,
		.iov = iov,
		.iov_count = 3,
		.length = length,
		.done = note_read,
		.data = &event,
	};

	event_init(&event, fixture.pool_fixture.engine);
	volume_read(m->file, &read);
	assert_int_equal(event_wait(&event), 0);
	assert_int_equal(read.bytes, expected);
	assert_int_equal(read.eof, offset + expected >= m->size);
	if (expected)
		assert_memory_equal(found, m->bytes + offset, expected);
	free(found);
}

static void model_check(struct model *m)
{
	uint8_t *found = malloc(MODEL_SIZE + 1);
	size_t bytes;
	bool eof;

	assert_int_equal(size_of(fixture.volume, m->ino), m->size);
	assert_int_equal(volume_read_wait(m->file, 0, found, MODEL_SIZE + 1, &bytes, &eof), 0);
	assert_int_equal(bytes, m->size);
	assert_true(eof);
	if (bytes)
		assert_memory_equal(found, m->bytes, bytes);
	free(found);
}

static void model_reopen(bool crash)
{
	must_sync(&fixture);
	for (unsigned i = 0; i < MODEL_FILES; i++)
		volume_file_put(models[i].file);
	if (crash)
		volume_fixture_crash(&fixture, SIM_RANDOM);
	else
		volume_fixture_reopen(&fixture);
	for (unsigned i = 0; i < MODEL_FILES; i++) {
		models[i].file = must_get(fixture.volume, models[i].ino);
		model_check(&models[i]);
	}
}

static void model_step(unsigned step)
{
	struct model *m = &models[draw(MODEL_FILES)];

	switch (draw(12)) {
	case 0:
		model_truncate(m);
		break;
	case 1:
	case 2:
	case 3:
		model_read(m);
		break;
	case 4:
	case 5:
		assert_int_equal(volume_commit_wait(m->file), 0);
		break;
	case 6:
		if (!draw(20))
			model_reopen(draw(2));
		break;
	default:
		model_write(m);
	}
	if (step % 16 == 0)
		assert_int_equal(pool_maintain(fixture.pool), 0);
	if (step % 16 == 0)
		assert_int_equal(volume_maintain(fixture.volume), 0);
}

static void agrees_with_a_model(void **state)
{
	for (unsigned seed = 1; seed <= 6; seed++) {
		chance = seed;
		for (unsigned i = 0; i < MODEL_FILES; i++) {
			char name[16];

			snprintf(name, sizeof(name), "f%u-%u", seed, i);
			models[i].file = make_file(name);
			models[i].ino = volume_file_ino(models[i].file);
			models[i].size = 0;
		}
		for (unsigned step = 1; step <= 500; step++)
			model_step(step);
		for (unsigned i = 0; i < MODEL_FILES; i++) {
			model_check(&models[i]);
			volume_file_put(models[i].file);
		}
		must_be_sound(&fixture);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(agrees_with_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
