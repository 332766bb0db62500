"""Whether the disk has room for more, and the room that is kept for what makes room again.

Two things must hold before a shard takes in a write, a configuration or copies (`check`):

    free - promised  >=  TOPICS_MIN_FREE_BYTES      of the disk, over all shards (`promised`: `shardd.storage.ballast`)
    held             >=  needed                     of this shard: its next checkpoint has its room already

Deletions, positions of readers and checkpoints are never refused: they are small, and are what makes room again.

**What is needed.** At most what the next checkpoint can write, which is the sum of

    what each write taken in since the last checkpoint adds to segments: its bytes, `PER_RECORD`, `PER_FRAME` if it is
    large enough not to be merged with its neighbours, and once for each topic `PER_TOPIC` for its files
    the catalog: the last one's bytes, two for every byte of other frames logged since, a flag for each stored record
    `FIXED`

**Why it is enough.** Let F be free bytes minus what is promised but not written yet, of all N shards on the disk. Only
what `check` lets in takes from F, for a checkpoint writes into what its shard had held. A shard looks at the system
after 100 ms, or when it has taken in TOPICS_MIN_FREE_BYTES / 2N since its last look; so all together take at most
half of the least from F after the first of them sees that there is less. So F stays above the other half, and each
checkpoint finds what it was promised. What other programs write is not covered by this; they can take F, and what is
given up at that moment, never what is held.

**When the disk is full all the same** (`full`): what the log could not take is cut back. A group of deletions and the
like is written again after the ballast has been given up, anything else is answered `429`. Until the next checkpoint
has held it again, the shard counts as low.

While the disk is low, checkpoints follow each other (`shardd.shard`), because only the second one after a deletion can
remove what the catalog before the last one needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from proto.format.frame import KIND_AT, Columns, Frame, Kind
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.clock import Clock
from shardd.storage.ballast import Ballast, promised
from shardd.storage.batch import FINAL_BYTES, FINAL_RECORDS
from shardd.storage.disk import Disk

LOOK_INTERVAL = 0.1
"""Seconds."""
RETRY_AFTER_MS = 5000
FIXED = 1 << 20
"""For the catalog's growth by deletions and positions, and for their frames."""
STEP = 4 << 20
"""By so much what is held grows, as long as there is plenty."""
PER_RECORD = 48
"""Offsets in four columns and their validity, a time, hops and a flag; the row of a key."""
PER_FRAME = 512
"""Header, checksum, padding and index entry of a batch that is not merged, and of what it keeps apart."""
PER_TOPIC = 5 * 4096
"""A folder, two files whose last block is not full, an entry of the catalog."""
FILLING = frozenset({Kind.BATCH, Kind.TOPIC_CREATE, Kind.TOPIC_CONFIG, Kind.LOGDEF})
"""Frames that may not use what is held."""


class Filled(Protocol):
    """What a write goes to: a topic."""

    counted_in: int
    """The checkpoint that room for its files is counted for."""


