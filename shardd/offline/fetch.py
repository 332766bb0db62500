"""Fetch: makes the files of a stopped service from its bucket, for `topics restore --from`.

For each shard: the files of the newest manifest that is not later than the wanted moment, then the log from the first
part that it needs, up to the moment. Without any manifest the log has to begin with frame 1.

    manifest                found                        decision
    none at all             part 1 begins with frame 1   take the log
    none at all             it does not                  REFUSE: no copy of a checkpoint was finished yet
    all are later           part 1 begins with frame 1   take the log
    all are later           it does not                  REFUSE: the bucket does not reach back to the moment
    one                     a hole in the log after it   REFUSE, unless the moment seems to be before the hole
    one                     its log ends before upto_no  REFUSE: parts were deleted by hand

Frames are not in the order of their times: a topic's time may be ahead of the clock. So the log is taken up to its last
frame that is not later than the moment, and `shardd.offline.rewind` cuts each topic at its own time. That frame is
looked for up to the next manifest, which was made after the moment, or to a hole behind a frame that is later. That
frame's topic may be ahead, and the hole have had frames from before the moment. So the restore names the hole, or is
refused if a part behind it has such frames.

The caller gives a directory that nothing else uses, and removes it if this fails. So nothing is synced here.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from proto.model.limits import Limits
from shardd.offline.reshard import shard_name
from shardd.replication.browse import AHEAD, Browser, Damaged, ManifestAt, shards_of
from shardd.replication.manifests import Head
from shardd.replication.names import ShardNames
from shardd.replication.parts import HEADER_SIZE, Part, places
from shardd.replication.store import Store
from shardd.storage.disk import Disk, File, write_all
from shardd.storage.wal import file_name


def fetch(
    disk: Disk, store: Store, data: Path, cold: Path | None, limits: Limits, until_ms: int | None
) -> Iterator[dict[str, Any]]:
    """Fetch all shards. Yields maps of kind `progress`, `shard`, `problem` for what a shard may lack, and finally
    `fetched`. Blocks. Raises `Damaged`, `Mismatch`, `StoreError`, OSError."""
    shards, created_ms = shards_of(store)
    with ThreadPoolExecutor(AHEAD) as threads:
        for index in range(shards):
            shard = _Shard(disk, Browser(store, ShardNames(index), threads), data, cold, limits, index)
            for size in shard.run(until_ms):
                yield {"kind": "progress", "done": size}
            frame, last_ms = shard.frame_no, shard.last_ms
            yield {"kind": "shard", "shard": index, "part": shard.part, "frame": frame, "last_ms": last_ms}
            if shard.problem:
                yield {"kind": "problem", "problem": shard.problem}
    yield {"kind": "fetched", "shards": shards, "created_ms": created_ms}


class _Shard:
    def __init__(self, disk: Disk, browser: Browser, data: Path, cold: Path | None, limits: Limits, index: int) -> None:
        self._disk = disk
        self._browser = browser
        self._path = data / shard_name(index)
        self._cold = None if cold is None else cold / shard_name(index)
        self._file_bytes = limits.wal_segment_bytes
        self.part = 0
        """The last part that was taken."""
        self.frame_no = 0
        self.last_ms = 0
        """Commit time of the last frame, ms since 1970; 0 if it has none."""
        self.problem = ""
        """Behind which damage the log was not read, although it may have frames from before the moment."""

    def run(self, until_ms: int | None) -> Iterator[int]:
        """Yields the bytes of each piece."""
        self._disk.make_dir(self._path / "wal")
        manifest, last = self._choose(until_ms)
        if manifest is not None:
            yield from self._browser.copy_files(manifest, self._disk, self._path, self._cold, sync=False)
        yield from self._log(manifest, until_ms, last)

    def _choose(self, until_ms: int | None) -> tuple[ManifestAt | None, int | None]:
        """The manifest to begin with, and the last part that may have frames from before the moment; None: any may."""
        later: list[Head] = []
        for number, head in self._browser.heads():
            if isinstance(head, str):
                raise Damaged(f"{self._browser.names.manifest(number)}: {head}. Put it back, or delete it")
            if until_ms is None or head.upto_ms <= until_ms:
                return self._browser.manifest(number), _part_of(later)
            later.append(head)
        if later and not self._whole():
            raise Damaged(
                f"{self._browser.names.prefix}: the bucket reaches back to {later[-1].upto_ms} ms since 1970 only; "
                "ask for a later time"
            )
        return None, _part_of(later)

    def _whole(self) -> bool:
        """True if the log in the bucket begins with frame 1."""
        first = 1
        for number, size in self._browser.numbers(1):
            if number != first or size != HEADER_SIZE:
                return number == first and self._browser.header(number).first_no == 1
            first += 1  # fences are never removed, and have no frames
        return first > 1

    def _log(self, manifest: ManifestAt | None, until_ms: int | None, last: int | None) -> Iterator[int]:
        head = None if manifest is None else manifest.head
        first = 1 if head is None else head.first_part
        begin = 0 if head is None else head.frame_no
        numbers = [number for number, _ in self._browser.numbers(first) if last is None or number <= last]
        log = _LogFiles(self._disk, self._path / "wal", self._file_bytes)
        before: Part | None = None
        last_no, passed = begin, False
        try:
            for part, frames in self._browser.parts(numbers):
                self._check(first if before is None else before.number + 1, last_no, part)
                before, last_no = part, max(last_no, part.last_no if part.has_frames else 0)
                end, upto_no = len(frames), part.last_no if part.has_frames else last_no
                if part.has_frames:
                    if until_ms is not None and not 0 < part.last_ms <= until_ms:
                        end, upto_no = _upto(part, frames, until_ms, 0 if head is None else head.upto_no)
                    log.write(part.first_no, frames, end)
                    if part.last_ms:  # one without times says nothing of the moment
                        passed = end < len(frames)
                if end or not (passed or part.has_frames):
                    self.part, self.frame_no = part.number, upto_no
                    self.last_ms = max(self.last_ms, min(part.last_ms, until_ms or part.last_ms))
                yield len(frames)
        except Damaged as error:
            if until_ms is None or before is None or not passed or self._earlier(until_ms, numbers, before.number):
                raise
            self.problem = (
                f"{error}. The log is restored up to there: if the time of a topic was ahead of the clock, records of "
                "other topics may be missing"
            )
        finally:
            log.close()
        log.cut()
        if head is None:
            return
        newest_no = self._browser.header(head.part).last_no if head.part else 0
        if max(self.frame_no, begin) < min(head.upto_no, newest_no):
            raise Damaged(
                f"{self._browser.names.log}: the log ends with frame {self.frame_no}, but the manifest needs "
                f"frames up to {head.upto_no}: parts are missing. Put them back, or delete the manifests behind them"
            )

    def _earlier(self, until_ms: int, numbers: list[int], after: int) -> bool:
        """Whether a part behind part `after` has a frame that is not later than the moment, as far as they can be
        read."""
        behind = self._browser.headers(number for number in numbers if number > after)
        return any(0 < part.first_ms <= until_ms for part in behind)

    def _check(self, number: int, last_no: int, part: Part) -> None:
        """Check that a part is the next one, `number`, and that no frame after `last_no` is missing. Raises
        `Damaged`."""
        if part.number != number:
            wrong = f"parts {number} to {part.number - 1} are missing; put them back"
        elif part.has_frames and part.first_no > last_no + 1:
            wrong = f"frames {last_no + 1} to {part.first_no - 1} are missing: the service ran without the bucket then"
        else:
            return
        raise Damaged(f"{self._browser.names.log}: {wrong}, or restore --until a time before that")


def _part_of(later: list[Head]) -> int | None:
    """The part after which all frames are later than a moment, by the manifests that are."""
    return min(later, key=lambda head: head.upto_ms).part if later else None


def _upto(part: Part, frames: memoryview, until_ms: int, least_no: int) -> tuple[int, int]:
    """Bytes and last number of the frames of a part up to the last one that is not later than a moment, or has a number
    up to `least_no`."""
    end, last_no = 0, part.first_no - 1
    for number, ts_ms, at in places(frames):
        if 0 < ts_ms <= until_ms or number <= least_no:
            end, last_no = at, number
    return end, last_no


class _LogFiles:
    """Log files that are filled one after the other, then cut off behind the last frame that is to stay."""

    def __init__(self, disk: Disk, directory: Path, most_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._most_bytes = most_bytes
        self._file: File | None = None
        self._size = 0
        self._paths: list[Path] = []
        self._stay = (0, 0)
        """How many files stay, and bytes of the last of them."""

    def write(self, first_no: int, frames: memoryview, end: int) -> None:
        """Append frames. The first `end` bytes of them are to stay, with all before them; none are if that is 0."""
        if self._file is None or self._size >= self._most_bytes:
            self.close()
            self._paths.append(self._directory / file_name(first_no))
            self._file, self._size = self._disk.create(self._paths[-1]), 0
        write_all(self._file, frames, self._paths[-1])
        if end:
            self._stay = len(self._paths), self._size + end
        self._size += len(frames)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def cut(self) -> None:
        count, size = self._stay
        for path in self._paths[count:]:
            self._disk.remove(path)
        if count:
            file = self._disk.open(self._paths[count - 1])
            file.truncate(size)
            file.close()
