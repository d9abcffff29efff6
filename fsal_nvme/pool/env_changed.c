/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Which keys of an environment have changed since its last image: what a delta is made of.
 *
 * They are noted in memory, with each change that LMDB has taken, also with one whose transaction
 * is abandoned: a key too many costs an entry. Noting begins anew under the write lock in which an
 * image's view is begun, at that image's LSN, and what was noted is whole if it began at the LSN
 * of the image that the environment then has. So nothing needs to be undone when an image cannot
 * be written, or is never recorded: the next one is full. After an opening the journal's replay
 * notes what it changes, which is what the image does not have.
 *
 * Where noting would take more than a quarter of what the environment takes, or memory runs out,
 * it ends: a delta would be no use. All that is noted of all environments are keys of records that
 * the journal's ring still holds.
 */
#include "pool/env.h"
#include "pool/key_set.h"

#define MOST_PART 4u /* of what the environment takes */

static void begin(struct env *env, uint64_t lsn)
{
	env->changed = env->volume ? key_set_new() : NULL;
	env->changed_since = lsn;
	env->changed_most = env_bytes(env) / MOST_PART;
}

static void end(struct env *env)
{
	key_set_free(env->changed);
	env->changed = NULL;
}

void env_changed_begin(struct env *env, uint64_t lsn)
{
	end(env);
	begin(env, lsn);
}

void env_changed_end(struct env *env)
{
	end(env);
}

void env_changed_note(struct env *env, struct bytes key)
{
	if (!env->changed)
		return;
	if (key_set_add(env->changed, key) || key_set_bytes(env->changed) > env->changed_most)
		end(env);
}

struct key_set *env_changed_take(struct env *env, uint64_t since, uint64_t lsn)
{
	struct key_set *changed = env->changed;

	if (env->changed_since != since) {
		key_set_free(changed);
		changed = NULL;
	}
	begin(env, lsn);
	return changed;
}
