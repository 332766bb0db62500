"""Admission by free space: whether the disk has room for a write, and the space reserved for checkpoints.

A shard accepts a write, a configuration or copies (`check`) only if two conditions hold:

    free - promised  >=  TOPICS_MIN_FREE_BYTES      of the disk, over all shards (`promised`: `shardd.storage.ballast`)
    held             >=  needed                     of this shard: its next checkpoint has its space already

Deletions, positions of readers and checkpoints are never refused: they are small, and they free space.

**The need.** An upper bound of what the next checkpoint can write, the sum of

    what each write accepted since the last checkpoint adds to segments: its bytes, `PER_RECORD`, `PER_FRAME` if it is
    too large to be merged with its neighbours, and once for each topic `PER_TOPIC` for its files
    the catalog: the last one's bytes, two for every byte of other frames logged since, a flag for each stored record
    `FIXED`

**Why it is enough.** N is the number of shards on the disk. F is the free bytes minus the bytes that are promised and
not written yet.

1. Only writes that `check` accepts reduce F. A checkpoint writes into space that its shard had held.
2. A shard asks the system for the free bytes after 100 ms, or when it has accepted TOPICS_MIN_FREE_BYTES / 2N bytes
   since it last asked.
3. So after the first shard sees less than TOPICS_MIN_FREE_BYTES, all shards together take at most half of it from F.
4. F stays above the other half, and each checkpoint finds the space it was promised.

**How much is held.** A topic with one small record makes a checkpoint write three blocks for files and an entry of the
catalog, many times what the log has of it. So not only the log's bytes make a checkpoint due, but also what it may
write (`due`): TOPICS_CHECKPOINT_BYTES for topics that have no files yet, or a twentieth of the free bytes in all. What
is held beyond that is the catalog, `FIXED`, a `STEP`, and room for what is accepted until the checkpoint begins. Writes
to topics with files count only against the free bytes: more checkpoints would write the same blocks of them again.

Writes of other programs are not covered. They can take F and the bytes that are given up at that moment, but never the
bytes that are held.

**If the disk is full nevertheless** (`full`), the log is cut back to its last whole frame. A group that has only
deletions and the like is written again after the ballast has been given up. Any other group is answered `429`. The
shard counts as low until the next checkpoint holds the ballast again.

While the disk is low, checkpoints follow each other (`shardd.checkpoint_control`): only the second checkpoint after a
deletion can remove the files that the catalog before the last one refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from proto.format.frame import KIND_AT, Frame, Kind
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.clock import Clock
from shardd.storage.ballast import Ballast, promised
from shardd.storage.batch import FINAL_BYTES, FINAL_RECORDS
from shardd.storage.disk import Disk
from shardd.storage.segment import Segment

LOOK_INTERVAL = 0.1
"""Seconds."""
LIMIT = "disk_free"
"""The name of this limit in errors."""
RETRY_AFTER_MS = 5000
FIXED = 1 << 20
"""Bytes for the catalog's growth by deletions and positions, and for their frames."""
STEP = 4 << 20
"""Bytes by which the held space grows at a time, while the disk has enough."""
LEAST_DUE = 8 << 20
"""No checkpoint is due because of fewer bytes that it may write."""
PER_RECORD = 48
"""Bytes of a record besides its contents: offsets in four columns and their validity, a time, hops, a flag, and the row
of a key."""
PER_FRAME = 512
"""Bytes of header, checksum, padding and index entry of a batch that is not merged, and of the batches that it
separates."""
PER_TOPIC = 5 * 4096
"""Bytes of a folder, of two files whose last block is not full, and of a catalog entry with frames that are not merged.
One record takes 13 KB of a disk with blocks of 4 KiB."""
FILLING = frozenset({Kind.BATCH, Kind.TOPIC_CREATE, Kind.TOPIC_CONFIG, Kind.LOGDEF})
"""Kinds of frames that may not use the held space."""


class Filled(Protocol):
    """The destination of a write, a topic."""

    counted_in: int
    """Number of the checkpoint for which space for its files is counted."""

    @property
    def segments(self) -> Sequence[Segment]:
        """Its files."""


