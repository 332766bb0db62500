"""The main program of a shard's process: it recovers the shard, serves it, and obeys the supervisor's control link."""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Generator
from contextlib import aclosing
from functools import partial
from pathlib import Path

import structlog
import trio

from proto.ipc import askers
from proto.ipc.askers import Census
from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    EXIT_DEPOSED,
    EXIT_PERMANENT,
    Askers,
    Failed,
    Followed,
    Members,
    Orders,
    Ping,
    Pong,
    Progress,
    Ready,
    Shards,
    Start,
    Stop,
    TakeOver,
)
from proto.ipc.control_link import ControlLink
from proto.ipc.in_hand import InHand
from proto.ipc.operations import REGISTRAR
from proto.ipc.remote import KeyPair, RemoteRouter
from proto.ipc.transport import MessageSocket
from proto.process.core_dumps import leave_no_core
from proto.process.garbage_collector import calm
from proto.process.log import configure
from proto.process.orphan import die_with_parent
from proto.process.recursion import allow_old_records
from shardd.clock import SystemClock
from shardd.process import bucket
from shardd.process.peers import Peers, links
from shardd.process.room_tasks import RoomTasks
from shardd.process.router_tasks import Forward
from shardd.process.server import Server
from shardd.recovery.wal_scan import RecoveryError
from shardd.shard import Shard, open_shard

PROGRESS_INTERVAL = 0.1
"""Seconds between two reports while the log is replayed."""
AWAY_TERMS = 4
"""For how many times to live a shard of any machine is waited for: the first that claims it has it by then."""
log = structlog.get_logger()


async def _recover(
    opening: Generator[tuple[int, int], None, Shard], link: ControlLink, *, aside: bool
) -> tuple[Shard, int]:
    """Recover the shard, and report the progress to the supervisor. Returns the shard, and the bytes of the log.
    `aside`: in a worker thread, so that a term is renewed meanwhile."""
    done = total = 0
    while True:
        slice_ = partial(_advance, opening, done, total)
        done, total, shard = await trio.to_thread.run_sync(slice_) if aside else slice_()
        if shard is not None:
            return shard, total
        await link.send(Progress("replay", done, total))


def _advance(opening: Generator[tuple[int, int], None, Shard], done: int, total: int) -> tuple[int, int, Shard | None]:
    """Recover for a while. Returns the progress, and the shard when it is recovered."""
    last = time.monotonic()
    while time.monotonic() - last < PROGRESS_INTERVAL:
        try:
            done, total = next(opening)
        except StopIteration as end:
            return done, total, end.value
    return done, total, None


async def _replicate(copy: bucket.Copy) -> None:
    """Ship until cancelled. Ends the process when another machine has the shard: it begins again, as a standby."""
    assert copy.holder is not None
    assert copy.role is not None
    await copy.holder.run()
    if copy.giver is not None and copy.giver.given:
        return
    log.warning("deposed", reason=copy.role.reason or str(copy.role.error), action="this machine becomes a standby")
    os._exit(EXIT_DEPOSED)


async def _stand_by(copy: bucket.Copy, link: ControlLink) -> None:
    """Report who holds the shard, at each change, until it may be opened."""
    assert copy.role is not None
    while not copy.role.held.is_set():
        news = trio.Event()
        copy.role.changed = news.set  # before the report: what changes while it is sent is reported next
        holder, damage = copy.role.holder, copy.role.damage
        at = () if holder is None else (holder.endpoint, holder.key, holder.term)
        await link.send(Progress("standby", 0, 0, holder.shown if holder else "", 0, damage, *at))
        await news.wait()


async def _report_lag(copy: bucket.Copy, link: ControlLink) -> None:
    """Report when a shard that is followed has caught up, and when it no longer has. One that first makes a checkpoint
    has not."""
    from shardd.roster.roster import READY_S

    assert copy.role is not None
    near = False
    while True:
        lag_s = max(copy.role.lag_s, READY_S if copy.role.folding.due else 0.0)
        if near != (lag_s < READY_S):
            near = not near
            await link.send(Followed(lag_s))
        await trio.sleep(READY_S / 4)


