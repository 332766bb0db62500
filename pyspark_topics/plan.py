"""What to read, as a list of pieces: one per segment and per file of the log that hold something wanted.

Planning reads the newest catalog of each shard and walks the headers of the log after it. What is read is the state at
that moment, one moment per shard: each piece names its topics and, for each, a range of seqs. Ranges never overlap, so
each record is read once, wherever its bytes are by then.

The server may run meanwhile and make checkpoints, which remove files. What happens when a file is gone:

    while planning       plan again, from a newer catalog; an error if there is none
    while reading        its seqs are looked up again through the newest catalog: log files have become segments,
                         segments have moved to the cold tier, or all their records are gone
    once it is open      nothing: the bytes stay until it is closed

So a read gives every record that was there when it was planned and still is when its task reads it. Records that are
evicted, expired or deleted in between may be there or not; records that come later are not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark_topics import catalog, frames, rows
from pyspark_topics.catalog import Catalog
from pyspark_topics.directory import Shard, shards
from pyspark_topics.errors import CorruptFile, Trimmed
from pyspark_topics.logfile import LogFile
from pyspark_topics.replay import Replay
from pyspark_topics.rows import Rows
from pyspark_topics.segment import Segment

TRIES = 8
"""How often files may vanish in a row. Each time takes the server a whole checkpoint."""
_FILE = re.compile(r"wal-(\d{20})\.log")


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, and what one task reads of it: `rows` by topic id, from the first `end` bytes.

    `first` and `until` are the frame numbers of a log file (see `LogFile`); `first` is 0 for a segment.
    """

    shard: Shard
    path: str
    end: int
    rows: dict[int, Rows]
    now_ms: int
    first: int = 0
    until: int | None = None

    def open(self) -> LogFile | Segment:
        """Raises `FileNotFoundError`, `CorruptFile`."""
        if self.first:
            return LogFile(self.path, self.first, self.until, self.end)
        (topic_id,) = self.rows
        return Segment(self.path, topic_id, self.end)


def plan(path: str, subscribe: Collection[str] = (), cold: str | None = None, now_ms: int | None = None) -> list[Piece]:
    """What to read for the topics named in `subscribe`, or for all topics if there are none.

    Records are expired as of `now_ms`, by default now. A topic that does not exist (any more) simply has no records.
    Raises `NotADataDirectory`, `ColdPathMissing`, `CorruptFile`, `UnknownFormat`, `OSError`.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return [piece for shard in shards(path, cold) for piece in _plan_shard(shard, subscribe, now_ms)]


def read(piece: Piece, schema: Any, tries: int = TRIES) -> Iterator[Any]:
    """The rows of a piece as `pa.RecordBatch`es. Raises as `plan` does."""
    try:
        file = piece.open()
    except FileNotFoundError as error:
        if not tries:
            raise CorruptFile(f"{piece.path}: gone, and so was every file that took its place; try again") from error
        for moved in _find_again(piece):
            yield from read(moved, schema, tries - 1)
        return
    for group in rows.groups(file, file.heads(), piece.rows):
        made = rows.batch(group, piece.rows, piece.shard.number, schema)
        if made.num_rows:
            yield made


def _find_again(piece: Piece) -> list[Piece]:
    """Where the records of a piece are now."""
    names = {wanted.name for wanted in piece.rows.values()}
    found = []
    for newer in _plan_shard(piece.shard, names, piece.now_ms):
        narrowed = {}
        for topic_id, there in newer.rows.items():
            wanted = piece.rows.get(topic_id)
            if wanted is None:
                continue
            low, high = max(there.low, wanted.low), min(there.high, wanted.high)
            if low <= high:
                narrowed[topic_id] = replace(there, low=low, high=high)
        if narrowed:
            found.append(replace(newer, rows=narrowed))
    return found


def _plan_shard(shard: Shard, subscribe: Collection[str], now_ms: int) -> list[Piece]:
    tried: int | None = None
    for _ in range(TRIES):
        number = tried
        try:
            newest = catalog.newest(shard.path)
            number = newest.number
            return _plan_from(newest, shard, subscribe, now_ms)
        except FileNotFoundError as error:
            gone = error
            if number is not None and number == tried:
                # The server has not been at work: nothing but damage makes files vanish.
                break
            tried = number
    raise CorruptFile(f"{shard.path}: a file that catalog {tried or 0} needs is missing: {gone}") from gone


def _plan_from(newest: Catalog, shard: Shard, subscribe: Collection[str], now_ms: int) -> list[Piece]:
    state = Replay(shard, newest, subscribe)
    logs = _logs(shard, newest.frame_no)
    ends = [(log, _replay(log, newest.frame_no, state)) for log in logs]
    if logs and state.frame_no < newest.frame_no:
        raise CorruptFile(
            f"{shard.path}: the log ends with frame {state.frame_no}, but catalog {newest.number} was made when frame "
            f"{newest.frame_no} had been synced"
        )
    pieces = []
    spans: dict[LogFile, dict[int, Rows]] = {}
    for topic_id, topic in state.topics.items():
        if topic is None or topic.ephemeral:
            continue
        topic.settle(now_ms)
        for stored in topic.segments:
            wanted = topic.wanted(stored.first, stored.last)
            if wanted is not None:
                path = stored.path(shard, topic_id)
                pieces.append(Piece(shard, str(path), stored.size, {topic_id: wanted}, now_ms))
        for log, span in topic.spans.items():
            wanted = topic.wanted(span.low, span.high)
            if wanted is not None:
                spans.setdefault(log, {})[topic_id] = wanted
    for log, end in ends:
        if log in spans:
            pieces.append(Piece(shard, log.path, end, spans[log], now_ms, log.first, log.until))
    return pieces


def _logs(shard: Shard, frame_no: int) -> list[LogFile]:
    """The files of the log that hold frames after `frame_no`, oldest first. Raises `Trimmed`, `FileNotFoundError`."""
    directory = shard.path / "wal"
    # A shard that never started has no directory yet.
    listed = sorted(directory.iterdir()) if directory.is_dir() else []
    # Empty files say nothing: one may have been left by a rotation that failed half-way.
    files = [(file, int(match[1])) for file in listed if (match := _FILE.fullmatch(file.name)) and file.stat().st_size]
    while len(files) > 1 and files[1][1] <= frame_no + 1:
        del files[0]
    if files and files[0][1] > frame_no + 1:
        raise Trimmed(f"the log in {directory} begins with frame {files[0][1]}, the catalog ends at frame {frame_no}")
    firsts = [first for _, first in files]
    return [LogFile(str(file), first, until) for (file, first), until in zip(files, [*firsts[1:], None], strict=False)]


def _replay(log: LogFile, frame_no: int, state: Replay) -> int:
    """Apply the frames of a file after `frame_no`. Returns where the last whole frame ends. Raises `CorruptFile`."""
    end = 0
    for head in log.heads():
        try:
            if head.kind != frames.BATCH or log.until is None:
                frames.verify(log.view, head)
        except frames.FrameError as error:
            log.ends_at(head.offset, head.frame_no, error)
            break
        state.frame_no = head.frame_no
        if head.frame_no > frame_no:
            try:
                state.apply(log, head)
            except frames.FrameError as error:
                raise CorruptFile(f"{log.path}, byte {head.offset}: {error}") from error
        end = head.offset + head.length
    return end
