"""Runtime directory: private and temporary; holds the sockets between the processes, and the status file.

This module chooses its path and ensures that no other user has access. Write access would allow messages to a shard.

The status file names a URL, to which commands send a key, and a process, to which they send signals. `status` believes
it only if no other user can have made it:

    directory                                             believed
    of this user or root, writable by its owner only      yes
    of another user, named by the operator, every         yes, by root; that user runs the service
    directory above it root's and writable by root only
    any other, or reached through a link at its end       no

Any user may take a name in the directory for temporary files. A service whose derived name is taken makes a directory
with the same beginning and a random end, and commands look for that.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.errors import SupervisorError
from supervisor.process.safe_folder import Folder

MAX_SOCKET_PATH = 100
"""Largest length of a socket's path, bytes. The kernel accepts 107 bytes, and ZeroMQ needs some of them."""
STATUS = "children.json"
_LONGEST_NAME = "shard-00.999999.sock"
_MAX_STATUS_BYTES = 1 << 20
_OTHERS_WRITE = 0o022
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RuntimeDirError(SupervisorError):
    """A runtime directory that cannot be trusted or used. The message says why and what to do."""


class TakenError(RuntimeDirError):
    """The path belongs to another user."""


def choose(configured: Path | None, environment: Mapping[str, str], data_dir: Path) -> Path:
    """Path of the runtime directory: the configured one, else systemd's, else one derived from user and data
    directory. If another user has taken the derived path: the one that a service made beside it, if there is one."""
    if (given := _named(configured, environment)) is not None:
        return given
    digest = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:12]
    name = f"topics-{os.getuid()}-{digest}"
    path = Path(tempfile.gettempdir()) / name
    path = path if _fits(path.with_name(f"{name}-{8 * 'x'}")) else Path("/tmp") / name
    return next((p for p in sorted(path.parent.glob(f"{name}-*")) if _is_ours(p)), path) if _is_taken(path) else path


def _named(configured: Path | None, environment: Mapping[str, str]) -> Path | None:
    if configured is not None:
        return configured.absolute()
    given = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(given) if given else None


def _is_taken(path: Path) -> bool:
    try:
        return path.lstat().st_uid != os.getuid()
    except OSError:
        return False


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _fits(path: Path) -> bool:
    return len(os.fsencode(path / _LONGEST_NAME)) < MAX_SOCKET_PATH


