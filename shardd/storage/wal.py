"""The write-ahead log of one shard: frames of all topics in commit order, in files `wal-<first frame no>.log`.

Files hold frames back to back from byte 0 (layout: `proto.format.frame`). Frame numbers go up by one over all files.
A file is synced to its end before the next one is begun, so only the newest can hold frames that are not on the device.
A file whose successor holds frames from M on counts only up to frame M-1: what follows in it was given up. An empty
successor says nothing: it may be one whose making failed half-way.

Life of a frame:

    staged     made, numbered, in memory only           `stage`
    written    handed to the kernel                     `flush`      survives the death of the process
    synced     on the device                            `end_sync`   survives the death of the machine

When a write fails, the file is cut back to its last whole frame, and the staged frames are forgotten; but if the disk
is full and room can be made for them (`full`), they are written again. When a sync fails, nobody knows what the device
holds of the frames since the last good sync, and asking again would lie (the kernel has dropped the error). So those
frames are split: the ones whose sender waits for the sync are given up, the ones already acknowledged are written
again, renumbered, to a new file, which is synced before it gets its name. If that does not work either, the log is
read-only until the process is started again.

Where the process may die, and what recovery then finds:

    in `flush`                  a partial last frame: torn, cut
    in `_rotate`                the old file alone, or an empty one behind it: both fine
    in `rescue`, before rename  the old file whole, a `.tmp` that is removed
    in `rescue`, after rename   the new file, which supersedes the old one's tail
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path

from proto.format.frame import Frame, Kind, encode_map
from shardd.storage.disk import Disk, File, is_full


def file_name(first_no: int) -> str:
    return f"wal-{first_no:020d}.log"


def first_no_of(name: str) -> int | None:
    """The first frame number of a WAL file's name; None for other files."""
    if name.startswith("wal-") and name.endswith(".log") and name[4:-4].isdecimal():
        return int(name[4:-4])
    return None


