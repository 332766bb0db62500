"""A world for the caps over all shards: shards that grow and shrink, their treasurers, and messages between them.

One seed is one schedule. The shards' `Allowance` and the `Treasurer` are the real ones; what they hold, the supervisor
and the messages are made up. Messages are late and overtake each other. Any process dies at any moment; some shards
cannot start for long. A treasurer may be replaced while it still runs, on a machine that may not answer any more, and
which still reaches a shard that the new one cannot. `run` returns the first broken claim:

    cap         what all shards hold, and what their limits let them hold, is at most the cap. A shard that cannot start
                and was taken to hold its even share may hold more than that, see `World.excess`
    booked      no limit is larger than the treasurer has booked
    refusals    nothing is refused for want of room when there is ample room, once everything is calm
    progress    once everything is calm, a request is carried out or refused soon
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from proto.ipc.operations import Room, RoomOrder, RoomReport, RoomWant
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.changes.allowance import PATIENCE_S, Allowance, Waiter
from shardd.changes.treasurer import Treasurer

SHARDS = 4
CAP = Room(40, 400)
LIMITS = Limits(max_topics=CAP.topics, max_total_bytes=CAP.bytes)
SHARE = Room(CAP.topics // SHARDS, CAP.bytes // SHARDS)
TICK_S = 0.01
ASK_AGAIN = 25
"""Ticks, as the others."""
DELAYS = (1, 1, 1, 2, 3, 30, 90)
CALM_AT, QUIET_AT, END_AT = 700, 950, 1350
PURGE_EVERY = 130
"""Ticks between two moments, once it is quiet, at which shards lose most of what they hold."""
UNKNOWN = 15
"""Ticks after which room that was made is found."""
LARGEST = Room(2, 12)
AMPLE = Room(LARGEST.topics * SHARDS, LARGEST.bytes * SHARDS)
"""Room that is more than what is on its way."""
ERROR = TopicsError(ErrorCode.THROTTLED, "", {"limit": "max_total_bytes"})


class Violation(Exception):
    pass


@dataclass(frozen=True)
class Flaws:
    """How the protocol is broken on purpose."""

    treasurer: type[Treasurer] = Treasurer
    allowance: type[Allowance] = Allowance
    always_serving: bool = False


NO_FLAWS = Flaws()


@dataclass
class Staged:
    """A change that is not visible yet."""

    topics: int = 0
    bytes: int = 0
    promised: int = 0


class Files:
    """What a shard holds."""

    def __init__(self, topics: int, size: int) -> None:
        self.topics = topics
        self.bytes = size
        self.changes: list[Staged] = []

    @property
    def staged(self) -> Room:
        return Room(
            self.topics + sum(each.topics for each in self.changes),
            self.bytes + sum(each.promised for each in self.changes),
        )

    @property
    def visible(self) -> Room:
        return Room(self.topics, self.bytes)

    @property
    def lasting(self) -> Room:
        staged = self.staged
        return Room(staged.topics - sum(min(each.topics, 0) for each in self.changes), staged.bytes)

    def commit(self, count: int) -> None:
        for each in self.changes[:count]:
            self.topics += each.topics
            self.bytes += each.bytes
        del self.changes[:count]

    def crash(self, rng: random.Random) -> None:
        """The log has some of the staged changes."""
        self.commit(rng.randint(0, len(self.changes)))
        self.changes.clear()


@dataclass
class View:
    """What the supervisor says of a shard."""

    phase: str = "ready"
    incarnation: int = 1


@dataclass
class Shard:
    index: int
    files: Files
    allowance: Allowance
    incarnation: int = 1
    up: bool = True
    back_at: int = 0
    asked_at: int = -ASK_AGAIN
    cut_off: bool = False
    """The supervisor takes it for one that cannot start, but it serves."""
    views: list[View] = field(default_factory=list)
    treasurer: Treasurer | None = None
    acting: bool = False


Message = tuple[int, float, Callable[[], None]]


class World:
    def __init__(self, seed: int, flaws: Flaws) -> None:
        self.rng = random.Random(seed)
        self.flaws = flaws
        self.now = 0
        self.term = 1
        self.net: list[Message] = []
        self.orders_on_way: list[tuple[int, RoomOrder]] = []
        self.views = [View() for _ in range(SHARDS)]
        self.shards = [self.shard(i, Files(self.rng.randrange(4), self.rng.randrange(40))) for i in range(SHARDS)]
        self.ghost: tuple[Treasurer, list[View], int] | None = None
        """A treasurer that was replaced and still runs, what it was told of the shards, and when it ends."""
        self.excess = [Room(0, 0)] * SHARDS
        """What a shard may hold beyond the even share that it was taken to hold."""
        self.assumptions: set[tuple[tuple[int, int, int], int]] = set()
        """Which treasurer took which shard to hold its even share."""
        self.purged_at = 0
        self.done = self.refusals = self.requests = 0
        self.open: dict[int, int] = {}
        """When each request came that is not answered."""

    def shard(self, index: int, files: Files, incarnation: int = 1) -> Shard:
        allowance = self.flaws.allowance(LIMITS, files)
        allowance.bind(alone=False)
        return Shard(index, files, allowance, incarnation)

    @property
    def calm(self) -> bool:
        return self.now >= CALM_AT

    @property
    def seconds(self) -> float:
        return self.now * TICK_S + 1

    def send(self, deliver: Callable[[], None]) -> None:
        delay = self.rng.choice(DELAYS[:4] if self.calm else DELAYS)
        self.net.append((self.now + delay, self.rng.random(), deliver))

    # The supervisor

    def changed(self, index: int, phase: str) -> None:
        self.views = list(self.views)
        self.views[index] = View(phase, self.shards[index].incarnation)

    def deaths(self) -> None:
        for shard in self.shards:
            if shard.cut_off:
                if self.now >= shard.back_at or self.calm:
                    self.end(shard, self.rng.randrange(5, 40), "down")
            elif shard.up:
                if not self.calm and self.rng.random() < 0.006:
                    failed = self.rng.random() < 0.2
                    self.end(shard, self.rng.randrange(60, 200) if failed else self.rng.randrange(5, 60), "down")
                    if failed:
                        self.changed(shard.index, "failed")
            elif self.now >= shard.back_at:
                fresh = self.shard(shard.index, shard.files, shard.incarnation + 1)
                self.shards[shard.index] = fresh
                self.changed(shard.index, "ready")

    def end(self, shard: Shard, ticks: int, phase: str) -> None:
        shard.files.crash(self.rng)
        shard.up = shard.cut_off = shard.acting = False
        shard.back_at = self.now + ticks
        shard.incarnation += 1
        self.changed(shard.index, phase)

    def takeover(self) -> None:
        """Another machine gets the treasurer's shard, and cannot reach one of the others. The old treasurer runs on."""
        acting = next((shard for shard in self.shards if shard.up and shard.acting), None)
        others = [shard for shard in self.shards if shard.up and not shard.acting and not shard.cut_off]
        if self.calm or self.ghost or acting is None or len(others) < 2 or self.rng.random() > 0.008:
            return
        assert acting.treasurer is not None
        self.ghost = acting.treasurer, list(self.views), self.now + 200
        self.term += 1
        self.end(acting, 5, "down")
        cut = others[-1]
        cut.cut_off, cut.back_at = True, self.now + 150
        self.changed(cut.index, "failed")

    # Messages

    def treasurers(self) -> None:
        for shard in self.shards:
            if not shard.up or shard.cut_off:
                continue
            if not shard.views or self.rng.random() < 0.5 or self.calm:
                shard.views = self.views
            views = shard.views
            first = next((i for i, view in enumerate(views) if view.phase != "failed"), 0)
            before, shard.acting = shard.acting, first == shard.index
            if not shard.acting:
                continue
            if not before:
                epoch = self.term, sum(view.incarnation for view in views), shard.index
                if shard.treasurer is None or epoch > shard.treasurer.epoch:
                    shard.treasurer = self.flaws.treasurer(CAP, SHARDS, epoch)
            assert shard.treasurer is not None
            self.act(shard, shard.treasurer, views, serving=True)
        if self.ghost is not None:
            treasurer, views, until = self.ghost
            self.act(None, treasurer, views, serving=self.flaws.always_serving)
            if self.now > until or self.calm:
                self.ghost = None

    def act(self, home: Shard | None, treasurer: Treasurer, views: list[View], *, serving: bool) -> None:
        for index, view in enumerate(views):
            here = view.phase == "ready"
            treasurer.seen(index, view.incarnation, here=here, failed=view.phase == "failed")
            if home is not None and treasurer.accounts[index].absent and treasurer.accounts[index].booked is None:
                self.assumed(treasurer, index)
        for index, order in treasurer.orders(self.seconds, serving=serving):
            self.orders_on_way.append((index, order))
            self.send(partial(self.deliver, home, treasurer, index, views[index].incarnation, order))
            if not self.calm and self.rng.random() < 0.2:  # the treasurer does not wait for the answer
                self.send(partial(self.lost, home, treasurer, index, order))

    def assumed(self, treasurer: Treasurer, index: int) -> None:
        """A treasurer takes a shard to hold its even share. If it holds more, that is no fault of the protocol."""
        if (treasurer.epoch, index) in self.assumptions:
            return
        self.assumptions.add((treasurer.epoch, index))
        shard = self.shards[index]
        most = shard.files.lasting
        if shard.up:
            limits = [order.limit for to, order in self.orders_on_way if to == index and order.limit is not None]
            for limit in (shard.allowance.limit, *limits):
                most = Room(max(most.topics, limit.topics), max(most.bytes, limit.bytes))
        before = self.excess[index]
        self.excess[index] = Room(
            max(most.topics - SHARE.topics, before.topics), max(most.bytes - SHARE.bytes, before.bytes)
        )

    def deliver(self, home: Shard | None, treasurer: Treasurer, index: int, incarnation: int, order: RoomOrder) -> None:
        self.orders_on_way = [each for each in self.orders_on_way if each[1] is not order]
        shard = self.shards[index]
        reached = shard.up and shard.incarnation == incarnation and (home is None or not shard.cut_off)
        if not reached or self.rng.random() < (0 if self.calm else 0.05):
            if self.rng.random() < 0.5 and reached:
                shard.allowance.obey(order)  # its answer is lost
            self.send(partial(self.lost, home, treasurer, index, order))
            return
        report = shard.allowance.obey(order)
        self.send(partial(self.reported, home, treasurer, index, order, report))

    def lost(self, home: Shard | None, treasurer: Treasurer, index: int, order: RoomOrder) -> None:
        if self.lives(home, treasurer):
            treasurer.lost(index, order)

    def reported(
        self, home: Shard | None, treasurer: Treasurer, index: int, order: RoomOrder, report: RoomReport
    ) -> None:
        if self.lives(home, treasurer):
            counts = treasurer.reported(index, order, report)
            if home is not None and not counts and report.at > order.at:
                home.acting = False

    def lives(self, home: Shard | None, treasurer: Treasurer) -> bool:
        if home is None:
            return self.ghost is not None and self.ghost[0] is treasurer
        return home.up and self.shards[home.index] is home

    def ask(self, shard: Shard) -> None:
        allowance = shard.allowance
        if not allowance.unsettled:
            return
        if allowance.news.is_set() or self.now - shard.asked_at >= ASK_AGAIN:
            allowance.news = type(allowance.news)()
            shard.asked_at = self.now
            wish = allowance.wish()
            if wish is not None:
                want = RoomWant(shard.index, allowance.report.at, allowance.report.limit, wish, shard.incarnation)
                self.send(partial(self.wanted, shard.cut_off, want))
        if self.rng.random() < 0.2:
            allowance.tick(self.seconds)

    def wanted(self, cut_off: bool, want: RoomWant) -> None:
        if cut_off:
            if self.ghost is not None:
                self.ghost[0].wanted(want, self.seconds)
            return
        for shard in self.shards:
            if shard.up and shard.acting and shard.treasurer is not None:
                shard.treasurer.wanted(want, self.seconds)

    # What shards do

    def work(self, shard: Shard) -> None:
        files, rng = shard.files, self.rng
        quiet = self.now >= QUIET_AT
        if rng.random() < 0.3:
            files.commit(rng.randint(0, len(files.changes)))
        if rng.random() < 0.06 and not quiet:
            if rng.random() < 0.5 and files.staged.topics > 0:
                files.changes.append(Staged(topics=-1))
            else:
                files.bytes = max(files.bytes - rng.randrange(1, 40), 0)
        if quiet and (self.now - QUIET_AT) % PURGE_EVERY == 0:
            files.commit(len(files.changes))
            files.topics, files.bytes, self.purged_at = files.topics // 4, files.bytes // 4, self.now
        if rng.random() < 0.02 and not quiet:
            shard.allowance.want(rng.randrange(1, LARGEST.bytes), self.seconds)
        if rng.random() < (0.15 if quiet else 0.3):
            topics = rng.choice((0, 0, 0, 0, 1, LARGEST.topics))
            size = rng.randint(1, LARGEST.bytes) if not topics or rng.random() < 0.5 else 0
            self.requests += 1
            self.open[self.requests] = self.now
            self.attempt(shard, topics, size, self.requests, self.seconds + PATIENCE_S)

    def attempt(self, shard: Shard, topics: int, size: int, ident: int, until_s: float) -> None:
        if shard.allowance.fits(topics, size):
            shard.files.changes.append(Staged(topics, self.rng.randint(0, size), size))
            del self.open[ident]
            self.done += 1
            return
        again = partial(self.attempt, shard, topics, size, ident, until_s)
        refuse = partial(self.refuse, topics, size, ident)
        shard.allowance.wait(Waiter("t", topics, size, size, until_s, again, refuse, ERROR))

    def refuse(self, topics: int, size: int, ident: int, error: TopicsError) -> None:
        came = self.open.pop(ident)
        self.refusals += 1
        if came <= max(QUIET_AT, self.purged_at) + UNKNOWN:
            return
        held = self.held()
        full = held.topics + topics > CAP.topics - AMPLE.topics or held.bytes + size > CAP.bytes - AMPLE.bytes
        if error.code is not ErrorCode.THROTTLED:
            raise Violation(f"tick {self.now}: it was not known what is free")
        if not full:
            raise Violation(f"tick {self.now}: refused ({topics}, {size}) although only {held} is held")

    def held(self) -> Room:
        rooms = [each.files.staged for each in self.shards]
        return Room(sum(each.topics for each in rooms), sum(each.bytes for each in rooms))

    # Claims

    def check(self) -> None:
        within = True
        for what, cap in enumerate(CAP):
            most = 0
            for shard in self.shards:
                held = max(shard.files.visible[what], shard.files.staged[what])
                most += max(held, shard.allowance.limit[what]) if shard.up else held
            excess = sum(each[what] for each in self.excess)
            within = within and most <= cap
            if most > cap + excess:
                raise Violation(f"tick {self.now}: {most} of at most {cap} + {excess}")
        treasurers = [shard.treasurer for shard in self.shards if shard.up and shard.acting and shard.treasurer]
        for home in treasurers:
            for shard, account in zip(self.shards, home.accounts, strict=True):
                same = shard.allowance.report.at[:3] == home.epoch and shard.incarnation == account.life
                if shard.up and same and account.booked is not None:
                    limit, booked = shard.allowance.limit, account.booked
                    if limit.topics > booked.topics or limit.bytes > booked.bytes:
                        raise Violation(f"tick {self.now}: a limit of {limit}, booked as {booked}")
        # Orders on their way may raise limits up to the bookings.
        if within and self.calm and treasurers and all(map(self.within_cap, treasurers)):
            self.excess = [Room(0, 0)] * SHARDS

    def within_cap(self, treasurer: Treasurer) -> bool:
        """Whether it is booked what each shard has, and all bookings together are within the cap."""
        booked = [account.booked for account in treasurer.accounts]
        rooms = [each for each in booked if each is not None]
        return len(rooms) == SHARDS and all(sum(each[what] for each in rooms) <= cap for what, cap in enumerate(CAP))

    def run(self) -> None:
        for self.now in range(END_AT):
            self.deaths()
            self.takeover()
            self.treasurers()
            for shard in self.shards:
                if shard.up:
                    self.work(shard)
                    self.ask(shard)
            due = sorted((m for m in self.net if m[0] <= self.now), key=lambda m: m[:2])
            self.net = [m for m in self.net if m[0] > self.now]
            for _, _, deliver in due:
                deliver()
            self.check()
        late = [ident for ident, came in self.open.items() if QUIET_AT < came < END_AT - PATIENCE_S / TICK_S - 20]
        if late:
            raise Violation(f"{len(late)} requests got no answer")


def run(seed: int, flaws: Flaws = NO_FLAWS) -> str:
    """The first broken claim of a schedule; empty if there is none."""
    try:
        World(seed, flaws).run()
    except Violation as violation:
        return str(violation)
    return ""
