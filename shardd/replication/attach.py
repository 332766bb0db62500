"""Attaching: what ties a data directory to the bucket that has its copy.

    service.json    in the bucket: whose prefix it is. Another service, or another number of shards, is refused
    terms/<term>    in the bucket: which machine holds the shard
    bucket.json     in the shard's directory, a `Mark`: how far the directory is known to equal the bucket's log, and
                    whether this machine held the shard last

A refusal raises `Mismatch`. Before the first service is created in a prefix, the store's promises are checked.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from proto.format.buffer import Buffer
from shardd.errors import ShardError
from shardd.leaders import Leader
from shardd.replication.names import SERVICE, ShardNames
from shardd.replication.seal import is_sealed
from shardd.replication.store import Absent, Store, check_promises, settle
from shardd.roster.members import Number
from shardd.storage.disk import Disk, write_all

FORMAT = 1
MARK = "bucket.json"
ASIDE = "aside-"
"""Begins the names of folders with files that were set aside, because the bucket has another history."""


class Mismatch(ShardError):
    """The bucket and the data directory do not belong together, or the bucket was changed by hand. A restart does not
    help. The message says what to do."""


class Settings(NamedTuple):
    """Settings that all machines of a service must share: a failover rests on them. Empty, 0 and None: not known, as
    in objects of releases that did not write them."""

    replication: str = ""
    ttl_ms: int = 0
    shards: int = 0
    encrypt: bool | None = None

    @classmethod
    def of(cls, found: Service | Term) -> Settings:
        return cls(found.replication, found.ttl_ms, found.shards, found.encrypt)

    def difference(self, other: Settings) -> str:
        """The first setting that both know and that differs, with both values; `other` is this machine's."""
        for name, unknown, theirs, ours in zip(_VARIABLES, Settings(), self, other, strict=True):
            if unknown not in (theirs, ours) and theirs != ours:
                return f"has {name}={_shown(theirs)}, this machine {name}={_shown(ours)}"
        return ""


_VARIABLES = ("TOPICS_REPLICATION", "TOPICS_TERM_TTL_MS", "TOPICS_SHARDS", "TOPICS_BUCKET_ENCRYPT")


def _shown(value: object) -> str:
    """A value as a variable has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Service(Struct, frozen=True, omit_defaults=True):
    """`service.json`: what a prefix of a bucket holds."""

    format: int
    service: int
    """`created_ms` of the data directory's manifest.json, which a restore keeps."""
    shards: int
    replication: str = ""
    ttl_ms: int = 0
    encrypt: bool | None = None


class Term(Struct, frozen=True, omit_defaults=True):
    """A term: who holds the shard, and with which settings."""

    term: int
    nonce: str
    machine: str
    made_ms: Number
    address: str = ""
    """Where its clients reach the holder."""
    replication: str = ""
    ttl_ms: Number = 0
    shards: int = 0
    encrypt: bool | None = None
    endpoint: str = ""
    """Where the holder hears the askers of other machines; "" if it hears none."""
    key: str = ""
    """The public key of the holder's process at that endpoint."""
    member: str = ""
    """The name of the holder's machine among the members, if it is one."""
    leaders: list[Leader] = []
    """The machines that held the shard, up to this one, if the service has members."""

    @property
    def shown(self) -> str:
        """What to call the holder."""
        return self.address or self.machine


class TermError(ShardError):
    """A term is not valid. The message says why."""


def read_term(data: Buffer, number: int) -> Term:
    """The term of this number. Raises `TermError`."""
    try:
        found = msgspec.json.decode(data, type=Term)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TermError(f"it is damaged: {error}") from None
    if found.term != number:
        raise TermError(f"it is term {found.term}")
    return found


