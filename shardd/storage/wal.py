"""The write-ahead log of one shard: frames of all topics in commit order, in files `wal-<first frame no>.log`.

A file has frames back to back from byte 0 (layout: `proto.format.frame`). Frame numbers go up by one over all files. A
file is synced to its end before the next one is created. So only frames of the newest file can be missing on the
device. If the successor of a file begins with frame M, the file counts only up to frame M-1: the frames after it were
given up. An empty successor has no meaning: its creation may have failed half-way.

States of a frame:

    staged     encoded, numbered, in memory only        `stage`
    written    handed to the kernel                     `flush`      survives the death of the process
    synced     on the device                            `end_sync`   survives the death of the machine

When a write fails, the file is cut back to its last whole frame and the staged frames are dropped. If the disk is full
and `full` frees space, they are written again.

When a sync fails, the device may have any of the frames since the last good sync. A second fsync would report success,
because the kernel has dropped the error. The log therefore splits those frames:

1. Frames whose sender waits for the sync are given up.
2. Frames that were already acknowledged are renumbered and written to a new file.
3. The new file is synced, then renamed to its final name.
4. If any of this fails, the log is read-only until the process is started again.

The next process reads the frames of the failed sync from the kernel, which shows them and takes them for written. So it
writes again, in place, all frames that no other frame says to be synced, before it syncs the file. If it did not, its
sync would succeed, later frames would follow, and when the machine stops there would be a hole before them.

Where the process may die, and what recovery then finds:

    in `flush`                  a partial last frame: torn, cut
    in `_rotate`                the old file alone, or followed by an empty one: both are valid
    in `rescue`, before rename  the old file whole, and a `.tmp` that recovery removes
    in `rescue`, after rename   the new file, which supersedes the old one's tail
    in `reopened`               the same bytes
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import ClassVar, TypeVar

from proto.format.frame import LINK_SHIFT, Frame, Kind, link_of
from proto.format.map_body import MapBody
from proto.ipc.figures import WalFigures
from proto.model.limits import MAX_U64
from shardd.errors import ShardError
from shardd.storage.disk import Disk, File, is_full
from shardd.storage.log_events import LogEvents

_T = TypeVar("_T")


def file_name(first_no: int) -> str:
    return f"wal-{first_no:020d}.log"


def first_no_of(name: str) -> int | None:
    """The first frame number of a WAL file's name; None for other files."""
    if name.startswith("wal-") and name.endswith(".log") and name[4:-4].isdecimal():
        return int(name[4:-4])
    return None


def files_upto(disk: Disk, directory: Path, log: Wal | None) -> list[tuple[int, str]]:
    """First frame number and name of the log files, in order, up to the one that `log` writes, if there is one. Without
    those that failed rotations left: they are empty, and the file before continues. Raises OSError."""
    current_no = MAX_U64 if log is None else log.first_no
    found = [(first, name) for name in disk.list(directory) if (first := first_no_of(name)) is not None]
    before = [each for each in found if each[0] < current_no and disk.size(directory / each[1])]
    return before + [each for each in found if each[0] == current_no]


def reopened(disk: Disk, path: Path, unsynced_at: int) -> tuple[File, int]:
    """A log file and its size. Its bytes from an offset on are written again in place, and it is synced. Blocks. Raises
    OSError, but not for a full disk: a copy-on-write file system needs room, and then the sync alone has to do."""
    file, size = disk.open(path), disk.size(path)
    try:
        if unsynced_at < size:
            file.write_at(unsynced_at, disk.read_part(path, unsynced_at, size - unsynced_at))
    except OSError as error:
        if not is_full(error):
            raise
    file.sync()
    return file, size


class Rescued(MapBody):
    """The first frame of a file that takes over after a failed sync."""

    kind: ClassVar = Kind.RESCUED

    given_up: int
    """Number of frames."""


