"""Browsing: reads a bucket without a shard, for `topics restore --from`, `topics replica verify` and `status`.

Reads are repeated for `PATIENCE` seconds, so that a bucket that is away for a moment fails nothing. Several are on
their way at once, `AHEAD` at most, since one answer takes much longer than its bytes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import xxhash

from proto.format.buffer import Buffer
from shardd.errors import ShardError
from shardd.replication import manifests, parts
from shardd.replication.attach import Mismatch, read_service
from shardd.replication.checkpoint_files import COLD
from shardd.replication.manifests import CHUNK_BYTES, File, Head, ManifestError, Stream
from shardd.replication.names import ShardNames, number_of
from shardd.replication.parts import HEADER_SIZE, Part, PartError
from shardd.replication.store import Absent, Store, StoreError, Unsealed
from shardd.storage.disk import Disk, write_all

PATIENCE = 20.0
PAUSE = 0.5
AHEAD = 8
_A = TypeVar("_A")
_B = TypeVar("_B")


class Damaged(ShardError):
    """An object is missing, or was changed. The message names it and what to do."""


class ManifestAt(NamedTuple):
    number: int
    head: Head
    files: list[File]


class Browser:
    """One shard's objects in a bucket. All methods block, and raise `StoreError` if the bucket does not answer."""

    def __init__(self, store: Store, names: ShardNames, threads: ThreadPoolExecutor) -> None:
        self.store = store
        self.names = names
        self._threads = threads

    def heads(self) -> Iterator[tuple[int, Head | str]]:
        """Number and head of each manifest, newest first, or what is wrong with it. The newest is the one with the most
        frames in its files; a damaged one has its place by its number."""
        numbers = patiently(lambda: manifests.numbers(self.store, self.names))
        found: list[tuple[int, int, Head | str]] = []
        frame_no = 0
        for number, head in zip(numbers, self._ahead(self._head_or_problem, numbers), strict=True):
            if isinstance(head, Head):
                frame_no = head.frame_no
            found.append((frame_no, number, head))
        for _, number, head in sorted(found, key=lambda each: each[:2], reverse=True):
            yield number, head

    def _head_or_problem(self, number: int) -> Head | str:
        try:
            return patiently(lambda: manifests.read_head(self.store, self.names, number))
        except (ManifestError, Absent, Unsealed) as error:
            return str(error)

    def manifest(self, number: int) -> ManifestAt:
        """Raises `Damaged`."""
        name = self.names.manifest(number)
        try:
            return ManifestAt(number, *manifests.decode(patiently(lambda: self.store.get(name)), number))
        except (ManifestError, Absent, Unsealed) as error:
            raise Damaged(
                f"{self.store.url}: {name}: {error}. Put the object back, or delete it so that the manifest before is "
                "used"
            ) from None

    def numbers(self, first: int) -> list[tuple[int, int]]:
        """Number and size of the parts from `first` on."""
        after = self.names.part(first - 1) if first > 1 else ""
        listed = patiently(lambda: list(self.store.list(self.names.log, after)))
        return [(number, each.size) for each in listed if (number := number_of(each.name)) is not None]

    def header(self, number: int) -> Part:
        """Raises `Damaged`."""
        name = self.names.part(number)
        return self._read(name, lambda: parts.header(self.store.get_range(name, 0, HEADER_SIZE), number))

    def headers(self, numbers: Iterable[int]) -> Iterator[Part]:
        """The headers of parts, in order, without those that are missing or were changed."""
        yield from (found for found in self._ahead(self._header_or_none, numbers) if found is not None)

    def _header_or_none(self, number: int) -> Part | None:
        try:
            return self.header(number)
        except Damaged:
            return None

    def parts(self, numbers: Iterable[int]) -> Iterator[tuple[Part, memoryview]]:
        """Header and frames of parts, in order. Raises `Damaged`."""
        yield from self._ahead(self.part, numbers)

    def part(self, number: int) -> tuple[Part, memoryview]:
        """Header and frames of a part. Raises `Damaged`."""
        name = self.names.part(number)
        return self._read(name, lambda: parts.decode(self.store.get(name), number))

    def chunks(self, streams: Iterable[Stream]) -> Iterator[str]:
        """Check every chunk of streams. Yields what is wrong."""
        wanted = [
            (self.names.chunk(stream.name, index), checksum, min(CHUNK_BYTES, stream.size - index * CHUNK_BYTES))
            for stream in streams
            for index, checksum in enumerate(stream.chunks)
        ]
        for problem in self._ahead(self._chunk_problem, wanted):
            if problem:
                yield problem

    def _chunk_problem(self, wanted: tuple[str, int, int]) -> str:
        name, checksum, size = wanted
        try:
            data = patiently(lambda: self.store.get(name))
        except Absent:
            return f"{self.store.url}: {name} is missing"
        except Unsealed as error:
            return str(error)
        if len(data) != size or xxhash.xxh3_64_intdigest(data) != checksum:
            return f"{self.store.url}: {name} was changed: {len(data)} bytes, checksum does not match"
        return ""

    def files(self, found: ManifestAt) -> Iterator[tuple[File, Iterator[Buffer]]]:
        """Each file of a manifest with its bytes, in pieces; take all pieces before the next file. Raises `Damaged`
        after the last piece of a file that was changed."""
        wanted = [
            (each, piece)
            for each in found.files
            for piece in manifests.pieces(self.names, found.head.streams[each.stream], each.offset, each.size)
        ]
        pieces = self._ahead(lambda one: self._piece(*one[1]), wanted)
        for file in found.files:
            stream = found.head.streams[file.stream]
            chunks = [name for name, _, _ in manifests.pieces(self.names, stream, file.offset, file.size)]
            yield file, self._checked(file, pieces, " or ".join(dict.fromkeys((*chunks[:1], *chunks[-1:]))))

    def copy_files(self, found: ManifestAt, disk: Disk, path: Path, cold: Path | None, sync: bool) -> Iterator[int]:
        """Write the files of a manifest below `path`, and those of a cold folder below `cold`. Yields the bytes of each
        piece. Raises `Damaged`, `Mismatch`, OSError."""
        made: set[Path] = set()
        for file, pieces in self.files(found):
            if file.path.startswith(COLD) and cold is None:
                raise Mismatch("the bucket has segments of a cold folder; set TOPICS_COLD_DIR to where they shall go")
            base = cold if file.path.startswith(COLD) and cold is not None else path
            target = base / file.path.removeprefix(COLD)
            if target.parent not in made:
                if not target.parent.resolve().is_relative_to(base.resolve()):
                    raise Damaged(f"{target.parent} leads out of {base}: remove the link")
                made.add(target.parent)
                disk.make_dir(target.parent)
            opened = disk.create(target)
            try:
                for piece in pieces:
                    write_all(opened, piece, target)
                    yield len(piece)
                if sync:
                    opened.sync()
            finally:
                opened.close()
        if sync:
            for folder in {parent for each in made for parent in (each, each.parent)}:
                disk.sync_dir(folder)

    def _checked(self, file: File, pieces: Iterator[Buffer], chunks: str) -> Iterator[Buffer]:
        digest, size = xxhash.xxh3_64(), 0
        while size < file.size:
            piece = next(pieces)
            digest.update(piece)
            size += len(piece)
            yield piece
        if digest.intdigest() != file.checksum:
            raise Damaged(
                f"{self.store.url}: {chunks}: {file.path} in it was changed (checksum). Put the chunk back that "
                "`topics replica verify` names, or restore --until a time before that checkpoint"
            )

    def _piece(self, name: str, offset: int, size: int) -> Buffer:
        data = self._read(name, lambda: self.store.get_range(name, offset, size))
        if len(data) != size:
            raise self._damaged(name, "it is too short")
        return data

    def _read(self, name: str, read: Callable[[], _A]) -> _A:
        """What the store answers, decoded. Raises `Damaged`."""
        try:
            return patiently(read)
        except (PartError, Absent, Unsealed) as error:
            raise self._damaged(name, error) from None

    def _damaged(self, name: str, problem: object) -> Damaged:
        return Damaged(
            f"{self.store.url}: {name}: {problem}. Put the object back, or restore --until a time before it; `topics "
            "replica verify` checks the others"
        )

    def _ahead(self, call: Callable[[_A], _B], values: Iterable[_A]) -> Iterator[_B]:
        """As `map`, with the next calls under way."""
        waiting: deque[Future[_B]] = deque()
        for value in values:
            waiting.append(self._threads.submit(call, value))
            if len(waiting) >= AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def patiently(call: Callable[[], _A]) -> _A:
    """Repeat a read while the store is away. Raises `StoreError`."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except Absent:
            raise
        except StoreError as error:
            if error.lasting or time.monotonic() > until:
                raise
        time.sleep(PAUSE)


def shards_of(store: Store) -> tuple[int, int]:
    """Number of shards and identity of the service in a bucket. Raises `Mismatch` if there is none, `StoreError`."""
    try:
        found = patiently(lambda: read_service(store))
    except Absent:
        raise Mismatch(f"{store.url} holds no service: it has no service.json. Check the prefix") from None
    return found.shards, found.service
