"""A segment file that is not what was written: bad news for who reads it, and for nobody else."""

from __future__ import annotations

from proto.errors import ErrorCode, TopicsError


class SegmentError(Exception):
    """A segment's bytes are not what was written there. Says where."""


def damaged(error: SegmentError) -> TopicsError:
    """What a client learns of it."""
    return TopicsError(ErrorCode.INTERNAL, f"damaged file: {error}")
