"""A world of several machines: shards that move among them, and clients that reach each shard through any of them.

One seed is one schedule. `Roster`, `Replica`, `Allowance` and `Treasurer` are the real ones; the bucket, the network
and what a process does are made up (`tests.simulation.replication` has those of one shard). Machines join, leave, are
lost, are copied; processes die or are stopped; links to the bucket and between machines are cut; the store answers that
a name is taken after a write of its own, refuses, is late, or does not answer; checkpoints and retention run all the
time. `run` returns the first broken claim. Those of `tests.simulation.replication`, for each shard, and:

    once        a record that a client knows to be written is in its shard's log; no record is in it twice
    answerer    at most one process answers for a shard at any moment
    cap         the limits of the processes that hold the shards are together at most the cap, but for `Cluster.excess`
    newest      the newest entry of a move that looks show is none that they showed before a later one
    copy        a copied directory becomes no member by a look that shows what its original has just written
    settled     when all faults are over, every shard is served, of a directory and its copies one is a member, no
                machine has more than its part, and that took at most one move more than there are shards, from twice
                the longest time to live on
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf

from shardd.changes.allowance import Allowance
from shardd.replication.messages import Result
from shardd.replication.states import ReplicaState
from shardd.roster.handover import HandOverEvent, HandOverState
from shardd.roster.members import Member, RosterTiming
from shardd.roster.moves import Move
from shardd.roster.placement import next_transfer
from shardd.roster.roster import CreateMove, Publish, Roster, RosterRequest, RosterState
from shardd.roster.view import Found, Held
from tests.simulation.machine_seats import CAP, MovedDisk, Seat, Shard, Traffic
from tests.simulation.replication import STEP, Flaws, Host, Process, Timeline, Violation, Weather

FAULTS_UNTIL = 36.0
ENDS_AT = 120.0
QUIET_S = 3.0
"""For so long everything has to stay as it is, to be settled."""
MOST_MACHINES = 5
VOID, PATIENCE, CALM, KEEP = 8.0, 1.5, 15.0, 1.0


@dataclass(frozen=True)
class MachineFlaws(Flaws):
    roster: type[Roster] = Roster
    allowance: type[Allowance] = Allowance
    moves_kept: int = 1
    forwards_twice: bool = False
    """A gateway sends a request again whose outcome is unknown."""


NONE = MachineFlaws()


class Node(Process):
    """A machine: a roster, a gateway, and a seat for each shard."""

    def __init__(self, cluster: Cluster, machine: str, number: int, disks: list[MovedDisk]) -> None:
        rng = cluster.rng
        super().__init__(Host(rng))
        self.cluster = cluster
        self.machine = machine
        self.number = number
        self.place = f"place {number}"
        self.time_to_live = rng.choice(cluster.times_to_live)
        self.skew_s = rng.choice((0.0, 0.0, 0.0, 3.0))
        self.roster: Roster | None = None
        self.seats = [Seat(shard, self, disk) for shard, disk in zip(cluster.shards, disks, strict=True)]
        self.down_until = 0.0
        self.linkless_until = 0.0
        self.gone = False
        self.blind_to: set[str] = set()
        """Machines whose objects its looks do not show."""
        self.published_at = -inf
        self.doubled = False
        """Whether this one has a copy of a directory, and the last look showed what its original had just written."""

    @property
    def now(self) -> float:
        return self.host.offset + self.host.rate * self.cluster.time.now

    @property
    def wall_s(self) -> float:
        return self.cluster.time.now + self.skew_s

    def start(self) -> None:
        self.incarnation += 1
        timing = RosterTiming(self.time_to_live, VOID, PATIENCE, CALM, KEEP)
        nonce = f"{self.number}.{self.incarnation}"
        self.roster = self.cluster.flaws.roster(self.machine, nonce, self.place, len(self.seats), timing)

    def stop(self, *, power: bool = False, for_s: float = 0.0) -> None:
        self.roster = None
        self.incarnation += 1
        self.down_until = self.cluster.time.now + for_s
        for seat in self.seats:
            seat.stop(power=power, for_s=for_s)

    def turn(self) -> None:
        roster = self.roster
        if roster is None:
            if self.cluster.time.now >= self.down_until:
                self.start()
            return
        self._tell(roster)
        request = roster.tick(self.now, self.wall_s)
        if request is not None:
            self.cluster.carry(self, roster, request)
        if roster.state is RosterState.REFUSED:
            self.cluster.refused(self)
            return
        wanted = roster.wanted(self.now)
        for seat in self.seats:
            index = seat.shard.index
            if seat.replica is not None:
                seat.ordered()
                if index not in wanted and seat.replica.state is ReplicaState.STANDBY:
                    seat.stop()
            elif index in wanted and self.cluster.time.now >= seat.down_until:
                seat.start()
        if roster.handover is not None:
            seat = self.seats[roster.handover.move.shard]
            if seat.replica is not None:
                seat.hand_over(roster.handover.state)

    def _tell(self, roster: Roster) -> None:
        roster.held = {
            seat.shard.index: seat.replica.term for seat in self.seats if seat.replica is not None and seat.holds
        }
        roster.runs = {seat.shard.index for seat in self.seats if seat.replica is not None}
        roster.lags = {seat.shard.index: seat.lag for seat in self.seats if seat.replica is not None and not seat.holds}

    def refuses(self, seat: Seat) -> bool:
        if self.roster is None or (handover := self.roster.handover) is None:
            return self.roster is None
        going = handover.state in (HandOverState.REFUSING, HandOverState.ENDING)
        return going and handover.move.shard == seat.shard.index

    def gives(self, seat: Seat) -> bool:
        handover = None if self.roster is None else self.roster.handover
        return handover is not None and handover.move.shard == seat.shard.index

    @property
    def well(self) -> bool:
        worst = max(self.host.stopped_until, self.host.cut_until, self.down_until)
        return self.roster is not None and worst < self.cluster.time.now

    def report(self, event: HandOverEvent) -> None:
        if self.roster is not None and self.roster.handover is not None:
            self.roster.handover.meet(event, self.now)

    @property
    def idle(self) -> bool:
        return all(seat.replica is None or not seat.holds for seat in self.seats)


class Cluster:
    def __init__(self, seed: int, flaws: MachineFlaws = NONE, *, machines: int = 0, shards: int = 0) -> None:
        self.rng = random.Random(seed)
        self.flaws = flaws
        self.weather = Weather.of(self.rng)
        self.time = Timeline()
        self.members: dict[str, Member] = {}
        self.moves: dict[int, Move] = {}
        self.moved_at: list[float] = []
        """When each move was created."""
        self.newest_move = 0
        self.shards = [Shard(self, index) for index in range(shards or self.rng.choice((2, 3, 4)))]
        self.traffic = Traffic(self)
        self.count = 0
        self.nodes: list[Node] = []
        self.copies: dict[int, Node] = {}
        """Number of a node on a copied directory → its original."""
        self.times_to_live = self.rng.choice(((2.0,), (2.0, 8.0), (2.0, 8.0)))
        self.excess = 0
        """Bytes by which a shard held more when it was taken over than its last holder might."""
        self.quiet = False
        self.settled_since: float | None = None
        for _ in range(machines or self.rng.choice((2, 3, 3, 4, 5))):
            self.join()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.time.at(self.time.now + seconds, call)

    def seats(self, index: int) -> Iterator[Seat]:
        return (node.seats[index] for node in self.nodes)

    def cut(self, one: Node, other: Node) -> bool:
        """Whether the link between two machines is broken."""
        return one is not other and max(one.linkless_until, other.linkless_until) > self.time.now

    # The bucket

    def carry(self, node: Node, roster: Roster, request: RosterRequest) -> None:
        network = self.shards[0]

        def answered(answer: Found | Result) -> None:
            if node.roster is not roster:
                return
            joins = roster.state is RosterState.JOINING
            roster.answered(request, answer if isinstance(answer, Found) else None, node.now, node.wall_s)
            if joins and roster.state is RosterState.ADMITTED and node.doubled:
                raise Violation(f"copy: {node.place} is a member, and so is {self.copies[node.number].place}")

        def write() -> Result:
            if isinstance(request, Publish):
                self.members[request.member.machine] = request.member
                node.published_at = self.time.now
                return Result.DONE
            assert isinstance(request, CreateMove)
            return self.create_move(request.move)

        if isinstance(request, Publish | CreateMove):
            network.request(node, write, answered)
            return

        def members_read(members: tuple[Member, ...] | Result) -> None:
            if isinstance(members, Result):
                answered(members)
            else:
                network.request(node, partial(self.found, members), answered)

        def read() -> tuple[Member, ...]:
            original = self.copies.get(node.number, node)
            shown = self.members.get(node.machine)
            lives = self.time.now - original.published_at < 0.6 * node.time_to_live
            node.doubled = original is not node and lives and shown is not None and shown.place == original.place
            return tuple(member for member in self.members.values() if member.machine not in node.blind_to)

        network.request(node, read, members_read)

    def found(self, members: tuple[Member, ...]) -> Found:
        newest = max(self.moves, default=0)
        if newest < self.newest_move:
            raise Violation(f"newest: entry {newest} of the moves is shown after entry {self.newest_move}")
        self.newest_move = newest
        holders = []
        for shard in self.shards:
            seen = shard.store.look(0)
            holders.append(Held(seen.term, seen.nonce.partition("~")[0]))
        return Found(members, holders, tuple(self.moves.values()))

    def create_move(self, move: Move) -> Result:
        removed = partial(self.remove_move, move.number - self.flaws.moves_kept)
        self.after(self.rng.choice((0.0, 0.0, 0.5, 12.0)), removed)  # its creator may be stopped between the two
        if move.number in self.moves:
            return Result.TAKEN
        self.moves[move.number] = move
        self.moved_at.append(self.time.now)
        return Result.DONE

    def remove_move(self, number: int) -> None:
        self.moves.pop(number, None)

    # Claims

    def check_cap(self) -> None:
        newest = [shard.limits[max(shard.limits)] if shard.limits else 0 for shard in self.shards]
        if sum(newest) > CAP.bytes + self.excess:
            raise Violation(f"cap: the shards may hold {newest}, of {CAP.bytes} + {self.excess}")

    def refused(self, node: Node) -> None:
        node.gone = True
        node.stop()
        self.note([each for each in self.nodes if each is not node])

    @property
    def settled(self) -> bool:
        """Whether every shard is served and no machine is to give any away, for long enough."""
        served = all(any(seat.serving() for seat in self.seats(index)) for index in range(len(self.shards)))
        doubled = len({node.machine for node in self.nodes}) < len(self.nodes)
        if doubled or not served or not all(self.content(node) for node in self.nodes):
            self.settled_since = None
        elif self.settled_since is None:
            self.settled_since = self.time.now
        return self.settled_since is not None and self.time.now - self.settled_since >= QUIET_S

    def content(self, node: Node) -> bool:
        roster = node.roster
        if roster is None or roster.state is not RosterState.ADMITTED or roster.handover or roster.view.move:
            return False
        holders = [held.machine for held in roster.view.holders]
        standings = roster.view.members.standings(node.now)
        transfer = next_transfer(standings, holders)
        there = set(standings) == {each.machine for each in self.nodes}
        return there and (transfer is None or transfer.source != node.machine)  # only a holder's view counts

    # What happens

    def join(self, original: Node | None = None) -> Node:
        self.count += 1
        if original is None:
            node = Node(self, f"m{self.count}", self.count, [MovedDisk() for _ in self.shards])
        else:
            disks = [MovedDisk(**vars(seat.directory.copy())) for seat in original.seats]
            node = Node(self, original.machine, self.count, disks)
            node.time_to_live = original.time_to_live
            self.copies[node.number] = original
        self.note([*self.nodes, node])
        self.after(self.rng.random() * STEP, partial(self.turns, node))
        for seat in node.seats:
            self.after(self.rng.random() * STEP, partial(self.seat_turns, seat))
        return node

    def note(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        for shard in self.shards:
            shard.machines = list(self.seats(shard.index))

    def turns(self, node: Node) -> None:
        if not node.gone:
            self.shards[0].on(node, lambda: None if node.gone else node.turn())
            self.after(STEP * self.rng.uniform(0.6, 1.4), partial(self.turns, node))

    def seat_turns(self, seat: Seat) -> None:
        if not seat.node.gone:
            self.shards[0].on(seat, lambda: None if seat.node.gone else seat.turn())
            self.after(STEP * self.rng.uniform(0.6, 1.4), partial(self.seat_turns, seat))

    def asks(self) -> None:
        shard = self.rng.choice(self.shards)
        if shard.idle_until <= self.time.now:
            self.traffic.ask(self.rng.choice(self.nodes), shard)
        self.after(self.rng.uniform(0.05, 0.2), self.asks)

    def lose(self, node: Node) -> None:
        """A machine is lost, with its disk."""
        node.gone = True
        node.stop(power=True)
        self.note([each for each in self.nodes if each is not node])

    @property
    def staying(self) -> list[Node]:
        return [node for node in self.nodes if node.number not in self.copies and not node.gone]

    def misfortune(self) -> None:
        rng, node = self.rng, self.rng.choice(self.nodes)
        match rng.randrange(16):
            case 0 | 1:
                node.stop(power=self.chance(0.5), for_s=rng.choice((0.1, 0.1, 5.0, 8.0)))
            case 2:
                rng.choice(node.seats).stop(for_s=rng.choice((0.1, 3.0)))
            case 3 | 4 | 5:
                node.host.stopped_until = self.time.now + rng.choice((0.5, 1.5, 3.0, 5.0, 12.0))
            case 6 | 7 | 8:
                node.host.cut_until = self.time.now + rng.choice((0.7, 1.5, 3.0, 6.0, 12.0))
            case 9 | 10:
                node.linkless_until = self.time.now + rng.choice((0.3, 2.0, 6.0))
            case 11:  # an orderly end
                for seat in node.seats:
                    if seat.replica is not None:
                        seat.replica.drain()
                self.after(1.0, lambda: None if node.gone else node.stop(for_s=0.5))
            case 12 if self.chance(0.5):
                node.blind_to = {each.machine for each in self.nodes if self.chance(0.5)} - {node.machine}
                self.after(rng.choice((3.0, 10.0)), partial(setattr, node, "blind_to", set()))
            case 12:
                if node.roster is not None:
                    node.start()  # the roster alone is started again
            case 13:
                if len(self.nodes) < MOST_MACHINES:
                    self.join()
            case 14:
                if len(self.nodes) < MOST_MACHINES:
                    self.join(rng.choice(self.staying))
            case 15:
                if len(self.staying) > 2 and node.number not in self.copies:
                    self.lose(node) if self.chance(0.5) else self.leave(node)

    def interrupt(self) -> None:
        """Stop or cut off a holder in the middle of a write. No client writes to the shard for a while, so nothing
        takes the place of what the holder may still have on its way."""
        shard = self.rng.choice((self.shards[0], self.rng.choice(self.shards)))
        seat = next((seat for seat in self.seats(shard.index) if seat.serving() and seat.node.well), None)
        if seat is None:
            return
        shard.idle_until = self.time.now + self.rng.choice((0.0, 8.0, 15.0))
        for node in self.nodes[:3]:
            self.traffic.begin(node, seat)
        host, until = seat.host, self.time.now + self.rng.choice((4.0, 6.0, 12.0))
        match self.rng.randrange(4):
            case 0:  # before it begins to create the part
                seat.sync()
                host.stopped_until = until
            case 1:  # the part is on its way, or there
                seat.ship()
                self.after(self.rng.uniform(0.0, 0.1), partial(setattr, host, "stopped_until", until))
            case 2:
                self.after(self.rng.uniform(0.0, 0.6), partial(setattr, host, "cut_until", until))
            case _:  # the gateways do not get its answers
                seat.ship()
                seat.node.linkless_until = self.time.now + 2.0

    def leave(self, node: Node) -> None:
        """An operator has a machine give away what it holds, and end then."""
        if node.gone:
            return
        if node.roster is not None:
            node.roster.leave()
            if node.idle and self.time.now > node.down_until + 2:
                self.lose(node)
                return
        self.after(1.0, partial(self.leave, node))

    def fates(self) -> None:
        if self.time.now < FAULTS_UNTIL:
            if self.chance(self.weather.stops * 0.8):
                self.misfortune()
            if self.chance(0.3) and sum(node.well for node in self.nodes) > 1:
                self.interrupt()
            self.after(1.0, self.fates)

    def calm_down(self) -> None:
        """All faults end. What was sent before may still arrive."""
        self.quiet = True
        for shard in self.shards:
            shard.settled, shard.idle_until = True, 0.0
        for node in self.nodes:
            node.blind_to = set()
            node.host.stopped_until = node.host.cut_until = node.linkless_until = node.down_until = 0.0
            for seat in node.seats:
                seat.down_until = 0.0

    def begin(self) -> None:
        self.after(1.0, self.asks)

    def run(self) -> None:
        self.begin()
        self.time.at(3.0, self.fates)
        self.time.at(FAULTS_UNTIL, self.calm_down)
        self.time.pass_time(FAULTS_UNTIL + 1)
        if not self.time.pass_time(ENDS_AT, lambda: self.settled):
            raise Violation(f"settled: not {ENDS_AT - FAULTS_UNTIL} s after the last fault")
        forgotten = FAULTS_UNTIL + 2 * max(self.times_to_live)  # machines that were taken to be away are there again
        moves = sum(at > forgotten for at in self.moved_at)
        if moves > len(self.shards) + 1:
            raise Violation(f"settled: after {moves} moves of {len(self.shards)} shards")
        self.traffic.check()


def run(seed: int, flaws: MachineFlaws = NONE) -> str:
    """Run one schedule. Returns the broken claim, or an empty text."""
    try:
        Cluster(seed, flaws).run()
    except (Violation, AssertionError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
