/* SPDX-License-Identifier: LGPL-3.0-or-later */
#include "common/size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char suffixes[] = "KMGT";

int size_parse(const char *text, uint64_t *bytes)
{
	const char *suffix;
	unsigned shift;
	char *rest;

	if (text[0] < '0' || text[0] > '9')
		return -EINVAL;
	errno = 0;
	*bytes = strtoull(text, &rest, 10);
	if (errno || *bytes > INT64_MAX)
		return -ERANGE;
	if (!*rest)
		return 0;
	suffix = strchr(suffixes, *rest >= 'a' ? *rest - 'a' + 'A' : *rest);
	if (!suffix || (rest[1] && strcmp(rest + 1, "iB") != 0))
		return -EINVAL;
	shift = 10 * (unsigned)(suffix - suffixes + 1);
	if (*bytes >> (63 - shift))
		return -ERANGE;
	*bytes <<= shift;
	return 0;
}

void size_text(uint64_t bytes, char text[SIZE_TEXT_MAX])
{
	unsigned unit = 0;

	while (unit < sizeof(suffixes) - 1 && bytes && !(bytes & 1023)) {
		bytes >>= 10;
		unit++;
	}
	snprintf(text, SIZE_TEXT_MAX, "%llu%.*s", (unsigned long long)bytes, unit != 0,
		unit ? &suffixes[unit - 1] : "");
}
