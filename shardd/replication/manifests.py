"""Manifests: what a restore needs, as of a part of the log.

    offset  size  field
         0     4  magic     b"TPCM"
         4     4  version   1
         8     8  head_len  bytes of the head
        16     8  checksum  XXH3-64 of everything after these 24 bytes
        24        the head, a JSON object (`Head`), then the files, a JSON array of arrays (`File`)

A manifest names the files of a catalog of the shard: the catalog, and the segments and held files that it names, each
as it may be read with that catalog. A checkpoint's files are in **streams**: the files of one upload, end to end, cut
into chunks of `CHUNK_BYTES`. The bytes [offset, offset + size) of a stream are in the chunks from number
offset // CHUNK_BYTES on. A file that is the same as in the manifest before stays in the stream that has it.

A restore takes the files, and then frames of the parts from `first_part` on. It has to take them up to frame `upto_no`
at least: records up to there may be in segments. Part `part` has that frame, so a manifest is never ahead of the log.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import xxhash
from msgspec import Struct

from proto.format.buffer import Buffer
from shardd.errors import ShardError
from shardd.replication.names import ShardNames, number_of
from shardd.replication.store import Absent, Store, Unsealed

MAGIC = b"TPCM"
VERSION = 1
_START = struct.Struct("<4sIQQ")
assert _START.size == 24
CHUNK_BYTES = 4 << 20
FILE_PATH = re.compile(
    r"catalog-\d{20}\.cbor|(?:cold/)?topics/[0-9a-f]{16}/(?:seg-\d{20}\.(?:data|idx)|held-\d{20}\.log)", re.ASCII
)
"""All that a manifest may name. Any other content is a damaged manifest, wherever the path leads."""
STREAM_NAME = re.compile(r"\d{20}-[0-9a-f]{16}", re.ASCII)
NUMBER_MOST = (1 << 63) - 1
HEAD_MOST = 64 << 20
HEAD_GUESS = 16 << 10
"""Bytes that are read to get a head; it is read again if it is longer."""


_T = TypeVar("_T")


class ManifestError(ShardError):
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
    encrypted: bool = False
    """Whether the chunks were encrypted when they were created."""


_files = msgspec.json.Decoder(list[File])
_head = msgspec.json.Decoder(Head)


def encode(head: Head, files: list[File]) -> bytes:
    encoded = msgspec.json.encode(head)
    body = encoded + msgspec.json.encode(files)
    return _START.pack(MAGIC, VERSION, len(encoded), xxhash.xxh3_64_intdigest(body)) + body


def decode(data: Buffer, number: int | None = None) -> tuple[Head, list[File]]:
    """Head and files of a whole manifest, which is to be that of part `number`. Raises `ManifestError`."""
    size, checksum = _start(data)
    body = memoryview(data)[_START.size :]
    if len(body) < size or xxhash.xxh3_64_intdigest(body) != checksum:
        raise ManifestError("it was changed (checksum)")
    head, files = _checked(_decoded(_head, body[:size]), number), _decoded(_files, body[size:])
    _check_files(head, files)
    return head, files


def _decoded(decoder: msgspec.json.Decoder[_T], data: memoryview) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"it is damaged: {error}") from None


def _checked(head: Head, number: int | None) -> Head:
    """The head, if its numbers fit. It may be made up: nothing is done with a number before this. Raises
    `ManifestError`."""
    numbers_ = (head.part, head.term, head.frame_no, head.upto_no, head.upto_ms, head.catalog)
    if number is not None and head.part != number:
        raise ManifestError(f"it is the manifest of part {head.part}")
    if not all(0 <= each <= NUMBER_MOST for each in numbers_) or not 1 <= head.first_part <= head.part + 1:
        raise ManifestError("a number in its head is out of range")
    if head.frame_no > head.upto_no:
        raise ManifestError(f"its catalog is as of frame {head.frame_no}, but its files end with {head.upto_no}")
    for stream in head.streams:
        fits = 0 <= stream.size <= NUMBER_MOST and len(stream.chunks) == -(-stream.size // CHUNK_BYTES)
        if not fits or not STREAM_NAME.fullmatch(stream.name):
            raise ManifestError(f"stream {stream.name[:60]!r}: {stream.size} bytes in {len(stream.chunks)} chunks")
        if not all(0 <= each < 1 << 64 for each in stream.chunks):
            raise ManifestError(f"stream {stream.name}: a checksum is out of range")
    return head


def _check_files(head: Head, files: list[File]) -> None:
    """Raises `ManifestError` for a file that no upload names so, or that is not in its stream."""
    for each in files:
        if not FILE_PATH.fullmatch(each.path):
            raise ManifestError(f"it names the file {each.path[:200]!r}, which no shard has")
        if not 0 <= each.stream < len(head.streams) or not 0 <= each.checksum < 1 << 64:
            raise ManifestError(f"{each.path}: its stream or checksum is out of range")
        if min(each.offset, each.size) < 0 or each.offset + each.size > head.streams[each.stream].size:
            raise ManifestError(f"{each.path}: bytes {each.offset} to {each.offset + each.size} are not in its stream")
    if len({each.path for each in files}) != len(files):
        raise ManifestError("it names a file twice")


def _start(data: Buffer) -> tuple[int, int]:
    if len(data) < _START.size:
        raise ManifestError(f"{len(data)} bytes, too short for a manifest")
    magic, version, size, checksum = _START.unpack_from(data)
    if magic != MAGIC:
        raise ManifestError("this is no manifest (magic)")
    if version != VERSION:
        raise ManifestError(
            f"format version {version}, this release reads version {VERSION}: use the release that wrote it"
        )
    return size, checksum


def read_head(store: Store, names: ShardNames, number: int) -> Head:
    """The head of a manifest, without its files. Raises `ManifestError`, `StoreError`."""
    name = names.manifest(number)
    try:
        data = store.get_range(name, 0, HEAD_GUESS)
        size, _ = _start(data)
        if len(data) < _START.size + size <= HEAD_MOST:
            data = store.get_range(name, 0, _START.size + size)
        return _checked(_decoded(_head, memoryview(data)[_START.size : _START.size + size]), number)
    except (ManifestError, Unsealed) as error:
        raise ManifestError(f"{name}: {error}") from None


class Heads:
    """The heads of a shard's manifests, each read once."""

    def __init__(self, store: Store, names: ShardNames) -> None:
        self._store = store
        self._names = names
        self._heads: dict[int, Head] = {}
        self.damaged: dict[int, str] = {}
        """Manifests that cannot be read, with what is wrong with them."""

    def ordered(self) -> list[tuple[int, Head]]:
        """Number and head of each manifest, the newest last: the one with the most frames in its files. Those that
        cannot be read are in `damaged` instead, and are read again the next time. Raises `StoreError`."""
        heads: dict[int, Head] = {}
        damaged: dict[int, str] = {}
        for number in numbers(self._store, self._names):
            try:
                heads[number] = self._heads.get(number) or read_head(self._store, self._names, number)
            except ManifestError as error:
                damaged[number] = str(error)
            except Absent:
                pass  # retention was faster
        self._heads, self.damaged = heads, damaged
        return sorted(heads.items(), key=lambda each: (each[1].frame_no, each[0]))


def look_for(store: Store, names: ShardNames, head: Head) -> None:
    """Look whether the chunks and parts that a manifest names are there. Raises `ManifestError` for the first that is
    not, `StoreError`."""
    for stream in head.streams:
        sizes = {each.name: each.size for each in store.list(f"{names.checkpoints}{stream.name}/")}
        for index in range(len(stream.chunks)):
            name, size = names.chunk(stream.name, index), min(CHUNK_BYTES, stream.size - index * CHUNK_BYTES)
            if sizes.get(name) != size:
                raise ManifestError(f"{name} is missing, or has not {size} bytes")
    expected = head.first_part
    for each in store.list(names.log, names.part(expected - 1)):
        number = number_of(each.name)
        if number is None:
            continue  # a stranger's
        if number > min(expected, head.part):
            break
        expected = number + 1
    if expected <= head.part:
        raise ManifestError(f"{names.part(expected)} is missing")


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
