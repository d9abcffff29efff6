/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What may be lost at once: any m of the active devices; or all of one domain, however many, where
 * there are three domains at least, and so many that segments have no more than m chunks in one.
 *
 * Who finds what is left goes on without the lost ones, and drops them. That is right as long as
 * these cannot have gone on by themselves, as they would have without the others. Up to m devices
 * never write. A domain of more could, had it lost the others; but these are two domains or more,
 * and more than m devices, which is no loss that is allowed. With two domains each could take the
 * other for lost: so neither goes on there.
 *
 * The same rule tells whether enough devices have answered. What was written to all but losses has
 * been seen when those that answered could not be such a loss themselves.
 *
 * Sets of members are the bits of one number.
 */
#include "pool/internal.h"

static unsigned how_many(uint64_t set)
{
	return (unsigned)__builtin_popcountll(set);
}

static uint64_t domains_of(const uint8_t *domains, uint64_t members)
{
	uint64_t all = 0;

	for (; members; members &= members - 1)
		all |= UINT64_C(1) << domains[__builtin_ctzll(members)];
	return all;
}

/* Whether all of a domain may be lost. */
static bool domains_count(unsigned data, unsigned parity, const uint8_t *domains, uint64_t active)
{
	unsigned width = data + parity, needed;

	if (width > how_many(active))
		width = how_many(active);
	needed = (width + parity - 1) / parity;
	return how_many(domains_of(domains, active)) >= (needed > 3 ? needed : 3);
}

static bool allowed(
	unsigned data, unsigned parity, const uint8_t *domains, uint64_t active, uint64_t lost)
{
	if (how_many(lost) <= parity)
		return true;
	return how_many(domains_of(domains, lost)) == 1 &&
	       domains_count(data, parity, domains, active) && how_many(active & ~lost) > parity;
}

uint64_t members_active(const struct pool *pool)
{
	uint64_t active = 0;

	for (unsigned i = 0; i < pool->device_count; i++)
		if (atomic_load(&pool->devices[i].state) != DEVICE_DROPPED)
			active |= UINT64_C(1) << i;
	return active;
}

bool losses_allowed(const struct pool *pool, uint64_t active, uint64_t lost)
{
	return allowed(pool->header.data, pool->header.parity, pool->domains, active, lost);
}

bool pool_owner_is_shown(const struct pool_summary *s, uint64_t members)
{
	return !allowed(s->data, s->parity, s->domains, s->active, members & s->active);
}

unsigned losses_most(const struct pool *pool)
{
	uint64_t active = members_active(pool);
	unsigned most = pool->header.parity;

	if (!domains_count(pool->header.data, pool->header.parity, pool->domains, active))
		return most;
	for (unsigned i = 0; i < pool->device_count; i++) {
		unsigned size = 0;

		for (uint64_t left = active; left; left &= left - 1)
			size += pool->domains[__builtin_ctzll(left)] == i;
		if (size > most)
			most = size;
	}
	return most;
}
