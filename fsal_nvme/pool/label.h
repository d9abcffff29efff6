/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What stands at fixed places on each device (format.h): headers, labels with their two areas, and
 * the owners that labels list; how they are read from many devices at once, written and mended.
 */
#ifndef MILLRACE_POOL_LABEL_H
#define MILLRACE_POOL_LABEL_H

#include "pool/internal.h"

/* --- labels (label.c)
 * ------------------------------------------------------------------------------ */

/* Writes pool->label (with the next sequence) to all usable members, durable: area A, then area B.
 * -EIO when fewer than parity + 1 took it. A member that fails is marked failing. Waits, also for
 * others who write labels. */
int label_write(struct pool *pool);

struct opening;
/* The same for a claim: when it stands in area A of all, and before it is written to area B, it is
 * looked whether another one stands there that was not there before; not 0 ends it. */
int label_write_claim(
	struct pool *pool, int (*look)(struct opening *opening), struct opening *opening);

struct label_version label_version(const struct label *label);
/* The one whose content it has: its own, or of a claim that of the label that it repeats. */
struct label_version label_content(const struct label *label);
/* Less than 0, 0, more than 0. */
int label_version_order(struct label_version a, struct label_version b);
/* Which of two the pool goes by: the one with the later content; of two that have the same, the
 * later claim. */
bool label_is_newer(const struct label *a, const struct label *b);
/* Devices that it has not dropped, a bit each. */
uint64_t label_active(const struct label *label);
/* Of each device: the first one that is in the same domain. */
void label_domains(const struct label *label, uint8_t domains[POOL_DEVICES_MAX]);

/* Where on a device area A (0) or B begins. */
uint64_t label_area_offset(const struct device_header *header, unsigned area);
/* Every label in the LABEL_AREA bytes of an area that decodes, into `label` and through `each`
 * (return non-zero to stop); `header` NULL: of any pool. */
int label_each(const uint8_t *area, const struct device_header *header, struct label *label,
	int (*each)(void *data, const struct label *label), void *data);
/* The labels of one device that are asked for, those of others at the same time. */
struct labels_asked {
	const struct device_header *header;
	struct asked *areas[2];
	unsigned count;
};
/* `header`, which is kept, NULL: of area A of a device without a header, whatever pool they are of.
 * Area B is not sought then: what stands near the end of a drive may be its last partition's. */
void labels_ask(struct engine *engine, struct device *device, const struct device_header *header,
	struct labels_asked *asked);
/* Waits for them until `end`, of engine_clock(): every one that decodes, through `each` (return
 * non-zero to stop). -ETIMEDOUT: the device hangs. Ends what was asked. */
int labels_take(struct labels_asked *asked, uint64_t end,
	int (*each)(void *data, const struct label *label), void *data);
/* Both, for DEVICE_ANSWER_NS at most. */
int label_read_all(struct engine *engine, struct device *device, const struct device_header *header,
	int (*each)(void *data, const struct label *label), void *data);
/* The header at the device's start, or its copy in the device's last block. -ENOENT: none. */
int device_header_read(struct engine *engine, struct device *device, struct device_header *header);
/* The same in parts: asks for one of the two; takes it, until `end`, and ends what was asked.
 * -EAGAIN: the last one has to be asked for. */
struct asked *header_ask(struct engine *engine, struct device *device, bool last);
int header_take(struct device *device, bool last, struct asked *asked, uint64_t end,
	struct device_header *header);
/* The greatest beat that any usable member shows for an epoch; 0: none. */
uint64_t label_beat_read(struct pool *pool, uint64_t epoch);

/* --- a look at devices (look.c) ------------------------------------------------------------ */

struct device_look {
	const char *path;
	int (*each)(void *data, const struct label *label); /* as labels_take() calls it */
	void *data;
	bool headless; /* labels of a device without a header, too */
	/* What came of it: */
	bool opened;
	int result; /* of opening it, or of its header */
	int labels_result; /* labels_take()'s */
	struct device_header header; /* zeros where a headless one was looked at */
	/* Meanwhile: */
	struct device *device;
	struct asked *asked;
	struct labels_asked labels;
};
/* Opens each of the paths, and closes it. */
void devices_look(struct engine *engine, struct device_look *looks, unsigned count);

/* --- copies of headers and labels (heads.c) ------------------------------------------------ */

/* What a look at them found: bits of enum head, by member. */
struct heads {
	uint8_t bad[POOL_DEVICES_MAX], foreign[POOL_DEVICES_MAX];
	uint64_t blocks, bad_blocks, mended_blocks;
};
/* Looks at both copies on all usable members; counts with its device and logs what is bad. Waits.
 */
int heads_look(struct pool *pool, struct heads *heads);
/* Rewrites what was found bad; `labels_written`: labels have been since. For an owner. A member
 * that takes no write is marked failing. Waits. */
int heads_mend(struct pool *pool, struct heads *heads, bool labels_written);

/* --- earlier owners that may still write (owner.c) ----------------------------------------- */

bool owners_have(const struct label *label, uint64_t epoch);
/* Takes those of a host out of the list; all when `host` is NULL. */
void owners_forget(struct label *label, const char *host);
/* Those of a host that are known to be of another boot than `boot`, all where that is NULL; whether
 * there were any. */
bool owners_forget_boots(struct label *label, const char *host, const uint8_t *boot);
/* Puts in the owner that the label is of. -EBUSY: the list is full. */
int owners_add(struct label *label);
/* Puts in the owner that a claim is of, and those that it lists, of later epochs than the label and
 * not of `host`. -EBUSY as above. */
int owners_join(struct label *label, const struct label *claim, const char *host);
/* "alpha, beta" */
void owners_name(const struct label *label, char *text, size_t size);

#endif
