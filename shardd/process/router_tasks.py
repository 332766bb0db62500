"""The router tasks: pull records from sources, so that every lane of this shard moves on.

    restore   after a stop, one task for each topic with routers makes its earlier copies again
              (`shardd.routers.copy_recovery`). Topics whose source is in a shard that cannot start wait for it; the
              others are served meanwhile
    pull      one task for each source: one request for all lanes that are in step with the pull
    catch up  one task for each lane that is not in step: it began before the pull's position, its topic was full, its
              copies were undone, or it is held. The task pulls for this lane alone, with growing pauses while nothing
              fits or stays, until it is in step

A source is asked again as soon as it has answered; it answers when it has records. If a source does not exist any more,
its routers are removed. This also finishes a deletion that was interrupted.
"""

from __future__ import annotations

import structlog
import trio

from proto.ipc.operations import Position, Pull, RouterPosition
from proto.model.errors import ErrorCode, TopicsError
from proto.process.faults import faults
from shardd.process.peers import Peers
from shardd.recovery.quarantine import is_damage
from shardd.routers.copy_plan import Pulled
from shardd.routers.copy_recovery import Restore
from shardd.routers.source import read
from shardd.shard import Shard
from shardd.storage.indivisible import indivisible
from shardd.topic.lane import Lane
from shardd.topic.topic import Topic

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
DAMAGED_PAUSE_S = 1.0
ASK_AGAIN_S = 0.02
"""Seconds between requests to a source that is being restored itself, or whose shard is away."""
SLICE_S = 0.001
"""Seconds of copying before other tasks get their turn."""
RESTORED_AT_A_TIME = 16
log = structlog.get_logger()


class _SourcePull:
    """One source, and the topics in step with it. `at` is the position of the pull, -1 before the first one."""

    def __init__(self, source: str, epoch: int) -> None:
        self.source = source
        self.epoch = epoch
        self.at = -1
        self.members: dict[int, Topic] = {}
        self.joined = trio.Event()


