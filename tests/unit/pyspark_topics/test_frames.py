"""The reader's own drawing of a frame."""

from __future__ import annotations

import pytest

from proto.format import frame as wire
from proto.format.columns import Columns, plain
from proto.format.frame import Kind
from pyspark_topics import frames
from pyspark_topics.errors import UnknownFormat
from pyspark_topics.xxh3 import digest


def test_both_drawings_of_the_header_agree() -> None:
    assert frames.HEADER.format == wire.HEADER.format
    assert (frames.MAGIC, frames.VERSION, frames.DELETED) == (wire.MAGIC, wire.FORMAT_VERSION, wire.DELETED)
    assert set(Kind) == frames.KINDS
    assert frames.FLAGS == wire.FLAGS


def test_a_whole_frame_with_flags_of_a_later_server_asks_for_an_update_and_a_damaged_one_is_damaged() -> None:
    frame = wire.encode_batch(Columns(1, 5, plain([b"1"])), 1, 1)
    raw = bytearray(frame.head + frame.tail)
    raw[6] |= 8
    view = memoryview(raw)
    with pytest.raises(frames.FrameError, match="checksum"):
        frames.verify(view, frames.Head(view, 0))
    wire.CHECKSUM.pack_into(raw, len(frame.head), digest(raw[: len(frame.head)]))
    with pytest.raises(UnknownFormat, match=r"frame flags 0b1000 .*; a newer server wrote it, update pyspark_topics"):
        frames.verify(view, frames.Head(view, 0))
