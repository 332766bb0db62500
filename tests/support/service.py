"""The real service as a child process of a test: on a free port, with a data directory of its own.

Methods block, each with a deadline. Trio tests call them through `trio.to_thread.run_sync`, or directly where no other
task has to run meanwhile.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any

DEADLINE_S = 60.0
POLL_S = 0.01


class ServiceError(AssertionError):
    """The service did not reach the awaited state. The text ends with the last lines of its log."""


def until(condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
    """Wait for a true value of `condition` and return it. Raises `AssertionError` naming `what` after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(POLL_S)
    return found


class Watched:
    """Processes watched by descriptor, so that a reused pid is not taken for one of them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._open: dict[int, int] = {}
        for pid in pids:
            try:
                self._open[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                pass

    def wait_gone(self, timeout_s: float = DEADLINE_S) -> list[int]:
        """Wait for all to end; return the pids of those still running at the deadline."""
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        left = dict(self._open)
        for descriptor in left:
            poller.register(descriptor, select.POLLIN)
        while left and (remaining := deadline - time.monotonic()) > 0:
            for descriptor, _ in poller.poll(1000 * remaining):
                poller.unregister(descriptor)
                del left[descriptor]
        for descriptor in self._open:
            os.close(descriptor)
        self._open = {}
        return list(left.values())


class Service:
    """`topics serve` in a process group of its own. A context manager: leaving it kills the remaining processes."""

    def __init__(
        self,
        directory: Path,
        *,
        shards: int | None = 2,
        port: int = 0,
        enter: Sequence[str] = (),
        host: str = "127.0.0.1",
        **environment: str,
    ) -> None:
        """Data goes to `directory/data`, the log to `directory/service.log`. `environment` is added to the service's;
        the service sees no `TOPICS_*` variable of the test run itself. `enter` is a command that replaces itself with
        the command after it, such as `nsenter`. `host` is where the test finds the service."""
        self._enter = list(enter)
        self.host = host
        self.directory = directory
        self.data_dir = directory / "data"
        self.log_path = directory / "service.log"
        self.runtime_dir = Path(tempfile.mkdtemp(prefix="topics-t"))
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {n: v for n, v in os.environ.items() if not n.startswith("TOPICS_") and n != "NOTIFY_SOCKET"}
        self.environment |= {"TOPICS_DATA_DIR": str(self.data_dir), "TOPICS_RUNTIME_DIR": str(self.runtime_dir)}
        self.environment["TOPICS_GATEWAYS"] = os.environ.get("TOPICS_TEST_GATEWAYS", "1")
        if shards is not None:
            self.environment["TOPICS_SHARDS"] = str(shards)
        self.environment |= environment
        ALIVE.append(self)

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- life

    def start(self, *, wait: bool = True) -> Service:
        """Start the service; with `wait`, return when it is ready. A restart uses the port of the first start."""
        assert self.process is None, "already started"
        (self.runtime_dir / "children.json").unlink(missing_ok=True)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self._enter, sys.executable, "-m", "supervisor.cli", "serve", "--port", str(self.port)],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = DEADLINE_S) -> None:
        """Return when `/v0/ready` says 200; the port is known from then on."""
        self._until(lambda: self.status() or self._gone(), "its status file", timeout_s)
        self.port = int(self.status().get("url", ":0").rpartition(":")[2])
        self._until(lambda: self.is_ready() or self._gone(), "readiness", timeout_s)

    def _gone(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise ServiceError(f"the service ended with status {self.process.returncode}{self.log_tail()}")

    def is_ready(self) -> bool:
        """Whether `/v0/ready` says 200, of several gateways each: they hear of the shards one after the other."""
        several = "gateway" not in self.status().get("children", {})  # an older release always has one
        gateways = int(self.environment["TOPICS_GATEWAYS"]) if several else 1
        unseen = {f"gateway-{index}" for index in range(gateways)}
        try:
            with ExitStack() as opened:
                # A gateway with more connections lets the others go first. On a busy machine they may be late even so.
                for number in range(8 * gateways):
                    connection = opened.enter_context(closing(self.connect(2)))
                    if ask(connection, "GET", "/v0/ready")[0] != 200:
                        return False
                    if gateways == 1 or (os.getuid() and number == 2 * gateways):
                        return True  # only root sees which gateway has a connection
                    if not os.getuid():
                        unseen.discard(self.gateway_of(connection))
                        if not unseen:
                            return True
        except (OSError, http.client.HTTPException):
            pass
        return False

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = DEADLINE_S) -> int:
        """Ask the service to end and return its exit status. Raises `ServiceError` if it or a child stays."""
        assert self.process is not None
        watched = Watched(self.pids())
        self.process.send_signal(number)
        status = self._wait(timeout_s)
        if left := watched.wait_gone(5):
            raise ServiceError(f"processes {left} outlive the service{self.log_tail()}")
        return status

    def _wait(self, timeout_s: float) -> int:
        assert self.process is not None
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServiceError(f"the service does not end{self.log_tail()}") from None
        self.process = None
        return status

    def wait_exit(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait until the service ends by itself; return its exit status."""
        return self._wait(timeout_s)

    def restart(self) -> Service:
        self.stop()
        return self.start()

    def kill_group(self) -> None:
        """Kill supervisor and children at once with SIGKILL; return when all are gone."""
        assert self.process is not None
        watched = Watched(self.pids())
        os.killpg(self.process.pid, signal.SIGKILL)
        self._wait(5)
        if left := watched.wait_gone(5):
            raise ServiceError(f"processes {left} survived SIGKILL of their group")

    def kill_child(self, name: str) -> int:
        """Kill one child (`gateway`, `shard-00`, …) with SIGKILL; return its incarnation. `gateway` are all of several:
        no client keeps its connection. Waits for a process that is being started."""

        def running() -> list[dict[str, Any]]:
            children = self.status()["children"]
            found = [child for each, child in children.items() if each == name or each.startswith(f"{name}-")]
            return found if all(child["pid"] for child in found) else []

        found = until(running, f"{name} to run")
        for child in found:
            os.kill(child["pid"], signal.SIGKILL)
        return int(found[0]["incarnation"])

    def close(self) -> None:
        """Kill the remaining processes. Data and log stay for the test to read."""
        if self.process is not None:
            watched = Watched(self.pids())
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait(10)
            self.process = None
            watched.wait_gone(5)
        shutil.rmtree(self.runtime_dir, ignore_errors=True)
        if self in ALIVE:
            ALIVE.remove(self)

    # -- looking at it

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def status(self) -> dict[str, Any]:
        """The status file of the supervisor, {} before there is one."""
        try:
            found: dict[str, Any] = json.loads((self.runtime_dir / "children.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def child(self, name: str) -> dict[str, Any]:
        """A child as the status file has it. `gateway` is the first one of several."""
        children = self.status()["children"]
        found: dict[str, Any] = children[name] if name in children else children[f"{name}-0"]
        return found

    def gateway_of(self, connection: http.client.HTTPConnection) -> str:
        """The name of the gateway that has accepted a connection. For root. Raises `ConnectionError` if none has it any
        more."""
        if self.process is None or connection.sock is None:
            raise ConnectionError("the connection is closed")
        here, there = f":{self.port:04X}", f":{connection.sock.getsockname()[1]:04X}"
        table = Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()
        rows = [line.split() for line in table[1:]]
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(here) and row[2].endswith(there)}
        for name, child in self.status().get("children", {}).items():
            if name.startswith("gateway") and child["pid"]:
                for descriptor in Path(f"/proc/{child['pid']}/fd").iterdir():
                    with suppress(FileNotFoundError):  # closed meanwhile
                        if os.readlink(descriptor) in sockets:
                            return name
        raise ConnectionError("no gateway has this connection")

    def held(self) -> set[int]:
        """The shards that this machine holds."""
        children = self.status().get("children", {})
        return {int(name[-2:]) for name, child in children.items() if "shard" in name and child.get("phase") == "ready"}

    def pids(self) -> list[int]:
        """The pids of the supervisor, its fork server and its present children."""
        told = self.status()
        children = [child["pid"] for child in told.get("children", {}).values()]
        return list(filter(None, [self.process and self.process.pid, told.get("fork_server"), *children]))

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n--- log of the service, last lines\n" + "\n".join(self.log_text().splitlines()[-lines:])

    def _until(self, condition: Callable[[], Any], what: str, timeout_s: float) -> None:
        try:
            until(condition, what, timeout_s)
        except ServiceError:
            raise
        except AssertionError as error:
            raise ServiceError(f"{error}{self.log_tail()}") from None

    # -- talking to it

    def connect(self, timeout_s: float = 10) -> http.client.HTTPConnection:
        """Return a keep-alive connection. The caller closes it."""
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def request(self, method: str, path: str, body: Any = None, *, timeout_s: float = 10) -> tuple[int, Any]:
        """Send one request on a connection of its own; return `(status, decoded JSON)`. `body` is JSON text or a value
        to encode as JSON. Raises `OSError` or `http.client.HTTPException` when no whole response comes."""
        connection = self.connect(timeout_s)
        try:
            return ask(connection, method, path, body)
        finally:
            connection.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One request on `connection`: `(status, decoded JSON)`."""
    headers = {}
    if body is not None:
        headers["Content-Type"] = "application/json"
        if not isinstance(body, str | bytes):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    return response.status, json.loads(content) if content else None


def end_in_order() -> None:
    """Have SIGTERM and SIGHUP end this process with its context managers, and so with its services, which are in
    sessions of their own. SIGHUP stays ignored below `nohup`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):  # `timeout` sends its signal twice
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


ALIVE: list[Service] = []
"""Services that were made and not closed. The end of the test session closes and reports them."""
