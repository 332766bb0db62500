"""Requests as values: what one holds is released once it is over."""

from __future__ import annotations

import socket

import pytest

from gateway.admission.body_budget import Budget
from gateway.http.messages import Request, address_of


class Asked(Request):
    async def has_body(self) -> bool:
        return False

    async def body(self) -> bytes:
        return b""

    async def disconnected(self) -> None:
        raise NotImplementedError


class Released:
    def __init__(self) -> None:
        self.times = 0

    def release(self) -> None:
        self.times += 1


@pytest.fixture
def request_() -> Asked:
    return Asked("GET", "/v0/topics", "", {b"x-a": b"1, 2"}, Budget(1 << 20))


def test_headers_are_found_in_any_case(request_: Asked) -> None:
    assert request_.header(b"X-A") == b"1, 2"
    assert request_.header(b"x-b") == b""


def test_a_request_holds_memory_once_for_its_body_and_once_for_its_answer(request_: Asked) -> None:
    assert request_.hold_body() is request_.hold_body()
    assert request_.hold_answer() is request_.hold_answer()
    assert request_.hold_body() is not request_.hold_answer()
    request_.hold_answer().set(1000)
    assert request_.budget.used == 1000
    request_.finish()
    assert request_.budget.used == 0


def test_what_a_request_holds_is_released_at_its_end(request_: Asked) -> None:
    request_.slot = slot = Released()  # type: ignore[assignment]
    request_.finish()
    assert slot.times == 1


def test_a_request_without_holds_ends_as_well(request_: Asked) -> None:
    request_.finish()


def test_an_address_has_no_port_and_none_is_left_of_a_closed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        assert address_of(client) == "127.0.0.1"
        client.close()
        assert address_of(client) == ""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert address_of(ours) == ""
