"""Claims about the bar of bad networks: the proxy invents nothing, and the account finds an untrue caught-up."""

from __future__ import annotations

import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.history.networks import early_claims
from tests.support.bad_network import FAULTS, BadNetwork
from tests.support.histories import Story

DATA = bytes(range(256)) * 4


class Fixed(Random):
    """One that draws this fault."""

    def __init__(self, fault: str) -> None:
        super().__init__(1)
        self._fault = fault

    def choice(self, seq: Any) -> Any:
        assert self._fault in seq
        return self._fault


@pytest.mark.parametrize("fault", FAULTS)
def test_bytes_arrive_in_their_order_and_only_a_cut_or_a_stall_keeps_some(fault: str) -> None:
    network = BadNetwork(None, Fixed(fault), 1.0, 0.01)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        passed = network.passed(DATA, near, back=True)
        near.shutdown(socket.SHUT_WR)
        arrived = b"".join(iter(lambda: far.recv(1 << 16), b""))
    network.close()
    assert network.counts == {each: int(each == fault) for each in FAULTS}
    assert DATA.startswith(arrived)
    assert passed == (arrived == DATA) == (fault in ("delay", "trickle"))


@pytest.mark.parametrize(("head", "strong", "early"), [(2, False, True), (3, False, False), (2, True, False)])
def test_a_caught_up_before_a_head_that_was_seen_is_found(tmp_path: Path, head: int, strong: bool, early: bool) -> None:
    story = Story()
    story.append("a b c", 1)
    story.open(t=0)
    opened = story.operations[-1].start_ns // 1_000_000
    story.append("d", 4)
    now = story.now_ns // 1_000_000
    story.frame("caught_up", head, at=(opened, now + 1))
    path = tmp_path / "history"
    path.write_bytes(story.written())
    claims, found = early_claims(path, {"s"} if strong else set())
    assert (claims, bool(found)) == (int(not strong), early)


def test_a_caught_up_that_no_head_can_contradict_is_not_counted_as_checked(tmp_path: Path) -> None:
    story = Story()
    story.open(t=0)
    story.frame("caught_up", 0)
    path = tmp_path / "history"
    path.write_bytes(story.written())
    assert early_claims(path, ()) == (0, [])
