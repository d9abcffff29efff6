/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The registry of volumes' environments. pool->volumes lists those that are loading or loaded; the
 * first to ask loads and the others wait. One without users is freed when an image has all of it;
 * until then it stays, since only the journal has the rest.
 */
#include "pool/env.h"

#include <assert.h>

/* Under volumes_lock, all of these. */
static struct env *registry_find(struct pool *pool, uint32_t volume)
{
	struct env *env = pool->volumes;

	while (env && env->volume != volume)
		env = env->next;
	return env;
}

static void registry_add(struct pool *pool, struct env *env)
{
	env->next = pool->volumes;
	pool->volumes = env;
	env->listed = true;
}

static void registry_remove(struct pool *pool, struct env *env)
{
	struct env **at = &pool->volumes;

	if (!env->listed)
		return;
	while (*at != env)
		at = &(*at)->next;
	*at = env->next;
	env->listed = false;
}

static bool is_needed(struct env *env)
{
	struct journal_position position;

	return env->users || (env->listed && env_replay_from(env, &position));
}

void env_destroy(struct env *env)
{
	struct pool *pool;

	if (!env)
		return;
	pool = env->pool;
	pthread_mutex_lock(&pool->volumes_lock);
	assert(!env->users);
	registry_remove(pool, env);
	pthread_mutex_unlock(&pool->volumes_lock);
	env_free(env);
}

void env_put(struct env *env)
{
	struct pool *pool = env->pool;
	bool needed;

	if (!env->volume)
		return;
	pthread_mutex_lock(&pool->volumes_lock);
	assert(env->users);
	env->users--;
	needed = is_needed(env);
	if (!needed)
		registry_remove(pool, env);
	pthread_mutex_unlock(&pool->volumes_lock);
	if (!needed)
		env_free(env);
}

void env_set_gone(struct pool *pool, uint32_t volume)
{
	struct env *env;

	pthread_mutex_lock(&pool->volumes_lock);
	env = registry_find(pool, volume);
	if (env) {
		atomic_store(&env->gone, true);
		registry_remove(pool, env);
		if (env->users)
			env = NULL; /* the last env_put() frees it */
	}
	pthread_mutex_unlock(&pool->volumes_lock);
	if (env)
		env_free(env);
}

struct env *env_find(struct pool *pool, uint32_t volume)
{
	struct env *env;

	pthread_mutex_lock(&pool->volumes_lock);
	env = registry_find(pool, volume);
	if (env)
		env->users++;
	pthread_mutex_unlock(&pool->volumes_lock);
	return env;
}

struct bytes key_image(uint8_t key[9], uint32_t volume, uint32_t part)
{
	struct writer w = writer_on(key, 9);

	put_u8(&w, KEY_IMAGE);
	put_be64(&w, (uint64_t)volume << 32 | part);
	return (struct bytes){key, 9};
}

/* The first of the volume's rows from this part on. */
static int seek_part(struct txn *txn, uint32_t volume, uint32_t *part, struct image_row *row)
{
	struct env *env = pool_env(txn_pool(txn));
	uint8_t wanted[9];
	struct bytes found, value;
	struct reader r;
	int rc = txn_seek(txn, env, key_image(wanted, volume, *part), &found, &value);

	if (!rc && (found.length != sizeof(wanted) || memcmp(found.data, wanted, 5)))
		rc = -ENOENT;
	if (rc)
		return rc;
	r = reader_on((const uint8_t *)found.data + 5, 4);
	*part = get_key_u32(&r);
	r = reader_on(value.data, value.length);
	return image_row_decode(row, &r);
}

int env_find_image(struct txn *txn, uint32_t volume, struct image *image)
{
	struct image_row row;
	uint32_t part = 0;
	int rc;

	image->count = 0;
	while (!(rc = seek_part(txn, volume, &part, &row))) {
		if (part != image->count || part == IMAGE_PARTS_MAX ||
			row.kind != (part ? IMAGE_DELTA : IMAGE_FULL))
			return -EBADMSG;
		image->parts[image->count++] = row;
		part++;
	}
	return rc == -ENOENT ? 0 : rc;
}

