"""The service as a child of an example: on a free port, with a data directory of its own, killed on demand."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

READY_SECONDS = 180.0


class Service:
    """`with Service(data_dir) as service:` serves on `service.port`; what it logs goes to `<data_dir>.log`.

    `settings` are the service's, such as `TOPICS_API_KEYS="…"`.
    """

    def __init__(self, data_dir: Path, shards: int = 2, **settings: str) -> None:
        self.data_dir = data_dir
        self.settings = settings
        self.log = data_dir.with_name(data_dir.name + ".log")
        self.shards = shards
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the service and wait until it is ready. Returns the seconds taken."""
        self.port = free_port()
        started = time.perf_counter()
        command = [sys.executable, "-m", "supervisor.cli", "serve", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--data-dir", str(self.data_dir), "--shards", str(self.shards)]
        # Settings of the surrounding shell must not affect the example.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environment |= self.settings
        with self.log.open("ab") as log:
            # A session of its own is also a process group of its own, so that kill() reaches every process of it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the service ended with status {self._process.returncode}:\n{self._log_end()}")
            if time.perf_counter() - started > READY_SECONDS:
                raise RuntimeError(f"the service was not ready after {READY_SECONDS:.0f} s:\n{self._log_end()}")
            time.sleep(0.02)
        return time.perf_counter() - started

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/v0/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _log_end(self) -> str:
        return self.log.read_bytes()[-4000:].decode(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL to every process of the service at once, so that none can flush or close anything."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Stop the service by SIGTERM, or by SIGKILL if it does not end in time."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
                return
        self._process = None

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
