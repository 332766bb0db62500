"""Claims about core dumps: the limit, the process state and the unit each keep every process from leaving one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gateway.process
import shardd.process.main
from proto.ipc.control import CONTROL_FD_VARIABLE
from tests.support.service import Service

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "topics.service"


@pytest.fixture
def pids(service: Service) -> dict[str, int]:
    assert service.process is not None
    children = {name: child["pid"] for name, child in service.status()["children"].items()}
    return {"supervisor": service.process.pid, **children}


def test_no_process_may_leave_a_core_file(pids: dict[str, int]) -> None:
    for name, pid in pids.items():
        limits = Path(f"/proc/{pid}/limits").read_text()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        assert line.split()[4:6] == ["0", "0"], name


def test_a_process_that_wants_none_is_not_dumpable() -> None:
    """A limit alone does not keep the kernel from piping a dump into a program."""
    code = (
        "import ctypes; from proto.process.core_dumps import leave_no_core; libc = ctypes.CDLL(None)\n"
        "before = libc.prctl(3, 0, 0, 0, 0); leave_no_core(); print(before, libc.prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["1", "0"]


@pytest.mark.parametrize("module", [gateway.process, shardd.process.main], ids=["gateway", "shard"])
def test_each_child_sees_to_it_before_anything_else(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state "not dumpable" does not survive the exec of a child."""
    did: list[str] = []
    monkeypatch.setenv(CONTROL_FD_VARIABLE, "0")
    monkeypatch.setattr(module, "die_with_parent", lambda: None)
    monkeypatch.setattr(module, "leave_no_core", lambda: did.append("no core"))
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    monkeypatch.setattr("trio.run", lambda *arguments: did.append("run"))
    try:
        module.run()
    except SystemExit:
        pass
    assert did == ["no core", "run"]


def test_the_unit_bounds_memory_and_outlives_a_process_that_needs_too_much() -> None:
    lines = UNIT.read_text().splitlines()
    assert {"LimitCORE=0", "OOMPolicy=continue", "MemoryMax=75%"} <= set(lines)
