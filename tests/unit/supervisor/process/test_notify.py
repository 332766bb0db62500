"""sd_notify, against a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.process.notify import Notifier


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, short_path: Path) -> Iterator[tuple[socket.socket, str]]:
    named = str(short_path / "n") if request.param == "file" else f"@topics-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + named[1:] if named.startswith("@") else named)
        receiver.settimeout(5)
        yield receiver, named


def test_readiness_and_progress_arrive(manager: tuple[socket.socket, str]) -> None:
    receiver, named = manager
    notifier = Notifier.of({"NOTIFY_SOCKET": named})
    notifier.busy("shard-00: replay 40 %", 30)
    notifier.ready("serving\nhttp://x")
    notifier.status("degraded")
    notifier.stopping("bye")
    received = [receiver.recv(4096).decode() for _ in range(4)]
    assert received == [
        "STATUS=shard-00: replay 40 %\nEXTEND_TIMEOUT_USEC=30000000",
        f"READY=1\nSTATUS=serving http://x\nMAINPID={os.getpid()}",
        "STATUS=degraded",
        "STOPPING=1\nSTATUS=bye",
    ]
    notifier.close()
    notifier.status("nothing happens any more")


@pytest.mark.parametrize("address", ["", "relative", "vsock:1:2", "/does/not/exist"])
def test_nobody_listening_is_no_error(address: str) -> None:
    notifier = Notifier(address)
    notifier.ready("serving")
    notifier.close()


def test_a_manager_that_does_not_read_blocks_nothing(manager: tuple[socket.socket, str]) -> None:
    notifier = Notifier(manager[1])
    for _ in range(2000):
        notifier.status("x" * 100)
    notifier.close()
