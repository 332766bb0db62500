"""Runtime directory: private and temporary; holds the sockets between the processes, and the status file.

This module chooses its path and ensures that no other user has access. Write access would allow messages to a shard.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_SOCKET_PATH = 100
"""Largest length of a socket's path, bytes. The kernel accepts 107 bytes, and ZeroMQ needs some of them."""
STATUS = "children.json"
_LONGEST_NAME = "shard-00.999999.sock"


class RuntimeDirError(Exception):
    """A runtime directory that cannot be trusted or used. The message says why and what to do."""


def choose(configured: Path | None, environment: Mapping[str, str], data_dir: Path) -> Path:
    """Path of the runtime directory: the configured one, else systemd's, else one derived from user and data
    directory."""
    if configured is not None:
        return configured.absolute()
    if given := environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    digest = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:12]
    name = f"topics-{os.getuid()}-{digest}"
    path = Path(tempfile.gettempdir()) / name
    return path if _fits(path) else Path("/tmp") / name


def _fits(path: Path) -> bool:
    return len(os.fsencode(path / _LONGEST_NAME)) < MAX_SOCKET_PATH


class RuntimeDir:
    """Opened runtime directory: mode 0700, owned by this user, locked against a second service, without the sockets
    and the status of an earlier run."""

    def __init__(self, path: Path, descriptor: int, *, ours: bool) -> None:
        self.path = path
        self._descriptor = descriptor
        self._ours = ours

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
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
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
        if self._ours:
            try:
                self.path.rmdir()
            except OSError:
                pass  # it contains foreign files
        os.close(self._descriptor)


def _check(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.getuid():
        raise RuntimeDirError(f"runtime directory {path} belongs to user {found.st_uid}: set TOPICS_RUNTIME_DIR")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise RuntimeDirError(
            f"runtime directory {path} is open to others (mode {stat.S_IMODE(found.st_mode):o}): "
            f"`chmod 700 {path}` (systemd: RuntimeDirectoryMode=0700) or set TOPICS_RUNTIME_DIR"
        )