class WalError(ShardError):
    """The log could not write frames. `cause` is the system's error, if there is one."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message if cause is None else f"{message}: {cause.strerror or cause}")
        self.cause = cause


@dataclass(slots=True)
class SyncJob:
    """One sync: the file, and the last frame number that it covers. `run` blocks and may be called in a worker thread;
    no other method of the log may."""

    file: File
    upto_no: int

    def run(self) -> None:
        self.file.sync()


class Wal:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        events: LogEvents,
        *,
        next_no: int,
        max_bytes: int,
        resume: str | None,
        unsynced_at: int,
        seed: int | None,
        tail: int | None,
        firsts: dict[int, int],
    ) -> None:
        """`resume` names the file to append to, which is valid up to frame `next_no - 1`. Its frames from `unsynced_at`
        on are written again, and synced. `seed` is that of the links between frames (None: there are none), `tail` the
        checksum of that last frame (0: there is none, None: not known). `firsts` gets the checksum of each file's first
        frame, by its number. Blocks. Raises OSError."""
        self._disk = disk
        self._events = events
        self._seed = seed
        self._staged_tail = self._written_tail = self._synced_tail = tail
        """Checksums of the last frame that was staged, written, synced."""
        self._firsts = firsts
        self._directory = directory
        self._max_bytes = max_bytes
        self.next_no = next_no
        self.synced_no = next_no - 1
        self.read_only: str | None = None
        self._unsyncable = False
        """A sync failed, and so did the rescue. A later sync would succeed without the frames of that one."""
        self._rotation_wanted = False
        self._staged: list[Frame] = []
        self._unsynced: deque[tuple[int, Frame]] = deque()
        self._frames = self._writes = self._syncs = self._rotations = 0
        self.bytes_written = 0
        """Bytes written to all files since the start of the process."""
        self.first_no = next_no
        """Number of the first frame of the current file."""
        if resume is None:
            self._file, self._size = self._create(next_no), 0
        else:
            self.first_no = first_no_of(resume) or next_no
            self._file, self._size = reopened(disk, directory / resume, unsynced_at)

    def _create(self, first_no: int) -> File:
        file = self._disk.create(self._directory / file_name(first_no))
        self._disk.sync_dir(self._directory)
        return file

    @property
    def dirty(self) -> bool:
        """True if frames are written that no sync covers."""
        return bool(self._unsynced)

    @property
    def syncable(self) -> bool:
        """True if frames are written that no sync covers, and one still can. That is so in a read-only log, too, if a
        failed write could not be cut back: a start cuts off what follows the last whole frame."""
        return self.dirty and not self._unsyncable

    def stage(self, encode: Callable[[int, int], Frame]) -> tuple[int, Frame]:
        """Number the next frame and encode it with `encode(frame_no, synced_no)`. Returns the number and the frame."""
        number = self.next_no
        frame = encode(number, self._linked(self._staged_tail, self.synced_no))
        tail = frame.checksum
        self._staged.append(frame)
        self._staged_tail = tail
        self.next_no += 1
        return number, frame

    def _linked(self, tail: int | None, synced_no: int) -> int:
        """The fields for the header of the frame after one with the checksum `tail`: its `synced_no` and its link."""
        if tail is None or self._seed is None:
            return synced_no
        return synced_no | link_of(tail, self._seed) << LINK_SHIFT

    def unstage(self, count: int) -> None:
        """Forget the last `count` staged frames. Their numbers are given again."""
        if count:
            assert count <= len(self._staged), "a frame that was written keeps its number"
            kept = self._staged[:-count]
            tail = kept[-1].checksum if kept else self._written_tail
            self._staged, self._staged_tail = kept, tail
            self.next_no -= count

    def checksum_of(self, number: int) -> int | None:
        """The checksum of frame `number`, if that is the last one that was synced; else None."""
        return self._synced_tail if number == self.synced_no else None

    def flush(self) -> None:
        """Write all staged frames, in one system call unless there are very many. Raises `WalError`, and then none of
        them is in the log."""
        staged, self._staged = self._staged, []
        if not staged:
            return
        first_no = self.next_no - len(staged)
        tail, self._staged_tail = self._staged_tail, self._written_tail
        if self.read_only is not None:
            self.next_no = first_no
            raise WalError(self.read_only)
        buffers = [part for frame in staged for part in (frame.head, frame.tail)]
        size = sum(map(len, buffers))
        try:
            try:
                self._write(buffers, size)
            except OSError as error:
                if self.read_only is not None or not is_full(error) or not self._events.full(staged):
                    raise
                self._write(buffers, size)
        except OSError as error:
            self.next_no = first_no
            raise WalError("the write-ahead log could not be written", error) from error
        self._staged_tail = self._written_tail = tail
        if not self._size:
            self._firsts[first_no] = staged[0].checksum
        self._size += size
        self._frames += len(staged)
        self._writes += 1
        self.bytes_written += size
        self._unsynced.extend(zip(range(first_no, self.next_no), staged, strict=True))

    def _write(self, buffers: list[bytes], size: int) -> None:
        """Write all bytes or none. Raises OSError. If the cut fails, the log becomes read-only."""
        try:
            written = self._file.write(buffers)
            if written != size:
                raise OSError(ENOSPC, f"only {written} of {size} bytes were taken")
        except OSError:
            try:
                # A copy-on-write file system needs free space even to truncate.
                self._in_room(lambda: self._file.truncate(self._size))
            except OSError as second:
                self.read_only = f"the log could not be cut back after a failed write ({second.strerror or second})"
            raise

    def _in_room(self, act: Callable[[], _T]) -> _T:
        """Do what must not fail on a full disk: if it is full, and space is freed, do it again. Raises OSError."""
        try:
            return act()
        except OSError as error:
            if not is_full(error) or not self._events.full([]):
                raise
            return act()

    def begin_sync(self) -> SyncJob:
        """A job that syncs everything written so far. The caller runs one job at a time."""
        return SyncJob(self._file, self.written_no)

    @property
    def written_no(self) -> int:
        """The last frame that was handed to the kernel."""
        return self.next_no - 1 - len(self._staged)

    def end_sync(self, job: SyncJob) -> None:
        """Mark the job's frames as synced; call it when `run` raised no error. Ends a file that is full.

        Raises OSError if frames that were written to a full file during the job cannot be synced.
        """
        self._syncs += 1
        self._mark_synced(job.upto_no)
        if self._size >= self._max_bytes or self._rotation_wanted:
            self._rotate()

    def rotate(self) -> None:
        """Begin a new file as soon as everything is synced, so that a checkpoint can remove the current one."""
        self._rotation_wanted = bool(self._size)
        if self._rotation_wanted and not self.dirty:
            self._rotate()

    def _mark_synced(self, upto_no: int) -> None:
        assert self.synced_no <= upto_no <= self.written_no, "frames are written, then synced, in order"
        self.synced_no = upto_no
        last = None
        while self._unsynced and self._unsynced[0][0] <= upto_no:
            last = self._unsynced.popleft()[1]
        if last is not None:
            self._synced_tail = last.checksum

    def _rotate(self) -> None:
        if self._unsynced:
            self._file.sync()
            self._mark_synced(self.written_no)
        try:
            file = self._create(self.synced_no + 1)
        except OSError:
            # The log continues in the old file. If the new name cannot be removed, it names an empty file, which
            # starts and `files_upto` pass over.
            with suppress(OSError):
                self._disk.remove(self._directory / file_name(self.synced_no + 1))
            return
        self._file.close()
        self._file, self._size, self.first_no = file, 0, self.synced_no + 1
        self._rotation_wanted = False
        self._rotations += 1

    def rescue(self, keep: Callable[[int], bool]) -> None:
        """After a failed sync, write the unsynced frames for which `keep(frame_no)` is true to a new file. Gives up the
        others. Blocks. Raises `WalError` if that fails too; the log is then read-only."""
        kept = [frame for number, frame in self._unsynced if keep(number)]
        first_no = self.synced_no + 1
        kept.insert(0, Rescued(len(self._unsynced) - len(kept)).encode(0, 0))
        tail = self._synced_tail
        for n, frame in enumerate(kept):
            kept[n] = frame.renumbered(first_no + n, self._linked(tail, self.synced_no))
            tail = kept[n].checksum
        path = self._directory / file_name(first_no)
        temporary = path.with_suffix(".log.tmp")
        buffers = [part for frame in kept for part in (frame.head, frame.tail)]
        size = sum(map(len, buffers))
        try:
            file = self._in_room(lambda: self._write_new(temporary, buffers, size))
            self._disk.replace(temporary, path)
            self._disk.sync_dir(self._directory)
        except OSError as error:
            self._unsyncable = True
            self.read_only = f"a sync of the log failed, and so did writing a new file ({error.strerror or error})"
            raise WalError("the write-ahead log could not be rescued", error) from error
        self._file.close()
        self._unsynced.clear()
        self._file, self._size, self.first_no = file, size, first_no
        self._firsts[first_no] = kept[0].checksum
        self._staged_tail = self._written_tail = self._synced_tail = tail
        self.synced_no = first_no + len(kept) - 1
        self.next_no = self.synced_no + 1
        self.bytes_written += size
        self._rotations += 1

    def _write_new(self, path: Path, buffers: list[bytes], size: int) -> File:
        """Write and sync a new file. Raises OSError, and then the file does not exist."""
        try:
            file = self._disk.create(path)
            if file.write(buffers) != size:
                raise OSError(ENOSPC, "the disk did not take all bytes")
            file.sync()
        except OSError:
            with suppress(OSError):  # the next start removes it
                self._disk.remove(path)
            raise
        return file

    def close(self) -> None:
        """Sync and close. Blocks. Raises OSError if the last sync fails."""
        if self.dirty:
            self._file.sync()
        self._file.close()

    def statistics(self) -> WalFigures:
        return WalFigures(
            self._frames,
            self._writes,
            self._syncs,
            self.bytes_written,
            self._rotations,
            read_only=self.read_only is not None,
            last_frame=self.next_no - 1,
        )
