"""Audit file: the file of TOPICS_AUDIT_LOG, which the supervisor opens and the gateway writes to.

A gateway opens no files. So when the file is opened again, after a program has renamed it, its descriptor goes to each
running gateway through a pair of sockets (`proto.ipc.control.AuditLog`); the next gateway inherits it.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from supervisor.errors import SupervisorError


class AuditFileError(SupervisorError):
    """The file cannot be used. The message says why."""


class AuditFile:
    """The open file. Blocks."""

    def __init__(self, path: Path, gateways: int = 1) -> None:
        """Raises `AuditFileError`."""
        self.path = path
        self.descriptor = _opened(path)
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(gateways)]
        self._ours, self.theirs = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
        """By index of the gateway."""
        for each in (*self._ours, *self.theirs):
            each.setblocking(False)

    def reopen(self) -> None:
        """Open the path again, and leave the descriptor for the gateways. Raises `AuditFileError`; the file from before
        stays then."""
        fresh = _opened(self.path)
        try:
            os.dup2(fresh, self.descriptor, inheritable=False)
            for ours, theirs in zip(self._ours, self.theirs, strict=True):
                discard(theirs)  # of a gateway that ended before it took it
                socket.send_fds(ours, [b"\0"], [fresh])
        except OSError as error:
            raise AuditFileError(f"TOPICS_AUDIT_LOG={self.path}: {error.strerror}") from None
        finally:
            os.close(fresh)

    def close(self) -> None:
        for ours, theirs in zip(self._ours, self.theirs, strict=True):
            discard(theirs)
            ours.close()
            theirs.close()
        os.close(self.descriptor)


def discard(waiting: socket.socket) -> None:
    """Close the descriptors that nothing has taken."""
    with suppress(BlockingIOError):
        while True:
            for descriptor in socket.recv_fds(waiting, 1, 1)[1]:
                os.close(descriptor)


def _opened(path: Path) -> int:
    """A descriptor that appends to a regular file of this user or root, made as 0600. Raises `AuditFileError`."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise AuditFileError(f"TOPICS_AUDIT_LOG={path}: {error.strerror}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.getuid(), 0):
        os.close(descriptor)
        raise AuditFileError(f"TOPICS_AUDIT_LOG={path} is not a regular file of this user")
    return descriptor
