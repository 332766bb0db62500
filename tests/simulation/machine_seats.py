"""One shard on one of several machines: what its process does with requests, with the caps, and when it moves away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from proto.ipc.operations import Room, RoomOrder, RoomReport, RoomWant
from proto.model.limits import Limits
from shardd.changes.allowance import Allowance
from shardd.changes.treasurer import Treasurer
from shardd.replication.messages import Answer, Ended, ReadPart, Request, Result, Timing
from shardd.replication.states import ReplicaState
from shardd.roster.handover import HandOverEvent, HandOverState
from tests.simulation.replication import Disk, Entry, Machine, ShardWorld, Violation, is_open

if TYPE_CHECKING:
    from tests.simulation.machines import Cluster, Node

CAP = Room(0, 12)
LIMITS = Limits(max_topics=0, max_total_bytes=CAP.bytes)
STUCK, STUCK_GRANTS = 0.2, 0.7
"""Share of the treasurer's orders that arrive seconds late, when it has given up to wait for the answer."""


@dataclass
class MovedDisk(Disk):
    """A directory that knows where it was used last."""

    place: str = ""


class Shard(ShardWorld):
    """One of several shards."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        super().__init__(cluster.rng, cluster.weather, cluster.time, cluster.flaws)
        self.cluster = cluster
        self.index = index
        self.idle_until = 0.0
        self.limits: dict[int, int] = {}
        """Term that was held → the bytes that its process may hold."""

    def ident(self) -> int:
        return self.cluster.shards[0].next_ident()

    def next_ident(self) -> int:
        self.idents += 1
        return self.idents

    def read_by(self, machine: Machine) -> None:
        super().read_by(machine)
        answering = [seat.name for seat in self.cluster.seats(self.index) if seat.serving() and not seat.stopped]
        if len(answering) > 1:
            raise Violation(f"answerer: {answering} answer for shard {self.index}")

    def acknowledged(self, machine: Machine, number: int, entry: Entry) -> None:
        super().acknowledged(machine, number, entry)
        self.cluster.traffic.written(machine, entry)


class Holdings:
    """What a shard holds, for its allowance: growth since the last deletion."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def _held(self, upto: int) -> int:
        count = 0
        for entry in reversed(self._seat.disk.log[:upto]):
            if entry.kind == "purge":
                break
            count += entry.kind == "growth"
        return count

    @property
    def staged(self) -> Room:
        return Room(0, self._held(len(self._seat.disk.log)))

    @property
    def visible(self) -> Room:
        return Room(0, self._held(self._seat.shipped))

    @property
    def lasting(self) -> Room:
        log = self._seat.disk.log
        ends = [number for number in range(self._seat.shipped, len(log)) if log[number].kind == "purge"]
        return Room(0, max(self._held(upto) for upto in (*ends, len(log))))