class Space:
    def __init__(self, disk: Disk, path: Path, clock: Clock, limits: Limits) -> None:
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
        """Bytes taken in since the last look."""
        self._base = FIXED
        self._since = 0
        """Needed for what came since the checkpoint that was begun last, or since the last good one if none is on."""
        self._under_way = 0
        """Needed by the checkpoint that is being made."""
        self._round = 0
        self._refused = False
        self.refused_total = 0
        self.wanted: Callable[[], None] = lambda: None
        """Called when a checkpoint may make room."""

    # What there is

    @property
    def free_bytes(self) -> int | None:
        """For users without privileges, at most 100 ms old; None if the system does not say."""
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
            self._free = None  # a disk that does not answer shows itself when it is written to
            return
        self._free = max(free - elsewhere, 0)
        self._shards = max(shards, 1)

    @property
    def needed(self) -> int:
        """Bytes that the next checkpoint may write, besides what one that is on its way has been given."""
        return self._base + self._since

    @property
    def short(self) -> bool:
        """Is less held than the next checkpoint may need?"""
        return self._ballast is not None and self._ballast.held < self.needed

    @property
    def low(self) -> bool:
        """Is the disk nearly full, is not all held that is needed, or found the last write no room?"""
        return bool(self._min) and (self._below(self._min) or self.short or (self._refused and self.scarce))

    @property
    def scarce(self) -> bool:
        """Will the disk be nearly full soon? Other shards may be waiting for what this one can remove."""
        return bool(self._min) and self._below(2 * self._min)

    def _below(self, least: int) -> bool:
        free = self.free_bytes
        return free is not None and free < least

    # What comes in

    def check_write(self, columns: Columns, topic: Filled | None) -> None:
        """Raises `429 throttled` if there is no room for a write."""
        keyed = len(columns.key) + PER_RECORD if columns.key else 0
        self.check(topic, columns.size(0, columns.count) + keyed, columns.count)

    def check(self, topic: Filled | None, size: int = 0, records: int = 0) -> None:
        """Raises `429 throttled` if there is no room for `records` with `size` bytes in all."""
        if not self.takes(topic, size, records):
            raise self.refusal()

    def takes(self, topic: Filled | None, size: int, records: int) -> bool:
        """Is there room for so much? Then it is taken."""
        if not self._min:
            return True
        needs = self._cost(topic, size, records)
        if self._taken + needs > self._min // (2 * self._shards):
            self._look()
        self._refused = self._below(self._min) or not self._hold(self.needed + needs)
        if self._refused:
            self.wanted()
            return False
        self._since += needs
        self._taken += needs
        if topic is not None:
            topic.counted_in = self._round
        return True

    def _cost(self, topic: Filled | None, size: int, records: int) -> int:
        limits = self._limits
        files = records // limits.segment_max_events + size // limits.segment_max_bytes
        fresh = topic is None or topic.counted_in != self._round
        large = records // FINAL_RECORDS + size // FINAL_BYTES
        return size + PER_RECORD * records + PER_FRAME * large + 2 * 4096 * files + (PER_TOPIC if fresh else 0)

    def _hold(self, needed: int) -> bool:
        """See to it that so much is held."""
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
        """A frame that is no batch was staged: the catalog may grow by what it says."""
        self._since += 2 * len(frame)
        if self.short and not self._below(self._min):
            self._hold(self.needed)

    def refusal(self) -> TopicsError:
        """The answer for what finds no room."""
        self.refused_total += 1
        return TopicsError(
            ErrorCode.THROTTLED,
            f"the disk has {self._free} bytes free, and writes need TOPICS_MIN_FREE_BYTES, {self._min}, and room for "
            "checkpoints; delete records or topics, or give it more room",
            {"limit": "disk_free", "min": self._min, "free": self._free},
            retry_after_ms=RETRY_AFTER_MS,
        )

    # What makes room

    def begin(self, logged_bytes: int, records: int, topics: int) -> None:
        """Hold room from now on. So much was read back from the log, and no file has it yet."""
        if not self._min:
            return
        self._since += 2 * logged_bytes + PER_RECORD * records + PER_TOPIC * topics
        self._ballast = Ballast(self._disk, self._path)
        self._ballast.begin()
        self._hold(self.needed)

    def end(self) -> None:
        """The shard has stopped in an orderly way."""
        if self._ballast is not None:
            self._ballast.end()
            self._ballast = None

    def checkpoint_begins(self) -> None:
        """From now on the checkpoint may use what was held for it."""
        self._round += 1
        self._under_way, self._since = self._since, 0
        if self._ballast is not None:
            self._ballast.give_up()
            self._hold(self.needed)

    def checkpoint_ended(self, good: bool, base: int) -> None:
        """What it was given has been used, or is held again; the next one needs at least `base` bytes."""
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
        """The log could not take these frames. True if it should try again: room was given up for them."""
        self._looked_at = float("-inf")
        self.wanted()
        if self._ballast is None or any(frame.head[KIND_AT] in FILLING for frame in frames):
            return False
        return self._ballast.give_up()
