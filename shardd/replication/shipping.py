"""Shipping: copies the synced log of a shard to its bucket, part by part, and checkpoints beside it.

    attaching ──attach──► holder ──another process has the next part──► deposed
        └──the bucket belongs to another service, …──► refused

One part is on its way at a time. Its steps, and what the next start finds if the process dies after each:

1  read     synced frames that follow the last part          the same frames, read again
2  create   the part                                         the part is in the bucket: go on behind it. Or it is not:
                                                             the frames are read again, and get the same number
3  note     `shipped_no`, which lets the log be trimmed      as after step 2

An answer that does not come is not guessed: the same bytes are created again. If the number is taken then, the part is
read: with this process's nonce it is its own, with another one the shard is deposed. A deposed shard ships nothing,
keeps its log and serves on.

Checkpoints (`checkpoint_files`): files are uploaded, then the parts up to `upto_no` have to be there, then the manifest
is created, then retention (`retention`) removes what no manifest in the window needs. If the process dies before the
manifest, nothing refers to the files.

A fault of the bucket stops none of the shard's work. The log is kept until it is shipped, as long as the disk has
TOPICS_MIN_FREE_BYTES; then writes are refused as on any full disk.

Everything that blocks runs in worker threads; `Shipping` has no event loop, `Replica` runs it in one. Nothing runs
while nothing is logged.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

import structlog
import trio

from proto.model.limits import Limits
from shardd.clock import Clock
from shardd.replication import manifests, parts
from shardd.replication.attach import Attached, Attaching, Log, Mark, Mismatch, Service, read_mark
from shardd.replication.checkpoint_files import Known, Outrun, Uploaded, Uploader
from shardd.replication.log_reader import Frames, LogReader
from shardd.replication.manifests import Head, ManifestError
from shardd.replication.names import ShardNames
from shardd.replication.parts import FRAMES, HEADER_SIZE, NONCE_SIZE, Part, PartError
from shardd.replication.retention import Retention
from shardd.replication.store import Absent, Exists, Store, StoreError
from shardd.storage.catalog import CatalogError
from shardd.storage.disk import Disk

PART_BYTES = 4 << 20
"""A part is created at once when so many bytes wait, else after TOPICS_SHIP_INTERVAL_MS."""
CHECKPOINTS = 10
"""A checkpoint is copied after TOPICS_CHECKPOINT_BYTES of parts since the last one that was, or so many times
TOPICS_CHECKPOINT_INTERVAL_MS."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts; the pause doubles."""
BEGIN_TIMEOUT = 10.0
"""Seconds that a start waits for the bucket."""
DRAIN_TIMEOUT = 5.0
"""Seconds that an orderly stop waits for the last part."""
LOG_INTERVAL = 60.0
"""Seconds between log lines while the bucket is away."""
_log: Any = structlog.get_logger()


class Role(StrEnum):
    ATTACHING = "attaching"
    HOLDER = "holder"
    DEPOSED = "deposed"
    REFUSED = "refused"


class Deposed(Exception):
    """Another process created the part that was to be the next one."""


class Stopped(Exception):
    """The process is stopping."""


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    role: str
    term: int
    lag_bytes: int
    lag_ms: int
    parts_total: int
    part_bytes_total: int
    manifests_total: int
    failures_total: int


