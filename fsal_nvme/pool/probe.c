/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What devices say of their pools, which are not opened. */
#include <stdio.h>

#include "pool/label.h"

static int keep_newest(void *data, const struct label *label)
{
	struct label *best = data;

	if (!best->device_count || label_is_newer(label, best))
		*best = *label;
	return 0;
}

static const char *domain_of(const struct label *label, const uint8_t uuid[16])
{
	for (unsigned i = 0; i < label->device_count; i++)
		if (!memcmp(label->devices[i].uuid, uuid, 16))
			return label->devices[i].domain;
	return "";
}

/* Either may be all zeros. */
static void fill_summary(
	struct pool_summary *s, const struct label *label, const struct device_header *header)
{
	memset(s, 0, sizeof(*s));
	memcpy(s->name, label->name, sizeof(s->name));
	memcpy(s->uuid, label->device_count ? label->pool : header->pool, 16);
	s->epoch = label->epoch;
	s->version[0] = label_content(label).epoch;
	s->version[1] = label_content(label).sequence;
	s->version[2] = label->epoch;
	s->version[3] = label->sequence;
	s->exported = label->state == LABEL_EXPORTED;
	s->open = label->state == LABEL_OPEN;
	memcpy(s->owner, label->owner, sizeof(s->owner));
	s->owner_pid = label->owner_pid;
	memcpy(s->owner_boot, label->owner_boot, 16);
	s->data = header->data;
	s->parity = header->parity;
	s->device_count = label->device_count;
	for (unsigned i = 0; i < label->device_count; i++)
		memcpy(s->members[i], label->devices[i].uuid, 16);
	s->active = label_active(label);
	label_domains(label, s->domains);
	s->devices_found = header->data > 0;
	memcpy(s->device, header->uuid, 16);
	snprintf(s->domain, sizeof(s->domain), "%.31s", domain_of(label, header->uuid));
	if (header->journal_offset >= FENCING_OFFSET + FENCING_SIZE) {
		s->fencing_offset = FENCING_OFFSET;
		s->fencing_size = FENCING_SIZE;
	}
}

static int judge(const struct device_look *look, const struct label *label)
{
	if (look->result)
		return label->device_count ? -EBADMSG : look->result;
	if (look->labels_result)
		return look->labels_result;
	return label->device_count ? 0 : -EBADMSG;
}

static void probe(struct engine *engine, struct device_look *looks, struct label *labels,
	unsigned count, struct pool_summary *summaries, int *results)
{
	devices_look(engine, looks, count);
	for (unsigned i = 0; i < count; i++) {
		results[i] = judge(&looks[i], &labels[i]);
		if (!results[i] || results[i] == -EBADMSG)
			fill_summary(&summaries[i], &labels[i], &looks[i].header);
	}
}

void pool_probe_each(struct engine *engine, const char *const *paths, unsigned count,
	struct pool_summary *summaries, int *results)
{
	struct device_look *looks = calloc(count + 1, sizeof(*looks));
	struct label *labels = calloc(count + 1, sizeof(*labels));

	for (unsigned i = 0; i < count; i++) {
		results[i] = -ENOMEM;
		if (looks && labels)
			looks[i] = (struct device_look){.path = paths[i],
				.each = keep_newest,
				.data = &labels[i],
				.headless = true};
	}
	if (looks && labels)
		probe(engine, looks, labels, count, summaries, results);
	free(looks);
	free(labels);
}

int pool_probe(struct engine *engine, const char *path, struct pool_summary *summary)
{
	int result;

	pool_probe_each(engine, &path, 1, summary, &result);
	return result;
}