@dataclass(frozen=True, slots=True)
class Mark:
    """`bucket.json`. Its `lineage` names this directory's files: only they can be the same as those of an earlier
    manifest."""

    url: str
    lineage: str
    nonce: str = ""
    """Of the last process that held the shard with this directory."""
    claimed: str = ""
    """Of the last process that wanted to."""
    part: int = -1
    frame_no: int = 0
    """As far as the log is known to equal the bucket's; part -1 if that is not known. Part -2, only if `incomplete`:
    what is in the directory is being set aside, and to be kept."""
    incomplete: bool = False
    """True while the directory is made again from the bucket: what is in it counts for nothing."""
    held: bool = False
    """True from the begin of a term of this directory until a term of another machine is seen."""
    skips: bool = False
    """True until seqs are given up that an earlier holder may have used, see `CreateTerm.abrupt`."""
    unshipped: bool = False
    """True until a manifest has what is in no frame: `topics restore` made it."""
    place: str = ""
    """Where the processes of these nonces ran, as in `proto.ipc.control.Cluster`; written only if it is known."""


def read_mark(disk: Disk, path: Path) -> Mark | None:
    """The mark in a shard's directory; None if there is none, or it is damaged. A field that is not known may change
    what the others mean, so it is refused. Raises `Mismatch`, OSError."""
    if MARK not in disk.list(path):
        return None
    try:
        found = json.loads(bytes(disk.read(path / MARK)))
        strange = sorted(found.keys() - {each.name for each in fields(Mark)})
        if not strange:
            return Mark(**found)
    except (ValueError, TypeError, AttributeError):
        return None
    raise Mismatch(
        f"{path / MARK} has {', '.join(strange)}, which this release does not know: use the release that wrote it"
    )


def write_mark(disk: Disk, path: Path, mark: Mark) -> None:
    """Raises OSError."""
    temporary = path / f"{MARK}.tmp"
    file = disk.create(temporary)
    try:
        known = {name: value for name, value in asdict(mark).items() if name != "place" or value}
        write_all(file, json.dumps(known).encode(), temporary)
        file.sync()
    finally:
        file.close()
    disk.replace(temporary, path / MARK)
    disk.sync_dir(path)


def check_service(store: Store, wanted: Service, prefix: str) -> None:
    """Compare `service.json` with the service that is to use the bucket, and create it if there is none. Raises
    `Mismatch`, `StoreError`."""
    try:
        found = read_service(store)
    except Absent:
        check_promises(store, prefix)
        found = _service_of(store, settle(store, SERVICE, msgspec.json.encode(wanted)))
    if found.service != wanted.service:
        raise Mismatch(
            f"{store.url} holds another service. Use another prefix; or, to go on with what is there, make a data "
            "directory from it with `topics restore --from`"
        )
    if found.shards != wanted.shards:
        raise Mismatch(
            f"{store.url}: {SERVICE} has TOPICS_SHARDS={found.shards}, the data directory "
            f"TOPICS_SHARDS={wanted.shards}. Use another prefix after `topics reshard`"
        )


def join_service(store: Store, wanted: Service) -> Service:
    """The service in the bucket; `wanted` if there was none. For a data directory that is still to be made. Raises
    `Mismatch`, `StoreError`."""
    try:
        return read_service(store)
    except Absent:
        shards = next(iter(store.list(ShardNames(0).prefix)), None)
    if shards is not None:
        try:
            return read_service(store)  # another machine was first
        except Absent:
            raise Mismatch(
                f"{store.url}: {SERVICE} is missing, although there are shards: put it back, or start a machine that "
                "has used this bucket, which makes it again"
            ) from None
    check_promises(store, "")
    return _service_of(store, settle(store, SERVICE, msgspec.json.encode(wanted)))


def read_service(store: Store) -> Service:
    """Raises `Absent` if the prefix holds no service; `Mismatch`, `StoreError`."""
    return _service_of(store, store.get(SERVICE))


def _service_of(store: Store, data: Buffer) -> Service:
    if is_sealed(data):
        raise Mismatch(f"{store.url} is sealed with a key: set TOPICS_BUCKET_KEY_FILE to the file that has it")
    try:
        found = msgspec.json.decode(data, type=Service)
    except msgspec.DecodeError as error:
        raise Mismatch(f"{store.url}: {SERVICE} is damaged ({error}). Put it back, or use another prefix") from None
    if found.format != FORMAT:
        raise Mismatch(
            f"{store.url}: {SERVICE} has format {found.format}, this release knows {FORMAT}: use the release that "
            "wrote it"
        )
    return found
