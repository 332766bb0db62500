"""Treasurer: the six rules, one by one. `tests/simulation/test_escrow.py` has them all at once."""

from __future__ import annotations

from proto.ipc.operations import Room, RoomOrder, RoomReport, RoomWant
from shardd.changes.treasurer import KNOWN_S, NO_CAP, Treasurer

CAP = Room(60, 600)
EPOCH = (0, 3, 0)


class Council:
    """A treasurer with shards that obey at once, unless a test keeps their orders."""

    def __init__(self, *held: Room, cap: Room = CAP) -> None:
        self.treasurer = Treasurer(cap, len(held), EPOCH)
        self.held = list(held)
        self.limits = list(held)
        self.at = [(0, 0, 0, 0)] * len(held)
        self.now = 10.0
        self.full: list[tuple[bool, bool]] = [(False, False)] * len(held)
        for index in range(len(held)):
            self.treasurer.seen(index, 1, here=True, failed=False)

    def orders(self, *, serving: bool = True) -> list[tuple[int, RoomOrder]]:
        return self.treasurer.orders(self.now, serving=serving)

    def obey(self, index: int, order: RoomOrder) -> RoomReport:
        if order.limit is not None:
            self.limits[index] = order.limit
        elif order.give_back:
            self.limits[index] = self.held[index]
        self.at[index], self.full[index] = order.at, order.full
        return RoomReport(order.at, self.limits[index])

    def settle(self) -> int:
        """Exchange messages until there are none. Returns the number of orders."""
        count = 0
        while orders := self.orders():
            count += len(orders)
            for index, order in orders:
                assert self.treasurer.reported(index, order, self.obey(index, order))
        return count

    def want(self, index: int, topics: int, size: int) -> int:
        self.treasurer.wanted(RoomWant(index, self.at[index], self.limits[index], Room(topics, size)), self.now)
        return self.settle()


def council() -> Council:
    made = Council(Room(10, 100), Room(20, 200), Room(0, 0))
    made.settle()
    return made


def test_half_of_what_is_free_is_handed_out_at_the_start() -> None:
    assert council().limits == [Room(15, 150), Room(25, 250), Room(5, 50)]


