/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Where the server's program is, and the configuration that it is given (docs/ganesha.md). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"

#define MODULE "libfsalnvme.so"
#define LEASE 60
#define CONNECTIONS 16384 /* over TCP; a cluster's monitor needs one as well */
#define RDMA_CONNECTIONS 256
#define RDMA_MEMORY (256LL << 20)

/* --- where ------------------------------------------------------------------------------- */

/* Relative to the directory of the command; the first that is there is taken. */
static const char *const programs[] = {
	"../ganesha/prefix/bin/ganesha.nfsd", /* build tree */
	"../lib/millrace/ganesha.nfsd", /* installed */
#ifdef MILLRACE_GANESHA_DIR
	MILLRACE_GANESHA_DIR "/prefix/bin/ganesha.nfsd", /* a build tree of its own */
#endif
};
static const char *const modules[] = {
	"../lib/ganesha/" MODULE, /* built */
	"../fsal_nvme/export/" MODULE,
	"../lib/millrace/" MODULE,
};

static int find_file(const char *const *names, unsigned count, const char *here, char *path)
{
	char joined[4096], *real;

	for (unsigned i = 0; i < count; i++) {
		snprintf(joined, sizeof(joined), "%.3000s%s%s", names[i][0] == '/' ? "" : here,
			names[i][0] == '/' ? "" : "/", names[i]);
		real = realpath(joined, NULL);
		if (!real)
			continue;
		snprintf(path, 4096, "%.4000s", real);
		free(real);
		return 0;
	}
	return -ENOENT;
}

int server_locate(struct server_place *place, struct error *error)
{
	char here[4096];
	ssize_t length = readlink("/proc/self/exe", here, sizeof(here) - 1);

	here[length > 0 ? length : 0] = 0;
	if (strrchr(here, '/'))
		*strrchr(here, '/') = 0;
	if (find_file(programs, sizeof(programs) / sizeof(programs[0]), here, place->program))
		return error_set(error, -ENOENT, "ganesha.nfsd",
			"the server is neither built nor installed beside %.200s; scripts/build "
			"builds it",
			here);
	if (find_file(modules, sizeof(modules) / sizeof(modules[0]), here, place->modules))
		return error_set(error, -ENOENT, MODULE,
			"the server's module is neither built nor installed beside %.200s; "
			"scripts/build builds it",
			here);
	*strrchr(place->modules, '/') = 0;
	return 0;
}

/* --- what -------------------------------------------------------------------------------- */

static int check_text(const char *what, const char *text, struct error *error)
{
	for (const char *at = text; *at; at++)
		if (*at == '"' || *at == '\\' || *at == '$' || (unsigned char)*at < 0x20)
			return error_set(error, -EINVAL, text,
				"the server cannot be given a %s with '%c' in it", what,
				(unsigned char)*at < 0x20 ? '?' : *at);
	return 0;
}

int server_path_check(const char *path, struct error *error)
{
	int rc = check_text("path", path, error);

	if (!rc && strstr(path, ":/"))
		rc = error_set(error, -EINVAL, path,
			"the server cannot be given a path with \":/\" in it: move or rename the "
			"device");
	return rc;
}

/* "/PATH:/PATH", cut at colons that a slash follows. Links are resolved: names under /dev/disk may
 * be gone when the device comes back. */
static int join_devices(const struct device_set *set, char **joined, struct error *error)
{
	FILE *text;
	size_t size;
	int rc = 0;

	*joined = NULL;
	text = open_memstream(joined, &size);
	if (!text)
		return -ENOMEM;
	for (unsigned i = 0; !rc && i < set->count; i++) {
		char *real = realpath(set->paths[i], NULL);
		const char *path = real ? real : set->paths[i];

		rc = server_path_check(path, error);
		fprintf(text, "%s%s", i ? ":" : "", path);
		free(real);
	}
	fclose(text);
	return rc;
}

static long long number(const struct command *c, const char *name, long long otherwise)
{
	const json_t *given = json_object_get(c->args, name);

	return given ? (long long)json_integer_value(given) : otherwise;
}

static void print_core(FILE *file, const struct command *c, const struct server_place *place)
{
	const char *listen = json_string_value(json_object_get(c->args, "listen"));

	fprintf(file, "NFS_CORE_PARAM {\n\tServer_FSAL = NVME;\n\tPlugins_Dir = \"%s\";\n",
		place->modules);
	fprintf(file, "\tNFS_Protocols = 4, nfsrdma;\n\tNFS_Port = %lld;\n",
		number(c, "port", 2049));
	fprintf(file, "\tNFS_RDMA_Port = 20049;\n\tNFS_RDMA_Protocol_Versions = 4.1, 4.2;\n");
	fprintf(file, "\tRPC_Max_Connections = %d;\n", CONNECTIONS);
	fprintf(file, "\tRPC_Max_RDMA_Connections = %lld;\n\tRPC_RDMA_Memory = %lld;\n",
		number(c, "rdma-connections", RDMA_CONNECTIONS),
		number(c, "rdma-memory", RDMA_MEMORY) >> 20);
	if (listen)
		fprintf(file, "\tBind_Addr = %s;\n", listen);
	fprintf(file, "\tEnable_UDP = false;\n\tallow_set_io_flusher_fail = true;\n"
		      "\tRPC_Ioq_ThrdMax = 16;\n\tMaxRPCSendBufferSize = 2097152;\n"
		      "\tMaxRPCRecvBufferSize = 2097152;\n}\n");
}

