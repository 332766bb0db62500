"""How far a stream has read: one position per topic, what it means, and how much of the rest comes next.

A stream source is anything with the methods of `Source`. What Spark wants of a stream is made of them in `stream`, the
same for every source: `files` (option `path`) and `feed` (option `url`). Spark keeps positions as JSON in the
checkpoint of a query:

    {"orders": {"seq": 501, "epoch": 2}, "returns": {"seq": 1, "epoch": 1}}

`seq` is the next seq to read, so a batch reads from `start` inclusive to `end` exclusive. `epoch` tells one instance of
a topic from the next one of the same name; 0 where the source cannot know it. Topics are sorted, because Spark takes
two offsets for equal if their JSON text is.

what `start` says of a topic that `end` has     the batch reads it
nothing (the topic is new)                      from its first record, 1
the same epoch, or one of both is 0             from that seq
another epoch, or a seq beyond `end`'s          from 1: it was deleted and created again (`recreated`, a gap)

A topic that is gone stays in the map where it was, with `"gone": true`, so that it is told as lost once, and that it is
read on from there if it comes back (a shard that could not be read, a pattern that was changed and changed back).

What dies when: Spark writes `end` to its log before a batch is read, and reads the same `start` and `end` again after
a stop. A source must therefore give the same records for them again, or tell a gap: it keeps nothing between two calls
that it could not do without, and never looks beyond `end`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark_topics.errors import log


class Position(NamedTuple):
    """The next seq to read of a topic, in which instance of it, and whether it was there when one last looked."""

    seq: int
    epoch: int = 0
    gone: bool = False


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

    def reach(self) -> None:
        """Raise, within seconds, if there is nothing to read from: asked before something new is begun."""

    def earliest(self) -> Offsets:
        """The first live record of each topic that is subscribed now; one past its last one if there is none."""

    def latest(self) -> Offsets:
        """One past the last record of each topic that is subscribed now. Records before it must not change."""

    def since(self, times: Mapping[str, int]) -> Offsets:
        """The first seq written at `times` (ms) or later, for those topics; one past the last if there is none. Raises
        `BadOption` if the source cannot tell."""

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
    """For Spark to keep."""
    return {
        topic: {"seq": at.seq, "epoch": at.epoch} | ({"gone": True} if at.gone else {})
        for topic, at in sorted(offsets.items())
    }


def begin(start: Offsets, end: Offsets, topic: str) -> int:
    """The first seq of `topic` that belongs to the batch from `start` to `end`, as the table above says."""
    old, new = start.get(topic), end[topic]
    return 1 if old is None or recreated(old, new) else old.seq


def recreated(old: Position, new: Position) -> bool:
    """Is `new` a place in a later instance of the topic?"""
    if old.epoch and new.epoch:
        return old.epoch != new.epoch or old.seq > new.seq
    return old.gone or old.seq > new.seq


def onward(start: Offsets, latest: Offsets) -> Offsets:
    """Everything that can be read now: `latest`, and the topics of `start` that are gone."""
    return {
        topic: latest[topic] if topic in latest else start[topic]._replace(gone=True)
        for topic in sorted({*start, *latest})
    }


def vanished(start: Offsets, end: Offsets, there: Container[str]) -> list[Gap]:
    """What is to be told of topics that are gone or were made anew between `start` and `end`, or after `end`: `there`
    are those that are still the same as in `end`."""
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
        if position.gone:
            continue
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


Share = tuple[str, int, int]
"""Topic, first seq, one past the last."""


def shares(unread: Mapping[str, tuple[int, int]], most: int, least: int) -> list[list[Share]]:
    """What each task of a batch reads: `most` seqs, or fewer so that there are at least `least` tasks if there are as
    many seqs. Small topics go together, large ones are cut.

    Only the positions decide. When Spark repeats a batch, the service may have moved its records to other files or
    deleted some; a sink that knows rows by task and order, as `writer` does, still gets the same ones.
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
    """One past the last seq that `share` pays for, one record at least. Inside a piece all records weigh the same."""
    left = share
    for first, stop, weight in pieces:
        if weight >= left:
            return max(first + (stop - first) * left // weight, pieces[0][0] + 1)
        left -= weight
    return end
