/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What the files of fuzz_seeds share. */
#ifndef MILLRACE_FUZZ_SEEDS_H
#define MILLRACE_FUZZ_SEEDS_H

#include <stddef.h>

#include "fuzz.h"

/* Writes DIR/TARGET/NAME; ends the process when it cannot. */
void save(const char *target, const char *name, const void *bytes, size_t length);

/* Those of what comes from outside: by the network, on the control socket, from an admin. */
void seed_outside(void);

#endif
