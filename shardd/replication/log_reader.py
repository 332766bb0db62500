"""The log reader: reads synced frames of a shard's log back from its files, to be shipped.

The caller says up to which frame the log is synced. Synced frames never change, so they are read while the shard
writes. Files that still have to be read must not be trimmed (`Inventory.shipped`).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from proto.format.buffer import Buffer
from shardd.errors import ShardError
from shardd.replication.parts import FRAME_HEAD, frame_length, places
from shardd.storage.disk import Disk
from shardd.storage.wal import first_no_of

READ_BYTES = 1 << 20


class LogGone(ShardError):
    """The log does not have the frame that is to be read. `first_no` is the first frame that it has."""

    def __init__(self, wanted: int, first_no: int) -> None:
        super().__init__(f"the log begins with frame {first_no}, frame {wanted} is gone")
        self.first_no = first_no


class Frames(NamedTuple):
    """Consecutive frames: their numbers, their lowest and highest commit time, and their bytes. Times are in ms since
    1970, 0 if no frame has one."""

    first_no: int
    last_no: int
    first_ms: int
    last_ms: int
    data: Buffer


class LogReader:
    """Reads forward from a frame. All methods block, and raise OSError."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self.next_no = 1
        """The frame that `take` begins with."""
        self._file = ""
        self._offset = 0

    def seek(self, number: int, synced_no: int) -> None:
        """Continue with frame `number`, which may be the one after the last synced one. Raises `LogGone`."""
        files = self._files()
        begin = files[0][0] if files else synced_no + 1
        if begin > number:
            raise LogGone(number, begin)
        self.next_no, self._file, self._offset = number, "", 0
        first, name, _ = _file_of(files, number) or (number, "", 0)
        if first == number:
            return
        self.next_no, self._file = first, name
        while self.next_no < number:
            if self.take(number - 1, READ_BYTES) is None:
                raise OSError(f"{self._directory / name}: frame {self.next_no} cannot be read")

    def behind(self) -> int:
        """Bytes of the log's files that have not been read."""
        files = [each for each in self._files() if each[1] >= self._file]
        return sum(self._disk.size(self._directory / name) for _, name in files) - self._offset

    def take(self, upto_no: int, most_bytes: int) -> Frames | None:
        """The next frames up to `upto_no`, which are synced, in at most `most_bytes` unless a single one is larger.
        Returns None if there are none."""
        if self.next_no > upto_no:
            return None
        found = _file_of(self._files(), self.next_no)
        if found is None:
            return None
        first, name, end_no = found
        if name != self._file:
            if first != self.next_no:
                raise OSError(f"{self._directory / name}: frame {self.next_no} is not where the log goes on")
            self._file, self._offset = name, 0
        path = self._directory / name
        data = self._disk.read_part(path, self._offset, max(most_bytes, FRAME_HEAD))
        if len(data) >= FRAME_HEAD and (length := frame_length(data)) > len(data):
            data = self._disk.read_part(path, self._offset, length)
        return self._cut(path, data, min(upto_no, end_no))

    def _cut(self, path: Path, data: bytes, upto_no: int) -> Frames:
        first_no, first_ms, last_ms, end = self.next_no, 0, 0, 0
        for number, ts_ms, at in places(data):
            if number != self.next_no or number > upto_no:
                break
            self.next_no += 1
            end = at
            if ts_ms:
                first_ms = min(first_ms or ts_ms, ts_ms)  # a topic's time may be ahead of the next one's
                last_ms = max(last_ms, ts_ms)
        if not end:
            raise OSError(f"{path}, offset {self._offset}: frame {first_no} is not there, although it was synced")
        self._offset += end
        return Frames(first_no, self.next_no - 1, first_ms, last_ms, memoryview(data)[:end])

    def _files(self) -> list[tuple[int, str]]:
        """First frame number and name of the files that are not empty: empty ones have no meaning."""
        names = self._disk.list(self._directory)
        found = [(first, name) for name in names if (first := first_no_of(name)) is not None]
        return [each for each in found if self._disk.size(self._directory / each[1])]


def _file_of(files: list[tuple[int, str]], number: int) -> tuple[int, str, int] | None:
    """The file that has a frame: its first frame, its name, and the last frame that counts in it."""
    for at in range(len(files) - 1, -1, -1):
        first, name = files[at]
        if first <= number:
            return first, name, files[at + 1][0] - 1 if at + 1 < len(files) else number | (1 << 62)
    return None
