/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What is exported: each share and each sealed dataset, at /POOL/VOLUME, to the clients that its
 * property nfs.clients names. Ganesha is told by EXPORT blocks as text. Nobody is the default; a
 * sealed volume is read-only whatever its rules say.
 */
#include "export/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server_module.h"

#include "cli/control.h"

#define WITHDRAW_SECONDS 30u

/* --- the text ------------------------------------------------------------------------------ */

struct rules {
	struct client_rule rules[CLIENT_RULES_MAX];
	unsigned count;
	const char *squash; /* as ganesha has it */
};

static const char *squash_text(const char *value)
{
	if (!strcmp(value, "none"))
		return "No_Root_Squash";
	return strcmp(value, "all") ? "Root_Squash" : "All_Squash";
}

static int rules_read(uint32_t volume, struct rules *rules, struct error *error)
{
	char clients[PROPERTY_VALUE_MAX + 1], squash[PROPERTY_VALUE_MAX + 1];
	struct txn *view;
	int r = view_begin(pool_env(nvme.pool), &view);

	if (r)
		return r;
	r = property_value(view, volume, "nfs.clients", clients, sizeof(clients));
	if (!r)
		r = property_value(view, volume, "nfs.squash", squash, sizeof(squash));
	txn_abort(view);
	if (r)
		return r;
	rules->squash = squash_text(squash);
	return client_rules_parse(clients, rules->rules, &rules->count, error);
}

static void write_rules(FILE *text, const struct rules *rules, bool sealed)
{
	for (unsigned i = 0; i < rules->count; i++) {
		const struct client_rule *rule = &rules->rules[i];

		fprintf(text,
			"\tCLIENT { Clients = %s; Protocols = 4; Access_Type = %s; Squash = %s; "
			"}\n",
			rule->address, rule->write && !sealed ? "RW" : "RO", rules->squash);
	}
}

/* The file system's id must differ from those of all other pools and volumes a client may know. */
static void write_block(FILE *text, const struct volume_row *row, const struct rules *rules)
{
	char path[POOL_NAME_MAX + POOL_VOLUME_NAME_MAX + 3];
	uint32_t pool;

	memcpy(&pool, pool_uuid(nvme.pool), sizeof(pool));
	(void)snprintf(path, sizeof(path), "/%s/%s", pool_name(nvme.pool), row->name);
	fprintf(text, "EXPORT {\n\tExport_Id = %u; Path = \"%s\"; Pseudo = \"%s\";\n",
		row->export_id, path, path);
	fprintf(text, "\tFilesystem_Id = %u.%u; Protocols = 4; SecType = sys;\n", pool, row->id);
	fprintf(text, "\tAttr_Expiration_Time = -1; Access_Type = None; Squash = %s;\n",
		rules->squash);
	/* Where a file ends is for the volume to say. */
	fprintf(text, "\tMaxOffsetRead = %llu; MaxOffsetWrite = %llu;\n", ULLONG_MAX, ULLONG_MAX);
	write_rules(text, rules, row->sealed);
	fprintf(text, "\tFSAL { Name = NVME; }\n}\n");
}

/* To be freed. */
static int export_text(const struct volume_row *row, char **text, struct error *error)
{
	struct rules rules = {.count = 0};
	size_t length;
	FILE *file;
	int r = rules_read(row->id, &rules, error);

	*text = NULL;
	if (r)
		return r;
	file = open_memstream(text, &length);
	if (!file)
		return -ENOMEM;
	write_block(file, row, &rules);
	if (fclose(file)) {
		free(*text);
		*text = NULL;
		return -ENOMEM;
	}
	return 0;
}

/* --- the calls ----------------------------------------------------------------------------- */

static bool is_exported(const struct volume_row *row)
{
	bool share = row->kind == VOLUME_SHARE && !pool_is_reader(nvme.pool);

	return !row->destroying && (share || row->sealed);
}

/* Ganesha has it already, and would log that there are errors in what is added again. */
static bool is_known(const struct volume_row *row)
{
	struct gsh_export *export = get_gsh_export(row->export_id);

	if (export)
		put_gsh_export(export);
	return export;
}

int export_refresh(const struct volume_row *row, struct error *error)
{
	char *text;
	int r;

	if (!is_exported(row))
		return 0;
	r = export_text(row, &text, error);
	if (!r && pool_is_reader(nvme.pool))
		follow_note(row);
	if (!r) {
		r = (is_known(row) ? server_export_update : server_export_add)(text);
		free(text);
	}
	if (r)
		error_set(error, r, row->name, "it could not be exported: %s", strerror(-r));
	return r;
}

int export_withdraw(const struct volume_row *row, struct error *error)
{
	int r = server_export_remove(row->export_id);

	if (r && r != -ENOENT)
		return error_set(error, r, row->name, "its export could not be taken away: %s",
			strerror(-r));
	r = served_wait_gone(row->id, WITHDRAW_SECONDS);
	if (r) {
		(void)export_refresh(row, NULL);
		return error_set(error, r, row->name,
			"its clients have not let go of it within %u s, and it is exported again: "
			"try again",
			WITHDRAW_SECONDS);
	}
	return 0;
}

int exports_next(uint32_t id, struct volume_row *row)
{
	struct txn *view;
	int r = view_begin(pool_env(nvme.pool), &view);

	if (!r) {
		r = volume_row_next(view, id, row);
		txn_abort(view);
	}
	return r;
}

int exports_add_all(void)
{
	struct volume_row row = {.id = 0};
	struct error error;
	int r;

	while (!(r = exports_next(row.id + 1, &row))) {
		error_clear(&error);
		if (export_refresh(&row, &error))
			LogCrit(COMPONENT_FSAL, "volume %s: %s", error.object, error.message);
	}
	return r == -ENOENT ? 0 : r;
}

/* As for a client that mounts it; takes the caller's reference. */
static int look_root_up(struct gsh_export *export)
{
	struct fsal_obj_handle *root;
	struct req_op_context context;
	fsal_status_t status;

	init_op_context_simple(&context, export, export->fsal_export);
	status = export->fsal_export->exp_ops.lookup_path(
		export->fsal_export, CTX_FULLPATH(op_ctx), &root, NULL);
	if (!FSAL_IS_ERROR(status))
		root->obj_ops->put_ref(root);
	release_op_context();
	return FSAL_IS_ERROR(status) ? -(status.minor ? status.minor : EIO) : 0;
}

int exports_probe(struct error *error)
{
	struct volume_row row = {.id = 0};
	int r;

	while (!(r = exports_next(row.id + 1, &row))) {
		struct gsh_export *export = get_gsh_export(row.export_id);

		r = export ? look_root_up(export) : 0;
		if (r)
			return error_set(error, r, row.name, "its root cannot be looked up: %s",
				strerror(-r));
	}
	return r == -ENOENT ? 0 : r;
}