def test_a_want_that_fits_gets_a_part_of_what_is_free_on_top() -> None:
    there = council()
    assert there.want(2, 3, 0) == 1
    assert there.limits[2] == Room(5 + 3 + (15 - 3) // 6, 50 + 150 // 6)


def test_a_want_that_does_not_fit_gets_what_the_others_do_not_use() -> None:
    there = council()
    assert there.want(2, 0, 151) == 3, "two give back, one gets it"
    assert there.limits[:2] == [Room(10, 100), Room(20, 200)]
    assert there.limits[2].bytes >= 50 + 151
    assert there.full[2] == (False, False)


def test_a_want_is_refused_when_all_others_have_given_back_and_gets_what_is_left() -> None:
    there = council()
    there.want(2, 0, 251)
    assert there.limits == [Room(10, 100), Room(20, 200), Room(5, 300)]
    assert there.full[2] == (False, True)


def test_what_a_shard_gives_back_while_it_wants_is_lacking_too() -> None:
    there = council()
    for index in (0, 2):
        want = RoomWant(index, there.at[index], there.limits[index], Room(0, 151))
        there.treasurer.wanted(want, there.now)
    there.settle()  # the first makes the others give back, also the second, which had 50 for what it wants 151 more
    assert there.limits[2].bytes >= 50 + 151
    assert there.limits[2].topics <= 5, "it lacked no topics: it gets its part of what is free"
    assert there.full[2] == (False, False)


def test_it_is_known_for_a_while_that_nothing_is_left() -> None:
    there = council()
    there.want(2, 0, 600)
    there.now += KNOWN_S / 2
    assert there.want(2, 0, 1) == 1, "refused without another look"
    there.held[0] = Room(0, 0)
    there.now += KNOWN_S
    assert there.want(2, 0, 1) == 3
    assert there.full[2] == (False, False)


def test_what_a_shard_gets_on_top_is_asked_back() -> None:
    there = council()
    there.want(2, 0, 251)
    there.held = [Room(0, 0)] * 3
    there.now += KNOWN_S + 0.01
    there.want(0, 0, 400)  # fits, with something on top
    assert there.limits[0].bytes > 500
    assert there.want(1, 0, 500) > 1
    assert there.full[1] == (False, False)


def test_nothing_is_granted_before_each_shard_has_reported() -> None:
    there = Council(Room(10, 100), Room(20, 200))
    first, second = there.orders()
    there.treasurer.reported(0, first[1], there.obey(*first))
    assert there.want(0, 1, 1) == 0
    there.treasurer.reported(1, second[1], there.obey(*second))
    assert there.settle() == 2
    assert there.limits[0].topics > 10


def test_a_shard_that_cannot_start_is_taken_to_hold_its_share_until_it_reports() -> None:
    there = Council(Room(10, 100), Room(0, 0), Room(0, 0))
    there.treasurer.seen(2, 1, here=False, failed=True)
    there.settle()
    assert there.treasurer.complete
    there.want(0, 50, 0)
    assert there.limits[0].topics == 40, "its share is 20"
    there.held[0] = there.limits[0]
    there.treasurer.seen(2, 2, here=False, failed=False)
    there.now += 1
    assert there.want(1, 0, 300) > 0, "not waited for while it tries again"
    there.held[2] = there.limits[2] = Room(30, 0)
    there.treasurer.seen(2, 2, here=True, failed=False)
    there.settle()
    assert there.treasurer.free.topics == 0, "it held more, and no shard gets any before there is room"


def test_a_shard_that_died_stays_booked_until_its_successor_reports() -> None:
    there = council()
    there.treasurer.seen(2, 1, here=False, failed=False)
    there.treasurer.seen(2, 2, here=False, failed=False)
    assert there.treasurer.accounts[2].booked == Room(5, 50)
    there.want(0, 0, 400)
    assert there.full[0] == (False, False), "it is not refused: the shard may give back"
    there.limits[2] = Room(0, 0)
    there.treasurer.seen(2, 2, here=True, failed=False)
    there.settle()
    assert there.full[0] == (False, True)
    assert there.limits[0].bytes + there.limits[1].bytes + there.limits[2].bytes <= 600


def test_a_report_of_the_dead_does_not_count() -> None:
    there = council()
    there.now += 1
    there.treasurer.wanted(RoomWant(0, there.at[0], there.limits[0], Room(0, 500)), there.now)
    kept = dict(there.orders())
    report = there.obey(2, kept[2])
    there.treasurer.seen(2, 2, here=True, failed=False)
    assert not there.treasurer.reported(2, kept[2], report)
    assert there.treasurer.accounts[2].booked == Room(5, 50)


def test_a_want_of_an_earlier_process_is_passed_over() -> None:
    """The treasurer may not know of the next one yet: both obey orders that are addressed to the first one."""
    there = council()

    def want(process: int, size: int) -> int:
        asked = RoomWant(2, there.at[2], there.limits[2], Room(0, size), process)
        there.treasurer.wanted(asked, there.now)
        return there.settle()

    assert want(7, 10) == 1
    assert want(9, 10) == 1
    before = there.treasurer.accounts[2].booked
    assert want(7, 100) == 0
    assert there.treasurer.accounts[2].booked == before
    assert want(0, 10) == 1, "one of an earlier release has no number"
    assert want(9, 10) == 1


def test_what_a_dead_process_wanted_last_comes_back_when_its_successor_reports() -> None:
    """Its want arrives before the treasurer hears of the next process."""
    there = council()
    there.treasurer.wanted(RoomWant(2, there.at[2], there.limits[2], Room(0, 100), 7), there.now)
    ((_, order),) = there.orders()
    assert order.limit is not None
    there.limits[2] = there.held[2]
    there.treasurer.seen(2, 2, here=True, failed=False)
    ((index, asked),) = there.orders()
    there.treasurer.reported(index, asked, there.obey(index, asked))
    assert there.treasurer.accounts[2].booked == there.held[2]


def test_a_report_before_the_last_order_does_not_change_the_booking() -> None:
    there = council()
    before = there.at[2]
    there.want(2, 3, 0)
    booked = there.treasurer.accounts[2].booked
    there.treasurer.wanted(RoomWant(2, before, Room(5, 50), Room(0, 1)), there.now)
    assert there.treasurer.accounts[2].booked == booked
    assert there.settle() == 0, "the shard wants again when it has obeyed"


def test_an_order_that_got_no_answer_stays_booked_and_is_asked_for() -> None:
    there = council()
    there.treasurer.wanted(RoomWant(2, there.at[2], there.limits[2], Room(3, 0)), there.now)
    ((index, order),) = there.orders()
    there.treasurer.lost(index, order)
    booked = there.treasurer.accounts[2].booked
    ((index, asked),) = there.orders()
    assert (index, asked.limit, asked.give_back) == (2, None, False)
    assert there.treasurer.accounts[2].booked == booked
    there.treasurer.reported(2, asked, there.obey(2, asked))
    assert there.treasurer.accounts[2].booked == Room(5, 50), "it had not obeyed"
    assert not there.treasurer.reported(2, order, RoomReport(order.at, Room(8, 50))), "and will not"


def test_orders_leave_only_while_the_shard_may_answer() -> None:
    there = Council(Room(0, 0), Room(0, 0))
    assert there.orders(serving=False) == []
    assert len(there.orders()) == 2


def test_what_has_no_cap_is_not_counted() -> None:
    there = Council(Room(NO_CAP, 0), Room(NO_CAP, 0), cap=Room(0, 100))
    there.settle()
    assert there.limits == [Room(NO_CAP, 25), Room(NO_CAP, 25)]
    there.want(0, 0, 200)
    assert there.limits[0] == Room(NO_CAP, 100)
    assert there.full[0] == (False, True)


def test_a_want_below_zero_takes_nothing_away() -> None:
    there = council()
    there.want(2, -50, -500)
    assert there.limits[2] >= Room(5, 50)


def test_more_held_than_the_cap_frees_nothing() -> None:
    there = Council(Room(100, 0), Room(0, 0))
    there.settle()
    assert there.treasurer.free == Room(0, 300)
    there.want(1, 1, 0)
    assert there.full[1] == (True, False)
