# SPDX-License-Identifier: LGPL-3.0-or-later
"""A volume of a site, or a directory in one, as one client sees it."""


class Mounted:
    """VOLUME, mounted at `path` on the client by mount()."""

    def __init__(self, client, site, volume):
        self.client = client
        self.site = site
        self.volume = volume
        self.path = f'/mnt/{volume}'
        self._mounts = []
        self._options = None

    def mount(self, options='vers=4.1,proto=tcp'):
        self._options = options
        self._mount(self.path, options)
        return self

    def mount_again(self, suffix='again', options='vers=4.1,proto=tcp'):
        """Mount it a second time, sharing nothing with the first: no pages, no attributes, no
        locks that the client could settle by itself. Returns the path."""
        path = f'{self.path}.{suffix}'
        self._mount(path, f'{options},nosharecache')
        return path

    def _mount(self, path, options):
        self.client.mount(self.site.pool.export(self.volume), path, options,
                          port=self.site.server.port)
        self._mounts.append(path)

    def remount(self):
        """Unmount and mount: what is read next comes from the server."""
        self.client.umount(self.path)
        self._mounts.remove(self.path)
        self.mount(self._options)

    def call(self, function, *args, **options):
        """Client.call(function, path of the mount, *args)."""
        return self.client.call(function, self.path, *args, **options)

    def spawn_call(self, function, *args, **options):
        return self.client.spawn_call(function, self.path, *args, **options)

    def close(self):
        for path in self._mounts:
            self.client.umount(path, force=not self.site.server.alive())
        self._mounts = []


class Place:
    """A new directory NAME of a mounted volume, which stays mounted: what a test needs that shares
    its volume with others."""

    def __init__(self, mounted, name):
        self.mounted = mounted
        self.client = mounted.client
        self.name = ''.join(c if c.isalnum() else '-' for c in name)
        self.path = f'{mounted.path}/{self.name}'
        self.client.run(['mkdir', '-m', '777', self.path])

    def mount_again(self, suffix, **options):
        """As Mounted's, of the volume that this is in."""
        return f'{self.mounted.mount_again(suffix, **options)}/{self.name}'

    def remount(self):
        self.mounted.remount()

    def call(self, function, *args, **options):
        """Client.call(function, path of the directory, *args)."""
        return self.client.call(function, self.path, *args, **options)

    def spawn_call(self, function, *args, **options):
        return self.client.spawn_call(function, self.path, *args, **options)
