"""Strays: files of topics that no topic has. They are removed, or set apart if they may have what nothing else has.

The first checkpoint of a process looks for them:

    found                                                            decision
    empty, or without an intact frame                                remove: an attempt that was not finished
    a frame or a topic that is younger than the log                  set apart: the catalog and the log are older ones
    records behind the topic's last one                              set apart, for the same reason
    the catalog does not say whose it is (an older release)          set apart
    the topic's segments lack records, or the catalog lacks topics,
      by their sums                                                  set apart: they may be in it
    a segment with other frames than its index                       set apart: another file was put in its place
    a name that is none of ours, or a file in place of a folder      set apart
    the system cannot read it                                        set apart: it may be intact
    all else                                                         remove: an attempt that was not finished, or a
                                                                     deletion that catalog and log know

A file that a topic had, and no longer needs, may have been replaced while the shard ran. Before it is removed:

    a segment with the mark of its last frame in its place           remove
    a segment that begins with the frames of its chain               remove
    held frames with their check                                     remove
    all else that is whole frames, from its beginning to its end     set apart: it was written elsewhere, or at
                                                                     another time
    all else                                                         remove: it is damaged

An index shares the fate of its segment, from which it can be made. It is written before its segment, and removed after
it, so what an attempt or a removal left has one; if that is missing or damaged, it does not count.
`shardd.storage.lost` reports the files that are set apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from proto.format.frame import FrameError, Header
from shardd.storage.disk import Disk
from shardd.storage.errors import exhausted
from shardd.storage.read_ahead import ReadAhead
from shardd.storage.segment import ENTRY_SIZE, Segment, chained, entries_of, mark_at
from shardd.storage.segment_check import ends_as_written
from shardd.topic.topic import Topic

_OURS = re.compile(r"(seg-\d{20})\.(data|idx)|held-\d{20}\.log")


@dataclass(frozen=True, slots=True)
class Known:
    """Bounds of catalog and log after a start: topic ids below `next_id`, frames up to `last_no`; whether they said
    whose they are, and lack no topic; and the topics that lack records. Log files before frame `begin_no` were not
    read."""

    next_id: int
    last_no: int
    proven: bool = True
    begin_no: int = 1
    lacking: frozenset[int] = frozenset()


def foreign(disk: Disk, path: Path, topics: Mapping[int, Topic], known: Known) -> bool:
    """True if a stray has to be set apart. Blocks. Raises OSError."""
    ours = _OURS.fullmatch(path.name)
    if ours is None or not disk.size(path):
        return ours is None
    ident = int(path.parent.name, 16)
    young = ident >= known.next_id or not known.proven or ident in known.lacking
    if ours[2] == "idx":
        data = path.with_suffix(".data")
        return foreign(disk, data, topics, known) if data.name in disk.list(path.parent) else young
    try:
        frames = [(header, mark_at(frame, header.flags_at)) for header, frame in _frames(disk, path)]
        another = ours[1] is not None and _of_another(disk, path, frames)
    except OSError as error:
        if exhausted(error):
            raise
        return True
    if not frames:
        return False
    if young or another or any(header.frame_no > known.last_no for header, _ in frames):
        return True
    topic, (last, _) = topics.get(ident), frames[-1]
    last_seq = last.first_seq + last.count - 1
    return topic is not None and ours[1] is not None and last_seq > topic.records.head_seq


def _of_another(disk: Disk, path: Path, frames: list[tuple[Header, int]]) -> bool:
    """True if the index of a segment's file has other frames than these, which are given with their marks; False if it
    is missing, or damaged so that it does not tell. Blocks. Raises OSError."""
    try:
        raw = bytes(disk.read(path.with_suffix(".idx")))
    except OSError as error:
        if exhausted(error):
            raise
        return False
    entries = entries_of(raw, sum(header.length for header, _ in frames))
    if 0 < len(entries) < len(frames) and len(entries) * ENTRY_SIZE == len(raw):
        return True
    return any(
        (entry.first_seq, entry.count, entry.length) != (header.first_seq, header.count, header.length)
        or entry.mark not in (0, mark)
        for entry, (header, mark) in zip(entries, frames, strict=False)
    )


def _frames(disk: Disk, path: Path, offset: int = 0) -> Iterator[tuple[Header, bytes]]:
    """The intact frames of a file from an offset on. Blocks. Raises OSError."""
    file = ReadAhead(disk, path)
    with suppress(FrameError):
        while offset < file.size:
            yield (each := file.frame(offset))
            offset += each[0].length


def goes_on(disk: Disk, segment: Segment) -> bool:
    """True if there is an intact frame after the bytes of a segment that count. It may be of a later state of the
    shard, so it is not written over: the topic gets a new segment. Blocks. Raises OSError."""
    return any(_frames(disk, segment.data_path, segment.size))


def replaced(disk: Disk, segment: Segment) -> bool:
    """True if another segment, or one of another time, is in the place of a segment that is to be removed. Reads four
    bytes if the last frame is known and in its place, else the file. Blocks. Raises OSError."""
    if segment.chain is None or ends_as_written(disk, segment):
        return False
    chain: int | None = 0
    end = 0
    for header, frame in _frames(disk, segment.data_path):
        chain = chained(chain, (mark_at(frame, header.flags_at),))
        if chain == segment.chain:
            return False
        end += header.length
    return 0 < end == disk.size(segment.data_path)


def replaced_held(disk: Disk, path: Path, size: int, expected: int | None) -> bool:
    """True if other frames are in the place of held ones that are to be removed, of which `size` bytes with the check
    `expected` were written. Blocks. Raises OSError."""
    if expected in (None, xxhash.xxh3_64_intdigest(disk.read_part(path, 0, size))):
        return False
    return bool(0 < sum(header.length for header, _ in _frames(disk, path)) == disk.size(path))
