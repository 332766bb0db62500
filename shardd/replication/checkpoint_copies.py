"""Checkpoint copies: copies checkpoints of a held shard to its bucket, so that a restore has little to replay.

1  upload      the files of the newest catalog that the bucket lacks (`checkpoint_files`)
2  wait        until the parts have all records that may be in the files: `covers`
3  look        all that the manifest would name is there, or there is no manifest: the next upload leaves nothing out
4  manifest    created; from now on a restore begins with it
5  retain      what no manifest in the window needs is removed (`retention`)

If the process dies before step 4, nothing refers to the files. Everything blocks; one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import structlog

from proto.model.limits import Limits
from shardd.clock import Clock
from shardd.errors import ShardError
from shardd.replication import manifests
from shardd.replication.attach import Mark
from shardd.replication.checkpoint_files import Known, Uploaded, Uploader
from shardd.replication.manifests import Head, ManifestError
from shardd.replication.objects import Objects
from shardd.replication.progress import Progress
from shardd.replication.retention import Retention
from shardd.replication.seal import Sealed
from shardd.replication.store import Absent, StoreError, Unsealed, settle
from shardd.storage.disk import Disk
from shardd.storage.wal import Wal

CHECKPOINTS = 10
"""A checkpoint is copied after TOPICS_CHECKPOINT_BYTES of parts since the last one that was, or so many times
TOPICS_CHECKPOINT_INTERVAL_MS."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts; the pause doubles."""
_log: Any = structlog.get_logger()


class Stopped(ShardError):
    """The process is stopping, or the role is over."""


class CheckpointCopies:
    def __init__(
        self, objects: Objects, disk: Disk, path: Path, log: Wal, clock: Clock, limits: Limits, progress: Progress
    ) -> None:
        store, names = self._store, self._names = objects.store, objects.names
        self._encrypts = isinstance(store, Sealed) and store.encrypts
        self._log = log
        self._clock = clock
        self._limits = limits
        self._progress = progress
        self._outage = objects.outage
        cold = Path(limits.cold_dir) / path.name if limits.cold_dir else None
        self._uploader = Uploader(store, names, disk, path, cold)
        self._retention = Retention(store, names)
        self._known = Known()
        self._manifest: int | None = None
        """The newest manifest of this directory's files."""
        self._manifest_at = 0.0
        self._bytes_then = 0
        self._least_no = 0
        """A manifest with fewer frames in its files may need parts that retention has removed."""
        self._first_part = 1
        self._term = 0
        self._nonce, self._lineage = objects.own.nonce, ""
        self.missing = False
        """True if what is in the files is in no part and no manifest: one has to be made at once."""
        self.made = 0
        self.stopping = Event()

    def begin(self, term: int, mark: Mark, newest: Head | None, *, hole: bool) -> None:
        """Go on in a term. `hole`: frames before the next part are gone."""
        self._term, self._lineage = term, mark.lineage
        self.missing = hole or mark.unshipped
        self._first_part = 1 if newest is None else newest.first_part
        if hole:
            self._first_part = self._progress.part + 1
        self._least_no = 0 if newest is None else newest.frame_no
        self._manifest = newest.part if newest is not None and newest.lineage == mark.lineage else None
        self._manifest_at = self._clock.monotonic()

    @property
    def due(self) -> bool:
        """True if the newest checkpoint should be copied."""
        since = self._progress.part_bytes - self._bytes_then
        if self.missing:
            return True
        if self._manifest is None:
            return since > 0
        elapsed_ms = (self._clock.monotonic() - self._manifest_at) * 1000
        long_ago = elapsed_ms >= CHECKPOINTS * self._limits.checkpoint_interval_ms
        return since >= self._limits.checkpoint_bytes or (since > 0 and long_ago)

    def upload(self) -> Uploaded | None:
        """Upload the files of the newest catalog. Returns None if there is none. Raises `Stopped`, `Outrun`,
        `CatalogError`, `ManifestError`, OSError."""
        if self._manifest is not None and not self._known.files:
            self._known = self._known_of(self._manifest)
        try:
            uploaded = self._uploader.upload(self._known, self._position, self._until_answered)
        except ManifestError:
            self._forget()
            raise
        for path in self._uploader.left_out:
            _log.warning("file_not_copied", path=path, reason="it is missing or short; `topics verify` tells more")
        return uploaded

    def _known_of(self, number: int) -> Known:
        try:
            name = self._names.manifest(number)
            found = self._until_answered(lambda: self._store.get(name), (Absent, Unsealed))
            head, files = manifests.decode(found, number)
            if head.encrypted != self._encrypts:
                return Known()  # so that retention removes what is not as it shall be
            return Known.of(head, files)
        except (ManifestError, Absent, Unsealed) as error:
            _log.error("manifest_damaged", number=number, reason=str(error), action="all files are uploaded again")
            return Known()

    def _position(self) -> tuple[int, int]:
        return self._log.next_no - 1, self._clock.now_ms()

    def covers(self, uploaded: Uploaded) -> bool:
        """True if all records in the files are in parts."""
        return self._progress.shipped_no >= min(uploaded.upto_no, self._log.next_no - 1)

    def _forget(self) -> None:
        """Upload all files again the next time."""
        self._known, self._manifest = Known(), None

    def create_manifest(self, uploaded: Uploaded) -> None:
        """Raises `Stopped`; `ManifestError` if something that the manifest would name is not there."""
        if uploaded.frame_no < self._least_no:
            return  # the next checkpoint has more
        in_term = uploaded.frame_no > self._progress.begun_no
        head = Head(
            part=self._progress.part,
            term=self._term,
            nonce=self._nonce,
            lineage=self._lineage,
            first_part=self._progress.part_of(uploaded.frame_no) if in_term else self._first_part,
            frame_no=uploaded.frame_no,
            upto_no=uploaded.upto_no,
            upto_ms=uploaded.upto_ms,
            catalog=uploaded.number,
            streams=uploaded.streams,
            encrypted=self._encrypts,
        )
        try:
            self._until_answered(lambda: manifests.look_for(self._store, self._names, head))
        except ManifestError:
            self._forget()
            raise
        data = manifests.encode(head, uploaded.files)
        name = self._names.manifest(head.part)
        found = self._until_answered(lambda: settle(self._store, name, data))
        if found != data:
            manifests.decode(found, head.part)
            return  # nothing was shipped since that manifest, which serves as well
        self._manifest, self._bytes_then, self.missing = head.part, self._progress.part_bytes, False
        self._manifest_at = self._clock.monotonic()
        self._known = Known.of(head, uploaded.files)
        self.made += 1
        _log.info("checkpoint_copied", part=head.part, catalog=head.catalog, bytes=uploaded.uploaded_bytes)

    def retain(self) -> None:
        """Remove objects older than TOPICS_BUCKET_RETAIN_MS. Raises `Stopped`."""
        now_ms, retain_ms = self._clock.now_ms(), self._limits.bucket_retain_ms
        self._until_answered(lambda: self._retention.remove(now_ms, retain_ms))

    def _until_answered(self, call: Callable[[], Any], answers: tuple[type[StoreError], ...] = ()) -> Any:
        """Call the store until it answers. Raises the errors that are `answers`, and `Stopped` when the process
        stops."""
        pause = FIRST_PAUSE
        while True:
            if self.stopping.is_set():
                raise Stopped
            try:
                result = call()
            except answers:
                self._outage.answered()
                raise
            except StoreError as error:
                self._outage.failed(error)
            else:
                self._outage.answered()
                return result
            self.stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
