/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Opening, closing and asking after block devices and plain files. */
#include "device/uring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int open_error(int code, const char *path, struct error *error)
{
	switch (code) {
	case -ENOENT:
		return error_set(error, code, path, "there is no such device or file");
	case -EACCES:
	case -EPERM:
		return error_set(error, code, path,
			"this user may not open it, or it cannot be written: run as root, and see "
			"its permissions");
	case -EROFS:
		return error_set(error, code, path,
			"it can only be read: see 'blockdev --getro', or the mount of its file "
			"system");
	case -EBUSY:
		return error_set(error, code, path,
			"it is in use (mounted, swap, part of another array, or open in another "
			"process): see lsblk, and release it first");
	case -ENXIO:
	case -ENODEV:
	case -ENOMEDIUM:
		return error_set(error, code, path, "the device is gone or has no medium");
	default:
		return error_set(error, code, path, "it cannot be opened: %s", strerror(-code));
	}
}

static int check_kind(const char *path, mode_t mode, struct error *error)
{
	if (S_ISBLK(mode) || S_ISREG(mode))
		return 0;
	if (S_ISDIR(mode))
		return error_set(error, -EISDIR, path,
			"it is a directory: name a block device or a plain file");
	return error_set(error, -ENOTBLK, path, "it is neither a block device nor a plain file");
}

/*
 * Exclusive use is O_EXCL of a block device, a lock on a plain file. Requests hold the open file
 * that they are for until the kernel has done them, and with it this, though the process is gone:
 * who opens the device next is sure that nothing of an earlier one is on its way there. (With files
 * that are registered with the ring, it would hold all of them until its last request is done.)
 */
static int be_alone(int fd, const struct stat *stat_, unsigned flags)
{
	if (!(flags & DEVICE_EXCLUSIVE) || !S_ISREG(stat_->st_mode) ||
		!flock(fd, LOCK_EX | LOCK_NB))
		return 0;
	return errno == EWOULDBLOCK ? -EBUSY : -errno;
}

/*
 * The kind is asked first: opening a tape or a pipe would act on it. A file system without direct
 * I/O (tmpfs) is used with the page cache.
 */
static int open_descriptor(
	const char *path, unsigned flags, struct stat *stat_, struct error *error)
{
	int mode = (flags & DEVICE_READ_ONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC;
	int fd, result;

	if (stat(path, stat_) < 0)
		return open_error(-errno, path, error);
	result = check_kind(path, stat_->st_mode, error);
	if (result)
		return result;
	if (flags & DEVICE_EXCLUSIVE && S_ISBLK(stat_->st_mode))
		mode |= O_EXCL;
	fd = open(path, mode | O_DIRECT);
	if (fd < 0 && errno == EINVAL && S_ISREG(stat_->st_mode))
		fd = open(path, mode);
	if (fd < 0)
		return open_error(-errno, path, error);
	if (fstat(fd, stat_) < 0)
		result = open_error(-errno, path, error);
	else
		result = check_kind(path, stat_->st_mode, error);
	if (!result) {
		result = be_alone(fd, stat_, flags);
		if (!result)
			return fd;
		(void)open_error(result, path, error);
	}
	close(fd);
	return result;
}

static int get_size(int fd, const struct stat *stat_, uint64_t *size)
{
	if (S_ISREG(stat_->st_mode)) {
		*size = (uint64_t)stat_->st_size;
		return 0;
	}
	return ioctl(fd, BLKGETSIZE64, size) < 0 ? -errno : 0;
}

static int check_size(
	int fd, const struct stat *stat_, uint64_t *size, const char *path, struct error *error)
{
	int sector = 0, result = get_size(fd, stat_, size);

	if (result)
		return open_error(result, path, error);
	if (*size < BLOCK_SIZE)
		return error_set(error, -EINVAL, path,
			"it has %llu bytes, less than one block of %u: is it the right one?",
			(unsigned long long)*size, BLOCK_SIZE);
	*size -= *size % BLOCK_SIZE;
	if (S_ISBLK(stat_->st_mode) && ioctl(fd, BLKSSZGET, &sector) == 0 &&
		sector > (int)BLOCK_SIZE)
		return error_set(error, -EINVAL, path,
			"its sectors have %d bytes, more than a block of %u: format it with "
			"smaller "
			"ones (nvme format)",
			sector, BLOCK_SIZE);
	return 0;
}

/* The first line of an attribute of the device's queue; a partition's is its disk's. */
static bool queue_attribute(dev_t device, const char *name, char *line, int length)
{
	static const char *const places[] = {"", "../"};
	char path[128];
	bool found = false;

	for (unsigned i = 0; i < 2 && !found; i++) {
		FILE *file;

		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%squeue/%s", major(device),
			minor(device), places[i], name);
		file = fopen(path, "re");
		if (!file)
			continue;
		found = fgets(line, length, file) != NULL;
		fclose(file);
	}
	return found;
}

static void fill_info(struct uring_device *device, const struct stat *stat_)
{
	struct device_info *info = &device->device.info;
	dev_t number = S_ISBLK(stat_->st_mode) ? stat_->st_rdev : stat_->st_dev;
	char line[64];

	info->plain_file = S_ISREG(stat_->st_mode);
	info->rotational =
		queue_attribute(number, "rotational", line, sizeof(line)) && line[0] == '1';
	info->volatile_cache = info->plain_file ||
			       !queue_attribute(number, "write_cache", line, sizeof(line)) ||
			       strncmp(line, "write through", strlen("write through")) != 0;
}

static struct uring_device *device_new(
	struct uring_engine *engine, const char *path, unsigned flags)
{
	struct uring_device *device = calloc(1, sizeof(*device));

	if (!device)
		return NULL;
	device->device.engine = &engine->engine;
	device->device.flags = flags;
	snprintf(device->device.info.path, sizeof(device->device.info.path), "%s", path);
	device->ring = &engine->rings[atomic_fetch_add(&engine->opened, 1) % engine->ring_count];
	atomic_fetch_add(&engine->open, 1);
	device->fd = -1;
	return device;
}

int uring_open(struct engine *engine, const char *path, unsigned flags, struct device **device,
	struct error *error)
{
	struct uring_device *d = device_new((struct uring_engine *)engine, path, flags);
	struct stat stat_;
	int result;

	if (!d)
		return error_set(error, -ENOMEM, path, "no memory");
	d->fd = result = open_descriptor(path, flags, &stat_, error);
	if (result >= 0)
		result = check_size(d->fd, &stat_, &d->device.info.size, path, error);
	if (result < 0) {
		uring_close(&d->device);
		return result;
	}
	fill_info(d, &stat_);
	d->file_system = stat_.st_dev;
	d->inode = stat_.st_ino;
	*device = &d->device;
	return 0;
}

void uring_close(struct device *device)
{
	struct uring_device *d = (struct uring_device *)device;

	if (d->fd >= 0)
		close(d->fd);
	atomic_fetch_sub(&((struct uring_engine *)device->engine)->open, 1);
	free(d);
}

static bool file_present(const struct uring_device *device)
{
	struct stat stat_;

	return stat(device->device.info.path, &stat_) == 0 && stat_.st_dev == device->file_system &&
	       stat_.st_ino == device->inode && (uint64_t)stat_.st_size >= device->device.info.size;
}

bool uring_present(struct device *device)
{
	const struct uring_device *d = (const struct uring_device *)device;
	uint64_t size = 0;

	if (device->info.plain_file)
		return file_present(d);
	return ioctl(d->fd, BLKGETSIZE64, &size) == 0 && size >= device->info.size;
}
