/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Handles: format 1 is a byte 1, three bytes of the volume's uuid, the volume's id and the inode
 * number, little-endian. The bytes of the uuid tell a volume from one of the same id in another
 * pool.
 */
#include "volume/internal.h"

#include <errno.h>

#include "common/codec.h"

#define HANDLE_FORMAT 1u

static uint32_t volume_tag(const struct volume *volume)
{
	const uint8_t *uuid = volume->row.uuid;

	return (uint32_t)uuid[0] | (uint32_t)uuid[1] << 8 | (uint32_t)uuid[2] << 16;
}

void volume_handle_make(
	const struct volume *volume, uint64_t ino, uint8_t bytes[VOLUME_HANDLE_SIZE])
{
	struct writer w = writer_on(bytes, VOLUME_HANDLE_SIZE);

	put_u8(&w, HANDLE_FORMAT);
	put_number(&w, volume_tag(volume), 3);
	put_u32(&w, volume->row.id);
	put_u64(&w, ino);
}

int volume_handle_decode(const void *bytes, size_t length, struct volume_handle *handle)
{
	struct reader r = reader_on(bytes, length);
	unsigned format = get_u8(&r);

	handle->tag = (uint32_t)get_number(&r, 3);
	handle->volume = get_u32(&r);
	handle->ino = get_u64(&r);
	if (r.bad || length != VOLUME_HANDLE_SIZE || format != HANDLE_FORMAT || !handle->volume ||
		!handle->ino)
		return -EBADMSG;
	return 0;
}

int volume_handle_check(const struct volume *volume, const struct volume_handle *handle)
{
	return handle->volume == volume->row.id && handle->tag == volume_tag(volume) ? 0 : -ESTALE;
}
