"""Connections of several gateways: equal parts of the limits, and polite accepts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from gateway.admission.connection_shares import POLITE_S, Sharing, divided, part
from proto.ipc.gateway_page import Column, Page, Row
from proto.model.limits import Limits


@pytest.fixture
def rows() -> Iterator[list[Row]]:
    page = Page(3)
    found = [Row(page.descriptor, 3, index) for index in range(3)]
    for row in found[:2]:
        row.put(Column.ACCEPTING, 1)
    yield found
    page.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


@pytest.mark.parametrize(
    ("limit", "gateways", "expected"),
    [(12_000, 1, 12_000), (0, 3, 0), (12_000, 3, 4500), (100, 3, 39), (20, 3, 16), (10, 3, 10), (1, 16, 1)],
)
def test_an_equal_part_and_an_eighth(limit: int, gateways: int, expected: int) -> None:
    assert part(limit, gateways) == expected


def test_one_gateway_has_the_limits_as_they_are() -> None:
    limits = Limits(max_connections=7, protocol_max_connections=5)
    assert divided(limits, 1) == limits
    both = divided(Limits(max_connections=160, protocol_max_connections=80), 2)
    assert (both.max_connections, both.protocol_max_connections) == (90, 45)


async def passed(sharing: Sharing, listener: socket.socket, connections: int) -> float:
    began = trio.current_time()
    await sharing.polite(listener, connections)
    return trio.current_time() - began


async def test_the_busier_gateway_waits_once_and_no_other(
    rows: list[Row], listener: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = (Sharing(row, Column.WALRUS) for row in rows[:2])
    one.count(3)
    other.count(2)
    with socket.create_connection(listener.getsockname()):
        assert await passed(other, listener, 2) == 0
        assert await passed(one, listener, 3) == pytest.approx(POLITE_S)
        other.count(3)
        assert await passed(one, listener, 3) == 0


async def test_it_does_not_wait_for_a_gateway_that_accepts_nothing(
    rows: list[Row], listener: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    """Neither for one that is gone."""
    one = Sharing(rows[0])
    one.count(3)
    rows[1].put(Column.ACCEPTING, 0)
    assert await passed(one, listener, 3) == 0


async def test_a_full_gateway_makes_no_room_for_a_connection_that_another_one_takes(
    rows: list[Row], listener: socket.socket
) -> None:
    one, other = (Sharing(row) for row in rows[:2])
    one.count(3)
    other.count(2)
    with socket.create_connection(listener.getsockname()):
        assert not await one.others_take(listener, 3), "the other one hangs"
        other.count(3)
        assert not await one.others_take(listener, 3), "the other one has as many"
        other.count(2)
        taken = listener.accept()[0]
        assert await one.others_take(listener, 3)
        taken.close()
    assert not await Sharing().others_take(listener, 3)


async def test_without_connections_a_polite_gateway_does_not_run(
    rows: list[Row], listener: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    one = Sharing(rows[0])
    with trio.move_on_after(3600) as waited:
        await one.polite(listener, 1)
    assert waited.cancelled_caught


async def test_a_single_gateway_is_never_polite(
    listener: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    assert await passed(Sharing(), listener, 10**6) == 0
