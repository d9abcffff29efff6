/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Sizes as people write them: "4096", "128K", "10GiB"; powers of 1024. */
#ifndef MILLRACE_SIZE_H
#define MILLRACE_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* -EINVAL: it is none; -ERANGE: more than INT64_MAX. */
int size_parse(const char *text, uint64_t *bytes);
/* The shortest text that size_parse() makes the same of: "10G", "1500". */
#define SIZE_TEXT_MAX 24
void size_text(uint64_t bytes, char text[SIZE_TEXT_MAX]);

#endif