class Shipping:
    """The blocking side. `attach`, `ship` and `copy_checkpoint` are each called by one thread at a time."""

    def __init__(
        self,
        store: Store,
        index: int,
        service: Service,
        disk: Disk,
        path: Path,
        log: Log,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._store = store
        self._names = ShardNames(index)
        self._disk = disk
        self._path = path
        self._log = log
        self._clock = clock
        self._limits = limits
        self._attaching = Attaching(store, index, service, disk, path, log)
        cold = Path(limits.cold_dir) / path.name if limits.cold_dir else None
        self._uploader = Uploader(store, self._names, disk, path, cold)
        self._retention = Retention(store, self._names)
        self._known = Known()
        self._lineage = ""
        self.nonce = secrets.token_bytes(NONCE_SIZE)
        """Names this process in the objects that it creates."""
        self.role = Role.ATTACHING
        self.attached: Attached | None = None
        self.shipped_no = 0
        """The last frame in the bucket. The log may be trimmed up to it."""
        self._part = 0
        self._ends: list[int] = []
        """Last frame of each part from `_first` on."""
        self._first = 1
        self._manifest: int | None = None
        self._least_no = 0
        """A manifest with fewer frames in its files may need parts that retention has removed."""
        self._renew = False
        """True until the manifest is made that attaching asked for."""
        self._pending: tuple[Frames, bytes] | None = None
        """The part that is to be created next, once it has been read."""
        self._shipping = Lock()
        self._since_manifest = 0
        self._manifest_at = 0.0
        self._behind = 0
        self._written = log.bytes_written
        self._oldest_at: float | None = None
        self._parts = self._part_bytes = self._manifests = self._failures = 0
        self._away_since: float | None = None
        self._logged_at = float("-inf")
        self.stopping = Event()

    # The start

    def mark(self) -> Mark | None:
        """The mark of an earlier attachment to this bucket. Raises OSError."""
        mark = read_mark(self._disk, self._path)
        return mark if mark is not None and mark.url == self._store.url else None

    def attach(self, machine: str) -> Attached:
        """Raises `Mismatch`, `StoreError`, OSError."""
        return self._attaching.attach(self.nonce, machine, self._clock.now_ms())

    @property
    def now(self) -> float:
        return self._clock.monotonic()

    def hold(self, attached: Attached, nonce: str) -> None:
        """Go on in a term of this process."""
        self.nonce = bytes.fromhex(nonce)
        head, mark = attached.manifest, self.mark()
        if head is not None:
            self._least_no = head.frame_no
            if mark is None or head.lineage != mark.lineage:
                attached = replace(attached, manifest=None)
        self.adopt(attached)

    def adopt(self, attached: Attached) -> None:
        """Go on where `attach` found the bucket's log to end."""
        self.attached = attached
        self.shipped_no = attached.shipped_no
        self._part = attached.next_part - 1
        self._first = attached.next_part
        self._behind = attached.behind_bytes
        self._written = self._log.bytes_written
        if self._log.synced_no > self.shipped_no:
            self._oldest_at = self._clock.monotonic()
        mark = self.mark()
        self._lineage = mark.lineage if mark is not None else ""
        self._manifest = attached.manifest.part if attached.manifest is not None else None
        self._manifest_at = self._clock.monotonic()
        self._renew = attached.renew
        self.role = Role.HOLDER

    # Parts

    @property
    def manifest_missing(self) -> bool:
        """True if what is in the files is in no part and no manifest."""
        return self._renew

    @property
    def lag_bytes(self) -> int:
        return max(self._behind + self._log.bytes_written - self._written, 0)

    def synced(self) -> None:
        """Called after each sync of the log."""
        if self._oldest_at is None and self._log.synced_no > self.shipped_no:
            self._oldest_at = self._clock.monotonic()

    def ship(self) -> bool:
        """Create the next part, whatever it takes. Returns False if everything synced is shipped. Raises `Deposed`,
        `Stopped`, OSError."""
        assert self.attached is not None
        with self._shipping:
            begun = self._clock.monotonic()
            if self._pending is None:
                frames = self.attached.reader.take(self._log.synced_no, PART_BYTES)
                if frames is None:
                    return False
                part = Part(self._part + 1, FRAMES, self.attached.term, self.nonce, *frames[:4])
                self._pending = frames, parts.encode(part, frames.data)
            frames, data = self._pending
            part = self._create_part(self._part + 1, data)
            self._pending = None
            if part.last_no != frames.last_no:
                self.attached.reader.seek(part.last_no + 1, self._log.synced_no)
            self._count(part, begun)
            return True

    def bridge(self) -> None:
        """Create a fence if a manifest has to be made at once, so that this has a number of its own. Raises as
        `ship`."""
        assert self.attached is not None
        if self._renew:
            number, next_no = self._part + 1, self.shipped_no + 1
            part = self._create_part(number, parts.fence(number, self.attached.term, self.nonce, next_no))
            if part.has_frames:
                self.attached.reader.seek(part.last_no + 1, self._log.synced_no)
                self._count(part, self._clock.monotonic())
                return self.bridge()
            self._part = number
            self._ends.append(self.shipped_no)

    def _count(self, part: Part, begun: float) -> None:
        self.count(part.number, part.last_no, part.length, begun)

    def count(self, number: int, last_no: int, length: int, begun: float) -> None:
        """Note a part that is in the bucket, with so many bytes of frames; these were read at the time `begun`."""
        self._part = number
        self._ends.append(last_no)
        self.shipped_no = last_no
        self._behind -= length
        self._since_manifest += length
        self._parts += 1
        self._part_bytes += HEADER_SIZE + length
        self._oldest_at = begun
        if self.shipped_no == self._log.next_no - 1:
            self._behind, self._written = 0, self._log.bytes_written
        if self.shipped_no >= self._log.synced_no:
            self._oldest_at = None

    def _create_part(self, number: int, data: bytes) -> Part:
        """Returns the part that is in the bucket then: this one, or one of the process before with frames of this log,
        which arrived late."""
        name = self._names.part(number)
        while True:
            try:
                self.persist(lambda: self._store.create(name, data))
                return parts.header(data, number)
            except Exists:
                pass
            try:
                found = self.persist(lambda: self._store.get(name), (Exists, Absent))
                theirs, frames = parts.decode(found, number)
            except Absent:
                continue  # the store had refused for another reason
            except PartError as error:
                raise Deposed(f"{self._store.url}: {name} exists and is no part of this shard: {error}") from None
            if theirs.nonce == self.nonce or self._is_of_this_log(theirs, frames):
                return theirs
            raise Deposed(
                f"{self._store.url}: another process wrote {name} (term {theirs.term}): two services run on copies of "
                "one data directory. Stop one of them. What this one has logged since is only here; nothing is shipped"
            )

    def _is_of_this_log(self, part: Part, frames: memoryview) -> bool:
        """True if a part of the same term has the next frames of this log. A fence has none: its creator goes on from
        there."""
        assert self.attached is not None
        if not part.has_frames or part.term != self.attached.term or part.first_no != self.shipped_no + 1:
            return False
        reader = LogReader(self._disk, self._path / "wal")
        reader.seek(part.first_no, self._log.synced_no)
        at = 0
        while at < len(frames):
            local = reader.take(min(part.last_no, self._log.synced_no), len(frames) - at)
            if local is None or frames[at : at + len(local.data)] != local.data:
                return False
            at += len(local.data)
        return True

    def persist(self, call: Callable[[], Any], answers: tuple[type[StoreError], ...] = (Exists,)) -> Any:
        """Call the store until it answers. Raises the errors that are `answers`, and `Stopped` when the process
        stops."""
        pause = FIRST_PAUSE
        while True:
            if self.stopping.is_set():
                raise Stopped
            try:
                result = call()
            except answers:
                self._answered()
                raise
            except StoreError as error:
                self.failed(error)
            else:
                self._answered()
                return result
            self.stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def failed(self, error: StoreError) -> None:
        """Count a failed call, and log it now and then."""
        self._failures += 1
        now = self._clock.monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            _log.error("bucket_away", reason=str(error), kind=type(error).__name__, lag_bytes=self.lag_bytes)

    def _answered(self) -> None:
        if self._away_since is not None:
            _log.info("bucket_back", away_s=round(self._clock.monotonic() - self._away_since, 1))
            self._away_since, self._logged_at = None, float("-inf")

    # Checkpoints

    @property
    def checkpoint_due(self) -> bool:
        """True if the newest checkpoint should be copied."""
        if self._renew:
            return True
        if self._manifest is None:
            return self._since_manifest > 0
        elapsed_ms = (self._clock.monotonic() - self._manifest_at) * 1000
        long_ago = elapsed_ms >= CHECKPOINTS * self._limits.checkpoint_interval_ms
        return self._since_manifest >= self._limits.checkpoint_bytes or (self._since_manifest > 0 and long_ago)

    def upload(self) -> Uploaded | None:
        """Upload the files of the newest catalog. Raises `Stopped`, `Outrun`, `CatalogError`, OSError."""
        if self._manifest is not None and not self._known.files:
            self._known = self._known_of(self._manifest)
        uploaded = self._uploader.upload(self._known, self._position, self.persist)
        for path in self._uploader.left_out:
            _log.warning("file_not_copied", path=path, reason="it is missing or short; `topics verify` tells more")
        return uploaded

    def _known_of(self, number: int) -> Known:
        try:
            name = self._names.manifest(number)
            found = self.persist(lambda: self._store.get(name), (Exists, Absent))
            return Known.of(*manifests.decode(found))
        except (ManifestError, Absent) as error:
            _log.error("manifest_damaged", number=number, reason=str(error), action="all files are uploaded again")
            return Known()

    def _position(self) -> tuple[int, int]:
        return self._log.next_no - 1, self._clock.now_ms()

    def covers(self, uploaded: Uploaded) -> bool:
        """True if all records in the files are in parts."""
        return self.shipped_no >= min(uploaded.upto_no, self._log.next_no - 1)

    def create_manifest(self, uploaded: Uploaded) -> None:
        """Raises `Stopped`."""
        assert self.attached is not None
        if uploaded.frame_no < self._least_no:
            return  # the next checkpoint has more
        head = Head(
            part=self._part,
            term=self.attached.term,
            nonce=self.nonce.hex(),
            lineage=self._lineage,
            first_part=self._first_part(uploaded.frame_no),
            frame_no=uploaded.frame_no,
            upto_no=uploaded.upto_no,
            upto_ms=uploaded.upto_ms,
            catalog=uploaded.number,
            streams=uploaded.streams,
        )
        data = manifests.encode(head, uploaded.files)
        name = self._names.manifest(head.part)
        try:
            self.persist(lambda: self._store.create(name, data))
        except Exists:
            found = self.persist(lambda: self._store.get_range(name, 0, len(data) + 1))
            if bytes(found) != data:
                return  # nothing was shipped since that manifest, which serves as well
        self._manifest, self._since_manifest, self._renew = head.part, 0, False
        self._manifest_at = self._clock.monotonic()
        self._known = Known.of(head, uploaded.files)
        self._manifests += 1
        _log.info("checkpoint_copied", part=head.part, catalog=head.catalog, bytes=uploaded.uploaded_bytes)

    def _first_part(self, frame_no: int) -> int:
        """The part that has a frame, or an earlier one. Forgets the parts before it."""
        assert self.attached is not None
        if frame_no <= self.attached.shipped_no:
            return self.attached.next_part if self.attached.hole else self.attached.first_part
        at = min(bisect_left(self._ends, frame_no), len(self._ends) - 1)
        del self._ends[:at]
        self._first += at
        return self._first

    def retain(self) -> None:
        """Remove what is older than TOPICS_BUCKET_RETAIN_MS. Raises `Stopped`."""
        now_ms, retain_ms = self._clock.now_ms(), self._limits.bucket_retain_ms
        self.persist(lambda: self._retention.remove(now_ms, retain_ms))

    def statistics(self) -> ReplicaStatistics:
        oldest = self._oldest_at
        return ReplicaStatistics(
            role=self.role,
            term=self.attached.term if self.attached else 0,
            lag_bytes=self.lag_bytes,
            lag_ms=0 if oldest is None else round((self._clock.monotonic() - oldest) * 1000),
            parts_total=self._parts,
            part_bytes_total=self._part_bytes,
            manifests_total=self._manifests,
            failures_total=self._failures,
        )


class Replica:
    """Runs a `Shipping` in the shard's event loop."""

    def __init__(self, shipping: Shipping, machine: str, interval_s: float, log: Log) -> None:
        self._shipping = shipping
        self._machine = machine
        self._interval = interval_s
        self._log = log
        self._news = trio.Event()
        self._large = trio.Event()
        self._checkpoint = trio.Event()
        self._shipped = trio.Event()
        self.statistics = shipping.statistics
        self.ended = ""
        """Why `run` returned."""

    @property
    def shipped_no(self) -> int:
        return self._shipping.shipped_no

    def synced(self) -> None:
        """Called after each sync of the log."""
        shipping = self._shipping
        shipping.synced()
        if self._log.synced_no > shipping.shipped_no:
            self._news.set()
            if shipping.lag_bytes >= PART_BYTES:
                self._large.set()

    def checkpoint_made(self) -> None:
        self._checkpoint.set()

    async def begin(self) -> None:
        """Attach, if the bucket answers in time. Raises `Mismatch`, OSError, and for a bucket that this shard was never
        attached to, a `StoreError` that is lasting."""
        try:
            with trio.move_on_after(BEGIN_TIMEOUT):
                attached = await trio.to_thread.run_sync(self._shipping.attach, self._machine, abandon_on_cancel=True)
                self._shipping.adopt(attached)
        except StoreError as error:
            if error.lasting and self._shipping.mark() is None:
                raise
            self._shipping.failed(error)

    async def _begin(self) -> None:
        """Attach, and create the fence that a restored directory begins with."""
        if self._shipping.role is Role.ATTACHING:
            await self._attach()
        await _in_thread(self._shipping.bridge)

    async def run(self) -> None:
        """Ship until cancelled, or until the shard is deposed."""
        shipping = self._shipping
        try:
            await self._begin()
            self._news.set()
            self._checkpoint.set()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy_checkpoints)
                await self._ship()
        except* Mismatch as refused:
            shipping.role = Role.REFUSED
            self.ended = _reason(refused)
            _log.error("replica_refused", reason=_reason(refused))
        except* Deposed as deposed:
            shipping.role = Role.DEPOSED
            self.ended = _reason(deposed)
            _log.error("replica_deposed", reason=_reason(deposed))
        finally:
            shipping.stopping.set()

    async def drain(self) -> None:
        """Ship what is synced, after `run` was cancelled. Gives up after `DRAIN_TIMEOUT`."""
        shipping = self._shipping
        if shipping.role is not Role.HOLDER:
            return
        shipping.stopping.clear()
        reason = "the bucket did not answer in time"
        with trio.move_on_after(DRAIN_TIMEOUT):
            try:
                while await _in_thread(shipping.ship):
                    pass
                reason = ""
            except (Deposed, OSError) as error:
                reason = str(error)
        shipping.stopping.set()
        if reason:
            _log.error("not_shipped", reason=reason, lag_bytes=shipping.lag_bytes)

    async def _attach(self) -> None:
        shipping = self._shipping
        while True:
            try:
                shipping.adopt(await _in_thread(lambda: shipping.persist(lambda: shipping.attach(self._machine))))
                return
            except OSError as error:
                _log.error("log_not_read", reason=str(error))
                await trio.sleep(LONGEST_PAUSE)

    async def _ship(self) -> None:
        shipping = self._shipping
        last = float("-inf")
        while True:
            await self._news.wait()
            with trio.move_on_at(last + self._interval):
                await self._large.wait()
            self._news, self._large = trio.Event(), trio.Event()
            last = trio.current_time()
            try:
                await _in_thread(shipping.ship)
            except OSError as error:
                _log.error("log_not_read", reason=str(error))
                await trio.sleep(LONGEST_PAUSE)
            self._shipped.set()
            self._shipped = trio.Event()
            self.synced()

    async def _copy_checkpoints(self) -> None:
        shipping = self._shipping
        while True:
            await self._checkpoint.wait()
            self._checkpoint = trio.Event()
            if not shipping.checkpoint_due:
                continue
            try:
                if await self._copy_checkpoint():
                    await _in_thread(shipping.retain)
            except (Outrun, CatalogError, ManifestError, OSError) as error:
                _log.error("checkpoint_not_copied", reason=str(error), action="the next one is tried")

    async def _copy_checkpoint(self) -> bool:
        """Copy the newest checkpoint. Returns False if there is none."""
        shipping = self._shipping
        uploaded = await _in_thread(shipping.upload)
        if uploaded is None:
            return False
        while not shipping.covers(uploaded):
            await self._shipped.wait()
        await _in_thread(partial(shipping.create_manifest, uploaded))
        return True


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call. A cancelled one is left to itself: it ends with the process, at the latest."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
