"""The WAL scan: reads the log back after a stop of any kind.

At the offset where frame N is expected in a file, exactly one row applies:

    found there                                             decision
    the next file that is not empty starts at N             go on in that file; the bytes that follow were given up
    a valid frame numbered N                                KEEP
    end of the last file                                    END
    a frame of another format version                       REFUSE: start the release that wrote it
    anything else, and a later valid frame of the log
      says that N had been synced                           REFUSE: damage, with path and offset
    anything else                                           CUT here; nothing after it was ever synced

CUT removes the later files, last one first, then truncates this file and syncs. If the process dies in between, the
next recovery gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proto.format.frame import MAGIC, FrameError, Header, UnknownVersion, check
from shardd.storage.disk import Disk
from shardd.storage.wal import first_no_of


class RecoveryError(Exception):
    """The files are damaged, or of an unknown version. No record was changed, and a restart will not help."""


@dataclass(frozen=True, slots=True)
class Found:
    """A valid frame: its header and bytes, and the progress of the scan in bytes."""

    header: Header
    buffer: memoryview
    done_bytes: int
    total_bytes: int


@dataclass(slots=True)
class Outcome:
    """The end of the log: the number of the next frame, the file to append to (None: create one), and what was cut."""

    next_no: int = 1
    resume: str | None = None
    cut_path: str | None = None
    cut_offset: int = 0
    cut_bytes: int = 0
    cut_reason: str = ""
    replayed_bytes: int = 0
    replayed_records: int = 0
    """Bytes and records of the frames that were found."""


def scan(disk: Disk, directory: Path, outcome: Outcome, after_no: int = 0) -> Iterator[Found]:
    """Yield every valid frame after `after_no`, in order. `outcome` is complete when the iterator is exhausted.

    `after_no` is the last frame that the snapshot covers; it had been synced by then. Blocks. Raises `RecoveryError`.
    """
    for name in disk.list(directory):
        if name.endswith(".tmp"):  # a rescue that died before its rename
            disk.remove(directory / name)
    files = [(first, name) for name in disk.list(directory) if (first := first_no_of(name)) is not None]
    outcome.next_no = max(files[-1][0] if files else 1, after_no + 1)
    for at in range(len(files) - 1, -1, -1):
        if not disk.size(directory / files[at][1]):  # an empty file has no meaning, see `shardd.storage.wal`
            disk.remove(directory / files.pop(at)[1])
    while len(files) > 1 and files[1][0] <= after_no + 1:
        del files[0]
    total = sum(disk.size(directory / name) for _, name in files)
    done = 0
    if files:
        outcome.next_no = files[0][0]
        if outcome.next_no > after_no + 1:
            raise RecoveryError(
                f"{directory}: the log begins with frame {outcome.next_no}, but the snapshot ends at frame {after_no}: "
                "a file is missing"
            )
    for at, (_, name) in enumerate(files):
        following = files[at + 1 :]
        view = disk.read(directory / name)
        end = following[0][0] if following else None
        offset = 0
        while outcome.next_no != end:
            if offset == len(view) and end is None:
                break
            try:
                header = check(view, offset)
                if header.frame_no != outcome.next_no:
                    raise FrameError(f"frame {header.frame_no} where frame {outcome.next_no} should be")
            except UnknownVersion as error:
                raise RecoveryError(f"{directory / name}, offset {offset}: {error}") from None
            except FrameError as error:
                later = [directory / n for _, n in following]
                _refuse_damage(disk, view, offset, directory / name, later, outcome.next_no, error)
                outcome.cut_path, outcome.cut_offset, outcome.cut_reason = str(directory / name), offset, str(error)
                outcome.cut_bytes = len(view) - offset + sum(disk.size(path) for path in later)
                _cut(disk, directory / name, offset, later)
                outcome.resume = name
                _refuse_short_log(directory, outcome, after_no)
                return
            outcome.next_no += 1
            if header.frame_no > after_no:
                outcome.replayed_bytes += header.length
                outcome.replayed_records += header.count
                yield Found(header, view[offset : offset + header.length], done + offset + header.length, total)
            offset += header.length
        done += len(view)
        outcome.resume = name
    _refuse_short_log(directory, outcome, after_no)


def _refuse_short_log(directory: Path, outcome: Outcome, after_no: int) -> None:
    """Refuse a log that ends before its snapshot: new frames would get the numbers of older ones."""
    if outcome.resume is not None and outcome.next_no <= after_no:
        raise RecoveryError(
            f"{directory}: the log ends with frame {outcome.next_no - 1}, but the snapshot was made when frame "
            f"{after_no} had been synced. Restore the file from a backup"
        )


def _refuse_damage(
    disk: Disk, view: memoryview, offset: int, path: Path, later: list[Path], number: int, error: FrameError
) -> None:
    for candidate, data, start in [(path, view, offset), *((p, disk.read(p), 0) for p in later)]:
        witness = _witness(data, start, number)
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


def _cut(disk: Disk, path: Path, offset: int, later: list[Path]) -> None:
    for extra in reversed(later):
        disk.remove(extra)
    file = disk.open(path)
    try:
        file.truncate(offset)
        file.sync()
    finally:
        file.close()
    disk.sync_dir(path.parent)