class Forward:
    def __init__(self, shard: Shard, peers: Peers) -> None:
        self._shard = shard
        self._peers = peers
        self._pulls: dict[tuple[str, int], _SourcePull] = {}
        self._behind: set[int] = set()
        """Ids of topics that have a catch-up task."""
        self._blocked: set[str] = set()
        """Names of topics whose restore waits for a shard that does not answer."""
        self._nursery: trio.Nursery | None = None
        shard.routing.changed = self.changed

    async def restore(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make the copies of every topic again that existed at the last stop.

        Reports as started when the shard may serve: when all topics are restored, or when all others wait for a shard
        that is away. Topics that wait are refused until all of them are restored, and no checkpoint is made. So
        the log keeps all frames, and a process that dies meanwhile begins again.
        """
        restores = self._shard.restoring.restores()
        places = trio.CapacityLimiter(RESTORED_AT_A_TIME)
        async with trio.open_nursery() as nursery:
            for restore in restores:
                nursery.start_soon(self._restore, restore, places)
            while left := {restore.name for restore in restores if not restore.done}:
                if self._shard.restoring.waiting is None and self._peers.one_away and left <= self._blocked:
                    log.error("sources_away", topics=len(left), action="the others are served")
                    self._shard.restoring.waiting = frozenset(left)
                    task_status.started()
                await trio.sleep(ASK_AGAIN_S)
        await self._shard.commits.idle()
        if any(restore.displaced for restore in restores):
            self._shard.checkpoint_now()
        self._shard.restoring.ended(restore.name for restore in restores)
        if self._shard.restoring.waiting is None:
            task_status.started()
            return
        log.info("sources_back", topics=len(self._shard.restoring.waiting))
        self._shard.restoring.waiting = None
        self._shard.mover.recovered()
        for topic in self._shard.routing.destinations():
            self.changed(topic)

    async def _restore(self, restore: Restore, places: trio.CapacityLimiter) -> None:
        while not restore.done:
            lane = restore.lane
            if lane is None:
                restore.nothing_left()
                return
            progress = False
            try:
                async with places:
                    pulled = await self._pull(lane, lane.cursor, wait=False)
                progress = restore.take(pulled)
                self._shard.flush()
            except TopicsError as error:
                if is_damage(error):
                    try:
                        head = (await self._position(lane.source, lane.epoch)).head
                    except TopicsError:
                        pass
                    else:
                        log.warning("source_unreadable", source=lane.source, topic=restore.name)
                        restore.source_unreadable(head)
                        return
                if error.code is ErrorCode.TOPIC_NOT_FOUND:
                    log.warning("source_gone", source=lane.source, topic=restore.name)
                    restore.source_gone()
                    return
            self._blocked.discard(restore.name)
            if not progress:
                await trio.sleep(ASK_AGAIN_S)
                try:
                    restore.looked(await self._around(restore), await self._around(restore))
                except TopicsError:
                    self._blocked.add(restore.name)

    async def _around(self, restore: Restore) -> list[Position]:
        """Positions of the topic, its source, the source's source and so on, until there is none or one is repeated."""
        way = [restore.position]
        while (source := way[-1].source) is not None and source[0] not in {each.name for each in way}:
            way.append(await self._position(*source))
        return way

    async def _position(self, name: str, epoch: int) -> Position:
        return (await self._peers.request(self._peers.index_of(name), RouterPosition(epoch), name)).found()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for topic in self._shard.routing.destinations():
                if not topic.unrestored:
                    self.changed(topic)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def changed(self, topic: Topic) -> None:
        """Called when the routers into a topic have changed. Places the topic again."""
        lane = topic.lane
        for pull in self._pulls.values():
            if pull.members.get(topic.id) is not None and (lane is None or _source(lane) != (pull.source, pull.epoch)):
                del pull.members[topic.id]
        if lane is not None and lane.routers and self._nursery is not None:
            self._place(topic, lane)

    def _place(self, topic: Topic, lane: Lane) -> None:
        """Add the topic to its source's pull, or start a catch-up task if it is behind the pull."""
        assert self._nursery is not None
        key = _source(lane)
        pull = self._pulls.get(key)
        if pull is None:
            pull = self._pulls[key] = _SourcePull(*key)
            self._nursery.start_soon(self._pull_source, pull)
        if topic.id in pull.members or topic.id in self._behind:
            return
        if lane.held or lane.cursor < pull.at:
            self._place_behind(topic, pull)
        else:
            pull.members[topic.id] = topic
            pull.joined.set()

    async def _pull_source(self, pull: _SourcePull) -> None:
        while True:
            members = self._present(pull)
            if not members:
                if not any(_is_of(topic, pull) for topic in self._shard.routing.destinations()):
                    del self._pulls[pull.source, pull.epoch]
                    return
                pull.joined = trio.Event()
                with trio.move_on_after(1):
                    await pull.joined.wait()
                continue
            pull.at = min(lane.cursor for _, lane in members)
            pulled = await self._ask(pull, members)
            await self._shard.pressure.calm()
            if pulled is not None:
                pull.at = pulled.upto
                await self._copy_all(pull, pulled)

    async def _ask(self, pull: _SourcePull, members: list[tuple[Topic, Lane]]) -> Pulled | None:
        """Pull from the source after `pull.at`. Returns None, after a pause, if the source cannot be asked now or is
        gone; if it is gone, its routers are removed first."""
        try:
            return await self._pull(members[0][1], pull.at, wait=True)
        except TopicsError as error:
            if error.code is ErrorCode.TOPIC_NOT_FOUND:
                # Meanwhile, routers may have got another source. A lane on hold is left to what holds it: the deletion
                # of the source, which is in progress, removes its routers.
                left = [topic for topic, _ in members if self._exists(topic, pull)]
                gone = [topic for topic in left if topic.lane and not topic.lane.held]
                if gone:
                    log.info("routers_removed", source=pull.source, reason="their source does not exist any more")
                for topic in gone:
                    self._shard.routing.drop(topic)
                self._shard.flush()
            await trio.sleep(DAMAGED_PAUSE_S if is_damage(error) else ASK_AGAIN_S)
            return None
        except Exception:
            faults.failed("copy")
            await trio.sleep(DAMAGED_PAUSE_S)
            return None

    def _present(self, pull: _SourcePull) -> list[tuple[Topic, Lane]]:
        """The members that still belong to the pull, with their lanes. Removes the others. One that is before the
        position of the pull catches up: its copies were undone, and without a pause they may be for ever."""
        found = []
        for ident, topic in list(pull.members.items()):
            lane = topic.lane
            if lane is None or not self._exists(topic, pull):
                del pull.members[ident]
            elif lane.cursor < pull.at:
                del pull.members[ident]
                self._place_behind(topic, pull)
            else:
                found.append((topic, lane))
        return found

    async def _copy_all(self, pull: _SourcePull, pulled: Pulled) -> None:
        since = trio.current_time()
        for topic in list(pull.members.values()):
            if pull.members.get(topic.id) is not topic or not self._exists(topic, pull):
                continue
            if not self._copy(topic, pulled):
                del pull.members[topic.id]
                self._place_behind(topic, pull)
            if trio.current_time() - since > SLICE_S:
                self._shard.flush()
                await trio.lowlevel.checkpoint()
                since = trio.current_time()
        self._shard.flush()
        await trio.lowlevel.checkpoint()

    def _place_behind(self, topic: Topic, pull: _SourcePull) -> None:
        assert self._nursery is not None
        self._behind.add(topic.id)
        self._nursery.start_soon(self._catch_up, topic, pull)

    def _exists(self, topic: Topic, pull: _SourcePull) -> bool:
        return _is_of(topic, pull) and self._shard.directory.by_id.get(topic.id) is topic

    def _copy(self, topic: Topic, pulled: Pulled) -> bool:
        """Copy the pulled records to the topic. Returns False if not all could be copied."""
        lane = topic.lane
        assert lane is not None
        if lane.held or lane.cursor < pulled.after or topic.damage is not None:
            return False
        if lane.cursor >= pulled.upto:
            lane.obstacle = None
            return True
        try:
            return self._shard.copier.copy(topic, pulled)
        except Exception:
            if indivisible.broken:
                raise
            faults.failed("copy")  # this topic is tried again with growing pauses; the others continue
            return False

    async def _catch_up(self, topic: Topic, pull: _SourcePull) -> None:
        pause = FIRST_PAUSE_S / 2
        try:
            while self._exists(topic, pull):
                await self._shard.pressure.calm()
                lane = topic.lane
                assert lane is not None
                changed = self._shard.allowance.changed
                if not lane.held and lane.cursor >= pull.at:
                    break
                progress = False
                if not lane.held:
                    try:
                        pulled = await self._pull(lane, lane.cursor, wait=False)
                    except TopicsError:
                        pulled = None  # the source's pull gets the same error and handles it
                    except Exception:
                        faults.failed("copy")
                        pulled = None
                    if pulled is not None and self._exists(topic, pull) and topic.lane is lane:
                        self._copy(topic, pulled)
                        self._shard.flush()
                        progress = lane.cursor > pulled.after
                pause = FIRST_PAUSE_S / 2 if progress or lane.held else min(2 * pause, LONGEST_PAUSE_S)
                if lane.waits and not progress:
                    with trio.move_on_after(pause):
                        await changed.wait()
                else:
                    await trio.sleep(0 if progress else pause)
        finally:
            self._behind.discard(topic.id)
        if topic.lane is not None and topic.lane.routers and self._shard.directory.by_id.get(topic.id) is topic:
            self._place(topic, topic.lane)

    async def _pull(self, lane: Lane, after: int, *, wait: bool) -> Pulled:
        index = self._peers.index_of(lane.source)
        return read(await self._peers.request(index, Pull(lane.epoch, after, wait), lane.source))


def _source(lane: Lane) -> tuple[str, int]:
    return lane.source, lane.epoch


def _is_of(topic: Topic, pull: _SourcePull) -> bool:
    lane = topic.lane
    return lane is not None and bool(lane.routers) and _source(lane) == (pull.source, pull.epoch)
