"""The closed log: the files of a shard that is not open, brought up to the bucket's log part by part.

    apply     the frames that the log has are compared, those that it lacks are appended and synced
    restore   the shard is set aside and made again from the newest manifest
    fold      after TOPICS_CHECKPOINT_BYTES of applied frames, or when the caller finds the log too long, the shard is
              opened, makes a checkpoint, and is closed
    freeze    the shard is to be opened without a term: from now on parts are compared, and nothing is changed
    clear     the files are removed, if the bucket is known to have all that is in them

What is compared, and what is not: a frame that the log does not have any more, because a catalog covers it, is the same
as the bucket's if it is not behind the kept position, or if the part is of the process that used the directory last.
`bucket.json` keeps that position. The log is trimmed up to it only.

Steps of `restore`, and what a start finds if the process dies after each:

1  mark     `incomplete` in bucket.json    nothing in the directory counts; part -2: it is set aside, and kept
2  aside    everything to `aside-…`        the same
3  mark     part -1                        the same; the next start removes the rest and what step 4 made
4  files    of the manifest, synced        the same
5  mark     the position, and complete     a shard as of the manifest
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from proto.format.buffer import Buffer
from proto.model.limits import Limits
from shardd.checkpoint.slices import exhaust
from shardd.clock import SystemClock
from shardd.recovery.wal_scan import Outcome, scan
from shardd.replication.attach import ASIDE, MARK, Mark, Mismatch, read_mark, write_mark
from shardd.replication.browse import AHEAD, Browser
from shardd.replication.log_reader import LogGone, LogReader
from shardd.replication.manifests import Head
from shardd.replication.messages import Answer, Apply, Kind, Part, Position, Request, Restore, Result
from shardd.replication.names import number_of
from shardd.replication.objects import Objects
from shardd.replication.parts import FRAMES, HEADER_SIZE, header, places
from shardd.replication.store import StoreError
from shardd.shard import open_shard
from shardd.storage import catalog
from shardd.storage.disk import Disk, File, write_all
from shardd.storage.lost import FOLDER
from shardd.storage.owner import owner_of
from shardd.storage.wal import file_name, reopened

KEEP_BYTES = 16 << 20
"""The position is kept after so many applied bytes."""
_MOVING = -2  # see `Mark.part`
_log: FilteringBoundLogger = structlog.get_logger()


class ClosedLog:
    """One shard's directory. All methods block."""

    def __init__(self, disk: Disk, path: Path, objects: Objects, limits: Limits, place: str = "") -> None:
        """`place` as in `Mark`."""
        self._disk = disk
        self._path = path
        self._wal = path / "wal"
        self._cold = Path(limits.cold_dir) / path.name if limits.cold_dir else None
        self._objects = objects
        self._limits = limits
        self.mark = Mark(objects.store.url, token_hex(8), place=place)
        self._place = place
        self._before: tuple[str, ...] = ()
        self.previous: tuple[str, ...] = ()
        """The nonces that the directory used last, at this place: processes of another one may live."""
        self._known_no = 0
        """The log is known to equal the bucket's up to this frame."""
        self._file: File | None = None
        self._size = 0
        self._since_kept = 0
        self._since_fold = 0
        """Bytes of frames after the last checkpoint."""
        self._position: Position | None = None
        """Where the last applied part ends, or what was kept."""
        self.last_no = 0
        self.changed = False
        """Whether it has frames now that another machine wrote."""
        self.from_backup = False
        """True for a directory that never met this bucket and has data: `topics restore` made it, or it is older."""
        self._frozen = self._differed = False
        self._restored_from = -1
        """The manifest that the directory was made from by this process; -1 if none."""
        self._changing = Lock()
        """Held while the files are changed."""
        self._marking = Lock()

    @property
    def held(self) -> bool:
        """Whether this machine held the shard last, as far as it knows. Blocks. Raises `Mismatch`, OSError."""
        mark = read_mark(self._disk, self._path)
        return mark is not None and mark.url == self._objects.store.url and mark.held and not mark.incomplete

    def open(self) -> Position:
        """Look at the files. Returns the position up to which they are known to equal the bucket's log. Raises
        `RecoveryError`, `CatalogError`, `Mismatch`, `StoreError`, OSError."""
        self._disk.make_dir(self._wal)
        mark = read_mark(self._disk, self._path)
        if mark is not None and mark.url == self._objects.store.url:
            self.mark = mark
        self._before = self.previous = tuple(filter(None, (self.mark.nonce, self.mark.claimed)))
        if self._place and self.mark.place != self._place:
            self.previous, self.mark = (), replace(self.mark, nonce="", claimed="", place=self._place)
        if self.mark.incomplete:
            self._clear(keep=self.mark.part == _MOVING)
            return self._made(Position())
        self._look()
        if self.mark.part >= 0:
            position = Position(self.mark.part, self.mark.frame_no)
        elif not self.last_no:
            position = Position()
            self.keep(position)
        else:
            position = self._compared()
            self.from_backup = True
        self._known_no = position.frame_no
        self._position = position
        return position

    def _look(self) -> None:
        owner = owner_of(self._disk, self._path)
        found = catalog.load(self._disk, self._path, owner)
        after_no, tail = (0, None) if found is None else (int(found[1]["frame_no"]), found[1].get("tail"))
        outcome = Outcome()
        # If no process here has held the shard, the bucket has all frames, and those after the kept one may be torn.
        device_no = None if self._before or self.mark.held or self.mark.part < 0 else self.mark.frame_no
        # A log that is another shard's, or older, is refused now, and not when this machine takes over.
        frames = scan(self._disk, self._wal, outcome, after_no, seed=owner.seed, tail=tail, device_no=device_no)
        unkept = self._since_fold = 0
        for each in frames:
            self._since_fold += each.header.length
            unkept += each.header.length if each.header.frame_no > self.mark.frame_no else 0
        self.last_no = outcome.next_no - 1
        if outcome.resume is not None:
            # The last process may have died before its sync, or of one that failed, see `shardd.storage.wal`. What
            # these frames say to be synced was so on the machine that made them.
            path = self._wal / outcome.resume
            file, _ = reopened(self._disk, path, max(0, self._disk.size(path) - unkept))
            file.close()

    def _compared(self) -> Position:
        """For a directory that has kept no position: after the last part, whose last frame the log must have. If the
        bucket is empty, the frame before the log's first one. Raises `Mismatch`."""
        names, store = self._objects.names, self._objects.store
        head = self._objects.newest_head()
        after = names.part(head.part - 1) if head is not None and head.part else ""
        listed = [number for each in store.list(names.log, after) if (number := number_of(each.name))]
        for number in reversed(listed):
            part = header(store.get_range(names.part(number), 0, HEADER_SIZE), number)
            if part.kind != FRAMES:
                continue
            data = bytes(store.get(names.part(number)))[HEADER_SIZE:]
            last = Part(number, Kind.FRAMES, part.term, part.nonce.hex(), part.first_no, part.last_no)
            self._known_no = self.last_no  # trimmed frames count as equal: the directory has no other history
            if part.last_no > self.last_no or self._differs_at(last, memoryview(data)) is not None:
                raise Mismatch(
                    f"{store.url}: {names.prefix} ends with frame {part.last_no}, which is not in {self._wal}: the "
                    "directory is older than the bucket, or both were written to independently. Start with an empty "
                    "data directory to follow the bucket, or use another prefix"
                )
            return Position(listed[-1], part.last_no)
        return Position(0, self._first_no() - 1)

    def _first_no(self) -> int:
        try:
            LogReader(self._disk, self._wal).seek(1, self.last_no)
        except LogGone as gone:
            return gone.first_no
        return 1

    # Requests

    def carry(self, request: Request) -> Answer:
        """Raises OSError, `Mismatch`."""
        with self._changing:
            match request:
                case Apply(part):
                    return self._apply(part, self._objects.frames(part))
                case Restore():
                    answer = self._restore()
                    if isinstance(answer, Position):
                        self._objects.restored(answer.part)
                    return answer
        raise AssertionError(request)

    def _apply(self, part: Part, frames: memoryview) -> Result:
        if self.from_backup and part.last_no > self._known_no:
            raise Mismatch(
                f"{self._objects.store.url}: part {part.number} was written after this directory was restored, by a "
                "service that still ran. Stop that one, remove the data directory, and restore it again"
            )
        if part.first_no > self.last_no + 1 or self._differs_at(part, frames) is not None:
            self._differed = True
            return Result.DIFFERS
        if self._frozen and part.last_no > self.last_no:
            return Result.DIFFERS
        if part.last_no > self.last_no:
            self._append(self.last_no + 1, frames[_offset(frames, self.last_no + 1) :], part.last_no)
            self.changed = True
        self._known_no = max(self._known_no, part.last_no)
        self._position = Position(part.number, self._known_no)
        if self._since_kept >= KEEP_BYTES:
            self.keep(self._position)
        return Result.DONE

    def _differs_at(self, part: Part, frames: memoryview) -> int | None:
        """The first frame of a part that is another one in the log; None if the log has the same, as far as it goes."""
        upto_no = min(part.last_no, self.last_no)
        if part.first_no > upto_no:
            return None
        reader = LogReader(self._disk, self._wal)
        first_no = part.first_no
        try:
            reader.seek(first_no, self.last_no)
        except LogGone as gone:
            if gone.first_no - 1 > self._known_no and part.nonce not in self._before:
                return first_no
            first_no = gone.first_no
            if first_no > upto_no:
                return None
            reader.seek(first_no, self.last_no)
        at, end = _offset(frames, first_no), _offset(frames, upto_no + 1)
        while at < end:
            local = reader.take(upto_no, end - at)
            if local is None or frames[at : at + len(local.data)] != local.data:
                return reader.next_no
            at += len(local.data)
        return None

    def _append(self, first_no: int, data: Buffer, last_no: int) -> None:
        if self._file is None or self._size >= self._limits.wal_segment_bytes:
            self.close()
            path = self._wal / file_name(first_no)
            self._file, self._size = self._disk.create(path), 0
            self._disk.sync_dir(self._wal)
        write_all(self._file, data, self._wal)
        self._file.sync()
        self._size += len(data)
        self._since_kept += len(data)
        self._since_fold += len(data)
        self.last_no = last_no

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def keep(self, position: Position) -> None:
        """Keep the position, up to which the log equals the bucket's and is synced. Raises OSError."""
        self._mark_as(part=position.part, frame_no=position.frame_no)
        self._since_kept = 0

    def claim(self, nonce: str, *, skips: bool) -> None:
        """The process of this nonce is going to create a term, which is over when that process is; `""` for a term of
        which this is not said before the shard is held. Raises OSError."""
        skips = (skips and not self.from_backup) or self.mark.skips
        self._mark_as(claimed=nonce, skips=skips, unshipped=self.from_backup or self.mark.unshipped)

    def hold(self, position: Position, nonce: str) -> None:
        """The shard is held from now on, by the process of this nonce. Raises OSError."""
        self._mark_as(part=position.part, frame_no=position.frame_no, nonce=nonce, held=True)

    def ended(self) -> None:
        """The term of this directory has ended, and another machine is to have the next one: with a place, the nonces
        are forgotten, or else the next process would be before it. Raises OSError."""
        if self._place:
            self._mark_as(nonce="", claimed="")

    def follow(self) -> None:
        """Another machine holds the shard, or has held it since. Raises OSError."""
        if self.mark.held:
            self._mark_as(held=False)

    def all_shipped(self) -> None:
        """A manifest has what is in the files. Raises OSError."""
        self._mark_as(unshipped=False)

    def skipped(self) -> None:
        """The seqs have been given up. Raises OSError."""
        self._mark_as(skips=False)

    def _mark_as(self, **fields: Any) -> None:
        with self._marking:
            self.mark = replace(self.mark, **fields)
            write_mark(self._disk, self._path, self.mark)

    def freeze(self) -> bool:
        """Change nothing from now on, because the shard is going to be opened. Returns False if it must not be: another
        machine's frames are in it."""
        with self._changing:
            if self.changed or self.mark.incomplete:
                return False
            self.close()
            self._frozen = True
            return True

    @property
    def foldable(self) -> int:
        """How many bytes of frames a checkpoint would save the next opening. 0 if the bucket may not have them, and for
        a restored directory, which must not look like one that followed the bucket."""
        kept = self._position is not None and not self.from_backup
        return self._since_fold if kept and self._known_no >= self.last_no else 0

    def fold(self, *, soon: bool = False) -> bool:
        """Make a checkpoint if enough was applied since the last one; with `soon`, if anything was. Returns whether it
        was made: a shard with copies of routers makes none. Raises `RecoveryError`, OSError."""
        if not self.foldable or (self.foldable < self._limits.checkpoint_bytes and not soon):
            return False
        assert self._position is not None
        self.close()
        self.keep(self._position)
        before = self.last_no
        opening = open_shard(self._disk, SystemClock(), self._path, self._limits, restarted=False)
        shard = exhaust(opening)
        shard.checkpoints.inventory.shipped = lambda: before
        shard.close()
        assert shard.log.next_no == before + 1
        self._since_fold = 0
        _log.info("standby_checkpoint", frame=before, made=shard.restoring.restored)
        return shard.restoring.restored

    def clear(self) -> bool:
        """Remove the files of a shard that another machine holds, after `open`, unless something in them may be in no
        bucket. Returns whether it did. Raises OSError."""
        mark = self.mark
        if self.last_no > self._known_no or self.from_backup or mark.held or mark.unshipped or mark.skips:
            return False
        self._set_aside()
        self._disk.remove_tree(self._wal)
        self._disk.remove(self._path / MARK)
        self._disk.sync_dir(self._path)
        return True

    # Set aside, and made again

    def _restore(self) -> Answer:
        with ThreadPoolExecutor(AHEAD) as threads:
            browser = Browser(self._objects.store, self._objects.names, threads)
            try:
                head = self._objects.newest_head()
                if self._frozen or self._has(head):
                    return Result.UNKNOWN  # what the bucket has begins after a manifest that is still to come
                if head is not None and self._has_made(head):
                    self._known_no = max(self._known_no, head.frame_no)
                    return Position(head.first_part - 1, self._known_no)
                manifest = None if head is None else browser.manifest(head.part)
                self._set_aside()
                if manifest is not None:
                    for _ in browser.copy_files(manifest, self._disk, self._path, self._cold, sync=True):
                        pass
                    self._disk.sync_dir(self._path)
            except StoreError as error:
                self._objects.outage.failed(error)
                return Result.UNKNOWN
        position = Position() if head is None else Position(head.first_part - 1, head.frame_no)
        self._restored_from = -1 if head is None else head.part
        self.last_no = self._known_no = position.frame_no
        self._since_fold = 0
        self.changed, self.from_backup = True, False
        _log.info("restored_from_bucket", part=position.part, frame=position.frame_no)
        return self._made(position)

    def _made(self, position: Position) -> Position:
        """The files are new ones, as of this position; none, if it is the first one. Raises OSError."""
        self._before = self.previous = ()
        self.mark = Mark(self._objects.store.url, token_hex(8), skips=self.mark.skips, place=self._place)
        self.keep(position)
        return position

    def _has(self, head: Head | None) -> bool:
        """Whether a restore from the newest manifest would make the directory as it is: a hole follows it."""
        return (-1 if head is None else head.part) == self._restored_from and self.last_no == self._known_no

    def _has_made(self, head: Head) -> bool:
        """Whether the newest manifest was made from these files, so that they have all of it: parts are missing."""
        if head.lineage != self.mark.lineage or self._differed or self.last_no < head.frame_no:
            return False
        _log.warning("parts_missing", manifest=head.part, reason="deleted by hand? `topics replica verify` names them")
        return True

    def _set_aside(self) -> None:
        """Move everything to a folder; remove it, if the bucket has all of it."""
        self.close()
        keep = self.mark.part == _MOVING if self.mark.incomplete else self.last_no > self._known_no
        self._mark_as(incomplete=True, part=_MOVING if keep else -1)
        aside = self._clear(keep)
        if keep:
            self._mark_as(part=-1)
            reason = "the bucket has another history; frames that only this machine had are in that folder alone"
            _log.warning("set_aside", path=str(self._path / aside), frames=self.last_no, reason=reason)
        self.last_no = 0

    def _clear(self, keep: bool) -> str:
        """Move all but what was set apart from the directory, and the cold one, to a folder, and remove this unless it
        is to be kept. Returns its name."""
        aside = f"{ASIDE}{token_hex(4)}"
        for top in (self._path, self._cold):
            if top is None or not (names := self._disk.list(top)):
                continue
            self._disk.make_dir(top / aside)
            for name in names:
                if not name.startswith((ASIDE, MARK)) and name != FOLDER:
                    self._disk.replace(top / name, top / aside / name)
            for name in (each for each in self._disk.list(top) if keep and each.startswith(ASIDE)):
                self._disk.sync_dir(top / name)  # also what a process moved that died before it could sync
            self._disk.sync_dir(top)
            if not keep:
                self._disk.remove_tree(top / aside)
        self._disk.make_dir(self._wal)
        return aside


def _offset(frames: memoryview, number: int) -> int:
    """Where frame `number` begins, or would."""
    end = 0
    for each in places(frames):
        if each.number >= number:
            break
        end = each.end
    return end
