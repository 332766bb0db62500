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
from dataclasses import dataclass, field
from pathlib import Path

from proto.format.buffer import Buffer
from proto.format.frame import CHECKSUM, HEADER, MAGIC, FrameError, Header, UnknownVersion, check, link_of
from shardd.errors import ShardError
from shardd.storage.disk import Disk
from shardd.storage.errors import exhausted
from shardd.storage.read_ahead import ReadAhead
from shardd.storage.wal import first_no_of

_Name = tuple[int, str]
"""The number of the first frame of a log file, and its name."""
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


class _Links:
    """Checks that each frame follows the one before, and notes the first frame of each file, and which frames of a file
    no frame after them says to be synced. `tail` is the checksum of frame `after_no`, as far as known."""

    def __init__(self, outcome: Outcome, seed: int | None, after_no: int, tail: int | None) -> None:
        self._outcome = outcome
        self._seed = seed
        self._after_no = after_no
        self._tail = tail
        self._unsynced: deque[tuple[int, int]] = deque()
        """Number and offset of each such frame. All frames of earlier files were synced."""

    def begin(self) -> None:
        """The log begins with frame `outcome.next_no`."""
        number = self._outcome.next_no
        self._outcome.tail = 0 if number == 1 else self._tail if number == self._after_no + 1 else None

    def follow(self, header: Header, frame: Buffer, path: Path, offset: int) -> None:
        """Raises `RecoveryError` if the valid frame at `offset` is not the next one of this log."""
        number, tail = self._outcome.next_no, self._outcome.tail
        if header.frame_no != number:
            wrong = f"frame {header.frame_no} where frame {number} should be"
        elif self._seed is not None and tail is not None and header.link and header.link != link_of(tail, self._seed):
            wrong = f"frame {number} does not follow the frame before it"
        else:
            (checksum,) = CHECKSUM.unpack_from(frame, HEADER.size + header.body_len)
            if number != self._after_no or self._tail in (None, checksum):
                self._outcome.tail = checksum
                if not offset:
                    self._outcome.firsts[number] = checksum
                self._note(header, offset)
                return
            wrong = f"frame {number} is not the one that the catalog was made after"
        raise RecoveryError(f"{path}, offset {offset}: {wrong}: of another shard, or of another time. {REMEDY}")

    def _note(self, header: Header, offset: int) -> None:
        frames = self._unsynced
        if not offset:
            frames.clear()
        frames.append((header.frame_no, offset))
        while frames and frames[0][0] <= header.synced_no:
            frames.popleft()
        self._outcome.unsynced_at = frames[0][1] if frames else offset + header.length


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
    `seed` is that of the links, None to pass over them. `device_no` as in `_refuse_damage`. Raises `RecoveryError`.
    """
    files, empty = _files(disk, directory)
    outcome.next_no = max(1, after_no + 1, *(first for first, _ in (*files, *empty)))
    while len(files) > 1 and files[1][0] <= after_no + 1:
        del files[0]
    total = sum(disk.size(directory / name) for _, name in files)
    done = 0
    links = _Links(outcome, seed, after_no, tail)
    outcome.tail = tail if after_no else 0
    if files:
        outcome.next_no = outcome.begin_no = files[0][0]
        _refuse_late_log(directory, outcome, after_no)
        links.begin()
    for at, (_, name) in enumerate(files):
        following = files[at + 1 :]
        file = ReadAhead(disk, directory / name)
        end = following[0][0] if following else None
        offset = 0
        while outcome.next_no != end:
            if offset == file.size and end is None:
                break
            try:
                header, frame = file.frame(offset)
            except UnknownVersion as error:
                raise RecoveryError(f"{directory / name}, offset {offset}: {error}") from None
            except FrameError as error:
                later = [directory / n for _, n in following]
                _refuse_damage(disk, offset, directory / name, later, outcome.next_no, device_no, error)
                _refuse_short_log(directory / name, offset, outcome, after_no, empty)
                _cut(disk, directory / name, offset, later, outcome, str(error))
                _remove(disk, directory, empty)
                return
            links.follow(header, frame, directory / name, offset)
            outcome.next_no += 1
            if header.frame_no > after_no:
                outcome.replayed_bytes += header.length
                outcome.replayed_records += header.count
                yield Found(header, frame, done + offset + header.length, total)
            offset += header.length
        done += file.size
        outcome.resume = name
    if files:
        _refuse_short_log(directory / name, offset, outcome, after_no, empty)
    elif empty and empty[-1][0] > after_no + 1:
        raise RecoveryError(f"{directory}: frames {after_no + 1} to {empty[-1][0] - 1}: a file is missing. {REMEDY}")
    _remove(disk, directory, empty)


def _files(disk: Disk, directory: Path) -> tuple[list[_Name], list[_Name]]:
    """The log files, and those that are empty. Removes files of a rescue that died before its rename."""
    for name in disk.list(directory):
        if name.endswith(".tmp"):
            disk.remove(directory / name)
    found = [(first, name) for name in disk.list(directory) if (first := first_no_of(name)) is not None]
    empty = [each for each in found if not disk.size(directory / each[1])]
    return [each for each in found if each not in empty], empty


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


def _remove(disk: Disk, directory: Path, empty: list[_Name]) -> None:
    """Remove empty files. They have no meaning but their names, see `shardd.storage.wal`."""
    for _, name in empty:
        disk.remove(directory / name)


def _refuse_late_log(directory: Path, outcome: Outcome, after_no: int) -> None:
    if outcome.next_no > after_no + 1:
        raise RecoveryError(
            f"{directory}: the log begins with frame {outcome.next_no}, but the snapshot ends at frame {after_no}: "
            "a file is missing"
        )


def _refuse_short_log(path: Path, offset: int, outcome: Outcome, after_no: int, empty: list[_Name]) -> None:
    """Refuse a log that ends before its snapshot: new frames would get the numbers of older ones. And one that ends
    before an empty file, which was created when all frames before it were synced."""
    if empty and outcome.next_no < empty[-1][0]:
        raise RecoveryError(
            f"{path}, offset {offset}: the log ends with frame {outcome.next_no - 1}, but {empty[-1][1]} was begun "
            f"after frame {empty[-1][0] - 1} had been synced. {REMEDY}"
        )
    if outcome.next_no <= after_no:
        raise RecoveryError(
            f"{path}, offset {offset}: the log ends with frame {outcome.next_no - 1}, but the snapshot was made when "
            f"frame {after_no} had been synced. Restore the file from a backup"
        )


def _refuse_damage(
    disk: Disk, offset: int, path: Path, later: list[Path], number: int, device_no: int | None, error: FrameError
) -> None:
    """Frames after `device_no` were made by another machine, and may never have been synced here; None: there are no
    such frames."""
    if device_no is not None and number > device_no:
        return
    for candidate, start in [(path, offset), *((p, 0) for p in later)]:
        witness = _witness(disk.read(candidate), start, number)
        if witness is not None:
            raise RecoveryError(
                f"{path}, offset {offset}: frame {number} is damaged ({error}), but it had been synced: a frame in "
                f"{candidate.name} at offset {witness} was written after that. "
                "Restore the file from a backup"
            )


def _witness(view: memoryview, start: int, number: int) -> int | None:
    """Offset of a valid frame at or after `start` that says that frame `number` had been synced; None if there is
    none."""
    raw = view.obj if isinstance(view.obj, (bytes, bytearray)) else bytes(view)
    at = raw.find(MAGIC, start)
    while at != -1:
        if at % 8 == 0:
            try:
                header = check(view, at)
            except FrameError:
                pass
            else:
                if header.frame_no > number and header.synced_no >= number:
                    return at
        at = raw.find(MAGIC, at + 1)
    return None


def _cut(disk: Disk, path: Path, offset: int, later: list[Path], outcome: Outcome, reason: str) -> None:
    """Cut a torn tail off, and say so in `outcome`."""
    outcome.cut_path, outcome.cut_offset, outcome.cut_reason = str(path), offset, reason
    outcome.cut_bytes = sum(disk.size(each) for each in (path, *later)) - offset
    outcome.resume = path.name
    for extra in reversed(later):
        disk.remove(extra)
    file = disk.open(path)
    try:
        file.truncate(offset)
        file.sync()
    finally:
        file.close()
    disk.sync_dir(path.parent)
