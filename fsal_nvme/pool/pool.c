/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* A pool's end, its small questions, and the verbs on labels that need no opening. */
#include <stdio.h>
#include <sys/stat.h>

#include "pool/env.h"
#include "pool/follow.h"
#include "pool/hedge.h"
#include "pool/label.h"
#include "pool/row.h"

uint64_t pool_epoch(const struct pool *pool)
{
	return pool->epoch;
}

const char *pool_name(const struct pool *pool)
{
	return pool->label.name;
}

const uint8_t *pool_uuid(const struct pool *pool)
{
	return pool->label.pool;
}

struct engine *pool_engine(const struct pool *pool)
{
	return pool->engine;
}

bool pool_is_read_only(const struct pool *pool)
{
	return pool->read_only || atomic_load(&pool->failure);
}

bool pool_is_of_a_later_version(const struct pool *pool)
{
	bool later = false;

	for (unsigned i = 0; i < pool->device_count; i++)
		later |= pool->devices[i].header.read_only & ~FEATURES_READ_ONLY;
	return later;
}

int pool_failure(const struct pool *pool)
{
	return atomic_load(&pool->failure);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void free_table(struct pool *pool)
{
	for (unsigned i = 0; pool->table && i < pool->table_size; i++) {
		for (struct segment *s = pool->table[i], *next; s; s = next) {
			next = s->hash_next;
			segment_put(s);
		}
	}
	free(pool->table);
	pool->table = NULL;
}

static void release_stock(struct pool *pool)
{
	while (pool->stock && pool->stock_count)
		segment_put(pool->stock[--pool->stock_count]);
	free(pool->stock);
}

static void close_devices(struct pool *pool)
{
	for (unsigned i = 0; i < pool->device_count; i++) {
		device_close(pool->devices[i].device);
		free(pool->devices[i].slot_map);
	}
	retired_close(pool);
}

static void destroy_locks(struct pool *pool)
{
	pthread_mutex_destroy(&pool->label_lock);
	pthread_mutex_destroy(&pool->label_turn);
	pthread_mutex_destroy(&pool->volumes_lock);
	pthread_rwlock_destroy(&pool->table_lock);
	pthread_mutex_destroy(&pool->slots_lock);
	pthread_mutex_destroy(&pool->recording_lock);
	pthread_cond_destroy(&pool->recorded);
	pthread_mutex_destroy(&pool->drop_lock);
	pthread_mutex_destroy(&pool->row_lock);
	pthread_mutex_destroy(&pool->maintain_lock);
	pthread_mutex_destroy(&pool->wake_lock);
	pthread_cond_destroy(&pool->wake);
}

void pool_abandon(struct pool *pool)
{
	pool_stop_maintenance(pool);
	if (pool->journal)
		journal_stop(pool);
	beat_stop(pool);
	while (pool->streams)
		stream_abandon(pool->streams);
	pool_drain_rows(pool);
	if (pool->journal)
		journal_destroy(pool);
	env_forget_all(pool);
	if (pool->env)
		env_destroy(pool->env);
	chores_destroy(pool);
	release_stock(pool);
	hedge_end(pool);
	free_table(pool);
	rest_destroy(pool);
	page_cache_destroy(pool);
	block_cache_destroy(pool);
	erasure_destroy(pool);
	follow_destroy(pool);
	close_devices(pool);
	destroy_locks(pool);
	free(pool->scratch_dir);
	free(pool);
}

/* Whoever reads that waits for nobody: nothing of this owner's may still be on its way. */
static int mark_closed(struct pool *pool)
{
	struct journal_position end;
	struct journal_span *span;

	page_cache_end_repairs(pool);
	journal_durable_position(pool, &end);
	pthread_mutex_lock(&pool->label_lock);
	span = &pool->label.spans[pool->label.span_count - 1];
	span->end = end.position;
	span->window = journal_window(pool);
	pool->label.state = LABEL_ASSIGNED;
	pthread_mutex_unlock(&pool->label_lock);
	return label_write(pool);
}

int pool_close(struct pool *pool, struct error *error)
{
	int rc = atomic_load(&pool->failure);

	pool_stop_maintenance(pool);
	if (!rc && !pool->read_only) {
		while (pool->streams)
			stream_close(pool->streams);
		rc = pool_checkpoint(pool);
		if (!rc)
			rc = pool_sync(pool, journal_lsn(pool));
		if (!rc)
			rc = mark_closed(pool);
	}
	if (rc)
		error_set(error, rc, pool->label.name,
			"it could not be closed cleanly (%s); what was acknowledged is safe and "
			"will be found at the next opening",
			strerror(-rc));
	pool_abandon(pool);
	return rc;
}

/* --- an idle pool -------------------------------------------------------------------------------
 */

/* Opens, so that all checks of an opening hold, and leaves another label behind. */
static int open_and_close(struct engine *engine, const struct pool_open_options *options,
	int (*act)(struct pool *pool, const char *host), const char *host, struct error *error)
{
	struct pool *pool;
	int rc = pool_open(engine, options, &pool, error);

	if (rc)
		return rc;
	if (pool_is_read_only(pool)) {
		rc = error_set(error, -EROFS, pool->label.name, "%s",
			pool_is_of_a_later_version(pool)
				? "a later version made it, which alone may write to it"
				: "too few of its devices are usable to write labels");
		pool_abandon(pool);
		return rc;
	}
	rc = act(pool, host);
	if (rc) {
		error_set(error, rc, pool->label.name, "its labels cannot be written: %s",
			strerror(-rc));
		pool_abandon(pool);
		return rc;
	}
	return 0;
}

static int assign(struct pool *pool, const char *host)
{
	int rc = pool_checkpoint(pool);

	if (!rc)
		rc = pool_sync(pool, journal_lsn(pool));
	if (rc)
		return rc;
	memset(pool->label.owner, 0, sizeof(pool->label.owner));
	if (host)
		snprintf(pool->label.owner, sizeof(pool->label.owner), "%s", host);
	rc = mark_closed(pool);
	if (!rc && !host) {
		pool->label.state = LABEL_EXPORTED;
		rc = label_write(pool);
	}
	if (!rc)
		pool_abandon(pool);
	return rc;
}

int pool_assign(struct engine *engine, const struct pool_open_options *options, const char *host,
	struct error *error)
{
	return open_and_close(engine, options, assign, host, error);
}

static int wipe_member(struct pool *pool, struct member *member, void *zero)
{
	const struct device_header *h = &member->header;
	const struct {
		uint64_t offset;
		size_t length;
	} places[] = {{0, BLOCK_SIZE}, {h->size - BLOCK_SIZE, BLOCK_SIZE}, {BLOCK_SIZE, LABEL_AREA},
		{h->label_b_offset, LABEL_AREA}};
	int rc = 0;

	for (unsigned i = 0; !rc && i < 4; i++) {
		struct io io;

		io_prepare(&io, IO_WRITE, member->device, places[i].offset, zero, places[i].length);
		io.flags = IO_FUA;
		rc = io_run(pool->engine, &io);
	}
	return rc;
}

static int destroy(struct pool *pool, const char *host)
{
	void *zero = buffer_alloc(pool->engine, LABEL_AREA);
	int rc = zero ? 0 : -ENOMEM;

	if (!rc)
		memset(zero, 0, LABEL_AREA);
	for (unsigned i = 0; !rc && i < pool->device_count; i++)
		if (pool->devices[i].device)
			rc = wipe_member(pool, &pool->devices[i], zero);
	buffer_free(pool->engine, zero, LABEL_AREA);
	if (!rc)
		pool_abandon(pool);
	return rc;
}

int pool_destroy(
	struct engine *engine, const struct pool_open_options *options, struct error *error)
{
	return open_and_close(engine, options, destroy, NULL, error);
}
