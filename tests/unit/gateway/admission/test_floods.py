"""Claims about the pause of addresses whose HTTP/2 connections were refused."""

from __future__ import annotations

import pytest

from gateway.admission.floods import MOST_ADDRESSES, MOST_PAUSE_S, REFUSED_PER_S, Floods


def test_an_address_that_floods_gets_so_many_connections_a_second_and_others_do_not_wait() -> None:
    floods, now = Floods(), 128.0
    for number in range(1, 11):
        floods.refused("a", now)
        assert floods.pause("a", now) == pytest.approx(number / REFUSED_PER_S)
    assert floods.pause("b", now) == 0
    assert floods.pause("a", now + 1.5) == pytest.approx(10 / REFUSED_PER_S - 1.5)
    assert floods.pause("a", now + 10.001 / REFUSED_PER_S) == 0


def test_no_pause_is_longer_than_the_bound() -> None:
    floods = Floods()
    for _ in range(10_000):
        floods.refused("a", 5.0)
    assert floods.pause("a", 5.0) == MOST_PAUSE_S


def test_so_many_addresses_are_remembered_and_the_one_refused_longest_ago_is_forgotten() -> None:
    floods = Floods()
    for number in range(MOST_ADDRESSES):
        floods.refused(str(number), 1.0)
    floods.refused("0", 1.0)
    floods.refused("new", 1.0)
    assert floods.pause("1", 1.0) == 0
    assert floods.pause("0", 1.0) > floods.pause("new", 1.0) > 0
