"""The outbox: what moves from a topic, what waits, and how its target recognises a batch."""

from __future__ import annotations

from shardd.topic.outbox import MARK, Arrivals, Outbox, Parked, Transfer, arrival_key, source_id


def committed(outbox: Outbox, transfers: dict[int, Transfer]) -> None:
    """Order transfers; the order is staged, and commits."""
    outbox.ordered |= transfers.keys()
    outbox.add(transfers)


def test_transfers_come_from_frames_and_go_with_their_records() -> None:
    outbox = Outbox()
    assert not outbox
    outbox.apply({"letters": [[3, "dead", 5], [4, "dead", 0]]}, None)
    assert outbox.transfers == {3: Transfer("dead", 5), 4: Transfer("dead", 0)}
    outbox.apply({"called_back": [3, 99]}, None)
    outbox.gone([4, 7])
    assert not outbox


def test_an_order_that_commits_replaces_an_earlier_one_and_unparks_it() -> None:
    outbox = Outbox()
    outbox.ordered = {2}
    committed(outbox, {1: Transfer("dead", 3)})
    outbox.parked[1] = Parked(100, "too large")
    assert outbox.ordered == {2}
    committed(outbox, {1: Transfer("other", 3)})
    assert outbox.transfers[1].target == "other"
    assert outbox.parked == {}


def test_parked_letters_of_a_target_come_smallest_first() -> None:
    outbox = Outbox()
    committed(outbox, {1: Transfer("a", 1), 2: Transfer("b", 1), 3: Transfer("a", 1)})
    outbox.parked = {1: Parked(200, "x"), 2: Parked(5, "x"), 3: Parked(100, "x")}
    assert outbox.parked_for("a") == [3, 1]
    assert outbox.parked_for("none") == []


def test_a_letter_says_what_it_waits_for() -> None:
    outbox = Outbox()
    assert (outbox.waits_for(1), outbox.reason) == (None, None)
    committed(outbox, {1: Transfer("a", 1), 2: Transfer("b", 1)})
    outbox.refusals["a"] = "full"
    assert (outbox.waits_for(1), outbox.waits_for(2), outbox.reason) == ("full", None, "full")
    outbox.parked[1] = Parked(9, "too large")
    assert (outbox.waits_for(1), outbox.reason) == ("too large", "too large")
    outbox.gone([1])
    assert outbox.waits_for(1) is None


def test_a_catalog_has_the_transfers_of_living_records_only() -> None:
    outbox = Outbox()
    committed(outbox, {1: Transfer("a", 1), 2: Transfer("b", 0)})
    rows = outbox.dump(lambda seq: seq != 1)
    assert rows == [[2, "b", 0]]
    again = Outbox()
    again.apply({"letters": rows}, None)
    assert again.transfers == {2: Transfer("b", 0)}


def test_an_arrival_is_recognised_by_its_source_and_its_seqs() -> None:
    one, other = source_id("q", 1), source_id("q", 2)
    assert len(one) == 24
    assert one != other, "a topic that was made again is another source"
    arrivals = Arrivals()
    arrivals.add(arrival_key(one, [3, 4]))
    arrivals.add(arrival_key(other, [2**64 - 1]))
    arrivals.add(arrival_key(one, [9]))
    assert arrivals.last == {one: (9,), other: (2**64 - 1,)}
    again = Arrivals()
    again.load(arrivals.dump())
    assert again.last == arrivals.last


def test_no_key_of_a_client_is_an_arrival() -> None:
    assert arrival_key(source_id("q", 1), [])[:1] == MARK
    assert not any(chr(code).encode().startswith(MARK) for code in (0, 0x7F, 0xFF, 0x10FFFF))
