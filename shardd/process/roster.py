"""The main program of the roster, a process that decides which machine is to hold which shard.

It tells the supervisor which machines there are, and what the shards of this machine are to do; the supervisor tells
the shards. It has no part in any request. When it dies, what is known stays known, a hand-over is given up, and it is
started again. Nothing of it is loaded without other machines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from proto.ipc.control import (
    CONTROL_FD_VARIABLE,
    EXIT_PERMANENT,
    Failed,
    Holder,
    Local,
    Machine,
    Members,
    Ping,
    Placement,
    Pong,
    Ready,
    Shards,
    ShardState,
    Start,
    Step,
    Stop,
)
from proto.ipc.control_link import ControlLink
from proto.process.core_dumps import leave_no_core
from proto.process.log import configure
from proto.process.orphan import die_with_parent

if TYPE_CHECKING:
    from shardd.replication.membership import Membership
    from shardd.roster.members import Member
    from shardd.roster.moves import Move

KEEP_TERMS = 6
"""A shard that need not run here any more is ended after so many times to live."""
TIDY_S = 3600.0
"""Seconds between two looks for files that may go."""
HOLDS = ("ready", "stopping")
"""Phases of a shard that may be given away, or is."""
log = structlog.get_logger()
COPY = (
    "another machine runs on a copy of this data directory, and a machine has one name: remove machine.json from the "
    "copy, or start it with an empty directory"
)


class RosterProcess:
    """What the supervisor says goes to the roster, and what that decides goes to the supervisor."""

    def __init__(self, start: Start, link: ControlLink) -> None:
        """Blocks. Raises `StoreError`."""
        from shardd.replication.membership import Membership
        from shardd.replication.seal import open_bucket
        from shardd.roster.members import Member, RosterTiming
        from shardd.roster.roster import Roster

        limits, cluster = start.limits, start.cluster
        assert cluster is not None
        store = open_bucket(limits.bucket, limits.bucket_key_file, limits.bucket_encrypt)
        endpoint = f"{cluster.at}:{cluster.listen.rpartition(':')[2]}"
        own = Member(cluster.member, cluster.machine, start.address, cluster.public, endpoint)
        ttl_s = limits.term_ttl_ms / 1000
        timing = RosterTiming(ttl_s, keep=KEEP_TERMS * ttl_s)
        self.roster = Roster(own.machine, own.nonce, cluster.place, start.shards, timing, seconds=limits.seconds)
        self._link = link
        self._ranks: list[float] = []
        self._holders: list[Holder] = []
        self._ranked: object = None
        """The findings that these are of."""
        self._told: Placement | None = None
        self._start, self._store = start, store
        self._given_up: Move | None = None
        """The move that the log tells of."""
        self._tidies = -1
        """The shard whose files are looked at now."""
        self.membership: Membership = Membership(
            store, own, self.roster, start.created_ms, ttl_s, self._heard, self._decided
        )
        self.shards_changed(start.states)

    async def _heard(self, members: Mapping[str, Member], numbers: Mapping[str, int]) -> None:
        from shardd.replication.members import keys

        at = {name: member.address for name, member in members.items()}
        known = [Machine(name, number, at.get(name, "")) for name, number in numbers.items()]
        await self._link.send(Members(keys(members), known))

    async def _decided(self) -> None:
        from shardd.roster.handover import HandOverState
        from shardd.roster.roster import RosterState

        roster, step = self.roster, None
        if roster.state is RosterState.JOINING:
            return  # what the last process decided stays
        handover = roster.handover
        if handover is not None and handover.state is not HandOverState.OFFERING:
            step = Step(handover.move.shard, handover.move.term, handover.move.number, handover.state)
        if roster.given_up is not None and roster.given_up is not self._given_up:
            self._given_up = move = roster.given_up
            log.warning("hand_over_given_up", shard=move.shard, move=move.number, target=move.target)
        if self._ranked is not roster.view.holders:
            self._ranked = roster.view.holders
            self._ranks = [roster.rank(shard) for shard in range(len(roster.view.holders))]
            self._holders = [
                Holder("" if shard in roster.view.over else held.address, held.endpoint, held.key, held.term)
                for shard, held in enumerate(roster.view.holders)
            ]
        wanted = sorted(roster.wanted(self.membership.now()) - {self._tidies})
        placement = Placement(self._ranks, step, self.refused, wanted, self._holders, sorted(roster.moving))
        if placement != self._told:
            self._told = placement
            await self._link.send(placement)

    @property
    def refused(self) -> bool:
        from shardd.roster.roster import RosterState

        return self.roster.state is RosterState.REFUSED

    def shards_changed(self, states: list[ShardState]) -> None:
        """The supervisor's news of the shards of this machine."""
        self.roster.held = {state.index: state.term for state in states if state.phase in HOLDS and state.term}
        self.roster.runs = {state.index for state in states if state.phase != "elsewhere"}
        self.roster.failed = {state.index for state in states if state.phase == "failed"}
        self.membership.look_again()

    async def tidy(self) -> None:
        """Remove the files of shards that this machine has not needed for long, until cancelled."""
        while True:
            for shard in sorted(self.roster.spare(self.membership.now())):
                self._tidies = shard
                await self._clear(shard)
                self._tidies = -1
            await trio.sleep(TIDY_S)

    async def _clear(self, shard: int) -> None:
        """Remove the files of a shard that has no process here, if another machine holds it."""
        from shardd.errors import ShardError
        from shardd.replication.attach import MARK
        from shardd.replication.objects import Objects
        from shardd.standby.closed_log import ClosedLog
        from shardd.storage.disk import Claim, RealDisk

        start, cluster = self._start, self._start.cluster
        assert cluster is not None
        path = Path(start.data_dir) / f"shard-{shard:02d}"
        if MARK not in RealDisk().list(path):
            return
        objects, reason = Objects(self._store, shard), "something in them may be in no bucket"
        closed = ClosedLog(RealDisk(), path, objects, start.limits, cluster.place)
        try:
            with Claim(path):
                await trio.to_thread.run_sync(closed.open)
                term = await trio.to_thread.run_sync(objects.newest_term)
                held = term is not None and term.member not in ("", cluster.member)
                if held and await trio.to_thread.run_sync(closed.clear):
                    log.info("files_removed", shard=shard, path=str(path))
                    return
        except BlockingIOError:
            return  # a process of the shard is being started
        except (ShardError, OSError) as error:
            reason = str(error)
        log.warning("files_kept", shard=shard, path=str(path), reason=reason)

    def reported(self, news: Local) -> None:
        from shardd.roster.handover import HandOverEvent

        roster, done = self.roster, news.done
        roster.lags = news.lags
        if news.leaving:
            roster.leave()
        if done is not None and roster.handover is not None and roster.handover.move.number == done.move:
            roster.handover.meet(HandOverEvent(done.event), self.membership.now())
        self.membership.look_again()


