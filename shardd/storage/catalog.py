"""The catalog: the state of a shard except payloads, as of a position in its log.

    catalog-<n, 20 digits>.cbor

    offset  size  field
         0     4  magic     b"TPCC"
         4     4  version   FORMAT_VERSION, or HELD_VERSION
         8     8  length    bytes of the CBOR that follows
        16     8  checksum  XXH3-64 of it
        24        CBOR map: owner, number, frame_no, tail, next_id, id_sum, topics, sessions, logs

A catalog is valid iff the magic is right, `length` bytes follow the header, and their checksum is `checksum`.

It is written to `.cbor.tmp`, synced and renamed; then the directory is synced. The catalog before it stays until the
next one is durable, with every file that it refers to. So if the newest catalog is damaged, recovery uses the one
before and replays more of the log.

Found on disk                                  decision
no catalog                                     start from the log's beginning
the newest is valid                            use it
the newest is not valid, the one before is     use that one, set the newest apart
none is valid                                  REFUSE
a valid one of another version                 REFUSE
a valid one of another shard or service, or
  that was made under another number           REFUSE
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from errno import EIO, ENOSPC
from io import BytesIO
from pathlib import Path
from typing import Any

import cbor2
import xxhash

from proto.format.buffer import Buffer
from proto.format.frame import FORMAT_VERSION
from shardd.errors import ShardError
from shardd.storage.disk import Disk
from shardd.storage.lost import set_apart
from shardd.storage.owner import Owner

MAGIC = b"TPCC"
HEAD = struct.Struct("<4sIQQ")
assert HEAD.size == 24
PIECES = 256
"""Number of encoded pieces that are joined into one chunk."""
HELD_VERSION = 2
"""Version of a catalog with held frames of topics that cannot be read. Earlier releases, which would lose these
frames, refuse it."""
ABOUT = 256
"""`owner` and `number` are within so many bytes."""
LACKS = "its segments do not add up to what was written to it: records are missing, or others are in their place"
TOPICS_LACK = "the ids of its topics do not add up: topics are missing, or others are in their place"
LACKS_REMEDY = "look in lost+found, or restore the shard from a backup: see operations.md"
STRANGE = (cbor2.CBORDecodeError, LookupError, TypeError, ValueError, RecursionError)
"""What the decoding of a catalog raises that no shard has written."""
SUMS = 1 << 64
"""Sums are modulo this."""


class CatalogError(ShardError):
    """No catalog is valid, its version is not known, it is not of this shard, or would lack records. No catalog was
    changed."""


def file_name(number: int) -> str:
    return f"catalog-{number:020d}.cbor"


def _head(major: int, count: int) -> bytes:
    """The CBOR head of an array (`major` 4) or a map (5) with `count` items."""
    head = BytesIO()
    cbor2.CBOREncoder(head).encode_length(major, count)
    return head.getvalue()


def array(items: list[bytes]) -> list[bytes]:
    """A CBOR array of encoded items, as pieces to be joined."""
    return [_head(4, len(items)), *items]


def write(
    disk: Disk, directory: Path, number: int, contents: dict[str, list[bytes]], version: int = FORMAT_VERSION
) -> int:
    """Write, sync and rename a catalog. It is durable once the caller has synced the directory.

    `contents` maps names to encoded values in pieces: encoding a large catalog in one call would keep every other
    thread waiting. Returns the file's size in bytes. Blocks. Raises OSError, and then the catalog does not exist.
    """
    pieces = [_head(5, len(contents))]
    for name, value in contents.items():
        pieces += (cbor2.dumps(name), *value)
    chunks = [b"".join(pieces[at : at + PIECES]) for at in range(0, len(pieces), PIECES)]
    digest = xxhash.xxh3_64()
    for chunk in chunks:
        digest.update(chunk)
    size = sum(map(len, chunks))
    raw = [HEAD.pack(MAGIC, version, size, digest.intdigest()), *chunks]
    path = directory / file_name(number)
    temporary = path.with_suffix(".cbor.tmp")
    try:
        with closing(disk.create(temporary)) as file:
            if file.write(raw) != HEAD.size + size:
                raise OSError(ENOSPC, "the disk did not take the whole catalog", str(path))
            file.sync()
        disk.replace(temporary, path)
    except OSError:
        with suppress(OSError):  # the next start removes it
            disk.remove(temporary)
        raise
    return HEAD.size + size


def numbers(disk: Disk, directory: Path) -> list[int]:
    """Numbers of the catalogs in `directory`, oldest first."""
    names = [name for name in disk.list(directory) if name.startswith("catalog-") and name.endswith(".cbor")]
    return [int(name[8:-5]) for name in names if name[8:-5].isdecimal()]


def mismatch(number: int, contents: Mapping[str, Any], owner: Owner) -> str:
    """Why a valid catalog with this number in its name is not one of `owner`; empty if it may be. Catalogs of older
    releases do not say."""
    wrong = owner.mismatch(Owner(*contents.get("owner", ())))
    if not wrong and contents.get("number", number) != number:
        wrong = f"was made as catalog {contents['number']}, at another time"
    return wrong


def misplaced(disk: Disk, directory: Path, number: int, owner: Owner) -> bool:
    """True if the whole beginning of catalog `number` says that it is of another shard or another time. Blocks. Raises
    OSError."""
    raw = disk.read_part(directory / file_name(number), 0, ABOUT)
    if raw[:4] != MAGIC:
        return False
    decoder = cbor2.CBORDecoder(BytesIO(raw[HEAD.size + 1 :]), read_size=1)
    try:
        about = {decoder.decode(): decoder.decode() for _ in range(2)}
        return bool(mismatch(number, about, owner))
    except (cbor2.CBORDecodeError, TypeError):
        return False  # it is cut or damaged


def load(
    disk: Disk, directory: Path, owner: Owner | None = None, apart: list[Path] | None = None
) -> tuple[int, dict[str, Any]] | None:
    """Number and contents of the newest valid catalog; None if there is no catalog. Raises `CatalogError`, also if it
    is not one of `owner`; OSError.

    Removes `.tmp` files. Sets catalogs apart that are newer than the one returned, and adds their paths to `apart`.
    """
    owner = owner or Owner()
    for name in disk.list(directory):
        if name.endswith(".tmp"):
            disk.remove(directory / name)
    found = numbers(disk, directory)
    problems = []
    for number in reversed(found):
        path = directory / file_name(number)
        try:
            problem, contents = _read(disk.read(path))
        except CatalogError as error:
            raise CatalogError(f"{path}: {error}") from None
        except OSError as error:
            if error.errno != EIO:
                raise
            problem, contents = "not readable", None
        if contents is not None:
            wrong = mismatch(number, contents, owner)
            if wrong:
                raise CatalogError(f"{path} {wrong}. Put the right file back, or restore the shard from a backup")
            for newer in found[found.index(number) + 1 :]:
                damaged = directory / file_name(newer)
                set_apart(disk, directory, damaged)
                if apart is not None:
                    apart.append(damaged)
            return number, contents
        problems.append(f"{path}: {problem}")
    if problems:
        raise CatalogError("no catalog can be read: " + "; ".join(problems))
    return None


def lacks(entry: Mapping[str, Any]) -> bool:
    """True if the batches in a topic's segments are certainly not those that were added to it and did not leave, by
    their sums. Entries of older releases have none."""
    return "sum" in entry and (entry["sum"] - sum(each or 0 for each in entry["sums"])) % SUMS != 0


def column(entry: Mapping[str, Any], name: str, rows: str = "segments") -> list[Any]:
    """What a topic's entry has under `name` for each of its `rows`; None for each, if an older release wrote it."""
    return entry.get(name) or [None] * len(entry.get(rows, ()))