class WalError(Exception):
    """The log could not take frames. `cause` is the system's word for why."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message if cause is None else f"{message}: {cause.strerror or cause}")
        self.cause = cause


@dataclass(frozen=True, slots=True)
class WalStatistics:
    frames_total: int
    batches_total: int
    fsyncs_total: int
    bytes_written_total: int
    rotations_total: int
    read_only: bool


@dataclass(slots=True)
class SyncJob:
    """What one sync covers. `run` blocks and may be called in a thread; everything else of the log may not."""

    file: File
    upto_no: int

    def run(self) -> None:
        self.file.sync()


class Wal:
    def __init__(self, disk: Disk, directory: Path, *, next_no: int, max_bytes: int, resume: str | None = None) -> None:
        """`resume` names the file to go on in, whose frames up to `next_no - 1` are whole. They are synced now, if a
        process that was killed had not come to it. Raises OSError."""
        self._disk = disk
        self._directory = directory
        self._max_bytes = max_bytes
        self.next_no = next_no
        self.synced_no = next_no - 1
        self.read_only: str | None = None
        self.full: Callable[[list[Frame]], bool] = lambda frames: False
        """Called when the disk has no room for these frames, with none for what must be written. True if there may be
        some now."""
        self._rotation_wanted = False
        self._staged: list[Frame] = []
        self._unsynced: deque[tuple[int, Frame]] = deque()
        self._frames = self._writes = self._syncs = self._bytes = self._rotations = 0
        if resume is None:
            self._file, self._size = self._create(next_no), 0
        else:
            self._file = disk.open(directory / resume)
            self._size = disk.size(directory / resume)
            self._file.sync()

    def _create(self, first_no: int) -> File:
        file = self._disk.create(self._directory / file_name(first_no))
        self._disk.sync_dir(self._directory)
        return file

    @property
    def dirty(self) -> bool:
        """Are there written frames that no sync has covered?"""
        return bool(self._unsynced)

    @property
    def size(self) -> int:
        """Bytes in the current file."""
        return self._size

    def stage(self, encode: Callable[[int, int], Frame]) -> tuple[int, Frame]:
        """Number and make the next frame: `encode(frame_no, synced_no)`. Returns its number and the frame."""
        number = self.next_no
        frame = encode(number, self.synced_no)
        self._staged.append(frame)
        self.next_no += 1
        return number, frame

    def flush(self) -> None:
        """Hand all staged frames to the kernel, in one system call unless there are very many. Raises `WalError`,
        and then none of them is in the log."""
        staged, self._staged = self._staged, []
        if not staged:
            return
        first_no = self.next_no - len(staged)
        if self.read_only is not None:
            self.next_no = first_no
            raise WalError(self.read_only)
        buffers = [part for frame in staged for part in (frame.head, frame.tail)]
        size = sum(map(len, buffers))
        try:
            try:
                self._write(buffers, size)
            except OSError as error:
                if self.read_only is not None or not is_full(error) or not self.full(staged):
                    raise
                self._write(buffers, size)
        except OSError as error:
            self.next_no = first_no
            raise WalError("the write-ahead log could not be written", error) from error
        self._size += size
        self._frames += len(staged)
        self._writes += 1
        self._bytes += size
        self._unsynced.extend(zip(range(first_no, self.next_no), staged, strict=True))

    def _write(self, buffers: list[bytes], size: int) -> None:
        """All of it, or nothing. Raises OSError."""
        try:
            written = self._file.write(buffers)
            if written != size:
                raise OSError(ENOSPC, f"only {written} of {size} bytes were taken")
        except OSError:
            try:
                self._cut_back()
            except OSError as second:
                self._stop(f"the log could not be cut back after a failed write ({second.strerror or second})")
            raise

    def _cut_back(self) -> None:
        try:
            self._file.truncate(self._size)
        except OSError as error:
            # File systems that never write in place need room for this, too.
            if not is_full(error) or not self.full([]):
                raise
            self._file.truncate(self._size)

    def begin_sync(self) -> SyncJob:
        """Everything written so far. One job at a time."""
        return SyncJob(self._file, self._written_no)

    @property
    def _written_no(self) -> int:
        return self.next_no - 1 - len(self._staged)

    def end_sync(self, job: SyncJob) -> None:
        """The job ran without an error: what it covers is on the device. A file that is full is ended here.

        Raises OSError if the little that was written to a full file meanwhile cannot be synced.
        """
        self._syncs += 1
        self._mark_synced(job.upto_no)
        if self._size >= self._max_bytes or self._rotation_wanted:
            self._rotate()

    def rotate(self) -> None:
        """Begin a new file as soon as everything is synced, so that this one can be removed one day."""
        self._rotation_wanted = bool(self._size)
        if self._rotation_wanted and not self.dirty:
            self._rotate()

    def _mark_synced(self, upto_no: int) -> None:
        self.synced_no = upto_no
        while self._unsynced and self._unsynced[0][0] <= upto_no:
            self._unsynced.popleft()

    def _rotate(self) -> None:
        if self._unsynced:
            self._file.sync()
            self._mark_synced(self._written_no)
        try:
            file = self._create(self.synced_no + 1)
        except OSError:
            # The old file will do until there is room for a new one. If the new name stays, it names an empty file.
            try:
                self._disk.remove(self._directory / file_name(self.synced_no + 1))
            except OSError:
                pass
            return
        self._file.close()
        self._file, self._size = file, 0
        self._rotation_wanted = False
        self._rotations += 1

    def rescue(self, keep: Callable[[int], bool]) -> None:
        """After a failed sync: write the unsynced frames for which `keep(frame_no)` holds to a new file, give up the
        others. Raises `WalError` if that fails too; the log is read-only then."""
        kept = [frame for number, frame in self._unsynced if keep(number)]
        first_no = self.synced_no + 1
        fields = {"given_up": len(self._unsynced) - len(kept)}
        kept.insert(0, encode_map(Kind.RESCUED, 0, fields, 0))
        kept = [frame.renumbered(first_no + n, self.synced_no) for n, frame in enumerate(kept)]
        path = self._directory / file_name(first_no)
        temporary = path.with_suffix(".log.tmp")
        buffers = [part for frame in kept for part in (frame.head, frame.tail)]
        size = sum(map(len, buffers))
        try:
            try:
                file = self._write_new(temporary, buffers, size)
            except OSError as error:
                if not is_full(error) or not self.full([]):
                    raise
                file = self._write_new(temporary, buffers, size)
            self._disk.replace(temporary, path)
            self._disk.sync_dir(self._directory)
        except OSError as error:
            self._stop(f"a sync of the log failed, and so did writing a new file ({error.strerror or error})")
            raise WalError("the write-ahead log could not be rescued", error) from error
        self._file.close()
        self._unsynced.clear()
        self._file, self._size = file, size
        self.synced_no = first_no + len(kept) - 1
        self.next_no = self.synced_no + 1
        self._bytes += size
        self._rotations += 1

    def _write_new(self, path: Path, buffers: list[bytes], size: int) -> File:
        """A new file, synced. Raises OSError, and then there is none."""
        try:
            file = self._disk.create(path)
            if file.write(buffers) != size:
                raise OSError(ENOSPC, "the disk did not take all bytes")
            file.sync()
        except OSError:
            try:
                self._disk.remove(path)
            except OSError:
                pass  # the next start removes it
            raise
        return file

    def _stop(self, reason: str) -> None:
        self.read_only = reason

    def close(self) -> None:
        """Sync and close. Raises OSError if the last sync fails."""
        if self.dirty:
            self._file.sync()
        self._file.close()

    def statistics(self) -> WalStatistics:
        return WalStatistics(
            self._frames, self._writes, self._syncs, self._bytes, self._rotations, self.read_only is not None
        )