int env_describe(struct pool *pool, uint32_t volume, struct image *image, bool *sealed)
{
	struct volume_row row;
	struct txn *view;
	int rc = view_begin(pool->env, &view);

	if (rc)
		return rc;
	rc = volume_row_get(view, volume, &row);
	if (!rc && row.destroying)
		rc = -ENOENT; /* some of its image may have gone */
	if (!rc)
		rc = env_find_image(view, volume, image);
	if (!rc)
		*sealed = row.sealed;
	txn_abort(view);
	return rc;
}

/* Without locks: the environment is listed as loading, and nobody else touches it. */
static int registry_load(struct env *env)
{
	struct image image;
	bool sealed = false;
	int rc = env_describe(env->pool, env->volume, &image, &sealed);

	if (rc)
		return rc;
	atomic_store(&env->sealed, sealed);
	if (!image.count)
		checkpoint_expect(env->pool);
	return env_fill(env, &image);
}

static void registry_loaded(struct env *env, int rc)
{
	struct pool *pool = env->pool;

	pthread_mutex_lock(&pool->volumes_lock);
	env->state = rc ? ENV_FAILED : ENV_READY;
	env->error = rc;
	if (rc)
		registry_remove(pool, env);
	pthread_cond_broadcast(&env->loaded);
	pthread_mutex_unlock(&pool->volumes_lock);
}

/* The listed environment or a new one to be loaded; NULL when there is no memory. */
static struct env *registry_enter(struct pool *pool, uint32_t volume, bool *fresh)
{
	struct env *env;

	pthread_mutex_lock(&pool->volumes_lock);
	env = registry_find(pool, volume);
	*fresh = !env;
	if (!env) {
		env = env_allocate(pool, volume);
		if (env)
			registry_add(pool, env);
	}
	if (env)
		env->users++;
	while (env && !*fresh && env->state == ENV_LOADING)
		pthread_cond_wait(&env->loaded, &pool->volumes_lock);
	pthread_mutex_unlock(&pool->volumes_lock);
	return env;
}

int env_get(struct pool *pool, uint32_t volume, struct env **result)
{
	struct env *env;
	bool fresh;
	int rc;

	if (!volume) {
		*result = pool->env;
		return 0;
	}
	env = registry_enter(pool, volume, &fresh);
	if (!env)
		return -ENOMEM;
	if (fresh)
		registry_loaded(env, registry_load(env));
	rc = env->error;
	if (rc)
		env_put(env);
	else
		*result = env;
	return rc;
}

int env_make(struct pool *pool, uint32_t volume, struct env **env)
{
	int rc = env_create(pool, volume, NULL, env);

	if (!rc) {
		(*env)->users = 1;
		checkpoint_expect(pool);
	}
	return rc;
}

void env_enlist(struct env *env)
{
	pthread_mutex_lock(&env->pool->volumes_lock);
	registry_add(env->pool, env);
	pthread_mutex_unlock(&env->pool->volumes_lock);
}

int env_list(struct pool *pool, struct env ***envs, unsigned *count)
{
	struct env *env, **list;
	unsigned n = 0;

	pthread_mutex_lock(&pool->volumes_lock);
	for (env = pool->volumes; env; env = env->next)
		n++;
	list = malloc((n ? n : 1) * sizeof(struct env *));
	n = 0;
	for (env = pool->volumes; list && env; env = env->next) {
		if (env->state != ENV_READY)
			continue;
		env->users++;
		list[n++] = env;
	}
	pthread_mutex_unlock(&pool->volumes_lock);
	if (!list)
		return -ENOMEM;
	*envs = list;
	*count = n;
	return 0;
}

int env_each(
	struct pool *pool, int (*each)(struct pool *pool, struct env *env, void *data), void *data)
{
	struct env **envs;
	unsigned count;
	int rc = env_list(pool, &envs, &count);

	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++) {
		if (!rc && !env_is_gone(envs[i]))
			rc = each(pool, envs[i], data);
		env_put(envs[i]);
	}
	free(envs);
	return rc;
}

void env_forget_all(struct pool *pool)
{
	while (pool->volumes)
		env_destroy(pool->volumes);
}