class Space:
    def __init__(self, disk: Disk, path: Path, clock: Clock, limits: Limits, wanted: Callable[[], None]) -> None:
        """`wanted` is called when a checkpoint may free space."""
        self._disk = disk
        self._path = path
        self._clock = clock
        self._limits = limits
        self._min = limits.min_free_bytes
        self._ballast: Ballast | None = None
        self._looked_at = float("-inf")
        self._free: int | None = None
        self._shards = 1
        self._taken = 0
        """Bytes accepted since the system was last asked."""
        self._base = FIXED
        self._since = 0
        """Bytes needed for writes since the last checkpoint began. After a failed one: since the last good one."""
        self._new = 0
        """Those of `_since` for the files of topics that have none yet."""
        self._under_way = 0
        """Bytes needed by the checkpoint that is in progress."""
        self._round = 0
        self._refused = False
        self.refused_total = 0
        self._wanted = wanted

    # Free space

    @property
    def free_bytes(self) -> int | None:
        """Bytes free for unprivileged users minus the promised ones, at most 100 ms old; None if the system gives an
        error."""
        if self._clock.monotonic() - self._looked_at >= LOOK_INTERVAL:
            self._look()
        return self._free

    def _look(self) -> None:
        self._looked_at = self._clock.monotonic()
        self._taken = 0
        try:
            free = self._disk.free(self._path)
            elsewhere, shards = promised(self._disk, self._path.parent)
        except OSError:
            self._free = None  # if the disk has failed, the next write to it reports that
            return
        self._free = max(free - elsewhere, 0)
        self._shards = max(shards, 1)

    @property
    def needed(self) -> int:
        """Bytes that the next checkpoint may write, without those of a checkpoint in progress."""
        return self._base + self._since

    @property
    def short(self) -> bool:
        """True if less is held than the next checkpoint may need."""
        return self._ballast is not None and self._ballast.held < self.needed

    @property
    def due(self) -> bool:
        """True if a checkpoint should be made because of what it may write."""
        if not self._min or self._since < LEAST_DUE:
            return False
        return self._new >= self._limits.checkpoint_bytes or self._below(20 * self._since)

    @property
    def low(self) -> bool:
        """True if the disk is nearly full, if less is held than needed, or if the last write was refused while the disk
        is `scarce`."""
        return bool(self._min) and (self._below(self._min) or self.short or (self._refused and self.scarce))

    @property
    def scarce(self) -> bool:
        """True if less than twice TOPICS_MIN_FREE_BYTES is free. Other shards may wait for files that this one can
        remove."""
        return bool(self._min) and self._below(2 * self._min)

    def _below(self, least: int) -> bool:
        free = self.free_bytes
        return free is not None and free < least

    # Writes

    def check(self, topic: Filled | None, size: int = 0, records: int = 0, key: bytes = b"") -> None:
        """Reserve space for `records` with `size` bytes in all, and for the row of their idempotency key if they have
        one. Raises `429 throttled` if there is none."""
        if not self.takes(topic, size + len(key) + PER_RECORD if key else size, records):
            raise self.refusal()

    def takes(self, topic: Filled | None, size: int, records: int) -> bool:
        """Reserve space for `records` with `size` bytes in all. Returns False if there is none."""
        if not self._min:
            return True
        limits = self._limits
        files = records // limits.segment_max_events + size // limits.segment_max_bytes
        fresh = topic is None or topic.counted_in != self._round
        large = records // FINAL_RECORDS + size // FINAL_BYTES
        needs = size + PER_RECORD * records + PER_FRAME * large + 2 * 4096 * files + (PER_TOPIC if fresh else 0)
        if self._taken + needs > self._min // (2 * self._shards):
            self._look()
        self._refused = self._below(self._min) or not self._hold(self.needed + needs)
        if self._refused:
            self._wanted()
            return False
        self._since += needs
        self._taken += needs
        if topic is None or (fresh and not topic.segments):
            self._new += PER_TOPIC
        if topic is not None:
            topic.counted_in = self._round
        return True

    def _hold(self, needed: int) -> bool:
        """Hold at least `needed` bytes. Returns False if the disk has no space for that."""
        ballast = self._ballast
        if ballast is None or needed <= ballast.held:
            return True
        self._look()
        missing = needed - ballast.held
        for size in (max(missing, STEP), missing):
            if (self._free is None or self._free - size >= self._min) and ballast.grow(size):
                if self._free is not None:
                    self._free -= size
                return True
        return False

    def logged(self, frame: Frame) -> None:
        """Count a staged frame that is not a batch: the catalog may grow by its contents."""
        self._since += 2 * len(frame)
        if self.short and not self._below(self._min):
            self._hold(self.needed)

    def refusal(self) -> TopicsError:
        """The `429` answer to a write that has no room."""
        self.refused_total += 1
        return TopicsError(
            ErrorCode.THROTTLED,
            f"the disk has {self._free} bytes free, and writes need TOPICS_MIN_FREE_BYTES, {self._min}, and room for "
            "checkpoints; delete records or topics, or give it more room",
            {"limit": LIMIT, "min": self._min, "free": self._free},
            retry_after_ms=RETRY_AFTER_MS,
        )

    # Checkpoints

    def begin(self, logged_bytes: int, records: int, topics: int) -> None:
        """Start to hold space. The arguments count what recovery replayed from the log and no segment has yet:
        `topics` is the number of topics with such batches."""
        if not self._min:
            return
        self._since += 2 * logged_bytes + PER_RECORD * records + PER_TOPIC * topics
        self._ballast = Ballast(self._disk, self._path)
        self._ballast.begin()
        self._hold(self.needed)

    def end(self) -> None:
        """Release the held space. Called at an orderly stop."""
        if self._ballast is not None:
            self._ballast.give_up()
            self._ballast.used()
            self._ballast = None

    def checkpoint_begins(self) -> None:
        """Give up the held space for the checkpoint that begins, and hold space for the next one."""
        self._round += 1
        self._under_way, self._since, self._new = self._since, 0, 0
        if self._ballast is not None:
            self._ballast.give_up()
            self._hold(self.needed)

    def checkpoint_ended(self, good: bool, base: int) -> None:
        """Remove the ballast of the checkpoint, or hold it again if the checkpoint failed. The next checkpoint needs at
        least `base` bytes."""
        if good:
            self._base = FIXED + base
        else:
            self._since += self._under_way
        self._under_way = 0
        if self._ballast is not None:
            if good:
                self._ballast.used()
            else:
                self._ballast.hold_again()
            self._hold(self.needed)

    def full(self, frames: list[Frame]) -> bool:
        """Called when the disk has no space for these frames. Returns True if the ballast was given up for them, so
        that the log should try again."""
        self._looked_at = float("-inf")
        self._wanted()
        if self._ballast is None or any(frame.head[KIND_AT] in FILLING for frame in frames):
            return False
        return self._ballast.give_up()
