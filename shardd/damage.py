"""A segment file that is not what was written: bad news for who reads it, and for nobody else."""

from __future__ import annotations

from typing import Any

import structlog

from proto.errors import ErrorCode, TopicsError

_log: Any = structlog.get_logger()


class SegmentError(Exception):
    """A segment's bytes are not what was written there. Says where."""


def damaged(error: SegmentError) -> TopicsError:
    """What a client learns of it, and the log."""
    _log.error("damaged_file", reason=str(error), remedy="restore the shard from a backup; `topics verify` finds all")
    return TopicsError(ErrorCode.INTERNAL, f"damaged file: {error}")
