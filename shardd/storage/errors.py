"""What goes wrong when a topic's files are read: bad news for who reads them, and for nobody else.

SegmentError   bytes are missing, or not those that were written; or the system cannot read them
Exhausted      the process or the machine has nothing left to read them with: the files may be fine
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import structlog

from proto.model.errors import TopicsError, not_ready

_log: Any = structlog.get_logger()
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class SegmentError(Exception):
    """A segment's bytes are not what was written there. Says where."""


class Exhausted(SegmentError):
    """A file could not be opened for want of descriptors or memory."""


def exhausted(error: OSError) -> bool:
    """Is it the process or the machine that has not got enough, rather than the file?"""
    return error.errno in _EXHAUSTED


def unreadable(path: Path, error: OSError) -> SegmentError:
    """The system's refusal to read a file, as bad news of that file."""
    kind = Exhausted if exhausted(error) else SegmentError
    return kind(f"{path}: {error.strerror or error}")


def damaged(error: SegmentError) -> TopicsError:
    """What a client learns of it. The log has more: see `shardd.recovery.quarantine`."""
    if isinstance(error, Exhausted):
        _log.error(
            "resources_exhausted",
            reason=str(error),
            remedy="raise LimitNOFILE of the service, or its memory; other requests go on",
        )
        return not_ready("a file could not be opened for want of descriptors or memory", reason="exhausted")
    return not_ready(
        "files of this topic cannot be read; other topics are served. The log of the service says which",
        reason="damaged",
    )
