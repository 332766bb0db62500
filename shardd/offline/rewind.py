"""Rewind: cuts topics of a stopped service back to a seq or to a time, for `topics restore`.

**A cut is a deletion of all records after it.** So readers, Spark, queues and routers need no rules of their own:
deleted records are gone for all of them, without tombstones, and stay gone. Records that were deleted, done, evicted or
expired before the cut was made do not come back. The files do not have all of them.

    what                    after a cut at seq S
    records                 the live records up to S
    seqs                    all seqs given out stay used, and `reserve` more: readers may have seen records that were
                            written after the files were copied. The next record gets a higher seq, so that no seq ever
                            names two records, and no position of a reader is ahead of the topic
    idempotency keys        of writes that ended up to S; a repeated write that was cut, in whole or in part, is new
    named cursors, watches  unchanged: those after S continue with the next record that is written
    queue                   leases and deliveries of the remaining jobs. A job that went to a dead-letter topic behind
                            the cut is in neither topic
    routers                 the destination's position goes back to before its first copy that was cut. The records that
                            its source still has are copied again, once, with the present time
    ephemeral topics        the records that they have from other classes, as after every restart

A cut at a time keeps the records with a commit time up to it. Commit times never decrease with seq, so such a cut is
also a cut at a seq.

1  open    every shard is opened as by a start; copies that no file has are made again
2  look    the records that each topic keeps, and the new positions of routers, while their sources are still complete
3  cut     in memory; then routers copy again. A frame that changes nothing is logged: it makes a hole in the log of a
           bucket, which readers pass by a manifest. No frame has the cut
4  write   three checkpoints: the first has the cut, the second replaces the catalog without the cut, the third removes
           the files without live records. Then the log is removed: the catalogs have all of it, and none of them needs
           it

If the process dies, some shards may be cut and others not. So the caller must run it on a copy that is not used before
it has finished. Running it again gives the same records, with another reserve.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    """The cuts to make: `seqs` and `times` (ms) of single topics, `until_ms` for all others. None leaves them whole."""

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
    """Cut topics of these shards, which are all shards of a data directory. Yields a `problem` for what
    its sums say that a shard lacks; then a map for each topic with a cut: `topic`, `upto` (last seq kept), `removed`
    records, `next_seq`.

    Blocks. Raises `RecoveryError` for files that cannot be read and cuts that are not possible, and then nothing has
    changed; OSError.
    """
    shards = []
    for path in paths:
        shard = opened_shard(disk, clock, path, limits, from_files=True)
        for topic in shard.directory.visible.values():
            if topic.damage is not None:
                raise RecoveryError(f'topic "{topic.name}" is damaged: {topic.damage.reason}')
        shards.append(shard)
    for shard in shards:
        for problem in shard.checkpoints.inventory.problems():
            yield {"problem": problem}
    routers = Routers(shards)
    routers.derive()
    topics = {topic.name: topic for shard in shards for topic in shard.directory.visible.values()}
    _check(topics, cuts)
    planned = [_look(topic, upto, topics, cuts) for topic in topics.values() if (upto := cuts.upto(topic)) is not None]
    for each in planned:
        topic, removed = each.topic, _apply(each)
        yield {"topic": topic.name, "upto": each.upto, "removed": removed, "next_seq": topic.position.next_seq}
    routers.forward()
    for shard, path in zip(shards, paths, strict=True):
        shard.log_nothing()
        for _ in range(3):
            shard.checkpoint_now(last=True)
        shard.close()
        for name in disk.list(path / "wal"):
            disk.remove(path / "wal" / name)
        disk.sync_dir(path / "wal")


def last_seq_at(topic: Topic, ms: int) -> int:
    """Seq of the topic's last record with a commit time up to `ms`; 0 if there is none."""
    for batch in reversed(topic.records.batches):
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
        if seq > (head := topics[name].records.head_seq):
            raise RecoveryError(f'topic "{name}" ends at seq {head} in this backup, before {seq}')


# 2


def _look(topic: Topic, upto: int, topics: Mapping[str, Topic], cuts: Cuts) -> _Planned:
    head = topic.position.next_seq - 1 + cuts.reserve
    planned = _Planned(topic, min(upto, topic.records.head_seq), cuts.time(topic), head)
    lane = topic.lane
    source = None if lane is None else topics.get(lane.source)
    if lane is not None and source is not None and source.epoch == lane.epoch:
        cursor = _before_copies(lane, source, _copies_after(topic, upto))
        planned.lane = replace(lane, cursor=cursor, done=cursor)
    return planned


def _copies_after(topic: Topic, seq: int) -> int:
    """Number of records after `seq` that routers have copied into the topic."""
    copies = 0
    for batch in reversed(topic.records.batches):
        if batch.last_seq <= seq:
            break
        hops = batch.columns().hops
        if hops is not None:
            behind = bytes(hops)[max(seq + 1 - batch.first_seq, 0) :]
            copies += len(behind) - behind.count(0)
    return copies


def _before_copies(lane: Lane, source: Topic, copies: int) -> int:
    """The source seq after which the lane made its last `copies` copies. Records that the source has lost do not
    matter: they are not copied again."""
    if not copies:
        return lane.cursor
    span = copies
    while (low := max(lane.cursor - span, 0)) and _made(lane, source, low) < copies:
        span *= 4
    behind = range(low + 1, lane.cursor)
    return low + bisect_left(behind, True, key=lambda after: _made(lane, source, after) < copies)


def _made(lane: Lane, source: Topic, after: int) -> int:
    """Number of copies of the source's records after `after`, up to the lane's cursor."""
    made, at = 0, after
    while at < lane.cursor:
        pieces, upto = source.records.sequence.pieces(at + 1, lane.cursor, _PIECE_RECORDS, _PIECE_BYTES)
        steps = plan(replace(lane, cursor=at), Pulled(at, upto, lane.cursor, pieces, []), upto).steps
        made += sum(step.columns.count for step in steps if isinstance(step, Append))
        at = upto
    return made


# 3


def _apply(planned: _Planned) -> int:
    topic = planned.topic
    topic.catalogued = None
    removed = topic.records.delete_after(planned.upto)
    topic.skip(planned.head + 1)
    topic.position.on_device(topic.records.head_seq)
    # A cut at a time selects keys by time: all records of the last writes may have been deleted.
    ms, upto = planned.ms, planned.upto
    keys = topic.keys.dump()
    topic.keys.load([key for key in keys if (key[1] + key[2] - 1 <= upto if ms is None else key[3] <= ms)])
    if removed:
        live = [batch for batch in topic.records.batches if batch.live]
        topic.last_write_ts = live[-1].last_ts if live else None
        # Transfers that were cut must arrive again if their source still has them. Others may then arrive twice.
        topic.arrivals.last.clear()
    if topic.queue is not None:
        topic.queue.settle(topic.records.floor, -1, topic.records.alive)
    if planned.lane is not None:
        topic.lane = topic.lane_visible = planned.lane
    return removed
