"""Replica: a service's copy in a bucket, as its shards ship it. The service and its machine are not asked.

    service.json                  {"format": 1, "service": …, "shards": 2}
    shard-07/manifests/<number>   what a restore needs as of the part of this number
    shard-07/checkpoints/<name>/<n>   the files that manifests name: streams, cut into chunks of 4 MiB
    shard-07/log/<number>         parts of the log, numbered from 1 without holes, with fences and ends

A snapshot is the newest readable manifest and the parts behind its catalog:

    part                                          decision
    frames that follow                            read them
    none reaches back to the catalog              look again; damage if the manifest is the same
    frames up to the catalog's position only      skip
    a fence, or an end: it has no frames          skip
    of a number that must exist, or before one    damage: it is missing
      that exists, but absent
    absent otherwise                              the end
    frames that do not follow: a hole, or an      the end, with a warning: a manifest after it is made soon
      earlier number

An object may end with a seal, which `bucket` checks with the key of the service. Without the key it is cut off here.

A part is a header of 96 bytes and frames; a manifest 24 bytes, a JSON object and a JSON array. Integers are
little-endian.

    part        0 "TPCP", u16 version 1, u16 kind (1 frames, 2 fence, 3 end), u64 number, u64 term, 16 bytes,
                u64 first frame, u64 last frame (first - 1 if there is none), 16 bytes, u64 length of the frames,
                8 bytes, u64 XXH3-64 of the 88 bytes before
    manifest    0 "TPCM", u32 version 1, u64 length of the object, u64 XXH3-64 of everything after these 24 bytes
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

from pyspark_topics import catalog as catalogs
from pyspark_topics import seal
from pyspark_topics.bucket import AHEAD, REMEDY, Bucket, Extent, ObjectFile
from pyspark_topics.catalog import ABSENT, Catalog
from pyspark_topics.errors import CorruptFile, NotADataDirectory, Trimmed, UnknownFormat, log, tell
from pyspark_topics.logfile import LogFile
from pyspark_topics.options import SERVICE, BadOption, Topics
from pyspark_topics.seal import Unsealed
from pyspark_topics.xxh3 import digest

FORMAT = VERSION = 1
CHUNK_BYTES = 4 << 20
RUN_BYTES = 4 << 20
"""Small parts are read together, as one file, up to this size."""
FRAMES, FENCE, END = 1, 2, 3
PART = struct.Struct("<4sHHQQ16xQQ16xQ8xQ")
assert PART.size == 96
MANIFEST = struct.Struct("<4sIQQ")
_NUMBER = re.compile(r"\d{20}")
_STREAM = re.compile(r"\d{20}-[0-9a-f]{16}", re.ASCII)


def shards(url: str, key_file: str = "") -> list[ReplicaShard]:
    """The shards of a service in a bucket. Raises `NotADataDirectory`, `BucketError`, `Unsealed`, `BadOption`."""
    bucket = Bucket(url if "://" in url else str(Path(url).absolute()), key_file=key_file)
    name = f"{bucket.shown}/{SERVICE}"
    try:
        about = json.loads(seal.clear(bucket.get(SERVICE), name))
        version, service, count = about["format"], int(about["service"]), int(about["shards"])
    except FileNotFoundError:
        raise NotADataDirectory(
            f"{bucket.shown} holds no service: there is no {SERVICE}, or no such bucket; give load() the service's "
            "TOPICS_BUCKET, with its prefix"
        ) from None
    except (NotADataDirectory, Unsealed, BadOption):
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise NotADataDirectory(f"{name} is damaged ({error!r}); put it back") from error
    if version != FORMAT:
        raise NotADataDirectory(f"{name}: format {version!r}, known here: {FORMAT}; update pyspark_topics")
    return [ReplicaShard(number, Bucket(bucket.url, service, key_file), count) for number in range(count)]


class Part(NamedTuple):
    """A part of the log, without its frames."""

    name: str
    kind: int
    first_no: int
    last_no: int
    length: int


class Damaged(Exception):
    """An object is not what its format says. The message says why."""


def part(raw: bytes, name: str) -> Part:
    """A part from its object. The frames have their own checksums. Raises `Damaged`, `UnknownFormat`,
    `NotADataDirectory`."""
    if len(raw) < PART.size:
        raise Damaged(f"{len(raw)} bytes, too short for a part of a log")
    magic, version, kind, number, _, first_no, last_no, length, checksum = PART.unpack_from(raw)
    if magic != b"TPCP":
        seal.clear(raw, name)
    if magic != b"TPCP" or digest(raw[: PART.size - 8]) != checksum:
        raise Damaged("its header is damaged (magic or checksum)")
    if version != VERSION or kind not in (FRAMES, FENCE, END):
        raise UnknownFormat(f"{name}: version {version}, kind {kind}, known here: {VERSION}; update pyspark_topics")
    sizes = (PART.size + length, PART.size + length + seal.SIZE)
    if not name.endswith(f"/{number:020d}") or len(raw) not in sizes:
        raise Damaged(f"{len(raw)} bytes, but the header is of part {number} with {length} bytes of frames")
    return Part(name, kind, first_no, last_no, length)


class Manifest(NamedTuple):
    number: int
    first_part: int
    catalog: int
    streams: list[Any]
    files: dict[str, Any]


def manifest(raw: bytes, name: str) -> Manifest:
    """A manifest from its object. Raises `Damaged`, `UnknownFormat`, `NotADataDirectory`."""
    if len(raw) < MANIFEST.size:
        raise Damaged(f"{len(raw)} bytes, too short for a manifest")
    magic, version, size, checksum = MANIFEST.unpack_from(raw)
    body = seal.clear(raw, name)[MANIFEST.size :]
    if magic != b"TPCM" or digest(body) != checksum:
        raise Damaged("it is damaged (magic or checksum)")
    if version != VERSION:
        raise UnknownFormat(f"{name}: manifest version {version}, known here: {VERSION}; update pyspark_topics")
    try:
        head, files = json.loads(body[:size]), json.loads(body[size:])
        found = Manifest(head["part"], head["first_part"], head["catalog"], head["streams"], {f[0]: f for f in files})
        fit = [_STREAM.fullmatch(each) and 0 <= most <= len(sums) * CHUNK_BYTES for each, most, sums in found.streams]
        number = int(name.rpartition("/")[2])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise Damaged(f"not a manifest: {error!r}") from error
    if not all(fit) or found.number != number or not 1 <= found.first_part <= number + 1:
        raise Damaged("not a manifest: its streams or numbers are none of a service")
    return found


@dataclass(frozen=True, slots=True)
class ReplicaShard:
    """One of `of` shards of a service in a bucket."""

    number: int
    bucket: Bucket
    of: int
    state: ClassVar = "manifest"

    @property
    def prefix(self) -> str:
        return f"shard-{self.number:02d}"

    @property
    def path(self) -> str:
        return f"{self.bucket.shown}/{self.prefix}"

    def may_hold(self, topics: Topics) -> bool:
        """A topic is in the shard that its name says. So the log of another shard need not be read."""
        return not topics.names or any(digest(name.encode()) % self.of == self.number for name in topics.names)

    def snapshot(self, fail: bool) -> ReplicaSnapshot:
        """Raises as `Place.snapshot`."""
        problems: list[str] = []
        for name in sorted(self._numbered("manifests"), reverse=True):
            try:
                found = manifest(self.bucket.keep(name), f"{self.bucket.shown}/{name}")
                read = ReplicaSnapshot(self, found, self._catalog(found))
            except (Damaged, CorruptFile) as error:
                problems.append(f"{self.bucket.shown}/{name}: {error}")
                continue
            if problems:
                log.warning("%s: read %s instead of %s", self.path, name, "; ".join(problems))
            return read
        if problems:
            raise CorruptFile(f"{self.path}: no manifest can be read: {'; '.join(problems)}{REMEDY}")
        if (parts := self._numbered("log")) and min(parts) != f"{self.prefix}/log/{1:020d}":
            raise CorruptFile(f"{self.path}: there is no manifest, and the log begins with {min(parts)}{REMEDY}")
        return ReplicaSnapshot(self, Manifest(0 if parts else ABSENT, 1, 0, [], {}), Catalog())

    def _numbered(self, folder: str) -> list[str]:
        found = self.bucket.list(f"{self.prefix}/{folder}")
        return [name for name in found if _NUMBER.fullmatch(name.rpartition("/")[2])]

    def has(self, found: Manifest) -> bool:
        """Whether a manifest is still there. An empty one stands for none."""
        return not found.files or f"{self.prefix}/manifests/{found.number:020d}" in self._numbered("manifests")

    def _catalog(self, found: Manifest) -> Catalog:
        """Raises `Damaged`, `UnknownFormat`."""
        name = f"catalog-{found.catalog:020d}.cbor"
        raw = b"".join(self.bucket.keep(*extent) for extent in extents(self, found, name))
        decoded = catalogs.decode(raw, PurePosixPath(name))
        if isinstance(decoded, str):
            raise Damaged(f"its {name}: {decoded}")
        return decoded


def extents(shard: ReplicaShard, found: Manifest, path: str) -> tuple[Extent, ...]:
    """Where the bytes of a file of a manifest are; none if it has no such file. Raises `CorruptFile`."""
    if (about := found.files.get(path)) is None:
        return ()
    try:
        _, stream, offset, size, *_ = about
        name, most, _ = found.streams[stream]
        fits = min(stream, offset, size) >= 0 and size <= most - offset and type(offset) is type(size) is int
    except (ValueError, TypeError, IndexError):
        fits = False
    if not fits:
        raise CorruptFile(f"{shard.path}/{path}: manifest {found.number} puts it where no bytes of it are{REMEDY}")
    folder = f"{shard.prefix}/checkpoints/{name}"
    made = []
    while size:
        chunk, at = divmod(offset, CHUNK_BYTES)
        here = min(size, CHUNK_BYTES - at)
        made.append(Extent(f"{folder}/{chunk:06d}", at, here))
        offset, size = offset + here, size - here
    return tuple(made)


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """A manifest with its catalog."""

    shard: ReplicaShard
    manifest: Manifest
    catalog: Catalog

    @property
    def number(self) -> int:
        return self.manifest.number

    def segment(self, name: str, cold: bool) -> ObjectFile:
        path = f"cold/{name}" if cold else name
        index = f"{path.removesuffix('.data')}.idx"
        shard, found = self.shard, self.manifest
        shown = f"{shard.path}/{path}"
        return ObjectFile(shard.bucket, shown, extents(shard, found, path), extents(shard, found, index))

    def logs(self, fail: bool) -> list[LogFile]:
        found = []
        for run in _runs(self._following(fail)):
            places = tuple(Extent(each.name, PART.size, each.length) for each in run)
            file = ObjectFile(self.shard.bucket, f"{self.shard.bucket.shown}/{run[0].name}", places)
            found.append(LogFile(file, run[0].first_no, run[-1].last_no + 1, fail=fail))
        return found

    def _following(self, fail: bool) -> Iterator[Part]:
        """The parts with frames behind the catalog, without holes. If damage is skipped, some may be missing. Raises
        `Trimmed`, and as `_parts`."""
        frame_no = self.catalog.frame_no
        next_no: int | None = None
        begun = False
        for each in self._parts(fail):
            if each is None:
                begun, next_no = True, None
                continue
            if each.kind != FRAMES:
                continue
            if not begun and not self.manifest.files and each.first_no > 1:
                raise CorruptFile(
                    f"{self.shard.path}: the service has not copied a checkpoint yet, and its log begins with frame "
                    f"{each.first_no}; try again when `topics replica status` shows a manifest"
                )
            if not begun and each.first_no > frame_no + 1:
                raise Trimmed(f"{each.name} begins with frame {each.first_no}, the catalog ends at frame {frame_no}")
            if next_no is not None and each.first_no != next_no:
                about = f"it begins with frame {each.first_no}, where frame {next_no} should follow"
                log.warning("%s/%s: %s; read up to there", self.shard.bucket.shown, each.name, about)
                return
            begun, next_no = True, each.last_no + 1
            if each.last_no > frame_no:
                yield each

    def _parts(self, fail: bool) -> Iterator[Part | None]:
        """The parts from the first one that a restore needs, in order. None for one that is damaged or missing, if
        damage is skipped. Raises `CorruptFile`, `UnknownFormat`, `FileNotFoundError`."""
        number = self.manifest.first_part
        with ThreadPoolExecutor(AHEAD) as threads:
            while True:
                numbers = range(number, number + AHEAD)
                read = list(threads.map(self._read, numbers))
                for at, (each, raw) in enumerate(zip(numbers, read, strict=True)):
                    if raw is None and (each <= self.number or any(read[at:])):
                        raw = self._read(each)  # it may have been made meanwhile
                    elif raw is None:
                        return
                    yield self._part(each, raw, fail)
                number += AHEAD

    def _name(self, number: int) -> str:
        return f"{self.shard.prefix}/log/{number:020d}"

    def _read(self, number: int) -> bytes | Unsealed | None:
        try:
            return self.shard.bucket.keep(self._name(number))
        except FileNotFoundError:
            return None
        except Unsealed as error:
            return error

    def _part(self, number: int, raw: bytes | Unsealed | None, fail: bool) -> Part | None:
        name = self._name(number)
        shown = f"{self.shard.bucket.shown}/{name}"
        try:
            if raw is None and not self.shard.has(self.manifest):
                raise FileNotFoundError(2, "retention removed it, with the manifest that needs it", shown)
            if raw is None:
                raise Damaged("it is missing")
            if isinstance(raw, Unsealed):
                raise raw
            return part(raw, name)
        except UnknownFormat as error:
            raise UnknownFormat(f"{self.shard.bucket.shown}/{error}") from None
        except Damaged as error:
            tell(CorruptFile(f"{shown}: {error}{REMEDY}"), fail)
            return None
        except Unsealed as error:
            tell(error, fail)
            return None


def _runs(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Parts that follow each other, together up to `RUN_BYTES`, or a single one."""
    run: list[Part] = []
    size = 0
    for each in parts:
        if run and (size + each.length > RUN_BYTES or each.first_no != run[-1].last_no + 1):
            yield run
            run, size = [], 0
        run.append(each)
        size += each.length
    if run:
        yield run
