"""The treasurer: divides the caps over all shards among them. It decides, and does no I/O.

Each shard has a *limit* of topics and one of bytes, and grows within it without asking (`shardd.changes.allowance`).
The treasurer sets the limits. It *books* for each shard the largest limit that the shard may have. The bookings
together are at most the cap, so what all shards hold is at most the cap.

Messages, of which each may be late, lost, or overtaken by a later one:

    RoomWant     shard → treasurer    at, limit, want    its limit lacks `want`; with the number of its process
    RoomOrder    treasurer → shard    at, then one of    nothing: say what the limit is
                                                         a limit: it may grow up to this
                                                         give back: the limit is what the shard holds
    RoomReport   its reply            at, limit          the last order that the shard has obeyed, and its limit

`at` is (epoch, number). The epoch names the treasurer, and a later treasurer has a larger one. The number counts its
orders to one shard.

Six rules keep the sum of the bookings true, and refusals right:

1. A shard obeys an order only if its `at` is larger than that of the last one obeyed, and reports with it.
2. A booking changes only by an order that raises it, and by a report with the number of the last order. After any other
   report the shard may yet obey an order on its way.
3. A shard that has died stays booked until its successor reports. Its log has what it did: the successor holds no
   more than the booking, and its limit is what it holds.
4. Nothing is granted before each shard has reported to this treasurer, or cannot start. One that cannot start and has
   never reported is booked with an even share of the cap.
5. A want is refused only after all other shards have given back; those that cannot start are not asked.
6. Orders, reports and wants leave only while the shard that sends them may answer requests. Afterwards another machine
   may have it, and as a successor may have got more room.

*Epochs.* The treasurer is the first shard that can start, by the supervisor's report. Its epoch is (sum of all shards'
terms, sum of all shards' incarnations, its index) when it began: each number only grows, so a later treasurer has the
larger epoch. Where each shard has a holder of its own, the treasurer is the holder of shard 0, and its epoch begins
with its term. A new treasurer knows nothing. It learns the limits from the reports, and shards keep them meanwhile.

*How much.* A shard that reports for the first time gets its part of one half of what is free. A want that fits gets as
much on top. So a shard asks seldom, until little is free. While a want does not fit, nothing is added on top.

*When something dies.*

    the treasurer        limits stay as they are, and shards use what they have left. The next one asks for the limits
    a shard              its booking stays. It gets the order to report when it is there again
    a message            an order without an answer is followed by one to report, because it may have been obeyed; a
                         shard sends its want again
    a shard hangs        a want that does not fit waits for it, and its shard gives up (`PATIENCE_S` of the allowance)

An answer that all is used up is given for `KNOWN_S` without another look, so a full cap costs one round of messages in
that time, whatever is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from proto.ipc.operations import Mark, Room, RoomOrder, RoomReport, RoomWant

KNOWN_S = 0.1
"""For how long it is known that a shard has given back what it did not use."""
NO_CAP = (1 << 63) - 1
"""The limit where there is no cap."""


@dataclass(slots=True)
class Account:
    """What the treasurer knows of one shard."""

    booked: Room | None = None
    """The most that the shard's limit is, or may come to be by orders on their way. None: it has not reported yet."""
    number: int = 0
    """Number of the last order."""
    life: int | str = -1
    """Names the shard's process."""
    process: int = 0
    """The number of the latest process that has sent a want."""
    here: bool = False
    """The shard takes orders."""
    absent: bool = False
    """The shard could not start, and has not reported since."""
    heard: bool = False
    """The shard's process has reported, and all of its orders since then were answered or are on their way."""
    waiting: bool = False
    """An order is on its way."""
    endowed: bool = False
    """The shard's process got its part of what was free."""
    giving_s: float | None = None
    """When the order on its way was sent, if it is one to give back."""
    gave_back_s: float = -inf
    """When the last order to give back was sent that the shard has obeyed. Since then it got no more than it wanted."""
    want: Room | None = None
    since_s: float = 0.0
    """When the want came."""

    @property
    def free_for_order(self) -> bool:
        return self.here and self.heard and not self.waiting