async def _failed(link: ControlLink, index: int, error: Exception) -> None:
    log.error("recovery_failed", reason=str(error))
    await link.send(Failed(f"shard {index}: {error}"))


async def main(descriptor: int) -> int:
    """Run one shard. Returns the exit status."""
    async with aclosing(ControlLink.inherited(descriptor)) as link:
        start = await link.receive()
        if not isinstance(start, Start):
            return 1
        configure(f"shard-{start.index:02d}")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        with bucket.Copy(start, Path(start.data_dir) / f"shard-{start.index:02d}") as copy:
            return await _begin(link, start, copy)


async def _begin(link: ControlLink, start: Start, copy: bucket.Copy) -> int:
    """Serve with what the shard needs. Returns the exit status."""
    remote: RemoteRouter | None = None
    try:
        if start.cluster is not None:
            await copy.claim()
            # Before the shard has a term, which says where. Handshakes wait until the shard is open.
            remote = RemoteRouter(start.cluster.listen, KeyPair.new(), start.limits.max_body_bytes)
            remote.allow(start.cluster.members)
        copy.begin(remote)
    except (bucket.BucketError, OSError) as error:
        await _failed(link, start.index, error)
        return EXIT_PERMANENT
    copy.told(start.states)
    async with trio.open_nursery() as nursery:
        if copy.role is not None:
            nursery.start_soon(copy.role.run)  # also while the shard is closed: its term ends last
        status = await ShardProcess(link, start, copy, remote).serve()
        nursery.cancel_scope.cancel()
    copy.leave()
    return status


