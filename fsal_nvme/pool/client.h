/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The row of a client in the pool's environment, for client.c and its fuzz test. */
#ifndef MILLRACE_POOL_CLIENT_H
#define MILLRACE_POOL_CLIENT_H

#include "common/codec.h"
#include "pool/pool.h"

#define CLIENT_ROW_MAX (8 + POOL_CLIENT_MAX)
void client_row_encode(const struct client_row *row, struct writer *w);
int client_row_decode(struct client_row *row, struct reader *r);

#endif
