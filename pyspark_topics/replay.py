"""Replay: the topics of a shard by id, from its newest catalog and the log after it.

    frame                            effect on the readable records
    batch                            adds records, unless the catalog includes it
    topic created, deleted           adds or removes a topic
    topic configured                 applies the old caps and age, then sets the new ones
    records deleted                  raises the floor, or adds a deletion by tag
    router                           later frames of its topic wait for copies that no file has yet (`Topic.waiting`)
    seqs reserved                    uses seqs without records
    cursor, rescued, watch sessions  none

A frame of a topic that is unknown to catalog and log is an error. Ids below the catalog's `next_id` are no error: their
topics may have been deleted before the catalog was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark_topics import frames
from pyspark_topics.errors import CorruptFile, tell
from pyspark_topics.frames import FrameError, Head
from pyspark_topics.logfile import LogFile
from pyspark_topics.losses import Losses
from pyspark_topics.snapshot import Snapshot
from pyspark_topics.topic import Stored, Topic


class Replay:
    """State that begins at the catalog and advances with `apply`. It follows only topics that are `wanted`.

    If damage is skipped (`fail` is false), batches may be missing between others.
    """

    def __init__(self, snapshot: Snapshot, wanted: Callable[[str], bool], fail: bool = True) -> None:
        catalog = snapshot.catalog
        self.topics: dict[int, Topic | None] = {}
        """Topics by id; None for a topic that is not wanted."""
        self.frame_no = 0
        """Number of the last frame that was read."""
        self.names: dict[int, str] = {}
        self._snapshot = snapshot
        self._fail = fail
        self._next_id = catalog.next_id
        self._gone: set[int] = set()
        self._as_of: dict[int, int] = {entry["id"]: entry["as_of"] for entry in catalog.topics if "as_of" in entry}
        self._wanted = wanted
        for entry in catalog.topics:
            topic = self._create(entry["id"], entry["name"], entry["config"], entry["epoch"])
            if topic is not None:
                if entry.get("held"):
                    what = "could not be read by the server, which holds back what was written last"
                    tell(
                        CorruptFile(f'{snapshot.shard.path}: topic "{entry["name"]}" {what}: salvage it there first'),
                        fail,
                    )
                self._load(topic, entry)

    def _create(self, ident: int, name: str, config: dict[str, Any], epoch: int) -> Topic | None:
        topic = Topic(self._snapshot, ident, name, config, epoch, self._fail) if self._wanted(name) else None
        self.topics[ident] = topic
        self.names[ident] = name
        return topic

    def _load(self, topic: Topic, entry: dict[str, Any]) -> None:
        topic.head = entry["head_seq"]
        topic.floor = entry["floor"]
        topic.flagged = {first: flags for first, flags in entry["deleted"] if first + len(flags) > topic.floor}
        last = topic.head
        for first, size, _created_ms, _sealed, cold in reversed(entry["segments"]):
            if last >= topic.floor:
                topic.segments.append(Stored(first, last, size, cold))
            last = first - 1
        topic.segments.reverse()
        topic.losses = Losses([(upto, reason) for upto, reason in entry["losses"]], entry.get("gaps", ()))

    def apply(self, log: LogFile, head: Head) -> None:
        """Apply one frame. Raises `FrameError` if its content is inconsistent."""
        if head.kind in frames.WITHOUT_RECORDS:
            return
        if head.kind == frames.TOPIC_CREATE:
            if head.topic_id in self.topics:
                return
            about = frames.fields(log.view, head)
            try:
                self._create(head.topic_id, about["name"], about["config"], about["epoch"])
            except KeyError as error:
                raise FrameError(f"a topic was created without its {error}") from error
            return
        if head.topic_id not in self.topics:
            if head.topic_id < self._next_id or head.topic_id in self._gone:
                return
            if not self._fail:
                return  # its creation was in a damaged frame
            raise FrameError(f"the frame belongs to topic id {head.topic_id}, whose creation is not in the log")
        if head.kind == frames.TOPIC_DELETE:
            del self.topics[head.topic_id]
            self._gone.add(head.topic_id)
            return
        if head.frame_no <= self._as_of.get(head.topic_id, 0):
            return
        topic = self.topics[head.topic_id]
        if topic is not None and head.kind == frames.ROUTER:
            about = frames.fields(log.view, head)
            topic.waiting = topic.waiting or ("pin" in about and about["head"] > topic.head and not topic.ephemeral)
        elif topic is not None and not topic.waiting:
            self._change(topic, log, head)

    def _change(self, topic: Topic, log: LogFile, head: Head) -> None:
        if head.kind == frames.BATCH:
            topic.wrote(log, head)
            return
        about = frames.fields(log.view, head)
        try:
            if head.kind == frames.TOPIC_CONFIG:
                topic.configured(
                    about["config"], about["now"], about["next_seq"], about.get("floor", 0), about.get("lost", -1)
                )
            elif head.kind == frames.CEILING and "floor" in about:
                topic.pushed_out(about["floor"], about["now"])
            elif head.kind == frames.CEILING:
                topic.skipped(about.get("next_seq", 0))
            else:
                if "seqs" in about:
                    topic.acked(about["seqs"], about["now"])
                    return
                match = about["match"]
                topic.deleted(about["before"], match and (match[0], match[1]), about["bound"], about["now"])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise FrameError(f"the frame makes no sense: {error!r}") from error
