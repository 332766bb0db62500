"""Quarantine: topics whose files cannot be read are refused, while all other topics are served.

    sound ───► damaged     a read of a file failed, or its bytes were not those written; or its delete flags were not,
      ▲           │        when they were read for the first time after a start. The topic's data in memory is whole, so
      │           │        checkpoints include it; batches go to a new segment, never to a damaged file
      └───────────┘        a new attempt, at most every 5 to 60 s and only for a request about the topic, succeeded
    start ───► unloaded    files that the start has to read were missing, too short or damaged; for files that it does
      ▲           │        not read, see `shardd.checkpoint`. Only the catalog's entry is known. Each new catalog copies
      │           │        it unchanged. The topic's frames after it are written to a file of their own (`held`) before
      │           │        the log is trimmed, so that no frame is lost
      └───────────┘        a new attempt, as above, or a start, read everything: the entry, the held frames, the log

A quarantined topic serves only its state, and can be deleted; `records` of an operation's row says whether it is
refused. Requests that wait for it get `503 not_ready`, `reason: "damaged"`; paths are only in the log. Routers into it
or out of it wait. An unloaded topic with routers into it comes back only by a start, because its copies may have to be
made again, and so does one that has to give seqs up (`shardd.restoring`). Running out of descriptors or memory is not
damage.

If the process dies, the next read finds `damaged` again, and the next start finds `unloaded`. The file of held frames
is written and synced before the catalog that names it, like segments. A file that no catalog names is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from proto.format.buffer import Buffer
from proto.format.frame import Header, Kind
from proto.model.errors import TopicsError, not_ready
from shardd.clock import Clock
from shardd.storage.catalog import column
from shardd.storage.disk import Disk
from shardd.storage.errors import SegmentError, unreadable
from shardd.storage.lost import log
from shardd.storage.segment_check import whole_frames
from shardd.topic.damage import FIRST_LOOK_S, Damage, held_files
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic

LONGEST_LOOK_S = 60.0
"""Longest pause in seconds between attempts to read a damaged topic."""


def read_held(disk: Disk, entry: dict[str, Any], folder: Path) -> list[Buffer]:
    """The held frames of an unloaded topic. Blocks. Raises `SegmentError`."""
    frames: list[Buffer] = []
    rows, checks = entry.get("held", ()), column(entry, "held_checks", "held")
    for path, (_, size), expected in zip(held_files(entry, folder), rows, checks, strict=True):
        try:
            raw = disk.read_part(path, 0, size)
        except OSError as error:
            raise unreadable(path, error) from error
        if expected not in (None, xxhash.xxh3_64_intdigest(raw)):
            raise SegmentError(f"{path}: its frames are not those that were written here")
        frames += (raw[offset : offset + header.length] for offset, header in whole_frames(raw, size, path))
    return frames


def _id_of(path: Path) -> int:
    """The topic id of a file in a topic's folder, of either tier."""
    return int(path.parent.name, 16)


def defer(topic: Topic, header: Header, frame: Buffer) -> None:
    """Keep a log frame of an unloaded topic until the topic can be read."""
    assert topic.unloaded is not None
    topic.unloaded.frames.append(frame)
    if header.kind == Kind.BATCH:
        last_seq = max(topic.records.head_seq, header.first_seq + header.count - 1)
        topic.records.load("head_seq", last_seq)
        topic.position.used(last_seq)
        topic.position.on_device(last_seq)


class Quarantine:
    """The quarantined topics of a shard."""

    def __init__(self, directory: Directory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._early: dict[int, tuple[SegmentError, Callable[[], object]]] = {}
        self._fresh: list[Topic] = []
        self._apart: dict[int, Topic] = {}

    def __len__(self) -> int:
        for ident, topic in list(self._apart.items()):
            if topic.damage is None or self._directory.by_id.get(ident) is not topic:
                del self._apart[ident]
        return len(self._apart)

    def has(self, path: Path) -> bool:
        """True if the topic of a file is quarantined. May be called from any thread."""
        topic = self._directory.by_id.get(_id_of(path))
        return topic is not None and topic.damage is not None

    def met(self, path: Path, error: SegmentError, look: Callable[[], object]) -> None:
        """Quarantine the topic of a file that could not be read. `look` raises `SegmentError` while that is so. May be
        called from any thread."""
        ident = _id_of(path)
        topic = self._directory.by_id.get(ident)
        if topic is None:
            self._early[ident] = error, look  # the topic is being loaded
        elif topic.damage is None:
            self.set_apart(topic, error, look)

    def set_apart(self, topic: Topic, error: SegmentError, look: Callable[[], object]) -> None:
        assert topic.damage is None, "the first reason stays until the topic is whole"
        topic.damage = Damage(str(error), self._clock.now_ms(), look, due=self._clock.monotonic() + FIRST_LOOK_S)
        self._fresh.append(topic)
        self._apart[topic.id] = topic
        log.error(
            "topic_quarantined",
            topic=topic.name,
            reason=str(error),
            remedy="put the file back, or stop the service and run `topics verify`, then `topics salvage`",
        )

    def recovered(self) -> None:
        """Quarantine the topics whose damage was found before they were visible. Called when all topics are visible."""
        for ident, (error, look) in self._early.items():
            topic = self._directory.by_id.get(ident)
            if topic is not None and topic.damage is None:
                self.set_apart(topic, error, look)
        self._early.clear()

    def fresh(self) -> list[Topic]:
        """Topics that were quarantined since the last call. The caller must refuse the requests that wait for them."""
        fresh, self._fresh = self._fresh, []
        return [topic for topic in fresh if topic.damage is not None]

    def check(self, name: str) -> bool:
        """Try to read a quarantined topic again, if the pause is over. Call it before a topic is used. Returns True if
        the topic has just become whole. Raises `503 not_ready` if it is still quarantined."""
        topic = self._directory.visible.get(name)
        if topic is None or topic.damage is None:
            return False
        damage, now = topic.damage, self._clock.monotonic()
        if now < damage.due:
            raise refusal(topic)
        try:
            damage.look()
        except SegmentError as error:
            damage.pause_s = min(2 * damage.pause_s, LONGEST_LOOK_S)
            damage.due = now + damage.pause_s
            damage.reason = str(error)
            self._apart[topic.id] = topic  # the attempt may have set apart the object that it made
            raise refusal(topic) from error
        topic.damage = None
        if topic.queue is not None:
            topic.queue.offer_again()
        log.info("topic_whole_again", topic=topic.name)
        return True


def refusal(topic: Topic) -> TopicsError:
    """The `503` answer to requests about a quarantined topic."""
    return not_ready(
        f'files of topic "{topic.name}" cannot be read; other topics are served. The log of the service says which',
        reason="damaged",
        topic=topic.name,
    )


def is_damage(error: TopicsError) -> bool:
    """True if the request was refused because the topic is quarantined."""
    return (error.detail or {}).get("reason") == "damaged"
