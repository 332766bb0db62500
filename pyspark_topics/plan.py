"""Plan of a read: a list of pieces, one per segment and per log file with wanted records, grouped into tasks.

Planning reads the newest catalog of each shard and the headers of the log after it. A read returns the state of each
shard at that moment. Each piece names its topics, with a range of seqs for each. Ranges never overlap, so each record
is read once, wherever its bytes have moved since.

The server may run meanwhile, and its checkpoints remove files. If a file is gone:

    while planning       plan again, from a newer catalog; an error if there is none
    while reading        its seqs are looked up again through the newest catalog: log files have become segments,
                         segments have moved to the cold tier, or all their records are gone
    once it is open      no effect: the bytes stay until it is closed

A read therefore returns every record that existed when it was planned and still exists when its task reads it. Records
that are evicted, expired or deleted in between may be returned or not. Later records are not returned.

A task whose machine does not have the shard's files, or has earlier ones, ends with `CorruptFile`.

Damage ends a read with `CorruptFile`. If `fail` is false, damage is logged and its records are left out: a batch and
all that depends on it, up to a whole shard whose catalogs are all unreadable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import accumulate, groupby
from typing import Any, ParamSpec, TypeVar

from pyspark_topics import frames, rows
from pyspark_topics.catalog import ABSENT
from pyspark_topics.directory import places
from pyspark_topics.errors import CorruptFile, tell
from pyspark_topics.logfile import LogFile
from pyspark_topics.options import Topics
from pyspark_topics.replay import Replay
from pyspark_topics.rows import Rows
from pyspark_topics.segment import Segment
from pyspark_topics.snapshot import Key, Place, Snapshot
from pyspark_topics.storage import File
from pyspark_topics.topic import Topic
from pyspark_topics.where import ALL, MAX_I64, Where

P = ParamSpec("P")
T = TypeVar("T")
TRIES = 8
"""How often in a row files may vanish. Each time requires a whole checkpoint of the server."""
TASK_BYTES = 256 << 20
"""Approximate size limit of a task of several files: half a second to a second of work."""
LEAST_TASK_BYTES = 8 << 20
"""Smallest size worth a task. A task costs Spark up to 80 ms besides its work: its exchange with Python before a task
has two pauses of 40 ms, in which one side of the socket delays an acknowledgement that the other awaits."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a file that one task reads: `rows` by topic id, from the first `end` bytes.

    `first` and `until` are the frame numbers of a log file (see `LogFile`); `first` is 0 for a segment.
    `number` is that of the snapshot.
    """

    shard: Place
    file: File
    end: int
    rows: dict[int, Rows]
    now_ms: int
    first: int = 0
    until: int | None = None
    where: Where = ALL
    fail: bool = True
    number: int = ABSENT

    @property
    def path(self) -> str:
        return self.file.path

    def open(self) -> LogFile | Segment:
        """Open the file. Raises `FileNotFoundError`, `CorruptFile`."""
        if self.first:
            log = LogFile(self.file, self.first, self.until, self.end, fail=self.fail)
            log.names = {ident: wanted.name for ident, wanted in self.rows.items()}
            return log
        ((topic_id, wanted),) = self.rows.items()
        return Segment(self.file, topic_id, self.end, wanted.name, self.fail)


@dataclass(slots=True)
class Survey:
    """State of one or more shards when they were surveyed: their wanted topics, and the pieces with the records."""

    topics: list[Topic] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)


def repeated(call: Callable[P, T]) -> Callable[P, T]:
    """Repeat a call that makes a survey, and reads files of it, up to `TRIES` times if one of them is gone meanwhile.
    Then it raises `CorruptFile`."""

    @wraps(call)
    def until_files_stay(*given: P.args, **named: P.kwargs) -> T:
        for _ in range(TRIES):
            try:
                return call(*given, **named)
            except FileNotFoundError as error:
                gone = error
        raise CorruptFile(f"a file that the planning needs is gone, or vanishes each time: {gone}") from gone

    return until_files_stay


def clock_ms() -> int:
    """Wall clock in ms since 1970, by which records expire."""
    return time.time_ns() // 1_000_000


def plan(path: str, topics: Collection[str] = (), cold: str | None = None, now_ms: int | None = None) -> list[Piece]:
    """The pieces of the topics named in `topics`, or of all topics if it is empty. See `survey`."""
    return survey(places([path], [cold] if cold else []), Topics(frozenset(topics)), now_ms=now_ms).pieces


def survey(
    shards: Collection[Place],
    topics: Topics,
    where: Where = ALL,
    *,
    fail: bool = True,
    now_ms: int | None = None,
) -> Survey:
    """Survey the topics and pieces of shards.

    Records are expired as of `now_ms`, by default now. A topic that does not exist has no records.
    Raises `ColdPathMissing`, `CorruptFile`, `UnknownFormat`, `OSError`.
    """
    now_ms = clock_ms() if now_ms is None else now_ms
    found = Survey()
    for shard in shards:
        if not (where.shard(shard.number) and shard.may_hold(topics)):
            continue
        try:
            one = _survey_shard(shard, topics.in_shard(shard.number), now_ms, fail, where=where)
        except CorruptFile as damage:
            tell(damage, fail)
            continue
        found.topics += one.topics
        found.pieces += [replace(piece, where=where) for piece in one.pieces]
    return found


@dataclass(frozen=True, slots=True)
class Range:
    """Range of seqs and times (ms) of one topic, all inclusive."""

    low: int = 1
    high: int = MAX_I64
    since_ms: int = 0
    until_ms: int = MAX_I64


def narrow(pieces: Collection[Piece], ranges: Mapping[Key, Range]) -> list[Piece]:
    """The pieces limited to `ranges` (by shard and topic id) and to their `where`. Topics without a
    range are left out."""
    found = []
    for piece in pieces:
        where = piece.where
        left = {}
        for ident, wanted in piece.rows.items():
            if (allowed := ranges.get((piece.shard, ident))) is None:
                continue
            low, high = max(wanted.low, allowed.low, where.low), min(wanted.high, allowed.high, where.high)
            oldest = max(wanted.oldest_ms, allowed.since_ms, where.since_ms)
            newest = min(wanted.newest_ms, allowed.until_ms, where.until_ms)
            if low <= high and oldest <= newest:
                left[ident] = replace(wanted, low=low, high=high, oldest_ms=oldest, newest_ms=newest)
        if left:
            found.append(replace(piece, rows=left))
    return found


def tasks(pieces: list[Piece], least: int = 0) -> list[list[Piece]]:
    """Group pieces into tasks: small pieces of a shard together, in few tasks of similar size that keep all cores busy.

    With `least`, each piece is a task, and large pieces are cut into ranges of seqs until there are that many tasks or
    slightly more (if there are enough seqs).
    """
    if least:
        return [[part] for part in _split(pieces, least)]
    total = sum(piece.end for piece in pieces)
    most = min(TASK_BYTES, max(total // (os.cpu_count() or 1), LEAST_TASK_BYTES))
    found: list[list[Piece]] = []
    for _, of_shard in groupby(pieces, key=lambda piece: piece.shard):
        together = list(of_shard)
        size = sum(piece.end for piece in together) or 1
        count = -(-size // most)
        starts = accumulate((piece.end for piece in together[:-1]), initial=0)
        places = [start * count // size for start in starts]
        for _, part in groupby(zip(places, together, strict=True), key=lambda placed: placed[0]):
            found.append([piece for _, piece in part])
    return found


def _split(pieces: list[Piece], least: int) -> list[Piece]:
    total = sum(piece.end for piece in pieces)
    found = []
    for piece in pieces:
        parts = max(-(-least * piece.end // max(total, 1)), 1) if len(pieces) < least else 1
        for part in range(parts):
            left = {}
            for ident, wanted in piece.rows.items():
                count = wanted.high - wanted.low + 1
                low, stop = (wanted.low + count * n // parts for n in (part, part + 1))
                if low < stop:
                    left[ident] = replace(wanted, low=low, high=stop - 1)
            if left:
                found.append(replace(piece, rows=left))
    return found


def read(piece: Piece, schema: Any, tries: int = TRIES) -> Iterator[Any]:
    """The rows of a piece as `pa.RecordBatch`es. Raises as `survey` does."""
    try:
        file = piece.open()
        if isinstance(file, Segment):
            (wanted,) = piece.rows.values()
            entries = file.heads(wanted.may_be_in)
        else:
            entries = file.heads()
    except FileNotFoundError as error:
        yield from _read_moved(piece, schema, tries, error)
        return
    except CorruptFile as damage:
        tell(damage, piece.fail)
        return
    seen: set[int] = set()
    for group in rows.groups(file, _noted(entries, seen), piece.rows):
        made = rows.batch(group, piece.rows, piece.shard.number, schema, piece.where)
        if made.num_rows:
            yield made
    if piece.first and seen.isdisjoint(piece.rows):
        # The plan saw batches of these topics in it, so it is a later file of the same name.
        yield from _read_moved(piece, schema, tries)


def _noted(heads: Iterator[frames.Head], seen: set[int]) -> Iterator[frames.Head]:
    for head in heads:
        seen.add(head.topic_id)
        yield head


def _read_moved(piece: Piece, schema: Any, tries: int, error: FileNotFoundError | None = None) -> Iterator[Any]:
    """The rows of a file that vanished, or has been replaced, from the files that have them now. Raises as `survey`
    does."""
    try:
        if not tries:
            why = f"gone, and so was every file that took its place; try again: {error or 'it is another file'}"
            raise CorruptFile(f"{piece.path}: {why}") from error
        moved = _find_again(piece)
    except CorruptFile as damage:
        tell(damage, piece.fail)
        return
    for newer in moved:
        yield from read(newer, schema, tries - 1)


def _find_again(piece: Piece) -> list[Piece]:
    """Find the pieces that have the records of a vanished file now. Their topics may have other ids: `topics salvage`
    copies a topic."""
    wanted = {(rows.name, rows.epoch): rows for rows in piece.rows.values()}
    names = Topics(frozenset(name for name, _ in wanted))
    found = []
    for newer in _survey_shard(piece.shard, names, piece.now_ms, piece.fail, piece.number).pieces:
        ranges = {
            (piece.shard, ident): Range(was.low, was.high, was.oldest_ms, was.newest_ms)
            for ident, rows in newer.rows.items()
            if (was := wanted.get((rows.name, rows.epoch))) is not None
        }
        found += narrow([replace(newer, where=piece.where)], ranges)
    return found


def _survey_shard(
    shard: Place, topics: Topics, now_ms: int, fail: bool, least: int = ABSENT, where: Where = ALL
) -> Survey:
    """Survey a shard. Raises `CorruptFile` if its snapshot has a number below `least`, and as `survey` does."""
    tried: int | None = None
    for _ in range(TRIES):
        number = tried
        try:
            snapshot = shard.snapshot(fail)
            number = snapshot.number
            if number < least:
                raise CorruptFile(
                    f"{shard.path}: the shard is not there, or is as it was before the read was planned; mount the "
                    "same directory at the same path on the driver and all executors"
                )
            return _survey_from(snapshot, topics, where, now_ms, fail)
        except FileNotFoundError as error:
            gone = error
            if number is not None and number == tried:
                # The catalog is the same, so no checkpoint removed the file: it is missing by damage.
                break
            tried = number
    raise CorruptFile(f"{shard.path}: a file that {shard.state} {tried or 0} needs is missing: {gone}") from gone


def _survey_from(snapshot: Snapshot, topics: Topics, where: Where, now_ms: int, fail: bool) -> Survey:
    shard, newest = snapshot.shard, snapshot.catalog
    state = Replay(snapshot, lambda name: name in topics and where.topic.allows(name), fail)
    logs = snapshot.logs(fail)
    ends = [(log, _replay(log, newest.frame_no, state)) for log in logs]
    if logs and state.frame_no < newest.frame_no:
        tell(
            CorruptFile(
                f"{shard.path}: the log ends with frame {state.frame_no}, but catalog {newest.number} was made when "
                f"frame {newest.frame_no} had been synced"
            ),
            fail,
        )
    found = Survey()
    piece = partial(Piece, shard, now_ms=now_ms, fail=fail, number=snapshot.number)
    spans: dict[LogFile, dict[int, Rows]] = {}
    for topic_id, topic in state.topics.items():
        if topic is None or topic.ephemeral:
            continue
        topic.settle(now_ms)
        found.topics.append(topic)
        for stored in topic.segments:
            wanted = topic.wanted(stored.first, stored.last)
            if wanted is not None:
                file = topic.file(stored)
                found.pieces.append(piece(file, stored.size, {topic_id: wanted}))
        for log, span in topic.spans.items():
            wanted = topic.wanted(span.low, span.high)
            if wanted is not None:
                spans.setdefault(log, {})[topic_id] = wanted
    for log, end in ends:
        if log in spans:
            found.pieces.append(piece(log.file, end, spans[log], first=log.first, until=log.until))
    return found


def _replay(log: LogFile, frame_no: int, state: Replay) -> int:
    """Apply the frames of a file after `frame_no`. Returns the end of the last whole frame. Raises `CorruptFile`."""
    end = 0
    log.names = state.names
    for head in log.heads():
        try:
            # Batches are verified too, although tasks verify them again, because planning relies on their headers.
            if head.frame_no > frame_no or log.until is None:
                frames.verify(log.view, head)
        except frames.FrameError as error:
            log.ends_at(head.offset, head.frame_no, error)
            if log.fail:
                break
            continue
        state.frame_no = head.frame_no
        if head.frame_no > frame_no:
            try:
                state.apply(log, head)
            except frames.FrameError as error:
                place = f'{log.file.at(head.offset)} (topic "{state.names.get(head.topic_id, "")}")'
                tell(CorruptFile(f"{place}: {error}"), log.fail)
        end = head.offset + head.length
    return end
