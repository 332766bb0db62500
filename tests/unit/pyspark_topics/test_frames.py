"""The reader's own drawing of a frame."""

from __future__ import annotations

from proto.format import frame as wire
from proto.format.frame import Kind
from pyspark_topics import frames


def test_both_drawings_of_the_header_agree() -> None:
    assert frames.HEADER.format == wire.HEADER.format
    assert (frames.MAGIC, frames.VERSION, frames.DELETED) == (wire.MAGIC, wire.FORMAT_VERSION, wire.DELETED)
    assert set(Kind) == frames.KINDS
