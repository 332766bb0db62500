"""Topics whose files cannot be read are set apart: their trouble stays with them, and everything else goes on.

    sound ───► damaged     a read of a file failed, or its bytes were not those written; or its delete flags were not,
      ▲           │        when they were read for the first time after a start. What is in memory of the topic is
      │           │        whole, so checkpoints go on with it; batches go to a new segment, never into a bad file
      └───────────┘        a look, at most every 5 to 60 s and only when somebody asks for the topic, found them whole
    start ───► unloaded    files that the start has to read were missing, too short or damaged; of those it passes over,
      ▲           │        see `shardd.checkpoint`. Known is the catalog's entry only. It is carried from catalog to
      │           │        catalog as it is, and so that nothing of the log is lost, the topic's frames behind it go to
      │           │        a file of their own (`held`) before the log is trimmed
      └───────────┘        a look, as above, or a start, read everything: the entry, what is held, the log

Of a topic that is set apart nothing is served but its state; it can be deleted. Whoever waits for it is told `503
not_ready`, `reason: "damaged"`; paths are in the log only. Routers into it or out of it wait. A topic that routers
bring something into, and that is unloaded, comes back by a start only, because its copies may have to be made again.
Running out of descriptors or memory is no damage.

If the process dies: `damaged` is found again by whoever reads, `unloaded` by the next start. The file of held frames is
written and synced before the catalog that names it, as segments are; one that no catalog names is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from proto.format.frame import Buffer, FrameError, Header, Kind, check
from proto.model.errors import TopicsError, not_ready
from shardd.clock import Clock
from shardd.recovery.wal_scan import Found
from shardd.storage.disk import Disk
from shardd.storage.errors import SegmentError, unreadable
from shardd.topic.damage import FIRST_LOOK_S, Damage, held_files
from shardd.topic.directory import Directory
from shardd.topic.topic import Topic

LONGEST_LOOK_S = 60.0
"""How long, after damage was found again and again, nobody looks whether it is gone."""
READING = frozenset(
    (
        *("append", "configure", "delete_records", "diff", "feed", "take", "peek", "step"),
        *("cursor_put", "cursor_get", "cursor_delete", "cursor_list"),
        *("claim", "ack", "nack", "extend", "work_open", "work_take", "peek_jobs", "redrive"),
        *("pull", "router_source", "router_put", "router_delete"),
    )
)
"""Operations that a topic which is set apart refuses."""
log: Any = structlog.get_logger()


def read_held(disk: Disk, entry: dict[str, Any], folder: Path) -> list[Buffer]:
    """The frames that followed the entry. Raises `SegmentError`."""
    frames: list[Buffer] = []
    for path, (_, size) in zip(held_files(entry, folder), entry.get("held", ()), strict=True):
        try:
            view = memoryview(disk.read_part(path, 0, size))
        except OSError as error:
            raise unreadable(path, error) from error
        offset = 0
        while offset < size:
            try:
                header = check(view, offset)
            except FrameError as error:
                raise SegmentError(f"{path}, offset {offset}: {error}") from error
            frames.append(view[offset : offset + header.length])
            offset += header.length
    return frames


def found(frame: Buffer) -> Found:
    return Found(Header(frame), memoryview(frame), 0, 0)


def defer(topic: Topic, header: Header, frame: Buffer) -> None:
    """A frame of the log about a topic that is unloaded: kept until the topic can be read."""
    assert topic.unloaded is not None
    topic.unloaded.frames.append(frame)
    if header.kind == Kind.BATCH:
        topic.head_seq = max(topic.head_seq, header.first_seq + header.count - 1)
        topic.next_seq = topic.durable_head = topic.head_seq + 1


class Quarantine:
    """`load_again` reads an unloaded topic from its files and makes it visible, or raises `SegmentError`."""

    def __init__(self, directory: Directory, clock: Clock, load_again: Callable[[Topic], None]) -> None:
        self._directory = directory
        self._clock = clock
        self._load_again = load_again
        self._early: dict[int, tuple[SegmentError, Callable[[], object]]] = {}
        self._fresh: list[Topic] = []
        self._apart: dict[int, Topic] = {}

    def __len__(self) -> int:
        for ident, topic in list(self._apart.items()):
            if topic.damage is None or self._directory.by_id.get(ident) is not topic:
                del self._apart[ident]
        return len(self._apart)

    def met(self, path: Path, error: SegmentError, look: Callable[[], object]) -> None:
        """A file could not be read. `look` raises `SegmentError` while that is so. From any thread."""
        ident = int(path.parent.name, 16)
        topic = self._directory.by_id.get(ident)
        if topic is None:
            self._early[ident] = error, look  # it is being loaded
        elif topic.damage is None:
            self.set_apart(topic, error, look)

    def set_apart(self, topic: Topic, error: SegmentError, look: Callable[[], object]) -> None:
        topic.damage = Damage(str(error), self._clock.now_ms(), look, due=self._clock.monotonic() + FIRST_LOOK_S)
        self._fresh.append(topic)
        self._apart[topic.id] = topic
        log.error(
            "topic_quarantined",
            topic=topic.name,
            reason=str(error),
            remedy="put the file back, or stop the service and run `topics verify`, then `topics salvage`",
        )

    def unloaded(self, topic: Topic, error: SegmentError) -> None:
        """It could not be read at the start."""
        self.set_apart(topic, error, lambda: self._load_again(topic))

    def recovered(self) -> None:
        """All topics are visible: those whose damage was met on the way are set apart."""
        for ident, (error, look) in self._early.items():
            topic = self._directory.by_id.get(ident)
            if topic is not None and topic.damage is None:
                self.set_apart(topic, error, look)
        self._early.clear()

    def fresh(self) -> list[Topic]:
        """Topics that were set apart since the last call: whoever waits for them is to be told."""
        fresh, self._fresh = self._fresh, []
        return [topic for topic in fresh if topic.damage is not None]

    def check(self, name: str) -> bool:
        """Before a topic is used: if it is set apart and it is time, look again. True if it is whole again. Raises `503
        not_ready`."""
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
            raise refusal(topic) from error
        topic.damage = None
        if topic.queue is not None:
            topic.queue.offer_again()
        log.info("topic_whole_again", topic=topic.name)
        return True


def refusal(topic: Topic) -> TopicsError:
    """The answer to whoever asks for a topic that is set apart."""
    return not_ready(
        f'files of topic "{topic.name}" cannot be read; other topics are served. The log of the service says which',
        reason="damaged",
        topic=topic.name,
    )


def is_damage(error: TopicsError) -> bool:
    """Was it refused because the topic is set apart?"""
    return (error.detail or {}).get("reason") == "damaged"
