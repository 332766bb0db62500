"""Askers: which of them a shard takes for gone, whatever order the reports have."""

from __future__ import annotations

import pytest

from proto.ipc import askers
from proto.ipc.askers import Census


def name(incarnation: int) -> bytes:
    return askers.named(askers.gateway(0), incarnation).encode()


def test_earlier_incarnations_are_gone_and_no_others() -> None:
    census = Census({askers.gateway(0): 3, askers.shard(1): 1})
    assert [census.gone(name(number)) for number in range(1, 6)] == [True, True, False, False, False]
    assert not census.gone(askers.named(askers.shard(1), 1).encode())
    assert not census.gone(askers.named(askers.gateway(1), 1).encode()), "not reported yet"


def test_a_report_that_a_later_one_overtook_changes_nothing() -> None:
    census = Census({})
    for first in (1, 4, 2, 4, 0):
        census.update({askers.gateway(0): first})
    assert census.gone(name(3))
    assert not census.gone(name(4))
    census.update({})
    assert census.gone(name(3)), "a process that a report leaves out is not back"


def test_a_report_is_made_known() -> None:
    census, heard = Census({}), []
    census.changed = lambda: heard.append(census.gone(name(1)))
    census.update({askers.gateway(0): 2})
    assert heard == [True]


@pytest.mark.parametrize(
    "peer", [b"", b"g0", b"g0.", b".1", b"g0.-1", b"g0.1x", b"g0.\xb2", b"\x00\x80\x00A\xa7", b"G0.1", b"g0.1.1", b"."]
)
def test_what_is_no_name_is_never_gone(peer: bytes) -> None:
    assert not Census({askers.gateway(0): 9}).gone(peer)


def link(machine: str, number: int, asker: str = "g0.1") -> bytes:
    return askers.linked(machine, asker, number).encode()


def test_a_later_link_of_another_machine_ends_the_earlier_ones_of_that_process() -> None:
    census = Census({})
    census.met(link("mA", 1))
    census.met(link("mB", 1))
    census.met(link("mA", 3))
    census.met(link("mA", 2))
    assert [census.gone(link("mA", number)) for number in (1, 2, 3, 4)] == [True, True, False, False]
    assert not census.gone(link("mB", 1))
    assert not census.gone(link("mA", 1, "s0.1")), "another process"
    census.met(link("mA", 1, "g0.2"))
    assert census.gone(link("mA", 2**31)), "of an earlier incarnation"
    assert not census.gone(link("mA", 1, "g0.2"))


def test_a_link_that_is_lost_is_gone_and_the_next_one_is_not() -> None:
    census = Census({})
    census.met(link("mA", 5))
    census.lost(link("mA", 5))
    assert census.gone(link("mA", 5))
    census.met(link("mA", 6))
    census.lost(link("mA", 5))
    assert not census.gone(link("mA", 6))


def test_gateways_of_other_machines_count_while_they_have_a_link() -> None:
    census = Census({"g0": 1, "g1": 1, "s0": 1})
    for number in (1, 2):
        census.met(link("mA", number))
    census.met(link("mA", 1, "s0.1"))
    assert census.gateways == 3
    census.lost(link("mA", 1))
    assert census.gateways == 3
    census.lost(link("mA", 2))
    assert census.gateways == 2


def test_a_gateway_counts_again_by_the_link_whose_number_follows_that_of_a_lost_one() -> None:
    census, counts = Census({"g0": 1}), []
    census.changed = lambda: counts.append(census.gateways)
    census.met(link("mA", 5))
    census.lost(link("mA", 5))
    for _ in range(2):
        census.met(link("mA", 6))
    assert counts == [2, 2]
    census.lost(link("mA", 6))
    census.met(link("mA", 6))
    assert census.gateways == 1, "it is gone"


@pytest.mark.parametrize(
    ("peer", "machine"),
    [
        (link("mA", 1), "mA"),
        (b"mA.1", "mA"),
        (b"g0.1", ""),
        (b"s12.3", ""),
        (b"spare.1", ""),
        (b"mA.\xff.1", ""),
        (b"m\xff.g0.1", ""),
        (b"mA", ""),
        (b"mA.g0", ""),
        (b"mA.g0.", ""),
        (b"", ""),
        (b".1", ""),
        (b"\x00m.1", ""),
    ],
)
def test_the_machine_of_a_link(peer: bytes, machine: str) -> None:
    assert askers.machine_of(peer) == machine
