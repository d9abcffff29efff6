/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The heads of a device: its header, in the first block and again in the last, and the pool's
 * label, in area A and in area B. One copy is as good as two until it rots as well. So every
 * opening, and pool_check(), looks at all of them, counts and names those that are bad; and an
 * owner mends them:
 *
 *   header   the bad copy is written again, byte by byte as the right one stands, which is not
 *            touched: a crash meanwhile leaves one right copy, as it was before
 *   label    label_write() replaces all copies on all members; what an opening finds is replaced by
 *            its own epoch's labels anyway
 *
 * Whose header it is was settled before: the member was opened by a right copy, and the newest
 * label names its uuid. A copy with a right checksum that is another's is named and left alone.
 *
 * Only the newest label is looked at, older ones serve nobody. As long as an owner has not closed
 * the pool another process cannot tell rot from a label that is being written, or that a crash
 * tore: it leaves labels out, and the next opening writes new ones.
 */
#include "pool/label.h"

enum head { HEAD_FIRST, HEAD_LAST, HEAD_LABEL_A, HEAD_LABEL_B, HEADS };
#define LABEL_HEADS (1u << HEAD_LABEL_A | 1u << HEAD_LABEL_B)

static const char *const head_names[HEADS] = {
	[HEAD_FIRST] = "header in its first block",
	[HEAD_LAST] = "header in its last block",
	[HEAD_LABEL_A] = "label in area A",
	[HEAD_LABEL_B] = "label in area B",
};

/* What a label must be to be the newest. */
struct newest {
	bool settled; /* no label is on its way, nor was when a crash came */
	uint64_t epoch, sequence;
};

/* One head of all members that can be read. */
struct copies {
	enum head head;
	unsigned count;
	struct member *members[POOL_DEVICES_MAX];
	struct io ios[POOL_DEVICES_MAX];
	uint8_t *memory;
	struct label *label;
};

static size_t head_length(enum head head)
{
	return head < HEAD_LABEL_A ? BLOCK_SIZE : LABEL_BODY;
}

static uint64_t head_offset(const struct member *member, enum head head, uint64_t epoch)
{
	switch (head) {
	case HEAD_FIRST:
		return 0;
	case HEAD_LAST:
		return member->header.size - BLOCK_SIZE;
	case HEAD_LABEL_A:
		return label_place(LABEL_A_OFFSET, epoch);
	default:
		return label_place(member->header.label_b_offset, epoch);
	}
}

static void *copy_bytes(const struct copies *copies, unsigned i)
{
	return copies->memory + i * head_length(copies->head);
}

/* With label_turn. */
static void find_newest(struct pool *pool, struct newest *newest)
{
	bool ours = !pool->read_only && pool->epoch == pool->label.epoch;

	pthread_mutex_lock(&pool->label_lock);
	newest->epoch = pool->label.epoch;
	newest->sequence = pool->label.sequence;
	newest->settled = ours ? !atomic_load(&pool->failure) : pool->label.state != LABEL_OPEN;
	pthread_mutex_unlock(&pool->label_lock);
}

/* --- looking ------------------------------------------------------------------------------ */

static bool is_own(const struct member *member, const struct device_header *header)
{
	return header->id == member->header.id &&
	       !memcmp(header->uuid, member->header.uuid, sizeof(header->uuid)) &&
	       !memcmp(header->pool, member->header.pool, sizeof(header->pool));
}

/* 0, -EBADMSG, or -EEXIST: another's. */
static int judge_header(const struct member *member, const void *block)
{
	struct device_header header;
	int rc = device_header_decode(&header, block);

	if (rc == -ENOTSUP || (!rc && !is_own(member, &header)))
		return -EEXIST;
	return rc;
}

static int judge_label(
	struct pool *pool, const struct newest *newest, struct label *label, const void *body)
{
	int rc = label_decode(label, body);

	if (rc)
		return -EBADMSG;
	return memcmp(label->pool, pool->label.pool, sizeof(label->pool)) ||
			       label->epoch != newest->epoch || label->sequence != newest->sequence
		       ? -EBADMSG
		       : 0;
}

static int judge_copy(
	struct pool *pool, const struct copies *copies, unsigned i, const struct newest *newest)
{
	if (copies->ios[i].result)
		return copies->ios[i].result;
	if (copies->head < HEAD_LABEL_A)
		return judge_header(copies->members[i], copy_bytes(copies, i));
	return judge_label(pool, newest, copies->label, copy_bytes(copies, i));
}

static void copy_bad(
	struct pool *pool, struct heads *heads, const struct copies *copies, unsigned i, int why)
{
	struct member *member = copies->members[i];
	unsigned blocks = (unsigned)(head_length(copies->head) / BLOCK_SIZE);

	heads->bad[member - pool->devices] |= (uint8_t)(1u << copies->head);
	heads->bad_blocks += blocks;
	if (why == -EEXIST)
		heads->foreign[member - pool->devices] |= (uint8_t)(1u << copies->head);
	atomic_fetch_add(why == -EIO ? &member->read_errors : &member->checksum_errors, blocks);
	log_warning("%s: its %s %s", member->path, head_names[copies->head],
		why == -EIO ? "cannot be read"
		: why == -EEXIST
			? "is another device's and left alone; zeros there let it be mended"
			: "is not what it should be");
}

