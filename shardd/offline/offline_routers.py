"""Routers of a stopped service: does the work of `shardd.process.router_tasks` for shards that one process has opened.

It uses no sockets and never waits. `derive` makes the copies again that existed before the stop. `forward` makes the
copies that are outstanding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Operation, Position, Pull, RouterPosition
from proto.model.errors import ErrorCode, TopicsError
from proto.model.names import shard_of
from shardd.recovery.wal_scan import RecoveryError
from shardd.routers.copy_plan import Pulled
from shardd.routers.copy_recovery import Restore
from shardd.routers.source import read
from shardd.shard import Shard
from shardd.topic.lane import Lane

A = TypeVar("A")


class Routers:
    """The routers of all shards of a data directory. Each shard has been recovered."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def derive(self) -> None:
        """Make the copies of every topic again that existed at the last stop. Raises `RecoveryError` if a topic cannot
        get them."""
        work = [(shard, restore) for shard in self._shards for restore in shard.restoring.restores()]
        idle = 0
        while work:
            shard, restore = work.pop(0)
            progress = self._step(restore)
            shard.flush()
            # A cycle needs two rounds without progress: each of its topics examines it.
            idle = 0 if progress else idle + 1
            if idle > 3 * (len(work) + 1):
                raise RecoveryError(f'topic "{restore.name}": its routers cannot make their copies again')
            if not restore.done:
                work.append((shard, restore))
        for shard in self._shards:
            shard.restoring.restored = True
            shard.flush()

    def _step(self, restore: Restore) -> bool:
        lane = restore.lane
        if lane is None:
            restore.nothing_left()
            return True
        try:
            return restore.take(self._pull(lane)) or restore.looked(self._around(restore), self._around(restore))
        except TopicsError as error:
            if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                raise RecoveryError(f'topic "{restore.name}": {error.message}') from error  # a source cannot be read
            restore.source_gone()
            return True

    def forward(self) -> None:
        """Copy the outstanding records to all destinations, as far as the destinations accept them."""
        progress = True
        while progress:
            progress = False
            for shard in self._shards:
                shard.commits.sync_now()
            for shard in self._shards:
                for topic in shard.routing.destinations():
                    lane = topic.lane
                    if lane is None or not lane.routers:
                        continue
                    before = lane.cursor
                    try:
                        pulled = self._pull(lane)
                    except TopicsError:
                        continue  # the source is gone; the next start removes its routers
                    shard.copier.copy(topic, pulled)
                    shard.flush()
                    progress = progress or lane.cursor > before

    def _pull(self, lane: Lane) -> Pulled:
        return read(self._ask(Pull(lane.epoch, lane.cursor), lane.source))

    def _around(self, restore: Restore) -> list[Position]:
        """Positions of the topic, its source, the source's source and so on, until there is none or one is repeated."""
        way = [restore.position]
        while (source := way[-1].source) is not None and source[0] not in {each.name for each in way}:
            way.append(self._ask(RouterPosition(source[1]), source[0]).found())
        return way

    def _ask(self, operation: Operation[A], topic: str) -> Reply[A]:
        """The reply of the shard that owns `topic`. Only for operations that are answered at once. Raises
        `TopicsError`."""
        answers: list[Message] = []
        shard = self._shards[shard_of(topic, len(self._shards))]
        shard.handle(Request(0, operation, topic), "offline", answers.append)
        (reply,) = answers
        assert isinstance(reply, Reply)
        return reply.checked()
