"""`topics-spark audit`: checks the files of a data directory. The service may run meanwhile.

check         error                                                       checked by
checksum      a frame with a wrong checksum or header                     a task per file
index         an entry of .idx that does not describe its frame           a task per segment
seqs          a batch whose seqs are not above the previous one's;        those tasks, and planning on the driver
              a gap in the log
duplicates    a seq in two segments, or in two frames of the log;         the driver, from the tasks' results;
              a seq that a read returns twice                             a read
routers       a copy that differs from its source; with `exactly_once`    joins of source and destination
              also a repeated copy, or one out of order; a missing copy

Findings that may have a normal cause are notes: a missing index (the server rebuilds it), seqs of a segment without
records (deleted before the checkpoint), and copies missing from a destination that lost or deleted records. Files that
vanish because of a checkpoint are looked up again through the newest catalog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark_topics import catalog, frames
from pyspark_topics.directory import Shard, shards
from pyspark_topics.errors import CorruptFile, UnknownFormat
from pyspark_topics.logfile import LogFile
from pyspark_topics.segment import Segment, data_name
from pyspark_topics.storage import LocalFile
from pyspark_topics.xxh3 import digest

TRIES = 4
"""How often vanished files are looked up again."""
_ENTRY = struct.Struct("<QQIIqqqIIQ")
assert _ENTRY.size == 64


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `severity` is `error` or `note`."""

    severity: str
    check: str
    place: str
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class Unit:
    """File that one task checks. A segment has a topic; a log file has frame numbers."""

    path: str
    topic_id: int = 0
    topic: str = ""
    size: int = 0
    first: int = 0
    until: int | None = None


@dataclass(slots=True)
class Seen:
    """Result of a task for its file. `runs` are ranges of consecutive seqs: topic id, first, last."""

    unit: Unit
    findings: list[Finding]
    runs: list[tuple[int, int, int]]
    frames: int = 0
    records: int = 0
    bytes: int = 0
    gone: bool = False


def files(spark: Any, path: str, cold: str | None = None, tasks: int = 64) -> tuple[list[Finding], dict[str, int]]:
    """Check checksums, indexes and seqs of all files. Raises `NotADataDirectory`, `UnknownFormat`."""
    findings: list[Finding] = []
    totals = {"files": 0, "frames": 0, "records": 0, "bytes": 0}
    for shard in shards(path, cold):
        done: dict[str, Seen] = {}
        for _ in range(TRIES):
            units, problems = _units(shard)
            todo = [unit for unit in units if unit.path not in done]
            if todo:
                slices = min(len(todo), tasks)
                for seen in spark.sparkContext.parallelize(todo, slices).map(examine).collect():
                    if not seen.gone:
                        done[seen.unit.path] = seen
            missing = [unit for unit in todo if unit.path not in done]
            if not missing:
                break
        findings += problems
        findings += [Finding("error", "checksum", unit.path, unit.topic, "the file is missing") for unit in missing]
        for seen in done.values():
            findings += seen.findings
            totals["files"] += 1
            totals["frames"] += seen.frames
            totals["records"] += seen.records
            totals["bytes"] += seen.bytes
        findings += _overlaps([done[unit.path] for unit in units if unit.path in done])
    return findings, totals


def _units(shard: Shard) -> tuple[list[Unit], list[Finding]]:
    try:
        newest = catalog.newest(shard.path)
    except FileNotFoundError:
        newest = catalog.newest(shard.path)  # a checkpoint has just removed it, so there is a newer one
    except CorruptFile as error:
        return [], [Finding("error", "checksum", str(shard.path), "", str(error))]
    found = [
        Unit(str(shard.base(cold) / data_name(topic["id"], first)), topic["id"], topic["name"], size)
        for topic in newest.topics
        for first, size, _, _, cold in topic["segments"]
    ]
    logs = sorted((shard.path / "wal").glob("wal-*.log"))
    firsts = [int(log.stem.removeprefix("wal-")) for log in logs]
    for log, first, until in zip(logs, firsts, [*firsts[1:], None], strict=False):
        try:
            if log.stat().st_size:
                found.append(Unit(str(log), first=first, until=until))
        except FileNotFoundError:
            pass
    return found, []


