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
