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

void losses_init(struct pool *pool)
{
	for (unsigned i = 0; i < pool->device_count; i++) {
		unsigned j = 0;

		while (strcmp(pool->devices[j].label.domain, pool->devices[i].label.domain))
			j++;
		pool->devices[i].domain = j;
	}
}

static unsigned how_many(uint64_t set)
{
	return (unsigned)__builtin_popcountll(set);
}

static uint64_t domains_of(const struct pool *pool, uint64_t members)
{
	uint64_t domains = 0;

	for (; members; members &= members - 1)
		domains |= UINT64_C(1) << pool->devices[__builtin_ctzll(members)].domain;
	return domains;
}

/* Whether all of a domain may be lost. */
static bool domains_count(const struct pool *pool, uint64_t active)
{
	unsigned width = pool->header.data + pool->header.parity, needed;

	if (width > how_many(active))
		width = how_many(active);
	needed = (width + pool->header.parity - 1) / pool->header.parity;
	return how_many(domains_of(pool, active)) >= (needed > 3 ? needed : 3);
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
	if (how_many(lost) <= pool->header.parity)
		return true;
	return how_many(domains_of(pool, lost)) == 1 && domains_count(pool, active) &&
	       how_many(active & ~lost) > pool->header.parity;
}

unsigned losses_most(const struct pool *pool)
{
	uint64_t active = members_active(pool);
	unsigned most = pool->header.parity;

	for (unsigned i = 0; domains_count(pool, active) && i < pool->device_count; i++) {
		unsigned size = 0;

		for (uint64_t left = active; left; left &= left - 1)
			size += pool->devices[__builtin_ctzll(left)].domain == i;
		if (size > most)
			most = size;
	}
	return most;
}
