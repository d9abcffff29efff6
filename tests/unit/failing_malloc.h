/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Memory that can run out: the program's own malloc() and the like, which fail when told and count
 * what is not freed. A sanitizer has its own; a test skips where COUNTS_ALLOCATIONS is 0.
 */
#ifndef FAILING_MALLOC_H
#define FAILING_MALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

__attribute__((unused)) static uint64_t fail_allocation; /* the n-th from now; 0: none */
__attribute__((unused)) static long allocations; /* not freed yet */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static void *counted(void *memory)
{
	if (memory)
		__atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
	return memory;
}

static bool fails(void)
{
	return fail_allocation && --fail_allocation == 0;
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
	return fails() ? NULL : counted(__libc_malloc(size));
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
	return fails() ? NULL : counted(__libc_calloc(count, size));
}

__attribute__((visibility("default"))) void *realloc(void *memory, size_t size)
{
	if (fails())
		return NULL;
	return memory ? __libc_realloc(memory, size) : counted(__libc_malloc(size));
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t size)
{
	return fails() ? NULL : counted(__libc_memalign(alignment, size));
}

__attribute__((visibility("default"))) void free(void *memory)
{
	if (memory)
		__atomic_sub_fetch(&allocations, 1, __ATOMIC_RELAXED);
	__libc_free(memory);
}
#else
#define COUNTS_ALLOCATIONS 0
#endif

#endif
