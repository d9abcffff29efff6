/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* CRC32C (Castagnoli, RFC 3720 appendix B.4), by ISA-L. */
#ifndef MILLRACE_CRC32C_H
#define MILLRACE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#include <isa-l/crc.h>

static inline uint32_t crc32c(const void *bytes, size_t length)
{
	return ~crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)length, 0xffffffffu);
}

/* Continues over a second piece. */
static inline uint32_t crc32c_more(uint32_t crc, const void *bytes, size_t length)
{
	return ~crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)length, ~crc);
}

#endif
