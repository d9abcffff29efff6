/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What image.c writes and image_read.c reads: sizes in the stream that the head of image.c shows.
 */
#ifndef MILLRACE_POOL_IMAGE_H
#define MILLRACE_POOL_IMAGE_H

#define MAGIC_IMAGE 0x31474d49524c494dull /* "MILRIMG1" */
#define IMAGE_VERSION 1u
#define HEAD_SIZE 32u
#define DELTA_HEAD_SIZE 40u
#define ENTRY_HEAD 6u
#define TRAILER_SIZE 10u
#define VALUE_DELETED UINT32_MAX /* the length of no value */

#endif