def examine(unit: Unit) -> Seen:
    """Check all frames of a file, and its index."""
    seen = Seen(unit, [], [])
    try:
        if unit.first:
            _log(unit, seen)
        else:
            _segment(unit, seen)
    except FileNotFoundError:
        seen.gone = True
    except (CorruptFile, UnknownFormat) as error:
        seen.findings.append(Finding("error", "checksum", unit.path, unit.topic, str(error)))
    return seen


def _log(unit: Unit, seen: Seen) -> None:
    file = LogFile(LocalFile(unit.path), unit.first, unit.until)
    for head in file.heads():
        try:
            frames.verify(file.view, head)
        except frames.FrameError as error:
            file.ends_at(head.offset, head.frame_no, error)
            return
        _saw(seen, head)


def _segment(unit: Unit, seen: Seen) -> None:
    file = Segment(LocalFile(unit.path), unit.topic_id, unit.size)
    file.read()
    heads = []
    offset = 0
    while offset < len(file.view):
        try:
            head = frames.Head(file.view, offset)
            frames.verify(file.view, head)
        except frames.FrameError as error:
            place = f"{unit.path}, byte {offset}"
            seen.findings.append(Finding("error", "checksum", place, unit.topic, str(error)))
            return
        head.topic_id = unit.topic_id  # salvage and reshard give a topic a later id, and its frames keep theirs
        heads.append(head)
        _saw(seen, head)
        offset += head.length
    seen.findings += _index(unit, file, heads)


def _saw(seen: Seen, head: frames.Head) -> None:
    seen.frames += 1
    seen.bytes += head.length
    if head.kind != frames.BATCH:
        return
    seen.records += head.count
    last = head.first_seq + head.count - 1
    runs, unit = seen.runs, seen.unit
    if not unit.first and runs and head.first_seq <= runs[-1][2]:
        text = f"a batch from seq {head.first_seq} on follows one up to {runs[-1][2]}"
        seen.findings.append(Finding("error", "seqs", f"{unit.path}, byte {head.offset}", unit.topic, text))
    if runs and runs[-1][0] == head.topic_id and runs[-1][2] + 1 == head.first_seq:
        runs[-1] = (head.topic_id, runs[-1][1], last)
    else:
        runs.append((head.topic_id, head.first_seq, last))


