/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What the files share that make operations.h true: read that first. */
#ifndef STEPS_H
#define STEPS_H

#include "operations.h"

#define ATTRIBUTE_MAX 2000 /* bytes */

extern const char *const names[MODEL_NAMES];

/* --- files (operations_files.c) --- */

/* Waits until what gave `rc` and *lsn is durable; *lsn as `rc` was made, whatever was evaluated
 * first. */
int durable(struct run *run, int rc, const uint64_t *lsn);
/* The file of a name with a reference. */
int get_file(struct run *run, int a, struct volume_file **file);
void pattern(uint8_t *bytes, uint32_t length, unsigned salt);
/* The value of an attribute, of a length of its own, up to ATTRIBUTE_MAX. */
size_t attribute_value(uint8_t *value, unsigned salt);
int set_quota(struct run *run, const char *text);

/* --- the pool (operations_pool.c) --- */

/* "0" and on: clients of the server. */
int put_client(struct run *run, int client);

/* --- datasets (operations_moved.c) --- */

/* All that the volume has is written somewhere else, durably. */
int compact_volume(struct run *run, struct volume *volume);
/* The other dataset, sealed or not, is as it was made: NULL; else what is wrong. */
const char *check_other(struct run *run);

/* --- the world (world.c) --- */

/* Closes what is held over its unlink. */
void let_go(struct run *run);
int close_volume(struct run *run);

/* --- steps, as the table of operations.c has them --- */

int do_allocate(struct run *run, int a, int b);
int do_checkpoint(struct run *run, int a, int b);
int do_client(struct run *run, int a, int b);
int do_compact(struct run *run, int a, int b);
int do_create(struct run *run, int a, int b);
int do_fill(struct run *run, int a, int b);
int do_forget_clients(struct run *run, int a, int b);
int do_fsync(struct run *run, int a, int b);
int do_grow(struct run *run, int a, int b);
int do_link(struct run *run, int a, int b);
int do_maintain(struct run *run, int a, int b);
int do_mkdir(struct run *run, int a, int b);
int do_other(struct run *run, int a, int b);
int do_punch(struct run *run, int a, int b);
int do_remove_attribute(struct run *run, int a, int b);
int do_rename(struct run *run, int a, int b);
int do_reopen(struct run *run, int a, int b);
int do_seal(struct run *run, int a, int b);
int do_set_attribute(struct run *run, int a, int b);
int do_shrink(struct run *run, int a, int b);
int do_unlink(struct run *run, int a, int b);
int do_unlink_fill(struct run *run, int a, int b);
int do_unlink_open(struct run *run, int a, int b);
int do_write_hole(struct run *run, int a, int b);
int do_write_kept(struct run *run, int a, int b);
int do_write_over_quota(struct run *run, int a, int b);
int do_write_rows(struct run *run, int a, int b);
int do_write_small(struct run *run, int a, int b);

int m_allocate(struct model *m, int a, int b, unsigned salt);
int m_client(struct model *m, int a, int b, unsigned salt);
int m_create(struct model *m, int a, int b, unsigned salt);
int m_fill(struct model *m, int a, int b, unsigned salt);
int m_forget_clients(struct model *m, int a, int b, unsigned salt);
int m_fsync(struct model *m, int a, int b, unsigned salt);
int m_grow(struct model *m, int a, int b, unsigned salt);
int m_link(struct model *m, int a, int b, unsigned salt);
int m_mkdir(struct model *m, int a, int b, unsigned salt);
int m_nothing(struct model *m, int a, int b, unsigned salt);
int m_punch(struct model *m, int a, int b, unsigned salt);
int m_remove_attribute(struct model *m, int a, int b, unsigned salt);
int m_rename(struct model *m, int a, int b, unsigned salt);
int m_reopen(struct model *m, int a, int b, unsigned salt);
int m_seal(struct model *m, int a, int b, unsigned salt);
int m_set_attribute(struct model *m, int a, int b, unsigned salt);
int m_shrink(struct model *m, int a, int b, unsigned salt);
int m_unlink(struct model *m, int a, int b, unsigned salt);
int m_write_hole(struct model *m, int a, int b, unsigned salt);
int m_write_kept(struct model *m, int a, int b, unsigned salt);
int m_write_over_quota(struct model *m, int a, int b, unsigned salt);
int m_write_rows(struct model *m, int a, int b, unsigned salt);
int m_write_small(struct model *m, int a, int b, unsigned salt);

#endif
