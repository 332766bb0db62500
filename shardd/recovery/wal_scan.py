"""The WAL scan: reads the log back after a stop of any kind.

At the offset where frame N is expected in a file, exactly one row applies:

    found there                                             decision
    the next file that is not empty starts at N             continue in that file; the bytes that follow were given up
    a valid frame numbered N                                KEEP
    end of the last file                                    END
    a frame of another format version, or a whole one with
      flags that are not known                              REFUSE: start the release that wrote it
    a valid frame with another number, or whose link says
      that another frame came before it                     REFUSE: the file is of another shard, or of another time
    anything else, and a later valid frame of the log
      says that N had been synced                           REFUSE: damage, with path and offset
    anything else                                           CUT here; nothing after it was ever synced

A link (`proto.format.frame.link_of`) is checked if the checksum of the frame before is known: from the log, from the
catalog if that ends there, or because there is none before frame 1. Frames of older releases have no links. A log that
ends before its catalog is refused. REFUSE changes nothing.

What frames say to be synced was so on the machine that made them. Of a log that another machine made, only the frames
up to the one that is known to be on this device can be damaged; what is cut after it can be had from there.

CUT removes the later files, last one first, then truncates this file and syncs. If the process dies in between, the
next recovery gives the same result.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from proto.format.buffer import Buffer
from proto.format.frame import CHECKSUM, HEADER, MAGIC, FrameError, Header, UnknownVersion, check, link_of
from shardd.errors import ShardError
from shardd.storage.disk import Disk
from shardd.storage.errors import exhausted
from shardd.storage.read_ahead import ReadAhead
from shardd.storage.wal import first_no_of

_File = tuple[int, Path]
"""The number of the first frame of a log file, and the file."""
REMEDY = "Put the right file back, or restore the shard from a backup"


class RecoveryError(ShardError):
    """The files are damaged, or of an unknown version. No record was changed, and a restart will not help."""


@dataclass(frozen=True, slots=True)
class Found:
    """A valid frame: its header and bytes, and the progress of the scan in bytes."""

    header: Header
    buffer: Buffer
    done_bytes: int
    total_bytes: int


@dataclass(slots=True)
class Outcome:
    """The end of the log: the number of the next frame, the file to append to (None: create one), and what was cut."""

    next_no: int = 1
    begin_no: int = 1
    """Number of the first frame that was looked at. Files before it were passed over."""
    resume: str | None = None
    unsynced_at: int = 0
    """Offset in `resume` of the first frame of which no other frame says that it was synced."""
    cut_path: str | None = None
    cut_offset: int = 0
    cut_bytes: int = 0
    cut_reason: str = ""
    replayed_bytes: int = 0
    replayed_records: int = 0
    """Bytes and records of the frames that were found."""
    tail: int | None = None
    """Checksum of the last frame; 0 if there is none, None if it is not known."""
    firsts: dict[int, int] = field(default_factory=dict)
    """By number of the first frame: the checksum of that frame, for each file that was read."""


def scan(
    disk: Disk,
    directory: Path,
    outcome: Outcome,
    after_no: int = 0,
    *,
    seed: int | None = None,
    tail: int | None = None,
    device_no: int | None = None,
) -> Iterator[Found]:
    """Yield every valid frame after `after_no`, in order. Blocks. `outcome` is complete when the iterator has ended.

    `after_no` is the last frame that the snapshot covers; it had been synced by then. `tail` is its checksum, if known.
    `seed` is that of the links, None to pass over them. Frames after `device_no` were made by another machine, and may
    never have been synced here; None: there are no such frames. Raises `RecoveryError`.
    """
    log = _Log(disk, directory, outcome, after_no, seed, tail, device_no)
    files = log.begin()
    total = sum(disk.size(path) for _, path in files)
    done = offset = 0
    for at, (_, path) in enumerate(files):
        following = files[at + 1 :]
        file = ReadAhead(disk, path)
        end = following[0][0] if following else None
        offset = 0
        while outcome.next_no != end:
            if offset == file.size and end is None:
                break
            try:
                header, frame = file.frame(offset)
            except UnknownVersion as error:
                raise RecoveryError(f"{path}, offset {offset}: {error}") from None
            except FrameError as error:
                log.cut(path, offset, [later for _, later in following], error)
                return
            log.follow(header, frame, path, offset)
            outcome.next_no += 1
            if header.frame_no > after_no:
                outcome.replayed_bytes += header.length
                outcome.replayed_records += header.count
                yield Found(header, frame, done + offset + header.length, total)
            offset += header.length
        done += file.size
        outcome.resume = path.name
    log.end(files, offset)


@dataclass(slots=True)
class _Log:
    """A log that is read: checks that each frame follows the one before, and notes the first frame of each file, and
    which frames of a file no frame after them says to be synced. The first fields are the arguments of `scan`."""

    disk: Disk
    directory: Path
    outcome: Outcome
    after_no: int
    seed: int | None
    tail: int | None
    device_no: int | None
    empty: list[_File] = field(default_factory=list)
    unsynced: deque[tuple[int, int]] = field(default_factory=deque)
    """Number and offset of each such frame. All frames of earlier files were synced."""

    def begin(self) -> list[_File]:
        """The files to be read, from the one with the frame after the snapshot on. Removes files of a rescue that died
        before its rename."""
        disk, outcome, after_no = self.disk, self.outcome, self.after_no
        for name in disk.list(self.directory):
            if name.endswith(".tmp"):
                disk.remove(self.directory / name)
        names = disk.list(self.directory)
        found = [(first, self.directory / name) for name in names if (first := first_no_of(name)) is not None]
        self.empty = [each for each in found if not disk.size(each[1])]
        files = [each for each in found if each not in self.empty]
        while len(files) > 1 and files[1][0] <= after_no + 1:
            del files[0]
        outcome.next_no = max(1, after_no + 1, *(first for first, _ in found))
        outcome.tail = self.tail if after_no else 0
        if files:
            number = outcome.next_no = outcome.begin_no = files[0][0]
            if number > after_no + 1:
                raise RecoveryError(
                    f"{self.directory}: the log begins with frame {number}, but the snapshot ends at frame "
                    f"{after_no}: a file is missing"
                )
            outcome.tail = 0 if number == 1 else self.tail if number == after_no + 1 else None
        return files

    def follow(self, header: Header, frame: Buffer, path: Path, offset: int) -> None:
        """Raises `RecoveryError` if the valid frame at `offset` is not the next one of this log."""
        number, tail = self.outcome.next_no, self.outcome.tail
        if header.frame_no != number:
            wrong = f"frame {header.frame_no} where frame {number} should be"
        elif self.seed is not None and tail is not None and header.link and header.link != link_of(tail, self.seed):
            wrong = f"frame {number} does not follow the frame before it"
        else:
            (checksum,) = CHECKSUM.unpack_from(frame, HEADER.size + header.body_len)
            if number != self.after_no or self.tail in (None, checksum):
                self.outcome.tail = checksum
                frames = self.unsynced
                if not offset:
                    self.outcome.firsts[number] = checksum
                    frames.clear()
                frames.append((number, offset))
                while frames and frames[0][0] <= header.synced_no:
                    frames.popleft()
                self.outcome.unsynced_at = frames[0][1] if frames else offset + header.length
                return
            wrong = f"frame {number} is not the one that the catalog was made after"
        raise RecoveryError(f"{path}, offset {offset}: {wrong}: of another shard, or of another time. {REMEDY}")

    def end(self, files: list[_File], offset: int) -> None:
        """The last of these files ends at `offset`. Removes empty files: they have no meaning but their names, see
        `shardd.storage.wal`."""
        after_no, empty = self.after_no, self.empty
        if files:
            self._refuse_short(files[-1][1], offset)
        elif empty and empty[-1][0] > after_no + 1:
            raise RecoveryError(
                f"{self.directory}: frames {after_no + 1} to {empty[-1][0] - 1}: a file is missing. {REMEDY}"
            )
        for _, path in empty:
            self.disk.remove(path)

    def cut(self, path: Path, offset: int, later: list[Path], error: FrameError) -> None:
        """Cut off what is at `offset` in place of the next frame, and say so in the outcome. Raises `RecoveryError` if
        it is no torn tail."""
        disk, outcome = self.disk, self.outcome
        self._refuse_damage(path, offset, later, error)
        self._refuse_short(path, offset)
        outcome.cut_path, outcome.cut_offset, outcome.cut_reason = str(path), offset, str(error)
        outcome.cut_bytes = sum(disk.size(each) for each in (path, *later)) - offset
        outcome.resume = path.name
        for extra in reversed(later):
            disk.remove(extra)
        with closing(disk.open(path)) as file:
            file.truncate(offset)
            file.sync()
        disk.sync_dir(path.parent)
        for _, each in self.empty:
            disk.remove(each)

    def _refuse_short(self, path: Path, offset: int) -> None:
        """Refuse a log that ends before its snapshot: new frames would get the numbers of older ones. And one that ends
        before an empty file, which was created when all frames before it were synced."""
        next_no, empty = self.outcome.next_no, self.empty
        if empty and next_no < empty[-1][0]:
            raise RecoveryError(
                f"{path}, offset {offset}: the log ends with frame {next_no - 1}, but {empty[-1][1].name} was begun "
                f"after frame {empty[-1][0] - 1} had been synced. {REMEDY}"
            )
        if next_no <= self.after_no:
            raise RecoveryError(
                f"{path}, offset {offset}: the log ends with frame {next_no - 1}, but the snapshot was made when "
                f"frame {self.after_no} had been synced. Restore the file from a backup"
            )

    def _refuse_damage(self, path: Path, offset: int, later: list[Path], error: FrameError) -> None:
        number = self.outcome.next_no
        if self.device_no is not None and number > self.device_no:
            return
        for candidate, start in [(path, offset), *((each, 0) for each in later)]:
            for at, header in valid_frames(self.disk.read(candidate), start):
                if header.frame_no > number and header.synced_no >= number:
                    raise RecoveryError(
                        f"{path}, offset {offset}: frame {number} is damaged ({error}), but it had been synced: a "
                        f"frame in {candidate.name} at offset {at} was written after that. Restore the file from a "
                        "backup"
                    )


def valid_frames(view: memoryview, start: int = 0) -> Iterator[tuple[int, Header]]:
    """Offset and header of every valid frame at or after `start`, looked for at every eighth byte: a bad frame does not
    hide the next one."""
    raw = view.obj if isinstance(view.obj, (bytes, bytearray)) and len(view.obj) == len(view) else bytes(view)
    at = raw.find(MAGIC, start)
    while at != -1:
        if at % 8 == 0:
            with suppress(FrameError):
                yield at, check(view, at)
        at = raw.find(MAGIC, at + 1)


def precedes(disk: Disk, path: Path, after: Path, seed: int | None) -> bool:
    """False if the log file `path`, which was passed over, is certainly not the one before the file `after`. Blocks.
    Raises OSError."""
    first_no, end = first_no_of(path.name), first_no_of(after.name)
    assert first_no is not None
    assert end is not None
    view, offset = disk.read(path), 0
    try:
        for number in range(first_no, end):
            header = Header(view, offset)
            if header.frame_no != number:
                return False
            (checksum,) = CHECKSUM.unpack_from(view, offset + HEADER.size + header.body_len)
            offset += header.length
    except (FrameError, struct.error):
        return not 0 < offset == len(view)  # it is damaged; or it is whole, and ends too early
    try:
        link = Header(disk.read_part(after, 0, HEADER.size)).link
    except FrameError:
        return True  # the next one is empty
    return not link or seed is None or link == link_of(checksum, seed)


def replaced(disk: Disk, path: Path, first: int) -> bool:
    """True if a log file begins with another whole frame than the one with the checksum `first`. Blocks. Raises OSError
    if descriptors or memory run out."""
    try:
        header = Header(disk.read_part(path, 0, HEADER.size))
        (checksum,) = CHECKSUM.unpack(disk.read_part(path, HEADER.size + header.body_len, CHECKSUM.size))
        if checksum != first:
            check(disk.read_part(path, 0, min(header.length, disk.size(path))))
    except (FrameError, struct.error):
        return False  # it is damaged
    except OSError as error:
        if exhausted(error):
            raise
        return False  # as well
    return bool(checksum != first)
