"""Errors of reading a topic's files. Only requests about that topic fail; other topics are served.

SegmentError   bytes are missing, or not those that were written; or the system cannot read them
Exhausted      the process or the machine lacks descriptors or memory to read them; the files may be intact
"""

from __future__ import annotations

import errno
from pathlib import Path

import structlog
from structlog.typing import FilteringBoundLogger

from proto.model.errors import TopicsError, not_ready
from shardd.errors import ShardError

_log: FilteringBoundLogger = structlog.get_logger()
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class SegmentError(ShardError):
    """A segment's bytes are missing or not those that were written. The message names the path and, for a frame, the
    offset."""


class Exhausted(SegmentError):
    """A file could not be opened because descriptors or memory ran out."""


def exhausted(error: OSError) -> bool:
    """True if the process or the machine ran out of descriptors or memory, which says nothing about the file."""
    return error.errno in _EXHAUSTED


def unreadable(path: Path, error: OSError) -> SegmentError:
    """The `SegmentError` for a file that the system could not read; `Exhausted` if resources ran out."""
    kind = Exhausted if exhausted(error) else SegmentError
    return kind(f"{path}: {error.strerror or error}")


def damaged(error: SegmentError) -> TopicsError:
    """The `503` answer to a client. Logs `resources_exhausted` for `Exhausted`; `shardd.recovery.quarantine` logs
    damage."""
    if isinstance(error, Exhausted):
        _log.error(
            "resources_exhausted",
            reason=str(error),
            remedy="raise LimitNOFILE of the service, or its memory; other requests go on",
        )
        return not_ready("a file could not be opened: the service is out of descriptors or memory", reason="exhausted")
    return not_ready(
        "files of this topic cannot be read; other topics are served. The log of the service says which",
        reason="damaged",
    )
