"""Going back: topics of a stopped service as they were at a seq or at a time, for `topics restore`.

**A cut is a deletion of everything behind it.** So readers, Spark, queues and routers need no rule of their own: what
is deleted is gone for everybody, silently, and stays gone. What was deleted, done, evicted or expired before the cut
was made stays so, too: there is no way to know all of it.

    what                    after a cut at seq S
    records                 those up to S that there were
    seqs                    all that had been given stay used, and `reserve` more: readers may have seen records that
                            came after the files were copied. The next record gets a higher seq, so that no seq ever
                            names two records, and no position of a reader is ahead of the topic
    idempotency keys        of writes that ended up to S; a repeated write that was cut, in whole or in part, is new
    named cursors, watches  where they were: behind S they go on with the next record there will be
    queue                   leases and deliveries of the jobs that are left. What went to a dead-letter topic behind the
                            cut is in neither of the two
    routers                 the destination's position goes back to before the first of its copies that was cut, and
                            what its source has kept is copied again, once, with the present time
    ephemeral topics        what they have from other classes, as after every restart

A cut at a time keeps what has a commit time up to then. Commit times never decrease with seq, so that is a seq, too.

1  open    every shard, as a start would; copies that no file has are made again
2  look    what each topic keeps; where routers go back to, while their sources still have everything
3  cut     in memory; routers copy what they have to copy again
4  write   three checkpoints: the first has the cut, the second takes the place of the catalog that did not have it, the
           third removes the files of which nothing is left. Then the log: nothing in it is news, and no catalog that
           may be fallen back to needs it

If the process dies anywhere, some shards are cut and some are not, so whoever starts it works on a copy that nobody
uses before all is done. Doing it again gives the same records, under another reserve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proto.model.limits import Limits
from shardd.changes.seq_reservation import BLOCK
from shardd.clock import Clock
from shardd.offline.offline_routers import Routers
from shardd.recovery.wal_scan import RecoveryError
from shardd.routers.copy_plan import Append, Pulled, plan
from shardd.shard import opened_shard
from shardd.storage.disk import Disk
from shardd.topic.lane import Lane
from shardd.topic.topic import Topic

_PIECE_RECORDS = 1 << 16
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Cuts:
    """`seqs` and `times` (ms) of single topics, `until_ms` for those that are in neither; None: they stay whole."""

    seqs: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, int] = field(default_factory=dict)
    until_ms: int | None = None
    reserve: int = BLOCK

    def upto(self, topic: Topic) -> int | None:
        """The last seq that the topic may keep; None if it stays whole."""
        if topic.name in self.seqs:
            return self.seqs[topic.name]
        ms = self.time(topic)
        return None if ms is None else last_seq_at(topic, ms)

    def time(self, topic: Topic) -> int | None:
        """The time at which the topic is cut, in ms; None if it is cut at a seq, or not at all."""
        return None if topic.name in self.seqs else self.times.get(topic.name, self.until_ms)


@dataclass(slots=True)
class _Planned:
    topic: Topic
    upto: int
    ms: int | None
    head: int
    lane: Lane | None = None


def cut(disk: Disk, paths: list[Path], clock: Clock, limits: Limits, cuts: Cuts) -> Iterator[dict[str, Any]]:
    """Cut the topics of these shards, all of a data directory. Yields a map for each topic that has a cut: `topic`,
    `upto` (last seq kept), `removed` records, `next_seq`.

    Raises `RecoveryError` for what cannot be read or was not asked for rightly, and then nothing has changed; OSError.
    """
    shards = []
    for path in paths:
        shard = opened_shard(disk, clock, path, limits, from_files=True)
        for topic in shard.directory.visible.values():
            if topic.damage is not None:
                raise RecoveryError(f'topic "{topic.name}" is damaged: {topic.damage.reason}')
        shards.append(shard)
    routers = Routers(shards)
    routers.derive()
    topics = {topic.name: topic for shard in shards for topic in shard.directory.visible.values()}
    _check(topics, cuts)
    planned = [_look(topic, upto, topics, cuts) for topic in topics.values() if (upto := cuts.upto(topic)) is not None]
    for each in planned:
        removed = _apply(each)
        yield {"topic": each.topic.name, "upto": each.upto, "removed": removed, "next_seq": each.topic.next_seq}
    routers.forward()
    for shard, path in zip(shards, paths, strict=True):
        for _ in range(3):
            shard.checkpoint_now(last=True)
        shard.close()
        for name in disk.list(path / "wal"):
            disk.remove(path / "wal" / name)
        disk.sync_dir(path / "wal")


def last_seq_at(topic: Topic, ms: int) -> int:
    """Seq of the topic's last record with a commit time up to `ms`; 0 if there is none."""
    for batch in reversed(topic.batches):
        if batch.last_ts <= ms:
            return batch.last_seq
        if batch.first_ts <= ms:
            times = batch.columns().ts
            assert not isinstance(times, int)
            return batch.first_seq + bisect_right(times, ms) - 1
    return 0