class ShardProcess:
    """A shard's process, once the shard has what it needs: opens the shard, serves it, and obeys the supervisor."""

    def __init__(self, link: ControlLink, start: Start, copy: bucket.Copy, remote: RemoteRouter | None) -> None:
        self._link = link
        self._start = start
        self._copy = copy
        self._remote = remote
        name = askers.named(askers.shard(start.index), start.incarnation)
        self._others = links(start.shards, start.limits.request_timeout_ms / 1000, name, start.cluster)
        self._others.update(start.states)
        self._census = Census(start.askers)
        self._scope = trio.CancelScope()

    async def serve(self) -> int:
        """Open the shard, and serve until the supervisor sends `Stop`. Returns the exit status."""
        link, copy, remote = self._link, self._copy, self._remote
        shard: Shard | None = None
        failed = False
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey)
                try:
                    shard, total = await self._open()
                except (RecoveryError, bucket.BucketError, OSError) as error:
                    await _failed(link, self._start.index, error)
                    failed = True
                    self._scope.cancel()
                else:
                    await self._begin(nursery, shard, total)
        if remote is not None:
            remote.close()  # what other machines have sent is unknown to them from now on
        if failed:
            return EXIT_PERMANENT
        if shard is not None:
            await _close(shard, copy)
        log.info("shard_stopped")
        return EXIT_DEPOSED if copy.giver is not None and copy.giver.given and not copy.giver.stopping else 0

    async def _obey(self) -> None:
        """Handle the supervisor's messages until it sends `Stop`. Ends the process if the supervisor is gone."""
        copy, remote = self._copy, self._remote
        while True:
            message = await self._link.receive()
            if message is None:
                os._exit(1)  # the supervisor is gone; this process must not serve without it
            if isinstance(message, Shards):
                self._others.update(message.states)
                copy.told(message.states)
            elif isinstance(message, Askers):
                self._census.update(message.first)
            elif isinstance(message, Members) and remote is not None:
                remote.allow(message.machines)
            elif isinstance(message, Orders):
                copy.ordered(message)
            elif isinstance(message, TakeOver) and copy.role is not None:
                copy.role.take_over()
            elif isinstance(message, Ping):
                await self._link.send(Pong())
            elif isinstance(message, Stop):
                if copy.giver is None:
                    self._scope.cancel()
                    return
                copy.giver.stop()  # its end cancels the scope

    async def _open(self) -> tuple[Shard, int]:
        """Wait until the shard may be opened, and recover it. Returns it, and the bytes of the log. Raises
        `BucketError`, `RecoveryError`, OSError."""
        link, copy = self._link, self._copy
        if copy.role is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stand_by, copy, link)
                if self._remote is not None:
                    nursery.start_soon(_report_lag, copy, link)
                await copy.role.held.wait()
                nursery.cancel_scope.cancel()
            copy.check()
        gc.disable()  # recovery makes no garbage cycles
        await link.send(Progress("open" if copy.role is None else "replay", 0, 0, term=copy.term))
        opening = open_shard(copy.disk, SystemClock(), copy.path, self._start.limits)
        shard, total = await _recover(opening, link, aside=copy.role is not None)
        await copy.join(shard)
        return shard, total

    async def _begin(self, nursery: trio.Nursery, shard: Shard, total: int) -> None:
        """Begin to serve the open shard, whose log has `total` bytes."""
        start, copy, limits = self._start, self._copy, self._start.limits
        calm()
        shard.allowance.bind(alone=start.shards == 1)
        in_hand = InHand(start.in_hand_fd)
        peers = self._peers(shard, in_hand)
        shard.control.hold_space(shard.outcome)
        if shard.outcome.cut_path is not None:
            log.warning(
                "torn_tail_cut",
                path=shard.outcome.cut_path,
                offset=shard.outcome.cut_offset,
                bytes=shard.outcome.cut_bytes,
                reason=shard.outcome.cut_reason,
            )
        socket = MessageSocket.router(start.endpoint)
        died_over = [(ident, deadline_ns) for ident, deadline_ns in start.states[start.index].in_hand]
        server = Server(
            shard, socket, limits, start.shards, copy.serving, in_hand, self._census, self._remote, died_over
        )
        await nursery.start(server.run)
        await nursery.start(peers.run)
        if copy.holder is not None:
            nursery.start_soon(_replicate, copy)
            if self._remote is not None:
                nursery.start_soon(self._give, shard, server)
        # From here on this shard and the other shards may send requests to each other.
        await self._link.send(Progress("derive", total, total))
        forward = Forward(shard, peers)
        await nursery.start(forward.restore)
        shard.mover.recovered()
        nursery.start_soon(shard.mover.run, peers)
        if start.index == REGISTRAR:
            await nursery.start(shard.registrar.run, peers)
        await nursery.start(forward.run)
        nursery.start_soon(RoomTasks(shard, peers, limits).run)
        await self._link.send(Ready())
        topics, records, _ = shard.directory.counters()
        log.info("shard_ready", topics=topics, records=records)

    def _peers(self, shard: Shard, in_hand: InHand) -> Peers:
        start, copy = self._start, self._copy
        if start.cluster is None:
            return Peers(shard, start.index, self._others, in_hand)
        away_s = AWAY_TERMS * start.limits.term_ttl_ms / 1000
        return Peers(shard, start.index, self._others, in_hand, term=copy.term, away_s=away_s, serving=copy.serving)

    async def _give(self, shard: Shard, server: Server) -> None:
        """Hand the shard over when the roster says so. Ends the service of the shard when it is given away."""
        from shardd.process.giver import Giver

        copy = self._copy
        assert copy.role is not None
        assert copy.holder is not None
        copy.giver = Giver(shard, copy.role, copy.holder, self._start.index, self._link.send, server.dismiss)
        await copy.giver.run()
        self._scope.cancel()


async def _close(shard: Shard, copy: bucket.Copy) -> None:
    """A term is ended before anything that takes long: another machine waits for it."""
    if copy.holder is not None:
        shard.commits.sync_now()
        await copy.holder.shipper.drain()
    shard.close(checkpoint=copy.holder is None)
    shard.space.end()


def run() -> None:
    die_with_parent()
    leave_no_core()
    allow_old_records()
    sys.exit(trio.run(main, int(os.environ[CONTROL_FD_VARIABLE])))
