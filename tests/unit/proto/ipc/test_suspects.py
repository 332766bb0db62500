"""What was in hand when a shard died, and which requests are refused for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextvars import copy_context

import msgspec
import pytest

from proto.ipc import in_hand
from proto.ipc.in_hand import MOST, InHand
from proto.ipc.message import Request
from proto.ipc.operations import (
    Append,
    NameChanges,
    Operation,
    Ping,
    Pull,
    RouterDelete,
    RouterPut,
    Sample,
    SessionNews,
    StateGet,
    Stats,
)
from proto.ipc.suspects import DEATHS, FORGOTTEN_S, Suspects
from proto.ipc.suspects import MOST as MOST_SUSPECTS
from proto.model.errors import ErrorCode, TopicsError


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = in_hand.make()
    yield descriptor
    os.close(descriptor)


def request(ident: int, topic: str = "t", body: bytes = b"{}", options: Operation[None] | None = None) -> Request:
    return Request(ident, options or StateGet(), topic, body, deadline_ns=1000 + ident)


def test_the_request_that_is_handled_is_read_from_outside(memory: int) -> None:
    hand = InHand(memory)
    assert in_hand.read(memory) == []
    hand.take(request(1))
    hand.take(request(2))
    assert in_hand.read(memory) == [(2, 1002)]


def test_while_a_turn_is_written_all_of_it_is_in_hand(memory: int) -> None:
    hand = InHand(memory)
    for ident in (1, 2, 3):
        hand.take(request(ident))
    hand.end()
    assert in_hand.read(memory) == [(1, 1001), (2, 1002), (3, 1003)]
    hand.clear()
    assert in_hand.read(memory) == []
    hand.end()  # a turn without requests
    assert in_hand.read(memory) == []


def test_a_turn_of_any_size_fits(memory: int) -> None:
    hand = InHand(memory)
    for ident in range(MOST + 50):
        hand.take(request(ident))
    assert in_hand.read(memory) == [(MOST + 49, 1000 + MOST + 49)]
    hand.end()
    assert len(in_hand.read(memory)) == MOST


def test_a_request_is_in_hand_during_each_step_that_a_task_takes_for_it_later(memory: int) -> None:
    hand = InHand(memory)
    with hand.step():
        assert in_hand.read(memory) == [], "it is a step for no request"

    def work() -> None:
        in_hand.continue_with(request(7))
        for _ in range(2):
            with hand.step():
                assert in_hand.read(memory) == [(7, 1007)]
            assert in_hand.read(memory) == []

    copy_context().run(work)


def test_the_next_process_begins_with_nothing_in_hand(memory: int) -> None:
    InHand(memory).take(request(1))
    in_hand.empty(memory)
    assert in_hand.read(memory) == []


def test_memory_that_a_wild_process_wrote_over_is_read_without_an_error(memory: int) -> None:
    os.pwrite(memory, b"\xff" * 100_000, 0)
    assert len(in_hand.read(memory)) == MOST


def refused(suspects: Suspects, asked: Request) -> bool:
    try:
        suspects.check(0, asked.options, asked.topic, asked.body)
    except TopicsError as error:
        return (error.code, (error.detail or {})["outcome"]) == (ErrorCode.INTERNAL, "not_done")
    return False


def test_a_request_is_refused_after_its_second_death() -> None:
    suspects = Suspects()
    assert not suspects
    suspects.died(0, 1, [request(1)])
    assert not refused(suspects, request(2))
    suspects.died(0, 2, [request(2)])
    assert refused(suspects, request(3))
    assert not refused(suspects, request(3, topic="u"))
    assert not refused(suspects, request(3, body=b"[]"))
    assert not refused(suspects, request(3, options=StateGet(touch=False)))


def test_the_same_request_twice_in_hand_at_one_death_counts_once() -> None:
    """Two clients may ask the same, and their requests may be in one turn."""
    suspects = Suspects()
    suspects.died(0, 1, [request(1), request(2)])
    assert not refused(suspects, request(3))
    suspects.died(0, 2, [request(1), request(2)])
    assert refused(suspects, request(3))


def test_gateways_hear_of_each_others_suspects_and_count_a_death_once() -> None:
    one, other = Suspects(), Suspects()
    one.on_death, other.on_death = other.heard, one.heard
    one.died(0, 1, [request(1)])
    other.died(0, 1, [request(9)])  # it was in hand for both
    assert not any(refused(each, request(2)) for each in (one, other))
    other.died(0, 2, [request(3)])
    assert all(refused(each, request(4)) for each in (one, other))
    one.died(0, 3, [])
    assert len(one) == len(other) == 1


def test_what_the_gateway_adds_does_not_make_another_request() -> None:
    suspects = Suspects()
    for number in range(DEATHS):
        suspects.died(0, number, [request(1, options=Append(may_configure=bool(number), prefixes=(f"p{number}",)))])
    assert refused(suspects, request(1, options=Append()))
    assert not refused(suspects, request(1, options=Append(idempotency_key="k")))


def test_a_suspect_is_forgotten_in_time() -> None:
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    for number in range(DEATHS):
        suspects.died(0, number, [request(1)])
    now[0] = FORGOTTEN_S
    assert refused(suspects, request(1))
    now[0] = FORGOTTEN_S + 1
    assert not refused(suspects, request(1))
    assert not suspects


def test_the_number_of_suspects_is_bounded() -> None:
    suspects = Suspects()
    for n in range(MOST_SUSPECTS + 10):
        suspects.died(0, n, [request(1, body=b"%d" % n)])
    assert len(suspects) == MOST_SUSPECTS


@pytest.mark.parametrize("operation", [RouterPut("r", {}, 1, 1), RouterDelete("r")])
def test_the_reading_that_the_registrar_adds_does_not_make_another_request(operation: RouterPut | RouterDelete) -> None:
    suspects = Suspects()
    for number in range(DEATHS):
        suspects.died(0, number, [request(1, options=msgspec.structs.replace(operation, reading=(1, number)))])
    assert refused(suspects, request(1, options=msgspec.structs.replace(operation, reading=(2, 7))))
    assert not refused(suspects, request(1, options=msgspec.structs.replace(operation, router="other")))


@pytest.mark.parametrize("operation", [Ping(), Stats(), Sample(), SessionNews(), NameChanges(7)])
def test_a_question_that_each_gateway_asks_again_and_again_is_never_a_suspect(operation: Operation[None]) -> None:
    suspects, told = Suspects(), []
    suspects.on_death = told.append
    for number in range(DEATHS):
        suspects.died(0, number, [Request(1, operation)])
    assert not suspects
    assert not told
    suspects.check(0, operation, "", b"")


@pytest.mark.parametrize("operation", [Stats(10, 10), Pull(1, 5)])
def test_a_question_about_what_is_a_clients_may_be_a_suspect(operation: Operation[None]) -> None:
    suspects = Suspects()
    for number in range(DEATHS):
        suspects.died(0, number, [request(1, options=operation)])
    assert refused(suspects, request(2, options=operation))