async def _obey(link: ControlLink, process: RosterProcess) -> None:
    """Answer the supervisor until it sends `Stop`. Ends the process if the supervisor is gone."""
    while (message := await link.receive()) is not None:
        if isinstance(message, Ping):
            await link.send(Pong())
        elif isinstance(message, Shards):
            process.shards_changed(message.states)
        elif isinstance(message, Local):
            process.reported(message)
        elif isinstance(message, Stop):
            return
    os._exit(1)


async def main(descriptor: int) -> int:
    """Keep the roster until the supervisor sends `Stop`. Returns the exit status."""
    async with aclosing(ControlLink.inherited(descriptor)) as link:
        return await _keep(link)


async def _keep(link: ControlLink) -> int:
    from shardd.replication.store import StoreError

    start = await link.receive()
    if not isinstance(start, Start):
        return 1
    configure("roster")
    try:
        process = RosterProcess(start, link)
    except StoreError as error:
        await link.send(Failed(f"roster: {error}"))
        return EXIT_PERMANENT
    await link.send(Ready())
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await process.membership.run()
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        nursery.start_soon(process.tidy)
        await _obey(link, process)
        nursery.cancel_scope.cancel()
    if process.refused:
        await link.send(Failed(COPY))
        return EXIT_PERMANENT
    await process.membership.withdraw()
    return 0


def run() -> None:
    die_with_parent()
    leave_no_core()
    sys.exit(trio.run(main, int(os.environ[CONTROL_FD_VARIABLE])))