static void read_copies(struct pool *pool, struct copies *copies, uint64_t epoch)
{
	copies->count = 0;
	for (unsigned i = 0; i < pool->device_count; i++) {
		struct member *member = &pool->devices[i];
		unsigned n = copies->count;

		if (!member_usable(member) || atomic_load(&member->failing))
			continue;
		copies->members[n] = member;
		io_prepare(&copies->ios[n], IO_READ, member->device,
			head_offset(member, copies->head, epoch), copy_bytes(copies, n),
			head_length(copies->head));
		copies->count++;
	}
	members_run(pool, copies->ios, copies->count);
}

/* Devices that have gone are found by those who write to them. */
static int look_at_copies(
	struct pool *pool, struct heads *heads, struct copies *copies, const struct newest *newest)
{
	read_copies(pool, copies, newest->epoch);
	for (unsigned i = 0; i < copies->count; i++) {
		int why = judge_copy(pool, copies, i, newest);

		if (why == -ESHUTDOWN)
			return why;
		if (why && why != -EIO && why != -EBADMSG && why != -EEXIST)
			continue;
		heads->blocks += head_length(copies->head) / BLOCK_SIZE;
		if (why)
			copy_bad(pool, heads, copies, i, why);
	}
	return 0;
}

static int look(struct pool *pool, struct heads *heads, struct copies *copies)
{
	struct newest newest;
	int rc = 0;

	pthread_mutex_lock(&pool->label_turn);
	find_newest(pool, &newest);
	for (unsigned head = 0; !rc && head < HEADS; head++) {
		copies->head = (enum head)head;
		if (head < HEAD_LABEL_A || newest.settled)
			rc = look_at_copies(pool, heads, copies, &newest);
	}
	pthread_mutex_unlock(&pool->label_turn);
	return rc;
}

int heads_look(struct pool *pool, struct heads *heads)
{
	size_t size = (size_t)pool->device_count * LABEL_BODY;
	struct copies *copies = calloc(1, sizeof(*copies));
	int rc = -ENOMEM;

	memset(heads, 0, sizeof(*heads));
	if (!copies)
		return rc;
	copies->memory = buffer_alloc(pool->engine, size);
	copies->label = malloc(sizeof(*copies->label));
	if (copies->memory && copies->label)
		rc = look(pool, heads, copies);
	buffer_free(pool->engine, copies->memory, size);
	free(copies->label);
	free(copies);
	return rc;
}

/* --- mending ------------------------------------------------------------------------------ */

/* The bytes of the other copy, or, when that has rotted since, of what was read at the opening:
 * this version knows them all unless there is a compatible feature. */
static int right_header(struct pool *pool, const struct member *member, enum head bad, void *block)
{
	enum head other = bad == HEAD_FIRST ? HEAD_LAST : HEAD_FIRST;
	struct io io;
	int rc;

	io_prepare(&io, IO_READ, member->device, head_offset(member, other, 0), block, BLOCK_SIZE);
	rc = io_run(pool->engine, &io);
	if (rc == -ESHUTDOWN)
		return rc;
	if (!rc && !judge_header(member, block))
		return 0;
	return member->header.compatible ? -EIO : device_header_encode(&member->header, block);
}

static int mend_header(struct pool *pool, struct member *member, enum head head, void *block)
{
	struct io io;
	int rc = right_header(pool, member, head, block);

	if (rc)
		return rc;
	io_prepare(&io, IO_WRITE, member->device, head_offset(member, head, 0), block, BLOCK_SIZE);
	io.flags = IO_FUA;
	rc = io_run(pool->engine, &io);
	if (rc)
		member_failed(pool, member, rc);
	return rc;
}

static void count_mended(struct heads *heads, struct member *member, enum head head)
{
	size_t blocks = head_length(head) / BLOCK_SIZE;

	atomic_fetch_add(&member->repaired, blocks);
	heads->mended_blocks += blocks;
	log_notice("%s: its %s is right again", member->path, head_names[head]);
}

static int mend_headers(struct pool *pool, struct heads *heads, unsigned i, void *block)
{
	unsigned bad = heads->bad[i] & ~heads->foreign[i];
	struct member *member = &pool->devices[i];
	int rc = 0;

	for (unsigned head = HEAD_FIRST; rc != -ESHUTDOWN && head <= HEAD_LAST; head++) {
		if (!(bad >> head & 1) || atomic_load(&member->failing))
			continue;
		rc = mend_header(pool, member, (enum head)head, block);
		if (!rc)
			count_mended(heads, member, (enum head)head);
	}
	return rc == -ESHUTDOWN ? rc : 0;
}

static void count_labels(struct pool *pool, struct heads *heads, unsigned i)
{
	struct member *member = &pool->devices[i];

	for (unsigned head = HEAD_LABEL_A; head < HEADS; head++)
		if (heads->bad[i] >> head & 1 && !atomic_load(&member->failing))
			count_mended(heads, member, (enum head)head);
}

static bool any_label_bad(const struct pool *pool, const struct heads *heads)
{
	for (unsigned i = 0; i < pool->device_count; i++)
		if (heads->bad[i] & LABEL_HEADS)
			return true;
	return false;
}

int heads_mend(struct pool *pool, struct heads *heads, bool labels_written)
{
	void *block;
	int rc = 0;

	if (!heads->bad_blocks)
		return 0;
	block = buffer_alloc(pool->engine, BLOCK_SIZE);
	if (!block)
		return -ENOMEM;
	for (unsigned i = 0; !rc && i < pool->device_count; i++)
		rc = mend_headers(pool, heads, i, block);
	buffer_free(pool->engine, block, BLOCK_SIZE);
	if (!rc && !labels_written && any_label_bad(pool, heads))
		rc = label_write(pool);
	for (unsigned i = 0; !rc && i < pool->device_count; i++)
		count_labels(pool, heads, i);
	return rc;
}
