"""The snapshot of a topic: the fields of its catalog entry besides its records.

`FIELDS` is the only list of what a topic, its records and its position keep over a restart; writing and reading follow
it. Their other attributes are made again by a start, or end with the process. `docs/format.md` describes the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from proto.model.topic_config import as_map, from_map
from shardd.topic.cursors import Cursor
from shardd.topic.gaps import Gaps
from shardd.topic.lane import load as load_lane
from shardd.topic.tombstones import RESTART, Losses
from shardd.topic.topic import Topic

_Range = tuple[int, int, str]
_Run = tuple[int, str]


@dataclass(frozen=True, slots=True)
class SavedState:
    """The state of a topic that the next start is to find, as far as it is not the state in memory."""

    head_seq: int
    ceiling: int
    losses: list[_Run]
    gaps: list[_Range]
    all_leases: bool
    """Also leases that a crash would lose."""
    now_ms: int = 0
    as_of: int | None = None
    """Frame number of the topic's position, if it is after that of the catalog."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a catalog entry, and the attributes of `Topic`, `Records` and `LogPosition` that it keeps."""

    name: str
    attributes: tuple[str, ...]
    dump: Callable[[Topic, SavedState], Any]
    load: Callable[[Topic, Any], None] | None
    """None: an argument of `Topic`."""
    optional: bool = False
    """Not written if it is None. Entries of earlier releases may not have it."""


def _load_head(topic: Topic, head_seq: int) -> None:
    topic.records.load("head_seq", head_seq)
    topic.position.used(head_seq)


def _load_floor(topic: Topic, floor: int) -> None:
    if topic.unloaded is None:
        topic.restored(topic.records.head_seq, floor)
    else:  # its batches are not known
        topic.records.load("floor", floor)


def _load_losses(topic: Topic, runs: list[_Run]) -> None:
    topic.records.load("losses", Losses([(upto, reason) for upto, reason in runs]))


def _load_gaps(topic: Topic, ranges: list[_Range]) -> None:
    topic.records.load("gaps", Gaps([(first, last, reason) for first, last, reason in ranges]))


def _dump_queue(topic: Topic, state: SavedState) -> dict[str, Any] | None:
    if topic.queue is None:
        return None
    return {**topic.queue.dump(everything=state.all_leases), "at": state.now_ms}


def _load_queue(topic: Topic, fields: dict[str, Any] | None) -> None:
    if topic.queue is not None:
        topic.queue.apply(fields or {})


def _load_cursors(topic: Topic, cursors: dict[str, tuple[int, int]]) -> None:
    topic.cursors = {name: Cursor(seq, ts) for name, (seq, ts) in cursors.items()}


def _dump_makers(topic: Topic, state: SavedState) -> dict[str, bytes] | None:
    return {name: cursor.maker for name, cursor in topic.cursors.items() if cursor.maker} or None


def _load_makers(topic: Topic, makers: dict[str, bytes]) -> None:
    for name, maker in makers.items():
        topic.cursors[name].maker = maker


def _dump_lane(topic: Topic, state: SavedState) -> dict[str, Any] | None:
    lane = topic.lane_visible
    return None if lane is None else lane.dump(lane.done)


def _load_lane(topic: Topic, fields: dict[str, Any]) -> None:
    topic.lane = topic.lane_visible = load_lane(fields)


def _load_last_write(topic: Topic, ts_ms: int | None) -> None:
    topic.last_write_ts = ts_ms


def _position(name: str, dump: Callable[[Topic, SavedState], Any] | None = None, *, optional: bool = False) -> Field:
    """A field of the topic's position."""

    def load(topic: Topic, value: Any) -> None:
        topic.position.load(name, value)

    return Field(name, (name,), dump or (lambda topic, _: getattr(topic.position, name)), load, optional)


