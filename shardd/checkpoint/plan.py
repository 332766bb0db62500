"""The plan of a checkpoint: the batches, deletions and entries that it writes, and their places after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proto.model.topic_config import TopicConfig
from shardd.checkpoint.segment_summary import BatchState
from shardd.storage.batch import Batch
from shardd.storage.catalog import column
from shardd.storage.segment import Entry, Segment, StoredFrame, flags_check
from shardd.topic.topic import Topic

Planned = tuple[Batch, bytes]
"""A batch, and its delete flags at the time of the plan."""


@dataclass(slots=True)
class TopicPlan:
    topic: Topic
    config: TopicConfig
    fields: dict[str, Any]
    segments: list[Segment]
    batches: list[Planned] = field(default_factory=list)
    deleted: list[Planned] = field(default_factory=list)
    cold: list[tuple[Segment, Path]] = field(default_factory=list)
    written: list[tuple[Segment, list[Entry]]] = field(default_factory=list)
    sums: dict[int, int] = field(default_factory=dict)
    """By id of the segment object: the sum of a segment that was written to."""
    states: list[BatchState] | None = None
    """States of its batches, if the topic is small."""
    held: list[tuple[list[int], int]] = field(default_factory=list)
    """Of an unloaded topic: `[number of the first frame, size]` of the file of held frames that was written, and its
    XXH3-64."""
    encoded: bytes = b""
    """The topic's entry in the catalog."""


@dataclass(slots=True)
class Plan:
    number: int
    frame_no: int
    next_id: int
    id_sum: int
    """Of the ids of the topics that have entries."""
    logs: dict[str, int]
    sessions: list[dict[str, Any]]
    tail: int | None = None
    """Checksum of frame `frame_no`, if it is known."""
    topics: list[TopicPlan] = field(default_factory=list)
    """Plans of the topics that have changed."""
    entries: list[bytes | TopicPlan] = field(default_factory=list)
    """Entries of all topics, those that have changed as their plans."""
    dead: list[Path] = field(default_factory=list)
    listed: list[Planned] = field(default_factory=list)
    loaded: dict[int, Topic] | None = None
    """All topics by id, for the first checkpoint of a process, which looks for files that no topic has. Else None."""
    unflagged: set[int] = field(default_factory=set)
    """Ids of segment objects whose delete flags were not written, because their files are damaged or unreadable."""
    written_bytes: int = 0
    catalog_bytes: int = 0
    begun: list[tuple[Path, int]] = field(default_factory=list)
    """Files that were written to, and the size of each before."""
    committed: bool = False
    """True if the next start may find this catalog."""
    flagged: bool = False
    trimmed: bool = False
    left: list[Path] = field(default_factory=list)
    """Files that step 6 could not compare or set apart, for lack of descriptors or space: the next checkpoint does."""
    not_moved: list[tuple[Path, OSError]] = field(default_factory=list)
    """Segments that could not be copied to the cold tier, with the errors."""


def with_held(plan: TopicPlan) -> dict[str, Any]:
    """The entry of an unloaded topic, with the held frames that the plan wrote."""
    held = [*plan.fields.get("held", ()), *(row for row, _ in plan.held)]
    checks = [*column(plan.fields, "held_checks", "held"), *(check for _, check in plan.held)]
    return {**plan.fields, "held": held, "held_checks": checks}


def segment_of(batch: Batch) -> Segment:
    assert isinstance(batch.stored, StoredFrame)
    return batch.stored.segment


def places_of(plan: TopicPlan, known: list[BatchState]) -> dict[int, list[tuple[Entry, BatchState]]]:
    """By id of the segment object: the places of a topic's batches after the plan has been carried out."""
    waiting = iter(plan.batches)
    new = {
        id(batch): (id(segment), entry)
        for segment, entries in plan.written
        for entry, (batch, _) in zip(entries, waiting, strict=False)
    }
    places: dict[int, list[tuple[Entry, BatchState]]] = {}
    for state in sorted(known, key=lambda state: state[0].first_seq):
        segment, entry = new.get(id(state[0])) or _place(state[0])
        places.setdefault(segment, []).append((entry, state))
    return places


def _place(batch: Batch) -> tuple[int, Entry]:
    assert isinstance(batch.stored, StoredFrame)
    return id(batch.stored.segment), batch.stored.entry


def checks_of(plan: TopicPlan) -> dict[int, int]:
    """By id of the segment object: XOR of its present check and its check in the catalog. Adds written frames and takes
    out listed ones."""
    changes: dict[int, int] = {}
    for batch, _ in plan.deleted:
        segment = id(segment_of(batch))
        changes[segment] = changes.get(segment, 0) ^ batch.filed
    waiting = iter(plan.batches)
    for written, entries in plan.written:
        for entry, (_, flags) in zip(entries, waiting, strict=False):
            changes[id(written)] = changes.get(id(written), 0) ^ flags_check(entry.first_seq, flags)
    return changes


def still_needed(plan: Plan, removable: set[Path]) -> set[Path]:
    """Those of the `removable` files that the new catalog names for topics that have changed. Files of other topics are
    not removable."""
    needed: set[Path] = set()
    for topic_plan in plan.topics:
        if topic_plan.topic.unloaded is not None:
            needed.update(topic_plan.topic.unloaded.held)
            if topic_plan.held:
                needed.add(topic_plan.topic.unloaded.next_file())
        targets = {id(segment): target for segment, target in topic_plan.cold}
        for segment in (*topic_plan.segments, *(segment for segment, _ in topic_plan.written)):
            folder = targets.get(id(segment), segment.directory)
            paths = (folder / segment.data_path.name, folder / segment.index_path.name)
            needed.update(path for path in paths if path in removable)
    return needed


def files_of(segments: list[Segment]) -> list[Path]:
    return [path for segment in segments for path in (segment.data_path, segment.index_path)]