class Treasurer:
    def __init__(self, cap: Room, shards: int, epoch: tuple[int, int, int]) -> None:
        """`cap` is over all shards; 0 for no cap."""
        self.cap = cap
        self.epoch = epoch
        self.accounts = [Account() for _ in range(shards)]

    # What happens

    def seen(self, index: int, life: int | str, *, here: bool, failed: bool) -> None:
        """What is known of a shard: which process it is, whether it takes orders, whether it cannot start."""
        account = self.accounts[index]
        if life != account.life:
            self._succeeded(account, life)
        account.here = here
        account.absent = account.absent or failed

    def _succeeded(self, account: Account, life: int | str) -> None:
        """The shard has another process. Its booking stays (rule 3)."""
        account.life = life
        account.number += 1  # no report of the earlier process has this number
        account.heard = account.waiting = account.endowed = False
        account.giving_s, account.gave_back_s, account.want = None, -inf, None

    def wanted(self, want: RoomWant, now: float) -> None:
        """A shard needs room. A later want replaces an earlier one, and keeps its place. If another order is on its way
        to the shard, it wants again when it has obeyed. A want of an earlier process is passed over."""
        account = self.accounts[want.shard]
        if 0 < want.process < account.process:
            return
        account.process = max(account.process, want.process)
        if self._report(account, want.at, want.limit):
            if account.want is None:
                account.since_s = now
            account.want = Room(*(min(max(each, 0), NO_CAP) for each in want.want))

    def reported(self, index: int, order: RoomOrder, report: RoomReport) -> bool:
        """A shard has answered an order. Returns whether the report counts."""
        account = self.accounts[index]
        counts = self._report(account, report.at, report.limit)
        if not counts:
            self.lost(index, order)
        return counts

    def lost(self, index: int, order: RoomOrder) -> None:
        """An order got no answer: the shard may have obeyed it, or may yet do so. The booking stays."""
        account = self.accounts[index]
        if order.at == self._last(account):
            account.waiting = account.heard = False
            account.giving_s = None

    def _report(self, account: Account, at: Mark, limit: Room) -> bool:
        if at != self._last(account):  # rule 2
            return False
        if account.want is not None and account.booked is not None:
            account.want = _since_then(account.want, account.booked, limit)
        account.booked, account.heard, account.absent, account.waiting = limit, True, False, False
        if account.giving_s is not None:
            account.gave_back_s, account.giving_s = account.giving_s, None
        return True

    def _last(self, account: Account) -> Mark:
        return (*self.epoch, account.number)

    # What is to be done

    def orders(self, now: float, *, serving: bool = True) -> list[tuple[int, RoomOrder]]:
        """The orders that are to be sent now, with the indices of their shards; at most one for each. They count as
        sent. `serving`: the treasurer's shard may answer requests at this moment."""
        found: list[tuple[int, RoomOrder]] = []
        if not serving:  # rule 6
            return found
        for index, account in enumerate(self.accounts):
            if account.here and not account.heard and not account.waiting:
                found.append((index, self._order(account)))
        if self.complete:  # rule 4
            self._endow(found)
            self._answer_wants(found, now)
        return found

    @property
    def complete(self) -> bool:
        """Whether it is known, or assumed, what each shard may hold."""
        return all(account.booked is not None or account.absent for account in self.accounts)

    @property
    def free(self) -> Room:
        """What no shard is booked with."""
        shards = len(self.accounts)
        share = Room(self.cap.topics // shards, self.cap.bytes // shards)
        booked = [account.booked or share for account in self.accounts]
        return Room(
            max(self.cap.topics - sum(each.topics for each in booked), 0) if self.cap.topics else NO_CAP,
            max(self.cap.bytes - sum(each.bytes for each in booked), 0) if self.cap.bytes else NO_CAP,
        )

    def _endow(self, found: list[tuple[int, RoomOrder]]) -> None:
        free = self.free
        for index, account in enumerate(self.accounts):
            if not account.endowed and account.free_for_order:
                account.endowed = True
                part = self._part(free)
                if part.topics or part.bytes:
                    found.append((index, self._grant(account, part)))
                    account.gave_back_s = -inf

    def _answer_wants(self, found: list[tuple[int, RoomOrder]], now: float) -> None:
        wants = [(account.since_s, index, account.want) for index, account in enumerate(self.accounts) if account.want]
        scarce = any(not _fits(want, self.free) for _, _, want in wants)
        for since_s, index, want in sorted(wants):
            account, free = self.accounts[index], self.free
            if not account.free_for_order:
                continue
            if _fits(want, free):
                part = Room(0, 0) if scarce else self._part(Room(free.topics - want.topics, free.bytes - want.bytes))
                found.append((index, self._grant(account, Room(want.topics + part.topics, want.bytes + part.bytes))))
                if part.topics or part.bytes:
                    account.gave_back_s = -inf
            elif self._all_gave_back(index, since_s):  # rule 5
                given = Room(min(want.topics, free.topics), min(want.bytes, free.bytes))
                full = want.topics > free.topics, want.bytes > free.bytes
                found.append((index, self._grant(account, given, full)))
            else:
                self._recall(index, since_s, now, found)

    def _part(self, free: Room) -> Room:
        """A shard's part of one half of what is free."""
        parts = 2 * len(self.accounts)
        return Room(
            free.topics // parts if self.cap.topics else 0,
            free.bytes // parts if self.cap.bytes else 0,
        )

    def _all_gave_back(self, asker: int, since_s: float) -> bool:
        return all(
            index == asker or account.absent or account.gave_back_s >= since_s - KNOWN_S
            for index, account in enumerate(self.accounts)
        )

    def _recall(self, asker: int, since_s: float, now: float, found: list[tuple[int, RoomOrder]]) -> None:
        """Have the other shards give back what they do not use."""
        for index, account in enumerate(self.accounts):
            known = account.gave_back_s >= since_s - KNOWN_S
            if index != asker and account.free_for_order and not account.absent and not known:
                account.giving_s = now
                found.append((index, self._order(account, give_back=True)))

    def _grant(self, account: Account, more: Room, full: tuple[bool, bool] = (False, False)) -> RoomOrder:
        """Raise a limit by `more`."""
        assert account.booked is not None
        booked = account.booked
        account.booked = Room(
            booked.topics + more.topics if self.cap.topics else NO_CAP,
            booked.bytes + more.bytes if self.cap.bytes else NO_CAP,
        )
        account.want = None
        return self._order(account, limit=account.booked, full=full)

    def _order(
        self,
        account: Account,
        *,
        limit: Room | None = None,
        give_back: bool = False,
        full: tuple[bool, bool] = (False, False),
    ) -> RoomOrder:
        account.number += 1
        account.waiting = True
        return RoomOrder(self._last(account), limit, give_back, full)


def _since_then(want: Room, before: Room, limit: Room) -> Room:
    """A want is what the limit lacked before: what was given back since then is lacking, too."""
    given_back = zip(want, before, limit, strict=True)
    return Room(*(lacking and lacking + max(then - now, 0) for lacking, then, now in given_back))


def _fits(want: Room, free: Room) -> bool:
    return want.topics <= free.topics and want.bytes <= free.bytes
