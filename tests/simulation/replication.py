"""A world for the replication protocol: one object store, machines with clocks that drift, a network that fails.

One seed is one schedule. Machines run the `Replica` of `shardd.replication.protocol`; everything around it is made up:
a log is a list of entries, a part is a slice of it, a stop is a call. `run` returns the first broken invariant:

    kept        every acknowledged `fsync` record is in the log of each new holder, once, under its frame number; what
                an earlier holder acknowledges late is in the log of a later one
    one         no two processes acknowledge in the name of one term
    seqs        no seq of a `disk` topic names two records, although such records may be lost
    silence     a holder that was replaced answers nothing. On a copied directory, and where terms are not taken over
                automatically, it answers reads for two thirds of the time to live at most
    alive       when all faults are over, a machine holds the shard soon, even one with an empty disk
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from shardd.replication.messages import (
    Answer,
    Apply,
    CreatePart,
    CreateTerm,
    Ended,
    Hold,
    Kind,
    Look,
    Output,
    Part,
    Position,
    ReadPart,
    Renew,
    Request,
    Restore,
    Result,
    Seen,
    Shipped,
    Timing,
)
from shardd.replication.newest_term import NewestTerm
from shardd.replication.protocol import Replica
from shardd.replication.states import HOLDERS

TIMING = Timing(time_to_live=2.0, follow=0.4, retry=0.1, retry_most=0.6)
TIMEOUT = 0.6
DRIFT = 0.1
STEP = 0.3
"""Seconds between two turns of a machine."""
FAULTS_UNTIL = 25.0
SETTLED_AT = 35.0
ENDS_AT = 50.0
BLOCK = 6
"""Seqs per reservation."""


BEGIN = Position()
A = TypeVar("A")


class Entry(NamedTuple):
    """A frame: an `fsync` record, a `disk` record with its seq, or a ceiling of seqs."""

    kind: str
    ident: int
    seq: int = 0


def is_open(replica: Replica, request: Request) -> bool:
    """Whether an answer to the request counts."""
    return request is replica._log or request is replica._life


class Violation(Exception):
    pass


@dataclass(frozen=True)
class Flaws:
    """How the world or the protocol is broken on purpose."""

    replica: type[Replica] = Replica
    ignores_condition: bool = False
    removes_fences: bool = False
    removes_without_manifest: bool = False
    keeps_boot: bool = False
    """A directory continues the seqs of its own log in a later term too."""
    keeps_tail: bool = False
    """A part that differs from the local log is passed over."""


NO_FLAWS = Flaws()


@dataclass
class Weather:
    """Faults of one schedule; a calm one has hardly any, so that every fault is met alone too."""

    lost: float
    late: float
    refused: float
    repeated: float
    stops: float
    manifests: float

    @classmethod
    def of(cls, rng: random.Random) -> Weather:
        lost, late, refused, repeated = (rng.choice((0.0, 0.02, 0.15)) for _ in range(4))
        return cls(lost, late, refused, repeated, rng.choice((0.1, 0.3, 0.6)), rng.random() * 0.3)


class Store:
    """Objects of one shard. Every method is one moment."""

    def __init__(self, flaws: Flaws) -> None:
        self.flaws = flaws
        self.terms: dict[int, str] = {}
        self.times_to_live: dict[int, float] = {}
        self.alive: dict[int, int] = {}
        self.parts: dict[int, tuple[Part, list[Entry]]] = {}
        self.manifests: dict[int, tuple[Position, list[Entry]]] = {}
        """Last frame in the files → where to go on behind them, and what is in them."""

    def look(self, replaced: int) -> Seen:
        term = max(self.terms, default=0)
        alive = self.alive.get
        found = Seen(term, self.terms.get(term, ""), alive(term), self.newest_manifest()[0], alive(replaced))
        return msgspec.structs.replace(found, time_to_live=self.times_to_live.get(term, 0.0))

    def create_term(self, term: int, nonce: str, time_to_live: float) -> Result:
        if term in self.terms and not self.flaws.ignores_condition:
            return Result.TAKEN
        self.terms[term], self.times_to_live[term] = nonce, time_to_live
        return Result.DONE

    def create_part(self, part: Part, entries: list[Entry]) -> Result:
        if part.number in self.parts and not self.flaws.ignores_condition:
            return Result.TAKEN
        self.parts[part.number] = part, entries
        return Result.DONE

    def create_manifest(self, begin: Position, log: list[Entry]) -> Result:
        if begin.frame_no in self.manifests:
            return Result.TAKEN
        self.manifests[begin.frame_no] = begin, log
        return Result.DONE

    def newest_manifest(self) -> tuple[Position, list[Entry]]:
        return self.manifests[max(self.manifests)] if self.manifests else (BEGIN, [])

    def remove(self, numbers: list[int]) -> Result:
        for number in numbers:
            found = self.parts.get(number)
            if found is not None and (found[0].kind is Kind.FRAMES or self.flaws.removes_fences):
                del self.parts[number]
        return Result.DONE


@dataclass
class Disk:
    """What a directory has; `position` is written now and then, the nonces before a term is created and when the shard
    is held, the log always."""

    log: list[Entry] = field(default_factory=list)
    position: Position = BEGIN
    held: str = ""
    claimed: str = ""
    restored: bool = False
    """Whether frames of another machine are in it."""

    def copy(self) -> Disk:
        return replace(self, log=self.log.copy())


class Host:
    """A machine's clock, and what is wrong with it."""

    def __init__(self, rng: random.Random) -> None:
        self.rate = 1 + rng.uniform(-DRIFT, DRIFT)
        self.offset = rng.uniform(0, 1000)
        self.stopped_until = 0.0
        self.cut_until = 0.0


