"""Remote link: the connection to a shard that another machine holds.

    made        the link connects, and sends a ping
    up          the first packet has come: the shard serves, and its clock is known. Requests are taken from now on
    lost        the connection has ended, the shard says that it is over, or it has been silent for `SILENT_S`. What was
                sent has outcome `unknown`. `proto.ipc.links` makes the next link, with a higher number in its name
    retired     another holder is known, and has a link of its own. What was sent may still be answered: the news may
                come before the last holder's refusals. The link is lost when nothing waits, or after `RETIRED_S`

**Deadlines** are in the shard's clock. Each of its packets has the time at which it left. The time at which it arrived
is later by the transit, so a deadline that is moved by the difference is early by the transit, and never late. The
last packet counts, since clocks drift.

**Suspects** (`proto.ipc.suspects`). A shard that was started again says what its last process died over. The link
compares that with the requests that the link before it had sent.

The shard hears a ping each second. It forgets a link that is silent for longer (`shardd.process.server`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import count
from zlib import crc32

import structlog
import trio
from structlog.typing import FilteringBoundLogger

from proto.ipc import askers
from proto.ipc.control import HELD_ELSEWHERE, Cluster, ShardState
from proto.ipc.in_hand import Mark
from proto.ipc.link import SILENT_S, Link, Owner
from proto.ipc.message import Request
from proto.ipc.operations import Ping
from proto.ipc.remote import KeyPair, RemoteDealer
from proto.ipc.transport import Group

_log: FilteringBoundLogger = structlog.get_logger()
_numbers = count(1)
RETIRED_S = 2.0
"""For so long at most a link waits for a holder that has been replaced: one that is lost says nothing."""
_AWAY = frozenset({"down", "open", "failed"})
"""Phases in which this machine has no process that follows the shard. A link stays meanwhile."""


class RemoteLink(Link):
    """The connection to the holder that a state names."""

    _socket: RemoteDealer

    def __init__(self, owner: Owner, state: ShardState, cluster: Cluster) -> None:
        self._cluster = cluster
        self._holder = state.holder_at, state.holder_key
        self._retired = False
        super().__init__(owner, state)

    @property
    def life(self) -> str:
        return self._holder[1]

    def _made_socket(self) -> RemoteDealer:
        cluster, (at, key) = self._cluster, self._holder
        name = askers.linked(cluster.machine, self._owner.name, next(_numbers))
        return RemoteDealer(at, name, KeyPair(cluster.public, cluster.secret), key)

    def serves(self, state: ShardState, phases: frozenset[str]) -> bool:
        # A process that begins to follow the shard knows no holder until it has looked.
        follows = state.phase in HELD_ELSEWHERE
        same = not state.holder_key or (state.holder_at, state.holder_key) == self._holder
        return state.phase in _AWAY or (follows and same)

    async def run(self) -> None:
        try:
            with self.scope:
                await self._socket.connect()
                self._ping()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._owner.read, self._socket, self._take)
                    await self._socket.lost()
                    nursery.cancel_scope.cancel()
        except OSError as error:
            _log.warning("holder_not_found", shard=self.state.index, endpoint=self._holder[0], reason=str(error))
        finally:
            self.fail()
            self._socket.close()

    def fail(self, in_hand: Iterable[Sequence[int]] = ()) -> None:
        if self.up:
            self.up = False
            if not self.ended:
                _log.warning("holder_lost", shard=self.state.index, endpoint=self._holder[0])
            unanswered = (pending.request for pending in self.waiting.values())
            self._owner.unknown[self.state.index] = [each for each in unanswered if each.id not in self._queue]
        super().fail()

    def retire(self) -> None:
        """Take no more requests, and end when what was sent is answered."""
        self._retired = True
        if not self.up or not self.waiting:
            self.fail()
            return
        self._take_no_more()
        self.scope.deadline = trio.current_time() + min(RETIRED_S, self._owner.timeout_s)

    def _ping(self) -> None:
        self._socket.send(Request(next(self._owner.ids), Ping()))

    def _take(self, group: Group) -> None:
        now_ns = time.monotonic_ns()
        for _, packet in group:
            if packet.status.over:
                self.scope.cancel()
            if packet.status.clock_ns:
                self._ahead_ns = packet.status.clock_ns - now_ns
        if not self.up and self._ahead_ns:
            self.up = True
            self._suspect(group[0][1].status.died_over)
            self._owner.opened(self)
        super()._take(group)
        if self._retired and not self.waiting:
            self.scope.cancel()

    def _suspect(self, marks: Iterable[Mark]) -> None:
        """The shard was lost with these in hand: note those of this process."""
        index, died_over = self.state.index, frozenset(marks)
        unanswered = self._owner.unknown.pop(index, ())
        requests = [each for each in unanswered if (each.id, each.deadline_ns) in died_over]
        self._owner.suspects.died(index, crc32(self._holder[1].encode()), requests)

    def look(self, elapsed_s: float) -> None:
        """End a tick of `elapsed_s`: count silence, and send a ping."""
        self.silent_s = 0.0 if self._heard else self.silent_s + elapsed_s
        self._heard = False
        if self.silent_s >= SILENT_S:
            self.scope.cancel()
        else:
            self._ping()