class Seat(Machine):
    """One shard's directory on a machine, and at most one process."""

    def __init__(self, shard: Shard, node: Node, disk: MovedDisk) -> None:
        super().__init__(shard, f"{node.machine}~{node.number}", disk, node.host)
        self.shard = shard
        self.node = node
        self.directory = disk
        self.timing = Timing(time_to_live=node.time_to_live, follow=0.4, retry=0.1, retry_most=0.6)
        self.caught_up_at = -inf
        self.saving = False
        self.allowance: Allowance | None = None
        self.treasurer: Treasurer | None = None

    @property
    def stopped(self) -> bool:
        return self.host.stopped_until > self.world.now

    @property
    def lag(self) -> float:
        return self.now - self.caught_up_at

    def start(self) -> None:
        if self.directory.place != self.node.place:  # its terms are another machine's: that one may live
            self.directory.held = self.directory.claimed = ""
            self.directory.place = self.node.place
        self.caught_up_at, self.saving = -inf, False
        self.allowance = self.treasurer = None
        super().start()
        self.ordered()

    def ordered(self) -> None:
        """Its machine says when it is to claim the shard: from the start of the process on."""
        assert self.replica is not None
        roster, index = self.node.roster, self.shard.index
        self.replica.newest.rank = inf if roster is None else roster.rank(index)
        self.replica.hurries = roster is not None and index in roster.moving

    def turn(self) -> None:
        if self.replica is None:
            return
        super().turn()
        if self.replica is not None and self.allowance is not None and self.holds:
            self._note_limit()
            self.shard.cluster.traffic.see_to_caps(self)

    def ended(self, how: Ended) -> None:
        if not how.deposed:
            self.disk.held = self.disk.claimed = ""  # it is not to be taken over again as one's own
            if self.node.gives(self):
                self.node.report(HandOverEvent.ENDED)
        self.stop(for_s=self.world.rng.choice((0.1, 0.1, 2.0)))

    def hold(self, term: int) -> None:
        super().hold(term)
        self._note_tail()
        self.allowance = self.shard.cluster.flaws.allowance(LIMITS, Holdings(self))
        self.allowance.bind(alone=False)
        if self.shard.index == 0:
            self.treasurer = Treasurer(CAP, len(self.shard.cluster.shards), (term, 0, 0))

    def _note_tail(self) -> None:
        """Frames that this machine had not shipped when it held the shard before are kept, since nothing contradicts
        them. A holder in between did not have them, so they may be more than what the shard is booked with. A deletion
        among them may not last, and its process reports so."""
        if len(self.disk.log) > self.shipped and self.shard.limits:
            more = Holdings(self).lasting.bytes - self.shard.limits[max(self.shard.limits)]
            self.shard.cluster.excess += max(more, 0)

    def answer(self, request: Request, answer: Answer) -> None:
        follows = self.replica is not None and is_open(self.replica, request) and not self.holds
        if follows and isinstance(request, ReadPart) and answer is Result.ABSENT:
            self.caught_up_at = self.now
        super().answer(request, answer)

    # Writes

    @property
    def refuses(self) -> bool:
        return self.replica is None or self.replica.state is not ReplicaState.HOLDING or self.node.refuses(self)

    def write(self) -> None:
        """Besides what clients write: `disk` records, growth within the cap, and deletions."""
        if self.refuses or self.shard.idle_until > self.world.now:
            return
        self.write_weakly()
        if self.allowance is not None:
            self.grow(self.allowance)
        if self.world.chance(0.06):
            self.disk.log.append(Entry("purge", self.world.ident()))

    def grow(self, allowance: Allowance) -> None:
        for _ in range(self.world.rng.choice((0, 1, 3))):
            if allowance.fits(0, 1):
                self.disk.log.append(Entry("growth", self.world.ident()))
            else:
                allowance.want(self.world.rng.randint(1, 4), self.now)
                break

    def take(self, ident: int) -> bool:
        """A client's record. Returns whether it was staged; otherwise it was not done."""
        if self.refuses or not self.serving():
            return False
        self.disk.log.append(Entry("fsync", ident))
        return True

    def sync(self) -> None:
        """All that was staged is on the device."""
        assert self.replica is not None
        self.synced = len(self.disk.log)
        self.replica.offer(self.synced)

    def ship(self) -> None:
        self.sync()
        assert self.replica is not None
        self.do(self.replica.tick(self.now))

    def _note_limit(self) -> None:
        assert self.allowance is not None
        assert self.replica is not None
        room = self.allowance.report.limit.bytes
        self.shard.limits[self.replica.term] = max(room, Holdings(self).staged.bytes)
        self.shard.cluster.check_cap()

    # Moving away

    def hand_over(self, state: HandOverState) -> None:
        """Do what the hand-over waits for."""
        assert self.replica is not None
        if state is HandOverState.OFFERING:
            self.saving = False
        elif state is HandOverState.SAVING and not self.saving and self.holds:
            self.saving = True
            incarnation = self.incarnation
            self.make_manifest(lambda: self._saved(incarnation))
        elif state is HandOverState.REFUSING and self.shipped == len(self.disk.log):
            self.node.report(HandOverEvent.SHIPPED)
        elif state is HandOverState.ENDING:
            self.replica.drain()
        if self.saving and self.world.chance(0.1):
            self.saving = False  # its answer may be lost

    def _saved(self, incarnation: int) -> None:
        if self.incarnation == incarnation and self.node.gives(self):
            self.node.report(HandOverEvent.SAVED)


