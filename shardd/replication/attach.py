"""Attaching: what a shard finds in its bucket at a start, and where it goes on.

    found                                              decision
    no service.json                                    check the store's promises, then create it
    service.json of another service, other shards      REFUSE
    no parts                                           begin with part 1, at the log's first frame
    the last part ends behind the local log            REFUSE: the data directory is older than the bucket
    its last frame is another one than in the log      REFUSE: the two have diverged
    its last frame is the same, or trimmed locally     go on behind it
    manifests, but the parts behind them are missing   REFUSE: they were deleted by hand

REFUSE raises `Mismatch`. Nothing is written before the decision but `service.json`, so each row is found again by the
next start. A local log that no longer reaches back to the last part leaves a hole, which the next manifest passes.

`bucket.json` in the shard's directory says that it was attached once. Without it a start is refused also if the bucket
is missing or refuses the credentials; with it the shard serves and tries again. Its `lineage` names this directory's
files: only they can be the same as those of an earlier manifest.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from shardd.replication import manifests, parts
from shardd.replication.log_reader import LogGone, LogReader
from shardd.replication.manifests import Head, ManifestError
from shardd.replication.names import SERVICE, ShardNames, number_of
from shardd.replication.parts import FRAMES, HEADER_SIZE, Part, PartError
from shardd.replication.store import Absent, Exists, Store, check_promises
from shardd.storage.disk import Disk

FORMAT = 1
MARK = "bucket.json"


class Mismatch(Exception):
    """The bucket and the data directory do not belong together, or the bucket was changed by hand. A restart does not
    help. The message says what to do."""


class Service(Struct, frozen=True):
    """`service.json`: what a prefix of a bucket holds."""

    format: int
    service: int
    """`created_ms` of the data directory's manifest.json, which a restore keeps."""
    shards: int


class Term(Struct, frozen=True):
    """A term: who holds the shard."""

    term: int
    nonce: str
    machine: str
    made_ms: int
    address: str = ""
    """Where its clients reach the holder."""


