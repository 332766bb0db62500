"""A data directory as a list of files to read: shards, topic names, and the point up to which each file counts.

    <data directory>/manifest.json
    <data directory>/shard-00/wal/wal-<number of the first frame, 20 digits>.log

Planning walks the headers of every file once. It fixes the end of the newest file of each shard, so what is read is the
state at one moment per shard, however long the read takes and however much the server writes meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pyspark_topics.logfile import CorruptLog, LogFile, survey, wanted

FORMAT = 1
_SHARD = re.compile(r"shard-(\d+)")
_FILE = re.compile(r"wal-(\d{20})\.log")


class NotADataDirectory(ValueError):
    """There is nothing to read at the path that was given. The text says what is missing."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, or the part of it, that one Spark task reads."""

    path: str
    first: int
    until: int | None
    end: int
    shard: int
    names: dict[int, str]


def shards(path: str) -> list[tuple[int, Path]]:
    """Number and directory of each shard below `path`: a data directory, or the directory of one shard."""
    root = Path(path)
    match = _SHARD.fullmatch(root.resolve().name)
    if match and (root / "wal").is_dir():
        return [(int(match[1]), root)]
    manifest = root / "manifest.json"
    try:
        about = json.loads(manifest.read_bytes())
        version, count = about["format"], int(about["shards"])
    except FileNotFoundError:
        raise NotADataDirectory(
            f"{path}: neither a data directory (no manifest.json) nor one shard of it (shard-NN with wal/); "
            "give load() the server's TOPICS_DATA_DIR"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise NotADataDirectory(f"{manifest}: not a manifest: {error!r}") from error
    if version != FORMAT:
        raise NotADataDirectory(f"{manifest}: format {version!r}, known here: {FORMAT}; update pyspark_topics")
    return [(number, root / f"shard-{number:02d}") for number in range(count)]


def plan(path: str, subscribe: Collection[str] = ()) -> list[Piece]:
    """What to read for the topics named in `subscribe`, or for all topics if there are none.

    A topic that does not exist (any more) simply has no records. Raises `NotADataDirectory`, `CorruptLog`, `OSError`.
    """
    return [piece for number, shard in shards(path) for piece in _plan_shard(number, shard, subscribe)]


def _plan_shard(number: int, shard: Path, subscribe: Collection[str]) -> list[Piece]:
    directory = shard / "wal"
    # A shard that never started has no directory yet.
    listed = sorted(directory.iterdir()) if directory.is_dir() else []
    # Empty files say nothing: one may have been left by a rotation that failed half-way.
    files = [(file, int(match[1])) for file in listed if (match := _FILE.fullmatch(file.name)) and file.stat().st_size]
    names: dict[int, str] = {}
    deleted: set[int] = set()
    surveyed = []
    for index, (file, first) in enumerate(files):
        until = files[index + 1][1] if index + 1 < len(files) else None
        contents = survey(LogFile(str(file), first, until))
        names |= contents.created
        deleted |= contents.deleted
        surveyed.append((file, first, until, contents))
    if unknown := set[int]().union(*(entry[3].written for entry in surveyed)) - names.keys() - deleted:
        raise CorruptLog(f"{directory}: records of topic ids {sorted(unknown)[:10]}, whose creation is not in the log")
    chosen = {
        topic_id: name
        for topic_id, name in names.items()
        if topic_id not in deleted and (not subscribe or name in subscribe)
    }
    return [
        Piece(str(file), first, until, contents.end, number, about)
        for file, first, until, contents in surveyed
        if (about := wanted(chosen, contents.written))
    ]
