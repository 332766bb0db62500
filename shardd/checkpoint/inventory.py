"""The inventory of a shard's files: the newest catalog, where segments are, and what the next checkpoint has to do.

It changes in the steps 1 and 7 of a checkpoint, while no thread writes. See `shardd.checkpoint.checkpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from proto.model.limits import MAX_U64, Limits
from shardd.checkpoint.cold_folder import missing
from shardd.checkpoint.plan import Planned, files_of, segment_of
from shardd.checkpoint.strays import Known, foreign, replaced, replaced_held
from shardd.storage import catalog
from shardd.storage.batch import Batch
from shardd.storage.disk import Disk
from shardd.storage.lost import log, lost
from shardd.storage.owner import Owner
from shardd.storage.segment import ENTRY_SIZE, Parts, Segment
from shardd.storage.wal import Wal
from shardd.topic.damage import Unloaded
from shardd.topic.topic import Topic

_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest catalog."""

    number: int = 0
    frame_no: int = 0
    """The frame number that it was made at."""
    tail: int | None = None
    """Checksum of that frame, if it is known."""
    size: int = 0
    """Bytes of its file."""
    proven: bool = True
    """False if it does not say whose it is."""


class Inventory:
    def __init__(self, disk: Disk, path: Path, limits: Limits, owner: Owner) -> None:
        self._disk = disk
        self._limits = limits
        self.path = path
        self.owner = owner
        self.newest = Newest()
        self.cold = Path(limits.cold_dir) / path.name if limits.cold_dir else None
        """The shard's folder in the cold tier, if there is one."""
        self.cold_used: bool | None = None
        """True if the newest catalog has segments in the cold tier, or the folder lacks those of other shards. None
        if the catalog has none, until a checkpoint that is to copy some has looked at the others."""
        self.parts = Parts(disk)
        self.known = Known(0, 0)
        self.lacking: dict[int, tuple[str, str]] = {}
        """By topic id: the topic's name, and what its segments lack, by its sum."""
        self.ids_missing = 0
        """The sum of the ids of the topics that the catalog of the start lacked; the next catalogs say so, too."""
        self.firsts: dict[int, int] = {}
        """Of the log files that were read at the start or written since: checksum of the first frame, by its number.
        The log adds those of new files."""
        self.lost_before = 0
        """Number of files that were set apart before the start."""
        self.apart: list[Path] = []
        """Files that were set apart since the start, by the names that they had."""
        self.removable: list[Path] = []
        """Files that only the catalog before the newest may need."""
        self.unused: list[Path] = []
        """Files that no topic needs but the newest catalog names."""
        self.leaving: dict[Path, Callable[[], bool]] = {}
        """By each of those files: whether another file, which is whole, was put in its place. Raises OSError."""
        self.listed: list[Planned] = []
        """Deletions in the newest catalog that no file has."""
        self._listed_of: tuple[list[Planned], int, dict[int, list[Batch]]] = [], -1, {}
        self.segment_bytes = 0
        """Bytes that a catalog may need for flags and rows of all segments, see `_weight`."""
        self.looked_for_strays = False
        self.log: Wal | None = None
        """The log that is written: its current file and later ones are not removed. None if there is none."""
        self.shipped: Callable[[], int] | None = None
        """The last frame that the bucket has, if there is a bucket: the log is not trimmed beyond it."""
        self.held_no = 0
        """The last frame of the log files that no catalog needs but the bucket does not have; 0 if there is none."""

    @property
    def garbage(self) -> bool:
        """True if the next checkpoints can remove files."""
        return bool(self.removable or self.unused) or 0 < self.held_no <= self.shipped_no

    @property
    def shipped_no(self) -> int:
        """The last frame that the log may be trimmed to, as far as the bucket is concerned."""
        return MAX_U64 if self.shipped is None else self.shipped()

    @property
    def files_apart(self) -> int:
        """Number of all files that were ever set apart and are still there, as far as this process knows."""
        return self.lost_before + len(self.apart)

    @property
    def catalog_may_have(self) -> int:
        """An upper bound of the next catalog's bytes, as far as they follow from the last catalog and the segments."""
        return self.newest.size + self.segment_bytes

    def folder(self, ident: int, cold: bool) -> Path:
        """The folder of a topic's files in the hot or the cold tier. Raises `CatalogError` without a cold tier."""
        if cold and self.cold is None:
            raise catalog.CatalogError(
                f"{self.path}: segments are in the cold tier, but TOPICS_COLD_DIR is not set. Set it to where they are"
            )
        base = self.cold if cold and self.cold is not None else self.path
        return base / "topics" / f"{ident:016x}"

    def problems(self) -> list[str]:
        """What the shard lacks, by its sums."""
        found = [f"{self.path}: {catalog.TOPICS_LACK}"] if self.ids_missing else []
        found += (f'topic "{name}": {reason}' for name, reason in list(self.lacking.values()))
        return [f"{each}; {catalog.LACKS_REMEDY}" for each in found]

    def lacks(self, topic: Topic, reason: str) -> None:
        """Tell that a topic's segments lack records."""
        self.lacking[topic.id] = topic.name, reason
        log.error("records_missing", topic=topic.name, reason=reason, remedy=catalog.LACKS_REMEDY)

    def full(self, records: int, size: int) -> bool:
        """True if a segment with this many records and bytes gets no more."""
        return records >= self._limits.segment_max_events or size >= self._limits.segment_max_bytes

    def count(self, segment: Segment) -> None:
        self.segment_bytes += _weight(segment)

    def discount(self, segment: Segment) -> None:
        self.segment_bytes -= _weight(segment)

    def let_go(self, segments: list[Segment]) -> None:
        """Mark the files of segments that no topic reads any more for removal."""
        self.unused += self.leave(segments)
        for segment in segments:
            self.parts.drop(segment.data_path)
            self.discount(segment)

    def leave(self, segments: list[Segment]) -> list[Path]:
        """The files of segments, which are to be removed. The segments do not change any more."""
        for segment in segments:
            self.leaving[segment.data_path] = partial(replaced, self._disk, segment)
        return files_of(segments)

    def let_held_go(self, unloaded: Unloaded) -> None:
        """Mark the files of held frames for removal."""
        rows, checks = unloaded.entry.get("held", ()), catalog.column(unloaded.entry, "held_checks", "held")
        for path, (_, size), expected in zip(unloaded.held, rows, checks, strict=True):
            self.leaving[path] = partial(replaced_held, self._disk, path, size, expected)
        self.unused += unloaded.held

    def flags_of(self, segment: Segment) -> tuple[set[int], int]:
        """The first seqs of the batches of a segment whose flags in the file may be half written, and the check of the
        flags that the file has of all others."""
        listed, count, by_segment = self._listed_of
        if listed is not self.listed or count != len(listed):
            by_segment = {}
            for batch, _ in self.listed:
                by_segment.setdefault(id(segment_of(batch)), []).append(batch)
            self._listed_of = self.listed, len(self.listed), by_segment
        batches, expected = by_segment.get(id(segment), ()), segment.check
        for batch in batches:
            expected ^= batch.filed
        return {batch.first_seq for batch in batches}, expected

    def forget(self, segments: list[Segment]) -> None:
        """Take out segments and their listed deletions: the topic is unloaded, only its catalog entry counts."""
        these = {id(segment) for segment in segments}
        self.listed = [each for each in self.listed if id(segment_of(each[0])) not in these]
        for segment in segments:
            self.discount(segment)

    def cold_vanished(self) -> bool:
        """True if the cold folder is missing although it had segments of any shard. It must not be created then: the
        real one may be mounted over it later. Blocks. Raises OSError."""
        if self.cold is None or self._disk.list(self.cold / "topics"):
            return False
        if self.cold_used is None:
            self.cold_used = missing(self._disk, self.path, self.cold)
        return self.cold_used

    def lost(self) -> list[Path]:
        """All files that were ever set apart, in both tiers. Blocks."""
        return [path for base in self._tiers() for path in lost(self._disk, base)]

    def _tiers(self) -> list[Path]:
        return [self.path] if self.cold is None else [self.path, self.cold]

    def _folders(self) -> Iterator[tuple[Path, Path]]:
        """The shard's folder in each tier, with each topic's folder in it. Blocks. Raises OSError."""
        for base in self._tiers():
            for ident in filter(_ID.fullmatch, self._disk.list(base / "topics")):
                yield base, base / "topics" / ident

    def strays(self, loaded: Mapping[int, Topic], unused: list[Path]) -> tuple[list[Path], list[tuple[Path, Path]]]:
        """Files that no topic has: those that may be removed, and those that have to be set apart, with the folder of
        the shard in their tier. Lists all folders, which takes too long for the start. Blocks. Raises OSError."""
        strays: list[Path] = []
        apart: list[tuple[Path, Path]] = []
        waiting = set(unused)
        for base, folder in self._folders():
            topic = loaded.get(int(folder.name, 16))
            known: set[Path] = set()
            if topic is not None:
                known.update(files_of(topic.segments))
                if topic.unloaded is not None:
                    known.update(topic.unloaded.held)
            try:
                names = self._disk.list(folder)
            except NotADirectoryError:  # a file with the name of a topic's folder
                apart.append((base, folder))
                continue
            for name in sorted(names):  # a segment before its index, so that it never lacks it
                path = folder / name
                if path in known or path in waiting:
                    continue
                if foreign(self._disk, path, loaded, self.known):
                    apart.append((base, path))
                else:
                    strays.append(path)
        return strays, apart

    def folders_of_none(self, loaded: Mapping[int, Topic]) -> list[Path]:
        """Folders of topics that are no more, which may be empty. Blocks. Raises OSError."""
        return [folder for _, folder in self._folders() if int(folder.name, 16) not in loaded]


def _weight(segment: Segment) -> int:
    """Bytes that a catalog may need for a segment: a flag for each record, and rows and an index entry for each
    frame."""
    return segment.records + (64 + ENTRY_SIZE) * segment.frames