def status(configured: Path | None, environment: Mapping[str, str], data_dir: Path) -> dict[str, Any] | None:
    """Content of the status file of the service that uses a data directory, if it runs and the file is believed. It
    has a `url`, and `process` finds its process."""
    path = choose(configured, environment, data_dir)
    named = _named(configured, environment) is not None
    try:
        with Folder(path, os.open(path, _FLAGS)) as folder:
            made = os.fstat(folder.descriptor)
            if not _believed(path, made, named=named):
                return None
            with open(folder.file(STATUS), "rb") as file:
                found = json.loads(file.read(_MAX_STATUS_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("url"), str):
        return None
    # A service that was killed leaves its file behind, and another process may have its pid.
    descriptor = process(found | {"user": made.st_uid})
    if descriptor is None:
        return None
    os.close(descriptor)
    return found | {"user": made.st_uid}


def _believed(path: Path, made: os.stat_result, *, named: bool) -> bool:
    if made.st_mode & _OTHERS_WRITE:
        return False
    if made.st_uid in (os.getuid(), 0):
        return True
    above = [parent.stat() for parent in path.resolve().parents]
    rooted = all(each.st_uid == 0 and not each.st_mode & _OTHERS_WRITE for each in above)
    return os.getuid() == 0 and named and rooted


def process(status: Mapping[str, Any]) -> int | None:
    """A pidfd of the service that a status describes; None if it has ended. The caller closes it."""
    pid = status.get("pid")
    if type(pid) is not int or not 0 < pid < 1 << 31:
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    # The descriptor keeps naming the process that is looked at now.
    if identity(pid) == (status.get("started"), status.get("user")):
        return descriptor
    os.close(descriptor)
    return None


def identity(pid: int) -> tuple[int, int] | None:
    """When a process started, ticks since boot, and its effective user. None if it is gone."""
    try:
        started = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        # Not the owner of the folder, who is root for a process that leaves no core dumps.
        lines = Path(f"/proc/{pid}/status").read_bytes().split(b"\n")
        user = next(int(line.split()[2]) for line in lines if line.startswith(b"Uid:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return started, user


@dataclass(frozen=True, slots=True)
class RuntimeDir:
    """Opened runtime directory: mode 0700, owned by this user, locked against a second service, without the sockets
    and the status of an earlier run. It is `ours` unless the operator made it."""

    path: Path
    descriptor: int
    ours: bool

    @classmethod
    def of(cls, configured: Path | None, environment: Mapping[str, str], data_dir: Path) -> RuntimeDir:
        """Open the chosen directory; one beside it if another user has taken the derived path. Raises
        `RuntimeDirError`."""
        path = choose(configured, environment, data_dir)
        try:
            return cls.open(path)
        except TakenError:
            if _named(configured, environment) is not None:
                raise
            return cls.open(Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent)))

    @classmethod
    def open(cls, path: Path) -> RuntimeDir:
        """Create the directory if missing, check, lock and clear it. Raises `RuntimeDirError`."""
        if not _fits(path):
            raise RuntimeDirError(
                f"{path} is too long for sockets inside it: choose a TOPICS_RUNTIME_DIR of at most "
                f"{MAX_SOCKET_PATH - len(_LONGEST_NAME) - 2} bytes"
            )
        try:
            try:
                path.mkdir(mode=0o700)
                made = True
            except FileExistsError:
                made = False
            # O_NOFOLLOW and fstat of the same descriptor ensure that the checked directory is the one used.
            descriptor = os.open(path, _FLAGS)
        except OSError as error:
            if _is_taken(path):
                raise TakenError(_taken(path, path.lstat())) from error
            raise RuntimeDirError(f"runtime directory {path}: {error.strerror}: set TOPICS_RUNTIME_DIR") from error
        try:
            _check(path, os.fstat(descriptor))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeDirError(
                    f"runtime directory {path} is in use by another service: set TOPICS_RUNTIME_DIR"
                ) from None
            opened = cls(path, descriptor, ours=made or path.name.startswith(f"topics-{os.getuid()}-"))
            opened._clear()
        except BaseException:
            os.close(descriptor)
            raise
        return opened

    def endpoint(self, name: str, incarnation: int) -> str:
        """Endpoint of one incarnation of a shard. Removes the sockets of earlier incarnations."""
        for old in self.path.glob(f"{name}.*.sock"):
            old.unlink(missing_ok=True)
        return f"ipc://{self.path}/{name}.{incarnation}.sock"

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace the status file, which describes the running processes."""
        temporary = self.path / (STATUS + ".tmp")
        temporary.write_text(json.dumps(status, indent=1) + "\n")
        os.replace(temporary, self.path / STATUS)

    def _clear(self) -> None:
        for left in (*self.path.glob("shard-*.sock"), self.path / STATUS, self.path / (STATUS + ".tmp")):
            left.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the directory's content, and the directory itself unless the operator made it."""
        self._clear()
        if self.ours:
            with suppress(OSError):  # it contains foreign files
                self.path.rmdir()
        os.close(self.descriptor)


def _check(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.getuid():
        raise TakenError(_taken(path, found))
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise RuntimeDirError(
            f"runtime directory {path} is open to others (mode {stat.S_IMODE(found.st_mode):o}): "
            f"`chmod 700 {path}` (systemd: RuntimeDirectoryMode=0700) or set TOPICS_RUNTIME_DIR"
        )


def _taken(path: Path, found: os.stat_result) -> str:
    return f"runtime directory {path} belongs to user {found.st_uid}: set TOPICS_RUNTIME_DIR"
