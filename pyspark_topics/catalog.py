"""Catalog of a shard: the shard's state without payloads, as of a position in its log. This module reads the newest.

    catalog-<n, 20 digits>.cbor

    byte  0  "TPCC"
          4  u32  format version, 1
          8  u64  bytes of the CBOR that follows
         16  u64  XXH3-64 of it
         24       CBOR map: frame_no, next_id, topics

A catalog gets its name only when it is complete. If the newest one is unreadable, the previous one is read instead. The
server keeps a catalog, with all files that it refers to, until the next but one exists.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pyspark_topics import cbor
from pyspark_topics.errors import CorruptFile, UnknownFormat, log
from pyspark_topics.frames import VERSION
from pyspark_topics.segment import Segment
from pyspark_topics.storage import LocalFile
from pyspark_topics.xxh3 import digest

MAGIC = b"TPCC"
HEAD = struct.Struct("<4sIQQ")
assert HEAD.size == 24
HELD_VERSION = 2
"""Format version of a catalog that holds back frames of a topic which the server could not read."""
ABSENT = -1
_NAME = re.compile(r"catalog-(\d{20})\.cbor")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Decoded catalog. Includes everything up to frame `frame_no` of the log. `number` is 0 if the shard has none, and
    `ABSENT` if the shard itself is not there."""

    number: int = 0
    frame_no: int = 0
    next_id: int = 0
    topics: tuple[dict[str, Any], ...] = ()


def newest(shard: Path) -> Catalog:
    """The newest readable catalog.

    Raises `CorruptFile` if there are catalogs and none is readable, `UnknownFormat`, and `FileNotFoundError` if the
    server removes one at this moment.
    """
    names = sorted((p.name for p in shard.iterdir() if _NAME.fullmatch(p.name)), reverse=True) if shard.is_dir() else []
    problems: list[str] = []
    for name in names:
        found = decode((shard / name).read_bytes(), shard / name)
        if isinstance(found, Catalog):
            if problems:
                log.warning("%s: read %s instead of %s", shard, name, "; ".join(problems))
            return found
        problems.append(f"{name}: {found}")
    if problems:
        raise CorruptFile(f"{shard}: no catalog can be read: " + "; ".join(problems))
    return Catalog(0 if (shard / "wal").is_dir() else ABSENT)


def of_segments(shard: Path) -> Catalog:
    """A catalog of all segments of a cold tier that is read without its data directory. Raises `CorruptFile`.

    Topics are named by their ids in hexadecimal, because only the data directory has the names. It also has the
    deletions and losses since the segments were written; these are missing here.
    """
    topics = []
    folders = sorted((shard / "topics").iterdir()) if (shard / "topics").is_dir() else []
    for folder in folders:
        ident = int(folder.name, 16)
        stored = [(int(path.stem.removeprefix("seg-")), path) for path in sorted(folder.glob("seg-*.data"))]
        sizes = [path.stat().st_size for _, path in stored]
        if stored:
            last = Segment(LocalFile(str(stored[-1][1])), ident, sizes[-1], folder.name).entries()[-1]
            topics.append(
                {
                    "name": folder.name,
                    "id": ident,
                    "epoch": ident,
                    "config": {},
                    "head_seq": last.first_seq + last.count - 1,
                    "floor": stored[0][0],
                    "segments": [[first, size, 0, True, False] for (first, _), size in zip(stored, sizes, strict=True)],
                    "deleted": [],
                    "losses": [],
                }
            )
    return Catalog(0 if (shard / "topics").is_dir() else ABSENT, topics=tuple(topics))


def decode(raw: bytes, path: PurePath) -> Catalog | str:
    """The catalog in a file, or the reason why it is unreadable. Raises `UnknownFormat`."""
    if len(raw) < HEAD.size:
        return f"{len(raw)} bytes, too short"
    magic, version, length, checksum = HEAD.unpack_from(raw)
    body = raw[HEAD.size :]
    if magic != MAGIC or length != len(body) or digest(body) != checksum:
        return "not whole (magic, length or checksum)"
    if version not in (VERSION, HELD_VERSION):
        raise UnknownFormat(
            f"{path}: catalog version {version}, known here: {HELD_VERSION}; update pyspark_topics to match"
        )
    match = _NAME.fullmatch(path.name)
    assert match is not None
    try:
        about = cbor.loads(body)
        return Catalog(int(match[1]), about["frame_no"], about["next_id"], tuple(about["topics"]))
    except (cbor.CborError, KeyError, TypeError) as error:
        return f"not a catalog: {error!r}"
