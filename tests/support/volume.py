"""A small volume for a service, which a test can fill up: a tmpfs that only its namespace sees."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


class VolumeError(Exception):
    """This user or this kernel cannot make the volume. The text names the refused call."""


class Volume:
    def __init__(self, path: Path, holder: int) -> None:
        self.inside = path
        """The path of the volume as the service sees it."""
        self.outside = Path(f"/proc/{holder}/root") / str(path).lstrip("/")
        """The path of the volume as the test sees it."""
        user = [] if os.getuid() == 0 else ["--user", "--preserve-credentials"]
        self.enter = ["nsenter", f"--target={holder}", *user, "--mount", f"--wdns={ROOT}"]
        """The prefix of a command that is to see the volume."""
        self._filler = self.outside / "filler"

    def free(self) -> int:
        found = os.statvfs(self.outside)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Use up the free space except `leave` bytes."""
        with open(self._filler, "ab") as file:
            while (size := self.free() - leave) > 0:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:  # the service took some of the space meanwhile
                    if error.errno != errno.ENOSPC:
                        raise

    def relieve(self) -> None:
        """Free the space that `fill` took."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def volume(path: Path, size_bytes: int) -> Iterator[Volume]:
    """Mount a volume at `path`, which is made, and remove it with its content at the end. Raises `VolumeError`."""
    path.mkdir(exist_ok=True)
    script = 'mount -t tmpfs -o "size=$2,mode=0755" tmpfs "$1" && echo made && exec sleep infinity'
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    holder = subprocess.Popen(
        ["unshare", *user, "--mount", "sh", "-c", script, "sh", str(path), str(size_bytes)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert holder.stdout is not None
    try:
        said = holder.stdout.readline()
        if said != "made\n":
            raise VolumeError(said + holder.stdout.read())
        yield Volume(path, holder.pid)
    finally:
        holder.kill()
        holder.wait(10)
        holder.stdout.close()
