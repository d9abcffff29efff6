/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * ptrace() for User Mode Linux (LD_PRELOAD) on processors with more registers than it knows of.
 *
 * Those of 6.1 and 6.12 keep 2,696 bytes of a process's extended registers, which end with AVX-512
 * and PKRU. Where the host's kernel has more, those of AMX say, that takes the first bytes alone
 * out of PTRACE_GETREGSET, but refuses them in PTRACE_SETREGSET (EFAULT,
 * arch/x86/kernel/fpu/regset.c: the buffer has to be a whole one), and User Mode Linux panics as it
 * starts its first process. What is refused so is given once more behind the bytes that UML lacks,
 * as the process has them.
 */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#define XSTATE_MAX 16384
/* The header's first word says which components are there (Intel SDM, volume 1, 13.4.2). */
#define XSTATE_HEADER 512
/* The last component that UML's bytes hold: PKRU. */
#define XSTATE_KNOWN ((UINT64_C(1) << 10) - 1)

static long (*next)(enum __ptrace_request request, ...);

static void __attribute__((constructor)) find_next(void)
{
	next = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
}

/* Static: UML's kernel stacks are too small for these bytes. It asks from one thread alone. */
static long set_whole(pid_t pid, const struct iovec *part)
{
	static uint8_t whole[XSTATE_MAX] __attribute__((aligned(64)));
	struct iovec all = {whole, sizeof(whole)};
	uint64_t given, has;

	if (next(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &all) < 0)
		return -1;
	memcpy(&has, whole + XSTATE_HEADER, sizeof(has));
	memcpy(whole, part->iov_base, part->iov_len);
	memcpy(&given, whole + XSTATE_HEADER, sizeof(given));
	given = (given & XSTATE_KNOWN) | (has & ~XSTATE_KNOWN);
	memcpy(whole + XSTATE_HEADER, &given, sizeof(given));
	return next(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &all);
}

static bool is_part(const struct iovec *given)
{
	return given->iov_len >= XSTATE_HEADER + sizeof(uint64_t) && given->iov_len < XSTATE_MAX;
}

__attribute__((visibility("default"))) long ptrace(enum __ptrace_request request, ...)
{
	void *address, *data;
	long result;
	va_list list;
	pid_t pid;

	va_start(list, request);
	pid = va_arg(list, pid_t);
	address = va_arg(list, void *);
	data = va_arg(list, void *);
	va_end(list);
	result = next(request, pid, address, data);
	if (result < 0 && errno == EFAULT && request == PTRACE_SETREGSET &&
		address == (void *)NT_X86_XSTATE && is_part(data))
		return set_whole(pid, data);
	return result;
}