def _index(unit: Unit, file: Segment, heads: Sequence[frames.Head]) -> Iterator[Finding]:
    path = Path(unit.path).with_suffix(".idx")

    def found(severity: str, text: str) -> Finding:
        return Finding(severity, "index", str(path), unit.topic, text)

    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        yield found("note", "there is none; the server rebuilds it")
        return
    if len(raw) < 64 * len(heads):
        yield found("error", f"{len(raw) // 64} entries for {len(heads)} batches")
    for number, head in enumerate(heads[: len(raw) // 64]):
        entry = raw[64 * number : 64 * number + 64]
        first, offset, length, count, first_ts, last_ts, _, flags_at, _, checksum = _ENTRY.unpack(entry)
        if digest(entry[:56]) != checksum:
            yield found("error", f"entry {number}: its checksum is not right")
            continue
        times = frames.Records(file.buffer, file.view, head).times
        last = head.ts_ms if times is None or not head.count else times[head.count - 1].as_py()
        said = (first, offset, length, count, first_ts, last_ts, flags_at)
        flags = frames.HEADER_BYTES + head.body_len + 8
        right = (head.first_seq, head.offset, head.length, head.count, head.ts_ms, last, flags)
        if said != right:
            yield found("error", f"entry {number} says {said}, the frame at byte {head.offset} {right}")


def _overlaps(seen: Iterable[Seen]) -> list[Finding]:
    """Compare segments with each other, and log files with each other. Records of a segment may also be in the log."""
    findings = []
    reached: dict[tuple[bool, int], tuple[int, str]] = {}
    ordered = sorted(seen, key=lambda one: (one.unit.first, one.unit.path))
    for one in ordered:
        for topic_id, first, last in one.runs:
            key = (bool(one.unit.first), topic_id)
            before, where = reached.get(key, (0, ""))
            if first <= before and where != one.unit.path:
                text = f"seqs {first} to {min(last, before)} of topic id {topic_id} are also in {where}"
                findings.append(Finding("error", "duplicates", one.unit.path, one.unit.topic, text))
            elif not one.unit.first and before and first > before + 1:
                text = f"no records for seqs {before + 1} to {first - 1}: deleted before a checkpoint, or lost to a cap"
                findings.append(Finding("note", "seqs", one.unit.path, one.unit.topic, text))
            reached[key] = (max(before, last), one.unit.path)
    return findings


COLUMNS = "topic, offset, node, tag, value, meta"


def rows(spark: Any, path: str, cold: str | None = None) -> list[Finding]:
    """Seqs that a read returns twice, and damage that planning a read finds."""
    from pyspark.sql import functions as f

    try:
        twice = (
            _read(spark, path, cold, "topic, offset")
            .groupBy("topic", "offset")
            .count()
            .where("count > 1")
            .groupBy("topic")
            .agg(f.count("*"), f.min("offset"))
            .collect()
        )
    except Exception as error:  # Spark wraps what the tasks raise
        if "CorruptFile" not in str(error):
            raise
        line = next(line for line in str(error).splitlines() if "CorruptFile" in line)
        return [Finding("error", "seqs", path, "", line.strip())]
    return [
        Finding("error", "duplicates", path, topic, f"{count} seqs are read more than once, the first of them {first}")
        for topic, count, first in twice
    ]


def routers(spark: Any, path: str, cold: str | None = None) -> list[Finding]:
    """Compare each router's destination with its source, for records that both have, up to the last checkpoint."""
    findings: list[Finding] = []
    read = partial(_read, spark, path, cold, COLUMNS)
    for shard in shards(path, cold):
        try:
            newest = catalog.newest(shard.path)
        except (CorruptFile, FileNotFoundError):
            continue  # `files` reports it
        for topic in newest.topics:
            lane = topic.get("routers") or {"routers": ()}
            for name, config, since, _, _ in lane["routers"]:
                router = Router(name, lane["source"], lane["epoch"], topic["name"], config, since, lane["cursor"])
                findings += router.check(read(lane["source"]), read(topic["name"]))
    return findings


@dataclass(frozen=True, slots=True)
class Router:
    """A router, which has copied the records of its source after seq `since`, up to seq `cursor`."""

    name: str
    source: str
    epoch: int
    dest: str
    config: Mapping[str, Any]
    since: int
    cursor: int

    def check(self, source: Any, copies: Any) -> Iterator[Finding]:
        """Compare `copies`, the records of the destination, with those of the source."""
        from pyspark.sql import functions as f

        source = self._wanted(source)
        low, high, count = copies.agg(f.min("offset"), f.max("offset"), f.count("*")).first()
        whole = bool(count) and low == 1 and high == count
        if self.config["guarantee"] == "exactly_once":
            yield from self._check_marked(source, self._marked(copies), whole)
        elif missing := self._uncopied(source, copies):
            yield self._missing(missing, whole)

    @property
    def _same(self) -> list[str]:
        """Columns that a copy has from its source."""
        return ["value", *(name for name in ("tag", "node") if self.config[f"preserve_{name}"])]

    def _wanted(self, source: Any) -> Any:
        """The records to copy."""
        from pyspark.sql import functions as f

        source = source.where(f.col("offset").between(self.since + 1, self.cursor))
        match = self.config.get("filter")
        if not match:
            return source
        _, operator, pattern = match if isinstance(match, list | tuple) else ("tag", "Eq", match)
        tag = f.col("tag")
        return source.where(tag.startswith(pattern.removesuffix("*")) if operator == "Glob" else tag == f.lit(pattern))

    def _marked(self, copies: Any) -> Any:
        """The copies that this router marked with the `seq` of their source."""
        from pyspark.sql import functions as f

        form = "_topics_router struct<router: string, source: string, epoch: long, seq: long>"
        return (
            copies.withColumn("stamp", f.from_json(f.col("meta").cast("string"), form)["_topics_router"])
            # An epoch is unique in the source's shard only, and the router may have had another source.
            .where((f.col("stamp.router") == self.name) & (f.col("stamp.source") == self.source))
            .where(f.col("stamp.epoch") == self.epoch)
            .withColumn("seq", f.col("stamp.seq"))
            .where(f.col("seq") <= self.cursor)
        )

    def _check_marked(self, source: Any, marked: Any, whole: bool) -> Iterator[Finding]:
        from pyspark.sql import functions as f

        repeated, first = marked.groupBy("seq").count().where("count > 1").agg(f.count("*"), f.min("seq")).first()
        if repeated:
            yield self._found("error", f"{repeated} records were copied more than once, seq {first} first")
        joined = source.alias("s").join(marked.alias("d"), f.col("s.offset") == f.col("d.seq"), "left")
        differs = f.lit(False)
        for column in self._same:
            differs = differs | ~f.col(f"s.{column}").eqNullSafe(f.col(f"d.{column}"))
        lowest = marked.agg(f.min("seq")).first()[0] or self.since + 1
        copied = f.col("d.seq").isNotNull()
        missing, altered, example = joined.agg(
            f.count(f.when(~copied & (f.col("s.offset") >= lowest), 1)),
            f.count(f.when(copied & differs, 1)),
            f.min(f.when(copied & differs, f.col("s.offset"))),
        ).first()
        if missing:
            yield self._missing(missing, whole)
        if altered:
            yield self._found("error", f"{altered} copies are not as their source, seq {example} first")
        if disorder := _late(marked):
            yield self._found("error", f"{disorder} copies stand before one of an earlier record")

    def _uncopied(self, source: Any, copies: Any) -> int:
        """Copies that carry no mark of their source may be there twice: each must be there as often as in the
        source."""
        from pyspark.sql import functions as f

        wanted = source.groupBy(*self._same).agg(f.count("*").alias("wanted"))
        there = copies.groupBy(*self._same).agg(f.count("*").alias("there"))
        condition = [f.col(f"w.{column}").eqNullSafe(f.col(f"t.{column}")) for column in self._same]
        joined = wanted.alias("w").join(there.alias("t"), condition, "left")
        lacking = f.greatest(f.col("wanted") - f.coalesce("there", f.lit(0)), f.lit(0))
        return int(joined.agg(f.sum(lacking)).first()[0] or 0)

    def _missing(self, count: int, whole: bool) -> Finding:
        if whole:
            return self._found("error", f"{count} copies are missing, and nothing was deleted there")
        return self._found("note", f"{count} copies are missing; records there are deleted or expired")

    def _found(self, severity: str, text: str) -> Finding:
        return Finding(severity, "routers", f"router {self.name}: {self.source} -> {self.dest}", self.dest, text)


def _late(marked: Any) -> int:
    """Copies that stand before one of an earlier record."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = f.lag("seq").over(Window.partitionBy("topic").orderBy("offset"))
    return int(marked.select((f.col("seq") < before).alias("late")).where("late").count())


def _read(spark: Any, path: str, cold: str | None, columns: str, topic: str = "") -> Any:
    reading = spark.read.format("topics").option("columns", columns)
    if cold:
        reading = reading.option("coldPath", cold)
    return (reading.option("subscribe", topic) if topic else reading).load(path)


def run(spark: Any, path: str, cold: str | None = None) -> dict[str, Any]:
    """Run all checks. `clean` in the result means that there is no error. Raises `NotADataDirectory`,
    `UnknownFormat`."""
    findings, totals = files(spark, path, cold)
    damaged = any(finding.severity == "error" for finding in findings)
    if not damaged:
        # Reading damaged files would only report the same damage again.
        findings += rows(spark, path, cold)
        findings += routers(spark, path, cold)
    clean = not any(finding.severity == "error" for finding in findings)
    return {"clean": clean, **totals, "findings": [asdict(finding) for finding in findings]}
