"""Offsets of a stream: one position per topic, and the choice of the next batch.

A stream source implements `Source`; `stream` implements Spark's interface on top of it, alike for `files` (option
`path`) and `feed` (option `url`). Spark stores positions as JSON in the checkpoint of a query:

    {"orders": {"seq": 501, "epoch": 2}, "returns": {"seq": 1, "epoch": 1}}

`seq` is the next seq to read, so a batch reads from `start` inclusive to `end` exclusive. `epoch` distinguishes
instances of a topic with the same name; it is 0 if the source does not know it. Topics are sorted, because Spark
compares offsets by their JSON text.

`start` of a topic in `end`                     the batch reads the topic
absent (the topic is new)                       from its first record, 1
the same epoch, or one of both is 0             from that seq
another epoch, or a seq above `end`'s           from 1: it was deleted and created again (`recreated`, a gap)

A topic that is gone keeps its position, with `"gone": true`. It is thus reported as lost once, and read from there if
it returns (after an unreadable shard, or a pattern that was changed and changed back).

Restarts: Spark writes `end` to its log before it reads a batch, and reads the same `start` and `end` again after a
stop. A source must then return the same records again, or report a gap. It therefore depends on no state between two
calls, and never reads beyond `end`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark_topics.errors import log


class Position(NamedTuple):
    """Position in a topic: the next seq to read, the topic's epoch, and whether the topic was gone at the last look."""

    seq: int
    epoch: int = 0
    gone: bool = False


Offsets = dict[str, Position]


class Gap(NamedTuple):
    """Seqs `first` to `last` of a topic that cannot be read any more. `last` is 0 if it is unknown. Reasons: `cap`,
    `ttl`, `mixed`, `source_trim`, `recreated`, `deleted` (the whole topic is gone), `damaged`."""

    topic: str
    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        upto = f"to {self.last}" if self.last else "on"
        return f'topic "{self.topic}": seq {self.first} {upto} ({self.reason})'


class DataLoss(RuntimeError):
    """Records that were to be read are gone. The message has the ranges and the remedy."""


class Source(Protocol):
    """Source of a stream. It is pickled and sent to executors, so it has options but no connections.

    One thread on the driver calls all methods but `read`, one at a time.
    """

    def reach(self) -> None:
        """Raise, within seconds, if the source is unavailable. Called before a new stream or read begins."""

    def earliest(self) -> Offsets:
        """Position of the first live record of each subscribed topic; one past its last seq if there is none."""

    def latest(self) -> Offsets:
        """Position after the last record of each subscribed topic. Records before it must not change."""

    def since(self, times: Mapping[str, int]) -> Offsets:
        """Position of the first record written at `times` (ms) or later, for those topics; one past the last if there
        is none. Raises `BadOption` if the source does not support it."""

    def weigh(self, start: Offsets, end: Offsets) -> dict[str, list[Piece]]:
        """For each topic with unread records: ascending pieces `(first seq, one past the last, bytes)` that cover them
        from `start` to `end`. Bytes may be estimates. Called only if batches are limited by bytes."""

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Any]:
        """`InputPartition`s, one per task. Known gaps are passed to `report`."""

    def gaps(self, start: Offsets, end: Offsets) -> list[Gap]:
        """Gaps that a read from `start` to `end` meets if it begins now. Later ones are larger, never smaller."""

    def read(self, partition: Any) -> Iterator[Any]:
        """The `pyarrow.RecordBatch`es of one partition. Called on an executor, possibly several times."""

    def committed(self, end: Offsets) -> None:
        """The sink has everything before `end`. Called at least once per batch, possibly late or repeatedly."""


def load(value: Mapping[str, Any]) -> Offsets:
    """Offsets from Spark's checkpoint. Raises `ValueError` if the value is not the offsets of topics."""
    try:
        return {
            topic: Position(int(at["seq"]), int(at["epoch"]), bool(at.get("gone", False)))
            for topic, at in value.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the checkpoint holds {str(value)[:200]!r}, which are not the offsets of topics; "
            "was it made by a stream of another kind? Give this query a checkpointLocation of its own"
        ) from error


def dump(offsets: Offsets) -> dict[str, Any]:
    """Offsets for Spark's checkpoint."""
    return {
        topic: {"seq": at.seq, "epoch": at.epoch} | ({"gone": True} if at.gone else {})
        for topic, at in sorted(offsets.items())
    }