class Process:
    """At most one process at a time, of one kind, on a machine."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.incarnation = 0


class Machine(Process):
    """One shard's directory on a machine, and at most one process."""

    def __init__(self, world: ShardWorld, name: str, disk: Disk, host: Host | None = None) -> None:
        super().__init__(host or Host(world.rng))
        self.world = world
        self.name = name
        self.disk = disk
        self.timing = TIMING
        self.replica: Replica | None = None
        self.down_until = 0.0
        self.synced = len(disk.log)
        self.shipped = 0
        self.next_seq = self.usable_seq = self.ceiling = 0

    @property
    def now(self) -> float:
        return self.host.offset + self.host.rate * self.world.now

    def start(self) -> None:
        self.incarnation += 1
        nonce = f"{self.name}.{self.incarnation}"
        self.synced = len(self.disk.log)
        self.shipped = 0
        previous = self.disk.held, self.disk.claimed
        newest = NewestTerm(nonce, self.timing, previous, automatic=self.world.automatic)
        self.replica = self.world.flaws.replica(newest, self.disk.position)

    def stop(self, *, power: bool = False, for_s: float = 0.0) -> None:
        """End the process. Without power, what was not synced is gone."""
        self.replica = None
        self.down_until = self.world.now + for_s
        if power:
            del self.disk.log[self.synced :]

    @property
    def holds(self) -> bool:
        return self.replica is not None and self.replica.state in HOLDERS

    def serving(self) -> bool:
        return self.replica is not None and self.replica.serving(self.now)

    def turn(self) -> None:
        if self.replica is None:
            if self.world.now >= self.down_until:
                self.start()
            return
        if self.holds:
            self.replica.offer(self.synced)
            self.synced = len(self.disk.log)
        if self.serving():
            self.world.read_by(self)
            self.write()
        self.do(self.replica.tick(self.now))
        if self.replica is not None and self.world.chance(0.05):
            self.disk.position = self.replica.position

    def write(self) -> None:
        """Write as clients would, if the shard takes writes."""
        assert self.replica is not None
        rng = self.world.rng
        if self.replica.state.value != "holding":
            return
        for _ in range(rng.randrange(3)):
            self.disk.log.append(Entry("fsync", self.world.ident()))
        self.write_weakly()

    def write_weakly(self) -> None:
        """Acknowledge a record of class `disk`, or reserve seqs for such."""
        if self.world.rng.random() < 0.5:
            if self.next_seq <= self.usable_seq:
                entry = Entry("disk", self.world.ident(), self.next_seq)
                self.disk.log.append(entry)
                self.world.named(self, entry)
                self.next_seq += 1
            elif self.ceiling <= self.usable_seq:
                self.ceiling = self.next_seq + BLOCK
                self.disk.log.append(Entry("ceiling", 0, self.ceiling))

    def hold(self, term: int) -> None:
        log = self.disk.log
        self.world.held(self, term)
        assert self.replica is not None
        self.shipped = self.replica.position.frame_no
        self.ceiling = max((e.seq for e in log if e.kind == "ceiling"), default=0)
        self.usable_seq = max((e.seq for e in log[: self.shipped] if e.kind == "ceiling"), default=0)
        self.next_seq = max((e.seq for e in log if e.kind == "disk"), default=0) + 1
        if not (self.world.flaws.keeps_boot and not self.disk.restored):
            self.next_seq = max(self.next_seq, self.ceiling + 1)
        self.disk.restored = False
        self.disk.held = self.replica.nonce
        self.synced = len(log)

    def acknowledge(self, upto_no: int) -> None:
        assert self.replica is not None
        for number in range(self.shipped + 1, upto_no + 1):
            entry = self.disk.log[number - 1]
            if entry.kind == "fsync":
                self.world.acknowledged(self, number, entry)
            elif entry.kind == "ceiling":
                self.usable_seq = max(self.usable_seq, entry.seq)
        self.shipped = max(self.shipped, upto_no)

    def do(self, outputs: list[Output]) -> None:
        for each in outputs:
            if self.replica is None:
                return
            if isinstance(each, Apply):
                self.answer(each, self.apply(each.part))
            elif isinstance(each, Request):
                if isinstance(each, CreateTerm):
                    self.disk.claimed = "" if each.living else self.replica.nonce
                self.world.send(self, each)
            elif isinstance(each, Hold):
                self.hold(each.term)
            elif isinstance(each, Shipped):
                self.acknowledge(each.part.last_no)
                if self.world.chance(self.world.weather.manifests):
                    self.make_manifest()
            elif isinstance(each, Ended):
                self.ended(each)

    def ended(self, how: Ended) -> None:
        self.stop(for_s=self.world.rng.choice((0.1, 8.0)))

    def answer(self, request: Request, answer: Answer) -> None:
        if self.replica is not None:
            self.do(self.replica.answered(request, answer, self.now))

    def apply(self, part: Part) -> Result:
        entries = self.world.fetched[part]
        log = self.disk.log
        mine = log[part.first_no - 1 : part.last_no]
        if len(log) < part.first_no - 1 or mine != entries[: len(mine)]:
            return Result.DONE if self.world.flaws.keeps_tail else Result.DIFFERS
        if len(mine) < len(entries):
            self.disk.restored = True
            log.extend(entries[len(mine) :])
        self.synced = len(log)
        return Result.DONE

    def restore(self, found: tuple[Position, list[Entry]]) -> None:
        position, log = found
        self.disk.log, self.disk.position, self.disk.restored = log.copy(), position, True
        self.synced = len(log)

    def make_manifest(self, made: Callable[[], None] = lambda: None) -> None:
        """A manifest with files as of a shipped frame, and then retention. Both may be late: they are requests as any
        other. `made` is called when the manifest is known to be there."""
        assert self.replica is not None
        store, position = self.world.store, self.replica.position
        frame_no = position.frame_no if self.world.chance(0.5) else self.world.rng.randint(0, position.frame_no)
        needed = [
            part.number for part, _ in store.parts.values() if part.last_no > frame_no and part.kind is Kind.FRAMES
        ]
        first = min(needed, default=position.part + 1)
        begin, log = Position(first - 1, frame_no), self.disk.log[:frame_no]
        self.disk.position = position

        def remove(answer: Answer) -> None:
            if answer in (Result.DONE, Result.TAKEN):
                made()
            numbers = [number for number in store.parts if number < first] if answer is Result.DONE else []
            for some in (numbers[::2], numbers[1::2]):
                self.world.request(self, partial(store.remove, some), lambda _: None)

        if self.world.flaws.removes_without_manifest:
            remove(Result.DONE)
        else:
            self.world.request(self, lambda: store.create_manifest(begin, log), remove)


