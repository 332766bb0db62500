"""How far a stream has read: one position per topic, what it means, and how much of the rest comes next.

A stream source is anything with the five methods of `Source`. What Spark wants of a stream is made of them in `stream`,
the same for every source: `datasource` gives files to `directory` sources (option `path`) and a service to `feed`
(option `url`). Spark keeps positions as JSON in the checkpoint of a query:

    {"orders": {"seq": 501, "epoch": 2}, "returns": {"seq": 1, "epoch": 1}}

`seq` is the next seq to read, so a batch reads from `start` inclusive to `end` exclusive. `epoch` tells one instance of
a topic from the next one of the same name; 0 where the source cannot know it. Topics are sorted, because Spark takes
two offsets for equal if their JSON text is.

what `start` says of a topic that `end` has     the batch reads it
nothing (the topic is new)                      from its first record, 1
the same epoch, or one of both is 0             from that seq
another epoch, or a seq beyond `end`'s          from 1: it was deleted and created again (`recreated`, a gap)

A topic that is gone stays in the map where it was, so that its successor is known for one, and is told as lost once.

What dies when: Spark writes `end` to its log before a batch is read, and reads the same `start` and `end` again after
a stop. A source must therefore give the same records for them again, or tell a gap: it keeps nothing between two calls
that it could not do without, and never looks beyond `end`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

log = logging.getLogger("pyspark_topics")


class Position(NamedTuple):
    """The next seq to read of a topic, and in which instance of it."""

    seq: int
    epoch: int = 0


Offsets = dict[str, Position]


class Gap(NamedTuple):
    """Seqs `first` to `last` of a topic that cannot be read any more, and why: `cap`, `ttl`, `mixed`, `source_trim`,
    `recreated`, `deleted` (the whole topic is gone), `damaged`. `last` is 0 where nobody knows it."""

    topic: str
    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        upto = f"to {self.last}" if self.last else "on"
        return f'topic "{self.topic}": seq {self.first} {upto} ({self.reason})'


class DataLoss(RuntimeError):
    """Records that were to be read are gone. The text has every range, and what to do."""


class Source(Protocol):
    """Where a stream comes from. It is pickled and sent to executors, so it holds options, not connections.

    All methods but `read` are called on the driver, one at a time, by one thread.
    """

    def earliest(self) -> Offsets:
        """The first live record of each topic that is subscribed now; one past its last one if there is none."""

    def latest(self) -> Offsets:
        """One past the last record of each topic that is subscribed now. Records before it must not change."""

    def weigh(self, start: Offsets, end: Offsets) -> dict[str, list[Piece]]:
        """For each topic with something to read: pieces `(first seq, one past the last, bytes)`, ascending, that cover
        what there is from `start` to `end`. Estimates will do. Asked only if a batch is limited by bytes."""

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Any]:
        """`InputPartition`s, one per task. Gaps that are known by now go to `report`."""

    def read(self, partition: Any) -> Iterator[Any]:
        """The `pyarrow.RecordBatch`es of one of them, on an executor, as often as Spark likes."""

    def committed(self, end: Offsets) -> None:
        """The sink has everything before `end`. Called at least once per batch, perhaps late, perhaps again."""


def load(value: Mapping[str, Any]) -> Offsets:
    """From what Spark kept. Raises `ValueError` with a sentence if that is something else."""
    try:
        return {topic: Position(int(at["seq"]), int(at["epoch"])) for topic, at in value.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the checkpoint holds {str(value)[:200]!r}, which are not the offsets of topics; "
            "was it made by a stream of another kind? Give this query a checkpointLocation of its own"
        ) from error


def dump(offsets: Offsets) -> dict[str, Any]:
    """For Spark to keep."""
    return {topic: offsets[topic]._asdict() for topic in sorted(offsets)}


def begin(start: Offsets, end: Offsets, topic: str) -> int:
    """The first seq of `topic` that belongs to the batch from `start` to `end`, as the table above says."""
    old, new = start.get(topic), end[topic]
    return 1 if old is None or recreated(old, new) else old.seq


def recreated(old: Position, new: Position) -> bool:
    """Is `new` a place in a later instance of the topic?"""
    return bool(old.seq > new.seq or (old.epoch and new.epoch and old.epoch != new.epoch))


def onward(start: Offsets, latest: Offsets) -> Offsets:
    """Everything that can be read now: `latest`, and the topics of `start` that are gone."""
    return {topic: (latest if topic in latest else start)[topic] for topic in sorted({*start, *latest})}


def vanished(start: Offsets, end: Offsets, there: Iterable[str]) -> list[Gap]:
    """Topics that were read and do not exist any more (`there` are those that do), and those that were made anew."""
    known = set(there)
    gaps = [
        Gap(topic, position.seq, 0, "deleted")
        for topic, position in start.items()
        if topic not in known and topic in end
    ]
    gaps += [
        Gap(topic, start[topic].seq, 0, "recreated")
        for topic in end
        if topic in start and topic in known and recreated(start[topic], end[topic])
    ]
    return gaps


def report(gaps: Sequence[Gap], fail: bool) -> None:
    """With `fail` (option failOnDataLoss, the default) raise `DataLoss` if there are any; else log them."""
    if not gaps:
        return
    ranges = "; ".join(map(str, gaps[:20])) + (f"; and {len(gaps) - 20} more" if len(gaps) > 20 else "")
    if fail:
        raise DataLoss(
            f"records are gone that were to be read: {ranges}. Raise the caps or ttl_ms of these topics, or read more "
            'often; to go on without the records, say .option("failOnDataLoss", "false")'
        )
    log.warning("read on without records that are gone: %s", ranges)


def unread(start: Offsets, end: Offsets, earliest: Offsets) -> dict[str, tuple[int, int]]:
    """For each topic with something to read, first seq and one past the last. What is before `earliest` is gone."""
    found = {}
    for topic, position in end.items():
        low = max(begin(start, end, topic), earliest[topic].seq if topic in earliest else 1)
        if low < position.seq:
            found[topic] = (low, position.seq)
    return found


Piece = tuple[int, int, int]
"""First seq, one past the last one, and what the records between them weigh."""


def limit(start: Offsets, end: Offsets, weights: Mapping[str, Sequence[Piece]], budget: int) -> Offsets:
    """As much of `start` to `end` as weighs about `budget`, in proportion to what each topic has; at least one record
    of each, so that none starves. `weights` as of `Source.weigh`, or `records` where records are what counts."""
    totals = {topic: sum(weight for _, _, weight in pieces) for topic, pieces in weights.items()}
    total = sum(totals.values())
    if total <= budget:
        return end
    # A topic of which nothing is left to read is passed over as a whole.
    cut = dict(end)
    for topic, pieces in weights.items():
        if pieces:
            share = max(budget * totals[topic] // total, 1)
            cut[topic] = end[topic]._replace(seq=_reach(pieces, share, end[topic].seq))
    return cut


def records(unread: Mapping[str, tuple[int, int]]) -> dict[str, list[Piece]]:
    """The weight of what is unread if every record weighs one."""
    return {topic: [(first, stop, stop - first)] for topic, (first, stop) in unread.items()}


def _reach(pieces: Sequence[Piece], share: int, end: int) -> int:
    """One past the last seq that `share` pays for, one record at least. Inside a piece all records weigh the same."""
    left = share
    for first, stop, weight in pieces:
        if weight >= left:
            return max(first + (stop - first) * left // weight, pieces[0][0] + 1)
        left -= weight
    return end