class Log(Protocol):
    """The local log, as far as replication looks at it."""

    next_no: int
    synced_no: int

    @property
    def bytes_written(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Attached:
    """Where shipping goes on."""

    term: int
    next_part: int
    shipped_no: int
    """The last frame of the last part."""
    reader: LogReader
    behind_bytes: int
    """Bytes of the local log that the bucket does not have."""
    hole: bool
    """True if frames between the last part and the next one are gone."""
    renew: bool
    """True if a manifest has to be made at once: there is a hole, or the directory was restored, and what was cut or
    reserved then is in no frame."""
    manifest: Head | None
    """The newest manifest, if its files are those of this directory."""
    first_part: int
    """The first part that the next manifest may need."""


@dataclass(frozen=True, slots=True)
class Mark:
    """`bucket.json`. The second half is known to a shard that has roles (`shardd.standby`)."""

    url: str
    lineage: str
    nonce: str = ""
    """Of the last process that used the directory."""
    part: int = -1
    frame_no: int = 0
    """As far as the log is known to equal the bucket's; part -1 if that is not known."""
    incomplete: bool = False
    """True while the directory is made again from the bucket: what is in it counts for nothing."""


def read_mark(disk: Disk, path: Path) -> Mark | None:
    """The mark in a shard's directory; None if there is none. Raises OSError."""
    if MARK not in disk.list(path):
        return None
    try:
        return Mark(**json.loads(bytes(disk.read(path / MARK))))
    except (ValueError, TypeError):
        return None


def write_mark(disk: Disk, path: Path, mark: Mark) -> None:
    """Raises OSError."""
    temporary = path / f"{MARK}.tmp"
    file = disk.create(temporary)
    try:
        file.write([json.dumps(asdict(mark)).encode()])
        file.sync()
    finally:
        file.close()
    disk.replace(temporary, path / MARK)
    disk.sync_dir(path)


class Attaching:
    """One shard and its objects. `attach` blocks, and may be called again after an error."""

    def __init__(self, store: Store, index: int, service: Service, disk: Disk, path: Path, log: Log) -> None:
        self._store = store
        self._names = ShardNames(index)
        self._service = service
        self._disk = disk
        self._path = path
        self._log = log

    def attach(self, nonce: bytes, machine: str, now_ms: int) -> Attached:
        """Raises `Mismatch`, `StoreError`, OSError."""
        check_service(self._store, self._service, self._names.prefix)
        mark = read_mark(self._disk, self._path)
        first = mark is None or mark.url != self._store.url
        if mark is None or first:
            mark = Mark(self._store.url, secrets.token_hex(8))
        newest = self._newest_manifest()
        last = self._last_part(newest)
        reader = LogReader(self._disk, self._path / "wal")
        hole = self._seek(reader, last)
        behind = reader.behind()
        term = self._term(nonce, machine, now_ms)
        write_mark(self._disk, self._path, mark)
        return Attached(
            term,
            last.number + 1 if last else 1,
            reader.next_no - 1,
            reader,
            behind,
            hole,
            hole or (first and last is not None),
            newest if newest is not None and newest.lineage == mark.lineage else None,
            1 if newest is None else newest.first_part,
        )

    def _newest_manifest(self) -> Head | None:
        numbers = manifests.numbers(self._store, self._names)
        if not numbers:
            return None
        name = self._names.manifest(numbers[-1])
        try:
            return manifests.read_head(self._store, name)
        except ManifestError as error:
            raise Mismatch(
                f"{self._store.url}: {name}: {error}. Delete this object, so that the one before is used, or use "
                "another prefix; `topics replica verify` checks the others"
            ) from None

    def _last_part(self, newest: Head | None) -> Part | None:
        after = self._names.part(newest.part - 1) if newest and newest.part else ""
        listed = [number for each in self._store.list(self._names.log, after) if (number := number_of(each.name))]
        if not listed:
            if newest is not None and newest.part:
                raise Mismatch(
                    f"{self._store.url}: {self._names.part(newest.part)} is missing, although a manifest names it; it "
                    "was deleted by hand. Put it back, or use another prefix"
                )
            return None
        name = self._names.part(listed[-1])
        try:
            return parts.header(self._store.get_range(name, 0, HEADER_SIZE), listed[-1])
        except PartError as error:
            raise Mismatch(f"{self._store.url}: {name}: {error}. Put it back, or use another prefix") from None

    def _seek(self, reader: LogReader, last: Part | None) -> bool:
        """Let the reader continue behind the last part. Returns True if frames are missing in between."""
        shipped_no = last.last_no if last else 0
        if shipped_no > self._log.synced_no:
            raise Mismatch(
                f"{self._store.url}: {self._names.prefix} has frames up to {shipped_no}, but the data directory ends "
                f"with frame {self._log.synced_no}: it is older than the bucket. Restore from the bucket into another "
                "directory (`topics restore --from`), or use another prefix for this one"
            )
        try:
            if last is not None and last.kind == FRAMES:
                self._compare(reader, last)
            reader.seek(shipped_no + 1, self._log.synced_no)
        except LogGone as gone:
            reader.seek(gone.first_no, self._log.synced_no)
            return gone.first_no > shipped_no + 1
        return False

    def _compare(self, reader: LogReader, last: Part) -> None:
        """Raises `Mismatch` unless the log has the last frame of the part, and `LogGone` if it has been trimmed."""
        reader.seek(last.last_no, self._log.synced_no)
        local = reader.take(last.last_no, 1)
        name = self._names.part(last.number)
        try:
            _, frames = parts.decode(self._store.get(name), last.number)
        except PartError as error:
            raise Mismatch(f"{self._store.url}: {name}: {error}. Put it back, or use another prefix") from None
        if local is None or bytes(frames[-len(local.data) :]) != bytes(local.data):
            raise Mismatch(
                f"{self._store.url}: frame {last.last_no} of {name} is not the one in {self._path / 'wal'}: both were "
                "written to independently. Restore from the bucket into another directory, or use another prefix"
            )

    def _term(self, nonce: bytes, machine: str, now_ms: int) -> int:
        listed = [number for each in self._store.list(self._names.terms) if (number := number_of(each.name))]
        if not listed:
            try:
                self._store.create(self._names.term(1), msgspec.json.encode(Term(1, nonce.hex(), machine, now_ms)))
            except Exists:
                pass
        return max(listed, default=1)


def check_service(store: Store, wanted: Service, prefix: str) -> None:
    """Compare `service.json` with the service that is to use the bucket, and create it if there is none. Raises
    `Mismatch`, `StoreError`."""
    try:
        found = read_service(store)
    except Absent:
        check_promises(store, prefix)
        try:
            store.create(SERVICE, msgspec.json.encode(wanted))
            return
        except Exists:
            found = read_service(store)
    if found.service != wanted.service:
        raise Mismatch(
            f"{store.url} holds another service. Use another prefix; or, to go on with what is there, make a data "
            "directory from it with `topics restore --from`"
        )
    if found.shards != wanted.shards:
        raise Mismatch(
            f"{store.url} was made with {found.shards} shards, the data directory has {wanted.shards}. Use another "
            "prefix after `topics reshard`"
        )


def join_service(store: Store, wanted: Service) -> Service:
    """The service in the bucket; `wanted` if there was none. For a data directory that is still to be made. Raises
    `Mismatch`, `StoreError`."""
    try:
        return read_service(store)
    except Absent:
        check_promises(store, "")
    try:
        store.create(SERVICE, msgspec.json.encode(wanted))
        return wanted
    except Exists:
        return read_service(store)


def read_service(store: Store) -> Service:
    """Raises `Absent` if the prefix holds no service; `Mismatch`, `StoreError`."""
    try:
        found = msgspec.json.decode(store.get(SERVICE), type=Service)
    except msgspec.DecodeError as error:
        raise Mismatch(f"{store.url}: {SERVICE} is damaged ({error}). Put it back, or use another prefix") from None
    if found.format != FORMAT:
        raise Mismatch(
            f"{store.url}: {SERVICE} has format {found.format}, this release knows {FORMAT}: use the release that "
            "wrote it"
        )
    return found