class Timeline:
    """What is to happen, in its order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, call))

    def pass_time(self, until: float, enough: Callable[[], bool] = lambda: False) -> bool:
        """Let everything happen that is to happen until then. Returns whether it was `enough` before."""
        while self._events and self._events[0][0] < until:
            self.now, _, call = heapq.heappop(self._events)
            call()
            if enough():
                return True
        return False


class ShardWorld:
    """One shard's objects, the network to them, and what must be true of the machines that have the shard."""

    def __init__(self, rng: random.Random, weather: Weather, time: Timeline, flaws: Flaws) -> None:
        self.rng = rng
        self.flaws = flaws
        self.weather = weather
        self.time = time
        self.automatic = True
        """Whether machines take over by themselves. Else only an operator's word makes them."""
        self.store = Store(flaws)
        self.settled = False
        self.idents = 0
        self.fetched: dict[Part, list[Entry]] = {}
        self.acked: dict[int, int] = {}
        """Frame number → record."""
        self.ackers: dict[int, str] = {}
        """Term → the process that acknowledges in its name."""
        self.seqs: dict[int, int] = {}
        self.newest = 0
        """The newest term that was held, and since when."""
        self.newest_since = 0.0
        self.holds = 0
        self.copied = False
        """Whether two machines had the same directory."""
        self.machines: Sequence[Machine] = []

    # Chance and time

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def ident(self) -> int:
        self.idents += 1
        return self.idents

    @property
    def now(self) -> float:
        return self.time.now

    def at(self, time: float, call: Callable[[], None]) -> None:
        self.time.at(time, call)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def on(self, process: Process, call: Callable[[], None]) -> None:
        """Run a call in a process, when its machine is not stopped."""
        if process.host.stopped_until > self.now:
            self.at(process.host.stopped_until + self.rng.random() * 0.01, lambda: self.on(process, call))
        else:
            call()

    # The network

    def request(self, process: Process, execute: Callable[[], A], answered: Callable[[A | Result], None]) -> None:
        """One request to the store; `answered` may be called more than once, as an answer may be repeated."""
        rng, weather, host = self.rng, self.weather, process.host
        incarnation = process.incarnation
        there, back = rng.uniform(0.003, 0.05), rng.uniform(0.003, 0.05)
        sent = got = True
        refused = executed = False
        if not self.settled:
            if host.cut_until > self.now or self.chance(weather.lost):
                sent = False
            elif self.chance(weather.late):
                there = rng.choice((rng.uniform(0.4, 2), rng.uniform(2, 20)))
            if self.chance(weather.refused):
                refused, executed = True, self.chance(0.3)  # 409 or 5xx: nothing is said about what was done
            got = host.cut_until <= self.now + there and not self.chance(weather.lost)

        def deliver(answer: A | Result) -> None:
            if process.incarnation == incarnation:
                self.on(process, lambda: answered(answer) if process.incarnation == incarnation else None)

        def arrive() -> None:
            answer: A | Result = Result.UNKNOWN
            if not refused or executed:
                answer = execute()
            if got:
                self.after(back, partial(deliver, Result.UNKNOWN if refused else answer))
                if not self.settled and self.chance(weather.repeated):
                    self.after(back + rng.uniform(0, 3), partial(deliver, answer))

        if sent:
            self.after(there, arrive)
        if not sent or not got or there + back > TIMEOUT:
            self.after(TIMEOUT, partial(deliver, Result.UNKNOWN))

    def send(self, machine: Machine, request: Request) -> None:
        replica = machine.replica
        assert replica is not None

        found: tuple[Position, list[Entry]] = (Position(), [])

        def answered(answer: Answer) -> None:
            if machine.replica is not replica:
                return
            if isinstance(answer, Position) and is_open(replica, request):
                machine.restore(found)
            machine.answer(request, answer)

        nonce = replica.nonce
        entries: list[Entry] = []
        if isinstance(request, CreatePart):
            entries = machine.disk.log[request.part.first_no - 1 : request.part.last_no]

        def execute() -> Answer:
            nonlocal found
            match request:
                case Look(replaced):
                    return self.store.look(replaced)
                case CreateTerm(term):
                    return self.store.create_term(term, nonce, machine.timing.time_to_live)
                case Renew(term, counter):
                    self.store.alive[term] = counter
                    return Result.DONE
                case CreatePart(part):
                    return self.store.create_part(part, entries)
                case ReadPart(number):
                    part_found = self.store.parts.get(number)
                    if part_found is None:
                        return Result.ABSENT
                    self.fetched[part_found[0]] = part_found[1]
                    return part_found[0]
                case Restore():
                    found = self.store.newest_manifest()
                    return found[0]
            raise AssertionError(request)

        self.request(machine, execute, answered)

    # Invariants

    def held(self, machine: Machine, term: int) -> None:
        self.holds += 1
        if term < self.newest:
            return  # it was stopped while it took over: it may answer old reads for a while, and acknowledge nothing
        log = machine.disk.log
        for number, ident in self.acked.items():
            if number > len(log) or log[number - 1].ident != ident:
                raise Violation(f"kept: record {ident}, acknowledged as frame {number}, is missing at {machine.name}")
        records = [entry.ident for entry in log if entry.kind != "ceiling"]
        if len(set(records)) != len(records):
            raise Violation(f"kept: a record is twice in the log of {machine.name}")
        if term > self.newest:
            self.newest, self.newest_since = term, self.now

    def acknowledged(self, machine: Machine, number: int, entry: Entry) -> None:
        assert machine.replica is not None
        term, process = machine.replica.term, machine.replica.nonce
        if self.ackers.setdefault(term, process) != process:
            raise Violation(f"one: {process} and {self.ackers[term]} acknowledge in term {term}")
        if self.acked.setdefault(number, entry.ident) != entry.ident:
            raise Violation(f"kept: frame {number} is acknowledged as two records")
        for other in self.machines:
            if other.holds and other.replica is not None and other.replica.term > term:
                log = other.disk.log
                if number > len(log) or log[number - 1].ident != entry.ident:
                    raise Violation(f"kept: {process} acknowledges frame {number}, which a later holder lacks")

    def named(self, machine: Machine, entry: Entry) -> None:
        if self.seqs.setdefault(entry.seq, entry.ident) != entry.ident:
            raise Violation(f"seqs: {machine.name} gives seq {entry.seq} to a second record")

    def read_by(self, machine: Machine) -> None:
        assert machine.replica is not None
        longest = 0 if self.automatic and not self.copied else TIMING.silence / (1 - DRIFT)
        if machine.replica.term < self.newest and self.now - self.newest_since > longest:
            raise Violation(f"silence: {machine.name} reads {self.now - self.newest_since:.1f} s after its term")