def lacking(raw: Buffer) -> list[str]:
    """What a catalog file certainly lacks, by its sums. Raises `CatalogError` if the file is not whole, or no catalog:
    others may have written it."""
    try:
        problem, contents = _read(raw)
        if contents is None:
            raise CatalogError(f"the catalog is {problem or 'no map'}")
        problems = [f'topic "{entry["name"]}": {LACKS}' for entry in contents["topics"] if lacks(entry)]
        ids = sum(entry["id"] for entry in contents["topics"])
    except STRANGE as error:
        raise CatalogError(f"the catalog has other content than a shard writes: {error!r}") from None
    return [*problems, TOPICS_LACK] if contents.get("id_sum", ids) != ids else problems


def topics_of(raw: Buffer) -> Iterator[dict[str, Any] | int]:
    """First the `frame_no` of a catalog file, then the entry of each topic, decoded one by one: decoding a large
    catalog in one call would keep every other thread waiting. Raises `CatalogError` if the file is not whole."""
    problem = _problem(raw)
    if problem:
        raise CatalogError(f"the catalog is {problem}")
    file = BytesIO(memoryview(raw)[HEAD.size :])
    decoder = cbor2.CBORDecoder(file, read_size=1)
    for _ in range(_items(file)):
        name = decoder.decode()
        if name == "topics":
            for _ in range(_items(file)):
                yield decoder.decode()
        else:
            value = decoder.decode()
            if name == "frame_no":
                yield value


def _items(file: BytesIO) -> int:
    """The number of items in the head of the array or map that follows, see `_head`."""
    low = file.read(1)[0] & 31
    return low if low < 24 else int.from_bytes(file.read(1 << (low - 24)), "big")


def _problem(raw: Buffer) -> str:
    """Why a catalog file is not whole; empty if it is. Raises `CatalogError` for an unknown version."""
    if len(raw) < HEAD.size:
        return f"{len(raw)} bytes, too short"
    magic, version, length, checksum = HEAD.unpack_from(raw)
    body = memoryview(raw)[HEAD.size :]
    if magic != MAGIC or length != len(body) or xxhash.xxh3_64_intdigest(body) != checksum:
        return "not whole (magic, length or checksum)"
    if version not in (FORMAT_VERSION, HELD_VERSION):
        raise CatalogError(
            f"catalog format version {version}, this release reads up to version {HELD_VERSION}: use the release that "
            "wrote it"
        )
    return ""


def _read(raw: Buffer) -> tuple[str, dict[str, Any] | None]:
    problem = _problem(raw)
    if problem:
        return problem, None
    contents = cbor2.loads(memoryview(raw)[HEAD.size :])
    return "", contents if isinstance(contents, dict) else None
