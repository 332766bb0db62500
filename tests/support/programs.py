"""Programs of other projects that tests run, and the ports they listen on."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parents[2]
UNMEASURED = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
"""The environment of programs that `make coverage` leaves alone: copies, and those that are judged by how they end."""


def leave_out(needs: str) -> NoReturn:
    """Leave the test out, as this machine lacks what it needs. `make test` names all that is lacking in one line."""
    pytest.skip(" ".join(needs.split()))


def tool(*names: str) -> str:
    """Return the path of the first of these programs that is installed. A test without it is left out."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    return next((found for name in names if (found := shutil.which(name, path=path))), None) or leave_out(names[0])


@functools.cache
def java_home() -> str:
    """The home of a Java that Spark takes; empty if there is none."""
    found = subprocess.run([ROOT / "tools/find-java.sh", "look"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a process group of its own, and end the whole group afterwards."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **options
    )
    try:
        yield process
        assert process.poll() is None, f"{command[0]} ended"
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
