"""Checkpoint files: uploads what the newest catalog of a shard names, and leaves out what the bucket has already.

1  choose   the newest catalog on the disk, C
2  compare  each file that C names with the last manifest: the same `version` means the same content
3  upload   the other files, and C, as a stream of chunks
4  look     after each file: is the newest catalog still C or the one after it? Only then the file is as C needs it, see
            docs/format.md, "What is written, changed and removed when". Otherwise begin again with the newest catalog;
            the files that were uploaded before are known now

The caller then waits until all frames up to `Uploaded.upto_no` are shipped, and creates the manifest. If the process
dies before, nothing refers to the stream, and retention removes it after a day.

A file of a damaged topic may be missing or short. It is left out, and a restore has the topic damaged as it is here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xxhash
from msgspec import Struct

from shardd.errors import ShardError
from shardd.replication.manifests import CHUNK_BYTES, File, Head, ManifestError, Stream
from shardd.replication.names import ShardNames
from shardd.replication.store import Store, settle
from shardd.storage import catalog
from shardd.storage.disk import Disk

COLD = "cold/"
ATTEMPTS = 20
LIVE_SHARE = 0.5
"""Files of a stream that is used by less than this share are uploaded again, so that the stream can be removed."""


Persist = Callable[[Callable[[], None]], object]


class Outrun(ShardError):
    """Checkpoints were made faster than their files could be uploaded."""


class Uploaded(Struct):
    """The files of one catalog, all of them in the bucket."""

    number: int
    frame_no: int
    upto_no: int
    """The last frame whose records may be in the files, and the latest time of one in ms."""
    upto_ms: int
    files: list[File]
    streams: list[Stream]
    uploaded_bytes: int


class Known(Struct):
    """The files in the bucket: those of the last manifest, and those that were uploaded since."""

    files: dict[str, File] = {}
    streams: list[Stream] = []

    @classmethod
    def of(cls, head: Head, files: list[File]) -> Known:
        live = [0] * len(head.streams)
        for each in files:
            live[each.stream] += each.size
        worth = [used >= LIVE_SHARE * stream.size for used, stream in zip(live, head.streams, strict=True)]
        return cls({each.path: each for each in files if worth[each.stream] and each.version}, list(head.streams))


class Uploader:
    def __init__(self, store: Store, names: ShardNames, disk: Disk, path: Path, cold: Path | None) -> None:
        self._store = store
        self._names = names
        self._disk = disk
        self._path = path
        self._cold = cold
        self.left_out: list[str] = []
        """Files that could not be read."""

    def upload(self, known: Known, position: Callable[[], tuple[int, int]], persist: Persist) -> Uploaded | None:
        """Upload the newest catalog and its files. Returns None if there is no catalog.

        `position` returns the number of the last frame and the time in ms. `persist` runs a call to the store until it
        is answered. Blocks. Raises `Outrun`, `CatalogError`, OSError: `known` has the files that were uploaded. Also
        raises `ManifestError` and what `persist` raises: `known` cannot be used any more then.
        """
        stream = _Stream(self._store, self._names, position()[1], persist)
        known.streams.append(Stream("", 0, []))
        try:
            for _ in range(ATTEMPTS):
                numbers = catalog.numbers(self._disk, self._path)
                if not numbers:
                    return None
                upto_no, upto_ms = position()
                found = self._files(numbers[-1], known, stream)
                if found is not None:
                    break
            else:
                raise Outrun(
                    "checkpoints are made faster than their files reach the bucket; raise TOPICS_CHECKPOINT_BYTES"
                )
        finally:
            stream.end()
            known.streams[-1] = stream.described()
        files, streams = _used(found[1], known.streams)
        return Uploaded(numbers[-1], found[0], upto_no, upto_ms, files, streams, stream.size)

    def _files(self, number: int, known: Known, stream: _Stream) -> tuple[int, list[File]] | None:
        """The catalog's position, and its files. Returns None if the files have been changed for a later catalog."""
        name = catalog.file_name(number)
        try:
            raw = self._disk.read(self._path / name)
        except FileNotFoundError:
            return None
        self.left_out = []
        index = len(known.streams) - 1
        first = self._add(stream, index, name, "", len(raw))
        if first is None:
            return None
        found, frame_no = [first], 0
        for entry in catalog.topics_of(raw):
            if isinstance(entry, int):
                frame_no = entry
                continue
            for path, size, version in _named(entry):
                file = known.files.get(path)
                if file is None or file.version != version or not version:
                    file = self._add(stream, index, path, version, size)
                    if not self._valid(number):
                        return None
                    if file is None:
                        self.left_out.append(path)
                        continue
                    known.files[path] = file
                found.append(file)
        return (frame_no, found) if self._valid(number) else None

    def _valid(self, number: int) -> bool:
        """True while no checkpoint has changed what catalog `number` names."""
        return catalog.numbers(self._disk, self._path)[-1] <= number + 1

    def _add(self, stream: _Stream, index: int, path: str, version: str, size: int | None) -> File | None:
        """Add `size` bytes of a file to the stream, all if None. Returns None if they are not there."""
        base = self._cold if path.startswith(COLD) else self._path
        if base is None:
            return None
        source = base / path.removeprefix(COLD)
        digest, offset, at = xxhash.xxh3_64(), stream.size, 0
        try:
            wanted = self._disk.size(source) if size is None else size
            # Read, not mapped: bytes after those that count may be cut off meanwhile.
            while at < wanted and (data := self._disk.read_part(source, at, min(CHUNK_BYTES, wanted - at))):
                at += len(data)
                digest.update(data)
                stream.add(data)
        except OSError:
            return None
        if at < wanted and size is not None:
            return None
        return File(path, index, offset, at, digest.intdigest(), version)