class World(ShardWorld):
    """The machines of one shard, and what happens to them."""

    def __init__(self, seed: int, flaws: Flaws = NO_FLAWS) -> None:
        rng = random.Random(seed)
        super().__init__(rng, Weather.of(rng), Timeline(), flaws)
        self.automatic = self.chance(0.8)
        self.machines: list[Machine] = [Machine(self, name, Disk()) for name in "abc"[: rng.choice((2, 3))]]

    def misfortune(self) -> None:
        rng = self.rng
        machine = rng.choice(self.machines)
        match rng.randrange(10 if self.automatic else 16):
            case 0 | 1:
                machine.stop(for_s=rng.choice((0.1, 0.1, 5.0)))
            case 2:
                machine.stop(power=True, for_s=rng.choice((0.5, 6.0)))
            case 3 | 4:
                machine.host.stopped_until = self.now + rng.choice((0.5, 3.0, 5.0, 15.0))
            case 5 | 6:
                machine.host.cut_until = self.now + rng.choice((0.7, 3.0, 6.0, 15.0))
            case 7:
                if machine.replica is not None:
                    machine.replica.drain()
            case 8:
                if rng.random() < 0.5:
                    machine.stop(for_s=0.5)
                    machine.disk = Disk()
                elif len(self.machines) < 5:  # a second service on a copy of the directory
                    self.copied = True
                    copy = Machine(self, "abcdefg"[len(self.machines)], machine.disk.copy())
                    self.machines.append(copy)
                    self.at(self.now, partial(self.turns, copy))
            case _:  # an operator, or several at once
                for each in [machine] if rng.random() < 0.7 else self.machines:
                    if each.replica is not None:
                        each.replica.newest.take_over()

    def turns(self, machine: Machine) -> None:
        if machine not in self.machines:
            return
        self.on(machine, machine.turn)
        self.after(STEP * self.rng.uniform(0.6, 1.4), lambda: self.turns(machine))

    def fates(self) -> None:
        if self.now < FAULTS_UNTIL:
            if self.chance(self.weather.stops):
                self.misfortune()
            self.after(1.0, self.fates)

    def settle(self) -> None:
        """All faults end; only a machine with an empty disk is left, and an operator who has it take over. What others
        have sent may still arrive: even a term."""
        self.settled = True
        for machine in self.machines:
            machine.incarnation += 1
        last = Machine(self, "z", Disk())
        self.machines = [last]
        last.start()
        self.insist(last)
        self.turns(last)

    def insist(self, machine: Machine) -> None:
        if machine.replica is not None and not machine.holds:
            machine.replica.newest.take_over()
            self.after(2 * TIMING.time_to_live, lambda: self.insist(machine))

    def begin(self) -> None:
        for machine in self.machines:
            self.at(self.rng.random(), partial(self.turns, machine))

    def pass_time(self, until: float, enough: Callable[[], bool] = lambda: False) -> bool:
        return self.time.pass_time(until, enough)

    def run(self) -> None:
        self.begin()
        self.at(2.0, self.fates)
        self.at(SETTLED_AT, self.settle)
        if self.pass_time(ENDS_AT, lambda: self.settled and self.machines[0].serving()):
            return
        raise Violation("alive: no machine holds the shard when all faults are over")


def run(seed: int, flaws: Flaws = NO_FLAWS) -> str:
    """Run one schedule. Returns the broken invariant, or an empty text."""
    world = World(seed, flaws)
    try:
        world.run()
    except (Violation, AssertionError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
