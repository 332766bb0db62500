"""The measured service: a child on a free port with a fresh data directory, and the CPU time of its processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

READY_SECONDS = 30.0


class Server:
    """`with Server(data_dir, shards) as server:` serves on `server.port`. Logs go to `<data_dir>.log`. `settings` are
    `TOPICS_*` variables."""

    def __init__(self, data_dir: Path, shards: int, **settings: str) -> None:
        self.data_dir = data_dir
        self.shards = shards
        self.settings = settings
        self.port = 0

    def __enter__(self) -> Server:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        log_path = self.data_dir.with_name(self.data_dir.name + ".log")
        command = [sys.executable, "-m", "supervisor.cli", "serve", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--data-dir", str(self.data_dir), "--shards", str(self.shards)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environment |= self.settings
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RuntimeError(f"the service did not get ready:\n{log_path.read_text(errors='replace')[-4000:]}")
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/v0/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """One request on a connection of its own. Returns status and parsed answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"content-type": "application/json"} if data else {})
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

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each process of the service: "gateway", and "shards" all together."""
        ticks = os.sysconf("SC_CLK_TCK")
        used = {"gateway": 0.0, "shards": 0.0}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # the process ended meanwhile
            if int(stat[1]) == self._process.pid:
                name = "gateway" if b"gateway" in command else "shards" if b"shardd" in command else ""
                if name:
                    used[name] += (int(stat[11]) + int(stat[12])) / ticks
        return used
