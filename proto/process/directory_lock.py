"""Locks of directories: `flock`, without a file in the directory."""

from __future__ import annotations

import errno
import fcntl

_NO_DIRECTORY_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP}
"""Errors of `flock` on a directory, on file systems that lock only files opened for writing."""


def lock_directory(descriptor: int) -> None:
    """Lock an open directory until all descriptors of this opening are closed. Where directories cannot be locked, it
    does nothing. Raises BlockingIOError if another opening of the directory has it locked, OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_LOCKS:
            raise
