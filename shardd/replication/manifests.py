"""Manifests: what a restore needs, as of a part of the log.

    offset  size  field
         0     4  magic     b"TPCM"
         4     4  version   1
         8     8  head_len  bytes of the head
        16     8  checksum  XXH3-64 of everything behind these 24 bytes
        24        the head, a JSON object (`Head`), then the files, a JSON array of arrays (`File`)

A manifest names the files of a catalog of the shard: the catalog, and the segments and held files that it names, each
as it may be read with that catalog. A checkpoint's files are in **streams**: the files of one upload, end to end, cut
into chunks of `CHUNK_BYTES`. The bytes [offset, offset + size) of a stream are in the chunks from number
offset // CHUNK_BYTES on. A file that is the same as in the manifest before stays in the stream that has it.

A restore takes the files, and then frames of the parts from `first_part` on. It has to take them up to frame `upto_no`
at least: records up to there may be in segments. Part `part` has that frame, so a manifest is never ahead of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import xxhash
from msgspec import Struct

from proto.format.frame import Buffer
from shardd.replication.names import ShardNames, number_of
from shardd.replication.store import Store

MAGIC = b"TPCM"
VERSION = 1
_START = struct.Struct("<4sIQQ")
assert _START.size == 24
CHUNK_BYTES = 4 << 20
HEAD_GUESS = 16 << 10
"""Bytes that are read to get a head; it is read again if it is longer."""


class ManifestError(Exception):
    """A manifest is not valid. The message says why."""


class File(Struct, array_like=True, frozen=True, gc=False):
    path: str
    """Relative to the shard's directory; `cold/…` relative to the one in the cold folder."""
    stream: int
    """Index in `Head.streams`."""
    offset: int
    size: int
    checksum: int
    """XXH3-64 of the file."""
    version: str
    """Equal for two states of the same file only if these are the same. Empty: never."""


class Stream(Struct, array_like=True, frozen=True):
    name: str
    size: int
    chunks: list[int]
    """XXH3-64 of each chunk."""


class Head(Struct, frozen=True):
    part: int
    """The part that it is as of."""
    term: int
    nonce: str
    """Of the process that created it, in hexadecimal digits."""
    lineage: str
    """Of the data directory whose files these are, see `attach`."""
    first_part: int
    """The first part that a restore needs."""
    frame_no: int
    """The catalog's position in the log."""
    upto_no: int
    """The last frame whose records may be in the files."""
    upto_ms: int
    """No record in the files is later, ms since 1970."""
    catalog: int
    """The catalog's number."""
    streams: list[Stream]


_files = msgspec.json.Decoder(list[File])
_head = msgspec.json.Decoder(Head)


def encode(head: Head, files: list[File]) -> bytes:
    encoded = msgspec.json.encode(head)
    body = encoded + msgspec.json.encode(files)
    return _START.pack(MAGIC, VERSION, len(encoded), xxhash.xxh3_64_intdigest(body)) + body


def decode(data: Buffer) -> tuple[Head, list[File]]:
    """Head and files of a whole manifest. Raises `ManifestError`."""
    size, checksum = _start(data)
    body = memoryview(data)[_START.size :]
    if len(body) < size or xxhash.xxh3_64_intdigest(body) != checksum:
        raise ManifestError("it was changed (checksum)")
    return _head.decode(body[:size]), _files.decode(body[size:])


def _start(data: Buffer) -> tuple[int, int]:
    if len(data) < _START.size:
        raise ManifestError(f"{len(data)} bytes, too short for a manifest")
    magic, version, size, checksum = _START.unpack_from(data)
    if magic != MAGIC:
        raise ManifestError("this is no manifest (magic)")
    if version != VERSION:
        raise ManifestError(f"format version {version}, this release reads version {VERSION}")
    return size, checksum


def read_head(store: Store, name: str) -> Head:
    """The head of a manifest, without its files. Raises `ManifestError`, `StoreError`."""
    data = store.get_range(name, 0, HEAD_GUESS)
    size, _ = _start(data)
    if len(data) < _START.size + size:
        data = store.get_range(name, 0, _START.size + size)
    try:
        return _head.decode(memoryview(data)[_START.size : _START.size + size])
    except msgspec.DecodeError as error:
        raise ManifestError(f"its head is damaged: {error}") from None


class Heads:
    """The heads of a shard's manifests, each read once."""

    def __init__(self, store: Store, names: ShardNames) -> None:
        self._store = store
        self._names = names
        self._heads: dict[int, Head] = {}

    def ordered(self) -> list[tuple[int, Head]]:
        """Number and head of each manifest, the newest last: the one with the most frames in its files. Raises
        `ManifestError`, `StoreError`."""
        found = numbers(self._store, self._names)
        self._heads = {number: self._heads.get(number) or self._read(number) for number in found}
        return sorted(self._heads.items(), key=lambda each: (each[1].frame_no, each[0]))

    def _read(self, number: int) -> Head:
        name = self._names.manifest(number)
        try:
            return read_head(self._store, name)
        except ManifestError as error:
            raise ManifestError(f"{name}: {error}") from None


def numbers(store: Store, names: ShardNames) -> list[int]:
    """Numbers of a shard's manifests, in order. Raises `StoreError`."""
    found = (number_of(each.name) for each in store.list(names.manifests))
    return [number for number in found if number is not None]


def pieces(names: ShardNames, stream: Stream, offset: int, size: int) -> Iterator[tuple[str, int, int]]:
    """The name of each chunk that has some of `size` bytes of a stream, with the place and number of these in it."""
    while size:
        chunk, at = divmod(offset, CHUNK_BYTES)
        here = min(size, CHUNK_BYTES - at)
        yield names.chunk(stream.name, chunk), at, here
        offset += here
        size -= here