FIELDS: tuple[Field, ...] = (
    Field("name", ("name",), lambda topic, _: topic.name, None),
    Field("id", ("id",), lambda topic, _: topic.id, None),
    Field("epoch", ("epoch",), lambda topic, _: topic.epoch, None),
    Field("config", ("config", "assigned_config"), lambda topic, _: as_map(topic.config), None),
    Field("head_seq", ("head_seq", "next_seq"), lambda _, state: state.head_seq, _load_head),
    Field("floor", ("floor",), lambda topic, _: topic.records.floor, _load_floor),
    Field("losses", ("losses",), lambda _, state: state.losses, _load_losses),
    _position("last_ts"),
    Field("last_write_ts", ("last_write_ts",), lambda topic, _: topic.last_write_ts, _load_last_write),
    _position("ceiling", lambda _, state: state.ceiling),
    _position("reserved_in", optional=True),
    Field("keys", ("keys",), lambda topic, _: topic.keys.dump(), lambda topic, keys: topic.keys.load(keys)),
    Field("queue", ("queue",), _dump_queue, _load_queue),
    Field(
        "cursors",
        ("cursors",),
        lambda topic, _: {name: [cursor.seq, cursor.updated_ts] for name, cursor in topic.cursors.items()},
        _load_cursors,
    ),
    Field("makers", (), _dump_makers, _load_makers, optional=True),
    Field("routers", ("lane", "lane_visible"), _dump_lane, _load_lane, optional=True),
    Field(
        "letters",
        ("outbox",),
        lambda topic, _: topic.outbox.dump(topic.records.alive) if topic.outbox else None,
        lambda topic, letters: topic.outbox.apply({"letters": letters}, topic.queue),
        optional=True,
    ),
    Field(
        "arrivals",
        ("arrivals",),
        lambda topic, _: topic.arrivals.dump() if topic.arrivals.last else None,
        lambda topic, keys: topic.arrivals.load(keys),
        optional=True,
    ),
    Field("gaps", ("gaps",), lambda _, state: state.gaps or None, _load_gaps, optional=True),
    _position("as_of", lambda _, state: state.as_of, optional=True),
)
"""In the order of an entry, which is also the order of loading: `restored` needs the head, transfers need the queue."""
UNLOADED = frozenset({"head_seq", "floor", "last_ts", "last_write_ts", "routers"})
"""Names of the fields that are shown of a topic whose files cannot be read."""


def dump(topic: Topic, state: SavedState) -> dict[str, Any]:
    """The catalog fields of a topic besides its records."""
    fields = {}
    for field in FIELDS:
        value = field.dump(topic, state)
        if value is not None or not field.optional:
            fields[field.name] = value
    return fields


def topic_of(entry: dict[str, Any]) -> Topic:
    """A topic with the name, id, epoch and configuration of an entry. Its records and its other fields are to be
    loaded."""
    return Topic(entry["name"], entry["id"], entry["epoch"], from_map(entry["config"]))


def load(topic: Topic, entry: dict[str, Any], names: Collection[str] | None = None) -> None:
    """Load the fields of an entry, or of these those with `names`. The batches must have been restored before."""
    for field in FIELDS:
        if field.load is None or (names is not None and field.name not in names):
            continue
        if field.name in entry or not field.optional:
            field.load(topic, entry[field.name])


def exact(topic: Topic) -> SavedState:
    """The state in memory."""
    records, ceiling = topic.records, topic.position.ceiling
    return SavedState(records.head_seq, ceiling, list(records.losses.runs), list(records.gaps.ranges), all_leases=True)


def kept(topic: Topic, last: bool, now_ms: int, as_of: int | None = None) -> SavedState:
    """The state for a checkpoint. `last`: the shard stops after it.

    For an ephemeral topic it is the state that a restart finds: the lasting head, and the ceiling. With `last` it has
    the exact head and the losses instead, so that the restart does not move the head.
    """
    lasts, records = topic.config.durability.lasts, topic.records
    head, losses = topic.lasting_seq, records.losses
    inner = Gaps([(first, min(end, head), reason) for first, end, reason in records.gaps.ranges if first <= head])
    if last and not lasts:
        lost = records.last_live
        if lost > head and records.floor > head:
            losses = Losses(list(losses.runs))
            losses.add(lost, RESTART)
        elif lost > head:
            inner.add(head + 1, lost, RESTART)
        head = records.head_seq
    ceiling = records.head_seq if last and not lasts else max(topic.position.ceiling, 0 if lasts else head)
    all_leases = topic.queue is None or topic.config.leases_durable or last or not topic.queue.unlogged
    return SavedState(head, ceiling, list(losses.runs), inner.ranges, all_leases, now_ms, as_of)