def _check(topics: Mapping[str, Topic], cuts: Cuts) -> None:
    for name in [*cuts.seqs, *cuts.times]:
        if name not in topics:
            raise RecoveryError(f'there is no topic "{name}" in this backup')
    for name, seq in cuts.seqs.items():
        if seq > topics[name].head_seq:
            raise RecoveryError(f'topic "{name}" ends at seq {topics[name].head_seq} in this backup, before {seq}')


# 2


def _look(topic: Topic, upto: int, topics: Mapping[str, Topic], cuts: Cuts) -> _Planned:
    planned = _Planned(topic, min(upto, topic.head_seq), cuts.time(topic), topic.next_seq - 1 + cuts.reserve)
    lane = topic.lane
    source = None if lane is None else topics.get(lane.source)
    if lane is not None and source is not None and source.epoch == lane.epoch:
        cursor = _before_copies(lane, source, _copies_after(topic, upto))
        planned.lane = replace(lane, cursor=cursor, done=cursor)
    return planned


def _copies_after(topic: Topic, seq: int) -> int:
    """How many records behind `seq` were brought by routers."""
    copies = 0
    for batch in reversed(topic.batches):
        if batch.last_seq <= seq:
            break
        hops = batch.columns().hops
        if hops is not None:
            behind = bytes(hops)[max(seq + 1 - batch.first_seq, 0) :]
            copies += len(behind) - behind.count(0)
    return copies


def _before_copies(lane: Lane, source: Topic, copies: int) -> int:
    """The source seq after which the lane made its last `copies` ones. What the source has lost does not matter: it is
    not copied again."""
    if not copies:
        return lane.cursor
    span = copies
    while (low := max(lane.cursor - span, 0)) and _made(lane, source, low) < copies:
        span *= 4
    high = lane.cursor
    while high - low > 1:
        middle = (low + high) // 2
        if _made(lane, source, middle) >= copies:
            low = middle
        else:
            high = middle
    return low


def _made(lane: Lane, source: Topic, after: int) -> int:
    """How many copies there are of what the source has behind `after`, up to the lane's cursor."""
    made, at = 0, after
    while at < lane.cursor:
        pieces, upto = source.pieces(at + 1, lane.cursor, _PIECE_RECORDS, _PIECE_BYTES)
        steps = plan(replace(lane, cursor=at), Pulled(at, upto, lane.cursor, pieces, []), upto).steps
        made += sum(step.columns.count for step in steps if isinstance(step, Append))
        at = upto
    return made


# 3


def _apply(planned: _Planned) -> int:
    topic = planned.topic
    topic.catalogued = None
    removed = topic.delete_after(planned.upto)
    topic.skip(planned.head + 1)
    topic.durable_head = topic.head_seq
    # By time where there is one: of the last writes, all records may have been deleted.
    ms, upto = planned.ms, planned.upto
    keys = topic.keys.dump()
    topic.keys.load([key for key in keys if (key[1] + key[2] - 1 <= upto if ms is None else key[3] <= ms)])
    if removed:
        live = [batch for batch in topic.batches if batch.live]
        topic.last_write_ts = live[-1].last_ts if live else None
        # Letters that are cut have to come again if their source still has them. What is left may come twice then.
        topic.arrivals.last.clear()
    if topic.queue is not None:
        topic.queue.settle(topic.floor, -1, topic.alive)
    if planned.lane is not None:
        topic.lane = topic.lane_visible = planned.lane
    return removed