static void print_nfs4(FILE *file, const struct command *c, const struct pool_summary *summary)
{
	long long lease = number(c, "lease", LEASE);
	json_t *uuid = json_uuid(summary->uuid);
	char name[300];

	fprintf(file,
		"NFSv4 {\n\tMinor_Versions = 1, 2;\n\tLease_Lifetime = %lld;\n"
		"\tGrace_Period = %lld;\n\tOnly_Numeric_Owners = true;\n"
		"\tDelegations = false;\n\tGraceless = %s;\n",
		lease, lease + lease / 2, c->reader ? "true" : "false");
	/* A client that took a reader and the owner for one server would send either the other's
	 * requests. */
	snprintf(name, sizeof(name), "%s%s%.200s", json_string_value(uuid),
		c->reader ? "-reader-" : "", c->reader ? command_host(c) : "");
	fprintf(file, "\tServer_Owner = \"%s\";\n\tServer_Scope = \"%s\";\n}\n", name, name);
	json_decref(uuid);
}

static void print_rest(FILE *file)
{
	fprintf(file, "NFS_KRB5 { Active_krb5 = false; }\n"
		      "DIRECTORY_SERVICES { Idmapping_Active = false; }\n"
		      "MDCACHE { Entries_HWMark = 100000; }\n"
		      "EXPORT_DEFAULTS { Protocols = 4; SecType = sys; Access_Type = None; "
		      "Anonymous_Uid = 65534; Anonymous_Gid = 65534; Attr_Expiration_Time = -1; }\n"
		      "LOG { Default_Log_Level = EVENT; Format { date_format = syslog_usec; "
		      "time_format = syslog_usec; file_name = false; line_num = false; } }\n");
}

static void print_module(FILE *file, const struct command *c, const char *pool, const char *devices)
{
	fprintf(file,
		"NVME {\n\tpool = \"%s\";\n\tdevices = \"%s\";\n"
		"\trun_dir = \"%s\";\n\thost = \"%s\";\n\tscratch_dir = \"%s\";\n"
		"\treader = %s;\n",
		pool, devices, command_run_dir(c), command_host(c), command_scratch_dir(c),
		c->reader ? "true" : "false");
	fprintf(file, "\tlisten_wait = %lld;\n", number(c, "listen-wait", 0));
	if (json_object_get(c->args, "fenced"))
		fprintf(file, "\tforce = true;\n\tfenced = true;\n");
	fprintf(file, "}\n");
}

static int write_config(struct command *c, const struct found_pool *found,
	const struct server_place *place, const char *path, const char *devices)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
	int rc = 0;

	if (!file)
		return error_set(
			&c->error, -errno, path, "it cannot be written: %s", strerror(errno));
	fprintf(file, "# Written by `millrace serve %s%s` each time it starts.\n",
		found->summary.name, c->reader ? " --reader" : "");
	print_core(file, c, place);
	print_nfs4(file, c, &found->summary);
	print_rest(file);
	print_module(file, c, found->summary.name, devices);
	if (ferror(file))
		rc = -EIO;
	if (fclose(file))
		rc = -EIO;
	return rc ? error_set(&c->error, rc, path, "it cannot be written") : 0;
}

static int make_directories(struct command *c, const char *pool)
{
	char dir[4096];
	int rc;

	snprintf(dir, sizeof(dir), "%.3900s/%s", command_run_dir(c), pool);
	rc = directory_make(dir, &c->error);
	if (!rc && chmod(dir, 0700))
		rc = error_set(&c->error, -errno, dir, "%s", strerror(errno));
	return rc;
}

int server_configure(struct command *c, const struct found_pool *found,
	const struct server_place *place, char *path, size_t size)
{
	char *devices;
	int rc = check_text("directory", command_run_dir(c), &c->error);

	if (!rc)
		rc = check_text("name of a host", command_host(c), &c->error);
	if (!rc)
		rc = make_directories(c, found->summary.name);
	if (rc)
		return rc;
	if ((size_t)snprintf(path, size, "%s/%s/ganesha.conf", command_run_dir(c),
		    found->summary.name) >= size)
		return error_set(
			&c->error, -ENAMETOOLONG, command_run_dir(c), "its name is too long");
	rc = join_devices(&found->set, &devices, &c->error);
	if (!rc)
		rc = write_config(c, found, place, path, devices);
	free(devices);
	return rc;
}
