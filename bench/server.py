"""The measured service: a child on a free port with a fresh data directory, and the CPU time of its processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

READY_SECONDS = 60.0
BYTECODE = Path(tempfile.gettempdir()) / f"topics-bench-bytecode-{os.getuid()}"
"""Where services keep compiled modules, so that no checkout is faster because it was compiled at installation."""
HERE = Path(__file__).resolve().parents[1]
PARTS = {b"gateway": "gateway", b"shard": "shards"}
"""Part of the service by the beginning of a process's name, or of the module that it runs."""


def end_in_order() -> None:
    """Have SIGTERM and SIGHUP end this program with its context managers, and so with its services, which are in
    sessions of their own. SIGHUP stays ignored below `nohup`. Does nothing the second time."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):  # `timeout` sends its signal twice
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


class Server:
    """`with Server(data_dir, shards) as server:` serves on `server.port`. Logs go to `<data_dir>.log`. `settings` are
    `TOPICS_*` variables. `checkout` is the source that is served: this one by default, or one that has its own `.venv`.
    With `key`, the service demands it."""

    def __init__(self, data_dir: Path, shards: int, checkout: Path = HERE, key: str = "", **settings: str) -> None:
        self.data_dir = data_dir
        self.shards = shards
        self.checkout = checkout
        self.key = key
        self.settings = settings | ({"TOPICS_API_KEYS": key} if key else {})
        self.port = 0
        self.ready_s = 0.0
        """Seconds from the start of the process until the service was ready."""

    def __enter__(self) -> Server:
        end_in_order()
        with socket.socket() as probe:  # a second start gets another port
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._log_path = log_path = self.data_dir.with_name(self.data_dir.name + ".log")
        own = self.checkout == HERE
        python = sys.executable if own else str(self.checkout / ".venv/bin/python")
        command = [python, "-m", "supervisor.cli", "serve", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--data-dir", str(self.data_dir), "--shards", str(self.shards)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment |= {"PYTHONPYCACHEPREFIX": str(BYTECODE)} | self.settings
        started = time.monotonic()
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
                cwd=self.checkout,
            )
        try:
            while not self._is_ready():
                if self._process.poll() is not None or time.monotonic() > started + READY_SECONDS:
                    log = log_path.read_text(errors="replace")[-4000:]
                    raise RuntimeError(f"the service did not get ready:\n{log}")
                time.sleep(0.01)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, *, kill: bool = False) -> None:
        """Stop the service in order, or with `kill` all processes at once."""
        if kill:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def pid(self) -> int:
        """That of the service's first process."""
        return self._process.pid

    def _is_ready(self) -> bool:
        try:
            if self.request("GET", "/v0/ready")[0] != 200:
                return False
            # Of several gateways, the others may not know yet what this one knows: the supervisor says when all do.
            return "TOPICS_GATEWAYS" not in self.settings or b" is ready at " in self._log_path.read_bytes()
        except (OSError, http.client.HTTPException):
            return False

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """One request on a connection of its own. Returns status and parsed answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            headers = {"content-type": "application/json"} if data else {}
            if self.key:
                headers["authorization"] = f"Bearer {self.key}"
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def children(self) -> list[int]:
        """Pids of the service's processes but the first."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                except OSError:
                    continue  # the process ended meanwhile
                if int(parent) == self._process.pid:
                    found.append(int(entry.name))
        return found

    def processes(self) -> dict[int, str]:
        """Pid → part ("gateway", "shards", "fork server", "supervisor") of each process."""
        found = {self._process.pid: "supervisor"}
        for pid in self.children():
            try:
                command = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # the process ended meanwhile
            for name, part in (*PARTS.items(), (b"topics: fork", "fork server")):
                if any(word.startswith(name) for word in command):
                    found[pid] = part
        return found

    def cpu_times(self) -> dict[str, tuple[float, float]]:
        """CPU seconds so far in user and system mode: of the gateway, and of the shards all together."""
        ticks = os.sysconf("SC_CLK_TCK")
        used = {"gateway": (0.0, 0.0), "shards": (0.0, 0.0)}
        for pid, part in self.processes().items():
            if part in used:
                stat = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
                user, system = used[part]
                used[part] = (user + int(stat[11]) / ticks, system + int(stat[12]) / ticks)
        return used

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds so far: of the gateway, and of the shards all together."""
        return {part: sum(times) for part, times in self.cpu_times().items()}

    def wakes(self) -> dict[str, int]:
        """How often the threads of the gateway, and of the shards all together, have gone to sleep so far."""
        found = {"gateway": 0, "shards": 0}
        for pid, part in self.processes().items():
            if part in found:
                for status in (Path("/proc") / str(pid)).glob("task/*/status"):
                    _, _, after = status.read_text().partition("\nvoluntary_ctxt_switches:")
                    found[part] += int(after.split()[0])
        return found

    def memory_mb(self) -> float:
        """Proportional set size of all processes: what is shared counts once."""
        return proportional_mb(self.processes())


def proportional_mb(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        rollup = (Path("/proc") / str(pid) / "smaps_rollup").read_text()
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024