class Ask:
    """A request of a client that is not answered yet: to write one record."""

    def __init__(self, ident: int, shard: int, gateway: Node, until: float) -> None:
        self.ident = ident
        self.shard = shard
        self.gateway = gateway
        self.incarnation = gateway.incarnation
        self.until = until
        self.sent = 0


class Traffic:
    """Clients that write, gateways that forward, and messages about the caps."""

    HOLD_S = 2.0
    """For so long a gateway holds a request that was not done."""
    ANSWER_S = 2.5
    """After so long without an answer a gateway answers that the outcome is unknown."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.asks: dict[int, Ask] = {}
        self.done: dict[int, int] = {}
        """Record that a client knows to be written → its shard."""
        self.unknown = 0

    # Requests

    def ask(self, gateway: Node, shard: Shard) -> None:
        self.on(gateway, partial(self.forward, self.new(gateway, shard)))

    def new(self, gateway: Node, shard: Shard) -> Ask:
        ask = Ask(shard.ident(), shard.index, gateway, self.cluster.time.now + self.HOLD_S)
        self.asks[ask.ident] = ask
        return ask

    def begin(self, gateway: Node, seat: Seat) -> None:
        """A request that has just arrived."""
        ask = self.new(gateway, seat.shard)
        ask.sent += 1
        self.cluster.after(self.ANSWER_S, partial(self.no_answer, ask, ask.sent))
        self.arrive(ask, seat.node)

    def forward(self, ask: Ask) -> None:
        """Send it to the machine that holds the shard, as far as its gateway knows."""
        cluster, gateway = self.cluster, ask.gateway
        if ask.ident not in self.asks or gateway.incarnation != ask.incarnation or gateway.roster is None:
            self.asks.pop(ask.ident, None)
            return
        machine = gateway.roster.view.holders[ask.shard].machine
        target = next((node for node in cluster.nodes if node.machine == machine and node.roster is not None), None)
        if target is None or cluster.cut(gateway, target):
            self.later(ask)
            return
        ask.sent += 1
        cluster.after(cluster.rng.uniform(0.001, 0.02), partial(self.on, target, partial(self.arrive, ask, target)))
        cluster.after(self.ANSWER_S, partial(self.no_answer, ask, ask.sent))

    def on(self, node: Node, call: Callable[[], None]) -> None:
        self.cluster.shards[0].on(node, call)

    def later(self, ask: Ask) -> None:
        """It was not sent, or not done: it may be sent again."""
        if self.cluster.time.now >= ask.until:
            self.asks.pop(ask.ident, None)
        else:
            self.cluster.after(0.15, partial(self.on, ask.gateway, partial(self.forward, ask)))

    def arrive(self, ask: Ask, target: Node) -> None:
        if target.roster is None or target.seats[ask.shard].take(ask.ident):
            return
        if not self.cluster.cut(ask.gateway, target):
            ask.sent += 1  # this one is answered
            self.later(ask)

    def no_answer(self, ask: Ask, sent: int) -> None:
        if ask.ident not in self.asks or ask.sent != sent:
            return
        if self.cluster.flaws.forwards_twice and sent < 4:
            self.forward(ask)
        else:
            self.unknown += 1
            del self.asks[ask.ident]

    def written(self, machine: Machine, entry: Entry) -> None:
        """A holder acknowledges a record. Its answer may not arrive."""
        ask = self.asks.get(entry.ident)
        assert isinstance(machine, Seat)
        if ask is None or self.cluster.cut(ask.gateway, machine.node) or ask.gateway.incarnation != ask.incarnation:
            return
        del self.asks[entry.ident]
        self.done[entry.ident] = ask.shard

    def check(self) -> None:
        """What clients know to be written is there."""
        for shard in self.cluster.shards:
            seat = next(seat for seat in self.cluster.seats(shard.index) if seat.serving())
            times = Counter(entry.ident for entry in seat.disk.log if entry.kind == "fsync")
            if times and max(times.values()) > 1:
                raise Violation(f"once: a record is twice in the log of shard {shard.index}")
            lost = [ident for ident, index in self.done.items() if index == shard.index and not times[ident]]
            if lost:
                raise Violation(f"once: shard {shard.index} lacks {lost[:3]}, which clients know to be written")

    # The caps

    def see_to_caps(self, seat: Seat) -> None:
        assert seat.allowance is not None
        assert seat.replica is not None
        allowance = seat.allowance
        if allowance.unsettled:
            allowance.tick(seat.now)
            wish = allowance.wish()
            if wish is not None and seat.serving() and self.cluster.chance(0.5):
                at, limit = allowance.report.at, allowance.report.limit
                want = RoomWant(seat.shard.index, at, limit, wish, seat.replica.term)
                holder = "" if seat.node.roster is None else seat.node.roster.view.holders[0].machine
                self.post(partial(self.wanted, holder, want))
        self.divide(seat)

    def divide(self, seat: Seat) -> None:
        """Send the orders of the treasurer, if it is there."""
        treasurer, roster = seat.treasurer, seat.node.roster
        if treasurer is None or roster is None or seat.replica is None or seat.stopped:
            return
        for index, held in enumerate(roster.view.holders):
            term = seat.replica.term if index == 0 else held.term
            treasurer.seen(index, term, here=term > 0, failed=False)
        for index, order in treasurer.orders(seat.now, serving=seat.serving()):
            deliver = partial(self.order, seat, treasurer, index, treasurer.accounts[index].life, order)
            if not self.cluster.quiet and self.cluster.chance(STUCK if order.limit is None else STUCK_GRANTS):
                self.post(partial(self.reported, seat, treasurer, index, order, None))
                self.cluster.after(self.cluster.rng.uniform(3, 10), deliver)
            else:
                self.post(deliver)

    def post(self, deliver: Callable[[], None]) -> None:
        self.cluster.after(self.cluster.rng.uniform(0.01, 0.1), deliver)

    def wanted(self, machine: str, want: RoomWant) -> None:
        """A want reaches the treasurer on the machine that its shard takes for the holder of shard 0."""
        for seat in self.cluster.seats(0):
            if seat.treasurer is not None and seat.node.machine == machine and not seat.stopped:
                seat.treasurer.wanted(want, seat.now)
                self.divide(seat)

    def order(self, home: Seat, treasurer: Treasurer, index: int, term: int | str, order: RoomOrder) -> None:
        """It reaches the process that its link leads to, or none."""
        for seat in self.cluster.seats(index):
            replica, allowance = seat.replica, seat.allowance
            reached = replica is not None and replica.term == term and seat.holds and not seat.stopped
            if reached and allowance is not None:
                report = allowance.obey(order)
                seat._note_limit()
                said = report if seat.serving() else None  # no answer of a silent machine leaves it
                self.post(partial(self.reported, home, treasurer, index, order, said))
                return
        self.post(partial(self.reported, home, treasurer, index, order, None))

    def reported(
        self, home: Seat, treasurer: Treasurer, index: int, order: RoomOrder, report: RoomReport | None
    ) -> None:
        if home.treasurer is not treasurer:
            return
        if report is None:
            treasurer.lost(index, order)
        else:
            treasurer.reported(index, order, report)
        self.divide(home)
