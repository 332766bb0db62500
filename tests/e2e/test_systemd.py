"""Claims about the service under a simulated service manager: the notify socket, the watchdog, and their effects."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proto.model.names import shard_of
from shardd.clock import SystemClock
from shardd.storage.disk import RealDisk
from tests.support.harness import Harness
from tests.support.programs import tool
from tests.support.service import Service, Watched, until

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "topics.service"
WATCHDOG_S = 2.0


class Manager:
    """The part of systemd: receives the service's messages, and knows when its watchdog is overdue."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(0.05)
        self.heard: list[dict[str, str]] = []
        self.fed_at = time.monotonic()

    def listen(self) -> None:
        """Take the next message, if one comes soon."""
        try:
            message = self._socket.recv(4096).decode()
        except TimeoutError:
            return
        fields = dict(line.split("=", 1) for line in message.splitlines())
        if "WATCHDOG" in fields:
            self.fed_at = time.monotonic()
        else:
            self.heard.append(fields)

    def hears(self, **wanted: str) -> dict[str, str] | None:
        """Return the message with these fields if one has come by now, and discard all up to it."""
        self.listen()
        for position, fields in enumerate(self.heard):
            if all(name in fields and wanted[name] in fields[name] for name in wanted):
                del self.heard[: position + 1]
                return fields
        return None

    def overdue(self) -> bool:
        self.listen()
        return time.monotonic() - self.fed_at > WATCHDOG_S

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="topics-n") as directory:
        opened = Manager(Path(directory))
        yield opened
        opened.close()


def under(manager: Manager, directory: Path, keys: Path, watchdog_s: float = WATCHDOG_S) -> Service:
    return Service(
        directory,
        NOTIFY_SOCKET=manager.path,
        WATCHDOG_USEC=str(round(watchdog_s * 1e6)),
        TOPICS_API_KEYS_FILE=str(keys),
    )


def leave_a_long_log(directory: Path) -> None:
    """Make the files of a service killed before a checkpoint: 60 000 frames in the log of shard 0."""
    with Service(directory) as made:
        path = made.data_dir / "shard-00"
        assert made.stop() == 0
    shard = Harness(RealDisk(), SystemClock(), path)
    topic = next(name for name in ("a", "b", "c", "d", "e", "f") if shard_of(name, 2) == 0)
    shard.call("configure", topic, {"durability": "memory"})
    for _ in range(60):
        for _ in range(1000):
            shard.send("append", topic, b'{"records":[{"data":0}]}')
        shard.shard.flush()


@contextmanager
def slowly(pid: int) -> Iterator[None]:
    """Let a process run for a tenth of the time, as on a busy machine."""
    over = threading.Event()

    def strobe() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.09)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.01)

    thread = threading.Thread(target=strobe)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def share_of(status: str) -> int:
    return int(status.removeprefix("shard-00: replay ").removesuffix(" %"))


def test_a_slow_replay_is_told_as_it_goes_and_gets_the_time_it_needs(manager: Manager, tmp_path: Path) -> None:
    leave_a_long_log(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    service = under(manager, tmp_path, keys, 5 * WATCHDOG_S)
    try:
        service.start(wait=False)
        first = until(lambda: manager.hears(STATUS="shard-00: replay"), "STATUS of the replay")
        fed = manager.fed_at
        with slowly(service.child("shard-00")["pid"]):
            later = until(lambda: manager.hears(STATUS="shard-00: replay"), "STATUS a while later")
            until(lambda: manager.listen() or manager.fed_at > fed, "WATCHDOG: slow is not hung")
        assert 0 <= share_of(first["STATUS"]) < share_of(later["STATUS"]) < 100
        # Without it systemd would end a start that takes longer than TimeoutStartSec.
        assert {first["EXTEND_TIMEOUT_USEC"], later["EXTEND_TIMEOUT_USEC"]} == {"60000000"}
        assert not any("READY" in message for message in manager.heard)
        until(lambda: manager.hears(READY="1", STATUS="serving http://"), "READY")
    finally:
        service.close()


def test_systemd_is_told_of_readiness_when_clients_are_served(manager: Manager, tmp_path: Path) -> None:
    """READY must not come earlier, because units that systemd starts next may send requests at once."""
    service = Service(tmp_path, NOTIFY_SOCKET=manager.path)
    try:
        for _ in range(3):
            service.start(wait=False)
            until(lambda: manager.hears(READY="1"), "READY")
            service.port = int(service.status()["url"].rpartition(":")[2])
            status, answer = service.request("GET", "/v0/ready")
            assert status == 200, answer
            assert service.stop() == 0
    finally:
        service.close()


def test_ready_fed_reloaded_hung_ended_started_again_and_drained(manager: Manager, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    with under(manager, tmp_path, keys) as service:
        until(lambda: manager.hears(READY="1", STATUS="serving http://"), "READY")
        fed = manager.fed_at
        until(lambda: manager.hears() or manager.fed_at > fed, "WATCHDOG")

        assert service.process is not None
        keys.write_text("second\nthird\n")
        os.kill(service.process.pid, signal.SIGHUP)
        until(lambda: manager.hears(RELOADING="1", MONOTONIC_USEC=""), "RELOADING")
        until(lambda: manager.hears(READY="1", STATUS="2 keys reloaded"), "READY after it")

        children = {name: child["pid"] for name, child in service.status()["children"].items()}
        everybody = Watched([service.process.pid, *children.values()])
        os.kill(children["shard-01"], signal.SIGSTOP)
        until(manager.overdue, "the watchdog to be overdue")
        until(lambda: manager.hears(STATUS="does not answer: shard-01"), "STATUS")
        # systemd then aborts the main process; no process of the service may remain.
        os.kill(service.process.pid, signal.SIGABRT)
        assert service.process.wait(10) == -signal.SIGABRT
        assert everybody.wait_gone() == []
    manager.heard.clear()
    with under(manager, tmp_path, keys) as again:
        until(lambda: manager.hears(READY="1"), "READY again")
        assert again.process is not None
        os.kill(again.process.pid, signal.SIGTERM)
        until(lambda: manager.hears(STOPPING="1", STATUS="finishing"), "STOPPING")
        assert again.process.wait(20) == 0


def test_the_unit_is_what_systemd_understands(tmp_path: Path) -> None:
    """The unit is checked with the program's path on this machine, because its installation is not the unit's part."""
    copy = tmp_path / "topics.service"
    copy.write_text(
        UNIT.read_text().replace("/opt/topics/bin/topics", "/bin/true").replace("/opt/topics/README.md", "/")
    )
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "topics" in line]) == (0, [])


def test_the_unit_is_hardened() -> None:
    """The exposure is at most 2.0 of 10, which systemd calls OK. --threshold counts in tenths."""
    command = [tool("systemd-analyze"), "security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