def _named(entry: dict[str, Any]) -> Iterator[tuple[str, int | None, str]]:
    """Path, size and version of the files that a topic's catalog entry names. A size of None: the whole file, of which
    as much counts as describes the data."""
    checks = entry.get("checks") or [None] * len(entry["segments"])
    folder = f"topics/{entry['id']:016x}"
    for (first_seq, size, _, _, cold), check in zip(entry["segments"], checks, strict=True):
        name = f"{COLD if cold else ''}{folder}/seg-{first_seq:020d}"
        version = "" if check is None else f"{size:x}.{check:x}"
        yield f"{name}.data", size, version
        yield f"{name}.idx", None, version
    for frame_no, size in entry.get("held", ()):
        yield f"{folder}/held-{frame_no:020d}.log", size, f"{size:x}"


def _used(files: list[File], streams: list[Stream]) -> tuple[list[File], list[Stream]]:
    """The files with the streams that they are in, and no others."""
    order = sorted({each.stream for each in files})
    place = {stream: at for at, stream in enumerate(order)}
    moved = [File(e.path, place[e.stream], e.offset, e.size, e.checksum, e.version) for e in files]
    return moved, [streams[at] for at in order]


class _Stream:
    """A stream that grows, chunk by chunk. It holds less than a chunk, and the one that is being created."""

    def __init__(self, store: Store, names: ShardNames, now_ms: int, persist: Persist) -> None:
        self.name = f"{now_ms:020d}-{secrets.token_hex(8)}"
        self.size = 0
        self._store = store
        self._names = names
        self._persist = persist
        self._chunks: list[int] = []
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        while self._waiting_bytes >= CHUNK_BYTES:
            joined = b"".join(self._waiting)
            self._create(joined[:CHUNK_BYTES])
            self._waiting = [joined[CHUNK_BYTES:]]
            self._waiting_bytes = len(self._waiting[0])

    def end(self) -> None:
        """Create the last chunk."""
        if self._waiting_bytes:
            self._create(b"".join(self._waiting))
            self._waiting, self._waiting_bytes = [], 0

    def described(self) -> Stream:
        return Stream(self.name, self.size, list(self._chunks))

    def _create(self, data: bytes) -> None:
        name = self._names.chunk(self.name, len(self._chunks))

        def create() -> None:
            # An attempt whose answer did not come may have made it: no other stream has this name.
            if settle(self._store, name, data) != data:
                raise ManifestError(f"{name} is there with other bytes, although only this process knew the name")

        self._persist(create)
        self._chunks.append(xxhash.xxh3_64_intdigest(data))