def begin(start: Offsets, end: Offsets, topic: str) -> int:
    """The first seq of `topic` in the batch from `start` to `end`; see the table above."""
    old, new = start.get(topic), end[topic]
    return 1 if old is None or recreated(old, new) else old.seq


def recreated(old: Position, new: Position) -> bool:
    """Whether `new` is a position in a later instance of the topic."""
    if old.epoch and new.epoch:
        return old.epoch != new.epoch or old.seq > new.seq
    return old.gone or old.seq > new.seq


def onward(start: Offsets, latest: Offsets) -> Offsets:
    """End of all that can be read now: `latest`, and the topics of `start` that are gone."""
    return {
        topic: latest[topic] if topic in latest else start[topic]._replace(gone=True)
        for topic in sorted({*start, *latest})
    }


def vanished(start: Offsets, end: Offsets, there: Container[str]) -> list[Gap]:
    """Gaps of topics that were deleted or recreated between `start` and `end`, or after `end`. `there` has the topics
    that are still the same as in `end`."""
    gaps = []
    for topic, new in end.items():
        old = start.get(topic)
        if new.gone:
            if old is not None and not old.gone:
                gaps.append(Gap(topic, old.seq, 0, "deleted"))
        elif topic not in there:
            if (first := begin(start, end, topic)) < new.seq:
                gaps.append(Gap(topic, first, new.seq - 1, "deleted"))
        elif old is not None and not old.gone and recreated(old, new):
            gaps.append(Gap(topic, old.seq, 0, "recreated"))
    return gaps


def report(gaps: Sequence[Gap], fail: bool) -> None:
    """If there are gaps, raise `DataLoss` with `fail` (option failOnDataLoss, the default); else log them."""
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
    """For each topic with unread records, their first seq and one past the last. Records before `earliest` are gone."""
    found = {}
    for topic, position in end.items():
        if position.gone:
            continue
        low = max(begin(start, end, topic), earliest[topic].seq if topic in earliest else 1)
        if low < position.seq:
            found[topic] = (low, position.seq)
    return found


Piece = tuple[int, int, int]
"""First seq, one past the last one, and the weight of the records between them."""


def limit(start: Offsets, end: Offsets, weights: Mapping[str, Sequence[Piece]], budget: int) -> Offsets:
    """An end such that the batch from `start` weighs about `budget`, shared in proportion to the topics' weights. Each
    topic gets at least one record, so that none starves. `weights` are those of `Source.weigh`, or of `records`."""
    totals = {topic: sum(weight for _, _, weight in pieces) for topic, pieces in weights.items()}
    total = sum(totals.values())
    if total <= budget:
        return end
    # A topic whose unread records are all gone is skipped to its end.
    cut = dict(end)
    for topic, pieces in weights.items():
        if pieces:
            share = max(budget * totals[topic] // total, 1)
            cut[topic] = end[topic]._replace(seq=_reach(pieces, share, end[topic].seq))
    return cut


def records(unread: Mapping[str, tuple[int, int]]) -> dict[str, list[Piece]]:
    """Weights for `limit` if every seq weighs one."""
    return {topic: [(first, stop, stop - first)] for topic, (first, stop) in unread.items()}


Share = tuple[str, int, int]
"""Topic, first seq, one past the last."""


def shares(unread: Mapping[str, tuple[int, int]], most: int, least: int) -> list[list[Share]]:
    """Shares of each task of a batch: at most `most` seqs, or fewer so that there are at least `least` tasks if there
    are as many seqs. Small topics are combined, large ones are cut.

    Shares depend on positions only. When Spark repeats a batch, the service may have moved records to other files or
    deleted some. A sink that identifies rows by task and order, as `writer` does, still gets the same rows.
    """
    total = sum(stop - first for first, stop in unread.values())
    size = max(min(most, total // max(least, 1)), 1)
    tasks: list[list[Share]] = []
    room = 0
    for topic, (first, stop) in sorted(unread.items()):
        while first < stop:
            if not room:
                tasks.append([])
                room = size
            cut = min(first + room, stop)
            tasks[-1].append((topic, first, cut))
            room -= cut - first
            first = cut
    return tasks


def _reach(pieces: Sequence[Piece], share: int, end: int) -> int:
    """One past the last seq within the weight `share`, at least one record. Weights are uniform inside a piece."""
    left = share
    for first, stop, weight in pieces:
        if weight >= left:
            return max(first + (stop - first) * left // weight, pieces[0][0] + 1)
        left -= weight
    return end
